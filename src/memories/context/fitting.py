"""How a context fits a budget: what each part gets, and what is left out. Pure.

The message goes first. Of what it leaves, the last turns, what is recalled and the memories have a
share each; what one of them does not need, the others get, in the order recalled, last turns,
memories. A share that is too small for the beginning of the newest turn gets what that takes: the
specification puts recent history before memories.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from memories.context import recalling, rendering
from memories.context.payloads import HistoryTurn, MemoryItem
from memories.context.recalling import beginning, place_of
from memories.languages.text import normal_form

Pair = tuple[MemoryItem, float]

MIN_SHOWN = 40  # characters; a shorter beginning of a turn tells nothing
NEWEST = 60  # tokens that the newest turn may have, however small the share
HITS = 10  # for so many passages at least there should be room
SHORTEST, LONGEST = 400, 2_000  # characters of a passage of a long text
SHORTEST_PART = 80  # characters of a turn that is cut because it is the last one that finds room
_SQUEEZED = 0.92  # of the characters that there is room for, since tokens are not spread evenly
_LETTERS = 3.5  # in a token, as a guess at how long passages may be
_GAP = " …"


class Shares(NamedTuple):
    """How the room of a budget is divided; only their proportion counts."""

    tail: int = 20
    recalled: int = 55
    memories: int = 25


class Parts(NamedTuple):
    """What a context may hold, or holds: the last turns, oldest first; recalled turns and memories
    by need.
    """

    history: list[HistoryTurn]
    recalled: list[HistoryTurn]
    memories: list[Pair]


def longest_passage(room: int | None) -> int:
    """Return how many characters of a recalled turn are shown at most where there is room for so
    many tokens.
    """
    if room is None:
        return LONGEST
    return min(LONGEST, max(SHORTEST, int(room * _LETTERS / HITS) // 100 * 100))


class Fitter:
    """Chooses what fits."""

    def __init__(self, count: Callable[[str], int], shares: Shares, words: Sequence[str]) -> None:
        """Prepare.

        Args:
            count: Returns how many tokens a text has.
            shares: How the room is divided.
            words: What passages are chosen by; see `recalling.stems`.
        """
        self._count, self._shares, self._words = functools.cache(count), shares, words
        self._cuts: dict[tuple[int, int], tuple[HistoryTurn, HistoryTurn]] = {}
        self._sizes: dict[
            int, tuple[HistoryTurn, int]
        ] = {}  # by identity; the turn is kept, so that it stays its own

    def fit(self, parts: Parts, room: int) -> Parts:
        """Return what fits in so many tokens."""
        whole = max(1, sum(self._shares))
        share = {name: room * part // whole for name, part in self._shares._asdict().items()}
        history = self._newest(parts.history, min(room, max(share["tail"], NEWEST)))
        memories = self._relevant(
            parts.memories, min(share["memories"], room - self._turns(history))
        )
        left = room - self._turns(history) - self._pairs(memories)
        recalled = self._recalled(parts.recalled, history, left) if share["recalled"] else []
        left -= self._turns([*recalled, *history]) - self._turns(history)
        more = self._newest(parts.history, self._turns(history) + left)
        if self._turns(more) > self._turns(history):
            left -= self._turns(more) - self._turns(history)
            history = more
            shown = set(map(place_of, history))
            recalled = [turn for turn in recalled if place_of(turn) not in shown]
        memories = self._relevant(parts.memories, self._pairs(memories) + left)
        return Parts(history, recalled, memories)

    def all_of(self, parts: Parts) -> Parts:
        """Return everything, where there is no budget: each turn once, and passages of long
        ones.
        """
        shown = set(map(place_of, parts.history))
        longest = longest_passage(None)
        recalled = [
            recalling.cut(turn, self._words, longest)
            for turn in parts.recalled
            if place_of(turn) not in shown
        ]
        return parts._replace(recalled=recalled)

    # --- inside
    # ----------------------------------------------------------------------------------------------------

    def _newest(self, history: Sequence[HistoryTurn], room: int) -> list[HistoryTurn]:
        """Return the newest turns that fit, and of the next one the beginning, if that is worth
        showing.
        """
        days: set[tuple[str, str]] = set()
        kept: list[HistoryTurn] = []
        for turn in reversed(history):
            head = 0 if _day(turn) in days else self._heading(turn, None) + self._count(_GAP)
            size = head + self._turn(turn)
            if size > room:
                length = most(
                    len(turn.text),
                    lambda length: head + self._turn(beginning(turn, length)) <= room,  # noqa: B023
                )
                return [beginning(turn, length), *kept] if length >= MIN_SHOWN else kept
            room -= size
            days.add(_day(turn))
            kept.insert(0, turn)
        return kept

    def _relevant(self, memories: Sequence[Pair], room: int) -> list[Pair]:
        """Return the memories that fit, the most relevant first."""
        chosen: list[Pair] = []
        for pair in memories:
            size = self._pairs([pair])
            if size <= room:
                chosen.append(pair)
                room -= size
        return chosen

    def _recalled(
        self, turns: Sequence[HistoryTurn], history: Sequence[HistoryTurn], room: int
    ) -> list[HistoryTurn]:
        """Return the recalled turns that fit beside the last ones, passages of long ones, by
        need.
        """
        longest = longest_passage(room)
        shown = {place_of(turn) for turn in history}
        days = {_day(turn) for turn in history}
        chosen: list[HistoryTurn] = []
        squeezed = False
        for turn in turns:
            if place_of(turn) in shown or room <= 0:
                continue
            shorter = self._cut(turn, longest)
            beside = self._count(_GAP) + (0 if _day(turn) in days else self._heading(turn, None))
            size = self._turn(shorter) + beside
            if (
                size > room and not squeezed
            ):  # what is left goes to the best one that does not fit, in part
                squeezed = True
                fitting = int(
                    _SQUEEZED * len(shorter.text) * (room - beside) / max(1, size - beside)
                )
                if fitting >= SHORTEST_PART:
                    shorter = recalling.cut(turn, self._words, fitting)
                    size = self._turn(shorter) + beside
            if size <= room:
                room -= size
                chosen.append(shorter)
                days.add(_day(turn))
        return chosen

    def _cut(self, turn: HistoryTurn, size: int) -> HistoryTurn:
        """Return a turn with at most so much of its text; fitting anew does not cut it anew."""
        if (id(turn), size) not in self._cuts:
            self._cuts[id(turn), size] = turn, recalling.cut(turn, self._words, size)
        return self._cuts[id(turn), size][1]

    def _turns(self, turns: Sequence[HistoryTurn]) -> int:
        """Return how many tokens turns have at most, in their order, with what stands between
        them.
        """
        ordered = rendering.sorted_turns(turns)
        before: HistoryTurn | None = None
        total = 0
        for turn in ordered:
            total += self._turn(turn) + self._heading(turn, before)
            total += self._count(_GAP) if rendering.leaves_gap(turn, before) else 0
            before = turn
        return total

    def _turn(self, turn: HistoryTurn) -> int:
        if id(turn) not in self._sizes:
            self._sizes[id(turn)] = turn, self._count("\n".join((*rendering.turn_lines(turn), "")))
        return self._sizes[id(turn)][1]

    def _heading(self, turn: HistoryTurn, before: HistoryTurn | None) -> int:
        head = rendering.heading(turn, before, named=True)
        return self._count(f"{head}\n") if head else 0

    def _pairs(self, pairs: Sequence[Pair]) -> int:
        shortest = rendering.id_length([item for item, _ in pairs])
        return sum(
            self._count("\n".join((*rendering.memory_lines(item, shortest), "")))
            for item, _ in pairs
        )


def repeated(parts: Parts) -> list[Pair]:
    """Return the memories that say, word for word, what a turn beside them says."""
    said = [normal_form(turn.text) for turn in (*parts.recalled, *parts.history)]
    return [pair for pair in parts.memories if recalling.says_again(pair[0].text, said)]


def without_least(parts: Parts) -> Parts:
    """Return parts without the one that is needed least: a recalled turn, a memory, the oldest of
    the last turns.
    """
    if parts.recalled:
        return parts._replace(recalled=parts.recalled[:-1])
    if parts.memories:
        return parts._replace(memories=parts.memories[:-1])
    return parts._replace(history=parts.history[1:])


def most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number below a limit that fits, given that all smaller ones fit; 0 if none
    does.
    """
    least, beyond = 0, limit
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if fits(middle) else (least, middle)
    return least


def parts_of(context: Mapping[str, Any]) -> Parts:
    """Return the parts of a context; one that nothing was recalled for may have no such part."""
    return Parts(
        list(context["history"]), list(context.get("recalled", ())), list(context["memories"])
    )


def _day(turn: HistoryTurn) -> tuple[str, str]:
    return turn.conversation_id, turn.ts[:10]
