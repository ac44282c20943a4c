"""The backend over `chroma-mcp`, with a server in memory that answers like version 0.2.6."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from mcp import Client
from mcp import MCPError as ClosedByPeer
from memories import AgentMemory, MCPError, MemoryGateway, load_config
from memories.context.chroma_mcp import (
    ChromaMcpBackend,
    NotInstalled,
    ToolTimeouts,
    Unreachable,
    environment,
)
from memories.context.memory import ATTEMPTS

TS = "2026-05-31T10:00:00+02:00"


class Death(NamedTuple):
    """When a process dies: on a call of this tool, before or after it is carried out; and the error
    that the client raises.
    """

    tool: str
    done: bool
    error: Exception


class Mortal:
    """A client whose process dies on the calls that a test has chosen."""

    def __init__(self, client: Client, chroma: "FakeChroma") -> None:
        self._client, self._chroma = client, chroma
        self._gone: Exception | None = None

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        if self._gone:
            raise self._gone
        deaths = self._chroma.dies
        death = deaths.pop(0) if deaths and deaths[0].tool == name.removeprefix("chroma_") else None
        answer = (
            await self._client.call_tool(name, arguments) if death is None or death.done else None
        )
        if death is not None:
            self._gone = death.error
            raise death.error
        return answer


class FakeChroma:
    """The data of a Chroma server, and the tools of a `chroma-mcp` in front of it."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
        self.error = ""  # the answer to every call
        self.connect_errors: list[BaseException] = []  # each start raises one of them
        self.add_error = ""  # the answer to every added document
        self.starts, self.calls = 0, 0
        self.seconds = 0.0  # how long getting documents takes
        self.dies: list[Death] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        self.starts += 1
        if self.connect_errors:
            raise self.connect_errors.pop(0)
        async with Client(self.server()) as client:
            yield Mortal(client, self)

    def checked(self, name: str | None = None) -> dict[str, tuple[str, dict[str, Any]]]:
        self.calls += 1
        if self.error:
            raise ToolError(self.error)
        if name is not None and name not in self.kept:
            raise ToolError(f"Collection [{name}] does not exist")
        return self.kept[name] if name else {}

    def server(self) -> MCPServer:
        server = MCPServer("chroma")

        @server.tool()
        async def chroma_list_collections() -> list[str]:
            self.checked()
            return list(self.kept) or ["__NO_COLLECTIONS_FOUND__"]

        @server.tool()
        async def chroma_create_collection(collection_name: str, metadata: dict[str, Any]) -> str:
            self.checked()
            if len(collection_name) < 3:
                raise ToolError(
                    "Validation error: name: Expected a name containing 3-512 characters"
                )
            self.kept[collection_name] = {}
            return "Successfully created"

        @server.tool()
        async def chroma_add_documents(
            collection_name: str,
            documents: list[str],
            ids: list[str],
            metadatas: list[dict[str, Any]],
        ) -> str:
            kept = self.checked(collection_name)
            if self.add_error:
                raise ToolError(self.add_error)
            if ids[0] in kept:
                raise ToolError(
                    f"The following IDs already exist in collection '{collection_name}': {ids}"
                )
            kept[ids[0]] = documents[0], metadatas[0]
            return "Successfully added"

        @server.tool()
        async def chroma_get_documents(
            collection_name: str,
            where: dict[str, Any],
            include: list[str],
            limit: int | None = None,
        ) -> str:
            found = self.matching(collection_name, where)
            await asyncio.sleep(self.seconds)
            return self.answer(found[::-1][:limit], lambda column: column)  # in an arbitrary order

        @server.tool()
        async def chroma_query_documents(
            collection_name: str, query_texts: list[str], n_results: int, where: dict[str, Any]
        ) -> str:
            return self.answer(
                self.matching(collection_name, where)[:n_results], lambda column: [column]
            )

        return server

    def matching(
        self, collection: str, where: dict[str, Any]
    ) -> list[tuple[str, str, dict[str, Any]]]:
        def fits(metadata: dict[str, Any], wanted: dict[str, Any]) -> bool:
            [(name, value)] = wanted.items()
            if name == "$and":
                return all(fits(metadata, part) for part in value)
            if isinstance(value, dict):
                return name in metadata and metadata[name] >= value["$gte"]
            return bool(metadata.get(name) == value)

        kept = self.checked(collection)
        return [(named, text, known) for named, (text, known) in kept.items() if fits(known, where)]

    def answer(
        self, rows: list[tuple[str, str, dict[str, Any]]], shape: Callable[[list[Any]], list[Any]]
    ) -> str:
        ids, texts, known = ([row[place] for row in rows] for place in range(3))
        columns = {
            "ids": ids,
            "documents": texts,
            "metadatas": known,
            "distances": [0.25] * len(rows),
        }
        return json.dumps({name: shape(column) for name, column in columns.items()})


@pytest.fixture
def chroma() -> FakeChroma:
    """A server in memory."""
    return FakeChroma()


@pytest.fixture
def backend(chroma: FakeChroma, tmp_path: Path) -> Iterator[ChromaMcpBackend]:
    """A backend that talks to the server; it must leave no thread behind."""
    opened = ChromaMcpBackend(chroma.connect, tmp_path, "chroma", patience=ToolTimeouts(5, 1, 5))
    yield opened
    opened.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "chroma-mcp"]


@pytest.fixture
def gateway(backend: ChromaMcpBackend) -> MemoryGateway:
    """A gateway over the backend."""
    return MemoryGateway("chroma-mcp", backend=backend)


def test_documents_are_stored_as_specified(gateway: MemoryGateway, chroma: FakeChroma) -> None:
    gateway.ensure_collections(["history", "memory"])
    gateway.append_history("conv_123", "user", "Hello\n", 42, TS, "m1", "web")
    gateway.write_memory("User prefers Docker", "preference", 1, TS, "conv_123", window="w")
    [(text, known)] = chroma.kept["history"].values()
    assert (text, known) == ("Hello\n", {
        "conversation_id": "conv_123", "role": "user", "ts": TS, "turn_index": 42, "message_id": "m1", "channel": "web",
    })  # fmt: skip
    [(text, known)] = chroma.kept["memory"].values()
    assert known == {
        "type": "preference",
        "confidence": 1.0,
        "ts": TS,
        "conversation_id": "conv_123",
        "window": "w",
    }
    assert gateway.count_window("w") == 1
    assert gateway.count_window("v") == 0
    [found] = gateway.recall_memory("Docker?", 8, 0.7, "conv_123")
    assert (found["text"], found["similarity"], "window" in found["metadata"]) == (
        text,
        0.75,
        False,
    )
    assert gateway.recall_memory("Docker?", 8, 0.7, "other") == []


def test_turns_are_numbered_uniquely_and_in_order(
    gateway: MemoryGateway, chroma: FakeChroma
) -> None:
    for number in range(5):
        gateway.append_history("c", "user", f"turn {number}", 0, TS, f"m{number}")
        gateway.append_history("d", "user", "other", 0, TS, f"m{number}")
    first = gateway.append_history("c", "user", "turn 1", 0, TS, "m1")
    assert first in chroma.kept["history"]
    assert [(turn["text"], turn["metadata"]["turn_index"]) for turn in gateway.tail_history("c", 3)] == [
        ("turn 2", 2), ("turn 3", 3), ("turn 4", 4),
    ]  # fmt: skip
    assert gateway.tail_history("none", 3) == []
    assert len(gateway.tail_history("c", 9)) == 5


NAMES = [(" c ", "c"), ("cafe\u0301", "caf\u00e9")]


@pytest.mark.parametrize(("written", "kept"), NAMES)
def test_unicode_forms_of_a_name_identify_the_same_conversation(
    gateway: MemoryGateway, chroma: FakeChroma, written: str, kept: str
) -> None:
    for name in (written, kept):
        gateway.append_history(name, "user", f"in {name}", 0, TS)
    first, _ = (
        gateway.write_memory("Ann keeps bees", "fact", 0.9, TS, name) for name in (written, kept)
    )
    for name in (written, kept):
        turns = gateway.tail_history(name, 9)
        assert [(turn["text"], turn["metadata"]["turn_index"]) for turn in turns] == [
            (f"in {written}", 0), (f"in {kept}", 1),
        ]  # fmt: skip
        [found] = gateway.recall_memory("bees", 8, 0.0, name)
        assert (found["id"], found["metadata"]["conversation_id"]) == (first, kept)
    assert {known["conversation_id"] for _, known in chroma.kept["history"].values()} == {kept}


@pytest.mark.parametrize(("written", "kept"), NAMES)
def test_unicode_forms_of_a_message_id_identify_the_same_message(
    gateway: MemoryGateway, chroma: FakeChroma, written: str, kept: str
) -> None:
    chroma.dies = [
        Death("add_documents", True, ENDINGS[0]),
        Death("add_documents", True, ENDINGS[0]),
    ]
    with pytest.raises(
        ConnectionError
    ):  # stored, but the answer is lost, so the turn is queued too
        gateway.append_history("c", "user", "once", 0, TS, written)
    assert [turn["text"] for turn in gateway.tail_history("c", 9)] == ["once"]
    gateway.drain()
    gateway.append_history("c", "user", "once", 0, TS, kept)
    assert [text for text, _ in chroma.kept["history"].values()] == ["once"]


@pytest.mark.parametrize("step", [1, 7])
def test_the_end_of_a_long_conversation_is_found_in_a_few_calls(
    backend: ChromaMcpBackend, chroma: FakeChroma, step: int
) -> None:
    numbers = range(0, 5_000, step)
    backend.ensure_collections([])
    chroma.kept["history"] = {
        str(number): (
            str(number),
            {"conversation_id": "c", "role": "user", "ts": TS, "turn_index": number},
        )
        for number in numbers
    }
    chroma.calls = 0
    assert [turn["text"] for turn in backend.tail("c", 4)] == [
        str(number) for number in numbers[-4:]
    ]
    assert chroma.calls < 20
    MemoryGateway("x", backend=backend).append_history("c", "user", "next", 0, TS)
    assert backend.tail("c", 1)[0]["metadata"]["turn_index"] == numbers[-1] + 1


def test_turns_are_ordered_by_index_and_time(backend: ChromaMcpBackend, chroma: FakeChroma) -> None:
    """Writers with different homes may have assigned the same index."""
    backend.ensure_collections([])
    for named, number, second in [("d", 3, 0), ("b", 1, 9), ("a", 1, 5), ("e", 3, 0), ("c", 2, 1)]:
        known = {
            "conversation_id": "c",
            "role": "user",
            "ts": f"2026-05-31T10:00:0{second}Z",
            "turn_index": number,
        }
        chroma.kept["history"][named] = named, known
    assert "".join(turn["text"] for turn in backend.tail("c", 9)) == "abcde"
    assert "".join(turn["text"] for turn in backend.tail("c", 2)) == "de"


def test_threads_assign_unique_indexes(gateway: MemoryGateway, chroma: FakeChroma) -> None:
    gateway.ensure_collections([])
    chroma.seconds = 0.01
    with ThreadPoolExecutor(4) as threads:
        list(
            threads.map(
                lambda number: gateway.append_history("c", "user", str(number), 0, TS), range(12)
            )
        )
    numbers = sorted(known["turn_index"] for _, known in chroma.kept["history"].values())
    assert numbers == list(range(12))


def test_processes_with_the_same_home_assign_unique_indexes(
    chroma: FakeChroma, tmp_path: Path
) -> None:
    """Like two processes, the two backends share only files."""
    backends = [ChromaMcpBackend(chroma.connect, tmp_path, "chroma") for _ in range(2)]

    def talk(who: int) -> None:
        gateway = MemoryGateway("chroma-mcp", backend=backends[who])
        for number in range(6):
            gateway.append_history("c", "user", f"{who}-{number}", 0, TS)

    try:
        backends[0].ensure_collections([])
        chroma.seconds = 0.01
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(talk, range(2)))
    finally:
        for each in backends:
            each.close()
    placed = sorted((known["turn_index"], text) for text, known in chroma.kept["history"].values())
    assert [number for number, _ in placed] == list(range(12))
    for who in "01":
        assert [text for _, text in placed if text[0] == who] == [
            f"{who}-{number}" for number in range(6)
        ]


# --- a process that dies

ENDINGS = [ClosedByPeer(-32000, "Connection closed"), anyio.ClosedResourceError()]


@pytest.mark.parametrize("error", ENDINGS, ids=["reported", "unreported"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_call_interrupted_by_a_crash_is_repeated_and_stored_once(
    gateway: MemoryGateway, chroma: FakeChroma, done: bool, error: Exception
) -> None:
    gateway.append_history("c", "user", "one", 0, TS, "m1")
    chroma.dies = [Death("add_documents", done, error)]
    made = gateway.append_history("c", "user", "two", 1, TS, "m2")
    assert made in chroma.kept["history"]
    chroma.dies = [Death("get_documents", done, error)]
    turns = gateway.tail_history("c", 9)
    assert [(turn["text"], turn["metadata"]["turn_index"]) for turn in turns] == [
        ("one", 0),
        ("two", 1),
    ]
    assert chroma.starts == 3
    assert not gateway.queue


def test_a_process_that_keeps_dying_is_reported_and_the_turn_is_queued(
    gateway: MemoryGateway, chroma: FakeChroma
) -> None:
    gateway.ensure_collections([])
    chroma.dies = [Death("add_documents", False, ENDINGS[0])] * 2
    with pytest.raises(ConnectionError, match="chroma-mcp ended: Connection closed") as caught:
        gateway.append_history("c", "user", "one", 0, TS, "m1")
    assert getattr(caught.value, "queued", False)
    assert gateway.drain() == 1
    assert [text for text, _ in chroma.kept["history"].values()] == ["one"]


def test_a_protocol_error_does_not_restart_the_process(
    gateway: MemoryGateway, chroma: FakeChroma
) -> None:
    gateway.ensure_collections([])
    chroma.dies = [Death("get_documents", False, ClosedByPeer(-32602, "Invalid params"))]
    with pytest.raises(MCPError, match="refused the request: Invalid params"):
        gateway.tail_history("c", 1)
    assert chroma.starts == 1


@pytest.mark.parametrize(
    "notice",
    [
        lambda gateway: gateway.count_window("w"),
        lambda gateway: None,  # the next append itself
    ],
    ids=["another", "append"],
)
def test_after_a_restart_indexes_continue_after_the_servers_turns(
    gateway: MemoryGateway, chroma: FakeChroma, notice: Callable[[MemoryGateway], object]
) -> None:
    """The server may come back with older data, or with none."""
    for number in range(5):
        gateway.append_history("c", "user", str(number), 0, TS)
    chroma.kept["history"].clear()
    chroma.dies = [Death("get_documents", False, ENDINGS[0])]
    notice(gateway)
    gateway.append_history("c", "user", "again", 0, TS)
    [turn] = gateway.tail_history("c", 9)
    assert (turn["text"], turn["metadata"]["turn_index"]) == ("again", 0)


def test_only_an_identical_document_counts_as_existing(
    gateway: MemoryGateway, chroma: FakeChroma
) -> None:
    gateway.ensure_collections([])
    chroma.add_error = "Failed to add documents: index already exists with another dimension"
    with pytest.raises(MCPError, match="another dimension"):
        gateway.write_memory("User prefers Docker", "preference", 0.9, TS)
    with pytest.raises(MCPError, match="another dimension") as caught:
        gateway.append_history("c", "user", "one", 0, TS)
    assert caught.value.queued
    chroma.add_error = ""
    assert gateway.drain() == 1
    assert [text for text, _ in chroma.kept["history"].values()] == ["one"]


def test_the_same_memory_is_stored_once(gateway: MemoryGateway, chroma: FakeChroma) -> None:
    named = [gateway.write_memory("Ann keeps bees", "fact", sure, TS) for sure in (0.9, 0.9, 0.8)]
    assert named[0] == named[1] != named[2]
    assert len(chroma.kept["memory"]) == 2


# --- starting and errors


def test_a_failed_start_raises_an_error_for_the_caller(
    backend: ChromaMcpBackend, chroma: FakeChroma
) -> None:
    chroma.connect_errors = [Unreachable("no")]
    with pytest.raises(ConnectionError, match="cannot start chroma-mcp: no"):
        backend.ensure_collections(["history"])
    assert chroma.starts == 1
    backend.ensure_collections(["history", "extra"])
    assert set(chroma.kept) == {"history", "memory", "extra"}


def test_an_agent_tries_to_start_the_process_five_times(
    backend: ChromaMcpBackend, chroma: FakeChroma, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.context.gateway._open_backend", lambda _endpoint: backend)
    chroma.connect_errors = [Unreachable("no")] * 10
    pauses: list[float] = []
    with pytest.raises(ConnectionError, match="cannot start chroma-mcp: no"):
        AgentMemory.start(load_config({}, environment={}), pause=pauses.append)
    assert (chroma.starts, pauses) == (ATTEMPTS, [0.5, 1.0, 2.0, 4.0])


def test_a_missing_program_is_not_retried(backend: ChromaMcpBackend, chroma: FakeChroma) -> None:
    chroma.connect_errors = [NotInstalled("not there")]
    with pytest.raises(ConnectionError, match="not there"):
        backend.ensure_collections(["history"])
    assert chroma.starts == 1


def test_the_error_for_a_missing_program_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMA_MCP_COMMAND", "/nowhere/chroma-mcp --x")
    with (
        MemoryGateway("chroma-mcp://127.0.0.1:1") as gateway,
        pytest.raises(ConnectionError, match="CHROMA_MCP_COMM"),
    ):
        gateway.ensure_collections(["history"])


def test_each_failure_raises_its_own_kind_of_error(
    gateway: MemoryGateway, chroma: FakeChroma
) -> None:
    gateway.ensure_collections(["history"])
    chroma.error = (
        "Failed to get documents from collection 'history': [Errno 111] Connection refused"
    )
    with pytest.raises(ConnectionError, match="the Chroma server does not answer") as caught:
        gateway.append_history("c", "user", "waits", 0, TS, "m1")
    assert getattr(caught.value, "queued", False)
    chroma.error = "Failed to get documents from collection 'history': disk full"
    with pytest.raises(MCPError, match="disk full"):
        gateway.recall_memory("x", 1, 0.5)
    chroma.error = ""
    with pytest.raises(MCPError, match="3-512"):
        gateway.ensure_collections(["x"])
    with pytest.raises(ValueError, match="whole number"):
        gateway.tail_history("c", 0)
    gateway.append_history("c", "user", "second", 0, TS, "m2")
    assert [turn["text"] for turn in gateway.tail_history("c", 9)] == ["waits", "second"]


def test_a_process_that_does_not_answer_is_restarted(
    gateway: MemoryGateway, chroma: FakeChroma
) -> None:
    gateway.ensure_collections(["history"])
    chroma.seconds = 30
    with pytest.raises(ConnectionError, match="did not answer in 1 seconds"):
        gateway.tail_history("c", 1)
    chroma.seconds = 0
    assert gateway.tail_history("c", 1) == []
    assert chroma.starts == 2


@pytest.mark.parametrize(
    "endpoint", ["chroma-mcp://", "chroma-mcp://h:x", "chroma-mcp://u@h", "chroma-mcp://h/p"]
)
def test_invalid_addresses_are_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is not valid"):
        MemoryGateway(endpoint)


def test_each_server_has_its_own_files(home: Path) -> None:
    names = [
        MemoryGateway(f"chroma-mcp{rest}").queue.path
        for rest in ("", "://localhost:8000", "://h:1")
    ]
    assert names[0] == names[1] != names[2]
    assert names[0].parent == home


def test_the_process_receives_the_address_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMA_SSL", "true")
    variables = environment("h", 1)
    assert variables["CHROMA_HTTP_HOST"] == variables["CHROMA_HOST"] == "h"
    assert (variables["CHROMA_PORT"], variables["CHROMA_CLIENT_TYPE"], variables["CHROMA_SSL"]) == (
        "1",
        "http",
        "true",
    )
