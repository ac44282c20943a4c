"""Our own engine as a backend of a `MemoryGateway`, over any of its stores."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories.context.backend import MCPError
from memories.context.payloads import (
    Document,
    HistoryTurn,
    MemoryItem,
    document,
    in_its_zone,
    moment,
    present,
)
from memories.core.disk import locked
from memories.core.times import to_iso
from memories.errors import InvalidInput, MemoriesError, RequestError
from memories.guard.origin import IMPORTED, user
from memories.guard.validate import MAX_QUERY_CHARACTERS, MAX_TAG_VALUE
from memories.memories import Memories
from memories.models import Memory
from memories.read.turns import Turn, TurnDraft
from memories.search.results import Hit
from memories.stores.records import SEARCHED
from memories.write.queue import files_of

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

_WINDOW, _CHANNEL, _TS = "window", "channel", "ts"  # tags
_TYPE, _CONVERSATION = "type", "conversation_id"
_LISTED = ("entities", "source", "tags")


class EngineBackend:
    """Our own engine, over any of its stores."""

    # of a turn; a long one is kept in parts, and its vectors take a while
    most_characters = 1_000_000

    def __init__(
        self, memories: Memories, *, owned: bool = False, include_corrected: bool = False
    ) -> None:
        """Work on a memory.

        Args:
            memories: The memory.
            owned: Close it by `close`.
            include_corrected: Also recall a memory that another one recalled with it corrects.
        """
        self.memories = memories
        self._include_corrected = include_corrected
        self._owned = owned

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The folder of the store if it is a file, else the home; each namespace has files of its
        own.
        """
        return files_of(self.memories.config, self.memories.namespace)

    @property
    def redactor(self) -> "Redactor":
        """As the settings of the memory want it."""
        return self.memories.config.redactor()

    @property
    def timeout_seconds(self) -> float | None:
        """How long a call may take, by the settings of the memory."""
        return self.memories.config.memory_timeout_seconds

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Check that the store answers; its two collections are always there.

        Raises:
            MCPError: It does not, or there is no collection of that name.
        """
        unknown = [name for name in names if name not in SEARCHED]
        if unknown:
            known = ", ".join(SEARCHED)
            raise MCPError(
                f'there is no collection "{unknown[0]}" and this memory makes no others; it has {known}'
            )
        with _translated():
            self.memories.status()

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn; the store numbers it, in the order in which turns reach it."""
        draft = TurnDraft(
            turn.text,
            role=turn.role,
            speaker=turn.speaker,
            created_at=in_its_zone(turn.ts),
            message_id=turn.message_id,
            tags={} if turn.channel is None else {_CHANNEL: turn.channel},
            index=turn.turn_index,
        )
        with _translated():
            try:
                [stored] = self.memories.add_turns(turn.conversation_id, [draft])
            except RequestError as exc:  # it will never be accepted, so it must not wait in a queue
                raise InvalidInput(str(exc)) from exc
        if stored.reason is not None:
            raise InvalidInput(f"the turn was not stored: {stored.reason}")
        return stored.id

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last turns."""
        with _translated():
            found = self.memories.tail_turns(conversation_id, limit=n)
            return [
                _turn_document(turn) for turn in found if not turn.waiting
            ]  # the gateway has those

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory, unless one that says the same would be recalled wherever this one would.

        That is one of the same type and conversation; what a surer writer adds to the same text is
        merged into it.
        """
        known = {
            _TYPE: item.memory_type,
            **{name: getattr(item, name) for name in (_CONVERSATION, *_LISTED)},
            _WINDOW: None if window is None else _window_tag(window),
            _TS: item.ts
            if in_its_zone(item.ts).utcoffset()
            else None,  # a record keeps its time in UTC
        }
        draft: dict[str, Any] = {
            "tags": present(known),
            "confidence": item.confidence,
            "created_at": moment(item.ts),
        }
        draft["source"] = item.conversation_id
        sure = round(item.confidence, 4)  # as confidences are shown
        with _translated():
            made = self.memories.create(item.text, within=(_TYPE, _CONVERSATION), **draft)
            if made.memory and (made.stored or made.memory.confidence >= sure):
                return made.memory.id
            alike = [self.memories.get(found.id) for found in made.duplicates]
            serving = next((memory for memory in alike if memory.confidence >= sure), None)
            if serving is None:
                serving = self.memories.create(item.text, force=True, **draft).memory
            assert serving is not None  # nothing was compared
            return serving.id

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Document]:
        """Search the memories; only the beginning of a long text is looked for."""
        tags = {} if conversation_id is None else {_CONVERSATION: conversation_id}
        with _translated():
            query = query_text[:MAX_QUERY_CHARACTERS]
            hits = self.memories.search(
                query,
                limit=k,
                min_confidence=min_confidence,
                tags=tags,
                include_corrected=self._include_corrected,
            )
            return [memory_document(hit) | self._place_of(hit.memory) for hit in hits]

    def recall_turns(
        self, query_text: str, k: int, conversation_id: str | None, *, own: bool = False
    ) -> list[Document]:
        """Search the turns; only the beginning of a long text is looked for."""
        with _translated():
            query = query_text[:MAX_QUERY_CHARACTERS]
            memories = self.memories.without_shared() if own else self.memories
            hits = memories.search(query, scope="history", limit=k, conversation=conversation_id)
            found = [
                _turn_document(hit.turn) | {"similarity": _similarity(hit), "score": hit.score}
                for hit in hits
            ]
            return [
                document | self._writer_of(hit.turn)
                for hit, document in zip(hits, found, strict=True)
            ]

    def read_turns(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return turns from an index on."""
        with _translated():
            found = self.memories.turns(conversation_id, start=start, limit=n)
            return [_turn_document(turn) | self._writer_of(turn) for turn in found]

    def _place_of(self, memory: Memory) -> dict[str, bool]:
        """Return whether a memory is another namespace's, and whether one's own agents wrote it."""
        return {"shared": memory.namespace != self.memories.namespace, "own": self._is_own(memory)}

    def _writer_of(self, turn: Turn) -> dict[str, bool]:
        """Return whether one's own agents wrote a turn: nobody accepts turns, so a foreign file
        stays foreign.
        """
        imported = turn.origin is not None and turn.origin.trust == IMPORTED
        return {"own": not imported and self._is_own(turn)}

    def _is_own(self, found: Memory | Turn) -> bool:
        reader, written = self.memories.config.identity or self.memories.namespace, found.origin
        return (
            found.namespace == reader
            if written is None
            else (written.namespace, written.user) == (reader, user())
        )

    def count_window(self, window: str) -> int:
        """Count the memories tagged with the window; those of other namespaces don't count."""
        with _translated():
            found = self.memories.list(tags={_WINDOW: _window_tag(window)}, limit=1_000).memories
        return sum(memory.namespace == self.memories.namespace for memory in found)

    def hold_windows(self) -> AbstractContextManager[None]:
        """Take a lock beside the store."""
        folder, name = self.folder_name
        return locked(folder / f"{name}.windows.lock")

    def close(self) -> None:
        """Close the memory, if it is owned."""
        if self._owned:
            self.memories.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise `MCPError` for whatever is neither bad input nor a memory that does not answer."""
    try:
        yield
    except (InvalidInput, ConnectionError):
        raise
    except MemoriesError as exc:
        raise MCPError(str(exc)) from exc
    except OSError as exc:
        raise MCPError(f"the system refused: {exc.strerror or exc}") from exc


def _window_tag(window: str) -> str:
    """Return the tag of a window: its hash where its name can't be the value of a tag."""
    if (
        len(window) <= MAX_TAG_VALUE
        and window.isprintable()
        and "," not in window
        and window == window.strip()
    ):
        return window
    return f"hash {hashlib.blake2b(window.encode('utf-8', 'backslashreplace'), digest_size=16).hexdigest()}"


def _turn_document(turn: Turn) -> Document:
    metadata = {
        "conversation_id": turn.conversation_id,
        "role": turn.role,
        "ts": to_iso(turn.created_at, keep_zone=True),
        "turn_index": turn.index,
        "message_id": turn.message_id,
        "channel": turn.tags.get(_CHANNEL),
        "speaker": turn.speaker,
    }
    return document(turn.id, turn.content, metadata) | {"origin": turn.origin} | _suspicious(turn)


def memory_document(hit: Hit) -> Document:
    """Return the document of a memory that was found."""
    memory = hit.memory
    metadata = {
        "type": memory.tags.get(_TYPE, ""),
        "confidence": memory.confidence,
        "ts": _written_at(memory),
        "namespace": memory.namespace,
        **{name: memory.tags.get(name) for name in (_CONVERSATION, *_LISTED, "agent")},
    }
    found = {"similarity": _similarity(hit), "score": hit.score, "origin": memory.origin}
    found |= {"accepted": True} if memory.accepted_at is not None else {}
    return document(memory.id, memory.content, metadata) | found | _suspicious(memory)


def _written_at(memory: Memory) -> str:
    """Return when a memory was written, in the time zone that its writer named if it has not
    changed since.
    """
    at, named = to_iso(memory.updated_at), memory.tags.get(_TS)
    try:
        zoned = in_its_zone(named) if named else None
    except InvalidInput:
        return at
    return to_iso(zoned, keep_zone=True) if zoned is not None and to_iso(zoned) == at else at


def _similarity(hit: Hit) -> float:
    return hit.score if hit.similarity is None else hit.similarity


def _suspicious(found: Memory | Turn) -> Document:
    return {"suspicious": found.suspicious} if found.suspicious else {}
