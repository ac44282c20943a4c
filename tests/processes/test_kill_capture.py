"""Flushers are killed at random moments: no captured turn is lost or stored twice."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.forks import ON_PATH

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# It never opens the store itself; only its forks do, which start with all modules loaded.
DRIVER = """
import json, os, random, signal, sys, time
from torture import forks
from torture.forks import fork
from pathlib import Path
from memories import Memories
from memories.embedders import open_embedder
from memories.hooks import flush, inbox

open_embedder("fake").embed("warm")
home, rounds = sys.argv[1], int(sys.argv[2])
os.environ |= {"MEMORY_HOME": home, "EMBEDDER": "fake", "MEMORY_MAX_PER_WINDOW": "1000"}
forks.LONGEST_SECONDS = 600
drawn = random.Random(7)
COUNT = 6


def told(number, each):
    name = f"codex.s{number % 3}"
    text = f"remember that ship{number}x{each} sails to harbour{number * 7}y{each}"
    event = {"id": f"{number}-{each}", "at": 1780000000000 + number * 60000 + each, "host": "codex",
             "event": "user-prompt", "folder": home, "store": "", "turn": f"{number}-{each}", "prompt": text}
    inbox.add(home, name, event)


def capture(number, done):
    for each in range(COUNT):
        told(number, each)
    inbox.add(home, f"codex.s{number % 3}", {"id": f"end{number}", "at": 1780000000000 + number * 60000 + 99,
              "host": "codex", "event": "stop", "folder": home, "store": "", "answer": f"We decided to sail {number}."})


def store(number, done):
    flush.flush(home)
    done.write_text("end")


def check(number):
    flush.flush(home)
    assert inbox.names(home) == [], inbox.names(home)
    with Memories() as memories:
        turns = [turn.content for session in range(3) for turn in memories.turns(f"codex:s{session}", limit=1000)]
        ships = [f"ship{n}x{e} sails to harbour{n * 7}y{e}" for n in range(number + 1) for e in range(COUNT)]
        expected = {f"remember that {each}" for each in ships}
        expected |= {f"We decided to sail {n}." for n in range(number + 1)}
        assert sorted(turns) == sorted(expected), (len(turns), len(expected))
        waits = [memory.content for memory in memories.list(pending=True, limit=1000).memories]
        assert len(waits) == len(set(waits))
        assert {each.lower() for each in waits} >= set(ships)


def waited(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


killed = 0
for number in range(rounds):
    done = Path(home, f"done{number}")
    appends = fork(capture, number, done)
    for _ in range(3):  # in addition to the one that appends
        child = fork(store, number, done)
        time.sleep(drawn.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
        waited(child)
        killed += not done.exists()
    assert waited(appends) == 0
    assert waited(fork(check, number)) == 0
print(json.dumps({"rounds": rounds, "killed": killed}))
"""


@pytest.mark.thorough
def test_no_captured_turn_is_lost_or_stored_twice(
    tmp_path: Path, run_python: RunPython, size: Callable[[int, int], int]
) -> None:
    rounds = size(6, 60)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    totals = json.loads(run_python(ON_PATH + DRIVER, home, rounds).stdout)
    assert totals["rounds"] == rounds
    assert totals["killed"] > 0
