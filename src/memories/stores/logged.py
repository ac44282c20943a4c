"""Store wrapper that stamps origins and writes the audit log.

Each added record gets its origin, and each transaction that changes records adds entries to the
log: see `audit_log`. Quotas are checked here, too.
"""

import contextlib
import copy
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import ErasureUnfinished, MemoriesError, RequestError, StoreDamaged, StoreError
from memories.guard.origin import HELD, Origin, host, program, stamp_labels, user
from memories.guard.validate import amount
from memories.models import PENDING, Actor
from memories.stores.damage import UNREADABLE
from memories.stores.protocol import GONE, PARTLY_GONE, UNSURE, erasure_unfinished
from memories.stores.records import SEARCHED, Collection, Filter, Patch, Record, Ref
from memories.stores.wrapper import StoreWrapper

if TYPE_CHECKING:
    from memories.stores.audit_log import ChainEntry
    from memories.stores.protocol import Store
    from memories.stores.wrapper import BufferedStore

Change = Record | Patch | Ref  # an added, patched or removed record


def ref_of(change: Change) -> Ref:
    """Return the address of the record that a change affects."""
    return change if isinstance(change, Ref) else change.ref


# The action to log for a memory's next version, keyed by how the previous version ended.
_NEXT_ACTIONS = {
    "update": "update",
    "delete (restored)": "restore",
    "supersede (restored)": "restore",
}
_LOGGED_ENDS = ("delete", "supersede")


class _Action(NamedTuple):
    """An action on a record, to be logged.

    Attributes:
        name: The name of the action, such as `update`.
        ref: The record.
        implied_by: If the next version is written by this action, only that action is logged. Empty
            if this action is always logged.
    """

    name: str
    ref: Ref
    implied_by: str = ""


class LoggedStore(StoreWrapper):
    """Forwards every call, and logs each change to records in the transaction that makes it.

    When the outermost transaction ends, an entry is added for each changed namespace. A removal
    can't be part of a transaction, so its entry is written first, in a separate transaction. After
    a crash, the log may contain a removal that didn't happen, but never lacks one that did.

    Attributes:
        on_change: Called after each commit, with the transaction's changes, and before each
            removal, with the records to remove. For a transaction that is part of another one, see
            `collect_reports`.
        find_copies: Returns the files that may still contain removed records, such as backups.
    """

    def __init__(
        self,
        store: "Store",
        channel: str,
        clock: Callable[[], datetime],
        origin: Callable[[], Origin] | None,
        *,
        action: str | None = None,
        quota: str | None = None,
    ) -> None:
        """Wrap a store.

        Args:
            store: The store that contains the records and the log.
            channel: The channel that changes come through; see `Actor`.
            clock: Returns the current time, with its time zone.
            origin: Called for each added record; returns the origin that replaces the record's own.
                None if added records keep their own origins, as copied records do.
            action: The action to log for all additions and removals, instead of the usual ones.
            quota: Limits on a namespace's size; see the setting `namespace_quota`.
        """
        super().__init__(store)
        self._channel, self._clock, self._origin = channel, clock, origin
        self._action, self._quota = action, quota
        self.on_change: Callable[[Sequence[Change]], None] | None = None
        self.find_copies: Callable[[], tuple[str, ...]] = tuple
        self._local = threading.local()
        self._salts: dict[str, str] = {}
        # The last entry that was read or written in each namespace.
        self._heads: dict[str, tuple[Record, ChainEntry]] = {}
        self._buffer: BufferedStore | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        if self._is_in_transaction:
            with self._inner_transaction():
                yield
            return
        actions: list[_Action] = []
        changes: list[Change] = []
        self._local.changes = changes
        with self.wrapped.transaction():
            self._local.actions = actions
            try:
                yield
                self._write_entries(actions)
            finally:
                self._local.actions = None
        if self.on_change is not None and changes:
            _report(functools.partial(self.on_change, changes))

    @contextlib.contextmanager
    def _inner_transaction(self) -> Iterator[None]:
        actions: list[_Action] = self._local.actions
        changes: list[Change] = self._local.changes
        action_count, change_count = len(actions), len(changes)
        try:
            with self.wrapped.transaction():
                yield
        except BaseException:
            del actions[action_count:], changes[change_count:]
            raise

    @property
    def _is_in_transaction(self) -> bool:
        return getattr(self._local, "actions", None) is not None

    def _join_or_begin(self) -> AbstractContextManager[None]:
        """Return a context that joins the running transaction, or else begins one.

        On a database server, a nested transaction would cost two requests.
        """
        return contextlib.nullcontext() if self._is_in_transaction else self.transaction()

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        self.append_stamped([self.stamp_origin(record) for record in records])

    def append_stamped(self, records: Sequence[Record]) -> None:
        """Add records that already have their origins; see the function `append_as_stamped`."""
        with self._join_or_begin():
            if self._quota is not None:
                _check_quota(self.wrapped, records, self._quota)
            self.wrapped.append(records)
            self._add_actions(
                _Action(_name_addition(record, self._action), record.ref) for record in records
            )
            self._local.changes += records

    def stamp_origin(self, record: Record) -> Record:
        """Return a record stamped with its origin; see the function `stamp_record`."""
        if self._origin is None or record.ref.collection not in SEARCHED:
            return record
        return record._replace(labels=stamp_labels(record.labels, self._origin()))

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self._join_or_begin():
            self.wrapped.patch(patches)
            self._add_actions(map(_make_action, patches))
            self._local.changes += patches

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        has_content = any(ref.collection in SEARCHED for ref in refs)
        if has_content and not self._is_in_transaction:
            with self.transaction():
                self._add_actions(_Action(self._action or "forget", ref) for ref in refs)
                self._local.changes += refs
        # Find the copies first, so that nothing can fail after the records have been erased.
        copies = self.find_copies()
        try:
            return tuple(dict.fromkeys((*self.wrapped.remove(refs), *copies)))
        except ErasureUnfinished:
            raise
        except StoreError as exc:
            unfinished = self._find_unfinished_erasure(refs, exc)
            if unfinished is None:
                raise
            raise unfinished from exc

    def _find_unfinished_erasure(
        self, refs: Sequence[Ref], exc: StoreError
    ) -> ErasureUnfinished | None:
        """Return an error that says how far a failed erasure got; None if it removed nothing."""
        groups = dict.fromkeys((ref.collection, ref.namespace, ref.group) for ref in refs)
        remaining: set[Ref] = set()
        try:
            for collection, namespace, group in groups:
                where = Filter(collection, (namespace,), group=group, state="any")
                remaining.update(self.wrapped.refs(where))
        except MemoriesError:
            return erasure_unfinished(UNSURE, exc)
        if remaining.isdisjoint(refs):
            return erasure_unfinished(GONE, exc)
        if remaining.issuperset(refs):
            return None
        return erasure_unfinished(PARTLY_GONE, exc)

    def keeping_origins(self, action: str | None = None) -> "LoggedStore":
        """Return a copy of this store in which added records keep their origins.

        Args:
            action: The action that the copy logs for additions and removals, instead of the usual
                ones.
        """
        twin = copy.copy(self)
        twin._origin, twin._action = None, action
        return twin

    def with_buffer(self, buffer: "BufferedStore") -> "LoggedStore":
        """Return a copy of this store that writes through a buffer of the wrapped store.

        The copy shares this store's thread-local state. So if this store is in a transaction, the
        copy's writes are part of it and are logged by it: see `buffered_transaction`. In a group
        commit (`server.group_commit`), the copies of several stores share one buffer. Each copy
        has a transaction that adds its log entries, and the transaction of the wrapped store
        commits them all.
        """
        twin = copy.copy(self)
        twin.wrapped = twin._buffer = buffer
        return twin

    # --- entries of the log

    def _add_actions(self, actions: Iterable[_Action]) -> None:
        """Keep the actions on memories and turns, to be logged at the end of the transaction."""
        self._local.actions += [action for action in actions if action.ref.collection in SEARCHED]

    def _write_entries(self, actions: Sequence[_Action]) -> None:
        """Add entries for these actions.

        Namespaces are processed in sorted order: a store may lock each of them, and with the same
        order, two transactions can't deadlock.
        """
        distinct = set(actions)
        by_namespace: dict[str, list[_Action]] = {}
        for action in actions:
            if not _is_implied(action, distinct):
                by_namespace.setdefault(action.ref.namespace, []).append(action)
        records: list[Record] = []
        for namespace in sorted(by_namespace):
            records += self._make_entries(namespace, by_namespace[namespace])
        if records:
            self.wrapped.append(records)

    def _make_entries(self, namespace: str, actions: Sequence[_Action]) -> list[Record]:
        from memories.stores import audit_log  # imported here, since reads don't need it

        position, head = self._read_head(namespace)
        if head is None:
            salt = audit_log.new_salt()
        else:
            has_turns = any(action.ref.collection is Collection.HISTORY for action in actions)
            salt = self._read_salt(namespace) if has_turns else ""
        records: list[Record] = []
        for changes in audit_log.split_into_entries(_items_by_action(actions, salt)):
            chain_salt = salt if head is None else ""
            entry = audit_log.ChainEntry(
                0, namespace, self._clock(), actor(self._channel), changes, chain_salt, ""
            )
            head = audit_log.chain_entry(entry, head)
            position += 1
            record = audit_log.record_of(head, position)
            records.append(record)
            self._heads[namespace] = record, head
        if self._buffer is not None and head is not None:
            self._buffer.heads[namespace] = position, head
        return records

    def _read_head(self, namespace: str) -> "tuple[int, ChainEntry | None]":
        """Return a chain's last position and entry; 0 and None for an empty chain."""
        from memories.stores import audit_log

        if self._buffer is not None and namespace in self._buffer.heads:
            return self._buffer.heads[namespace]
        where, mark = audit_log.chain_of(namespace), self.wrapped.damaged.mark()
        with contextlib.suppress(StoreDamaged, ValueError):
            # Looking up two positions is three times as fast as searching for the end of the chain.
            if namespace in self._heads:
                record, entry = self._heads[namespace]
                if self._is_last(record) and not self._has_met_damage(namespace, mark):
                    return record.ref.position, entry
            records = self.wrapped.scan(where, limit=1, newest_first=True)
            if not self._has_met_damage(namespace, mark):
                if not records:
                    return 0, None
                return records[0].ref.position, audit_log.parse_entry(records[0])
        # The chain is broken, which `memory log --verify` reports. The entry goes after the last
        # position, because writes must not wait for a repair.
        position = max((ref.position for ref in self.wrapped.refs(where)), default=0)
        entry = audit_log.ChainEntry(
            position, namespace, self._clock(), actor(self._channel), (), "", ""
        )
        return position, entry

    def _is_last(self, last: Record) -> bool:
        """Return whether a chain still ends with this record, unchanged."""
        next_ref = last.ref._replace(position=last.ref.position + 1)
        records = self.wrapped.read([last.ref, next_ref])
        return [(record.ref, record.text) for record in records] == [(last.ref, last.text)]

    def _has_met_damage(self, namespace: str, mark: int) -> bool:
        """Return whether a read has skipped a damaged log entry of a namespace since `mark`.

        A new entry can't have the position of the damaged one.
        """
        for finding in self.wrapped.damaged.since(mark):
            ref = finding.ref
            if ref is None or ref.namespace != namespace:
                continue
            if ref.collection is Collection.LOG or ref.group.startswith(UNREADABLE):
                return True
        return False

    def _read_salt(self, namespace: str) -> str:
        from memories.stores import audit_log

        if namespace not in self._salts:
            salt = ""
            with contextlib.suppress(StoreDamaged, ValueError):
                for record in self.wrapped.read(
                    [Ref(Collection.LOG, namespace, audit_log.CHAIN, 1)]
                ):
                    salt = audit_log.parse_entry(record).salt
            self._salts[namespace] = salt
        return self._salts[namespace]


def stamp_record(store: "Store", record: Record) -> Record:
    """Return a record with the origin that `append` would give it, to be shown in a result."""
    if isinstance(store, LoggedStore):
        return store.stamp_origin(record)
    return record


def append_as_stamped(store: "Store", records: Sequence[Record]) -> None:
    """Add records that already have their origins, which `LoggedStore.append` would replace."""
    if isinstance(store, LoggedStore):
        store.append_stamped(records)
    else:
        store.append(records)


@contextlib.contextmanager
def buffered_transaction(store: "Store") -> "Iterator[Store]":
    """Begin a transaction, and yield the store to use inside it.

    That store buffers appended records, and adds them all at once: at the end, or before a read or
    a patch.
    """
    from memories.stores.wrapper import BufferedStore

    with store.transaction():
        if not isinstance(store, LoggedStore) or isinstance(store.wrapped, BufferedStore):
            yield store  # no log, or a buffer already, as in a group commit
            return
        buffer = BufferedStore(store.wrapped)
        yield store.with_buffer(buffer)  # its changes are logged by the transaction of `store`
        buffer.flush()  # must precede the audit log entry


_collected = threading.local()


@contextlib.contextmanager
def collect_reports() -> "Iterator[list[Callable[[], None]]]":
    """Collect the reports about this thread's transactions instead of sending them.

    These transactions are part of an outer one, which may still be rolled back. The caller sends
    the reports after the outer one has committed.
    """
    before = getattr(_collected, "reports", None)
    reports: list[Callable[[], None]] = []
    _collected.reports = reports
    try:
        yield reports
    finally:
        _collected.reports = before


def _report(report: Callable[[], None]) -> None:
    """Send a report about a transaction, or leave it to the caller of `collect_reports`."""
    reports: list[Callable[[], None]] | None = getattr(_collected, "reports", None)
    if reports is None:
        report()
    else:
        reports.append(report)


@functools.cache
def actor(channel: str) -> Actor:
    """Return the actor of this process: its user, host and program."""
    return Actor(channel, user(), host(), program())


def _items_by_action(actions: Sequence[_Action], salt: str) -> Mapping[str, Sequence[str]]:
    """Return a log entry's items, keyed by action. Consecutive versions or turns share an item."""
    from memories.stores import audit_log

    positions: dict[str, dict[Ref, list[int]]] = {}
    for name, ref, _ in actions:
        by_group = positions.setdefault(name, {})
        by_group.setdefault(ref._replace(position=0), []).append(ref.position)
    items: dict[str, list[str]] = {}
    for name, by_group in positions.items():
        items[name] = []
        for ref, group_positions in by_group.items():
            for first, last in audit_log.to_ranges(group_positions):
                item = audit_log.item_of(ref._replace(position=first), last, salt)
                items[name].append(item)
    return items


def _is_implied(action: _Action, actions: set[_Action]) -> bool:
    if not action.implied_by:
        return False
    next_ref = action.ref._replace(position=action.ref.position + 1)
    return not actions.isdisjoint(
        (_Action(action.implied_by, next_ref), _Action("rollback", next_ref))
    )


def _name_addition(record: Record, action: str | None) -> str:
    """Return the action to log for an added record: the given one, or else the record's own."""
    if action is not None:
        return action
    if record.ref.collection is Collection.HISTORY:
        return "turns"
    return str(record.fields.get("operation", "create"))


def _make_action(patch: Patch) -> _Action:
    if patch.fields.get("rolled_back_to") is not None:
        return _Action("rollback", patch.ref)
    if patch.fields.get("accepted_at"):
        return _Action("accept", patch.ref)
    if patch.ended_by == PENDING:
        return _Action("restore", patch.ref)
    if patch.ended_by in _LOGGED_ENDS:
        return _Action(patch.ended_by, patch.ref)
    if patch.ended_by is None and "reinforced_at" in patch.fields:
        return _Action("reinforce", patch.ref)
    return _Action("change", patch.ref, _NEXT_ACTIONS.get(patch.ended_by or "", ""))


# --- quotas: the setting `namespace_quota`, checked in the transaction that writes

_COLLECTIONS = {"memories": Collection.MEMORY, "turns": Collection.HISTORY}
_ADVICE = {
    "memories": "delete or forget some, for example with memory delete --where 'updated < 90d'",
    "turns": "forget some conversations: memory turns forget",
}


def _check_quota(store: "Store", records: Sequence[Record], quota: str) -> None:
    """Check that the namespaces of new records stay within their quotas.

    Args:
        store: The store, without these records.
        records: The records to add.
        quota: The setting, such as `memories=10000,bob.memories=500`.

    Raises:
        RequestError: A namespace would have more memories or turns than its quota.
    """
    limits: dict[str, int | None] = {}
    for part in quota.split(","):
        name, _, limit = part.partition("=")
        limits[name] = None if limit == "none" else int(limit)
    for kind, collection in _COLLECTIONS.items():
        new = Counter(
            record.ref.namespace
            for record in records
            if record.ref.collection is collection and _adds_to_count(store, record)
        )
        for namespace, count in new.items():
            limit_of_namespace = limits.get(f"{namespace}.{kind}", limits.get(kind))
            if limit_of_namespace is not None:
                _refuse_excess(store, namespace, kind, count, limit_of_namespace)


def _refuse_excess(store: "Store", namespace: str, kind: str, count: int, limit: int) -> None:
    """Refuse to add memories or turns beyond a namespace's limit; pending memories count, too."""
    where = Filter(_COLLECTIONS[kind], (namespace,))
    stored = store.count(where)
    if kind == "memories":
        pending = where._replace(state="ended", ended_by=PENDING, labels={HELD: "1"})
        stored += store.count(pending)
    if stored + count > limit:
        contents = amount(stored, {"memories": "memory", "turns": "turn"}[kind], kind)
        raise RequestError(
            f"namespace {namespace} contains {contents} and its quota is {limit}, so there "
            f"is no room for {count} more; {_ADVICE[kind]}, or raise NAMESPACE_QUOTA"
        )


def _adds_to_count(store: "Store", record: Record) -> bool:
    """Return whether a record counts toward a quota; later versions of a memory don't."""
    if record.ended_at is not None and record.ended_by != PENDING:
        return False
    if record.ref.collection is Collection.HISTORY or record.ref.position == 1:
        return True
    # A restored memory counts again. A rollback only undoes changes, so no quota prevents it.
    if record.fields.get("operation") == "restore":
        return True
    where = Filter(Collection.MEMORY, (record.ref.namespace,), group=record.ref.group, state="any")
    return not store.count(where, at_most=1)
