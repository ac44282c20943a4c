"""Vectors and counts of reads as the first format of the files store kept them: files beside the lines, per namespace.

The index has taken their place. What they hold is moved into it once; else a search would go by words until a reembed.
"""

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.stores.files.connection import FORMER, Folder
from memories.stores.records import Record, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NAME_BYTES = 16  # what a file of vectors begins with
_HEADER = struct.Struct("<16sII")  # the key of a record, the bytes of its vectors, and a checksum of both
_MOST_READS = 1_000  # no order depends on more


class Space(NamedTuple):
    """The model that made the vectors, and their dimension."""

    model: str
    dimension: int


def space_in(folder: Folder) -> Space | None:
    """Return the space of the vectors; None if there are none, or what names it can't be read."""
    try:
        model, dimension = json.loads(folder.read(FORMER, inner=True)[1])["used"]
    except (ValueError, TypeError, LookupError):
        return None
    return Space(model, dimension) if type(model) is str and type(dimension) is int and dimension > 0 else None


def vectors(folder: Folder, name: str, space: Space, records: Iterable[Record]) -> "dict[Ref, NDArray[np.float32]]":
    """Return the vectors of records of a file: of each that still has the text that they were made of."""
    import numpy as np

    tag = blake2b(f"{space.model}\0{space.dimension}".encode(), digest_size=4).hexdigest()
    kept = dict(_entries(folder.read(f"{name}.{tag}.vectors", inner=True)[1]))
    found: dict[Ref, NDArray[np.float32]] = {}
    for record in records:
        words = f"{record.ref.group}\0{record.ref.position}\0{record.text}"
        data = kept.get(blake2b(words.encode(), digest_size=16).digest(), b"")
        if data and len(data) % (2 * space.dimension) == 0:
            rows = np.frombuffer(data, dtype="<f2").reshape(-1, space.dimension).astype(np.float32)
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            found[record.ref] = rows / np.maximum(lengths, np.float32(1e-12))
    return found


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = _NAME_BYTES
    while at + _HEADER.size <= len(data):
        key, size, checksum = _HEADER.unpack_from(data, at)
        at += _HEADER.size + size
        part = data[at - size : at]
        if len(part) < size or zlib.crc32(key + part) != checksum:
            return  # cut short by a crash
        yield key, part


def accesses(folder: Folder, name: str) -> "Counter[tuple[str, int]]":
    """Return how often each record of a file was read, by its group and position."""
    counts: Counter[tuple[str, int]] = Counter()
    for line in folder.read(f"{name}.accesses", inner=True)[1].splitlines():
        group, position, count = _count(line)
        counts[group, position] = min(_MOST_READS, counts[group, position] + count)
    return counts


def _count(line: bytes) -> tuple[str, int, int]:
    found: Any
    try:
        found = json.loads(line)
    except ValueError:
        found = None  # cut short by a crash; a statistic
    whole = isinstance(found, list) and [type(part) for part in found] == [str, int, int] and found[2] > 0
    return (found[0], found[1], found[2]) if whole else ("", 0, 0)
