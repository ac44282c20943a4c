"""Nothing in a namespace can be read from another: every command and every way to name a memory is
tried.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cli.conftest import Once

Command = Callable[..., Any]
SECRET = "the launch code is xylophone"


@pytest.fixture
def secret(stored: Callable[..., str], once: Once) -> str:
    """Return the id of a memory of Alice's."""

    def fill() -> str:
        stored("a common truth about the launch")
        return stored(SECRET, "-n", "alice", "--tag", "codename=marimba", "--key", "launch/code")

    kept: str = once(fill)
    return kept


@pytest.fixture(
    params=[["-n", "bob"], ["-n", "bob", "--no-shared"], ["-n", "shared"], [], ["-n", "alic"]]
)
def elsewhere(request: pytest.FixtureRequest) -> list[str]:
    """Return the options of a caller who must not see the memory."""
    return list(request.param)


@pytest.fixture(params=["whole", "prefix"])
def memory_id(request: pytest.FixtureRequest, secret: str) -> str:
    """Return the id, whole or shortened."""
    return {"whole": secret, "prefix": secret[:18]}[request.param]


def test_the_owner_of_a_memory_sees_it(memory: Command, secret: str) -> None:
    assert memory("get", secret[:18], "-n", "alice").json["namespace"] == "alice"
    assert memory("get", secret, env={"MEMORY_NAMESPACE": "alice"}).json["content"] == SECRET
    assert memory("status", "-n", "alice").json["memory_count"] == 2
    assert memory("status", "-n", "alice", "--no-shared").json["memory_count"] == 1


def test_reads_include_your_own_and_the_shared_namespace(
    memory: Command, secret: str, stored: Callable[..., str]
) -> None:
    stored("Bob knows of the launch", "-n", "bob")
    both = memory("search", "launch", "-n", "bob").json["results"]
    assert {hit["namespace"] for hit in both} == {"bob", "shared"}
    own = memory("search", "launch", "-n", "bob", "--no-shared").json["results"]
    assert {hit["namespace"] for hit in own} == {"bob"}
    assert {item["namespace"] for item in memory("list").json["results"]} == {"shared"}


@pytest.mark.parametrize(
    "command", [["get"], ["history"], ["reinforce"], ["delete"], ["restore"], ["forget", "--yes"]]
)
def test_an_id_cannot_be_found_from_another_namespace(
    memory: Command, secret: str, memory_id: str, elsewhere: list[str], command: list[str]
) -> None:
    answer = memory(command[0], memory_id, *command[1:], *elsewhere)
    assert (answer.code, answer.error) == (1, "Memory not found")
    assert memory("get", secret, "-n", "alice").json["version"] == 1


def test_a_memory_cannot_be_changed_from_another_namespace(
    memory: Command, secret: str, elsewhere: list[str]
) -> None:
    writer = [option for option in elsewhere if option != "--no-shared"]
    answer = memory("update", secret, "harmless", *elsewhere)
    assert (answer.code, answer.error) == (1, "Memory not found")
    answer = memory("create", "harmless", "--supersedes", secret, *writer)
    assert (answer.code, answer.error) == (1, f"--supersedes {secret}: Memory not found")
    assert (
        memory("create", "another launch code", "--key", "launch/code", *writer).json["id"]
        != secret
    )
    found = memory("get", secret, "-n", "alice").json
    assert (found["content"], found["version"]) == (SECRET, 1)
    assert "superseded_by" not in found


def test_no_answer_hints_at_a_memory_of_another_namespace(
    memory: Command, secret: str, elsewhere: list[str]
) -> None:
    writer = [option for option in elsewhere if option != "--no-shared"]
    for command in (
        ["search", SECRET, *elsewhere], ["search", SECRET, "--explain", *elsewhere], ["list", *elsewhere],
        ["list", "--as-of", "2099-01-01", *elsewhere], ["list", "--deleted", *elsewhere], ["tags", *elsewhere],
        ["tags", "codename", *elsewhere], ["list", "--tag", "codename=marimba", *elsewhere],
        ["create", SECRET, *writer], ["list", "--limit", "1", "--cursor", f"{secret}.2", *elsewhere],
    ):  # fmt: skip
        answer = memory(*command)
        printed = answer.out + answer.err
        assert secret not in printed, command
        if SECRET not in command:
            assert "xylophone" not in printed, command
        if not any("marimba" in word for word in command):
            assert "marimba" not in printed, command
    assert json.loads(memory("tags", "codename", *elsewhere).out)["values"] == []


def test_counts_do_not_include_memories_of_another_namespace(
    memory: Command, secret: str, elsewhere: list[str]
) -> None:
    expected = 0 if "--no-shared" in elsewhere else 1
    assert memory("status", *elsewhere).json["memory_count"] == expected
    memory("delete", secret, "-n", "alice")
    status = memory("status", *elsewhere).json
    assert (status["memory_count"], status["deleted_count"]) == (expected, 0)
    assert "alice" not in memory("status", *elsewhere).out


def test_a_text_can_be_stored_again_in_another_namespace(memory: Command, secret: str) -> None:
    shape = memory("create", SECRET, "-n", "bob").json
    assert (shape["stored"], shape["namespace"]) == (True, "bob")


def test_a_prefix_shared_with_memories_in_other_namespaces_is_not_ambiguous(
    memory: Command, stored: Callable[..., str]
) -> None:
    from datetime import UTC, datetime

    from memories import Memories

    ids = {}
    for name in ("alice", "bob", "carol"):
        with Memories(
            namespace=name, embedder="fake", clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)
        ) as memories:
            made = memories.create(f"of {name}").memory
            assert made is not None
            ids[name] = made.id
    prefix = ids["bob"][:13]
    assert all(memory_id.startswith(prefix) for memory_id in ids.values())
    assert memory("get", prefix, "-n", "bob").json["content"] == "of bob"


SAID = "the launch codename is glockenspiel"


@pytest.fixture
def alices_turn(memory: Command, once: Once) -> dict[str, Any]:
    """Return a turn of Alice's, in a conversation whose name another namespace uses too."""

    def fill() -> dict[str, Any]:
        options = ["--speaker", "Violetta", "--message-id", "a", "-n", "alice"]
        turn: dict[str, Any] = memory("turns", "add", "launch", SAID, *options).json
        memory("turns", "add", "launch", "we spoke of the launch", "--speaker", "Carol")
        memory("turns", "add", "marimba", SAID, "-n", "alice")
        return {name: value for name, value in turn.items() if name != "status"}

    kept: dict[str, Any] = once(fill)
    return kept


def test_the_owner_of_a_turn_sees_it(memory: Command, alices_turn: dict[str, Any]) -> None:
    assert alices_turn["namespace"] == "alice"
    assert memory("turns", "tail", "launch", "-n", "alice").json["results"] == [alices_turn]
    found = memory("search", "launch", "--in", "history", "-n", "alice").json["results"]
    assert {hit["namespace"] for hit in found} == {"alice", "shared"}


def test_no_answer_hints_at_a_turn_of_another_namespace(
    memory: Command, alices_turn: dict[str, Any], elsewhere: list[str]
) -> None:
    for command in (
        ["turns", "tail", "launch"], ["turns", "tail", "marimba"], ["search", "glocken spiel", "--in", "all"],
        ["search", SAID, "--in", "history"], ["search", SAID, "--in", "all", "--explain"],
        ["search", "what did Violetta say of the launch?", "--in", "history", "--explain"],
        ["search", "launch", "--in", "history", "--conversation", "launch"],
        ["search", "launch", "--in", "history", "--conversation", "marimba", "--explain"],
        ["search", "launch", "--in", "history", "--tag", "speaker=Violetta"],
        ["search", "launch", "--in", "history", "--as-of", "2099-01-01"], ["list"], ["tags"], ["tags", "speaker"],
        ["status"],
    ):  # fmt: skip
        answer = memory(*command, *elsewhere)
        assert answer.code == 0, command
        shown = json.dumps(answer.json.get("results", []))
        considered = json.dumps(answer.json.get("explain", {}).get("considered", []))
        for word in ("glockenspiel", "Violetta", "marimba", "alice"):
            assert word not in shown, command
            assert word not in considered, command
            assert (
                word in command or any(word in part for part in command) or word not in answer.out
            ), command


def test_a_turn_in_another_namespace_begins_its_own_conversation(
    memory: Command, alices_turn: dict[str, Any], elsewhere: list[str]
) -> None:
    writer = [option for option in elsewhere if option != "--no-shared"]
    turn = memory("turns", "add", "marimba", "harmless", "--message-id", "a", *writer).json
    assert (turn["turn_index"], turn["content"]) == (0, "harmless")
    assert memory("turns", "tail", "launch", "-n", "alice").json["results"] == [alices_turn]


def test_namespace_names_are_normalized(memory: Command, secret: str) -> None:
    assert memory("get", secret, "-n", "ALICE").json["id"] == secret
    assert memory("get", secret, "-n", "Ａlice").json["id"] == secret
