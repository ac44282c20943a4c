"""The default `MemoryGateway` backend, which uses a `Memories` object with any of its stores."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories.context.protocol import (
    Document,
    HistoryTurn,
    MCPError,
    MemoryItem,
    parse_time,
    parse_zoned_time,
    to_document,
    without_none,
)
from memories.core.disk import locked
from memories.core.times import to_iso
from memories.errors import InvalidInput, MemoriesError, NotFound, RequestError
from memories.guard.origin import IMPORTED, user
from memories.guard.validate import MAX_QUERY_CHARACTERS, MAX_TAG_VALUE
from memories.memories import Memories
from memories.models import Memory
from memories.read.turns import Turn, TurnDraft
from memories.search.results import Hit
from memories.stores.records import SEARCHED
from memories.write.turn_queue import files_of

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

_WINDOW, _CHANNEL, _TS = "window", "channel", "ts"  # names of tags
_TYPE, _CONVERSATION = "type", "conversation_id"
_LISTED = ("entities", "source", "tags")


class MemoriesBackend:
    """Stores turns and memories in a `Memories` object."""

    # The maximum length of a turn. A long turn is stored in parts, which take a while to embed.
    most_characters = 1_000_000

    def __init__(
        self, memories: Memories, *, owned: bool = False, include_corrected: bool = False
    ) -> None:
        """Wrap a `Memories` object.

        Args:
            memories: The object.
            owned: Whether `close` also closes the object.
            include_corrected: Also recall memories that other memories correct. A search shows them
                by default; a model should not get them.
        """
        self.memories = memories
        self._include_corrected = include_corrected
        self._owned = owned
        place = memories.place
        self.projects: Sequence[str] = () if place is None else place.names

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The folder for the gateway's files, and the prefix of their names.

        If the store is a single file, this is the file's folder; otherwise the home folder.
        """
        return files_of(self.memories.config, self.memories.namespace)

    @property
    def redactor(self) -> "Redactor":
        """The redactor from the settings."""
        return self.memories.config.redactor()

    @property
    def timeout_seconds(self) -> float | None:
        """How long a call may take, from the settings."""
        return self.memories.config.memory_timeout_seconds

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Check that the store responds; its two collections always exist.

        Raises:
            MCPError: The store failed, or there is no such collection.
        """
        unknown = [name for name in names if name not in SEARCHED]
        if unknown:
            raise MCPError(
                f'there is no collection "{unknown[0]}", and none can be created; the collections '
                f"are {', '.join(SEARCHED)}"
            )
        with translate_errors():
            self.memories.status()

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn. The store numbers turns in order of arrival."""
        draft = TurnDraft(
            turn.text,
            role=turn.role,
            speaker=turn.speaker,
            created_at=parse_zoned_time(turn.ts),
            message_id=turn.message_id,
            tags={} if turn.channel is None else {_CHANNEL: turn.channel},
            index=turn.turn_index,
        )
        with translate_errors():
            try:
                [stored] = self.memories.add_turns(turn.conversation_id, [draft])
            except RequestError as exc:  # the turn will never be accepted, so it must not be queued
                raise InvalidInput(str(exc)) from exc
        if stored.reason is not None:
            raise InvalidInput(f"the turn was not stored: {stored.reason}")
        return stored.id

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return the last stored turns; the gateway adds the queued ones."""
        with translate_errors():
            turns = self.memories.tail_turns(conversation_id, limit=n)
            return [_turn_document(turn) for turn in turns if not turn.waiting]

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory, unless an equivalent one is already stored; return the stored memory's
        id.

        An equivalent memory says the same thing, and has the same type and conversation and at
        least the same confidence. So every recall that would find the new memory also finds it.
        """
        tags = {name: getattr(item, name) for name in (_CONVERSATION, *_LISTED)}
        tags[_TYPE] = item.memory_type
        tags[_WINDOW] = None if window is None else _window_tag(window)
        if parse_zoned_time(item.ts).utcoffset():  # a record stores its time in UTC
            tags[_TS] = item.ts
        draft: dict[str, Any] = {
            "tags": without_none(tags),
            "confidence": item.confidence,
            "created_at": parse_time(item.ts),
            "source": item.conversation_id,
        }
        min_confidence = round(item.confidence, 4)  # the precision with which confidences are shown
        with translate_errors():
            created = self.memories.create(item.text, within=(_TYPE, _CONVERSATION), **draft)
            memory = created.memory
            if memory and (created.stored or memory.confidence >= min_confidence):
                return memory.id
            for duplicate in created.duplicates:
                memory = self.memories.get(duplicate.id)
                if memory.confidence >= min_confidence:
                    return memory.id
            memory = self.memories.create(item.text, force=True, **draft).memory
            assert memory is not None  # a memory is always stored if duplicates aren't checked
            return memory.id

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Document]:
        """Search the memories. Only the beginning of a long query is used."""
        tags = {} if conversation_id is None else {_CONVERSATION: conversation_id}
        with translate_errors():
            hits = self.memories.search(
                query_text[:MAX_QUERY_CHARACTERS],
                limit=k,
                min_confidence=min_confidence,
                tags=tags,
                include_corrected=self._include_corrected,
            )
            if not self._include_corrected:
                # The search may not have found a correction, because it is worded differently.
                latest: dict[str, Hit] = {}
                for hit in hits:
                    memory = latest_correction(hit.memory, self.memories.get)
                    if memory.confidence >= min_confidence:
                        latest.setdefault(memory.id, replace(hit, found=memory))
                hits = tuple(latest.values())
            return list(map(self._memory_with_owner, hits))

    def recall_turns(
        self, query_text: str, k: int, conversation_id: str | None, *, own: bool = False
    ) -> list[Document]:
        """Search the turns. Only the beginning of a long query is used."""
        memories = self.memories.without_shared() if own else self.memories
        with translate_errors():
            query = query_text[:MAX_QUERY_CHARACTERS]
            hits = memories.search(query, scope="history", limit=k, conversation=conversation_id)
            return list(map(self._recalled_turn, hits))

    def read_turns(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return turns in a conversation, starting at an index."""
        with translate_errors():
            turns = self.memories.turns(conversation_id, start=start, limit=n)
            return [self._turn_with_owner(turn) for turn in turns]

    def _memory_with_owner(self, hit: Hit) -> Document:
        """Return a recalled memory's document, which says whether the reader owns the memory."""
        document = memory_document(hit, self.projects)
        document["shared"] = hit.memory.namespace != self.memories.namespace
        document["own"] = self._is_own(hit.memory)
        return document

    def _recalled_turn(self, hit: Hit) -> Document:
        document = self._turn_with_owner(hit.turn)
        document["similarity"], document["score"] = _similarity(hit), hit.score
        return document

    def _turn_with_owner(self, turn: Turn) -> Document:
        """Return a turn's document, which says whether the reader's own agents wrote the turn.

        Imported turns never count as the reader's own, since turns are not reviewed.
        """
        is_imported = turn.origin is not None and turn.origin.trust == IMPORTED
        return {**_turn_document(turn), "own": not is_imported and self._is_own(turn)}

    def _is_own(self, entry: Memory | Turn) -> bool:
        """Return whether the reader's own agents wrote a memory or a turn."""
        reader = self.memories.config.identity or self.memories.namespace
        if entry.origin is None:
            return entry.namespace == reader
        return (entry.origin.namespace, entry.origin.user) == (reader, user())

    def count_window(self, window: str) -> int:
        """Return the number of memories in our own namespace that are tagged with this window."""
        with translate_errors():
            page = self.memories.list(tags={_WINDOW: _window_tag(window)}, limit=1_000)
        return sum(memory.namespace == self.memories.namespace for memory in page.memories)

    def hold_windows(self) -> AbstractContextManager[None]:
        """Take a lock next to the store."""
        folder, name = self.folder_name
        return locked(folder / f"{name}.windows.lock")

    def close(self) -> None:
        """Close the `Memories` object, if the backend owns it."""
        if self._owned:
            self.memories.close()


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise `MCPError` for errors other than `InvalidInput` and `ConnectionError`."""
    try:
        yield
    except (InvalidInput, ConnectionError):
        raise
    except MemoriesError as exc:
        raise MCPError(str(exc)) from exc
    except OSError as exc:
        raise MCPError(f"the operating system reported: {exc.strerror or exc}") from exc


def latest_correction(memory: Memory, get: Callable[[str], Memory]) -> Memory:
    """Return the latest correction of a memory; the memory itself if it has none.

    Args:
        memory: The memory.
        get: Reads a memory by id.
    """
    passed = {memory.id}
    while (newer := memory.corrected_by) is not None and newer not in passed:
        passed.add(newer)
        try:
            memory = get(newer)
        except NotFound:
            break
    return memory


def _window_tag(window: str) -> str:
    """Return the tag value for a window: its name, or a hash if the name isn't a valid value."""
    is_one_value = window.isprintable() and "," not in window and window == window.strip()
    if is_one_value and len(window) <= MAX_TAG_VALUE:
        return window
    digest = hashlib.blake2b(window.encode("utf-8", "backslashreplace"), digest_size=16)
    return f"hash {digest.hexdigest()}"


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
    document = to_document(turn.id, turn.content, metadata)
    document["origin"] = turn.origin
    if turn.suspicious:
        document["suspicious"] = turn.suspicious
    return document


def memory_document(hit: Hit, projects: Collection[str] = ()) -> Document:
    """Return a recalled memory's document.

    Args:
        hit: The memory.
        projects: All names of the reader's project.
    """
    memory = hit.memory
    metadata = {
        "type": memory.tags.get(_TYPE, ""),
        "confidence": memory.confidence,
        "ts": _format_time(memory),
        "namespace": memory.namespace,
        **{name: memory.tags.get(name) for name in (_CONVERSATION, *_LISTED, "agent")},
    }
    document = to_document(memory.id, memory.content, metadata)
    document["similarity"], document["score"] = _similarity(hit), hit.score
    document["origin"] = memory.origin
    if "project" in memory.tags:
        document["project"] = memory.tags["project"]
        document["elsewhere"] = memory.tags["project"] not in projects
    if memory.accepted_at is not None:
        document["accepted"] = True
    if memory.verdict is not None:
        document["verdict"] = memory.verdict
    if memory.suspicious:
        document["suspicious"] = memory.suspicious
    return document


def _format_time(memory: Memory) -> str:
    """Return when a memory was stated, in its writer's time zone; in UTC if it has been updated."""
    written_at, tag = to_iso(memory.stated_at), memory.tags.get(_TS)
    if not tag:
        return written_at
    try:
        zoned = parse_zoned_time(tag)
    except InvalidInput:
        return written_at
    if to_iso(zoned) == written_at:
        return to_iso(zoned, keep_zone=True)
    return written_at


def _similarity(hit: Hit) -> float:
    return hit.score if hit.similarity is None else hit.similarity
