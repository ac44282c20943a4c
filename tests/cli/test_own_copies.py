"""After an import under another name, commands that take an ID, a key or a name use the copy of
that namespace.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.stores.records import Collection, Filter

# Each command with a part of its JSON answer; ID and TALK stand for a memory and a conversation that
# both namespaces have.
COMMANDS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("get", "ID"), {"namespace": "bob", "version": 1}),
    (("get", "--key", "build/day"), {"namespace": "bob"}),
    (("history", "ID"), {"count": 1}),
    (("update", "ID", "the build runs on Friday"), {"namespace": "bob", "version": 2}),
    (("reinforce", "--key", "build/day"), {"confidence": 1.0}),
    (("scratchpad", "pin", "ID"), {"namespace": "bob", "pinned": True}),
    (("scratchpad", "unpin", "ID"), {"namespace": "bob"}),
    (("delete", "ID"), {"deleted": True}),
    (("restore", "ID"), {"namespace": "bob"}),
    (("restore", "ID", "--version", "1"), {"content": "the build runs on Monday"}),
    (
        ("create", "the build runs daily", "--key", "build/day"),
        {"namespace": "bob", "stored": True},
    ),
    (("delete", "--where", "key = build/day"), {"counts": {"delete": 1}}),
    (("restore", "ID"), {"namespace": "bob"}),
    (("tags", "set", "team=core", "--where", "key = build/day"), {"counts": {"tag": 1}}),
    (("create", "pears fell", "--supersedes", "ID", "--force"), {"stored": True}),
    (("turns", "tail", "TALK"), {"count": 1}),
    (("turns", "forget", "TALK", "--yes"), {"turns": 1}),
    (("forget", "ID", "--yes"), {"forgotten": True, "versions": 9}),
)


@pytest.mark.parametrize("short", [False, True])
def test_a_command_changes_only_your_own_copy(
    memory: Callable[..., Any], folder: Path, short: bool
) -> None:
    made = memory(
        "create", "the build runs on Monday", "--key", "build/day", "--decay", "reinforceable"
    ).json["id"]
    memory("turns", "add", "standup", "one plum")
    memory("export", "--output", "all.jsonl")
    memory("import", "all.jsonl", "--as", "bob", "--trusted")
    names = {"ID": made[:18] if short else made, "TALK": "standup"}
    wrong: list[str] = []
    with Memories(namespace="shared") as shared:
        wheres = [
            Filter(kind, ("shared",), state="any")
            for kind in (Collection.MEMORY, Collection.HISTORY)
        ]

        def contents() -> list[Any]:
            return [
                record._replace(accesses=0)
                for where in wheres
                for record in shared._store.scan(where, limit=100)
            ]

        before = contents()
        for command, expected in COMMANDS:
            arguments = [names.get(each, each) for each in command]
            done = memory(*arguments, "-n", "bob")
            answer = json.loads(done.out) if done.code == 0 else {}
            if not expected.items() <= answer.items():
                wrong.append(f"{' '.join(command)}: {done.code} {done.out}{done.err}")
            if contents() != before:
                wrong.append(f"{' '.join(command)}: shared was changed")
        again = memory("forget", made, "--yes", "-n", "bob")
        assert (again.code, "is in namespace shared, but you write to bob" in again.error) == (
            1,
            True,
        )
        assert contents() == before
    assert not wrong, "\n".join(wrong)
