"""Exports a store as lines of JSON, with a last line that counts them and a proof of who wrote
them.
"""

import heapq
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from memories.core.disk import CREATING, locked, replacing
from memories.errors import ConfigError
from memories.stores.protocol import Store
from memories.stores.records import Collection, Record
from memories.transfer.lines import Tally, header_line, is_id, to_line
from memories.transfer.pages import PAGE, Place, Progress, pages, places, total

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Lines:
    """Writes the lines of an export, from its header to its last line."""

    def __init__(
        self,
        write: Callable[[str], object],
        model: str | None,
        backup: Mapping[str, str] | None = None,
    ) -> None:
        """Write the header.

        Args:
            write: Takes a line with its line break.
            model: The model of the vectors that will be written; None for none.
            backup: What a backup says of itself.
        """
        self._write = write
        header = header_line(model, backup)
        self._tally = Tally(header)
        write(f"{header}\n")

    def add(self, record: Record, vectors: "NDArray[np.float32] | None" = None) -> None:
        """Write a record, and its vectors if they are given."""
        line = to_line(record, vectors)
        self._tally.add(line)
        self._write(f"{line}\n")

    def end(self, key: bytes | None = None) -> int:
        """Write the last line; return how many records there are.

        Args:
            key: What the export is to be known again by; see `proof`.
        """
        self._write(f"{self._tally.last_line(key)}\n")
        return self._tally.records


def export(  # noqa: PLR0913 - these are the properties of an export
    store: Store,
    write: Callable[[str], object],
    *,
    namespaces: Sequence[str] | None,
    with_vectors: bool = False,
    backup: Mapping[str, str] | None = None,
    prove: Callable[[], bytes | None] = lambda: None,
    chosen: Callable[[Collection, Iterator[Record]], Iterator[Record]] | None = None,
    progress: Progress,
) -> int:
    """Write every record as a line of JSON, in order of collection, namespace, group and position.

    It is one state of the store: other writers wait until it is done, so `write` should not block.
        Damaged records
    are left out; `damaged` of the store names them.

    Args:
        store: What is exported.
        write: Takes a line with its line break.
        namespaces: Only these; None for all.
        with_vectors: Also write the vectors that the store has.
        backup: What a backup says of itself.
        prove: Returns the key that it is to be known again by; see `proof`. It is called if there
            is a record.
        chosen: Yields those of a collection's records that are exported; None for all.
        progress: Is told how much is done.

    Returns:
        How many records.

    Raises:
        StoreDamaged: A part of the store can't be read.
    """
    if not places(store, namespaces):
        return Lines(write, None, backup).end()
    count = 0
    with store.transaction():
        among = places(store, namespaces)
        whole = total(store, among)
        model = store.info(among[0].everything()).model if with_vectors and among else None
        lines = Lines(write, model, backup)
        for place in among:
            records = _in_order(store, place)
            if chosen is not None:
                records = chosen(place.collection, records)
            while page := list(islice(records, PAGE)):
                vectors = store.vectors([record.ref for record in page]) if with_vectors else {}
                for record in page:
                    lines.add(record, vectors.get(record.ref))
                count += len(page)
                progress("exporting", count, whole)
    return lines.end(prove() if count else None)


def _in_order(store: Store, place: Place) -> Iterator[Record]:
    """Yield records by the name of their group in any store; some keep ids apart from other
    names.
    """
    if place.collection is Collection.MEMORY:  # all groups are ids
        return (record for page in pages(store, place) for record in page)

    def of_kind(kind: bool) -> Iterator[Record]:
        return (
            record
            for page in pages(store, place)
            for record in page
            if is_id(record.ref.group) is kind
        )

    return heapq.merge(
        of_kind(False), of_kind(True), key=lambda record: (record.ref.group, record.ref.position)
    )


_NAME = "export.key"
_BYTES = 32


def own_key(folder: Path, *, make: bool = False) -> bytes | None:
    """Return the key of this user's exports; None if there is none yet.

    Args:
        folder: Where it is kept: beside the user's `config.toml`, where no folder's `.env` reaches.
        make: Make one where there is none.

    Raises:
        ConfigError: It can't be relied on; the message says why, and what to do.
        OSError: It can't be made.
    """
    file = folder / _NAME
    if make and not os.path.lexists(file):
        with locked(folder / f"{_NAME}.lock"):
            if not os.path.lexists(file):
                with replacing(file) as stream:
                    stream.write(os.urandom(_BYTES))
    try:
        fd = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | CREATING & ~os.O_CREAT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:  # a link among them, which could lead anywhere
        raise ConfigError(
            f"cannot read {file}: {exc.strerror}; remove it, and the next export makes one"
        ) from exc
    try:
        doubt = _doubt(file, os.fstat(fd))
        key = b"" if doubt else os.read(fd, _BYTES + 1)
    finally:
        os.close(fd)
    if doubt or len(key) != _BYTES:
        raise ConfigError(
            f"{file} {doubt or 'is no key of exports; remove it, and the next export makes one'}"
        )
    return key


def _doubt(file: Path, found: os.stat_result) -> str:
    """Return why a key can't be relied on, a part of a sentence; nothing if it can."""
    if not stat.S_ISREG(found.st_mode):
        return "is not a file; remove it, and the next export makes one"
    if os.name == "posix" and found.st_uid not in (os.geteuid(), 0):
        return "belongs to another user; remove it, and the next export makes one"
    if os.name == "posix" and found.st_mode & 0o077:
        return f"can be read or written by others, who could forge exports; remove it, or run: chmod 600 {file}"
    return ""
