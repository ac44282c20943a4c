"""The server of the PostgreSQL store: its URL, connections, transactions, locks and migrations.

Knows nothing of records.
"""

import contextlib
import hashlib
import importlib.util
import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from memories.core.disk import ForkGuard
from memories.core.urls import without_password
from memories.errors import ConfigError, SchemaTooNew, StoreBusy, StoreError, StoreUnreachable
from memories.stores.postgres import schema
from memories.stores.postgres.errors import INSTALL, ServerFull, refusal, translated
from memories.stores.postgres.transaction import READ_META, Meta, Missing, Transaction, last_rows

if TYPE_CHECKING:
    import psycopg

    from memories.stores.postgres.driver import Connection

MAX_PARTITIONS = 64
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCHEME = re.compile(r"postgres(?:ql)?://")
_OURS = ("schema", "partitions")
_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "memories",
    "keepalives_idle": "30",
    "tcp_user_timeout": "60000",
}


class StoreURL(NamedTuple):
    """The parts of a store's URL.

    Attributes:
        full: The URL for libpq.
        shown: The URL without its password.
        password: The password in it, if it has one.
        schema: The schema that holds the tables.
        partitions: How many partitions a new store gets; None if the URL does not say.
    """

    full: str
    shown: str
    password: str
    schema: str
    partitions: int | None


def parse_url(url: str) -> StoreURL:
    """Take our own options out of a URL and add defaults; the rest is left to libpq as it stands.

    Raises:
        ConfigError: It is not valid.
    """
    shown = without_password(url)
    scheme = _SCHEME.match(url)
    user, place, query = _parts(url[scheme.end() :] if scheme else "")
    if scheme is None or place.count("[") != place.count("]"):
        raise ConfigError(
            "the URL of the PostgreSQL store is not one; write postgresql://user@host/database"
        )
    options = [(unquote(pair.partition("=")[0]), pair) for pair in query.split("&") if pair]
    by_name = {name: unquote(pair.partition("=")[2]) for name, pair in options}
    schema, partitions = by_name.get("schema", "memories"), by_name.get("partitions")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise ConfigError(
            f'schema "{schema[:80]}" in {shown} must consist of lower-case letters, digits and _'
        )
    pairs = [pair for name, pair in options if name not in _OURS]
    pairs += [f"{name}={value}" for name, value in _DEFAULTS.items() if name not in by_name]
    if any("password" in name for name in by_name):
        shown = shown.partition("?")[0]
    return StoreURL(
        full=f"{scheme[0]}{user}{place}?{'&'.join(pairs)}",
        shown=shown,
        password=by_name.get("password") or unquote(user.removesuffix("@").partition(":")[2]),
        schema=schema,
        partitions=None if partitions is None else checked_partitions(partitions, f"in {shown} "),
    )


def checked_partitions(number: str | int, where: str = "") -> int:
    """Return a number of partitions.

    Args:
        number: As it was given.
        where: Where it was, for the message.

    Raises:
        ConfigError: It is none from 1 to 64.
    """
    text = str(number)
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MAX_PARTITIONS:
        raise ConfigError(
            f"partitions={text[:20]} {where}must be a number from 1 to {MAX_PARTITIONS}"
        )
    return int(text)


def _parts(rest: str) -> tuple[str, str, str]:
    """Return user and password with their @, hosts and database, and the options, as libpq divides
    them.
    """
    at = next((number for number, sign in enumerate(rest) if sign in "@/"), len(rest))
    user = rest[: at + 1] if rest[at : at + 1] == "@" else ""
    place, _, query = rest[len(user) :].partition("?")
    return user, place, query


BUSY_SECONDS = 30.0
READ_SECONDS = 60.0  # how long the server may send nothing during a read
WRITE_SECONDS = 120.0
MAX_CONNECTIONS = 10  # of one process; more threads wait for each other
OLDEST = 150_000  # PostgreSQL 15
PARTITIONS = 4  # of a new store
MANY = 100  # adding this many records in one step may outdate the planner's statistics
_LOOK = """
SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_setting('fsync'),
       current_setting('synchronous_commit'),
       current_setting('default_transaction_read_only')::boolean AND NOT pg_is_in_recovery(),
       (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector')
"""
# What each transaction sets for itself: behind a pooler the next one may run in another session of
# the server. Computing the words of every row, as a scan without their index does, takes longer
# than the planner thinks. A scan of the vectors' index continues until enough rows match.
_SETTINGS = """
SET LOCAL enable_seqscan = off; SET LOCAL enable_partitionwise_join = on; SET LOCAL jit = off;
SET LOCAL idle_in_transaction_session_timeout = '300s';
SET LOCAL hnsw.ef_search = 300; SET LOCAL hnsw.iterative_scan = relaxed_order; SET LOCAL hnsw.max_scan_tuples = 50000
"""
# Tables of more than a megabyte that have doubled since they were last analyzed. Autovacuum does it
# a minute after a load or never, and until then a search may take ten times as long.
_GROWN = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND pg_has_role(relowner, 'USAGE')
AND pg_relation_size(oid) / current_setting('block_size')::int > 2 * greatest(relpages, 64)
"""
LISTENED_SECONDS = 60  # for which who listens says so
# Commits that tell something wait for each other in the whole server, so nobody is told where
# nobody listens.
_TELL = """
SELECT pg_notify('{channel}', '') FROM meta
WHERE name = 'listened' AND value::bigint > extract(epoch FROM clock_timestamp());
"""
_FIRST_PAUSE, _LAST_PAUSE = (
    0.05,
    1.0,
)  # seconds between tries to get a connection from a server that has none left
_log = logging.getLogger(__name__)

_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
# Before the first snapshot: tables are replaced by copies, in which an older snapshot would see no
# rows.
_READ_STORE = f"LOCK TABLE ONLY record IN ACCESS SHARE MODE; {READ_META}"
# the function of the server that warns of a wait that was ended
_REPLICA_WAIT = "SyncRepWaitForLSN"


class Server:
    """One store on a server, and this process's connections to it.

    Writers of a namespace queue by an advisory lock on it, so those of different namespaces do not
    wait for each other. Every writer also holds a shared lock on the whole store; a migration and a
    switch of the space take it exclusively.
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
        self._given_back = threading.Condition()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = False
        self._exists = False
        self._unsafe: str | None = None

    # --- reading and writing
    # ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def read(self, namespaces: Iterable[str] = (), *, whole: bool = False) -> Iterator[Transaction]:
        """Yield a transaction whose statements all see one state of the store, or an empty store if
        there is none.

        Args:
            namespaces: What is read; inside `write` other writers are excluded from them from now
                on.
            whole: Whether the whole store is read; inside `write` other writers are excluded from
                now on.
        """
        with translated(self.shown):
            if (current := self._current()) is not None:
                current.lock(namespaces, whole=whole)
                yield current
                return
            with self._begun(_READ_STORE if self._exists else "") as transaction:
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

        Inside another `write` this is a savepoint: its failure undoes its own part, even if it is
        caught.

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
                with self._begun("") as transaction:
                    self._found(transaction)
            if not self._exists:
                self._create()
            waiting = (
                ""
                if wait_seconds is None
                else f"SET LOCAL lock_timeout = '{wait_seconds * 1000:.0f}ms'; "
            )
            commit = "" if durable else "SET LOCAL synchronous_commit = off; "
            kind = "" if whole else "_shared"
            first = f"{waiting}{commit}SELECT pg_advisory_xact_lock{kind}({self._lock_key()}); {READ_META}"
            with self._begun(first, to_write=True) as transaction:
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
        """Yield a transaction that holds no lock of ours and has no deadline; commit at the end."""
        with translated(self.shown), self._begun(READ_META, to_write=True) as transaction:
            self._check_schema(transaction.meta)
            transaction.connection.patience = None
            yield transaction

    @contextlib.contextmanager
    def outside(self) -> Iterator["Connection"]:
        """Yield a connection outside of any transaction and without a deadline; name tables with
        their schema.
        """
        with translated(self.shown), self._begun("") as transaction:
            transaction.run("ROLLBACK")
            transaction.connection.patience = None
            yield transaction.connection

    @property
    def in_write(self) -> bool:
        """Whether this thread is inside `write`."""
        return self._current() is not None

    def close(self) -> None:
        """Close the connections of this process; those that are in use when they are given back."""
        if self._guard.forked:
            return  # they are the parent's
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with self._given_back:
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
        return int.from_bytes(
            hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True
        )

    # --- transactions
    # ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _begun(self, first: str, *, to_write: bool = False) -> Iterator[Transaction]:
        """Begin a transaction, yield it, and end it; one that only reads is rolled back.

        Args:
            first: What is run first, in the same step; `READ_META` at its end saves reading that
                later.
            to_write: Whether to commit.
        """
        import psycopg

        with self._borrowed(first, to_write=to_write) as (connection, answer):
            try:
                if to_write and self._unsafe:
                    raise StoreError(f"{self.shown}: {self._unsafe}")
                known = first.endswith(READ_META)
                transaction = Transaction(
                    connection, self._lock_key, last_rows(answer) if known else None
                )
                yield transaction
            except BaseException:
                with contextlib.suppress(
                    psycopg.Error
                ):  # a connection that is lost is closed when it is given back
                    connection.execute("ROLLBACK")
                raise
            if to_write:
                self._commit(connection, told=transaction.logs)
            else:
                connection.execute("ROLLBACK")

    @property
    def channel(self) -> str:
        """Where processes are told that the log was written."""
        return f"memories_{self._lock_key() & (1 << 64) - 1:016x}"

    def _commit(self, connection: "Connection", *, told: bool) -> None:
        import psycopg
        from psycopg.pq import TransactionStatus

        # In one step with the commit, and not where it fails anyway.
        tells = told and connection.info.transaction_status == TransactionStatus.INTRANS
        tell = _TELL.format(channel=self.channel) if tells else ""
        warnings: list[str] = []

        def note(notice: psycopg.errors.Diagnostic) -> None:
            if notice.source_function == _REPLICA_WAIT:  # its text is in the server's language
                warnings.append(notice.message_primary or "")  # it can be read now and never again

        connection.add_notice_handler(note)
        try:
            answer = connection.execute(f"{tell}COMMIT")
            while answer.nextset():
                pass
        except (psycopg.OperationalError, StoreUnreachable) as exc:
            if not connection.closed:
                raise
            raise StoreUnreachable(
                f"the connection to {self.shown} was lost while it was being written; it may be stored or not: "
                "read it before you write it again"
            ) from exc
        finally:
            connection.remove_notice_handler(note)
        if (
            answer.statusmessage != "COMMIT"
        ):  # the server's way of saying that a statement inside failed
            raise StoreError(
                f"{self.shown}: what failed inside a transaction undid all of it; nothing was written"
            )
        if (
            warnings
        ):  # an administrator ended the wait for a replica: no error, but only half a commit
            raise StoreError(
                f"{self.shown} stored it, but not on its replicas ({warnings[0]}); it can be lost if the server is"
            )

    @contextlib.contextmanager
    def _borrowed(
        self, first: str, *, to_write: bool
    ) -> Iterator[tuple["Connection", "psycopg.Cursor"]]:
        """Yield a connection of the pool on which a transaction has begun, and the answer to the
        first statement.
        """
        from psycopg.pq import TransactionStatus

        self._forget_if_forked()
        if not self._free.acquire(timeout=BUSY_SECONDS):
            raise StoreBusy(
                f"all {MAX_CONNECTIONS} connections to {self.shown} are in use; nothing was done; try again"
            )
        try:
            connection, answer = self._ready(first, to_write=to_write)
            try:
                yield connection, answer
            finally:
                idle = (
                    not connection.closed
                    and connection.info.transaction_status == TransactionStatus.IDLE
                )
                with self._given_back:
                    if self._closed or not idle:
                        connection.close()
                    else:
                        self._idle.append(connection)
                    # of one that is closed, too: the server has room for another
                    self._given_back.notify()
        finally:
            self._free.release()

    def _ready(self, first: str, *, to_write: bool) -> tuple["Connection", "psycopg.Cursor"]:
        """Return a connection on which a transaction has begun, and the answer to the first
        statement.

        The server may have closed an idle one. Nothing has happened then, and a new one is opened.
        If the server has no room for a new one, one that is given back is waited for.
        """
        until, pause = time.monotonic() + BUSY_SECONDS, _FIRST_PAUSE
        while True:
            started = self._on_idle(first, to_write=to_write)
            if started is not None:
                return started
            try:
                connection = self.connect()
            except ServerFull:
                if time.monotonic() > until:
                    raise
                with self._given_back:
                    if not self._idle:
                        self._given_back.wait(pause)
                pause = min(2 * pause, _LAST_PAUSE)
                continue
            try:
                return connection, _begin(connection, first, to_write=to_write)
            except BaseException:
                connection.close()
                raise

    def _on_idle(
        self, first: str, *, to_write: bool
    ) -> tuple["Connection", "psycopg.Cursor"] | None:
        """Begin a transaction on an idle connection, if there is one that still works."""
        import psycopg

        with self._given_back:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            return None
        try:
            return connection, _begin(connection, first, to_write=to_write)
        except StoreUnreachable:
            self._close_idle()  # the others may be stopped as well
            raise
        except BaseException as exc:
            lost = connection.broken and isinstance(exc, psycopg.OperationalError)
            connection.close()
            if not lost:
                raise
            self._close_idle()  # the others are as old
            return None

    def _forget_if_forked(self) -> None:
        if self._guard.forked:
            self._inherited += (
                self._idle
            )  # never closed here: the parent talks through the same sockets
            self._reset()

    def connect(self) -> "Connection":
        """Return a new connection, outside of the pool."""
        import psycopg

        from memories.stores.postgres.driver import Connection

        try:
            # Statements are not prepared on the server: behind a pooler the next one may reach
            # another session.
            connection = Connection.connect(
                self.url.full, autocommit=True, client_encoding="utf8", prepare_threshold=None
            )
        except psycopg.ProgrammingError as exc:  # its message may hold the password
            raise ConfigError(
                f"{self.shown} is not a URL that PostgreSQL knows; check its parts and options"
            ) from exc
        except psycopg.Error as exc:
            raise refusal(exc, self.shown, self.url.password) from exc
        connection.shown = self.shown
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: "Connection") -> None:
        """Check the server, and make the settings that a connection needs."""
        version, encoding, fsync, commit, reads_only, extension = connection.execute(
            _LOOK
        ).fetchall()[0]
        if version < OLDEST:
            raise StoreError(
                f"{self.shown} is PostgreSQL {version // 10_000}; this needs {OLDEST // 10_000} or newer: upgrade it"
            )
        if encoding != "UTF8":
            raise StoreError(
                f"the database of {self.shown} has the encoding {encoding}; use one with UTF8"
            )
        self._unsafe = (
            None
            if fsync == "on"
            else "fsync is off there, so a power cut loses writes; set fsync = on"
        )
        path = ", ".join(
            f'"{name}"' for name in dict.fromkeys((self.url.schema, "public", extension)) if name
        )
        kept = commit if commit in ("on", "remote_apply") else "on"
        connection.settings = (
            f"SET LOCAL search_path = {path}; SET LOCAL lock_timeout = '{BUSY_SECONDS * 1000:.0f}ms'; "
            f"SET LOCAL synchronous_commit = {kept}; {_SETTINGS}"
        )
        # A replica would refuse READ WRITE before it is asked to write.
        connection.access = " READ WRITE" if reads_only else ""

    def _analyze_grown(self) -> None:
        """Analyze tables that have grown; the records are stored already, so a failure is only
        logged.
        """
        try:
            with translated(self.shown), self._begun("", to_write=True) as transaction:
                for (table,) in transaction.rows(_GROWN):
                    transaction.run(f"ANALYZE (SKIP_LOCKED) {table}")
        except StoreError as exc:
            _log.warning("the planner's statistics were not brought up to date: %s", exc)

    # --- creating and migrating
    # ------------------------------------------------------------------------------------

    def _found(self, transaction: Transaction) -> Transaction:
        """Return the transaction if the store exists, after migrating an older one; else an empty
        one.
        """
        connection, name = transaction.connection, f"{self.url.schema}.meta"
        if not self._exists:
            if transaction.value("SELECT to_regclass(%s)", (name,)) is None:
                return Missing(connection, self._lock_key)
            transaction = self._begun_again(connection)
        if self._check_schema(transaction.meta) < len(schema.MIGRATIONS):
            connection.execute("ROLLBACK")
            self._create()
            transaction = self._begun_again(connection)
        there, asked = transaction.meta.partitions, self.url.partitions or 0
        if not self._exists and asked > there:
            _log.warning(
                "%s has %d partitions, and its URL asks for %d; to divide it anew run: memory migrate --partitions %d",
                *(self.shown, there, asked, asked),
            )
        self._exists = True
        return transaction

    def _begun_again(self, connection: "Connection") -> Transaction:
        connection.execute("ROLLBACK")
        answer = _begin(connection, _READ_STORE, to_write=False)
        return Transaction(connection, self._lock_key, last_rows(answer))

    def _check_schema(self, meta: Meta) -> int:
        """Return the schema's version; checked in every transaction, since a newer program may
        migrate at any time.
        """
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
            f"SELECT pg_advisory_xact_lock({self._lock_key()})", to_write=True
        ) as transaction:
            transaction.connection.patience = None
            if transaction.value("SELECT to_regnamespace(%s)", (self.url.schema,)) is None:
                transaction.run(f'CREATE SCHEMA "{self.url.schema}"')
            if transaction.value("SELECT to_regclass(%s)", (f"{self.url.schema}.meta",)) is None:
                transaction.run(schema.META)
            meta = transaction.meta
            partitions = meta.partitions or self.url.partitions or PARTITIONS
            for number in range(self._check_schema(meta) + 1, len(schema.MIGRATIONS) + 1):
                transaction.run(schema.MIGRATIONS[number - 1](partitions))
                transaction.remember({"schema": number, "partitions": partitions})
        self._exists = True


def _begin(connection: "Connection", first: str, *, to_write: bool) -> "psycopg.Cursor":
    """Begin a transaction with all that it sets, and run a first statement, in one step; return its
    answer.
    """
    connection.patience = WRITE_SECONDS if to_write else READ_SECONDS
    begin = f"{_BEGIN_WRITE}{connection.access}" if to_write else _BEGIN_READ
    return connection.execute(f"{begin}; {connection.settings}; {first}")
