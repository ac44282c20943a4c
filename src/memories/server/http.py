"""Serves the application over HTTP with uvicorn, on sockets that are already bound.

Unlike uvicorn, this module limits the size of a request's head and the time that it may take. It
also refuses absolute URLs: clients send them only to proxies, and the host in such a URL would
override the Host header.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Protocol

import anyio
import jinja2  # noqa: F401 - if it is missing, say so before the server listens
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from memories.core.urls import is_loopback
from memories.errors import ConfigError, MemoriesError
from memories.identity import tokens
from memories.server.api.middleware import Gauge, Logged, Metrics, Named
from memories.server.api.problems import json_response, problem
from memories.server.app import Options, build, principal
from memories.server.group_commit import MOST_WAITING, GroupCommit
from memories.server.pages import routes as pages
from memories.server.sockets import ServeOptions
from memories.server.warm import CommandSocket, Served
from memories.settings import Config
from memories.stores.protocol import OnThisDisk
from memories.stores.records import Collection, Filter

HEAD_SECONDS = 10.0
MAX_HEAD = 65_536
MAX_HEADERS = 100
MOST_REQUESTS = 256  # maximum number of requests handled at once
# Once this many connections are open, a new one closes the oldest that is waiting for its client.
MOST_CONNECTIONS = 512
_MOST_JOINED = 65_536  # maximum number of bytes held back until the end of an iteration


class _Joined:
    """A transport that joins all writes in one iteration of the event loop, such as a response's
    head and its body.

    Otherwise each write would be a separate system call and would wake the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send in the event loop's next iteration. If a lot of data is waiting, send now, so that
        the transport can apply back pressure.
        """
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > _MOST_JOINED:
            self._send()

    def close(self) -> None:
        """Send the pending data, then close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        data, self._waiting, self._size = b"".join(self._waiting), [], 0
        if data and not self._transport.is_closing():
            self._transport.write(data)


class HttpProtocol(HttpToolsProtocol):
    """One connection; pass this class to uvicorn as `http`."""

    _opened_at = 0.0
    _timer: asyncio.TimerHandle | None = None
    _in_head, _refused, _fed = False, False, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the head."""
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]
        self._opened_at = self.loop.time()
        self._begin()
        if len(self.connections) > MOST_CONNECTIONS:
            min(self._waiting(), key=attrgetter("_opened_at")).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and refuse a head that is too large."""
        if self._refused:
            return
        was_in_head = self._in_head
        self._fed += len(data)
        super().data_received(data)
        if was_in_head and self._in_head and not self._refused and self._fed > MAX_HEAD:
            self._refuse(431, f"the request's head is larger than {MAX_HEAD} bytes")

    def on_message_begin(self) -> None:
        """Start reading a head."""
        super().on_message_begin()
        if not self._in_head:
            self._begin()

    def on_headers_complete(self) -> None:
        """Check a request's head, and pass it on."""
        self._stop()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._refuse(400, "this server supports only HTTP/1.1")
        elif not self.url.startswith(b"/"):
            self._refuse(400, "the request must contain a path on this server, not a URL")
        elif size > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            most = f"{MAX_HEAD} bytes, or contains more than {MAX_HEADERS} headers"
            self._refuse(431, f"the head is larger than {most}")
        elif self._is_full() and self.url != b"/health":
            self._refuse(503, f"{MOST_REQUESTS} requests are being answered; try again in a second")
        elif not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk of a body."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Pass on the end of a request."""
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Refuse a request that is not HTTP."""
        self._refuse(400, "the request is not HTTP/1.1")

    def _waiting(self) -> "list[HttpProtocol]":
        """Return the connections that wait for data from their client."""
        waiting = []
        for connection in self.connections:
            assert isinstance(connection, HttpProtocol)
            if not connection._is_busy or connection.cycle.more_body:
                waiting.append(connection)
        return waiting

    def _is_full(self) -> bool:
        """Return whether too many requests are being answered.

        The number of tasks is checked first, because that is faster.
        """
        if len(self.tasks) < MOST_REQUESTS:
            return False
        return len(self.connections) - len(self._waiting()) >= MOST_REQUESTS

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _begin(self) -> None:
        self._in_head, self._fed = True, 0
        self._timer = self.loop.call_later(
            HEAD_SECONDS, self._refuse, 408, "the head did not arrive in time"
        )

    def _stop(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, detail: str) -> None:
        self._stop()
        self._refused = True
        body = bytes(problem(status, detail).body)
        wait = b"retry-after: 1\r\n" if status == 503 else b""
        kind = b"content-type: application/problem+json\r\nconnection: close\r\n"
        head = b"%s%scontent-length: %d\r\n\r\n" % (kind, wait, len(body))
        if not self.transport.is_closing():
            if not self._is_busy:  # after a response has begun, no other can follow
                self.transport.write(STATUS_LINE[status] + head + body)
            self.transport.close()


_GRACE_SECONDS = 3  # seconds for open requests to finish; queued writes then get the same time
READY_SECONDS = 1.0  # how long a response from `/ready` is reused


class Process(Served, Protocol):
    """The process that runs the server; see `serve`."""

    warm: CommandSocket
    last_at: float


class Web:
    """The part of the server process that handles HTTP."""

    def __init__(self, process: Process, options: ServeOptions, address: socket.socket) -> None:
        """Build the application.

        Args:
            process: The server process.
            options: The server's options.
            address: The TCP socket.
        """
        host, port, *_ = address.getsockname()
        # systemd may have opened a different address
        self.check(process.config, host, loopback=is_loopback(host))
        self.url = _url(options, host, port)
        # use a name that the guard accepts
        name = host if is_loopback(host) else next(iter(options.names), "127.0.0.1")
        self.login = f"{(options.public_url or _url(options, name, port)).rstrip('/')}/login"
        self._process, self._tls = process, bool(options.tls)
        self._looking: asyncio.Task[str] | None = None
        self._looked_at = 0.0
        self.metrics = Metrics(self._note_request, self._gauges)
        app = build(process.config, self._app_options(options, port))
        certificate, key = options.tls or (None, None)
        settings = uvicorn.Config(
            Logged(app, self.metrics),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=HttpProtocol,
            ws="none",
            timeout_graceful_shutdown=2 * _GRACE_SECONDS,
            timeout_keep_alive=5,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        try:
            settings.load()
        except OSError as exc:  # includes `SSLError`
            reason = getattr(exc, "reason", None) or exc.strerror
            raise ConfigError(
                f"cannot use the TLS certificate {certificate} with the key {key}: {reason}"
            ) from exc
        self._server = _Server(settings)
        self._server.end_streams = app.state.server.end_streams
        self._server.end_transactions = app.state.records.end
        self._server.group_commit = process.group_commit

    def _app_options(self, options: ServeOptions, port: int) -> Options:
        process = self._process
        return Options(
            port=port,
            hosts=options.names,
            store=process.store,
            embedder=process.embedder,
            group_commit=process.group_commit,
            routes=(
                Named("/ready", self._ready),
                Named("/metrics", self._metrics),
                *pages.routes(),
            ),
            secure=self._tls or (options.public_url or "").startswith("https:"),
            issuer=options.issuer,
            public_url=options.public_url,
        )

    def _gauges(self) -> tuple[Gauge, ...]:
        group_commit, commands = self._process.group_commit, self._process.warm.answered
        is_ready = not self._problem()
        return (
            Gauge("memories_writes_waiting", "gauge", "Writes in the queue.", group_commit.waiting),
            Gauge(
                "memories_writes_total",
                "counter",
                "Writes committed by the write queue.",
                group_commit.writes,
            ),
            Gauge(
                "memories_commits_total",
                "counter",
                "Transactions of the write queue.",
                group_commit.commits,
            ),
            Gauge("memories_commands_total", "counter", "Commands answered.", commands),
            Gauge("memories_ready", "gauge", "Whether the store answers.", float(is_ready)),
        )

    @staticmethod
    def check(config: Config, host: str, *, loopback: bool) -> None:
        """If there are no tokens, refuse to listen on an address that other machines can reach.

        Raises:
            ConfigError: There are no tokens.
        """
        if not loopback and not tokens.read(config.home):
            raise ConfigError(
                f"other machines can reach {host}, but there are no tokens yet; create one with: "
                "memory tokens create NAME --allow NAMESPACE:rw"
            )

    def run(self, unix: socket.socket, address: socket.socket) -> None:
        """Serve until `stop` is called; open requests then get a few seconds to finish."""
        # a client of the Unix socket needs no encryption
        self._server.run(sockets=[address] if self._tls else [unix, address])

    def stop(self) -> None:
        """Stop serving; threads and signal handlers may call this."""
        self._server.should_exit = True

    def _note_request(self) -> None:
        self._process.last_at = time.monotonic()

    def _problem(self) -> str:
        """Return the reason why requests can't be served; an empty string if they can."""
        group_commit = self._process.group_commit
        if group_commit.problem or not self._process.fits():
            return "the store can't be used"
        if group_commit.waiting >= MOST_WAITING:
            return "too many writes are waiting"
        try:
            config = self._process.config
            self._process.store.count(
                Filter(Collection.MEMORY, (config.namespace,), group="00000000")
            )
        except MemoriesError:
            return "the store does not answer"
        try:
            if isinstance(self._process.store, OnThisDisk):
                self._process.store.rehearse()
        except MemoriesError:  # any client may ask, so don't show the reason
            return "the store is not writable; run memory doctor to see why"
        return ""

    async def _known_problem(self) -> str:
        """Return the result of `_problem`. Requests within a second share one result, since any
        client may ask.
        """
        looking = self._looking
        age = time.monotonic() - self._looked_at
        if looking is None or (looking.done() and age >= READY_SECONDS):
            looking = self._looking = asyncio.create_task(self._find_problem())
        # a client that disconnects must not cancel the check for the others
        return await asyncio.shield(looking)

    async def _find_problem(self) -> str:
        try:
            return await anyio.to_thread.run_sync(self._problem)
        finally:
            self._looked_at = time.monotonic()

    async def _ready(self, _: Request) -> Response:
        problem = await self._known_problem()
        shape: dict[str, Any] = {"ready": not problem}
        if problem:
            shape["problem"] = problem
        return json_response(shape, 503 if problem else 200)

    async def _metrics(self, request: Request) -> Response:
        (await principal(request)).require("admin")
        text = await anyio.to_thread.run_sync(self.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4")


def _url(options: ServeOptions, host: str, port: int) -> str:
    scheme = "https" if options.tls else "http"
    is_ipv6 = ":" in host
    return f"{scheme}://[{host}]:{port}" if is_ipv6 else f"{scheme}://{host}:{port}"


class _Server(uvicorn.Server):
    end_streams: Callable[[], None]
    end_transactions: Callable[[], None]
    group_commit: GroupCommit

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the requests that would stay open forever, and wait for the others. After a grace
        period, stop the write queue too.
        """
        self.end_streams()
        self.end_transactions()
        # `close` completes the waiting writes and refuses others; it may block
        close = threading.Thread(
            target=self.group_commit.close, args=(_GRACE_SECONDS,), daemon=True
        )
        draining = asyncio.get_running_loop().call_later(_GRACE_SECONDS, close.start)
        await super().shutdown(sockets)
        draining.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which must also stop its other parts."""
        yield
