"""The file of the SQLite store: creating, opening, locking, migrating and erasing it. Knows nothing of records.

Every statement in this package that touches a store file goes through apsw, whose SQLite has no WAL-reset bug, and
the file is never opened in any other way: closing a plain file handle would cancel SQLite's locks in this process.
"""

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import apsw

from memories.disk import ForkGuard, holder, put_in_place, tried
from memories.errors import SchemaTooNew, StoreBusy, StoreDamaged, StoreError
from memories.stores.sqlite import schema

BUSY_SECONDS = 30.0
_NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"}
)


def engine_is_safe(version: str) -> bool:
    """Return whether this SQLite is free of the WAL-reset bug, which silently loses acknowledged commits."""
    number = tuple(int(part) for part in version.split("."))
    return number >= (3, 51, 3) or (3, 50, 7) <= number < (3, 51, 0) or (3, 44, 6) <= number < (3, 45, 0)


class SQLiteFile:
    """One store file and this process's connections to it, one for each thread."""

    def __init__(self, path: Path) -> None:
        """Remember where the file is; nothing is opened yet."""
        if not engine_is_safe(apsw.sqlite_lib_version()):
            raise StoreError(
                f"SQLite {apsw.sqlite_lib_version()} can lose acknowledged writes (the WAL-reset bug); "
                "install apsw 3.51.3 or newer"
            )
        self.path = path
        self._lock_file = Path(f"{path}.lock")
        self._reset()
        _FILES.add(self)

    def _reset(self) -> None:
        self._guard = ForkGuard()
        self._local = threading.local()
        self._opened: list[tuple[threading.Thread, apsw.Connection]] = []
        self._opened_lock = threading.Lock()
        self._writing = threading.Lock()
        self._identity: tuple[int, int] | None = None
        self._version: int | None = None

    # --- reading and writing ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def read(self) -> Iterator[apsw.Connection]:
        """Yield a connection whose statements all see one state of the store; an empty store if there is no file."""
        with translated(self.path):
            connection = self._connection()
            if connection.in_transaction:
                yield connection
                return
            if self._outdated:
                with self.write():
                    pass
            connection.execute("BEGIN")
            try:
                self._refuse_newer(connection)
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def write(self, *, wait_seconds: float | None = None, durable: bool = True) -> Iterator[apsw.Connection]:
        """Yield a connection in a transaction that excludes other writers; commit at the end.

        The lock on the side file comes first: it makes writers queue in fair order before SQLite's own lock. Inside
        another `write` this is a savepoint: its failure undoes its own part, even if it is caught.

        Args:
            wait_seconds: How long to wait for other writers; by default `BUSY_SECONDS`.
            durable: Flush it to the disk. Otherwise a power cut may lose it until the next durable commit, but nothing
                that was flushed before.

        Raises:
            StoreBusy: Another writer held the lock for that long.
        """
        with translated(self.path):
            if self.in_write:
                with self._connection() as connection:
                    yield connection
                return
            patience = BUSY_SECONDS if wait_seconds is None else wait_seconds
            with self._exclusive(patience):
                if _identity(self.path) is None and self._identity is None:
                    self._refuse_orphaned_log()
                    with _filesystem_errors(self.path):
                        self._create()
                connection = self._connection()
                if self._outdated:
                    self._migrate(connection)
                connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                connection.set_busy_timeout(int(patience * 1000))  # for programs that do without our lock
                try:
                    connection.execute("BEGIN IMMEDIATE")
                finally:
                    connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
                self._local.depth = 1
                try:
                    self._refuse_newer(connection)
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    self._local.depth = 0
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")

    @property
    def in_write(self) -> bool:
        """Whether this thread is inside `write`."""
        return not self._guard.forked and bool(getattr(self._local, "depth", 0))

    def erase_free_pages(self) -> None:
        """Rewrite the file without its free space and empty the log, so that removed bytes are gone from the disk."""
        with translated(self.path), self._exclusive(BUSY_SECONDS):
            connection = self._connection()
            connection.execute("VACUUM")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            if busy:
                raise StoreBusy(
                    f"{self.path} is being read by another process, so the old pages are still on the disk; "
                    "forget it again when that process is done"
                )

    def close(self) -> None:
        """Close every connection of this process."""
        if self._guard.forked:
            return  # they are the parent's
        with self._opened_lock:
            try:
                for _, connection in self._opened:
                    connection.close()
            except apsw.ThreadingViolationError as exc:
                raise StoreError(f"{self.path} is in use by another thread; close it when its calls are done") from exc
            self._opened.clear()
        self._reset()

    def size_bytes(self) -> int:
        """Return the size of the file and its log on the disk."""
        sizes = (Path(f"{self.path}{suffix}") for suffix in ("", "-wal"))
        return sum(part.stat().st_size for part in sizes if part.exists())

    def snapshots(self) -> tuple[str, ...]:
        """Return the snapshots that migrations left beside the file."""
        return tuple(sorted(str(found) for found in self.path.parent.glob(f"{self.path.name}.v*.backup")))

    # --- connections -----------------------------------------------------------------------------------------------

    def _connection(self) -> apsw.Connection:
        if self._guard.forked:
            self._disinherit()
        found = _identity(self.path)
        if found is None and self._identity is None:
            self._refuse_orphaned_log()
            return self._empty()
        if self._identity is not None and found != self._identity:
            raise StoreDamaged(
                f"{self.path} was removed or replaced while it was open; nothing was written; start again to use "
                "what is there now"
            )
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            with _filesystem_errors(self.path):
                _refuse_unsafe(self.path)
                connection = self._local.connection = self._open()
            self._identity = found
        return connection

    @property
    def _outdated(self) -> bool:
        return self._version is not None and self._version < len(schema.MIGRATIONS)

    def _empty(self) -> apsw.Connection:
        """Return an empty store in memory, in place of one that does not exist yet."""
        connection: apsw.Connection | None = getattr(self._local, "empty", None)
        if connection is None:
            connection = self._local.empty = apsw.Connection(":memory:")
            for version in range(1, len(schema.MIGRATIONS) + 1):
                schema.migrate(connection, version)
        return connection

    def _open(self) -> apsw.Connection:
        self._disinherit()
        if self.path.stat().st_size == 0:
            raise StoreDamaged(f"{self.path} is empty (0 bytes), which no store is; restore a backup or remove it")
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
            connection.execute("PRAGMA mmap_size=0; PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON")
            connection.execute("PRAGMA synchronous=FULL")
            if connection.pragma("application_id") != schema.APPLICATION_ID:
                raise StoreDamaged(f"{self.path} is a SQLite database of another program; it was not touched")
            self._version = self._refuse_newer(connection)
        except BaseException:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # closing must not touch the file either
            connection.close()
            raise
        with self._opened_lock:  # those whose thread has ended are closed
            for thread, left in self._opened:
                if not thread.is_alive():
                    left.close()
            self._opened = [entry for entry in self._opened if entry[0].is_alive()]
            self._opened.append((threading.current_thread(), connection))
        return connection

    def _refuse_newer(self, connection: apsw.Connection) -> int:
        """Return the schema's version; checked in every transaction, since a newer program may migrate at any time."""
        version = int(connection.pragma("user_version"))
        newest = len(schema.MIGRATIONS)
        if version > newest:
            raise SchemaTooNew(
                f"{self.path} has schema {version} and this program knows {newest} at most; "
                "upgrade memories; the file was not touched"
            )
        return version

    def _refuse_orphaned_log(self) -> None:
        """Refuse to create a file beside the log of a lost store: SQLite would replay the log into the new file."""
        log = Path(f"{self.path}-wal")
        if _identity(log) is not None and log.stat().st_size > 0 and _identity(self.path) is None:
            raise StoreDamaged(
                f"{self.path} is gone, but its log {log.name} is still there; put the file back, or remove the log too"
            )

    def _disinherit(self) -> None:
        """Drop the parent's connections, of every store: SQLite would take the parent's locks for ours."""
        for file in list(_FILES):
            if file._guard.forked and not file._drop_inherited() and file.path == self.path:
                raise StoreError(
                    f"{self.path} was in use when this process was forked; start processes before, or by spawn"
                )

    def _drop_inherited(self) -> bool:
        """Close what the parent opened, without touching the file; not if it was in the middle of something."""
        if any(connection.in_transaction for _, connection in self._opened):
            return False
        for _, connection in self._opened:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
        self._reset()
        return True

    # --- creating and migrating ------------------------------------------------------------------------------------

    def _create(self) -> None:
        """Create the file with its schema under another name and rename it, so that it is never seen half made."""
        self._refuse_network_filesystem()
        scratch = self.path.with_name(f".{self.path.name}.new")
        for leftover in (scratch, Path(f"{scratch}-wal"), Path(f"{scratch}-shm")):
            leftover.unlink(missing_ok=True)
        os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600))
        connection = apsw.Connection(str(scratch))
        try:
            connection.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            for version in range(1, len(schema.MIGRATIONS) + 1):
                schema.migrate(connection, version)
            connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={len(schema.MIGRATIONS)}")
            connection.execute("COMMIT")
            # Closing would ignore that the log can't be moved into the file, and only the file is put in place.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()
        put_in_place(scratch, self.path)

    def _migrate(self, connection: apsw.Connection) -> None:
        """Bring an older schema up to date, under the side-file lock, after a snapshot of the whole file."""
        version = connection.pragma("user_version")
        if version < len(schema.MIGRATIONS):  # else another process was first
            self._snapshot(connection, version)
        for number in range(version + 1, len(schema.MIGRATIONS) + 1):
            connection.execute("BEGIN IMMEDIATE")
            try:
                schema.migrate(connection, number)
                connection.execute(f"PRAGMA user_version={number}")
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        self._version = len(schema.MIGRATIONS)

    def _snapshot(self, connection: apsw.Connection, version: int) -> None:
        target = self.path.with_name(f"{self.path.name}.v{version}.backup")
        if target.exists():
            return  # left by an interrupted migration; the older snapshot is the better one
        scratch = target.with_name(f".{target.name}.new")
        scratch.unlink(missing_ok=True)
        os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # VACUUM INTO alone would make it 0644
        connection.execute("VACUUM INTO ?", (str(scratch),))
        put_in_place(scratch, target)

    def _refuse_network_filesystem(self) -> None:
        if not sys.platform.startswith("linux"):
            return
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        kind = filesystem_of(str(self.path.parent.resolve()), mounts)
        if kind in _NETWORK_FILESYSTEMS:
            raise StoreError(
                f"{self.path.parent} is on a network filesystem ({kind}), where SQLite's log does not work; "
                "set MEMORY_HOME to a folder on a local disk"
            )

    # --- the side-file lock ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _exclusive(self, wait_seconds: float) -> Iterator[None]:
        if self._guard.forked:
            self._disinherit()
        deadline = time.monotonic() + wait_seconds
        if not self._writing.acquire(timeout=wait_seconds):
            raise self._busy(wait_seconds)
        try:
            with contextlib.ExitStack() as stack:
                with _filesystem_errors(self.path):
                    if self._identity is None:
                        _refuse_unsafe(self.path)
                    left = max(0.0, deadline - time.monotonic())
                    held = stack.enter_context(tried(self._lock_file, left, signed=True))
                if not held:
                    raise self._busy(wait_seconds)
                yield
        finally:
            self._writing.release()

    def _busy(self, wait_seconds: float) -> StoreBusy:
        process = holder(self._lock_file)
        by = f" by process {process}" if process else ""
        return StoreBusy(f"{self.path} was kept busy{by} for {wait_seconds:.0f} s; nothing was written; try again")


_FILES: "weakref.WeakSet[SQLiteFile]" = weakref.WeakSet()


# The first that fits counts, so the general ones come last.
_TRANSLATIONS: tuple[tuple[type[apsw.Error], type[StoreError], str], ...] = (
    (apsw.FullError, StoreError, "the disk of {path} is full; nothing was written; make room and try again"),
    (apsw.NotADBError, StoreDamaged, "{path} is not a SQLite database; it was not touched"),
    (apsw.CorruptError, StoreDamaged, "{path} is damaged ({exc}); stop writing to it and restore a backup"),
    (apsw.ReadOnlyError, StoreError, "{path} or its folder can't be written; check who owns it and its permissions"),
    (apsw.IOError, StoreError, "the disk of {path} reported an error ({exc}); nothing was acknowledged"),
    (apsw.NoMemError, StoreError, "out of memory while using {path}; nothing was written"),
    (apsw.Error, StoreError, "SQLite could not use {path} ({exc}); nothing was acknowledged"),
)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite and of the filesystem into ours, each one clear sentence."""
    try:
        yield
    except apsw.BusyError as exc:
        raise StoreBusy(f"{path} was kept busy for {BUSY_SECONDS:.0f} s; nothing was written; try again") from exc
    except apsw.CantOpenError as exc:
        raise StoreError(f"cannot open {path}: {_why_closed(path)}") from exc
    except apsw.Error as exc:
        kind, message = next((ours, text) for theirs, ours, text in _TRANSLATIONS if isinstance(exc, theirs))
        raise kind(message.format(path=path, exc=exc)) from exc


@contextlib.contextmanager
def _filesystem_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StoreError(f"cannot use {path}: {exc.strerror or exc}") from exc


def _why_closed(path: Path) -> str:
    if path.is_dir():
        return "it is a folder"
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        return "it or its folder can't be written; check who owns it and its permissions"
    return "too many files are open, or no room is left on its disk"


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from another of the same name; by stat, never by opening it."""
    with _filesystem_errors(path):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
    return found.st_dev, found.st_ino


def _refuse_unsafe(path: Path) -> None:
    """Refuse a symbolic link, and a file or folder that everybody may write or another user owns."""
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; name the file itself")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; name a file")
    if os.name != "posix":
        return
    for part in (path.parent, path):
        if not part.exists():
            continue
        found = part.stat()
        if found.st_mode & 0o002 and not found.st_mode & 0o1000:  # in a sticky one nobody can replace our files
            raise StoreError(f"{part} can be written by everybody; run: chmod o-w {part}")
        if found.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
            raise StoreError(f"{part} belongs to another user; set MEMORY_HOME to a folder of your own")


def filesystem_of(resolved: str, mounts: str) -> str:
    """Return the kind of filesystem of a path, given the text of /proc/self/mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, escaped, found, *_ = line.split(" ")
        mount = escaped.replace("\\040", " ")
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind
