"""MCP over HTTP: the tools of `memory mcp`, with the rights of each call's token."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from live_server import Live, running
from memories import Memories
from memories.errors import StoreFull
from memories.mcp.answers import short_id
from memories.server.app import McpOverHttp
from memories.settings import Config

Token = Callable[..., dict[str, str]]


@pytest.fixture(scope="module", autouse=True)
def mcp() -> None:
    """Serve MCP, unlike in other tests."""


async def _call(
    live: Live, headers: dict[str, str], mode: str, *calls: tuple[str, dict[str, Any]]
) -> list[Any]:
    """Call tools in one session of the SDK's client; return the tools' names and the results."""

    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from mcp import Client

    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{live.url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            return [names, *[await client.call_tool(name, given) for name, given in calls]]


def ask(
    live: Live, headers: dict[str, str], *calls: tuple[str, dict[str, Any]], mode: str = "auto"
) -> list[Any]:
    """Call tools once the server has loaded MCP."""
    wait_until_loaded(live)
    return asyncio.run(_call(live, headers, mode, *calls))


def wait_until_loaded(live: Live) -> None:
    """Wait until the server answers MCP; fail after a minute."""
    for _ in range(600):
        status, told = live.ask("POST", "/mcp", {}, Accept="application/json, text/event-stream")
        if status != 503:
            return
        assert "loading" in told["detail"]
        asyncio.run(asyncio.sleep(0.1))
    raise AssertionError("MCP was not loaded")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_clients_of_both_protocol_eras_can_call_tools(live: Live, mode: str) -> None:
    headers = {"authorization": f"Bearer {live.token}"}
    names, made, found = ask(
        live, headers, ("create_memory", {"content": "Deploys happen on Tuesdays"}),
        ("search_memories", {"query": "when do we deploy?"}), mode=mode,
    )  # fmt: skip
    assert {"create_memory", "search_memories", "get_context"} <= names
    assert not made.is_error
    assert "Tuesdays" in found.content[0].text


def test_a_token_writes_in_its_namespace_under_its_name(
    live: Live, token: Token, config: Config
) -> None:
    bob = token("bob:rw", name="bobs-agent")
    ann = token("ann:rw", name="anns-agent")
    ask(live, bob, ("create_memory", {"content": "Bob likes tea"}))
    _, found = ask(live, ann, ("search_memories", {"query": "who likes tea?"}))
    assert "Bob likes tea" not in found.content[0].text
    with Memories(config=config, namespace="bob") as memories:
        [memory] = memories.list().memories
    assert memory.origin is not None
    assert (memory.origin.by, memory.origin.channel, memory.origin.trust) == (
        "bobs-agent",
        "mcp",
        "agent",
    )


def test_only_managers_of_the_store_see_its_path(live: Live, token: Token) -> None:
    wait_until_loaded(live)
    params = {"uri": "memory://status"}
    read = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params}
    accept = {"Accept": "application/json, text/event-stream"}

    def status() -> Any:
        """Return the text of the resource."""
        _, told = live.ask("POST", "/mcp", read, **accept)
        return json.loads(told["result"]["contents"][0]["text"])

    assert status()["store"].endswith("/m.db")
    live.token = token("bob:rw")["authorization"].removeprefix("Bearer ")
    assert status()["namespace"] == "bob"
    assert "store" not in status()


def test_the_query_selects_the_namespace(live: Live, token: Token, config: Config) -> None:
    wait_until_loaded(live)
    for name in ("bob", "ann", "shared"):
        with Memories(config=config, namespace=name) as memories:
            memories.create(f"{name} likes tea")
    live.token = token("bob:rw", "ann:r", "shared:r")["authorization"].removeprefix("Bearer ")
    accept = {"Accept": "application/json, text/event-stream"}

    def search(query: str) -> str:
        """Return the server's answer to a search."""
        arguments = {"name": "search_memories", "arguments": {"query": "who likes tea?"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments}
        return json.dumps(live.ask("POST", f"/mcp{query}", body, **accept))

    shown = {
        query: [name for name in ("bob", "ann", "shared") if f"{name} likes tea" in search(query)]
        for query in ("", "?namespace=ann", "?namespace=ann&shared=false")
    }
    assert shown == {
        "": ["bob", "shared"],
        "?namespace=ann": ["ann", "shared"],
        "?namespace=ann&shared=false": ["ann"],
    }
    assert "may not read namespace carl" in search("?namespace=carl")
    assert 'unknown parameter \\"name\\"' in search("?name=ann")


def test_an_error_names_no_folder_of_the_server(
    live: Live, token: Token, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until_loaded(live)

    def full(*_: object, **__: object) -> None:
        """Fail as a full disk does."""
        raise StoreFull(f"the disk of {config.home}/m.db is full")

    monkeypatch.setattr(Memories, "list", full)
    calls = ("list_memories", {})
    _, seen = ask(live, {"authorization": f"Bearer {live.token}"}, calls)
    assert seen.content[0].text == f"the disk of {config.home}/m.db is full"
    _, seen = ask(live, token("bob:rw"), calls)
    assert seen.content[0].text == "the disk of m.db is full"


def test_suggested_commands_name_the_namespace_of_the_token(
    live: Live, token: Token, config: Config
) -> None:
    with Memories(config=config, namespace="bob") as memories:
        memory = memories.create("Bob likes tea").memory
        assert memory is not None
        memories.delete(memory.id)
        held = memories.create("Bob likes rain", pending=True).memory
        assert held is not None
    calls = [("update_memory", {"id": each.id, "content": "New"}) for each in (memory, held)]
    _, refused, waiting = ask(live, token("bob:rw"), *calls)
    assert "call restore_memory with id=" in refused.content[0].text
    assert f"memory review accept {short_id(held.id)} -n bob, or" in waiting.content[0].text


def test_a_read_only_token_gets_no_writing_tools(live: Live, token: Token) -> None:
    [names] = ask(live, token("bob:r"))
    assert "search_memories" in names
    assert not {"create_memory", "update_memory", "delete_memory", "add_turns"} & names


def test_calls_without_a_valid_token_are_refused(live: Live) -> None:
    wait_until_loaded(live)
    for head in (b"", b"Authorization: Bearer mem_wrong_wrong_wrong\r\n"):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
        data = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        data += b"Accept: application/json, text/event-stream\r\nConnection: close\r\n" + head
        assert live.send(data + b"Content-Length: %d\r\n\r\n" % len(body) + body) == [401]


def test_until_mcp_is_loaded_a_client_gets_503(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: McpOverHttp, stop: asyncio.Event) -> None:
        await stop.wait()

    monkeypatch.setattr(McpOverHttp, "run", never)
    with running(config) as live:
        assert live.ask("POST", "/mcp", {}, Accept="application/json")[0] == 503
        assert live.ask("GET", "/api/status")[0] == 200


def test_an_oversized_body_without_a_length_is_refused(live: Live) -> None:
    wait_until_loaded(live)
    more = (
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        "Connection: close",
    )
    head = live.head("POST /mcp HTTP/1.1", "Transfer-Encoding: chunked", *more)
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert live.send(head + piece * 20 + b"0\r\n\r\n") == [413]
