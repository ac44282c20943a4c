"""A person's latest statement is current, however it was made: the links between memories follow
new texts, confirmations and rollbacks.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from clock import MovingClock
from memories import Memories

OLD, NEW, NEWEST, LATEST = (f"The API listens on port {port}." for port in (8080, 9090, 7070, 6060))
ELSEWHERE = "The office is in Rome."


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """Memories written a day apart."""
    with Memories(
        f"sqlite:///{tmp_path}/m.db", embedder="none", clock=MovingClock(timedelta(days=1))
    ) as opened:
        yield opened


def chain(memories: Memories, count: int = 2) -> list[str]:
    """Create a memory and its corrections; return their ids, oldest first."""
    return [str(memories.create(text).id) for text in (OLD, NEW, NEWEST)[:count]]


def links(memories: Memories) -> dict[str, tuple[str | None, str | None]]:
    """Return what each memory corrects, and what corrects it."""
    return {each.id: (each.corrects, each.corrected_by) for each in memories.list().memories}


def shown_first(memories: Memories) -> str:
    """Return the first memory that a search for the port finds."""
    return memories.search("Which port does the API listen on?", limit=1)[0].id


STATED: dict[str, Callable[[Memories, str], object]] = {
    "update": lambda m, each: m.update(each, LATEST),
    "update with tags": lambda m, each: m.update(each, LATEST, tags={"team": "blue"}),
    "same value, said again": lambda m, each: m.create(m.get(each).content),
    "confirm": lambda m, each: m.truth.confirm(each),
}


@pytest.mark.parametrize("how", STATED)
@pytest.mark.parametrize(("count", "which"), [(2, 0), (3, 0), (3, 1)])
def test_a_corrected_memory_that_is_restated_is_current(
    memories: Memories, how: str, count: int, which: int
) -> None:
    ids = chain(memories, count)
    before, was = memories._clock(), links(memories)
    STATED[how](memories, ids[which])
    now = links(memories)
    last = ids[-1]
    assert now[ids[which]] == (last, None)
    assert now[last][1] == ids[which]
    assert [each for each, (_, newer) in now.items() if newer is None] == [ids[which]]
    assert shown_first(memories) == ids[which]
    assert memories.search("Which port?", as_of=before, limit=1)[0].id == last
    assert memories.truth.tidy(dry_run=True) == []

    undone = memories.rollback(before)
    assert links(memories) == was
    assert undone.undo_to is not None
    memories.rollback(undone.undo_to)
    assert links(memories) == now

    memories.delete(ids[which])
    assert shown_first(memories) == last
    memories.restore(ids[which])
    assert links(memories) == now
    memories.delete(last)
    memories.restore(last)
    assert links(memories) == now
    memories.truth.confirm(last)
    assert shown_first(memories) == last


def test_a_text_that_changes_back_and_forth_is_current_each_time(memories: Memories) -> None:
    older, newer = chain(memories)
    for text in (NEWEST, OLD, LATEST, OLD):
        memories.update(older, text)
        assert links(memories) == {older: (newer, None), newer: (None, older)}
    for memory_id, other, text in (
        (newer, older, LATEST),
        (older, newer, NEW),
        (newer, older, OLD),
    ):
        memories.update(memory_id, text)
        assert links(memories)[memory_id] == (other, None)


@pytest.mark.parametrize(
    "text", ["The API listens on port 8080", "the API listens on port  8080.", OLD]
)
def test_a_corrected_memory_that_is_only_reworded_remains_corrected(
    memories: Memories, text: str
) -> None:
    older, newer = chain(memories)
    memories.update(older, text, tags={"team": "blue"})
    assert links(memories) == {older: (None, newer), newer: (older, None)}
    assert memories.truth.tidy(dry_run=True) == []


def test_new_tags_do_not_restate_a_memory(memories: Memories) -> None:
    older, newer = chain(memories)
    memories.update(older, tags={"team": "blue"}, confidence=0.5)
    memories.pin(older)
    assert links(memories) == {older: (None, newer), newer: (older, None)}
    assert shown_first(memories) == newer


@pytest.mark.parametrize("text", [NEWEST, f"  {NEWEST}"])
def test_a_corrected_memory_that_repeats_its_correction_leaves_the_chain(
    memories: Memories, text: str
) -> None:
    first, second, third = chain(memories, 3)
    memories.update(second, text)
    assert links(memories) == {first: (None, third), second: (None, None), third: (first, None)}


def test_a_chain_closes_when_a_memory_leaves_its_middle(memories: Memories) -> None:
    first, second, third = chain(memories, 3)
    memories.update(second, ELSEWHERE)
    assert links(memories) == {first: (None, third), second: (None, None), third: (first, None)}
    assert shown_first(memories) == third


def test_a_new_text_in_another_project_corrects_nothing(memories: Memories) -> None:
    older, newer = chain(memories)
    memories.update(older, NEWEST, tags={"project": "shop"})
    assert links(memories) == {older: (None, None), newer: (None, None)}


def test_a_removed_link_is_not_reversed(memories: Memories) -> None:
    older, newer = chain(memories)
    memories.update(older, NEWEST)
    memories.update(older, not_corrects=newer)
    memories.update(newer, LATEST)
    assert links(memories) == {older: (None, None), newer: (None, None)}


@pytest.mark.parametrize("text", [OLD, LATEST])
@pytest.mark.parametrize("decay", ["stable", "contextual"])
def test_a_memory_that_is_restated_under_its_key_is_current(
    memories: Memories, text: str, decay: str
) -> None:
    older = str(memories.create(OLD, key="api/port", decay=decay).id)
    newer = str(memories.create(NEW).id)
    memories.create(text, key="api/port")
    assert links(memories) == {older: (newer, None), newer: (None, older)}


def test_an_older_text_for_a_key_remains_corrected(memories: Memories) -> None:
    older = str(memories.create(OLD, key="api/port").id)
    between = memories._clock()
    newer = str(memories.create(NEW).id)
    memories.create(LATEST, key="api/port", created_at=between)
    assert links(memories) == {older: (None, newer), newer: (older, None)}


def test_a_text_with_an_earlier_time_does_not_correct_one_that_was_stated_again(
    memories: Memories,
) -> None:
    older, newer = chain(memories)
    between = memories._clock()
    memories.create(OLD)
    latest = memories.create(LATEST, created_at=between)
    assert latest.corrects is None
    assert links(memories)[older] == (newer, None)


def test_tidy_never_prefers_an_older_statement(memories: Memories) -> None:
    older, newer = chain(memories)
    memories.delete(newer)
    memories.create(NEW)
    memories.restore(newer)
    memories.create(OLD)
    proposed = [suggestion.action for suggestion, _ in memories.truth.tidy(dry_run=True)]
    assert older not in [action.get("corrects") for action in proposed]


def test_an_earlier_version_that_is_restored_is_current(memories: Memories) -> None:
    older = str(memories.create(LATEST).id)
    memories.update(older, OLD)
    newer = str(memories.create(NEW).id)
    memories.restore(older, version=1)
    assert links(memories) == {older: (newer, None), newer: (None, older)}


def test_an_accepted_text_for_a_key_is_current(memories: Memories) -> None:
    older = str(memories.create(OLD, key="api/port").id)
    newer = str(memories.create(NEW).id)
    waiting = str(memories.create(LATEST, key="api/port", pending=True).id)
    assert links(memories) == {older: (None, newer), newer: (older, None)}
    memories.review.accept([waiting])
    assert links(memories) == {older: (newer, None), newer: (None, older)}


def test_a_later_change_of_another_memory_survives_a_rollback(memories: Memories) -> None:
    older, newer = chain(memories)
    before = memories._clock()
    memories.update(older, NEWEST)
    latest = str(memories.create(LATEST).id)
    memories.rollback(before, where=f"id = {older}")
    now = links(memories)
    assert now[latest][1] is None
    assert now[older][1] is not None
    assert shown_first(memories) == latest
    assert now[newer][1] is not None


def test_a_rollback_of_two_memories_that_swapped_texts_creates_no_cycle(memories: Memories) -> None:
    older, newer = chain(memories)
    memories.truth.confirm(older)
    before, was = memories._clock(), links(memories)
    memories.create(NEW)
    memories.update(older, NEW)
    memories.rollback(before)
    assert links(memories) == was == {older: (newer, None), newer: (None, older)}


def test_a_rollback_restores_a_chain_whose_memories_were_all_updated(memories: Memories) -> None:
    first, second, third = chain(memories, 3)
    before, was = memories._clock(), links(memories)
    memories.update(third, LATEST)
    memories.update(first, NEWEST)
    assert links(memories)[first] == (third, None)
    memories.rollback(before)
    assert links(memories) == was
    assert was[third] == (second, None)


def test_undoing_a_rollback_invents_no_link(memories: Memories) -> None:
    older, newer = chain(memories)
    memories.truth.confirm(older)
    to = memories._clock()
    memories.update(newer, "Lunch is at noon.")
    memories.update(older, NEWEST)
    before = links(memories)
    undone = memories.rollback(to)
    assert links(memories) == {older: (newer, None), newer: (None, older)}
    assert undone.undo_to is not None
    memories.rollback(undone.undo_to)
    assert links(memories) == before == {older: (None, None), newer: (None, None)}


@pytest.mark.parametrize("which", [0, 1])
def test_a_rollback_restores_the_link_of_a_text_that_was_changed_back(
    memories: Memories, which: int
) -> None:
    ids = chain(memories)
    to, linked = memories._clock(), links(memories)
    text = memories.get(ids[which]).content
    memories.update(ids[which], ELSEWHERE)
    memories.update(ids[which], text)
    before = links(memories)
    undone = memories.rollback(to)
    assert links(memories) == linked
    assert undone.undo_to is not None
    memories.rollback(undone.undo_to)
    assert links(memories) == before == dict.fromkeys(ids, (None, None))


def test_a_rollback_keeps_a_link_that_was_restored_in_the_meantime(memories: Memories) -> None:
    first, second = chain(memories)
    start = memories._clock()
    memories.update(first, NEWEST)
    third = str(memories.create(LATEST).id)
    to, linked = memories._clock(), links(memories)
    assert linked == {first: (second, third), second: (None, first), third: (first, None)}
    for moment in (memories._clock(), start):
        undone = memories.rollback(moment)
        if undone.undo_to is not None:
            memories.rollback(undone.undo_to)
    assert links(memories) == linked
    memories.create(ELSEWHERE)
    memories.rollback(to)
    assert links(memories) == linked


def test_memories_with_the_same_fact_are_not_linked_when_the_one_between_ends(
    memories: Memories,
) -> None:
    older, middle = chain(memories)
    newest = str(memories.create(OLD, key="api/port").id)
    assert links(memories)[middle] == (older, newest)
    assert memories.delete(middle).current_again == (older,)
    assert links(memories) == {older: (None, None), newest: (None, None)}
    memories.restore(middle)
    assert links(memories)[middle] == (older, newest)


@pytest.mark.parametrize("accepted", [False, True])
def test_a_key_that_replaces_a_memory_it_corrects_has_no_link_to_it(
    memories: Memories, accepted: bool
) -> None:
    older = str(memories.create(OLD).id)
    newer = str(memories.create(NEW, key="api/port").id)
    created = memories.create(NEWEST, key="api/port", supersedes=older, pending=accepted)
    if accepted:
        memories.review.accept([str(created.id)])
    assert links(memories) == {newer: (None, None)}
