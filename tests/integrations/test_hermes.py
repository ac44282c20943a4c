"""The memory provider for Hermes, loaded and called by Hermes's own loader and manager."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.integrations.hermes.__main__ import install

VERSION = "0.19.0"


@pytest.fixture(scope="module")
def hermes(request: pytest.FixtureRequest) -> Path:
    """Hermes's code without its dependencies, which its memory manager doesn't need."""
    folder = Path(request.config.cache.mkdir(f"hermes-{VERSION}"))  # type: ignore[union-attr]
    if not (folder / "agent").is_dir():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        done = subprocess.run(
            [*pip, f"hermes-agent=={VERSION}"], capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            pytest.skip(f"Hermes can't be downloaded here: {done.stderr[-300:]}")
        [wheel] = folder.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(folder)
    return folder


SCRIPT = """
import json, sys
from agent.memory_manager import MemoryManager
from plugins.memory import load_memory_provider

provider = load_memory_provider("memories")
assert provider is not None and provider.is_available()
manager = MemoryManager()
manager.add_provider(provider)
answers = []
for step in json.loads(sys.stdin.read()):
    answers.append(getattr(manager, step[0])(*step[1], **step[2]))
    manager.flush_pending(30)
manager.shutdown_all()
print(json.dumps(answers, default=str))
"""


@pytest.fixture
def run(hermes: Path, home: Path, tmp_path: Path) -> Iterator[Any]:
    """Return a function that calls Hermes's memory manager in its own process."""
    hermes_home = tmp_path / "hermes"
    hermes_home.mkdir()
    install(hermes_home)

    def call(*steps: tuple[str, list[Any], dict[str, Any]], **facts: Any) -> list[Any]:
        facts = {"hermes_home": str(hermes_home), "platform": "cli", **facts}
        begin = ("initialize_all", ["s1"], facts)
        environment = {**os.environ, "HERMES_HOME": str(hermes_home), "PYTHONPATH": str(hermes)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=json.dumps([begin, *steps]),
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not done.returncode, done.stderr
        answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
        return answers[1:]

    assert home
    yield call


def tool(name: str, **arguments: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Return a tool call as the provider receives it."""
    return "handle_tool_call", [name, arguments], {}


def test_hermes_loads_the_provider_and_offers_its_tools(run: Any) -> None:
    [schemas, prompt] = run(("get_all_tool_schemas", [], {}), ("build_system_prompt", [], {}))
    assert [schema["name"] for schema in schemas] == ["search_memories", "create_memory"]
    assert "search_memories" in prompt


def test_the_tools_store_find_and_replace(run: Any) -> None:
    old, found = run(
        tool("create_memory", content="Anna leads the payments team."),
        tool("search_memories", query="Who leads the payments team?"),
    )
    assert "stored" in json.loads(old)["result"]
    assert "Anna leads the payments team." in json.loads(found)["result"]
    text = "Since Monday Bert has taken over the payments team from Anna."
    [new] = run(tool("create_memory", content=text))
    assert "Anna leads the payments team." in json.loads(new)["result"]
    assert "supersedes" in json.loads(new)["result"]


def test_a_wrong_call_gets_an_error(run: Any) -> None:
    [answer] = run(tool("search_memories", query=""))
    assert json.loads(answer)["error"]


def test_a_message_recalls_the_memory_that_it_needs_only_once(run: Any) -> None:
    with Memories() as memories:
        memories.create("Deploys happen on Tuesdays at nine.")
    first, again, other = run(
        ("prefetch_all", ["When do deploys happen?"], {}),
        ("prefetch_all", ["When do deploys happen?"], {}),
        ("prefetch_all", ["thanks"], {}),
    )
    assert "Deploys happen on Tuesdays at nine." in first
    assert (again, other) == ("", "")


def test_a_message_recalls_nothing_shown_in_the_system_prompt(run: Any) -> None:
    with Memories() as memories:
        memories.create("Deploys happen on Tuesdays at nine.")
    prompt, recalled = run(
        ("build_system_prompt", [], {}), ("prefetch_all", ["When do deploys happen?"], {})
    )
    assert "Deploys happen on Tuesdays at nine." in prompt
    assert recalled == ""


def test_a_turn_is_stored_as_captured_and_not_by_a_subagent(run: Any) -> None:
    turn = ("sync_all", ["We ship on Friday.", "Noted."], {"session_id": "s1"})
    run(turn, agent_context="subagent")
    with Memories() as memories:
        assert memories.list_conversations().conversations == ()
    run(turn)
    with Memories() as memories:
        [conversation] = memories.list_conversations().conversations
        turns = memories.turns(conversation.id)
    assert [(said.role, said.content) for said in turns] == [
        ("user", "We ship on Friday."),
        ("assistant", "Noted."),
    ]
    assert {said.origin.trust for said in turns if said.origin} == {"captured"}


def test_the_provider_and_commands_use_the_same_namespace_setting(run: Any, tmp_path: Path) -> None:
    (tmp_path / "hermes" / "memories.json").write_text('{"namespace": "Bob "}')
    run(tool("create_memory", content="Anna leads the payments team."))
    with Memories(namespace="bob", shared=False) as memories:
        assert [memory.content for memory in memories.list().memories] == [
            "Anna leads the payments team."
        ]


@pytest.mark.parametrize("settings", ['{"namespace": "../x"}', "{"])
def test_invalid_settings_open_no_memory(run: Any, tmp_path: Path, settings: str) -> None:
    (tmp_path / "hermes" / "memories.json").write_text(settings)
    [answer] = run(tool("create_memory", content="Anna leads the payments team."))
    assert "not open" in json.loads(answer)["error"]


def test_a_chat_without_a_user_does_not_read_the_owners_memory(run: Any) -> None:
    with Memories() as memories:
        memories.create("The owner's door code is under the stone mat.")
    ask = tool("search_memories", query="Where is the door code?")
    [answer] = run(ask, platform="telegram", chat_id="-100123")
    assert "stone" not in json.loads(answer)["result"]


def test_users_of_a_chat_service_do_not_share_memories(run: Any) -> None:
    secret = tool("create_memory", content="Ann's door code hides under the mat.")
    run(secret, platform="telegram", user_id="Ann_1")
    ask = tool("search_memories", query="Where does Ann's door code hide?")
    with Memories() as memories:
        memories.create("The owner's door code is under the stone mat.")
    [other] = run(ask, platform="telegram", user_id="bob")
    [own] = run(ask, platform="telegram", user_id="Ann_1")
    assert "mat" not in json.loads(other)["result"]
    assert "under the mat" in json.loads(own)["result"]
    assert "stone" not in json.loads(own)["result"]
