"""The file of the SQLite store: creating, opening, locking, migrating and erasing it. Knows nothing
of records.

Every statement in this package that touches a store file goes through apsw, whose SQLite has no
WAL-reset bug, and the file is never opened in any other way: closing a plain file handle would
cancel SQLite's locks in this process.
"""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import apsw

from memories.core.disk import ForkGuard, try_lock
from memories.errors import SchemaTooNew, StoreBusy, StoreDamaged, StoreError, StoreFull
from memories.stores.sqlite import engine, schema, sidefile
from memories.stores.sqlite.engine import (
    Identity,
    connect,
    connect_frozen,
    engine_is_safe,
    identity,
    overwrite_gaps,
)
from memories.stores.sqlite.errors import CommitsMissing, filesystem_errors, loss, translated
from memories.stores.sqlite.sidefile import Marker, Noted, following

BUSY_SECONDS = 30.0
_PARTS = ("", "-wal", "-shm")
COPIES = (
    "v*.backup",
    "replaced-*",
    "before-fix-*",
)  # that are kept beside the file, under its name
_PRAGMAS = (
    "mmap_size=0",
    "trusted_schema=OFF",
    "cell_size_check=ON",
    "synchronous=FULL",
    "secure_delete=ON",
)
_ATTEMPT_MILLIS = 100  # for which other writers wait while an erasure waits for a reader
_BETWEEN_ATTEMPTS = 0.05  # seconds


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
        self._parts = tuple(f"{path}{suffix}" for suffix in _PARTS)
        self._lock_file = Path(f"{path}.lock")
        self._reset()
        _FILES.add(self)

    def _reset(self) -> None:
        self._guard = ForkGuard()
        self._local = threading.local()
        self._opened: list[tuple[threading.Thread, apsw.Connection]] = []
        self._opened_lock = threading.Lock()
        self._seen: tuple[Identity | None, ...] = (None,) * len(_PARTS)
        self._frozen: tuple[int, int, int] | None = None
        self._version: int | None = None

    # --- reading and writing
    # ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def read(self) -> Iterator[apsw.Connection]:
        """Yield a connection whose statements all see one state of the store; an empty store if
        there is no file.
        """
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
            except BaseException:
                self._undo(connection, "ROLLBACK")
                raise
            connection.execute("ROLLBACK")
            self._refuse_changed_meanwhile()

    @contextlib.contextmanager
    def write(
        self, *, wait_seconds: float | None = None, durable: bool = True
    ) -> Iterator[apsw.Connection]:
        """Yield a connection in a transaction that excludes other writers; commit at the end.

        The lock on the side file comes first: it makes writers queue in fair order before SQLite's
            own lock. Inside
        another `write` this is a savepoint: its failure undoes its own part, even if it is caught.

        Args:
            wait_seconds: How long to wait for other writers; by default `BUSY_SECONDS`.
            durable: Flush it to the disk. Otherwise a power cut may lose it until the next durable
                commit, but nothing that was flushed before.

        Raises:
            StoreBusy: Another writer held the lock for that long.
            CommitsMissing: Acknowledged commits are gone from the file; see `accept_loss`.
        """
        with translated(self.path):
            if self.in_write:
                with self._savepoint() as connection:
                    yield connection
                return
            patience = BUSY_SECONDS if wait_seconds is None else wait_seconds
            with self._exclusive(patience) as side:
                connection = self._for_writing()
                connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                connection.set_busy_timeout(
                    int(patience * 1000)
                )  # for programs that do without our lock
                try:
                    connection.execute("BEGIN IMMEDIATE")
                finally:
                    connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
                self._local.depth = 1
                try:
                    self._refuse_newer(connection)
                    after = self._next(connection, side)
                    changes = connection.total_changes()
                    yield connection
                    changed = connection.total_changes() != changes
                    if changed:
                        schema.count_commit(connection, after)
                    connection.execute("COMMIT")
                except BaseException:
                    self._undo(connection, "ROLLBACK")
                    raise
                finally:
                    self._local.depth = 0
                self._refuse_changed()
                if changed and durable:
                    self._note(side, after)

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[apsw.Connection]:
        connection = self._connection()
        connection.execute("SAVEPOINT inner")
        try:
            yield connection
        except BaseException:
            self._undo(connection, "ROLLBACK TO inner; RELEASE inner")
            raise
        connection.execute("RELEASE inner")

    def _undo(self, connection: apsw.Connection, statement: str) -> None:
        engine.undo(connection, statement)
        if (
            connection.in_transaction and not self.in_write
        ):  # not even that worked: the next use opens another
            self._local.connection = None

    @property
    def in_write(self) -> bool:
        """Whether this thread is inside `write`."""
        return not self._guard.forked and bool(getattr(self._local, "depth", 0))

    def erase_free_pages(self) -> None:
        """Move the log into the file and empty it, so that removed bytes, overwritten there, are
        gone from the disk.

        Others write between two attempts. A file that was written before every deletion was
        overwritten is rewritten once as a whole.

        Raises:
            StoreBusy: Somebody goes on reading what was there before.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        with translated(self.path):
            while not self._try_to_erase(max(0.0, deadline - time.monotonic())):
                if time.monotonic() > deadline:
                    raise StoreBusy(
                        f"{self.path} is being read by another process; forget it again when that is done"
                    )
                time.sleep(_BETWEEN_ATTEMPTS)

    def _try_to_erase(self, wait_seconds: float) -> bool:
        """Do it, and return whether no reader was in the way."""
        with self._exclusive(wait_seconds):
            connection = self._connection()
            if not connection.execute("SELECT 1 FROM meta WHERE name = 'secure'").fetchall():
                schema.rewrite(connection)
            connection.set_busy_timeout(_ATTEMPT_MILLIS)
            try:
                busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            finally:
                connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
            if not busy:
                overwrite_gaps(connection, self.path)
            return not busy

    def missing_commits(self) -> int:
        """Return how many commits were acknowledged and are no longer in the file: a log was cut or
        removed.
        """
        noted = sidefile.read(self._lock_file)[1]  # before the file: others may commit meanwhile
        with self.read() as connection:
            return _missing(connection, noted)

    def accept_loss(self) -> int:
        """Go on with what is there though commits are missing; return how many. Their history ends
        here.
        """
        with translated(self.path), self._exclusive(BUSY_SECONDS) as side:
            connection = self._connection()
            missing = _missing(connection, sidefile.read_open(side)[1])
            if missing:
                with filesystem_errors(self._lock_file):
                    sidefile.erase(side)
                connection.execute("BEGIN IMMEDIATE")
                try:
                    schema.count_commit(
                        connection, following(schema.state(connection)[0], forked=True)
                    )
                    connection.execute("COMMIT")
                except BaseException:
                    self._undo(connection, "ROLLBACK")
                    raise
            return missing

    def copy_to(self, target: Path) -> None:
        """Write a copy of the store, as it is at one moment, into an empty file; writers go on
        meanwhile.
        """
        with translated(self.path):
            connection = self._connection()
            try:
                connection.execute("VACUUM INTO ?", (str(target),))
            except apsw.FullError as exc:
                raise StoreFull(
                    f"the disk of {target} is full; make room on it, or name another one"
                ) from exc

    def close(self) -> None:
        """Close every connection of this process."""
        if self._guard.forked:
            return  # they are the parent's
        self._close_connections()
        self._reset()

    def _close_connections(self) -> None:
        in_use: list[tuple[threading.Thread, apsw.Connection]] = []
        with self._opened_lock:
            self._keep_what_is_not_ours()
            for thread, connection in self._opened:
                try:
                    connection.close()
                except apsw.ThreadingViolationError:
                    in_use.append((thread, connection))
            self._opened = in_use
        if in_use:
            raise StoreError(
                f"{self.path} is in use by another thread; close it when its calls are done"
            )
        self._local = threading.local()

    def size_bytes(self) -> int:
        """Return the size of the file and its log on the disk."""
        return sum(map(_size, self._parts[:2]))

    def log_bytes(self) -> int:
        """Return the size of the log; it grows while somebody reads without end."""
        return _size(self._parts[1])

    def snapshots(self) -> tuple[str, ...]:
        """Return the copies that migrations, restores and repairs left beside the file, and backups
        in their folder.
        """
        names = (*(f"{self.path.name}.{kind}" for kind in COPIES), f"backups/{self.path.stem}-*.db")
        with filesystem_errors(self.path.parent):
            return tuple(
                sorted(str(found) for name in names for found in self.path.parent.glob(name))
            )

    # --- connections
    # -----------------------------------------------------------------------------------------------

    def _connection(self) -> apsw.Connection:
        if self._guard.forked:
            self._disinherit()
        if self._seen[0] is None and identity(self._parts[0]) is None:
            self._refuse_orphaned_log()
            return self._empty()
        self._refuse_changed()
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None or all(
            connection is not known for _, known in self._opened
        ):  # or it was closed
            with filesystem_errors(self.path):
                connection = self._local.connection = self._open()
            self._seen = self._found()
        return connection

    def _for_writing(self) -> apsw.Connection:
        if self._seen[0] is None and identity(self._parts[0]) is None:
            self._refuse_orphaned_log()
            with filesystem_errors(self.path):
                engine.refuse_network(self.path.parent)
                engine.create(self.path)
        connection = self._connection()
        if self._frozen:
            raise StoreError(
                f"{self.path} or its folder can't be written; check who owns it and its permissions"
            )
        if self._outdated:
            engine.migrate(connection, self.path)
            self._version = len(schema.MIGRATIONS)
        if self._seen[1] is None and connection.pragma("journal_mode") != "wal":
            engine.use_log(connection, self.path)
        return connection

    def _found(self) -> tuple[Identity | None, ...]:
        """Return the identities of the file, its log and its shared memory, as they are now."""
        return tuple(map(identity, self._parts))

    def _refuse_changed(self) -> None:
        """Refuse to go on when a part was removed or replaced while it was open.

        SQLite goes on with the parts that it has open, which nobody else sees and which are gone
        when it closes them. While we have a connection, no other process removes a log.
        """
        if self._seen[0] is None:
            return
        found = self._found()
        for suffix, seen, now in zip(_PARTS, self._seen, found, strict=True):
            if seen is not None and seen != now:
                what = f"{self.path}{suffix}" + (", a part of the store," if suffix else "")
                raise StoreDamaged(
                    f"{what} was removed or replaced while it was open; nothing was written; start again to use "
                    "what is there now"
                )
        self._seen = found

    def _refuse_changed_meanwhile(self) -> None:
        """Refuse what was read without locks while somebody wrote."""
        if self._frozen and self._frozen != self._stamp():
            raise StoreError(
                f"{self.path} was written by another process while it was read without being writable here; start again"
            )

    def _stamp(self) -> tuple[int, int, int]:
        with filesystem_errors(self.path):
            found = self.path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size + _size(self._parts[1])

    def _keep_what_is_not_ours(self) -> None:
        """Let closing neither write to nor remove files that were put in the place of those that
        are open.
        """
        found = self._found()
        if any(
            seen is not None and seen != now for seen, now in zip(self._seen, found, strict=True)
        ):
            for _, connection in self._opened:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    @property
    def _outdated(self) -> bool:
        return self._version is not None and self._version < len(schema.MIGRATIONS)

    def _empty(self) -> apsw.Connection:
        """Return an empty store in memory, in place of one that does not exist yet."""
        connection: apsw.Connection | None = getattr(self._local, "empty", None)
        if connection is None:
            connection = self._local.empty = schema.empty()
            schema.prepare(connection)
        return connection

    def _open(self) -> apsw.Connection:
        self._disinherit()
        engine.refuse_unsafe(self.path)
        engine.refuse_network(self.path.parent)
        if self.path.stat().st_size == 0:
            raise StoreDamaged(
                f"{self.path} is empty (0 bytes), which no store is; restore a backup or remove it"
            )
        if self._seen[0] is None and _size(self._parts[1]):
            self._refuse_foreign_log()
        try:
            connection = self._set_up(connect(self.path))
        except (apsw.CantOpenError, apsw.ReadOnlyError):
            if os.access(self.path.parent, os.W_OK) or not os.access(self.path, os.R_OK):
                raise
            connection = self._open_frozen()
        if self._seen[0] is None and not self._outdated:
            self._tell_missing(connection)
        with self._opened_lock:  # those whose thread has ended are closed
            for thread, left in self._opened:
                if not thread.is_alive():
                    left.close()
            self._opened = [entry for entry in self._opened if entry[0].is_alive()]
            self._opened.append((threading.current_thread(), connection))
        return connection

    def _tell_missing(self, connection: apsw.Connection) -> None:
        """Log, once in a process, that commits are missing; reads go on, and the next write is
        refused.
        """
        noted = sidefile.read(self._lock_file)[1]  # before the file: others may commit meanwhile
        missing = _missing(connection, noted)
        if missing and (self.path, missing) not in _told:
            import logging  # 5 ms that only the bad case pays

            _told.add((self.path, missing))
            logging.getLogger(__name__).warning("%s", loss(self.path, missing))

    def _set_up(self, connection: apsw.Connection) -> apsw.Connection:
        try:
            connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            if connection.pragma("application_id") != schema.APPLICATION_ID:
                raise StoreDamaged(
                    f"{self.path} is a SQLite database of another program; it was not touched"
                )
            self._version = self._refuse_newer(connection)
            schema.prepare(connection)
        except BaseException:
            connection.config(
                apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1
            )  # closing must not touch the file either
            connection.close()
            raise
        return connection

    def _open_frozen(self) -> apsw.Connection:
        """Open a file in a folder that can't be written, so that SQLite can make no locks: for
        reading, unlocked.

        Each read checks that nobody wrote meanwhile.
        """
        if _size(self._parts[1]):
            raise StoreError(
                f"{self.path.parent} can't be written, which reading the log of {self.path.name} needs; copy the whole "
                "folder to one that can, and set MEMORY_HOME to it"
            )
        self._refuse_changed_meanwhile()
        self._frozen = self._stamp()
        return self._set_up(connect_frozen(self.path))

    def _refuse_foreign_log(self) -> None:
        """Refuse a log that is not of this file. A commit under way may look so: look again under
        the lock.
        """
        from memories.stores.sqlite import log

        try:
            log.refuse_foreign_log(self.path, sidefile.read(self._lock_file)[1])
        except (StoreDamaged, OSError, apsw.Error):
            if getattr(self._local, "exclusive", False):
                raise
            with self._exclusive(BUSY_SECONDS):
                log.refuse_foreign_log(self.path, sidefile.read(self._lock_file)[1])

    def _refuse_newer(self, connection: apsw.Connection) -> int:
        """Return the schema's version; checked in every transaction, since a newer program may
        migrate at any time.
        """
        version = int(connection.pragma("user_version"))
        newest = len(schema.MIGRATIONS)
        if version > newest:
            raise SchemaTooNew(
                f"{self.path} has schema {version} and this program knows {newest} at most; "
                "upgrade memories; the file was not touched"
            )
        return version

    def _refuse_orphaned_log(self) -> None:
        """Refuse to create a file beside the log of a lost store: SQLite would replay the log into
        the new file.
        """
        beside = Path(self._parts[1])
        if _size(self._parts[1]) and identity(self._parts[0]) is None:
            raise StoreDamaged(
                f"{self.path} is gone, but its log {beside.name} is still there; put the file back, or remove the log "
                "too"
            )

    def _disinherit(self) -> None:
        """Drop the parent's connections, of every store: SQLite would take the parent's locks for
        ours.
        """
        for file in list(_FILES):
            if file._guard.forked and not file._drop_inherited() and file.path == self.path:
                raise StoreError(
                    f"{self.path} was in use when this process was forked; start processes before, or by spawn"
                )

    def _drop_inherited(self) -> bool:
        """Close what the parent opened, without touching the file; not if it was in the middle of
        something.
        """
        try:
            if any(connection.in_transaction for _, connection in self._opened):
                return False
            for _, connection in self._opened:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close()
        except apsw.ThreadingViolationError:
            return False  # another thread of the parent was using it, and is for ever in the child
        self._reset()
        return True

    # --- the side file
    # ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _exclusive(self, wait_seconds: float) -> Iterator[int]:
        """Hold the lock on the side file while inside; yield a descriptor of it."""
        if self._guard.forked:
            self._disinherit()
        what = f", the lock of {self.path.name}"
        with contextlib.ExitStack() as stack:
            # before the lock, which would make a folder again that was moved away
            self._refuse_changed()
            if self._seen[0] is None:
                with filesystem_errors(self.path):
                    engine.refuse_unsafe(self.path)
            with filesystem_errors(self._lock_file, what):
                held = stack.enter_context(try_lock(self._lock_file, 0))
                if not held:
                    since, before = time.monotonic(), sidefile.read(self._lock_file)[1]
                    held = stack.enter_context(try_lock(self._lock_file, wait_seconds))
            if not held:
                raise sidefile.busy(self.path, self._lock_file, time.monotonic() - since, before)
            with filesystem_errors(self._lock_file, what):
                side = stack.enter_context(sidefile.signed(self._lock_file))
            self._local.exclusive = True
            try:
                yield side
            finally:
                self._local.exclusive = False

    def _next(self, connection: apsw.Connection, side: int) -> Marker:
        """Return the state after the transaction that was just begun; refuse it where commits are
        missing.
        """
        missing = _missing(connection, sidefile.read_open(side)[1])
        if missing:
            raise CommitsMissing(loss(self.path, missing))
        marker, restored = schema.state(connection)
        if restored:
            connection.execute("DELETE FROM meta WHERE name = 'backup'")
        return following(marker, forked=restored)

    def _note(self, side: int, after: Marker) -> None:
        """Note what is acknowledged; a failure of it only tells less later."""
        with contextlib.suppress(OSError, apsw.Error):  # the commit is done, and stays so
            found = self.path.stat()
            own = os.fstat(side).st_ino
            salt = sidefile.salt_of(Path(self._parts[1]))
            sidefile.note(side, Noted(after, salt, found.st_ino, found.st_mtime_ns, own))


def _missing(connection: apsw.Connection, noted: Noted | None) -> int:
    """Return how many commits that were noted are not in the file."""
    if noted is None:
        return 0
    marker, restored = schema.state(connection)
    if restored or noted.marker.history != marker.history:
        return 0  # what a backup lacks is known
    return max(0, noted.marker.commits - marker.commits)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - for speed
    except FileNotFoundError:
        return 0


_told: set[tuple[Path, int]] = set()
_FILES: "weakref.WeakSet[SQLiteFile]" = weakref.WeakSet()
