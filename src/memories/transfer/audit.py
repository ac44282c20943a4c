"""Reading the audit log: what was changed, by whom and when, and whether the log itself is
whole.
"""

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple, TypedDict

from memories.core.ids import parse_id
from memories.core.times import to_moment
from memories.errors import InvalidInput, StoreDamaged
from memories.guard import validate
from memories.models import Change, LogCheck, LogEntry, Moment
from memories.stores.chain import (
    CHAIN,
    Link,
    chain_of,
    conversation_digest,
    hash_of,
    link_of,
    parse_item,
)
from memories.stores.protocol import Store
from memories.stores.records import SEARCHED, Collection, Filter, Record, Ref
from memories.transfer.pages import Place, pages

ACTIONS = tuple(
    "create update restore delete supersede reinforce rollback turns forget import undone change".split()
)
_PAGE = 250
_MOST_CONVERSATIONS = 100_000  # whose names are looked up
_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_IN_ITEM = 1_000_000
_ANY = -1  # stands for all positions
_WRITING = ("create", "update", "restore", "rollback", "turns", "import")


class LogFilters(TypedDict, total=False):
    """What narrows a reading of the audit log.

    Attributes:
        conversation: Only changes of this conversation, also of one that was forgotten.
        since: Only entries of this time or later: an aware datetime, or text such as "7d".
        until: Only entries of this time or earlier.
        action: Only entries with this action; see `Change`.
        limit: How many at most, up to 1,000; by default the setting `default_limit`.
    """

    conversation: str | None
    since: Moment | None
    until: Moment | None
    action: str | None
    limit: int | None


class Wanted(NamedTuple):
    """Which entries are asked for; see `LogFilters`.

    Attributes:
        memory: How the id of the memory begins.
        whole: Whether it is a whole id, which another program gave.
    """

    memory: str | None
    whole: bool
    conversation: str | None
    since: datetime | None
    until: datetime | None
    action: str | None
    limit: int = 10

    def fits(self, link: Link, digests: set[str]) -> bool:
        """Return whether an entry has a change that is asked for; all conditions must hold for one
        change.
        """
        return any(
            self.action in (None, action) and self._is_about(item, digests)
            for action, *items in link.changes
            for item in items
        )

    def _is_about(self, item: str, digests: set[str]) -> bool:
        if self.memory is None and self.conversation is None:
            return True
        found = parse_item(item)
        if self.conversation is not None and found.digest in digests:
            return True
        if self.memory is None or found.memory is None:
            return False
        return found.memory == self.memory if self.whole else found.memory.startswith(self.memory)


def wanted(memory_id: str | None, given: LogFilters, now: datetime) -> Wanted:
    """Return which entries are asked for.

    Args:
        memory_id: The id of a memory, or how it begins; an id that is none of ours is taken as it
            stands.
        given: Further conditions.
        now: What "7d" counts from.

    Raises:
        InvalidInput: A value is not acceptable.
    """
    for name in given:
        if name not in LogFilters.__annotations__:
            raise InvalidInput(
                f'there is no filter "{name}"; use {", ".join(LogFilters.__annotations__)}'
            )
    action, conversation = given.get("action"), given.get("conversation")
    if action is not None and action not in ACTIONS:
        raise InvalidInput(
            f'"{validate.shown(str(action))}" is no action; use {", ".join(ACTIONS)}'
        )
    if memory_id is not None and conversation is not None:
        raise InvalidInput("an entry is about a memory or a conversation; name one of them")
    since, until = (
        to_moment(given.get("since"), now),
        to_moment(given.get("until"), now, end_of_day=True),
    )
    if since is not None and until is not None and since > until:
        raise InvalidInput("since is later than until; exchange them")
    memory, whole = memory_id, False
    if memory_id is not None:
        try:
            memory = parse_id(memory_id)
        except InvalidInput:
            if not isinstance(memory_id, str) or not memory_id.strip():
                raise
            whole = True
    if conversation is not None:
        conversation = validate.one_line(conversation, "conversation id")
    return Wanted(memory, whole, conversation, since, until, action)


# --- reading
# ---------------------------------------------------------------------------------------------------------


def entries(store: Store, namespaces: Sequence[str], asked: Wanted) -> list[LogEntry]:
    """Return entries of the logs of some namespaces, newest first.

    Raises:
        StoreDamaged: One of them is none; the check of the log says more.
    """
    walks = [_newest_first(store, namespace, asked) for namespace in namespaces]
    merged = heapq.merge(*walks, key=lambda found: found[1].at, reverse=True)
    found = list(islice(merged, asked.limit))
    before = _before(store, [record.ref for record, _ in found])
    names = _names(store, [link for _, link in found], asked.conversation)
    return [
        LogEntry(
            number=link.number,
            at=link.at,
            namespace=link.namespace,
            actor=link.actor,
            changes=_changes(link, names),
            previous=_previous(link, before.get(record.ref)),
            hash=link.hash,
        )
        for record, link in found
    ]


def _newest_first(store: Store, namespace: str, asked: Wanted) -> Iterator[tuple[Record, Link]]:
    where = chain_of(namespace)._replace(since=asked.since, until=asked.until)
    digests: set[str] = set()
    if asked.conversation is not None:
        digests = {
            conversation_digest(salt, asked.conversation) for salt in _salts(store, namespace)
        }
    after = None
    while page := store.scan(where, limit=_PAGE, after=after, newest_first=True):
        for record in page:
            link = _link(record)
            if asked.fits(link, digests):
                yield record, link
        after = page[-1].ref.group, page[-1].ref.position


def _link(record: Record) -> Link:
    try:
        link = link_of(record)
        for _, *items in link.changes:
            for item in items:
                parse_item(item)
    except ValueError as exc:
        raise StoreDamaged(
            f"entry {record.ref.position} of the log of {record.ref.namespace} can't be read; run: memory log --verify"
        ) from exc
    return link


def _salts(store: Store, namespace: str) -> list[str]:
    """Return what the digests of conversations were made with; of merged copies of a store there
    may be several.
    """
    first = store.read([Ref(Collection.LOG, namespace, CHAIN, position) for position in (1, 2)])
    return [salt for salt in (_link(record).salt for record in first) if salt] or [""]


def _before(store: Store, refs: Sequence[Ref]) -> dict[Ref, Link]:
    """Return the entries that stand before some others."""
    wanted_refs = {ref._replace(position=ref.position - 1): ref for ref in refs if ref.position > 1}
    return {wanted_refs[record.ref]: _link(record) for record in store.read(list(wanted_refs))}


def _previous(link: Link, before: Link | None) -> str | None:
    for previous in ("",) if before is None else (before.hash, ""):
        if hash_of(link, previous) == link.hash:
            return previous
    return None


def _names(store: Store, found: Sequence[Link], asked: str | None) -> dict[tuple[str, str], str]:
    """Return the names of conversations by namespace and digest, as far as the conversations are
    still there.
    """
    names: dict[tuple[str, str], str] = {}
    for namespace in {link.namespace for link in found}:
        own = (change for link in found if link.namespace == namespace for change in link.changes)
        if not any(parse_item(item).digest for _, *items in own for item in items):
            continue
        where = Filter(Collection.HISTORY, (namespace,), state="any")
        known = [group for _, group in store.groups(where, limit=_MOST_CONVERSATIONS)]
        for salt in _salts(store, namespace):
            for name in [*known, *([asked] if asked is not None else [])]:
                names[namespace, conversation_digest(salt, name)] = name
    return names


def _changes(link: Link, names: Mapping[tuple[str, str], str]) -> tuple[Change, ...]:
    found: list[Change] = []
    for action, *items in link.changes:
        for item in map(parse_item, items):
            said = (
                names.get((link.namespace, item.digest), f"#{item.digest}") if item.digest else None
            )
            found.append(Change(action, item.memory, said, item.first, item.last))
    return tuple(found)


# --- checking
# --------------------------------------------------------------------------------------------------------


def verify(store: Store, namespaces: Sequence[str], against: str | None) -> list[LogCheck]:
    """Check the logs of some namespaces; see `Memories.verify_log`."""
    if against is not None:
        against = str(against).strip().lower()
        if not _HASH.fullmatch(against):
            raise InvalidInput(
                "against takes a hash that memory log --verify printed as head: 64 hexadecimal digits"
            )
    chains = [_checked(store, namespace) for namespace in namespaces]
    if against is not None and not any(chain.has(against) for chain in chains):
        for chain in chains:
            chain.tell(f"it has no entry {against[:12]}…: its end was cut off, or it was rewritten")
    return [chain.result() for chain in chains]


def _checked(store: Store, namespace: str) -> "_Chain":
    chain = _Chain(namespace)
    # Records come first: what is read of them was logged before the log is read.
    there = [
        (collection, record.ref.group, record.ref.position, record.created_at)
        for collection in SEARCHED
        for page in pages(store, Place(collection, namespace))
        for record in page
    ]
    after = None
    while page := store.scan(chain_of(namespace), limit=_PAGE, after=after):
        for record in page:
            chain.add(record)
        after = page[-1].ref.group, page[-1].ref.position
    chain.compare(there)
    return chain


class _Chain:
    """What is known of a chain while it is read from its beginning."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._hashes: dict[int, list[bytes]] = {}  # of the entries, by their numbers
        self._written: set[int] = set()  # hashes of the addresses of what was written
        self._salts: list[str] = []
        self._last: Record | None = None
        self._since: datetime | None = None
        self._entries = self._unlogged = 0
        self._head: str | None = None
        self._problem: str | None = None

    def tell(self, problem: str) -> None:
        """Remember what is wrong, unless something before it is."""
        self._problem = self._problem or problem

    def has(self, digest: str) -> bool:
        """Return whether an entry has this hash."""
        return any(bytes.fromhex(digest) in found for found in self._hashes.values())

    def add(self, record: Record) -> None:
        """Check the next entry."""
        position, expected = record.ref.position, self._last.ref.position + 1 if self._last else 1
        if position != expected:
            self.tell(f"entry {expected} is missing")
        self._last, self._since = record, self._since or record.created_at
        self._entries += 1
        try:
            link = _link(record)
        except StoreDamaged:
            self.tell(f"entry {position} is not what was written")
            return
        # Of merged copies of a store, two entries may have one number, and the following ones stand
        # further back.
        before = (
            [found.hex() for found in self._hashes.get(link.number - 1, [])]
            if link.number > 1
            else [""]
        )
        if not any(hash_of(link, previous) == link.hash for previous in before):
            self.tell(f"entry {position} was changed or moved, or the one before it was")
        known = self._hashes.setdefault(link.number, [])
        if bytes.fromhex(link.hash) in known:
            self.tell(f"entry {position} is there twice")
        known.append(bytes.fromhex(link.hash))
        self._head = link.hash
        self._salts += [link.salt] if link.salt else []
        for action, *items in link.changes:
            for item in map(parse_item, items) if action in _WRITING else ():
                last = min(item.last, item.first + _MOST_IN_ITEM)
                self._written.add(_address(item.memory, item.digest, _ANY))
                self._written.update(
                    _address(item.memory, item.digest, each) for each in range(item.first, last + 1)
                )

    def compare(self, there: Sequence[tuple[Collection, str, int, datetime]]) -> None:
        """Check that all records that were written since the log began are in it."""
        forked = bool(self._forks())
        for collection, group, place, created_at in there:
            if self._since is None or created_at < self._since:
                continue
            # A merge moves versions that both sides claimed, so there only the memory itself can be
            # looked for.
            position = _ANY if forked else place
            if collection is Collection.MEMORY:
                addresses = [_address(group, "", position)]
            else:
                addresses = [
                    _address(None, conversation_digest(salt, group), position)
                    for salt in self._salts
                ]
            if not self._written.intersection(addresses):
                self._unlogged += 1
                self.tell(
                    f"{collection} {group} ({place}) is not in it: its end was cut off, or another program wrote "
                    "that record"
                )

    def _forks(self) -> tuple[int, ...]:
        return tuple(number for number, found in self._hashes.items() if len(found) > 1)

    def result(self) -> LogCheck:
        """Return what was found."""
        return LogCheck(
            namespace=self._namespace,
            entries=self._entries,
            since=self._since,
            until=self._last.created_at if self._last else None,
            head=self._head,
            forks=self._forks(),
            unlogged=self._unlogged,
            problem=self._problem,
        )


def _address(memory: str | None, digest: str, position: int) -> int:
    return hash((memory, digest, position))
