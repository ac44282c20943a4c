"""Converts records to conversation turns, and reads turns in pages.

For memories, see `versions`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import groupby
from operator import attrgetter

from memories.guard import validate
from memories.guard.origin import PART, Origin, origin_of, tags_of
from memories.stores.protocol import Store
from memories.stores.records import ROLE, SPEAKER, Collection, Filter, Record, Ref

PARTS = "parts"  # field in each part of a long message: the number of parts
MESSAGE_ID = "message_id"
OFFSET = "utc_offset"  # field: the offset of the writer's time zone, in seconds
STORED, KNOWN, REFUSED = "stored", "known", "refused"  # the results of adding a turn
MISSING = "\n[a part of this message is damaged and left out]\n"
MAX_PARTS = 10_000  # maximum number of parts in a message
_PAGE = 1_000  # maximum number of records read at a time
_SCOPE = "\x1f"  # separates conversation and message id, which can't contain a control character


@dataclass(frozen=True, slots=True)
class TurnDraft:
    """A turn to append to a conversation.

    Attributes:
        content: The text, at most 4,000,000 characters. A text of more than 100,000 characters is
            stored in parts that form one turn.
        role: `user` (the default), `assistant`, `system` or `tool`.
        speaker: The name of the person or agent who speaks, if known.
        created_at: When it was said; now by default.
        message_id: An id that is unique in the conversation. A second turn with the same id and
            text is not stored; one with different text is refused.
        tags: Arbitrary key-value pairs.
        index: The lowest acceptable index; the turn always follows the last stored one.
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
    """One message in a conversation.

    Attributes:
        conversation_id: The conversation.
        index: The position in the conversation, from 0.
        namespace: The namespace of the conversation.
        content: The text.
        role: `user`, `assistant`, `system` or `tool`.
        speaker: The name of the person or agent who speaks, if known.
        created_at: When it was said, in the writer's time zone.
        session: The index of the first turn of its session, a run of turns without a long pause.
        message_id: The id that its writer assigned.
        tags: Arbitrary key-value pairs.
        origin: Who stored it; None for turns stored before origins were recorded.
        redacted: The kinds of secrets that were removed before it was stored.
        suspicious: The rules that the text matches as a possible instruction to a model; see
            `write.suspicion`. Usually empty.
        parts: The number of parts of a long message, each with an index of its own; 1 otherwise.
        part: If a search found only one part of a long message, the number of that part, from 1;
            `content` is then the text of that part. None for a whole message.
        status: The result of `add_turns`: `stored`; `known` if the message id existed with the same
            content; `refused` if it existed with different content, in which case this is the
            existing turn. None if the turn was only read.
        reason: Why the turn was refused, in one sentence.
        waiting: Whether the turn is still queued on disk. If it is, `index` is the index that it
            will get.
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
        """The address of the turn: conversation and index."""
        return f"{self.conversation_id}#{self.index}"


# --- turns and records ---


def to_turn(record: Record) -> Turn:
    """Return the turn in a record; if the record is one part of a long message, only that part."""
    labels = tags_of(record.labels)
    start, part_count = start_of(record), _part_count(record)
    message_id = record.fields.get(MESSAGE_ID)
    if record.key is not None:
        message_id = record.key.rpartition(_SCOPE)[2]
    return Turn(
        conversation_id=record.ref.group,
        index=start,
        namespace=record.ref.namespace,
        content=record.text,
        role=labels.pop(ROLE, validate.ROLES[0]),
        speaker=labels.pop(SPEAKER, None),
        created_at=said_at(record),
        session=record.ref.position if record.session is None else record.session,
        message_id=message_id,
        tags=labels,
        origin=origin_of(record.labels),
        redacted=record.read_list("redacted"),
        suspicious=record.read_list("suspicious"),
        parts=part_count,
        part=record.ref.position - start + 1 if part_count > 1 else None,
    )


def said_at(record: Record) -> datetime:
    """Return a turn's time, in its writer's time zone."""
    offset = record.fields.get(OFFSET)
    if offset is None:
        return record.created_at
    try:
        return record.created_at.astimezone(timezone(timedelta(seconds=offset)))
    except (TypeError, ValueError, OverflowError):  # another program wrote the field
        return record.created_at


def start_of(record: Record) -> int:
    """Return the index of the turn that a record belongs to: the position of its first part."""
    start = record.labels.get(PART, "")
    if start.isascii() and start.isdigit():
        return int(start)
    return record.ref.position


def group_parts(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the records of each turn: usually one, or the consecutive parts of a long message."""

    def message_of(record: Record) -> tuple[str, str, int]:
        return record.ref.namespace, record.ref.group, start_of(record)

    for _, parts in groupby(records, message_of):
        yield list(parts)


def join_parts(parts: Sequence[Record]) -> Record:
    """Return the first part with the text of all parts. A notice replaces each damaged part."""
    first = parts[0]
    part_count = _part_count(first)
    if len(parts) == part_count == 1:
        return first
    next_position = start_of(first)
    end = next_position + part_count
    text = ""
    for part in parts:
        if part.ref.position != next_position:
            text += MISSING
        text += part.text
        next_position = part.ref.position + 1
    return first._replace(text=text if next_position == end else text + MISSING)


def turn_of(parts: Sequence[Record]) -> Turn:
    """Return the turn in a record, or in all parts of a long message."""
    turn = to_turn(join_parts(parts))
    if turn.parts == 1:
        return turn
    suspicious = dict.fromkeys(rule for part in parts for rule in part.read_list("suspicious"))
    return replace(turn, part=None, suspicious=tuple(suspicious))


def parts_of(store: Store, record: Record) -> list[Record]:
    """Return all parts of the message to which a record belongs, in order."""
    if _part_count(record) == 1:
        return [record]
    return sorted(store.read(refs_of(record)), key=attrgetter("ref.position"))


def refs_of(record: Record) -> list[Ref]:
    """Return the addresses of all parts of the message to which a record belongs."""
    start = start_of(record)
    positions = range(start, start + _part_count(record))
    return [record.ref._replace(position=position) for position in positions]


def _part_count(record: Record) -> int:
    number = record.fields.get(PARTS, 1)
    if type(number) is int and 1 < number <= MAX_PARTS:
        return number
    return 1


def scoped_key(conversation: str, message_id: str | None) -> str | None:
    """Return the stored form of a message id, which includes its conversation."""
    if message_id is None:
        return None
    return f"{conversation}{_SCOPE}{message_id}"


# --- reading conversations ---


def tail(store: Store, where: Filter, limit: int) -> list[Turn]:
    """Return a conversation's last turns, oldest first; see `Memories.tail_turns`."""
    records = _read_turns(store, where, limit, None, newest_first=True)
    return [turn_of(parts) for parts in group_parts(reversed(records))][-limit:]


def page(store: Store, where: Filter, start: int, limit: int) -> list[Turn]:
    """Return a conversation's turns from an index onwards; see `Memories.turns`."""
    assert where.group is not None
    records = _read_turns(store, where, limit, (where.group, start - 1), newest_first=False)
    turns = [turn_of(parts) for parts in group_parts(records) if start_of(parts[0]) >= start]
    return turns[:limit]


def _read_turns(
    store: Store, where: Filter, limit: int, after: tuple[str, int] | None, *, newest_first: bool
) -> list[Record]:
    """Return the records of `limit` turns, possibly with parts of adjacent turns."""
    first_index = 0
    if after is not None:
        first_index = after[1] + 1
    read: list[Record] = []
    starts: set[int] = set()
    batch_size = limit
    while True:
        records = store.scan(where, limit=batch_size, after=after, newest_first=newest_first)
        read += records
        starts.update(start for start in map(start_of, records) if start >= first_index)
        if len(records) < batch_size or len(starts) > limit:
            return read
        last = records[-1]
        last_of_message = start_of(last)
        if not newest_first:
            last_of_message += _part_count(last) - 1
        if len(starts) == limit and last.ref.position == last_of_message:
            return read
        after = last.ref.group, last.ref.position
        batch_size = min(2 * batch_size, _PAGE)


def in_conversation(store: Store, namespaces: Sequence[str], name: str) -> Filter:
    """Return the filter for a conversation. The caller's own conversation takes precedence over one
    in `shared`.
    """
    own, *others = (
        Filter(Collection.HISTORY, (namespace,), group=conversation_id(name))
        for namespace in namespaces
    )
    if not others:
        return own
    for where in (own, *others):
        if store.scan(where, limit=1):
            return where
    return own


def conversation_id(name: str) -> str:
    """Return the validated id of a conversation.

    Raises:
        InvalidInput: The id is empty, too long, or contains a line break.
    """
    return validate.one_line(name, "conversation id")
