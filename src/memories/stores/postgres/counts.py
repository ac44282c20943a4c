"""Counts records, tokens, vectors and labels per namespace; checks and repairs the counts.

Every transaction that writes updates the counts, so showing the status or listing tags takes no
longer in a larger store.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from memories.guard.validate import amount
from memories.stores.damage import Damaged
from memories.stores.postgres.query import (
    RECORDS,
    Selection,
    Transaction,
    at_refs,
    one_of,
    records_of,
)
from memories.stores.records import Collection, Filter, Finding, Ref

# The size of the tables in bytes, and whether this user can write to them.
SIZE = """
SELECT sum(pg_total_relation_size(oid))::bigint,
  NOT pg_is_in_recovery() AND current_setting('fsync')::boolean
  AND has_table_privilege('record', 'INSERT')
FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
"""
MANY_VECTORS = 1_000  # a namespace with this many live records with vectors needs an index

Part = tuple[str, str]  # a collection and a namespace in it

_ADD = """
INSERT INTO corpus (namespace, collection, ended, documents, tokens, embedded, deleted)
SELECT * FROM unnest(%s::text[], %s::text[], %s::boolean[],
  %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
ON CONFLICT (namespace, collection, ended) DO UPDATE SET
  documents = corpus.documents + excluded.documents,
  tokens = corpus.tokens + excluded.tokens, embedded = corpus.embedded + excluded.embedded,
  deleted = corpus.deleted + excluded.deleted
RETURNING collection, namespace, CASE WHEN ended THEN 0 ELSE embedded END
"""
_ADD_LABELS = """
INSERT INTO label (namespace, collection, key, value, live, ended)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[])
ON CONFLICT (namespace, collection, key, value)
DO UPDATE SET live = label.live + excluded.live, ended = label.ended + excluded.ended
"""
_FORGET_LABELS = """
DELETE FROM label l
USING unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS g(namespace, collection, key, value)
WHERE (l.namespace, l.collection, l.key, l.value) = (g.namespace, g.collection, g.key, g.value)
AND l.live <= 0 AND l.ended <= 0
"""


class Counted(NamedTuple):
    """The properties of a record that are counted.

    Attributes:
        ref: Its address.
        ended: Whether it has ended.
        ended_by: The action that ended it.
        length: Its number of tokens.
        labels: Its labels.
        embedded: Whether it has searchable vectors.
    """

    ref: Ref
    ended: bool
    ended_by: str | None
    length: int
    labels: Mapping[str, str]
    embedded: bool


def read_counted(db: Transaction, refs: Iterable[Ref]) -> dict[Ref, tuple[int, Counted]]:
    """Return each record's `seq` and its counted properties; `embedded` is always False."""
    columns = (
        "r.seq, r.collection, r.namespace, r.grp, r.position, "
        "r.ended_at IS NOT NULL, r.ended_by, r.length, r.labels"
    )
    records: dict[Ref, tuple[int, Counted]] = {}
    rows = at_refs(db, f"SELECT {columns} FROM record r", refs)
    for seq, collection, namespace, group, position, ended, ended_by, length, labels in rows:
        ref = Ref(Collection(collection), namespace, group, position)
        records[ref] = seq, Counted(ref, ended, ended_by, length, labels, embedded=False)
    return records


def change(
    db: Transaction, *, old: Iterable[Counted] = (), new: Iterable[Counted] = ()
) -> list[Part]:
    """Update the counts after records were added, removed or changed.

    Args:
        db: A transaction.
        old: Removed or changed records, in their previous state.
        new: Added or changed records, in their new state.

    Returns:
        The changed collections and namespaces in which many live records have vectors.
    """
    sums: dict[tuple[str, str, bool], list[int]] = {}
    live: Counter[tuple[str, str, str, str]] = Counter()
    ended: Counter[tuple[str, str, str, str]] = Counter()
    for sign, records in ((-1, old), (1, new)):
        for record in records:
            corpus = record.ref.namespace, str(record.ref.collection)
            total = sums.setdefault((*corpus, record.ended), [0, 0, 0, 0])
            deleted = record.ended and record.ended_by == "delete"
            numbers = (1, record.length, int(record.embedded), int(deleted))
            for column, number in enumerate(numbers):
                total[column] += sign * number
            labels = ended if record.ended else live
            for pair in record.labels.items():
                labels[(*corpus, *pair)] += sign
    rows = [(*corpus, *total) for corpus, total in sorted(sums.items()) if any(total)]
    vector_counts = db.rows(_ADD, _to_columns(rows)) if rows else []
    names = sorted(label for label in {*live, *ended} if live[label] or ended[label])
    if names:
        live_counts = [live[label] for label in names]
        ended_counts = [ended[label] for label in names]
        db.run(_ADD_LABELS, [*_to_columns(names), live_counts, ended_counts])
    return [
        (collection, namespace)
        for collection, namespace, embedded in vector_counts
        if embedded >= MANY_VECTORS
    ]


def _to_columns(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def forget_labels(db: Transaction, removed: Iterable[Counted]) -> bool:
    """Remove labels that only the removed records had; return whether any were removed."""
    names: set[tuple[str, ...]] = set()
    for record in removed:
        for pair in record.labels.items():
            names.add((record.ref.namespace, str(record.ref.collection), *pair))
    if not names:
        return False
    return bool(db.rows(f"{_FORGET_LABELS} RETURNING 1", _to_columns(sorted(names))))


def total(db: Transaction, selected: Selection, column: str = "documents") -> int:
    """Return the sum of a count over a filter's namespaces and states; ignore other conditions."""
    in_namespaces, values = one_of("namespace", selected.namespaces)
    sql = (
        f"SELECT sum({column})::bigint FROM corpus "
        f"WHERE {in_namespaces} AND collection = %s AND ended = ANY(%s)"
    )
    return int(db.value(sql, (*values, selected.collection, list(selected.states))) or 0)


def look_up(db: Transaction, selected: Selection, where: Filter) -> int | None:
    """Return how many records match a filter; None if the counts can't answer that."""
    if selected.whole:
        return total(db, selected)
    if where == Filter(where.collection, where.namespaces, state="ended", ended_by="delete"):
        return total(db, selected, "deleted")
    return None


def labels(db: Transaction, selected: Selection, key: str | None) -> dict[str, int]:
    """Return how many selected records have each label key or, given a key, each value."""
    in_namespaces, values = one_of("namespace", selected.namespaces)
    values = (*values, selected.collection)
    count = " + ".join("ended" if is_ended else "live" for is_ended in selected.states)
    column, condition = "key", "true"
    if key is not None:
        column, condition = "value", "key = %s"
        values = (*values, key)
    rows = db.rows(
        f"SELECT {column}, sum({count})::bigint FROM label "
        f"WHERE {in_namespaces} AND collection = %s AND {condition} "
        f"GROUP BY 1 HAVING sum({count}) > 0 ORDER BY 1",
        values,
    )
    return dict(rows)


_FIX = "run: memory doctor --fix"
_PAGE = 1_000
_NEXT_PAGE = "(r.namespace, r.seq) > (%s, %s) ORDER BY r.namespace, r.seq"


class _Derived(NamedTuple):
    """A table that is derived from `record`.

    Attributes:
        what: The contents of the table, for messages.
        table: Its name.
        columns: Its columns.
        expected: The query for the rows that it should have.
    """

    what: str
    table: str
    columns: str
    expected: str


_DERIVED = (
    _Derived(
        "counts of records and words",
        "corpus",
        "namespace, collection, ended, documents, tokens",
        "SELECT namespace, collection, ended_at IS NOT NULL, count(*), sum(length)::bigint "
        "FROM record GROUP BY 1, 2, 3",
    ),
    _Derived(
        "the list of labels of each namespace",
        "label",
        "namespace, collection, key, value",
        "SELECT DISTINCT r.namespace, r.collection, l.key, l.value "
        "FROM record r, jsonb_each_text(r.labels) l",
    ),
)
_EMPTY = {"corpus": "documents <> 0 OR tokens <> 0", "label": "true"}  # a corpus may be empty
_INVALID = """
SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'i'
AND NOT (i.indisvalid AND i.indisready)
"""
_OF_NO_RECORD = (
    "NOT EXISTS (SELECT 1 FROM record r WHERE r.namespace = t.namespace AND r.seq = t.seq)"
)


def check(db: Transaction, *, deep: bool) -> Iterator[Finding]:
    """Yield the store's problems; see `Store.check`."""
    for (name,) in db.rows(_INVALID):
        yield Finding(
            f"the index {name} is not valid, so searches don't use it", _FIX, derived=True
        )
    if not deep or not db.meta.schema:
        return
    # This reads every row, so that a damaged page raises an error.
    db.rows("SELECT sum(length(text)) + sum(length(tokens)) FROM record")
    for derived in _DERIVED:
        rows = f"SELECT {derived.columns} FROM {derived.table} WHERE {_EMPTY[derived.table]}"
        missing = f"SELECT count(*) FROM ({derived.expected} EXCEPT {rows}) missing"
        surplus = f"SELECT count(*) FROM ({rows} EXCEPT {derived.expected}) surplus"
        count = int(db.value(missing) or 0) + int(db.value(surplus) or 0)
        if count:
            places = amount(count, "place", "places")
            yield Finding(f"{derived.what} differ from the records in {places}", _FIX, derived=True)
    for table in ("access", *db.meta.vector_tables):
        count = int(db.value(f"SELECT count(*) FROM {table} t WHERE {_OF_NO_RECORD}") or 0)
        if count:
            surplus_rows = amount(count, "row", "rows")
            problem = f"{table} contains {surplus_rows} for records that do not exist"
            yield Finding(problem, _FIX, derived=True)


def damaged_records(db: Transaction) -> Iterator[Finding]:
    """Yield a finding for each record that this program can't have written."""
    if not db.meta.schema:
        return
    damaged = Damaged(2**31)
    last: tuple[str, int] = ("", 0)
    while rows := db.rows(f"{RECORDS} WHERE {_NEXT_PAGE} LIMIT {_PAGE}", last):
        last = rows[-1][2], rows[-1][0]
        records_of(rows, damaged)
    yield from damaged.since()


def repair(db: Transaction) -> list[str]:
    """Rebuild incorrect derived tables, in a transaction that has locked the entire store."""
    problems = [finding.what for finding in check(db, deep=True)]
    if not problems:
        return []
    for (name,) in db.rows(_INVALID):
        db.run(f"REINDEX INDEX {name}")
    for derived in _DERIVED:
        db.run(f"DELETE FROM {derived.table}")
        db.run(f"INSERT INTO {derived.table} ({derived.columns}) {derived.expected}")
    for table in ("access", *db.meta.vector_tables):
        db.run(f"DELETE FROM {table} t WHERE {_OF_NO_RECORD}")
    return problems
