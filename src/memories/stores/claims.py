"""Requests with an idempotency key: which server is doing one, and how it ended.

A store whose servers share a database keeps them there and has a method `claims`; see
`postgres.claims`. For other stores see `server.api.idempotency`.
"""

from typing import Any, NamedTuple, Protocol

KEPT_SECONDS = 86_400
MAX_KEPT = 10_000


class Claim(NamedTuple):
    """The right of one server to do a request now.

    Attributes:
        name: A hash of the key and the sender.
        number: 1 if the request is new, more if a server has begun it before.
        begun_at: When it was first begun, by the clock of that server.
        summary: The saved part of its answer; None until a server has recorded one.
    """

    name: str
    number: int
    begun_at: float
    summary: dict[str, Any] | None = None


class Taken(Exception):
    """The request can't be done now.

    Attributes:
        other: Whether its key was used for another request; else a server is doing it.
    """

    def __init__(self, *, other: bool) -> None:
        super().__init__()
        self.other = other


class Claims(Protocol):
    """Keeps the requests of a day, `MAX_KEPT` of them at most; threads may share it.

    Any server may do a request that was begun by a server that is gone.
    """

    def claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        """Begin a request; no other server may until it is settled or dropped.

        Args:
            name: A hash of the key and the sender.
            digest: A hash of the request.
            sync: The record of the beginning must survive a power cut, as the write that follows
                will.

        Raises:
            Taken: A server is doing it, or the key belongs to another request.
        """
        ...

    def settle(self, claim: Claim, summary: dict[str, Any] | None) -> None:
        """End a request, and save a summary of its answer; None keeps the summary there is."""
        ...

    def drop(self, claim: Claim) -> None:
        """End a request that changed nothing, and forget it."""
        ...

    def close(self) -> None:
        """Release what is open."""
        ...
