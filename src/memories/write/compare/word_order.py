"""Equivalent orders of a text's words: active voice, adjuncts at the end, "is" reversed."""

from collections.abc import Sequence, Set

from memories.write.compare.reading import Word, keys_of
from memories.write.compare.vocabulary import (
    BOUNDARIES,
    DATES,
    DETERMINERS,
    FRONTED,
    LIGHT,
    SOFT,
)

_LONG = 300  # words; comparing the orders of longer texts takes seconds
_NAME = 3  # maximum number of words in a name
_STARTING = frozenset("we user all every each".split())


def orders_of(words: Sequence[Word]) -> set[tuple[str, ...]]:
    """Return the equivalent orders of a text: active, without a fronted adjunct, and with its "is"
    reversed.
    """
    if len(words) > _LONG:
        weighty = [word for word in words if word.key not in LIGHT]
        return {tuple(f"{word.key} {word.form == 'passive'}" for word in weighty)}
    orders: set[tuple[str, ...]] = set()
    sorted_words = _sort_pair(words)
    for variant in (sorted_words, _move_fronted(sorted_words)):
        active = _make_active(variant)
        orders.add(_keys(active))
        verbs = [i for i, word in enumerate(active) if word.key in {"is", "are"}]
        if len(verbs) == 1:
            left, right = active[: verbs[0]], active[verbs[0] + 1 :]
            is_equation = _is_name_with_role(left, right) or _is_name_with_role(right, left)
            if is_equation and "?" not in keys_of(active):
                first, second = sorted((_keys(left), _keys(right)))
                orders.add((*first, "|", *second))
    return orders


def _keys(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.key for word in words if word.key not in LIGHT)


def _is_name_with_role(name: Sequence[Word], role: Sequence[Word]) -> bool:
    """Return whether these are a name and a unique role: the lead, my landlord."""
    keys = [word.key for word in name if word.key not in {".", ","}]
    if not 0 < len(keys) <= _NAME or {*keys} & (DETERMINERS | SOFT | {"not"}):
        return False
    role_keys = keys_of(role)
    is_definite = bool(role_keys) and role_keys[0] in DETERMINERS - {"a", "an", "'s"}
    return is_definite or "'s" in role_keys


def _sort_pair(words: Sequence[Word]) -> list[Word]:
    """Sort the names of the only "A and B" alphabetically if it is a whole subject or object."""
    words = list(words)
    ands = [i for i, word in enumerate(words) if word.key == "and"]
    length = len(words) - (bool(words) and words[-1].key == ".")
    if len(ands) != 1 or ands[0] not in {1, length - 2} or not 0 < ands[0] < length - 1:
        return words
    keys = keys_of(words)
    if "respectively" in keys or "," in keys:
        return words
    at = ands[0]
    pair = [words[at - 1], words[at + 1]]
    if all(word.shown[:1].isupper() for word in pair):
        words[at - 1], words[at + 1] = sorted(pair, key=lambda word: word.key)
    return words


def _move_fronted(words: Sequence[Word]) -> list[Word]:
    """Move an adjunct from the start of a sentence to its end: on Fridays we deploy, we deploy on
    Fridays.
    """
    words = list(words)
    if words and words[-1].key == ".":
        words.pop()
    keys = keys_of(words)
    if not keys or keys[0] not in FRONTED or "." in keys:
        return words
    at = _end_of_adjunct(keys)
    return words[at:] + words[:at]


def _end_of_adjunct(keys: Sequence[str]) -> int:
    """Return where an adjunct ends: before a comma, behind a date, or else before the subject."""
    if "," in keys:
        return keys.index(",")
    for i in range(min(3, len(keys)), 0, -1):
        if keys[i - 1] in DATES or keys[i - 1].isdigit():
            return i
    for i, key in enumerate(keys[2:], 2):
        if key in DETERMINERS or key in _STARTING:
            return i
    return 0


def _make_active(words: Sequence[Word]) -> list[Word]:
    """Put passives into the active voice: "A is managed by B" becomes "B manages A", so that "A
    manages" and "A is managed" differ.
    """
    words = list(words)
    while True:
        forms = [word.form for word in words]
        if "passive" not in forms:
            return words
        at = forms.index("passive")
        start = at
        while start > 0 and words[start - 1].key not in BOUNDARIES:
            start -= 1
        end = _find_word(words, at, BOUNDARIES)
        by = _find_word(words[:end], at + 1, {"by"})
        last = _find_word(words[:end], by + 1, SOFT)
        agent, verb = words[by + 1 : last], words[at]._replace(form="active")
        words[start:end] = [*agent, verb, *words[start:at], *words[at + 1 : by], *words[last:end]]


def _find_word(words: Sequence[Word], start: int, keys: Set[str]) -> int:
    """Return where the first of some words stands, from a place on; the end if none does."""
    for i in range(start, len(words)):
        if words[i].key in keys:
            return i
    return len(words)
