"""The files store's folder: its lock, its journal, and durable reads and writes of files."""

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

from memories.core.disk import FULL, flush_folder, open_to_everybody, try_lock, write_all
from memories.errors import StoreBusy, StoreError, StoreFull

BUSY_SECONDS = 30.0
INNER = ".memories"  # the subfolder for the index, the journal and scratch files; git ignores it
MARKER = "moved.json"  # file that names the larger store after a move; see `move`
_JOURNAL, _LOCK, _SCRATCH = "journal", "lock", ".new"
_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Suffixes of files that were left by crashes, or by the first format of this store.
_LEFTOVERS = (_SCRATCH, ".vectors", ".accesses")
_TAIL_BYTES = 512
_REHEARSED_BYTES = 16_384

Plan = dict[str, dict[str, Any]]  # the change that a commit makes to each file


class Stamp(NamedTuple):
    """A file's fingerprint, which reveals changes; `tail` is the checksum of its last bytes."""

    inode: int
    size: int
    changed_at: int
    tail: int


class Folder:
    """The files of one store.

    Lines are appended to a file, or the entire file is replaced. A commit of more than one line
    writes a journal first. The lines are committed as soon as the journal is complete: if the
    process crashes, the next process that locks the folder finishes the commit.
    """

    def __init__(self, path: Path) -> None:
        """Store the path; nothing is opened or created yet."""
        self.path = path
        self.inner = path / INNER
        self._was_locked = False
        if path.is_dir() and not os.access(path, os.W_OK):  # put the index into another folder
            self.inner = Path(tempfile.mkdtemp(prefix="memories-"))
            weakref.finalize(self, shutil.rmtree, self.inner, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude all other writers; the kernel releases the lock if the process dies.

        Raises:
            StoreBusy: Another writer held the lock for `BUSY_SECONDS`.
        """
        if os.name != "posix":
            raise StoreError(
                f"{self.path} can't be used: this system has no file locks; use sqlite:///path"
            )
        deadline = time.monotonic() + BUSY_SECONDS
        with contextlib.ExitStack() as stack:
            while True:
                with translate_errors(self.path):
                    self._create()
                    seconds = max(0.0, deadline - time.monotonic())
                    is_locked = stack.enter_context(try_lock(self.inner / _LOCK, seconds))
                if not is_locked:
                    raise StoreBusy(
                        f"{self.path} was kept busy for {BUSY_SECONDS:.0f} s; nothing was written; "
                        "try again"
                    )
                self._was_locked = (self.inner / _LOCK).exists()
                if self._was_locked:  # False if the folder was removed while this call waited
                    break
                stack.pop_all().close()
            yield

    def _create(self) -> None:
        for folder in (self.path, self.inner):
            if folder.is_dir() and (doubt := open_to_everybody(folder, folder.stat())):
                raise StoreError(f"{folder} {doubt}")
        if self.inner.is_dir():
            return
        if self._was_locked and not self.path.is_dir():
            raise StoreError(
                f"{self.path} was removed while it was open; nothing was written; restart this "
                "program to use the current files"
            )
        for folder in (*reversed(self.path.parents), self.path, self.inner):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
                flush_folder(folder.parent)
        _write(self.inner / ".gitignore", b"*\n")
        _write(self.inner / _JOURNAL, b"")
        flush_folder(self.inner)

    def exists(self) -> bool:
        """Return whether the store has ever been written to."""
        names = self.list_names()
        return MARKER in names or any(name.endswith((".jsonl", ".moved")) for name in names)

    def list_names(self, folder: Path | None = None) -> list[str]:
        """Return the sorted names of the files; empty if the folder doesn't exist."""
        with translate_errors(self.path):
            try:
                return sorted(path.name for path in (folder or self.path).iterdir())
            except FileNotFoundError:
                return []

    def stamp(self, name: str) -> Stamp | None:
        """Return a file's stamp; None if the file doesn't exist.

        Raises:
            StoreError: The file can't be read, or isn't a regular file.
        """
        return _read(self.path / name, whole=False)[0]

    def read(self, name: str, *, inner: bool = False) -> tuple[Stamp | None, bytes]:
        """Return a file's stamp and its contents, or None and no bytes if the file doesn't exist.

        The stamp is read first.

        Args:
            name: The file.
            inner: Whether the file is in the inner folder.

        Raises:
            StoreError: The file can't be read, or isn't a regular file.
        """
        return _read((self.inner if inner else self.path) / name)

    def size_bytes(self) -> int:
        """Return the size of all files on disk."""
        total = 0
        with translate_errors(self.path):
            for folder in (self.path, self.inner):
                with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                    files = [entry for entry in entries if entry.is_file()]
                    total += sum(file.stat(follow_symlinks=False).st_size for file in files)
        return total

    # The methods below need the lock.

    def append(self, name: str, lines: bytes, size: int) -> None:
        """Append lines to a file; a failure leaves the file's valid part unchanged.

        Args:
            name: The file; created if it doesn't exist.
            lines: Complete lines.
            size: The size of the file's valid part. Any bytes beyond it were left by a crash; they
                are removed.
        """
        with translate_errors(self.path):
            flags = os.O_CREAT | os.O_APPEND | os.O_RDWR | _OPEN_FLAGS
            fd = os.open(self.path / name, flags, 0o600)
            try:
                old_size = os.fstat(fd).st_size
                if old_size > size:
                    os.ftruncate(fd, size)
                ends_with_newline = size == 0 or os.pread(fd, 1, size - 1) == b"\n"
                write_all(fd, lines if ends_with_newline else b"\n" + lines)
                os.fsync(fd)
            except BaseException:
                os.ftruncate(fd, size)  # a full disk may have accepted only some of the lines
                raise
            finally:
                os.close(fd)
            if not old_size:
                flush_folder(self.path)

    def rehearse(self) -> None:
        """Test whether a write would succeed, by writing a small file and removing it.

        Raises:
            StoreError: The file can't be written, so a commit would fail too.
        """
        scratch = self.inner / f"rehearsal-{os.urandom(4).hex()}{_SCRATCH}"
        with translate_errors(self.path), try_lock(self.inner / _LOCK, 0):
            try:
                _write(scratch, bytes(_REHEARSED_BYTES))
            finally:
                scratch.unlink(missing_ok=True)

    def replace(self, name: str, data: bytes, folder: Path | None = None) -> None:
        """Replace or create a file in one step."""
        path = (folder or self.path) / name
        scratch = self.inner / f"{name}{_SCRATCH}"
        with translate_errors(self.path):
            try:
                mode = stat.S_IMODE(path.lstat().st_mode) if path.exists() else 0o600
                _write(scratch, data, mode)
                os.replace(scratch, path)  # noqa: PTH105 - atomic
            except BaseException:
                scratch.unlink(missing_ok=True)
                raise
            flush_folder(path.parent)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file."""
        with translate_errors(self.path):
            (self.path / name).rename(self.path / new_name)
            flush_folder(self.path)

    def remove(self, *names: str) -> None:
        """Remove files."""
        with translate_errors(self.path):
            for name in names:
                (self.path / name).unlink(missing_ok=True)
            flush_folder(self.path)

    def discard(self, *names: str) -> None:
        """Remove files from the inner folder, and any left by crashes or the first file format."""
        with translate_errors(self.path):
            leftovers = [name for name in self.list_names(self.inner) if name.endswith(_LEFTOVERS)]
            for name in (*names, *leftovers):
                (self.inner / name).unlink(missing_ok=True)
            flush_folder(self.inner)

    def write_journal(self, plan: Plan) -> None:
        """Write the plan of a commit to the journal; an empty plan clears the journal."""
        data = json.dumps(plan).encode()
        with translate_errors(self.path):
            entry = f"{zlib.crc32(data):08x}".encode() + data if plan else b""
            _write(self.inner / _JOURNAL, entry)

    def read_journal(self) -> Plan:
        """Return the plan of an interrupted commit; empty if no commit was interrupted."""
        entry = _read(self.inner / _JOURNAL)[1]
        checksum, data = entry[:8], entry[8:]
        if not data or checksum != f"{zlib.crc32(data):08x}".encode():
            return {}
        return dict(json.loads(data))

    def has_pending_commit(self) -> bool:
        """Return whether a commit is in progress, or was interrupted."""
        stamp = _read(self.inner / _JOURNAL, whole=False)[0]
        return stamp is not None and stamp.size > 0

    def commit(
        self, lines: Mapping[str, bytes], sizes: Mapping[str, int], first: Container[str] = ()
    ) -> None:
        """Append lines to several files: to all of them or none, even if the process is killed.

        Args:
            lines: The lines for each file.
            sizes: The size of each file's valid part; see `append`.
            first: Files that are written before the others. A crash may leave lines in these files
                and none in the others, but never the other way round.
        """
        ordered = sorted(lines, key=lambda name: name not in first)
        # A single line needs no journal, because an incomplete line is ignored.
        line_count = sum(lines[name].count(b"\n") for name in lines if name not in first)
        needs_journal = line_count != 1
        written: list[str] = []
        try:
            if needs_journal:
                self.write_journal({name: {"add": lines[name].decode()} for name in ordered})
            for name in ordered:
                written.append(name)
                self.append(name, lines[name], sizes[name])
        except BaseException:
            with translate_errors(self.path):
                for name in written:
                    if (self.path / name).exists():
                        os.truncate(self.path / name, sizes[name])
            if needs_journal:
                self.write_journal({})
            raise
        if needs_journal:
            self.write_journal({})


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Translate file system errors into `StoreError`."""
    try:
        yield
    except OSError as exc:
        name = exc.filename if isinstance(exc.filename, str) else str(exc.filename or path)
        error = StoreFull if exc.errno in FULL else StoreError
        raise error(f"cannot use {name}: {exc.strerror or exc}; no write was acknowledged") from exc


def _read(path: Path, *, whole: bool = True) -> tuple[Stamp | None, bytes]:
    """Return a file's stamp and, if `whole`, its contents."""
    try:
        # If a pipe has the file's name, opening it without O_NONBLOCK would block.
        fd = os.open(path, os.O_RDONLY | _OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{path} is not a regular file")
            os.lseek(fd, max(0, status.st_size - _TAIL_BYTES), os.SEEK_SET)
            tail = os.read(fd, _TAIL_BYTES)
            stamp = Stamp(status.st_ino, status.st_size, status.st_mtime_ns, zlib.crc32(tail))
            os.lseek(fd, 0, os.SEEK_SET)
            chunks = []
            while whole and (chunk := os.read(fd, 1_048_576)):
                chunks.append(chunk)
            return stamp, b"".join(chunks)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None, b""
    except OSError as exc:
        raise StoreError(
            f"cannot read {path}: {exc.strerror or exc}; make it a regular file that you may "
            "read, or move it away"
        ) from exc


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | _OPEN_FLAGS, mode)
    try:
        os.fchmod(fd, mode)
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
