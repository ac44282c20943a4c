"""A store in a transaction that adds many records at once: what is added waits until something else is asked of it."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from memories.stores.protocol import Store
    from memories.stores.records import Record

_READING = frozenset(
    "scan groups candidates matches read values count labels days used vectors info refs namespaces damaged".split()
)

MOST_WAITING = 512  # records; more are added at once, so that who bounds the time of a transaction sees it pass


class Mark(NamedTuple):
    """A moment: how many records had been added, and how many other changes made."""

    added: int
    changes: int


class Deferred:
    """Passes everything on to a store, in a transaction of it, but for records that are added: those wait.

    All that is asked of it sees them, since they are added before. A transaction inside is no part that could be undone
    alone; `take_back` does what can be done.
    """

    def __init__(self, store: "Store") -> None:
        """Begin with nothing that waits, in a transaction of the store."""
        self._store = store
        self._waiting: list[Record] = []
        self._added = self._changes = 0  # added: given to the store
        self._failed = False

    def __getattr__(self, name: str) -> Any:
        self.flush()
        self._changes += name not in _READING
        return getattr(self._store, name)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Be a part of the transaction that runs."""
        yield

    def append(self, records: "Sequence[Record]") -> None:
        """Add records later; `flush` raises what `Store.append` raises."""
        self._waiting += records
        if len(self._waiting) > MOST_WAITING:
            self.flush()

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
