"""Whether a draft is stored or refused, on both sides of each limit."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clock import Clock
from memories import Memories, load_config
from memories.errors import InvalidInput
from memories.write.compare.duplicates import MAX_COMPARED, Relation, compare_texts

pytestmark = pytest.mark.usefixtures("home")

START = datetime(2026, 5, 1, 9, tzinfo=UTC)
FACT, REWORDED = "The user does not eat meat.", "The user doesn't eat meat."


@pytest.fixture
def clock() -> Clock:
    """A clock that a test moves."""
    return Clock(START)


@pytest.fixture
def memories(tmp_path: Path, clock: Clock) -> Iterator[Memories]:
    """A store in which a memory fades in 100 hours and is not found below a confidence of 0.5."""
    given = {"namespace": "shared", "decay_half_life_hours": "100", "min_confidence": "0.5"}
    config = load_config(given, environment={})
    with Memories(
        f"sqlite:///{tmp_path}/m.db", embedder="none", clock=clock, config=config
    ) as opened:
        yield opened


def test_a_rewording_is_refused_unless_it_has_a_key(
    memories: Memories,
) -> None:
    known = memories.create(FACT)
    refused = memories.create(REWORDED)
    assert (refused.stored, [each.id for each in refused.duplicates]) == (False, [known.id])
    keyed = memories.create(REWORDED, key="diet")
    assert (keyed.stored, keyed.duplicates) == (True, ())
    assert keyed.id != known.id


@pytest.mark.parametrize("anchors", ["compose.yml::5433", ["compose.yml::5433", 5433], {"a": 1}])
def test_anchors_must_be_a_list_of_texts(memories: Memories, anchors: Any) -> None:
    with pytest.raises(InvalidInput, match="anchors must be a list of strings"):
        memories.create(FACT, anchors=anchors)
    assert memories.list().memories == ()


def test_an_already_expired_memory_is_stored_with_a_note(memories: Memories, clock: Clock) -> None:
    day = (START - timedelta(days=2)).date().isoformat()
    created = memories.create(FACT, valid_until=day)
    assert created.stored
    assert created.note == f"the memory has already expired: it is valid only until {day}"
    other = "Deploys happen on Tuesdays"
    assert memories.create(other).note == ""
    repeated = memories.create(other, valid_until=day)
    assert (repeated.stored, repeated.merged, repeated.note) == (
        *(False, ("valid_until",)),
        created.note,
    )
    assert memories.create("The build takes ten minutes", valid_until="90d").note == ""


CHANGES = {
    "update": lambda memories, each, text: memories.update(each, text),
    "key": lambda memories, _, text: memories.create(text, key="sale"),
    "key in review": lambda memories, _, text: accept(memories, text, key="sale"),
}


def accept(memories: Memories, text: str, **draft: Any) -> None:
    """Accept a memory that awaits review, with this text instead of its own."""
    pending = memories.create("The sale may run", pending=True, **draft)
    memories.review.accept([pending.id], content=text)


@pytest.mark.parametrize("way", CHANGES)
def test_new_text_keeps_the_dates_that_are_not_given(
    memories: Memories, clock: Clock, way: str
) -> None:
    first = memories.create("The sale runs", key="sale", valid_until="2026-05-09", recheck="7d")
    CHANGES[way](memories, first.id, "The sale runs in Rome")
    changed = memories.get(first.id)
    assert (changed.content, changed.version) == ("The sale runs in Rome", 2)
    assert (changed.valid_until, changed.recheck_days) == (first.memory.valid_until, 7)
    clock.move(timedelta(days=9))
    CHANGES[way](memories, first.id, "The sale runs in Oslo")
    changed = memories.get(first.id)
    assert (changed.version, changed.valid_until, changed.recheck_days) == (3, None, 7)


def test_a_repetition_can_remove_the_dates(memories: Memories) -> None:
    memories.create(FACT, valid_until="2027-01-01", recheck="7d")
    created = memories.create(FACT, valid_until="", recheck="0d")
    assert set(created.merged) == {"valid_until", "recheck"}
    assert (created.memory.valid_until, created.memory.recheck_days) == (None, None)
    assert memories.create(FACT, valid_until="", recheck=0).merged == ()


def test_a_text_edited_in_review_keeps_the_dates(memories: Memories) -> None:
    accept(memories, "The sale runs", valid_until="2026-05-09", recheck="7d")
    [memory] = memories.list().memories
    assert (memory.content, memory.recheck_days) == ("The sale runs", 7)
    assert memory.valid_until is not None


@pytest.mark.parametrize(("hours", "stored"), [(50, False), (50.1, True)])
def test_a_faded_memory_can_be_stored_again(
    memories: Memories, clock: Clock, hours: float, stored: bool
) -> None:
    known = memories.create(FACT, decay="contextual")
    clock.now = START + timedelta(hours=hours)
    again = memories.create(FACT, decay="contextual")
    assert (again.stored, again.id != known.id) == (stored, stored)


def test_a_draft_below_the_confidence_limit_repeats_a_memory_below_it(
    memories: Memories,
) -> None:
    known = memories.create(FACT, confidence=0.2)
    assert memories.create(FACT, confidence=0.2).id == known.id
    sure = memories.create(FACT)
    assert sure.stored
    assert sure.id != known.id


@pytest.mark.parametrize(
    ("length", "relation"),
    [(MAX_COMPARED, Relation.DUPLICATE), (MAX_COMPARED + 1, Relation.UNRELATED)],
)
def test_texts_are_compared_by_words_up_to_a_length(length: int, relation: Relation) -> None:
    rest = " It rains." * 300
    old, new = (f"{text}{rest[: length - len(FACT)]}" for text in (FACT, REWORDED))
    assert len(old) == length == len(new) + 1
    assert compare_texts(new, old, None, threshold=1.0).relation is relation
    assert compare_texts(old, new, None, threshold=1.0).relation is relation
    assert compare_texts(old, old, None, threshold=1.0).relation is Relation.SAME


def test_a_text_can_be_stored_again_in_another_project(memories: Memories) -> None:
    made = [
        memories.create(FACT, tags=tags) for tags in ({}, {"project": "shop"}, {"project": "site"})
    ]
    assert [each.stored for each in made] == [True] * 3
    assert [
        memories.create(FACT, tags=dict(each.memory.tags)).id for each in made if each.memory
    ] == [each.id for each in made]


def test_a_repetition_is_recognized_among_many_memories_of_other_projects(
    memories: Memories,
) -> None:
    for number in range(20):
        memories.create(REWORDED, tags={"project": f"shop-{number}"})
    known = memories.create(FACT)
    assert [memory.id for memory in memories.create(REWORDED).duplicates] == [known.id]


def test_a_successor_may_repeat_the_replaced_memory(memories: Memories) -> None:
    known = memories.create(FACT)
    made = memories.create(REWORDED, supersedes=known.id)
    assert made.stored
    assert memories.get(str(known.id)).superseded_by == made.id


def test_a_draft_never_repeats_a_session_note(memories: Memories) -> None:
    said = "We decided to move the deploys to Fridays."
    memories.create(said, tags={"type": "session", "project": "shop"}, key="session/claude-code/s1")
    stored = memories.create(said, tags={"project": "shop"})
    assert (stored.stored, stored.duplicates, stored.merged) == (True, (), ())
    assert list(memories.duplicates()) == []
    assert memories.create(said, tags={"project": "shop"}).id == stored.id


def test_pending_drafts_are_compared_with_pending_memories(memories: Memories) -> None:
    waits = memories.create(FACT, pending=True)
    again, reworded = (memories.create(text, pending=True) for text in (FACT, REWORDED))
    assert (waits.stored, again.stored, reworded.stored) == (True, False, False)
    assert again.id == waits.id
    assert [each.id for each in reworded.duplicates] == [waits.id]
    assert [each.id for each in memories.review.page().memories] == [waits.id]


def test_a_rejected_text_is_not_proposed_again_but_a_rewording_is(
    memories: Memories,
) -> None:
    rejected = memories.create(FACT, pending=True)
    memories.review.reject([str(rejected.id)])
    assert not memories.create(FACT, pending=True).stored
    assert memories.create(REWORDED, pending=True).stored


def test_the_note_names_the_project_of_a_replaced_memory(memories: Memories) -> None:
    def replace(old: str | None, new: str | None) -> str:
        """Replace a memory in one project with one in another; return the note."""
        tags = [{} if project is None else {"project": project} for project in (old, new)]
        first = memories.create(f"The office of {old} is in Rome", tags=tags[0], force=True)
        text = f"The team of {new} meets on Fridays, not in {old}"
        return memories.create(text, tags=tags[1], supersedes=first.id, force=True).note

    assert replace("shop", "till") == 'it replaced a memory in the project "shop"'
    assert replace("shop", None) == 'it replaced a memory in the project "shop"'
    assert replace(None, "till") == "it replaced a memory without a project"
    assert replace("shop", "shop") == replace(None, None) == ""
