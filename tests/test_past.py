"""Reads of the past: `get`, `history`, `tags`, `namespaces` and conversations with `as_of`."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from clock import Clock
from memories import InvalidInput, Memories, NotFound, TurnDraft, load_config

DAY = timedelta(days=1)
T0 = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> Clock:
    """A clock that a test moves."""
    return Clock(T0)


@pytest.fixture
def memories(tmp_path: Path, clock: Clock) -> Iterator[Memories]:
    """Memories that use the clock."""
    config = load_config(
        {"embedder": "none"}, environment={"MEMORY_HOME": str(tmp_path)}, folder=tmp_path
    )
    with Memories(config=config, embedder="none", clock=clock) as made:
        yield made


def _create(memories: Memories, content: str, **given: object) -> str:
    """Create a memory; return its id."""
    made = memories.create(content, **given).memory  # type: ignore[arg-type]
    assert made is not None
    return made.id


def test_get_returns_the_version_at_that_time(memories: Memories, clock: Clock) -> None:
    one = _create(memories, "Deploys happen on Tuesdays", tags={"type": "fact"})
    clock.now = T0 + 2 * DAY
    memories.update(one, "Deploys happen on Fridays", tags={"type": "decision"})
    clock.now = T0 + 9 * DAY
    then = memories.get(one[:13], as_of=T0 + DAY)
    assert (then.content, then.tags, then.version) == (
        "Deploys happen on Tuesdays",
        {"type": "fact"},
        1,
    )
    assert memories.get(one, as_of=T0 + 2 * DAY).version == 2
    assert memories.get(one, as_of="2026-05-03").version == 2  # a date means the end of that day
    assert memories.get(one, as_of="2026-05-02").version == 1


def test_reads_of_the_past_neither_count_nor_show_accesses(
    memories: Memories, clock: Clock
) -> None:
    one = _create(memories, "Deploys happen on Tuesdays")
    memories.get(one)
    memories.flush_accesses()
    clock.now = T0 + DAY
    assert memories.get(one, as_of=T0).access_count == 0
    memories.history(one, as_of=T0)
    memories.flush_accesses()
    assert memories.stats().most_used[0].access_count == 1


def test_before_a_memory_was_written_the_error_says_when_it_was(
    memories: Memories, clock: Clock
) -> None:
    one = _create(memories, "Deploys happen on Tuesdays")
    clock.now = T0 + DAY
    for verb in (memories.get, memories.history):
        with pytest.raises(
            NotFound,
            match=r"2026-04-30T\d\d:59:59.999Z: it did not exist until 2026-05-01T12:00:00.000Z",
        ):
            verb(one, as_of="2026-04-30")
    with pytest.raises(InvalidInput, match="someday"):
        memories.get(one, as_of="someday")


def test_a_memory_deleted_at_that_time_is_not_found_but_has_a_history(
    memories: Memories, clock: Clock
) -> None:
    one = _create(memories, "Deploys happen on Tuesdays")
    clock.now = T0 + 2 * DAY
    memories.delete(one)
    clock.now = T0 + 4 * DAY
    memories.restore(one)
    clock.now = T0 + 9 * DAY
    assert (
        memories.get(one, as_of=T0 + DAY).content == memories.get(one, as_of=T0 + 5 * DAY).content
    )
    with pytest.raises(NotFound, match="it was deleted"):
        memories.get(one, as_of=T0 + 3 * DAY)
    ends = [
        [each.ended_by for each in memories.history(one, as_of=T0 + days * DAY).versions]
        for days in (1, 3, 5)
    ]
    assert ends == [[None], ["delete"], ["delete (restored)", None]]


def test_a_forgotten_memory_is_gone_from_the_past(memories: Memories, clock: Clock) -> None:
    one = _create(memories, "Deploys happen on Tuesdays", tags={"type": "fact"})
    clock.now = T0 + DAY
    memories.forget(one)
    for verb in (memories.get, memories.history):
        with pytest.raises(NotFound, match=r"^Memory not found$"):
            verb(one, as_of=T0)
    assert memories.tags(as_of=T0) == {}
    assert [each for each in memories.namespaces(as_of=T0) if each.memory_count] == []


def test_a_search_of_the_past_shows_past_confidence(memories: Memories, clock: Clock) -> None:
    _create(memories, "Deploys happen on Tuesdays", decay="contextual")
    clock.now = T0 + 10 * DAY
    sure = [
        memories.search("deploys", as_of=moment)[0].memory for moment in (T0, T0 + 5 * DAY, None)
    ]
    assert [each and each.confidence for each in sure] == [1.0, 0.8333, 0.6667]


def test_past_history_has_no_later_versions(memories: Memories, clock: Clock) -> None:
    one = _create(memories, "One")
    for day, text in ((2, "Two"), (4, "Three")):
        clock.now = T0 + day * DAY
        memories.update(one, text)
    told = memories.history(one, as_of=T0 + 3 * DAY)
    assert [(each.content, each.ended_at, each.ended_by) for each in told.versions] == [
        ("One", T0 + 2 * DAY, "update"), ("Two", None, None)
    ]  # fmt: skip


def test_later_replacements_and_corrections_are_not_in_the_past(
    memories: Memories, clock: Clock
) -> None:
    old = _create(memories, "The office is at 12 Main Street", key="office")
    clock.now = T0 + 2 * DAY
    newer = _create(memories, "The office is at 40 Harbour Road")
    assert memories.get(old).corrected_by == newer
    clock.now = T0 + 4 * DAY
    last = _create(memories, "There is no office any more, all work from home", supersedes=old)
    assert memories.get(old).superseded_by == last
    states = [
        (found.corrected_by, found.superseded_by, told.corrected_by, told.superseded_by)
        for days in (1, 3, 5)
        for found, told in [
            [verb(old, as_of=T0 + days * DAY) for verb in (memories.get, memories.history)]
        ]
    ]
    assert states[0] == (None, None, None, None)
    assert states[1] == (newer, None, newer, None)
    assert (states[2][1], states[2][3]) == (last, last)
    clock.now = T0 + 6 * DAY
    memories.restore(old)
    clock.now = T0 + 7 * DAY
    assert memories.get(old, as_of=T0 + 5 * DAY).superseded_by == last
    assert memories.get(old, as_of=T0 + 6 * DAY).superseded_by is None


def test_a_pending_memory_is_not_in_the_past(memories: Memories, clock: Clock) -> None:
    one = _create(memories, "The harbour opens at six", pending=True, tags={"kind": "fact"})
    other = _create(memories, "The kettle is old", tags={"kind": "fact"})
    clock.now = T0 + 2 * DAY
    memories.review.accept([one])
    clock.now = T0 + 4 * DAY
    with pytest.raises(NotFound, match="it did not exist until 2026-05-03T12"):
        memories.get(one, as_of=T0 + DAY)
    found = memories.get(one, as_of=T0 + 3 * DAY)
    assert (found.content, found.pending) == ("The harbour opens at six", False)
    assert (memories.tags(as_of=T0 + DAY), memories.tags(as_of=T0 + 3 * DAY)) == (
        {"kind": 1},
        {"kind": 2},
    )
    assert memories.tags("kind", as_of=T0 + DAY) == {"fact": 1}
    waits = _create(memories, "The violin is in the attic", pending=True)
    with pytest.raises(NotFound, match="it is waiting for review"):
        memories.get(waits, as_of=T0 + 4 * DAY)
    counts = [memories.namespaces(as_of=T0 + days * DAY)[0].memory_count for days in (1, 3)]
    assert (counts, memories.get(other, as_of=T0).content) == ([1, 2], "The kettle is old")


def test_an_edit_on_acceptance_is_current_from_that_time(memories: Memories, clock: Clock) -> None:
    one = _create(memories, "The harbour opens at six", pending=True)
    clock.now = T0 + 2 * DAY
    memories.review.accept([one], content="The harbour opens at seven")
    clock.now = T0 + 4 * DAY
    with pytest.raises(NotFound):
        memories.history(one, as_of=T0 + DAY)
    assert memories.get(one, as_of=T0 + 3 * DAY).content == "The harbour opens at seven"


def test_tags_and_namespaces_are_counted_as_of_a_time(memories: Memories, clock: Clock) -> None:
    one = _create(memories, "One thing", tags={"type": "fact", "old": "1"})
    memories.add_turns(
        "talk", [TurnDraft("hello", created_at=T0), TurnDraft("again", created_at=T0 + 3 * DAY)]
    )
    clock.now = T0 + 2 * DAY
    memories.update(one, tags={"type": "decision"}, remove_tags=["old"])
    _create(memories, "Another matter", tags={"type": "fact"})
    assert memories.tags(as_of=T0 + DAY) == {"old": 1, "type": 1}
    assert memories.tags("type", as_of=T0 + DAY) == {"fact": 1}
    assert (
        memories.tags("type", as_of=T0 + 2 * DAY)
        == memories.tags("type")
        == {"decision": 1, "fact": 1}
    )
    (then,) = memories.namespaces(as_of=T0 + DAY)
    assert then.name == memories.namespace
    assert (then.memory_count, then.turn_count, then.pending_count, then.deleted_count) == (
        1,
        1,
        None,
        None,
    )
    assert memories.namespaces(as_of=T0 - DAY) == ()


def test_past_conversations_have_the_turns_at_that_time(memories: Memories) -> None:
    said = [TurnDraft(f"said on day {day}", created_at=T0 + day * DAY) for day in (0, 1, 20)]
    memories.add_turns("talk", said)
    memories.add_turns("later", [TurnDraft("much later", created_at=T0 + 20 * DAY)])
    (then,) = memories.conversations(as_of=T0 + 2 * DAY)
    assert (then.id, then.turn_count, then.last_at) == ("talk", 2, T0 + DAY)
    assert memories.conversation("talk", as_of=T0 + 2 * DAY) == then
    for verb in (memories.turns, memories.tail_turns):
        assert [turn.index for turn in verb("talk", as_of=T0 + 2 * DAY)] == [0, 1]
    with pytest.raises(NotFound, match=r"until 2026-05-21T12:00:00.000Z"):
        memories.conversation("later", as_of=T0 + 2 * DAY)
    assert (
        memories.conversations(until=T0 + 2 * DAY)[0].turn_count == 3
    )  # `until` selects conversations, but doesn't shorten them
    assert memories.turns("talk", until=T0, as_of=T0 + 2 * DAY)[-1].index == 0
