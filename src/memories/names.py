"""Names of speakers in a question: who is meant, and what is asked without them. Pure.

A name dominates a small model's vector and tells nothing apart, since everything that somebody says is about them; so
the vector is made of the question without it. Words keep it, and turns of the one who is named count more.
"""

import re
from collections.abc import Iterable

from memories.text import STOP_WORDS, normal_form

_MIN_LETTERS = 3
# Names that are words: only a capital letter shows that somebody is meant.
_WORDS = frozenset(
    "april august dawn faith grace hope joy june may mark rose summer will art bill drew frank jack".split()
)


def named(text: str, speakers: Iterable[str]) -> list[str]:
    """Return those of the speakers whose whole name, or first name, a text has.

    Args:
        text: A question.
        speakers: Names such as `Ann`, or `Ann Lee`.
    """
    folded = normal_form(text)
    return [speaker for speaker in speakers if any(_pattern(name).search(text) for name in _names(speaker, folded))]


def without(text: str, speakers: Iterable[str]) -> str:
    """Return a question without the names of these speakers; as it is, if nothing else would be left."""
    folded = normal_form(text)
    left = text
    for speaker in speakers:
        for name in _names(speaker, folded):
            left = _pattern(name).sub(" ", left)
    left = " ".join(left.split())
    return left if any(letter.isalnum() for letter in left) else text


def _names(speaker: str, folded: str) -> list[str]:
    """Return what a speaker may be called, longest first, as far as the folded text has it."""
    first = speaker.split(maxsplit=1)[0] if speaker.split() else ""
    names = dict.fromkeys((speaker, first))
    return [name for name in names if len(name) >= _MIN_LETTERS and normal_form(name) in folded and _is_name(name)]


def _is_name(name: str) -> bool:
    return normal_form(name) not in STOP_WORDS or normal_form(name) in _WORDS


def _pattern(name: str) -> re.Pattern[str]:
    flags = re.NOFLAG if normal_form(name) in _WORDS else re.IGNORECASE
    return re.compile(rf"\b{re.escape(name)}\b(?:['\u2019]s\b)?", flags)
