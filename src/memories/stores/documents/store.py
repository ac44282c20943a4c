"""The store on a document server: whole records, transactions and searches, built on a `Driver`."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memories.core.times import to_millis
from memories.errors import Conflict, StoreBusy, StoreError
from memories.stores.chain import CHAIN, chain_of, make_undone_entry, relink
from memories.stores.damage import Damaged
from memories.stores.documents.changes import (
    Changes,
    Flush,
    WriterLock,
    by_part,
    check_free,
    check_keys,
    unfinished,
    writer_lock,
)
from memories.stores.documents.driver import Condition, Driver, Kind, Part, Point
from memories.stores.documents.query import View, check, repair
from memories.stores.documents.schema import LIVE, label_of, pair_of, record_id, window_ids
from memories.stores.documents.spaces import SCHEMA, Spaces
from memories.stores.protocol import used_among
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

    from memories.stores.documents.search import Sample, Search
    from memories.stores.records import Matches, TurnQuery

_ATTEMPTS = 20
_NEAR = (0, 1, 2)
_FAR = tuple(digit * 8**power for power in range(8) for digit in range(1, 8))


class Chains:
    """The chains of a server.

    Entries are written before what they tell, in a step of their own: so what was done is in the
    log, though a crash in between leaves an entry for what was not. Writers on other machines may
    add to the same chain: then an entry that comes too late follows theirs, with a hash of its own.
    """

    def __init__(self, driver: Driver) -> None:
        """Prepare; no request is sent."""
        self._driver = driver
        self._known: dict[str, int] = {}  # a position that the chain of a namespace has reached

    def last(self, namespace: str, view: View) -> list[Record]:
        """Return the last entry of a chain, if it has one.

        A server can only list all ids of a chain. Since a chain has no gaps, some positions are
        tried instead: those beside the last one known, else ever closer ones.
        """
        first = Ref(Collection.LOG, namespace, CHAIN, 0)
        known, steps = self._known.get(namespace, 0), _NEAR
        while True:
            if known == 0:
                steps = _FAR
            tried = [known + step for step in steps]
            stored = view.stored(first._replace(position=position) for position in tried)
            found = {each.record.ref.position: each.record for each in stored}
            top = max(found, default=0)
            if top and top + 1 in tried:
                self._known[namespace] = top
                return [found[top]]
            if not top and not known:
                return []
            known, steps = top, (0, *_FAR)

    def write(
        self, entries: Sequence[Record], lock: WriterLock, begin: Callable[[], object]
    ) -> list[Record]:
        """Add entries to their chains; return them as they were written.

        Raises:
            StoreBusy: Others kept adding.
        """
        written: list[Record] = []
        for part, refs in by_part(entry.ref for entry in entries).items():
            own = [entry for entry in entries if entry.ref in refs]
            begin()
            for _ in range(_ATTEMPTS):
                try:
                    Flush(
                        self._driver, Changes({entry.ref: entry for entry in own}), lock, None
                    ).run()
                    break
                except Conflict:
                    with contextlib.suppress(Conflict):
                        check_free(
                            self._driver, own, Changes(), lock
                        )  # takes out what a dead writer has left
                    own = relink(
                        own, self.last(part.namespace, View(self._driver, Changes(), Damaged()))
                    )
            else:
                raise StoreBusy(
                    f"others kept writing to the log of {part.namespace}; nothing was written; try again"
                )
            self._known[part.namespace] = own[-1].ref.position
            written += own
        return written


_PAGE = 1_000  # records in one request


class RemoteStore:
    """Implements `Store` on a server that keeps documents with payloads and vectors, and has no
    transactions.

    What it can't guarantee, and what repairs it:

    - Transactions are buffered here as an overlay on what is read inside them, and written when
      they end. Writers of one user on one machine exclude each other by a lock on a file. Those of
      different machines do not: of two that write one position or one key at once, one gets
      `Conflict`, or both, and no acknowledged write is lost by it. But another machine may change
      what a transaction has read before it ends, and of two patches of one field the last one wins.
      The service protects what it read by appending the next version, whose position only one can
      take.
    - The changes of a transaction become visible in one step if they lie in one namespace of one
      collection and fit into one request (`Driver.max_batch`). Otherwise readers may see a part of
      them for a moment, and a crash between two requests may leave it so; `Memories` writes to one
      namespace at a time.
    - What another machine was writing when it died is in the way for a minute after this one has
      first seen it.
    - `remove` hides records from every read; the server may keep their bytes until it rewrites its
      files, which the result says.
    - Words: how rare a term is, and how long a text, is computed from all records of the namespaces
      that are read, including ended ones. Of very many records that have a term those with the
      rarest terms are ranked, and among more than 2,000 a word that a fifth of them has is not
      searched for beside rarer ones.
    - `scan` and `groups` list the ids of all matching records before a page is read: some ms for a
      thousand.
    """

    def __init__(self, driver: Driver, space: Space | None) -> None:
        """Prepare; no request is sent yet.

        Args:
            driver: Talks to the server.
            space: The space of the vectors to write and search; None in keyword-only mode.
        """
        self._driver = driver
        self.damaged = Damaged()
        self._spaces = Spaces(driver, space, self.damaged)
        self._local = threading.local()
        self._samples: dict[Part, Sample] = {}
        self._chains = Chains(driver)

    # --- writing
    # ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`; the class says what can't be guaranteed."""
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
        written = (
            self._chains.write(entries, self._local.lock, self._spaces.begin) if entries else []
        )
        try:
            self._flush_records(changes)
        except Conflict:
            self._chains.write(
                [make_undone_entry(entry) for entry in written],
                self._local.lock,
                self._spaces.begin,
            )
            raise

    def _flush_records(self, changes: Changes) -> None:
        if not changes:
            return
        space_id = None
        if any(record.vectors is not None for record in changes.new.values()):
            space_id = self._spaces.claim()
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
            check_free(
                self._driver,
                [each for each in records if each.ref.group != CHAIN],
                changes,
                self._local.lock,
            )
            changes.new |= {record.ref: record for record in records}

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        if not patches:
            return
        with self.transaction():
            changes: Changes = self._local.changes
            known = {record.ref: record for record in self.read([patch.ref for patch in patches])}
            ended = {ref for ref, record in known.items() if record.ended_at is not None}
            for patch in patches:
                if patch.ref in known:
                    changes.patch(known[patch.ref], patch)
                    known[patch.ref] = changes.known(patch.ref) or known[patch.ref]
            revived = [known[ref] for ref in ended if known[ref].ended_at is None]
            check_keys(self._driver, revived, changes, self._local.lock)

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:  # noqa: ARG002 - it keeps no names of batches
        """See `Store.touch`; two accesses at the same moment may count as one."""
        counts = Counter(refs)
        records = self.read(list(counts))
        if self._changes is not None:
            for record in records:
                self._changes.touch(record, counts[record.ref])
            return True
        accesses = {record.ref: record.accesses + counts[record.ref] for record in records}
        for part, own in by_part(accesses).items():
            self._driver.update(part, {record_id(ref): {"accesses": accesses[ref]} for ref in own})
        return True

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        return used_among(self.scan, where)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`; the result also names what only the server can erase."""
        if self._changes is not None:
            raise StoreError(
                "removing for good can't be undone and so can't be part of a transaction"
            )
        remains: list[str] = []
        with self.transaction():
            for part, own in by_part(refs).items():
                dead, alive = unfinished(self._driver, part, own, self._local.lock)
                remains += [
                    f"version {ref.position} of {ref.group}, which another machine is writing; remove it in a minute"
                    for ref in (stored.record.ref for stored in alive)
                ]
                found = self._view.stored(own) + dead
                # Vectors first: of a record that is still there, a second call finds what a first
                # one has left.
                for space in {space for stored in found for space in stored.windows}:
                    windows = [(stored.record.ref, stored.windows.get(space)) for stored in found]
                    names = [
                        name for ref, some in windows if some for name in window_ids(ref, some)
                    ]
                    self._driver.delete(part._replace(kind=Kind.VECTORS, space=space), names)
                damaged = set(own).difference(stored.record.ref for stored in found + alive)
                self._delete_unread(part, damaged)
                self._driver.delete(part, [record_id(stored.record.ref) for stored in found])
                self._forget_labels(
                    part, {label_of(*pair) for each in found for pair in each.record.labels.items()}
                )
        self.damaged.forget(set(refs).__contains__)
        return (*self._driver.remains, *remains)

    def _delete_unread(self, part: Part, refs: set[Ref]) -> None:
        """Remove unreadable records, and their vectors by the record's name in their ids."""
        names = {record_id(ref) for ref in refs}
        there = {point.id for point in self._driver.get(part, sorted(names))}
        for other in self._driver.parts() if there else ():
            if other.kind is Kind.VECTORS and other[1:3] == part[1:3]:
                windows = [
                    name for name in self._driver.ids(other, []) if name.split("/", 2)[-1] in there
                ]
                self._driver.delete(other, windows)
        self._driver.delete(part, sorted(there))

    def _forget_labels(self, part: Part, labels: Iterable[str]) -> None:
        """Remove labels that no record has; a writer on another machine adds its own before and
        after its record.
        """

        def unused(names: Iterable[str]) -> list[str]:
            return [
                name
                for name in names
                if not self._driver.find(part, [Condition("labels", "has", name)], limit=1)
            ]

        removed = unused(labels)
        if removed:
            part_of_labels = part._replace(kind=Kind.LABELS)
            self._driver.delete(part_of_labels, removed)
            used = sorted(set(removed).difference(unused(removed)))
            if (
                used
            ):  # somebody saw the label before it was removed, and wrote the record after our check
                self._driver.add(part_of_labels, [Point(label, {}) for label in used])

    # --- reading
    # ---------------------------------------------------------------------------------------------------

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
        known: dict[Ref, Record] = {}
        if where.key is not None:  # so few that they are read at once
            known = {stored.record.ref: stored.record for stored in view.matching(where)}
        ordered = sorted(
            known if where.key is not None else view.around(where),
            key=lambda ref: (ref.group, ref.position, ref.namespace),
            reverse=newest_first,
        )
        if after is not None:
            places = ((ref, (ref.group, ref.position)) for ref in ordered)
            ordered = [
                ref for ref, place in places if (place < after if newest_first else place > after)
            ]
        records: list[Record] = []
        size = max(1, min(_PAGE, limit))
        for start in range(0, len(ordered), size):
            if len(records) >= limit:
                break
            page = ordered[start : start + size]
            found = known or {
                each.record.ref: each.record
                for each in view.stored(page)
                if where.fits(each.record)
            }
            records += [found[ref] for ref in page if ref in found]
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
        return [stored.record for stored in self._view.stored(refs)]

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        pairs: list[tuple[str, str]] = []
        for namespace in dict.fromkeys(namespaces):
            pairs += map(pair_of, self._driver.ids(Part(Kind.LABELS, collection, namespace), []))
        for record in self._view.changes.matching(
            Filter(collection, tuple(namespaces), state="any")
        ):
            pairs += record.labels.items()
        return sorted({value for name, value in pairs if name == key})

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        total = len(self._view.places(where))
        return total if at_most is None else min(total, at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        pairs = (
            pair for stored in self._view.matching(where) for pair in stored.record.labels.items()
        )
        counted = Counter(
            name if key is None else value for name, value in pairs if key in (None, name)
        )
        return dict(sorted(counted.items()))

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        found = (stored.record.created_at for stored in self._view.matching(where))
        return dict(sorted(Counter(to_millis(moment) // 86_400_000 for moment in found).items()))

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        return self._search(where, vector).candidates(vector, terms, k)

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        return self._search(where, query.vector).matches(query)

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`; the size on the server's disk is unknown."""
        view, state = self._view, self._spaces.state()
        without = view.refs(where)
        if without and "space" in state:
            without -= view.refs(where, Condition("spaces", "has", state["space"]))
        without -= {ref for ref, record in view.changes.new.items() if record.vectors is not None}
        return StoreInfo(
            url=self._driver.url,
            schema_version=SCHEMA if state else None,
            model=state.get("model"),
            size_bytes=None,
            without_vector_count=len(without),
            erasing=False,
            collection=self._driver.collection,
        )

    # --- moving a whole store
    # ---------------------------------------------------------------------------------------

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        there = [Condition("ended", "<=", LIVE)]
        parts = [
            part
            for part in self._driver.parts()
            if (part.kind, part.collection) == (Kind.RECORDS, collection)
        ]
        found = {part.namespace for part in parts if self._driver.find(part, there, limit=1)}
        new = self._view.changes.new
        return sorted(found | {ref.namespace for ref in new if ref.collection is collection})

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        view = self._view
        return view.vectors(view.stored(refs), self._spaces.state().get("space", ""))

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`; records of the running transaction are not among them."""
        return self._spaces.unstaged(space, collection, limit)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`; it is done at once, and a transaction that fails does not undo it."""
        with self.transaction():
            self._refuse_unwritten()
            self._spaces.stage(space, vectors)

    def switch(self, space: Space) -> None:
        """See `Store.switch`; it is done at once, and a transaction that fails does not undo it."""
        with self.transaction():
            self._refuse_unwritten()
            self._spaces.switch(space)

    def check(self, *, deep: bool) -> list[Finding]:
        """See `Store.check`; nothing of it is cheap but to ask whether the server answers."""
        state = self._spaces.state()
        return list(check(self._view, state.get("space", ""))) if deep else []

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        with self.transaction():
            return repair(self._driver)

    def close(self) -> None:
        """See `Store.close`."""
        self._driver.close()

    # --- inside
    # ----------------------------------------------------------------------------------------------------

    @property
    def _changes(self) -> Changes | None:
        """Changes of the running transaction of this thread; None outside of one."""
        return getattr(self._local, "changes", None)

    @property
    def _view(self) -> View:
        return View(self._driver, self._changes or Changes(), self.damaged)

    def _search(self, where: Filter, vector: "NDArray[np.float32] | None") -> "Search":
        from memories.stores.documents.search import Search

        space = None if vector is None else self._spaces.searched()
        return Search(self._view, where, space, self._samples)

    def _refuse_unwritten(self) -> None:
        if self._changes:
            raise StoreError(
                "vectors can't be staged in a transaction that has written records; end it first"
            )
