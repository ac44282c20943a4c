"""The embedding spaces of the SQLite store: the one in use, the staged one, and the switch."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import apsw

from memories.errors import Conflict, StoreDamaged
from memories.stores.damage import Damaged
from memories.stores.protocol import other_space
from memories.stores.records import SEARCHED, Collection, Finding, Record, Space
from memories.stores.sqlite import counts
from memories.stores.sqlite.errors import FIX
from memories.stores.sqlite.query import READ, fetch, records_of
from memories.stores.sqlite.schema import (
    BLOCKS,
    COMPACT_BITS,
    COUNTED,
    SCALE_BYTES,
    STAGED,
    VECTORS,
    WORDS_EPOCH,
    code_bytes,
    count_epoch,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.sqlite.vectors import VectorIndex


class StoredSpace(NamedTuple):
    """A space as the rows of `meta` describe it.

    Attributes:
        model: The name of the model; empty if it can't be read.
        dimension: The length of a vector; 0 if it can't be read.
        compact: Whether the codes are compact.
    """

    model: str
    dimension: int
    compact: bool

    @property
    def form(self) -> tuple[int, bool]:
        """The dimension of the codes and whether they are compact."""
        return self.dimension, self.compact


IN_USE, STAGED_PREFIX = "", "staged_"  # before the names of the rows of `meta`
_TABLES: tuple[tuple[str, Mapping[Collection, str]], ...] = (
    (IN_USE, VECTORS),
    (STAGED_PREFIX, STAGED),
)
# The rows of `meta` that count something.
_COUNTS = ("erasing", WORDS_EPOCH, *(f"{table}s_epoch" for table in BLOCKS.values()))
_NO_MODEL = "the model of its vectors can't be read"
_NO_DIMENSION = "the length of its vectors can't be read"
_REEMBED = "embed again with: memory reembed"
_MAX_DIMENSION = 1_000_000


def as_stored(space: Space, *, compact: bool) -> StoredSpace:
    """Return a space as it is stored."""
    return StoredSpace(space.model, space.dimension, compact)


def read_space(db: apsw.Connection, prefix: str = IN_USE) -> StoredSpace | None:
    """Return the space in use, or the staged one, as far as it can be read; None without one."""
    names = _names(prefix)
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
    """Return the space of the vectors in the store, if it has any.

    Raises:
        StoreDamaged: Its rows can't be read.
    """
    space = form_in_use(db)
    if space is not None and not space.model:
        raise StoreDamaged(f"{db.filename} is damaged: {_NO_MODEL}; {_REEMBED}")
    return space


def form_in_use(db: apsw.Connection) -> StoredSpace | None:
    """Return the same for decoding vectors, which doesn't need the model.

    Raises:
        StoreDamaged: The dimension can't be read.
    """
    space = read_space(db)
    if space is not None and not space.dimension:
        raise StoreDamaged(f"{db.filename} is damaged: {_NO_DIMENSION}; {FIX}")
    return space


def claim(db: apsw.Connection, space: Space, *, compact: bool) -> None:
    """Check that vectors of this space may be added; the first one decides for the store.

    Raises:
        EmbedderMismatch: The store's vectors are of another space.
    """
    stored = space_in_use(db)
    if stored is None:
        _write_space(db, IN_USE, as_stored(space, compact=compact))
    elif (stored.model, stored.dimension) != (space.model, space.dimension):
        raise other_space(stored.model, stored.dimension, space)


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
    """Return records without vectors of this space, staged or in use, by their seq and in order.

    Args:
        db: A connection inside a transaction.
        space: The space.
        collection: Memories or turns.
        limit: At most this many.
        damaged: Receives the damaged records, which are left out.
        after: Only records with a greater seq.
    """
    condition = "r.pool IN (SELECT id FROM pool WHERE collection = ?) AND r.seq > ?"
    tables = {read_space(db, STAGED_PREFIX): STAGED, read_space(db): VECTORS}
    if space in tables:
        table = tables[space][collection]
        condition += f" AND NOT EXISTS (SELECT 1 FROM {table} v WHERE v.seq = r.seq)"
    # NOT INDEXED: the table is read in order up to the limit; an index would be read as a whole and
    # sorted.
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
    """Add vectors of records, staged or in use.

    They are in use at once if the store has vectors of this space, or none.

    Args:
        db: A connection inside a transaction that writes.
        space: The space.
        vectors: For each collection the vectors of each seq.
    """
    if read_space(db) is None:
        _write_space(db, IN_USE, space)
    if space not in (read_space(db), read_space(db, STAGED_PREFIX)):
        drop_staged(db)
        _write_space(db, STAGED_PREFIX, space)
    is_in_use = read_space(db) == space
    for collection, vectors_by_seq in vectors.items():
        _index(space, collection).stage(db, vectors_by_seq, in_use=is_in_use)


def switch(db: apsw.Connection, space: StoredSpace, damaged: Damaged) -> None:
    """Replace the vectors in use by the staged ones, and build their blocks.

    Damaged records may lack them.

    Raises:
        Conflict: Records have no vectors of this space yet.
    """
    for collection in SEARCHED:
        if find_without(db, space, collection, 1, damaged):
            raise Conflict(
                f"there are records without vectors of {space.model}; run memory reembed again, it "
                "continues where it was"
            )
    if read_space(db) in (None, space):
        return
    if read_space(db, STAGED_PREFIX) != space:
        drop_staged(db)  # of a third space, in a store without records
    with counts.suspend(db):
        for collection in SEARCHED:
            used, staged = VECTORS[collection], STAGED[collection]
            # Renamed, not copied: other writers wait meanwhile.
            db.execute(f"DROP TABLE {used}; ALTER TABLE {staged} RENAME TO {used}")
            db.execute(
                f"CREATE TABLE {staged} (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL, crc INTEGER)"
            )
            db.execute(f"DELETE FROM {BLOCKS[collection]}")
            _index(space, collection).seal_all(db)
    db.execute("DELETE FROM meta WHERE name IN (?, ?, ?)", _names(STAGED_PREFIX))
    _write_space(db, IN_USE, space)


def drop_staged(db: apsw.Connection, seqs: Sequence[int] | None = None) -> None:
    """Remove staged vectors, all of them or those of these records."""
    for table in STAGED.values():
        if seqs is None:
            db.execute(f"DELETE FROM {table}")
        else:
            db.executemany(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq in seqs])


def _index(space: StoredSpace, collection: Collection) -> "VectorIndex":
    from memories.stores.sqlite.quantize import Quantizer
    from memories.stores.sqlite.vectors import VectorIndex

    return VectorIndex(Quantizer(space.dimension, compact=space.compact), collection)


def _write_space(db: apsw.Connection, prefix: str, space: StoredSpace) -> None:
    sql = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
    db.execute(sql, (f"{prefix}model", space.model))
    _write_form(db, prefix, space.form)


def _write_form(db: apsw.Connection, prefix: str, form: tuple[int, bool]) -> None:
    dimension, compact = form
    _, dimension_name, compact_name = _names(prefix)
    rows = [(dimension_name, dimension)]
    if compact:
        rows.append((compact_name, 1))
    else:
        db.execute("DELETE FROM meta WHERE name = ?", (compact_name,))
    db.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", rows)


def _names(prefix: str) -> tuple[str, str, str]:
    return f"{prefix}model", f"{prefix}dimension", f"{prefix}compact"


# --- damage


def find_problems(db: apsw.Connection) -> list[Finding]:
    """Return the damaged rows of `meta`: those that describe the vectors or count something."""
    names = ", ".join("?" * len(_COUNTS))
    sql = f"SELECT name FROM meta WHERE name IN ({names}) AND NOT ({COUNTED}) ORDER BY 1"
    findings = [
        Finding(f"the number {name} is damaged", FIX, derived=True)
        for (name,) in fetch(db, sql, _COUNTS)
    ]
    for prefix, tables in _TABLES:
        space, form = read_space(db, prefix), _detect_form(db, prefix, tables)
        if space is None or (space.model and form == space.form):
            continue
        if prefix or form != space.form:
            which = "the staged vectors" if prefix else "the vectors"
            what = f"the description of {which} does not match their codes"
            findings.append(Finding(what, FIX, derived=True))
        if not prefix and not space.model and form is not None:
            findings.append(Finding(_NO_MODEL, _REEMBED))
    return findings


def repair(db: apsw.Connection) -> None:
    """Repair these rows by what the codes reveal; drop vectors whose form can't be detected."""
    for (name,) in fetch(db, f"SELECT name FROM meta WHERE NOT ({COUNTED})"):
        if name in _COUNTS:
            count_epoch(db, name)
    for prefix, tables in _TABLES:
        space, form = read_space(db, prefix), _detect_form(db, prefix, tables)
        if space is None or (form == space.form and (space.model or not prefix)):
            continue
        if form is None or prefix:
            for table in tables.values():
                db.execute(f"DELETE FROM {table}")
            db.execute("DELETE FROM meta WHERE name IN (?, ?, ?)", _names(prefix))
        else:
            _write_form(db, prefix, form)


def _detect_form(
    db: apsw.Connection, prefix: str, tables: Mapping[Collection, str]
) -> tuple[int, bool] | None:
    """Return the dimension of most codes and whether they are compact; None if no form fits.

    The stored form comes first.
    """
    space = read_space(db, prefix)
    if space is None:
        return None
    lengths = _count_code_lengths(db, tables)
    if not lengths:
        return space.form if space.model and space.dimension else None
    for dimension, compact in _possible_forms(space, lengths):
        if dimension <= 0:
            continue
        size = code_bytes(dimension, compact=compact)
        fitting = sum(count for length, count in lengths.items() if length % size == 0)
        if 2 * fitting > lengths.total():
            return dimension, compact
    return None


def _count_code_lengths(db: apsw.Connection, tables: Mapping[Collection, str]) -> Counter[int]:
    lengths: Counter[int] = Counter()
    for table in tables.values():
        sql = (
            f"SELECT length(codes), count(*) FROM {table} "
            "WHERE typeof(codes) = 'blob' AND length(codes) > 0 GROUP BY 1"
        )
        lengths.update(dict(fetch(db, sql)))
    return lengths


def _possible_forms(space: StoredSpace, lengths: Counter[int]) -> list[tuple[int, bool]]:
    """Return the stored form, then those that would give codes of these lengths."""
    forms: list[tuple[int, bool]] = []
    if space.dimension:
        forms += [space.form, (space.dimension, not space.compact)]
    [(usual, _)] = lengths.most_common(1)
    for length in (math.gcd(*lengths) - SCALE_BYTES, usual - SCALE_BYTES):
        if space.compact:
            forms.append((8 * (length // COMPACT_BITS), True))
        forms.append((length, False))
    return forms
