"""What is answered when the store can't be asked: what the scratchpad's file says, and that it is no more."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from memories.agent.deadline import Deadline, MemoryTimeout
from memories.errors import InvalidInput, StoreError, StoreUnreachable

if TYPE_CHECKING:
    from memories.agent.gateway import MemoryGateway
    from memories.agent.payloads import Document
    from memories.service import Memories

Answer = TypeVar("Answer")
# In a server: gives the deadline of that many seconds which all commands share, for its threads have the store open.
DEADLINE: "ContextVar[Callable[[float | None], Deadline] | None]" = ContextVar("deadline", default=None)


def asked(
    memories: "Memories", ask: Callable[[], Answer], instead: "Callable[[], Answer | None]"
) -> tuple[Answer, str | None]:
    """Return the store's answer, and None; if it can't be asked, what the scratchpad says, and why.

    Args:
        memories: The memory; the call may take as long as its settings allow, if there is a scratchpad.
        ask: Asks the store.
        instead: Answers from the scratchpad; None if it can't.

    Raises:
        StoreError: The store can't be asked, and the scratchpad can't answer.
    """
    if not memories.has_scratchpad:
        return ask(), None
    error: Exception | None = None
    if missing := memories.missing():
        error = StoreError(missing)
    else:
        shared, seconds = DEADLINE.get(), memories.config.memory_timeout_seconds
        deadline = Deadline(seconds) if shared is None else shared(seconds)
        try:
            return deadline.run(ask), None
        except MemoryTimeout as exc:
            memories.abandon()
            error = exc
        except StoreError as exc:
            error = exc
        finally:
            if shared is None:
                deadline.close()
    found = instead()
    if found is None:
        raise error if isinstance(error, StoreError) else StoreUnreachable(str(error)) from error
    return found, str(error)


class WithScratchpad:
    """A gateway that recalls from the scratchpad when its store can't be asked; all else is the gateway's.

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
        from memories.agent.engine import memory_document  # which a search of the store does without

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
            memory_document(hit) | {"shared": hit.memory.namespace != own, "own": hit.memory.namespace == own}
            for hit in found.hits
        ]
