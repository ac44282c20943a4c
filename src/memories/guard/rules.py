"""Rules that find secrets: built-in ones for tokens with a published format, and the user's own.

A rule is tried only where one of its literals occurs, and every repetition has an upper bound, so
the time is linear in the length of a text.
"""

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from re import Match
from typing import Any, NamedTuple

from memories.errors import InvalidInput
from memories.guard.locators import Span, locate_nonempty, locate_varied


class SecretSpan(NamedTuple):
    """A secret in a text: where it is, and its kind."""

    start: int
    end: int
    kind: str


class Rule(NamedTuple):
    """A rule that finds secrets of one kind.

    Attributes:
        kind: Its name, as in `[redacted:kind]`.
        anchors: Literals in lower case; the pattern begins at one of them, or at most `before`
            characters earlier. A rule without anchors is tried everywhere.
        pattern: A regular expression; the secret is its group `s`.
        locate: Returns where the secret is in a match; None if the match is not a secret.
        before: The maximum number of characters in a match before the anchor.
        line: Whether to skip the rest of a match that is not a secret, instead of searching it too.
    """

    kind: str
    anchors: tuple[str, ...]
    pattern: str
    locate: Callable[[Match[str]], Span | None]
    before: int = 0
    line: bool = False


# --- pieces of patterns

ALNUM = r"[A-Za-z0-9]"
WORD = r"[A-Za-z0-9_-]"
HEX = r"[0-9a-f]"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# What may precede a token: no letter or digit, unless it ends an escape (\n, %3D, \u003d) or a
# colour code.
START = (
    r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})|(?<=[0-9;]m))"
)
END = r"(?![A-Za-z0-9_])"


# --- tokens with a published format

# Kinds of tokens with the literal in the middle: the number of characters before it, and the
# pattern up to its end.
_INNER_LITERALS = {
    "telegram_token": (12, rf"{START}\d{{8,12}}:AA"),
    "terraform_token": (16, rf"{START}{ALNUM}{{14}}\.atlasv1\."),
    "maxmind_key": (40, rf"{START}{ALNUM}{{6}}_{ALNUM}{{29}}_mmk"),
}
_NAMED_PIECES = {"<hex>": HEX, "<alnum>": ALNUM, "<word>": WORD, "<uuid>": UUID, "<end>": END}


@functools.cache
def tokens() -> tuple[Rule, ...]:
    """Return the rules in `tokens.txt`."""
    text = Path(__file__).with_name("tokens.txt").read_text(encoding="ascii")
    for name, piece in _NAMED_PIECES.items():
        text = text.replace(name, piece)
    return tuple(
        _parse_token(line) for line in text.splitlines() if line and not line.startswith("#")
    )


def _parse_token(line: str) -> Rule:
    kind, literals, tail = line.split(" | ", 2)
    before, head = _INNER_LITERALS.get(kind, (0, ""))
    if not head:
        escaped = (re.sub(r"[.$/?]", r"\\\g<0>", literal) for literal in literals.split())
        head = f"{START}(?:{'|'.join(escaped)})"
    pattern = f"(?P<s>{head}{tail})"
    return Rule(kind, tuple(literals.lower().split()), pattern, locate_varied, before)


# --- the user's rules

MAX_PATTERN = 500
MAX_KEYWORDS = 20
MAX_STEPS = 20_000  # maximum number of steps that a pattern may take at one position in a text
BEFORE = 40  # maximum number of characters in a match before its keyword
_NAME = r"[a-z][a-z0-9_]{0,39}"
_MANY = 10**12


def parse_user_rule(number: int, table: object) -> Rule:
    """Return the rule in a `[[redact]]` table of `config.toml`.

    Args:
        number: The table's number, for the message.
        table: A name, a pattern, and keywords; every match must contain one of them.

    Raises:
        InvalidInput: The table is invalid; the message says why.
    """
    try:
        return _parse_table(table if isinstance(table, dict) else {})
    except InvalidInput as exc:
        raise InvalidInput(f"[[redact]] number {number}: {exc}") from None


def _parse_table(table: Mapping[str, Any]) -> Rule:
    if set(table) != {"name", "pattern", "keywords"}:
        raise InvalidInput("it must contain name, pattern and keywords, and nothing else")
    name, pattern, keywords = table["name"], table["pattern"], table["keywords"]
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise InvalidInput(
            "name must begin with a letter a-z and have up to 40 characters: a-z, 0-9 and _"
        )
    if not isinstance(keywords, list) or not 1 <= len(keywords) <= MAX_KEYWORDS:
        raise InvalidInput(
            f"keywords must be a list of 1 to {MAX_KEYWORDS} strings; every match must contain one"
        )
    if not all(isinstance(keyword, str) and len(keyword) > 2 for keyword in keywords):
        raise InvalidInput("each keyword must be a string of at least 3 characters")
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        raise InvalidInput(
            f"pattern must be a regular expression of at most {MAX_PATTERN} characters"
        )
    anchors = tuple(keyword.lower() for keyword in keywords)
    return Rule(name, anchors, _check_pattern(pattern), locate_nonempty, BEFORE)


def _check_pattern(pattern: str) -> str:
    """Return a user's pattern, with a group `s` for the secret.

    Raises:
        InvalidInput: The pattern is invalid, may take too long, or matches an empty or blank text.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = re.compile(pattern)
            steps = count_steps(pattern)
        except (re.error, OverflowError, RecursionError) as exc:
            raise InvalidInput(f"pattern is not a regular expression ({exc})") from None
    if steps is None:
        raise InvalidInput(
            "pattern repeats without a limit (*, + or {n,}); give one, such as {1,200}"
        )
    if steps > MAX_STEPS:
        raise InvalidInput(
            f"pattern can take {steps} steps at one place in a text; the limit is {MAX_STEPS}"
        )
    if compiled.search("") or compiled.search(" "):
        raise InvalidInput("pattern matches an empty or blank text; make it match only the secret")
    if "s" in compiled.groupindex:
        return pattern
    return f"(?P<s>{pattern})"


@functools.cache
def count_steps(pattern: str) -> int | None:
    """Return the maximum number of steps that a pattern takes at one position in a text; None if
    there is no limit.

    This is an estimate from the pattern's structure: a part is tried once for each way in which the
    parts before it can match.
    """
    from re import _parser  # type: ignore[attr-defined]

    steps, _ = _count_sequence(_parser.parse(pattern))
    return None if steps is None else min(steps, _MANY)


def _count_sequence(parts: Any) -> tuple[int | None, int]:
    """Return the number of steps for consecutive parts of a pattern, and in how many ways they can
    match.
    """
    total, ways = 0, 1
    for operation, argument in parts:
        steps, choices = _count_part(str(operation), argument)
        if steps is None:
            return None, 1
        total += ways * steps
        ways = min(ways * choices, _MANY)
    return min(max(total, 1), _MANY), ways


def _count_part(operation: str, argument: Any) -> tuple[int | None, int]:  # noqa: PLR0911
    match operation:
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _count_repeat(operation, *argument)
        case "SUBPATTERN":
            return _count_sequence(argument[-1])
        case "ATOMIC_GROUP":
            return _count_sequence(argument)[0], 1
        case "ASSERT" | "ASSERT_NOT":
            return _count_sequence(argument[1])[0], 1
        case "BRANCH":
            return _count_branches(argument[1])
        case "GROUPREF_EXISTS":
            return _count_branches([branch for branch in argument[1:] if branch is not None])
        case "GROUPREF":
            return 100, 1
        case _:
            return 1, 1


def _count_repeat(operation: str, low: Any, high: Any, inner: Any) -> tuple[int | None, int]:
    steps, ways = _count_sequence(inner)
    if steps is None or str(high) == "MAXREPEAT":
        return None, 1
    low, high = int(low), int(high)
    # if the inner part can match in several ways, each repetition multiplies the number of ways
    combinations = min(ways ** min(high, 40), _MANY)
    lengths = 1
    if operation != "POSSESSIVE_REPEAT":
        lengths = high - low + 1
    total = min(steps * max(high, 1) * combinations, _MANY)
    return total, min(lengths * combinations, _MANY)


def _count_branches(branches: Any) -> tuple[int | None, int]:
    """Return the number of steps for alternatives, and in how many ways they can match.

    All alternatives are tried, so their steps are added. They begin differently and rarely match at
    the same place, so only the highest number of ways is returned.
    """
    counts = [_count_sequence(branch) for branch in branches]
    ways = max((ways for _, ways in counts), default=1)
    total = 0
    for steps, _ in counts:
        if steps is None:
            return None, ways
        total += steps
    return total, ways
