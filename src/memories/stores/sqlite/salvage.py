"""Reading what can still be read of a damaged store file: row by row, around the pages that are
lost.

Nothing of the file is trusted: every record is compared with its checksum. Nothing is written to
it.
"""

import contextlib
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from memories.core.disk import CREATING
from memories.errors import StoreDamaged
from memories.stores.records import SEARCHED, Collection, Record, Ref
from memories.stores.sqlite import schema
from memories.stores.sqlite.engine import connect_frozen, opened_apart
from memories.stores.sqlite.errors import translated
from memories.stores.sqlite.log import ForeignLog, refuse_foreign_log
from memories.stores.sqlite.query import READ

_UNREADABLE = (apsw.CorruptError, apsw.SQLError, apsw.NotADBError, apsw.IOError, UnicodeDecodeError)
_WHAT = re.compile(r"\b([rpa])\.(\w+)")
_SOURCES = tuple(
    _WHAT.findall(READ.partition(" FROM ")[0])
)  # the table and the column of each part of a row of `READ`
_TEXTS = ("ended_by", "key", "labels", "fields", "text")
_KINDS = tuple(map(str, Collection))

Row = tuple[Any, ...]


class Lost(NamedTuple):
    """A record that could not be saved.

    Attributes:
        seq: Its number.
        ref: Its address, if that is known.
        why: What is wrong with it.
    """

    seq: int
    ref: Ref | None
    why: str


def salvage(path: Path) -> Iterator[Record | Lost]:
    """Yield every memory and turn of a store, sound ones as they are; its log is of no use in
    another store.

    Args:
        path: The store; nobody may use it meanwhile. Its log counts, too, as far as SQLite can read
            it.

    Raises:
        StoreDamaged: Not a single record can be found.
    """
    for found in _everything(path):
        if found.ref is None or found.ref.collection in SEARCHED:
            yield found


def _everything(path: Path) -> Iterator[Record | Lost]:
    saved: set[int] = set()
    lost: dict[int, Lost] = {}
    with translated(path):
        alone = _has_foreign_log(path)
        if alone:
            lost[0] = Lost(
                0,
                None,
                f"the log {path.name}-wal is of another file, so what only it has was not read",
            )
        try:
            with contextlib.closing(connect_frozen(path)) if alone else opened_apart(path) as db:
                for seq, found in _Tables(db).records():
                    if isinstance(found, Lost):
                        lost[seq] = found
                    elif seq not in saved:  # a damaged tree may lead to a page twice
                        saved.add(seq)
                        yield found
        except _UNREADABLE as exc:
            if not saved:
                yield from _without_sqlite(path, exc)
                return
            lost[-1] = Lost(0, None, f"how many more there were is not known: {exc}")
    if lost:
        again = {seq: record for seq, record in _in_pages(path) if seq in lost and seq not in saved}
        yield from again.values()
        yield from (found for seq, found in lost.items() if seq not in again and seq not in saved)


def _has_foreign_log(path: Path) -> bool:
    """Return whether the log beside a store is certainly not its own. Replayed, it would spoil what
    is sound.
    """
    try:
        refuse_foreign_log(path, None)
    except ForeignLog:
        return True
    except StoreDamaged:
        return False
    return False


def _without_sqlite(path: Path, reason: Exception) -> Iterator[Record | Lost]:
    """Yield what the pages have, where SQLite can't read the file at all; how much is lost is then
    not known.
    """
    found = dict(_in_pages(path))
    if not found:
        raise StoreDamaged(
            f"nothing can be read of {path} ({reason}); restore a backup"
        ) from reason
    yield from found.values()
    numbers = (
        values[1] for _, values in page_rows(path) if len(values) == 2 and values[0] == "record"
    )
    last = max((number for number in numbers if isinstance(number, int)), default=0)
    if last > len(found):
        yield Lost(
            0, None, f"{last - len(found)} records are lost or were removed before: {reason}"
        )
    elif not last:
        yield Lost(0, None, f"how many more there were is not known: {reason}")


def _in_pages(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield the sound records that lie in any page, by their numbers; where there are several
    states, the ended one.
    """
    names = _columns()
    pools: dict[int, Row] = {}
    labels: dict[str, tuple[str, str]] = {}
    accesses: dict[int, int] = {}
    for number, values in page_rows(path):
        if (
            len(values) > 2
            and values[0] is None
            and all(isinstance(value, str) for value in values[1:3])
        ):
            if values[1] in _KINDS and len(values) in (3, 6):  # counts were added to it
                pools.setdefault(number, values[1:3])
            else:
                labels.setdefault(str(number), (values[1], values[2]))
        elif len(values) == 2 and values[0] is None and isinstance(values[1], int):
            accesses[number] = values[1]
    labels = {
        str(number): (pair[0], pair[1]) for number, pair in pools.items()
    } | labels  # a label may have that name
    states: dict[int, bool] = {}
    for number, values in page_rows(path):
        if not 11 < len(values) <= len(names) or values[0] is not None:
            continue
        row = dict(zip(names, values, strict=False)) | {"seq": number}
        try:
            record = _record(row, pools, labels, accesses)
        except schema.NEVER_WRITTEN:
            continue
        if number not in states or (record.ended_at is not None and not states[number]):
            states[number] = record.ended_at is not None
            yield number, record


def _columns() -> list[str]:
    """Return the columns of the table of records in this program's schema, in order."""
    made = schema.empty()
    return [row[1] for row in made.execute("PRAGMA table_info(record)")]


def _record(
    values: Mapping[str, Any],
    pools: Mapping[int, Row],
    labels: Mapping[str, tuple[str, str]],
    accesses: Mapping[int, int],
) -> Record:
    collection, namespace = pools[values["pool"]]
    others = {
        "collection": collection,
        "namespace": namespace,
        "count": accesses.get(values["seq"], 0),
    }
    return schema.record_of(
        [values.get(name) if table == "r" else others[name] for table, name in _SOURCES], labels
    )


class _Tables:
    """Reads the table of records and what its rows refer to, through SQLite."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        db.execute("SELECT 1 FROM record LIMIT 0").fetchall()
        self._pools = {row[0]: row[1:] for row in self._small("pool", "id, collection, namespace")}
        labels = {row[0]: row[1:] for row in self._small("label", "id, key, value")}
        self._labels = {
            str(label): (str(key), str(value)) for label, (key, value) in labels.items()
        }
        self._places = self._read_places()
        last = [
            row[0] for row in self._try("SELECT seq FROM sqlite_sequence WHERE name = 'record'")
        ]
        last += [row[0] for row in self._try("SELECT max(seq) FROM record NOT INDEXED")]
        size = int(db.pragma("page_count")) * int(db.pragma("page_size"))
        self._last = (
            max([0, *self._places, *(number for number in last if isinstance(number, int))])
            or size // 16
        )
        there = {row[1] for row in self._try("PRAGMA table_info(record)")}
        self._columns = [name for name in _columns() if name in there]
        self._accesses = {
            row[0]: row[1]
            for row in self._rows("access", ["seq", "count"])
            if not isinstance(row, Lost)
        }

    def records(self) -> Iterator[tuple[int, Record | Lost]]:
        """Yield every record with its number; rows that never were are told from lost ones by the
        index.
        """
        for row in self._rows("record", self._columns):
            if isinstance(row, Lost):
                if not self._places or row.seq in self._places:
                    yield (
                        row.seq,
                        row._replace(ref=self._ref(*self._places.get(row.seq, (None, None, None)))),
                    )
                continue
            values = dict(zip(self._columns, row, strict=True))
            try:
                for name in _TEXTS:
                    if isinstance(values.get(name), bytes):
                        values[name] = values[name].decode()
                yield values["seq"], _record(values, self._pools, self._labels, self._accesses)
            except schema.NEVER_WRITTEN as exc:
                ref = self._ref(values["pool"], values["grp"], values["position"])
                yield values["seq"], Lost(values["seq"], ref, schema.why(exc))

    def _ref(self, pool: Any, group: Any, position: Any) -> Ref | None:
        collection, namespace = self._pools.get(pool, (None, None))
        if (
            collection not in _KINDS
            or not isinstance(namespace, str)
            or not isinstance(position, int)
        ):
            return None
        name = schema.decode_group(group) if isinstance(group, bytes | str) else None
        return None if name is None else Ref(Collection(collection), namespace, name, position)

    def _read_places(self) -> dict[int, Row]:
        """Return pool, group and position of each record from the index, from both of its ends."""
        found: dict[int, Row] = {}
        for order in ("ASC", "DESC"):
            columns = f"pool {order}, grp {order}, position {order}"
            sql = f"SELECT seq, pool, grp, position FROM record INDEXED BY record_position ORDER BY {columns}"
            found |= {row[0]: row[1:] for row in self._try(sql) if isinstance(row[0], int)}
        return found

    def _small(self, table: str, columns: str) -> Iterator[Row]:
        """Yield the rows of a small table: as they lie there, and from the index that holds all of
        them, too.
        """
        for where in ("NOT INDEXED", f"INDEXED BY sqlite_autoindex_{table}_1"):
            yield from self._try(f"SELECT {columns} FROM {table} {where}")

    def _try(self, sql: str) -> Iterator[Row]:
        """Yield rows up to the first that can't be read."""
        try:
            yield from self._db.execute(sql)
        except _UNREADABLE:
            return

    def _rows(self, table: str, columns: list[str]) -> Iterator[Row | Lost]:
        """Yield the rows of a table in order; a range that can't be read is halved until only
        single rows are lost.
        """
        names = ", ".join(
            f"CAST({name} AS BLOB) AS {name}" if name in _TEXTS else name for name in columns
        )
        sql = f"SELECT {names} FROM {table} NOT INDEXED WHERE seq BETWEEN ? AND ? ORDER BY seq"
        ranges = [(0, self._last)]
        while ranges:
            first, last = ranges.pop()
            try:
                for row in self._db.execute(sql, (first, last)):
                    yield row
                    first = row[0] + 1
            except _UNREADABLE as exc:
                if first >= last:
                    yield Lost(last, None, f"its page can't be read ({exc})")
                else:
                    middle = (first + last) // 2
                    ranges += [(middle + 1, last), (first, middle)]


# --- pages
# -----------------------------------------------------------------------------------------------------------

# For what SQLite no longer finds, every leaf of a table is read, whether a tree leads to it or not.
# It may have rows of any table, and states of a row that were replaced since: the caller has to
# know what it looks for, and to compare checksums. The format: https://sqlite.org/fileformat2.html

_LEAF = 13  # the first byte of a page with rows of a table
_HEADER = 100  # bytes before the first page's own
_PAGE_SIZE = slice(16, 18)
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_MAX_COLUMNS = 100


class PageRow(NamedTuple):
    """A row: its number, and the values of its columns. Texts that are not UTF-8 have
    surrogates.
    """

    number: int
    values: tuple[Any, ...]


def page_rows(path: Path) -> Iterator[PageRow]:
    """Yield every row that can be read from a leaf; nobody may have the file open in this
    process.
    """
    fd = os.open(path, os.O_RDONLY | (CREATING & ~os.O_CREAT))
    try:
        pages = _Pages(fd)
        for number in range(pages.count):
            yield from pages.rows(number)
    finally:
        os.close(fd)


class _Pages:
    def __init__(self, fd: int) -> None:
        size = int.from_bytes(os.pread(fd, _HEADER, 0)[_PAGE_SIZE], "big")
        self._fd = fd
        self._size = size if size in (512, 1024, 2048, 8192, 16384, 32768) else 4096
        self._length = os.fstat(fd).st_size
        self.count = -(-self._length // self._size)

    def rows(self, number: int) -> Iterator[PageRow]:
        """Yield the rows of a page, counted from 0, if it is a leaf of a table."""
        page = self._page(number)
        start = 0 if number else _HEADER
        if len(page) < self._size or page[start] != _LEAF:
            return
        cells = int.from_bytes(page[start + 3 : start + 5], "big")
        for at in range(start + 8, min(start + 8 + 2 * cells, len(page) - 1), 2):
            try:
                yield self._row(page, int.from_bytes(page[at : at + 2], "big"))
            except (ValueError, IndexError, struct.error):
                continue  # not a row, or a damaged one

    def _page(self, number: int) -> bytes:
        return os.pread(self._fd, self._size, number * self._size)

    def _row(self, page: bytes, at: int) -> PageRow:
        length, at = _varint(page, at)
        number, at = _varint(page, at)
        return PageRow(
            number - (1 << 64) if number >= 1 << 63 else number,
            _values(self._payload(page, at, length)),
        )

    def _payload(self, page: bytes, at: int, length: int) -> bytes:
        """Return what a row holds: all of it lies in its page, or the rest in a chain of others."""
        if length > self._length:
            raise ValueError
        most, least = self._size - 35, (self._size - 12) * 32 // 255 - 23
        local = length
        if length > most:
            local = least + (length - least) % (self._size - 4)
            local = local if local <= most else least
        payload = page[at : at + local]
        further = int.from_bytes(page[at + local : at + local + 4], "big") if local < length else 0
        while len(payload) < length:
            part = self._page(further - 1) if 1 <= further <= self.count else b""
            if len(part) < 5:
                raise ValueError
            payload += part[4:]
            further = int.from_bytes(part[:4], "big")
        return payload[:length]


def _values(payload: bytes) -> tuple[Any, ...]:
    end, at = _varint(payload, 0)
    kinds: list[int] = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
        if len(kinds) > _MAX_COLUMNS:
            raise ValueError
    if at != end:
        raise ValueError
    values: list[Any] = []
    for kind in kinds:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise ValueError
    return tuple(values)


def _value(payload: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (0, 8, 9):
        return (None if kind == 0 else kind - 8), at
    if kind in (10, 11):
        raise ValueError
    length = 8 if kind == 7 else _INTEGERS.get(kind, (kind - 12) // 2)
    data = payload[at : at + length]
    if len(data) < length:
        raise ValueError
    if kind == 7:
        return struct.unpack(">d", data)[0], at + length
    if kind in _INTEGERS:
        return int.from_bytes(data, "big", signed=True), at + length
    return (data.decode("utf-8", "surrogateescape") if kind % 2 else data), at + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1
