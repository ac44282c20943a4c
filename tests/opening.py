"""Closes the stores that a test opens when the test ends."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import ParamSpec, Protocol, TypeVar


class Closable(Protocol):
    """A store, memories, or anything else with a connection."""

    def close(self) -> None:
        """Close the connection."""


P = ParamSpec("P")
C = TypeVar("C", bound=Closable)


@contextmanager
def opening(open_one: Callable[P, C]) -> Iterator[Callable[P, C]]:
    """Yield the same function; everything that it opens is closed at the end."""
    with ExitStack() as opened:

        def open_and_remember(*arguments: P.args, **named: P.kwargs) -> C:
            return opened.enter_context(closing(open_one(*arguments, **named)))

        yield open_and_remember
