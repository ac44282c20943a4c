"""The files store: readable lines in a folder, together with the larger stores that some namespaces
have moved to.
"""

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
from memories.stores.sqlite.schema import encode_group

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
FORMAT = 2
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class FilesStore:
    """Implements `Store` on a folder of files; see `log` for what their lines come to, and `index`
    for searches.

    A namespace that becomes too large moves to a larger store by itself, after the write that makes
    it so, while the folder is locked. From then on it has the guarantees of that store. Besides:

    - Vectors and read counts are in the index alone. After the index is deleted, or a line is
      changed by hand, the vectors have to be made again; `without_vector_count` counts the missing
      ones.
    - A transaction that writes to namespaces in both places ends in one after the other: a crash in
      between leaves the part in the larger store. No operation of the service writes to two
      namespaces. `switch` likewise: switching again completes it.
    - A word score is BM25 among the records of one place, so scores of two places compare only
      roughly.
    """

    def __init__(
        self,
        folder: Path,
        space: Space | None,
        config: Config | None = None,
        open_store: OpenStore | None = None,
    ) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            folder: Where the files are.
            space: The space of the vectors that will be written and searched; None in keyword-only
                mode.
            config: When namespaces move to which larger store; without it none moves.
            open_store: Opens a larger store.

        Raises:
            ConfigError: The larger store is none.
        """
        self.damaged = Damaged()
        self._folder = Folder(folder)
        self._here = LocalFiles(self._folder, space, self._after_commit, self.damaged)
        self._mover = Mover(self._folder, space, config, open_store or _refuse)
        self._opened: dict[str, Store] = {}
        self._opening = threading.Lock()

    # --- writing
    # ---------------------------------------------------------------------------------------------------

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
        """See `OnThisDisk.rehearse`; larger stores are not rehearsed."""
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
        counted = [
            store.touch(some, batch) for store, some in self._by_store(refs, lambda ref: ref)
        ]
        return all(counted)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`; names also the files from before a move, and stores that were gone
        back from.
        """
        also_in: set[str] = set()
        namespaces = {ref.namespace for ref in refs}
        before = None
        while before != self._places(namespaces):  # again if one has moved meanwhile
            before = self._places(namespaces)
            for namespace in namespaces:
                self._mover.remove_copies(
                    namespace, [ref for ref in refs if ref.namespace == namespace]
                )
            for store, some in (
                self._by_store(refs, lambda ref: ref)
                if refs
                else [(store, []) for store in self._all()]
            ):
                also_in.update(store.remove(some))
        for namespace in namespaces:
            also_in.update(
                self._mover.also_in(namespace, [ref for ref in refs if ref.namespace == namespace])
            )
        self.damaged.forget(set(refs).__contains__)
        return tuple(sorted(also_in))

    def _after_commit(self, namespaces: set[str]) -> None:
        """Move namespaces that have become too large; a failure endangers no record."""
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
            _log.warning(
                "stored; the next write decides what moves to a larger store, since that failed now: %s",
                exc,
            )

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
        parts = self._ask(
            where,
            lambda store, own: store.scan(own, limit=limit, after=after, newest_first=newest_first),
        )
        return _join_scans(parts, limit, newest_first=newest_first)

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        parts = self._ask(where, lambda store, own: store.groups(own, limit=limit))
        groups = (group for part in parts for group in part)
        return sorted(groups, key=lambda group: (*_group_order(group[1]), group[0]))[:limit]

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        pairs = [
            pair for part in self._ask(where, lambda store, own: store.used(own)) for pair in part
        ]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        total = sum(self._ask(where, lambda store, own: store.count(own, at_most=at_most)))
        return total if at_most is None else min(total, at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        parts = self._ask(where, lambda store, own: store.labels(own, key))
        return dict(sorted(sum(map(Counter, parts), Counter[str]()).items()))

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        parts = self._ask(where, lambda store, own: store.days(own))
        return dict(sorted(sum(map(Counter, parts), Counter[int]()).items()))

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        parts = self._ask(
            where, lambda store, own: store.candidates(own, vector=vector, terms=terms, k=k)
        )
        return _best_candidates(parts, k)

    def matches(self, where: Filter, query: TurnQuery) -> Matches:
        """See `Store.matches`."""
        return _join_matches(self._ask(where, lambda store, own: store.matches(own, query)))

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return [
            record
            for part in self._ask_of(refs, lambda store, own: store.read(own))
            for record in part
        ]

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        return sorted(
            ref for part in self._ask(where, lambda store, own: store.refs(own)) for ref in part
        )

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        where = Filter(collection, tuple(namespaces))
        parts = self._ask(where, lambda store, own: store.values(collection, own.namespaces, key))
        return sorted({value for part in parts for value in part})

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        here = self._places(where.namespaces).get(None, [])
        self._here.refuse_damaged(where.collection, here)
        parts = self._ask(
            where._replace(namespaces=(*where.namespaces,)), lambda store, own: store.info(own)
        )
        own = self._here.index.info(where._replace(namespaces=()))
        sizes = [part.size_bytes for part in parts if part.url != own.url]
        measured = [size for size in sizes if size is not None]
        return StoreInfo(
            url=f"files:///{self._folder.path}",
            schema_version=FORMAT if self._folder.exists() else None,
            model=next((part.model for part in (*parts, own) if part.model is not None), None),
            size_bytes=self._folder.size_bytes() + sum(measured)
            if len(measured) == len(sizes)
            else None,
            without_vector_count=sum(part.without_vector_count for part in parts),
            erasing=own.erasing or any(part.erasing for part in parts),
        )

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        namespaces = self._here.namespaces(
            collection, self._mover.here(self._here.files(collection))
        )
        for marker in self._mover.markers():
            store = self._there(marker.namespace)
            if not isinstance(store, LocalFiles) and marker.namespace in store.namespaces(
                collection
            ):
                namespaces.append(marker.namespace)
        return sorted(namespaces)

    def check(self, *, deep: bool) -> list[Finding]:
        """See `Store.check`; a person has to mend unreadable lines."""
        return [finding for store in self._all() for finding in store.check(deep=deep)]

    def repair(self) -> list[str]:
        """See `Store.repair`; each larger store has a transaction of its own."""
        return [what for store in self._all() for what in store.repair()]

    def close(self) -> None:
        """See `Store.close`."""
        self._here.close()
        for store in self._opened.values():
            store.close()
        self._opened.clear()

    # --- vectors
    # ---------------------------------------------------------------------------------------------------

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        parts = self._ask_of(refs, lambda store, own: store.vectors(own))
        return {ref: vectors for part in parts for ref, vectors in part.items()}

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        with self._here.current(collection, self._mover.here(self._here.files(collection))):
            pass  # the index is up to date
        records: list[Record] = []
        for store in self._all():
            if len(records) < limit:
                records += store.unstaged(space, collection, limit=limit - len(records))
        return records

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

    # --- places
    # ----------------------------------------------------------------------------------------------------

    def _places(self, namespaces: "set[str] | Sequence[str]") -> dict[str | None, list[str]]:
        """Return the namespaces by the URL of the store that they have moved to; None for those in
        the files.
        """
        places: dict[str | None, list[str]] = {}
        for namespace in namespaces:
            marker = self._mover.marker(namespace)
            places.setdefault(marker.store if marker else None, []).append(namespace)
        return places

    def _there(self, namespace: str) -> "Store | LocalFiles":
        """Return the store of a namespace, after entering this thread's transactions there."""
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
        """Return the files and every store that a namespace has moved to."""
        moved = (self._there(marker.namespace) for marker in self._mover.markers())
        return [self._here, *{id(store): store for store in moved}.values()]

    def _by_store(
        self, items: Sequence[Item], ref_of: Callable[[Item], Ref]
    ) -> "list[tuple[Store | LocalFiles, list[Item]]]":
        """Return items by the store that they concern, in order."""
        return [
            (
                self._there(namespaces[0]),
                [item for item in items if ref_of(item).namespace in namespaces],
            )
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
                    with store.current(where.collection, namespaces) as (index, readable):
                        answers.append(ask(index, where._replace(namespaces=readable)))
                else:
                    answers.append(ask(store, where._replace(namespaces=tuple(namespaces))))
            if (self._places(where.namespaces) or {None: []}) == places:
                return answers

    def _ask_of(
        self, refs: Sequence[Ref], ask: Callable[[Store, list[Ref]], Answer]
    ) -> list[Answer]:
        """Ask each store about the records that are there."""
        answers: list[Answer] = []
        for collection in Collection:
            where = Filter(
                collection, tuple({ref.namespace for ref in refs if ref.collection == collection})
            )

            def ask_by_ref(store: Store, own: Filter) -> Answer:
                return ask(
                    store,
                    [ref for ref in refs if ref[0] == own.collection and ref[1] in own.namespaces],
                )

            if where.namespaces:
                answers += self._ask(where, ask_by_ref)
        return answers


def _refuse(url: str, _space: Space | None, _config: Config | None) -> Store:
    raise StoreError(f"{url} can't be opened from here; open the folder by its URL, files:///…")


# --- several answers as one
# ------------------------------------------------------------------------------------------


def _join_scans(parts: Sequence[list[Record]], limit: int, *, newest_first: bool) -> list[Record]:
    """Return the first records of several scans, in the order of a SQLite store: names before
    ids.
    """
    records = [record for part in parts for record in part]
    records.sort(
        key=lambda record: (
            *_group_order(record.ref.group),
            record.ref.position,
            record.ref.namespace,
        ),
        reverse=newest_first,
    )
    return records[:limit]


def _group_order(group: str) -> tuple[bool, str | bytes]:
    encoded = encode_group(group)
    return isinstance(encoded, bytes), encoded


def _best_candidates(parts: Sequence[list[Candidate]], k: int) -> list[Candidate]:
    """Return the best candidates of several searches, `k` by words and `k` by vector."""
    candidates = [candidate for part in parts for candidate in part]
    by_words = [candidate for candidate in candidates if candidate.words > 0]
    by_words.sort(key=lambda candidate: -candidate.words)
    similar = [
        (candidate.similarity, candidate)
        for candidate in candidates
        if candidate.similarity is not None
    ]
    similar.sort(key=lambda pair: -pair[0])
    best = [*by_words[:k], *(candidate for _, candidate in similar[:k])]
    return list({candidate.record.ref: candidate for candidate in best}.values())


def _join_matches(parts: Sequence[Matches]) -> Matches:
    """Return the rows of several matches as one."""
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    terms = list(dict.fromkeys(term for part in parts for term in part.terms))
    holds = np.zeros((len(terms), sum(len(part.group) for part in parts)), dtype=np.bool_)
    group: list[NDArray[np.int64]] = []
    label: list[NDArray[np.int64]] = []
    groups, labels, at = 0, 0, 0
    for part in parts:
        group.append(part.group + groups)
        label.append(part.label + labels)
        for row, term in enumerate(part.terms):
            holds[terms.index(term), at : at + len(part.group)] = part.holds[row]
        groups, labels, at = (
            groups + len(part.groups),
            labels + len(part.labels),
            at + len(part.group),
        )
    return Matches(
        groups=[place for part in parts for place in part.groups],
        group=np.concatenate(group),
        position=np.concatenate([part.position for part in parts]),
        session=np.concatenate([part.session for part in parts]),
        created_at=np.concatenate([part.created_at for part in parts]),
        labels=[pairs for part in parts for pairs in part.labels],
        label=np.concatenate(label),
        words=np.concatenate([part.words for part in parts]),
        similarity=np.concatenate([part.similarity for part in parts]),
        terms=terms,
        holds=holds,
        searched=sum(part.searched for part in parts),
    )
