"""The SQLite that opens store files: which versions may, and each way to open one. Nothing else opens them.

With any other, even with a plain file handle, closing the file would cancel the locks that this one holds.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw

_BUSY_MILLIS = 30_000
_FILE_HEADER = 100  # bytes before the first page's own: https://sqlite.org/fileformat2.html
_TREE_PAGES = {2: 12, 5: 12, 10: 8, 13: 8}  # by their first byte, how long the header is
_PAGES_AT_ONCE = 256


def engine_is_safe(version: str) -> bool:
    """Return whether this SQLite is free of the WAL-reset bug, which silently loses acknowledged commits."""
    number = tuple(int(part) for part in version.split("."))
    return number >= (3, 51, 3) or (3, 50, 7) <= number < (3, 51, 0) or (3, 44, 6) <= number < (3, 45, 0)


def connect(path: Path) -> apsw.Connection:
    """Open a file that is there, for reading and, if possible, for writing."""
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)


def connect_frozen(path: Path) -> apsw.Connection:
    """Open a file for reading as if nobody could write to it: without its log and without locks."""
    from urllib.parse import quote

    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)


@contextlib.contextmanager
def opened_apart(path: Path, *, write: bool = False) -> Iterator[apsw.Connection]:
    """Open a file that is no store in use, such as a copy; with `write` nobody else may use it.

    Without `write` nothing is made beside it either, unless it has a log.
    """
    if write:
        connection = connect(path)
    else:
        in_use = any(Path(f"{path}{suffix}").exists() for suffix in ("-wal", "-shm", "-journal"))
        uri = f"{path.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"
        connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        for pragma in (
            "mmap_size=0",
            "trusted_schema=OFF",
            "cell_size_check=ON",
        ):  # each alone: one that answers ends it
            connection.execute(f"PRAGMA {pragma}")
        connection.set_busy_timeout(_BUSY_MILLIS)
        yield connection
    finally:
        connection.close()


def scratch() -> apsw.Connection:
    """Return an empty database for one use, which SQLite keeps on the disk if it grows large."""
    return apsw.Connection("")


def read_pages(path: Path, page_size: int, numbers: Iterable[int]) -> dict[int, bytes]:
    """Return pages of a file as they are without its log; an empty one for each that is not there."""
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        size = file.xFileSize()
        starts = {number: (number - 1) * page_size for number in numbers}
        return {
            number: file.xRead(page_size, start) if start + page_size <= size else b""
            for number, start in starts.items()
        }
    finally:
        file.xClose()


def overwrite_gaps(db: apsw.Connection, path: Path) -> None:
    """Overwrite what lies in pages between the list of cells and the cells.

    SQLite leaves copies of cells there when it moves them to other pages, and `secure_delete` does not reach them. Only
    unused bytes are written, so readers need not wait; what they keep of pages ends with the next commit.

    Args:
        db: A connection to the file, which forgets its pages.
        path: The file, whose log is empty.
    """
    db.execute("BEGIN IMMEDIATE")  # no other program writes meanwhile
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])
    try:
        page_size, size = int(db.pragma("page_size")), file.xFileSize()
        for start in range(0, size, _PAGES_AT_ONCE * page_size):
            pages = file.xRead(min(_PAGES_AT_ONCE * page_size, size - start), start)
            for at in range(0, len(pages), page_size):
                first, last = _gap(pages, at, page_size, header=0 if start + at else _FILE_HEADER)
                left = pages[first:last].lstrip(b"\0")
                if left:
                    file.xWrite(bytes(len(left.rstrip(b"\0"))), start + last - len(left))
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()
        db.execute("ROLLBACK")
        db.release_memory()


def _gap(pages: bytes, at: int, page_size: int, *, header: int) -> tuple[int, int]:
    """Return where the unused middle of a page begins and ends; an empty one for what is no page of a tree."""
    kind = pages[at + header]
    if kind not in _TREE_PAGES:
        return 0, 0
    cells, content = (int.from_bytes(pages[at + header + place : at + header + place + 2], "big") for place in (3, 5))
    first = at + header + _TREE_PAGES[kind] + 2 * cells
    return first, max(first, at + min(content or page_size, page_size))
