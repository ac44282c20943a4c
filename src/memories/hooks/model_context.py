"""The context that a hook gives a model: the session block, or the texts that a prompt recalls.

A session starts with the block that `identity.session_block` renders. If the scratchpad is up to
date, no store is opened for the block. `prompt_recall` finds the memories and turns that a prompt
needs. `handler` sends them, together with its notices. The block and the recalled texts are each
short enough to be accepted by all hosts.
"""

import contextlib
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memories.anchors.judge import HOOK_SECONDS, Judge, cache_of
from memories.config import load_config, registers
from memories.core.events import OFF
from memories.errors import ConfigError, StoreUnreachable
from memories.hooks import runs, session
from memories.hooks.recall_strategy import NOT_ASKED, HookContext, RecallRequest
from memories.hooks.sentences import hash_sentences
from memories.identity import session_block
from memories.identity.place import names_of
from memories.identity.project import Project, identify
from memories.models import SHARED
from memories.scratchpad.hot_tier import read_up_to_date
from memories.settings import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memories.hooks.prompt_recall import RecallTrace
    from memories.memories import Memories
    from memories.scratchpad.entries import Entry

    OpenMemories = Callable[[Config, bool], Memories]

CONNECTED = "connected.json"  # the receipts of `memory connect`, as in `memories.connect.files`
MAX_CHARACTERS = (
    session_block.MAX_CHARACTERS
)  # 8,000: Claude Code truncates contexts at 10,000 characters
# Codex truncates contexts at about 2,500 tokens. The setting `prompt_tokens` limits what `memory
# prompt` and HTTP give.
MAX_TOKENS = 2_000


class Situation(NamedTuple):
    """The inputs of a hook's response, apart from the session and the prompt.

    Attributes:
        config: The settings.
        project: The session's project; None if there is none.
        client: How the agent reaches its memory: see `session_block.build_session_block`.
        root: The top folder of the project's working tree, if any.
        open_in_server: Opens the memories in a server; None in other processes.
    """

    config: Config
    project: str | None
    client: str
    root: Path | None = None
    open_in_server: "OpenMemories | None" = None

    def root_of(self, project: str) -> Path | None:
        """Return the top folder of a project's working tree, if the session works there."""
        return self.root if project in names_of(self.project) else None


def build_hook_context(
    request: RecallRequest, open_in_server: "OpenMemories | None" = None
) -> HookContext:
    """Return the context for a model.

    Args:
        request: The session, the prompt if there is one, and the deadline.
        open_in_server: Opens the memories in a server; None in other processes.

    Raises:
        MemoriesError: A setting is wrong, or a session starts without a reachable store and without
            a scratchpad.
    """
    situation = find_situation(request)._replace(open_in_server=open_in_server)
    config = situation.config
    if request.prompt is None:
        context = context_of(build_block(request, situation), config.namespace)
    else:
        context = open_and_recall(request, situation)
    if config.serve != "off" and open_in_server is None:
        context.wanted_store = config.store
    return context


def answer_as_server(data: bytes, open_in_server: "OpenMemories | None") -> str:
    """Answer a hook's encoded request in a server; return the encoded context.

    The server also records the run for `memory stats`, since a hook would have to load more code to
    do so.
    """
    request = RecallRequest.decode(data)
    context = build_hook_context(request, open_in_server)
    if request.marks_read:
        event = "session-start" if request.prompt is None else "user-prompt"
        runs.record_for_stats(
            event,
            request.folder,
            context.namespace,
            context.text,
            agent=request.session.partition(".")[0],
            outcome="degraded" if context.error else "ok",
            ms=round((time.monotonic() - request.started_at) * 1000, 2),
        )
        context.is_noted = True
    return context.encode()


def find_situation(request: RecallRequest) -> Situation:
    """Return a working folder's settings and project, and how the agent reaches the memory.

    Raises:
        MemoriesError: A setting is wrong.
    """
    config = read_settings(request)
    project = _identify(request) if config.project_detection else None
    has_tools = session.read(request.home, request.session).has_tools or has_mcp_tools(
        request.session, request.folder
    )
    client = "mcp" if has_tools else "shell"
    if project is None:
        return Situation(config, None, client)
    return Situation(config, project.name, client, project.root)


def read_settings(request: RecallRequest) -> Config:
    """Return the working folder's settings.

    The timeouts for calls are limited to the time that the hook has left.
    """

    def log(message: str) -> None:
        runs.log(request.home, message)

    flags = {"namespace": request.namespace or None}
    config = load_config(flags, folder=Path(request.folder), tell=log)
    if not request.asks_store:
        return config
    seconds = round(request.seconds(), 2)
    if config.memory_timeout_seconds is not None:
        seconds = min(config.memory_timeout_seconds, seconds)
    return config._replace(memory_timeout_seconds=seconds)


@contextlib.contextmanager
def open_memories(config: Config, situation: Situation) -> "Iterator[Memories]":
    """Open the memories that hooks read; anchors are checked in the session's working tree."""
    from memories.memories import Memories

    if situation.open_in_server is None:
        opening = Memories(config=config, channel="hook")
    else:
        opening = situation.open_in_server(config, True)
    with opening as memories:
        yield memories.judge_in(situation.root_of, HOOK_SECONDS)


def open_and_recall(
    request: RecallRequest, situation: Situation, trace: "RecallTrace | None" = None
) -> HookContext:
    """Return the memories and turns that a prompt recalls.

    They count as read only if `request.marks_read` is true.
    """
    from memories.hooks.prompt_recall import TextLimits, recall_for_prompt

    config = situation.config
    if not request.marks_read:
        config = config._replace(events=OFF, count_accesses=False, reinforce_on_retrieval=False)
    projects = names_of(situation.project)
    with open_memories(config, situation) as memories:
        return recall_for_prompt(
            memories,
            request,
            config,
            projects=projects,
            limits=TextLimits(MAX_CHARACTERS, MAX_TOKENS),
            trace=trace,
        )


def build_block(request: RecallRequest, situation: Situation) -> session_block.SessionBlock:
    """Return the block for the start of a session.

    A session never gets its own note. A resumed session keeps the block that it was given, so the
    text is empty if there is nothing new.

    Raises:
        StoreError: The store can't be reached, and there is no scratchpad.
    """
    config = situation.config
    state = session.read(request.home, request.session)
    keeps_context = state.resumed and state.has_context
    own_key = session.note_key(request.session)

    def is_in_context(entry: "Entry") -> bool:
        """Return whether this is the session's own note, or a memory that a resumed session has."""
        if entry.key == own_key:
            return True
        return keeps_context and state.has(entry.id, hash_sentences(entry.content))

    wanted = session_block.BlockRequest.of(config, situation.project, MAX_TOKENS, situation.client)
    wanted = wanted._replace(is_in_context=is_in_context)
    scratchpad = None
    if situation.open_in_server is None:
        names = tuple(dict.fromkeys((config.namespace, SHARED)))
        scratchpad = read_up_to_date(config, names, datetime.now(UTC))
    if scratchpad is None:
        block = _block_with_memories(request, situation, wanted)
    else:
        cache = cache_of(config.home, config.namespace)
        judge = Judge(situation.root_of, cache, HOOK_SECONDS)
        block = session_block.build_from_scratchpad(
            wanted, scratchpad.with_verdicts(judge, datetime.now(UTC))
        )
    if keeps_context and not (block.entries or block.sessions):
        return block._replace(text="")
    return block


def context_of(block: session_block.SessionBlock, namespace: str) -> HookContext:
    """Return a block as the context of a session; empty if the block is too long for hosts."""
    text = block.text if len(block.text) <= MAX_CHARACTERS else ""
    context = HookContext(text, namespace)
    sentences = hash_sentences(text)
    if text:
        for entry in (*block.entries, *block.sessions):
            if entry.cut is None:  # a truncated memory doesn't count as shown
                context.shown.append(entry.id)
                sentences |= hash_sentences(entry.content)
    context.sentences = sorted(sentences)
    context.error = block.degraded or ""
    return context


def _block_with_memories(
    request: RecallRequest, situation: Situation, wanted: session_block.BlockRequest
) -> session_block.SessionBlock:
    """Return the block made from a scratchpad; if the store may be asked, refresh the scratchpad
    first.
    """
    with open_memories(situation.config, situation) as memories:
        if request.asks_store:
            return session_block.build_for_request(memories, wanted)
        scratchpad = memories.scratchpad_at_hand()
        if scratchpad is not None:
            return session_block.build_from_scratchpad(wanted, scratchpad)
        scratchpad = memories.offline()
        if scratchpad is None:
            raise StoreUnreachable(NOT_ASKED)
        return session_block.build_from_scratchpad(wanted, scratchpad, NOT_ASKED)


def has_mcp_tools(session: str, folder: str) -> bool:
    """Return whether a session's host has the tools of the MCP server.

    `memory connect` always connects the server together with the hooks, and records this in a
    receipt. The OpenClaw plugin has tools with the same names.

    Args:
        session: The session's name, or only the host's.
        folder: The agent's working folder.
    """
    host = session.partition(".")[0]
    if host == "openclaw":
        return True
    try:
        receipts = json.loads((registers() / CONNECTED).read_bytes())["connected"]
        roots = {receipt["root"] for receipt in receipts if receipt["host"] == host}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # there is no receipt, or a damaged one, which doctor reports
    return any(root == "" or Path(folder).is_relative_to(root) for root in roots)


def _identify(request: RecallRequest) -> Project | None:
    """Return the working folder's project; None if it has none or can't be identified."""
    try:
        return identify(Path(request.folder))
    except (ConfigError, OSError) as exc:
        runs.log(request.home, f"cannot identify the project of {request.folder}: {exc}")
        return None
