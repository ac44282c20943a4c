"""The second backend of a `MemoryGateway`: a `chroma-mcp` process, spoken to by MCP, before a Chroma server.

Nothing of the MCP SDK is loaded before the process is started.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from memories.agent.backend import MCPError, UnsupportedEndpoint
from memories.agent.payloads import Document, HistoryTurn, InvalidPayload, MemoryItem
from memories.disk import locked
from memories.ids import digest
from memories.stores.records import Collection
from memories.validate import MAX_QUERY_CHARACTERS, shown

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

NAME = "chroma-mcp"
COMMAND = "CHROMA_MCP_COMMAND"  # the environment variable with the command that starts it
PAGE = 256  # numbers of turns that are read at once
KNOWN_CONVERSATIONS = 10_000
MAX_SAID = 500  # characters of what a program said, in an error

_WINDOW = "window"
_NOBODY_ANSWERS = re.compile(
    r"(?:'|collections): (could not connect|connect|timed out|server disconnected|all connection|\[errno)"
)
# chroma-mcp 0.2.6 goes on when its standard input ends: the kernel is told to end it with the thread that started it.
_DIES_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
_CLOSED = {-32000, -32001}  # MCP's codes: connection closed, request timed out

Connect = Callable[[], AbstractAsyncContextManager["Client"]]
Value = TypeVar("Value")


class NotInstalled(UnsupportedEndpoint):
    """The program can't be started here; trying again does not help."""


class Unreachable(ConnectionError):
    """The process ended or does not answer."""

    timed_out = False


@dataclass(frozen=True)
class Patience:
    """How many seconds are waited.

    Attributes:
        start: For the process to start and shake hands.
        call: For an answer.
        stop: For the process to end.
    """

    start: float = 60.0
    call: float = 30.0
    stop: float = 10.0


class ChromaMcpBackend:
    """Turns in the collection `history`, memories in the collection `memory`, of a Chroma server.

    The process is started by the first call, and again when it has died; a call that was lost with it is made a second
    time, which does no harm: the id of a document follows from what it is. Threads may share one.

    Chroma knows no transaction. What holds nevertheless, and what does not:

    - A turn is stored once for each `message_id` of its conversation, whoever stores it, from wherever.
    - Turns of a conversation are numbered one after the other, without two that have one number, among threads and
      among processes that share one home (a lock there). Writers with other homes, as on other machines, can give one
      number to two turns: both are kept, and ordered by their times.
    - `hold_windows` keeps those out who share the home, and nobody else.
    """

    def __init__(
        self,
        connect: Connect,
        folder: Path,
        name: str,
        *,
        patience: Patience | None = None,
    ) -> None:
        """Prepare it; nothing is started yet.

        Args:
            connect: Starts a process and yields the client that speaks to it; called in a thread of its own.
            folder: Where locks, and the gateway's queue, are kept.
            name: How their names begin.
            patience: How long is waited.
        """
        self._connect, self._files = connect, (folder, name)
        self._patience = patience or Patience()
        self._opening, self._turns = threading.Lock(), threading.Lock()
        self._session: _Session | None = None
        self._known: dict[str, int] = {}  # the least that the last number of a conversation can be

    @classmethod
    def at(cls, endpoint: str, host: str, port: int, home: Path) -> Self:
        """Return the backend of an endpoint: `chroma-mcp`, or `chroma-mcp://host:port`.

        Args:
            endpoint: The endpoint.
            host: The Chroma server's host, where the endpoint names none.
            port: Its port, where the endpoint names none.
            home: The folder for files.

        Raises:
            InvalidPayload: The endpoint is not acceptable.
        """
        if endpoint != NAME:
            host, port = _address(endpoint, port)
        digest = hashlib.blake2b(f"{host}:{port}".encode(), digest_size=8).hexdigest()
        return cls(lambda: _process(host, port), home, f"{NAME}.{digest}")

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The home; each server has files of its own."""
        return self._files

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Make the collections that are missing."""
        self._call_with(lambda session: self._create(session, names))

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn behind the last one; its id is a hash of conversation and message id."""
        named = f"turn-{digest(turn.conversation_id, turn.message_id or os.urandom(16).hex())}"
        with self._numbering():
            index = max(self._last(turn.conversation_id) + 1, turn.turn_index)
            metadata: dict[str, Any] = {
                "conversation_id": turn.conversation_id,
                "role": turn.role,
                "ts": turn.ts,
                "turn_index": index,
                "message_id": turn.message_id,
                "channel": turn.channel,
                "speaker": turn.speaker,
            }
            if self._add(Collection.HISTORY, named, turn.text, metadata):
                self._known[turn.conversation_id] = index
        return named

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns. Chroma sorts nothing: the highest numbers are asked for, and sorted here."""
        last, wide = self._last(conversation_id), n
        while last >= 0:
            first = last - wide + 1
            found = self._documents(Collection.HISTORY, _turns_from(conversation_id, first))
            if len(found) >= n or first <= 0:
                return sorted(found, key=_place)[-n:]
            wide *= 4  # another writer left gaps
        return []

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory; the same one is stored once, which is all that is compared."""
        metadata: dict[str, Any] = {
            "type": item.memory_type,
            "confidence": float(item.confidence),  # a whole number would not be found by a fraction
            "ts": item.ts,
            "conversation_id": item.conversation_id,
            "entities": item.entities,
            "source": item.source,
            "tags": item.tags,
            _WINDOW: window,
        }
        named = f"memory-{digest(item.text, json.dumps(metadata, sort_keys=True))}"
        self._add(Collection.MEMORY, named, item.text, metadata)
        return named

    def recall(self, query_text: str, k: int, min_confidence: float, conversation_id: str | None) -> list[Document]:
        """Search by meaning alone; of a long text only the beginning is looked for."""
        where: dict[str, Any] = {"confidence": {"$gte": float(min_confidence)}}
        if conversation_id is not None:
            where = {"$and": [where, {"conversation_id": conversation_id}]}
        texts = [query_text[:MAX_QUERY_CHARACTERS]]
        found = self._ask("query_documents", Collection.MEMORY, query_texts=texts, n_results=k, where=where)
        with _understood():
            columns = {name: found[name][0] for name in ("ids", "documents", "metadatas", "distances")}
            documents = _rows(columns)
            for document, distance in zip(documents, columns["distances"], strict=True):
                document["metadata"].pop(_WINDOW, None)
                document["similarity"] = document["score"] = round(min(1.0, max(0.0, 1.0 - distance)), 4)
        return documents

    def count_window(self, window: str) -> int:
        """Count the memories whose metadata names the window."""
        found = self._ask("get_documents", Collection.MEMORY, where={_WINDOW: window}, include=[])
        with _understood():
            return len(found["ids"])

    def hold_windows(self) -> AbstractContextManager[None]:
        """Take a lock in the home."""
        folder, name = self._files
        return locked(folder / f"{name}.windows.lock")

    def close(self) -> None:
        """End the process; a later call would start it again."""
        with self._opening:
            session, self._session = self._session, None
        if session:
            session.close()

    # --- numbers of turns ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _numbering(self) -> Iterator[None]:
        """Keep other threads, and processes with this home, from giving a number."""
        folder, name = self._files
        shared = contextlib.nullcontext() if os.name == "nt" else locked(folder / f"{name}.history.lock")
        with self._turns, shared:
            yield

    def _last(self, conversation_id: str) -> int:
        """Return the highest number of a conversation, or -1: one question if it is nearly known, else a search."""
        known = self._known.get(conversation_id, -1)
        found = self._numbers(conversation_id, known + 1)
        if known >= 0 and conversation_id not in self._known:
            return self._last(conversation_id)  # it was started anew meanwhile, and may have fewer
        if len(found) == PAGE:
            known = self._seek(conversation_id, max(found))
            found = self._numbers(conversation_id, known)
        if len(self._known) >= KNOWN_CONVERSATIONS:
            self._known.clear()
        last = self._known[conversation_id] = max((known, *found))
        return last

    def _seek(self, conversation_id: str, known: int) -> int:
        """Return a number that is at most half a page below the highest."""
        step = PAGE
        while self._numbers(conversation_id, known + step, 1):
            known += step
            step *= 2
        beyond = known + step
        while beyond - known > PAGE // 2:
            middle = (known + beyond) // 2
            if self._numbers(conversation_id, middle, 1):
                known = middle
            else:
                beyond = middle
        return known

    def _numbers(self, conversation_id: str, first: int, limit: int = PAGE) -> list[int]:
        where = _turns_from(conversation_id, first)
        found = self._ask("get_documents", Collection.HISTORY, where=where, include=["metadatas"], limit=limit)
        with _understood():
            return [int(metadata["turn_index"]) for metadata in found["metadatas"] or ()]

    # --- calls -----------------------------------------------------------------------------------------------------

    def _add(self, collection: str, named: str, text: str, metadata: Mapping[str, Any]) -> bool:
        """Store a document; return false if it is there already."""
        known = {name: value for name, value in metadata.items() if value is not None}  # Chroma has no null
        wanted = {"collection_name": collection, "documents": [text], "ids": [named], "metadatas": [known]}
        try:
            self._call("add_documents", wanted)
        except MCPError as exc:
            if "already exist" in str(exc) and named in str(exc):
                return False
            raise
        return True

    def _documents(self, collection: str, where: Mapping[str, Any]) -> list[Document]:
        found = self._ask("get_documents", collection, where=where, include=["documents", "metadatas"])
        with _understood():
            return _rows(found)

    def _ask(self, tool: str, collection: str, **arguments: Any) -> dict[str, Any]:
        [text] = self._call(tool, {"collection_name": collection, **arguments}) or [""]
        with _understood():
            return dict(json.loads(text))

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        return self._call_with(lambda session: session.call(tool, arguments))

    def _call_with(self, work: Callable[["_Session"], Value]) -> Value:
        """Do something with the process, a second time if it had died meanwhile."""
        session = self._opened()
        try:
            return work(session)
        except Unreachable as exc:
            self._drop(session)
            if exc.timed_out:
                raise
        session = self._opened()
        try:
            return work(session)
        except Unreachable:
            self._drop(session)
            raise

    def _opened(self) -> "_Session":
        """Return the process, started if it is not running, once its collections are there."""
        with self._opening:
            if self._session is None:
                session = _Session(self._connect, self._patience)
                try:
                    self._create(session, tuple(Collection))
                except BaseException:
                    session.close()
                    raise
                self._known.clear()
                self._session = session
            return self._session

    def _drop(self, session: "_Session") -> None:
        with self._opening:
            if self._session is session:
                self._session = None
        session.close()

    @staticmethod
    def _create(session: "_Session", names: Sequence[str]) -> None:
        there = session.call("list_collections", {})
        for name in names:
            if name not in there:
                try:
                    wanted = {"collection_name": name, "metadata": {"hnsw:space": "cosine"}}
                    session.call("create_collection", wanted)
                except MCPError as exc:
                    if "already exists" not in str(exc):  # another process was faster
                        raise


class _Session:
    """A running process, in a thread with an event loop of its own; it can be asked from every thread."""

    def __init__(self, connect: Connect, patience: Patience) -> None:
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
            asked = asyncio.run_coroutine_threadsafe(client.call_tool(f"chroma_{tool}", dict(arguments)), self._loop)
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
async def _process(host: str, port: int) -> AsyncIterator["Client"]:
    """Start the process, and yield the client that speaks to it."""
    command, *arguments = shlex.split(os.environ.get(COMMAND, "")) or [NAME]
    try:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
    except ImportError as exc:
        raise NotInstalled("the MCP SDK is missing; install memories[server]") from exc
    logging.getLogger("mcp.client.stdio").addFilter(_is_no_print)
    program = shutil.which(command)
    if program is None:
        hint = f"put it on the PATH, or set {COMMAND} to the command that starts it"
        raise NotInstalled(f"{shown(command)} can't be started: there is no such program; {hint}")
    if sys.platform == "linux" and sys.executable:
        program, arguments = sys.executable, ["-I", "-S", "-c", _DIES_WITH_US, program, *arguments]
    parameters = StdioServerParameters(command=program, args=arguments, env=_environment(host, port))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            async with Client(stdio_client(parameters, errlog=said), mode="legacy") as client:
                yield client
        except Exception as exc:
            said.seek(0)
            lines = [line.strip() for line in said if line.strip()]
            raise Unreachable(_plain(lines[-1]) if lines else f"it ended at once: {_innermost(exc)}") from exc


def _innermost(exc: BaseException) -> BaseException:
    """Return what a group of errors comes down to."""
    return _innermost(exc.exceptions[0]) if isinstance(exc, BaseExceptionGroup) else exc


def _is_no_print(record: logging.LogRecord) -> bool:
    """Keep the SDK from logging, with a trace, each sentence that chroma-mcp prints among its answers."""
    return not str(record.msg).startswith("Failed to parse JSONRPC")


def _environment(host: str, port: int) -> dict[str, str]:
    """Return what the process is told; version 0.2.6 reads CHROMA_HOST and not the documented CHROMA_HTTP_HOST."""
    quiet = {"CHROMA_SSL": "false", "CHROMA_DOTENV_PATH": os.devnull, "ANONYMIZED_TELEMETRY": "FALSE"}
    given = {name: value for name, value in os.environ.items() if name.startswith("CHROMA_")}
    where = {"CHROMA_HTTP_HOST": host, "CHROMA_HTTP_PORT": str(port), "CHROMA_HOST": host, "CHROMA_PORT": str(port)}
    return {**quiet, "FASTMCP_LOG_LEVEL": "ERROR", **given, "CHROMA_CLIENT_TYPE": "http", **where}


def _address(endpoint: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(endpoint)
        found = parts.hostname, parts.port or port
    except ValueError:
        found = None, port
    if found[0] is None or "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidPayload(f'endpoint "{shown(endpoint)}" is not acceptable; use {NAME}://host:port')
    return found[0], found[1]


def _texts(answer: "CallToolResult") -> list[str]:
    """Return the texts of an answer; one that says that it failed is raised."""
    texts = [text for text in (getattr(part, "text", None) for part in answer.content) if text is not None]
    if not answer.is_error:
        return texts
    reason = _plain(" ".join(texts))
    if _NOBODY_ANSWERS.search(reason.lower()):
        raise ConnectionError(f"the Chroma server does not answer: {reason}")
    raise MCPError(f"{NAME} failed: {reason}")


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """Raise MCPError for an answer that looks otherwise than expected."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError) as exc:
        raise MCPError(f"{NAME} answered something that is not understood: {exc}") from exc


def _rows(columns: Mapping[str, Any]) -> list[Document]:
    """Return what Chroma answers in columns as documents."""
    rows = zip(columns["ids"], columns["documents"] or (), columns["metadatas"] or (), strict=True)
    return [{"id": named, "text": text, "metadata": dict(metadata)} for named, text, metadata in rows]


def _plain(text: str) -> str:
    """Return what a program said on one line, without what could act on a terminal."""
    return "".join(character if character.isprintable() else " " for character in text[:MAX_SAID])


def _turns_from(conversation_id: str, first: int) -> dict[str, Any]:
    return {"$and": [{"conversation_id": conversation_id}, {"turn_index": {"$gte": first}}]}


def _place(turn: Document) -> tuple[int, str, str]:
    return turn["metadata"]["turn_index"], str(turn["metadata"].get("ts")), turn["id"]
