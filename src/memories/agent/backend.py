"""What stands behind a `MemoryGateway`: the protocol, and our own engine as the first of them."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from memories.agent.payloads import Document, HistoryTurn, InvalidPayload, MemoryItem, moment, timestamp
from memories.disk import locked
from memories.errors import InvalidInput, MemoriesError, StoreUnreachable, SystemFault
from memories.logs import event
from memories.models import Memory
from memories.search.results import Hit
from memories.service import Memories
from memories.stores.records import Collection
from memories.turns import Turn, TurnDraft
from memories.validate import MAX_QUERY_CHARACTERS, MAX_TAG_VALUE, content
from memories.write.queue import files_of

_WINDOW, _CHANNEL = "window", "channel"  # tags
_TYPE, _CONVERSATION = "type", "conversation_id"
_log = logging.getLogger(__name__)
_LISTED = ("entities", "source", "tags")


class MCPError(SystemFault):
    """The memory behind a gateway could not do it.

    Attributes:
        queued: Whether the turn that was to be appended waits in the queue on disk, to be stored later.
    """

    queued = False


class UnsupportedEndpoint(ConnectionError):
    """Nothing here can speak to such an endpoint; trying again does not help."""


class Backend(Protocol):
    """Keeps turns and memories for a gateway, which has checked all values.

    Rules for every backend:

    - A turn has been stored durably when `append` returns; of two turns of a conversation with one `message_id` the
      second is not stored, and the id of the first is returned.
    - Turns are numbered in the order in which they are stored, without two that have one number.
    - Errors are `ConnectionError` (nobody answers), `MCPError` (it could not do it), `InvalidPayload`; no other comes
      through.
    - A document is `{"id", "text", "metadata"}`; one that was searched for also has `similarity` and `score`.
    """

    @property
    def folder_name(self) -> tuple[Path, str]:
        """Where the gateway may keep files for this backend, and how their names begin."""
        ...

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Make sure that these collections are there."""
        ...

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn at the end of its conversation, and return its id."""
        ...

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns of a conversation, oldest first."""
        ...

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory, counted in a window, and return its id; one that says the same already may serve."""
        ...

    def recall(self, query_text: str, k: int, min_confidence: float, conversation_id: str | None) -> list[Document]:
        """Return the memories that answer a query, best first."""
        ...

    def count_window(self, window: str) -> int:
        """Return how many memories of a window are stored."""
        ...

    def hold_windows(self) -> AbstractContextManager[None]:
        """Keep other processes from storing memories in windows, so that what was counted still holds."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class EngineBackend:
    """Our own engine, over any of its stores."""

    def __init__(self, memories: Memories, *, owned: bool = False) -> None:
        """Work on a memory; it is closed by `close` if it is `owned`."""
        self.memories = memories
        self._owned = owned

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The folder of the store if it is a file, else the home; each namespace has files of its own."""
        return files_of(self.memories.config, self.memories.namespace)

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Check that the store answers; its two collections are always there.

        Raises:
            MCPError: It does not, or there is no collection of that name.
        """
        unknown = [name for name in names if name not in tuple(Collection)]
        if unknown:
            known = ", ".join(Collection)
            raise MCPError(f'there is no collection "{unknown[0]}" and this memory makes no others; it has {known}')
        with _translated():
            self.memories.status()

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn; the store numbers it, in the order in which turns reach it."""
        draft = TurnDraft(
            turn.text,
            role=turn.role,
            speaker=turn.speaker,
            created_at=moment(turn.ts),
            message_id=turn.message_id,
            tags={} if turn.channel is None else {_CHANNEL: turn.channel},
            index=turn.turn_index,
        )
        with _translated():
            [stored] = self.memories.add_turns(turn.conversation_id, [draft])
        if stored.content != content(turn.text):
            event(_log, logging.WARNING, "message id was used before: nothing stored", message_id=turn.message_id)
        return stored.id

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns."""
        with _translated():
            return [_turn_document(turn) for turn in self.memories.tail_turns(conversation_id, limit=n)]

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory. One that says the same serves if a recall finds it wherever it would find this one.

        That is one of the same type and conversation that is as sure; a surer one replaces it.
        """
        known = {
            _TYPE: item.memory_type,
            _CONVERSATION: item.conversation_id,
            "entities": item.entities,
            "source": item.source,
            "tags": item.tags,
            _WINDOW: None if window is None else _window_tag(window),
        }
        draft: dict[str, Any] = {
            "tags": {name: value for name, value in known.items() if value is not None},
            "confidence": item.confidence,
            "created_at": moment(item.ts),
        }
        sure = round(item.confidence, 4)  # as confidences are shown
        with _translated():
            made = self.memories.create(item.text, **draft)
            if made.stored and made.memory:
                return made.memory.id
            alike = [made.memory] if made.memory else [self.memories.get(found.id) for found in made.duplicates]
            alike = [memory for memory in alike if _kind(memory.tags) == _kind(draft["tags"])]
            serving = next((memory for memory in alike if memory.confidence >= sure), None)
            if serving is None and made.memory in alike:
                serving = self.memories.create(item.text, supersedes=made.memory.id, **draft).memory
            return (serving or self._forced(item.text, draft)).id

    def _forced(self, text: str, draft: Mapping[str, Any]) -> Memory:
        memory = self.memories.create(text, force=True, **draft).memory
        assert memory is not None  # nothing is compared
        return memory

    def recall(self, query_text: str, k: int, min_confidence: float, conversation_id: str | None) -> list[Document]:
        """Search the memories; of a long text only the beginning is looked for."""
        tags = {} if conversation_id is None else {_CONVERSATION: conversation_id}
        with _translated():
            query = query_text[:MAX_QUERY_CHARACTERS]
            return [
                _memory_document(hit)
                for hit in self.memories.search(query, limit=k, min_confidence=min_confidence, tags=tags)
            ]

    def count_window(self, window: str) -> int:
        """Count the memories that are tagged with the window; what others share does not count."""
        with _translated():
            found = self.memories.list(tags={_WINDOW: _window_tag(window)}, limit=1_000).memories
        return sum(memory.namespace == self.memories.namespace for memory in found)

    @contextmanager
    def hold_windows(self) -> Iterator[None]:
        """Take a lock beside the store."""
        folder, name = self.folder_name
        with locked(folder / f"{name}.windows.lock"):
            yield

    def close(self) -> None:
        """Close the memory, if it is owned."""
        if self._owned:
            self.memories.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the errors of a gateway for those of the engine."""
    try:
        yield
    except InvalidInput as exc:
        raise InvalidPayload(str(exc)) from exc
    except StoreUnreachable as exc:
        raise ConnectionError(str(exc)) from exc
    except MemoriesError as exc:
        raise MCPError(str(exc)) from exc
    except ConnectionError:
        raise
    except OSError as exc:
        raise MCPError(f"the system refused: {exc.strerror or exc}") from exc


def _kind(tags: Mapping[str, str]) -> tuple[str | None, str | None]:
    return tags.get(_TYPE), tags.get(_CONVERSATION)


def _window_tag(window: str) -> str:
    """Return the tag of a window; what can't be a tag's value is told apart by its hash."""
    if len(window) <= MAX_TAG_VALUE and window.isprintable() and "," not in window and window == window.strip():
        return window
    return f"hash {hashlib.blake2b(window.encode('utf-8', 'backslashreplace'), digest_size=16).hexdigest()}"


def _turn_document(turn: Turn) -> Document:
    metadata = {
        "conversation_id": turn.conversation_id,
        "role": turn.role,
        "ts": timestamp(turn.created_at),
        "turn_index": turn.index,
    }
    optional = {"message_id": turn.message_id, "channel": turn.tags.get(_CHANNEL), "speaker": turn.speaker}
    metadata |= {name: value for name, value in optional.items() if value is not None}
    return {"id": turn.id, "text": turn.content, "metadata": metadata}


def _memory_document(hit: Hit) -> Document:
    memory: Memory = hit.memory
    metadata = {
        "type": memory.tags.get(_TYPE, ""),
        "confidence": memory.confidence,
        "ts": timestamp(memory.updated_at),
        "namespace": memory.namespace,
    }
    metadata |= {name: memory.tags[name] for name in (_CONVERSATION, *_LISTED, "agent") if name in memory.tags}
    similarity = hit.score if hit.similarity is None else hit.similarity
    return {"id": memory.id, "text": memory.content, "metadata": metadata, "similarity": similarity, "score": hit.score}
