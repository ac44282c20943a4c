"""Stores around another store: one passes everything on, one adds many records at once."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from memories.stores.damage import Damaged
from memories.stores.protocol import Store
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

    from memories.stores.records import Matches, TurnQuery


class StoreWrapper(Store):
    """Passes everything on to another store; see `Store` for each method."""

    def __init__(self, store: Store) -> None:
        """Wrap a store."""
        self._store = store

    @property
    def inner(self) -> Store:
        """The store that is asked."""
        return self._store

    @property
    def damaged(self) -> Damaged:  # type: ignore[override]  # nobody replaces it
        """What was left out of answers."""
        return self._store.damaged

    def transaction(self) -> AbstractContextManager[None]:
        """See `Store.transaction`."""
        return self.inner.transaction()

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        self.inner.append(records)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        self.inner.patch(patches)

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """See `Store.touch`."""
        return self.inner.touch(refs, batch)

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        return self.inner.used(where)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        return self.inner.remove(refs)

    def scan(
        self,
        where: Filter,
        *,
        limit: int,
        after: tuple[str, int] | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """See `Store.scan`."""
        return self.inner.scan(where, limit=limit, after=after, newest_first=newest_first)

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        return self.inner.groups(where, limit=limit)

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        return self.inner.candidates(where, vector=vector, terms=terms, k=k)

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        return self.inner.matches(where, query)

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return self.inner.read(refs)

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        return self.inner.values(collection, namespaces, key)

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        return self.inner.count(where, at_most=at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        return self.inner.labels(where, key)

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        return self.inner.days(where)

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        return self.inner.namespaces(collection)

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        return self.inner.vectors(refs)

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        return self.inner.unstaged(space, collection, limit=limit)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        self.inner.stage(space, vectors)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        self.inner.switch(space)

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        return self.inner.info(where)

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        return self.inner.refs(where)

    def check(self, *, deep: bool) -> Iterable[Finding]:
        """See `Store.check`."""
        return self.inner.check(deep=deep)

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        return self.inner.repair()

    def close(self) -> None:
        """See `Store.close`."""
        self.inner.close()


# records; more are added at once, so that who bounds the time of a transaction sees it pass
MOST_WAITING = 512


class Mark(NamedTuple):
    """A moment: how many records had been added, and how many other changes made."""

    added: int
    changes: int


class Deferred(StoreWrapper):
    """A store in a transaction of another one: records that are added wait, everything else is
    passed on.

    All that is asked of it sees them, since they are added before. A transaction inside is no part
    that could be undone alone; `take_back` does what can be done.
    """

    def __init__(self, store: "Store") -> None:
        """Begin with nothing that waits, in a transaction of the store."""
        super().__init__(store)
        self._waiting: list[Record] = []
        self._added = self._changes = 0  # added: given to the store
        self._failed = False

    @property
    def inner(self) -> "Store":
        """The store, once it has what waits."""
        self.flush()
        return self._store

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Be a part of the transaction that runs."""
        yield

    def append(self, records: "Sequence[Record]") -> None:
        """Add records later; `flush` raises what `Store.append` raises."""
        self._waiting += records
        if len(self._waiting) > MOST_WAITING:
            self.flush()

    def patch(self, patches: "Sequence[Patch]") -> None:
        """See `Store.patch`."""
        self._changes += 1
        super().patch(patches)

    def touch(self, refs: "Sequence[Ref]", batch: str = "") -> bool:
        """See `Store.touch`."""
        self._changes += 1
        return super().touch(refs, batch)

    def remove(self, refs: "Sequence[Ref]") -> tuple[str, ...]:
        """See `Store.remove`."""
        self._changes += 1
        return super().remove(refs)

    def stage(self, space: "Space", vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        self._changes += 1
        super().stage(space, vectors)

    def switch(self, space: "Space") -> None:
        """See `Store.switch`."""
        self._changes += 1
        super().switch(space)

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        self._changes += 1
        return super().repair()

    def flush(self) -> None:
        """Add what waits.

        Raises:
            Conflict: A position or a key is taken, whoever added that record; the whole transaction
                has to be undone.
        """
        if self._waiting:
            some, self._waiting = self._waiting, []
            self._added += len(some)
            try:
                self._store.append(some)
            except BaseException:
                self._failed = True
                raise

    def mark(self) -> Mark:
        """Return what `take_back` goes back to."""
        return Mark(self._added + len(self._waiting), self._changes)

    def take_back(self, mark: Mark) -> bool:
        """Drop what was added since a moment; return whether that was all, so that the transaction
        can go on.
        """
        if self._failed or self._added > mark.added or self._changes != mark.changes:
            return False
        del self._waiting[mark.added - self._added :]
        return True
