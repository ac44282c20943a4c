"""Memories and turns that a prompt recalls, without those that the session has seen already."""

import contextlib
from typing import Any

from memories.context.context import ContextBuilder, estimate_tokens
from memories.context.engine import EngineBackend
from memories.context.gateway import MemoryGateway
from memories.core.deadline import Deadline, MemoryTimeout
from memories.core.events import OFF
from memories.errors import InvalidInput, StoreError, StoreUnreachable
from memories.hooks import session
from memories.hooks.recall_strategy import NOT_ASKED, HookContext, RecallRequest
from memories.hooks.sentences import hash_sentences
from memories.identity.degraded import WithScratchpad
from memories.memories import Memories
from memories.settings import Config

_NO_ID = "ffffffff-ffff-7"  # the prefix of an id of the year 10889
_MAX_EXTRA = 60  # memories that one search asks for in place of those that were shown before
_MIN_BUDGET = 100  # tokens


def recall_prompt(
    memories: Memories, request: RecallRequest, config: Config, *, characters: int, tokens: int
) -> HookContext:
    """Return the memories and turns that a prompt recalls, fenced as data.

    Args:
        memories: The memories, open.
        request: The session and its prompt.
        config: The settings.
        characters: How many characters the text may have.
        tokens: How many tokens it may have.
    """
    in_context = session.read(request.home, request.session).in_context
    if request.deadline is None:
        offline, seconds = NOT_ASKED, config.memory_timeout_seconds
    else:
        offline, seconds = _check_store(memories, request.seconds() / 2), request.seconds()
    with contextlib.closing(_gateway(memories, in_context, offline, seconds)) as gateway:
        recalled, text = _build(gateway, config, str(request.prompt), characters, tokens)
    errors = recalled["metadata"]["errors"]
    if errors:
        memories.abandon()  # a call that timed out may still use the store
    context = HookContext(text, config.namespace)
    context.error = errors[0]["error"] if errors else ""
    marks: set[str] = set()
    for memory, _ in recalled["memories"]:
        marks |= hash_sentences(memory.text)
        if memory.id:
            context.shown.append(memory.id)
    for turn in recalled["recalled"]:
        marks |= hash_sentences(turn.text)
        context.shown.append(f"{turn.conversation_id}#{turn.turn_index}")
    context.marks = sorted(marks)
    return context


def _check_store(memories: Memories, seconds: float) -> str:
    """Return why the store does not answer a cheap call, before a model is loaded; else empty."""
    try:
        Deadline(seconds).run(lambda: memories.ids(_NO_ID, limit=1))
    except MemoryTimeout:
        return f"the store did not answer within {seconds:.2g} s"
    except StoreError as exc:
        return str(exc)
    return ""


def _build(
    gateway: MemoryGateway, config: Config, prompt: str, characters: int, tokens: int
) -> tuple[dict[str, Any], str]:
    """Return a context that fits and its text, which is empty if nothing was recalled."""
    budget = min(tokens, config.context_token_budget or tokens)
    config = config._replace(events=OFF)  # the hook records one event for all attempts
    while True:
        builder = ContextBuilder.from_config(gateway, config, budget)
        context = builder.build_recall(prompt)
        text = ""
        if context["memories"] or context["recalled"]:
            text = builder.format_for_prompt(context)
        if len(text) <= characters and estimate_tokens(text) <= tokens:
            return context, text
        budget = budget * 3 // 4
        if budget < _MIN_BUDGET:
            return {**context, "memories": [], "recalled": []}, ""


def _gateway(
    memories: Memories, in_context: set[str], offline: str, seconds: float | None
) -> MemoryGateway:
    """Return a gateway to the memories.

    Args:
        memories: The memories.
        in_context: The marks of the memories and turns to leave out; see `session.mark`.
        offline: Why the store is not asked; empty if it is.
        seconds: How long a call may take; None for as long as the settings allow.
    """
    unseen = _Unseen(in_context)
    backend = _UnseenBackend(memories, unseen, offline)
    gateway = MemoryGateway(memories.config.mcp_endpoint, backend=backend, timeout_seconds=seconds)
    return _UnseenFromScratchpad(gateway, memories, unseen)  # type: ignore[return-value] # it forwards the rest


class _Unseen:
    """Leaves memories and turns out that are in the context of the session already."""

    def __init__(self, marks: set[str]) -> None:
        self._marks = marks

    def limit(self, k: int) -> int:
        """Return how many results to ask for, so that k remain."""
        return k + min(len(self._marks), _MAX_EXTRA)

    def select(self, results: list[Any], k: int) -> list[Any]:
        """Return the first k results that are new."""
        new = [result for result in results if session.mark(str(result["id"])) not in self._marks]
        return new[:k]


class _UnseenBackend(EngineBackend):
    """The engine, without results that the session has seen."""

    def __init__(self, memories: Memories, unseen: _Unseen, offline: str) -> None:
        super().__init__(memories)
        self._unseen, self._offline = unseen, offline

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Any]:
        """Search the memories."""
        if self._offline:
            raise StoreUnreachable(self._offline)
        limit = self._unseen.limit(k)
        try:
            results = super().recall(query_text, limit, min_confidence, conversation_id)
        except InvalidInput:  # a prompt that is not a question, such as one without visible text
            return []
        return self._unseen.select(results, k)

    def recall_turns(
        self, query_text: str, k: int, conversation_id: str | None, *, own: bool = False
    ) -> list[Any]:
        """Search the turns."""
        limit = self._unseen.limit(k)
        try:
            results = super().recall_turns(query_text, limit, conversation_id, own=own)
        except InvalidInput:
            return []
        return self._unseen.select(results, k)


class _UnseenFromScratchpad(WithScratchpad):
    """A gateway with the scratchpad as fallback, without results that the session has seen."""

    def __init__(self, gateway: MemoryGateway, memories: Memories, unseen: _Unseen) -> None:
        super().__init__(gateway, memories)
        self._unseen = unseen

    def recall_offline(self, query_text: str, k: int, min_confidence: float) -> list[Any]:
        """Search the scratchpad."""
        results = super().recall_offline(query_text, self._unseen.limit(k), min_confidence)
        return self._unseen.select(results, k)
