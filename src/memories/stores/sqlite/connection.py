"""Opens, locks, reads, writes and erases the SQLite file; knows nothing about records.

This package opens store files only through apsw, whose SQLite doesn't have the WAL-reset bug, and
never in any other way: closing a plain file handle would cancel SQLite's locks in this process.
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
from memories.errors import StoreBusy, StoreDamaged, StoreError
from memories.stores.protocol import RefuseLost, treat_as_new
from memories.stores.sqlite import engine
from memories.stores.sqlite.engine import CommitNote, Identity, StoreState, identity, next_state
from memories.stores.sqlite.errors import (
    CommitsMissing,
    copy_errors,
    filesystem_errors,
    loss_message,
    read_errors,
    sqlite_errors,
)

BUSY_SECONDS = 30.0
_PARTS = ("", "-wal", "-shm")
# Suffixes of the copies that migrations, restores and repairs leave next to the file.
COPIES = ("v*.backup", "replaced-*", "before-fix-*")
# how long an attempt to erase waits for readers; in the meantime, other writers have to wait
_ATTEMPT_MILLIS = 100
_BETWEEN_ATTEMPTS = 0.05  # pause in seconds between attempts, so that others can write

# The warnings that were already logged: for each, the file and the number of missing commits.
_reported: set[tuple[Path, int]] = set()


class SQLiteFile:
    """A store file, and this process's connections to it, one for each thread."""

    def __init__(self, path: Path, refuse_lost: RefuseLost = treat_as_new) -> None:
        """Initialize; nothing is opened yet.

        Args:
            path: The file.
            refuse_lost: Called before a missing file is treated as new.
        """
        if not engine.engine_is_safe(apsw.sqlite_lib_version()):
            raise StoreError(
                f"SQLite {apsw.sqlite_lib_version()} can lose acknowledged writes (the WAL-reset "
                "bug); install apsw 3.51.3 or newer"
            )
        self.path, self._refuse_lost = path, refuse_lost
        self._parts = tuple(f"{path}{suffix}" for suffix in _PARTS)
        self._lock_file = Path(f"{path}.lock")
        self._reset()
        _files.add(self)

    def _reset(self) -> None:
        self._guard, self._opened_lock = ForkGuard(), threading.Lock()
        self._drop_connections()

    def _drop_connections(self) -> None:
        self._local = threading.local()
        self._opened: list[tuple[threading.Thread, apsw.Connection]] = []
        # The identities that the file, its log and its shared memory had when they were opened;
        # None for one that didn't exist.
        self._seen: tuple[Identity | None, ...] = (None,) * len(_PARTS)
        self._frozen_stamp: tuple[int, int, int] | None = None  # None if it is opened with locks
        self._version: int | None = None

    # --- reading and writing

    @contextlib.contextmanager
    def read(self) -> Iterator[apsw.Connection]:
        """Yield a connection whose statements all see the same state of the store.

        If there is no file, the store is empty.
        """
        with read_errors(self.path):
            connection = self._connection()
            if connection.in_transaction:
                yield connection
                return
            if self._is_outdated:
                with self.write():  # migrates it
                    pass
            connection.execute("BEGIN")
            try:
                engine.refuse_newer(connection, self.path)
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

        The lock on the side file (`.lock`) is taken before SQLite's own lock, so that writers get
        their turns in a fair order. Inside another `write`, this is a savepoint: an error undoes
        only the savepoint, even if it is caught.

        Args:
            wait_seconds: How long to wait for other writers; by default `BUSY_SECONDS`.
            durable: Whether to flush the commit to disk. If not, a power failure before the next
                durable commit may lose this commit, but nothing that was flushed earlier.

        Raises:
            StoreBusy: The lock wasn't available within `wait_seconds`.
            CommitsMissing: The file lacks acknowledged commits; see `accept_loss`.
        """
        with sqlite_errors(self.path):
            if self.in_write:
                with self._savepoint() as connection:
                    yield connection
                return
            patience = BUSY_SECONDS if wait_seconds is None else wait_seconds
            with self._exclusive(patience) as side:
                connection = self._begin(patience, durable=durable)
                self._local.writing = True
                try:
                    engine.refuse_newer(connection, self.path)
                    state = self._next_state(connection, side)
                    changes = connection.total_changes()
                    yield connection
                    has_changed = connection.total_changes() != changes
                    if has_changed:
                        engine.write_state(connection, state)
                        # Once written to, a restored backup is a store of its own.
                        connection.execute("DELETE FROM meta WHERE name = 'backup'")
                    connection.execute("COMMIT")
                except BaseException:
                    self._undo(connection, "ROLLBACK")
                    raise
                finally:
                    self._local.writing = False
                self._refuse_changed_parts()  # the commit may be in files that were replaced
                if has_changed and durable:
                    self._note_commit(side, state)

    def _begin(self, patience: float, *, durable: bool) -> apsw.Connection:
        connection = self._connection_for_writing()
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        # Other programs may write without taking the lock on the side file.
        connection.set_busy_timeout(int(patience * 1000))
        try:
            connection.execute("BEGIN IMMEDIATE")
        finally:
            connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        return connection

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
        """Roll back by running a statement; if that fails, the next use opens a new connection."""
        engine.undo(connection, statement)
        if connection.in_transaction and not self.in_write:
            self._local.connection = None

    @property
    def in_write(self) -> bool:
        """Whether this thread is inside `write`."""
        return not self._guard.forked and bool(getattr(self._local, "writing", False))

    @property
    def is_frozen(self) -> bool:
        """Whether the file is open only for reading, without locks; see `_open_frozen`."""
        return self._frozen_stamp is not None

    def erase_leftover_bytes(self) -> None:
        """Checkpoint the log and overwrite free bytes, so that no byte of removed records is left.

        Other processes may write between attempts.

        Raises:
            StoreBusy: A reader kept using an earlier state of the file.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        with sqlite_errors(self.path):
            while not self._try_to_erase(max(0.0, deadline - time.monotonic())):
                if time.monotonic() > deadline:
                    raise StoreBusy(
                        f"{self.path} is being read by another process; forget it again when that "
                        "process is done"
                    )
                time.sleep(_BETWEEN_ATTEMPTS)

    def _try_to_erase(self, wait_seconds: float) -> bool:
        """Make one attempt to erase; return False if a reader prevents it."""
        from memories.stores.sqlite import whole_file

        with self._exclusive(wait_seconds):
            connection = self._connection()
            connection.set_busy_timeout(_ATTEMPT_MILLIS)
            try:
                busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            finally:
                connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
            if not busy:
                whole_file.overwrite_gaps(connection, self.path)
            return not busy

    def missing_commits(self) -> int:
        """Return how many acknowledged commits are missing; see `loss_message`."""
        # The note is read before the file; otherwise, a commit in between would seem lost.
        _, commit_note = engine.read_side(self._lock_file)
        with self.read() as connection:
            return engine.count_missing_commits(connection, commit_note)

    def accept_loss(self) -> int:
        """Accept that commits are missing, and begin a new history; return their number."""
        with sqlite_errors(self.path), self._exclusive(BUSY_SECONDS) as side:
            connection = self._connection()
            _, commit_note = engine.read_open_side(side)
            missing = engine.count_missing_commits(connection, commit_note)
            if missing:
                with filesystem_errors(self._lock_file):
                    engine.erase_note(side)
                connection.execute("BEGIN IMMEDIATE")
                try:
                    state, _ = engine.read_state(connection)
                    engine.write_state(connection, next_state(state, forked=True))
                    connection.execute("COMMIT")
                except BaseException:
                    self._undo(connection, "ROLLBACK")
                    raise
            return missing

    def copy_to(self, target: Path) -> None:
        """Write a consistent copy of the store into an empty file; writers are not blocked."""
        with sqlite_errors(self.path):
            connection = self._connection()
            with copy_errors(target, "free some space on it, or name another file"):
                connection.execute("VACUUM INTO ?", (str(target),))

    def close(self) -> None:
        """Close all connections of this process."""
        if self._guard.forked:
            return  # the connections belong to the parent process
        self._close_connections()

    def _close_connections(self) -> None:
        still_in_use: list[tuple[threading.Thread, apsw.Connection]] = []
        with self._opened_lock:
            parts = zip(self._seen, self._identities(), strict=True)
            is_replaced = any(before is not None and before != now for before, now in parts)
            for thread, connection in self._opened:
                try:
                    if is_replaced:  # don't write to or remove the files that replaced ours
                        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                    connection.close()
                except apsw.ThreadingViolationError:
                    still_in_use.append((thread, connection))
            self._opened = still_in_use
            if still_in_use:
                raise StoreError(
                    f"{self.path} is in use by another thread; close it when that thread is done"
                )
            self._drop_connections()

    def size_bytes(self) -> int:
        """Return the size of the file and its log on disk."""
        return _size(self._parts[0]) + self.log_bytes()

    def log_bytes(self) -> int:
        """Return the size of the log, which keeps growing while a reader stays in a transaction."""
        return _size(self._parts[1])

    def snapshots(self) -> tuple[str, ...]:
        """Return the paths of backups, and of copies that migrations, restores and repairs left."""
        patterns = [f"{self.path.name}.{kind}" for kind in COPIES]
        patterns.append(f"backups/{self.path.stem}-*.db")
        paths: list[str] = []
        with filesystem_errors(self.path.parent):
            for pattern in patterns:
                paths += map(str, self.path.parent.glob(pattern))
        return tuple(sorted(paths))

    # --- connections

    def _connection(self) -> apsw.Connection:
        """Return this thread's connection, or one to an empty store if there is no file."""
        if self._guard.forked:
            self._disinherit()
        if self._seen[0] is None and identity(self._parts[0]) is None:
            # only new and outdated files need these modules
            from memories.stores.sqlite import schema, whole_file

            whole_file.refuse_lost(self.path, self._refuse_lost)
            if not hasattr(self._local, "empty"):
                self._local.empty = schema.empty()
                engine.prepare_connection(self._local.empty)
            empty: apsw.Connection = self._local.empty
            return empty
        self._refuse_changed_parts()
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        # A connection that isn't in the list was closed by another thread.
        if connection is None or all(connection is not opened for _, opened in self._opened):
            with filesystem_errors(self.path):
                connection = self._local.connection = self._open()
        return connection

    def _connection_for_writing(self) -> apsw.Connection:
        """Return this thread's connection; create or migrate the file first if needed."""
        if self._seen[0] is None and identity(self._parts[0]) is None:
            from memories.stores.sqlite import schema, whole_file

            whole_file.refuse_lost(self.path, self._refuse_lost)
            with filesystem_errors(self.path):
                engine.refuse_network(self.path.parent)
                whole_file.create(self.path, schema.empty())
        connection = self._connection()
        if self._frozen_stamp:
            raise StoreError(
                f"cannot write to {self.path} or its folder; check their owner and permissions"
            )
        if self._is_outdated:
            from memories.stores.sqlite import schema, whole_file

            whole_file.migrate(connection, self.path, schema.migrate)
            self._version = engine.SCHEMA_VERSION
        if self._seen[1] is None and connection.pragma("journal_mode") != "wal":
            engine.use_log(connection, self.path)
        return connection

    def _open(self) -> apsw.Connection:
        """Open a connection for this thread, if the file and its log are safe to use.

        Also close the connections of threads that have ended.
        """
        self._disinherit()
        engine.refuse_unsafe(self.path)
        engine.refuse_network(self.path.parent)
        if self.path.stat().st_size == 0:
            raise StoreDamaged(
                f"{self.path} is empty (0 bytes), so it is not a store; restore a backup: memory "
                "restore FILE --replace, or remove the file and its scratchpads to start a new "
                "store"
            )
        if self._seen[0] is None and self.log_bytes():
            self._refuse_foreign_log()
        try:
            connection = engine.connect(self.path)
            self._version = engine.set_up(connection, self.path, BUSY_SECONDS)
        except (apsw.CantOpenError, apsw.ReadOnlyError):
            if os.access(self.path.parent, os.W_OK) or not os.access(self.path, os.R_OK):
                raise
            connection = self._open_frozen()
        if self._seen[0] is None and not self._is_outdated:
            self._warn_of_missing_commits(connection)
        with self._opened_lock:
            for thread, its_connection in self._opened:
                if not thread.is_alive():
                    its_connection.close()
            self._opened = [entry for entry in self._opened if entry[0].is_alive()]
            self._opened.append((threading.current_thread(), connection))
            self._seen = self._identities()
        return connection

    def _open_frozen(self) -> apsw.Connection:
        """Open a file for reading without locks, which SQLite can't create in a read-only folder.

        Each read checks that no process wrote to the file in the meantime.
        """
        if self.log_bytes():
            raise StoreError(
                f"{self.path.parent} is not writable, but reading the log of {self.path.name} "
                "requires that; copy the whole folder to a writable place, and set MEMORY_HOME to "
                "the copy"
            )
        self._refuse_changed_meanwhile()
        self._frozen_stamp = self._stamp()
        connection = engine.connect_frozen(self.path)
        self._version = engine.set_up(connection, self.path, BUSY_SECONDS)
        return connection

    @property
    def _is_outdated(self) -> bool:
        return self._version is not None and self._version < engine.SCHEMA_VERSION

    def _warn_of_missing_commits(self, connection: apsw.Connection) -> None:
        """Log once per process that commits are missing; only writes are refused."""
        # The note is read before the file; otherwise, a commit in between would seem lost.
        _, commit_note = engine.read_side(self._lock_file)
        missing = engine.count_missing_commits(connection, commit_note)
        if missing and (self.path, missing) not in _reported:
            import logging  # takes 5 ms, and is rarely needed

            _reported.add((self.path, missing))
            logging.getLogger(__name__).warning("%s", loss_message(self.path, missing))

    # --- files that other programs removed or replaced

    def _identities(self) -> tuple[Identity | None, ...]:
        return tuple(map(identity, self._parts))

    def _refuse_changed_parts(self) -> None:
        """Refuse to continue if the file, its log or its shared memory was removed or replaced.

        SQLite would continue with the files that it has open. But other processes can't see them,
        and they disappear when they are closed. Other Memories processes never remove a log while
        this process has a connection.
        """
        with self._opened_lock:  # closing the last connection removes the log
            if self._seen[0] is None:
                return
            identities = self._identities()
            for suffix, before, now in zip(_PARTS, self._seen, identities, strict=True):
                if before is not None and before != now:
                    part = f"{self.path}{suffix}" + (", a part of the store," if suffix else "")
                    raise StoreDamaged(
                        f"{part} was removed or replaced while it was open; nothing was written; "
                        "restart this program to use the current files"
                    )
            self._seen = identities

    def _refuse_changed_meanwhile(self) -> None:
        """Refuse a result that was read without locks if another process wrote in the meantime."""
        if self._frozen_stamp and self._frozen_stamp != self._stamp():
            raise StoreError(
                f"another process wrote to {self.path} while it was being read without locks; "
                "try again"
            )

    def _stamp(self) -> tuple[int, int, int]:
        """Return values that change when another process writes to the file or its log."""
        with filesystem_errors(self.path):
            status = self.path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size + self.log_bytes()

    def _refuse_foreign_log(self) -> None:
        """Refuse to open the file if the log next to it belongs to another file.

        During a commit, the log may look like another file's. In that case, the check is repeated
        under the lock.
        """
        from memories.stores.sqlite import wal

        try:
            wal.refuse_foreign_log(self.path, engine.read_side(self._lock_file)[1])
        except (StoreDamaged, OSError, apsw.Error):
            if getattr(self._local, "exclusive", False):
                raise
            with self._exclusive(BUSY_SECONDS):
                wal.refuse_foreign_log(self.path, engine.read_side(self._lock_file)[1])

    def _disinherit(self) -> None:
        """Drop all connections that this process has inherited from its parent.

        Otherwise SQLite would take the parent's locks for its own.
        """
        for file in list(_files):
            if not file._guard.forked:
                continue
            is_dropped = file._drop_inherited_connections()
            if not is_dropped and file.path == self.path:
                raise StoreError(
                    f"{self.path} was in use when this process was forked; start processes before "
                    "opening it, or use spawn"
                )

    def _drop_inherited_connections(self) -> bool:
        """Close the inherited connections without touching the file; return False if one is in use.

        If another thread of the parent was using a connection, it stays in use forever, because
        that thread doesn't exist in this process.
        """
        try:
            if any(connection.in_transaction for _, connection in self._opened):
                return False
            for _, connection in self._opened:
                engine.close_without_checkpoint(connection)
        except apsw.ThreadingViolationError:
            return False
        self._reset()
        return True

    # --- the side file

    @contextlib.contextmanager
    def _exclusive(self, wait_seconds: float) -> Iterator[int]:
        """Hold the lock on the side file inside the context; yield the file's descriptor."""
        if self._guard.forked:
            self._disinherit()
        what = f", the lock of {self.path.name}"
        with contextlib.ExitStack() as stack:
            # Check this before locking, which would recreate a folder that was moved away.
            self._refuse_changed_parts()
            if self._seen[0] is None:
                with filesystem_errors(self.path):
                    engine.refuse_unsafe(self.path)
            with filesystem_errors(self._lock_file, what):
                is_locked = stack.enter_context(try_lock(self._lock_file, 0))
                if not is_locked:
                    since, (_, before) = time.monotonic(), engine.read_side(self._lock_file)
                    is_locked = stack.enter_context(try_lock(self._lock_file, wait_seconds))
            if not is_locked:
                waited = time.monotonic() - since
                raise engine.busy_error(self.path, self._lock_file, waited, before)
            with filesystem_errors(self._lock_file, what):
                side = stack.enter_context(engine.sign_lock(self._lock_file))
            self._local.exclusive = True
            try:
                yield side
            finally:
                self._local.exclusive = False

    def _next_state(self, connection: apsw.Connection, side: int) -> StoreState:
        """Return the store's state after this transaction; refuse a store that lacks commits.

        Raises:
            CommitsMissing: The file lacks acknowledged commits.
        """
        _, commit_note = engine.read_open_side(side)
        missing = engine.count_missing_commits(connection, commit_note)
        if missing:
            raise CommitsMissing(loss_message(self.path, missing))
        state, is_restored = engine.read_state(connection)
        return next_state(state, forked=is_restored)

    def _note_commit(self, side: int, state: StoreState) -> None:
        """Write a note about an acknowledged commit, so that a loss of the commit is noticed."""
        with contextlib.suppress(OSError, apsw.Error):  # the commit itself succeeded
            status = self.path.stat()
            side_inode = os.fstat(side).st_ino
            salt = engine.salt_of(Path(self._parts[1]))
            commit_note = CommitNote(state, salt, status.st_ino, status.st_mtime_ns, side_inode)
            engine.write_note(side, commit_note)


_files: "weakref.WeakSet[SQLiteFile]" = weakref.WeakSet()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - for speed
    except FileNotFoundError:
        return 0
