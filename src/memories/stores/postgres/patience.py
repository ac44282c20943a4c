"""A psycopg connection that doesn't wait forever for a stopped server."""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

from memories.errors import StoreUnreachable

_R = TypeVar("_R")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that closes itself if the server sends nothing for too long.

    A timeout that the server enforces, such as `statement_timeout`, has no effect once the server
    itself has stopped.

    Attributes:
        masked_url: The URL without its password.
        patience: How many seconds the server may stay silent; None for no limit.
        settings: The statements that set up each transaction.
        access: The clause for transactions that write, if the server's default is read-only.
    """

    masked_url = "the server"
    patience: float | None = 30.0
    settings = ""
    access = ""

    def wait(self, gen: Generator[Any, Any, _R], *args: Any, **kwargs: Any) -> _R:
        """Wait as psycopg does, but not forever.

        Raises:
            StoreUnreachable: The server sent nothing for too long.
        """
        try:
            return super().wait(self._limit_silence(gen), *args, **kwargs)
        except StoreUnreachable:
            self.close()
            raise

    def _limit_silence(self, gen: Generator[Any, Any, _R]) -> Generator[Any, Any, _R]:
        """Yield what another generator yields, until the server has been silent for too long.

        While nothing happens, psycopg sends 0 to this generator ten times a second.
        """
        try:
            request = next(gen)
            heard_at = time.monotonic()
            while True:
                ready = yield request
                now = time.monotonic()
                if ready:
                    heard_at = now
                elif self.patience is not None and now - heard_at > self.patience:
                    raise StoreUnreachable(
                        f"{self.masked_url} has not answered for {self.patience:.0f} seconds; "
                        "check whether the server is stopped or overloaded, and try again"
                    )
                request = gen.send(ready)
        except StopIteration as end:
            result: _R = end.value
            return result
