"""`MemoryGateway` backend that keeps turns and memories on a Chroma server.

It talks to the server through a `chroma-mcp` process, which any thread may call. The MCP SDK is
imported only when the process is started.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from memories.config import load_config
from memories.context.protocol import (
    Document,
    HistoryTurn,
    MCPError,
    MemoryItem,
    UnsupportedEndpoint,
    metadata_of,
    to_document,
    without_none,
)
from memories.core.disk import locked
from memories.core.ids import digest
from memories.errors import InvalidInput
from memories.guard.validate import MAX_QUERY_CHARACTERS, shown
from memories.languages import make_visible
from memories.stores.records import SEARCHED, Collection

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from mcp import Client
    from memories.guard.redactor import Redactor

NAME = "chroma-mcp"
COMMAND = "CHROMA_MCP_COMMAND"  # the environment variable with the command that starts the process
MAX_OUTPUT = 500  # maximum number of characters of the process's output shown in an error

_SERVER_DOWN = re.compile(
    r"(?:'|collections): "
    r"(could not connect|connect|timed out|server disconnected|all connection|\[errno)"
)
# chroma-mcp 0.2.6 keeps running after its standard input is closed. So the kernel is asked to kill
# it when the thread that started it ends.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
)
_CLOSED = {-32000, -32001}  # MCP's error codes for "connection closed" and "request timed out"

Connect = Callable[[], AbstractAsyncContextManager["Client"]]


class NotInstalled(UnsupportedEndpoint):
    """The program is missing; retrying does not help."""


class Unreachable(ConnectionError):
    """The process has ended or does not respond."""

    timed_out = False


class ToolTimeouts(NamedTuple):
    """Timeouts, in seconds.

    Attributes:
        start: How long the process may take to start and complete the handshake.
        call: How long the process may take to answer a call.
        stop: How long the process may take to end.
    """

    start: float = 60.0
    call: float = 30.0
    stop: float = 10.0


class ChromaSession:
    """A running `chroma-mcp` process, with an event loop in a thread; any thread may call it."""

    def __init__(self, connect: Connect, patience: ToolTimeouts) -> None:
        """Start the process.

        Raises:
            NotInstalled: The program is missing.
            Unreachable: The process did not start, or did not respond in time.
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
        """Call a tool; return the texts in its response.

        Raises:
            Unreachable: The process or the server does not respond.
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
                raise MCPError(f"{NAME} refused the request: {exc}") from exc
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

    # chroma-mcp prints other lines between its responses. The SDK would log a traceback for each.
    logging.getLogger("mcp.client.stdio").addFilter(
        lambda record: not str(record.msg).startswith("Failed to parse JSONRPC")
    )
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
            first: BaseException = exc
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            reason = f"it ended immediately: {first}"
            if lines:
                reason = _plain(lines[-1])
            raise Unreachable(reason) from exc


def environment(host: str, port: int) -> dict[str, str]:
    """Return the environment for the process.

    chroma-mcp 0.2.6 reads CHROMA_HOST, not the documented CHROMA_HTTP_HOST.
    """
    inherited = {name: value for name, value in os.environ.items() if name.startswith("CHROMA_")}
    return {
        "CHROMA_SSL": "false",
        "CHROMA_DOTENV_PATH": os.devnull,
        "ANONYMIZED_TELEMETRY": "FALSE",
        "FASTMCP_LOG_LEVEL": "ERROR",
        **inherited,
        "CHROMA_CLIENT_TYPE": "http",
        "CHROMA_HTTP_HOST": host,
        "CHROMA_HTTP_PORT": str(port),
        "CHROMA_HOST": host,
        "CHROMA_PORT": str(port),
    }


def _texts_of(answer: "CallToolResult") -> list[str]:
    """Return the texts in a response.

    Raises:
        ConnectionError: The Chroma server does not respond.
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
    """Return a program's output as one line, without control characters."""
    return make_visible(text[:MAX_OUTPUT], lambda _: " ")


MAX_CONVERSATIONS = 10_000  # maximum number of conversations whose last index is remembered

_WINDOW = "window"

Value = TypeVar("Value")


class ChromaMcpBackend:
    """Keeps turns in the collection `history` and memories in `memory` on a Chroma server.

    The first call starts the process. If the process dies, it is restarted, and the call is
    repeated. This is harmless, since a document's id is a hash of its content. Threads may share a
    backend.

    Chroma has no transactions. The backend nevertheless guarantees the following:

    - Only one turn is stored for each `message_id` in a conversation, even if several programs
      store it.
    - Threads, and processes that share a home (and so its lock), never give two turns of a
      conversation the same index. Programs with different homes, for example on other machines, may
      do so; in that case, both turns are kept and ordered by time.
    - `hold_windows` works only among processes that share the home.
    """

    def __init__(
        self, connect: Connect, folder: Path, name: str, *, patience: ToolTimeouts | None = None
    ) -> None:
        """Store the parameters; no process is started yet.

        Args:
            connect: Starts a process and yields its client; called in a separate thread.
            folder: The folder for lock files and the gateway's queue.
            name: The prefix of these files' names.
            patience: The timeouts.
        """
        self._connect, self._files = connect, (folder, name)
        self._patience = patience or ToolTimeouts()
        self._opening, self._appending = threading.Lock(), threading.Lock()
        self._session: ChromaSession | None = None
        self._last_indexes: dict[str, int] = {}  # a lower bound on each conversation's last index

    @classmethod
    def at(cls, endpoint: str, host: str, port: int, home: Path) -> Self:
        """Return the backend for an endpoint: `chroma-mcp`, or `chroma-mcp://host:port`.

        Args:
            endpoint: The endpoint.
            host: The Chroma server's host, used if the endpoint doesn't name one.
            port: The Chroma server's port, used if the endpoint doesn't name one.
            home: The folder for the backend's files.

        Raises:
            InvalidInput: The endpoint is invalid.
        """
        if endpoint != NAME:
            host, port = _parse_address(endpoint, port)
        server = hashlib.blake2b(f"{host}:{port}".encode(), digest_size=8).hexdigest()
        return cls(functools.partial(process, host, port), home, f"{NAME}.{server}")

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The home folder, and the prefix of the names of this server's files in it."""
        return self._files

    @functools.cached_property
    def timeout_seconds(self) -> float | None:
        """How long a call may take, from the settings."""
        return load_config().memory_timeout_seconds

    @functools.cached_property
    def redactor(self) -> "Redactor":
        """The redactor from the settings."""
        return load_config().redactor()

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Create the collections if they are missing."""
        self._call_with(lambda session: _create_collections(session, names))

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn after the last one.

        The turn's id is a hash of its conversation and message id.
        """
        message_id = turn.message_id or os.urandom(16).hex()
        document_id = f"turn-{digest(turn.conversation_id, message_id)}"
        # Inside this block, no other thread or process with this home can number turns.
        with self._appending, contextlib.ExitStack() as stack:
            if os.name != "nt":
                stack.enter_context(self._lock("history"))
            index = max(self._last_index(turn.conversation_id) + 1, turn.turn_index)
            metadata = {**metadata_of(turn), "turn_index": index}
            if self._add(Collection.HISTORY, document_id, turn.text, metadata):
                self._last_indexes[turn.conversation_id] = index
        return document_id

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns. Chroma does not sort turns, so the ones with the highest indexes
        are read and sorted here.
        """
        last, width = self._last_index(conversation_id), n
        while last >= 0:
            first = last - width + 1
            turns = self._read(_turns_from(conversation_id, first))
            if len(turns) >= n or first <= 0:
                return turns[-n:]
            width *= 4  # another writer has left gaps between the indexes
        return []

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory, unless an identical one is already stored. Similar memories are not
        detected.
        """
        metadata: dict[str, Any] = {
            "type": item.memory_type,
            "confidence": float(item.confidence),  # Chroma can't compare a float with an integer
            _WINDOW: window,
        }
        for name in ("ts", "conversation_id", "entities", "source", "tags"):
            metadata[name] = getattr(item, name)
        document_id = f"memory-{digest(item.text, json.dumps(metadata, sort_keys=True))}"
        self._add(Collection.MEMORY, document_id, item.text, metadata)
        return document_id

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Document]:
        """Search memories by meaning only. Only the beginning of a long query is used."""
        where: dict[str, Any] = {"confidence": {"$gte": float(min_confidence)}}
        if conversation_id is not None:
            where = {"$and": [where, {"conversation_id": conversation_id}]}
        return self._search(Collection.MEMORY, query_text, k, {"where": where})

    def recall_turns(
        self,
        query_text: str,
        k: int,
        conversation_id: str | None,
        *,
        own: bool = False,  # noqa: ARG002 - a Chroma server has no namespaces
    ) -> list[Document]:
        """Search turns by meaning only. Only the beginning of a long query is used."""
        where = {} if conversation_id is None else {"where": {"conversation_id": conversation_id}}
        return self._search(Collection.HISTORY, query_text, k, where)

    def read_turns(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return up to `n` turns, starting at an index. They are sorted here, not by Chroma."""
        where = _turns_from(conversation_id, start)
        where["$and"].append({"turn_index": {"$lt": start + n}})
        return self._read(where)[:n]

    def count_window(self, window: str) -> int:
        """Return the number of memories whose metadata names this window."""
        answer = self._ask("get_documents", Collection.MEMORY, where={_WINDOW: window}, include=[])
        with _translate_malformed():
            return len(answer["ids"])

    def hold_windows(self) -> AbstractContextManager[None]:
        """Take a lock in the home folder."""
        return self._lock("windows")

    def _lock(self, purpose: str) -> AbstractContextManager[None]:
        folder, name = self._files
        return locked(folder / f"{name}.{purpose}.lock")

    def close(self) -> None:
        """End the process; a later call would restart it."""
        with self._opening:
            session, self._session = self._session, None
        if session:
            session.close()

    # --- indexes of turns ---

    def _last_index(self, conversation_id: str) -> int:
        """Return the highest index in a conversation, or -1 if it has no turns.

        If a lower bound is known, only the turns after it are read.
        """
        known = self._last_indexes.get(conversation_id, -1)
        where = _turns_from(conversation_id, known + 1)
        answer = self._ask("get_documents", Collection.HISTORY, where=where, include=["metadatas"])
        if known >= 0 and conversation_id not in self._last_indexes:
            # The process has been restarted since, and the server may now have fewer turns.
            return self._last_index(conversation_id)
        with _translate_malformed():
            indexes = [int(metadata["turn_index"]) for metadata in answer["metadatas"] or ()]
        if len(self._last_indexes) >= MAX_CONVERSATIONS:
            self._last_indexes.clear()
        last = self._last_indexes[conversation_id] = max((known, *indexes))
        return last

    # --- calls ---

    def _read(self, where: Mapping[str, Any]) -> list[Document]:
        """Return the turns that match a condition, sorted."""
        include = ["documents", "metadatas"]
        answer = self._ask("get_documents", Collection.HISTORY, where=where, include=include)
        with _translate_malformed():
            return sorted(_parse_documents(answer), key=_sort_key)

    def _search(
        self, collection: str, query_text: str, k: int, where: Mapping[str, Any]
    ) -> list[Document]:
        texts = [query_text[:MAX_QUERY_CHARACTERS]]
        answer = self._ask("query_documents", collection, query_texts=texts, n_results=k, **where)
        with _translate_malformed():
            columns = {
                name: answer[name][0] for name in ("ids", "documents", "metadatas", "distances")
            }
            documents = _parse_documents(columns)
            for document, distance in zip(documents, columns["distances"], strict=True):
                document["metadata"].pop(_WINDOW, None)
                similarity = round(min(1.0, max(0.0, 1.0 - distance)), 4)
                document["similarity"] = document["score"] = similarity
        return documents

    def _add(
        self, collection: str, document_id: str, text: str, metadata: Mapping[str, Any]
    ) -> bool:
        """Store a document; return False if it already exists."""
        metadatas = [without_none(metadata)]  # Chroma doesn't support null
        fields = {"documents": [text], "ids": [document_id], "metadatas": metadatas}
        try:
            self._call("add_documents", collection, **fields)
        except MCPError as exc:
            if "already exist" in str(exc) and document_id in str(exc):
                return False
            raise
        return True

    def _ask(self, tool: str, collection: str, **arguments: Any) -> dict[str, Any]:
        [text] = self._call(tool, collection, **arguments) or [""]
        with _translate_malformed():
            return dict(json.loads(text))

    def _call(self, tool: str, collection: str, **arguments: Any) -> list[str]:
        arguments["collection_name"] = collection
        return self._call_with(lambda session: session.call(tool, arguments))

    def _call_with(self, work: Callable[[ChromaSession], Value], *, retry: bool = True) -> Value:
        """Make a call to the process; repeat it once if the process has died."""
        session = self._open_session()
        try:
            return work(session)
        except Unreachable as exc:
            with self._opening:
                if self._session is session:
                    self._session = None
            session.close()
            if exc.timed_out or not retry:
                raise
        return self._call_with(work, retry=False)

    def _open_session(self) -> ChromaSession:
        """Start the process if necessary, make sure that its collections exist, and return it."""
        with self._opening:
            if self._session is None:
                session = ChromaSession(self._connect, self._patience)
                try:
                    _create_collections(session, SEARCHED)
                except BaseException:
                    session.close()
                    raise
                self._last_indexes.clear()
                self._session = session
            return self._session


def _create_collections(session: ChromaSession, names: Sequence[str]) -> None:
    existing = session.call("list_collections", {})
    for name in names:
        if name in existing:
            continue
        try:
            session.call(
                "create_collection",
                {"collection_name": name, "metadata": {"hnsw:space": "cosine"}},
            )
        except MCPError as exc:
            if "already exists" not in str(exc):  # another process has created the collection
                raise


def _parse_address(endpoint: str, port: int) -> tuple[str, int]:
    error = InvalidInput(f'endpoint "{shown(endpoint)}" is not valid; use {NAME}://host:port')
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port or port
    except ValueError:
        raise error from None
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment
    if host is None or "@" in parts.netloc or has_more:
        raise error
    return host, port


@contextlib.contextmanager
def _translate_malformed() -> Iterator[None]:
    """Raise `MCPError` for a response in an unexpected format."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError) as exc:
        raise MCPError(f"{NAME} returned an answer in an unexpected format: {exc}") from exc


def _parse_documents(columns: Mapping[str, Any]) -> list[Document]:
    """Return the documents in the columns of Chroma's response."""
    rows = zip(columns["ids"], columns["documents"] or (), columns["metadatas"] or (), strict=True)
    return [to_document(document_id, text, metadata) for document_id, text, metadata in rows]


def _turns_from(conversation_id: str, first: int) -> dict[str, Any]:
    return {"$and": [{"conversation_id": conversation_id}, {"turn_index": {"$gte": first}}]}


def _sort_key(turn: Document) -> tuple[int, str, str]:
    return turn["metadata"]["turn_index"], str(turn["metadata"].get("ts")), turn["id"]
