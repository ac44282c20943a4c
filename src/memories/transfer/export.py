"""Exports a store as JSON lines; the last line counts the records and can prove who wrote it."""

import heapq
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from memories.core.disk import CREATING, locked, replacing
from memories.errors import ConfigError, InvalidInput
from memories.stores.protocol import Store, find_first
from memories.stores.records import Collection, Record
from memories.transfer.lines import ExportTally, header_line, is_id, read_header, to_line
from memories.transfer.pages import PAGE, Part, Progress, count_records, pages, parts_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Select = Callable[[Collection, Iterator[Record]], Iterator[Record]]

_MAX_HEADER_BYTES = 65_536  # maximum size of an export's first line


class Lines:
    """Writes an export's lines, from its header to its last line."""

    def __init__(
        self,
        write: Callable[[str], object],
        model: str | None,
        backup: Mapping[str, str] | None = None,
    ) -> None:
        """Write the header.

        Args:
            write: Receives each line with its line break.
            model: The model of the vectors that will be written; None if there will be none.
            backup: The description of a backup.
        """
        self._write = write
        header = header_line(model, backup)
        self._tally = ExportTally(header)
        write(f"{header}\n")

    def add(self, record: Record, vectors: "NDArray[np.float32] | None" = None) -> None:
        """Write a record, with its vectors if given."""
        line = to_line(record, vectors)
        self._tally.add(line)
        self._write(f"{line}\n")

    def end(self, key: bytes | None = None) -> int:
        """Write the last line, and return the number of records.

        Args:
            key: The key that authenticates the export's writer; see `ExportTally.last_line`.
        """
        self._write(f"{self._tally.last_line(key)}\n")
        return self._tally.records


def check_target(file: Path) -> None:
    """Check that a file may be replaced by an export.

    Args:
        file: The file. It may be missing, empty or an earlier export, but not a backup.

    Raises:
        InvalidInput: The file is something else.
    """
    if not os.path.lexists(file):
        return
    if file.is_symlink() or not file.is_file():
        raise InvalidInput(f"{file} is not a regular file; name a different file")
    with file.open("rb") as stream:
        first_line = stream.readline(_MAX_HEADER_BYTES)
    if not first_line:
        return
    try:
        header = read_header(first_line.decode())
    except (InvalidInput, UnicodeDecodeError):
        raise InvalidInput(
            f"{file} already exists and is not an export; name a different file"
        ) from None
    if header.backup is not None:
        raise InvalidInput(f"{file} is a backup; name a different file")


def matching(expression: str | None, scope: str, half_life_hours: float) -> Select:
    """Return a function that selects the records that match an expression, for `export`.

    Args:
        expression: The expression; None for all records in the scope.
        scope: `memories`, `history` or `all`.
        half_life_hours: The half-life of confidence.

    Raises:
        InvalidInput: The expression or the scope is invalid.
    """
    from memories.read.selector import Instant, Selector, parse, with_versions
    from memories.search.search import collections_of

    instant = Instant(datetime.now(UTC), half_life_hours)
    kinds = collections_of(scope)
    selectors: dict[Collection, Selector] = {}
    if expression is not None:
        for kind in kinds:
            any_state = kind is Collection.MEMORY
            selectors[kind] = parse(expression, kind, instant, any_state=any_state)

    def select(collection: Collection, records: Iterator[Record]) -> Iterator[Record]:
        if collection not in kinds:
            return iter(())
        if collection not in selectors:
            return records
        return with_versions(selectors[collection], records)

    return select


def export(  # noqa: PLR0913 - these are the properties of an export
    store: Store,
    write: Callable[[str], object],
    *,
    namespaces: Sequence[str] | None,
    with_vectors: bool = False,
    backup: Mapping[str, str] | None = None,
    prove: Callable[[], bytes | None] = lambda: None,
    select: Select | None = None,
    progress: Progress,
) -> int:
    """Write records as JSON lines, ordered by collection, namespace, group and position.

    The export is a consistent snapshot: other writers wait until it is done, so `write` should not
    block. Damaged records are left out; the store's `damaged` names them.

    Args:
        store: The store.
        write: Receives each line with its line break.
        namespaces: The namespaces to export; None means all.
        with_vectors: Also write the store's vectors.
        backup: The description of a backup.
        prove: Returns the key that authenticates the export's writer; called only if a record was
            exported.
        select: Given a collection and its records, yields those to export; None means all.
        progress: Called after each page of records.

    Returns:
        The number of records.

    Raises:
        StoreDamaged: A part of the store can't be read.
    """
    if not parts_of(store, namespaces):
        return Lines(write, None, backup).end()
    count = 0
    with store.transaction():
        sources = parts_of(store, namespaces)
        total = count_records(store, sources)
        model = None
        if with_vectors and sources:
            model = store.info(sources[0].filter()).model
        lines = Lines(write, model, backup)
        for part in sources:
            records = _in_order(store, part)
            if select is not None:
                records = select(part.collection, records)
            while page := list(islice(records, PAGE)):
                vectors = store.vectors([record.ref for record in page]) if with_vectors else {}
                for record in page:
                    lines.add(record, vectors.get(record.ref))
                count += len(page)
                progress("exporting", count, total)
    return lines.end(prove() if count else None)


def _in_order(store: Store, part: Part) -> Iterator[Record]:
    """Yield records in the order of their groups' names.

    Some stores return the groups whose names are ids after all other groups.
    """
    first = find_first(store, part.filter())
    if first is None or is_id(first.ref.group):
        return (record for page in pages(store, part) for record in page)

    def by_kind(*, ids: bool) -> Iterator[Record]:
        for page in pages(store, part):
            for record in page:
                if is_id(record.ref.group) is ids:
                    yield record

    return heapq.merge(
        by_kind(ids=False),
        by_kind(ids=True),
        key=lambda record: (record.ref.group, record.ref.position),
    )


_KEY_FILE = "export.key"
_KEY_BYTES = 32
_REMEDY = "remove it, and the next export creates a new one"


def own_key(folder: Path, *, make: bool = False) -> bytes | None:
    """Return the key that authenticates this user's exports; None if there is none yet.

    Args:
        folder: The folder of the key and of the user's `config.toml`; no `.env` can change it.
        make: Whether to create a missing key.

    Raises:
        ConfigError: The key can't be trusted; the message says why, and what to do.
        OSError: The key can't be created.
    """
    file = folder / _KEY_FILE
    if make and not os.path.lexists(file):
        with locked(folder / f"{_KEY_FILE}.lock"):
            if not os.path.lexists(file):
                with replacing(file) as stream:
                    stream.write(os.urandom(_KEY_BYTES))
    try:
        fd = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | CREATING & ~os.O_CREAT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:  # for example, a link is refused, since it could lead anywhere
        raise ConfigError(f"cannot read {file}: {exc.strerror}; {_REMEDY}") from exc
    try:
        problem = _find_problem(file, os.fstat(fd))
        key = b"" if problem else os.read(fd, _KEY_BYTES + 1)
    finally:
        os.close(fd)
    if not problem and len(key) != _KEY_BYTES:
        problem = f"is not an export key; {_REMEDY}"
    if problem:
        raise ConfigError(f"{file} {problem}")
    return key


def _find_problem(file: Path, status: os.stat_result) -> str:
    """Return the reason a key can't be trusted, as part of a sentence; empty if it can."""
    if not stat.S_ISREG(status.st_mode):
        return f"is not a file; {_REMEDY}"
    if os.name == "posix" and status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user; {_REMEDY}"
    if os.name == "posix" and status.st_mode & 0o077:
        return (
            "can be read or written by others, who could forge exports; remove it, "
            f"or run: chmod 600 {file}"
        )
    return ""
