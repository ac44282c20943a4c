"""A server: the cost of a command that the server answers, as a multiple of `python -c pass`; for
the speed of writes see `writes`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import report, writes
from memories import Draft, Memories, load_config

QUERY = "library to parse command line options"
_TARGETS = {
    "search": (3.0, 40.0),
    "create": (3.0, None),
}  # × `python -c pass` of CPU; milliseconds of wall time


def run(texts: Path, sizes: Sequence[int], rounds: int) -> None:
    """Measure and print tables."""
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-serve-") as folder:
            _commands(texts.read_text().splitlines()[:size], Path(folder), rounds)
    writes.run()


def _commands(texts: Sequence[str], home: Path, rounds: int) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment |= {"MEMORY_HOME": str(home)}
    config = load_config(environment=environment, folder=home)
    with Memories(config=config) as memories:
        memories.create_many([Draft(text) for text in texts], force=True)
    command = [sys.executable, "-m", "memories"]
    rows = []
    with _serving(command, environment):
        for name in ("-c pass", "search", "create"):
            measured = []
            for number in range(rounds + 1):
                asked = {
                    "-c pass": [sys.executable, "-c", "pass"],
                    "search": [*command, "search", QUERY],
                    "create": [
                        *command,
                        "create",
                        f"measured fact number {number} of {os.getpid()}",
                        "--force",
                    ],
                }[name]
                measured.append(_cost(asked, environment))
            cpu, wall = (
                min(cost for cost, _ in measured[1:]),
                report.percentile([w for _, w in measured[1:]], 0.5),
            )
            rows.append(
                (
                    name,
                    f"{cpu:.1f}",
                    f"{cpu / float(rows[0][1]):.2f}" if rows else "1",
                    f"{wall:.1f}",
                    _bar(name),
                )
            )
        asked = json.loads(
            subprocess.run(
                [*command, "serve", "--status"], env=environment, capture_output=True
            ).stdout
        )
    assert asked["commands"] == 2 * (rounds + 1) + 1, "the server did not answer each command"
    report.heading(f"Commands that a server answers, {len(texts):,} memories")
    report.table(("command", "CPU ms", "× pass", "wall ms p50", "target"), rows)


def _bar(name: str) -> str:
    times, wall = _TARGETS.get(name, (None, None))
    return f"≤ {times:g} ×" + (f", ≤ {wall:g} ms" if wall else "") if times else ""


@contextmanager
def _serving(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    options: dict[str, Any] = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "serve", "--no-http"], **options) as server:
        assert server.stderr is not None
        server.stderr.readline()
        subprocess.run(
            [*command, "search", QUERY], env=environment, capture_output=True, check=True
        )  # it is warm now
        time.sleep(3)
        yield
        server.terminate()


def _cost(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the CPU and the wall time of a process, in milliseconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu * 1000, wall * 1000
