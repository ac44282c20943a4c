"""The files store: lines that people can read, and the larger stores that some namespaces have moved to, as one."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from memories.errors import MemoriesError, StoreError
from memories.settings import Config
from memories.stores.damage import Damaged
from memories.stores.files import joined
from memories.stores.files.connection import Folder
from memories.stores.files.local import LocalFiles
from memories.stores.files.move import Mover, OpenStore
from memories.stores.protocol import Store
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Finding,
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

_log = logging.getLogger(__name__)
FORMAT = 2
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class FilesStore:
    """Implements `Store` on a folder of files; see `log` for what their lines come to, and `index` for searches.

    A namespace that becomes too large moves to a larger store by itself, after the write that makes it so, while the
    folder is locked. What that store can't keep of the rules can't be kept for what has moved. Beside that:

    - Vectors and counts of reads are in the index alone: who deletes it, or changes a line by hand, has to make these
      vectors again; `without_vector_count` tells.
    - A transaction that writes to namespaces in both places ends in one after the other: a crash in between leaves the
      part in the larger store. No operation of the service writes to two namespaces. `switch` likewise: switching
      again completes it.
    - A word score is BM25 among the records of one place, so scores of two places compare only roughly.
    """

    def __init__(
        self, folder: Path, space: Space | None, config: Config | None = None, open_store: OpenStore | None = None
    ) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            folder: Where the files are.
            space: The space of the vectors that will be written and searched; None in keyword-only mode.
            config: When namespaces move to which larger store; without it none moves.
            open_store: Opens a larger store.

        Raises:
            ConfigError: The larger store is none.
        """
        self.damaged = Damaged()
        self._folder = Folder(folder)
        self._here = LocalFiles(self._folder, space, self._after_commit, self.damaged)
        self._mover = Mover(self._folder, space, config, open_store or _none)
        self._opened: dict[str, Store] = {}
        self._opening = threading.Lock()

    # --- writing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        with self._here.transaction() as work, contextlib.ExitStack() as stack:
            work.levels.append((stack, set()))
            try:
                yield
            finally:
                work.levels.pop()

    def rehearse(self) -> None:
        """See `OnThisDisk.rehearse`; of what has moved to a larger store only the next write tells."""
        if self._folder.exists():
            self._folder.rehearse()
            self._here.index.rehearse()

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

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """See `Store.touch`."""
        counted = [store.touch(some, batch) for store, some in self._by_store(refs, lambda ref: ref)]
        return all(counted)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`; names also the files from before a move, and stores that were gone back from."""
        also_in: set[str] = set()
        namespaces = {ref.namespace for ref in refs}
        before = None
        while before != self._places(namespaces):  # again if one has moved meanwhile
            before = self._places(namespaces)
            for namespace in namespaces:
                self._mover.remove_copies(namespace, [ref for ref in refs if ref.namespace == namespace])
            for store, some in self._by_store(refs, lambda ref: ref) if refs else [(each, []) for each in self._all()]:
                also_in.update(store.remove(some))
        for namespace in namespaces:
            also_in.update(self._mover.also_in(namespace, [ref for ref in refs if ref.namespace == namespace]))
        self.damaged.forget(set(refs).__contains__)
        return tuple(sorted(also_in))

    def _after_commit(self, namespaces: set[str]) -> None:
        """Move what has become too large; what was written is safe whatever becomes of it."""
        if not namespaces and not self._mover.unfinished():
            return
        try:
            with self._here.working() as work:
                self._mover.finish()
                for namespace in sorted(namespaces):
                    self._mover.move(namespace, self, work.index.stored_space())
                for marker in self._mover.markers():
                    self._here.leave(marker.namespace)
        except MemoriesError as exc:
            _log.warning("stored; the next write decides what moves to a larger store, since that failed now: %s", exc)

    # --- reading ---------------------------------------------------------------------------------------------------

    def scan(
        self, where: Filter, *, limit: int, after: tuple[str, int] | None = None, newest_first: bool = False
    ) -> list[Record]:
        """See `Store.scan`."""
        parts = self._ask(where, lambda at, some: at.scan(some, limit=limit, after=after, newest_first=newest_first))
        return joined.scanned(parts, limit, newest_first=newest_first)

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        return joined.grouped(self._ask(where, lambda at, some: at.groups(some, limit=limit)), limit)

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        found = [pair for part in self._ask(where, lambda at, some: at.used(some)) for pair in part]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        found = sum(self._ask(where, lambda at, some: at.count(some, at_most=at_most)))
        return found if at_most is None else min(found, at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        parts = self._ask(where, lambda at, some: at.labels(some, key))
        return dict(sorted(sum(map(Counter, parts), Counter[str]()).items()))

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        parts = self._ask(where, lambda at, some: at.days(some))
        return dict(sorted(sum(map(Counter, parts), Counter[int]()).items()))

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        return joined.best(self._ask(where, lambda at, some: at.candidates(some, vector=vector, terms=terms, k=k)), k)

    def matches(self, where: Filter, query: TurnQuery) -> Matches:
        """See `Store.matches`."""
        return joined.matched(self._ask(where, lambda at, some: at.matches(some, query)))

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return [record for part in self._ask_of(refs, lambda at, some: at.read(some)) for record in part]

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        return sorted(ref for part in self._ask(where, lambda at, some: at.refs(some)) for ref in part)

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        where = Filter(collection, tuple(namespaces))
        parts = self._ask(where, lambda at, some: at.values(collection, some.namespaces, key))
        return sorted({value for part in parts for value in part})

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        here = self._places(where.namespaces).get(None, [])
        self._here.refuse_damaged(where.collection, here)
        parts = self._ask(where._replace(namespaces=(*where.namespaces,)), lambda at, some: at.info(some))
        own = self._here.index.info(where._replace(namespaces=()))
        sizes = [part.size_bytes for part in parts if part.url != own.url]
        known = [size for size in sizes if size is not None]
        return StoreInfo(
            url=f"files:///{self._folder.path}",
            schema_version=FORMAT if self._folder.exists() else None,
            model=next((part.model for part in (*parts, own) if part.model is not None), None),
            size_bytes=self._folder.size_bytes() + sum(known) if len(known) == len(sizes) else None,
            without_vector_count=sum(part.without_vector_count for part in parts),
            erasing=own.erasing or any(part.erasing for part in parts),
        )

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        found = self._here.namespaces(collection, self._mover.here(self._here.files(collection)))
        for marker in self._mover.markers():
            store = self._there(marker.namespace)
            if not isinstance(store, LocalFiles) and marker.namespace in store.namespaces(collection):
                found.append(marker.namespace)
        return sorted(found)

    def check(self, *, deep: bool) -> list[Finding]:
        """See `Store.check`; lines that can't be read are for a person to mend."""
        return [finding for store in self._all() for finding in store.check(deep=deep)]

    def repair(self) -> list[str]:
        """See `Store.repair`; a larger store that something has moved to has a transaction of its own."""
        return [what for store in self._all() for what in store.repair()]

    def close(self) -> None:
        """See `Store.close`."""
        self._here.close()
        for store in self._opened.values():
            store.close()
        self._opened.clear()

    # --- vectors ---------------------------------------------------------------------------------------------------

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        parts = self._ask_of(refs, lambda at, some: at.vectors(some))
        return {ref: vectors for part in parts for ref, vectors in part.items()}

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        with self._here.current(collection, self._mover.here(self._here.files(collection))):
            pass  # the index is up to date
        found: list[Record] = []
        for store in self._all():
            if len(found) < limit:
                found += store.unstaged(space, collection, limit=limit - len(found))
        return found

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        with self.transaction():
            for store, refs in self._by_store(list(vectors), lambda ref: ref):
                store.stage(space, {ref: vectors[ref] for ref in refs})
            if vectors and self.read(list(vectors)[:1]):
                self._here.index.drop_other_stages(space)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        with self.transaction():
            for collection in Collection:
                for namespace in self._mover.here(self._here.files(collection)):
                    self._here.intact(collection, namespace)
            for store in reversed(self._all()):
                store.switch(space)

    # --- places ----------------------------------------------------------------------------------------------------

    def _places(self, namespaces: "set[str] | Sequence[str]") -> dict[str | None, list[str]]:
        """Return the namespaces by the stores that they have moved to; those that are here by None."""
        found: dict[str | None, list[str]] = {}
        for namespace in namespaces:
            marker = self._mover.marker(namespace)
            found.setdefault(marker.store if marker else None, []).append(namespace)
        return found

    def _there(self, namespace: str) -> "Store | LocalFiles":
        """Return what a namespace is in, inside the transactions that this thread is in."""
        marker = self._mover.marker(namespace)
        if marker is None:
            return self._here
        with self._opening:
            if marker.store not in self._opened:
                opened = self._opened[marker.store] = self._mover.opened(marker)
                opened.damaged = self.damaged
            store = self._opened[marker.store]
        for stack, entered in self._here.work.levels if self._here.work else ():
            if id(store) not in entered:
                stack.enter_context(store.transaction())
                entered.add(id(store))
        return store

    def _all(self) -> "list[Store | LocalFiles]":
        """Return the files and every store that something has moved to."""
        there = (self._there(marker.namespace) for marker in self._mover.markers())
        return [self._here, *{id(store): store for store in there}.values()]

    def _by_store(
        self, items: Sequence[Item], ref_of: Callable[[Item], Ref]
    ) -> "list[tuple[Store | LocalFiles, list[Item]]]":
        """Return items by the store that they concern, in order."""
        return [
            (self._there(namespaces[0]), [item for item in items if ref_of(item).namespace in namespaces])
            for namespaces in self._places({ref_of(item).namespace for item in items}).values()
        ]

    def _ask(self, where: Filter, ask: Callable[[Store, Filter], Answer]) -> list[Answer]:
        """Ask each store about the namespaces that are there, again if one has moved meanwhile."""
        while True:
            places = self._places(where.namespaces) or {None: []}
            answers: list[Answer] = []
            for namespaces in places.values():
                store = self._there(namespaces[0]) if namespaces else self._here
                if isinstance(store, LocalFiles):
                    with store.current(where.collection, namespaces) as (index, well):
                        answers.append(ask(index, where._replace(namespaces=well)))
                else:
                    answers.append(ask(store, where._replace(namespaces=tuple(namespaces))))
            if (self._places(where.namespaces) or {None: []}) == places:
                return answers

    def _ask_of(self, refs: Sequence[Ref], ask: Callable[[Store, list[Ref]], Answer]) -> list[Answer]:
        """Ask each store about the records that are there."""
        answers: list[Answer] = []
        for collection in Collection:
            where = Filter(collection, tuple({ref.namespace for ref in refs if ref.collection == collection}))

            def of(store: Store, asked: Filter) -> Answer:
                return ask(store, [ref for ref in refs if ref[0] == asked.collection and ref[1] in asked.namespaces])

            answers += self._ask(where, of) if where.namespaces else []
        return answers


def _none(url: str, _space: Space | None, _config: Config | None) -> Store:
    raise StoreError(f"{url} can't be opened from here; open the folder by its URL, files:///…")
