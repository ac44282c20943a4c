"""The table of answer fields covers the library's attributes, and answers and schemas follow it."""

import inspect
from dataclasses import fields

from memories import Memories, Memory, TurnDraft, Version
from memories.answers import shapes
from memories.answers.fields import (
    ALWAYS,
    DRAFT,
    HIT,
    KIND,
    KNOWN_TAGS,
    MEMORY,
    NAMES,
    TURN,
    VERSION,
    Field,
    shape,
)
from memories.models import CHANGEABLE, DECLARED
from memories.read.turns import Turn
from memories.server.api.openapi import SCHEMAS

RENAMED = {"index": "turn_index"}
ELSEWHERE = {"data", "session", "stated_at"}  # only in the library; a hit has `date`


def test_a_memory_as_json_has_the_fields_of_the_table_in_their_order(memories: Memories) -> None:
    created = memories.create(
        "We ship on Fridays", tags={"project": "shop", "type": "decision"}, key="ship"
    )
    assert created.memory is not None
    made = shapes.memory(created.memory)
    usual = [field.name for field in MEMORY if field.default is ALWAYS]
    assert [name for name in made if name in usual] == usual
    names = ("content", "project", "type", "agent", "global", "key")
    assert {name: made[name] for name in names} == {
        "content": "We ship on Fridays", "project": "shop", "type": "decision", "agent": "",
        "global": False, "key": "ship",
    }  # fmt: skip
    assert made.keys() - set(usual) == {"key", "origin"}


def test_defaults_are_omitted_and_other_values_are_shown() -> None:
    class Item:
        count, share, names, name = 0, 0.0, ("a",), None

    rows = (
        Field("count", "whole", "How many.", 0),
        Field("share", "number", "How sure.", 1.0),
        Field("names", "texts", "Which.", []),
        Field("name", "text?", "Who."),
    )
    assert shape(Item(), rows) == {"share": 0.0, "names": ["a"], "name": None}


def test_every_attribute_of_the_library_is_in_the_table() -> None:
    tables = {Memory: MEMORY, Turn: TURN}
    for kind, table in tables.items():
        names = {RENAMED.get(field.name, field.name) for field in fields(kind)}
        assert names - {field.name for field in table} <= ELSEWHERE, kind
    assert set(Version._fields) - {field.name for field in VERSION} == {
        "origin"
    }  # it depends on the memory


def test_every_field_that_a_draft_declares_can_be_set() -> None:
    assert set(DECLARED) <= DRAFT.keys() <= inspect.signature(Memories.create).parameters.keys()
    assert set(CHANGEABLE) <= inspect.signature(Memories.update).parameters.keys()


def test_the_schemas_describe_exactly_the_fields_of_the_table() -> None:
    for name, table in {"Memory": MEMORY, "Turn": TURN}.items():
        assert list(SCHEMAS[name]["properties"]) == [
            *(field.name for field in table if field.default is ALWAYS),
            *(field.name for field in table if field.default is not ALWAYS),
        ]
        assert SCHEMAS[name]["required"] == [
            field.name for field in table if field.default is ALWAYS
        ]
    described = {
        name: member["description"] for name, member in SCHEMAS["Memory"]["properties"].items()
    }
    assert described == {field.name: field.about for field in MEMORY}


def test_hits_of_both_kinds_have_the_fields_of_a_result(memories: Memories) -> None:
    memories.create("Ann said that we ship on Fridays")
    memories.add_turns("standup", [TurnDraft("we ship on Fridays", "user", "Ann")])
    found = [shapes.hit(hit) for hit in memories.search("ship on Fridays", scope="all")]
    assert {hit["kind"] for hit in found} == {"memory", "turn"}
    always = [field for field in (*KNOWN_TAGS, KIND, *HIT) if field.default is ALWAYS]
    shared = {field.name for field in always} | {
        "id",
        "content",
        "tags",
        "namespace",
        "confidence",
    }
    assert [hit["id"] for hit in found if shared - hit.keys() or hit.keys() - NAMES] == []
