"""Index of the files store: a SQLite store of the records in the files, which can be deleted at any
time.

It holds words, vectors and read counts, and for each file the stamp that it had when it was last
read. The first format of the store kept vectors and read counts in files of their own; they are
moved into the index once.
"""

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import SchemaTooNew, StoreDamaged
from memories.stores.files.connection import FORMER, Folder, Stamp
from memories.stores.files.log import Damage, Folded
from memories.stores.files.schema import file_name
from memories.stores.records import (
    Collection,
    Filter,
    Record,
    Ref,
    Space,
    immutable_parts,
    patch_for_copy,
    split_ends_first,
)
from memories.stores.sqlite import spaces
from memories.stores.sqlite.query import fetch
from memories.stores.sqlite.store import SQLiteStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALL = 1_000_000_000
_FORMER_PREFIX_BYTES = 16  # what a file of vectors begins with
_FORMER_HEADER = struct.Struct(
    "<16sII"
)  # the key of a record, the bytes of its vectors, and a checksum of both
_MOST_READS = 1_000  # no order depends on more


class FileState(NamedTuple):
    """State of a file when it was last read.

    Attributes:
        stamp: Its stamp then; None if there was no file.
        whole: How many bytes of it count.
        last: The time of its last event.
        damage: Why it can't be read.
    """

    stamp: Stamp | None = None
    whole: int = 0
    last: str = ""
    damage: Damage | None = None


class Index(SQLiteStore):
    """A SQLite store whose records are those of files."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one state of the store inside."""
        with self._translate_damage(), self._file.read():
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        with self._translate_damage(), super().transaction():
            yield

    @contextmanager
    def _translate_damage(self) -> Iterator[None]:
        try:
            yield
        except (StoreDamaged, SchemaTooNew) as exc:
            path = self._file.path
            if str(path) not in str(exc):
                raise
            raise StoreDamaged(
                f"{path} is damaged; remove {path.parent}, which loses no memory, and run: memory reembed"
            ) from exc

    def read_states(self, names: Iterable[str]) -> dict[str, FileState]:
        """Return the states of those files that were read before, by name."""
        keys = json.dumps([f"file:{name}" for name in names])
        sql = "SELECT name, value FROM meta WHERE name IN (SELECT value FROM json_each(?))"
        with self._file.read() as db:
            rows = fetch(db, sql, (keys,))
        return {
            name.removeprefix("file:"): _parse_state(*json.loads(value)) for name, value in rows
        }

    def files(self) -> list[str]:
        """Return the names of all files with a state."""
        with self._file.read() as db:
            rows = fetch(db, "SELECT name FROM meta WHERE name >= 'file:' AND name < 'file;'")
        return [name.removeprefix("file:") for (name,) in rows]

    def save_state(self, name: str, state: FileState | None) -> None:
        """Remember the state of a file; None marks it as uncertain until it is read again."""
        with self._file.write(durable=False) as db:
            if state == FileState():
                db.execute("DELETE FROM meta WHERE name = ?", (f"file:{name}",))
            else:
                value = json.dumps([*state] if state else [[0, 0, 0, 0]])
                db.execute(
                    "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)",
                    (f"file:{name}", value),
                )

    def created_by(self, refs: Iterable[Ref]) -> dict[Ref, str]:
        """Return the ids of the events that created records."""
        with self._file.read() as db:
            rows_of = {
                ref: fetch(db, "SELECT value FROM meta WHERE name = ?", (_event_key(ref),))
                for ref in refs
            }
        return {ref: rows[0][0] for ref, rows in rows_of.items() if rows}

    def name_events(self, ids: Iterable[tuple[Ref, str]]) -> None:
        """Remember the ids of the events that created records."""
        rows = [(_event_key(ref), event_id) for ref, event_id in ids]
        with self._file.write() as db:
            db.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", rows)

    def replace_file(self, collection: Collection, namespace: str, folded: Folded) -> None:
        """Set the records of a file to the result of its lines; unchanged texts keep vectors and
        counts.
        """
        with self._file.write() as db:
            where = Filter(collection, (namespace,), state="any")
            before = {record.ref: record for record in self.scan(where, limit=ALL)}
            after = {record.ref: record for record in folded.records.values()}
            same = {
                ref
                for ref in before.keys() & after.keys()
                if immutable_parts(before[ref]) == immutable_parts(after[ref])
            }
            twins = {(record.ref.group, record.text): record for record in before.values()}
            new = [record for ref, record in after.items() if ref not in same]
            copies = [(record, twins.get((record.ref.group, record.text))) for record in new]
            vectors = self.vectors([twin.ref for _, twin in copies if twin])
            stored = spaces.in_use(db)
            if (
                gone := set(self.refs(where)) - same
            ):  # what is damaged, too, so that it is as the lines have it
                self._drop(db, sorted(gone))
            patches = [patch_for_copy(after[ref], before[ref]) for ref in same]
            for batch in split_ends_first([patch for patch in patches if patch is not None]):
                self.patch(batch)
            self.append(
                [record._replace(accesses=twin.accesses if twin else 0) for record, twin in copies]
            )
            if stored and vectors:
                moved = {
                    record.ref: vectors[twin.ref]
                    for record, twin in copies
                    if twin and twin.ref in vectors
                }
                self.stage(space_named(*stored[:2]), moved)
            file = file_name(collection, namespace)
            db.execute(
                "DELETE FROM meta WHERE name > ? AND name < ?", (f"event:{file}:", f"event:{file};")
            )
            self.name_events(
                (Ref(collection, namespace, *place), own) for place, own in folded.ids.items()
            )

    def drop_other_stages(self, space: Space) -> None:
        """Drop the vectors staged for another space than this one."""
        with self._file.write() as db:
            rows = fetch(
                db,
                "SELECT value FROM meta WHERE name IN ('staged_dimension', 'staged_model') ORDER BY name",
            )
            if rows and [value for (value,) in rows] != [space.dimension, space.model]:
                spaces.drop_staged(db)

    def erasing(self) -> bool:
        """Return whether bytes of removed records may be left."""
        with self._file.read() as db:
            return bool(fetch(db, "SELECT 1 FROM meta WHERE name = 'erasing'"))

    def stored_space(self) -> Space | None:
        """Return the space of the vectors in use, without its settings for searches."""
        with self._file.read() as db:
            stored = spaces.in_use(db)
        return space_named(*stored[:2]) if stored else None


def space_named(model: str, dimension: int) -> Space:
    """Return a space to write vectors in, without settings for searches."""
    return Space(model, dimension, 0.0, 0.0, 0.0, 0.0, (0.0, 0.0))


def _event_key(ref: Ref) -> str:
    """Return the name in `meta` of the event that created a record."""
    return f"event:{file_name(ref.collection, ref.namespace)}:{ref.group}#{ref.position}"


def _parse_state(
    stamp: list[int] | None, whole: int = 0, last: str = "", damage: list[int | str] | None = None
) -> FileState:
    found = Damage(*damage) if damage else None  # type: ignore[arg-type]
    return FileState(Stamp(*stamp) if stamp else None, whole, last, found)


# --- the first format
# ------------------------------------------------------------------------------------------------


def former_space(folder: Folder) -> Space | None:
    """Return the space of the vectors in the first format; None if there are none, or its name
    can't be read.
    """
    try:
        model, dimension = json.loads(folder.read(FORMER, inner=True)[1])["used"]
    except (ValueError, TypeError, LookupError):
        return None
    if type(model) is not str or type(dimension) is not int or dimension <= 0:
        return None
    return space_named(model, dimension)


def former_vectors(
    folder: Folder, name: str, space: Space, records: Iterable[Record]
) -> "dict[Ref, NDArray[np.float32]]":
    """Return the vectors in the first format of those records of a file whose text is still the one
    embedded.
    """
    import numpy as np

    tag = blake2b(f"{space.model}\0{space.dimension}".encode(), digest_size=4).hexdigest()
    entries = dict(_former_entries(folder.read(f"{name}.{tag}.vectors", inner=True)[1]))
    vectors: dict[Ref, NDArray[np.float32]] = {}
    for record in records:
        text = f"{record.ref.group}\0{record.ref.position}\0{record.text}"
        data = entries.get(blake2b(text.encode(), digest_size=16).digest(), b"")
        if data and len(data) % (2 * space.dimension) == 0:
            rows = np.frombuffer(data, dtype="<f2").reshape(-1, space.dimension).astype(np.float32)
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            vectors[record.ref] = rows / np.maximum(lengths, np.float32(1e-12))
    return vectors


def _former_entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = _FORMER_PREFIX_BYTES
    while at + _FORMER_HEADER.size <= len(data):
        key, size, checksum = _FORMER_HEADER.unpack_from(data, at)
        at += _FORMER_HEADER.size + size
        part = data[at - size : at]
        if len(part) < size or zlib.crc32(key + part) != checksum:
            return  # cut short by a crash
        yield key, part


def former_accesses(folder: Folder, name: str) -> "Counter[tuple[str, int]]":
    """Return the read counts in the first format of the records of a file, by group and
    position.
    """
    counts: Counter[tuple[str, int]] = Counter()
    for line in folder.read(f"{name}.accesses", inner=True)[1].splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut short by a crash; it is only a statistic
        if (
            isinstance(entry, list)
            and [type(part) for part in entry] == [str, int, int]
            and entry[2] > 0
        ):
            group, position, count = entry
            counts[group, position] = min(_MOST_READS, counts[group, position] + count)
    return counts
