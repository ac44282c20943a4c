"""Queries of the PostgreSQL store: filters and refs as SQL conditions, and record counts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from memories.stores.damage import Damaged, damaged_record, find_problem
from memories.stores.postgres.schema import jsonb, record_of
from memories.stores.postgres.transaction import Transaction
from memories.stores.records import Collection, Filter, Record, Ref, by_namespace, plain_conditions

COLUMNS = (
    "r.seq, r.collection, r.namespace, r.grp, r.position, r.created_at, r.ended_at, r.ended_by, "
    "r.key, r.labels, r.fields, r.text, coalesce(a.count, 0), r.session"
)
RECORDS = (
    f"SELECT {COLUMNS} FROM record r "
    "LEFT JOIN access a ON a.namespace = r.namespace AND a.seq = r.seq"
)

FEW = 4_000  # up to this many records, all are searched, so the matching ones needn't be counted
COUNTED = 8_000  # matching records are counted up to this number


class Selection(NamedTuple):
    """A filter as a condition on `record r`.

    Attributes:
        sql: The condition.
        values: The values of its placeholders.
        namespaces: The distinct namespaces.
        collection: Memories or turns.
        states: Whether live records (False) and ended ones (True) may match.
        whole: Whether all records in these states match.
        broad: Whether all live records in the namespaces match.
    """

    sql: str
    values: tuple[Any, ...]
    namespaces: tuple[str, ...]
    collection: Collection
    states: tuple[bool, ...]
    whole: bool
    broad: bool


def selection(where: Filter, namespace: str | None = None) -> Selection:
    """Return a filter as a condition on `record r`, for all of its namespaces or for a single
    one.
    """
    namespaces = tuple(dict.fromkeys(where.namespaces)) if namespace is None else (namespace,)
    in_namespaces, values = one_of("r.namespace", namespaces)
    plain = plain_conditions(where)
    if where.group is not None:
        plain.append(("starts_with(r.grp, ?)" if where.prefix else "r.grp = ?", (where.group,)))
    if where.labels:
        plain.append(("r.labels @> ?", (jsonb(where.labels),)))
    # The collection is not a placeholder, so that the planner can choose a partial index.
    conditions = [in_namespaces, f"r.collection = '{where.collection}'"]
    for sql, plain_values in plain:
        conditions.append(sql.replace("?", "%s"))
        values += plain_values
    states = {"live": (False,), "ended": (True,), "any": (False, True)}[where.state]
    whole = len(plain) == 1 and where.as_of is None
    return Selection(
        sql=" AND ".join(conditions),
        values=values,
        namespaces=namespaces,
        collection=where.collection,
        states=states if where.as_of is None else (False, True),
        whole=whole,
        broad=whole and where.state == "live",
    )


def one_of(column: str, values: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    """Return the condition that a column contains one of these values, and its placeholder
    values.
    """
    if len(values) == 1:
        return f"{column} = %s", (values[0],)
    return f"{column} = ANY(%s::text[])", (list(values),)


class Extent(NamedTuple):
    """The number of records in a filter's namespaces.

    Attributes:
        corpora: The numbers of documents and tokens, for the live records (False) and the ended
            ones (True), if these may match.
        documents: The number of documents of both.
        live: The number of live records in each namespace.
        matching: How many records match, counted only up to `COUNTED`. If there are few records in
            total, it is the number of documents.
    """

    corpora: Mapping[bool, tuple[int, int]]
    documents: int
    live: Mapping[str, int]
    matching: int


def read_extent(db: Transaction, selected: Selection) -> Extent:
    """Return the number of records in a filter's namespaces."""
    in_namespaces, values = one_of("namespace", selected.namespaces)
    rows = db.rows(
        "SELECT namespace, ended, documents, tokens FROM corpus "
        f"WHERE {in_namespaces} AND collection = %s AND documents > 0",
        (*values, selected.collection),
    )
    corpora: dict[bool, tuple[int, int]] = {}
    for _, ended, documents, tokens in rows:
        if ended in selected.states:
            document_sum, token_sum = corpora.get(ended, (0, 0))
            corpora[ended] = document_sum + documents, token_sum + tokens
    live = {namespace: documents for namespace, ended, documents, _ in rows if not ended}
    documents = sum(documents for documents, _ in corpora.values())
    matching = documents
    if documents > FEW and not selected.broad:
        sql = (
            f"SELECT count(*) FROM (SELECT 1 FROM record r WHERE {selected.sql} LIMIT %s) matching"
        )
        matching = int(db.value(sql, (*selected.values, COUNTED + 1)))
    return Extent(corpora, documents, live, matching)


def records_of(rows: Iterable[Sequence[Any]], damaged: Damaged) -> dict[int, Record]:
    """Return the records for rows of `RECORDS` by their seq, in the same order.

    Damaged records are left out and noted. The server's checksums detect damaged pages, but other
    programs may write to its tables.
    """
    records: dict[int, Record] = {}
    for row in rows:
        ref = Ref(Collection(row[1]), *row[2:5])
        try:
            record = record_of(row)
        except (ValueError, OverflowError, OSError):  # an impossible time
            damaged.note(damaged_record(ref, "it contains values that were never written"))
            continue
        if problem := find_problem(record):
            damaged.note(damaged_record(ref, f"it {problem}"))
        else:
            records[row[0]] = record
    return records


def at_refs(db: Transaction, select: str, refs: Iterable[Ref]) -> list[tuple[Any, ...]]:
    """Return the rows of a SELECT statement from `record r` for the records of these refs."""
    sql = (
        f"{select} WHERE r.namespace = %s AND r.collection = %s "
        "AND (r.grp, r.position) IN (SELECT * FROM unnest(%s::text[], %s::bigint[]))"
    )
    rows: list[tuple[Any, ...]] = []
    for (collection, namespace), part in by_namespace(refs).items():
        groups, positions = [ref.group for ref in part], [ref.position for ref in part]
        rows += db.rows(sql, (namespace, collection, groups, positions))
    return rows


def seqs_of(db: Transaction, refs: Iterable[Ref]) -> dict[Ref, int]:
    """Return the seq of each ref that exists."""
    rows = at_refs(
        db, "SELECT r.collection, r.namespace, r.grp, r.position, r.seq FROM record r", refs
    )
    return {Ref(Collection(collection), *place): seq for collection, *place, seq in rows}
