"""Equivalent orders of a text's words: active voice, adjuncts at the end, "is" reversed."""

from collections.abc import Sequence

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
            if _is_equation(left, right):
                first, second = sorted((_keys(left), _keys(right)))
                orders.add((*first, "|", *second))
    return orders


def _keys(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.key for word in words if word.key not in LIGHT)


def _is_equation(left: Sequence[Word], right: Sequence[Word]) -> bool:
    """Return whether an "is" has a name on one side and a unique role on the other: the lead, my
    landlord.
    """
    if "?" in keys_of([*left, *right]):
        return False
    return _is_name_with_role(left, right) or _is_name_with_role(right, left)


def _is_name_with_role(name: Sequence[Word], role: Sequence[Word]) -> bool:
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
    words = [word for i, word in enumerate(words) if word.key != "." or i < len(words) - 1]
    if not words or words[0].key not in FRONTED or any(word.key == "." for word in words):
        return words
    commas = [i for i, word in enumerate(words) if word.key == ","]
    dates = [i + 1 for i, word in enumerate(words[:3]) if word.key in DATES or word.key.isdigit()]
    subjects = [
        i
        for i, word in enumerate(words)
        if i > 1 and (word.key in DETERMINERS or word.key in _STARTING)
    ]
    at = min(commas[:1] or dates[-1:] or subjects[:1] or [0])
    return words[at:] + words[:at]


def _make_active(words: Sequence[Word]) -> list[Word]:
    """Put passives into the active voice: "A is managed by B" becomes "B manages A", so that "A
    manages" and "A is managed" differ.
    """
    words = list(words)
    while True:
        at = next((i for i, word in enumerate(words) if word.form == "passive"), None)
        if at is None:
            return words
        start = max((i + 1 for i in range(at) if words[i].key in BOUNDARIES), default=0)
        end = next((i for i in range(at, len(words)) if words[i].key in BOUNDARIES), len(words))
        behind = words[at + 1 : end]
        by = next((i for i, word in enumerate(behind) if word.key == "by"), len(behind))
        last = next((i for i in range(by + 1, len(behind)) if behind[i].key in SOFT), len(behind))
        agent, behind = behind[by + 1 : last], behind[:by] + behind[last:]
        words[start:end] = [*agent, words[at]._replace(form="active"), *words[start:at], *behind]
