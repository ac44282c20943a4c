"""Usage statistics: operations performed and memories read."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from memories.core import events
from memories.core.ids import ID_LENGTH
from memories.core.times import from_millis, to_iso
from memories.read.lookup import Lookup
from memories.settings import Config
from memories.stores.records import Filter

SHOWN = 5  # maximum number of memories listed as most used, and of those listed as never used
_UNKNOWN = ""
_NO_LIMIT = 10**9
_DAY_SECONDS = 86_400


class Operation(NamedTuple):
    """One kind of operation.

    Attributes:
        total: How often it was performed.
        failed: How many ended with an error.
        p50_ms: The median duration; None if no duration is known.
        p95_ms: The 95th percentile of the duration.
        results: How many memories or turns were returned.
        written: How many were stored, changed or removed.
        tokens: How many tokens were given to a model.
    """

    name: str
    total: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    results: int
    written: int
    tokens: int


class Used(NamedTuple):
    """A memory, and how often it was read."""

    id: str
    content: str
    access_count: int


class Stats(NamedTuple):
    """Statistics for a set of namespaces.

    Attributes:
        since: The beginning of the period for operations and days.
        noted_since: The time of the oldest counted operation.
        namespaces: The namespaces whose memories and operations are counted.
        operations: The operations, most frequent first.
        agents: The number of operations of each agent; the name of an unknown agent is empty.
        projects: The number of operations in each project.
        by_namespace: The number of operations in each namespace.
        per_day: How many of the current memories were first written on each day in UTC, oldest
            first.
        memory_count: How many memories are current.
        never_used_count: How many current memories were never read.
        most_used: The memories that were read most.
        never_used: The oldest memories that were never read.
    """

    since: datetime | None
    noted_since: str | None
    namespaces: tuple[str, ...]
    operations: tuple[Operation, ...]
    agents: Mapping[str, int]
    projects: Mapping[str, int]
    by_namespace: Mapping[str, int]
    per_day: Mapping[str, int]
    memory_count: int
    never_used_count: int
    most_used: tuple[Used, ...]
    never_used: tuple[Used, ...]

    @property
    def tokens(self) -> int:
        """How many tokens were given to models."""
        return sum(operation.tokens for operation in self.operations)


Event = Mapping[str, Any]


def stats(lookup: Lookup, config: Config, since: datetime | None) -> Stats:
    """Count the memories in the readable namespaces, and the operations on them.

    Args:
        lookup: The store and the namespaces that may be read.
        config: The settings, for the folder of the events.
        since: When the period begins; None for everything recorded.
    """
    where = lookup.where()
    start = "" if since is None else to_iso(since.astimezone(UTC))
    own_events = [
        event
        for event in events.read(config.home, start)
        if event.get("namespace") in lookup.readable
    ]
    groups = lookup.store.groups(where, limit=_NO_LIMIT)
    used = [(ref.namespace, ref.group) for ref, _ in lookup.store.used(where)]
    used_groups = set(used)
    never_used = [group for group in groups if group not in used_groups]
    return Stats(
        since=since,
        noted_since=own_events[0]["at"] if own_events else None,
        namespaces=lookup.readable,
        operations=tuple(_operations(own_events)),
        agents=_count_by(own_events, "agent"),
        projects=_count_by(own_events, "project"),
        by_namespace=_count_by(own_events, "namespace"),
        per_day=_count_per_day((memory_id for _, memory_id in groups), since),
        memory_count=len(groups),
        never_used_count=len(never_used),
        most_used=tuple(_read_memories(lookup, where, used[:SHOWN])),
        never_used=tuple(_read_memories(lookup, where, never_used[:SHOWN])),
    )


def _operations(all_events: Sequence[Event]) -> list[Operation]:
    by_name: dict[str, list[Event]] = {}
    for event in all_events:
        by_name.setdefault(event["op"], []).append(event)
    operations: list[Operation] = []
    for name, own_events in by_name.items():
        times = sorted(
            event["ms"] for event in own_events if isinstance(event.get("ms"), int | float)
        )
        operations.append(
            Operation(
                name,
                total=len(own_events),
                failed=sum(event.get("outcome", "ok") != "ok" for event in own_events),
                p50_ms=_percentile(times, 0.5),
                p95_ms=_percentile(times, 0.95),
                results=_sum(own_events, "results"),
                written=_sum(own_events, "written"),
                tokens=_sum(own_events, "tokens"),
            )
        )
    return sorted(operations, key=lambda operation: (-operation.total, operation.name))


def _sum(own_events: Iterable[Event], name: str) -> int:
    values = [event.get(name) for event in own_events]
    return sum(value for value in values if isinstance(value, int))


def _percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted values; None without values.

    It is the smallest value that is at least as large as the given share of all values.
    """
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _count_by(own_events: Iterable[Event], name: str) -> dict[str, int]:
    counts = Counter(str(event.get(name) or _UNKNOWN) for event in own_events)
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _count_per_day(memory_ids: Iterable[str], since: datetime | None) -> dict[str, int]:
    """Count memories per day of creation, taken from their ids, including days with none."""
    days: Counter[int] = Counter()
    first_day = 0 if since is None else int(since.timestamp() // _DAY_SECONDS)
    for memory_id in memory_ids:
        if len(memory_id) == ID_LENGTH:  # in a files store, an id can be any text
            millis = int(memory_id[:8] + memory_id[9:13], 16)
            day = millis // (_DAY_SECONDS * 1000)
            if day >= first_day:
                days[day] += 1
    if not days:
        return {}
    first, last = min(days), max(days)
    start = from_millis(first * _DAY_SECONDS * 1000)
    return {
        f"{start + timedelta(days=day - first):%Y-%m-%d}": days[day]
        for day in range(first, last + 1)
    }


def _read_memories(
    lookup: Lookup, where: Filter, groups: Sequence[tuple[str, str]]
) -> Iterator[Used]:
    for namespace, memory_id in groups:
        own = where._replace(namespaces=(namespace,), group=memory_id)
        for record in lookup.store.scan(own, limit=1):
            yield Used(memory_id, record.text, record.accesses)
