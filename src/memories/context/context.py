"""`ContextBuilder`: what a model reads before it answers: the last turns, what of earlier ones
answers, memories.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from memories.context import admission, fence, fitting, recalling, rendering
from memories.context.admission import Admission
from memories.context.fitting import Fitter, Parts, Shares, most, parts_of
from memories.context.gathering import Wanted, gather
from memories.context.payloads import ContextPackage, HistoryTurn, MemoryItem
from memories.context.tokens import estimate_tokens
from memories.core.events import note
from memories.core.logs import event
from memories.core.times import to_iso
from memories.errors import InvalidInput
from memories.guard.validate import limit, one_line, unit

if TYPE_CHECKING:
    from memories.context.gateway import MemoryGateway
    from memories.settings import Config

__all__ = [
    "ContextBuildError",
    "ContextBuilder",
    "ContextPackage",
    "HistoryTurn",
    "MemoryItem",
    "estimate_tokens",
]

_log = logging.getLogger(__name__)
RECALLED = 20  # hits that are recalled where there is no budget, or a small one
MAX_RECALLED = 200  # and at most, however large the budget is
TOKENS_PER_HIT = 30  # a budget of so many tokens more is worth one more hit
REFITS = 3  # times at most that room which was left is filled again
WORTH_REFITTING = 50  # that part of a budget is worth it


class ContextBuildError(InvalidInput):
    """No context can be made of this input: the conversation has no name, or the message is not
    text.
    """


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
        recall_n: int = RECALLED,
        shares: Shares = Shares(),  # noqa: B008 - the same
    ) -> None:
        """Set what a context contains.

        Args:
            gateway: The source of turns and memories.
            history_tail_n: How many of the last turns, 1 to 1,000.
            memory_top_k: How many memories at most, 1 to 1,000.
            min_confidence: The lowest confidence of a memory, 0 to 1.
            token_budget: How many tokens the formatted context may have; None for no limit.
            count_tokens: Returns how many tokens a text has for the model that reads it. [default:
                an upper bound for the tokenizers of today; see `estimate_tokens`]
            admission: What is taken in without being asked for. [default: nothing that seems to
                give orders to a model, no turns of tools, at most 3 memories and 3 recalled turns
                of one other writer]
            recall_n: How many earlier turns that answer are looked for, 0 to 200; 0 recalls none. A
                budget that has room for more gets more.
            shares: How the budget is divided among the last turns, what is recalled, and memories.

        Raises:
            ValueError: A number is not acceptable.
        """
        self.gateway = gateway
        self.history_tail_n = limit(history_tail_n, "history_tail_n")
        self.memory_top_k = limit(memory_top_k, "memory_top_k")
        self.min_confidence = unit(min_confidence, "min_confidence")
        if token_budget is not None and (type(token_budget) is not int or token_budget < 1):
            raise InvalidInput("token_budget must be a whole number, 1 or more, or None")
        if type(recall_n) is not int or not 0 <= recall_n <= MAX_RECALLED:
            raise InvalidInput(f"recall_n must be a whole number from 0 to {MAX_RECALLED}")
        self.token_budget = token_budget
        self.recall_n, self.shares = recall_n, _divided(shares)
        self._count_tokens, self._admission = count_tokens, admission
        self._config: Config | None = None

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
            include_tool_turns: Take in turns of the roles `tool` and `system`, whatever the setting
                says.
        """
        rules = Admission(
            include_suspicious,
            include_tool_turns or config.context_tool_turns,
            config.context_max_per_writer,
            config.context_memory_characters,
        )
        builder = cls(
            gateway,
            config.history_tail_n,
            config.memory_top_k,
            config.memory_confidence_min,
            config.context_token_budget if token_budget is None else token_budget,
            admission=rules,
            recall_n=config.context_recall_n,
            shares=Shares(*map(int, config.context_shares.split(","))),
        )
        builder._config = config
        return builder

    def build_context(self, conversation_id: str, latest_user_text: str) -> dict[str, Any]:
        """Gather what a model needs to answer a message.

        If the gateway fails, the context has less, down to the message alone, and its metadata says
        why. One that has no `recall_history` and `read_history` gives no earlier turns.

        Args:
            conversation_id: The conversation.
            latest_user_text: The message to be answered. If it was stored already, so that it is
                also the last turn of the history, it is left out there.

        Returns:
            The fields of a `ContextPackage`: `history`, a list of `HistoryTurn`, oldest first;
                `memories`, a list of
            pairs of `MemoryItem` and similarity, most relevant first; `latest_message`; `recalled`,
            earlier turns that answer the message and those beside them, oldest first, of long ones
            a passage; and `metadata`: `conversation_id`, `built_at`, `query_latency_ms`, `degraded`
            and `errors` (part and message), `token_budget`, `token_counts` (`history`, `recalled`,
            `memories`, `latest_message`, `total`: of the formatted text), `truncated`,
            `dropped_turns`, `dropped_memories`, `shortened_turns`, `latest_message_cut`
            (characters), `repeated_memories`, which say what a turn that is shown says, `boundary`,
            the number of the marks, and `left_out`: what was found and may not be shown, for each
            reason its `count` and the first
            `ids`: `suspicious`, `tool_turn`, `captured`, `one_writer`, `no_room`.

        Raises:
            ContextBuildError: The id of the conversation is not acceptable, or the message is not
                text.
        """
        return self._build(_name(conversation_id), _message(latest_user_text), latest_user_text)

    def build_recall(self, query: str, conversation_id: str | None = None) -> dict[str, Any]:
        """Gather what is known about a task, as `build_context` does, but without a message.

        Args:
            query: The task.
            conversation_id: The conversation whose last turns are included, and whose earlier turns
                are recalled. [default: turns of all conversations are recalled]

        Raises:
            ContextBuildError: The id of the conversation is not acceptable.
        """
        return self._build(None if conversation_id is None else _name(conversation_id), query, "")

    def build_everywhere(self, latest_user_text: str) -> dict[str, Any]:
        """Gather what a model needs to answer a message of no conversation: turns of all
        conversations are recalled.

        Raises:
            ContextBuildError: The message is not text.
        """
        return self._build(None, _message(latest_user_text), latest_user_text)

    def format_for_prompt(self, context: dict[str, Any]) -> str:
        """Return a context as text for a prompt: what is recalled as fenced data, see `rendering`,
        then the message.

        Args:
            context: What `build_context` returned.
        """
        parts, known = parts_of(context), context["metadata"]
        turns = rendering.sorted_turns([*parts.recalled, *parts.history])
        named = any(
            turn.conversation_id != known.get("conversation_id", turn.conversation_id)
            for turn in turns
        )
        length = rendering.id_length([item for item, _ in parts.memories])
        lines = [
            line for item, _ in parts.memories for line in rendering.memory_lines(item, length)
        ]
        lines += rendering.listed(
            turns, [rendering.turn_lines(turn) for turn in turns], named=named
        )
        message = str(context["latest_message"])
        if not lines:
            return message
        return rendering.frame(known, message, lines)

    def _truncate_to_budget(self, context: dict[str, Any]) -> dict[str, Any]:
        """Return a context that fits the budget: first the message, then the newest turns, then
        memories.

        What the message leaves of the budget is divided among them; see `fitting`. A message that
        is too long by itself is cut at its end, and so is the oldest turn that is shown.
        """
        kept: dict[str, Any] = {**context}
        given = parts_of(kept)
        cut = self._cut_message(kept)
        fitter = Fitter(
            self._count_tokens,
            self.shares,
            recalling.stems(kept.pop("query", context["latest_message"])),
        )
        fitted = self._fitted(kept, given, fitter)
        repeated = fitting.repeated(fitted)
        if repeated:
            given = given._replace(
                memories=[pair for pair in given.memories if pair not in repeated]
            )
            fitted = self._fitted(kept, given, fitter)
        kept |= fitted._replace(recalled=rendering.sorted_turns(fitted.recalled))._asdict()
        shortened = sum(
            turn not in given.history or len(turn.text) > fence.MAX_SHOWN
            for turn in kept["history"]
        )
        lost = {
            "dropped_turns": len(given.history) - len(kept["history"]),
            "dropped_memories": len(given.memories) - len(kept["memories"]),
            "shortened_turns": shortened,
            "latest_message_cut": cut,
        }
        truncated = any(lost.values())
        counts = {
            "token_budget": self.token_budget,
            "token_counts": self._token_counts(kept),
            "truncated": truncated,
        }
        kept["metadata"] = {
            **context["metadata"],
            **counts,
            **lost,
            "repeated_memories": len(repeated),
        }
        if truncated:
            event(_log, logging.INFO, "context truncated", token_budget=self.token_budget, **lost)
        return kept

    # --- inside
    # ----------------------------------------------------------------------------------------------------

    def _build(self, conversation: str | None, query: str, message: str) -> dict[str, Any]:
        began = time.perf_counter()
        wanted = Wanted(
            self.history_tail_n,
            self._hits(),
            self.memory_top_k,
            self.min_confidence,
            self._admission,
        )
        found = gather(self.gateway, wanted, conversation, query, message)
        metadata = {
            "conversation_id": conversation,
            "built_at": to_iso(datetime.now(UTC)),
            "query_latency_ms": round((time.perf_counter() - began) * 1000, 2),
            "degraded": bool(found.errors),
            "errors": found.errors,
            "boundary": rendering.new_boundary(),
            "left_out": admission.told(list(dict.fromkeys(found.left_out))),
        }
        package = ContextPackage(found.history, found.memories, message, metadata, found.recalled)
        built = self._truncate_to_budget({**vars(package), "query": query})
        if self._config is not None and self._config.home.exists():  # reading makes no folder
            self._note(self._config, built, time.perf_counter() - began)
        return built

    def _note(self, config: "Config", built: Mapping[str, Any], seconds: float) -> None:
        """Note how many tokens a model is given beside the message."""
        counts = built["metadata"]["token_counts"]
        parts = [built[part] for part in ("history", "recalled", "memories")]
        note(
            config.home,
            "context",
            setting=config.events,
            namespace=config.namespace,
            agent=config.identity,
            outcome="degraded" if built["metadata"]["degraded"] else "ok",
            ms=round(seconds * 1000, 2),
            results=sum(map(len, parts)),
            tokens=counts["total"] - counts["latest_message"],
        )

    def _hits(self) -> int:
        """Return how many turns that answer are looked for: more than a budget may have room for
        are of no use.
        """
        more = (
            0
            if self.token_budget is None
            else min(MAX_RECALLED, self.token_budget // TOKENS_PER_HIT)
        )
        return max(self.recall_n, more) if self.recall_n else 0

    def _total(self, context: dict[str, Any]) -> int:
        return self._count_tokens(self.format_for_prompt(context))

    def _fitted(self, context: dict[str, Any], given: Parts, fitter: Fitter) -> Parts:
        """Return what fits the budget beside the message; the whole text is counted, and what it is
        over is dropped.
        """
        budget = self.token_budget
        if budget is None:
            return fitter.all_of(given)
        message = context["latest_message"]
        frame = rendering.frame(context["metadata"], message)
        room = budget - self._count_tokens(frame)
        fitted = fitter.fit(given, room)
        size = self._total({**context, **fitted._asdict()})
        for _ in range(
            REFITS
        ):  # parts counted one by one have more tokens than the whole: that room is used too
            unused = budget - size
            if unused * WORTH_REFITTING < budget:
                break
            larger = fitter.fit(given, room + unused)
            grown = self._total({**context, **larger._asdict()})
            if not size < grown <= budget:
                break
            room, fitted, size = room + unused, larger, grown
        while size > budget and any(fitted):
            fitted = fitting.without_least(fitted)
            size = self._total({**context, **fitted._asdict()})
        return fitted

    def _cut_message(self, context: dict[str, Any]) -> int:
        """Cut the message if it alone is over the budget; return by how many characters."""
        message: str = context["latest_message"]
        budget = self.token_budget
        if budget is None or self._count_tokens(message) <= budget:
            return 0
        size = most(len(message), lambda size: self._count_tokens(message[:size]) <= budget)
        context["latest_message"] = message[:size]
        return len(message) - size

    def _token_counts(self, context: Mapping[str, Any]) -> dict[str, int]:
        def count(lines: Iterable[Sequence[str]]) -> int:
            return sum(self._count_tokens("\n".join(own)) for own in lines)

        return {
            "history": count(map(rendering.turn_lines, context["history"])),
            "recalled": count(map(rendering.turn_lines, context["recalled"])),
            "memories": count(rendering.memory_lines(item) for item, _ in context["memories"]),
            "latest_message": self._count_tokens(context["latest_message"]),
            "total": self._total(dict(context)),
        }


def _divided(shares: Shares) -> Shares:
    """Return shares that can be divided by.

    Raises:
        InvalidInput: One is not a whole number of at least 0, or all are 0.
    """
    if len(shares) != len(Shares._fields) or any(
        type(part) is not int or part < 0 for part in shares
    ):
        raise InvalidInput(
            "shares must be three whole numbers, 0 or more: last turns, recalled turns, memories"
        )
    if not any(shares):
        raise InvalidInput("shares are all 0; give at least one part of a context some room")
    return Shares(*shares)


def _message(latest_user_text: object) -> str:
    if not isinstance(latest_user_text, str):
        raise ContextBuildError(
            f"the latest message is of type {type(latest_user_text).__name__}; give text"
        )
    return latest_user_text


def _name(conversation_id: str) -> str:
    try:
        return one_line(conversation_id, "conversation_id")
    except InvalidInput as exc:
        raise ContextBuildError(str(exc)) from exc
