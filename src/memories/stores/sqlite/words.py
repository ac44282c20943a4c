"""Word search in the SQLite store: FTS5 tables, one for current memories, one for turns, one for ended records.

They are separate so that old versions and turns do not change how rare a word is in current memories.
"""

from collections.abc import Sequence

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
_SURPLUS = 4  # this many times `k` are ranked before a filter that most records match

Scores = dict[int, float]


def insert(db: apsw.Connection, seq: int, record: Record) -> None:
    """Index the words of a record, among the current or the ended ones."""
    from memories.text import index_text  # its patterns take 4 ms to compile, and reading does without them

    table = CURRENT[record.ref.collection] if record.ended_at is None else ENDED
    db.execute(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", (seq, index_text(spoken(record))))


def remove(db: apsw.Connection, seq: int) -> None:
    """Remove the words of a record from the index; their bytes stay in the file until `erase`."""
    for table in (*CURRENT.values(), ENDED):
        db.execute(f"DELETE FROM {table} WHERE rowid = ?", (seq,))


def erase(db: apsw.Connection) -> None:
    """Rewrite the index without the removed words."""
    for table in (*CURRENT.values(), ENDED):
        db.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")


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

    FTS5 keeps it as the first number of the record of totals, row 1 of its data table: seven bits a byte, the highest
    first, the eighth bit set in all bytes but the last.
    """
    count = 0
    for byte in fetch_value(db, f"SELECT block FROM {table}_data WHERE id = 1") or b"":
        count = count << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return count


def quoted(term: str) -> str:
    """Return a term as a literal of FTS5, in which nothing is an operator except a final `*`, for any ending."""
    beginning = term.removesuffix("*")
    literal = '"' + beginning.replace("\0", " ").replace('"', '""') + '"'
    return f"{literal}*" if beginning and beginning != term else literal
