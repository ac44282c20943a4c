"""`create` names the memories that the new one may replace, and no others."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from clock import MovingClock
from memories import Draft, Memories

OLD = "Anna leads the payments team."
NEW = "Since Monday Bert has taken over the payments team from Anna."
OTHERS = (
    "The staging database runs on Postgres 14.",
    "The user prefers short answers.",
    "Deploys happen on Tuesdays.",
    "Maria is allergic to peanuts.",
)


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """Memories whose clock advances by an hour with each write."""
    with Memories(f"sqlite:///{tmp_path}/m.db", clock=MovingClock(timedelta(hours=1))) as opened:
        opened.create_many(OTHERS)
        yield opened


def similar_to(memories: Memories, text: str, **more: object) -> list[str]:
    """Create a memory; return the contents that it may replace."""
    return [similar.content for similar in memories.create(text, **more).similar_to]  # type: ignore[arg-type]


def test_a_reworded_correction_names_the_memory_that_it_may_replace(
    memories: Memories,
) -> None:
    memories.create(OLD)
    created = memories.create(NEW)
    assert created.stored
    assert created.corrects is None
    assert [similar.content for similar in created.similar_to] == [OLD]


def test_another_fact_about_the_same_subject_names_no_similar_memory(memories: Memories) -> None:
    memories.create(OLD)
    assert similar_to(memories, "Anna studied mathematics in Vienna.") == []


@pytest.mark.parametrize("step", [1, -1])
def test_the_order_in_which_a_store_finds_memories_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    clock = MovingClock(timedelta(hours=1))
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=clock) as memories:
        for number in range(5):
            memories.create(f"The backup runs on server {number}", force=True)
        store = memories._raw_store
        find = store.candidates
        monkeypatch.setattr(store, "candidates", lambda *a, **k: find(*a, **k)[::step])
        newest_first = [f"The backup runs on server {number}" for number in (4, 3, 2)]
        assert similar_to(memories, "The backup runs on server 9") == newest_first


def test_an_unrelated_memory_is_never_named(memories: Memories) -> None:
    assert similar_to(memories, NEW) == []


def test_at_most_three_memories_are_named(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as memories:
        for name in ("Anna", "Carla", "Dora", "Emil", "Fritz"):
            memories.create(f"{name} leads the payments team.", force=True)
        assert len(similar_to(memories, "Bert took over the payments team this Monday.")) == 3


def test_only_memories_nearly_as_close_as_the_closest_are_named(memories: Memories) -> None:
    memories.create(OLD)
    memories.create("The payments team meets on Wednesdays.")
    assert similar_to(memories, NEW) == [OLD]


def test_a_correction_that_shares_no_words_names_the_memory_that_it_may_replace(
    memories: Memories,
) -> None:
    memories.create("Session tokens expire after 24 hours.")
    assert similar_to(memories, "Security made us cut the lifetime of a login to 30 minutes.") == [
        "Session tokens expire after 24 hours."
    ]


def test_a_single_memory_is_named_if_it_is_close(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db") as memories:
        memories.create("Invoices are emailed on the first of the month.")
        assert similar_to(memories, "Billing sends invoices out on the 15th.")
    with Memories(f"sqlite:///{tmp_path}/n.db") as memories:
        memories.create("Invoices are emailed on the first of the month.")
        assert not similar_to(memories, "Lena works from Dublin.")


def test_text_in_an_unknown_script_names_no_memory_by_meaning(
    memories: Memories,
) -> None:
    memories.create("棚卸しは月末の金曜日の夜に行い、その日は更新を出さない。")
    assert similar_to(memories, "キャンセルは前日の18時まで無料、その後は半額をいただく。") == []


def test_a_create_with_supersedes_names_no_similar_memory(memories: Memories) -> None:
    old = memories.create(OLD)
    assert similar_to(memories, NEW, supersedes=old.id) == []


def test_repeating_the_create_with_supersedes_retires_the_named_memory(memories: Memories) -> None:
    old = memories.create(OLD)
    created = memories.create(NEW)
    again = memories.create(NEW, supersedes=created.similar_to[0].id)
    assert (again.stored, again.merged, again.id) == (False, ("supersedes",), created.id)
    assert old.id is not None
    assert memories.get(old.id).superseded_by == created.id
    assert OLD not in [hit.content for hit in memories.search("Who leads the payments team?")]


def test_a_memory_of_another_project_is_not_named(memories: Memories) -> None:
    memories.create(OLD, tags={"project": "shop"})
    assert similar_to(memories, NEW, tags={"project": "till"}) == []


def test_a_recently_read_memory_is_named_more_readily(memories: Memories) -> None:
    old = memories.create("Ben reports to Claudia.")
    text = "Farid plans Ben's work."
    assert old.id is not None
    first = memories.create_many([Draft(text)])[0]
    assert first.similar_to == ()
    assert first.id is not None
    memories.delete(first.id)
    [second] = memories.create_many([Draft(text, seen=[old.id])])
    assert [similar.id for similar in second.similar_to] == [old.id]
