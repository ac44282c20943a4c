"""The layout of a memory: one record for each version."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memories.core.times import to_millis
from memories.models import DecayPolicy, Draft
from memories.read import versions
from memories.stores.records import Collection, Record, Ref

NOW = datetime(2026, 2, 21, 10, tzinfo=UTC)
DAY = timedelta(days=1)
ANCHORED = {"anchors": "src/a.py\nsrc/b.py", "anchored_at": 5}
DRAFT = Draft(
    "content",
    tags={"project": "shop"},
    decay="reinforceable",
    key="k",
    confidence=0.5,
    supersedes="other",
)


def test_the_first_version_reads_as_its_draft() -> None:
    record = versions.first_version(DRAFT, "id", "bob", NOW)
    assert record.ref == Ref(Collection.MEMORY, "bob", "id", 1)
    memory = versions.to_memory(record, NOW, 720)
    assert (memory.id, memory.namespace, memory.content, memory.tags) == (
        "id",
        "bob",
        "content",
        {"project": "shop"},
    )
    assert (memory.decay_policy, memory.base_confidence, memory.confidence) == (
        DecayPolicy.REINFORCEABLE,
        0.5,
        0.5,
    )
    assert (memory.created_at, memory.updated_at, memory.last_reinforced_at) == (NOW, NOW, None)
    assert (memory.version, memory.key, memory.supersedes, memory.superseded_by) == (
        1,
        "k",
        "other",
        None,
    )
    assert (memory.deleted, memory.access_count) == (False, 0)


def test_default_values_are_not_stored() -> None:
    assert versions.first_version(Draft("content"), "id", "shared", NOW).fields == {}


def test_confidence_is_declared_confidence_times_decay() -> None:
    record = versions.first_version(DRAFT, "id", "bob", NOW)
    assert versions.to_memory(record, NOW + 15 * DAY, 720).confidence == 0.25


def test_the_next_version_keeps_unchanged_fields() -> None:
    first = versions.first_version(DRAFT, "id", "bob", NOW)
    second = versions.next_version(first, "update", NOW + DAY, restarts_decay=True, text="new")
    memory = versions.to_memory(second, NOW + DAY, 720)
    assert (memory.content, memory.version, memory.tags, memory.key) == (
        "new",
        2,
        {"project": "shop"},
        "k",
    )
    assert (memory.created_at, memory.updated_at) == (NOW, NOW + DAY)
    assert (memory.decay_policy, memory.base_confidence) == (DecayPolicy.REINFORCEABLE, 0.5)
    changes = {"labels": {"a": "b"}, "fields": {"confidence": None}}
    third = versions.next_version(second, "update", NOW + 2 * DAY, restarts_decay=True, **changes)
    memory = versions.to_memory(third, NOW + 2 * DAY, 720)
    assert (memory.created_at, memory.content, memory.tags, memory.base_confidence) == (
        NOW,
        "new",
        {"a": "b"},
        1.0,
    )


def test_versions_stay_in_order_even_if_the_clock_is_set_back() -> None:
    first = versions.first_version(DRAFT, "id", "bob", NOW)
    second = versions.next_version(first, "update", NOW - DAY, restarts_decay=True, text="new")
    assert second.created_at == NOW
    assert versions.end_version(first, NOW - DAY, "update").ended_at == NOW


def test_an_ended_version_is_deleted_only_if_it_was_deleted() -> None:

    record = versions.first_version(DRAFT, "id", "bob", NOW)
    for ended_by, deleted in (("delete", True), ("supersede", False), ("update", False)):
        ended = record._replace(ended_at=NOW + DAY, ended_by=ended_by)
        assert versions.to_memory(ended, NOW + DAY, 720).deleted is deleted
        assert not versions.to_memory(ended, NOW, 720).deleted
        version = versions.to_version(ended)
        assert (version.version, version.operation, version.ended_at) == (1, "create", NOW + DAY)
        assert version.ended_by == ended_by
        undone = versions.undo_end(ended)
        assert (undone.ended_at, undone.ended_by) == (NOW + DAY, f"{ended_by} (restored)")


def test_editing_tags_does_not_restart_decay() -> None:
    first = versions.first_version(DRAFT, "id", "bob", NOW)
    edited = versions.next_version(
        first, "update", NOW + 10 * DAY, restarts_decay=False, labels={"a": "b"}
    )
    stated = versions.next_version(first, "update", NOW + 10 * DAY, restarts_decay=True, text="new")
    assert versions.confidence(edited, NOW + 15 * DAY, 720) == 0.25
    assert versions.confidence(stated, NOW + 15 * DAY, 720) == 0.4167


def test_each_project_has_its_own_keys() -> None:
    one, other = ({"project": name} for name in ("one", "other"))
    assert (
        versions.scoped_key("k", one)
        != versions.scoped_key("k", other)
        != versions.scoped_key("k", {})
    )
    assert versions.plain_key(versions.scoped_key("a/b", one)) == "a/b"


def test_a_version_has_ended_at_the_time_of_its_end() -> None:
    record = versions.first_version(DRAFT, "id", "bob", NOW)._replace(
        ended_at=NOW + DAY, ended_by="delete"
    )
    millisecond = timedelta(milliseconds=1)
    ends = [
        versions.known_at([record], NOW + DAY + later)[0].ended_by
        for later in (-millisecond, 0 * DAY, millisecond)
    ]
    assert ends == [None, "delete", "delete"]


def test_a_memory_is_corrected_from_the_time_of_its_correction() -> None:
    fields = {"corrected_by": "other", "corrected_at": to_millis(NOW + DAY)}
    record = versions.first_version(DRAFT, "id", "bob", NOW)._replace(fields=fields)
    millisecond = timedelta(milliseconds=1)
    assert versions.read_corrected_by(record, NOW + DAY - millisecond) is None
    assert versions.read_corrected_by(record, NOW + DAY) == "other"


@pytest.mark.parametrize(
    ("fields", "text", "left"),
    [
        (ANCHORED, "src/a.py opens the gate", {"anchors": "src/a.py", "anchored_at": 5}),
        (ANCHORED, "the gate opens", {}),
        (ANCHORED, "src/b.py and src/a.py", ANCHORED),
        ({}, "src/a.py opens the gate", {}),
    ],
)
def test_a_new_text_keeps_the_anchors_that_it_still_names(
    fields: dict[str, Any], text: str, left: dict[str, Any]
) -> None:
    ref = Ref(Collection.MEMORY, "bob", "m", 1)
    written_at = datetime(2026, 5, 1, tzinfo=UTC)
    latest = Record(ref, "src/a.py and src/b.py open the gate", written_at, fields=fields)
    assert versions._anchors_left(latest, text) == left
