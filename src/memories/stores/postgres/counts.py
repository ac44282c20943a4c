"""Counts of records, tokens, vectors and labels of each namespace, and their repair.

Every transaction that writes keeps them in step, so neither a status nor a list of tags takes
longer in a larger store.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from memories.stores.damage import Damaged
from memories.stores.postgres.query import RECORDS, Selection, one_of, records_of
from memories.stores.postgres.transaction import Transaction
from memories.stores.records import Filter, Finding, Ref

MANY_VECTORS = 1_000  # of live records of a namespace: then they get an index

Place = tuple[str, str]  # collection, namespace

_ADD = """
INSERT INTO corpus (namespace, collection, ended, documents, tokens, embedded, deleted)
SELECT * FROM unnest(%s::text[], %s::text[], %s::boolean[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
ON CONFLICT (namespace, collection, ended) DO UPDATE SET documents = corpus.documents + excluded.documents,
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
DELETE FROM label l USING unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS g(namespace, collection, key, value)
WHERE (l.namespace, l.collection, l.key, l.value) = (g.namespace, g.collection, g.key, g.value)
AND l.live <= 0 AND l.ended <= 0
"""


class Counted(NamedTuple):
    """A record as it is counted.

    Attributes:
        ref: Where it is.
        ended: Whether it has ended.
        ended_by: What ended it.
        length: How many tokens it has.
        labels: Its labels.
        embedded: Whether it has vectors that are searched.
    """

    ref: Ref
    ended: bool
    ended_by: str | None
    length: int
    labels: Mapping[str, str]
    embedded: bool


def change(
    db: Transaction, *, gone: Iterable[Counted] = (), new: Iterable[Counted] = ()
) -> list[Place]:
    """Count records that are gone, or were as they are no longer, and those that are there now.

    Args:
        db: A transaction.
        gone: What is counted no longer.
        new: What is counted from now on.

    Returns:
        Which collections and namespaces, of those that changed, have many live records with
        vectors.
    """
    sums: dict[tuple[str, str, bool], list[int]] = {}
    live: Counter[tuple[str, str, str, str]] = Counter()
    ended: Counter[tuple[str, str, str, str]] = Counter()
    for sign, some in ((-1, gone), (1, new)):
        for record in some:
            place = record.ref.namespace, str(record.ref.collection)
            total = sums.setdefault((*place, record.ended), [0, 0, 0, 0])
            deleted = record.ended and record.ended_by == "delete"
            for at, number in enumerate((1, record.length, int(record.embedded), int(deleted))):
                total[at] += sign * number
            labels = ended if record.ended else live
            for pair in record.labels.items():
                labels[(*place, *pair)] += sign
    rows = [(*corpus, *total) for corpus, total in sorted(sums.items()) if any(total)]
    found = db.rows(_ADD, [list(column) for column in zip(*rows, strict=True)]) if rows else []
    names = sorted(label for label in {*live, *ended} if live[label] or ended[label])
    if names:
        columns = [list(column) for column in zip(*names, strict=True)]
        db.run(
            _ADD_LABELS,
            [*columns, [live[label] for label in names], [ended[label] for label in names]],
        )
    return [
        (collection, namespace)
        for collection, namespace, embedded in found
        if embedded >= MANY_VECTORS
    ]


def forget_labels(db: Transaction, gone: Iterable[Counted]) -> bool:
    """Remove the labels of records that are gone, as far as no other record has them; return
    whether there were any.
    """
    names = sorted(
        {(r.ref.namespace, str(r.ref.collection), *pair) for r in gone for pair in r.labels.items()}
    )
    columns = [list(column) for column in zip(*names, strict=True)]
    return bool(names and db.rows(f"{_FORGET_LABELS} RETURNING 1", columns))


def total(db: Transaction, selected: Selection, column: str = "documents") -> int:
    """Return how many records a filter without further conditions selects, or another sum of
    theirs.
    """
    among, values = one_of("namespace", selected.namespaces)
    sql = f"SELECT sum({column})::bigint FROM corpus WHERE {among} AND collection = %s AND ended = ANY(%s)"
    return int(db.value(sql, (*values, selected.collection, list(selected.states))) or 0)


def look_up(db: Transaction, selected: Selection, where: Filter) -> int | None:
    """Return how many records match a filter if this is counted, else None."""
    if selected.whole:
        return total(db, selected)
    deleted = where.state == "ended" and where.ended_by == "delete"
    if deleted and where == Filter(
        where.collection, where.namespaces, state="ended", ended_by="delete"
    ):
        return total(db, selected, "deleted")
    return None


def labels(db: Transaction, selected: Selection, key: str | None) -> dict[str, int]:
    """Return how many of these records have each label key or, given a key, each of its values."""
    among, values = one_of("namespace", selected.namespaces)
    number = " + ".join(("live", "ended")[state] for state in selected.states)
    column, wanted, named = ("key", "true", ()) if key is None else ("value", "key = %s", (key,))
    rows = db.rows(
        f"SELECT {column}, sum({number})::bigint FROM label WHERE {among} AND collection = %s AND {wanted} "
        f"GROUP BY 1 HAVING sum({number}) > 0 ORDER BY 1",
        (*values, selected.collection, *named),
    )
    return dict(rows)


_FIX = "run: memory doctor --fix"
_PAGE = 1_000  # records that are read at once
_BEHIND = "(r.namespace, r.seq) > (%s, %s) ORDER BY r.namespace, r.seq"


class _Derived(NamedTuple):
    """A table whose rows follow from those of `record`: what it holds, its columns, and a query for
    what it should.
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
_OF_NO_RECORD = (
    "NOT EXISTS (SELECT 1 FROM record r WHERE r.namespace = t.namespace AND r.seq = t.seq)"
)


def check(db: Transaction, *, deep: bool) -> Iterator[Finding]:
    """Yield problems; see `Store.check`."""
    for (name,) in db.rows(_INVALID):
        yield Finding(
            f"the index {name} is not valid, so searches go without it", _FIX, derived=True
        )
    if not deep or not db.meta.schema:
        return
    db.rows(
        "SELECT sum(length(text)) + sum(length(tokens)) FROM record"
    )  # a page that can't be read is an error
    for derived in _DERIVED:
        rows = f"SELECT {derived.columns} FROM {derived.table} WHERE {_EMPTY[derived.table]}"
        count = sum(
            int(db.value(f"SELECT count(*) FROM ({one} EXCEPT {other}) differing") or 0)
            for one, other in ((derived.expected, rows), (rows, derived.expected))
        )
        if count:
            yield Finding(
                f"{derived.what} differ from the records in {count} places", _FIX, derived=True
            )
    for table in ("access", *db.meta.vector_tables):
        count = int(db.value(f"SELECT count(*) FROM {table} t WHERE {_OF_NO_RECORD}") or 0)
        if count:
            yield Finding(
                f"{table} has {count} rows of records that do not exist", _FIX, derived=True
            )


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
    """Rebuild the wrong derived tables, in a transaction that has locked the whole store."""
    mended = [finding.what for finding in check(db, deep=True)]
    if not mended:
        return []
    for (name,) in db.rows(_INVALID):
        db.run(f"REINDEX INDEX {name}")
    for derived in _DERIVED:
        db.run(f"DELETE FROM {derived.table}")
        db.run(f"INSERT INTO {derived.table} ({derived.columns}) {derived.expected}")
    for table in ("access", *db.meta.vector_tables):
        db.run(f"DELETE FROM {table} t WHERE {_OF_NO_RECORD}")
    return mended
