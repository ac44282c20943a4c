"""Defines `Word`, writes numbers, dates and times in one standard form, and provides the lists of
vocabulary.txt as sets and tables.

Importing this module reads that file, so only code that compares texts imports it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from memories.languages import MONTHS
from memories.languages.text import STOP_WORDS


def _read_lines() -> dict[str, str]:
    """Return the lines of vocabulary.txt, keyed by name; lines with the same name are joined."""
    lines: dict[str, list[str]] = {}
    text = Path(__file__).with_name("vocabulary.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, entries = line.split(": ", 1)
            lines.setdefault(name, []).append(entries)
    return {name: "; ".join(entries) for name, entries in lines.items()}


_LINES = _read_lines()


def _words(name: str) -> frozenset[str]:
    return frozenset(_LINES[name].replace(";", "").split())


def _groups(name: str) -> list[list[str]]:
    return [group.split() for group in _LINES[name].split("; ")]


def _group_of_each(*names: str) -> dict[str, str]:
    """Map each word to the name of its group."""
    table: dict[str, str] = {}
    for group in (group for name in names for group in _groups(name)):
        for word in group:
            table.setdefault(word, f"={group[0]}")
    return table


def _phrases() -> dict[tuple[str, ...], str]:
    """Map the words of each phrase to its meaning."""
    table: dict[tuple[str, ...], str] = {}
    for name, phrases in _LINES.items():
        if name.startswith("phrase "):
            for phrase in phrases.split("; "):
                words = tuple(NUMBERS.get(word, word) for word in phrase.split())
                table[words] = name.removeprefix("phrase ")
    return table


# Words and phrases that may replace each other.
GROUP = _group_of_each("alike-verbs", "alike")
NAMES_ALIKE = frozenset(GROUP[name] for name in _words("alike-names"))
VERBS_ALIKE = _words("alike-verbs")
COMPOUNDS = _words("compounds")
NUMBERS: dict[str, str] = dict(_groups("numbers"))
PHRASE = _phrases()
UNITS: dict[str, str] = dict(_groups("units"))
ACTIONS = _words("actions")
ABBREVIATED = _words("abbreviated")

# Forms of verbs.
SAME_FORMS = _words("same-forms")
BASE = {form: base for base, *forms in _groups("irregular") for form in forms}
PARTICIPLES = frozenset(participle for *_, participle in _groups("irregular")) | SAME_FORMS

# Classes of words.
WEEKDAYS = _words("weekdays")
DATES = WEEKDAYS | _words("dates")
NEGATIONS = _words("negations")
BE = _words("be")
PAST_MARKS = _words("past-marks")
DETERMINERS = _words("determiners")
LIGHT = BE | _words("light")
PLACES = _words("places")
EMPTY = _words("empty")
SOFT = PLACES | _words("soft")
BOUNDARIES = _words("boundaries")
FRONTED = _words("fronted")
NAMING = _words("naming")
VALUED = NAMING | _words("valued")
TYPED = _words("typed")
PROGRAMS = _words("programs")
VERB_BEFORE = _words("verb-before")
ASKING = BE | _words("asking")
PRONOUNS = _words("pronouns")
AGENTS = _words("agents")
MODALS = _words("modals")
FOCUSING = _words("focusing")
_INFLECTED_DATES = WEEKDAYS | {"week", "month", "year", "day", "hour", "minute", "night"}
WHOLE = (DATES - _INFLECTED_DATES) | _words("whole")
FREE_CASE = STOP_WORDS | {"pm"}  # words whose case makes no difference
ACRONYMS = LIGHT | SOFT | _words("acronyms")

# Classes of words for `corrections`.
SINGLE = _words("single")
PLACED = _words("placed")
SENDING = _words("sending")
SUPPLYING = _words("supplying")
LEADING = _words("leading")
USING = _words("using")
MANY = _words("many-verbs") | _words("many-nouns")
ONCE = _words("once")
SWITCHING = _words("switching")
PEOPLE = _words("people")
SCHEDULED = _words("scheduled")
ENUMERATED = _words("enumerated")
CUES = _words("cues")
VARIANTS = _words("variants")
KINDS = _group_of_each("kinds")
COMMON_VERBS = (
    SINGLE
    | PLACED
    | LEADING
    | USING
    | _words("many-verbs")
    | ONCE
    | SWITCHING
    | VERBS_ALIKE
    | frozenset(BASE.values())
    | _words("verbs")
)
ANTONYMS = frozenset(
    pair for one, other in _groups("opposites") for pair in ((one, other), (other, one))
)

_DAY_OF_MONTH = re.compile(r"[0-3]?\d(?:st|nd|rd|th)?")
_HOUR = re.compile(r"(1[0-2]|[1-9])(?::([0-5]\d))?")
_FULL_HOURS = frozenset({"o'clock", "uhr"})
_HALVES = {"a.m.": 0, "pm": 12, "p.m.": 12, **dict.fromkeys(_FULL_HOURS, 0)}
_HOURS = frozenset("1 2 3 4 5 6 7 8 9 10 11 12".split())
# Minutes after an hour; German and Dutch "half ten" is half past nine.
_PARTS = {"half past": 30, "quarter past": 15, "quarter to": -15}
_PARTS |= {"halb": -30, "viertel nach": 15, "viertel vor": -15}
_BETWEEN_NUMBERS = frozenset({"and", "y", "e", "et"})
_POWERS = frozenset({100, 1_000, 1_000_000})
_FIRST_SUM = 20


class Word(NamedTuple):
    """A word in a text.

    Attributes:
        key: The form used in comparisons.
        shown: The word as it was written.
        exact: Whether the word matches only itself, not its inflections.
        opens: Whether it begins a sentence, so that the case of its first letter doesn't matter.
        definite: Whether it follows "the", "my" or a similar word; see `frames`.
        literal: Whether it is part of code, a command or a value, and so doesn't match its
            inflections or synonyms.
        form: `past`, `passive`, `adjective` (any other participle), `plain`, or `FREE`.
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

    @property
    def is_capitalized(self) -> bool:
        """Whether the word was written with a capital letter."""
        return self.shown[:1].isupper()


FREE = "free"  # the `form` of words in a rewritten construction, where forms don't matter


def keys_of(words: Sequence[Word]) -> list[str]:
    """Return each word's key."""
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
    """Return whether a word is a number written out in words."""
    return word.key.isdigit() and not any(map(str.isdigit, word.shown))


def _add_numbers(left: int, right: int) -> int:
    """Return the number that two words such as "twenty five" form; 0 if they don't form one."""
    if right in _POWERS:
        return left * right if left < right else 0
    is_sum = (left >= _FIRST_SUM and left % 10 == 0 and right < 10) or (
        left % 100 == 0 < left and right < 100
    )
    return left + right if is_sum else 0


def order_dates(words: Sequence[Word]) -> list[Word]:
    """Write dates such as "31 December 2026" and "March 3rd" in one order, with the month before
    the day.

    The comma before the year and the suffix of the day ("rd") are removed.
    """
    ordered: list[Word] = []
    for word in words:
        start = len(ordered) - 1
        if start > 0 and ordered[start].key == "of":
            start -= 1
        if start >= 0 and _month_of(word) and _is_day(ordered[start]):
            day = _without_ending(ordered[start])
            start -= start > 0 and ordered[start - 1].key == "the"
            ordered[start:] = [word, day]
        elif ordered and _month_of(ordered[-1]) and _is_day(word):
            ordered.append(_without_ending(word))
        else:
            ordered.append(word)
    for i in range(len(ordered) - 2, 1, -1):
        if ordered[i].key == "," and _is_year(ordered[i + 1]) and _month_of(ordered[i - 2]):
            del ordered[i]
    return ordered


def join_dates(words: Sequence[Word]) -> list[Word]:
    """Write the month, day and year of a date as one word, such as 2026-12-31."""
    joined: list[Word] = []
    for word in words:
        month, day = joined[-2:] if len(joined) > 1 else (word, word)
        number = _month_of(month)
        if number and day.key.isdigit() and _is_year(word):
            key = f"{word.key}-{number:02}-{int(day.key):02}"
            joined[-2:] = [Word(key, f"{month.shown} {day.shown} {word.shown}", exact=True)]
        else:
            joined.append(word)
    return joined


def _month_of(word: Word) -> int:
    """Return the number of the month that a word names or abbreviates; 0 for other words."""
    name = GROUP.get(word.key, word.key).removeprefix("=")
    return MONTHS.index(name) + 1 if name in MONTHS else 0


def _is_year(word: Word) -> bool:
    return word.key.isdigit() and len(word.key) == 4


def _is_day(word: Word) -> bool:
    return _DAY_OF_MONTH.fullmatch(word.key) is not None and not _is_spelled(word)


def _without_ending(day: Word) -> Word:
    return day._replace(key=day.key.rstrip("stndrh"))


def write_clock(words: Sequence[Word]) -> list[Word]:
    """Write times such as "2 am", "2:30 pm" and "half past 9" in 24-hour format."""
    written: list[Word] = []
    for word in words:
        if word.key in _HOURS and (part := _part_at_end(written)):
            minutes = 60 * int(word.key) + _PARTS[" ".join(keys_of(part))]
            hour, minute = divmod(minutes, 60)
            shown = " ".join(before.shown for before in (*part, word))
            del written[-len(part) :]
            if written and written[-1].key == "a":
                written.pop()
            written.append(Word(f"{hour or 12}:{minute:02}", shown, exact=True))
            continue
        half = _HALVES.get(word.key)
        clock = _HOUR.fullmatch(written[-1].key) if half is not None and written else None
        if half is None or clock is None:
            written.append(word)
        else:
            hour = int(clock[1])
            if word.key not in _FULL_HOURS:
                hour = hour % 12 + half
            key = f"{hour}:{clock[2] or '00'}"
            written[-1] = Word(key, f"{written[-1].shown} {word.shown}", exact=True)
    return written


def _part_at_end(words: Sequence[Word]) -> Sequence[Word]:
    """Return the last words if they name a part of an hour, such as "half past"; else no words."""
    for part in (words[-1:], words[-2:]):
        if " ".join(keys_of(part)) in _PARTS:
            return part
    return ()
