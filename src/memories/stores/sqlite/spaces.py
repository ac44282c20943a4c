"""The spaces of vectors in the SQLite store: which one is in use, which is staged, and the switch between them."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import apsw

from memories.errors import Conflict
from memories.stores.damage import Damaged
from memories.stores.protocol import other_space
from memories.stores.records import SEARCHED, Collection, Record, Space
from memories.stores.sqlite.counts import exchanging
from memories.stores.sqlite.query import READ, damage_noticed, fetch, records_of
from memories.stores.sqlite.schema import BLOCKS, STAGED, VECTORS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.sqlite.vectors import VectorIndex

Named = tuple[str, int, bool]  # a model, its dimension, and whether its codes are compact


def named(space: Space, *, compact: bool) -> Named:
    """Return what names the vectors of a space in a store."""
    return space.model, space.dimension, compact


def in_use(db: apsw.Connection) -> Named | None:
    """Return what names the vectors in the store, if it has any."""
    return _named(db, "")


def claim(db: apsw.Connection, space: Space, *, compact: bool) -> None:
    """Check that vectors of this space may be added; the first one decides for the store.

    Raises:
        EmbedderMismatch: The store's vectors are of another space.
    """
    stored = in_use(db)
    if stored is None:
        _name(db, "", named(space, compact=compact))
    elif stored[:2] != (space.model, space.dimension):
        raise other_space(*stored[:2], space)


def without(
    db: apsw.Connection, space: Named, collection: Collection, limit: int, damaged: Damaged, *, behind: int = 0
) -> dict[int, Record]:
    """Return records that have no vectors of this space, staged or in use, by their seq and in its order.

    Args:
        db: A connection inside a transaction.
        space: What names the vectors; see `named`.
        collection: Memories or turns.
        limit: At most this many.
        damaged: Takes what is left out.
        behind: Only those with a greater seq.
    """
    among = "r.pool IN (SELECT id FROM pool WHERE collection = ?) AND r.seq > ?"
    tables = {in_use(db): VECTORS, _named(db, "staged_"): STAGED}
    if space in tables:
        among += f" AND NOT EXISTS (SELECT 1 FROM {tables[space][collection]} v WHERE v.seq = r.seq)"
    found: dict[int, Record] = {}
    while len(found) < limit:
        # NOT INDEXED: the table is read in order until the limit; an index would be read as a whole and sorted.
        sql = f"SELECT r.seq FROM record r NOT INDEXED WHERE {among} ORDER BY r.seq LIMIT ?"
        seqs = [seq for (seq,) in fetch(db, sql, (collection, behind, limit - len(found)))]
        if not seqs:
            break
        behind = seqs[-1]
        rows = fetch(db, f"{READ} WHERE r.seq IN (SELECT value FROM json_each(?)) ORDER BY r.seq", (json.dumps(seqs),))
        found |= records_of(db, rows, damaged)
    return found


def stage(db: apsw.Connection, space: Named, vectors: "Mapping[Collection, Mapping[int, NDArray[np.float32]]]") -> None:
    """Keep vectors of records beside those in use; in use at once if the store has those of this space, or none.

    Args:
        db: A connection inside a transaction that writes.
        space: What names the vectors; see `named`.
        vectors: For each collection the vectors of each seq.
    """
    if in_use(db) is None:
        _name(db, "", space)
    if in_use(db) != space and _named(db, "staged_") != space:
        drop_staged(db)
        _name(db, "staged_", space)
    for collection, given in vectors.items():
        _index(space, collection).stage(db, given, in_use=in_use(db) == space)


def switch(db: apsw.Connection, space: Named, damaged: Damaged) -> None:
    """Replace the vectors in use by the staged ones, and build their blocks; damaged records may lack them.

    Raises:
        Conflict: Records have no vectors of this space yet.
    """
    left = sum(len(without(db, space, collection, 1, damaged)) for collection in SEARCHED)
    if left:
        raise Conflict(
            f"there are records without vectors of {space[0]}; run memory reembed again, it continues where it was"
        )
    if in_use(db) in (None, space):
        return
    if _named(db, "staged_") != space:
        drop_staged(db)  # of a third space, in a store without records
    with exchanging(db):
        for collection in SEARCHED:
            used, staged = VECTORS[collection], STAGED[collection]
            # Renamed, not copied: other writers wait meanwhile.
            db.execute(f"DROP TABLE {used}; ALTER TABLE {staged} RENAME TO {used}")
            db.execute(f"CREATE TABLE {staged} (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL, crc INTEGER)")
            db.execute(f"DELETE FROM {BLOCKS[collection]}")
            _index(space, collection).seal_all(db)
    db.execute("DELETE FROM meta WHERE name IN ('staged_model', 'staged_dimension', 'staged_compact')")
    _name(db, "", space)


def drop_staged(db: apsw.Connection, seqs: Sequence[int] | None = None) -> None:
    """Remove staged vectors, all of them or those of these records."""
    for table in STAGED.values():
        if seqs is None:
            db.execute(f"DELETE FROM {table}")
        else:
            db.executemany(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq in seqs])


def _index(space: Named, collection: Collection) -> "VectorIndex":
    from memories.stores.sqlite.quantize import Quantizer
    from memories.stores.sqlite.vectors import VectorIndex

    return VectorIndex(Quantizer(space[1], compact=space[2]), collection)


def _named(db: apsw.Connection, prefix: str) -> Named | None:
    names = [f"{prefix}{name}" for name in ("model", "dimension", "compact")]
    found = dict(fetch(db, "SELECT name, value FROM meta WHERE name IN (?, ?, ?)", names))
    with damage_noticed():
        return (found[names[0]], found[names[1]], bool(found.get(names[2]))) if found else None


def _name(db: apsw.Connection, prefix: str, space: Named) -> None:
    model, dimension, compact = space
    rows = [(f"{prefix}model", model), (f"{prefix}dimension", dimension)]
    if compact:
        rows.append((f"{prefix}compact", 1))
    else:
        db.execute("DELETE FROM meta WHERE name = ?", (f"{prefix}compact",))
    db.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", rows)
