"""Reading and checking records of a document server, as the running transaction sees them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from memories.stores.damage import Damaged
from memories.stores.documents.changes import Changes, by_part
from memories.stores.documents.driver import Condition, Driver, Kind, Part, Point
from memories.stores.documents.schema import (
    PENDING,
    Stored,
    conditions,
    decode,
    is_narrow,
    label_of,
    record_id,
    ref_of,
    window_ids,
)
from memories.stores.records import Filter, Finding, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Place = tuple[
    str, str
]  # namespace and id: thousands of them are handled for each record that is read


class View:
    """The records of a server overlaid with the changes of a transaction; every answer is checked
    by the filter.
    """

    def __init__(self, driver: Driver, changes: Changes, damaged: Damaged) -> None:
        """Prepare.

        Args:
            driver: The server.
            changes: What the running transaction is going to change; empty outside of one.
            damaged: Takes records that are not what was written.
        """
        self.driver = driver
        self.changes = changes
        self.damaged = damaged

    def places(self, where: Filter, *more: Condition) -> set[Place]:
        """Return the places of matching records; further conditions are not checked on the
        overlay.
        """
        found: set[Place] = set()
        for part in parts_of(where):
            found |= {
                (part.namespace, name)
                for name in self.driver.ids(part, [*conditions(where), *more])
            }
        if where.prefix and where.group:
            found = {place for place in found if ref_at(where, place).group.startswith(where.group)}
        if not self.changes:
            return found
        matching = {place_of(record.ref) for record in self.changes.matching(where)}
        changed = {
            place_of(record.ref)
            for record in self.changes.records()
            if record.ref.collection is where.collection
        }
        return (found - changed) | (matching & found if more else matching)

    def refs(self, where: Filter, *more: Condition) -> set[Ref]:
        """Return the refs of matching records; further conditions are not checked on the
        overlay.
        """
        return {ref_at(where, place) for place in self.places(where, *more)}

    def around(self, where: Filter) -> set[Ref]:
        """Return refs that include all matching records, for callers who check the records as well.

        Most records are live, and a condition that most fulfil takes a server longer than listing
        all ids.
        """
        if is_narrow(where):
            return self.refs(where)
        refs = {
            ref_of(part, name) for part in parts_of(where) for name in self.driver.ids(part, [])
        }
        return refs | {record.ref for record in self.changes.matching(where)}

    def matching(self, where: Filter) -> list[Stored]:
        """Return all matching records, in no particular order."""
        return self._overlaid(
            where, [(part, self.driver.find(part, conditions(where))) for part in parts_of(where)]
        )

    def few(self, where: Filter, most: int) -> list[Stored] | None:
        """Return all matching records; None if a part has more than `most` of them."""
        found: list[tuple[Part, list[Point]]] = []
        for part in parts_of(where):
            found.append((part, self.driver.find(part, conditions(where), limit=most + 1)))
            if len(found[-1][1]) > most:
                return None
        return self._overlaid(where, found)

    def _overlaid(self, where: Filter, points: Iterable[tuple[Part, list[Point]]]) -> list[Stored]:
        found = [stored for part, own in points for stored in decode(part, own, self.damaged)]
        unchanged = [
            each
            for each in found
            if each.record.ref not in self.changes and where.fits(each.record)
        ]
        return unchanged + self.stored(record.ref for record in self.changes.matching(where))

    def stored(self, refs: Iterable[Ref]) -> list[Stored]:
        """Return the records of these refs, in no particular order."""
        refs = list(dict.fromkeys(refs))
        found: list[Stored] = []
        for part, own in by_part(ref for ref in refs if ref not in self.changes.new).items():
            points = self.driver.get(part, [record_id(ref) for ref in own])
            for stored in decode(part, points, self.damaged):
                changed = self.changes.patched.get(stored.record.ref, stored.record)
                found.append(stored._replace(record=changed))
        new = [self.changes.known(ref) for ref in refs if ref in self.changes.new]
        return found + [Stored(record, {}) for record in new if record]

    def vectors(self, found: Iterable[Stored], space: str) -> "dict[Ref, NDArray[np.float32]]":
        """Return vectors of records in a space, shape (windows, dimension); records without any are
        left out.
        """
        import numpy as np

        ids: dict[Ref, list[str]] = {}
        vectors: dict[Ref, NDArray[np.float32]] = {}
        for stored in found:
            ref = stored.record.ref
            new = self.changes.new.get(ref)
            if new is not None and new.vectors is not None:
                vectors[ref] = new.vectors
            elif space in stored.windows:
                ids[ref] = window_ids(ref, stored.windows[space])
        for part, own in by_part(ids).items():
            names = [name for ref in own for name in ids[ref]]
            read = self.driver.vectors(part._replace(kind=Kind.VECTORS, space=space), names)
            for ref in own:
                if all(name in read for name in ids[ref]):  # else it is being removed
                    vectors[ref] = np.stack([read[name] for name in ids[ref]])
        return vectors


def parts_of(where: Filter) -> Sequence[Part]:
    """Return the parts of the records that a filter may match."""
    return [
        Part(Kind.RECORDS, where.collection, namespace)
        for namespace in dict.fromkeys(where.namespaces)
    ]


def place_of(ref: Ref) -> Place:
    """Return the place of a record."""
    return ref.namespace, record_id(ref)


def ref_at(where: Filter, place: Place) -> Ref:
    """Return the ref of the record at a place, in the collection of a filter."""
    return ref_of(Part(Kind.RECORDS, where.collection, place[0]), place[1])


_FIX = "run: memory doctor --fix"
_PAGE = 1_000  # records that are read at once


def check(view: View, space: str) -> Iterator[Finding]:
    """Yield problems; see `Store.check`.

    Args:
        view: Reads the server.
        space: The id of the space in use; empty if there is none.
    """
    driver, damaged = view.driver, Damaged(2**31)
    for part in (part for part in driver.parts() if part.kind is Kind.RECORDS):
        left = len(driver.ids(part, [Condition("ended", "=", PENDING)]))
        if left:
            what = f"{left} records of namespace {part.namespace} were begun and not finished"
            yield Finding(
                what, "if no other machine is writing, the next write to them removes them"
            )
        found = [stored for page in _pages(driver, part) for stored in decode(part, page, damaged)]
        missing = len(_missing_labels(driver, part, found))
        if missing:
            yield Finding(
                f"{missing} labels of namespace {part.namespace} are not listed", _FIX, derived=True
            )
        lost = _without_windows(driver, part, found, space)
        if lost:
            what = f"{lost} records of namespace {part.namespace} have lost vectors"
            yield Finding(what, "run: memory reembed, with another model and back")
    yield from damaged.since()


def repair(driver: Driver) -> list[str]:
    """Add unlisted labels; return a description of the repair."""
    added = 0
    for part in (part for part in driver.parts() if part.kind is Kind.RECORDS):
        found = [
            stored for page in _pages(driver, part) for stored in decode(part, page, Damaged())
        ]
        labels = sorted(_missing_labels(driver, part, found))
        driver.add(part._replace(kind=Kind.LABELS), [Point(label, {}) for label in labels])
        added += len(labels)
    return [f"{added} labels that were not listed"] if added else []


def _pages(driver: Driver, part: Part) -> Iterator[list[Point]]:
    ids = driver.ids(part, [])
    for start in range(0, len(ids), _PAGE):
        yield driver.get(part, ids[start : start + _PAGE])


def _missing_labels(driver: Driver, part: Part, found: list[Stored]) -> set[str]:
    """Return labels that records have and that the list of labels does not."""
    labels = {label_of(*pair) for stored in found for pair in stored.record.labels.items()}
    return labels.difference(driver.ids(part._replace(kind=Kind.LABELS), []))


def _without_windows(driver: Driver, part: Part, found: list[Stored], space: str) -> int:
    """Return how many records name vectors that are not there."""
    named = {
        stored.record.ref: stored.windows[space] for stored in found if space in stored.windows
    }
    there = set(driver.ids(part._replace(kind=Kind.VECTORS, space=space), [])) if named else set()
    return sum(not there.issuperset(window_ids(ref, windows)) for ref, windows in named.items())
