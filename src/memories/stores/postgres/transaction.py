"""One transaction of the PostgreSQL store: statements, savepoints, locks, and the store's own
settings.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.stores.records import Space

if TYPE_CHECKING:
    import psycopg

    from memories.stores.postgres.driver import Connection

Row = tuple[Any, ...]


class Vectors(NamedTuple):
    """The table of the vectors of one space."""

    model: str
    dimension: int
    table: str

    def are_of(self, space: Space) -> bool:
        """Return whether they are of this space."""
        return (self.model, self.dimension) == (space.model, space.dimension)


class Meta(NamedTuple):
    """Settings that the store keeps about itself.

    Attributes:
        schema: The version of its schema, 0 if there is none.
        partitions: How many partitions its tables have.
        used: The vectors that are searched.
        staged: Those that will be searched after a switch.
        erasing: Tables whose files may still contain removed records.
    """

    schema: int
    partitions: int
    used: Vectors | None
    staged: Vectors | None
    erasing: tuple[str, ...]

    @property
    def vector_tables(self) -> list[str]:
        """Return the names of the tables that hold vectors."""
        return [vectors.table for vectors in (self.used, self.staged) if vectors is not None]


LockKey = Callable[..., int]
# What may be locked like a namespace: tables for vectors, and the list of tables to rewrite. No
# namespace begins so.
SPACES, ERASING = "\0spaces", "\0erasing"
READ_META = "SELECT name, value FROM meta"
NOTHING = Meta(0, 0, None, None, ())


class Transaction:
    """Runs statements in a transaction that has begun."""

    def __init__(
        self, connection: "Connection", lock_key: "LockKey", remembered: Sequence[Row] | None = None
    ) -> None:
        """Take a connection on which a transaction has begun.

        Args:
            connection: The connection.
            lock_key: Returns the number of the lock of a namespace, or of the whole store if none
                is given.
            remembered: The rows of `READ_META`, if it was run.
        """
        self.connection = connection
        self._lock_key = lock_key
        self._locked: frozenset[str] = frozenset()
        self._depth = 0
        self.added = 0  # records, in this transaction
        self.logs = False  # whether the audit log is written
        self.afterwards: list[Callable[[], None]] = []  # done once it is committed
        self._meta = None if remembered is None else _meta(remembered)

    # --- statements
    # ------------------------------------------------------------------------------------------------

    def rows(self, sql: str, values: Sequence[Any] = (), *, binary: bool = False) -> list[Row]:
        """Return all rows."""
        return self.connection.execute(sql, values or None, binary=binary).fetchall()

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of the first row, None if there is no row."""
        rows = self.rows(sql, values)
        return rows[0][0] if rows else None

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run a statement, or without values several."""
        self.connection.execute(sql, values or None)

    def copy(self, into: str, types: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add rows to a table, named with its columns by `into`, by the fastest way there is."""
        with (
            self.connection.cursor() as cursor,
            cursor.copy(f"COPY {into} FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    # --- locks and savepoints
    # --------------------------------------------------------------------------------------

    def lock(self, namespaces: Iterable[str], *, whole: bool = False) -> None:
        """Exclude other writers from these namespaces, or from the whole store, until the
        transaction ends.
        """
        if whole:
            self._take(self._lock_key())
        new = frozenset(namespaces) - self._locked
        if new:
            # Sorted, so that two that take the same locks at once never wait for each other.
            self._take(*sorted(self._lock_key(namespace) for namespace in new))
            self._locked |= new

    def _take(self, *keys: int) -> None:
        """Wait for locks, and read what the store remembers after the wait."""
        given = ",".join(map(str, keys))
        lock = (
            f"SELECT pg_advisory_xact_lock(key) FROM unnest('{{{given}}}'::bigint[]) AS given(key)"
        )
        self._meta = _meta(last_rows(self.connection.execute(f"{lock}; {READ_META}")))

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what was done inside if it fails."""
        name, locked = f"part_{self._depth}", self._locked
        self.run(f"SAVEPOINT {name}")
        self._depth += 1
        try:
            yield
        except BaseException:
            if not self.connection.closed:
                self.run(f"ROLLBACK TO {name}")
            self._locked, self._meta = locked, None  # locks that were taken inside are gone
            raise
        finally:
            self._depth -= 1
        self.run(f"RELEASE {name}")

    # --- what the store remembers
    # ----------------------------------------------------------------------------------

    @property
    def meta(self) -> Meta:
        """What the store remembers about itself."""
        if self._meta is None:
            self._meta = _meta(self.rows(READ_META))
        return self._meta

    def remember(self, values: Mapping[str, Any]) -> None:
        """Store values under their names; None removes one."""
        for name, value in values.items():
            if value is None:
                self.run("DELETE FROM meta WHERE name = %s", (name,))
            else:
                sql = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
                # The name of the model comes last, since it may contain anything.
                text = (
                    f"{value.table} {value.dimension} {value.model}"
                    if isinstance(value, Vectors)
                    else str(value)
                )
                self.run(sql, (name, text))
        self._meta = None


class Missing(Transaction):
    """A transaction in a store that does not exist: it finds nothing."""

    def rows(self, sql: str, values: Sequence[Any] = (), *, binary: bool = False) -> list[Row]:  # noqa: ARG002
        """Return no rows."""
        return []

    @property
    def meta(self) -> Meta:
        """What is remembered: nothing."""
        return NOTHING


def last_rows(answer: "psycopg.Cursor[Row]") -> list[Row]:
    """Return the rows of the last of several statements."""
    while answer.nextset():
        pass
    return answer.fetchall()


def _meta(rows: Sequence[Row]) -> Meta:
    remembered: dict[str, str] = dict(rows)
    return Meta(
        schema=int(remembered.get("schema", 0)),
        partitions=int(remembered.get("partitions", 0)),
        used=_vectors(remembered.get("vectors")),
        staged=_vectors(remembered.get("staged")),
        erasing=tuple(remembered.get("erasing", "").split()),
    )


def _vectors(text: str | None) -> Vectors | None:
    if text is None:
        return None
    table, dimension, model = text.split(" ", 2)
    return Vectors(model, int(dimension), table)
