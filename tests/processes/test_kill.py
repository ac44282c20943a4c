"""Writers are killed at random moments: acknowledged writes are found afterwards, and nothing is
damaged.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torture.forks import ON_PATH

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# The process that starts, kills and checks. It never opens the store itself; only its forks do,
# which start with all modules loaded and die with it. Each writer keeps a ledger: `+id` after a
# create has returned, `-id` before a forget begins, `=id` after it has returned.
DRIVER = """
import json, os, random, signal, sys, time
from torture import forks
from torture.forks import fork
from pathlib import Path
import memories.search.search, memories.stores.sqlite.store, memories.stores.sqlite.vectors
import memories.languages.text, memories.read.versions
import memories.write.create
from memories import Memories, NotFound
from memories.embedders import open_embedder
from memories.stores.sqlite.store import SQLiteStore

open_embedder("fake").embed("warm")
mode, folder, rounds, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
forks.LONGEST_SECONDS = 900
drawn = random.Random(seed)
totals = {"acknowledged": 0, "forgotten": 0, "rounds": 0, "unfinished": 0}


def write(path, ledger, number):
    own = random.Random(f"{seed} {number} {ledger}")
    note = os.open(ledger, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    memories = Memories(f"sqlite:///{path}", embedder="fake")
    made = []
    turn = 0
    while True:
        turn += 1
        content = f"{ledger.name} turn {turn} " + "with more words " * own.randrange(60)
        if mode != "create" and len(made) > 2 and own.random() < 0.3:
            gone = made.pop(own.randrange(len(made)))
            os.write(note, f"-{gone}\\n".encode())
            memories.forget(gone)
            os.write(note, f"={gone}\\n".encode())
        elif own.random() < 0.15 and made:
            memories.update(made[0], content)
        else:
            made.append(memories.create(content, key=f"{ledger.name}/{turn}" if turn % 7 == 0 else None,
                                        force=own.random() < 0.8, tags={"by": ledger.name}).memory.id)
            os.write(note, f"+{made[-1]}\\n".encode())


def outcome(ledgers):
    lines = [line for ledger in ledgers if ledger.exists() for line in ledger.read_text().split()]
    created, begun, ended = ({line[1:] for line in lines if line[0] == sign} for sign in "+-=")
    return created - begun, ended, begun - ended


def check(path, ledgers, deeply):
    kept, forgotten, _ = outcome(ledgers)
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        for memory_id in sorted(kept):
            assert memories.get(memory_id).content
        for memory_id in sorted(forgotten):
            try:
                memories.get(memory_id)
            except NotFound:
                continue
            raise AssertionError(f"{memory_id} was forgotten and is there")
        memories.create("the store can still be written", force=True)
        if deeply:
            [log] = memories.verify_log()
            assert (log.problem, log.unlogged, log.forks) == (None, 0, ()), log
    if deeply:
        integrity(path)


def integrity(path):
    store = SQLiteStore(path, None)
    with store._file.write() as db:
        assert db.pragma("integrity_check") == "ok"
        for table in ("words", "words_ended"):
            db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 0)")
        records = "(SELECT 1 FROM record WHERE pool NOT IN (SELECT id FROM pool WHERE collection = 'log'))"
        tables = (records, "vector", "(SELECT rowid FROM words UNION ALL SELECT rowid FROM words_ended)")
        counts = {db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in tables}
        assert len(counts) == 1, counts
        (sealed,) = db.execute("SELECT coalesce(sum(length(bits) / 8), 0) FROM block").fetchall()[0]
        assert sealed <= counts.pop()  # one 64-bit word for each vector of the fake embedder
    store.close()


def lines(ledgers, sign):
    return sum(ledger.read_text().count(sign) for ledger in ledgers if ledger.exists())


def wait(children, expected):
    for child in children:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended != expected:
            sys.exit(f"round {totals['rounds']}: a process ended with {ended}")


ledgers = []
path = folder / "memories.db"
for number in range(rounds):
    if mode == "first":
        path, ledgers = folder / f"round{number}" / "memories.db", []
    started = [folder / f"ledger{number}-{writer}" for writer in range(drawn.randint(2, 4))]
    ledgers += started
    children = [fork(write, path, ledger, number) for ledger in started]
    # Wait for the store's folder, or for some lines in the ledgers; then kill a moment later.
    asked = drawn.randint(-1, 1) if mode == "first" else drawn.randint(0, 8)
    while asked >= 0 and not (
        path.parent.exists()
        and lines(started, "\\n") >= asked
        and (mode != "forget" or asked < 5 or lines(started, "="))
    ):
        if os.waitpid(-1, os.WNOHANG)[0]:
            sys.exit(f"round {totals['rounds']}: a writer ended")
        time.sleep(0.002)
    time.sleep(drawn.uniform(0.0, 0.03))
    drawn.shuffle(children)
    for child in children:
        os.kill(child, signal.SIGKILL)
        if drawn.random() < 0.3:
            time.sleep(drawn.uniform(0.0, 0.02))  # the others continue for a moment
    wait(children, -signal.SIGKILL)
    totals["rounds"] += 1
    deeply = mode == "first" or number % 10 == 9 or number == rounds - 1
    wait([fork(check, path, ledgers if deeply else started, deeply)], 0)
    if mode == "first" or number == rounds - 1:
        kept, forgotten, unfinished = outcome(ledgers)
        totals["acknowledged"] += len(kept) + len(forgotten)
        totals["forgotten"] += len(forgotten)
        totals["unfinished"] += len(unfinished)
print(json.dumps(totals))
"""


@pytest.fixture
def kill(
    tmp_path: Path, run_python: RunPython, clean_environment: dict[str, str]
) -> Callable[..., dict[str, Any]]:
    """Return a function that runs rounds of writing and killing and returns their totals."""

    def run(mode: str, rounds: int, *, seed: int) -> dict[str, Any]:
        folder = tmp_path / "store"
        folder.mkdir(mode=0o700)
        done = subprocess.run(
            [sys.executable, "-c", ON_PATH + DRIVER, mode, str(folder), str(rounds), str(seed)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=clean_environment,
            timeout=3000,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return dict(json.loads(done.stdout))

    return run


@pytest.mark.thorough
def test_a_killed_writer_loses_no_acknowledged_write(
    kill: Callable[..., dict[str, Any]],
) -> None:
    totals = kill("create", 30, seed=1)
    assert totals["rounds"] == 30
    assert totals["acknowledged"] > 60  # each round waits for some writes


@pytest.mark.thorough
def test_a_kill_during_a_forget_loses_nothing_and_restores_nothing(
    kill: Callable[..., dict[str, Any]],
) -> None:
    totals = kill("forget", 12, seed=2)
    assert totals["forgotten"] > 0
    assert totals["acknowledged"] > 10


@pytest.mark.thorough
def test_a_kill_during_creation_leaves_no_store_or_a_complete_one(
    kill: Callable[..., dict[str, Any]],
) -> None:
    assert kill("first", 30, seed=3)["rounds"] == 30


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "rounds"), [("create", 100), ("forget", 30), ("first", 50)])
def test_many_kills_lose_nothing(
    kill: Callable[..., dict[str, Any]], mode: str, rounds: int
) -> None:
    assert kill(mode, rounds, seed=5)["rounds"] == rounds
