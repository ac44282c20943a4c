"""Hooks: the CPU time and the wall time of a whole `memory hook …` process, as ratios to `python -c pass`."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import corpus as corpora
from bench import report
from memories import Draft, Memories, load_config
from memories.skins.capture.hook import EVENTS

_APPENDING = ("stop", "pre-compact", "session-end")
_BAR = 3.0  # times `python -c pass`, for events that only append
_LATEST_MS = 1_000.0  # that an agent is ever held up
_PROMPT = "which library parses command line options?"
_SECONDS = "0.85"


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of the benchmark: how many memories there are, and how often each hook runs."""

    texts: Path
    memories: int = 10_000
    rounds: int = 20


def run(options: Options) -> None:
    """Measure each event over an empty store, a full one, and one that another process keeps locked."""
    corpora.CACHE.mkdir(exist_ok=True)
    for name in ("empty", "full", "locked"):
        with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder, ExitStack() as stack:
            home = Path(folder).absolute()
            if name != "empty":
                _fill(options, home)
            if name == "locked":
                config = load_config({"home": str(home)}, environment={})
                stack.enter_context(stack.enter_context(Memories(config=config, embedder="none")).transaction())
            count = 0 if name == "empty" else options.memories
            _print(f"Hooks, {name} store, {count:,} memories, {options.rounds} interleaved rounds", options, home)


def _fill(options: Options, home: Path) -> None:
    corpus = corpora.load(options.texts, options.memories, 0)
    with Memories(embedder=corpus.embedder, config=load_config({"home": str(home)}, environment={})) as memories:
        memories.create_many([Draft(text) for text in corpus.texts], force=True)


def _print(title: str, options: Options, home: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PYTHONPATH")}
    environment = {**kept, "HOME": str(home), "MEMORY_HOME": str(home)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("python -c pass", *EVENTS)}
    for number in range(options.rounds + 1):  # the first round warms the disk cache and is not counted
        for name, times in taken.items():
            times.append(_times(name, number, home, environment))
    bare = report.percentile([cpu for cpu, _ in taken["python -c pass"][1:]], 0.5)
    start = report.percentile([wall for _, wall in taken["python -c pass"][1:]], 0.5)
    rows = []
    for name, times in taken.items():
        cpu = report.percentile([each for each, _ in times[1:]], 0.5)
        walls = [wall for _, wall in times[1:]]
        rows.append(
            (f"`{name}`", f"{cpu:.0f}", f"{cpu / bare:.1f}", *report.p50_p95(walls), _bar(name, cpu / bare, walls))
        )
    report.heading(title)
    report.table(["process", "median CPU ms", "× `python -c pass`", "p50 ms", "p95 ms", "bar"], rows)
    report.note(
        f"Of each wall time the start of the interpreter takes {start:.0f} ms on this machine, as busy as it is."
    )


def _bar(name: str, ratio: float, walls: list[float]) -> str:
    if name not in EVENTS:
        return ""
    late = report.percentile(walls, 0.95)
    told = [f"≤ {_LATEST_MS:.0f} ms: {'met' if late <= _LATEST_MS else 'missed'}"]
    if name in _APPENDING:
        told.insert(0, f"≤ {_BAR:g} ×: {'met' if ratio <= _BAR else 'missed'}")
    return ", ".join(told)


def _times(name: str, number: int, home: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Run a process; return the CPU time and the wall time that it took, in milliseconds."""
    hook = [sys.executable, "-m", "memories", "hook", name, "--host", "codex", "--capture", "--seconds", _SECONDS]
    command = hook if name in EVENTS else [sys.executable, "-c", "pass"]
    told = {"session_id": f"s{number}", "cwd": str(home), "prompt": _PROMPT, "last_assistant_message": "Done. " * 50}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, input=json.dumps(told).encode(), env=environment, capture_output=True, check=True)
    wall = (time.perf_counter() - began) * 1000
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000, wall
