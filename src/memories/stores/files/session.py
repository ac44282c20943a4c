"""How the files store reads and writes in one step: what was read of each file, and what a transaction will write."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from memories.errors import StoreDamaged, StoreError
from memories.stores.files.derived import Derived, Known, Named, Spaces
from memories.stores.files.folder import Folder, Stamp
from memories.stores.files.lines import file_name, namespace_of, stem
from memories.stores.files.pool import Damage, Entry, Pool, parse
from memories.stores.records import Collection, Ref

Item = TypeVar("Item")
Place = tuple[Collection, str]

_log = logging.getLogger(__name__)
_KEPT_FILES = 64  # so many are remembered as they were read


class _Loaded(NamedTuple):
    """A file as it was read.

    Attributes:
        whole: It ends with its last line; else a crash has left a piece of a line, or an editor no line's end.
    """

    stamp: Stamp | None
    data: bytes
    whole: bool
    pool: Pool


@dataclass(slots=True)
class Work:
    """What a transaction has read and is going to write, by the names of files."""

    pid: int = field(default_factory=os.getpid)
    places: dict[str, Place] = field(default_factory=dict)
    loaded: dict[str, _Loaded] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    vectors: dict[tuple[Named, str], Known] = field(default_factory=dict)
    reads: tuple[tuple[Ref, int], ...] = ()
    spaces: Spaces | None = None

    def copy(self) -> "Work":
        """Return what a failure goes back to; what was loaded stays."""
        return replace(self, pools=dict(self.pools), vectors=dict(self.vectors))

    def go_back(self, saved: "Work") -> None:
        """Undo what was done since."""
        self.pools, self.vectors, self.reads, self.spaces = saved.pools, saved.vectors, saved.reads, saved.spaces


class Session:
    """The files of one folder as this process has read them, and the transaction of each thread."""

    def __init__(self, folder: Path, after_commit: Callable[[set[str]], None] | None) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            folder: Where the files are.
            after_commit: Called with the namespaces that were written to, while the folder is still locked.
        """
        self.folder = Folder(folder)
        self.derived = Derived(self.folder)
        self._after_commit = after_commit
        self._local = threading.local()
        self._files: dict[str, _Loaded] = {}

    # --- transactions ----------------------------------------------------------------------------------------------

    @property
    def work(self) -> Work | None:
        """The transaction that this thread is inside."""
        work: Work | None = getattr(self._local, "work", None)
        if work is not None and work.pid != os.getpid():
            raise StoreError(f"{self.folder.path} was being written when this process was forked; start it by spawn")
        return work

    @contextlib.contextmanager
    def writing(self) -> Iterator[Work]:
        """Collect what is to be written and write it in the end; inside another one, undo a failure's own part."""
        outer = self.work
        if outer is not None:
            saved = outer.copy()
            try:
                yield outer
            except BaseException:
                outer.go_back(saved)
                raise
            return
        with self.folder.locked():
            work = self._local.work = Work()
            try:
                yield work
            finally:
                self._local.work = None
            namespaces = self._commit(work)
            if self._after_commit is not None:
                self._after_commit(namespaces)

    def _commit(self, work: Work) -> set[str]:
        """Write it all; vectors come first, for they are nothing without their records. Return what was written to."""
        changed = {name: pool for name, pool in work.pools.items() if pool.changed}
        for (space, name), added in work.vectors.items():
            if added:
                self.derived.save_vectors(name, space, added)
        if work.spaces is not None:
            self.derived.save_spaces(work.spaces)
        self.save(work, changed)
        self.count(work.reads)
        return {work.places[name][1] for name in changed}

    def save(self, work: Work, changed: Mapping[str, Pool]) -> None:
        """Write files: one line by adding it, more than that by replacing what changed in one step."""
        known = {name: work.loaded[name] for name in changed}
        name, pool = next(iter(changed.items()), ("", None))
        if pool is not None and len(changed) == 1 and known[name].whole and pool.added and len(pool.added) == 1:
            line = f"{pool.added[0].line}\n".encode()
            self.folder.append(name, line, known[name].stamp)
            written = {name: known[name].data + line}
        elif changed:
            written = {name: pool.data() for name, pool in changed.items()}
            self.folder.replace(written, {name: loaded.stamp for name, loaded in known.items()})
        else:
            return
        for name, data in written.items():
            stamp = self.folder.stamp(name)
            if stamp is not None and stamp.size == len(data):  # else somebody who does not lock was faster
                self._files[name] = _Loaded(stamp, data, True, changed[name].saved())

    def count(self, reads: Sequence[tuple[Ref, int]]) -> None:
        """Count how often records were read."""
        for place, some in by_file(reads, lambda read: read[0]).items():
            counts = [((ref.group, ref.position), count) for ref, count in some]
            self.derived.count_accesses(file_name(*place), counts)

    @property
    def spaces(self) -> Spaces:
        """The spaces of the vectors, with what this thread's transaction has changed."""
        work = self.work
        return self.derived.spaces() if work is None or work.spaces is None else work.spaces

    def vectors_of(self, entries: Sequence[Entry], space: Named | None) -> list[bytes | None]:
        """Return what is kept of the vectors of each, in this space."""
        found: list[bytes | None] = []
        collection, namespace = None, None
        added: Known = {}
        saved: Known = {}
        for entry in entries:
            ref = entry.record.ref
            if ref.namespace != namespace or ref.collection is not collection:
                collection, namespace = ref.collection, ref.namespace
                added, saved = self._known(file_name(collection, namespace), space)
            key = entry.vector_key
            found.append(added.get(key) or saved.get(key))
        return found

    def _known(self, name: str, space: Named | None) -> tuple[Known, Known]:
        """Return the vectors that this thread's transaction adds, and those that are kept."""
        work = self.work
        added = work.vectors.get((space, name), {}) if work is not None and space is not None else {}
        return added, self.derived.vectors(name, space)

    def forget(self) -> None:
        """Let go of what was read."""
        self._files.clear()

    # --- files -----------------------------------------------------------------------------------------------------

    def all_files(self) -> dict[str, Place]:
        """Return the files of records, each with what it holds, without those of namespaces that have moved."""
        names = self.folder.names()
        return {
            name: (collection, namespace)
            for name in names
            for collection in Collection
            if (namespace := namespace_of(name, collection)) is not None and f"{stem(namespace)}.moved" not in names
        }

    def pools(self, collection: Collection, namespaces: Iterable[str]) -> list[Pool]:
        """Return the records of these namespaces as they were at one moment.

        A file that is damaged reads as empty, but not in a transaction: what is decided there would be wrong for good.

        Raises:
            StoreDamaged: The file of one can't be read, in a transaction.
            StoreError: The system does not let us read one.
        """
        wanted = [(file_name(collection, namespace), namespace) for namespace in dict.fromkeys(namespaces)]
        work = self.work
        if work is not None:
            return [self.intact(work, collection, namespace) for _, namespace in wanted]
        for _ in self.folder.tries():
            state = self.folder.state()
            found = [self.file(name, collection, namespace).pool for name, namespace in wanted]
            if self.folder.state() == state:
                break
        return found

    def _working(self, work: Work, name: str, collection: Collection, namespace: str) -> Pool:
        if name not in work.loaded:
            work.loaded[name] = self.file(name, collection, namespace)
            work.places[name] = collection, namespace
        return work.pools.get(name, work.loaded[name].pool)

    def intact(self, work: Work, collection: Collection, namespace: str) -> Pool:
        """Return the records of a namespace as a transaction has them.

        Raises:
            StoreDamaged: Their file can't be read.
        """
        name = file_name(collection, namespace)
        return self._refused(name, self._working(work, name, collection, namespace))

    def refuse_damaged(self, collection: Collection, namespaces: Iterable[str]) -> None:
        """Raise if the file of one of these namespaces can't be read.

        Raises:
            StoreDamaged: It can't.
        """
        for namespace in namespaces:
            name = file_name(collection, namespace)
            self._refused(name, self.file(name, collection, namespace).pool)

    def namespaces(self, collection: Collection) -> list[str]:
        """Return the namespaces that have records, or a file that can't be read, in order."""
        work = self.work
        files = self.all_files() | (work.places if work is not None else {})
        found: list[str] = []
        for name, (among, namespace) in files.items():
            if among is not collection:
                continue
            if work is None:
                pool = self.file(name, among, namespace).pool
            else:
                pool = self._working(work, name, among, namespace)
            if pool.entries or pool.damage is not None:
                found.append(namespace)
        return sorted(found)

    def _refused(self, name: str, pool: Pool) -> Pool:
        if pool.damage is not None:
            where, reason = f"{self.folder.path / name}:{pool.damage.line}", pool.damage.reason
            raise StoreDamaged(f"{where} can't be read: {reason}; it was left as it is; mend the line or put it aside")
        return pool

    def file(self, name: str, collection: Collection, namespace: str) -> _Loaded:
        """Return a file as it is now; it is read only if it has changed.

        Raises:
            StoreError: The system does not let us read it.
        """
        last = self._files.get(name)
        stamp = self.folder.stamp(name)
        if last is not None and last.stamp == stamp:
            return last
        try:
            read, data = self.folder.read(name)
        except OSError as exc:
            file, reason = self.folder.path / name, exc.strerror or exc
            raise StoreError(
                f"cannot read {file}: {reason}; make it a plain file that you may read, or put it aside"
            ) from exc
        loaded = _loaded(read, data, collection, namespace, last)
        damage = loaded.pool.damage
        if damage is not None:
            file = self.folder.path / name
            _log.warning(
                "%s:%d can't be read: %s; it was left as it is, and reads as empty", file, damage.line, damage.reason
            )
        for old in list(self._files)[: max(0, len(self._files) - _KEPT_FILES)]:
            self._files.pop(old, None)
        self._files[name] = loaded
        return loaded


def _loaded(stamp: Stamp | None, data: bytes, collection: Collection, namespace: str, last: _Loaded | None) -> _Loaded:
    """Return what a file holds; if it only grew since it was read last, only what was added is read.

    What stands behind the last line's end counts if it is whole, as editors leave it; else a crash has cut it off, and
    it was never promised to anyone.
    """
    end = data.rfind(b"\n") + 1
    start, before = 0, None
    if last is not None and last.whole and last.pool.entries and not last.pool.merged and data.startswith(last.data):
        start, before = len(last.data), last.pool
    try:
        pool = parse(data[start:end].decode(), collection, namespace, before)
    except UnicodeDecodeError as exc:
        damage = Damage(data.count(b"\n", 0, start + exc.start) + 1, "it is not UTF-8")
        return _Loaded(stamp, data, False, Pool({}, damage=damage))
    if pool.damage is not None and start:
        number = pool.damage.line + data.count(b"\n", 0, start)
        return _Loaded(stamp, data, False, Pool({}, damage=Damage(number, pool.damage.reason)))
    if end < len(data) and pool.damage is None:
        with contextlib.suppress(UnicodeDecodeError):
            longer = parse(data[end:].decode(), collection, namespace, pool)
            pool = longer if longer.damage is None else pool
    return _Loaded(stamp, data, end == len(data), pool)


def by_file(items: Iterable[Item], ref_of: Callable[[Item], Ref]) -> dict[Place, list[Item]]:
    """Return items by the file that they concern, in order."""
    found: dict[Place, list[Item]] = {}
    for item in items:
        ref = ref_of(item)
        found.setdefault((ref.collection, ref.namespace), []).append(item)
    return found
