"""Whether a log beside a store file belongs to it. SQLite does not ask: it replays any log into any
file.

Only their content decides, since copying and moving change times and inodes. Each commit writes the
row of the table `store`, whose id follows from the one before: the database alone has one of the
states of its log, or the one just before the first. And the pages that the log changes have to lie
where the database has them.
"""

import os
import struct
from collections.abc import Iterator
from operator import mul
from pathlib import Path
from typing import NamedTuple

import apsw

from memories.errors import StoreDamaged
from memories.stores.sqlite import schema
from memories.stores.sqlite.engine import connect_frozen, read_pages
from memories.stores.sqlite.sidefile import LOG_MAGIC, Marker, Noted, salt_of

_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_HEADER, _FRAME = 32, 24
_ID, _COUNT = 32, 20
# The only row of the table `store`: its length, its number, and a header that says two texts of 32
# and 20 bytes.
_ROW = bytes((3 + _ID + _COUNT, 1, 3, 13 + 2 * _ID, 13 + 2 * _COUNT))
_LEAF, _CELLS, _FIRST_CELL = 13, slice(3, 5), slice(8, 10)
_CHANGES, _SCHEMA = slice(24, 28), slice(40, 44)  # counters in the first page


class ForeignLog(StoreDamaged):
    """A log lies beside a file that can be read and is not its own."""


class Log(NamedTuple):
    """What SQLite would replay of a log.

    Attributes:
        page_size: The length of a page.
        page_count: How many pages the database has afterwards.
        markers: The states that it leads to, each with the number of the page that has it.
        pages: The first content of each page, by its number.
        heads: Each content of the first page.
    """

    page_size: int
    page_count: int
    markers: dict[Marker, int]
    pages: dict[int, bytes]
    heads: set[bytes]


def read_log(path: Path) -> Log | None:
    """Return what SQLite would replay of a log; None if that is nothing."""
    try:
        fd = os.open(path, _READING)
    except FileNotFoundError:
        return None
    try:
        header = os.read(fd, _HEADER)
        page_size = int.from_bytes(header[8:12], "big")
        if int.from_bytes(header[:4], "big") not in LOG_MAGIC or not 512 <= page_size <= 65536:
            return None
        log = Log(page_size, 0, {}, {}, set())
        for page_count, frames in _commits(fd, header, page_size):
            log = log._replace(page_count=page_count)
            for number, page in frames:
                log.pages.setdefault(number, page)
                if number == 1:
                    log.heads.add(page)
                marker = marker_in(page)
                if marker is not None:
                    log.markers.setdefault(marker, number)
        return log if log.pages else None
    finally:
        os.close(fd)


def _commits(
    fd: int, header: bytes, page_size: int
) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """Yield each commit: the size of the database after it, and its pages with their numbers.

    Read, not mapped: SQLite may shorten it meanwhile.
    """
    order = "<>"[header[3] & 1]
    weights = _weights(page_size // 4 + 3)
    checksum = _checksum((0, 0), header[:24], order, weights)
    if struct.pack(">2I", *checksum) != header[24:]:
        return
    frames: list[tuple[int, bytes]] = []
    while len(frame := os.read(fd, _FRAME + page_size)) == _FRAME + page_size:
        if frame[8:16] != header[16:24]:
            return  # left of an earlier log, which this one overwrites
        checksum = _checksum(checksum, frame[:8] + frame[_FRAME:], order, weights)
        if struct.pack(">2I", *checksum) != frame[16:_FRAME]:
            return
        frames.append((int.from_bytes(frame[:4], "big"), frame[_FRAME:]))
        page_count = int.from_bytes(frame[4:8], "big")
        if page_count:  # which ends a commit
            yield page_count, frames
            frames = []


def _weights(count: int) -> list[int]:
    """Return Fibonacci numbers, the last first: how often each word is in SQLite's checksum."""
    found = [0, 1]
    while len(found) <= count:
        found.append((found[-1] + found[-2]) & 0xFFFFFFFF)
    return found[::-1]


def _checksum(
    before: tuple[int, int], content: bytes, order: str, weights: list[int]
) -> tuple[int, int]:
    """Return SQLite's checksum of a part of a log, given that of the part before."""
    first, *rest = struct.unpack(f"{order}{len(content) // 4}I", content)
    words = (before[1], first + before[0], *rest)
    start = len(weights) - len(words)
    return tuple(sum(map(mul, words, weights[at:])) & 0xFFFFFFFF for at in (start, start - 1))


def marker_in(page: bytes | None) -> Marker | None:
    """Return the state that a page of the table `store` tells; None if it is another page."""
    if not page or page[0] != _LEAF or page[_CELLS] != b"\0\1":
        return None
    row = page[int.from_bytes(page[_FIRST_CELL], "big") :]
    if len(row) != len(_ROW) + _ID + _COUNT or not row.startswith(_ROW):
        return None
    text = row[len(_ROW) :]
    return (
        Marker(text[:_ID].decode("ascii", "replace"), int(text[_ID:]))
        if text[_ID:].isdigit()
        else None
    )


def refuse_foreign_log(path: Path, noted: Noted | None) -> None:
    """Refuse a file beside a log that can't be its own; nothing is changed.

    Args:
        path: The file.
        noted: What the side file says.

    Raises:
        ForeignLog: The log is of another store or another time.
        StoreDamaged: The file is too damaged to tell.
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
    if not _leads_on(database, log):
        what = "is a backup" if database.restored else "was replaced"
        raise (StoreDamaged if database.unreadable else ForeignLog)(
            f"{path} {what}, but the log {beside.name} beside it is of the file that was there before; nothing was "
            "changed; save what the file itself has with: memory doctor --salvage FILE, and make the store of that "
            "with: memory restore FILE --replace; or put the file that was there before back, for what is in the log"
        )


def continues(log: Path, path: Path) -> bool:
    """Return whether a log has commits and leads on from a file that is a database, wherever both
    lie.
    """
    found = read_log(log)
    if found is None:
        return False
    database = _read_database(path, found)
    return (database.marker is not None or not database.unreadable) and _leads_on(database, found)


def _leads_on(database: "_Database", log: Log) -> bool:
    """Return whether a log begins where a database ends, or is in it in part."""
    first, marker = next(iter(log.markers), None), database.marker
    if not _has_layout(database, log):
        return False
    if marker is None:  # an older schema; only the log of its migration brings the row
        return first is None or first.commits <= 1
    if first is None:
        return False
    if database.restored:
        return marker.leads_to(first) and first.history != marker.history
    return marker in log.markers or marker.leads_to(first)


def _has_layout(database: "_Database", log: Log) -> bool:
    """Return whether a database has its pages where the log has them. A copy by VACUUM has not."""
    if len(log.pages) >= log.page_count:
        return True  # it needs no page of the database
    if database.moved:
        return False
    if 1 not in log.pages:  # so none was added or freed, and each is of the kind that it was
        return all(database.pages[number][:1] == page[:1] for number, page in log.pages.items())
    before, after = database.pages[1], log.pages[1]
    changes = int.from_bytes(after[_CHANGES], "big") - int.from_bytes(before[_CHANGES], "big")
    return before in log.heads or (changes in (0, 1) and before[_SCHEMA] <= after[_SCHEMA])


class _Database(NamedTuple):
    """A database without its log.

    Attributes:
        restored: It is marked as a backup.
        marker: Its state; None in older schemas.
        moved: Its state is not in the page that has it in the log.
        unreadable: SQLite can't read its state: it is damaged, or only half of the log is in it.
        pages: Its pages that are in the log, too.
    """

    restored: bool
    marker: Marker | None
    moved: bool
    unreadable: bool
    pages: dict[int, bytes]


def _read_database(path: Path, log: Log) -> _Database:
    """Read a database alone, by the same SQLite: with any other, closing it would cancel our
    locks.
    """
    pages = read_pages(path, log.page_size, log.pages)
    marker = next(
        (known for known in map(marker_in, map(pages.get, log.markers.values())) if known), None
    )
    row, restored, unreadable = None, False, False
    db = connect_frozen(path)
    try:
        row, restored = schema.state(db)
    except apsw.SQLError:  # an older schema has no such table
        pass
    except apsw.Error:
        unreadable = True
    finally:
        db.close()
    return _Database(restored, marker or row, marker is None and row is not None, unreadable, pages)
