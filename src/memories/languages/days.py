"""Translates the dates in a text in another language into English, which `dates` reads.

For example, "2 weeks ago" replaces "vor zwei Wochen", "il y a deux semaines" and "2週間前". So only
one module computes dates, and a new language needs only words.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from memories.languages import (
    MONTHS,
    NUMBERS,
    UNSPACED,
    WEEKDAYS,
    detect,
    fold,
    numbers_in_figures,
    words,
)

_MONTHS = [name.title() for name in MONTHS]  # with a capital, "May" is a month
_SPANS = ("weekend", "week", "month", "year")
_UNITS = ("day", "week", "month", "year")
_SIMPLE = {
    "before": "day before yesterday",
    "after": "day after tomorrow",
    "none": "",
    "yesterday": "yesterday",
    "today": "today",
    "tomorrow": "tomorrow",
    "recently": "recently",
}
_COUNTED = {"ago": "{span} ago", "past": "last {span}", "ahead": "in {span}"}
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_OF = "(?:的|の|의)?"
_MAX_READ = 2_000  # maximum number of characters that are read
_FIRST_MARK = 0xE000  # first of the characters that stand for translated parts
_FIGURES = "figures"
_SEPARATOR = re.compile(r"[\s_-]+")


class _Reading(NamedTuple):
    """A way to name a day.

    Attributes:
        pattern: Matches it.
        form: The English for a match, with fields for its parts; see `_fill`.
        needs: Names of lines in the language's file; a match contains an entry from each line.
    """

    pattern: str
    form: str
    needs: Sequence[str]


def in_english(text: str) -> str:
    """Translate the dates in a text into English, and put them between full stops.

    The full stops separate the dates from the rest of the text, which isn't translated. A text in
    English, or without a known date, is returned unchanged.
    """
    translated = text
    for code in detect(text):
        translated = _translate_days(translated, code)
    return translated


def single_day(text: str) -> str:
    """Return the English for a text that contains only one date and function words; empty for other
    texts.
    """
    before, *parts = in_english(text).split(" . ")
    days = [part for part in parts[::2] if part.strip()]
    other_words = " ".join((before, *parts[1::2])).split()
    function_words: set[str] = set()
    for code in detect(text):
        function_words.update(words(code)["stop"])
    if len(days) == 1 and function_words.issuperset(other_words):
        return days[0]
    return ""


def asks_when(text: str) -> bool:
    """Return whether a question in a language other than English asks when something happened or
    will happen.
    """
    folded = fold(text[:_MAX_READ])
    return any(_when(code).search(folded) for code in detect(text))


def _translate_days(text: str, code: str) -> str:
    folded = fold(text[:_MAX_READ])
    lines = {line for line, hints in _hints(code).items() if any(hint in folded for hint in hints)}
    translations: list[str] = []

    def mark(form: str, match: re.Match[str]) -> str:
        translations.append(_fill(form, code, match))
        return chr(_FIRST_MARK + len(translations) - 1)

    for reading in _readings(code):
        if lines.issuperset(reading.needs):
            pattern = _whole_words(code, reading.pattern)
            folded = re.sub(pattern, functools.partial(mark, reading.form), folded)
    if not translations:
        return text
    marks = enumerate(translations, _FIRST_MARK)
    return folded.translate({sign: f" . {english} . " for sign, english in marks})


def _fill(form: str, code: str, match: re.Match[str]) -> str:
    """Return the English for a match: the form, with the parts of the match in its fields."""
    parts = match.groupdict()
    if "day" in parts:
        parts["day"] = numbers_in_figures(parts["day"])
    if "month_number" in parts:
        parts["month"] = _MONTHS[int(numbers_in_figures(parts["month_number"])) - 1]
    if "month_name" in parts:
        parts["month"] = _MONTHS[_number_of_name(code, "months", parts["month_name"])]
    if "weekday_name" in parts:
        parts["weekday"] = WEEKDAYS[_number_of_name(code, "weekdays", parts["weekday_name"])]
    if "unit" in parts:
        unit, count = _units(code)[parts["unit"]]
        count = parts.get("count") or count
        parts["span"] = f"{_number_words(code).get(count, count)} {unit}s"
    return form.format(**parts)


@functools.cache
def _hints(code: str) -> Mapping[str, Sequence[str]]:
    """Return hints for each line; every match contains at least one hint of its line.

    A text without such a hint can't match, so the pattern isn't compiled for it.
    """
    hints: dict[str, Sequence[str]] = {_FIGURES: tuple("0123456789")}
    for line, entries in words(code).items():
        beginnings: set[str] = set()
        for name in "|".join(entries).split("|"):
            parts = [part for part in re.split(r"[_=*]", name.strip("~")) if part not in "nu"]
            if parts and parts[0] != "-":
                beginnings.add(parts[0])
        hints[line] = tuple(beginnings)
    return hints


@functools.cache
def _when(code: str) -> re.Pattern[str]:
    return re.compile(_whole_words(code, _any_of(code, words(code)["when"])))


def _whole_words(code: str, pattern: str) -> str:
    """Return a pattern that matches only whole words, even after a prefix that the language
    attaches to words. For a language without spaces, return the pattern unchanged.
    """
    if code in UNSPACED:
        return pattern
    return rf"(?<!\w){_prefixes(code)}(?:{pattern})(?!\w)"


def _prefixes(code: str) -> str:
    prefixes = sorted(words(code).get("glued", ()), key=len, reverse=True)
    if prefixes:
        return f"(?:{'|'.join(prefixes)})?"
    return ""


def _any_of(code: str, entries: Sequence[str]) -> str:
    """Return a pattern for any of the entries, longest first; without entries, it never matches."""
    names = [entry.strip("~").split("=")[0] for entry in entries if entry != "-"]
    if not names:
        return r"(?!)"
    gap = r"\s*" if code in UNSPACED else r"[\s-]+"
    names.sort(key=len, reverse=True)
    patterns = [re.escape(name).replace("_", gap).replace(r"\*", r"\w*") for name in names]
    return f"(?:{'|'.join(patterns)})"


def _any_name(code: str, line: str, *, is_alone: bool = False) -> str:
    """Return a pattern for the names of months or weekdays.

    With `is_alone`, the pattern is for a name that isn't part of a longer date, so names that are
    also ordinary words (Portuguese "segunda", Turkish "ocak") are left out.
    """
    names = "|".join(words(code)[line]).split("|")
    if is_alone:
        names = [name for name in names if not name.startswith("~")]
    return _any_of(code, names)


@functools.cache
def _numbers_of_names(code: str, line: str) -> Mapping[str, int]:
    """Return the number of each month or weekday, counted from 0; a `*` in a name stands for any
    ending.
    """
    numbers: dict[str, int] = {}
    for number, entry in enumerate(words(code)[line]):
        for name in entry.split("|"):
            numbers[_SEPARATOR.sub("", name.strip("~"))] = number
    return numbers


def _number_of_name(code: str, line: str, matched: str) -> int:
    numbers, name = _numbers_of_names(code, line), _SEPARATOR.sub("", matched)
    if name in numbers:
        return numbers[name]
    stems = [stem for stem in numbers if stem.endswith("*") and name.startswith(stem[:-1])]
    return numbers[stems[0]]


@functools.cache
def _readings(code: str) -> Sequence[_Reading]:
    """Return the ways to name days in a language, longer and more certain ones first."""
    return (
        *_numeric_dates(code),
        *_dates(code),
        *_last_and_next_weekdays(code),
        *_counted_days(code),
        *_near_days(code),
        *_names_alone(code),
    )


def _gap(code: str) -> str:
    return r"\s*" if code in UNSPACED else r"\s+"


def _near_days(code: str) -> Iterator[_Reading]:
    """Yield words such as "yesterday", and phrases such as "last week" and "this month"."""
    lines, gap = words(code), _gap(code)
    for line in ("before", "after"):
        yield _Reading(_any_of(code, lines[line]), _SIMPLE[line], (line,))
    for span in _SPANS:
        unit = _any_of(code, lines[span])
        for which in ("last", "next", "this"):
            phrase = f"{which} {span}"
            if phrase in lines:
                yield _Reading(_any_of(code, lines[phrase]), phrase, (phrase,))
            side = _any_of(code, lines[which])
            yield _Reading(f"{side}{gap}{unit}|{unit}{gap}{side}", phrase, (which, span))
    for line in ("none", "yesterday", "today", "tomorrow", "recently"):
        yield _Reading(_any_of(code, lines.get(line, ())), _SIMPLE[line], (line,))


def _names_alone(code: str) -> Iterator[_Reading]:
    """Yield single weekdays and months, and phrases such as "every Monday", which are not dates."""
    weekday = _any_name(code, "weekdays", is_alone=True)
    every = _any_of(code, words(code)["every"])
    yield _Reading(f"{every}{_gap(code)}{weekday}", "", ("every", "weekdays"))
    yield _Reading(f"(?P<weekday_name>{weekday})", "on {weekday}", ("weekdays",))
    month = _any_name(code, "months", is_alone=True)
    yield _Reading(rf"(?<!\d)(?P<month_name>{month})", "in {month}", ("months",))


def _numeric_dates(code: str) -> Iterator[_Reading]:
    """Yield dates in digits (7.5.2023, 7/5/2023, 2023年5月7日) or Chinese characters (五月七日)."""
    if code not in {"zh", "ja", "ko"}:
        date = r"(?<!\d)(?P<day>\d{1,2})(?P<sign>[./-])\s?(?P<figures>\d{1,2})(?P=sign)\s?"
        yield _Reading(f"{date}{_YEAR}", "{year}-{figures}-{day}", (_FIGURES,))
        return
    year = rf"{_YEAR}\s*(?:年|년)\s*"
    month = r"(?P<month_number>1[012]|0?[1-9]|十[一二]?|[一二三四五六七八九])\s*(?:月|월)\s*"
    day = (
        r"(?P<day>\d{1,2}|[二三]?十[一二三四五六七八九]?|[一二三四五六七八九])"
        r"\s*(?:日|號|号|일)"
    )
    yield _Reading(f"{year}{month}{day}", "{day} {month} {year}", (_FIGURES, "year", "month"))
    yield _Reading(f"{year}{month}", "{month} {year}", (_FIGURES, "year", "month"))
    yield _Reading(rf"(?<![\d十]){month}{day}", "{day} {month}", ("month",))
    yield _Reading(year, "{year}", (_FIGURES, "year"))


def _dates(code: str) -> Iterator[_Reading]:
    """Yield days of a month and months of a year: 3. Mai 2023, mayo del año pasado, geçen mayıs."""
    lines, gap = words(code), _gap(code)
    of = rf"(?:{_any_of(code, lines.get('of', ()))}\s*)?"
    year, last = _any_of(code, lines["year"]), _any_of(code, lines["last"])
    special = _any_of(code, lines.get("last year", ()))
    last_year = f"(?:{special}|{last}{gap}{year}|{year}{gap}{last})"
    article = _OF if code in UNSPACED else r"(?:\w{1,4}['\s]\s*){0,2}"
    month = rf"(?<!\d){_prefixes(code)}(?P<month_name>{_any_name(code, 'months')})"
    day = rf"(?<!\d)(?P<day>\d{{1,2}})(?:\.|º|°|ª|o|er|go|-\w{{1,2}})?\s*{of}{month}"
    last_year_line = "last year" if "last year" in lines else "year"

    yield _Reading(rf"{day}[\s,]*{of}{_YEAR}", "{day} {month} {year}", (_FIGURES, "months"))
    yield _Reading(day, "{day} {month}", (_FIGURES, "months"))
    yield _Reading(rf"{month}[\s,]*{of}{_YEAR}", "{month} {year}", (_FIGURES, "months"))
    for pattern in (f"{month}{gap}{article}{last_year}", f"{last_year}{gap}{article}{month}"):
        yield _Reading(pattern, "{month} of last year", ("months", last_year_line))
    for pattern in (f"{last}{gap}{month}", f"{month}{gap}{last}"):
        yield _Reading(pattern, "last {month}", ("months", "last"))


def _last_and_next_weekdays(code: str) -> Iterator[_Reading]:
    """Yield "last Monday" and "next Monday", and in some languages "the Monday of last week"."""
    weekday, gap = f"(?P<weekday_name>{_any_name(code, 'weekdays')})", _gap(code)
    week = ""
    if code in {*UNSPACED, "vi"}:
        week = rf"(?:{_any_of(code, words(code)['week'])}{gap}{_OF}\s*)?"
    for which in ("last", "next"):
        side = _any_of(code, words(code)[which])
        for pattern in (f"{side}{gap}{week}{weekday}", f"{weekday}{gap}{week}{side}"):
            yield _Reading(pattern, f"{which} {{weekday}}", ("weekdays", which))


def _counted_days(code: str) -> Iterator[_Reading]:
    """Yield days counted from today: two weeks ago, the last three days, in a month."""
    lines = words(code)
    names = sorted(_number_words(code), key=len, reverse=True)
    count = "|".join((r"(?<!\d)\d{1,3}", *map(re.escape, names)))
    unit = _any_of(code, tuple(_units(code)))
    parts = {"n": f"(?P<count>{count})", "u": f"(?P<unit>{unit})"}
    for line, form in _COUNTED.items():
        for template in sorted(lines[line], key=len, reverse=True):
            patterns = [parts.get(part, re.escape(part)) for part in template.split("_")]
            yield _Reading(_gap(code).join(patterns), form, (line,))


@functools.cache
def _units(code: str) -> Mapping[str, tuple[str, str]]:
    """Map each word for a time span to its unit and the number of units, usually 1."""
    units: dict[str, tuple[str, str]] = {}
    for unit in _UNITS:
        for entry in words(code)[unit]:
            name, _, count = entry.partition("=")
            units[name] = unit, count or "1"
    return units


@functools.cache
def _number_words(code: str) -> Mapping[str, str]:
    """Return the number for each number word in a language."""
    numbers: dict[str, str] = {}
    for number, entry in zip(NUMBERS[1:], words(code)["numbers"][1:], strict=False):
        numbers.update(dict.fromkeys(entry.replace("_", " ").split("|"), number))
    numbers.update(dict.fromkeys(words(code)["a"], "1"))
    numbers.update({word.replace("_", " "): "few" for word in words(code)["few"]})
    numbers.pop("-", None)
    return numbers
