"""Deadlines for calls that can't be interrupted.

Each call runs in another thread; the caller stops waiting if the call is late.
"""

import functools
import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")
_MIN_WAIT = 0.01  # minimum number of seconds between two checks of a call


class Wait:
    """The time that a call spends waiting for its embedder, counted separately from the store's
    time.

    Attributes:
        most_seconds: The embedder's time limit for one text; None for the limit in its settings.
    """

    def __init__(self, most_seconds: float | None = None) -> None:
        self.most_seconds = most_seconds
        self._earlier_seconds = 0.0
        self._since = 0.0  # 0 while the call is not waiting

    @property
    def is_on(self) -> bool:
        """Whether the call is currently waiting for its embedder."""
        return bool(self._since)

    @property
    def seconds(self) -> float:
        """The time for which the call has waited for its embedder so far."""
        since = self._since
        if not since:
            return self._earlier_seconds
        return self._earlier_seconds + time.monotonic() - since

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._earlier_seconds, self._since = self.seconds, 0.0


# The `Wait` of the call that this thread is making.
WAIT: "ContextVar[Wait | None]" = ContextVar("wait", default=None)


class MemoryTimeout(ConnectionError):
    """The store did not respond in time; a write may or may not have arrived."""


class _Call:
    """A call in another thread. Importing `concurrent.futures` instead would take 6 ms."""

    def __init__(self, function: Callable[[], Any], wait: Wait) -> None:
        self.function = function
        self.wait = wait
        self.has_ended = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        WAIT.set(self.wait)
        try:
            self.value = self.function()
        except BaseException as exc:  # noqa: BLE001 - `result` raises it in the caller's thread
            self.error = exc

    def result(self) -> Any:
        try:
            if self.error is not None:
                raise self.error
            return self.value
        finally:
            del self  # an error keeps this frame alive, and with it the call


class Deadline:
    """Runs calls, and stops waiting for late ones.

    A late call continues in its thread, but its result is dropped. While it runs, all other calls
    fail immediately, since they would hang too. Several threads may use one deadline. A thread that
    runs a call is reused for later calls, since stores keep a connection per thread.
    """

    def __init__(self, seconds: float | None, *, whole: bool = False) -> None:
        """Create a deadline.

        Args:
            seconds: The time limit of a call. None for no limit; calls then run in the caller's
                thread.
            whole: Count the embedder's time too, and give the embedder half of the limit. By
                default, only the store's time counts, and the embedder has its own limits.
        """
        self.seconds = seconds
        self._whole = whole
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._abandoned: set[_Call] = set()
        self._is_closed = False

    def run(
        self,
        function: Callable[Arguments, Value],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Value:
        """Call a function; return its result, or raise its error.

        Raises:
            MemoryTimeout: The call took too long, or an earlier one still hangs.
        """
        if self.seconds is None:
            return function(*args, **kwargs)
        work = functools.partial(function, *args, **kwargs)
        call = _Call(work, Wait(self.seconds / 2 if self._whole else None))
        with self._lock:
            if self._process != os.getpid():  # a forked process has only the thread that forked
                self._process, self._idle, self._abandoned = os.getpid(), [], set()
            if self._abandoned:
                raise MemoryTimeout("the store still has not answered an earlier call")
            if self._idle:
                calls = self._idle.pop()
            else:
                calls = SimpleQueue()
                thread = threading.Thread(target=self._serve, args=(calls,), daemon=True)
                thread.name = "memory"
                thread.start()
        calls.put(call)
        if not self._wait_for(call, self.seconds):
            with self._lock:
                is_late = not call.has_ended.is_set()  # the call may have ended just now
                if is_late:
                    self._abandoned.add(call)
            if is_late:
                culprit = "embedder" if call.wait.is_on else "store"
                raise MemoryTimeout(
                    f"the {culprit} did not answer within {round(self.seconds, 3):.12g} s "
                    "(MEMORY_TIMEOUT_SECONDS sets this limit, except in hooks)"
                )
        value: Value = call.result()
        return value

    def settle(self) -> None:
        """Wait for abandoned calls, but no longer than the time limit of one call."""
        until = time.monotonic() + (self.seconds or 0.0)
        for call in tuple(self._abandoned):
            call.has_ended.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """End idle threads now, and busy threads after their call."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for calls in idle:
            calls.put(None)

    def _wait_for(self, call: _Call, seconds: float) -> bool:
        """Wait for a call; return whether it ended in time."""
        started_at = time.monotonic()
        while True:
            embedder_seconds = 0.0 if self._whole else call.wait.seconds
            remaining = started_at + seconds + embedder_seconds - time.monotonic()
            if remaining <= 0 or call.has_ended.wait(max(remaining, _MIN_WAIT)):
                return call.has_ended.is_set()

    def _serve(self, calls: "SimpleQueue[_Call | None]") -> None:
        while (call := calls.get()) is not None:
            call.run()
            with self._lock:
                self._abandoned.discard(call)
                call.has_ended.set()
                if self._is_closed:
                    return
                self._idle.append(calls)
            del call  # so that its result is freed before the next call


# Returns the shared deadline for a number of seconds. Only servers set this: their commands share
# deadlines, since a deadline's threads keep the store open.
DEADLINE: ContextVar[Callable[[float | None], Deadline] | None] = ContextVar(
    "deadline", default=None
)


def run_within(seconds: float | None, function: Callable[[], Value]) -> Value:
    """Call a function under the shared deadline, if any, or else under a new one.

    Args:
        seconds: Maximum time of the call; None for no limit.
        function: The function.

    Raises:
        MemoryTimeout: The call took too long.
    """
    shared = DEADLINE.get()
    if shared is not None:
        return shared(seconds).run(function)
    return run_once(seconds, function)


def run_once(seconds: float | None, function: Callable[[], Value]) -> Value:
    """Call a function under a new deadline; see `run_within`."""
    deadline = Deadline(seconds)
    try:
        return deadline.run(function)
    finally:
        deadline.close()
