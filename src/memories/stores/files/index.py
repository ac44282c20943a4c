"""The index of the files store: a SQLite store of what the lines come to, which can be deleted at any time.

It has the words, vectors and counts of reads, and for each file the stamp that it had when it was read last.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from memories.errors import SchemaTooNew, StoreDamaged
from memories.stores.copies import change, ends_first, immutable
from memories.stores.files.connection import Stamp
from memories.stores.files.log import Damage, Folded
from memories.stores.files.schema import file_name
from memories.stores.records import Collection, Filter, Ref, Space
from memories.stores.sqlite import spaces
from memories.stores.sqlite.query import fetch
from memories.stores.sqlite.store import SQLiteStore

ALL = 1_000_000_000


class Known(NamedTuple):
    """What is known of a file.

    Attributes:
        stamp: When it was read last; None if there was no file.
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
        """Let all that is read inside be of one state."""
        with self._damage_told(), self._file.read():
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        with self._damage_told(), super().transaction():
            yield

    @contextmanager
    def _damage_told(self) -> Iterator[None]:
        try:
            yield
        except (StoreDamaged, SchemaTooNew) as exc:
            path = self._file.path
            if str(path) not in str(exc):
                raise
            raise StoreDamaged(
                f"{path} is damaged; remove {path.parent}, which loses no memory, and run: memory reembed"
            ) from exc

    def known(self, names: Iterable[str]) -> dict[str, Known]:
        """Return what is known of files."""
        wanted = json.dumps([f"file:{name}" for name in names])
        sql = "SELECT name, value FROM meta WHERE name IN (SELECT value FROM json_each(?))"
        with self._file.read() as db:
            rows = fetch(db, sql, (wanted,))
        return {name.removeprefix("file:"): _known(*json.loads(value)) for name, value in rows}

    def files(self) -> list[str]:
        """Return the names of all files that something is known of."""
        with self._file.read() as db:
            rows = fetch(db, "SELECT name FROM meta WHERE name >= 'file:' AND name < 'file;'")
        return [name.removeprefix("file:") for (name,) in rows]

    def know(self, name: str, known: Known | None) -> None:
        """Remember what is known of a file; None if nothing is certain until it is read again."""
        with self._file.write(durable=False) as db:
            if known == Known():
                db.execute("DELETE FROM meta WHERE name = ?", (f"file:{name}",))
            else:
                value = json.dumps([*known] if known else [[0, 0, 0, 0]])
                db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (f"file:{name}", value))

    def created_by(self, refs: Iterable[Ref]) -> dict[Ref, str]:
        """Return the events that created records."""
        with self._file.read() as db:
            found = {ref: fetch(db, "SELECT value FROM meta WHERE name = ?", (_name(ref),)) for ref in refs}
        return {ref: rows[0][0] for ref, rows in found.items() if rows}

    def name_events(self, ids: Iterable[tuple[Ref, str]]) -> None:
        """Remember the events that created records."""
        rows = [(_name(ref), own) for ref, own in ids]
        with self._file.write() as db:
            db.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", rows)

    def bring(self, collection: Collection, namespace: str, folded: Folded) -> None:
        """Make the records of a file what its lines come to; vectors and counts of what says the same are kept."""
        with self._file.write() as db:
            where = Filter(collection, (namespace,), state="any")
            before = {record.ref: record for record in self.scan(where, limit=ALL)}
            after = {record.ref: record for record in folded.records.values()}
            same = {ref for ref in before.keys() & after.keys() if immutable(before[ref]) == immutable(after[ref])}
            twins = {(record.ref.group, record.text): record for record in before.values()}
            new = [record for ref, record in after.items() if ref not in same]
            copies = [(record, twins.get((record.ref.group, record.text))) for record in new]
            vectors = self.vectors([twin.ref for _, twin in copies if twin])
            stored = spaces.in_use(db)
            if gone := set(self.refs(where)) - same:  # what is damaged, too, so that it is as the lines have it
                self._drop(db, sorted(gone))
            patches = [change(after[ref], before[ref]) for ref in same]
            for some in ends_first([patch for patch in patches if patch is not None]):
                self.patch(some)
            self.append([record._replace(accesses=twin.accesses if twin else 0) for record, twin in copies])
            if stored and vectors:
                kept = {record.ref: vectors[twin.ref] for record, twin in copies if twin and twin.ref in vectors}
                self.stage(space_named(*stored[:2]), kept)
            file = file_name(collection, namespace)
            db.execute("DELETE FROM meta WHERE name > ? AND name < ?", (f"event:{file}:", f"event:{file};"))
            self.name_events((Ref(collection, namespace, *where), own) for where, own in folded.ids.items())

    def drop_other_stages(self, space: Space) -> None:
        """Drop what was staged for another space than this one."""
        with self._file.write() as db:
            rows = fetch(db, "SELECT value FROM meta WHERE name IN ('staged_dimension', 'staged_model') ORDER BY name")
            if rows and [value for (value,) in rows] != [space.dimension, space.model]:
                spaces.drop_staged(db)

    def erasing(self) -> bool:
        """Return whether bytes of what was taken out may be left."""
        with self._file.read() as db:
            return bool(fetch(db, "SELECT 1 FROM meta WHERE name = 'erasing'"))

    def stored_space(self) -> Space | None:
        """Return the space of the vectors in use; what concerns searches is not known of it."""
        with self._file.read() as db:
            stored = spaces.in_use(db)
        return space_named(*stored[:2]) if stored else None


def space_named(model: str, dimension: int) -> Space:
    """Return a space that is only written in: what concerns searches is not known."""
    return Space(model, dimension, 0.0, 0.0, 0.0, 0.0, (0.0, 0.0))


def _name(ref: Ref) -> str:
    """Return what the event that created a record is kept under."""
    return f"event:{file_name(ref.collection, ref.namespace)}:{ref.group}#{ref.position}"


def _known(stamp: list[int] | None, whole: int = 0, last: str = "", damage: list[int | str] | None = None) -> Known:
    return Known(Stamp(*stamp) if stamp else None, whole, last, Damage(*damage) if damage else None)  # type: ignore[arg-type]
