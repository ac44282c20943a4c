"""Claims of keyed requests and notifications of writes, shared by the servers of one store."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Json

from memories.errors import MemoriesError, StoreError, StoreUnreachable
from memories.stores import claims
from memories.stores.claims import Claim, Taken
from memories.stores.postgres.connection import LISTENED_SECONDS, Server
from memories.stores.postgres.errors import translate_errors

if TYPE_CHECKING:
    from memories.stores.postgres.patience import Connection

_log = logging.getLogger(__name__)

# If a server doesn't renew a request for this long, the request counts as abandoned.
LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0
_SWEPT = 500  # after this many claims, old requests are removed

# These statements don't wait for the disk. In the database's log, a claim precedes the write that
# its request makes, and flushing that write also flushes the claim. So the write never survives
# without its claim. If only the record of a request's end is lost, the request is processed again.
# A statement is sent in one step together with its transaction and its settings, because a pooler
# may give the session to a different client afterwards.
_STEP = """
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = off;
{statement}; COMMIT
"""
# A request is in progress while the session that began it exists and its lease has not expired. A
# session ends with its process. The lease is needed because PostgreSQL may notice late that a
# session has ended, for example after a power failure, or never, for example behind a pooler.
_CLAIM = """
INSERT INTO {request} AS r (name, digest, at, number, session, until)
VALUES (%(name)s, %(digest)s, %(at)s, 1, pg_backend_pid(), clock_timestamp() + %(lease)s::interval)
ON CONFLICT (name) DO UPDATE SET
  digest = excluded.digest, session = excluded.session, until = excluded.until,
  number = CASE WHEN r.at < %(oldest)s THEN 1 ELSE r.number + 1 END,
  at = CASE WHEN r.at < %(oldest)s THEN excluded.at ELSE r.at END,
  told = CASE WHEN r.at < %(oldest)s THEN NULL ELSE r.told END
WHERE (r.digest = excluded.digest OR r.at < %(oldest)s) AND (
  r.session IS NULL OR r.until < clock_timestamp()
  OR NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = r.session)
)
RETURNING number, at, told
"""
_DIGEST = "SELECT digest FROM {request} WHERE name = %(name)s"
_RENEW = """
UPDATE {request} r SET session = pg_backend_pid(), until = clock_timestamp() + %(lease)s::interval
FROM unnest(%(names)s::text[], %(numbers)s::int[]) AS held(name, number)
WHERE (r.name, r.number) = (held.name, held.number)
"""
_SETTLE = """
UPDATE {request} SET session = NULL, until = NULL, told = coalesce(%(told)s::json, told)
WHERE (name, number) = (%(name)s, %(number)s)
"""
_DROP = "DELETE FROM {request} WHERE (name, number) = (%(name)s, %(number)s)"
_SWEEP = """
DELETE FROM {request}
WHERE at < greatest(%(oldest)s, (SELECT at FROM {request} ORDER BY at DESC OFFSET %(most)s LIMIT 1))
"""


class PostgresClaims:
    """Implements `Claims` on a table that all servers of a store share.

    It uses one connection. When the connection ends, other servers see that this process has ended.
    A thread renews the requests in progress, and reconnects if necessary.
    """

    def __init__(self, server: Server) -> None:
        """Initialize; nothing is opened yet.

        Args:
            server: The store's server.
        """
        self._server = server
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._held: dict[str, int] = {}
        self._count = 0
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def claim(self, name: str, digest: str, *, sync: bool) -> Claim:  # noqa: ARG002 - the write that follows is synced
        """See `Claims.claim`."""
        now = time.time()
        values: dict[str, Any] = {
            "name": name,
            "digest": digest,
            "at": now,
            "oldest": now - claims.KEPT_SECONDS,
        }
        with translate_errors(self._server.masked_url), self._lock:
            if self._count % _SWEPT == 0:
                self._rows(_SWEEP, {"oldest": values["oldest"], "most": claims.MAX_KEPT})
            self._count += 1
            while not (rows := self._rows(_CLAIM, values)):
                digests = self._rows(_DIGEST, values)
                if digests:  # empty if the request was dropped in the meantime
                    raise Taken(other=digests[0][0] != digest)
            [(number, begun_at, summary)] = rows
            self._held[name] = number
        return Claim(name, number, begun_at, summary)

    def settle(self, claim: Claim, summary: dict[str, Any] | None) -> None:
        """See `Claims.settle`."""
        self._end(_SETTLE, claim, None if summary is None else Json(summary))

    def drop(self, claim: Claim) -> None:
        """See `Claims.drop`."""
        self._end(_DROP, claim, None)

    def _end(self, sql: str, claim: Claim, summary: Json | None) -> None:
        with translate_errors(self._server.masked_url), self._lock:
            self._held.pop(claim.name, None)
            self._rows(sql, {"name": claim.name, "number": claim.number, "told": summary})

    def close(self) -> None:
        """See `Claims.close`."""
        self._ended.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _rows(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement; the caller holds the lock.

        If the connection was lost, the statement is repeated on a new one, which is harmless.
        """
        connection = self._connection
        if connection is not None and not connection.closed:
            try:
                return self._run(connection, statement, values)
            except (psycopg.Error, StoreUnreachable):
                if not connection.closed:
                    raise
        return self._run(self._connect(), statement, values)

    def _connect(self) -> "Connection":
        """Return a new connection, after renewing the requests in progress on it."""
        if self._ended.is_set():
            raise StoreUnreachable("this server is stopping; nothing was written")
        with self._server.write():
            pass  # this creates or migrates the tables
        self._connection = self._server.connect()
        if self._held:
            self._run(self._connection, _RENEW, self._held_requests())
        if self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="claims", daemon=True)
            self._renewing.start()
        return self._connection

    def _run(
        self, connection: "Connection", statement: str, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        step = _STEP.format(
            statement=statement.format(request=f'"{self._server.url.schema}".request')
        )
        cursor = psycopg.ClientCursor(connection)
        try:
            cursor.execute(step, {"lease": f"{LEASE_SECONDS} s", **values})
        except BaseException:
            with contextlib.suppress(psycopg.Error):  # the connection may be closed
                connection.execute("ROLLBACK")
            raise
        rows: list[tuple[Any, ...]] = []
        while cursor.nextset():
            if cursor.description is not None:
                rows = cursor.fetchall()
        return rows

    def _held_requests(self) -> dict[str, Any]:
        return {"names": list(self._held), "numbers": list(self._held.values())}

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                with translate_errors(self._server.masked_url), self._lock:
                    if self._held:
                        self._rows(_RENEW, self._held_requests())
            except StoreError as exc:
                _log.warning("cannot renew the requests in progress: %s", exc)


# How often a listener sends itself a notification, to check that it receives notifications.
PROBE_SECONDS = 15.0
_POLL_SECONDS = 0.2  # seconds until the listener notices that it should stop
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0  # seconds between attempts to get a connection
_LISTENED = """
INSERT INTO "{schema}".meta
VALUES ('listened', (extract(epoch FROM clock_timestamp()) + {seconds})::bigint::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


class LogListener:
    """Calls a function after each transaction that wrote to the log, until the listener is closed.

    Attributes:
        hearing: Whether the listener receives notifications; if not, the caller must poll. It
            receives none while the server is down, or behind a pooler that shares sessions.
    """

    def __init__(self, server: Server, callback: Callable[[], None]) -> None:
        """Start listening in a separate thread.

        Args:
            server: The store's server.
            callback: Called after each notification, and when the listener starts or stops
                receiving notifications, since it may have missed a write.
        """
        self._server, self._callback = server, callback
        self.hearing = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. A thread that is connecting to a silent server is abandoned."""
        self._ended.set()
        self._thread.join(2 * _POLL_SECONDS)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._ended.is_set():
            try:
                with contextlib.closing(self._server.connect()) as connection:
                    self._listen(connection)
            except (psycopg.Error, MemoriesError) as exc:
                _log.info(
                    "polling for writes to %s, because notifications don't arrive: %s",
                    self._server.masked_url,
                    type(exc).__name__,
                )
            if self.hearing:
                self.hearing, pause = False, _FIRST_PAUSE
                self._callback()
            self._ended.wait(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _listen(self, connection: "Connection") -> None:
        """Listen until `close`.

        Raises:
            StoreUnreachable: The listener doesn't receive its own notification.
        """
        connection.execute(f'LISTEN "{self._server.channel}"')
        while not self._ended.is_set():
            connection.execute(
                _LISTENED.format(schema=self._server.url.schema, seconds=LISTENED_SECONDS)
            )
            probe = os.urandom(8).hex()
            connection.execute("SELECT pg_notify(%s, %s)", (self._server.channel, probe))
            if not self._receive(connection, probe) and not self._ended.is_set():
                raise StoreUnreachable("the listener did not receive its own notification")

    def _receive(self, connection: "Connection", probe: str) -> bool:
        """Pass on notifications until the next probe is due; return whether `probe` arrived."""
        is_received, deadline = False, time.monotonic() + PROBE_SECONDS
        while time.monotonic() < deadline and not self._ended.is_set():
            for message in connection.notifies(timeout=_POLL_SECONDS):
                if message.payload == probe:
                    is_received = self.hearing = True
                if message.payload in ("", probe):  # other payloads are probes of other listeners
                    self._callback()
        return is_received
