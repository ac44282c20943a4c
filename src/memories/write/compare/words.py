"""A word of a text, and one form for numbers, dates and times that are written in several ways."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from memories.languages import MONTHS

_DAY_OF_MONTH = re.compile(r"[0-3]?\d(?:st|nd|rd|th)?")
_HOUR = re.compile(r"(1[0-2]|[1-9])(?::([0-5]\d))?")
_HALVES = {"a.m.": 0, "pm": 12, "p.m.": 12, "o'clock": 0}
_BETWEEN_NUMBERS = frozenset({"and", "y", "e", "et"})
_POWERS = frozenset({100, 1_000, 1_000_000})
_FIRST_SUM = 20


class Word(NamedTuple):
    """A word of a text.

    Attributes:
        key: The form used in comparisons.
        shown: The word as it was written.
        exact: Whether inflections and synonyms do not match it.
        opens: Whether it opens a sentence, so that the case of its first letter means nothing.
        definite: Whether it follows "the", "my" or a similar word; see `corrections`.
        literal: Whether it is part of a code, a command or a value, so that it matches only itself.
        form: `past`, `passive`, `adjective` for other participles, `plain`, or `FREE`.
        sense: Its meaning in English, if it is a known word of another language; see
            `languages.sense`.
    """

    key: str
    shown: str
    exact: bool = False
    opens: bool = False
    definite: bool = False
    literal: bool = False
    form: str = "plain"
    sense: str = ""


FREE = "free"  # a word's form in a rewritten construction, where its form has no meaning


def keys_of(words: Sequence[Word]) -> list[str]:
    """Return the keys of words."""
    return [word.key for word in words]


def join_numbers(words: Sequence[Word]) -> list[Word]:
    """Join the words of a number into one: "one hundred and fifty", "treinta y cinco"."""
    joined: list[Word] = []
    for word in words:
        start = len(joined) - 1
        if start > 0 and joined[start].key in _BETWEEN_NUMBERS:
            start -= 1
        number = 0
        if start >= 0 and _is_spelled(word) and _is_spelled(joined[start]):
            number = _add_numbers(int(joined[start].key), int(word.key))
        if number:
            shown = " ".join(part.shown for part in (*joined[start:], word))
            joined[start:] = [Word(str(number), shown, exact=True)]
        else:
            joined.append(word)
    return joined


def _is_spelled(word: Word) -> bool:
    """Return whether a word is a number that was written in letters."""
    return word.key.isdigit() and not any(map(str.isdigit, word.shown))


def _add_numbers(left: int, right: int) -> int:
    """Return the number that two words form, such as "twenty five"; 0 if they are two numbers."""
    if right in _POWERS:
        return left * right if left < right else 0
    is_sum = (left >= _FIRST_SUM and left % 10 == 0 and right < 10) or (
        left % 100 == 0 < left and right < 100
    )
    return left + right if is_sum else 0


def order_dates(words: Sequence[Word]) -> list[Word]:
    """Write dates in one order, with the day after the month: "31 December 2026", "March 3rd".

    The comma before the year and the ending of the day are removed.
    """
    ordered: list[Word] = []
    for word in words:
        start = len(ordered) - 1
        if start > 0 and ordered[start].key == "of":
            start -= 1
        if start >= 0 and word.key in MONTHS and _is_day(ordered[start]):
            day = _without_ending(ordered[start])
            start -= start > 0 and ordered[start - 1].key == "the"
            ordered[start:] = [word, day]
        elif ordered and ordered[-1].key in MONTHS and _is_day(word):
            ordered.append(_without_ending(word))
        else:
            ordered.append(word)
    for i in range(len(ordered) - 2, 1, -1):
        is_year = ordered[i + 1].key.isdigit() and len(ordered[i + 1].key) == 4
        if ordered[i].key == "," and is_year and ordered[i - 2].key in MONTHS:
            del ordered[i]
    return ordered


def _is_day(word: Word) -> bool:
    return _DAY_OF_MONTH.fullmatch(word.key) is not None and not _is_spelled(word)


def _without_ending(day: Word) -> Word:
    return day._replace(key=day.key.rstrip("stndrh"))


def write_clock(words: Sequence[Word]) -> list[Word]:
    """Write times such as "2 am", "2:30 pm" and "9 o'clock" as on a 24-hour clock."""
    written: list[Word] = []
    for word in words:
        half = _HALVES.get(word.key)
        clock = _HOUR.fullmatch(written[-1].key) if half is not None and written else None
        if half is None or clock is None:
            written.append(word)
        else:
            hour = int(clock[1])
            if word.key != "o'clock":
                hour = hour % 12 + half
            key = f"{hour}:{clock[2] or '00'}"
            written[-1] = Word(key, f"{written[-1].shown} {word.shown}", exact=True)
    return written
