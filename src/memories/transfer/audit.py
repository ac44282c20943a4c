"""Reads and verifies the audit log, which records who changed what and when."""

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple, TypedDict

from memories.core.ids import parse_id
from memories.core.times import to_moment
from memories.errors import InvalidInput, StoreDamaged
from memories.guard import validate
from memories.models import LOG_ACTIONS, Change, LogCheck, LogEntry, Moment
from memories.stores.audit_log import (
    CHAIN,
    ChainEntry,
    Item,
    chain_of,
    conversation_digest,
    hash_of,
    parse_entry,
    parse_item,
)
from memories.stores.protocol import Store, scan_pages
from memories.stores.records import SEARCHED, Collection, Filter, Record, Ref
from memories.transfer.pages import Part, pages

_WRITING = ("create", "update", "restore", "confirm", "rollback", "turns", "import", "move")
_MAX_CONVERSATIONS = 100_000  # maximum number of conversations whose names are looked up
_MAX_POSITIONS = 1_000_000  # maximum number of positions to check for one item
_HASH = re.compile(r"[0-9a-f]{64}")
_ANY = -1  # any position in a memory or a conversation


class LogFilters(TypedDict, total=False):
    """Filters for the audit log.

    Attributes:
        conversation: Only changes to this conversation, even if it was forgotten.
        since: Only entries from this time or later: an aware datetime, or text such as "7d".
        until: Only entries from this time or earlier.
        action: Only entries with this action; see `Change`.
        limit: Maximum number of entries, up to 1,000; by default the setting `default_limit`.
    """

    conversation: str | None
    since: Moment | None
    until: Moment | None
    action: str | None
    limit: int | None


class LogQuery(NamedTuple):
    """A parsed audit log query; see `LogFilters`.

    Attributes:
        memory: The id of the memory, or the first characters of an id.
        is_whole_id: Whether `memory` must match exactly, because it isn't a UUID: another program
            chose it.
    """

    memory: str | None
    is_whole_id: bool
    conversation: str | None
    since: datetime | None
    until: datetime | None
    action: str | None
    limit: int = 10

    def matches(self, entry: ChainEntry, digests: set[str]) -> bool:
        """Return whether at least one change in an entry meets all conditions."""
        for action, *items in entry.changes:
            if self.action not in (None, action):
                continue
            if any(self._is_about(parse_item(item), digests) for item in items):
                return True
        return False

    def _is_about(self, item: Item, digests: set[str]) -> bool:
        if self.memory is None and self.conversation is None:
            return True
        if self.conversation is not None and item.digest in digests:
            return True
        if self.memory is None or item.memory is None:
            return False
        if self.is_whole_id:
            return item.memory == self.memory
        return item.memory.startswith(self.memory)


def parse_query(memory_id: str | None, filters: LogFilters, now: datetime) -> LogQuery:
    """Parse a query's id and filters.

    Args:
        memory_id: The id of a memory, or the first characters of an id. An id that another
            program chose must match exactly.
        filters: Further filters.
        now: The current time; "7d" means seven days before it.

    Raises:
        InvalidInput: A value is invalid.
    """
    for name in filters:
        if name not in LogFilters.__annotations__:
            names = ", ".join(LogFilters.__annotations__)
            raise InvalidInput(f'there is no filter "{name}"; use {names}')
    action, conversation = filters.get("action"), filters.get("conversation")
    if action is not None and action not in LOG_ACTIONS:
        shown = validate.shown(str(action))
        raise InvalidInput(f'"{shown}" is not an action; use {", ".join(LOG_ACTIONS)}')
    if memory_id is not None and conversation is not None:
        raise InvalidInput("an entry is about either a memory or a conversation; give only one")
    since = to_moment(filters.get("since"), now)
    until = to_moment(filters.get("until"), now, end_of_day=True)
    if since is not None and until is not None and since > until:
        raise InvalidInput("since is later than until; swap them")
    memory, is_whole_id = memory_id, False
    if memory_id is not None:
        try:
            memory = parse_id(memory_id)
        except InvalidInput:
            if not isinstance(memory_id, str) or not memory_id.strip():
                raise
            is_whole_id = True
    if conversation is not None:
        conversation = validate.one_line(conversation, "conversation id")
    return LogQuery(memory, is_whole_id, conversation, since, until, action)


# --- reading


def read_entries(store: Store, namespaces: Sequence[str], query: LogQuery) -> list[LogEntry]:
    """Return the log entries of some namespaces that match a query, newest first.

    Raises:
        StoreDamaged: A record isn't a log entry; `verify` reports which.
    """
    chains = [_newest_first(store, namespace, query) for namespace in namespaces]
    merged = heapq.merge(*chains, key=lambda pair: pair[1].at, reverse=True)
    entries = list(islice(merged, query.limit))
    refs = [record.ref for record, _ in entries]
    successors = {ref._replace(position=ref.position - 1): ref for ref in refs if ref.position > 1}
    before = store.read(list(successors))
    predecessors = {successors[record.ref]: _read_entry(record) for record in before}
    names = _names(store, [entry for _, entry in entries], query.conversation)
    return [
        LogEntry(
            number=entry.number,
            at=entry.at,
            namespace=entry.namespace,
            actor=entry.actor,
            changes=_changes(entry, names),
            previous=_previous_hash(entry, predecessors.get(record.ref)),
            hash=entry.hash,
        )
        for record, entry in entries
    ]


def _newest_first(
    store: Store, namespace: str, query: LogQuery
) -> Iterator[tuple[Record, ChainEntry]]:
    chain = chain_of(namespace)._replace(since=query.since, until=query.until)
    digests: set[str] = set()
    if query.conversation is not None:
        for salt in _salts(store, namespace):
            digests.add(conversation_digest(salt, query.conversation))
    for record in _scan(store, chain, newest_first=True):
        entry = _read_entry(record)
        if query.matches(entry, digests):
            yield record, entry


def _scan(store: Store, chain: Filter, *, newest_first: bool = False) -> Iterator[Record]:
    for page in scan_pages(store, chain, newest_first=newest_first):
        yield from page


def _read_entry(record: Record) -> ChainEntry:
    try:
        entry = parse_entry(record)
        for item in _items(entry):
            parse_item(item)
    except ValueError as exc:
        raise StoreDamaged(
            f"entry {record.ref.position} of the log of {record.ref.namespace} can't be read; "
            "run: memory log --verify"
        ) from exc
    return entry


def _items(entry: ChainEntry) -> Iterator[str]:
    for _, *items in entry.changes:
        yield from items


def _salts(store: Store, namespace: str) -> list[str]:
    """Return the salts of the conversation digests; a store merged from copies has several."""
    refs = [Ref(Collection.LOG, namespace, CHAIN, position) for position in (1, 2)]
    salts = [_read_entry(record).salt for record in store.read(refs)]
    return [salt for salt in salts if salt] or [""]


def _previous_hash(entry: ChainEntry, predecessor: ChainEntry | None) -> str | None:
    candidates = [""] if predecessor is None else [predecessor.hash, ""]
    for previous in candidates:
        if hash_of(entry, previous) == entry.hash:
            return previous
    return None


def _names(
    store: Store, entries: Sequence[ChainEntry], conversation: str | None
) -> dict[tuple[str, str], str]:
    """Return the names of conversations, keyed by namespace and digest.

    Only existing conversations, and the requested one, can be named.
    """
    names: dict[tuple[str, str], str] = {}
    for namespace in {entry.namespace for entry in entries}:
        items: list[str] = []
        for entry in entries:
            if entry.namespace == namespace:
                items += _items(entry)
        if not any(parse_item(item).digest for item in items):
            continue
        turns = Filter(Collection.HISTORY, (namespace,), state="any")
        groups = [group for _, group in store.groups(turns, limit=_MAX_CONVERSATIONS)]
        if conversation is not None:
            groups.append(conversation)
        for salt in _salts(store, namespace):
            for name in groups:
                names[namespace, conversation_digest(salt, name)] = name
    return names


def _changes(entry: ChainEntry, names: Mapping[tuple[str, str], str]) -> tuple[Change, ...]:
    changes: list[Change] = []
    for action, *items in entry.changes:
        for item in map(parse_item, items):
            name = None
            if item.digest:
                name = names.get((entry.namespace, item.digest), f"#{item.digest}")
            changes.append(Change(action, item.memory, name, item.first, item.last))
    return tuple(changes)


# --- verifying


def verify(store: Store, namespaces: Sequence[str], against: str | None) -> list[LogCheck]:
    """Verify the logs of some namespaces; see `Memories.verify_log`."""
    if against is not None:
        against = str(against).strip().lower()
        if not _HASH.fullmatch(against):
            raise InvalidInput(
                "against must be the hash that memory log --verify prints as head: 64 hexadecimal "
                "digits"
            )
    chains = [_verify_chain(store, namespace) for namespace in namespaces]
    if against is not None and not any(chain.has_hash(against) for chain in chains):
        problem = f"it has no entry {against[:12]}…: its end was cut off, or it was rewritten"
        for chain in chains:
            chain.report(problem)
    return [chain.result() for chain in chains]


class _Address(NamedTuple):
    """The address of a logged record, and the time when the record was written."""

    collection: Collection
    group: str
    position: int
    created_at: datetime


def _verify_chain(store: Store, namespace: str) -> "_ChainCheck":
    check = _ChainCheck(namespace)
    # The records are read first, so that the log already has an entry for each of them.
    addresses: list[_Address] = []
    for collection in SEARCHED:
        for page in pages(store, Part(collection, namespace)):
            for record in page:
                ref = record.ref
                addresses.append(_Address(collection, ref.group, ref.position, record.created_at))
    for record in _scan(store, chain_of(namespace)):
        check.add(record)
    check.compare(addresses)
    return check


class _ChainCheck:
    """Verifies the entries of one log, oldest first."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._hashes: dict[int, list[bytes]] = {}  # hashes of the entries, keyed by number
        self._written: set[int] = set()  # hashes of the addresses of written records
        self._salts: list[str] = []
        self._last: Record | None = None
        self._since: datetime | None = None
        self._entry_count = 0
        self._unlogged = 0
        self._head: str | None = None
        self._problem: str | None = None

    def report(self, problem: str) -> None:
        """Report a problem; only the first one is kept."""
        self._problem = self._problem or problem

    def has_hash(self, digest: str) -> bool:
        """Return whether any entry has this hash."""
        return any(bytes.fromhex(digest) in hashes for hashes in self._hashes.values())

    def add(self, record: Record) -> None:
        """Verify the next entry."""
        position = record.ref.position
        expected = 1 if self._last is None else self._last.ref.position + 1
        if position != expected:
            self.report(f"entry {expected} is missing")
        self._last = record
        self._since = self._since or record.created_at
        self._entry_count += 1
        try:
            entry = _read_entry(record)
        except StoreDamaged:
            self.report(f"entry {position} is not what was written")
            return
        self._add_hash(entry, position)
        if entry.salt:
            self._salts.append(entry.salt)
        self._add_written(entry)

    def _add_hash(self, entry: ChainEntry, position: int) -> None:
        # In a store merged from copies, two entries may have the same number, and the positions of
        # later entries are higher than their numbers.
        predecessors = [""]
        if entry.number > 1:
            predecessors = [digest.hex() for digest in self._hashes.get(entry.number - 1, [])]
        if not any(hash_of(entry, previous) == entry.hash for previous in predecessors):
            self.report(f"entry {position}, or the one before it, was changed or moved")
        hashes = self._hashes.setdefault(entry.number, [])
        digest = bytes.fromhex(entry.hash)
        if digest in hashes:
            self.report(f"entry {position} occurs twice")
        hashes.append(digest)
        self._head = entry.hash

    def _add_written(self, entry: ChainEntry) -> None:
        for action, *items in entry.changes:
            if action not in _WRITING:
                continue
            for item in map(parse_item, items):
                last = min(item.last, item.first + _MAX_POSITIONS)
                self._written.add(_hash_address(item.memory, item.digest, _ANY))
                for position in range(item.first, last + 1):
                    self._written.add(_hash_address(item.memory, item.digest, position))

    def compare(self, addresses: Iterable[_Address]) -> None:
        """Check that the log names every record, except those older than its first entry."""
        has_forks = bool(self._forks())
        for collection, group, position, created_at in addresses:
            if self._since is not None and created_at < self._since:
                continue
            # If both sides of a merge used the same position for a version, the merge moved one
            # version. So a merged log shows that a memory was written, but not which version.
            logged_position = _ANY if has_forks else position
            if collection is Collection.MEMORY:
                hashes = [_hash_address(group, "", logged_position)]
            else:
                digests = [conversation_digest(salt, group) for salt in self._salts]
                hashes = [_hash_address(None, digest, logged_position) for digest in digests]
            if not self._written.intersection(hashes):
                self._unlogged += 1
                self.report(
                    f"{collection} {group} ({position}) is not in the log: entries were removed, "
                    "or another program or an older version wrote that record"
                )

    def _forks(self) -> tuple[int, ...]:
        return tuple(number for number, hashes in self._hashes.items() if len(hashes) > 1)

    def result(self) -> LogCheck:
        """Return the result of the verification."""
        return LogCheck(
            namespace=self._namespace,
            entries=self._entry_count,
            since=self._since,
            until=self._last.created_at if self._last else None,
            head=self._head,
            forks=self._forks(),
            unlogged=self._unlogged,
            problem=self._problem,
        )


def _hash_address(memory: str | None, digest: str, position: int) -> int:
    return hash((memory, digest, position))
