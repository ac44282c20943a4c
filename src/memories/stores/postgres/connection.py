"""Connections to the PostgreSQL server, their transactions, and migrations of the store.

This module begins and ends transactions; `query.Transaction` runs their statements and takes their
locks. The module knows nothing about records.
"""

import contextlib
import hashlib
import importlib.util
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from memories.core.disk import ForkGuard
from memories.errors import ConfigError, SchemaTooNew, StoreBusy, StoreError, StoreUnreachable
from memories.stores.postgres import schema
from memories.stores.postgres.errors import ServerFull, refusal, translate_errors
from memories.stores.postgres.query import READ_META, Meta, Missing, Transaction, last_rows
from memories.stores.postgres.url import parse_url
from memories.stores.protocol import RefuseLost

if TYPE_CHECKING:
    import psycopg

    from memories.stores.postgres.patience import Connection

BUSY_SECONDS = 30.0
READ_SECONDS = 60.0  # how long the server may stay silent during a read
WRITE_SECONDS = 120.0
MAX_CONNECTIONS = 10  # maximum number of connections per process; further threads wait
OLDEST = 150_000  # the oldest supported version: PostgreSQL 15
PARTITIONS = 4  # default number of partitions of a new store
MANY = 100  # after this many added records, the planner's statistics may be outdated
_INSPECT = """
SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),
       current_setting('fsync'), current_setting('synchronous_commit'),
       current_setting('default_transaction_read_only')::boolean AND NOT pg_is_in_recovery(), (
         SELECT n.nspname FROM pg_extension e
         JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'
       )
"""
# Every transaction applies these settings, because behind a pooler each transaction may run in a
# different session. Sequential scans are off, because computing the words of every row takes longer
# than the planner expects. A scan of the vector index continues until enough rows match.
_SETTINGS = """
SET LOCAL enable_seqscan = off; SET LOCAL enable_partitionwise_join = on; SET LOCAL jit = off;
SET LOCAL idle_in_transaction_session_timeout = '300s';
SET LOCAL hnsw.ef_search = 300; SET LOCAL hnsw.iterative_scan = relaxed_order;
SET LOCAL hnsw.max_scan_tuples = 50000
"""
LISTENED_SECONDS = 60  # how long a listener's entry in `meta` is valid unless it is renewed
# Notifies only if there is a listener, because commits that send notifications wait for each other
# across the whole server.
_NOTIFY = """
SELECT pg_notify('{channel}', '') FROM meta
WHERE name = 'listened' AND value::bigint > extract(epoch FROM clock_timestamp());
"""
# Seconds between attempts to get a connection from a server that has no free one.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0
_log = logging.getLogger(__name__)

_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
# The lock is taken before the snapshot. Otherwise a table could be replaced with a copy in between,
# and the snapshot would see no rows in the copy.
_READ_STORE = f"LOCK TABLE ONLY record IN ACCESS SHARE MODE; {READ_META}"
# The function in the server that sends a warning if waiting for a replica was canceled.
_REPLICA_WAIT = "SyncRepWaitForLSN"


class Server:
    """One store on a server, and this process's connections to it.

    The writers of a namespace wait for its advisory lock, so writers of different namespaces don't
    wait for each other. Every writer also holds a shared lock on the entire store; a migration or a
    switch to another space takes that lock exclusively.
    """

    def __init__(self, url: str, refuse_lost: RefuseLost) -> None:
        """Initialize; nothing is opened yet.

        Args:
            url: See `PostgresStore`.
            refuse_lost: Called before a database without the store's tables is treated as new.

        Raises:
            ConfigError: The URL is invalid, or the driver is not installed.
        """
        self._refuse_lost = refuse_lost
        if importlib.util.find_spec("psycopg") is None:
            from memories.core.installation import install_command

            raise ConfigError(
                f"the PostgreSQL store needs its driver; run: {install_command('postgres')}"
            )
        self.url = parse_url(url)
        self.masked_url = self.url.masked_url
        self._inherited: list[Any] = []
        self._reset()

    def _reset(self) -> None:
        self._guard = ForkGuard()
        self._local = threading.local()
        self._idle: list[Connection] = []
        self._returned = threading.Condition()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = False
        self._exists = False
        self._unsafe: str | None = None

    @contextlib.contextmanager
    def read(self, namespaces: Iterable[str] = (), *, whole: bool = False) -> Iterator[Transaction]:
        """Yield a transaction whose statements all see one snapshot of the store.

        A store that doesn't exist yet reads as empty.

        Args:
            namespaces: The namespaces that are read. Inside `write`, other writers of these
                namespaces are excluded from now on.
            whole: Whether the entire store is read. Inside `write`, all other writers are excluded
                from now on.
        """
        with translate_errors(self.masked_url):
            if (current := self._current()) is not None:
                current.lock(namespaces, whole=whole)
                yield current
                return
            with self._begin(_READ_STORE if self._exists else "") as transaction:
                yield self._open_store(transaction)

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

        Inside another `write`, this is a savepoint: an error undoes only the savepoint, even if it
        is caught.

        Args:
            namespaces: The namespaces that are written.
            whole: Whether to exclude all other writers of the store.
            wait_seconds: How long to wait for other writers; by default `BUSY_SECONDS`.
            durable: Whether to wait until the write is on disk, and on synchronous replicas.

        Raises:
            StoreBusy: Another writer held a lock for longer than `wait_seconds`.
        """
        with translate_errors(self.masked_url):
            if (current := self._current()) is not None:
                current.lock(namespaces, whole=whole)
                with current.savepoint():
                    yield current
                return
            if not self._exists:  # look first, because `_create` locks the entire store
                with self._begin("") as transaction:
                    self._open_store(transaction)
            if not self._exists:
                self._create()
            first = ""
            if wait_seconds is not None:
                first += f"SET LOCAL lock_timeout = '{wait_seconds * 1000:.0f}ms'; "
            if not durable:
                first += "SET LOCAL synchronous_commit = off; "
            lock = "pg_advisory_xact_lock" if whole else "pg_advisory_xact_lock_shared"
            first += f"SELECT {lock}({self._lock_key()}); {READ_META}"
            with self._begin(first, to_write=True) as transaction:
                self._check_schema(transaction.meta)
                transaction.lock(namespaces)
                self._local.transaction = transaction
                try:
                    yield transaction
                finally:
                    self._local.transaction = None
            if transaction.added >= MANY:
                self._analyze_grown()
            for action in transaction.afterwards:
                action()

    @contextlib.contextmanager
    def alone(self) -> Iterator[Transaction]:
        """Yield a transaction without our locks and without a deadline; commit at the end."""
        with (
            translate_errors(self.masked_url),
            self._begin(READ_META, to_write=True) as transaction,
        ):
            self._check_schema(transaction.meta)
            transaction.connection.patience = None
            yield transaction

    @contextlib.contextmanager
    def outside(self) -> Iterator["Connection"]:
        """Yield a connection outside any transaction, without a deadline or a search path."""
        with translate_errors(self.masked_url), self._begin("") as transaction:
            transaction.run("ROLLBACK")
            transaction.connection.patience = None
            yield transaction.connection

    @property
    def in_write(self) -> bool:
        """Whether this thread is inside `write`."""
        return self._current() is not None

    def close(self) -> None:
        """Close this process's connections; one that is in use is closed when it is returned."""
        if self._guard.forked:
            return  # the connections belong to the parent process
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with self._returned:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _current(self) -> Transaction | None:
        self._reset_if_forked()
        transaction: Transaction | None = getattr(self._local, "transaction", None)
        return transaction

    def _lock_key(self, namespace: str | None = None) -> int:
        """Return the key of the advisory lock for a namespace, or by default for the store."""
        name = self.url.schema if namespace is None else f"{self.url.schema}\0{namespace}"
        return int.from_bytes(
            hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True
        )

    @contextlib.contextmanager
    def _begin(self, first: str, *, to_write: bool = False) -> Iterator[Transaction]:
        """Begin a transaction, yield it, and end it.

        Args:
            first: The first statements, which are sent together with the BEGIN. If they end with
                `READ_META`, the transaction already has the store's settings.
            to_write: Whether to commit the transaction at its end; if not, it is rolled back.
        """
        import psycopg

        with self._borrow_connection(first, to_write=to_write) as (connection, cursor):
            try:
                if to_write and self._unsafe:
                    raise StoreError(f"{self.masked_url}: {self._unsafe}")
                meta_rows = last_rows(cursor) if first.endswith(READ_META) else None
                transaction = Transaction(connection, self._lock_key, meta_rows)
                yield transaction
            except BaseException:
                with contextlib.suppress(psycopg.Error):  # a lost connection is closed below
                    connection.execute("ROLLBACK")
                raise
            if to_write:
                self._commit(connection, notify=transaction.logs)
            else:
                connection.execute("ROLLBACK")

    @property
    def channel(self) -> str:
        """The notification channel for log writes."""
        return f"memories_{self._lock_key() & (1 << 64) - 1:016x}"

    def _commit(self, connection: "Connection", *, notify: bool) -> None:
        import psycopg
        from psycopg.pq import TransactionStatus

        sql = "COMMIT"
        # Send the notification together with the commit, and only if the commit can succeed.
        if notify and connection.info.transaction_status == TransactionStatus.INTRANS:
            sql = f"{_NOTIFY.format(channel=self.channel)}COMMIT"
        warnings: list[str] = []

        def note(notice: psycopg.errors.Diagnostic) -> None:
            # The text of a notice is in the server's language, so we recognize the notice by the
            # function that sent it. It can only be read in this handler.
            if notice.source_function == _REPLICA_WAIT:
                warnings.append(notice.message_primary or "")

        connection.add_notice_handler(note)
        try:
            cursor = connection.execute(sql)
            while cursor.nextset():
                pass
        except (psycopg.OperationalError, StoreUnreachable) as exc:
            if not connection.closed:
                raise
            raise StoreUnreachable(
                f"the connection to {self.masked_url} was lost during a write, which may or may "
                "not be stored; check before you write it again"
            ) from exc
        finally:
            connection.remove_notice_handler(note)
        # after a failed statement, the server answers COMMIT with ROLLBACK
        if cursor.statusmessage != "COMMIT":
            raise StoreError(
                f"{self.masked_url}: an error rolled back the entire transaction; nothing was "
                "written"
            )
        if warnings:  # if the wait for a replica is canceled, the server only warns
            raise StoreError(
                f"{self.masked_url} stored the write, but not on its replicas ({warnings[0]}); "
                "if that server is lost, the write is lost too"
            )

    @contextlib.contextmanager
    def _borrow_connection(
        self, first: str, *, to_write: bool
    ) -> Iterator[tuple["Connection", "psycopg.Cursor"]]:
        """Yield a pooled connection in a transaction, and the cursor of its first statements."""
        from psycopg.pq import TransactionStatus

        self._reset_if_forked()
        if not self._free.acquire(timeout=BUSY_SECONDS):
            raise StoreBusy(
                f"all {MAX_CONNECTIONS} connections to {self.masked_url} are in use; "
                "nothing was done; try again"
            )
        try:
            connection, cursor = self._begin_on_connection(first, to_write=to_write)
            try:
                yield connection, cursor
            finally:
                is_idle = (
                    not connection.closed
                    and connection.info.transaction_status == TransactionStatus.IDLE
                )
                with self._returned:
                    if self._closed or not is_idle:
                        connection.close()
                    else:
                        self._idle.append(connection)
                    # Notify waiting threads even if the connection was closed, because the server
                    # now has room for a new one.
                    self._returned.notify()
        finally:
            self._free.release()

    def _begin_on_connection(
        self, first: str, *, to_write: bool
    ) -> tuple["Connection", "psycopg.Cursor"]:
        """Begin a transaction; return its connection, and the cursor of its first statements.

        If an idle connection turns out to be closed, a new one is opened, since nothing was
        executed. If the server has no room for a new one, this waits until another thread returns
        its connection.
        """
        deadline, pause = time.monotonic() + BUSY_SECONDS, _FIRST_PAUSE
        while True:
            begun = self._begin_on_idle(first, to_write=to_write)
            if begun is not None:
                return begun
            try:
                connection = self.connect()
            except ServerFull:
                if time.monotonic() > deadline:
                    raise
                with self._returned:
                    if not self._idle:
                        self._returned.wait(pause)
                pause = min(2 * pause, _LAST_PAUSE)
                continue
            try:
                return connection, _run_begin(connection, first, to_write=to_write)
            except BaseException:
                self._exists = False  # the tables may be lost; the next transaction checks that
                connection.close()
                raise

    def _begin_on_idle(
        self, first: str, *, to_write: bool
    ) -> tuple["Connection", "psycopg.Cursor"] | None:
        """Begin a transaction on an idle connection, if one still works."""
        import psycopg

        with self._returned:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            return None
        try:
            return connection, _run_begin(connection, first, to_write=to_write)
        except StoreUnreachable:
            self._close_idle()  # the other connections may have stopped working, too
            raise
        except BaseException as exc:
            is_lost = connection.broken and isinstance(exc, psycopg.OperationalError)
            self._exists = False
            connection.close()
            if not is_lost:
                raise
            self._close_idle()  # the other connections are probably lost, too
            return None

    def _reset_if_forked(self) -> None:
        if self._guard.forked:
            # Inherited connections are never closed, because the parent uses the same sockets.
            self._inherited += self._idle
            self._reset()

    def connect(self) -> "Connection":
        """Return a new connection that isn't in the pool."""
        import psycopg

        from memories.stores.postgres.patience import Connection

        try:
            # Statements aren't prepared on the server, because behind a pooler the next statement
            # may reach a different session.
            connection = Connection.connect(
                self.url.full, autocommit=True, client_encoding="utf8", prepare_threshold=None
            )
        except psycopg.ProgrammingError as exc:  # the driver's message may contain the password
            raise ConfigError(
                f"{self.masked_url} is not a URL that PostgreSQL accepts; "
                "check its parts and options"
            ) from exc
        except psycopg.Error as exc:
            raise refusal(exc, self.masked_url, self.url.password) from exc
        connection.masked_url = self.masked_url
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: "Connection") -> None:
        [row] = connection.execute(_INSPECT).fetchall()
        version, encoding, fsync, commit, is_read_only, extension = row
        if version < OLDEST:
            raise StoreError(
                f"{self.masked_url} is PostgreSQL {version // 10000}, but {OLDEST // 10000} or "
                "newer is required; upgrade it"
            )
        if encoding != "UTF8":
            raise StoreError(
                f"the database at {self.masked_url} has encoding {encoding}; use a UTF8 database"
            )
        self._unsafe = None
        if fsync != "on":
            self._unsafe = "fsync is off, so a power failure loses writes; set fsync = on"
        schemas = dict.fromkeys((self.url.schema, "public", extension))
        path = ", ".join(f'"{name}"' for name in schemas if name)
        if commit not in ("on", "remote_apply"):
            commit = "on"
        connection.settings = (
            f"SET LOCAL search_path = {path}; "
            f"SET LOCAL lock_timeout = '{BUSY_SECONDS * 1000:.0f}ms'; "
            f"SET LOCAL synchronous_commit = {commit}; {_SETTINGS}"
        )
        # Set only if needed: a replica refuses READ WRITE even if nothing is written.
        connection.access = " READ WRITE" if is_read_only else ""

    def _analyze_grown(self) -> None:
        """Analyze tables that have grown.

        A failure is only logged, because the records are already stored.
        """
        try:
            with translate_errors(self.masked_url), self._begin("", to_write=True) as transaction:
                for (table,) in transaction.rows(schema.GROWN):
                    transaction.run(f"ANALYZE (SKIP_LOCKED) {table}")
        except StoreError as exc:
            _log.warning("cannot update the planner's statistics: %s", exc)

    def _open_store(self, transaction: Transaction) -> Transaction:
        """Return the transaction, after migrating an older store.

        If the store doesn't exist, return a transaction that reads as empty.
        """
        connection, name = transaction.connection, f"{self.url.schema}.meta"
        if not self._exists:
            find = "SELECT to_regclass(%s)"
            if transaction.value(find, (name,)) is None:
                self._refuse_lost(
                    lambda: self._begin_again(connection, "").value(find, (name,)) is None
                )
                return Missing(connection, self._lock_key)
            transaction = self._begin_again(connection)
        if self._check_schema(transaction.meta) < len(schema.MIGRATIONS):
            connection.execute("ROLLBACK")
            self._create()
            transaction = self._begin_again(connection)
        partitions, url_partitions = transaction.meta.partitions, self.url.partitions or 0
        if not self._exists and url_partitions > partitions:
            message = (
                "%s has %d partitions, but its URL asks for %d; to repartition it, run: memory "
                "migrate --partitions %d"
            )
            _log.warning(message, self.masked_url, partitions, url_partitions, url_partitions)
        self._exists = True
        return transaction

    def _begin_again(self, connection: "Connection", first: str = _READ_STORE) -> Transaction:
        connection.execute("ROLLBACK")
        cursor = _run_begin(connection, first, to_write=False)
        return Transaction(connection, self._lock_key, last_rows(cursor) if first else None)

    def _check_schema(self, meta: Meta) -> int:
        """Return the schema version; refuse an unsupported one.

        Every transaction checks it, since a newer program may migrate the store at any time.
        """
        newest = len(schema.MIGRATIONS)
        if meta.schema > newest:
            raise SchemaTooNew(
                f"{self.masked_url} has schema {meta.schema}, but this program supports only "
                f"schemas up to {newest}; upgrade memoriae; nothing was changed"
            )
        if 0 < meta.schema < schema.FIRST_RELEASED:
            raise StoreError(
                f"{self.masked_url} has schema {meta.schema}, from before the first release; "
                "export it with the program that wrote it; nothing was changed"
            )
        return meta.schema

    def _create(self) -> None:
        """Create the tables, or migrate older ones step by step, while other writers wait."""
        lock = f"SELECT pg_advisory_xact_lock({self._lock_key()})"
        with self._begin(lock, to_write=True) as transaction:
            transaction.connection.patience = None
            if transaction.value("SELECT to_regnamespace(%s)", (self.url.schema,)) is None:
                transaction.run(f'CREATE SCHEMA "{self.url.schema}"')
            if transaction.value("SELECT to_regclass(%s)", (f"{self.url.schema}.meta",)) is None:
                transaction.run(schema.META)
            meta = transaction.meta
            partitions = meta.partitions or self.url.partitions or PARTITIONS
            for number in range(self._check_schema(meta) + 1, len(schema.MIGRATIONS) + 1):
                transaction.run(schema.MIGRATIONS[number - 1](partitions))
                transaction.save_meta({"schema": number, "partitions": partitions})
        self._exists = True


def _run_begin(connection: "Connection", first: str, *, to_write: bool) -> "psycopg.Cursor":
    """Begin a transaction, set it up and run its first statements, in one step."""
    connection.patience = WRITE_SECONDS if to_write else READ_SECONDS
    begin = f"{_BEGIN_WRITE}{connection.access}" if to_write else _BEGIN_READ
    return connection.execute(f"{begin}; {connection.settings}; {first}")
