"""`memory mcp` on standard input and output, in the namespace of the host's session.

Until the embedding model is loaded, searches match words only.
"""

import functools
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import anyio
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
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

from memories.embedders import Embedder
from memories.errors import EmbedderError, InvalidInput
from memories.guard.validate import read_json
from memories.hooks import files, session
from memories.identity.place import here
from memories.mcp.server import UNREADABLE, serve_tools
from memories.mcp.tools import Tools
from memories.memories import Memories
from memories.settings import Config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


# In seconds:
PATIENCE = 0.5  # how long to wait for the model before searching by words
LONGER = 10.0  # how long to wait for the model if a search by words finds nothing
AGAIN_SECONDS = 60.0  # how long to wait before trying again to load a model
LEAVING_SECONDS = 60.0  # how long running calls may continue after the client disconnects
LAST_SECONDS = 2.0  # how long the remaining calls may then take to be refused
STILL_LOADING = (
    "found by words only: the model is still loading; ask again in a second to search by meaning "
    "too"
)
NOT_LOADED = "found by words only: {}"

_ONE_MESSAGE = "send one JSON-RPC message per line"
_ENDLESS_METHODS = ("subscriptions/listen",)  # requests that are answered only when cancelled
_DEEP = 100  # a line with this many brackets may be too deeply nested for the SDK
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]')  # brackets, and strings, even unclosed ones
_ID = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\["\\/bfnrt]){0,200}"|-?\d{1,18})\s*[,}]')
_logger = logging.getLogger(__name__)

EARLIER_SECONDS = 60.0  # a session's first hook starts at most this long before the server
# The session's id in the request that is being answered. Only Codex sends one; it sets no
# environment variable for its servers.
SENT_ID = ContextVar("SENT_ID", default="")


class ServerSession(NamedTuple):
    """Where and when a server started, which identifies the session of its host.

    A prompt such as "start as bob" switches a session to another namespace; hooks record that in
    the session's file. The server reads the same file before each call, so that hooks and tools
    agree. If the host passes the session's id in an environment variable or with the call, the
    server finds the file by that id.

    If it gets no id, or if that session has ended (a host may clear the conversation and keep the
    server), the server uses the session that was last active in its folder since it started. If it
    knows its host, only that host's sessions count.

    Attributes:
        home: The home with the session files.
        folder: The server's working folder, with symbolic links resolved.
        environment: The server's environment variables.
        since: When the server started, minus `EARLIER_SECONDS`, in seconds since 1970.
        follows_hooks: Whether to use the namespace in the commands of the session's hooks, because
            neither the server's own command nor its environment names one.
    """

    home: str
    folder: str
    environment: Mapping[str, str]
    since: float
    follows_hooks: bool

    @classmethod
    def begin(cls, home: str, *, follows_hooks: bool) -> "ServerSession":
        """Create the session of a server that is starting."""
        folder = str(Path.cwd().resolve())
        return cls(home, folder, os.environ, time.time() - EARLIER_SECONDS, follows_hooks)

    def namespace(self) -> str | None:
        """Return the namespace of the session; None for the one in the server's settings."""
        sent = SENT_ID.get()
        named = session.ids_in(self.environment)
        if sent:
            named = {"codex": sent, **named}
        name = self._find_session(named)
        if name is None:
            return None
        state = session.read(self.home, name)
        # If the host is unknown, the session may belong to another host, whose hooks differ.
        if state.namespace is None and self.follows_hooks and named:
            return state.named or None
        return state.namespace

    def _find_session(self, named: Mapping[str, str]) -> str | None:
        """Return the name of the running session; None if there is none.

        Args:
            named: The session ids that hosts passed, keyed by host.
        """
        for host, session_id in named.items():
            name = files.session_name(host, session_id)
            state = session.read(self.home, name)
            if state.folder is not None and not state.ended:
                return name
        return session.find_latest(self.home, self.folder, since=self.since, hosts=named)


def serve(config: Config, *, shared: bool = True, read_only: bool = False) -> None:
    """Serve one client until it disconnects."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="memory mcp: %(message)s")
    if config.sources["store"] == ".env":
        _logger.warning("the store comes from the .env file in the working folder")
    if read_only:
        config = config._replace(count_accesses=False, reinforce_on_retrieval=False)
    open_memories = functools.partial(Memories, shared=shared, channel="mcp", place=here(config))
    with ExitStack() as stack:

        def open_namespace(namespace: str | None) -> Loading:
            own = config if namespace is None else config._replace(namespace=namespace)
            embedder = None if namespace is None else tools.embedder
            memories = stack.enter_context(open_memories(config=own, embedder=embedder))
            words = stack.enter_context(open_memories(config=own, embedder="none"))
            return Loading(memories, words, memories.embedder)

        follows_hooks = config.sources["namespace"] not in ("flag", "environment")
        own_session = ServerSession.begin(str(config.home), follows_hooks=follows_hooks)
        tools = SessionTools(open_namespace, own_session)
        built = serve_tools(tools, read_only=read_only)
        failures: list[OSError] = []
        try:
            anyio.run(_run, built)  # `_run` waits for running calls, even after a failure
        except* BrokenPipeError:
            pass  # the client has disconnected
        except* OSError as exc:
            failures = [failure for failure in exc.exceptions if isinstance(failure, OSError)]
    for failure in failures:
        raise failure  # a response could not be written; the command reports it


class SessionTools(Tools):
    """The tools; each call uses the current namespace of the host's session."""

    def __init__(
        self, open_namespace: "Callable[[str | None], Loading]", session: ServerSession
    ) -> None:
        """Open the namespace in the settings.

        Args:
            open_namespace: Opens a namespace; None for the one in the settings.
            session: The session, which may switch to another namespace.
        """
        open_once = functools.lru_cache(maxsize=None)(open_namespace)
        self.embedder = open_once(None).memories.embedder
        self.write_order = anyio.Lock()  # waiting calls get the lock in the order of their arrival

        def load() -> Loading:
            return open_once(session.namespace())

        super().__init__(lambda: load().memories, lambda longer: load().ready(longer))


class OpenRequests:
    """The requests that have been read but not yet answered.

    Attributes:
        is_over: Whether every request has been answered or refused; later responses are not sent.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._requests: dict[str, tuple[int | str, int]] = {}
        self._is_empty = anyio.Event()
        self._is_empty.set()

    def read(self, line: str) -> None:
        """Record a client's message: a request, or the cancellation of one."""
        message = json.loads(line)
        method = message.get("method")
        if method == "notifications/cancelled":
            request_id = (message.get("params") or {}).get("requestId")
            self._forget(str(request_id), every=True)
        elif "method" in message and "id" in message and method not in _ENDLESS_METHODS:
            name = str(message["id"])
            request, count = self._requests.get(name, (message["id"], 0))
            self._requests[name] = (request, count + 1)
            if self._is_empty.is_set():
                self._is_empty = anyio.Event()

    def written(self, message: Any) -> None:
        """Record a message from the server; a response ends the wait for its request."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._forget(str(message.id))

    def _forget(self, name: str, *, every: bool = False) -> None:
        request, count = self._requests.get(name, (name, 0))
        if count > 1 and not every:
            self._requests[name] = (request, count - 1)
        else:
            self._requests.pop(name, None)
        if not self._requests:
            self._is_empty.set()

    async def end(self) -> list[int | str]:
        """Wait at most `LEAVING_SECONDS` for all responses; return the unanswered requests."""
        with anyio.move_on_after(LEAVING_SECONDS):
            await self._is_empty.wait()
        return [request for request, count in self._requests.values() for _ in range(count)]


class Answers:
    """A stream of responses that records which requests have been answered."""

    def __init__(self, stream: Any, waiting: OpenRequests) -> None:
        self._stream, self._waiting = stream, waiting

    async def send(self, item: SessionMessage) -> None:
        """Write a message, unless all requests have been answered or refused."""
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
        """Begin loading.

        Args:
            memories: The `Memories` that searches with the model.
            words: The `Memories` of the same store that searches without the model.
            embedder: The model.
        """
        self.memories, self._words, self._embedder = memories, words, embedder
        self._done = threading.Event()
        self._failure = ""
        self._again_at = 0.0
        self._begin()

    def ready(self, longer: bool) -> tuple[Memories, str]:
        """Return the `Memories` that can search now, and a hint for the caller's model.

        Args:
            longer: Whether to wait `LONGER` for the model, rather than `PATIENCE`.
        """
        if not self._done.wait(LONGER if longer else PATIENCE):
            return self._words, STILL_LOADING
        if not self._failure:
            return self.memories, ""
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


# --- messages ---


async def _run(built: MCPServer) -> None:
    stdin = anyio.wrap_file(TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace"))
    waiting = OpenRequests()

    async def refuse(error: JSONRPCError) -> None:
        await answers.send(SessionMessage(error))

    async with stdio_server(stdin=lines(stdin, refuse, waiting)) as (read, write):  # type: ignore[arg-type]
        answers = Answers(write, waiting)
        inner = built._lowlevel_server  # like `MCPServer.run`
        inner.middleware.append(_note_session_id)
        await inner.run(read, answers, inner.create_initialization_options())


async def _note_session_id(
    ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    sent = (ctx.meta or {}).get("sessionId")
    SENT_ID.set(sent if isinstance(sent, str) else "")
    return await call_next(ctx)


async def lines(
    stdin: "AsyncIterator[str]",
    refuse: Callable[[JSONRPCError], Awaitable[None]],
    waiting: OpenRequests,
) -> "AsyncIterator[str]":
    """Yield a client's messages, and refuse lines that are not messages.

    The SDK silently drops lines that it can't parse, such as JSON with a lone surrogate or deep
    nesting; without this function, the client would wait forever. The SDK also drops running calls
    at the end of the input, so this generator ends only when all calls have been answered.
    """
    async for line in stdin:
        if not line.strip():
            continue
        message = answerable(line)
        if isinstance(message, str):
            waiting.read(message)
            yield message
        else:
            await refuse(message)
    # The client has disconnected, so end the process even if a call is still waiting, perhaps for a
    # lock.
    timer = threading.Timer(LEAVING_SECONDS + LAST_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
    for request in await waiting.end():
        reason = "the client has disconnected; this call may or may not have been completed"
        await refuse(_error(INTERNAL_ERROR, reason, request))
    waiting.is_over = True


def answerable(line: str) -> str | JSONRPCError:
    """Return a line that the SDK can parse: the given one, or a call that the server will refuse.

    If the SDK can parse neither, return an error for the client.
    """
    try:
        message = read_json(line)
    except InvalidInput as exc:
        if isinstance(exc.__cause__, ValueError):
            return _error(PARSE_ERROR, f"the line is not JSON; {_ONE_MESSAGE}", None)
        # A key is repeated, a number is invalid, or the nesting is too deep.
        return _refused_call(line, f"the request {exc}")
    if isinstance(message, list):
        return _error(INVALID_REQUEST, f"batches are not supported; {_ONE_MESSAGE}", None)
    reason = ""
    if _LONE_SURROGATE.search(line):
        reason = "the arguments contain half a character (a lone surrogate); send valid Unicode"
    elif line.count("[") + line.count("{") >= _DEEP:
        reason = "the arguments are nested too deeply; send flat values"
    if (_is_request(message) and not reason) or _is_parsed(line, message):
        return line
    if reason:
        return _refused_call(line, reason)
    return _error(INVALID_REQUEST, "the line is not a JSON-RPC 2.0 message", id_of(line))


def _is_request(message: object) -> bool:
    """Return whether a message is clearly a request or a notification."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return False
    if type(message.get("method")) is not str:
        return False
    return type(message.get("params", {})) is dict and type(message.get("id", 0)) in (int, str)


def _is_parsed(line: str, message: Any) -> bool:
    """Return whether the SDK parses a line correctly."""
    is_call = isinstance(message, dict) and "method" in message
    if is_call and type(message.get("id", 0)) not in (int, str):
        return False  # the SDK would mistake the call for a notification
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return False
    return True


def id_of(line: str) -> int | str | None:
    """Return the id of a request, even if the rest is malformed; None if there is no id."""
    depth = 0
    for token in _TOKENS.finditer(line):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif depth == 1 and (match := _ID.match(line, token.start())):
            text = match[1]
            return str(json.loads(text)) if text.startswith('"') else int(text)
    return None


def _error(code: int, message: str, request_id: int | str | None) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))


def _refused_call(line: str, reason: str) -> str | JSONRPCError:
    """Return a call to the same tool with only the reason for the refusal as its argument. If the
    line is not a call, return an error.
    """
    try:
        message: Any = json.loads(_LONE_SURROGATE.sub("\\\\ufffd", line))
        params = message["params"]
        kept = {name: params[name] for name in ("name", "_meta") if name in params}
        if _is_request(message) and "id" in message:
            kept["arguments"] = {UNREADABLE: reason}
            return json.dumps({**message, "params": kept})
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # too broken to be a call
    request_id = id_of(line)
    return _error(PARSE_ERROR if request_id is None else INVALID_REQUEST, reason, request_id)
