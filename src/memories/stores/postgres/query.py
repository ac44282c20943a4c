"""How the PostgreSQL store asks: filters as SQL conditions, rows as records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from memories.stores.postgres.json_values import jsonb
from memories.stores.postgres.session import Row, Session
from memories.stores.records import Collection, Filter, Record, Ref
from memories.times import from_millis, to_millis

COLUMNS = (
    "r.seq, r.collection, r.namespace, r.grp, r.position, r.created_at, r.ended_at, r.ended_by, r.key, r.labels, "
    "r.fields, r.text, coalesce(a.count, 0), r.session"
)
RECORDS = f"SELECT {COLUMNS} FROM record r LEFT JOIN access a ON a.namespace = r.namespace AND a.seq = r.seq"

FEW = 4_000  # so many are looked through whichever are meant, so these are not counted first
COUNTED = 8_000


class Condition(NamedTuple):
    """A filter as a condition on `record r`.

    Attributes:
        sql: The condition.
        values: The values of its placeholders.
        namespaces: The namespaces, each once.
        collection: Memories or turns.
        states: Whether live records (False) and ended ones (True) may be meant.
        broad: Whether all live records of the namespaces are meant.
    """

    sql: str
    values: tuple[Any, ...]
    namespaces: tuple[str, ...]
    collection: Collection
    states: tuple[bool, ...]
    broad: bool


def condition(where: Filter, namespace: str | None = None) -> Condition:
    """Return a filter as a condition on `record r`, if one is named then for that one of its namespaces."""
    namespaces = tuple(dict.fromkeys(where.namespaces)) if namespace is None else (namespace,)
    among, named = one_of("r.namespace", namespaces)
    # The name of the collection is written out, so that the planner knows which indexes hold it.
    conditions, values = [among, f"r.collection = '{where.collection}'"], list(named)

    def add(sql: str, *given: Any) -> None:
        conditions.append(sql)
        values.extend(given)

    add(*_liveness(where))
    plain = len(conditions)
    if where.ended_by is not None:
        add("r.ended_by = %s", where.ended_by)
    for moment, sql in ((where.since, "r.created_at >= %s"), (where.until, "r.created_at <= %s")):
        if moment is not None:
            add(sql, to_millis(moment))
    if where.key is not None:
        add("r.key = %s AND r.ended_at IS NULL", where.key)
    if where.group is not None:
        add("starts_with(r.grp, %s)" if where.prefix else "r.grp = %s", where.group)
    if where.labels:
        add("r.labels @> %s", jsonb(where.labels))
    states = {"live": (False,), "ended": (True,), "any": (False, True)}[where.state]
    return Condition(
        sql=" AND ".join(conditions),
        values=tuple(values),
        namespaces=namespaces,
        collection=where.collection,
        states=states if where.as_of is None else (False, True),
        broad=len(conditions) == plain and where.as_of is None and where.state == "live",
    )


def one_of(column: str, values: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    """Return the condition that a column has one of these values, and the values of its placeholders."""
    return (f"{column} = %s", (values[0],)) if len(values) == 1 else (f"{column} = ANY(%s::text[])", (list(values),))


def _liveness(where: Filter) -> tuple[Any, ...]:
    if where.as_of is not None:
        moment = to_millis(where.as_of)
        return "r.created_at <= %s AND (r.ended_at IS NULL OR r.ended_at > %s)", moment, moment
    return ({"live": "r.ended_at IS NULL", "ended": "r.ended_at IS NOT NULL", "any": "true"}[where.state],)


class Extent(NamedTuple):
    """How much there is in the namespaces that a filter names.

    Attributes:
        corpora: Of the live records (False) and of those that ended (True), those that may be meant: how many there
            are, and how many tokens they have.
        documents: How many there are of both.
        live: How many live ones each namespace has.
        meant: How many are meant, or a few more where all are few; of more than `COUNTED` only that they are more.
    """

    corpora: Mapping[bool, tuple[int, int]]
    documents: int
    live: Mapping[str, int]
    meant: int


def extent(db: Session, matching: Condition) -> Extent:
    """Return how much there is in the namespaces."""
    among, values = one_of("namespace", matching.namespaces)
    rows = db.rows(
        f"SELECT namespace, ended, documents, tokens FROM corpus WHERE {among} AND collection = %s AND documents > 0",
        (*values, matching.collection),
    )
    corpora: dict[bool, tuple[int, int]] = {}
    for _, ended, documents, tokens in rows:
        if ended in matching.states:
            before = corpora.get(ended, (0, 0))
            corpora[ended] = before[0] + documents, before[1] + tokens
    live = {namespace: documents for namespace, ended, documents, _ in rows if not ended}
    documents = sum(documents for documents, _ in corpora.values())
    meant = documents
    if documents > FEW and not matching.broad:
        sql = f"SELECT count(*) FROM (SELECT 1 FROM record r WHERE {matching.sql} LIMIT %s) found"
        meant = int(db.value(sql, (*matching.values, COUNTED + 1)))
    return Extent(corpora, documents, live, meant)


def by_pool(refs: Iterable[Ref]) -> dict[tuple[Collection, str], list[Ref]]:
    """Return addresses by collection and namespace."""
    pools: dict[tuple[Collection, str], list[Ref]] = {}
    for ref in refs:
        pools.setdefault((ref.collection, ref.namespace), []).append(ref)
    return pools


def these(collection: Collection, namespace: str, refs: Sequence[Ref]) -> tuple[str, tuple[Any, ...]]:
    """Return the condition on `record r` that it is at one of these addresses, and the values of its placeholders."""
    sql = (
        "r.namespace = %s AND r.collection = %s "
        "AND (r.grp, r.position) IN (SELECT * FROM unnest(%s::text[], %s::bigint[]))"
    )
    return sql, (namespace, collection, [ref.group for ref in refs], [ref.position for ref in refs])


def seqs_of(db: Session, refs: Iterable[Ref]) -> dict[Ref, int]:
    """Return the seq of each address that exists."""
    found: dict[Ref, int] = {}
    for (collection, namespace), among in by_pool(refs).items():
        sql, values = these(collection, namespace, among)
        for group, position, seq in db.rows(f"SELECT r.grp, r.position, r.seq FROM record r WHERE {sql}", values):
            found[Ref(collection, namespace, group, position)] = seq
    return found


def record_of(row: Row) -> Record:
    """Return the record of a row of `RECORDS`."""
    (_, collection, namespace, group, position, created_at, ended_at, ended_by, key) = row[:9]
    (labels, fields, text, accesses, session) = row[9:]
    return Record(
        ref=Ref(Collection(collection), namespace, group, position),
        text=text,
        created_at=from_millis(created_at),
        ended_at=None if ended_at is None else from_millis(ended_at),
        ended_by=ended_by,
        key=key,
        labels=labels,
        fields=fields,
        accesses=accesses,
        session=session,
    )
