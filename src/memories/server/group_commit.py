"""Group commit: writes wait in a queue, and one thread commits many of them in one transaction.

A disk flush takes as long for one write as for a hundred, so writes that arrive during a commit
share the next transaction. Each write is acknowledged after its commit. A refused write fails
without affecting the others.

New records wait in a `BufferedStore`, and are added to the store before the next read or patch and
at the end of the transaction. If one of them can't be added, the transaction is rolled back and run
again with each write in its own savepoint.
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
from typing import Any, NamedTuple

from memories.core import events
from memories.errors import StoreBusy, StoreDamaged, StoreError, SystemFault
from memories.memories import Memories
from memories.models import Draft
from memories.stores import Store
from memories.stores.logged import LoggedStore, collect_reports
from memories.stores.wrapper import BufferedStore
from memories.write.create import Batch, Created, write_batches

MOST_WAITING = 2_000  # maximum number of writes in the queue
# limits of one transaction: number of writes, characters of text, and seconds
MOST_AT_ONCE = 256
MOST_CHARACTERS = 1_048_576
_SECONDS = 0.1


class Full(StoreBusy):
    """Too many writes are already waiting; nothing was written."""


class Ending(StoreBusy):
    """The server is stopping; nothing was written."""

    def __init__(self) -> None:
        super().__init__("the server is stopping; nothing was written; try again in a second")


class _Submitted(NamedTuple):
    """A create operation; its event is recorded when it completes."""

    memories: Memories
    drafts: Sequence[Draft]
    started_at: float

    def record_event(self, result: Any) -> None:
        events.note_finished(self.memories, "create", self.started_at, self.drafts, result)


class _Write(NamedTuple):
    """New memories in the queue.

    Attributes:
        batch: The new memories, embedded.
        submitted: The operation whose event is recorded with the result; None if the caller
            records it.
        size: The number of characters of text.
        context: The context variables of the caller's thread.
        future: Resolves to the outcome for each draft.
    """

    batch: Batch
    submitted: _Submitted | None
    size: int
    context: contextvars.Context
    future: "Future[Any]"

    @classmethod
    def of(cls, batch: Batch, submitted: _Submitted | None = None) -> "_Write":
        """Return a write that stores new memories; it will run in this thread's context."""
        size = sum(len(item.draft.content) for item in batch.drafts)
        return cls(batch, submitted, size, contextvars.copy_context(), Future())

    @property
    def store(self) -> Store:
        """The store that the new memories are written to."""
        return self.batch.ctx.store


class _Outcome(NamedTuple):
    write: _Write
    result: Any
    error: Exception | None


class _Part(NamedTuple):
    """Writes that were committed through one store, and the functions that report them."""

    outcomes: Sequence[_Outcome]
    reports: Sequence[Callable[[], None]]

    def report(self, flushed: set[Path]) -> "list[tuple[_Write, Any]]":
        """Report the changes, and save access counts; return each write's result or error.

        Args:
            flushed: The homes whose access counts have been saved since the commit. This method
                adds the homes whose counts it saves.
        """
        try:
            for report in self.reports:
                report()
            for write, *_ in self.outcomes:
                if write.submitted is None:
                    continue
                memories = write.submitted.memories
                if memories.config.home not in flushed:
                    memories.flush_accesses()
                    flushed.add(memories.config.home)
        except Exception as exc:  # noqa: BLE001 - each write raises it, as it would alone
            return self._results(exc)
        return self._results(None)

    def _results(self, failure: Exception | None) -> "list[tuple[_Write, Any]]":
        return [(write, error or failure or result) for write, result, error in self.outcomes]


def _resolve(results: Sequence[tuple[_Write, Any]]) -> None:
    """Record the events of submitted writes, then resolve each write's future."""
    with events.together():
        for write, result in results:
            if write.submitted is not None:
                write.submitted.record_event(result)
    for write, result in results:
        if isinstance(result, Exception):
            write.future.set_exception(result)
        else:
            write.future.set_result(result)


class _Apart(Exception):
    """Raised when writes that were made in one step must be repeated, each in its own savepoint."""


class GroupCommit:
    """A store's write queue, and the thread that commits it. Any number of threads may submit
    writes.
    """

    def __init__(self, store: Store, fits: Callable[[], bool] = lambda: True) -> None:
        """Start with an empty queue.

        Args:
            store: The store.
            fits: Returns whether the store is still the one that was opened. It is called before
                each transaction.
        """
        self._store, self._fits = store, fits
        self._waiting: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._broken: SystemFault | None = None
        self._closed, self._until = False, 0.0
        self._entering = threading.Lock()
        self.commits = self.writes = 0
        self._thread = threading.Thread(target=self._work, name="group commit", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of writes in the queue."""
        return self._waiting.qsize()

    @property
    def problem(self) -> str:
        """Why writing has stopped; empty while there is no problem."""
        return "" if self._broken is None else str(self._broken)

    def create(
        self, memories: Memories, drafts: Sequence[Draft], force: bool, redact: bool
    ) -> list[Created]:
        """Store drafts as `Memories.create_many` does, in transactions that other writes share.

        Raises:
            Full: Too many writes are waiting.
            Ending: The server is stopping.
            SystemFault: The transaction failed, and so did every write in it.
        """
        if len(drafts) == 1:
            return self.submit(memories, drafts[0], force, redact).result()
        run = events.note_calls(self._create, "create_many", "create")
        result: list[Created] = run(memories, list(drafts), force, redact)
        return result

    def _create(
        self, memories: Memories, drafts: Sequence[Draft], force: bool, redact: bool
    ) -> list[Created]:
        def write(batch: Batch) -> list[Created]:
            created: list[Created] = self._enter(_Write.of(batch)).result()
            return created

        return write_batches(memories.prepare(drafts, force=force, redact=redact), write)

    def submit(
        self, memories: Memories, draft: Draft, force: bool, redact: bool
    ) -> "Future[list[Created]]":
        """Queue a draft without waiting for it, unlike `create`; return a future for its result."""
        submitted = _Submitted(memories, [draft], time.perf_counter())
        try:
            [batch] = memories.prepare(submitted.drafts, force=force, redact=redact)
            return self._enter(_Write.of(batch, submitted))
        except Exception as exc:
            submitted.record_event(exc)
            raise

    def _enter(self, write: _Write) -> "Future[Any]":
        write.future.set_running_or_notify_cancel()  # the caller can no longer cancel the write
        with self._entering:
            if self._closed:
                raise Ending
            if self._waiting.qsize() >= MOST_WAITING:
                raise Full(
                    f"{MOST_WAITING} writes are already waiting for the store; nothing was "
                    "written; try again"
                )
            self._waiting.put(write)
        return write.future

    def close(self, seconds: float = 3.0) -> bool:
        """Accept no more writes, and complete the queued ones; refuse those that have not begun
        when the time is up. Return whether all were completed.
        """
        with self._entering:  # so that no write can follow the end marker
            if not self._closed:
                self._until = time.monotonic() + seconds
                self._waiting.put(None)
            self._closed = True
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                while (write := self._waiting.get_nowait()) is not None:
                    _resolve([(write, Ending())])
                self._waiting.put(None)
        return not self._thread.is_alive()

    def _work(self) -> None:
        is_closed = False
        while not is_closed:
            writes, is_closed = self._next()
            if writes:
                self._commit(writes)

    def _next(self) -> tuple[list[_Write], bool]:
        """Wait for a write; return it with the writes queued behind it, and whether the queue was
        closed.
        """
        first = self._waiting.get()
        if first is None:
            return [], True
        writes, size = [first], first.size
        while len(writes) < MOST_AT_ONCE and size < MOST_CHARACTERS:
            try:
                write = self._waiting.get_nowait()
            except queue.Empty:
                break
            if write is None:
                return writes, True
            writes.append(write)
            size += write.size
        return writes, False

    def _commit(self, writes: Sequence[_Write]) -> None:
        """Commit writes in one transaction or, if that takes too long, in several."""
        # Sorted, because consecutive writes through the same `LoggedStore`, such as those of one
        # HTTP user, share a log entry. This doesn't reorder any client's writes: a client waits for
        # each write before it sends the next.
        remaining = sorted(writes, key=lambda write: id(write.store))
        together = True
        while remaining:
            try:
                self._refuse_broken()
                parts = self._run_transaction(remaining, together=together)
            except _Apart:
                together = False
                continue
            except Exception as exc:  # noqa: BLE001 - each write raises it, and the thread goes on
                self._fail(remaining, exc)
                return
            count = sum(len(part.outcomes) for part in parts)
            remaining = remaining[count:]
            self.commits += 1
            self.writes += count
            flushed: set[Path] = set()
            _resolve([result for part in parts for result in part.report(flushed)])

    def _run_transaction(self, writes: Sequence[_Write], *, together: bool) -> "list[_Part]":
        """Commit as many writes as time allows in one transaction; return them grouped by store.

        Args:
            writes: The writes.
            together: Whether to add all new memories in one step. If False, each write gets its own
                savepoint.

        Raises:
            _Apart: A write that was made together with others failed and can't be undone
                separately; nothing was written.
        """
        # Transactions are nested three deep. Only the outermost one commits. Each `LoggedStore`
        # has a transaction that ends by adding a log entry. Each write has one too: a savepoint
        # or, in a `BufferedStore`, no transaction in the store.
        parts: list[_Part] = []
        until = time.monotonic() + _SECONDS
        with self._store.transaction():
            try:
                buffer = BufferedStore(self._store)
                for store, group in itertools.groupby(writes, key=lambda write: write.store):
                    outcomes: list[_Outcome] = []
                    logged = store
                    if together:
                        if not isinstance(store, LoggedStore) or store.wrapped is not self._store:
                            raise _Apart
                        logged = store.with_buffer(buffer)
                    with collect_reports() as reports, logged.transaction():
                        for write in group:
                            if (parts or outcomes) and time.monotonic() >= until:
                                break
                            outcomes.append(
                                self._write_together(write, buffer, logged)
                                if together
                                else self._write_apart(write)
                            )
                    parts.append(_Part(outcomes, reports))
                    if time.monotonic() >= until:
                        break
                buffer.flush()
            except Exception as exc:  # the commit, whose outcome may be unknown, comes later
                if together:
                    raise _Apart from exc
                raise
        return parts

    def _write_together(self, write: _Write, buffer: BufferedStore, logged: Store) -> "_Outcome":
        """Run a write whose records are buffered; drop the records of a refused write."""
        before = buffer.mark()
        try:
            return _Outcome(write, write.context.run(write.batch.with_store(logged).write), None)
        except Exception as exc:
            if isinstance(exc, StoreError) or not buffer.take_back(before):
                raise
            return _Outcome(write, None, exc)

    def _write_apart(self, write: _Write) -> "_Outcome":
        """Run one write in its own savepoint; a refused write rolls back only its savepoint.

        Raises:
            StoreError: The store failed, so the entire transaction failed.
        """
        try:
            return _Outcome(write, write.context.run(write.batch.write), None)
        except StoreError as exc:
            if exc.__cause__ is not None:  # an error from the driver, not one of our refusals
                self._fail([write], exc)
                raise
            return _Outcome(write, None, exc)
        except Exception as exc:  # noqa: BLE001 - the caller that waits gets it
            return _Outcome(write, None, exc)

    def _refuse_broken(self) -> None:
        if self._broken is None and not self._fits():
            self._broken = StoreDamaged(
                "the store was removed or replaced while the server had it open; start the server "
                "again"
            )
        if self._broken is not None:
            raise type(self._broken)(str(self._broken))

    def _fail(self, writes: Sequence[_Write], error: Exception) -> None:
        """Fail writes with an error. If the error reports a damaged file, all writing stops."""
        if isinstance(error, StoreDamaged) and self._broken is None:
            self._broken = error
        _resolve([(write, error) for write in writes if not write.future.done()])
