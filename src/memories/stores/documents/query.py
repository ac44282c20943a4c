"""How the records of a document server are read: as the running transaction sees them, if there is one."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memories.stores.documents.changes import Changes, by_part
from memories.stores.documents.driver import Condition, Driver, Kind, Part, Point
from memories.stores.documents.schema import Stored, conditions, decode, is_narrow, means, record_id, ref_of, window_ids
from memories.stores.records import Filter, Record, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Place = tuple[str, str]  # namespace and id: thousands of them are handled for each record that is read


class View:
    """Records of a server with the changes of a transaction laid over them; every answer is checked by the filter."""

    def __init__(self, driver: Driver, changes: Changes) -> None:
        """Prepare.

        Args:
            driver: The server.
            changes: What the running transaction is going to change; empty outside of one.
        """
        self.driver = driver
        self.changes = changes

    def places(self, where: Filter, *more: Condition) -> set[Place]:
        """Return the places of what a filter means; further conditions hold for nothing laid over."""
        found: set[Place] = set()
        for part in parts_of(where):
            found |= {(part.namespace, name) for name in self.driver.ids(part, [*conditions(where), *more])}
        if where.prefix and where.group:
            found = {place for place in found if ref_at(where, place).group.startswith(where.group)}
        if not self.changes:
            return found
        meant = {place_of(record.ref) for record in self.changes.meant(where)}
        laid = {place_of(record.ref) for record in self.changes.records() if record.ref.collection is where.collection}
        return (found - laid) | (meant & found if more else meant)

    def refs(self, where: Filter, *more: Condition) -> set[Ref]:
        """Return the addresses of what a filter means; further conditions hold for nothing laid over."""
        return {ref_at(where, place) for place in self.places(where, *more)}

    def around(self, where: Filter) -> set[Ref]:
        """Return addresses among which are all that a filter means, for those who look at the records as well.

        That a record is live is true of most, and a condition that most fulfil takes a server longer than all ids.
        """
        if is_narrow(where):
            return self.refs(where)
        found = {ref_of(part, name) for part in parts_of(where) for name in self.driver.ids(part, [])}
        return found | {record.ref for record in self.changes.meant(where)}

    def meant(self, where: Filter) -> list[Stored]:
        """Return all that a filter means, in no order."""
        return self._laid_over(where, [(part, self.driver.find(part, conditions(where))) for part in parts_of(where)])

    def few(self, where: Filter, most: int) -> list[Stored] | None:
        """Return all that a filter means, if no part has more than so many of them; else None."""
        found: list[tuple[Part, list[Point]]] = []
        for part in parts_of(where):
            found.append((part, self.driver.find(part, conditions(where), limit=most + 1)))
            if len(found[-1][1]) > most:
                return None
        return self._laid_over(where, found)

    def _laid_over(self, where: Filter, points: Iterable[tuple[Part, list[Point]]]) -> list[Stored]:
        decoded = (decode(part, point) for part, own in points for point in own)
        found = [stored for stored in decoded if stored is not None and stored.record.ref not in self.changes]
        found = [stored for stored in found if means(where, stored.record)]
        return found + self.stored(record.ref for record in self.changes.meant(where))

    def stored(self, refs: Iterable[Ref]) -> list[Stored]:
        """Return the records at these addresses, in no order."""
        refs = list(dict.fromkeys(refs))
        found: list[Stored] = []
        for part, own in by_part(ref for ref in refs if ref not in self.changes.new).items():
            points = self.driver.get(part, [record_id(ref) for ref in own])
            for stored in (decode(part, point) for point in points):
                if stored is not None:
                    laid = self.changes.patched.get(stored.record.ref, stored.record)
                    found.append(stored._replace(record=laid))
        new = [self.changes.known(ref) for ref in refs if ref in self.changes.new]
        laid_over = [Stored(record, "", {}) for record in new if record]
        return found + laid_over

    def sample(self, part: Part, size: int) -> list[Stored]:
        """Return some records of a part, of those that the server has, the same ones each time."""
        found = (decode(part, point) for point in self.driver.find(part, [], limit=size))
        return [stored for stored in found if stored is not None]

    def records(self, refs: Iterable[Ref]) -> list[Record]:
        """Return the records at these addresses, in no order."""
        return [stored.record for stored in self.stored(refs)]

    def vectors(self, found: Iterable[Stored], space: str) -> "dict[Ref, NDArray[np.float32]]":
        """Return the vectors of records in a space, shape (windows, dimension); what has none is left out."""
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
                if all(name in read for name in ids[ref]):  # or it is being removed
                    vectors[ref] = np.stack([read[name] for name in ids[ref]])
        return vectors


def parts_of(where: Filter) -> Sequence[Part]:
    """Return the parts of the records that a filter may mean."""
    return [Part(Kind.RECORDS, where.collection, namespace) for namespace in dict.fromkeys(where.namespaces)]


def place_of(ref: Ref) -> Place:
    """Return the place of a record."""
    return ref.namespace, record_id(ref)


def ref_at(where: Filter, place: Place) -> Ref:
    """Return the address that a place stands for, in the collection of a filter."""
    return ref_of(Part(Kind.RECORDS, where.collection, place[0]), place[1])
