"""Reads and writes the records in the files of one folder.

Reads go through an up-to-date index; transactions add lines.
"""

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memories.errors import StoreBusy, StoreDamaged, StoreError
from memories.stores.damage import Damaged
from memories.stores.files.connection import Folder, Stamp
from memories.stores.files.index import FileState, Index
from memories.stores.files.log import (
    Damage,
    Event,
    change_event,
    create_event,
    drop_lines,
    file_name,
    fold,
    namespace_of,
    parse,
    part_of,
    removal_event,
    to_line,
)
from memories.stores.records import (
    Collection,
    Filter,
    Finding,
    Patch,
    Record,
    Ref,
    Space,
    by_namespace,
    mutable_parts,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)


class Work:
    """A running transaction: the states of the files in it, and the lines to add when it ends."""

    def __init__(self, index: Index) -> None:
        """Begin without any lines; only the current process may use the transaction."""
        self.index, self.pid = index, os.getpid()
        self.states: dict[str, FileState] = {}
        self.lines: list[tuple[str, str]] = []
        self.removed_ids: dict[
            str, list[str]
        ] = {}  # the events whose lines are dropped, keyed by file

    def add(self, name: str, event: Event) -> None:
        """Add a line to a file when the transaction ends."""
        self.lines.append((name, to_line(event)))
        self.states[name] = self.states[name]._replace(last=event.time)


class LocalFiles:
    """Reads and writes the records in a folder's files, until the folder moves to a larger store.

    This class has the methods of `Store` that need more than an up-to-date index. For the other
    methods, `current` yields the index.
    """

    def __init__(
        self,
        folder: Folder,
        space: Space | None,
        after_commit: Callable[[set[str]], None],
        damaged: Damaged,
    ) -> None:
        """Initialize; nothing is opened or written yet.

        Args:
            folder: The folder that contains the files.
            space: The space of the vectors to write and search.
            after_commit: Called with the namespaces that were written to, while the lock is still
                held; it may use `working`.
            damaged: Collects the parts that are left out because they can't be read.
        """
        self._damaged = damaged
        self.folder = folder
        self._space, self._after_commit = space, after_commit
        self._local = threading.local()
        self._warned: dict[str, Stamp | None] = {}
        self._opened: tuple[tuple[int, int] | None, Index] | None = None

    @property
    def work(self) -> Work | None:
        """The running transaction of this thread."""
        work: Work | None = getattr(self._local, "work", None)
        if work is not None and work.pid != os.getpid():
            raise StoreError(
                f"{self.folder.path} was being written to when this process was forked; use the "
                'start method "spawn"'
            )
        return work

    @property
    def index(self) -> Index:
        """The index of the folder; reopened if its file was removed or replaced."""
        work = self.work
        if work is not None:
            return work.index
        path = self.folder.inner / "index.db"
        try:
            status = path.lstat()
            identity = status.st_dev, status.st_ino
        except OSError:
            identity = None
        if self._opened is None or self._opened[0] not in (None, identity):
            index = Index(path, self._space)
            index.damaged = self._damaged
            self._opened = identity, index
        elif self._opened[0] is None:
            self._opened = identity, self._opened[1]
        return self._opened[1]

    def has_index(self) -> bool:
        """Return whether the folder contains an index."""
        return (self.folder.inner / "index.db").exists()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Work]:
        """Collect lines, and write them when the transaction ends.

        Inside another transaction, a failure undoes only the inner one.

        First the index is updated, and the files are marked in it as changed. Then the lines are
        written. Finally the index gets the new states of the files. Only the lines count as stored,
        so a crash in between does no harm: the next reader removes index entries that have no line.
        """
        outer = self.work
        if outer is not None:
            count, states = len(outer.lines), dict(outer.states)
            try:
                with outer.index.transaction():
                    yield outer
            except BaseException:
                outer.states = states
                del outer.lines[count:]
                raise
            return
        with self.folder.lock():
            self._recover()
            with self.working() as work:
                yield work
                for name in dict(work.lines):
                    if self.folder.stamp(name) != work.states[name].stamp:
                        raise StoreBusy(
                            f"{self.folder.path / name} was changed by another program; "
                            "nothing was written; try again"
                        )
                    work.index.save_state(name, None)
            self._write(work)
            if work.removed_ids:
                self._after_commit(set())
                return
            self._after_commit({part_of(name)[1] for name, _ in work.lines})
            with contextlib.suppress(StoreError):  # if this fails, the next removal erases the rest
                if self.index.is_erasing():
                    self.index.remove([])

    @contextlib.contextmanager
    def working(self) -> Iterator[Work]:
        """Yield a new `Work` inside a transaction of the index; the caller holds the lock."""
        work = Work(self.index)
        self._local.work = work
        try:
            with work.index.transaction():
                yield work
        finally:
            self._local.work = None

    def _write(self, work: Work) -> None:
        added: dict[str, bytes] = {}
        for name, line in work.lines:
            added[name] = added.get(name, b"") + f"{line}\n".encode()
        if work.removed_ids:
            self.folder.write_journal(
                {
                    name: {"drop": ids, "add": added[name].decode()}
                    for name, ids in work.removed_ids.items()
                }
            )
            self._recover()
        elif added:
            logs = [name for name in added if part_of(name)[0] is Collection.LOG]
            sizes = {name: work.states[name].size for name in added}
            self.folder.commit(added, sizes, first=logs)
            # The lines are stored. If the states can't be saved, the next read parses these files.
            with contextlib.suppress(StoreError):
                self._save_states(work, added)

    def _save_states(self, work: Work, added: Mapping[str, bytes]) -> None:
        for name, data in added.items():
            stamp, state = self.folder.stamp(name), work.states[name]
            if stamp is None:
                continue
            other_bytes = stamp.size - len(data) - state.size
            if other_bytes in (0, 1):  # allow for a newline; other programs wrote anything more
                work.index.save_state(name, FileState(stamp, stamp.size, state.last))

    def _recover(self) -> None:
        """Finish the commit in the journal, if any: add missing lines, and drop removed ones."""
        plan = self.folder.read_journal()
        for name, step in plan.items():
            data = self.folder.read(name)[1]
            parsed = parse(data, *part_of(name))
            if parsed.damage:
                raise self._damage_error(name, parsed.damage)
            lines = {b"", *data.split(b"\n")}
            new_lines = step["add"].encode().split(b"\n")
            added = b"".join([line + b"\n" for line in new_lines if line not in lines])
            if "drop" in step:
                remaining = drop_lines(data, set(step["drop"]), parsed.events)
                self.folder.replace(name, remaining + added)
            elif added:
                self.folder.append(name, added, parsed.size)
        if any("drop" in step for step in plan.values()):
            with self.working():
                for name in plan:
                    self.sync(*part_of(name))
            self.folder.discard()
        if self.folder.has_pending_commit():
            self.folder.write_journal({})

    def sync(self, collection: Collection, namespace: str) -> FileState:
        """Update the index from a file, in a transaction; return the file's state."""
        name, work = file_name(collection, namespace), self.work
        assert work is not None
        if name not in work.states:
            state = work.index.read_states([name]).get(name, FileState())
            if state.stamp != self.folder.stamp(name):
                state = self.read_file(name, work.index)
            work.states[name] = state
        return work.states[name]

    def read_file(self, name: str, index: Index) -> FileState:
        """Read a file into the index, in a transaction; return the file's new state."""
        collection, namespace = part_of(name)
        stamp, data = self.folder.read(name)
        parsed = parse(data, collection, namespace)
        state = FileState(stamp, parsed.size, damage=parsed.damage)
        if parsed.damage is None:
            folded = fold(parsed.events)
            if folded.removed:  # a merge has brought back removed records
                data = drop_lines(data, folded.removed, parsed.events)
                self.folder.replace(name, data)
                state = FileState(self.folder.stamp(name), len(data))
            index.replace_file(collection, namespace, folded)
            state = state._replace(last=folded.last)
        index.save_state(name, state)
        return state

    def sync_readable(self, collection: Collection, namespace: str) -> str:
        """Update the index from a file, in a transaction; return the file's name.

        Raises:
            StoreDamaged: The file can't be read.
        """
        name = file_name(collection, namespace)
        damage = self.sync(collection, namespace).damage
        if damage:
            raise self._damage_error(name, damage)
        return name

    @contextlib.contextmanager
    def current(
        self, collection: Collection, namespaces: Sequence[str]
    ) -> Iterator[tuple[Index, tuple[str, ...]]]:
        """Yield the up-to-date index, and the namespaces whose files can be read.

        All reads inside the context see one snapshot. A damaged file reads as empty, except in a
        transaction, which must not rely on missing records.

        Raises:
            StoreDamaged: In a transaction, one of the files is damaged.
            StoreError: The system doesn't allow reading one of the files.
        """
        if self.work is not None:
            for namespace in namespaces:
                self.sync_readable(collection, namespace)
            yield self.work.index, tuple(namespaces)
            return
        files = {file_name(collection, namespace): namespace for namespace in namespaces}
        index = self.index
        is_pending = self.folder.has_pending_commit()
        stamps = {name: self.folder.stamp(name) for name in files}
        with index.reading():
            states = dict.fromkeys(files, FileState()) | index.read_states(files)
            is_current = all(states[name].stamp == stamp for name, stamp in stamps.items())
            if is_current and not is_pending:
                yield index, self._readable(files, states)
                return
        with self.transaction() as work:
            states = {name: self.sync(collection, namespace) for name, namespace in files.items()}
            yield work.index, self._readable(files, states)

    def _readable(
        self, files: Mapping[str, str], states: Mapping[str, FileState]
    ) -> tuple[str, ...]:
        """Return the namespaces whose files can be read, and warn about the others."""
        readable: list[str] = []
        for name, namespace in files.items():
            stamp, damage = states[name].stamp, states[name].damage
            if damage is None:
                readable.append(namespace)
                continue
            self._damaged.note(self.damage_finding(name, damage))
            if self._warned.get(name) != stamp:
                self._warned[name] = stamp
                path = self.folder.path / name
                _log.warning(
                    "%s:%d can't be read: %s; the file was left unchanged, and counts as empty",
                    path,
                    *damage,
                )
        return tuple(readable)

    def _damage_error(self, name: str, damage: Damage) -> StoreDamaged:
        return StoreDamaged(
            f"{self.folder.path / name}:{damage.line} can't be read: {damage.reason}; the file was "
            "left unchanged; repair the line or move the file away"
        )

    def damage_finding(self, name: str, damage: Damage) -> Finding:
        """Return the finding about a file with an unreadable line."""
        place = f"{self.folder.path / name}:{damage.line}"
        return Finding(
            f"{place} can't be read: {damage.reason}; all of {name} reads as empty",
            "repair the line or move the file away; nothing was changed",
        )

    def refuse_damaged_files(self, collection: Collection, namespaces: Sequence[str]) -> None:
        """Check that the files of some namespaces can be read.

        Raises:
            StoreDamaged: A file can't be read.
        """
        with self.current(collection, namespaces) as (_, readable):
            pass
        for namespace in set(namespaces) - {*readable}:
            with self.transaction():
                self.sync_readable(collection, namespace)

    def list_namespaces(self, collection: Collection) -> list[str]:
        """Return the namespaces whose files exist, existed, or will exist after the transaction."""
        names = {*self.folder.list_names(), *self.index.list_files()}
        if self.work:
            names |= self.work.states.keys()
        namespaces = [namespace_of(name, collection) for name in names]
        return sorted([namespace for namespace in namespaces if namespace is not None])

    def namespaces(self, collection: Collection) -> list[str]:
        """Return the namespaces with records, or with a file that can't be read."""
        namespaces = self.list_namespaces(collection)
        if self.work is not None:
            damaged = {name for name in namespaces if self.sync(collection, name).damage}
            filled = {*self.index.namespaces(collection)}
            return [name for name in namespaces if name in damaged or name in filled]
        with self.current(collection, namespaces) as (index, readable):
            filled = {*index.namespaces(collection)}
            return [name for name in namespaces if name in filled or name not in readable]

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        with self.transaction() as work:
            names = {ref[:2]: self.sync_readable(*ref[:2]) for ref, *_ in records}
            work.index.append(records)
            ids: list[tuple[Ref, str]] = []
            for record in records:
                name = names[record.ref[:2]]
                event = create_event(work.states[name].last, record)
                work.add(name, event)
                ids.append((record.ref, event.id))
            work.index.save_event_ids(ids)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self.transaction() as work:
            refs = list(dict.fromkeys(patch.ref for patch in patches))
            names = {ref[:2]: self.sync_readable(*ref[:2]) for ref in refs}
            before = {record.ref: record for record in work.index.read(refs)}
            work.index.patch(patches)
            ids = work.index.read_event_ids(before)
            for record in work.index.read(refs):
                ref = record.ref
                if mutable_parts(before[ref]) != mutable_parts(record):
                    name = names[ref[:2]]
                    last = work.states[name].last
                    work.add(name, change_event(last, before[ref], record, ids[ref]))

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self.work is not None:
            raise StoreError("permanent removal rewrites files and can't be part of a transaction")
        if not self.folder.exists():
            return ()
        with self.transaction() as work:
            for (collection, namespace), file_refs in by_namespace(dict.fromkeys(refs)).items():
                name = self.sync_readable(collection, namespace)
                ids = work.index.read_event_ids(file_refs)
                if not ids:
                    continue
                where = Filter(collection, (namespace,), state="any")
                removed_groups: list[str] = []
                for group, count in Counter(ref.group for ref in ids).items():
                    if work.index.count(where._replace(group=group)) == count:
                        removed_groups.append(group)
                last = work.states[name].last
                event = removal_event(last, next(iter(ids)), ids.values(), removed_groups)
                work.add(name, event)
                work.removed_ids[name] = sorted(ids.values())
        return self.index.remove([])

    def touch(self, refs: Iterable[Ref], batch: str = "") -> bool:
        """See `Store.touch`; read counts are only in the index."""
        return not self.has_index() or self.index.touch(list(refs), batch)

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        with self.current(collection, self.list_namespaces(collection)) as (index, _):
            return index.unstaged(space, collection, limit=limit)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`; call this in a transaction."""
        for collection, namespace in {ref[:2] for ref in vectors}:
            self.sync_readable(collection, namespace)
        self.index.stage(space, vectors)

    def switch(self, space: Space) -> None:
        """See `Store.switch`; call this in a transaction."""
        for collection in Collection:
            for namespace in self.list_namespaces(collection):
                self.sync_readable(collection, namespace)
        self.index.switch(space)

    def use_space(self, space: Space) -> None:
        """See `Store.use_space`."""
        self._space = space
        if self._opened is not None:
            self._opened[1].use_space(space)

    def clear_index(self) -> None:
        """Remove all records from the index, in a transaction, after the files have moved."""
        work = self.work
        assert work is not None
        for name in work.index.list_files():
            work.index.replace_file(*part_of(name), fold([]))
            work.index.save_state(name, FileState())

    def close(self) -> None:
        """Close the index."""
        if self._opened:
            self._opened[1].close()
