"""Reads listings: sorted pages of memories, counts by tag and day, and the status of the store."""

import functools
import heapq
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.ids import ID_LENGTH, parse_id
from memories.core.times import to_millis
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import HELD, is_reserved
from memories.models import PENDING, NamespaceCounts, Status
from memories.read import versions
from memories.read.lookup import (
    Lookup,
    apply_filters,
    count_turns,
    only_pending,
    select_accepted,
    with_global,
    with_past_reinforcement,
)
from memories.settings import Config
from memories.stores.protocol import PAGE_SIZE, Store, name_spaces, scan_pages
from memories.stores.records import SEARCHED, Collection, Filter, Record, Ref

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.read.selector import Selector

Position = tuple[str, int, str]  # a record's position in a listing: id, version, namespace
Selects = Callable[[Record], bool]


class Listing(NamedTuple):
    """The filters and order of a list; see `Memories.list`.

    Attributes:
        filters: `tags`, `written_by`, `trust`, `since`, `until` and `as_of`.
        deleted: List deleted memories instead of current ones.
        pending: List memories that await review instead.
        selector: Selects memories by an expression; None for no expression.
        project: List only global memories and memories of this project.
        sort: The name of the order; None for `created`.
        reverse: Reverse the order.
    """

    filters: Mapping[str, Any]
    deleted: bool
    pending: bool
    selector: "Selector | None"
    project: str | Sequence[str] | None
    sort: str | None
    reverse: bool

    def page(
        self, lookup: Lookup, limit: int, cursor: str | None, now: datetime, half_life_hours: float
    ) -> tuple[Sequence[Record], str | None]:
        """Return the records of a page, and the cursor of the next page.

        Args:
            lookup: The store, and the namespaces to read.
            limit: The maximum number of records.
            cursor: The cursor of this page; None for the first one.
            now: The time for which confidence is computed.
            half_life_hours: See `read.versions.compute_decay`.

        Raises:
            InvalidInput: A value is invalid.
        """
        where = apply_filters(lookup.where(), self.filters, now)
        if self.deleted:
            where = where._replace(state="ended", ended_by="delete")
        if self.pending:
            where = only_pending(where)
        is_past = where.as_of is not None
        confidence = functools.partial(
            versions.confidence, now=now, half_life_hours=half_life_hours
        )
        order = parse_order(self.sort, confidence, reverse=self.reverse, is_past=is_past)
        selects: Selects | None = None
        if self.selector is not None:
            from memories.read.selector import plan_listing

            where, selects = plan_listing(self.selector, where)
        alternatives = with_global(where, lookup.names_of_project(self.project))
        records, next_cursor = read_page(lookup, alternatives, limit, cursor, selects, order)
        if where.as_of is not None:
            records = with_past_reinforcement(lookup.store, records, where.as_of)
        return records, next_cursor


class Order(NamedTuple):
    """The order of a listing.

    Attributes:
        value: Returns the value that records are sorted by; None for the order of creation.
        descending: Whether the largest values come first and, among records with equal values, the
            newest. Otherwise the smallest and the oldest come first.
    """

    value: Callable[[Record], Any] | None
    descending: bool

    def key(self, record: Record) -> tuple[Any, str, int, str]:
        """Return a record's sort key."""
        assert self.value is not None
        return (self.value(record), *_position(record))

    def puts_after(self, bound: tuple[Any, str, int, str], record: Record) -> bool:
        """Return whether a record comes after the one with a given sort key."""
        key = self.key(record)
        return key != bound and (key < bound) is self.descending


NEWEST_FIRST = Order(None, descending=True)


def parse_order(
    sort: str | None, confidence: Callable[[Record], float], *, reverse: bool, is_past: bool
) -> Order:
    """Return the order with a given name; see `Memories.list`.

    Args:
        sort: The name; None for `created`.
        confidence: Computes a record's confidence.
        reverse: Reverse the order.
        is_past: The listing shows a past state.

    Raises:
        InvalidInput: There is no such order, or it does not work for a past time.
    """
    values: dict[str, Callable[[Record], Any] | None] = {
        "created": None,
        "updated": attrgetter("created_at"),
        "reinforced": lambda record: int(record.fields.get("reinforced_at", 0)),
        "confidence": confidence,
        "accesses": attrgetter("accesses"),
        "version": attrgetter("ref.position"),
        "key": lambda record: versions.plain_key(record.key) or "",
    }
    if sort is None:
        sort = "created"
    if not isinstance(sort, str) or sort not in values:
        raise InvalidInput(
            f'"{validate.shown(str(sort))}" is not an order; use {", ".join(values)}'
        )
    if is_past and sort in ("reinforced", "confidence", "accesses"):
        raise InvalidInput(
            f"past values of {sort} are not kept, so as_of can't be combined with this order; omit "
            "sort or as_of"
        )
    return Order(values[sort], descending=(sort != "key") is not reverse)


# --- pages ---


def read_page(
    lookup: Lookup,
    where: Filter | Sequence[Filter],
    limit: int,
    cursor: str | None,
    selects: Selects | None = None,
    order: Order = NEWEST_FIRST,
) -> tuple[list[Record], str | None]:
    """Return a page of records, and the cursor of the next page if there is one.

    Args:
        lookup: The store, and the namespaces to read.
        where: A filter, or several; a record must match one of them.
        limit: The maximum number of records.
        cursor: The cursor from the previous page.
        selects: An additional condition. Records are read until enough of them meet it.
        order: The order. To sort by a value, every matching record is read.
    """
    alternatives = (where,) if isinstance(where, Filter) else tuple(where)
    after = None if cursor is None else _parse_cursor(lookup, cursor)
    if order.value is not None:
        records = _read_sorted(lookup, alternatives, limit + 1, after, selects, order)
    else:
        records = _read_in_order_of_creation(lookup, alternatives, limit + 1, after, selects, order)
    if len(records) <= limit:
        return records, None
    return records[:limit], _format_cursor(lookup, records[limit - 1])


def _read_in_order_of_creation(
    lookup: Lookup,
    alternatives: Sequence[Filter],
    count: int,
    after: Position | None,
    selects: Selects | None,
    order: Order,
) -> list[Record]:
    """Return at least `count` records in order of creation, or all if there are fewer."""
    selected: list[Record] = []
    batch_size = count
    while len(selected) < count:
        records = _scan(lookup, alternatives, batch_size, after, newest_first=order.descending)
        accepted = select_accepted(records, alternatives[0].as_of)
        selected += accepted if selects is None else filter(selects, accepted)
        if len(records) < batch_size:
            break
        after = _position(records[-1])
        batch_size = min(2 * batch_size, max(batch_size, PAGE_SIZE))
    return selected


def _read_sorted(
    lookup: Lookup,
    alternatives: Sequence[Filter],
    count: int,
    after: Position | None,
    selects: Selects | None,
    order: Order,
) -> list[Record]:
    """Return the first `count` records, sorted by value, keeping only that many in memory.

    Raises:
        InvalidInput: The last record of the previous page is gone.
    """
    select_first = heapq.nlargest if order.descending else heapq.nsmallest
    is_following: Selects | None = None
    if after is not None:
        bound = order.key(_read_at(lookup, alternatives, after))
        is_following = functools.partial(order.puts_after, bound)
    first: list[Record] = []
    position: Position | None = None
    while records := _scan(lookup, alternatives, PAGE_SIZE, position, newest_first=True):
        position = _position(records[-1])
        selected = select_accepted(records, alternatives[0].as_of)
        if selects is not None:
            selected = list(filter(selects, selected))
        if is_following is not None:
            selected = list(filter(is_following, selected))
        first = select_first(count, [*first, *selected], key=order.key)
    return first


def _read_at(lookup: Lookup, alternatives: Sequence[Filter], position: Position) -> Record:
    group, version, namespace = position
    records = lookup.store.read([Ref(alternatives[0].collection, namespace, group, version)])
    if not records:
        raise InvalidInput(
            "the last item of the previous page no longer exists; begin again without the cursor"
        )
    return records[0]


def _scan(
    lookup: Lookup,
    alternatives: Sequence[Filter],
    limit: int,
    after: Position | None,
    *,
    newest_first: bool,
) -> list[Record]:
    """Return the records that match any of several filters, in order of creation."""
    start = None if after is None else after[:2]
    by_ref: dict[Ref, Record] = {}
    for where in alternatives:
        page = lookup.store.scan(where, limit=limit, after=start, newest_first=newest_first)
        if len(where.namespaces) > 1:
            page += _read_copies(lookup, where, start, page)
        by_ref |= {record.ref: record for record in page}
    records = list(by_ref.values())
    if after is not None:
        compare = operator.lt if newest_first else operator.gt
        records = [record for record in records if compare(_position(record), after)]
    return sorted(records, key=_position, reverse=newest_first)[:limit]


def _read_copies(
    lookup: Lookup, where: Filter, start: tuple[str, int] | None, records: Sequence[Record]
) -> list[Record]:
    """Return the records at both ends of a scan, with their copies in other namespaces.

    A scan of several namespaces may begin or end between two copies of the same memory.
    """
    ends = [_position(record)[:2] for record in records[-1:]]
    if start is not None:
        ends.insert(0, start)
    refs = [Ref(where.collection, name, *end) for end in ends for name in where.namespaces]
    return list(filter(where.fits, lookup.store.read(refs)))


def _position(record: Record) -> Position:
    """Return a record's position in a listing. Ids sort in order of creation."""
    return record.ref.group, record.ref.position, record.ref.namespace


def _format_cursor(lookup: Lookup, last: Record) -> str:
    group, version, namespace = _position(last)
    address = f"{group}.{version}"
    if namespace == lookup.namespace:
        return address
    return f"{address}@{namespace}"


def _parse_cursor(lookup: Lookup, cursor: str) -> Position:
    address, _, namespace = str(cursor).rpartition("@")
    if namespace not in lookup.readable:
        address, namespace = str(cursor), lookup.namespace
    group, separator, version = address.rpartition(".")
    if separator and version.isascii() and version.isdigit() and len(version) <= 9:
        memory_id = _parse_full_id(lookup, group)
        if memory_id is not None:
            return memory_id, int(version), namespace
    raise InvalidInput("the cursor was not returned by an earlier list; begin again without it")


def _parse_full_id(lookup: Lookup, group: str) -> str | None:
    if len(group) == ID_LENGTH:
        try:
            return parse_id(group)
        except InvalidInput:
            pass
    return group if lookup.is_foreign_id(group) else None


# --- counts ---


def count_namespaces(lookup: Lookup, moment: datetime | None) -> tuple[NamespaceCounts, ...]:
    """Return the size of each namespace in the store, sorted by name; see `Memories.namespaces`.

    For a past moment, only the counts that the store can reconstruct are set. Namespaces that were
    empty at that moment are left out.
    """
    names = {name for collection in SEARCHED for name in lookup.store.namespaces(collection)}
    sizes: list[NamespaceCounts] = []
    for name in sorted(names):
        size = _count_namespace(lookup, name, moment)
        if moment is None or size.memory_count or size.turn_count:
            sizes.append(size)
    return tuple(sizes)


def _count_namespace(lookup: Lookup, namespace: str, moment: datetime | None) -> NamespaceCounts:
    store, is_readable = lookup.store, namespace in lookup.readable
    where = Filter(Collection.MEMORY, (namespace,))
    turns = where._replace(collection=Collection.HISTORY)
    if moment is not None:
        past = where._replace(as_of=moment)
        unaccepted_count = sum(1 for _ in _find_pending_at(store, past))
        memory_count = store.count(past) - unaccepted_count
        turn_count = store.count(turns._replace(until=moment))
        return NamespaceCounts(namespace, memory_count, None, None, turn_count, is_readable)
    return NamespaceCounts(
        namespace,
        memory_count=store.count(where),
        pending_count=store.count(only_pending(where)),
        deleted_count=store.count(where._replace(state="ended", ended_by="delete")),
        turn_count=store.count(turns),
        read=is_readable,
    )


def _find_pending_at(store: Store, where: Filter) -> Iterator[Record]:
    """Yield the records that a filter for a past time matches although they awaited review then."""
    assert where.as_of is not None
    moment = to_millis(where.as_of)
    for namespace in where.namespaces:  # namespaces may share ids
        held = where._replace(namespaces=(namespace,), labels={**where.labels, HELD: "1"})
        for page in scan_pages(store, held):
            yield from (record for record in page if versions.accepted_at(record) > moment)


def count_tags(lookup: Lookup, where: Filter, key: str | None) -> dict[str, int]:
    """Return the tag keys in use, or the values of one key, each with its number of memories."""
    counts = Counter(lookup.store.labels(where, key))
    if where.as_of is not None:
        for record in _find_pending_at(lookup.store, where):
            if key is None:
                counts.subtract(record.labels.keys())
            elif key in record.labels:
                counts.subtract([record.labels[key]])
    return {
        name: count
        for name, count in counts.items()
        if count > 0 and (key or not is_reserved(name))
    }


def count_days(lookup: Lookup) -> dict[date, int]:
    """Return the number of versions written on each UTC day, oldest first. Memories that have
    not been reviewed yet are not counted.
    """
    where = lookup.where()
    counts = Counter(lookup.store.days(where._replace(state="any")))
    pending = where._replace(state="ended", ended_by=PENDING)
    if lookup.store.count(pending, at_most=1):
        counts.subtract(lookup.store.days(pending))
    return {date(1970, 1, 1) + timedelta(day): count for day, count in counts.items() if count}


def status(lookup: Lookup, config: Config, embedder: "Embedder | None") -> Status:
    """Return where memories are stored, how many there are, and damage found by a quick check."""
    store, where = lookup.store, lookup.where()
    history = where._replace(collection=Collection.HISTORY)
    of_memories, of_turns = store.info(where), store.info(history)
    stored, used = of_memories.model, "none"
    if embedder:
        stored, used = name_spaces(of_memories, embedder.space)
    damage: list[str] = []
    for finding in store.check(deep=False):
        is_readable = finding.ref is None or finding.ref.namespace in lookup.readable
        damage.append(finding.what if is_readable else "a record of another namespace is damaged")
    return Status(
        store=of_memories.url,
        collection=of_memories.collection or config.collection_name,
        namespace=lookup.namespace,
        namespaces_read=lookup.readable,
        memory_count=store.count(where),
        deleted_count=store.count(where._replace(state="ended", ended_by="delete")),
        without_vector_count=of_memories.without_vector_count + of_turns.without_vector_count,
        turn_count=count_turns(store, history),
        embedder=used,
        store_model=stored,
        schema_version=of_memories.schema_version,
        size_bytes=of_memories.size_bytes,
        erasing=of_memories.erasing,
        log_bytes=of_memories.log_bytes,
        missing_commits=of_memories.missing_commits,
        damage=tuple(damage),
        read_only=of_memories.read_only,
        compact=of_memories.compact,
        pending_count=store.count(only_pending(where)),
    )
