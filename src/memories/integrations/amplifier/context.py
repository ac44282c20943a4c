"""The context manager: the messages of a session, and at their beginning what its agent remembers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from memories.integrations.amplifier import compaction
from memories.integrations.amplifier.compaction import Cut, Size

_log = logging.getLogger(__name__)
MAX_TOKENS = 200_000  # of a request, where neither the provider nor the configuration says
MARGIN = 4_096  # tokens that are kept free, as Amplifier's own context managers do
OUTPUT_SHARE = 0.5  # of the longest answer is kept free

Block = Callable[[], Awaitable[str]]


class MemoriesContext:
    """Keeps every message; a request that has no room for all gets a view of them, and the prompt block.

    The block is read once, before the first request, and again after `clear`: what comes first in a prompt then stays
    the same for a session, so that a provider can cache it. It is never among the messages, so no transcript has it.
    """

    def __init__(
        self, block: Block | None, max_tokens: int | None = None, delay_seconds: float = 1.0, hooks: Any = None
    ) -> None:
        """Prepare.

        Args:
            block: Returns the prompt block; None for a context without memory.
            max_tokens: How many tokens a request may have; None for as many as the provider takes.
            delay_seconds: How long the first request waits for the block; a later one has it when it has come.
            hooks: The session's hooks, which are told of a compaction.
        """
        self._block, self._max_tokens, self._delay, self._hooks = block, max_tokens, delay_seconds, hooks
        self._messages: list[dict[str, Any]] = []
        self._cut = Cut()
        self._sizes: dict[int, Size] = {}  # by `id`: a message is kept, and never changed
        self._factory: Callable[[], Awaitable[str]] | None = None
        self._reading: asyncio.Task[str] | None = None

    async def add_message(self, message: dict[str, Any]) -> None:
        """Add a message."""
        self._messages.append(dict(message))

    async def get_messages(self) -> list[dict[str, Any]]:
        """Return all messages, without the prompt block."""
        return list(map(dict, self._messages))

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace all messages, as when a session goes on."""
        self._messages, self._cut, self._sizes = list(map(dict, messages)), Cut(), {}

    async def clear(self) -> None:
        """Remove all messages; the prompt block is read again."""
        self._messages, self._cut, self._sizes = [], Cut(), {}
        await self.forget_block()

    async def set_system_prompt_factory(self, factory: Callable[[], Awaitable[str]]) -> None:
        """Have instructions made anew for each request, in the place of those among the messages."""
        self._factory = factory

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """Return what a request sends: instructions, the prompt block, and as many messages as fit.

        Args:
            token_budget: How many tokens it may have.
            provider: Whose limits hold if no budget is given.
        """
        budget = self._budget(token_budget, provider)
        first = [{"role": "system", "content": await self._factory()}] if self._factory else []
        messages = [message for message in self._messages if not (first and _is_replaced(message))]
        if block := await self._read():
            first.append({"role": "system", "content": block})
        room = budget - sum(map(compaction.tokens_of, [*first, compaction.NOTICE]))
        cut = compaction.fit(messages, list(map(self._size, messages)), self._cut, room)
        if cut != self._cut:
            await self._compacted(messages, cut, room)
        shown = compaction.view(messages, cut)
        at = compaction.instructions(messages)  # the block comes behind them
        return [*shown[:at], *first, *shown[at:]]

    async def forget_block(self) -> None:
        """Read the prompt block again before the next request, or for the last time if the session ends."""
        reading, self._reading = self._reading, None
        if reading is not None and not reading.done():
            reading.cancel()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _size(self, message: Mapping[str, Any]) -> Size:
        if id(message) not in self._sizes:
            self._sizes[id(message)] = compaction.size_of(message)
        return self._sizes[id(message)]

    async def _read(self) -> str:
        """Return the prompt block; nothing if there is none, or as long as the memory does not answer."""
        if self._block is None:
            return ""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._block())
            await asyncio.wait([self._reading], timeout=self._delay)
        if not self._reading.done():
            return ""
        failed = self._reading.exception()
        if failed is None:
            return self._reading.result()
        _log.warning("the session goes on without its memory: %s", failed)
        self._block = None  # said once
        return ""

    async def _compacted(self, messages: Sequence[Mapping[str, Any]], cut: Cut, budget: int) -> None:
        self._cut = cut
        left_out = cut.start - sum(compaction.is_instruction(message) for message in messages[: cut.start])
        _log.info("the context has no room for %d messages", left_out)
        if self._hooks is not None:
            told = {"messages": len(messages), "messages_removed": left_out, "budget": budget}
            await self._hooks.emit("context:compaction", told)

    def _budget(self, given: int | None, provider: Any) -> int:
        if given is not None:
            return given
        limits = [limit for limit in (self._max_tokens, _limit_of(provider)) if limit is not None]
        return min(limits, default=MAX_TOKENS)


def _is_replaced(message: Mapping[str, Any]) -> bool:
    """Return whether a message is an instruction that a factory makes anew; what a hook put in is none."""
    return message.get("role") == "system" and (message.get("metadata") or {}).get("source") != "hook"


def _limit_of(provider: Any) -> int | None:
    """Return how many tokens a provider takes in a request, as it tells them; None if it does not."""
    if provider is None:
        return None
    model = getattr(provider, "get_model_info", lambda: None)()
    limits = _Limits(getattr(model, "context_window", None), getattr(model, "max_output_tokens", None))
    if limits.tokens is None and hasattr(provider, "get_info"):
        known = provider.get_info().defaults or {}
        limits = _Limits(known.get("context_window"), known.get("max_output_tokens"))
    return limits.tokens


class _Limits(NamedTuple):
    window: object
    output: object

    @property
    def tokens(self) -> int | None:
        if not (isinstance(self.window, int) and isinstance(self.output, int) and self.window > 0):
            return None
        return int(self.window - OUTPUT_SHARE * self.output) - MARGIN
