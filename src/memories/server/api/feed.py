"""Wakes the streams of a server when something was written: at once if the store tells, else they have to look."""

import asyncio
import contextlib
from typing import Any

import anyio

from memories.stores import Store

POLL_SECONDS = 0.5
PING_SECONDS = 15.0


class Feed:
    """What all streams wait for; its methods are called on the event loop."""

    def __init__(self, store: Store) -> None:
        """Prepare; nothing is listened to yet.

        Args:
            store: One with a method `listen`, as that of PostgreSQL, tells what other processes write.
        """
        self._listen = getattr(store, "listen", None)
        self._listener: Any = None

    def begin(self) -> None:
        """Make what needs the event loop."""
        self._loop = asyncio.get_running_loop()
        self.news = anyio.Event()

    def listen(self) -> None:
        """Begin to listen, as soon as there is a stream."""
        if self._listen is not None and self._listener is None:
            self._listener = self._listen(self._told)

    @property
    def seconds(self) -> float:
        """How long a stream may wait before it looks by itself."""
        return PING_SECONDS if self._listener is not None and self._listener.hearing else POLL_SECONDS

    def wake(self) -> None:
        """Have all streams look."""
        news, self.news = self.news, anyio.Event()
        news.set()

    def _told(self) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self.wake)

    def close(self) -> None:
        """Listen no more; call it in a thread."""
        if self._listener is not None:
            self._listener.close()
