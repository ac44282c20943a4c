"""A lock that threads and processes share, on a file of its own."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: only the threads of one process wait for each other
    fcntl = None  # type: ignore[assignment]

CREATING = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_POLL_SECONDS = 0.02
_threads = threading.Lock()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other threads and processes out while inside; the kernel frees the lock of a process that dies.

    It can't be taken twice by one thread.

    Args:
        path: The lock's file; made, with its folder, if it is not there.
    """
    with tried(path, None):
        yield


@contextlib.contextmanager
def tried(path: Path, seconds: float | None) -> Iterator[bool]:
    """Do as `locked` does, but wait for so long only.

    Args:
        path: The lock's file; made, with its folder, if it is not there.
        seconds: How long somebody else may keep it; None to wait for as long as it takes.

    Yields:
        Whether it is held now.
    """
    for folder in (*reversed(path.parent.parents), path.parent):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, CREATING | os.O_RDWR, 0o600)
    held = False
    try:
        held = _take(fd, seconds)
        yield held
    finally:
        if held and fcntl is None:
            _threads.release()
        os.close(fd)


def _take(fd: int, seconds: float | None) -> bool:
    if fcntl is None:
        return _threads.acquire(timeout=-1 if seconds is None else seconds)
    if seconds is None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return True
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True
