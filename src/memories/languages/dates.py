"""Finds dates in a question, and scores how close times are to them.

This module reads English; `days` translates other languages. A date never filters texts; it raises
the scores of texts close to it. A text about a date is often written a little later ("yesterday we
…"), so the score falls more slowly after a date than before it.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memories.languages import MONTHS, WEEKDAYS, detect

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# At this distance from a single day, a time still gets a quarter of the full score.
DAYS_BEFORE, DAYS_AFTER = 3.0, 7.0
WIDTH_SHARE = 0.25  # share of a span's width that is added to `DAYS_BEFORE` and `DAYS_AFTER`
_RECENT_DAYS = 14
_NEAR_DAYS, _FITTING_DAYS = 2.0, 7
_LONGEST = 60  # maximum length of a date in characters
_LEAP_YEARS = 8  # from 1904 to 2096, any eight consecutive years include a 29 February

_MONTHS = {name: number for number, name in enumerate(MONTHS, 1)}
_MONTHS.update({name[:3]: number for name, number in _MONTHS.items()}, sept=9)
_WEEKDAYS = {name: number for number, name in enumerate(WEEKDAYS)}
_NUMBERS = {"a": 1, "an": 1, "couple of": 2, "couple": 2, "few": 3, "several": 4}
_NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
_NUMBERS.update({name: number for number, name in enumerate(_NUMBER_WORDS, 1)})
_UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_HALF_WIDTH = {"day": 0, "week": 3, "month": 15, "year": 180}  # "two weeks ago" isn't exact

_MONTH = rf"\b(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})\b\.?"
_DAY = r"(?P<day>\d{1,2})"
_NTH = rf"{_DAY}(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_COUNT = rf"(?P<count>\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_UNITS = r"(?P<unit>day|week|month|year)s?"
_BEFORE_MONTH = (
    r"\b(?:in|on|of|during|since|until|till|by|before|after|around|from|to|between|and|early|late"
    r"|mid|this|next)"
    r"(?:[\s-]+(?:early|late|mid|the beginning of|the end of))?"
)

# Beginnings of month names, and parts of other patterns. A text with none of these has no date.
_HINTS = (
    *(name[:3] for name in _MONTHS),
    *("19", "20", "yesterday", "night", "today", "tomorrow", "ago", "last", "past", "previous"),
    *("next", "coming", "recently", "lately", "since", "this ", "these days", "on ", "in "),
)

Span = tuple[date, date]  # first and last day


class _Context(NamedTuple):
    """The points of reference for interpreting the dates in a text.

    Attributes:
        today: The day from which relative dates are counted.
        years: The years that a date without a year may belong to.
        is_ahead: Whether "friday" means the next Friday, and "this week" lasts until Sunday.
    """

    today: date
    years: Sequence[int]
    is_ahead: bool = False


Reader = Callable[[re.Match[str], _Context], Iterator[Span]]


def spans(text: str, now: datetime, years: Sequence[int]) -> list[Span]:
    """Return the spans of days that a text refers to.

    Args:
        text: A question, such as "what did we decide last week?"
        now: When it is asked.
        years: The years that a date without a year may refer to; each produces its own span.
    """
    text = " ".join(_in_english(text).split())
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return []  # avoids compiling the patterns, which takes 4 ms
    context = _Context(now.date(), years)
    result: list[Span] = []
    for pattern, read in _patterns():
        matches = list(pattern.finditer(text))
        for match in matches:
            result += [span for span in read(match, context) if span not in result]
        if matches:
            text = pattern.sub(" . ", text)  # so that no other pattern matches this part
    return result


def span(text: str, now: datetime, *, is_ahead: bool = False) -> Span | None:
    """Return the days of a text such as "last week", "yesterday" or "3 May"; None for other texts.

    Args:
        text: A date and nothing else.
        now: When it was written. A date without a year is the latest one that has begun.
        is_ahead: Whether a weekday or a date without a year means the next one instead.
    """
    if len(text) > _LONGEST:
        return None
    if span_in_english := _span(text, now, is_ahead):
        return span_in_english
    from memories.languages.days import single_day

    return _span(single_day(text), now, is_ahead)


def _in_english(text: str) -> str:
    if not detect(text):
        return text
    from memories.languages.days import in_english

    return in_english(text)


def _span(text: str, now: datetime, is_ahead: bool) -> Span | None:
    today = now.date()
    step = 1 if is_ahead else -1
    years = range(today.year, today.year + step * _LEAP_YEARS, step)
    context = _Context(today, years, is_ahead)
    title = " ".join(text.split()).title()  # with a capital, "May" is a month
    for phrase in (title, f"On {title}"):  # a bare weekday or month is found only after "On"
        for pattern, read in _patterns():
            match = pattern.fullmatch(phrase)
            candidates = list(read(match, context)) if match else []
            for first, last in candidates:
                if (last >= today) if is_ahead else (first <= today):
                    return first, last
            if candidates:
                return candidates[0]
    return None


def closeness(days: "NDArray[np.int64]", spans: Sequence[Span]) -> "NDArray[np.float64]":
    """Return how close days are to the nearest span: 1 inside a span, nearly 0 far away.

    Args:
        days: Day numbers as returned by `date.toordinal`, shape (n,).
        spans: The spans; without any, every day gets 0.

    Returns:
        Shape (n,). Outside a span it is (1 + distance / reach)⁻², where the reach grows with the
        width of the span.
    """
    import numpy as np

    best = np.zeros(len(days))
    for first, last in spans:
        width = WIDTH_SHARE * ((last - first).days + 1)
        before = np.maximum(0, first.toordinal() - days) / (DAYS_BEFORE + width)
        after = np.maximum(0, days - last.toordinal()) / (DAYS_AFTER + width)
        best = np.maximum(best, (1 + before + after) ** -2.0)
    return best


def overlap(text_spans: Sequence[Span], query_spans: Sequence[Span]) -> float:
    """Return how well the days in a text match those of a question, 0 to 1.

    Args:
        text_spans: The spans in the text, counted from the day on which it was written.
        query_spans: The spans of the question.

    Returns:
        The best score of all pairs; 0 without pairs. A pair scores 1 if the text's span overlaps
        the question's span and isn't much wider. The score falls with the width of the text's span
        and with the distance between the two, which counts more here than in `closeness`.
    """
    best = 0.0
    for first, last in text_spans:
        for start, end in query_spans:
            query_days = (end - start).days + 1
            fit = min(1.0, (query_days + _FITTING_DAYS) / ((last - first).days + 1))
            gap = max(0, (start - last).days, (first - end).days)
            reach = _NEAR_DAYS + WIDTH_SHARE * query_days
            best = max(best, fit / (1 + gap / reach) ** 2)
    return best


def asks_when(text: str) -> bool:
    """Return whether a question asks when something happened or will happen."""
    if re.search(_WHEN, text, re.IGNORECASE):
        return True
    if not detect(text):
        return False
    from memories.languages.days import asks_when as asks_when_elsewhere

    return asks_when_elsewhere(text)


def tells_time(text: str) -> bool:
    """Return whether a text mentions a time: a date, a weekday, "yesterday", "last year"."""
    english = _in_english(text).lower()
    has_year = re.search(r"\b(?:19|20)\d\d\b", english)
    return bool(has_year) or not _TIME_WORDS.isdisjoint(re.findall(r"\w+", english))


_WHEN = (
    r"^\W*(?:when|since when|until when|how long"
    r"|(?:on |in |at )?(?:what|which) (?:date|day|year|month|week|time)s?)\b"
)
_TIME_WORDS = frozenset(
    "yesterday today tonight tomorrow last next ago week weeks weekend weekends month months year "
    "years day days since recently soon just summer winter spring fall autumn birthday "
    "anniversary".split()
) | frozenset((*MONTHS, *WEEKDAYS)) - {"may"}


# --- readers: each yields the days that a pattern means


def _in_years(year: str | None, month: int, day: int | None, context: _Context) -> Iterator[Span]:
    """Yield a day or a month in a year; without a year, in each possible year."""
    for number in context.years if year is None else [int(year)]:
        try:
            first = date(number, month, 1 if day is None else day)
        except ValueError:
            continue  # there is no such day, as with 30 February
        yield first, _end_of_month(first) if day is None else first


def _read_date(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read a day or a month, in figures or by name: 2023-05-07, 7 May, May 2023."""
    parts = match.groupdict()
    day = parts.get("day")
    return _in_years(parts.get("year"), _month(match), None if day is None else int(day), context)


def _read_month(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read a month alone; "may" and "march" in lower case count as verbs."""
    if match["month"] in ("may", "march", "mar"):
        return iter(())
    return _read_date(match, context)


def _read_month_of_year(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read a month of this or last year, such as "June last year"."""
    year = context.today.year
    if match["which"].lower() == "last":
        year -= 1
    return _in_years(str(year), _month(match), None, context)


def _read_last_month(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read "last June": the most recent June that is over."""
    month, year = _month(match), context.today.year
    if month >= context.today.month:
        year -= 1
    return _in_years(str(year), month, None, context)


def _read_year(match: re.Match[str], _context: _Context) -> Iterator[Span]:
    yield _year(int(match["year"]))


def _read_ago(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read "two weeks ago"."""
    first, last = _around(_days_before(context.today, _count_days(match)), match)
    yield first, min(context.today, last)


def _read_ahead(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read "in two weeks"."""
    first, last = _around(_days_before(context.today, -_count_days(match)), match)
    yield max(context.today, first), last


def _read_past(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read "the last three weeks": from three weeks ago until today."""
    yield _days_before(context.today, _count_days(match)), context.today


def _read_last(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read "last week", "last weekend", "last month" and "last year", by the calendar."""
    today, unit = context.today, match[1].lower()
    monday = _days_before(today, today.weekday())
    if unit == "week":
        yield _days_before(monday, 7), _days_before(monday, 1)
    elif unit == "weekend":
        yield _days_before(monday, 2), _days_before(monday, 1)
    elif unit == "month":
        last = _days_before(today.replace(day=1), 1)
        yield last.replace(day=1), last
    else:
        yield _year(max(1, today.year - 1))


def _read_next(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read "next" with "week", "weekend", "month", "year", or the name of a weekday or month."""
    today, unit = context.today, match[1].lower()
    monday = _days_before(today, today.weekday() - 7)
    if unit == "week":
        yield monday, _days_before(monday, -6)
    elif unit == "weekend":
        yield _days_before(monday, -5), _days_before(monday, -6)
    elif unit == "month":
        first = _days_before(_end_of_month(today), -1)
        yield first, _end_of_month(first)
    elif unit == "year":
        yield _year(min(9999, today.year + 1))
    else:
        day = _days_before(today, (today.weekday() - _WEEKDAYS[unit]) % 7 - 7)
        yield day, day


def _read_this(match: re.Match[str], context: _Context) -> Iterator[Span]:
    today = context.today
    starts = {
        "week": _days_before(today, today.weekday()),
        "month": today.replace(day=1),
        "year": today.replace(month=1, day=1),
    }
    last = today
    if context.is_ahead:
        last = _days_before(next(_read_next(match, context))[0], 1)
    yield starts[match[1].lower()], last


def _read_weekday(match: re.Match[str], context: _Context) -> Iterator[Span]:
    """Read a weekday: the last one before today, or the first one after it."""
    if context.is_ahead and match[0].lower().startswith("on"):
        yield from _read_next(match, context)
        return
    days = (context.today.weekday() - _WEEKDAYS[match[1].lower()] - 1) % 7 + 1
    day = _days_before(context.today, days)
    yield day, day


def _days_back(first: int, last: int) -> Reader:
    """Return a function that yields the days from `first` to `last` days ago."""

    def read(_match: re.Match[str], context: _Context) -> Iterator[Span]:
        yield _days_before(context.today, first), _days_before(context.today, last)

    return read


def _month(match: re.Match[str]) -> int:
    name = match["month"]
    if name.isdigit():
        return int(name)
    return _MONTHS[name.lower()]


def _count_days(match: re.Match[str]) -> int:
    count = match["count"]
    number = int(count) if count.isdigit() else _NUMBERS[count.lower()]
    return number * _UNIT_DAYS[match["unit"].lower()]


def _year(number: int) -> Span:
    return date(number, 1, 1), date(number, 12, 31)


def _around(middle: date, match: re.Match[str]) -> Span:
    half_width = _HALF_WIDTH[match["unit"].lower()]
    return _days_before(middle, half_width), _days_before(middle, -half_width)


def _days_before(day: date, days: int) -> date:
    """Return a date `days` before another, limited to `date.min` and `date.max`."""
    return date.fromordinal(min(date.max.toordinal(), max(1, day.toordinal() - days)))


def _end_of_month(day: date) -> date:
    if day.month == 12:
        return date(day.year, 12, 31)
    return date(day.year, day.month + 1, 1) - timedelta(days=1)


# The patterns with their readers; the longer and more certain ones come first.
_READERS: tuple[tuple[str, Reader], ...] = (
    (rf"\b{_YEAR}[-/](?P<month>\d{{1,2}})[-/]{_DAY}(?!\d)", _read_date),
    (rf"(?<![\w.]){_DAY}\.(?P<month>\d{{1,2}})\.{_YEAR}\b", _read_date),
    (rf"\b{_NTH}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR}\b)?", _read_date),
    (rf"{_MONTH}\s+{_NTH}\b(?:,?\s+{_YEAR}\b)?", _read_date),
    (rf"{_MONTH},?\s+(?:of\s+)?{_YEAR}\b", _read_date),
    (rf"\b{_YEAR}-(?P<month>0[1-9]|1[0-2])(?![\d-])", _read_date),
    (rf"{_MONTH}\s+(?:of\s+)?(?P<which>last|this)\s+year\b", _read_month_of_year),
    (rf"\blast\s+{_MONTH}", _read_last_month),
    (rf"{_BEFORE_MONTH}[\s-]+{_MONTH}", _read_month),
    (rf"\b{_YEAR}\b", _read_year),
    (r"\bday before yesterday\b", _days_back(2, 2)),
    (r"\bday after tomorrow\b", _days_back(-2, -2)),
    (r"\b(?:yesterday|last night)\b", _days_back(1, 1)),
    (r"\b(?:today|tonight|this (?:morning|afternoon|evening))\b", _days_back(0, 0)),
    (rf"\b{_COUNT}\s+{_UNITS}\s+ago\b", _read_ago),
    (rf"\b(?:last|past|previous)\s+{_COUNT}\s+{_UNITS}\b", _read_past),
    (r"\b(?:last|past|previous)\s+(week|weekend|month|year)\b", _read_last),
    (r"\bthis\s+(week|month|year)\b", _read_this),
    (rf"\b(?:last|on|since|past)\s+({'|'.join(_WEEKDAYS)})\b", _read_weekday),
    (r"\btomorrow\b", _days_back(-1, -1)),
    (rf"\b(?:next|coming)\s+(week|weekend|month|year|{'|'.join(_WEEKDAYS)})\b", _read_next),
    (rf"\bin\s+{_COUNT}\s+{_UNITS}\b", _read_ahead),
    (r"\b(?:recently|lately|these days)\b", _days_back(_RECENT_DAYS, 0)),
)


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], Reader], ...]:
    # ASCII only; otherwise i would match İ, which no month's name contains.
    flags = re.IGNORECASE | re.ASCII
    return tuple((re.compile(pattern, flags), read) for pattern, read in _READERS)
