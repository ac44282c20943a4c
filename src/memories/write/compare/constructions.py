"""Rewrites constructions that say the same into one form, for comparison: "Dana's manager is Max",
"Max is the manager of Dana".

`constructions.txt` has the constructions, and explains how they are written.
"""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from memories.write.compare.grammar import base_of, forms_of
from memories.write.compare.vocabulary import (
    ACTIONS,
    AGENTS,
    BE,
    BOUNDARIES,
    COMMON_VERBS,
    DATES,
    DETERMINERS,
    GROUP,
    MODALS,
    NEGATIONS,
    PLACES,
    PROGRAMS,
    SOFT,
    WEEKDAYS,
)
from memories.write.compare.words import FREE, Word, keys_of

_LONG = 60  # number of words; longer texts aren't rewritten
_VERBS = COMMON_VERBS | ACTIONS | {GROUP[verb] for verb in COMMON_VERBS if verb in GROUP}
_SPLITTING = BE | BOUNDARIES | NEGATIONS | MODALS | {"?", "@has"}
_PREPOSITIONS = (SOFT | PLACES | {"to", "by", "from", "using", "@when", "@there", "@on"}) - {"of"}


class _Construction(NamedTuple):
    """A construction: the pattern that recognizes it, and the form that replaces it.

    Attributes:
        parts: The left side of its line in the file.
        needed: Sets of words; a text with the construction contains a word of each set.
        form: The right side.
    """

    parts: Sequence[str]
    needed: Sequence[frozenset[str]]
    form: Sequence[str]


@functools.lru_cache(maxsize=256)  # the same text is judged often
def rewrite(words: Sequence[Word]) -> Sequence[Word]:
    """Return the words of a text with each known construction in its one form."""
    if len(words) > _LONG:
        return words
    keys = {*keys_of(words)}
    for construction in _read_constructions():
        if not any(map(keys.isdisjoint, construction.needed)):
            words = _apply(construction, words)
            keys = {*keys_of(words)}
    return words


def _apply(construction: _Construction, words: Sequence[Word]) -> Sequence[Word]:
    text = "".join(f"{_mark(key)}{key} " for key in keys_of(words))
    rewritten: list[Word] = []
    end = 0
    for match in _compile_pattern(construction.parts).finditer(text):
        slots = {
            name: words[text.count(" ", 0, match.start(name)) : text.count(" ", 0, match.end(name))]
            for name in match.groupdict()
        }
        if all(_CHECKS[name](slot) for name, slot in slots.items() if name in _CHECKS):
            rewritten += words[end : text.count(" ", 0, match.start())]
            for part in construction.form:
                rewritten += _fill(part, slots)
            end = text.count(" ", 0, match.end())
    if end:
        return (*rewritten, *words[end:])
    return words


def _fill(part: str, slots: dict[str, Sequence[Word]]) -> Sequence[Word]:
    """Return the words that replace a part of a construction's form."""
    name = part.strip("<>!")
    if name in {"days", "days2"}:
        days = slots[name.replace("days", "day")]
        return [Word(f"{word.key}s", f"{word.shown}s", exact=True) for word in days]
    if name not in slots:
        return [Word(part, part, form=FREE)]
    if not part.endswith("!"):
        return slots[name]
    *modifiers, head = slots[name]
    return [*modifiers, head._replace(form=FREE, exact=False, literal=False)]


def _is_action(words: Sequence[Word]) -> bool:
    """Return whether a word may be a verb, or the name of an action."""
    word = words[0]
    if (
        word.literal
        or word.key in DATES
        or (word.exact and word.shown[:1].isupper() and not word.opens)
    ):
        return False
    return word.key.endswith("ing") or any(
        form in _VERBS or GROUP.get(form) in _VERBS for form in forms_of(word.key)
    )


def _is_imperative(words: Sequence[Word]) -> bool:
    word = words[0]
    return word.key in _VERBS and not word.key.endswith("s") and not base_of(word.key)


def _is_name(words: Sequence[Word]) -> bool:
    return all(word.shown[:1].isupper() for word in words)


def _is_prose(words: Sequence[Word]) -> bool:
    return not words[0].literal


def _is_program(words: Sequence[Word]) -> bool:
    return words[0].key in PROGRAMS


_CHECKS = {
    "D": _is_action,
    "imperative": _is_imperative,
    "name": _is_name,
    "program": _is_program,
    "V": _is_prose,
}


# --- the file

# The words that each kind of slot can stand for.
_CLASSES = {
    "in": PLACES | {"@when", "@there", "every"},
    "day": WEEKDAYS | frozenset("mon tue tues wed thu thurs fri sat sun".split()),
    "place": frozenset(
        "@in im am @an auf unter bei à au aux en dans sur chez in @a al nella em @no no na".split()
    ),
    "work": frozenset({"in", "at", "for"}),
    "starting": frozenset("start starts begin begins like likes enjoy enjoys".split()),
    "adverb": frozenset({"never", "always"}),
    "agent": AGENTS,
    "wish": frozenset("want wants prefer prefers like likes".split()),
    "before": frozenset("before after when while".split()),
    "duty": frozenset({"must", "should", "may", "can"}),
}
_CLASSES["day2"] = _CLASSES["day"]


@functools.cache
def _read_constructions() -> Sequence[_Construction]:
    text = Path(__file__).with_name("constructions.txt").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    constructions = []
    for row in rows:
        left, right = row.split(" => ")
        parts = tuple(left.split())
        needed = [words for part in parts if (words := _words_of(part))]
        constructions.append(_Construction(parts, needed, right.split()))
    return constructions


def _words_of(part: str) -> frozenset[str]:
    """Return the words that a part of a construction matches; empty for slots, anchors and `~`
    parts.
    """
    if part in _ANCHORS or part in _SLOTS or part.startswith("~"):
        return frozenset()
    return _CLASSES[part.strip("<>")] if part.startswith("<") else frozenset(part.split("|"))


def _mark(key: str) -> str:
    """Return the sign that marks a word's kind in the text that patterns are matched against."""
    if key in _SPLITTING:
        return _SPLITS
    return _PREPOSITION if key in _PREPOSITIONS else _OTHER


@functools.cache  # few constructions occur in the texts of a command
def _compile_pattern(parts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("(?<![^ ])" + "".join(map(_express, parts)))


def _express(part: str) -> str:
    """Return the regular expression for a part of a construction."""
    if part in _ANCHORS:
        return _ANCHORS[part]
    if part.startswith("~"):
        return "".join(f"(?<![{_SIGNS}]{re.escape(word)} )" for word in part[1:].split("|"))
    if part in _SLOTS:
        return f"(?P<{part.strip('<>')}>{_SLOTS[part]})"
    words = _any_of(_words_of(part))
    if part.startswith("<"):
        return f"(?P<{part.strip('<>')}>{words})"
    return words


def _any_of(words: frozenset[str]) -> str:
    return f"[{_SIGNS}](?:{'|'.join(map(re.escape, sorted(words)))}) "


_SPLITS, _PREPOSITION, _OTHER = "!", "^", "~"
_SIGNS = "!~^"
_WORD = "[~^][^ ]+ "
_NOUN = "(?:~[^ ]+ ){1,6}?"
_ANCHORS = {"^": "(?:^|(?<=![.] ))", "^,": "(?:^|(?<=![.,] ))", "$": "(?=![.] |$)"}
_ANCHORS["%"] = f"(?!(?:(?!![.] )[^ ]+ )*!(?:{'|'.join(sorted(BE | MODALS))}) )"
_SLOTS = {
    "A": _NOUN,
    "B": _NOUN,
    "C": _NOUN,
    "N": "(?:~(?!of )[^ ]+ ){1,6}?",
    "D": _WORD,
    "V": _WORD,
    "Z": f"(?:{_WORD})+",
    "<the>": f"(?:{_any_of(DETERMINERS - {'a', 'an'})})?",
    "<a>": f"(?:{_any_of(frozenset({'a', 'an', 'the', 'our'}))})?",
    "<number>": rf"[{_SIGNS}]\d[^ ]* ",
    "<imperative>": _WORD,
    "<name>": _NOUN,
    "<program>": _NOUN,
}
