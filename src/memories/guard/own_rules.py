"""Rules of the user, from `[[redact]]` in `config.toml`: a name, a pattern, and words of which one
is always in it.
"""

import functools
import re
import warnings
from collections.abc import Mapping
from re import Match
from typing import Any

from memories.errors import InvalidInput
from memories.guard.rules import Rule, Span

MAX_PATTERN = 500
MAX_KEYWORDS = 20
MAX_STEPS = 20_000  # that a pattern may take at one place of a text
BEFORE = 40  # characters that a match may begin before its keyword
_NAME = r"[a-z][a-z0-9_]{0,39}"
_MANY = 10**12


def rule(number: int, given: object) -> Rule:
    """Return the rule that a table describes.

    Args:
        number: Which table it is, for the message.
        given: The table.

    Raises:
        InvalidInput: It is not acceptable; the message says why.
    """
    try:
        return _rule(given if isinstance(given, dict) else {})
    except InvalidInput as exc:
        raise InvalidInput(f"[[redact]] number {number}: {exc}") from None


def _rule(table: Mapping[str, Any]) -> Rule:
    if set(table) != {"name", "pattern", "keywords"}:
        raise InvalidInput("it must have name, pattern and keywords, and nothing else")
    name, pattern, words = table["name"], table["pattern"], table["keywords"]
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise InvalidInput("name must be a word of a-z, 0-9 and _, at most 40 characters")
    if not isinstance(words, list) or not 1 <= len(words) <= MAX_KEYWORDS:
        raise InvalidInput(
            f"keywords must be a list of 1 to {MAX_KEYWORDS} texts, of which one is in every match"
        )
    if not all(isinstance(word, str) and len(word) > 2 for word in words):
        raise InvalidInput("each of keywords must be a text of at least 3 characters")
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        raise InvalidInput(
            f"pattern must be a regular expression of at most {MAX_PATTERN} characters"
        )
    return Rule(name, tuple(word.lower() for word in words), _checked(pattern), _secret, BEFORE)


def _checked(pattern: str) -> str:
    """Return a pattern whose group `s` is the secret."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = re.compile(pattern)
            taken = steps(pattern)
        except (re.error, OverflowError, RecursionError) as exc:
            raise InvalidInput(f"pattern is no regular expression ({exc})") from None
    if taken is None:
        raise InvalidInput(
            "pattern repeats without a limit (*, + or {n,}); give one, such as {1,200}"
        )
    if taken > MAX_STEPS:
        raise InvalidInput(
            f"pattern can take {taken} steps at one place of a text; the limit is {MAX_STEPS}"
        )
    if compiled.search("") or compiled.search(" "):
        raise InvalidInput(
            "pattern matches what is empty or a blank; make it match the secret alone"
        )
    return pattern if "s" in compiled.groupindex else f"(?P<s>{pattern})"


def _secret(found: Match[str]) -> Span | None:
    return found.span("s") if found["s"] else None


@functools.cache
def steps(pattern: str) -> int | None:
    """Return how many steps a pattern takes at most at one place of a text; None if there is no
    limit.

    It is an estimate from the structure: a part is tried once for each way in which those before it
        can match.
    """
    from re import _parser  # type: ignore[attr-defined]

    cost, _ = _row(_parser.parse(pattern))
    return cost if cost is None or cost < _MANY else _MANY


def _row(parts: Any) -> tuple[int | None, int]:
    """Return the steps of parts in a row, and in how many ways they can match."""
    total, ways = 0, 1
    for operation, argument in parts:
        cost, choices = _part(str(operation), argument)
        if cost is None:
            return None, 1
        total += ways * cost
        ways = min(ways * choices, _MANY)
    return min(max(total, 1), _MANY), ways


def _part(operation: str, argument: Any) -> tuple[int | None, int]:  # noqa: PLR0911 - one for each operation
    match operation:
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _repeat(operation, *argument)
        case "SUBPATTERN":
            return _row(argument[-1])
        case "ATOMIC_GROUP":
            return _row(argument)[0], 1
        case "ASSERT" | "ASSERT_NOT":
            return _row(argument[1])[0], 1
        case "BRANCH":
            return _either(argument[1])
        case "GROUPREF_EXISTS":
            return _either([each for each in argument[1:] if each is not None])
        case "GROUPREF":
            return 100, 1
        case _:
            return 1, 1


def _repeat(operation: str, least: Any, most: Any, inner: Any) -> tuple[int | None, int]:
    cost, ways = _row(inner)
    if cost is None or str(most) == "MAXREPEAT":
        return None, 1
    least, most = int(least), int(most)
    each = min(ways ** min(most, 40), _MANY)  # what can itself match in several ways multiplies
    lengths = 1 if operation == "POSSESSIVE_REPEAT" else most - least + 1
    return min(cost * max(most, 1) * each, _MANY), min(lengths * each, _MANY)


def _either(branches: Any) -> tuple[int | None, int]:
    """Return the steps of alternatives. They seldom match at one place: what each begins with tells
    them apart.
    """
    found = [_row(each) for each in branches]
    costs = [cost for cost, _ in found if cost is not None]
    return (sum(costs) if len(costs) == len(found) else None), max(
        (ways for _, ways in found), default=1
    )
