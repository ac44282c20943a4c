"""Finds the symbols and literals that anchors name in the text of a file.

A symbol is found by the patterns for definitions in `symbols.txt`; nothing is parsed or executed. A
literal is found as its words in order, with any quotes, spaces and symbols between them:
`requires-python >=3.11` is in `requires-python = ">=3.11"`, and `port 5433` in `"port": 5433,`.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from memories.anchors.tree import Budget

_FILE = Path(__file__).with_name("symbols.txt")
_PARTS = re.compile(r"\.|::|#")
_MAX_LINE = 400  # maximum length in characters; longer lines are minified code or data
# Characters allowed between two words; `-`, `<`, `!`, `~` and `+` would change the meaning of the
# second word.
_GAP = r"(?:[ \t]*:[ \t]*[\w.\[\], |]{1,40}(?==))?(?:->|[^\w\n<!~+\-])*"
_MAX_PLACES = 50  # maximum number of places where a value's name is looked for
_MAX_BEFORE = 120  # maximum distance, in characters, of a name from its value
_ASSIGNMENT = re.compile(r"(?<=[\w\])\"'])[ \t]*(?:(?<![<>=!~:+*/-])=(?![=>])|:(?=[ \t]))[ \t]*")


# --- symbols ---


def knows_language(path: str) -> bool:
    """Return whether there are patterns for the language of a file."""
    return _extension(path) in _read_patterns()


def defines_symbol(path: str, text: str, symbol: str, budget: Budget | None = None) -> bool:
    """Return whether a text defines a symbol; for `Class.method`, whether it defines both.

    Args:
        path: The path of the text. Its extension determines the language.
        text: The text.
        symbol: The symbol.
        budget: How long the search may take.

    Raises:
        TimeoutError: The search took too long.
    """
    patterns = _read_patterns()[_extension(path)]
    return all(_defines_part(patterns, text, part, budget) for part in _PARTS.split(symbol))


def _defines_part(patterns: Sequence[str], text: str, name: str, budget: Budget | None) -> bool:
    tests: list[re.Pattern[str]] = []
    for line in _lines_with(name, text):
        if budget is not None:
            budget.spend()
        tests = tests or [re.compile(row.replace("NAME", re.escape(name))) for row in patterns]
        if any(test.match(line) for test in tests):
            return True
    return False


def _lines_with(name: str, text: str) -> Iterator[str]:
    """Yield the lines that contain a name, without surrounding spaces."""
    at = text.find(name)
    while at >= 0:
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if end - start <= _MAX_LINE:
            yield text[start:end].strip()
        at = text.find(name, end)


def _extension(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[2].lower()


@functools.cache
def _read_patterns() -> Mapping[str, Sequence[str]]:
    """Return the patterns for definitions, keyed by file extension."""
    patterns: dict[str, list[str]] = {}
    current: list[str] = []
    for line in _FILE.read_text().splitlines():
        if line.startswith("["):
            current = []
            patterns |= dict.fromkeys(line.strip("[]").split(), current)
        elif line and not line.startswith("#\x20"):
            current.append(line)
    return patterns


# --- literals ---


def contains_literal(text: str, literal: str, budget: Budget | None = None) -> bool:
    """Return whether a text contains a literal.

    Args:
        text: The text.
        literal: The literal.
        budget: How long the search may take.

    Raises:
        TimeoutError: The search took too long.
    """
    words = split_words(literal)
    if not words or any(word not in text for word in words):
        return False
    pattern = re.compile(_GAP.join(map(word_pattern, words)))
    # Looking for the first word is twenty times faster than matching the pattern.
    at = text.find(words[0])
    while at >= 0:
        if budget is not None:
            budget.spend()
        if pattern.match(text, at):
            return True
        at = text.find(words[0], at + 1)
    return False


def split_words(literal: str) -> list[str]:
    """Return a literal's words; `PORT=5433` has two."""
    return _ASSIGNMENT.sub(" ", literal).split()


def word_pattern(word: str) -> str:
    """Return the pattern of a whole word: `5433` is not in `15433`, and `1.2` not in `1.2.3`."""
    before = after = ""
    if _is_word_sign(word[0]):
        before = r"(?<!\w)(?<!\d\.)" if word[0].isdigit() else r"(?<!\w)"
    if _is_word_sign(word[-1]):
        after = r"(?!\w|\.\d)" if word[-1].isdigit() else r"(?!\w)"
    return f"{before}{re.escape(word)}{after}"


def names_before(text: str, names: Sequence[str], value: str) -> list[str]:
    """Return the names that a text gives to a value, as in `PORT = 5433`."""
    pattern = re.compile(word_pattern(value))
    befores: list[str] = []
    at = text.find(value)
    while at >= 0 and len(befores) < _MAX_PLACES:
        if pattern.match(text, at):
            befores.append(text[max(0, at - _MAX_BEFORE) : at].rpartition("\n")[2])
        at = text.find(value, at + 1)
    owners: list[str] = []
    for name in names:
        owner = re.compile(rf"{word_pattern(name)}{_GAP}\Z")
        if any(name in before and owner.search(before) for before in befores):
            owners.append(name)
    return owners


def _is_word_sign(sign: str) -> bool:
    return sign.isalnum() or sign == "_"
