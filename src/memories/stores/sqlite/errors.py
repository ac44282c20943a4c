"""The errors of SQLite and of the file system as ours, each one clear sentence."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from memories.core.disk import FULL
from memories.errors import StoreBusy, StoreDamaged, StoreError, StoreFull

_DESCRIPTORS = 4
_LONGEST_PATH = 490  # SQLite takes 512 bytes, and the files beside the store have longer names
_DAMAGED = "{path} is damaged ({exc}); stop writing to it and restore a backup"
_FULL = "the disk of {path} is full; nothing was written; make room and try again"
FIX = "run: memory doctor --fix"
SALVAGE = (
    "restore a backup, or save every sound record with: memory doctor --salvage FILE, "
    "and make the store of them with: memory restore FILE --replace"
)
# The first that fits counts, so the general ones come last.
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
    """Acknowledged commits are gone; what is left can be read."""


class WordsDamaged(StoreDamaged):
    """The index of words can't be used; it can be made again from the records.

    Attributes:
        why: What SQLite says.
        remedy: What to do.
    """

    def __init__(self, path: object, error: Exception) -> None:
        """Tell it of a file, given what SQLite raised."""
        lost = (
            isinstance(error, apsw.CorruptError) and _detail(error) == apsw.SQLITE_CORRUPT
        )  # pages of the file
        self.why, self.remedy = str(error), "see what to do with: memory doctor" if lost else FIX
        super().__init__(f"the index of words in {path} is damaged ({error}); {self.remedy}")


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite into ours."""
    try:
        yield
    except apsw.BusyError as exc:
        raise StoreBusy(
            f"{path} was kept busy by another program; nothing was written; try again"
        ) from exc
    except apsw.CantOpenError as exc:
        kind = StoreFull if _is_full(path.parent) else StoreError
        raise kind(f"cannot open {path}: {_why_closed(path)}") from exc
    except apsw.Error as exc:
        if _is_of_words(exc):
            raise WordsDamaged(path, exc) from None
        kind, message = next(
            (ours, text) for theirs, ours, text in _TRANSLATIONS if isinstance(exc, theirs)
        )
        if isinstance(exc, apsw.IOError | apsw.ReadOnlyError) and (
            folder := _folder_in_the_way(path)
        ):
            message = f"{folder}; nothing was written"
        if isinstance(exc, apsw.IOError) and _is_full(
            path.parent
        ):  # SQLite does not always say why
            kind, message = StoreFull, _FULL
        if isinstance(exc, apsw.SQLError) and str(exc).startswith(
            "no such "
        ):  # the tables are not as they were made
            kind, message = StoreDamaged, _DAMAGED
        if isinstance(exc, apsw.CorruptError) and _detail(exc) == apsw.SQLITE_CORRUPT_INDEX:
            message = f"an index of {{path}} is damaged ({{exc}}); {FIX}"
        raise kind(message.format(path=path, exc=exc)) from exc


def _detail(exc: apsw.Error) -> int:
    """Return SQLite's extended code of an error."""
    return int(getattr(exc, "extendedresult", 0))


def _is_of_words(exc: apsw.Error) -> bool:
    """Return whether FTS5 met damage; some of it only shows when a transaction ends."""
    is_virtual = isinstance(exc, apsw.CorruptError) and _detail(exc) == apsw.SQLITE_CORRUPT_VTAB
    if isinstance(exc, apsw.ConstraintError):
        return (
            str(exc) == "constraint failed"
        )  # of a table that is not ours, which SQLite would name
    return is_virtual or (isinstance(exc, apsw.CorruptError | apsw.SQLError) and "fts5" in str(exc))


@contextlib.contextmanager
def filesystem_errors(path: Path, what: str = "") -> Iterator[None]:
    """Turn the errors of the file system into ours.

    Args:
        path: The file that is used.
        what: What it is, if its name does not say it.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno == errno.EISDIR and (folder := _folder_in_the_way(path)):
            raise StoreError(f"{folder}; nothing was written") from exc
        why = (
            "it is a symbolic link; remove it" if exc.errno == errno.ELOOP else exc.strerror or exc
        )
        kind = StoreFull if exc.errno in FULL else StoreError
        raise kind(f"cannot use {path}{what}: {why}") from exc


def refuse_folder_in_the_way(path: Path) -> None:
    """Raise StoreError if a folder has the name of a part of a store."""
    if folder := _folder_in_the_way(path):
        raise StoreError(f"{folder}; nothing was written")


def refuse_full(path: Path) -> None:
    """Raise StoreError if the disk that a store would be made on has no room."""
    if _is_full(next(folder for folder in path.parents if folder.is_dir())):
        raise StoreError(_FULL.format(path=path))


def _folder_in_the_way(path: Path) -> str:
    """Return that a folder has the name of a part of a store, a sentence; nothing if none has."""
    parts = (Path(f"{path}{suffix}") for suffix in ("-wal", "-shm", "-journal"))
    folder = next((part for part in parts if part.is_dir()), None)
    return (
        f"{folder} is a folder in the place of a part of the store; move it elsewhere"
        if folder
        else ""
    )


def _why_closed(path: Path) -> str:
    if folder := "it is a folder" if path.is_dir() else _folder_in_the_way(path):
        return folder
    if _is_full(path.parent):
        return "no room is left on its disk, which even reading needs; make room and try again"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        return "its path is too long for SQLite; choose a folder nearer to the root"
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        return "it or its folder can't be written; check who owns it and its permissions"
    if _out_of_descriptors():
        return "this process has too many files open; close some, or raise its limit (ulimit -n)"
    return "the system did not say why; check the permissions and the room of its folder"


def _out_of_descriptors() -> bool:
    """Return whether a process can't open a file, its log and its shared memory at once."""
    taken: list[int] = []
    try:
        taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_DESCRIPTORS))
    except OSError as exc:
        return exc.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for fd in taken:
            os.close(fd)
    return False


def _is_full(folder: Path) -> bool:
    """Return whether a disk has no room for one more page, or no inode."""
    if not hasattr(os, "statvfs"):
        return False
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    inodes = found.f_ffree if os.geteuid() == 0 else found.f_favail
    # Shared memory comes in pieces of 32 KiB. Some file systems count no inodes.
    return free * found.f_frsize < 32_768 or (found.f_files > 0 and inodes == 0)


def loss(path: Path, missing: int) -> str:
    """Return what is said of a store in which acknowledged commits are missing."""
    return (
        f"{missing} commits that were acknowledged are missing from {path}: its log was cut or removed, or an older "
        "copy was put in its place; it can be read, but nothing was written; put the lost file back, restore a backup "
        "(memory restore FILE --replace), or go on without them: memory doctor --fix"
    )
