"""Whether a log beside a store file belongs to it. SQLite does not ask: it replays any log into any file.

Each commit writes the row of the table `store`, so the log has the store's id and its count of commits in each of its
commits, and the database alone has one of them, or the one just before the first.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from memories.errors import StoreDamaged
from memories.stores.sqlite import schema
from memories.stores.sqlite.engine import connect_frozen, read_pages
from memories.stores.sqlite.sidefile import LOG_MAGIC, Marker, Noted, boot, following, salt_of

_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_HEADER, _FRAME = 32, 24
_ID, _COUNT = 32, 20
# The only row of the table `store`: its length, its number, and a header that says two texts of 32 and 20 bytes.
_ROW = bytes((3 + _ID + _COUNT, 1, 3, 13 + 2 * _ID, 13 + 2 * _COUNT))
_LEAF, _CELLS, _FIRST_CELL = 13, slice(3, 5), slice(8, 10)


class Log(NamedTuple):
    """The committed part of a log.

    Attributes:
        salt: What distinguishes it from those before it.
        page_size: The length of a page.
        markers: The states that it leads to, each with the number of the page that has it.
        lowest: The number of its first page, and what it holds for it.
    """

    salt: str
    page_size: int
    markers: dict[Marker, int]
    lowest: tuple[int, set[bytes]]


def read_log(path: Path) -> Log | None:
    """Return the committed part of a log; None if there is nothing that SQLite would replay."""
    try:
        fd = os.open(path, _READING)
    except FileNotFoundError:
        return None
    try:
        header = os.read(fd, _HEADER)
        page_size = int.from_bytes(header[8:12], "big")
        if int.from_bytes(header[:4], "big") not in LOG_MAGIC or not 512 <= page_size <= 65536:
            return None
        found = Log(header[16:24].hex(), page_size, {}, (0, set()))
        for frames in _commits(fd, header[16:24], page_size):
            lowest, pages = min(frames)[0], found.lowest
            if not pages[0] or lowest < pages[0]:
                found = found._replace(lowest=(lowest, set()))
            found.lowest[1].update(page for number, page in frames if number == found.lowest[0])
            for number, page in frames:
                marker = marker_in(page)
                if marker is not None:
                    found.markers.setdefault(marker, number)
        return found if found.lowest[0] else None
    finally:
        os.close(fd)


def _commits(fd: int, salt: bytes, page_size: int) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the pages of each commit, with their numbers. Read, not mapped: SQLite may shorten it meanwhile."""
    frames: list[tuple[int, bytes]] = []
    while len(frame := os.read(fd, _FRAME + page_size)) == _FRAME + page_size:
        if frame[8:16] != salt:
            return  # left of an earlier log, which this one overwrites
        frames.append((int.from_bytes(frame[:4], "big"), frame[_FRAME:]))
        if frame[4:8] != b"\0\0\0\0":  # the size of the database, which ends a commit
            yield frames
            frames = []


def marker_in(page: bytes | None) -> Marker | None:
    """Return the state that a page of the table `store` tells; None if it is another page."""
    if not page or page[0] != _LEAF or page[_CELLS] != b"\0\1":
        return None
    row = page[int.from_bytes(page[_FIRST_CELL], "big") :]
    if len(row) != len(_ROW) + _ID + _COUNT or not row.startswith(_ROW):
        return None
    text = row[len(_ROW) :]
    return Marker(text[:_ID].decode("ascii", "replace"), int(text[_ID:])) if text[_ID:].isdigit() else None


def refuse_foreign_log(path: Path, noted: Noted | None) -> None:
    """Refuse a file beside a log that can't be its own; nothing is changed.

    Args:
        path: The file.
        noted: What the side file says.

    Raises:
        StoreDamaged: The log is of another store or another time.
    """
    beside = Path(f"{path}-wal")
    found = path.stat()
    known = noted is not None and (noted.inode, noted.changed) == (found.st_ino, found.st_mtime_ns)
    if noted is not None and known and noted.log == salt_of(beside):
        return  # as it was left; nearly always
    log = read_log(beside)
    if log is None:
        return
    database = _read_database(path, log)
    if database.restored and not _leads_on(database, log):
        raise StoreDamaged(
            f"{path} is a backup, but the log {beside.name} beside it is of the file that was there before; nothing "
            "was changed; move the backup to another folder and run: memory restore FILE --replace"
        )
    if not _leads_on(database, log) or _replaced(found, noted, database, log):
        raise StoreDamaged(
            f"{path} was replaced, but the log {beside.name} beside it is of the file that was there before; nothing "
            "was changed; put that file back, or move the new one to another folder and run: "
            "memory restore FILE --replace"
        )


def _leads_on(database: "_Database", log: Log) -> bool:
    """Return whether a log begins where a database ends, or is in it in part."""
    first, marker = next(iter(log.markers), None), database.marker
    if marker is None:  # an older schema; only the log of its migration brings the row
        return first is None or first.commits <= 1
    if database.restored:
        return first == following(marker, forked=True)
    return marker in log.markers or first in (following(marker), following(marker, forked=True))


def _replaced(found: os.stat_result, noted: Noted | None, database: "_Database", log: Log) -> bool:
    """Return whether a file is another one than that which was there when its log began, though it has its content."""
    if noted is None or noted.log != log.salt or not noted.inode:
        return False
    moved = noted.inode != found.st_ino
    rewritten = noted.boot == boot() != "" and noted.changed != found.st_mtime_ns
    return (moved or rewritten) and database.lowest not in log.lowest[1]  # else SQLite was moving the log into it


class _Database(NamedTuple):
    """A database without its log.

    Attributes:
        restored: It is marked as a backup.
        marker: Its state; None in older schemas.
        lowest: The page that is the lowest of the log.
    """

    restored: bool
    marker: Marker | None
    lowest: bytes


def _read_database(path: Path, log: Log) -> _Database:
    """Read a database alone, by the same SQLite: with any other, closing it would cancel our locks."""
    pages = read_pages(path, log.page_size, (*log.markers.values(), log.lowest[0]))
    marker = next((known for known in map(marker_in, map(pages.get, log.markers.values())) if known), None)
    restored, row = _tables(path)
    return _Database(restored, marker or row, pages[log.lowest[0]])


def _tables(path: Path) -> tuple[bool, Marker | None]:
    """Return whether a database alone is marked as a backup, and its state."""
    db = connect_frozen(path)
    try:
        marker, restored = schema.state(db)
    except apsw.Error:  # an older schema, or only half of the log is in it
        return False, None
    finally:
        db.close()
    return restored, marker
