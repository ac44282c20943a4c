"""A server that uvicorn runs in a thread, on a local port, so that tests can send it raw bytes."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette

from memories.identity import tokens
from memories.server.app import McpOverHttp, Options, build
from memories.server.http import HttpProtocol
from memories.settings import Config

WAIT = 60.0


class Live:
    """A running server, and the application in it."""

    def __init__(self, port: int, token: str, app: Starlette) -> None:
        self.port, self.token, self.app = port, token, app
        self.host = f"127.0.0.1:{port}"
        self.url = f"http://{self.host}"

    def head(self, line: str, *more: str, host: str | None = None, auth: bool = True) -> bytes:
        """Return the head of a request, with a valid host and token unless said otherwise."""
        lines = [line, f"Host: {self.host if host is None else host}"] if host != "" else [line]
        lines += [f"Authorization: Bearer {self.token}"] if auth else []
        return ("\r\n".join([*lines, *more]) + "\r\n\r\n").encode("latin-1")

    def send(self, data: bytes) -> list[int]:
        """Send bytes; return the status of every answer until the server closes the connection."""
        with contextlib.closing(
            socket.create_connection(("127.0.0.1", self.port), timeout=WAIT)
        ) as line:
            with contextlib.suppress(OSError):  # it may have closed the connection early
                line.sendall(data)
            return statuses(line)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Send one proper request; return the status and the JSON."""
        data = b"" if body is None else json.dumps(body).encode()
        more = [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            more += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        with contextlib.closing(
            socket.create_connection(("127.0.0.1", self.port), timeout=WAIT)
        ) as line:
            line.sendall(self.head(f"{method} {path} HTTP/1.1", "Connection: close", *more) + data)
            answer = everything(line)
        first, _, rest = answer.partition(b"\r\n\r\n")
        return int(first.split()[1]), json.loads(rest) if rest else None


def everything(line: socket.socket) -> bytes:
    """Return all bytes that arrive until the connection ends."""
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := line.recv(65_536):
            pieces.append(piece)
    return b"".join(pieces)


def statuses(line: socket.socket) -> list[int]:
    """Return the status of each answer on a connection."""
    return [int(part.split()[0]) for part in everything(line).split(b"HTTP/1.1 ")[1:]]


class Serving(uvicorn.Server):
    """Ends streams before it waits for connections, as `memory serve` does."""

    ending: Callable[[], None]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        self.ending()
        await super().shutdown(sockets)


@contextlib.contextmanager
def without_mcp() -> Iterator[None]:
    """Leave MCP out of servers that start in this process, since building its tools takes longer
    than most tests.
    """

    async def run(_: McpOverHttp, stop: asyncio.Event) -> None:
        await stop.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(McpOverHttp, "run", run)
        yield


@contextlib.contextmanager
def running(config: Config, options: Options | None = None, **settings: Any) -> Iterator[Live]:
    """Run a server during the block."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    app = build(config, (options or Options())._replace(port=port))
    given = {
        "http": HttpProtocol,
        "ws": "none",
        "log_level": "critical",
        "loop": "asyncio",
        "timeout_keep_alive": 2,
    }
    server = Serving(uvicorn.Config(app, timeout_graceful_shutdown=3, **(given | settings)))
    server.ending = app.state.server.end_streams
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            uvicorn.server, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": _short_sleep})
        )
        thread.start()
        until = time.monotonic() + WAIT
        while not server.started and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        if not server.started:
            raise AssertionError("the server did not start")
        try:
            yield Live(port, tokens.own(config.home), app)
        finally:
            server.should_exit = True
            thread.join(WAIT)
            listening.close()


async def _short_sleep(seconds: float) -> None:
    """Sleep a tenth of the time: uvicorn checks only every 0.1 s whether it should stop."""
    await asyncio.sleep(seconds / 10)
