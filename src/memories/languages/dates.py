"""Dates in a question, explicit or relative, and how close a time is to them. English; `languages`
says others in it.

A date never filters: it says which answers are likelier. What is written around a date often speaks
of it a little later ("yesterday we …"), so times after a date count for longer than times before
it.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.languages.days import asks_when as asks_when_elsewhere
from memories.languages.days import in_english, meant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DAYS_BEFORE, DAYS_AFTER = (
    3.0,
    7.0,
)  # at this distance from a single day, a time still counts about a quarter
WIDTH_SHARE = 0.25  # of the width of a span is added to these distances
_RECENT_DAYS = 14
_NEAR_DAYS, _FITTING_DAYS = 2.0, 7
_LONGEST = 60  # characters of a date
_LEAP_YEARS = 8  # in which there is always a 29 February, from 1904 to 2096

_MONTHS = {
    name: number
    for number, names in enumerate(
        "january jan,february feb,march mar,april apr,may,june jun,july jul,august aug,september sept sep,"
        "october oct,november nov,december dec".split(","),
        1,
    )
    for name in names.split()
}
_WEEKDAYS = {
    name: number
    for number, name in enumerate(
        "monday tuesday wednesday thursday friday saturday sunday".split()
    )
}
_NUMBERS = {"a": 1, "an": 1, "couple of": 2, "couple": 2, "few": 3, "several": 4} | {
    name: number
    for number, name in enumerate(
        "one two three four five six seven eight nine ten eleven twelve".split(), 1
    )
}
_UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_HALF_WIDTH = {
    "day": 0,
    "week": 3,
    "month": 15,
    "year": 180,
}  # "two weeks ago" is not said to the day

_MONTH = rf"\b({'|'.join(sorted(_MONTHS, key=len, reverse=True))})\b\.?"
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"((?:19|20)\d\d)\b"
_COUNT = rf"(\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_UNITS = r"(day|week|month|year)s?"
_BEFORE_MONTH = (
    r"\b(?:in|on|of|during|since|until|till|by|before|after|around|from|to|between|and|early|late|mid|this|next)"
    r"(?:[\s-]+(?:early|late|mid|the beginning of|the end of))?"
)

# What has none of these names no date: the beginnings of months, and words and digits of the other
# patterns.
_HINTS = (
    *(name[:3] for name in _MONTHS),
    *"19 20 yesterday night today tomorrow ago last past previous next coming recently lately since".split(),
    *("this ", "these days", "on ", "in "),
)

Span = tuple[date, date]  # first and last day


class _Asked(NamedTuple):
    """What relative dates are counted from, and the years that a date without a year may mean."""

    today: date
    years: Sequence[int]


def spans(text: str, now: datetime, years: Sequence[int]) -> list[Span]:
    """Return the spans of days that a text names.

    Args:
        text: A question, such as "what did we decide last week?"
        now: When it is asked.
        years: The years that a date without a year may mean; each gives a span of its own.
    """
    text = " ".join(in_english(text).split())
    folded = text.lower()
    if not any(hint in folded for hint in _HINTS):
        return []  # without compiling a pattern, which takes 4 ms in all
    asked = _Asked(now.date(), years)
    found: list[Span] = []
    for pattern, read in _patterns():
        matches = list(pattern.finditer(text))
        for match in matches:
            found += [span for span in read(match, asked) if span not in found]
        if matches:
            text = pattern.sub(" . ", text)  # what one pattern has read, no other reads again
    return found


def span(text: str, now: datetime) -> Span | None:
    """Return the days that a text stands for, such as "last week", "yesterday" or "3 May"; None if
    it is no date.

    Args:
        text: A date and nothing else.
        now: When it was written. Of a date without a year, the last one that has begun is meant.
    """
    if len(text) > _LONGEST:
        return None
    return _span(text, now) or _span(meant(text), now)


def _span(text: str, now: datetime) -> Span | None:
    today, written = now.date(), " ".join(text.split()).title()  # with a capital, "May" is a month
    asked = _Asked(today, range(today.year, today.year - _LEAP_YEARS, -1))
    for phrase in (written, f"On {written}"):  # a weekday or a month by itself
        for pattern, read in _patterns():
            match = pattern.fullmatch(phrase)
            found: list[Span] = list(read(match, asked)) if match else []
            if found:
                return next((each for each in found if each[0] <= today), found[0])
    return None


def closeness(days: "NDArray[np.int64]", spans: Sequence[Span]) -> "NDArray[np.float64]":
    """Return how close days are to the nearest of some spans: 1 inside, towards 0 far away.

    Args:
        days: Day numbers as `date.toordinal` gives them, shape (n,).
        spans: At least one span.

    Returns:
        Shape (n,). Outside it is (1 + distance / reach)⁻², where the reach grows with the width of
        the span.
    """
    import numpy as np

    best = np.zeros(len(days))
    for first, last in spans:
        width = WIDTH_SHARE * ((last - first).days + 1)
        before = np.maximum(0, first.toordinal() - days) / (DAYS_BEFORE + width)
        after = np.maximum(0, days - last.toordinal()) / (DAYS_AFTER + width)
        best = np.maximum(best, (1 + before + after) ** -2.0)
    return best


def overlap(told: Sequence[Span], meant: Sequence[Span]) -> float:
    """Return how well the days that a text speaks of agree with those of a question, 0 to 1.

    Args:
        told: The spans that the text names, counted from the day on which it was said.
        meant: The spans of the question.

    Returns:
        The best of all pairs: 1 where a short span meets one of the question, less where it is much
            wider than that,
        and with distance as in `closeness`, but faster. 0 if either is empty.
    """
    best = 0.0
    for first, last in told:
        for start, end in meant:
            wide = (end - start).days + 1
            fitting = min(1.0, (wide + _FITTING_DAYS) / ((last - first).days + 1))
            gap = max(0, (start - last).days, (first - end).days)
            best = max(best, fitting / (1 + gap / (_NEAR_DAYS + WIDTH_SHARE * wide)) ** 2)
    return best


def asks_when(text: str) -> bool:
    """Return whether a question asks for a time."""
    return bool(re.search(_WHEN, text, re.IGNORECASE)) or asks_when_elsewhere(text)


def tells_time(text: str) -> bool:
    """Return whether a text speaks of a time: a date, a weekday, "yesterday", "last year"."""
    words = re.findall(r"\w+", in_english(text).lower())
    return not _TIME_WORDS.isdisjoint(words) or any(
        len(word) == 4 and word[:2] in ("19", "20") and word.isdecimal() for word in words
    )


_WHEN = r"^\W*(?:when|since when|until when|how long|(?:on |in |at )?(?:what|which) (?:date|day|year|month|week|time)s?)\b"
_TIME_WORDS = frozenset(
    "yesterday today tonight tomorrow last next ago week weeks weekend weekends month months year years day days "
    "since recently soon just january february march april june july august september october november december "
    "summer winter spring fall autumn birthday anniversary".split()
) | frozenset(_WEEKDAYS)


# --- readers: what each pattern means
# --------------------------------------------------------------------------------


def _dates(year: str | int | None, month: int, day: int | None, asked: _Asked) -> Iterator[Span]:
    """Yield the day or month in each year that it may be in."""
    for number in asked.years if year is None else [int(year)]:
        try:
            first = date(number, month, 1 if day is None else day)
        except ValueError:
            continue  # 30 February is no date
        yield first, _end_of_month(first) if day is None else first


def _iso(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    return _dates(match[1], int(match[2]), int(match[3]), asked)


def _dotted(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    return _dates(match[3], int(match[2]), int(match[1]), asked)


def _day_month(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    return _dates(match[3], _MONTHS[match[2].lower()], int(match[1]), asked)


def _month_day(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    return _dates(match[3], _MONTHS[match[1].lower()], int(match[2]), asked)


def _month_year(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    return _dates(match[2], _MONTHS[match[1].lower()], None, asked)


def _month_alone(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    """A month by itself; "may" and "march" are verbs, unless they have a capital."""
    if match[1] in ("may", "march", "mar"):
        return iter(())
    return _dates(None, _MONTHS[match[1].lower()], None, asked)


def _year_month(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    return _dates(match[1], int(match[2]), None, asked)


def _month_of(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    """June last year."""
    return _dates(
        asked.today.year - (match[2].lower() == "last"), _MONTHS[match[1].lower()], None, asked
    )


def _last_month(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    """Last June: the one that is over."""
    month = _MONTHS[match[1].lower()]
    return _dates(asked.today.year - (month >= asked.today.month), month, None, asked)


def _year_alone(match: re.Match[str], _asked: _Asked) -> Iterator[Span]:
    yield date(int(match[1]), 1, 1), date(int(match[1]), 12, 31)


def _ago(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    unit = match[2].lower()
    middle = _back(asked.today, _number(match[1]) * _UNIT_DAYS[unit])
    yield _back(middle, _HALF_WIDTH[unit]), min(asked.today, _back(middle, -_HALF_WIDTH[unit]))


def _past(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    """The last three weeks: from then until now."""
    yield _back(asked.today, _number(match[1]) * _UNIT_DAYS[match[2].lower()]), asked.today


def _last(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    """Last week, month or year by the calendar, and the last weekend."""
    today, unit = asked.today, match[1].lower()
    monday = _back(today, today.weekday())
    if unit == "week":
        yield _back(monday, 7), _back(monday, 1)
    elif unit == "weekend":
        yield _back(monday, 2), _back(monday, 1)
    elif unit == "month":
        last = _back(today.replace(day=1), 1)
        yield last.replace(day=1), last
    else:
        yield date(max(1, today.year - 1), 1, 1), date(max(1, today.year - 1), 12, 31)


def _next(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    """Next week, weekend, month, year, or such a day after today."""
    today, unit = asked.today, match[1].lower()
    monday = _back(today, today.weekday() - 7)
    if unit == "week":
        yield monday, _back(monday, -6)
    elif unit == "weekend":
        yield _back(monday, -5), _back(monday, -6)
    elif unit == "month":
        first = _back(_end_of_month(today), -1)
        yield first, _end_of_month(first)
    elif unit == "year":
        yield date(min(9999, today.year + 1), 1, 1), date(min(9999, today.year + 1), 12, 31)
    else:
        day = _back(today, (today.weekday() - _WEEKDAYS[unit]) % 7 - 7)
        yield day, day


def _ahead(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    """In two weeks."""
    unit = match[2].lower()
    middle = _back(asked.today, -_number(match[1]) * _UNIT_DAYS[unit])
    yield max(asked.today, _back(middle, _HALF_WIDTH[unit])), _back(middle, -_HALF_WIDTH[unit])


def _this(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    today = asked.today
    starts = {
        "week": _back(today, today.weekday()),
        "month": today.replace(day=1),
        "year": today.replace(month=1, day=1),
    }
    yield starts[match[1].lower()], today


def _weekday(match: re.Match[str], asked: _Asked) -> Iterator[Span]:
    """The last such day before today."""
    day = _back(asked.today, (asked.today.weekday() - _WEEKDAYS[match[1].lower()] - 1) % 7 + 1)
    yield day, day


def _days_back(first: int, last: int) -> Callable[[re.Match[str], _Asked], Iterator[Span]]:
    return lambda _match, asked: iter([(_back(asked.today, first), _back(asked.today, last))])


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _NUMBERS[text.lower()]


def _back(day: date, days: int) -> date:
    """Return the day that many days before, within the years that dates have."""
    return date.fromordinal(min(date.max.toordinal(), max(1, day.toordinal() - days)))


def _end_of_month(day: date) -> date:
    return (
        date(day.year, 12, 31)
        if day.month == 12
        else date(day.year, day.month + 1, 1) - timedelta(days=1)
    )


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(
        pattern, re.IGNORECASE | re.ASCII
    )  # else İ would be taken for i, and is no letter of a month


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], Any], ...]:
    """Return the patterns, each with its reader; what is longer, and more certain, comes first."""
    return (
        (_compiled(rf"\b{_YEAR[:-2]}[-/](\d{{1,2}})[-/](\d{{1,2}})(?!\d)"), _iso),
        (_compiled(rf"(?<![\w.])(\d{{1,2}})\.(\d{{1,2}})\.{_YEAR}"), _dotted),
        (_compiled(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?"), _day_month),
        (_compiled(rf"{_MONTH}\s+{_DAY}\b(?:,?\s+{_YEAR})?"), _month_day),
        (_compiled(rf"{_MONTH},?\s+(?:of\s+)?{_YEAR}"), _month_year),
        (_compiled(rf"\b{_YEAR[:-2]}-(0[1-9]|1[0-2])(?![\d-])"), _year_month),
        (_compiled(rf"{_MONTH}\s+(?:of\s+)?(last|this)\s+year\b"), _month_of),
        (_compiled(rf"\blast\s+{_MONTH}"), _last_month),
        (_compiled(rf"{_BEFORE_MONTH}[\s-]+{_MONTH}"), _month_alone),
        (_compiled(rf"\b{_YEAR}"), _year_alone),
        (_compiled(r"\bday before yesterday\b"), _days_back(2, 2)),
        (_compiled(r"\bday after tomorrow\b"), _days_back(-2, -2)),
        (_compiled(r"\b(?:yesterday|last night)\b"), _days_back(1, 1)),
        (_compiled(r"\b(?:today|tonight|this (?:morning|afternoon|evening))\b"), _days_back(0, 0)),
        (_compiled(rf"\b{_COUNT}\s+{_UNITS}\s+ago\b"), _ago),
        (_compiled(rf"\b(?:last|past|previous)\s+{_COUNT}\s+{_UNITS}\b"), _past),
        (_compiled(r"\b(?:last|past|previous)\s+(week|weekend|month|year)\b"), _last),
        (_compiled(r"\bthis\s+(week|month|year)\b"), _this),
        (_compiled(rf"\b(?:last|on|since|past)\s+({'|'.join(_WEEKDAYS)})\b"), _weekday),
        (_compiled(r"\btomorrow\b"), _days_back(-1, -1)),
        (
            _compiled(rf"\b(?:next|coming)\s+(week|weekend|month|year|{'|'.join(_WEEKDAYS)})\b"),
            _next,
        ),
        (_compiled(rf"\bin\s+{_COUNT}\s+{_UNITS}\b"), _ahead),
        (_compiled(r"\b(?:recently|lately|these days)\b"), _days_back(_RECENT_DAYS, 0)),
    )
