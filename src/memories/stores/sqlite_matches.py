"""What matches a query in the SQLite store, in columns and term by term: how turns are searched."""

import heapq
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import numpy as np

from memories.models import Matches, Query
from memories.stores import sqlite_words
from memories.stores.sqlite_query import Condition, damage_noticed, decode_group, fetch
from memories.stores.sqlite_vectors import VectorIndex, is_large
from memories.surroundings import BESIDE
from memories.times import to_millis

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEADING = 20  # so many of the best by words, and by vector, bring the turns beside them
_OF_A_DAY = 100  # so many turns of a span that is meant are looked at, whatever they say
_LAST_SEQ = 2**62
_PLACE = "r.seq, r.pool, r.grp, r.position, coalesce(r.session, -1), r.created_at, r.labels"

Row = tuple[Any, ...]


class _Words(NamedTuple):
    """BM25 of each record that has a term, and which records have each term."""

    scores: dict[int, float]
    holders: dict[str, list[int]]


def find(db: apsw.Connection, matching: Condition, index: VectorIndex | None, query: Query) -> Matches:
    """Return what matches: all records that are meant if they are few, else the best by words and by vector.

    Args:
        db: A connection inside a transaction.
        matching: Which records are meant.
        index: The vectors; None to go by words alone.
        query: What is looked for.
    """
    if is_large(db, matching):
        rows, words, similar = _best(db, matching, index, query)
        searched = sqlite_words.row_count(db, sqlite_words.CURRENT[matching.collection])
    else:
        rows, similar = _all(db, matching, index, query)
        between = (min(rows)[0], max(rows)[0]) if rows else (0, -1)
        words, searched = _words(db, matching, query.terms, between), len(rows)
    with damage_noticed():
        return _columns(db, rows, words, similar, searched)


def _all(
    db: apsw.Connection, matching: Condition, index: VectorIndex | None, query: Query
) -> tuple[list[Row], dict[int, float]]:
    """Return the places of all records that are meant, and how similar each is."""
    if index is None or query.vector is None:
        sql = f"SELECT {_PLACE} FROM record r WHERE {matching.find}"
        return fetch(db, sql, matching.values), {}
    sql = f"SELECT {_PLACE}, v.codes FROM record r LEFT JOIN {index.table} v ON v.seq = r.seq WHERE {matching.find}"
    rows = fetch(db, sql, matching.values)
    turned = index.quantizer.rotate(query.vector[np.newaxis, :])[0]
    with_vector = [(row[0], row[-1]) for row in rows if row[-1] is not None]
    return rows, index.score(with_vector, turned)


def _best(
    db: apsw.Connection, matching: Condition, index: VectorIndex | None, query: Query
) -> tuple[list[Row], _Words, dict[int, float]]:
    """Return the places of the best by words and by vector, of what is beside them, and of days that are meant."""
    words = _words(db, matching, query.terms, (0, _LAST_SEQ))
    similar: dict[int, float] = {}
    if index is not None and query.vector is not None:
        similar = index.best(db, matching, query.vector, query.k)
    rows = {row[0]: row for row in _places(db, matching, [*words.scores, *similar, *_said(db, matching, query)])}
    leading = {
        seq for found in (words.scores, similar) for seq in heapq.nlargest(_LEADING, found, key=found.__getitem__)
    }
    rows |= {row[0]: row for row in _beside(db, matching, leading)}
    if index is not None and query.vector is not None:
        similar |= index.exact(db, [seq for seq in rows if seq not in similar], query.vector)
    return list(rows.values()), words, similar


def _places(db: apsw.Connection, matching: Condition, seqs: Sequence[int]) -> list[Row]:
    sql = f"SELECT {_PLACE} FROM json_each(?) wanted CROSS JOIN record r ON r.seq = wanted.value WHERE {matching.check}"
    return fetch(db, sql, (json.dumps(sorted(set(seqs))), *matching.values))


def _beside(db: apsw.Connection, matching: Condition, seqs: Iterable[int]) -> list[Row]:
    """Return the places of the turns up to two before and after these, in the same session."""
    sql = (
        f"SELECT DISTINCT {_PLACE} FROM json_each(?) wanted CROSS JOIN record m ON m.seq = wanted.value "
        "CROSS JOIN record r ON r.pool = m.pool AND r.grp = m.grp "
        f"AND r.position BETWEEN m.position - {BESIDE} AND m.position + {BESIDE} "
        f"WHERE r.session = m.session AND {matching.check}"
    )
    return fetch(db, sql, (json.dumps(list(seqs)), *matching.values))


def _said(db: apsw.Connection, matching: Condition, query: Query) -> list[int]:
    """Return turns that were said on the days that are meant, some of each."""
    sql = (
        "SELECT r.seq FROM record r WHERE r.session IS NOT NULL AND r.created_at BETWEEN ? AND ? "
        f"AND {matching.find} ORDER BY abs(r.created_at - ?) LIMIT ?"
    )
    found: list[int] = []
    for first, last in query.days:
        bounds = to_millis(first), to_millis(last)
        rows = fetch(db, sql, (*bounds, *matching.values, sum(bounds) // 2, _OF_A_DAY))
        found += [seq for (seq,) in rows]
    return found


def _words(db: apsw.Connection, matching: Condition, terms: Sequence[str], between: tuple[int, int]) -> _Words:
    """Return the scores and the holders of the telling terms, among records with a seq between two."""
    found = _Words({}, {})
    literals = {sqlite_words.quoted(term): term for term in terms}
    for table in sqlite_words.tables(matching):
        telling = sqlite_words.telling(db, table, list(literals), between)
        if not telling:
            continue
        where = f"{table} MATCH ? AND rowid BETWEEN ? AND ?"
        match = " OR ".join(telling)
        found.scores.update(fetch(db, f"SELECT rowid, -rank FROM {table} WHERE {where}", (match, *between)))
        for literal in telling:
            holders = fetch(db, f"SELECT rowid FROM {table} WHERE {where}", (literal, *between))
            found.holders.setdefault(literals[literal], []).extend(seq for (seq,) in holders)
    return found


def _columns(
    db: apsw.Connection, rows: Sequence[Row], words: _Words, similar: Mapping[int, float], searched: int
) -> Matches:
    seqs, among, names, positions, sessions, times, written, *_ = zip(*rows, strict=True) if rows else [()] * 7
    at = dict(zip(seqs, range(len(seqs)), strict=True))
    places, group = _numbered(list(zip(among, names, strict=True)))
    sets, label = _numbered(written)
    namespaces = dict(fetch(db, "SELECT id, namespace FROM pool"))
    holds = np.zeros((len(words.holders), len(rows)), dtype=np.bool_)
    for number, holders in enumerate(words.holders.values()):
        holds[number, [at[seq] for seq in holders if seq in at]] = True
    scores = np.zeros(len(rows))
    for seq, score in words.scores.items():
        if seq in at:
            scores[at[seq]] = score
    return Matches(
        groups=[(namespaces[pool], decode_group(name)) for pool, name in places],
        group=group,
        position=np.array(positions, dtype=np.int64),
        session=np.array(sessions, dtype=np.int64),
        created_at=np.array(times, dtype=np.int64),
        labels=_labels(db, [ids or "" for ids in sets]),
        label=label,
        words=scores,
        similarity=np.array([similar.get(seq, math.nan) for seq in seqs], dtype=np.float64),
        terms=list(words.holders),
        holds=holds,
        searched=searched,
    )


def _numbered(values: Sequence[Any]) -> "tuple[list[Any], NDArray[np.int64]]":
    """Return the different values, and for each value which of them it is."""
    different = list(dict.fromkeys(values))
    if len(different) <= 1:
        return different, np.zeros(len(values), dtype=np.int64)
    numbers = dict(zip(different, range(len(different)), strict=True))
    return different, np.array([numbers[value] for value in values], dtype=np.int64)


def _labels(db: apsw.Connection, sets: Sequence[str]) -> list[dict[str, str]]:
    """Return what the written sets of label ids stand for."""
    ids = sorted({int(label) for written in sets for label in written.split(",") if label})
    found = fetch(
        db, "SELECT id, key, value FROM label WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),)
    )
    known = {number: (key, value) for number, key, value in found}
    return [dict(known[int(label)] for label in written.split(",") if label) for written in sets]
