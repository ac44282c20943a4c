"""One test, with the real command, for each success criterion of the identity specification (MVP,
V1.0 and V2.0).

docs/amplifier.md lists them, and explains why "comprehensive testing and validation" has no test.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from memories import Memories
from memories import __main__ as front_door
from memories.embedders.fake import FakeEmbedder

Command = Callable[..., Any]

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("home")]


@pytest.fixture
def memory(
    tmp_path: Path, clean_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Return a function that runs the command in this process, with the packaged model, and returns
    its answer.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, env: Mapping[str, str] | None = None) -> Any:
        environment = clean_environment | {"EMBEDDER": "minilm"} | dict(env or {})
        with CliRunner().isolation(env=environment) as (out, err, _):
            code = front_door.run_by_server_or_here([*arguments])
            sys.stdout.flush()
            printed, reported = out.getvalue().decode(), err.getvalue().decode()
        assert code == 0, reported
        return json.loads(printed) if printed.strip() else None

    return run


@pytest.fixture
def process(tmp_path: Path, clean_environment: dict[str, str]) -> Command:
    """Return a function that runs the command in a separate process and returns its output."""

    def run(*arguments: str, stdin: str = "") -> Any:
        environment = clean_environment | {"EMBEDDER": "minilm"}
        command = [sys.executable, "-m", "memories", *arguments]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None

    return run


def contents(answer: Any) -> list[str]:
    """Return the contents in an answer."""
    return [each["content"] for each in answer["results"]]


# --- MVP


def test_mvp_a_single_agent_identity_can_store_memories(memory: Command, process: Command) -> None:
    made = process("create", "The user prefers PostgreSQL for new projects", "-n", "bob")
    assert made["stored"]
    kept = memory("list", "-n", "bob")["results"]
    assert [(each["id"], each["namespace"]) for each in kept] == [(made["id"], "bob")]


def test_mvp_natural_language_queries_retrieve_relevant_memories(memory: Command) -> None:
    """Asks the specification's questions among unrelated memories."""
    for content in (
        "The user prefers PostgreSQL for new projects",
        "Completed the migration script for the user table",
        "Researched connection pooling with pgbouncer",
        "The office plants are watered on Mondays",
        "Alice's birthday cake had strawberries",
        "The logo of the shop is green",
    ):
        memory("create", content, "-n", "bob")
    found = contents(
        memory("search", "tell me what I've done on databases", "-n", "bob", "--limit", "3")
    )
    assert {
        "The user prefers PostgreSQL for new projects",
        "Researched connection pooling with pgbouncer",
    } <= {*found}
    found = contents(
        memory(
            "search", "What database should we use for this project?", "-n", "bob", "--limit", "1"
        )
    )
    assert found == ["The user prefers PostgreSQL for new projects"]


def test_mvp_the_scratchpad_provides_recent_context(memory: Command) -> None:
    """The newest memories are shown and begin a session's prompt; pinned ones stay when newer ones
    come.
    """
    pinned = memory("create", "The user prefers PostgreSQL for new projects", "-n", "bob")["id"]
    memory("scratchpad", "pin", pinned, "-n", "bob")
    memory("create", "The migration of the user table is done", "-n", "bob")
    assert len(memory("scratchpad", "show", "-n", "bob")["results"]) == 2
    block = memory("prompt", "-n", "bob")["prompt"]
    assert "**bob**" in block
    assert "prefers PostgreSQL" in block
    assert "migration of the user table" in block


def test_mvp_opt_in_enablement_works(tmp_path: Path) -> None:
    """An agent whose session doesn't mention memory has none, and nothing is written; one word
    enables it.
    """
    from amplifier_core import create_test_coordinator

    from memories.integrations.amplifier import mount_context, mount_tool

    async def mounted(config: dict[str, Any]) -> tuple[list[str], list[Any]]:
        coordinator = create_test_coordinator()
        coordinator.mount_points["tools"].clear()
        undo = [await mount(coordinator, config) for mount in (mount_tool, mount_context)]
        context = coordinator.mount_points["context"]
        await context.add_message({"role": "user", "content": "Hello"})
        sent = await context.get_messages_for_request()
        names = [*coordinator.mount_points["tools"]]
        for each in undo:
            await each()
        return names, [message["role"] for message in sent]

    for config in ({}, {"agent_identity": "bob"}, {"agent_identity": "bob", "enabled": False}):
        assert asyncio.run(mounted(config)) == ([], ["user"])
        assert not (tmp_path / "home" / "memories").exists()
    on = {"agent_identity": "bob", "enabled": True, "delay_seconds": 60}
    assert asyncio.run(mounted(on)) == (["memory"], ["system", "user"])


def test_mvp_file_based_storage_is_operational(memory: Command, tmp_path: Path) -> None:
    files = {"MEMORY_STORE": f"files:///{tmp_path}/notes"}
    memory("create", "The user prefers PostgreSQL for new projects", "-n", "bob", env=files)
    assert contents(memory("search", "which database?", "-n", "bob", env=files)) == [
        "The user prefers PostgreSQL for new projects"
    ]
    assert (
        "prefers PostgreSQL" in (tmp_path / "notes" / "bob.jsonl").read_text()
    )  # a person can read it


# --- V1.0


def test_v1_multiple_agent_identities_are_isolated(memory: Command) -> None:
    for name in ("bob", "alice"):
        memory(
            "create", f"The password of the wiki of {name} is written on a yellow note", "-n", name
        )
    for name, other in (("bob", "alice"), ("alice", "bob")):
        for answer in (
            memory("search", f"wiki of {other} yellow note", "-n", name),
            memory("list", "-n", name),
        ):
            assert contents(answer) == [
                f"The password of the wiki of {name} is written on a yellow note"
            ]


def test_v1_a_files_store_moves_to_a_larger_store_at_its_threshold(
    memory: Command, tmp_path: Path
) -> None:
    files = {"MEMORY_STORE": f"files:///{tmp_path}/notes", "FILE_MIGRATE_AT": "3"}
    subjects = (
        "The shop deploys on Tuesdays",
        "Alice likes green tea",
        "The printer is on floor two",
        "Bob is in Oslo",
    )
    for subject in subjects:
        memory("create", subject, "-n", "bob", env=files)
    status = memory("status", "-n", "bob", env=files)
    assert status["memory_count"] == len(subjects)
    assert (tmp_path / "notes" / "memories.db").exists()
    assert (
        subjects[0] in (tmp_path / "notes" / "bob.jsonl.before-move").read_text()
    )  # the original files are kept
    assert contents(memory("search", "where is Bob?", "-n", "bob", "--limit", "1", env=files)) == [
        "Bob is in Oslo"
    ]


def test_v1_freshness_decay_and_access_boosting_are_functional() -> None:
    """Among equally good answers the newest comes first; among those of the same age, the most
    read.
    """
    now = datetime(2026, 6, 1, tzinfo=UTC)

    def names() -> list[str]:
        return [
            hit.memory.content[-3:]
            for hit in memories.search("printer repaired")
            if "repaired" in hit.memory.content
        ]

    with Memories(namespace="bob", embedder="none", clock=lambda: now) as memories:
        for days, name in ((300, "Ann"), (300, "Ben"), (1, "Cat")):
            at = now - timedelta(days=days)
            memories.create(f"The printer was repaired by {name}", created_at=at, force=True)
        newest, second, last = names()
        assert newest == "Cat"
        read = next(each.id for each in memories.list().memories if each.content.endswith(last))
        for _ in range(100):
            memories.get(read)
        memories.create("Reads are counted with the next write at the latest")
        assert memories.get(read).access_count >= 100
        assert names().index(last) < names().index(second)


def test_v1_the_capture_hook_works_only_after_opt_in(
    memory: Command, process: Command, tmp_path: Path
) -> None:
    """If the hook was installed with --capture, a user's messages to an agent await review.
    Otherwise they are not captured.
    """
    told = {
        "session_id": "s1",
        "cwd": str(tmp_path),
        "prompt": "Remember that the shop deploys on Tuesdays at noon.",
    }
    for options, waiting in (((), 0), (("--capture",), 1)):
        hook = ("hook", "user-prompt", "--host", "claude-code", "-n", "bob", *options)
        process(*hook, stdin=json.dumps(told | {"hook_event_name": "UserPromptSubmit"}))
        memory("capture", "flush")
        found = contents(memory("list", "--pending", "-n", "bob"))
        assert len([each for each in found if "Tuesdays at noon" in each]) == waiting
    assert contents(memory("list", "-n", "bob")) == []  # not accepted yet


def test_v1_context_is_injected_at_session_start() -> None:
    """The first request of a session begins with what the last session stored; the modules' tests
    run whole sessions.
    """
    from amplifier_core import create_test_coordinator

    from memories.integrations.amplifier import mount_context

    with Memories(namespace="bob") as memories:
        memories.create("The user prefers PostgreSQL for new projects")

    async def first_request() -> list[dict[str, Any]]:
        coordinator = create_test_coordinator()
        undo = await mount_context(
            coordinator, {"enabled": True, "agent_identity": "bob", "delay_seconds": 60}
        )
        context = coordinator.mount_points["context"]
        await context.add_message({"role": "user", "content": "What database should we use?"})
        sent: list[dict[str, Any]] = await context.get_messages_for_request()
        await undo()
        return sent

    block, asked = asyncio.run(first_request())
    assert block["role"] == "system"
    assert "PostgreSQL" in block["content"]
    assert asked["content"] == "What database should we use?"


# --- V2.0


def test_v2_knowledge_is_shared_in_a_separate_namespace(memory: Command) -> None:
    memory("create", "Amplifier modules are mounted by a coordinator")
    memory("create", "Bob's own notes about mounting", "-n", "bob")
    assert "Amplifier modules are mounted by a coordinator" in contents(
        memory("search", "mounting modules", "-n", "bob")
    )
    alone = memory("search", "mounting modules", "-n", "bob", "--no-shared")
    assert contents(alone) == ["Bob's own notes about mounting"]
    assert "Bob's own notes about mounting" not in contents(
        memory("search", "mounting", "-n", "alice")
    )


def test_v2_the_use_of_a_memory_can_be_analysed(memory: Command) -> None:
    """`memory stats` lists the most read and the unread memories."""
    read = memory("create", "The shop deploys on Tuesdays", "-n", "bob")["id"]
    unread = memory("create", "Alice likes green tea", "-n", "bob")["id"]
    memory("get", read, "-n", "bob")
    memory("get", read, "-n", "bob")
    told = memory("stats", "-n", "bob")
    assert [(each["id"], each["access_count"]) for each in told["most_used"]] == [(read, 2)]
    assert [each["id"] for each in told["never_used"]] == [unread]
    assert {each["name"]: each["total"] for each in told["operations"]} == {"create": 2, "get": 2}


class Letters:
    """A user's own embedder, which counts each letter."""

    space = FakeEmbedder.space._replace(model="letters", dimension=26)

    def embed(self, text: str) -> Any:
        counts = (
            np.array([[text.lower().count(chr(97 + at)) for at in range(26)]], dtype=np.float32)
            + 0.01
        )
        return counts / np.linalg.norm(counts)

    def familiarity(self, text: str) -> float:
        return 1.0


def test_v2_a_user_can_provide_an_embedder() -> None:
    with Memories(namespace="bob", embedder=Letters()) as memories:
        memories.create("listen")
        memories.create("xylophone")
        assert (
            memories.search("silent")[0].memory.content == "listen"
        )  # no word in common, the same letters
        assert memories.status().store_model == "letters"


def test_v2_memories_can_be_exported_and_imported(memory: Command, tmp_path: Path) -> None:
    made = memory("create", "The user prefers PostgreSQL", "-n", "bob", "--tag", "topic=databases")
    memory("update", made["id"], "The user prefers SQLite", "-n", "bob")
    memory("create", "Alice likes tea", "-n", "alice")
    memory("export", "-n", "bob", "-o", str(tmp_path / "bob.jsonl"))
    elsewhere = {"MEMORY_HOME": str(tmp_path / "elsewhere")}
    memory("import", str(tmp_path / "bob.jsonl"), "--trusted", "-n", "bob", env=elsewhere)
    (there,) = memory("list", "-n", "bob", env=elsewhere)["results"]
    assert (there["id"], there["content"], there["tags"]["topic"]) == (
        made["id"],
        "The user prefers SQLite",
        "databases",
    )
    versions = memory("history", made["id"], "-n", "bob", env=elsewhere)["versions"]
    assert [each["content"] for each in versions] == [
        "The user prefers PostgreSQL",
        "The user prefers SQLite",
    ]
    assert contents(memory("list", "-n", "alice", env=elsewhere)) == []


def test_v2_users_share_a_memory_that_names_the_writers(memory: Command) -> None:
    """Two users have a namespace each and share a third, where each reads and corrects what the
    other wrote.
    """
    ann, ben = {"MEMORY_NAMESPACE": "ann"}, {"MEMORY_NAMESPACE": "ben"}
    memory("create", "Ann's own draft of the plan", env=ann)
    made = memory("create", "The team deploys on Tuesdays", "-n", "team", env=ann)
    assert contents(memory("search", "when does the team deploy?", "-n", "team", env=ben)) == [
        "The team deploys on Tuesdays"
    ]
    memory("update", made["id"], "The team deploys on Fridays", "-n", "team", env=ben)
    versions = memory("history", made["id"], "-n", "team", env=ann)["versions"]
    writers = [(each["content"].split()[-1], each["origin"]["namespace"]) for each in versions]
    assert writers == [("Tuesdays", "ann"), ("Fridays", "ben")]
    entries = memory("log", "-n", "team", env=ann)["results"]
    assert [change["action"] for entry in entries for change in entry["changes"]] == [
        "update",
        "create",
    ]
    assert contents(memory("list", env=ben)) == []  # Ann's private memories stay private


def test_the_list_of_criteria_names_these_tests() -> None:
    page = (Path(__file__).parent.parent / "docs" / "amplifier.md").read_text()
    named = set(re.findall(r"`(test_(?:mvp|v\d)_\w+)`", page))
    assert named == {name for name in globals() if re.match(r"test_(mvp|v\d)_", name)}
