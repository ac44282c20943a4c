"""What a hook puts before a model: the prompt block when a session starts, and what a prompt calls to mind.

Nothing is put there twice in one session, nothing that only a hook has captured, and no more than the host takes.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memories.agent.context import ContextBuilder, estimate_tokens
from memories.agent.engine import EngineBackend
from memories.agent.gateway import MemoryGateway
from memories.config import load_config
from memories.errors import ConfigError
from memories.events import OFF
from memories.identity import project as projects
from memories.identity import prompt
from memories.identity.captured import GIVEN_TO
from memories.service import Memories
from memories.settings import Config
from memories.skins.capture import echo, session, stamps
from memories.skins.capture.prompts import Wish

MOST_CHARACTERS = 8_000  # Claude Code cuts at 10,000, as it counts them
MOST_TOKENS = 2_000  # Codex cuts at about 2,500
_MOST_KNOWN = 60  # memories that were shown before and are passed over by one search


class Where(NamedTuple):
    """Where something is recalled: the home, the working folder, the session's name, a namespace if one was named."""

    home: str
    folder: str
    session: str
    namespace: str | None


def block(where: tuple[str, str, str, str | None]) -> str:
    """Return the prompt block of a session that starts."""
    at = Where(*where)
    with _memories(at) as memories:
        said = _block(memories, at)
        _given(at, memories.namespace, (), [said])
    return said


def relevant(where: tuple[str, str, str, str | None], said: str) -> str:
    """Return what a prompt calls to mind, fenced as data; empty if nothing new comes to mind.

    Args:
        where: See `Where`.
        said: The prompt.
    """
    at = Where(*where)
    known = session.read(at.home, at.session)
    with _memories(at) as memories, contextlib.closing(_Fresh.over(memories, known.shown)) as gateway:
        context, shown = _fitting(gateway, memories.config, said)
        namespace = memories.namespace
    if not context:
        return ""
    ids = [item.id for item, _ in context["memories"]] + [
        f"{turn.conversation_id}#{turn.turn_index}" for turn in context["recalled"]
    ]
    texts = [item.text for item, _ in context["memories"]] + [turn.text for turn in context["recalled"]]
    _given(at, namespace, [each for each in ids if each], texts)
    return shown


def switched(where: tuple[str, str, str, str | None], wish: Wish) -> str:
    """Switch a session as its user wishes; return what the agent is told about it.

    Args:
        where: See `Where`.
        wish: What was wished.
    """
    at = Where(*where)
    if not wish.on:
        session.note(at.home, at.session, off=True)
        return "Memory is off for this session: nothing is recalled or captured. The user can say: memory on."
    known: dict[str, object] = {session.OFF: False, session.RESET: True}
    if wish.namespace is not None:
        known[session.NAMESPACE] = wish.namespace
        at = at._replace(namespace=wish.namespace)
    session.note(at.home, at.session, **known)
    with _memories(at) as memories:
        said = _block(memories, at)
        told = f'Memory is on. In this session you are "{memories.namespace}".'
        _given(at, memories.namespace, (), [said])
    return f"{told}\n{said}"


def _block(memories: Memories, at: Where) -> str:
    project = _project(at) if memories.config.project_detection else None
    budget = MOST_TOKENS
    while True:
        said = prompt.block(memories, project=project, budget=budget)
        if len(said) <= MOST_CHARACTERS or budget < 100:
            return said if len(said) <= MOST_CHARACTERS else ""
        budget = budget * 3 // 4


def _project(at: Where) -> str | None:
    """Return the project of the working folder; where it can't be found, a session begins without what it left."""
    try:
        found = projects.identify(Path(at.folder))
    except (ConfigError, OSError) as exc:
        stamps.log(at.home, f"the project of {at.folder} is not known: {exc}")
        return None
    return None if found is None else found.name


def _fitting(gateway: MemoryGateway, config: Config, said: str) -> tuple[dict[str, Any], str]:
    """Return a context that a host takes, and how it is written; both empty if nothing was found."""
    budget = min(MOST_TOKENS, config.context_token_budget or MOST_TOKENS)
    config = config._replace(events=OFF)  # of several that are tried, the hook notes the one that it gives
    while budget >= 100:
        builder = ContextBuilder.from_config(gateway, config, budget)
        context = builder.build_recall(said)
        if not context["memories"] and not context["recalled"]:
            break
        written = builder.format_for_prompt(context)
        if len(written) <= MOST_CHARACTERS and estimate_tokens(written) <= MOST_TOKENS:
            return context, written
        budget = budget * 3 // 4
    return {}, ""


@contextlib.contextmanager
def _memories(at: Where) -> Iterator[Memories]:
    """Open the memory as `memory` in the working folder would."""
    folder = Path(at.folder)
    flags = {"namespace": at.namespace} if at.namespace else {}
    config = load_config(flags, folder=folder if folder.is_dir() else None, tell=_log(at.home))
    with Memories(config=config, channel="hook") as memories:
        yield memories


def _log(home: str) -> Callable[[str], None]:
    return lambda said: stamps.log(home, said)


def _given(at: Where, namespace: str, ids: Sequence[str], texts: Sequence[str]) -> None:
    """Remember what a session was given as whom, so that it is neither given again nor captured."""
    said = sorted({mark for text in texts for mark in echo.marks(text)})
    if ids or said:
        session.note(at.home, at.session, **{session.SHOWN: list(ids), session.SAID: said, GIVEN_TO: namespace})


class _Fresh(EngineBackend):
    """Our engine without what a session has in its context already."""

    def __init__(self, memories: Memories, shown: set[str]) -> None:
        super().__init__(memories)
        self._shown = shown

    @classmethod
    def over(cls, memories: Memories, shown: set[str]) -> MemoryGateway:
        """Return a gateway to a memory."""
        return MemoryGateway(memories.config.mcp_endpoint, backend=cls(memories, shown))

    def recall(self, query_text: str, k: int, min_confidence: float, conversation_id: str | None) -> list[Any]:
        """Search the memories, past those that are known."""
        more = k + min(len(self._shown), _MOST_KNOWN)
        return self._new(super().recall(query_text, more, min_confidence, conversation_id))[:k]

    def recall_turns(self, query_text: str, k: int, conversation_id: str | None) -> list[Any]:
        """Search the turns, past those that are known."""
        more = k + min(len(self._shown), _MOST_KNOWN)
        return self._new(super().recall_turns(query_text, more, conversation_id))[:k]

    def _new(self, found: list[Any]) -> list[Any]:
        return [each for each in found if each["id"] not in self._shown]
