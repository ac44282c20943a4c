"""The folder of the files store: how its files are locked, read, added to and replaced. No record is known here."""

import contextlib
import json
import os
import random
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from memories.disk import flush_folder, write_all
from memories.errors import StoreBusy, StoreDamaged, StoreError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

BUSY_SECONDS = 30.0
INNER = ".memories"  # for what is derived, and for what is in the making; git leaves it out
_JOURNAL = "commit"
_SCRATCH = ".new"
_GUARD = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_TRIES = 100  # to read several files between two commits


class Stamp(NamedTuple):
    """What tells that a file is still as it was."""

    inode: int
    size: int
    changed_at: int


class Folder:
    """The files of one store.

    A file is added to, or replaced by a new one in one step. Several files are replaced in one step by a journal: once
    it is in place the new ones count, and who locks the folder next finishes what a crash has left.
    """

    def __init__(self, path: Path) -> None:
        """Remember where it is; nothing is opened or made yet."""
        self.path = path
        self.inner = path / INNER
        self._journal: tuple[Stamp | None, Mapping[str, str]] = (None, {})

    # --- locking ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self, wait_seconds: float | None = None) -> Iterator[None]:
        """Keep all other writers out while inside; the kernel frees the lock of a process that dies.

        Args:
            wait_seconds: How long somebody else may keep it; by default `BUSY_SECONDS`.

        Raises:
            StoreBusy: They kept it longer.
        """
        fd = self._lock(BUSY_SECONDS if wait_seconds is None else wait_seconds)
        try:
            with translated(self.path):
                self._finish()
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # not by closing alone: a forked child may hold it open
            os.close(fd)

    def _lock(self, wait_seconds: float) -> int:
        if fcntl is None:
            raise StoreError(f"{self.path} can't be written: this system has no file locks; use sqlite:///path")
        until = time.monotonic() + wait_seconds
        with translated(self.path):
            self._make()
            while True:
                fd = os.open(self.inner / "lock", os.O_CREAT | os.O_RDWR | _GUARD, 0o600)
                try:
                    if _taken(fd) and self._is_there(fd):
                        return fd
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)
                if time.monotonic() >= until:
                    raise StoreBusy(
                        f"{self.path} was kept busy for {wait_seconds:.0f} s; nothing was written; try again"
                    )
                time.sleep(random.uniform(0.0005, 0.003))  # noqa: S311 - only to keep waiters out of step

    def _is_there(self, fd: int) -> bool:
        """Return whether it is still the lock of this name: somebody may have removed the folder meanwhile."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self.inner / "lock"))
        except FileNotFoundError:
            return False

    def _make(self) -> None:
        if self.inner.is_dir():
            self._refuse_unsafe()
            return
        for folder in (*reversed(self.path.parents), self.path, self.inner):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
                flush_folder(folder.parent)
        self._write(self.inner / ".gitignore", b"*\n")

    def _refuse_unsafe(self) -> None:
        """Refuse folders in which everybody may put other files in the place of ours."""
        for folder in (self.path, self.inner):
            mode = folder.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise StoreError(f"{folder} can be written by everybody; run: chmod o-w {folder}")

    # --- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether anything was ever written here."""
        return self.path.is_dir() and any(name.endswith((".jsonl", ".moved")) for name in self.names())

    def names(self) -> list[str]:
        """Return the names of the files, in order; none if there is no folder."""
        with translated(self.path):
            try:
                return sorted({*(part.name for part in self.path.iterdir()), *self._left()} - {INNER})
            except FileNotFoundError:
                return []

    def state(self) -> Stamp | None:
        """Return what tells that no several files were replaced in one step since."""
        return _stamp(self.inner / _JOURNAL)

    def stamp(self, name: str) -> Stamp | None:
        """Return what tells that a file is as it was; None if there is none."""
        return _stamp(self._place(name))

    def read(self, name: str) -> tuple[Stamp | None, bytes]:
        """Return a file and its stamp from just before it was read; nothing if there is none.

        Raises:
            OSError: It can't be read.
        """
        for _ in range(_TRIES):
            place = self._place(name)
            try:
                return _read(place)
            except FileNotFoundError:
                if place == self._place(name):  # else it was just put into its place
                    return None, b""
        raise self._restless()

    def read_inner(self, name: str) -> tuple[Stamp | None, bytes]:
        """Return a derived file and its stamp; nothing if there is none."""
        with translated(self.path):
            try:
                return _read(self.inner / name)
            except FileNotFoundError:
                return None, b""

    def stamp_inner(self, name: str) -> Stamp | None:
        """Return what tells that a derived file is as it was; None if there is none."""
        return _stamp(self.inner / name)

    def tries(self) -> Iterator[None]:
        """Yield until several files were read between two commits; who has them breaks off.

        Raises:
            StoreBusy: Somebody keeps replacing them.
        """
        for attempt in range(_TRIES):
            yield
            time.sleep(0.0001 * attempt)
        raise self._restless()

    def _restless(self) -> StoreBusy:
        return StoreBusy(f"{self.path} kept changing while it was read; try again")

    def size_bytes(self) -> int:
        """Return what all files take on the disk."""
        total = 0
        with translated(self.path):
            for folder in (self.path, self.inner):
                with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
                    total += sum(part.stat(follow_symlinks=False).st_size for part in found if part.is_file())
        return total

    # --- writing, under the lock -----------------------------------------------------------------------------------

    def append(self, name: str, data: bytes, known: Stamp | None) -> Stamp | None:
        """Add to the end of a file, which it makes if it is not there; return its new stamp.

        Args:
            name: The file.
            data: Whole lines, or only a part of one after a crash: one line is all or nothing.
            known: Its stamp when it was read.

        Raises:
            StoreBusy: Somebody who does not lock has written to it since.
        """
        self._refuse_changed({name: known})
        with translated(self.path):
            _append(self.path / name, data, flush=True)
            if known is None:
                flush_folder(self.path)
            return _stamp(self.path / name)

    def replace(self, contents: Mapping[str, bytes], known: Mapping[str, Stamp | None]) -> None:
        """Put new files in the place of these, in one step.

        Args:
            contents: The files, by name.
            known: Their stamps when they were read.

        Raises:
            StoreBusy: Somebody who does not lock has written to one since.
        """
        token = os.urandom(4).hex()
        scratch = {name: f"{name}.{token}{_SCRATCH}" for name in contents}
        with translated(self.path):
            try:
                for name, data in contents.items():
                    self._write(self.inner / scratch[name], data, _mode(self.path / name))
                self._refuse_changed(known)
                if len(contents) > 1:
                    flush_folder(self.inner)
                    self.put(_JOURNAL, json.dumps(scratch).encode())
            except BaseException:
                for left in scratch.values():
                    (self.inner / left).unlink(missing_ok=True)
                raise
            self._settle(scratch)

    def put(self, name: str, data: bytes) -> None:
        """Put a derived file into its place in one step."""
        with translated(self.path):
            new = self.inner / f"{name}.{os.urandom(4).hex()}{_SCRATCH}"
            try:
                self._write(new, data)
                new.replace(self.inner / name)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
            flush_folder(self.inner)

    def add(self, name: str, data: bytes, *, flush: bool) -> None:
        """Add to the end of a derived file."""
        with translated(self.path):
            _append(self.inner / name, data, flush=flush)
            if flush:
                flush_folder(self.inner)

    def cut(self, name: str, size: int) -> None:
        """Cut a derived file to what is whole of it."""
        with translated(self.path):
            os.truncate(self.inner / name, size)

    def discard(self, names: Sequence[str]) -> None:
        """Remove derived files."""
        with translated(self.path):
            for name in names:
                (self.inner / name).unlink(missing_ok=True)
            flush_folder(self.inner)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name."""
        with translated(self.path):
            (self.path / name).rename(self.path / new)
            flush_folder(self.path)

    def inner_names(self) -> list[str]:
        """Return the names of the derived files."""
        with translated(self.path):
            try:
                return sorted(part.name for part in self.inner.iterdir())
            except FileNotFoundError:
                return []

    def scratch(self) -> list[str]:
        """Return the names of files that a crash left half made."""
        return [name for name in self.inner_names() if name.endswith(_SCRATCH)]

    # --- inside ----------------------------------------------------------------------------------------------------

    def _pending(self) -> Mapping[str, str]:
        """Return the files of the last journal and the names of the new ones, some of which may be in place."""
        stamp = _stamp(self.inner / _JOURNAL)
        if stamp is None:
            return {}
        if stamp != self._journal[0]:
            stamp, data = _read(self.inner / _JOURNAL)
            try:
                self._journal = stamp, dict(json.loads(data))
            except (ValueError, TypeError) as exc:
                raise StoreDamaged(
                    f"{self.inner / _JOURNAL} is damaged; compare the files in {self.inner} with those beside it, and "
                    "remove it"
                ) from exc
        return self._journal[1]

    def _place(self, name: str) -> Path:
        """Return where a file is: one that waits to be put into its place counts already."""
        scratch = self._pending().get(name)
        if scratch is not None and os.path.lexists(self.inner / scratch):
            return self.inner / scratch
        return self.path / name

    def _finish(self) -> None:
        """Put into place what a crash has left behind a journal."""
        left = self._left()
        if left:
            self._settle(left)

    def _left(self) -> dict[str, str]:
        """Return what is not yet in its place."""
        return {name: scratch for name, scratch in self._pending().items() if os.path.lexists(self.inner / scratch)}

    def _settle(self, scratch: Mapping[str, str]) -> None:
        for name, new in scratch.items():
            (self.inner / new).replace(self.path / name)
        flush_folder(self.path)

    def _refuse_changed(self, known: Mapping[str, Stamp | None]) -> None:
        for name, stamp in known.items():
            if _stamp(self.path / name) != stamp:
                raise StoreBusy(f"{self.path / name} was changed by another program; nothing was written; try again")

    def _write(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | _GUARD, mode)
        try:
            os.fchmod(fd, mode)
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the errors of the filesystem into ours; around nothing but its use."""
    try:
        yield
    except OSError as exc:
        name = exc.filename if isinstance(exc.filename, str) else str(exc.filename or path)
        raise StoreError(f"cannot use {name}: {exc.strerror or exc}; nothing was acknowledged") from exc


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stamp(path: Path) -> Stamp | None:
    with translated(path):
        try:
            return _stamp_of(os.lstat(path))
        except FileNotFoundError:
            return None


def _stamp_of(found: os.stat_result) -> Stamp:
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def _mode(path: Path) -> int:
    """Return the permissions that a file has, or that a new one gets."""
    try:
        return stat.S_IMODE(os.lstat(path).st_mode)
    except FileNotFoundError:
        return 0o600


def _read(path: Path) -> tuple[Stamp, bytes]:
    fd = os.open(path, os.O_RDONLY | _GUARD | getattr(os, "O_NONBLOCK", 0))  # what is no file must not keep us
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no plain file")
        parts = []
        while part := os.read(fd, 1_048_576):
            parts.append(part)
        return _stamp_of(found), b"".join(parts)
    finally:
        os.close(fd)


def _append(path: Path, data: bytes, *, flush: bool) -> None:
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | _GUARD, 0o600)
    try:
        size = os.fstat(fd).st_size
        try:
            write_all(fd, data)
            if flush:
                os.fsync(fd)
        except BaseException:
            os.ftruncate(fd, size)  # a full disk took only a part
            raise
    finally:
        os.close(fd)
