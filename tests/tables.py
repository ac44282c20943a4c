"""Tables of cases: one test per topic, which reports every failed case."""

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
        except Exception as exc:  # noqa: BLE001 - one case among many: the others are still tried
            failures.append(f"{case}: {exc!r}")
    return failures


def failures_of(rows: Iterable[tuple[Any, ...]], function: Callable[..., Any]) -> list[str]:
    """Return the rows, each of arguments and an answer, for which a function answers something
    else.
    """

    def check(*row: Any) -> None:
        *arguments, expected = row
        answer = function(*arguments)
        assert answer == expected, f"the answer is {answer!r}"

    return failed_cases(check, rows)
