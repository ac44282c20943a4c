"""Writing to a document server: the changes of a transaction, the writers' lock, and the order of
requests.
"""

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
from memories.core.disk import make_folder, read_file, replacing, tried
from memories.core.trust import others_may_write
from memories.errors import Conflict, StoreBusy, StoreError, StoreUnreachable
from memories.stores.documents.driver import MAX_TEXT, Condition, Driver, Kind, Part, Point, Value
from memories.stores.documents.schema import (
    LIVE,
    PENDING,
    Stored,
    Windows,
    changes_of,
    decode,
    encode,
    ended_of,
    label_of,
    part_of,
    record_id,
    window_ids,
    write_id_of,
)
from memories.stores.records import Filter, Patch, Record, Ref
from memories.stores.words import tokens_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_UNCHANGED_SECONDS = 60  # a transaction that has not ended by then has died
_CLOCKS_SECONDS = 86_400  # no two clocks are further apart
_SINCE, _MACHINE = "pending.since", "pending.machine"


_BUSY_SECONDS = 30


class WriterLock:
    """The lock of this machine's writers while it is held, and what it has seen of writes by other
    machines.

    The clocks of two machines may differ by hours, so a record that another machine has begun is
    dead when it has been pending for a minute by the clock of this one. When it was first seen is
    kept in a file beside the lock, for the next process.
    """

    def __init__(self, machine: str, seen: Path) -> None:
        """Prepare; nothing is read.

        Args:
            machine: Identifies those who share this lock, and nobody else.
            seen: The file of what was seen, which only the holder of the lock touches.
        """
        self.machine = machine
        self._file = seen
        self._seen: dict[str, float] | None = None

    def has_died(self, point: Point) -> bool:
        """Return whether a record is pending and its transaction has died; remember that it was
        seen.

        While this lock is held, no other transaction of this machine is alive.
        """
        payload: Any = point.payload
        if payload.get("ended") != PENDING:
            return False
        now = time.time()
        if payload.get(_MACHINE) == self.machine or now - payload.get(_SINCE, 0) > _CLOCKS_SECONDS:
            return True
        write_id = write_id_of(point)
        try:
            if self._seen is None:
                self._seen = self._read(now)
            if write_id not in self._seen:
                self._seen[write_id] = now
                with replacing(self._file, self._file.with_suffix(".part")) as file:
                    file.write(json.dumps(self._seen).encode())
        except OSError as exc:
            raise StoreError(
                f"cannot note in {self._file} what others are writing: {exc.strerror or exc}"
            ) from exc
        return now - self._seen[write_id] > _UNCHANGED_SECONDS

    def _read(self, now: float) -> dict[str, float]:
        """Return when each pending write was first seen, without those so old that nobody asks for
        them any more.
        """
        try:
            found = json.loads(read_file(self._file))
            return {
                write_id: at for write_id, at in found.items() if 0 <= now - at < _CLOCKS_SECONDS
            }
        except (
            FileNotFoundError,
            ValueError,
            TypeError,
            AttributeError,
        ):  # torn by a crash: they wait a minute again
            return {}


@contextlib.contextmanager
def writer_lock(url: str) -> Iterator[WriterLock]:
    """Exclude other writers of this machine."""
    import platform

    path = _lock_file(url)
    with contextlib.ExitStack() as stack:
        try:
            held = stack.enter_context(tried(path, _BUSY_SECONDS))
            found = path.stat()
        except OSError as exc:
            raise StoreError(
                f"cannot take the lock of the writers of {url}, {path}: {exc.strerror}"
            ) from exc
        if not held:
            raise StoreBusy(
                f"another process has been writing to {url} for {_BUSY_SECONDS} seconds; try again"
            )
        machine = f"{platform.node()}:{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}"
        yield WriterLock(machine, path.with_suffix(".seen"))


def _lock_file(url: str) -> Path:
    """Return the lock file that the writers of one user on this machine share, in a folder of that
    user alone.

    Raises:
        StoreError: Others may write in that folder, so they could put their own files in the place
            of ours.
    """
    folder = cache_folder() / "locks"
    try:
        make_folder(folder)
        if doubt := others_may_write(folder):
            raise StoreError(f"the folder of locks, {folder}, {doubt}")
    except OSError as exc:
        raise StoreError(
            f"cannot make the folder of locks, {folder}: {exc.strerror}; set XDG_CACHE_HOME"
        ) from exc
    return folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock"


def pending_since(machine: str) -> dict[str, Value]:
    """Return what the payload of a pending record contains besides the record."""
    return {_SINCE: int(time.time()), _MACHINE: machine}


def settled() -> dict[str, Value | None]:
    """Return the change that removes this again."""
    return dict.fromkeys((_SINCE, _MACHINE))


@dataclass
class Changes:
    """Records that are new, and records of the server as they will be.

    Attributes:
        new: Records to be added, with their vectors.
        patched: Records of the server, as they will be.
        updates: What changes in the payloads of those.
    """

    new: dict[Ref, Record] = field(default_factory=dict)
    patched: dict[Ref, Record] = field(default_factory=dict)
    updates: dict[Ref, dict[str, Value | None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.new or self.updates)

    def __contains__(self, ref: Ref) -> bool:
        return ref in self.new or ref in self.patched

    def copy(self) -> "Changes":
        """Return a copy to go back to."""
        updates = {ref: dict(change) for ref, change in self.updates.items()}
        return Changes(dict(self.new), dict(self.patched), updates)

    def records(self) -> Iterator[Record]:
        """Yield the records of the overlay, without vectors."""
        yield from (record._replace(vectors=None) for record in self.new.values())
        yield from self.patched.values()

    def matching(self, where: Filter) -> list[Record]:
        """Return the records of the overlay that match a filter."""
        return [record for record in self.records() if where.fits(record)]

    def known(self, ref: Ref) -> Record | None:
        """Return a record of the overlay, without its vectors."""
        new = self.new.get(ref)
        return self.patched.get(ref) if new is None else new._replace(vectors=None)

    def patch(self, record: Record, patch: Patch) -> None:
        """Change a record, which is in the overlay or as the server has it."""
        fields = {
            name: value
            for name, value in {**record.fields, **patch.fields}.items()
            if value is not None
        }
        changed = record._replace(ended_at=patch.ended_at, ended_by=patch.ended_by, fields=fields)
        self._change(changed, changes_of(patch))

    def touch(self, record: Record, count: int) -> None:
        """Count accesses of a record."""
        changed = record._replace(accesses=record.accesses + count)
        self._change(changed, {"accesses": changed.accesses})

    def _change(self, changed: Record, update: Mapping[str, Value | None]) -> None:
        ref = changed.ref
        if ref in self.new:
            self.new[ref] = changed._replace(vectors=self.new[ref].vectors)
        else:
            self.patched[ref] = changed
            self.updates.setdefault(ref, {}).update(update)


class Flush:
    """Writes the changes of one transaction, in an order that leaves nothing wrong if it is
    interrupted.

    First come labels and vectors, which nothing refers to yet. Then the records: at once if nothing
    else changes and they fit into one step, else as pending, which no reader sees. They are read
    back, since the server silently skips what somebody else has written first. Then one update
    completes it: pending records become live, others ended. An interruption before leaves pending
    records, which the next writer of these refs removes. Last the labels are added again, since a
    removal by another machine may have deleted them meanwhile; it checks again, too.
    """

    def __init__(
        self, driver: Driver, changes: Changes, lock: WriterLock, space: str | None
    ) -> None:
        """Prepare.

        Args:
            driver: The server.
            changes: What to write.
            lock: The lock that is held.
            space: The id of the space of the vectors; None if there are none.
        """
        self._driver = driver
        self._changes = changes
        self._lock = lock
        self._space = space
        self._write_id = os.urandom(8).hex()
        self._new = by_part(changes.new)
        self._updates = by_part(changes.updates)

    def run(self) -> None:
        """Write.

        Raises:
            Conflict: Somebody else wrote one of the records or keys first; nothing was changed.
            StoreUnreachable: The server stopped answering; all of it may be stored, or nothing.
        """
        text = sum(len(record.text) for record in self._changes.new.values())
        fits = text <= MAX_TEXT and all(
            len(refs) <= self._driver.max_batch for refs in self._new.values()
        )
        pending = bool(self._updates) or len(self._new) > 1 or not fits
        for part, refs in self._new.items():
            self._add_labels(part, refs)
            points = [Point(name, {}, vector) for name, vector in self._windows(refs)]
            if points and self._space is not None:
                self._driver.add(part._replace(kind=Kind.VECTORS, space=self._space), points)
        try:
            self._write(pending=pending)
        except StoreUnreachable as exc:
            raise StoreUnreachable(
                f"{self._driver.url} stopped answering in the middle of a write, which may be stored or not: read it "
                "before you write it again"
            ) from exc

    def _write(self, *, pending: bool) -> None:
        try:
            for part, refs in self._new.items():
                self._driver.add(part, [self._point(ref, pending=pending) for ref in refs])
            for part, refs in self._new.items():  # just before the last step, and no earlier
                self._check(part, refs)
        except Conflict:
            self._withdraw()
            raise
        for part in {**self._new, **self._updates}:
            updates = {
                record_id(ref): self._changes.updates[ref] for ref in self._updates.get(part, ())
            }
            if pending:
                new = [self._changes.new[ref] for ref in self._new.get(part, ())]
                updates |= {
                    record_id(record.ref): {"ended": ended_of(record), **settled()}
                    for record in new
                }
            if updates:
                self._driver.update(part, updates)
        for part, refs in self._new.items():
            if pending:
                self._check_writers(part, refs)
            self._add_labels(part, refs)

    def _add_labels(self, part: Part, refs: Sequence[Ref]) -> None:
        pairs = {label_of(*pair) for ref in refs for pair in self._changes.new[ref].labels.items()}
        if not pairs:
            return
        labels = part._replace(kind=Kind.LABELS)
        missing = pairs - {point.id for point in self._driver.get(labels, sorted(pairs))}
        if missing:
            self._driver.add(labels, [Point(label, {}) for label in sorted(missing)])

    def _windows(self, refs: Sequence[Ref]) -> "Iterator[tuple[str, NDArray[np.float32]]]":
        """Yield the id and the vector of each window."""
        for ref in refs:
            vectors = self._changes.new[ref].vectors
            if vectors is not None:
                yield from zip(
                    window_ids(ref, Windows(self._write_id, len(vectors))), vectors, strict=True
                )

    def _point(self, ref: Ref, *, pending: bool) -> Point:
        record = self._changes.new[ref]
        windows: dict[str, Windows] = {}
        if record.vectors is not None and self._space is not None:
            windows[self._space] = Windows(self._write_id, len(record.vectors))
        payload = encode(record, self._write_id, windows, pending=pending)
        if pending:
            payload |= pending_since(self._lock.machine)
        return Point(record_id(ref), payload, words=tokens_of(record))

    def _check(self, part: Part, refs: Sequence[Ref]) -> None:
        """Raise if another writer has taken a position or a key meanwhile."""
        own = {record_id(ref) for ref in refs}
        for point in key_holders(self._driver, part, (self._changes.new[ref] for ref in refs)):
            if (point.id in own and write_id_of(point) == self._write_id) or self._lock.has_died(
                point
            ):
                continue
            after = [self._changes.known(stored.record.ref) for stored in decode(part, [point])]
            if not any(record is not None and record.ended_at is not None for record in after):
                raise Conflict(
                    f"another record of {part.namespace} has the same key now; read it again"
                )
        self._check_writers(part, refs)

    def _check_writers(self, part: Part, refs: Sequence[Ref]) -> None:
        writers = {
            point.id: write_id_of(point)
            for point in self._driver.get(part, [record_id(ref) for ref in refs])
        }
        for ref in refs:
            if writers.get(record_id(ref)) != self._write_id:
                raise Conflict(
                    f"version {ref.position} of {ref.group} was written by somebody else first; read it again"
                )

    def _withdraw(self) -> None:
        """Remove the points of this write, and no other."""
        for part, refs in self._new.items():
            ids = [record_id(ref) for ref in refs]
            own = [
                point.id
                for point in self._driver.get(part, ids)
                if write_id_of(point) == self._write_id
            ]
            self._driver.delete(part, own)
            if self._space is not None:
                windows = part._replace(kind=Kind.VECTORS, space=self._space)
                self._driver.delete(windows, [name for name, _ in self._windows(refs)])


def check_free(
    driver: Driver, records: Sequence[Record], changes: Changes, lock: WriterLock
) -> None:
    """Check that positions and keys are free, on the server, in the overlay, and among the records
    themselves.

    Removes what a dead transaction has left there.

    Raises:
        Conflict: One is taken.
    """
    refs = [record.ref for record in records]
    taken: set[Ref] = set(changes.new) & set(refs)
    for part, own in by_part(refs).items():
        for point in driver.get(part, [record_id(ref) for ref in own]):
            if lock.has_died(point):
                driver.delete(part, [point.id])
            elif not decode(part, [point]):
                raise Conflict(
                    f"somebody else is writing a record of {part.namespace} there; try again in a minute"
                )
            else:
                taken |= {ref for ref in own if record_id(ref) == point.id}
    for ref in refs:
        if ref in taken:
            raise Conflict(
                f"version {ref.position} of {ref.group} was written by somebody else first; read it again"
            )
        taken.add(ref)
    check_keys(driver, records, changes, lock)


def check_keys(
    driver: Driver, records: Sequence[Record], changes: Changes, lock: WriterLock
) -> None:
    """Check that no other live record has the key of one of these, as far as they are live.

    Raises:
        Conflict: One is.
    """
    holders: dict[tuple[Part, str | None], Ref] = {
        (part_of(record.ref), record.key): record.ref
        for record in changes.records()
        if record.key is not None and record.ended_at is None
    }
    keyed = [record for record in records if record.key is not None and record.ended_at is None]
    for part in by_part(record.ref for record in keyed):
        own = [record for record in keyed if part_of(record.ref) == part]
        for point in key_holders(driver, part, own):
            if lock.has_died(point):
                driver.delete(part, [point.id])
                continue
            found = decode(part, [point])
            if not found:
                raise Conflict(
                    f"somebody else is writing a record of {part.namespace} with the same key; try again in a minute"
                )
            holder = found[0].record
            if holder.ref not in changes and holder.key is not None:
                holders[part, holder.key] = holder.ref
        for record in own:
            if holders.setdefault((part, record.key), record.ref) != record.ref:
                raise Conflict(
                    f"another record has the key of {record.ref.group} now; read it again"
                )


def key_holders(driver: Driver, part: Part, records: Iterable[Record]) -> list[Point]:
    """Return the live or pending records of the server that have the key of one of these, as far as
    they are live.
    """
    keys = sorted(
        {record.key for record in records if record.key is not None and record.ended_at is None}
    )
    if not keys:
        return []
    return driver.find(part, [Condition("key", "in", keys), Condition("ended", ">=", LIVE)])


def unfinished(
    driver: Driver, part: Part, refs: Iterable[Ref], lock: WriterLock
) -> tuple[list[Stored], list[Stored]]:
    """Return the pending records in the groups of these refs: the dead ones, and those that may
    still be written.
    """
    groups = sorted({ref.group for ref in refs})
    points = driver.find(part, [Condition("group", "in", groups), Condition("ended", "=", PENDING)])
    dead = [point for point in points if lock.has_died(point)]
    alive = [point for point in points if point not in dead]
    return decode(part, dead, pending=True), decode(part, alive, pending=True)


def by_part(refs: Iterable[Ref]) -> dict[Part, list[Ref]]:
    """Return refs by the part that their records are in."""
    refs_by_part: dict[Part, list[Ref]] = {}
    for ref in refs:
        refs_by_part.setdefault(part_of(ref), []).append(ref)
    return refs_by_part
