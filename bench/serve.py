"""A server: what a command costs that it answers, as a ratio to `python -c pass`, and how much it writes a second."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import report
from memories import Draft, Memories, load_config
from memories.embedders import open_embedder
from memories.skins.server.writers import Writers
from memories.stores import open_store

CLIENTS = 64
SECONDS = 8.0
QUERY = "library to parse command line options"
_BARS = {"search": (3.0, 40.0), "create": (3.0, None)}  # × `python -c pass` of CPU; milliseconds of wall time


def run(texts: Path, sizes: Sequence[int], rounds: int) -> None:
    """Measure and print tables."""
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-serve-") as folder:
            _commands(texts.read_text().splitlines()[:size], Path(folder), rounds)
    report.heading("Writes through the queue of a server")
    rows = []
    for name, embedder in (("embeddings given (fake)", "fake"), ("with embedding (minilm)", "minilm")):
        with tempfile.TemporaryDirectory(prefix="bench-serve-") as folder:
            rows.append((name, *_throughput(Path(folder), embedder)))
    report.table(("what", "creates/s", "per commit", "CPU µs each"), rows)
    report.note(f"{CLIENTS} threads, {SECONDS:g} s each, durable, without comparing (force). Bars: 3,000/s and 150/s.")


def _commands(texts: Sequence[str], home: Path, rounds: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
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
                    "create": [*command, "create", f"measured fact number {number} of {os.getpid()}", "--force"],
                }[name]
                measured.append(_cost(asked, environment))
            cpu, wall = min(cost for cost, _ in measured[1:]), report.percentile([w for _, w in measured[1:]], 0.5)
            rows.append(
                (name, f"{cpu:.1f}", f"{cpu / float(rows[0][1]):.2f}" if rows else "1", f"{wall:.1f}", _bar(name))
            )
        asked = json.loads(subprocess.run([*command, "serve", "--status"], env=environment, capture_output=True).stdout)
    assert asked["commands"] == 2 * (rounds + 1) + 1, "the server did not answer each command"
    report.heading(f"Commands that a server answers, {len(texts):,} memories")
    report.table(("command", "CPU ms", "× pass", "wall ms p50", "bar"), rows)


def _bar(name: str) -> str:
    times, wall = _BARS.get(name, (None, None))
    return f"≤ {times:g} ×" + (f", ≤ {wall:g} ms" if wall else "") if times else ""


@contextmanager
def _serving(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    options: dict[str, Any] = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "serve", "--no-http"], **options) as server:
        assert server.stderr is not None
        server.stderr.readline()
        subprocess.run([*command, "search", QUERY], env=environment, capture_output=True, check=True)  # it is warm now
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


def _throughput(folder: Path, name: str) -> tuple[str, str, str]:
    """Return how many creates a second are acknowledged to many clients, how many share a commit, what each costs."""
    config = load_config({"store": f"sqlite:///{folder}/m.db", "embedder": name}, environment={}, folder=folder)
    embedder = open_embedder(name, config)
    assert embedder is not None
    embedder.embed("warm")
    store = open_store(config.store, embedder.space, config)
    writers, done, stop = Writers(store), [0] * CLIENTS, threading.Event()

    def client(number: int) -> None:
        memories = Memories(store, embedder=embedder, config=config, channel="http")
        while not stop.is_set():
            writers.create(memories, [Draft(f"client {number} says {done[number]} things")], True, True)
            done[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    cpu, began = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
    writers.close()
    store.close()
    total = sum(done)
    return f"{total / seconds:,.0f}", f"{total / max(1, writers.commits):.0f}", f"{cpu / total * 1e6:,.0f}"
