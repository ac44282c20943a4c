"""`ContextBuilder`: what a model reads before it answers: the last turns, relevant memories, the latest message."""

import copy
import logging
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from memories.agent import admission, fence
from memories.agent.admission import Admission, Admitted
from memories.agent.payloads import ContextPackage, Document, HistoryTurn, MemoryItem, item_of, turn_of
from memories.errors import InvalidInput
from memories.logs import event
from memories.models import MAX_TURN_CHARACTERS
from memories.origin import writer
from memories.times import to_iso
from memories.validate import MAX_LIMIT, limit, one_line, unit

if TYPE_CHECKING:
    from memories.agent.gateway import MemoryGateway
    from memories.config import Config

__all__ = ["ContextBuildError", "ContextBuilder", "ContextPackage", "HistoryTurn", "MemoryItem", "estimate_tokens"]

HISTORY, MEMORIES, LATEST = "conversation", "memories", "latest message"  # titles of the blocks
_log = logging.getLogger(__name__)
MIN_SHOWN = 40  # characters; a shorter beginning of a turn tells nothing
_Part = TypeVar("_Part")
_Pair = tuple[MemoryItem, float]


class ContextBuildError(InvalidInput):
    """No context can be made of this input: the conversation has no name, or the message is not text."""


def estimate_tokens(text: str) -> int:
    """Return roughly how many tokens a text has: one for every 4 ASCII characters, one for every other character.

    English prose has somewhat fewer, code and JSON somewhat more, Chinese and emoji about as many. If it must be exact,
    pass the counter of your model to `ContextBuilder`.
    """
    others = 0 if text.isascii() else sum(sign > "\x7f" for sign in text)
    return -(-(len(text) - others) // 4) + others


class ContextBuilder:
    """Puts together what a model reads, within a budget; a failing memory never stops an answer."""

    def __init__(  # noqa: PLR0913 - these are the settings of a context
        self,
        gateway: "MemoryGateway",
        history_tail_n: int = 16,
        memory_top_k: int = 8,
        min_confidence: float = 0.7,
        token_budget: int | None = None,
        *,
        count_tokens: Callable[[str], int] = estimate_tokens,
        admission: Admission = Admission(),  # noqa: B008 - a value that nobody can change
    ) -> None:
        """Set what a context contains.

        Args:
            gateway: The source of turns and memories.
            history_tail_n: How many of the last turns, 1 to 1,000.
            memory_top_k: How many memories at most, 1 to 1,000.
            min_confidence: The lowest confidence of a memory, 0 to 1.
            token_budget: How many tokens the formatted context may have; None for no limit.
            count_tokens: Returns how many tokens a text has for the model that reads it.
            admission: What is taken in without being asked for. [default: nothing that seems to give orders to a
                model, no turns of tools, at most 3 memories of one other writer]

        Raises:
            ValueError: A number is not acceptable.
        """
        self.gateway = gateway
        self.history_tail_n = limit(history_tail_n, "history_tail_n")
        self.memory_top_k = limit(memory_top_k, "memory_top_k")
        self.min_confidence = unit(min_confidence, "min_confidence")
        if token_budget is not None and (type(token_budget) is not int or token_budget < 1):
            raise InvalidInput("token_budget must be a whole number, 1 or more, or None")
        self.token_budget = token_budget
        self._count_tokens, self._admission = count_tokens, admission

    @classmethod
    def from_config(
        cls,
        gateway: "MemoryGateway",
        config: "Config",
        token_budget: int | None = None,
        *,
        include_suspicious: bool = False,
        include_tool_turns: bool = False,
    ) -> "ContextBuilder":
        """Return a builder with the settings.

        Args:
            gateway: The source of turns and memories.
            config: The settings.
            token_budget: Another budget than theirs.
            include_suspicious: Take in texts that seem to give orders to a model; they are marked.
            include_tool_turns: Take in turns of the roles `tool` and `system`, whatever the setting says.
        """
        rules = Admission(
            include_suspicious,
            include_tool_turns or config.context_tool_turns,
            config.context_max_per_writer,
            config.context_memory_characters,
        )
        return cls(
            gateway,
            config.history_tail_n,
            config.memory_top_k,
            config.memory_confidence_min,
            config.context_token_budget if token_budget is None else token_budget,
            admission=rules,
        )

    def build_context(self, conversation_id: str, latest_user_text: str) -> dict[str, Any]:
        """Gather what a model needs to answer a message.

        If the gateway fails, the context has less, down to the message alone, and its metadata says why.

        Args:
            conversation_id: The conversation.
            latest_user_text: The message to be answered. If it was stored already, so that it is also the last turn
                of the history, it is left out there.

        Returns:
            The fields of a `ContextPackage`: `history`, a list of `HistoryTurn`, oldest first; `memories`, a list of
            pairs of `MemoryItem` and similarity, most relevant first; `latest_message`; and `metadata`:
            `conversation_id`, `built_at`, `query_latency_ms`, `degraded` and `errors` (part and message),
            `token_budget`, `token_counts` (`history`, `memories`, `latest_message`, `total`: of the formatted text),
            `truncated`, `dropped_turns`, `dropped_memories`, `shortened_turns`, `latest_message_cut` (characters),
            `boundary`, the number of the blocks' marks, and `left_out`: what was found and may not be shown, for each
            reason its `count` and the first `ids`: `suspicious`, `tool_turn`, `one_writer`, `no_room`.

        Raises:
            ContextBuildError: The id of the conversation is not acceptable, or the message is not text.
        """
        if not isinstance(latest_user_text, str):
            raise ContextBuildError(f"the latest message is of type {type(latest_user_text).__name__}; give text")
        return self._build(_name(conversation_id), latest_user_text, latest_user_text)

    def build_recall(self, query: str, conversation_id: str | None = None) -> dict[str, Any]:
        """Gather what is known about a task, as `build_context` does, but without a message.

        Args:
            query: The task.
            conversation_id: The conversation whose last turns are included.

        Raises:
            ContextBuildError: The id of the conversation is not acceptable.
        """
        return self._build(None if conversation_id is None else _name(conversation_id), query, "")

    def format_for_prompt(self, context: dict[str, Any]) -> str:
        """Return a context as text for a prompt: what is recalled as fenced data (see `fence`), then the message.

        Args:
            context: What `build_context` returned.
        """
        boundary = context["metadata"].get("boundary") or fence.new_boundary()
        blocks = []
        if memories := [_memory_line(item, similarity) for item, similarity in context["memories"]]:
            blocks.append(fence.block(MEMORIES, memories, boundary))
        if history := [_turn_line(turn) for turn in context["history"]]:
            blocks.append(fence.block(HISTORY, history, boundary))
        message = context["latest_message"]
        if not blocks:
            return str(message)
        opening, _ = fence.marks(LATEST, boundary)
        return "\n\n".join([fence.RULE, *blocks, f"{opening}\n{message}"])

    def _truncate_to_budget(self, context: dict[str, Any]) -> dict[str, Any]:
        """Return a context that fits the budget: first the message, then the newest turns, then memories.

        The oldest turns are left out first, and the least relevant memories. A message that is too long by itself is
        cut at its end, and so is the newest turn.
        """
        history, memories = list(context["history"]), list(context["memories"])
        kept: dict[str, Any] = {**context, "history": history, "memories": memories}
        cut = self._cut_message(kept)
        if self.token_budget is not None:
            kept |= {"history": [], "memories": []}
            kept["history"] = self._newest(history, kept)
            kept["memories"] = self._relevant(memories, kept)
        shortened = sum(turn not in history or len(turn.text) > fence.MAX_SHOWN for turn in kept["history"])
        lost = {
            "dropped_turns": len(history) - len(kept["history"]),
            "dropped_memories": len(memories) - len(kept["memories"]),
            "shortened_turns": shortened,
            "latest_message_cut": cut,
        }
        truncated = any(lost.values())
        counts = {"token_budget": self.token_budget, "token_counts": self._token_counts(kept), "truncated": truncated}
        kept["metadata"] = {**context["metadata"], **counts, **lost}
        if truncated:
            event(_log, logging.INFO, "context truncated", token_budget=self.token_budget, **lost)
        return kept

    # --- inside ----------------------------------------------------------------------------------------------------

    def _build(self, conversation: str | None, query: str, message: str) -> dict[str, Any]:
        began = time.perf_counter()
        errors: list[dict[str, str]] = []
        history: list[HistoryTurn] = []
        memories: list[_Pair] = []
        left_out: list[tuple[str, str]] = []
        if conversation is not None:
            history = self._attempt(errors, "history", lambda: self._history(conversation, message, left_out))
        if query.strip():
            memories = self._attempt(errors, "memories", lambda: self._memories(query, left_out))
        metadata = {
            "conversation_id": conversation,
            "built_at": to_iso(datetime.now(UTC)),
            "query_latency_ms": round((time.perf_counter() - began) * 1000, 2),
            "degraded": bool(errors),
            "errors": errors,
            "boundary": fence.new_boundary(),
            "left_out": admission.told(left_out),
        }
        return self._truncate_to_budget(vars(ContextPackage(history, memories, message, metadata)))

    def _attempt(self, errors: list[dict[str, str]], part: str, read: Callable[[], list[_Part]]) -> list[_Part]:
        """Return what is read; if that fails, nothing, and the reason is added to `errors`."""
        try:
            return read()
        except Exception as exc:  # noqa: BLE001 - an answer never fails for what is remembered
            event(_log, logging.ERROR, "context degraded", part=part, error=str(exc), kind=type(exc).__name__)
            errors.append({"part": part, "error": " ".join(str(exc).split()) or type(exc).__name__})
            return []

    def _history(self, conversation_id: str, latest: str, left_out: list[tuple[str, str]]) -> list[HistoryTurn]:
        """Return the last turns that may be shown, without the latest message; add what may not to `left_out`."""

        def read(n: int) -> tuple[list[Document], Admitted]:
            found = list(self.gateway.tail_history(conversation_id, n))
            earlier = found[:-1] if found and _is_latest(found[-1], latest) else found
            return found, admission.turns(earlier, self._admission)

        admitted = self._enough(read, self.history_tail_n, self.history_tail_n)
        left_out += admitted.left_out
        return _each(turn_of, admitted.documents)[-self.history_tail_n :]

    def _memories(self, query: str, left_out: list[tuple[str, str]]) -> list[_Pair]:
        """Return the memories that may be shown, best first; add what may not to `left_out`."""

        def read(n: int) -> tuple[list[Document], Admitted]:
            found = self.gateway.recall_memory(query, n, self.min_confidence)
            return found, admission.memories(found, self._admission, self.memory_top_k)

        # Twice as many as are wanted, so that there are others to divide the room among.
        admitted = self._enough(read, self.memory_top_k, min(2 * self.memory_top_k, MAX_LIMIT))
        left_out += admitted.left_out
        return _each(lambda document: (item_of(document), float(document["similarity"])), admitted.documents)

    def _enough(self, read: Callable[[int], tuple[list[Document], Admitted]], wanted: int, n: int) -> Admitted:
        """Return what may be shown; ask for more while what is left out takes the place of what is wanted."""
        while True:
            found, admitted = read(n)
            if len(admitted.documents) >= wanted or len(found) < n or n == MAX_LIMIT:
                return admitted
            n = min(MAX_LIMIT, 2 * n)

    def _total(self, context: dict[str, Any]) -> int:
        return self._count_tokens(self.format_for_prompt(context))

    def _fits(self, context: dict[str, Any]) -> bool:
        return self.token_budget is None or self._total(context) <= self.token_budget

    def _newest(self, history: list[HistoryTurn], kept: dict[str, Any]) -> list[HistoryTurn]:
        """Return the newest turns that fit beside what is kept; if not even the last one fits, the beginning of it."""
        room = (self.token_budget or 0) - self._total(kept)
        number = 0
        for turn in reversed(history):
            room -= self._count_tokens(f"{_turn_line(turn)}\n")
            if room < 0:
                break
            number += 1
        while number and not self._fits({**kept, "history": history[-number:]}):
            number -= 1
        if number or not history:
            return history[len(history) - number :]
        last = history[-1]
        size = _most(len(last.text), lambda size: self._fits({**kept, "history": [_beginning(last, size)]}))
        return [_beginning(last, size)] if size >= MIN_SHOWN else []

    def _relevant(self, memories: list[_Pair], kept: dict[str, Any]) -> list[_Pair]:
        """Return the memories that fit beside what is kept, the most relevant first."""
        room = (self.token_budget or 0) - self._total(kept)
        chosen: list[_Pair] = []
        for pair in memories:
            size = self._count_tokens(f"{_memory_line(*pair)}\n")
            if size <= room:
                chosen.append(pair)
                room -= size
        while chosen and not self._fits({**kept, "memories": chosen}):
            chosen.pop()
        return chosen

    def _cut_message(self, context: dict[str, Any]) -> int:
        """Cut the message if it alone is over the budget; return by how many characters."""
        message: str = context["latest_message"]
        budget = self.token_budget
        if budget is None or self._count_tokens(message) <= budget:
            return 0
        size = _most(len(message), lambda size: self._count_tokens(message[:size]) <= budget)
        context["latest_message"] = message[:size]
        return len(message) - size

    def _token_counts(self, context: Mapping[str, Any]) -> dict[str, int]:
        return {
            "history": sum(self._count_tokens(_turn_line(turn)) for turn in context["history"]),
            "memories": sum(self._count_tokens(_memory_line(*pair)) for pair in context["memories"]),
            "latest_message": self._count_tokens(context["latest_message"]),
            "total": self._total(dict(context)),
        }


def _is_latest(document: Document, latest: str) -> bool:
    """Return whether the last turn is the message that is to be answered."""
    text = document.get("text")
    return isinstance(text, str) and document["metadata"].get("role") == "user" and _said(text) == _said(latest)


def _said(text: str) -> list[str]:
    """Return the words of a message, to compare it with a stored one."""
    return unicodedata.normalize("NFC", text)[:MAX_TURN_CHARACTERS].split()


def _beginning(turn: HistoryTurn, size: int) -> HistoryTurn:
    shorter = copy.copy(turn)
    shorter.text = f"{turn.text[:size]}…"
    return shorter


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number below a limit that fits, given that all smaller ones fit; 0 if none does."""
    least, beyond = 0, limit
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if fits(middle) else (least, middle)
    return least


def _each(read: Callable[[Document], _Part], documents: Sequence[Document]) -> list[_Part]:
    """Return what each document holds; one that can't be read is left out and logged."""
    found = []
    for document in documents:
        try:
            found.append(read(document))
        except (KeyError, TypeError, ValueError) as exc:
            event(_log, logging.WARNING, "document left out", error=f"{type(exc).__name__}: {exc}")
    return found


def _name(conversation_id: str) -> str:
    try:
        return one_line(conversation_id, "conversation_id")
    except InvalidInput as exc:
        raise ContextBuildError(str(exc)) from exc


def turn_item(turn: HistoryTurn) -> dict[str, Any]:
    """Return a turn as a model is shown it, for `fence.line`."""
    who = {"turn": turn.turn_index, "role": turn.role, "speaker": turn.speaker, **writer(turn.origin)}
    known = {"at": turn.ts, "channel": turn.channel, "suspicious": _names(turn.suspicious)}
    return {**who, **known, "text": turn.text}


def memory_item(item: MemoryItem, similarity: float) -> dict[str, Any]:
    """Return a memory as a model is shown it, for `fence.line`."""
    return {
        "id": item.id,
        "type": item.memory_type,
        "at": item.ts,
        **writer(item.origin),
        "shared": item.shared or None,
        "agent": None if item.origin and item.agent == item.origin.by else item.agent,
        "from": item.source,
        "conversation": item.conversation_id,
        "confidence": round(item.confidence, 2),
        "similarity": round(similarity, 2),
        "about": item.entities,
        "tags": item.tags,
        "suspicious": _names(item.suspicious),
        "text": item.text,
    }


def _names(suspicious: Sequence[str]) -> str | None:
    return " ".join(suspicious) or None


def _turn_line(turn: HistoryTurn) -> str:
    return fence.line(turn_item(turn))


def _memory_line(item: MemoryItem, similarity: float) -> str:
    return fence.line(memory_item(item, similarity))
