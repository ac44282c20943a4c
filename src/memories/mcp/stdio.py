"""How `memory mcp` runs: over standard input and output, with a model that loads while words
answer.
"""

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Self

import anyio
from mcp.server import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from memories.embedders import Embedder, open_embedder
from memories.errors import EmbedderError, InvalidInput
from memories.guard.validate import read_json
from memories.identity.place import here
from memories.mcp.server import UNREADABLE, server
from memories.memories import Memories
from memories.settings import Config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# seconds that a question waits for the model, which mostly needs less, before words answer it
PATIENCE = 0.5
LONGER = 10.0  # that it waits when words find nothing
AGAIN_SECONDS = 60.0  # after which a model that could not be loaded is tried again
# that calls still have when the client says no more; none waits longer for a store
LEAVING_SECONDS = 60.0
LAST_SECONDS = 2.0  # after which what can't even be refused is given up
STILL_LOADING = (
    "found by words only, the model is loading; ask again in a second to search by meaning too"
)
NOT_LOADED = "found by words only: {}"

_LONE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_PARTS = re.compile(
    r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]'
)  # texts, the last of which may not end, and brackets
_ID = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\["\\/bfnrt]){0,200}"|-?\d{1,18})\s*[,}]')
_ONE = "send one JSON-RPC message a line"
_ENDLESS = ("subscriptions/listen",)  # is answered when it is cancelled
_DEEP = 100  # brackets in a line, from which it is looked at whether the SDK can read it
_logger = logging.getLogger(__name__)


def serve(config: Config, *, shared: bool = True, read_only: bool = False) -> None:
    """Serve one client until it leaves."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="memory mcp: %(message)s")
    if config.sources["store"] == ".env":
        _logger.warning("the store is the one that .env in the working folder names")
    if read_only:
        config = config._replace(count_accesses=False, reinforce_on_retrieval=False)
    embedder, place = open_embedder(config.embedder, config), here(config)
    with (
        Memories(
            config=config, shared=shared, embedder=embedder, channel="mcp", place=place
        ) as memories,
        Memories(
            config=config, shared=shared, embedder="none", channel="mcp", place=place
        ) as words,
    ):
        built = server(memories, Loading(memories, words, embedder).ready, read_only=read_only)
        failures: list[OSError] = []
        try:
            anyio.run(_run, built)  # also if it fails, after the calls that have begun
        except* BrokenPipeError:
            pass  # the client has left
        except* OSError as exc:
            failures = [each for each in exc.exceptions if isinstance(each, OSError)]
    for failure in failures:
        raise failure  # an answer could not be written: one sentence, as for any command


class Waiting:
    """The requests that were read and are not answered yet.

    Attributes:
        is_over: Every request has its answer, if only a refusal: one that comes later is not sent.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._requests: dict[str, tuple[int | str, int]] = {}
        self._none = anyio.Event()
        self._none.set()

    def read(self, line: str) -> None:
        """Note a message of the client: a request waits for its answer, and a cancelled one has
        none.
        """
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            cancelled = (message.get("params") or {}).get("requestId")
            self._forget(str(cancelled), every=True)
        elif "method" in message and "id" in message and message["method"] not in _ENDLESS:
            known = self._requests.get(str(message["id"]), (message["id"], 0))
            self._requests[str(message["id"])] = (message["id"], known[1] + 1)
            self._none = anyio.Event() if self._none.is_set() else self._none

    def written(self, message: Any) -> None:
        """Note a message of ours: an answer is waited for no longer."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._forget(str(message.id))

    def _forget(self, name: str, *, every: bool = False) -> None:
        request, count = self._requests.get(name, (name, 0))
        if count > 1 and not every:
            self._requests[name] = (request, count - 1)
        else:
            self._requests.pop(name, None)
        if not self._requests:
            self._none.set()

    async def end(self) -> list[int | str]:
        """Return what is not answered when all is, or after `LEAVING_SECONDS`."""
        with anyio.move_on_after(LEAVING_SECONDS):
            await self._none.wait()
        return [request for request, count in self._requests.values() for _ in range(count)]


class Answers:
    """The stream that answers are written to, which tells what was answered."""

    def __init__(self, stream: Any, waiting: Waiting) -> None:
        self._stream, self._waiting = stream, waiting

    async def send(self, item: SessionMessage) -> None:
        """Write a message, unless all is answered."""
        if self._waiting.is_over:
            return
        await self._stream.send(item)
        self._waiting.written(item.message)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Loading:
    """A model that loads in the background."""

    def __init__(self, memories: Memories, words: Memories, embedder: Embedder | None) -> None:
        """Begin to load.

        Args:
            memories: Searches with the model.
            words: Searches the same store without it.
            embedder: The model.
        """
        self._memories, self._words, self._embedder = memories, words, embedder
        self._done = threading.Event()
        self._failure = ""
        self._again_at = 0.0
        self._begin()

    def ready(self, longer: bool) -> tuple[Memories, str]:
        """Return what can search now, and what a model should know of that; `longer` waits `LONGER`
        for the model.
        """
        if not self._done.wait(LONGER if longer else PATIENCE):
            return self._words, STILL_LOADING
        if not self._failure:
            return self._memories, ""
        if time.monotonic() > self._again_at:
            self._begin()
        return self._words, NOT_LOADED.format(self._failure)

    def _begin(self) -> None:
        self._again_at = time.monotonic() + AGAIN_SECONDS
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        try:
            if self._embedder is not None:
                self._embedder.embed("ready")
            self._failure = ""
        except EmbedderError as exc:
            self._failure = str(exc)
            _logger.warning("%s", exc)
        finally:
            self._done.set()


async def _run(built: MCPServer) -> None:
    given = anyio.wrap_file(TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace"))
    waiting = Waiting()

    async def refuse(error: JSONRPCError) -> None:
        await answers.send(SessionMessage(error))

    async with stdio_server(stdin=lines(given, refuse, waiting)) as (read, write):  # type: ignore[arg-type]
        answers = Answers(write, waiting)
        inner = built._lowlevel_server  # as `MCPServer.run` does
        await inner.run(read, answers, inner.create_initialization_options())


async def lines(
    given: "AsyncIterator[str]", refuse: Callable[[JSONRPCError], Awaitable[None]], waiting: Waiting
) -> "AsyncIterator[str]":
    """Yield the lines that a client writes, without those that are no message: these are refused.

    The SDK drops what it can't read, JSON that holds half a character or is nested deep among it,
    and the client waits. It also drops the answers to what is in flight when the lines end: so they
    end when all is answered.
    """
    async for line in given:
        if not line.strip():
            continue
        answer = answerable(line)
        if isinstance(answer, str):
            waiting.read(answer)
            yield answer
        else:
            await refuse(answer)
    # The process ends even if a call still waits, for a lock say: nobody waits that long for its
    # answer.
    timer = threading.Timer(LEAVING_SECONDS + LAST_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
    for request in await waiting.end():
        await refuse(
            _error(
                INTERNAL_ERROR, "the client has left; whether this was done is not known", request
            )
        )
    waiting.is_over = True


def answerable(line: str) -> str | JSONRPCError:
    """Return a line as it is if the SDK can read it, else a call of the same tool that says why
    not, or the error.
    """
    try:
        message = read_json(line)
    except InvalidInput as exc:
        if isinstance(exc.__cause__, ValueError):
            return _error(PARSE_ERROR, f"the line is not JSON; {_ONE}", None)
        return _refused(
            line, f"the request {exc}"
        )  # a key stands there twice, a number is none, or it is too deep
    if isinstance(message, list):
        return _error(INVALID_REQUEST, f"batches are not supported; {_ONE}", None)
    half, deep = bool(_LONE.search(line)), line.count("[") + line.count("{") >= _DEEP
    if (_is_plain(message) and not half and not deep) or _is_read(line, message):
        return line
    if half or deep:
        lone = "the arguments hold half a character (a lone surrogate); send valid Unicode"
        return _refused(line, lone if half else "the arguments are nested too deep; send flat text")
    return _error(INVALID_REQUEST, "the line is not a JSON-RPC 2.0 message", id_of(line))


def _is_read(line: str, message: Any) -> bool:
    """Return whether the SDK takes a line for what it is."""
    if (
        isinstance(message, dict)
        and "method" in message
        and type(message.get("id", 0)) not in (int, str)
    ):
        return False  # it would pass for a notification
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return False
    return True


def _is_plain(message: object) -> bool:
    """Return whether a message is a request or a notification that the SDK reads for certain."""
    if (
        not isinstance(message, dict)
        or message.get("jsonrpc") != "2.0"
        or type(message.get("method")) is not str
    ):
        return False
    return type(message.get("params", {})) is dict and type(message.get("id", 0)) in (int, str)


def id_of(line: str) -> int | str | None:
    """Return the id of a request, whatever is wrong with the rest of it; None if it has none."""
    depth = 0
    for part in _PARTS.finditer(line):
        if part[0] in "[{":
            depth += 1
        elif part[0] in "]}":
            depth -= 1
        elif depth == 1 and (found := _ID.match(line, part.start())):
            return str(json.loads(found[1])) if found[1].startswith('"') else int(found[1])
    return None


def _error(code: int, message: str, request_id: int | str | None) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))


def _refused(line: str, reason: str) -> str | JSONRPCError:
    """Return a call of the same tool with nothing but a reason to refuse it, or an error if it is
    no such call.
    """
    try:
        given: Any = json.loads(_LONE.sub("\\\\ufffd", line))
        known = {
            name: given["params"][name] for name in ("name", "_meta") if name in given["params"]
        }
        if _is_plain(given) and "id" in given:
            return json.dumps({**given, "params": {**known, "arguments": {UNREADABLE: reason}}})
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # it is not that far a call that could be read
    request_id = id_of(line)
    return _error(PARSE_ERROR if request_id is None else INVALID_REQUEST, reason, request_id)
