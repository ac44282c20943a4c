"""The SQLite that opens store files: which versions may, where a file may lie, how it is made,
migrated and opened.

Nothing else opens store files: closing one in any other way, even as a plain file, would cancel the
locks held here.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw

from memories.core.disk import CREATING, put_in_place
from memories.core.trust import open_to_everybody
from memories.errors import StoreDamaged, StoreError
from memories.stores.sqlite import schema
from memories.stores.sqlite.sidefile import following

_BUSY_MILLIS = 30_000
_FILE_HEADER = 100  # bytes before the first page's own: https://sqlite.org/fileformat2.html
_TREE_PAGES = {2: 12, 5: 12, 10: 8, 13: 8}  # by their first byte, how long the header is
_PAGES_AT_ONCE = 256


def engine_is_safe(version: str) -> bool:
    """Return whether this SQLite is free of the WAL-reset bug, which silently loses acknowledged
    commits.
    """
    number = tuple(int(part) for part in version.split("."))
    return (
        number >= (3, 51, 3)
        or (3, 50, 7) <= number < (3, 51, 0)
        or (3, 44, 6) <= number < (3, 45, 0)
    )


def connect(path: Path) -> apsw.Connection:
    """Open a file that is there, for reading and, if possible, for writing."""
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)


def connect_frozen(path: Path) -> apsw.Connection:
    """Open a file for reading as if nobody could write to it: without its log and without locks."""
    from urllib.parse import quote

    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)


@contextlib.contextmanager
def opened_apart(path: Path, *, write: bool = False) -> Iterator[apsw.Connection]:
    """Open a file that is no store in use, such as a copy; with `write` nobody else may use it.

    Without `write` nothing is made beside it either, unless it has a log.
    """
    if write:
        connection = connect(path)
    else:
        in_use = any(Path(f"{path}{suffix}").exists() for suffix in ("-wal", "-shm", "-journal"))
        uri = f"{path.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"
        connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        for pragma in (
            "mmap_size=0",
            "trusted_schema=OFF",
            "cell_size_check=ON",
        ):  # each alone: one that answers ends it
            connection.execute(f"PRAGMA {pragma}")
        connection.set_busy_timeout(_BUSY_MILLIS)
        yield connection
    finally:
        connection.close()


def scratch() -> apsw.Connection:
    """Return an empty database for one use, which SQLite keeps on the disk if it grows large."""
    return apsw.Connection("")


def read_pages(path: Path, page_size: int, numbers: Iterable[int]) -> dict[int, bytes]:
    """Return pages of a file as they are without its log; an empty one for each that is not
    there.
    """
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        size = file.xFileSize()
        starts = {number: (number - 1) * page_size for number in numbers}
        return {
            number: file.xRead(page_size, start) if start + page_size <= size else b""
            for number, start in starts.items()
        }
    finally:
        file.xClose()


def overwrite_gaps(db: apsw.Connection, path: Path) -> None:
    """Overwrite what lies in pages between the list of cells and the cells.

    SQLite leaves copies of cells there when it moves them to other pages, and `secure_delete` does
    not reach them. Only unused bytes are written, so readers need not wait; what they keep of pages
    ends with the next commit.

    Args:
        db: A connection to the file, which forgets its pages.
        path: The file, whose log is empty.
    """
    db.execute("BEGIN IMMEDIATE")  # no other program writes meanwhile
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])
    try:
        page_size, size = int(db.pragma("page_size")), file.xFileSize()
        for start in range(0, size, _PAGES_AT_ONCE * page_size):
            pages = file.xRead(min(_PAGES_AT_ONCE * page_size, size - start), start)
            for at in range(0, len(pages), page_size):
                first, last = _gap(pages, at, page_size, header=0 if start + at else _FILE_HEADER)
                left = pages[first:last].lstrip(b"\0")
                if left:
                    file.xWrite(bytes(len(left.rstrip(b"\0"))), start + last - len(left))
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()
        db.execute("ROLLBACK")
        db.release_memory()


def _gap(pages: bytes, at: int, page_size: int, *, header: int) -> tuple[int, int]:
    """Return where the unused middle of a page begins and ends; an empty one for what is no page of
    a tree.
    """
    kind = pages[at + header]
    if kind not in _TREE_PAGES:
        return 0, 0
    cells, content = (
        int.from_bytes(pages[at + header + place : at + header + place + 2], "big")
        for place in (3, 5)
    )
    first = at + header + _TREE_PAGES[kind] + 2 * cells
    return first, max(first, at + min(content or page_size, page_size))


# Several machines see them, but not each other's locks and shared memory, which SQLite's log needs.
# Folders that a virtual machine shares with its host are such file systems too: their locks end at
# the machine's border.
_NETWORK = frozenset(
    "nfs nfs3 nfs4 nfsd cifs smb smb2 smb3 smbfs ncpfs ncp afs afpfs coda ceph cephfs glusterfs lustre beegfs fhgfs "
    "gpfs mmfs ocfs2 gfs gfs2 orangefs pvfs2 panfs wekafs quobyte davfs davfs2 moosefs acfs vxfs_cluster dlmfs "
    "9p virtiofs vboxsf prl_fs prl_fs_freeze vmhgfs hgfs drvfs osxfs fakeowner macfuse osxfuse".split()
)
# Most of what runs on FUSE is a network or cloud drive, and new ones appear every year; so the
# local ones are listed.
_LOCAL_FUSE = frozenset(
    "fuse-overlayfs overlayfs-fuse unionfs unionfs-fuse mergerfs mhddfs aufs bindfs encfs gocryptfs cryfs securefs "
    "ecryptfs veracrypt dislocker ntfs ntfs-3g exfat exfat-fuse ext2 ext4 fuse2fs fuse-ext2 lklfuse apfs apfs-fuse "
    "hfsfuse zfs zfs-fuse fusecompress squashfuse snapfuse".split()
)
_checked: set[Path] = set()

Identity = tuple[int, int]


def identity(path: str) -> Identity | None:
    """Return what distinguishes a file from another of the same name; by stat, never by opening
    it.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError(f"cannot use {path}: {exc.strerror or exc}") from exc
    return found.st_dev, found.st_ino


def refuse_unsafe(path: Path) -> None:
    """Refuse a symbolic link, and a file or folder that everybody may write or another user
    owns.
    """
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
        if doubt := open_to_everybody(part, found):
            raise StoreError(f"{part} {doubt}")
        if found.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
            raise StoreError(
                f"{part} belongs to another user; set MEMORY_HOME to a folder of your own"
            )


def refuse_network(folder: Path) -> None:
    """Refuse a folder on a file system that other machines may use at the same time, for reading
    too.

    Even reading needs the locks: without them, a page may be read while another machine overwrites
        it. Looked up once
    in a process for each folder.
    """
    if folder in _checked or not sys.platform.startswith("linux"):
        return
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    kind = filesystem_of(str(folder.resolve()), mounts)
    if is_network(kind):
        raise StoreError(
            f"{folder} is on a network filesystem ({kind}), where SQLite's locks and log do not work; copy the whole "
            "folder to a local disk and set MEMORY_HOME to it, or use a server's store, such as postgresql://"
        )
    _checked.add(folder)


def is_network(kind: str) -> bool:
    """Return whether a kind of file system is shared by several machines, or may be."""
    if kind == "fuse" or kind.startswith("fuse."):
        return kind.removeprefix("fuse.") not in _LOCAL_FUSE
    return kind.lower() in _NETWORK


def filesystem_of(resolved: str, mounts: str) -> str:
    """Return the kind of filesystem of a path, given the text of /proc/self/mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, escaped, found, *_ = line.split(" ")
        mount = (
            re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), escaped)
            if "\\" in escaped
            else escaped
        )
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


_SUFFIXES = ("", "-wal", "-shm", "-journal")


def create(path: Path) -> None:
    """Make a store file under another name and rename it, so that it is never seen half made.

    It is written without a log, so that all of it is in the one file that is renamed, and synced by
    SQLite; only then is it told to use one. What a failure leaves is removed, at the latest by the
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
        with contextlib.suppress(
            OSError
        ):  # the disk that failed may fail again; the next attempt removes it
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
    """Bring an older schema up to date, under the side-file lock, after a snapshot of the whole
    file.
    """
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
    """Take back what failed; a failure of that hides nothing, since the first error is on its
    way.
    """
    if connection.in_transaction:
        with contextlib.suppress(apsw.Error):
            connection.execute(statement)


def _snapshot(connection: apsw.Connection, target: Path) -> None:
    if target.exists():
        return  # left by an interrupted migration; the older snapshot is the better one
    scratch = target.with_name(f".{target.name}.new")
    scratch.unlink(missing_ok=True)
    fd = os.open(
        scratch, CREATING | os.O_EXCL | os.O_RDWR, 0o600
    )  # VACUUM INTO alone would make it 0644
    try:
        connection.execute("VACUUM INTO ?", (str(scratch),))
        os.fsync(fd)
    finally:
        os.close(fd)
    put_in_place(scratch, target)
