"""The data models of the conversation specification: turns, memories, contexts, and what they must
look like.
"""

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from typing import Any

from memories.context.policy import MEMORY_TYPES
from memories.core.times import to_iso
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import Origin
from memories.models import MAX_MESSAGE_CHARACTERS, MAX_TURN_CHARACTERS

ROLES = ("user", "assistant", "system")
SOURCES = ("chat", "tool", "import")
MAX_MEMORY_CHARACTERS = 2_000

Document = dict[
    str, Any
]  # what a gateway returns: id, text, metadata, and similarity and score if it was searched for


@dataclass
class HistoryTurn:
    """One message of a conversation.

    Attributes:
        conversation_id: The conversation, one line of at most 256 characters.
        role: `user`, `assistant` or `system`.
        text: What was said, at most 100,000 characters.
        turn_index: Its place in the conversation, from 0.
        ts: When it was said, ISO 8601.
        message_id: Its id in the conversation: a second turn with the same one is not stored again.
        channel: Where it came from, such as `web`.
        speaker: Who said it, where the name is known.
        origin: Who stored it, if the store tells; nobody can give it.
        suspicious: Why it may give orders to a model, by the names of rules; see `Turn`.

    Args:
        most: How many characters the text may have; more for one that is kept in parts.

    Raises:
        InvalidInput: A value is not acceptable.
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
        _one_of(self.role, ROLES, "role")
        _text(self.text, most, "a turn", "cut it")
        if type(self.turn_index) is not int or self.turn_index < 0:
            raise InvalidInput("turn_index must be a whole number, 0 or more")
        moment(self.ts)
        for name, check in (
            ("message_id", validate.one_line),
            ("speaker", validate.one_line),
            ("channel", _tag),
        ):
            _check_optional(self, name, check)


@dataclass
class MemoryItem:
    """One memory.

    Attributes:
        text: What is remembered, at most 2,000 characters.
        memory_type: `preference`, `fact`, `project` or `decision`.
        confidence: How sure its writer was, 0 to 1.
        ts: When it was written, ISO 8601.
        conversation_id: The conversation that it comes from.
        entities: People and things it is about, separated by commas.
        source: `chat`, `tool` or `import`.
        tags: Words, separated by commas.
        id: Its id, once it is stored.
        agent: The agent that it is tagged with, once it is stored.
        origin: Who wrote it, if the store tells; nobody can give it.
        shared: Whether it comes from the shared namespace and that is not one's own.
        suspicious: Why it may give orders to a model, by the names of rules; see `Memory`.

    Raises:
        InvalidInput: A value is not acceptable.
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

    def __post_init__(self) -> None:
        _text(self.text, MAX_MEMORY_CHARACTERS, "a memory", "summarize it")
        _one_of(self.memory_type, MEMORY_TYPES, "memory_type")
        if self.source is not None:
            _one_of(self.source, SOURCES, "source")
        self.confidence = validate.unit(self.confidence, "confidence")
        moment(self.ts)
        for name in ("conversation_id", "entities", "tags"):
            _check_optional(self, name, _tag)


@dataclass
class ContextPackage:
    """What a model is given before it answers.

    Attributes:
        history: The last turns of the conversation, oldest first.
        memories: What is remembered about the message, with its similarity, most relevant first.
        latest_message: The message that is to be answered.
        metadata: Token counts, what was cut, what failed: see `ContextBuilder.build_context`.
        recalled: Earlier turns that answer the message, and those beside them, oldest first.
    """

    history: list[HistoryTurn]
    memories: list[tuple[MemoryItem, float]]
    latest_message: str
    metadata: dict[str, Any]
    recalled: list[HistoryTurn] = field(default_factory=list)


def document(named: str, text: str, metadata: Mapping[str, Any]) -> Document:
    """Return the document of a turn or a memory; metadata that is None is left out."""
    return {"id": named, "text": text, "metadata": present(metadata)}


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def metadata_of(turn: HistoryTurn) -> dict[str, Any]:
    """Return all that a document says of a turn beside its text."""
    return {
        name: value
        for name, value in vars(turn).items()
        if name not in ("text", "origin", "suspicious")
    }


def turn_of(document: Document) -> HistoryTurn:
    """Return the turn that a gateway's document holds.

    The specification has no role for tools: what a tool said counts as the assistant's, with the
        channel `tool`.
    """
    known = document["metadata"]
    given = {name: known[name] for name in ("conversation_id", "role", "turn_index", "ts")}
    given |= {name: known.get(name) for name in ("message_id", "channel", "speaker")}
    if known["role"] == "tool":
        given |= {"role": "assistant", "channel": given["channel"] or "tool"}
    turn = HistoryTurn(text=document["text"], most=MAX_MESSAGE_CHARACTERS, **given)
    turn.origin = document.get("origin")  # beside the metadata, which other writers fill in
    turn.suspicious = document.get("suspicious", ())
    return turn


def item_of(document: Document) -> MemoryItem:
    """Return the memory that a gateway's document holds.

    One that another writer stored may be longer than the specification allows, and is cut, or of
    another type, and counts as a fact.
    """
    known, text = document["metadata"], document["text"]
    kind, source = known.get("type"), known.get("source")
    item = MemoryItem(
        text=text
        if len(text) <= MAX_MEMORY_CHARACTERS
        else f"{text[: MAX_MEMORY_CHARACTERS - 1]}…",
        memory_type=kind if kind in MEMORY_TYPES else "fact",
        confidence=known["confidence"],
        ts=known["ts"],
        source=source if source in SOURCES else None,
        id=document.get("id"),
        **{name: known.get(name) for name in ("conversation_id", "entities", "tags", "agent")},
    )
    item.origin, item.shared = document.get("origin"), document.get("shared", False)
    item.suspicious = document.get("suspicious", ())
    return item


def moment(ts: str) -> datetime:
    """Return the time of a timestamp, aware; one without a time zone is in the machine's own.

    Raises:
        InvalidInput: It is not ISO 8601.
    """
    try:
        return datetime.fromisoformat(ts).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f'ts "{validate.shown(str(ts))}" is not a time; use ISO 8601') from None


def in_its_zone(ts: str) -> datetime:
    """Return the time of a timestamp in the time zone that it names; in UTC if it names none.

    Raises:
        InvalidInput: It is not ISO 8601.
    """
    return moment(ts).astimezone(datetime.fromisoformat(ts).tzinfo or UTC)


def aware(ts: str) -> str:
    """Return a timestamp with its time zone, so that it means the same everywhere."""
    return ts if datetime.fromisoformat(ts).tzinfo else to_iso(moment(ts))


def _one_of(word: object, known: tuple[str, ...], name: str) -> None:
    if word not in known:
        raise InvalidInput(f'{name} "{validate.shown(str(word))}" is not one of {", ".join(known)}')


def _text(text: object, most: int, what: str, cure: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"text is of type {type(text).__name__}; give text")
    try:
        size = max(
            len(text), len(validate.content(text, None))
        )  # in the form in which it is stored
    except InvalidInput as exc:
        raise InvalidInput(str(exc).replace("content", "text", 1)) from None
    if size > most:
        raise InvalidInput(f"text is {size} characters; {what} has at most {most}; {cure}")


def _check_optional(
    item: HistoryTurn | MemoryItem, name: str, check: Callable[[str, str], str]
) -> None:
    """Put a text into the form in which it is stored, if there is one."""
    if (text := getattr(item, name)) is not None:
        setattr(item, name, check(text, name))


def _tag(text: str, name: str) -> str:
    """Return what can be the value of a tag, which is how it is stored."""
    return validate.tags({name: validate.one_line(text, name)})[name]
