"""Imports an export's records, leaving existing records unchanged.

An import can be interrupted at any moment and run again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from memories.core.batches import by_count
from memories.core.ids import new_id
from memories.embedders.protocol import Embedder
from memories.errors import Conflict
from memories.guard.origin import AGENT, IMPORTED, TRUST, Origin
from memories.models import PENDING
from memories.read.versions import FORMER_LINK, LINK
from memories.stores.logged import LoggedStore
from memories.stores.protocol import Store, add_count_to_errors
from memories.stores.records import Collection, Filter, Record, Ref
from memories.transfer.intake import (
    ExportLine,
    Intake,
    hold_for_review,
    is_proposal,
    is_same,
    owner_of,
    read_lines,
    redact,
    rename,
    without_acceptance,
)
from memories.transfer.lines import Header
from memories.transfer.pages import PAGE, Part, with_vectors
from memories.write.links import settle_links
from memories.write.suspicion import mark_suspicious

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

MAX_BATCH = 2_000  # maximum number of records stored in one step, even if one memory has more
# Maximum number of versions of one memory in a foreign file; all of them are stored in one step.
MAX_FOREIGN_VERSIONS = 100_000
MAX_BATCH_CHARACTERS = 33_554_432
MAX_SHOWN = 100  # maximum number of conflicts listed; all are counted
_ADDS = (
    "would add to an existing memory or conversation; if you trust the file's source, add --trusted"
)


class Rejected(NamedTuple):
    """A record that was not imported, and the reason."""

    line: int
    ref: Ref
    reason: str


@dataclass(slots=True)
class Imported:
    """The result of an import.

    Attributes:
        imported: How many records were stored.
        known: How many already existed.
        conflicts: The first `MAX_SHOWN` records that were not stored.
        conflict_count: How many were not stored.
        without_vector: How many were stored without a vector, since there is no embedder.
        redacted: How many secrets of each kind were removed.
        unchecked: Whether the file may be incomplete: an export in the first version of the format
            lacks the last line, which marks the end.
        pending: How many of the stored memories await review, keyed by namespace.
        still_pending: How many of the known memories await review here, but not in the file.
        proposals: How many proposals by `memory tidy` were left out of a foreign file.
    """

    imported: int = 0
    known: int = 0
    conflicts: list[Rejected] = field(default_factory=list)
    conflict_count: int = 0
    without_vector: int = 0
    unchecked: bool = False
    pending: dict[str, int] = field(default_factory=dict)
    still_pending: int = 0
    proposals: int = 0
    redacted: Counter[str] = field(default_factory=Counter)


class Checked(NamedTuple):
    """The result of `check`.

    Attributes:
        records: The number of records.
        proven: Whether the export was written with the given key.
    """

    records: int
    proven: bool


class ImportTerms(NamedTuple):
    """Settings for importing an export.

    Attributes:
        writer: The origin of the records if nothing proves that they are the user's.
        key: The key of the user's own exports, if accepted as proof; see `export.own_key`.
        namespaces: Only these may be written; None means all.
        into: The namespace to which all records are moved; None to leave them in their namespaces.
        redactor: Removes secrets; None to keep them.
        trusted: Whether unproven records are stored without review.
        by_person: Whether a person trusts the records, so that they keep their own origins.
    """

    writer: Origin
    key: bytes | None
    namespaces: Sequence[str] | None
    into: str | None
    redactor: "Redactor | None"
    trusted: bool
    by_person: bool


def examine(lines: Iterable[bytes], terms: ImportTerms) -> tuple[Intake, Origin | None]:
    """Check an export, and decide how its records are stored.

    Args:
        lines: The lines in order, UTF-8.
        terms: The terms.

    Returns:
        The changes to make to the records, and their new origin; None if they keep their own.

    Raises:
        InvalidInput: A line is invalid, or the export is incomplete.
    """
    is_proven = check(
        lines,
        namespaces=terms.namespaces,
        key=terms.key,
        redactor=terms.redactor,
        into=terms.into,
    ).proven
    waits = not (terms.trusted or is_proven)
    writer: Origin | None = terms.writer
    if is_proven or (terms.trusted and terms.by_person):
        writer = None
    elif terms.trusted:
        writer = terms.writer._replace(trust=AGENT)
    import_id = new_id(datetime.now(UTC)) if waits else None
    return Intake(import_id, terms.redactor, into=terms.into, accepted=writer is None), writer


def log_import(store: Store, channel: str, writer: Origin | None, quota: str | None) -> LoggedStore:
    """Return a store that logs its changes as an import and respects a namespace's quota.

    Args:
        store: The store.
        channel: The channel through which the import was requested.
        writer: The new origin of all records; None if they keep their own.
        quota: The setting `namespace_quota`.
    """
    return LoggedStore(
        store,
        channel,
        partial(datetime.now, UTC),
        None if writer is None else lambda: writer,
        action="import",
        quota=quota,
    )


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
    """Store an export's records; existing records stay as they are.

    Args:
        store: The store.
        lines: The lines in order, UTF-8.
        embedder: Makes missing vectors; None to search by words only.
        namespaces: Only these may be written; None means all.
        dry_run: Store nothing; only return what would happen.
        intake: How to change the records before they are stored.

    Raises:
        InvalidInput: A line is invalid, or the export is incomplete. Earlier batches were
            stored; correct the file and import it again. `check` finds such errors before anything
            is stored.
    """
    importer = _Importer(store, embedder, intake.foreign, dry_run=dry_run)
    records: Iterator[ExportLine] = read_lines(lines, importer.begin, namespaces, own=intake.own)
    if intake.into is not None:
        records = rename(records, intake.into)
    if not intake.accepted:
        records = map(without_acceptance, records)
    with add_count_to_errors(lambda: importer.result.imported, "imported"):
        try:
            for batch in _batches(records, is_foreign=intake.foreign is not None):
                lines_to_store = batch
                if intake.foreign is not None:
                    statements = [line for line in batch if not is_proposal(line.record)]
                    importer.result.proposals += len(batch) - len(statements)
                    lines_to_store = hold_for_review(statements, intake.foreign)
                importer.store_batch(list(redact(lines_to_store, intake.redactor)))
        finally:  # batches before an invalid line stay stored
            importer.settle_links()
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
    """Read an export to its end, with the same checks as `import_`, but store nothing.

    Args:
        lines: The lines in order, UTF-8.
        namespaces: Only these may be written; None means all.
        key: The key of the user's own exports, if any; see `export.own_key`.
        redactor: Removes secrets, as in an import.
        own: Whether the file is a backup; see `lines.read_line`.
        into: See `Intake`.

    Raises:
        InvalidInput: A line is invalid, or the export is incomplete.
    """
    proven = False

    def read_and_prove() -> Iterator[ExportLine]:
        nonlocal proven
        proven = yield from read_lines(lines, lambda _header: None, namespaces, key, own=own)

    records: Iterator[ExportLine] = read_and_prove()
    if into is not None:
        records = rename(records, into)
    count = sum(1 for _ in redact(records, redactor))
    return Checked(count, proven=proven)


def _batches(lines: Iterable[ExportLine], *, is_foreign: bool) -> Iterator[list[ExportLine]]:
    """Yield batches of lines that end between two memories, so that no memory is stored partially.

    Only a very large memory or conversation is split between batches.
    """
    batch: list[ExportLine] = []
    size = 0
    for line in lines:
        is_whole = is_foreign and line.record.ref.collection is Collection.MEMORY
        most = MAX_FOREIGN_VERSIONS if is_whole else MAX_BATCH
        is_full = len(batch) >= most or size >= MAX_BATCH_CHARACTERS
        if len(batch) >= PAGE:
            is_full = is_full or owner_of(batch[-1].record.ref) != owner_of(line.record.ref)
        if is_full:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.record.text)
    if batch:
        yield batch


# --- storing


class _Importer:
    """Imports an export, batch by batch.

    It remembers which memories had a conflict, so that their remaining versions are left out too.
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
        self._checked: set[Part] = set()
        self._linked: dict[str, set[str]] = {}  # ids of memories, keyed by namespace

    def begin(self, header: Header) -> None:
        """Read the header."""
        self.model, self.result.unchecked = header.model, not header.ends

    def store_batch(self, batch: Sequence[ExportLine]) -> None:
        """Store a batch's new records; skip memories and conversations that have a conflict."""
        new = self._select_new(batch)
        if self._dry_run:
            self._check_readable(batch)
            refused = {owner_of(line.record.ref) for line in new if self._is_key_taken(line.record)}
            self._count(new, refused)
            return
        records = [mark_suspicious(line.record) for line in new]
        vectors = {record.ref: record.vectors for record in records if record.vectors is not None}
        if self._embedder is None or self.model != self._embedder.space.model:
            vectors = {}
        # Embed before the transaction, which makes other writers wait.
        records = with_vectors(records, vectors, self._embedder)
        ready = {
            record.ref: line._replace(record=record)
            for line, record in zip(new, records, strict=True)
        }
        with self._store.transaction():
            # Another program may have written in the meantime.
            new = [ready[line.record.ref] for line in self._select_new(new)]
            refused = self._append(new)
        self._count(new, refused)
        for line in batch:
            ref = line.record.ref
            if any(name in line.record.fields for name in (*LINK, *FORMER_LINK)):
                self._linked.setdefault(ref.namespace, set()).add(ref.group)

    def settle_links(self) -> None:
        """Remove links to memories that the store lacks, and restore removed links to memories that
        it has.
        """
        for namespace, memory_ids in self._linked.items():
            for page in by_count(sorted(memory_ids), PAGE):
                with self._store.transaction():
                    settle_links(self._store, namespace, page)

    def _check_readable(self, batch: Sequence[ExportLine]) -> None:
        """Raise an error if the store can't read a namespace to which the batch adds records.

        No transaction is begun, since that would create the store.
        """
        refs = [line.record.ref for line in batch]
        batch_parts = {Part(ref.collection, ref.namespace) for ref in refs}
        for part in batch_parts - self._checked:
            self._store.info(part.filter())
        self._checked |= batch_parts

    def _select_new(self, batch: Sequence[ExportLine]) -> list[ExportLine]:
        """Return the lines of new records; count existing ones, and reject conflicting ones."""
        refs = [line.record.ref for line in batch]
        existing = {record.ref: record for record in self._store.read(refs)}
        new: list[ExportLine] = []
        for line in batch:
            ref = line.record.ref
            if ref not in existing:
                existing[ref] = line.record
                new.append(line)
                continue
            versions = [line.record] if line.original is None else [line.record, line.original]
            if any(is_same(existing[ref], record) for record in versions):
                self.result.known += 1
                if existing[ref].ended_by == PENDING and line.record.ended_by != PENDING:
                    self.result.still_pending += 1
            else:
                self._reject(line, "another record has this address")
                self._blocked.add(owner_of(ref))
        if self._foreign is not None:
            new = self._reject_additions(new)
        return self._reject_blocked(new, "belongs to a memory or conversation with a conflict")

    def _reject_additions(self, lines: Sequence[ExportLine]) -> list[ExportLine]:
        """Reject a foreign file's lines that would add to one of our memories or conversations."""
        owners = {owner_of(line.record.ref) for line in lines}
        for line in lines:
            if line.record.ref.collection is Collection.MEMORY and line.record.ref.position == 1:
                owners.discard(owner_of(line.record.ref))
        existing = set(filter(self._is_ours, owners - self._blocked))
        accepted: list[ExportLine] = []
        for line in lines:
            if owner_of(line.record.ref) in existing:
                self._reject(line, _ADDS)
            else:
                accepted.append(line)
        self._blocked |= existing
        return accepted

    def _is_ours(self, owner: Ref) -> bool:
        """Return whether `owner` is a stored memory, or a conversation with turns that weren't
        imported.
        """
        records = Filter(owner.collection, (owner.namespace,), state="any", group=owner.group)
        count = self._store.count(records)
        if owner.collection is Collection.MEMORY:
            return count > 0
        return count > self._store.count(records._replace(labels={TRUST: IMPORTED}))

    def _reject_blocked(self, lines: Sequence[ExportLine], reason: str) -> list[ExportLine]:
        """Reject the lines of blocked memories and conversations, and return the others."""
        accepted: list[ExportLine] = []
        for line in lines:
            if owner_of(line.record.ref) in self._blocked:
                self._reject(line, reason)
            else:
                accepted.append(line)
        return accepted

    def _append(self, lines: Sequence[ExportLine]) -> set[Ref]:
        """Append records; return the memories and conversations refused because a key is taken."""
        try:
            self._store.append([line.record for line in lines])
        except Conflict:  # some of the records can't be stored
            pass
        else:
            return set()
        by_owner: dict[Ref, list[Record]] = {}
        for line in lines:
            by_owner.setdefault(owner_of(line.record.ref), []).append(line.record)
        refused: set[Ref] = set()
        for owner, records in by_owner.items():
            try:
                self._store.append(records)
            except Conflict:
                refused.add(owner)
        return refused

    def _count(self, lines: Sequence[ExportLine], refused: set[Ref]) -> None:
        self._blocked |= refused
        stored = self._reject_blocked(lines, "its key is in use by another record")
        self.result.imported += len(stored)
        for line in stored:
            if line.record.ended_by == PENDING:
                namespace = line.record.ref.namespace
                self.result.pending[namespace] = self.result.pending.get(namespace, 0) + 1
            if line.original is not None:
                self.result.redacted.update(line.record.read_list("redacted"))
        if self._embedder is None:
            self.result.without_vector += len(stored)

    def _reject(self, line: ExportLine, reason: str) -> None:
        self.result.conflict_count += 1
        if len(self.result.conflicts) < MAX_SHOWN:
            self.result.conflicts.append(Rejected(line.number, line.record.ref, reason))

    def _is_key_taken(self, record: Record) -> bool:
        if record.key is None or record.ended_at is not None:
            return False
        holder = Filter(record.ref.collection, (record.ref.namespace,), key=record.key)
        return bool(self._store.scan(holder, limit=1))
