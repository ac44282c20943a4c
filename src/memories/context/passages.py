"""Pure functions that find the passage of a long turn that best answers a question."""

import copy
import re
from collections.abc import Sequence

from memories.context.protocol import HistoryTurn
from memories.languages.text import normal_form, query_terms

CUT = "…"
_MAX_ENDING = 3  # the forms of a word may differ in at most this many letters at the end
_MIN_STEM = 4  # the forms of a word share at least this many letters at the beginning
# A sentence or a line, with the white space after it.
_PIECE = re.compile(r"(?:[^\n.!?。！？]|[.!?](?!\s))*(?:[.!?]|[。！？]+|\n|$)\s*")


def stems(query: str) -> list[str]:
    """Return the stems of a question's words. A stem matches all forms of the word."""
    words = (term.rstrip("*") for term in query_terms(query))
    return list(dict.fromkeys(word[: max(_MIN_STEM, len(word) - _MAX_ENDING)] for word in words))


def passage(text: str, words: Sequence[str], size: int) -> str:
    """Return the part of a text that contains the most words of a question, in whole sentences.

    Words that are rare in the text count more.

    Args:
        text: The text.
        words: The words to look for; see `stems`.
        size: The maximum length of the part, excluding ellipses.
    """
    if len(text) <= size:
        return text
    spans = [match.span() for match in _PIECE.finditer(text) if match[0]]
    scores = _score_pieces([normal_form(text[start:end]) for start, end in spans], words)
    # Begin with the best sentence (the first, if several are equally good). Then repeatedly add
    # whichever neighbouring sentence is better.
    first = last = max(range(len(spans)), key=lambda at: (scores[at], -at))
    while True:
        neighbours: list[tuple[float, int]] = []
        before, after = first - 1, last + 1
        if after < len(spans) and spans[after][1] - spans[first][0] <= size:
            neighbours.append((scores[after], after))
        if before >= 0 and spans[last][1] - spans[before][0] <= size:
            neighbours.append((scores[before], before))
        if not neighbours:
            break
        _, best = max(neighbours)
        first, last = min(first, best), max(last, best)
    start = spans[first][0]
    end = min(spans[last][1], start + size)
    shown = text[start:end].strip()
    if start > 0:
        shown = f"{CUT}{shown}"
    if end < len(text):
        shown = f"{shown}{CUT}"
    return shown


def _score_pieces(pieces: Sequence[str], words: Sequence[str]) -> list[float]:
    """Return a score for each piece of a text. Each word that the piece contains adds 1 divided by
    the number of pieces that contain the word.
    """
    scores = [0.0] * len(pieces)
    for word in words:
        places = [at for at, piece in enumerate(pieces) if word in piece]
        for at in places:
            scores[at] += 1 / len(places)
    return scores


def shorten(turn: HistoryTurn, words: Sequence[str], size: int) -> HistoryTurn:
    """Return a copy of a turn with only a passage of its text; see `passage`. A turn that is short
    enough is returned unchanged.
    """
    if len(turn.text) <= size:
        return turn
    shorter = copy.copy(turn)
    shorter.text = passage(turn.text, words, size)
    return shorter


def shorten_to_beginning(turn: HistoryTurn, size: int) -> HistoryTurn:
    """Return a copy of a turn with only the beginning of its text."""
    shorter = copy.copy(turn)
    shorter.text = f"{turn.text[:size]}{CUT}"
    return shorter


def is_repeated(memory: str, turns: Sequence[str]) -> bool:
    """Return whether a turn contains a memory word for word.

    Args:
        memory: The text of the memory.
        turns: The texts of the turns, in normal form.
    """
    text = normal_form(memory).rstrip(".!。 ")
    return any(text in turn for turn in turns)
