"""What the files store keeps beside its lines and can lose without losing a memory: vectors and counts of reads.

Vectors are kept as 16-bit floats: a cosine is within 0.001 of the exact one, they are given back as they were taken,
and below some ten thousand records neither their size nor the time to compare all of them matters.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import SchemaTooNew, StoreDamaged
from memories.stores.files.folder import Folder, Stamp
from memories.stores.files.pool import Address, Entry
from memories.stores.records import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = 1
_SPACES, _ERASING = "spaces.json", "erasing"
_HEADER = struct.Struct("<16sII")  # key, bytes of the vectors, checksum of both
_NAME_BYTES = 16  # at the beginning of a file of vectors: drawn anew whenever it is written anew
_WORTH_SHORTENING = 1_000  # lines of counts, beside one for each record

Known = Mapping[bytes, bytes]  # the vectors of each key


class Named(NamedTuple):
    """What tells a space from others."""

    model: str
    dimension: int


class Spaces(NamedTuple):
    """The space whose vectors are searched, and the one that is prepared for a change, if there are any."""

    used: Named | None = None
    staged: Named | None = None


class _Read(NamedTuple):
    """A file of vectors as it was read: its name, up to which byte it is whole, and what it holds."""

    stamp: Stamp | None
    name: bytes
    whole: int
    known: Known


class Derived:
    """The derived files of one folder."""

    def __init__(self, folder: Folder) -> None:
        """Remember where they are; nothing is read yet."""
        self._folder = folder
        self._vectors: dict[str, _Read] = {}
        self._accesses: dict[str, tuple[Stamp | None, int, Mapping[Address, int]]] = {}
        self._spaces: tuple[Stamp | None, Spaces] = (None, Spaces())

    # --- spaces ----------------------------------------------------------------------------------------------------

    def spaces(self) -> Spaces:
        """Return the spaces that there are vectors of."""
        stamp = self._folder.stamp_inner(_SPACES)
        if stamp != self._spaces[0]:
            stamp, data = self._folder.read_inner(_SPACES)
            self._spaces = stamp, self._parse_spaces(data) if stamp else Spaces()
        return self._spaces[1] if stamp else Spaces()

    def _parse_spaces(self, data: bytes) -> Spaces:
        file = self._folder.inner / _SPACES
        try:
            found = json.loads(data)
            if found["format"] > FORMAT:
                raise SchemaTooNew(f"{file} was written by a newer program; upgrade memories; nothing was touched")
            used, staged = (found[name] and Named(str(found[name][0]), int(found[name][1])) for name in Spaces._fields)
        except (ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                f"{file} is damaged; remove {self._folder.inner}, which loses no memory, and run memory reembed"
            ) from exc
        return Spaces(used, staged)

    def save_spaces(self, spaces: Spaces) -> None:
        """Search by these spaces from now on, and remove the vectors of all others."""
        self._folder.put(_SPACES, json.dumps({"format": FORMAT, **spaces._asdict()}).encode())
        self._folder.discard(self._strays())

    def _strays(self) -> list[str]:
        """Return the files of vectors of no space that counts."""
        kept = tuple(f".{_tag(space)}.vectors" for space in self.spaces() if space)
        return [name for name in self._folder.inner_names() if name.endswith(".vectors") and not name.endswith(kept)]

    # --- vectors ---------------------------------------------------------------------------------------------------

    def vectors(self, name: str, space: Named | None) -> Known:
        """Return the vectors of a space for the records of a file."""
        return {} if space is None else self._read_vectors(_vectors_file(name, space)).known

    def _read_vectors(self, file: str) -> _Read:
        last = self._vectors.get(file, _Read(None, b"", 0, {}))
        stamp = self._folder.stamp_inner(file)
        if stamp == last.stamp:
            return last
        stamp, data = self._folder.read_inner(file)
        name = data[:_NAME_BYTES]
        grown = name == last.name and len(data) >= last.whole > 0
        added, whole = _parse_vectors(data, last.whole if grown else _NAME_BYTES)
        found = _Read(stamp, name, whole, {**last.known, **added} if grown else added)
        self._vectors[file] = found
        return found

    def save_vectors(self, name: str, space: Named, added: Known) -> None:
        """Keep more vectors for the records of a file."""
        file = _vectors_file(name, space)
        last = self._read_vectors(file)
        if last.stamp is None or last.stamp.size < _NAME_BYTES:
            self._folder.put(file, _pack(added))
            return
        if last.stamp.size > last.whole:
            self._folder.cut(file, last.whole)  # what a crash has left
        data = _pack_entries(added)
        self._folder.add(file, data, flush=True)
        stamp = self._folder.stamp_inner(file)
        if stamp is not None and stamp.size == last.whole + len(data):
            self._vectors[file] = _Read(stamp, last.name, stamp.size, {**last.known, **added})

    # --- counts of reads -------------------------------------------------------------------------------------------

    def accesses(self, name: str) -> Mapping[Address, int]:
        """Return how often the records of a file were read."""
        file = _accesses_file(name)
        stamp = self._folder.stamp_inner(file)
        last = self._accesses.get(file)
        if last is None or last[0] != stamp:
            stamp, data = self._folder.read_inner(file)
            last = self._accesses[file] = stamp, data.count(b"\n"), _parse_accesses(data)
        return last[2]

    def count_accesses(self, name: str, reads: Sequence[tuple[Address, int]]) -> None:
        """Count how often each was read."""
        file = _accesses_file(name)
        counts = dict(self.accesses(name))
        stamp, lines, _ = self._accesses[file]
        for address, count in reads:
            counts[address] = counts.get(address, 0) + count
        if lines > _WORTH_SHORTENING + len(counts):
            self._folder.put(file, _accesses_lines(counts.items()))
            return
        data = _accesses_lines(reads)
        self._folder.add(file, data, flush=False)
        now = self._folder.stamp_inner(file)
        if now is not None and now.size == (stamp.size if stamp else 0) + len(data):
            self._accesses[file] = now, lines + len(reads), counts

    # --- erasing ---------------------------------------------------------------------------------------------------

    @property
    def erasing(self) -> bool:
        """Whether a removal was cut short."""
        return self._folder.stamp_inner(_ERASING) is not None

    def begin_erasing(self) -> None:
        """Remember that a removal has begun."""
        self._folder.put(_ERASING, b"")

    def erase(self, name: str, entries: Iterable[Entry]) -> None:
        """Forget what is kept for a file's records other than these."""
        entries = list(entries)
        keys, addresses = {entry.vector_key for entry in entries}, {entry.address for entry in entries}
        counts = self.accesses(name)
        if counts.keys() - addresses:
            left = [(address, count) for address, count in counts.items() if address in addresses]
            self._folder.put(_accesses_file(name), _accesses_lines(left))
        for space in filter(None, self.spaces()):
            file = _vectors_file(name, space)
            last = self._read_vectors(file)
            if last.stamp is not None:
                known = {key: vectors for key, vectors in last.known.items() if key in keys}
                self._folder.put(file, _pack(known))

    def drop(self, name: str) -> None:
        """Remove all that is kept for a file's records."""
        kept = [f"{name}.{_tag(space)}.vectors" for space in self.spaces() if space]
        self._folder.discard([*kept, _accesses_file(name)])

    def end_erasing(self) -> None:
        """Remove what crashes have left, and remember that nothing of what was removed is left."""
        self._folder.discard([*self._folder.scratch(), *self._strays(), _ERASING])


# --- vectors as bytes ------------------------------------------------------------------------------------------------


def named(space: Space) -> Named:
    """Return what tells a space from others."""
    return Named(space.model, space.dimension)


def encode(vectors: "NDArray[np.float32]") -> bytes:
    """Return unit vectors, shape (windows, dimension), as they are kept."""
    return vectors.astype("<f2").tobytes()


def decode(kept: bytes, space: Named) -> "NDArray[np.float32]":
    """Return kept vectors, shape (windows, dimension), of unit length."""
    import numpy as np

    vectors = np.frombuffer(kept, dtype="<f2").reshape(-1, space.dimension).astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = vectors / np.maximum(lengths, np.float32(1e-12))
    return unit


def similarities(kept: Sequence[bytes | None], query: "NDArray[np.float32]", space: Named) -> "NDArray[np.float64]":
    """Return the cosine of each one's best window with a unit query; NaN for what has no vectors."""
    import numpy as np

    result = np.full(len(kept), np.nan)
    size = 2 * space.dimension
    counts = np.array([len(vectors or b"") // size for vectors in kept], dtype=np.int64)
    joined = b"".join(filter(None, kept))
    if joined:
        scores = np.frombuffer(joined, dtype="<f2").reshape(-1, space.dimension).astype(np.float32) @ query
        having = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[having])[:-1]])
        result[having] = np.maximum.reduceat(scores, starts)
    return result


def _pack(known: Known) -> bytes:
    """Return a whole file of vectors."""
    return os.urandom(_NAME_BYTES) + _pack_entries(known)


def _pack_entries(known: Known) -> bytes:
    parts: list[bytes] = []
    for key, vectors in known.items():
        parts += (_HEADER.pack(key, len(vectors), zlib.crc32(key + vectors)), vectors)
    return b"".join(parts)


def _parse_vectors(data: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    """Return what a file of vectors holds from a byte on, and up to which byte it is whole."""
    found: dict[bytes, bytes] = {}
    while at + _HEADER.size <= len(data):
        key, size, checksum = _HEADER.unpack_from(data, at)
        vectors = data[at + _HEADER.size : at + _HEADER.size + size]
        if len(vectors) < size or zlib.crc32(key + vectors) != checksum:
            break
        found[key] = vectors
        at += _HEADER.size + size
    return found, at


def _parse_accesses(data: bytes) -> dict[Address, int]:
    counts: dict[Address, int] = {}
    for line in data.split(b"\n")[:-1]:
        try:
            group, position, count = json.loads(line)
            counts[group, position] = counts.get((group, position), 0) + count
        except (ValueError, TypeError):
            continue  # a statistic, cut short by a crash
    return counts


def _accesses_lines(counts: Iterable[tuple[Address, int]]) -> bytes:
    return "".join(f"{json.dumps([*address, count])}\n" for address, count in counts).encode()


def _vectors_file(name: str, space: Named) -> str:
    return f"{name}.{_tag(space)}.vectors"


def _accesses_file(name: str) -> str:
    return f"{name}.accesses"


def _tag(space: Named) -> str:
    return blake2b(f"{space.model}\0{space.dimension}".encode(), digest_size=4).hexdigest()
