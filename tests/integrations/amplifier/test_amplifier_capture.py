"""The hooks that capture, and the commands with which a user switches a session's memory."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.hooks import inbox
from memories.integrations.amplifier import capture

Bob = dict[str, Any]
start_flusher = capture._start_flusher
HOOKS = [{"module": "hooks-memories-capture", "config": {"capture": True, "delay_seconds": 60}}]
REQUEST = "Remember that the shop deploys on Tuesdays at noon."


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the starts of the flusher instead of starting it; return the list."""
    calls: list[str] = []
    monkeypatch.setattr(capture, "_start_flusher", lambda _: calls.append("flush"))
    return calls


def home(tmp_path: Path) -> str:
    """Return the home of a test."""
    return str(tmp_path / "home")


def flush() -> None:
    """Store the events in the inbox, as the flusher does when a session ends."""
    command = [sys.executable, "-m", "memories", "capture", "flush"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def waiting_events(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the events in the inbox."""
    return [
        event
        for name in inbox.names(home(tmp_path))
        for event in inbox.read(home(tmp_path), name)[0]
    ]


def test_the_flusher_is_not_imported_from_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, ran = tmp_path / "cloned", tmp_path / "ran"
    (work / "memories").mkdir(parents=True)
    for name in ("__init__", "__main__"):
        (work / "memories" / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')\n")
    monkeypatch.chdir(work)
    Path(home(tmp_path)).mkdir(exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*given: Any, **more: Any) -> None:
        started.append(real(*given, **more))

    monkeypatch.setattr(subprocess, "Popen", start)
    start_flusher(home(tmp_path))
    assert started[0].wait(timeout=300) == 0
    assert not ran.exists()


def test_captured_messages_wait_in_the_inbox_and_then_for_review(
    talk: Any, bob: Bob, tmp_path: Path, started: list[str]
) -> None:
    answer = {"text": "We decided to deploy the shop with a script called ship."}
    talk([REQUEST], [answer], session=bob, hooks=HOOKS)
    events = waiting_events(tmp_path)
    assert [event["event"] for event in events] == ["user-prompt", "stop", "session-end"]
    assert (events[0]["prompt"], events[1]["answer"]) == (REQUEST, answer["text"])
    assert {event["namespace"] for event in events} == {"bob"}
    assert started == ["flush"]
    flush()
    assert waiting_events(tmp_path) == []
    with Memories(namespace="bob") as memories:
        assert any(
            "Tuesdays at noon" in each.content for each in memories.list(pending=True).memories
        )
        (memory,) = [
            each for each in memories.list(pending=True).memories if "Tuesdays" in each.content
        ]
        assert memory.origin is not None
        assert memory.origin.trust == "captured"
        assert [
            turn.role for turn in memories.turns(memories.list_conversations().conversations[0].id)
        ] == [
            "user",
            "assistant",
        ]


def test_the_results_of_tools_are_captured(talk: Any, bob: Bob, tmp_path: Path) -> None:
    from amplifier_core import ToolResult

    class Shell:
        name, description = "shell", "Runs commands."

        @property
        def input_schema(self) -> dict[str, Any]:
            return {"type": "object"}

        async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
            return ToolResult(
                output="Root cause: the cache kept prices of a product that was deleted long ago."
            )

    import types

    module = types.ModuleType("amplifier_module_tool_shell")

    async def mount(coordinator: Any, config: Any = None) -> None:
        await coordinator.mount("tools", Shell(), name="shell")

    module.mount = mount  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    tools = [{"module": "tool-shell"}]
    talk(
        ["Why?"],
        [{"tool": "shell", "input": {}}, {"text": "See."}],
        session=bob,
        hooks=HOOKS,
        tools=tools,
    )
    assert "tool" in [event["event"] for event in waiting_events(tmp_path)]
    flush()
    with Memories(namespace="bob") as memories:
        assert any(
            "cache kept prices" in each.content for each in memories.list(pending=True).memories
        )


def test_nothing_is_captured_unless_capture_is_on(talk: Any, bob: Bob, tmp_path: Path) -> None:
    talk([REQUEST], session=bob)
    talk([REQUEST], session=bob, hooks=[{"module": "hooks-memories-capture"}])
    talk([REQUEST], session={"capabilities": {"memory": {"enabled": False}}}, hooks=HOOKS)
    assert waiting_events(tmp_path) == []


@pytest.mark.parametrize("how", ["variable", "file", "said"])
def test_a_variable_a_file_or_the_user_can_switch_memory_off(
    how: str, talk: Any, bob: Bob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [REQUEST]
    if how == "variable":
        monkeypatch.setenv("MEMORY_OFF", "1")
    elif how == "file":
        (tmp_path / ".memories-off").touch()
    else:
        prompts = ["Memory off.", REQUEST]
    model = talk(prompts, session=bob, hooks=HOOKS)
    assert REQUEST not in [event.get("prompt") for event in waiting_events(tmp_path)]
    assert "persistent memory" not in model.sent(-1)
    if how != "said":
        assert model.tools == {}
        assert not (tmp_path / "home").exists()


def test_messages_between_agents_are_not_captured(talk: Any, bob: Bob, tmp_path: Path) -> None:
    talk([REQUEST], session=bob, hooks=HOOKS, parent_id="parent")
    assert waiting_events(tmp_path) == []


def test_recalled_memories_are_not_proposed_again_in_ten_sessions(
    talk: Any, bob: Bob, tmp_path: Path
) -> None:
    with Memories(namespace="bob") as memories:
        memories.create("We decided to deploy the shop on Tuesdays at noon")
    ask = {"tool": "memory", "input": {"operation": "search", "query": "deploy the shop"}}
    for number in range(10):
        answer = {"text": "As I remember, we decided to deploy the shop on Tuesdays at noon."}
        talk(
            [f"When do we deploy the shop, asked for the time {number}?"],
            [ask, answer],
            session=bob,
            hooks=HOOKS,
        )
        flush()
    with Memories(namespace="bob") as memories:
        assert memories.list(pending=True).memories == ()
        stored = memories.list(limit=100).memories
        notes = [memory for memory in stored if memory.tags.get("type") == "session"]
        assert [note.content for note in notes if "Tuesdays" in note.content] == []
        assert len(stored) - len(notes) == 1


def test_private_text_is_not_captured(talk: Any, bob: Bob, tmp_path: Path) -> None:
    talk(
        ["Remember that <private>my PIN is 4711</private> the shop is in Oslo."],
        session=bob,
        hooks=HOOKS,
    )
    assert "4711" not in str(waiting_events(tmp_path))


def test_a_session_continues_despite_an_unwritable_inbox(
    talk: Any, bob: Bob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "inbox").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        model = talk([REQUEST], [{"text": "Fine."}], session=bob, hooks=HOOKS)
    assert len(model.requests) == 1
    assert "was not captured" in caplog.text


def test_a_resumed_session_captures_nothing_twice(talk: Any, bob: Bob, tmp_path: Path) -> None:
    """The messages from before a session was resumed have already been captured."""

    async def resume(coordinator: Any) -> None:
        context = coordinator.get("context")
        await context.set_messages([{"role": "assistant", "content": "An old answer."}])
        await coordinator.hooks.emit("prompt:submit", {"prompt": "And now?"})
        await context.add_message({"role": "user", "content": "And now?"})
        await context.add_message(
            {"role": "assistant", "content": [{"type": "text", "text": "A new answer."}]}
        )
        await coordinator.hooks.emit("orchestrator:complete", {"status": "success"})

    talk([], session=bob, hooks=HOOKS, then=resume)
    assert [
        event.get("answer") for event in waiting_events(tmp_path) if event["event"] == "stop"
    ] == ["A new answer."]


# --- a user switches a session's memory


def test_the_specifications_prompt_switches_memory_on(talk: Any, tmp_path: Path) -> None:
    """Even without configuration, its sentence switches memory on from the next prompt."""
    with Memories(namespace="bob") as memories:
        memories.create("The user prefers PostgreSQL for new projects")
    model = talk(["Start a session as bob with memory enabled", "What database should we use?"])
    assert 'you are "bob"' in model.sent(0)
    assert "PostgreSQL" in model.sent(1)
    assert [*model.tools] == ["memory"]


def test_a_prompt_cannot_enable_memory_that_the_configuration_disables(talk: Any) -> None:
    off = {"capabilities": {"memory": {"enabled": False}}}
    model = talk(["Start as bob with memory enabled", "What do I prefer?"], session=off)
    assert model.tools == {}
    assert "Memory is on" not in model.sent(1)


def test_an_identity_switch_removes_the_old_memories_from_the_prompt(talk: Any, bob: Bob) -> None:
    for name in ("bob", "alice"):
        with Memories(namespace=name) as memories:
            memories.create(f"The wiki of {name} is yellow")
    create = {
        "tool": "memory",
        "input": {"operation": "create", "content": "The printer is on floor two"},
    }
    model = talk(
        ["Hello", "start as alice", "Store it."],
        [{"text": "Hi."}, {"text": "Yes."}, create],
        session=bob,
    )
    assert "wiki of bob" in model.sent(0)
    assert "wiki of bob" not in model.sent(1)
    assert "wiki of alice" in model.sent(1)
    with Memories(namespace="alice", shared=False) as memories:
        assert any("printer" in each.content for each in memories.list().memories)


def test_a_prompt_switches_memory_off_and_on_again(talk: Any, bob: Bob) -> None:
    with Memories(namespace="bob") as memories:
        memories.create("The wiki of bob is yellow")
    ask = {"tool": "memory", "input": {"operation": "list"}}
    model = talk(
        ["memory off", "List it.", "memory on"],
        [{"text": "Off."}, ask, {"text": "No."}],
        session=bob,
    )
    assert "wiki" not in model.sent(1) + model.sent(2)
    assert "memory is off for this session" in model.sent(2)
    assert "wiki of bob" in model.sent(3)
