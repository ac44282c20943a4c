"""Files that several threads and processes share: durable writes, replacing a file in one step,
locks; and forks.

What belongs to a store's own format is not here.
"""

import contextlib
import errno
import os
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: only the threads of one process wait for each other
    fcntl = None  # type: ignore[assignment]

CREATING = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
FULL = (errno.ENOSPC, errno.EDQUOT)
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.0005, 0.002
_QUEUES = hasattr(fcntl, "F_OFD_SETLK") and sys.maxsize > 2**32
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux
_LAST_TICKET = 2**62
_threads: dict[Path, threading.Lock] = {}


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however little the system takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_file(path: Path) -> bytes:
    """Return what a file holds; a pipe or a device in its place keeps nobody waiting.

    Raises:
        OSError: It can't be read, or is no file.
    """
    with open_file(path) as stream:
        return stream.read()


def open_file(path: Path) -> IO[bytes]:
    """Open a file to read it; see `read_file`."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        kind = os.fstat(fd).st_mode
        if not stat.S_ISREG(kind):
            number, what = (
                (errno.EISDIR, "folder")
                if stat.S_ISDIR(kind)
                else (errno.EINVAL, "pipe or a device")
            )
            raise OSError(number, f"{path} is a {what}, not a file")
        return os.fdopen(fd, "rb")
    except OSError:
        os.close(fd)
        raise


def flush_folder(folder: Path) -> None:
    """Make new and renamed names in a folder survive a power cut; on systems that can't, do
    nothing.
    """
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
def replacing(
    path: Path, scratch: Path | None = None, agreed: Callable[[], None] = lambda: None
) -> Iterator[IO[bytes]]:
    """Give a new file to write, which takes the place of another one in one step if nothing fails.

    Args:
        path: The file that is replaced, or made.
        scratch: Where the new one is written: beside `path`, and used by nobody else. By default a
            name of its own.
        agreed: Called when the new one is on the disk; what it raises keeps the old one.
    """
    scratch = scratch or path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    fd = os.open(scratch, CREATING | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        with open(fd, "wb") as stream:  # noqa: PTH123 - a descriptor
            yield stream
            stream.flush()
            os.fsync(fd)
        agreed()
        put_in_place(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other threads and processes out while inside; the kernel frees the lock of a process
    that dies.

    One thread can't take it twice.

    Args:
        path: The lock's file; made, with its folder, if it is not there.
    """
    with tried(path, None):
        yield


@contextlib.contextmanager
def tried(path: Path, seconds: float | None) -> Iterator[bool]:
    """Do what `locked` does, but wait for a limited time; those who wait have their turns in the
    order they came.

    Args:
        path: The lock's file; made, with its folder, if it is not there.
        seconds: How long others may hold it; None to wait for as long as it takes.

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
        yield held
    finally:
        if held and fcntl is None:
            _threads[path].release()
        elif held and not guard.forked:
            fcntl.flock(
                fd, fcntl.LOCK_UN
            )  # closing alone would leave it with a child that was forked meanwhile
        os.close(fd)


def _take(fd: int, path: Path, seconds: float | None) -> bool:
    if fcntl is None:
        return _threads.setdefault(path, threading.Lock()).acquire(
            timeout=-1 if seconds is None else seconds
        )
    if seconds is None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return True
    if not _waiting(fd, _LAST_TICKET) and _taken_at_once(fd):
        return True
    return seconds > 0 and _take_in_turn(fd, time.monotonic() + seconds)


def _take_in_turn(fd: int, until: float) -> bool:
    """Wait for the lock behind those who came before.

    Who waits locks one byte of the file, whose offset is the time when it came; the kernel frees it
    when it dies. Only the first polls the lock itself, so that who has just released it can't take
    it again before the others.
    """
    ticket = _draw_ticket(fd)
    try:
        while True:
            first = not _waiting(fd, ticket)
            if first and _taken_at_once(fd):
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(_FIRST_POLL_SECONDS if first else _POLL_SECONDS)
    finally:
        if ticket is not None:
            _range(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, ticket, 1)


def _taken_at_once(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _draw_ticket(fd: int) -> int | None:
    """Return a place in the queue; None if this system has no locks of ranges that belong to a
    descriptor.
    """
    while _QUEUES:
        ticket = time.monotonic_ns()
        try:
            _range(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, ticket, 1)
        except BlockingIOError:
            continue  # another one drew it in the same nanosecond
        except OSError:
            return None
        return ticket
    return None


def _waiting(fd: int, ticket: int | None) -> bool:
    """Return whether somebody waits who came before."""
    if not _QUEUES or ticket is None:
        return False
    try:
        found = _range(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 1, ticket - 1)
    except OSError:
        return False  # a file system without such locks: everybody polls the lock itself
    return found != fcntl.F_UNLCK


def _range(fd: int, command: int, kind: int, start: int, length: int) -> int:
    """Lock, unlock or ask about a range of a file; return the kind of lock that the kernel tells
    of.
    """
    answer = fcntl.fcntl(fd, command, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0))
    return int(struct.unpack(_FLOCK, answer)[0])


class ForkGuard:
    """Remembers which process opened something: a forked child must not use its parent's
    connections and locks.
    """

    __slots__ = ("_process",)

    def __init__(self) -> None:
        """Remember this process."""
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the guard."""
        return self._process != os.getpid()
