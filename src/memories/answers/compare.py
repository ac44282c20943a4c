"""What a version changed, word by word."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

_WORDS = re.compile(r"\s+|[぀-ヿ㐀-鿿가-힣]|[^\W぀-ヿ㐀-鿿가-힣]+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_MOST = 2_000  # words or lines of a part that are compared with each other: more would take seconds


class Part(NamedTuple):
    """A part of two texts.

    Attributes:
        change: `kept`, `removed` or `added`.
        text: What it says.
    """

    change: str
    text: str


def steps(contents: Sequence[str]) -> list[list[Part]]:
    """Return for each text what it took over from the one before, removed from it and added to
    it.
    """
    firsts = [[Part("kept", contents[0])]] if contents else []
    return [*firsts, *(parts(old, new) for old, new in pairwise(contents))]


def as_text(found: Sequence[Part]) -> str:
    """Return parts as one text, in which `[-…-]` was removed and `{+…+}` was added."""
    marks = {"kept": ("", ""), "removed": ("[-", "-]"), "added": ("{+", "+}")}
    return "".join(marks[part.change][0] + part.text + marks[part.change][1] for part in found)


def parts(old: str, new: str) -> list[Part]:
    """Return two texts as parts: those that are kept or removed are the old one, those kept or
    added the new one.
    """
    found: list[Part] = []
    for change, text in _changes(_WORDS.findall(old), _WORDS.findall(new)):
        if text and found and found[-1].change == change:
            found[-1] = Part(change, found[-1].text + text)
        elif text:
            found.append(Part(change, text))
    return found


def _changes(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, str]]:
    first = _same(before, after)
    last = _same(before[first:][::-1], after[first:][::-1])
    begun, ended = before[:first], before[len(before) - last :]
    before, after = before[first : len(before) - last], after[first : len(after) - last]
    if max(len(before), len(after)) > _MOST:
        before, after = _LINES.findall("".join(before)), _LINES.findall("".join(after))
    changes = [("kept", "".join(begun))]
    if max(len(before), len(after)) > _MOST:
        changes += [("removed", "".join(before)), ("added", "".join(after))]
    else:
        for _, start, end, start_new, end_new in SequenceMatcher(None, before, after).get_opcodes():
            removed, added = "".join(before[start:end]), "".join(after[start_new:end_new])
            changes += (
                [("kept", removed)]
                if removed == added
                else [("removed", removed), ("added", added)]
            )
    return [*changes, ("kept", "".join(ended))]


def _same(before: Sequence[str], after: Sequence[str]) -> int:
    """Return with how many words both begin."""
    pairs = zip(before, after, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after))
    )
