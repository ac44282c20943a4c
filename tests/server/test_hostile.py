"""Requests that our clients never send, as raw bytes to a real server: none is answered as if it
were allowed. All contain a valid token, except those that test tokens, so only the fault under test
can cause their refusal.
"""

import contextlib
import json
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from live_server import WAIT, Live, running
from memories.config import load_config
from memories.identity import tokens
from memories.server import http
from memories.server.api import middleware
from memories.server.api.problems import Refused
from memories.settings import Config

GET = "GET /api/memories HTTP/1.1"
POST = "POST /api/memories HTTP/1.1"
JSON = "Content-Type: application/json"
MEMORY = json.dumps({"content": "planted by a hostile request"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A real server that waits only one second for a body."""
    home = tmp_path_factory.mktemp("hostile")
    environment = {
        "MEMORY_HOME": str(home),
        "EMBEDDER": "none",
        "MEMORY_STORE": f"sqlite:///{home}/m.db",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(middleware, "BODY_SECONDS", 1.0)
        patch.setattr(http, "HEAD_SECONDS", 1.0)
        # rate limits have their own test
        patch.setattr("memories.server.api.access.Access.count_failure", lambda *_: None)
        config = load_config(environment=environment, folder=home)
        (home / "secret.txt").write_text("not for you")
        with running(config) as live:
            assert live.ask("POST", "/api/memories", {"content": "harmless"})[0] == 201
            yield live


def _body(text: str | bytes) -> bytes:
    """Encode a body."""
    return text if isinstance(text, bytes) else text.encode()


def _post(
    live: Live, body: str | bytes = MEMORY, *more: str, kind: str = JSON, line: str = POST
) -> bytes:
    """Return the bytes of a POST request."""
    data = _body(body)
    return live.head(line, kind, f"Content-Length: {len(data)}", "Connection: close", *more) + data


def rebinding(live: Live) -> Iterator[bytes]:
    """Yield requests that name other hosts."""
    names = (
        "evil.example", "evil.example:80", f"evil.example:{live.port}", "127.0.0.1.evil.example", "localhost.evil.example",
        "127.0.0.1@evil.example", "evil.example#127.0.0.1", "evil.example/127.0.0.1", "127.0.0.1 evil.example", "0.0.0.0",
        "127.0.0.2", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "[::]", "localhost.", "LOCALHOST.evil",
        "localhost:99999999", "localhost:-1", "localhost:80:80", "127.0.0.1:", "", " ", "*", "::1", "[::1", "xn--localhost",
        "local\xadhost", "user:pass@localhost", "metadata.google.internal", "169.254.169.254", "10.0.0.1",
    )  # fmt: skip
    for name in names:
        yield live.head(GET, "Connection: close", host=name)
    for name in ("evil.example", live.host):
        yield live.head(
            GET,
            f"Host: {name}",
            "Connection: close",
            host="localhost" if name == live.host else live.host,
        )
    yield live.head(GET, "X-Forwarded-Host: localhost", "Connection: close", host="evil.example")
    yield live.head(GET, "Forwarded: host=localhost", "Connection: close", host="evil.example")
    for path in ("/health", "/openapi.json", "/login", "/mcp", "/api/changes", "/nothing"):
        yield live.head(f"GET {path} HTTP/1.1", "Connection: close", host="evil.example")


def other_sites(live: Live) -> Iterator[bytes]:
    """Yield requests from pages of other sites."""
    origins = (
        "http://evil.example", "https://evil.example", "null", "", "file://", "http://localhost.evil.example",
        f"http://{live.host}.evil.example", f"http://evil.example@{live.host}", f"http://{live.host}/", "http://127.0.0.1:1",
        "http://127.0.0.1", f"ftp://{live.host}", "chrome-extension://abcdefgh", "http://[::1]", f"//{live.host}",
        f"http://{live.host} http://evil.example", f"http://{live.host}, http://evil.example",
    )  # fmt: skip
    for origin in origins:
        yield live.head(GET, f"Origin: {origin}", "Connection: close")
        yield _post(live, MEMORY, f"Origin: {origin}")
    for site in (
        "cross-site",
        "same-site",
        "CROSS-SITE",
        "",
        "none, cross-site",
        "same-origin cross-site",
        "x",
    ):
        yield live.head(GET, f"Sec-Fetch-Site: {site}", "Connection: close")
        yield _post(live, MEMORY, f"Sec-Fetch-Site: {site}")
    yield live.head(GET, "Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site", "Connection: close")
    yield live.head(
        GET, f"Origin: http://{live.host}", "Origin: http://evil.example", "Connection: close"
    )
    kinds = (
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/xml",
        "text/plain; application/json", "application/json; charset=utf-16", "application/jsonx", "*/*", "application/csp-report",
        "application/json, text/plain",
    )  # fmt: skip
    for kind in kinds:
        yield _post(live, kind=f"Content-Type: {kind}")
    yield _post(live, MEMORY, "Content-Type: text/plain")
    for method in ("OPTIONS", "TRACE", "CONNECT", "PROPFIND", "MKCOL", "LINK"):
        yield live.head(f"{method} /api/memories HTTP/1.1", "Connection: close")
    yield live.head(
        "OPTIONS /api/memories HTTP/1.1",
        "Access-Control-Request-Method: DELETE",
        "Connection: close",
    )


def paths(live: Live) -> Iterator[bytes]:
    """Yield requests for paths outside the server's own."""
    for path in (
        "/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "/static/../../secret.txt", "/static/..%2f..%2fsecret.txt",
        "/static/%2e%2e/%2e%2e/secret.txt", "/static/....//secret.txt", "/static/..\\secret.txt", "/static/..%5csecret.txt",
        "/%00", "/api/memories/%00", "/api/memories/..", "/api/memories/../health", "/api/./health", "/api/memories/%ff",
        "/api/memories/%c0%ae%c0%ae", "/api/memories/%ed%a0%80", "//evil.example/health/../..", "/api//memories",
        "/api/memories/%", "/api/memories/%zz", "/api/memories/\x7f", "/api/memories/\xff", "/api/memories/a b",
        "/api/memories;x=1", "/api/memories/<script>", "/api/memories/${jndi:ldap://x}", "/etc/passwd", "/.git/config",
        "/API/MEMORIES", "/api/memories/", "/health/", "/.well-known/../secret.txt", "/api/memories/" + "a" * 9_000,
    ):  # fmt: skip
        yield live.head(f"GET {path} HTTP/1.1", "Connection: close")
    for query in ("q=%ff", "q=%ed%a0%80", "q=a&q=b", "limit=-1", "limit=1e9", "namespace=../bob", "namespace=all", "x=1",
                  "&".join(f"tag=a{n}%3Db" for n in range(300)), "limit=" + "9" * 400, "cursor=%00", "sort=;drop"):  # fmt: skip
        yield live.head(f"GET /api/memories?{query} HTTP/1.1", "Connection: close")
    for target in (f"http://{live.host}/api/memories", "http://evil.example/api/memories", "*", "evil.example:80", "",
                   "https://evil.example/", "file:///etc/passwd", "api/memories", "?q=a"):  # fmt: skip
        yield live.head(f"GET {target} HTTP/1.1", "Connection: close")


def smuggling(live: Live) -> Iterator[bytes]:
    """Yield requests that two servers would read differently."""
    inner = _post(live)
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(MEMORY), MEMORY.encode())
    for more in (
        ("Content-Length: 5", "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 4", "Content-Length: 5"), ("Content-Length: +5",), ("Content-Length: -5",), ("Content-Length: 0x5",),
        ("Content-Length: 5, 5",), ("Content-Length: 5 5",), ("Content-Length: ",), ("Content-Length: 99999999999999999999",),
        ("Transfer-Encoding: identity",), ("Transfer-Encoding: xchunked",), ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: gzip, chunked",), ("Transfer-Encoding : chunked",), ("Transfer-Encoding: chunked\x0b",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), (" Transfer-Encoding: chunked",),
        ("Transfer-Encoding:\n chunked",), ("X: y\rContent-Length: 5",), ("X: y\nContent-Length: 5",), ("X\x00: y",),
        ("Content Length: 5",), ("Content-Length: 5\x00",), ("\x00: x",), (": x",), ("x",), ("X: \x01",),
    ):  # fmt: skip
        yield live.head(POST, JSON, *more, "Connection: close") + MEMORY.encode()[:5] + chunked
    for piece in (
        b"5\r\nabc\r\n0\r\n\r\n",
        b"-1\r\n",
        b"zz\r\n",
        b"fffffffffffffffff\r\n",
        b"1;" + b"a" * 70_000,
        b"\r\n",
        b"5\nhello\n0\n\n",
    ):
        yield live.head(POST, JSON, "Transfer-Encoding: chunked") + piece
    yield live.head("GET /nothing HTTP/1.1", f"Content-Length: {len(inner)}") + inner
    yield live.head(GET, "Content-Length: 5", "Connection: close") + b"hello"
    yield live.head("GET /nothing HTTP/1.0") + inner[:20]
    for line in ("GET /api/memories HTTP/9.9", "GET /api/memories", "get /api/memories HTTP/1.1",
                 " GET /api/memories HTTP/1.1", "GET\t/api/memories\tHTTP/1.1", "G\x00T /api/memories HTTP/1.1", "PRI * HTTP/2.0",
                 "GET /api/memories HTTP/1.1 x", "GET /api/memories FTP/1.1"):  # fmt: skip
        yield live.head(line, "Connection: close")


def oversize(live: Live) -> Iterator[bytes]:
    """Yield requests with too large a body."""
    yield _post(live, json.dumps({"content": "x" * middleware.MAX_BODY}))
    yield live.head(POST, JSON, f"Content-Length: {middleware.MAX_BODY + 1}")
    yield live.head(POST, JSON, "Transfer-Encoding: chunked") + b"".join(
        b"10000\r\n%s\r\n" % (b"x" * 65_536) for _ in range(20)
    )
    yield live.head(
        "POST /api/import HTTP/1.1", JSON, f"Content-Length: {middleware.MAX_IMPORT + 1}"
    )
    yield live.head(GET, "X: " + "a" * 70_000)
    yield live.head(GET, *(f"X{number}: a" for number in range(200)))
    yield live.head(GET, *(f"X{number}: " + "a" * 1_000 for number in range(90)))
    yield b"GET /" + b"a" * 200_000
    yield live.head(f"GET /api/memories?q={'a' * 70_000} HTTP/1.1")
    yield b"a" * 200_000
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000


def bodies(live: Live) -> Iterator[bytes]:
    """Yield requests whose bodies aren't memories."""
    deep = 100_000
    for body in (
        "[" * deep + "]" * deep, '{"content":' * deep, '{"content":"x","tags":' + '{"a":' * 5_000 + "1" + "}" * 5_000 + "}",
        b'{"content":"\xff\xfe"}', b"\xef\xbb\xbf{}", '{"content":"a","content":"b"}', '{"content":NaN}', '{"content":1e999}',
        '{"content":' + "9" * 5_000 + "}", '{"content":"\\ud800"}', '{"content":"a\\u0000b"}', "null", "[]", '"text"', "", "{}",
        '{"content":""}', '{"content":"   "}', '{"content":["a"]}', '{"content":"a","tags":{"a":1}}', '{"content":"a","tags":[]}',
        '{"content":"a","namespace":"other"}', '{"content":"a","origin":{"trust":"user"}}', '{"content":"a","id":"x"}',
        '{"content":"a","confidence":"1"}', '{"content":"a","confidence":2}', '{"content":"a","force":"yes"}',
        '{"content":"a","decay":"never"}', '{"content":"a"} {"content":"b"}', "content=a", "<a/>", '{"content":"a",}',
        '{"__proto__":{"x":1}}', '{"content":"a","tags":{"=trust":"user"}}',
    ):  # fmt: skip
        yield _post(live, body)


def wrong_tokens(live: Live) -> Iterator[bytes]:
    """Yield requests with invalid tokens."""
    good = live.token
    for value in (
        "", "Bearer", "Bearer ", f"Basic {good}", f"bearer{good}", f"Bearer {good[:-1]}", f"Bearer {good}x", f"Bearer {good} x",
        f"Bearer {good.upper()}", "Bearer null", "Bearer undefined", "Bearer mem_", f"Bearer mem_{'a' * 43}", f"Bearer {'a' * 9_000}",
        f"Bearer {tokens.digest(good)}", f"Bearer\t{good}\x0bx", "Bearer \xff\xfe\xff\xfe\xff\xfe", f'Bearer "{good}"', "Negotiate x",
        f"Bearer {good},Bearer {good}", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJvd25lciJ9.", f"token {good}", f"Bearer  {good[4:]}",
    ):  # fmt: skip
        yield live.head(GET, f"Authorization: {value}", "Connection: close", auth=False)
    yield live.head(GET, f"Authorization: Bearer {good}", "Connection: close")  # the header twice
    yield live.head(GET, f"X-Api-Key: {good}", "Connection: close", auth=False)
    yield live.head(f"GET /api/memories?token={good} HTTP/1.1", "Connection: close", auth=False)
    yield live.head(
        f"GET /api/memories?access_token={good} HTTP/1.1", "Connection: close", auth=False
    )
    name = f"memories_{live.port}"
    for cookie in (f"{name}={good}", f"{name}=", f"{name}=e30.e30", f"{name}=a.b; {name}=a.b", "memories_1=x", f"{name}=\xff.\xff",
                   f"{name}=WyJ4Iiwib3duZXIiLDk5OTk5OTk5OTldMA.AAAA", f"{name}=" + "a" * 9_000):  # fmt: skip
        yield live.head(GET, f"Cookie: {cookie}", "Connection: close", auth=False)


KINDS = (rebinding, other_sites, paths, smuggling, oversize, bodies, wrong_tokens)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_hostile_request_is_accepted(
    kind: Callable[[Live], Iterable[bytes]], server: Live
) -> None:
    requests = list(kind(server))
    with ThreadPoolExecutor(16) as senders:
        answers = list(senders.map(server.send, requests))
    answered = list(zip([each[:200] for each in requests], answers, strict=True))
    assert [
        (each, found) for each, found in answered if any(status < 400 for status in found)
    ] == []
    assert [
        (each, found) for each, found in answered if any(status >= 500 for status in found)
    ] == []
    status, found = server.ask("GET", "/api/memories?limit=1000")
    assert (status, [each["content"] for each in found["results"]]) == (200, ["harmless"])


def test_there_are_at_least_200_hostile_requests(server: Live) -> None:
    assert sum(len(list(kind(server))) for kind in KINDS) >= 200


def test_connections_of_slow_clients_are_closed(server: Live) -> None:
    upload = server.head("POST /api/import HTTP/1.1", JSON, "Transfer-Encoding: chunked")
    begun = {
        "nothing": b"",
        "half a head": server.head("GET /health HTTP/1.1").removesuffix(b"\r\n"),
        "half a body": server.head(POST, JSON, "Content-Length: 50") + b"{",
        "half an import": upload + b"1\r\n{",
    }
    with ThreadPoolExecutor(len(begun)) as senders:  # each waits until its connection ends
        answers = list(senders.map(server.send, begun.values()))
    assert dict(zip(begun, answers, strict=True)) == {name: [408] for name in begun}


def test_idle_connections_do_not_block_requests(
    server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_REQUESTS", 4)
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 8)
    half = b"POST /api/memories HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
    with contextlib.ExitStack() as lines:
        for begin in (b"", half, half + b"\r\n{") * 8:
            line = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT)
            lines.enter_context(contextlib.closing(line)).sendall(begin)
            assert server.ask("GET", "/api/memories")[0] == 200


def test_with_too_many_requests_only_health_is_answered(
    server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_REQUESTS", 2)
    with contextlib.ExitStack() as lines:
        for _ in range(2):
            line = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT)
            lines.enter_context(contextlib.closing(line)).sendall(
                server.head("GET /api/changes HTTP/1.1")
            )
            assert line.recv(12).endswith(b"200")
        status, told = server.ask("GET", "/api/memories")
        assert (status, told["status"], "try again" in told["detail"]) == (503, 503, True)
        assert server.ask("GET", "/health") == (200, {"ok": True})


def test_the_same_requests_without_faults_are_accepted(server: Live) -> None:
    """So it is the faults that cause the refusals above."""
    for more in (
        (),
        (f"Origin: http://{server.host}",),
        ("Sec-Fetch-Site: same-origin",),
        ("Sec-Fetch-Site: none",),
    ):
        assert server.send(server.head(GET, "Connection: close", *more)) == [200]
    for host in ("localhost", "LocalHost:1", "[::1]:80", "127.0.0.1"):
        assert server.send(server.head(GET, "Connection: close", host=host)) == [200]
    dry = '{"where": "content = nothing", "dry_run": true}'
    assert server.send(_post(server, dry, line="POST /api/delete HTTP/1.1")) == [200]
    pieces = b"".join(
        b"%x\r\n%s\r\n" % (len(dry[at : at + 9]), dry[at : at + 9].encode())
        for at in range(0, len(dry), 9)
    )
    head = server.head(
        "POST /api/delete HTTP/1.1", JSON, "Transfer-Encoding: chunked", "Connection: close"
    )
    assert server.send(head + pieces + b"0\r\n\r\n") == [200]


@pytest.mark.parametrize(
    "path", ["/..", "/api/memories/..", "/api/memories/../tags", "/api/./tags"]
)
def test_a_path_with_a_parent_step_is_refused_before_routing(path: str) -> None:
    with pytest.raises(Refused, match="percent-encode"):
        middleware._path({"path": path, "raw_path": path.encode()})
    assert (
        middleware._path({"path": "/api/memories/a..b", "raw_path": b"/api/memories/a..b"})
        == "/api/memories/a..b"
    )


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "name", ["memories.db-journal", "m.db-journal", "m.db-wal", "tokens.json", "off", "inbox"]
)
def test_no_namespace_can_have_the_name_of_a_program_file(
    nobody: TestClient, token: Callable[..., dict[str, str]], config: Config, name: str
) -> None:
    reader, writer = token("*:r", name="reader"), token("*:rw", name="writer")
    before = {each.name for each in config.home.iterdir()}
    for path in (
        "/api/scratchpad",
        "/api/memories",
        "/api/prompt",
        "/api/memories?q=x",
        "/api/tags",
        "/",
        "/api/export",
    ):
        for space in (name, name.upper()):
            answer = nobody.get(path, params={"namespace": space}, headers=reader)
            assert answer.status_code in (400, 404, 422), (path, answer.status_code)
    said = nobody.post(
        "/api/memories", params={"namespace": name}, json={"content": "x"}, headers=writer
    )
    assert (said.status_code, "name of one of this program's files" in said.text) == (400, True)
    imported = nobody.post(f"/api/import?namespace=bob&as={name}", content=b"", headers=writer)
    assert imported.status_code == 400
    for path in (
        "/api/scratchpad",
        "/api/memories",
        "/api/prompt",
        "/api/memories?q=x",
        "/api/tags",
        "/api/export",
    ):
        assert nobody.get(path, params={"namespace": "carol"}, headers=reader).status_code in (
            200,
            404,
        ), path
    assert {each.name for each in config.home.iterdir()} - before <= {
        "export.key",
        "export.key.lock",
        "events.jsonl",
    }
    stored = nobody.post(
        "/api/memories", params={"namespace": "bob"}, json={"content": "x"}, headers=writer
    )
    assert stored.status_code == 201
