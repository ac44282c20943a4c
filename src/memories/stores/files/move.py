"""Moves the folder to a larger store: copies all records, compares them, and keeps the files.

The folder moves only to a store that contains no memories in the folder's namespaces. So all
memories found there later come from the move: nothing is mixed with other records, and no leftovers
from an earlier move reappear.

Every step can be interrupted. Until the marker is written, the files stay in use, and the next
attempt removes the previous one's copies and starts again. Once the marker is written, every
process uses the larger store, and the next writer renames the files.

Earlier versions moved each namespace separately. If such a version moved only a part of a folder,
the folder is refused with an error that names the stores in use.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from memories.core.batches import by_count
from memories.core.times import to_iso
from memories.core.urls import without_password
from memories.errors import ConfigError, MemoriesError, StoreDamaged, StoreError
from memories.guard.validate import amount
from memories.settings import Config
from memories.stores.files.connection import MARKER, Folder, Stamp
from memories.stores.files.index import Index
from memories.stores.files.local import LocalFiles
from memories.stores.files.log import file_name, find_part, part_of
from memories.stores.protocol import Store, scan_pages
from memories.stores.records import (
    SEARCHED,
    Collection,
    Filter,
    Record,
    Ref,
    Space,
    immutable_parts,
    mutable_parts,
)

OpenStore = Callable[[str, Space | None, Config | None], Store]

KEPT = ".before-move"
WENT_BACK = "moved-back"
FORMER_MARKER = ".moved"  # the marker of a namespace that an earlier version moved
_UNFINISHED, _FAILED = ".moving", "folder.failed"
_BESIDE = re.compile(r"memories(-\d+)?\.db")  # names of SQLite files in the same folder
# URLs that certainly name a larger store. The rest of such a URL is checked only when the folder
# moves, because importing the driver may be slow. Any other URL is checked at once.
_CHECKED_BY_DRIVER = re.compile(r"sqlite:///.|(postgres|postgresql|chroma|qdrant)://.")
# The placeholder that `without_password` puts in place of a password.
_MASKED = re.compile(r"[:/]\*\*\*@|[?&]([^=&#]*=)?\*\*\*(?=[&#]|$)")
_BATCH = 500
_PAUSE_SECONDS = 60.0  # pause between a failed attempt and the next one

_log = logging.getLogger(__name__)


class Marker(NamedTuple):
    """Names the store to which the folder has moved.

    Attributes:
        store: The URL of the store, without a password, or the name of a SQLite file in the folder.
        originals: The names of the moved files.
    """

    store: str
    originals: tuple[str, ...]

    @property
    def is_beside(self) -> bool:
        """Whether the store is a SQLite file in the folder."""
        return _BESIDE.fullmatch(self.store) is not None


class Mover:
    """Moves a folder to a larger store, and remembers the store."""

    def __init__(
        self,
        folder: Folder,
        files: LocalFiles,
        space: Space | None,
        config: Config | None,
        open_store: OpenStore,
    ) -> None:
        """Initialize; nothing is opened yet.

        Args:
            folder: The folder that contains the files.
            files: The records in the files.
            space: The space in which vectors are searched.
            config: Determines when the folder moves, and to which store; without it, the folder
                doesn't move.
            open_store: Opens the store at a URL.

        Raises:
            ConfigError: The target isn't a store, or is a files store.
        """
        self._max_records = config.file_migrate_at if config else None
        self._target = config.file_migrate_to if config else None
        self._folder, self._files, self._space = folder, files, space
        self._config, self._open_store = config, open_store
        self._marker: tuple[Stamp, Marker] | None = None
        self._is_whole = False
        if self._target is not None:
            if self._target.startswith("files:"):
                raise ConfigError(
                    "file_migrate_to is itself a files store; set it to a larger store, such as "
                    "sqlite:///path"
                )
            if not _CHECKED_BY_DRIVER.match(self._target):
                open_store(self._target, None, config).close()

    def use_space(self, space: Space) -> None:
        """Set the embedder's space for the store that the folder moves to."""
        self._space = space

    def marker(self) -> Marker | None:
        """Return where the folder has moved to; None if the files are still in use.

        Raises:
            StoreDamaged: The marker can't be read.
            StoreError: An earlier version moved a part of the folder.
        """
        stamp = self._folder.stamp(MARKER)
        if stamp is None:
            if not self._is_whole:
                self._refuse_partial_move()
                self._is_whole = True
            return None
        if self._marker is None or self._marker[0] != stamp:
            marker = self._read_marker(MARKER)
            self._marker = stamp, marker
            self._warn_of_new_lines(marker)
        return self._marker[1]

    def _read_marker(self, name: str) -> Marker:
        try:
            fields = json.loads(self._folder.read(name)[1])
            return Marker(str(fields["store"]), tuple(map(str, fields["originals"])))
        except (ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                f"cannot read {self._folder.path / name}, which names the store with the memories "
                f"({exc}); restore it from a backup"
            ) from exc

    def _warn_of_new_lines(self, marker: Marker) -> None:
        if self.is_unfinished():
            return
        for name in self._list_files():
            _log.warning(
                "%s is not read, because the folder was moved to %s; import the file's lines and "
                "move the file away",
                self._folder.path / name,
                marker.store,
            )

    def _list_files(self) -> list[str]:
        return [name for name in self._folder.list_names() if find_part(name)]

    def is_unfinished(self) -> bool:
        """Return whether a move was interrupted."""
        return bool(self._list_unfinished_moves())

    def _list_unfinished_moves(self) -> list[str]:
        names = self._folder.list_names(self._folder.inner)
        return [name for name in names if name.endswith(_UNFINISHED)]

    def open_target(self, marker: Marker) -> Store:
        """Open the store that the folder has moved to.

        Raises:
            StoreDamaged: The store was a SQLite file in the folder and is missing.
            StoreError: The settings no longer contain the store's password.
        """
        path = self._folder.path / marker.store
        if marker.is_beside and not path.exists():
            raise StoreDamaged(
                f"{self._folder.path} was moved to {path}, which is missing; put it back, or, to "
                f"return to the files, rename {MARKER} to {WENT_BACK}.json and remove {KEPT} from "
                "the names of the files"
            )
        return self._open(marker.store, self._space)

    def _open(self, store: str, space: Space | None) -> Store:
        """Open the store that a marker names, with the password from the settings."""
        url = f"sqlite:///{self._folder.path / store}" if _BESIDE.fullmatch(store) else store
        if self._target is not None and without_password(self._target) == store:
            url = self._target
        elif _MASKED.search(store):
            raise StoreError(
                f"memories were moved to {store}; set FILE_MIGRATE_TO to this URL with its password"
            )
        return self._open_store(url, space, self._config)

    def find_copies(self, refs: Sequence[Ref]) -> list[str]:
        """Return where copies of records may be: kept files, and the stores of undone moves."""
        # Files of the audit log are left out, since they contain no texts.
        files: set[str] = set()
        for collection in SEARCHED:
            files.update(file_name(collection, ref.namespace) for ref in refs)
        places: list[str] = []
        stores: set[str] = set()
        for name in self._folder.list_names():
            if KEPT in name and name.partition(KEPT)[0] in files:
                places.append(name)
            if _BESIDE.fullmatch(name):
                stores.add(name)
            if WENT_BACK in name:
                stores.add(self._read_marker(name).store)
        marker = self.marker()
        if marker is not None:
            stores.discard(marker.store)
        places += [store for store in sorted(stores) if self._may_have(store, refs)]
        return [name if "://" in name else str(self._folder.path / name) for name in places]

    def _may_have(self, store: str, refs: Sequence[Ref]) -> bool:
        try:
            with contextlib.closing(self._open(store, None)) as target:
                return bool(target.read(refs))
        except MemoriesError:
            return True

    # Call the methods below under the lock and, except `finish`, in a transaction of the index.

    def move_if_too_large(self, namespaces: Iterable[str]) -> None:
        """Move the folder if one of these namespaces has become too large.

        A failure is only logged, since the records are safe in the files.
        """
        target = without_password(self._target) if self._target else ""
        if self._max_records is None or self._folder.stamp(MARKER) or self._has_just_failed(target):
            return
        index = self._index()
        if all(_count(index, [name], SEARCHED) <= self._max_records for name in namespaces):
            return
        try:
            self._move(target)
        except MemoriesError as exc:
            _log.warning(
                "%s could not be moved to a larger store and remains a folder of files: %s",
                self._folder.path,
                exc,
            )
            self._folder.replace(_FAILED, target.encode(), self._folder.inner)

    def _has_just_failed(self, target: str) -> bool:
        stamp, failed_target = self._folder.read(_FAILED, inner=True)
        if stamp is None or failed_target != target.encode():
            return False
        return time.time() - stamp.changed_at / 1e9 < _PAUSE_SECONDS

    def _move(self, store: str) -> None:
        started = time.monotonic()
        self.remove_copies()
        names = self._list_files()
        store = store or self._choose_file()
        count, digest = self._copy_files(names, store)
        marker = {
            "store": store,
            "moved_at": to_iso(datetime.now(UTC)),
            "records": count,
            "sha256": digest,
            "originals": names,
        }
        data = json.dumps(marker, ensure_ascii=False, indent=1)
        self._folder.replace(MARKER, f"{data}\n".encode())
        self.finish()
        _log.warning(
            "%s has %d records and was moved to %s in %.1f s; the files are kept as *%s",
            self._folder.path,
            count,
            store,
            time.monotonic() - started,
            KEPT,
        )

    def _choose_file(self) -> str:
        """Return the name for a SQLite file in the folder: a new name, or that of an empty store.

        The file of a move that was undone isn't empty, so it isn't used again.
        """
        for number in range(1, 1_000):
            name = "memories.db" if number == 1 else f"memories-{number}.db"
            if not (self._folder.path / name).exists():
                return name
            with contextlib.closing(self._open(name, None)) as target:
                if not any(target.namespaces(collection) for collection in Collection):
                    return name
        raise StoreError(
            f"{self._folder.path} contains too many stores left by undone moves; remove some "
            "of them"
        )

    def _copy_files(self, names: Sequence[str], store: str) -> tuple[int, str]:
        """Copy the records of files to a store and compare them; return their count and digest.

        Raises:
            StoreDamaged: A file can't be read, or a record is damaged.
            StoreError: The store already contains records in these namespaces, the copy is not
                exact, or another program writes to the store or to a file.
        """
        stamps = {name: self._folder.stamp(name) for name in names}
        index = self._index()
        records: list[Record] = []
        namespaces: set[str] = set()
        for collection, namespace in map(part_of, names):
            self._files.sync_readable(collection, namespace)
            where = Filter(collection, (namespace,), state="any")
            records += itertools.chain.from_iterable(scan_pages(index, where, size=_BATCH))
            namespaces.add(namespace)
        all_namespaces = sorted(namespaces)
        if len(records) < _count(index, all_namespaces):
            raise StoreDamaged("some of its records are damaged; run memory doctor to see which")
        with contextlib.closing(self._open(store, index.stored_space() or self._space)) as target:
            for namespace in all_namespaces:
                if _count(target, [namespace]):
                    raise StoreError(
                        f"{store} already contains memories in {namespace}, perhaps from an "
                        "earlier move; to combine both stores, use memory export and memory "
                        "import; otherwise remove those memories, or set FILE_MIGRATE_TO to "
                        "another store"
                    )
            self._copy(store, records, target)
            digest = _digest(records)
            if _digest(_read_back(records, target)) != digest:
                raise StoreError(f"the records in {store} differ from those that were copied to it")
            count = _count(target, all_namespaces)
        if count != len(records):
            contents = amount(count, "record", "records")
            raise StoreError(
                f"{store} contains {contents} in these namespaces instead of {len(records)}, "
                "because other programs write to that store too"
            )
        if any(self._folder.stamp(name) != stamp for name, stamp in stamps.items()):
            raise StoreError("another program changed one of its files")
        return count, digest

    def _copy(self, store: str, records: Sequence[Record], target: Store) -> None:
        """Copy records, after saving a list of them in case the copying is interrupted."""
        refs = [record.ref for record in records]
        self._folder.replace(
            f"folder{_UNFINISHED}",
            json.dumps({"store": store, "copies": refs}).encode(),
            self._folder.inner,
        )
        index = self._index()
        for batch in by_count(records, _BATCH):
            vectors = index.vectors([record.ref for record in batch])
            target.append([record._replace(vectors=vectors.get(record.ref)) for record in batch])

    def _index(self) -> Index:
        work = self._files.work
        assert work is not None
        return work.index

    def finish(self) -> None:
        """Rename the files of a folder that has moved, and remove the move's temporary files."""
        for name in self._read_marker(MARKER).originals:
            self._put_aside(name)
        self._files.clear_index()
        self._folder.discard(_FAILED, *self._list_unfinished_moves())

    def _put_aside(self, name: str) -> None:
        if self._folder.stamp(name) is None:
            return
        kept, number = f"{name}{KEPT}", 1
        while self._folder.stamp(kept) is not None:
            number += 1
            kept = f"{name}{KEPT}.{number}"
        self._folder.rename(name, kept)

    def remove_copies(self, refs: Container[Ref] | None = None) -> None:
        """Remove the copies of an interrupted move; with `refs`, only copies of these records."""
        for name in self._list_unfinished_moves():
            store, copies = self._read_copies(name)
            if refs is not None:
                copies = [ref for ref in copies if ref in refs]
            with contextlib.closing(self._open(store, None)) as target:
                target.remove(copies)

    def _read_copies(self, name: str) -> tuple[str, list[Ref]]:
        """Return the target of an interrupted move, and the refs that it may have copied there.
        Raises:
            StoreDamaged: The list of the copies can't be read.
        """
        part = find_part(f"{name.removesuffix(_UNFINISHED)}.jsonl")
        try:
            fields = json.loads(self._folder.read(name, inner=True)[1])
            refs = []
            for copy in fields["copies"]:
                if len(copy) == 3:  # earlier versions kept a list for each namespace
                    copy.insert(1, part[1] if part else "")
                collection, *address = copy
                refs.append(Ref(Collection(collection), *address))
            return str(fields["store"]), refs
        except (ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                f"cannot read {self._folder.inner / name}, which lists where copies of memories "
                f"may be ({exc}); remove those copies and then that file"
            ) from exc

    def _refuse_partial_move(self) -> None:
        """Refuse a folder from which an earlier version of Memories moved some namespaces.

        Raises:
            StoreError: An earlier version moved a namespace.
        """
        places: list[str] = []
        for name in self._folder.list_names():
            namespace = name.removesuffix(FORMER_MARKER)
            if namespace != name:
                places.append(f"{namespace} to {self._read_marker(name).store}")
        if places:
            raise StoreError(
                f"an earlier version moved parts of {self._folder.path}: {', '.join(places)}; "
                f"combine them in a new store: move the files *{FORMER_MARKER} away, run memory "
                "export --all-namespaces for this folder and for each of these stores, and memory "
                "import --all-namespaces for each export"
            )


def _count(
    store: Store, namespaces: Sequence[str], collections: Iterable[Collection] = Collection
) -> int:
    wheres = [Filter(collection, tuple(namespaces), state="any") for collection in collections]
    return sum(store.count(where) for where in wheres)


def _read_back(records: Sequence[Record], store: Store) -> Iterator[Record]:
    for batch in by_count(records, _BATCH):
        yield from store.read([record.ref for record in batch])


def _digest(records: Iterable[Record]) -> str:
    """Return a hash of records' contents that doesn't depend on their order."""
    lines = sorted(
        json.dumps([immutable_parts(record), mutable_parts(record)]) for record in records
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
