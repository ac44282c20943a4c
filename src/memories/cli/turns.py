"""Commands for conversations: turns, and context, which assembles a prompt from turns and
memories.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from memories.answers import shapes
from memories.cli.options import (
    Group,
    command,
    dry_run_option,
    filtered_by,
    in_session,
    no_redact_option,
    option,
    whole_number,
)
from memories.cli.output import DAMAGED, changing, confirm, emit, fail, note, safe
from memories.cli.session import read_argument, texts
from memories.core.times import parse_time_in_zone
from memories.errors import InvalidInput, SystemFault
from memories.guard.validate import parse_tag, read_json
from memories.search.filters import ROLES

if TYPE_CHECKING:
    from memories.context.context import ContextBuilder
    from memories.memories import Memories
    from memories.read.turns import Turn

MAX_INPUT_BYTES = 67_108_864  # of JSON lines
_said_options = filtered_by("role", "speaker", "since", "until", "as_of", "limit")
_NAMES = {"text": "content", "ts": "created_at"}  # as the conversation specification calls them


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog='memory turns add standup "We ship on Friday" --speaker Ann\nmemory turns tail standup',
)
@click.pass_context
def turns(context: click.Context) -> None:
    """Add, read and erase what was said in conversations.

    To search conversations: memory search QUERY --in history.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@turns.command(
    epilog='memory turns add standup "We ship on Friday" --speaker Ann\nmemory turns add standup - <turns.jsonl'
)
@click.argument("conversation")
@click.argument("content")
@option(
    "--role", metavar="ROLE", values=ROLES, help="user, assistant, system or tool. [default: user]"
)
@option("--speaker", metavar="NAME", help="Who said it.")
@option("--at", "created_at", metavar="TIME", help="When it was said. [default: now]")
@option(
    "--message-id",
    metavar="ID",
    help="Its id elsewhere; a turn whose id is already there is not added again.",
)
@no_redact_option
@in_session(reads=False)
def add(
    memories: "Memories", conversation: str, content: str, no_redact: bool, **given: str | None
) -> int:
    """Add a turn to a conversation, or many.

    CONTENT is what was said, or - to read many turns from standard input: a JSON object on each
    line, with the keys content, role, speaker, created_at, message_id and tags. Each is stored,
    known (its message id is there with the same content) or refused (with another content); if one
    is refused the others are stored and the exit code is 1.
    """
    from memories.read.turns import TurnDraft

    fields = {name: value for name, value in given.items() if value is not None}
    if content != "-":
        draft = TurnDraft(content, **_read(fields))
        [said] = changing(
            lambda: memories.add_turns(conversation, [draft], redact=not no_redact), _stored
        )
        emit(shapes.turn(said), lambda: texts().added_one(said))
        return _refusals([said])
    if fields:
        raise InvalidInput(
            "with -, each line has its own role, speaker, time and id; remove these options"
        )
    lines = enumerate(read_argument("-", "input", MAX_INPUT_BYTES).split("\n"), 1)
    drafts = [_draft(line, number) for number, line in lines if line.strip()]
    if not drafts:
        raise InvalidInput("input has no turns; write a JSON object on each line")
    added = changing(
        lambda: memories.add_turns(conversation, drafts, redact=not no_redact), _stored
    )
    emit(shapes.add_turns_result(conversation, added), lambda: texts().added(added))
    return _refusals(added)


@turns.command(
    epilog="memory turns tail standup --limit 16\nmemory turns tail standup --speaker Ann --since 7d"
)
@click.argument("conversation")
@_said_options
@in_session(reads=True)
def tail(memories: "Memories", conversation: str, filters: Mapping[str, Any]) -> int:
    """Show the last turns of a conversation, oldest first.

    Turns that wait to be stored come last; if the store does not answer they are shown alone, and
    the exit code is 1.
    """
    return _shown(memories, conversation, lambda: memories.tail_turns(conversation, **filters))


@turns.command(
    epilog="memory turns show standup --from 100 --limit 50\nmemory turns show standup --role assistant"
)
@click.argument("conversation")
@option(
    "--from",
    "start",
    metavar="INDEX",
    section="Output",
    help="First turn to show, counted from 0. [default: 0]",
)
@_said_options
@in_session(reads=True)
def show(
    memories: "Memories", conversation: str, start: str | None, filters: Mapping[str, Any]
) -> int:
    """Show the turns of a conversation, oldest first.

    Turns that wait to be stored come last; if the store does not answer they are shown alone, and
    the exit code is 1.
    """
    first = whole_number(start, "from must be a whole number from 0")
    return _shown(
        memories, conversation, lambda: memories.turns(conversation, start=first or 0, **filters)
    )


def _shown(memories: "Memories", conversation: str, read: "Callable[[], list[Turn]]") -> int:
    """Print turns, or those that wait if the store does not answer; return the exit code."""
    try:
        found, problem = read(), None
    except SystemFault as exc:
        found, problem = memories.waiting_turns(conversation), exc
        if not found:
            raise
    emit(shapes.turns(found), lambda: texts().turns(found))
    return (
        0 if problem is None else fail(f"{problem}; only turns that wait to be stored are shown", 1)
    )


@turns.command(
    "list",
    epilog="memory turns list --speaker Ann --since 7d\nmemory turns list --title release --tag project=shop",
)
@option(
    "--title",
    metavar="TEXT",
    section="Filters",
    help="Only conversations whose title has this text.",
)
@option("--user", metavar="NAME", section="Filters", help="Only conversations held with this user.")
@option(
    "--tag", "-t", "tag", metavar="KEY=VALUE", multiple=True, section="Filters",
    help="Only conversations with this tag; may be repeated, and all must match.",
)  # fmt: skip
@_said_options
@option(
    "--cursor",
    metavar="CURSOR",
    section="Output",
    help="Continue after a page; next_cursor of that page.",
)
@in_session(reads=True)
def list_(
    memories: "Memories",
    title: str | None,
    user: str | None,
    tag: Sequence[str],
    cursor: str | None,
    filters: Mapping[str, Any],
) -> int:
    """List conversations, newest first.

    --role, --speaker, --since and --until: only conversations with such a turn. If the store does
    not answer, those with turns that wait to be stored are shown, and the exit code is 1.
    """
    given = {"title": title, "user": user, "tags": dict(parse_tag(text) for text in tag), **filters}
    chosen = {name: value for name, value in given.items() if value not in (None, {})}
    problem = None
    try:
        found = memories.list_conversations(cursor=cursor, **chosen)
    except SystemFault as exc:
        from memories.read.conversations import ConversationPage
        from memories.write.waiting import with_waiting

        found, problem = (
            with_waiting(ConversationPage((), None), memories.waiting_turns(), first=True),
            exc,
        )
        if not found.conversations:
            raise
    emit(shapes.conversations(found), lambda: texts().conversations(found))
    return (
        0
        if problem is None
        else fail(f"{problem}; only conversations with turns that wait are shown", 1)
    )


@turns.command(
    epilog='memory turns update standup --title "Release of May" --tag project=shop\n'
    'memory turns update standup --title "" --remove-tag project'
)
@click.argument("conversation")
@option("--title", metavar="TEXT", help="What it is called; empty to remove it.")
@option("--user", metavar="NAME", help="Whom it is held with; empty to remove it.")
@option(
    "--tag",
    "-t",
    "tag",
    metavar="KEY=VALUE",
    multiple=True,
    section="Tags",
    help="A tag; may be repeated.",
)
@option(
    "--remove-tag",
    metavar="KEY",
    multiple=True,
    section="Tags",
    help="A tag to remove; may be repeated.",
)
@no_redact_option
@in_session(reads=True)
def update(
    memories: "Memories",
    conversation: str,
    title: str | None,
    user: str | None,
    tag: Sequence[str],
    remove_tag: Sequence[str],
    no_redact: bool,
) -> None:
    """Give a conversation a title, a user and tags.

    What is not given stays as it is.
    """
    tags = dict(parse_tag(text) for text in tag)
    changed = changing(
        lambda: memories.update_conversation(
            conversation,
            title=title,
            user=user,
            tags=tags,
            remove_tags=remove_tag,
            redact=not no_redact,
        ),
        lambda done: f"{done.id} was updated",
    )
    emit(shapes.conversation(changed), lambda: texts().conversation(changed))


@turns.command(
    epilog="memory turns forget standup --with-memories --dry-run\nmemory turns forget standup --index 3 --yes"
)
@click.argument("conversation")
@option("--index", metavar="INDEX", help="Only this turn. [default: the whole conversation]")
@option("--with-memories", is_flag=True, help="Also erase the memories that were made from them.")
@dry_run_option
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@in_session(reads=False)
def forget(
    memories: "Memories",
    conversation: str,
    index: str | None,
    with_memories: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Erase a conversation, or one of its turns, for good.

    No byte of it stays in the store, and nothing brings it back. The other turns keep their index.
    """
    from memories.cli.bulk import tell_copies

    number = whole_number(index, "index must be a whole number from 0")
    what = (
        f"turn {number} of {conversation}"
        if number is not None
        else f"the conversation {conversation}"
    )
    too = " and the memories made from it" if with_memories else ""
    if not yes and not dry_run and not confirm(f"Forget {what}{too} for good?"):
        return 1
    gone = changing(
        lambda: memories.forget_turns(
            conversation, index=number, with_memories=with_memories, dry_run=dry_run
        ),
        lambda _: f"{what}{too} was forgotten for good",
    )
    done = "Would be forgotten for good" if dry_run else "Forgotten for good"
    made = f", and {gone.memories} memories made from them" if with_memories else ""
    emit(
        shapes.forget_turns_result(gone, gone.memories if with_memories else None, dry_run=dry_run),
        lambda: f"{done}: {gone.versions} turns of {gone.id}{made}",
    )
    tell_copies(gone.also_in)
    return 0


def _refusals(said: "Sequence[Turn]") -> int:
    """Say how many messages were refused and why the first one was; return the exit code."""
    reasons = [turn.reason for turn in said if turn.reason]
    if not reasons:
        return 0
    return fail(f"{len(reasons)} of {len(said)} messages not stored: {reasons[0]}", 1)


def _stored(said: "Sequence[Turn]") -> str:
    """Return what was stored, as a part of a sentence, and whether a second run would store it
    again.
    """
    said = [turn for turn in said if turn.status == "stored"]
    if not said:
        return "nothing new was stored; running it again does no harm"
    ids = [said[0].id, *([said[-1].id] if len(said) > 1 else [])]
    known = all(turn.message_id is not None for turn in said)
    again = "its message id is known now, so running it again stores nothing twice"
    return f"stored as {' to '.join(ids)}; {again if known else 'running it again would store it twice'}"


def _draft(line: str, number: int) -> Any:
    """Return the turn that a line describes.

    Raises:
        InvalidInput: It is not an object with the keys of a turn.
    """
    from memories.read.turns import TurnDraft

    try:
        given = read_json(line)
    except InvalidInput as exc:
        raise InvalidInput(f"line {number} {exc}; nothing was stored") from exc
    fields = (
        {_NAMES.get(str(name), str(name)): value for name, value in given.items()}
        if type(given) is dict
        else {}
    )
    if type(given) is dict and len(fields) < len(given):
        raise InvalidInput(
            f"line {number} has a key twice, under both of its names; nothing was stored"
        )
    known = TurnDraft.__annotations__
    if "content" not in fields or not fields.keys() <= known.keys():
        what = f"it must be a JSON object with keys among {', '.join(known)}"
        raise InvalidInput(f"line {number} is not a turn: {what}; nothing was stored")
    return TurnDraft(**_read(fields))


def _read(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a draft, the time as a time."""
    from datetime import UTC, datetime

    time = fields.get("created_at")
    return dict(fields) | (
        {} if time is None else {"created_at": parse_time_in_zone(str(time), datetime.now(UTC))}
    )


MAX_BUDGET = 100_000_000


@command(epilog='memory context "When do we ship?" --conversation standup --budget 2000')
@click.argument("query")
@option(
    "--conversation",
    metavar="NAME",
    help="Conversation that the message belongs to. [default: recall from all]",
)
@option("--budget", metavar="N", help="Maximum number of tokens of the prompt. [default: no limit]")
@option(
    "--include-suspicious",
    is_flag=True,
    help="Include texts that seem to give orders to a model, marked.",
)
@option(
    "--include-corrected", is_flag=True, help="Also show a memory that another one shown corrects."
)
@option("--include-tool-turns", is_flag=True, help="Include turns of the roles tool and system.")
@in_session(reads=True)
def context(
    memories: "Memories",
    query: str,
    conversation: str | None,
    budget: str | None,
    include_suspicious: bool,
    include_tool_turns: bool,
    include_corrected: bool,
) -> int:
    """Assemble what a model needs to answer a message.

    That is the last turns of its conversation, earlier turns that answer it, memories, and the
    message itself. QUERY is the message, or - to read it from standard input. Everything recalled
    is fenced as data. The text format is the prompt; in JSON it is under prompt, beside its parts.
    What seems to give orders to a model is left out, and turns of tools; a note says how many. If
    the store can't be reached, memories are those of the scratchpad, and it exits 4.
    """
    message = read_argument(query, "query")
    asked = {"include_suspicious": include_suspicious, "include_tool_turns": include_tool_turns}
    most = None if budget is None else _tokens(budget)
    from memories.identity.degraded import WithScratchpad

    builder = _builder(memories, most, include_corrected=include_corrected, **asked)
    gateway = WithScratchpad(builder.gateway, memories)
    builder.gateway = gateway  # type: ignore[assignment] # it passes on all that it does not do itself
    with contextlib.closing(gateway):
        if conversation is None:  # noqa: SIM108
            built = builder.build_everywhere(message)
        else:
            built = builder.build_context(conversation, message)
    prompt = builder.format_for_prompt(built)
    for failed in built["metadata"]["errors"]:
        instead = gateway.degraded and failed["part"] == "memories"
        note(
            f"{failed['part']} {'from the scratchpad alone' if instead else 'left out'}: {failed['error']}"
        )
    if told := left_out(built["metadata"]["left_out"]):
        note(told)
    emit(shapes.context(built, prompt), lambda: "\n".join(map(safe, prompt.split("\n"))))
    if not gateway.degraded:
        return 0
    memories.abandon()  # a call that was given up may still use the store
    return DAMAGED


def left_out(found: "Mapping[str, Mapping[str, Any]]") -> str:
    """Return what a context leaves out, and how to include it, as one sentence; empty if it leaves
    out nothing.
    """
    told = [
        f"{found[reason]['count']} {what}" for reason, what in _LEFT_OUT.items() if reason in found
    ]
    return f"left out: {'; '.join(told)}" if told else ""


_LEFT_OUT = {
    "suspicious": "that seem to give orders to a model (--include-suspicious)",
    "tool_turn": "turns of tools or the system (--include-tool-turns)",
    "captured": "that a hook captured and nobody has accepted (memory search shows them)",
    "one_writer": "more of one other writer (CONTEXT_MAX_PER_WRITER)",
    "no_room": "for which there is no room (CONTEXT_MEMORY_CHARACTERS)",
}


def _builder(
    memories: "Memories", budget: int | None, *, include_corrected: bool, **asked: bool
) -> "ContextBuilder":
    """Return a builder over this run's memory, or over what MCP_ENDPOINT names, if it names
    something else.

    Raises:
        InvalidInput: Nothing here can speak to that endpoint.
    """
    from memories.context.context import ContextBuilder
    from memories.context.engine import EngineBackend
    from memories.context.gateway import ENGINE, MemoryGateway
    from memories.context.protocol import UnsupportedEndpoint
    from memories.core import logs

    if memories.config.sources["log_level"] != "default":
        logs.enable(memories.config.log_level)
    endpoint = memories.config.mcp_endpoint
    ours = endpoint == ENGINE or memories.config.sources["store"] == "flag"
    engine = EngineBackend(memories, include_corrected=include_corrected)
    try:
        gateway = MemoryGateway(endpoint, backend=engine if ours else None)
    except UnsupportedEndpoint as exc:
        raise InvalidInput(f"MCP_ENDPOINT: {exc}") from exc
    return ContextBuilder.from_config(gateway, memories.config, budget, **asked)


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_BUDGET):
        raise InvalidInput(f"budget must be a whole number of tokens from 1 to {MAX_BUDGET}")
    return int(text)


COMMANDS = (turns, context)
