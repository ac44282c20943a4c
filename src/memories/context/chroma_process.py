"""The `chroma-mcp` process: how it is started, asked by MCP from any thread, and ended.

Nothing of the MCP SDK is loaded before the process is started.
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

from memories.context.backend import MCPError, UnsupportedEndpoint
from memories.guard.validate import shown
from memories.languages import unseen

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from mcp import Client

NAME = "chroma-mcp"
COMMAND = "CHROMA_MCP_COMMAND"  # the environment variable with the command that starts it
MAX_SAID = 500  # characters of what a program said, in an error

_NOBODY_ANSWERS = re.compile(
    r"(?:'|collections): (could not connect|connect|timed out|server disconnected|all connection|\[errno)"
)
# chroma-mcp 0.2.6 goes on when its standard input ends: the kernel is told to end it with the
# thread that started it.
_DIES_WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
)
_CLOSED = {-32000, -32001}  # MCP's codes: connection closed, request timed out

Connect = Callable[[], AbstractAsyncContextManager["Client"]]


class NotInstalled(UnsupportedEndpoint):
    """The program can't be started here; trying again does not help."""


class Unreachable(ConnectionError):
    """The process ended or does not answer."""

    timed_out = False


class Patience(NamedTuple):
    """How many seconds to wait.

    Attributes:
        start: For the process to start and shake hands.
        call: For an answer.
        stop: For the process to end.
    """

    start: float = 60.0
    call: float = 30.0
    stop: float = 10.0


class Session:
    """A running process, with an event loop in a thread of its own; any thread may call it."""

    def __init__(self, connect: Connect, patience: Patience) -> None:
        """Start it.

        Raises:
            NotInstalled: There is no such program.
            Unreachable: It did not start, or did not answer in time.
        """
        self._patience = patience
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=NAME, daemon=True)
        self._thread.start()
        self._ready: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._stop = asyncio.Event()
        self._life = asyncio.run_coroutine_threadsafe(self._live(connect), self._loop)
        atexit.register(self.close)
        either: tuple[concurrent.futures.Future[Any], ...] = (self._ready, self._life)
        concurrent.futures.wait(either, patience.start, concurrent.futures.FIRST_COMPLETED)
        if not self._ready.done():
            error = self._life.exception() if self._life.done() else None
            self.close()
            if isinstance(error, NotInstalled):
                raise error
            reason = error or f"it did not answer in {patience.start:g} seconds"
            raise Unreachable(f"{NAME} could not be started: {reason}") from error

    async def _live(self, connect: Connect) -> None:
        async with connect() as client:
            self._ready.set_result(client)
            await self._stop.wait()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        """Call a tool; return its texts.

        Raises:
            Unreachable: The process or the server does not answer.
            MCPError: It failed.
        """
        client, seconds = self._ready.result(), self._patience.call
        try:
            asked = asyncio.run_coroutine_threadsafe(
                client.call_tool(f"chroma_{tool}", dict(arguments)), self._loop
            )
            answer = asked.result(seconds)
        except concurrent.futures.TimeoutError as exc:
            asked.cancel()
            error = Unreachable(f"{NAME} did not answer in {seconds:g} seconds")
            error.timed_out = True
            raise error from exc
        except Exception as exc:
            if getattr(exc, "code", None) not in {None, *_CLOSED}:
                raise MCPError(f"{NAME} refused: {exc}") from exc
            raise Unreachable(f"{NAME} ended: {exc or type(exc).__name__}") from exc
        return _texts(answer)

    def close(self) -> None:
        """End the process, and the thread."""
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
    """Start the process, and yield the client that speaks to it."""
    command, *arguments = shlex.split(os.environ.get(COMMAND, "")) or [NAME]
    from mcp.client.stdio import stdio_client

    from mcp import Client, StdioServerParameters

    # The SDK would log, with a trace, each sentence that chroma-mcp prints among its answers.
    logging.getLogger("mcp.client.stdio").addFilter(_is_no_print)
    program = shutil.which(command)
    if program is None:
        hint = f"put it on the PATH, or set {COMMAND} to the command that starts it"
        raise NotInstalled(f"{shown(command)} can't be started: there is no such program; {hint}")
    if sys.platform == "linux" and sys.executable:
        program, arguments = sys.executable, ["-I", "-S", "-c", _DIES_WITH_US, program, *arguments]
    parameters = StdioServerParameters(command=program, args=arguments, env=environment(host, port))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            async with Client(stdio_client(parameters, errlog=said), mode="legacy") as client:
                yield client
        except Exception as exc:
            said.seek(0)
            lines = [line.strip() for line in said if line.strip()]
            raise Unreachable(
                _plain(lines[-1]) if lines else f"it ended at once: {_innermost(exc)}"
            ) from exc


def _innermost(exc: BaseException) -> BaseException:
    """Return what a group of errors comes down to."""
    return _innermost(exc.exceptions[0]) if isinstance(exc, BaseExceptionGroup) else exc


def _is_no_print(record: logging.LogRecord) -> bool:
    """Return whether a record is about something other than a line that is no answer."""
    return not str(record.msg).startswith("Failed to parse JSONRPC")


def environment(host: str, port: int) -> dict[str, str]:
    """Return the process's environment; version 0.2.6 reads CHROMA_HOST, not the documented
    CHROMA_HTTP_HOST.
    """
    quiet = {
        "CHROMA_SSL": "false",
        "CHROMA_DOTENV_PATH": os.devnull,
        "ANONYMIZED_TELEMETRY": "FALSE",
    }
    given = {name: value for name, value in os.environ.items() if name.startswith("CHROMA_")}
    where = {
        "CHROMA_HTTP_HOST": host,
        "CHROMA_HTTP_PORT": str(port),
        "CHROMA_HOST": host,
        "CHROMA_PORT": str(port),
    }
    return {**quiet, "FASTMCP_LOG_LEVEL": "ERROR", **given, "CHROMA_CLIENT_TYPE": "http", **where}


def _texts(answer: "CallToolResult") -> list[str]:
    """Return the texts of an answer.

    Raises:
        ConnectionError: It says that the Chroma server does not answer.
        MCPError: It says that the tool failed.
    """
    texts = [
        text
        for text in (getattr(part, "text", None) for part in answer.content)
        if text is not None
    ]
    if not answer.is_error:
        return texts
    reason = _plain(" ".join(texts))
    if _NOBODY_ANSWERS.search(reason.lower()):
        raise ConnectionError(f"the Chroma server does not answer: {reason}")
    raise MCPError(f"{NAME} failed: {reason}")


def _plain(text: str) -> str:
    """Return what a program said on one line, without what could act on a terminal."""
    return unseen.shown(text[:MAX_SAID], lambda _: " ")
