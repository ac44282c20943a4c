"""Every comparison of times includes exactly the right millisecond."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memories import Draft, Memories
from memories.core import events
from memories.core.times import parse_time, to_millis
from memories.read import versions
from memories.read.lookup import apply_filters
from memories.stores.records import Collection, Filter, Record

T = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY, MILLISECOND = timedelta(days=1), timedelta(milliseconds=1)
BEFORE, AFTER = [True, True, False], [False, True, True]
WHERE = Filter(Collection.MEMORY, ("bob",))


def written(
    at: datetime, ended_at: datetime | None = None, by: str | None = None, **fields: Any
) -> Record:
    """Return the first version of a memory."""
    record = versions.first_version(Draft("The gate is green"), "id", "bob", at)
    return record._replace(ended_at=ended_at, ended_by=by, fields={**record.fields, **fields})


def deleted_by(at: datetime) -> bool:
    """Return whether a memory that was deleted at T counts as deleted at a time."""
    return versions.to_memory(written(T - DAY, T, "delete"), at, 24.0).deleted


def accepted_by(at: datetime) -> bool:
    """Return whether a memory that was accepted at T counts as current at a time."""
    return bool(versions.known_at([written(T - DAY, accepted_at=to_millis(T))], at))


def reinforced_by(at: datetime) -> bool:
    """Return whether a memory that was reinforced at T counts as reinforced at a time."""
    return versions.last_reinforced_at(written(T - DAY, reinforced_at=to_millis(T)), at) is not None


PURE: dict[str, tuple[Callable[[datetime], bool], list[bool]]] = {
    "current since": (lambda at: WHERE._replace(as_of=at).fits(written(T)), AFTER),
    "current until": (
        lambda at: WHERE._replace(as_of=at).fits(written(T - DAY, T, "delete")),
        [True, False, False],
    ),
    "since": (lambda at: WHERE._replace(since=at).fits(written(T)), BEFORE),
    "until": (lambda at: WHERE._replace(until=at).fits(written(T)), AFTER),
    "known since": (lambda at: bool(versions.known_at([written(T)], at)), AFTER),
    "accepted": (accepted_by, AFTER),
    "deleted": (deleted_by, AFTER),
    "reinforced": (reinforced_by, AFTER),
}


@pytest.mark.parametrize("name", PURE)
def test_a_time_limit_is_exact_to_the_millisecond(name: str) -> None:
    holds, expected = PURE[name]
    assert [holds(T + late) for late in (-MILLISECOND, 0 * DAY, MILLISECOND)] == expected


def test_since_and_until_may_be_the_same_time(tmp_path: Path) -> None:
    where = apply_filters(WHERE, {"since": T, "until": T}, T)
    assert (where.since, where.until) == (T, T)
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=lambda: T) as memories:
        memories.create("The gate is green")
        assert len(memories.log(since=T, until=T)) == 1


def test_since_includes_events_at_exactly_that_time(home: Path) -> None:
    events.note(home, "search")
    [event] = events.read(home)
    assert list(events.read(home, event["at"])) == [event]


def test_a_day_includes_its_first_and_its_last_millisecond(tmp_path: Path) -> None:
    first, last = parse_time("2026-06-01"), parse_time("2026-06-01", end_of_day=True)
    times = {"Oslo": first - MILLISECOND, "Rome": first, "Lima": last, "Bern": last + MILLISECOND}
    now = T
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=lambda: now) as memories:
        for name, at in times.items():
            now = at
            memories.create(f"Rain falls in {name}")
        found = memories.list(where="created = 2026-06-01").memories
    assert {each.content.split()[-1] for each in found} == {"Rome", "Lima"}


@pytest.mark.parametrize("changed", ["created", "deleted", "updated"])
@pytest.mark.parametrize("late", [-1, 0, 1])
def test_a_rollback_keeps_changes_up_to_and_including_its_time(
    tmp_path: Path, changed: str, late: int
) -> None:
    """A change in the millisecond of the rollback's time stays; one in the next millisecond is
    undone.
    """
    now = T - DAY
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=lambda: now) as memories:
        one = memories.create("The gate is green").id
        assert one is not None
        now = T + late * MILLISECOND
        if changed == "created":
            memories.create("Rain is expected")
        elif changed == "deleted":
            memories.delete(one)
        else:
            memories.update(one, "The gate is blue")
        now = T + DAY
        done = memories.rollback(T)
    assert sum(done.counts.values()) == (1 if late > 0 else 0)


def test_a_rollback_to_now_changes_nothing(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=lambda: T) as memories:
        memories.create("The gate is green")
        assert sum(memories.rollback(T).counts.values()) == 0


@pytest.mark.parametrize("late", [-1, 0, 1])
def test_a_rollback_keeps_a_memory_accepted_up_to_its_time(tmp_path: Path, late: int) -> None:
    now = T - DAY
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=lambda: now) as memories:
        memories.create("The gate is green", pending=True)
        now = T + late * MILLISECOND
        memories.review.accept(memories.review.select())
        now = T + DAY
        memories.rollback(T)
        assert len(memories.list().memories) == (0 if late > 0 else 1)
        assert len(memories.review.select()) == (1 if late > 0 else 0)
