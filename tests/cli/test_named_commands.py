"""Commands that take several memories: by id, by ids on standard input, by key."""

from collections.abc import Callable

import pytest

from cli.conftest import Command, Once
from memories import Memories
from memories.core.ids import short_form
from memories.models import Draft

NOWHERE = "ffffffff"


@pytest.fixture
def three(stored: Callable[..., str], once: Once) -> list[str]:
    """Store three memories; return their ids."""

    def fill() -> list[str]:
        return [
            stored(text)
            for text in (
                "Deploys happen on Tuesdays",
                "The user prefers tabs",
                "Ann leads the web team",
            )
        ]

    kept: list[str] = once(fill)
    return kept


def contents(memory: Command) -> list[str]:
    """Return the contents of all memories, oldest first."""
    return [found["content"] for found in memory("list").json["results"]][::-1]


def test_a_memory_can_be_read_by_its_key(memory: Command) -> None:
    made = memory("create", "The editor is Vim", "--key", "user/editor").json
    assert memory("get", "--key", "user/editor").json["id"] == made["id"]
    memory("create", "The editor is Helix", "--key", "user/editor")
    assert memory("get", "--key", "user/editor").json["content"] == "The editor is Helix"
    assert memory("history", "--key", "user/editor").json["count"] == 2
    assert memory("delete", "--key", "user/editor").json == {"id": made["id"], "deleted": True}
    answer = memory("get", "--key", "user/keyboard")
    assert answer.code == 1
    assert answer.error == (
        'Memory not found: no memory without a project has the key "user/keyboard"'
    )


def test_a_deleted_memory_is_named_when_its_key_is_used(memory: Command) -> None:
    named = ("--key", "port", "--project", "shop", "-n", "bob")
    made = memory("create", "The port is 5433", *named).json["id"]
    memory("delete", *named)
    for verb in ("get", "history", "delete", "reinforce"):
        answer = memory(verb, *named)
        advice = f"it was deleted; to restore it, run: memory restore {made} -n bob"
        assert (answer.code, answer.error) == (1, f"Memory not found: {advice}")
    assert "has the key" in memory("get", "--key", "port", "-n", "bob").error
    assert memory("restore", made, "-n", "bob").code == 0
    assert memory("get", *named).json["id"] == made


def test_each_project_has_its_own_keys_and_reads_those_of_global_memories(
    memory: Command,
) -> None:
    memory("create", "The port is 5433", "--key", "port", "--project", "shop")
    memory("create", "The port is 8080", "--key", "port", "--project", "web")
    assert memory("get", "--key", "port", "--project", "web").json["content"] == "The port is 8080"
    assert memory("get", "--key", "port").error.endswith(
        'no memory without a project has the key "port"; the key exists with --project shop, web'
    )
    memory("create", "The time zone is UTC", "--key", "zone")
    error = memory("get", "--key", "zone", "--project", "shop").error
    assert error.endswith(
        'no memory in the project "shop" has the key "zone"; a memory without a project has it'
    )
    memory("create", "The licence is MIT", "--key", "licence", "--global")
    assert (
        memory("get", "--key", "licence", "--project", "shop").json["content"]
        == "The licence is MIT"
    )


def test_your_own_key_takes_precedence_over_a_shared_one(memory: Command) -> None:
    memory("create", "The editor is Vim", "--key", "editor")
    assert memory("get", "--key", "editor", "-n", "bob").json["namespace"] == "shared"
    assert memory("get", "--key", "editor", "-n", "bob", "--no-shared").code == 1
    memory("create", "The editor is Helix", "--key", "editor", "-n", "bob")
    assert memory("get", "--key", "editor", "-n", "bob").json["namespace"] == "bob"
    assert memory("get", "--key", "editor", "-n", "ann").json["namespace"] == "shared"


def test_several_memories_are_shown_in_the_requested_order(
    memory: Command, three: list[str]
) -> None:
    answer = memory("get", three[2], three[0], three[2]).json
    assert [found["id"] for found in answer["results"]] == [three[2], three[0]]
    assert answer["count"] == 2
    assert "errors" not in answer
    piped = memory("get", "-", stdin="\n".join(three)).json
    assert [found["id"] for found in piped["results"]] == three
    assert memory("get", "-", stdin=three[1]).json["count"] == 1  # a list, even for one id
    assert memory("get", three[1]).json["id"] == three[1]


def test_a_missing_memory_does_not_affect_the_other_answers(
    memory: Command, three: list[str]
) -> None:
    for names, error in (
        (NOWHERE, "Memory not found"),
        ("tomorrow", '"tomorrow" is not a memory id'),
    ):
        answer = memory("get", three[0], names, three[1])
        assert answer.code == 1
        assert answer.err.startswith(f"{names}: {error}")
        assert '"count": 2, "errors": [{"id": "' + names in answer.out
    assert memory("get", NOWHERE).error == "Memory not found"
    text = memory("get", three[0], NOWHERE, three[1], "--format", "text").out
    assert text.index("Deploys") < text.index("tabs")


def test_several_memories_are_deleted_restored_and_forgotten(
    memory: Command, three: list[str]
) -> None:
    answer = memory("delete", *three[:2], NOWHERE)
    assert (answer.code, answer.err) == (1, f"{NOWHERE}: Memory not found\n")
    assert contents(memory) == ["Ann leads the web team"]
    again = memory("delete", *three[:2])
    assert again.code == 1
    assert again.err.count("Memory not found") == 2
    assert memory("restore", "-", stdin=" ".join(three[:2])).json["count"] == 2
    assert len(contents(memory)) == 3
    refused = memory("forget", *three[:2])
    assert refused.code == 2
    assert "there is no terminal to ask on" in refused.error
    gone = memory("forget", "-", "--yes", stdin="\n".join(three[:2])).json
    assert [found["forgotten"] for found in gone["results"]] == [True, True]
    assert [memory("history", name).code for name in three] == [1, 1, 0]


def test_several_memories_are_reinforced(
    memory: Command, stored: Callable[..., str], three: list[str]
) -> None:
    name = stored("Commits follow a convention", "--decay", "reinforceable")
    answer = memory("reinforce", name, three[0])
    assert answer.code == 1
    assert (
        answer.err == f"{three[0]}: Memory has stable decay policy, reinforcement has no effect\n"
    )
    assert f'{{"id": "{name}", "confidence": 1.0' in answer.out


def test_memories_named_on_standard_input_are_tagged(memory: Command, three: list[str]) -> None:
    answer = memory(
        "update", "-", "--type", "fact", "--remove-tag", "draft", stdin="\n".join(three[:2])
    ).json
    assert [found["type"] for found in answer["results"]] == ["fact", "fact"]
    assert memory("tags", "type").json["values"] == [{"value": "fact", "count": 2}]
    refused = memory("update", "-", "new text", "--type", "fact", stdin=three[0])
    assert (refused.code, "can't be combined with CONTENT" in refused.error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("get",), "Missing argument 'ID' or option '--key'; see memory get --help"),
        (("get", "--key", "a", "b" * 8), "ID and --key can't be combined; give one of them"),
        (("get", "b" * 8, "--project", "shop"), "--project requires --key here"),
        (("get", "-"), "standard input contains no ids; write one per line"),
        (("get", "--key", " "), "key is empty"),
        (("delete", "--key", "a", "--where", "a = b"), "--key and --where can't be combined"),
        (
            ("history", "a" * 8, "b" * 8),
            "history shows one memory at a time; give one ID",
        ),
        (
            ("restore", "./a.db", "./b.db"),
            "a store is restored from one FILE; omit all other arguments",
        ),
    ],
)
def test_incompatible_arguments_are_refused(
    memory: Command, arguments: tuple[str, ...], error: str
) -> None:
    answer = memory(*arguments)
    assert answer.code == 2
    assert error in answer.error


# --- the id that agents see


@pytest.mark.first(6)
@pytest.mark.parametrize(
    "line",
    [
        "get ID",
        "history ID",
        "update ID changed",
        "update ID --tag a=b",
        "reinforce ID",
        "scratchpad pin ID",
        "scratchpad unpin ID",
        "log ID",
        "list --where id=ID",
        "create Another --supersedes ID",
        "delete ID",
        "restore ID",
        "forget ID --yes",
    ],
)
def test_the_short_id_that_agents_see_works_in_every_command(memory: Command, line: str) -> None:
    memory_id = memory("create", "The user prefers tabs", "--decay", "reinforceable").json["id"]
    if line.startswith("restore"):
        memory("delete", memory_id)
    answer = memory(*line.replace("ID", short_form(memory_id)).split())
    assert answer.code == 0, answer.err
    assert memory_id in answer.out


def test_a_waiting_memory_is_accepted_by_its_short_id(memory: Command) -> None:
    with Memories(channel="hook", embedder="fake") as memories:
        [created] = memories.create_many([Draft("The user prefers tabs", pending=True)])
    assert created.memory is not None
    answer = memory("review", "accept", short_form(created.memory.id), "--yes")
    [review] = answer.json["results"]
    assert review["accepted"] is True
    assert "pending" not in review["memory"]
