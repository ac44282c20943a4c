"""Processes of a campaign: forks of one that has imported everything and opened no store; all die
with it.

A campaign's script never opens a store itself, prints its figures as lines of JSON, and ends with 1
and a reason on standard error if something is wrong.
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
LONGEST_SECONDS = 7200  # of a child; a script whose children need less sets it
# before a script that imports this
ON_PATH = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"


def die_with_parent() -> None:
    """End when the parent ends, and after a long time in any case."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.alarm(LONGEST_SECONDS)


def own_mounts() -> None:
    """Mount things for this process and its children only, so that none is left however they end;
    root only.
    """
    if _libc.unshare(_CLONE_NEWNS):
        sys.exit("can't have mounts of its own")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, timeout=300)


def warm() -> None:
    """Import all that forks need, so that they begin at once."""
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
    except BaseException:  # noqa: BLE001 - the child must not go on with what its parent does
        traceback.print_exc()
        failed = 1
    sys.stdout.flush()
    os._exit(failed)


def wait(children: Sequence[int], expected: int = 0) -> None:
    """Wait for children; one that ends otherwise ends the campaign."""
    for child in children:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended != expected:
            sys.exit(f"process {child} ended with {ended}, not with {expected}")


def kill(children: Sequence[int], drawn: random.Random) -> None:
    """Kill children in any order, some a moment after the others."""
    for child in drawn.sample(list(children), len(children)):
        os.kill(child, signal.SIGKILL)
        if drawn.random() < 0.3:
            time.sleep(drawn.uniform(0.0, 0.02))
    wait(children, -signal.SIGKILL)


def wait_for_lines(ledgers: Sequence[Path], count: int, children: Sequence[int]) -> None:
    """Wait until the ledgers have so many lines, however slow the machine is."""
    while sum(ledger.read_bytes().count(b"\n") for ledger in ledgers if ledger.exists()) < count:
        for child in children:
            if os.waitpid(child, os.WNOHANG)[0]:
                sys.exit(f"process {child} ended before it was killed")
        time.sleep(0.002)


def tell(**figures: object) -> None:
    """Print the figures so far."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
