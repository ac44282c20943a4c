"""`ContextBuilder`: what a model is given before it answers: the last turns, what is remembered, the latest message."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from memories import fence
from memories.errors import InvalidInput, MemoriesError
from memories.logs import event
from memories.payloads import (
    ContextPackage,
    Document,
    HistoryTurn,
    InvalidPayload,
    MemoryItem,
    count,
    item_of,
    line,
    share,
    timestamp,
    turn_of,
)

if TYPE_CHECKING:
    from memories.config import Config
    from memories.gateway import MemoryGateway

__all__ = ["ContextBuildError", "ContextBuilder", "ContextPackage", "HistoryTurn", "MemoryItem", "estimate_tokens"]

HISTORY, MEMORIES, LATEST = "conversation", "memories", "latest message"  # titles of the blocks
_log = logging.getLogger(__name__)
_Part = TypeVar("_Part")


class ContextBuildError(InvalidInput):
    """What was given can make no context: the conversation has no name, or the message is no text."""


def estimate_tokens(text: str) -> int:
    """Return roughly how many tokens a text has: one for every 4 ASCII characters, one for every other character.

    English prose has somewhat fewer, code and JSON somewhat more, Chinese and emoji about as many. Where it must be
    exact, give `ContextBuilder` the counter of your model.
    """
    others = 0 if text.isascii() else sum(sign > "\x7f" for sign in text)
    return -(-(len(text) - others) // 4) + others


class ContextBuilder:
    """Puts together what a model is given, within a budget, and never lets a failing memory stop an answer."""

    def __init__(
        self,
        gateway: "MemoryGateway",
        history_tail_n: int = 16,
        memory_top_k: int = 8,
        min_confidence: float = 0.7,
        token_budget: int | None = None,
        *,
        count_tokens: Callable[[str], int] = estimate_tokens,
    ) -> None:
        """Set what a context consists of.

        Args:
            gateway: Where turns and memories come from.
            history_tail_n: How many of the last turns, 1 to 1,000.
            memory_top_k: How many memories at most, 1 to 1,000.
            min_confidence: Memories are at least so sure, 0 to 1.
            token_budget: So many tokens the formatted context has at most; None for no limit.
            count_tokens: Returns how many tokens a text has for the model that reads it.

        Raises:
            ValueError: A number is not acceptable.
        """
        self.gateway = gateway
        self.history_tail_n = count(history_tail_n, "history_tail_n")
        self.memory_top_k = count(memory_top_k, "memory_top_k")
        self.min_confidence = share(min_confidence, "min_confidence")
        if token_budget is not None and (type(token_budget) is not int or token_budget < 1):
            raise InvalidPayload("token_budget must be a whole number, 1 or more, or None")
        self.token_budget = token_budget
        self._count_tokens = count_tokens

    @classmethod
    def from_config(cls, gateway: "MemoryGateway", config: "Config") -> "ContextBuilder":
        """Return a builder with the numbers of the settings."""
        return cls(
            gateway,
            config.history_tail_n,
            config.memory_top_k,
            config.memory_confidence_min,
            config.context_token_budget,
        )

    def build_context(self, conversation_id: str, latest_user_text: str) -> dict[str, Any]:
        """Gather what a model needs to answer a message.

        A gateway that fails costs what it would have given and nothing else: the context then has less, down to the
        message alone, and its metadata says why.

        Args:
            conversation_id: The conversation.
            latest_user_text: The message that is to be answered. If it is also the last turn of the history, because
                it was stored already, it is left out there.

        Returns:
            The fields of a `ContextPackage`: `history`, a list of `HistoryTurn`, oldest first; `memories`, a list of
            pairs of `MemoryItem` and similarity, most relevant first; `latest_message`; and `metadata`:
            `conversation_id`, `built_at`, `query_latency_ms`, `degraded` and `errors` (part and message),
            `token_budget`, `token_counts` (`history`, `memories`, `latest_message`, `total`: of the formatted text),
            `truncated`, `dropped_turns`, `dropped_memories`, `latest_message_cut` (characters), and `boundary`, the
            number of the blocks' marks.

        Raises:
            ContextBuildError: The conversation has no acceptable name, or the message is no text.
        """
        try:
            conversation = line(conversation_id, "conversation_id")
        except InvalidPayload as exc:
            raise ContextBuildError(str(exc)) from exc
        if not isinstance(latest_user_text, str):
            raise ContextBuildError(f"the latest message is of type {type(latest_user_text).__name__}; give text")
        began = time.perf_counter()
        errors: list[dict[str, str]] = []
        history = self._attempt(errors, "history", lambda: self._history(conversation, latest_user_text))
        memories: list[tuple[MemoryItem, float]] = []
        if latest_user_text.strip():
            memories = self._attempt(errors, "memories", lambda: self._memories(latest_user_text))
        metadata = {
            "conversation_id": conversation,
            "built_at": timestamp(datetime.now(UTC)),
            "query_latency_ms": round((time.perf_counter() - began) * 1000, 2),
            "degraded": bool(errors),
            "errors": errors,
            "boundary": fence.new_boundary(),
        }
        package = ContextPackage(history, memories, latest_user_text, metadata)
        return self._truncate_to_budget(vars(package))

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
        return "\n\n".join([fence.rule(), *blocks, f"{opening}\n{message}"])

    def _truncate_to_budget(self, context: dict[str, Any]) -> dict[str, Any]:
        """Return a context that fits the budget: the message goes before the newest turns, these before memories.

        Turns are left out from the oldest on, memories from the least relevant on. A message that is too long by
        itself is cut at its end.
        """
        history, memories = list(context["history"]), list(context["memories"])
        kept: dict[str, Any] = {**context, "history": history, "memories": memories}
        cut = self._cut_message(kept)
        if self.token_budget is not None:
            room = self.token_budget - self._total({**kept, "history": [], "memories": []})
            turns = _fitting([self._count_tokens(f"{_turn_line(turn)}\n") for turn in reversed(history)], room)
            kept["history"] = history[len(history) - turns :]
            while kept["history"] and self._total({**kept, "memories": []}) > self.token_budget:
                kept["history"] = kept["history"][1:]
            room = self.token_budget - self._total({**kept, "memories": []})
            fitting = _fitting([self._count_tokens(f"{_memory_line(*pair)}\n") for pair in memories], room)
            kept["memories"] = memories[:fitting]
            while kept["memories"] and self._total(kept) > self.token_budget:
                kept["memories"] = kept["memories"][:-1]
        dropped = len(history) - len(kept["history"]), len(memories) - len(kept["memories"])
        kept["metadata"] = context["metadata"] | {
            "token_budget": self.token_budget,
            "token_counts": self._token_counts(kept),
            "truncated": bool(any(dropped) or cut),
            "dropped_turns": dropped[0],
            "dropped_memories": dropped[1],
            "latest_message_cut": cut,
        }
        if kept["metadata"]["truncated"]:
            numbers = {name: kept["metadata"][name] for name in _CUT}
            event(_log, logging.INFO, "context truncated", token_budget=self.token_budget, **numbers)
        return kept

    # --- inside ----------------------------------------------------------------------------------------------------

    def _attempt(self, errors: list[dict[str, str]], part: str, read: Callable[[], list[_Part]]) -> list[_Part]:
        """Return what is read; if that fails, nothing, and the reason is added to `errors`."""
        try:
            return read()
        except (MemoriesError, OSError, ValueError, RuntimeError, LookupError) as exc:
            event(_log, logging.ERROR, "context degraded", part=part, error=str(exc), kind=type(exc).__name__)
            errors.append({"part": part, "error": " ".join(str(exc).split()) or type(exc).__name__})
            return []

    def _history(self, conversation_id: str, latest: str) -> list[HistoryTurn]:
        turns = _each(turn_of, self.gateway.tail_history(conversation_id, self.history_tail_n))
        if turns and turns[-1].role == "user" and turns[-1].text.split() == latest.split():
            del turns[-1]
        return turns

    def _memories(self, query: str) -> list[tuple[MemoryItem, float]]:
        found = self.gateway.recall_memory(query, self.memory_top_k, self.min_confidence)
        return _each(lambda document: (item_of(document), float(document["similarity"])), found)

    def _total(self, context: dict[str, Any]) -> int:
        return self._count_tokens(self.format_for_prompt(context))

    def _cut_message(self, context: dict[str, Any]) -> int:
        """Cut the message if it alone is over the budget; return by how many characters."""
        message: str = context["latest_message"]
        if self.token_budget is None or self._count_tokens(message) <= self.token_budget:
            return 0
        shortest, longest = 0, len(message)
        while longest - shortest > 1:  # the longest beginning that fits
            middle = (shortest + longest) // 2
            if self._count_tokens(message[:middle]) <= self.token_budget:
                shortest = middle
            else:
                longest = middle
        context["latest_message"] = message[:shortest]
        return len(message) - shortest

    def _token_counts(self, context: Mapping[str, Any]) -> dict[str, int]:
        return {
            "history": sum(self._count_tokens(_turn_line(turn)) for turn in context["history"]),
            "memories": sum(self._count_tokens(_memory_line(*pair)) for pair in context["memories"]),
            "latest_message": self._count_tokens(context["latest_message"]),
            "total": self._total(dict(context)),
        }


_CUT = ("dropped_turns", "dropped_memories", "latest_message_cut")


def _each(read: Callable[[Document], _Part], documents: Sequence[Document]) -> list[_Part]:
    """Return what each document holds; one that holds nothing usable is left out, and logged."""
    found = []
    for document in documents:
        try:
            found.append(read(document))
        except (KeyError, TypeError, ValueError) as exc:
            event(_log, logging.WARNING, "document left out", error=f"{type(exc).__name__}: {exc}")
    return found


def _fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many of these, from the first on, fit."""
    for fitting, size in enumerate(sizes):
        room -= size
        if room < 0:
            return fitting
    return len(sizes)


def _turn_line(turn: HistoryTurn) -> str:
    who = {"turn": turn.turn_index, "role": turn.role, "by": turn.speaker, "at": turn.ts, "channel": turn.channel}
    return fence.line({**who, "text": turn.text})


def _memory_line(item: MemoryItem, similarity: float) -> str:
    known = {
        "id": item.id,
        "type": item.memory_type,
        "at": item.ts,
        "from": item.source,
        "conversation": item.conversation_id,
        "confidence": round(item.confidence, 2),
        "similarity": round(similarity, 2),
        "about": item.entities,
        "tags": item.tags,
    }
    return fence.line({**known, "text": item.text})
