"""Memories that are looked up rather than searched: one by its id, a prefix of it or its key, and
pages of many.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from memories.config import is_own_name
from memories.core.ids import ID_LENGTH, MIN_PREFIX, id_prefix, parse_id, storable
from memories.core.times import from_millis, mixes_zones, to_iso, to_millis, to_moment
from memories.errors import AmbiguousId, InvalidInput, NotFound, RequestError
from memories.guard import validate
from memories.guard.origin import HELD, TRUSTS, Place, labels_for
from memories.models import PENDING, SHARED, Draft, NamespaceCounts
from memories.read.versions import accepted_at, is_unaccepted, known_by, plain_key, scoped_key
from memories.settings import Config
from memories.stores.damage import refusal
from memories.stores.protocol import Store, refuse_damaged
from memories.stores.records import ROLE, ROLES, SEARCHED, SPEAKER, Collection, Filter, Record, Ref

_PAGE = 500  # that are read at once for an expression that few may meet
_USUAL_PREFIX = 18  # of an id: the time and 12 random bits
_MILLISECOND = 13  # of an id: the time, which ids that are still to come do not share
_STILL_WRITTEN = timedelta(
    minutes=5
)  # ids that are younger may get neighbours in their minute; clocks differ
_MOST_MINUTES = 100  # that are looked into for neighbours of ids
_MOST_NEIGHBOURS = 1_000
_MOST_PROJECTS = 200  # that are asked for a key
_MOST_VERSIONS = 1_000_000  # more than one memory has
_Place = tuple[str, int, str]  # of a record: its group, its position, its namespace


def accepted(namespace: str, store: Store, config: Config) -> str:
    """Return a namespace, unless it has the name of one of our own files.

    One that an earlier version wrote to is accepted, so that what it holds can be read, exported
    and renamed.

    Raises:
        InvalidInput: It has such a name, and holds nothing.
        StoreError: It has such a name, and the store can't be asked whether it holds anything.
    """
    if is_own_name(namespace, config):
        everything = (Filter(collection, (namespace,), state="any") for collection in SEARCHED)
        if not any(store.count(where, at_most=1) for where in everything):
            validate.refuse_own_name(namespace)
    return namespace


class Lookup(NamedTuple):
    """Looks memories up for one caller.

    Attributes:
        store: Where they are.
        namespace: The namespace that the caller writes to.
        readable: The namespaces that it reads.
    """

    store: Store
    namespace: str
    readable: tuple[str, ...]

    def where(self, **conditions: Any) -> Filter:
        """Return a filter of what the caller may read."""
        return Filter(Collection.MEMORY, self.readable, **conditions)

    def waiting(self, **conditions: Any) -> Filter:
        """Return a filter of what waits to be accepted in the caller's own namespace."""
        return waiting(Filter(Collection.MEMORY, (self.namespace,), **conditions))

    @property
    def own(self) -> "Lookup":
        """The same lookup, limited to the caller's own namespace."""
        return self._replace(readable=(self.namespace,))

    def find(self, memory_id: str, *, deleted: bool = False) -> Record:
        """Return the latest version of a memory; if several namespaces have it, the copy in the
        caller's own one.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters; an id that another
                program gave it, as files may have them, is taken as it stands.
            deleted: Find it although it was deleted.

        Raises:
            NotFound: There is no such memory.
            AmbiguousId: The prefix fits several.
            InvalidInput: It is no id.
            StoreDamaged: Its latest version can't be trusted.
        """
        group = self.group_of(memory_id)
        for namespace in self.readable:
            latest = self._latest(namespace, group)
            if latest is not None and (deleted or latest.ended_by != "delete"):
                return latest
        raise NotFound("Memory not found")

    def _latest(self, namespace: str, group: str) -> Record | None:
        """Return the latest version of a memory in one namespace.

        Raises:
            StoreDamaged: It can't be trusted, and an older version would pass for it.
        """
        mark = self.store.damaged.mark()
        found = self.store.scan(_versions_in(namespace, group), limit=1, newest_first=True)
        position = found[0].ref.position if found else -1
        for finding in self.store.damaged.since(mark):
            ref = finding.ref
            if (
                ref is not None
                and (ref.namespace, ref.group) == (namespace, group)
                and ref.position > position
            ):
                raise refusal(finding)
        return found[0] if found else None

    def group_of(self, memory_id: str) -> str:
        """Return the whole id of a memory without looking at what it says; see `find`."""
        try:
            group = parse_id(memory_id)
            return group if len(group) == ID_LENGTH else self._complete(group)
        except RequestError:
            if not self._is_foreign(memory_id):
                raise
            return memory_id

    def own_group_of(self, memory_id: str) -> str:
        """Return the whole id of a memory in the caller's own namespace, also if it was deleted or
        is damaged.

        Raises:
            NotFound: There is no such memory.
            AmbiguousId: The prefix fits several memories of that namespace.
            RequestError: It is only in a namespace that is read.
        """
        try:
            return self.own._address_of(memory_id)[1]
        except AmbiguousId:
            raise
        except RequestError:
            raise self._not_own(self._address_of(memory_id)[0]) from None

    def _address_of(self, memory_id: str) -> tuple[str, str]:
        """Return the namespace and the whole id of a memory, whatever its state."""
        group = self.group_of(memory_id)
        for address in self.store.groups(self.where(state="any", group=group), limit=1):
            return address
        raise NotFound("Memory not found")

    def find_own(self, memory_id: str, *, deleted: bool = False) -> Record:
        """Return the latest version of a memory in the caller's own namespace; a write changes no
        other one.

        Raises:
            RequestError: It is only in a namespace that is read.
        """
        try:
            return self.own.find(memory_id, deleted=deleted)
        except RequestError:
            self.own_group_of(
                memory_id
            )  # raises an error that names the namespace, if another one has it
            raise

    def find_current(self, memory_id: str) -> Record:
        """Return the latest version of a memory that may be changed.

        Raises:
            RequestError: Another memory has replaced it, or it is only in a namespace that is read.
        """
        latest = self.find_own(memory_id)
        refuse_waiting(latest)
        if latest.ended_at is not None:
            successor = latest.fields.get("superseded_by")
            raise RequestError(
                f"Memory was replaced by {successor}; change that one, or restore this one first"
            )
        return latest

    def by_key(self, stored_key: str) -> Record | None:
        """Return the memory in the caller's own namespace that has a key, given as
        `versions.scoped_key` returns it.

        Raises:
            StoreDamaged: The one that has it can't be trusted.
        """
        where, mark = (
            Filter(Collection.MEMORY, (self.namespace,), key=stored_key),
            self.store.damaged.mark(),
        )
        found = self.store.scan(where, limit=1)
        if not found:
            refuse_damaged(self.store, where, mark)
        return found[0] if found else None

    def group_with_key(self, key: str, project: str | None = None) -> str:
        """Return the id of the memory that has a key; the caller's own namespace goes before the
        shared one.

        Args:
            key: The key.
            project: The project that it belongs to. One outside of projects that is valid in all
                will do as well.

        Raises:
            NotFound: None has it; the message says which projects have one. Or a shared memory has
                it whose id means another memory in the caller's own namespace.
            InvalidInput: It can be no key, or the project no tag.
            StoreDamaged: The one that has it can't be trusted.
        """
        key = validate.key(key)
        tags = {} if project is None else validate.tags({"project": project})
        for namespace in self.readable:
            own = self._replace(namespace=namespace)
            found = own.by_key(scoped_key(key, tags))
            if (
                found is None
                and tags
                and (found := own.by_key(key)) is not None
                and not is_global(found)
            ):
                found = None
            if found is not None:
                self._refuse_hidden(found.ref, key)
                return found.ref.group
        raise NotFound(
            f'Memory not found: none has the key "{key}"{self._where_a_key_is(key, project)}'
        )

    def _refuse_hidden(self, ref: Ref, key: str) -> None:
        """Refuse to name by its id a memory whose id means another one, in the caller's own
        namespace.
        """
        if ref.namespace != self.namespace and self.store.groups(
            self.own.where(state="any", group=ref.group), limit=1
        ):
            raise NotFound(
                f'Memory not found: none in namespace {self.namespace} has the key "{key}"; one in {ref.namespace} has '
                f"it, with the same id as another memory of yours; name it from there (namespace {ref.namespace})"
            )

    def placed(self, draft: Draft, place: Place | None) -> Draft:
        """Return a draft with the project where its writer works, unless it names one or is valid
        in every project.

        A key that is in use outside of projects, and not in this one, names that memory from
        everywhere.
        """
        if place is None or (tags := place.tags(draft.tags)) is draft.tags:
            return draft
        if draft.key is not None:
            key = validate.key(draft.key)
            if self.by_key(scoped_key(key, tags)) is None and self.by_key(key) is not None:
                return draft
        return replace(draft, tags=tags)

    def _where_a_key_is(self, key: str, project: str | None) -> str:
        """Return where a key was looked for, and which projects have it, as the end of a
        sentence.
        """
        place = " outside of projects" if project is None else f' in the project "{project}"'
        projects = self.store.values(Collection.MEMORY, self.readable, "project")[:_MOST_PROJECTS]
        having = [
            name
            for name in projects
            if self.store.count(self.where(key=scoped_key(key, {"project": name})), at_most=1)
        ]
        if project is not None and self.store.count(self.where(key=key), at_most=1):
            return f"{place}; one outside of projects has it"
        return f"{place}; it is there with --project {', '.join(having)}" if having else place

    def versions(self, memory_id: str) -> list[Record]:
        """Return every version of a memory, oldest first; also of a deleted one.

        Raises:
            NotFound: There is no such memory.
        """
        ref = self.find(memory_id, deleted=True).ref
        return self.store.scan(_versions_in(ref.namespace, ref.group), limit=_MOST_VERSIONS)

    def versions_at(self, memory_id: str, moment: datetime) -> list[Record]:
        """Return the versions that a memory had by a time, oldest first, each as it was known then;
        see `versions`.

        Raises:
            NotFound: It was not there yet, or waited to be accepted.
        """
        return self._copies_at(memory_id, moment)[0]

    def _copies_at(self, memory_id: str, moment: datetime) -> list[list[Record]]:
        """Return what `versions_at` does for each namespace that had the memory, the caller's own
        one first.
        """
        records = self.versions(memory_id)
        ref = records[0].ref
        others = (_versions_in(name, ref.group) for name in self.readable if name != ref.namespace)
        copies = [records, *(self.store.scan(where, limit=_MOST_VERSIONS) for where in others)]
        known = [then for then in (known_by(copy, moment) for copy in copies) if then]
        if not known:
            first = next((record for record in records if not is_unaccepted(record)), None)
            since = (
                None if first is None else max(first.created_at, from_millis(accepted_at(first)))
            )
            why = "it waits for review" if since is None else f"it is there since {to_iso(since)}"
            raise NotFound(f"Memory not found at {to_iso(moment)}: {why}")
        return [[*then[:-1], *known_at(self.store, then[-1:], moment)] for then in known]

    def find_at(self, memory_id: str, moment: datetime) -> Record:
        """Return the version of a memory that was current at a time; how often it had been read is
        not known.

        Raises:
            NotFound: It was not there yet, waited to be accepted, or was deleted.
        """
        for *_, latest in self._copies_at(memory_id, moment):
            if latest.ended_by != "delete":
                return latest._replace(accesses=0)
        raise NotFound(f"Memory not found at {to_iso(moment)}: it was deleted")

    def page(
        self,
        where: Filter | Sequence[Filter],
        limit: int,
        cursor: str | None,
        selects: Callable[[Record], bool] | None = None,
        order: "Order | None" = None,
    ) -> tuple[list[Record], str | None]:
        """Return a page of records, newest first, and the cursor of the next page if there is one.

        Args:
            where: Which records; those of any of several filters.
            limit: How many at most.
            cursor: The cursor of the page before.
            selects: Which of these; as many are read as it takes to fill the page.
            order: Another order. One by a value reads all of them, however few are returned.
        """
        filters = (where,) if isinstance(where, Filter) else tuple(where)
        order = order or Order(None, descending=True)
        after = None if cursor is None else self._parse_cursor(cursor)
        if order.value is not None:
            found = self._first(filters, limit + 1, after, selects, order)
        else:
            found, size = [], limit + 1
            while len(found) <= limit:
                read = self._scan(filters, size, after, newest_first=order.descending)
                current = accepted_by_then(read, filters[0].as_of)
                found += current if selects is None else filter(selects, current)
                if len(read) < size:
                    break
                after, size = _place(read[-1]), min(2 * size, max(size, _PAGE))
        if len(found) <= limit:
            return found, None
        group, position, namespace = _place(found[limit - 1])
        return found[:limit], f"{group}.{position}" + (
            "" if namespace == self.namespace else f"@{namespace}"
        )

    def _scan(
        self, filters: Sequence[Filter], limit: int, after: _Place | None, *, newest_first: bool
    ) -> list[Record]:
        """Return what any of several filters matches, as a scan by one returns it, in the order of
        `_place`.
        """
        found: dict[Ref, Record] = {}
        for where in filters:
            start = None if after is None else after[:2]
            read = self.store.scan(where, limit=limit, after=start, newest_first=newest_first)
            if (
                len(where.namespaces) > 1
            ):  # the scan may begin or end between the copies of a memory
                ends = [start, *(_place(record)[:2] for record in read[-1:])]
                copies = [
                    Ref(where.collection, name, *end)
                    for end in ends
                    if end
                    for name in where.namespaces
                ]
                read += filter(where.fits, self.store.read(copies))
            found |= {record.ref: record for record in read}
        ordered = sorted(found.values(), key=_place, reverse=newest_first)
        if after is not None:
            ordered = [
                each
                for each in ordered
                if (_place(each) < after if newest_first else _place(each) > after)
            ]
        return ordered[:limit]

    def _first(
        self,
        filters: Sequence[Filter],
        count: int,
        after: _Place | None,
        selects: Callable[[Record], bool] | None,
        order: "Order",
    ) -> list[Record]:
        """Return the first records in an order by a value, of which only so many are kept in
        memory.

        Raises:
            InvalidInput: What the page before ended with is gone.
        """
        choose, bound = heapq.nlargest if order.descending else heapq.nsmallest, None
        if after is not None:
            group, position, namespace = after
            last = self.store.read([Ref(filters[0].collection, namespace, group, position)])
            if not last:
                raise InvalidInput(
                    "what the page before ended with is gone; begin again without the cursor"
                )
            bound = order.key(last[0])
        found: list[Record] = []
        at = None
        while read := self._scan(filters, _PAGE, at, newest_first=True):
            at = _place(read[-1])
            current = accepted_by_then(read, filters[0].as_of)
            fitting = current if selects is None else filter(selects, current)
            if bound is not None:
                fitting = [
                    each for each in fitting if (order.key(each) < bound) is order.descending
                ]
                fitting = [each for each in fitting if order.key(each) != bound]
            found = choose(count, [*found, *fitting], key=order.key)
        return found

    def _parse_cursor(self, cursor: str) -> _Place:
        address, _, namespace = str(cursor).rpartition("@")
        if namespace not in self.readable:
            address, namespace = str(cursor), self.namespace
        group, separator, position = address.rpartition(".")
        if separator and position.isascii() and position.isdigit() and len(position) <= 9:
            try:
                known = parse_id(group) if len(group) == ID_LENGTH else None
            except InvalidInput:
                known = None
            if known is None and self._is_foreign(group):
                known = group
            if known is not None:
                return known, int(position), namespace
        raise InvalidInput("the cursor is not one that a listing returned; begin again without it")

    def short(self, ids: Sequence[str], now: datetime) -> dict[str, str]:
        """Return for each id the shortest beginning that names it, of 8 or more characters.

        Ids begin with the time, so those of the last minutes get longer ones: memories of the same
        minute may follow.
        """
        recent = id_prefix(now - _STILL_WRITTEN)
        minutes = {name[:MIN_PREFIX] for name in ids if len(name) == ID_LENGTH}
        neighbours: dict[str, list[str]] = {}
        for minute in minutes if len(minutes) <= _MOST_MINUTES else ():
            found = self.store.groups(
                self.where(state="any", group=minute, prefix=True), limit=_MOST_NEIGHBOURS
            )
            if len(found) < _MOST_NEIGHBOURS:
                neighbours[minute] = sorted({group for _, group in found})
        return {
            name: _shortened(
                name,
                neighbours.get(name[:MIN_PREFIX]),
                MIN_PREFIX if name < recent else _MILLISECOND,
            )
            for name in ids
        }

    def counts(self, namespace: str, moment: datetime | None = None) -> NamespaceCounts:
        """Return how much is in a namespace, whoever reads it; or was at a time, as far as that is
        kept.
        """
        where = Filter(Collection.MEMORY, (namespace,))
        read = namespace in self.readable
        if moment is not None:
            then = where._replace(as_of=moment)
            known = self.store.count(then) - sum(1 for _ in still_waiting(self.store, then))
            said = self.store.count(where._replace(collection=Collection.HISTORY, until=moment))
            return NamespaceCounts(namespace, known, None, None, said, read)
        return NamespaceCounts(
            namespace,
            memory_count=self.store.count(where),
            pending_count=self.store.count(waiting(where)),
            deleted_count=self.store.count(where._replace(state="ended", ended_by="delete")),
            turn_count=self.store.count(where._replace(collection=Collection.HISTORY)),
            read=read,
        )

    def _not_own(self, namespace: str) -> RequestError:
        return RequestError(
            f"Memory is in namespace {namespace} and this writes to {self.namespace}; change it from there, or store "
            "one that says what holds instead"
        )

    def _is_foreign(self, memory_id: str) -> bool:
        """Return whether a memory that the caller may read has exactly this id, which need not be
        one of ours.
        """
        if not isinstance(memory_id, str) or not memory_id or not storable(memory_id):
            return False
        return bool(self.store.groups(self.where(state="any", group=memory_id), limit=1))

    def _complete(self, prefix: str) -> str:
        """Return the one id that begins so; one that is still current goes before those that are
        not.
        """
        for state in ("live", "any"):
            where = self.where(state=state, group=prefix, prefix=True)
            found = self.store.groups(
                where, limit=11 * len(self.readable)
            )  # namespaces may share an id
            matches = tuple(sorted({group for _, group in found}))
            if len(matches) == 1:
                return matches[0]
            if matches:
                count = "more than 10" if len(matches) > 10 else str(len(matches))
                raise AmbiguousId(
                    f'"{prefix}" fits {count} memories; give more digits of the id', matches[:10]
                )
        raise NotFound("Memory not found")


def _versions_in(namespace: str, group: str) -> Filter:
    return Filter(Collection.MEMORY, (namespace,), state="any", group=group)


def _shortened(name: str, neighbours: list[str] | None, least: int) -> str:
    """Return the shortest beginning of an id that none of its neighbours has, which are in order;
    `least` or more.
    """
    if neighbours is None or name not in neighbours:
        return name[:_USUAL_PREFIX] if len(name) == ID_LENGTH else name
    at = neighbours.index(name)
    beside = (other for other in neighbours[max(0, at - 1) : at + 2] if other != name)
    same = max((_common(name, other) for other in beside), default=0)
    return name[: max(least, same + 1)]


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with that are the same."""
    return next(
        (at for at, (here, there) in enumerate(zip(one, other, strict=False)) if here != there),
        len(one),
    )


class Order(NamedTuple):
    """In which order records are listed.

    Attributes:
        value: What they are ordered by; None for the order in which they were created.
        descending: The largest, or the newest, goes first; of equal ones the newest.
    """

    value: Callable[[Record], Any] | None
    descending: bool

    def key(self, record: Record) -> tuple[Any, str, int, str]:
        """Return what is compared of a record."""
        assert self.value is not None
        return (self.value(record), *_place(record))


def order_by(
    sort: str, confidence: Callable[[Record], float], *, reverse: bool, as_of: bool
) -> Order:
    """Return the order that a listing is asked for; see `Memories.list`.

    Args:
        sort: Its name.
        confidence: Judges a record.
        reverse: The other way round.
        as_of: What was current at a time is listed.

    Raises:
        InvalidInput: There is no such order, or none of what was current at a time.
    """
    values: dict[str, Callable[[Record], Any] | None] = {
        "created": None,
        "updated": lambda record: to_millis(record.created_at),
        "reinforced": lambda record: record.fields.get("reinforced_at", 0),
        "confidence": confidence,
        "accesses": lambda record: record.accesses,
        "version": lambda record: record.ref.position,
        "key": lambda record: plain_key(record.key) or "",
    }
    if sort not in values:
        raise InvalidInput(f'"{validate.shown(str(sort))}" is no order; use {", ".join(values)}')
    if as_of and sort in ("reinforced", "confidence", "accesses"):
        raise InvalidInput(
            f"what was current at a time is not kept in the order of {sort}; leave sort or as_of out"
        )
    return Order(values[sort], descending=(sort != "key") is not reverse)


def _place(record: Record) -> _Place:
    """Return what records are listed by: their ids, which are in the order of creation, then their
    versions.
    """
    return record.ref.group, record.ref.position, record.ref.namespace


def with_global(where: Filter, project: str | Sequence[str] | None) -> tuple[Filter, ...]:
    """Return filters of what belongs to a project or is valid in every one; without a project the
    filter itself.

    Args:
        where: What else is wanted.
        project: The project, or all names that it has. The last filter is that of what is valid in
            every project.

    Raises:
        InvalidInput: The project can be no tag, or the filter asks for another one.
    """
    if project is None:
        return (where,)
    names = [project] if isinstance(project, str) else project
    projects = [validate.tags({"project": name}) for name in names]
    asked = where.labels.get("project")
    if asked is not None and {"project": asked} not in projects:
        raise InvalidInput(
            f'the project is given twice, as "{asked}" and "{projects[0]["project"]}"'
        )
    if asked is not None:
        return (where,)
    return tuple(
        where._replace(labels={**where.labels, **each}) for each in (*projects, {"global": "true"})
    )


def is_global(record: Record) -> bool:
    """Return whether a memory is marked as valid in every project."""
    return record.labels.get("global", "").lower() == "true"


def waiting(where: Filter) -> Filter:
    """Return a filter that matches only what waits to be accepted; by its label, which every store
    finds fast.
    """
    return where._replace(state="ended", ended_by=PENDING, labels={**where.labels, HELD: "1"})


def refuse_waiting(record: Record) -> None:
    """Refuse to change a memory that waits to be accepted otherwise than by a review.

    Raises:
        RequestError: It waits.
    """
    if record.ended_by == PENDING:
        raise RequestError(
            f"Memory waits for review; first accept it: memory review accept {record.ref.group}, or accept it changed: "
            f"memory review edit {record.ref.group} CONTENT"
        )


def readable_with(namespace: str, *, shared: bool) -> tuple[str, ...]:
    """Return the namespaces that who writes to one reads; see `Memories`."""
    return (namespace, SHARED) if shared and namespace != SHARED else (namespace,)


def accepted_by_then(records: Sequence[Record], moment: datetime | None) -> list[Record]:
    """Return those records that were not still waiting to be accepted at a time, if one is
    given.
    """
    if moment is None:
        return list(records)
    return [record for record in records if accepted_at(record) <= to_millis(moment)]


def still_waiting(store: Store, where: Filter) -> Iterator[Record]:
    """Yield those records that a filter with a time counts although they waited to be accepted at
    that time.
    """
    assert where.as_of is not None
    for namespace in where.namespaces:  # which may share ids
        held, after = (
            where._replace(namespaces=(namespace,), labels={**where.labels, HELD: "1"}),
            None,
        )
        while page := store.scan(held, limit=_PAGE, after=after):
            yield from (record for record in page if accepted_at(record) > to_millis(where.as_of))
            after = _place(page[-1])[:2]


def known_at(store: Store, records: Sequence[Record], moment: datetime) -> list[Record]:
    """Return memories with the last reinforcement that they had at a time; what they are now may
    hide it.

    Of a memory that was reinforced before the store kept all times, only the last one is known.
    """
    return [_known_at(store, record, moment) for record in records]


def _known_at(store: Store, record: Record, moment: datetime) -> Record:
    at = record.fields.get("reinforced_at")
    if at is None or at <= to_millis(moment):
        return record
    from memories.stores.chain import reinforcements_of  # which only looks at the past take

    times = reinforcements_of((record.ref.namespace,), record.ref.group)._replace(until=moment)
    if "aging_from" not in record.fields:  # it was stated anew, and what was before counts no more
        times = times._replace(since=record.created_at)
    fields = {name: value for name, value in record.fields.items() if name != "reinforced_at"}
    for last in store.scan(times, limit=1, newest_first=True):
        fields["reinforced_at"] = to_millis(last.created_at)
    return record._replace(fields=fields)


def narrowed(where: Filter, given: Mapping[str, Any], now: datetime) -> Filter:
    """Return a filter that also has the conditions that a caller gave.

    Args:
        where: The filter to narrow.
        given: `tags`, `written_by`, `trust`, `since`, `until` and `as_of`, as `Memories.list` takes
            them, and of turns `role` and `speaker`; each may be missing.
        now: What "7d" counts from.

    Raises:
        InvalidInput: A condition is not acceptable, or they contradict each other.
    """
    since, until = given.get("since"), given.get("until")
    start, end = to_moment(since, now), to_moment(until, now, end_of_day=True)
    if isinstance(since, str) and isinstance(until, str) and mixes_zones(since, until):
        raise InvalidInput(
            "only one of since and until names its time zone; write both the same way"
        )
    if start is not None and end is not None and start > end:
        raise InvalidInput("since is later than until; exchange them")
    as_of = to_moment(given.get("as_of"), now, end_of_day=True)
    return _said(written(where, given), given)._replace(since=start, until=end, as_of=as_of)


def written(where: Filter, given: Mapping[str, Any]) -> Filter:
    """Return a filter that also has the conditions `tags`, `written_by` and `trust` of a caller;
    see `narrowed`.
    """
    by, trust = given.get("written_by"), given.get("trust")
    if trust not in (None, *TRUSTS):
        raise InvalidInput(
            f'trust must be {", ".join(TRUSTS[:-1])} or {TRUSTS[-1]}, not "{validate.shown(str(trust))}"'
        )
    labels = labels_for(None if by is None else validate.one_line(by, "written_by"), trust)
    return where._replace(labels=validate.tags(given.get("tags") or {}) | labels)


def _said(where: Filter, given: Mapping[str, Any]) -> Filter:
    """Return a filter of turns that also has the conditions `role` and `speaker`."""
    role, speaker = given.get("role"), given.get("speaker")
    if role not in (None, *ROLES):
        raise InvalidInput(f'role "{validate.shown(str(role))}" is not one of {", ".join(ROLES)}')
    named = None if speaker is None else validate.one_line(speaker, "speaker")
    labels = {key: value for key, value in ((ROLE, role), (SPEAKER, named)) if value is not None}
    for key, value in labels.items():
        if where.labels.get(key, value) != value:
            raise InvalidInput(f"{key} is given twice, also as a tag; give it once")
    return where._replace(labels={**where.labels, **labels}) if labels else where
