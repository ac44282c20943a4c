"""Stores that wrap another store: one forwards every method, the other buffers added records."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from memories.stores.damage import Damaged
from memories.stores.protocol import Store

if TYPE_CHECKING:
    from memories.stores.audit_log import ChainEntry
    from memories.stores.records import Record

Method = TypeVar("Method", bound=Callable[..., Any])


def _forward(method: Method) -> Method:
    """Return a method that calls the same method of the wrapped store."""

    @functools.wraps(method)
    def call(self: "StoreWrapper", *args: Any, **options: Any) -> Any:
        return getattr(self._target(), method.__name__)(*args, **options)

    return cast("Method", call)


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

    transaction = _forward(Store.transaction)
    append = _forward(Store.append)
    patch = _forward(Store.patch)
    touch = _forward(Store.touch)
    used = _forward(Store.used)
    remove = _forward(Store.remove)
    scan = _forward(Store.scan)
    groups = _forward(Store.groups)
    candidates = _forward(Store.candidates)
    matches = _forward(Store.matches)
    read = _forward(Store.read)
    values = _forward(Store.values)
    count = _forward(Store.count)
    labels = _forward(Store.labels)
    days = _forward(Store.days)
    namespaces = _forward(Store.namespaces)
    vectors = _forward(Store.vectors)
    unstaged = _forward(Store.unstaged)
    stage = _forward(Store.stage)
    switch = _forward(Store.switch)
    use_space = _forward(Store.use_space)
    info = _forward(Store.info)
    refs = _forward(Store.refs)
    check = _forward(Store.check)
    repair = _forward(Store.repair)
    close = _forward(Store.close)


# Maximum number of buffered records. Adding them to the store takes much longer than buffering
# them. With a higher limit, a caller with a time limit for its transaction would notice too late
# that the limit was exceeded.
MAX_BUFFERED = 512


class Savepoint(NamedTuple):
    """A mark for `BufferedStore.take_back`: the counts of appended records and of other changes."""

    appended: int
    changes: int


def _count_change(method: Method) -> Method:
    """Return a method of `BufferedStore` that counts as a change that can't be taken back."""

    @functools.wraps(method)
    def call(self: "BufferedStore", *args: Any, **options: Any) -> Any:
        self._changes += 1
        return method(self, *args, **options)

    return cast("Method", call)


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
        self.heads: dict[str, tuple[int, ChainEntry]] = {}
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

    def append(self, records: "Sequence[Record]") -> None:
        """Buffer records to add later; `flush` raises the errors of `Store.append`."""
        self._buffered += records
        if len(self._buffered) > MAX_BUFFERED:
            self.flush()

    patch = _count_change(StoreWrapper.patch)
    touch = _count_change(StoreWrapper.touch)
    remove = _count_change(StoreWrapper.remove)
    stage = _count_change(StoreWrapper.stage)
    switch = _count_change(StoreWrapper.switch)
    repair = _count_change(StoreWrapper.repair)

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
