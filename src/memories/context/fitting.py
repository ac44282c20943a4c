"""Pure functions that fit a context into a token budget: they give each part a share of the budget,
and decide what is dropped first.

The message comes first. The last turns, the recalled turns and the memories each get a share of the
rest. Space that one part leaves unused goes to the recalled turns first, then to the last turns,
and then to the memories. The newest turn gets at least `NEWEST` tokens, since the conversation
specification ranks recent history above memories.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from memories.context import rendering
from memories.context.passages import is_repeated, shorten, shorten_to_beginning
from memories.context.protocol import HistoryTurn, MemoryItem, address_of
from memories.languages.text import normal_form

Pair = tuple[MemoryItem, float]

MIN_SHOWN = 40  # minimum length of a truncated turn in characters; a shorter one would be useless
NEWEST = 60  # minimum number of tokens for the newest turn, whatever the shares are
MIN_HITS = 10  # minimum number of passages that should fit
# Limits on the length of a passage from a long text, in characters.
MIN_PASSAGE, MAX_PASSAGE = 400, 2_000
MIN_LAST_PASSAGE = 80  # minimum length of the passage that fills the remaining space, in characters
# Fewer characters are used than are estimated to fit, since tokens vary in length.
_MARGIN = 0.92
_CHARACTERS_PER_TOKEN = 3.5  # an estimate that determines the length of passages
_GAP = " …"


class Shares(NamedTuple):
    """The shares of a budget for the parts of a context. Only their proportions matter."""

    tail: int = 20
    recalled: int = 55
    memories: int = 25


class Parts(NamedTuple):
    """The parts of a context. The last turns are sorted oldest first; recalled turns and memories
    are sorted most useful first.
    """

    history: list[HistoryTurn]
    recalled: list[HistoryTurn]
    memories: list[Pair]


def parts_of(context: Mapping[str, Any]) -> Parts:
    """Return the parts of a context. If the key `recalled` is missing, no turns were recalled."""
    return Parts(
        list(context["history"]), list(context.get("recalled", ())), list(context["memories"])
    )


def max_passage(room: int | None) -> int:
    """Return the maximum length of a passage, in characters.

    Args:
        room: The number of tokens available for all passages; None for no budget.
    """
    if room is None:
        return MAX_PASSAGE
    length = int(room * _CHARACTERS_PER_TOKEN / MIN_HITS) // 100 * 100
    return min(MAX_PASSAGE, max(MIN_PASSAGE, length))


class Fitter:
    """Selects the parts that fit a budget."""

    def __init__(
        self, count_tokens: Callable[[str], int], shares: Shares, words: Sequence[str]
    ) -> None:
        """Initialize.

        Args:
            count_tokens: Returns the number of tokens in a text.
            shares: The shares of the budget.
            words: The words used to choose passages; see `passages.stems`.
        """
        self._count, self._shares, self._words = functools.cache(count_tokens), shares, words
        # The keys of both caches contain a turn's `id()`. The values contain the turn itself, which
        # keeps it alive, so that no other object gets the same `id()`.
        self._shortened: dict[tuple[int, int], tuple[HistoryTurn, HistoryTurn]] = {}
        self._sizes: dict[int, tuple[HistoryTurn, int]] = {}

    def fit(self, parts: Parts, room: int) -> Parts:
        """Return the parts that fit into a number of tokens."""
        total = max(1, sum(self._shares))
        tail_room = room * self._shares.tail // total
        recalled_room = room * self._shares.recalled // total
        memories_room = room * self._shares.memories // total
        history = self._fit_newest(parts.history, min(room, max(tail_room, NEWEST)))
        history_size = self._size_of_turns(history)
        memories = self._fit_memories(parts.memories, min(memories_room, room - history_size))
        unused = room - history_size - self._size_of_memories(memories)
        recalled = self._fit_recalled(parts.recalled, history, unused) if recalled_room else []
        unused -= self._size_of_turns([*recalled, *history]) - history_size
        longer = self._fit_newest(parts.history, history_size + unused)
        longer_size = self._size_of_turns(longer)
        if longer_size > history_size:
            unused -= longer_size - history_size
            history = longer
            addresses = set(map(address_of, history))
            recalled = [turn for turn in recalled if address_of(turn) not in addresses]
        memories_room = self._size_of_memories(memories) + unused
        return Parts(history, recalled, self._fit_memories(parts.memories, memories_room))

    def include_all(self, parts: Parts) -> Parts:
        """Return all parts, for a context without a budget. Each turn appears once, and long
        recalled turns are shortened to passages.
        """
        addresses = set(map(address_of, parts.history))
        size = max_passage(None)
        recalled = [
            shorten(turn, self._words, size)
            for turn in parts.recalled
            if address_of(turn) not in addresses
        ]
        return parts._replace(recalled=recalled)

    def _fit_newest(self, history: Sequence[HistoryTurn], room: int) -> list[HistoryTurn]:
        """Return the newest turns that fit. If enough of the next older turn fits, its beginning is
        included.
        """
        days: set[tuple[str, str]] = set()
        fitting: list[HistoryTurn] = []
        for turn in reversed(history):
            is_new_day = _day(turn) not in days
            head = 0
            if is_new_day:
                head = self._size_of_heading(turn) + self._count(_GAP)
            size = head + self._size_of_turn(turn)
            if size > room:
                length = self._fitting_length(turn, room - head)
                if length >= MIN_SHOWN:
                    fitting.append(shorten_to_beginning(turn, length))
                break
            room -= size
            days.add(_day(turn))
            fitting.append(turn)
        return fitting[::-1]

    def _fitting_length(self, turn: HistoryTurn, room: int) -> int:
        """Return how many characters of a turn, from its beginning, fit."""

        def fits(length: int) -> bool:
            return self._size_of_turn(shorten_to_beginning(turn, length)) <= room

        return largest_fitting(len(turn.text), fits)

    def _fit_memories(self, memories: Sequence[Pair], room: int) -> list[Pair]:
        fitting: list[Pair] = []
        for pair in memories:
            size = self._size_of_memories([pair])
            if size <= room:
                fitting.append(pair)
                room -= size
        return fitting

    def _fit_recalled(
        self, turns: Sequence[HistoryTurn], history: Sequence[HistoryTurn], room: int
    ) -> list[HistoryTurn]:
        """Return the recalled turns that fit, shortened to passages. Turns that are also among the
        last turns are left out.
        """
        max_length = max_passage(room)
        addresses, days = set(map(address_of, history)), set(map(_day, history))
        fitting: list[HistoryTurn] = []
        is_squeezed = False
        for turn in turns:
            if address_of(turn) in addresses or room <= 0:
                continue
            shorter = self._shorten(turn, max_length)
            head = self._count(_GAP)
            if _day(turn) not in days:
                head += self._size_of_heading(turn)
            size = self._size_of_turn(shorter) + head
            if size > room and not is_squeezed:
                # The best turn that does not fit gets the remaining space.
                is_squeezed = True
                length = int(_MARGIN * len(shorter.text) * (room - head) / max(1, size - head))
                if length >= MIN_LAST_PASSAGE:
                    shorter = shorten(turn, self._words, length)
                    size = self._size_of_turn(shorter) + head
            if size <= room:
                room -= size
                fitting.append(shorter)
                days.add(_day(turn))
        return fitting

    def _shorten(self, turn: HistoryTurn, size: int) -> HistoryTurn:
        """Return a turn shortened to a passage. The result is cached."""
        key = id(turn), size
        if key not in self._shortened:
            self._shortened[key] = turn, shorten(turn, self._words, size)
        return self._shortened[key][1]

    def _size_of_turns(self, turns: Sequence[HistoryTurn]) -> int:
        """Return an upper bound on the tokens that turns take, including headings and gaps."""
        previous: HistoryTurn | None = None
        total = 0
        for turn in rendering.sorted_turns(turns):
            total += self._size_of_turn(turn) + self._size_of_heading(turn, previous)
            if rendering.leaves_gap(turn, previous):
                total += self._count(_GAP)
            previous = turn
        return total

    def _size_of_turn(self, turn: HistoryTurn) -> int:
        if id(turn) not in self._sizes:
            size = self._count("\n".join((*rendering.turn_lines(turn), "")))
            self._sizes[id(turn)] = turn, size
        return self._sizes[id(turn)][1]

    def _size_of_heading(self, turn: HistoryTurn, previous: HistoryTurn | None = None) -> int:
        heading = rendering.heading(turn, previous, named=True)
        if heading:
            return self._count(f"{heading}\n")
        return 0

    def _size_of_memories(self, pairs: Sequence[Pair]) -> int:
        id_length = rendering.id_length([item for item, _ in pairs])
        return sum(
            self._count("\n".join((*rendering.memory_lines(item, id_length), "")))
            for item, _ in pairs
        )


def repeated_memories(parts: Parts) -> list[Pair]:
    """Return the memories that a turn in the context contains word for word."""
    texts = [normal_form(turn.text) for turn in (*parts.recalled, *parts.history)]
    return [pair for pair in parts.memories if is_repeated(pair[0].text, texts)]


def drop_least_needed(parts: Parts) -> Parts:
    """Return the parts without the least important one: a recalled turn, else a memory, else the
    oldest of the last turns.
    """
    if parts.recalled:
        return parts._replace(recalled=parts.recalled[:-1])
    if parts.memories:
        return parts._replace(memories=parts.memories[:-1])
    return parts._replace(history=parts.history[1:])


def largest_fitting(limit: int, fits: Callable[[int], bool]) -> int:
    """Find, by bisection, the largest number below a limit that fits; return 0 if none fits."""
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _day(turn: HistoryTurn) -> tuple[str, str]:
    return turn.conversation_id, turn.ts[:10]
