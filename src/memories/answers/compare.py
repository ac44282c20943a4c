"""Compares versions of a text: the words that each version kept, removed and added."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

_WORDS = re.compile(r"\s+|[぀-ヿ㐀-鿿가-힣]|[^\W぀-ヿ㐀-鿿가-힣]+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_MAX_COMPARED = 2_000  # maximum number of words or lines to compare; more would take seconds
_MARKS = {"kept": ("", ""), "removed": ("[-", "-]"), "added": ("{+", "+}")}


class WordRun(NamedTuple):
    """A run of words in one or both of two texts.

    Attributes:
        change: `kept` if both texts contain the words, `removed` if only the old text does, `added`
            if only the new one does.
        text: The words.
    """

    change: str
    text: str


def compare_versions(contents: Sequence[str]) -> list[list[WordRun]]:
    """Return each text's differences from the previous one; the first text counts as kept."""
    if not contents:
        return []
    first = [WordRun("kept", contents[0])]
    return [first, *(compare(old, new) for old, new in pairwise(contents))]


def mark_changes(parts: Sequence[WordRun]) -> str:
    """Return parts as one text, with removed words in `[-…-]` and added ones in `{+…+}`."""
    pieces = []
    for part in parts:
        before, after = _MARKS[part.change]
        pieces.append(f"{before}{part.text}{after}")
    return "".join(pieces)


def compare(old: str, new: str) -> list[WordRun]:
    """Compare two texts word by word.

    The kept and removed parts form the old text; the kept and added parts form the new one.
    """
    parts: list[WordRun] = []
    for part in _changes(_WORDS.findall(old), _WORDS.findall(new)):
        if not part.text:
            continue
        if parts and parts[-1].change == part.change:
            parts[-1] = WordRun(part.change, parts[-1].text + part.text)
        else:
            parts.append(part)
    return parts


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[WordRun]:
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    yield WordRun("kept", "".join(old[:head]))
    yield from _middle(old[head : len(old) - tail], new[head : len(new) - tail])
    yield WordRun("kept", "".join(old[len(old) - tail :]))


def _middle(old: Sequence[str], new: Sequence[str]) -> Iterator[WordRun]:
    if max(len(old), len(new)) > _MAX_COMPARED:
        old, new = _LINES.findall("".join(old)), _LINES.findall("".join(new))
    if max(len(old), len(new)) > _MAX_COMPARED:
        yield WordRun("removed", "".join(old))
        yield WordRun("added", "".join(new))
        return
    for change, start, end, new_start, new_end in SequenceMatcher(None, old, new).get_opcodes():
        if change == "equal":
            yield WordRun("kept", "".join(old[start:end]))
        else:
            yield WordRun("removed", "".join(old[start:end]))
            yield WordRun("added", "".join(new[new_start:new_end]))


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of leading words that both texts share."""
    count = 0
    for old_word, new_word in zip(old, new, strict=False):
        if old_word != new_word:
            break
        count += 1
    return count
