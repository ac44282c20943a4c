"""The files store: readable lines in a folder, until the folder moves to a larger store."""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories.errors import MemoriesError, StoreError
from memories.guard.validate import amount
from memories.settings import Config
from memories.stores.damage import Damaged, damaged_record, find_problem
from memories.stores.files.connection import Folder
from memories.stores.files.index import NO_LIMIT, FileState
from memories.stores.files.local import LocalFiles
from memories.stores.files.log import file_name, fold, parse
from memories.stores.files.move import Mover, OpenStore
from memories.stores.protocol import OnThisDisk, RefuseLost, Store, treat_as_new
from memories.stores.records import (
    Collection,
    Filter,
    Finding,
    Patch,
    Record,
    Ref,
    Space,
    StoreInfo,
    immutable_parts,
    mutable_parts,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_log = logging.getLogger(__name__)
FORMAT = 2


def _reading(method: str) -> Any:
    """Return a method that reads the store in use, leaving out namespaces with unreadable files."""

    def read(store: "FilesStore", where: Filter, *arguments: Any, **named: Any) -> Any:
        with store._current(where) as (current, readable):
            return getattr(current, method)(readable, *arguments, **named)

    return read


class FilesStore(Store):
    """Implements `Store` on a folder of files; see `log` for the format and `index` for searches.

    If a write makes a namespace too large, the records move to a larger store while the folder is
    still locked. From then on, this store has the guarantees of the larger one.

    Vectors and read counts are only in the index. If the index is deleted, or a line is edited by
    hand, vectors must be computed again; `info` reports the number of records without them.
    """

    def __init__(
        self,
        folder: Path,
        space: Space | None,
        config: Config | None = None,
        open_store: OpenStore | None = None,
        refuse_lost: RefuseLost = treat_as_new,
    ) -> None:
        """Initialize; nothing is opened or written yet.

        Args:
            folder: The folder that contains the files.
            space: The space of the vectors to write and search; None in keyword-only mode.
            config: Determines when the folder moves, and to which store; without it, the folder
                doesn't move.
            open_store: Opens the larger store.
            refuse_lost: Called before a missing folder is treated as new.

        Raises:
            ConfigError: The URL of the larger store is invalid.
        """
        self.damaged = Damaged()
        self._folder = Folder(folder)
        self._files = LocalFiles(self._folder, space, self._after_commit, self.damaged)
        self._mover = Mover(self._folder, self._files, space, config, open_store or _refuse)
        self._refuse_lost = refuse_lost
        self._opened: dict[str, Store] = {}
        self._opening = threading.Lock()

    def _larger_store(self) -> Store | None:
        """Return the store to which the folder has moved; None if the files are still in use."""
        marker = self._mover.marker()
        if marker is None:
            self._refuse_lost(lambda: not self._folder.exists())
            return None
        with self._opening:
            if marker.store not in self._opened:
                store = self._mover.open_target(marker)
                store.damaged = self.damaged
                self._opened[marker.store] = store
            return self._opened[marker.store]

    def _store(self) -> Store | LocalFiles:
        return self._larger_store() or self._files

    @contextlib.contextmanager
    def _current(self, where: Filter) -> Iterator[tuple[Store, Filter]]:
        """Yield the store to read, and the filter without namespaces whose files can't be read."""
        store = self._larger_store()
        if store is None:
            with self._files.current(where.collection, where.namespaces) as (index, readable):
                store = self._larger_store()
                if store is None:  # another process may have moved the folder
                    yield index, where._replace(namespaces=readable)
                    return
        yield store, where

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        store = self._larger_store()
        if store is None:
            with self._files.transaction():
                store = self._larger_store()
                if store is None:  # another process may have moved the folder
                    yield
                    return
        if self._mover.is_unfinished():
            with self._files.transaction():
                self._mover.finish()
        with store.transaction():
            yield

    def _after_commit(self, namespaces: set[str]) -> None:
        """Move the folder if a namespace has become too large. A failure loses no records."""
        if not namespaces:
            return
        try:
            with self._files.working():
                self._mover.move_if_too_large(sorted(namespaces))
        except MemoriesError as exc:
            _log.warning(
                "stored; moving to a larger store failed, and the next write tries again: %s", exc
            )

    def rehearse(self) -> None:
        """See `OnThisDisk.rehearse`."""
        store = self._larger_store()
        if isinstance(store, OnThisDisk):
            store.rehearse()
        elif store is None and self._folder.exists():
            self._folder.rehearse()
            self._files.index.rehearse()

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        if records:
            with self.transaction():
                self._store().append(records)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        if patches:
            with self.transaction():
                self._store().patch(patches)

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """See `Store.touch`."""
        return self._store().touch(refs, batch)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`.

        The result also lists the files from before the move, and the stores of moves that the user
        undid, if the records may still be there.
        """
        if refs:
            self._mover.remove_copies(refs)
        store = self._store()
        places = {*store.remove(refs)}
        if self._store() is not store:  # the folder has just moved
            places.update(self._store().remove(refs))
        if refs:
            places.update(self._mover.find_copies(refs))
        self.damaged.remove(set(refs).__contains__)
        return tuple(sorted(places))

    scan = _reading("scan")
    groups = _reading("groups")
    used = _reading("used")
    count = _reading("count")
    labels = _reading("labels")
    days = _reading("days")
    candidates = _reading("candidates")
    matches = _reading("matches")
    refs = _reading("refs")

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        with self._current(Filter(collection, tuple(namespaces))) as (store, readable):
            return store.values(collection, readable.namespaces, key)

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        records: list[Record] = []
        for where in _by_collection(refs):
            with self._current(where) as (store, readable):
                records += store.read([ref for ref in refs if _is_in(ref, readable)])
        return records

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        vectors: dict[Ref, NDArray[np.float32]] = {}
        for where in _by_collection(refs):
            with self._current(where) as (store, readable):
                vectors |= store.vectors([ref for ref in refs if _is_in(ref, readable)])
        return vectors

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        if self._larger_store() is None:
            self._files.refuse_damaged_files(where.collection, where.namespaces)
        with self._current(where) as (store, readable):
            info = store.info(readable)
        size: int | None = self._folder.size_bytes()
        marker = self._mover.marker()
        if marker is not None and not marker.is_beside:
            size = None if info.size_bytes is None else self._folder.size_bytes() + info.size_bytes
        return info._replace(
            url=f"files:///{self._folder.path}",
            schema_version=FORMAT if self._folder.exists() else None,
            size_bytes=size,
        )

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        store = self._store()
        namespaces = store.namespaces(collection)
        if self._store() is not store:  # the folder has just moved
            namespaces = self._store().namespaces(collection)
        return namespaces

    def check(self, *, deep: bool) -> list[Finding]:
        """See `Store.check`; only a person can repair unreadable lines."""
        store = self._larger_store()
        return check_files(self._files, deep=deep) if store is None else [*store.check(deep=deep)]

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        store = self._larger_store()
        return repair_files(self._files) if store is None else store.repair()

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        return self._store().unstaged(space, collection, limit=limit)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        with self.transaction():
            self._store().stage(space, vectors)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        with self.transaction():
            self._store().switch(space)

    def use_space(self, space: Space) -> None:
        """See `Store.use_space`."""
        self._files.use_space(space)
        self._mover.use_space(space)
        for store in self._opened.values():
            store.use_space(space)

    def close(self) -> None:
        """See `Store.close`."""
        self._files.close()
        for store in self._opened.values():
            store.close()
        self._opened.clear()


def _by_collection(refs: Sequence[Ref]) -> Iterator[Filter]:
    """Yield, for each collection of these refs, a filter with their namespaces."""
    for collection in Collection:
        namespaces = {ref.namespace for ref in refs if ref.collection == collection}
        if namespaces:
            yield Filter(collection, tuple(namespaces))


def _is_in(ref: Ref, where: Filter) -> bool:
    return ref.collection == where.collection and ref.namespace in where.namespaces


def _refuse(url: str, _space: Space | None, _config: Config | None) -> Store:
    raise StoreError(f"{url} can't be opened from here; open the folder by its URL, files:///…")


# --- checks


def check_files(files: LocalFiles, *, deep: bool) -> list[Finding]:
    """Return damaged records, unreadable lines and errors in the index.

    A deep check also compares the index with the files.
    """
    findings: list[Finding] = []
    for collection in Collection:
        for namespace in files.list_namespaces(collection):
            findings += _check_file(files, collection, namespace, deep=deep)
    if files.has_index():
        reported = {finding.ref for finding in findings} - {None}
        remedy = f"remove {files.folder.inner} (no memory is lost) and run: memory reembed"
        for finding in files.index.check(deep=deep):
            if finding.ref not in reported:
                findings.append(finding._replace(remedy=remedy, ref=None))
    return findings


def _check_file(
    files: LocalFiles, collection: Collection, namespace: str, *, deep: bool
) -> Iterator[Finding]:
    name = file_name(collection, namespace)
    parsed = parse(files.folder.read(name)[1], collection, namespace)
    sound: list[Record] = []
    for record in fold(parsed.events).records.values():
        problem = find_problem(record)
        if problem:
            yield damaged_record(record.ref, f"it {problem}")
        else:
            sound.append(record)
    if parsed.damage:
        yield files.damage_finding(name, parsed.damage)
    elif deep:
        state = files.index.read_states([name]).get(name, FileState())
        if state.stamp == files.folder.stamp(name):
            where = Filter(collection, (namespace,), state="any")
            expected = _contents(sound)
            indexed = _contents(files.index.scan(where, limit=NO_LIMIT))
            refs = expected.keys() | indexed.keys()
            count = sum(expected.get(ref) != indexed.get(ref) for ref in refs)
            if count:
                places = amount(count, "place", "places")
                problem = f"the index of {name} differs from its lines in {places}"
                yield Finding(problem, "run: memory doctor --fix", derived=True)


def _contents(records: Iterable[Record]) -> dict[Ref, Any]:
    return {record.ref: (immutable_parts(record), mutable_parts(record)) for record in records}


def repair_files(files: LocalFiles) -> list[str]:
    """Read all files again, and rebuild derived parts of the index; return the rebuilt parts."""
    if not any(finding.derived for finding in check_files(files, deep=True)):
        return []
    repaired = files.index.repair()
    with files.transaction() as work:
        for collection in Collection:
            for namespace in files.list_namespaces(collection):
                files.read_file(file_name(collection, namespace), work.index)
    return [*repaired, "the index of the files"]
