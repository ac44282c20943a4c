"""Looks up memories by id, id prefix or key, and builds the filters for reads.

For pages of memories, see `listing`.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from memories.anchors.judge import Judge
from memories.config import is_own_name
from memories.core.ids import ID_LENGTH, MIN_PREFIX, id_prefix, parse_id, storable
from memories.core.times import from_millis, mixes_zones, to_iso, to_millis, to_moment
from memories.errors import AmbiguousId, InvalidInput, NotFound, RequestError
from memories.guard import validate
from memories.guard.origin import CONTINUED, HELD, TRUSTS, Place, labels_for, with_whole_name
from memories.models import PENDING, SHARED, Draft, is_global
from memories.read.versions import (
    accepted_at,
    is_unaccepted,
    known_at,
    scoped_key,
)
from memories.settings import Config
from memories.stores.damage import refusal
from memories.stores.protocol import Store, refuse_damaged
from memories.stores.records import ROLE, SEARCHED, SPEAKER, Collection, Filter, Record, Ref

MAX_VERSIONS = 1_000_000  # more versions than any memory has
MAX_DELETED = 100  # maximum number of deleted memories to read when no memory has a key
MAX_PROJECTS = 200  # maximum number of projects that are searched for a key to name in an error
MAX_MINUTES = 100  # maximum number of minutes whose ids are compared to shorten ids
MAX_NEIGHBOURS = 1_000  # maximum number of ids compared per minute
# Ids younger than this get a longer prefix, since more ids may be created in the same minute.
RECENT = timedelta(minutes=5)
_TIME_AND_RANDOM = 18  # length of an id's first part: the time and 12 random bits
_MILLISECOND = 13  # number of characters in an id that encode its time, to the millisecond


def check_namespace(namespace: str, store: Store, config: Config) -> str:
    """Return a namespace; refuse one whose name is reserved for one of our own files.

    A reserved name is accepted if an earlier version of Memories wrote to the namespace, so that
    its memories can be read, exported and renamed.

    Raises:
        InvalidInput: The name is reserved, and the namespace is empty.
        StoreError: The name is reserved, and the store can't check whether the namespace is empty.
    """
    if is_own_name(namespace, config):
        filters = (Filter(collection, (namespace,), state="any") for collection in SEARCHED)
        if not any(store.count(where, at_most=1) for where in filters):
            validate.refuse_own_name(namespace)
    return namespace


def readable_namespaces(namespace: str, *, shared: bool) -> tuple[str, ...]:
    """Return the namespaces that a caller who writes to `namespace` can read; see `Memories`."""
    if shared and namespace != SHARED:
        return (namespace, SHARED)
    return (namespace,)


class Lookup(NamedTuple):
    """Looks up memories for one caller.

    Attributes:
        store: The store with the memories.
        namespace: The namespace to which the caller writes.
        readable: The namespaces that the caller can read, its own first.
        judge: Checks the anchors of memories; None for callers that get no verdicts.
    """

    store: Store
    namespace: str
    readable: tuple[str, ...]
    judge: Judge | None = None

    def where(self, **conditions: Any) -> Filter:
        """Return a filter for the memories that the caller may read."""
        return Filter(Collection.MEMORY, self.readable, **conditions)

    def where_pending(self, **conditions: Any) -> Filter:
        """Return a filter for the memories in the caller's own namespace that await review."""
        return only_pending(Filter(Collection.MEMORY, (self.namespace,), **conditions))

    @property
    def own(self) -> "Lookup":
        """The same lookup, limited to the caller's own namespace."""
        return self._replace(readable=(self.namespace,))

    # --- by id ---

    def find(self, memory_id: str, *, deleted: bool = False) -> Record:
        """Return the latest version of a memory.

        If several namespaces have the id, the caller's own takes precedence.

        Args:
            memory_id: An id, or an unambiguous prefix of 8 or more characters. An id that another
                program assigned, such as one from an imported file, must be complete.
            deleted: Find deleted memories too.

        Raises:
            NotFound: There is no such memory.
            AmbiguousId: The prefix matches several memories.
            InvalidInput: The argument is not an id.
            StoreDamaged: The latest version is damaged.
        """
        group = self.resolve_id(memory_id)
        reason = ""
        for namespace in self.readable:
            latest = self._latest(namespace, group)
            if latest is None:
                continue
            if deleted or latest.ended_by != "delete":
                return latest
            option = "" if namespace == self.namespace == SHARED else f" -n {namespace}"
            advice = f"to restore it, run: memory restore {group}{option}"
            reason = reason or f": it was deleted; {advice}"
        raise NotFound(f"Memory not found{reason}")

    def find_own(self, memory_id: str, *, deleted: bool = False) -> Record:
        """Return the latest version of a memory in the caller's own namespace.

        A write may change only this namespace.

        Raises:
            RequestError: Only another namespace has the memory.
        """
        try:
            return self.own.find(memory_id, deleted=deleted)
        except RequestError:
            self.resolve_own_id(memory_id)  # raises an error that names the other namespace
            raise

    def find_live(self, memory_id: str) -> Record:
        """Return the latest version of a memory that may be changed.

        Raises:
            RequestError: Another memory has superseded this one, or only another namespace has it.
        """
        latest = self.find_own(memory_id)
        refuse_pending(latest)
        if latest.ended_at is not None:
            successor = latest.fields.get("superseded_by")
            raise RequestError(
                f"Memory was replaced by {successor}; change that one, or restore this one first"
            )
        return latest

    def resolve_id(self, memory_id: str) -> str:
        """Return the full id of a memory without reading its content; see `find`."""
        try:
            group = parse_id(memory_id)
            if len(group) == ID_LENGTH:
                return group
            return self._complete(group)
        except RequestError:
            if not self.is_foreign_id(memory_id):
                raise
            return memory_id

    def resolve_own_id(self, memory_id: str) -> str:
        """Return the full id of a memory in the caller's own namespace, even if the memory is
        deleted or damaged.

        Raises:
            NotFound: There is no such memory.
            AmbiguousId: The prefix matches several memories of that namespace.
            RequestError: Only another namespace has the memory.
        """
        try:
            return self.own._locate(memory_id)[1]
        except AmbiguousId:
            raise
        except RequestError:
            namespace, _ = self._locate(memory_id)
            raise RequestError(
                f"Memory is in namespace {namespace}, but you write to {self.namespace}; to change "
                f"the memory, switch to {namespace}; or store a new memory with the current facts"
            ) from None

    def ids(self, prefix: str, limit: int) -> list[str]:
        """Return the sorted ids that begin with a prefix, of memories in any state.

        Raises:
            InvalidInput: The prefix can't begin an id.
        """
        where = self.where(state="any", group=parse_id(prefix), prefix=True)
        groups: set[str] = set()
        for namespace in self.readable:  # namespaces may share ids
            addresses = self.store.groups(where._replace(namespaces=(namespace,)), limit=limit)
            groups.update(group for _, group in addresses)
        return sorted(groups)[:limit]

    def short_ids(self, ids: Sequence[str], now: datetime) -> dict[str, str]:
        """Return the shortest unambiguous prefix of each id, at least 8 characters long.

        Ids begin with the time, so ids from the last few minutes get longer prefixes: more memories
        may still be created in the same minute.
        """
        recent = id_prefix(now - RECENT)
        minutes = {memory_id[:MIN_PREFIX] for memory_id in ids if len(memory_id) == ID_LENGTH}
        if len(minutes) > MAX_MINUTES:
            minutes = set()
        neighbours: dict[str, list[str]] = {}
        for minute in minutes:
            where = self.where(state="any", group=minute, prefix=True)
            addresses = self.store.groups(where, limit=MAX_NEIGHBOURS)
            if len(addresses) < MAX_NEIGHBOURS:
                neighbours[minute] = sorted({group for _, group in addresses})
        short: dict[str, str] = {}
        for memory_id in ids:
            min_length = MIN_PREFIX if memory_id < recent else _MILLISECOND
            same_minute = neighbours.get(memory_id[:MIN_PREFIX])
            short[memory_id] = _shorten(memory_id, same_minute, min_length)
        return short

    def is_foreign_id(self, memory_id: str) -> bool:
        """Return whether a readable memory has exactly this id, in any format."""
        if not isinstance(memory_id, str) or not memory_id or not storable(memory_id):
            return False
        return bool(self.store.groups(self.where(state="any", group=memory_id), limit=1))

    def _latest(self, namespace: str, group: str) -> Record | None:
        """Return the latest version of a memory in one namespace.

        Raises:
            StoreDamaged: The latest version is damaged. An earlier one is not returned instead.
        """
        mark = self.store.damaged.mark()
        records = self.store.scan(_all_versions(namespace, group), limit=1, newest_first=True)
        position = records[0].ref.position if records else -1
        for finding in self.store.damaged.since(mark):
            ref = finding.ref
            if ref is None or (ref.namespace, ref.group) != (namespace, group):
                continue
            if ref.position > position:
                raise refusal(finding)
        return records[0] if records else None

    def _locate(self, memory_id: str) -> tuple[str, str]:
        """Return the namespace and full id of a memory in any state."""
        group = self.resolve_id(memory_id)
        for address in self.store.groups(self.where(state="any", group=group), limit=1):
            return address
        raise NotFound("Memory not found")

    def _complete(self, prefix: str) -> str:
        """Return the only id with this prefix, preferring ids of live memories."""
        for state in ("live", "any"):
            where = self.where(state=state, group=prefix, prefix=True)
            limit = 11 * len(self.readable)  # namespaces may share an id
            groups = {group for _, group in self.store.groups(where, limit=limit)}
            matches = tuple(sorted(groups))
            if len(matches) == 1:
                return matches[0]
            if matches:
                count = str(len(matches))
                if len(matches) > 10:
                    count = "more than 10"
                raise AmbiguousId(
                    f'"{prefix}" matches {count} memories; give more digits of the id', matches[:10]
                )
        raise NotFound("Memory not found")

    # --- by key ---

    def find_by_key(self, stored_key: str) -> Record | None:
        """Return the memory with a key in the caller's own namespace.

        Args:
            stored_key: The key as `versions.scoped_key` returns it.

        Raises:
            StoreDamaged: The memory with the key is damaged.
        """
        where = Filter(Collection.MEMORY, (self.namespace,), key=stored_key)
        mark = self.store.damaged.mark()
        records = self.store.scan(where, limit=1)
        if not records:
            refuse_damaged(self.store, where, mark)
            return None
        return records[0]

    def id_of_key(self, key: str, projects: Sequence[str | None], config: Config) -> str:
        """Return the id of the memory with a key; the caller's own namespace takes precedence over
        `shared`.

        Args:
            key: The key.
            projects: The projects to search, in order; None for the memories without a project. A
                global memory that has no project matches too.
            config: The settings. A key that they classify as a secret was stored in redacted form.

        Raises:
            NotFound: No memory in these projects has the key; the message says how to restore a
                deleted one, or lists other projects with such a memory. Or only a shared memory has
                the key, and its id also belongs to a different memory in the caller's own
                namespace.
            InvalidInput: The key or the project is invalid.
            StoreDamaged: The memory with the key is damaged.
        """
        key = validate.key(key)
        for project in projects:
            record = self._find_in_project(key, project)
            if record is not None:
                self._refuse_hidden(record.ref, key)
                return record.ref.group
        stored_key = config.redactor().name(key, "key").text
        if stored_key != key:
            return self.id_of_key(stored_key, projects, config)
        keys = {scoped_key(key, {} if name is None else {"project": name}) for name in projects}
        deleted = self.where(state="ended", ended_by="delete")
        for record in self.store.scan(deleted, limit=MAX_DELETED, newest_first=True):
            if record.key in keys:
                self.find(record.ref.group)  # raises an error that says how to restore it
        raise NotFound(f"Memory not found: {self._describe_search(key, projects[-1])}")

    def _find_in_project(self, key: str, project: str | None) -> Record | None:
        """Return the latest version of the memory with a key, in a project or without a project."""
        tags = {} if project is None else validate.tags({"project": project})
        for namespace in self.readable:
            lookup = self._replace(namespace=namespace)
            record = lookup.find_by_key(scoped_key(key, tags))
            if record is not None:
                return record
            outside = lookup.find_by_key(key) if tags else None
            if outside is not None and is_global(outside.labels):
                return outside
        return None

    def names_of_project(self, project: str | Sequence[str] | None) -> Sequence[str] | None:
        """Return all names of the project that a caller gave; see `complete_project`."""
        names: set[str] = set()
        if isinstance(project, str):
            for collection in SEARCHED:
                names.update(self.store.values(collection, self.readable, "project"))
        return complete_project(project, names)

    def with_project(self, draft: Draft, place: Place | None) -> Draft:
        """Return a draft tagged with the project of its writer's working directory.

        A draft that is global or names another project is returned unchanged. So is a draft whose
        key belongs to a memory without a project, unless a memory in this project has that key too.

        Raises:
            InvalidInput: See `with_whole_name`.
        """
        tags = self.in_project(draft.tags, place)
        is_added = isinstance(draft.tags, Mapping) and len(tags) > len(draft.tags)
        if is_added and draft.key is not None:
            key = validate.key(draft.key)
            has_project_key = self.find_by_key(scoped_key(key, tags)) is not None
            if not has_project_key and self.find_by_key(key) is not None:
                return draft
        return replace(draft, tags=tags)

    def in_project(self, tags: Mapping[str, str], place: Place | None) -> Mapping[str, str]:
        """Return a writer's tags with the project of its working directory, unless they are global
        or name another project.
        """
        tags = self.with_whole_name(tags, place)
        return tags if place is None else place.tags(tags)

    def with_whole_name(self, tags: Mapping[str, str], place: Place | None) -> Mapping[str, str]:
        """Return a writer's tags in which the project of its working directory has its whole name;
        see `origin.with_whole_name`.
        """
        if not isinstance(tags, Mapping):
            return tags  # refused later

        def find_projects() -> Sequence[str]:
            """Return the projects of the readable memories."""
            return self.store.values(Collection.MEMORY, self.readable, "project")

        return with_whole_name(tags, place, find_projects)

    def _refuse_hidden(self, ref: Ref, key: str) -> None:
        """Refuse a memory in another namespace if a memory in the caller's own namespace has the
        same id.
        """
        if ref.namespace == self.namespace:
            return
        where = self.own.where(state="any", group=ref.group)
        if self.store.groups(where, limit=1):
            raise NotFound(
                f'Memory not found: no memory in namespace {self.namespace} has the key "{key}"; '
                f"the memory with this key in {ref.namespace} has the same id as one of yours, so "
                f"switch to {ref.namespace} to read it"
            )

    def _describe_search(self, key: str, project: str | None) -> str:
        """Return the end of the error message for an unknown key: where we looked for the key, and
        which other projects have it.
        """
        if project is None:
            searched = f'no memory without a project has the key "{key}"'
        else:
            searched = f'no memory in the project "{project}" has the key "{key}"'
            if self.store.count(self.where(key=key), at_most=1):
                return f"{searched}; a memory without a project has it"
        having: list[str] = []
        for name in self.store.values(Collection.MEMORY, self.readable, "project")[:MAX_PROJECTS]:
            where = self.where(key=scoped_key(key, {"project": name}))
            if self.store.count(where, at_most=1):
                having.append(name)
        if not having:
            return searched
        return f"{searched}; the key exists with --project {', '.join(having)}"

    # --- versions ---

    def versions(self, memory_id: str, moment: datetime | None = None) -> list[Record]:
        """Return every version of a memory, oldest first; deleted memories are found too.

        For a past moment, return the versions that existed then, each in its state at that time.

        Raises:
            NotFound: There is no such memory, or it did not exist or awaited review at that moment.
        """
        if moment is not None:
            return self._copies_at(memory_id, moment)[0]
        ref = self.find(memory_id, deleted=True).ref
        return self.store.scan(_all_versions(ref.namespace, ref.group), limit=MAX_VERSIONS)

    def find_at(self, memory_id: str, moment: datetime) -> Record:
        """Return the version of a memory that was live at a given time. Its number of reads is set
        to 0, since the number at that time is unknown.

        Raises:
            NotFound: The memory did not exist yet, awaited review, or was deleted.
        """
        for copy in self._copies_at(memory_id, moment):
            if copy[-1].ended_by != "delete":
                return copy[-1]._replace(accesses=0)
        raise NotFound(f"Memory not found at {to_iso(moment)}: it was deleted")

    def _copies_at(self, memory_id: str, moment: datetime) -> list[list[Record]]:
        """Return the past versions of a memory in each namespace that contained it, the caller's
        own first.
        """
        records = self.versions(memory_id)
        ref = records[0].ref
        copies = [records]
        for namespace in self.readable:
            if namespace != ref.namespace:
                where = _all_versions(namespace, ref.group)
                copies.append(self.store.scan(where, limit=MAX_VERSIONS))
        past: list[list[Record]] = []
        for copy in copies:
            existing = known_at(copy, moment)
            if existing:
                latest = with_past_reinforcement(self.store, existing[-1:], moment)
                past.append([*existing[:-1], *latest])
        if not past:
            reason = _explain_absence(records)
            raise NotFound(f"Memory not found at {to_iso(moment)}: {reason}")
        return past


def _all_versions(namespace: str, group: str) -> Filter:
    return Filter(Collection.MEMORY, (namespace,), state="any", group=group)


def _explain_absence(records: Sequence[Record]) -> str:
    """Return why no version of a memory was live at an earlier time."""
    for record in records:
        if not is_unaccepted(record):
            since = max(record.created_at, from_millis(accepted_at(record)))
            return f"it did not exist until {to_iso(since)}"
    return "it is waiting for review"


def _shorten(memory_id: str, neighbours: list[str] | None, min_length: int) -> str:
    """Return the shortest prefix of an id that no neighbouring id shares.

    Args:
        memory_id: The id.
        neighbours: All ids from the same minute, sorted; None if there are too many to compare.
        min_length: The minimum length of the prefix.
    """
    if neighbours is None or memory_id not in neighbours:
        if len(memory_id) == ID_LENGTH:
            return memory_id[:_TIME_AND_RANDOM]
        return memory_id
    at = neighbours.index(memory_id)
    length = min_length
    for other in neighbours[max(0, at - 1) : at + 2]:
        while other != memory_id and length <= len(memory_id):
            if not other.startswith(memory_id[:length]):
                break
            length += 1
    return memory_id[:length]


# --- projects and review ---


def complete_project(project: str | Sequence[str] | None, names: Set[str]) -> Sequence[str] | None:
    """Return a project's names: a single name is completed, and several are returned unchanged.

    Raises:
        InvalidInput: The project is of the wrong type; or see `complete_name`.
    """
    if isinstance(project, str):
        return [complete_name(project, names)]
    if project is not None and (isinstance(project, Mapping) or not isinstance(project, Iterable)):
        raise InvalidInput(f"project is of type {type(project).__name__}; pass a string or a list")
    return project


def complete_name(project: str, names: Set[str]) -> str:
    """Return the full name of a project.

    Args:
        project: A project's name, or the end of one: `shop` for `github.com/acme/shop`.
        names: The names of projects in use.

    Raises:
        InvalidInput: Several projects have names that end with the given name, or the name can't be
            a tag value.
    """
    name = validate.tags({"project": project})["project"]
    if name in names:
        return name
    longer = sorted(other for other in names if other.endswith(f"/{name}"))
    if len(longer) > 1:
        raise InvalidInput(f'"{name}" may mean {" or ".join(longer)}; give the full name')
    return longer[0] if longer else name


def with_global(where: Filter, names: Sequence[str] | None) -> tuple[Filter, ...]:
    """Return filters for a project's memories and for global memories.

    Args:
        where: The filter to extend. It is returned alone if there is no project, or if it already
            has the project.
        names: The project's names. The last filter returned is for global memories.

    Raises:
        InvalidInput: The project can't be a tag value, or the filter has another project.
    """
    if names is None:
        return (where,)
    labels = [validate.tags({"project": name}) for name in names]
    named = where.labels.get("project")
    if named is not None:
        if {"project": named} not in labels:
            raise InvalidInput(
                f'the project is given twice, as "{named}" and "{labels[0]["project"]}"'
            )
        return (where,)
    labels.append({"global": "true"})
    return tuple(where._replace(labels={**where.labels, **label}) for label in labels)


def only_pending(where: Filter) -> Filter:
    """Return a filter for memories that await review. The filter includes a label that every store
    can find quickly.
    """
    return where._replace(state="ended", ended_by=PENDING, labels={**where.labels, HELD: "1"})


def refuse_pending(record: Record) -> None:
    """Refuse to change a memory that awaits review.

    Raises:
        RequestError: The memory awaits review.
    """
    if record.ended_by == PENDING:
        memory_id, namespace = record.ref.group, record.ref.namespace
        option = "" if namespace == SHARED else f" -n {namespace}"
        raise RequestError(
            f"Memory is waiting for review; accept it first: memory review accept {memory_id}"
            f"{option}, or edit and accept it: memory review edit {memory_id}{option} CONTENT"
        )


def count_turns(store: Store, where: Filter) -> int:
    """Return the number of turns that match a filter; a long message is one turn."""
    record_count = store.count(where)
    if not record_count:
        return 0
    continued = where._replace(labels={**where.labels, CONTINUED: "1"})
    return record_count - store.count(continued)


# --- the past ---


def select_accepted(records: Sequence[Record], moment: datetime | None) -> list[Record]:
    """Return the records that did not await review at a given time; all records if no time is
    given.
    """
    if moment is None:
        return list(records)
    return [record for record in records if accepted_at(record) <= to_millis(moment)]


def with_past_reinforcement(
    store: Store, records: Sequence[Record], moment: datetime
) -> list[Record]:
    """Return memories with their last reinforcement as of a given time.

    Earlier versions of Memories recorded only the latest reinforcement.
    """
    return [_with_past_reinforcement(store, record, moment) for record in records]


def _with_past_reinforcement(store: Store, record: Record, moment: datetime) -> Record:
    latest = record.fields.get("reinforced_at")
    if latest is None or latest <= to_millis(moment):
        return record
    from memories.stores.audit_log import reinforcements_of  # only past times need it

    times = reinforcements_of((record.ref.namespace,), record.ref.group)._replace(until=moment)
    if "aging_from" not in record.fields:  # restated, so only later reinforcements count
        times = times._replace(since=record.created_at)
    fields = {name: value for name, value in record.fields.items() if name != "reinforced_at"}
    for reinforcement in store.scan(times, limit=1, newest_first=True):
        fields["reinforced_at"] = to_millis(reinforcement.created_at)
    return record._replace(fields=fields)


# --- a caller's filters ---


def apply_filters(where: Filter, filters: Mapping[str, Any], now: datetime) -> Filter:
    """Narrow a store's filter with the caller's filters. Times given by the caller replace the
    times in the store's filter.

    Args:
        where: The store's filter.
        filters: `tags`, `written_by`, `trust`, `since`, `until` and `as_of`, as in `Memories.list`;
            for turns, also `role` and `speaker`. All are optional.
        now: The time from which "7d" counts back.

    Raises:
        InvalidInput: A filter is invalid, or two contradict each other.
    """
    since, until = filters.get("since"), filters.get("until")
    start, end = to_moment(since, now), to_moment(until, now, end_of_day=True)
    if isinstance(since, str) and isinstance(until, str) and mixes_zones(since, until):
        raise InvalidInput(
            "only one of since and until has a time zone; give both a time zone, or neither"
        )
    if start is not None and end is not None and start > end:
        raise InvalidInput("since is later than until; swap them")
    as_of = to_moment(filters.get("as_of"), now, end_of_day=True)
    narrowed = _narrow_speaker(_narrow_labels(where, filters), filters)
    return narrowed._replace(since=start, until=end, as_of=as_of)


def _narrow_labels(where: Filter, filters: Mapping[str, Any]) -> Filter:
    """Narrow a filter by `tags`, `written_by` and `trust`."""
    written_by, trust = filters.get("written_by"), filters.get("trust")
    if trust not in (None, *TRUSTS):
        raise InvalidInput(
            f"trust must be {', '.join(TRUSTS[:-1])} or {TRUSTS[-1]}, "
            f'not "{validate.shown(str(trust))}"'
        )
    if written_by is not None:
        written_by = validate.one_line(written_by, "written_by")
    tags = validate.tags(filters.get("tags") or {})
    return where._replace(labels={**where.labels, **tags, **labels_for(written_by, trust)})


def _narrow_speaker(where: Filter, filters: Mapping[str, Any]) -> Filter:
    """Narrow a filter for turns by `role` and `speaker`."""
    role, speaker = filters.get("role"), filters.get("speaker")
    labels: dict[str, str] = {}
    if role is not None:
        labels[ROLE] = validate.role(role)
    if speaker is not None:
        labels[SPEAKER] = validate.one_line(speaker, "speaker")
    for key, value in labels.items():
        if where.labels.get(key, value) != value:
            raise InvalidInput(f"{key} is given twice, once as a tag; give it only once")
    return where._replace(labels={**where.labels, **labels})
