"""Requests that come with a key: who does one, and what became of it, so that one that is sent
again is not done again.

Where the servers of a store share a database, the store keeps this, in a method `claims`; see
`postgres.claims`.
"""

from typing import Any, NamedTuple, Protocol

KEPT_SECONDS = 86_400
MAX_KEPT = 10_000


class Claim(NamedTuple):
    """A request that is one server's to do now.

    Attributes:
        name: A hash of its key and of who sent it.
        number: How many have begun it by now; 1 if it is new.
        at: When it was begun first, by the clock of that server.
        told: What was written down of its answer; None while it is not known to be done.
    """

    name: str
    number: int
    at: float
    told: dict[str, Any] | None = None


class Taken(Exception):
    """The request can't be done now.

    Attributes:
        other: Whether its key was used for another one; else it is just being done.
    """

    def __init__(self, *, other: bool) -> None:
        super().__init__()
        self.other = other


class Claims(Protocol):
    """Keeps the requests of a day, `MAX_KEPT` of them at most; threads may share it.

    One that was begun by a server that is gone may be done by any other.
    """

    def claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        """Begin a request; nobody else may until it is settled or dropped.

        Args:
            name: A hash of its key and of who sent it.
            digest: Of what it asks.
            sync: Have it survive a power cut, as the write that follows will.

        Raises:
            Taken: It is being done, or the key belongs to another one.
        """
        ...

    def settle(self, claim: Claim, told: dict[str, Any] | None) -> None:
        """End a request, with what is to be known of its answer; None leaves what was known."""
        ...

    def drop(self, claim: Claim) -> None:
        """End a request that changed nothing, and forget it."""
        ...

    def close(self) -> None:
        """Release what is open."""
        ...
