"""Searches turns in the SQLite store; see `Store.matches`."""

import json
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import numpy as np

from memories.core.times import to_millis
from memories.errors import StoreDamaged
from memories.stores.damage import Damaged
from memories.stores.matches import MAX_OF_A_DAY, Addresses, addresses_of, leading, matches_at
from memories.stores.records import BESIDE, Matches, TurnQuery
from memories.stores.sqlite import words as index
from memories.stores.sqlite.errors import WordsDamaged, decoding_errors
from memories.stores.sqlite.quantize import windows_of
from memories.stores.sqlite.query import READ_ANY, Selection, labels_of, may_write, records_of
from memories.stores.sqlite.rows import decode_group, fetch, fetch_value
from memories.stores.sqlite.vectors import VectorIndex, is_large
from memories.stores.sqlite.words import Postings
from memories.stores.words import WordHits

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_CACHED_BYTES = 8_388_608  # maximum number of cached bytes of vector codes
_ADDRESS = "r.seq, r.pool, r.grp, r.position, coalesce(r.session, -1), r.created_at, r.labels"

Row = tuple[Any, ...]


class _Rows(NamedTuple):
    """The addresses of records, and the codes of their windows, each with the record's row."""

    addresses: Addresses
    codes: bytes
    windows: "NDArray[np.int64]"


class RowCache:
    """Cache for the rows of the last query, valid until the file changes.

    It helps because most searches repeat the same filter.
    """

    def __init__(self) -> None:
        self._last: tuple[Any, weakref.ref[apsw.Connection], _Rows] | None = None

    def read(
        self,
        db: apsw.Connection,
        sql: str,
        values: Sequence[Any],
        vectors: VectorIndex | None,
        damaged: Damaged,
    ) -> _Rows:
        """Return a query's rows, from the cache if nothing has been written in the meantime.

        A transaction that may write neither uses nor fills the cache, because its changes
        may be rolled back.
        """
        state = fetch_value(db, "PRAGMA data_version"), db.total_changes(), sql, tuple(values)
        is_writing = may_write(db)
        last = self._last
        if last is not None and not is_writing:
            last_state, last_db, rows = last
            if last_state == state and last_db() is db:
                return rows
        found = fetch(db, sql, values)
        rows = _read_sound(db, found, vectors, damaged)
        # A result without its damaged rows isn't cached, since each search must note the damage.
        is_complete = len(rows.addresses.seqs) == len(found)
        if is_complete and not is_writing and len(rows.codes) <= _MAX_CACHED_BYTES:
            self._last = state, weakref.ref(db), rows
        return rows


class TurnSearch(NamedTuple):
    """A search of turns in one transaction.

    Attributes:
        db: A connection inside a transaction.
        selected: Selects the records.
        vectors: The vectors; None to search by words only.
        query: The query.
        postings: The cache of the word index.
        rows: The cache of rows.
        damaged: Receives the damaged parts, which are left out.
    """

    db: apsw.Connection
    selected: Selection
    vectors: VectorIndex | None
    query: TurnQuery
    postings: Postings
    rows: RowCache
    damaged: Damaged

    def run(self) -> Matches:
        """Return all selected records if there are few, else the best by words and by vector."""
        if is_large(self.db, self.selected):
            words = self._search_words()
            rows = self._read_seqs(self._find_best(words))
            searched = index.document_count(self.db, self.selected)
        else:
            codes, join = self._codes()
            sql = f"SELECT {_ADDRESS}, {codes} FROM record r {join} WHERE {self.selected.find}"
            values = self.selected.values
            rows = self.rows.read(self.db, sql, values, self.vectors, self.damaged)
            seqs = rows.addresses.seqs.tolist()
            words = self._search_words(seqs)
            searched = len(seqs)
        return matches_at(rows.addresses, words, self._similarity(rows), searched)

    def _read_seqs(self, seqs: Iterable[int]) -> _Rows:
        codes, join = self._codes()
        sql = (
            f"SELECT {_ADDRESS}, {codes} FROM json_each(?) wanted "
            f"CROSS JOIN record r ON r.seq = wanted.value {join} WHERE {self.selected.check}"
        )
        rows = fetch(self.db, sql, (json.dumps(sorted(seqs)), *self.selected.values))
        return _read_sound(self.db, rows, self.vectors, self.damaged)

    def _codes(self) -> tuple[str, str]:
        if self.vectors is None:
            return "NULL", ""
        return "v.codes", f"LEFT JOIN {self.vectors.table} v ON v.seq = r.seq"

    def _search_words(self, among: Sequence[int] | None = None) -> WordHits:
        """Return the hits by words.

        If the word index is damaged but vectors can be searched, return no hits.
        """
        terms = self.query.terms
        try:
            return index.search_words(self.db, self.postings, self.selected, terms, among)
        except WordsDamaged as exc:
            if self.vectors is None:
                raise
            self.damaged.note(exc.finding())
            return WordHits({}, {term: [] for term in terms})

    def _find_best(self, words: WordHits) -> set[int]:
        """Return the `seq` of each candidate: the best turns, the turns next to them, and turns
        from days that the query mentions.
        """
        query, selected = self.query, self.selected
        similarities: dict[int, float] = {}
        if self.vectors is not None and query.vector is not None:
            vector = self.vectors.quantizer.rotate_query(query.vector)
            similarities = self.vectors.find_best(self.db, selected, vector, query.k, large=True)
        sql = (
            "SELECT r.seq FROM json_each(?) wanted CROSS JOIN record m ON m.seq = wanted.value "
            "CROSS JOIN record r ON r.pool = m.pool AND r.grp = m.grp "
            f"AND r.position BETWEEN m.position - {BESIDE} AND m.position + {BESIDE} "
            f"WHERE r.session = m.session AND {selected.check}"
        )
        seqs_json = json.dumps(leading(words.scores, similarities))
        rows = fetch(self.db, sql, (seqs_json, *selected.values))
        sql = (
            "SELECT r.seq FROM record r "
            "WHERE r.session IS NOT NULL AND r.created_at BETWEEN ? AND ? "
            f"AND {selected.find} ORDER BY abs(r.created_at - ?) LIMIT ?"
        )
        for first, last in query.days:
            bounds = to_millis(first), to_millis(last)
            middle = sum(bounds) // 2
            rows += fetch(self.db, sql, (*bounds, *selected.values, middle, MAX_OF_A_DAY))
        return {*words.scores, *similarities, *(seq for (seq,) in rows)}

    def _similarity(self, rows: _Rows) -> "NDArray[np.float64]":
        similarity = np.full(len(rows.addresses.seqs), np.nan)
        if self.vectors is not None and self.query.vector is not None and rows.codes:
            vector = self.vectors.quantizer.rotate_query(self.query.vector)
            scores = self.vectors.quantizer.scores(vector, rows.codes)
            similarity[rows.windows] = -1.0
            np.maximum.at(similarity, rows.windows, scores)
        return similarity


def _read_sound(
    db: apsw.Connection, rows: Sequence[Row], vectors: VectorIndex | None, damaged: Damaged
) -> _Rows:
    """Convert rows of `_ADDRESS` to columns; damaged rows are left out and noted in `damaged`."""
    try:
        return _to_columns(db, rows, vectors)
    except StoreDamaged:
        seqs = json.dumps([row[0] for row in rows])
        sql = f"{READ_ANY} WHERE r.seq IN (SELECT value FROM json_each(?))"
        sound = records_of(db, fetch(db, sql, (seqs,)), damaged)
        return _to_columns(db, [row for row in rows if row[0] in sound], vectors)


def _to_columns(db: apsw.Connection, rows: Sequence[Row], vectors: VectorIndex | None) -> _Rows:
    *columns, codes = zip(*rows, strict=True) if rows else [()] * 8
    namespaces = dict(fetch(db, "SELECT id, namespace FROM pool"))
    windows, joined = windows_of(codes, vectors.quantizer.code_bytes if vectors else 1)

    def group_of(pool: Any, group: Any) -> tuple[str, str]:
        return namespaces[pool], decode_group(group)

    def label_sets_of(id_sets: Sequence[str | None]) -> list[dict[str, str]]:
        labels = labels_of(db, id_sets)
        return [dict(labels[label] for label in (ids or "").split(",") if label) for ids in id_sets]

    with decoding_errors():
        addresses = addresses_of(columns, group_of, label_sets_of)
    return _Rows(addresses, joined, windows)
