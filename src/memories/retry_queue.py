"""A queue on disk for what could not be stored yet: one JSON object a line, in order, kept through crashes."""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: only the threads of one process wait for each other
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 256 * 1_048_576
_log = logging.getLogger(__name__)
_threads = threading.Lock()

Entry = dict[str, Any]


class QueueFull(OSError):
    """The queue has reached its limit; what was to be added was not."""


class RetryQueue:
    """Entries that wait, in a file that several processes share.

    An entry is flushed to the disk before `add` returns. One that was taken out is gone only after it was dealt with:
    a crash in between means that it is dealt with again, so dealing with it twice must do no harm.
    """

    def __init__(self, path: Path) -> None:
        """Remember where the queue is; there is no file while nothing waits."""
        self.path = path

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        try:
            return self.path.stat().st_size > 0
        except OSError:
            return False

    def add(self, entry: Entry) -> None:
        """Put an entry at the end.

        Raises:
            QueueFull: The queue would be larger than `MAX_BYTES`.
            OSError: The disk refused it; nothing was added.
        """
        with locked(self._lock_path):
            self._add(entry)

    def entries(self) -> list[Entry]:
        """Return what waits, oldest first."""
        return self._read()[0]

    def drain(self, deal_with: Callable[[Entry], None]) -> int:
        """Deal with what waits, in order, until it fails; return how many were dealt with.

        Args:
            deal_with: Raises ValueError for an entry that will never be accepted, which is then put into a file beside
                the queue, named `.refused`; whatever else it raises stops the draining and comes through.
        """
        if not self:
            return 0
        with locked(self._lock_path):
            waiting, damaged = self._read()
            for line in damaged:
                _log.error("a damaged line of the queue %s was put aside", self.path)
                self._put_aside(line)
            done = 0
            try:
                for entry in waiting:
                    try:
                        deal_with(entry)
                    except ValueError as exc:
                        _log.error("a queued entry was refused for good: %s", exc)
                        self._put_aside(json.dumps(entry))
                    done += 1
            finally:
                if done or damaged or not waiting:
                    self._replace(waiting[done:])
            return done

    @property
    def _lock_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    def _read(self) -> tuple[list[Entry], list[str]]:
        """Return the entries, and the lines that are none. A half-written last line was never promised to anyone."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return [], []
        found: list[Entry] = []
        damaged: list[str] = []
        for line in data.split(b"\n")[:-1]:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if isinstance(entry, dict):
                found.append(entry)
            else:
                damaged.append(line.decode("utf-8", "backslashreplace"))
        return found, damaged

    def _add(self, entry: Entry) -> None:
        line = json.dumps(entry).encode() + b"\n"
        new = not self.path.exists()
        fd = os.open(self.path, _FLAGS | os.O_RDWR, 0o600)
        try:
            whole = _end_of_last_line(fd, os.fstat(fd).st_size)
            if whole + len(line) > MAX_BYTES:
                raise QueueFull(f"the queue {self.path} is full ({MAX_BYTES} bytes); mend the store first")
            os.lseek(fd, whole, os.SEEK_SET)  # over what a crash left half-written
            _write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)
        if new:
            _flush_folder(self.path.parent)

    def _replace(self, entries: list[Entry]) -> None:
        """Put a file with these entries in the place of the old one, in one step."""
        if not entries:
            self.path.unlink(missing_ok=True)
        else:
            scratch = self.path.with_name(f"{self.path.name}.new")
            fd = os.open(scratch, _FLAGS | os.O_TRUNC | os.O_WRONLY, 0o600)
            try:
                _write(fd, b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
                os.fsync(fd)
            finally:
                os.close(fd)
            scratch.replace(self.path)
        _flush_folder(self.path.parent)

    def _put_aside(self, text: str) -> None:
        fd = os.open(self.path.with_name(f"{self.path.name}.refused"), _FLAGS | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            _write(fd, text.encode("utf-8", "backslashreplace") + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other threads and processes out while inside; the kernel frees the lock of a process that dies.

    It can't be taken twice by one thread.

    Args:
        path: The lock's file; made, with its folder, if it is not there.
    """
    for folder in (*reversed(path.parent.parents), path.parent):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, _FLAGS | os.O_RDWR, 0o600)
    try:
        if fcntl is None:
            with _threads:
                yield
        else:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
    finally:
        os.close(fd)


_FLAGS = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def _end_of_last_line(fd: int, size: int) -> int:
    """Return where the last whole line ends."""
    step = 65_536
    for start in range(max(0, size - step), -step, -step):
        at = max(0, start)
        os.lseek(fd, at, os.SEEK_SET)
        found = os.read(fd, min(step, size - at)).rfind(b"\n")
        if found >= 0:
            return at + found + 1
    return 0


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # there is no such thing
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
