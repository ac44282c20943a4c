"""The SQLite engine: which versions are safe, and how store files are opened, created and migrated.

Nothing else opens store files: closing one in any other way, even as a plain file, would cancel
this process's locks.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw

from memories.core.disk import CREATING, open_to_everybody, put_in_place
from memories.errors import SchemaTooNew, StoreDamaged, StoreError
from memories.stores.sqlite.rows import WORD_TABLES, view_of
from memories.stores.sqlite.sidefile import CommitNote, Marker, next_marker

APPLICATION_ID = 0x4D656D73  # "Mems", in the header of every store file
SCHEMA_VERSION = 5  # the newest schema: the number of `schema.MIGRATIONS`
# Marks a file in which every deletion since the first write has been overwritten; see
# `SQLiteFile.erase_free_pages`.
SECURE = "INSERT INTO meta (name, value) VALUES ('secure', 1)"
# kibibytes of pages in memory, because searches read rows from all over the file
_CACHE_KIB = 16_384
_BUSY_MILLIS = 30_000
_FILE_HEADER_BYTES = 100  # offset of the first page's header: https://sqlite.org/fileformat2.html
_TREE_HEADER_BYTES = {2: 12, 5: 12, 10: 8, 13: 8}  # size of a page header by the page's first byte
_PAGES_AT_ONCE = 256
_SUFFIXES = ("", "-wal", "-shm", "-journal")

Identity = tuple[int, int]  # device and inode


def engine_is_safe(version: str) -> bool:
    """Return whether a SQLite is free of the WAL-reset bug, which silently loses commits."""
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
    """Prepare a new connection to a store file; return its schema version.

    After an error the connection is closed.
    """
    try:
        connection.set_busy_timeout(int(busy_seconds * 1000))
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        if connection.pragma("application_id") != APPLICATION_ID:
            raise StoreDamaged(f"{path} is another program's SQLite database; it was not touched")
        version = refuse_newer(connection, path)
        prepare(connection)
    except BaseException:
        close_without_checkpoint(connection)
        raise
    return version


def prepare(db: apsw.Connection) -> None:
    """Give a new connection its page cache, and the views and functions that count words."""
    db.pragma("cache_size", -_CACHE_KIB)
    _create_views(db)

    def occurrences(row: apsw.FTS5ExtensionApi, *_: object) -> int:
        return row.inst_count

    def frequencies(row: apsw.FTS5ExtensionApi, *arguments: Any) -> bytes:
        """Return how often each of a search's first phrases occurs, one byte for each.

        The only argument is the number of phrases.
        """
        counts = [len(row.phrase_column_offsets(phrase, 0)) for phrase in range(*arguments)]
        return bytes([min(255, count) for count in counts])

    db.register_fts5_function("occurrences", occurrences)
    db.register_fts5_function("frequencies", frequencies)


def _create_views(db: apsw.Connection) -> None:
    # Undo data of statements is kept in memory: 16 pages of a file for each added memory. The
    # pragma comes first, because it drops temporary tables.
    db.execute("PRAGMA temp_store=MEMORY")
    for table in WORD_TABLES:
        for kind in ("instance", "row"):
            name = view_of(table, kind)
            db.execute(f"CREATE VIRTUAL TABLE {name} USING fts5vocab (main, {table}, {kind})")


def refuse_newer(connection: apsw.Connection, path: Path) -> int:
    """Return the schema version; refuse a version that this program doesn't know.

    Every transaction checks it, because a newer program may migrate the file at any time.
    """
    version = int(connection.pragma("user_version"))
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{path} has schema {version}, but this program supports only schemas up to "
            f"{SCHEMA_VERSION}; upgrade memories; the file was not touched"
        )
    return version


def use_log(connection: apsw.Connection, path: Path) -> None:
    """Switch a file to a write-ahead log; copies made by VACUUM lack one."""
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreDamaged(f"cannot give {path} a log, so several processes could not share it")


def undo(connection: apsw.Connection, statement: str) -> None:
    """Roll back after an error, hiding failures of the rollback, because the first error is being
    raised.
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
        write: Open the file for writing; no other process may use it. Otherwise no other file is
            created next to it, unless it has a log.
    """
    if write:
        connection = connect(path)
    else:
        is_in_use = any(Path(f"{path}{suffix}").exists() for suffix in _SUFFIXES[1:])
        options = "mode=ro" if is_in_use else "mode=ro&immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(f"{path.absolute().as_uri()}?{options}", flags=flags)
    try:
        # One statement per call: a pragma that returns a row ends the script.
        for pragma in ("mmap_size=0", "trusted_schema=OFF", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.set_busy_timeout(_BUSY_MILLIS)
        yield connection
    finally:
        connection.close()


def scratch() -> apsw.Connection:
    """Return an empty temporary database, which SQLite moves to disk if it grows large."""
    return apsw.Connection("")


def read_pages(path: Path, page_size: int, numbers: Iterable[int]) -> dict[int, bytes]:
    """Return pages of a file, ignoring its log; a missing page is empty."""
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        size = file.xFileSize()
        pages: dict[int, bytes] = {}
        for number in numbers:
            start = (number - 1) * page_size
            pages[number] = file.xRead(page_size, start) if start + page_size <= size else b""
        return pages
    finally:
        file.xClose()


# --- new and outdated files


def create(path: Path, empty: apsw.Connection) -> None:
    """Create a store file under another name and rename it, so that it is never incomplete.

    The file is written without a log, so that the renamed file is complete, and SQLite syncs it;
    only then is a log added. After a failure the incomplete file is removed, at the latest by the
    next attempt.
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
            empty.execute(f"PRAGMA application_id={APPLICATION_ID}")
            empty.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            with connection.backup("main", empty, "main") as copy:
                copy.step()
            use_log(connection, scratch)
        finally:
            connection.close()
        put_in_place(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the disk that failed may fail again
            _remove(scratch)
        raise


def _remove(scratch: Path) -> None:
    for suffix in _SUFFIXES:
        Path(f"{scratch}{suffix}").unlink(missing_ok=True)


def migrate(
    connection: apsw.Connection, path: Path, apply: Callable[[apsw.Connection, int], None]
) -> None:
    """Migrate an older schema after a snapshot of the file; the caller holds the lock.

    Args:
        connection: A connection to the file.
        path: The file.
        apply: Applies the migration with a number.
    """
    version = connection.pragma("user_version")
    if version < SCHEMA_VERSION:  # otherwise another process has migrated it
        _take_snapshot(connection, path.with_name(f"{path.name}.v{version}.backup"))
    for number in range(version + 1, SCHEMA_VERSION + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            apply(connection, number)
            sql = "SELECT 1 FROM sqlite_schema WHERE name = 'store'"
            if connection.execute(sql).fetchall():  # earlier schemas do not count commits
                set_state(connection, next_marker(state(connection)[0]))
            connection.execute(f"PRAGMA user_version={number}")
            connection.execute("COMMIT")
        except BaseException:
            undo(connection, "ROLLBACK")
            raise


def _take_snapshot(connection: apsw.Connection, target: Path) -> None:
    if target.exists():
        return  # kept from an interrupted migration, and better than a new one
    scratch = target.with_name(f".{target.name}.new")
    scratch.unlink(missing_ok=True)
    # Otherwise VACUUM INTO would create it with mode 0644.
    fd = os.open(scratch, CREATING | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        connection.execute("VACUUM INTO ?", (str(scratch),))
        os.fsync(fd)
    finally:
        os.close(fd)
    put_in_place(scratch, target)


# --- erasing


def rewrite(db: apsw.Connection) -> None:
    """Rewrite a file from before deletions were overwritten."""
    db.execute("PRAGMA temp_store=FILE")  # the copy may be too large for memory
    try:
        db.execute("VACUUM")
    finally:
        _create_views(db)
    db.execute(SECURE)


def overwrite_gaps(db: apsw.Connection, path: Path) -> None:
    """Overwrite the unused bytes between the cell list and the cells of each page.

    SQLite leaves copies of cells there when it moves them to other pages, and `secure_delete`
    doesn't reach them. Only unused bytes are written, so readers don't have to wait. The next
    commit drops the pages in their caches.

    Args:
        db: A connection to the file; its page cache is dropped.
        path: The file, whose log is empty.
    """
    db.execute("BEGIN IMMEDIATE")  # keeps other programs from writing meanwhile
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])
    try:
        page_size, size = int(db.pragma("page_size")), file.xFileSize()
        for start in range(0, size, _PAGES_AT_ONCE * page_size):
            pages = file.xRead(min(_PAGES_AT_ONCE * page_size, size - start), start)
            for offset in range(0, len(pages), page_size):
                header = 0 if start + offset else _FILE_HEADER_BYTES
                first, last = _find_gap(pages, offset, page_size, header=header)
                leftover = pages[first:last].lstrip(b"\0")
                if leftover:
                    zeros = bytes(len(leftover.rstrip(b"\0")))
                    file.xWrite(zeros, start + last - len(leftover))
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()
        db.execute("ROLLBACK")
        db.release_memory()


def _find_gap(pages: bytes, offset: int, page_size: int, *, header: int) -> tuple[int, int]:
    """Return the start and end of a page's unused middle; empty if it isn't a tree page."""
    start = offset + header
    kind = pages[start]
    if kind not in _TREE_HEADER_BYTES:
        return 0, 0
    cell_count = int.from_bytes(pages[start + 3 : start + 5], "big")
    content = int.from_bytes(pages[start + 5 : start + 7], "big")
    first = start + _TREE_HEADER_BYTES[kind] + 2 * cell_count
    return first, max(first, offset + min(content or page_size, page_size))


# --- where a file may be

# File systems shared by machines that don't see each other's locks and shared memory, which
# SQLite's log needs. Folders that a virtual machine shares with its host belong here too: their
# locks end at the machine's border.
_NETWORK = frozenset(
    "nfs nfs3 nfs4 nfsd cifs smb smb2 smb3 smbfs ncpfs ncp afs afpfs coda ceph cephfs "
    "glusterfs lustre beegfs fhgfs gpfs mmfs ocfs2 gfs gfs2 orangefs pvfs2 panfs wekafs "
    "quobyte davfs davfs2 moosefs acfs vxfs_cluster dlmfs 9p virtiofs vboxsf prl_fs "
    "prl_fs_freeze vmhgfs hgfs drvfs osxfs fakeowner macfuse osxfuse".split()
)
# Most FUSE file systems are network or cloud drives, and new ones appear every year, so this lists
# the local ones.
_LOCAL_FUSE = frozenset(
    "fuse-overlayfs overlayfs-fuse unionfs unionfs-fuse mergerfs mhddfs aufs bindfs encfs "
    "gocryptfs cryfs securefs ecryptfs veracrypt dislocker ntfs ntfs-3g exfat exfat-fuse ext2 "
    "ext4 fuse2fs fuse-ext2 lklfuse apfs apfs-fuse hfsfuse zfs zfs-fuse fusecompress "
    "squashfuse snapfuse".split()
)
_checked_folders: set[Path] = set()  # folders known to be on local disks


def identity(path: str) -> Identity | None:
    """Return what distinguishes a file from another one of the same name, without opening it."""
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
        raise StoreError(f"{path} is a symbolic link; name the file itself")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; name a file")
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

    Reading is refused too, because without locks a page may be read while another machine
    overwrites it. The result is cached for each folder.
    """
    if folder in _checked_folders or not sys.platform.startswith("linux"):
        return
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    kind = filesystem_of(str(folder.resolve()), mounts)
    if is_network(kind):
        raise StoreError(
            f"{folder} is on a network filesystem ({kind}), where SQLite's locks and log do not "
            "work; copy the whole folder to a local disk and set MEMORY_HOME to it, or use a "
            "server's store, such as postgresql://"
        )
    _checked_folders.add(folder)


def is_network(kind: str) -> bool:
    """Return whether several machines share, or may share, a kind of file system."""
    if kind == "fuse" or kind.startswith("fuse."):
        return kind.removeprefix("fuse.") not in _LOCAL_FUSE
    return kind.lower() in _NETWORK


def filesystem_of(resolved: str, mounts: str) -> str:
    """Return a path's kind of file system, given the text of /proc/self/mounts."""
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


def state(db: apsw.Connection) -> tuple[Marker, bool]:
    """Return a store's state, and whether it is a restored backup without later writes."""
    sql = "SELECT id, commits, EXISTS (SELECT 1 FROM meta WHERE name = 'backup') FROM store"
    rows = db.execute(sql).fetchall()
    if len(rows) != 1 or not str(rows[0][1]).isdigit():
        raise apsw.CorruptError("the commit count is missing")
    store, commits, backup = rows[0]
    return Marker(str(store), int(str(commits))), bool(backup)


def set_state(db: apsw.Connection, marker: Marker) -> None:
    """Write the state after the current transaction."""
    db.execute("UPDATE store SET id = ?, commits = ?", (marker.store, f"{marker.commits:020d}"))


def count_missing_commits(connection: apsw.Connection, commit_note: CommitNote | None) -> int:
    """Return how many commits up to a noted one are missing from the file."""
    if commit_note is None:
        return 0
    marker, is_restored = state(connection)
    if is_restored or commit_note.marker.history != marker.history:
        return 0  # a backup lacks later commits on purpose
    return max(0, commit_note.marker.commits - marker.commits)
