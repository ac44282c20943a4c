"""Commands that take `--where`, and `memory rollback`: what they change and report, and how to undo
it.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Command, Once
from memories import Memories


@pytest.fixture
def filled(memory: Command, once: Once) -> dict[str, str]:
    """Three memories and a conversation; returns the ids by content."""

    def fill() -> dict[str, str]:
        made = {
            "Deploys happen on Tuesdays": ("--type", "fact", "--project", "shop"),
            "The user prefers tabs": ("--type", "pref"),
            "Ann leads the web team": ("--type", "fact", "--source", "standup#1"),
        }
        ids = {text: memory("create", text, *options).json["id"] for text, options in made.items()}
        for text in ("hello", "Ann leads it now", "bye"):
            memory("turns", "add", "standup", text)
        return ids

    kept: dict[str, str] = once(fill)
    return kept


def contents(memory: Command, *options: str) -> list[str]:
    """Return the contents of all memories, oldest first."""
    return [found["content"] for found in memory("list", *options).json["results"]][::-1]


def tags(memory: Command, *key: str) -> dict[str, int]:
    """Return how many memories have each tag, or each value of one tag."""
    answer = memory("tags", *key).json
    return {
        found.get("value", found.get("key")): found["count"]
        for found in answer["values" if key else "keys"]
    }


def undo(memory: Command, answer: Any) -> Any:
    """Run the command that an answer names."""
    program, *arguments = shlex.split(answer["undo"])
    assert program == "memory"
    return memory(*arguments).json


@pytest.mark.usefixtures("filled")
def test_a_list_shows_memories_that_match_an_expression(memory: Command) -> None:
    assert contents(memory, "--where", "type = fact and not project exists") == [
        "Ann leads the web team"
    ]
    assert contents(memory, "--where", "type = pref or content ~ deploys") == [
        "Deploys happen on Tuesdays",
        "The user prefers tabs",
    ]
    assert contents(memory, "--where", "source = standup", "--type", "fact") == [
        "Ann leads the web team"
    ]
    assert contents(memory, "--where", "type = rule") == []
    assert contents(memory, "--where", "updated < last week") == []


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("delete",),
        ("forget", "--dry-run"),
        ("tags", "set", "a=b"),
        ("rollback", "--to", "1h"),
        ("export",),
    ],
)
def test_an_invalid_expression_changes_nothing(memory: Command, command: tuple[str, ...]) -> None:
    answer = memory(*command, "--where", "type = fact and and")
    assert answer.code == 2
    assert answer.error.startswith("the expression in where is invalid at character 17: ")


@pytest.mark.usefixtures("filled")
def test_matching_memories_are_deleted_and_restored(memory: Command) -> None:
    planned = memory("delete", "--where", "type = fact", "--dry-run").json
    assert (planned["count"], planned["dry_run"], len(planned["steps"])) == (2, True, 2)
    assert "undo" not in planned
    assert len(contents(memory)) == 3
    done = memory("delete", "--where", "type = fact", "--show", "1").json
    assert (done["count"], done["counts"], len(done["steps"])) == (2, {"delete": 2}, 1)
    assert contents(memory) == ["The user prefers tabs"]
    assert undo(memory, done)["counts"] == {"restore": 2}
    assert len(contents(memory)) == 3


@pytest.mark.usefixtures("filled")
def test_a_command_without_matches_reports_that_and_succeeds(memory: Command) -> None:
    for command in (
        ("delete",),
        ("forget", "--yes"),
        ("forget",),
        ("tags", "set", "a=b"),
        ("rollback", "--to", "1h"),
    ):
        answer = memory(*command, "--where", "type = rule")
        assert (answer.code, answer.json["count"]) == (0, 0)
        text = memory(*command, "--where", "type = rule", "--format", "text")
        assert text.out == "Nothing matches.\n"


@pytest.mark.usefixtures("filled")
def test_the_text_of_a_bulk_delete_names_memories_and_the_undo_command(memory: Command) -> None:
    out = memory("delete", "--where", "type = fact", "--show", "1", "--format", "text").out
    assert re.fullmatch(
        r"Done: 2 deleted\.\n  delete  [0-9a-f-]{18}  Deploys happen on Tuesdays\n  and 1 more\n"
        r"To undo it: memory rollback --to \S+Z --where 'updated = .+ or ended = .+'\n",
        out,
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("delete",), "Missing argument 'ID' or option '--where'; see memory delete --help"),
        (("forget",), "Missing argument 'ID' or option '--where'; see memory forget --help"),
        (
            ("delete", "01a1fdf1", "--where", "a = b"),
            "ID and --where can't be combined; give one of them",
        ),
        (
            ("delete", "01a1fdf1", "--dry-run"),
            "--dry-run requires --where; to see one memory, run: memory get ID",
        ),
        (
            ("delete", "--where", "deleted"),
            "only current memories can be deleted; remove deleted from the expression",
        ),
        (
            ("forget", "--where", "a = b", "--in", "there"),
            'scope (--in) must be memories, history or all, not "there"',
        ),
        (
            ("delete", "--where", "a = b", "--show", "5000"),
            "show must be a whole number from 0 to 1000",
        ),
        (("tags", "rename", "a"), "rename takes OLD NEW: keys, or tags such as type=fact"),
        (
            ("tags", "merge", "a=b", "c"),
            '"a=b" and "c" must both be keys, or both be tags such as type=fact',
        ),
        (
            ("tags", "paint", "red"),
            '"paint" does not change tags; use set, remove, rename, merge',
        ),
        (("tags", "set", "=by=x"), 'tag "=by=x" is not of the form key=value'),
        (("rollback",), "Missing option '--to'; see memory rollback --help"),
        (("rollback", "--to", "2100-01-01"), "is in the future"),
    ],
)
def test_incompatible_arguments_are_refused(
    memory: Command, arguments: tuple[str, ...], error: str
) -> None:
    answer = memory(*arguments)
    assert answer.code == 2
    assert error in answer.error


@pytest.mark.usefixtures("filled")
def test_forgetting_matching_memories_requires_yes(memory: Command) -> None:
    answer = memory("forget", "--where", "type = fact")
    assert answer.code == 2
    assert "there is no terminal to ask on" in answer.error
    assert len(contents(memory)) == 3
    done = memory("forget", "--where", "type = fact", "--yes").json
    assert (done["count"], "undo" in done) == (2, False)
    assert contents(memory) == ["The user prefers tabs"]


@pytest.mark.usefixtures("filled")
def test_turns_and_memories_made_from_them_are_forgotten(memory: Command) -> None:
    planned = memory("forget", "--where", "conversation = standup", "--in", "all", "--dry-run").json
    assert planned["counts"] == {"forget": 4}
    planned = memory("turns", "forget", "standup", "--with-memories", "--dry-run").json
    assert planned == {
        "conversation_id": "standup", "forgotten": False, "turns": 3, "also_in": [],
        "memories": 1, "dry_run": True,
    }  # fmt: skip
    done = memory("turns", "forget", "standup", "--index", "0", "--with-memories", "--yes").json
    assert (done["turns"], done["memories"]) == (1, 0)
    done = memory("turns", "forget", "standup", "--index", "1", "--with-memories", "--yes").json
    assert (done["turns"], done["memories"]) == (1, 1)
    assert contents(memory) == ["Deploys happen on Tuesdays", "The user prefers tabs"]
    assert memory("forget", "--where", "role = user", "--in", "history", "--yes").json[
        "counts"
    ] == {"forget": 1}
    assert memory("turns", "forget", "standup", "--with-memories", "--yes").code == 1


def test_a_changed_memory_made_from_a_turn_is_still_forgotten(
    memory: Command, filled: dict[str, str]
) -> None:
    memory("update", filled["Ann leads the web team"], "Ann leads the shop team")
    assert memory("get", filled["Ann leads the web team"]).json["source"] == "standup#1"
    memory("turns", "forget", "standup", "--with-memories", "--yes")
    assert len(contents(memory)) == 2
    assert memory("history", filled["Ann leads the web team"]).code == 1


@pytest.mark.usefixtures("filled")
def test_tags_are_renamed_and_merged(memory: Command) -> None:
    assert memory("tags", "rename", "type=pref", "type=preference").json["counts"] == {"tag": 1}
    assert tags(memory, "type") == {"fact": 2, "preference": 1}
    refused = memory("tags", "rename", "type=fact", "type=preference").error
    assert refused == (
        '"type=preference" is in use; to merge them: memory tags merge type=fact type=preference'
    )
    same = memory("tags", "rename", "type=fact", "type=fact").error
    assert same == '"type=fact" is both the old and the new name; give a different one'
    planned = memory("tags", "merge", "type=fact", "type=preference", "--dry-run").json
    assert planned["counts"] == {"tag": 2}
    done = memory("tags", "merge", "type=fact", "type=preference", "--where", "project = shop").json
    assert tags(memory, "type") == {"fact": 1, "preference": 2}
    undo(memory, done)
    assert tags(memory, "type") == {"fact": 2, "preference": 1}
    memory("tags", "rename", "project", "repo")
    memory("tags", "set", "area=pay", "--where", "content ~ deploys")
    memory("tags", "remove", "type")
    assert tags(memory) == {"area": 1, "repo": 1}
    assert tags(memory, "set") == {}  # a word alone is a key


def test_a_rollback_can_be_previewed_applied_logged_and_undone(
    memory: Command, filled: dict[str, str]
) -> None:
    to = memory("get", filled["Ann leads the web team"]).json["created_at"]
    memory("update", filled["The user prefers tabs"], "The user prefers spaces")
    memory("create", "Planted later")
    memory("delete", filled["Deploys happen on Tuesdays"])
    before = contents(memory)
    planned = memory("rollback", "--to", to, "--dry-run").json
    assert planned["counts"] == {"restore": 1, "update": 1, "delete": 1}
    assert contents(memory) == before
    done = memory("rollback", "--to", to).json
    assert sorted(contents(memory)) == sorted(filled)
    [entry] = memory("log", "--limit", "1").json["results"]
    assert [change["action"] for change in entry["changes"]] == ["rollback"] * 3
    undo(memory, done)
    assert contents(memory) == before


def test_other_namespaces_are_not_changed(memory: Command) -> None:
    for name in ("ann", "bob", "shared"):
        memory("create", "Deploys happen on Tuesdays", "--type", "fact", "-n", name)
    done = memory("delete", "--where", "type = fact", "-n", "ann").json
    assert done["count"] == 1
    assert "-n ann" in done["undo"]
    memory(
        "forget", "--where", "type = fact or not type = fact", "--in", "all", "--yes", "-n", "ann"
    )
    memory("tags", "set", "x=y", "-n", "ann")
    memory("rollback", "--to", "2020-01-01", "-n", "ann")
    for name in ("bob", "shared"):
        assert [
            found["tags"] for found in memory("list", "-n", name, "--no-shared").json["results"]
        ] == [{"type": "fact"}]
    undo(memory, done)
    assert memory("list", "-n", "ann", "--no-shared").json["count"] == 0  # the memory was forgotten


@pytest.mark.usefixtures("filled")
def test_an_export_contains_every_version_of_matching_memories(
    memory: Command, folder: Path
) -> None:
    [found] = memory("list", "--where", "project = shop").json["results"]
    memory("update", found["id"], "Deploys happen on Thursdays")
    lines = [
        json.loads(line) for line in memory("export", "--where", "project = shop").out.splitlines()
    ]
    assert [line["text"] for line in lines[1:-1]] == [
        "Deploys happen on Tuesdays",
        "Deploys happen on Thursdays",
    ]
    lines = [
        json.loads(line)
        for line in memory("export", "--where", "conversation = standup").out.splitlines()
    ]
    assert len(lines[1:-1]) == 4
    memory("export", "--where", "project = shop", "--output", "some.jsonl")
    other = f"sqlite:///{folder}/other.db"
    assert memory("import", "some.jsonl", "--store", other).json["imported"] == 2


@pytest.mark.usefixtures("filled")
def test_the_command_and_the_library_parse_an_expression_alike(memory: Command) -> None:
    with Memories() as memories:
        listed = [found.content for found in memories.list(where="type != fact").memories]
    assert listed == contents(memory, "--where", "type != fact")
