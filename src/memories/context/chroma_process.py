"""The `chroma-mcp` process: starts it, calls it over MCP from any thread, and ends it.

The MCP SDK is imported when the process is started.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.context.protocol import MCPError, UnsupportedEndpoint
from memories.guard.validate import shown
from memories.languages import make_visible

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from mcp import Client

NAME = "chroma-mcp"
COMMAND = "CHROMA_MCP_COMMAND"  # the environment variable that contains the command to start it
MAX_OUTPUT = 500  # characters of a program's output shown in an error

_SERVER_DOWN = re.compile(
    r"(?:'|collections): "
    r"(could not connect|connect|timed out|server disconnected|all connection|\[errno)"
)
# chroma-mcp 0.2.6 continues when its standard input ends. So the kernel is asked to end it with the
# thread that started it.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
)
_CLOSED = {-32000, -32001}  # MCP's codes: connection closed, request timed out

Connect = Callable[[], AbstractAsyncContextManager["Client"]]


class NotInstalled(UnsupportedEndpoint):
    """The program is missing; retrying does not help."""


class Unreachable(ConnectionError):
    """The process ended or does not answer."""

    timed_out = False


class Patience(NamedTuple):
    """Timeouts, in seconds.

    Attributes:
        start: For the process to start and complete the handshake.
        call: For an answer.
        stop: For the process to end.
    """

    start: float = 60.0
    call: float = 30.0
    stop: float = 10.0


class Session:
    """A running process, with an event loop in its own thread; any thread may call it."""

    def __init__(self, connect: Connect, patience: Patience) -> None:
        """Start the process.

        Raises:
            NotInstalled: The program is missing.
            Unreachable: The process did not start, or did not answer in time.
        """
        self._patience = patience
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=NAME, daemon=True)
        self._thread.start()
        self._ready: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._stop = asyncio.Event()
        self._life = asyncio.run_coroutine_threadsafe(self._live(connect), self._loop)
        atexit.register(self.close)
        futures: tuple[concurrent.futures.Future[Any], ...] = (self._ready, self._life)
        concurrent.futures.wait(futures, patience.start, concurrent.futures.FIRST_COMPLETED)
        if not self._ready.done():
            error = None
            if self._life.done():
                error = self._life.exception()
            self.close()
            if isinstance(error, NotInstalled):
                raise error
            reason = error or f"it did not answer in {patience.start:g} seconds"
            raise Unreachable(f"cannot start {NAME}: {reason}") from error

    async def _live(self, connect: Connect) -> None:
        async with connect() as client:
            self._ready.set_result(client)
            await self._stop.wait()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        """Call a tool; return the texts in its answer.

        Raises:
            Unreachable: The process or the server does not answer.
            MCPError: The tool failed.
        """
        client, seconds = self._ready.result(), self._patience.call
        try:
            future = asyncio.run_coroutine_threadsafe(
                client.call_tool(f"chroma_{tool}", dict(arguments)), self._loop
            )
            answer = future.result(seconds)
        except concurrent.futures.TimeoutError as exc:
            future.cancel()
            error = Unreachable(f"{NAME} did not answer in {seconds:g} seconds")
            error.timed_out = True
            raise error from exc
        except Exception as exc:
            if getattr(exc, "code", None) not in {None, *_CLOSED}:
                raise MCPError(f"{NAME} refused: {exc}") from exc
            raise Unreachable(f"{NAME} ended: {exc or type(exc).__name__}") from exc
        return _texts_of(answer)

    def close(self) -> None:
        """End the process and the thread."""
        atexit.unregister(self.close)
        if self._loop.is_closed():
            return
        if self._ready.done():
            self._loop.call_soon_threadsafe(self._stop.set)
        else:
            self._life.cancel()
        concurrent.futures.wait((self._life,), self._patience.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._patience.stop)
        if not self._thread.is_alive():
            self._loop.close()


@contextlib.asynccontextmanager
async def process(host: str, port: int) -> AsyncIterator["Client"]:
    """Start the process, and yield its client."""
    command, *arguments = shlex.split(os.environ.get(COMMAND, "")) or [NAME]
    from mcp.client.stdio import stdio_client

    from mcp import Client, StdioServerParameters

    # The SDK would log, with a trace, each line that chroma-mcp prints among its answers.
    logging.getLogger("mcp.client.stdio").addFilter(_is_about_messages)
    program = shutil.which(command)
    if program is None:
        hint = f"put it on the PATH, or set {COMMAND} to the command that starts it"
        raise NotInstalled(f"{shown(command)} can't be started: there is no such program; {hint}")
    if sys.platform == "linux" and sys.executable:
        arguments = ["-I", "-S", "-c", _DIE_WITH_PARENT, program, *arguments]
        program = sys.executable
    parameters = StdioServerParameters(command=program, args=arguments, env=environment(host, port))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            async with Client(stdio_client(parameters, errlog=output), mode="legacy") as client:
                yield client
        except Exception as exc:
            output.seek(0)
            lines = [line.strip() for line in output if line.strip()]
            reason = f"it ended immediately: {_innermost(exc)}"
            if lines:
                reason = _plain(lines[-1])
            raise Unreachable(reason) from exc


def _innermost(exc: BaseException) -> BaseException:
    """Return the first error in nested groups of errors."""
    if isinstance(exc, BaseExceptionGroup):
        return _innermost(exc.exceptions[0])
    return exc


def _is_about_messages(record: logging.LogRecord) -> bool:
    """Return False for a log record about a line that isn't an MCP message."""
    return not str(record.msg).startswith("Failed to parse JSONRPC")


def environment(host: str, port: int) -> dict[str, str]:
    """Return the environment for the process.

    Version 0.2.6 reads CHROMA_HOST, not the documented CHROMA_HTTP_HOST.
    """
    defaults = {
        "CHROMA_SSL": "false",
        "CHROMA_DOTENV_PATH": os.devnull,
        "ANONYMIZED_TELEMETRY": "FALSE",
        "FASTMCP_LOG_LEVEL": "ERROR",
    }
    inherited = {name: value for name, value in os.environ.items() if name.startswith("CHROMA_")}
    address = {
        "CHROMA_CLIENT_TYPE": "http",
        "CHROMA_HTTP_HOST": host,
        "CHROMA_HTTP_PORT": str(port),
        "CHROMA_HOST": host,
        "CHROMA_PORT": str(port),
    }
    return {**defaults, **inherited, **address}


def _texts_of(answer: "CallToolResult") -> list[str]:
    """Return the texts in an answer.

    Raises:
        ConnectionError: The Chroma server does not answer.
        MCPError: The tool failed.
    """
    texts = [text for part in answer.content if (text := getattr(part, "text", None)) is not None]
    if not answer.is_error:
        return texts
    reason = _plain(" ".join(texts))
    if _SERVER_DOWN.search(reason.lower()):
        raise ConnectionError(f"the Chroma server does not answer: {reason}")
    raise MCPError(f"{NAME} failed: {reason}")


def _plain(text: str) -> str:
    """Return a program's output on one line, without control characters."""
    return make_visible(text[:MAX_OUTPUT], lambda _: " ")
