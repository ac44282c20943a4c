"""The second backend of a `MemoryGateway`: turns and memories on a Chroma server, through a
`chroma-mcp` process.
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
from memories.context.backend import MCPError
from memories.context.chroma_process import NAME, Connect, Patience, Session, Unreachable, process
from memories.context.payloads import (
    Document,
    HistoryTurn,
    MemoryItem,
    document,
    metadata_of,
    present,
)
from memories.core.disk import locked
from memories.core.ids import digest
from memories.errors import InvalidInput
from memories.guard.validate import MAX_QUERY_CHARACTERS, shown
from memories.stores.records import SEARCHED, Collection

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

PAGE = 256  # numbers of turns that are read at once
KNOWN_CONVERSATIONS = 10_000

_WINDOW = "window"

Value = TypeVar("Value")


class ChromaMcpBackend:
    """Turns in the collection `history`, memories in the collection `memory`, of a Chroma server.

    The first call starts the process, and a later one starts it again if it has died. A call that
    was lost with it is repeated, which does no harm: the id of a document is a hash of its content.
    Threads may share a backend.

    Chroma has no transactions. What holds nevertheless, and what does not:

    - A turn is stored once for each `message_id` of its conversation, whoever stores it.
    - Threads, and processes that share a home (and so its lock), never give two turns of a
      conversation the same number. Writers with other homes, as on other machines, may: both turns
      are kept, ordered by time.
    - `hold_windows` works among processes that share the home only.
    """

    def __init__(
        self, connect: Connect, folder: Path, name: str, *, patience: Patience | None = None
    ) -> None:
        """Prepare it; nothing is started yet.

        Args:
            connect: Starts a process and yields the client that speaks to it; called in a thread of
                its own.
            folder: Where locks and the gateway's queue are kept.
            name: The prefix of their names.
            patience: How long to wait.
        """
        self._connect, self._files = connect, (folder, name)
        self._patience = patience or Patience()
        self._opening, self._turns = threading.Lock(), threading.Lock()
        self._session: Session | None = None
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
            InvalidInput: The endpoint is not acceptable.
        """
        if endpoint != NAME:
            host, port = _address(endpoint, port)
        server = hashlib.blake2b(f"{host}:{port}".encode(), digest_size=8).hexdigest()
        return cls(lambda: process(host, port), home, f"{NAME}.{server}")

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The home; each server has files of its own."""
        return self._files

    @functools.cached_property
    def timeout_seconds(self) -> float | None:
        """How long a call may take, by the settings."""
        return load_config().memory_timeout_seconds

    @functools.cached_property
    def redactor(self) -> "Redactor":
        """As the settings want it."""
        return load_config().redactor()

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Make the collections that are missing."""
        self._call_with(lambda session: self._create(session, names))

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn behind the last one; its id is a hash of conversation and message id."""
        named = f"turn-{digest(turn.conversation_id, turn.message_id or os.urandom(16).hex())}"
        folder, name = self._files
        # No other thread, and no process with this home, numbers turns meanwhile.
        shared = (
            contextlib.nullcontext() if os.name == "nt" else locked(folder / f"{name}.history.lock")
        )
        with self._turns, shared:
            index = max(self._last(turn.conversation_id) + 1, turn.turn_index)
            metadata = metadata_of(turn) | {"turn_index": index}
            if self._add(Collection.HISTORY, named, turn.text, metadata):
                self._known[turn.conversation_id] = index
        return named

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns. Chroma does not sort: the highest numbers are asked for, and
        sorted here.
        """
        last, wide = self._last(conversation_id), n
        while last >= 0:
            first = last - wide + 1
            where = _turns_from(conversation_id, first)
            found = self._ask(
                "get_documents", Collection.HISTORY, where=where, include=["documents", "metadatas"]
            )
            with _understood():
                turns = _rows(found)
            if len(turns) >= n or first <= 0:
                return sorted(turns, key=_place)[-n:]
            wide *= 4  # another writer left gaps
        return []

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory, unless exactly the same one is stored; similar ones are not compared."""
        metadata: dict[str, Any] = {
            "type": item.memory_type,
            "confidence": float(item.confidence),  # a whole number would not be found by a fraction
            **{
                name: getattr(item, name)
                for name in ("ts", "conversation_id", "entities", "source", "tags")
            },
            _WINDOW: window,
        }
        named = f"memory-{digest(item.text, json.dumps(metadata, sort_keys=True))}"
        self._add(Collection.MEMORY, named, item.text, metadata)
        return named

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Document]:
        """Search by meaning alone; only the beginning of a long text is looked for."""
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
        own: bool = False,  # noqa: ARG002 - all are
    ) -> list[Document]:
        """Search by meaning alone; only the beginning of a long text is looked for."""
        where = {} if conversation_id is None else {"where": {"conversation_id": conversation_id}}
        return self._search(Collection.HISTORY, query_text, k, where)

    def read_turns(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return the turns with so many numbers from one on. Chroma does not sort: they are sorted
        here.
        """
        where = _turns_from(conversation_id, start)
        where["$and"].append({"turn_index": {"$lt": start + n}})
        found = self._ask(
            "get_documents", Collection.HISTORY, where=where, include=["documents", "metadatas"]
        )
        with _understood():
            return sorted(_rows(found), key=_place)[:n]

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

    # --- numbers of turns
    # ------------------------------------------------------------------------------------------

    def _last(self, conversation_id: str) -> int:
        """Return the highest number of a conversation, or -1; one question will do if it is nearly
        known.
        """
        known = self._known.get(conversation_id, -1)
        found = self._numbers(conversation_id, known + 1)
        if known >= 0 and conversation_id not in self._known:
            return self._last(
                conversation_id
            )  # the process was restarted meanwhile: there may be fewer
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
        found = self._ask(
            "get_documents", Collection.HISTORY, where=where, include=["metadatas"], limit=limit
        )
        with _understood():
            return [int(metadata["turn_index"]) for metadata in found["metadatas"] or ()]

    # --- calls
    # -----------------------------------------------------------------------------------------------------

    def _search(
        self, collection: str, query_text: str, k: int, where: Mapping[str, Any]
    ) -> list[Document]:
        texts = [query_text[:MAX_QUERY_CHARACTERS]]
        found = self._ask("query_documents", collection, query_texts=texts, n_results=k, **where)
        with _understood():
            columns = {
                name: found[name][0] for name in ("ids", "documents", "metadatas", "distances")
            }
            documents = _rows(columns)
            for found_one, distance in zip(documents, columns["distances"], strict=True):
                found_one["metadata"].pop(_WINDOW, None)
                found_one["similarity"] = found_one["score"] = round(
                    min(1.0, max(0.0, 1.0 - distance)), 4
                )
        return documents

    def _add(self, collection: str, named: str, text: str, metadata: Mapping[str, Any]) -> bool:
        """Store a document; return false if it is there already."""
        known = [present(metadata)]  # Chroma has no null
        wanted = {
            "collection_name": collection,
            "documents": [text],
            "ids": [named],
            "metadatas": known,
        }
        try:
            self._call("add_documents", wanted)
        except MCPError as exc:
            if "already exist" in str(exc) and named in str(exc):
                return False
            raise
        return True

    def _ask(self, tool: str, collection: str, **arguments: Any) -> dict[str, Any]:
        [text] = self._call(tool, {"collection_name": collection, **arguments}) or [""]
        with _understood():
            return dict(json.loads(text))

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        return self._call_with(lambda session: session.call(tool, arguments))

    def _call_with(self, work: Callable[[Session], Value], *, again: bool = True) -> Value:
        """Do something with the process, and again if it had died."""
        session = self._opened()
        try:
            return work(session)
        except Unreachable as exc:
            with self._opening:
                if self._session is session:
                    self._session = None
            session.close()
            if exc.timed_out or not again:
                raise
        return self._call_with(work, again=False)

    def _opened(self) -> Session:
        """Return the process, started if it is not running, once its collections are there."""
        with self._opening:
            if self._session is None:
                session = Session(self._connect, self._patience)
                try:
                    self._create(session, SEARCHED)
                except BaseException:
                    session.close()
                    raise
                self._known.clear()
                self._session = session
            return self._session

    @staticmethod
    def _create(session: Session, names: Sequence[str]) -> None:
        there = session.call("list_collections", {})
        for name in names:
            if name not in there:
                wanted = {"collection_name": name, "metadata": {"hnsw:space": "cosine"}}
                try:
                    session.call("create_collection", wanted)
                except MCPError as exc:
                    if "already exists" not in str(exc):  # another process was faster
                        raise


def _address(endpoint: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(endpoint)
        found = parts.hostname, parts.port or port
    except ValueError:
        found = None, port
    if (
        found[0] is None
        or "@" in parts.netloc
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
    ):
        raise InvalidInput(
            f'endpoint "{shown(endpoint)}" is not acceptable; use {NAME}://host:port'
        )
    return found[0], found[1]


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """Raise MCPError for an answer that does not have the expected form."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError) as exc:
        raise MCPError(f"{NAME} answered something that is not understood: {exc}") from exc


def _rows(columns: Mapping[str, Any]) -> list[Document]:
    """Return documents from the columns of Chroma's answer."""
    rows = zip(columns["ids"], columns["documents"] or (), columns["metadatas"] or (), strict=True)
    return [document(named, text, metadata) for named, text, metadata in rows]


def _turns_from(conversation_id: str, first: int) -> dict[str, Any]:
    return {"$and": [{"conversation_id": conversation_id}, {"turn_index": {"$gte": first}}]}


def _place(turn: Document) -> tuple[int, str, str]:
    return turn["metadata"]["turn_index"], str(turn["metadata"].get("ts")), turn["id"]
