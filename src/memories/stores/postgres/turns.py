"""How turns are searched in the PostgreSQL store: `Store.matches`, in columns and term by term."""

import json

import numpy as np

from memories.core.times import to_millis
from memories.stores.columns import OF_A_DAY, leading, matches_at, places_of
from memories.stores.postgres import vectors
from memories.stores.postgres.query import Selection, extent, one_of
from memories.stores.postgres.transaction import Transaction, Vectors
from memories.stores.postgres.words import ranked
from memories.stores.records import BESIDE, Matches, TurnQuery
from memories.stores.words import WordHits

_FEW = 4_096  # up to this many are all returned
_PLACE = (
    "SELECT r.seq, r.namespace, r.grp, r.position, coalesce(r.session, -1), r.created_at, r.labels::text FROM record r"
)


def find(db: Transaction, selected: Selection, used: Vectors | None, query: TurnQuery) -> Matches:
    """Return all selected records if they are few, else the best by words and by vector.

    Args:
        db: A transaction.
        selected: Which records.
        used: The vectors; None to search by words alone.
        query: The search.
    """
    there = extent(db, selected)
    words = ranked(db, selected, there, query.terms)
    similar: dict[int, float] = {}
    few = there.matching <= _FEW
    rows = db.rows(f"{_PLACE} WHERE {selected.sql}", selected.values) if few else []
    if used is not None and query.vector is not None:
        similar = vectors.best(db, used, selected, there, query.vector, max(1, len(rows)) if few else query.k)
    if not few:
        wanted = sorted(_best(db, selected, query, words, similar))
        rows = db.rows(f"{_PLACE} WHERE {selected.sql} AND r.seq = ANY(%s::bigint[])", (*selected.values, wanted))
        if used is not None and query.vector is not None:
            lacking = [row[0] for row in rows if row[0] not in similar]
            similar |= vectors.exact(db, used, selected, lacking, query.vector)
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    places = places_of(columns, lambda *names: names, lambda sets: [json.loads(written) for written in sets])
    similarity = np.array([similar.get(seq, np.nan) for seq in columns[0]], dtype=np.float64)
    return matches_at(places, words, similarity, len(rows) if few else there.documents)


def _best(
    db: Transaction, selected: Selection, query: TurnQuery, words: WordHits, similar: dict[int, float]
) -> set[int]:
    """Return the seqs of the best by words and by vector, of turns beside them, and of the days in the query."""
    among, values = one_of("m.namespace", selected.namespaces)
    sql = (
        "SELECT r.seq FROM record m JOIN record r ON r.namespace = m.namespace AND r.collection = m.collection "
        f"AND r.grp = m.grp AND r.position BETWEEN m.position - {BESIDE} AND m.position + {BESIDE} "
        f"AND r.session = m.session WHERE {among} AND m.seq = ANY(%s::bigint[]) AND {selected.sql}"
    )
    rows = db.rows(sql, (*values, leading(words.scores, similar), *selected.values))
    sql = (
        f"SELECT r.seq FROM record r WHERE {selected.sql} AND r.session IS NOT NULL "
        "AND r.created_at BETWEEN %s AND %s ORDER BY abs(r.created_at - %s) LIMIT %s"
    )
    for first, last in query.days:
        bounds = to_millis(first), to_millis(last)
        rows += db.rows(sql, (*selected.values, *bounds, sum(bounds) // 2, OF_A_DAY))
    return {*words.scores, *similar, *(seq for (seq,) in rows)}
