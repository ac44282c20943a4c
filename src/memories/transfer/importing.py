"""Import: store the records of an export, and leave existing records as they are.

It can be interrupted at any moment and run again. Nothing proves who wrote a foreign file, so its
records get the origin `imported` instead of their own, and its memories wait for review.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from memories.embedders.protocol import Embedder
from memories.errors import Conflict, InvalidInput
from memories.guard.origin import (
    CONTINUED,
    HELD,
    IMPORT,
    IMPORTED,
    PART,
    TRUST,
    is_reserved,
    tags_of,
)
from memories.models import PENDING
from memories.read.conversations import ABOUT
from memories.read.versions import LINK
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Record, Ref, immutable_parts
from memories.transfer.lines import (
    Header,
    Tally,
    content_hash,
    is_last,
    read_header,
    read_line,
    refuse_other_files,
)
from memories.transfer.pages import PAGE, Place, with_vectors
from memories.write.suspicion import mark_record

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

MAX_BATCH = 2_000  # records of one memory or conversation that are stored in one step
MAX_BATCH_CHARACTERS = 33_554_432
MAX_SHOWN = 100  # conflicts that are named; all are counted
_HASH = "line_hash"  # of a foreign record, by which it is recognized later
_ACCEPTANCE = ("accepted_at", "accepted_by")
_OURS = (_HASH, *_ACCEPTANCE, "suspicious", "redacted", *LINK)  # fields that no foreign file sets


class Rejected(NamedTuple):
    """A record that was not imported, and why; nothing was overwritten."""

    line: int
    ref: Ref
    reason: str


@dataclass(slots=True)
class Imported:
    """Result of an import.

    Attributes:
        imported: How many records were stored.
        known: How many existed already.
        conflicts: The first `MAX_SHOWN` records that were not stored.
        conflict_count: How many were not stored.
        without_vector: How many were stored without a vector, since there is no embedder.
        redacted: How many secrets of each kind were removed.
        unchecked: The export is of the version without a last line, so an incomplete one can't be
            recognized.
        pending: How many memories wait for review, by their namespace.
    """

    imported: int = 0
    known: int = 0
    conflicts: list[Rejected] = field(default_factory=list)
    conflict_count: int = 0
    without_vector: int = 0
    unchecked: bool = False
    pending: dict[str, int] = field(default_factory=dict)
    redacted: Counter[str] = field(default_factory=Counter)


class Checked(NamedTuple):
    """Result of `check`.

    Attributes:
        records: The number of records.
        proven: Whether the export was written with the given key.
    """

    records: int
    proven: bool


class _Line(NamedTuple):
    """A line of an export.

    Attributes:
        number: The number of the line.
        record: The record.
        original: The record before secrets were removed, if there were any.
    """

    number: int
    record: Record
    original: Record | None = None


class Intake(NamedTuple):
    """How the records of a file are changed before they are stored.

    Attributes:
        foreign: The id of this import if nothing proves that the file is ours. Then the origins in
            the file don't count, its memories wait for review, and it adds nothing to existing
            memories and conversations. None stores records as they are; a `LoggedStore` decides
            about their origins.
        redactor: Removes secrets; None to keep them.
        own: The file is a backup; see `lines.read_line`.
        into: The namespace that all records get; they must have the same one. None keeps it.
        accepted: Keep who accepted a record.
    """

    foreign: str | None = None
    redactor: "Redactor | None" = None
    own: bool = False
    into: str | None = None
    accepted: bool = True


_UNCHANGED = Intake()


def import_(
    store: Store,
    lines: Iterable[bytes],
    embedder: Embedder | None,
    *,
    namespaces: Sequence[str] | None,
    dry_run: bool = False,
    intake: Intake = _UNCHANGED,
) -> Imported:
    """Store the records of an export; existing records stay as they are.

    Args:
        store: The store.
        lines: The lines in order, UTF-8.
        embedder: Makes the vectors that the lines don't have; None to search by words only.
        namespaces: Only these may be written; None for all.
        dry_run: Store nothing, only return what would happen.
        intake: How the records are changed first.

    Raises:
        InvalidInput: A line is not acceptable, or the export is incomplete. Earlier batches were
            stored; correct the file and import it again. `check` finds this before anything is
            stored.
    """
    importer = _Importer(store, embedder, intake.foreign, dry_run=dry_run)
    read_lines: Iterator[_Line] = _read(lines, importer.begin, namespaces, own=intake.own)
    if intake.into is not None:
        read_lines = _renamed(read_lines, intake.into)
    for batch in _batches(read_lines):
        accepted = batch if intake.accepted else [_without_acceptance(line) for line in batch]
        if intake.foreign is not None:
            accepted = _held_for_review(accepted, intake.foreign)
        importer.store_batch(list(_redacted(accepted, intake.redactor)))
    return importer.result


def check(
    lines: Iterable[bytes],
    *,
    namespaces: Sequence[str] | None,
    key: bytes | None = None,
    redactor: "Redactor | None" = None,
    own: bool = False,
    into: str | None = None,
) -> Checked:
    """Read an export to its end, as `import_` does, and store nothing.

    Args:
        lines: The lines in order, UTF-8.
        namespaces: Only these may be written; None for all.
        key: The key of our own exports, if there is one; see `export.own_key`.
        redactor: Removes secrets, as in an import.
        own: The file is a backup; see `lines.read_line`.
        into: See `Intake`.

    Raises:
        InvalidInput: A line is not acceptable, or the export is incomplete.
    """
    proven = False

    def read_and_prove() -> Iterator[_Line]:
        nonlocal proven
        proven = yield from _read(lines, lambda _header: None, namespaces, key, own=own)

    read_lines = read_and_prove()
    if into is not None:
        read_lines = _renamed(read_lines, into)
    count = sum(1 for _ in _redacted(read_lines, redactor))
    return Checked(count, proven=proven)


# --- lines


def _read(
    lines: Iterable[bytes],
    begin: Callable[[Header], object],
    namespaces: Sequence[str] | None,
    key: bytes | None = None,
    *,
    own: bool,
) -> Generator[_Line, None, bool]:
    """Yield the records of an export; `begin` gets its header.

    Returns:
        Whether the export was written with the key.

    Raises:
        InvalidInput: A line is not acceptable, or the last one is missing.
    """
    number, has_ended, proven = 0, False, False
    tally, header = None, Header(None, ends=False)
    for number, line in enumerate(lines, 1):
        try:
            text = _decode(line, is_first=number == 1)
            if tally is None:
                header, tally = read_header(text), Tally(text)
                begin(header)
            elif has_ended and text.strip():
                raise InvalidInput(
                    "comes after the last line of the export; import one export at a time"
                )
            elif is_last(text):
                proven = tally.compare(text, key)
                has_ended = True
            elif text.strip():
                record = read_line(text, own=own)
                _check_namespace(record, namespaces)
                tally.add(text)
                yield _Line(number, record)
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
            f"the export is incomplete: it was cut after line {number}; use another copy"
        )
    return proven


def _consequence(number: int, error: InvalidInput) -> str:
    if number == 1 and str(error).startswith("is not JSON"):
        return "this is not an export; for plain text run: memory create --lines FILE"
    return "nothing of its batch was stored"


def _decode(line: bytes, *, is_first: bool) -> str:
    if is_first:
        refuse_other_files(line)
    return line.decode("utf-8-sig" if is_first else "utf-8").rstrip("\r\n")


def _check_namespace(record: Record, namespaces: Sequence[str] | None) -> None:
    if namespaces is not None and record.ref.namespace not in namespaces:
        raise InvalidInput(
            f"is of namespace {record.ref.namespace}; name that one, or add --all-namespaces"
        )


def _renamed(lines: Iterable[_Line], namespace: str) -> Iterator[_Line]:
    """Yield lines with another namespace.

    Raises:
        InvalidInput: They are from more than one namespace.
    """
    first: str | None = None
    for line in lines:
        ref = line.record.ref
        first = first or ref.namespace
        if ref.namespace != first:
            raise InvalidInput(
                f"line {line.number} is of namespace {ref.namespace} and those before it of "
                f"{first}; --as takes the export of one namespace: memory export --namespace NAME "
                "--no-shared"
            )
        yield line._replace(record=line.record._replace(ref=ref._replace(namespace=namespace)))


def _batches(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Yield batches of lines that end between two memories, so that no memory is half stored.

    Only the lines of a very large memory are divided.
    """
    batch: list[_Line] = []
    size = 0
    for line in lines:
        is_full = len(batch) >= MAX_BATCH or size >= MAX_BATCH_CHARACTERS
        if len(batch) >= PAGE:
            is_full = is_full or _owner(batch[-1].record.ref) != _owner(line.record.ref)
        if is_full:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.record.text)
    if batch:
        yield batch


# --- secrets


def _redacted(lines: Iterable[_Line], redactor: "Redactor | None") -> Iterator[_Line]:
    """Yield lines without the secrets of their records.

    Raises:
        InvalidInput: A record can't be stored without them.
    """
    for line in lines:
        if redactor is None:
            yield line
            continue
        try:
            record = _without_secrets(line.record, redactor)
        except InvalidInput as exc:
            raise InvalidInput(
                f"line {line.number}: {exc}; to import it all the same, add --no-redact"
            ) from exc
        if record is line.record:
            yield line
        else:
            yield line._replace(record=record, original=line.record)


def _without_secrets(record: Record, redactor: "Redactor") -> Record:
    """Return a record without secrets; the same one if it has none."""
    redactor.refuse(record.ref.group, "the name of a conversation or a memory")
    text, kinds = redactor.text(record.text)
    tags, tag_kinds = redactor.pairs(tags_of(record.labels))
    scope, separator, name = (record.key or "").rpartition("\x1f")
    key_name = "key" if record.ref.collection is Collection.MEMORY else "message id"
    key, key_kinds = redactor.name(name, key_name)
    texts = {
        name: value
        for name, value in record.fields.items()
        if isinstance(value, str) and name not in _OURS
    }
    data, data_kinds = redactor.data(texts.pop("data", ""))
    fields, field_kinds = redactor.pairs(texts)
    if data_kinds:
        fields = {**fields, "data": data}
    ended_by, end_kinds = redactor.text(record.ended_by or "")
    reserved = {name: value for name, value in record.labels.items() if is_reserved(name)}
    original = record._replace(vectors=None)
    clean = original._replace(
        text=text,
        labels={**tags, **reserved},
        key=record.key and f"{redactor.text(scope).text}{separator}{key}",
        fields={**record.fields, **fields},
        ended_by=record.ended_by and ended_by,
    )
    if clean == original:
        return record
    all_kinds = (*kinds, *tag_kinds, *key_kinds, *field_kinds, *data_kinds, *end_kinds)
    return clean._replace(
        fields={**clean.fields, "redacted": " ".join(all_kinds)},
        vectors=record.vectors if text == record.text else None,  # they were made of the old text
    )


# --- foreign files


def _held_for_review(batch: Sequence[_Line], import_id: str) -> list[_Line]:
    """Return the lines of a foreign file as they are stored."""
    latest: dict[Ref, int] = {}
    for line in batch:
        owner = _owner(line.record.ref)
        latest[owner] = max(line.record.ref.position, latest.get(owner, 0))
    lines: list[_Line] = []
    for line in batch:
        is_latest = line.record.ref.position == latest[_owner(line.record.ref)]
        record = _as_foreign(line.record, import_id, is_latest=is_latest)
        lines.append(line._replace(record=record))
    return lines


def _without_acceptance(line: _Line) -> _Line:
    fields = {name: value for name, value in line.record.fields.items() if name not in _ACCEPTANCE}
    return line._replace(record=line.record._replace(fields=fields))


def _as_foreign(record: Record, import_id: str, *, is_latest: bool) -> Record:
    """Return a record of a foreign file as it is stored: a memory waits, and was never current."""
    fields = {name: value for name, value in record.fields.items() if name not in _OURS}
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


def _is_same(existing: Record, record: Record) -> bool:
    """Return whether a record exists already, even if it was accepted or refused since."""
    existing_hash = existing.fields.get(_HASH, _statement_hash(existing))
    if existing_hash == record.fields.get(_HASH, _statement_hash(record)):
        return True
    if _statement_hash(existing) == _statement_hash(record):
        return True
    if record.ended_by != PENDING or HELD not in existing.labels:
        return False
    return immutable_parts(_with_tags_only(existing)) == immutable_parts(_with_tags_only(record))


def _with_tags_only(record: Record) -> Record:
    return record._replace(labels=tags_of(record.labels))


def _statement_hash(record: Record) -> str:
    """Return a hash of a record without its origin and without later notes about it."""
    plain = _with_tags_only(record)
    noted = (*LINK, *ABOUT, *_ACCEPTANCE)
    fields = {name: value for name, value in plain.fields.items() if name not in noted}
    return f"{content_hash(plain._replace(fields=fields)):032x}"


def _owner(ref: Ref) -> Ref:
    """Return the memory or the conversation that a record belongs to."""
    return ref._replace(position=0)


# --- storing


class _Importer:
    """Stores batch after batch.

    It remembers which memories had a conflict, so that the rest of them is left out too.
    """

    def __init__(
        self, store: Store, embedder: Embedder | None, foreign: str | None, *, dry_run: bool
    ) -> None:
        self.model: str | None = None
        self.result = Imported()
        self._store = store
        self._embedder = embedder
        self._foreign = foreign
        self._dry_run = dry_run
        self._blocked: set[Ref] = set()
        self._checked: set[Place] = set()

    def begin(self, header: Header) -> None:
        """Read the header."""
        self.model, self.result.unchecked = header.model, not header.ends

    def store_batch(self, batch: Sequence[_Line]) -> None:
        """Store the new records of a batch, those of a memory or conversation all or none."""
        new = self._select_new(batch)
        if self._dry_run:
            self._check_readable(batch)
            taken = {_owner(line.record.ref) for line in new if self._is_key_taken(line.record)}
            self._count(new, taken)
            return
        records = [mark_record(line.record) for line in new]
        vectors = {record.ref: record.vectors for record in records if record.vectors is not None}
        if self._embedder is None or self.model != self._embedder.space.model:
            vectors = {}
        # Embedding comes before the transaction, for which other writers wait.
        records = with_vectors(records, vectors, self._embedder)
        ready = {
            record.ref: line._replace(record=record)
            for line, record in zip(new, records, strict=True)
        }
        with self._store.transaction():
            # Another program may have written meanwhile.
            new = [ready[line.record.ref] for line in self._select_new(new)]
            refused = self._append(new)
        self._count(new, refused)

    def _check_readable(self, batch: Sequence[_Line]) -> None:
        """Raise if a place of the batch is damaged; a transaction would create the store."""
        refs = [line.record.ref for line in batch]
        batch_places = {Place(ref.collection, ref.namespace) for ref in refs}
        for place in batch_places - self._checked:
            self._store.info(place.everything())
        self._checked |= batch_places

    def _select_new(self, batch: Sequence[_Line]) -> list[_Line]:
        """Return the lines of new records; count existing ones, and reject conflicting ones."""
        refs = [line.record.ref for line in batch]
        existing = {record.ref: record for record in self._store.read(refs)}
        new: list[_Line] = []
        for line in batch:
            ref = line.record.ref
            if ref not in existing:
                existing[ref] = line.record
                new.append(line)
                continue
            versions = [line.record] if line.original is None else [line.record, line.original]
            if any(_is_same(existing[ref], record) for record in versions):
                self.result.known += 1
            else:
                self._reject(line, "another record has this address")
                self._blocked.add(_owner(ref))
        if self._foreign is not None:
            new = self._without_additions(new)
        return self._without_blocked(new, "belongs to what has a conflict")

    def _without_additions(self, lines: Sequence[_Line]) -> list[_Line]:
        """Reject the lines of a foreign file that would add to a memory or conversation of ours."""
        owners = {_owner(line.record.ref) for line in lines}
        for line in lines:
            if line.record.ref.collection is Collection.MEMORY and line.record.ref.position == 1:
                owners.discard(_owner(line.record.ref))
        taken = {owner for owner in owners - self._blocked if self._is_ours(owner)}
        accepted: list[_Line] = []
        for line in lines:
            if _owner(line.record.ref) in taken:
                reason = (
                    "would add to what is there; if you know where the file is from, add --trusted"
                )
                self._reject(line, reason)
            else:
                accepted.append(line)
        self._blocked |= taken
        return accepted

    def _is_ours(self, owner: Ref) -> bool:
        """Return whether a memory exists, or a conversation with turns that weren't imported."""
        records = Filter(owner.collection, (owner.namespace,), state="any", group=owner.group)
        count = self._store.count(records)
        if owner.collection is Collection.MEMORY:
            return count > 0
        return count > self._store.count(records._replace(labels={TRUST: IMPORTED}))

    def _without_blocked(self, lines: Sequence[_Line], reason: str) -> list[_Line]:
        accepted: list[_Line] = []
        for line in lines:
            if _owner(line.record.ref) in self._blocked:
                self._reject(line, reason)
            else:
                accepted.append(line)
        return accepted

    def _append(self, lines: Sequence[_Line]) -> set[Ref]:
        """Append records; return the memories and conversations whose key is taken."""
        try:
            self._store.append([line.record for line in lines])
        except Conflict:
            return self._append_by_owner(lines)
        return set()

    def _append_by_owner(self, lines: Sequence[_Line]) -> set[Ref]:
        by_owner: dict[Ref, list[Record]] = {}
        for line in lines:
            by_owner.setdefault(_owner(line.record.ref), []).append(line.record)
        refused: set[Ref] = set()
        for owner, records in by_owner.items():
            try:
                self._store.append(records)
            except Conflict:
                refused.add(owner)
        return refused

    def _count(self, lines: Sequence[_Line], refused: set[Ref]) -> None:
        self._blocked |= refused
        stored = self._without_blocked(lines, "its key is in use by another record")
        self.result.imported += len(stored)
        for line in stored:
            if line.record.ended_by == PENDING:
                namespace = line.record.ref.namespace
                self.result.pending[namespace] = self.result.pending.get(namespace, 0) + 1
            if line.original is not None:
                self.result.redacted.update(line.record.names("redacted"))
        if self._embedder is None:
            self.result.without_vector += len(stored)

    def _reject(self, line: _Line, reason: str) -> None:
        self.result.conflict_count += 1
        if len(self.result.conflicts) < MAX_SHOWN:
            self.result.conflicts.append(Rejected(line.number, line.record.ref, reason))

    def _is_key_taken(self, record: Record) -> bool:
        if record.key is None or record.ended_at is not None:
            return False
        holder = Filter(record.ref.collection, (record.ref.namespace,), key=record.key)
        return bool(self._store.scan(holder, limit=1))
