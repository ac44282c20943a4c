"""Turns of conversations: what they are, how they are laid out in records, and how they are appended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from memories import validate
from memories.embedders.protocol import embed_to_store
from memories.errors import InvalidInput
from memories.models import MAX_TURN_CHARACTERS
from memories.stores.protocol import Store
from memories.stores.records import MAX_INDEX, ROLE, SPEAKER, Collection, Filter, Record, Ref
from memories.times import kept

if TYPE_CHECKING:
    from memories.embedders import Embedder

ROLES = ("user", "assistant", "system", "tool")
SESSION_PAUSE = timedelta(hours=1)  # a longer one begins a new session
SESSION_TURNS = 64  # and so does a session of this many turns, so that none grows without end
MAX_CONVERSATIONS = 10_000  # so many are looked at for a listing
_SCOPE = "\x1f"  # between conversation and message id; neither can hold a control character


@dataclass(frozen=True, slots=True)
class TurnDraft:
    """A turn to be appended.

    Attributes:
        content: What was said, at most 100,000 characters.
        role: `user` (the default), `assistant`, `system` or `tool`.
        speaker: The name of who said it, if it has one.
        created_at: When it was said; now by default.
        message_id: A name of its own in its conversation: a second turn with it is not stored again.
        tags: Free pairs.
        index: Its place at the earliest; where turns stand there or behind it, it comes after the last of these.
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
        namespace: The pool that it lives in.
        content: What was said.
        role: `user`, `assistant`, `system` or `tool`.
        speaker: The name of who said it, if it has one.
        created_at: When it was said.
        session: The index at which its session begins, a run of turns without a long pause.
        message_id: The name that its writer gave it.
        tags: Free pairs.
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

    @property
    def id(self) -> str:
        """The turn's address: conversation and index."""
        return f"{self.conversation_id}#{self.index}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as a listing shows it.

    Attributes:
        id: Its name.
        namespace: The pool that it lives in.
        turn_count: How many turns it has.
        first_at: When its first turn was said.
        last_at: When its last turn was said.
    """

    id: str
    namespace: str
    turn_count: int
    first_at: datetime
    last_at: datetime


def append(
    store: Store,
    embedder: "Embedder | None",
    place: tuple[str, str],
    drafts: Sequence[TurnDraft],
    now: datetime,
) -> list[Turn]:
    """Append turns to a conversation in one transaction; see `Memories.add_turns`.

    What it costs does not depend on how long the conversation is: only its last turn is looked at.

    Args:
        store: Where.
        embedder: Makes the vectors, before the transaction, so that nobody waits for the model.
        place: Namespace and conversation.
        drafts: What was said, in order.
        now: The time of what has none.
    """
    namespace, conversation = place[0], conversation_id(place[1])
    if not drafts:
        return []
    checked = [_checked(draft, now, number if len(drafts) > 1 else None) for number, draft in enumerate(drafts, 1)]
    vectors = embed_to_store(embedder, [draft.content for draft in checked]).vectors
    written: list[Record] = []
    new: list[Record] = []
    keyed: dict[str, Record] = {}
    with store.transaction():
        where = Filter(Collection.HISTORY, (namespace,), group=conversation, state="any")
        last = next(iter(store.scan(where, limit=1, newest_first=True)), None)
        for draft, vector in zip(checked, vectors, strict=True):
            key = _key(conversation, draft.message_id)
            turn = None if key is None else keyed.get(key) or _stored(store, namespace, key)
            if turn is None:
                last = turn = _next(Ref(Collection.HISTORY, namespace, conversation, 0), last, draft)
                new.append(turn._replace(vectors=vector))
            if key is not None:
                keyed[key] = turn
            written.append(turn)
        store.append(new)
    return [to_turn(record) for record in written]


def tail(store: Store, namespaces: Sequence[str], name: str, limit: int) -> list[Turn]:
    """Return the last turns of a conversation, oldest first; see `Memories.tail_turns`."""
    where = _where(store, namespaces, name)
    return [to_turn(record) for record in reversed(store.scan(where, limit=limit, newest_first=True))]


def page(store: Store, namespaces: Sequence[str], name: str, start: int, limit: int) -> list[Turn]:
    """Return the turns of a conversation from an index on; see `Memories.turns`."""
    where = _where(store, namespaces, name)
    assert where.group is not None
    return [to_turn(record) for record in store.scan(where, limit=limit, after=(where.group, start - 1))]


def listing(store: Store, namespaces: tuple[str, ...], limit: int) -> list[Conversation]:
    """Return the conversations, those with the newest turn first; see `Memories.conversations`."""
    found: list[Conversation] = []
    for namespace, name in store.groups(Filter(Collection.HISTORY, namespaces), limit=MAX_CONVERSATIONS):
        where = Filter(Collection.HISTORY, (namespace,), group=name)
        first, last = (store.scan(where, limit=1, newest_first=newest) for newest in (False, True))
        if first and last:  # or it was removed meanwhile
            count = store.count(where)
            found.append(Conversation(name, namespace, count, first[0].created_at, last[0].created_at))
    return sorted(found, key=lambda each: each.last_at, reverse=True)[:limit]


def _where(store: Store, namespaces: Sequence[str], name: str) -> Filter:
    """Return the filter of a conversation: where two namespaces have one of that name, the first counts."""
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


def to_turn(record: Record) -> Turn:
    """Return the turn that a record holds."""
    labels = dict(record.labels)
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
    )


def _next(first: Ref, last: Record | None, draft: TurnDraft) -> Record:
    """Return the record of the turn that follows the last one."""
    assert draft.created_at is not None  # it was checked
    index = max(draft.index, 0 if last is None else last.ref.position + 1)
    session = index
    if last is not None and last.session is not None:
        pause = abs(draft.created_at - last.created_at)
        session = index if pause > SESSION_PAUSE or index - last.session >= SESSION_TURNS else last.session
    names = {ROLE: draft.role} | ({} if draft.speaker is None else {SPEAKER: draft.speaker})
    return Record(
        ref=first._replace(position=index),
        text=draft.content,
        created_at=draft.created_at,
        key=_key(first.group, draft.message_id),
        labels={**draft.tags, **names},
        session=session,
    )


def _stored(store: Store, namespace: str, key: str) -> Record | None:
    return next(iter(store.scan(Filter(Collection.HISTORY, (namespace,), key=key), limit=1)), None)


def _key(conversation: str, message_id: str | None) -> str | None:
    return None if message_id is None else f"{conversation}{_SCOPE}{message_id}"


def _checked(draft: TurnDraft, now: datetime, number: int | None) -> TurnDraft:
    """Return a draft as it is stored.

    Raises:
        InvalidInput: A value is not acceptable; the message names the turn by its number, if there are several.
    """
    try:
        return _valid(draft, now)
    except InvalidInput as exc:
        raise exc if number is None else InvalidInput(f"turn {number}: {exc}; nothing was stored") from exc


def _valid(draft: TurnDraft, now: datetime) -> TurnDraft:
    content = validate.content(draft.content)
    if len(content) > MAX_TURN_CHARACTERS:
        raise InvalidInput(f"content is {len(content)} characters; a turn has at most {MAX_TURN_CHARACTERS}; cut it")
    if draft.role not in ROLES:
        raise InvalidInput(f'role "{validate.shown(str(draft.role))}" is not one of {", ".join(ROLES)}')
    if type(draft.index) is not int or not 0 <= draft.index <= MAX_INDEX:
        raise InvalidInput(f"index must be a whole number from 0 to {MAX_INDEX}")
    tags = validate.tags(draft.tags)
    for name in (ROLE, SPEAKER):
        if name in tags:
            raise InvalidInput(f'"{name}" is no free tag of a turn; give it as {name}')
    return replace(
        draft,
        content=content,
        speaker=None if draft.speaker is None else validate.one_line(draft.speaker, "speaker"),
        message_id=None if draft.message_id is None else validate.one_line(draft.message_id, "message id"),
        created_at=kept(now if draft.created_at is None else draft.created_at, "created_at"),
        tags=tags,
    )
