"""A store that tells who writes: each record that is added gets its origin, each change an entry of
the audit log.
"""

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import ErasureUnfinished, MemoriesError, StoreDamaged, StoreError
from memories.guard.origin import Origin, host, program, stamped, user
from memories.models import PENDING, Actor
from memories.stores.damage import UNREADABLE
from memories.stores.protocol import GONE, PARTLY_GONE, UNSURE, erasure_unfinished
from memories.stores.records import SEARCHED, Collection, Filter, Patch, Record, Ref
from memories.stores.wrapper import StoreWrapper

if TYPE_CHECKING:
    from memories.stores.chain import Link
    from memories.stores.protocol import Store
    from memories.stores.wrapper import Deferred

    Heads = dict[str, tuple[int, Link]]

# What ends a version so is told by the version that follows it.
_FOLLOWED = {"update": "update", "delete (restored)": "restore", "supersede (restored)": "restore"}
_DONE = ("delete", "supersede")


class _Note(NamedTuple):
    """Something that a transaction did to a record; `follows` is the action of the version that
    tells it as well.
    """

    action: str
    ref: Ref
    follows: str = ""


def logged(  # noqa: PLR0913 - who is told of what
    store: "Store",
    channel: str,
    clock: Callable[[], datetime],
    writer: Callable[[], Origin] | None,
    *,
    action: str | None = None,
    admit: "Callable[[Store, Sequence[Record]], None] | None" = None,
    told: "Told | None" = None,
    backups: "Callable[[], tuple[str, ...]]" = tuple,
) -> "Store":
    """Return a store that is the given one, gives what is added its origin, and logs each change.

    Args:
        store: Where records and the log are kept.
        channel: How changes come; see `Actor`.
        clock: Returns the current time, aware.
        writer: Returns the origin of all that is added, whatever a record says of its own; None if
            records keep theirs, as copies do. It is called for each record.
        action: What all that is added is called, instead of what its records say.
        admit: Is given what is going to be added, in the transaction that adds it, and raises an
            error to refuse it.
        told: Is given what each transaction changed, once it is done, and what is to be removed,
            before it is; see `telling_later` for transactions that are a part of another one.
        backups: Returns the backups of the store, which keep what is removed from it.
    """
    logging = LoggedStore(store, channel, clock, writer, (action, admit))
    logging.told, logging.backups = told, backups
    return logging


def as_added(store: "Store", record: Record) -> Record:
    """Return a record as a store adds it: one that `logged` returned gives it an origin."""
    return store.as_added(record) if isinstance(store, LoggedStore) else record


def append_kept(store: "Store", records: Sequence[Record]) -> None:
    """Add records with the origin that they have, such as what somebody wrote and another one has
    accepted.
    """
    if isinstance(store, LoggedStore):
        store.append_kept(records)
    else:
        store.append(records)


def deferring(store: "Store", within: "Store", batch: "Deferred", heads: "Heads") -> "Store | None":
    """Return a store that `logged` returned so that it adds records through a batch; None if it is
    no such store.

    Args:
        store: What `logged` returned.
        within: Where it has to keep records: the store of the batch.
        batch: In a transaction of that store.
        heads: The last entries that were written in that transaction, by namespace; nobody else
            writes meanwhile.
    """
    if not isinstance(store, LoggedStore) or store._store is not within:
        return None
    twin = copy.copy(store)
    twin._store, twin._own_heads = batch, heads
    return twin


@contextlib.contextmanager
def adding_together(store: "Store") -> "Iterator[Store]":
    """Yield a store that adds records in one transaction, and as many at once as nobody asks for
    before its end.
    """
    from memories.stores.wrapper import Deferred

    with store.transaction():
        if not isinstance(store, LoggedStore) or isinstance(
            store._store, Deferred
        ):  # which adds together as it is
            yield store
            return
        batch = Deferred(store._store)
        yield deferring(store, store._store, batch, {}) or store
        batch.flush()


Told = Callable[[Sequence[Record | Patch | Ref]], None]
_LATER = threading.local()


@contextlib.contextmanager
def telling_later() -> "Iterator[list[Callable[[], None]]]":
    """Collect what transactions of this thread would tell at their end.

    They are a part of another one, which can still be undone; call what was collected once that is
    committed.
    """
    before = getattr(_LATER, "calls", None)
    calls: list[Callable[[], None]] = []
    _LATER.calls = calls
    try:
        yield calls
    finally:
        _LATER.calls = before


class LoggedStore(StoreWrapper):
    """Passes everything on; writes down what changes records, in the transaction that changes them.

    An entry is written for each namespace when the outermost transaction ends. Before a removal,
    which can't be part of a transaction, comes a transaction of its own: so what was cut short may
    be in the log and not be done, but what was done is in the log.
    """

    def __init__(
        self,
        store: "Store",
        channel: str,
        clock: Callable[[], datetime],
        writer: Callable[[], Origin] | None,
        rules: "tuple[str | None, Callable[[Store, Sequence[Record]], None] | None]",
    ) -> None:
        super().__init__(store)
        self._channel, self._clock = channel, clock
        self._action, self._admit = rules
        self._writer = writer
        self._local = threading.local()
        self._salts: dict[str, str] = {}
        self._heads: dict[
            str, tuple[Record, Link]
        ] = {}  # the last entries that were read or written
        self._own_heads: Heads | None = None
        self.told: Told | None = None
        self.backups: Callable[[], tuple[str, ...]] = tuple

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        notes: list[_Note] | None = getattr(self._local, "notes", None)
        if notes is not None:
            changes: list[Record | Patch | Ref] = self._local.changes
            count, done = len(notes), len(changes)
            try:
                with self._store.transaction():
                    yield
            except BaseException:
                del notes[count:], changes[done:]
                raise
            return
        self._local.changes = changes = []
        with self._store.transaction():
            self._local.notes = notes = []
            try:
                yield
                self._write(notes)
            finally:
                self._local.notes = None
        if self.told is not None and changes:
            later: list[Callable[[], None]] | None = getattr(_LATER, "calls", None)
            if later is None:
                self.told(changes)
            else:
                later.append(functools.partial(self.told, changes))

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        self.append_kept([self.as_added(record) for record in records])

    def append_kept(self, records: Sequence[Record]) -> None:
        """See the function of that name."""
        with self._within():
            if self._admit is not None:
                self._admit(self._store, records)
            self._store.append(records)
            self._note(_Note(_added(record, self._action), record.ref) for record in records)
            self._local.changes += records

    def as_added(self, record: Record) -> Record:
        """See the function of that name."""
        if self._writer is None or record.ref.collection not in SEARCHED:
            return record
        return record._replace(labels=stamped(record.labels, self._writer()))

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self._within():
            self._store.patch(patches)
            self._note(map(_changed, patches))
            self._local.changes += patches

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if (
            any(ref.collection in SEARCHED for ref in refs)
            and getattr(self._local, "notes", None) is None
        ):
            with self.transaction():
                self._note(_Note("forget", ref) for ref in refs)
                self._local.changes += refs
        backups = self.backups()  # before: nothing but the store may fail once it has erased
        try:
            return tuple(dict.fromkeys((*self._store.remove(refs), *backups)))
        except StoreError as exc:
            unfinished = (
                None if isinstance(exc, ErasureUnfinished) else self._look_after_erasing(refs, exc)
            )
            if unfinished is None:
                raise
            raise unfinished from exc

    def _look_after_erasing(self, refs: Sequence[Ref], exc: StoreError) -> ErasureUnfinished | None:
        """Return what became of an erasure that failed; None if nothing was removed."""
        groups = dict.fromkeys((ref.collection, ref.namespace, ref.group) for ref in refs)
        try:
            left: set[Ref] = set()
            for collection, namespace, group in groups:
                left.update(
                    self._store.refs(Filter(collection, (namespace,), group=group, state="any"))
                )
        except MemoriesError:
            return erasure_unfinished(UNSURE, exc)
        if left.isdisjoint(refs):
            return erasure_unfinished(GONE, exc)
        return None if left.issuperset(refs) else erasure_unfinished(PARTLY_GONE, exc)

    def _within(self) -> AbstractContextManager[None]:
        """Return the running transaction, or a new one: one inside another costs a server two more
        requests.
        """
        return (
            self.transaction()
            if getattr(self._local, "notes", None) is None
            else contextlib.nullcontext()
        )

    def _note(self, done: Iterable[_Note]) -> None:
        self._local.notes += [note for note in done if note.ref.collection in SEARCHED]

    # --- entries
    # ---------------------------------------------------------------------------------------------------

    def _write(self, notes: Sequence[_Note]) -> None:
        """Write an entry for each namespace that was changed, always in the same order, for each
        may be locked.
        """
        done = set(notes)
        told: dict[str, list[_Note]] = {}
        for note in notes:
            after = note.ref._replace(position=note.ref.position + 1)
            if not note.follows or not done & {
                _Note(action, after) for action in (note.follows, "rollback")
            }:
                told.setdefault(note.ref.namespace, []).append(note)
        records = [
            record
            for namespace in sorted(told)
            for record in self._entries(namespace, told[namespace])
        ]
        if records:
            self._store.append(records)

    def _entries(self, namespace: str, notes: Sequence[_Note]) -> list[Record]:
        from memories.stores import chain  # here and below, since reading does without it

        position, head = self._head(namespace)
        salt = chain.new_salt() if head is None else ""
        if head is not None and any(note.ref.collection is Collection.HISTORY for note in notes):
            salt = self._salt(namespace)
        spans: dict[str, dict[Ref, list[int]]] = {}
        for action, ref, _ in notes:
            spans.setdefault(action, {}).setdefault(ref._replace(position=0), []).append(
                ref.position
            )
        done = {
            action: [
                chain.item_of(ref._replace(position=first), last, salt)
                for ref, positions in by_group.items()
                for first, last in chain.ranges(positions)
            ]
            for action, by_group in spans.items()
        }
        found: list[Record] = []
        for changes in chain.entries_of(done):
            began = salt if head is None else ""
            head = chain.follow(
                chain.Link(0, namespace, self._clock(), actor(self._channel), changes, began, ""),
                head,
            )
            position += 1
            found.append(chain.record_of(head, position))
            self._heads[namespace] = found[-1], head
        if self._own_heads is not None and head is not None:
            self._own_heads[namespace] = position, head
        return found

    def _head(self, namespace: str) -> "tuple[int, Link | None]":
        """Return the position of the last entry of a chain, and the entry."""
        from memories.stores import chain

        if self._own_heads is not None and namespace in self._own_heads:
            return self._own_heads[namespace]
        where, mark = chain.chain_of(namespace), self._store.damaged.mark()
        with contextlib.suppress(StoreDamaged, ValueError):
            if (
                namespace in self._heads
            ):  # two look-ups by address cost a third of a search for the end
                known, link = self._heads[namespace]
                after = known.ref._replace(position=known.ref.position + 1)
                found = [(each.ref, each.text) for each in self._store.read([known.ref, after])]
                if found == [known[:2]] and not self._met_damage(namespace, mark):
                    return known.ref.position, link
            last = next(iter(self._store.scan(where, limit=1, newest_first=True)), None)
            if not self._met_damage(namespace, mark):
                return (0, None) if last is None else (last.ref.position, chain.link_of(last))
        # It can't be followed, which `memory log --verify` tells; what people write must not wait
        # for its repair.
        taken = max((ref.position for ref in self._store.refs(where)), default=0)
        return taken, chain.Link(taken, namespace, self._clock(), actor(self._channel), (), "", "")

    def _met_damage(self, namespace: str, mark: int) -> bool:
        """Return whether an entry of a namespace was left out since a moment, whose position is
        taken all the same.
        """
        noted = [
            finding.ref for finding in self._store.damaged.since(mark) if finding.ref is not None
        ]
        return any(
            ref.namespace == namespace
            and (ref.collection is Collection.LOG or ref.group.startswith(UNREADABLE))
            for ref in noted
        )

    def _salt(self, namespace: str) -> str:
        """Return the salt of a chain; of one whose beginning can't be read, none."""
        from memories.stores import chain

        if namespace not in self._salts:
            salt = ""
            with contextlib.suppress(StoreDamaged, ValueError):
                for record in self._store.read([Ref(Collection.LOG, namespace, chain.CHAIN, 1)]):
                    salt = chain.link_of(record).salt
            self._salts[namespace] = salt
        return self._salts[namespace]


@functools.cache
def actor(channel: str) -> Actor:
    """Return who is writing: the user and the machine as the operating system names them."""
    return Actor(channel, user(), host(), program())


def _added(record: Record, action: str | None) -> str:
    if action is not None:
        return action
    if record.ref.collection is Collection.HISTORY:
        return "turns"
    return str(record.fields.get("operation", "create"))


def _changed(patch: Patch) -> _Note:
    if patch.fields.get("rolled_back_to") is not None:
        return _Note("rollback", patch.ref)
    if patch.fields.get("accepted_at"):
        return _Note("accept", patch.ref)
    if patch.ended_by == PENDING:
        return _Note("restore", patch.ref)
    if patch.ended_by in _DONE:
        return _Note(patch.ended_by, patch.ref)
    if patch.ended_by is None and "reinforced_at" in patch.fields:
        return _Note("reinforce", patch.ref)
    return _Note("change", patch.ref, _FOLLOWED.get(patch.ended_by or "", ""))
