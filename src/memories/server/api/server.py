"""What all requests to one server share: its settings, its memories, who may ask, and how much at once."""

import os
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio

from memories.server.api.access import Access
from memories.server.api.feed import Feed
from memories.server.api.handles import Create, Handles, Submit
from memories.server.api.keyfile import FileClaims, file_of
from memories.server.api.once import Once
from memories.server.api.problems import Refused
from memories.settings import Config

_MAX_WAITING = {"read": 256, "search": 256, "write": 2_000, "transfer": 8, "stream": 32, "store": 512}
_AT_ONCE = {"read": 16, "search": max(4, os.cpu_count() or 1), "write": 64, "transfer": 1, "store": 64}
_PREPARERS = 32  # so that what a slow model makes of many texts is done at about the same time, for one transaction


class Server:
    """The state of a server.

    Attributes:
        limits: How many of each kind run at once; `stream` is bounded by how many are open.
        create: Stores drafts; see `handles.Create`.
        submit: Stores a draft, and returns before; see `handles.Submit`.
        preparers: The threads that prepare what is submitted.
        closing: It is set when streams have to end.
        once: The idempotency keys that were used.
        feed: What streams wait for.
    """

    closing: anyio.Event

    def __init__(
        self, config: Config, access: Access, handles: Handles, create: Create, submit: Submit | None = None
    ) -> None:
        self.config, self.access, self.handles = config, access, handles
        self.create, self.submit = create, submit
        self.preparers = ThreadPoolExecutor(_PREPARERS, "prepare")
        shared = getattr(handles.store, "claims", None)  # a store that servers on several machines share has it
        self.once = Once(shared or (lambda: FileClaims(file_of(config))))
        self.feed = Feed(handles.store)
        self._open: dict[str, int] = dict.fromkeys(_MAX_WAITING, 0)
        self.limits: Mapping[str, anyio.CapacityLimiter] = {}

    def begin(self) -> None:
        """Make what needs the event loop."""
        self.limits = {kind: anyio.CapacityLimiter(most) for kind, most in {**_AT_ONCE, "sign": 16, "poll": 4}.items()}
        self.closing = anyio.Event()
        self.feed.begin()

    @asynccontextmanager
    async def limit(self, kind: str) -> AsyncIterator[anyio.CapacityLimiter]:
        """Count a request while inside; give what bounds how many of its kind run at once.

        Raises:
            Refused: 503, too many of its kind wait already.
        """
        self.require_room(kind)
        self._open[kind] += 1
        try:
            yield self.limits.get(kind, self.limits["read"])
        finally:
            self._open[kind] -= 1

    def require_room(self, kind: str) -> None:
        """Refuse a request if too many of its kind are open.

        Raises:
            Refused: 503.
        """
        if self._open[kind] >= _MAX_WAITING[kind]:
            raise Refused(503, "the server has too much to do; try again in a second", headers={"retry-after": "1"})

    def end_streams(self) -> None:
        """Have streams end, which would keep the server from stopping; call it on the event loop."""
        self.closing.set()
        self.feed.wake()

    def close(self) -> None:
        """Write down what is kept in memory, and close the store."""
        self.feed.close()
        self.access.flush()
        self.once.close()
        self.preparers.shutdown(wait=False, cancel_futures=True)
        self.handles.close()
