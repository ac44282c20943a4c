"""What a hook puts before a model: the prompt block when a session starts, and what a prompt calls
to mind.

Nothing is put there twice in one session, nothing that only a hook has captured, and no more than
the host takes.
"""

import contextlib
from typing import TYPE_CHECKING, Any

from memories.core.events import OFF
from memories.hooks import echo, session
from memories.hooks.block import MOST_CHARACTERS, MOST_TOKENS, block, memory, settings
from memories.hooks.figures import figures_of
from memories.hooks.recall_request import NOT_ASKED, HookContext, RecallRequest
from memories.settings import Config

if TYPE_CHECKING:
    from collections.abc import Callable

    from memories.context.gateway import MemoryGateway
    from memories.memories import Memories

_NO_ID = "ffffffff-ffff-7"  # the beginning of an id of the year 10889


def answer(
    request: RecallRequest, opened: "Callable[[Config, bool], Memories] | None" = None
) -> HookContext:
    """Return the context for a model.

    Args:
        request: The session, the prompt if there is one, and the deadline.
        opened: Gives a command of a server its memory; None elsewhere.

    Raises:
        MemoriesError: A setting is wrong; or a session begins, its store can't be asked, and it has
            no scratchpad.
    """
    config = settings(request)
    context = (
        block(request, config, opened)
        if request.prompt is None
        else _recall(request, config, opened)
    )
    context.figures = figures_of(config, request.folder, context.text)
    context.wanted_store = config.store if config.serve == "auto" and opened is None else ""
    return context


def served(data: bytes, opened: "Callable[[Config, bool], Memories] | None") -> str:
    """Return, as JSON, what a hook asked of a server."""
    return answer(RecallRequest.decode(data), opened).encode()


def _recall(
    request: RecallRequest, config: Config, opened: "Callable[[Config, bool], Memories] | None"
) -> HookContext:
    """Return the memories and turns that a prompt calls for, fenced as data; empty if there are no
    new ones.
    """
    from memories.hooks.recall_gateway import gateway

    if not request.counts:
        config = config._replace(events=OFF, count_accesses=False, reinforce_on_retrieval=False)
    state = session.read(request.home, request.session)
    with memory(config, opened) as memories:
        why = NOT_ASKED if request.ends is None else _unwell(memories, request.seconds() / 2)
        left = config.memory_timeout_seconds if request.ends is None else request.seconds()
        with contextlib.closing(gateway(memories, state.shown, why, left)) as source:
            found, text = _fitting(source, config, str(request.prompt))
        errors = found["metadata"]["errors"]
        if errors:
            memories.abandon()  # a call that was given up may still use the store
    context = HookContext(text, config.namespace)
    context.error = errors[0]["error"] if errors else ""
    ids = [item.id for item, _ in found["memories"]]
    ids += [f"{turn.conversation_id}#{turn.turn_index}" for turn in found["recalled"]]
    context.shown = [shown_id for shown_id in ids if shown_id]
    texts = [item.text for item, _ in found["memories"]] + [turn.text for turn in found["recalled"]]
    context.marks = sorted({mark for text in texts for mark in echo.marks(text)})
    return context


def _unwell(memories: "Memories", seconds: float) -> str:
    """Return why a store does not answer what costs it nothing, so that no model is loaded for it;
    empty if it does.
    """
    from memories.core.deadline import Deadline, MemoryTimeout
    from memories.errors import StoreError

    try:
        Deadline(seconds).run(lambda: memories.ids(_NO_ID, limit=1))
    except MemoryTimeout:
        return f"the store did not answer within {seconds:.2g} s"
    except StoreError as exc:
        return str(exc)
    return ""


def _fitting(gateway: "MemoryGateway", config: Config, said: str) -> tuple[dict[str, Any], str]:
    """Return a context that a host takes, and how it is written, which is nothing if nothing was
    found.
    """
    from memories.context.context import ContextBuilder, estimate_tokens

    budget = min(MOST_TOKENS, config.context_token_budget or MOST_TOKENS)
    config = config._replace(
        events=OFF
    )  # of several that are tried, the hook notes the one that it gives
    while True:
        builder = ContextBuilder.from_config(gateway, config, budget)
        context = builder.build_recall(said)
        written = (
            builder.format_for_prompt(context) if context["memories"] or context["recalled"] else ""
        )
        if len(written) <= MOST_CHARACTERS and estimate_tokens(written) <= MOST_TOKENS:
            return context, written
        budget = budget * 3 // 4
        if budget < 100:
            return {**context, "memories": [], "recalled": []}, ""
