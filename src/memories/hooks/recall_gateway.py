"""The gateway that a hook recalls through: our own engine, without memories that the session has
seen already.
"""

from typing import Any

from memories.context.engine import EngineBackend
from memories.context.gateway import MemoryGateway
from memories.errors import InvalidInput, StoreUnreachable
from memories.hooks.session import mark
from memories.identity.degraded import WithScratchpad
from memories.memories import Memories

_MOST_KNOWN = 60  # memories that were shown before and are passed over by one search


def gateway(
    memories: Memories, shown: set[str], offline: str, seconds: float | None
) -> MemoryGateway:
    """Return a gateway to a memory.

    Args:
        memories: The memory.
        shown: The marks of the memories and turns to pass over; see `session.mark`.
        offline: Why the store is not asked; empty if it is.
        seconds: How long a call may take; None for as long as the settings say.
    """
    backend = _UnseenOnly(memories, shown, offline)
    source = MemoryGateway(memories.config.mcp_endpoint, backend=backend, timeout_seconds=seconds)
    return _UnseenAtHand(source, memories, shown)  # type: ignore[return-value] # it passes on what it does not do


def _more(k: int, shown: set[str]) -> int:
    """Return how many are asked for, so that k are left past those that are known."""
    return k + min(len(shown), _MOST_KNOWN)


def _new(found: list[Any], shown: set[str], k: int) -> list[Any]:
    return [each for each in found if mark(str(each["id"])) not in shown][:k]


class _UnseenOnly(EngineBackend):
    """Our engine without memories that were shown."""

    def __init__(self, memories: Memories, shown: set[str], offline: str) -> None:
        super().__init__(memories)
        self._shown, self._offline = shown, offline

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Any]:
        """Search the memories, past those that are known."""
        if self._offline:
            raise StoreUnreachable(self._offline)
        try:
            found = super().recall(
                query_text, _more(k, self._shown), min_confidence, conversation_id
            )
            return _new(found, self._shown, k)
        except InvalidInput:  # a prompt that is no question, as one without a visible character
            return []

    def recall_turns(
        self, query_text: str, k: int, conversation_id: str | None, *, own: bool = False
    ) -> list[Any]:
        """Search the turns, past those that are known."""
        try:
            found = super().recall_turns(
                query_text, _more(k, self._shown), conversation_id, own=own
            )
            return _new(found, self._shown, k)
        except InvalidInput:
            return []


class _UnseenAtHand(WithScratchpad):
    """The scratchpad without memories that were shown."""

    def __init__(self, gateway: MemoryGateway, memories: Memories, shown: set[str]) -> None:
        super().__init__(gateway, memories)
        self._shown = shown

    def recall_offline(self, query_text: str, k: int, min_confidence: float) -> list[Any]:
        """Search the scratchpad, past what is known."""
        return _new(
            super().recall_offline(query_text, _more(k, self._shown), min_confidence),
            self._shown,
            k,
        )
