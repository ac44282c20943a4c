"""The embedding spaces of the SQLite store: the one in use, the staged one, and the switch."""

import functools
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import apsw

from memories.errors import Conflict, StoreDamaged
from memories.stores.damage import Damaged
from memories.stores.protocol import other_space
from memories.stores.records import SEARCHED, Collection, Record, Ref, Space, require_space
from memories.stores.sqlite.errors import FIX
from memories.stores.sqlite.query import CODES_OF_REFS, READ, records_of, refs_json
from memories.stores.sqlite.rows import BLOCKS, STAGED, VECTORS, AddedRow, fetch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.sqlite.quantize import Quantizer
    from memories.stores.sqlite.vectors import VectorIndex


class StoredSpace(NamedTuple):
    """An embedding space as the rows of `meta` describe it.

    Attributes:
        model: The model's name; empty if it can't be read.
        dimension: The vectors' dimension; 0 if it can't be read.
        compact: Whether the vectors are stored in the smaller form.
    """

    model: str
    dimension: int
    compact: bool

    @property
    def form(self) -> tuple[int, bool]:
        """The vectors' dimension, and whether they are compact."""
        return self.dimension, self.compact


IN_USE, STAGED_PREFIX = "", "staged_"  # prefixes of the names of the spaces' rows in `meta`
NO_MODEL = "the model of its vectors can't be read"
_NO_DIMENSION = "the length of its vectors can't be read"
REEMBED = "embed again with: memory reembed"
_MAX_DIMENSION = 1_000_000


def storage_space(space: Space, *, compact: bool) -> StoredSpace:
    """Return a space as the store saves it, without the constants for searching."""
    return StoredSpace(space.model, space.dimension, compact)


def read_space(db: apsw.Connection, prefix: str = IN_USE) -> StoredSpace | None:
    """Return the space in use, or the staged one; None if there is none.

    Values that can't be read are empty or 0.
    """
    names = names_of(prefix)
    rows = dict(fetch(db, "SELECT name, value FROM meta WHERE name IN (?, ?, ?)", names))
    if not rows:
        return None
    model, dimension, compact = (rows.get(name) for name in names)
    if type(model) is not str:
        model = ""
    if type(dimension) is not int or not 0 < dimension <= _MAX_DIMENSION:
        dimension = 0
    return StoredSpace(model, dimension, bool(compact))


def space_in_use(db: apsw.Connection) -> StoredSpace | None:
    """Return the space of the store's vectors, if there are any.

    Raises:
        StoreDamaged: The space's rows can't be read.
    """
    space = form_in_use(db)
    if space is not None and not space.model:
        raise StoreDamaged(f"{db.filename} is damaged: {NO_MODEL}; {REEMBED}")
    return space


def form_in_use(db: apsw.Connection) -> StoredSpace | None:
    """Return the space in use, for decoding its vectors.

    Unlike `space_in_use`, this also works if the model's name can't be read.

    Raises:
        StoreDamaged: The dimension can't be read.
    """
    space = read_space(db)
    if space is not None and not space.dimension:
        raise StoreDamaged(f"{db.filename} is damaged: {_NO_DIMENSION}; {FIX}")
    return space


def ensure_space(db: apsw.Connection, space: Space, *, compact: bool) -> None:
    """Check that the store's vectors are in this space; a store without vectors begins to use it.

    Raises:
        EmbedderMismatch: The store's vectors are in a different space.
    """
    stored = space_in_use(db)
    if stored is None:
        _write_space(db, IN_USE, storage_space(space, compact=compact))
    else:
        refuse_other(stored, space)


def refuse_other(stored: StoredSpace, space: Space) -> None:
    """Check that the store's vectors are in this space.

    Raises:
        EmbedderMismatch: The store's vectors are in a different space.
    """
    if (stored.model, stored.dimension) != (space.model, space.dimension):
        raise other_space(stored.model, stored.dimension, space)


# --- reading and writing vectors


class StoredVectors:
    """The vectors in a store file, with an index for each collection."""

    def __init__(self, space: Space | None, *, compact: bool) -> None:
        """Initialize; nothing is read yet.

        Args:
            space: The space of the vectors to write and search; None in keyword-only mode.
            compact: Whether vectors are compact; this applies only to a store's first vectors.
        """
        self._space, self._compact = space, compact
        self._indexes: dict[tuple[Collection, int, bool], VectorIndex] = {}

    def insert(self, db: apsw.Connection, rows: Sequence[AddedRow]) -> None:
        """Add the vectors of records that were just added."""
        embedded: dict[Collection, list[tuple[int, NDArray[np.float32]]]] = {}
        for seq, _, record in rows:
            if record.vectors is not None:
                embedded.setdefault(record.ref.collection, []).append((seq, record.vectors))
        if embedded:
            ensure_space(db, require_space(self._space), compact=self._compact)
        for collection, vectors in embedded.items():
            index = self.index(db, collection)
            index.insert(db, vectors)
            index.seal(db, added=len(rows))

    def read(self, db: apsw.Connection, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """Return the vectors of records, without damaged ones; see `Store.vectors`."""
        vectors: dict[Ref, NDArray[np.float32]] = {}
        space = read_space(db)
        if space is None or not space.model or not space.dimension:
            return vectors  # there are none, or their description is damaged
        for collection, table in VECTORS.items():
            wanted_refs = [ref for ref in refs if ref.collection == collection]
            rows = fetch(db, CODES_OF_REFS.format(table=table), (refs_json(wanted_refs),))
            codes: dict[Ref, bytes] = {}
            for number, packed, crc in rows:
                if type(packed) is bytes and zlib.crc32(packed) == crc:
                    codes[wanted_refs[number]] = packed
            if codes:
                decoded = self.index(db, collection).quantizer.decode(list(codes.values()))
                vectors.update(zip(codes, decoded, strict=True))
        return vectors

    def index_to_search(self, db: apsw.Connection, collection: Collection) -> "VectorIndex | None":
        """Return the index to search; None if the store contains no vectors.

        Raises:
            EmbedderMismatch: The store's vectors are in a different space.
        """
        stored = space_in_use(db)
        if stored is None:
            return None
        refuse_other(stored, require_space(self._space))
        return self._index_of(stored, collection)

    def index(self, db: apsw.Connection, collection: Collection) -> "VectorIndex":
        """Return the index of the vectors in use, whichever space the store was opened with."""
        space = form_in_use(db)
        if space is None:
            space = storage_space(require_space(self._space), compact=self._compact)
        return self._index_of(space, collection)

    def _index_of(self, space: StoredSpace, collection: Collection) -> "VectorIndex":
        key = (collection, *space.form)
        if key not in self._indexes:
            self._indexes[key] = _index(space, collection)
        return self._indexes[key]


# --- staging and switching


def find_without(
    db: apsw.Connection,
    space: StoredSpace,
    collection: Collection,
    limit: int,
    damaged: Damaged,
    *,
    after: int = 0,
) -> dict[int, Record]:
    """Return the records that have no vectors in this space, keyed by `seq`, in ascending order.

    Args:
        db: A connection inside a transaction.
        space: The space.
        collection: Memories or turns.
        limit: The maximum number of records.
        damaged: Receives the damaged records, which are left out.
        after: Only records with a `seq` greater than this are returned.
    """
    condition = "r.pool IN (SELECT id FROM pool WHERE collection = ?) AND r.seq > ?"
    tables = {read_space(db, STAGED_PREFIX): STAGED, read_space(db): VECTORS}
    if space in tables:
        table = tables[space][collection]
        condition += f" AND NOT EXISTS (SELECT 1 FROM {table} v WHERE v.seq = r.seq)"
    # With NOT INDEXED, SQLite reads the table in order, up to the limit. Otherwise it would read an
    # index completely and sort it.
    sql = f"SELECT r.seq FROM record r NOT INDEXED WHERE {condition} ORDER BY r.seq LIMIT ?"
    records: dict[int, Record] = {}
    while len(records) < limit:
        seqs = [seq for (seq,) in fetch(db, sql, (collection, after, limit - len(records)))]
        if not seqs:
            break
        after = seqs[-1]
        read = f"{READ} WHERE r.seq IN (SELECT value FROM json_each(?)) ORDER BY r.seq"
        records.update(records_of(db, fetch(db, read, (json.dumps(seqs),)), damaged))
    return records


def stage(
    db: apsw.Connection,
    space: StoredSpace,
    vectors: "Mapping[Collection, Mapping[int, NDArray[np.float32]]]",
) -> None:
    """Add vectors of records to the vectors in use, or to the staged ones.

    If the space is the one in use, or the store has no vectors yet, they join those in use.

    Args:
        db: A connection inside a transaction that writes.
        space: The vectors' space.
        vectors: For each collection, the records' vectors, keyed by `seq`.
    """
    if read_space(db) is None:
        _write_space(db, IN_USE, space)
    if space not in (read_space(db), read_space(db, STAGED_PREFIX)):
        drop_staged_vectors(db)
        _write_space(db, STAGED_PREFIX, space)
    is_in_use = read_space(db) == space
    for collection, vectors_by_seq in vectors.items():
        _index(space, collection).stage(db, vectors_by_seq, in_use=is_in_use)


def switch(db: apsw.Connection, space: StoredSpace, damaged: Damaged) -> None:
    """Replace the vectors in use with the staged ones, and build the blocks of the new vectors.

    Only damaged records may lack staged vectors.

    Raises:
        Conflict: There are records without vectors in this space.
    """
    for collection in SEARCHED:
        if find_without(db, space, collection, 1, damaged):
            raise Conflict(
                f"there are records without vectors from {space.model}; run memory reembed again "
                "to continue where it stopped"
            )
    if read_space(db) in (None, space):
        return
    if read_space(db, STAGED_PREFIX) != space:
        drop_staged_vectors(db)  # the store is empty, and the staged vectors are in another space
    from memories.stores.sqlite.schema import suspend_counts

    with suspend_counts(db):
        for collection in SEARCHED:
            used, staged = VECTORS[collection], STAGED[collection]
            # Rename the table instead of copying it, because other writers are waiting.
            db.execute(f"DROP TABLE {used}; ALTER TABLE {staged} RENAME TO {used}")
            db.execute(
                f"CREATE TABLE {staged} (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL, crc INTEGER)"
            )
            db.execute(f"DELETE FROM {BLOCKS[collection]}")
            _index(space, collection).seal_all(db)
    db.execute("DELETE FROM meta WHERE name IN (?, ?, ?)", names_of(STAGED_PREFIX))
    _write_space(db, IN_USE, space)


def drop_staged_vectors(db: apsw.Connection, seqs: Sequence[int] | None = None) -> None:
    """Drop the staged vectors of the records with these `seqs`; by default, all staged vectors."""
    for table in STAGED.values():
        if seqs is None:
            db.execute(f"DELETE FROM {table}")
        else:
            db.executemany(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq in seqs])


def _index(space: StoredSpace, collection: Collection) -> "VectorIndex":
    from memories.stores.sqlite.vectors import VectorIndex

    return VectorIndex(_quantizer(*space.form), collection)


@functools.lru_cache(4)
def _quantizer(dimension: int, compact: bool) -> "Quantizer":
    """Return a shared quantizer; creating one for 1,024 dimensions takes up to 0.1 s."""
    from memories.stores.sqlite.quantize import Quantizer

    return Quantizer(dimension, compact=compact)


def _write_space(db: apsw.Connection, prefix: str, space: StoredSpace) -> None:
    sql = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
    db.execute(sql, (f"{prefix}model", space.model))
    write_form(db, prefix, space.form)


def write_form(db: apsw.Connection, prefix: str, form: tuple[int, bool]) -> None:
    """Write the dimension of the vectors, and whether they are compact."""
    dimension, compact = form
    _, dimension_name, compact_name = names_of(prefix)
    rows = [(dimension_name, dimension)]
    if compact:
        rows.append((compact_name, 1))
    else:
        db.execute("DELETE FROM meta WHERE name = ?", (compact_name,))
    db.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", rows)


def names_of(prefix: str) -> tuple[str, str, str]:
    """Return the names of the `meta` rows that describe a space."""
    return f"{prefix}model", f"{prefix}dimension", f"{prefix}compact"
