"""A file that replaces another is flushed before the rename, and its folder afterwards, so it
survives a power cut.
"""

import gzip
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

from memories import Memories, load_config
from memories.core.disk import replacing
from memories.settings import Config
from memories.transfer.backup import back_up, restore
from memories.transfer.doctor import salvage
from memories.write.turn_queue import RetryQueue

SCHEMA_4 = Path(__file__).parent / "data" / "schema4.db.gz"
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def silent(*_: object) -> None:
    """Discard the progress."""


def stored(config: Config) -> Config:
    """Store a memory."""
    with Memories(config=config, embedder="none") as memories:
        memories.create("The gate is green")
    return config


def in_files(folder: Path) -> Config:
    """Store a memory in text files."""
    return stored(load_config({"store": f"files:///{folder}/text"}))


def replace_a_file(folder: Path) -> None:
    """Write a file through `replacing`."""
    with replacing(folder / "file") as stream:
        stream.write(b"text")


def back_up_sqlite(folder: Path) -> None:
    """Copy a SQLite store."""
    back_up(stored(load_config()), str(folder / "backup.db"), now=NOW, progress=silent)


def back_up_others(folder: Path) -> None:
    """Export a store of another kind."""
    back_up(in_files(folder), str(folder / "backup.jsonl"), now=NOW, progress=silent)


def restore_sqlite(folder: Path) -> None:
    """Restore a copy."""
    config = stored(load_config())
    back_up(config, str(folder / "backup.db"), now=NOW, progress=silent)
    other = load_config({"store": f"sqlite:///{folder}/other.db"})
    restore(other, folder / "backup.db", None, now=NOW, progress=silent)


def salvage_sqlite(folder: Path) -> None:
    """Salvage a store into a new file."""
    salvage(stored(load_config()), folder / "saved.jsonl", progress=silent)


def upgrade_sqlite(folder: Path) -> None:
    """Write to a store of an earlier version; the upgrade first makes a copy."""
    path = folder / "memories.db"
    path.write_bytes(gzip.decompress(SCHEMA_4.read_bytes()))
    path.chmod(0o600)
    stored(load_config({"store": f"sqlite:///{path}"}))


def empty_a_queue_by_half(folder: Path) -> None:
    """Take one of two entries out of a queue."""
    queue = RetryQueue(folder / "q.jsonl")
    for name in ("a", "b"):
        queue.add({"conversation_id": name, "content": "hello"})
    queue.discard("a")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("write", "name"),
    [
        (replace_a_file, "file"),
        (back_up_sqlite, "backup.db"),
        (back_up_others, "backup.jsonl"),
        (restore_sqlite, "other.db"),
        (salvage_sqlite, "saved.jsonl"),
        (upgrade_sqlite, "memories.db.v4.backup"),
        (empty_a_queue_by_half, "q.jsonl"),
    ],
)
def test_a_file_is_flushed_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], name: str
) -> None:
    flushed: dict[int, tuple[int, int]] = {}
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(fd: int) -> None:
        fsync(fd)
        found = os.fstat(fd)
        flushed[found.st_ino] = found.st_size, found.st_mtime_ns
        if found.st_ino == tmp_path.stat().st_ino and steps:
            steps.append("folder")

    def record_replace(file: Path, target: Path) -> Path:
        if target == tmp_path / name:
            found = file.stat()
            whole = flushed.get(found.st_ino) == (found.st_size, found.st_mtime_ns)
            steps.append("flushed file" if whole else "file")
        return replace(file, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    write(tmp_path)
    assert steps[:2] == ["flushed file", "folder"]


@pytest.mark.usefixtures("home")
def test_a_restore_replaces_the_store_in_steps_that_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the new store gets the name, the old store's second name is on disk and the old log is
    gone from it. Otherwise the old store could be lost, or its log taken for the new one's.
    """
    config = stored(load_config({"store": f"sqlite:///{tmp_path}/m.db"}))
    back_up(config, str(tmp_path / "backup.db"), now=NOW, progress=silent)
    with Memories(config=config, embedder="none") as memories:
        memories.create("The gate is blue")
    (tmp_path / "m.db-journal").touch()
    steps: list[str] = []
    fsync, link, unlink, replace = os.fsync, os.link, Path.unlink, Path.replace

    def record_fsync(fd: int) -> None:
        fsync(fd)
        if os.fstat(fd).st_ino == tmp_path.stat().st_ino and steps:
            steps.append("flush")

    def record_link(*names: Any, **options: Any) -> None:
        link(*names, **options)
        steps.append("keep")

    def record_unlink(file: Path, **options: Any) -> None:
        if file.name.startswith("m.db-") and file.exists():
            steps.append("remove")
        unlink(file, **options)

    def record_replace(file: Path, target: Path) -> Path:
        if target == tmp_path / "m.db":
            steps.append("replace")
        return replace(file, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "link", record_link)
    monkeypatch.setattr(Path, "unlink", record_unlink)
    monkeypatch.setattr(Path, "replace", record_replace)
    restore(config, tmp_path / "backup.db", None, replace=True, now=NOW, progress=silent)
    assert steps[:6] == ["keep", "flush", "remove", "flush", "replace", "flush"]


@pytest.mark.usefixtures("home")
def test_a_write_waits_for_the_disk_and_a_read_count_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[bool] = []

    def noted(cursor: apsw.Cursor, sql: str, _bindings: object) -> bool:
        if sql == "COMMIT":
            waits.append(cursor.connection.pragma("synchronous") == 2)  # FULL
        return True

    monkeypatch.setattr(apsw, "connection_hooks", [lambda db: setattr(db, "exec_trace", noted)])
    with Memories(embedder="none", channel="cli") as memories:
        memory = memories.create("The gate is green").memory
        assert memory is not None
        memories.update(memory.id, "The gate is blue")
        assert waits
        assert all(waits)
        waits.clear()
        memories.get(memory.id)
        memories.flush_accesses()
        assert waits == [False]
        waits.clear()
        memories.forget(memory.id)
        assert waits
        assert all(waits)
