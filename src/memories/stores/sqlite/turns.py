"""What matches a query in the SQLite store, in columns and term by term: how turns are searched."""

import heapq
import json
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import numpy as np

from memories.stores.records import BESIDE, Matches, Query
from memories.stores.sqlite import words as sqlite_words
from memories.stores.sqlite.query import Condition, damage_noticed, decode_group, fetch, fetch_value
from memories.stores.sqlite.vectors import VectorIndex, is_large, windows_of
from memories.times import to_millis

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEADING = 20  # so many of the best by words, and by vector, bring the turns beside them
_OF_A_DAY = 100  # so many turns of a span that is meant are looked at, whatever they say
_KEPT_BYTES = 8_388_608  # of vectors
_LAST_SEQ = 2**62
_PLACE = "r.seq, r.pool, r.grp, r.position, coalesce(r.session, -1), r.created_at, r.labels"

Row = tuple[Any, ...]


class _Places(NamedTuple):
    """Where records stand, in columns (see `Matches`), and the codes of their windows with the row of each."""

    seqs: "NDArray[np.int64]"
    groups: list[tuple[str, str]]
    group: "NDArray[np.int64]"
    position: "NDArray[np.int64]"
    session: "NDArray[np.int64]"
    created_at: "NDArray[np.int64]"
    labels: list[dict[str, str]]
    label: "NDArray[np.int64]"
    windows: "NDArray[np.int64]"
    codes: bytes


class _Words(NamedTuple):
    """BM25 of each record that has a term, and which records have each term."""

    scores: dict[int, float]
    holders: dict[str, list[int]]


class LastPlaces:
    """The places that were read last, kept while the file stays as it is: who asks once mostly asks again."""

    def __init__(self) -> None:
        self._last: tuple[Any, weakref.ref[apsw.Connection], _Places] | None = None

    def read(self, db: apsw.Connection, sql: str, values: Sequence[Any], index: VectorIndex | None) -> _Places:
        """Return the places of the rows that a query gives, from memory if nothing was written since.

        `data_version` tells of commits by others, the count of changes of those by this connection. What a connection
        that is writing sees may be undone, so it is neither kept nor taken from memory.
        """
        state = fetch_value(db, "PRAGMA data_version"), db.total_changes(), sql, tuple(values)
        writing = db.txn_state("main") == apsw.SQLITE_TXN_WRITE
        last = self._last
        if last is not None and not writing and last[0] == state and last[1]() is db:
            return last[2]
        places = _read(db, fetch(db, sql, values), index)
        if not writing and len(places.codes) <= _KEPT_BYTES:
            self._last = state, weakref.ref(db), places
        return places


def find(
    db: apsw.Connection, matching: Condition, index: VectorIndex | None, query: Query, last: LastPlaces
) -> Matches:
    """Return what matches: all records that are meant if they are few, else the best by words and by vector.

    Args:
        db: A connection inside a transaction.
        matching: Which records are meant.
        index: The vectors; None to go by words alone.
        query: What is looked for.
        last: What the last search read.
    """
    if is_large(db, matching):
        places, words = _best(db, matching, index, query)
        searched = sqlite_words.row_count(db, sqlite_words.CURRENT[matching.collection])
    else:
        places = last.read(db, *_all(matching, index), index)
        between = (int(places.seqs.min()), int(places.seqs.max())) if len(places.seqs) else (0, -1)
        words, searched = _words(db, matching, query.terms, between), len(places.seqs)
    return _columns(places, words, _similarity(places, index, query), searched)


def _all(matching: Condition, index: VectorIndex | None) -> tuple[str, Sequence[Any]]:
    """Return the query for the places of all records that are meant, with their codes."""
    if index is None:
        return f"SELECT {_PLACE}, NULL FROM record r WHERE {matching.find}", matching.values
    join = f"LEFT JOIN {index.table} v ON v.seq = r.seq"
    return f"SELECT {_PLACE}, v.codes FROM record r {join} WHERE {matching.find}", matching.values


def _best(db: apsw.Connection, matching: Condition, index: VectorIndex | None, query: Query) -> tuple[_Places, _Words]:
    """Return the places of the best by words and by vector, of what is beside them, and of days that are meant."""
    words = _words(db, matching, query.terms, (0, _LAST_SEQ))
    similar: dict[int, float] = {}
    if index is not None and query.vector is not None:
        similar = index.best(db, matching, query.vector, query.k, large=True)
    leading = {
        seq for found in (words.scores, similar) for seq in heapq.nlargest(_LEADING, found, key=found.__getitem__)
    }
    wanted = words.scores.keys() | similar.keys() | set(_said(db, matching, query)) | _beside(db, matching, leading)
    codes, join = ("NULL", "") if index is None else ("v.codes", f"LEFT JOIN {index.table} v ON v.seq = r.seq")
    sql = (
        f"SELECT {_PLACE}, {codes} FROM json_each(?) wanted CROSS JOIN record r ON r.seq = wanted.value {join} "
        f"WHERE {matching.check}"
    )
    return _read(db, fetch(db, sql, (json.dumps(sorted(wanted)), *matching.values)), index), words


def _beside(db: apsw.Connection, matching: Condition, seqs: Iterable[int]) -> set[int]:
    """Return the turns up to two before and after these, in the same session."""
    sql = (
        "SELECT r.seq FROM json_each(?) wanted CROSS JOIN record m ON m.seq = wanted.value "
        "CROSS JOIN record r ON r.pool = m.pool AND r.grp = m.grp "
        f"AND r.position BETWEEN m.position - {BESIDE} AND m.position + {BESIDE} "
        f"WHERE r.session = m.session AND {matching.check}"
    )
    return {seq for (seq,) in fetch(db, sql, (json.dumps(list(seqs)), *matching.values))}


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


def _read(db: apsw.Connection, rows: Sequence[Row], index: VectorIndex | None) -> _Places:
    """Return rows of places, with codes at the end, in columns."""
    columns = zip(*rows, strict=True) if rows else iter([()] * 8)
    seqs, among, names, positions, sessions, times, written, codes = columns
    namespaces = dict(fetch(db, "SELECT id, namespace FROM pool"))
    windows, joined = windows_of(codes, index.quantizer.code_bytes if index else 1)
    with damage_noticed():
        places, group = _numbered(list(zip(among, names, strict=True)))
        sets, label = _numbered(written)
        return _Places(
            seqs=np.array(seqs, dtype=np.int64),
            groups=[(namespaces[pool], decode_group(name)) for pool, name in places],
            group=group,
            position=np.array(positions, dtype=np.int64),
            session=np.array(sessions, dtype=np.int64),
            created_at=np.array(times, dtype=np.int64),
            labels=_labels(db, [ids or "" for ids in sets]),
            label=label,
            windows=windows,
            codes=joined,
        )


def _similarity(places: _Places, index: VectorIndex | None, query: Query) -> "NDArray[np.float64]":
    """Return the cosine of the best window of each row; NaN for what has none."""
    similarity = np.full(len(places.seqs), np.nan)
    if index is not None and query.vector is not None and places.codes:
        scores = index.quantizer.scores(index.quantizer.rotate(query.vector[np.newaxis, :])[0], places.codes)
        similarity[places.windows] = -1.0
        np.maximum.at(similarity, places.windows, scores)
    return similarity


def _columns(places: _Places, words: _Words, similarity: "NDArray[np.float64]", searched: int) -> Matches:
    order = np.argsort(places.seqs)
    ordered = places.seqs[order]

    def rows_of(seqs: Iterable[int]) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
        """Return the rows of these seqs, and which of the seqs have one."""
        wanted = np.fromiter(seqs, dtype=np.int64)
        at = np.searchsorted(ordered, wanted)
        known = at < len(ordered)
        known[known] = ordered[at[known]] == wanted[known]
        return order[at[known]], known

    scores = np.zeros(len(ordered))
    rows, known = rows_of(words.scores)
    scores[rows] = np.fromiter(words.scores.values(), dtype=np.float64)[known]
    holds = np.zeros((len(words.holders), len(ordered)), dtype=np.bool_)
    for number, holders in enumerate(words.holders.values()):
        holds[number, rows_of(holders)[0]] = True
    return Matches(
        groups=places.groups,
        group=places.group,
        position=places.position,
        session=places.session,
        created_at=places.created_at,
        labels=places.labels,
        label=places.label,
        words=scores,
        similarity=similarity,
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
