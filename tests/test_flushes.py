"""What takes the place of a file was flushed to the disk before, and its folder after: so it
survives a power cut.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memories import Memories, load_config
from memories.core.disk import replacing
from memories.settings import Config
from memories.transfer.backup import back_up, restore
from memories.transfer.doctor import salvage
from memories.write.queue import RetryQueue

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def silent(*_: object) -> None:
    """Report no progress."""


def stored(config: Config) -> Config:
    """Store a memory."""
    with Memories(config=config, embedder="none") as memories:
        memories.create("The gate is green")
    return config


def in_files(folder: Path) -> Config:
    """Store a memory in text files."""
    return stored(load_config({"store": f"files:///{folder}/text"}))


def replace_a_file(folder: Path) -> None:
    """Write a file in place of another one."""
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


def save_what_is_left(folder: Path) -> None:
    """Write what can be read of a store into a new file."""
    salvage(stored(load_config()), folder / "saved.jsonl", progress=silent)


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
        (save_what_is_left, "saved.jsonl"),
        (empty_a_queue_by_half, "q.jsonl"),
    ],
)
def test_a_new_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], name: str
) -> None:
    flushed: dict[int, tuple[int, int]] = {}
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(fd: int) -> None:
        fsync(fd)
        found = os.fstat(fd)
        flushed[found.st_ino] = found.st_size, found.st_mtime_ns
        if found.st_ino == tmp_path.stat().st_ino and steps:
            steps.append("folder")

    def noted_replace(file: Path, target: Path) -> Path:
        if target == tmp_path / name:
            found = file.stat()
            whole = flushed.get(found.st_ino) == (found.st_size, found.st_mtime_ns)
            steps.append("flushed file" if whole else "file")
        return replace(file, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write(tmp_path)
    assert steps[:2] == ["flushed file", "folder"]
