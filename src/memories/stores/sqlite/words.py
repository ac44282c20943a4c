"""Word search in the SQLite store: FTS5 tables, one for current memories, one for turns, one for ended records.

They are separate so that old versions and turns do not change how rare a word is in current memories.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apsw

from memories.stores.records import Collection, Record
from memories.stores.sqlite.query import Selection, fetch, fetch_value
from memories.stores.words import best as highest
from memories.stores.words import spoken

CURRENT = {Collection.MEMORY: "words", Collection.HISTORY: "turn_words"}
ENDED = "words_ended"

# In a store of more rows than this, a search leaves out words that very many rows have: ranking takes time for every
# row that matches, and such words tell the least.
_RANK_ALL_ROWS = 10_000
_RANK_AT_MOST = 1_500
_MERGED_PAGES = 250  # of 4 kB that an erasure rewrites before it lets others write
_SURPLUS = 4  # this many times `k` are ranked before a filter that most records match

Scores = dict[int, float]


def insert(db: apsw.Connection, seq: int, record: Record) -> None:
    """Index the words of a record, among the current or the ended ones."""
    from memories.text import index_text  # its patterns take 4 ms to compile, and reading does without them

    table = CURRENT[record.ref.collection] if record.ended_at is None else ENDED
    db.execute(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", (seq, index_text(spoken(record))))


def remove(db: apsw.Connection, seq: int) -> None:
    """Remove the words of a record from the index; their bytes stay in the file until `erase` has rewritten them."""
    for table in (*CURRENT.values(), ENDED):
        db.execute(f"DELETE FROM {table} WHERE rowid = ?", (seq,))


def unerased(db: apsw.Connection) -> "set[Segment]":
    """Return the parts of the index that still have the bytes of removed words."""
    return {segment for segment, removed in _segments(db).items() if removed}


def erase(db: apsw.Connection, segments: "set[Segment]") -> "set[Segment]":
    """Rewrite a piece of these parts without the removed words, some milliseconds' worth; return those that are left.

    FTS5 marks a row as removed and drops its words when it merges parts. A negative number of pages has it merge all
    parts of a table, and go on with that merge whenever it is asked again.
    """
    for table in sorted({segment.table for segment in segments}):
        before = db.total_changes()
        db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('merge', {-_MERGED_PAGES})")
        if db.total_changes() - before < 2:  # as FTS5 says that it finds nothing to merge
            db.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
    return segments & _segments(db).keys()


class Segment(NamedTuple):
    """A part of an index: a number, which may be used again for a later part, and which writes it has the words of."""

    table: str
    number: int
    first: int
    last: int


def _segments(db: apsw.Connection) -> dict[Segment, int]:
    """Return the parts of the index, and how many pages of marks of removed rows each has.

    They are in the record of the structure, row 10 of the data table: a cookie of 4 bytes, a mark of 4 bytes, then
    numbers of seven bits a byte: levels, segments, writes; for each level a number, how many segments, and for each of
    these its number, first page, last page, first write, last write, pages of marks, marks, rows.
    """
    found: dict[Segment, int] = {}
    for table in (*CURRENT.values(), ENDED):
        numbers = _numbers(fetch_value(db, f"SELECT block FROM {table}_data WHERE id = 10")[8:])
        levels, _, _ = (next(numbers) for _ in range(3))
        for _ in range(levels):
            next(numbers)
            for _ in range(next(numbers)):
                number, _, _, first, last, marks, _, _ = (next(numbers) for _ in range(8))
                found[Segment(table, number, first, last)] = marks
    return found


def _numbers(block: bytes) -> Iterator[int]:
    """Yield the numbers of a record of FTS5: seven bits a byte, the eighth set in all bytes but the last."""
    number = length = 0
    for byte in block:
        length += 1
        whole = length == 9  # the ninth byte counts with all its bits
        number = number << 8 | byte if whole else number << 7 | byte & 0x7F
        if whole or byte < 0x80:
            yield number
            number = length = 0


def best(db: apsw.Connection, selected: Selection, terms: Sequence[str], k: int) -> Scores:
    """Return the `k` best records by BM25 of the terms, any of which may match.

    Args:
        db: A connection inside a transaction.
        selected: Which records.
        terms: See `Store.candidates`.
        k: How many.
    """
    literals = [quoted(term) for term in terms]
    found: Scores = {}
    for table in tables(selected):
        match = " OR ".join(rare_terms(db, table, literals))
        if match:
            found |= _best_of(db, table, selected, match, k)
    return highest(found, k)


def tables(selected: Selection) -> tuple[str, ...]:
    """Return the tables with the words of the selected records."""
    current = CURRENT[selected.collection]
    return (current, ENDED) if selected.also_ended else (current,)


def _best_of(db: apsw.Connection, table: str, selected: Selection, match: str, k: int) -> Scores:
    # The index alone finds the best fast; looking up the record of every match, as a filter must, takes as long again.
    ranked = f"SELECT rowid AS seq, -rank AS score FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT ?"
    sql = (
        f"SELECT r.seq, score FROM ({ranked}) CROSS JOIN record r USING (seq) "
        f"WHERE {selected.check} ORDER BY score DESC LIMIT ?"
    )
    if selected.broad:
        rows = fetch(db, sql, (match, _SURPLUS * k, *selected.values, k))
        if len(rows) == k:
            return dict(rows)
    return dict(fetch(db, sql, (match, -1, *selected.values, k)))


def rare_terms(db: apsw.Connection, table: str, terms: list[str], between: tuple[int, int] = (0, 2**62)) -> list[str]:
    """Return the terms that are rare enough to be ranked by, at least the rarest one.

    Args:
        db: A connection inside a transaction.
        table: The index.
        terms: As FTS5 takes them.
        between: The first and the last row to look at.
    """
    if min(row_count(db, table), between[1] - between[0] + 1) <= _RANK_ALL_ROWS:
        return terms
    sql = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? AND rowid BETWEEN ? AND ? LIMIT ?)"
    counts = {term: int(fetch_value(db, sql, (term, *between, _RANK_AT_MOST))) for term in terms}
    kept: list[str] = []
    total = 0
    for term in sorted(terms, key=counts.__getitem__):
        total += counts[term]
        if kept and total > _RANK_AT_MOST:
            break
        kept.append(term)
    return kept


def row_count(db: apsw.Connection, table: str) -> int:
    """Return how many rows an index has, without reading them all.

    FTS5 keeps it as the first number of the record of totals, row 1 of its data table.
    """
    return next(_numbers(fetch_value(db, f"SELECT block FROM {table}_data WHERE id = 1") or b""), 0)


def quoted(term: str) -> str:
    """Return a term as a literal of FTS5, in which nothing is an operator except a final `*`, for any ending."""
    beginning = term.removesuffix("*")
    literal = '"' + beginning.replace("\0", " ").replace('"', '""') + '"'
    return f"{literal}*" if beginning and beginning != term else literal
