"""Finds grammatical differences between texts with the same words, and rewrites constructions.

The differences are in tense, number, articles and commas. Constructions that mean the same thing
("Dana's manager is Max", "Max is the manager of Dana") are rewritten into one form.

`constructions.txt` lists the constructions and explains their notation.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple, TypeVar

from memories.write.compare.vocabulary import (
    ACTIONS,
    AGENTS,
    BASE,
    BE,
    BOUNDARIES,
    COMMON_VERBS,
    DATES,
    DETERMINERS,
    FREE,
    FRONTED,
    GROUP,
    LIGHT,
    MODALS,
    NEGATIONS,
    PAST_MARKS,
    PLACES,
    PROGRAMS,
    SOFT,
    WEEKDAYS,
    WHOLE,
    Word,
    keys_of,
)

_T = TypeVar("_T")
_MARKS = frozenset(".,")
_END = Word(".", ".")
_ADJUNCTS = PLACES | {"@when", "during"}  # a comma before one of these makes no difference
_ARTICLES = (["a"], ["an"])
_DUTIES = frozenset("must shall should can has".split())
_PARTICIPLE = re.compile(r"ge(\w{3,}t)|(\w{3,})ée?s?")  # a German or French participle
_JOINING = BOUNDARIES - {".", ","} | {"not", "nor", "instead"}
_SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_LASTING = frozenset({"after", "for", "within"})  # "after an hour" means "after one hour"
_LONG = 60  # maximum number of words in a text that is rewritten
_VERBS = COMMON_VERBS | ACTIONS
_VERBS |= {GROUP[verb] for verb in _VERBS if verb in GROUP}
_SPLITTING = BE | BOUNDARIES | NEGATIONS | MODALS | {"?", "@has"}
_PREPOSITIONS = (SOFT | PLACES | {"to", "by", "from", "using", "@when", "@there", "@on"}) - {"of"}


def pair_words(new: Sequence[_T], old: Sequence[_T]) -> Iterable[tuple[_T, _T]]:
    """Return the pairs of items at the same positions in two lists.

    If the lengths differ, return every possible pair.
    """
    if len(new) == len(old):
        return zip(new, old, strict=True)
    return product(dict.fromkeys(new), dict.fromkeys(old))


def forms_of(key: str) -> list[str]:
    """Return an English word and its possible base forms."""
    return [key, *base_of(key)]


def base_of(key: str) -> list[str]:
    """Return the possible base forms of an English word."""
    if key in BASE:
        return [BASE[key]]
    if participle := _PARTICIPLE.fullmatch(key):
        stem = f"{participle[2]}e"
        return [participle[1]] if participle[1] else [stem, stem.replace("é", "è")]
    if len(key) < 4 or key in WHOLE or not key.isascii() or not key.isalpha():
        return []
    if key.endswith(("ies", "ied")):
        return [f"{key[:-3]}y"]
    for ending in ("ing", "ed"):
        stem = key.removesuffix(ending)
        if stem != key and len(stem) > 1:
            bases = [stem] if len(stem) > 2 else []
            bases.append(f"{stem}e")
            if stem[-1] == stem[-2]:
                bases.append(stem[:-1])
            return bases
    return _singulars(key)


def _singulars(key: str) -> list[str]:
    if key.endswith(("ses", "xes", "zes", "ches", "shes")):
        return [key[:-1], key[:-2]]
    if key.endswith("s") and not key.endswith(("ss", "us", "is")):
        return [key[:-1]]
    return []


def differ_in_tense(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Return whether one text is in the past tense and the other in the present. A participle is
    compatible with either.
    """
    new_pasts, old_pasts = _keys_with_form(new, "past"), _keys_with_form(old, "past")
    new_is_past = not PAST_MARKS.isdisjoint(keys_of(new))
    old_is_past = not PAST_MARKS.isdisjoint(keys_of(old))
    if new_is_past and not old_is_past and not old_pasts:
        return True
    if old_is_past and not new_is_past and not new_pasts:
        return True
    for pasts, other in ((new_pasts, old), (old_pasts, new)):
        keys = keys_of(other)
        is_present = "by" in keys and (PAST_MARKS | {"been"}).isdisjoint(keys)
        if is_present and pasts & _keys_with_form(other, "passive"):
            return True  # "Anna wrote it", "it is written by Anna"
    new_plain, old_plain = _keys_with_form(new, "plain"), _keys_with_form(old, "plain")
    return bool((new_pasts & old_plain) - new_plain or (old_pasts & new_plain) - old_plain)


def _keys_with_form(words: Sequence[Word], form: str) -> set[str]:
    return {word.key for word in words if word.form == form}


def _by_key(words: Sequence[Word]) -> dict[str, list[tuple[str, int]]]:
    """Return the spellings and positions of the meaningful words, keyed by `Word.key`."""
    written: dict[str, list[tuple[str, int]]] = {}
    for i, word in enumerate(words):
        is_free = word.form == FREE or word.key in LIGHT or word.key in SOFT
        if not is_free and word.shown.isalpha():
            written.setdefault(word.key, []).append((word.shown.lower(), i))
    return written


def describe_form(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Describe a participle that is an adjective or a noun in only one of the texts, as in "a
    trusted client" and "the running pod".
    """
    for words, other in ((new, old), (old, new)):
        other_written = _by_key(other)
        for key, places in _by_key(words).items():
            other_forms = [form for form, _ in other_written.get(key, ())]
            for form, i in places:
                before = keys_of(words[max(0, i - 2) : i])
                is_noun = form.endswith("ing") and BE.isdisjoint(before)
                is_noun = is_noun and f"{form}s" not in other_forms  # meeting, meetings
                is_changed = bool(other_forms) and form not in other_forms
                if is_changed and (is_noun or words[i].form == "adjective"):
                    other_form = other_forms[0]
                    if words is new:
                        return f"form: {other_form} -> {form}"
                    return f"form: {form} -> {other_form}"
    return ""


def describe_number(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Describe a word that is plural in one text and singular in the other, if the difference
    matters.

    It doesn't matter after "all" and "every", or if the word is a generic subject and the verb
    changes too (requests are, a request is; a user needs, users need).
    """
    new_written, old_written = _by_key(new), _by_key(old)
    for key, new_places in new_written.items():
        for (added, i), (removed, j) in pair_words(new_places, old_written.get(key, [])):
            plural, single = removed, added
            many, one = _neighbours(old, j), _neighbours(new, i)
            if len(added) > len(removed):
                plural, single, many, one = single, plural, one, many
            is_plural = plural[-1:] == "s" and single in base_of(plural)
            is_verb = "passive" in {new[i].form, old[j].form}  # as in "is run by" and "runs"
            if is_plural and not is_verb and not (_is_general(many, one) or _agrees(many, one)):
                return f"number: {removed} -> {added}"
    return ""


class _Neighbours(NamedTuple):
    """The neighbours of a word: all words before it in its sentence, and the next word after it."""

    before: Sequence[Word]
    after: Word


def _neighbours(words: Sequence[Word], i: int) -> _Neighbours:
    keys = keys_of(words[:i])
    start = max((at + 1 for at, key in enumerate(keys) if key in _MARKS), default=0)
    return _Neighbours(words[start:i], next(iter(words[i + 1 : i + 2]), _END))


def _is_general(plural: _Neighbours, single: _Neighbours) -> bool:
    """Return whether a plural and a singular with these neighbours are both generic."""
    every = GROUP["all"]
    plural_keys, keys = keys_of(plural.before), keys_of(single.before)
    many, one = plural_keys[-2:], keys[-2:]
    if every in map(GROUP.get, many) and every in map(GROUP.get, one):
        return True
    plural_verb, verb = plural.after.shown.lower(), single.after.shown.lower()
    if keys[:1] in _ARTICLES and (verb in _DUTIES or plural_verb in base_of(verb)):
        return DETERMINERS.isdisjoint([*plural_keys, *keys[1:]])
    if not DETERMINERS.isdisjoint([*many, *one]):
        return False
    return plural_verb in {"are", "were", "have"} and verb in {"is", "was", "has"}


def _agrees(plural: _Neighbours, single: _Neighbours) -> bool:
    """Return whether two forms of a word are verbs that agree with their subjects: "a user needs",
    "users need".

    Args:
        plural: The neighbours of the form with the ending -s.
        single: The neighbours of the form without the ending.
    """
    if not (plural.before and single.before):
        return False
    subject, subjects = plural.before[-1], single.before[-1]
    return subject.key == subjects.key and subject.shown.lower() in base_of(subjects.shown.lower())


def describe_determiner(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Describe a replaced demonstrative, or a changed article in a predicate: "a manager", "the
    manager".
    """
    for near, far in (("this", "that"), ("these", "those")):
        pair = {near, far}
        added, removed = pair.intersection(keys_of(new)), pair.intersection(keys_of(old))
        if added and removed and not added & removed:
            return f"determiner: {removed.pop()} -> {added.pop()}"
    added, removed = _articles_after_be(new), _articles_after_be(old)
    if added and removed and ("the" in added) != ("the" in removed):
        return f"determiner: {removed.pop()} -> {added.pop()}"
    return ""


def _articles_after_be(words: Sequence[Word]) -> set[str]:
    pairs = pairwise(keys_of(words))
    return {key for previous, key in pairs if previous in BE and key in {"a", "an", "the"}}


def find_breaks(words: Sequence[Word], other: Sequence[Word]) -> set[tuple[str, str]]:
    """Return the commas and stops that only the first text contains, each as the words before and
    after it.
    """
    keys = keys_of(words)
    first = keys[0] if keys else "."
    comma = keys.index(",") if "," in keys else 0
    is_adverb = comma == 1 and first.endswith("ly")
    if first in FRONTED or first in DATES or is_adverb:
        words = [*words[:comma], *words[comma + 1 :]]
    with_colons = [word for word in words if word.key not in _MARKS or word.shown == ":"]
    colons = _around(with_colons, {","}) & _around(other, BE)
    return _around(words, _MARKS) - _around(other, _MARKS) - colons


def _around(words: Sequence[Word], marks: frozenset[str] | set[str]) -> set[tuple[str, str]]:
    """Return the meaningful words before and after each of these punctuation marks. A mark at the
    end or before a conjunction is left out.
    """
    pairs = set()
    left = ""
    for i, word in enumerate(words):
        if word.key in marks and left:
            after = keys_of(words[i + 1 :])
            right = next((key for key in after if key not in LIGHT or key in _JOINING), "")
            if right and right not in _JOINING and not (i > 1 and after[0] in _ADJUNCTS):
                pairs.add((left, right))
        if word.key not in LIGHT:
            left = word.key
    return pairs


# --- constructions that mean the same thing


class _Construction(NamedTuple):
    """A construction: the pattern that recognizes it, and the form that replaces it.

    Attributes:
        parts: The left side of the construction's line in constructions.txt.
        needed: Sets of words. A text with the construction contains at least one word of each set.
        form: The right side of the construction's line.
    """

    parts: Sequence[str]
    needed: Sequence[frozenset[str]]
    form: Sequence[str]


@functools.lru_cache(maxsize=256)  # cached, since the same text is compared often
def rewrite(words: Sequence[Word]) -> Sequence[Word]:
    """Return a text's words with each known construction and each time span rewritten into its
    standard form.
    """
    if len(words) > _LONG:
        return words
    words = _convert_units(words)
    keys = {*keys_of(words)}
    for construction in _read_constructions():
        if not any(map(keys.isdisjoint, construction.needed)):
            words = _apply(construction, words)
            keys = {*keys_of(words)}
    return words


def _convert_units(words: Sequence[Word]) -> Sequence[Word]:
    """Convert time spans such as "two weeks" and "14 days" to seconds."""
    if _SECONDS.keys().isdisjoint(word.key.removesuffix("s") for word in words):
        return words
    converted = list(words)
    for i, word in enumerate(words):
        seconds = _SECONDS.get(word.key.removesuffix("s"))
        number = words[i - 1]
        count = number.key
        if count in {"a", "an"} and i > 1 and words[i - 2].key in _LASTING:
            count = "1"
        if seconds and i and count.isdigit():
            total = int(count) * seconds
            converted[i - 1] = number._replace(key=str(total))
            converted[i] = word._replace(key="second")
    return tuple(converted)


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
    """Return the words that fill a part of a construction's form."""
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
    """Return whether words may be a verb or the name of an action."""
    word = words[0]
    is_name = word.exact and word.is_capitalized and not word.opens
    if word.literal or is_name or word.key in DATES:
        return False
    if word.key.endswith("ing"):
        return True
    forms = forms_of(word.key)
    return any(form in _VERBS or GROUP.get(form) in _VERBS for form in forms)


def _is_imperative(words: Sequence[Word]) -> bool:
    word = words[0]
    is_base = base_of(word.key) in ([], [word.key])
    return word.key in _VERBS and not word.key.endswith("s") and is_base


def _is_name(words: Sequence[Word]) -> bool:
    return all(word.is_capitalized for word in words)


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


# --- constructions.txt

# The words that fit each kind of slot.
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
    "rate": frozenset({"second", "minute"}),
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
    """Return the character that stands for a word when patterns are matched."""
    if key in _SPLITTING:
        return _SPLITS
    return _PREPOSITION if key in _PREPOSITIONS else _OTHER


@functools.cache  # compiled when needed, since few constructions occur
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
