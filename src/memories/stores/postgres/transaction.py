"""One transaction in the PostgreSQL store: statements, savepoints, locks, and the settings."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.stores.records import Space

if TYPE_CHECKING:
    import psycopg

    from memories.stores.postgres.driver import Connection

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
# Names that are locked like namespaces: the vector tables, and the list of tables to rewrite. No
# namespace has such a name.
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
            lock_key: Returns the number of the lock for a namespace or, without one, for the store.
            meta_rows: The rows of `READ_META`, if it was run.
        """
        self.connection = connection
        self._lock_key = lock_key
        self._locked: frozenset[str] = frozenset()
        self._depth = 0
        self.added = 0  # the number of added records
        self.logs = False  # whether the audit log is written
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
        """Add rows to a table quickly; `into` is its name with its columns."""
        with (
            self.connection.cursor() as cursor,
            cursor.copy(f"COPY {into} FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def lock(self, namespaces: Iterable[str], *, whole: bool = False) -> None:
        """Exclude other writers of these namespaces, or of the entire store, until the end."""
        if whole:
            self._take(self._lock_key())
        new = frozenset(namespaces) - self._locked
        if new:
            # Sorted, so that two transactions that take the same locks never wait for each other.
            self._take(*sorted(self._lock_key(namespace) for namespace in new))
            self._locked |= new

    def _take(self, *keys: int) -> None:
        """Wait for locks, and read the settings after the wait."""
        numbers = ",".join(map(str, keys))
        lock = (
            f"SELECT pg_advisory_xact_lock(key) FROM unnest('{{{numbers}}}'::bigint[]) AS keys(key)"
        )
        self._meta = _parse_meta(last_rows(self.connection.execute(f"{lock}; {READ_META}")))

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the statements inside if they fail."""
        name, locked = f"part_{self._depth}", self._locked
        self.run(f"SAVEPOINT {name}")
        self._depth += 1
        try:
            yield
        except BaseException:
            if not self.connection.closed:
                self.run(f"ROLLBACK TO {name}")
            self._locked, self._meta = locked, None  # the rollback released locks taken inside
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
        """Save settings by name; None removes a setting."""
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
    """A transaction in a store that doesn't exist: it returns no rows."""

    def rows(self, sql: str, values: Sequence[Any] = (), *, binary: bool = False) -> list[Row]:  # noqa: ARG002
        """Return no rows."""
        return []

    @property
    def meta(self) -> Meta:
        """The settings: none."""
        return NOTHING


def last_rows(answer: "psycopg.Cursor[Row]") -> list[Row]:
    """Return the rows of the last of several statements."""
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
