"""Creates and migrates whole store files, and overwrites erased bytes in them.

Searching or writing to a file with the current schema doesn't need this module.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import apsw

from memories.core.disk import CREATING, put_in_place
from memories.errors import StoreDamaged
from memories.stores.protocol import RefuseLost
from memories.stores.sqlite import engine

_FILE_HEADER_BYTES = 100  # offset of the first page's header: https://sqlite.org/fileformat2.html
_TREE_HEADER_BYTES = {2: 12, 5: 12, 10: 8, 13: 8}  # size of a page header by the page's first byte
_PAGES_AT_ONCE = 256


def read_pages(path: Path, page_size: int, numbers: Iterable[int]) -> dict[int, bytes]:
    """Return pages of a file, ignoring its log; a missing page is empty."""
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        size = file.xFileSize()
        pages: dict[int, bytes] = {}
        for number in numbers:
            start = (number - 1) * page_size
            pages[number] = file.xRead(page_size, start) if start + page_size <= size else b""
        return pages
    finally:
        file.xClose()


# --- new and outdated files


def refuse_lost(path: Path, refuse_mirrored: RefuseLost) -> None:
    """Refuse to create a store in place of one that was lost.

    If the lost store's log is still there, SQLite would replay it into the new file.

    Raises:
        StoreDamaged: The log is still there, or scratchpads still mirror the store.
    """
    log = Path(f"{path}-wal")
    with contextlib.suppress(FileNotFoundError):
        # The path is checked last, because another process may be creating the store.
        if log.stat().st_size and not os.path.lexists(path):
            raise StoreDamaged(
                f"{path} is gone, but its log {log.name} is still there; put the file back, or "
                "remove the log too"
            )
    refuse_mirrored(lambda: not path.exists())


def create(path: Path, empty: apsw.Connection) -> None:
    """Create a store file under another name and rename it, so that it is never incomplete.

    The file is written and synced without a log, which is added afterwards. After a failure, the
    incomplete file is removed at once or, if that fails, by the next attempt.
    """
    scratch = path.with_name(f".{path.name}.new")
    _remove(scratch)
    try:
        os.close(os.open(scratch, CREATING | os.O_EXCL | os.O_RDWR, 0o600))
        connection = engine.connect(scratch)
        try:
            connection.execute("PRAGMA journal_mode=MEMORY").fetchall()
            connection.pragma("synchronous", "FULL")
            connection.pragma("secure_delete", 1)
            empty.execute(f"PRAGMA application_id={engine.APPLICATION_ID}")
            empty.execute(f"PRAGMA user_version={engine.SCHEMA_VERSION}")
            with connection.backup("main", empty, "main") as copy:
                copy.step()
            engine.use_log(connection, scratch)
        finally:
            connection.close()
        put_in_place(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the disk may fail again
            _remove(scratch)
        raise


def _remove(scratch: Path) -> None:
    for suffix in engine.SUFFIXES:
        Path(f"{scratch}{suffix}").unlink(missing_ok=True)


def migrate(
    connection: apsw.Connection, path: Path, apply: Callable[[apsw.Connection, int], None]
) -> None:
    """Take a snapshot of a file with an older schema, then migrate it; the caller holds the lock.

    Args:
        connection: A connection to the file.
        path: The file.
        apply: Applies the migration with the given number.
    """
    version = connection.pragma("user_version")
    if version < engine.SCHEMA_VERSION:  # another process may already have migrated the file
        _take_snapshot(connection, path.with_name(f"{path.name}.v{version}.backup"))
    for number in range(version + 1, engine.SCHEMA_VERSION + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            apply(connection, number)
            engine.write_state(connection, engine.next_state(engine.read_state(connection)[0]))
            connection.execute(f"PRAGMA user_version={number}")
            connection.execute("COMMIT")
        except BaseException:
            engine.undo(connection, "ROLLBACK")
            raise


def _take_snapshot(connection: apsw.Connection, target: Path) -> None:
    if target.exists():
        return  # the snapshot of an interrupted migration is better than a new one
    scratch = target.with_name(f".{target.name}.new")
    scratch.unlink(missing_ok=True)
    # The file is created first, because VACUUM INTO would create it with mode 0644.
    fd = os.open(scratch, CREATING | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        connection.execute("VACUUM INTO ?", (str(scratch),))
        os.fsync(fd)
    finally:
        os.close(fd)
    put_in_place(scratch, target)


# --- erasing


def overwrite_gaps(db: apsw.Connection, path: Path) -> None:
    """Overwrite the unused bytes between the cell list and the cells of each page.

    SQLite leaves copies of cells there when it moves them to other pages, and `secure_delete`
    doesn't overwrite these copies. Only unused bytes are written, so readers don't have to wait.
    Their caches may contain the old bytes until the next commit.

    Args:
        db: A connection to the file; its page cache is dropped.
        path: The file; its log must be empty.
    """
    db.execute("BEGIN IMMEDIATE")  # keeps other programs from writing
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])
    try:
        page_size, size = int(db.pragma("page_size")), file.xFileSize()
        for start in range(0, size, _PAGES_AT_ONCE * page_size):
            pages = file.xRead(min(_PAGES_AT_ONCE * page_size, size - start), start)
            for offset in range(0, len(pages), page_size):
                header = 0 if start + offset else _FILE_HEADER_BYTES
                first, last = _find_gap(pages, offset, page_size, header=header)
                leftover = pages[first:last].lstrip(b"\0")
                if leftover:
                    zeros = bytes(len(leftover.rstrip(b"\0")))
                    file.xWrite(zeros, start + last - len(leftover))
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()
        db.execute("ROLLBACK")
        db.release_memory()


def _find_gap(pages: bytes, offset: int, page_size: int, *, header: int) -> tuple[int, int]:
    """Return the start and end of the unused bytes in a page; they are equal if there are none."""
    start = offset + header
    kind = pages[start]
    if kind not in _TREE_HEADER_BYTES:
        return 0, 0
    cell_count = int.from_bytes(pages[start + 3 : start + 5], "big")
    content = int.from_bytes(pages[start + 5 : start + 7], "big")
    first = start + _TREE_HEADER_BYTES[kind] + 2 * cell_count
    return first, max(first, offset + min(content or page_size, page_size))
