"""Making a store file, and bringing an older one up to date."""

import contextlib
import os
from pathlib import Path

import apsw

from memories.core.disk import CREATING, put_in_place
from memories.errors import StoreDamaged
from memories.stores.sqlite import schema
from memories.stores.sqlite.engine import connect
from memories.stores.sqlite.sidefile import following

_SUFFIXES = ("", "-wal", "-shm", "-journal")


def create(path: Path) -> None:
    """Make a store file under another name and rename it, so that it is never seen half made.

    It is written without a log, so that all of it is in the one file that is renamed, and synced by SQLite; only then
    is it told to use one. What a failure leaves is removed, at the latest by the next attempt.
    """
    scratch = path.with_name(f".{path.name}.new")
    _remove(scratch)
    try:
        os.close(os.open(scratch, CREATING | os.O_EXCL | os.O_RDWR, 0o600))
        connection = connect(scratch)
        try:
            connection.execute("PRAGMA journal_mode=MEMORY").fetchall()
            connection.pragma("synchronous", "FULL")
            connection.pragma("secure_delete", 1)
            empty = schema.empty()
            empty.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
            empty.execute(f"PRAGMA user_version={len(schema.MIGRATIONS)}")
            with connection.backup("main", empty, "main") as copy:
                copy.step()
            use_log(connection, scratch)
        finally:
            connection.close()
        put_in_place(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the disk that failed may fail again; the next attempt removes it
            _remove(scratch)
        raise


def _remove(scratch: Path) -> None:
    for suffix in _SUFFIXES:
        Path(f"{scratch}{suffix}").unlink(missing_ok=True)


def use_log(connection: apsw.Connection, path: Path) -> None:
    """Make a file use a log, which copies by VACUUM don't."""
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreDamaged(f"{path} can't be given a log, so several processes could not share it")


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Bring an older schema up to date, under the side-file lock, after a snapshot of the whole file."""
    version = connection.pragma("user_version")
    if version < len(schema.MIGRATIONS):  # else another process was first
        _snapshot(connection, path.with_name(f"{path.name}.v{version}.backup"))
    for number in range(version + 1, len(schema.MIGRATIONS) + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            schema.migrate(connection, number)
            if schema.is_counted(connection):
                schema.count_commit(connection, following(schema.state(connection)[0]))
            connection.execute(f"PRAGMA user_version={number}")
            connection.execute("COMMIT")
        except BaseException:
            undo(connection, "ROLLBACK")
            raise


def undo(connection: apsw.Connection, statement: str) -> None:
    """Take back what failed; a failure of that hides nothing, since the first error is on its way."""
    if connection.in_transaction:
        with contextlib.suppress(apsw.Error):
            connection.execute(statement)


def _snapshot(connection: apsw.Connection, target: Path) -> None:
    if target.exists():
        return  # left by an interrupted migration; the older snapshot is the better one
    scratch = target.with_name(f".{target.name}.new")
    scratch.unlink(missing_ok=True)
    fd = os.open(scratch, CREATING | os.O_EXCL | os.O_RDWR, 0o600)  # VACUUM INTO alone would make it 0644
    try:
        connection.execute("VACUUM INTO ?", (str(scratch),))
        os.fsync(fd)
    finally:
        os.close(fd)
    put_in_place(scratch, target)
