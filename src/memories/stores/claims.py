"""Idempotency keys: which server is processing each keyed request, and how each request ended.

The servers of a PostgreSQL store share their claims through its database (`postgres/shared`). With
any other store, a server keeps its own claims (`server/api/idempotency`).
"""

from typing import Any, NamedTuple, Protocol

FILE_SUFFIX = "-requests"  # suffix of the file with a store's claims
KEPT_SECONDS = 86_400
MAX_KEPT = 10_000


class Claim(NamedTuple):
    """A server's exclusive right to process a request.

    Attributes:
        name: A hash of the key and the sender.
        number: How many times servers have begun the request.
        begun_at: When a server first began the request, by that server's clock.
        summary: The saved summary of the response; None until a server has saved one.
    """

    name: str
    number: int
    begun_at: float
    summary: dict[str, Any] | None = None


class Taken(Exception):
    """Raised when a request can't be processed now.

    Attributes:
        other: Whether the key was used for a different request. If not, a server is still
            processing the same request.
    """

    def __init__(self, *, other: bool) -> None:
        super().__init__()
        self.other = other


class Claims(Protocol):
    """Remembers the last day's keyed requests, at most `MAX_KEPT`; threads may share it.

    If the server that began a request is no longer running, any server may process the request.
    """

    def claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        """Begin a request; no other server may begin it until it is settled or dropped.

        Args:
            name: A hash of the key and the sender.
            digest: A hash of the request.
            sync: Whether the claim must survive a power failure, like the write that follows it.

        Raises:
            Taken: A server is processing the request, or the key belongs to a different request.
        """
        ...

    def settle(self, claim: Claim, summary: dict[str, Any] | None) -> None:
        """End a request and save a summary of its response; None keeps the existing summary."""
        ...

    def drop(self, claim: Claim) -> None:
        """End a request that changed nothing, and forget it."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...
