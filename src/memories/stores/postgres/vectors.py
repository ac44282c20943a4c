"""Vector search in the PostgreSQL store: exact over few rows, else by pgvector's HNSW index over half vectors."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from memories.stores.postgres.query import COUNTED, Condition, Extent, one_of
from memories.stores.postgres.session import Row, Session, Vectors
from memories.stores.records import Ref

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT_ROWS = COUNTED  # so many are scored one by one, in about as many microseconds; of more the index finds the best

Scores = dict[int, float]
NewVectors = tuple[str, int, str, bool, "NDArray[np.float32]"]  # namespace, seq, collection, live, windows


def insert(db: Session, vectors: Vectors, new: Iterable[NewVectors]) -> None:
    """Keep the vectors of records."""
    columns = "(namespace, seq, win, collection, live, embedding)"
    rows = (
        (namespace, seq, window, collection, live, code)
        for namespace, seq, collection, live, windows in new
        for window, code in enumerate(_binary(windows))
    )
    db.copy(f"{vectors.table} {columns}", ["text", "int8", "int4", "text", "bool", "bytea"], rows)


def best(
    db: Session, vectors: Vectors, matching: Condition, there: Extent, asked: "tuple[NDArray[np.float32], int]"
) -> Scores:
    """Return the `k` best records, by the cosine of their best window with the query.

    Args:
        db: A session.
        vectors: Those that are searched.
        matching: Which records are meant.
        there: How much there is in their namespaces.
        asked: The query, shape (dimension,), unit length, and `k`.
    """
    if matching.states != (False,) or there.meant <= EXACT_ROWS:
        return _scored(db, vectors, matching, matching.namespaces, asked)
    found: Scores = {}
    for namespace in matching.namespaces:
        nearest: Scores = {}
        if there.live.get(namespace, 0) > EXACT_ROWS:
            nearest = _nearest(db, vectors, matching, namespace, asked)
        # Of very many equal vectors the index finds some only; where it finds too few, all are scored.
        found |= nearest if len(nearest) >= asked[1] else _scored(db, vectors, matching, (namespace,), asked)
    return _top(found, asked[1])


def exact(
    db: Session, vectors: Vectors, matching: Condition, seqs: Sequence[int], query: "NDArray[np.float32]"
) -> Scores:
    """Return the score of each of these records that has a vector."""
    if not seqs:
        return {}
    among, values = one_of("v.namespace", matching.namespaces)
    sql = (
        f"SELECT v.seq, max(1 - (v.embedding <=> %s::halfvec)) FROM {vectors.table} v "
        f"WHERE {among} AND v.seq = ANY(%s::bigint[]) GROUP BY v.seq"
    )
    return _scores(db.rows(sql, (_text(query), *values, list(seqs))))


def read(db: Session, vectors: Vectors, seqs: Mapping[Ref, int]) -> "dict[Ref, NDArray[np.float32]]":
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
    return {ref: _unit(np.stack(found)) for ref, found in windows.items()}


def _scored(
    db: Session,
    vectors: Vectors,
    matching: Condition,
    namespaces: Sequence[str],
    asked: "tuple[NDArray[np.float32], int]",
) -> Scores:
    """Score all of some namespaces that are meant."""
    query, k = asked
    among, values = one_of("v.namespace", namespaces)
    where = f"{among} AND v.collection = '{matching.collection}'"
    if matching.broad:
        sql = f"FROM {vectors.table} v WHERE {where} AND v.live"
    else:
        # As a list they are looked up in the index of the vectors; as a join they took half as long again.
        these = f"SELECT r.seq FROM record r WHERE {matching.sql}"
        sql = f"FROM {vectors.table} v WHERE {where} AND v.seq = ANY(ARRAY({these}))"
        values += matching.values
    sql = f"SELECT v.seq, max(1 - (v.embedding <=> %s::halfvec)) {sql} GROUP BY v.seq ORDER BY 2 DESC LIMIT %s"
    return _scores(db.rows(sql, (_text(query), *values, k)))


def _nearest(
    db: Session, vectors: Vectors, matching: Condition, namespace: str, asked: "tuple[NDArray[np.float32], int]"
) -> Scores:
    """Return the best of a namespace by way of the index; records of several windows take several of its rows."""
    query, k = asked
    text, wanted = _text(query), k + k // 2
    sql = (
        f"SELECT v.seq, 1 - (v.embedding <=> %s::halfvec) FROM {vectors.table} v "
        f"WHERE v.namespace = %s AND v.collection = '{matching.collection}' AND v.live"
    )
    values: tuple[object, ...] = (text, namespace)
    if not matching.broad:
        sql += (
            f" AND EXISTS (SELECT 1 FROM record r WHERE r.namespace = v.namespace AND r.seq = v.seq AND {matching.sql})"
        )
        values += matching.values
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


def _top(scores: Scores, k: int) -> Scores:
    return dict(heapq.nlargest(k, scores.items(), key=lambda item: item[1]))


def _binary(windows: "NDArray[np.float32]") -> list[bytes]:
    """Return half vectors as COPY takes them: the dimension, two zero bytes, and the numbers, highest byte first."""
    head = int(windows.shape[1]).to_bytes(2, "big") + b"\0\0"
    return [head + row.tobytes() for row in windows.astype(">f2")]


def _text(query: "NDArray[np.float32]") -> str:
    return f"[{','.join(map(str, np.asarray(query, dtype=np.float32).tolist()))}]"


def _unit(vectors: "NDArray[np.float32]") -> "NDArray[np.float32]":
    unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit
