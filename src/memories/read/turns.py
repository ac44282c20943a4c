"""Turns as users see them and as records, and reading conversations; `versions` is the same for
memories.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import groupby

from memories.guard import validate
from memories.guard.origin import CONTINUED, PART, Origin, origin_of, tags_of
from memories.stores.protocol import Store
from memories.stores.records import ROLE, ROLES, SPEAKER, Collection, Filter, Record, Ref

PARTS, MESSAGE_ID = (
    "parts",
    "message_id",
)  # fields of the parts of a long message: how many there are, and its id
OFFSET = "utc_offset"  # field: of the time zone that its time was given in, in seconds
STORED, KNOWN, REFUSED = "stored", "known", "refused"  # what became of a draft
MISSING = "\n[a part of this message is damaged and left out]\n"
MAX_PARTS = 10_000  # of one message
_PAGE = 1_000  # records that are read at once, at most
_SCOPE = "\x1f"  # between conversation and message id; neither can hold a control character


@dataclass(frozen=True, slots=True)
class TurnDraft:
    """A turn to be appended.

    Attributes:
        content: What was said, at most 4,000,000 characters; more than 100,000 are kept in parts
            that are one turn.
        role: `user` (the default), `assistant`, `system` or `tool`.
        speaker: The name of the person or agent who said it, if known.
        created_at: When it was said; now by default.
        message_id: Unique in its conversation: a second turn with the same id is not stored. If it
            says something else than the first one, it is refused.
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
        created_at: When it was said, in the time zone that was given.
        session: The index at which its session begins, a run of turns without a long pause.
        message_id: The id that its writer gave it.
        tags: Free pairs.
        origin: Who stored it; None if that was before origins were kept.
        redacted: The kinds of the secrets that were taken out of it when it was stored.
        suspicious: Why it may give orders to a model, by the names of rules; see `write.suspicion`.
            Mostly empty.
        parts: In how many parts a long message is kept, each with an index of its own behind the
            first; else 1.
        part: Which of them a search found, from 1, and the content is that of this part; None for a
            whole message.
        status: In the answer of `add_turns`: `stored`; `known`, the message id was there with the
            same content; or `refused`, it was there with another content, and this is the turn that
            has it. Else None.
        reason: Why it was refused, one sentence.
        waiting: Whether it is not stored yet: it waits in the queue on disk, and its index is the
            one it will get.
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
    parts: int = 1
    part: int | None = None
    status: str | None = field(default=None, compare=False)
    reason: str | None = field(default=None, compare=False)
    waiting: bool = False

    @property
    def id(self) -> str:
        """The turn's id: conversation and index."""
        return f"{self.conversation_id}#{self.index}"


def to_turn(record: Record) -> Turn:
    """Return the turn that a record holds; of a long message, this part of it."""
    labels = tags_of(record.labels)
    start, parts = start_of(record), _parts(record)
    own_id = (
        record.fields.get(MESSAGE_ID) if record.key is None else record.key.rpartition(_SCOPE)[2]
    )
    return Turn(
        conversation_id=record.ref.group,
        index=start,
        namespace=record.ref.namespace,
        content=record.text,
        role=labels.pop(ROLE, ROLES[0]),
        speaker=labels.pop(SPEAKER, None),
        created_at=said_at(record),
        session=record.ref.position if record.session is None else record.session,
        message_id=own_id,
        tags=labels,
        origin=origin_of(record.labels),
        redacted=record.names("redacted"),
        suspicious=record.names("suspicious"),
        parts=parts,
        part=record.ref.position - start + 1 if parts > 1 else None,
    )


def said_at(record: Record) -> datetime:
    """Return when a turn was said, in the time zone that was given."""
    offset = record.fields.get(OFFSET)
    if offset is None:
        return record.created_at
    try:
        return record.created_at.astimezone(timezone(timedelta(seconds=offset)))
    except (TypeError, ValueError, OverflowError):  # what another program wrote
        return record.created_at


def start_of(record: Record) -> int:
    """Return the index of the turn that a record belongs to: of a long message, the position of its
    first part.
    """
    start = record.labels.get(PART, "")
    return int(start) if start.isascii() and start.isdigit() else record.ref.position


def messages(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the records of each turn: one, or all parts of a long message that follow each other,
    in order.
    """
    for _, same in groupby(
        records, lambda record: (record.ref.namespace, record.ref.group, start_of(record))
    ):
        yield list(same)


def whole(parts: Sequence[Record]) -> Record:
    """Return the first of these parts of a message with the text of all; what is damaged is left
    out, and said so.
    """
    first = parts[0]
    expected = _parts(first)
    if len(parts) == expected == 1:
        return first
    place = start_of(first)
    text = ""
    for part in parts:
        text += part.text if part.ref.position == place else MISSING + part.text
        place = part.ref.position + 1
    return first._replace(text=text if place == start_of(first) + expected else text + MISSING)


def turn_of(parts: Sequence[Record]) -> Turn:
    """Return the turn that a record, or all parts of a long message, hold."""
    found = to_turn(whole(parts))
    if found.parts == 1:
        return found
    marks = tuple(dict.fromkeys(mark for part in parts for mark in part.names("suspicious")))
    return replace(found, part=None, suspicious=marks)


def parts_of(store: Store, record: Record) -> list[Record]:
    """Return all parts of the message that a record is a part of, in order; mostly it is the only
    one.
    """
    if _parts(record) == 1:
        return [record]
    return sorted(store.read(refs_of(record)), key=lambda part: part.ref.position)


def refs_of(record: Record) -> list[Ref]:
    """Return the addresses of all parts of the message that a record is a part of."""
    start = start_of(record)
    return [
        record.ref._replace(position=position) for position in range(start, start + _parts(record))
    ]


def _parts(record: Record) -> int:
    number = record.fields.get(PARTS, 1)
    return number if type(number) is int and 1 < number <= MAX_PARTS else 1


def count(store: Store, where: Filter) -> int:
    """Return how many turns a filter matches; a long message is one, however many parts it has."""
    records = store.count(where)
    return records and records - store.count(
        where._replace(labels={**where.labels, CONTINUED: "1"})
    )


def scoped_key(conversation: str, message_id: str | None) -> str | None:
    """Return a message id as it is stored: each conversation has its own."""
    return None if message_id is None else f"{conversation}{_SCOPE}{message_id}"


def tail(store: Store, where: Filter, limit: int) -> list[Turn]:
    """Return the last turns of a conversation, oldest first; see `Memories.tail_turns`."""
    read = _read(store, where, limit, None, newest_first=True)
    return [turn_of(parts) for parts in messages(reversed(read))][-limit:]


def page(store: Store, where: Filter, start: int, limit: int) -> list[Turn]:
    """Return the turns of a conversation from an index on; see `Memories.turns`."""
    assert where.group is not None
    read = _read(store, where, limit, (where.group, start - 1), newest_first=False)
    return [
        turn_of(parts) for parts in messages(record for record in read if start_of(record) >= start)
    ][:limit]


def _read(
    store: Store, where: Filter, limit: int, after: tuple[str, int] | None, *, newest_first: bool
) -> list[Record]:
    """Return the records of so many turns, and perhaps some parts of others before and behind
    them.
    """
    first = 0 if after is None else after[1] + 1
    read: list[Record] = []
    starts: set[int] = set()
    size = limit
    while True:
        found = store.scan(where, limit=size, after=after, newest_first=newest_first)
        read += found
        starts.update(start for record in found if (start := start_of(record)) >= first)
        if len(found) < size or len(starts) > limit:
            return read
        last = found[-1]
        ends = start_of(last) if newest_first else start_of(last) + _parts(last) - 1
        if len(starts) == limit and last.ref.position == ends:
            return read
        after, size = (last.ref.group, last.ref.position), min(2 * size, _PAGE)


def in_conversation(store: Store, namespaces: Sequence[str], name: str) -> Filter:
    """Return the filter of a conversation: a name means that of one's own namespace, or else the
    shared one.
    """
    own, *others = (
        Filter(Collection.HISTORY, (namespace,), group=conversation_id(name))
        for namespace in namespaces
    )
    if not others:
        return own  # without a look at it
    return next((where for where in (own, *others) if store.scan(where, limit=1)), own)


def conversation_id(name: str) -> str:
    """Return the id of a conversation.

    Raises:
        InvalidInput: It is empty, too long, or of several lines.
    """
    return validate.one_line(name, "conversation id")
