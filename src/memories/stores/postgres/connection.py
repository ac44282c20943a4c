"""The server of the PostgreSQL store: its URL, connections, transactions, locks and migrations.

Knows nothing of records.
"""

import contextlib
import hashlib
import importlib.util
import logging
import re
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from memories.config import without_password
from memories.disk import ForkGuard
from memories.errors import ConfigError, SchemaTooNew, StoreBusy, StoreError, StoreUnreachable
from memories.stores.postgres import schema
from memories.stores.postgres.errors import INSTALL, refusal, translated
from memories.stores.postgres.transaction import READ_META, Meta, Missing, Transaction, last_rows

if TYPE_CHECKING:
    import psycopg

    from memories.stores.postgres.driver import Connection

BUSY_SECONDS = 30.0
READ_SECONDS = 60.0  # how long the server may send nothing during a read
WRITE_SECONDS = 120.0
MAX_CONNECTIONS = 10  # of one process; more threads wait for each other
OLDEST = 150_000  # PostgreSQL 15
MANY = 100  # adding this many records in one step may outdate the planner's statistics
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "memories",
    "keepalives_idle": "30",
    "tcp_user_timeout": "60000",
}
_LOOK = """
SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_setting('fsync'),
       current_setting('synchronous_commit'),
       (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector')
"""
# Computing the words of every row, as a scan without their index does, takes longer than the planner thinks. A scan of
# the vectors' index continues until enough rows match.
_SETTINGS = """
SET enable_seqscan = off; SET enable_partitionwise_join = on; SET jit = off;
SET idle_in_transaction_session_timeout = '300s'; SET default_transaction_read_only = off;
SET hnsw.ef_search = 300; SET hnsw.iterative_scan = relaxed_order; SET hnsw.max_scan_tuples = 50000
"""
# Tables of more than a megabyte that have doubled since they were last analyzed. Autovacuum does it a minute after a
# load or never, and until then a search may take ten times as long.
_GROWN = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND pg_has_role(relowner, 'USAGE')
AND pg_relation_size(oid) / current_setting('block_size')::int > 2 * greatest(relpages, 64)
"""
_log = logging.getLogger(__name__)

_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"  # a replica would refuse READ WRITE before it is asked to write


class StoreURL(NamedTuple):
    """The parts of a store's URL.

    Attributes:
        full: The URL for libpq.
        shown: The URL without its password.
        schema: The schema that holds the tables.
        partitions: How many partitions a new store gets.
    """

    full: str
    shown: str
    schema: str
    partitions: int


def parse_url(url: str) -> StoreURL:
    """Parse a URL of libpq with two options of our own, `schema` and `partitions`.

    Raises:
        ConfigError: It is not valid.
    """
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError as exc:
        raise ConfigError("the URL of the PostgreSQL store is not one; write postgresql://user@host/database") from exc
    name, partitions = given.pop("schema", "memories"), given.pop("partitions", "4")
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_"):
        raise ConfigError(f'schema "{name[:80]}" in {shown} must consist of lower-case letters, digits and _')
    if not partitions.isdecimal() or not 1 <= int(partitions) <= 64:
        raise ConfigError(f"partitions={partitions[:20]} in {shown} must be a number from 1 to 64")
    query = urlencode({name: given.get(name, value) for name, value in {**_DEFAULTS, **given}.items()})
    if any("password" in option for option in given):
        shown = urlunsplit(urlsplit(shown)._replace(query=""))
    return StoreURL(urlunsplit(parts._replace(query=query)), shown, name, int(partitions))


class Server:
    """One store on a server, and this process's connections to it.

    Writers of a namespace queue by an advisory lock on it, so those of different namespaces do not wait for each other.
    Every writer also holds a shared lock on the whole store; a migration and a switch of the space take it exclusively.
    """

    def __init__(self, url: str) -> None:
        """Remember where the store is; nothing is opened yet.

        Raises:
            ConfigError: The URL is not valid, or the driver is not installed.
        """
        if importlib.util.find_spec("psycopg") is None:
            raise ConfigError(f"the PostgreSQL store needs its driver; {INSTALL}")
        self.url = parse_url(url)
        self.shown = self.url.shown
        self._inherited: list[Any] = []
        self._reset()

    def _reset(self) -> None:
        self._guard = ForkGuard()
        self._local = threading.local()
        self._idle: list[Connection] = []
        self._idle_lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = False
        self._exists = False
        self._unsafe: str | None = None

    # --- reading and writing ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def read(self, namespaces: Iterable[str] = (), *, whole: bool = False) -> Iterator[Transaction]:
        """Yield a transaction whose statements all see one state of the store, or an empty store if there is none.

        Args:
            namespaces: What is read; inside `write` other writers are excluded from them from now on.
            whole: Whether the whole store is read; inside `write` other writers are excluded from now on.
        """
        with translated(self.shown):
            if (current := self._current()) is not None:
                current.lock(namespaces, whole=whole)
                yield current
                return
            with self._begun(_BEGIN_READ, known=self._exists) as transaction:
                yield self._found(transaction)

    @contextlib.contextmanager
    def write(
        self,
        namespaces: Iterable[str] = (),
        *,
        whole: bool = False,
        wait_seconds: float | None = None,
        durable: bool = True,
    ) -> Iterator[Transaction]:
        """Yield a transaction that excludes other writers of these namespaces; commit at the end.

        Inside another `write` this is a savepoint: its failure undoes its own part, even if it is caught.

        Args:
            namespaces: What is written.
            whole: Whether to exclude other writers from the whole store.
            wait_seconds: How long to wait for other writers; by default `BUSY_SECONDS`.
            durable: Wait until it is on the disk, and on the replicas that the server waits for.

        Raises:
            StoreBusy: Another writer held a lock for that long.
        """
        with translated(self.shown):
            if (current := self._current()) is not None:
                current.lock(namespaces, whole=whole)
                with current.savepoint():
                    yield current
                return
            if not self._exists:  # checking costs less than the lock for creating it
                with self._begun(_BEGIN_READ) as transaction:
                    self._found(transaction)
            if not self._exists:
                self._create()
            waiting = "" if wait_seconds is None else f"SET LOCAL lock_timeout = '{wait_seconds * 1000:.0f}ms'; "
            commit = "" if durable else "SET LOCAL synchronous_commit = off; "
            kind = "" if whole else "_shared"
            begin = f"{_BEGIN_WRITE}; {waiting}{commit}SELECT pg_advisory_xact_lock{kind}({self._lock_key()})"
            with self._begun(begin, known=True, to_write=True) as transaction:
                self._check_schema(transaction.meta)
                transaction.lock(namespaces)
                self._local.transaction = transaction
                try:
                    yield transaction
                finally:
                    self._local.transaction = None
            if transaction.added >= MANY:
                self._analyze_grown()

    @property
    def in_write(self) -> bool:
        """Whether this thread is inside `write`."""
        return self._current() is not None

    @contextlib.contextmanager
    def maintenance(self) -> Iterator["Connection"]:
        """Yield a connection outside of any transaction, with all writers excluded."""
        first = f"SELECT pg_advisory_lock({self._lock_key()})"
        with translated(self.shown), self._borrowed(first, WRITE_SECONDS) as (connection, _):
            try:
                yield connection
            finally:
                if not connection.closed:
                    connection.execute("SELECT pg_advisory_unlock(%s)", (self._lock_key(),))

    def close(self) -> None:
        """Close the connections of this process; those that are in use when they are given back."""
        if self._guard.forked:
            return  # they are the parent's
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with self._idle_lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _current(self) -> Transaction | None:
        self._forget_if_forked()
        transaction: Transaction | None = getattr(self._local, "transaction", None)
        return transaction

    def _lock_key(self, namespace: str | None = None) -> int:
        """Return the number of the advisory lock on a namespace, or on the whole store."""
        name = self.url.schema if namespace is None else f"{self.url.schema}\0{namespace}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)

    # --- transactions ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _begun(self, begin: str, *, known: bool = False, to_write: bool = False) -> Iterator[Transaction]:
        """Begin a transaction, yield it, and end it; one that only reads is rolled back.

        Args:
            begin: The statement that begins it.
            known: Whether the store is known to exist; what it remembers is then read in the same step.
            to_write: Whether to commit.
        """
        import psycopg

        first, patience = f"{begin}; {READ_META}" if known else begin, WRITE_SECONDS if to_write else READ_SECONDS
        with self._borrowed(first, patience) as (connection, answer):
            try:
                if to_write and self._unsafe:
                    raise StoreError(f"{self.shown}: {self._unsafe}")
                yield Transaction(connection, self._lock_key, last_rows(answer) if known else None)
            except BaseException:
                with contextlib.suppress(psycopg.Error):  # a connection that is lost is closed when it is given back
                    connection.execute("ROLLBACK")
                raise
            if to_write:
                self._commit(connection)
            else:
                connection.execute("ROLLBACK")

    def _commit(self, connection: "Connection") -> None:
        import psycopg

        warnings: list[str] = []

        def note(notice: psycopg.errors.Diagnostic) -> None:
            warnings.append(notice.message_primary or "")  # it can be read now and never again

        connection.add_notice_handler(note)
        try:
            answer = connection.execute("COMMIT")
        except (psycopg.OperationalError, StoreUnreachable) as exc:
            if not connection.closed:
                raise
            raise StoreUnreachable(
                f"the connection to {self.shown} was lost while it was being written; it may be stored or not: "
                "read it before you write it again"
            ) from exc
        finally:
            connection.remove_notice_handler(note)
        if answer.statusmessage != "COMMIT":  # the server's way of saying that a statement inside failed
            raise StoreError(f"{self.shown}: what failed inside a transaction undid all of it; nothing was written")
        if warnings:  # an administrator ended the wait for a replica: no error, but only half a commit
            raise StoreError(
                f"{self.shown} stored it, but not on its replicas ({warnings[0]}); it can be lost if the server is"
            )

    @contextlib.contextmanager
    def _borrowed(self, first: str, patience: float) -> Iterator[tuple["Connection", "psycopg.Cursor"]]:
        """Yield a connection of the pool with this deadline, and the answer to the first statement on it."""
        from psycopg.pq import TransactionStatus

        self._forget_if_forked()
        if not self._free.acquire(timeout=BUSY_SECONDS):
            raise StoreBusy(
                f"all {MAX_CONNECTIONS} connections to {self.shown} are in use; nothing was done; try again"
            )
        try:
            connection, answer = self._ready(first, patience)
            try:
                yield connection, answer
            finally:
                if self._closed or connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
                    connection.close()
                else:
                    with self._idle_lock:
                        self._idle.append(connection)
        finally:
            self._free.release()

    def _ready(self, first: str, patience: float) -> tuple["Connection", "psycopg.Cursor"]:
        """Return a connection and the answer to a first statement.

        The server may have closed an idle one. Nothing has happened then, and a new one is opened.
        """
        import psycopg

        with self._idle_lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            connection.patience = patience
            try:
                return connection, connection.execute(first)
            except StoreUnreachable:
                self._close_idle()  # the others may be stopped as well
                raise
            except psycopg.Error as exc:
                lost = connection.broken and isinstance(exc, psycopg.OperationalError)
                connection.close()
                if not lost:
                    raise
                self._close_idle()  # the others are as old
        connection = self._connect()
        connection.patience = patience
        try:
            return connection, connection.execute(first)
        except BaseException:
            connection.close()
            raise

    def _forget_if_forked(self) -> None:
        if self._guard.forked:
            self._inherited += self._idle  # never closed here: the parent talks through the same sockets
            self._reset()

    def _connect(self) -> "Connection":
        import psycopg

        from memories.stores.postgres.driver import Connection

        try:
            connection = Connection.connect(self.url.full, autocommit=True, client_encoding="utf8")
        except psycopg.ProgrammingError as exc:  # its message may hold the password
            raise ConfigError(f"{self.shown} is not a URL that PostgreSQL knows; check its parts and options") from exc
        except psycopg.Error as exc:
            parts = urlsplit(self.url.full)
            password = dict(parse_qsl(parts.query)).get("password") or unquote(parts.password or "")
            raise refusal(exc, self.shown, password) from exc
        connection.shown = self.shown
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: "Connection") -> None:
        """Check the server, and make the settings that a connection needs."""
        version, encoding, fsync, commit, extension = connection.execute(_LOOK).fetchall()[0]
        if version < OLDEST:
            raise StoreError(
                f"{self.shown} is PostgreSQL {version // 10_000}; this needs {OLDEST // 10_000} or newer: upgrade it"
            )
        if encoding != "UTF8":
            raise StoreError(f"the database of {self.shown} has the encoding {encoding}; use one with UTF8")
        self._unsafe = None if fsync == "on" else "fsync is off there, so a power cut loses writes; set fsync = on"
        if commit not in ("on", "remote_apply"):
            connection.execute("SET synchronous_commit = on")
        path = ", ".join(f'"{name}"' for name in dict.fromkeys((self.url.schema, "public", extension)) if name)
        connection.execute(f"SET search_path = {path}; SET lock_timeout = '{BUSY_SECONDS * 1000:.0f}ms'; {_SETTINGS}")

    def _analyze_grown(self) -> None:
        """Analyze tables that have grown; the records are stored already, so a failure is only logged."""
        try:
            with translated(self.shown), self._begun(_BEGIN_WRITE, to_write=True) as transaction:
                for (table,) in transaction.rows(_GROWN):
                    transaction.run(f"ANALYZE (SKIP_LOCKED) {table}")
        except StoreError as exc:
            _log.warning("the planner's statistics were not brought up to date: %s", exc)

    # --- creating and migrating ------------------------------------------------------------------------------------

    def _found(self, transaction: Transaction) -> Transaction:
        """Return the transaction if the store exists, after migrating an older one; else an empty one."""
        name = f"{self.url.schema}.meta"
        if not self._exists and transaction.value("SELECT to_regclass(%s)", (name,)) is None:
            return Missing(transaction.connection, self._lock_key)
        if self._check_schema(transaction.meta) < len(schema.MIGRATIONS):
            transaction.run("ROLLBACK")
            self._create()
            transaction.run(_BEGIN_READ)
            transaction = Transaction(transaction.connection, self._lock_key)
        self._exists = True
        return transaction

    def _check_schema(self, meta: Meta) -> int:
        """Return the schema's version; checked in every transaction, since a newer program may migrate at any time."""
        newest = len(schema.MIGRATIONS)
        if meta.schema > newest:
            raise SchemaTooNew(
                f"{self.shown} has schema {meta.schema} and this program knows {newest} at most; "
                "upgrade memories; nothing was changed"
            )
        return meta.schema

    def _create(self) -> None:
        """Create the tables, or migrate older ones step by step; others wait meanwhile."""
        with self._begun(
            f"{_BEGIN_WRITE}; SELECT pg_advisory_xact_lock({self._lock_key()})", to_write=True
        ) as transaction:
            transaction.connection.patience = None
            if transaction.value("SELECT to_regnamespace(%s)", (self.url.schema,)) is None:
                transaction.run(f'CREATE SCHEMA "{self.url.schema}"')
            if transaction.value("SELECT to_regclass(%s)", (f"{self.url.schema}.meta",)) is None:
                transaction.run(schema.META)
            meta = transaction.meta
            partitions = meta.partitions or self.url.partitions
            for number in range(self._check_schema(meta) + 1, len(schema.MIGRATIONS) + 1):
                transaction.run(schema.MIGRATIONS[number - 1](partitions))
                transaction.remember({"schema": number, "partitions": partitions})
        self._exists = True
