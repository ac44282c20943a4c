"""Files that threads and processes share: durable writes, atomic replacement, locks and
permissions. Also detects forks.

This module doesn't know the format of any store.
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

from memories.errors import MemoriesError, SystemFault

try:
    import fcntl
except ImportError:  # Windows: only the threads of one process wait for each other
    fcntl = None  # type: ignore[assignment]

CREATING = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_MEMORY_BYTES = 16_777_216  # maximum size of a temporary copy in memory; a larger one is a file
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.0005, 0.002
_QUEUES = hasattr(fcntl, "F_OFD_SETLK") and sys.maxsize > 2**32
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux
_LAST_TICKET = 2**62
_threads: dict[Path, threading.Lock] = {}


def write_all(fd: int, data: bytes) -> None:
    """Write all data, even if the system accepts only part of it at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_file(path: Path) -> bytes:
    """Return the content of a file, without blocking on a pipe or a device in its place.

    Raises:
        OSError: The file can't be read, or isn't a regular file.
    """
    with open_file(path) as stream:
        return stream.read()


def open_file(path: Path) -> IO[bytes]:
    """Open a file to read it; see `read_file`."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, f"{path} is a folder, not a file")
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"{path} is a pipe or a device, not a file")
        return os.fdopen(fd, "rb")
    except OSError:
        os.close(fd)
        raise


def flush_folder(folder: Path) -> None:
    """Make a folder's new and renamed files survive a power failure, if the system supports it."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, open only to this user."""
    missing = takewhile(lambda path: not path.exists(), (folder, *folder.parents))
    for path in reversed(list(missing)):
        path.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would leave the parents open to all


def put_in_place(scratch: Path, path: Path) -> None:
    """Replace a file with another in one step that survives a power failure."""
    scratch.replace(path)
    flush_folder(path.parent)


@contextlib.contextmanager
def replacing(
    path: Path, scratch: Path | None = None, agreed: Callable[[], None] = lambda: None
) -> Iterator[IO[bytes]]:
    """Open a new file that replaces another one in one step, unless an error occurs.

    Args:
        path: The file to replace or create.
        scratch: The temporary path of the new file, in the same folder; by default a unique name.
        agreed: Called when the new file is on disk; if it raises an error, the old file is kept.
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
    except BaseException as exc:
        scratch.unlink(missing_ok=True)
        if isinstance(exc, OSError) and exc.filename is None:
            exc.filename = str(path)  # the error of a failed write doesn't contain the path
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that excludes other threads and processes; the kernel frees it if a process dies.

    The lock isn't reentrant.

    Args:
        path: The lock file; created, with its folder, if missing.
    """
    with try_lock(path, None):
        yield


@contextlib.contextmanager
def try_lock(path: Path, seconds: float | None) -> Iterator[bool]:
    """Like `locked`, but wait for a limited time.

    Threads and processes get the lock in the order in which they requested it.

    Args:
        path: The lock file; created, with its folder, if missing.
        seconds: Maximum time to wait; None for no limit.

    Yields:
        Whether the lock is held.
    """
    try:
        fd = os.open(path, CREATING | os.O_RDWR, 0o600)
    except FileNotFoundError:
        make_folder(path.parent)
        fd = os.open(path, CREATING | os.O_RDWR, 0o600)
    is_held = False
    guard = ForkGuard()
    try:
        is_held = _lock(fd, path, seconds)
        yield is_held
    finally:
        if is_held and fcntl is None:
            _threads[path].release()
        elif is_held and not guard.forked:
            # Closing the file isn't enough: a child forked in the meantime would keep it locked.
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _lock(fd: int, path: Path, seconds: float | None) -> bool:
    if fcntl is None:
        timeout = -1 if seconds is None else seconds
        return _threads.setdefault(path, threading.Lock()).acquire(timeout=timeout)
    if seconds is None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return True
    if not _has_waiting(fd, _LAST_TICKET) and _lock_at_once(fd):
        return True
    return seconds > 0 and _lock_in_turn(fd, time.monotonic() + seconds)


def _lock_in_turn(fd: int, until: float) -> bool:
    """Wait for the lock behind earlier waiters; return whether it is held.

    Each waiter locks one byte of the file, at an offset that is its arrival time. The kernel frees
    the byte if the process dies. Only the first waiter polls the lock itself, so a process that has
    just freed the lock can't take it again before the others.
    """
    ticket = _draw_ticket(fd)
    try:
        while True:
            is_first = not _has_waiting(fd, ticket)
            if is_first and _lock_at_once(fd):
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(_FIRST_POLL_SECONDS if is_first else _POLL_SECONDS)
    finally:
        if ticket is not None:
            _range(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, ticket, 1)


def _lock_at_once(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _draw_ticket(fd: int) -> int | None:
    """Return this waiter's place in the queue; None if the system can't lock ranges of bytes."""
    while _QUEUES:
        ticket = time.monotonic_ns()
        try:
            _range(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, ticket, 1)
        except BlockingIOError:
            continue  # another waiter took this place in the same nanosecond
        except OSError:
            return None
        return ticket
    return None


def _has_waiting(fd: int, ticket: int | None) -> bool:
    """Return whether an earlier waiter is still waiting."""
    if not _QUEUES or ticket is None:
        return False
    try:
        kind = _range(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 1, ticket - 1)
    except OSError:
        return False  # without such locks, every waiter polls the lock itself
    return kind != fcntl.F_UNLCK


def _range(fd: int, command: int, kind: int, start: int, length: int) -> int:
    """Lock, unlock or query a range of bytes in a file; return the kind of lock that the kernel
    reports.
    """
    answer = fcntl.fcntl(fd, command, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0))
    return int(struct.unpack(_FLOCK, answer)[0])


class ForkGuard:
    """Detects a fork, after which the child must not use its parent's connections or locks."""

    __slots__ = ("_process",)

    def __init__(self) -> None:
        """Remember this process."""
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that created the guard."""
        return self._process != os.getpid()


# --- who may write


def is_read_only(path: Path) -> bool:
    """Return whether a file or folder is on a file system that is mounted read-only."""
    return os.name == "posix" and bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def others_may_write(path: Path) -> str:
    """Return why a file or folder can't be trusted, as a clause; empty if it can."""
    if os.name != "posix":
        return ""
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    return _open_to_others(path, status)


def home_in_doubt(home: Path) -> str:
    """Return why the home or its parent can't be trusted, as a sentence; empty if they can.

    A user who may write to either folder could replace the files in the home. A link to a missing
    folder, such as one on a drive that isn't mounted, would look like an empty home.
    """
    if os.name != "posix":
        return ""
    if not home.exists():
        for folder in (home, *home.parents):
            if folder.is_symlink() and not folder.exists():
                target = folder.readlink()
                return f"{folder} is a symbolic link to {target}, which is missing; is it mounted?"
        return ""
    if home.stat().st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        return f"{home} belongs to another user; set MEMORY_HOME to a folder of your own"
    for folder in (home, home.resolve().parent):
        doubt = _open_to_others(folder, folder.stat())
        if doubt:
            return f"{folder} {doubt}"
    return ""


def open_to_everybody(path: Path, status: os.stat_result) -> str:
    """Return why any user can replace a file, as a clause; empty if only some users can.

    In a sticky folder, users can't replace other users' files.
    """
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & stat.S_IWOTH and not is_sticky:
        return f"is writable by everyone; run: chmod o-w {path}"
    return ""


def _open_to_others(path: Path, status: os.stat_result) -> str:
    doubt = open_to_everybody(path, status)
    if doubt:
        return doubt
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
        return f"is writable by other members of its group; run: chmod g-w {path}"
    return ""


def _is_private(group_id: int) -> bool:
    """Return whether this user is a group's only member, as in the per-user groups that many
    systems create.
    """
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(group_id), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    if (group.gr_gid, group.gr_name) != (user.pw_gid, user.pw_name):
        return False
    return set(group.gr_mem) <= {user.pw_name}


@contextlib.contextmanager
def temporary_copy(write: Callable[[IO[bytes]], object]) -> Iterator[IO[bytes]]:
    """Yield a private file that a function has written; a small file stays in memory."""
    import tempfile  # imported late, since it takes 5 ms

    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as copy:
        with name_place(tempfile.gettempdir(), "set TMPDIR to a folder with more space"):
            write(copy)
        copy.seek(0)
        yield copy


@contextlib.contextmanager
def name_place(place: str, consequence: str) -> Iterator[None]:
    """Turn a system error in the `with` block into a `SystemFault` that names the place and the
    consequence.
    """
    try:
        yield
    except (BrokenPipeError, MemoriesError):
        raise
    except OSError as exc:
        parts = [f"cannot write {place}: {exc.strerror or exc}"]
        if exc.errno in FULL:
            parts.append("free some space on its disk and try again")
        raise SystemFault("; ".join([*parts, consequence])) from exc
