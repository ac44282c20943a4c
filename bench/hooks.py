"""Hooks: the CPU time of a whole `memory hook …`, and the wall time until it ends, as multiples of
`python -c pass`.

The CPU time includes all processes that a hook starts, even those that continue after the host has
its answer, since on Linux this process can wait for them. It excludes the flusher, which stores
turns once for many hooks.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import corpus as corpora
from bench import report
from memories import Draft, Memories, load_config
from memories.hooks.hook import EVENTS

_APPENDING = ("answer", "stop", "pre-compact", "session-end")
_TARGET = 3.0  # as a multiple of `python -c pass`, for events that only append
_LATEST_MS = 1_000.0  # maximum delay of an agent
_CHILD_SUBREAPER = 36  # of prctl(2)
_SETTLING_SECONDS = 3.0  # time for a server to load the modules of commands
_LOCK = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("PRAGMA locking_mode=EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
connection.execute("CREATE TABLE nobody(reads)")
sys.stderr.write("locked\n")
sys.stdin.read()
"""
_PROMPT = "which library parses command line options?"
_SECONDS = "0.85"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark: the number of memories, and how often each hook runs."""

    texts: Path
    memories: int = 10_000
    rounds: int = 20


def run(options: Options) -> None:
    """Measure each event with an empty store, a full store, a full store with a server, and an
    unreadable store.
    """
    corpora.CACHE.mkdir(exist_ok=True)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in ("empty", "full", "served", "locked"):
        with (
            tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder,
            _ending_flushers(),
            ExitStack() as stack,
        ):
            home = Path(folder).absolute()
            if name != "empty":
                _fill(options, home)
            if name == "locked":
                stack.enter_context(
                    _other([sys.executable, "-c", _LOCK, str(home / "memories.db")], home)
                )
            if name == "served":
                stack.enter_context(
                    _other([sys.executable, "-m", "memories", "serve", "--no-http"], home)
                )
            count = 0 if name == "empty" else options.memories
            _print(
                f"Hooks, {name} store, {count:,} memories, {options.rounds} interleaved rounds",
                options,
                home,
            )


def _fill(options: Options, home: Path) -> None:
    corpus = corpora.load(options.texts, options.memories, 0)
    with Memories(
        embedder=corpus.embedder, config=load_config({"home": str(home)}, environment={})
    ) as memories:
        memories.create_many([Draft(text) for text in corpus.texts], force=True)


def _environment(home: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PYTHONPATH")
    }
    return {**kept, "HOME": str(home), "MEMORY_HOME": str(home)}


@contextlib.contextmanager
def _other(command: list[str], home: Path) -> Iterator[None]:
    """Run another program during the block, which starts after the program's first line."""
    with subprocess.Popen(
        command,
        env=_environment(home),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as program:
        assert program.stderr is not None
        program.stderr.readline()
        time.sleep(_SETTLING_SECONDS)
        try:
            yield
        finally:
            program.kill()


@contextlib.contextmanager
def _ending_flushers() -> Iterator[None]:
    """Wait for the flushers that hooks started. At the end they are the only children that lead a
    session.
    """
    yield
    if sys.platform == "linux":
        own = os.getpid()
        for child in map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split()):
            if os.getsid(child) == child:
                os.waitpid(child, 0)


def _print(title: str, options: Options, home: Path) -> None:
    environment = _environment(home)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("python -c pass", *EVENTS)}
    for number in range(
        options.rounds + 1
    ):  # the first round warms the disk cache, so it isn't counted
        for name, times in taken.items():
            times.append(_times(name, number, home, environment))
    bare = report.percentile([cpu for cpu, _ in taken["python -c pass"][1:]], 0.5)
    start = report.percentile([wall for _, wall in taken["python -c pass"][1:]], 0.5)
    rows = []
    for name, times in taken.items():
        cpu = report.percentile([each for each, _ in times[1:]], 0.5)
        walls = [wall for _, wall in times[1:]]
        rows.append(
            (
                f"`{name}`",
                f"{cpu:.0f}",
                f"{cpu / bare:.1f}",
                *report.p50_p95(walls),
                _bar(name, cpu / bare, walls),
            )
        )
    report.heading(title)
    report.table(
        ["process", "median CPU ms", "× `python -c pass`", "p50 ms", "p95 ms", "target"], rows
    )
    report.note(
        f"Each wall time includes {start:.0f} ms for starting the interpreter under the current load."
    )


def _bar(name: str, ratio: float, walls: list[float]) -> str:
    if name not in EVENTS:
        return ""
    late = report.percentile(walls, 0.95)
    told = [f"≤ {_LATEST_MS:.0f} ms: {'met' if late <= _LATEST_MS else 'missed'}"]
    if name in _APPENDING:
        told.insert(0, f"≤ {_TARGET:g} ×: {'met' if ratio <= _TARGET else 'missed'}")
    return ", ".join(told)


def _times(
    name: str, number: int, home: Path, environment: Mapping[str, str]
) -> tuple[float, float]:
    """Run a process; return its CPU time and wall time, in milliseconds."""
    hook = [
        sys.executable,
        "-m",
        "memories",
        "hook",
        name,
        "--host",
        "codex",
        "--capture",
        "--seconds",
        _SECONDS,
    ]
    command = hook if name in EVENTS else [sys.executable, "-c", "pass"]
    told = {
        "session_id": f"s{number}",
        "cwd": str(home),
        "prompt": _PROMPT,
        "last_assistant_message": "Done. " * 50,
    }
    began, seconds, wall = time.perf_counter(), 0.0, 0.0
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(told).encode())
    process.stdin.close()
    with contextlib.suppress(ChildProcessError):
        while True:  # the hook, then what it left behind; a flusher is in a group of its own
            ended, status, used = os.wait4(-process.pid, 0)
            seconds += used.ru_utime + used.ru_stime
            if ended == process.pid:
                wall = time.perf_counter() - began
                process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return seconds * 1000, wall * 1000
