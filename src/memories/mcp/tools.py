"""What agents can do: each tool calls one method of `Memories`, and `answers` renders what came of
it.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from memories.answers import shapes
from memories.answers.shapes import add_turns_result
from memories.context import fence
from memories.context.context import ContextBuilder
from memories.context.engine import EngineBackend
from memories.context.gateway import ENGINE, MemoryGateway
from memories.core.times import parse_time
from memories.errors import InvalidInput, NotFound
from memories.mcp import answers
from memories.mcp.answers import brief, named, row, rows, whole
from memories.memories import Memories
from memories.models import Memory
from memories.read.turns import TurnDraft
from memories.search.filters import FILTERS, Parameter

if TYPE_CHECKING:
    from memories.write.create import Created

HINT_KNOWN = "nothing was stored: this memory says the same already"
HINT_MERGED = "not stored again: this memory says the same"
HINT_REPLACED = (
    "stored as the next version of what had this key; get_history shows what it said before"
)
HINT_UNCHANGED = "nothing was changed: it says this already"
HINT_DUPLICATE = "nothing was stored, it is known; reword it with update_memory, or store it anyway with force=true"
HINT_SIMILAR = "stored; if it corrects one of similar_to, call delete_memory with that id"
HINT_CORRECTS = "stored; it corrects {}: a search shows that one after it, marked as corrected"
CREATED = (
    "id",
    "stored",
    "merged",
    "not_merged",
    "reinforced",
)  # what every answer to a create begins with
ALIKE = {"duplicates": HINT_DUPLICATE, "similar_to": HINT_SIMILAR}
HINT_DELETED = "restore_memory brings it back"
CONTEXT_TOKENS = (200, 20_000)
FACTS_TOKENS = 60  # of these are for what is missing from a context
MAX_AGENT = 64
MAX_RESULTS = 50
MAX_VERSIONS = 20
MAX_TURNS = 1_000
BESIDE = 2  # turns before and after one that is read
SEARCH_DEFAULTS: Mapping[str, Any] = {
    "scope": "all",
    "limit": 5,
}  # where they are others than the library's
ECHO = 200  # characters of what the caller just wrote


# Texts that may be left out are "" and not None: what is not plainly a str, the SDK reads as JSON
# if it can.
Tags = dict[str, str] | None
Value = TypeVar("Value")
Ready = Callable[[bool], tuple[Memories, str]]
Matching = Annotated[Tags, Field(description=FILTERS["tags"].hint)]
# What each kind of filter is for the SDK, and its value if it is left out.
_KINDS: Mapping[str, tuple[Any, Any]] = {
    "text": (str, ""), "time": (str, ""), "share": (float | None, None), "whole": (int, 0), "flag": (bool, False),
    "tags": (Tags, None),
}  # fmt: skip
Cursor = Annotated[str, Field(description="next_cursor of the last page")]


class Said(BaseModel, extra="forbid"):
    """One message of a conversation, as a client gives it."""

    content: str
    role: Literal["user", "assistant", "system", "tool"] = "user"
    speaker: str = ""
    at: Annotated[str, Field(description="when; now by default")] = ""
    message_id: Annotated[str, Field(description="makes sending it twice harmless")] = ""


def taking_filters(
    defaults: Mapping[str, Any],
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Give a tool the parameters of a search, as `search.filters` has them; the SDK reads them from
    its signature.

    Args:
        defaults: What holds here if a parameter is left out; otherwise it narrows nothing.
    """

    def decorate(tool: Callable[..., Value]) -> Callable[..., Value]:
        *own, _ = inspect.signature(tool, eval_str=True).parameters.values()
        filters = [_parameter(row, defaults.get(name)) for name, row in FILTERS.items()]
        tool.__signature__ = inspect.Signature([*own, *filters], return_annotation=CallToolResult)  # type: ignore[attr-defined]
        return tool

    return decorate


def _parameter(row: Parameter, default: Any) -> inspect.Parameter:
    """Return the parameter of a tool for a filter; `default` holds if it is left out, None if that
    narrows nothing.
    """
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


def _widest_scope(given: Mapping[str, Any]) -> str:
    """Return everything that can be searched with these filters."""
    if given.keys() & {"conversation", "role", "speaker"}:
        return "history"
    if given.get("pending") or given.get("tier", "deep") != "deep":
        return "memories"
    return "all"


class Tools:
    """What agents can do: a method is a tool, and its docstring is what a model reads about it."""

    def __init__(self, memories: Memories, ready: Ready) -> None:
        """Prepare.

        Args:
            memories: What is written to, and read once its model is loaded.
            ready: Returns what can search now, `memories` or one over the same store that goes by
                words alone, and what a model should know of that, if anything. True has it wait
                longer for `memories`.
        """
        self.memories = memories
        self.ready = ready
        self._of_client = functools.lru_cache(maxsize=32)(memories.of_client)

    def _written_by(self, caller: Context[Any, Any]) -> Memories:
        """Return the memory as the client writes to it that calls, by the name and the version that
        it tells.
        """
        client = caller.session.client_params
        return (
            self.memories
            if client is None
            else self._of_client(client.client_info.name, client.client_info.version)
        )

    def _asked(
        self, ask: Callable[[Memories], Value], finds: Callable[[Value], object]
    ) -> tuple[Value, str]:
        """Return an answer and what a model should know of it; if words alone find nothing, the
        model is waited for.
        """
        found_by, hint = self.ready(False)
        answer = ask(found_by)
        if hint and not finds(answer):
            found_by, hint = self.ready(True)
            answer = ask(found_by)
        return answer, hint

    @taking_filters(SEARCH_DEFAULTS)
    def search_memories(self, query: str, **filters: Any) -> CallToolResult:
        """Find what is known or was said, by meaning and by word, best first; nothing if nothing
        fits.

        Search before you answer about people, projects, decisions, preferences or what was said
        before.
        """
        given = {
            **SEARCH_DEFAULTS,
            **{name: value for name, value in filters.items() if value not in ("", None)},
        }
        given["limit"] = _at_most(given["limit"])
        if given["scope"] == "all":
            given["scope"] = _widest_scope(given)
        found, hint = self._asked(
            lambda asked: asked.explain(query, **given), lambda found: found.hits
        )
        results = answers.hits([shapes.hit(hit) for hit in found.hits], self.memories.namespace)
        return _answer({"hint": hint or found.note or None}, **results)

    def list_memories(
        self,
        tags: Matching = None,
        since: str = "",
        until: str = "",
        deleted: bool = False,
        limit: int = 10,
        cursor: Cursor = "",
    ) -> CallToolResult:
        """List memories with their tags, newest first, without a question."""
        page = self.memories.list(
            tags=tags,
            since=since or None,
            until=until or None,
            deleted=deleted,
            limit=_at_most(limit),
            cursor=cursor or None,
        )
        found = self.rows([shapes.memory(memory) for memory in page.memories], tags=True)
        return _answer({"next_cursor": page.next_cursor}, memories=found)

    def get_history(
        self,
        id: Annotated[str, Field(description="of a memory, or conversation#index of a turn")],  # noqa: A002
    ) -> CallToolResult:
        """Read one memory whole, with the versions it had, oldest first; also a deleted one. Or one
        turn whole.
        """
        conversation, separator, index = id.rpartition("#")
        if separator and index.isascii() and index.isdigit() and len(index) <= 10:
            return self._turn(conversation, int(index))
        shape = shapes.history(self.memories.history(whole(id)))
        *earlier, latest = (named(version) for version in shape.pop("versions"))
        left_out = max(0, len(earlier) - MAX_VERSIONS)
        versions = [
            *map(answers.shortened, earlier[left_out:]),
            answers.shortened(latest, answers.MAX_WHOLE),
        ]
        return _answer(
            shape | {"left_out": left_out or None}, versions=list(map(fence.line, versions))
        )

    def _turn(self, conversation: str, index: int) -> CallToolResult:
        first = max(0, index - BESIDE)
        said = self.memories.turns(conversation, start=first, limit=index - first + 1 + BESIDE)
        near = [turn for turn in said if turn.index - index <= BESIDE]
        if index not in (turn.index for turn in near):
            raise NotFound("Turn not found")
        lines = [
            fence.line(brief(shape)) if turn.index == index else row(shape, ECHO)
            for turn, shape in ((turn, shapes.turn(turn)) for turn in near)
        ]
        return _answer({"id": f"{conversation}#{index}"}, turns=lines)

    def rows(self, found: Sequence[Mapping[str, Any]], **options: Any) -> list[str]:
        """Return items as lines; see `answers.rows`."""
        return rows(found, own=self.memories.namespace, **options)

    def create_memory(  # noqa: PLR0913 - a tool's options are its parameters
        self,
        content: str,
        *,
        tags: Annotated[
            Tags, Field(description='like {"project": "shop", "type": "preference"}')
        ] = None,
        key: Annotated[
            str, Field(description="like user/editor; its next create replaces this")
        ] = "",
        supersedes: Annotated[str, Field(description="id of a memory that this one replaces")] = "",
        decay: Annotated[
            Literal["stable", "contextual", "reinforceable"] | None,
            Field(description="contextual: fades with time; reinforceable: unless confirmed"),
        ] = None,
        confidence: Annotated[float | None, Field(description="how sure it is, 0 to 1")] = None,
        force: Annotated[bool, Field(description="store even what is known")] = False,
        caller: Context[Any, Any],
    ) -> CallToolResult:
        """Store one lasting statement, understood by itself, with names and absolute dates.

        What is known already is not stored again: duplicates tells. similar_to names what it may
        correct.
        """
        created = self._written_by(caller).create(
            content,
            tags=_signed(tags or {}, caller),
            key=key or None,
            supersedes=whole(supersedes) or None,
            decay=decay,
            confidence=confidence,
            force=force,
        )
        return _created(created)

    def update_memory(
        self,
        id: str,  # noqa: A002
        content: Annotated[str, Field(description="all that it says now")] = "",
        tags: Annotated[Tags, Field(description="to add or change")] = None,
        remove_tags: list[str] | None = None,
        confirm: Annotated[
            bool, Field(description="it still holds: a reinforceable one stops fading")
        ] = False,
        *,
        caller: Context[Any, Any],
    ) -> CallToolResult:
        """Correct, reword or confirm a memory; earlier versions stay in its history."""
        known = whole(id)
        if confirm:
            if content or tags or remove_tags:
                raise InvalidInput("confirm goes alone: what changes a memory does not confirm it")
            memory = self._written_by(caller).reinforce(known)
            return _changed(memory, **shapes.reinforce_result(memory))
        before = self.memories.get(known)
        signed = _signed(tags or {}, caller) if content and content != before.content else tags
        memory = self._written_by(caller).update(
            known, content or None, tags=signed, remove_tags=remove_tags or ()
        )
        hint = HINT_UNCHANGED if memory.version == before.version else None
        return _changed(
            memory, version=memory.version, hint=hint, redacted=list(memory.redacted) or None
        )

    def delete_memory(self, id: str, *, caller: Context[Any, Any]) -> CallToolResult:  # noqa: A002
        """Forget a memory: it is no longer found. restore_memory undoes it."""
        return _changed(self._written_by(caller).delete(whole(id)), deleted=True, hint=HINT_DELETED)

    def restore_memory(self, id: str, *, caller: Context[Any, Any]) -> CallToolResult:  # noqa: A002
        """Bring back a memory that was deleted, or replaced by another one."""
        memory = self._written_by(caller).restore(whole(id))
        return _changed(memory, version=memory.version)

    def get_context(
        self,
        query: Annotated[str, Field(description="the task")],
        conversation: Annotated[str, Field(description="its latest turns are included")] = "",
        max_tokens: int = 2_000,
    ) -> CallToolResult:
        """Get what to know before a task: memories and turns that fit it, the latest turns of a
        conversation.
        """
        least, most = CONTEXT_TOKENS
        if not least <= max_tokens <= most:
            raise InvalidInput(f"max_tokens must be from {least} to {most}")
        return result(self.context(query, conversation, max_tokens))

    def context(self, query: str, conversation: str, tokens: int) -> str:
        """Return what is to be known before a task as text, with what is missing from it in the
        first line.
        """

        def build(found_by: Memories) -> tuple[ContextBuilder, dict[str, Any]]:
            gateway = MemoryGateway(ENGINE, backend=EngineBackend(found_by))
            builder = ContextBuilder.from_config(gateway, found_by.config, tokens - FACTS_TOKENS)
            return builder, builder.build_recall(query, conversation or None)

        (builder, built), hint = self._asked(
            build, lambda answer: answer[1]["memories"] or answer[1]["recalled"]
        )
        known = built["metadata"]
        facts = {
            name: known[name] for name in ("dropped_turns", "dropped_memories", "shortened_turns")
        }
        facts |= {
            "left_out": ", ".join(
                f"{found['count']} {reason}" for reason, found in known["left_out"].items()
            )
        }
        facts |= {"hint": hint, "failed": "; ".join(failed["error"] for failed in known["errors"])}
        ours = answers.text({name: fact or None for name, fact in facts.items()}, {})
        return "\n".join(filter(None, [ours, builder.format_for_prompt(built) or "Nothing found."]))

    def list_conversations(
        self, since: str = "", limit: int = 10, cursor: Cursor = ""
    ) -> CallToolResult:
        """List conversations by name, the one with the latest turn first, with how many turns and
        when.
        """
        page = self.memories.list_conversations(
            limit=_at_most(limit), cursor=cursor or None, since=since or None
        )
        lines = [answers.conversation(each, self.memories.namespace) for each in page.conversations]
        return _answer({"next_cursor": page.next_cursor}, conversations=lines)

    def add_turns(
        self, conversation: str, turns: list[Said], *, caller: Context[Any, Any]
    ) -> CallToolResult:
        """Append messages to a conversation, in order, so that they are found later."""
        if len(turns) > MAX_TURNS:
            raise InvalidInput(f"turns has {len(turns)} messages; send at most {MAX_TURNS} at once")
        now = datetime.now(UTC)
        drafts = [
            TurnDraft(
                said.content,
                said.role,
                said.speaker or None,
                parse_time(said.at, now) if said.at else None,
                said.message_id or None,
            )
            for said in turns
        ]
        kept = self._written_by(caller).add_turns(conversation, drafts)
        return _answer(add_turns_result(conversation, kept))


def _signed(tags: Mapping[str, str], caller: Context[Any, Any]) -> Mapping[str, str]:
    """Return tags with the name of the client as their agent, if it tells one and the agent does
    not.
    """
    client = caller.session.client_params
    name = (
        ""
        if client is None
        else "".join(filter(str.isprintable, client.client_info.name)).strip()[:MAX_AGENT]
    )
    return {"agent": name, **tags} if name and "," not in name and "=" not in name else tags


def _hint_known(created: "Created") -> str:
    """Return what a repetition did; values stay out of it, since an agent reads it as ours."""
    done = [f"merged into it: {', '.join(created.merged)}"] if created.merged else []
    done += ["it was reinforced"] if created.reinforced else []
    done += (
        ["not_merged is what it says otherwise: to change that call update_memory"]
        if created.not_merged
        else []
    )
    return "; ".join([HINT_MERGED if created.merged or created.reinforced else HINT_KNOWN, *done])


def _at_most(limit: int) -> int:
    if limit > MAX_RESULTS:
        raise InvalidInput(f"limit must be at most {MAX_RESULTS}; narrow what you ask for")
    return limit


def _answer(facts: Mapping[str, Any], **groups: Sequence[str]) -> CallToolResult:
    return result(answers.text(facts, groups))


def result(text: str) -> CallToolResult:
    """Return a result without structure: some clients would show their model that, plain, and drop
    the text.
    """
    return CallToolResult(content=[TextContent(text=text)])


def _created(created: "Created") -> CallToolResult:
    """Return what became of a create: what is stored is shown if it is not what was given."""
    told = shapes.create_result(created)
    facts: dict[str, Any] = {name: told[name] for name in CREATED} | {"note": created.note or None}
    facts["redacted"] = told["redacted"] or None
    groups = {name: rows(told[name], answers.MAX_ALIKE) for name in ALIKE if told[name]}
    if created.memory is not None:
        replaced = HINT_REPLACED if created.memory.version > 1 else None
        facts["hint"] = replaced if created.stored else _hint_known(created)
        if not created.stored or created.redacted:
            groups["memory"] = [row(shapes.memory(created.memory), ECHO, tags=True)]
    for name, hint in ALIKE.items():
        facts |= {"hint": hint} if told[name] else {}
    if created.corrects:
        facts["hint"] = HINT_CORRECTS.format(answers.short(created.corrects))
    return _answer(facts, **groups)


def _changed(memory: Memory, **facts: Any) -> CallToolResult:
    """Return what was done to a memory, and a short look at it."""
    return _answer({"id": memory.id, **facts}, memory=[row(shapes.memory(memory), ECHO, tags=True)])
