"""Counts reads in batches: a read appends a line to a file in the home folder, and a later write
adds the lines to the store.

Therefore, a read never waits for the store's lock, however long a writer holds it. A flush renames
the file, counts its reads in one transaction, and then removes it. The transaction also stores a
mark that identifies the file. If the flush is interrupted, the next one finds the renamed file, and
the mark shows whether its reads were already counted. Only SQLite and `files` stores keep such a
mark; other stores may count the last file twice. On a full or read-only disk, reads are not
counted.
"""

import contextlib
import json
import os
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from memories.core.disk import CREATING, make_folder, open_file, try_lock
from memories.core.urls import local_path
from memories.errors import MemoriesError
from memories.stores.protocol import Store
from memories.stores.records import Collection, Record, Ref

try:
    import fcntl
except ImportError:  # Windows, where an open file can't be renamed
    fcntl = None  # type: ignore[assignment]

# Above this size, reached after a few hundred searches, a read also tries to flush the file.
FLUSH_BYTES = 65_536
MAX_BYTES = 1_048_576  # file size above which further reads are not recorded
_HEAD = 128  # number of leading bytes that, with the inode, identify a file
_LOCK = "accesses.lock"  # one lock for all stores, held during a flush
_ATTEMPTS = 3  # maximum attempts to append while other processes rename the file


class _CountedFile(NamedTuple):
    """The reads counted in a file so far, up to an offset. The file is identified by its inode and
    its first bytes.
    """

    inode: int
    head: bytes
    end: int
    counts: Counter[tuple[str, str]]


class Accesses:
    """Reads of one store that are recorded in a home folder but not yet counted in the store."""

    def __init__(self, home: Path, url: str) -> None:
        """Initialize; no file is opened yet.

        Args:
            home: The settings folder.
            url: The store's URL; a local store is recognized by its absolute path.
        """
        place = str(local_path(url) or url)
        self._waiting = home / f"accesses-{zlib.crc32(place.encode()):08x}.jsonl"
        self._taken = self._waiting.with_suffix(".taken")
        self._lock = threading.Lock()
        self._counted: dict[Path, _CountedFile] = {}

    def add(self, refs: Sequence[Ref]) -> bool:
        """Record one read of each record; return whether enough reads are waiting to be flushed."""
        entries = [[ref.namespace, ref.group, ref.position] for ref in refs]
        line = json.dumps(entries, separators=(",", ":"))
        try:
            return self._append(line.encode() + b"\n") > FLUSH_BYTES
        except OSError:
            # A read succeeds even if it can't be counted. `memory doctor` reports a read-only home.
            return False

    def of(self, refs: Sequence[Ref]) -> list[int]:
        """Return the number of uncounted reads of each memory; unreadable files are ignored."""
        counts = []
        for path in (self._taken, self._waiting):
            with contextlib.suppress(OSError):
                counts.append(self._count(path))
        return [sum(count[ref.namespace, ref.group] for count in counts) for ref in refs]

    def include_waiting(self, records: Sequence[Record]) -> list[Record]:
        """Return records with their uncounted reads added, but without the current read."""
        waiting = self.of([record.ref for record in records])
        return [
            record._replace(accesses=max(0, record.accesses + count - 1))
            for record, count in zip(records, waiting, strict=True)
        ]

    def _count(self, path: Path) -> Counter[tuple[str, str]]:
        """Return the number of reads of each memory in a file. Later calls read only new lines."""
        with self._lock, open_file(path) as stream:
            inode, head = os.fstat(stream.fileno()).st_ino, stream.read(_HEAD)
            counted = self._counted.get(path)
            if counted is None or counted.inode != inode or not head.startswith(counted.head):
                counted = _CountedFile(inode, head, 0, Counter())
            stream.seek(counted.end)
            new = stream.read()
            lines = new[: new.rfind(b"\n") + 1]
            for line in lines.splitlines():
                counted.counts.update((ref.namespace, ref.group) for ref in _parse_line(line))
            self._counted[path] = counted._replace(end=counted.end + len(lines))
        return counted.counts

    def flush(self, store: Store) -> None:
        """Add the reads to the store, unless the store is busy or another process is adding
        them.
        """
        if not (self._taken.exists() or self._waiting.exists()):
            return
        with (
            contextlib.suppress(OSError, MemoriesError),
            try_lock(self._waiting.with_name(_LOCK), 0) as held,
        ):
            if not held:
                return
            self._remove_former_locks()
            if not self._taken.exists():
                self._waiting.rename(self._taken)
            with open_file(self._taken) as stream:
                if fcntl is not None:
                    # Wait for a process that is still appending a line.
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(stream.fileno())
                refs = [ref for line in stream for ref in _parse_line(line)]
            batch = f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
            if not refs or store.touch(refs, batch):
                self._taken.unlink()

    def _remove_former_locks(self) -> None:
        """Remove the lock files of earlier versions of Memories, which had one for each store."""
        for lock in self._waiting.parent.glob("accesses-*.lock"):
            with try_lock(lock, 0) as held:
                if held:
                    lock.unlink(missing_ok=True)

    def _append(self, line: bytes) -> int:
        """Append a line, and return how many bytes are waiting to be counted."""
        for _ in range(_ATTEMPTS):
            fd = self._open()
            try:
                if fcntl is not None:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                status = os.fstat(fd)
                if not _is_at(self._waiting, status):
                    continue  # another process renamed the file to count its reads
                if status.st_size < MAX_BYTES:
                    os.write(fd, line)
                return status.st_size + len(line)
            except BlockingIOError:
                continue
            finally:
                os.close(fd)
        return 0

    def _open(self) -> int:
        flags = CREATING | os.O_APPEND | os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)
        try:
            return os.open(self._waiting, flags, 0o600)
        except FileNotFoundError:
            make_folder(self._waiting.parent)
            return os.open(self._waiting, flags, 0o600)


def _is_at(path: Path, status: os.stat_result) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino == status.st_ino
    return False


def _parse_line(line: bytes) -> list[Ref]:
    """Return the records listed in a line; an empty list if the line is incomplete."""
    try:
        return [
            Ref(Collection.MEMORY, str(namespace), str(group), int(position))
            for namespace, group, position in json.loads(line)
        ]
    except (ValueError, TypeError):
        return []
