"""Keys of requests in a file, which all servers on this machine that serve one store share.

It has a line for each request that was begun, and one more for how it ended; the last one counts.
"""

import contextlib
import fcntl
import glob
import json
import os
import threading
import time
from binascii import crc32
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import CREATING, make_folder, replacing, write_all
from memories.core.urls import local_path
from memories.settings import Config
from memories.stores import claims
from memories.stores.claims import Claim, Taken


def file_of(config: Config) -> Path:
    """Return the file of a store: beside the one of SQLite, whichever folder a server has; else in its own folder."""
    path = local_path(config.store)
    if path is not None and config.store.startswith("sqlite:"):
        path = path.resolve()
        return path.with_name(f"{path.name}-requests")
    where = config.store if path is None else str(path.resolve())
    return config.home / f"requests-{crc32(where.encode('utf-8', 'surrogateescape')):08x}"


class _Entry(NamedTuple):
    """A request with a key.

    Attributes:
        digest: Of what was asked.
        at: When it was begun first.
        told: What is to be known of its answer; None while it is not done.
        by: Who is doing it: the end of the name of a file that is locked for as long.
    """

    digest: str
    at: float
    told: dict[str, Any] | None = None
    by: str | None = None


class FileClaims:
    """Implements `Claims`: a process reads what others have added, and adds to it, while it has locked the file."""

    def __init__(self, file: Path) -> None:
        """Open the file, or make it.

        Args:
            file: Which one; see `file_of`.
        """
        make_folder(file.parent)
        self._file = file
        self._lock = threading.Lock()
        self._by = os.urandom(8).hex()
        self._open()
        self._take_lock()
        for left in file.parent.glob(f"{glob.escape(file.name)}.*"):
            self._is_alive(left.suffix[1:])  # it removes that of one who was killed
        self._alive = os.open(self._life(self._by), CREATING | os.O_RDWR, 0o600)
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        """See `Claims.claim`."""
        with self._shared():
            before = self._entries.get(name)
            if before is not None and before.by is not None and self._is_alive(before.by):
                raise Taken(other=before.digest != digest)
            if before is not None and before.at + claims.KEPT_SECONDS < time.time():
                before = None
            if before is not None and before.digest != digest:
                raise Taken(other=True)
            entry = _Entry(digest, time.time()) if before is None else before
            self._add(name, entry._replace(by=self._by))
            fd = os.dup(self._fd) if before is None and sync else None  # of its own, should the file be written anew
        if fd is not None:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        return Claim(name, 1 if before is None else 2, entry.at, entry.told)

    def settle(self, claim: Claim, told: dict[str, Any] | None) -> None:
        """See `Claims.settle`."""
        with self._shared():
            entry = self._entries.get(claim.name)
            if entry is not None:  # else so many came after it that it is kept no more
                self._add(claim.name, entry._replace(told=entry.told if told is None else told, by=None))

    def drop(self, claim: Claim) -> None:
        """See `Claims.drop`."""
        with self._shared():
            self._add(claim.name, None)

    def close(self) -> None:
        """See `Claims.close`."""
        self._life(self._by).unlink(missing_ok=True)
        os.close(self._alive)
        os.close(self._fd)

    # --- who is there ------------------------------------------------------------------------------------------------

    def _life(self, by: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{by}")

    def _is_alive(self, by: str) -> bool:
        """Return whether the process that does a request lives; the system unlocks the file of one that ended."""
        if by == self._by:
            return True
        try:
            fd = os.open(self._life(by), os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            self._life(by).unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)

    # --- the file ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        """Know all that is in the file, and keep others out while inside."""
        with self._lock:
            size = self._take_lock()
            try:
                if size != self._end:
                    self._read(size)
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _take_lock(self) -> int:
        """Lock the file, or the one that has taken its place; return how large it is."""
        while True:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            found = os.fstat(self._fd)
            if found.st_nlink and found.st_size >= self._end:
                return found.st_size
            os.close(self._fd)
            self._open()

    def _open(self) -> None:
        self._fd = os.open(self._file, CREATING | os.O_RDWR | os.O_APPEND, 0o600)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._end = self._lines = 0

    def _read(self, size: int) -> None:
        """Take in what was added since the last time; a line that was cut off is none."""
        data = os.pread(self._fd, size - self._end, self._end)
        if data and not data.endswith(b"\n"):
            write_all(self._fd, b"\n")
            data += b"\n"
        self._end += len(data)
        for line in data.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        self._lines += 1
        with contextlib.suppress(ValueError, KeyError, TypeError):
            shape = json.loads(line)
            entry = None
            if "digest" in shape:
                by = shape.get("by")
                known = isinstance(by, str) and by.isalnum()  # as a part of a file's name
                entry = _Entry(shape["digest"], float(shape["at"]), shape.get("done"), by if known else None)
            self._put(shape["request"], entry)

    def _put(self, name: str, entry: _Entry | None) -> None:
        if entry is None:
            self._entries.pop(name, None)
            return
        self._entries[name] = entry
        self._entries.move_to_end(name)
        while len(self._entries) > claims.MAX_KEPT:
            self._entries.popitem(last=False)

    def _add(self, name: str, entry: _Entry | None) -> None:
        """Add a line to the file; one that has grown to many times what counts is written anew."""
        line = _line(name, entry)
        self._put(name, entry)
        if self._lines < 4 * claims.MAX_KEPT:
            write_all(self._fd, line)
            self._end += len(line)
            self._lines += 1
            return
        oldest = time.time() - claims.KEPT_SECONDS
        with replacing(self._file) as stream:
            stream.writelines(_line(name, entry) for name, entry in self._entries.items() if entry.at > oldest)
        os.close(self._fd)
        self._open()
        self._read(self._take_lock())


def _line(name: str, entry: _Entry | None) -> bytes:
    shape: dict[str, Any] = {"request": name}
    if entry is not None:
        shape |= {"digest": entry.digest, "at": entry.at}
        shape |= {} if entry.told is None else {"done": entry.told}
        shape |= {} if entry.by is None else {"by": entry.by}
    return json.dumps(shape).encode() + b"\n"
