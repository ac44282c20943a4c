"""Translates the days in a text of another language into English, which `dates` reads.

"vor zwei Wochen", "il y a deux semaines" and "2週間前" all become "2 weeks ago" in their place. So the
arithmetic of dates is in one module, and a language is only words.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memories.languages import (
    MONTHS,
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
_COUNTED = {"ago": "{} ago", "past": "last {}", "ahead": "in {}"}
_YEAR = r"(?P<y>(?:19|20)\d\d)"
_OF = "(?:的|の|의)?"
_MAX_READ = 2_000  # characters
_FIRST_MARK = 0xE000  # of the signs that replace translated parts, so that no other pattern matches
_FIGURES = "figures"
_SEPARATOR = re.compile(r"[\s_-]+")

_Translate = Callable[[re.Match[str]], str]


class _Reading(NamedTuple):
    """A way to name a day.

    Attributes:
        pattern: Matches it.
        translate: Returns the English of a match.
        needs: Lines of the language; a match has an entry of each.
    """

    pattern: str
    translate: _Translate
    needs: Sequence[str]


def in_english(text: str) -> str:
    """Return a text with its days in English, each between full stops, and the rest unchanged.

    A text in English, or without a known day, is returned unchanged.
    """
    translated = text
    for code in detect(text):
        translated = _translate_days(translated, code)
    return translated


def single_day(text: str) -> str:
    """Return the English of a text that is one day and function words; empty for other texts."""
    before, *parts = in_english(text).split(" . ")
    days = [part for part in parts[::2] if part.strip()]
    other_words = {word for part in (before, *parts[1::2]) for word in part.split()}
    function_words = {word for code in detect(text) for word in words(code)["stop"]}
    return days[0] if len(days) == 1 and other_words <= function_words else ""


def asks_when(text: str) -> bool:
    """Return whether a question in another language than English asks for a time."""
    folded = fold(text[:_MAX_READ])
    return any(_when(code).search(folded) for code in detect(text))


def _translate_days(text: str, code: str) -> str:
    folded = fold(text[:_MAX_READ])
    lines = {line for line, hints in _hints(code).items() if any(hint in folded for hint in hints)}
    translations: list[str] = []

    def mark(translate: _Translate, match: re.Match[str]) -> str:
        translations.append(translate(match))
        return chr(_FIRST_MARK + len(translations) - 1)

    for reading in _readings(code):
        if lines.issuperset(reading.needs):
            pattern = _compile(_whole_words(code, reading.pattern))
            folded = pattern.sub(functools.partial(mark, reading.translate), folded)
    if not translations:
        return text
    marks = enumerate(translations, _FIRST_MARK)
    return folded.translate({sign: f" . {english} . " for sign, english in marks})


@functools.cache
def _hints(code: str) -> Mapping[str, Sequence[str]]:
    """Return, for each line, texts that a match contains: one of them at least.

    They show which patterns can match, so that few are compiled at all.
    """
    hints: dict[str, Sequence[str]] = {_FIGURES: tuple("0123456789")}
    for line, entries in words(code).items():
        beginnings: set[str] = set()
        for entry in entries:
            for name in entry.split("|"):
                parts = [part for part in re.split(r"[_=*]", name.strip("~")) if part not in "nu"]
                if parts and parts[0] != "-":
                    beginnings.add(parts[0])
        hints[line] = tuple(beginnings)
    return hints


@functools.cache
def _when(code: str) -> re.Pattern[str]:
    return re.compile(_whole_words(code, _any_of(code, words(code)["when"])))


@functools.lru_cache(256)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _whole_words(code: str, pattern: str) -> str:
    """Return a pattern that matches only whole words, with attached prefixes if there are some."""
    return pattern if code in UNSPACED else rf"(?<!\w){_prefixes(code)}(?:{pattern})(?!\w)"


def _prefixes(code: str) -> str:
    prefixes = sorted(words(code).get("glued", ()), key=len, reverse=True)
    return f"(?:{'|'.join(prefixes)})?" if prefixes else ""


def _any_of(code: str, entries: Sequence[str]) -> str:
    """Return a pattern for any of some entries, the longest first; without entries, for nothing."""
    names = [entry.strip("~").split("=")[0] for entry in entries if entry != "-"]
    if not names:
        return r"(?!)"
    gap = r"\s*" if code in UNSPACED else r"[\s-]+"
    names.sort(key=len, reverse=True)
    patterns = [re.escape(name).replace("_", gap).replace(r"\*", r"\w*") for name in names]
    return f"(?:{'|'.join(patterns)})"


def _any_name(code: str, line: str, *, is_alone: bool = False) -> str:
    """Return a pattern for the names of months or weekdays.

    If the name is alone, names that are other words too are left out.
    """
    names = [name for entry in words(code)[line] for name in entry.split("|")]
    return _any_of(code, [name for name in names if not (is_alone and name.startswith("~"))])


@functools.cache
def _numbers_of_names(code: str, line: str) -> Mapping[str, int]:
    """Return the number of each month or weekday from 0; a `*` in a name stands for any ending."""
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


def _month(code: str, match: re.Match[str]) -> str:
    return _MONTHS[_number_of_name(code, "months", match["m"])]


def _weekday(code: str, match: re.Match[str]) -> str:
    return WEEKDAYS[_number_of_name(code, "weekdays", match["w"])]


@functools.cache
def _readings(code: str) -> Sequence[_Reading]:
    """Return the ways of a language to name days, longer and more certain ones first."""
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


def _always(english: str) -> _Translate:
    return lambda _match: english


def _near_days(code: str) -> Iterator[_Reading]:
    """Yield yesterday and the like, and last, next and this week, month or year."""
    lines, gap = words(code), _gap(code)
    for line in ("before", "after"):
        yield _Reading(_any_of(code, lines[line]), _always(_SIMPLE[line]), (line,))
    for span in _SPANS:
        unit = _any_of(code, lines[span])
        for which in ("last", "next", "this"):
            phrase = f"{which} {span}"
            if phrase in lines:
                yield _Reading(_any_of(code, lines[phrase]), _always(phrase), (phrase,))
            side = _any_of(code, lines[which])
            pattern = f"{side}{gap}{unit}|{unit}{gap}{side}"
            yield _Reading(pattern, _always(phrase), (which, span))
    for line in ("none", "yesterday", "today", "tomorrow", "recently"):
        yield _Reading(_any_of(code, lines.get(line, ())), _always(_SIMPLE[line]), (line,))


def _names_alone(code: str) -> Iterator[_Reading]:
    """Yield a weekday or a month by itself, and repeated weekdays, which are not dates."""
    weekday = _any_name(code, "weekdays", is_alone=True)
    every = f"{_any_of(code, words(code)['every'])}{_gap(code)}{weekday}"
    yield _Reading(every, _always(""), ("every", "weekdays"))
    yield _Reading(f"(?P<w>{weekday})", lambda match: f"on {_weekday(code, match)}", ("weekdays",))
    month = _any_name(code, "months", is_alone=True)
    yield _Reading(
        rf"(?<!\d)(?P<m>{month})", lambda match: f"in {_month(code, match)}", ("months",)
    )


def _numeric_dates(code: str) -> Iterator[_Reading]:
    """Yield dates in figures: 7.5.2023, 7/5/2023, 2023年5月7日; and in Chinese signs: 五月七日."""
    if code not in {"zh", "ja", "ko"}:
        date = rf"(?<!\d)(\d{{1,2}})([./-])\s?(\d{{1,2}})\2\s?{_YEAR}"
        yield _Reading(date, lambda match: f"{match['y']}-{match[3]}-{match[1]}", (_FIGURES,))
        return
    year = rf"{_YEAR}\s*(?:年|년)\s*"
    month = r"(?P<m>1[012]|0?[1-9]|十[一二]?|[一二三四五六七八九])\s*(?:月|월)\s*"
    day = r"(?P<d>\d{1,2}|[二三]?十[一二三四五六七八九]?|[一二三四五六七八九])\s*(?:日|號|号|일)"

    def in_form(form: str) -> _Translate:
        def translate(match: re.Match[str]) -> str:
            parts = {name: numbers_in_figures(part) for name, part in match.groupdict().items()}
            return form.format(month=_MONTHS[int(parts["m"]) - 1], **parts)

        return translate

    yield _Reading(f"{year}{month}{day}", in_form("{d} {month} {y}"), (_FIGURES, "year", "month"))
    yield _Reading(f"{year}{month}", in_form("{month} {y}"), (_FIGURES, "year", "month"))
    yield _Reading(rf"(?<![\d十]){month}{day}", in_form("{d} {month}"), ("month",))
    yield _Reading(year, lambda match: match["y"], (_FIGURES, "year"))


def _dates(code: str) -> Iterator[_Reading]:
    """Yield days of a month and months of a year: 3. Mai 2023, mayo del año pasado, geçen mayıs."""
    lines, gap = words(code), _gap(code)
    of = rf"(?:{_any_of(code, lines.get('of', ()))}\s*)?"
    year, last = _any_of(code, lines["year"]), _any_of(code, lines["last"])
    special = _any_of(code, lines.get("last year", ()))
    last_year = f"(?:{special}|{last}{gap}{year}|{year}{gap}{last})"
    article = _OF if code in UNSPACED else r"(?:\w{1,4}['\s]\s*){0,2}"
    month = rf"(?<!\d){_prefixes(code)}(?P<m>{_any_name(code, 'months')})"
    day = rf"(?<!\d)(?P<d>\d{{1,2}})(?:\.|º|°|ª|o|er|go|-\w{{1,2}})?\s*{of}{month}"
    last_year_line = "last year" if "last year" in lines else "year"

    def in_form(form: str) -> _Translate:
        return lambda match: form.format(month=_month(code, match), **match.groupdict())

    yield _Reading(rf"{day}[\s,]*{of}{_YEAR}", in_form("{d} {month} {y}"), (_FIGURES, "months"))
    yield _Reading(day, in_form("{d} {month}"), (_FIGURES, "months"))
    yield _Reading(rf"{month}[\s,]*{of}{_YEAR}", in_form("{month} {y}"), (_FIGURES, "months"))
    for pattern in (f"{month}{gap}{article}{last_year}", f"{last_year}{gap}{article}{month}"):
        yield _Reading(pattern, in_form("{month} of last year"), ("months", last_year_line))
    for pattern in (f"{last}{gap}{month}", f"{month}{gap}{last}"):
        yield _Reading(pattern, in_form("last {month}"), ("months", "last"))


def _last_and_next_weekdays(code: str) -> Iterator[_Reading]:
    """Yield last and next Monday, in some languages the Monday of last week."""
    weekday, gap = f"(?P<w>{_any_name(code, 'weekdays')})", _gap(code)
    week = ""
    if code in {*UNSPACED, "vi"}:
        week = rf"(?:{_any_of(code, words(code)['week'])}{gap}{_OF}\s*)?"

    def with_side(which: str) -> _Translate:
        return lambda match: f"{which} {_weekday(code, match)}"

    for which in ("last", "next"):
        side = _any_of(code, words(code)[which])
        for pattern in (f"{side}{gap}{week}{weekday}", f"{weekday}{gap}{week}{side}"):
            yield _Reading(pattern, with_side(which), ("weekdays", which))


def _counted_days(code: str) -> Iterator[_Reading]:
    """Yield days that are counted from today: two weeks ago, the last three days, in a month."""
    lines = words(code)
    units: dict[str, str] = {}
    counts: dict[str, str] = {}  # of units that contain a number: "two days" as one word
    for unit in _UNITS:
        for entry in lines[unit]:
            name, equals, count = entry.partition("=")
            units[name] = unit
            if equals:
                counts[name] = count
    numbers, values = _number_words(code)
    parts = {"n": f"(?P<n>{numbers})", "u": f"(?P<u>{_any_of(code, tuple(units))})"}

    def in_form(form: str) -> _Translate:
        def translate(match: re.Match[str]) -> str:
            unit = match["u"]
            number = match.groupdict().get("n") or counts.get(unit, "1")
            return form.format(f"{values.get(number, number)} {units[unit]}s")

        return translate

    for line, form in _COUNTED.items():
        for template in sorted(lines[line], key=len, reverse=True):
            patterns = [parts.get(part, re.escape(part)) for part in template.split("_")]
            yield _Reading(_gap(code).join(patterns), in_form(form), (line,))


def _number_words(code: str) -> tuple[str, Mapping[str, str]]:
    """Return a pattern for numbers in figures and words, and the numbers of the words."""
    values: dict[str, str] = {}
    for number, entry in enumerate(words(code)["numbers"]):
        if number:
            names = entry.replace("_", " ").split("|")
            values.update(dict.fromkeys(names, str(number)))
    values.update(dict.fromkeys(words(code)["a"], "1"))
    values.update({word.replace("_", " "): "few" for word in words(code)["few"]})
    values.pop("-", None)
    names = sorted(values, key=len, reverse=True)
    return rf"(?<!\d)\d{{1,3}}|{'|'.join(map(re.escape, names))}", values
