"""What stands behind a `MemoryGateway`: the protocol and its errors."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from memories.context.payloads import Document, HistoryTurn, MemoryItem
from memories.errors import SystemFault


class MCPError(SystemFault):
    """The memory behind a gateway could not do it.

    Attributes:
        queued: Whether the turn that was to be appended waits in the queue on disk, to be stored
            later.
    """

    queued = False


class UnsupportedEndpoint(ConnectionError):
    """No backend can speak to such an endpoint; trying again does not help."""


class Backend(Protocol):
    """Keeps turns and memories for a gateway, which has checked all values.

    Rules for every backend:

    - A turn has been stored durably when `append` returns; of two turns of a conversation with the
      same `message_id`, the second is not stored, and the id of the first is returned.
    - Turns are numbered in the order in which they are stored; no two have the same number.
    - Errors are `ConnectionError` (nobody answers), `MCPError` (it could not do it) and
      `InvalidInput`, no others.
    - A document is `{"id", "text", "metadata"}`; a search result also has `similarity` and `score`.
    - One without `recall_turns` and `read_turns` is a backend too; then contexts have no earlier
      turns.
    """

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The folder in which the gateway may keep files for this backend, and the prefix of their
        names.
        """
        ...

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Make sure that these collections exist."""
        ...

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn at the end of its conversation, and return its id."""
        ...

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns of a conversation, oldest first."""
        ...

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory, counted in a window, and return its id; it may be that of one that says
        the same.
        """
        ...

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Document]:
        """Return the memories that answer a query, best first."""
        ...

    def recall_turns(
        self, query_text: str, k: int, conversation_id: str | None, *, own: bool = False
    ) -> list[Document]:
        """Return the turns that answer a query, best first: of one conversation, of all, or of
        one's own namespace.
        """
        ...

    def read_turns(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return the turns of a conversation from a number on, at most so many, oldest first."""
        ...

    def count_window(self, window: str) -> int:
        """Return how many memories of a window are stored."""
        ...

    def hold_windows(self) -> AbstractContextManager[None]:
        """Keep other processes from storing memories in windows, so that a count stays true."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...
