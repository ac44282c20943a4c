"""How turns are searched in the SQLite store: `Store.matches`, in columns and term by term."""

import json
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import numpy as np

from memories.core.times import to_millis
from memories.errors import StoreDamaged
from memories.stores.columns import MAX_OF_A_DAY, Places, leading, matches_at, places_of
from memories.stores.damage import Damaged
from memories.stores.records import BESIDE, Matches, TurnQuery
from memories.stores.sqlite import words as index
from memories.stores.sqlite.errors import WordsDamaged
from memories.stores.sqlite.query import (
    READ_ANY,
    Selection,
    damage_noticed,
    fetch,
    fetch_value,
    labels_of,
    records_of,
)
from memories.stores.sqlite.schema import decode_group
from memories.stores.sqlite.vectors import VectorIndex, is_large, windows_of
from memories.stores.sqlite.words import Postings
from memories.stores.words import WordHits

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEPT_BYTES = 8_388_608  # of vectors
_PLACE = "r.seq, r.pool, r.grp, r.position, coalesce(r.session, -1), r.created_at, r.labels"

Row = tuple[Any, ...]


class _Rows(NamedTuple):
    """Places of records, the codes of their windows, and the row of each window."""

    places: Places
    codes: bytes
    windows: "NDArray[np.int64]"


class LastPlaces:
    """The rows that were read last, kept until the file changes: searches mostly repeat the same
    filter.
    """

    def __init__(self, postings: Postings) -> None:
        """Prepare; `postings` is what is kept of the index of words."""
        self.postings = postings
        self._last: tuple[Any, weakref.ref[apsw.Connection], _Rows] | None = None

    def read(
        self,
        db: apsw.Connection,
        sql: str,
        values: Sequence[Any],
        vectors: VectorIndex | None,
        damaged: Damaged,
    ) -> _Rows:
        """Return the rows of a query, from memory if nothing was written since.

        `data_version` changes with commits by others, the count of changes with those by this
        connection. What a connection sees while it writes may be undone, so it is neither kept nor
        taken from memory.
        """
        state = fetch_value(db, "PRAGMA data_version"), db.total_changes(), sql, tuple(values)
        writing = db.txn_state("main") == apsw.SQLITE_TXN_WRITE
        last = self._last
        if last is not None and not writing and last[0] == state and last[1]() is db:
            return last[2]
        found = fetch(db, sql, values)
        rows = _read_sound(db, found, vectors, damaged)
        complete = len(rows.places.seqs) == len(found)  # else each search tells what is damaged
        if not writing and complete and len(rows.codes) <= _KEPT_BYTES:
            self._last = state, weakref.ref(db), rows
        return rows


def find(
    db: apsw.Connection,
    selected: Selection,
    vectors: VectorIndex | None,
    query: TurnQuery,
    last: LastPlaces,
    damaged: Damaged,
) -> Matches:
    """Return all selected records if they are few, else the best by words and by vector.

    Args:
        db: A connection inside a transaction.
        selected: Which records.
        vectors: The vectors; None to search by words alone.
        query: The search.
        last: What the last search read, and what is kept of the index of words.
        damaged: Takes what is left out.
    """
    codes, join = (
        ("NULL", "")
        if vectors is None
        else ("v.codes", f"LEFT JOIN {vectors.table} v ON v.seq = r.seq")
    )
    if is_large(db, selected):
        words = _words((db, last.postings), selected, vectors, query, damaged)
        wanted = json.dumps(sorted(_best(db, selected, vectors, query, words)))
        sql = (
            f"SELECT {_PLACE}, {codes} FROM json_each(?) wanted CROSS JOIN record r ON r.seq = wanted.value {join} "
            f"WHERE {selected.check}"
        )
        rows = _read_sound(db, fetch(db, sql, (wanted, *selected.values)), vectors, damaged)
        searched = index.document_count(db, selected)
    else:
        sql = f"SELECT {_PLACE}, {codes} FROM record r {join} WHERE {selected.find}"
        rows = last.read(db, sql, selected.values, vectors, damaged)
        seqs = rows.places.seqs.tolist()
        words = _words((db, last.postings), selected, vectors, query, damaged, seqs)
        searched = len(seqs)
    return matches_at(rows.places, words, _similarity(rows, vectors, query), searched)


def _words(
    given: tuple[apsw.Connection, Postings],
    selected: Selection,
    vectors: VectorIndex | None,
    query: TurnQuery,
    damaged: Damaged,
    among: Sequence[int] | None = None,
) -> WordHits:
    """Return what is found by words; nothing where their index is damaged and vectors are left to
    search by.
    """
    try:
        return index.ranked(*given, selected, query.terms, among)
    except WordsDamaged as exc:
        if vectors is None:
            raise
        index.left_out(exc, damaged)
        return WordHits({}, {term: [] for term in query.terms})


def _best(
    db: apsw.Connection,
    selected: Selection,
    vectors: VectorIndex | None,
    query: TurnQuery,
    words: WordHits,
) -> set[int]:
    """Return the seqs of the best by words and by vector, of turns beside them, and of the days in
    the query.
    """
    similar: dict[int, float] = {}
    if vectors is not None and query.vector is not None:
        similar = vectors.best(db, selected, vectors.turn(query.vector), query.k, large=True)
    sql = (
        "SELECT r.seq FROM json_each(?) wanted CROSS JOIN record m ON m.seq = wanted.value "
        "CROSS JOIN record r ON r.pool = m.pool AND r.grp = m.grp "
        f"AND r.position BETWEEN m.position - {BESIDE} AND m.position + {BESIDE} "
        f"WHERE r.session = m.session AND {selected.check}"
    )
    rows = fetch(db, sql, (json.dumps(leading(words.scores, similar)), *selected.values))
    sql = (
        "SELECT r.seq FROM record r WHERE r.session IS NOT NULL AND r.created_at BETWEEN ? AND ? "
        f"AND {selected.find} ORDER BY abs(r.created_at - ?) LIMIT ?"
    )
    for first, last in query.days:
        bounds = to_millis(first), to_millis(last)
        rows += fetch(db, sql, (*bounds, *selected.values, sum(bounds) // 2, MAX_OF_A_DAY))
    return {*words.scores, *similar, *(seq for (seq,) in rows)}


def _read_sound(
    db: apsw.Connection, rows: Sequence[Row], vectors: VectorIndex | None, damaged: Damaged
) -> _Rows:
    """Return rows of `_PLACE`, with codes at the end, in columns; those that make no sense are left
    out and noted.
    """
    try:
        return _read(db, rows, vectors)
    except StoreDamaged:
        seqs = json.dumps([row[0] for row in rows])
        sound = records_of(
            db,
            fetch(db, f"{READ_ANY} WHERE r.seq IN (SELECT value FROM json_each(?))", (seqs,)),
            damaged,
        )
        return _read(db, [row for row in rows if row[0] in sound], vectors)


def _read(db: apsw.Connection, rows: Sequence[Row], vectors: VectorIndex | None) -> _Rows:
    """Return rows of `_PLACE`, with codes at the end, in columns."""
    *columns, codes = zip(*rows, strict=True) if rows else [()] * 8
    namespaces = dict(fetch(db, "SELECT id, namespace FROM pool"))
    windows, joined = windows_of(codes, vectors.quantizer.code_bytes if vectors else 1)

    def labels(sets: Iterable[str | None]) -> list[dict[str, str]]:
        known = labels_of(db, sets)
        return [
            dict(known[label] for label in (written or "").split(",") if label) for written in sets
        ]

    with damage_noticed():
        places = places_of(
            columns, lambda pool, group: (namespaces[pool], decode_group(group)), labels
        )
    return _Rows(places, joined, windows)


def _similarity(
    rows: _Rows, vectors: VectorIndex | None, query: TurnQuery
) -> "NDArray[np.float64]":
    """Return the cosine of the best window of each row; NaN if it has no vector."""
    similarity = np.full(len(rows.places.seqs), np.nan)
    if vectors is not None and query.vector is not None and rows.codes:
        scores = vectors.quantizer.scores(
            vectors.quantizer.rotate(query.vector[np.newaxis, :])[0], rows.codes
        )
        similarity[rows.windows] = -1.0
        np.maximum.at(similarity, rows.windows, scores)
    return similarity
