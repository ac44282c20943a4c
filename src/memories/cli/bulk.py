"""Many memories from a file or standard input, one on each line: read as they come, stored and told in batches."""

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from memories.answers import shapes
from memories.cli.output import emit, emit_lines, safe, so_far
from memories.core.batches import by_weight
from memories.core.times import parse_span
from memories.errors import InvalidInput, RequestError
from memories.guard.validate import MAX_CONTENT_BYTES, read_json, shown
from memories.models import KNOWN_TAGS, Draft
from memories.write.create import BATCH, BATCH_COMPARED

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.write.create import Created

REFUSED, NOT_STORED = 1, 3  # exit codes
MAX_LINE_BYTES = 8 * MAX_CONTENT_BYTES  # as JSON, a character may take six times the bytes that it has as text
_HEAVIEST = 4_194_304  # bytes of the lines of a batch
_PIECE = 65_536
_NAMES = {"text": "content", "decay_policy": "decay", "ts": "created_at"}  # as other programs and answers call them
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
    """Store what stands on the lines of a file, or of standard input if it is `-`; return the exit code.

    What is printed as stored is stored: each batch is told after its transaction has ended. A line that is refused
    costs no other one.
    """
    counts = {"lines": 0, "stored": 0, "known": 0, "duplicates": 0, "refused": 0}
    most = BATCH if plan.force else BATCH_COMPARED
    again = "twice, for --force compares nothing" if plan.force else "nothing twice"
    last = 0
    with _opened(file) as stream:
        for lines in _arriving(stream, plan):
            for batch in by_weight(lines, lambda line: line.size, most=most, heaviest=_HEAVIEST):
                told = f"up to line {last} all is stored as printed" if last else "no line was told yet"
                so_far(f"{told}; later lines may be stored too, and running it again stores {again}")
                results = _stored(memories, [line.draft for line in batch if line.draft is not None], plan)
                last = batch[-1].number
                so_far(f"up to line {last} all is stored that was acceptable; running it again stores {again}")
                _tell(batch, results, counts)
    if not counts["lines"]:
        raise InvalidInput("the input has no lines; write one memory on each")
    emit(counts, lambda: ", ".join(f"{count} {name}" for name, count in counts.items()))
    return REFUSED if counts["refused"] else NOT_STORED if counts["duplicates"] else 0


def _tell(batch: Sequence[_Line], results: "Sequence[Created | RequestError]", counts: dict[str, int]) -> None:
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
        counts["stored" if became.stored else "known" if became.memory is not None else "duplicates"] += 1
        shape = shapes.created(became)
        told = {name: _brief(shape[name]) for name in _TOLD if name in shape}
        answers.append({"line": line.number, **told})
    emit_lines(answers, lambda: [_as_text(answer) for answer in answers])


def _brief(value: Any) -> Any:
    """Return a part of an answer without the contents of other memories."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [{name: each[name] for name in ("id", "similarity", "difference") if name in each} for each in value]
    return value


def _as_text(answer: Mapping[str, Any]) -> str:
    what = "stored" if answer["stored"] else "refused" if "error" in answer else "known"
    why = answer.get("error", "")
    if answer.get("duplicates"):
        what, why = "duplicate", f"of {answer['duplicates'][0]['id']}"
    elif answer.get("corrects"):
        why = f"corrects {answer['corrects']}"
    return safe(f"{answer['line']:>7}  {what:<9}  {answer.get('id') or ''}  {why}".rstrip())


def _stored(memories: "Memories", drafts: Sequence[Draft], plan: Plan) -> "list[Created | RequestError]":
    """Store drafts in one transaction; if one of them is refused, each in its own."""
    try:
        return [*memories.create_many(drafts, force=plan.force, redact=plan.redact)] if drafts else []
    except RequestError as exc:
        if len(drafts) == 1:
            return [exc]
    return [result for draft in drafts for result in _stored(memories, [draft], plan)]


# --- reading ---------------------------------------------------------------------------------------------------------


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
    """Yield lines in groups, each as soon as it is there: so a program that writes slowly is answered at once."""
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
    return stream.read1(_PIECE) if isinstance(stream, io.BufferedReader | io.BytesIO) else stream.read(_PIECE)


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
        raise InvalidInput(f"it is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start}); save it as UTF-8") from None


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
            raise InvalidInput(f'it has the key "{shown(name)}"; use {", ".join((*_FIELDS, *KNOWN_TAGS))}')
        if called in fields:
            raise InvalidInput(f'it has "{called}" twice, under both of its names')
        fields[called] = value
    if not isinstance(fields.get("content"), str):
        raise InvalidInput('it has no text under "content"')
    tags = {**plan.default.tags, **_tags(fields)}
    plain = {name: fields[name] for name in _FIELDS if fields.get(name) is not None and name != "tags"}
    if "created_at" in plain:
        plain["created_at"] = parse_span(str(plain["created_at"]), datetime.now(UTC))[0]
    return replace(plan.default, **plain, tags=tags)


def _tags(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a line; the known ones may stand beside the others, as answers show them."""
    tags = fields.get("tags") or {}
    if type(tags) is not dict:
        raise InvalidInput('its "tags" are no JSON object')
    known = {key: fields[key] for key in KNOWN_TAGS if fields.get(key) not in (None, "", False)}
    if "global" in known:
        known["global"] = "true" if known["global"] is True else known["global"]
    return {**tags, **known}
