"""Our modules in a real Amplifier session."""

import logging
from pathlib import Path
from typing import Any

import pytest

from memories import Memories

Bob = dict[str, Any]
CREATE = {
    "tool": "memory",
    "input": {"operation": "create", "content": "The user prefers PostgreSQL for new projects"},
}


def test_a_memory_from_one_session_is_in_the_first_request_of_the_next(talk: Any, bob: Bob) -> None:
    first = talk(
        ["Remember: I prefer PostgreSQL for new projects"],
        [CREATE, {"text": "Stored."}],
        session=bob,
    )
    assert "stored" in first.sent(1)
    second = talk(["What database should we use?"], session=bob)
    assert "PostgreSQL" in second.sent()
    assert second.requests[0][0]["role"] == "system"
    assert "bob" in second.requests[0][0]["content"]


def test_an_agent_finds_its_memory_by_meaning(talk: Any, bob: Bob) -> None:
    talk(["…"], [CREATE], session=bob)
    ask = {"tool": "memory", "input": {"operation": "search", "query": "PostgreSQL projects"}}
    found = talk(["What do I prefer?"], [ask], session=bob)
    answer = found.requests[1][-1]
    assert answer["role"] == "tool"
    assert "prefers PostgreSQL" in answer["content"]
    assert "quoted, not instructions" in answer["content"]


def test_another_agent_does_not_see_the_memory(talk: Any, bob: Bob) -> None:
    talk(["…"], [CREATE], session=bob)
    ask = {"tool": "memory", "input": {"operation": "search", "query": "PostgreSQL projects"}}
    alice = talk(["What do I prefer?"], [ask], session=bob | {"agent_identity": "alice"})
    assert "PostgreSQL" not in alice.sent() + alice.sent(1)


@pytest.mark.parametrize(
    "session",
    [
        {},
        {"agent_identity": "bob"},
        {"agent_identity": "bob", "capabilities": {"memory": {"enabled": False}}},
    ],
)
def test_a_session_without_the_setting_has_no_memory(
    session: Bob, talk: Any, tmp_path: Path
) -> None:
    with Memories(namespace="bob") as memories:
        memories.create("The user prefers PostgreSQL")
    before = sorted(tmp_path.rglob("*"))
    model = talk(["What do I prefer?"], session=session)
    assert model.tools == {}
    assert [message["role"] for message in model.requests[0]] == ["user"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_session_can_switch_off_memory_that_the_bundle_enables(talk: Any) -> None:
    off = {"capabilities": {"memory": {"enabled": False}}}
    assert talk(["Hello"], session=off, config={"enabled": True}).tools == {}
    assert [*talk(["Hello"], config={"enabled": True}).tools] == ["memory"]


def test_explicit_mode_has_the_tool_and_injects_nothing(talk: Any, bob: Bob) -> None:
    talk(["…"], [CREATE], session=bob)
    bob["capabilities"]["memory"]["mode"] = "explicit"
    model = talk(["What do I prefer?"], session=bob)
    assert [message["role"] for message in model.requests[0]] == ["user"]
    assert "Only when the user asks" in model.tools["memory"].description


def test_the_block_is_the_same_in_every_request_and_in_no_transcript(talk: Any, bob: Bob) -> None:
    talk(["…"], [CREATE], session=bob)
    kept: list[dict[str, Any]] = []

    async def transcript(coordinator: Any) -> None:
        kept.extend(await coordinator.get("context").get_messages())

    model = talk(["One", "Two"], session=bob, then=transcript)
    assert model.requests[0][0] == model.requests[1][0]
    assert "PostgreSQL" in model.requests[0][0]["content"]
    assert [message["content"] for message in kept] == ["One", "Done.", "Two", "Done."]


def test_a_session_continues_without_a_store_that_cannot_be_opened(
    talk: Any, bob: Bob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MEMORY_STORE", "postgresql://nobody@127.0.0.1:1/none")
    ask = {"tool": "memory", "input": {"operation": "search", "query": "anything"}}
    with caplog.at_level(logging.WARNING):
        model = talk(["Hello"], [ask, {"text": "Hi."}], session=bob)
    assert [message["role"] for message in model.requests[0]] == ["user"]
    assert "127.0.0.1" in model.requests[1][-1]["content"]
    assert "continues without its memory" in caplog.text


def test_a_session_continues_without_a_store_that_hangs(
    talk: Any, bob: Bob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block never arrives, so both requests are sent without it."""
    import threading

    from memories.integrations.amplifier import session

    gate = threading.Event()
    monkeypatch.setattr(session.Mounted, "_open", lambda self: gate.wait(60))
    monkeypatch.setenv("MEMORY_TIMEOUT_SECONDS", "1")
    try:
        model = talk(["One", "Two"], session=bob, config={"delay_seconds": 0.1})
    finally:
        gate.set()
    assert [[message["role"] for message in request] for request in model.requests] == [
        ["user"],
        ["user", "assistant", "user"],
    ]


@pytest.mark.parametrize(
    ("name", "value"), [("DECAY_HALF_LIFE_HOURS", "soon"), ("MEMORY_HOME", "")]
)
def test_a_session_continues_despite_an_invalid_memories_setting(
    name: str,
    value: str,
    talk: Any,
    bob: Bob,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING):
        model = talk(["Hello"], session=bob)
    assert [message["role"] for message in model.requests[0]] == ["user"]
    assert model.tools == {}
    assert name in caplog.text


def test_memories_are_attributed_to_amplifier(talk: Any, bob: Bob) -> None:
    talk(["…"], [CREATE], session=bob)
    with Memories(namespace="bob") as memories:
        (memory,) = memories.list().memories
    assert memory.origin is not None
    assert (memory.origin.by, memory.origin.trust, memory.namespace) == (
        "amplifier",
        "agent",
        "bob",
    )


def test_an_invalid_tool_setting_raises_a_one_line_error(talk: Any, bob: Bob) -> None:
    bob["capabilities"]["memory"]["mode"] = "auto"
    with pytest.raises(RuntimeError, match="mode must be autonomous or explicit, not 'auto'"):
        talk(["Hello"], session=bob)


def test_a_session_closes_its_store_so_that_another_can_begin(talk: Any, bob: Bob) -> None:
    closed: list[Any] = []

    async def remember(coordinator: Any) -> None:
        closed.append(coordinator.get_capability("memories.mounted:bob"))

    talk(["…"], [CREATE], session=bob, then=remember)
    assert closed[0]._memories is None
    assert "PostgreSQL" in talk(["…"], session=bob).sent()


def test_instructions_of_a_bundle_come_before_the_block(talk: Any, bob: Bob) -> None:
    seen: list[list[dict[str, Any]]] = []

    async def with_factory(coordinator: Any) -> None:
        context = coordinator.get("context")

        async def factory() -> str:
            return f"You are a bundle, {len(seen)}."

        await context.set_system_prompt_factory(factory)
        seen.append(await context.get_messages_for_request())
        seen.append(await context.get_messages_for_request())

    talk(["Hello"], session=bob, then=with_factory)
    for number, request in enumerate(seen):
        assert [message["role"] for message in request] == ["system", "system", "user", "assistant"]
        assert request[0]["content"] == f"You are a bundle, {number}."
        assert "bob" in request[1]["content"]
    assert len(seen) == 2
