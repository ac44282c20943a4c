"""Vector search in the PostgreSQL store: exact over few rows, else by pgvector's HNSW index over half vectors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from memories.stores.postgres.query import COUNTED, Extent, Selection, one_of
from memories.stores.postgres.transaction import Row, Transaction, Vectors
from memories.stores.records import Ref
from memories.stores.words import best as highest

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT_ROWS = COUNTED  # up to this many are scored one by one, in a microsecond each; for more the index is used

Scores = dict[int, float]
NewVectors = tuple[str, int, str, bool, "NDArray[np.float32]"]  # namespace, seq, collection, live, windows


def insert(db: Transaction, vectors: Vectors, new: Iterable[NewVectors]) -> None:
    """Keep the vectors of records."""
    columns = "(namespace, seq, win, collection, live, embedding)"
    # Half vectors as COPY takes them: the dimension, two zero bytes, and the numbers, highest byte first.
    rows = (
        (namespace, seq, number, collection, live, len(window).to_bytes(2, "big") + b"\0\0" + window.tobytes())
        for namespace, seq, collection, live, windows in new
        for number, window in enumerate(windows.astype(">f2"))
    )
    db.copy(f"{vectors.table} {columns}", ["text", "int8", "int4", "text", "bool", "bytea"], rows)


def best(
    db: Transaction, vectors: Vectors, selected: Selection, there: Extent, query: "NDArray[np.float32]", k: int
) -> Scores:
    """Return the `k` best records, by the cosine of their best window with the query.

    Args:
        db: A transaction.
        vectors: The vectors to search.
        selected: Which records.
        there: How much there is in their namespaces.
        query: Shape (dimension,), unit length.
        k: How many.
    """
    if selected.states != (False,) or there.matching <= EXACT_ROWS:
        return _scored(db, vectors, selected, selected.namespaces, query, k)
    found: Scores = {}
    for namespace in selected.namespaces:
        nearest: Scores = {}
        if there.live.get(namespace, 0) > EXACT_ROWS:
            nearest = _nearest(db, vectors, selected, namespace, query, k)
        # Of very many equal vectors the index finds only some; if it finds too few, all are scored.
        found |= nearest if len(nearest) >= k else _scored(db, vectors, selected, (namespace,), query, k)
    return highest(found, k)


def exact(
    db: Transaction, vectors: Vectors, selected: Selection, seqs: Sequence[int], query: "NDArray[np.float32]"
) -> Scores:
    """Return the score of each of these records that has a vector."""
    if not seqs:
        return {}
    among, values = one_of("v.namespace", selected.namespaces)
    sql = (
        f"SELECT v.seq, max(1 - (v.embedding <=> %s::halfvec)) FROM {vectors.table} v "
        f"WHERE {among} AND v.seq = ANY(%s::bigint[]) GROUP BY v.seq"
    )
    return _scores(db.rows(sql, (_text(query), *values, list(seqs))))


def read(db: Transaction, vectors: Vectors, seqs: Mapping[Ref, int]) -> "dict[Ref, NDArray[np.float32]]":
    """Return the vectors of these records, those that have any."""
    refs = {seq: ref for ref, seq in seqs.items()}
    among, values = one_of("v.namespace", sorted({ref.namespace for ref in seqs}))
    rows = db.rows(
        f"SELECT v.seq, halfvec_send(v.embedding) FROM {vectors.table} v WHERE {among} AND v.seq = ANY(%s::bigint[]) "
        "ORDER BY v.seq, v.win",
        (*values, list(refs)),
        binary=True,
    )
    windows: dict[Ref, list[NDArray[np.float32]]] = {}
    for seq, code in rows:
        windows.setdefault(refs[seq], []).append(np.frombuffer(code, ">f2", offset=4).astype(np.float32))
    stacked = {ref: np.stack(found) for ref, found in windows.items()}
    return {
        ref: found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12) for ref, found in stacked.items()
    }


def _scored(
    db: Transaction,
    vectors: Vectors,
    selected: Selection,
    namespaces: Sequence[str],
    query: "NDArray[np.float32]",
    k: int,
) -> Scores:
    """Score all selected records of some namespaces."""
    among, values = one_of("v.namespace", namespaces)
    where = f"{among} AND v.collection = '{selected.collection}'"
    if selected.broad:
        sql = f"FROM {vectors.table} v WHERE {where} AND v.live"
    else:
        # A list is looked up in the index of the vectors; a join took half as long again.
        these = f"SELECT r.seq FROM record r WHERE {selected.sql}"
        sql = f"FROM {vectors.table} v WHERE {where} AND v.seq = ANY(ARRAY({these}))"
        values += selected.values
    sql = f"SELECT v.seq, max(1 - (v.embedding <=> %s::halfvec)) {sql} GROUP BY v.seq ORDER BY 2 DESC LIMIT %s"
    return _scores(db.rows(sql, (_text(query), *values, k)))


def _nearest(
    db: Transaction, vectors: Vectors, selected: Selection, namespace: str, query: "NDArray[np.float32]", k: int
) -> Scores:
    """Return the best of a namespace by the index, in which a record has a row for each window."""
    text, wanted = _text(query), k + k // 2
    sql = (
        f"SELECT v.seq, 1 - (v.embedding <=> %s::halfvec) FROM {vectors.table} v "
        f"WHERE v.namespace = %s AND v.collection = '{selected.collection}' AND v.live"
    )
    values: tuple[object, ...] = (text, namespace)
    if not selected.broad:
        sql += (
            f" AND EXISTS (SELECT 1 FROM record r WHERE r.namespace = v.namespace AND r.seq = v.seq AND {selected.sql})"
        )
        values += selected.values
    sql += " ORDER BY v.embedding <=> %s::halfvec LIMIT %s"
    while True:
        rows = db.rows(sql, (*values, text, wanted))
        found = _scores(rows)
        if len(found) >= k or len(rows) < wanted:
            return found
        wanted *= 4


def _scores(rows: Sequence[Row]) -> Scores:
    """Return the best score of each seq."""
    found: Scores = {}
    for seq, score in rows:
        found[seq] = max(score, found.get(seq, -1.0))
    return found


def _text(query: "NDArray[np.float32]") -> str:
    return f"[{','.join(map(str, np.asarray(query, dtype=np.float32).tolist()))}]"
