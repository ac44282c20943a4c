"""A correction applies as long as it is valid. After that, the corrected memory is current again
for every reader, without a write.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from clock import Clock
from memories import Memories
from memories.identity.session_block import build_session_block
from memories.stores import open_store
from memories.transfer.migrate import migrate

OLD, NEW, NEWEST = (f"The API listens on port {port}." for port in (8080, 9090, 7070))
QUESTION = "Which port does the API listen on?"
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> Clock:
    """A clock that the test moves."""
    return Clock()


@pytest.fixture
def memories(tmp_path: Path, clock: Clock) -> Iterator[Memories]:
    """Memories that use the clock."""
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", clock=clock) as opened:
        yield opened


def chain(memories: Memories, clock: Clock, *days: int | None) -> list[str]:
    """Create a memory and its corrections, a minute apart; return their ids, oldest first.

    Args:
        memories: Where to create them.
        clock: Their clock.
        days: For how many days from now each correction is valid; None without an end.
    """
    start = clock.now
    ids = [str(memories.create(OLD).id)]
    for text, count in zip((NEW, NEWEST), days, strict=False):
        clock.move(timedelta(minutes=1))
        until = None if count is None else start + count * DAY
        ids.append(str(memories.create(text, valid_until=until).id))
    return ids


def links(memories: Memories) -> dict[str, tuple[str | None, str | None]]:
    """Return what each memory corrects, and what corrects it."""
    return {each.id: (each.corrects, each.corrected_by) for each in memories.list().memories}


def hidden(memories: Memories) -> set[str]:
    """Return the memories that are corrected, after checking that all readers agree."""
    listed = {each.id for each in memories.list().memories if each.corrected_by}
    assert {name for name in links(memories) if memories.get(name).corrected_by} == listed
    assert {name for name in links(memories) if memories.history(name).corrected_by} == listed
    hits = memories.search(QUESTION)
    assert {hit.id for hit in hits if hit.memory.corrected_by} == listed
    without = memories.search(QUESTION, include_corrected=False)
    assert {hit.id for hit in hits} - {hit.id for hit in without} == listed
    return listed


def test_a_memory_is_current_again_when_its_correction_expires(
    memories: Memories, clock: Clock
) -> None:
    older, newer = chain(memories, clock, 1)
    assert links(memories) == {older: (None, newer), newer: (older, None)}
    clock.now = memories.get(newer).valid_until or clock.now
    assert hidden(memories) == {older}
    clock.move(timedelta(milliseconds=1))
    assert hidden(memories) == set()
    assert links(memories) == {older: (None, None), newer: (None, None)}
    past = memories.search(QUESTION, as_of=clock.now - timedelta(hours=1))
    assert {hit.id: hit.memory.corrected_by for hit in past} == {older: newer, newer: None}


@pytest.mark.parametrize(
    ("days", "after_one_day", "after_two_days"),
    [
        ((1, None), {0, 1}, {0, 1}),
        ((1, 2), {0, 1}, set()),
        ((2, 1), {0}, set()),
        ((None, 1), {0}, {0}),
    ],
)
def test_a_chain_ends_with_its_last_valid_correction(
    memories: Memories,
    clock: Clock,
    days: tuple[int | None, int | None],
    after_one_day: set[int],
    after_two_days: set[int],
) -> None:
    ids = chain(memories, clock, *days)
    assert hidden(memories) == set(ids[:2])
    clock.move(DAY)
    assert hidden(memories) == {ids[place] for place in after_one_day}
    clock.move(DAY)
    assert hidden(memories) == {ids[place] for place in after_two_days}


CHANGES: dict[str, Callable[[Memories, str], object]] = {
    "update": lambda m, each: m.update(each, valid_until=""),
    "confirm": lambda m, each: m.truth.confirm(each, valid_until=""),
    "confirmed after its end": lambda m, each: m.truth.confirm(each),
    "stated with a later time": lambda m, each: m.create(
        m.get(each).content, valid_until=m._clock() + 9 * DAY
    ),
    "stated again after its end": lambda m, each: m.create(m.get(each).content),
    "an earlier version": lambda m, each: m.restore(each, version=1),
    "a new text": lambda m, each: m.update(each, "The API listens on port 9091."),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("count", [2, 3])
def test_a_correction_that_becomes_valid_again_corrects_again(
    memories: Memories, clock: Clock, how: str, count: int
) -> None:
    first, *_, last = chain(memories, clock, *[None, None][2 - (count - 1) :])
    memories.update(last, valid_until=clock.now + DAY)
    if count == 3:
        between = str(memories.get(first).corrected_by)
        memories.update(between, valid_until=clock.now + DAY)
    clock.move(2 * DAY)
    assert hidden(memories) == set()
    CHANGES[how](memories, last)
    assert memories.get(last).corrected_by is None
    assert hidden(memories) == set(links(memories)) - {last}


@pytest.mark.parametrize("end", ["delete", "forget", "not_corrects"])
def test_a_chain_without_its_last_correction_expires_with_the_one_before(
    memories: Memories, clock: Clock, end: str
) -> None:
    older, middle, newest = chain(memories, clock, 1, None)
    if end == "not_corrects":
        memories.update(newest, not_corrects=middle)
    else:
        getattr(memories, end)(newest)
    assert hidden(memories) == {older}
    clock.move(DAY)
    assert hidden(memories) == set()
    if end == "delete":
        memories.restore(newest)
        assert hidden(memories) == {older, middle}


def test_a_memory_that_is_current_again_can_be_corrected_again(
    memories: Memories, clock: Clock
) -> None:
    older, expired = chain(memories, clock, 1)
    clock.move(2 * DAY)
    memories.update(expired, "Until Friday, the port is 9090, see the notice.")
    memories.update(expired, valid_until=clock.now - timedelta(hours=1))
    newest = memories.create(NEWEST)
    assert newest.corrects is not None
    assert older in hidden(memories)
    assert newest.id not in hidden(memories)


@pytest.mark.parametrize("act", ["confirm", "say again", "reword"])
def test_restating_a_memory_that_is_current_again_corrects_nothing(
    memories: Memories, clock: Clock, act: str
) -> None:
    older, expired = chain(memories, clock, 1)
    clock.move(2 * DAY)
    if act == "confirm":
        memories.truth.confirm(older)
    elif act == "say again":
        assert memories.create(OLD).merged == ()
    else:
        memories.update(older, OLD.rstrip("."))
    assert links(memories) == {older: (None, None), expired: (None, None)}


def test_the_session_block_shows_a_memory_that_is_current_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path))
    with Memories(embedder="none", clock=clock) as memories:
        older, newer = chain(memories, clock, 1)
        memories.pin(older)
        block = build_session_block(memories, project=None, budget=2_000)
        assert (NEW in block.text, OLD in block.text) == (True, False)
        memories.scratchpad()
        clock.now = memories.get(newer).valid_until or clock.now
        assert memories.scratchpad_at_hand() is not None
        clock.move(timedelta(seconds=1))
        block = build_session_block(memories, project=None, budget=2_000)
        assert OLD in block.text
        assert [entry.id for entry in memories.scratchpad().entries] == [older, newer]


def test_a_rollback_keeps_the_time_at_which_a_correction_ends(
    memories: Memories, clock: Clock
) -> None:
    older, newer = chain(memories, clock, 1)
    before = clock.now
    clock.move(timedelta(hours=1))
    memories.update(newer, valid_until="")
    clock.move(2 * DAY)
    assert hidden(memories) == {older}
    memories.rollback(before)
    assert hidden(memories) == set()


def test_a_rollback_to_a_time_after_the_end_changes_nothing(
    memories: Memories, clock: Clock
) -> None:
    older, newer = chain(memories, clock, 1)
    memories.update(older, tags={"team": "blue"})
    clock.move(2 * DAY)
    assert memories.rollback(clock.now).counts == {}
    memories.update(newer, tags={"team": "blue"})
    assert hidden(memories) == set()


def test_an_expired_correction_is_not_proposed_and_proposes_nothing(
    memories: Memories, clock: Clock
) -> None:
    older = str(memories.create(OLD).id)
    clock.move(timedelta(minutes=1))
    memories.create(NEW, valid_until=clock.now + DAY, force=True)
    assert [kind for (kind, *_), _ in memories.truth.tidy(dry_run=True)] == ["contradiction"]
    clock.move(2 * DAY)
    assert memories.truth.tidy(dry_run=True) == []
    newest = memories.create(NEWEST, force=True).id
    [(suggestion, _)] = memories.truth.tidy(dry_run=True)
    assert suggestion.action["id"] == newest
    assert older in links(memories)


def test_a_copy_of_a_store_keeps_the_time_at_which_a_correction_ends(
    memories: Memories, clock: Clock, tmp_path: Path
) -> None:
    older, _ = chain(memories, clock, 1)
    target = open_store(f"sqlite:///{tmp_path}/other.db", None, memories.config)
    migrate(memories._store, target, None, progress=lambda *_: None)
    with Memories(target, embedder="none", clock=clock) as other:
        assert hidden(other) == {older}
        clock.move(2 * DAY)
        assert hidden(other) == set()


ENDS: dict[str, Callable[[Memories, str], tuple[str, ...]]] = {
    "delete": lambda m, each: m.delete(each).current_again,
    "delete where": lambda m, each: m.delete_where(f"id = {each}").current_again,
    "forget": lambda m, each: m.forget(each).current_again,
    "forget where": lambda m, each: m.forget_where(f"id = {each}").current_again,
    "move": lambda m, each: m.move([each], "bob").current_again,
    "tag where": lambda m, each: m.tag_where(f"id = {each}", tags={"project": "a"}).current_again,
    "update": lambda m, each: m.update(each, "Lunch is at noon.").current_again,
    "update its end": lambda m, each: m.update(each, valid_until="2020-01-01").current_again,
    "repeat with an end that has passed": lambda m, each: (
        m.create(m.get(each).content, valid_until="2020-01-01").current_again
    ),
    "replace": lambda m, each: (
        m.create("Lunch is at noon.", supersedes=each, tags={"project": "a"}).current_again
    ),
    "accept a replacement": lambda m, each: (
        m.review.accept(
            [str(m.create("Lunch.", supersedes=each, tags={"project": "a"}, pending=True).id)]
        )[0].current_again
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_change_names_exactly_the_memories_that_are_current_again(
    memories: Memories, clock: Clock, how: str
) -> None:
    older, expired, newest = chain(memories, clock, 1, None)
    clock.move(2 * DAY)
    assert hidden(memories) == {older, expired}
    assert ENDS[how](memories, newest) == (older,)
    assert hidden(memories) == set()


@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_an_expired_correction_makes_nothing_current_again(
    memories: Memories, clock: Clock, how: str
) -> None:
    older, newer = chain(memories, clock, 1)
    clock.move(2 * DAY)
    assert ENDS[how](memories, newer) == ()
    assert older in links(memories)


def test_a_create_offers_no_memory_that_it_corrects_indirectly(
    memories: Memories, clock: Clock
) -> None:
    older, expired = chain(memories, clock, 1)
    clock.move(2 * DAY)
    created = memories.create(NEWEST)
    assert (created.corrects, memories.get(older).corrected_by) == (expired, expired)
    assert created.replaceable == []
