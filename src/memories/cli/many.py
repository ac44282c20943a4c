"""What commands do to several memories: to each that is named, or to all that meet an expression; the undo of that."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from memories.answers import shapes
from memories.cli.options import command, dry_run_option, in_session, option, show_option, where_option, whole_number
from memories.cli.output import changing, confirm, emit, note, so_far
from memories.cli.session import read_argument, texts
from memories.errors import InvalidInput, NotFound, RequestError, StoreDamaged
from memories.guard.validate import MAX_LIMIT
from memories.identity.place import names_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from memories.memories import Memories
    from memories.write.many import Affected

Result = TypeVar("Result")

_SHOWN = 10
_ERRORS = 20  # that are told one by one
_MAX_INPUT_BYTES = 4_194_304  # of ids
_SHOW = f"show must be a whole number from 0 to {MAX_LIMIT}"


class Named(NamedTuple):
    """The memories that a command line names.

    Attributes:
        ids: Their ids as they were given, each once.
        several: Whether the answer is a list: more than one was given, or they came from standard input.
    """

    ids: Sequence[str]
    several: bool


def named(memories: "Memories", given: Sequence[str], key: str | None = None, project: str | None = None) -> Named:
    """Return the memories that are named by their ids, by `-` for ids on standard input, or by a key.

    Raises:
        InvalidInput: None is, or some in two ways.
        NotFound: None has the key.
    """
    names = names_of(project)
    if key is not None:
        if given:
            raise InvalidInput("ID and --key do not go together; give one of them")
        return Named([_with_key(memories, key, names)], several=False)
    if names:
        raise InvalidInput("--project goes with --key here, for each project has keys of its own")
    if not given:
        raise click.UsageError("Missing argument 'ID', or --key.")
    ids = [name for each in given for name in (ids_from_input() if each == "-" else [each])]
    if not ids:
        raise InvalidInput("standard input has no ids; write one on each line")
    return Named(list(dict.fromkeys(ids)), several=len(given) > 1 or "-" in given)


def _with_key(memories: "Memories", key: str, names: Sequence[str]) -> str:
    """Return the id of the memory that has a key, under the first of the project's names that has it."""
    for name in names[:-1]:
        with contextlib.suppress(NotFound):
            return memories.id_of_key(key, project=name)
    return memories.id_of_key(key, project=names[-1] if names else None)


def ids_from_input() -> list[str]:
    """Return the ids on standard input, which stand between blanks or line ends."""
    return read_argument("-", "ids", _MAX_INPUT_BYTES).split()


def each_of(
    memories_named: Named,
    run: "Callable[[str], Result]",
    shape: "Callable[[Result], dict[str, Any]]",
    text: "Callable[[Result], str]",
    done: str = "",
    compact: "Callable[[Result], str] | None" = None,
) -> int:
    """Do something to each memory that is named, and print the answers; return the exit code.

    One that can't be found or changed is told, and costs no other one its answer.

    Args:
        memories_named: Which.
        run: Does it.
        shape: Makes the JSON of one.
        text: Makes the text of one.
        done: What it is to have been done to, such as `deleted`, if it changes anything.
        compact: Makes the text of one for a model; by default that is the JSON.
    """
    if not memories_named.several:
        [only] = memories_named.ids
        result = changing(lambda: run(only), lambda found: _was(shape(found), done)) if done else run(only)
        emit(shape(result), lambda: text(result), compact=compact and (lambda: compact(result)))
        return 0
    results: list[Result] = []
    errors: list[dict[str, str]] = []
    for name in memories_named.ids:
        if done:
            so_far(f"{len(results)} of {len(memories_named.ids)} were {done}; running it again does the rest")
        try:
            results.append(run(name))
        except (RequestError, StoreDamaged) as exc:  # one that is damaged costs no other one its answer either
            errors.append({"id": name, "error": str(exc)})
    if done:
        so_far(f"{len(results)} of {len(memories_named.ids)} were {done}; running it again does the rest")
    told = {"results": [shape(result) for result in results], "count": len(results)}
    emit(
        told | ({"errors": errors} if errors else {}),
        lambda: "\n\n".join(map(text, results)) or "Nothing here.",
        compact=compact and (lambda: "\n".join(map(compact, results))),
    )
    for error in errors[:_ERRORS]:
        note(f"{error['id']}: {error['error']}")
    if len(errors) > _ERRORS:
        note(f"and {len(errors) - _ERRORS} more")
    return 1 if errors else 0


def _was(answer: Mapping[str, Any], done: str) -> str:
    """Return what was done to a memory, as a part of a sentence."""
    return f"{answer['id']} was {done}" + (f", version {answer['version']}" if done == "updated" else "")


def some_or_where(given: Sequence[str], key: str | None, where: str | None, dry_run: bool) -> None:
    """Check that a command is given memories by name, or an expression.

    Raises:
        InvalidInput: It is given both, or neither, or --dry-run for some that are named.
    """
    if (given or key is not None) and where is not None:
        raise InvalidInput(f"{'ID' if given else '--key'} and --where do not go together; give one of them")
    if not given and key is None and where is None:
        raise click.UsageError("Missing argument 'ID', or --where.")
    if dry_run and where is None:
        raise InvalidInput("--dry-run goes with --where; memory get shows one memory")


def delete_where(memories: "Memories", where: str, show: str | None, *, dry_run: bool) -> int:
    """Delete what meets an expression."""
    return told(memories, lambda: memories.delete_where(where, dry_run=dry_run), show)


def forget_where(memories: "Memories", where: str, scope: str, show: str | None, *, dry_run: bool, yes: bool) -> int:
    """Erase what meets an expression, after a question."""
    if not dry_run and not yes:
        planned = memories.forget_where(where, scope=scope, dry_run=True)
        count = planned.counts.get("forget", 0)
        if count and not confirm(texts().forget_many_question(planned)):
            return 1
    return told(memories, lambda: memories.forget_where(where, scope=scope, dry_run=dry_run), show)


def change_tags(
    memories: "Memories", words: Sequence[str], where: str | None, show: str | None, *, dry_run: bool
) -> int:
    """Set, remove, rename or merge tags; the first word says which."""
    from memories.guard.validate import parse_tag

    change, *given = words
    tags: Mapping[str, str] = {}
    renamed: Mapping[str, str] = {}
    if change == "set":
        tags = dict(map(parse_tag, given))
    elif change in ("rename", "merge"):
        if len(given) < 2 or (change == "rename" and len(given) > 2):
            many = "OLD… NEW" if change == "merge" else "OLD NEW"
            raise InvalidInput(f"{change} takes {many}: keys, or tags such as type=fact")
        *old, new = given
        if change == "rename":
            _refuse_used(memories, new)
        renamed = dict.fromkeys(old, new)
    removed = given if change == "remove" else []
    return told(
        memories,
        lambda: memories.tag_where(where, tags=tags, remove_tags=removed, rename_tags=renamed, dry_run=dry_run),
        show,
    )


def _refuse_used(memories: "Memories", new: str) -> None:
    """Refuse to give tags a name that others have already: they could not be told apart afterwards.

    Raises:
        InvalidInput: It is in use.
    """
    from shlex import quote

    key, _, value = new.partition("=")
    used = memories.tags(key)
    if (value in used) if "=" in new else used:
        raise InvalidInput(f'"{new}" is in use; to make them one: memory tags merge OLD {quote(new)}')


def told(memories: "Memories", run: "Callable[[], Affected]", show: str | None) -> int:
    """Do it and say what was done; return the exit code."""
    shown = _SHOWN if show is None else whole_number(show, _SHOW) or 0
    if shown > MAX_LIMIT:
        raise InvalidInput(_SHOW)
    done = changing(run, lambda done: f"{shapes.summary(done)}; running it again does what is left")
    undo = _undo(memories, done)
    emit(shapes.affected(done, undo, shown), lambda: texts().affected(done, undo, shown))
    tell_copies(done.also_in)
    return 1 if done.counts.get("left") else 0


def tell_copies(also_in: Sequence[str]) -> None:
    """Say where what was forgotten may still be."""
    if also_in:
        note(f"Backups, and copies from an upgrade, a move or a server, may still hold it: {', '.join(also_in)}")


def _undo(memories: "Memories", done: "Affected") -> str | None:
    """Return the command that undoes it."""
    from shlex import quote

    from memories.core.times import to_iso
    from memories.models import SHARED

    if done.undo_to is None:
        return None
    namespace = "" if memories.namespace == SHARED else f" --namespace {memories.namespace}"
    return f"memory rollback{namespace} --to {to_iso(done.undo_to)} --where {quote(done.undo_where)}"


@command(
    epilog='memory rollback --to "2 hours ago" --dry-run\n'
    "memory rollback --to 2026-05-01T09:00 --where 'by = claude-code'"
)
@option("--to", "to", metavar="TIME", required=True, help="The time to go back to; a date means its beginning.")
@where_option
@dry_run_option
@show_option
@in_session(reads=False)
def rollback(memories: "Memories", to: str, where: str | None, dry_run: bool, show: str | None) -> int:
    """Put memories back as they were at a time.

    What was created since is deleted, what was changed gets a version that says what it said, what was deleted or
    replaced is restored. Nothing is lost: the answer names the command that undoes it. Turns stay as they are. With
    --where, only memories of which a version since then, or else the latest one, meets it. Exits 1 if some could not be
    put back.
    """
    return told(memories, lambda: memories.rollback(to, where=where, dry_run=dry_run), show)


COMMANDS = (rollback,)
