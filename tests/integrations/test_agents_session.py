"""The session for the OpenAI Agents SDK, driven by the real SDK; a local server simulates the
model.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from agents.memory import Session, SessionSettings
from openai import AsyncOpenAI

from memories import InvalidInput, Memories
from memories.integrations.openai import MemoriesSession

CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "id": "f"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "tea"}
ITEMS: list[Any] = [
    {"role": "user", "content": "What does Ann like?"},
    CALL,
    OUTPUT,
    {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "tea", "annotations": []}],
        "type": "message",
    },
    {"role": "user", "content": "..."},
    {"role": "user", "content": "e\u0301 🍵"},
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": ""},
]


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """Ann's memories."""
    with Memories(f"sqlite:///{tmp_path}/store", namespace="ann", embedder="fake") as opened:
        yield opened


def test_a_session_returns_its_items_unchanged(memories: Memories) -> None:
    session = MemoriesSession("s", memories)
    assert isinstance(session, Session)

    async def use() -> None:
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.clear_session()
        await session.add_items([])
        await session.add_items(ITEMS)
        assert await session.get_items() == ITEMS
        assert await session.get_items(3) == ITEMS[-3:]
        assert await session.get_items(0) == []
        assert (
            await MemoriesSession("s", memories, SessionSettings(limit=2)).get_items() == ITEMS[-2:]
        )
        assert await session.pop_item() == ITEMS[-1]
        await session.add_items(ITEMS[:1])
        assert await session.get_items() == [*ITEMS[:-1], ITEMS[0]]
        assert await MemoriesSession("other", memories).get_items() == []
        await session.clear_session()
        assert await session.get_items() == []

    asyncio.run(use())


def test_more_items_than_a_page_stay_in_order(memories: Memories) -> None:
    session = MemoriesSession("s", memories)
    items = [{"role": "user", "content": f"message {number}"} for number in range(1_100)]

    async def use() -> None:
        await session.add_items(items)
        assert await session.get_items() == items
        assert await session.get_items(1_050) == items[-1_050:]

    asyncio.run(use())


def test_items_can_be_searched_and_secrets_are_redacted(memories: Memories) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 3 + "abcdef"
    session = MemoriesSession("s", memories)
    asyncio.run(
        session.add_items(
            [{"role": "user", "content": "Ann likes tea"}, {**OUTPUT, "output": token}]
        )
    )
    (hit,) = memories.search("what does Ann like?", scope="history")[:1]
    assert hit.turn.content == "Ann likes tea"
    items = asyncio.run(session.get_items())
    assert token not in json.dumps(items)
    assert items[1]["call_id"] == "c"


def test_encrypted_reasoning_is_returned_unchanged(memories: Memories) -> None:
    # The second part looks like a token with an unknown prefix.
    encrypted = "gAAAAABQdrl4-ga-3SJFTAKtxwqIcas8vjkyC7LYiPYnSXsqVzLwN2WR6cFH4s9nGCU2uixUBPNLJ-x"
    summary = {"type": "summary_text", "text": "The password is: hunter2secret99"}
    reasoning = {"type": "reasoning", "summary": [summary], "encrypted_content": encrypted}
    items = [*ITEMS[:2], reasoning, OUTPUT]

    async def use() -> list[Any]:
        session = MemoriesSession("s", memories)
        await session.add_items(items)
        return await session.get_items()

    returned = asyncio.run(use())
    assert returned[2]["encrypted_content"] == encrypted
    assert returned[2]["summary"][0]["text"] == "The password is: [redacted:password]"
    assert returned[:2] + returned[3:] == items[:2] + items[3:]


def test_the_name_of_a_session_must_not_be_a_secret(memories: Memories) -> None:
    with pytest.raises(InvalidInput, match="contains what looks like a secret"):
        MemoriesSession("ghp_52bed334f8730fed0e717859699da7cc2379", memories)


def test_a_second_run_of_the_real_sdk_continues_the_session(memories: Memories) -> None:
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["messages"])
            call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            said: dict[str, Any] = {"role": "assistant", "content": "Ann likes tea."}
            if len(asked) == 1:
                said = {"role": "assistant", "content": None, "tool_calls": [call]}
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            response = {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [choice],
            }
            data = json.dumps(response).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    @function_tool
    def look() -> str:
        """Look it up."""
        return "tea"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    async def run(text: str) -> str:
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        async with AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            model = OpenAIChatCompletionsModel(model="m", openai_client=client)
            agent = Agent(name="helper", model=model, tools=[look])
            session = MemoriesSession("s", memories)
            config = RunConfig(tracing_disabled=True)
            return str(
                (await Runner.run(agent, text, session=session, run_config=config)).final_output
            )

    assert asyncio.run(run("What does Ann like?")) == "Ann likes tea."
    assert asyncio.run(run("Are you sure?")) == "Ann likes tea."
    server.shutdown()
    server.server_close()
    assert [message["role"] for message in asked[-1]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
