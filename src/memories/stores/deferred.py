"""A store in a transaction that adds many records at once: what is added waits until something else is asked of it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memories.stores.wrapper import StoreWrapper

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.protocol import Store
    from memories.stores.records import Patch, Record, Ref, Space

MOST_WAITING = 512  # records; more are added at once, so that who bounds the time of a transaction sees it pass


class Mark(NamedTuple):
    """A moment: how many records had been added, and how many other changes made."""

    added: int
    changes: int


class Deferred(StoreWrapper):
    """A store in a transaction of another one: records that are added wait, everything else is passed on.

    All that is asked of it sees them, since they are added before. A transaction inside is no part that could be undone
    alone; `take_back` does what can be done.
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
            Conflict: A position or a key is taken, whoever added that record; the whole transaction has to be undone.
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
        """Drop what was added since a moment; return whether that was all, so that the transaction can go on."""
        if self._failed or self._added > mark.added or self._changes != mark.changes:
            return False
        del self._waiting[mark.added - self._added :]
        return True
