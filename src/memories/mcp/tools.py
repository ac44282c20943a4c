"""Agents' tools: each calls one method of `Memories`, and `answers` renders the result."""

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from memories.answers import conversation_shapes, shapes, store_shapes
from memories.answers.advice import complete_commands
from memories.context import fence
from memories.context.context import ContextBuilder
from memories.context.gateway import ENGINE, MemoryGateway
from memories.context.memories_backend import MemoriesBackend
from memories.core.times import parse_time_in_zone
from memories.embedders import give_hint
from memories.errors import InvalidInput, NotFound
from memories.guard.origin import present
from memories.identity.place import find_project, with_whole_name
from memories.mcp import answers
from memories.mcp.answers import Own, brief, row, rows, shorten, with_author
from memories.memories import Memories
from memories.models import DecayPolicy, Draft, Memory
from memories.read.lookup import complete_project
from memories.read.turns import TurnDraft
from memories.search.filters import FILTERS, Parameter

if TYPE_CHECKING:
    from memories.search.results import Explanation

HINT_UNLINKED = "the link was removed; both memories are current"
CONFIRM = "call update_memory for {} with confirm=true"
HINT_DELETED = "restore_memory brings it back"
NOTHING_TO_UPDATE = (
    "no changes were given; pass content, tags, remove_tags, confirm or not_corrects"
)
CONTEXT_TOKENS = (200, 20_000)
FACTS_TOKENS = 60  # tokens of a context reserved for the counts of omitted texts
MAX_AGENT = 64
MAX_SEEN = 20  # maximum number of memories remembered from a session's searches
MAX_RESULTS = 50
MAX_VERSIONS = 20
MAX_TURNS = 1_000
BESIDE = 2  # number of turns shown before and after a turn that is read
# Defaults that differ from the library's.
SEARCH_DEFAULTS: Mapping[str, Any] = {"scope": "all", "limit": 5}

# An optional text has the type `str` and the default "": if None were allowed, the SDK would parse
# the text as JSON.
Tags = dict[str, str] | None
Value = TypeVar("Value")
Ready = Callable[[bool], tuple[Memories, str]]
Matching = Annotated[Tags, Field(description=FILTERS["tags"].hint)]
Cursor = Annotated[str, Field(description="next_cursor")]
Caller = Context[Any, Any]
# For each kind of filter: its type, as the SDK needs it, and its default.
_KINDS: Mapping[str, tuple[Any, Any]] = {
    "text": (str, ""),
    "time": (str, ""),
    "share": (float | None, None),
    "whole": (int, 0),
    "flag": (bool, False),
    "tags": (Tags, None),
}


class Message(BaseModel, extra="forbid"):
    """One message of a conversation, as a client sends it."""

    content: str
    role: Literal["user", "assistant", "system", "tool"] = "user"
    speaker: str = ""
    at: Annotated[str, Field(description="when; now by default")] = ""
    message_id: Annotated[str, Field(description="makes sending it twice harmless")] = ""


def taking_filters(
    defaults: Mapping[str, Any],
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Return a decorator that adds a search's parameters to the signature that the SDK reads.

    Args:
        defaults: Default values, keyed by name. A parameter without one filters nothing if omitted.
    """

    def decorate(tool: Callable[..., Value]) -> Callable[..., Value]:
        *parameters, _ = inspect.signature(tool, eval_str=True).parameters.values()
        parameters += [_parameter(row, defaults.get(name)) for name, row in FILTERS.items()]
        signature = inspect.Signature(parameters, return_annotation=CallToolResult)
        tool.__signature__ = signature  # type: ignore[attr-defined]
        return tool

    return decorate


def _parameter(row: Parameter, default: Any) -> inspect.Parameter:
    """Return a tool's parameter for a filter; with the default None, it filters nothing."""
    kind, idle = _KINDS[row.kind]
    if row.choices:
        kind, idle = Literal[row.choices] | None, None
    if row.default == "true":
        idle = True
    if row.hint:
        kind = Annotated[kind, Field(description=row.hint)]
    return inspect.Parameter(
        row.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=idle if default is None else default,
        annotation=kind,
    )


def _widest_scope(filters: Mapping[str, Any]) -> str:
    """Return the widest scope that can be searched with these filters."""
    scopes = {FILTERS[name].scope for name, value in filters.items() if value}
    if "history" in scopes:
        return "history"
    if "memories" in scopes or filters.get("tier", "deep") != "deep":
        return "memories"
    return "all"


class Tools:
    """Agents' tools: each method is a tool, and models read its docstring.

    Attributes:
        write_order: Held during each write. If all calls come from one client, this is a lock, so
            that writes are applied in the order in which they arrive.
    """

    write_order: AbstractAsyncContextManager[None] = nullcontext()

    def __init__(
        self, find_memories: Callable[[], Memories], ready: Ready, max_seen: int = MAX_SEEN
    ) -> None:
        """Prepare the tools; no store is opened yet.

        Args:
            find_memories: Returns the `Memories` for writing, and for reading once their model is
                loaded. Each call may get a different object.
            ready: Returns the `Memories` that can search now (the same object, or one over the same
                store that searches by words only) and a hint for the caller's model. Its argument
                says whether to wait longer for the embedding model.
            max_seen: Maximum number of memories remembered from searches.
        """
        self._find_memories = find_memories
        self.ready = ready
        self._seen: deque[str] = deque(maxlen=max_seen)

    @property
    def memories(self) -> Memories:
        """The `Memories` that this call uses."""
        return self._find_memories()

    def _written_by(self, caller: Caller) -> Memories:
        """Return the `Memories` whose writes name the calling client as their writer."""
        client = caller.session.client_params
        if client is None:
            return self.memories
        return self.memories.of_client(client.client_info.name, client.client_info.version)

    def _read(self, read: Callable[[Memories], tuple[Value, bool]]) -> tuple[Value, str]:
        """Return the result of a read, and a hint for the model.

        If a search by words alone finds nothing, wait for the embedding model and read again.

        Args:
            read: Performs the read; returns its result, and whether it found anything.
        """
        memories, hint = self.ready(False)
        result, has_results = read(memories)
        if hint and not has_results:
            memories, hint = self.ready(True)
            result, _ = read(memories)
        return result, hint

    def _language_hint(self, text: str) -> str:
        """Return a hint for the user about the multilingual model; empty if there is none."""
        hint = give_hint(text, self.memories.embedder, self.memories.config.home)
        return f"tell the user: {hint}" if hint else ""

    def rows(self, shapes: Sequence[Mapping[str, Any]], *, tags: bool = False) -> list[str]:
        """Return records as rows; see `answers.rows`."""
        return rows(shapes, own=self._own(), tags=tags)

    def status(self) -> Mapping[str, Any]:
        """Return the state of the memory, as JSON."""
        return store_shapes.status(self.memories.status())

    def complete(self, sentence: str) -> str:
        """Return a sentence for the client, with complete commands."""
        return complete_commands(sentence, self.memories.config)

    def _own(self) -> Own:
        return Own.of(self.memories)

    def _project_hint(self, project: str | Sequence[str]) -> str:
        """Return a hint if no current memory has a project, which may be misspelled."""
        known = self.memories.tags("project").keys()
        names = complete_project(project, known) or ()
        if known.isdisjoint(names):
            return f'no current memory has the project "{names[0]}"; omit project to search all'
        return ""

    # --- search and read ---

    @taking_filters(SEARCH_DEFAULTS)
    def search_memories(self, query: str, **filters: Any) -> CallToolResult:
        """Find memories and conversation turns by meaning and keyword, best first; nothing if none
        fits.

        Search before you answer about people, projects, decisions, preferences or earlier
        conversations.
        """
        set_filters = {name: value for name, value in filters.items() if value not in ("", None)}
        arguments = {**SEARCH_DEFAULTS, **set_filters}
        _check_limit(arguments["limit"])
        if arguments["scope"] == "all":
            arguments["scope"] = _widest_scope(arguments)
        if arguments.get("project") == ".":
            arguments["project"] = present(self.memories.place).names
        elif "project" in arguments:
            arguments["project"] = find_project(arguments["project"])
        arguments["tags"] = with_whole_name(self.memories, arguments.get("tags") or {})

        def search(memories: Memories) -> "tuple[Explanation, bool]":
            explanation = memories.explain(query, **arguments)
            return explanation, bool(explanation.hits)

        explanation, hint = self._read(search)
        self._seen.extend(hit.id for hit in explanation.hits)
        hits = list(map(shapes.hit, explanation.hits))
        groups = answers.hits(hits, self._own())
        hint = hint or explanation.note or self._language_hint(query)
        if not hits and arguments.get("project") and not arguments.get("as_of"):
            hint = hint or self._project_hint(arguments["project"])
        return _answer({"hint": hint or None}, **groups)

    def list_memories(
        self,
        tags: Matching = None,
        since: str = "",
        until: str = "",
        deleted: bool = False,
        limit: int = 10,
        cursor: Cursor = "",
    ) -> CallToolResult:
        """List memories with their tags, newest first."""
        _check_limit(limit)
        page = self.memories.list(
            tags=with_whole_name(self.memories, tags or {}),
            since=since or None,
            until=until or None,
            deleted=deleted,
            limit=limit,
            cursor=cursor or None,
        )
        rows = self.rows(list(map(shapes.memory, page.memories)), tags=True)
        return _answer({"next_cursor": page.next_cursor}, memories=rows)

    def get_history(
        self,
        id: Annotated[str, Field(description="of a memory, or conversation#index of a turn")],  # noqa: A002
    ) -> CallToolResult:
        """Read one memory in full, even a deleted one, with its versions, oldest first; or read one
        turn.
        """
        conversation, separator, index = id.rpartition("#")
        if separator and index.isascii() and index.isdigit() and len(index) <= 10:
            return self._turn(conversation, int(index))
        history = self.memories.history(id)
        assert history.memory is not None
        [memory] = self.memories.judge([history.memory])
        shape = shapes.history(history)
        *earlier, latest = (with_author(version) for version in shape.pop("versions"))
        left_out = max(0, len(earlier) - MAX_VERSIONS)
        versions = [*map(shorten, earlier[left_out:]), shorten(latest, answers.MAX_WHOLE)]
        shown = {*shape, "content", "cut"}  # the latest version has the content
        record = {
            name: fact for name, fact in brief(shapes.memory(memory)).items() if name not in shown
        }
        return _answer(
            shape | {"left_out": left_out or None},
            memory=[fence.line(record)],
            versions=list(map(fence.line, versions)),
        )

    def _turn(self, conversation: str, index: int) -> CallToolResult:
        """Return one turn in full, with the turns next to it."""
        first = max(0, index - BESIDE)
        turns = self.memories.turns(conversation, start=first, limit=index - first + 1 + BESIDE)
        lines = []
        has_turn = False
        for turn in turns:
            shape = conversation_shapes.turn(turn)
            if turn.index == index:
                has_turn = True
                lines.append(fence.line(brief(shape)))
            elif turn.index - index <= BESIDE:
                lines.append(row(shape, answers.ECHO))
        if not has_turn:
            raise NotFound(f"{conversation} has no turn {index}")
        return _answer({"id": f"{conversation}#{index}"}, turns=lines)

    def get_context(
        self,
        query: Annotated[str, Field(description="the task")],
        conversation: Annotated[str, Field(description="its turns only, latest included")] = "",
        max_tokens: int = 2_000,
    ) -> CallToolResult:
        """Get context for a task: memories and turns that fit it."""
        lowest, highest = CONTEXT_TOKENS
        if not lowest <= max_tokens <= highest:
            raise InvalidInput(f"max_tokens must be from {lowest} to {highest}, not {max_tokens}")
        if not query.strip():
            raise InvalidInput("query is empty")
        return result(self.context(query, conversation, max_tokens))

    def context(self, query: str, conversation: str, tokens: int) -> str:
        """Return the context of a task as text; its first line says how many texts it omits."""

        def build(memories: Memories) -> tuple[tuple[ContextBuilder, dict[str, Any]], bool]:
            gateway = MemoryGateway(ENGINE, backend=MemoriesBackend(memories))
            builder = ContextBuilder.from_config(gateway, memories.config, tokens - FACTS_TOKENS)
            built = builder.build_recall(query, conversation or None)
            return (builder, built), bool(built["memories"] or built["recalled"])

        (builder, built), hint = self._read(build)
        metadata = built["metadata"]
        reasons = [f"{row['count']} {reason}" for reason, row in metadata["left_out"].items()]
        errors = [error["error"] for error in metadata["errors"]]
        facts = {
            "dropped_turns": metadata["dropped_turns"] or None,
            "dropped_memories": metadata["dropped_memories"] or None,
            "shortened_turns": metadata["shortened_turns"] or None,
            "left_out": ", ".join(reasons) or None,
            "hint": hint or None,
            "failed": "; ".join(errors) or None,
        }
        head = answers.text(facts, {})
        prompt = builder.format_for_prompt(built) or "Nothing found."
        return f"{head}\n{prompt}" if head else prompt

    def list_conversations(
        self, since: str = "", limit: int = 10, cursor: Cursor = ""
    ) -> CallToolResult:
        """List conversations, most recent first, with name, number of turns and dates."""
        _check_limit(limit)
        page = self.memories.list_conversations(
            limit=limit, cursor=cursor or None, since=since or None
        )
        own = self.memories.namespace
        lines = [answers.conversation(record, own) for record in page.conversations]
        return _answer({"next_cursor": page.next_cursor}, conversations=lines)

    # --- write ---

    def create_memory(  # noqa: PLR0913 - a tool's options are its parameters
        self,
        content: str,
        *,
        tags: Annotated[Tags, Field(description="like project: shop, type: preference")] = None,
        key: Annotated[
            str, Field(description="like user/editor; the next create with it replaces this")
        ] = "",
        supersedes: Annotated[str, Field(description="id of the memory it replaces")] = "",
        decay: Annotated[
            Literal["stable", "contextual", "reinforceable"] | None,
            Field(description="contextual: fades; reinforceable: fades unless confirmed"),
        ] = None,
        confidence: Annotated[float | None, Field(description="0 to 1")] = None,
        anchors: Annotated[
            list[str] | None, Field(description="proof, like compose.yml::5433")
        ] = None,
        valid_until: str = "",
        force: Annotated[bool, Field(description="store duplicates")] = False,
        caller: Caller,
    ) -> CallToolResult:
        """Store one lasting, self-contained statement, with names and absolute dates.

        Duplicates are refused. If it replaces a memory, pass supersedes, or call again if the
        answer has similar_to.
        """
        seen = frozenset(self._seen.copy())
        draft = Draft(
            content,
            tags=_add_agent(tags or {}, caller),
            key=key or None,
            supersedes=supersedes or None,
            decay=decay,
            confidence=confidence,
            seen=seen,
            anchors=anchors,
            valid_until=valid_until or None,
        )
        [created] = self._written_by(caller).create_many([draft], force=force)
        return result(answers.create_result(created, seen, self._language_hint(content)))

    def update_memory(  # noqa: PLR0913 - a tool's options are its parameters
        self,
        id: str,  # noqa: A002
        content: Annotated[str, Field(description="whole new text")] = "",
        tags: Annotated[Tags, Field(description="to add")] = None,
        remove_tags: list[str] | None = None,
        confirm: Annotated[bool, Field(description="it is still true")] = False,
        not_corrects: Annotated[str, Field(description="id of a memory it does not correct")] = "",
        *,
        caller: Caller,
    ) -> CallToolResult:
        """Correct, reword or confirm a memory; earlier versions stay in its history."""
        memories = self._written_by(caller)
        has_changes = content or tags or remove_tags or not_corrects
        if not (has_changes or confirm):
            raise InvalidInput(NOTHING_TO_UPDATE)
        if confirm:
            if has_changes:
                raise InvalidInput(
                    "confirm can't be combined with changes; confirm or change the memory"
                )
            before = memories.get(id)
            has_evidence = before.anchors or before.valid_until or before.recheck_days
            is_reinforceable = before.decay_policy is DecayPolicy.REINFORCEABLE
            if is_reinforceable and not (has_evidence or before.corrected_by):
                memory = memories.reinforce(id)
                return _change_result(memory, **shapes.reinforce_result(memory))
            memory = memories.truth.confirm(id)
            hint = shapes.change_hint(before, memory, confirm=CONFIRM)
            return _change_result(memory, version=memory.version, hint=hint or None)
        before = self.memories.get(id)
        if content and content != before.content:
            tags = dict(_add_agent(tags or {}, caller))
        memory = memories.update(
            id,
            content or None,
            tags=tags,
            remove_tags=remove_tags or (),
            not_corrects=not_corrects or None,
        )
        changes = {"remove_tags": remove_tags, "not_corrects": not_corrects}
        hint = shapes.change_hint(before, memory, changes, CONFIRM)
        if not_corrects and memory.corrected_by is None:
            hint = HINT_UNLINKED
        return _change_result(
            memory,
            version=memory.version,
            hint=hint or None,
            redacted=list(memory.redacted) or None,
        )

    def delete_memory(self, id: str, *, caller: Caller) -> CallToolResult:  # noqa: A002
        """Delete a memory; restore_memory undoes it."""
        memory = self._written_by(caller).delete(id)
        note = shapes.deletion_note(self.memories, memory)
        return _change_result(memory, deleted=True, hint=HINT_DELETED, note=note)

    def restore_memory(self, id: str, *, caller: Caller) -> CallToolResult:  # noqa: A002
        """Bring back a memory that was deleted or replaced."""
        before = self.memories.truth.peek(id)
        memory = self._written_by(caller).restore(id)
        hint = shapes.change_hint(before, memory, confirm=CONFIRM)
        return _change_result(memory, version=memory.version, hint=hint or None)

    def add_turns(
        self, conversation: str, turns: list[Message], *, caller: Caller
    ) -> CallToolResult:
        """Append messages to a conversation, in order, so they can be found later."""
        if not 1 <= len(turns) <= MAX_TURNS:
            raise InvalidInput(
                f"turns contains {len(turns)} messages; send 1 to {MAX_TURNS} at a time"
            )
        now = datetime.now(UTC)
        drafts = []
        for message in turns:
            said_at = parse_time_in_zone(message.at, now) if message.at else None
            speaker, message_id = message.speaker or None, message.message_id or None
            drafts.append(TurnDraft(message.content, message.role, speaker, said_at, message_id))
        added = self._written_by(caller).add_turns(conversation, drafts)
        return _answer(conversation_shapes.add_turns_result(conversation, added))


def _add_agent(tags: Mapping[str, str], caller: Caller) -> Mapping[str, str]:
    """Return tags, with the client's name as the agent unless they already name one."""
    client = caller.session.client_params
    if client is None:
        return tags
    name = "".join(filter(str.isprintable, client.client_info.name)).strip()[:MAX_AGENT]
    is_tag = name and "," not in name and "=" not in name
    return {"agent": name, **tags} if is_tag else tags


def _check_limit(limit: int) -> None:
    if limit > MAX_RESULTS:
        raise InvalidInput(f"limit must be at most {MAX_RESULTS}, not {limit}; narrow the search")
    if limit < 1:
        raise InvalidInput(f"limit must be from 1 to {MAX_RESULTS}, not {limit}")


# --- results ---


def result(text: str) -> CallToolResult:
    """Return a result without structured content.

    Some clients show their model the structured content as JSON and drop the text.
    """
    return CallToolResult(content=[TextContent(text=text)])


def _answer(facts: Mapping[str, Any], **groups: Sequence[str]) -> CallToolResult:
    return result(answers.text(facts, groups))


def _change_result(memory: Memory, **facts: Any) -> CallToolResult:
    """Return the result of a change, with a short excerpt of the memory."""
    return _answer(
        {"id": memory.id, **facts}, memory=[row(shapes.memory(memory), answers.ECHO, tags=True)]
    )
