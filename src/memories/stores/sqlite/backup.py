"""Copies of the store file: taking one while others write, checking it, and putting one in the
store's place.

A copy carries a mark in `meta`, which says of which store it is and of when. Where a file with that
mark lies beside a log, the log is not its own: see `put_back`.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from memories.core.disk import flush_folder, put_in_place
from memories.core.ids import digest
from memories.errors import RequestError, SchemaTooNew, StoreDamaged, StoreError, StoreFull
from memories.stores.records import Collection
from memories.stores.sqlite import schema, sidefile
from memories.stores.sqlite.connection import BUSY_SECONDS, SQLiteFile
from memories.stores.sqlite.engine import opened_apart
from memories.stores.sqlite.errors import translated
from memories.stores.sqlite.log import ForeignLog, continues, refuse_foreign_log
from memories.stores.sqlite.query import READ, fetch, fetch_value, labels_of

MARK = "backup"  # in `meta`
_PAGE = 500
_COUNT = f"SELECT count(*) FROM record r JOIN pool p ON p.id = r.pool WHERE p.collection <> '{Collection.LOG}'"
_SETTLING_SECONDS = 2.0  # that a restore waits for readers before it goes on without them
_SIDE_FILES = ("-wal", "-shm", "-journal")


class Mark(NamedTuple):
    """What a copy says of itself: the id of the store, and when it was made, in ISO 8601."""

    store: str
    at: str


# --- out
# -------------------------------------------------------------------------------------------------------------


def copy_out(path: Path, target: Path, mark: Mark | None) -> int:
    """Write a copy of a store, as it is at one moment, while others write; return how many records
    it has.

    Args:
        path: The store.
        target: An empty file that nobody else uses.
        mark: What the copy says of itself; None for one that only keeps the state before a repair,
            and may be damaged.

    Raises:
        StoreDamaged: The store, or the copy, is not sound.
    """
    file = SQLiteFile(path)
    try:
        with file.read() as db:  # migrates an older schema, as every use of the store does
            begun = fetch_value(db, "SELECT coalesce(max(seq), 0) FROM record")
        file.copy_to(target)
    finally:
        file.close()
    with translated(target):
        with opened_apart(target, write=True) as db:
            db.pragma("synchronous", "FULL")
            db.pragma("journal_mode", "wal")
            if mark is not None:
                _set_mark(db, mark)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            copied = int(fetch_value(db, _COUNT))
            last = fetch_value(db, "SELECT seq FROM sqlite_sequence WHERE name = 'record'")
        _flush(target)
    if mark is None:
        return copied
    if (last or 0) < begun:
        raise StoreError(
            f"the copy {target} is older than the store was when it began; nothing was kept"
        )
    try:
        return records_in(target)
    except StoreDamaged as exc:
        reason = str(exc).removeprefix(f"{target} is damaged").removeprefix(": ")
        raise StoreDamaged(
            f"{path} is damaged, so no backup was made: {reason}; run memory doctor, and save what is sound with "
            "memory doctor --salvage FILE"
        ) from exc


def records_in(path: Path) -> int:
    """Read a copy from its first to its last record and check everything; return how many memories
    and turns it has.

    Raises:
        StoreDamaged: It is not a store, or not a sound one.
    """
    with translated(path), opened_apart(path) as db:
        problems = [row[0] for row in fetch(db, "PRAGMA integrity_check(3)")]
        if problems != ["ok"]:
            raise StoreDamaged(f"{path} is damaged ({problems[0]})")
        count, last = 0, -1
        while rows := fetch(db, f"{READ} WHERE r.seq > ? ORDER BY r.seq LIMIT {_PAGE}", (last,)):
            names = labels_of(db, [row[9] for row in rows])
            for row in rows:
                try:
                    schema.record_of(row, names)
                except schema.NEVER_WRITTEN as exc:
                    raise StoreDamaged(
                        f"{path} is damaged: record {row[0]} can't be read ({exc})"
                    ) from exc
            count, last = count + len(rows), rows[-1][0]
        if count != fetch_value(db, "SELECT count(*) FROM record"):
            raise StoreDamaged(f"{path} is damaged: some records belong to no namespace")
        return int(fetch_value(db, _COUNT))


def is_database(path: Path) -> bool:
    """Return whether a file is a SQLite database, of whatever program, sound or not."""
    with translated(path), opened_apart(path) as db:
        try:
            return bool(db.pragma("schema_version")) or path.stat().st_size > 0
        except apsw.NotADBError:
            return False
        except apsw.CorruptError:
            return True


def identity_of(path: Path) -> str:
    """Return what tells a store from others, and is the same in its copies as long as it lies where
    it is.
    """
    return digest(str(path))


def mark_of(path: Path) -> Mark | None:
    """Return what a file says of itself; None if it is no copy of a store."""
    try:
        with translated(path), opened_apart(path) as db:
            if db.pragma("application_id") != schema.APPLICATION_ID:
                return None
            found = fetch_value(db, "SELECT value FROM meta WHERE name = ?", (MARK,))
            return None if found is None else Mark(**json.loads(found))
    except (StoreError, ValueError, TypeError):
        return None


# --- in
# --------------------------------------------------------------------------------------------------------------


def copy_in(source: Path, target: Path) -> int:
    """Write what a backup, a snapshot or another store file has into a new file; return how many
    records there are.

    Args:
        source: The file; it is not changed.
        target: An empty file that nobody else uses. It gets this program's schema.

    Raises:
        StoreDamaged: It is not a sound store.
        SchemaTooNew: A newer program wrote it.
    """
    with translated(source), opened_apart(source) as db:
        _refuse_foreign(db, source)
        try:
            db.execute("VACUUM INTO ?", (str(target),))
        except apsw.FullError as exc:
            raise StoreFull(
                f"the disk of {target} is full; make room and try again; nothing was changed"
            ) from exc
    with translated(target), opened_apart(target, write=True) as db:
        db.pragma("synchronous", "FULL")
        db.pragma("journal_mode", "wal")
        for version in range(int(db.pragma("user_version")) + 1, len(schema.MIGRATIONS) + 1):
            with db:
                schema.migrate(db, version)
                db.execute(f"PRAGMA user_version={version}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return records_in(target)


def refuse_logs(source: Path, path: Path) -> None:
    """Refuse a database beside a log of another file, and one whose own log was left where the
    store is.

    Args:
        source: The database that is restored.
        path: The store.

    Raises:
        RequestError: What would be restored is not what the store was.
    """
    try:
        refuse_foreign_log(source, None)
    except ForeignLog as exc:
        raise RequestError(
            f"the log {source.name}-wal beside {source} is of another file; nothing was changed; copy the file alone "
            "to another folder and restore that"
        ) from exc
    log = Path(f"{path}-wal")
    if (
        _has_content(Path(f"{source}-wal"))
        or not continues(log, source)
        or (path.exists() and continues(log, path))
    ):
        return
    first = f"move {path} to another folder, then " if path.exists() else ""
    raise RequestError(
        f"{log} is the log of {source} and has what was written last; nothing was changed; {first}move {source} to "
        f"{path} and use it there"
    )


def occupied(path: Path) -> RequestError:
    """Return the error for a restore where a store is already."""
    return RequestError(
        f"there is a store at {path}; to put it aside and restore this one in its place, add --replace"
    )


def put_back(scratch: Path, path: Path, aside: Path | None, *, records: int, mark: Mark) -> None:
    """Put a checked file in the place of a store, in steps that each leave the old store or the new
    one.

    Args:
        scratch: The file, in the folder of the store; used by nobody else.
        path: The store.
        aside: The name that a store which is there is kept under, with its log; None to refuse
            then.
        records: How many it has.
        mark: What it says of itself. Where a log can't be emptied, it lies beside the new file for
            a moment, and the mark says that it is not its own; the first commit takes the mark
            away.

    Raises:
        RequestError: There is a store, and no name to keep it under.
        StoreBusy: Another process holds the write lock.
    """
    with translated(scratch), opened_apart(scratch, write=True) as db:
        db.execute("PRAGMA synchronous=FULL")
        _set_mark(db, mark)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    _flush(scratch)
    file = SQLiteFile(path)
    with file._exclusive(BUSY_SECONDS) as side, translated(path):
        old = [
            Path(f"{path}{suffix}")
            for suffix in ("", "-wal")
            if _has_content(Path(f"{path}{suffix}"))
        ]
        if old and aside is None:
            raise occupied(path)
        settled = not old or _settle(file)
        if aside is not None:
            _keep(path, aside)
        if settled:
            _drop_side_files(path)
        put_in_place(scratch, path)
        _drop_side_files(path)
        sidefile.erase(side)  # it tells of the file before
        with opened_apart(path) as db:
            there = fetch_value(db, _COUNT)
        if there != records:
            raise StoreError(
                f"{path} has {there} records and the backup {records}; restore another one"
            )


def _settle(file: SQLiteFile) -> bool:
    """Bring the log into the file and empty it; return whether that was possible.

    It is not where somebody is reading, or the store can't be opened.
    """
    try:
        with translated(file.path):
            connection = file._connection()
            connection.set_busy_timeout(int(_SETTLING_SECONDS * 1000))
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    except StoreError:
        return False
    finally:
        file._close_connections()
    return not busy


def _keep(path: Path, aside: Path) -> None:
    """Give the store and its log second names, so that they stay when the first ones are taken."""
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


def _drop_side_files(path: Path) -> None:
    for suffix in _SIDE_FILES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    flush_folder(path.parent)


def _has_content(path: Path) -> bool:
    try:
        return path.lstat().st_size > 0
    except FileNotFoundError:
        return False


def _set_mark(db: apsw.Connection, mark: Mark) -> None:
    db.execute(
        "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)",
        (MARK, json.dumps(mark._asdict())),
    )


def _flush(path: Path) -> None:
    """Make a file survive a power cut; nobody may have it open."""
    fd = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_foreign(db: apsw.Connection, path: Path) -> None:
    """Refuse a database that this program did not make: what is in its schema would be run."""
    if db.pragma("application_id") != schema.APPLICATION_ID:
        raise RequestError(
            f"{path} is a SQLite database of another program; name a backup of Memories"
        )
    version, newest = int(db.pragma("user_version")), len(schema.MIGRATIONS)
    if not 1 <= version <= newest:
        raise SchemaTooNew(
            f"{path} has schema {version} and this program knows {newest} at most; upgrade memories"
        )
    ours = set(_objects(schema.empty()))
    foreign = [f"{kind} {name}" for kind, name in _objects(db) if (kind, name) not in ours]
    if foreign:
        raise RequestError(
            f"{path} has a {foreign[0]}, which Memories never made; it was not restored"
        )


def _objects(db: apsw.Connection) -> list[Any]:
    return fetch(db, "SELECT type, name FROM sqlite_schema")
