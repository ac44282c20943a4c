"""Concurrent use of a SQLite store: readers never wait, writers take turns, and a writer that gives
up learns which process held the lock.
"""

import os
import threading
from pathlib import Path

import apsw
import pytest
from contract import (
    MEMORY,
    everything,
    pool,
    record,
    search,
)
from sqlite_scripts import STORE, StartPython

from forkserver import Piped
from memories.core.disk import try_lock
from memories.errors import StoreBusy
from memories.stores.records import (
    Ref,
)
from memories.stores.sqlite import connection as sqlite_file
from memories.stores.sqlite import engine
from memories.stores.sqlite.store import SQLiteStore


def test_counting_a_read_does_not_wait_for_other_programs(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 3600)
    store.append([record("one")])
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN IMMEDIATE")
    thread = threading.Thread(target=store.touch, args=([record("one").ref],), daemon=True)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()  # a writer would wait for an hour
    foreign.execute("ROLLBACK")
    foreign.close()
    assert [entry.accesses for entry in everything(store, pool())] == [0]


def test_no_other_program_can_write_between_the_read_and_write_of_a_writer(
    path: Path, store: SQLiteStore
) -> None:
    """This includes programs that don't know the lock file."""
    store.append([record("one")])
    foreign = apsw.Connection(str(path))
    with store.transaction():
        assert store.count(pool()) == 1
        with pytest.raises(apsw.BusyError):
            foreign.execute("BEGIN IMMEDIATE")
        store.append([record("two")])
    foreign.execute("BEGIN IMMEDIATE; ROLLBACK")
    foreign.close()


HOLD = (
    STORE
    + "\nwith store.transaction():\n    add('held'); print(os.getpid(), flush=True)\n"
    + "    sys.stdin.read()"
)


@pytest.fixture
def holder(path: Path, start_python: StartPython) -> Piped:
    """A process that stays in a transaction until its standard input is closed."""
    running = start_python(HOLD, path)
    assert running.stdout.readline() == f"{running.pid}\n"
    return running


def test_the_error_for_a_busy_store_names_the_process_that_holds_it(
    store: SQLiteStore, holder: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.4)
    said = rf"kept busy by process {holder.pid} for \d+ s; nothing was written; try again"
    with pytest.raises(StoreBusy, match=said):
        store.append([record("m")])


def test_readers_do_not_wait_for_a_writer(
    store: SQLiteStore, holder: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 3600)
    assert store.count(pool()) == 0
    assert search(store, "held") == {}
    thread = threading.Thread(
        target=store.touch, args=([Ref(MEMORY, "ann", "held", 1)],), daemon=True
    )
    thread.start()
    thread.join(300)
    assert not thread.is_alive()  # a writer would wait for an hour


def test_a_killed_writer_leaves_neither_a_lock_nor_a_record(
    store: SQLiteStore, holder: Piped
) -> None:
    holder.kill()
    store.append([record("m")])
    assert [entry.ref.group for entry in everything(store, pool())] == ["m"]


def test_a_writer_that_gives_up_reports_the_number_of_other_commits(
    path: Path, store: SQLiteStore, start_python: StartPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error doesn't name a process that held the lock only for a moment."""
    store.append([record("m")])
    script = (
        STORE
        + "print('on', flush=True)\n"
        + "while True:\n    with store.transaction():\n"
        + "        add(str(time.time_ns())); time.sleep(0.2)"
    )
    running = [start_python(script, path) for _ in range(8)]
    assert [process.stdout.readline() for process in running] == ["on\n"] * 8
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 1.0)
    with pytest.raises(StoreBusy) as caught:
        for number in range(200):
            store.append([record(f"n{number}")])
    sentence = str(caught.value)
    assert "commits while this one waited 1 s; nothing was written; try again" in sentence
    assert "process" not in sentence.partition("busy")[2]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (5, 6, "made 1 commit while this one waited 3 s"),
        (5, 5, "kept busy by process"),
        (None, 5, "kept busy by"),
    ],
)
def test_the_message_depends_on_commits_during_the_wait(
    tmp_path: Path, before: int | None, now: int, said: str
) -> None:
    def note_of(commits: int) -> engine.CommitNote:
        return engine.CommitNote(
            engine.StoreState("0" * 32, commits), "", 1, 1, os.fstat(side).st_ino
        )

    lock = tmp_path / "m.db.lock"
    with try_lock(lock, 0), engine.sign_lock(lock) as side:
        engine.write_note(side, note_of(now))
        told = engine.busy_error(
            tmp_path / "m.db", lock, 3.0, None if before is None else note_of(before)
        )
    assert said in str(told)


def test_busy_writers_take_turns(path: Path, start_python: StartPython) -> None:
    """Each process and thread writes as fast as it can, and none waits too long for a turn."""
    script = (
        STORE
        + """
connection.BUSY_SECONDS = 60.0
def write(name):
    for number in range(8):
        add(f"{name}-{number}")
threads = [threading.Thread(target=write, args=(f"{os.getpid()}-{thread}",)) for thread in range(3)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
"""
    )
    running = [start_python(script, path) for _ in range(5)]
    assert [process.finish().stderr for process in running] == [""] * 5
    store = SQLiteStore(path, None)
    assert len(everything(store, pool())) == 5 * 3 * 8
    store.close()
