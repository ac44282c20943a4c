"""A connection of psycopg that does not wait forever for a server that has stopped."""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

from memories.errors import StoreUnreachable

_R = TypeVar("_R")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """Closes itself when the server sends nothing for too long.

    A deadline kept by the server, such as `statement_timeout`, would stop with the server.

    Attributes:
        shown: The URL without its password.
        patience: How many seconds the server may send nothing; None for no limit.
        settings: What each transaction on it sets for itself.
        access: How one that writes begins, as far as this differs from what the server does by
            itself.
    """

    shown = "the server"
    patience: float | None = 30.0
    settings = ""
    access = ""

    def wait(self, gen: Generator[Any, Any, _R], *args: Any, **kwargs: Any) -> _R:
        """Wait as the driver does.

        Raises:
            StoreUnreachable: The server sent nothing for too long.
        """
        try:
            return super().wait(self._bounded(gen), *args, **kwargs)
        except StoreUnreachable:
            self.close()
            raise

    def _bounded(self, gen: Generator[Any, Any, _R]) -> Generator[Any, Any, _R]:
        """Pass on what the driver waits for; about ten times a second it sends 0, for nothing."""
        try:
            asked = next(gen)
            heard = time.monotonic()
            while True:
                ready = yield asked
                now = time.monotonic()
                if ready:
                    heard = now
                elif self.patience is not None and now - heard > self.patience:
                    raise StoreUnreachable(
                        f"{self.shown} has not answered for {self.patience:.0f} seconds; see whether the server is "
                        "stopped or overloaded, and try again"
                    )
                asked = gen.send(ready)
        except StopIteration as end:
            result: _R = end.value
            return result
