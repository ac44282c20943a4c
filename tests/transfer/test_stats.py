"""Statistics of readable namespaces count operations from the events and reads from the store."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memories import Draft, InvalidInput, Memories
from memories.core import events

pytestmark = pytest.mark.usefixtures("home")

NOW = datetime(2026, 5, 20, 12, tzinfo=UTC)


@pytest.fixture
def memories() -> Memories:
    """The memories of bob."""
    return Memories(namespace="bob", embedder="none", clock=lambda: NOW)


def test_operations_are_counted_with_their_durations(memories: Memories, home: Path) -> None:
    for number in range(1, 101):
        events.note(
            home,
            "search",
            namespace="bob",
            agent="codex",
            project="shop",
            ms=float(number),
            results=2,
        )
    events.note(home, "search", namespace="shared", outcome="StoreBusy", ms=500.0, tokens=7)
    events.note(home, "context", namespace="bob", agent="claude-code", tokens=300)
    result = memories.stats()
    first, second = result.operations
    assert first == ("search", 101, 1, 51.0, 96.0, 200, 0, 7)
    assert second == ("context", 1, 0, None, None, 0, 0, 300)
    assert result.tokens == 307
    assert result.agents == {"codex": 100, "": 1, "claude-code": 1}
    assert result.projects == {"shop": 100, "": 2}
    assert result.by_namespace == {"bob": 101, "shared": 1}


def test_other_namespaces_are_not_counted(memories: Memories, home: Path) -> None:
    with Memories(namespace="alice", embedder="none") as other:
        memory = other.create("a secret of alice").memory
        assert memory is not None
        other.get(memory.id)
    result = memories.stats()
    assert (result.memory_count, result.operations, result.most_used, result.never_used) == (
        0,
        (),
        (),
        (),
    )
    assert "alice" not in repr(result)
    events.note(home, "get", namespace="bob")
    assert memories.stats().by_namespace == {"bob": 2}  # the first call was counted too
    alone = Memories(namespace="bob", shared=False, embedder="none")
    alone.stats()
    assert alone.stats().namespaces == ("bob",)


def test_most_used_and_oldest_unused_memories_are_listed(memories: Memories) -> None:
    drafts = [
        Draft(f"fact number {word}")
        for word in "one two three four five six seven eight nine".split()
    ]
    ids = [memory.id for memory in memories.create_many(drafts, force=True)]
    for place, times in ((7, 3), (2, 5), (0, 1)):
        for _ in range(times):
            memories.get(ids[place] or "")
    result = memories.stats()
    assert [(used.id, used.access_count) for used in result.most_used] == [
        (ids[2], 5),
        (ids[7], 3),
        (ids[0], 1),
    ]
    assert [used.id for used in result.never_used] == [ids[at] for at in (1, 3, 4, 5, 6)]
    assert (result.memory_count, result.never_used_count) == (9, 6)
    memories.delete(ids[2] or "")
    assert [used.id for used in memories.stats().most_used] == [ids[7], ids[0]]


def test_days_without_a_memory_count_zero(memories: Memories) -> None:
    for days in (0, 3, 3):
        memories.create(
            f"written {days} days ago", created_at=NOW - timedelta(days=days), force=True
        )
    expected = {"2026-05-17": 2, "2026-05-18": 0, "2026-05-19": 0, "2026-05-20": 1}
    assert memories.stats().per_day == expected
    assert memories.stats(since="2d").per_day == {"2026-05-20": 1}


def test_since_must_be_a_time_and_narrows_operations(memories: Memories, home: Path) -> None:
    home.mkdir(parents=True)
    lines = [
        f'{{"at":"2026-05-{day:02}T12:00:00.000Z","op":"get","namespace":"bob"}}\n'
        for day in range(1, 21)
    ]
    (home / "events.jsonl").write_text("".join(lines))
    assert [
        operation.total for operation in memories.stats(since=NOW - timedelta(days=4)).operations
    ] == [5]
    assert memories.stats(since="2026-05-19").noted_since == "2026-05-19T12:00:00.000Z"
    with pytest.raises(InvalidInput):
        memories.stats(since="nonsense")


@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_every_local_store_counts_reads(scheme: str, tmp_path: Path) -> None:
    with Memories(f"{scheme}:///{tmp_path}/store", embedder="none") as memories:
        one, two = memories.create("the sky is blue").id, memories.create("grass is green").id
        for read in (two, two, one):
            memories.get(read or "")
        assert [(used.id, used.access_count) for used in memories.stats().most_used] == [
            (two, 2),
            (one, 1),
        ]
