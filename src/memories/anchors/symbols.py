"""Finds the definition of a symbol in a text by the patterns in `symbols.txt`; nothing is parsed or
executed.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from memories.anchors.tree import Budget

_FILE = Path(__file__).with_name("symbols.txt")
_PARTS = re.compile(r"\.|::|#")
_MAX_LINE = 400  # characters; longer lines are minified code or data


def knows_language(path: str) -> bool:
    """Return whether there are patterns for the language of a file."""
    return _extension(path) in _read_patterns()


def defines(path: str, text: str, symbol: str, budget: Budget | None = None) -> bool:
    """Return whether a text defines a symbol; for `Class.method`, whether it defines both.

    Args:
        path: The path of the text, whose extension names the language.
        text: The text.
        symbol: The symbol.
        budget: The time that it may take.

    Raises:
        TimeoutError: It took too long.
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
    """Yield the lines that contain a name, stripped of surrounding blanks."""
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
    """Return the patterns for definitions, by file extension."""
    patterns: dict[str, list[str]] = {}
    current: list[str] = []
    for line in _FILE.read_text().splitlines():
        if line.startswith("["):
            current = []
            patterns |= dict.fromkeys(line.strip("[]").split(), current)
        elif line and not line.startswith("#\x20"):
            current.append(line)
    return patterns
