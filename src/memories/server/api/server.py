"""The state that all requests to a server share: store, memories, limits and change feed."""

import asyncio
import contextlib
import functools
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio

from memories.embedders import Embedder, open_embedder
from memories.identity.place import remembered_root
from memories.memories import Memories
from memories.server.api.access import OWNER, Access, Principal
from memories.server.api.idempotency import FileClaims, Once, file_of
from memories.server.api.problems import Refused
from memories.server.group_commit import GroupCommit
from memories.settings import Config
from memories.stores import Store, open_store
from memories.stores.protocol import Listener, SharedByServers


class Handles:
    """Keeps one `Memories` for each principal and namespace; threads may share them."""

    def __init__(
        self, config: Config, *, store: Store | None = None, embedder: Embedder | None = None
    ) -> None:
        """Open the store and the model, unless they are passed in.

        Args:
            config: The settings.
            store: Used instead of the store in the settings; it is not closed.
            embedder: Used instead of the embedder in the settings, if `store` is given.
        """
        self.config = config
        self._owned: Store | None = None
        if store is None:
            embedder = open_embedder(config.embedder, config)
            space = embedder.space if embedder else None
            store = self._owned = open_store(config.store, space, config)
        self.store, self.embedder = store, embedder
        self._of = functools.lru_cache(maxsize=512)(self._open_memories)

    def of(
        self, who: Principal, namespace: str, *, shared: bool = True, channel: str = ""
    ) -> Memories:
        """Return a namespace's `Memories` for a sender whose rights have already been checked.

        Args:
            who: The sender.
            namespace: The namespace.
            shared: Also read the namespace `shared`.
            channel: Used instead of `Principal.channel`.
        """
        writer: str | None = who.name
        identity: str | None = who.home(self.config.namespace)
        if who.id == OWNER.id:
            writer, identity = None, self.config.identity
        return self._of(namespace, shared, writer, identity, channel or who.channel)

    def _open_memories(
        self, namespace: str, shared: bool, writer: str | None, home: str | None, channel: str
    ) -> Memories:
        config = self.config._replace(identity=home)
        if writer is not None:  # only the owner's commands may need the server's `--store`
            config = config._replace(sources={**config.sources, "store": "token"})
        memories = Memories(
            self.store,
            namespace=namespace,
            shared=shared,
            embedder=self.embedder or "none",
            config=config,
            channel=channel,
        ).at_home()
        if writer is not None:
            return memories.of_client(writer, "")
        return memories.judge_in(remembered_root)  # only the owner may learn what files contain

    def open(self, config: Config, *, shared: bool) -> Memories:
        """Return the `Memories` that a hook with other settings would use.

        Args:
            config: The settings; their store must be the server's.
            shared: Also read the namespace `shared`.
        """
        return Memories(
            self.store,
            namespace=config.namespace,
            shared=shared,
            embedder=self.embedder or "none",
            config=config,
            channel="hook",
        ).at_home()

    def close(self) -> None:
        """Close the store, unless it was passed in."""
        if self._owned is not None:
            self._owned.close()


POLL_SECONDS = 0.5
PING_SECONDS = 15.0


class Feed:
    """Wakes a server's streams after a write. If the store reports writes, streams wake
    immediately; otherwise they poll.

    Call the methods on the event loop.
    """

    def __init__(self, store: Store) -> None:
        """Initialize; listening starts with the first stream.

        Args:
            store: The store. If it is `SharedByServers`, it reports the writes of other processes.
        """
        self._store = store
        self._listener: Listener | None = None

    def begin(self) -> None:
        """Create the parts that need the event loop."""
        self._loop = asyncio.get_running_loop()
        self.news = anyio.Event()

    def listen(self) -> None:
        """Start listening, if that hasn't happened yet; call this for each stream."""
        if self._listener is None and isinstance(self._store, SharedByServers):
            self._listener = self._store.listen(self._wake_soon)

    @property
    def seconds(self) -> float:
        """How long a stream may wait before it polls."""
        is_listening = self._listener is not None and self._listener.hearing
        return PING_SECONDS if is_listening else POLL_SECONDS

    def wake(self) -> None:
        """Wake all streams."""
        news, self.news = self.news, anyio.Event()
        news.set()

    def _wake_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self.wake)

    def close(self) -> None:
        """Stop listening. This may block, so call it outside the event loop."""
        if self._listener is not None:
            self._listener.close()


_MAX_WAITING = {
    "read": 256,
    "search": 256,
    "write": 2_000,
    "transfer": 8,
    "stream": 128,
    "store": 512,
}
_MAX_STREAMS_OF_A_SENDER = 32
_AT_ONCE = {
    "read": 16,
    "search": max(4, os.cpu_count() or 1),
    "write": 64,
    "transfer": 1,
    "store": 64,
}
# enough that many drafts are ready for one transaction even if the model is slow
_PREPARERS = 32


class ServerState:
    """The state of a server.

    Attributes:
        limits: The maximum number of concurrent requests of each kind, except streams.
        group_commit: The queue for new memories; None to store each request's memories in a
            separate transaction.
        preparers: The threads that prepare submitted drafts.
        closing: Set when streams must end.
        once: The idempotency keys that have been used.
        feed: Wakes the streams.
    """

    closing: anyio.Event

    def __init__(
        self, config: Config, access: Access, handles: Handles, group_commit: GroupCommit | None
    ) -> None:
        self.config, self.access, self.handles = config, access, handles
        self.group_commit = group_commit
        self.preparers = ThreadPoolExecutor(_PREPARERS, "prepare")
        if isinstance(handles.store, SharedByServers):
            self.once = Once(handles.store.claims)
        else:
            self.once = Once(lambda: FileClaims(file_of(config)))
        self.feed = Feed(handles.store)
        self._open: dict[str, int] = dict.fromkeys(_MAX_WAITING, 0)
        self._streams_by_sender: Counter[str] = Counter()
        self.limits: Mapping[str, anyio.CapacityLimiter] = {}

    def begin(self) -> None:
        """Create the parts that need the event loop."""
        limits = {**_AT_ONCE, "sign": 16, "poll": 4}
        self.limits = {kind: anyio.CapacityLimiter(limit) for kind, limit in limits.items()}
        self.closing = anyio.Event()
        self.feed.begin()

    @asynccontextmanager
    async def limit(self, kind: str) -> AsyncIterator[anyio.CapacityLimiter]:
        """Count a request while it runs; yield the limiter for requests of its kind.

        Raises:
            Refused: 503, too many requests of the kind are waiting.
        """
        if self._open[kind] >= _MAX_WAITING[kind]:
            raise Refused(503, "the server is overloaded; try again in a second", retry_after="1")
        self._open[kind] += 1
        try:
            yield self.limits.get(kind, self.limits["read"])
        finally:
            self._open[kind] -= 1

    @asynccontextmanager
    async def limit_streams(self, sender_id: str) -> AsyncIterator[None]:
        """Count a stream while it is open, so that no sender can take all streams.

        Raises:
            Refused: 429, the sender has too many streams open; 503, too many are open in all.
        """
        if self._streams_by_sender[sender_id] >= _MAX_STREAMS_OF_A_SENDER:
            raise Refused(429, "your token has too many streams open; close one", retry_after="1")
        self._streams_by_sender[sender_id] += 1
        try:
            async with self.limit("stream"):
                yield
        finally:
            self._streams_by_sender[sender_id] -= 1

    def end_streams(self) -> None:
        """End the streams, because they keep the server from stopping; call this on the event
        loop.
        """
        self.closing.set()
        self.feed.wake()

    def close(self) -> None:
        """Save when tokens were last used, stop the threads, and close the store."""
        self.feed.close()
        self.access.flush()
        self.once.close()
        self.preparers.shutdown(wait=False, cancel_futures=True)
        self.handles.close()
