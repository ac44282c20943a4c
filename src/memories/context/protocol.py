"""The values that a `MemoryGateway` exchanges with its callers and its backend, the protocol for
backends, and the errors.

`HistoryTurn`, `MemoryItem` and `ContextPackage` are the data models of the conversation
specification.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from memories.context.policy import MEMORY_TYPES
from memories.core.times import to_iso
from memories.errors import InvalidInput, SystemFault
from memories.guard import validate
from memories.guard.origin import Origin
from memories.models import MAX_MESSAGE_CHARACTERS, MAX_TURN_CHARACTERS, Verdict

ROLES = ("user", "assistant", "system")
SOURCES = ("chat", "tool", "import")
MAX_MEMORY_CHARACTERS = 2_000

# One result of a gateway: `id`, `text`, `metadata` and, in a search, `similarity` and `score`.
Document = dict[str, Any]
TurnAddress = tuple[str, int]  # a conversation and the index of a turn in it
_NOT_METADATA = ("text", "origin", "suspicious")  # a turn's attributes that aren't metadata


class MCPError(SystemFault):
    """The memory behind a gateway failed, whether or not the gateway uses MCP; the specification
    gives the error this name.

    Attributes:
        queued: Whether the turn that could not be appended was queued on disk, to be stored later.
    """

    queued = False


class UnsupportedEndpoint(ConnectionError):
    """No backend supports the endpoint; retrying does not help."""


def describe_error(exc: Exception) -> str:
    """Return an error's message on one line; the error's type if it has no message."""
    return " ".join(str(exc).split()) or type(exc).__name__


@dataclass
class HistoryTurn:
    """One message in a conversation.

    Attributes:
        conversation_id: The conversation, one line of at most 256 characters.
        role: `user`, `assistant` or `system`.
        text: The text, at most 100,000 characters.
        turn_index: The position in the conversation, from 0.
        ts: When it was said, ISO 8601.
        message_id: An id that is unique in the conversation: a second turn with the same id is not
            stored.
        channel: Where it came from, such as `web`.
        speaker: The name of the speaker, if known.
        origin: Who stored it, if the store records that. Callers can't pass it in.
        suspicious: The rules that mark the text as a possible instruction to a model; see `Turn`.

    Args:
        most: The maximum length of the text, which is larger for a turn that is stored in parts.

    Raises:
        InvalidInput: A value is invalid.
    """

    conversation_id: str
    role: str
    text: str
    turn_index: int
    ts: str
    message_id: str | None = None
    channel: str | None = None
    speaker: str | None = None
    origin: Origin | None = field(default=None, init=False)
    suspicious: tuple[str, ...] = field(default=(), init=False)
    most: InitVar[int] = field(default=MAX_TURN_CHARACTERS, kw_only=True)

    def __post_init__(self, most: int) -> None:
        self.conversation_id = validate.one_line(self.conversation_id, "conversation_id")
        _check_choice(self.role, ROLES, "role")
        _check_text(self.text, most, "a turn", "shorten it")
        if type(self.turn_index) is not int or self.turn_index < 0:
            raise InvalidInput("turn_index must be a whole number, 0 or more")
        parse_time(self.ts)
        _normalize(self, "message_id", validate.one_line)
        _normalize(self, "speaker", validate.one_line)
        _normalize(self, "channel", _tag_value)


@dataclass
class MemoryItem:
    """One memory.

    Attributes:
        text: The text, at most 2,000 characters.
        memory_type: `preference`, `fact`, `project` or `decision`.
        confidence: The writer's confidence, 0 to 1.
        ts: When it was written, ISO 8601.
        conversation_id: The conversation that it comes from.
        entities: The people and things that it is about, separated by commas.
        source: `chat`, `tool` or `import`.
        tags: Words, separated by commas.
        id: Its id, once it is stored.
        agent: The agent in its tags, once it is stored.
        origin: Who wrote it, if the store records that. Callers can't pass it in.
        shared: Whether it comes from the shared namespace, and the reader has a different one.
        suspicious: The rules that mark the text as a possible instruction to a model; see `Memory`.
        project: The project in its tags, once it is stored.
        elsewhere: Whether it belongs to a project other than the reader's.
        verdict: Whether it still holds, if that can be checked; see `Memory`.

    Raises:
        InvalidInput: A value is invalid.
    """

    text: str
    memory_type: str
    confidence: float
    ts: str
    conversation_id: str | None = None
    entities: str | None = None
    source: str | None = None
    tags: str | None = None
    id: str | None = None
    agent: str | None = None
    origin: Origin | None = field(default=None, init=False)
    shared: bool = field(default=False, init=False)
    suspicious: tuple[str, ...] = field(default=(), init=False)
    project: str | None = field(default=None, init=False)
    elsewhere: bool = field(default=False, init=False)
    verdict: Verdict | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        _check_text(self.text, MAX_MEMORY_CHARACTERS, "a memory", "summarize it")
        _check_choice(self.memory_type, MEMORY_TYPES, "memory_type")
        if self.source is not None:
            _check_choice(self.source, SOURCES, "source")
        self.confidence = validate.unit(self.confidence, "confidence")
        parse_time(self.ts)
        for name in ("conversation_id", "entities", "tags"):
            _normalize(self, name, _tag_value)


@dataclass
class ContextPackage:
    """A model's context for answering a message.

    Attributes:
        history: The last turns of the conversation, oldest first.
        memories: Memories about the message, each with its similarity, most relevant first.
        latest_message: The message to answer.
        metadata: Token counts, omissions and errors: see `ContextBuilder.build_context`.
        recalled: Earlier turns that answer the message, and their neighbours, oldest first.
    """

    history: list[HistoryTurn]
    memories: list[tuple[MemoryItem, float]]
    latest_message: str
    metadata: dict[str, Any]
    recalled: list[HistoryTurn] = field(default_factory=list)


class Backend(Protocol):
    """Stores turns and memories for a gateway, which has checked all values.

    Rules for every backend:

    - When `append` returns, the turn is stored durably. If the conversation already has a turn with
      this `message_id`, nothing is stored, and the existing turn's id is returned.
    - Turns get unique numbers, in the order in which they are stored.
    - The only errors raised are `ConnectionError` (the store does not respond), `MCPError` (it
      failed) and `InvalidInput`.
    - A document is `{"id", "text", "metadata"}`; a search result also has `similarity` and `score`.
    - `recall_turns` and `read_turns` are optional. Without them, contexts have no earlier turns.
    """

    @property
    def folder_name(self) -> tuple[Path, str]:
        """The folder for the files that the gateway keeps for this backend, and the prefix of their
        names.
        """
        ...

    def ensure_collections(self, names: Sequence[str]) -> None:
        """Create these collections if they don't exist."""
        ...

    def append(self, turn: HistoryTurn) -> str:
        """Store a turn at the end of its conversation, and return its id."""
        ...

    def tail(self, conversation_id: str, n: int) -> list[Document]:
        """Return a conversation's last turns, oldest first."""
        ...

    def write(self, item: MemoryItem, window: str | None) -> str:
        """Store a memory and count it in the window. Return its id or that of an equivalent one."""
        ...

    def recall(
        self, query_text: str, k: int, min_confidence: float, conversation_id: str | None
    ) -> list[Document]:
        """Return the memories that answer a query, best first."""
        ...

    def recall_turns(
        self, query_text: str, k: int, conversation_id: str | None, *, own: bool = False
    ) -> list[Document]:
        """Return the turns that answer a query, best first.

        If `conversation_id` is None, all conversations are searched. With `own`, only turns from
        the caller's own namespace are returned.
        """
        ...

    def read_turns(self, conversation_id: str, start: int, n: int) -> list[Document]:
        """Return up to `n` turns in a conversation, starting at an index, oldest first."""
        ...

    def count_window(self, window: str) -> int:
        """Return the number of memories stored in a time window."""
        ...

    def hold_windows(self) -> AbstractContextManager[None]:
        """Keep other processes from storing memories in time windows, so that counts stay right."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


# --- documents ---


def to_document(document_id: str, text: str, metadata: Mapping[str, Any]) -> Document:
    """Return the document for a turn or a memory. Metadata fields that are None are left out."""
    return {"id": document_id, "text": text, "metadata": without_none(metadata)}


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without the fields that are None."""
    return {name: value for name, value in fields.items() if value is not None}


def metadata_of(turn: HistoryTurn) -> dict[str, Any]:
    """Return the metadata of a turn's document."""
    fields = vars(turn).items()
    return {name: value for name, value in fields if name not in _NOT_METADATA}


def turn_of(document: Document) -> HistoryTurn:
    """Return the turn in a gateway's document.

    The specification has no role for tools. So a tool's output becomes an assistant turn whose
    channel is `tool`.
    """
    metadata = document["metadata"]
    fields = {name: metadata[name] for name in ("conversation_id", "role", "turn_index", "ts")}
    for name in ("message_id", "channel", "speaker"):
        fields[name] = metadata.get(name)
    if fields["role"] == "tool":
        fields["role"] = "assistant"
        fields["channel"] = fields["channel"] or "tool"
    turn = HistoryTurn(text=document["text"], most=MAX_MESSAGE_CHARACTERS, **fields)
    turn.origin = document.get("origin")  # not in the metadata, which other writers may set
    turn.suspicious = document.get("suspicious", ())
    return turn


def item_of(document: Document) -> MemoryItem:
    """Return the memory in a gateway's document.

    Other programs may have stored values that the specification doesn't allow. So a text that is
    too long is truncated, and an unknown type becomes `fact`.
    """
    metadata, text = document["metadata"], document["text"]
    memory_type, source = metadata.get("type"), metadata.get("source")
    if len(text) > MAX_MEMORY_CHARACTERS:
        text = f"{text[: MAX_MEMORY_CHARACTERS - 1]}…"
    item = MemoryItem(
        text=text,
        memory_type=memory_type if memory_type in MEMORY_TYPES else "fact",
        confidence=metadata["confidence"],
        ts=metadata["ts"],
        source=source if source in SOURCES else None,
        id=document.get("id"),
        **{name: metadata.get(name) for name in ("conversation_id", "entities", "tags", "agent")},
    )
    item.origin, item.shared = document.get("origin"), document.get("shared", False)
    item.suspicious = document.get("suspicious", ())
    item.project, item.elsewhere = document.get("project"), document.get("elsewhere", False)
    item.verdict = document.get("verdict")
    return item


def address_of(turn: HistoryTurn) -> TurnAddress:
    """Return a turn's conversation and index."""
    return turn.conversation_id, turn.turn_index


# --- times ---


def parse_time(ts: str) -> datetime:
    """Parse a timestamp and convert it to UTC. Without a time zone, local time is assumed.

    Raises:
        InvalidInput: The timestamp is not ISO 8601.
    """
    try:
        return datetime.fromisoformat(ts).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f'ts "{validate.shown(str(ts))}" is not a time; use ISO 8601') from None


def parse_zoned_time(ts: str) -> datetime:
    """Parse a timestamp, keeping its time zone; without one, convert it from local time to UTC.

    Raises:
        InvalidInput: The timestamp is not ISO 8601.
    """
    return parse_time(ts).astimezone(datetime.fromisoformat(ts).tzinfo or UTC)


def with_zone(ts: str) -> str:
    """Return a timestamp with a time zone added if it has none, so that it is unambiguous."""
    if datetime.fromisoformat(ts).tzinfo:
        return ts
    return to_iso(parse_time(ts))


# --- checks ---


def _check_choice(word: object, choices: tuple[str, ...], name: str) -> None:
    if word not in choices:
        raise InvalidInput(
            f'{name} "{validate.shown(str(word))}" is not one of {", ".join(choices)}'
        )


def _check_text(text: object, max_characters: int, kind: str, remedy: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"text is of type {type(text).__name__}; pass a string")
    try:
        stored = validate.content(text, None)
    except InvalidInput as exc:
        raise InvalidInput(str(exc).replace("content", "text", 1)) from None
    size = max(len(text), len(stored))
    if size > max_characters:
        raise InvalidInput(
            f"text is {size} characters; {kind} can have at most {max_characters}; {remedy}"
        )


def _normalize(item: HistoryTurn | MemoryItem, name: str, check: Callable[[str, str], str]) -> None:
    """Replace an optional text with its stored form."""
    text = getattr(item, name)
    if text is not None:
        setattr(item, name, check(text, name))


def _tag_value(text: str, name: str) -> str:
    """Return a text as it is stored in a tag."""
    return validate.tags({name: validate.one_line(text, name)})[name]
