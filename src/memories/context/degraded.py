"""A gateway that recalls from the scratchpad when its store is unreachable."""

from typing import TYPE_CHECKING, Any

from memories.errors import InvalidInput, StoreUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memories.context.gateway import MemoryGateway
    from memories.context.protocol import Document
    from memories.memories import Memories
    from memories.search.results import Hit


class WithScratchpad:
    """A gateway with the scratchpad as fallback; everything else is forwarded to the gateway.

    Attributes:
        degraded: Whether the scratchpad was used.
    """

    def __init__(self, gateway: "MemoryGateway", memories: "Memories") -> None:
        """Wrap the gateway to a memory's store."""
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
        """Search the scratchpad; without a scratchpad file the result is empty."""
        if not self._memories.has_scratchpad:
            return []
        from memories.context.engine import memory_document  # not needed while the store answers

        try:
            results = self._memories.search_scratchpad(
                query_text, offline=True, limit=k, min_confidence=min_confidence
            ).found
        except InvalidInput:  # a query that can't be searched for
            return []
        self.degraded = True
        documents = []
        for hit in self.select_offline(query_text, results.hits):
            document = memory_document(hit)
            document["own"] = hit.memory.namespace == self._memories.namespace
            document["shared"] = not document["own"]
            documents.append(document)
        return documents

    def select_offline(
        self,
        query_text: str,  # noqa: ARG002 - for subclasses
        hits: "Sequence[Hit]",
    ) -> "Sequence[Hit]":
        """Return the hits to recall: all of them."""
        return hits
