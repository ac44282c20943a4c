"""Translates errors from SQLite and the file system to `memories.errors`.

Each message is one sentence.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from memories.core.disk import FULL
from memories.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    describe_after_writes,
)
from memories.guard.validate import amount
from memories.stores.records import Finding

_DESCRIPTORS = 4  # number of descriptors for a file, its log and its shared memory, plus one
_MAX_PATH_BYTES = 490  # SQLite allows 512 bytes, including a suffix such as -wal
_MIN_FREE_BYTES = 32_768  # SQLite allocates shared memory in pieces of this size
_FULL = "the disk of {path} is full; nothing was written; free some space and try again"
FIX = "run: memory doctor --fix"
SALVAGE = (
    "restore a backup: memory restore FILE --replace, or save every intact record: memory doctor "
    "--salvage FILE, and restore that file"
)
_DAMAGED = f"{{path}} is damaged ({{exc}}); {SALVAGE}"
_NO_DATABASE = f"{{path}} is not a SQLite database, and was not touched; {SALVAGE}"
# Raised when invalid values are decoded; see `rows.describe_damage`.
NEVER_WRITTEN = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
# SQLite's codes for errors in writing a file.
_WRITING = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_TRUNCATE)
# The first matching class is used, so general classes come last.
_TRANSLATIONS: tuple[tuple[type[apsw.Error], type[StoreError], str], ...] = (
    (apsw.FullError, StoreFull, _FULL),
    (apsw.NotADBError, StoreDamaged, _NO_DATABASE),
    (apsw.CorruptError, StoreDamaged, _DAMAGED),
    (
        apsw.ReadOnlyError,
        StoreError,
        "cannot write to {path} or its folder; check their owner and permissions",
    ),
    (
        apsw.IOError,
        StoreError,
        "the disk of {path} reported an error ({exc}); no write was acknowledged",
    ),
    (apsw.ConnectionClosedError, StoreError, "{path} was closed while another thread used it"),
    (apsw.NoMemError, StoreError, "out of memory while using {path}; nothing was written"),
    (apsw.Error, StoreError, "SQLite could not use {path} ({exc}); no write was acknowledged"),
)


class CommitsMissing(StoreDamaged):
    """Raised if acknowledged commits are missing; the other commits can be read."""


class WordsDamaged(StoreDamaged):
    """Raised if the word index can't be used; it can be rebuilt from the records.

    Attributes:
        why: SQLite's message.
        remedy: The advice to the user.
    """

    def __init__(self, path: object, error: Exception) -> None:
        """Create the error for a file, given SQLite's exception."""
        is_corrupt = isinstance(error, apsw.CorruptError)
        has_lost_pages = is_corrupt and _extended_code(error) == apsw.SQLITE_CORRUPT
        self.why = str(error)
        self.remedy = "run memory doctor to see what to do" if has_lost_pages else FIX
        super().__init__(f"the word index in {path} is damaged ({error}); {self.remedy}")

    def finding(self) -> Finding:
        """Return a finding about the damage, for a search that continues without the index."""
        what = f"records that only words can find, because the word index is damaged ({self.why})"
        return Finding(what, self.remedy, derived=True)


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors inside the context."""
    try:
        yield
    except apsw.BusyError as exc:
        raise StoreBusy(
            f"another program kept {path} busy; nothing was written; try again"
        ) from exc
    except apsw.CantOpenError as exc:
        kind = StoreFull if _is_full(path.parent) else StoreError
        raise kind(f"cannot open {path}: {_why_it_cannot_open(path)}") from exc
    except apsw.Error as exc:
        if _is_of_words(exc):
            raise WordsDamaged(path, exc) from None
        raise _translate(path, exc) from exc


@contextlib.contextmanager
def copy_errors(target: Path, advice: str) -> Iterator[None]:
    """Translate SQLite's errors in writing a copy of a store; errors in reading the store pass.

    Args:
        target: The copy.
        advice: What to do if the copy's disk is full.
    """
    try:
        yield
    except apsw.FullError as exc:
        raise StoreFull(f"the disk of {target} is full; {advice}") from exc
    except apsw.IOError as exc:
        if _extended_code(exc) not in _WRITING:
            raise
        raise StoreError(
            f"cannot write {target} ({exc}); check its disk and the limit on file sizes (ulimit -f)"
        ) from exc


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors as `sqlite_errors` does, but leave out "nothing was written".

    This also applies to errors that were already translated, such as those of a migration.
    """
    try:
        with sqlite_errors(path):
            yield
    except StoreError as exc:
        message = describe_after_writes(exc)
        if message == str(exc):
            raise
        raise type(exc)(message) from exc.__cause__


def _translate(path: Path, exc: apsw.Error) -> StoreError:
    """Translate a SQLite error by its class and, if needed, by the state of the files."""
    kind, message = next(
        (kind, message) for theirs, kind, message in _TRANSLATIONS if isinstance(exc, theirs)
    )
    if isinstance(exc, apsw.IOError | apsw.ReadOnlyError):
        problem = _find_folder_in_the_way(path)
        if problem:
            message = f"{problem}; nothing was written"
    if isinstance(exc, apsw.IOError) and _is_full(path.parent):  # SQLite may not report a full disk
        kind, message = StoreFull, _FULL
    if isinstance(exc, apsw.SQLError) and str(exc).startswith("no such "):  # tables are missing
        kind, message = StoreDamaged, _DAMAGED
    if _extended_code(exc) == apsw.SQLITE_CORRUPT_INDEX:
        message = f"an index of {{path}} is damaged ({{exc}}); {FIX}"
    return kind(message.format(path=path, exc=exc))


def _extended_code(exc: Exception) -> int:
    return int(getattr(exc, "extendedresult", 0))


def _is_of_words(exc: apsw.Error) -> bool:
    """Return whether FTS5 found damage. FTS5 may report it only at the end of a transaction."""
    if isinstance(exc, apsw.ConstraintError):
        return str(exc) == "constraint failed"  # for other tables, the message names the table
    if isinstance(exc, apsw.CorruptError):
        return _extended_code(exc) == apsw.SQLITE_CORRUPT_VTAB or "fts5" in str(exc)
    return isinstance(exc, apsw.SQLError) and "fts5" in str(exc)


@contextlib.contextmanager
def filesystem_errors(path: Path, what: str = "") -> Iterator[None]:
    """Translate the file system's errors inside the context.

    Args:
        path: The file in use.
        what: A description of the file, which follows its path in the message.
    """
    try:
        yield
    except OSError as exc:
        problem = ""
        if exc.errno == errno.EISDIR:
            problem = _find_folder_in_the_way(path)
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
    """Report values that can't be decoded as damage; use this only around code that decodes."""
    try:
        yield
    except NEVER_WRITTEN as exc:
        raise StoreDamaged(
            f"{file} is damaged: it contains values that this program never writes ({exc}); "
            f"{SALVAGE}"
        ) from exc


def refuse_folder_in_the_way(path: Path) -> None:
    """Raise StoreError if a folder has the name of one of a store's files."""
    problem = _find_folder_in_the_way(path)
    if problem:
        raise StoreError(f"{problem}; nothing was written")


def refuse_full(path: Path) -> None:
    """Raise StoreError if the disk has no space for a new store."""
    folder = next(folder for folder in path.parents if folder.is_dir())
    if _is_full(folder):
        raise StoreError(_FULL.format(path=path))


def _find_folder_in_the_way(path: Path) -> str:
    """Return a sentence about a folder that has the name of one of the store's files.

    The result is empty if there is no such folder.
    """
    for suffix in ("-wal", "-shm", "-journal"):
        part = Path(f"{path}{suffix}")
        if part.is_dir():
            return (
                f"{part} is a folder, but the store needs a file with this name; move the folder "
                "elsewhere"
            )
    return ""


def _why_it_cannot_open(path: Path) -> str:
    folder = path.parent
    problem = "it is a folder" if path.is_dir() else _find_folder_in_the_way(path)
    if problem:
        return problem
    if _is_full(folder):
        return "its disk is full, and even reading needs some space; free some and try again"
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        return "its path is too long for SQLite; choose a folder closer to the root"
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(folder, os.W_OK):
        return "it or its folder is not writable; check their owner and permissions"
    if _is_out_of_descriptors():
        return "this process has too many open files; close some, or raise the limit (ulimit -n)"
    return "the system did not report a reason; check the folder's permissions and free space"


def _is_out_of_descriptors() -> bool:
    """Return whether this process has too few free descriptors to open a store."""
    opened: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - so each is closed
    except OSError as exc:
        return exc.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for fd in opened:
            os.close(fd)
    return False


def _is_full(folder: Path) -> bool:
    """Return whether a disk has no free inode, or too little space for shared memory."""
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
    """Return the message for a store that lacks acknowledged commits."""
    commits = amount(missing, "acknowledged commit is", "acknowledged commits are")
    return (
        f"{commits} missing from {path}: its log was truncated or removed, or an older copy "
        "replaced the file; it can be read, but nothing was written; put the lost file back, "
        "restore a backup (memory restore FILE --replace), or continue without them: memory "
        "doctor --fix"
    )
