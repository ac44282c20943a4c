"""Reduces two texts to their frames (the words that matter in a correction), and finds the only
place where the frames differ.
"""

import functools
from collections.abc import Iterable, Sequence, Set
from difflib import SequenceMatcher
from typing import NamedTuple

from memories.write.compare.duplicates import is_value
from memories.write.compare.grammar import base_of
from memories.write.compare.vocabulary import (
    BE,
    COMMON_VERBS,
    CUES,
    SOFT,
    USING,
    Word,
    keys_of,
)

ARTICLES = frozenset("the a an , do does we".split())
_DEFINITE = frozenset("the our my your his her their its this".split())
_VERB_SENSES = frozenset("live is use prefer has like".split())
_PERSONS = frozenset("i you they he she".split())  # "we" is never in a frame
_POSSESSING = frozenset("own keep sell buy get".split())
_AUXILIARIES = frozenset("is @there do".split())
# Words that can precede a verb but not a noun.
_BEFORE_VERBS = _PERSONS | frozenset(
    "to not and or who that which when if because it always never only also can could will would "
    "shall should must may might let help".split()
)


class Substitution(NamedTuple):
    """The only place where two texts differ: the words before it, the removed words, the added
    words, and the words after it.
    """

    head: Sequence[Word]
    removed: Sequence[Word]
    added: Sequence[Word]
    tail: Sequence[Word]

    @property
    def drops_detail(self) -> bool:
        """Whether the removed words say more than the added ones, as when "on Mondays with make
        deploy" becomes "on Tuesdays". A long name says no more than a short one.
        """
        is_name = all(word.is_capitalized for word in self.removed)
        return len(self.removed) > len(self.added) + 1 and not is_name


def reduce_to_frame(words: Sequence[Word]) -> list[Word]:
    """Return the words that form a text's frame, without articles. A colon and any form of "is"
    become the same word.
    """
    frame: list[Word] = []
    definite = False
    for word in words:
        if word.sense not in {"", "in", "with", "was"}:
            word = word._replace(key=word.sense)  # noqa: PLW2901
        if word.key in BE or word.shown == ":":
            definite = False
            frame.append(word._replace(key="is"))
            continue
        definite = definite or word.key in _DEFINITE
        if word.key in SOFT or word.key in {"'s", ".", ","}:
            definite = False
        if word.key == "@when":
            frame.append(word._replace(key="on"))
        elif word.key not in ARTICLES and word.key not in CUES:
            frame.append(word._replace(definite=definite))
    while frame and frame[-1].key == ".":
        del frame[-1]
    return frame


def find_change(new: Sequence[Word], old: Sequence[Word]) -> Substitution | None:
    """Return the change that turns one frame into another, from the first difference to the last.

    Return None if the frames are equal, or if they name different things in several places.
    """
    blocks = SequenceMatcher(None, keys_of(old), keys_of(new), autojunk=False).get_opcodes()
    changed = [block for block in blocks if block[0] != "equal"]
    if not changed:
        return None
    start, end = changed[0][1], changed[-1][2]
    new_start, new_end = changed[0][3], changed[-1][4]
    replaced = [
        part
        for kind, old_start, old_end, start_in_new, end_in_new in changed
        if kind == "replace"
        for part in (old[old_start:old_end], new[start_in_new:end_in_new])
    ]
    if len(replaced) > 2 and all(map(_is_named, replaced)):
        return None  # the place or purpose differs as well as the value
    return _with_verb_first(
        Substitution(old[:start], old[start:end], new[new_start:new_end], old[end:])
    )


def _is_named(words: Sequence[Word]) -> bool:
    """Return whether any of the words is a name, as opposed to a value or a preposition."""
    return any(word.shown.isalpha() and not is_soft(word) and not is_value(word) for word in words)


def _with_verb_first(change: Substitution) -> Substitution:
    """Move a verb at the end of its sentence, as in Turkish, in front of the replaced words."""
    head, removed, added, tail = change
    if not head or not tail or tail[-1].sense not in _VERB_SENSES:
        return change
    verbs = [word for word in tail if word.sense in _VERB_SENSES]
    return Substitution(
        [*head, verbs[0]], removed, added, [word for word in tail if word not in verbs]
    )


@functools.lru_cache(maxsize=4_096)
def verb_of(word: Word) -> str:
    """Return the base form of a word if it may be a known verb; else an empty string."""
    if word.key in {"is", "@there"}:
        return word.key
    form = word.shown.lower()
    for base in (word.key, form, *base_of(form), form.removesuffix("es")):
        if base in COMMON_VERBS:
            return base
    return ""


def has_detail(old: Sequence[Word], new: Sequence[Word]) -> bool:
    """Return whether an old text has details that are missing in a new text about a change."""
    others = [word for word in old if word.key not in keys_of(new) and word.key[0] != "@"]
    return not all(is_soft(word) or verb_of(word) for word in others)


def has_verb(words: Iterable[Word], verbs: Set[str]) -> bool:
    """Return whether any of the words is one of the verbs."""
    return any(verb_of(word) in verbs for word in words)


def is_soft(word: Word) -> bool:
    """Return whether a word is a preposition."""
    return word.key in SOFT or word.sense in {"in", "with"}


def find_verb(words: Sequence[Word]) -> int | None:
    """Return the position of the last verb. After a verb such as "use", a word may be a noun that
    is spelled like a verb, such as "paint" in "use blue paint" or "meeting" in "have a meeting".
    """
    for at in range(len(words) - 1, -1, -1):
        base = verb_of(words[at])
        if not base:
            continue
        is_bare = words[at].shown.lower() in {base, f"{base}s", f"{base}es"}
        is_gerund = words[at].shown.endswith("ing") and at > 0 and words[at - 1].key != "is"
        may_be_noun = (is_bare or is_gerund) and base not in _AUXILIARIES
        if not may_be_noun or at == 0 or words[at - 1].key in _BEFORE_VERBS:
            return at
        if not any(_is_surely_verb(words, earlier) for earlier in range(at)):
            return at
    return None


def _is_surely_verb(words: Sequence[Word], at: int) -> bool:
    """Return whether a word is a verb rather than a noun that is spelled like one."""
    word, base = words[at], verb_of(words[at])
    if word.key == "@has":
        return True
    if not base or base in _AUXILIARIES or word.definite:
        return False
    return base in USING | _POSSESSING or (at > 0 and words[at - 1].key in _PERSONS)
