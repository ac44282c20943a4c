"""A folder of files together with the larger stores that some of its namespaces have moved to: one store."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from memories.config import Config
from memories.errors import Conflict
from memories.stores.files.move import Mover
from memories.stores.files.pool import order_of
from memories.stores.protocol import Store
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Matches,
    Patch,
    Record,
    Ref,
    Space,
    StoreInfo,
    TurnQuery,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Level:
    """One transaction of a thread, and the larger stores that it reaches into."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self.entered: set[int] = set()


class TieredStore:
    """Implements `Store` on files whose large namespaces are in a larger store; see `FilesStore` for the files.

    A namespace moves by itself after the write that makes it too large, while the folder is locked. What the larger
    store can't keep of the rules can't be kept for what has moved. Beside that:

    - A transaction that writes to namespaces in both places ends in one after the other: a crash in between leaves the
      part in the larger store. No operation of the service writes to two namespaces.
    - `switch` likewise: switching again completes it. `stage` drops what a larger store has for a third space only when
      it is given vectors of records that are there.
    - A word score is BM25 among the records of one place, so scores of two places compare only roughly.
    - Names of conversations and ids of memories among them come in the order of a SQLite store.
    """

    def __init__(self, folder: Path, space: Space | None, config: Config | None) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            folder: Where the files are.
            space: The space of the vectors that will be written and searched; None in keyword-only mode.
            config: When namespaces move to which larger store; without it none moves.

        Raises:
            ConfigError: The larger store is none.
        """
        self._mover = Mover(folder, space, config)
        self._here = self._mover.here
        self._local = threading.local()
        self._opened: dict[str, Store] = {}
        self._opening = threading.Lock()

    # --- writing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        with self._here.transaction(), contextlib.ExitStack() as stack:
            self._levels.append(_Level(stack))
            try:
                yield
            finally:
                self._levels.pop()

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        if records:
            with self.transaction():
                for store, some in self._by_store(records, lambda record: record.ref):
                    store.append(some)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        if patches:
            with self.transaction():
                for store, some in self._by_store(patches, lambda patch: patch.ref):
                    store.patch(some)

    def touch(self, refs: Sequence[Ref]) -> None:
        """See `Store.touch`."""
        for store, some in self._by_store(refs, lambda ref: ref):
            store.touch(some)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`; the files that a namespace had before it moved may still hold what is removed."""
        also_in: set[str] = set()
        namespaces = {ref.namespace for ref in refs}
        for _ in self._here.folder.tries():
            before = self._places(namespaces)
            for namespace in namespaces:
                copies = self._mover.open_begun(namespace)
                if copies is not None:
                    with contextlib.closing(copies):
                        also_in.update(copies.remove([ref for ref in refs if ref.namespace == namespace]))
            for store, some in (
                self._by_store(refs, lambda ref: ref) if refs else [(each, []) for each in self._stores()]
            ):
                also_in.update(store.remove(some))
            if self._places(namespaces) == before:
                break
        for namespace in namespaces:
            marker = self._mover.marker(namespace)
            also_in.update(self._mover.originals(marker) if marker else ())
        return tuple(sorted(also_in))

    # --- reading ---------------------------------------------------------------------------------------------------

    def scan(
        self, where: Filter, *, limit: int, after: tuple[str, int] | None = None, newest_first: bool = False
    ) -> list[Record]:
        """See `Store.scan`."""
        parts = self._asked(
            where, lambda store, some: store.scan(some, limit=limit, after=after, newest_first=newest_first)
        )
        if len(parts) == 1:
            return parts[0]
        found = [record for part in parts for record in part]
        found.sort(
            key=lambda record: (order_of(record.ref.group, record.ref.position), record.ref.namespace),
            reverse=newest_first,
        )
        return found[:limit]

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        parts = self._asked(where, lambda store, some: store.groups(some, limit=limit))
        found = [place for part in parts for place in part]
        if len(parts) > 1:
            found.sort(key=lambda place: (order_of(place[1], 0), place[0]))
        return found[:limit]

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        found = sum(self._asked(where, lambda store, some: store.count(some, at_most=at_most)))
        return found if at_most is None else min(found, at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        counts: dict[str, int] = {}
        for part in self._asked(where, lambda store, some: store.labels(some, key)):
            for label, count in part.items():
                counts[label] = counts.get(label, 0) + count
        return dict(sorted(counts.items()))

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        parts = self._asked(where, lambda store, some: store.candidates(some, vector=vector, terms=terms, k=k))
        if len(parts) == 1:
            return parts[0]
        found = [candidate for part in parts for candidate in part]
        by_words = sorted((one for one in found if one.words > 0), key=lambda one: -one.words)[:k]
        similar = [(one.similarity, one) for one in found if one.similarity is not None]
        similar.sort(key=lambda pair: -pair[0])
        return list({one.record.ref: one for one in [*by_words, *(one for _, one in similar[:k])]}.values())

    def matches(self, where: Filter, query: TurnQuery) -> Matches:
        """See `Store.matches`."""
        parts = self._asked(where, lambda store, some: store.matches(some, query))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return [record for part in self._asked_of(refs, lambda store, some: store.read(some)) for record in part]

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        where = Filter(collection, tuple(namespaces))
        parts = self._asked(where, lambda store, some: store.values(collection, some.namespaces, key))
        return sorted({value for part in parts for value in part})

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        own = self._here.info(where._replace(namespaces=()))
        parts = self._asked(where, lambda store, some: store.info(some))
        sizes = [own.size_bytes, *(part.size_bytes for part in parts if part.url != own.url)]
        known = [size for size in sizes if size is not None]
        return own._replace(
            model=next((part.model for part in parts if part.model is not None), own.model),
            size_bytes=sum(known) if len(known) == len(sizes) else None,
            without_vector_count=sum(part.without_vector_count for part in parts),
            erasing=own.erasing or any(part.erasing for part in parts),
        )

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        found = self._here.namespaces(collection)
        for marker in self._mover.markers():
            if marker.namespace in self._there(marker.namespace).namespaces(collection):
                found.append(marker.namespace)
        return sorted(set(found))

    def close(self) -> None:
        """See `Store.close`."""
        self._here.close()
        for store in self._opened.values():
            store.close()
        self._opened.clear()

    # --- vectors ---------------------------------------------------------------------------------------------------

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        parts = self._asked_of(refs, lambda store, some: store.vectors(some))
        return {ref: vectors for part in parts for ref, vectors in part.items()}

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        found: list[Record] = []
        for store in self._stores():
            if len(found) < limit:
                found += store.unstaged(space, collection, limit=limit - len(found))
        return found

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        with self.transaction():
            for store, refs in self._by_store(list(vectors), lambda ref: ref):
                store.stage(space, {ref: vectors[ref] for ref in refs})
            if vectors and self.read(list(vectors)[:1]):
                self._here.unstage_others(space)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        with self.transaction():
            stores = self._stores()
            for store in stores[1:]:
                store.switch(space)
            if stores[1:] and any(self._here.unstaged(space, collection, limit=1) for collection in Collection):
                raise Conflict(f"not all records have vectors of {space.model} yet; make them and switch again")
            self._here.switch(space)

    # --- places ----------------------------------------------------------------------------------------------------

    @property
    def _levels(self) -> list[_Level]:
        """The transactions that this thread is inside, outermost first."""
        levels: list[_Level] | None = getattr(self._local, "levels", None)
        if levels is None:
            levels = self._local.levels = []
        return levels

    def _place(self, namespace: str) -> str | None:
        """Return the store that a namespace has moved to; None if it is here."""
        marker = self._mover.marker(namespace)
        return None if marker is None else marker.store

    def _places(self, namespaces: "set[str] | Sequence[str]") -> dict[str | None, list[str]]:
        """Return the namespaces by their place."""
        found: dict[str | None, list[str]] = {}
        for namespace in namespaces:
            found.setdefault(self._place(namespace), []).append(namespace)
        return found

    def _there(self, namespace: str) -> Store:
        """Return the store that a namespace is in, inside the transactions that this thread is in."""
        marker = self._mover.marker(namespace)
        if marker is None:
            return self._here
        with self._opening:
            if marker.store not in self._opened:
                self._opened[marker.store] = self._mover.opened(marker)
            store = self._opened[marker.store]
        for level in self._levels:
            if id(store) not in level.entered:
                level.stack.enter_context(store.transaction())
                level.entered.add(id(store))
        return store

    def _stores(self) -> list[Store]:
        """Return the files and every store that something has moved to."""
        return [self._here, *{id(there): there for there in map(self._there, self._moved())}.values()]

    def _moved(self) -> list[str]:
        return [marker.namespace for marker in self._mover.markers()]

    def _by_store(self, items: Sequence[Item], ref_of: Callable[[Item], Ref]) -> list[tuple[Store, list[Item]]]:
        """Return items by the store that they concern, in order."""
        places = self._places({ref_of(item).namespace for item in items})
        return [
            (self._there(namespaces[0]), [item for item in items if ref_of(item).namespace in namespaces])
            for namespaces in places.values()
        ]

    def _asked(self, where: Filter, ask: Callable[[Store, Filter], Answer]) -> list[Answer]:
        """Ask each store about the namespaces that are there, again if one has moved meanwhile."""
        for _ in self._here.folder.tries():
            places = self._places(where.namespaces)
            answers = [
                ask(self._there(namespaces[0]), where._replace(namespaces=tuple(namespaces)))
                for namespaces in places.values()
            ]
            if self._places(where.namespaces) == places:
                break
        return answers or [ask(self._here, where)]

    def _asked_of(self, refs: Sequence[Ref], ask: Callable[[Store, list[Ref]], Answer]) -> list[Answer]:
        """Ask each store about the records that are there, again if some have moved meanwhile."""
        namespaces = {ref.namespace for ref in refs}
        for _ in self._here.folder.tries():
            places = self._places(namespaces)
            answers = [ask(store, some) for store, some in self._by_store(refs, lambda ref: ref)]
            if self._places(namespaces) == places:
                break
        return answers


def _joined(parts: Sequence[Matches]) -> Matches:
    """Return the rows of several matches as one."""
    import numpy as np

    terms = list(dict.fromkeys(term for part in parts for term in part.terms))
    holds = np.zeros((len(terms), sum(len(part.group) for part in parts)), dtype=np.bool_)
    groups, labels, at = 0, 0, 0
    group, label = [], []
    for part in parts:
        group.append(part.group + groups)
        label.append(part.label + labels)
        for row, term in enumerate(part.terms):
            holds[terms.index(term), at : at + len(part.group)] = part.holds[row]
        groups, labels, at = groups + len(part.groups), labels + len(part.labels), at + len(part.group)
    return Matches(
        groups=[place for part in parts for place in part.groups],
        group=np.concatenate(group),
        position=np.concatenate([part.position for part in parts]),
        session=np.concatenate([part.session for part in parts]),
        created_at=np.concatenate([part.created_at for part in parts]),
        labels=[each for part in parts for each in part.labels],
        label=np.concatenate(label),
        words=np.concatenate([part.words for part in parts]),
        similarity=np.concatenate([part.similarity for part in parts]),
        terms=terms,
        holds=holds,
        searched=sum(part.searched for part in parts),
    )
