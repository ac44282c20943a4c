"""Reads and checks a document server's records, as the running transaction sees them."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from memories.guard.validate import amount
from memories.stores.damage import Damaged
from memories.stores.documents.changes import Changes, by_part
from memories.stores.documents.driver import Condition, Driver, Kind, Partition, Point
from memories.stores.documents.schema import (
    PENDING,
    StoredRecord,
    conditions,
    decode,
    is_narrow,
    labels_of,
    record_id,
    record_ids,
    ref_of,
    window_ids,
)
from memories.stores.records import Filter, Finding, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A record's namespace and id. It replaces a `Ref` to save memory, because a server lists thousands
# of addresses for each record that is read.
Address = tuple[str, str]

_FIX = "run: memory doctor --fix"
_PAGE = 1_000


class Overlay:
    """A server's records, overlaid with a transaction's changes.

    Every record that the server returns is checked against the filter.
    """

    def __init__(self, driver: Driver, changes: Changes, damaged: Damaged) -> None:
        """Initialize; nothing is read yet.

        Args:
            driver: The server.
            changes: The changes of the running transaction; empty outside one.
            damaged: Receives damaged records.
        """
        self.driver = driver
        self.changes = changes
        self.damaged = damaged

    def addresses(self, where: Filter, *more: Condition) -> set[Address]:
        """Return the addresses of matching records.

        The server also applies the conditions in `more`; records of the overlay aren't checked
        against them.
        """
        addresses: set[Address] = set()
        for part in parts_of(where):
            names = self.driver.ids(part, [*conditions(where), *more])
            addresses.update((part.namespace, name) for name in names)
        if where.prefix and where.group:
            prefix = where.group
            addresses = {
                address for address in addresses if ref_at(where, address).group.startswith(prefix)
            }
        if not self.changes:
            return addresses
        matching = {address_of(record.ref) for record in self.changes.matching(where)}
        if more:
            matching &= addresses
        for record in self.changes.records():
            if record.ref.collection is where.collection:
                addresses.discard(address_of(record.ref))
        return addresses | matching

    def refs(self, where: Filter, *more: Condition) -> set[Ref]:
        """Return the refs of matching records; see `addresses`."""
        return {ref_at(where, address) for address in self.addresses(where, *more)}

    def refs_to_check(self, where: Filter) -> set[Ref]:
        """Return the refs of all matching records, and possibly of some that don't match.

        If most records match, listing all ids is faster than letting the server check each record.
        """
        if is_narrow(where):
            return self.refs(where)
        refs = {record.ref for record in self.changes.matching(where)}
        for part in parts_of(where):
            refs.update(ref_of(part, name) for name in self.driver.ids(part, []))
        return refs

    def matching(self, where: Filter) -> list[StoredRecord]:
        """Return all matching records, in no particular order."""
        points_by_part = [
            (part, self.driver.find(part, conditions(where))) for part in parts_of(where)
        ]
        return self._overlay(where, points_by_part)

    def matching_if_few(self, where: Filter, max_count: int) -> list[StoredRecord] | None:
        """Return all matching records; None if a partition has more than `max_count` of them."""
        points_by_part: list[tuple[Partition, list[Point]]] = []
        for part in parts_of(where):
            points = self.driver.find(part, conditions(where), limit=max_count + 1)
            if len(points) > max_count:
                return None
            points_by_part.append((part, points))
        return self._overlay(where, points_by_part)

    def _overlay(
        self, where: Filter, points_by_part: Iterable[tuple[Partition, list[Point]]]
    ) -> list[StoredRecord]:
        """Return the matching records among these points, as the transaction sees them."""
        records: list[StoredRecord] = []
        for part, points in points_by_part:
            decoded = decode(part, points, self.damaged)
            unchanged = [stored for stored in decoded if stored.ref not in self.changes]
            records += [stored for stored in unchanged if where.fits(stored.record)]
        return records + self.read(record.ref for record in self.changes.matching(where))

    def read(self, refs: Iterable[Ref]) -> list[StoredRecord]:
        """Return the records of these refs, in no particular order."""
        on_server: list[Ref] = []
        new: list[StoredRecord] = []
        for ref in dict.fromkeys(refs):
            if ref in self.changes.new:
                new.append(StoredRecord(self.changes.new[ref]._replace(vectors=None), {}))
            else:
                on_server.append(ref)
        records: list[StoredRecord] = []
        for part, part_refs in by_part(on_server).items():
            points = self.driver.get(part, record_ids(part_refs))
            for stored in decode(part, points, self.damaged):
                record = self.changes.patched.get(stored.ref, stored.record)
                records.append(stored._replace(record=record))
        return records + new

    def vectors(
        self, records: Iterable[StoredRecord], space: str
    ) -> "dict[Ref, NDArray[np.float32]]":
        """Return records' vectors in a space, shape (windows, dimension).

        Records without vectors are left out.
        """
        import numpy as np

        ids: dict[Ref, list[str]] = {}
        vectors: dict[Ref, NDArray[np.float32]] = {}
        for stored in records:
            ref = stored.ref
            new = self.changes.new.get(ref)
            if new is not None and new.vectors is not None:
                vectors[ref] = new.vectors
            elif space in stored.windows:
                ids[ref] = window_ids(ref, stored.windows[space])
        for part, refs in by_part(ids).items():
            names = list(itertools.chain.from_iterable(ids[ref] for ref in refs))
            windows = self.driver.vectors(part._replace(kind=Kind.VECTORS, space=space), names)
            for ref in refs:
                if windows.keys() >= set(ids[ref]):  # some are missing during a removal
                    vectors[ref] = np.stack([windows[name] for name in ids[ref]])
        return vectors


def parts_of(where: Filter) -> Sequence[Partition]:
    """Return the partitions with the records of a filter's namespaces."""
    namespaces = dict.fromkeys(where.namespaces)
    return [Partition(Kind.RECORDS, where.collection, namespace) for namespace in namespaces]


def address_of(ref: Ref) -> Address:
    """Return a ref's namespace and its record's id."""
    return ref.namespace, record_id(ref)


def ref_at(where: Filter, address: Address) -> Ref:
    """Return the ref of the record at an address, in a filter's collection."""
    return ref_of(Partition(Kind.RECORDS, where.collection, address[0]), address[1])


def check(view: Overlay, space: str) -> Iterator[Finding]:
    """Yield the store's problems; see `Store.check`.

    Args:
        view: Reads the server.
        space: The id of the space in use; empty if there is none.
    """
    driver, damaged = view.driver, Damaged(2**31)
    for part in _record_parts(driver):
        pending = len(driver.ids(part, [Condition("ended", "=", PENDING)]))
        if pending:
            problem = f"{pending} writes to namespace {part.namespace} were begun but not finished"
            yield Finding(
                problem, "unless another machine is still writing, the next write removes them"
            )
        records = _read_all(driver, part, damaged)
        unlisted = len(_unlisted_labels(driver, part, records))
        if unlisted:
            labels = amount(unlisted, "label is", "labels are")
            problem = f"{labels} missing from the list for namespace {part.namespace}"
            yield Finding(problem, _FIX, derived=True)
        lost = _count_lost_vectors(driver, part, records, space)
        if lost:
            count = amount(lost, "record", "records")
            problem = f"the vectors of {count} in namespace {part.namespace} are lost"
            yield Finding(
                problem, "run memory reembed with another model, then with this one again"
            )
    yield from damaged.since()


def repair(driver: Driver) -> list[str]:
    """Add missing labels to the list of labels; return a description of the repair."""
    count = 0
    for part in _record_parts(driver):
        labels = sorted(_unlisted_labels(driver, part, _read_all(driver, part, Damaged())))
        driver.add(part._replace(kind=Kind.LABELS), [Point(label, {}) for label in labels])
        count += len(labels)
    return [f"{count} labels that were missing from a namespace's list"] if count else []


def _record_parts(driver: Driver) -> list[Partition]:
    return [part for part in driver.parts() if part.kind is Kind.RECORDS]


def _read_all(driver: Driver, part: Partition, damaged: Damaged) -> list[StoredRecord]:
    ids = driver.ids(part, [])
    records: list[StoredRecord] = []
    for start in range(0, len(ids), _PAGE):
        records += decode(part, driver.get(part, ids[start : start + _PAGE]), damaged)
    return records


def _unlisted_labels(driver: Driver, part: Partition, records: list[StoredRecord]) -> set[str]:
    """Return the labels of these records that are missing from the partition's list of labels."""
    labels = set(itertools.chain.from_iterable(labels_of(stored.record) for stored in records))
    return labels.difference(driver.ids(part._replace(kind=Kind.LABELS), []))


def _count_lost_vectors(
    driver: Driver, part: Partition, records: list[StoredRecord], space: str
) -> int:
    with_vectors = [stored for stored in records if space in stored.windows]
    if not with_vectors:
        return 0
    ids = set(driver.ids(part._replace(kind=Kind.VECTORS, space=space), []))
    lost_count = 0
    for stored in with_vectors:
        if not ids.issuperset(window_ids(stored.ref, stored.windows[space])):
            lost_count += 1
    return lost_count
