"""A store's side file: its lock, the lock's holder, and the last acknowledged commit.

The file reveals that a log was cut, or belongs to another file. A store works without it. The file
is never flushed, so after a power failure it may name an earlier commit, but never a later one.
"""

import contextlib
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from memories.core.disk import CREATING, write_all
from memories.errors import StoreBusy

_SIGNATURE_BYTES = 20  # bytes at the start: which process holds the lock, and since when
_MAX_BYTES = 400
_LOG_HEADER_BYTES = 32
LOG_MAGIC = (0x377F0682, 0x377F0683)  # a SQLite log starts with one of them
_HISTORY, _LINKED = 16, 24  # where these parts of a marker's id end
_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Marker(NamedTuple):
    """The unique id of one state of a store.

    The table `store` contains it as its only row.

    Attributes:
        store: 16 digits for the store, 8 digits derived from the previous state, and 8 random ones.
        commits: The number of commits in the store's history.
    """

    store: str
    commits: int

    @property
    def history(self) -> str:
        """The part that a store's states share until its history forks."""
        return self.store[:_HISTORY]

    def leads_to(self, after: Self) -> bool:
        """Return whether another state directly follows this one, by one commit.

        Two copies of a store diverge with their first commits.
        """
        is_of_older_program = after.store == self.store
        is_linked = is_of_older_program or after.store[_HISTORY:_LINKED] == _link(self)
        return is_linked and after.commits == self.commits + 1


def next_marker(marker: Marker, *, forked: bool = False) -> Marker:
    """Return the state after one more commit.

    Args:
        marker: The previous state.
        forked: Whether a new history begins, because other commits with the same numbers may exist.
            This happens when a backup is restored, or after a loss of commits.
    """
    history = marker.history
    if forked:
        history = os.urandom(_HISTORY // 2).hex()
    return Marker(f"{history}{_link(marker)}{os.urandom(4).hex()}", marker.commits + 1)


def _link(marker: Marker) -> str:
    return f"{zlib.crc32(f'{marker.store} {marker.commits}'.encode()):08x}"


class CommitNote(NamedTuple):
    """What the side file says about the last acknowledged commit.

    Attributes:
        marker: The state after the commit.
        log: Distinguishes the log from earlier logs; empty without a log.
        inode: The inode of the database.
        changed: When the database itself was last changed, in nanoseconds.
        own: The side file's inode, which differs in a copy.
    """

    marker: Marker
    log: str
    inode: int
    changed: int
    own: int

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """Return the note in a line; None if the line is damaged."""
        text, _, checksum = line.rpartition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            return None
        store, commits, log, inode, changed, own, _ = text.decode("ascii").split(" ")
        return cls(Marker(store, int(commits)), log.strip("-"), int(inode), int(changed), int(own))

    def line(self) -> bytes:
        """Return the note as a line for `parse`."""
        parts = (*self.marker, self.log or "-", self.inode, self.changed, self.own, "-")
        text = " ".join(map(str, parts)).encode("ascii")
        return b"%b %08x\n" % (text, zlib.crc32(text))


class Holder(NamedTuple):
    """The process that holds a lock, or held it last.

    Attributes:
        process: Its process id; empty if unknown.
        seconds: How long it has held the lock.
    """

    process: str
    seconds: float


@contextlib.contextmanager
def sign(lock: Path) -> Iterator[int]:
    """Record that this process now holds the lock; yield the side file's descriptor."""
    fd = os.open(lock, CREATING | os.O_RDWR, 0o600)
    try:
        signature = f"{os.getpid()} {time.monotonic_ns() // 1_000_000}".ljust(_SIGNATURE_BYTES)
        # on a full disk, waiting processes get a less precise message
        with contextlib.suppress(OSError):
            os.write(fd, signature.encode()[:_SIGNATURE_BYTES])
        yield fd
    finally:
        os.close(fd)


def note(fd: int, commit_note: CommitNote) -> None:
    """Write a note; the caller holds the lock."""
    os.lseek(fd, _SIGNATURE_BYTES, os.SEEK_SET)
    write_all(fd, commit_note.line())


def erase(fd: int) -> None:
    """Remove the note; the caller holds the lock."""
    os.ftruncate(fd, _SIGNATURE_BYTES)


def read(lock: Path) -> tuple[Holder, CommitNote | None]:
    """Return a side file's contents; empty values for missing or damaged parts."""
    try:
        fd = os.open(lock, os.O_RDONLY | _OPEN)
    except OSError:
        return Holder("", 0.0), None
    try:
        return read_open(fd)
    finally:
        os.close(fd)


def read_open(fd: int) -> tuple[Holder, CommitNote | None]:
    """Return an open side file's contents; empty values for missing or damaged parts."""
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        content = os.read(fd, _MAX_BYTES)
        own = os.fstat(fd).st_ino
    except OSError:
        return Holder("", 0.0), None
    signature = content[:_SIGNATURE_BYTES].decode("ascii", "replace")
    commit_note = CommitNote.parse(content[_SIGNATURE_BYTES:].partition(b"\n")[0])
    if commit_note is not None and commit_note.own != own:
        # The folder is a copy, and these values describe the original.
        commit_note = commit_note._replace(inode=0, changed=0)
    return _parse_signature(signature), commit_note


def _parse_signature(signature: str) -> Holder:
    process, _, millis = signature.strip().partition(" ")
    seconds = 0.0
    if millis.isascii() and millis.isdigit():
        seconds = max(0.0, time.monotonic() - int(millis) / 1_000)
    return Holder(process if process.isdigit() else "", seconds)


def busy_error(path: Path, lock: Path, waited: float, before: CommitNote | None) -> StoreBusy:
    """Return the error for a busy store; it says whether many writers or a single one held the
    lock.

    Args:
        path: The store.
        lock: Its side file.
        waited: How many seconds the writer waited.
        before: The note when the waiting began.
    """
    holder, now = read(lock)
    commits = 0
    if before and now:
        commits = now.marker.commits - before.marker.commits
    if commits > 0:
        return StoreBusy(
            f"{path} is busy: others made {commits} commits in the {waited:.0f} s of waiting; "
            "nothing was written; try again"
        )
    reason = f"for {waited:.0f} s"
    if holder.process:
        reason = f"by process {holder.process} for {holder.seconds:.0f} s"
    return StoreBusy(f"{path} was kept busy {reason}; nothing was written; try again")


def salt_of(log: Path) -> str:
    """Return a value that distinguishes a log from earlier ones; empty without a log or its
    header.
    """
    try:
        fd = os.open(log, os.O_RDONLY | _OPEN)
    except OSError:
        return ""
    try:
        header = os.read(fd, _LOG_HEADER_BYTES)
    finally:
        os.close(fd)
    if int.from_bytes(header[:4], "big") not in LOG_MAGIC:
        return ""
    return header[16:24].hex()
