"""What of a conversation's past belongs into a context: hits, what stands beside them, and of long
texts a passage.
"""

import copy
import re
from collections.abc import Sequence

from memories.context.payloads import HistoryTurn
from memories.languages.text import normal_form, query_terms

# a turn beside a hit goes behind so many worse hits: on LoCoMo these answer more often
NEIGHBOURS_AFTER = 20
BESIDE = 1  # turns before and after a hit
_ENDING, _STEM = (
    3,
    4,
)  # letters that other forms of a word may have instead, and that they share at least
# A sentence or a line with the space behind it.
_PIECE = re.compile(r"(?:[^\n.!?。！？]|[.!?](?!\s))*(?:[.!?]|[。！？]+|\n|$)\s*")
CUT = "…"

Place = tuple[str, int]  # a conversation, and the index of a turn


def place_of(turn: HistoryTurn) -> Place:
    """Return where a turn stands."""
    return turn.conversation_id, turn.turn_index


def by_need(hits: Sequence[HistoryTurn], beside: Sequence[HistoryTurn]) -> list[HistoryTurn]:
    """Return hits, best first, and among them the turns beside them, each once.

    Args:
        hits: What answers the question, best first.
        beside: Turns that may stand beside hits.
    """
    known = {place_of(turn): turn for turn in (*beside, *hits)}
    ranked = {place_of(turn): (rank, 0) for rank, turn in reversed(list(enumerate(hits)))}
    for rank, (conversation, index) in enumerate(map(place_of, hits)):
        for at in range(index - BESIDE, index + BESIDE + 1):
            ranked.setdefault((conversation, at), (rank + NEIGHBOURS_AFTER, at - index))
    return [
        known[place] for place in sorted(ranked, key=lambda place: ranked[place]) if place in known
    ]


def stems(query: str) -> list[str]:
    """Return the beginnings of the words of a question, by which they are known in other forms."""
    words = (term.rstrip("*") for term in query_terms(query))
    return list(dict.fromkeys(word[: max(_STEM, len(word) - _ENDING)] for word in words))


def passage(text: str, words: Sequence[str], size: int) -> str:
    """Return the part of a text, in whole sentences, that has most of a question's words, rare ones
    counting more.

    Args:
        text: The text.
        words: What is looked for; see `stems`.
        size: Characters that the part may have, marks of what is left out aside.
    """
    if len(text) <= size:
        return text
    spans = [found.span() for found in _PIECE.finditer(text) if found[0]]
    shown = [normal_form(text[start:end]) for start, end in spans]
    having = {word: sum(word in piece for piece in shown) for word in words}
    worth = [sum(1 / having[word] for word in words if word in piece) for piece in shown]
    first = max(range(len(spans)), key=lambda at: (worth[at], -at))
    last = first
    while True:
        grown = [(worth[at], at) for at in (last + 1, first - 1) if 0 <= at < len(spans)]
        grown = [
            (value, at)
            for value, at in grown
            if spans[max(last, at)][1] - spans[min(first, at)][0] <= size
        ]
        if not grown:
            break
        best = max(grown)[1]
        first, last = min(first, best), max(last, best)
    start, end = spans[first][0], min(spans[last][1], spans[first][0] + size)
    return f"{CUT * (start > 0)}{text[start:end].strip()}{CUT * (end < len(text))}"


def cut(turn: HistoryTurn, words: Sequence[str], size: int) -> HistoryTurn:
    """Return a turn with at most so much of its text; see `passage`."""
    if len(turn.text) <= size:
        return turn
    shorter = copy.copy(turn)
    shorter.text = passage(turn.text, words, size)
    return shorter


def beginning(turn: HistoryTurn, size: int) -> HistoryTurn:
    """Return a turn with the beginning of its text."""
    shorter = copy.copy(turn)
    shorter.text = f"{turn.text[:size]}{CUT}"
    return shorter


def says_again(memory: str, turns: Sequence[str]) -> bool:
    """Return whether a turn that is shown says what a memory says, word for word.

    Args:
        memory: What the memory says.
        turns: What the turns say, in normal form.
    """
    said = normal_form(memory).rstrip(".!。 ")
    return any(said in turn for turn in turns)
