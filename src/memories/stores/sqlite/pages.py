"""Rows of a database file read from its pages alone, for what SQLite no longer finds: https://sqlite.org/fileformat2.html.

Every leaf of a table is read, whether a tree leads to it or not. So there may be rows of any table, and states of a row
that were replaced since: the caller has to know what it looks for, and to compare checksums.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import CREATING

_LEAF = 13  # the first byte of a page with rows of a table
_HEADER = 100  # bytes before the first page's own
_PAGE_SIZE = slice(16, 18)
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_MAX_COLUMNS = 100


class Row(NamedTuple):
    """A row: its number, and the values of its columns. Texts that are not UTF-8 have surrogates."""

    number: int
    values: tuple[Any, ...]


def rows(path: Path) -> Iterator[Row]:
    """Yield every row that can be read from a leaf; nobody may have the file open in this process."""
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

    def rows(self, number: int) -> Iterator[Row]:
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

    def _row(self, page: bytes, at: int) -> Row:
        length, at = _varint(page, at)
        number, at = _varint(page, at)
        return Row(number - (1 << 64) if number >= 1 << 63 else number, _values(self._payload(page, at, length)))

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
