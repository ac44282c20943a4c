"""Imports, migrations and changes of the embedder are killed at random moments and run again, with
the same result.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torture.forks import ON_PATH

# The process that starts, kills and checks. Only its forks open a store; they start with all
# modules loaded and die with it.
DRIVER = """
import contextlib, json, os, random, shutil, signal, sys, time
from torture import forks
from torture.forks import fork
from pathlib import Path
import memories.search.search, memories.stores.sqlite.turns, memories.read.versions, memories.write.create
from memories import Memories, EmbedderMismatch
from memories.read.turns import TurnDraft
from memories.embedders.fake import FakeEmbedder
from memories.transfer.migrate import migrate
from memories.stores.records import Collection, Filter
from memories.transfer.migrate import reembed
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.pages import count_records, parts_of

os.environ["COUNT_ACCESSES"] = "false"  # exports are compared, and a search would add a read
mode, folder, rounds, seed, least = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
forks.LONGEST_SECONDS = 900
drawn = random.Random(seed)
totals = {"rounds": 0, "killed": 0, "in_the_middle": 0}
needs = 0.3  # seconds of the work on this machine, measured at the last run that was not killed
RECORDS = 1500
quiet = lambda what, done, whole: None


class Other(FakeEmbedder):
    space = FakeEmbedder.space._replace(model="other/1")

    def embed(self, text):
        return -super().embed(text)


def finish(child):
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended:
        sys.exit(f"round {totals['rounds']}: a process ended with {ended}")


def kill(child):
    os.kill(child, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended > 0:
        sys.exit(f"round {totals['rounds']}: a process ended with {ended}")
    totals["killed"] += ended < 0


def lines_of(path):
    store, lines = SQLiteStore(path, None), []
    export(store, lines.append, namespaces=None, progress=quiet)
    store.close()
    return lines


def fill(path):
    for namespace in ("ann", "shared"):
        with Memories(f"sqlite:///{path}", embedder="fake", namespace=namespace) as memories:
            made = memories.create_many([f"note {n} of {namespace}" for n in range(RECORDS // 3)], force=True)
            for n in range(0, 60, 3):
                memories.update(made[n].memory.id, f"changed {n}")
                memories.delete(made[n + 1].memory.id)
            turns = [TurnDraft(f"said {n}", speaker="Zoe", message_id=str(n)) for n in range(RECORDS // 6)]
            memories.add_turns("talk", turns)


def write(path, forgets):
    # Write until killed, while the store is copied: create, change, reuse keys, restore and forget.
    own = random.Random(seed)
    with Memories(f"sqlite:///{path}", embedder="fake", namespace="ann", shared=False) as memories:
        mine = [memory.id for memory in memories.list(limit=200).memories]
        while True:
            memory_id = mine.pop(own.randrange(len(mine)))
            kind = own.randrange(5)
            if kind == 0 and forgets:
                memories.forget(memory_id)
            elif kind == 1:
                memories.delete(memory_id)
                if own.random() < 0.5:
                    memories.restore(memory_id)
            elif kind == 2:
                memories.update(memory_id, f"changed again {own.random()}")
            key = f"key{own.randrange(5)}" if kind == 4 else None
            made = memories.create(f"new {own.random()}", key=key, force=True).memory.id
            mine = [kept for kept in mine if kept != made]  # a key in use creates a version of its memory
            if key and own.random() < 0.5:
                memories.delete(made)
            else:
                mine.append(made)
            memories.add_turns("talk", [f"said later {own.random()}"])
            time.sleep(0.002)


class Frozen(SQLiteStore):
    # No process can write during the last part of the copy; the writer is killed then, and the state is compared.
    writer = None

    @contextlib.contextmanager
    def transaction(self):
        with super().transaction():
            yield
            if self.writer:
                os.kill(self.writer, signal.SIGKILL)


def copy(source, target, writer=None):
    first, second = Frozen(source, None), SQLiteStore(target, FakeEmbedder.space)
    first.writer = writer
    done = migrate(first, second, FakeEmbedder(), progress=quiet)
    second.close()
    first.close()


def change(path):
    store = SQLiteStore(path, None)
    reembed(store, Other(), progress=quiet)
    store.close()


def take_in(file, path):
    store = SQLiteStore(path, FakeEmbedder.space)
    with open(file, "rb") as lines:
        done = import_(store, lines, FakeEmbedder(), namespaces=None)
    assert done.conflict_count == 0, done
    store.close()


def same(one, other):
    assert lines_of(one) == lines_of(other)
    intact(other)


def same_as_file(file, path):
    assert "".join(lines_of(path)) == Path(file).read_text()
    intact(path)


def half(path):
    store = SQLiteStore(path, None)
    count = count_records(store, parts_of(store))
    store.close()
    os._exit(0 if 0 < count < RECORDS else 1)


def searchable(path):
    # A search uses the old embedder before the switch and the new one after it; it is never empty or wrong.
    for embedder in (FakeEmbedder(), Other()):
        with Memories(f"sqlite:///{path}", embedder=embedder, namespace="ann") as memories:
            try:
                assert memories.search("note 101 of ann")[0].memory.content == "note 101 of ann"
            except EmbedderMismatch:
                continue
            os._exit(0 if embedder.space.model == "fake/1" else 7)
    raise AssertionError("neither embedder searches")


def intact(path):
    store = SQLiteStore(path, None)
    with store._file.write() as db:
        assert db.pragma("integrity_check") == "ok"
        for table in ("words", "turn_words", "words_ended"):
            db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 0)")
        records = "(SELECT 1 FROM record WHERE pool NOT IN (SELECT id FROM pool WHERE collection = 'log'))"
        vectors = "(SELECT seq FROM vector UNION ALL SELECT seq FROM turn_vector)"
        counts = {db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in (records, vectors)}
        assert len(counts) == 1, counts
        assert db.execute("SELECT count(*) FROM staged_vector").fetchall() == [(0,)]
    store.close()


def rounds_of(path, source, work, *arguments):
    # Kill it a few times; then let a last run finish.
    global needs
    for attempt in range(drawn.randint(1, 4)):
        child = fork(work, *arguments)
        time.sleep(drawn.uniform(0.0, needs))
        kill(child)
        check = searchable if mode == "reembed" else half
        state = os.waitstatus_to_exitcode(os.waitpid(fork(check, path), 0)[1])
        if mode == "reembed" and state not in (0, 7):
            sys.exit(f"after a kill the search ended with {state}")
        totals["in_the_middle"] += state == 0
    begun = time.monotonic()
    finish(fork(work, *arguments))
    needs = max(needs, time.monotonic() - begun)  # the last run has the least work left


original = folder / "original.db"
finish(fork(fill, original))
exported = folder / "export.jsonl"
finish(fork(lambda: exported.write_text("".join(lines_of(original)))))
for number in range(20 * rounds):
    if number >= rounds and totals["in_the_middle"] >= least:
        break
    path, source = folder / f"{number}.db", folder / f"{number}-source.db"
    if mode == "migrate":
        rounds_of(path, original, copy, original, path)
        finish(fork(same_as_file, exported, path))
        finish(fork(same_as_file, exported, original))
    elif mode == "busy":
        # A forget between two runs makes the second one refuse, so a round has either kills or forgets.
        shutil.copy(original, source)
        writer = fork(write, source, number % 2 == 0)
        time.sleep(drawn.uniform(0.0, 0.1))
        if number % 2:
            child = fork(copy, source, path)
            time.sleep(drawn.uniform(0.0, 0.3))
            kill(child)
        finish(fork(copy, source, path, writer))
        os.kill(writer, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) != -signal.SIGKILL:
            sys.exit("the writer failed")
        finish(fork(same, source, path))
        totals["in_the_middle"] += 1
    elif mode == "reembed":
        shutil.copy(original, path)
        rounds_of(path, original, change, path)
        if os.waitstatus_to_exitcode(os.waitpid(fork(searchable, path), 0)[1]) != 7:
            sys.exit("the new embedder does not search")
        finish(fork(same_as_file, exported, path))
    else:
        rounds_of(path, original, take_in, exported, path)
        finish(fork(same_as_file, exported, path))
    for left in (path, source):
        for file in folder.glob(f"{left.name}*"):
            file.unlink()
    totals["rounds"] += 1
print(json.dumps(totals))
"""


def kill_often(
    tmp_path: Path, environment: dict[str, str], mode: str, rounds: int, *, least: int
) -> dict[str, Any]:
    """Kill in this many rounds, and in more until `least` kills were in the middle of the work."""
    folder = tmp_path / "stores"
    folder.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", ON_PATH + DRIVER, mode, str(folder), str(rounds), "1", str(least)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=3000,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


_THOROUGH = [pytest.param(mode, marks=pytest.mark.thorough) for mode in ("busy", "import")]


@pytest.mark.parametrize("mode", ["migrate", "reembed", *_THOROUGH])
@pytest.mark.thorough
def test_an_interrupted_transfer_continues_to_the_same_result(
    tmp_path: Path, clean_environment: dict[str, str], mode: str
) -> None:
    totals = kill_often(tmp_path, clean_environment, mode, 4, least=1)
    assert totals["rounds"] >= 4
    assert totals["in_the_middle"] > 0


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("mode", ["migrate", "busy", "reembed", "import"])
def test_a_transfer_that_is_interrupted_very_often_has_the_same_result(
    tmp_path: Path,
    clean_environment: dict[str, str],
    mode: str,
    size: Callable[[int, int], int],
    figures: dict[str, Any],
) -> None:
    rounds = size(20, 60)
    figures |= kill_often(tmp_path, clean_environment, mode, rounds, least=size(3, 11))
    assert figures["rounds"] >= rounds
    assert figures["in_the_middle"] > 0
