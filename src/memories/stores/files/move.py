"""How a namespace moves from its files to a larger store: copied, compared, marked, and its files kept.

Each step can be cut short. Until the marker is there the files count, and another attempt completes the copy; from then
on the larger store counts, in every process, and the next writer puts the files aside.
"""

import contextlib
import hashlib
import json
import logging
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.batches import by_count
from memories.config import Config, without_password
from memories.errors import ConfigError, MemoriesError, StoreDamaged, StoreError
from memories.stores.copies import change, ends_first, immutable, mutable
from memories.stores.files.derived import Named, named
from memories.stores.files.lines import file_name, namespace_of, stem
from memories.stores.files.store import FilesStore
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Patch, Record, Ref, Space
from memories.times import to_iso

if TYPE_CHECKING:
    from memories.stores.files.folder import Stamp

MARKED = ".moved"
KEPT = ".before-move"
_BEGUN = ".moving"
_FAILED = ".failed"
_BESIDE = "memories.db"  # what the marker says of a SQLite file in the same folder
_PLAUSIBLE = re.compile(r"sqlite:///.|(postgres|postgresql|chroma|qdrant)://.")
_MASKED = re.compile(r":\*\*\*@|[?&][^=&#]*=\*\*\*(?=[&#]|$)")  # what `without_password` puts in place of a password
_BATCH = 500
_PAUSE_SECONDS = 60.0  # after an attempt that failed

_log = logging.getLogger(__name__)


class Marker(NamedTuple):
    """What says that a namespace has moved.

    Attributes:
        store: The URL of the store, without a password, or the name of a SQLite file in the same folder.
        originals: The names of the files that it had.
    """

    namespace: str
    store: str
    originals: tuple[str, ...]


class _Begun(NamedTuple):
    """A move that was begun: in which store, and which records were not there before."""

    store: str
    copies: frozenset[Ref]


class Mover:
    """Moves the namespaces of one folder, and knows which have moved."""

    def __init__(self, folder: Path, space: Space | None, config: Config | None) -> None:
        """Prepare; nothing is opened yet.

        Args:
            folder: Where the files are.
            space: The space that vectors are searched in.
            config: When namespaces move, and to which store; without it none moves.

        Raises:
            ConfigError: The store is none, or one of files.
        """
        self._most = config.file_migrate_at if config else None
        self._target = config.file_migrate_to if config else None
        self._space, self._config, self._folder_path = space, config, folder
        self.here = FilesStore(folder, space, after_commit=self._after_commit)
        self._folder = self.here.folder
        self._markers: dict[str, tuple[Stamp, Marker]] = {}
        self._warned: set[str] = set()
        if self._target is not None:
            if self._target.startswith("files:"):
                raise ConfigError(
                    "file_migrate_to is a store of files itself; name a larger one, such as sqlite:///path"
                )
            if not _PLAUSIBLE.match(self._target):  # else its driver is loaded when it is needed
                self._open(self._target, None).close()

    # --- what has moved --------------------------------------------------------------------------------------------

    def marker(self, namespace: str) -> Marker | None:
        """Return where a namespace has moved to; None if its files count.

        Raises:
            StoreDamaged: The marker can't be read.
        """
        name = f"{stem(namespace)}{MARKED}"
        stamp = self._folder.stamp(name)
        if stamp is None:
            return None
        known = self._markers.get(namespace)
        if known is None or known[0] != stamp:
            known = self._markers[namespace] = stamp, self._read_marker(name, namespace)
            self._warn_of_new_lines(known[1])
        return known[1]

    def _read_marker(self, name: str, namespace: str) -> Marker:
        try:
            found = json.loads(self._folder.read(name)[1])
            return Marker(namespace, str(found["store"]), tuple(map(str, found["originals"])))
        except (OSError, ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                f"{self._folder_path / name}, which says where {namespace} was moved to, can't be read ({exc}); "
                "restore it from a backup"
            ) from exc

    def _warn_of_new_lines(self, marker: Marker) -> None:
        for collection in Collection:
            name = file_name(collection, marker.namespace)
            new = (
                name not in self._warned and self._folder.stamp(name) is not None and not self._begun(marker.namespace)
            )
            if new:
                self._warned.add(name)
                _log.warning(
                    "%s is not read: %s was moved to %s; import its lines and put it aside",
                    self._folder_path / name,
                    marker.namespace,
                    marker.store,
                )

    def markers(self) -> list[Marker]:
        """Return all that have moved."""
        namespaces = (
            namespace_of(f"{name.removesuffix(MARKED)}.jsonl", Collection.MEMORY)
            for name in self._folder.names()
            if name.endswith(MARKED)
        )
        found = (self.marker(namespace) for namespace in namespaces if namespace is not None)
        return [marker for marker in found if marker is not None]

    def originals(self, marker: Marker) -> list[str]:
        """Return the files that are kept of a namespace."""
        names = [name for name in self._folder.names() if name.partition(KEPT)[0] in marker.originals and KEPT in name]
        return [str(self._folder_path / name) for name in names]

    def opened(self, marker: Marker) -> Store:
        """Return the store that a namespace has moved to.

        Raises:
            StoreDamaged: It was a file and is gone.
            StoreError: The settings no longer know its password.
        """
        url = self._url(marker.store)
        kind, _, path = url.partition("://")
        if kind == "sqlite" and not Path(path[1:]).expanduser().exists():
            raise StoreDamaged(
                f"{marker.namespace} was moved to {path[1:]}, which is gone; put it back, or, to go back to what was "
                f"moved, remove {self._folder_path / stem(marker.namespace)}{MARKED} and take {KEPT} off the names of "
                f"{', '.join(marker.originals)}"
            )
        return self._open(url, self._space)

    def _url(self, store: str) -> str:
        """Return the URL that a marker means, with the password from the settings."""
        if "://" not in store:
            return f"sqlite:///{self._folder_path / store}"
        if self._target is not None and without_password(self._target) == without_password(store):
            return self._target
        if _MASKED.search(store):
            raise StoreError(f"memories were moved to {store}; set FILE_MIGRATE_TO to it, with its password")
        return store

    def _open(self, url: str, space: Space | None) -> Store:
        from memories.stores import open_store

        return open_store(url, space, self._config)

    # --- moving, under the lock ------------------------------------------------------------------------------------

    def _after_commit(self, namespaces: set[str]) -> None:
        """Move what has become too large. What was written is safe whatever becomes of it: failures are only told."""
        try:
            self._finish()
        except MemoriesError as exc:
            _log.warning("files of what has moved could not be put aside: %s", exc)
        for namespace in sorted(namespaces):
            store = without_password(self._target) if self._target else _BESIDE
            try:
                if self._is_due(namespace, store):
                    self._move(namespace, store)
            except MemoriesError as exc:
                _log.warning("%s could not move to a larger store and stays in its files: %s", namespace, exc)
                self._folder.put(f"{stem(namespace)}{_FAILED}", store.encode())

    def _is_due(self, namespace: str, store: str) -> bool:
        if self._most is None or _count(namespace, self.here) <= self._most:
            return False
        failed, where = self._folder.read_inner(f"{stem(namespace)}{_FAILED}")
        paused = failed is not None and time.time() - failed.changed_at / 1e9 < _PAUSE_SECONDS
        return not (paused and where == store.encode()) and self.marker(namespace) is None

    def _move(self, namespace: str, store: str) -> None:
        began = time.monotonic()
        stamps = {name: self._folder.stamp(name) for name in (file_name(each, namespace) for each in Collection)}
        records = self.here.whole(namespace)
        self._take_back(namespace, store, records)
        with contextlib.closing(self._open(self._url(store), self._moved_space())) as there:
            self._copy(namespace, store, records, there)
            digest = _digest(records)
            if _digest(_read_back(records, there)) != digest:
                raise StoreError(f"what {store} gives back of {namespace} is not what was copied to it")
        originals = [name for name, stamp in stamps.items() if stamp is not None]
        marker = {
            "namespace": namespace,
            "store": store,
            "moved_at": to_iso(datetime.now(UTC)),
            "records": len(records),
            "sha256": digest,
            "originals": originals,
        }
        name = f"{stem(namespace)}{MARKED}"
        data = f"{json.dumps(marker, ensure_ascii=False, indent=1)}\n".encode()
        self._folder.replace({name: data}, {name: None, **stamps})  # not if an editor has written to them meanwhile
        self._finish()
        _log.warning(
            "%s has %d records and was moved to %s in %.1f s; the files are kept as %s",
            namespace,
            len(records),
            store,
            time.monotonic() - began,
            ", ".join(f"{name}{KEPT}" for name in originals),
        )

    def _moved_space(self) -> Space | None:
        """Return the space of the vectors that there are, which need not be the one that is searched in."""
        stored = self.here.stored_space()
        if stored is None or (self._space is not None and named(self._space) == stored):
            return self._space
        return _space_named(stored)

    def _begin(self, namespace: str, begun: _Begun) -> None:
        """Remember which copies may be in a store, so that what is gone meanwhile goes there too."""
        copies = sorted((ref.collection, ref.group, ref.position) for ref in begun.copies)
        data = json.dumps({"store": begun.store, "copies": copies}).encode()
        self._folder.put(f"{stem(namespace)}{_BEGUN}", data)

    def _begun(self, namespace: str) -> _Begun | None:
        """Return what is known of a move that was not finished.

        Raises:
            StoreDamaged: It can't be read.
        """
        name = f"{stem(namespace)}{_BEGUN}"
        stamp, data = self._folder.read_inner(name)
        if stamp is None:
            return None
        try:
            found = json.loads(data)
            copies = (Ref(Collection(each), namespace, group, position) for each, group, position in found["copies"])
            return _Begun(str(found["store"]), frozenset(copies))
        except (ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                f"{self._folder.inner / name}, which says where copies of {namespace} may be, can't be read ({exc}); "
                "remove those copies and then that file"
            ) from exc

    def open_begun(self, namespace: str) -> Store | None:
        """Return the store that copies of a namespace may be in though its files still count."""
        begun = self._begun(namespace)
        return None if begun is None else self._open(self._url(begun.store), self._space)

    def _take_back(self, namespace: str, store: str, records: Sequence[Record]) -> None:
        """Remove copies that a move cut short has left and that no longer belong where they are."""
        begun = self._begun(namespace)
        if begun is None:
            return
        there = {record.ref for record in records} if begun.store == store else set()
        gone = sorted(begun.copies - there)
        if gone:
            with contextlib.closing(self._open(self._url(begun.store), self._space)) as copies:
                copies.remove(gone)

    def _copy(self, namespace: str, store: str, records: Sequence[Record], there: Store) -> None:
        """Bring a store to what the files hold, whatever an attempt that was cut short has left there.

        Raises:
            StoreError: It has other records at these addresses, or got some of somebody else meanwhile.
        """
        before = _count(namespace, there)
        missing: list[Record] = []
        patches: list[Patch] = []
        for batch in by_count(records, _BATCH):
            known = {record.ref: record for record in there.read([record.ref for record in batch])}
            missing += [record for record in batch if record.ref not in known]
            changes = [_difference(record, known[record.ref]) for record in batch if record.ref in known]
            patches += [patch for patch in changes if patch is not None]
        for some in ends_first(patches):
            there.patch(some)
        begun = self._begun(namespace)
        copies = begun.copies & {record.ref for record in records} if begun and begun.store == store else frozenset()
        self._begin(namespace, _Begun(store, copies | {record.ref for record in missing}))
        for batch in by_count(missing, _BATCH):
            vectors = self.here.vectors([record.ref for record in batch])
            there.append([_with_vectors(record, vectors.get(record.ref)) for record in batch])
        after = _count(namespace, there)
        if after != before + len(missing):
            raise StoreError(f"{store} has {after} records of it, not {before + len(missing)}: others write to it too")

    def _finish(self) -> None:
        """Put aside the files of what has moved."""
        for begun in self._folder.inner_names():
            if not begun.endswith(_BEGUN):
                continue
            namespace = namespace_of(f"{begun.removesuffix(_BEGUN)}.jsonl", Collection.MEMORY)
            marker = None if namespace is None else self.marker(namespace)
            if marker is None:
                continue
            for name in marker.originals:
                if self._folder.stamp(name) is not None:
                    self._folder.rename(name, self._free_name(f"{name}{KEPT}"))
                self.here.derived.drop(name)
            self._folder.discard([begun, f"{begun.removesuffix(_BEGUN)}{_FAILED}"])

    def _free_name(self, name: str) -> str:
        numbered = (f"{name}.{number}" for number in range(2, 1_000))
        return next(free for free in (name, *numbered) if self._folder.stamp(free) is None)


def _count(namespace: str, store: Store) -> int:
    return sum(store.count(Filter(collection, (namespace,), state="any")) for collection in Collection)


def _read_back(records: Sequence[Record], there: Store) -> list[Record]:
    return [found for batch in by_count(records, _BATCH) for found in there.read([record.ref for record in batch])]


def _with_vectors(record: Record, vectors: Any) -> Record:
    return record if vectors is None else record._replace(vectors=vectors)


def _difference(record: Record, there: Record) -> Patch | None:
    """Return the change that makes a copy what the record is; None if it is that already.

    Raises:
        StoreError: It is no copy, but another record.
    """
    if immutable(record) != immutable(there):
        ref = record.ref
        raise StoreError(
            f"there is another {ref.collection} {ref.group} {ref.position} of {ref.namespace} there already"
        )
    return change(record, there)


def _digest(records: Sequence[Record]) -> str:
    """Return the hash of what records say, in whatever order they come; each counts once."""
    lines = sorted(json.dumps([immutable(record), mutable(record)]) for record in records)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _space_named(found: Named) -> Space:
    """Return a space that is only written in: what concerns searches is not known."""
    return Space(found.model, found.dimension, 0.0, 0.0, 0.0, 0.0, (0.0, 0.0))
