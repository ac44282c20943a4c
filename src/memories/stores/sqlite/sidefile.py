"""What lies beside a store file, in its lock: who holds it, and the last commit that was
acknowledged.

It tells that a log was cut, or lies beside a file that it does not belong to. A store works without
it. It is never flushed, so after a power cut it may tell of an earlier commit, never of a later
one.
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

_SIGNED = 20  # bytes at the beginning: the process that holds the lock, and when it took it
_MOST = 400
_LOG_HEADER = 32  # bytes of SQLite's log
LOG_MAGIC = (0x377F0682, 0x377F0683)  # which it begins with
_HISTORY, _LINKED = 16, 24  # where these parts of the id of a state end
_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Marker(NamedTuple):
    """One state of a store, which no other state has. It is in the table `store`.

    Attributes:
        store: 16 digits for the store, 8 that follow from the state before, and 8 at random.
        commits: How many commits it has had.
    """

    store: str
    commits: int

    @property
    def history(self) -> str:
        """What the states of one store share until it is forked."""
        return self.store[:_HISTORY]

    def leads_to(self, after: Self) -> bool:
        """Return whether a state is the one after this one: two copies of a store part with their
        first commits.
        """
        of_older_program = after.store == self.store
        linked = of_older_program or after.store[_HISTORY:_LINKED] == _link(self)
        return linked and after.commits == self.commits + 1


def following(marker: Marker, *, forked: bool = False) -> Marker:
    """Return the state after one more commit.

    Args:
        marker: The state before.
        forked: A history of its own begins, since the commits after it may be counted elsewhere
            too: it is a restored backup, or the commits that followed are lost.
    """
    history = os.urandom(_HISTORY // 2).hex() if forked else marker.history
    return Marker(f"{history}{_link(marker)}{os.urandom(4).hex()}", marker.commits + 1)


def _link(marker: Marker) -> str:
    return f"{zlib.crc32(f'{marker.store} {marker.commits}'.encode()):08x}"


class Noted(NamedTuple):
    """What is noted after a commit.

    Attributes:
        marker: What was acknowledged last.
        log: What distinguishes the log from those before it; empty if there is none.
        inode: The database's.
        changed: When the database itself was changed last, in nanoseconds.
        own: The inode of the side file, which tells a copy of it.
    """

    marker: Marker
    log: str
    inode: int
    changed: int
    own: int

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """Return what a line says; None if it is not whole."""
        text, _, checksum = line.rpartition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            return None
        store, commits, log, inode, changed, own, _ = text.decode("ascii").split(" ")
        return cls(Marker(store, int(commits)), log.strip("-"), int(inode), int(changed), int(own))

    def line(self) -> bytes:
        """Return it as the line that `parse` reads."""
        (store, commits), log, *rest = self
        text = " ".join(map(str, (store, commits, log or "-", *rest, "-"))).encode("ascii")
        return b"%b %08x\n" % (text, zlib.crc32(text))


class Holder(NamedTuple):
    """The process that holds a lock, or held it last.

    Attributes:
        process: Its id; empty if unknown.
        seconds: Since when.
    """

    process: str
    seconds: float


@contextlib.contextmanager
def signed(lock: Path) -> Iterator[int]:
    """Write that this process holds the lock now; yield a descriptor of its file."""
    fd = os.open(lock, CREATING | os.O_RDWR, 0o600)
    try:
        with contextlib.suppress(
            OSError
        ):  # a full disk: only a message of those who wait is the poorer
            os.write(
                fd,
                f"{os.getpid()} {time.monotonic_ns() // 1_000_000}".ljust(_SIGNED).encode()[
                    :_SIGNED
                ],
            )
        yield fd
    finally:
        os.close(fd)


def note(fd: int, noted: Noted) -> None:
    """Write what was acknowledged, under the lock."""
    os.lseek(fd, _SIGNED, os.SEEK_SET)
    write_all(fd, noted.line())


def erase(fd: int) -> None:
    """Forget what was acknowledged, under the lock."""
    os.ftruncate(fd, _SIGNED)


def read(lock: Path) -> tuple[Holder, Noted | None]:
    """Return what a side file says; nothing of what is missing or damaged."""
    try:
        fd = os.open(lock, os.O_RDONLY | _OPEN)
    except OSError:
        return Holder("", 0.0), None
    try:
        return read_open(fd)
    finally:
        os.close(fd)


def read_open(fd: int) -> tuple[Holder, Noted | None]:
    """Return what an open side file says; nothing of what is missing or damaged."""
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        content = os.read(fd, _MOST)
        own = os.fstat(fd).st_ino
    except OSError:
        return Holder("", 0.0), None
    process, _, taken = content[:_SIGNED].decode("ascii", "replace").strip().partition(" ")
    seconds = time.monotonic() - int(taken) / 1_000 if taken.isascii() and taken.isdigit() else 0.0
    noted = Noted.parse(content[_SIGNED:].partition(b"\n")[0])
    if noted is not None and noted.own != own:
        noted = noted._replace(inode=0, changed=0)  # the folder was copied: these are another's
    return Holder(process if process.isdigit() else "", max(0.0, seconds)), noted


def busy(path: Path, lock: Path, waited: float, before: Noted | None) -> StoreBusy:
    """Return who kept a store's lock: others that committed one after the other, or one that held
    it.

    Args:
        path: The store.
        lock: Its side file.
        waited: For how many seconds.
        before: What was noted when the waiting began.
    """
    holder, now = read(lock)
    commits = now.marker.commits - before.marker.commits if before and now else 0
    if commits > 0:
        return StoreBusy(
            f"{path} is busy: {commits} commits by others in the {waited:.0f} s of waiting; nothing was written; "
            "try again"
        )
    by = (
        f" by process {holder.process} for {holder.seconds:.0f} s"
        if holder.process
        else f" for {waited:.0f} s"
    )
    return StoreBusy(f"{path} was kept busy{by}; nothing was written; try again")


def salt_of(log: Path) -> str:
    """Return what distinguishes a log from those before it; empty if there is none or it has no
    header.
    """
    try:
        fd = os.open(log, os.O_RDONLY | _OPEN)
    except OSError:
        return ""
    try:
        header = os.read(fd, _LOG_HEADER)
    finally:
        os.close(fd)
    return header[16:24].hex() if int.from_bytes(header[:4], "big") in LOG_MAGIC else ""
