"""ASGI middleware: a guard that checks each request before it is routed, the request log, and the
request counts.
"""

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memories.server.api.problems import Refused, error_response, stopping_response

# key in the scope for the values that routes add to the log: the path and the token's id
LOG = "memories.log"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


class Gauge(NamedTuple):
    """A number to show in addition to the counts of requests."""

    name: str
    kind: str
    help: str
    value: float


class Metrics:
    """Counts requests; `text` returns the counts for Prometheus."""

    def __init__(
        self, on_request: Callable[[], object], gauges: Callable[[], Sequence[Gauge]]
    ) -> None:
        """Start all counts at 0.

        Args:
            on_request: Called for each request.
            gauges: Returns additional numbers to show.
        """
        self._gauges, self._on_request = gauges, on_request
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, int], int] = {}
        # for each route: the number of requests within each bound of `_BUCKETS`, the total number,
        # and the total seconds
        self._seconds: dict[str, list[float]] = {}

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._on_request()
        with self._lock:
            key = method, route, status
            self._counts[key] = self._counts.get(key, 0) + 1
            histogram = self._seconds.setdefault(route, [0.0] * (len(_BUCKETS) + 2))
            for index, bound in enumerate(_BUCKETS):
                if seconds <= bound:
                    histogram[index] += 1
            histogram[-2] += 1
            histogram[-1] += seconds

    def text(self) -> str:
        """Return all metrics in Prometheus's text format, version 0.0.4."""
        lines = [
            "# HELP memories_requests_total HTTP requests.",
            "# TYPE memories_requests_total counter",
        ]
        with self._lock:
            for (method, route, status), count in sorted(self._counts.items()):
                labels = _labels({"method": method, "route": route, "status": str(status)})
                lines.append(f"memories_requests_total{labels} {count}")
            lines += [
                "# HELP memories_request_seconds Time to answer.",
                "# TYPE memories_request_seconds histogram",
            ]
            for route, histogram in sorted(self._seconds.items()):
                for bound, total in zip((*map(str, _BUCKETS), "+Inf"), histogram, strict=False):
                    labels = _labels({"route": route, "le": bound})
                    lines.append(f"memories_request_seconds_bucket{labels} {total:g}")
                labels = _labels({"route": route})
                lines.append(f"memories_request_seconds_count{labels} {histogram[-2]:g}")
                lines.append(f"memories_request_seconds_sum{labels} {histogram[-1]:.6f}")
        for gauge in self._gauges():
            lines += [f"# HELP {gauge.name} {gauge.help}", f"# TYPE {gauge.name} {gauge.kind}"]
            lines.append(f"{gauge.name} {gauge.value:g}")
        return "\n".join(lines) + "\n"


class _Lines:
    """Writes lines to standard error. It writes only once per iteration of the event loop, since
    each write releases Python's global lock, and other threads may then hold it for a while. At a
    terminal it writes nothing, because the lines would scroll the link to the page out of sight.
    """

    def __init__(self) -> None:
        self._waiting: list[str] = []

    def __call__(self, line: str) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting.append(line)

    def _write(self) -> None:
        lines, self._waiting = self._waiting, []
        if not sys.stderr.isatty():
            sys.stderr.write("".join(f"{line}\n" for line in lines))


class Logged:
    """Middleware that counts each request and logs it as one line of JSON."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, write: Callable[[str], object] | None = None
    ) -> None:
        self._app, self._metrics = app, metrics
        self._write = write or _Lines()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # 499 means that the client disconnected before a response began
        start, status = time.perf_counter(), 499
        entries: dict[str, Any] = {}
        scope[LOG] = entries

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - start
            route = str(entries.get("route", "other"))
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.note(method, route, status, seconds)
            line = {
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "method": method,
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 1),
                "token": entries.get("token"),
            }
            self._write(json.dumps(line))


class Named(Route):
    """A route that appears under its path in the log and the counts."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope.get(LOG, {})["route"] = self.path
        await super().handle(scope, receive, send)


def allowed_methods(request: Request) -> list[str]:
    """Return the methods that routes support for a request's path."""
    routes = [route for route in request.app.routes if isinstance(route, Named)]
    methods = [
        route.methods or () for route in routes if route.path_regex.match(request.scope["path"])
    ]
    return sorted(set().union(*methods))


def _labels(values: Mapping[str, str]) -> str:
    pairs = []
    for name, value in values.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}"


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY = 1_048_576
MAX_IMPORT = 268_435_456
MAX_STORE = 67_108_864  # enough for a batch of records with their vectors
BODY_SECONDS = 10.0  # maximum seconds for a body or, if it is streamed, for each chunk
SAFE = frozenset({"GET", "HEAD"})
READS = frozenset(
    "scan groups candidates matches read values count labels days used vectors info refs".split()
)
# maximum body sizes by path prefix
STREAMED: Mapping[str, int] = {"/api/import": MAX_IMPORT, "/store/v1/": MAX_STORE}
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9](?:[a-z0-9._-]{0,252}[a-z0-9])?)(?::(\d{1,5}))?")
_PATH = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_ONCE = frozenset(
    b"host origin sec-fetch-site content-type content-length authorization "
    b"if-match idempotency-key transfer-encoding last-event-id mcp-session-id".split()
)
_JSON = ("application/json", "application/x-ndjson")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


def _check_request(scope: Scope, hosts: Container[str]) -> None:
    """Refuse a request that our clients would never send.

    Args:
        scope: The request.
        hosts: The accepted host names, without a port.

    Raises:
        Refused: 400, 403, 413, 415 or 421.
    """
    headers = _single(scope["headers"])
    host = headers.get(b"host", "").lower()
    match = _HOST.fullmatch(host)
    if match is None:
        raise Refused(400, "the request needs exactly one Host header that names this server")
    if match[1] not in hosts:
        raise Refused(
            421, "this server does not answer to that host name; allow it with --host-name"
        )
    if headers.get(b"sec-fetch-site", "same-origin").lower() not in ("same-origin", "none"):
        raise Refused(403, "this request comes from another site; open this server's own page")
    origin = headers.get(b"origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        raise Refused(403, "this request comes from another site (Origin)")
    _check_body(scope, headers)


def _single(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """Return the headers that are checked here. Refuse a request in which one of them occurs twice,
    because its meaning would be ambiguous.
    """
    single: dict[bytes, str] = {}
    for name, value in headers:
        if name in _ONCE:
            if name in single:
                raise Refused(400, f"the header {name.decode()} occurs twice; send it once")
            single[name] = value.decode("latin-1").strip()
    return single


def _check_body(scope: Scope, headers: Mapping[bytes, str]) -> None:
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None and (b"content-length" in headers or encoding.lower() != "chunked"):
        raise Refused(
            400,
            "the request does not clearly state where its body ends",
            connection="close",
        )
    length = headers.get(b"content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Refused(400, "Content-Length is not a number", connection="close")
    if int(length) > limit_of(scope):
        raise _too_large(limit_of(scope))
    if scope["method"] in SAFE:
        if int(length) or encoding is not None:
            raise Refused(400, "a read request must not have a body", connection="close")
        return
    kind, _, parameter = headers.get(b"content-type", "").lower().partition(";")
    is_empty = length == "0" and encoding is None
    is_json = kind.strip() in _JSON or (is_empty and not kind)
    if not is_json or parameter.strip() not in ("", "charset=utf-8"):
        raise Refused(415, "send JSON, in UTF-8: Content-Type: application/json")


def limit_of(scope: Scope) -> int:
    """Return the maximum body size for a request."""
    for prefix, limit in STREAMED.items():
        if scope["path"].startswith(prefix):
            return limit
    return MAX_BODY


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the body is larger than the limit of {limit} bytes", connection="close")


class Guard:
    """Passes valid requests on, limits how large and how slow bodies may be, and adds headers to
    every response.

    The guard covers the pages, the API and MCP. It leaves the path percent-encoded, so that a `/`
    in an id does not separate segments. The module `access` checks rights.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        """Wrap an application; accept the loopback names and `hosts`, which are given without
        ports.
        """
        self._app = app
        self._hosts = frozenset({*LOOPBACK, *map(str.lower, hosts)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                present = {name.lower() for name, _ in message["headers"]}
                missing = [header for header in HEADERS if header[0] not in present]
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        try:
            scope = {**scope, "path": _path(scope)}
            _check_request(scope, self._hosts)
            await self._app(scope, _bound_body(receive, scope), answer)
        except asyncio.CancelledError:  # the server is stopping and won't wait for the response
            if not started:
                await stopping_response(in_doubt=not _is_read(scope))(scope, receive, answer)
        except Exception as exc:  # noqa: BLE001 - every error becomes a response; unexpected ones are also logged
            problem = error_response(exc, scope)
            if not started:
                await problem(scope, receive, answer)


def _is_read(scope: Scope) -> bool:
    """Return whether a request changes nothing, so that its outcome is never in doubt."""
    path = scope["path"]
    return (
        scope["method"] in SAFE
        or path in ("/api/context", "/login")
        or path.removeprefix("/store/v1/") in READS
    )


def _path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    if not _PATH.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
        raise Refused(400, "the path contains characters that are not allowed; percent-encode them")
    return path


def _bound_body(receive: Receive, scope: Scope) -> Receive:
    """Return a receiver that raises an error if the body is too large or arrives too slowly."""
    limit = limit_of(scope)
    is_streamed = limit != MAX_BODY
    size, is_complete, until = 0, False, 0.0

    async def receive_piece() -> Message:
        nonlocal size, is_complete, until
        until = until or asyncio.get_running_loop().time() + BODY_SECONDS
        if is_complete:  # the only message that can follow is that the client disconnected
            return await receive()
        try:
            async with asyncio.timeout(BODY_SECONDS) if is_streamed else asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise Refused(408, "the body did not arrive in time", connection="close") from None
        size += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
        return message

    return receive_piece
