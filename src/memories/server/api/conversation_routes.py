"""Routes for conversations and for a model's context."""

import contextlib
import hashlib
from datetime import UTC, datetime
from typing import Any

from memories.answers import conversation_shapes
from memories.answers.conversation_shapes import add_turns_result
from memories.context.context import ContextBuilder
from memories.context.gateway import ENGINE, MemoryGateway
from memories.context.memories_backend import MemoriesBackend
from memories.core.events import noting
from memories.core.times import parse_time_in_zone
from memories.errors import InvalidInput
from memories.guard.validate import ROLES
from memories.identity.place import name_project
from memories.identity.session_block import CLIENTS, build_session_block
from memories.identity.session_block import shape as block_shape
from memories.read.turns import TurnDraft
from memories.server.api.memory_routes import AS_OF, CURSOR, FILTERED, LIMIT
from memories.server.api.routes import (
    Answer,
    Call,
    Field,
    Fields,
    Route,
    read_route,
    write_route,
)

MAX_TURNS = 1_000
_SAID: Fields = {name: FILTERED[name] for name in ("role", "speaker", "since", "until", "as_of")}
_TURN: Fields = {
    "content": Field("text", "The text of the turn.", required=True),
    "role": Field("text", "The role of the speaker.", choices=ROLES),
    "speaker": Field("text", "The speaker's name."),
    "created_at": Field("text", "The time of the turn; now by default."),
    "message_id": Field(
        "text",
        (
            "The turn's id in the system that it comes from; a turn with a known id is not added "
            "again."
        ),
    ),
    "tags": Field("tags", "Arbitrary pairs."),
}
_REDACT = Field("flag", "Redact secrets; true by default.")
_DRY_RUN = Field("flag", "Erase nothing; only report how much would be erased.")


def conversations(call: Call) -> Any:
    """List conversations, newest first."""
    arguments = dict(call.arguments)
    if "tag" in arguments:
        arguments["tags"] = arguments.pop("tag")
    return conversation_shapes.conversations(call.memories.list_conversations(**arguments))


def conversation(call: Call) -> Any:
    """Return one conversation."""
    return conversation_shapes.conversation(
        call.memories.conversation(
            call.arguments["conversation"], as_of=call.arguments.get("as_of")
        )
    )


def name(call: Call) -> Any:
    """Set a conversation's title, user and tags."""
    arguments = dict(call.arguments)
    return conversation_shapes.conversation(
        call.memories.update_conversation(arguments.pop("conversation"), **arguments)
    )


def turns(call: Call) -> Any:
    """Return the last turns of a conversation, or its turns from the index start onwards."""
    arguments = dict(call.arguments)
    conversation_id, start = arguments.pop("conversation"), arguments.pop("start", None)
    if start is None:
        return conversation_shapes.turns(call.memories.tail_turns(conversation_id, **arguments))
    return conversation_shapes.turns(call.memories.turns(conversation_id, start=start, **arguments))


def add(call: Call) -> Answer:
    """Append turns to a conversation."""
    turns = call.arguments["turns"]
    if not 1 <= len(turns) <= MAX_TURNS:
        raise InvalidInput(f"turns must contain 1 to {MAX_TURNS} objects, not {len(turns)}")
    now = datetime.now(UTC)
    drafts: list[TurnDraft] = []
    for number, turn in enumerate(turns):
        if "created_at" in turn:
            turn["created_at"] = parse_time_in_zone(turn["created_at"], now)
        if call.key is not None:  # a retry after the server was killed must not store a turn twice
            digest = hashlib.sha256(f"{call.who.id}/{call.key}".encode()).hexdigest()
            turn.setdefault("message_id", f"{digest[:32]}-{number}")
        drafts.append(TurnDraft(**turn))
    result = call.memories.add_turns(
        call.arguments["conversation"], drafts, redact=call.arguments.get("redact", True)
    )
    shape = add_turns_result(call.arguments["conversation"], result)
    if shape["refused"]:
        return Answer(shape, 409)
    return Answer(shape, 201 if shape["stored"] else 200)


def forget(call: Call) -> Any:
    """Permanently erase a conversation, or one of its turns."""
    arguments = dict(call.arguments)
    with_memories, dry_run = arguments.get("with_memories", False), arguments.get("dry_run", False)
    forgotten = call.memories.forget_turns(arguments.pop("conversation"), **arguments)
    return conversation_shapes.forget_turns_result(
        forgotten, forgotten.memories if with_memories else None, dry_run=dry_run
    )


def waiting(call: Call) -> Any:
    """Return the turns that are waiting to be stored."""
    return conversation_shapes.turns(
        call.memories.waiting_turns(call.arguments.get("conversation"))
    )


def build_context(call: Call) -> Any:
    """Build the context that a model needs to answer a message."""
    arguments = dict(call.arguments)
    query, conversation_id, budget = (
        arguments.pop("query"),
        arguments.pop("conversation", None),
        arguments.pop("budget", None),
    )
    if budget is not None and not 1 <= budget <= 100_000_000:
        raise InvalidInput("budget must be a whole number of tokens from 1 to 100000000")
    engine = MemoriesBackend(
        call.memories, include_corrected=arguments.pop("include_corrected", False)
    )
    options = {
        name: arguments.get(name, False) for name in ("include_suspicious", "include_tool_turns")
    }
    gateway = MemoryGateway(ENGINE, backend=engine)
    agent = call.memories.event_figures()["agent"]
    config = call.memories.config._replace(namespace=call.memories.namespace, identity=agent)
    builder = ContextBuilder.from_config(gateway, config, budget, **options)
    with contextlib.closing(gateway):
        if conversation_id is None:
            context = builder.build_everywhere(query)
        else:
            context = builder.build_context(conversation_id, query)
    return conversation_shapes.context(context, builder.format_for_prompt(context))


def scratchpad(call: Call) -> Any:
    """Return the memories that a session starts with; pinned memories come first.

    Only managers of the entire store see the scratchpad's path.
    """
    shape = conversation_shapes.scratchpad(call.memories.scratchpad(), call.memories.namespace)
    return call.without_place(shape)


def prompt(call: Call) -> Any:
    """Return the block that starts a session's prompt."""
    arguments, config = call.arguments, call.memories.config
    budget = arguments.get("budget", config.prompt_tokens)
    if not 100 <= budget <= 100_000:
        raise InvalidInput("budget must be a whole number of tokens from 100 to 100000")
    project, is_partial = name_project(arguments.get("project") or "")
    with noting(config, "prompt", **call.memories.event_figures()) as figures:
        block = build_session_block(
            call.memories,
            project=project,
            budget=budget,
            client=arguments.get("for", CLIENTS[0]),
            is_partial=is_partial,
        )
        figures["tokens"], figures["results"] = (
            block.tokens,
            len(block.entries) + len(block.sessions),
        )
    shape = block_shape(block)
    return call.without_place(shape)


_ONE = "/api/conversations/{conversation}"
ROUTES = (
    read_route(
        "/api/conversations",
        conversations,
        "Conversations",
        {
            "title": Field("text", "Only conversations whose title contains this text."),
            "user": Field("text", "Only conversations with this user."),
            "tag": FILTERED["tag"],
        }
        | _SAID
        | LIMIT
        | CURSOR,
    ),
    read_route(_ONE, conversation, "Conversation", AS_OF),
    write_route(
        "PATCH",
        _ONE,
        name,
        "Conversation",
        {
            "title": Field("text", "The conversation's title; empty to remove the title."),
            "user": Field("text", "The user in the conversation; empty to remove the user."),
            "tags": Field("tags", "Tags to add or change."),
            "remove_tags": Field("texts", "Tag keys to remove."),
            "redact": _REDACT,
        },
    ),
    read_route(
        f"{_ONE}/turns",
        turns,
        "Turns",
        {"start": Field("whole", "The index of the first turn.")} | _SAID | LIMIT,
    ),
    write_route(
        "POST",
        f"{_ONE}/turns",
        add,
        "Added",
        {
            "turns": Field("objects", "The turns, in order.", required=True, of=_TURN),
            "redact": _REDACT,
        },
    )._replace(statuses=(201, 200, 409)),
    write_route(
        "POST",
        f"{_ONE}/forget",
        forget,
        "ForgottenTurns",
        {
            "index": Field("whole", "Only this turn."),
            "with_memories": Field("flag", "Also erase the memories that were made from it."),
            "dry_run": _DRY_RUN,
        },
        scope="admin",
    ),
    read_route(
        "/api/waiting-turns",
        waiting,
        "Turns",
        {"conversation": Field("text", "Only turns of this conversation.")},
    ),
    Route(
        "POST",
        "/api/context",
        build_context,
        "Context",
        body={
            "query": Field("text", "The message.", required=True),
            "conversation": Field("text", "The conversation that the message belongs to."),
            "budget": Field("whole", "The maximum number of tokens in the prompt."),
            "include_suspicious": Field(
                "flag", "Include texts that look like instructions to a model, and mark them."
            ),
            "include_tool_turns": Field("flag", "Include turns with the roles tool and system."),
            "include_corrected": Field(
                "flag", "Also include memories corrected by other included memories."
            ),
        },
        kind="search",
    ),
    read_route("/api/scratchpad", scratchpad, "Scratchpad"),
    read_route(
        "/api/prompt",
        prompt,
        "Prompt",
        {
            "project": Field("text", "The project that the session works in."),
            "budget": Field("whole", "The maximum number of tokens, from 100 to 100,000."),
            "for": Field("text", "How the agent accesses its memory.", choices=("shell", "mcp")),
        },
    ),
)
