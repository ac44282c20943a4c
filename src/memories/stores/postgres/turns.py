"""What matches a query in the PostgreSQL store, in columns and term by term: how turns are searched."""

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memories.stores.postgres import vectors
from memories.stores.postgres import words as postgres_words
from memories.stores.postgres.query import Condition, Extent, extent, one_of
from memories.stores.postgres.session import Row, Session, Vectors
from memories.stores.records import BESIDE, Matches, Query
from memories.times import to_millis

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FEW = 4_096  # so many are all returned
_LEADING = 20  # so many of the best by words, and by vector, bring the turns beside them
_OF_A_DAY = 100  # so many turns of a span that is meant are looked at, whatever they say
_PLACE = (
    "SELECT r.seq, r.namespace, r.grp, r.position, coalesce(r.session, -1), r.created_at, r.labels::text FROM record r"
)

Scores = Mapping[int, float]


def find(db: Session, matching: Condition, used: Vectors | None, query: Query) -> Matches:
    """Return what matches: all records that are meant if they are few, else the best by words and by vector.

    Args:
        db: A session.
        matching: Which records are meant.
        used: The vectors; None to go by words alone.
        query: What is looked for.
    """
    there = extent(db, matching)
    words = postgres_words.ranked(db, matching, there, query.terms)
    similar: Scores = {}
    if there.meant > _FEW:
        rows, similar = _best(db, matching, there, used, query, words.scores)
        searched = words.searched
    else:
        rows = db.rows(f"{_PLACE} WHERE {matching.sql}", matching.values)
        searched = len(rows)
        if used is not None and query.vector is not None:
            similar = vectors.best(db, used, matching, there, (query.vector, max(1, len(rows))))
    return _columns(rows, words, similar, searched)


def _best(
    db: Session, matching: Condition, there: Extent, used: Vectors | None, query: Query, scores: Scores
) -> tuple[list[Row], Scores]:
    """Return the places of the best by words and by vector, of what is beside them, and of days that are meant."""
    similar: dict[int, float] = {}
    if used is not None and query.vector is not None:
        similar = vectors.best(db, used, matching, there, (query.vector, query.k))
    leading = [seq for found in (scores, similar) for seq in heapq.nlargest(_LEADING, found, key=found.__getitem__)]
    wanted = {*scores, *similar, *_said(db, matching, query), *_beside(db, matching, leading)}
    sql = f"{_PLACE} WHERE {matching.sql} AND r.seq = ANY(%s::bigint[])"
    rows = db.rows(sql, (*matching.values, sorted(wanted)))
    if used is not None and query.vector is not None:
        lacking = [row[0] for row in rows if row[0] not in similar]
        similar |= vectors.exact(db, used, matching, lacking, query.vector)
    return rows, similar


def _beside(db: Session, matching: Condition, seqs: Sequence[int]) -> list[int]:
    """Return the turns up to two before and after these, in the same session."""
    among, values = one_of("m.namespace", matching.namespaces)
    sql = (
        "SELECT r.seq FROM record m JOIN record r ON r.namespace = m.namespace AND r.collection = m.collection "
        f"AND r.grp = m.grp AND r.position BETWEEN m.position - {BESIDE} AND m.position + {BESIDE} "
        f"AND r.session = m.session WHERE {among} AND m.seq = ANY(%s::bigint[]) AND {matching.sql}"
    )
    return [seq for (seq,) in db.rows(sql, (*values, list(seqs), *matching.values))]


def _said(db: Session, matching: Condition, query: Query) -> Iterable[int]:
    """Return turns that were said on the days that are meant, some of each."""
    sql = (
        f"SELECT r.seq FROM record r WHERE {matching.sql} AND r.session IS NOT NULL "
        "AND r.created_at BETWEEN %s AND %s ORDER BY abs(r.created_at - %s) LIMIT %s"
    )
    for first, last in query.days:
        bounds = to_millis(first), to_millis(last)
        for (seq,) in db.rows(sql, (*matching.values, *bounds, sum(bounds) // 2, _OF_A_DAY)):
            yield seq


def _columns(rows: Sequence[Row], words: postgres_words.Words, similar: Scores, searched: int) -> Matches:
    seqs, namespaces, names, positions, sessions, times, labels = zip(*rows, strict=True) if rows else [()] * 7
    row_of = {seq: row for row, seq in enumerate(seqs)}
    groups, group = _numbered(list(zip(namespaces, names, strict=True)))
    sets, label = _numbered(labels)
    holds = np.zeros((len(words.holders), len(seqs)), dtype=np.bool_)
    for number, holders in enumerate(words.holders.values()):
        holds[number, [row_of[seq] for seq in holders if seq in row_of]] = True
    return Matches(
        groups=groups,
        group=group,
        position=np.array(positions, dtype=np.int64),
        session=np.array(sessions, dtype=np.int64),
        created_at=np.array(times, dtype=np.int64),
        labels=[json.loads(written) for written in sets],
        label=label,
        words=np.array([words.scores.get(seq, 0.0) for seq in seqs], dtype=np.float64),
        similarity=np.array([similar.get(seq, np.nan) for seq in seqs], dtype=np.float64),
        terms=list(words.holders),
        holds=holds,
        searched=searched,
    )


def _numbered(values: Sequence[Any]) -> "tuple[list[Any], NDArray[np.int64]]":
    """Return the different values, and for each value which of them it is."""
    numbers: dict[Any, int] = {}
    which = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), np.array(which, dtype=np.int64)
