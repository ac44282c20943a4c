"""Names of speakers in a question: who is meant, and what is asked without them. Pure.

A name dominates a small model's vector and tells nothing apart, since everything that somebody says is about them; so
the vector is made of the question without it. Words keep it, and turns of the one who is named count more.
"""

import re
from collections.abc import Iterable

from memories.languages.text import STOP_WORDS, cased_form, is_unspaced, normal_form

_SHORT = 2  # letters; a name so short needs its capital, and a shorter one tells nothing
# Names that are words too: only a capital letter shows that somebody is meant.
_WORDS = frozenset(
    "april art august bill dawn drew faith frank grace hope jack joy june mark may rose summer will".split()
)
_TITLES = frozenset("mr mr. mrs mrs. ms ms. dr dr. prof prof.".split())


def named(text: str, speakers: Iterable[str]) -> list[str]:
    """Return the speakers that a text names, by the whole name or the first.

    A whole name says who is meant: `Ann Lee` is not Ann Kim, though both are Ann.

    Args:
        text: A question.
        speakers: Names such as `Ann`, or `Ann Lee`.
    """
    known = list(speakers)
    spelled = cased_form(text)
    folded = normal_form(text)
    whole: set[str] = set()
    for speaker in sorted(known, key=len, reverse=True):  # Ann Lee before Ann
        name = cased_form(speaker)
        if _has(spelled, folded, name):
            whole.add(speaker)
            spelled = _pattern(name).sub(" ", spelled)
    return [speaker for speaker in known if speaker in whole or _has(spelled, folded, _first(speaker))]


def without(text: str, speakers: Iterable[str]) -> str:
    """Return a question without the names of these speakers; as it is, if nothing else would be left."""
    left, folded = cased_form(text), normal_form(text)
    names = {name for speaker in speakers for name in (cased_form(speaker), _first(speaker))}
    for name in sorted(names, key=lambda name: (-len(name), name)):
        left = _pattern(name).sub(" ", left) if _has(left, folded, name) else left
    left = " ".join(left.split())
    return left if any(letter.isalnum() for letter in left) else text


def _first(speaker: str) -> str:
    """Return the first name, or what follows a title."""
    parts = [part for part in cased_form(speaker).split() if part.lower() not in _TITLES]
    return parts[0] if parts else ""


def _has(spelled: str, folded: str, name: str) -> bool:
    """Return whether a text has a name; `folded` is the normal form of the whole text."""
    if not any(letter.isalnum() for letter in name) or normal_form(name) not in folded:
        return False  # without compiling a pattern
    letter = len(name) < _SHORT and not is_unspaced(name)
    stops = letter or (normal_form(name) in STOP_WORDS and normal_form(name) not in _WORDS)
    return not stops and bool(_pattern(name).search(spelled))


def _pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of a name, with its possessive."""
    if is_unspaced(name):
        return re.compile(re.escape(name))
    ambiguous = normal_form(name) in _WORDS or len(name) <= _SHORT
    spelled = name[:1].upper() + name[1:] if ambiguous else name
    flags = re.NOFLAG if ambiguous else re.IGNORECASE
    return re.compile(rf"(?<!\w){re.escape(spelled)}(?!\w)(?:'s\b)?", flags)
