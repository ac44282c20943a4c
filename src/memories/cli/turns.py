"""Commands for conversations: turns, and context, which builds a prompt for a message."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from memories.answers import conversation_shapes
from memories.answers.advice import complete_commands
from memories.cli.app import Group, add_given_tags, command, completing, option
from memories.cli.options import (
    compact,
    cursor_option,
    dry_run_option,
    filtered_by,
    no_redact_option,
    read_argument,
    remove_tag_option,
    text,
    unasked_option,
    whole_number_or,
    with_memories,
)
from memories.cli.output import (
    DAMAGED,
    begin_change,
    confirm,
    describe_left_out,
    emit,
    note,
    print_error,
    record_change,
    safe,
)
from memories.core.times import parse_time_in_zone
from memories.errors import InvalidInput, NotFound, SystemFault
from memories.guard.validate import ROLES, amount, read_json

if TYPE_CHECKING:
    from memories.context.gateway import WithScratchpad
    from memories.memories import Memories
    from memories.read.turns import Turn, TurnDraft

MAX_INPUT_BYTES = 67_108_864  # maximum total size of the JSON lines on standard input
MAX_BUDGET = 100_000_000
_BUDGET = f"budget must be a whole number of tokens from 1 to {MAX_BUDGET}"
_ALIASES = {"text": "content", "ts": "created_at"}  # field names in the conversation specification
_turn_filters = filtered_by("role", "speaker", "since", "until", "as_of", "limit")
_tags_option = partial(option, "--tag", "-t", "tag", metavar="KEY=VALUE", multiple=True)
_conversation_argument = click.argument("conversation", shell_complete=completing("conversations"))


@click.group(
    cls=Group,
    epilog='memory turns add standup "We ship on Friday" --speaker Ann\nmemory turns tail standup',
)
def turns() -> None:
    """Add, read and erase conversation turns.

    To search conversations: memory search QUERY --in history.
    """


# --- add ---


@turns.command(
    epilog='memory turns add standup "We ship on Friday" --speaker Ann\n'
    "memory turns add standup - <turns.jsonl"
)
@_conversation_argument
@click.argument("content")
@option(
    "--role", metavar="ROLE", group="fields", values=ROLES,
    help="The speaker's role: user, assistant, system or tool. [default: user]",
)  # fmt: skip
@option("--speaker", metavar="NAME", group="fields", help="The speaker's name.")
@option(
    "--at",
    "created_at",
    metavar="TIME",
    group="fields",
    help="The time of the turn. [default: now]",
)
@option(
    "--message-id", metavar="ID", group="fields",
    help="The turn's id in the system it comes from; a turn with a known id is not added again.",
)  # fmt: skip
@no_redact_option
@with_memories(reads_shared=False)
def add(
    memories: "Memories",
    conversation: str,
    content: str,
    no_redact: bool,
    fields: Mapping[str, str],
) -> int:
    """Add one or more turns to a conversation.

    CONTENT is the turn's text, or - to read many turns from standard input: one JSON object per
    line, with the keys content, role, speaker, created_at, message_id and tags. Each turn is
    reported as stored, known (its message id exists with the same content) or refused (its message
    id exists with different content). If a turn is refused, the others are stored, and the exit
    code is 1.
    """
    if content != "-":
        draft = _draft({"content": content, **fields})
        begin_change()
        [turn] = memories.add_turns(conversation, [draft], redact=not no_redact)
        record_change(*_describe([turn]))
        emit(
            conversation_shapes.turn(turn),
            partial(text.add_turn_result, turn),
            compact=partial(compact.add_turns_result, [turn]),
        )
        return _report_refused([turn])
    if fields:
        raise InvalidInput(
            "with -, each line has its own role, speaker, time and id; omit these options"
        )
    lines = read_argument("-", "input", MAX_INPUT_BYTES).split("\n")
    drafts = [_parse_line(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not drafts:
        raise InvalidInput("the input contains no turns; write one JSON object per line")
    begin_change()
    added = memories.add_turns(conversation, drafts, redact=not no_redact)
    record_change(*_describe(added))
    emit(
        conversation_shapes.add_turns_result(conversation, added),
        partial(text.add_turns_result, added),
        compact=partial(compact.add_turns_result, added),
    )
    return _report_refused(added)


def _parse_line(line: str, number: int) -> "TurnDraft":
    """Return the turn on a line.

    Raises:
        InvalidInput: The line is not an object with the keys of a turn.
    """
    from memories.read.turns import TurnDraft

    try:
        value = read_json(line)
    except InvalidInput as exc:
        raise InvalidInput(f"line {number} {exc}; nothing was stored") from exc
    fields = {}
    if type(value) is dict:
        fields = {_ALIASES.get(str(name), str(name)): field for name, field in value.items()}
        if len(fields) < len(value):
            raise InvalidInput(
                f"line {number} contains a key twice, under both of its names; nothing was stored"
            )
    known = TurnDraft.__annotations__
    if "content" not in fields or not fields.keys() <= known.keys():
        raise InvalidInput(
            f"line {number} is not a turn: it must be a JSON object with content and only these "
            f"keys: {', '.join(known)}; nothing was stored"
        )
    return _draft(fields)


def _draft(fields: Mapping[str, Any]) -> "TurnDraft":
    from datetime import UTC, datetime

    from memories.read.turns import TurnDraft

    time = fields.get("created_at")
    if time is not None:
        fields = {**fields, "created_at": parse_time_in_zone(str(time), datetime.now(UTC))}
    return TurnDraft(**fields)


def _report_refused(turns: "Sequence[Turn]") -> int:
    """Print how many turns were refused, and why the first one was; return the exit code."""
    reasons = [turn.reason for turn in turns if turn.reason]
    if not reasons:
        return 0
    total = amount(len(turns), "turn was", "turns were")
    return print_error(f"{len(reasons)} of {total} not stored: {reasons[0]}", 1)


def _describe(turns: "Sequence[Turn]") -> tuple[str, str]:
    """Return what was stored and what a second run would do, as clauses for an error message."""
    stored = [turn for turn in turns if turn.status == "stored"]
    if not stored:
        return "nothing new was stored", "running the command again is harmless"
    span = stored[0].id if len(stored) == 1 else f"{stored[0].id} to {stored[-1].id}"
    again = "running the command again would store the same text twice"
    if all(turn.message_id is not None for turn in stored):
        known = "message id is" if len(stored) == 1 else "message ids are"
        again = f"the {known} now known, so running the command again stores nothing twice"
    return f"stored as {span}", again


# --- read ---


@turns.command(
    epilog="memory turns tail standup --limit 16\n"
    "memory turns tail standup --speaker Ann --since 7d"
)
@_conversation_argument
@_turn_filters
@with_memories(reads_shared=True)
def tail(memories: "Memories", conversation: str, filters: Mapping[str, Any]) -> int:
    """Show the last turns of a conversation, oldest first.

    Turns that are waiting to be stored come last. If the store does not respond, only the waiting
    turns are shown, and the exit code is 1.
    """
    read = partial(memories.tail_turns, conversation, **filters)
    return _emit_turns(memories, conversation, read, filters.get("as_of"))


@turns.command(
    epilog="memory turns show standup --from 100 --limit 50\n"
    "memory turns show standup --role assistant"
)
@_conversation_argument
@option(
    "--from", "start", metavar="INDEX", section="Output",
    parse=whole_number_or("from must be a whole number, 0 or more"),
    help="The first turn to show, counted from 0. [default: 0]",
)  # fmt: skip
@_turn_filters
@with_memories(reads_shared=True)
def show(
    memories: "Memories", conversation: str, start: int | None, filters: Mapping[str, Any]
) -> int:
    """Show the turns of a conversation, oldest first.

    Turns that are waiting to be stored come last. If the store does not respond, only the waiting
    turns are shown, and the exit code is 1.
    """
    read = partial(memories.turns, conversation, start=start or 0, **filters)
    return _emit_turns(memories, conversation, read, filters.get("as_of"))


def _emit_turns(
    memories: "Memories", conversation: str, read: "Callable[[], list[Turn]]", as_of: str | None
) -> int:
    """Print turns, or only the queued ones if the store does not respond; return the exit code."""
    problem = None
    try:
        records = read()
    except SystemFault as exc:
        records, problem = memories.waiting_turns(conversation), exc
        if not records:
            raise
    if not records:
        try:
            memories.conversation(conversation, as_of=as_of)
        except NotFound as exc:
            turns_list = complete_commands("memory turns list")
            note(f"Note: {exc} ({safe(conversation)}); run {turns_list} to see the conversations")
    emit(
        conversation_shapes.turns(records),
        partial(text.turns, records),
        compact=partial(compact.page, memories, records),
    )
    if problem is not None:
        return print_error(f"{problem}; only turns waiting to be stored are shown", 1)
    return 0


@turns.command(
    "list",
    epilog="memory turns list --speaker Ann --since 7d\n"
    "memory turns list --title release --tag project=shop",
)
@option(
    "--title", metavar="TEXT", section="Filters", group="filters",
    help="Only conversations whose title contains this text.",
)  # fmt: skip
@option(
    "--user", metavar="NAME", section="Filters", group="filters",
    help="Only conversations with this user.",
)  # fmt: skip
@_tags_option(
    section="Filters",
    help="Only conversations with this tag; may be repeated, and all must match.",
)
@_turn_filters
@cursor_option
@with_memories(reads_shared=True)
def list_(
    memories: "Memories", tag: Sequence[str], cursor: str | None, filters: Mapping[str, Any]
) -> int:
    """List conversations, newest first.

    --role, --speaker, --since and --until select conversations that contain a matching turn. If the
    store does not respond, only conversations with turns waiting to be stored are shown, and the
    exit code is 1.
    """
    tags = add_given_tags({}, tag) or None
    problem = None
    try:
        page = memories.list_conversations(cursor=cursor, tags=tags, **filters)
    except SystemFault as exc:
        from memories.read.conversations import ConversationPage
        from memories.write.turn_queue import with_waiting

        page = with_waiting(ConversationPage((), None), memories.waiting_turns(), first=True)
        problem = exc
        if not page.conversations:
            raise
    emit(conversation_shapes.conversations(page), partial(text.conversations, page))
    if problem is None:
        return 0
    return print_error(f"{problem}; only conversations with waiting turns are shown", 1)


# --- update and forget ---


@turns.command(
    epilog='memory turns update standup --title "May release" --tag project=shop\n'
    'memory turns update standup --title "" --remove-tag project'
)
@_conversation_argument
@option("--title", metavar="TEXT", group="changes", help="The title; empty to remove it.")
@option(
    "--user", metavar="NAME", group="changes",
    help="The conversation's user; empty for none.",
)  # fmt: skip
@_tags_option(section="Tags", help="A tag; may be repeated.")
@remove_tag_option
@no_redact_option
@with_memories(reads_shared=True)
def update(
    memories: "Memories",
    conversation: str,
    tag: Sequence[str],
    no_redact: bool,
    changes: Mapping[str, Any],
) -> None:
    """Set a conversation's title, user and tags.

    Anything you omit stays the same.
    """
    tags = add_given_tags({}, tag)
    begin_change()
    record = memories.update_conversation(conversation, tags=tags, redact=not no_redact, **changes)
    record_change(f"{record.id} was updated")
    emit(conversation_shapes.conversation(record), partial(text.conversation, record))


@turns.command(
    epilog="memory turns forget standup --with-memories --dry-run\n"
    "memory turns forget standup --index 3 --yes"
)
@_conversation_argument
@option(
    "--index", metavar="INDEX", parse=whole_number_or("index must be a whole number, 0 or more"),
    help="Only this turn. [default: the entire conversation]",
)  # fmt: skip
@option(
    "--with-memories", is_flag=True,
    help="Also erase the memories made from the conversation or the turn.",
)  # fmt: skip
@dry_run_option
@unasked_option
@with_memories(reads_shared=False)
def forget(
    memories: "Memories",
    conversation: str,
    index: int | None,
    with_memories: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Permanently erase a conversation, or one of its turns.

    No byte of an erased turn stays in the store, and this can't be undone. If the conversation is
    erased entirely, it is also erased from the hooks' inbox. Otherwise, the remaining turns keep
    their indexes.
    """
    from memories.cli.bulk import note_copies

    target = f"the conversation {conversation}"
    if index is not None:
        target = f"turn {index} of {conversation}"
    if with_memories:
        target += " and the memories made from it"
    if not yes and not dry_run and not confirm(f"Permanently forget {target}?"):
        return 1
    begin_change()
    forgotten = memories.forget_turns(
        conversation, index=index, with_memories=with_memories, dry_run=dry_run
    )
    record_change(f"{target} was permanently forgotten")
    head = "Would be permanently forgotten" if dry_run else "Permanently forgotten"
    answer = f"{head}: {amount(forgotten.versions, 'turn', 'turns')} of {forgotten.id}"
    count = None
    if with_memories:
        count = forgotten.memories
        memories_made = amount(count, "memory that was", "memories that were")
        answer += f", and {memories_made} made from them"
    lines = [answer, *text.list_current_again(forgotten.current_again)]
    emit(
        conversation_shapes.forget_turns_result(forgotten, count, dry_run=dry_run),
        "\n".join(lines),
    )
    note_copies(forgotten.also_in)
    return 0


# --- context ---


@command(epilog='memory context "When do we ship?" --conversation standup --budget 2000')
@click.argument("query")
@option(
    "--conversation", metavar="NAME",
    help="The conversation that the message belongs to. [default: recall from all]",
)  # fmt: skip
@option(
    "--budget", metavar="N", parse=whole_number_or(_BUDGET),
    help="Maximum number of tokens in the prompt. [default: no limit]",
)  # fmt: skip
@option(
    "--include-suspicious", is_flag=True, group="include",
    help="Include texts that look like instructions to a model, and mark them.",
)  # fmt: skip
@option(
    "--include-corrected", is_flag=True, group="include",
    help="Also show memories that other memories correct.",
)  # fmt: skip
@option(
    "--include-tool-turns", is_flag=True, group="include",
    help="Include turns with the roles tool and system.",
)  # fmt: skip
@with_memories(reads_shared=True)
def context(
    memories: "Memories",
    query: str,
    conversation: str | None,
    budget: int | None,
    include: Mapping[str, bool],
) -> int:
    """Build the prompt for a model's answer to a message.

    The prompt contains the last turns of the message's conversation, earlier turns that may help to
    answer the message, memories, and the message itself. QUERY is the message, or - to read it from
    standard input. Recalled texts are fenced as data. JSON also contains the prompt's parts; the
    other formats print only the prompt. Tool turns, and texts that look like instructions to a
    model, are left out; a note says how many. If the store can't be reached, the scratchpad
    provides the memories, and the exit code is 4.
    """
    from memories.context.context import ContextBuilder

    if budget is not None and not 1 <= budget <= MAX_BUDGET:
        raise InvalidInput(f'{_BUDGET}, not "{budget}"')
    message = read_argument(query, "query")
    if conversation is None and not message.strip():
        raise InvalidInput("query is empty; give the message, or a --conversation to continue")
    options = dict(include)
    gateway = _gateway(memories, include_corrected=options.pop("include_corrected"))
    builder = ContextBuilder.from_config(gateway, memories.config, budget, **options)
    with gateway:
        if conversation is None:
            built = builder.build_everywhere(message)
        else:
            built = builder.build_context(conversation, message)
    prompt = builder.format_for_prompt(built)
    for error in built["metadata"]["errors"]:
        is_replaced = gateway.degraded and error["part"] == "memories"
        outcome = "from the scratchpad alone" if is_replaced else "left out"
        note(f"{error['part']} {outcome}: {error['error']}")
    if remark := describe_left_out(built["metadata"]["left_out"]):
        note(remark)
    escaped = "\n".join(map(safe, prompt.split("\n")))
    emit(conversation_shapes.context(built, prompt), escaped, compact=escaped)
    if not gateway.degraded:
        return 0
    memories.abandon()  # a call that timed out may still use the store
    return DAMAGED


def _gateway(memories: "Memories", *, include_corrected: bool) -> "WithScratchpad":
    """Return a gateway to this run's memory, or to a different MCP_ENDPOINT.

    Raises:
        InvalidInput: No backend supports that endpoint.
    """
    from memories.context.gateway import ENGINE, WithScratchpad
    from memories.context.memories_backend import MemoriesBackend
    from memories.context.protocol import UnsupportedEndpoint
    from memories.core import logs

    config = memories.config
    if config.sources["log_level"] != "default":
        logs.enable(config.log_level)
    backend = None
    if config.mcp_endpoint == ENGINE or config.sources["store"] == "flag":
        backend = MemoriesBackend(memories, include_corrected=include_corrected)
    try:
        return WithScratchpad(memories, backend=backend)
    except UnsupportedEndpoint as exc:
        raise InvalidInput(f"MCP_ENDPOINT: {exc}") from exc


COMMANDS = (turns, context)
