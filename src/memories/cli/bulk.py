"""Changes of many memories: by id, by key or with --where; creation from lines; rollback."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import click

from memories.answers import shapes
from memories.answers.advice import complete_commands
from memories.answers.fields import DRAFT
from memories.cli.app import command, option
from memories.cli.options import (
    ProgressBar,
    SelectedMemories,
    compact,
    dry_run_option,
    parse_whole_number,
    show_option,
    size_of,
    text,
    where_option,
    with_memories,
)
from memories.cli.output import (
    GREEN,
    YELLOW,
    begin_change,
    confirm,
    emit,
    emit_lines,
    is_terminal,
    note,
    paint,
    record_change,
    safe,
    shorten,
    wrap,
)
from memories.core.batches import by_weight
from memories.core.times import parse_span
from memories.errors import InvalidInput, NotFound, RequestError, StoreDamaged
from memories.guard.validate import MAX_CONTENT_BYTES, MAX_LIMIT, amount, read_json, shown
from memories.models import KNOWN_TAGS, Draft

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import History, Memory
    from memories.write.bulk import Affected
    from memories.write.create import Created

Result = TypeVar("Result")

REFUSED, NOT_STORED = 1, 3  # exit codes
MAX_LINE_BYTES = 8 * MAX_CONTENT_BYTES  # a character may take up to six bytes in JSON
_MAX_BATCH_BYTES = 4_194_304
_MAX_ERRORS = 20  # maximum number of errors printed
_READ_BYTES = 65_536
_SHOWN_BY_DEFAULT = 10
_SHOW = f"show must be a whole number from 0 to {MAX_LIMIT}"


# --- selected memories ---


def change_each(
    memories: "Memories",
    selection: SelectedMemories,
    change: Callable[[str], "Memory"],
    verb: str,
    shape: Callable[["Memory"], dict[str, Any]] = shapes.memory,
) -> int:
    """Change each selected memory and print it; see `for_each`."""

    def describe(memory: "Memory") -> str:
        return f"{paint(GREEN, '✓')} {verb}\n{text.memory(memory)}"

    return for_each(selection, change, shape, describe, verb, partial(compact.memory, memories))


def restate_each(
    memories: "Memories",
    selection: SelectedMemories,
    change: Callable[[str], "Memory"],
    verb: str,
    changes: Mapping[str, Any] | None = None,
) -> int:
    """Update or confirm each selected memory; print it and any changes to its links.

    Args:
        memories: The open `Memories`.
        selection: The selected memories.
        change: Updates or confirms the memory with the given id.
        verb: The participle for the output, such as "updated".
        changes: The arguments of `Memories.update`; None for a confirmation.
    """
    given = changes or {}

    def run(name: str) -> "tuple[History, Memory]":
        try:
            before = memories.history(name)  # `get` would count a read
        except NotFound:
            change(name)  # checks the request first, then raises `NotFound` too
            raise
        return before, change(name)

    def describe(before_and_after: "tuple[History, Memory]") -> str:
        before, memory = before_and_after
        head = f"{paint(GREEN, '✓')} {verb}"
        if shapes.is_unchanged(before, memory, given):
            head = f"{paint(YELLOW, '=')} unchanged"
        return "\n".join([head, text.memory(memory), *wrap(safe(hint(before_and_after)))])

    def describe_in_short(before_and_after: "tuple[History, Memory]") -> str:
        return compact.page(memories, before_and_after[1:], note=hint(before_and_after))

    def shape(before_and_after: "tuple[History, Memory]") -> dict[str, Any]:
        return shapes.change_result(*before_and_after, given)

    def hint(before_and_after: "tuple[History, Memory]") -> str:
        return complete_commands(shapes.change_hint(*before_and_after, given))

    return for_each(selection, run, shape, describe, verb, describe_in_short)


def for_each(
    selection: SelectedMemories,
    run: Callable[[str], Result],
    shape: Callable[[Result], dict[str, Any]],
    text: Callable[[Result], str],
    verb: str = "",
    compact: Callable[[Result], str] | None = None,
) -> int:
    """Run a function for each selected memory and print the results; return the exit code.

    An error about one memory is printed and does not stop the others.

    Args:
        selection: The selected memories.
        run: The function, which takes an id.
        shape: Returns a result's JSON.
        text: Returns a result's text.
        verb: The change to a memory, such as `deleted`; empty if nothing is changed.
        compact: Returns a result's text for a model; by default, models get the JSON.
    """
    if not selection.is_list:
        if verb:
            begin_change()
        result = run(selection.ids[0])
        answer = shape(result)
        if verb:
            version = f", version {answer['version']}" if verb == "updated" else ""
            record_change(f"{answer['id']} was {verb}{version}")
        emit(answer, partial(text, result), compact=compact and partial(compact, result))
        return 0

    results, errors = _run_each(selection.ids, run, verb)
    answer = {"results": [shape(result) for result in results], "count": len(results)}
    if errors:
        answer["errors"] = [{"id": name, "error": error} for name, error in errors.items()]
    emit(
        answer,
        partial(_join, text, results, "\n\n", "Nothing here."),
        compact=compact and partial(_join, compact, results, "\n", ""),
    )
    for name, error in list(errors.items())[:_MAX_ERRORS]:
        note(f"{shown(name)}: {error}")
    if len(errors) > _MAX_ERRORS:
        note(f"and {len(errors) - _MAX_ERRORS} more")
    return 1 if errors else 0


def _run_each(
    ids: Sequence[str], run: Callable[[str], Result], verb: str
) -> tuple[list[Result], dict[str, str]]:
    """Return the results, and the error messages keyed by id."""
    results: list[Result] = []
    errors: dict[str, str] = {}
    for name in ids:
        if verb:
            _record_progress(len(results), len(ids), verb)
        try:
            results.append(run(name))
        except (RequestError, StoreDamaged) as exc:
            errors[name] = str(exc)
    if verb:
        _record_progress(len(results), len(ids), verb)
    return results, errors


def _record_progress(count: int, total: int, verb: str) -> None:
    record_change(f"{count} of {total} were {verb}", "running the command again does the rest")


def _join(
    render: Callable[[Result], str], results: Sequence[Result], separator: str, empty: str
) -> str:
    return separator.join(map(render, results)) or empty


# --- memories that match --where


def check_selection(
    arguments: Sequence[str], key: str | None, where: str | None, dry_run: bool
) -> None:
    """Check that a command either names memories or gives an expression.

    Raises:
        InvalidInput: The command does both or neither, or names memories with --dry-run.
    """
    if (arguments or key is not None) and where is not None:
        name = "ID" if arguments else "--key"
        raise InvalidInput(f"{name} and --where can't be combined; give one of them")
    if not arguments and key is None and where is None:
        raise click.UsageError("Missing argument 'ID' or option '--where'.")
    if dry_run and where is None:
        raise InvalidInput("--dry-run requires --where; to see one memory, run: memory get ID")


def forget_where(
    memories: "Memories", where: str, scope: str, show: str | None, *, dry_run: bool, yes: bool
) -> int:
    """Erase all memories or turns that match an expression; return the exit code.

    The user is asked for confirmation first.
    """
    if not dry_run and not yes:
        planned = memories.forget_where(where, scope=scope, dry_run=True)
        if planned.counts.get("forget") and not confirm(_ask_about(planned)):
            return 1
    run = partial(memories.forget_where, where, scope=scope, dry_run=dry_run)
    return change_many(run, show)


def _ask_about(planned: "Affected") -> str:
    """Return the question to ask before erasing many memories."""
    first = "".join(f"\n  {shorten(step.content, 2)}" for step in planned.steps[:3])
    count = amount(planned.counts["forget"], "record", "records")
    return f"Permanently forget {count}, such as:{first}\nForget all of them?"


def change_many(run: "Callable[[], Affected]", show: str | None) -> int:
    """Change many memories and print the result; return the exit code."""
    limit = _SHOWN_BY_DEFAULT if show is None else parse_whole_number(show, _SHOW)
    if limit > MAX_LIMIT:
        raise InvalidInput(_SHOW)
    begin_change()
    affected = run()
    record_change(shapes.summarize(affected), "running the command again does the rest")
    undo = _undo(affected)
    answer = shapes.bulk_result(affected, undo, limit)
    emit(answer, partial(text.bulk_result, affected, undo, limit))
    note_copies(affected.also_in)
    return 1 if affected.counts.get("left") else 0


def note_copies(files: Sequence[str]) -> None:
    """Print a note that lists the files that may still contain the forgotten records."""
    if files:
        note(f"The erased records may still be in {', '.join(files)}")


def _undo(affected: "Affected") -> str | None:
    """Return the command that undoes a change; None if a rollback can't undo the change."""
    from shlex import quote

    from memories.core.times import to_iso

    if affected.undo_to is None:
        return None
    time = to_iso(affected.undo_to)
    return complete_commands(f"memory rollback --to {time} --where {quote(affected.undo_where)}")


@command(
    epilog='memory rollback --to "2 hours ago" --dry-run\n'
    "memory rollback --to 2026-05-01T09:00 --where 'by = claude-code'"
)
@option(
    "--to",
    metavar="TIME",
    required=True,
    help="The time to roll back to; a date means the start of that day.",
)
@where_option
@dry_run_option
@show_option
@with_memories(reads_shared=False)
def rollback(
    memories: "Memories", to: str, where: str | None, dry_run: bool, show: str | None
) -> int:
    """Restore memories to their state at an earlier time.

    Memories created since then are deleted, or rejected if they are pending. Deleted or
    replaced memories are restored, and changed ones get a version with the old text. Nothing is
    lost: the output contains the command that undoes the rollback. Turns are not changed. With
    --where, a memory is rolled back only if it matches now or matched in any version since TIME.
    Exits with 1 if some could not be rolled back.
    """
    return change_many(partial(memories.rollback, to, where=where, dry_run=dry_run), show)


# --- new memories from lines ---

# Field names used by other programs and in our own output.
_ALIASES = {"text": "content", "decay_policy": "decay", "ts": "created_at"}
_FIELDS = ("content", "tags", *DRAFT, "created_at", "anchors", "valid_until", "recheck")
_ANSWERED = "id stored merged duplicates similar_to corrects current_again redacted note".split()


class Plan(NamedTuple):
    """How to turn lines into memories.

    Attributes:
        as_json: Whether each line is a JSON object; otherwise it is a memory's content.
        default: The values for fields that a line omits.
        force: Whether to store the memories without comparing them with existing ones.
        redact: Whether to remove secrets.
    """

    as_json: bool
    default: Draft
    force: bool
    redact: bool


class _Line(NamedTuple):
    """A line: its number, its size, and its draft or the reason why there is no draft."""

    number: int
    size: int
    draft: Draft | None
    error: str = ""


def create_lines(memories: "Memories", file: str, plan: Plan) -> int:
    """Store the lines of a file, or of standard input if it is `-`; return the exit code.

    Each batch is reported after its transaction, so a line reported as stored is on disk. A refused
    line does not stop the others.
    """
    from memories.write.create import BATCH, BATCH_COMPARED

    weight: Callable[[_Line], int] = attrgetter("size")
    counts = {"lines": 0, "stored": 0, "known": 0, "duplicates": 0, "refused": 0}
    limit = BATCH if plan.force else BATCH_COMPARED
    again = "them twice, since --force skips the comparison" if plan.force else "nothing twice"
    reported = "no line has been reported yet"
    with _open(file) as stream, ProgressBar() as bar:
        total, size = size_of(stream), 0
        for lines in _read_lines(stream, plan):
            for batch in by_weight(lines, weight, most=limit, heaviest=_MAX_BATCH_BYTES):
                record_change(
                    reported,
                    "some of the later lines may have been stored, and running the command again "
                    f"stores {again}",
                )
                drafts = [line.draft for line in batch if line.draft is not None]
                results = _store(memories, drafts, plan)
                last = batch[-1].number
                reported = f"all lines up to {last} are stored as reported"
                record_change(
                    f"all acceptable lines up to {last} are stored",
                    f"running the command again stores {again}",
                )
                _report(batch, results, counts)
                size += sum(line.size + 1 for line in batch)
                if total:
                    bar("Storing", min(size, total), total)
    if not counts["lines"]:
        raise InvalidInput("the input has no lines; write one memory per line")
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    emit(counts, summary, compact=summary)
    if counts["refused"]:
        return REFUSED
    return NOT_STORED if counts["duplicates"] else 0


def _store(
    memories: "Memories", drafts: Sequence[Draft], plan: Plan
) -> "list[Created | RequestError]":
    """Store drafts in one transaction; if one is refused, store each in its own transaction."""
    if not drafts:
        return []
    try:
        return [*memories.create_many(drafts, force=plan.force, redact=plan.redact)]
    except RequestError as exc:
        if len(drafts) == 1:
            return [exc]
    return [result for draft in drafts for result in _store(memories, [draft], plan)]


def _report(
    batch: Sequence[_Line], results: "Sequence[Created | RequestError]", counts: dict[str, int]
) -> None:
    """Print the result of each line, in order, and count it."""
    remaining = iter(results)
    answers = []
    for line in batch:
        result = RequestError(line.error) if line.draft is None else next(remaining)
        counts["lines"] += 1
        counts[_outcome(result)] += 1
        answer = {"line": line.number, **_shape_line(result)}
        if not answer["stored"] or not is_terminal():  # at a terminal, a bar counts stored lines
            answers.append(answer)
    if answers:
        emit_lines(answers, _render_line)


def _outcome(result: "Created | RequestError") -> str:
    if isinstance(result, RequestError):
        return "refused"
    if result.memory is None:
        return "duplicates"
    return "stored" if result.stored else "known"


def _shape_line(result: "Created | RequestError") -> dict[str, Any]:
    if isinstance(result, RequestError):
        return {"stored": False, "error": str(result)}
    answer = shapes.create_result(result)
    shape = {name: answer[name] for name in _ANSWERED if name in answer}
    for similar in (*shape.get("duplicates", ()), *shape.get("similar_to", ())):
        for name in similar.keys() - {"id", "similarity", "difference"}:
            del similar[name]  # a response to a line contains no text from other memories
    return shape


def _render_line(answer: Mapping[str, Any]) -> str:
    outcome, remark = "known", ""
    if "error" in answer:
        outcome, remark = "refused", answer["error"]
    elif answer.get("duplicates"):
        outcome, remark = "duplicate", f"of {answer['duplicates'][0]['id']}"
    elif answer["stored"]:
        outcome = "stored"
    if answer.get("corrects") and not remark:
        remark = f"corrects {answer['corrects']}"
    details = "  ".join(filter(None, (answer.get("id"), remark)))
    return safe(f"{answer['line']:>7}  {outcome:<9}  {details}")


def _open(file: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    from memories.transfer.sources.reader import open_named  # not needed for `-`

    return open_named(Path(file))


def _read_lines(stream: BinaryIO, plan: Plan) -> Iterator[list[_Line]]:
    """Yield lines in groups as they arrive, so that a slow writer gets immediate responses."""
    # `read1` returns as soon as there is any input.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    partial_line = bytearray()
    number, is_too_long = 0, False
    while data := read(_READ_BYTES):
        if not number and not partial_line and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InvalidInput("the input looks like UTF-16; save it as UTF-8")
        *complete, rest = data.split(b"\n")
        lines: list[_Line] = []
        for end in complete:
            number += 1
            lines += _parse_line(number, bytes(partial_line + end), plan, is_too_long)
            partial_line.clear()
            is_too_long = False
        partial_line += rest
        if len(partial_line) > MAX_LINE_BYTES:
            partial_line.clear()
            is_too_long = True
        yield lines
    yield _parse_line(number + 1, bytes(partial_line), plan, is_too_long)


def _parse_line(number: int, data: bytes, plan: Plan, is_too_long: bool) -> list[_Line]:
    """Parse a line; return a list with its draft or error, or an empty list for a blank line."""
    try:
        if is_too_long or len(data) > MAX_LINE_BYTES:
            raise InvalidInput(f"it is longer than the limit of {MAX_LINE_BYTES} bytes")
        if number == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        content = _decode(data).rstrip("\r")
        if not content.strip():
            return []
        return [_Line(number, len(data), _draft(content, plan))]
    except InvalidInput as exc:
        return [_Line(number, 0, None, str(exc))]


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"it is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start}); save it as UTF-8"
        ) from None


def _draft(line: str, plan: Plan) -> Draft:
    """Return the draft of a line.

    Raises:
        InvalidInput: The line doesn't describe a draft.
    """
    if not plan.as_json:
        return replace(plan.default, content=line)
    try:
        value = read_json(line)
    except InvalidInput as exc:
        raise InvalidInput(f"it {exc}") from exc
    if isinstance(value, str):
        value = {"content": value}
    if type(value) is not dict:
        raise InvalidInput("it is neither a JSON object nor a quoted string")
    fields = _rename_fields(value)
    if not isinstance(fields.get("content"), str):
        raise InvalidInput('it contains no text under "content"')
    tags = {**plan.default.tags, **_tags(fields)}
    changes = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
    if "created_at" in changes:
        changes["created_at"] = parse_span(str(changes["created_at"]), datetime.now(UTC))[0]
    return replace(plan.default, **{**changes, "tags": tags})


def _rename_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line's fields; names that only other programs use are replaced with ours.

    Raises:
        InvalidInput: A field is unknown, or appears under both of its names.
    """
    fields: dict[str, Any] = {}
    for key, field in value.items():
        name = _ALIASES.get(key, key)
        names = (*_FIELDS, *KNOWN_TAGS)
        if name not in names:
            raise InvalidInput(f'it contains the key "{shown(key)}"; use {", ".join(names)}')
        if name in fields:
            raise InvalidInput(f'it contains "{name}" twice, under both of its names')
        fields[name] = field
    return fields


def _tags(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a line's tags; known tags may be separate fields, as in our output."""
    tags = fields.get("tags") or {}
    if type(tags) is not dict:
        raise InvalidInput('its "tags" are not a JSON object')
    known = {key: fields[key] for key in KNOWN_TAGS if fields.get(key) not in (None, "", False)}
    if known.get("global") is True:
        known["global"] = "true"
    return {**tags, **known}


COMMANDS = (rollback,)
