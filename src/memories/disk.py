"""Files that several threads and processes share: durable writes, replacing a file in one step, locks; and forks.

What belongs to a store's own format is not here.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: only the threads of one process wait for each other
    fcntl = None  # type: ignore[assignment]

CREATING = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.0005, 0.003
_threads: dict[Path, threading.Lock] = {}


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however little the system takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def flush_folder(folder: Path) -> None:
    """Make new and renamed names in a folder survive a power cut; on systems that can't, do nothing."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing, for this user alone."""
    missing = takewhile(lambda each: not each.exists(), (folder, *folder.parents))
    for each in reversed(list(missing)):
        each.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would leave those above open to all


def put_in_place(scratch: Path, path: Path) -> None:
    """Rename a file over another one in one step that survives a power cut."""
    scratch.replace(path)
    flush_folder(path.parent)


@contextlib.contextmanager
def replacing(path: Path, scratch: Path | None = None) -> Iterator[IO[bytes]]:
    """Give a new file to write, which takes the place of another one in one step if nothing fails.

    Args:
        path: The file that is replaced, or made.
        scratch: Where the new one is written: beside `path`, and used by nobody else. By default a name of its own.
    """
    scratch = scratch or path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    fd = os.open(scratch, CREATING | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        with open(fd, "wb") as stream:  # noqa: PTH123 - a descriptor
            yield stream
            stream.flush()
            os.fsync(fd)
        put_in_place(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other threads and processes out while inside; the kernel frees the lock of a process that dies.

    One thread can't take it twice.

    Args:
        path: The lock's file; made, with its folder, if it is not there.
    """
    with tried(path, None):
        yield


@contextlib.contextmanager
def tried(path: Path, seconds: float | None, *, signed: bool = False) -> Iterator[bool]:
    """Do what `locked` does, but wait for a limited time.

    Args:
        path: The lock's file; made, with its folder, if it is not there.
        seconds: How long others may hold it; None to wait for as long as it takes.
        signed: Write into the file which process holds the lock, for `holder`.

    Yields:
        Whether it is held now.
    """
    try:
        fd = os.open(path, CREATING | os.O_RDWR, 0o600)
    except FileNotFoundError:
        make_folder(path.parent)
        fd = os.open(path, CREATING | os.O_RDWR, 0o600)
    held = False
    guard = ForkGuard()
    try:
        held = _take(fd, path, seconds)
        if held and signed and fcntl is not None:
            with contextlib.suppress(OSError):  # a full disk: only a message of those who wait is the poorer
                os.pwrite(fd, f"{os.getpid():<20}".encode(), 0)
        yield held
    finally:
        if held and fcntl is None:
            _threads[path].release()
        elif held and not guard.forked:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would leave it with a child that was forked meanwhile
        os.close(fd)


def holder(path: Path) -> str:
    """Return the id of the process that holds, or last held, a signed lock; empty if that is not known."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _take(fd: int, path: Path, seconds: float | None) -> bool:
    if fcntl is None:
        return _threads.setdefault(path, threading.Lock()).acquire(timeout=-1 if seconds is None else seconds)
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
        else:
            return True
        import random  # 3 ms that only those who wait pay

        # At random, so that those who wait stay out of step and each has its turn.
        time.sleep(random.uniform(_MIN_POLL_SECONDS, _MAX_POLL_SECONDS))  # noqa: S311


class ForkGuard:
    """Remembers which process opened something: a forked child must not use its parent's connections and locks."""

    __slots__ = ("_process",)

    def __init__(self) -> None:
        """Remember this process."""
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the guard."""
        return self._process != os.getpid()
