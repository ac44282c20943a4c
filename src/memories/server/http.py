"""Serves the application over HTTP with uvicorn, on sockets that are bound already."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import anyio
import jinja2  # noqa: F401 - pages need it, and its absence is told before the server listens
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from memories.core.urls import is_loopback
from memories.embedders import Embedder
from memories.errors import ConfigError, MemoriesError
from memories.identity import tokens
from memories.server import page_routes as pages
from memories.server.api.metrics import LOG, Gauge, Logged, Metrics
from memories.server.api.problems import encoded, failed
from memories.server.app import Options, build, principal
from memories.server.protocol import Protocol as HttpProtocol
from memories.server.warm import Warm
from memories.server.watch import Asked
from memories.server.writers import MOST_WAITING, Writers
from memories.settings import Config
from memories.stores import Store
from memories.stores.protocol import OnThisDisk
from memories.stores.records import Collection, Filter

_GRACE_SECONDS = 3  # for requests to end, and again for the writes that wait
READY_SECONDS = 1.0  # for which it is known whether the store answers


class Process(Protocol):
    """What is served; see `serve`."""

    config: Config
    store: Store
    embedder: Embedder | None
    writers: Writers
    warm: Warm
    last_at: float

    def fits(self) -> bool:
        """Return whether the store is still the one that was opened."""
        ...


class Web:
    """HTTP, as a part of a server's process."""

    def __init__(self, process: Process, asked: Asked, address: socket.socket) -> None:
        """Build the application.

        Args:
            process: What it serves.
            asked: How.
            address: The TCP socket.
        """
        host, port, *_ = address.getsockname()
        self.check(process.config, host, loopback=is_loopback(host))  # one that systemd opened is not what was asked
        self.url = _url(asked, host, port)
        name = host if is_loopback(host) else next(iter(asked.names), "127.0.0.1")  # what the guard lets in
        self.login = f"{(asked.public_url or _url(asked, name, port)).rstrip('/')}/login"
        self._process, self._tls = process, bool(asked.tls)
        self._looking: asyncio.Task[str] | None = None
        self._looked_at = 0.0
        writers = process.writers
        self.metrics = Metrics(self._asked, self._gauges())
        options = Options(
            port=port,
            hosts=asked.names,
            store=process.store,
            embedder=process.embedder,
            create=writers.create,
            submit=writers.submit,
            routes=(Route("/ready", self._ready), Route("/metrics", self._metrics), *pages.routes()),
            secure=bool(asked.tls) or (asked.public_url or "").startswith("https:"),
            issuer=asked.issuer,
            public_url=asked.public_url,
        )
        certificate, key = asked.tls or (None, None)
        app = build(process.config, options)
        self._server = _Server(
            uvicorn.Config(
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
        )
        self._server.end_streams = app.state.server.end_streams
        self._server.end_transactions = app.state.records.end
        self._server.drain = lambda: writers.close(_GRACE_SECONDS)

    def _gauges(self) -> tuple[Gauge, ...]:
        process, writers = self._process, self._process.writers
        return (
            Gauge("memories_writes_waiting", "gauge", "Writes in the queue.", lambda: writers.waiting),
            Gauge("memories_writes_total", "counter", "Writes that shared transactions.", lambda: writers.writes),
            Gauge("memories_commits_total", "counter", "Those transactions.", lambda: writers.commits),
            Gauge("memories_commands_total", "counter", "Commands answered.", lambda: process.warm.answered),
            Gauge("memories_ready", "gauge", "Whether the store answers.", lambda: float(not self._problem())),
        )

    @staticmethod
    def check(config: Config, host: str, *, loopback: bool) -> None:
        """Refuse to listen where others could come in without a token.

        Raises:
            ConfigError: There is no token.
        """
        if not loopback and not tokens.read(config.home):
            raise ConfigError(
                f"others can reach {host}, and there is no token yet; make one with: "
                "memory tokens create NAME --allow NAMESPACE:rw"
            )

    def run(self, unix: socket.socket, address: socket.socket) -> None:
        """Serve until it is told to stop; what is open then has some seconds to end."""
        sockets = [address] if self._tls else [unix, address]  # who can open the Unix socket needs no encryption
        self._server.run(sockets=sockets)

    def stop(self) -> None:
        """End, from any thread or a signal."""
        self._server.should_exit = True

    def _asked(self) -> None:
        self._process.last_at = time.monotonic()

    def _problem(self) -> str:
        """Return why requests can't be served; nothing if they can."""
        writers = self._process.writers
        if writers.problem or not self._process.fits():
            return "the store can't be used"
        if writers.waiting >= MOST_WAITING:
            return "too many writes wait"
        try:
            config = self._process.config
            self._process.store.count(Filter(Collection.MEMORY, (config.namespace,), group="00000000"))
        except MemoriesError:
            return "the store does not answer"
        try:
            if isinstance(self._process.store, OnThisDisk):
                self._process.store.rehearse()
        except MemoriesError:  # anybody may ask, so the reason is for `memory doctor`
            return "nothing can be written to the store; memory doctor says why"
        return ""

    async def _known_problem(self) -> str:
        """Return what `_problem` says: anybody may ask, so all who do in a second share one look at the store."""
        looking = self._looking
        if looking is None or (looking.done() and time.monotonic() - self._looked_at >= READY_SECONDS):
            looking = self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(looking)  # who leaves does not end it for the others

    async def _look(self) -> str:
        try:
            return await anyio.to_thread.run_sync(self._problem)
        finally:
            self._looked_at = time.monotonic()

    async def _ready(self, request: Request) -> Response:
        request.scope[LOG]["route"] = "/ready"
        problem = await self._known_problem()
        shape = {"ready": not problem, **({"problem": problem} if problem else {})}
        return Response(encoded(shape), 503 if problem else 200, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        request.scope[LOG]["route"] = "/metrics"
        try:
            (await principal(request)).require("admin")
        except Exception as exc:  # noqa: BLE001 - as for every route
            return failed(exc)
        text = await anyio.to_thread.run_sync(self.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4")


def _url(asked: Asked, host: str, port: int) -> str:
    return f"{'https' if asked.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    end_streams: Callable[[], None]
    end_transactions: Callable[[], None]
    drain: Callable[[], object]  # makes the writes that wait, refuses the rest; it may block

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for requests; first end those that would stay open for good, and after a while the queue of writes."""
        self.end_streams()
        self.end_transactions()
        draining = asyncio.get_running_loop().call_later(
            _GRACE_SECONDS, threading.Thread(target=self.drain, daemon=True).start
        )
        await super().shutdown(sockets)
        draining.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which has more to end than this."""
        yield
