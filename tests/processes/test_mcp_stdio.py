"""`memory mcp` as agents run it: a separate process with messages on its standard streams."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from memories import Memories

RunPython = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parent.parent.parent
MEMORY = [sys.executable, "-m", "memories", "mcp"]
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
# The command; its model loads only when the file exists that the first argument names.
SLOW = """
import sys, time
from pathlib import Path
from memories.__main__ import run
from memories.embedders import minilm
load = minilm._load_model
def wait():
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
    return load()
minilm._load_model = wait
sys.exit(run(["mcp"]))
"""
# The command; it waits an hour for a busy store, and half a second for calls after its client has
# left.
PATIENT = """
import sys
from memories.__main__ import run
from memories.mcp import stdio
from memories.stores.sqlite import connection
connection.BUSY_SECONDS, stdio.LEAVING_SECONDS = 3600, 0.5
sys.exit(run(["mcp"]))
"""


class Server:
    """A running server, and its output."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self.asked = 0

    def write(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, **params: Any) -> int:
        """Send a request; return its id."""
        self.asked += 1
        self.write({"id": self.asked, "method": method, "params": params})
        return self.asked

    def send_call(self, tool: str, **arguments: Any) -> int:
        """Call a tool without waiting for the answer; return the call's id."""
        return self.send("tools/call", name=tool, arguments=arguments)

    def read_answer(self) -> dict[str, Any]:
        """Return the next line, since the server prints nothing but answers."""
        assert self.process.stdout
        return dict(json.loads(self.process.stdout.readline()))

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        asked, answer = self.send(method, **params), self.read_answer()
        assert answer["id"] == asked
        return dict(answer["result"])

    def greet(self) -> None:
        """Do the handshake of a client of the older era."""
        who = {"name": "codex-mcp-client", "version": "1"}
        said = self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=who)
        assert said["protocolVersion"] == "2025-06-18"
        self.write({"method": "notifications/initialized"})

    def call(self, tool: str, **arguments: Any) -> str:
        result = self.ask("tools/call", name=tool, arguments=arguments)
        assert result["isError"] is False, result
        [content] = result["content"]
        return str(content["text"])

    def leave(self) -> str:
        """Close the streams; return what the server wrote to standard error."""
        out, err = self.process.communicate(timeout=300)
        assert (self.process.returncode, out) == (0, b"")
        return err.decode()


@pytest.fixture
def environment(clean_environment: dict[str, str]) -> dict[str, str]:
    """The environment of a server that uses the default model."""
    return {**clean_environment, "EMBEDDER": "minilm"}


@pytest.fixture
def start(environment: Mapping[str, str]) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server; the servers are killed after the test."""
    started: list[Server] = []

    def run(command: list[str], **more: str) -> Server:
        started.append(Server(command, {**environment, **more}))
        return started[-1]

    yield run
    for server in started:
        server.process.kill()
        server.process.communicate(timeout=300)


@pytest.mark.parametrize(("era", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
@pytest.mark.thorough
def test_both_eras_of_the_protocol_work_over_real_streams(
    environment: dict[str, str], era: str, version: str
) -> None:
    from mcp import Client, StdioServerParameters, stdio_client

    async def talk() -> Any:
        parameters = StdioServerParameters(command=MEMORY[0], args=MEMORY[1:], env=environment)
        # By default, the SDK uses the sys.stderr of its first import, which may be closed by now.
        streams = stdio_client(parameters, errlog=sys.__stderr__)
        async with Client(streams, mode=era) as client:
            assert client.session.protocol_version == version
            await client.call_tool("create_memory", {"content": "Deploys happen on Tuesdays"})
            return await client.call_tool("search_memories", {"query": "when do we release?"})

    found = asyncio.run(talk())
    assert (
        "mcp: Deploys happen on Tuesdays\n" in found.content[0].text
    )  # the memory shares no word with the question


def test_while_the_model_loads_searches_use_words_and_writes_wait(
    start: Callable[..., Server], environment: Mapping[str, str], tmp_path: Path
) -> None:
    """`python -m bench cold` measures the handshake, most of which is the import of the SDK."""
    with Memories(f"sqlite:///{environment['MEMORY_HOME']}/memories.db") as memories:
        memories.create("Deploys happen on Tuesdays")
    loads = tmp_path / "loads"
    server = start([sys.executable, "-c", SLOW, str(loads)])
    server.greet()  # the handshake doesn't wait for a model
    assert {tool["name"] for tool in server.ask("tools/list")["tools"]} >= {
        "create_memory",
        "search_memories",
    }
    hint, found = server.call("search_memories", query="deploys").split("\n", 1)
    assert "by words only" in hint
    assert ": Deploys happen on Tuesdays\n" in found
    create = {"name": "create_memory", "arguments": {"content": "The cat is called Momo"}}
    server.write({"id": "late", "method": "tools/call", "params": create})
    assert server.call("search_memories", query="deploys").startswith(
        hint
    )  # answered before the model is loaded
    search = {"name": "search_memories", "arguments": {"query": "when do we release?"}}
    server.write(
        {"id": "first", "method": "tools/call", "params": search}
    )  # the store has no word of this query
    loads.touch()
    assert server.process.stdout
    answers = [json.loads(server.process.stdout.readline()) for _ in range(2)]
    [first] = [answer["result"] for answer in answers if answer["id"] == "first"]
    assert ": Deploys happen on Tuesdays\n" in first["content"][0]["text"]
    later = server.call("search_memories", query="what is the name of my pet?")
    assert "hint" not in later
    assert ": The cat is called Momo\n" in later


@pytest.mark.parametrize("era", ["legacy", pytest.param("modern", marks=pytest.mark.thorough)])
def test_all_requests_are_answered_before_the_server_exits(
    environment: dict[str, str], era: str
) -> None:
    """Like a script, the client reads nothing until it has written everything and closed stdin."""
    who = {"name": "script", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in {
        "protocolVersion": "2026-07-28", "clientCapabilities": {}, "clientInfo": who
    }.items()}  # fmt: skip
    asked: list[dict[str, Any]] = [
        {
            "name": "create_memory",
            "arguments": {"content": f"Platform {number} leads to town {number}"},
        }
        for number in range(20)
    ]
    asked += [
        {"name": "search_memories", "arguments": {"query": "platform"}},
        {"name": "no_such_tool"},
    ]
    calls = [{"method": "tools/call", "params": params} for params in asked]
    messages: list[dict[str, Any]] = [{"method": "initialize", "params": hello}, *calls]
    if era == "modern":
        messages = [{**call, "params": {**call["params"], "_meta": meta}} for call in calls]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, **message})
        for number, message in enumerate(messages)
    ]
    if era == "legacy":
        lines[1:1] = ['{"jsonrpc": "2.0", "method": "notifications/initialized"}']
    lines += ["no message", '{"jsonrpc": "2.0", "id": "cut off']
    done = subprocess.run(
        MEMORY,
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={**environment, "EMBEDDER": "fake"},
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(answer["id"] for answer in answers if answer["id"] is not None) == list(
        range(len(messages))
    )
    assert [answer["error"]["code"] for answer in answers if answer["id"] is None] == [
        -32700,
        -32700,
    ]
    with Memories(
        f"sqlite:///{environment['MEMORY_HOME']}/memories.db", embedder="fake"
    ) as memories:
        assert len(memories.list(limit=100).memories) == 20


def test_writes_are_applied_in_order_of_arrival(
    start: Callable[..., Server], environment: Mapping[str, str]
) -> None:
    server = start(MEMORY, EMBEDDER="fake")
    server.greet()
    for number in range(20):
        server.send_call("add_turns", conversation="trip", turns=[{"content": f"turn {number}"}])
    for day in ("Monday", "Friday", "Sunday"):
        server.send_call("create_memory", content=f"The Minsk team deploys on {day}", key="day")
        server.send_call("create_memory", content=f"The Oslo team deploys on {day}")
    for _ in range(26):
        assert server.read_answer()["result"]["isError"] is False
    server.leave()
    with Memories(
        f"sqlite:///{environment['MEMORY_HOME']}/memories.db", embedder="fake"
    ) as memories:
        turns = [turn.content for turn in memories.turns("trip", limit=20)]
        listed = memories.list().memories
        [minsk] = [memories.history(memory.id) for memory in listed if "Minsk" in memory.content]
        oslo = [memory for memory in listed if "Oslo" in memory.content]
    assert turns == [f"turn {number}" for number in range(20)]
    days = ("Monday", "Friday", "Sunday")
    assert [version.content.split()[-1] for version in minsk.versions] == [*days]
    assert [memory.content.split()[-1] for memory in oslo] == [*reversed(days)]
    assert [memory.corrects for memory in oslo] == [oslo[1].id, oslo[2].id, None]


def test_a_write_that_waits_for_another_can_be_cancelled_and_delays_no_read(
    start: Callable[..., Server], environment: Mapping[str, str]
) -> None:
    with Memories(
        f"sqlite:///{environment['MEMORY_HOME']}/memories.db", embedder="fake"
    ) as memories:
        memories.create("It is there")
        server = start([sys.executable, "-c", PATIENT], EMBEDDER="fake")
        server.greet()
        with memories._store.transaction():
            memories._store.touch([])
            first, cancelled = (
                server.send_call("create_memory", content=f"{name} waits for the lock")
                for name in ("Ann", "Bob")
            )
            server.write({"method": "notifications/cancelled", "params": {"requestId": cancelled}})
            assert ": It is there\n" in server.call("list_memories")
        assert server.read_answer()["id"] == first
        server.leave()
        contents = [memory.content for memory in memories.list().memories]
    assert contents == ["Ann waits for the lock", "It is there"]


@pytest.mark.thorough
def test_a_call_that_waits_too_long_after_the_client_has_left_is_refused(
    start: Callable[..., Server], environment: Mapping[str, str]
) -> None:
    with Memories(
        f"sqlite:///{environment['MEMORY_HOME']}/memories.db", embedder="fake"
    ) as memories:
        memories.create("It is there")
        server = start([sys.executable, "-c", PATIENT], EMBEDDER="fake")
        server.greet()
        with memories._store.transaction():
            memories._store.touch([])
            create = {"name": "create_memory", "arguments": {"content": "waits for the lock"}}
            server.write({"id": 99, "method": "tools/call", "params": create})
            server.write({"id": 98, "method": "tools/call", "params": create})
            server.write({"method": "notifications/cancelled", "params": {"requestId": 98}})
            server.call("list_memories")  # by then the other calls have begun
            out, _ = server.process.communicate(timeout=300)
            assert server.process.returncode == 0
    [answer] = [json.loads(line) for line in out.splitlines()]
    assert (answer["id"], answer["error"]["code"]) == (99, -32603)
    assert "the client has disconnected" in answer["error"]["message"]


NO_MESSAGES: dict[str, tuple[bytes, int, int | str | None]] = {
    "no JSON": (b"hello", -32700, None),
    "no text": (b"\xff\xfe", -32700, None),
    "cut off": (b'{"jsonrpc":"2.0","id":5,"method":"pi', -32700, None),
    "an object": (b"{}", -32600, None),
    "a number": (b"42", -32600, None),
    "a batch": (b'[{"jsonrpc":"2.0","id":5,"method":"ping"},{"jsonrpc":"2.0","id":6,"method":"ping"}]', -32600, None),
    "an empty batch": (b"[]", -32600, None),
    "no version": (b'{"id":8,"method":"ping"}', -32600, 8),
    "no method": (b'{"jsonrpc":"2.0","id":"nine"}', -32600, "nine"),
    "a method that is none": (b'{"jsonrpc":"2.0","id":12,"method":7}', -32600, 12),
    "an id that is none": (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
    "an id twice": (b'{"jsonrpc":"2.0","id":10,"id":11,"method":"ping"}', -32600, 10),
    "parameters that are none": (b'{"jsonrpc":"2.0","id":13,"method":"ping","params":7}', -32600, 13),
    "never closed": (b"[" * 50_000, -32700, None),
    "deep": (
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"search_memories","arguments":{"query":'
        + b"[" * 50_000 + b'{"id":1}' + b"]" * 50_000 + b'}},"id":7}', -32600, 7,
    ),
    "deep, with a text that looks like an id": (
        b'{"a":"\\"id\\":3,","b":' + b"[" * 50_000 + b"]" * 50_000 + b',"id":"x"}', -32600, "x",
    ),
}  # fmt: skip


def answer_to(server: Server, line: bytes) -> dict[str, Any]:
    """Send a line unchanged; return the answer, which is the next line."""
    assert server.process.stdin
    assert server.process.stdout
    server.process.stdin.write(line + b"\n")
    server.process.stdin.flush()
    return dict(json.loads(server.process.stdout.readline()))


@pytest.mark.thorough
def test_bad_lines_and_requests_are_answered_and_the_server_continues(
    start: Callable[..., Server],
) -> None:
    """One server gets them all: before the handshake as in the newer era, which has none, and after
    it as in the older era.
    """
    server = start(MEMORY, EMBEDDER="fake")
    failures = [*wrong_answers_to_no_messages(server), *wrong_answers_before_the_handshake(server)]
    server.greet()
    failures += [*wrong_answers_to_no_messages(server), *wrong_answers_to_calls(server)]
    server.write({"id": 1234, "result": {}})  # an answer without a request gets no answer
    server.write({"method": "notifications/unheard_of"})
    assert server.call("list_memories") == "Nothing found."
    assert failures == []
    assert server.leave() == ""


def wrong_answers_to_no_messages(server: Server) -> Iterator[str]:
    """Yield the lines whose answers violate the protocol."""
    for what, (line, code, request_id) in NO_MESSAGES.items():
        answer = answer_to(server, line + b"\n")
        error = answer["error"]
        if (error["code"], answer["id"], answer["jsonrpc"]) != (code, request_id, "2.0") or len(
            error["message"]
        ) > 200:
            yield f"{what}: expected {code} for {request_id}, found {answer}"


def wrong_answers_before_the_handshake(server: Server) -> Iterator[str]:
    """Yield the answer to a call before the handshake, if it isn't an error."""
    params = {"name": "list_memories", "arguments": {}}
    early = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params}
    answer = answer_to(server, json.dumps(early).encode())
    if "error" not in answer:
        yield f"a call before the handshake: {answer}"


def wrong_answers_to_calls(server: Server) -> Iterator[str]:
    """Yield the calls that don't get an error of one sentence that names what is wrong.

    Row 83 of the project's list of bad inputs.
    """
    large = {"name": "create_memory", "arguments": {"content": "x" * 5_000_000}}
    calls = [
        (json.dumps(params), part)
        for params, part in (
            ({"name": "no_such_tool", "arguments": {}}, "no_such_tool"),
            ({"name": "create_memory", "arguments": {}}, "create_memory needs content"),
            (
                {"name": "create_memory", "arguments": {"content": "c", "more": 1}},
                'has no argument "more"',
            ),
            ({"name": "create_memory", "arguments": {"content": 5}}, "content"),
            (large, "content is 5000000 bytes"),
            ({"arguments": {}}, "Invalid request parameters"),
        )
    ]
    calls += [
        (f'{{"name": "create_memory", "arguments": {{"content": {content}}}}}', "")
        for content in (
            r'"bad \ud800 end"',
            "[" * 300 + "]" * 300,
        )  # allowed in JSON, but not in a text
    ]
    for params, part in calls:
        server.asked += 1
        line = f'{{"jsonrpc": "2.0", "id": {server.asked}, "method": "tools/call", "params": {params}}}'
        answer = answer_to(server, line.encode())
        told = json.dumps(answer, ensure_ascii=False).replace('\\"', '"')
        is_error = "error" in answer or answer["result"]["isError"]
        if answer["id"] != server.asked or not is_error or part not in told or "Traceback" in told:
            yield f"{params[:80]}: expected an error with {part!r}, found {told[:300]}"


@pytest.mark.thorough  # the test of a running call below covers a closed output too
def test_the_server_exits_silently_if_its_output_is_closed(environment: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    server = subprocess.Popen(
        MEMORY, stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE, env=environment
    )
    os.close(writing)
    _, said = server.communicate(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n', timeout=300)
    assert (server.returncode, said) == (0, b"")


@pytest.mark.thorough
def test_the_server_exits_with_an_error_if_an_answer_cannot_be_written(
    environment: dict[str, str],
) -> None:
    with Path("/dev/full").open("wb") as full:
        server = subprocess.Popen(
            MEMORY, stdin=subprocess.PIPE, stdout=full, stderr=subprocess.PIPE, env=environment
        )
    _, said = server.communicate(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n', timeout=300)
    assert server.returncode == 1
    assert json.loads(said) == {"error": "the output could not be printed: No space left on device"}


@pytest.mark.thorough
def test_a_running_call_is_finished_even_if_its_answer_cannot_be_sent(
    environment: Mapping[str, str],
) -> None:
    server = Server(MEMORY, {**environment, "EMBEDDER": "fake"})
    server.greet()
    assert server.process.stdout
    assert server.process.stderr
    server.process.stdout.close()
    server.write(
        {
            "id": 99,
            "method": "tools/call",
            "params": {"name": "create_memory", "arguments": {"content": "in flight"}},
        }
    )
    assert server.process.stdin
    server.process.stdin.close()
    assert (server.process.wait(300), server.process.stderr.read()) == (0, b"")
    server.process.stderr.close()
    with Memories(
        f"sqlite:///{environment['MEMORY_HOME']}/memories.db", embedder="fake"
    ) as memories:
        assert [found.content for found in memories.list().memories] == ["in flight"]


@pytest.mark.thorough
def test_another_server_finds_an_acknowledged_memory(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    """The first server is killed right after its answer, and the other was running before."""
    one, other = start(MEMORY, EMBEDDER="fake"), start(MEMORY, EMBEDDER="fake")
    other.greet()
    assert other.call("list_memories") == "Nothing found."
    one.greet()
    one.call("create_memory", content="Deploys happen on Tuesdays")
    one.process.kill()
    assert " codex-mcp-client: Deploys happen on Tuesdays\n" in other.call(
        "search_memories", query="deploys"
    )


@pytest.mark.thorough
def test_without_shared_memories_a_read_only_server_reads_only_its_own(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    """It offers no tool that writes, and counts no read."""
    store = f"sqlite:///{tmp_path}/other.db"
    with Memories(store, namespace="shared", embedder="fake") as shared:
        shared.create("apples are shared")
    with Memories(store, namespace="bob", embedder="fake") as his:
        made = his.create("apples are his").memory
    assert made is not None
    reader = start(
        [*MEMORY, "--store", store, "--namespace", "bob", "--read-only", "--no-shared"],
        EMBEDDER="fake",
    )
    reader.greet()
    offered = {tool["name"] for tool in reader.ask("tools/list")["tools"]}
    assert offered & {"create_memory", "update_memory", "delete_memory", "search_memories"} == {
        "search_memories"
    }
    assert re.findall(r": (apples .*)", reader.call("search_memories", query="apples")) == [
        "apples are his"
    ]
    assert reader.leave() == ""
    with Memories(store, namespace="bob", embedder="fake") as his:
        assert his.get(made.id).access_count == 0  # this `get` is counted afterwards


@pytest.mark.thorough
def test_a_server_that_may_write_finds_shared_memories_and_counts_reads(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/other.db"
    with Memories(store, namespace="shared", embedder="fake") as shared:
        shared.create("apples are shared")
    with Memories(store, namespace="bob", embedder="fake") as his:
        made = his.create("apples are his").memory
        assert made is not None
        server = start([*MEMORY, "--store", store, "--namespace", "bob"], EMBEDDER="fake")
        server.greet()
        found = re.findall(r": (apples .*)", server.call("search_memories", query="apples"))
        assert sorted(found) == ["apples are his", "apples are shared"]
        assert server.leave() == ""
        his.flush_accesses()
        assert (
            his.get(made.id).access_count == 1
        )  # the server's read; this `get` is counted afterwards


@pytest.mark.thorough
@pytest.mark.usefixtures("interruptible")
def test_a_broken_store_is_reported_and_the_server_continues_until_an_interrupt(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("this is no database " * 1_000)
    server = start([*MEMORY, "--store", f"sqlite:///{broken}"], EMBEDDER="fake")
    server.greet()
    for _ in range(2):
        result = server.ask("tools/call", name="list_memories", arguments={})
        assert result["isError"] is True
        assert "broken.db" in result["content"][0]["text"]
    assert broken.read_text().startswith("this is no database")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(300) == -signal.SIGINT


def test_the_server_exits_at_once_if_a_setting_is_invalid(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [*MEMORY, "--namespace", "a/b"], env=environment, capture_output=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"namespace" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_the_commands_help_loads_no_sdk(run_python: RunPython) -> None:
    script = (
        "import sys\nfrom memories.__main__ import run\nrun(['mcp', '--help'])\n"
        "sys.exit(bool(sys.modules.keys() & {'mcp', 'mcp_types', 'pydantic', 'numpy'}))"
    )
    assert "--read-only" in run_python(script).stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npx") is None, reason="needs npm")
def test_the_protocol_inspector_lists_calls_and_reads(environment: dict[str, str]) -> None:
    environment |= {"HOME": os.environ["HOME"], "PATH": os.environ["PATH"]}

    def inspect(*arguments: str) -> Any:
        command = ["npx", "-y", INSPECTOR, "--cli", *MEMORY, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert len(inspect("--method", "tools/list")["tools"]) == 10
    made = inspect(
        *("--method", "tools/call", "--tool-name", "create_memory"),
        *(
            "--tool-arg",
            "content=Deploys happen on Tuesdays",
            "--tool-arg",
            'tags={"project": "shop"}',
        ),
    )
    assert json.loads(made["content"][0]["text"])["stored"] is True
    [content] = inspect("--method", "resources/read", "--uri", "memory://recent")["contents"]
    assert "Deploys happen on Tuesdays" in content["text"]


def test_an_error_advises_commands_with_the_store_and_the_namespace(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    with Memories(url, namespace="bob", embedder="fake") as memories:
        memories.create("Ann keeps bees")
    server = start([*MEMORY, "--store", url, "-n", "bob"])
    server.greet()
    refused = server.ask("tools/call", name="create_memory", arguments={"content": "x"})
    assert refused["isError"]
    assert refused["content"][0]["text"].endswith(f"memory reembed --store {url}")
