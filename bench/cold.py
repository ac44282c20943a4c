"""Cold commands: the CPU time of a whole `memory …` process, as a multiple of `python -c pass`, and
how it is spent.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import corpus as corpora
from bench import report
from memories import Draft, Memories, load_config

MEMORIES = 10_000
QUERY = "library to parse command line options"
HEAVY = ("numpy", "onnxruntime")
_TARGETS = {
    "--help": 5.0,
    "status": 6.5,
    "get": 6.5,
    "list": 6.5,
    "search": 22.0,
}  # maximum, as a multiple of `python -c pass`

# A process that does the steps of `memory search` and prints the time at the end of each, in
# seconds.
_STEPS = """
import time; print("interpreter", time.monotonic())
import memories.cli.app, memories.cli.search, memories.memories
import memories.stores.sqlite.store, memories.search.search
print("import the command and the store", time.monotonic())
import numpy; print("import numpy", time.monotonic())
import onnxruntime; print("import onnxruntime", time.monotonic())
import sys; from memories.embedders import open_embedder
embedder = open_embedder("minilm"); embedder.embed("a")
print("load the model", time.monotonic())
embedder.embed(sys.argv[1]); print("embed the query", time.monotonic())
memories = memories.Memories(embedder=embedder); memories.explain(sys.argv[1])
print("open the store and search, counting the access", time.monotonic())
memories.close(); sys.stdout.flush()
import os; os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark: the number of memories, and how often each command runs."""

    texts: Path
    memories: int = MEMORIES
    rounds: int = 20


def run(options: Options) -> None:
    """Measure cold commands over a store of real texts, and print two tables."""
    corpora.CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as home:
        environment = _environment(Path(home).absolute())
        memory_id = _fill(options, Path(home).absolute())
        commands = _commands(memory_id)
        _print_commands(options, commands, environment)
        _print_parts(options, environment)
        _print_handshake(options, environment)


def _environment(home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LANG", "HOME", "PYTHONPATH")
    }
    return {**kept, "MEMORY_HOME": str(home), "MEMORY_FORMAT": "json"}


def _fill(options: Options, home: Path) -> str:
    """Store the texts; return the id of the last memory."""
    corpus = corpora.load(options.texts, options.memories, 0)
    config = load_config({"home": str(home)}, environment={})
    with Memories(embedder=corpus.embedder, config=config) as memories:
        drafts = [Draft(text, {"project": f"p{at % 10}"}) for at, text in enumerate(corpus.texts)]
        created = memories.create_many(drafts, force=True)
    assert created[-1].memory is not None
    return created[-1].memory.id


def _commands(memory_id: str) -> dict[str, list[str]]:
    script = Path(sys.executable).parent / "memory"
    memory = (
        [sys.executable, str(script)] if script.is_file() else [sys.executable, "-m", "memories"]
    )
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "memory --help": [*memory, "--help"],
        "memory status": [*memory, "status"],
        "memory get": [*memory, "get", memory_id],
        "memory list": [*memory, "list"],
        "memory search": [*memory, "search", QUERY],
    }


def _print_commands(
    options: Options, commands: Mapping[str, list[str]], environment: Mapping[str, str]
) -> None:
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds + 1):  # the first round warms the disk cache, so it isn't counted
        for name, command in commands.items():
            taken[name].append(_cpu_milliseconds(command, environment))
    times = {name: values[1:] for name, values in taken.items()}
    bare = times["python -c pass"]
    report.heading(
        f"Cold commands, {options.memories:,} memories, {options.rounds} interleaved rounds"
    )
    report.table(
        [
            "command",
            "min CPU ms",
            "median CPU ms",
            "ratio of minima",
            "ratio of medians",
            "loads numpy or the model",
            "target",
        ],
        [
            (
                f"`{name}`",
                f"{min(values):.0f}",
                f"{report.percentile(values, 0.5):.0f}",
                f"{min(values) / min(bare):.1f}",
                f"{report.percentile(values, 0.5) / report.percentile(bare, 0.5):.1f}",
                "–"
                if name == "python -c pass"
                else ("yes" if _loads_heavy(commands[name], environment) else "no"),
                _bar(name, values, bare),
            )
            for name, values in times.items()
        ],
    )


def _bar(name: str, values: Sequence[float], bare: Sequence[float]) -> str:
    most = _TARGETS.get(name.removeprefix("memory "))
    if most is None:
        return ""
    ratio = report.percentile(values, 0.5) / report.percentile(bare, 0.5)
    return f"≤ {most:g} ×: {'met' if ratio <= most else 'missed'}"


def _cpu_milliseconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run a command; return its CPU time, which other load affects less than wall time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(command, environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def _print_parts(options: Options, environment: Mapping[str, str]) -> None:
    taken: dict[str, list[float]] = {}
    for _ in range(options.rounds + 1):
        before = time.monotonic()
        done = _run([sys.executable, "-c", _STEPS, QUERY], environment)
        after = time.monotonic()
        for line in [*done.splitlines(), f"exit {after}"]:
            name, _, moment = line.rpartition(" ")
            taken.setdefault(name, []).append((float(moment) - before) * 1000)
            before = float(moment)
    report.heading(
        "`memory search`, cold, by part (one process that takes the same steps one by one)"
    )
    medians = {name: report.percentile(values[1:], 0.5) for name, values in taken.items()}
    rows = [
        (name, f"{min(taken[name][1:]):.0f}", f"{median:.0f}") for name, median in medians.items()
    ]
    report.table(
        ["part", "min ms", "median ms"], [*rows, ("sum", "", f"{sum(medians.values()):.0f}")]
    )


def _print_handshake(options: Options, environment: Mapping[str, str]) -> None:
    """Print how long `memory mcp` takes until the handshake, compared with importing the SDK."""
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    }
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    commands = {
        "import the SDK": [sys.executable, "-c", "import mcp.server.mcpserver, mcp.server.stdio"],
        "`memory mcp`, until the handshake": [sys.executable, "-m", "memories", "mcp"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds + 1):
        for name, command in commands.items():
            taken[name].append(
                report.milliseconds(lambda command=command: _answer(command, request, environment))
            )
    least = {name: min(values[1:]) for name, values in taken.items()}
    alone = least["import the SDK"]
    report.heading("`memory mcp` until the handshake, compared with importing its SDK")
    report.table(
        ["what", "min ms", "ratio"],
        [(name, f"{ms:.0f}", f"{ms / alone:.1f}") for name, ms in least.items()],
    )


def _answer(command: Sequence[str], request: str, environment: Mapping[str, str]) -> None:
    """Run a command until it prints its first line, or ends without output."""
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin
        assert running.stdout
        with contextlib.suppress(BrokenPipeError):
            running.stdin.write(f"{request}\n")
            running.stdin.flush()
        running.stdout.readline()
        running.kill()


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed: {done.stderr[-500:]}")
    return done.stdout


def _loads_heavy(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a command imports numpy or the model's runtime, according to Python's import
    log.
    """
    traced = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in traced.stderr.splitlines()}
    return any(name in imported for name in HEAVY)
