"""The files of a SQLite store: private to their owner; links and foreign files are refused."""

import random
from pathlib import Path

import apsw
import pytest
from contract import (
    MEMORY,
    SPACE,
    OpenStore,
    everything,
    pool,
    record,
)
from sqlite_scripts import STORE, RunPython
from sqlite_uses import all_uses, mode

from memories.errors import StoreDamaged, StoreError
from memories.stores.records import (
    Ref,
)
from memories.stores.sqlite.store import SQLiteStore


@pytest.mark.parametrize("umask", ["0o000", "0o077", "0o022"])
def test_only_the_owner_can_access_the_files(
    tmp_path: Path, umask: str, run_python: RunPython
) -> None:
    script = (
        f"import os; os.umask({umask})"
        + STORE
        + """
add("m"); store.remove([]); add("n")
for found in sorted((path.parent, path.parent.parent, *path.parent.iterdir())):
    print(found.name, oct(found.stat().st_mode & 0o777))
"""
    )
    assert run_python(script, tmp_path / "one" / "two" / "m.db").stdout.splitlines() == [
        "one 0o700",
        "two 0o700",
        "m.db 0o600",
        "m.db-shm 0o600",
        "m.db-wal 0o600",
        "m.db.lock 0o600",
    ]


def test_a_link_in_place_of_the_file_is_refused(
    tmp_path: Path, path: Path, store: SQLiteStore
) -> None:
    target = tmp_path / "target.db"
    target.write_bytes(b"precious")
    path.symlink_to(target)
    for use in all_uses(store):
        with pytest.raises(StoreError, match="symbolic link"):
            use()
    assert target.read_bytes() == b"precious"


def test_a_dangling_link_is_refused_and_not_followed(
    tmp_path: Path, path: Path, store: SQLiteStore
) -> None:
    path.symlink_to(tmp_path / "nowhere.db")
    for use in all_uses(store):
        with pytest.raises(StoreError, match="symbolic link"):
            use()
    assert not (tmp_path / "nowhere.db").exists()


def test_a_link_in_place_of_the_side_file_is_refused(
    tmp_path: Path, path: Path, store: SQLiteStore
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (path.parent / "memories.db.lock").symlink_to(target)
    with pytest.raises(StoreError, match="cannot use"):
        store.append([record("m")])
    assert target.read_bytes() == b"precious"


def test_a_link_in_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, path: Path, store: SQLiteStore
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (path.parent / ".memories.db.new").symlink_to(target)
    store.append([record("m")])
    assert target.read_bytes() == b"precious"


def test_a_world_writable_file_or_folder_is_refused(path: Path, open_store: OpenStore) -> None:
    open_store(SPACE).append([record("m")])
    for part in (path.parent, path):
        usual = mode(part)
        part.chmod(usual | 0o002)
        with pytest.raises(StoreError, match="writable by everyone; run: chmod"):
            open_store(SPACE).count(pool())
        part.chmod(usual)
    assert open_store(SPACE).count(pool()) == 1


def test_a_folder_in_place_of_the_file_is_refused(path: Path, store: SQLiteStore) -> None:
    path.mkdir()
    for use in all_uses(store):
        with pytest.raises(StoreError, match="is a folder"):
            use()
    assert list(path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    for use in all_uses(SQLiteStore(tmp_path / "file" / "memories.db", SPACE)):
        with pytest.raises(StoreError, match="cannot use"):
            use()


def _other_program() -> bytes:
    """Return the bytes of another program's database."""
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE record (x); INSERT INTO record VALUES (1); PRAGMA user_version=1")
    return db.serialize("main")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"<!DOCTYPE html><html><body>Sign in to continue</body></html>" * 200,
        random.Random(8).randbytes(50),
        random.Random(8).randbytes(50_000),
        b"\0" * 8192,
        _other_program(),
        b"SQLite format 3\0" + random.Random(8).randbytes(8192),
    ],
    ids=[
        "nothing",
        "one-byte",
        "html",
        "short-noise",
        "noise",
        "zeros",
        "other-program",
        "only-a-header",
    ],
)
def test_a_foreign_file_is_refused_and_left_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    for number in range(len(all_uses(SQLiteStore(path, SPACE)))):
        store = SQLiteStore(path, SPACE)
        with pytest.raises(StoreDamaged) as caught:
            all_uses(store)[number]()
        store.close()
        assert str(path) in str(caught.value)
        assert path.read_bytes() == content
    assert {entry.name for entry in path.parent.iterdir() if entry.is_file()} == {
        path.name,
        f"{path.name}.lock",
    }


def test_touching_a_foreign_file_fails(path: Path, store: SQLiteStore) -> None:
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreDamaged):
        store.touch([Ref(MEMORY, "ann", "m", 1)])


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_vanishes_while_open_is_noticed(
    path: Path, store: SQLiteStore, replaced: bool
) -> None:
    store.append([record("m")])
    if replaced:
        other = SQLiteStore(path.with_name("other.db"), SPACE)
        other.append([record("other")])
        other.close()
        path.with_name("other.db").rename(path)
    else:
        path.unlink()
    for use in all_uses(store):
        with pytest.raises(StoreDamaged, match="removed or replaced while it was open"):
            use()
    assert path.exists() is replaced


def test_a_log_without_its_file_is_not_an_empty_store(path: Path, run_python: RunPython) -> None:
    """The file was removed after its writer was killed; SQLite would replay the log into a new
    file.
    """
    run_python(STORE + "add('m'); os._exit(0)", path)
    path.rename(path.with_name("aside"))
    for use in all_uses(SQLiteStore(path, SPACE)):
        with pytest.raises(
            StoreDamaged, match=r"is gone, but its log memories\.db-wal is still there"
        ):
            use()
    assert not path.exists()
    path.with_name("aside").rename(path)
    store = SQLiteStore(path, SPACE)
    assert store.count(pool()) == 1
    store.close()


def test_a_removed_file_can_be_created_again_after_a_restart(path: Path) -> None:
    for name in ("first", "second"):
        store = SQLiteStore(path, SPACE)
        store.append([record(name)])
        assert [entry.ref.group for entry in everything(store, pool())] == [name]
        store.close()
        path.unlink()


def test_a_copy_without_a_log_gets_a_log_on_its_first_write(path: Path, tmp_path: Path) -> None:
    """`VACUUM INTO` makes such copies; without a log, several processes could not share the
    file.
    """
    store = SQLiteStore(path, SPACE)
    store.append([record("m")])
    copy = tmp_path / "copy.db"
    store._file.copy_to(copy)
    store.close()
    copy.chmod(0o600)
    other = SQLiteStore(copy, SPACE)
    with other._file.read() as db:
        assert db.pragma("journal_mode") == "delete"
    other.append([record("n")])
    with other._file.read() as db:
        assert db.pragma("journal_mode") == "wal"
    other.close()
