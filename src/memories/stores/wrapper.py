"""Stores that wrap another store: one forwards every method, the other buffers added records."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.stores.damage import Damaged
from memories.stores.protocol import Store
from memories.stores.records import Record

if TYPE_CHECKING:
    from memories.stores.audit_log import Link


def _forward(method: str) -> Any:
    """Return the method with this name, which calls the wrapped store."""

    def call(store: "StoreWrapper", *arguments: Any, **named: Any) -> Any:
        return getattr(store._target(), method)(*arguments, **named)

    return call


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

    transaction = _forward("transaction")
    append = _forward("append")
    patch = _forward("patch")
    touch = _forward("touch")
    used = _forward("used")
    remove = _forward("remove")
    scan = _forward("scan")
    groups = _forward("groups")
    candidates = _forward("candidates")
    matches = _forward("matches")
    read = _forward("read")
    values = _forward("values")
    count = _forward("count")
    labels = _forward("labels")
    days = _forward("days")
    namespaces = _forward("namespaces")
    vectors = _forward("vectors")
    unstaged = _forward("unstaged")
    stage = _forward("stage")
    switch = _forward("switch")
    use_space = _forward("use_space")
    info = _forward("info")
    refs = _forward("refs")
    check = _forward("check")
    repair = _forward("repair")
    close = _forward("close")


# Maximum number of buffered records. Adding them to the store takes much longer than buffering
# them, so with a higher limit, a caller that limits the duration of a transaction would notice too
# late that the transaction takes too long.
MAX_BUFFERED = 512


class Savepoint(NamedTuple):
    """A mark for `BufferedStore.take_back`: the counts of appended records and of other changes."""

    appended: int
    changes: int


def _count_change(method: str) -> Any:
    """Return the method with this name, which counts a change and calls the wrapped store."""

    def call(store: "BufferedStore", *arguments: Any, **named: Any) -> Any:
        store._changes += 1
        return getattr(store._target(), method)(*arguments, **named)

    return call


class BufferedStore(StoreWrapper):
    """Buffers the records that a transaction appends, and adds them to the store all at once.

    Any other method first adds the buffered records, so that it sees them. A nested
    transaction can't be rolled back separately, but `take_back` can drop records that haven't been
    added to the store yet.

    Attributes:
        heads: For each namespace, the position and the content of the last log entry that was added
            through this buffer. No other writer adds entries during the transaction.
    """

    def __init__(self, store: Store) -> None:
        """Begin with an empty buffer; the store must be in a transaction."""
        super().__init__(store)
        self.heads: dict[str, tuple[int, Link]] = {}
        self._buffered: list[Record] = []
        self._added = 0  # number of records passed on to the store
        self._changes = 0
        self._has_failed = False

    def _target(self) -> Store:
        """Return the store, after adding the buffered records to it."""
        self.flush()
        return self.wrapped

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Join the running transaction."""
        yield

    def append(self, records: Sequence[Record]) -> None:
        """Buffer records to add later; `flush` raises the errors of `Store.append`."""
        self._buffered += records
        if len(self._buffered) > MAX_BUFFERED:
            self.flush()

    patch = _count_change("patch")
    touch = _count_change("touch")
    remove = _count_change("remove")
    stage = _count_change("stage")
    switch = _count_change("switch")
    repair = _count_change("repair")

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
