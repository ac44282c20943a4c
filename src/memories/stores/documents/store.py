"""The store on a document server: complete records, transactions and searches, built on a
`Driver`.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memories.core.times import to_millis
from memories.errors import Conflict, StoreBusy, StoreError
from memories.stores.audit_log import CHAIN, chain_of, make_undone_entry, rechain
from memories.stores.damage import Damaged
from memories.stores.documents.changes import (
    Changes,
    Flush,
    WriterLock,
    by_part,
    check_free,
    check_keys,
    find_pending,
    writer_lock,
)
from memories.stores.documents.driver import Condition, Driver, Kind, Partition, Point
from memories.stores.documents.query import Overlay, check, repair
from memories.stores.documents.schema import (
    LIVE,
    StoredRecord,
    is_narrow,
    labels_of,
    pair_of,
    record_id,
    record_ids,
    window_ids,
)
from memories.stores.documents.spaces import SCHEMA, Spaces
from memories.stores.protocol import RefuseLost, treat_as_new, used_among
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Finding,
    Patch,
    Record,
    Ref,
    Space,
    StoreInfo,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.documents.search import PartitionEstimates, Search
    from memories.stores.records import Matches, TurnQuery

_DAY_MILLIS = 86_400_000
_PAGE = 1_000
_LOG_ATTEMPTS = 20
# How far after a known position the end of a chain is looked for.
_NEAR = (0, 1, 2)
_FAR = tuple(digit * 8**power for power in range(8) for digit in range(1, 8))


class Chains:
    """The chains of the audit log on a server.

    Entries are written in a separate step, before the changes that they describe. So every change
    is in the log, but a crash in between leaves an entry for a change that didn't happen. Writers
    on other machines may add to the same chain. If they do so first, our entries are renumbered and
    hashed again to follow theirs.
    """

    def __init__(self, driver: Driver) -> None:
        """Initialize; no request is sent yet."""
        self._driver = driver
        self._reached: dict[str, int] = {}  # a known position in each namespace's chain

    def last(self, namespace: str, view: Overlay) -> list[Record]:
        """Return the last entry of a chain, or an empty list for an empty chain.

        A server can't return the highest position. But a chain has no gaps, so this reads some
        positions after the last known one, first nearby and then further away.
        """
        first = Ref(Collection.LOG, namespace, CHAIN, 0)
        reached, steps = self._reached.get(namespace, 0), _NEAR
        while True:
            if reached == 0:
                steps = _FAR
            positions = [reached + step for step in steps]
            refs = [first._replace(position=position) for position in positions]
            entries = {entry.record.ref.position: entry.record for entry in view.read(refs)}
            top = max(entries, default=0)
            if top and top + 1 in positions:
                self._reached[namespace] = top
                return [entries[top]]
            if not top and not reached:
                return []
            reached, steps = top, (0, *_FAR)

    def write(
        self, entries: Sequence[Record], lock: WriterLock, begin: Callable[[], object]
    ) -> list[Record]:
        """Add entries to their chains; return them with their final numbers and hashes.

        Raises:
            StoreBusy: Other writers kept adding entries.
        """
        written: list[Record] = []
        for part, refs in by_part(entry.ref for entry in entries).items():
            begin()
            part_entries = [entry for entry in entries if entry.ref in refs]
            written += self._write_part(part, part_entries, lock)
        return written

    def _write_part(self, part: Partition, entries: list[Record], lock: WriterLock) -> list[Record]:
        for _ in range(_LOG_ATTEMPTS):
            changes = Changes({entry.ref: entry for entry in entries})
            try:
                Flush(self._driver, changes, lock, None).run()
            except Conflict:
                with contextlib.suppress(Conflict):  # removes entries that a crash left pending
                    check_free(self._driver, entries, Changes(), lock)
                last = self.last(part.namespace, Overlay(self._driver, Changes(), Damaged()))
                entries = rechain(entries, last)
            else:
                self._reached[part.namespace] = entries[-1].ref.position
                return entries
        raise StoreBusy(
            f"other writers kept writing to the log of {part.namespace}; "
            "nothing was written; try again"
        )


class DocumentStore:
    """Implements `Store` on a server that stores documents and vectors, but has no transactions.

    Such a server can't guarantee everything that `Store` requires. The limits are:

    - A transaction's changes are buffered in this process until the transaction ends; only its own
      reads see them. A file lock excludes the user's other writers on the same machine, but not
      writers on other machines. If two machines write the same position or key at the same time,
      one or both get `Conflict`, and no acknowledged write is lost. But a machine may change a
      record that a transaction on another machine has read, and if two patches change the same
      field, the last one wins. `Memories` protects a memory that it has read by appending the
      memory's next version, whose position only one writer can take.
    - The changes of a transaction become visible in one step if they are in one namespace of one
      collection and fit into one request (`Driver.max_batch`). Otherwise readers may see a part of
      them for a moment, or permanently after a crash between two requests. `Memories` writes to one
      namespace at a time.
    - If another machine dies while writing a record, the record's position is blocked until a
      minute after this machine first sees the unfinished write.
    - `remove` hides records from every read. Its result says where the server may keep their bytes
      until it rewrites its files.
    - The rarity of words and the average length of texts are estimated from a sample of all records
      in the namespaces that are read, including ended ones. If very many records contain any of the
      terms, only those with the rarest terms are ranked. With more than 2,000 records, a word that
      a fifth of them contain is not searched for, unless the query has no rarer words.
    - `scan` and `groups` list the ids of all matching records before they read a page, which takes
      a few milliseconds for a thousand records.
    """

    def __init__(
        self, driver: Driver, space: Space | None, refuse_lost: RefuseLost = treat_as_new
    ) -> None:
        """Initialize; no request is sent yet.

        Args:
            driver: Talks to the server.
            space: The space of the vectors to write and search; None in keyword-only mode.
            refuse_lost: Called before a server without the store is treated as new.
        """
        self._driver = driver
        self._refuse_lost = refuse_lost
        self.damaged = Damaged()
        self._spaces = Spaces(driver, space, self.damaged, refuse_lost)
        self._local = threading.local()
        self._samples: dict[Partition, PartitionEstimates] = {}
        self._chains = Chains(driver)

    @property
    def _changes(self) -> Changes | None:
        return getattr(self._local, "changes", None)

    @property
    def _view(self) -> Overlay:
        if not self._spaces.was_read:
            self._spaces.state()
        return Overlay(self._driver, self._changes or Changes(), self.damaged)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`; the docstring of this class lists what isn't guaranteed."""
        outer = self._changes
        if outer is not None:
            self._local.changes = outer.copy()
            try:
                yield
            except BaseException:
                self._local.changes = outer
                raise
            return
        with writer_lock(self._driver.url) as lock:
            self._local.changes = Changes()
            self._local.lock = lock
            try:
                yield
                self._flush(self._local.changes)
            finally:
                self._local.changes = None

    def _flush(self, changes: Changes) -> None:
        entries = [changes.new.pop(ref) for ref in list(changes.new) if ref.group == CHAIN]
        written = self._write_log(entries) if entries else []
        try:
            self._flush_records(changes)
        except Conflict:
            self._write_log([make_undone_entry(entry) for entry in written])
            raise

    def _write_log(self, entries: Sequence[Record]) -> list[Record]:
        return self._chains.write(entries, self._local.lock, self._spaces.begin)

    def _flush_records(self, changes: Changes) -> None:
        if not changes:
            return
        space_id = None
        if any(record.vectors is not None for record in changes.new.values()):
            space_id = self._spaces.ensure_space()
        elif changes.new:
            self._spaces.begin()
        Flush(self._driver, changes, self._local.lock, space_id).run()

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        if not records:
            return
        with self.transaction():
            changes: Changes = self._local.changes
            if any(record.vectors is not None for record in records):
                self._spaces.check()
            checked = [record for record in records if record.ref.group != CHAIN]
            check_free(self._driver, checked, changes, self._local.lock)
            for record in records:
                changes.new[record.ref] = record

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        if not patches:
            return
        with self.transaction():
            changes: Changes = self._local.changes
            read = self.read([patch.ref for patch in patches])
            records = {record.ref: record for record in read}
            for patch in patches:
                if patch.ref in records:
                    changes.patch(records[patch.ref], patch)
                    records[patch.ref] = changes.get(patch.ref) or records[patch.ref]
            ended = [record.ref for record in read if record.ended_at is not None]
            revived = [records[ref] for ref in ended if records[ref].ended_at is None]
            check_keys(self._driver, revived, changes, self._local.lock)

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:  # noqa: ARG002 - not needed here
        """See `Store.touch`; two simultaneous accesses may count as one."""
        counts = Counter(refs)
        records = self.read(list(counts))
        if self._changes is not None:
            for record in records:
                self._changes.touch(record, counts[record.ref])
            return True
        accesses = {record.ref: record.accesses + counts[record.ref] for record in records}
        for part, part_refs in by_part(accesses).items():
            updates = {record_id(ref): {"accesses": accesses[ref]} for ref in part_refs}
            self._driver.update(part, updates)
        return True

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        return used_among(self, where)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`; the result also says which bytes only the server can erase."""
        if self._changes is not None:
            raise StoreError(
                "permanent removal can't be undone, so it can't be part of a transaction"
            )
        in_progress: list[str] = []
        with self.transaction():
            for part, part_refs in by_part(refs).items():
                dead, alive = find_pending(self._driver, part, part_refs, self._local.lock)
                in_progress += [
                    f"version {stored.ref.position} of {stored.ref.group}, which another machine "
                    "is writing; remove it in a minute"
                    for stored in alive
                ]
                records = self._view.read(part_refs) + dead
                # Vectors first: after an interruption, the records still list those that are left.
                self._delete_vectors(part, records)
                read = {stored.ref for stored in records + alive}
                self._delete_unreadable(part, set(part_refs) - read)
                self._driver.delete(part, record_ids(stored.ref for stored in records))
                labels: set[str] = set()
                for stored in records:
                    labels |= labels_of(stored.record)
                self._delete_unused_labels(part, labels)
        self.damaged.remove(set(refs).__contains__)
        return (*self._driver.remains, *in_progress)

    def _delete_vectors(self, part: Partition, records: Sequence[StoredRecord]) -> None:
        ids_by_space: dict[str, list[str]] = {}
        for stored in records:
            for space, windows in stored.windows.items():
                ids_by_space.setdefault(space, []).extend(window_ids(stored.ref, windows))
        for space, ids in ids_by_space.items():
            self._driver.delete(part._replace(kind=Kind.VECTORS, space=space), ids)

    def _delete_unreadable(self, part: Partition, refs: set[Ref]) -> None:
        """Remove unreadable records and their vectors, which are found by the records' ids."""
        points = self._driver.get(part, sorted(record_ids(refs)))
        ids = {point.id for point in points}
        if not ids:
            return
        for other in self._driver.parts():
            if other.kind is Kind.VECTORS and other[1:3] == part[1:3]:
                names = self._driver.ids(other, [])
                windows = [name for name in names if name.split("/", 2)[-1] in ids]
                self._driver.delete(other, windows)
        self._driver.delete(part, sorted(ids))

    def _delete_unused_labels(self, part: Partition, labels: Iterable[str]) -> None:
        """Remove labels that no record uses.

        This is safe, because a writer on another machine adds its labels both before and after its
        record.
        """
        unused = [label for label in labels if not self._is_used(part, label)]
        if not unused:
            return
        labels_part = part._replace(kind=Kind.LABELS)
        self._driver.delete(labels_part, unused)
        # Another writer may have seen a label before it was removed, and used it in a new record.
        used = sorted(label for label in unused if self._is_used(part, label))
        if used:
            self._driver.add(labels_part, [Point(label, {}) for label in used])

    def _is_used(self, part: Partition, label: str) -> bool:
        return bool(self._driver.find(part, [Condition("labels", "has", label)], limit=1))

    def scan(
        self,
        where: Filter,
        *,
        limit: int,
        after: tuple[str, int] | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """See `Store.scan`."""
        view = self._view
        if limit == 1 and newest_first and after is None and where == chain_of(where.namespaces[0]):
            return self._chains.last(where.namespaces[0], view)
        if where.key is not None:  # few records have the same key, so all of them are read
            matching = {stored.ref: stored.record for stored in view.matching(where)}
            return [matching[ref] for ref in _order(matching, after, newest_first)][:limit]
        refs = view.refs_to_check(where)
        if not refs and not is_narrow(where):
            self._spaces.state()  # raises an error if the store was lost while it was open
        ordered = _order(refs, after, newest_first)
        records: list[Record] = []
        page_size = max(1, min(_PAGE, limit))
        for start in range(0, len(ordered), page_size):
            if len(records) >= limit:
                break
            page = ordered[start : start + page_size]
            by_ref = {stored.ref: stored.record for stored in view.read(page)}
            in_order = [by_ref[ref] for ref in page if ref in by_ref]
            records += filter(where.fits, in_order)
        return records[:limit]

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        groups = {(ref.group, ref.namespace) for ref in self._view.refs(where)}
        return [(namespace, group) for group, namespace in sorted(groups)[:limit]]

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        return sorted(self._view.refs(where))

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return [stored.record for stored in self._view.read(refs)]

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        pairs: list[tuple[str, str]] = []
        for namespace in dict.fromkeys(namespaces):
            pairs += map(
                pair_of, self._driver.ids(Partition(Kind.LABELS, collection, namespace), [])
            )
        where = Filter(collection, tuple(namespaces), state="any")
        for record in self._view.changes.matching(where):
            pairs += record.labels.items()
        return sorted({value for name, value in pairs if name == key})

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        total = len(self._view.addresses(where))
        return total if at_most is None else min(total, at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        counts: Counter[str] = Counter()
        for stored in self._view.matching(where):
            labels = stored.record.labels
            if key is None:
                counts.update(labels.keys())
            elif key in labels:
                counts[labels[key]] += 1
        return dict(sorted(counts.items()))

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        counts: Counter[int] = Counter()
        for stored in self._view.matching(where):
            counts[to_millis(stored.record.created_at) // _DAY_MILLIS] += 1
        return dict(sorted(counts.items()))

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        return self._search(where, vector).candidates(terms, k)

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        return self._search(where, query.vector).matches(query)

    def _search(self, where: Filter, vector: "NDArray[np.float32] | None") -> "Search":
        from memories.stores.documents.search import Search

        space = None if vector is None else self._spaces.find_searched()
        return Search(self._view, where, vector, space, self._samples)

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`; the size on the server's disk is unknown."""
        view, state = self._view, self._spaces.state()
        without = view.refs(where)
        if without and "space" in state:
            without -= view.refs(where, Condition("spaces", "has", state["space"]))
        for ref, record in view.changes.new.items():
            if record.vectors is not None:
                without.discard(ref)
        return StoreInfo(
            url=self._driver.url,
            schema_version=SCHEMA if state else None,
            model=state.get("model"),
            dimension=int(state["dimension"]) if "dimension" in state else None,
            size_bytes=None,
            without_vector_count=len(without),
            erasing=False,
            collection=self._driver.collection,
        )

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        exists = [Condition("ended", "<=", LIVE)]
        namespaces: set[str] = set()
        for part in self._driver.parts():
            if part.kind is not Kind.RECORDS or part.collection is not collection:
                continue
            if self._driver.find(part, exists, limit=1):
                namespaces.add(part.namespace)
        for ref in self._view.changes.new:
            if ref.collection is collection:
                namespaces.add(ref.namespace)
        return sorted(namespaces)

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        view = self._view
        return view.vectors(view.read(refs), self._spaces.state().get("space", ""))

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`; records of the running transaction are not included."""
        return self._spaces.unstaged(space, collection, limit)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`. A transaction that fails does not undo it."""
        with self.transaction():
            self._refuse_unwritten()
            self._spaces.stage(space, vectors)

    def switch(self, space: Space) -> None:
        """See `Store.switch`. A transaction that fails does not undo it."""
        with self.transaction():
            self._refuse_unwritten()
            self._spaces.switch(space)

    def use_space(self, space: Space) -> None:
        """See `Store.use_space`."""
        self._spaces = Spaces(self._driver, space, self.damaged, self._refuse_lost)

    def _refuse_unwritten(self) -> None:
        if self._changes:
            raise StoreError(
                "vectors can't be staged in a transaction that has written records; end it first"
            )

    def check(self, *, deep: bool) -> list[Finding]:
        """See `Store.check`; without `deep`, this checks only that the server responds."""
        state = self._spaces.state()
        return list(check(self._view, state.get("space", ""))) if deep else []

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        with self.transaction():
            return repair(self._driver)

    def close(self) -> None:
        """See `Store.close`."""
        self._driver.close()


def _order(refs: Iterable[Ref], after: tuple[str, int] | None, newest_first: bool) -> list[Ref]:
    """Return the refs that follow `after`, or all refs, in scan order."""
    ordered = sorted(
        refs, key=lambda ref: (ref.group, ref.position, ref.namespace), reverse=newest_first
    )
    if after is None:
        return ordered
    if newest_first:
        return [ref for ref in ordered if (ref.group, ref.position) < after]
    return [ref for ref in ordered if (ref.group, ref.position) > after]
