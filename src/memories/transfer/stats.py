"""What was done with a memory and what is used of it: counted from the events and from the
store.
"""

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

SHOWN = 5  # most used memories, and some that were never used
_UNKNOWN = ""
_MANY = 10**9


class Operation(NamedTuple):
    """One kind of operation.

    Attributes:
        total: How often it was done.
        failed: How many ended with an error.
        p50_ms: How long half of them took at most; None if that is not known of any.
        p95_ms: The same of 95 in 100.
        results: How many memories or turns came back.
        written: How many were stored, changed or removed.
        tokens: How many tokens a model was given.
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
    """A memory and how often it was read."""

    id: str
    content: str
    access_count: int


class Stats(NamedTuple):
    """What was done and what is used.

    Attributes:
        since: From when operations and days are counted.
        noted_since: When the oldest operation that is still noted was.
        namespaces: Whose memories and operations are counted.
        operations: By how often they were done.
        agents: How many operations by agent; empty for an unknown one.
        projects: The same by project.
        by_namespace: The same by namespace.
        per_day: How many memories that are current were first written on each day in UTC, oldest
            first.
        memory_count: How many memories are current.
        never_used_count: How many of these were never read.
        most_used: The most read ones.
        never_used: The oldest that were never read.
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
        """How many tokens models were given."""
        return sum(operation.tokens for operation in self.operations)


def stats(lookup: Lookup, config: Config, since: datetime | None) -> Stats:
    """Count what the caller's namespaces hold and what was done with them.

    Args:
        lookup: Who asks: the store, and the namespaces that are read.
        config: The settings, for the folder of the events.
        since: From when operations and days are counted; None for all that is known.
    """
    where, names = lookup.where(), frozenset(lookup.readable)
    told = [
        event
        for event in events.read(
            config.home, "" if since is None else to_iso(since.astimezone(UTC))
        )
        if event.get("namespace") in names
    ]
    groups = lookup.store.groups(where, limit=_MANY)
    used = lookup.store.used(where)
    read = {(ref.namespace, ref.group) for ref, _ in used}
    never = [group for group in groups if group not in read]
    return Stats(
        since,
        told[0]["at"] if told else None,
        lookup.readable,
        tuple(_operations(told)),
        _shares(told, "agent"),
        _shares(told, "project"),
        _shares(told, "namespace"),
        _per_day((group for _, group in groups), since),
        len(groups),
        len(never),
        tuple(_shown(lookup, where, [(ref.namespace, ref.group) for ref, _ in used[:SHOWN]])),
        tuple(_shown(lookup, where, never[:SHOWN])),
    )


def _operations(told: Sequence[Mapping[str, Any]]) -> Iterator[Operation]:
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for event in told:
        by_name.setdefault(event["op"], []).append(event)
    for name, own in sorted(by_name.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        times = sorted(event["ms"] for event in own if isinstance(event.get("ms"), int | float))
        failed = sum(event.get("outcome", "ok") != "ok" for event in own)
        sums = (
            sum(_number(event, figure) for event in own)
            for figure in ("results", "written", "tokens")
        )
        yield Operation(
            name, len(own), failed, _percentile(times, 0.5), _percentile(times, 0.95), *sums
        )


def _number(event: Mapping[str, Any], figure: str) -> int:
    value = event.get(figure)
    return value if isinstance(value, int) else 0


def _percentile(values: Sequence[float], share: float) -> float | None:
    """Return the least value that so large a share of them does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _shares(told: Sequence[Mapping[str, Any]], figure: str) -> dict[str, int]:
    counts = Counter(str(event.get(figure) or _UNKNOWN) for event in told)
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _per_day(groups: Iterable[str], since: datetime | None) -> dict[str, int]:
    """Return how many memories there are by day of creation, which their ids tell; days without any
    are 0.
    """
    days: Counter[int] = Counter()
    for group in groups:
        if len(group) == ID_LENGTH:  # in a files store an id is any text
            days[int(group[:8] + group[9:13], 16) // 86_400_000] += 1
    if since is not None:
        first = int(since.timestamp() // 86_400)
        days = Counter({day: count for day, count in days.items() if day >= first})
    if not days:
        return {}
    start = from_millis(min(days) * 86_400_000)
    every = range(min(days), max(days) + 1)
    return {f"{start + timedelta(days=day - min(days)):%Y-%m-%d}": days[day] for day in every}


def _shown(lookup: Lookup, where: Filter, groups: Sequence[tuple[str, str]]) -> Iterator[Used]:
    for namespace, group in groups:
        found = lookup.store.scan(where._replace(namespaces=(namespace,), group=group), limit=1)
        yield from (Used(group, record.text, record.accesses) for record in found)
