"""Writes a transaction's changes to a document server, while holding the writer lock."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories.config import cache_folder
from memories.core.disk import make_folder, others_may_write, read_file, replacing, try_lock
from memories.errors import Conflict, StoreBusy, StoreError, StoreUnreachable
from memories.stores.documents.driver import (
    MAX_TEXT,
    Condition,
    Driver,
    Kind,
    Partition,
    Point,
    Value,
)
from memories.stores.documents.schema import (
    LIVE,
    PENDING,
    StoredRecord,
    Windows,
    changes_of,
    decode,
    encode,
    ended_of,
    labels_of,
    part_of,
    record_id,
    record_ids,
    window_ids,
    write_id_of,
)
from memories.stores.records import Filter, Patch, Record, Ref, by_namespace
from memories.stores.words import tokens_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DEAD_AFTER_SECONDS = 60  # a transaction that has been pending this long counts as dead
_MAX_CLOCK_DIFFERENCE = 86_400  # seconds by which the clocks of two machines may differ
_SINCE, _MACHINE = "pending.since", "pending.machine"
_BUSY_SECONDS = 30


class WriterLock:
    """The lock of this machine's writers; also determines which pending writes are dead.

    The clocks of two machines may differ by hours. So a write by another machine counts as dead
    only when this machine has seen it pending for a minute. A file next to the lock says when each
    write was first seen, so that later processes know it too.
    """

    def __init__(self, machine: str, seen: Path) -> None:
        """Initialize; nothing is read yet.

        Args:
            machine: The name of this machine, which all writers that share the lock use.
            seen: The file that lists the pending writes seen so far. Only a writer that holds the
                lock accesses it.
        """
        self.machine = machine
        self._file = seen
        self._seen: dict[str, float] | None = None

    def has_died(self, point: Point) -> bool:
        """Return whether a record is pending, but its transaction is dead.

        The caller holds the writer lock, so no other transaction on this machine is running.
        """
        payload: Any = point.payload
        if payload.get("ended") != PENDING:
            return False
        now = time.time()
        age = now - payload.get(_SINCE, 0)
        if payload.get(_MACHINE) == self.machine or age > _MAX_CLOCK_DIFFERENCE:
            return True
        return now - self._first_seen(write_id_of(point), now) > _DEAD_AFTER_SECONDS

    def _first_seen(self, write_id: str, now: float) -> float:
        """Return when a pending write was first seen; for a new one, save the current time."""
        try:
            if self._seen is None:
                self._seen = self._read(now)
            if write_id not in self._seen:
                self._seen[write_id] = now
                with replacing(self._file, self._file.with_suffix(".part")) as file:
                    file.write(json.dumps(self._seen).encode())
        except OSError as exc:
            raise StoreError(
                f"cannot write {self._file}, which lists the writes of other machines: "
                f"{exc.strerror or exc}"
            ) from exc
        return self._seen[write_id]

    def _read(self, now: float) -> dict[str, float]:
        """Return when each pending write was first seen, leaving out old ones."""
        try:
            seen = json.loads(read_file(self._file))
            return {
                write_id: seen_at
                for write_id, seen_at in seen.items()
                if 0 <= now - seen_at < _MAX_CLOCK_DIFFERENCE
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError):  # damaged, so all writes count as new
            return {}


@contextlib.contextmanager
def writer_lock(url: str) -> Iterator[WriterLock]:
    """Hold the lock that excludes the user's other writers on this machine."""
    import platform

    path = _lock_file(url)
    with contextlib.ExitStack() as stack:
        try:
            is_locked = stack.enter_context(try_lock(path, _BUSY_SECONDS))
            status = path.stat()
        except OSError as exc:
            raise StoreError(
                f"cannot lock {path} to keep out other writers to {url}: {exc.strerror}"
            ) from exc
        if not is_locked:
            raise StoreBusy(
                f"another process has been writing to {url} for {_BUSY_SECONDS} seconds; try again"
            )
        machine = f"{platform.node()}:{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"
        yield WriterLock(machine, path.with_suffix(".seen"))


def _lock_file(url: str) -> Path:
    """Return the path of the lock file, which is in a folder of the user's own.

    Raises:
        StoreError: Other users may write to that folder, and so could replace the file.
    """
    folder = cache_folder() / "locks"
    try:
        make_folder(folder)
        if doubt := others_may_write(folder):
            raise StoreError(f"the folder for locks, {folder}, {doubt}")
    except OSError as exc:
        raise StoreError(
            f"cannot create the folder for locks, {folder}: {exc.strerror}; set XDG_CACHE_HOME"
        ) from exc
    return folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock"


@dataclass
class Changes:
    """A transaction's changes: an overlay on the server's records.

    Attributes:
        new: Records to add, with their vectors.
        patched: Records on the server, in their new state.
        updates: The changes to their payloads.
    """

    new: dict[Ref, Record] = field(default_factory=dict)
    patched: dict[Ref, Record] = field(default_factory=dict)
    updates: dict[Ref, dict[str, Value | None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.new or self.updates)

    def __contains__(self, ref: Ref) -> bool:
        return ref in self.new or ref in self.patched

    def copy(self) -> "Changes":
        """Return a copy, from which the current changes can be restored."""
        updates = {ref: dict(update) for ref, update in self.updates.items()}
        return Changes(dict(self.new), dict(self.patched), updates)

    def records(self) -> Iterator[Record]:
        """Yield the records that the transaction has added or changed, without vectors."""
        for record in self.new.values():
            yield record._replace(vectors=None)
        yield from self.patched.values()

    def matching(self, where: Filter) -> list[Record]:
        """Return the added or changed records that match a filter."""
        return [record for record in self.records() if where.fits(record)]

    def get(self, ref: Ref) -> Record | None:
        """Return a record without its vectors if the transaction added or changed it; else None."""
        new = self.new.get(ref)
        return self.patched.get(ref) if new is None else new._replace(vectors=None)

    def patch(self, record: Record, patch: Patch) -> None:
        """Change a record, given its current state in the overlay or on the server."""
        fields = {**record.fields, **patch.fields}
        fields = {name: value for name, value in fields.items() if value is not None}
        patched = record._replace(ended_at=patch.ended_at, ended_by=patch.ended_by, fields=fields)
        self._put(patched, changes_of(patch))

    def touch(self, record: Record, count: int) -> None:
        """Count accesses to a record."""
        accesses = record.accesses + count
        self._put(record._replace(accesses=accesses), {"accesses": accesses})

    def _put(self, record: Record, update: Mapping[str, Value | None]) -> None:
        ref = record.ref
        if ref in self.new:
            self.new[ref] = record._replace(vectors=self.new[ref].vectors)
        else:
            self.patched[ref] = record
            self.updates.setdefault(ref, {}).update(update)


class Flush:
    """Writes the changes of one transaction, in an order that makes interruptions harmless.

    Labels and vectors come first, since nothing refers to them yet. Then the records are added. If
    they fit into one step and nothing else changes, they are live at once. Otherwise they are added
    as pending records, which readers don't see. The records are read back, since the server
    silently skips a record that another writer wrote first. Then one update completes the
    transaction: pending records become live, and existing records change. An interruption before
    this update leaves pending records behind; the next writer of the same refs removes them.

    Finally the labels are added again, since another machine may have removed them as unused in the
    meantime. That machine, too, adds back any labels that have come into use.
    """

    def __init__(
        self, driver: Driver, changes: Changes, lock: WriterLock, space: str | None
    ) -> None:
        """Initialize; nothing is written yet.

        Args:
            driver: The server.
            changes: The changes to write.
            lock: The writer lock, which the caller holds.
            space: The id of the vectors' space; None if there are no vectors.
        """
        self._driver = driver
        self._changes = changes
        self._lock = lock
        self._space = space
        self._write_id = os.urandom(8).hex()
        self._new = by_part(changes.new)
        self._updates = by_part(changes.updates)

    def run(self) -> None:
        """Write the changes.

        Raises:
            Conflict: Another writer wrote one of the records or keys first; nothing was changed.
            StoreUnreachable: The server stopped responding; the changes may or may not be stored.
        """
        for part, refs in self._new.items():
            self._add_labels(part, refs)
            points = [Point(name, {}, vector) for name, vector in self._windows(refs)]
            if points and self._space is not None:
                self._driver.add(part._replace(kind=Kind.VECTORS, space=self._space), points)
        try:
            self._write_records(pending=not self._is_one_step())
        except StoreUnreachable as exc:
            raise StoreUnreachable(
                f"{self._driver.url} stopped answering in the middle of a write, which may or may "
                "not be stored; check before you write it again"
            ) from exc

    def _is_one_step(self) -> bool:
        records = self._changes.new.values()
        if self._updates or len(self._new) > 1 or len(records) > self._driver.max_batch:
            return False
        return sum(len(record.text) for record in records) <= MAX_TEXT

    def _write_records(self, *, pending: bool) -> None:
        try:
            for part, refs in self._new.items():
                self._driver.add(part, [self._point(ref, pending=pending) for ref in refs])
            for part, refs in self._new.items():  # another writer may have taken a position
                self._check(part, refs)
        except Conflict:
            self._withdraw()
            raise
        for part in self._new | self._updates:
            refs = self._updates.get(part, [])
            updates = {record_id(ref): self._changes.updates[ref] for ref in refs}
            if pending:
                for ref in self._new.get(part, ()):
                    ended = ended_of(self._changes.new[ref])
                    updates[record_id(ref)] = {"ended": ended, _SINCE: None, _MACHINE: None}
            if updates:
                self._driver.update(part, updates)
        for part, refs in self._new.items():
            if pending:
                self._check_writers(part, refs)
            self._add_labels(part, refs)

    def _add_labels(self, part: Partition, refs: Sequence[Ref]) -> None:
        missing: set[str] = set()
        for ref in refs:
            missing |= labels_of(self._changes.new[ref])
        if not missing:
            return
        labels = part._replace(kind=Kind.LABELS)
        for point in self._driver.get(labels, sorted(missing)):
            missing.discard(point.id)
        if missing:
            self._driver.add(labels, [Point(name, {}) for name in sorted(missing)])

    def _windows(self, refs: Sequence[Ref]) -> "Iterator[tuple[str, NDArray[np.float32]]]":
        for ref in refs:
            vectors = self._changes.new[ref].vectors
            if vectors is not None:
                ids = window_ids(ref, Windows(self._write_id, len(vectors)))
                yield from zip(ids, vectors, strict=True)

    def _point(self, ref: Ref, *, pending: bool) -> Point:
        record = self._changes.new[ref]
        windows: dict[str, Windows] = {}
        if record.vectors is not None and self._space is not None:
            windows[self._space] = Windows(self._write_id, len(record.vectors))
        payload = encode(record, self._write_id, windows, pending=pending)
        if pending:
            payload |= {_SINCE: int(time.time()), _MACHINE: self._lock.machine}
        return Point(record_id(ref), payload, words=tokens_of(record))

    def _check(self, part: Partition, refs: Sequence[Ref]) -> None:
        """Check that no other writer has taken a position or a key in the meantime.

        Raises:
            Conflict: A position or a key is taken.
        """
        ids = set(record_ids(refs))
        for point in key_holders(self._driver, part, [self._changes.new[ref] for ref in refs]):
            is_ours = point.id in ids and write_id_of(point) == self._write_id
            if is_ours or self._lock.has_died(point):
                continue
            decoded = decode(part, [point])
            holder = self._changes.get(decoded[0].ref) if decoded else None
            if holder is None or holder.ended_at is None:
                raise Conflict(
                    f"another record in {part.namespace} now has this key; look up the key again"
                )
        self._check_writers(part, refs)

    def _check_writers(self, part: Partition, refs: Sequence[Ref]) -> None:
        points = self._driver.get(part, record_ids(refs))
        writers = {point.id: write_id_of(point) for point in points}
        for ref in refs:
            if writers.get(record_id(ref)) != self._write_id:
                raise _already_written(ref)

    def _withdraw(self) -> None:
        """Remove the points that this write has added, and no others."""
        for part, refs in self._new.items():
            points = self._driver.get(part, record_ids(refs))
            own_ids = [point.id for point in points if write_id_of(point) == self._write_id]
            self._driver.delete(part, own_ids)
            if self._space is not None:
                windows = part._replace(kind=Kind.VECTORS, space=self._space)
                self._driver.delete(windows, [name for name, _ in self._windows(refs)])


def _already_written(ref: Ref) -> Conflict:
    return Conflict(
        f"another writer has written version {ref.position} of {ref.group}; read {ref.group} again"
    )


def check_free(
    driver: Driver, records: Sequence[Record], changes: Changes, lock: WriterLock
) -> None:
    """Check that the positions and keys of records are free, after removing dead writes.

    No record on the server or in the overlay may have them, and no two of these records.

    Raises:
        Conflict: A position or a key is taken.
    """
    refs = [record.ref for record in records]
    taken: set[Ref] = set(changes.new) & set(refs)
    for part, part_refs in by_part(refs).items():
        refs_by_id = {record_id(ref): ref for ref in part_refs}
        for point in driver.get(part, list(refs_by_id)):
            if lock.has_died(point):
                driver.delete(part, [point.id])
            elif not decode(part, [point]):
                raise Conflict(
                    f"another writer is writing the same record in {part.namespace}; try again in "
                    "a minute"
                )
            elif point.id in refs_by_id:
                taken.add(refs_by_id[point.id])
    for ref in refs:
        if ref in taken:
            raise _already_written(ref)
        taken.add(ref)
    check_keys(driver, records, changes, lock)


def check_keys(
    driver: Driver, records: Sequence[Record], changes: Changes, lock: WriterLock
) -> None:
    """Check that no other live record has the key of one of these live records.

    Raises:
        Conflict: A key is taken.
    """
    holders: dict[tuple[Partition, str | None], Ref] = {}
    for record in filter(_has_live_key, changes.records()):
        holders[part_of(record.ref), record.key] = record.ref
    keyed: dict[Partition, list[Record]] = {}
    for record in filter(_has_live_key, records):
        keyed.setdefault(part_of(record.ref), []).append(record)
    for part, part_records in keyed.items():
        for point in key_holders(driver, part, part_records):
            if lock.has_died(point):
                driver.delete(part, [point.id])
                continue
            decoded = decode(part, [point])
            if not decoded:
                raise Conflict(
                    f"another writer is writing a record in {part.namespace} with the same key; "
                    "try again in a minute"
                )
            holder = decoded[0].record
            if holder.ref not in changes and holder.key is not None:
                holders[part, holder.key] = holder.ref
        for record in part_records:
            if holders.setdefault((part, record.key), record.ref) != record.ref:
                raise Conflict(
                    f"another record now has the key of {record.ref.group}; look up the key again"
                )


def _has_live_key(record: Record) -> bool:
    return record.key is not None and record.ended_at is None


def key_holders(driver: Driver, part: Partition, records: Iterable[Record]) -> list[Point]:
    """Return the server's live or pending records with the keys of these live records."""
    keys = {str(record.key) for record in records if _has_live_key(record)}
    if not keys:
        return []
    has_key = Condition("key", "in", sorted(keys))
    return driver.find(part, [has_key, Condition("ended", ">=", LIVE)])


def find_pending(
    driver: Driver, part: Partition, refs: Iterable[Ref], lock: WriterLock
) -> tuple[list[StoredRecord], list[StoredRecord]]:
    """Return the pending records in these refs' groups: first the dead ones, then the others."""
    in_groups = Condition("group", "in", sorted({ref.group for ref in refs}))
    dead: list[Point] = []
    alive: list[Point] = []
    for point in driver.find(part, [in_groups, Condition("ended", "=", PENDING)]):
        (dead if lock.has_died(point) else alive).append(point)
    return decode(part, dead, pending=True), decode(part, alive, pending=True)


def by_part(refs: Iterable[Ref]) -> dict[Partition, list[Ref]]:
    """Group refs by the partition that contains their records."""
    return {Partition(Kind.RECORDS, *place): part for place, part in by_namespace(refs).items()}
