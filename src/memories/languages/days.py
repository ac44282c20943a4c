"""Days as other languages name them, said in English: what `dates` reads. Pure.

"vor zwei Wochen", "il y a deux semaines", "2週間前" all become "2 weeks ago", where they stand. So how
a date is counted is decided in one place, and a language is only words.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memories.languages import MONTHS, UNSPACED, WEEKDAYS, folded, numbers_in_figures, of, words

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
_LONGEST = 2_000  # characters that are read
# of the signs that stand for what was read, so that no other pattern reads it again
_FIRST = 0xE000

_FIGURES = "figures"
_PARTED = re.compile(r"[\s_-]+")

_Say = Callable[[re.Match[str]], str]


class _Reading(NamedTuple):
    """A way to name a day: a pattern, what it is in English, and the lines of which a text must
    have an entry each.
    """

    pattern: str
    say: _Say
    needs: Sequence[str]


def in_english(text: str) -> str:
    """Return a text with the days that it names said in English, each between full stops; the rest
    is as it was.

    A text in English, or without a day that is known, is returned as it is.
    """
    said = text
    for code in of(text):
        said = _said(said, code)
    return said


def meant(text: str) -> str:
    """Return in English the day that a text is, with nothing beside it but function words; empty if
    it is none.
    """
    said, *parts = in_english(text).split(" . ")
    function_words = {word for code in of(text) for word in words(code)["stop"]}
    days = [part for part in parts[::2] if part.strip()]
    beside = {word for part in (said, *parts[1::2]) for word in part.split()}
    return days[0] if len(days) == 1 and beside <= function_words else ""


def asks_when(text: str) -> bool:
    """Return whether a question in another language than English asks for a time."""
    told = folded(text[:_LONGEST])
    return any(bool(_when(code).search(told)) for code in of(text))


def _said(text: str, code: str) -> str:
    told = folded(text[:_LONGEST])
    held = {line for line, hints in _hints(code).items() if any(hint in told for hint in hints)}
    found: list[str] = []

    def keep(say: _Say, match: re.Match[str]) -> str:
        found.append(say(match))
        return chr(_FIRST + len(found) - 1)

    for reading in _readings(code):
        if held.issuperset(reading.needs):
            told = _compiled(_whole(code, reading.pattern)).sub(
                functools.partial(keep, reading.say), told
            )
    spelled = {_FIRST + at: f" . {english} . " for at, english in enumerate(found)}
    return told.translate(spelled) if found else text


@functools.cache
def _hints(code: str) -> Mapping[str, Sequence[str]]:
    """Return for each line what a text has one of if it meets an entry, so that few patterns are
    compiled at all.
    """
    hints: dict[str, Sequence[str]] = {_FIGURES: tuple("0123456789")}
    for line, entries in words(code).items():
        names = [name.strip("~") for entry in entries for name in entry.split("|")]
        parts = (
            [part for part in re.split(r"[_=*]", name) if part not in ("n", "u")] for name in names
        )
        hints[line] = tuple({part[0] for part in parts if part and part[0] != "-"})
    return hints


@functools.cache
def _when(code: str) -> re.Pattern[str]:
    return re.compile(_whole(code, _any(code, words(code)["when"])))


@functools.lru_cache(256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _whole(code: str, pattern: str) -> str:
    """Return a pattern for whole words, behind glued prefixes where the language has them."""
    return pattern if code in UNSPACED else rf"(?<!\w){_glued(code)}(?:{pattern})(?!\w)"


def _glued(code: str) -> str:
    prefixes = sorted(words(code).get("glued", ()), key=len, reverse=True)
    return f"(?:{'|'.join(prefixes)})?" if prefixes else ""


def _any(code: str, entries: Sequence[str]) -> str:
    """Return a pattern for any of some entries, the longest first; one that nothing meets for
    none.
    """
    known = sorted(
        (entry.strip("~").split("=")[0] for entry in entries if entry != "-"), key=len, reverse=True
    )
    gap = r"\s*" if code in UNSPACED else r"[\s-]+"
    spelled = (re.escape(entry).replace("_", gap).replace(r"\*", r"\w*") for entry in known)
    return f"(?:{'|'.join(spelled)})" if known else r"(?!)"


def _named(code: str, line: str, *, alone: bool = False) -> str:
    """Return a pattern for the names of months or weekdays; alone, without those that are other
    words too.
    """
    names = [name for entry in words(code)[line] for name in entry.split("|")]
    return _any(code, [name for name in names if not (alone and name.startswith("~"))])


@functools.cache
def _places(code: str, line: str) -> Mapping[str, int]:
    """Return which month or weekday a name is, or the beginning of a name before `*`."""
    places: dict[str, int] = {}
    for at, entry in enumerate(words(code)[line]):
        places |= {_PARTED.sub("", name.strip("~")): at for name in entry.split("|")}
    return places


def _place(code: str, line: str, written: str) -> int:
    places, name = _places(code, line), _PARTED.sub("", written)
    if name in places:
        return places[name]
    return next(
        at for stem, at in places.items() if stem.endswith("*") and name.startswith(stem[:-1])
    )


@functools.cache
def _readings(code: str) -> Sequence[_Reading]:
    """Return what a language says of days, what is longer and more certain first."""
    return (
        *_numeric(code),
        *_dates(code),
        *_sided_weekdays(code),
        *_counted(code),
        *_near(code),
        *_alone(code),
    )


def _gap(code: str) -> str:
    return r"\s*" if code in UNSPACED else r"\s+"


def _near(code: str) -> Iterator[_Reading]:
    """Yield yesterday and the like, and last, next and this week, month or year."""
    known, gap = words(code), _gap(code)
    for line in ("before", "after"):
        yield _Reading(_any(code, known[line]), _saying(_SIMPLE[line]), (line,))
    for span in _SPANS:
        unit = _any(code, known[span])
        for which in ("last", "next", "this"):
            special, say = f"{which} {span}", _saying(f"{which} {span}")
            side = _any(code, known[which])
            if special in known:
                yield _Reading(_any(code, known[special]), say, (special,))
            yield _Reading(f"{side}{gap}{unit}|{unit}{gap}{side}", say, (which, span))
    for line in ("none", "yesterday", "today", "tomorrow", "recently"):
        yield _Reading(_any(code, known.get(line, ())), _saying(_SIMPLE[line]), (line,))


def _alone(code: str) -> Iterator[_Reading]:
    """Yield a weekday or a month by itself, but for what is so each week."""
    name = _named(code, "weekdays", alone=True)
    every = f"{_any(code, words(code)['every'])}{_gap(code)}{name}"
    yield _Reading(every, _saying(""), ("every", "weekdays"))
    weekday = f"(?P<w>{name})"
    yield _Reading(
        weekday, lambda match: f"on {WEEKDAYS[_place(code, 'weekdays', match['w'])]}", ("weekdays",)
    )
    month = rf"(?<!\d)(?P<m>{_named(code, 'months', alone=True)})"
    yield _Reading(
        month, lambda match: f"in {_MONTHS[_place(code, 'months', match['m'])]}", ("months",)
    )


def _saying(english: str) -> _Say:
    return lambda _match: english


def _numeric(code: str) -> Iterator[_Reading]:
    """Yield dates in figures: 7.5.2023, 7/5/2023, 2023年5月7日; in Chinese signs, too: 五月七日."""
    if code not in {"zh", "ja", "ko"}:
        date = rf"(?<!\d)(\d{{1,2}})([./-])\s?(\d{{1,2}})\2\s?{_YEAR}"
        yield _Reading(date, lambda match: f"{match['y']}-{match[3]}-{match[1]}", (_FIGURES,))
        return
    year = rf"{_YEAR}\s*(?:年|년)\s*"
    month = r"(?P<m>1[012]|0?[1-9]|十[一二]?|[一二三四五六七八九])\s*(?:月|월)\s*"
    day = r"(?P<d>\d{1,2}|[二三]?十[一二三四五六七八九]?|[一二三四五六七八九])\s*(?:日|號|号|일)"

    def said(form: str) -> _Say:
        def say(match: re.Match[str]) -> str:
            told = {name: numbers_in_figures(value) for name, value in match.groupdict().items()}
            return form.format(month=_MONTHS[int(told["m"]) - 1], **told)

        return say

    yield _Reading(f"{year}{month}{day}", said("{d} {month} {y}"), (_FIGURES, "year", "month"))
    yield _Reading(f"{year}{month}", said("{month} {y}"), (_FIGURES, "year", "month"))
    yield _Reading(rf"(?<![\d十]){month}{day}", said("{d} {month}"), ("month",))
    yield _Reading(year, lambda match: match["y"], (_FIGURES, "year"))


def _dates(code: str) -> Iterator[_Reading]:
    """Yield days of a month and months of a year: 3. Mai 2023, mayo del año pasado, geçen mayıs."""
    known, gap = words(code), _gap(code)
    joined = rf"(?:{_any(code, known.get('of', ()))}\s*)?"
    year, last = _any(code, known["year"]), _any(code, known["last"])
    last_year = f"(?:{_any(code, known.get('last year', ()))}|{last}{gap}{year}|{year}{gap}{last})"
    article = _OF if code in UNSPACED else r"(?:\w{1,4}['\s]\s*){0,2}"
    name = rf"(?<!\d){_glued(code)}(?P<m>{_named(code, 'months')})"
    day = rf"(?<!\d)(?P<d>\d{{1,2}})(?:\.|º|°|ª|o|er|go|-\w{{1,2}})?\s*{joined}{name}"
    of_last_year = "last year" if "last year" in known else "year"

    def said(form: str) -> _Say:
        return lambda match: form.format(
            month=_MONTHS[_place(code, "months", match["m"])], **match.groupdict()
        )

    yield _Reading(rf"{day}[\s,]*{joined}{_YEAR}", said("{d} {month} {y}"), (_FIGURES, "months"))
    yield _Reading(day, said("{d} {month}"), (_FIGURES, "months"))
    yield _Reading(rf"{name}[\s,]*{joined}{_YEAR}", said("{month} {y}"), (_FIGURES, "months"))
    for pattern in (f"{name}{gap}{article}{last_year}", f"{last_year}{gap}{article}{name}"):
        yield _Reading(pattern, said("{month} of last year"), ("months", of_last_year))
    for pattern in (f"{last}{gap}{name}", f"{name}{gap}{last}"):
        yield _Reading(pattern, said("last {month}"), ("months", "last"))


def _sided_weekdays(code: str) -> Iterator[_Reading]:
    """Yield last and next Monday, in some languages the Monday of last week."""
    name, gap = f"(?P<w>{_named(code, 'weekdays')})", _gap(code)
    week = (
        rf"(?:{_any(code, words(code)['week'])}{gap}{_OF}\s*)?" if code in {*UNSPACED, "vi"} else ""
    )

    def said(which: str) -> _Say:
        return lambda match: f"{which} {WEEKDAYS[_place(code, 'weekdays', match['w'])]}"

    for which in ("last", "next"):
        side = _any(code, words(code)[which])
        for pattern in (f"{side}{gap}{week}{name}", f"{name}{gap}{week}{side}"):
            yield _Reading(pattern, said(which), ("weekdays", which))


def _counted(code: str) -> Iterator[_Reading]:
    """Yield what is counted from today: two weeks ago, the last three days, in a month."""
    known = words(code)
    units = {entry.split("=")[0]: unit for unit in _UNITS for entry in known[unit]}
    counts = dict(
        entry.split("=") for unit in _UNITS for entry in known[unit] if "=" in entry
    )  # "two days", one word
    numbers, values = _numbers(code)
    parts = {"n": f"(?P<n>{numbers})", "u": f"(?P<u>{_any(code, tuple(units))})"}

    def said(english: str) -> _Say:
        def say(match: re.Match[str]) -> str:
            unit = match["u"]
            number = match.groupdict().get("n") or counts.get(unit, "1")
            return english.format(f"{values.get(number, number)} {units[unit]}s")

        return say

    for line, english in _COUNTED.items():
        for template in sorted(known[line], key=len, reverse=True):
            spelled = _gap(code).join(
                parts.get(part, re.escape(part)) for part in template.split("_")
            )
            yield _Reading(spelled, said(english), (line,))


def _numbers(code: str) -> tuple[str, Mapping[str, str]]:
    """Return a pattern for numbers in figures and words, and what the words mean."""
    values: dict[str, str] = {}
    for number, entry in enumerate(words(code)["numbers"]):
        values |= {word.replace("_", " "): str(number) for word in entry.split("|") if number}
    values |= dict.fromkeys(words(code)["a"], "1")
    values |= {word.replace("_", " "): "few" for word in words(code)["few"]}
    values.pop("-", None)
    return (
        rf"(?<!\d)\d{{1,3}}|{'|'.join(map(re.escape, sorted(values, key=len, reverse=True)))}",
        values,
    )
