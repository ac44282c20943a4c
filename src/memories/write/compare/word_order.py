"""Compares the order of words. Two orders may mean the same thing, as in the active and passive
voice.
"""

from collections.abc import Sequence, Set
from itertools import product

from memories.languages import DAYS
from memories.write.compare.grammar import forms_of
from memories.write.compare.vocabulary import (
    BE,
    BOUNDARIES,
    COMMON_VERBS,
    DATES,
    DETERMINERS,
    EMPTY,
    FOCUSING,
    FREE,
    FRONTED,
    LIGHT,
    MODALS,
    PLACES,
    SOFT,
    Word,
    keys_of,
)

_LONG = 300  # maximum number of words; comparing the orders of longer texts takes seconds
_ADJUNCT = 5  # maximum number of words in an adjunct, or in a subject after its verb
_LIST = 3  # minimum number of names in a list
_NAME = 3  # maximum number of words in a name
_REFLEXIVE = frozenset({"se", "si", "sich"})
_BETWEEN = frozenset({"not", "also", "still"})
_OF = frozenset("of for with in on".split())
_HELPING = BE | MODALS | {"not", "never", "always", "also"}
_ADJUNCT_STARTS = PLACES | frozenset("for with as from to via through @when @on".split())
_SHORTEST_MANNER = 5  # an adverb of manner has more letters than this
_DATES = DATES | frozenset("second sec min hr wk mth yr".split())
_LISTING = BE | PLACES | frozenset("of for with from @when".split())  # may precede a list
_ORDERED = frozenset("order steps sequence first then priority stages ranked phases".split())
_STARTING = frozenset("we user all every each".split())


def orders_of(words: Sequence[Word]) -> set[tuple[str, ...]]:
    """Return equivalent orders of a text's words: in the active voice, without a fronted adjunct,
    and with the sides of "is" swapped.
    """
    if len(words) > _LONG:
        weighty = [word for word in words if word.key not in LIGHT]
        return {tuple(f"{word.key} {word.form == 'passive'}" for word in weighty)}
    orders: set[tuple[str, ...]] = set()
    sorted_words = _sort_pair(words)
    fronted = _sort_pair(_move_fronted(sorted_words))
    for variant in (sorted_words, fronted, _sort_adjuncts(fronted)):
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


def have_same_parts(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Return whether two texts have the same parts in different but equivalent orders.

    These parts may move: an adjunct of any length, from the start to the end; the names in a list;
    and an owner (the customer's contract, the contract of the customer).
    """
    if max(len(new), len(old)) > _LONG or "?" in keys_of([*new, *old]):
        return False
    if _passives(new) != _passives(old):
        return False
    new, old = _resolve_owner(new, old), _resolve_owner(old, new)
    return _parts(new) == _parts(old) or have_moved_part(new, old)


def have_moved_part(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Return whether the adjunct at the start of one text is at the end of the other."""
    parts, other_parts = _parts(new), _parts(old)
    return _is_fronted(parts, other_parts) or _is_fronted(other_parts, parts)


def _passives(words: Sequence[Word]) -> set[str]:
    return {word.key for word in words if word.form == "passive"}


def _parts(words: Sequence[Word]) -> list[Word]:
    """Return a text's meaningful words, including any "is" that equates two things."""
    parts: list[Word] = []
    for i, word in enumerate(words):
        if word.key in {"is", "are"}:
            following = next((after for after in words[i + 1 :] if after.key not in _BETWEEN), word)
            if following.key in DETERMINERS or following.is_capitalized:
                parts.append(Word("is", ""))
        elif word.key not in LIGHT | EMPTY and word.key != "of":
            parts.append(Word(word.key, word.shown if word.sense else "", sense=word.sense))
    return parts


def _is_fronted(fronted: Sequence[Word], plain: Sequence[Word]) -> bool:
    """Return whether the adjunct at the start of one text is at the end of the other. In languages
    that put the verb right after such an adjunct, the adjunct may be anywhere in the other text.
    """
    if len(fronted) != len(plain) or not fronted or not _may_move(fronted):
        return False
    keys, plain_keys = keys_of(fronted), keys_of(plain)
    for at in range(1, len(keys)):
        if keys[at:] + keys[:at] == plain_keys:
            return True
    if not any(word.sense for word in fronted):
        return False
    longest = min(_ADJUNCT, len(keys))
    return any(
        _has_verb_first(keys[at:], _without(plain_keys, keys[:at])) for at in range(1, longest + 1)
    )


def _may_move(fronted: Sequence[Word]) -> bool:
    first = fronted[0]
    if first.key in FRONTED | SOFT | DATES or first.sense in {"in", "with", "every"}:
        return True
    return any(
        word.sense in DAYS or not _DATES.isdisjoint(forms_of(word.key)) for word in fronted[:3]
    )


def _without(keys: Sequence[str], part: Sequence[str]) -> Sequence[str]:
    """Return keys without the first occurrence of a sequence; empty if it doesn't occur."""
    for at in range(len(keys) - len(part) + 1):
        if keys[at : at + len(part)] == part:
            return [*keys[:at], *keys[at + len(part) :]]
    return []


def _has_verb_first(inverted: Sequence[str], plain: Sequence[str]) -> bool:
    """Return whether texts are equal, or would be if the first one's verb followed its subject."""
    if inverted == plain:
        return bool(plain)
    length = 1
    if inverted and inverted[0] in _REFLEXIVE:
        length = 2
    verb, rest = inverted[:length], inverted[length:]
    return any(
        [*rest[:at], *verb, *rest[at:]] == plain for at in range(1, min(_ADJUNCT, len(rest)) + 1)
    )


def _resolve_owner(words: Sequence[Word], other: Sequence[Word]) -> list[Word]:
    """Write "the customer's contract" as "the contract of the customer" if the other text does."""
    words, keys = list(words), keys_of(words)
    other_keys = [word.key for word in other if word.key not in DETERMINERS]
    if keys.count("'s") != 1 or "'s" in other_keys or "of" not in other_keys:
        return words
    at = keys.index("'s")
    behind = other_keys[other_keys.index("of") + 1 :]
    for length in range(min(_NAME, at), 0, -1):
        if keys[at - length : at] == behind[:length]:
            owner, owned = words[at - length : at], words[at + 1 : at + 2]
            return [*words[: at - length], *owned, *owner, *words[at + 2 :]]
    return words


def join_nouns(words: Sequence[Word], other: Sequence[Word]) -> Sequence[Word]:
    """Write "the meeting with the client" as "the client meeting" if the other text does."""
    keys = keys_of(words)
    # A word with the form `FREE` stands for a verb, so no noun phrase continues after it.
    other_keys = " ".join(word.key if word.form != FREE else f"{word.key} ." for word in other)
    other_keys = f" {other_keys} "
    for at in range(1, len(words) - 1):
        key = keys[at]
        if key not in _OF or keys.count(key) <= other_keys.count(f" {key} "):
            continue
        start = at + 1 + (keys[at + 1] in DETERMINERS)
        for before, after in product(range(min(2, at), 0, -1), range(_NAME, 0, -1)):
            head, modifier = words[at - before : at], words[start : start + after]
            if f" {' '.join(keys_of([*modifier, *head]))} " in other_keys:
                return [*words[: at - before], *modifier, *head, *words[start + after :]]
    return words


def sort_lists(words: Sequence[Word]) -> list[Word]:
    """Sort the names in lists: "English, French and Dutch" becomes "Dutch, English and French"."""
    words = list(words)
    if "respectively" in keys_of(words):
        return words
    for at in range(len(words) - 2, 1, -1):
        if words[at].key not in {"and", "or"}:
            continue
        indexes = [at - 1, at + 1]
        while indexes[0] > 1 and words[indexes[0] - 1].key == ",":
            indexes.insert(0, indexes[0] - 2)
        names = [words[index] for index in indexes]
        if len(names) < _LIST or not all(word.is_capitalized for word in names):
            continue
        names.sort(key=lambda word: word.key)
        for index, name in zip(indexes, names, strict=True):
            words[index] = name
    return words


def _keys(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.key for word in words if word.key not in LIGHT | EMPTY)


def _is_name_with_role(name: Sequence[Word], role: Sequence[Word]) -> bool:
    """Return whether words are a name and a unique role, such as "the lead" or "my landlord"."""
    keys = [word.key for word in name if word.key not in {".", ","}]
    if not 0 < len(keys) <= _NAME or {*keys} & (DETERMINERS | SOFT | {"not"}):
        return False
    role_keys = keys_of(role)
    is_definite = bool(role_keys) and role_keys[0] in DETERMINERS - {"a", "an", "'s"}
    return is_definite or "'s" in role_keys


def _sort_pair(words: Sequence[Word]) -> list[Word]:
    """Sort the words around a text's only "and" alphabetically if their order doesn't matter. The
    order of names doesn't matter at the start or end of the text. The order of other words doesn't
    matter at the end, after "is" or a preposition, unless they may be verbs.
    """
    words = list(words)
    ands = [i for i, word in enumerate(words) if word.key == "and"]
    length = len(words) - (bool(words) and words[-1].key == ".")
    if len(ands) != 1:
        return words
    at = ands[0]
    if at not in {1, length - 2} or not 0 < at < length - 1:
        return words
    keys = keys_of(words)
    if "respectively" in keys or "," in keys:
        return words
    pair = [words[at - 1], words[at + 1]]
    is_list = at == length - 2 and keys[at - 2] in _LISTING and _ORDERED.isdisjoint(keys)
    if is_list:
        is_list = not any(COMMON_VERBS.intersection(forms_of(word.key)) for word in pair)
    if is_list or all(word.shown != word.shown.lower() for word in pair):
        words[at - 1], words[at + 1] = sorted(pair, key=lambda word: word.key)
    return words


def _move_fronted(words: Sequence[Word]) -> list[Word]:
    """Move an adjunct from a sentence's start to its end: "on Fridays we deploy" becomes "we deploy
    on Fridays".
    """
    words = list(words)
    if words and words[-1].key == ".":
        words.pop()
    keys = keys_of(words)
    if not keys or keys[0] not in FRONTED or "." in keys:
        return words
    at = _end_of_adjunct(keys)
    return words[at:] + words[:at]


def _sort_adjuncts(words: Sequence[Word]) -> list[Word]:
    """Sort a verb's adjuncts, whose order makes no difference: "works from Porto on Fridays"."""
    keys = keys_of(words)
    if not BOUNDARIES.isdisjoint(keys):
        return list(words)
    verbs = [i for i, word in enumerate(words) if word.key in BE or word.form == "passive"]
    start = verbs[-1] + 1 if verbs else 0
    adjuncts: list[list[Word]] = [[]]
    for word in words[start:]:
        if word.key in _ADJUNCT_STARTS or _is_manner(word.key):
            adjuncts.append([])
        adjuncts[-1].append(word)
    first, *others = adjuncts
    others.sort(key=keys_of)
    return [*words[:start], *first, *(word for adjunct in others for word in adjunct)]


def _is_manner(key: str) -> bool:
    """Return whether a word is an adverb that may move within its sentence."""
    return key.endswith("ly") and len(key) > _SHORTEST_MANNER and key not in FOCUSING


def _end_of_adjunct(keys: Sequence[str]) -> int:
    """Return where an adjunct ends: before a comma, after a date, or else before the subject."""
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
    """Put passives into the active voice: "A is managed by B" becomes "B manages A". So "A manages"
    differs from "A is managed".
    """
    words = list(words)
    while True:
        forms = [word.form for word in words]
        if "passive" not in forms:
            return words
        at = forms.index("passive")
        start = at
        while start > 0 and not _ends_clause(words, start - 1):
            start -= 1
        end = _find_word(words, at, BOUNDARIES)
        while end < len(words) and _joins_names(words, end):
            end = _find_word(words, end + 1, BOUNDARIES)
        by = _find_word(words[:end], at + 1, {"by"})
        last = _find_word(words[:end], by + 1, SOFT)
        agent, verb = words[by + 1 : last], words[at]._replace(form="active")
        helping = at
        while helping > start and words[helping - 1].key in _HELPING:
            helping -= 1
        words[start:end] = [
            *agent,
            *words[helping:at],
            verb,
            *words[start:helping],
            *words[at + 1 : by],
            *words[last:end],
        ]


def _joins_names(words: Sequence[Word], at: int) -> bool:
    """Return whether a word is an "and" or "or" between two names."""
    pair = words[at - 1 : at + 2 : 2]
    return words[at].key in {"and", "or"} and all(word.is_capitalized for word in pair)


def _ends_clause(words: Sequence[Word], at: int) -> bool:
    """Return whether a clause ends at a word.

    The "and" in "dark and light mode are supported" does not end one.
    """
    if words[at].key != "and":
        return words[at].key in BOUNDARIES - {"than"}
    return any(
        word.key in BE or word.key in BOUNDARIES or not COMMON_VERBS.isdisjoint(forms_of(word.key))
        for word in words[:at]
    )


def _find_word(words: Sequence[Word], start: int, keys: Set[str]) -> int:
    """Return where any of these words first occurs, from a start position on.

    Return the length of the text if none of them occurs.
    """
    for i in range(start, len(words)):
        if words[i].key in keys:
            return i
    return len(words)
