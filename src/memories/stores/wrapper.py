"""Stores that wrap another store: one forwards every method, the other buffers added records."""

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

    from memories.stores.audit_log import ChainEntry
    from memories.stores.records import Matches, TurnQuery


class StoreWrapper(Store):
    """Forwards every call to another store; see `Store` for the methods."""

    def __init__(self, store: Store) -> None:
        """Wrap a store, which is then available as `wrapped`."""
        self.wrapped = store

    def _target(self) -> Store:
        """Return the store to forward a call to."""
        return self.wrapped

    @property
    def damaged(self) -> Damaged:  # type: ignore[override]  # read-only here
        """See `Store.damaged`."""
        return self.wrapped.damaged

    def transaction(self) -> AbstractContextManager[None]:
        """See `Store.transaction`."""
        return self._target().transaction()

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        self._target().append(records)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        self._target().patch(patches)

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """See `Store.touch`."""
        return self._target().touch(refs, batch)

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        return self._target().used(where)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        return self._target().remove(refs)

    def scan(
        self,
        where: Filter,
        *,
        limit: int,
        after: tuple[str, int] | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """See `Store.scan`."""
        return self._target().scan(where, limit=limit, after=after, newest_first=newest_first)

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        return self._target().groups(where, limit=limit)

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        return self._target().candidates(where, vector=vector, terms=terms, k=k)

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        return self._target().matches(where, query)

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return self._target().read(refs)

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        return self._target().values(collection, namespaces, key)

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        return self._target().count(where, at_most=at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        return self._target().labels(where, key)

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        return self._target().days(where)

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        return self._target().namespaces(collection)

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        return self._target().vectors(refs)

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        return self._target().unstaged(space, collection, limit=limit)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        self._target().stage(space, vectors)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        self._target().switch(space)

    def use_space(self, space: Space) -> None:
        """See `Store.use_space`."""
        self._target().use_space(space)

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        return self._target().info(where)

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        return self._target().refs(where)

    def check(self, *, deep: bool) -> Iterable[Finding]:
        """See `Store.check`."""
        return self._target().check(deep=deep)

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        return self._target().repair()

    def close(self) -> None:
        """See `Store.close`."""
        self._target().close()


# Maximum number of buffered records. Adding them to the store takes much longer than buffering
# them, so with a higher limit, a caller that limits the duration of a transaction would notice too
# late that the transaction takes too long.
MAX_BUFFERED = 512


class Savepoint(NamedTuple):
    """A mark for `BufferedStore.take_back`: the counts of appended records and of other changes."""

    appended: int
    changes: int


class BufferedStore(StoreWrapper):
    """Buffers the records that a transaction appends, and adds them to the store all at once.

    Any other method first adds the buffered records, so that it sees them. A nested
    transaction can't be rolled back separately, but `take_back` can drop records that haven't been
    added to the store yet.

    Attributes:
        heads: For each namespace, the position and the content of the last log entry that was added
            through this buffer. No other writer adds entries during the transaction.
    """

    def __init__(self, store: "Store") -> None:
        """Begin with an empty buffer; the store must be in a transaction."""
        super().__init__(store)
        self.heads: dict[str, tuple[int, ChainEntry]] = {}
        self._buffered: list[Record] = []
        self._added = 0  # number of records passed on to the store
        self._changes = 0
        self._has_failed = False

    def _target(self) -> "Store":
        """Return the store, after adding the buffered records to it."""
        self.flush()
        return self.wrapped

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Join the running transaction."""
        yield

    def append(self, records: "Sequence[Record]") -> None:
        """Buffer records to add later; `flush` raises the errors of `Store.append`."""
        self._buffered += records
        if len(self._buffered) > MAX_BUFFERED:
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
        """Add the buffered records to the store.

        Raises:
            Conflict: The position or the key of a buffered record is taken; the entire transaction
                must be rolled back.
        """
        if not self._buffered:
            return
        records, self._buffered = self._buffered, []
        self._added += len(records)
        try:
            self.wrapped.append(records)
        except BaseException:
            self._has_failed = True
            raise

    def mark(self) -> Savepoint:
        """Return a mark for `take_back`."""
        return Savepoint(self._added + len(self._buffered), self._changes)

    def take_back(self, mark: Savepoint) -> bool:
        """Drop the records appended since a mark; return whether that undid all changes since then.

        If not, nothing was dropped, and the transaction must be rolled back.
        """
        if self._has_failed or self._added > mark.appended or self._changes != mark.changes:
            return False
        del self._buffered[mark.appended - self._added :]
        return True
