"""Reads files inside a working tree, and never outside it, even in a hostile tree.

It opens each folder in a path relative to its parent and follows no symbolic links, so a link
created in the meantime can't lead outside. It doesn't open mount points, devices, pipes or sockets,
and doesn't read files of more than a megabyte. Nothing is executed. A `Budget` bounds the time.
"""

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

MAX_BYTES = 1 << 20
_TOO_LARGE = "is larger than a megabyte"
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Opening a pipe without O_NONBLOCK would wait for a writer.
_READ = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_SLOW = 10  # maximum elapsed time, as a multiple of the processor time
_IS_SUPPORTED = {os.open, os.stat} <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


class Budget:
    """A time limit for the checks of one thread.

    It counts processor time, so that a busy machine doesn't change the results. It also limits the
    elapsed time, since a disk may be slow.
    """

    def __init__(self, seconds: float) -> None:
        """Start a budget with this many seconds of processor time."""
        self._computed_until = time.thread_time() + seconds
        self._passed_until = time.monotonic() + _SLOW * seconds

    @classmethod
    def of(cls, seconds: float | None) -> Self | None:
        """Return a budget with this many seconds of processor time; None for no limit."""
        return None if seconds is None else cls(seconds)

    @property
    def is_spent(self) -> bool:
        """Whether no time is left."""
        return time.thread_time() > self._computed_until or time.monotonic() > self._passed_until

    def spend(self) -> None:
        """Check that time is left.

        Raises:
            TimeoutError: No time is left.
        """
        if self.is_spent:
            raise TimeoutError


class Look(NamedTuple):
    """The state of a path in a working tree.

    Attributes:
        kind: `file`, `folder`, `other` for a link, a device and so on, `absent`, or `unreadable`.
        why: Why its content can't be read, as a clause without a subject.
        stamp: Changes when the file's content does: inode, size, and times in nanoseconds.
    """

    kind: str
    why: str = ""
    stamp: tuple[int, ...] = ()

    @property
    def modified_ns(self) -> int:
        """When the file was modified, in nanoseconds since 1970."""
        return self.stamp[2]


class _Refused(Exception):
    """A path leads outside the working tree, or can't be read; the argument says why."""


class WorkingTree:
    """A working tree opened for reading; a context manager."""

    def __init__(self, root: Path) -> None:
        """Open the top folder.

        Raises:
            OSError: It can't be opened.
        """
        self._root = os.open(root, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))
        self._device = os.fstat(self._root).st_dev

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._root)

    def look(self, parts: Sequence[str]) -> Look:
        """Return the state of a path, given as `Anchor.parts`."""
        try:
            folder = self._open_folder(parts[:-1])
            try:
                status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(folder)
            return self._describe(status)
        except (FileNotFoundError, NotADirectoryError):
            return Look("absent")
        except (_Refused, OSError, ValueError) as exc:
            return Look("unreadable", _describe_error(exc))

    def read(self, parts: Sequence[str]) -> tuple[Look, str]:
        """Read a file; return its state and its text, which is empty if the file can't be read."""
        try:
            folder = self._open_folder(parts[:-1])
            try:
                file = os.open(parts[-1], _READ, dir_fd=folder)
            finally:
                os.close(folder)
            try:
                look = self._describe(os.fstat(file))
                data = b""
                if look.kind == "file" and not look.why:
                    data = _read_all(file)
            finally:
                os.close(file)
        except (FileNotFoundError, NotADirectoryError):
            return Look("absent"), ""
        except (_Refused, OSError, ValueError) as exc:
            return Look("unreadable", _describe_error(exc)), ""
        return look, data.decode("utf-8", "replace")

    def _open_folder(self, parts: Sequence[str]) -> int:
        """Return a descriptor of a folder; the caller closes it."""
        if not _IS_SUPPORTED:
            raise _Refused("can't be read safely on this system")
        folder = os.dup(self._root)
        try:
            for part in parts:
                status = os.stat(part, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    raise _Refused("goes through a symbolic link, which is not followed")
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
                if os.fstat(folder).st_dev != self._device:
                    raise _Refused("is on another file system")
        except BaseException:
            os.close(folder)
            raise
        return folder

    def _describe(self, status: os.stat_result) -> Look:
        mode = status.st_mode
        if status.st_dev != self._device:
            raise _Refused("is on another file system")
        if stat.S_ISLNK(mode):
            return Look("other", "is a symbolic link, which is not followed")
        if stat.S_ISDIR(mode):
            return Look("folder", "is a folder")
        if not stat.S_ISREG(mode):
            return Look("other", "is not a regular file")
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return Look("file", _TOO_LARGE if status.st_size > MAX_BYTES else "", stamp)


def _read_all(file: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(file, 1 << 18):
        size += len(chunk)
        if size > MAX_BYTES:
            raise _Refused(_TOO_LARGE)
        chunks.append(chunk)
    return b"".join(chunks)


def _describe_error(exc: Exception) -> str:
    if isinstance(exc, _Refused):
        return str(exc)
    reason = getattr(exc, "strerror", None)
    return f"can't be read: {reason}" if reason else "can't be read"
