"""`MemoryGateway` backend that keeps turns and memories on a Chroma server, through a `chroma-mcp`
process.
"""

import contextlib
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from memories.config import load_config
from memories.context.chroma_process import NAME, Connect, Patience, Session, Unreachable, process
from memories.context.protocol import (
    Document,
    HistoryTurn,
    MCPError,
    MemoryItem,
    metadata_of,
    to_document,
    without_none,
)
from memories.core.disk import locked
from memories.core.ids import digest
from memories.errors import InvalidInput
from memories.guard.validate import MAX_QUERY_CHARACTERS, shown
from memories.stores.records import SEARCHED, Collection

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

PAGE = 256  # number of turns read at a time
MAX_CONVERSATIONS = 10_000  # number of conversations whose last index is remembered

_WINDOW = "window"

Value = TypeVar("Value")


class ChromaMcpBackend:
    """Keeps turns in the collection `history` and memories in `memory` on a Chroma server.

    The first call starts the process, and a later call restarts it if it has died. A call that was
    lost with the process is repeated, which is harmless: a document's id is a hash of its content.
    Threads may share a backend.

    Chroma has no transactions. These are the guarantees without them:

    - A turn is stored once for each `message_id` of its conversation, whoever stores it.
    - Threads, and processes that share a home (and so its lock), never give two turns of a
      conversation the same index. Writers with other homes, such as on other machines, may: both
      turns are kept, ordered by time.
    - `hold_windows` works only among processes that share the home.
    """

    def __init__(
        self, connect: Connect, folder: Path, name: str, *, patience: Patience | None = None
    ) -> None:
        """Store the parameters; no process is started yet.

        Args:
            connect: Starts a process and yields its client; called in a separate thread.
            folder: The folder for locks and the gateway's queue.
            name: The prefix of their names.
            patience: How long to wait.
        """
        self._connect, self._files = connect, (folder, name)
        self._patience = patience or Patience()
        self._opening, self._appending = threading.Lock(), threading.Lock()
        self._session: Session | None = None
        self._last_indexes: dict[str, int] = {}  # lower bounds, by conversation

    @classmethod
    def at(cls, endpoint: str, host: str, port: int, home: Path) -> Self:
        """Return the backend for an endpoint: `chroma-mcp`, or `chroma-mcp://host:port`.

        Args:
            endpoint: The endpoint.
            host: The Chroma server's host, if the endpoint doesn't name one.
            port: Its port, if the endpoint doesn't name one.
            home: The folder for files.

        Raises:
            InvalidInput: The endpoint is invalid.
        """
        if endpoint != NAME:
            host, port = _parse_address(endpoint, port)
        server = hashlib.blake2b(f"{host}:{port}".encode(), digest_size=8).hexdigest()
        return cls(functools.partial(process, host, port), home, f"{NAME}.{server}")

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The home folder, and the prefix of this server's files in it."""
        return self._files

    @functools.cached_property
    def timeout_seconds(self) -> float | None:
        """The maximum duration of a call, from the settings."""
        return load_config().memory_timeout_seconds

    @functools.cached_property
    def redactor(self) -> "Redactor":
        """The redactor from the settings."""
        return load_config().redactor()

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Create the collections if they are missing."""
        self._call_with(lambda session: _create_collections(session, names))

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn after the last one; its id is a hash of conversation and message id."""
        message_id = turn.message_id or os.urandom(16).hex()
        document_id = f"turn-{digest(turn.conversation_id, message_id)}"
        # No other thread, and no other process with this home, may number turns in the meantime.
        with self._appending, self._lock_history():
            index = max(self._last_index(turn.conversation_id) + 1, turn.turn_index)
            metadata = {**metadata_of(turn), "turn_index": index}
            if self._add(Collection.HISTORY, document_id, turn.text, metadata):
                self._last_indexes[turn.conversation_id] = index
        return document_id

    def _lock_history(self) -> AbstractContextManager[None]:
        folder, name = self._files
        if os.name == "nt":
            return contextlib.nullcontext()
        return locked(folder / f"{name}.history.lock")

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns. Chroma does not sort, so we read the highest indexes and sort
        them.
        """
        last, width = self._last_index(conversation_id), n
        while last >= 0:
            first = last - width + 1
            turns = self._read(_turns_from(conversation_id, first))
            if len(turns) >= n or first <= 0:
                return turns[-n:]
            width *= 4  # another writer left gaps
        return []

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory, unless exactly the same one is already stored; similar ones are not
        compared."""
        metadata: dict[str, Any] = {
            "type": item.memory_type,
            "confidence": float(item.confidence),  # fractions don't match whole numbers
            **{
                name: getattr(item, name)
                for name in ("ts", "conversation_id", "entities", "source", "tags")
            },
            _WINDOW: window,
        }
        document_id = f"memory-{digest(item.text, json.dumps(metadata, sort_keys=True))}"
        self._add(Collection.MEMORY, document_id, item.text, metadata)
        return document_id

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Document]:
        """Search by meaning only, using the beginning of a long text."""
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
        """Search by meaning only, using the beginning of a long text."""
        where = {} if conversation_id is None else {"where": {"conversation_id": conversation_id}}
        return self._search(Collection.HISTORY, query_text, k, where)

    def read_turns(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return up to `n` turns from an index on, sorted here because Chroma does not sort."""
        where = _turns_from(conversation_id, start)
        where["$and"].append({"turn_index": {"$lt": start + n}})
        return self._read(where)[:n]

    def count_window(self, window: str) -> int:
        """Return the number of memories whose metadata names a window."""
        answer = self._ask("get_documents", Collection.MEMORY, where={_WINDOW: window}, include=[])
        with _translate_malformed():
            return len(answer["ids"])

    def hold_windows(self) -> AbstractContextManager[None]:
        """Take a lock in the home folder."""
        folder, name = self._files
        return locked(folder / f"{name}.windows.lock")

    def close(self) -> None:
        """End the process; a later call would restart it."""
        with self._opening:
            session, self._session = self._session, None
        if session:
            session.close()

    # --- indexes of turns ---

    def _last_index(self, conversation_id: str) -> int:
        """Return the highest index of a conversation, or -1; takes one call if a close lower bound
        is known."""
        known = self._last_indexes.get(conversation_id, -1)
        indexes = self._read_indexes(conversation_id, known + 1)
        if known >= 0 and conversation_id not in self._last_indexes:
            # The process was restarted in the meantime, and the server may have fewer turns now.
            return self._last_index(conversation_id)
        if len(indexes) == PAGE:
            known = self._find_last_page(conversation_id, max(indexes))
            indexes = self._read_indexes(conversation_id, known)
        if len(self._last_indexes) >= MAX_CONVERSATIONS:
            self._last_indexes.clear()
        last = self._last_indexes[conversation_id] = max((known, *indexes))
        return last

    def _find_last_page(self, conversation_id: str, known: int) -> int:
        """Return an index at most half a page below the highest, by doubling and bisection."""
        step = PAGE
        while self._read_indexes(conversation_id, known + step, 1):
            known += step
            step *= 2
        beyond = known + step
        while beyond - known > PAGE // 2:
            middle = (known + beyond) // 2
            if self._read_indexes(conversation_id, middle, 1):
                known = middle
            else:
                beyond = middle
        return known

    def _read_indexes(self, conversation_id: str, first: int, limit: int = PAGE) -> list[int]:
        where = _turns_from(conversation_id, first)
        answer = self._ask(
            "get_documents", Collection.HISTORY, where=where, include=["metadatas"], limit=limit
        )
        with _translate_malformed():
            return [int(metadata["turn_index"]) for metadata in answer["metadatas"] or ()]

    # --- calls ---

    def _read(self, where: Mapping[str, Any]) -> list[Document]:
        """Return the turns that match, sorted."""
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
        arguments = {
            "collection_name": collection,
            "documents": [text],
            "ids": [document_id],
            "metadatas": [without_none(metadata)],  # Chroma doesn't support null
        }
        try:
            self._call("add_documents", arguments)
        except MCPError as exc:
            if "already exist" in str(exc) and document_id in str(exc):
                return False
            raise
        return True

    def _ask(self, tool: str, collection: str, **arguments: Any) -> dict[str, Any]:
        [text] = self._call(tool, {"collection_name": collection, **arguments}) or [""]
        with _translate_malformed():
            return dict(json.loads(text))

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        return self._call_with(lambda session: session.call(tool, arguments))

    def _call_with(self, work: Callable[[Session], Value], *, retry: bool = True) -> Value:
        """Run a call on the process; repeat it if the process has died."""
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

    def _open_session(self) -> Session:
        """Return the process, started if necessary, once its collections exist."""
        with self._opening:
            if self._session is None:
                session = Session(self._connect, self._patience)
                try:
                    _create_collections(session, SEARCHED)
                except BaseException:
                    session.close()
                    raise
                self._last_indexes.clear()
                self._session = session
            return self._session


def _create_collections(session: Session, names: Sequence[str]) -> None:
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
            if "already exists" not in str(exc):  # another process has created it
                raise


def _parse_address(endpoint: str, port: int) -> tuple[str, int]:
    error = InvalidInput(f'endpoint "{shown(endpoint)}" is not acceptable; use {NAME}://host:port')
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
    """Raise `MCPError` for an answer in an unexpected format."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError) as exc:
        raise MCPError(f"{NAME} returned an answer in an unexpected format: {exc}") from exc


def _parse_documents(columns: Mapping[str, Any]) -> list[Document]:
    """Return the documents in the columns of Chroma's answer."""
    rows = zip(columns["ids"], columns["documents"] or (), columns["metadatas"] or (), strict=True)
    return [to_document(document_id, text, metadata) for document_id, text, metadata in rows]


def _turns_from(conversation_id: str, first: int) -> dict[str, Any]:
    return {"$and": [{"conversation_id": conversation_id}, {"turn_index": {"$gte": first}}]}


def _sort_key(turn: Document) -> tuple[int, str, str]:
    return turn["metadata"]["turn_index"], str(turn["metadata"].get("ts")), turn["id"]
