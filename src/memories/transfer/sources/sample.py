"""Examines the beginning of a file or folder to recognize its source."""

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from memories.errors import MemoriesError
from memories.transfer.lines import SQLITE
from memories.transfer.sources.items import Item
from memories.transfer.sources.reader import ZIP, Reader, unpack

_MAX_NAMES = 10_000
_MAX_FILES = 200  # maximum number of files examined in a folder
_MAX_BYTES = 8_388_608  # maximum number of bytes read from the beginning of a file
_MAX_DATABASE_BYTES = 268_435_456  # a larger database isn't copied to list its tables
_MAX_DEPTH = 200
_MAX_LINES = 50
_MAX_LINE_BYTES = 1_048_576
_MAX_FRONTMATTER_BYTES = 4_096


class Sample:
    """A file or folder whose source is not known yet; everything is read on demand.

    Attributes:
        path: The file or folder, with symbolic links resolved.
    """

    def __init__(self, path: Path) -> None:
        """Initialize; nothing is read yet."""
        self.path = path.resolve()

    @cached_property
    def is_folder(self) -> bool:
        """Whether the path is a folder."""
        return self.path.is_dir()

    @cached_property
    def start(self) -> bytes:
        """As much of the file's beginning as is readable, up to a limit; empty for a folder."""
        start = bytearray()
        with contextlib.suppress(OSError, MemoriesError):
            if self.path.is_file():
                with self.path.open("rb") as packed:
                    stream = unpack(packed, self.path.name)
                    while piece := stream.read1(_MAX_BYTES - len(start)):
                        start += piece
        return bytes(start)

    @property
    def frontmatter(self) -> bytes:
        """The beginning of a Markdown file's frontmatter; empty if it has none."""
        start = self.start[:_MAX_FRONTMATTER_BYTES]
        return start.partition(b"\n---")[0] if start.startswith(b"---") else b""

    @property
    def is_database(self) -> bool:
        """Whether the file is a SQLite database."""
        return self.start.startswith(SQLITE)

    @property
    def is_archive(self) -> bool:
        """Whether the file is a ZIP archive, complete or not."""
        return self.start.startswith(ZIP)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the entries in the folder or ZIP archive."""
        import zipfile

        try:
            if self.is_folder:
                return frozenset(file.name for file in islice(self.path.iterdir(), _MAX_NAMES))
            if self.is_archive:
                with zipfile.ZipFile(self.path) as archive:
                    names = islice(archive.namelist(), _MAX_NAMES)
                    return frozenset(name.rpartition("/")[2] for name in names)
        except (OSError, ValueError, RuntimeError, zipfile.BadZipFile):
            pass  # the error is reported when the items are read
        return frozenset()

    @cached_property
    def tables(self) -> Mapping[str, set[str]]:
        """The tables of a database with their columns; empty for huge databases and other files."""
        if not self.is_database or self.path.stat().st_size > _MAX_DATABASE_BYTES:
            return {}
        from memories.transfer.sources.database import open_copy

        try:
            with open_copy(self.path) as database:
                return {table: database.columns(table) for table in database.tables()}
        except MemoriesError:
            return {}  # the error is reported when the items are read

    @cached_property
    def first(self) -> Mapping[str, Any]:
        """The first JSON object in the file, or in the first file of the folder that has one.

        If the object spans several lines or is very long, its arrays and objects are None.
        """
        if not self.is_folder:
            return _first_object(self.start)
        for file in islice(_json_files(self.path), _MAX_FILES):
            if first := Sample(file).first:
                return first
        return {}

    @cached_property
    def lines(self) -> Sequence[Mapping[str, Any]]:
        """The first objects of a JSON lines file, or of the first such file in the folder."""
        if self.is_folder:
            files = (file for file in _json_files(self.path) if file.suffix == ".jsonl")
            samples = map(Sample, islice(files, _MAX_FILES))
            return next((sample.lines for sample in samples if sample.lines), ())
        objects = (_parse(line) for line in islice(io.BytesIO(self.start), _MAX_LINES))
        return [value for value in objects if isinstance(value, dict)]

    def has(self, *keys: str) -> bool:
        """Return whether the first JSON object has all of these keys."""
        return all(key in self.first for key in keys)

    def has_columns(self, table: str, *columns: str) -> bool:
        """Return whether the database has a table with all of these columns."""
        return self.tables.get(table, set()).issuperset(columns)


Locate = Callable[[Path], Iterable[Path]]


def nowhere(_home: Path) -> Iterable[Path]:
    """Return no paths, for a source whose files have no usual place."""
    return ()


class Source(NamedTuple):
    """A program, or a format, whose files can be imported.

    Attributes:
        files: Patterns for the names of its files in a folder.
        recognize: Returns whether a file or folder comes from this source.
        read: Yields messages (`items.SourceMessage`) and statements (`Draft`) in order, and calls
            `reader.skip` for everything else. A second call must yield the same items.
        locate: Given the user's home, returns the paths where the program keeps its files.
    """

    files: tuple[str, ...]
    recognize: Callable[[Sample], bool]
    read: Callable[[Reader], Iterator[Item]]
    locate: Locate = nowhere

    @classmethod
    def of_files(
        cls,
        files: tuple[str, ...],
        recognize: Callable[[Sample], bool],
        read_file: Callable[[Reader, Path], Iterator[Item]],
        locate: Locate = nowhere,
    ) -> Self:
        """Return a source whose files are read one by one."""

        def read(reader: Reader) -> Iterator[Item]:
            for file in reader.files(*files):
                yield from read_file(reader, file)

        return cls(files, recognize, read, locate)


def below(variable: str, default: str, *names: str) -> Locate:
    """Return a `Locate` for files in the folder that an environment variable names, or in a default
    folder in the user's home.
    """

    def locate(home: Path) -> list[Path]:
        folder = Path(os.environ.get(variable) or home / default)
        return [folder / name for name in names]

    return locate


def _json_files(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".jsonl", ".json", ".jsonl.zst")):
                yield Path(base, name)


def _first_object(start: bytes) -> Mapping[str, Any]:
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] not in (b"{", b"["):
        return {}
    value = _parse(start.partition(b"\n")[0])
    if value is None:
        return _first_keys(start)
    if isinstance(value, list):
        value = next((element for element in value if isinstance(element, dict)), None)
    return value if isinstance(value, dict) else {}


def _parse(line: bytes) -> Any:
    """Return the value of a line of JSON; None if the line isn't JSON, or is too long to parse."""
    if len(line) > _MAX_LINE_BYTES:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _first_keys(start: bytes) -> Mapping[str, Any]:
    """Return the keys and values of the first object, with None for arrays and objects."""
    first: dict[str, Any] = {}
    object_depth, key = 0, ""
    for depth, event, value in _events(start):
        if not object_depth:
            object_depth = depth + 1 if event == "start_map" else 0
        elif depth == object_depth and event == "map_key":
            key = value
            first[key] = None
        elif depth == object_depth and event == "end_map":
            break
        elif depth == object_depth and value is not None:
            first[key] = value
    return first


def _events(start: bytes) -> Iterator[tuple[int, str, Any]]:
    """Yield a JSON parser's events with their nesting depth; stop if the depth is too great."""
    import ijson

    depth = 0
    try:
        for event, value in ijson.basic_parse(io.BytesIO(start), use_float=True):
            yield depth, event, value
            if event in ("start_map", "start_array"):
                depth += 1
            elif event in ("end_map", "end_array"):
                depth -= 1
            if depth > _MAX_DEPTH:
                return
    except (ijson.JSONError, ValueError):
        return  # the object is longer than the sample, or not JSON
