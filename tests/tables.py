"""Checks tables of cases, so that one test covers a topic and reports every failed case."""

from collections.abc import Callable, Iterable
from typing import Any


def failed_cases(check: Callable[..., None], cases: Iterable[tuple[Any, ...]]) -> list[str]:
    """Call a check with each case; return the cases for which it raised an error, each with the
    error.
    """
    failures = []
    for case in cases:
        try:
            check(*case)
        except Exception as exc:  # noqa: BLE001 - reported; the other cases are still checked
            failures.append(f"{case}: {exc!r}")
    return failures


def failures_of(rows: Iterable[tuple[Any, ...]], function: Callable[..., Any]) -> list[str]:
    """Return the rows (arguments, then the expected result) for which a function returns a
    different result.
    """

    def check(*row: Any) -> None:
        *arguments, expected = row
        answer = function(*arguments)
        assert answer == expected, f"the answer is {answer!r}"

    return failed_cases(check, rows)
