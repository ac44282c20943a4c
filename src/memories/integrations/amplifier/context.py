"""The context manager: keeps a session's messages, adds the agent's memory, and selects the
messages that fit.

If not everything fits into a request, the context manager leaves out, in this order: the text of
old tool results, old messages, the text of newer tool results, and the steps since the user's last
message. It always includes instructions, the user's last message and the newest messages. A tool
call and its results are included or left out together. The conversation itself never changes.
"""

import asyncio
import json
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memories.context.tokens import estimate_tokens

Message = Mapping[str, Any]
# share of the budget that a compaction leaves in use, so that the next one is not needed soon
TARGET = 0.7
RECENT_RESULTS = 5  # number of the newest tool results whose text is kept as long as possible
SHORTENED = 250  # number of characters kept of a shortened tool result
NOTICE = {
    "role": "system",
    "content": "To save room, earlier messages in this conversation have been left out, or old "
    "tool results have been shortened.",
}
_WORTH_IT = 50  # minimum number of characters that shortening must save
_PER_MESSAGE = 4  # number of tokens that a message takes in addition to its content


class Cut(NamedTuple):
    """The part of the conversation that a view leaves out. This part only grows, so that the
    beginning of a session's requests rarely changes.

    Attributes:
        start: The index of the first included message.
        shortened: Tool results before this index are shortened.
    """

    start: int = 0
    shortened: int = 0


class Size(NamedTuple):
    """A message's token counts: in full, and with its tool results shortened."""

    whole: int
    shortened: int


def fit(messages: Sequence[Message], sizes: Sequence[Size], cut: Cut, budget: int) -> Cut:
    """Extend a cut so that the view fits a budget.

    Args:
        messages: The conversation, without instructions that are rebuilt for each request.
        sizes: The token counts of each message; see `size_of`.
        cut: The current cut.
        budget: The maximum number of tokens in the view.
    """

    def negative_size(cut: Cut) -> int:
        total = 0
        for index in _shown_indices(messages, cut):
            size = sizes[index]
            total += size.shortened if index < cut.shortened else size.whole
        return -total

    if -negative_size(cut) <= budget:
        return cut
    users = [index for index, message in enumerate(messages) if _is_from_user(message)]
    last_user = users[-1] if users else -1
    after_results = [index + 1 for index, message in enumerate(messages) if _answers(message)]
    old_results = after_results[: max(0, len(after_results) - RECENT_RESULTS)]
    steps = [index for index in _possible_starts(messages) if index > last_user]
    target = int(budget * TARGET)
    for max_size, name, indices in (
        (target, "shortened", old_results),
        (target, "start", users),
        (budget, "shortened", after_results),
        (budget, "start", steps),
    ):
        if max_size == budget and -negative_size(cut) <= budget:
            return cut
        longer = [cut._replace(**{name: index}) for index in indices if index > getattr(cut, name)]
        enough = bisect_left(longer, -max_size, key=negative_size)
        if enough < len(longer):
            return longer[enough]
        if longer:
            cut = longer[-1]
    return cut


def view(messages: Sequence[Message], cut: Cut) -> list[dict[str, Any]]:
    """Return copies of the messages that the view includes."""
    visible = []
    for index in _shown_indices(messages, cut):
        message = messages[index]
        visible.append(dict(_shorten(message) if index < cut.shortened else message))
    if cut == Cut():
        return visible
    first = count_instructions(messages)
    return [*visible[:first], dict(NOTICE), *visible[first:]]


def count_instructions(messages: Sequence[Message]) -> int:
    """Return the number of instructions at the start of a conversation."""
    for count, message in enumerate(messages):
        if not is_instruction(message):
            return count
    return len(messages)


def is_instruction(message: Message) -> bool:
    """Return whether a message is an instruction, which is always included."""
    return message.get("role") in ("system", "developer")


def size_of(message: Message) -> Size:
    """Return the token counts of a message, in full and when shortened."""
    return Size(tokens_of(message), tokens_of(_shorten(message)))


def tokens_of(message: Message) -> int:
    """Return an upper bound for the number of tokens in a message."""
    content = message.get("content")
    text = content if isinstance(content, str) else _to_json(content)
    tokens = _PER_MESSAGE + estimate_tokens(text)
    if message.get("tool_calls"):
        tokens += estimate_tokens(_to_json(message["tool_calls"]))
    return tokens


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _shown_indices(messages: Sequence[Message], cut: Cut) -> Iterator[int]:
    """Yield the indices of the included messages: instructions, the user's last message, and all
    messages from the cut's `start` on.
    """
    users = [index for index, message in enumerate(messages) if _is_from_user(message)]
    last_user = users[-1] if users else -1
    for index, message in enumerate(messages):
        if index >= cut.start or index == last_user or is_instruction(message):
            yield index


def _possible_starts(messages: Sequence[Message]) -> Iterator[int]:
    """Yield the indices at which a view can start: never between a tool call and its results."""
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        if not waiting or _is_from_user(message):
            waiting.clear()
            yield index
        waiting |= _calls(message)
        waiting -= _answers(message)


def _calls(message: Message) -> set[str]:
    """Return the ids of the tool calls that a message makes."""
    ids = set()
    for call in message.get("tool_calls") or ():
        ids.add(str(call.get("id") or call.get("tool_call_id")))
    for block in _blocks(message):
        if block.get("type") in ("tool_call", "tool_use"):
            ids.add(str(block.get("id")))
    return ids


def _answers(message: Message) -> set[str]:
    """Return the ids of the tool calls whose results are in a message."""
    ids = set()
    for block in _blocks(message):
        if block.get("type") == "tool_result":
            ids.add(str(block.get("tool_call_id") or block.get("tool_use_id")))
    if message.get("role") == "tool":
        ids.add(str(message.get("tool_call_id")))
    return ids


def _blocks(message: Message) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, Mapping)]


def _is_from_user(message: Message) -> bool:
    return message.get("role") == "user" and not _is_from_hook(message) and not _answers(message)


def _is_from_hook(message: Message) -> bool:
    return (message.get("metadata") or {}).get("source") == "hook"


def _shorten(message: Message) -> Message:
    """Return a tool result truncated to the beginning of its text; return other messages as they
    are.
    """
    if not _answers(message):
        return message
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _cut(content)}
    if isinstance(content, list):
        return {**message, "content": [_shorten_block(block) for block in content]}
    return message


def _shorten_block(block: Any) -> Any:
    if not isinstance(block, Mapping):
        return block
    texts = {
        name: _cut(block[name])
        for name in ("text", "content", "output")
        if isinstance(block.get(name), str)
    }
    return {**block, **texts}


def _cut(text: str) -> str:
    if len(text) <= SHORTENED + _WORTH_IT:
        return text
    return f"{text[:SHORTENED]}… ({len(text) - SHORTENED:,} characters left out)"


_log = logging.getLogger(__name__)
# maximum number of tokens in a request if neither the provider nor the configuration sets a limit
MAX_TOKENS = 200_000
MARGIN = 4_096  # tokens kept free, as in Amplifier's own context managers
OUTPUT_SHARE = 0.5  # share of the maximum output length that is kept free

Block = Callable[[], Awaitable[str]]


class MemoriesContext:
    """Context manager that keeps every message. A request gets the session block and all messages,
    or a view of the messages if not all fit.

    The block is read before the first request, and again after `clear`. So the start of the prompt
    stays the same during a session, and a provider can cache it. The block is never one of the
    messages, so no transcript contains it.
    """

    def __init__(
        self,
        block: Block | None,
        max_tokens: int | None = None,
        delay_seconds: float = 1.0,
        hooks: Any = None,
    ) -> None:
        """Initialize without reading the session block.

        Args:
            block: Returns the session block; None for a context without memory.
            max_tokens: The maximum number of tokens in a request; None for the provider's limit.
            delay_seconds: How long the first request waits for the block. Later requests include it
                if it has arrived.
            hooks: The session's hooks, which are notified of compactions.
        """
        self._block, self._hooks = block, hooks
        self._max_tokens, self._delay_seconds = max_tokens, delay_seconds
        self._messages: list[dict[str, Any]] = []
        self._cut = Cut()
        # Keyed by the `id()` of a message, since messages never change.
        self._sizes: dict[int, Size] = {}
        self._factory: Callable[[], Awaitable[str]] | None = None
        self._reading: asyncio.Task[str] | None = None

    async def add_message(self, message: dict[str, Any]) -> None:
        """Add a message."""
        self._messages.append(dict(message))

    async def get_messages(self) -> list[dict[str, Any]]:
        """Return all messages, without the session block."""
        return list(map(dict, self._messages))

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace all messages, for example when a session is resumed."""
        self._messages, self._cut, self._sizes = list(map(dict, messages)), Cut(), {}

    async def clear(self) -> None:
        """Remove all messages; the session block is read again."""
        self._messages, self._cut, self._sizes = [], Cut(), {}
        await self.forget_block()

    async def set_system_prompt_factory(self, factory: Callable[[], Awaitable[str]]) -> None:
        """Set a factory that builds the instructions for each request. Its instructions replace
        those among the messages.
        """
        self._factory = factory

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """Return the messages for a request: instructions, the session block, and as many messages
        as fit.

        Args:
            token_budget: The maximum number of tokens.
            provider: The provider whose limits apply if there is no budget.
        """
        budget = self._budget(token_budget, provider)
        first, messages = [], self._messages
        if self._factory:
            first.append({"role": "system", "content": await self._factory()})
            # The factory rebuilds these instructions; instructions from hooks stay.
            messages = [
                message
                for message in messages
                if message.get("role") != "system" or _is_from_hook(message)
            ]
        if block := await self._read():
            first.append({"role": "system", "content": block})
        room = budget - sum(map(tokens_of, [*first, NOTICE]))
        cut = fit(messages, list(map(self._size, messages)), self._cut, room)
        if cut != self._cut:
            await self._compact(messages, cut, room)
        visible = view(messages, cut)
        count = count_instructions(messages)  # the block comes after the instructions
        return [*visible[:count], *first, *visible[count:]]

    async def forget_block(self) -> None:
        """Drop the session block; it is read again before the next request."""
        reading, self._reading = self._reading, None
        if reading is not None and not reading.done():
            reading.cancel()

    def _size(self, message: Mapping[str, Any]) -> Size:
        if id(message) not in self._sizes:
            self._sizes[id(message)] = size_of(message)
        return self._sizes[id(message)]

    async def _read(self) -> str:
        """Return the session block; empty if there is none, or if the memory has not answered
        yet.
        """
        if self._block is None:
            return ""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._block())
            await asyncio.wait([self._reading], timeout=self._delay_seconds)
        if not self._reading.done():
            return ""
        error = self._reading.exception()
        if error is None:
            return self._reading.result()
        _log.warning("the session continues without its memory: %s", error)
        self._block = None  # so that the failure is logged only once
        return ""

    async def _compact(self, messages: Sequence[Mapping[str, Any]], cut: Cut, budget: int) -> None:
        self._cut = cut
        left_out = cut.start - sum(is_instruction(message) for message in messages[: cut.start])
        _log.info("the context has no room for %d messages", left_out)
        if self._hooks is not None:
            event = {"messages": len(messages), "messages_removed": left_out, "budget": budget}
            await self._hooks.emit("context:compaction", event)

    def _budget(self, tokens: int | None, provider: Any) -> int:
        if tokens is not None:
            return tokens
        limits = [limit for limit in (self._max_tokens, _limit_of(provider)) if limit is not None]
        return min(limits, default=MAX_TOKENS)


def _limit_of(provider: Any) -> int | None:
    """Return a provider's token limit for requests; None if the provider reports no limit."""
    if provider is None:
        return None
    limit = None
    if hasattr(provider, "get_model_info"):
        model = provider.get_model_info()
        window = getattr(model, "context_window", None)
        limit = _limit(window, getattr(model, "max_output_tokens", None))
    if limit is None and hasattr(provider, "get_info"):
        defaults = provider.get_info().defaults or {}
        limit = _limit(defaults.get("context_window"), defaults.get("max_output_tokens"))
    return limit


def _limit(window: object, output: object) -> int | None:
    """Return the token limit for a context window and a maximum output length."""
    if not isinstance(window, int) or not isinstance(output, int) or window <= 0:
        return None
    return int(window - OUTPUT_SHARE * output) - MARGIN
