"""The rules of an intact record, on both sides of each limit."""

from datetime import UTC, datetime
from typing import Any

import pytest

from memories.guard.origin import PART
from memories.models import MAX_TURN_CHARACTERS
from memories.stores.damage import (
    UNKNOWN,
    Damaged,
    damaged_record,
    find_import_problem,
    find_problem,
)
from memories.stores.records import ROLE, SPEAKER, Collection, Record, Ref

NOW = datetime(2026, 6, 1, tzinfo=UTC)
MEMORY = Record(Ref(Collection.MEMORY, "bob", "m", 1), "the gate is open", NOW)
TURN = Record(Ref(Collection.HISTORY, "bob", "talk", 5), "hello", NOW)


def labels(count: int) -> dict[str, str]:
    """Return this many labels."""
    return {f"tag{number}": "x" for number in range(count)}


@pytest.mark.parametrize(
    ("record", "sound", "wrong"),
    [
        (
            MEMORY,
            {"ref": MEMORY.ref._replace(position=0)},
            {"ref": MEMORY.ref._replace(position=-1)},
        ),
        (
            MEMORY,
            {"ref": MEMORY.ref._replace(group="m" * 256)},
            {"ref": MEMORY.ref._replace(group="m" * 257)},
        ),
        (MEMORY, {"ref": MEMORY.ref._replace(group="m")}, {"ref": MEMORY.ref._replace(group="")}),
        (
            TURN,
            {"ref": TURN.ref._replace(group="m" * 256)},
            {"ref": TURN.ref._replace(group="m\n")},
        ),
        (MEMORY, {"accesses": 2**53 - 1}, {"accesses": 2**53}),
        (TURN, {"session": 0}, {"session": -1}),
        (MEMORY, {"key": "k" * 513}, {"key": "k" * 514}),
        (MEMORY, {"key": "shop\x1fk"}, {"key": "shop\x1fk\x1fk"}),
        (MEMORY, {"key": "k"}, {"key": ""}),
        (MEMORY, {"text": ""}, {"text": b"bytes"}),
        (MEMORY, {"text": "é"}, {"text": "\udc80"}),
        (MEMORY, {"key": None}, {"key": 5}),
        (MEMORY, {"fields": {}}, {"fields": [("a", 1)]}),
        (MEMORY, {"labels": {"t": "é"}}, {"labels": {5: "x"}}),
        (MEMORY, {"fields": {"accepted_by": "Zoë"}}, {"fields": {"accepted_by": "\x1b[2J"}}),
        (MEMORY, {"labels": labels(112)}, {"labels": labels(113)}),
        (MEMORY, {"labels": {"t": "x" * 1_024}}, {"labels": {"t": "x" * 1_025}}),
        (MEMORY, {"labels": {"t" * 256: ""}}, {"labels": {"t" * 257: ""}}),
        (MEMORY, {"labels": {"t": "x" * 128}}, {"labels": {"t": "x\n"}}),
        (MEMORY, {"labels": {"t": "x" * 129}}, {"labels": {"t": "x\n" * 70}}),
        (MEMORY, {"ended_by": "a" * 64}, {"ended_by": "a" * 65}),
        (TURN, {"labels": {ROLE: "user"}}, {"labels": {ROLE: "king"}}),
        (TURN, {"labels": {SPEAKER: "A"}}, {"labels": {SPEAKER: ""}}),
        (TURN, {"labels": {PART: "5"}}, {"labels": {PART: "6"}}),
        (TURN, {"labels": {PART: f"{5:016}"}}, {"labels": {PART: f"{5:017}"}}),
        (MEMORY, {"fields": {"confidence": 0}}, {"fields": {"confidence": -0.01}}),
        (MEMORY, {"fields": {"confidence": 1}}, {"fields": {"confidence": 1.01}}),
        (MEMORY, {"fields": {"confidence": 0.5}}, {"fields": {"confidence": True}}),
        (MEMORY, {"fields": {"other": 0.5}}, {"fields": {"other": float("inf")}}),
        (MEMORY, {"fields": {"other": False}}, {"fields": {"other": [1]}}),
        (MEMORY, {"fields": {"other": "x"}}, {"fields": {"other": None}}),
        (MEMORY, {"fields": {"first_at": 0}}, {"fields": {"first_at": 2**60}}),
        (MEMORY, {"fields": {"supersedes": "m" * 256}}, {"fields": {"supersedes": "m" * 257}}),
        (MEMORY, {"fields": {"data": '{"a": 1}'}}, {"fields": {"data": "[1]"}}),
        (TURN, {"fields": {"utc_offset": -86_399}}, {"fields": {"utc_offset": -86_400}}),
        (TURN, {"fields": {"utc_offset": 86_399}}, {"fields": {"utc_offset": 86_400}}),
        (TURN, {"fields": {"parts": 2}}, {"fields": {"parts": 1}}),
        (TURN, {"fields": {"parts": 10_000}}, {"fields": {"parts": 10_001}}),
        (TURN, {"fields": {"title": "t" * 256}}, {"fields": {"title": "t" * 257}}),
    ],
)
def test_each_part_of_a_record_is_valid_up_to_its_limit(
    record: Record, sound: dict[str, Any], wrong: dict[str, Any]
) -> None:
    assert find_problem(record._replace(**sound)) is None
    assert find_problem(record._replace(**wrong)) is not None


def test_imported_turns_have_the_same_limits_as_local_turns() -> None:
    long = TURN._replace(text="x" * MAX_TURN_CHARACTERS)
    assert find_import_problem(long) is None
    assert "a turn has at most" in str(find_import_problem(long._replace(text=f"{long.text}x")))
    assert find_import_problem(MEMORY._replace(text=f"{long.text}x")) is None
    assert "which this program does not know" in str(
        find_import_problem(MEMORY._replace(ended_by="merge"))
    )
    assert "which this program does not know" in str(
        find_import_problem(MEMORY._replace(fields={"operation": "delete"}))
    )


@pytest.mark.parametrize(
    ("ref", "name", "remedy"),
    [
        (MEMORY.ref, "memory m (version 1) in namespace bob", "forget m --namespace bob"),
        (TURN.ref, "turn 5 of talk in namespace bob", "turns forget talk --index 5 --namespace bob"),
        (MEMORY.ref._replace(namespace=UNKNOWN), f"memory m (version 1) in namespace {UNKNOWN}", "forget m"),
    ],
)  # fmt: skip
def test_damage_names_the_record_and_the_command_that_removes_it(
    ref: Ref, name: str, remedy: str
) -> None:
    finding = damaged_record(ref, "its checksum is wrong")
    assert finding.what == f"{name} is damaged: its checksum is wrong"
    assert finding.remedy == f"restore a backup, or remove it with: memory {remedy}"


def test_only_the_newest_findings_are_kept() -> None:
    damaged = Damaged(max_findings=2)
    refs = [MEMORY.ref._replace(position=position) for position in range(1, 4)]
    for ref in (*refs[:2], refs[0], refs[2]):
        damaged.note(damaged_record(ref, "torn"))
    assert [finding.ref for finding in damaged.since()] == [refs[0], refs[2]]
    assert [finding.ref for finding in damaged.since(3)] == [refs[2]]
    assert damaged.mark() == 4
