"""Reads an export's lines, and changes its records on their way into a store.

Nothing proves who wrote a foreign file, so its records get the origin `imported` instead of their
own, and the memories among them await review.
"""

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.errors import InvalidInput
from memories.guard.origin import CONTINUED, HELD, IMPORT, PART, tags_of
from memories.models import PENDING
from memories.read.conversations import ABOUT
from memories.read.versions import FORMER_LINK, LINK, NOT_CORRECTS
from memories.stores.records import Collection, Record, Ref, immutable_parts
from memories.transfer.lines import (
    ExportTally,
    Header,
    content_hash,
    is_last,
    read_header,
    read_line,
    refuse_other_files,
)

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

_HASH = "line_hash"  # the hash by which a foreign record is recognized later
_ACCEPTANCE = ("accepted_at", "accepted_by")
# Fields that a foreign file can't set.
_OURS = (
    _HASH,
    *_ACCEPTANCE,
    "suspicious",
    "redacted",
    "anchored_at",
    "tidy",
    *LINK,
    *FORMER_LINK,
    NOT_CORRECTS,
)


class ExportLine(NamedTuple):
    """A record and its line in an export.

    Attributes:
        number: The number of the line.
        record: The record.
        original: The record with its secrets; None if none were removed.
    """

    number: int
    record: Record
    original: Record | None = None


class Intake(NamedTuple):
    """How a file's records are changed before they are stored.

    Attributes:
        foreign: The id of this import if nothing proves that the file is ours. In that case, the
            origins in the file are ignored, its memories await review, and nothing is added to
            existing memories and conversations. If this is None, records are stored as they are,
            and a `LoggedStore` determines their origins.
        redactor: Removes secrets; None to keep them.
        own: Whether the file is a backup; see `lines.read_line`.
        into: The namespace to which all records are moved; all records in the file must be from a
            single namespace. None to leave records in their own namespaces.
        accepted: Whether records keep the fields that say who accepted them.
    """

    foreign: str | None = None
    redactor: "Redactor | None" = None
    own: bool = False
    into: str | None = None
    accepted: bool = True


def read_lines(
    lines: Iterable[bytes],
    begin: Callable[[Header], object],
    namespaces: Sequence[str] | None,
    key: bytes | None = None,
    *,
    own: bool,
) -> Generator[ExportLine, None, bool]:
    """Yield an export's records, after calling `begin` with its header.

    Returns:
        Whether the export was written with the key.

    Raises:
        InvalidInput: A line is invalid, or the last one is missing.
    """
    number, has_ended, proven = 0, False, False
    tally, header = None, Header(None, ends=False)
    for number, line in enumerate(lines, 1):
        try:
            text = _decode(line, is_first=number == 1)
            if tally is None:
                header, tally = read_header(text), ExportTally(text)
                begin(header)
            elif not text.strip():
                continue
            elif has_ended:
                raise InvalidInput(
                    "comes after the last line of the export; import one export at a time"
                )
            elif is_last(text):
                proven = tally.compare(text, key)
                has_ended = True
            else:
                record = read_line(text, own=own)
                _check_namespace(record, namespaces)
                tally.add(text)
                yield ExportLine(number, record)
        except UnicodeDecodeError as exc:
            raise InvalidInput(
                f"line {number} is not UTF-8 (at byte {exc.start}); save it as UTF-8"
            ) from None
        except InvalidInput as exc:
            raise InvalidInput(f"line {number} {exc}; {_consequence(number, exc)}") from exc
    if not number:
        raise InvalidInput("no records: the export is empty, without even a header")
    if header.ends and not has_ended:
        raise InvalidInput(
            f"the export is incomplete: it was truncated after line {number}; use another copy"
        )
    return proven


def _consequence(number: int, error: InvalidInput) -> str:
    if number == 1 and str(error).startswith("is not JSON"):
        return "this is not an export; for plain text run: memory create --lines FILE"
    return "no record in this batch was stored"


def _decode(line: bytes, *, is_first: bool) -> str:
    if is_first:
        refuse_other_files(line)
    return line.decode("utf-8-sig" if is_first else "utf-8").rstrip("\r\n")


def _check_namespace(record: Record, namespaces: Sequence[str] | None) -> None:
    if namespaces is not None and record.ref.namespace not in namespaces:
        raise InvalidInput(
            f"belongs to namespace {record.ref.namespace}; name that namespace, or add "
            "--all-namespaces"
        )


def rename(lines: Iterable[ExportLine], namespace: str) -> Iterator[ExportLine]:
    """Yield lines with a new namespace.

    Raises:
        InvalidInput: The lines are from more than one namespace.
    """
    first: str | None = None
    for line in lines:
        ref = line.record.ref
        first = first or ref.namespace
        if ref.namespace != first:
            raise InvalidInput(
                f"line {line.number} belongs to namespace {ref.namespace}, but the lines before it "
                f"belong to {first}; --as accepts only an export of a single namespace: memory "
                "export --namespace NAME --no-shared"
            )
        yield line._replace(record=line.record._replace(ref=ref._replace(namespace=namespace)))


# --- secrets


def redact(lines: Iterable[ExportLine], redactor: "Redactor | None") -> Iterator[ExportLine]:
    """Yield lines without the secrets of their records.

    Raises:
        InvalidInput: A record can't be stored without its secrets.
    """
    for line in lines:
        if redactor is None:
            yield line
            continue
        try:
            record = _without_secrets(line.record, redactor)
        except InvalidInput as exc:
            raise InvalidInput(
                f"line {line.number}: {exc}; to import it anyway, add --no-redact"
            ) from exc
        if record is line.record:
            yield line
        else:
            yield line._replace(record=record, original=line.record)


def _without_secrets(record: Record, redactor: "Redactor") -> Record:
    """Return a record without secrets; the same object if it contains none."""
    redactor.refuse(record.ref.group, "the name of a conversation or a memory")
    text, kinds = redactor.text(record.text)
    labels, label_kinds = redactor.pairs(record.labels)
    scope, separator, name = (record.key or "").rpartition("\x1f")
    key_name = "key" if record.ref.collection is Collection.MEMORY else "message id"
    key, key_kinds = redactor.name(name, key_name)
    imported_fields = _without_fields(record, _OURS)
    texts = {name: value for name, value in imported_fields.items() if isinstance(value, str)}
    data, data_kinds = redactor.data(texts.pop("data", ""))
    fields, field_kinds = redactor.pairs(texts)
    if data_kinds:
        fields = {**fields, "data": data}
    ended_by, end_kinds = redactor.text(record.ended_by or "")
    original = record._replace(vectors=None)
    clean = original._replace(
        text=text,
        labels=labels,
        key=record.key and f"{redactor.text(scope).text}{separator}{key}",
        fields={**record.fields, **fields},
        ended_by=record.ended_by and ended_by,
    )
    if clean == original:
        return record
    all_kinds = (*kinds, *label_kinds, *key_kinds, *field_kinds, *data_kinds, *end_kinds)
    return clean._replace(
        fields={**clean.fields, "redacted": " ".join(all_kinds)},
        vectors=record.vectors if text == record.text else None,  # computed from the old text
    )


# --- foreign files


def hold_for_review(batch: Sequence[ExportLine], import_id: str) -> list[ExportLine]:
    """Return a foreign file's lines as they are stored: as imported, and memories for review."""
    latest: dict[Ref, int] = {}
    for line in batch:
        owner = owner_of(line.record.ref)
        latest[owner] = max(line.record.ref.position, latest.get(owner, 0))
    lines: list[ExportLine] = []
    for line in batch:
        is_latest = line.record.ref.position == latest[owner_of(line.record.ref)]
        record = _as_foreign(line.record, import_id, is_latest=is_latest)
        lines.append(line._replace(record=record))
    return lines


def is_proposal(record: Record) -> bool:
    """Return whether a record awaits review and proposes to change a memory; see `write.tidy`.

    Proposals in a foreign file are not imported. Such a file must not change a memory, and if only
    the change were dropped, accepting the proposal would store its text as a memory.
    """
    return record.ended_by == PENDING and record.fields.get("tidy", "{}") != "{}"


def without_acceptance(line: ExportLine) -> ExportLine:
    """Return a line without the fields that say who accepted its record."""
    fields = _without_fields(line.record, _ACCEPTANCE)
    return line._replace(record=line.record._replace(fields=fields))


def _as_foreign(record: Record, import_id: str, *, is_latest: bool) -> Record:
    """Return a foreign file's record in its stored form. A memory is stored as one that waits for
    review and was never live.
    """
    fields = _without_fields(record, _OURS)
    fields[_HASH] = _statement_hash(record)
    parts = {key: record.labels[key] for key in (PART, CONTINUED) if key in record.labels}
    labels = {**tags_of(record.labels), **parts, IMPORT: import_id}
    record = record._replace(labels=labels, fields=fields)
    if record.ref.collection is not Collection.MEMORY:
        return record
    ended_by = record.ended_by
    if record.ended_at is None or ended_by in (None, PENDING):
        ended_by = PENDING if is_latest else "update"
    return record._replace(
        ended_at=record.created_at, ended_by=ended_by, labels={**record.labels, HELD: "1"}
    )


def is_same(existing: Record, record: Record) -> bool:
    """Return whether a stored record is the same as an imported one.

    It makes no difference whether the stored record has been accepted or rejected.
    """
    existing_hash = existing.fields.get(_HASH, _statement_hash(existing))
    if existing_hash == record.fields.get(_HASH, _statement_hash(record)):
        return True
    if _statement_hash(existing) == _statement_hash(record):
        return True
    if record.ended_by != PENDING or HELD not in existing.labels:
        return False
    return immutable_parts(_with_tags_only(existing)) == immutable_parts(_with_tags_only(record))


def _without_fields(record: Record, names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in record.fields.items() if name not in names}


def _with_tags_only(record: Record) -> Record:
    return record._replace(labels=tags_of(record.labels))


def _statement_hash(record: Record) -> str:
    """Return a hash of a record, excluding its origin and later notes about it."""
    plain = _with_tags_only(record)
    fields = _without_fields(plain, (*LINK, *FORMER_LINK, NOT_CORRECTS, *ABOUT, *_ACCEPTANCE))
    return f"{content_hash(plain._replace(fields=fields)):032x}"


def owner_of(ref: Ref) -> Ref:
    """Return the memory or conversation to which a record belongs."""
    return ref._replace(position=0)
