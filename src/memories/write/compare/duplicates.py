"""Whether a new text repeats an old one, corrects it, or says something else: decided by its words,
gated by vectors.

Vectors can't tell a correction from a repetition ("port 8080", "port 9090": cosine 0.98). So a text
is a duplicate only if every word of either text has a counterpart in the other, in an order that
means the same and with the same capitals. What `vocabulary` doesn't know counts as a difference: a
repetition that is stored costs a line, a correction that is dropped costs a fact.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import dropwhile, pairwise, product
from operator import not_
from typing import NamedTuple

from memories.write.compare.reading import CASED, Word, bare, is_shouted, quotations, read, tongues
from memories.write.compare.vocabulary import (
    BASE,
    BE,
    BOUNDARIES,
    COMPOUNDS,
    DATES,
    DETERMINERS,
    FREE_CASE,
    FRONTED,
    GROUP,
    LIGHT,
    NAMES_ALIKE,
    NEGATIONS,
    PAST_MARKS,
    SOFT,
    WHOLE,
)


class Verdict(StrEnum):
    """What a new text is, seen from an old one."""

    SAME = "same"
    DUPLICATE = "duplicate"
    CORRECTION = "correction"
    DIFFERENT = "different"


class Judgement(NamedTuple):
    """A verdict, and what differs: `numbers: 8080 -> 9090`, `negation: + not`, or nothing."""

    verdict: Verdict
    reason: str = ""


_LONG = 300  # words; nobody tells a longer text in another order, and looking for one takes seconds
_NAME = 3  # words of a name at most
_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?|q[1-4]|\d{1,2}:\d\d")
_STARTING = frozenset("we user all every each".split())
_JOINING = BOUNDARIES - {".", ","} | {"not", "nor", "instead"}
_VERSION = re.compile(r"v\d+|v?\d+\.\d+[\w.-]*")


def judge(
    new: str, old: str, similarity: float | None, *, threshold: float, told: bool = True
) -> Judgement:
    """Say what a new text is, seen from an old one.

    Args:
        new: The text that somebody wants to store.
        old: A text that is stored.
        similarity: The cosine of their vectors, or None where there are none.
        threshold: The cosine from which two texts may say the same; it belongs to the embedder.
        told: Tell corrections from what is different; else one may pass for the other, which takes
            a tenth of the time.

    Returns:
        `SAME` for texts that differ in spaces, quotes, final stops and the case of first letters
        only; `DUPLICATE` for similar texts without a difference; `CORRECTION` for similar texts
        with one, which `reason` names; `DIFFERENT` for all others. Without a similarity nothing is
        a correction, and a duplicate is what has no difference.
    """
    alike = bare(new) == bare(old)
    if not alike and similarity is not None and similarity < threshold:
        return Judgement(Verdict.DIFFERENT)  # most are; reading words takes a hundred times as long
    codes = tongues(new, old)
    if (not told or similarity is None) and _surely_differ(
        _weighed(new, codes), _weighed(old, codes)
    ):
        return Judgement(Verdict.DIFFERENT)
    (cut, ours), (other_cut, theirs) = read(new, codes), read(old, codes)
    marks = _case(cut, other_cut) or _layout(new, old) or _spacing(new, old)
    if not marks and alike and _spelled(ours) == _spelled(theirs):
        return Judgement(Verdict.SAME)
    reason = _told(*aligned(new, old)) or marks
    if not reason:
        return Judgement(Verdict.DUPLICATE)
    if similarity is None or not _share_script_pairs(new, old):
        return Judgement(Verdict.DIFFERENT)
    return Judgement(Verdict.CORRECTION, reason)


def same_lines(new: str, old: str) -> bool:
    """Say whether two texts have the same words, and, if they have several lines, the same lines
    with the same indents.

    This takes a moment where `judge` takes seconds: for texts of many thousand characters.
    """
    ours, theirs = _lines(new), _lines(old)
    if len(ours) > 1 or len(theirs) > 1:
        return ours == theirs
    return new.split() == old.split() and not _spacing(new, old)


def _spelled(words: Sequence[Word]) -> list[str]:
    return [word.key for word in words if word.key not in {".", ","}]


def _case(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Return the first word whose case differs, unless it opens a sentence, is a stop word, or all
    is in capitals.
    """
    if is_shouted(new) != is_shouted(old):
        return ""
    ours, theirs = _spellings(new), _spellings(old)
    for spelling in [spelling for spelling in ours if spelling in theirs]:
        one, other = ours[spelling], theirs[spelling]
        pairs = (
            zip(one, other, strict=True)
            if len(one) == len(other)
            else product(dict.fromkeys(one), dict.fromkeys(other))
        )
        for come, gone in pairs:
            free = come.opens or gone.opens
            if come.shown[free:] != gone.shown[free:]:
                return f"case: {gone.shown} -> {come.shown}"
    return ""


def _spellings(words: Sequence[Word]) -> dict[str, list[Word]]:
    """Return the words whose case counts, by how they are spelled."""
    spellings: dict[str, list[Word]] = {}
    for word in words:
        if (spelling := word.shown.lower()) not in FREE_CASE:
            spellings.setdefault(spelling, []).append(word)
    return spellings


def _layout(new: str, old: str) -> str:
    """Say whether lines are broken or indented in other ways, as counts in code, where a text has
    several lines.
    """
    ours, theirs = (_lines(text) for text in (new, old))
    if len(ours) == len(theirs) < 2:
        return ""
    if [indent for indent, _ in ours] != [indent for indent, _ in theirs]:
        return "layout"
    codes = tongues(new, old)
    pairs = (
        (one, other) for (_, one), (_, other) in zip(ours, theirs, strict=True) if one != other
    )
    return (
        "layout"
        if any(_difference(read(one, codes)[1], read(other, codes)[1]) for one, other in pairs)
        else ""
    )


def _lines(text: str) -> list[tuple[str, str]]:
    """Return the lines of a text, each cut into its indentation and the rest, without blank ones at
    either end.
    """
    lines = dropwhile(not_, (line.rstrip() for line in text.rstrip().splitlines()))
    return [(line[: len(line) - len(line.lstrip())], line.strip()) for line in lines]


def _spacing(new: str, old: str) -> str:
    """Say whether quotations that have the same words have other spaces."""
    ours, theirs = quotations(new), quotations(old)
    return (
        "spaces"
        if ours != theirs and [each.split() for each in ours] == [each.split() for each in theirs]
        else ""
    )


def _share_script_pairs(new: str, old: str) -> bool:
    """Say whether texts in scripts that an English model can't read share a third of their pairs of
    characters.
    """
    ours, theirs = bare(new), bare(old)
    if sum(character.isascii() for character in ours + theirs) * 2 > len(ours + theirs):
        return True
    one, other = ({text[i : i + 2] for i in range(len(text) - 1)} for text in (ours, theirs))
    return len(one & other) * 3 >= min(len(one), len(other))


def _difference(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Return what differs between two texts, or nothing if they say the same."""
    return _told(*align(new, old))


def _told(ours: Sequence[Word], theirs: Sequence[Word]) -> str:
    more, less = _unmatched(ours, theirs), _unmatched(theirs, ours)
    if more or less:
        return _describe(less, more)
    if _prepositions(ours) != _prepositions(theirs):
        return "words: prepositions"
    if _tenses_differ(ours, theirs):
        return "tense"
    if (
        change := _forms_differ(ours, theirs)
        or _number(ours, theirs)
        or _determiners_differ(ours, theirs)
    ):
        return change
    if not _orders(ours) & _orders(theirs):
        return "word order"
    return "comma" if _breaks(ours, theirs) or _breaks(theirs, ours) else ""


class _Weighed(NamedTuple):
    """The words of a text, without their order.

    Attributes:
        counts: How often it has each word of weight, by its key.
        meanings: What each word may mean, by its key.
        keys: The keys of the words that may mean something.
        compounds: The known compounds among them, which the other text may have in two words.
    """

    counts: frozenset[tuple[str, int]]
    meanings: Mapping[str, frozenset[str]]
    keys: Mapping[str, frozenset[str]]
    compounds: frozenset[str]


@functools.lru_cache(maxsize=256)
def _weighed(text: str, codes: Sequence[str]) -> _Weighed:
    words = read(text, codes)[1]
    meanings: dict[str, set[str]] = {}
    keys: dict[str, set[str]] = {}
    for word in words:
        meanings.setdefault(word.key, set()).update(_meanings(word))
    for key, some in meanings.items():
        for meaning in some:
            keys.setdefault(meaning, set()).add(key)
    return _Weighed(
        frozenset(Counter(word.key for word in words if _has_weight(word)).items()),
        {key: frozenset(some) for key, some in meanings.items()},
        {meaning: frozenset(some) for meaning, some in keys.items()},
        frozenset(
            key for key in meanings if key in COMPOUNDS or key.removesuffix("s") in COMPOUNDS
        ),
    )


def _surely_differ(ours: _Weighed, theirs: _Weighed) -> bool:
    """Say, without aligning them, whether a word of one text has no counterpart in the other; if
    not, it may.

    It has none where no other word of either text shares a meaning with it: then `align` leaves it
    as it is.
    """
    if ours.compounds != theirs.compounds:
        return False
    nothing: frozenset[str] = frozenset()
    for key in {key for key, _ in ours.counts ^ theirs.counts}:
        meanings = ours.meanings.get(key, nothing) | theirs.meanings.get(key, nothing)
        if all(
            each.keys.get(meaning, nothing) <= {key}
            for meaning in meanings
            for each in (ours, theirs)
        ):
            return True
    return False


def _joined(words: Sequence[Word], other: Sequence[Word]) -> list[Word]:
    """Write a known compound as one word where the other text does: time zone, timezone."""
    keys, wanted = {word.key for word in words}, {word.key for word in other}
    joined: list[Word] = []
    for word in words:
        whole = joined[-1].key + word.key if joined else ""
        if (
            whole in wanted
            and whole not in keys
            and (whole in COMPOUNDS or whole.removesuffix("s") in COMPOUNDS)
        ):
            joined[-1] = Word(whole, f"{joined[-1].shown} {word.shown}")
        else:
            joined.append(word)
    return joined


@functools.lru_cache(
    maxsize=1
)  # what is judged may also be a correction, which asks right afterwards
def aligned(new: str, old: str) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return the words of two texts as `align` does."""
    codes = tongues(new, old)
    return align(read(new, codes)[1], read(old, codes)[1])


def align(new: Sequence[Word], old: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    """Return the words of two texts so that inflections, synonyms and known compounds have one key
    in both.
    """
    new, old = _joined(new, old), _joined(old, new)
    chosen: dict[str, str] = {}
    aligned = []
    for word in (*new, *old):
        meanings = _meanings(word)
        key = next((chosen[meaning] for meaning in meanings if meaning in chosen), word.key)
        for meaning in meanings:
            chosen.setdefault(meaning, key)
        aligned.append(word if key == word.key else word._replace(key=key))
    return aligned[: len(new)], aligned[len(new) :]


@functools.lru_cache(maxsize=4_096)  # of two texts that are nearly equal most words are the same
def _meanings(word: Word) -> Sequence[str]:
    """Return the word, its possible base forms and their groups."""
    if word.key in LIGHT or word.key in SOFT or word.literal:
        return (word.key,)
    forms = [word.key] if word.exact else [word.key, *base_of(word.key)]
    groups = [GROUP[form] for form in forms if form in GROUP]
    named = word.exact and word.shown[:1].isupper()
    return (*forms, *(group for group in groups if not named or group in NAMES_ALIKE))


def base_of(key: str) -> list[str]:
    """Return what an English word may be an inflection of."""
    if key in BASE or len(key) < 4 or key in WHOLE or not key.isascii() or not key.isalpha():
        return [BASE[key]] if key in BASE else []
    if key.endswith(("ies", "ied")):
        return [f"{key[:-3]}y"]
    for ending in ("ing", "ed"):
        stem = key.removesuffix(ending)
        if stem != key and len(stem) > 1:
            return [
                *([stem] if len(stem) > 2 else []),
                f"{stem}e",
                *([stem[:-1]] if stem[-1] == stem[-2] else []),
            ]
    if key.endswith(("ses", "xes", "zes", "ches", "shes")):
        return [key[:-1], key[:-2]]
    if key.endswith("s") and not key.endswith(("ss", "us", "is")):
        return [key[:-1]]
    return []


def _unmatched(words: Sequence[Word], other: Sequence[Word]) -> list[Word]:
    """Return the words of weight that the other text has not, or not as often."""
    spare = Counter(word.key for word in other)
    unmatched = []
    for word in filter(_has_weight, words):
        if spare[word.key]:
            spare[word.key] -= 1
        else:
            unmatched.append(word)
    return unmatched


def _has_weight(word: Word) -> bool:
    return word.key not in LIGHT and word.key not in SOFT and word.key != "by"


def _prepositions(words: Sequence[Word]) -> Counter[str]:
    return Counter(word.key for word in words if word.key in SOFT)


def _written(words: Sequence[Word]) -> dict[str, list[tuple[str, int]]]:
    """Return how each word of weight was written, and where."""
    written: dict[str, list[tuple[str, int]]] = {}
    for i, word in enumerate(words):
        if word.key not in LIGHT and word.key not in SOFT and word.shown.isalpha():
            written.setdefault(word.key, []).append((word.shown.lower(), i))
    return written


def _forms_differ(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Return a participle that is an adjective or a noun in one text only: a trusted client, the
    running pod.
    """
    for words, other in ((new, old), (old, new)):
        theirs = _written(other)
        for key, places in _written(words).items():
            forms = [form for form, _ in theirs.get(key, ())]
            for form, i in places:
                before = {word.key for word in words[max(0, i - 2) : i]}
                noun = form.endswith("ing") and not before & BE
                if (noun or words[i].form == "adjective") and forms and form not in forms:
                    return (
                        f"form: {forms[0]} -> {form}"
                        if words is new
                        else f"form: {form} -> {forms[0]}"
                    )
    return ""


def _number(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Return a word that is plural in one text and singular in the other, unless that says nothing.

    It says nothing of a subject without a determiner whose verb changes with it (requests are, a
    request is), nor after "all" and "every".
    """
    ours, theirs = _written(new), _written(old)
    for key in [key for key in ours if key in theirs]:
        pairs = (
            zip(ours[key], theirs[key], strict=True) if len(ours[key]) == len(theirs[key]) else ()
        )
        for (come, i), (gone, j) in pairs or product(ours[key], theirs[key]):
            one, other = ((new, i), (old, j)) if len(come) > len(gone) else ((old, j), (new, i))
            plural, single = max(come, gone, key=len), min(come, gone, key=len)
            if plural[-1:] == "s" and single in base_of(plural) and not _is_general(one, other):
                return f"number: {gone} -> {come}"
    return ""


def _is_general(many: tuple[Sequence[Word], int], one: tuple[Sequence[Word], int]) -> bool:
    """Say whether a plural and a singular at these places mean the whole kind, or are the two forms
    of a verb.
    """
    (plural, i), (single, j) = many, one
    before, also_before = (
        [word.key for word in words[max(0, at - 2) : at]] for words, at in (many, one)
    )
    if GROUP["all"] in {GROUP.get(key) for key in before} and GROUP["all"] in {
        GROUP.get(key) for key in also_before
    }:
        return True
    if {*before, *also_before} & DETERMINERS:
        return False
    after, also_after = (
        words[at + 1] if at + 1 < len(words) else None for words, at in (many, one)
    )
    if (
        after is not None
        and also_after is not None
        and after.shown.lower() in {"are", "were", "have"}
    ):
        return also_after.shown.lower() in {"is", "was", "has"}
    # An "s" that moves from the subject to its verb: backups start, a backup starts.
    return _moved(after, also_after) or _moved(
        single[j - 1] if j else None, plural[i - 1] if i else None
    )


def _moved(base: Word | None, inflected: Word | None) -> bool:
    if base is None or inflected is None or base.key != inflected.key:
        return False
    return inflected.shown.lower() != base.shown.lower() and base.shown.lower() in base_of(
        inflected.shown.lower()
    )


def _determiners_differ(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Return a demonstrative that was exchanged, or the article of what something is: a manager,
    the manager.
    """
    for near, far in (("this", "that"), ("these", "those")):
        ours, theirs = ({word.key for word in words} & {near, far} for words in (new, old))
        if ours and theirs and not ours & theirs:
            return f"determiner: {theirs.pop()} -> {ours.pop()}"
    sides = [{b.key for a, b in pairwise(words) if a.key in BE} for words in (new, old)]
    ours, theirs = (keys & {"a", "an", "the"} for keys in sides)
    if ours and theirs and ("the" in ours) != ("the" in theirs):
        return f"determiner: {theirs.pop()} -> {ours.pop()}"
    return ""


def _breaks(words: Sequence[Word], other: Sequence[Word]) -> set[tuple[str, str]]:
    """Return the commas and stops of a text that tell more than the other text, each by the words
    around it.
    """
    fronted = next((i for i, word in enumerate(words) if word.key == ","), 0)
    first = words[0] if words else Word(".", ".")
    adjunct = (
        first.key in FRONTED or first.key in DATES or (fronted == 1 and first.key.endswith("ly"))
    )
    told = [word for i, word in enumerate(words) if not (adjunct and i == fronted)]
    colons = _around(
        [word for word in told if word.key not in {".", ","} or word.shown == ":"], {","}
    )
    return (
        _around(told, {".", ","}) - _around(other, {".", ","}) - (colons & _around(other, set(BE)))
    )


def _around(words: Sequence[Word], marks: set[str]) -> set[tuple[str, str]]:
    """Return the words of weight before and after each mark, but where a conjunction follows or
    nothing does.
    """
    pairs = set()
    for i, word in enumerate(words):
        if word.key in marks:
            left = next((other.key for other in reversed(words[:i]) if other.key not in LIGHT), "")
            right = next(
                (
                    other.key
                    for other in words[i + 1 :]
                    if other.key not in LIGHT or other.key in _JOINING
                ),
                "",
            )
            if left and right and right not in _JOINING:
                pairs.add((left, right))
    return pairs


def _tenses_differ(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Say whether one text tells as past what the other tells as present; participles may be
    either.
    """
    sides = [
        ({w.key for w in words} & PAST_MARKS, {w.key for w in words if w.form == "past"})
        for words in (new, old)
    ]
    (marks, pasts), (other_marks, other_pasts) = sides
    if bool(marks) != bool(other_marks) and not (pasts if other_marks else other_pasts):
        return True
    plain, other_plain = ({w.key for w in words if w.form == "plain"} for words in (new, old))
    return bool((pasts & other_plain) - plain or (other_pasts & plain) - other_plain)


def _orders(words: Sequence[Word]) -> set[tuple[str, ...]]:
    """Return the orders in which a text may be told: active, without a fronted adjunct, with an
    "is" turned round.
    """
    if len(words) > _LONG:
        return {
            tuple(f"{word.key} {word.form == 'passive'}" for word in words if word.key not in LIGHT)
        }
    listed = _with_sorted_pair(words)
    orders = set()
    for told in (listed, _unfronted(listed)):
        active = _active(told)
        orders.add(_keys(active))
        verbs = [i for i, word in enumerate(active) if word.key in {"is", "are"}]
        if len(verbs) == 1 and _names_one(active[: verbs[0]], active[verbs[0] + 1 :]):
            left, right = sorted((_keys(active[: verbs[0]]), _keys(active[verbs[0] :])))
            orders.add((*left, "|", *right))
    return orders


def _names_one(left: Sequence[Word], right: Sequence[Word]) -> bool:
    """Say whether a name is on one side of an "is", and on the other what only one thing is: the
    lead, my landlord.
    """
    for name, role in ((left, right), (right, left)):
        bare = [word for word in name if word.key not in {".", ","}]
        first = next((word.key for word in role), "")
        definite = first in DETERMINERS - {"a", "an", "'s"} or any(
            word.key == "'s" for word in role
        )
        plain = not any(
            word.key in DETERMINERS or word.key in SOFT or word.key == "not" for word in bare
        )
        if (
            plain
            and definite
            and 0 < len(bare) <= _NAME
            and "?" not in {word.key for word in (*left, *right)}
        ):
            return True
    return False


def _keys(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.key for word in words if word.key not in LIGHT)


def _with_sorted_pair(words: Sequence[Word]) -> list[Word]:
    """Put the two names of the only "A and B" into alphabetical order, where it is a whole subject
    or object.
    """
    told, ands = list(words), [i for i, word in enumerate(words) if word.key == "and"]
    length = len(told) - (bool(told) and told[-1].key == ".")
    if len(ands) != 1 or ands[0] not in {1, length - 2} or not 0 < ands[0] < length - 1:
        return told
    if any(word.key in {"respectively", ","} for word in told):
        return told
    pair = told[ands[0] - 1 : ands[0] + 2 : 2]
    if all(word.shown[:1].isupper() for word in pair):
        told[ands[0] - 1], told[ands[0] + 1] = sorted(pair, key=lambda word: word.key)
    return told


def _unfronted(words: Sequence[Word]) -> list[Word]:
    """Move an adjunct from the start of a sentence to its end: on Fridays we deploy, we deploy on
    Fridays.
    """
    told = [word for i, word in enumerate(words) if word.key != "." or i < len(words) - 1]
    if not told or told[0].key not in FRONTED or any(word.key == "." for word in told):
        return told
    commas = [i for i, word in enumerate(told) if word.key == ","]
    starts = [
        i
        for i, word in enumerate(told)
        if i > 1 and (word.key in DETERMINERS or word.key in _STARTING)
    ]
    dates = [i + 1 for i, word in enumerate(told[:3]) if word.key in DATES or word.key.isdigit()]
    at = min(commas[:1] or dates[-1:] or starts[:1] or [0])
    return told[at:] + told[:at]


def _active(words: Sequence[Word]) -> list[Word]:
    """Tell passives as actives: "A is managed by B" as "B manages A", so that "A manages" and "A is
    managed" differ.
    """
    told = list(words)
    while (
        at := next((i for i, word in enumerate(told) if word.form == "passive"), None)
    ) is not None:
        start = max((i + 1 for i in range(at) if told[i].key in BOUNDARIES), default=0)
        end = next((i for i in range(at, len(told)) if told[i].key in BOUNDARIES), len(told))
        rest = told[at + 1 : end]
        by = next((i for i, word in enumerate(rest) if word.key == "by"), len(rest))
        last = next((i for i in range(by + 1, len(rest)) if rest[i].key in SOFT), len(rest))
        agent, rest = rest[by + 1 : last], rest[:by] + rest[last:]
        told[start:end] = [*agent, told[at]._replace(form="active"), *told[start:at], *rest]
    return told


def _describe(less: Sequence[Word], more: Sequence[Word]) -> str:
    """Name the most telling difference: what the old text had alone, and what the new one has
    alone.
    """
    for kind, belongs in _KINDS:
        gone, come = ([word for word in words if belongs(word)] for words in (less, more))
        if gone or come:
            return f"{kind}: {_change(gone or less, come or more)}"
    return f"words: {_change(less, more)}"


def _change(less: Sequence[Word], more: Sequence[Word]) -> str:
    gone, come = (" ".join(word.shown for word in words[:6]) for words in (less, more))
    if gone and come:
        return f"{gone} -> {come}"
    return f"+ {come}" if come else f"- {gone}"


def is_value(word: Word) -> bool:
    """Return whether a word is a number, a date, a version, a path or an identifier, or a
    preposition beside one.
    """
    return (
        word.key in SOFT
        or any(belongs(word) for _, belongs in _VALUES)
        or any(map(str.isdigit, word.key))
    )


def _is_number(word: Word) -> bool:
    return (
        word.key[:1].isdigit()
        or word.key.lstrip("+-<>=$€£~").replace(".", "").replace(",", "").isdigit()
    )


def _is_name(word: Word) -> bool:
    named = word.exact and (not word.literal or word.shown[:1].isupper())
    return named and word.shown[:1].isalpha() and " " not in word.shown


_KINDS: tuple[tuple[str, Callable[[Word], bool]], ...] = (
    ("negation", lambda word: word.key in NEGATIONS or word.sense == "not"),
    (
        "date",
        lambda word: (
            word.key in DATES or word.sense in DATES or bool(_DATE.fullmatch(word.key.lower()))
        ),
    ),
    ("version", lambda word: bool(_VERSION.fullmatch(word.key))),
    ("numbers", _is_number),
    ("path", lambda word: bool(CASED.search(word.key))),
    ("name", _is_name),
)
_VALUES = tuple(kind for kind in _KINDS if kind[0] in {"date", "version", "numbers", "path"})
