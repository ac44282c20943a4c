"""The spaces of vectors in the SQLite store: which one is in use, which is staged, and the switch
between them.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import apsw

from memories.errors import Conflict, StoreDamaged
from memories.stores.damage import Damaged
from memories.stores.protocol import other_space
from memories.stores.records import SEARCHED, Collection, Finding, Record, Space
from memories.stores.sqlite.counts import exchanging
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

Named = tuple[str, int, bool]  # a model, its dimension, and whether its codes are compact
_KINDS: tuple[tuple[str, Mapping[Collection, str]], ...] = (("", VECTORS), ("staged_", STAGED))
_COUNTS = (
    "erasing",
    WORDS_EPOCH,
    *(f"{table}s_epoch" for table in BLOCKS.values()),
)  # the rows that count something
NO_MODEL = "which model made its vectors can't be read"
_NO_DIMENSION = "how long its vectors are can't be read"
MAKE_AGAIN = "make the vectors again with: memory reembed"
_MOST_DIMENSIONS = 1_000_000


def named(space: Space, *, compact: bool) -> Named:
    """Return what names the vectors of a space in a store."""
    return space.model, space.dimension, compact


def in_use(db: apsw.Connection) -> Named | None:
    """Return what names the vectors in the store, if it has any.

    Raises:
        StoreDamaged: What names them can't be read.
    """
    found = form_in_use(db)
    if found is not None and not found[0]:
        raise StoreDamaged(f"{db.filename} is damaged: {NO_MODEL}; {MAKE_AGAIN}")
    return found


def form_in_use(db: apsw.Connection) -> Named | None:
    """Return the same where only the codes have to be understood: an unreadable model is "".

    Raises:
        StoreDamaged: The dimension can't be read.
    """
    found = known(db)
    if found is not None and not found[1]:
        raise StoreDamaged(f"{db.filename} is damaged: {_NO_DIMENSION}; {FIX}")
    return found


def known(db: apsw.Connection, prefix: str = "") -> Named | None:
    """Return what names the vectors in use or, with the prefix `staged_`, staged; "" and 0 for what
    can't be read.
    """
    names = _names(prefix)
    found = dict(fetch(db, "SELECT name, value FROM meta WHERE name IN (?, ?, ?)", names))
    if not found:
        return None
    model, dimension = found.get(names[0]), found.get(names[1])
    length = dimension if type(dimension) is int and 0 < dimension <= _MOST_DIMENSIONS else 0
    return model if type(model) is str else "", length, bool(found.get(names[2]))


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
    db: apsw.Connection,
    space: Named,
    collection: Collection,
    limit: int,
    damaged: Damaged,
    *,
    behind: int = 0,
) -> dict[int, Record]:
    """Return records that have no vectors of this space, staged or in use, by their seq and in its
    order.

    Args:
        db: A connection inside a transaction.
        space: What names the vectors; see `named`.
        collection: Memories or turns.
        limit: At most this many.
        damaged: Takes what is left out.
        behind: Only those with a greater seq.
    """
    among = "r.pool IN (SELECT id FROM pool WHERE collection = ?) AND r.seq > ?"
    tables = {known(db, "staged_"): STAGED, known(db): VECTORS}
    if space in tables:
        among += (
            f" AND NOT EXISTS (SELECT 1 FROM {tables[space][collection]} v WHERE v.seq = r.seq)"
        )
    found: dict[int, Record] = {}
    while len(found) < limit:
        # NOT INDEXED: the table is read in order until the limit; an index would be read as a whole
        # and sorted.
        sql = f"SELECT r.seq FROM record r NOT INDEXED WHERE {among} ORDER BY r.seq LIMIT ?"
        seqs = [seq for (seq,) in fetch(db, sql, (collection, behind, limit - len(found)))]
        if not seqs:
            break
        behind = seqs[-1]
        rows = fetch(
            db,
            f"{READ} WHERE r.seq IN (SELECT value FROM json_each(?)) ORDER BY r.seq",
            (json.dumps(seqs),),
        )
        found |= records_of(db, rows, damaged)
    return found


def stage(
    db: apsw.Connection,
    space: Named,
    vectors: "Mapping[Collection, Mapping[int, NDArray[np.float32]]]",
) -> None:
    """Keep vectors of records beside those in use; in use at once if the store has those of this
    space, or none.

    Args:
        db: A connection inside a transaction that writes.
        space: What names the vectors; see `named`.
        vectors: For each collection the vectors of each seq.
    """
    if known(db) is None:
        _name(db, "", space)
    if known(db) != space and known(db, "staged_") != space:
        drop_staged(db)
        _name(db, "staged_", space)
    for collection, given in vectors.items():
        _index(space, collection).stage(db, given, in_use=known(db) == space)


def switch(db: apsw.Connection, space: Named, damaged: Damaged) -> None:
    """Replace the vectors in use by the staged ones, and build their blocks; damaged records may
    lack them.

    Raises:
        Conflict: Records have no vectors of this space yet.
    """
    left = sum(len(without(db, space, collection, 1, damaged)) for collection in SEARCHED)
    if left:
        raise Conflict(
            f"there are records without vectors of {space[0]}; run memory reembed again, it continues where it was"
        )
    if known(db) in (None, space):
        return
    if known(db, "staged_") != space:
        drop_staged(db)  # of a third space, in a store without records
    with exchanging(db):
        for collection in SEARCHED:
            used, staged = VECTORS[collection], STAGED[collection]
            # Renamed, not copied: other writers wait meanwhile.
            db.execute(f"DROP TABLE {used}; ALTER TABLE {staged} RENAME TO {used}")
            db.execute(
                f"CREATE TABLE {staged} (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL, crc INTEGER)"
            )
            db.execute(f"DELETE FROM {BLOCKS[collection]}")
            _index(space, collection).seal_all(db)
    db.execute(
        "DELETE FROM meta WHERE name IN ('staged_model', 'staged_dimension', 'staged_compact')"
    )
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


# --- damage
# ----------------------------------------------------------------------------------------------------------


def wrong(db: apsw.Connection) -> list[Finding]:
    """Return what is wrong with the rows of `meta`: with what names the vectors, and with what
    counts something.
    """
    sql = f"SELECT name FROM meta WHERE name IN ({', '.join('?' * len(_COUNTS))}) AND NOT ({COUNTED}) ORDER BY 1"
    found = [
        Finding(f"the number {name} is damaged", FIX, derived=True)
        for (name,) in fetch(db, sql, _COUNTS)
    ]
    for prefix, tables in _KINDS:
        space, form = known(db, prefix), _form(db, prefix, tables)
        if space is None or (space[0] and form == space[1:]):
            continue
        if prefix or form != space[1:]:
            which = "the staged vectors" if prefix else "the vectors"
            found.append(
                Finding(f"what is noted of {which} is not that of their codes", FIX, derived=True)
            )
        if not prefix and not space[0] and form is not None:
            found.append(Finding(NO_MODEL, MAKE_AGAIN))
    return found


def mend(db: apsw.Connection) -> None:
    """Mend these rows as far as the codes tell what was there; what they don't tell is dropped,
    with its vectors.
    """
    for (name,) in fetch(db, f"SELECT name FROM meta WHERE NOT ({COUNTED})"):
        if name in _COUNTS:
            count_epoch(db, name)
    for prefix, tables in _KINDS:
        space, form = known(db, prefix), _form(db, prefix, tables)
        if space is None or (form == space[1:] and (space[0] or not prefix)):
            continue
        if form is None or prefix:
            for table in tables.values():
                db.execute(f"DELETE FROM {table}")
            db.execute("DELETE FROM meta WHERE name IN (?, ?, ?)", _names(prefix))
        else:
            _note(db, prefix, dimension=form[0], compact=form[1])


def _form(
    db: apsw.Connection, prefix: str, tables: Mapping[Collection, str]
) -> tuple[int, bool] | None:
    """Return the dimension that codes have, and whether they are compact; as it is noted if that
    fits most of them.
    """
    noted = known(db, prefix)
    lengths: Counter[int] = Counter()
    for table in tables.values():
        sql = f"SELECT length(codes), count(*) FROM {table} WHERE typeof(codes) = 'blob' AND length(codes) > 0 GROUP BY 1"
        lengths.update(dict(fetch(db, sql)))
    if noted is None or (not lengths and not (noted[0] and noted[1])):
        return None
    _, dimension, compact = noted
    whole, [(usual, _)] = math.gcd(*lengths), lengths.most_common(1) or [(0, 0)]
    forms = [(dimension, compact), (dimension, not compact)] if dimension else []
    if not lengths:
        return forms[0]
    for length in (whole - SCALE_BYTES, usual - SCALE_BYTES):
        forms += [(8 * (length // COMPACT_BITS), True)] if compact else []
        forms += [(length, False)]
    for form in forms:
        size = code_bytes(form[0], compact=form[1])
        if (
            form[0] > 0
            and 2 * sum(count for length, count in lengths.items() if not length % size)
            > lengths.total()
        ):
            return form
    return None


def _name(db: apsw.Connection, prefix: str, space: Named) -> None:
    model, dimension, compact = space
    db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (f"{prefix}model", model))
    _note(db, prefix, dimension=dimension, compact=compact)


def _note(db: apsw.Connection, prefix: str, *, dimension: int, compact: bool) -> None:
    rows = [(f"{prefix}dimension", dimension)]
    if compact:
        rows.append((f"{prefix}compact", 1))
    else:
        db.execute("DELETE FROM meta WHERE name = ?", (f"{prefix}compact",))
    db.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", rows)


def _names(prefix: str) -> list[str]:
    return [f"{prefix}{name}" for name in ("model", "dimension", "compact")]
