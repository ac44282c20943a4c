"""What a hook puts before a model: the prompt block when a session starts, and what a prompt calls to mind.

Nothing is put there twice in one session, nothing that only a hook has captured, and no more than the host takes.
"""

import contextlib
from typing import TYPE_CHECKING, Any

from memories.core.events import OFF
from memories.hooks import echo, session
from memories.hooks.asking import NOT_ASKED, Asking, Given
from memories.hooks.block import MOST_CHARACTERS, MOST_TOKENS, block, memory, settings
from memories.hooks.noting import figures
from memories.settings import Config

if TYPE_CHECKING:
    from collections.abc import Callable

    from memories.context.gateway import MemoryGateway
    from memories.memories import Memories

_NO_ID = "ffffffff-ffff-7"  # the beginning of an id of the year 10889


def answer(asking: Asking, opened: "Callable[[Config, bool], Memories] | None" = None) -> Given:
    """Return what is put before a model.

    Args:
        asking: What is asked.
        opened: Gives a command of a server its memory; None elsewhere.

    Raises:
        MemoriesError: A setting is wrong; or a session begins, its store can't be asked, and it has no scratchpad.
    """
    config = settings(asking)
    given = block(asking, config, opened) if asking.prompt is None else _relevant(asking, config, opened)
    given.noted = figures(config, asking.folder, given.said)
    given.wanted = config.store if config.serve == "auto" and opened is None else ""
    return given


def served(data: bytes, opened: "Callable[[Config, bool], Memories] | None") -> str:
    """Return, as JSON, what a hook asked of a server."""
    return answer(Asking.decoded(data), opened).encoded()


def _relevant(asking: Asking, config: Config, opened: "Callable[[Config, bool], Memories] | None") -> Given:
    """Return what a prompt calls to mind, fenced as data; nothing if nothing new comes to mind."""
    from memories.hooks.fresh import gateway

    if not asking.counts:
        config = config._replace(events=OFF, count_accesses=False, reinforce_on_retrieval=False)
    known = session.read(asking.home, asking.session)
    with memory(config, opened) as memories:
        why = NOT_ASKED if asking.ends is None else _unwell(memories, asking.seconds() / 2)
        left = config.memory_timeout_seconds if asking.ends is None else asking.seconds()
        with contextlib.closing(gateway(memories, known.shown, why, left)) as source:
            context, shown = _fitting(source, config, str(asking.prompt))
        errors = context["metadata"]["errors"]
        if errors:
            memories.abandon()  # a call that was given up may still use the store
    given = Given(shown, config.namespace)
    given.why = errors[0]["error"] if errors else ""
    ids = [item.id for item, _ in context["memories"]]
    ids += [f"{turn.conversation_id}#{turn.turn_index}" for turn in context["recalled"]]
    texts = [item.text for item, _ in context["memories"]] + [turn.text for turn in context["recalled"]]
    given.shown = [each for each in ids if each]
    given.marks = sorted({mark for text in texts for mark in echo.marks(text)})
    return given


def _unwell(memories: "Memories", seconds: float) -> str:
    """Return why a store does not answer what costs it nothing, so that no model is loaded for it; empty if it does."""
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
    """Return a context that a host takes, and how it is written, which is nothing if nothing was found."""
    from memories.context.context import ContextBuilder, estimate_tokens

    budget = min(MOST_TOKENS, config.context_token_budget or MOST_TOKENS)
    config = config._replace(events=OFF)  # of several that are tried, the hook notes the one that it gives
    while True:
        builder = ContextBuilder.from_config(gateway, config, budget)
        context = builder.build_recall(said)
        written = builder.format_for_prompt(context) if context["memories"] or context["recalled"] else ""
        if len(written) <= MOST_CHARACTERS and estimate_tokens(written) <= MOST_TOKENS:
            return context, written
        budget = budget * 3 // 4
        if budget < 100:
            return {**context, "memories": [], "recalled": []}, ""
