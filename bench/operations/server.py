"""An MCP server as a child process on stdin and stdout, used through the MCP SDK without `async`."""

import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from anyio.from_thread import start_blocking_portal

if TYPE_CHECKING:  # importing the SDK takes a second
    from mcp_types import ListRootsResult

    from mcp import ClientSession

CALL_SECONDS = 90  # the first call of some systems loads a model
_WRITE_PROCESS_ID = 'echo $$ > "$0"; exec "$@"'
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")


class Refused(Exception):
    """A server answered with an error, or stopped answering."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a server is started: the command, its environment and the folder that it runs in."""

    command: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)


class Server:
    """A running server. `close` ends the server like a host; `kill` ends it like a power failure."""

    def __init__(self, start: Start, log: Path) -> None:
        """Start a server and do the handshake.

        Args:
            start: How it is started.
            log: A file for the server's standard error and process id.

        Raises:
            Refused: It did not answer.
        """
        self.folder = start.folder
        self._id_file = log.with_suffix(".pid")
        self._stack = ExitStack()
        try:
            portal = self._stack.enter_context(start_blocking_portal())
            self._session = self._stack.enter_context(
                portal.wrap_async_context_manager(_connect(start, log, self._id_file))
            )
        except BaseException as exc:
            self._stack.close()
            raise Refused(f"{start.command[0]} did not start: {exc!r}") from exc
        self._portal = portal

    def call(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool; return the texts of its answer with JSON's escapes undone.

        Raises:
            Refused: The answer is an error, or is missing.
        """
        try:
            result = self._portal.call(self._session.call_tool, tool, arguments, CALL_SECONDS)
        except Exception as exc:
            raise Refused(f"{tool}: {exc!r}") from exc
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise Refused(f"{tool}: {text[:300]}")
        return unescape(text)

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools as a model's host receives them."""
        listed = self._portal.call(self._session.list_tools)
        return [
            tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools
        ]

    @property
    def process_id(self) -> int:
        """The id of the server's process, which leads a process group of its own."""
        return int(self._id_file.read_text())

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server and its children have used."""
        return sum(sum(process.cpu_times()[:4]) for process in self._processes())

    def memory_bytes(self) -> int:
        """Return the memory of the server and its children."""
        return sum(process.memory_info().rss for process in self._processes())

    def _processes(self) -> list[psutil.Process]:
        server = psutil.Process(self.process_id)
        return [server, *server.children(recursive=True)]

    def kill(self) -> None:
        """End the server and its children with SIGKILL."""
        os.killpg(self.process_id, signal.SIGKILL)

    def close(self) -> None:
        """Close the server's stdin and wait until the server ends."""
        try:
            self._stack.close()
        except Exception as exc:  # a killed server breaks its pipes
            if not isinstance(exc, ExceptionGroup | OSError | RuntimeError):
                raise


@asynccontextmanager
async def _connect(start: Start, log: Path, id_file: Path) -> AsyncIterator["ClientSession"]:
    from mcp.client.stdio import stdio_client

    from mcp import ClientSession, StdioServerParameters

    inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    parameters = StdioServerParameters(
        command="/bin/sh",
        args=["-c", _WRITE_PROCESS_ID, str(id_file), *start.command],
        env={**inherited, **start.environment},
        cwd=start.folder,
    )
    with log.open("a") as errors:
        async with (
            stdio_client(parameters, errlog=errors) as streams,
            ClientSession(*streams, CALL_SECONDS, list_roots_callback=_list_no_roots) as session,
        ):
            await session.initialize()
            yield session


async def _list_no_roots(_context: object) -> "ListRootsResult":
    from mcp_types import ListRootsResult

    return ListRootsResult(roots=[])


def unescape(text: str) -> str:
    """Return an answer without the escapes that JSON adds to texts."""
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    return text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
