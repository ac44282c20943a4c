"""How far a long run is, on standard error and on a terminal only."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_SECONDS = 0.1
_WIDTH = 30


@contextmanager
def shown(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs.

    Args:
        label: What is being done.
        total: How many things there are to do.

    Yields:
        What is called with the number of things that were done since.
    """
    done, drawn_at, terminal = 0, 0.0, sys.stderr.isatty()

    def advance(count: int) -> None:
        nonlocal done, drawn_at
        done += count
        if terminal and (time.monotonic() - drawn_at >= _EVERY_SECONDS or done >= total):
            drawn_at = time.monotonic()
            sys.stderr.write(f"\r{bar(label, done, total)}")
            sys.stderr.flush()

    try:
        yield advance
    finally:
        if terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def bar(label: str, done: int, total: int) -> str:
    """Return the bar as it is drawn."""
    filled = _WIDTH * done // max(1, total)
    return f"{label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done:,} of {total:,}"
