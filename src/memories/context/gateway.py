"""`MemoryGateway`: how an agent stores and finds turns and memories, whatever the backend."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from memories.config import load_config
from memories.context.backend import Backend, MCPError, UnsupportedEndpoint
from memories.context.engine import EngineBackend
from memories.context.payloads import (
    Document,
    HistoryTurn,
    MemoryItem,
    aware,
    document,
    metadata_of,
)
from memories.core.deadline import Deadline, MemoryTimeout
from memories.core.ids import digest
from memories.core.logs import event
from memories.errors import ConfigError, InvalidInput
from memories.guard.validate import MAX_LIMIT, limit, one_line, shown, unit
from memories.memories import Memories
from memories.models import MAX_MESSAGE_CHARACTERS, MAX_TURN_CHARACTERS
from memories.stores.records import MAX_INDEX
from memories.write.queue import Drained, Entry, RetryQueue

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

ENGINE = "memories"  # the endpoint of our own engine with the store of the settings
CHROMA_MCP = "chroma-mcp"  # the endpoint of a Chroma server, through the program of that name
TIMEOUT_SECONDS = 10.0  # for a backend that has no setting
_OWN_ID = "gateway:"  # prefix of message ids that are made here; they are never shown
_log = logging.getLogger(__name__)


class MemoryGateway:
    """Stores and finds turns and memories. It checks values and decides nothing.

    A turn that can't be stored is put into a queue on disk, and stored, in order, when the memory
    answers again. Threads may share a gateway, and processes its memory. It is a context manager.
    """

    def __init__(
        self,
        mcp_endpoint: str,
        *,
        backend: Backend | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Prepare a gateway; nothing is opened before it is needed.

        Args:
            mcp_endpoint: `memories` for our own engine with the store of the settings, a store's
                URL, the path of a store's file, or `chroma-mcp` or `chroma-mcp://host:port` for a
                Chroma server.
            backend: The backend, instead of the one that the endpoint names; `close` does not close
                it.
            timeout_seconds: How long to wait for an answer of the memory. [default: the setting of
                the backend]

        Raises:
            ConnectionError: No backend can speak to that endpoint.
            ValueError: It is empty.
        """
        self._owned = backend is None
        self._backend = _open_backend(mcp_endpoint) if backend is None else backend
        self.mcp_endpoint = mcp_endpoint
        self.queue = RetryQueue.of_turns(*self._backend.folder_name)
        self._counts = {"message_count": 0, "memory_count": 0}
        of_backend = getattr(self._backend, "timeout_seconds", TIMEOUT_SECONDS)
        self._deadline = Deadline(
            of_backend if timeout_seconds is None else timeout_seconds, whole=True
        )

    def settle(self) -> None:
        """Wait for calls that took too long, as long as a call may take: while one still runs, all
        others fail.
        """
        self._deadline.settle()

    def ensure_collections(self, names: list[str]) -> None:
        """Make sure that the collections `history` and `memory` exist; then store what waits in the
        queue.

        Raises:
            ValueError: A name is not acceptable.
            ConnectionError: The memory does not answer.
            MCPError: It can't make this collection.
        """
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise InvalidInput("names must be a list of names of collections")
        with self._timed("collections are there", names=list(names)):
            self._deadline.run(lambda: self._backend.ensure_collections(names))
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

        What waits in the queue is stored first. A turn that can't be stored now goes into the
        queue, and the error has `queued` set. Appending it again does no harm.

        Args:
            conversation_id: The conversation.
            role: `user`, `assistant` or `system`.
            text: What was said, at most 100,000 characters. Secrets are taken out before anything
                else is done.
            turn_index: Its place. If this or a later place is taken, the turn gets the next free
                one, so that two writers never share a number; `tail_history` shows it. So 0 means:
                at the end.
            ts: When it was said, ISO 8601.
            message_id: Its id in the conversation: a second turn with the same one is not stored
                again. Without one, only a turn that is the same in everything counts as the same.
            channel: Where it came from, such as `web`.
            long: Accept a longer text, of `most_characters`, which is kept in parts that are one
                turn.

        Returns:
            The turn's id.

        Raises:
            ValueError: A value is not acceptable; it is not queued.
            ConnectionError: The memory does not answer.
            MCPError: It could not store the turn.
        """
        fields = (conversation_id, role, text, turn_index, ts, message_id, channel)
        most = self.most_characters if long else MAX_TURN_CHARACTERS
        turn = HistoryTurn(*self._without_secrets(fields), most=most)
        if turn.turn_index > MAX_INDEX:
            raise InvalidInput(f"turn_index must be a whole number from 0 to {MAX_INDEX}")
        if not turn.message_id:  # the same for a turn that is the same in everything
            parts = (
                turn.conversation_id,
                turn.role,
                turn.text,
                str(turn.turn_index),
                turn.ts,
                turn.channel or "",
            )
            turn.message_id = f"{_OWN_ID}{digest(*parts)}"
        try:
            with self._timed(
                "turn stored", conversation_id=conversation_id, role=role, counts="message_count"
            ):
                return self._deadline.run(lambda: self._append(turn))
        except (ConnectionError, MCPError) as exc:
            self._queue(turn, exc)
            raise

    def tail_history(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns of a conversation, oldest first.

        Turns that wait in the queue come last; their metadata has `pending`. If the memory does not
        answer and some wait, they are returned alone, and each document has `error`, which says
        why.

        Args:
            conversation_id: The conversation.
            n: How many, 1 to 1,000.

        Returns:
            Documents: `id`, `text`, and `metadata` with `conversation_id`, `role`, `ts`,
                `turn_index` and, if known,
            `message_id`, `channel` and `speaker`.

        Raises:
            ValueError: `n` is not acceptable.
            ConnectionError: The memory does not answer.
            MCPError: It could not read.
        """
        wanted = limit(n, "n")
        conversation = one_line(conversation_id, "conversation_id")
        with self._timed("history read", conversation_id=conversation_id, n=n):
            waiting = self._waiting(
                conversation
            )  # first: a turn stored meanwhile is then seen twice, not never
            most = min(wanted + len(waiting), MAX_LIMIT)
            try:
                stored = self._deadline.run(lambda: self._backend.tail(conversation, most))
                pending = _pending(waiting, stored)
            except (ConnectionError, MCPError) as exc:
                stored, pending = (
                    [],
                    [found | {"error": _in_one_line(exc)} for found in _pending(waiting, [])],
                )
                if not pending:
                    raise
                event(_log, logging.ERROR, "only queued turns could be read", error=str(exc))
        return _without_own_ids((stored + pending)[-wanted:])

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
            text: What is to be remembered, at most 2,000 characters.
            memory_type: `preference`, `fact`, `project` or `decision`.
            confidence: How sure its writer is, 0 to 1.
            ts: When it was written, ISO 8601.
            conversation_id: The conversation that it comes from.
            entities: People and things it is about, separated by commas.
            source: `chat`, `tool` or `import`.
            tags: Words, separated by commas.
            window: The window that it counts in; see `count_window`.

        Returns:
            The memory's id: of this one, or of one that says the same already.

        Raises:
            ValueError: A value is not acceptable.
            ConnectionError: The memory does not answer.
            MCPError: It could not store it.
        """
        redactor = self._redactor()
        if conversation_id is not None:
            redactor.refuse(conversation_id, "conversation_id")
        said = redactor.text(text, "text").text
        about, words = (
            each and redactor.text(each, "entities and tags").text for each in (entities, tags)
        )
        item = MemoryItem(said, memory_type, confidence, ts, conversation_id, about, source, words)
        counted = None if window is None else self._window(window)
        with self._timed(
            "memory stored",
            type=memory_type,
            conversation_id=conversation_id,
            counts="memory_count",
        ):
            return self._deadline.run(lambda: self._backend.write(item, counted))

    def recall_memory(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None = None
    ) -> list[Document]:
        """Return the memories that answer a query, by meaning and by word, best first.

        Args:
            query_text: The question; only the first 4,096 characters of a long one count.
            k: How many at most, 1 to 1,000.
            min_confidence: The lowest confidence, 0 to 1.
            conversation_id: Only memories of this conversation.

        Returns:
            Documents: `id`, `text`, `similarity` and `score`, 0 to 1, and `metadata` with `type`,
                `confidence`, `ts`
            and, if known, `conversation_id`, `entities`, `source` and `tags`.

        Raises:
            ValueError: A value is not acceptable.
            ConnectionError: The memory does not answer.
            MCPError: It could not search.
        """
        wanted, least = limit(k, "k"), unit(min_confidence, "min_confidence")
        if not isinstance(query_text, str):
            raise InvalidInput(f"query_text is of type {type(query_text).__name__}; give text")
        conversation = (
            None if conversation_id is None else one_line(conversation_id, "conversation_id")
        )
        with self._timed("memories recalled", k=k) as known:
            found = self._deadline.run(
                lambda: self._backend.recall(query_text, wanted, least, conversation)
            )
            known["found"] = len(found)
        return found

    def recall_history(
        self, query_text: str, k: int, conversation_id: str | None = None, *, own: bool = False
    ) -> list[Document]:
        """Return the turns that answer a query, by meaning and by word, best first.

        Turns that wait in the queue are not among them. A backend that can't search turns finds
        none.

        Args:
            query_text: The question; only the first 4,096 characters of a long one count.
            k: How many at most, 1 to 1,000.
            conversation_id: Only turns of this conversation. [default: of all]
            own: Only turns of one's own namespace.

        Returns:
            Documents as `tail_history` returns them, with `similarity` and `score`.

        Raises:
            ValueError: A value is not acceptable.
            ConnectionError: The memory does not answer.
            MCPError: It could not search.
        """
        wanted = limit(k, "k")
        if not isinstance(query_text, str):
            raise InvalidInput(f"query_text is of type {type(query_text).__name__}; give text")
        conversation = (
            None if conversation_id is None else one_line(conversation_id, "conversation_id")
        )
        if not hasattr(self._backend, "recall_turns"):
            return []
        with self._timed("history searched", k=k) as known:
            only = {"own": True} if own else {}  # which no other backend than ours is asked
            found = self._deadline.run(
                lambda: self._backend.recall_turns(query_text, wanted, conversation, **only)
            )
            known["found"] = len(found)
        return _without_own_ids(found)

    def read_history(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return the turns of a conversation from a number on, oldest first, as `tail_history`
        returns them.

        Args:
            conversation_id: The conversation.
            start: The number of the first one.
            n: How many at most, 1 to 1,000.

        Raises:
            ValueError: A value is not acceptable.
            ConnectionError: The memory does not answer.
            MCPError: It could not read.
        """
        wanted, conversation = limit(n, "n"), one_line(conversation_id, "conversation_id")
        if type(start) is not int or start < 0:
            raise InvalidInput("start must be a whole number, 0 or more")
        if not hasattr(self._backend, "read_turns"):
            return []
        with self._timed(
            "turns read", level=logging.DEBUG, conversation_id=conversation_id, start=start, n=n
        ):
            return _without_own_ids(self._backend.read_turns(conversation, start, wanted))

    def count_window(self, window: str) -> int:
        """Return how many memories of a window are stored, for `MemoryPolicy`.

        Raises:
            ConnectionError: The memory does not answer.
            MCPError: It could not count.
        """
        named = self._window(window)
        return self._deadline.run(lambda: self._backend.count_window(named))

    def hold_windows(self) -> AbstractContextManager[None]:
        """Keep other users of `hold_windows` out while inside, so that a count stays true until
        then.
        """
        return self._backend.hold_windows()

    def drain(self) -> int:
        """Store the turns that wait in the queue, in order; return how many were stored.

        Raises:
            ConnectionError: The memory does not answer.
            MCPError: It could not store them; those that remain stay in the queue.
        """
        drained = self._deadline.run(lambda: self._drain(None))
        if drained.failed:
            raise next(iter(drained.failed.values()))
        return drained.done

    @property
    def most_characters(self) -> int:
        """How long a text the backend keeps as one turn."""
        return int(getattr(self._backend, "most_characters", MAX_TURN_CHARACTERS))

    def close(self) -> None:
        """Close the backend, unless it was passed in."""
        if self._owned:
            with suppress(MemoryTimeout):  # what hangs is left to the end of the process
                self._deadline.run(self._backend.close)
        self._deadline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside
    # ----------------------------------------------------------------------------------------------------

    def _append(self, turn: HistoryTurn) -> str:
        """Store a turn behind those of its conversation that wait."""
        self._drain_before(turn.conversation_id)
        return self._backend.append(turn)

    def _drain(self, before: str | None) -> Drained:
        with _readable_queue(self.queue):
            drained = self.queue.drain(
                lambda entry: self._backend.append(self._entry(entry)), before=before
            )
        if drained.done:
            event(_log, logging.INFO, "queued turns stored", drained=drained.done)
        for conversation, error in drained.failed.items():
            event(
                _log,
                logging.WARNING,
                "queued turns wait on",
                conversation_id=conversation,
                error=str(error),
            )
        return drained

    def _drain_before(self, conversation_id: str) -> None:
        """Store what waits, beginning with one conversation: its new turns must not come first.

        Raises:
            MCPError: Turns of this conversation still wait.
        """
        if not self.queue:
            return
        drained = self._drain(conversation_id)
        if self._waiting(conversation_id):
            reason = drained.failed.get(conversation_id, "somebody else is storing them")
            raise MCPError(f"earlier turns of this conversation still wait to be stored: {reason}")

    def _redactor(self) -> "Redactor":
        """Return what takes secrets out; a backend of somebody else may have none of its own."""
        from memories.guard.redactor import Redactor  # reading does without it

        own = getattr(self._backend, "redactor", None)
        return own if isinstance(own, Redactor) else Redactor()

    def _without_secrets(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the fields of a turn as they may be stored, queued and logged; wrong types are
        left for the turn.
        """
        conversation, role, text, index, ts, message_id, channel, *rest = given
        redactor = self._redactor()
        redactor.refuse(conversation, "conversation_id")
        named = message_id and redactor.name(message_id, "message id").text
        more = (each and redactor.text(each, "a name").text for each in (channel, *rest))
        return (conversation, role, redactor.text(text, "text").text, index, ts, named, *more)

    def _entry(self, entry: Entry) -> HistoryTurn:
        """Return the turn of a queued entry; one of an older program may hold what is taken out
        now.
        """
        known = tuple(vars(_turn(entry)).values())
        return HistoryTurn(*self._without_secrets(known), most=MAX_MESSAGE_CHARACTERS)

    def _window(self, name: str) -> str:
        """Return the name of a window as it is stored, which is also how it is counted."""
        if not isinstance(name, str) or not name.strip():
            raise InvalidInput("window must be text that is not empty")
        return self._redactor().name(name, "window").text

    def _waiting(self, conversation_id: str) -> list[Entry]:
        with _readable_queue(self.queue):
            return self.queue.entries(conversation_id)

    def _queue(self, turn: HistoryTurn, error: ConnectionError | MCPError) -> None:
        """Put a turn into the queue, and note in the error whether that worked."""
        error.queued = False  # type: ignore[union-attr]
        try:
            self.queue.add(metadata_of(turn) | {"text": turn.text, "ts": aware(turn.ts)})
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
            error.add_note(f"the turn waits in {self.queue.path}")
            event(_log, logging.WARNING, "turn queued", conversation_id=turn.conversation_id)

    @contextmanager
    def _timed(
        self, name: str, *, counts: str | None = None, level: int = logging.INFO, **fields: object
    ) -> Iterator[dict[str, object]]:
        """Log an operation with its latency, as an error if it fails, and with what the caller puts
        into the dict.
        """
        began = time.perf_counter()
        known = dict(fields)
        try:
            yield known
        except (ConnectionError, MCPError, ValueError) as exc:
            event(
                _log,
                logging.ERROR,
                f"failed: {name}",
                error=str(exc),
                kind=type(exc).__name__,
                **known,
            )
            raise
        if counts:
            self._counts[counts] += 1
            known[counts] = self._counts[counts]
        event(
            _log,
            level,
            name,
            query_latency_ms=round((time.perf_counter() - began) * 1000, 2),
            **known,
        )


def _open_backend(endpoint: str) -> Backend:
    """Return the backend of an endpoint; other kinds are added here.

    Raises:
        UnsupportedEndpoint: There is none for it.
        InvalidInput: It is empty.
    """
    if not isinstance(endpoint, str) or not endpoint.strip():
        raise InvalidInput("the endpoint is empty; give memories, a store's URL, or a path")
    given = endpoint.strip()
    if given == ENGINE:
        return EngineBackend(Memories(), owned=True)
    if given == CHROMA_MCP or given.startswith(f"{CHROMA_MCP}://"):
        from memories.context.chroma_mcp import ChromaMcpBackend  # asyncio takes a while to load

        config = load_config()
        return ChromaMcpBackend.at(given, config.chromadb_host, config.chromadb_port, config.home)
    if "://" in given:
        url = given
    elif "/" in given or given.endswith(".db"):
        url = f"sqlite:///{Path(given).expanduser().absolute()}"
    else:
        raise UnsupportedEndpoint(_refusal(given))
    try:
        return EngineBackend(Memories(url), owned=True)
    except ConfigError as exc:
        if "embedder" in str(exc).lower():
            raise
        raise UnsupportedEndpoint(f"{_refusal(given)} ({exc})") from exc


def _refusal(endpoint: str) -> str:
    return f'endpoint "{shown(endpoint)}" is not supported yet; use {ENGINE}, {CHROMA_MCP}, a URL, or a path'


def new_message_id() -> str:
    """Return a message id that no other turn has; it is never shown."""
    return f"{_OWN_ID}{os.urandom(16).hex()}"


@contextmanager
def _readable_queue(queue: RetryQueue) -> Iterator[None]:
    """Raise MCPError where the files of the queue can't be used."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as exc:
        raise MCPError(f"the queue {queue.path} can't be used: {exc.strerror or exc}") from exc


def _in_one_line(exc: Exception) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__


def _turn(entry: Entry) -> HistoryTurn:
    try:
        return HistoryTurn(**entry, most=MAX_MESSAGE_CHARACTERS)
    except TypeError as exc:
        raise InvalidInput(f"a queued entry is no turn: {exc}") from exc


def _without_own_ids(documents: list[Document]) -> list[Document]:
    """Return documents without the message ids that were made here, which are nobody's."""
    for found in documents:
        if str(found["metadata"].get("message_id")).startswith(_OWN_ID):
            del found["metadata"]["message_id"]
    return documents


def _pending(waiting: list[Entry], stored: list[Document]) -> list[Document]:
    """Return the turns that wait and are not stored yet, numbered on from those that are."""
    known = {found["metadata"].get("message_id") for found in stored}
    last = stored[-1]["metadata"]["turn_index"] if stored else -1
    pending: list[Document] = []
    for entry in waiting:
        try:
            turn = _turn(entry)
        except InvalidInput:
            continue  # the next drain finds this too, and puts it aside
        if turn.message_id in known:
            continue
        known.add(turn.message_id)
        last = max(last + 1, turn.turn_index)
        metadata = metadata_of(turn) | {"turn_index": last, "pending": True}
        pending.append(document(f"pending#{turn.message_id}", turn.text, metadata))
    return pending
