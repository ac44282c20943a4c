"""How far long work is, shown on a terminal."""

import sys
from typing import Any, Self

import click


class Bar:
    """Shows on a terminal how far something is; says nothing elsewhere. It is a context manager."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._shown = sys.stderr.isatty()
        self._what = ""
        self._bar: Any = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how much of it is done."""
        if not self._shown:
            return
        if self._bar is None or what != self._what or done < self._bar.pos:
            self.close()
            self._what = what
            self._bar = click.progressbar(length=total, label=what, file=sys.stderr).__enter__()
        self._bar.length = total
        self._bar.update(done - self._bar.pos)

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
