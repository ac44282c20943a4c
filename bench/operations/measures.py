"""The rows of the comparison that measure: tools, time, memory, disk and the installation."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from bench.operations import environments, inputs
from bench.operations.rows import BEST, CHARACTERS_PER_TOKEN, Case, Room

SIZES = (1_000, 10_000)
TIMED = 50  # calls of each kind
_FILL_SECONDS = 300
_PARTS_OF_A_TOOL = ("name", "description", "inputSchema")
_PASSES = 11


def measure_tools(room: Room) -> Iterator[Case]:
    """The tool descriptions that are in a model's context in every session: their names,
    descriptions and schemas.
    """
    with room.session(room.home()) as session:
        if hasattr(session, "tools"):
            tools = [[tool.get(part) for part in _PARTS_OF_A_TOOL] for tool in session.tools()]
            text = json.dumps(tools, ensure_ascii=False, separators=(",", ":"))
            yield Case("", len(tools), 0, "tools")
            yield Case("", len(text) / CHARACTERS_PER_TOKEN, 0, "tokens")


def measure_speed(room: Room) -> Iterator[Case]:
    """Stores of two sizes: the time of a create, a search and a cold start, memory and disk. A size
    is left out if filling the store would take more than five minutes.
    """
    home = room.home()
    unit = _measure_pass()
    texts = iter(inputs.statements(SIZES[-1]))
    size_before, seconds_each = 0, 0.0
    for size in SIZES:
        count = size - size_before - TIMED
        if seconds_each * count > _FILL_SECONDS:
            return
        with room.session(home) as session:
            start = time.monotonic()
            room.system.fill(session, home, [*islice(texts, count)])
            seconds_each = (time.monotonic() - start) / count
            yield from _time_calls(room, session, size, unit, [*islice(texts, TIMED)])
            if hasattr(session, "process_id"):
                yield Case("", session.memory_bytes() / 1e6, 0, f"memory, {size}")
        if size == SIZES[0]:
            yield Case("", len(room.system.stored(home)), size, "stored")
        yield from _time_start(room, home, size, unit)
        disk = sum(len(content) for content in room.contents(home))
        yield Case("", disk / 1e6, 0, f"disk, {size}")
        size_before = size


def _time_calls(
    room: Room, session: Any, size: int, unit: float, texts: Sequence[str]
) -> Iterator[Case]:
    """Create texts and search for them; yield milliseconds, and CPU time as a multiple of `unit`."""
    calls: dict[str, Callable[[str], Any]] = {
        "create": lambda text: room.add(session, text),
        "search": lambda text: room.system.search(session, text, BEST),
    }
    for name, call in calls.items():
        before = _cpu_seconds(session)
        times = [report.milliseconds(lambda: call(text)) for text in texts]  # noqa: B023
        cpu = (_cpu_seconds(session) - before) / len(texts)
        yield Case("", median(times), 0, f"{name} ms, {size}")
        yield Case("", cpu / unit, 0, f"{name} CPU, {size}")


def _time_start(room: Room, home: Path, size: int, unit: float) -> Iterator[Case]:
    """Start a server and run one search."""
    start = time.monotonic()
    with room.session(home) as session:
        if hasattr(session, "process_id"):
            room.system.search(session, inputs.CHANGES[0].question, BEST)
            seconds, cpu = time.monotonic() - start, _cpu_seconds(session)
            yield Case("", seconds * 1000, 0, f"start ms, {size}")
            yield Case("", cpu / unit, 0, f"start CPU, {size}")


def _cpu_seconds(session: Any) -> float:
    """Return the CPU time of a session's server, or of this process if there is no server."""
    return float(session.cpu_seconds()) if hasattr(session, "cpu_seconds") else time.process_time()


def _measure_pass() -> float:
    """Return the CPU seconds of `python -c pass`."""

    def run() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return median(run() for _ in range(_PASSES))


def measure_installation(room: Room) -> Iterator[Case]:
    """What an installation brings along."""
    if room.system.packages:
        packages, megabytes = environments.size(room.system.environment)
        yield Case("", packages, 0, "packages")
        yield Case("", megabytes, 0, "megabytes")


MEASURES: dict[str, Callable[[Room], Iterator[Case]]] = {
    "tools": measure_tools,
    "speed": measure_speed,
    "installed": measure_installation,
}
"""Rows that measure, by their names."""
