"""SIGTERM during requests: each gets its true result, or a problem that says what is known."""

import asyncio
import contextlib
import http.client
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import apsw
import pytest

from memories import Memories, load_config
from memories.errors import StoreError
from memories.server.api import routes

WAIT = 120
NOTHING = "nothing was written"
IN_DOUBT = "may or may not have been done"
SERVE = """
import sys
from memories.server import app, http
from memories.server.api import records
http._GRACE_SECONDS = float(sys.argv.pop(1))
opened = records._Transaction.__init__
def noted(*given):
    print("a client begins a transaction", file=sys.stderr, flush=True)
    opened(*given)
records._Transaction.__init__ = noted
async def run(_, stop):
    await stop.wait()
if sys.argv.pop(1) != "mcp":  # which takes a second to load
    app.McpOverHttp.run = run
from memories.__main__ import main
main()
"""


class Answer(NamedTuple):
    """The status, the headers and the body of a response."""

    status: int
    kind: str | None
    retry_after: str | None
    body: Any

    def check(self, *said: str) -> str:
        """Check that the answer is a problem with one of these sentences; return the sentence."""
        assert (self.status, self.kind, self.retry_after) == (
            503,
            "application/problem+json",
            "1",
        ), self
        assert self.body["status"] == 503
        return next(each for each in said if each in self.body["detail"])


class Site(NamedTuple):
    """A server process."""

    process: "subprocess.Popen[bytes]"
    port: int
    home: Path
    log: Path

    @property
    def token(self) -> str:
        return (self.home / "server.token").read_text().strip()

    def begin(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> Callable[[], Answer]:
        """Send a request; return the future answer."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        line.request(
            method,
            path,
            data,
            sent | {name.replace("_", "-"): value for name, value in headers.items()},
        )

        def wait() -> Answer:
            with contextlib.closing(line), line.getresponse() as answer:
                kind, text = answer.getheader("content-type"), answer.read()
                body = json.loads(text) if kind and "json" in kind else text
                return Answer(answer.status, kind, answer.getheader("retry-after"), body)

        return wait

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return self.begin(method, path, body, **headers)()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> str:
        """Wait until the process ends; return its standard error."""
        assert self.process.wait(WAIT) == 0
        return self.log.read_text()


Start = Callable[..., Site]


@pytest.fixture
def start(environment: Mapping[str, str], tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a server with a limited time to stop."""
    begun: list[subprocess.Popen[bytes]] = []

    def serve(grace: float, *, mcp: bool = False) -> Site:
        log = tmp_path / f"log{len(begun)}"
        command = [
            sys.executable,
            "-c",
            SERVE,
            str(grace),
            "mcp" if mcp else "",
            "serve",
            "--port",
            "0",
        ]
        with log.open("wb") as stream:
            begun.append(
                subprocess.Popen(command, env=dict(environment), cwd=tmp_path, stderr=stream)
            )
        ready = "sign in at"
        while ready not in (text := log.read_text()):
            assert begun[-1].poll() is None, text
            threading.Event().wait(0.02)
        return Site(begun[-1], int(text.splitlines()[0].rsplit(":", 1)[1]), tmp_path / "h", log)

    yield serve
    for process in begun:
        process.kill()
        process.wait(WAIT)


@pytest.fixture
def stored_texts(environment: Mapping[str, str], tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that reads the texts of all stored memories and turns."""

    def read() -> list[str]:
        config = load_config(environment=dict(environment), folder=tmp_path)
        with Memories(config=config) as memories:
            turns = [turn.content for turn in memories.tail_turns("c")]
            return [each.content for each in memories.list(limit=1_000).memories] + turns

    return read


@contextlib.contextmanager
def busy(site: Site) -> Iterator[None]:
    """Block all writes to the store inside the context."""
    with contextlib.closing(apsw.Connection(str(site.home / "memories.db"))) as other:
        other.execute("begin immediate")
        yield
        other.execute("rollback")


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a tool call in MCP's format."""
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2025-11-25"}}
    return {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments} | meta,
    }


def mcp_loaded(site: Site) -> None:
    """Wait until the server has loaded MCP."""
    while site.ask("POST", "/mcp", call("x"), **MCP).status == 503:
        threading.Event().wait(0.02)


MCP = {"Accept": "application/json, text/event-stream"}


def writes(site: Site, seed: str, *, mcp: bool = True) -> dict[str, Callable[[], Answer]]:
    """Send one write of each kind; return the future answer of each."""
    sent: dict[str, tuple[str, str, Any, dict[str, str]]] = {
        "create": ("POST", "/api/memories", {"content": "create"}, {}),
        "queued": ("POST", "/api/memories", {"content": "queued"}, {}),
        "keyed": ("POST", "/api/memories", {"content": "keyed"}, {"Idempotency_Key": "k1"}),
        "batch": ("POST", "/api/memories/batch", {"memories": [{"content": "batch"}]}, {}),
        "update": ("PATCH", f"/api/memories/{seed}", {"content": "update"}, {}),
        "turn": ("POST", "/api/conversations/c/turns", {"turns": [{"content": "turn",
        "role": "user"}]}, {}),
        "mcp": ("POST", "/mcp", call("create_memory", content="mcp"), MCP),
        "store": ("POST", "/store/v1/begin", {"space": None, "arguments": [], "named": {"map": []},
        "call": "1"}, {}),
    }  # fmt: skip
    if not mcp:
        del sent["mcp"]
    waiting = {
        name: site.begin(method, path, body, **more)
        for name, (method, path, body, more) in sent.items()
    }
    for _ in range(3):  # by then, the server has read the requests
        assert site.ask("GET", "/health").status == 200
    return waiting


@pytest.mark.parametrize("mcp", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_write_that_finishes_in_time_gets_its_usual_answer(
    start: Start, stored_texts: Callable[[], list[str]], mcp: bool
) -> None:
    site = start(WAIT, mcp=mcp)
    seed = site.ask("POST", "/api/memories", {"content": "seed"}).body["id"]
    if mcp:
        mcp_loaded(site)
    with busy(site):
        waiting = writes(site, seed, mcp=mcp)
        site.stop()
        with pytest.raises(OSError):  # new connections are refused or closed
            while True:  # until the server accepts no more clients
                site.ask("GET", "/health")
    answers = {name: wait() for name, wait in waiting.items()}
    assert answers.pop("store").check(NOTHING)  # the client could not continue its transaction
    assert {name: answer.status // 100 for name, answer in answers.items()} == dict.fromkeys(
        answers, 2
    )
    assert "Traceback" not in site.ended()
    assert set(stored_texts()) == set(answers)


@pytest.mark.thorough
def test_an_open_client_transaction_does_not_prevent_the_server_from_stopping(
    start: Start, stored_texts: Callable[[], list[str]]
) -> None:
    """No client can continue a transaction, since the server accepts no more connections."""
    site = start(WAIT)
    begin = {"space": None, "arguments": [], "named": {"map": []}}
    assert site.ask("POST", "/store/v1/begin", begin | {"call": "1"}).status == 200
    blocked = site.begin("POST", "/api/memories", {"content": "create"})
    second = site.begin("POST", "/store/v1/begin", begin | {"call": "2"})
    while site.log.read_text().count("a client begins") < 2:
        assert site.ask("GET", "/health").status == 200
    site.stop()
    assert second().check(NOTHING)
    assert blocked().status == 201
    assert "for too long" not in site.ended()
    assert stored_texts() == ["create"]


@pytest.mark.thorough
def test_a_write_with_an_unknown_result_is_reported_as_in_doubt(
    start: Start, stored_texts: Callable[[], list[str]]
) -> None:
    site = start(0.3, mcp=True)
    seed = site.ask("POST", "/api/memories", {"content": "seed"}).body["id"]
    mcp_loaded(site)
    with busy(site):
        waiting = writes(site, seed)
        site.stop()
        answers = {name: wait() for name, wait in waiting.items()}
        said = {name: answer.check(NOTHING, IN_DOUBT) for name, answer in answers.items()}
    assert {said[name] for name in ("update", "turn", "mcp")} == {IN_DOUBT}
    assert said["store"] == NOTHING
    log = site.ended()
    assert "Traceback" not in log
    assert not {name for name, sentence in said.items() if sentence == NOTHING} & set(
        stored_texts()
    )


@pytest.mark.thorough
def test_a_store_client_of_a_stopping_server_learns_that_nothing_was_written(
    start: Start, environment: Mapping[str, str], tmp_path: Path
) -> None:
    site = start(0.3)
    site.ask("POST", "/api/memories", {"content": "seed"})
    elsewhere = {
        **environment,
        "MEMORY_HOME": str(tmp_path / "elsewhere"),
        "MEMORY_TOKEN": site.token,
    }
    elsewhere["MEMORY_STORE"] = f"http://127.0.0.1:{site.port}"
    command = [sys.executable, "-m", "memories", "create", "Ann likes tea", "--force"]
    with busy(site):
        run = subprocess.Popen(
            command, env=elsewhere, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while "a client begins a transaction" not in site.log.read_text():
            assert run.poll() is None
            threading.Event().wait(0.02)
        site.stop()
        _, told = run.communicate(timeout=WAIT)
    assert run.returncode == 1
    [line] = told.decode().splitlines()
    assert "the server is stopping" in line
    assert NOTHING in line
    site.ended()


@pytest.mark.thorough
def test_a_command_that_a_stopping_server_did_not_begin_runs_locally(
    start: Start,
    stored_texts: Callable[[], list[str]],
    environment: Mapping[str, str],
    tmp_path: Path,
) -> None:
    site = start(0.3)
    site.ask("POST", "/api/memories", {"content": "seed"})
    command = [sys.executable, "-m", "memories", "create", "Ann likes tea"]
    with busy(site):
        first = site.begin("POST", "/api/memories", {"content": "begun"})
        run = subprocess.Popen(command, env=dict(environment), cwd=tmp_path, stdout=subprocess.PIPE)
        while b"\nmemories_writes_waiting 0" in site.ask("GET", "/metrics").body:
            assert run.poll() is None
        site.stop()
        first().check(IN_DOUBT)
        with pytest.raises(OSError):
            while True:  # until the server has told the command that nothing was written
                site.ask("GET", "/health")
    told, _ = run.communicate(timeout=WAIT)
    assert (run.returncode, json.loads(told)["stored"]) == (0, True)
    assert stored_texts().count("Ann likes tea") == 1
    site.ended()


# --- a campaign


class Done(NamedTuple):
    """The answers to writers: the stored texts, and the keys of those that may be retried."""

    stored: list[str]
    doubtful: dict[str, str]


def over_http(site: Site, done: Done, worker: int) -> None:
    """Create memories until the server stops; workers with odd numbers send an idempotency key with
    each.
    """
    for number in range(10_000):
        content, key = f"http {worker} {number}", f"{worker}-{number}"
        headers = {"Idempotency_Key": key} if worker % 2 else {}
        answer = None
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = site.ask(
                "POST", "/api/memories", {"content": content, "force": True}, **headers
            )
        if answer is not None and answer.status == 201:
            done.stored.append(content)
            continue
        if answer is not None:
            answer.check(NOTHING, IN_DOUBT)
        if headers:
            done.doubtful[content] = key
        if answer is None:
            return


def as_a_store(site: Site, done: Done, worker: int) -> None:
    """Create memories through the server's store interface until it stops."""
    home = site.home.parent / f"elsewhere{worker}"
    given = {"MEMORY_HOME": str(home), "MEMORY_TOKEN": site.token, "EMBEDDER": "none"}
    config = load_config(
        {"store": f"http://127.0.0.1:{site.port}"}, environment=given, folder=site.home
    )
    with Memories(config=config) as memories, contextlib.suppress(StoreError):
        for number in range(10_000):
            memories.create(content := f"store {worker} {number}", force=True)
            done.stored.append(content)


def as_an_agent(site: Site, done: Done) -> None:
    """Create memories through the MCP tools until the server stops."""

    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from mcp import Client

    async def create() -> None:
        async with httpx2.AsyncClient(
            headers={"authorization": f"Bearer {site.token}"}, timeout=WAIT
        ) as asking:
            transport = streamable_http_client(
                f"http://127.0.0.1:{site.port}/mcp", http_client=asking
            )
            async with Client(transport, mode="auto") as client:
                for number in range(10_000):
                    made = await client.call_tool(
                        "create_memory", {"content": f"mcp {number}", "force": True}
                    )
                    if made.is_error:
                        return
                    done.stored.append(f"mcp {number}")

    with contextlib.suppress(
        Exception
    ):  # the SDK raises many kinds of errors if the server is gone
        asyncio.run(create())


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_no_acknowledged_write_is_lost_whenever_a_server_stops(
    seed: int, start: Start, stored_texts: Callable[[], list[str]]
) -> None:
    site, done = start(0.5, mcp=True), Done([], {})
    mcp_loaded(site)
    with ThreadPoolExecutor(16) as pool:
        runs = [pool.submit(over_http, site, done, each) for each in range(8)]
        runs += [pool.submit(as_a_store, site, done, each) for each in range(2)]
        runs.append(pool.submit(as_an_agent, site, done))
        enough = random.Random(seed).randint(20, 120)
        while len(done.stored) < enough:
            threading.Event().wait(0.005)
        site.stop()
        for run in runs:
            run.result(WAIT)
    assert "Traceback" not in site.ended()
    again = start(WAIT)
    for content, key in done.doubtful.items():
        answer = again.ask(
            "POST", "/api/memories", {"content": content, "force": True}, Idempotency_Key=key
        )
        assert answer.status in (200, 201), answer
    found = stored_texts()
    assert {*done.stored, *done.doubtful} <= set(found)
    assert all(found.count(content) == 1 for content in done.doubtful)


def test_a_write_that_ends_after_the_stop_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written: Future[Any] = Future()
    server = SimpleNamespace(preparers=SimpleNamespace(submit=lambda run: run()))

    async def ask_and_stop() -> None:
        asking = asyncio.ensure_future(
            routes._await_later(server, lambda: routes.Later(written, routes.Answer))
        )  # type: ignore[arg-type]
        await asyncio.sleep(0)
        asking.cancel()

    asyncio.run(ask_and_stop())
    written.set_result(None)
    assert caplog.records == []
