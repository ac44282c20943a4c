"""A rollback determines which memories existed at a past time."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from clock import Clock
from memories import Draft, Memories
from memories.core.ids import new_id
from opening import opening

TEXT = "Lunch is at noon in the big kitchen"
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> Clock:
    """A clock that the test moves."""
    return Clock()


@pytest.fixture
def memories(tmp_path: Path, clock: Clock) -> Iterator[Memories]:
    """Memories that use the clock."""

    def open_one(namespace: str) -> Memories:
        return Memories(
            f"sqlite:///{tmp_path}/m.db", namespace=namespace, embedder="none", clock=clock
        )

    with opening(open_one) as open_as:
        yield open_as("ann")


def move_to_bob_and_back(memories: Memories, memory_id: str, clock: Clock) -> None:
    """Move a memory to another namespace and back, an hour apart."""
    memories.move([memory_id], "bob")
    clock.move(timedelta(hours=1))
    with Memories(memories._raw_store, namespace="bob", embedder="none", clock=clock) as bob:
        bob.move([memory_id], "ann")
    clock.move(timedelta(hours=1))


@pytest.mark.parametrize("state", ["current", "deleted"])
def test_a_rollback_keeps_a_memory_that_was_moved_away_and_back(
    memories: Memories, clock: Clock, state: str
) -> None:
    made = str(memories.create(TEXT).id)
    if state == "deleted":
        memories.delete(made)
    clock.move()
    before = clock.now
    for _ in range(2):
        clock.move()
        move_to_bob_and_back(memories, made, clock)
    assert memories.rollback(before).counts == {}
    assert memories.history(made).memory.deleted is (state == "deleted")


def test_a_replaced_memory_stays_replaced_when_its_successor_was_moved_away(
    memories: Memories, clock: Clock
) -> None:
    older = str(memories.create(TEXT).id)
    newer = str(memories.create("Dinner is at six", supersedes=older).id)
    clock.move()
    before = clock.now
    clock.move()
    memories.move([newer], "bob")
    assert memories.rollback(before).counts == {}
    assert memories.history(older).superseded_by == newer


def test_a_rollback_deletes_a_memory_that_was_moved_in(memories: Memories, clock: Clock) -> None:
    with Memories(memories._raw_store, namespace="bob", embedder="none", clock=clock) as bob:
        made = str(bob.create(TEXT).id)
        clock.move()
        before = clock.now
        clock.move()
        bob.move([made], "ann")
    clock.move()
    move_to_bob_and_back(memories, made, clock)
    assert memories.rollback(before).counts == {"delete": 1}


def test_a_rollback_deletes_a_backdated_memory_with_a_given_id(
    memories: Memories, clock: Clock
) -> None:
    clock.move()
    before = clock.now
    clock.move()
    draft = Draft(TEXT, created_at=before - DAY, id=new_id(clock.now), fresh=True)
    memories.create_many([draft])
    clock.move()
    existed = clock.now
    clock.move()
    assert memories.rollback(existed).counts == {}
    assert memories.rollback(before).counts == {"delete": 1}


@pytest.mark.parametrize("end", ["delete", "supersede"])
def test_undoing_a_rollback_that_restored_a_memory_brings_back_its_text_and_state(
    memories: Memories, clock: Clock, end: str
) -> None:
    made = str(memories.create(TEXT).id)
    clock.move()
    before = clock.now
    clock.move()
    memories.update(made, "Lunch is at one", tags={"team": "blue"})
    clock.move()
    if end == "delete":
        memories.delete(made)
    else:
        memories.create("The kitchen is closed", supersedes=made)
    ended = memories.history(made)
    clock.move()
    affected = memories.rollback(before)
    assert memories.get(made).content == TEXT
    [step] = [step for step in affected.steps if step.id == made]
    assert (step.action, step.content) == ("restore", TEXT)
    clock.move()
    assert affected.undo_to is not None
    undone = memories.rollback(affected.undo_to, where=affected.undo_where)
    now = memories.history(made)
    assert now.superseded_by == ended.superseded_by
    assert memories.list(deleted=True).memories == ((now.memory,) if end == "delete" else ())
    restored = memories.restore(made)
    assert (restored.content, restored.tags) == ("Lunch is at one", {"team": "blue"})
    clock.move()
    memories.rollback(undone.undo_to)
    assert memories.get(made).content == TEXT


def test_forgetting_the_successor_keeps_an_accepted_memory_that_a_rollback_ended_again(
    memories: Memories, clock: Clock
) -> None:
    made = str(memories.create(TEXT, pending=True).id)
    memories.review.accept([made])
    clock.move()
    successor = str(memories.create("The kitchen is closed", supersedes=made).id)
    clock.move()
    before = clock.now
    clock.move()
    memories.restore(made)
    memories.update(made, "Lunch is at one")
    clock.move()
    assert memories.rollback(before).counts == {"delete": 1}
    history = memories.history(made)
    assert (history.superseded_by, history.memory.content) == (successor, TEXT)
    assert memories.forget(successor).versions == 1
    assert len(memories.history(made).versions) == len(history.versions) == 4
