"""A deadline for calls that can't be interrupted: each runs in another thread, and the caller goes on without it."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Value = TypeVar("Value")
_Task = tuple[Callable[[], Any], "Future[Any]"]


class MemoryTimeout(ConnectionError):
    """The memory did not answer in time; whether a write arrived is not known."""


class Deadline:
    """Runs calls and gives up those that take too long; they go on by themselves and nobody hears of their result.

    While one that was given up still runs, all others fail at once: behind a store that hangs they would hang too.
    Threads may share a deadline; a thread that is done takes the next call, since stores keep a connection for each.
    """

    def __init__(self, seconds: float | None) -> None:
        """Set it.

        Args:
            seconds: How long a call may take; None for no limit: calls then run in the thread of the caller.
        """
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[SimpleQueue[_Task | None]] = []
        self._given_up: set[Future[Any]] = set()

    def run(self, work: Callable[[], Value]) -> Value:
        """Return what a call returns, or raise what it raises.

        Raises:
            MemoryTimeout: It took too long, or an earlier one still hangs.
        """
        if self.seconds is None:
            return work()
        done: Future[Value] = Future()
        with self._lock:
            if self._process != os.getpid():  # a fork has no threads but its own
                self._process, self._idle, self._given_up = os.getpid(), [], set()
            if self._given_up:
                raise MemoryTimeout(f"the memory still has not answered an earlier call ({_HOW})")
            tasks = self._idle.pop() if self._idle else self._start()
        tasks.put((work, done))
        try:
            return done.result(self.seconds)
        except TimeoutError:
            with self._lock:
                if done.done():  # just now, or that is what the call raised
                    late = False
                else:
                    self._given_up.add(done)
                    late = True
            if not late:
                return done.result()
            raise MemoryTimeout(f"the memory did not answer within {self.seconds:g} s ({_HOW})") from None

    def close(self) -> None:
        """Let the threads that wait for calls end."""
        with self._lock:
            idle, self._idle = self._idle, []
        for tasks in idle:
            tasks.put(None)

    def _start(self) -> "SimpleQueue[_Task | None]":
        tasks: SimpleQueue[_Task | None] = SimpleQueue()
        threading.Thread(target=self._serve, args=(tasks,), name="memory", daemon=True).start()
        return tasks

    def _serve(self, tasks: "SimpleQueue[_Task | None]") -> None:
        while (task := tasks.get()) is not None:
            work, done = task
            try:
                value, error = work(), None
            except BaseException as exc:  # noqa: BLE001 - it is raised where the call is waited for
                value, error = None, exc
            with self._lock:
                self._given_up.discard(done)
                if error is None:
                    done.set_result(value)
                else:
                    done.set_exception(error)
                self._idle.append(tasks)
            del task, work, done, value, error  # what was read is not kept until the next call


_HOW = "the setting is MEMORY_TIMEOUT_SECONDS"
