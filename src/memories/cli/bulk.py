"""Commands on several memories: those that are named, all that meet an expression, or many from a
file; rollback.
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import click

from memories.answers import shapes
from memories.cli.options import (
    command,
    dry_run_option,
    in_session,
    option,
    show_option,
    where_option,
    whole_number,
)
from memories.cli.output import changing, confirm, emit, emit_lines, note, safe, so_far
from memories.cli.session import read_argument, texts
from memories.core.batches import by_weight
from memories.core.times import parse_span
from memories.errors import InvalidInput, NotFound, RequestError, StoreDamaged
from memories.guard.validate import MAX_CONTENT_BYTES, MAX_LIMIT, read_json, shown
from memories.identity.place import names_of
from memories.models import KNOWN_TAGS, Draft

if TYPE_CHECKING:
    from collections.abc import Callable

    from memories.memories import Memories
    from memories.write.create import Created
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
        several: Whether the answer is a list: more than one was given, or they came from standard
            input.
    """

    ids: Sequence[str]
    several: bool


def named(
    memories: "Memories", given: Sequence[str], key: str | None = None, project: str | None = None
) -> Named:
    """Return the memories that are named by their ids, by `-` for ids on standard input, or by a
    key.

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
    """Return the id of the memory that has a key, under the first of the project's names that has
    it.
    """
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
        result = (
            changing(lambda: run(only), lambda found: _was(shape(found), done))
            if done
            else run(only)
        )
        emit(shape(result), lambda: text(result), compact=compact and (lambda: compact(result)))
        return 0
    results: list[Result] = []
    errors: list[dict[str, str]] = []
    for name in memories_named.ids:
        if done:
            so_far(
                f"{len(results)} of {len(memories_named.ids)} were {done}; running it again does the rest"
            )
        try:
            results.append(run(name))
        except (
            RequestError,
            StoreDamaged,
        ) as exc:  # one that is damaged costs no other one its answer either
            errors.append({"id": name, "error": str(exc)})
    if done:
        so_far(
            f"{len(results)} of {len(memories_named.ids)} were {done}; running it again does the rest"
        )
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
    return f"{answer['id']} was {done}" + (
        f", version {answer['version']}" if done == "updated" else ""
    )


def some_or_where(given: Sequence[str], key: str | None, where: str | None, dry_run: bool) -> None:
    """Check that a command is given memories by name, or an expression.

    Raises:
        InvalidInput: It is given both, or neither, or --dry-run for some that are named.
    """
    if (given or key is not None) and where is not None:
        raise InvalidInput(
            f"{'ID' if given else '--key'} and --where do not go together; give one of them"
        )
    if not given and key is None and where is None:
        raise click.UsageError("Missing argument 'ID', or --where.")
    if dry_run and where is None:
        raise InvalidInput("--dry-run goes with --where; memory get shows one memory")


def delete_where(memories: "Memories", where: str, show: str | None, *, dry_run: bool) -> int:
    """Delete what meets an expression."""
    return told(memories, lambda: memories.delete_where(where, dry_run=dry_run), show)


def forget_where(
    memories: "Memories", where: str, scope: str, show: str | None, *, dry_run: bool, yes: bool
) -> int:
    """Erase what meets an expression, after a question."""
    if not dry_run and not yes:
        planned = memories.forget_where(where, scope=scope, dry_run=True)
        count = planned.counts.get("forget", 0)
        if count and not confirm(texts().forget_many_question(planned)):
            return 1
    return told(memories, lambda: memories.forget_where(where, scope=scope, dry_run=dry_run), show)


def change_tags(
    memories: "Memories",
    words: Sequence[str],
    where: str | None,
    show: str | None,
    *,
    dry_run: bool,
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
        lambda: memories.tag_where(
            where, tags=tags, remove_tags=removed, rename_tags=renamed, dry_run=dry_run
        ),
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
        raise InvalidInput(
            f'"{new}" is in use; to make them one: memory tags merge OLD {quote(new)}'
        )


def told(memories: "Memories", run: "Callable[[], Affected]", show: str | None) -> int:
    """Do it and say what was done; return the exit code."""
    shown = _SHOWN if show is None else whole_number(show, _SHOW) or 0
    if shown > MAX_LIMIT:
        raise InvalidInput(_SHOW)
    done = changing(
        run, lambda done: f"{shapes.summarize(done)}; running it again does what is left"
    )
    undo = _undo(memories, done)
    emit(shapes.bulk_result(done, undo, shown), lambda: texts().affected(done, undo, shown))
    tell_copies(done.also_in)
    return 1 if done.counts.get("left") else 0


def tell_copies(also_in: Sequence[str]) -> None:
    """Say where what was forgotten may still be."""
    if also_in:
        note(
            f"Backups, and copies from an upgrade, a move or a server, may still hold it: {', '.join(also_in)}"
        )


def _undo(memories: "Memories", done: "Affected") -> str | None:
    """Return the command that undoes it."""
    from shlex import quote

    from memories.core.times import to_iso
    from memories.models import SHARED

    if done.undo_to is None:
        return None
    namespace = "" if memories.namespace == SHARED else f" --namespace {memories.namespace}"
    return (
        f"memory rollback{namespace} --to {to_iso(done.undo_to)} --where {quote(done.undo_where)}"
    )


@command(
    epilog='memory rollback --to "2 hours ago" --dry-run\n'
    "memory rollback --to 2026-05-01T09:00 --where 'by = claude-code'"
)
@option(
    "--to",
    "to",
    metavar="TIME",
    required=True,
    help="The time to go back to; a date means its beginning.",
)
@where_option
@dry_run_option
@show_option
@in_session(reads=False)
def rollback(
    memories: "Memories", to: str, where: str | None, dry_run: bool, show: str | None
) -> int:
    """Put memories back as they were at a time.

    What was created since is deleted, what was changed gets a version that says what it said, what
    was deleted or replaced is restored. Nothing is lost: the answer names the command that undoes
    it. Turns stay as they are. With --where, only memories of which a version since then, or else
    the latest one, meets it. Exits 1 if some could not be put back.
    """
    return told(memories, lambda: memories.rollback(to, where=where, dry_run=dry_run), show)


REFUSED, NOT_STORED = 1, 3  # exit codes
MAX_LINE_BYTES = (
    8 * MAX_CONTENT_BYTES
)  # as JSON, a character may take six times the bytes that it has as text
_HEAVIEST = 4_194_304  # bytes of the lines of a batch
_PIECE = 65_536
_NAMES = {
    "text": "content",
    "decay_policy": "decay",
    "ts": "created_at",
}  # as other programs and answers call them
_FIELDS = ("content", "tags", "decay", "key", "supersedes", "confidence", "created_at", "source")
_TOLD = ("id", "stored", "merged", "duplicates", "similar_to", "corrects", "redacted", "note")


class Plan(NamedTuple):
    """How lines become memories.

    Attributes:
        as_json: Each line is a JSON object; otherwise it is the content.
        default: What holds for lines that say nothing else.
        force: Store them without comparing them with what is there.
        redact: Take out secrets.
    """

    as_json: bool
    default: Draft
    force: bool
    redact: bool


class _Line(NamedTuple):
    """A line: its number, its size, and what is to be stored, or why nothing is."""

    number: int
    size: int
    draft: Draft | None
    error: str = ""


def create_lines(memories: "Memories", file: str, plan: Plan) -> int:
    """Store what stands on the lines of a file, or of standard input if it is `-`; return the exit
    code.

    What is printed as stored is stored: each batch is told after its transaction has ended. A line
        that is refused
    costs no other one.
    """
    from memories.write.create import BATCH, BATCH_COMPARED

    counts = {"lines": 0, "stored": 0, "known": 0, "duplicates": 0, "refused": 0}
    most = BATCH if plan.force else BATCH_COMPARED
    again = "twice, for --force compares nothing" if plan.force else "nothing twice"
    last = 0
    with _opened(file) as stream:
        for lines in _arriving(stream, plan):
            for batch in by_weight(lines, lambda line: line.size, most=most, heaviest=_HEAVIEST):
                told = (
                    f"up to line {last} all is stored as printed"
                    if last
                    else "no line was told yet"
                )
                so_far(
                    f"{told}; later lines may be stored too, and running it again stores {again}"
                )
                results = _stored(
                    memories, [line.draft for line in batch if line.draft is not None], plan
                )
                last = batch[-1].number
                so_far(
                    f"up to line {last} all is stored that was acceptable; running it again stores {again}"
                )
                _tell(batch, results, counts)
    if not counts["lines"]:
        raise InvalidInput("the input has no lines; write one memory on each")
    emit(counts, lambda: ", ".join(f"{count} {name}" for name, count in counts.items()))
    return REFUSED if counts["refused"] else NOT_STORED if counts["duplicates"] else 0


def _tell(
    batch: Sequence[_Line], results: "Sequence[Created | RequestError]", counts: dict[str, int]
) -> None:
    """Print what became of each line, in their order, and count it."""
    left = iter(results)
    answers: list[dict[str, Any]] = []
    for line in batch:
        became = RequestError(line.error) if line.draft is None else next(left)
        counts["lines"] += 1
        if isinstance(became, RequestError):
            counts["refused"] += 1
            answers.append({"line": line.number, "stored": False, "error": str(became)})
            continue
        counts[
            "stored" if became.stored else "known" if became.memory is not None else "duplicates"
        ] += 1
        shape = shapes.create_result(became)
        told = {name: _brief(shape[name]) for name in _TOLD if name in shape}
        answers.append({"line": line.number, **told})
    emit_lines(answers, lambda: [_as_text(answer) for answer in answers])


def _brief(value: Any) -> Any:
    """Return a part of an answer without the contents of other memories."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [
            {name: each[name] for name in ("id", "similarity", "difference") if name in each}
            for each in value
        ]
    return value


def _as_text(answer: Mapping[str, Any]) -> str:
    what = "stored" if answer["stored"] else "refused" if "error" in answer else "known"
    why = answer.get("error", "")
    if answer.get("duplicates"):
        what, why = "duplicate", f"of {answer['duplicates'][0]['id']}"
    elif answer.get("corrects"):
        why = f"corrects {answer['corrects']}"
    return safe(f"{answer['line']:>7}  {what:<9}  {answer.get('id') or ''}  {why}".rstrip())


def _stored(
    memories: "Memories", drafts: Sequence[Draft], plan: Plan
) -> "list[Created | RequestError]":
    """Store drafts in one transaction; if one of them is refused, each in its own."""
    try:
        return (
            [*memories.create_many(drafts, force=plan.force, redact=plan.redact)] if drafts else []
        )
    except RequestError as exc:
        if len(drafts) == 1:
            return [exc]
    return [result for draft in drafts for result in _stored(memories, [draft], plan)]


# --- reading
# ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - closed below; only opening it may fail so
    except (OSError, ValueError) as exc:
        raise InvalidInput(f"cannot read {file}: {getattr(exc, 'strerror', None) or exc}") from exc
    with stream:
        yield stream


def _arriving(stream: BinaryIO, plan: Plan) -> Iterator[list[_Line]]:
    """Yield lines in groups, each as soon as it is there: so a program that writes slowly is
    answered at once.
    """
    begun, number, too_long = bytearray(), 0, False
    while piece := _some(stream):
        if not number and not begun and piece[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InvalidInput("the input looks like UTF-16; save it as UTF-8")
        *whole, rest = piece.split(b"\n")
        found: list[_Line] = []
        for part in whole:
            number += 1
            found += _read(number, bytes(begun + part), plan, too_long=too_long)
            begun.clear()
            too_long = False
        begun += rest
        if len(begun) > MAX_LINE_BYTES:
            begun.clear()
            too_long = True
        yield found
    yield [*_read(number + 1, bytes(begun), plan, too_long=too_long)]


def _some(stream: BinaryIO) -> bytes:
    """Return what is there already, or else the next that comes; nothing at the end."""
    return (
        stream.read1(_PIECE)
        if isinstance(stream, io.BufferedReader | io.BytesIO)
        else stream.read(_PIECE)
    )


def _read(number: int, data: bytes, plan: Plan, *, too_long: bool) -> Iterator[_Line]:
    """Yield what a line says, if it says anything."""
    try:
        if too_long or len(data) > MAX_LINE_BYTES:
            raise InvalidInput(f"it has more than {MAX_LINE_BYTES} bytes, the limit")
        text = _decoded(data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data).rstrip("\r")
        if text.strip():
            yield _Line(number, len(data), _draft(text, plan))
    except InvalidInput as exc:
        yield _Line(number, 0, None, str(exc))


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"it is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start}); save it as UTF-8"
        ) from None


def _draft(text: str, plan: Plan) -> Draft:
    """Return the draft that a line describes.

    Raises:
        InvalidInput: It describes none.
    """
    if not plan.as_json:
        return replace(plan.default, content=text)
    try:
        given = read_json(text)
    except InvalidInput as exc:
        raise InvalidInput(f"it {exc}") from exc
    if isinstance(given, str):
        given = {"content": given}
    if type(given) is not dict:
        raise InvalidInput("it is neither a JSON object nor a text in quotes")
    fields: dict[str, Any] = {}
    for name, value in given.items():
        called = _NAMES.get(name, name)
        if called not in (*_FIELDS, *KNOWN_TAGS):
            raise InvalidInput(
                f'it has the key "{shown(name)}"; use {", ".join((*_FIELDS, *KNOWN_TAGS))}'
            )
        if called in fields:
            raise InvalidInput(f'it has "{called}" twice, under both of its names')
        fields[called] = value
    if not isinstance(fields.get("content"), str):
        raise InvalidInput('it has no text under "content"')
    tags = {**plan.default.tags, **_tags(fields)}
    plain = {
        name: fields[name] for name in _FIELDS if fields.get(name) is not None and name != "tags"
    }
    if "created_at" in plain:
        plain["created_at"] = parse_span(str(plain["created_at"]), datetime.now(UTC))[0]
    return replace(plan.default, **plain, tags=tags)


def _tags(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a line; the known ones may stand beside the others, as answers show
    them.
    """
    tags = fields.get("tags") or {}
    if type(tags) is not dict:
        raise InvalidInput('its "tags" are no JSON object')
    known = {key: fields[key] for key in KNOWN_TAGS if fields.get(key) not in (None, "", False)}
    if "global" in known:
        known["global"] = "true" if known["global"] is True else known["global"]
    return {**tags, **known}


COMMANDS = (rollback,)
