"""Records in the files of one folder: reads through an up-to-date index, and transactions that add
lines.
"""

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memories.errors import StoreBusy, StoreDamaged, StoreError
from memories.stores.damage import Damaged, damaged_record, find_problem
from memories.stores.files.connection import FORMER, Folder, Stamp
from memories.stores.files.index import (
    ALL,
    FileState,
    Index,
    former_accesses,
    former_space,
    former_vectors,
)
from memories.stores.files.log import Damage, changed, created, fold, parse, removal, without
from memories.stores.files.schema import Event, file_name, namespace_of, to_line
from memories.stores.records import (
    SEARCHED,
    Collection,
    Filter,
    Finding,
    Patch,
    Record,
    Ref,
    Space,
    immutable_parts,
    mutable_parts,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)


class Work:
    """A running transaction: states of files, lines to add, and transactions of larger stores."""

    def __init__(self, index: Index) -> None:
        """Begin a transaction of this process."""
        self.index, self.pid = index, os.getpid()
        self.states: dict[str, FileState] = {}
        self.lines: list[tuple[str, str]] = []
        self.dropped: dict[str, list[str]] = {}
        self.levels: list[tuple[contextlib.ExitStack, set[int]]] = []

    def add(self, name: str, event: Event) -> None:
        """Add a line to a file when the transaction ends."""
        self.lines.append((name, to_line(event)))
        self.states[name] = self.states[name]._replace(last=event.time)


class LocalFiles:
    """The records of one folder, of all namespaces that have not moved."""

    def __init__(
        self,
        folder: Folder,
        space: Space | None,
        after_commit: Callable[[set[str]], None],
        damaged: Damaged,
    ) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            folder: Where the files are.
            space: The space of the vectors that will be written and searched.
            after_commit: Called under the lock with the namespaces that were written to; it may use
                `working`.
            damaged: Takes what is left out because it can't be read.
        """
        self._damaged = damaged
        self.folder = folder
        self._space, self._after_commit = space, after_commit
        self._local = threading.local()
        self._warned: dict[str, Stamp | None] = {}
        self._opened: tuple[tuple[int, int] | None, Index] | None = None

    # --- transactions
    # ----------------------------------------------------------------------------------------------

    @property
    def work(self) -> Work | None:
        """The transaction that this thread is inside."""
        work: Work | None = getattr(self._local, "work", None)
        if work is not None and work.pid != os.getpid():
            raise StoreError(
                f"{self.folder.path} was being written when this process was forked; start it by spawn"
            )
        return work

    @property
    def index(self) -> Index:
        """The index; another one if somebody has removed it meanwhile."""
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
            self._opened = identity, Index(path, self._space)
            self._opened[1].damaged = self._damaged
        elif self._opened[0] is None:
            self._opened = identity, self._opened[1]
        return self._opened[1]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Work]:
        """Collect lines and add them in the end; inside another one, undo a failure's own part.

        The index comes first, marked as uncertain; then the lines, which count; then it is marked
        as certain. So a crash in between loses nothing: what the lines don't have is taken out of
        the index again.
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
        with self.folder.locked():
            self._recover()
            self._adopt()
            with self.working() as work:
                yield work
                for name in dict(work.lines):
                    if self.folder.stamp(name) != work.states[name].stamp:
                        raise StoreBusy(
                            f"{self.folder.path / name} was changed by another program; nothing was written; try again"
                        )
                    work.index.save_state(name, None)
            self._write(work)
            self._after_commit(
                set() if work.dropped else {_place(name)[1] for name, _ in work.lines}
            )
            if not work.dropped:
                with contextlib.suppress(StoreError):  # the next removal erases it
                    if self.index.erasing():
                        self.index.remove([])

    @contextlib.contextmanager
    def working(self) -> Iterator[Work]:
        """Begin a transaction of the index, under the lock."""
        work = Work(self.index)
        self._local.work = work
        try:
            with work.index.transaction():
                yield work
        finally:
            self._local.work = None

    def _write(self, work: Work) -> None:
        """Add the lines to their files, and take out what was dropped."""
        added: dict[str, bytes] = {}
        for name, line in work.lines:
            added[name] = added.get(name, b"") + f"{line}\n".encode()
        if work.dropped:
            self.folder.promise(
                {
                    name: {"drop": ids, "add": added[name].decode()}
                    for name, ids in work.dropped.items()
                }
            )
            self._recover()
        elif added:
            logs = [name for name in added if _place(name)[0] is Collection.LOG]
            self.folder.commit(added, {name: work.states[name].whole for name in added}, ahead=logs)
            with contextlib.suppress(
                StoreError
            ):  # the lines are stored; the next read reads unknown files again
                for name, data in added.items():
                    stamp, state = self.folder.stamp(name), work.states[name]
                    if stamp and stamp.size - len(data) - state.whole in (
                        0,
                        1,
                    ):  # else others were faster
                        work.index.save_state(name, FileState(stamp, stamp.size, state.last))

    def _recover(self) -> None:
        """Finish an interrupted commit from the journal: add missing lines, remove dropped ones."""
        plan = self.folder.promised()
        for name, todo in plan.items():
            data = self.folder.read(name)[1]
            parsed = parse(data, *_place(name))
            if parsed.damage:
                raise self._damage_error(name, parsed.damage)
            there = set(data.split(b"\n"))
            missing = [
                line for line in todo["add"].encode().split(b"\n") if line and line not in there
            ]
            added = b"".join(line + b"\n" for line in missing)
            if "drop" in todo:
                self.folder.replace(name, without(data, set(todo["drop"]), parsed.events) + added)
            elif added:
                self.folder.append(name, added, parsed.whole)
        if any("drop" in todo for todo in plan.values()):
            with self.working():
                for name in plan:
                    self.sync(*_place(name))
            self.folder.discard()
        if self.folder.pending():
            self.folder.promise({})

    def _adopt(self) -> None:
        """Move the vectors and read counts of the store's first format into the index."""
        if not self.folder.is_former():
            return
        space = former_space(self.folder)
        with self.working() as work:
            reads: list[Ref] = []
            for collection in SEARCHED:
                for namespace in self.files(collection):
                    if self.sync(collection, namespace).damage:
                        continue
                    name = file_name(collection, namespace)
                    records = work.index.scan(
                        Filter(collection, (namespace,), state="any"), limit=ALL
                    )
                    if space is not None and work.index.stored_space() in (None, space):
                        work.index.stage(space, former_vectors(self.folder, name, space, records))
                    counts = former_accesses(self.folder, name)
                    reads += [
                        ref for ref, *_ in records for _ in range(counts[ref.group, ref.position])
                    ]
            work.index.touch(reads, "former")
        self.folder.discard(FORMER)

    # --- reading
    # ---------------------------------------------------------------------------------------------------

    def sync(self, collection: Collection, namespace: str) -> FileState:
        """Bring the index up to date with a file, in a transaction; return the state of the
        file.
        """
        name, work = file_name(collection, namespace), self.work
        assert work is not None
        if name not in work.states:
            state = work.index.read_states([name]).get(name, FileState())
            if state.stamp != self.folder.stamp(name):
                state = self._read(name, work.index)
            work.states[name] = state
        return work.states[name]

    def _read(self, name: str, index: Index) -> FileState:
        place = _place(name)
        stamp, data = self.folder.read(name)
        parsed = parse(data, *place)
        state = FileState(stamp, parsed.whole, damage=parsed.damage)
        if parsed.damage is None:
            folded = fold(parsed.events)
            if folded.dead:  # a merge has brought back what was removed for good
                data = without(data, folded.dead, parsed.events)
                self.folder.replace(name, data)
                state = FileState(self.folder.stamp(name), len(data))
            index.replace_file(*place, folded)
            state = state._replace(last=folded.last)
        index.save_state(name, state)
        return state

    def intact(self, collection: Collection, namespace: str) -> str:
        """Bring the index up to date with a file, in a transaction; return its name.

        Raises:
            StoreDamaged: It can't be read.
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
        """Read one state of the files inside; yield the index and the namespaces whose files can be
        read.

        A damaged file reads as empty, except in a transaction, whose decisions would be wrong for
        good.

        Raises:
            StoreDamaged: The file of one can't be read, in a transaction.
            StoreError: The system does not let us read one.
        """
        if self.work is not None:
            for namespace in namespaces:
                self.intact(collection, namespace)
            yield self.work.index, tuple(namespaces)
            return
        files = {file_name(collection, namespace): namespace for namespace in namespaces}
        index, pending = self.index, self.folder.pending() or self.folder.is_former()
        stamps = {name: self.folder.stamp(name) for name in files}
        with index.reading():
            states = {name: FileState() for name in files} | index.read_states(files)
            if not pending and all(states[name].stamp == stamp for name, stamp in stamps.items()):
                yield index, self._readable(files, states)
                return
        with self.transaction() as work:
            states = {name: self.sync(collection, namespace) for name, namespace in files.items()}
            yield work.index, self._readable(files, states)

    def _readable(
        self, files: Mapping[str, str], states: Mapping[str, FileState]
    ) -> tuple[str, ...]:
        """Return the namespaces whose files can be read, and warn of the others."""
        readable: list[str] = []
        for name, namespace in files.items():
            stamp, damage = states[name].stamp, states[name].damage
            if damage is None:
                readable.append(namespace)
                continue
            self._damaged.note(self._finding(name, damage))
            if self._warned.get(name) != stamp:
                self._warned[name] = stamp
                path = self.folder.path / name
                _log.warning(
                    "%s:%d can't be read: %s; it was left as it is, and reads as empty",
                    path,
                    *damage,
                )
        return tuple(readable)

    def _damage_error(self, name: str, damage: Damage) -> StoreDamaged:
        return StoreDamaged(
            f"{self.folder.path / name}:{damage.line} can't be read: {damage.reason}; "
            "it was left as it is; mend the line or put it aside"
        )

    def _finding(self, name: str, damage: Damage) -> Finding:
        what = f"{self.folder.path / name}:{damage.line} can't be read: {damage.reason}"
        return Finding(
            f"{what}; all of {name} reads as empty",
            "mend the line or put it aside; nothing was changed",
        )

    def check(self, *, deep: bool) -> list[Finding]:
        """Return unreadable lines and errors in the index; deep also compares the index with the
        lines.
        """
        findings: list[Finding] = []
        for collection in Collection:
            for namespace in self.files(collection):
                name = file_name(collection, namespace)
                parsed = parse(self.folder.read(name)[1], collection, namespace)
                records = fold(parsed.events).records.values()
                problems = ((record.ref, find_problem(record)) for record in records)
                findings += [damaged_record(ref, f"it {what}") for ref, what in problems if what]
                if parsed.damage:
                    findings.append(self._finding(name, parsed.damage))
                elif deep and self.index.read_states([name]).get(
                    name, FileState()
                ).stamp == self.folder.stamp(name):
                    findings += self._out_of_step(collection, namespace, records)
        if (self.folder.inner / "index.db").exists():
            reported = {finding.ref for finding in findings} - {None}
            remedy = f"remove {self.folder.inner}, which loses no memory, and run: memory reembed"
            for finding in self.index.check(deep=deep):
                if finding.ref not in reported:
                    findings.append(finding._replace(remedy=remedy, ref=None))
        return findings

    def _out_of_step(
        self, collection: Collection, namespace: str, records: Iterable[Record]
    ) -> Iterator[Finding]:
        """Yield a finding if the index has other records than the lines of a file."""
        expected = {
            record.ref: (immutable_parts(record), mutable_parts(record))
            for record in records
            if not find_problem(record)
        }
        indexed = {
            record.ref: (immutable_parts(record), mutable_parts(record))
            for record in self.index.scan(Filter(collection, (namespace,), state="any"), limit=ALL)
        }
        count = sum(
            expected.get(ref) != indexed.get(ref) for ref in expected.keys() | indexed.keys()
        )
        if count:
            what = f"the index of {file_name(collection, namespace)} differs from its lines in {count} places"
            yield Finding(what, "run: memory doctor --fix", derived=True)

    def repair(self) -> list[str]:
        """Read every file again, and make again what the index derives from its records."""
        wrong = [finding for finding in self.check(deep=True) if finding.derived]
        if not wrong:
            return []
        mended = self.index.repair()
        with self.transaction() as work:
            for collection in Collection:
                for namespace in self.files(collection):
                    self._read(file_name(collection, namespace), work.index)
        return [*mended, "the index of the files"]

    def refuse_damaged(self, collection: Collection, namespaces: Sequence[str]) -> None:
        """Raise if the file of one of these namespaces can't be read.

        Raises:
            StoreDamaged: It can't.
        """
        with self.current(collection, namespaces) as (_, readable):
            pass
        for namespace in set(namespaces) - {*readable}:
            with self.transaction():
                self.intact(collection, namespace)

    def files(self, collection: Collection) -> list[str]:
        """Return the namespaces that have a file, or had one when it was read last, or get one in
        this transaction.
        """
        names = {
            *self.folder.names(),
            *self.index.files(),
            *(self.work.states if self.work else ()),
        }
        namespaces = (namespace_of(name, collection) for name in names)
        return sorted(namespace for namespace in namespaces if namespace is not None)

    def namespaces(self, collection: Collection, among: Sequence[str]) -> list[str]:
        """Return those of some namespaces that have records, or a file that can't be read."""
        if self.work is not None:
            damaged = {namespace for namespace in among if self.sync(collection, namespace).damage}
            return [
                name
                for name in among
                if name in damaged or name in self.index.namespaces(collection)
            ]
        with self.current(collection, among) as (index, readable):
            filled = set(index.namespaces(collection))
            return [name for name in among if name in filled or name not in readable]

    # --- writing
    # ---------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        with self.transaction() as work:
            names = {ref[:2]: self.intact(*ref[:2]) for ref in (record.ref for record in records)}
            work.index.append(records)
            ids: list[tuple[Ref, str]] = []
            for record in records:
                name = names[record.ref[:2]]
                event = created(work.states[name].last, record)
                work.add(name, event)
                ids.append((record.ref, event.id))
            work.index.name_events(ids)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self.transaction() as work:
            refs = list(dict.fromkeys(patch.ref for patch in patches))
            names = {ref[:2]: self.intact(*ref[:2]) for ref in refs}
            before = {record.ref: record for record in work.index.read(refs)}
            work.index.patch(patches)
            ids = work.index.created_by(before)
            for after in work.index.read(refs):
                if mutable_parts(before[after.ref]) != mutable_parts(after):
                    name = names[after.ref[:2]]
                    work.add(
                        name,
                        changed(work.states[name].last, before[after.ref], after, ids[after.ref]),
                    )

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self.work is not None:
            raise StoreError("removing for good rewrites files and can't be part of a transaction")
        if not self.folder.exists():
            return ()
        with self.transaction() as work:
            for place in dict.fromkeys(ref[:2] for ref in refs):
                name = self.intact(*place)
                ids = work.index.created_by(ref for ref in dict.fromkeys(refs) if ref[:2] == place)
                if ids:
                    where = Filter(place[0], (place[1],), state="any")
                    groups = Counter(ref.group for ref in ids)
                    whole = [
                        group
                        for group in groups
                        if work.index.count(where._replace(group=group)) == groups[group]
                    ]
                    work.add(
                        name, removal(work.states[name].last, next(iter(ids)), ids.values(), whole)
                    )
                    work.dropped[name] = sorted(ids.values())
        return self.index.remove([])

    def touch(self, refs: Iterable[Ref], batch: str = "") -> bool:
        """See `Store.touch`; read counts are in the index alone."""
        return not (self.folder.inner / "index.db").exists() or self.index.touch(list(refs), batch)

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`; of files that the index is up to date with."""
        return self.index.unstaged(space, collection, limit=limit)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        for place in {ref[:2] for ref in vectors}:
            self.intact(*place)
        self.index.stage(space, vectors)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        self.index.switch(space)

    def leave(self, namespace: str) -> None:
        """Remove the records of a moved namespace from the index, in a transaction."""
        work = self.work
        assert work is not None
        for collection in Collection:
            name = file_name(collection, namespace)
            if name in work.index.read_states([name]):
                work.index.replace_file(collection, namespace, fold([]))
                work.index.save_state(name, FileState())

    def close(self) -> None:
        """Close the index."""
        if self._opened:
            self._opened[1].close()


def _place(name: str) -> tuple[Collection, str]:
    """Return the collection and the namespace of a file."""
    for collection in Collection:
        namespace = namespace_of(name, collection)
        if namespace is not None:
            return collection, namespace
    raise AssertionError(f"{name} is no file of records")
