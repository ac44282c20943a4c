"""Processes of a campaign, forked from one that has imported everything and opened no store. All
die with it.

A campaign's script never opens a store itself. It prints its figures as lines of JSON, and if
something is wrong it exits with 1 and a reason on standard error.
"""

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _CLONE_NEWNS = 1, 0x20000
LONGEST_SECONDS = 7200  # maximum of a child; a script whose children need less sets it
# a script that imports this module begins with this
ON_PATH = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"


def die_with_parent() -> None:
    """Make this process die when its parent ends, or after `LONGEST_SECONDS` at the latest."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.alarm(LONGEST_SECONDS)


def own_mounts() -> None:
    """Give this process and its children private mounts, so that none remains after any kind of
    end; root only.
    """
    if _libc.unshare(_CLONE_NEWNS):
        sys.exit("can't have private mounts")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, timeout=300)


def warm() -> None:
    """Import everything that forks need, so that they start quickly."""
    import memories.read.turns
    import memories.read.versions
    import memories.search.search
    import memories.stores.sqlite.store
    import memories.stores.sqlite.turns
    import memories.stores.sqlite.vectors
    import memories.transfer.backup
    import memories.write.change
    import memories.write.create
    import memories.write.forget
    import memories.write.turn_queue
    import memories.write.turns  # noqa: F401
    from memories.embedders import open_embedder

    embedder = open_embedder("fake")
    assert embedder is not None
    embedder.embed("warm")


def fork(work: Callable[..., object], *arguments: Any) -> int:
    """Run a function in a child; return the child's id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    die_with_parent()
    failed = 0
    try:
        work(*arguments)
    except BaseException:  # noqa: BLE001 - the child must not continue the parent's work
        traceback.print_exc()
        failed = 1
    sys.stdout.flush()
    os._exit(failed)


def wait(children: Sequence[int], expected: int = 0) -> None:
    """Wait for children; end the campaign if one ends differently."""
    for child in children:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended != expected:
            sys.exit(f"process {child} ended with {ended}, not with {expected}")


def kill(children: Sequence[int], drawn: random.Random) -> None:
    """Kill children in random order, with short pauses between some of them."""
    for child in drawn.sample(list(children), len(children)):
        os.kill(child, signal.SIGKILL)
        if drawn.random() < 0.3:
            time.sleep(drawn.uniform(0.0, 0.02))
    wait(children, -signal.SIGKILL)


def wait_for_lines(ledgers: Sequence[Path], count: int, children: Sequence[int]) -> None:
    """Wait until the ledgers have this many lines, with no limit on time."""
    while sum(ledger.read_bytes().count(b"\n") for ledger in ledgers if ledger.exists()) < count:
        for child in children:
            if os.waitpid(child, os.WNOHANG)[0]:
                sys.exit(f"process {child} ended before it was killed")
        time.sleep(0.002)


def print_figures(**figures: object) -> None:
    """Print the figures so far."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
