"""Runs statements in transactions, turns filters into SQL conditions, and reads records.

The class `Transaction` runs statements, locks namespaces and reads the store's settings;
`connection` begins and ends transactions. `read_extent` returns how many records a filter selects,
mostly from the counts that `counts` keeps.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.stores.damage import Damaged, damaged_record, find_problem
from memories.stores.postgres.schema import jsonb, record_of
from memories.stores.records import (
    Collection,
    Filter,
    Record,
    Ref,
    Space,
    by_namespace,
    plain_conditions,
)

if TYPE_CHECKING:
    import psycopg

    from memories.stores.postgres.patience import Connection

Row = tuple[Any, ...]


class Vectors(NamedTuple):
    """The table that contains one space's vectors."""

    model: str
    dimension: int
    table: str

    def are_of(self, space: Space) -> bool:
        """Return whether the vectors are in this space."""
        return (self.model, self.dimension) == (space.model, space.dimension)


class Meta(NamedTuple):
    """The store's settings, from its table `meta`.

    Attributes:
        schema: The schema version; 0 if the store doesn't exist.
        partitions: The number of partitions of its tables.
        used: The vectors that are searched.
        staged: The vectors that will be searched after a switch.
        erasing: The tables whose files may still contain removed records.
    """

    schema: int
    partitions: int
    used: Vectors | None
    staged: Vectors | None
    erasing: tuple[str, ...]

    @property
    def vector_tables(self) -> list[str]:
        """The names of the tables that contain vectors."""
        return [vectors.table for vectors in (self.used, self.staged) if vectors is not None]


LockKey = Callable[..., int]
# The names of the locks for the vector tables and for the list of tables to rewrite. They are used
# like namespaces, but no namespace can have such a name.
SPACES, ERASING = "\0spaces", "\0erasing"
READ_META = "SELECT name, value FROM meta"
NOTHING = Meta(0, 0, None, None, ())


class Transaction:
    """Runs statements in a transaction that has begun."""

    def __init__(
        self, connection: "Connection", lock_key: "LockKey", meta_rows: Sequence[Row] | None = None
    ) -> None:
        """Wrap a connection on which a transaction has begun.

        Args:
            connection: The connection.
            lock_key: Returns the key of the lock for a namespace or, without one, for the store.
            meta_rows: The rows that `READ_META` has returned, if it was run.
        """
        self.connection = connection
        self._lock_key = lock_key
        self._locked: frozenset[str] = frozenset()
        self._depth = 0
        self.added = 0
        self.logs = False  # whether the transaction writes to the audit log
        self.afterwards: list[Callable[[], None]] = []  # called after the commit
        self._meta = None if meta_rows is None else _parse_meta(meta_rows)

    def rows(self, sql: str, values: Sequence[Any] = (), *, binary: bool = False) -> list[Row]:
        """Return all rows."""
        return self.connection.execute(sql, values or None, binary=binary).fetchall()

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of the first row; None if there are no rows."""
        rows = self.rows(sql, values)
        return rows[0][0] if rows else None

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run a statement, or several if there are no values."""
        self.connection.execute(sql, values or None)

    def copy(self, into: str, types: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add rows to a table quickly; `into` is the table's name followed by its columns."""
        with (
            self.connection.cursor() as cursor,
            cursor.copy(f"COPY {into} FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def lock(self, namespaces: Iterable[str], *, whole: bool = False) -> None:
        """From now on, exclude other writers of these namespaces, or of the entire store."""
        if whole:
            self._take(self._lock_key())
        new = frozenset(namespaces) - self._locked
        if new:
            # Sorted, so that two transactions that take the same locks never deadlock.
            self._take(*sorted(self._lock_key(namespace) for namespace in new))
            self._locked |= new

    def _take(self, *keys: int) -> None:
        numbers = ",".join(map(str, keys))
        lock = (
            f"SELECT pg_advisory_xact_lock(key) FROM unnest('{{{numbers}}}'::bigint[]) AS keys(key)"
        )
        self._meta = _parse_meta(last_rows(self.connection.execute(f"{lock}; {READ_META}")))

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the statements inside the context if it fails."""
        name, locked = f"part_{self._depth}", self._locked
        self.run(f"SAVEPOINT {name}")
        self._depth += 1
        try:
            yield
        except BaseException:
            if not self.connection.closed:
                self.run(f"ROLLBACK TO {name}")
            self._locked, self._meta = locked, None  # the rollback released the new locks
            raise
        finally:
            self._depth -= 1
        self.run(f"RELEASE {name}")

    @property
    def meta(self) -> Meta:
        """The settings of the store."""
        if self._meta is None:
            self._meta = _parse_meta(self.rows(READ_META))
        return self._meta

    def save_meta(self, values: Mapping[str, Any]) -> None:
        """Save settings, keyed by name; None removes a setting."""
        for name, value in values.items():
            if value is None:
                self.run("DELETE FROM meta WHERE name = %s", (name,))
                continue
            text = str(value)
            if isinstance(value, Vectors):
                # The model's name comes last, since it may contain spaces.
                text = f"{value.table} {value.dimension} {value.model}"
            self.run(
                "INSERT INTO meta VALUES (%s, %s) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, text),
            )
        self._meta = None


class Missing(Transaction):
    """A transaction for a store that doesn't exist; every query returns no rows."""

    def rows(self, sql: str, values: Sequence[Any] = (), *, binary: bool = False) -> list[Row]:  # noqa: ARG002
        """Return no rows."""
        return []

    @property
    def meta(self) -> Meta:
        """The settings of a missing store, which are empty."""
        return NOTHING


def last_rows(answer: "psycopg.Cursor[Row]") -> list[Row]:
    """Return the rows of the last statement, given the cursor of several statements."""
    while answer.nextset():
        pass
    return answer.fetchall()


def _parse_meta(rows: Sequence[Row]) -> Meta:
    values: dict[str, str] = dict(rows)
    return Meta(
        schema=int(values.get("schema", 0)),
        partitions=int(values.get("partitions", 0)),
        used=_parse_vectors(values.get("vectors")),
        staged=_parse_vectors(values.get("staged")),
        erasing=tuple(values.get("erasing", "").split()),
    )


def _parse_vectors(text: str | None) -> Vectors | None:
    if text is None:
        return None
    table, dimension, model = text.split(" ", 2)
    return Vectors(model, int(dimension), table)


COLUMNS = (
    "r.seq, r.collection, r.namespace, r.grp, r.position, r.created_at, r.ended_at, r.ended_by, "
    "r.key, r.labels, r.fields, r.text, coalesce(a.count, 0), r.session"
)
RECORDS = (
    f"SELECT {COLUMNS} FROM record r "
    "LEFT JOIN access a ON a.namespace = r.namespace AND a.seq = r.seq"
)

FEW = 4_000  # if a filter's namespaces have no more records than this, matches aren't counted
COUNTED = 8_000  # matches are counted up to this number


class Selection(NamedTuple):
    """A filter as a SQL condition on `record r`.

    Attributes:
        sql: The condition.
        values: The values of its placeholders.
        namespaces: The distinct namespaces.
        collection: Memories, turns or the log.
        states: The states that may match: False for live, True for ended.
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
    """Return a filter as a SQL condition on `record r`.

    If a namespace is given, the condition selects only that namespace's records.
    """
    namespaces = tuple(dict.fromkeys(where.namespaces)) if namespace is None else (namespace,)
    in_namespaces, values = one_of("r.namespace", namespaces)
    plain = plain_conditions(where)
    if where.group is not None:
        plain.append(("starts_with(r.grp, ?)" if where.prefix else "r.grp = ?", (where.group,)))
    if where.labels:
        plain.append(("r.labels @> ?", (jsonb(where.labels),)))
    # The collection is written into the SQL, so that the planner can choose a partial index.
    conditions = [in_namespaces, f"r.collection = '{where.collection}'"]
    for sql, plain_values in plain:
        conditions.append(sql.replace("?", "%s"))
        values += plain_values
    states = {"live": (False,), "ended": (True,), "any": (False, True)}[where.state]
    whole = len(plain) == 1 and where.as_of is None  # the state is the only condition
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
    """Return the SQL condition that a column has one of these values, with its parameters."""
    if len(values) == 1:
        return f"{column} = %s", (values[0],)
    return f"{column} = ANY(%s::text[])", (list(values),)


class Extent(NamedTuple):
    """The numbers of records in a filter's namespaces.

    Attributes:
        corpora: The numbers of records and of tokens in each state that may match: False for live,
            True for ended.
        documents: The total number of these records.
        live: The number of live records in each namespace.
        matching: How many records match, counted only up to `COUNTED`. If there are few records,
            matches aren't counted, and this equals `documents`.
    """

    corpora: Mapping[bool, tuple[int, int]]
    documents: int
    live: Mapping[str, int]
    matching: int


def read_extent(db: Transaction, selected: Selection) -> Extent:
    """Return the numbers of records in a filter's namespaces."""
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
    """Convert rows of `RECORDS` to records, keyed by `seq` and in the order of the rows.

    Damaged records are left out and noted in `damaged`. PostgreSQL's checksums detect damaged
    pages, but not changes that other programs made.
    """
    records: dict[int, Record] = {}
    for row in rows:
        ref = Ref(Collection(row[1]), *row[2:5])
        try:
            record = record_of(row)
        except (ValueError, OverflowError, OSError):  # a time out of range
            damaged.note(damaged_record(ref, "it contains values that this program never writes"))
            continue
        if problem := find_problem(record):
            damaged.note(damaged_record(ref, f"it {problem}"))
        else:
            records[row[0]] = record
    return records


def at_refs(db: Transaction, select: str, refs: Iterable[Ref]) -> list[tuple[Any, ...]]:
    """Run a SELECT statement on `record r` for the records of these refs; return its rows."""
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
    """Return the `seq` of each record that exists."""
    rows = at_refs(
        db, "SELECT r.collection, r.namespace, r.grp, r.position, r.seq FROM record r", refs
    )
    return {Ref(Collection(collection), *place): seq for collection, *place, seq in rows}
