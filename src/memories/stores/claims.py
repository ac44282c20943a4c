"""Requests with an idempotency key: which server is processing each, and how it ended.

If a store's servers share a database, the claims are in the database and the store has a method
`claims`; see `postgres.servers`. For other stores see `server.api.idempotency`.
"""

from typing import Any, NamedTuple, Protocol

KEPT_SECONDS = 86_400
MAX_KEPT = 10_000


class Claim(NamedTuple):
    """One server's exclusive right to process a request.

    Attributes:
        name: A hash of the key and the sender.
        number: 1 if the request is new, more if a server has begun it earlier.
        begun_at: When it was first begun, by that server's clock.
        summary: The saved part of its answer; None until a server has recorded one.
    """

    name: str
    number: int
    begun_at: float
    summary: dict[str, Any] | None = None


class Taken(Exception):
    """The request can't be processed now.

    Attributes:
        other: Whether its key was used for another request; if not, a server is processing it.
    """

    def __init__(self, *, other: bool) -> None:
        super().__init__()
        self.other = other


class Claims(Protocol):
    """Remembers the keyed requests of the last day, at most `MAX_KEPT`; threads may share it.

    Any server may process a request if the server that began it no longer runs.
    """

    def claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        """Begin a request; no other server may begin it until it is settled or dropped.

        Args:
            name: A hash of the key and the sender.
            digest: A hash of the request.
            sync: Whether the record of the beginning must survive a power failure, as the write
                that follows will.

        Raises:
            Taken: A server is processing it, or the key belongs to another request.
        """
        ...

    def settle(self, claim: Claim, summary: dict[str, Any] | None) -> None:
        """End a request and save a summary of its answer; None keeps the existing summary."""
        ...

    def drop(self, claim: Claim) -> None:
        """End a request that changed nothing, and forget it."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...
