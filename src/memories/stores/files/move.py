"""How a namespace moves from its files to a larger store: copied, compared, marked, and its files
kept.

It moves only to a store that has no memories of it, so what it finds there later is what it
brought: nothing is mixed with what others wrote, and nothing that an earlier move left behind comes
back. Each step can be cut short. Until the marker is there the files count, and another attempt
takes back what the last one copied and begins anew; from then on the larger store counts, in every
process, and the next writer puts the files aside.
"""

import contextlib
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memories.core.batches import by_count
from memories.core.times import to_iso
from memories.core.urls import without_password
from memories.errors import ConfigError, MemoriesError, StoreDamaged, StoreError
from memories.settings import Config
from memories.stores.files.connection import Folder
from memories.stores.files.schema import file_name, namespace_of, stem
from memories.stores.protocol import Store
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

MARKED, BACK, KEPT = ".moved", ".moved-back", ".before-move"
_BEGUN, _FAILED = ".moving", ".failed"
_BESIDE = re.compile(r"memories(-\d+)?\.db")  # SQLite files in the same folder
_PLAUSIBLE = re.compile(r"sqlite:///.|(postgres|postgresql|chroma|qdrant)://.")
_MASKED = re.compile(
    r"[:/]\*\*\*@|[?&]([^=&#]*=)?\*\*\*(?=[&#]|$)"
)  # what `without_password` puts in place of a password
_BATCH = 500
_PAUSE_SECONDS = 60.0  # after an attempt that failed

_log = logging.getLogger(__name__)


class Marker(NamedTuple):
    """Marker of a moved namespace.

    Attributes:
        store: The URL of the store, without a password, or the name of a SQLite file in the same
            folder.
        originals: The names of the files that it had.
    """

    namespace: str
    store: str
    originals: tuple[str, ...]


class Mover:
    """Moves the namespaces of one folder, and knows which have moved."""

    def __init__(
        self, folder: Folder, space: Space | None, config: Config | None, open_store: OpenStore
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            folder: Where the files are.
            space: The space that vectors are searched in.
            config: When namespaces move, and to which store; without it none moves.
            open_store: Opens the store of a URL.

        Raises:
            ConfigError: The store is none, or one of files.
        """
        self._most = config.file_migrate_at if config else None
        self._target = config.file_migrate_to if config else None
        self._folder, self._space, self._config, self._open_store = (
            folder,
            space,
            config,
            open_store,
        )
        self._checked: set[str] = set()
        if self._target is not None:
            if self._target.startswith("files:"):
                raise ConfigError(
                    "file_migrate_to is a store of files itself; name a larger one, such as sqlite:///path"
                )
            if not _PLAUSIBLE.match(self._target):  # else its driver is loaded when it is needed
                open_store(self._target, None, config).close()

    # --- what has moved
    # --------------------------------------------------------------------------------------------

    def marker(self, namespace: str) -> Marker | None:
        """Return where a namespace has moved to; None if its files count.

        Raises:
            StoreDamaged: The marker can't be read.
        """
        marker = self._read_marker(f"{stem(namespace)}{MARKED}", namespace)
        if marker and namespace not in self._checked:
            self._checked.add(namespace)
            self._warn_of_new_lines(marker)
        return marker

    def _read_marker(self, name: str, namespace: str) -> Marker | None:
        stamp, data = self._folder.read(name)
        if stamp is None:
            return None
        try:
            fields = json.loads(data)
            return Marker(namespace, str(fields["store"]), tuple(map(str, fields["originals"])))
        except (ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                f"{self._folder.path / name}, which says where {namespace} was moved to, can't be read ({exc}); "
                "restore it from a backup"
            ) from exc

    def _warn_of_new_lines(self, marker: Marker) -> None:
        for name in (file_name(collection, marker.namespace) for collection in Collection):
            if self._folder.stamp(name) is not None and self._begun(marker.namespace) is None:
                _log.warning(
                    "%s is not read: %s was moved to %s; import its lines and put it aside",
                    self._folder.path / name,
                    marker.namespace,
                    marker.store,
                )

    def markers(self) -> list[Marker]:
        """Return all that have moved."""
        return [
            marker for marker in map(self.marker, _named(self._folder.names(), MARKED)) if marker
        ]

    def here(self, namespaces: Sequence[str]) -> list[str]:
        """Return those of some namespaces that have not moved."""
        return [namespace for namespace in namespaces if self.marker(namespace) is None]

    def unfinished(self) -> bool:
        """Return whether a move was begun and not finished."""
        return any(name.endswith(_BEGUN) for name in self._folder.names(self._folder.inner))

    def opened(self, marker: Marker) -> Store:
        """Return the store that a namespace has moved to.

        Raises:
            StoreDamaged: It was a file and is gone.
            StoreError: The settings no longer know its password.
        """
        if _BESIDE.fullmatch(marker.store) and not (self._folder.path / marker.store).exists():
            name = f"{stem(marker.namespace)}{MARKED}"
            raise StoreDamaged(
                f"{marker.namespace} was moved to {self._folder.path / marker.store}, which is gone; put it back, or, "
                f"to go back to what was moved, rename {name} to {name.removesuffix(MARKED)}{BACK} and take {KEPT} off "
                f"the names of {', '.join(marker.originals)}"
            )
        return self._open(marker.store, self._space)

    def _open(self, store: str, space: Space | None) -> Store:
        """Open what a marker names, with the password from the settings."""
        url = f"sqlite:///{self._folder.path / store}" if _BESIDE.fullmatch(store) else store
        if self._target is not None and without_password(self._target) == store:
            url = self._target
        elif _MASKED.search(store):
            raise StoreError(
                f"memories were moved to {store}; set FILE_MIGRATE_TO to it, with its password"
            )
        return self._open_store(url, space, self._config)

    def also_in(self, namespace: str, refs: Sequence[Ref]) -> list[str]:
        """Return where else records may still be: the files from before a move, and stores that
        were gone back from.
        """
        marker, names = self.marker(namespace), self._folder.names()
        log = file_name(Collection.LOG, namespace)  # which has nothing of what they say
        originals = set(marker.originals) - {log} if marker else set()
        places = [name for name in names if KEPT in name and name.partition(KEPT)[0] in originals]
        left = {name for name in names if _BESIDE.fullmatch(name)}
        backs = [name for name in names if name.startswith(f"{stem(namespace)}{BACK}")]
        left |= {
            back.store for back in (self._read_marker(name, namespace) for name in backs) if back
        }
        for store in sorted(left - {marker.store if marker else ""}):
            try:
                with contextlib.closing(self._open(store, None)) as there:
                    held = bool(there.read(refs))
            except MemoriesError:
                held = True  # nobody can tell
            if held:
                places.append(store)
        return [name if "://" in name else str(self._folder.path / name) for name in places]

    # --- moving, under the lock
    # ------------------------------------------------------------------------------------

    def move(self, namespace: str, here: Store, space: Space | None) -> None:
        """Move a namespace if it has become too large; a failure is only logged, since its records
        are safe here.

        Args:
            namespace: The namespace.
            here: The store of its files, in a transaction.
            space: The space of the vectors there, which need not be the one that is searched in.
        """
        store = without_password(self._target) if self._target else ""
        failed, where = self._folder.read(f"{stem(namespace)}{_FAILED}", inner=True)
        recently = failed is not None and time.time() - failed.changed_at / 1e9 < _PAUSE_SECONDS
        if self._most is None or self.marker(namespace) or (recently and where == store.encode()):
            return
        try:
            if _count(namespace, here, SEARCHED) > self._most:
                self._move(namespace, store, here, space or self._space)
        except MemoriesError as exc:
            _log.warning(
                "%s could not move to a larger store and stays in its files: %s", namespace, exc
            )
            self._folder.replace(f"{stem(namespace)}{_FAILED}", store.encode(), self._folder.inner)

    def _move(self, namespace: str, store: str, here: Store, space: Space | None) -> None:
        began = time.monotonic()
        stamps = {
            name: self._folder.stamp(name)
            for name in (file_name(each, namespace) for each in Collection)
        }
        records = list(_everything(namespace, here))
        if len(records) < _count(namespace, here):
            raise StoreDamaged("some of its records are damaged; memory doctor names them")
        self.remove_copies(namespace)
        store = store or self._free_file(namespace)
        with contextlib.closing(self._open(store, space)) as there:
            self._copy(namespace, store, records, here, there)
            digest = _digest(records)
            if _digest(_read_back(records, there)) != digest:
                raise StoreError(
                    f"what {store} gives back of {namespace} is not what was copied to it"
                )
            count = _count(namespace, there)
        if count != len(records):
            raise StoreError(
                f"{store} has {count} records of it, not {len(records)}: others write to it too"
            )
        if stamps != {name: self._folder.stamp(name) for name in stamps}:
            raise StoreError("one of its files was changed by another program")
        originals = [name for name, stamp in stamps.items() if stamp is not None]
        marker = {
            "namespace": namespace,
            "store": store,
            "moved_at": to_iso(datetime.now(UTC)),
            "records": len(records),
            "sha256": digest,
            "originals": originals,
        }
        data = f"{json.dumps(marker, ensure_ascii=False, indent=1)}\n".encode()
        self._folder.replace(f"{stem(namespace)}{MARKED}", data)
        self.finish()
        _log.warning(
            "%s has %d records and was moved to %s in %.1f s; the files are kept as %s",
            namespace,
            len(records),
            store,
            time.monotonic() - began,
            ", ".join(f"{name}{KEPT}" for name in originals),
        )

    def _free_file(self, namespace: str) -> str:
        """Return the SQLite file to move to: one that has nothing of the namespace, as a file gone
        back from has.
        """
        for number in range(1, 1_000):
            name = "memories.db" if number == 1 else f"memories-{number}.db"
            if not (self._folder.path / name).exists():
                return name
            with contextlib.closing(self._open(name, None)) as there:
                if not _count(namespace, there):
                    return name
        raise StoreError(
            f"{self._folder.path} is full of stores that were gone back from; remove them"
        )

    def _copy(
        self, namespace: str, store: str, records: Sequence[Record], here: Store, there: Store
    ) -> None:
        """Copy all records, having written down which copies an attempt that is cut short may leave
        there.

        Raises:
            StoreError: The store has records of the namespace already.
        """
        if _count(namespace, there):
            raise StoreError(
                f"{store} has memories of {namespace} already, of others or of an earlier move; to join them run: "
                "memory migrate; else remove them there, or set FILE_MIGRATE_TO to another store"
            )
        copies = [
            (record.ref.collection, record.ref.group, record.ref.position) for record in records
        ]
        data = json.dumps({"store": store, "copies": copies}).encode()
        self._folder.replace(f"{stem(namespace)}{_BEGUN}", data, self._folder.inner)
        for batch in by_count(records, _BATCH):
            vectors = here.vectors([record.ref for record in batch])
            there.append([record._replace(vectors=vectors.get(record.ref)) for record in batch])

    def _begun(self, namespace: str) -> tuple[str, list[Ref]] | None:
        """Return the store that a move which was not finished went to, and the records that it may
        have copied there.

        Raises:
            StoreDamaged: It can't be read.
        """
        name = f"{stem(namespace)}{_BEGUN}"
        stamp, data = self._folder.read(name, inner=True)
        if stamp is None:
            return None
        try:
            fields = json.loads(data)
            copies = [
                Ref(Collection(each), namespace, group, position)
                for each, group, position in fields["copies"]
            ]
            return str(fields["store"]), copies
        except (ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                f"{self._folder.inner / name}, which says where copies of {namespace} may be, can't be read ({exc}); "
                "remove those copies and then that file"
            ) from exc

    def remove_copies(self, namespace: str, among: Container[Ref] | None = None) -> None:
        """Remove what a move that was not finished has copied, or of that what is among some
        records.
        """
        begun = self._begun(namespace)
        if begun:
            store, copies = begun
            with contextlib.closing(self._open(store, None)) as there:
                there.remove([ref for ref in copies if among is None or ref in among])

    def finish(self) -> None:
        """Put aside the files of what has moved."""
        for namespace in _named(self._folder.names(self._folder.inner), _BEGUN):
            marker = self.marker(namespace)
            for name in marker.originals if marker else ():
                if self._folder.stamp(name) is not None:
                    kept = (
                        f"{name}{KEPT}{number}"
                        for number in ("", *(f".{count}" for count in range(2, 1_000)))
                    )
                    self._folder.rename(
                        name, next(free for free in kept if self._folder.stamp(free) is None)
                    )
            if marker:
                self._folder.discard(f"{stem(namespace)}{_BEGUN}", f"{stem(namespace)}{_FAILED}")


def _named(names: Sequence[str], ending: str) -> list[str]:
    """Return the namespaces that have a file of this ending."""
    namespaces = (
        namespace_of(f"{name.removesuffix(ending)}.jsonl", Collection.MEMORY)
        for name in names
        if name.endswith(ending)
    )
    return [namespace for namespace in namespaces if namespace is not None]


def _count(namespace: str, store: Store, among: Iterable[Collection] = Collection) -> int:
    return sum(store.count(Filter(collection, (namespace,), state="any")) for collection in among)


def _everything(namespace: str, store: Store) -> Iterator[Record]:
    for collection in Collection:
        after: tuple[str, int] | None = None
        while batch := store.scan(
            Filter(collection, (namespace,), state="any"), limit=_BATCH, after=after
        ):
            yield from batch
            after = batch[-1].ref.group, batch[-1].ref.position


def _read_back(records: Sequence[Record], there: Store) -> list[Record]:
    return [
        found
        for batch in by_count(records, _BATCH)
        for found in there.read([record.ref for record in batch])
    ]


def _digest(records: Sequence[Record]) -> str:
    """Return the hash of the contents of records, independent of their order."""
    lines: list[Any] = sorted(
        json.dumps([immutable_parts(record), mutable_parts(record)]) for record in records
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
