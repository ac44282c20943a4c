"""The files that are here, with their index: reads that see the lines as they are, and transactions that add some."""

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memories.errors import StoreBusy, StoreDamaged, StoreError
from memories.stores.copies import immutable, mutable
from memories.stores.damage import Damaged, damaged_record
from memories.stores.files import former
from memories.stores.files.connection import FORMER, Folder, Stamp
from memories.stores.files.index import ALL, Index, Known, space_named
from memories.stores.files.log import Damage, changed, created, fold, parse, removal, without
from memories.stores.files.schema import Event, file_name, namespace_of, to_line
from memories.stores.records import SEARCHED, Collection, Filter, Finding, Patch, Record, Ref, Space
from memories.stores.sound import problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)


class Work:
    """What a transaction knows of files, the lines that it adds, and the larger stores that it reaches into."""

    def __init__(self, index: Index) -> None:
        """Begin a transaction of this process."""
        self.index, self.pid = index, os.getpid()
        self.known: dict[str, Known] = {}
        self.lines: list[tuple[str, str]] = []
        self.dropped: dict[str, list[str]] = {}
        self.levels: list[tuple[contextlib.ExitStack, set[int]]] = []

    def add(self, name: str, event: Event) -> None:
        """Add a line to a file in the end."""
        self.lines.append((name, to_line(event)))
        self.known[name] = self.known[name]._replace(last=event.time)


class LocalFiles:
    """The records of one folder, of all namespaces that have not moved."""

    def __init__(
        self, folder: Folder, space: Space | None, after_commit: Callable[[set[str]], None], damaged: Damaged
    ) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            folder: Where the files are.
            space: The space of the vectors that will be written and searched.
            after_commit: Called under the lock with the namespaces that were written to; it may use `working`.
            damaged: Takes what is left out because it can't be read.
        """
        self._damaged_parts = damaged
        self.folder = folder
        self._space, self._after_commit = space, after_commit
        self._local = threading.local()
        self._warned: dict[str, Stamp | None] = {}
        self._opened: tuple[tuple[int, int] | None, Index] | None = None

    # --- transactions ----------------------------------------------------------------------------------------------

    @property
    def work(self) -> Work | None:
        """The transaction that this thread is inside."""
        work: Work | None = getattr(self._local, "work", None)
        if work is not None and work.pid != os.getpid():
            raise StoreError(f"{self.folder.path} was being written when this process was forked; start it by spawn")
        return work

    @property
    def index(self) -> Index:
        """The index; another one if somebody has removed it meanwhile."""
        work = self.work
        if work is not None:
            return work.index
        path = self.folder.inner / "index.db"
        try:
            found = path.lstat()
            identity = found.st_dev, found.st_ino
        except OSError:
            identity = None
        if self._opened is None or self._opened[0] not in (None, identity):
            self._opened = identity, Index(path, self._space)
            self._opened[1].damaged = self._damaged_parts
        elif self._opened[0] is None:
            self._opened = identity, self._opened[1]
        return self._opened[1]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Work]:
        """Collect lines and add them in the end; inside another one, undo a failure's own part.

        The index comes first, marked as uncertain; then the lines, which count; then it is marked as certain. So a
        crash in between loses nothing: what the lines don't have is taken out of the index again.
        """
        outer = self.work
        if outer is not None:
            count, known = len(outer.lines), dict(outer.known)
            try:
                with outer.index.transaction():
                    yield outer
            except BaseException:
                outer.known = known
                del outer.lines[count:]
                raise
            return
        with self.folder.locked():
            self._recover()
            self._adopt()
            with self.working() as work:
                yield work
                for name in dict(work.lines):
                    if self.folder.stamp(name) != work.known[name].stamp:
                        raise StoreBusy(
                            f"{self.folder.path / name} was changed by another program; nothing was written; try again"
                        )
                    work.index.know(name, None)
            self._write(work)
            self._after_commit(set() if work.dropped else {_place(name)[1] for name, _ in work.lines})
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
                {name: {"drop": ids, "add": added[name].decode()} for name, ids in work.dropped.items()}
            )
            self._recover()
        elif added:
            logs = [name for name in added if _place(name)[0] is Collection.LOG]
            self.folder.commit(added, {name: work.known[name].whole for name in added}, ahead=logs)
            with contextlib.suppress(StoreError):  # the lines are stored; the next read reads unknown files again
                for name, data in added.items():
                    stamp, known = self.folder.stamp(name), work.known[name]
                    if stamp and stamp.size - len(data) - known.whole in (0, 1):  # else others were faster
                        work.index.know(name, Known(stamp, stamp.size, known.last))

    def _recover(self) -> None:
        """Finish what was promised: add lines that are missing, and take out those that are to be gone."""
        plan = self.folder.promised()
        for name, todo in plan.items():
            data = self.folder.read(name)[1]
            parsed = parse(data, *_place(name))
            if parsed.damage:
                raise self._damaged(name, parsed.damage)
            there = set(data.split(b"\n"))
            missing = [line for line in todo["add"].encode().split(b"\n") if line and line not in there]
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
        """Move into the index what the store's first format kept in files of its own."""
        if not self.folder.is_former():
            return
        space = former.space_in(self.folder)
        with self.working() as work:
            reads: list[Ref] = []
            for collection in SEARCHED:
                for namespace in self.files(collection):
                    if self.sync(collection, namespace).damage:
                        continue
                    name = file_name(collection, namespace)
                    records = work.index.scan(Filter(collection, (namespace,), state="any"), limit=ALL)
                    if space is not None and work.index.stored_space() in (None, space_named(*space)):
                        work.index.stage(space_named(*space), former.vectors(self.folder, name, space, records))
                    counts = former.accesses(self.folder, name)
                    reads += [ref for ref, *_ in records for _ in range(counts[ref.group, ref.position])]
            work.index.touch(reads, "former")
        self.folder.discard(FORMER)

    # --- reading ---------------------------------------------------------------------------------------------------

    def sync(self, collection: Collection, namespace: str) -> Known:
        """Bring the index up to date with a file, in a transaction; return what is known of the file."""
        name, work = file_name(collection, namespace), self.work
        assert work is not None
        if name not in work.known:
            known = work.index.known([name]).get(name, Known())
            if known.stamp != self.folder.stamp(name):
                known = self._read(name, work.index)
            work.known[name] = known
        return work.known[name]

    def _read(self, name: str, index: Index) -> Known:
        place = _place(name)
        stamp, data = self.folder.read(name)
        parsed = parse(data, *place)
        known = Known(stamp, parsed.whole, damage=parsed.damage)
        if parsed.damage is None:
            folded = fold(parsed.events)
            if folded.dead:  # a merge has brought back what was removed for good
                data = without(data, folded.dead, parsed.events)
                self.folder.replace(name, data)
                known = Known(self.folder.stamp(name), len(data))
            index.bring(*place, folded)
            known = known._replace(last=folded.last)
        index.know(name, known)
        return known

    def intact(self, collection: Collection, namespace: str) -> str:
        """Bring the index up to date with a file, in a transaction; return its name.

        Raises:
            StoreDamaged: It can't be read.
        """
        known, name = self.sync(collection, namespace), file_name(collection, namespace)
        if known.damage:
            raise self._damaged(name, known.damage)
        return name

    @contextlib.contextmanager
    def current(self, collection: Collection, namespaces: Sequence[str]) -> Iterator[tuple[Index, tuple[str, ...]]]:
        """Keep what is read inside of one state, that of the files; yield the index and what can be read there.

        A file that is damaged reads as empty, but not in a transaction: what is decided there would be wrong for good.

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
            known = {name: Known() for name in files} | index.known(files)
            if not pending and all(known[name].stamp == stamp for name, stamp in stamps.items()):
                yield index, self._readable(files, known)
                return
        with self.transaction() as work:
            known = {name: self.sync(collection, namespace) for name, namespace in files.items()}
            yield work.index, self._readable(files, known)

    def _readable(self, files: Mapping[str, str], known: Mapping[str, Known]) -> tuple[str, ...]:
        """Return the namespaces whose files can be read, and warn of the others."""
        damaged = {name: known[name].damage for name in files if known[name].damage}
        for name, damage in damaged.items():
            if damage:
                self._damaged_parts.note(self._finding(name, damage))
            if damage and self._warned.get(name) != known[name].stamp:
                self._warned[name] = known[name].stamp
                path = self.folder.path / name
                _log.warning("%s:%d can't be read: %s; it was left as it is, and reads as empty", path, *damage)
        return tuple(namespace for name, namespace in files.items() if name not in damaged)

    def _damaged(self, name: str, damage: Damage) -> StoreDamaged:
        where = f"{self.folder.path / name}:{damage.line}"
        return StoreDamaged(
            f"{where} can't be read: {damage.reason}; it was left as it is; mend the line or put it aside"
        )

    def _finding(self, name: str, damage: Damage) -> Finding:
        what = f"{self.folder.path / name}:{damage.line} can't be read: {damage.reason}"
        return Finding(f"{what}; all of {name} reads as empty", "mend the line or put it aside; nothing was changed")

    def check(self, *, deep: bool) -> list[Finding]:
        """Return lines that can't be read, and what is wrong in the index; deep: also whether it has what they say."""
        found: list[Finding] = []
        for collection in Collection:
            for namespace in self.files(collection):
                name = file_name(collection, namespace)
                parsed = parse(self.folder.read(name)[1], collection, namespace)
                records = fold(parsed.events).records.values()
                wrong = ((record.ref, problem(record)) for record in records)
                found += [damaged_record(ref, f"it {what}") for ref, what in wrong if what]
                if parsed.damage:
                    found.append(self._finding(name, parsed.damage))
                elif deep and self.index.known([name]).get(name, Known()).stamp == self.folder.stamp(name):
                    found += self._out_of_step(collection, namespace, records)
        if (self.folder.inner / "index.db").exists():
            told = {finding.ref for finding in found}
            remedy = f"remove {self.folder.inner}, which loses no memory, and run: memory reembed"
            others = (each for each in self.index.check(deep=deep) if each.ref is None or each.ref not in told)
            found += (each._replace(remedy=remedy, ref=None) for each in others)
        return found

    def _out_of_step(self, collection: Collection, namespace: str, lines: Iterable[Record]) -> Iterator[Finding]:
        """Yield a finding if the index has other records than the lines of a file."""
        said = {record.ref: (immutable(record), mutable(record)) for record in lines if not problem(record)}
        there = self.index.scan(Filter(collection, (namespace,), state="any"), limit=ALL)
        known = {record.ref: (immutable(record), mutable(record)) for record in there}
        count = sum(said.get(ref) != known.get(ref) for ref in said.keys() | known.keys())
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
        with self.current(collection, namespaces) as (_, well):
            pass
        for namespace in set(namespaces) - {*well}:
            with self.transaction():
                self.intact(collection, namespace)

    def files(self, collection: Collection) -> list[str]:
        """Return the namespaces that have a file, or had one when it was read last, or get one in this transaction."""
        known = self.work.known if self.work else {}
        names = {*self.folder.names(), *self.index.files(), *known}
        found = (namespace_of(name, collection) for name in names)
        return sorted(namespace for namespace in found if namespace is not None)

    def namespaces(self, collection: Collection, among: Sequence[str]) -> list[str]:
        """Return those of some namespaces that have records, or a file that can't be read."""
        if self.work is not None:
            damaged = {namespace for namespace in among if self.sync(collection, namespace).damage}
            return [each for each in among if each in damaged or each in self.index.namespaces(collection)]
        with self.current(collection, among) as (index, well):
            having = set(index.namespaces(collection))
            return [each for each in among if each in having or each not in well]

    # --- writing ---------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        with self.transaction() as work:
            names = {ref[:2]: self.intact(*ref[:2]) for ref in (record.ref for record in records)}
            work.index.append(records)
            ids: list[tuple[Ref, str]] = []
            for record in records:
                name = names[record.ref[:2]]
                event = created(work.known[name].last, record)
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
                if mutable(before[after.ref]) != mutable(after):
                    name = names[after.ref[:2]]
                    work.add(name, changed(work.known[name].last, before[after.ref], after, ids[after.ref]))

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
                    whole = [each for each in groups if work.index.count(where._replace(group=each)) == groups[each]]
                    work.add(name, removal(work.known[name].last, next(iter(ids)), ids.values(), whole))
                    work.dropped[name] = sorted(ids.values())
        return self.index.remove([])

    def touch(self, refs: Iterable[Ref], batch: str = "") -> bool:
        """See `Store.touch`; they are kept in the index alone."""
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
        """Take what has moved out of the index, in a transaction."""
        work = self.work
        assert work is not None
        for collection in Collection:
            name = file_name(collection, namespace)
            if name in work.index.known([name]):
                work.index.bring(collection, namespace, fold([]))
                work.index.know(name, Known())

    def close(self) -> None:
        """Release what is held."""
        if self._opened:
            self._opened[1].close()


def _place(name: str) -> tuple[Collection, str]:
    """Return what a file of that name holds."""
    for collection in Collection:
        namespace = namespace_of(name, collection)
        if namespace is not None:
            return collection, namespace
    raise AssertionError(f"{name} is no file of records")
