"""The hot tier: the cost of reading and searching a scratchpad, and of the session block, relative
to `python -c pass`.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from bench import report
from bench.cold import _cpu_milliseconds, _loads_heavy
from memories import Draft, Memories, load_config
from memories.identity.session_block import build_session_block
from memories.scratchpad.file import load

MEMORIES = 1_000
_WARM = 200
_READ = """
import sys
from pathlib import Path
from memories.scratchpad.file import load
load(Path(sys.argv[1]), "bob")
"""


def run(rounds: int) -> None:
    """Measure cold commands and warm calls over a namespace of some memories, and print two
    tables.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = {
            name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "HOME")
        }
        environment |= {"MEMORY_HOME": folder, "MEMORY_FORMAT": "json"}
        with Memories(
            namespace="bob", config=load_config({}, environment=environment), embedder="none"
        ) as memories:
            memories.create_many(
                [Draft(f"fact {at} about the part {at * 7} of the shop") for at in range(MEMORIES)],
                force=True,
            )
            memories.scratchpad()
            _print_cold(rounds, home, environment)
            _print_warm(memories, home)


def _print_cold(rounds: int, home: Path, environment: dict[str, str]) -> None:
    memory = [sys.executable, "-m", "memories"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "reading a scratchpad": [sys.executable, "-c", _READ, str(home)],
        "memory prompt": [*memory, "prompt", "-n", "bob"],
        "memory scratchpad show": [*memory, "scratchpad", "show", "-n", "bob"],
        "memory search --tier hot": [
            *memory,
            "search",
            "the part 49 of the shop",
            "--tier",
            "hot",
            "-n",
            "bob",
        ],
        "memory list": [*memory, "list", "-n", "bob"],
        "memory create": [*memory, "create", "a fact that is there", "-n", "bob"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):  # the first round warms the disk cache, so it isn't counted
        for name, command in commands.items():
            taken[name].append(_cpu_milliseconds(command, environment))
    bare = report.percentile(taken["python -c pass"][1:], 0.5)
    report.heading(
        f"The hot tier from a cold shell, {MEMORIES:,} memories, {rounds} interleaved rounds"
    )
    report.table(
        ["command", "median CPU ms", "ratio of medians", "loads numpy or the model"],
        [
            (
                f"`{name}`",
                f"{report.percentile(values[1:], 0.5):.0f}",
                f"{report.percentile(values[1:], 0.5) / bare:.1f}",
                "yes" if _loads_heavy(commands[name], environment) else "no",
            )
            for name, values in taken.items()
        ],
    )


def _print_warm(memories: Memories, home: Path) -> None:
    calls = {
        "reading a scratchpad": lambda: load(home, "bob"),
        "the session block": lambda: build_session_block(memories, project=None, budget=1500),
        "a search of the scratchpad": lambda: memories.search_scratchpad("the part 49 of the shop"),
        "bringing it up to date": lambda: memories.scratchpad(refresh=True),
        "rebuilding it": lambda: memories.scratchpad(rebuild=True),
    }
    rows = []
    for name, call in calls.items():
        call()
        rounds = _WARM if name != "rebuilding it" else _WARM // 20
        began = time.process_time()
        for _ in range(rounds):
            call()
        rows.append((name, f"{(time.process_time() - began) / rounds * 1000:.2f}"))
    size = (home / "bob" / "scratchpad.yaml").stat().st_size
    count = len(memories.scratchpad().entries)
    report.heading(f"The hot tier in a warm process: {count} entries, {size:,} bytes")
    report.table(["call", "CPU ms"], rows)
