"""How a turn becomes part of its conversation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.times import to_stored_time
from memories.embedders.protocol import embed_to_store
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import CONTINUED, PART
from memories.models import MAX_MESSAGE_CHARACTERS, MAX_TURN_CHARACTERS
from memories.read.conversations import (
    TITLE,
    USER,
    About,
    Conversation,
    describe,
    find,
    find_namespace,
    not_own,
)
from memories.read.turns import (
    KNOWN,
    MESSAGE_ID,
    OFFSET,
    PARTS,
    REFUSED,
    STORED,
    Turn,
    TurnDraft,
    conversation_id,
    parts_of,
    scoped_key,
    turn_of,
)
from memories.stores.logged import stamp_origin
from memories.stores.protocol import Store, refuse_damaged
from memories.stores.records import MAX_INDEX, ROLE, ROLES, SPEAKER, Collection, Filter, Record, Ref
from memories.write.parts import split
from memories.write.suspicion import mark_record

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.guard.redactor import Redactor

SESSION_PAUSE = timedelta(hours=1)  # a longer one begins a new session
SESSION_TURNS = 64  # and so does a session of this many turns, so that none grows without end


class _Said(NamedTuple):
    """A draft as it is stored.

    Attributes:
        draft: What was said, without secrets.
        parts: Its content in parts; mostly there is one.
        kinds: The kinds of the secrets that were taken out.
        given: The content as it was given: one that was stored before secrets were taken out is
            still the same.
    """

    draft: TurnDraft
    parts: Sequence[str]
    kinds: Sequence[str]
    given: str


def append(
    store: Store,
    embedder: "Embedder | None",
    place: tuple[Sequence[str], str],
    drafts: Sequence[TurnDraft],
    now: datetime,
    redactor: "Redactor | None",
) -> list[Turn]:
    """Append turns to a conversation in one transaction; see `Memories.add_turns`.

    The cost does not depend on the length of the conversation: only its last turn is read.

    Args:
        store: Where.
        embedder: Makes the vectors before the transaction, so that no other writer waits for the
            model.
        place: The namespaces that are read, one's own first, and the conversation id.
        drafts: What was said, in order.
        now: The time of drafts without one.
        redactor: Takes secrets out, before anything else; None to keep what is given as it is.

    Raises:
        InvalidInput: A value is not acceptable; nothing was stored.
        RequestError: The conversation is in a namespace that is only read.
    """
    (namespace, *others), conversation = place[0], conversation_id(place[1])
    if redactor is not None:
        redactor.refuse(conversation, "conversation id")
    if not drafts:
        return []
    several = len(drafts) > 1
    checked = [
        _checked(draft, now, redactor, number if several else None)
        for number, draft in enumerate(drafts, 1)
    ]
    parts = [(part, said.draft.role) for said in checked for part in said.parts]
    vectors = iter(
        embed_to_store(embedder, [part for part, _ in parts], [role for _, role in parts]).vectors
    )
    added: list[Turn] = []
    new: list[Record] = []
    keyed: dict[str, Sequence[Record]] = {}
    with store.transaction():
        last, taken = _end(store, namespace, conversation)
        if (
            last is None
            and taken < 0
            and (elsewhere := find_namespace(store, others, conversation)) is not None
        ):
            raise not_own(conversation, elsewhere, namespace)
        for said in checked:
            key = scoped_key(conversation, said.draft.message_id)
            known = None if key is None else keyed.get(key) or _stored(store, namespace, key)
            if known is None:
                first = Ref(Collection.HISTORY, namespace, conversation, taken + 1)
                records: Sequence[Record] = [
                    stamp_origin(store, record) for record in _records(first, last, said)
                ]
                new += [record._replace(vectors=next(vectors)) for record in records]
                last = records[-1]
            else:
                records = known
                for _ in said.parts:
                    next(vectors)
            if key is not None:
                keyed[key] = records
            added.append(_told(records, said, new=known is None))
        store.append(new)
    return added


def _end(store: Store, namespace: str, conversation: str) -> tuple[Record | None, int]:
    """Return the last turn of a conversation, and the last position that a turn has that can't be
    read, or -1.
    """
    where = Filter(Collection.HISTORY, (namespace,), group=conversation, state="any")
    mark = store.damaged.mark()
    last = next(iter(store.scan(where, limit=1, newest_first=True)), None)
    damaged = [finding.ref for finding in store.damaged.since(mark) if finding.ref is not None]
    return last, max(
        (ref.position for ref in damaged if ref[1:3] == (namespace, conversation)), default=-1
    )


def _told(records: Sequence[Record], said: _Said, *, new: bool) -> Turn:
    """Return the turn that is stored now, and what became of the draft."""
    turn = turn_of(records)
    if new or turn.content in (said.draft.content, said.given):
        return replace(turn, status=STORED if new else KNOWN)
    named = validate.shown(said.draft.message_id or "")
    reason = f'message id "{named}" is that of {turn.id}, which says something else; give this message an id of its own'
    return replace(turn, status=REFUSED, reason=reason)


def _records(first: Ref, last: Record | None, said: _Said) -> Iterator[Record]:
    """Yield the records of the turn that follows the last one, not before the first place that it
    may have.
    """
    start: int | None = None
    for number, text in enumerate(said.parts):
        record = _next(first, last, said.draft, text)
        start = record.ref.position if start is None else start
        fields: dict[str, Any] = (
            {"redacted": " ".join(said.kinds)} if said.kinds and not number else {}
        )
        offset = _offset(said.draft)
        fields |= {OFFSET: offset} if offset else {}
        if len(said.parts) > 1:
            fields |= {PARTS: len(said.parts)}
        if number:
            fields |= {} if said.draft.message_id is None else {MESSAGE_ID: said.draft.message_id}
            record = record._replace(
                key=None, labels={**record.labels, PART: str(start), CONTINUED: "1"}
            )
        last = mark_record(record._replace(fields=fields))
        yield last


def _offset(draft: TurnDraft) -> int:
    """Return the seconds by which the time zone of a draft's time differs from UTC."""
    assert draft.created_at is not None  # it was checked
    difference = draft.created_at.utcoffset()
    return 0 if difference is None else int(difference.total_seconds())


def _next(first: Ref, last: Record | None, draft: TurnDraft, text: str) -> Record:
    """Return the record that follows the last one, not before the first place that it may have."""
    assert draft.created_at is not None  # it was checked
    index = max(draft.index, first.position, 0 if last is None else last.ref.position + 1)
    session = index
    if last is not None and last.session is not None:
        pause = abs(draft.created_at - last.created_at)
        session = (
            index
            if pause > SESSION_PAUSE or index - last.session >= SESSION_TURNS
            else last.session
        )
    names = {ROLE: draft.role} | ({} if draft.speaker is None else {SPEAKER: draft.speaker})
    return Record(
        ref=first._replace(position=index),
        text=text,
        created_at=draft.created_at.astimezone(UTC),
        key=scoped_key(first.group, draft.message_id),
        labels={**draft.tags, **names},
        session=session,
    )


def _stored(store: Store, namespace: str, key: str) -> Sequence[Record] | None:
    """Return the records of the turn that has a key."""
    where, mark = Filter(Collection.HISTORY, (namespace,), key=key), store.damaged.mark()
    found = store.scan(where, limit=1)
    if not found:
        refuse_damaged(store, where, mark)
    return parts_of(store, found[0]) if found else None


def _checked(
    draft: TurnDraft, now: datetime, redactor: "Redactor | None", number: int | None
) -> _Said:
    """Return a draft as it is stored.

    Raises:
        InvalidInput: A value is not acceptable; the message names the turn by its number, if there
            are several.
    """
    try:
        clean, kinds = (draft, ()) if redactor is None else _redacted(draft, redactor)
        valid = _valid(clean, now)
        parts = (
            [valid.content] if len(valid.content) <= MAX_TURN_CHARACTERS else split(valid.content)
        )
        given = (
            validate.content(draft.content, None)
            if clean.content is not draft.content
            else valid.content
        )
        return _Said(valid, parts, kinds, given)
    except InvalidInput as exc:
        raise (
            exc if number is None else InvalidInput(f"turn {number}: {exc}; nothing was stored")
        ) from exc


def _redacted(draft: TurnDraft, redactor: "Redactor") -> tuple[TurnDraft, tuple[str, ...]]:
    content, kinds = redactor.text(draft.content)
    tags, in_tags = redactor.pairs(draft.tags)
    speaker, in_speaker = (
        (None, ()) if draft.speaker is None else redactor.text(draft.speaker, "speaker")
    )
    named, in_id = (
        (None, ()) if draft.message_id is None else redactor.name(draft.message_id, "message id")
    )
    said = replace(draft, content=content, tags=tags, speaker=speaker, message_id=named)
    return said, (*kinds, *in_tags, *in_speaker, *in_id)


def _valid(draft: TurnDraft, now: datetime) -> TurnDraft:
    content = validate.content(draft.content, None)
    if len(content) > MAX_MESSAGE_CHARACTERS:
        raise InvalidInput(
            f"content is {len(content)} characters; a turn has at most {MAX_MESSAGE_CHARACTERS}; cut it"
        )
    if draft.role not in ROLES:
        raise InvalidInput(
            f'role "{validate.shown(str(draft.role))}" is not one of {", ".join(ROLES)}'
        )
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
        message_id=None
        if draft.message_id is None
        else validate.one_line(draft.message_id, "message id"),
        created_at=_in_its_zone(now if draft.created_at is None else draft.created_at),
        tags=tags,
    )


def _in_its_zone(moment: datetime) -> datetime:
    """Return a time in the resolution in which times are kept, in the time zone that was given.

    Raises:
        InvalidInput: It is not an aware datetime, or out of the years 1 to 9999.
    """
    return to_stored_time(moment, "created_at").astimezone(moment.tzinfo)


class Naming(NamedTuple):
    """How what a conversation says of itself changes; see `Memories.update_conversation`."""

    title: str | None
    user: str | None
    tags: Mapping[str, str]
    remove_tags: Sequence[str]

    def checked(self, redactor: "Redactor | None") -> "Naming":
        """Return the same with acceptable values, without secrets.

        Raises:
            InvalidInput: One is not acceptable, or there is nothing to do.
        """
        if self.title is None and self.user is None and not self.tags and not self.remove_tags:
            raise InvalidInput(
                "no change of the conversation was given; give a title, a user, or tags"
            )
        removed = [self.remove_tags] if isinstance(self.remove_tags, str) else self.remove_tags
        given = {TITLE: self.title, USER: self.user}
        clean = {name: _name(value, name, redactor) for name, value in given.items()}
        tags = self.tags if redactor is None else redactor.pairs(self.tags)[0]
        return Naming(
            clean[TITLE],
            clean[USER],
            validate.tags(tags),
            [validate.tag_key(key) for key in removed],
        )

    def apply(self, store: Store, readable: Sequence[str], name: str) -> Conversation:
        """Change the conversation and return it."""
        name = conversation_id(name)
        describe(store, readable, name, self._of)
        return find(store, readable[:1], name)

    def _of(self, about: About) -> About:
        tags = {
            key: value
            for key, value in {**about.tags, **self.tags}.items()
            if key not in self.remove_tags
        }
        title = about.title if self.title is None else self.title or None
        user = about.user if self.user is None else self.user or None
        return About(title, user, validate.tags(tags))


def _name(value: str | None, name: str, redactor: "Redactor | None") -> str | None:
    """Return a title or a user as it is kept; an empty one removes what is there."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return value and ""
    return validate.one_line(value if redactor is None else redactor.text(value, name).text, name)
