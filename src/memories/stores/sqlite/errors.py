"""Translates the errors of SQLite and of the file system into `memories.errors`.

Each message is one clear sentence.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from memories.core.disk import FULL
from memories.errors import StoreBusy, StoreDamaged, StoreError, StoreFull
from memories.stores.records import Finding

_DESCRIPTORS = 4  # for a file, its log, its shared memory, and one more
_MAX_PATH_BYTES = 490  # SQLite takes 512, and the files beside the store have longer names
_MIN_FREE_BYTES = 32_768  # shared memory comes in pieces of this size
_DAMAGED = "{path} is damaged ({exc}); stop writing to it and restore a backup"
_FULL = "the disk of {path} is full; nothing was written; make room and try again"
FIX = "run: memory doctor --fix"
SALVAGE = (
    "restore a backup, or save every sound record with: memory doctor --salvage FILE, "
    "and make the store of them with: memory restore FILE --replace"
)
# Raised when a value that was never written is decoded; see `schema.describe_damage`.
NEVER_WRITTEN = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
# The first match counts, so general errors come last.
_TRANSLATIONS: tuple[tuple[type[apsw.Error], type[StoreError], str], ...] = (
    (apsw.FullError, StoreFull, _FULL),
    (apsw.NotADBError, StoreDamaged, "{path} is not a SQLite database; it was not touched"),
    (apsw.CorruptError, StoreDamaged, _DAMAGED),
    (
        apsw.ReadOnlyError,
        StoreError,
        "{path} or its folder can't be written; check who owns it and its permissions",
    ),
    (
        apsw.IOError,
        StoreError,
        "the disk of {path} reported an error ({exc}); nothing was acknowledged",
    ),
    (apsw.NoMemError, StoreError, "out of memory while using {path}; nothing was written"),
    (apsw.Error, StoreError, "SQLite could not use {path} ({exc}); nothing was acknowledged"),
)


class CommitsMissing(StoreDamaged):
    """Acknowledged commits are gone; the remaining ones can be read."""


class WordsDamaged(StoreDamaged):
    """The index of words can't be used; it can be rebuilt from the records.

    Attributes:
        why: The message of SQLite.
        remedy: The advice to the user.
    """

    def __init__(self, path: object, error: Exception) -> None:
        """Create the error for a file, given the exception that SQLite raised."""
        is_corrupt = isinstance(error, apsw.CorruptError)
        has_lost_pages = is_corrupt and _extended_code(error) == apsw.SQLITE_CORRUPT
        self.why = str(error)
        self.remedy = "see what to do with: memory doctor" if has_lost_pages else FIX
        super().__init__(f"the index of words in {path} is damaged ({error}); {self.remedy}")

    def finding(self) -> Finding:
        """Return the finding for a search that goes on without the index."""
        what = f"records that only words find: the index of words is damaged ({self.why})"
        return Finding(what, self.remedy, derived=True)


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Translate the errors that SQLite raises inside."""
    try:
        yield
    except apsw.BusyError as exc:
        raise StoreBusy(
            f"{path} was kept busy by another program; nothing was written; try again"
        ) from exc
    except apsw.CantOpenError as exc:
        kind = StoreFull if _is_full(path.parent) else StoreError
        raise kind(f"cannot open {path}: {_why_it_cannot_open(path)}") from exc
    except apsw.Error as exc:
        if _is_of_words(exc):
            raise WordsDamaged(path, exc) from None
        raise _translate(path, exc) from exc


def _translate(path: Path, exc: apsw.Error) -> StoreError:
    """Translate an SQLite error, by its class and by the state of the files that it doesn't
    mention."""
    kind, message = next(
        (kind, message) for theirs, kind, message in _TRANSLATIONS if isinstance(exc, theirs)
    )
    if isinstance(exc, apsw.IOError | apsw.ReadOnlyError):
        problem = _find_folder_in_the_way(path)
        if problem:
            message = f"{problem}; nothing was written"
    if isinstance(exc, apsw.IOError) and _is_full(path.parent):  # SQLite doesn't always say so
        kind, message = StoreFull, _FULL
    if isinstance(exc, apsw.SQLError) and str(exc).startswith("no such "):  # tables are missing
        kind, message = StoreDamaged, _DAMAGED
    if _extended_code(exc) == apsw.SQLITE_CORRUPT_INDEX:
        message = f"an index of {{path}} is damaged ({{exc}}); {FIX}"
    return kind(message.format(path=path, exc=exc))


def _extended_code(exc: Exception) -> int:
    return int(getattr(exc, "extendedresult", 0))


def _is_of_words(exc: apsw.Error) -> bool:
    """Return whether FTS5 met damage; some of it only shows when a transaction ends."""
    if isinstance(exc, apsw.ConstraintError):
        return str(exc) == "constraint failed"  # SQLite would name a table of ours
    if isinstance(exc, apsw.CorruptError):
        return _extended_code(exc) == apsw.SQLITE_CORRUPT_VTAB or "fts5" in str(exc)
    return isinstance(exc, apsw.SQLError) and "fts5" in str(exc)


@contextlib.contextmanager
def filesystem_errors(path: Path, what: str = "") -> Iterator[None]:
    """Translate the errors that the file system raises inside.

    Args:
        path: The file in use.
        what: A description of it for the message, if its name isn't enough.
    """
    try:
        yield
    except OSError as exc:
        problem = _find_folder_in_the_way(path) if exc.errno == errno.EISDIR else ""
        if problem:
            raise StoreError(f"{problem}; nothing was written") from exc
        why = exc.strerror or str(exc)
        if exc.errno == errno.ELOOP:
            why = "it is a symbolic link; remove it"
        elif what and exc.errno in (errno.ENOENT, errno.EACCES, errno.EROFS):
            why += "; set MEMORY_HOME or MEMORY_STORE to a writable place"
        kind = StoreFull if exc.errno in FULL else StoreError
        raise kind(f"cannot use {path}{what}: {why}") from exc


@contextlib.contextmanager
def decoding_errors(file: str = "the store") -> Iterator[None]:
    """Report undecodable values as damage; use it around nothing but their decoding."""
    try:
        yield
    except NEVER_WRITTEN as exc:
        raise StoreDamaged(
            f"{file} is damaged: it has values that were never written ({exc}); restore a backup"
        ) from exc


def refuse_folder_in_the_way(path: Path) -> None:
    """Raise StoreError if a folder has the name of a part of a store."""
    problem = _find_folder_in_the_way(path)
    if problem:
        raise StoreError(f"{problem}; nothing was written")


def refuse_full(path: Path) -> None:
    """Raise StoreError if the disk has no space for a new store."""
    folder = next(folder for folder in path.parents if folder.is_dir())
    if _is_full(folder):
        raise StoreError(_FULL.format(path=path))


def _find_folder_in_the_way(path: Path) -> str:
    """Return a sentence about a folder with the name of a part of the store; empty without one."""
    for suffix in ("-wal", "-shm", "-journal"):
        part = Path(f"{path}{suffix}")
        if part.is_dir():
            return f"{part} is a folder in the place of a part of the store; move it elsewhere"
    return ""


def _why_it_cannot_open(path: Path) -> str:
    folder = path.parent
    problem = "it is a folder" if path.is_dir() else _find_folder_in_the_way(path)
    if problem:
        return problem
    if _is_full(folder):
        return "no room is left on its disk, which even reading needs; make room and try again"
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        return "its path is too long for SQLite; choose a folder nearer to the root"
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(folder, os.W_OK):
        return "it or its folder can't be written; check who owns it and its permissions"
    if _is_out_of_descriptors():
        return "this process has too many files open; close some, or raise its limit (ulimit -n)"
    return "the system did not say why; check the permissions and the room of its folder"


def _is_out_of_descriptors() -> bool:
    """Return whether the process can't open a file, its log and its shared memory at once."""
    opened: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - all that open must close
    except OSError as exc:
        return exc.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for fd in opened:
            os.close(fd)
    return False


def _is_full(folder: Path) -> bool:
    """Return whether a disk has no space for shared memory, or no inode."""
    if not hasattr(os, "statvfs"):
        return False
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    is_root = os.geteuid() == 0
    free_blocks = status.f_bfree if is_root else status.f_bavail
    free_inodes = status.f_ffree if is_root else status.f_favail
    has_inode_count = status.f_files > 0  # some file systems don't count inodes
    if has_inode_count and free_inodes == 0:
        return True
    return free_blocks * status.f_frsize < _MIN_FREE_BYTES


def loss_message(path: Path, missing: int) -> str:
    """Return the message about a store that lacks acknowledged commits."""
    return (
        f"{missing} commits that were acknowledged are missing from {path}: its log was cut or "
        "removed, or an older copy was put in its place; it can be read, but nothing was written; "
        "put the lost file back, restore a backup (memory restore FILE --replace), or go on "
        "without them: memory doctor --fix"
    )
