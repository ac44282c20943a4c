"""Of two near hits about the same subject, the newer one comes first."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from clock import MovingClock
from memories import Memories

OLD = "The staging database runs on Postgres 14."
NEW = "We upgraded staging to Postgres 16 last night."
QUESTION = "Which Postgres version does staging run?"


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """Memories written an hour apart."""
    with Memories(f"sqlite:///{tmp_path}/m.db", clock=MovingClock(timedelta(hours=1))) as opened:
        yield opened


def contents(memories: Memories, question: str = QUESTION, **filters: object) -> list[str]:
    """Return the contents that a question finds."""
    return [hit.content for hit in memories.search(question, **filters)]  # type: ignore[arg-type]


def test_the_newer_of_two_memories_about_a_subject_comes_first(memories: Memories) -> None:
    memories.create(OLD)
    memories.create(NEW)
    assert contents(memories) == [NEW, OLD]


@pytest.mark.parametrize("change", ["tag", "reinforce"])
def test_a_tag_or_a_reinforcement_does_not_make_a_memory_newer(
    memories: Memories, change: str
) -> None:
    old = memories.create(OLD, decay="reinforceable")
    memories.create(NEW)
    assert old.id is not None
    if change == "tag":
        memories.update(old.id, tags={"area": "databases"})
    else:
        memories.reinforce(old.id)
    assert contents(memories) == [NEW, OLD]


def test_with_room_for_one_only_the_newer_memory_is_shown(memories: Memories) -> None:
    memories.create(OLD)
    memories.create(NEW)
    assert contents(memories, limit=1) == [NEW]


def test_an_expired_memory_replaces_nothing(memories: Memories) -> None:
    memories.create(OLD)
    memories.create(NEW, valid_until=memories._clock())
    assert contents(memories, limit=1) == [OLD]


def test_a_newer_memory_comes_first_even_if_only_the_older_one_has_the_query_words(
    memories: Memories,
) -> None:
    memories.create("Feature branches are merged with a merge commit.")
    newer = "We squash PRs when landing them, no merge commits any more."
    memories.create(newer)
    assert memories.search("how are feature branches merged?")[0].content == newer


def test_the_best_hit_stays_first_if_the_newer_one_is_about_something_else(
    memories: Memories,
) -> None:
    memories.create(OLD)
    memories.create("The production database is replicated to two zones.")
    assert contents(memories)[0] == OLD


def test_a_memory_is_the_first_hit_for_its_exact_words(memories: Memories) -> None:
    memories.create(OLD)
    memories.create(NEW)
    assert contents(memories, OLD)[0] == OLD


def test_a_pinned_memory_keeps_its_place(memories: Memories) -> None:
    old = memories.create(OLD)
    memories.create(NEW)
    assert old.id is not None
    memories.pin(old.id)
    assert contents(memories)[0] == OLD


def test_memories_of_other_projects_keep_their_order(memories: Memories) -> None:
    memories.create(OLD, tags={"project": "shop"})
    memories.create(NEW, tags={"project": "till"})
    assert contents(memories)[0] == OLD


@pytest.mark.parametrize("rank", ["similarity", "formula"])
def test_other_ranks_keep_the_order_of_scores(memories: Memories, rank: str) -> None:
    memories.create(OLD)
    memories.create(NEW)
    assert contents(memories, rank=rank)[0] == OLD
