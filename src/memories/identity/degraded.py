"""A gateway that recalls from the scratchpad when its store can't be asked."""

from typing import TYPE_CHECKING, Any

from memories.errors import InvalidInput, StoreUnreachable

if TYPE_CHECKING:
    from memories.context.gateway import MemoryGateway
    from memories.context.protocol import Document
    from memories.memories import Memories


class WithScratchpad:
    """A gateway that recalls from the scratchpad when its store can't be asked; all else is the
    gateway's.

    Attributes:
        degraded: Whether it had to.
    """

    def __init__(self, gateway: "MemoryGateway", memories: "Memories") -> None:
        """Take a gateway to the store of a memory."""
        self._gateway, self._memories = gateway, memories
        self.degraded = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gateway, name)

    def recall_memory(self, query_text: str, k: int, min_confidence: float) -> "list[Document]":
        """Search the store; see `MemoryGateway.recall_memory`."""
        if missing := self._memories.missing():
            raise StoreUnreachable(missing)
        return self._gateway.recall_memory(query_text, k, min_confidence)

    def recall_offline(self, query_text: str, k: int, min_confidence: float) -> "list[Document]":
        """Search the scratchpad; it has none where there is no file."""
        from memories.context.engine import (
            memory_document,
        )  # which a search of the store does without

        if not self._memories.has_scratchpad:
            return []
        try:
            found = self._memories.search_scratchpad(
                query_text, offline=True, limit=k, min_confidence=min_confidence
            ).found
        except InvalidInput:  # a question that no search takes
            return []
        self.degraded = True
        own = self._memories.namespace
        return [
            memory_document(hit)
            | {"shared": hit.memory.namespace != own, "own": hit.memory.namespace == own}
            for hit in found.hits
        ]
