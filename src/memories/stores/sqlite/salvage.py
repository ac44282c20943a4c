"""Reads the intact records in a damaged store file, row by row, and skips the lost pages.

Nothing in the file is trusted: every record is compared with its checksums. The file is never
written to.
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
from memories.guard.validate import amount
from memories.stores.records import SEARCHED, Collection, Record, Ref
from memories.stores.sqlite import schema
from memories.stores.sqlite.engine import connect_frozen, open_apart
from memories.stores.sqlite.errors import NEVER_WRITTEN, sqlite_errors
from memories.stores.sqlite.query import READ
from memories.stores.sqlite.rows import decode_group, describe_damage, record_of
from memories.stores.sqlite.wal import ForeignLog, refuse_foreign_log

_UNREADABLE = (apsw.CorruptError, apsw.SQLError, apsw.NotADBError, apsw.IOError, UnicodeDecodeError)
# For each value in a row of `READ`, its table and column.
_READ_COLUMNS = tuple(re.findall(r"\b([rpa])\.(\w+)", READ.partition(" FROM ")[0]))
_TEXTS = ("ended_by", "key", "labels", "fields", "text")
_KINDS = tuple(map(str, Collection))

Row = tuple[Any, ...]


class Lost(NamedTuple):
    """A record that could not be saved.

    Attributes:
        seq: The number of its row.
        ref: Its address, if known.
        why: The reason.
    """

    seq: int
    ref: Ref | None
    why: str


def salvage(path: Path) -> Iterator[Record | Lost]:
    """Yield every memory and turn in a store, and a `Lost` for each that can't be read.

    The audit log is left out, because no other store can use it.

    Args:
        path: The store; no other process may use it. Its write-ahead log is included as far as
            SQLite can read it.

    Raises:
        StoreDamaged: Not a single record can be found.
    """
    for entry in _salvage_all(path):
        if entry.ref is None or entry.ref.collection in SEARCHED:
            yield entry


def _salvage_all(path: Path) -> Iterator[Record | Lost]:
    saved: set[int] = set()
    lost: dict[int, Lost] = {}
    with sqlite_errors(path):
        without_log = _has_foreign_log(path)
        if without_log:
            why = (
                f"the log {path.name}-wal belongs to another file, so records that are only in "
                "this log were not read"
            )
            lost[0] = Lost(0, None, why)
        opened = contextlib.closing(connect_frozen(path)) if without_log else open_apart(path)
        try:
            with opened as db:
                for seq, entry in _Tables(db).records():
                    if isinstance(entry, Lost):
                        lost[seq] = entry
                    elif seq not in saved:  # a damaged tree may lead to a page twice
                        saved.add(seq)
                        yield entry
        except _UNREADABLE as exc:
            if not saved:
                yield from _salvage_without_sqlite(path, exc)
                return
            lost[-1] = Lost(0, None, f"an unknown number of other records are lost: {exc}")
    lost = {seq: loss for seq, loss in lost.items() if seq not in saved}
    if not lost:
        return
    # Some of the lost records are found in the file's pages; report only the others as lost.
    records = {seq: record for seq, record in _find_in_pages(path) if seq in lost}
    yield from records.values()
    for seq, loss in lost.items():
        if seq not in records:
            yield loss


def _has_foreign_log(path: Path) -> bool:
    """Return whether the log next to a store certainly belongs to another file.

    If so, it must not be replayed, because that would damage records that are still intact.
    """
    try:
        refuse_foreign_log(path, None)
    except ForeignLog:
        return True
    except StoreDamaged:
        return False
    return False


def _salvage_without_sqlite(path: Path, reason: Exception) -> Iterator[Record | Lost]:
    """Yield the records in the pages of a file that SQLite can't read at all.

    In this case, the number of lost records may be unknown.
    """
    records = dict(_find_in_pages(path))
    if not records:
        raise StoreDamaged(
            f"cannot read anything from {path} ({reason}); restore a backup: memory restore FILE "
            "--replace, or move the file and its scratchpads away to start a new store"
        ) from reason
    yield from records.values()
    last = 0
    for _, values in page_rows(path):
        is_sequence = len(values) == 2 and values[0] == "record"
        if is_sequence and isinstance(values[1], int):
            last = max(last, values[1])
    if last > len(records):
        count = amount(last - len(records), "record is lost or was", "records are lost or were")
        yield Lost(0, None, f"{count} removed earlier: {reason}")
    elif not last:
        yield Lost(0, None, f"an unknown number of other records are lost: {reason}")


class _Names(NamedTuple):
    """The contents of the small tables to which the rows of records refer by id."""

    pools: Mapping[int, Row]
    labels: Mapping[str, tuple[str, str]]
    accesses: Mapping[int, int]


def _find_in_pages(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield the intact records in all pages, each with its `seq`.

    If a record is found both live and ended, it is yielded twice, first live and then ended.
    """
    columns = _record_columns()
    names = _find_names_in_pages(path)
    has_ended: dict[int, bool] = {}
    for seq, values in page_rows(path):
        if not 11 < len(values) <= len(columns) or values[0] is not None:
            continue
        row = dict(zip(columns, values, strict=False))
        row["seq"] = seq
        try:
            record = _make_record(row, names)
        except NEVER_WRITTEN:
            continue
        if seq not in has_ended or (record.ended_at is not None and not has_ended[seq]):
            has_ended[seq] = record.ended_at is not None
            yield seq, record


def _find_names_in_pages(path: Path) -> _Names:
    pools: dict[int, Row] = {}
    labels: dict[str, tuple[str, str]] = {}
    accesses: dict[int, int] = {}
    for number, values in page_rows(path):
        if not values or values[0] is not None:
            continue
        if len(values) > 2 and isinstance(values[1], str) and isinstance(values[2], str):
            if values[1] in _KINDS and len(values) in (3, 6):  # newer schemas have three counts too
                pools.setdefault(number, values[1:3])
            else:
                labels.setdefault(str(number), (values[1], values[2]))
        elif len(values) == 2 and isinstance(values[1], int):
            accesses[number] = values[1]
    for number, (collection, namespace) in pools.items():
        # this may also be a label whose key is the name of a collection
        labels.setdefault(str(number), (collection, namespace))
    return _Names(pools, labels, accesses)


def _record_columns() -> list[str]:
    db = schema.empty()
    return [row[1] for row in db.execute("PRAGMA table_info(record)")]


def _make_record(values: Mapping[str, Any], names: _Names) -> Record:
    collection, namespace = names.pools[values["pool"]]
    joined = {
        "collection": collection,
        "namespace": namespace,
        "count": names.accesses.get(values["seq"], 0),
    }
    row = [
        values.get(column) if table == "r" else joined[column] for table, column in _READ_COLUMNS
    ]
    return record_of(row, names.labels)


class _Tables:
    """Reads the record table and the tables that it refers to, through SQLite."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        db.execute("SELECT 1 FROM record LIMIT 0").fetchall()
        pools: dict[int, Row] = {}
        for number, *names in self._read_small("pool", "id, collection, namespace"):
            pools[number] = tuple(names)
        labels: dict[str, tuple[str, str]] = {}
        for number, key, value in self._read_small("label", "id, key, value"):
            labels[str(number)] = str(key), str(value)
        self._places = self._read_places()
        self._last = self._find_last_seq()
        existing = {row[1] for row in self._try("PRAGMA table_info(record)")}
        self._columns = [name for name in _record_columns() if name in existing]
        accesses: dict[int, int] = {}
        for row in self._read_rows("access", ["seq", "count"]):
            if not isinstance(row, Lost):
                accesses[row[0]] = row[1]
        self._names = _Names(pools, labels, accesses)

    def records(self) -> Iterator[tuple[int, Record | Lost]]:
        """Yield every record, or a `Lost` for it, with its `seq`."""
        for row in self._read_rows("record", self._columns):
            if not isinstance(row, Lost):
                yield self._decode(row)
            elif not self._places or row.seq in self._places:
                place = self._places.get(row.seq, (None, None, None))
                yield row.seq, row._replace(ref=self._find_ref(*place))

    def _decode(self, row: Row) -> tuple[int, Record | Lost]:
        values = dict(zip(self._columns, row, strict=True))
        seq = values["seq"]
        try:
            for name in _TEXTS:
                if isinstance(values.get(name), bytes):
                    values[name] = values[name].decode()
            return seq, _make_record(values, self._names)
        except NEVER_WRITTEN as exc:
            ref = self._find_ref(values["pool"], values["grp"], values["position"])
            return seq, Lost(seq, ref, describe_damage(exc))

    def _find_ref(self, pool: Any, group: Any, position: Any) -> Ref | None:
        collection, namespace = self._names.pools.get(pool, (None, None))
        if collection not in _KINDS or not isinstance(namespace, str):
            return None
        if not isinstance(position, int) or not isinstance(group, bytes | str):
            return None
        return Ref(Collection(collection), namespace, decode_group(group), position)

    def _read_places(self) -> dict[int, Row]:
        """Read each record's pool, group and position from the index, starting at both ends."""
        places: dict[int, Row] = {}
        for order in ("ASC", "DESC"):
            columns = f"pool {order}, grp {order}, position {order}"
            sql = (
                "SELECT seq, pool, grp, position FROM record INDEXED BY record_position "
                f"ORDER BY {columns}"
            )
            for seq, *place in self._try(sql):
                if isinstance(seq, int):
                    places[seq] = tuple(place)
        return places

    def _find_last_seq(self) -> int:
        """Return the highest `seq` in the file, or a higher number if it can't be found."""
        seqs: list[Any] = [0, *self._places]
        seqs += [row[0] for row in self._try("SELECT seq FROM sqlite_sequence WHERE name='record'")]
        seqs += [row[0] for row in self._try("SELECT max(seq) FROM record NOT INDEXED")]
        last = max(seq for seq in seqs if isinstance(seq, int))
        size = int(self._db.pragma("page_count")) * int(self._db.pragma("page_size"))
        return last or size // 16

    def _read_small(self, table: str, columns: str) -> Iterator[Row]:
        """Yield a small table's rows, read first from the table and then from its index."""
        for source in ("NOT INDEXED", f"INDEXED BY sqlite_autoindex_{table}_1"):
            yield from self._try(f"SELECT {columns} FROM {table} {source}")

    def _try(self, sql: str) -> Iterator[Row]:
        try:
            yield from self._db.execute(sql)
        except _UNREADABLE:
            return

    def _read_rows(self, table: str, columns: list[str]) -> Iterator[Row | Lost]:
        """Yield a table's rows in order, and a `Lost` for each that can't be read.

        A range that can't be read is halved until only single rows are lost.
        """
        expressions = [
            f"CAST({name} AS BLOB) AS {name}" if name in _TEXTS else name for name in columns
        ]
        sql = (
            f"SELECT {', '.join(expressions)} FROM {table} NOT INDEXED "
            "WHERE seq BETWEEN ? AND ? ORDER BY seq"
        )
        ranges = [(0, self._last)]
        while ranges:
            first, last = ranges.pop()
            try:
                for row in self._db.execute(sql, (first, last)):
                    yield row
                    first = row[0] + 1
            except _UNREADABLE as exc:
                if first >= last:
                    yield Lost(last, None, f"cannot read its page ({exc})")
                else:
                    middle = (first + last) // 2
                    ranges += [(middle + 1, last), (first, middle)]


# --- pages
#
# Every leaf page is read, even if no tree leads to it, to find rows that SQLite no longer finds. A
# leaf may contain rows of any table, and earlier states of a row, so the caller must recognize the
# rows that it needs and compare checksums. The format: https://sqlite.org/fileformat2.html

_LEAF = 13  # the first byte of a page that contains rows of a table
_HEADER = 100  # bytes before the first page's header
_PAGE_SIZE = slice(16, 18)
_PAGE_SIZES = (512, 1024, 2048, 8192, 16384, 32768)
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_FLOAT = 7
_MAX_COLUMNS = 100


class PageRow(NamedTuple):
    """A row's number and values; invalid UTF-8 in texts is decoded to surrogates."""

    number: int
    values: tuple[Any, ...]


def page_rows(path: Path) -> Iterator[PageRow]:
    """Yield all readable rows in all leaf pages; this process must not have the file open."""
    fd = os.open(path, os.O_RDONLY | (CREATING & ~os.O_CREAT))
    try:
        pages = _Pages(fd)
        for number in range(pages.count):
            yield from pages.rows(number)
    finally:
        os.close(fd)


class _Pages:
    def __init__(self, fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        size = int.from_bytes(os.read(fd, _HEADER)[_PAGE_SIZE], "big")
        self._fd = fd
        self._size = size if size in _PAGE_SIZES else 4096
        self._length = os.fstat(fd).st_size
        self.count = -(-self._length // self._size)

    def rows(self, number: int) -> Iterator[PageRow]:
        """Yield the rows in a page, if it is a leaf of a table; the first page has the number 0."""
        page = self._read(number)
        start = 0 if number else _HEADER
        if len(page) < self._size or page[start] != _LEAF:
            return
        cells = int.from_bytes(page[start + 3 : start + 5], "big")
        for offset in range(start + 8, min(start + 8 + 2 * cells, len(page) - 1), 2):
            try:
                yield self._row(page, int.from_bytes(page[offset : offset + 2], "big"))
            except (ValueError, IndexError, struct.error):
                continue  # not a row, or a damaged one

    def _read(self, number: int) -> bytes:
        os.lseek(self._fd, number * self._size, os.SEEK_SET)  # Windows has no pread
        return os.read(self._fd, self._size)

    def _row(self, page: bytes, offset: int) -> PageRow:
        length, offset = _varint(page, offset)
        number, offset = _varint(page, offset)
        if number >= 1 << 63:
            number -= 1 << 64
        return PageRow(number, _values(self._payload(page, offset, length)))

    def _payload(self, page: bytes, offset: int, length: int) -> bytes:
        """Return a row's content; a part that doesn't fit into its page is in overflow pages."""
        if length > self._length:
            raise ValueError
        most, least = self._size - 35, (self._size - 12) * 32 // 255 - 23
        local = length
        if length > most:
            local = least + (length - least) % (self._size - 4)
            if local > most:
                local = least
        end = offset + local
        payload = page[offset:end]
        next_page = 0
        if local < length:
            next_page = int.from_bytes(page[end : end + 4], "big")
        while len(payload) < length:
            part = b""
            if 1 <= next_page <= self.count:
                part = self._read(next_page - 1)
            if len(part) < 5:
                raise ValueError
            payload += part[4:]
            next_page = int.from_bytes(part[:4], "big")
        return payload[:length]


def _values(payload: bytes) -> tuple[Any, ...]:
    end, offset = _varint(payload, 0)
    kinds: list[int] = []
    while offset < end:
        kind, offset = _varint(payload, offset)
        kinds.append(kind)
        if len(kinds) > _MAX_COLUMNS:
            raise ValueError
    if offset != end:
        raise ValueError
    values: list[Any] = []
    for kind in kinds:
        value, offset = _value(payload, offset, kind)
        values.append(value)
    if offset != len(payload):
        raise ValueError
    return tuple(values)


def _value(payload: bytes, offset: int, kind: int) -> tuple[Any, int]:
    if kind == 0:
        return None, offset
    if kind in (8, 9):
        return kind - 8, offset
    if kind in (10, 11):
        raise ValueError
    length = 8
    if kind != _FLOAT:
        length = _INTEGERS.get(kind, (kind - 12) // 2)
    end = offset + length
    data = payload[offset:end]
    if len(data) < length:
        raise ValueError
    if kind == _FLOAT:
        return struct.unpack(">d", data)[0], end
    if kind in _INTEGERS:
        return int.from_bytes(data, "big", signed=True), end
    return (data.decode("utf-8", "surrogateescape") if kind % 2 else data), end


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode one of SQLite's variable-length numbers; return it and the offset after it."""
    value = 0
    for _ in range(8):
        byte = data[offset]
        offset += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, offset
    return value << 8 | data[offset], offset + 1
