"""Notices writes of any process by one listening connection, which is opened again when it is
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

PROBE_SECONDS = 15.0  # between two messages to itself, which prove that others are heard
_LOOK_SECONDS = 0.2  # how soon it notices that it is to end
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0  # seconds between two tries to get a connection
_LISTENED = """
INSERT INTO "{schema}".meta
VALUES ('listened', (extract(epoch FROM clock_timestamp()) + {seconds})::bigint::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_log = logging.getLogger(__name__)


class Listener:
    """Calls a function after each transaction that wrote the log, until it is closed.

    Attributes:
        hearing: Whether it would hear of one now. It is false while the server is gone, and behind
            a pooler that shares sessions: PostgreSQL tells nobody there, and one has to look.
    """

    def __init__(self, server: Server, told: Callable[[], None]) -> None:
        """Begin to listen, in a thread of its own.

        Args:
            server: Whose store it is.
            told: Called for each message, once it begins to hear, and when it no longer does:
                something may have been written that it has not heard of.
        """
        self._server, self._told = server, told
        self.hearing = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; one that is just asking a silent server for a connection is left
        behind.
        """
        self._ended.set()
        self._thread.join(2 * _LOOK_SECONDS)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._ended.is_set():
            try:
                with contextlib.closing(self._server.connect()) as connection:
                    self._listen(connection)
            except (psycopg.Error, MemoriesError) as exc:
                _log.info(
                    "what others write in %s is looked for: %s",
                    self._server.shown,
                    type(exc).__name__,
                )
            if self.hearing:
                self.hearing, pause = False, _FIRST_PAUSE
                self._told()
            self._ended.wait(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _listen(self, connection: "Connection") -> None:
        """Listen until it is to end.

        Raises:
            StoreUnreachable: It does not hear itself.
        """
        connection.execute(f'LISTEN "{self._server.channel}"')
        while not self._ended.is_set():
            connection.execute(
                _LISTENED.format(schema=self._server.url.schema, seconds=LISTENED_SECONDS)
            )
            probe = os.urandom(8).hex()
            connection.execute("SELECT pg_notify(%s, %s)", (self._server.channel, probe))
            if not self._heard(connection, probe) and not self._ended.is_set():
                raise StoreUnreachable("it does not hear itself")

    def _heard(self, connection: "Connection", probe: str) -> bool:
        """Pass messages on for a while; return whether one's own was among them."""
        heard, until = False, time.monotonic() + PROBE_SECONDS
        while time.monotonic() < until and not self._ended.is_set():
            for message in connection.notifies(timeout=_LOOK_SECONDS):
                heard = heard or message.payload == probe
                self.hearing = self.hearing or heard
                if message.payload in ("", probe):  # else another listener proves that it hears
                    self._told()
        return heard
