"""The SQLite engine: which versions are safe, where store files may be, and how they are opened.

`connection` reads and writes store files in transactions, and `whole_file` creates and migrates
them.

A store file in use is opened only through apsw: closing a plain file handle to it would cancel this
process's locks.
"""

import contextlib
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import apsw

from memories.core.disk import CREATING, open_to_everybody, write_all
from memories.errors import SchemaTooNew, StoreBusy, StoreDamaged, StoreError
from memories.guard.validate import amount
from memories.stores.sqlite.rows import WORD_TABLES, view_of

APPLICATION_ID = 0x4D656D73  # "Mems", in the header of every store file
FIRST_RELEASED = 4  # files with an older schema are refused
SCHEMA_VERSION = 5  # the newest schema: the last of `schema.MIGRATIONS`
# size of the page cache, which is large because searches read rows from all over the file
_CACHE_KIB = 16_384
BUSY_MILLIS = 30_000
SUFFIXES = ("", "-wal", "-shm", "-journal")
_SIGNATURE_BYTES = 20  # length of the side file's first part, which identifies the lock's holder
_MAX_BYTES = 400
_LOG_HEADER_BYTES = 32
LOG_MAGIC = (0x377F0682, 0x377F0683)  # a SQLite log begins with one of these
_HISTORY, _LINKED = 16, 24  # where the first two parts of a state's id end
_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

Identity = tuple[int, int]  # device and inode


# --- the side file: a store's lock, the lock's holder, and the last acknowledged commit
#
# The side file reveals whether a log was truncated or belongs to another file. A store works
# without a side file. It is never flushed, so after a power failure it may describe an earlier
# commit, but never a later one.


class StoreState(NamedTuple):
    """An identifier for the state of a store; each commit leads to a new state.

    The only row of the table `store` contains it.

    Attributes:
        id: 32 hex digits: 16 for the history, 8 derived from the previous state, and 8 random.
        commits: The number of commits in the store's history.
    """

    id: str
    commits: int

    @property
    def history(self) -> str:
        """The part of `id` that all states in one history share."""
        return self.id[:_HISTORY]

    def leads_to(self, after: Self) -> bool:
        """Return whether one commit leads from this state to another one.

        The states of two copies of a store differ after their first commits.
        """
        is_of_older_program = after.id == self.id
        is_linked = is_of_older_program or after.id[_HISTORY:_LINKED] == _link(self)
        return is_linked and after.commits == self.commits + 1


def next_state(state: StoreState, *, forked: bool = False) -> StoreState:
    """Return the state after one more commit.

    Args:
        state: The previous state.
        forked: Whether a new history begins, because other commits with the same numbers may exist.
            This is the case after a backup was restored, or commits were lost.
    """
    history = state.history
    if forked:
        history = os.urandom(_HISTORY // 2).hex()
    return StoreState(f"{history}{_link(state)}{os.urandom(4).hex()}", state.commits + 1)


def _link(state: StoreState) -> str:
    return f"{zlib.crc32(f'{state.id} {state.commits}'.encode()):08x}"


class CommitNote(NamedTuple):
    """The note in the side file about the last acknowledged commit.

    Attributes:
        state: The state after the commit.
        salt: Distinguishes the log from earlier logs; empty if there is no log. See `salt_of`.
        inode: The inode of the database.
        changed: When the database itself was last changed, in nanoseconds since 1970.
        side_inode: The side file's inode; in a copy of the folder, that file has a different one.
    """

    state: StoreState
    salt: str
    inode: int
    changed: int
    side_inode: int

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """Return the note in a line; None if the line is damaged."""
        text, _, checksum = line.rpartition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            return None
        state_id, commits, salt, inode, changed, side, _ = text.decode("ascii").split(" ")
        state = StoreState(state_id, int(commits))
        return cls(state, salt.strip("-"), int(inode), int(changed), int(side))

    def line(self) -> bytes:
        """Return the note as a line for `parse`."""
        parts = (*self.state, self.salt or "-", self.inode, self.changed, self.side_inode, "-")
        text = " ".join(map(str, parts)).encode("ascii")
        return b"%b %08x\n" % (text, zlib.crc32(text))


class Holder(NamedTuple):
    """The process that holds a lock, or was the last to hold it.

    Attributes:
        process: Its process id; empty if unknown.
        seconds: How long ago it took the lock.
    """

    process: str
    seconds: float


@contextlib.contextmanager
def sign_lock(lock: Path) -> Iterator[int]:
    """Record in the side file that this process now holds the lock; yield the file's descriptor."""
    fd = os.open(lock, CREATING | os.O_RDWR, 0o600)
    try:
        signature = f"{os.getpid()} {time.monotonic_ns() // 1_000_000}".ljust(_SIGNATURE_BYTES)
        # if the disk is full, the message for waiting processes is less precise
        with contextlib.suppress(OSError):
            os.write(fd, signature.encode()[:_SIGNATURE_BYTES])
        yield fd
    finally:
        os.close(fd)


def write_note(fd: int, commit_note: CommitNote) -> None:
    """Write the last commit's note into the side file; the caller holds the lock."""
    os.lseek(fd, _SIGNATURE_BYTES, os.SEEK_SET)
    write_all(fd, commit_note.line())


def erase_note(fd: int) -> None:
    """Remove the note from the side file; the caller holds the lock."""
    os.ftruncate(fd, _SIGNATURE_BYTES)


def read_side(lock: Path) -> tuple[Holder, CommitNote | None]:
    """Return the contents of a side file (`.lock`); missing or damaged parts are empty."""
    try:
        fd = os.open(lock, os.O_RDONLY | _OPEN)
    except OSError:
        return Holder("", 0.0), None
    try:
        return read_open_side(fd)
    finally:
        os.close(fd)


def read_open_side(fd: int) -> tuple[Holder, CommitNote | None]:
    """Return the contents of an open side file; missing or damaged parts are empty."""
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        content = os.read(fd, _MAX_BYTES)
        side_inode = os.fstat(fd).st_ino
    except OSError:
        return Holder("", 0.0), None
    signature = content[:_SIGNATURE_BYTES].decode("ascii", "replace")
    commit_note = CommitNote.parse(content[_SIGNATURE_BYTES:].partition(b"\n")[0])
    if commit_note is not None and commit_note.side_inode != side_inode:
        # The folder is a copy, and these values describe the original file.
        commit_note = commit_note._replace(inode=0, changed=0)
    return _parse_signature(signature), commit_note


def _parse_signature(signature: str) -> Holder:
    process, _, millis = signature.strip().partition(" ")
    seconds = 0.0
    if millis.isascii() and millis.isdigit():
        seconds = max(0.0, time.monotonic() - int(millis) / 1_000)
    return Holder(process if process.isdigit() else "", seconds)


def busy_error(path: Path, lock: Path, waited: float, before: CommitNote | None) -> StoreBusy:
    """Return the error for a busy store; it says whether many writers or one kept the store busy.

    Args:
        path: The store.
        lock: Its side file.
        waited: How many seconds the writer waited.
        before: The note in the side file when the wait began.
    """
    holder, now = read_side(lock)
    commits = 0
    if before and now:
        commits = now.state.commits - before.state.commits
    if commits > 0:
        return StoreBusy(
            f"{path} is busy: other writers made {amount(commits, 'commit', 'commits')} while this "
            f"one waited {waited:.0f} s; nothing was written; try again"
        )
    reason = f"for {waited:.0f} s"
    if holder.process:
        reason = f"by process {holder.process} for {holder.seconds:.0f} s"
    return StoreBusy(f"{path} was kept busy {reason}; nothing was written; try again")


def salt_of(log: Path) -> str:
    """Return the salt that distinguishes a log from earlier ones; empty without a valid header."""
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


# --- versions and connections


def engine_is_safe(version: str) -> bool:
    """Return whether a SQLite version lacks the WAL-reset bug, which silently loses commits."""
    number = tuple(int(part) for part in version.split("."))
    return (
        number >= (3, 51, 3)
        or (3, 50, 7) <= number < (3, 51, 0)
        or (3, 44, 6) <= number < (3, 45, 0)
    )


# --- opening files


def connect(path: Path) -> apsw.Connection:
    """Open an existing file for reading and, if possible, for writing."""
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)


def connect_frozen(path: Path) -> apsw.Connection:
    """Open a file for reading without its log and without locks, as if it were immutable."""
    from urllib.parse import quote

    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)


_PRAGMAS = (
    "mmap_size=0",
    "trusted_schema=OFF",
    "cell_size_check=ON",
    "synchronous=FULL",
    "secure_delete=ON",
)


def set_up(connection: apsw.Connection, path: Path, busy_seconds: float) -> int:
    """Prepare a new connection to a store file; return the file's schema version.

    After an error, the connection is closed.
    """
    try:
        connection.set_busy_timeout(int(busy_seconds * 1000))
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        if connection.pragma("application_id") != APPLICATION_ID:
            raise StoreDamaged(
                f"{path} is another program's SQLite database, and was not touched; name another "
                "file"
            )
        version = refuse_unsupported(connection, path)
        prepare_connection(connection)
    except BaseException:
        close_without_checkpoint(connection)
        raise
    return version


def prepare_connection(db: apsw.Connection) -> None:
    """Set a new connection's cache size, and create its views and functions for counting words."""
    db.pragma("cache_size", -_CACHE_KIB)
    # Keep statements' undo data in memory; in a file, each added memory would cost 16 page writes.
    db.execute("PRAGMA temp_store=MEMORY")
    for table in WORD_TABLES:
        for kind in ("instance", "row"):
            name = view_of(table, kind)
            db.execute(f"CREATE VIRTUAL TABLE {name} USING fts5vocab (main, {table}, {kind})")

    def occurrences(row: apsw.FTS5ExtensionApi, *_: object) -> int:
        return row.inst_count

    def frequencies(row: apsw.FTS5ExtensionApi, *arguments: Any) -> bytes:
        """Return how often each phrase of the search occurs in the row, as one byte per phrase.

        The only argument is the number of phrases to count, beginning with the first.
        """
        counts = [len(row.phrase_column_offsets(phrase, 0)) for phrase in range(*arguments)]
        return bytes([min(255, count) for count in counts])

    db.register_fts5_function("occurrences", occurrences)
    db.register_fts5_function("frequencies", frequencies)


def refuse_unsupported(connection: apsw.Connection, path: Path) -> int:
    """Return the schema version of a file; refuse a version that this program doesn't support."""
    version = refuse_newer(connection, path)
    if version < FIRST_RELEASED:
        raise StoreError(
            f"{path} has schema {version}, from before the first release; export it with the "
            "program that wrote it; the file was not touched"
        )
    return version


def refuse_newer(connection: apsw.Connection, path: Path) -> int:
    """Return the schema version; refuse a version that this program doesn't know.

    Every transaction checks this, because a newer program may migrate the file at any time.
    """
    version = int(connection.pragma("user_version"))
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{path} has schema {version}, but this program supports only schemas up to "
            f"{SCHEMA_VERSION}; upgrade memoriae; the file was not touched"
        )
    return version


def use_log(connection: apsw.Connection, path: Path) -> None:
    """Switch a file to a write-ahead log. Copies made by VACUUM don't have one."""
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreDamaged(
            f"cannot switch {path} to a write-ahead log, which several processes need to share it"
        )


def undo(connection: apsw.Connection, statement: str) -> None:
    """Roll back after an error.

    An error during the rollback is suppressed, because the original error is being raised.
    """
    if connection.in_transaction:
        with contextlib.suppress(apsw.Error):
            connection.execute(statement)


def close_without_checkpoint(connection: apsw.Connection) -> None:
    """Close a connection without moving the log into the file."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()


@contextlib.contextmanager
def open_apart(path: Path, *, write: bool = False) -> Iterator[apsw.Connection]:
    """Open a file that isn't a store in use, for example a copy.

    Args:
        path: The file.
        write: Whether to open it for writing; then no other process may use it. Opening it only for
            reading creates no files next to it, unless it has a log.
    """
    if write:
        connection = connect(path)
    else:
        is_in_use = any(Path(f"{path}{suffix}").exists() for suffix in SUFFIXES[1:])
        options = "mode=ro" if is_in_use else "mode=ro&immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(f"{path.absolute().as_uri()}?{options}", flags=flags)
    try:
        # Each call has one statement, because a pragma that returns a row ends a script.
        for pragma in ("mmap_size=0", "trusted_schema=OFF", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.set_busy_timeout(BUSY_MILLIS)
        yield connection
    finally:
        connection.close()


def scratch() -> apsw.Connection:
    """Return an empty temporary database, which SQLite moves to disk if it grows large."""
    return apsw.Connection("")


# --- where a file may be

# File systems that several machines may share. A SQLite log needs locks and shared memory that all
# its users see, but other machines don't see them. Folders that a virtual machine shares with its
# host belong here too: their locks apply only inside the virtual machine.
_NETWORK = frozenset(
    "nfs nfs3 nfs4 nfsd cifs smb smb2 smb3 smbfs ncpfs ncp afs afpfs coda ceph cephfs "
    "glusterfs lustre beegfs fhgfs gpfs mmfs ocfs2 gfs gfs2 orangefs pvfs2 panfs wekafs "
    "quobyte davfs davfs2 moosefs acfs vxfs_cluster dlmfs 9p virtiofs vboxsf prl_fs "
    "prl_fs_freeze vmhgfs hgfs drvfs osxfs fakeowner macfuse osxfuse".split()
)
# Most FUSE file systems are network or cloud drives, and new ones appear every year. So only these
# local ones are accepted.
_LOCAL_FUSE = frozenset(
    "fuse-overlayfs overlayfs-fuse unionfs unionfs-fuse mergerfs mhddfs aufs bindfs encfs "
    "gocryptfs cryfs securefs ecryptfs veracrypt dislocker ntfs ntfs-3g exfat exfat-fuse ext2 "
    "ext4 fuse2fs fuse-ext2 lklfuse apfs apfs-fuse hfsfuse zfs zfs-fuse fusecompress "
    "squashfuse snapfuse".split()
)
_checked_folders: set[Path] = set()  # folders known to be on local disks


def identity(path: str) -> Identity | None:
    """Return a file's device and inode, without opening it; None if there is no file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError(f"cannot use {path}: {exc.strerror or exc}") from exc
    return status.st_dev, status.st_ino


def refuse_unsafe(path: Path) -> None:
    """Refuse a symbolic link, and a file or folder that other users own or may write to."""
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; use the path of the file itself")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; use the path of a file, or move the folder")
    if os.name != "posix":
        return
    for part in (path.parent, path):
        if not part.exists():
            continue
        status = part.stat()
        doubt = open_to_everybody(part, status)
        if doubt:
            raise StoreError(f"{part} {doubt}")
        if status.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
            raise StoreError(
                f"{part} belongs to another user; set MEMORY_HOME to a folder of your own"
            )


def refuse_network(folder: Path) -> None:
    """Refuse a folder on a file system that other machines may use at the same time.

    Reading is refused too, because without locks, a page may be read while another machine
    overwrites it. Folders that were accepted aren't checked again.
    """
    if folder in _checked_folders or not sys.platform.startswith("linux"):
        return
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    kind = filesystem_of(str(folder.resolve()), mounts)
    if is_network(kind):
        raise StoreError(
            f"{folder} is on a network filesystem ({kind}), where SQLite's locks and log do not "
            "work; copy the whole folder to a local disk and set MEMORY_HOME to it, or use a "
            "store on a server, such as postgresql://"
        )
    _checked_folders.add(folder)


def is_network(kind: str) -> bool:
    """Return whether file systems of this kind are, or may be, shared by several machines."""
    if kind == "fuse" or kind.startswith("fuse."):
        return kind.removeprefix("fuse.") not in _LOCAL_FUSE
    return kind.lower() in _NETWORK


def filesystem_of(resolved: str, mounts: str) -> str:
    """Return the kind of file system that a path is on, given the text of /proc/self/mounts."""
    best, best_kind = "", ""
    for line in mounts.splitlines():
        _, mount, kind, *_ = line.split(" ")
        if "\\" in mount:
            mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount)
        is_inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if is_inside and len(mount) >= len(best):
            best, best_kind = mount, kind
    return best_kind


# --- the state of a store


def read_state(db: apsw.Connection) -> tuple[StoreState, bool]:
    """Return a store's state, and whether it is a restored backup without later writes."""
    sql = "SELECT id, commits, EXISTS (SELECT 1 FROM meta WHERE name = 'backup') FROM store"
    rows = db.execute(sql).fetchall()
    if len(rows) != 1 or not str(rows[0][1]).isdigit():
        raise apsw.CorruptError("the commit count is missing")
    state_id, commits, backup = rows[0]
    return StoreState(str(state_id), int(str(commits))), bool(backup)


def write_state(db: apsw.Connection, state: StoreState) -> None:
    """Write the state that the store will have after the current transaction."""
    db.execute("UPDATE store SET id = ?, commits = ?", (state.id, f"{state.commits:020d}"))


def count_missing_commits(connection: apsw.Connection, commit_note: CommitNote | None) -> int:
    """Return how many of the commits up to the one in a note are missing from the file."""
    if commit_note is None:
        return 0
    state, is_restored = read_state(connection)
    if is_restored or commit_note.state.history != state.history:
        return 0  # a restored backup lacks later commits, as intended
    return max(0, commit_note.state.commits - state.commits)
