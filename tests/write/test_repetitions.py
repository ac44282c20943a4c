"""When a stored text is stored again, additions are merged, contradictions are reported, and
nothing is lost.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clock import Clock
from memories import Created, Draft, Memories
from memories.answers.shapes import create_result
from memories.guard.validate import MAX_TAGS
from memories.write.repetitions import NOTE_TAGS, NOTE_TRUST, NOTE_WAITS
from opening import opening

TEXT = "The deploys of the harbour happen on Tuesdays"
OLD, NEW = (f"The API listens on port {port}." for port in (8080, 9090))
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> Clock:
    """A clock that a test moves."""
    return Clock(datetime(2026, 1, 5, tzinfo=UTC))


@pytest.fixture
def open_as(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., Memories]]:
    """Opens memories as the writer of a channel."""

    def open_one(channel: str = "python", **settings: Any) -> Memories:
        settings = {"embedder": "fake", "clock": clock, "channel": channel} | settings
        return Memories(f"sqlite:///{tmp_path}/m.db", **settings)

    with opening(open_one) as open_as:
        yield open_as


@pytest.fixture
def memories(open_as: Callable[..., Memories]) -> Memories:
    """Memories that a program opens."""
    return open_as()


def store_first(memories: Memories, **more: Any) -> str:
    """Store the text for the first time; return its id."""
    made = memories.create(TEXT, **more)
    assert made.stored and made.id
    assert (made.merged, made.not_merged, made.reinforced) == ((), {}, False)
    return made.id


def repetition_of(made: Created) -> tuple[Any, ...]:
    """Return the part of a result that describes a repetition."""
    return made.stored, made.merged, made.not_merged, made.reinforced


ADDED = [
    ({}, {"tags": {"type": "fact", "global": "true"}}, ("tags",)),
    ({"tags": {"global": "false"}}, {"tags": {"global": "true"}}, ("tags",)),
    ({"decay": "contextual"}, {"decay": "stable"}, ("decay",)),
    ({"confidence": 0.4}, {"confidence": 0.9}, ("confidence",)),
    ({"confidence": 0.4}, {"confidence": 1.0}, ("confidence",)),
    ({}, {"source": "standup#3"}, ("source",)),
    (
        {"decay": "contextual", "confidence": 0.5},
        {"decay": "stable", "confidence": 1, "tags": {"a": "b"}},
        ("tags", "decay", "confidence"),
    ),
]


@pytest.mark.parametrize(("said", "again", "merged"), ADDED)
def test_additions_of_a_repetition_become_a_new_version(
    memories: Memories,
    clock: Clock,
    said: dict[str, Any],
    again: dict[str, Any],
    merged: tuple[str, ...],
) -> None:
    memory_id = store_first(memories, **said)
    clock.now += DAY
    made = memories.create(f" {TEXT[0].lower()}{TEXT[1:]}.", **again)
    assert repetition_of(made) == (False, merged, {}, False)
    kept = memories.get(memory_id)
    assert made.memory == kept
    assert (kept.content, kept.version) == (TEXT, 2)
    assert kept.tags == said.get("tags", {}) | again.get("tags", {})
    wanted = said | again
    assert kept.decay_policy == wanted.get("decay", "stable")
    assert kept.base_confidence == wanted.get("confidence", 1.0)
    assert kept.source == wanted.get("source")
    before = memories.list(as_of=clock.now - DAY).memories[0]
    assert (before.version, before.tags, before.decay_policy) == (
        1, said.get("tags", {}), said.get("decay", "stable"),
    )  # fmt: skip
    assert [hit.id for hit in memories.search(TEXT)] == [memory_id]
    assert repetition_of(memories.create(TEXT, **again)) == (False, (), {}, False)
    assert memories.get(memory_id).version == 2


CONTRADICTED = [
    ({"tags": {"type": "fact"}}, {"tags": {"type": "decision"}}, {"tags": {"type": "decision"}}),
    ({"tags": {"global": "true"}}, {"tags": {"global": "false"}}, {"tags": {"global": "false"}}),
    ({"decay": "reinforceable"}, {"decay": "contextual"}, {"decay": "contextual"}),
    ({}, {"decay": "reinforceable"}, {"decay": "reinforceable"}),
    ({}, {"confidence": 0.3}, {"confidence": 0.3}),
    ({"source": "standup"}, {"source": "retro"}, {"source": "retro"}),
]


@pytest.mark.parametrize(("said", "again", "left"), CONTRADICTED)
def test_contradictions_are_reported_and_change_nothing(
    memories: Memories, said: dict[str, Any], again: dict[str, Any], left: dict[str, Any]
) -> None:
    memory_id = store_first(memories, **said)
    before = memories.get(memory_id)
    made = memories.create(TEXT, **again)
    assert (made.stored, made.merged, made.not_merged) == (False, (), left)
    kept = memories.get(memory_id)
    assert (kept.version, kept.tags, kept.decay_policy) == (1, before.tags, before.decay_policy)
    assert (kept.base_confidence, kept.source) == (before.base_confidence, before.source)


def test_omitted_fields_change_nothing(memories: Memories) -> None:
    memory_id = store_first(
        memories, decay="contextual", confidence=0.5, tags={"type": "fact"}, source="standup"
    )
    assert repetition_of(memories.create(TEXT)) == (False, (), {}, False)
    assert memories.get(memory_id).version == 1


def test_a_slower_decay_policy_is_merged(memories: Memories, clock: Clock) -> None:
    memory_id = store_first(memories, decay="contextual")
    clock.now += 20 * DAY
    assert memories.create(TEXT, decay="stable").merged == ("decay",)
    clock.now += 20 * DAY
    assert [hit.id for hit in memories.search(TEXT)] == [memory_id]


def test_a_repetition_reinforces(memories: Memories, clock: Clock) -> None:
    memory_id = store_first(memories, decay="reinforceable")
    clock.now += 15 * DAY
    assert memories.get(memory_id).confidence < 0.6
    made = memories.create(TEXT)
    assert repetition_of(made) == (False, (), {}, True)
    assert made.memory is not None
    assert (made.memory.confidence, made.memory.last_reinforced_at, made.memory.version) == (
        1.0,
        clock.now,
        1,
    )
    clock.now += 15 * DAY
    assert repetition_of(memories.create(TEXT, tags={"type": "fact"})) == (
        False,
        ("tags",),
        {},
        True,
    )
    kept = memories.get(memory_id)
    assert (kept.confidence, kept.version, kept.last_reinforced_at) == (1.0, 2, clock.now)
    [then] = memories.search(TEXT, as_of=clock.now - DAY)
    assert then.memory.confidence < 0.6
    actions = [change.action for entry in memories.log(memory_id) for change in entry.changes]
    assert actions.count("reinforce") == 2


def test_a_repetition_does_not_reinforce_a_contextual_memory(
    memories: Memories, clock: Clock
) -> None:
    memory_id = store_first(memories, decay="contextual")
    clock.now += 10 * DAY
    before = memories.get(memory_id).confidence
    assert repetition_of(memories.create(TEXT, decay="contextual")) == (False, (), {}, False)
    assert repetition_of(memories.create(TEXT, tags={"a": "b"})) == (False, ("tags",), {}, False)
    assert memories.get(memory_id).confidence == before < 1


def test_the_decay_of_a_memory_that_becomes_reinforceable_restarts(
    memories: Memories, clock: Clock
) -> None:
    memory_id = store_first(memories, decay="contextual")
    clock.now += 10 * DAY
    assert repetition_of(memories.create(TEXT, decay="reinforceable")) == (
        False,
        ("decay",),
        {},
        True,
    )
    assert memories.get(memory_id).confidence == 1.0


def test_drafts_in_one_call_can_repeat_each_other(memories: Memories) -> None:
    drafts = [Draft(TEXT, tags={f"n{number}": "1"}) for number in range(60)]
    made = memories.create_many([*drafts, Draft(TEXT, tags={"n0": "2"})])
    assert {each.id for each in made} == {made[0].id}
    assert [each.stored for each in made] == [True, *[False] * 60]
    assert [each.merged for each in made] == [(), *[("tags",)] * 59, ()]
    assert made[-1].not_merged == {"tags": {"n0": "2"}}
    assert memories.list().memories[0].tags == {f"n{number}": "1" for number in range(60)}


def test_an_older_repetition_reinforces_nothing(memories: Memories, clock: Clock) -> None:
    memory_id = store_first(memories, decay="reinforceable")
    made = memories.create(TEXT, created_at=clock.now - 30 * DAY, tags={"a": "b"})
    assert repetition_of(made) == (False, ("tags",), {}, False)
    kept = memories.get(memory_id)
    assert (kept.created_at, kept.updated_at, kept.last_reinforced_at) == (
        clock.now,
        clock.now,
        None,
    )


def test_among_equal_memories_a_draft_repeats_one_that_it_does_not_contradict(
    memories: Memories,
) -> None:
    facts = [
        memories.create(TEXT, tags={"type": kind}, force=True).id
        for kind in ("fact", "decision", "fact")
    ]
    made = memories.create(TEXT, tags={"type": "decision", "global": "true"})
    assert (made.id, made.merged, made.not_merged) == (facts[1], ("tags",), {})


def test_repetitions_with_force_or_in_other_projects_or_namespaces_are_not_merged(
    memories: Memories, open_as: Callable[..., Memories]
) -> None:
    memory_id = store_first(memories)
    assert repetition_of(memories.create(TEXT, tags={"project": "shop"})) == (True, (), {}, False)
    assert repetition_of(memories.create(TEXT, tags={"a": "b"}, force=True)) == (
        True,
        (),
        {},
        False,
    )
    assert repetition_of(open_as(namespace="bob").create(TEXT, tags={"a": "b"})) == (
        True,
        (),
        {},
        False,
    )
    assert memories.get(memory_id).tags == {}


def test_a_key_decides_which_memory_is_updated(memories: Memories) -> None:
    memory_id = store_first(memories, key="harbour/deploys", tags={"type": "fact"})
    made = memories.create(
        TEXT, key="harbour/deploys", tags={"type": "decision"}
    )  # with a key, this is an update
    assert (made.stored, made.id, made.merged) == (True, memory_id, ())
    assert repetition_of(memories.create(TEXT, key="harbour/deploys")) == (False, (), {}, False)
    assert repetition_of(memories.create(TEXT, tags={"global": "true"})) == (
        False,
        ("tags",),
        {},
        False,
    )
    kept = memories.get(memory_id)
    assert (kept.key, kept.version) == ("harbour/deploys", 3)
    assert kept.tags == {"type": "decision", "global": "true"}


def test_a_repetition_with_supersedes_retires_that_memory(
    memories: Memories,
) -> None:
    memory_id = store_first(memories)
    old = memories.create("Ann feeds the ducks of the castle").id
    made = memories.create(TEXT, supersedes=old)
    assert (made.id, made.merged) == (memory_id, ("supersedes",))
    assert memories.get(memory_id).supersedes == old
    assert memories.history(str(old)).superseded_by == memory_id


def test_a_memory_with_a_key_that_replaces_the_same_memory_again_gets_a_version(
    memories: Memories,
) -> None:
    old = str(memories.create("Ann feeds the ducks of the castle").id)
    memory_id = store_first(memories, key="harbour/deploys", supersedes=old)
    memories.restore(old)
    made = memories.create(TEXT, key="harbour/deploys", supersedes=old)
    assert (made.stored, made.id, made.memory) == (True, memory_id, memories.get(memory_id))
    assert memories.history(old).superseded_by == memory_id


def test_tags_beyond_the_limit_are_not_merged(memories: Memories) -> None:
    memory_id = store_first(memories, tags={f"n{number}": "1" for number in range(MAX_TAGS)})
    made = memories.create(TEXT, tags={"more": "1"}, confidence=1.0)
    assert (made.merged, made.not_merged, made.note) == ((), {"tags": {"more": "1"}}, NOTE_TAGS)
    assert memories.get(memory_id).version == 1


def test_tags_up_to_the_limit_are_merged(memories: Memories) -> None:
    memory_id = store_first(memories, tags={f"n{number}": "1" for number in range(MAX_TAGS - 1)})
    made = memories.create(TEXT, tags={"more": "1"})
    assert (made.id, made.merged, made.not_merged, made.note) == (memory_id, ("tags",), {}, "")


def test_a_repetition_at_the_same_time_reinforces_and_an_older_one_does_not(
    memories: Memories, clock: Clock
) -> None:
    store_first(memories, decay="reinforceable")
    assert memories.create(TEXT).reinforced
    assert not memories.create(TEXT, created_at=clock.now - DAY).reinforced


def test_secrets_are_removed_before_merging(memories: Memories) -> None:
    memory_id = store_first(memories)
    secret = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
    made = memories.create(TEXT, tags={"token": secret})
    assert (made.merged, made.redacted) == (("tags",), ("github_token",))
    kept = memories.get(memory_id)
    assert secret not in json.dumps(dict(kept.tags))
    assert kept.redacted == ("github_token",)


# --- trust


def test_a_less_trusted_writer_changes_nothing_by_repeating(
    memories: Memories, open_as: Callable[..., Memories], clock: Clock
) -> None:
    memory_id = store_first(memories, decay="reinforceable", confidence=0.5)
    clock.now += 5 * DAY
    before = memories.get(memory_id)
    made = open_as("import").create(
        TEXT,
        tags={"global": "true"},
        decay="stable",
        confidence=1.0,
        source="page",
        created_at=clock.now,
    )
    left = {"tags": {"global": "true"}, "decay": "stable", "confidence": 1.0, "source": "page"}
    assert repetition_of(made) == (False, (), left, False)
    assert made.note == NOTE_TRUST
    assert replace(memories.get(memory_id), access_count=0) == before


def test_a_memory_that_a_less_trusted_repetition_replaces_is_linked_from_both_sides(
    memories: Memories, open_as: Callable[..., Memories]
) -> None:
    memory_id = store_first(memories)
    old = memories.create(OLD).id
    made = open_as("import").create(TEXT, supersedes=old)
    assert (made.id, made.merged, made.note) == (memory_id, ("supersedes",), "")
    assert made.memory == memories.get(memory_id)
    assert (made.memory.supersedes, made.memory.origin.trust) == (old, "agent")
    assert memories.history(str(old)).superseded_by == memory_id
    assert f"it replaces {old}" in create_result(made)["hint"]


def test_an_agent_reinforces_what_a_person_said_and_changes_nothing_else(
    memories: Memories,
    open_as: Callable[..., Memories],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    person = open_as("cli")
    monkeypatch.setattr("memories.guard.origin.is_person", lambda: True)
    memory_id = store_first(person, decay="reinforceable")
    clock.now += 5 * DAY
    made = memories.create(TEXT, tags={"type": "fact"})
    assert repetition_of(made) == (False, (), {"tags": {"type": "fact"}}, True)
    assert made.note == NOTE_TRUST
    assert [each.id for each in person.list(trust="user").memories] == [memory_id]


def test_a_more_trusted_repetition_replaces_text_and_origin(
    memories: Memories, open_as: Callable[..., Memories]
) -> None:
    stranger = open_as("import")
    memory_id = store_first(stranger, tags={"type": "fact"})
    made = memories.create(f"{TEXT}.", tags={"type": "decision"})
    assert repetition_of(made) == (False, ("trust",), {"tags": {"type": "decision"}}, False)
    kept = memories.get(memory_id)
    assert (kept.content, kept.origin and kept.origin.trust, kept.version) == (
        f"{TEXT}.",
        "agent",
        2,
    )
    assert [each.content for each in memories.list(trust="agent").memories] == [f"{TEXT}."]
    assert repetition_of(stranger.create(TEXT, tags={"a": "b"})) == (
        False,
        (),
        {"tags": {"a": "b"}},
        False,
    )


def test_a_pending_repetition_changes_nothing(
    memories: Memories, open_as: Callable[..., Memories]
) -> None:
    hook = open_as("hook")
    assert store_first(hook)
    waits = hook.create(TEXT, tags={"a": "b"})
    assert (waits.stored, waits.not_merged, waits.note) == (False, {"tags": {"a": "b"}}, NOTE_WAITS)
    current = memories.create(TEXT, decay="reinforceable")
    assert current.stored
    made = hook.create(TEXT, tags={"a": "b"})
    assert repetition_of(made) == (False, (), {"tags": {"a": "b"}}, False)
    assert made.id == current.id
    assert memories.get(str(current.id)).tags == {}


def test_accepting_a_repetition_reports_what_was_not_merged(
    memories: Memories, open_as: Callable[..., Memories]
) -> None:
    waits = open_as("hook").create(TEXT, tags={"a": "b"}, confidence=0.5)
    memory_id = store_first(memories)
    [done] = memories.review.accept([str(waits.id)])
    assert (done.memory.id, done.not_merged) == (memory_id, {"tags": {"a": "b"}, "confidence": 0.5})
    assert memories.get(memory_id).tags == {}


# --- repetitions of corrected memories


def test_a_repeated_corrected_memory_corrects_its_correction(
    memories: Memories, clock: Clock
) -> None:
    ids = []
    for text in (OLD, NEW):
        ids.append(memories.create(text).id)
        clock.now += DAY
    made = memories.create(OLD)
    assert (made.stored, made.id, made.merged, made.corrects) == (
        False,
        ids[0],
        ("corrects",),
        ids[1],
    )
    hits = memories.search("Which port does the API listen on?")
    assert [(hit.id, hit.memory.corrected_by) for hit in hits] == [(ids[0], None), (ids[1], ids[0])]
    clock.now += DAY
    then = memories.search("Which port does the API listen on?", as_of=clock.now - 3 * DAY / 2)
    assert [hit.id for hit in then] == [ids[1], ids[0]]
    assert repetition_of(memories.create(OLD)) == (False, (), {}, False)
    back = memories.create(NEW)
    assert (back.id, back.merged, back.corrects) == (ids[1], ("corrects",), ids[0])
    assert [hit.id for hit in memories.search("Which port does the API listen on?")] == [
        ids[1],
        ids[0],
    ]


def test_repeating_the_middle_of_a_chain_makes_it_the_end(memories: Memories, clock: Clock) -> None:
    texts = [f"The API listens on port {port}." for port in (8080, 9090, 7070)]
    ids = []
    for text in texts:
        ids.append(memories.create(text).id)
        clock.now += DAY
    assert memories.create(texts[1]).corrects == ids[2]
    chain = [memories.get(str(each)) for each in ids]
    assert [(each.corrects, each.corrected_by) for each in chain] == [
        (None, ids[2]), (ids[2], None), (ids[0], ids[1]),
    ]  # fmt: skip


def test_a_memory_repeated_with_an_older_time_remains_corrected(
    memories: Memories, clock: Clock
) -> None:
    old = memories.create(OLD).id
    clock.now += 2 * DAY
    new = memories.create(NEW).id
    made = memories.create(OLD, created_at=clock.now - DAY)
    assert repetition_of(made) == (False, (), {}, False)
    assert memories.get(str(old)).corrected_by == new


def test_a_repetition_that_has_already_expired_reverses_no_correction(
    memories: Memories, clock: Clock
) -> None:
    old = str(memories.create(OLD).id)
    clock.now += DAY
    new = memories.create(NEW).id
    clock.now += DAY
    made = memories.create(OLD, valid_until=clock.now - timedelta(hours=1))
    assert (made.id, made.merged, made.corrects) == (old, ("valid_until",), None)
    assert memories.get(old).corrected_by == new
    assert "corrects" not in create_result(made)["hint"]
    assert memories.truth.confirm(old, valid_until=clock.now - DAY).corrected_by == new


def test_an_agent_does_not_undo_a_correction_by_a_person(
    memories: Memories,
    open_as: Callable[..., Memories],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    person = open_as("cli")
    monkeypatch.setattr("memories.guard.origin.is_person", lambda: True)
    old, new = (person.create(text).id for text in (OLD, NEW))
    made = memories.create(OLD)
    assert (made.stored, made.corrects) == (True, new)
    assert made.id != old
    assert [hit.id for hit in memories.search("Which port does the API listen on?", limit=1)] == [
        made.id
    ]


def test_a_repeated_memory_is_current_when_its_correction_is_superseded(
    memories: Memories, clock: Clock
) -> None:
    old = memories.create(OLD).id
    clock.now += DAY
    new = memories.create(NEW).id
    made = memories.create(OLD, supersedes=new)
    assert (made.id, made.merged, made.corrects) == (old, ("supersedes",), None)
    kept = memories.get(str(old))
    assert (kept.corrects, kept.corrected_by, kept.supersedes) == (None, None, new)


def test_a_pending_repetition_corrects_once_it_is_accepted(
    memories: Memories, open_as: Callable[..., Memories]
) -> None:
    old, new = (memories.create(text).id for text in (OLD, NEW))
    waits = open_as("hook").create(OLD)
    assert waits.stored
    [done] = memories.review.accept([str(waits.id)])
    assert (done.memory.id, done.memory.corrects) == (waits.id, new)
    assert old not in {
        hit.id for hit in memories.search("Which port does the API listen on?", limit=2)
    }
