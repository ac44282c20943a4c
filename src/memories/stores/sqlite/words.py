"""Word search in the SQLite store: FTS5 tables, one for current memories, one for turns, one for what was.

They are apart so that what was said once, or in passing, does not change how rare a word is in what is said now.
"""

from collections.abc import Sequence

import apsw

from memories.stores.records import Collection, Record
from memories.stores.sqlite.query import Condition, fetch, fetch_value

CURRENT = {Collection.MEMORY: "words", Collection.HISTORY: "turn_words"}
ENDED = "words_ended"

# In a store of more rows than this, words that very many rows have are left out of a search: ranking costs time for
# every row that matches, and such words tell the least.
_RANK_ALL_ROWS = 10_000
_RANK_AT_MOST = 1_500
_SURPLUS = 4  # so many times the wanted records are ranked before a filter that leaves most of them

Scores = dict[int, float]


def insert(db: apsw.Connection, seq: int, record: Record) -> None:
    """Index the words of a record, among those that are current or those that ended."""
    from memories.stores.words import spoken
    from memories.text import index_text  # its patterns take 4 ms to compile, and reading does without them

    table = CURRENT[record.ref.collection] if record.ended_at is None else ENDED
    db.execute(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", (seq, index_text(spoken(record))))


def remove(db: apsw.Connection, seq: int) -> None:
    """Take the words of a record out; their bytes stay in the file until `erase`."""
    for table in (*CURRENT.values(), ENDED):
        db.execute(f"DELETE FROM {table} WHERE rowid = ?", (seq,))


def erase(db: apsw.Connection) -> None:
    """Rewrite the index without what was removed."""
    for table in (*CURRENT.values(), ENDED):
        db.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")


def best(db: apsw.Connection, matching: Condition, terms: Sequence[str], k: int) -> Scores:
    """Return the `k` best records by BM25 of the terms, any of which may match.

    Args:
        db: A connection inside a transaction.
        matching: Which records are meant.
        terms: See `Store.candidates`.
        k: How many.
    """
    literals = [quoted(term) for term in terms]
    found: Scores = {}
    for table in tables(matching):
        match = " OR ".join(telling(db, table, literals))
        if match:
            found |= _best_of(db, table, matching, match, k)
    return dict(sorted(found.items(), key=lambda item: -item[1])[:k])


def tables(matching: Condition) -> tuple[str, ...]:
    """Return the tables that hold the words of the records that are meant."""
    current = CURRENT[matching.collection]
    return (current, ENDED) if matching.also_ended else (current,)


def _best_of(db: apsw.Connection, table: str, matching: Condition, match: str, k: int) -> Scores:
    # The index alone finds the best fast; looking up the record of every match, as a filter must, takes as long again.
    ranked = f"SELECT rowid AS seq, -rank AS score FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT ?"
    sql = (
        f"SELECT r.seq, score FROM ({ranked}) CROSS JOIN record r USING (seq) "
        f"WHERE {matching.check} ORDER BY score DESC LIMIT ?"
    )
    if matching.broad:
        rows = fetch(db, sql, (match, _SURPLUS * k, *matching.values, k))
        if len(rows) == k:
            return dict(rows)
    return dict(fetch(db, sql, (match, -1, *matching.values, k)))


def telling(db: apsw.Connection, table: str, terms: list[str], between: tuple[int, int] = (0, 2**62)) -> list[str]:
    """Return the terms that are rare enough to be ranked by, at least the rarest one.

    Args:
        db: A connection inside a transaction.
        table: The index.
        terms: As FTS5 takes them.
        between: The first and the last row that matter.
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
    """Return how many rows an index has, without a walk through them.

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
    """Return a term as FTS5 takes it literally, with no sign in it an operator, but for a final `*`: any ending."""
    beginning = term.removesuffix("*")
    literal = '"' + beginning.replace("\0", " ").replace('"', '""') + '"'
    return f"{literal}*" if beginning and beginning != term else literal
