"""The memories that requests use: one store and one model for all of them, opened once."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memories.embedders import Embedder, open_embedder
from memories.memories import Memories
from memories.models import Draft
from memories.server.api.access import OWNER, Principal
from memories.settings import Config
from memories.stores import Store, open_store
from memories.write.create import Created

if TYPE_CHECKING:
    from concurrent.futures import Future

# Stores drafts; what is passed on is the memory, the drafts, whether duplicates are stored, and whether secrets go.
Create = Callable[[Memories, Sequence[Draft], bool, bool], Sequence[Created]]
# Does the same with one draft and returns before it is done.
Submit = Callable[[Memories, Draft, bool, bool], "Future[list[Created]]"]


def create_at_once(memories: Memories, drafts: Sequence[Draft], force: bool, redact: bool) -> Sequence[Created]:
    """Store drafts in a transaction of their own."""
    return memories.create_many(drafts, force=force, redact=redact)


class Handles:
    """Gives each principal the memory of each namespace; many threads may share it."""

    def __init__(self, config: Config, *, store: Store | None = None, embedder: Embedder | None = None) -> None:
        """Open the store and the model, unless they are given.

        Args:
            config: The settings.
            store: Used instead of the one that the settings name; it is not closed.
            embedder: Used instead of the one that the settings name, if `store` is given.
        """
        self.config = config
        self.embedder = embedder if store is not None else open_embedder(config.embedder, config)
        space = self.embedder.space if self.embedder else None
        self._owned = None if store is not None else open_store(config.store, space, config)
        self.store: Store = store if store is not None else self._owned  # type: ignore[assignment]
        self._of = functools.lru_cache(maxsize=512)(self._opened)

    def of(self, who: Principal, namespace: str, *, shared: bool = True, channel: str = "") -> Memories:
        """Return the memory of a namespace as somebody reads and writes it, who may; `access` tells who may.

        Args:
            who: Who asks.
            namespace: Which namespace.
            shared: Also read the namespace `shared`.
            channel: How, if it is not what `Principal.channel` tells.
        """
        writer = None if who.id == OWNER.id else who.name
        return self._of(namespace, shared, writer, self._identity(who), channel or who.channel)

    def _identity(self, who: Principal) -> str | None:
        """Return the namespace that is somebody's own; of the server's user that of the settings, if they name one."""
        return self.config.identity if who.id == OWNER.id else who.home(self.config.namespace)

    def _opened(self, namespace: str, shared: bool, writer: str | None, home: str | None, channel: str) -> Memories:
        made = Memories(
            self.store,
            namespace=namespace,
            shared=shared,
            embedder=self.embedder or "none",
            config=self.config._replace(identity=home),
            channel=channel,
        ).at_home()
        return made if writer is None else made.of_client(writer, "")

    def close(self) -> None:
        """Close the store, unless it was given."""
        if self._owned is not None:
            self._owned.close()
