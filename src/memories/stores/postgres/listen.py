"""Notices the writes of all processes, on one listening connection that is reopened if it is
lost.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from memories.errors import MemoriesError, StoreUnreachable
from memories.stores.postgres.connection import LISTENED_SECONDS, Server

if TYPE_CHECKING:
    from memories.stores.postgres.driver import Connection

# seconds between two notifications to itself, which prove that it receives notifications
PROBE_SECONDS = 15.0
_POLL_SECONDS = 0.2  # seconds after which it notices that it should stop
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0  # seconds between two attempts to get a connection
_LISTENED = """
INSERT INTO "{schema}".meta
VALUES ('listened', (extract(epoch FROM clock_timestamp()) + {seconds})::bigint::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_log = logging.getLogger(__name__)


class Listener:
    """Calls a function after each transaction that wrote the log, until it is closed.

    Attributes:
        hearing: Whether it receives notifications. False while the server is down, and behind a
            pooler that shares sessions, where PostgreSQL delivers none. The caller must then poll.
    """

    def __init__(self, server: Server, callback: Callable[[], None]) -> None:
        """Start listening in a separate thread.

        Args:
            server: The store's server.
            callback: Called after each notification. Also called when the listener starts or stops
                receiving them, since it may have missed a write.
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
                    "no notifications of writes to %s, polling instead: %s",
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
                raise StoreUnreachable("its own notification did not arrive")

    def _receive(self, connection: "Connection", probe: str) -> bool:
        """Report notifications for a while; return whether the probe was among them."""
        is_received, deadline = False, time.monotonic() + PROBE_SECONDS
        while time.monotonic() < deadline and not self._ended.is_set():
            for message in connection.notifies(timeout=_POLL_SECONDS):
                if message.payload == probe:
                    is_received = self.hearing = True
                if message.payload in ("", probe):  # others are the probes of other listeners
                    self._callback()
        return is_received
