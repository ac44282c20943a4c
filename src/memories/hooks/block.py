"""The prompt block that a session begins with; where its scratchpad is up to date, no memory is
opened for it.
"""

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from memories.config import load_config
from memories.errors import ConfigError, StoreUnreachable
from memories.hooks import echo, stamps
from memories.hooks.recall_request import NOT_ASKED, HookContext, RecallRequest
from memories.identity import project as projects
from memories.identity import prompt
from memories.models import SHARED
from memories.scratchpad.hot_tier import read_up_to_date
from memories.settings import Config

if TYPE_CHECKING:
    from memories.memories import Memories

MOST_CHARACTERS = 8_000  # Claude Code cuts at 10,000, as it counts them
MOST_TOKENS = 2_000  # Codex cuts at about 2,500


def settings(request: RecallRequest) -> Config:
    """Return the settings, as `memory` in the working folder would have them; a call has the time
    that was given.
    """
    folder = Path(request.folder)
    flags = {"namespace": request.namespace} if request.namespace else {}
    found = load_config(flags, folder=folder if folder.is_dir() else None, tell=_log(request.home))
    if request.ends is None:
        return found
    own, seconds = found.memory_timeout_seconds, round(request.seconds(), 2)
    return found._replace(memory_timeout_seconds=seconds if own is None else min(own, seconds))


def _log(home: str) -> Callable[[str], None]:
    return lambda said: stamps.log(home, said)


def block(
    request: RecallRequest, config: Config, opened: "Callable[[Config, bool], Memories] | None"
) -> HookContext:
    """Return the prompt block of a session that starts.

    Args:
        request: The session and the deadline.
        config: The settings.
        opened: Gives a command of a server its memory; None elsewhere.

    Raises:
        StoreError: The store can't be asked, and there is no scratchpad.
    """
    project = _project(request) if config.project_detection else None
    wanted = prompt.Wanted.of(config, project, MOST_TOKENS, prompt.CLIENTS[0])
    names = tuple(dict.fromkeys((config.namespace, SHARED)))
    found = read_up_to_date(config, names, datetime.now(UTC)) if opened is None else None
    made = (
        _ask_store(request, config, wanted, opened) if found is None else prompt.made(wanted, found)
    )
    context = HookContext(made.text if len(made.text) <= MOST_CHARACTERS else "", config.namespace)
    context.marks = sorted(echo.marks(context.text))
    context.error = made.degraded or ""
    return context


def _ask_store(
    request: RecallRequest,
    config: Config,
    wanted: prompt.Wanted,
    opened: "Callable[[Config, bool], Memories] | None",
) -> prompt.Prompt:
    with memory(config, opened) as memories:
        if request.ends is not None:
            return prompt.build(
                memories, project=wanted.project, budget=wanted.budget, client=wanted.client
            )
        found = memories.scratchpad_at_hand()
        if found is not None:
            return prompt.made(wanted, found)
        found = memories.offline()
        if found is None:
            raise StoreUnreachable(NOT_ASKED)
        return prompt.made(wanted, found, NOT_ASKED)


@contextlib.contextmanager
def memory(
    config: Config, opened: "Callable[[Config, bool], Memories] | None"
) -> "Iterator[Memories]":
    """Open the memory that hooks read."""
    from memories.memories import Memories

    made = Memories(config=config, channel="hook") if opened is None else opened(config, True)
    with made as memories:
        yield memories


def _project(request: RecallRequest) -> str | None:
    """Return the project of the working folder; where it can't be found, a session begins without
    what it left.
    """
    try:
        found = projects.identify(Path(request.folder))
    except (ConfigError, OSError) as exc:
        stamps.log(request.home, f"the project of {request.folder} is not known: {exc}")
        return None
    return None if found is None else found.name
