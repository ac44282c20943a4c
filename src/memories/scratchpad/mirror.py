"""Applies this process's writes to the scratchpads: adds new memories and drops removed ones."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from memories.core.times import from_millis, to_iso, to_millis
from memories.errors import InvalidInput, StoreBusy, StoreError
from memories.guard.origin import PINNED, origin_of, tags_of
from memories.models import PENDING, SESSION, DecayPolicy
from memories.read import versions
from memories.scratchpad import file
from memories.scratchpad.entries import MAX_SHOWN, OF_PROJECT, Entry, choose
from memories.scratchpad.file import PadFile
from memories.stores.logged import Change, ref_of
from memories.stores.records import SEARCHED, Collection, Record, Ref

_PAUSE_SECONDS = 0.25  # minimum time between two writes of a file, unless a memory has ended
# If more new memories than this are waiting in a namespace, those that won't get a slot are
# dropped.
_MAX_WAITING = 200


class Mirror:
    """Applies changes in the store to the scratchpads in a home.

    Removed memories are removed from their file immediately. New memories are written at most a few
    times a second; until they are written, the file is marked as stale. `flush` writes the rest.
    """

    def __init__(
        self,
        pad_file_of: Callable[[str], PadFile],
        clock: Callable[[], datetime],
        *,
        makes_file: Callable[[str], bool],
        write_metadata: Callable[[PadFile], None] = lambda _: None,
    ) -> None:
        """Create a mirror; no file is opened.

        Args:
            pad_file_of: Returns the file of a namespace's scratchpad.
            clock: Returns the current time, with its time zone.
            makes_file: Returns whether to create a namespace's file if it is missing.
            write_metadata: Writes a namespace's `metadata.json`.
        """
        self._pad_file_of, self._clock, self._makes_file = pad_file_of, clock, makes_file
        self._write_metadata = write_metadata
        self._undescribed: set[str] = set()
        self._described_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._written_at: dict[str, float] = {}

    def __call__(self, changes: Sequence[Change]) -> None:
        """Apply changes. Records that are about to be removed must be passed before their removal.

        Raises:
            StoreError: A removed memory could not be removed from a scratchpad.
        """
        batches: dict[str, _Batch] = {}
        now = self._clock()
        for change in changes:
            ref = ref_of(change)
            if ref.collection is Collection.MEMORY:
                batch = batches.setdefault(ref.namespace, _Batch())
                batch.add(change, now)
        for namespace, batch in batches.items():
            self._apply(self._pad_file_of(namespace), batch)
        self._describe_changed(changes)

    def _describe_changed(self, changes: Sequence[Change]) -> None:
        """Write the metadata of changed namespaces, at most a few times a second.

        `flush` writes the rest.
        """
        changed: set[str] = set()
        for change in changes:
            ref = ref_of(change)
            if ref.collection in SEARCHED and self._makes_file(ref.namespace):
                changed.add(ref.namespace)
        now = time.monotonic()
        due: set[str] = set()
        # The records to be removed still exist, so counts would be wrong.
        if not any(isinstance(change, Ref) for change in changes):
            for namespace in changed:
                if now - self._described_at.get(namespace, -_PAUSE_SECONDS) >= _PAUSE_SECONDS:
                    due.add(namespace)
        with self._lock:
            self._undescribed = (self._undescribed | changed) - due
            self._described_at |= dict.fromkeys(due, now)
        for namespace in sorted(due):
            self._write_metadata(self._pad_file_of(namespace))

    def promote(self, records: Sequence[Record]) -> None:
        """Give frequently found memories a slot, unless other memories rank higher."""
        for namespace in {record.ref.namespace for record in records}:
            pad_file, now = self._pad_file_of(namespace), self._clock()
            try:
                pad = file.load(pad_file.home, pad_file.namespace)
            except InvalidInput:
                continue  # `memory scratchpad` reports the problem
            if pad is None or not pad.entries:
                continue
            present = {entry.id for entry in pad.entries}
            candidates = {
                record.ref.group: record
                for record in records
                if record.ref.namespace == namespace and record.ref.group not in present
            }
            entries = [entry_of(record, now) for record in candidates.values()]
            new = [entry for entry in entries if entry is not None]
            if not new:
                continue
            chosen = choose([*pad.entries, *new], pad_file.rules, now, pad.left_out)
            placed = {entry.id: candidates[entry.id] for entry in chosen if entry.id in candidates}
            if placed:
                batch = _Batch()
                batch.added = placed
                self._apply(pad_file, batch)

    def flush(self) -> None:
        """Write new memories that have not been written yet."""
        with self._lock:
            waiting_by_namespace, self._waiting = self._waiting, {}
        for namespace, waiting in waiting_by_namespace.items():
            if any(waiting):
                self._write(self._pad_file_of(namespace), waiting, {})
        with self._lock:
            undescribed, self._undescribed = self._undescribed, set()
        for namespace in sorted(undescribed):
            self._write_metadata(self._pad_file_of(namespace))

    def _apply(self, pad_file: PadFile, batch: "_Batch") -> None:
        namespace = pad_file.namespace
        with self._lock:
            waiting = self._waiting.setdefault(namespace, _Waiting({}, {}))
            waiting.add(batch)
            if len(waiting.added) > _MAX_WAITING:
                newest = limit_new(waiting.added.values(), pad_file.rules.size)
                waiting = waiting._replace(added={record.ref.group: record for record in newest})
                self._waiting[namespace] = waiting
            pause = time.monotonic() - self._written_at.get(namespace, -_PAUSE_SECONDS)
            is_due = batch.has_ended or (any(waiting) and pause >= _PAUSE_SECONDS)
            if is_due:
                del self._waiting[namespace]
                self._written_at[namespace] = time.monotonic()
        if is_due:
            self._write(pad_file, waiting, batch.dropped)
        if (batch.is_unclear or not is_due) and file.exists(pad_file):
            # If the mark can't be written into the folder, the file can't be written either.
            with contextlib.suppress(OSError):
                file.mark_stale(pad_file)

    def _write(self, pad_file: PadFile, waiting: "_Waiting", dropped: dict[str, int]) -> None:
        records = limit_new(waiting.added.values(), pad_file.rules.size)
        entries = [entry_of(record, self._clock()) for record in records]
        added = [entry for entry in entries if entry is not None]
        make = self._makes_file(pad_file.namespace)
        try:
            file.change(pad_file, added, list(dropped.items()), waiting.reinforced, make=make)
        except (OSError, StoreBusy) as exc:
            if not dropped:  # the file only lacks new memories; the next refresh reports the error
                return
            reason = getattr(exc, "strerror", None) or exc
            raise StoreError(
                f"cannot write {pad_file.path} ({reason}); it still shows a memory that was "
                "deleted, changed or is being forgotten, so remove that file"
            ) from exc


class _Batch:
    """The changes that one transaction makes in a namespace.

    Attributes:
        added: New memories and new versions, keyed by memory id.
        dropped: The last version of each removed memory, keyed by id.
        reinforced: The time at which each reinforced memory was reinforced, keyed by id.
        has_ended: Whether a memory was removed or got a new version, so that the file must no
            longer show the old version.
        is_unclear: Whether the file must be refreshed, for example after a decision in a review.
    """

    def __init__(self) -> None:
        self.added: dict[str, Record] = {}
        self.dropped: dict[str, int] = {}
        self.reinforced: dict[str, str] = {}
        self.has_ended = self.is_unclear = False

    def add(self, change: Change, now: datetime) -> None:
        """Add one change of the transaction."""
        if isinstance(change, Record):
            self._add_record(change, now)
        elif isinstance(change, Ref):
            self._drop(change)
        elif change.ended_at is not None or change.fields.get("corrected_by"):
            self._drop(change.ref)
            if change.fields.get("corrected_until") is not None:
                self.is_unclear = True  # a refresh determines when to show it again
        else:
            self.is_unclear = True
            reinforced_at = change.fields.get("reinforced_at")
            if reinforced_at is not None:
                self.reinforced[change.ref.group] = to_iso(from_millis(reinforced_at))

    def _add_record(self, record: Record, now: datetime) -> None:
        memory_id = record.ref.group
        self.reinforced.pop(memory_id, None)
        if is_shown(record, now):
            self.added[memory_id] = record
            self.dropped.pop(memory_id, None)
        elif record.ended_by == PENDING:
            self.is_unclear = True

    def _drop(self, ref: Ref) -> None:
        self.added.pop(ref.group, None)
        self.has_ended = True
        self.dropped[ref.group] = max(ref.position, self.dropped.get(ref.group, 0))


class _Waiting(NamedTuple):
    """Changes that have not been written to a file yet.

    Attributes:
        added: New memories and new versions, keyed by memory id.
        reinforced: The time at which each reinforced memory was reinforced, keyed by id.
    """

    added: dict[str, Record]
    reinforced: dict[str, str]

    def add(self, batch: _Batch) -> None:
        """Add the changes of a transaction."""
        for memory_id in batch.dropped:
            self.added.pop(memory_id, None)
        for memory_id in (*batch.added, *batch.dropped):
            self.reinforced.pop(memory_id, None)
        self.added.update(batch.added)
        self.reinforced.update(batch.reinforced)


# --- the entry of a record


def is_shown(record: Record, now: datetime) -> bool:
    """Return whether the latest version of a memory may be in a scratchpad.

    A memory that was deleted, replaced or corrected, or that is waiting for review, may not.
    """
    return record.ended_at is None and not versions.is_corrected(record, now)


def entry_of(record: Record, now: datetime) -> Entry | None:
    """Return the entry for the latest version of a memory; None if it isn't shown."""
    if not is_shown(record, now):
        return None
    origin = origin_of(record.labels)
    # The half-life doesn't matter, since an entry doesn't store the memory's current confidence.
    memory = versions.to_memory(record, now, half_life_hours=1.0)
    is_stable = memory.decay_policy is DecayPolicy.STABLE
    aging_from = record.fields.get("aging_from")
    if aging_from is None and not is_stable:
        aging_from = to_millis(record.created_at)
    return Entry(
        id=record.ref.group,
        content=record.text[:MAX_SHOWN],
        pinned=PINNED in record.labels,
        version=record.ref.position,
        written=to_iso(memory.updated_at),
        created=to_iso(memory.created_at),
        uses=record.accesses,
        tags=tags_of(record.labels),
        key=memory.key,
        by="" if origin is None else origin.by,
        trust="" if origin is None else origin.trust,
        decay=None if is_stable else str(memory.decay_policy),
        confidence=memory.base_confidence,
        aging_from=_iso(aging_from),
        reinforced=_iso(record.fields.get("reinforced_at")),
        suspicious=" ".join(memory.suspicious),
        cut=len(record.text) if len(record.text) > MAX_SHOWN else None,
        accepted="accepted_at" in record.fields,
        namespace=record.ref.namespace,
        anchors=record.fields.get("anchors", ""),
        valid_until=_iso(record.fields.get("valid_until")),
        recheck=record.fields.get("recheck_days", 0),
        anchored=_iso(record.fields.get("anchored_at")),
    )


def _iso(millis: int | None) -> str:
    return "" if millis is None else to_iso(from_millis(millis))


def limit_new(records: Iterable[Record], size: int) -> list[Record]:
    """Drop new memories that won't get a slot because there are newer ones.

    Pinned memories, session summaries, memories that were read, and the newest of each project are
    always returned.
    """
    special: list[Record] = []
    plain: list[Record] = []
    counts: dict[str | None, int] = {}
    newest_first = sorted(
        records, key=lambda record: (record.created_at, record.ref.group), reverse=True
    )
    for record in newest_first:
        project = record.labels.get("project")
        counts[project] = counts.get(project, 0) + 1
        is_session = record.labels.get("type") == SESSION
        is_newest = project is not None and counts[project] <= OF_PROJECT
        if record.accesses or is_session or is_newest or PINNED in record.labels:
            special.append(record)
        else:
            plain.append(record)
    return [*special[::-1], *plain[:size][::-1]]
