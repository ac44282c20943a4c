"""Reads a source's files: within limits, read-only, and never outside the given path."""

import contextlib
import errno
import io
import json
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from memories.errors import InvalidInput
from memories.guard.validate import shown

MAX_LINE_BYTES = 33_554_432
MAX_VALUE_BYTES = 67_108_864  # maximum size of one JSON value, such as a conversation
_EVENT_BYTES = 64  # approximate memory for a number or a key of a JSON value
MAX_TEXT_BYTES = 16_777_216  # maximum size of a text file
MAX_DEPTH = 200
MAX_FILES = 1_000_000
MAX_RATIO = 200  # maximum ratio of an archive's unpacked size to its packed size; about 20 for text
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # the first bytes of a ZIP archive
_ZSTANDARD = b"\x28\xb5\x2f\xfd"  # the first bytes of a file compressed with Zstandard
_PACKED_CHUNK = 512  # packed bytes read in one step; they can expand to 20 MB
_RATIO_FROM = 104_857_600  # `MAX_RATIO` applies only above this many unpacked bytes
_CHUNK = 65_536
_IN_MEMORY_BYTES = 16_777_216
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Reader:
    """Opens a source's files, and counts the items that it leaves out.

    Attributes:
        path: The file or folder to read, with symbolic links resolved.
        address: The URL of a server to read instead; empty for files.
        include: The names from `INCLUDE` that the user added; see `memories.transfer.sources`.
        skipped: The number of items left out, keyed by reason; a reason is a plural noun.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        include: frozenset[str] = frozenset(),
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        project_of: Callable[[str], str | None] = lambda _folder: None,
    ) -> None:
        """Initialize.

        Args:
            path: The file or folder, or the URL of a server.
            include: See the attribute.
            progress: Receives the number of bytes read so far, and the total.
            project_of: Returns the project name for a local folder.

        Raises:
            InvalidInput: There is no such file or folder.
        """
        self.address = path if isinstance(path, str) else ""
        try:
            self.path = Path() if self.address else Path(path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as exc:
            raise unreadable(Path(path), exc) from exc
        self.include = include
        self.skipped: Counter[str] = Counter()
        self._progress, self._project_of = progress, project_of
        self._projects: dict[str, str | None] = {}
        self._done = self._total = 0
        self._unpacked = 0  # the unpacked size of the current archive and the archives inside it

    def skip(self, reason: str, count: int = 1) -> None:
        """Count items that are left out.

        Args:
            reason: A plural noun, such as "messages of other branches".
            count: The number of items.
        """
        self.skipped[reason] += count

    def project(self, folder: object) -> str | None:
        """Return the project of a folder in which a conversation took place; None if unknown."""
        if not isinstance(folder, str) or not folder.strip():
            return None
        if folder not in self._projects:
            self._projects[folder] = self._project_of(folder)
        return self._projects[folder]

    # --- files

    def files(self, *patterns: str) -> list[Path]:
        """Return the files to read, sorted: the path itself, or matching files in the folder.

        Links are not followed; those that lead out of the folder are counted as skipped.

        Args:
            *patterns: Patterns for file names, or, if they contain a slash, for paths inside the
                folder.

        Raises:
            InvalidInput: The path is a ZIP archive, but no pattern matches one, or the folder has
                too many files.
        """
        if not self.path.is_dir():
            if "*.zip" not in patterns and self.beginning(self.path, 4) in ZIP:
                raise InvalidInput(
                    f"{shown(self.path.name)} is a ZIP archive; unpack it, and name the folder"
                )
            self._total += self.path.stat().st_size
            return [self.path]
        files: list[Path] = []

        def skip(_error: OSError) -> None:
            self.skip("folders that can't be read")

        for folder, folders, names in os.walk(self.path, onerror=skip):
            folders.sort()
            for name in sorted(names):
                file = Path(folder, name)
                below = self.below(file)
                is_match = any(
                    fnmatch(below if "/" in pattern else name, pattern) for pattern in patterns
                )
                if is_match and self._is_inside(file):
                    files.append(file)
                    if len(files) > MAX_FILES:
                        raise InvalidInput(
                            f"{shown(str(self.path))} has more than {MAX_FILES} files; "
                            "name one of its subfolders"
                        )
        self._total += sum(file.stat().st_size for file in files)
        return files

    def _is_inside(self, file: Path) -> bool:
        """Return whether a path is a regular file.

        Links are not followed. A link to a file in the folder isn't needed, since the file itself
        is read. A link that leads out of the folder is counted as skipped.
        """
        if file.is_symlink():
            if not file.resolve().is_relative_to(self.path):
                self.skip("links out of the folder")
            return False
        return stat.S_ISREG(file.lstat().st_mode)

    def below(self, file: Path) -> str:
        """Return a file's path relative to the folder; its name if a single file is read."""
        return file.relative_to(self.path).as_posix() if self.path.is_dir() else file.name

    @contextlib.contextmanager
    def open(self, file: Path) -> Iterator[io.BufferedReader]:
        """Open a regular file for reading.

        Raises:
            InvalidInput: The file can't be read, or it is a pipe or a device.
        """
        with open_named(file, lambda path, flags: os.open(path, flags | _NOFOLLOW)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise InvalidInput(
                    f"cannot read {shown(str(file))}: it is not a regular file; copy its contents "
                    "to one and import that"
                )
            yield stream

    # --- lines and text

    def lines(self, file: Path) -> Iterator[bytes]:
        """Yield the lines of a file, which may be compressed; overlong lines are skipped."""
        with self.open(file) as opened:
            stream = unpack(opened, file.name)
            refuse_utf16(stream.peek(2), file.name)
            while line := stream.readline(MAX_LINE_BYTES + 1):
                self._advance(len(line))
                if len(line) <= MAX_LINE_BYTES:
                    yield line
                    continue
                self.skip(f"lines of more than {MAX_LINE_BYTES // 1_048_576} MiB")
                while line and not line.endswith(b"\n"):
                    line = stream.readline(_CHUNK)
                    self._advance(len(line))

    def json_lines(self, file: Path) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a file, one per line; other lines are skipped."""
        for line in self.lines(file):
            if not line.strip():
                continue
            try:
                value = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                yield value
            else:
                self.skip("lines that are not complete JSON objects")

    def text(self, file: Path) -> str | None:
        """Return the text of a file; None if it is skipped, because it is too large or not UTF-8.

        Raises:
            InvalidInput: The user named this file, and it is too large or not UTF-8.
        """
        with self.open(file) as stream:
            data = stream.read(MAX_TEXT_BYTES + 1)
        self._advance(len(data))
        if len(data) > MAX_TEXT_BYTES:
            self._refuse(file, f"files of more than {MAX_TEXT_BYTES // 1_048_576} MiB")
            return None
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            self._refuse(file, "files that are not UTF-8")
            return None

    def beginning(self, file: Path, count: int) -> bytes:
        """Return the first bytes of a file; empty if it can't be read."""
        try:
            with self.open(file) as stream:
                return stream.read(count)
        except InvalidInput:
            return b""

    def _refuse(self, file: Path, reason: str) -> None:
        if file == self.path:
            raise InvalidInput(f"cannot import {shown(file.name)}: {reason} are not supported")
        self.skip(reason)

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done, self._total), self._total)

    # --- JSON

    def objects(self, stream: IO[bytes], name: str) -> Iterator[Any]:
        """Yield the elements of a JSON array one by one, or the value if it is not an array.

        Elements that are too large or too deeply nested are skipped.

        Args:
            stream: The JSON.
            name: The name of the file, for messages.

        Raises:
            InvalidInput: The stream is not JSON, or is truncated.
        """
        import ijson

        counted = _Counted(stream, name, self._advance)
        try:
            yield from self._build(ijson.basic_parse(counted, use_float=True), counted)
        except InvalidInput:
            raise
        except ijson.IncompleteJSONError as exc:
            problem = "is truncated" if "premature" in str(exc) or counted.at_end else "is not JSON"
            raise InvalidInput(
                f"{shown(name)} {problem} after {counted.total} bytes; use another copy"
            ) from exc
        except (ijson.JSONError, ValueError) as exc:
            raise InvalidInput(
                f"{shown(name)} is not valid JSON near byte {counted.total}; use another copy"
            ) from exc

    def values(self, file: Path) -> Iterator[Any]:
        """Yield the elements of a file's JSON array, or the value if it is not an array."""
        with self.open(file) as stream:
            yield from self.objects(stream, file.name)

    def is_sqlite(self, file: Path) -> bool:
        """Return whether a file is a SQLite database."""
        with self.open(file) as stream:
            return stream.read(6) == b"SQLite"

    def _build(self, events: Iterator[tuple[str, Any]], counted: "_Counted") -> Iterator[Any]:
        is_in_array, element = False, None
        for event, value in events:
            counted.since_event = 0
            if element is None:
                if event == "start_array" and not is_in_array:
                    is_in_array = True
                    continue
                if event == "end_array":
                    return
                element = _Element()
            element.add(event, value)
            if element.depth == 0:
                if element.builder is None:
                    self.skip("entries that are too large or too deeply nested")
                else:
                    yield element.builder.value
                element = None

    def members(self, *patterns: str) -> Iterator[tuple[str, IO[bytes]]]:
        """Yield the name and content of each matching file in the folder and in its ZIP archives.

        Args:
            *patterns: Patterns for file names, or, if they contain a slash, for the ends of paths.

        Raises:
            InvalidInput: An archive is damaged or encrypted, or its unpacked size is far too large.
        """
        for file in self.files(*patterns, "*.zip"):
            with self.open(file) as stream:
                if stream.read(4) in ZIP:
                    packed = file.stat().st_size
                    self._total -= packed
                    self._unpacked = 0
                    yield from self._open_archived(stream, file.name, patterns, packed)
                else:
                    stream.seek(0)
                    yield self.below(file), stream

    def _open_archived(
        self,
        stream: IO[bytes],
        name: str,
        patterns: tuple[str, ...],
        packed: int,
        *,
        is_inner: bool = False,
    ) -> Iterator[tuple[str, IO[bytes]]]:
        import zipfile

        with _explained(name), zipfile.ZipFile(stream) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            inner = [info for info in infos if info.filename.endswith(".zip") and not is_inner]
            wanted = [info for info in infos if _is_wanted(info.filename, patterns)]
            self._unpacked += sum(info.file_size for info in [*wanted, *inner])
            _refuse_bomb(self._unpacked, packed, name)
            self._total += sum(info.file_size for info in wanted)
            for info in sorted(wanted, key=lambda info: info.filename):
                with archive.open(info) as member:
                    yield info.filename, member
            for info in inner:
                with archive.open(info) as member, _spooled(member) as copy:
                    inner_name = info.filename
                    yield from self._open_archived(
                        copy, inner_name, patterns, packed, is_inner=True
                    )


class _Element:
    """Builds a JSON value from the events of a parser, unless it becomes too large.

    Attributes:
        builder: Builds the value; None if the value is too large or too deeply nested.
        depth: How many arrays and objects are open.
    """

    def __init__(self) -> None:
        from ijson.common import ObjectBuilder

        self.builder: Any = ObjectBuilder()
        self.depth = self._size = 0

    def add(self, event: str, value: object) -> None:
        """Add an event from the parser."""
        if event in ("start_map", "start_array"):
            self.depth += 1
        elif event in ("end_map", "end_array"):
            self.depth -= 1
        self._size += _EVENT_BYTES + (len(value) if isinstance(value, str) else 0)
        if self._size > MAX_VALUE_BYTES or self.depth > MAX_DEPTH:
            self.builder = None
        if self.builder is not None:
            self.builder.event(event, value)


class _Counted:
    """Stream wrapper that drops a byte order mark, counts bytes, and limits the size of a value."""

    def __init__(self, stream: IO[bytes], name: str, advance: Callable[[int], None]) -> None:
        self._stream, self._name, self._advance = stream, name, advance
        self.total = self.since_event = 0
        self.at_end = False

    def read(self, size: int = -1) -> bytes:
        """Read bytes; see `io.RawIOBase.read`."""
        with _explained(self._name):
            data = self._stream.read(_CHUNK if size < 0 else size)
        if not self.total:
            refuse_utf16(data, self._name)
        self.total += len(data)
        self.since_event += len(data)
        self.at_end = bool(size) and not data
        self._advance(len(data))
        if self.since_event > MAX_VALUE_BYTES:
            raise InvalidInput(
                f"{shown(self._name)} has a single value of more than "
                f"{MAX_VALUE_BYTES // 1_048_576} MiB, near byte {self.total}; "
                "remove it and try again"
            )
        is_start = self.total == len(data)
        return data.removeprefix(b"\xef\xbb\xbf") if is_start else data


class _Unpacked(io.RawIOBase):
    """The content of a file that is compressed with Zstandard."""

    def __init__(self, packed: io.BufferedReader, name: str) -> None:
        import zstandard

        self._packed, self._name = packed, name
        self._packed_bytes = os.fstat(packed.fileno()).st_size
        self._unpacked_bytes = 0
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._text = memoryview(b"")  # unpacked bytes that have not been read yet

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; see `io.RawIOBase.readinto`.

        Raises:
            InvalidInput: The file is damaged or truncated, or its unpacked size is far too large.
        """
        while not self._text:
            packed = self._frame.unused_data or self._packed.read(_PACKED_CHUNK)
            if not packed:
                break
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            try:
                self._text = memoryview(self._frame.decompress(packed))
            except self._error as exc:
                raise InvalidInput(
                    f"{shown(self._name)} is damaged ({exc}); use another copy"
                ) from exc
            self._unpacked_bytes += len(self._text)
            _refuse_bomb(self._unpacked_bytes, self._packed_bytes, self._name)
        if not self._text and not self._frame.eof:
            raise InvalidInput(f"{shown(self._name)} is truncated or empty; use another copy")
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        return count


def unpack(stream: io.BufferedReader, name: str) -> io.BufferedReader:
    """Return a file's stream, unpacked if the file is compressed with Zstandard.

    Args:
        stream: The file, at its beginning.
        name: The name of the file, for messages.
    """
    if not stream.peek(len(_ZSTANDARD)).startswith(_ZSTANDARD):
        return stream
    return io.BufferedReader(_Unpacked(stream, name))


class _NamedFile(io.FileIO):
    """A file whose error messages include its name and, if known, how to fix the problem."""

    def readinto(self, buffer: Any) -> int | None:
        """Read into a buffer; see `io.RawIOBase.readinto`."""
        with self._naming():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """Read everything; see `io.RawIOBase.readall`."""
        with self._naming():
            return super().readall()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position; see `io.IOBase.seek`."""
        with self._naming():
            return super().seek(offset, whence)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise unreadable(Path(str(self.name)), exc) from exc


def open_named(file: Path, opener: Callable[[str, int], int] | None = None) -> io.BufferedReader:
    """Open a file for reading.

    Args:
        file: The file.
        opener: Opens the file, as for `open`.

    Raises:
        InvalidInput: The file can't be opened; a read that fails raises the same error.
    """
    try:
        return io.BufferedReader(_NamedFile(str(file), opener=opener), _CHUNK)
    except (OSError, ValueError) as exc:
        raise unreadable(file, exc) from exc


_REMEDIES = {
    errno.EACCES: "; make it readable for your user",
    errno.EPERM: "; make it readable for your user",
    errno.EIO: "; use another copy",
}


def unreadable(file: Path, exc: Exception) -> InvalidInput:
    """Return the error for a file that can't be opened or read, with a remedy."""
    reason = getattr(exc, "strerror", None) or exc
    if isinstance(exc, RuntimeError):  # how Python reports a loop of symbolic links
        reason = os.strerror(errno.ELOOP)
    remedy = _REMEDIES.get(getattr(exc, "errno", None) or 0, "")
    return InvalidInput(f"cannot read {shown(str(file))}: {reason}{remedy}")


def refuse_utf16(start: bytes, name: str) -> None:
    """Reject a file that looks like UTF-16.

    Raises:
        InvalidInput: The file begins with the byte order mark of UTF-16.
    """
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InvalidInput(f"{shown(name)} looks like UTF-16; save it as UTF-8")


def _is_wanted(name: str, patterns: tuple[str, ...]) -> bool:
    for pattern in patterns:
        if "/" in pattern:
            if fnmatch(name, pattern) or fnmatch(name, f"*/{pattern}"):
                return True
        elif fnmatch(name.rpartition("/")[2], pattern):
            return True
    return False


def _refuse_bomb(unpacked: int, packed: int, name: str) -> None:
    if unpacked > _RATIO_FROM and unpacked > MAX_RATIO * packed:
        raise InvalidInput(
            f"{shown(name)} ({packed} bytes) would unpack to at least {unpacked} bytes, more than "
            "any export does; if you trust it, unpack it yourself and name the folder"
        )


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Translate the errors that a damaged archive causes into `InvalidInput`."""
    import zipfile
    import zlib

    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as exc:
        raise InvalidInput(
            f"{shown(name)} is not a complete ZIP archive ({exc}); use another copy"
        ) from exc
    except (RuntimeError, NotImplementedError) as exc:
        raise InvalidInput(f"{shown(name)} can't be unpacked: {exc}; unpack it first") from exc


@contextlib.contextmanager
def _spooled(member: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a seekable copy of an archive's member."""
    import shutil

    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as copy:
        shutil.copyfileobj(member, copy, _CHUNK)
        copy.seek(0)
        yield copy
