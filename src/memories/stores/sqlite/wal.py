"""Checks whether a log next to a store file belongs to it.

SQLite replays any log into any file. Only the contents of both files can prove that they belong
together, because copying or moving files changes their times and inodes. Each commit updates the
only row of the table `store`, and derives the new id in it from the previous one. So the database
file must contain one of the states in its log, or the state just before the first of these. The
pages in the log must also be at the same positions in the database.
"""

import os
import struct
from collections.abc import Iterator
from operator import mul
from pathlib import Path
from typing import NamedTuple

import apsw

from memories.errors import StoreDamaged
from memories.stores.sqlite.engine import (
    LOG_MAGIC,
    CommitNote,
    StoreState,
    connect_frozen,
    read_state,
    salt_of,
)
from memories.stores.sqlite.whole_file import read_pages

_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_ID, _COUNT = 32, 20
# The first bytes of the only row of the table `store`: its length, its number, and the types of its
# two texts, which have 32 and 20 bytes.
_ROW = bytes((3 + _ID + _COUNT, 1, 3, 13 + 2 * _ID, 13 + 2 * _COUNT))
_LEAF, _CELLS, _FIRST_CELL = 13, slice(3, 5), slice(8, 10)
_CHANGES, _SCHEMA = slice(24, 28), slice(40, 44)  # counters in the first page


class ForeignLog(StoreDamaged):
    """Raised if the log next to an intact file belongs to another file."""


class Log(NamedTuple):
    """The part of a log that SQLite would replay.

    Attributes:
        page_size: The size of a page.
        page_count: The number of pages in the database after the replay.
        states: The store's states in the log, each with the number of the page that contains it.
        pages: The first version of each page in the log, keyed by page number.
        first_pages: All versions of page 1 in the log.
    """

    page_size: int
    page_count: int
    states: dict[StoreState, int]
    pages: dict[int, bytes]
    first_pages: set[bytes]


class _Database(NamedTuple):
    """The contents of a database without its log.

    Attributes:
        is_restored: Whether it is marked as a backup.
        state: Its state; None if it isn't a store of a released version.
        has_moved: Whether its state is on a different page than in the log.
        is_unreadable: Whether SQLite can't read its state, because the database is damaged or
            contains only a part of the log.
        pages: The database's versions of the pages in the log, keyed by page number.
    """

    is_restored: bool
    state: StoreState | None
    has_moved: bool
    is_unreadable: bool
    pages: dict[int, bytes]


# --- reading a log


def read_log(path: Path) -> Log | None:
    """Return the part of a log that SQLite would replay; None if there is none."""
    try:
        fd = os.open(path, _READING)
    except FileNotFoundError:
        return None
    try:
        header = os.read(fd, _HEADER_BYTES)
        page_size = int.from_bytes(header[8:12], "big")
        if int.from_bytes(header[:4], "big") not in LOG_MAGIC or not 512 <= page_size <= 65536:
            return None
        log = Log(page_size, 0, {}, {}, set())
        for page_count, frames in _read_commits(fd, header, page_size):
            log = log._replace(page_count=page_count)
            for number, page in frames:
                log.pages.setdefault(number, page)
                if number == 1:
                    log.first_pages.add(page)
                state = state_in(page)
                if state is not None:
                    log.states.setdefault(state, number)
        return log if log.pages else None
    finally:
        os.close(fd)


def _read_commits(
    fd: int, header: bytes, page_size: int
) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """Yield the commits in a log.

    For each commit, these are the size of the database in pages after it, and the pages that it
    wrote, with their numbers.

    The log is read, not mapped into memory, because SQLite may shorten it in the meantime.
    """
    order = "<>"[header[3] & 1]
    weights = _checksum_weights(page_size // 4 + 3)
    checksum = _checksum((0, 0), header[:24], order, weights)
    if struct.pack(">2I", *checksum) != header[24:]:
        return
    frames: list[tuple[int, bytes]] = []
    frame_bytes = _FRAME_HEADER_BYTES + page_size
    while len(frame := os.read(fd, frame_bytes)) == frame_bytes:
        page = frame[_FRAME_HEADER_BYTES:]
        if frame[8:16] != header[16:24]:
            return  # a frame of an earlier log, which this one overwrites
        checksum = _checksum(checksum, frame[:8] + page, order, weights)
        if struct.pack(">2I", *checksum) != frame[16:_FRAME_HEADER_BYTES]:
            return
        frames.append((int.from_bytes(frame[:4], "big"), page))
        page_count = int.from_bytes(frame[4:8], "big")
        if page_count:  # it is 0 except in the last frame of a commit
            yield page_count, frames
            frames = []


def _checksum_weights(count: int) -> list[int]:
    """Return the weight of each word in SQLite's checksum: Fibonacci numbers, largest first."""
    weights = [0, 1]
    while len(weights) <= count:
        weights.append((weights[-1] + weights[-2]) & 0xFFFFFFFF)
    return weights[::-1]


def _checksum(
    before: tuple[int, int], content: bytes, order: str, weights: list[int]
) -> tuple[int, int]:
    """Return SQLite's checksum for a part of a log, given the previous part's checksum."""
    first, *rest = struct.unpack(f"{order}{len(content) // 4}I", content)
    words = (before[1], first + before[0], *rest)
    start = len(weights) - len(words)
    high = sum(map(mul, words, weights[start:])) & 0xFFFFFFFF
    low = sum(map(mul, words, weights[start - 1 :])) & 0xFFFFFFFF
    return high, low


def state_in(page: bytes | None) -> StoreState | None:
    """Return the state in a page of the table `store`; None for any other page."""
    if not page or page[0] != _LEAF or page[_CELLS] != b"\0\1":
        return None
    row = page[int.from_bytes(page[_FIRST_CELL], "big") :]
    if len(row) != len(_ROW) + _ID + _COUNT or not row.startswith(_ROW):
        return None
    text = row[len(_ROW) :]
    state_id, commits = text[:_ID], text[_ID:]
    if commits.isdigit():
        return StoreState(state_id.decode("ascii", "replace"), int(commits))
    return None


# --- comparing a log with its database


def refuse_foreign_log(path: Path, commit_note: CommitNote | None) -> None:
    """Refuse a file whose log belongs to another file; change nothing.

    Args:
        path: The file.
        commit_note: The note in the side file.

    Raises:
        ForeignLog: The log belongs to another store, or to another state of this one.
        StoreDamaged: The file is too damaged to tell.
    """
    log_path = Path(f"{path}-wal")
    if commit_note is not None:
        status = path.stat()
        noted_file = commit_note.inode, commit_note.changed
        is_same_file = noted_file == (status.st_ino, status.st_mtime_ns)
        if is_same_file and commit_note.salt == salt_of(log_path):
            return  # the usual case
    log = read_log(log_path)
    if log is None:
        return
    database = _read_database(path, log)
    if _leads_on(database, log):
        return
    change = "is a backup" if database.is_restored else "was replaced"
    error = StoreDamaged if database.is_unreadable else ForeignLog
    raise error(
        f"{path} {change}, but the log {log_path.name} next to it belongs to the previous file; "
        "nothing was changed; to save the contents of the file itself, run memory doctor "
        "--salvage FILE, then memory restore FILE --replace; to save the contents of the log, put "
        "the previous file back"
    )


def continues(log_path: Path, path: Path) -> bool:
    """Return whether a log belongs to a database; the two may be in different folders."""
    log = read_log(log_path)
    if log is None:
        return False
    database = _read_database(path, log)
    is_database = database.state is not None or not database.is_unreadable
    return is_database and _leads_on(database, log)


def _leads_on(database: _Database, log: Log) -> bool:
    """Return whether a log continues the database, or was partly copied into it."""
    if not _has_layout(database, log):
        return False
    first, state = next(iter(log.states), None), database.state
    if state is None:  # it isn't a store, which is reported when it is opened
        return first is None
    if first is None:
        return False
    if database.is_restored:
        return state.leads_to(first) and first.history != state.history
    return state in log.states or state.leads_to(first)


def _has_layout(database: _Database, log: Log) -> bool:
    """Return whether a database's pages are where the log expects them.

    In a copy made by VACUUM, they aren't.
    """
    if len(log.pages) >= log.page_count:
        return True  # the log replaces every page
    if database.has_moved:
        return False
    if 1 not in log.pages:  # no page was added or freed, so each page is of the same kind as before
        return all(database.pages[number][:1] == page[:1] for number, page in log.pages.items())
    before, after = database.pages[1], log.pages[1]
    if before in log.first_pages:
        return True
    changes = int.from_bytes(after[_CHANGES], "big") - int.from_bytes(before[_CHANGES], "big")
    return changes in (0, 1) and before[_SCHEMA] <= after[_SCHEMA]


def _read_database(path: Path, log: Log) -> _Database:
    """Read a database without its log.

    Like every store file, it is opened with apsw: opening and closing the file in any other way
    would cancel this process's locks.
    """
    pages = read_pages(path, log.page_size, log.pages)
    in_pages = None
    for number in log.states.values():
        in_pages = in_pages or state_in(pages.get(number))
    in_table, is_restored, is_unreadable = None, False, False
    db = connect_frozen(path)
    try:
        in_table, is_restored = read_state(db)
    except apsw.SQLError:  # it has no table `store`
        pass
    except apsw.Error:
        is_unreadable = True
    finally:
        db.close()
    has_moved = in_pages is None and in_table is not None
    return _Database(is_restored, in_pages or in_table, has_moved, is_unreadable, pages)
