"""A draft with a given id: a retry is recognized, and a different text with that id is refused."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memories import Created, Draft, Memories
from memories.answers import compact, shapes
from memories.cli import text
from memories.stores.records import Collection, Filter
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.intake import Intake

ID, OTHER = (f"01a1fdf1-92cd-7000-8000-00000000000{number}" for number in (1, 2))
REASON = f"the id {ID} belongs to a memory with different content; give this text a different id"
MONDAY = Draft("the build runs on Monday", id=ID)
COLOGNE = Draft("the office is in Cologne", id=ID)


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """The memories of bob."""
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake", namespace="bob") as opened:
        yield opened


def outcome_of(created: Created) -> tuple[bool, str | None, str]:
    """Return the part of a result that describes a draft with an id."""
    return created.stored, created.memory and created.memory.content, created.note


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    "change", [{}, {"key": "office/city"}, {"pending": True}, {"supersedes": ID}], ids=str
)
def test_only_the_draft_with_a_taken_id_and_another_text_is_refused(
    memories: Memories, change: dict[str, object], force: bool
) -> None:
    taken = replace(COLOGNE, **change)  # type: ignore[arg-type]
    pears = Draft("pears are ripe", id=OTHER)
    known = (True, MONDAY.content, "")
    assert list(map(outcome_of, memories.create_many([MONDAY, taken, pears], force=force))) == [
        known,
        (False, None, REASON),
        (True, pears.content, ""),
    ]
    memories.update(ID, "the build runs on Friday", tags={"type": "fact"})
    for _ in range(2):
        assert list(map(outcome_of, memories.create_many([taken, pears], force=force))) == [
            (False, None, REASON),
            (True, pears.content, ""),
        ]
    memories.delete(ID)
    assert outcome_of(memories.create_many([taken], force=force)[0]) == (False, None, REASON)
    assert [each.content for each in memories.list().memories] == [pears.content]


def test_a_retry_is_recognized_in_any_state_of_the_memory(memories: Memories) -> None:
    secret = Draft("the token is ghp_" + "a1B2" * 9, id=OTHER)
    assert [each.stored for each in memories.create_many([MONDAY, MONDAY, secret])] == [
        True,
        True,
        True,
    ]
    assert "ghp_" not in memories.get(OTHER).content
    memories.update(ID, "the build runs on Friday")
    again = memories.create_many([MONDAY, secret])
    assert [(each.stored, each.id) for each in again] == [(True, ID), (True, OTHER)]
    assert again[0].memory is not None
    assert again[0].memory.content == "the build runs on Friday"
    assert len(memories.history(ID).versions) == 2


def test_an_id_used_in_another_namespace_is_free(memories: Memories) -> None:
    with Memories(memories._store, namespace="shared", embedder="fake") as shared:
        shared.create_many([MONDAY])
    assert outcome_of(memories.create_many([COLOGNE])[0]) == (True, COLOGNE.content, "")


def test_every_interface_gives_the_reason_for_a_refused_draft(memories: Memories) -> None:
    refused = memories.create_many([MONDAY, COLOGNE])[1]
    shape = shapes.create_result(refused)
    assert (shape["id"], shape["stored"], shape["hint"]) == (None, False, REASON)
    assert "duplicates" not in shape
    assert json.loads(json.dumps(shape))["note"] == REASON
    assert REASON in text.create_result(refused)
    assert "similar" not in text.create_result(refused)
    assert compact.create_result(memories, refused) == f"not stored: {REASON}"


def test_an_import_of_another_text_with_a_taken_id_is_a_conflict(memories: Memories) -> None:
    with Memories(memories._store, namespace="shared", embedder="fake") as shared:
        shared.create_many([COLOGNE])
    memories.create_many([MONDAY])
    lines: list[str] = []
    export(memories._store, lines.append, namespaces=("shared",), progress=lambda *_: None)
    for foreign, number in itertools.product((None, OTHER), range(2)):
        done = import_(
            memories._store,
            (line.encode() for line in lines),
            None,
            namespaces=None,
            intake=Intake(foreign, into="bob"),
        )
        assert (done.imported, done.conflict_count) == (0, 1), (foreign, number)
        assert done.conflicts[0].reason == "another record has this address"
    found = memories._store.scan(Filter(Collection.MEMORY, ("bob",), state="any"), limit=10)
    assert [record.text for record in found] == [MONDAY.content]
