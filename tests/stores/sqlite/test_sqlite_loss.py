"""A missing, truncated or foreign log is reported, and then no write is acknowledged."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from contract import SPACE, everything, pool, record
from sqlite_scripts import RunPython, StartPython

from memories.errors import StoreDamaged
from memories.stores.sqlite import engine
from memories.stores.sqlite.connection import SQLiteFile
from memories.stores.sqlite.store import SQLiteStore
from opening import opening

OpenPath = Callable[[Path], SQLiteStore]
Killed = Callable[..., None]

# Writes memories into the store of the first argument, then kills itself, so that the log remains.
KILLED = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from memories.stores.records import Collection, Record, Ref
from memories.stores.sqlite.store import SQLiteStore
store = SQLiteStore(Path(sys.argv[1]), None)
def checkpoint():
    store._file._connection().execute("PRAGMA wal_checkpoint").fetchall()
for name in sys.argv[3:]:
    ref = Ref(Collection.MEMORY, "ann", name, 1)
    store.append([Record(ref, f"note {name}", datetime.now(UTC))])
    if sys.argv[2] == "each":
        checkpoint()
if sys.argv[2] == "last":
    checkpoint()
os.kill(os.getpid(), 9)
"""

# Changes that people and programs make to the folder of a store.
CHANGES = {
    "touch": "touch -d 2020-01-01 memories.db",
    "touch the log": "touch -d 2030-01-01 memories.db-wal",
    "touch all": "touch *",
    "copy over itself": "cp memories.db kept; cp kept memories.db; rm kept",
    "copy and rename": "cp memories.db kept; mv kept memories.db",
    "copy and rename the log": "cp memories.db-wal kept; mv kept memories.db-wal",
    "unpack over itself": "tar -cf ../all.tar .; tar -xf ../all.tar",
    "unpack without times": "tar -cf ../all.tar .; tar -xmf ../all.tar",
    "copy the folder": "cp -r . ../copy; rm memories.db*; cp -r ../copy/. .",
    "copy the folder over itself": "cp -r . ../copy; cp -r ../copy/. .",
    "another file system": (
        "m=$(mktemp -d /dev/shm/memories-XXXXXX); cp -r . $m; rm memories.db*; mv $m/* .; rm -r $m"
    ),
}


@pytest.fixture
def open_path() -> Iterator[Callable[[Path], SQLiteStore]]:
    """Opens the store of a path."""
    with opening(lambda path: SQLiteStore(path, SPACE)) as open_path:
        yield open_path


@pytest.fixture
def write_and_kill(start_python: StartPython) -> Killed:
    """Write memories in a process that is then killed; after the memory `checkpoint` it moves the
    log into the file.
    """

    def run(path: Path, *names: str, checkpoint: str = "none") -> None:
        process = start_python(KILLED, path, checkpoint, *names).finish()
        assert process.returncode == -9, process.stderr
        assert log(path).stat().st_size > 0

    return run


def fill(path: Path, *names: str) -> None:
    """Write memories and close the store."""
    store = SQLiteStore(path, SPACE)
    for name in names:
        store.append([record(name)])
    store.close()


def log(path: Path) -> Path:
    """Return the path of a store's log."""
    return Path(f"{path}-wal")


def side(path: Path) -> Path:
    """Return the path of a store's side file."""
    return Path(f"{path}.lock")


def names(store: SQLiteStore) -> list[str]:
    """Return the groups of a store."""
    return [entry.ref.group for entry in everything(store, pool())]


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files except the side file."""
    return {
        part.name: part.read_bytes()
        for part in path.parent.iterdir()
        if part.name != side(path).name
    }


# --- a file vanishes while the store is open


@pytest.mark.parametrize("part", ["-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_vanishes_while_the_store_is_open_is_reported(
    path: Path, open_path: OpenPath, part: str, replaced: bool
) -> None:
    store = open_path(path)
    store.append([record("m")])
    beside = Path(f"{path}{part}")
    content = beside.read_bytes()
    beside.unlink()
    if replaced:
        beside.write_bytes(content)
    for use in (
        lambda: store.append([record("n")]),
        lambda: store.count(pool()),
        lambda: store.remove([]),
    ):
        with pytest.raises(
            StoreDamaged, match=rf"memories\.db{part}.*removed or replaced while it was open"
        ):
            use()


def test_a_transaction_whose_log_vanishes_is_not_acknowledged(
    path: Path, open_path: OpenPath
) -> None:
    store = open_path(path)
    store.append([record("m")])
    with pytest.raises(StoreDamaged, match="removed or replaced"), store.transaction():
        store.append([record("n")])
        store.append([record("o")])
        log(path).unlink()


def test_a_process_without_its_log_does_not_harm_later_writes(
    path: Path, run_python: RunPython
) -> None:
    """If closing moved its old log into the file, the later writes would be lost."""
    first = SQLiteStore(path, SPACE)
    first.append([record("a"), record("b")])
    log(path).unlink()
    Path(f"{path}-shm").unlink()
    side(path).unlink()  # so that the others accept the state
    script = KILLED.replace("os.kill(os.getpid(), 9)", "store.close()")
    run_python(script, path, "none", "x", "y", "z")
    with pytest.raises(StoreDamaged):
        first.append([record("c")])
    first.close()
    again = SQLiteStore(path, SPACE)
    assert {"x", "y", "z"} <= set(names(again))
    again.close()
    assert apsw.Connection(str(path)).pragma("integrity_check") == "ok"


def test_logs_that_sqlite_removes_do_not_count_as_damage(path: Path, open_path: OpenPath) -> None:
    """The last connection to close removes the log, and the next one creates another."""
    for number in range(3):
        store = open_path(path)
        store.append([record(f"m{number}")])
        other = open_path(path)
        assert other.count(pool()) == number + 1
        store.close()
        assert other.count(pool()) == number + 1
        store.append([record(f"n{number}", namespace="bob")])
        other.close()
        store.remove([])
        store.close()
        assert not log(path).exists()


def test_the_first_error_of_a_transaction_is_reported(path: Path, open_path: OpenPath) -> None:
    store = open_path(path)
    store.append([record("m")])
    with pytest.raises(ZeroDivisionError), store._file.write() as db, store._file.write():
        db.execute("ROLLBACK")  # SQLite itself does this after some errors
        _ = 1 / 0
    store.append([record("n")])
    assert store.count(pool()) == 2


# --- a log beside another database


def assert_refused(
    path: Path, sentence: str = "was replaced, but the log memories.db-wal next to it"
) -> None:
    """Assert that a store is refused by reads and writes, and that no byte of it changes."""
    before = contents(path)
    for use in (lambda store: store.count(pool()), lambda store: store.append([record("more")])):
        store = SQLiteStore(path, SPACE)
        with pytest.raises(StoreDamaged, match=sentence) as caught:
            use(store)
        assert "memory restore" in str(caught.value)
        store.close()
    assert contents(path) == before


@pytest.mark.parametrize("with_side_file", [True, False])
def test_an_older_copy_of_the_same_store_beside_a_log_is_refused(
    path: Path, with_side_file: bool, write_and_kill: Killed
) -> None:
    fill(path, "a", "b")
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    fill(path, "c")
    write_and_kill(path, "lost1", "lost2")
    if not with_side_file:
        side(path).unlink()
    shutil.copy(copy, path)  # in place, like cp
    assert_refused(path)


@pytest.mark.parametrize("with_side_file", [True, False])
@pytest.mark.parametrize("written", [(1, 0), (1, 1), (1, 2), (0, 1), (0, 2), (0, 3)], ids=str)
def test_a_copy_with_its_own_writes_beside_a_log_is_refused(
    path: Path, with_side_file: bool, written: tuple[int, int], write_and_kill: Killed
) -> None:
    """This holds even if the copy has had as many commits as the log's file had at the log's
    beginning, or later in it.
    """
    fill(path, "a", "b")
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    fill(path, *(f"c{number}" for number in range(written[0])))
    write_and_kill(path, "lost1", "lost2")
    fill(copy, *(f"d{number}" for number in range(written[1])))
    if not with_side_file:
        side(path).unlink()
    shutil.copy(copy, path)
    assert_refused(path)


def test_a_newer_copy_beside_an_old_log_is_refused(path: Path, write_and_kill: Killed) -> None:
    fill(path, "a")
    write_and_kill(path, "b", "c")
    old = log(path).read_bytes()
    fill(path, "d", "e")
    log(path).write_bytes(old)
    assert_refused(path)


def test_an_old_file_beside_a_restarted_log_is_refused(
    path: Path, run_python: RunPython, write_and_kill: Killed
) -> None:
    """In the log, older commits still follow those that overwrote its beginning."""
    fill(path, "a")
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    write_and_kill(path, "b", "c" * 60_000, "d", checkpoint="each")
    shutil.copy(copy, path)
    assert_refused(path)


@pytest.mark.parametrize("with_side_file", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("change", CHANGES)
def test_a_touched_copied_or_moved_file_keeps_its_log(
    path: Path, open_path: OpenPath, change: str, with_side_file: bool, write_and_kill: Killed
) -> None:
    fill(path, "a")
    write_and_kill(path, "b", "c")
    if not with_side_file:
        side(path).unlink()
    subprocess.run(["sh", "-ec", CHANGES[change]], cwd=path.parent, check=True, timeout=300)
    assert names(open_path(path)) == ["a", "b", "c"]
    open_path(path).append([record("d")])
    for store in (open_path(path), open_path(path)):
        store.close()
    assert names(open_path(path)) == ["a", "b", "c", "d"]


# Writes texts of random lengths until killed, sometimes moves its log into the file, and prints
# each acknowledged write.
WRITES = """
import random, sys
from datetime import UTC, datetime
from pathlib import Path
from memories.stores.records import Collection, Record, Ref
from memories.stores.sqlite.store import SQLiteStore
store, drawn = SQLiteStore(Path(sys.argv[1]), None), random.Random(sys.argv[2])
while True:
    name = f"{sys.argv[2]}-{drawn.getrandbits(60):x}"
    text = "note " * drawn.choice([1, 1, 400])
    store.append([Record(Ref(Collection.MEMORY, "ann", name, 1), text, datetime.now(UTC))])
    print(name, flush=True)
    if drawn.random() < 0.2:
        store._file._connection().execute("PRAGMA wal_checkpoint").fetchall()
    if drawn.random() < 0.1:
        store.close()
"""


@pytest.mark.thorough
def test_a_kill_followed_by_a_copy_loses_no_acknowledged_write(path: Path) -> None:
    drawn, acknowledged, left = random.Random("kills and copies"), set[str](), 0
    for number in range(40):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(path), f"round{number}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert writer.stdout is not None
            acknowledged |= {writer.stdout.readline().strip() for _ in range(drawn.randint(1, 60))}
        finally:
            writer.kill()
            writer.wait(timeout=60)
        acknowledged |= set(writer.stdout.read().split())
        writer.stdout.close()
        left += log(path).exists()
        change = drawn.choice(sorted(CHANGES)) if log(path).exists() else "touch"
        subprocess.run(["sh", "-ec", CHANGES[change]], cwd=path.parent, check=True, timeout=60)
        subprocess.run(
            ["rm", "-rf", "../copy", "../all.tar"], cwd=path.parent, check=True, timeout=60
        )
        store = SQLiteStore(path, SPACE)
        assert acknowledged - set(names(store)) == set(), change
        assert store.info(pool()).missing_commits == 0
        assert not store.check(deep=True)
        store.close()
    assert left > 20


def test_a_log_damaged_in_the_middle_is_not_replayed_into_a_newer_file(
    path: Path, write_and_kill: Killed
) -> None:
    """SQLite would restore pages of the first commits beside pages of the last."""
    fill(path, "a")
    write_and_kill(path, *"bcdef", checkpoint="last")
    content = bytearray(log(path).read_bytes())
    content[len(content) // 2] ^= 1
    log(path).write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert_refused(path)


@pytest.mark.parametrize("with_side_file", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("renamed", [True, False])
@pytest.mark.parametrize("count", [1, 12])
def test_another_store_beside_a_log_is_refused(
    path: Path,
    tmp_path: Path,
    with_side_file: bool,
    renamed: bool,
    count: int,
    write_and_kill: Killed,
) -> None:
    other = tmp_path / "other.db"
    fill(other, *(f"o{number}" for number in range(count)))
    fill(path, "a", "b")
    write_and_kill(path, "lost1", "lost2")
    if not with_side_file:
        side(path).unlink()
    (os.rename if renamed else shutil.copy)(other, path)
    assert_refused(path)


@pytest.mark.parametrize("renamed", [True, False])
def test_a_copy_by_another_tool_beside_a_log_is_refused(
    path: Path, renamed: bool, write_and_kill: Killed
) -> None:
    """Its pages are in other places, so the log would corrupt it."""
    fill(path, "a", "b")
    copy = path.with_name("copy.db")
    db = apsw.Connection(str(path))
    db.execute("VACUUM INTO ?", (str(copy),))
    db.close()
    write_and_kill(path, "lost1", "lost2")
    (os.rename if renamed else shutil.copy)(copy, path)
    assert_refused(path)


def test_a_backup_beside_a_log_is_refused_with_advice_on_restoring_it(
    path: Path, write_and_kill: Killed
) -> None:
    fill(path, "a", "b")
    backup = path.with_name("backup.db")
    shutil.copy(path, backup)
    mark(backup)
    write_and_kill(path, "c")
    side(path).unlink()
    shutil.copy(backup, path)
    assert_refused(path, "is a backup, but the log")


def mark(path: Path) -> None:
    """Write a row into a store as another program would."""
    db = apsw.Connection(str(path))
    db.execute("INSERT INTO meta (name, value) VALUES ('backup', 'now')")
    db.close()


def test_a_backup_without_a_log_starts_its_own_history(
    path: Path, open_path: OpenPath, write_and_kill: Killed
) -> None:
    """This holds even after its first writer was killed."""
    fill(path, "a", "b")
    backup = path.with_name("backup.db")
    shutil.copy(path, backup)
    mark(backup)
    fill(path, "c", "d", "e")
    shutil.copy(backup, path)
    store = open_path(path)
    assert names(store) == ["a", "b"]
    assert store.info(pool()).missing_commits == 0
    store.close()
    before = read_state(path)
    write_and_kill(path, "f")
    assert names(open_path(path)) == ["a", "b", "f"]
    open_path(path).append([record("g")])
    assert names(open_path(path)) == ["a", "b", "f", "g"]
    for store in (open_path(path), open_path(path)):
        store.close()
    after = read_state(path)
    assert after[0] != before[0]


def test_a_transaction_without_changes_leaves_a_restored_backup_unchanged(path: Path) -> None:
    fill(path, "a", "b")
    backup = path.with_name("backup.db")
    shutil.copy(path, backup)
    mark(backup)
    fill(path, "c", "d", "e")
    shutil.copy(backup, path)
    store = SQLiteStore(path, SPACE)
    with store.transaction():
        assert names(store) == ["a", "b"]
    assert store.info(pool()).missing_commits == 0
    store.append([record("f")])
    assert names(store) == ["a", "b", "f"]
    store.close()


def read_state(path: Path) -> tuple[str, str]:
    """Return the id of a closed store's state, and how many commits it has had."""
    db = apsw.Connection(str(path))
    try:
        [(state_id, commits)] = db.execute("SELECT * FROM store").fetchall()
    finally:
        db.close()
    return state_id, commits


@pytest.mark.parametrize(
    "parts", [("", "-wal"), ("", "-wal", ".lock"), ("", "-wal", "-shm", ".lock")]
)
def test_the_files_of_a_killed_process_can_be_copied_elsewhere(
    path: Path, tmp_path: Path, parts: tuple[str, ...], open_path: OpenPath, write_and_kill: Killed
) -> None:
    fill(path, "a")
    write_and_kill(path, "b", "c")
    target = tmp_path / "elsewhere" / "memories.db"
    target.parent.mkdir(mode=0o700)
    for part in parts:
        shutil.copy(f"{path}{part}", f"{target}{part}")
    assert names(open_path(target)) == ["a", "b", "c"]
    open_path(target).append([record("d")])
    assert names(open_path(path)) == ["a", "b", "c"]


@pytest.mark.parametrize("side_file", [b"", b"garbage", b"\0" * 300, None])
def test_a_store_works_without_a_valid_side_file(
    path: Path, side_file: bytes | None, open_path: OpenPath, write_and_kill: Killed
) -> None:
    fill(path, "a")
    write_and_kill(path, "b")
    side(path).unlink()
    if side_file is not None:
        side(path).write_bytes(side_file)
    assert names(open_path(path)) == ["a", "b"]
    open_path(path).append([record("c")])
    assert names(open_path(path)) == ["a", "b", "c"]


def test_a_kill_during_a_checkpoint_loses_nothing(
    path: Path, open_path: OpenPath, write_and_kill: Killed
) -> None:
    """By then half of the log is in the file, whose modification time isn't the recorded one."""
    fill(path, "a")
    write_and_kill(path, "b", "c", checkpoint="last")
    assert names(open_path(path)) == ["a", "b", "c"]


@pytest.mark.parametrize("page", range(1, 12))
def test_a_partly_checkpointed_log_belongs_to_its_file(
    path: Path, page: int, open_path: OpenPath, write_and_kill: Killed
) -> None:
    """A checkpoint writes the pages in order, and can be interrupted after each."""
    fill(path, "a")
    write_and_kill(path, "b", "c")
    content, size = log(path).read_bytes(), 4096
    newest = {}
    for start in range(32, len(content), size + 24):
        newest[int.from_bytes(content[start : start + 4], "big")] = content[
            start + 24 : start + 24 + size
        ]
    database = bytearray(path.read_bytes())
    for number in sorted(newest)[:page]:
        database[(number - 1) * size : number * size] = newest[number]
    path.write_bytes(database)
    assert names(open_path(path)) == ["a", "b", "c"]


def test_text_that_looks_like_a_commit_count_is_ignored(
    path: Path, open_path: OpenPath, write_and_kill: Killed
) -> None:
    fill(path, "a")
    store = open_path(path)
    store.append([record("m", text="0" * 3900 + row_of_state("f" * 32, 77))])
    store.close()
    write_and_kill(path, "b")
    assert len(names(open_path(path))) == 3


def row_of_state(state_id: str, commits: int) -> str:
    """Return a text with the bytes of a row of the table `store`."""
    return f"7\x01\x03M5{state_id}{commits:020d}"


# --- commits that are missing


@pytest.mark.parametrize("cut", ["removed", "emptied", "shortened", "flipped"])
def test_a_truncated_log_is_reported_and_the_rest_can_be_read(
    path: Path, cut: str, open_path: OpenPath, write_and_kill: Killed
) -> None:
    fill(path, "a")
    write_and_kill(path, "b", "c", "d")
    beside = log(path)
    content = bytearray(beside.read_bytes())
    if cut == "removed":
        beside.unlink()
    elif cut == "emptied":
        beside.write_bytes(b"")
    elif cut == "shortened":
        beside.write_bytes(content[: 3 * len(content) // 4])
    else:
        content[len(content) * 3 // 4] ^= 1
        beside.write_bytes(content)
    store = open_path(path)
    left = names(store)
    assert left in (["a"], ["a", "b"], ["a", "b", "c"])
    missing = 4 - len(left)
    assert store.info(pool()).missing_commits == missing
    store.touch([record("a").ref])  # counting a read doesn't fail the read
    with pytest.raises(
        StoreDamaged, match=rf"^{missing} acknowledged commits? (is|are) missing.*memory doctor"
    ):
        store.append([record("e")])
    assert names(store) == left
    assert SQLiteFile(path).missing_commits() == missing
    assert store._file.accept_loss() == missing
    assert store._file.accept_loss() == 0
    store.append([record("e")])
    assert names(store) == [*left, "e"]
    store.close()
    write_and_kill(path, "f")
    assert names(open_path(path)) == [*left, "e", "f"]


def test_missing_commits_are_logged_once_for_each_file(
    path: Path, open_path: OpenPath, write_and_kill: Killed, caplog: pytest.LogCaptureFixture
) -> None:
    fill(path, "a")
    write_and_kill(path, "b", "c")
    log(path).unlink()
    for _ in range(2):
        assert names(open_path(path)) == ["a"]
    (entry,) = caplog.records
    assert entry.levelname == "WARNING"
    assert entry.getMessage().startswith(f"2 acknowledged commits are missing from {path}: ")


def test_an_older_copy_without_a_log_is_reported(path: Path, open_path: OpenPath) -> None:
    fill(path, "a")
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    fill(path, "b", "c")
    shutil.copy(copy, path)
    with pytest.raises(StoreDamaged, match=r"^2 acknowledged commits"):
        open_path(path).append([record("d")])
    assert names(open_path(path)) == ["a"]


def test_another_store_without_a_log_is_accepted(
    path: Path, tmp_path: Path, open_path: OpenPath
) -> None:
    fill(path, "a", "b", "c")
    fill(tmp_path / "other.db", "o")
    (tmp_path / "other.db").rename(path)
    open_path(path).append([record("p")])
    assert names(open_path(path)) == ["o", "p"]


def test_the_commit_note_is_never_ahead_of_the_file(path: Path, open_path: OpenPath) -> None:
    """This includes transactions that aren't acknowledged: failed, undone, empty or not flushed."""
    store = open_path(path)
    store.append([record("a")])

    def noted_commits() -> int:
        result = engine.read_side(side(path))[1]
        assert result is not None
        return result.state.commits

    before = noted_commits()
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.append([record("b")])
        _ = 1 / 0
    with store.transaction():
        pass
    store.touch([record("a").ref])
    assert noted_commits() == before
    store.append([record("c")])
    assert noted_commits() == before + 2  # counting the read was a commit too
    store.close()
    assert int(read_state(path)[1]) == before + 2


def test_a_state_leads_only_to_the_next_state() -> None:
    before = engine.StoreState("0" * 32, 3)
    after = engine.next_state(before)
    assert before.leads_to(after)
    assert not before.leads_to(engine.next_state(after))
    of_older_program = [before._replace(commits=commits) for commits in range(2, 6)]
    assert list(map(before.leads_to, of_older_program)) == [False, False, True, False]


def test_all_commits_are_flushed_except_read_counts(path: Path, open_path: OpenPath) -> None:
    """In SQLite, `synchronous` 2 flushes the log at each commit; 1 leaves that to a later
    commit.
    """
    store = open_path(path)
    with store.transaction(), store._file.read() as db:
        assert db.pragma("synchronous") == 2
    with store._file.write(durable=False) as db:
        assert db.pragma("synchronous") == 1
    store.append([record("a")])
    with store._file.read() as db:
        assert db.pragma("synchronous") == 2
    assert store.touch([record("a").ref])
    with store._file.read() as db:
        assert db.pragma("synchronous") == 1


def test_a_write_succeeds_even_if_its_note_fails(
    path: Path, open_path: OpenPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    store = open_path(path)
    monkeypatch.setattr(engine, "write_note", fail)
    store.append([record("a")])
    assert names(store) == ["a"]


def test_a_copy_of_a_side_file_claims_nothing_about_its_database(
    path: Path, tmp_path: Path
) -> None:
    fill(path, "m")
    _, note = engine.read_side(side(path))
    assert note is not None
    assert note.inode == path.stat().st_ino
    copy = tmp_path / "copy.lock"
    shutil.copy(side(path), copy)
    _, copied = engine.read_side(copy)
    assert copied == note._replace(inode=0, changed=0)
