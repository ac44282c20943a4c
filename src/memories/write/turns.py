"""Appends turns to a conversation, and changes its title, user and tags."""

import re
import unicodedata
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
from memories.stores.logged import stamp_record
from memories.stores.protocol import Store, find_first, refuse_damaged
from memories.stores.records import MAX_INDEX, ROLE, SPEAKER, Collection, Filter, Record, Ref
from memories.write.suspicion import mark_suspicious

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.guard.redactor import Redactor

SESSION_PAUSE = timedelta(hours=1)  # a longer pause begins a new session
SESSION_TURNS = 64  # a new session also begins after this many turns
# maximum number of characters in a part of a long message
PART_CHARACTERS = 4_000
_MIN_PART_CHARACTERS = PART_CHARACTERS // 2
# Where to split a message, best first: after paragraphs, lines, sentences, clauses and words.
_BORDERS = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?…]{1,8}[\"')\]»”’]{0,8}\s|[。！？．｡]{1,8}[」』”’）]{0,8}|[।۔؟]\s?"),
    re.compile(r"[;:,、，；]\s?|[)\]}]\s"),
    re.compile(r"\s"),
)
_JOINERS = (
    # characters that combine with the previous one, so a part can't begin with one of them
    "\u200d\ufe0e\ufe0f\ufeff"
)


class _Prepared(NamedTuple):
    """A draft in its stored form.

    Attributes:
        draft: The draft, without secrets.
        parts: Its content in parts; usually one.
        kinds: The kinds of secrets that were removed.
        original: The content with its secrets, to recognize a turn that another program stored
            without removing them.
    """

    draft: TurnDraft
    parts: Sequence[str]
    kinds: Sequence[str]
    original: str


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
        store: The store.
        embedder: Computes the vectors before the transaction, so that no other writer waits for the
            model.
        place: The namespaces to read, with the caller's own first, and the conversation id.
        drafts: The turns, in order.
        now: The time for drafts without one.
        redactor: Removes secrets first; None to keep drafts unchanged.

    Raises:
        InvalidInput: A value is invalid; nothing was stored.
        RequestError: The conversation is in a read-only namespace.
    """
    (namespace, *others), conversation = place[0], conversation_id(place[1])
    if redactor is not None:
        redactor.refuse(conversation, "conversation id")
    if not drafts:
        return []
    prepared = _prepare_all(drafts, now, redactor)
    parts = [(part, turn.draft.role) for turn in prepared for part in turn.parts]
    embedded = embed_to_store(embedder, [text for text, _ in parts], [role for _, role in parts])
    vectors = iter(embedded.vectors)
    results: list[Turn] = []
    new_records: list[Record] = []
    by_key: dict[str, Sequence[Record]] = {}
    with store.transaction():
        last, last_position = _find_end(store, namespace, conversation)
        if last is None and last_position < 0:
            elsewhere = find_namespace(store, others, conversation)
            if elsewhere is not None:
                raise not_own(conversation, elsewhere, namespace)
        for turn in prepared:
            part_vectors = [next(vectors) for _ in turn.parts]
            key = scoped_key(conversation, turn.draft.message_id)
            records = None if key is None else by_key.get(key)
            if records is None and key is not None:
                records = _find_stored(store, namespace, key)
            is_new = records is None
            if records is None:
                first = Ref(Collection.HISTORY, namespace, conversation, last_position + 1)
                records = [stamp_record(store, record) for record in _records(first, last, turn)]
                last = records[-1]
                for record, rows in zip(records, part_vectors, strict=True):
                    new_records.append(record._replace(vectors=rows))
            if key is not None:
                by_key[key] = records
            results.append(_result(records, turn, is_new=is_new))
        store.append(new_records)
    return results


# --- before the transaction


def _prepare_all(
    drafts: Sequence[TurnDraft], now: datetime, redactor: "Redactor | None"
) -> list[_Prepared]:
    """Return drafts in their stored form.

    Raises:
        InvalidInput: A value is invalid. If there are several turns, the message contains the
            number of the invalid one.
    """
    prepared = []
    for number, draft in enumerate(drafts, 1):
        try:
            prepared.append(_prepare(draft, now, redactor))
        except InvalidInput as exc:
            if len(drafts) == 1:
                raise
            raise InvalidInput(f"turn {number}: {exc}; nothing was stored") from exc
    return prepared


def _prepare(draft: TurnDraft, now: datetime, redactor: "Redactor | None") -> _Prepared:
    clean, kinds = (draft, ()) if redactor is None else _redact(draft, redactor)
    valid = _check(clean, now)
    is_long = len(valid.content) > MAX_TURN_CHARACTERS
    original = valid.content
    if clean.content is not draft.content:
        original = validate.content(draft.content, None)
    return _Prepared(valid, split(valid.content) if is_long else [valid.content], kinds, original)


def _redact(draft: TurnDraft, redactor: "Redactor") -> tuple[TurnDraft, tuple[str, ...]]:
    content, kinds = redactor.text(draft.content)
    tags, tag_kinds = redactor.pairs(draft.tags)
    clean = replace(draft, content=content, tags=tags)
    all_kinds = (*kinds, *tag_kinds)
    if draft.speaker is not None:
        speaker, speaker_kinds = redactor.text(draft.speaker, "speaker")
        clean, all_kinds = replace(clean, speaker=speaker), (*all_kinds, *speaker_kinds)
    if draft.message_id is not None:
        message_id, id_kinds = redactor.name(draft.message_id, "message id")
        clean, all_kinds = replace(clean, message_id=message_id), (*all_kinds, *id_kinds)
    return clean, all_kinds


def _check(draft: TurnDraft, now: datetime) -> TurnDraft:
    content = validate.content(draft.content, None)
    if len(content) > MAX_MESSAGE_CHARACTERS:
        raise InvalidInput(
            f"content is {len(content)} characters; a turn can have at most "
            f"{MAX_MESSAGE_CHARACTERS}; shorten it"
        )
    validate.role(draft.role)
    if type(draft.index) is not int or not 0 <= draft.index <= MAX_INDEX:
        raise InvalidInput(f"index must be a whole number from 0 to {MAX_INDEX}")
    tags = validate.tags(draft.tags)
    for name in (ROLE, SPEAKER):
        if name in tags:
            raise InvalidInput(
                f'a turn can\'t have the tag "{name}"; use the argument {name} instead'
            )
    said_at = now if draft.created_at is None else draft.created_at
    speaker, message_id = draft.speaker, draft.message_id
    return replace(
        draft,
        content=content,
        speaker=None if speaker is None else validate.one_line(speaker, "speaker"),
        message_id=None if message_id is None else validate.one_line(message_id, "message id"),
        # Keep the time zone that the writer gave, since it is stored too.
        created_at=to_stored_time(said_at, "created_at").astimezone(said_at.tzinfo),
        tags=tags,
    )


# --- in the transaction


def _find_end(store: Store, namespace: str, conversation: str) -> tuple[Record | None, int]:
    """Return a conversation's last readable turn, and the position of a later unreadable one.

    The position is that of the last unreadable turn; -1 if there is none.
    """
    where = Filter(Collection.HISTORY, (namespace,), group=conversation, state="any")
    mark = store.damaged.mark()
    last = find_first(store, where, newest_first=True)
    last_position = -1
    for finding in store.damaged.since(mark):
        ref = finding.ref
        if ref is not None and (ref.namespace, ref.group) == (namespace, conversation):
            last_position = max(last_position, ref.position)
    return last, last_position


def _find_stored(store: Store, namespace: str, key: str) -> Sequence[Record] | None:
    """Return the records of the turn with a message id; None if there is no such turn."""
    where, mark = Filter(Collection.HISTORY, (namespace,), key=key), store.damaged.mark()
    record = find_first(store, where)
    if record is None:
        refuse_damaged(store, where, mark)
        return None
    return parts_of(store, record)


def _records(first: Ref, last: Record | None, turn: _Prepared) -> Iterator[Record]:
    """Yield the records of a turn that is appended to a conversation.

    Args:
        first: The lowest position that the turn may get.
        last: The conversation's last record.
        turn: The turn.
    """
    start = 0
    for number, text in enumerate(turn.parts):
        record = _next_record(first, last, turn.draft, text)
        fields: dict[str, Any] = {}
        if turn.kinds and number == 0:
            fields["redacted"] = " ".join(turn.kinds)
        assert turn.draft.created_at is not None  # `_prepare_all` has checked it
        offset = turn.draft.created_at.utcoffset() or timedelta()
        if seconds := int(offset.total_seconds()):
            fields[OFFSET] = seconds
        if len(turn.parts) > 1:
            fields[PARTS] = len(turn.parts)
        if number == 0:
            start = record.ref.position
        else:
            if turn.draft.message_id is not None:
                fields[MESSAGE_ID] = turn.draft.message_id
            labels = {**record.labels, PART: str(start), CONTINUED: "1"}
            record = record._replace(key=None, labels=labels)
        last = mark_suspicious(record._replace(fields=fields))
        yield last


def _next_record(first: Ref, last: Record | None, draft: TurnDraft, text: str) -> Record:
    assert draft.created_at is not None  # `_prepare_all` has checked it
    next_index = 0
    if last is not None:
        next_index = last.ref.position + 1
    index = max(draft.index, first.position, next_index)
    labels = {**draft.tags, ROLE: draft.role}
    if draft.speaker is not None:
        labels[SPEAKER] = draft.speaker
    return Record(
        ref=first._replace(position=index),
        text=text,
        created_at=draft.created_at.astimezone(UTC),
        key=scoped_key(first.group, draft.message_id),
        labels=labels,
        session=_session_of(index, draft.created_at, last),
    )


def _session_of(index: int, created_at: datetime, last: Record | None) -> int:
    """Return the index of the first turn in the session that a turn belongs to."""
    if last is None or last.session is None:
        return index
    is_after_pause = abs(created_at - last.created_at) > SESSION_PAUSE
    is_full = index - last.session >= SESSION_TURNS
    return index if is_after_pause or is_full else last.session


def _result(records: Sequence[Record], prepared: _Prepared, *, is_new: bool) -> Turn:
    """Return the stored turn; its status says whether the draft was stored, known or refused."""
    turn = turn_of(records)
    if is_new:
        return replace(turn, status=STORED)
    if turn.content in (prepared.draft.content, prepared.original):
        return replace(turn, status=KNOWN)
    message_id = validate.shown(prepared.draft.message_id or "")
    reason = (
        f'message id "{message_id}" belongs to {turn.id}, which has different content; give this '
        "message its own id"
    )
    return replace(turn, status=REFUSED, reason=reason)


# --- the parts of a long message


def split(text: str) -> list[str]:
    """Split a long message into searchable parts, at the ends of paragraphs, sentences or words.

    Returns:
        The parts, each with visible characters. Joined, they form the original text.

    Raises:
        InvalidInput: The message contains so many consecutive invisible characters that they would
            fill a part.
    """
    parts: list[str] = []
    start = 0
    while start < len(text):
        visible = next(
            (at for at in range(start, len(text)) if validate.is_visible(text[at])), None
        )
        if visible is None and parts:
            parts[-1] += text[start:]
            break
        end = len(text)
        if end - start > PART_CHARACTERS:
            end = _end_of_part(text, start, visible or start)
        parts.append(text[start:end])
        start = end
    if any(len(part) > MAX_TURN_CHARACTERS for part in parts):
        raise InvalidInput(
            f"content has more than {MAX_TURN_CHARACTERS} consecutive invisible characters; "
            "remove them"
        )
    return parts


def _end_of_part(text: str, start: int, visible: int) -> int:
    """Return where a part ends.

    This is the last boundary of the best kind that makes the part neither too short nor too long.

    Args:
        text: The complete text.
        start: Where the part begins.
        visible: The position of the part's first visible character.
    """
    last = min(len(text), max(start, visible + 1 - _MIN_PART_CHARACTERS) + PART_CHARACTERS)
    first = last - _MIN_PART_CHARACTERS
    for border in _BORDERS:
        borders = [match.end() for match in border.finditer(text, first, last)]
        ends = [end for end in borders if not _is_within_character(text, end)]
        if ends:
            return ends[-1]
    end = last
    while end > first and _is_within_character(text, end):
        end -= 1
    return end


def _is_within_character(text: str, end: int) -> bool:
    """Return whether the character at a position belongs to the previous one."""
    if end >= len(text):
        return False
    before, after = text[end - 1], text[end]
    is_joined = after in _JOINERS or before == "\u200d" or bool(unicodedata.combining(after))
    return is_joined or before + after == "\r\n"


# --- the description of a conversation


class Naming(NamedTuple):
    """A change to a conversation's title, user or tags; see `Memories.update_conversation`."""

    title: str | None
    user: str | None
    tags: Mapping[str, str]
    remove_tags: Sequence[str]

    def check(self, redactor: "Redactor | None") -> "Naming":
        """Return the change with validated values, without secrets.

        Raises:
            InvalidInput: A value is invalid, or nothing would change.
        """
        if self.title is None and self.user is None and not self.tags and not self.remove_tags:
            raise InvalidInput("no changes were given; specify a title, a user or tags")
        title = _check_name(self.title, TITLE, redactor)
        user = _check_name(self.user, USER, redactor)
        tags = self.tags
        if redactor is not None:
            tags, _ = redactor.pairs(tags)
        return Naming(title, user, validate.tags(tags), validate.tag_keys(self.remove_tags))

    def apply(self, store: Store, readable: Sequence[str], name: str) -> Conversation:
        """Change the conversation and return it."""
        name = conversation_id(name)
        describe(store, readable, name, self._change)
        return find(store, readable[:1], name)

    def _change(self, about: About) -> About:
        tags = {**about.tags, **self.tags}
        for key in self.remove_tags:
            tags.pop(key, None)
        title, user = about.title, about.user
        if self.title is not None:
            title = self.title or None
        if self.user is not None:
            user = self.user or None
        return About(title, user, validate.tags(tags))


def _check_name(value: str | None, name: str, redactor: "Redactor | None") -> str | None:
    """Return a title or user in its stored form. An empty value removes the current one."""
    if value is None:
        return None
    if isinstance(value, str) and not value.strip():
        return ""
    return validate.one_line(value if redactor is None else redactor.text(value, name).text, name)
