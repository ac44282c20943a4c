"""Group commit: writes wait in a queue, and one thread makes many of them in one transaction of the store.

A flush of the disk takes as long for one write as for a hundred, so what comes while one transaction is committed goes
into the next one. Each write is acknowledged after its commit; one that is refused fails alone.

New memories are added to the store together, at the end of the transaction or before anything is read. If one of them
fails so late, all are undone and made again, each in a part of the transaction that can be undone alone.
"""

import contextlib
import contextvars
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from memories.core import events
from memories.errors import StoreBusy, StoreDamaged, StoreError, SystemFault
from memories.memories import Memories
from memories.models import Draft
from memories.stores import Store
from memories.stores.deferred import Deferred
from memories.stores.logged import deferring, telling_later
from memories.write.create import Created, Prepared

MOST_WAITING = 2_000
MOST_AT_ONCE = 256
MOST_BYTES = 1_048_576
_SECONDS = 0.1  # of work in one transaction: other processes wait for it

Result = TypeVar("Result")


class Full(StoreBusy):
    """Too many writes wait already; nothing was written."""


class Ending(StoreBusy):
    """The server is stopping; nothing was written."""

    def __init__(self) -> None:
        super().__init__("the server is stopping; nothing was written; try again in a second")


class _Begun(NamedTuple):
    """A create that nobody waits for with a thread, so that it is noted at its end."""

    memories: Memories
    drafts: Sequence[Draft]
    at: float

    def note(self, result: Any) -> None:
        events.ended(self.memories, "create", self.at, self.drafts, result)


class _Waiting(NamedTuple):
    run: Callable[[], Any]
    size: int
    store: Store
    context: contextvars.Context
    future: "Future[Any]"
    prepared: Prepared | None  # whose `write` it runs
    begun: _Begun | None = None

    @classmethod
    def of(cls, prepared: Prepared, begun: _Begun | None = None) -> "_Waiting":
        """Return what writes new memories."""
        size = sum(len(each.draft.content) for each in prepared.ready)
        context = contextvars.copy_context()
        return cls(prepared.write, size, prepared.writer.store, context, Future(), prepared, begun)


class _Made(NamedTuple):
    item: _Waiting
    result: Any
    error: Exception | None


class _Part(NamedTuple):
    """Writes through one store that were committed, and what has to be told of them."""

    made: Sequence[_Made]
    tells: Sequence[Callable[[], None]]

    def outcomes(self, counted: set[Path]) -> "list[tuple[_Waiting, Any]]":
        """Tell what changed, and have reads counted; return what came of each write.

        Args:
            counted: The homes whose reads have been counted; they are those of one store.
        """
        try:
            for tell in self.tells:
                tell()
            for memories in [item.begun.memories for item, *_ in self.made if item.begun is not None]:
                if memories.config.home not in counted:
                    memories.flush_accesses()
                    counted.add(memories.config.home)
        except Exception as exc:  # noqa: BLE001 - each is told what a write that is alone raises after its commit
            return self._outcomes(exc)
        return self._outcomes(None)

    def _outcomes(self, failed: Exception | None) -> "list[tuple[_Waiting, Any]]":
        return [(item, error or failed or result) for item, result, error in self.made]


def _answer(made: Sequence[tuple[_Waiting, Any]]) -> None:
    """Tell each what came of its write, an exception if it failed; first note those that are noted here."""
    with events.together():
        for item, result in made:
            if item.begun is not None:
                item.begun.note(result)
    for item, result in made:
        if isinstance(result, Exception):
            item.future.set_exception(result)
        else:
            item.future.set_result(result)


class _Apart(Exception):
    """Writes that were made together have to be made again, each in a part of the transaction."""


class Writers:
    """The queue of the writes to one store, and the thread that makes them; any number of threads may use it."""

    def __init__(self, store: Store, fits: Callable[[], bool] = lambda: True) -> None:
        """Begin with an empty queue.

        Args:
            store: Where the transactions are made.
            fits: Whether the store is still the one that was opened; asked before each transaction.
        """
        self._store, self._fits = store, fits
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._broken: SystemFault | None = None
        self._closed, self._until = False, 0.0
        self._entering = threading.Lock()
        self.commits = self.writes = 0
        self._thread = threading.Thread(target=self._work, name="writers", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many writes wait."""
        return self._waiting.qsize()

    @property
    def problem(self) -> str:
        """Why nothing is written any more; empty while all is well."""
        return "" if self._broken is None else str(self._broken)

    def create(self, memories: Memories, drafts: Sequence[Draft], force: bool, redact: bool) -> list[Created]:
        """Store drafts as `Memories.create_many` does; see `do` for what else it may raise."""
        if len(drafts) == 1:
            return self.submit(memories, drafts[0], force, redact).result()
        run = events.noted(self._create, "create_many", "create")
        result: list[Created] = run(memories, list(drafts), force, redact)
        return result

    def _create(self, memories: Memories, drafts: Sequence[Draft], force: bool, redact: bool) -> list[Created]:
        done: list[Created] = []
        for prepared in memories.prepare(drafts, force=force, redact=redact):
            done += self._enter(_Waiting.of(prepared)).result()
        return done

    def submit(self, memories: Memories, draft: Draft, force: bool, redact: bool) -> "Future[list[Created]]":
        """Store a draft as `create` does, but return before: what is returned is done when `create` would return."""
        begun = _Begun(memories, [draft], time.perf_counter())
        try:
            [prepared] = memories.prepare(begun.drafts, force=force, redact=redact)
            return self._enter(_Waiting.of(prepared, begun))
        except Exception as exc:
            begun.note(exc)
            raise

    def do(self, run: Callable[[], Result], size: int = 0, store: Store | None = None) -> Result:
        """Run what writes in a transaction that others share; return what it returns once that is committed.

        Args:
            run: Writes to the store, in a transaction; it is run by another thread, in the context of this one.
            size: How many bytes it writes, about.
            store: What it writes through, if it logs: writes by the same one have one entry in the audit log.

        Raises:
            Full: Too many writes wait.
            SystemFault: The transaction failed, and with it all that it held.
        """
        item = _Waiting(run, size, store or self._store, contextvars.copy_context(), Future(), None)
        result: Result = self._enter(item).result()
        return result

    def _enter(self, item: _Waiting) -> "Future[Any]":
        item.future.set_running_or_notify_cancel()  # who stops waiting stops nothing
        with self._entering:
            if self._closed:
                raise Ending
            if self._waiting.qsize() >= MOST_WAITING:
                raise Full(f"{MOST_WAITING} writes wait for the store already; nothing was written; try again")
            self._waiting.put(item)
        return item.future

    def close(self, seconds: float = 3.0) -> bool:
        """Make what waits, and nothing more; return whether it was all made in time. What was not begun is refused."""
        with self._entering:  # so that nothing comes behind the end
            if not self._closed:
                self._until = time.monotonic() + seconds
                self._waiting.put(None)
            self._closed = True
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                while (item := self._waiting.get_nowait()) is not None:
                    _answer([(item, Ending())])
                self._waiting.put(None)
        return not self._thread.is_alive()

    def _work(self) -> None:
        ended = False
        while not ended:
            items, ended = self._next()
            if items:
                self._commit(items)

    def _next(self) -> tuple[list[_Waiting], bool]:
        """Wait for a write; return it with those behind it, and whether the end of the queue was reached."""
        first = self._waiting.get()
        if first is None:
            return [], True
        items, size = [first], first.size
        while len(items) < MOST_AT_ONCE and size < MOST_BYTES:
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return items, True
            items.append(item)
            size += item.size
        return items, False

    def _commit(self, items: Sequence[_Waiting]) -> None:
        """Make writes, in one transaction or, if that takes long, in several."""
        # Those that share an entry of the log stand together; a client that waits for one sends no second one.
        left = sorted(items, key=lambda item: id(item.store))
        together = all(item.prepared is not None for item in left)
        while left:
            try:
                self._refuse_broken()
                parts = self._make(left, together=together)
            except _Apart:
                together = False
                continue
            except Exception as exc:  # noqa: BLE001 - each who waits is told, and the thread goes on
                self._fail(left, exc)
                return
            count = sum(len(part.made) for part in parts)
            left = left[count:]
            self.commits += 1
            self.writes += count
            counted: set[Path] = set()
            _answer([each for part in parts for each in part.outcomes(counted)])

    def _make(self, items: Sequence[_Waiting], *, together: bool) -> "list[_Part]":
        """Make the first of some writes in a transaction; return them once it is committed, by the store of each.

        Args:
            items: The writes.
            together: Add all new memories at once, else each in a part of the transaction that can be undone alone.

        Raises:
            _Apart: Of those that were made together one failed and can't be undone alone; nothing was written.
        """
        parts: list[_Part] = []
        until = time.monotonic() + _SECONDS
        with self._store.transaction():
            try:
                batch = Deferred(self._store)
                heads: dict[str, Any] = {}
                for store, some in itertools.groupby(items, key=lambda item: item.store):
                    made: list[_Made] = []
                    through = deferring(store, self._store, batch, heads) if together else store
                    if through is None:
                        raise _Apart
                    with telling_later() as tells, through.transaction():
                        for item in some:
                            if (parts or made) and time.monotonic() >= until:
                                break
                            made.append(self._deferred(item, batch, through) if together else self._made(item))
                    parts.append(_Part(made, tells))
                    if time.monotonic() >= until:
                        break
                batch.flush()
            except Exception as exc:  # the commit is not in here: whether it was done may be unknown
                if together:
                    raise _Apart from exc
                raise
        return parts

    def _deferred(self, item: _Waiting, batch: Deferred, through: Store) -> "_Made":
        """Make a write through a batch; one that is refused takes back what it added."""
        assert item.prepared is not None
        before = batch.mark()
        try:
            return _Made(item, item.context.run(item.prepared.through(through).write), None)
        except Exception as exc:
            if isinstance(exc, StoreError) or not batch.take_back(before):
                raise
            return _Made(item, None, exc)

    def _made(self, item: _Waiting) -> "_Made":
        """Make one write in a part of the transaction; one that is refused undoes its own part only.

        Raises:
            StoreError: The store failed, and with it the whole transaction.
        """
        try:
            return _Made(item, item.context.run(item.run), None)
        except StoreError as exc:
            if exc.__cause__ is not None:  # what its driver says, and no judgement of ours
                self._fail([item], exc)
                raise
            return _Made(item, None, exc)
        except Exception as exc:  # noqa: BLE001 - who waits for it is told
            return _Made(item, None, exc)

    def _refuse_broken(self) -> None:
        if self._broken is None and not self._fits():
            self._broken = StoreDamaged(
                "the store was removed or replaced while the server had it open; start it again"
            )
        if self._broken is not None:
            raise type(self._broken)(str(self._broken))

    def _fail(self, items: Sequence[_Waiting], error: Exception) -> None:
        """Tell all of them; what says that the file is damaged ends all writing."""
        if isinstance(error, StoreDamaged) and self._broken is None:
            self._broken = error
        _answer([(item, error) for item in items if not item.future.done()])
