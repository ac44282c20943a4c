"""What is wrong in a PostgreSQL store, and mending what is derived from the records.

Damage of its files is the server's to tell, by data checksums; here is compared what several tables say of one thing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from memories.stores.damage import Damaged
from memories.stores.postgres.query import RECORDS, records_of
from memories.stores.postgres.spaces import tables
from memories.stores.postgres.transaction import Transaction
from memories.stores.records import Finding

_FIX = "run: memory doctor --fix"
_PAGE = 1_000  # records that are read at once
_BEHIND = "(r.namespace, r.seq) > (%s, %s) ORDER BY r.namespace, r.seq"


class _Derived(NamedTuple):
    """A table whose rows follow from those of `record`: what it holds, its columns, and a query for what it should."""

    what: str
    table: str
    columns: str
    expected: str


_DERIVED = (
    _Derived(
        "counts of records and words",
        "corpus",
        "namespace, collection, ended, documents, tokens",
        "SELECT namespace, collection, ended_at IS NOT NULL, count(*), sum(length)::bigint FROM record "
        "GROUP BY 1, 2, 3",
    ),
    _Derived(
        "the list of labels of each namespace",
        "label",
        "namespace, collection, key, value",
        "SELECT DISTINCT r.namespace, r.collection, l.key, l.value FROM record r, jsonb_each_text(r.labels) l",
    ),
)
_EMPTY = {"corpus": "documents <> 0 OR tokens <> 0", "label": "true"}  # an empty corpus may stay
_INVALID = """
SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace AND NOT (i.indisvalid AND i.indisready) AND c.relkind = 'i'
"""
_OF_NO_RECORD = "NOT EXISTS (SELECT 1 FROM record r WHERE r.namespace = t.namespace AND r.seq = t.seq)"


def check(db: Transaction, *, deep: bool) -> Iterator[Finding]:
    """Yield what is wrong; see `Store.check`."""
    for (name,) in db.rows(_INVALID):
        yield Finding(f"the index {name} is not valid, so searches go without it", _FIX, derived=True)
    if not deep or not db.meta.schema:
        return
    db.rows("SELECT sum(length(text)) + sum(length(tokens)) FROM record")  # a page that can't be read is an error
    for derived in _DERIVED:
        rows = f"SELECT {derived.columns} FROM {derived.table} WHERE {_EMPTY[derived.table]}"
        count = sum(
            int(db.value(f"SELECT count(*) FROM ({one} EXCEPT {other}) differing") or 0)
            for one, other in ((derived.expected, rows), (rows, derived.expected))
        )
        if count:
            yield Finding(f"{derived.what} differ from the records in {count} places", _FIX, derived=True)
    for table in ("access", *tables(db)):
        count = int(db.value(f"SELECT count(*) FROM {table} t WHERE {_OF_NO_RECORD}") or 0)
        if count:
            yield Finding(f"{table} has {count} rows of records that do not exist", _FIX, derived=True)


def damaged_records(db: Transaction) -> Iterator[Finding]:
    """Yield the records that are not what a program of ours writes."""
    if not db.meta.schema:
        return
    noted = Damaged(2**31)
    behind: tuple[str, int] = ("", 0)
    while rows := db.rows(f"{RECORDS} WHERE {_BEHIND} LIMIT {_PAGE}", behind):
        behind = rows[-1][2], rows[-1][0]
        records_of(rows, noted)
    yield from noted.since()


def repair(db: Transaction) -> list[str]:
    """Make again what is derived and wrong, in a transaction that has locked the whole store."""
    mended = [finding.what for finding in check(db, deep=True)]
    if not mended:
        return []
    for (name,) in db.rows(_INVALID):
        db.run(f"REINDEX INDEX {name}")
    for derived in _DERIVED:
        db.run(f"DELETE FROM {derived.table}")
        db.run(f"INSERT INTO {derived.table} ({derived.columns}) {derived.expected}")
    for table in ("access", *tables(db)):
        db.run(f"DELETE FROM {table} t WHERE {_OF_NO_RECORD}")
    return mended
