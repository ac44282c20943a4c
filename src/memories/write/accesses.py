"""Reads that wait to be counted: a read appends a line to a file of the home folder, a later write
counts them all.

So no read waits for the store's lock, however long somebody holds it. A batch is renamed aside,
counted in one transaction together with a mark that names it, and then removed: if that is cut
short anywhere, the next flush finds the batch and the store knows whether it was counted. Only
stores without such a mark (all but SQLite and files) may count the last batch twice after a kill.
On a full or read-only disk reads are not counted.
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
from memories.errors import MemoriesError
from memories.stores.protocol import Store
from memories.stores.records import Collection, Record, Ref

try:
    import fcntl
except ImportError:  # Windows, where a file that is open can't be renamed
    fcntl = None  # type: ignore[assignment]

FLUSH_BYTES = 65_536  # some hundred searches: from then on also a read tries to have them counted
MAX_BYTES = 1_048_576  # where that can't be done for so long, further reads are not counted
_HEAD = 128  # bytes of a file that show whether it is still the same one
_ATTEMPTS = 3  # at finding the file that is appended to, while others take it away


class _Read(NamedTuple):
    """What was read of a file: its number and its beginning, which tell it from another one, and up
    to where.
    """

    number: int
    head: bytes
    end: int
    counts: Counter[tuple[str, str]]


class Accesses:
    """The reads of one store that wait to be counted, in one home folder."""

    def __init__(self, home: Path, place: str) -> None:
        """Prepare; nothing is opened.

        Args:
            home: The folder of the settings.
            place: The store: its absolute path, or its URL.
        """
        self._waiting = home / f"accesses-{zlib.crc32(place.encode()):08x}.jsonl"
        self._taken = self._waiting.with_suffix(".taken")
        self._lock = threading.Lock()
        self._read: dict[Path, _Read] = {}

    def add(self, refs: Sequence[Ref]) -> bool:
        """Write down one read of each record; return whether so many wait that they should be
        counted.
        """
        line = json.dumps(
            [[ref.namespace, ref.group, ref.position] for ref in refs], separators=(",", ":")
        )
        try:
            return self._append(line.encode() + b"\n") > FLUSH_BYTES
        except OSError:
            # no read fails for its statistic; `memory doctor` tells of a home that can't be written
            return False

    def of(self, refs: Sequence[Ref]) -> list[int]:
        """Return how many reads of each of these memories wait; none where that can't be read."""
        counts = []
        for path in (self._taken, self._waiting):
            with contextlib.suppress(OSError):
                counts.append(self._counted(path))
        return [sum(count[ref.namespace, ref.group] for count in counts) for ref in refs]

    def included(self, records: Sequence[Record]) -> list[Record]:
        """Return records that were just read as they were before, with the reads that wait."""
        waiting = self.of([record.ref for record in records])
        return [
            record._replace(accesses=max(0, record.accesses + count - 1))
            for record, count in zip(records, waiting, strict=True)
        ]

    def _counted(self, path: Path) -> Counter[tuple[str, str]]:
        """Return the reads in a file. Of one that has grown since it was asked for, only the new
        lines are read.
        """
        with self._lock, open_file(path) as stream:
            number, head = os.fstat(stream.fileno()).st_ino, stream.read(_HEAD)
            before = self._read.get(path)
            if before is None or before.number != number or not head.startswith(before.head):
                before = _Read(number, head, 0, Counter())
            stream.seek(before.end)
            new = stream.read()
            lines = new[: new.rfind(b"\n") + 1]
            before.counts.update(
                (ref.namespace, ref.group) for line in lines.splitlines() for ref in _refs(line)
            )
            self._read[path] = before._replace(end=before.end + len(lines))
        return before.counts

    def flush(self, store: Store) -> None:
        """Have the store count what waits, unless it is busy, another process does it, or nothing
        waits.
        """
        if not (self._taken.exists() or self._waiting.exists()):
            return
        with (
            contextlib.suppress(OSError, MemoriesError),
            try_lock(self._waiting.with_suffix(".lock"), 0) as held,
        ):
            if not held:
                return
            if not self._taken.exists():
                self._waiting.rename(self._taken)
            with open_file(self._taken) as stream:
                if fcntl is not None:
                    fcntl.flock(
                        stream, fcntl.LOCK_EX | fcntl.LOCK_NB
                    )  # who still appends a line to it comes first
                found = os.fstat(stream.fileno())
                refs = [ref for line in stream for ref in _refs(line)]
            batch = f"{found.st_ino} {found.st_mtime_ns} {found.st_size}"
            if not refs or store.touch(refs, batch):
                self._taken.unlink()

    def _append(self, line: bytes) -> int:
        """Append a line, and return how many bytes wait then."""
        for _ in range(_ATTEMPTS):
            fd = self._open()
            try:
                if fcntl is not None:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                found = os.fstat(fd)
                if not _same(self._waiting, found):
                    continue  # it was taken to be counted
                if found.st_size < MAX_BYTES:
                    os.write(fd, line)
                return found.st_size + len(line)
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


def _same(path: Path, found: os.stat_result) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino == found.st_ino
    return False


def _refs(line: bytes) -> list[Ref]:
    """Return the records of a line; none of one that was cut short."""
    try:
        found = json.loads(line)
        return [
            Ref(Collection.MEMORY, str(name), str(group), int(position))
            for name, group, position in found
        ]
    except (ValueError, TypeError):
        return []
