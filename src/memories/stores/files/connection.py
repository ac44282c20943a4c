"""The folder of the files store: its lock, its files as they are read, added to and replaced, and
its journal.
"""

import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
import weakref
import zlib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import FULL, flush_folder, tried, write_all
from memories.core.trust import open_to_everybody
from memories.errors import StoreBusy, StoreError, StoreFull

BUSY_SECONDS = 30.0
INNER = ".memories"  # for the index and what is in the making; git leaves it out
# of the first format: the model of vectors that lie in files of their own; see `index`
FORMER = "spaces.json"
_JOURNAL, _LOCK, _SCRATCH = "journal", "lock", ".new"
_GUARD = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_LEFT = (_SCRATCH, ".vectors", ".accesses")
_TAIL_BYTES = 512
_REHEARSED_BYTES = 16_384

Plan = dict[str, dict[str, Any]]  # for each file: what a commit does to it


class Stamp(NamedTuple):
    """Fingerprint of a file, which changes with it; the checksum is that of its last bytes."""

    inode: int
    size: int
    changed_at: int
    tail: int


class Folder:
    """The files of one store.

    A file is added to or replaced. What is more than one line is written to a journal first: once
    that is whole the lines count, and who locks the folder next finishes what a crash has left.
    """

    def __init__(self, path: Path) -> None:
        """Remember where it is; nothing is opened or made yet."""
        self.path = path
        self.inner = path / INNER
        self._was_locked = False
        if path.is_dir() and not os.access(path, os.W_OK):  # it can be read all the same
            self.inner = Path(tempfile.mkdtemp(prefix="memories-"))
            weakref.finalize(self, shutil.rmtree, self.inner, ignore_errors=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude all other writers inside; the kernel frees the lock of a process that dies.

        Raises:
            StoreBusy: Somebody else kept it for `BUSY_SECONDS`.
        """
        if os.name != "posix":
            raise StoreError(
                f"{self.path} can't be used: this system has no file locks; use sqlite:///path"
            )
        until = time.monotonic() + BUSY_SECONDS
        with contextlib.ExitStack() as stack:
            while True:
                with translated(self.path):
                    self._make()
                    held = stack.enter_context(
                        tried(self.inner / _LOCK, max(0.0, until - time.monotonic()))
                    )
                if not held:
                    raise StoreBusy(
                        f"{self.path} was kept busy for {BUSY_SECONDS:.0f} s; nothing was written; try again"
                    )
                self._was_locked = (self.inner / _LOCK).exists()
                if self._was_locked:  # else somebody removed the folder of the lock meanwhile
                    break
                stack.pop_all().close()
            yield

    def _make(self) -> None:
        for folder in (self.path, self.inner):
            if folder.is_dir() and (doubt := open_to_everybody(folder, folder.stat())):
                raise StoreError(f"{folder} {doubt}")
        if self.inner.is_dir():
            return
        if self._was_locked and not self.path.is_dir():
            raise StoreError(
                f"{self.path} was removed while it was open; nothing was written; start again to use what is there now"
            )
        for folder in (*reversed(self.path.parents), self.path, self.inner):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
                flush_folder(folder.parent)
        _write(self.inner / ".gitignore", b"*\n")
        _write(self.inner / _JOURNAL, b"")
        flush_folder(self.inner)

    # --- reading
    # ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether anything was ever written here."""
        return any(name.endswith((".jsonl", ".moved")) for name in self.names())

    def names(self, folder: Path | None = None) -> list[str]:
        """Return the names of the files, in order; none if there is no folder."""
        with translated(self.path):
            try:
                return sorted(part.name for part in (folder or self.path).iterdir())
            except FileNotFoundError:
                return []

    def stamp(self, name: str) -> Stamp | None:
        """Return the stamp of a file; None if there is no file.

        Raises:
            StoreError: It can't be read, or is no plain file.
        """
        return _read(self.path / name, whole=False)[0]

    def read(self, name: str, *, inner: bool = False) -> tuple[Stamp | None, bytes]:
        """Return a file, or one of the inner folder, and its stamp from just before; nothing if
        there is none.

        Raises:
            StoreError: It can't be read, or is no plain file.
        """
        return _read((self.inner if inner else self.path) / name)

    def is_former(self) -> bool:
        """Return whether vectors and counts are here in the files of the store's first format."""
        return (self.inner / FORMER).exists()

    def size_bytes(self) -> int:
        """Return the size of all files on the disk."""
        total = 0
        with translated(self.path):
            for folder in (self.path, self.inner):
                with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                    total += sum(
                        part.stat(follow_symlinks=False).st_size
                        for part in entries
                        if part.is_file()
                    )
        return total

    # --- writing, under the lock
    # -----------------------------------------------------------------------------------

    def append(self, name: str, data: bytes, whole: int) -> None:
        """Add lines to a file, which is made if it is not there; a failure leaves the file as it
        was.

        Args:
            name: The file.
            data: Whole lines.
            whole: How long the file is without what a crash has left at its end, which is cut off.
        """
        with translated(self.path):
            fd = os.open(self.path / name, os.O_CREAT | os.O_APPEND | os.O_RDWR | _GUARD, 0o600)
            try:
                size = os.fstat(fd).st_size
                if size > whole:
                    os.ftruncate(fd, whole)
                ended = whole == 0 or os.pread(fd, 1, whole - 1) == b"\n"
                write_all(fd, data if ended else b"\n" + data)
                os.fsync(fd)
            except BaseException:
                os.ftruncate(fd, whole)  # a full disk took only a part
                raise
            finally:
                os.close(fd)
            if not size:
                flush_folder(self.path)

    def rehearse(self) -> None:
        """Write a file of the length of a few lines, and remove it.

        Raises:
            StoreError: It can't be written, so no line could be added either.
        """
        scratch = self.inner / f"rehearsal-{os.urandom(4).hex()}{_SCRATCH}"
        with translated(self.path), tried(self.inner / _LOCK, 0):
            try:
                _write(scratch, bytes(_REHEARSED_BYTES))
            finally:
                scratch.unlink(missing_ok=True)

    def replace(self, name: str, data: bytes, folder: Path | None = None) -> None:
        """Put a new file in the place of one, in one step."""
        place = (folder or self.path) / name
        new = self.inner / f"{name}{_SCRATCH}"
        with translated(self.path):
            try:
                _write(new, data, stat.S_IMODE(place.lstat().st_mode) if place.exists() else 0o600)
                os.replace(new, place)  # noqa: PTH105 - one step on the disk
            except BaseException:
                new.unlink(missing_ok=True)
                raise
            flush_folder(place.parent)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name."""
        with translated(self.path):
            (self.path / name).rename(self.path / new)
            flush_folder(self.path)

    def discard(self, *names: str) -> None:
        """Remove files of the inner folder, those that a crash left half made, and the vectors of
        an earlier format.
        """
        with translated(self.path):
            for name in (
                *names,
                *(left for left in self.names(self.inner) if left.endswith(_LEFT)),
            ):
                (self.inner / name).unlink(missing_ok=True)
            flush_folder(self.inner)

    # --- the journal
    # -----------------------------------------------------------------------------------------------

    def promise(self, plan: Plan) -> None:
        """Write the plan of a commit to the journal, so that it survives a crash; an empty plan
        clears it.
        """
        data = json.dumps(plan).encode()
        with translated(self.path):
            _write(
                self.inner / _JOURNAL, f"{zlib.crc32(data):08x}".encode() + data if plan else b""
            )

    def promised(self) -> Plan:
        """Return the plan of an interrupted commit."""
        data = _read(self.inner / _JOURNAL)[1]
        whole = data[:8] == f"{zlib.crc32(data[8:]):08x}".encode()
        return dict(json.loads(data[8:])) if whole and data else {}

    def pending(self) -> bool:
        """Return whether there is a commit that is under way, or was cut short."""
        stamp = _read(self.inner / _JOURNAL, whole=False)[0]
        return stamp is not None and stamp.size > 0

    def commit(
        self, added: Mapping[str, bytes], whole: Mapping[str, int], ahead: Container[str] = ()
    ) -> None:
        """Add lines to several files in one step: all of them or none, also when it is cut short.

        Args:
            added: The lines, by the name of their file.
            whole: See `append`.
            ahead: Files whose lines may be there without the others, and not the others without
                them.
        """
        added = dict(sorted(added.items(), key=lambda item: item[0] not in ahead))
        # One line is all or nothing by itself.
        alone = sum(data.count(b"\n") for name, data in added.items() if name not in ahead) == 1
        begun: list[str] = []
        try:
            if not alone:
                self.promise({name: {"add": data.decode()} for name, data in added.items()})
            for name, data in added.items():
                begun.append(name)
                self.append(name, data, whole[name])
        except BaseException:
            with translated(self.path):
                for name in begun:
                    if (self.path / name).exists():
                        os.truncate(self.path / name, whole[name])
            if not alone:
                self.promise({})
            raise
        if not alone:
            self.promise({})


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the errors of the filesystem into ours; around nothing but its use."""
    try:
        yield
    except OSError as exc:
        name = exc.filename if isinstance(exc.filename, str) else str(exc.filename or path)
        kind = StoreFull if exc.errno in FULL else StoreError
        raise kind(f"cannot use {name}: {exc.strerror or exc}; nothing was acknowledged") from exc


def _read(path: Path, *, whole: bool = True) -> tuple[Stamp | None, bytes]:
    """Return the stamp of a file and, if `whole`, its contents."""
    try:
        fd = os.open(
            path, os.O_RDONLY | _GUARD | getattr(os, "O_NONBLOCK", 0)
        )  # what is no file must not keep us
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{path} is no plain file")
            os.lseek(fd, max(0, status.st_size - _TAIL_BYTES), os.SEEK_SET)
            tail = os.read(fd, _TAIL_BYTES)
            stamp = Stamp(status.st_ino, status.st_size, status.st_mtime_ns, zlib.crc32(tail))
            os.lseek(fd, 0, os.SEEK_SET)
            parts = []
            while whole and (part := os.read(fd, 1_048_576)):
                parts.append(part)
            return stamp, b"".join(parts)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None, b""
    except OSError as exc:
        raise StoreError(
            f"cannot read {path}: {exc.strerror or exc}; make it a plain file that you may read, or put it aside"
        ) from exc


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | _GUARD, mode)
    try:
        os.fchmod(fd, mode)
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
