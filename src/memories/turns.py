"""Turns as users see them and as records, and reading conversations; `versions` is the same for memories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from memories import validate
from memories.origin import Origin, origin_of, tags_of
from memories.stores.protocol import Store
from memories.stores.records import ROLE, ROLES, SPEAKER, Collection, Filter, Record

_SCOPE = "\x1f"  # between conversation and message id; neither can hold a control character


@dataclass(frozen=True, slots=True)
class TurnDraft:
    """A turn to be appended.

    Attributes:
        content: What was said, at most 100,000 characters.
        role: `user` (the default), `assistant`, `system` or `tool`.
        speaker: The name of the person or agent who said it, if known.
        created_at: When it was said; now by default.
        message_id: Unique in its conversation: a second turn with the same id is not stored.
        tags: Free pairs.
        index: The earliest index it may get; it always comes after the last stored turn.
    """

    content: str
    role: str = "user"
    speaker: str | None = None
    created_at: datetime | None = None
    message_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    index: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation.

    Attributes:
        conversation_id: The conversation.
        index: Its place there, from 0.
        namespace: The namespace it belongs to.
        content: What was said.
        role: `user`, `assistant`, `system` or `tool`.
        speaker: The name of the person or agent who said it, if known.
        created_at: When it was said.
        session: The index at which its session begins, a run of turns without a long pause.
        message_id: The id that its writer gave it.
        tags: Free pairs.
        origin: Who stored it; None if that was before origins were kept.
        redacted: The kinds of the secrets that were taken out of it when it was stored.
        suspicious: Why it may give orders to a model, by the names of rules; see `write.suspicion`. Mostly empty.
    """

    conversation_id: str
    index: int
    namespace: str
    content: str
    role: str
    speaker: str | None
    created_at: datetime
    session: int
    message_id: str | None
    tags: Mapping[str, str]
    origin: Origin | None = None
    redacted: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The turn's id: conversation and index."""
        return f"{self.conversation_id}#{self.index}"


def to_turn(record: Record) -> Turn:
    """Return the turn that a record holds."""
    labels = tags_of(record.labels)
    return Turn(
        conversation_id=record.ref.group,
        index=record.ref.position,
        namespace=record.ref.namespace,
        content=record.text,
        role=labels.pop(ROLE, ROLES[0]),
        speaker=labels.pop(SPEAKER, None),
        created_at=record.created_at,
        session=record.ref.position if record.session is None else record.session,
        message_id=None if record.key is None else record.key.rpartition(_SCOPE)[2],
        tags=labels,
        origin=origin_of(record.labels),
        redacted=record.names("redacted"),
        suspicious=record.names("suspicious"),
    )


def scoped_key(conversation: str, message_id: str | None) -> str | None:
    """Return a message id as it is stored: each conversation has its own."""
    return None if message_id is None else f"{conversation}{_SCOPE}{message_id}"


def tail(store: Store, namespaces: Sequence[str], name: str, limit: int) -> list[Turn]:
    """Return the last turns of a conversation, oldest first; see `Memories.tail_turns`."""
    where = _where(store, namespaces, name)
    return [to_turn(record) for record in reversed(store.scan(where, limit=limit, newest_first=True))]


def page(store: Store, namespaces: Sequence[str], name: str, start: int, limit: int) -> list[Turn]:
    """Return the turns of a conversation from an index on; see `Memories.turns`."""
    where = _where(store, namespaces, name)
    assert where.group is not None
    return [to_turn(record) for record in store.scan(where, limit=limit, after=(where.group, start - 1))]


def _where(store: Store, namespaces: Sequence[str], name: str) -> Filter:
    """Return the filter of a conversation; if two namespaces have one of that name, the first counts."""
    own, *others = (Filter(Collection.HISTORY, (namespace,), group=conversation_id(name)) for namespace in namespaces)
    if not others:
        return own  # without a look at it
    return next((where for where in (own, *others) if store.scan(where, limit=1)), own)


def conversation_id(name: str) -> str:
    """Return the id of a conversation.

    Raises:
        InvalidInput: It is empty, too long, or of several lines.
    """
    return validate.one_line(name, "conversation id")
