"""A tool that takes an id uses the caller's own copy, and changes no other."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_answers import read
from memories import Draft, Memories
from memories.core.ids import short_form
from memories.stores.records import Collection, Filter

ID, OLD, TALK = (
    "01a1fdf1-92cd-7000-8000-000000000001",
    "01a1fdf1-92cd-7000-8000-000000000002",
    "standup",
)
# Each call, the expected answer, and the state of Bob's copy afterwards: the number of versions and
# how the last one ended.
CALLS: tuple[tuple[str, dict[str, Any], dict[str, Any], tuple[int, str | None]], ...] = (
    ("get_history", {"id": ID}, {"count": 1}, (1, None)),
    ("update_memory", {"id": ID, "content": "the build runs on Friday"}, {"version": 2}, (2, None)),
    ("update_memory", {"id": ID, "confirm": True}, {"id": short_form(ID)}, (2, None)),
    ("delete_memory", {"id": ID}, {"deleted": True}, (2, "delete")),
    ("restore_memory", {"id": ID}, {"version": 3}, (3, None)),
    (
        "create_memory",
        {"content": "pears fell", "supersedes": ID, "force": True},
        {"stored": True},
        (3, "supersede"),
    ),
)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Memories, Memories]]:
    """Memories of Bob and of everyone, with the same ids."""
    url = f"sqlite:///{tmp_path}/m.db"
    drafts = [
        Draft("the build runs on Monday", decay="reinforceable", id=ID),
        Draft("plums", id=OLD),
    ]
    with (
        Memories(url, namespace="bob", embedder="fake", channel="mcp") as bob,
        Memories(url, namespace="shared", embedder="fake") as shared,
    ):
        for one in (bob, shared):
            one.create_many(drafts, force=True)
            one.add_turns(TALK, [f"a turn of {one.namespace}"])
        yield bob, shared


def test_a_tool_changes_only_the_callers_own_copy(both: tuple[Memories, Memories]) -> None:
    from mcp import Client
    from mcp_answers import server

    bob, shared = both
    wheres = [
        Filter(kind, ("shared",), state="any") for kind in (Collection.MEMORY, Collection.HISTORY)
    ]

    def contents() -> list[Any]:
        return [
            record._replace(accesses=0)
            for where in wheres
            for record in shared._store.scan(where, limit=100)
        ]

    async def call() -> list[str]:
        wrong: list[str] = []
        before = contents()
        async with Client(server(bob)) as client:
            for tool, given, expected, state in CALLS:
                result = await client.call_tool(tool, given)
                text = str(result.content[0].text)  # type: ignore[union-attr]
                answer = {} if result.is_error else read(text)
                if {name: answer.get(name) for name in expected} != expected:
                    wrong.append(f"{tool} {given}: {text}")
                versions = bob.history(ID).versions
                if (len(versions), versions[-1].ended_by) != state:
                    wrong.append(
                        f"{tool} {given}: bob has {len(versions)} versions, {versions[-1].ended_by}"
                    )
                if contents() != before:
                    wrong.append(f"{tool} {given}: shared was changed")
            said = await client.call_tool("get_history", {"id": f"{TALK}#0"})
            if "a turn of bob" not in str(said.content):
                wrong.append(f"a turn: {said.content}")
        return wrong

    wrong = asyncio.run(call())
    assert not wrong, "\n".join(wrong)
