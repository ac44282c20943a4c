"""`MemoryGateway`: stores and finds an agent's turns and memories, in any backend."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from memories.config import load_config
from memories.context.memories_backend import MemoriesBackend
from memories.context.protocol import (
    Backend,
    Document,
    HistoryTurn,
    MCPError,
    MemoryItem,
    UnsupportedEndpoint,
    describe_error,
    metadata_of,
    to_document,
    with_zone,
)
from memories.core.deadline import Deadline, MemoryTimeout
from memories.core.ids import digest
from memories.core.logs import event
from memories.errors import ConfigError, InvalidInput
from memories.guard.validate import MAX_LIMIT, limit, one_line, shown, unit
from memories.memories import Memories
from memories.models import MAX_MESSAGE_CHARACTERS, MAX_TURN_CHARACTERS
from memories.stores.records import MAX_INDEX
from memories.write.turn_queue import Drained, Entry, RetryQueue

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor
    from memories.search.results import Hit


ENGINE = "memories"  # the endpoint of our own engine with the store from the settings
CHROMA_MCP = "chroma-mcp"  # the endpoint of a Chroma server, reached through the program chroma-mcp
TIMEOUT_SECONDS = 10.0  # the timeout for a backend that has no setting for it
_GENERATED = "gateway:"  # the prefix of generated message ids, which are never shown
_log = logging.getLogger(__name__)


class MemoryGateway:
    """Stores and finds turns and memories. It checks values, but makes no decisions.

    A turn that can't be stored is queued on disk. When the store responds again, queued turns are
    stored in order. Threads may share a gateway, and processes may share the store behind it. A
    gateway is a context manager.
    """

    def __init__(
        self,
        mcp_endpoint: str,
        *,
        backend: Backend | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Initialize; everything is opened on first use.

        Args:
            mcp_endpoint: `memories` for our own engine with the store from the settings, a store's
                URL, the path of a store's file, or `chroma-mcp` or `chroma-mcp://host:port` for a
                Chroma server.
            backend: A backend to use instead of the one that the endpoint names. `close` does not
                close this backend.
            timeout_seconds: How long to wait for a response from the store. [default: the backend's
                setting]

        Raises:
            ConnectionError: No backend supports the endpoint.
            ValueError: The endpoint is empty.
        """
        self._owned = backend is None
        self._backend = _open_backend(mcp_endpoint) if backend is None else backend
        self.mcp_endpoint = mcp_endpoint
        self.queue = RetryQueue.of_turns(*self._backend.folder_name)
        self._counts = {"message_count": 0, "memory_count": 0}
        if timeout_seconds is None:
            timeout_seconds = getattr(self._backend, "timeout_seconds", TIMEOUT_SECONDS)
        self._deadline = Deadline(timeout_seconds, whole=True)

    def settle(self) -> None:
        """Wait for timed-out calls to end, but no longer than a call may take.

        While one is still running, all other calls fail.
        """
        self._deadline.settle()

    def ensure_collections(self, names: list[str]) -> None:
        """Create the collections `history` and `memory` if they are missing; then store the queued
        turns.

        Raises:
            ValueError: A name is invalid.
            ConnectionError: The store does not respond.
            MCPError: The memory can't create a collection.
        """
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise InvalidInput("names must be a list of collection names")
        with self._log_call("collections are there", names=list(names)):
            self._deadline.run(self._backend.ensure_collections, names)
        try:
            self.drain()
        except (ConnectionError, MCPError) as exc:
            event(_log, logging.WARNING, "queued turns still can't be stored", error=str(exc))

    def append_history(  # noqa: PLR0913, PLR0917 - the specification's signature
        self,
        conversation_id: str,
        role: str,
        text: str,
        turn_index: int,
        ts: str,
        message_id: str | None = None,
        channel: str | None = None,
        *,
        long: bool = False,
    ) -> str:
        """Append a turn to a conversation.

        Queued turns are stored first. If the turn can't be stored now, it is queued, and an error
        is raised with `queued` set. Appending the turn again is harmless.

        Args:
            conversation_id: The conversation.
            role: `user`, `assistant` or `system`.
            text: The text, at most 100,000 characters. Secrets are removed before anything else.
            turn_index: The position in the conversation. Positions are unique: if this position or
                a later one is taken, the turn gets the position after the last turn. So 0 always
                appends the turn at the end. `tail_history` returns the actual position.
            ts: When it was said, ISO 8601.
            message_id: An id that is unique in the conversation: a second turn with the same id is
                not stored. Without an id, two turns count as the same only if all their arguments
                are equal.
            channel: Where it came from, such as `web`.
            long: Accept a text of up to `most_characters`. It is stored in parts that form a single
                turn.

        Returns:
            The turn's id.

        Raises:
            ValueError: A value is invalid; the turn is not queued.
            ConnectionError: The store does not respond.
            MCPError: The memory could not store the turn.
        """
        fields = (conversation_id, role, text, turn_index, ts, message_id, channel)
        max_characters = self.most_characters if long else MAX_TURN_CHARACTERS
        turn = HistoryTurn(*self._redact_turn(fields), most=max_characters)
        if turn.turn_index > MAX_INDEX:
            raise InvalidInput(f"turn_index must be a whole number from 0 to {MAX_INDEX}")
        if not turn.message_id:  # an id that is the same for turns with equal fields
            parts = (turn.conversation_id, turn.role, turn.text, str(turn.turn_index), turn.ts)
            turn.message_id = f"{_GENERATED}{digest(*parts, turn.channel or '')}"
        try:
            with self._log_call(
                "turn stored", conversation_id=conversation_id, role=role, counts="message_count"
            ):
                return self._deadline.run(self._append, turn)
        except (ConnectionError, MCPError) as exc:
            self._queue(turn, exc)
            raise

    def tail_history(self, conversation_id: str, n: int) -> list[Document]:
        """Return a conversation's last turns, oldest first.

        Queued turns come last, with `pending` in their metadata. If the store does not respond, but
        there are queued turns, only the queued turns are returned, with the reason in `error`.

        Args:
            conversation_id: The conversation.
            n: The number of turns, 1 to 1,000.

        Returns:
            Documents: `id`, `text`, and `metadata` with `conversation_id`, `role`, `ts`,
            `turn_index` and, if known, `message_id`, `channel` and `speaker`.

        Raises:
            ValueError: `n` is invalid.
            ConnectionError: The store does not respond.
            MCPError: The memory failed.
        """
        n = limit(n, "n")
        conversation = one_line(conversation_id, "conversation_id")
        with self._log_call("history read", conversation_id=conversation_id, n=n):
            # Read the queue first, so that a turn that is stored in the meantime is found twice. In
            # the other order, it might not be found at all.
            queued = self._queue_entries(conversation)
            count = min(n + len(queued), MAX_LIMIT)
            try:
                stored = self._deadline.run(self._backend.tail, conversation, count)
                pending = _number_pending(queued, stored)
            except (ConnectionError, MCPError) as exc:
                stored, pending = [], _number_pending(queued, [])
                if not pending:
                    raise
                for document in pending:
                    document["error"] = describe_error(exc)
                event(_log, logging.ERROR, "only queued turns could be read", error=str(exc))
        return _without_generated_ids((stored + pending)[-n:])

    def write_memory(  # noqa: PLR0913, PLR0917 - the specification's signature
        self,
        text: str,
        memory_type: str,
        confidence: float,
        ts: str,
        conversation_id: str | None = None,
        entities: str | None = None,
        source: str | None = None,
        tags: str | None = None,
        *,
        window: str | None = None,
    ) -> str:
        """Store a memory.

        Args:
            text: The text, at most 2,000 characters.
            memory_type: `preference`, `fact`, `project` or `decision`.
            confidence: The writer's confidence, 0 to 1.
            ts: When it was written, ISO 8601.
            conversation_id: The conversation that it comes from.
            entities: The people and things that it is about, separated by commas.
            source: `chat`, `tool` or `import`.
            tags: Words, separated by commas.
            window: The time window in which the memory is counted; see `count_window`.

        Returns:
            The id of the memory, or of an existing memory that says the same thing.

        Raises:
            ValueError: A value is invalid.
            ConnectionError: The store does not respond.
            MCPError: The memory could not be stored.
        """
        redactor = self._redactor()
        if conversation_id is not None:
            redactor.refuse(conversation_id, "conversation_id")
        item = MemoryItem(
            redactor.text(text, "text").text,
            memory_type,
            confidence,
            ts,
            conversation_id,
            entities and redactor.text(entities, "entities and tags").text,
            source,
            tags and redactor.text(tags, "entities and tags").text,
        )
        stored_window = None if window is None else self._window(window)
        with self._log_call(
            "memory stored",
            type=memory_type,
            conversation_id=conversation_id,
            counts="memory_count",
        ):
            return self._deadline.run(self._backend.write, item, stored_window)

    def recall_memory(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None = None
    ) -> list[Document]:
        """Search memories by meaning and by words, and return the best matches first.

        Args:
            query_text: The question. Only its first 4,096 characters are used.
            k: The maximum number of memories, 1 to 1,000.
            min_confidence: The minimum confidence, 0 to 1.
            conversation_id: Only memories from this conversation.

        Returns:
            Documents: `id`, `text`, `similarity` and `score`, 0 to 1, and `metadata` with `type`,
            `confidence`, `ts` and, if known, `conversation_id`, `entities`, `source` and `tags`.

        Raises:
            ValueError: A value is invalid.
            ConnectionError: The store does not respond.
            MCPError: The search failed.
        """
        k, min_confidence = limit(k, "k"), unit(min_confidence, "min_confidence")
        conversation = _check_search(query_text, conversation_id)
        with self._log_call("memories recalled", k=k) as fields:
            documents = self._deadline.run(
                self._backend.recall, query_text, k, min_confidence, conversation
            )
            fields["found"] = len(documents)
        return documents

    def recall_history(
        self, query_text: str, k: int, conversation_id: str | None = None, *, own: bool = False
    ) -> list[Document]:
        """Search turns by meaning and by words, and return the best matches first.

        Queued turns are not searched. A backend that can't search turns returns none.

        Args:
            query_text: The question. Only its first 4,096 characters are used.
            k: The maximum number of turns, 1 to 1,000.
            conversation_id: Only turns of this conversation. [default: turns of all conversations]
            own: Only turns in the caller's own namespace.

        Returns:
            Documents like those that `tail_history` returns, with `similarity` and `score`.

        Raises:
            ValueError: A value is invalid.
            ConnectionError: The store does not respond.
            MCPError: The search failed.
        """
        k = limit(k, "k")
        conversation = _check_search(query_text, conversation_id)
        if not hasattr(self._backend, "recall_turns"):
            return []
        options = {"own": True} if own else {}  # other backends may not have this parameter
        with self._log_call("history searched", k=k) as fields:
            documents = self._deadline.run(
                self._backend.recall_turns, query_text, k, conversation, **options
            )
            fields["found"] = len(documents)
        return _without_generated_ids(documents)

    def read_history(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return turns in a conversation, starting at an index, oldest first.

        Args:
            conversation_id: The conversation.
            start: The index of the first turn.
            n: The maximum number of turns, 1 to 1,000.

        Returns:
            Documents like those that `tail_history` returns.

        Raises:
            ValueError: A value is invalid.
            ConnectionError: The store does not respond.
            MCPError: The memory failed.
        """
        n, conversation = limit(n, "n"), one_line(conversation_id, "conversation_id")
        if type(start) is not int or start < 0:
            raise InvalidInput("start must be a whole number, 0 or more")
        if not hasattr(self._backend, "read_turns"):
            return []
        with self._log_call(
            "turns read", level=logging.DEBUG, conversation_id=conversation_id, start=start, n=n
        ):
            return _without_generated_ids(self._backend.read_turns(conversation, start, n))

    def count_window(self, window: str) -> int:
        """Return the number of memories stored in a time window, for `MemoryPolicy`.

        Raises:
            ConnectionError: The store does not respond.
            MCPError: The memories could not be counted.
        """
        stored_window = self._window(window)
        return self._deadline.run(self._backend.count_window, stored_window)

    def hold_windows(self) -> AbstractContextManager[None]:
        """Make other callers of this method wait during a block, so that counts stay accurate."""
        return self._backend.hold_windows()

    def drain(self) -> int:
        """Store the queued turns, in order; return how many were stored.

        Raises:
            ConnectionError: The store does not respond.
            MCPError: The memory could not store some of the turns; these stay queued.
        """
        drained = self._deadline.run(self._drain, None)
        if drained.failed:
            raise next(iter(drained.failed.values()))
        return drained.done

    @property
    def most_characters(self) -> int:
        """The maximum length of a turn that the backend accepts, in characters."""
        return int(getattr(self._backend, "most_characters", MAX_TURN_CHARACTERS))

    def close(self) -> None:
        """Close the backend, unless it was passed in."""
        if self._owned:
            with suppress(MemoryTimeout):  # a hanging call is abandoned; it ends with the process
                self._deadline.run(self._backend.close)
        self._deadline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the queue ---

    def _append(self, turn: HistoryTurn) -> str:
        """Store a turn, after the queued turns of its conversation.

        Raises:
            MCPError: Earlier turns of the conversation are still queued.
        """
        if self.queue:
            drained = self._drain(turn.conversation_id)
            if self._queue_entries(turn.conversation_id):
                reason = drained.failed.get(turn.conversation_id, "another process is storing them")
                raise MCPError(f"earlier turns of this conversation are still queued: {reason}")
        return self._backend.append(turn)

    def _drain(self, before: str | None) -> Drained:
        """Store the queued turns, starting with those of the conversation `before`, if given."""
        with _translate_queue_errors(self.queue):
            drained = self.queue.drain(self._append_queued, before=before)
        if drained.done:
            event(_log, logging.INFO, "queued turns stored", drained=drained.done)
        for conversation, error in drained.failed.items():
            event(
                _log,
                logging.WARNING,
                "queued turns are still waiting",
                conversation_id=conversation,
                error=str(error),
            )
        return drained

    def _append_queued(self, entry: Entry) -> str:
        """Store a queued turn, without any secrets that an older version may have queued."""
        fields = self._redact_turn(tuple(vars(_parse_queued(entry)).values()))
        return self._backend.append(HistoryTurn(*fields, most=MAX_MESSAGE_CHARACTERS))

    def _queue_entries(self, conversation_id: str) -> list[Entry]:
        with _translate_queue_errors(self.queue):
            return self.queue.entries(conversation_id)

    def _queue(self, turn: HistoryTurn, error: ConnectionError | MCPError) -> None:
        """Queue a turn, and record in `error` whether it could be queued."""
        error.queued = False  # type: ignore[union-attr]
        try:
            self.queue.add({**metadata_of(turn), "text": turn.text, "ts": with_zone(turn.ts)})
        except OSError as exc:
            event(
                _log,
                logging.ERROR,
                "turn lost: it could be neither stored nor queued",
                error=str(exc),
            )
            error.add_note(f"it could not be queued either: {exc}")
        else:
            error.queued = True  # type: ignore[union-attr]
            error.add_note(f"the turn is queued in {self.queue.path}")
            event(_log, logging.WARNING, "turn queued", conversation_id=turn.conversation_id)

    # --- values ---

    def _redactor(self) -> "Redactor":
        """Return the backend's redactor, or a default one if the backend has none."""
        from memories.guard.redactor import Redactor  # only needed for writing

        redactor = getattr(self._backend, "redactor", None)
        return redactor if isinstance(redactor, Redactor) else Redactor()

    def _redact_turn(self, fields: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a turn's fields with secrets removed. `HistoryTurn` checks their types later."""
        conversation, role, text, index, ts, message_id, *names = fields
        redactor = self._redactor()
        redactor.refuse(conversation, "conversation_id")
        message_id = message_id and redactor.name(message_id, "message id").text
        names = [name and redactor.text(name, "a name").text for name in names]
        return (conversation, role, redactor.text(text, "text").text, index, ts, message_id, *names)

    def _window(self, name: str) -> str:
        """Return the stored form of a window's name."""
        if not isinstance(name, str) or not name.strip():
            raise InvalidInput("window must be a non-empty string")
        return self._redactor().name(name, "window").text

    @contextmanager
    def _log_call(
        self, name: str, *, counts: str | None = None, level: int = logging.INFO, **fields: object
    ) -> Iterator[dict[str, object]]:
        """Log an operation with its latency or its error, and any fields that the block adds."""
        start = time.perf_counter()
        try:
            yield fields
        except (ConnectionError, MCPError, ValueError) as exc:
            kind = type(exc).__name__
            event(_log, logging.ERROR, f"failed: {name}", error=str(exc), kind=kind, **fields)
            raise
        if counts:
            self._counts[counts] += 1
            fields[counts] = self._counts[counts]
        latency = round((time.perf_counter() - start) * 1000, 2)
        event(_log, level, name, query_latency_ms=latency, **fields)


def _open_backend(endpoint: str) -> Backend:
    """Return the backend for an endpoint. New kinds of backends are added here.

    Raises:
        UnsupportedEndpoint: No backend supports the endpoint.
        InvalidInput: The endpoint is empty.
    """
    if not isinstance(endpoint, str) or not endpoint.strip():
        raise InvalidInput('the endpoint is empty; pass "memories", the URL of a store, or a path')
    endpoint = endpoint.strip()
    if endpoint == ENGINE:
        return MemoriesBackend(Memories(), owned=True)
    if endpoint == CHROMA_MCP or endpoint.startswith(f"{CHROMA_MCP}://"):
        from memories.context.chroma_mcp import ChromaMcpBackend  # asyncio takes a while to load

        config = load_config()
        return ChromaMcpBackend.at(
            endpoint, config.chromadb_host, config.chromadb_port, config.home
        )
    refusal = (
        f'endpoint "{shown(endpoint)}" is not supported yet; use {ENGINE}, {CHROMA_MCP}, a URL, or '
        "a path"
    )
    url = endpoint
    if "://" not in endpoint:
        if "/" not in endpoint and not endpoint.endswith(".db"):
            raise UnsupportedEndpoint(refusal)
        url = f"sqlite:///{Path(endpoint).expanduser().absolute()}"
    try:
        return MemoriesBackend(Memories(url), owned=True)
    except ConfigError as exc:
        if "embedder" in str(exc).lower():
            raise
        raise UnsupportedEndpoint(f"{refusal} ({exc})") from exc


@contextmanager
def _translate_queue_errors(queue: RetryQueue) -> Iterator[None]:
    """Raise `MCPError` if the queue's files are unusable."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as exc:
        raise MCPError(f"the queue {queue.path} can't be used: {exc.strerror or exc}") from exc


def _check_search(query_text: object, conversation_id: str | None) -> str | None:
    """Check a query's text, and return the stored form of a conversation's id."""
    if not isinstance(query_text, str):
        raise InvalidInput(f"query_text is of type {type(query_text).__name__}; pass a string")
    return None if conversation_id is None else one_line(conversation_id, "conversation_id")


# --- generated message ids ---


def new_message_id() -> str:
    """Return a unique message id, which is never shown."""
    return f"{_GENERATED}{os.urandom(16).hex()}"


def _without_generated_ids(documents: list[Document]) -> list[Document]:
    for document in documents:
        if str(document["metadata"].get("message_id")).startswith(_GENERATED):
            del document["metadata"]["message_id"]
    return documents


# --- queued turns ---


def _parse_queued(entry: Entry) -> HistoryTurn:
    try:
        return HistoryTurn(**entry, most=MAX_MESSAGE_CHARACTERS)
    except TypeError as exc:
        raise InvalidInput(f"a queued entry is not a turn: {exc}") from exc


def _number_pending(queued: Sequence[Entry], stored: Sequence[Document]) -> list[Document]:
    """Return the queued turns that are not stored yet, numbered after the stored turns."""
    message_ids = {document["metadata"].get("message_id") for document in stored}
    last = -1
    if stored:
        last = stored[-1]["metadata"]["turn_index"]
    pending: list[Document] = []
    for entry in queued:
        try:
            turn = _parse_queued(entry)
        except InvalidInput:
            continue  # not a valid turn; the next drain sets it aside
        if turn.message_id in message_ids:
            continue
        message_ids.add(turn.message_id)
        last = max(last + 1, turn.turn_index)
        metadata = {**metadata_of(turn), "turn_index": last, "pending": True}
        pending.append(to_document(f"pending#{turn.message_id}", turn.text, metadata))
    return pending


# --- without the store


class WithScratchpad(MemoryGateway):
    """A gateway that can fall back to the scratchpad.

    Attributes:
        degraded: Whether the scratchpad has been used.
    """

    def __init__(
        self,
        memories: Memories,
        *,
        backend: Backend | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Initialize with a memory's endpoint and scratchpad; see `MemoryGateway`."""
        endpoint = memories.config.mcp_endpoint
        super().__init__(endpoint, backend=backend, timeout_seconds=timeout_seconds)
        self._memories = memories
        place = memories.place
        self._projects: Sequence[str] = () if place is None else place.names
        self.degraded = False

    def recall_offline(self, query_text: str, k: int, min_confidence: float) -> list[Document]:
        """Search the scratchpad. Without a scratchpad file, nothing is found."""
        if not self._memories.has_scratchpad:
            return []
        from memories.context.memories_backend import (
            memory_document,  # not needed while the store responds
        )

        try:
            results = self._memories.search_scratchpad(
                query_text, offline=True, limit=k, min_confidence=min_confidence
            ).explanation
        except InvalidInput:  # not a valid query
            return []
        self.degraded = True
        documents = []
        for hit in self.select_offline(query_text, results.hits):
            document = memory_document(hit, self._projects)
            document["own"] = hit.memory.namespace == self._memories.namespace
            document["shared"] = not document["own"]
            documents.append(document)
        return documents

    def select_offline(
        self,
        query_text: str,  # noqa: ARG002 - for subclasses
        hits: "Sequence[Hit]",
    ) -> "Sequence[Hit]":
        """Return the hits to recall: all of them, unless a subclass selects some."""
        return hits
