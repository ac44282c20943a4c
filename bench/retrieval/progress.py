"""Shows the progress of a long run on standard error, only on a terminal."""

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
        total: The total number of steps.

    Yields:
        A function to call with the number of steps completed since the last call.
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
    """Return the text of the bar."""
    filled = _WIDTH * done // max(1, total)
    return f"{label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done:,} of {total:,}"
