"""A deadline for calls that can't be interrupted: each runs in another thread, and the caller goes
on without it.
"""

import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeVar

Value = TypeVar("Value")


class Wait:
    """The time that one call spends waiting for its embedder, which a deadline tells from that of
    the store.

    Attributes:
        most_seconds: The most that the embedder may take for one text; None for what its settings
            allow.
    """

    def __init__(self, most_seconds: float | None = None) -> None:
        self.most_seconds = most_seconds
        self._ended, self._since = 0.0, 0.0

    @property
    def is_on(self) -> bool:
        """Whether the call waits now."""
        return bool(self._since)

    @property
    def seconds(self) -> float:
        """How long it has waited so far."""
        since = self._since
        return self._ended + (time.monotonic() - since if since else 0.0)

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._ended, self._since = self.seconds, 0.0


WAIT: "ContextVar[Wait | None]" = ContextVar(
    "wait", default=None
)  # of the call that this thread makes


class MemoryTimeout(ConnectionError):
    """The memory did not answer in time; whether a write arrived is not known."""


class _Call:
    """A call that another thread makes, as a `Future` of `concurrent.futures` is, whose import
    costs 6 ms.
    """

    def __init__(self, work: Callable[[], Any], wait: Wait) -> None:
        self.work = work
        self.wait = wait
        self.over = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        WAIT.set(self.wait)
        try:
            self.value = self.work()
        except BaseException as exc:  # noqa: BLE001 - it is raised where the call is waited for
            self.error = exc

    def result(self) -> Any:
        try:
            if self.error is not None:
                raise self.error
            return self.value
        finally:
            del self  # an error keeps this frame, and would keep itself


class Deadline:
    """Runs calls and gives up those that take too long; they go on by themselves and nobody hears
    of their result.

    While one that was given up still runs, all others fail at once: behind a store that hangs they
    would hang too. Threads may share a deadline; a thread that is done takes the next call, since
    stores keep a connection for each.
    """

    def __init__(self, seconds: float | None, *, whole: bool = False) -> None:
        """Set it.

        Args:
            seconds: How long a call may take; None for no limit: calls then run in the thread of
                the caller.
            whole: Whether that includes the time of the embedder, which then gives up after half of
                it. Otherwise that has limits of its own, and only the time of the store counts.
        """
        self.seconds = seconds
        self._whole = whole
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._given_up: set[_Call] = set()
        self._closed = False

    def run(self, work: Callable[[], Value]) -> Value:
        """Return what a call returns, or raise what it raises.

        Raises:
            MemoryTimeout: It took too long, or an earlier one still hangs.
        """
        if self.seconds is None:
            return work()
        call = _Call(work, Wait(self.seconds / 2 if self._whole else None))
        with self._lock:
            if self._process != os.getpid():  # a fork has no threads but its own
                self._process, self._idle, self._given_up = os.getpid(), [], set()
            if self._given_up:
                raise MemoryTimeout(f"the memory still has not answered an earlier call ({_HOW})")
            tasks = self._idle.pop() if self._idle else self._start()
        tasks.put(call)
        if not self._ended(call, self.seconds):
            with self._lock:
                late = not call.over.is_set()  # else it ended just now
                if late:
                    self._given_up.add(call)
            if late:
                what = "embedder" if call.wait.is_on else "memory"
                raise MemoryTimeout(f"the {what} did not answer within {self.seconds:g} s ({_HOW})")
        value: Value = call.result()
        return value

    def settle(self) -> None:
        """Wait for the calls that were given up, as long as a call may take."""
        until = time.monotonic() + (self.seconds or 0.0)
        for call in tuple(self._given_up):
            call.over.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Let the threads that wait for calls end, and those that make one once they are done."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for tasks in idle:
            tasks.put(None)

    def _ended(self, call: _Call, seconds: float) -> bool:
        """Wait for a call; return whether it ended in time."""
        began = time.monotonic()
        while True:
            apart = 0.0 if self._whole else call.wait.seconds
            left = began + seconds + apart - time.monotonic()
            if left <= 0 or call.over.wait(max(left, _LEAST_WAIT)):
                return call.over.is_set()

    def _start(self) -> "SimpleQueue[_Call | None]":
        tasks: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(target=self._serve, args=(tasks,), name="memory", daemon=True).start()
        return tasks

    def _serve(self, tasks: "SimpleQueue[_Call | None]") -> None:
        while (call := tasks.get()) is not None:
            call.make()
            with self._lock:
                self._given_up.discard(call)
                call.over.set()
                if self._closed:
                    return
                self._idle.append(tasks)
            del call  # what was read is not kept until the next call


# In a server: gives the deadline of that many seconds which all commands share, for its threads
# have the store open.
DEADLINE: ContextVar[Callable[[float | None], Deadline] | None] = ContextVar(
    "deadline", default=None
)
_LEAST_WAIT = 0.01  # seconds between two looks at a call that waits for its embedder
_HOW = "the setting is MEMORY_TIMEOUT_SECONDS"
