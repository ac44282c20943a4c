"""Keys of requests in the database, where every server of a store finds them."""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Json

from memories.errors import StoreError, StoreUnreachable
from memories.stores import claims
from memories.stores.claims import Claim, Taken
from memories.stores.postgres.connection import Server
from memories.stores.postgres.errors import translated

if TYPE_CHECKING:
    from memories.stores.postgres.driver import Connection

# after which a request counts as left, if its server does not say that it still does it
LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0
_SWEPT = 500  # requests between two looks for what is too old

# No statement waits for the disk: what is begun is in the log of the database before the write that
# follows, which does wait; a request of which only the end was lost is run again. All is one step,
# settings too, as a pooler may give the session to somebody else afterwards.
_STEP = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = off; {statement}; COMMIT"
# Somebody does a request while the session that began it is there and its time is not up. A session
# ends with its process; time ends it where that shows late, as with a machine that has lost its
# power, or never, as with a pooler's.
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
_log = logging.getLogger(__name__)


class PostgresClaims:
    """Implements `Claims` on a table that all servers of a store share.

    It has one connection, whose end tells the others that this process is gone. A thread says now
    and then what is still being done, also on a new connection after the old one was lost.
    """

    def __init__(self, server: Server) -> None:
        """Prepare; nothing is opened yet.

        Args:
            server: Whose store it is.
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
        with translated(self._server.shown), self._lock:
            self._sweep(values["oldest"])
            while not (rows := self._rows(_CLAIM, values)):
                known = self._rows(_DIGEST, values)
                if known:  # else it was dropped meanwhile
                    raise Taken(other=known[0][0] != digest)
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
        with translated(self._server.shown), self._lock:
            self._held.pop(claim.name, None)
            self._rows(sql, {"name": claim.name, "number": claim.number, "told": summary})

    def close(self) -> None:
        """See `Claims.close`."""
        self._ended.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    # --- statements, while the lock is held
    # --------------------------------------------------------------------------

    def _rows(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement; once more on a new connection if the old one was lost, as each may be
        repeated.
        """
        kept = self._connection
        if kept is not None and not kept.closed:
            try:
                return self._run(kept, statement, values)
            except (psycopg.Error, StoreUnreachable):
                if not kept.closed:
                    raise
        return self._run(self._connected(), statement, values)

    def _connected(self) -> "Connection":
        """Return a new connection, by which it has said what is being done here."""
        if self._ended.is_set():
            raise StoreUnreachable("this server is ending; nothing was written")
        with self._server.write():
            pass  # it makes the tables, or brings older ones up to date
        self._connection = self._server.connect()
        if self._held:
            self._run(self._connection, _RENEW, self._holding())
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
            with contextlib.suppress(psycopg.Error):  # it is closed
                connection.execute("ROLLBACK")
            raise
        rows: list[tuple[Any, ...]] = []
        while cursor.nextset():
            if cursor.description is not None:
                rows = cursor.fetchall()
        return rows

    def _holding(self) -> dict[str, Any]:
        return {"names": list(self._held), "numbers": list(self._held.values())}

    def _sweep(self, oldest: float) -> None:
        if self._count % _SWEPT == 0:
            self._rows(_SWEEP, {"oldest": oldest, "most": claims.MAX_KEPT})
        self._count += 1

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                with translated(self._server.shown), self._lock:
                    if self._held:
                        self._rows(_RENEW, self._holding())
            except StoreError as exc:
                _log.warning("nobody could be told which requests are being done: %s", exc)
