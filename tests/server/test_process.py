"""`memory serve` as a process: its messages, its shutdown, and the store that pages, API and
command share.
"""

import contextlib
import http.client
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memories.core import events
from memories.scratchpad import file as scratchpad_file

MODULE = ["-m", "memories"]
# The command, with a server without MCP, which takes a second to load.
SERVE = """
from memories.server import app
async def run(_, stop):
    await stop.wait()
app.McpOverHttp.run = run
from memories.__main__ import main
main()
"""


class Site(NamedTuple):
    """A server in its own process."""

    process: "subprocess.Popen[str]"
    port: int
    token: str
    said: list[str]

    @contextlib.contextmanager
    def open(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        sent = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            **headers,
        }
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        ) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            with connection.getresponse() as answer:
                yield answer

    def ask(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, str]:
        with self.open(path, method, body, **headers) as answer:
            return answer.status, answer.read().decode()


@pytest.fixture
def memory(
    environment: Mapping[str, str], tmp_path: Path
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return a function that runs a command that uses the server."""

    def run(
        *arguments: str, code: int | None = 0, script: list[str] = MODULE
    ) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *script, *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert code in (None, done.returncode), done.stderr
        return done

    return run


@pytest.fixture
def site(environment: Mapping[str, str], tmp_path: Path) -> Iterator[Site]:
    """A server process and its address."""
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0"]
    process = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        said = [process.stderr.readline(), process.stderr.readline()]
        port = int(said[0].rsplit(":", 1)[1])
        yield Site(process, port, (tmp_path / "h" / "server.token").read_text().strip(), said)
    finally:
        process.kill()
        process.communicate(timeout=300)


def ended(site: Site) -> str:
    """Stop the server like a supervisor; return its output since it was ready."""
    site.process.send_signal(signal.SIGTERM)
    _, said = site.process.communicate(timeout=300)
    assert site.process.returncode == 0
    return str(said)


def test_the_server_serves_pages_the_api_and_metrics(site: Site, tmp_path: Path) -> None:
    """The log names the sign-in page, but contains no token and no stored text."""
    login = f"http://127.0.0.1:{site.port}/login"
    told = (
        f"sign in at {login} with the token in {tmp_path / 'h' / 'server.token'}, or one of: "
        "memory tokens create NAME --allow NAMESPACE:rw"
    )
    assert site.said[1] == f"memory serve: {told}\n"
    made = json.loads(
        site.ask("/api/memories", "POST", {"content": "Deploys happen on Tuesdays"})[1]
    )
    status, page = site.ask("/?q=deploys")
    assert status == 200
    assert made["id"] in page
    assert site.ask("/static/page.js")[0] == 200
    assert site.ask(f"/memories/{made['id']}")[0] == 200
    with site.open("/review", Authorization="") as answer:
        assert (answer.status, answer.getheader("location")) == (303, "/login?next=%2Freview")
    assert json.loads(site.ask("/ready", Authorization="")[1]) == {"ready": True}
    assert site.ask("/metrics", Authorization="")[0] == 401
    figures = site.ask("/metrics")[1]
    assert 'memories_requests_total{method="GET",route="/memories/{id}",status="200"} 1' in figures
    assert "memories_writes_total 1" in figures
    assert site.ask(f"http://127.0.0.1:{site.port}/health")[0] == 400  # like a request to a proxy
    logged = ended(site)
    assert "deploys" not in logged.lower()
    assert made["id"] not in logged
    assert site.token not in "".join(site.said) + logged


def test_at_a_terminal_the_server_prints_a_sign_in_link(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    ours, its = pty.openpty()
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0"]
    process = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    shown = b""
    try:
        while not re.search(rb"#\S+\s", shown):
            shown += os.read(ours, 4096)
    finally:
        process.kill()
        process.wait(300)
        os.close(ours)
    token = (tmp_path / "h" / "server.token").read_text().strip()
    [link] = [word for word in shown.decode().split() if "#" in word]
    parts = urllib.parse.urlsplit(link)
    assert (parts.hostname, parts.path, parts.fragment) == ("127.0.0.1", "/login", token)


@pytest.mark.thorough
def test_the_server_exits_normally_while_a_page_listens(site: Site) -> None:
    with site.open("/api/changes") as stream:
        while not stream.readline().startswith(b"event: ready"):
            assert not stream.isclosed()
        said = ended(site)
        assert b"event: change" not in stream.read()  # a stream that breaks would raise an error
    assert "timeout graceful shutdown exceeded" not in said


@pytest.mark.thorough
def test_the_command_and_the_api_share_one_memory(
    site: Site, memory: Callable[..., Any], environment: Mapping[str, str]
) -> None:
    """They share the store, the operations log, and the scratchpad of new sessions."""
    typed = json.loads(memory("create", "Deploys happen on Tuesdays", "-n", "bob").stdout)["id"]
    sent = json.loads(
        site.ask("/api/memories?namespace=bob", "POST", {"content": "Lunch is at noon"})[1]
    )["id"]
    assert {each["id"] for each in json.loads(memory("list", "-n", "bob").stdout)["results"]} == {
        typed,
        sent,
    }
    assert (
        json.loads(site.ask("/api/memories?namespace=bob&q=deploys")[1])["results"][0]["id"]
        == typed
    )
    assert json.loads(memory("serve", "--status").stdout)["commands"] == 2
    home = Path(environment["MEMORY_HOME"])
    told = [(each["op"], each["channel"], each["outcome"]) for each in events.read(home)]
    done = [("create", "cli"), ("create", "http"), ("list", "cli"), ("search", "http")]
    assert told == [(*each, "ok") for each in done]
    assert typed in {entry.id for entry in scratchpad_file.load(home, "bob").entries}
    assert {typed, sent} == {
        each["id"]
        for each in json.loads(memory("scratchpad", "show", "-n", "bob").stdout)["results"]
    }


@pytest.mark.thorough
def test_the_callers_folder_sets_project_and_branch(
    site: Site, environment: dict[str, str]
) -> None:
    del site
    folder = Path(environment["MEMORY_HOME"]).parent / "shop"
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/topic\n")
    (git / "config").write_text('[remote "origin"]\n\turl = https://example.org/ann/shop.git\n')
    (git / "objects").mkdir()
    (git / "refs").mkdir()
    told = []
    environment["PROJECT_DETECTION"] = "true"
    for serving in (True, False):
        command = [sys.executable, *MODULE, "create", f"Deploys happen, {serving}", "--force"]
        if not serving:
            subprocess.run(
                [sys.executable, *MODULE, "serve", "--stop"],
                env=environment,
                check=True,
                timeout=300,
            )
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, check=True, timeout=300
        )
        show = [sys.executable, *MODULE, "get", json.loads(done.stdout)["id"]]
        found = json.loads(
            subprocess.run(
                show, env=environment, capture_output=True, check=True, timeout=300
            ).stdout
        )
        told.append((found["project"], found["origin"].get("branch")))
    assert told == [("example.org/ann/shop", "topic")] * 2


@pytest.mark.thorough
def test_a_public_address_without_tokens_is_refused(memory: Callable[..., Any]) -> None:
    refused = memory("serve", "--host", "0.0.0.0", code=2)
    assert "memory tokens create NAME --allow NAMESPACE:rw" in refused.stderr


def test_a_port_in_use_is_refused_in_one_sentence(memory: Callable[..., Any]) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        refused = memory("serve", "--port", str(port), code=2)
    problem = f"cannot listen on 127.0.0.1 port {port}: Address already in use"
    assert json.loads(refused.stderr)["error"] == f"{problem}; choose another with --port"


@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1", "a..b"])
def test_an_address_of_another_machine_is_refused_with_advice(
    memory: Callable[..., Any], host: str
) -> None:
    memory("tokens", "create", "ann", "--allow", "shared:r")
    refused = json.loads(memory("serve", "--host", host, "--port", "0", code=2).stderr)["error"]
    assert refused.startswith(f"cannot listen on {host} port 0: ")
    assert refused.endswith("; choose another with --host")


@pytest.mark.parametrize("content", [None, "not PEM"])
def test_a_server_without_a_usable_certificate_does_not_say_that_it_serves(
    memory: Callable[..., Any], tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "cert.pem"
    if content is not None:
        file.write_text(content)
    options = ("--tls-cert", str(file), "--tls-key", str(file))
    refused = memory("serve", "--port", "0", *options, code=2).stderr
    problem = f"cannot use the TLS certificate {file} with the key {file}: "
    assert json.loads(refused)["error"].startswith(problem)


@pytest.mark.thorough
def test_a_server_without_http_is_replaced_by_one_with_a_page(
    environment: Mapping[str, str], tmp_path: Path, memory: Callable[..., Any]
) -> None:
    memory("create", "The kettle is red")
    command = [sys.executable, "-c", SERVE, "serve", "--no-http"]
    started = {"env": environment, "cwd": tmp_path, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen(command, **started)
    assert first.stderr is not None
    assert "for the command only" in first.stderr.readline()
    second = subprocess.Popen([*command[:-1], "--port", "0"], **started)
    try:
        assert second.stderr is not None
        assert "http://127.0.0.1:" in second.stderr.readline()
        assert first.wait(300) == 0
        assert json.loads(memory("serve", "--status").stdout)["url"]
    finally:
        for process in (first, second):
            process.kill()
            process.communicate(timeout=300)


@pytest.mark.thorough
def test_a_server_whose_log_cannot_be_written_works_and_stops(
    environment: Mapping[str, str], tmp_path: Path, memory: Callable[..., Any]
) -> None:
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=full)
    try:
        while process.poll() is None:
            status = memory("serve", "--status", code=None).stdout
            if json.loads(status)["running"]:
                break
        memory("serve", "--stop")
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait(300)


@pytest.mark.thorough
def test_a_server_that_is_reported_as_stopped_no_longer_runs(
    site: Site, memory: Callable[..., Any]
) -> None:
    stopped = json.loads(memory("serve", "--stop").stdout)
    assert (stopped["stopped"], stopped["running"]) == (True, False)
    assert json.loads(memory("serve", "--status", code=1).stdout) == {"running": False}
    site.process.wait(300)


@pytest.mark.thorough
def test_a_second_server_names_the_first_and_commands_work_after_a_kill(
    site: Site, memory: Callable[..., Any]
) -> None:
    refused = memory("serve", "--port", "0").stderr
    assert f"; it is at http://127.0.0.1:{site.port}; memory serve --stop ends it" in refused
    store = site.said[0].split()[2].rstrip(",")
    refused = memory("serve", "--port", "0", "--store", store).stderr
    assert f"memory serve --stop --store {store} ends it" in refused
    site.process.kill()
    site.process.wait(300)
    assert json.loads(memory("create", "Deploys happen on Tuesdays").stdout)["stored"]
    assert json.loads(memory("serve", "--status", code=1).stdout) == {"running": False}
