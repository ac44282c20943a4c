"""Tables of what a pure function answers: one test for a topic, which reports every row that is wrong."""

from collections.abc import Callable, Iterable
from typing import Any


def failures_of(rows: Iterable[tuple[Any, ...]], function: Callable[..., Any]) -> list[str]:
    """Return the rows, each of arguments and an answer, for which a function answers something else."""
    failures = []
    for *given, expected in rows:
        try:
            found = function(*given)
        except Exception as exc:  # noqa: BLE001 - one row among many: the others are still tried
            found = exc
        if found != expected:
            failures.append(f"{given} gives {found!r}, not {expected!r}")
    return failures
