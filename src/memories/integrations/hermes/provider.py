"""`MemoriesProvider`: the memory of a Hermes agent (`memory.provider: memories` in its settings).

Hermes calls a provider before each turn, to recall memories, and after it, to store what was said.
Recall follows the same rules as the hooks of other hosts; see `hooks.prompt_recall`. Turns are
marked as captured, so they are never shown automatically. docs/hermes.md shows how to install the
plugin.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.memory_provider import MemoryProvider

from memories import ConfigError, InvalidInput, Memories, MemoriesError, TurnDraft, load_config
from memories.answers import shapes
from memories.guard import validate
from memories.hooks import files, session
from memories.hooks.model_context import context_of
from memories.hooks.prompt_recall import TextLimits, recall_for_prompt
from memories.hooks.recall_strategy import HookContext, RecallRequest, query_of
from memories.identity.session_block import build_session_block
from memories.mcp.answers import Own, brief_rows, fence_groups, rows

if TYPE_CHECKING:
    from memories.settings import Config

NAME, HOST = "memories", "hermes"
SETTINGS = "memories.json"  # name of the settings file in Hermes's home
RECALL_SECONDS = 2.0
RECALL_CHARACTERS, RECALL_TOKENS = 8_000, 1_500
MAX_RESULTS = 20
_LOCAL = ("", "cli", "tui", "desktop")  # platforms with one user
# the tag `type` for each target of Hermes's built-in tool
_TYPES = {"user": "preference", "memory": "fact"}
_TEXT = {"type": "string"}
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "search_memories",
        "description": "Find memories by meaning and keyword, best first. Search before you answer "
        "about people, projects, decisions or preferences.",
        "parameters": {
            "type": "object",
            "properties": {"query": _TEXT, "limit": {"type": "integer"}},
            "required": ["query"],
        },
    },
    {
        "name": "create_memory",
        "description": "Store one lasting, self-contained statement, with names and absolute "
        "dates. If it replaces a memory, pass supersedes with its id.",
        "parameters": {
            "type": "object",
            "properties": {"content": _TEXT, "supersedes": _TEXT},
            "required": ["content"],
        },
    },
)


class MemoriesProvider(MemoryProvider):  # type: ignore[misc]  # Hermes has no types
    """Recalls memories before each turn, stores each turn, and offers two tools."""

    def __init__(self) -> None:
        """Create a provider; nothing is opened before `initialize`."""
        self._session = ""
        self._is_primary = True
        self._config: Config | None = None
        self._memories: Memories | None = None
        self._captured: Memories | None = None

    @property
    def name(self) -> str:
        """The name in Hermes's settings."""
        return NAME

    def is_available(self) -> bool:
        """Return True, since the memory needs neither a service nor a key."""
        return True

    # --- lifecycle ---

    def initialize(self, session_id: str, **kwargs: Any) -> None:
        """Open the memory of a session.

        Args:
            session_id: The session.
            **kwargs: Hermes's facts about the session; only `hermes_home`, `platform`, `user_id`,
                `chat_id` and `agent_context` are used.

        Raises:
            MemoriesError: A setting is invalid.
        """
        self.shutdown()
        self._session = session_id
        self._is_primary = kwargs.get("agent_context") in (None, "", "primary")
        config = load_config({})
        namespace = _read_settings(kwargs.get("hermes_home")).get("namespace", config.namespace)
        # Users of a chat service don't share memories; the posts of a channel have no user.
        user = kwargs.get("user_id") or kwargs.get("chat_id")
        is_guest = kwargs.get("platform", "") not in _LOCAL and bool(user)
        if is_guest:
            name = f"{kwargs['platform']}/{user}".encode()
            namespace = f"{HOST}-{hashlib.blake2b(name, digest_size=12).hexdigest()}"
        self._config = config = config._replace(namespace=validate.namespace(namespace))
        self._memories = Memories(config=config, channel=HOST, shared=not is_guest)
        self._captured = Memories(config=config, channel="hook", shared=not is_guest)

    def on_session_switch(self, new_session_id: str, **_kwargs: Any) -> None:
        """Continue with a different session."""
        self._session = new_session_id

    def shutdown(self) -> None:
        """Close the memory."""
        for memories in (self._memories, self._captured):
            if memories is not None:
                memories.close()
        self._memories = self._captured = None

    # --- around a turn ---

    def system_prompt_block(self) -> str:
        """Return the start of a session's prompt: the agent's identity, memories and tools."""
        if self._memories is None:
            return ""
        shown = build_session_block(
            self._memories, project=None, budget=RECALL_TOKENS, client="mcp"
        )
        context = context_of(shown, self._memories.namespace)
        self._record_shown(context, self._session_name(""))
        return context.text

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        """Return the memories that are relevant to a message, fenced as data; empty if there are
        none.
        """
        if self._memories is None or self._config is None:
            return ""
        home, name = str(self._config.home), self._session_name(session_id)
        caller = (home, str(Path.cwd()), name, self._config.namespace)
        request = RecallRequest(caller, query_of(query), time.monotonic() + RECALL_SECONDS)
        limits = TextLimits(RECALL_CHARACTERS, RECALL_TOKENS)
        context = recall_for_prompt(
            self._memories, request, self._config, projects=(), limits=limits
        )
        self._record_shown(context, name)
        return context.text

    def _record_shown(self, context: HookContext, name: str) -> None:
        """Record which memories a session has seen; without this record, they may be repeated."""
        if context.shown and self._config is not None:
            fields = {session.SHOWN: context.shown, session.SENTENCES: context.sentences}
            session.try_append(str(self._config.home), name, **fields)

    def sync_turn(
        self, user_content: str, assistant_content: str, *, session_id: str = "", **_kwargs: Any
    ) -> None:
        """Store a turn, marked as captured; subagents and scheduled runs store none."""
        if self._captured is None or not self._is_primary:
            return
        texts = (("user", user_content), ("assistant", assistant_content))
        drafts = [TurnDraft(text, role) for role, text in texts if text.strip()]
        if drafts:
            self._captured.add_turns(self._session_name(session_id), drafts)

    def on_pre_compress(self, messages: list[dict[str, Any]]) -> str:  # noqa: ARG002
        """Clear the list of memories that the session was shown, since compression removes them
        from its context.

        The memories can then be recalled again. Nothing is added to the summary.
        """
        if self._config is not None:
            session.append(str(self._config.home), self._session_name(""), **{session.RESET: True})
        return ""

    def on_memory_write(
        self, action: str, target: str, content: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Also store what Hermes's own memory tool adds."""
        del metadata
        if self._memories is not None and action == "add" and content.strip():
            self._memories.create(content, tags={"type": _TYPES.get(target, "fact")})

    def _session_name(self, session_id: str) -> str:
        return files.session_name(HOST, session_id or self._session)

    # --- tools ---

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Return the tools in OpenAI's format."""
        return [dict(tool) for tool in TOOLS]

    def handle_tool_call(self, tool_name: str, args: dict[str, Any], **_kwargs: Any) -> str:
        """Run a tool; return its result or its error as JSON."""
        tools: dict[str, Callable[..., str]] = {
            "search_memories": self._search,
            "create_memory": self._create,
        }
        try:
            if tool_name not in tools:
                raise InvalidInput(f"there is no tool {tool_name}")
            return json.dumps({"result": tools[tool_name](**args)})
        except (MemoriesError, TypeError) as exc:
            return json.dumps({"error": str(exc)})

    def _open(self) -> Memories:
        if self._memories is None:
            raise InvalidInput("the memory is not open; Hermes has not begun a session")
        return self._memories

    def _search(self, query: str, limit: int = 5) -> str:
        memories = self._open()
        hits = memories.search(query, limit=min(int(limit), MAX_RESULTS))
        return fence_groups(memories=rows(list(map(shapes.hit, hits)), own=Own.of(memories)))

    def _create(self, content: str, supersedes: str = "") -> str:
        created = self._open().create(content, supersedes=supersedes or None)
        if created.duplicates:
            return "known\n" + fence_groups(duplicates=rows(shapes.similar(created.duplicates)))
        verb = "stored" if created.stored else "already known"
        if not created.similar_to:
            return f"{verb} {created.id}"
        similar = fence_groups(similar_to=brief_rows(shapes.similar(created.similar_to)))
        hint = "if it replaces or repeats one of these, call this again with supersedes"
        return f"{verb} {created.id}; {hint}\n{similar}"

    # --- settings ---

    def get_config_schema(self) -> list[dict[str, Any]]:
        """Return the fields for `hermes memory setup`."""
        about = "Namespace of the memories; shared by default"
        return [{"key": "namespace", "description": about, "default": "shared"}]

    def save_config(self, values: dict[str, Any], hermes_home: str) -> None:
        """Store the fields in Hermes's home.

        Raises:
            InvalidInput: The namespace is invalid.
        """
        namespace = validate.namespace(values.get("namespace") or "shared")
        text = json.dumps({"namespace": namespace}, indent=2)
        (Path(hermes_home) / SETTINGS).write_text(text + "\n", encoding="utf-8")

    def backup_paths(self) -> list[str]:
        """Return the folder of the memories, which is outside Hermes's home."""
        return [str(load_config({}).home)]


def _read_settings(hermes_home: Any) -> dict[str, Any]:
    if not hermes_home:
        return {}
    try:
        text = (Path(hermes_home) / SETTINGS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        settings = validate.read_json(text)
    except InvalidInput as exc:
        raise ConfigError(f"{SETTINGS} in Hermes's home {exc}") from exc
    return settings if isinstance(settings, dict) else {}
