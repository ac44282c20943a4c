"""`ContextBuilder`: builds a model's context for answering a message, within a token budget."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from memories.context import admission, fence, fitting, passages, rendering
from memories.context.admission import Admission
from memories.context.fitting import Fitter, Parts, Shares, parts_of
from memories.context.gathering import ReadingLimits, gather
from memories.context.protocol import ContextPackage, HistoryTurn, MemoryItem
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
RECALLED = 20  # default number of turns to recall if there is no budget or a small one
MAX_RECALLED = 200  # maximum number of turns to recall if there is a large budget
TOKENS_PER_HIT = 30  # with a large budget, one turn is recalled for every 30 tokens
MAX_REFITS = 3  # maximum number of attempts to fill unused space
WORTH_REFITTING = 50  # unused space is filled if it is at least 1/50 of the budget


class ContextBuildError(InvalidInput):
    """The conversation's name or the message is invalid."""


class ContextBuilder:
    """Builds contexts within a budget. If the memory fails, the agent can still answer."""

    def __init__(  # noqa: PLR0913 - these are the settings of a context
        self,
        gateway: "MemoryGateway",
        history_tail_n: int = 16,
        memory_top_k: int = 8,
        min_confidence: float = 0.7,
        token_budget: int | None = None,
        *,
        count_tokens: Callable[[str], int] = estimate_tokens,
        admission: Admission = Admission(),  # noqa: B008 - immutable
        recall_n: int = RECALLED,
        shares: Shares = Shares(),  # noqa: B008 - immutable
    ) -> None:
        """Configure what a context contains.

        Args:
            gateway: The source of turns and memories.
            history_tail_n: The maximum number of last turns, 1 to 1,000.
            memory_top_k: The maximum number of memories, 1 to 1,000.
            min_confidence: The minimum confidence of a memory, 0 to 1.
            token_budget: The maximum number of tokens in the formatted context; None for no limit.
            count_tokens: Returns the number of tokens that a text has for the model that reads it.
                [default: an upper bound for today's tokenizers; see `estimate_tokens`]
            admission: What may enter a context automatically. [default: no texts that may be
                instructions to a model, no tool turns, at most 3 memories and 3 recalled turns by
                any one other writer]
            recall_n: The number of earlier turns to recall, 0 to 200. More turns are recalled if
                the budget is large, unless this is 0.
            shares: How the budget is divided among the last turns, the recalled turns, and the
                memories.

        Raises:
            ValueError: A number is invalid.
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
        self.recall_n, self.shares = recall_n, _check_shares(shares)
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
        """Return a builder configured by the settings.

        Args:
            gateway: The source of turns and memories.
            config: The settings.
            token_budget: A budget to use instead of the one in the settings.
            include_suspicious: Include texts that may be instructions to a model. They are marked.
            include_tool_turns: Include turns with the roles `tool` and `system`, regardless of the
                setting.
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
        """Build the context for a message.

        If the gateway can't provide a part, the context lacks that part and its metadata says why.
        In the worst case, the context consists of the message only. If the gateway lacks the
        methods `recall_history` and `read_history`, the context contains no earlier turns.

        Args:
            conversation_id: The conversation.
            latest_user_text: The message to answer. If it is already stored as the conversation's
                last turn, it is left out of the history.

        Returns:
            The fields of a `ContextPackage`:

            - `history`: a list of `HistoryTurn`, oldest first.
            - `memories`: pairs of a `MemoryItem` and its similarity, most relevant first.
            - `latest_message`: the message.
            - `recalled`: earlier turns that answer the message, and their neighbours, oldest first;
              a long turn is shortened to a passage.
            - `metadata`: `conversation_id`, `built_at`, `query_latency_ms`, `degraded` and `errors`
              (part and message), `token_budget`, `token_counts` of the formatted text (`history`,
              `recalled`, `memories`, `latest_message`, `total`), `truncated`, `dropped_turns`,
              `dropped_memories`, `shortened_turns`, `latest_message_cut` (characters),
              `repeated_memories` (left out because a shown turn contains the same text), `boundary`
              (the number in the marks), and `left_out`: for each reason (`suspicious`, `tool_turn`,
              `captured`, `one_writer` or `no_room`) the `count` and the first few `ids`.

        Raises:
            ContextBuildError: The id of the conversation is invalid, or the message is not a
                string.
        """
        conversation, message = _check_name(conversation_id), _check_message(latest_user_text)
        return self._build(conversation, message, message)

    def build_recall(self, query: str, conversation_id: str | None = None) -> dict[str, Any]:
        """Build the context for a query, like `build_context` but without a message.

        Args:
            query: A task, or the prompt for which a hook recalls memories.
            conversation_id: The conversation whose last turns are included, and whose earlier turns
                are recalled. [default: turns of all conversations are recalled]

        Raises:
            ContextBuildError: The id of the conversation is invalid.
        """
        conversation = None if conversation_id is None else _check_name(conversation_id)
        return self._build(conversation, query, "")

    def build_everywhere(self, latest_user_text: str) -> dict[str, Any]:
        """Build the context for a message that belongs to no conversation. Turns of all
        conversations are recalled.

        Raises:
            ContextBuildError: The message is not a string.
        """
        message = _check_message(latest_user_text)
        return self._build(None, message, message)

    def format_for_prompt(self, context: dict[str, Any]) -> str:
        """Return a context as text for a prompt: fenced data (see `rendering`), then the message.

        Args:
            context: The result of `build_context`.
        """
        parts, metadata = parts_of(context), context["metadata"]
        turns = rendering.sorted_turns([*parts.recalled, *parts.history])
        conversations = {turn.conversation_id for turn in turns}
        named = "conversation_id" in metadata and not conversations <= {metadata["conversation_id"]}
        items = [item for item, _ in parts.memories]
        id_length = rendering.id_length(items)
        lines = [line for item in items for line in rendering.memory_lines(item, id_length)]
        turn_lines = [rendering.turn_lines(turn) for turn in turns]
        lines += rendering.history_lines(turns, turn_lines, named=named)
        message = str(context["latest_message"])
        return rendering.frame(metadata, message, lines) if lines else message

    def _build(self, conversation: str | None, query: str, message: str) -> dict[str, Any]:
        start = time.perf_counter()
        hit_count = self.recall_n
        if hit_count and self.token_budget is not None:  # recall more turns for a large budget
            hit_count = max(hit_count, min(MAX_RECALLED, self.token_budget // TOKENS_PER_HIT))
        limits = ReadingLimits(
            self.history_tail_n,
            hit_count,
            self.memory_top_k,
            self.min_confidence,
            self._admission,
        )
        gathered = gather(self.gateway, limits, conversation, query, message)
        metadata = {
            "conversation_id": conversation,
            "built_at": to_iso(datetime.now(UTC)),
            "query_latency_ms": round((time.perf_counter() - start) * 1000, 2),
            "degraded": bool(gathered.errors),
            "errors": gathered.errors,
            "boundary": fence.new_boundary(),
            "left_out": admission.summarize(list(dict.fromkeys(gathered.left_out))),
        }
        package = ContextPackage(
            gathered.history, gathered.memories, message, metadata, gathered.recalled
        )
        context = self._truncate_to_budget({**vars(package), "query": query})
        if self._config is not None and self._config.home.exists():  # don't create the home
            self._note(self._config, context, time.perf_counter() - start)
        return context

    def _note(self, config: "Config", context: Mapping[str, Any], seconds: float) -> None:
        """Record in `core.events` how many tokens the context adds to the message."""
        metadata = context["metadata"]
        counts = metadata["token_counts"]
        note(
            config.home,
            "context",
            setting=config.events,
            namespace=config.namespace,
            agent=config.identity,
            outcome="degraded" if metadata["degraded"] else "ok",
            ms=round(seconds * 1000, 2),
            results=sum(len(context[part]) for part in ("history", "recalled", "memories")),
            tokens=counts["total"] - counts["latest_message"],
        )

    # --- the budget ---

    def _truncate_to_budget(self, context: dict[str, Any]) -> dict[str, Any]:
        """Return a context that fits the budget.

        The message comes first; `fitting` divides the rest of the budget. If the message alone
        exceeds the budget, its end is cut off. The end of the oldest turn shown may be cut off too.
        """
        truncated: dict[str, Any] = {**context}
        parts = parts_of(context)
        message = self._cut_message(context["latest_message"])
        truncated["latest_message"] = message
        query = truncated.pop("query", context["latest_message"])
        fitter = Fitter(self._count_tokens, self.shares, passages.stems(query))
        fitting_parts = self._fit(truncated, parts, fitter)
        repeated = fitting.repeated_memories(fitting_parts)
        if repeated:
            memories = [pair for pair in parts.memories if pair not in repeated]
            parts = parts._replace(memories=memories)
            fitting_parts = self._fit(truncated, parts, fitter)
        truncated["history"] = fitting_parts.history
        truncated["recalled"] = rendering.sorted_turns(fitting_parts.recalled)
        truncated["memories"] = fitting_parts.memories
        losses = {
            "dropped_turns": len(parts.history) - len(fitting_parts.history),
            "dropped_memories": len(parts.memories) - len(fitting_parts.memories),
            "shortened_turns": sum(
                turn not in parts.history or len(turn.text) > fence.MAX_SHOWN
                for turn in fitting_parts.history
            ),
            "latest_message_cut": len(context["latest_message"]) - len(message),
        }
        is_truncated = any(losses.values())
        truncated["metadata"] = {
            **context["metadata"],
            "token_budget": self.token_budget,
            "token_counts": self._token_counts(truncated),
            "truncated": is_truncated,
            **losses,
            "repeated_memories": len(repeated),
        }
        if is_truncated:
            event(_log, logging.INFO, "context truncated", token_budget=self.token_budget, **losses)
        return truncated

    def _cut_message(self, message: str) -> str:
        """Return the message, truncated if it exceeds the budget on its own."""
        budget = self.token_budget
        if budget is None or self._count_tokens(message) <= budget:
            return message

        def fits(length: int) -> bool:
            return self._count_tokens(message[:length]) <= budget

        return message[: fitting.largest_fitting(len(message), fits)]

    def _fit(self, context: dict[str, Any], parts: Parts, fitter: Fitter) -> Parts:
        """Return the parts that fit into the budget next to the message.

        The budget applies to the tokens of the complete text.
        """
        budget = self.token_budget
        if budget is None:
            return fitter.include_all(parts)
        frame = rendering.frame(context["metadata"], context["latest_message"])
        room = budget - self._count_tokens(frame)
        fitted = fitter.fit(parts, room)
        size = self._total({**context, **fitted._asdict()})
        # The complete text has fewer tokens than its parts in total. Fill the space left over.
        for _ in range(MAX_REFITS):
            unused = budget - size
            if unused * WORTH_REFITTING < budget:
                break
            larger = fitter.fit(parts, room + unused)
            larger_size = self._total({**context, **larger._asdict()})
            if not size < larger_size <= budget:
                break
            room, fitted, size = room + unused, larger, larger_size
        while size > budget and any(fitted):
            fitted = fitting.drop_least_needed(fitted)
            size = self._total({**context, **fitted._asdict()})
        return fitted

    def _token_counts(self, context: Mapping[str, Any]) -> dict[str, int]:
        items = [item for item, _ in context["memories"]]
        return {
            "history": self._count_lines(map(rendering.turn_lines, context["history"])),
            "recalled": self._count_lines(map(rendering.turn_lines, context["recalled"])),
            "memories": self._count_lines(map(rendering.memory_lines, items)),
            "latest_message": self._count_tokens(context["latest_message"]),
            "total": self._total(dict(context)),
        }

    def _count_lines(self, entries: Iterable[list[str]]) -> int:
        return sum(self._count_tokens("\n".join(lines)) for lines in entries)

    def _total(self, context: dict[str, Any]) -> int:
        return self._count_tokens(self.format_for_prompt(context))


def _check_shares(shares: Shares) -> Shares:
    """Return the shares if they are valid.

    Raises:
        InvalidInput: A share is not a whole number of at least 0, or all are 0.
    """
    is_valid = all(type(part) is int and part >= 0 for part in shares)
    if len(shares) != len(Shares._fields) or not is_valid:
        raise InvalidInput(
            "shares must be three whole numbers, 0 or more: for the last turns, the recalled turns "
            "and the memories"
        )
    if not any(shares):
        raise InvalidInput("all shares are 0; give at least one of them a larger number")
    return Shares(*shares)


def _check_message(latest_user_text: object) -> str:
    if not isinstance(latest_user_text, str):
        raise ContextBuildError(
            f"the latest message is of type {type(latest_user_text).__name__}; pass a string"
        )
    return latest_user_text


def _check_name(conversation_id: str) -> str:
    try:
        return one_line(conversation_id, "conversation_id")
    except InvalidInput as exc:
        raise ContextBuildError(str(exc)) from exc
