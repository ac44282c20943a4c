"""The index of a files store: a SQLite store with the records from its files.

The index can be deleted at any time. It contains the records' words, vectors and read counts, and
the stamp that each file had when it was last read.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import SchemaTooNew, StoreDamaged
from memories.stores.files.connection import Stamp
from memories.stores.files.log import Damage, Folded, file_name
from memories.stores.records import (
    Collection,
    Filter,
    Patch,
    Record,
    Ref,
    Space,
    immutable_parts,
    patch_for_copy,
    split_ends_first,
)
from memories.stores.sqlite import spaces
from memories.stores.sqlite.rows import fetch
from memories.stores.sqlite.store import SQLiteStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_LIMIT = 1_000_000_000


class FileState(NamedTuple):
    """A file's state when it was last read.

    Attributes:
        stamp: The file's stamp; None if the file didn't exist.
        size: The number of valid bytes; see `Parsed`.
        last: The time of the file's last event.
        damage: Why the file can't be read; None if it can.
    """

    stamp: Stamp | None = None
    size: int = 0
    last: str = ""
    damage: Damage | None = None


class Index(SQLiteStore):
    """A SQLite store of the records in the files."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let all reads inside the context see the same snapshot of the index."""
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
                f"{path} is damaged; remove {path.parent} (no memory is lost) and run: "
                "memory reembed"
            ) from exc

    def read_states(self, names: Iterable[str]) -> dict[str, FileState]:
        """Return the states of the files that were read earlier, keyed by name."""
        keys = json.dumps([f"file:{name}" for name in names])
        sql = "SELECT name, value FROM meta WHERE name IN (SELECT value FROM json_each(?))"
        with self._file.read() as db:
            rows = fetch(db, sql, (keys,))
        return {
            name.removeprefix("file:"): _parse_state(*json.loads(value)) for name, value in rows
        }

    def list_files(self) -> list[str]:
        """Return the names of the files whose states are saved."""
        with self._file.read() as db:
            rows = fetch(db, "SELECT name FROM meta WHERE name >= 'file:' AND name < 'file;'")
        return [name.removeprefix("file:") for (name,) in rows]

    def save_state(self, name: str, state: FileState | None) -> None:
        """Save a file's state; None marks the file as changed, so that it is read again."""
        with self._file.write(durable=False) as db:
            if state == FileState():
                db.execute("DELETE FROM meta WHERE name = ?", (f"file:{name}",))
            else:
                value = json.dumps([*state] if state else [[0, 0, 0, 0]])
                db.execute(
                    "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)",
                    (f"file:{name}", value),
                )

    def read_event_ids(self, refs: Iterable[Ref]) -> dict[Ref, str]:
        """Return, for each of these records, the id of the event that created it."""
        ids = {}
        with self._file.read() as db:
            for ref in refs:
                rows = fetch(db, "SELECT value FROM meta WHERE name = ?", (_event_key(ref),))
                if rows:
                    ids[ref] = rows[0][0]
        return ids

    def save_event_ids(self, ids: Iterable[tuple[Ref, str]]) -> None:
        """Save, for each of these records, the id of the event that created it."""
        rows = [(_event_key(ref), event_id) for ref, event_id in ids]
        with self._file.write() as db:
            db.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", rows)

    def replace_file(self, collection: Collection, namespace: str, folded: Folded) -> None:
        """Replace a file's records. If a text is unchanged, its vectors and read count are kept."""
        with self._file.write() as db:
            where = Filter(collection, (namespace,), state="any")
            before = {record.ref: record for record in self.scan(where, limit=NO_LIMIT)}
            unchanged: set[Ref] = set()
            patches: list[Patch] = []
            new: list[Record] = []
            for record in folded.records.values():
                ref = record.ref
                if ref not in before or immutable_parts(before[ref]) != immutable_parts(record):
                    new.append(record)
                    continue
                unchanged.add(ref)
                patch = patch_for_copy(record, before[ref])
                if patch is not None:
                    patches.append(patch)
            # The previous records, keyed by text. A record that has a new position keeps its read
            # count and vectors.
            twins = {(record.ref.group, record.text): record for record in before.values()}
            copies = [(record, twins.get((record.ref.group, record.text))) for record in new]
            vectors = self.vectors([twin.ref for _, twin in copies if twin])
            # `refs` includes damaged records, which are replaced too.
            replaced = set(self.refs(where)) - unchanged
            if replaced:
                self._drop(db, sorted(replaced))
            for batch in split_ends_first(patches):
                self.patch(batch)
            self.append(
                [record._replace(accesses=twin.accesses if twin else 0) for record, twin in copies]
            )
            space = self.stored_space()
            if space and vectors:
                copied_vectors: dict[Ref, NDArray[np.float32]] = {}
                for record, twin in copies:
                    if twin and twin.ref in vectors:
                        copied_vectors[record.ref] = vectors[twin.ref]
                self.stage(space, copied_vectors)
            name = file_name(collection, namespace)
            db.execute(
                "DELETE FROM meta WHERE name > ? AND name < ?", (f"event:{name}:", f"event:{name};")
            )
            self.save_event_ids(
                (Ref(collection, namespace, *address), event_id)
                for address, event_id in folded.ids.items()
            )

    def is_erasing(self) -> bool:
        """Return whether the files may still contain bytes of removed records."""
        with self._file.read() as db:
            return bool(fetch(db, "SELECT 1 FROM meta WHERE name = 'erasing'"))

    def stored_space(self) -> Space | None:
        """Return the space of the vectors in use; only its model and dimension are known."""
        with self._file.read() as db:
            stored = spaces.space_in_use(db)
        if stored is None:
            return None
        model, dimension = stored[:2]
        return Space(model, dimension, 0.0, 0.0, 0.0, 0.0, (0.0, 0.0))


def _event_key(ref: Ref) -> str:
    """Return the key in `meta` under which the id of a record's first event is saved."""
    return f"event:{file_name(ref.collection, ref.namespace)}:{ref.group}#{ref.position}"


def _parse_state(
    stamp: list[int] | None, size: int = 0, last: str = "", damage: tuple[int, str] | None = None
) -> FileState:
    return FileState(
        Stamp(*stamp) if stamp else None, size, last, Damage(*damage) if damage else None
    )
