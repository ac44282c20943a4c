"""Commands for the turns of conversations: turns add, tail, show, list."""

import json
from collections.abc import Mapping
from typing import Any

import click

from memories.errors import InvalidInput
from memories.skins import shapes
from memories.skins.cli.options import in_session, limit_option, whole_number
from memories.skins.cli.session import Session, confirm, note, read_argument, texts
from memories.times import parse_time

MAX_INPUT_BYTES = 67_108_864  # of JSON lines
_NAMES = {"text": "content", "ts": "created_at"}  # as the conversation specification calls them


@click.group(invoke_without_command=True, epilog='Example: memory turns add standup "We ship on Friday" --speaker Ann')
@click.pass_context
def turns(context: click.Context) -> None:
    """Keep what was said in conversations; search it with: memory search --in history."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@turns.command(epilog="Example: memory turns add standup - <turns.jsonl")
@click.argument("conversation")
@click.argument("content")
@click.option("--role", metavar="ROLE", help="user (if nothing is said), assistant, system or tool.")
@click.option("--speaker", metavar="NAME", help="Who said it.")
@click.option("--at", "created_at", metavar="TIME", help="When it was said; now if nothing is said.")
@click.option("--message-id", metavar="ID", help="A turn that has it already is not stored again.")
@in_session(reads=False)
def add(run: Session, conversation: str, content: str, **given: str | None) -> None:
    """Append a turn; - reads many from standard input, a JSON object on each line.

    Its keys: content, role, speaker, created_at, message_id, tags.
    """
    from memories.turns import TurnDraft

    fields = {name: value for name, value in given.items() if value is not None}
    if content == "-":
        if fields:
            raise InvalidInput("each line says its own role, speaker, time and id; leave out the options beside -")
        lines = enumerate(read_argument("-", "input", MAX_INPUT_BYTES).split("\n"), 1)
        added = run.memories.add_turns(conversation, [_draft(line, number) for number, line in lines if line.strip()])
        last = added[-1].index if added else None
        answer = {"conversation_id": conversation.strip(), "count": len(added), "last_index": last}
        run.show(
            answer, lambda: f"{len(added)} turns are stored; the last one has index {last}." if added else "No turns."
        )
        return
    [said] = run.memories.add_turns(conversation, [TurnDraft(content, **_read(fields))])
    run.show(shapes.turn(said), lambda: texts().turns([said]))


@turns.command(epilog="Example: memory turns tail standup --limit 16")
@click.argument("conversation")
@limit_option
@in_session(reads=True)
def tail(run: Session, conversation: str, limit: str | None) -> None:
    """Show the last turns of a conversation, oldest first."""
    said = run.memories.tail_turns(conversation, limit=whole_number(limit))
    run.show(shapes.turns(said), lambda: texts().turns(said))


@turns.command(epilog="Example: memory turns show standup --from 100 --limit 50")
@click.argument("conversation")
@click.option("--from", "start", metavar="INDEX", help="The first turn, counted from 0.")
@limit_option
@in_session(reads=True)
def show(run: Session, conversation: str, start: str | None, limit: str | None) -> None:
    """Show the turns of a conversation, oldest first."""
    first = whole_number(start, "from must be a whole number from 0")
    said = run.memories.turns(conversation, start=first or 0, limit=whole_number(limit))
    run.show(shapes.turns(said), lambda: texts().turns(said))


@turns.command("list", epilog="Example: memory turns list --limit 20")
@limit_option
@in_session(reads=True)
def list_(run: Session, limit: str | None) -> None:
    """List conversations, the newest first, with counts and dates."""
    found = run.memories.conversations(limit=whole_number(limit))
    run.show(shapes.conversations(found), lambda: texts().conversations(found))


@turns.command(epilog="Example: memory turns forget standup --index 3 --yes")
@click.argument("conversation")
@click.option("--index", metavar="INDEX", help="Only this turn.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@in_session(reads=False)
def forget(run: Session, conversation: str, index: str | None, yes: bool) -> int:
    """Remove a conversation, or one of its turns, for good: text, words and vectors."""
    number = whole_number(index, "index must be a whole number from 0")
    what = f"turn {number} of {conversation}" if number is not None else f"the conversation {conversation}"
    if not yes and not confirm(f"Forget {what} for good?"):
        note("Nothing was forgotten.")
        return 1
    gone = run.memories.forget_turns(conversation, index=number)
    answer = {"conversation_id": conversation.strip(), "forgotten": True, "turns": gone.versions}
    run.show(answer | {"also_in": list(gone.also_in)}, lambda: f"Forgotten: {gone.versions} turns.")
    return 0


def _draft(line: str, number: int) -> Any:
    """Return the turn that a line describes.

    Raises:
        InvalidInput: It is not an object with the keys of a turn.
    """
    from memories.turns import TurnDraft

    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(f"line {number} is not JSON: {exc}; nothing was stored") from exc
    fields = {_NAMES.get(str(name), str(name)): value for name, value in given.items()} if type(given) is dict else {}
    if type(given) is dict and len(fields) < len(given):
        raise InvalidInput(f"line {number} has a key twice, by its two names; nothing was stored")
    if "content" not in fields or not fields.keys() <= TurnDraft.__annotations__.keys():
        known = ", ".join(TurnDraft.__annotations__)
        raise InvalidInput(
            f"line {number} is not a turn: it must be an object with the keys {known}; nothing was stored"
        )
    return TurnDraft(**_read(fields))


def _read(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a draft, the time as a time."""
    from datetime import UTC, datetime

    time = fields.get("created_at")
    return dict(fields) | ({} if time is None else {"created_at": parse_time(str(time), datetime.now(UTC))})


COMMANDS = (turns,)
