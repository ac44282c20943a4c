"""Backs up the store file while other processes write, and checks and restores such copies.

A copy contains a mark in `meta` with the store's id and the time of the copy. A log next to a file
that has this mark belongs to another file; see `put_back`.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from memories.core.disk import flush_folder, put_in_place
from memories.core.ids import digest
from memories.errors import RequestError, StoreDamaged, StoreError
from memories.guard.validate import amount
from memories.stores import claims
from memories.stores.records import Collection
from memories.stores.sqlite import engine, schema
from memories.stores.sqlite.connection import BUSY_SECONDS, SQLiteFile
from memories.stores.sqlite.engine import open_apart
from memories.stores.sqlite.errors import NEVER_WRITTEN, copy_errors, sqlite_errors
from memories.stores.sqlite.query import READ, labels_of
from memories.stores.sqlite.rows import fetch, fetch_value, record_of
from memories.stores.sqlite.wal import ForeignLog, continues, refuse_foreign_log

MARK = "backup"  # the mark's key in `meta`
_PAGE = 500
_COUNT = (
    "SELECT count(*) FROM record r JOIN pool p ON p.id = r.pool "
    f"WHERE p.collection <> '{Collection.LOG}'"
)
# how long a restore waits for readers before it continues anyway
_SETTLING_SECONDS = 2.0
_SIDE_FILES = ("-wal", "-shm", "-journal")
# The files with the requests that the old store has answered are removed, since the restored store
# may lack what those requests wrote.
_REQUESTS = tuple(f"{claims.FILE_SUFFIX}{suffix}" for suffix in ("", "-wal", "-shm"))


class CopyOrigin(NamedTuple):
    """The origin of a copy: the store's id, and the time of the copy in ISO 8601."""

    store: str
    at: str


# --- writing a copy


def copy_out(path: Path, target: Path, mark: CopyOrigin | None) -> int:
    """Copy a store while other processes write to it; return the number of memories and turns.

    Args:
        path: The store.
        target: An empty file that no other process uses.
        mark: The mark of the copy. None for a copy that only preserves the state before a repair;
            such a copy may be damaged, and isn't checked.

    Raises:
        StoreDamaged: The store or the copy is damaged.
        StoreError: The copy lacks records.
    """
    file = SQLiteFile(path)
    try:
        with file.read() as db:  # migrates an older schema, as every access to the store does
            newest_before = fetch_value(db, "SELECT coalesce(max(seq), 0) FROM record")
        file.copy_to(target)
    finally:
        file.close()
    with sqlite_errors(target):
        with open_apart(target, write=True) as db:
            _use_log(db)
            if mark is not None:
                _set_mark(db, mark)
            _empty_log(db)
            count = int(fetch_value(db, _COUNT))
            newest = fetch_value(db, "SELECT seq FROM sqlite_sequence WHERE name = 'record'")
        _flush(target)
    if mark is None:
        return count
    if (newest or 0) < newest_before:
        raise StoreError(
            f"the copy {target} lacks records that the store contained when the copy began; "
            "the copy was deleted"
        )
    try:
        return records_in(target)
    except StoreDamaged as exc:
        reason = str(exc).removeprefix(f"{target} is damaged").removeprefix(": ")
        raise StoreDamaged(
            f"{path} is damaged, so no backup was made: {reason}; run memory doctor, and save the "
            "intact records with memory doctor --salvage FILE"
        ) from exc


def records_in(path: Path) -> int:
    """Read and check an entire copy; return how many memories and turns it contains.

    Raises:
        StoreDamaged: The file is not a store, or is damaged.
    """
    with sqlite_errors(path), open_apart(path) as db:
        messages = [message for (message,) in fetch(db, "PRAGMA integrity_check(3)")]
        if messages != ["ok"]:
            raise StoreDamaged(f"{path} is damaged ({messages[0]})")
        count, last = 0, -1
        while rows := fetch(db, f"{READ} WHERE r.seq > ? ORDER BY r.seq LIMIT {_PAGE}", (last,)):
            labels = labels_of(db, [row[9] for row in rows])
            for row in rows:
                try:
                    record_of(row, labels)
                except NEVER_WRITTEN as exc:
                    raise StoreDamaged(
                        f"{path} is damaged: record {row[0]} can't be read ({exc})"
                    ) from exc
            count, last = count + len(rows), rows[-1][0]
        if count != fetch_value(db, "SELECT count(*) FROM record"):
            raise StoreDamaged(f"{path} is damaged: some records belong to no namespace")
        return int(fetch_value(db, _COUNT))


def is_database(path: Path) -> bool:
    """Return whether a file is a SQLite database, from any program, damaged or not."""
    with sqlite_errors(path), open_apart(path) as db:
        try:
            return bool(db.pragma("schema_version")) or path.stat().st_size > 0
        except apsw.NotADBError:
            return False
        except apsw.CorruptError:
            return True


def identity_of(path: Path) -> str:
    """Return the id that marks a store's copies; it depends only on the store's path."""
    return digest(str(path))


def mark_of(path: Path) -> CopyOrigin | None:
    """Return a file's mark; None if the file isn't a copy of a store or can't be read."""
    try:
        with sqlite_errors(path), open_apart(path) as db:
            if db.pragma("application_id") != engine.APPLICATION_ID:
                return None
            value = fetch_value(db, "SELECT value FROM meta WHERE name = ?", (MARK,))
            if value is None:
                return None
            return CopyOrigin(**json.loads(value))
    except (StoreError, ValueError, TypeError):
        return None


# --- restoring a copy


def copy_in(source: Path, target: Path) -> int:
    """Write the contents of a backup, a snapshot or another store file into a new file.

    Args:
        source: The file; it is not changed.
        target: An empty file that no other process uses. It gets this program's schema.

    Returns:
        The number of memories and turns.

    Raises:
        StoreDamaged: The file is not an intact store.
        SchemaTooNew: A newer program wrote it.
    """
    with sqlite_errors(source), open_apart(source) as db:
        _refuse_foreign(db, source)
        with copy_errors(target, "free some space and try again; nothing was changed"):
            db.execute("VACUUM INTO ?", (str(target),))
    with sqlite_errors(target), open_apart(target, write=True) as db:
        _use_log(db)
        for version in range(int(db.pragma("user_version")) + 1, engine.SCHEMA_VERSION + 1):
            with db:
                schema.migrate(db, version)
                db.execute(f"PRAGMA user_version={version}")
        _empty_log(db)
    return records_in(target)


def refuse_logs(source: Path, path: Path) -> None:
    """Refuse a database that is next to another file's log, or whose own log is next to the store.

    Args:
        source: The database to restore.
        path: The store.

    Raises:
        RequestError: Restoring would replay the wrong log, or lose the database's last writes.
    """
    try:
        refuse_foreign_log(source, None)
    except ForeignLog as exc:
        raise RequestError(
            f"the log {source.name}-wal next to {source} belongs to another file; nothing was "
            f"changed; copy only {source} to another folder and restore the copy"
        ) from exc
    log = Path(f"{path}-wal")
    if _has_content(Path(f"{source}-wal")) or not continues(log, source):
        return
    if path.exists() and continues(log, path):
        return
    first_step = ""
    if path.exists():
        first_step = f"move {path} to another folder, then "
    raise RequestError(
        f"{log} is the log of {source} and contains its last writes; nothing was changed; "
        f"{first_step}move {source} to {path} and use it there"
    )


def occupied_error(path: Path) -> RequestError:
    """Return the error for a restore without `--replace` to the path of an existing store."""
    return RequestError(
        f"there is a store at {path}; to rename it and put the backup in its place, add --replace"
    )


def put_back(
    scratch: Path, path: Path, aside: Path | None, *, records: int, mark: CopyOrigin
) -> None:
    """Replace a store with a checked file; an interruption leaves either the old or the new store.

    Args:
        scratch: The file, in the store's folder; no other process uses it.
        path: The store.
        aside: The new path for the existing store and its log. If it is None, an existing store is
            not replaced.
        records: The number of memories and turns in the file.
        mark: The file's mark. If the old store's log can't be emptied, the new file is next to that
            log for a moment, and the mark shows that the two don't belong together. The first
            commit removes the mark.

    Raises:
        RequestError: There is a store, but `aside` is None.
        StoreBusy: Another process holds the write lock.
    """
    with sqlite_errors(scratch), open_apart(scratch, write=True) as db:
        db.execute("PRAGMA synchronous=FULL")
        _set_mark(db, mark)
        _empty_log(db)
    _flush(scratch)
    file = SQLiteFile(path)
    with file._exclusive(BUSY_SECONDS) as side, sqlite_errors(path):
        is_occupied = _has_content(path) or _has_content(Path(f"{path}-wal"))
        if is_occupied and aside is None:
            raise occupied_error(path)
        is_settled = not is_occupied or _empty_log_of_store(file)
        if aside is not None:
            _keep(path, aside)
        if is_settled:
            _remove_side_files(path)
        put_in_place(scratch, path)
        _remove_side_files(path, (*_SIDE_FILES, *_REQUESTS))
        engine.erase_note(side)  # the note in the side file describes the old file
        with open_apart(path) as db:
            count = fetch_value(db, _COUNT)
        if count != records:
            contents = amount(count, "record", "records")
            raise StoreError(
                f"{path} contains {contents}, but the backup contains {records}; restore another "
                "backup"
            )


def _empty_log_of_store(file: SQLiteFile) -> bool:
    """Copy the log's pages into the file and empty the log; return whether that succeeded.

    This fails while another process reads, or if the store can't be opened.
    """
    try:
        with sqlite_errors(file.path):
            connection = file._connection()
            connection.set_busy_timeout(int(_SETTLING_SECONDS * 1000))
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    except StoreError:
        return False
    finally:
        file._close_connections()
    return not busy


def _keep(path: Path, aside: Path) -> None:
    """Give the store and its log additional names, so that they survive under these names."""
    for suffix in ("", "-wal"):
        part = Path(f"{path}{suffix}")
        if _has_content(part):
            try:
                os.link(part, f"{aside}{suffix}", follow_symlinks=False)
            except OSError as exc:
                raise StoreError(
                    f"cannot keep the old store as {aside}: {exc.strerror}; nothing was changed"
                ) from exc
    flush_folder(path.parent)


def _remove_side_files(path: Path, suffixes: Sequence[str] = _SIDE_FILES) -> None:
    for suffix in suffixes:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    flush_folder(path.parent)


def _has_content(path: Path) -> bool:
    try:
        return path.lstat().st_size > 0
    except FileNotFoundError:
        return False


def _use_log(db: apsw.Connection) -> None:
    db.pragma("synchronous", "FULL")
    db.pragma("journal_mode", "wal")


def _empty_log(db: apsw.Connection) -> None:
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _set_mark(db: apsw.Connection, mark: CopyOrigin) -> None:
    sql = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
    db.execute(sql, (MARK, json.dumps(mark._asdict())))


def _flush(path: Path) -> None:
    """Flush a file to disk; no process may have the file open."""
    fd = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_foreign(db: apsw.Connection, path: Path) -> None:
    """Refuse another program's database, whose schema may contain code that SQLite would run."""
    if db.pragma("application_id") != engine.APPLICATION_ID:
        raise RequestError(
            f"{path} is another program's SQLite database; use a backup made by Memories"
        )
    engine.refuse_unsupported(db, path)
    ours = set(_read_objects(schema.empty()))
    for kind, name in _read_objects(db):
        if (kind, name) not in ours:
            raise RequestError(
                f"{path} contains a {kind} {name}, which Memories never creates; it was not "
                "restored"
            )


def _read_objects(db: apsw.Connection) -> list[Any]:
    return fetch(db, "SELECT type, name FROM sqlite_schema")
