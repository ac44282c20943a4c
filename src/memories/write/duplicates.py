"""Whether a new text repeats an old one, corrects it, or says something else: decided by its words, gated by vectors.

Vectors can't tell a correction from a repetition ("port 8080", "port 9090": cosine 0.98). So a text is a duplicate only
if every word of either text has a counterpart in the other, in an order that means the same and with the same capitals.
What `vocabulary` doesn't know counts as a difference: a repetition that is stored costs a line, a correction that is
dropped costs a fact.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import product
from typing import NamedTuple

from memories.write.reading import CASED, Word, bare, is_shouted, read
from memories.write.vocabulary import (
    BASE,
    BOUNDARIES,
    DATES,
    DETERMINERS,
    FREE_CASE,
    FRONTED,
    GROUP,
    LIGHT,
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
_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?|q[1-4]|\d{1,2}:\d\d")
_VERSION = re.compile(r"v\d+|v?\d+\.\d+[\w.-]*")


def judge(new: str, old: str, similarity: float | None, *, threshold: float) -> Judgement:
    """Say what a new text is, seen from an old one.

    Args:
        new: The text that somebody wants to store.
        old: A text that is stored.
        similarity: The cosine of their vectors, or None where there are none.
        threshold: The cosine from which two texts may say the same; it belongs to the embedder.

    Returns:
        `SAME` for texts that differ in spaces, quotes, final stops and the case of first letters only; `DUPLICATE` for
        similar texts without a difference; `CORRECTION` for similar texts with one, which `reason` names; `DIFFERENT`
        for all others. Without a similarity nothing is a correction, and a duplicate is what has no difference.
    """
    alike = bare(new) == bare(old)
    if not alike and similarity is not None and similarity < threshold:
        return Judgement(Verdict.DIFFERENT)  # most are; reading words takes a hundred times as long
    (cut, ours), (other_cut, theirs) = read(new), read(old)
    marks = _case(cut, other_cut) or _layout(new, old)
    if not marks and alike and _spelled(ours) == _spelled(theirs):
        return Judgement(Verdict.SAME)
    reason = _difference(ours, theirs) or marks
    if not reason:
        return Judgement(Verdict.DUPLICATE)
    if similarity is None or not _share_script_pairs(new, old):
        return Judgement(Verdict.DIFFERENT)
    return Judgement(Verdict.CORRECTION, reason)


def _spelled(words: Sequence[Word]) -> list[str]:
    return [word.key for word in words if word.key not in {".", ","}]


def _case(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Return the first word whose case differs, unless it opens a sentence, is a stop word, or all is in capitals."""
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
    """Say whether lines are broken or indented in other ways, as counts in code, where a text has several lines."""
    ours, theirs = (_lines(text) for text in (new, old))
    if len(ours) == len(theirs) < 2:
        return ""
    if [indent for indent, _ in ours] != [indent for indent, _ in theirs]:
        return "layout"
    pairs = ((one, other) for (_, one), (_, other) in zip(ours, theirs, strict=True) if one != other)
    return "layout" if any(_difference(read(one)[1], read(other)[1]) for one, other in pairs) else ""


def _lines(text: str) -> list[tuple[str, str]]:
    """Return the lines of a text, each cut into its indentation and the rest, without blank ones at either end."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    while lines and not lines[0]:
        del lines[0]
    return [(line[: len(line) - len(line.lstrip())], line.strip()) for line in lines]


def _share_script_pairs(new: str, old: str) -> bool:
    """Say whether texts in scripts that an English model can't read share a third of their pairs of characters."""
    ours, theirs = bare(new), bare(old)
    if sum(character.isascii() for character in ours + theirs) * 2 > len(ours + theirs):
        return True
    one, other = ({text[i : i + 2] for i in range(len(text) - 1)} for text in (ours, theirs))
    return len(one & other) * 3 >= min(len(one), len(other))


def _difference(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Return what differs between two texts, or nothing if they say the same."""
    ours, theirs = _aligned(_joined(new, old), _joined(old, new))
    more, less = _unmatched(ours, theirs), _unmatched(theirs, ours)
    if more or less:
        return _describe(less, more)
    if _soft(ours) - _soft(theirs) and _soft(theirs) - _soft(ours):
        return "words: prepositions"
    if _tenses_differ(ours, theirs):
        return "tense"
    if change := _number(ours, theirs) or _number(theirs, ours, turned=True):
        return change
    strict = _soft(ours) == _soft(theirs)
    return "" if _orders(ours, strict=strict) & _orders(theirs, strict=strict) else "word order"


def _joined(words: Sequence[Word], other: Sequence[Word]) -> list[Word]:
    """Write two words as one where the other text does: time zone, timezone."""
    keys, wanted = {word.key for word in words}, {word.key for word in other}
    joined: list[Word] = []
    for word in words:
        whole = joined[-1].key + word.key if joined else ""
        if whole in wanted and whole not in keys and whole.isalpha():
            joined[-1] = Word(whole, f"{joined[-1].shown} {word.shown}")
        else:
            joined.append(word)
    return joined


def _aligned(new: Sequence[Word], old: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    """Give inflections and synonyms one key in both texts."""
    counted = any(word.key in {"has", "have", "own", "owns"} for word in (*new, *old))  # a cat is not some cats
    chosen: dict[str, str] = {}
    aligned = []
    for word in (*new, *old):
        meanings = _meanings(word, plural=not counted)
        key = next((chosen[meaning] for meaning in meanings if meaning in chosen), word.key)
        for meaning in meanings:
            chosen.setdefault(meaning, key)
        aligned.append(word._replace(key=key))
    return aligned[: len(new)], aligned[len(new) :]


def _meanings(word: Word, *, plural: bool) -> list[str]:
    """Return the word, its possible base forms and their groups."""
    if word.key in LIGHT or word.key in SOFT:
        return [word.key]
    forms = [word.key] if word.exact else [word.key, *_bases(word.key, plural=plural)]
    return [*forms, *(GROUP[form] for form in forms if form in GROUP)]


def _bases(key: str, *, plural: bool) -> list[str]:
    """Return what an English word may be an inflection of."""
    if key in BASE or len(key) < 4 or key in WHOLE or not key.isascii() or not key.isalpha():
        return [BASE[key]] if key in BASE else []
    if key.endswith(("ies", "ied")):
        return [f"{key[:-3]}y"]
    for ending in ("ing", "ed"):
        stem = key.removesuffix(ending)
        if stem != key and len(stem) > 1:
            return [*([stem] if len(stem) > 2 else []), f"{stem}e", *([stem[:-1]] if stem[-1] == stem[-2] else [])]
    if key.endswith(("ses", "xes", "zes", "ches", "shes")):
        return [key[:-1], key[:-2]]
    if key.endswith("s") and not key.endswith(("ss", "us", "is")) and (plural or key[:-1] in GROUP):
        return [key[:-1]]
    return []


def _unmatched(words: Sequence[Word], other: Sequence[Word]) -> list[Word]:
    """Return the words of weight that the other text has not, or not as often."""
    spare = Counter(word.key for word in other)
    unmatched = []
    for word in words:
        if word.key in LIGHT or word.key in SOFT or word.key == "by":
            continue
        if spare[word.key]:
            spare[word.key] -= 1
        else:
            unmatched.append(word)
    return unmatched


def _soft(words: Sequence[Word]) -> Counter[str]:
    return Counter(SOFT[word.key] for word in words if word.key in SOFT)


def _number(many: Sequence[Word], single: Sequence[Word], *, turned: bool = False) -> str:
    """Return the noun behind a determiner that is plural in one text and singular in the other."""
    plurals, singles = _nouns(many), _nouns(single)
    for key in [key for key in plurals if key in singles]:
        for (one, determined), (other, also_determined) in product(plurals[key], singles[key]):
            if (determined or also_determined) and one[-1:] == "s" and other in _bases(one, plural=True):
                return f"number: {one} -> {other}" if turned else f"number: {other} -> {one}"
    return ""


def _nouns(words: Sequence[Word]) -> dict[str, dict[tuple[str, bool], None]]:
    """Return how each word was written, and whether a determiner stands before it or before its adjective."""
    nouns: dict[str, dict[tuple[str, bool], None]] = {}
    for i, word in enumerate(words):
        determined = any(before.key in DETERMINERS for before in words[max(0, i - 2) : i])
        nouns.setdefault(word.key, {})[word.shown.lower(), determined] = None
    return nouns


def _tenses_differ(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Say whether one text tells as past what the other tells as present; participles may be either."""
    sides = [({w.key for w in words} & PAST_MARKS, {w.key for w in words if w.form == "past"}) for words in (new, old)]
    (marks, pasts), (other_marks, other_pasts) = sides
    if bool(marks) != bool(other_marks) and not (pasts if other_marks else other_pasts):
        return True
    plain, other_plain = ({w.key for w in words if w.form == "plain"} for words in (new, old))
    return bool((pasts & other_plain) - plain or (other_pasts & plain) - other_plain)


def _orders(words: Sequence[Word], *, strict: bool) -> set[tuple[str, ...]]:
    """Return the orders in which a text may be told: active, without a fronted adjunct, with an "is" turned round."""
    if len(words) > _LONG:
        return {tuple(f"{word.key} {word.form == 'passive'}" for word in words if word.key not in LIGHT)}
    listed = _with_sorted_pair(words)
    orders = set()
    for told in (listed, _unfronted(listed)):
        active = _active(told)
        orders.add(_keys(active, strict=strict))
        verbs = [i for i, word in enumerate(active) if word.key in {"is", "are"}]
        if len(verbs) == 1 and any(word.key in DETERMINERS for word in active):
            left, right = sorted((_keys(active[: verbs[0]], strict=strict), _keys(active[verbs[0] :], strict=strict)))
            orders.add((*left, "|", *right))
    return orders


def _keys(words: Sequence[Word], *, strict: bool) -> tuple[str, ...]:
    heavy = (word.key for word in words if word.key not in LIGHT and (strict or word.key not in SOFT))
    return tuple(SOFT.get(key, key) for key in heavy)


def _with_sorted_pair(words: Sequence[Word]) -> list[Word]:
    """Put the two names of the only "A and B" into alphabetical order, where it is a whole subject or object."""
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
    """Move an adjunct from the start of a sentence to its end: on Fridays we deploy, we deploy on Fridays."""
    told = [word for i, word in enumerate(words) if word.key != "." or i < len(words) - 1]
    if not told or told[0].key not in FRONTED or any(word.key == "." for word in told):
        return told
    commas = [i for i, word in enumerate(told) if word.key == ","]
    starts = [i for i, word in enumerate(told) if i > 1 and (word.key in DETERMINERS or word.key in {"we", "user"})]
    dates = [i + 1 for i, word in enumerate(told[:3]) if word.key in DATES or word.key.isdigit()]
    at = min(commas[:1] or dates[-1:] or starts[:1] or [0])
    return told[at:] + told[:at]


def _active(words: Sequence[Word]) -> list[Word]:
    """Tell passives as actives: "A is managed by B" as "B manages A", so that "A manages" and "A is managed" differ."""
    told = list(words)
    while (at := next((i for i, word in enumerate(told) if word.form == "passive"), None)) is not None:
        start = max((i + 1 for i in range(at) if told[i].key in BOUNDARIES), default=0)
        end = next((i for i in range(at, len(told)) if told[i].key in BOUNDARIES), len(told))
        rest = told[at + 1 : end]
        by = next((i for i, word in enumerate(rest) if word.key == "by"), len(rest))
        last = next((i for i in range(by + 1, len(rest)) if rest[i].key in SOFT), len(rest))
        agent, rest = rest[by + 1 : last], rest[:by] + rest[last:]
        told[start:end] = [*agent, told[at]._replace(form="active"), *told[start:at], *rest]
    return told


def _describe(less: Sequence[Word], more: Sequence[Word]) -> str:
    """Name the most telling difference: what the old text had alone, and what the new one has alone."""
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


def _is_number(word: Word) -> bool:
    return word.key[:1].isdigit() or word.key.lstrip("+-<>=$€£~").replace(".", "").replace(",", "").isdigit()


def _is_name(word: Word) -> bool:
    return word.exact and word.shown[:1].isalpha() and " " not in word.shown


_KINDS: tuple[tuple[str, Callable[[Word], bool]], ...] = (
    ("negation", lambda word: word.key in NEGATIONS),
    ("date", lambda word: word.key in DATES or bool(_DATE.fullmatch(word.key.lower()))),
    ("version", lambda word: bool(_VERSION.fullmatch(word.key))),
    ("numbers", _is_number),
    ("path", lambda word: bool(CASED.search(word.key))),
    ("name", _is_name),
)
