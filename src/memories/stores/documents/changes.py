"""What a transaction on a document server is going to change, laid over what the server says until it is written."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memories.errors import Conflict, StoreUnreachable
from memories.stores.documents.driver import MAX_TEXT, Condition, Driver, Kind, Part, Point, Value
from memories.stores.documents.pending import Turn, pending_since, settled
from memories.stores.documents.schema import (
    LIVE,
    PENDING,
    Stored,
    Windows,
    changes_of,
    decode,
    decode_any,
    encode,
    label_of,
    means,
    part_of,
    record_id,
    window_ids,
    writer_of,
)
from memories.stores.records import Filter, Patch, Record, Ref
from memories.stores.words import tokens_of


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
        """Yield all that is laid over, without vectors."""
        yield from (record._replace(vectors=None) for record in self.new.values())
        yield from self.patched.values()

    def meant(self, where: Filter) -> list[Record]:
        """Return what is laid over and meant by a filter."""
        return [record for record in self.records() if means(where, record)]

    def known(self, ref: Ref) -> Record | None:
        """Return a record that is laid over, without its vectors."""
        new = self.new.get(ref)
        return self.patched.get(ref) if new is None else new._replace(vectors=None)

    def patch(self, record: Record, patch: Patch) -> None:
        """Change a record, which is laid over or as the server has it."""
        fields = {name: value for name, value in {**record.fields, **patch.fields}.items() if value is not None}
        changed = record._replace(ended_at=patch.ended_at, ended_by=patch.ended_by, fields=fields)
        self._change(changed, changes_of(patch))

    def touch(self, record: Record) -> None:
        """Count an access of a record."""
        changed = record._replace(accesses=record.accesses + 1)
        self._change(changed, {"accesses": changed.accesses})

    def _change(self, changed: Record, update: Mapping[str, Value | None]) -> None:
        ref = changed.ref
        if ref in self.new:
            self.new[ref] = changed._replace(vectors=self.new[ref].vectors)
        else:
            self.patched[ref] = changed
            self.updates.setdefault(ref, {}).update(update)


class Flush:
    """Writes the changes of one transaction, in an order in which being cut short leaves nothing wrong.

    First come labels and vectors, which nothing refers to yet. Then the records: at once if they are all that changes
    and fit into one step, else as pending, which no reader sees. They are read back, since the server leaves out
    silently what somebody else has written first. Then one update makes all of it true: pending records live, others
    ended. What is cut short before leaves pending records, which the next writer of their places puts away. Last the
    labels are added again, as a removal by another machine may have taken them out meanwhile; it looks again, too.
    """

    def __init__(self, driver: Driver, changes: Changes, turn: Turn, space: str | None) -> None:
        """Prepare.

        Args:
            driver: The server.
            changes: What is to be written.
            turn: This machine's.
            space: The letters of the space of the vectors; None if there are none.
        """
        self._driver = driver
        self._changes = changes
        self._turn = turn
        self._space = space
        self._writer = os.urandom(8).hex()
        self._new = by_part(changes.new)
        self._updates = by_part(changes.updates)

    def run(self) -> None:
        """Write.

        Raises:
            Conflict: Somebody else wrote one of the records or keys first; nothing was changed.
            StoreUnreachable: The server stopped answering; all of it may be stored, or nothing.
        """
        text = sum(len(record.text) for record in self._changes.new.values())
        fits = text <= MAX_TEXT and all(len(refs) <= self._driver.max_batch for refs in self._new.values())
        pending = bool(self._updates) or len(self._new) > 1 or not fits
        for part, refs in self._new.items():
            self._add_labels(part, refs)
            self._add_vectors(part, refs)
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
            for part, refs in self._new.items():  # just before it comes true, and not long before
                self._check(part, refs)
        except Conflict:
            self._withdraw()
            raise
        for part in {**self._new, **self._updates}:
            updates = {record_id(ref): self._changes.updates[ref] for ref in self._updates.get(part, ())}
            if pending:
                updates |= {record_id(ref): self._settled(ref) for ref in self._new.get(part, ())}
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

    def _add_vectors(self, part: Part, refs: Sequence[Ref]) -> None:
        points: list[Point] = []
        for ref in refs:
            vectors = self._changes.new[ref].vectors
            if vectors is not None:
                ids = window_ids(ref, Windows(self._writer, len(vectors)))
                points += [Point(name, {}, vector) for name, vector in zip(ids, vectors, strict=True)]
        if points and self._space is not None:
            self._driver.add(Part(Kind.VECTORS, part.collection, part.namespace, self._space), points)

    def _point(self, ref: Ref, *, pending: bool) -> Point:
        record = self._changes.new[ref]
        windows: dict[str, Windows] = {}
        if record.vectors is not None and self._space is not None:
            windows[self._space] = Windows(self._writer, len(record.vectors))
        payload = encode(record, self._writer, windows, ended=PENDING if pending else None)
        if pending:
            payload |= pending_since(self._turn.machine)
        return Point(record_id(ref), payload, words=tokens_of(record))

    def _settled(self, ref: Ref) -> dict[str, Value | None]:
        record = self._changes.new[ref]
        ended = encode(record, self._writer, {})["ended"]
        return {"ended": ended, **settled()}

    def _check(self, part: Part, refs: Sequence[Ref]) -> None:
        """Raise if a place or a key went to somebody else meanwhile."""
        own = {record_id(ref) for ref in refs}
        for point in key_holders(self._driver, part, (self._changes.new[ref] for ref in refs)):
            is_own = point.id in own and writer_of(point) == self._writer
            stored = None if is_own else decode(part, point)
            after = None if stored is None else self._changes.known(stored.record.ref)
            ends = after is not None and after.ended_at is not None
            if not is_own and not ends and not self._turn.has_died(point):
                raise Conflict(f"another record of {part.namespace} has the same key now; read it again")
        self._check_writers(part, refs)

    def _check_writers(self, part: Part, refs: Sequence[Ref]) -> None:
        found = {point.id: writer_of(point) for point in self._driver.get(part, [record_id(ref) for ref in refs])}
        for ref in refs:
            if found.get(record_id(ref)) != self._writer:
                raise Conflict(
                    f"version {ref.position} of {ref.group} was written by somebody else first; read it again"
                )

    def _withdraw(self) -> None:
        """Take back what was added, and nothing that others wrote."""
        for part, refs in self._new.items():
            ids = [record_id(ref) for ref in refs]
            own = [point.id for point in self._driver.get(part, ids) if writer_of(point) == self._writer]
            self._driver.delete(part, own)
            if self._space is not None:
                vectors = {ref: self._changes.new[ref].vectors for ref in refs}
                windows = {
                    ref: Windows(self._writer, len(found)) for ref, found in vectors.items() if found is not None
                }
                gone = [name for ref, each in windows.items() for name in window_ids(ref, each)]
                self._driver.delete(Part(Kind.VECTORS, part.collection, part.namespace, self._space), gone)


def check_free(driver: Driver, records: Sequence[Record], changes: Changes, turn: Turn) -> None:
    """Raise if a position or a key is taken, on the server, by what is laid over it, or twice among the records.

    What a transaction has left that died is put away.

    Raises:
        Conflict: One is taken.
    """
    refs = [record.ref for record in records]
    taken: set[Ref] = set(changes.new) & set(refs)
    for part, own in by_part(refs).items():
        for point in driver.get(part, [record_id(ref) for ref in own]):
            if turn.has_died(point):
                driver.delete(part, [point.id])
            elif decode(part, point) is None:
                raise Conflict(f"somebody else is writing a record of {part.namespace} there; try again in a minute")
            else:
                taken |= {ref for ref in own if record_id(ref) == point.id}
    for ref in refs:
        if ref in taken:
            raise Conflict(f"version {ref.position} of {ref.group} was written by somebody else first; read it again")
        taken.add(ref)
    check_keys(driver, records, changes, turn)


def check_keys(driver: Driver, records: Sequence[Record], changes: Changes, turn: Turn) -> None:
    """Raise if a key of these records, as far as they are live, is another live record's.

    Raises:
        Conflict: One is.
    """
    holders = {
        (part_of(laid.ref), laid.key): laid.ref
        for laid in changes.records()
        if laid.key is not None and laid.ended_at is None
    }
    by_part: dict[Part, list[Record]] = {}
    for record in records:
        by_part.setdefault(part_of(record.ref), []).append(record)
    for part, own in by_part.items():
        for found in _live_holders(driver, part, own, turn):
            if found.ref not in changes and found.key is not None:
                holders[part, found.key] = found.ref
        for record in own:
            if record.key is None or record.ended_at is not None:
                continue
            if holders.setdefault((part, record.key), record.ref) != record.ref:
                raise Conflict(f"another record has the key of {record.ref.group} now; read it again")


def _live_holders(driver: Driver, part: Part, records: Sequence[Record], turn: Turn) -> list[Record]:
    """Return the live records that have keys of these; what has died is put away."""
    found: list[Record] = []
    for point in key_holders(driver, part, records):
        stored = decode(part, point)
        if stored is not None:
            found.append(stored.record)
        elif turn.has_died(point):
            driver.delete(part, [point.id])
        else:
            raise Conflict(
                f"somebody else is writing a record of {part.namespace} with the same key; try again in a minute"
            )
    return found


def key_holders(driver: Driver, part: Part, records: Iterable[Record]) -> list[Point]:
    """Return the records of the server, live or pending, that have the key of one of these that are live."""
    keys = sorted({record.key for record in records if record.key is not None and record.ended_at is None})
    if not keys:
        return []
    return driver.find(part, [Condition("key", "in", keys), Condition("ended", ">=", LIVE)])


def unfinished(driver: Driver, part: Part, refs: Iterable[Ref], turn: Turn) -> tuple[list[Stored], list[Stored]]:
    """Return what is pending in the groups of these records: what has died, and what somebody may still be writing."""
    groups = sorted({ref.group for ref in refs})
    found = driver.find(part, [Condition("group", "in", groups), Condition("ended", "=", PENDING)])
    dead: list[Stored] = []
    alive: list[Stored] = []
    for point in found:
        (dead if turn.has_died(point) else alive).append(decode_any(part, point))
    return dead, alive


def by_part(refs: Iterable[Ref]) -> dict[Part, list[Ref]]:
    """Return addresses by the part in which their records lie."""
    found: dict[Part, list[Ref]] = {}
    for ref in refs:
        found.setdefault(part_of(ref), []).append(ref)
    return found
