"""Vectors in the PostgreSQL store: a table for each space, the switch to another, and search.

A small number of rows is scored exactly. A larger number is searched with an HNSW index of pgvector
on half-precision vectors.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import Conflict, StoreError
from memories.stores.damage import Damaged
from memories.stores.postgres import counts
from memories.stores.postgres.connection import Server
from memories.stores.postgres.query import (
    COUNTED,
    RECORDS,
    SPACES,
    Extent,
    Row,
    Selection,
    Transaction,
    Vectors,
    one_of,
    records_of,
    seqs_of,
)
from memories.stores.postgres.schema import HNSW_DIMENSIONS, hnsw_script, vector_script
from memories.stores.protocol import other_space
from memories.stores.records import SEARCHED, Collection, Record, Ref, Space
from memories.stores.words import highest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Up to this many rows are scored individually, which takes about a microsecond each. For more rows,
# the index is used.
EXACT_ROWS = COUNTED

Scores = dict[int, float]
# A record's namespace, `seq` and collection, whether it is live, and its vectors.
NewVectors = tuple[str, int, str, bool, "NDArray[np.float32]"]


def of_record(vectors: Vectors) -> str:
    """Return a subquery for the vectors of `record r`, to be used after EXISTS."""
    return f"SELECT 1 FROM {vectors.table} v WHERE v.namespace = r.namespace AND v.seq = r.seq"


def insert(db: Transaction, vectors: Vectors, new: Iterable[NewVectors]) -> None:
    """Store the vectors of records."""
    columns = "(namespace, seq, win, collection, live, embedding)"
    types = ["text", "int8", "int4", "text", "bool", "bytea"]
    db.copy(f"{vectors.table} {columns}", types, _rows_of(new))


def _rows_of(new: Iterable[NewVectors]) -> Iterator[Row]:
    for namespace, seq, collection, live, windows in new:
        for number, window in enumerate(windows.astype(">f2")):
            # The COPY format of a `halfvec`: the dimension, two zero bytes, and the numbers,
            # highest byte first.
            code = len(window).to_bytes(2, "big") + b"\0\0" + window.tobytes()
            yield namespace, seq, number, collection, live, code


class Probe(NamedTuple):
    """The vector of a query, and the table to search.

    Attributes:
        table: The table that contains the vectors.
        query: The vector as text.
    """

    table: str
    query: str

    @classmethod
    def of(cls, vectors: Vectors, query: "NDArray[np.float32]") -> "Probe":
        """Return a `Probe` with a unit vector of shape (dimension,)."""
        numbers = query.astype("float32").tolist()
        return cls(vectors.table, f"[{','.join(map(str, numbers))}]")


def find_best(
    db: Transaction, probe: Probe | None, selected: Selection, extent: Extent, k: int
) -> Scores:
    """Return the `k` best records, by the cosine between the query and their best window.

    Args:
        db: A transaction.
        probe: The vector to search for; None finds no records.
        selected: The filter.
        extent: The number of records in the namespaces.
        k: The number of records.
    """
    if probe is None:
        return {}
    if selected.states != (False,) or extent.matching <= EXACT_ROWS:
        return _score_all(db, probe, selected, selected.namespaces, k)
    scores: Scores = {}
    for namespace in selected.namespaces:
        nearest: Scores = {}
        if extent.live.get(namespace, 0) > EXACT_ROWS:
            nearest = _nearest(db, probe, selected, namespace, k)
        # Even in a large table, the index may find fewer than `k`, because it can miss vectors that
        # are equal.
        if len(nearest) < k:
            nearest = _score_all(db, probe, selected, (namespace,), k)
        scores |= nearest
    return highest(scores, k)


def score_exactly(
    db: Transaction, probe: Probe | None, selected: Selection, seqs: Sequence[int]
) -> Scores:
    """Return the exact scores of these records; records without vectors are left out."""
    if probe is None or not seqs:
        return {}
    among, values = one_of("v.namespace", selected.namespaces)
    sql = (
        f"SELECT v.seq, max(1 - (v.embedding <=> %s::halfvec)) FROM {probe.table} v "
        f"WHERE {among} AND v.seq = ANY(%s::bigint[]) GROUP BY v.seq"
    )
    return _best_scores(db.rows(sql, (probe.query, *values, list(seqs))))


def read(
    db: Transaction, vectors: Vectors, seqs: Mapping[Ref, int]
) -> "dict[Ref, NDArray[np.float32]]":
    """Return the vectors of these records; records without vectors are left out."""
    import numpy as np

    refs = {seq: ref for ref, seq in seqs.items()}
    among, values = one_of("v.namespace", sorted({ref.namespace for ref in seqs}))
    sql = (
        f"SELECT v.seq, halfvec_send(v.embedding) FROM {vectors.table} v "
        f"WHERE {among} AND v.seq = ANY(%s::bigint[]) ORDER BY v.seq, v.win"
    )
    rows = db.rows(sql, (*values, list(refs)), binary=True)
    windows: dict[Ref, list[NDArray[np.float32]]] = {}
    for seq, code in rows:
        window = np.frombuffer(code, ">f2", offset=4).astype(np.float32)
        windows.setdefault(refs[seq], []).append(window)
    normalized: dict[Ref, NDArray[np.float32]] = {}
    for ref, record_windows in windows.items():
        stacked = np.stack(record_windows)
        norms = np.linalg.norm(stacked, axis=1, keepdims=True)
        normalized[ref] = stacked / np.maximum(norms, 1e-12)
    return normalized


def _score_all(
    db: Transaction, probe: Probe, selected: Selection, namespaces: Sequence[str], k: int
) -> Scores:
    among, values = one_of("v.namespace", namespaces)
    sql = (
        f"SELECT v.seq, max(1 - (v.embedding <=> %s::halfvec)) FROM {probe.table} v "
        f"WHERE {among} AND v.collection = '{selected.collection}'"
    )
    if selected.broad:
        sql += " AND v.live"
    else:
        # The list is looked up in the vector table's index. A join took 1.5 times as long.
        sql += f" AND v.seq = ANY(ARRAY(SELECT r.seq FROM record r WHERE {selected.sql}))"
        values += selected.values
    sql += " GROUP BY v.seq ORDER BY 2 DESC LIMIT %s"
    return _best_scores(db.rows(sql, (probe.query, *values, k)))


def _nearest(db: Transaction, probe: Probe, selected: Selection, namespace: str, k: int) -> Scores:
    row_limit = k + k // 2
    sql = (
        f"SELECT v.seq, 1 - (v.embedding <=> %s::halfvec) FROM {probe.table} v "
        f"WHERE v.namespace = %s AND v.collection = '{selected.collection}' AND v.live"
    )
    values: tuple[object, ...] = (probe.query, namespace)
    if not selected.broad:
        sql += (
            " AND EXISTS (SELECT 1 FROM record r "
            f"WHERE r.namespace = v.namespace AND r.seq = v.seq AND {selected.sql})"
        )
        values += selected.values
    sql += " ORDER BY v.embedding <=> %s::halfvec LIMIT %s"
    while True:
        rows = db.rows(sql, (*values, probe.query, row_limit))
        scores = _best_scores(rows)
        if len(scores) >= k or len(rows) < row_limit:
            return scores
        row_limit *= 4


def _best_scores(rows: Sequence[Row]) -> Scores:
    scores: Scores = {}
    for seq, score in rows:
        scores[seq] = max(score, scores.get(seq, -1.0))
    return scores


_OLDEST = (0, 8)  # the first version of pgvector whose scans continue until enough rows match
_TABLES = ("vector_a", "vector_b")  # one for the space in use, and one for the staged space
_EXTENSION = (
    "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'vector'"
)
_GAINED = """
UPDATE corpus SET embedded = embedded + %s WHERE namespace = %s AND collection = %s AND ended = %s
"""
_LACKING = """
SELECT count(*) FROM record r
WHERE r.namespace = c.namespace AND r.collection = c.collection
  AND (r.ended_at IS NOT NULL) = c.ended AND NOT EXISTS ({vectors})
"""
_LARGE = """
SELECT DISTINCT part, collection FROM corpus CROSS JOIN generate_series(0, %s - 1) part
WHERE NOT ended AND embedded >= %s
AND CASE %s WHEN 1 THEN true ELSE satisfies_hash_partition(%s::regclass, %s, part, namespace) END
"""
# Whether the index is complete or is being created (NULL if it doesn't exist), and whether this
# user may create it.
_INDEX_STATE = """
SELECT (
  SELECT i.indisvalid
    OR EXISTS (SELECT 1 FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid)
  FROM pg_index i WHERE i.indexrelid = to_regclass(%s)
), c.relkind = 'r' AND pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = %s::regclass
"""
_EXTENSION_SCHEMA = """
SELECT n.nspname FROM pg_extension e
JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'
"""
_COUNT_FOREIGN = """
SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'f'
"""


def ensure_space(db: Transaction, space: Space) -> Vectors:
    """Return the vectors in use; if there are none, create the table for this space.

    Raises:
        EmbedderMismatch: The store's vectors are in a different space.
    """
    used = db.meta.used
    if used is None:
        db.lock((SPACES,))
        used = db.meta.used
    if used is None:
        used = _make(db, space, _TABLES[0])
        db.save_meta({"vectors": used})
    return check_space(used, space)


def check_space(used: Vectors, space: Space) -> Vectors:
    """Check that the vectors in use are in this space, and return them.

    Raises:
        EmbedderMismatch: The vectors are in a different space.
    """
    if not used.are_of(space):
        raise other_space(used.model, used.dimension, space)
    return used


def unstaged(
    db: Transaction, space: Space, collection: Collection, limit: int, damaged: Damaged
) -> list[Record]:
    """Return records that have no vectors in a space; damaged ones are only noted in `damaged`."""
    vectors = _find(db, space)
    sql = f"{RECORDS} WHERE r.collection = '{collection}' AND (r.namespace, r.seq) > (%s, %s)"
    if vectors is not None:
        sql += f" AND NOT EXISTS ({of_record(vectors)})"
    records: list[Record] = []
    last: tuple[str, int] = ("", 0)
    while len(records) < limit:
        rows = db.rows(f"{sql} ORDER BY r.namespace, r.seq LIMIT %s", (*last, limit - len(records)))
        if not rows:
            break
        last = rows[-1][2], rows[-1][0]
        records += records_of(rows, damaged).values()
    return records


def stage(db: Transaction, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
    """Store vectors in a space; they replace the records' previous vectors in that space."""
    seqs = seqs_of(db, vectors)
    if not seqs:
        return
    target = ensure_space(db, space) if db.meta.used is None else _find(db, space)
    if target is None:
        target = _make_staged(db, space)
    among = "namespace = ANY(%s::text[]) AND seq = ANY(%s)"
    values = sorted({ref.namespace for ref in seqs}), list(seqs.values())
    replaced = {*db.rows(f"DELETE FROM {target.table} WHERE {among} RETURNING seq", values)}
    live = {*db.rows(f"SELECT seq FROM record WHERE {among} AND ended_at IS NULL", values)}
    gained: Counter[tuple[str, str, bool]] = Counter()
    new: list[NewVectors] = []
    for ref, seq in seqs.items():
        is_live = (seq,) in live
        new.append((ref.namespace, seq, str(ref.collection), is_live, vectors[ref]))
        if (seq,) not in replaced:
            gained[ref.namespace, str(ref.collection), not is_live] += 1
    if target == db.meta.used:
        for corpus, number in sorted(gained.items()):
            db.run(_GAINED, (number, *corpus))
    insert(db, target, new)


def switch(db: Transaction, space: Space, damaged: Damaged) -> None:
    """Switch to the staged vectors of a space, in a transaction that excludes all other writers.

    Only damaged records may lack vectors.

    Raises:
        Conflict: There are records without vectors in this space.
    """
    used = db.meta.used
    if used is not None and used.are_of(space):
        return
    if any(unstaged(db, space, collection, 1, damaged) for collection in SEARCHED):
        raise Conflict(f"records have no vectors from {space.model} yet; stage their vectors first")
    target = _find(db, space) or _make_staged(db, space)
    if used is not None:
        db.run(f"DROP TABLE {used.table}")
    db.run(
        f"UPDATE corpus c SET embedded = documents - ({_LACKING.format(vectors=of_record(target))})"
    )
    db.save_meta({"vectors": target, "staged": None})


def without_index(db: Transaction) -> list[tuple[str, Collection, bool]]:
    """Return the tables that need a vector index but don't have a complete one.

    Returns:
        For each index: its table, its collection, and whether a killed process left a part of it.
    """
    used = db.meta.used
    if used is None or used.dimension > HNSW_DIMENSIONS:
        return []
    missing: list[tuple[str, Collection, bool]] = []
    parts = db.meta.partitions
    for number, collection in db.rows(
        _LARGE, (parts, counts.MANY_VECTORS, parts, used.table, parts)
    ):
        part = used.table if parts == 1 else f"{used.table}_p{number}"
        is_complete, is_owned = db.rows(_INDEX_STATE, (f"{part}_{collection}", part))[0]
        if is_owned and is_complete is not True:
            missing.append((part, Collection(collection), is_complete is False))
    return missing


def make_index(server: Server, part: str, collection: Collection, *, left_over: bool) -> None:
    """Create a vector index on a table without blocking readers or writers."""
    schema = server.url.schema
    with server.outside() as connection:
        extension = connection.execute(_EXTENSION_SCHEMA).fetchall()[0][0]
        if left_over:
            connection.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{schema}".{part}_{collection}')
        connection.execute(hnsw_script(schema, part, collection, extension))


def _find(db: Transaction, space: Space) -> Vectors | None:
    """Return the vectors in a space if it is in use or staged; None for any other space."""
    for vectors in (db.meta.used, db.meta.staged):
        if vectors is not None and vectors.are_of(space):
            return vectors
    return None


def _make_staged(db: Transaction, space: Space) -> Vectors:
    """Create a table for vectors in a new space; it replaces the table of the staged space."""
    db.lock((SPACES,))
    vectors = _find(db, space)
    if vectors is not None:  # another process has already created the table
        return vectors
    if int(db.value(_COUNT_FOREIGN)):
        raise StoreError(
            "parts of this store are on other nodes, where tables for another embedder can't be "
            "created; create a new store for that embedder, and move the records there"
        )
    used, staged = db.meta.used, db.meta.staged
    if staged is not None:
        db.run(f"DROP TABLE {staged.table}")
    target = _make(db, space, next(name for name in _TABLES if used is None or name != used.table))
    db.save_meta({"staged": target})
    return target


def _make(db: Transaction, space: Space, table: str) -> Vectors:
    """Create the table for vectors in a space; first add pgvector to the database if necessary.

    Raises:
        StoreError: pgvector is too old or not installed on the server, or the user may not add it.
    """
    from psycopg import errors

    extensions = db.rows(_EXTENSION)
    if not extensions:
        raise StoreError(
            "vectors need the extension pgvector, which the PostgreSQL server does not have; "
            "install it there (the package postgresql-NN-pgvector), or set EMBEDDER=none to "
            "search by words only"
        )
    ((available, installed),) = extensions
    version = installed or available
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise StoreError(
            f"the server's pgvector is {version}, but 0.8.0 or newer is needed; "
            "upgrade its package, then run ALTER EXTENSION vector UPDATE in this database"
        )
    if installed is None:
        try:
            db.run("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except errors.InsufficientPrivilege as exc:
            raise StoreError(
                "the database lacks the extension pgvector, which vectors need, and this user may "
                "not add it; an administrator or the database's owner must run "
                "CREATE EXTENSION vector there once"
            ) from exc
    db.run(vector_script(table, space.dimension, db.meta.partitions))
    return Vectors(space.model, space.dimension, table)
