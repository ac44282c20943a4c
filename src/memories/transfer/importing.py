"""Import: store the records of an export, and leave those that are there already.

It can be stopped at any moment and run again. Nothing proves who wrote a foreign file: its records
are said to be imported, whatever they say themselves, and its memories wait for review.
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
# of what a foreign file said, by which it is known again whatever became of it here
_HASH = "line_hash"
# Fields that no foreign file can set.
_ACCEPTANCE = ("accepted_at", "accepted_by")
_OURS = (_HASH, *_ACCEPTANCE, "suspicious", "redacted", *LINK)


class Rejected(NamedTuple):
    """A record that was not imported, and why; nothing was overwritten."""

    line: int
    ref: Ref
    reason: str


@dataclass(slots=True)
class Imported:
    """The result of an import.

    Attributes:
        imported: How many records were stored.
        known: How many were there already.
        conflicts: The first `MAX_SHOWN` records that were not stored.
        conflict_count: How many were not stored.
        without_vector: How many were stored without a vector, since there is no embedder.
        redacted: How many secrets of each kind were taken out of what was stored.
        unchecked: The export is of the version without a last line, so nothing tells whether it is
            complete.
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
    """What a look at a whole export found.

    Attributes:
        records: How many it has.
        proven: Whether it was written with the key that was given.
    """

    records: int
    proven: bool


class _Line(NamedTuple):
    """A record, on which line it is, and how it was before secrets were taken out of it, if there
    were any.
    """

    number: int
    record: Record
    given: Record | None = None


class Intake(NamedTuple):
    """What is done to the records of a file before they are stored.

    Attributes:
        foreign: For a file that nothing proves to be ours, the id of this import. What it says of
            its origins does not count, its memories wait for review, and it adds nothing to
            memories and conversations that are there. None to store records as they are; a store
            that `logged` returned decides about their origins.
        redactor: Takes secrets out of what is stored; None to leave them.
        own: It is a backup; see `lines.read_line`.
        into: The namespace that the records get, which all have the same one; None for the one that
            they have.
        accepted: Keep what the records say of the person who accepted them.
    """

    foreign: str | None = None
    redactor: "Redactor | None" = None
    own: bool = False
    into: str | None = None
    accepted: bool = True


_AS_IT_IS = Intake()


def import_(
    store: Store,
    lines: Iterable[bytes],
    embedder: Embedder | None,
    *,
    namespaces: Sequence[str] | None,
    dry_run: bool = False,
    intake: Intake = _AS_IT_IS,
) -> Imported:
    """Store the records of an export; those that are there already stay as they are.

    Args:
        store: The store.
        lines: The lines in order, UTF-8.
        embedder: Makes the vectors that the lines don't have; None to go by words alone.
        namespaces: Only these may be written; None for all.
        dry_run: Store nothing, only return what would happen.
        intake: What is done to the records first.

    Raises:
        InvalidInput: A line is not acceptable, or the export is incomplete. The lines before its
            batch were stored; correct it and run this again. `check` finds this before anything is
            stored.
    """
    importer = _Importer(store, embedder, intake.foreign, dry_run=dry_run)
    read = _read(lines, importer.begin, namespaces, own=intake.own)
    for batch in _batches(read if intake.into is None else _renamed(read, intake.into)):
        taken = batch if intake.accepted else list(map(_without_acceptance, batch))
        held = taken if intake.foreign is None else _held(taken, intake.foreign)
        importer.store_batch(list(_redacted(held, intake.redactor)))
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
        key: The key of our own exports, if there is one; see `proof`.
        redactor: Takes secrets out, as in an import.
        own: It is a backup; see `lines.read_line`.
        into: See `Intake`.

    Raises:
        InvalidInput: A line is not acceptable, or the export is incomplete.
    """
    proven = False

    def read() -> Iterator[_Line]:
        nonlocal proven
        proven = yield from _read(lines, lambda _header: None, namespaces, key, own=own)

    found = read() if into is None else _renamed(read(), into)
    records = sum(1 for _ in _redacted(found, redactor))
    return Checked(records, proven=proven)


def _renamed(lines: Iterable[_Line], into: str) -> Iterator[_Line]:
    """Yield lines with another namespace.

    Raises:
        InvalidInput: They are of more than one.
    """
    first: str | None = None
    for line in lines:
        name = line.record.ref.namespace
        first = first or name
        if name != first:
            raise InvalidInput(
                f"line {line.number} is of namespace {name} and those before it of {first}; --as takes the export of "
                "one namespace: memory export --namespace NAME --no-shared"
            )
        yield line._replace(
            record=line.record._replace(ref=line.record.ref._replace(namespace=into))
        )


def _redacted(lines: Iterable[_Line], redactor: "Redactor | None") -> Iterator[_Line]:
    """Yield lines without the secrets of their records.

    Raises:
        InvalidInput: A record can't be stored without them.
    """
    for line in lines:
        try:
            record = line.record if redactor is None else _without_secrets(line.record, redactor)
        except InvalidInput as exc:
            raise InvalidInput(
                f"line {line.number}: {exc}; to import it all the same, add --no-redact"
            ) from exc
        yield line if record is line.record else line._replace(record=record, given=line.record)


def _without_secrets(record: Record, redactor: "Redactor") -> Record:
    """Return a record without secrets; the same one if it has none."""
    redactor.refuse(record.ref.group, "the name of a conversation or a memory")
    text, kinds = redactor.text(record.text)
    tags, in_tags = redactor.pairs(tags_of(record.labels))
    scope, mark, name = (record.key or "").rpartition("\x1f")
    key, in_key = redactor.name(
        name, "key" if record.ref.collection is Collection.MEMORY else "message id"
    )
    texts = {
        name: value
        for name, value in record.fields.items()
        if isinstance(value, str) and name not in _OURS
    }
    data, in_data = redactor.data(texts.pop("data", ""))
    fields, in_fields = redactor.pairs(texts)
    fields = {**fields, "data": data} if in_data else fields
    ended_by, in_end = redactor.text(record.ended_by or "")
    found = " ".join((*kinds, *in_tags, *in_key, *in_fields, *in_data, *in_end))
    bare = record._replace(vectors=None)
    clean = bare._replace(
        text=text,
        labels={
            **tags,
            **{name: value for name, value in record.labels.items() if is_reserved(name)},
        },
        key=record.key and f"{redactor.text(scope).text}{mark}{key}",
        fields={**record.fields, **fields},
        ended_by=record.ended_by and ended_by,
    )
    if clean == bare:
        return record
    vectors = record.vectors if text == record.text else None  # they were made of what it said
    return clean._replace(fields={**clean.fields, "redacted": found}, vectors=vectors)


def _read(
    lines: Iterable[bytes],
    begin: Callable[[Header], object],
    namespaces: Sequence[str] | None,
    key: bytes | None = None,
    *,
    own: bool,
) -> Generator[_Line, None, bool]:
    """Yield the records of lines, once `begin` was told what the header says; return whether the
    key wrote them.

    Raises:
        InvalidInput: A line is not acceptable, or the last one is missing.
    """
    number, ended, tally, header, proven = 0, False, None, Header(None, ends=False), False
    for number, line in enumerate(lines, 1):
        try:
            text = _text(line, first=number == 1)
            if tally is None:
                header, tally = read_header(text), Tally(text)
                begin(header)
            elif ended and text.strip():
                raise InvalidInput(
                    "comes after the last line of the export; import one export at a time"
                )
            elif is_last(text):
                proven = tally.compare(text, key)
                ended = True
            elif text.strip():
                record = read_line(text, own=own)
                _refuse_others(record, namespaces)
                tally.add(text)
                yield _Line(number, record)
        except UnicodeDecodeError as exc:
            raise InvalidInput(
                f"line {number} is not UTF-8 (at byte {exc.start}); save it as UTF-8"
            ) from None
        except InvalidInput as exc:
            raise InvalidInput(f"line {number} {exc}; nothing of its batch was stored") from exc
    if not number:
        raise InvalidInput("no records: the export is empty, not even a header is in it")
    if header.ends and not ended:
        raise InvalidInput(
            f"the export is incomplete: it was cut after line {number}; use another copy"
        )
    return proven


def _text(line: bytes, *, first: bool) -> str:
    if first:
        refuse_other_files(line)
    return line.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")


def _refuse_others(record: Record, namespaces: Sequence[str] | None) -> None:
    if namespaces is not None and record.ref.namespace not in namespaces:
        raise InvalidInput(
            f"is of namespace {record.ref.namespace}; name that one, or add --all-namespaces"
        )


def _batches(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Yield lines in batches that end between two memories, unless one is too large, so that none
    is half stored.
    """
    batch: list[_Line] = []
    size = 0
    for line in lines:
        between = bool(batch) and _owner(batch[-1].record.ref) != _owner(line.record.ref)
        if (
            len(batch) >= MAX_BATCH
            or size >= MAX_BATCH_CHARACTERS
            or (len(batch) >= PAGE and between)
        ):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.record.text)
    if batch:
        yield batch


def _held(batch: Sequence[_Line], import_id: str) -> list[_Line]:
    """Return lines of a foreign file as they are stored."""
    latest: dict[Ref, int] = {}
    for line in batch:
        owner = _owner(line.record.ref)
        latest[owner] = max(line.record.ref.position, latest.get(owner, 0))
    return [
        line._replace(record=_as_foreign(line.record, import_id, latest[_owner(line.record.ref)]))
        for line in batch
    ]


def _without_acceptance(line: _Line) -> _Line:
    fields = {name: value for name, value in line.record.fields.items() if name not in _ACCEPTANCE}
    return line._replace(record=line.record._replace(fields=fields))


def _as_foreign(record: Record, import_id: str, latest: int) -> Record:
    """Return a record of a foreign file as it is stored: a memory has never been current, so that
    it has to wait.
    """
    fields = {name: value for name, value in record.fields.items() if name not in _OURS}
    fields[_HASH] = f"{_said(record):032x}"
    parts = {key: record.labels[key] for key in (PART, CONTINUED) if key in record.labels}
    record = record._replace(
        labels={**tags_of(record.labels), **parts, IMPORT: import_id}, fields=fields
    )
    if record.ref.collection is not Collection.MEMORY:
        return record
    waits = record.ended_at is None or record.ended_by in (None, PENDING)
    ended_by = (
        record.ended_by if not waits else PENDING if record.ref.position == latest else "update"
    )
    labels = {**record.labels, HELD: "1"}
    return record._replace(ended_at=record.created_at, ended_by=ended_by, labels=labels)


def _is_known(there: Record, record: Record) -> bool:
    """Return whether a record is there already, also if it was decided about since."""
    hashes = {each.fields.get(_HASH, f"{_said(each):032x}") for each in (there, record)}
    if len(hashes) == 1 or _said(there) == _said(record):
        return True
    waited = record.ended_by == PENDING and HELD in there.labels
    return waited and immutable_parts(_plain(there)) == immutable_parts(_plain(record))


def _plain(record: Record) -> Record:
    return record._replace(labels=tags_of(record.labels))


def _said(record: Record) -> int:
    """Return a number for what a record says: not who wrote it, nor what was said of it since."""
    plain = _plain(record)
    said = {
        name: each
        for name, each in plain.fields.items()
        if name not in (*LINK, *ABOUT, *_ACCEPTANCE)
    }
    return content_hash(plain._replace(fields=said))


def _owner(ref: Ref) -> Ref:
    """Return the memory or the conversation that a record belongs to."""
    return ref._replace(position=0)


class _Importer:
    """Stores batch after batch; remembers which memories had a conflict, to leave out the rest of
    them too.
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
        self._looked_at: set[Place] = set()

    def begin(self, header: Header) -> None:
        """Take in what the header says."""
        self.model, self.result.unchecked = header.model, not header.ends

    def store_batch(self, batch: Sequence[_Line]) -> None:
        """Store the new records of a batch, those of each memory or conversation together or not at
        all.
        """
        new = self._new(batch)
        if self._dry_run:
            among = {Place(line.record.ref.collection, line.record.ref.namespace) for line in batch}
            for place in among - self._looked_at:
                self._store.info(
                    place.everything()
                )  # raises where it is damaged; a transaction would make a store
            self._looked_at |= among
            self._count(
                new, {_owner(line.record.ref) for line in new if self._key_is_taken(line.record)}
            )
            return
        records = [mark_record(line.record) for line in new]
        kept = {record.ref: record.vectors for record in records if record.vectors is not None}
        ours = self._embedder is not None and self.model == self._embedder.space.model
        records = with_vectors(
            records, kept if ours else {}, self._embedder
        )  # before others have to wait
        ready = {
            record.ref: line._replace(record=record)
            for line, record in zip(new, records, strict=True)
        }
        with self._store.transaction():
            new = [
                ready[line.record.ref] for line in self._new(new)
            ]  # somebody may have written meanwhile
            refused = self._append(new)
        self._count(new, refused)

    def _new(self, batch: Sequence[_Line]) -> list[_Line]:
        """Return what is not there yet; count what is, and reject what is there with another
        content.
        """
        there = {
            record.ref: record for record in self._store.read([line.record.ref for line in batch])
        }
        fresh: list[_Line] = []
        for line in batch:
            ref = line.record.ref
            if ref not in there:
                there[ref] = line.record
                fresh.append(line)
            elif any(
                _is_known(there[ref], record)
                for record in (line.record, line.given)
                if record is not None
            ):
                self.result.known += 1
            else:
                self._reject(line, "another record has this address")
                self._blocked.add(_owner(ref))
        if self._foreign is not None:
            fresh = self._apart(fresh)
        return self._unblocked(fresh, "belongs to what has a conflict")

    def _apart(self, lines: Sequence[_Line]) -> list[_Line]:
        """Return the lines of a foreign file that add to nothing that is here; reject the
        others.
        """
        begins = {
            _owner(line.record.ref)
            for line in lines
            if line.record.ref[::3] == (Collection.MEMORY, 1)
        }
        others = {_owner(line.record.ref) for line in lines} - begins - self._blocked
        taken = {owner for owner in others if self._has_own(owner)}
        for line in lines:
            if _owner(line.record.ref) in taken:
                self._reject(
                    line,
                    "would add to what is there; if you know where the file is from, add --trusted",
                )
        self._blocked |= taken
        return [line for line in lines if _owner(line.record.ref) not in taken]

    def _has_own(self, owner: Ref) -> bool:
        """Return whether a memory is there, or a conversation with turns that no foreign file
        brought.
        """
        where = Filter(owner.collection, (owner.namespace,), state="any", group=owner.group)
        count = self._store.count(where)
        if owner.collection is Collection.MEMORY:
            return count > 0
        return count > self._store.count(where._replace(labels={TRUST: IMPORTED}))

    def _unblocked(self, lines: Sequence[_Line], reason: str) -> list[_Line]:
        for line in lines:
            if _owner(line.record.ref) in self._blocked:
                self._reject(line, reason)
        return [line for line in lines if _owner(line.record.ref) not in self._blocked]

    def _append(self, lines: Sequence[_Line]) -> set[Ref]:
        """Append records; return the memories and conversations that were refused, for a key that
        is taken.
        """
        try:
            self._store.append([line.record for line in lines])
        except Conflict:
            refused = set()
            for owner in dict.fromkeys(_owner(line.record.ref) for line in lines):
                try:
                    self._store.append(
                        [line.record for line in lines if _owner(line.record.ref) == owner]
                    )
                except Conflict:
                    refused.add(owner)
            return refused
        return set()

    def _count(self, lines: Sequence[_Line], refused: set[Ref]) -> None:
        self._blocked |= refused
        stored = self._unblocked(lines, "its key is in use by another record")
        self.result.imported += len(stored)
        for line in stored:
            if line.record.ended_by == PENDING:
                namespace = line.record.ref.namespace
                self.result.pending[namespace] = self.result.pending.get(namespace, 0) + 1
            if line.given is not None:
                self.result.redacted.update(line.record.names("redacted"))
        self.result.without_vector += sum(self._embedder is None for _ in stored)

    def _reject(self, line: _Line, reason: str) -> None:
        self.result.conflict_count += 1
        if len(self.result.conflicts) < MAX_SHOWN:
            self.result.conflicts.append(Rejected(line.number, line.record.ref, reason))

    def _key_is_taken(self, record: Record) -> bool:
        if record.key is None or record.ended_at is not None:
            return False
        where = Filter(record.ref.collection, (record.ref.namespace,), key=record.key)
        return bool(self._store.scan(where, limit=1))
