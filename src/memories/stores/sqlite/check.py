"""Checks a SQLite store file, and repairs the parts that are derived from the records: see `PARTS`.

Checksums reveal damage in a record and its vectors; everything else is compared with the records.
If a page was replaced with an older version of itself, this is not detected, because its checksums
match.
"""

import contextlib
import functools
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apsw

from memories.errors import StoreDamaged
from memories.guard.validate import amount
from memories.stores.damage import Damaged
from memories.stores.records import Finding
from memories.stores.sqlite import derived
from memories.stores.sqlite import words as index
from memories.stores.sqlite.derived import Inspection, derived_finding
from memories.stores.sqlite.engine import scratch
from memories.stores.sqlite.errors import FIX, NEVER_WRITTEN, SALVAGE
from memories.stores.sqlite.query import read_pages
from memories.stores.sqlite.rows import (
    RECREATE_WORDS,
    WORD_TABLES,
    WORDS,
    WORDS_ENDED,
    WORDS_EPOCH,
    advance_epoch,
    fetch,
    fetch_value,
    varints_in,
)
from memories.stores.sqlite.spaces import StoredVectors

SMALL = 400  # the cheap check reads all records of a store that has no more than this
SOME = 200  # number of records that the cheap check reads in a larger store, in a few ms
SMALL_BYTES = 2_097_152  # if a file is larger than this, only a deep check reads all its pages
_UNREADABLE = (
    apsw.CorruptError,
    apsw.SQLError,
    apsw.ConstraintError,
    StoreDamaged,
    *NEVER_WRITTEN,
)
_ALL = 2**62


class DerivedPart(NamedTuple):
    """A part of the file that is derived from the records.

    Attributes:
        what: Its name, for users.
        check: Yields its problems.
        rebuild: Rebuilds it.
        is_cheap: Whether the cheap check of a small store includes it.
        rows: A pattern for the names of its tables in messages from SQLite's check.
    """

    what: str
    check: Callable[[Inspection], Iterable[Finding]]
    rebuild: Callable[[Inspection], object]
    is_cheap: bool = True
    rows: str = ""


def check(db: apsw.Connection, vectors: StoredVectors, *, deep: bool) -> list[Finding]:
    """Return a store's problems; see `Store.check`.

    Args:
        db: A connection inside a transaction.
        vectors: The store's vectors.
        deep: Whether to check everything. If not, all records of a small store are checked, but
            only some records of a large one.
    """
    sql = "SELECT count(*) FROM (SELECT 1 FROM record LIMIT ?)"
    is_small = int(fetch_value(db, sql, (SMALL + 1,))) <= SMALL
    size = int(db.pragma("page_count")) * int(db.pragma("page_size"))
    inspection = Inspection(db, vectors)
    findings: list[Finding] = []
    if deep or size <= SMALL_BYTES:
        findings += _guard("the file", lambda: _check_pages(db, deep=deep))
    if not deep and not is_small:
        findings += _guard("the word index", lambda: _find_unusable_words(inspection))
        return [*findings, *_guard("records", lambda: _check_some_records(db))]
    findings += _guard("records", lambda: _check_all_records(inspection))
    if inspection.is_complete:
        for part in PARTS:
            if deep or part.is_cheap:
                check_part = functools.partial(part.check, inspection)
                findings += _guard(part.what, check_part, derived=True)
    return findings


def repair(db: apsw.Connection, vectors: StoredVectors) -> list[str]:
    """Rebuild the derived parts that are incorrect, and return their names.

    This must run inside a writing transaction.

    Raises:
        StoreDamaged: SQLite can't read the records.
    """
    inspection = Inspection(db, vectors)
    findings = list(_guard("records", lambda: _check_all_records(inspection)))
    if not inspection.is_complete:
        raise StoreDamaged(f"nothing was repaired: {findings[0].what}; {SALVAGE}")
    repaired: list[str] = []
    messages = _run_sqlite_check(db, "integrity_check")
    if any(map(_is_of_index, messages)) and _try(db, lambda: db.execute("REINDEX")):
        repaired.append("the indexes of the tables")
    for part in PARTS:
        is_wrong = any(_is_of(part, message) for message in messages)
        if not is_wrong:
            is_wrong = any(list(_guard(part.what, functools.partial(part.check, inspection))))
        if is_wrong and _try(db, functools.partial(part.rebuild, inspection)):
            repaired.append(part.what)
    return repaired


def _try(db: apsw.Connection, rebuild: Callable[[], object]) -> bool:
    """Rebuild a part; return whether that succeeded.

    A failure must not stop the other repairs.
    """
    db.execute("SAVEPOINT mending")
    try:
        rebuild()
    except _UNREADABLE:
        db.execute("ROLLBACK TO mending")
        return False
    finally:
        db.execute("RELEASE mending")
    return True


def _guard(
    what: str, check_part: Callable[[], Iterable[Finding]], *, derived: bool = False
) -> Iterator[Finding]:
    """Yield a check's findings; if the check can't read its part, yield a finding about that."""
    try:
        yield from check_part()
    except _UNREADABLE as exc:
        has_wrong_table = isinstance(exc, apsw.SQLError)  # the table's definition was changed
        can_rebuild = derived and not has_wrong_table
        remedy = FIX if can_rebuild else SALVAGE
        yield Finding(f"cannot read {what} ({exc})", remedy, derived=can_rebuild)


# --- the file and its records


def _check_pages(db: apsw.Connection, *, deep: bool) -> Iterator[Finding]:
    for message in _run_sqlite_check(db, "integrity_check" if deep else "quick_check"):
        if _WORDS_TABLES.search(message) and not _is_of_pages(message):
            continue  # see `_find_unusable_words`
        if message.startswith("NULL value in record."):
            continue  # the record's checksum reveals this damage
        is_derived = _is_of_index(message) or any(_is_of(part, message) for part in PARTS)
        remedy = FIX if is_derived else SALVAGE
        yield Finding(f"the file is damaged: {message}", remedy, derived=is_derived)


def _run_sqlite_check(db: apsw.Connection, check: str) -> list[str]:
    """Run SQLite's check on the tables that it can open; return its messages."""
    _find_words_damage(db, None)  # refreshes SQLite's view of the word index
    try:
        rows: list[Any] = db.execute(f"PRAGMA {check}").fetchall()
    except apsw.SQLError:  # SQLite can't open a damaged word index
        rows = []
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        for (name,) in fetch(db, tables):
            try:
                rows += db.execute(f"PRAGMA {check}({name})").fetchall()
            except apsw.CorruptError as exc:
                rows.append((f"Tree of {name}: {exc}",))
    return [str(message) for (message,) in rows if message != "ok"]


def _is_of_pages(message: str) -> bool:
    return message.startswith(("Tree ", "Page ", "Freelist", "On tree", "***"))


def _is_of_index(message: str) -> bool:
    return "index" in message and not _WORDS_TABLES.search(message)


def _is_of(part: DerivedPart, message: str) -> bool:
    return bool(part.rows and re.search(part.rows, message)) and not _is_of_pages(message)


def _check_all_records(inspection: Inspection) -> Iterator[Finding]:
    damaged = Damaged(_ALL)
    for page in read_pages(inspection.db, damaged):
        inspection.damaged.update(seq for seq, record in page.items() if record is None)
    inspection.is_complete = True
    yield from damaged.since()


def _check_some_records(db: apsw.Connection) -> Iterator[Finding]:
    """Yield findings about damage in the newest records and in a random range of others."""
    damaged = Damaged(_ALL)
    newest = int(fetch_value(db, "SELECT max(seq) FROM record"))
    oldest = int(fetch_value(db, "SELECT min(seq) FROM record"))
    half = SOME // 2
    choices = max(1, newest - half - oldest + 1)
    drawn = oldest + int.from_bytes(os.urandom(8), "big") % choices
    for first in (newest - half, drawn):
        for _ in read_pages(db, damaged, "r.seq BETWEEN ? AND ?", first, first + half):
            pass
    yield from damaged.since()


# --- words

_KIND_OF_WORDS = "CASE WHEN r.ended_at IS NOT NULL THEN 'ended' ELSE p.collection END"
_WORDS_TABLES = re.compile(
    r"fts5|inverted index|\b(turn_words|words_ended|words)(_data|_idx|_docsize|_config)?\b", re.I
)
_TABLES_OF_WORDS = {
    **{str(kind): table for kind, table in WORDS.items()},
    "ended": WORDS_ENDED,
}


def _find_words_damage(db: apsw.Connection, check: str | None) -> str | None:
    """Return why FTS5 can't use the word index; None if it can.

    Args:
        db: A connection inside a transaction.
        check: The pragma that checks the index, such as `quick_check`. If it is None, only a check
            that takes almost no time is made.
    """
    try:
        for table in WORD_TABLES:
            # SQLite's check uses a cached view of the index. A query refreshes the view, in case
            # another process has rebuilt the index.
            db.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH 'a' LIMIT 1").fetchall()
        segments = {table: index.read_segments(db, table) for table in WORD_TABLES}
        if check is None:
            return None
        for table, first_pages in segments.items():
            damage = _find_table_damage(db, table, first_pages, check)
            if damage is not None:
                return damage
    except (apsw.CorruptError, apsw.SQLError) as exc:
        return str(exc)
    return None


def _find_table_damage(
    db: apsw.Connection, table: str, first_pages: Mapping[int, int], check: str
) -> str | None:
    sql = (
        f"SELECT segid FROM {table}_idx "
        f"UNION SELECT id >> {index.SEGMENT_SHIFT} FROM {table}_data WHERE id > 10"
    )
    segments = {number for (number,) in fetch(db, sql)}
    if not first_pages.keys() >= segments:
        return f"{table} contains pages of a segment that does not exist"
    # FTS5 needs these totals when it removes a row.
    averages = fetch_value(db, f"SELECT block FROM {table}_data WHERE id = 1")
    totals = [0]
    if type(averages) is bytes:
        totals = list(varints_in(averages))
    rows = fetch(db, f"SELECT sz FROM {table}_docsize")
    sizes = [index.count_tokens(size) for (size,) in rows]
    if totals != [len(sizes), sum(sizes)] and (totals or sizes):
        return f"{table} contains wrong row counts"
    for part in ("", "_data", "_idx", "_docsize", "_config"):
        for (message,) in db.execute(f"PRAGMA {check}({table}{part})").fetchall():
            if message != "ok" and not _is_of_pages(str(message)):
                return str(message)
    return None


def _find_unusable_words(inspection: Inspection, check: str | None = None) -> Iterator[Finding]:
    damage = _find_words_damage(inspection.db, check)
    if damage is not None:
        yield derived_finding(f"the word index is damaged: {damage}")


def _check_rows_of_words(inspection: Inspection) -> Iterator[Finding]:
    """Yield findings about wrong rows in the word index, and about wrong word counts."""
    for finding in _find_unusable_words(inspection, "quick_check"):
        inspection.has_bad_words = True
        yield finding
    documents: Counter[tuple[Any, bool]] = Counter()
    tokens: Counter[tuple[Any, bool]] = Counter()
    if inspection.has_bad_words:
        return
    for kind, table in _TABLES_OF_WORDS.items():
        sql = (
            "SELECT r.seq, r.pool FROM record r JOIN pool p ON p.id = r.pool "
            f"WHERE {_KIND_OF_WORDS} = ?"
        )
        pools = dict(fetch(inspection.db, sql, (kind,)))
        sizes = dict(fetch(inspection.db, f"SELECT id, sz FROM {table}_docsize"))
        wrong = pools.keys() ^ sizes.keys()
        for seq, size in sizes.items():
            if type(size) is not bytes or not size:
                wrong.add(seq)
        count = len(wrong - inspection.damaged)
        if count:
            inspection.has_bad_words = True
            records = amount(count, "record", "records")
            yield derived_finding(f"the word index and the records differ in {records}")
        for seq in pools.keys() & sizes.keys():
            corpus = pools[seq], kind == "ended"
            documents[corpus] += 1
            tokens[corpus] += index.count_tokens(sizes[seq])
    if not inspection.has_bad_words and not inspection.damaged:
        expected = {(*corpus, count, tokens[corpus]) for corpus, count in documents.items()}
        sql = "SELECT pool, ended, documents, tokens FROM corpus WHERE documents > 0"
        if expected != {*fetch(inspection.db, sql)}:
            yield derived_finding("a namespace's word counts are wrong")


def _check_words(inspection: Inspection) -> Iterator[Finding]:
    """Yield findings about a damaged word index or, if the index is intact, about wrong words."""
    if inspection.has_bad_words:
        return  # `_check_rows_of_words` has reported the damage
    findings = list(_find_unusable_words(inspection, "integrity_check"))
    yield from findings or _compare_words(inspection)


def _compare_words(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding if the words of some records differ from those in a new index."""
    wrong: set[int] = set()
    with contextlib.closing(scratch()) as fresh, fresh:
        for table in _TABLES_OF_WORDS.values():
            fresh.execute(RECREATE_WORDS.format(table=table))
        sql = "SELECT sql FROM sqlite_schema WHERE name = 'corpus'"
        fresh.execute(fetch_value(inspection.db, sql))
        index.insert_all(inspection.db, fresh)
        for table in _TABLES_OF_WORDS.values():
            wrong |= _differing(_hash_rows(inspection.db, table), _hash_rows(fresh, table))
            sizes = f"SELECT id, sz FROM {table}_docsize"
            wrong |= _differing(dict(fetch(inspection.db, sizes)), dict(fetch(fresh, sizes)))
    count = len(wrong - inspection.damaged)
    if count:
        records = amount(count, "record", "records")
        yield derived_finding(f"the word index differs from the text of {records}")


def _differing(first: dict[int, Any], second: dict[int, Any]) -> set[int]:
    return {seq for seq in first.keys() | second.keys() if first.get(seq) != second.get(seq)}


def _hash_rows(db: apsw.Connection, table: str) -> dict[int, int]:
    """Return, for each row in a word index, a hash of its terms and their positions."""
    hashes: dict[int, int] = {}
    name = f"instances_{table}"
    db.execute(f"CREATE VIRTUAL TABLE temp.{name} USING fts5vocab('main', '{table}', 'instance')")
    try:
        for term, seq, place in db.execute(f"SELECT term, doc, offset FROM temp.{name}"):
            hashes[seq] = hashes.get(seq, 0) + zlib.crc32(f"{place} {term}".encode())
    finally:
        db.execute(f"DROP TABLE temp.{name}")
    return hashes


def _recreate_words(db: apsw.Connection) -> None:
    """Replace the word index with an empty one, even if it is damaged."""
    for table in WORD_TABLES:
        try:
            db.execute(RECREATE_WORDS.format(table=table))
        except apsw.SQLError:  # the table's definition is damaged, so FTS5 can't drop the table
            db.execute("PRAGMA writable_schema=ON")
            db.execute("DELETE FROM sqlite_schema WHERE name = ? AND rootpage = 0", (table,))
            db.execute("PRAGMA writable_schema=RESET")
            db.execute(RECREATE_WORDS.format(table=table))
    db.execute("DELETE FROM corpus")


def _rebuild_words(inspection: Inspection) -> None:
    inspection.has_bad_words = True  # SQLite may still have a cached view of the old index
    _recreate_words(inspection.db)
    index.insert_all(inspection.db, inspection.db)
    advance_epoch(inspection.db, WORDS_EPOCH)


# --- the parts

PARTS = (
    # The triggers come first, because the repairs of the other parts fire them.
    DerivedPart("triggers that count", derived.find_wrong_triggers, derived.recreate_triggers),
    DerivedPart(
        "the number of the last record", derived.find_wrong_last_seq, derived.rebuild_last_seq
    ),
    DerivedPart(
        "the description of the vectors",
        derived.find_wrong_descriptions,
        derived.repair_descriptions,
    ),
    *(
        DerivedPart(table.what, table.check, table.rebuild, rows=rf"\b{table.table}\b")
        for table in derived.DERIVED_TABLES
    ),
    DerivedPart("counts of reads", derived.find_orphaned_accesses, derived.drop_orphaned_accesses),
    DerivedPart(
        "the word index",
        _check_rows_of_words,
        _rebuild_words,
        rows=rf"{_WORDS_TABLES.pattern}|\bcorpus\b",
    ),
    DerivedPart("the words in the index", _check_words, _rebuild_words, is_cheap=False),
    DerivedPart(
        "vectors",
        derived.find_damaged_vectors,
        derived.drop_damaged_vectors,
        rows=r"\b(staged_)?(turn_)?vector\b",
    ),
    DerivedPart(
        "blocks of vectors",
        derived.find_wrong_blocks,
        derived.rebuild_blocks,
        is_cheap=False,
        rows=r"\b(turn_)?block\b",
    ),
    # The counts come last, because they depend on the other parts.
    DerivedPart(
        "the counts of a namespace",
        derived.find_wrong_counts,
        derived.recount,
        rows=r"\bkey_pool\b|\bpool\.(live|deleted|without_vector)\b",
    ),
)
