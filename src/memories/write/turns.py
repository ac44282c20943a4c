"""How a turn becomes part of its conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memories import validate
from memories.conversations import TITLE, USER, About, Conversation, describe, find
from memories.embedders.protocol import embed_to_store
from memories.errors import InvalidInput
from memories.models import MAX_TURN_CHARACTERS
from memories.stores.logged import as_added
from memories.stores.protocol import Store, refuse_damaged
from memories.stores.records import MAX_INDEX, ROLE, ROLES, SPEAKER, Collection, Filter, Record, Ref
from memories.times import kept
from memories.turns import Turn, TurnDraft, conversation_id, scoped_key, to_turn
from memories.write.suspicion import marked

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.redaction.redactor import Redactor

SESSION_PAUSE = timedelta(hours=1)  # a longer one begins a new session
SESSION_TURNS = 64  # and so does a session of this many turns, so that none grows without end


def append(
    store: Store,
    embedder: "Embedder | None",
    place: tuple[str, str],
    drafts: Sequence[TurnDraft],
    now: datetime,
    redactor: "Redactor | None",
) -> list[Turn]:
    """Append turns to a conversation in one transaction; see `Memories.add_turns`.

    The cost does not depend on the length of the conversation: only its last turn is read.

    Args:
        store: Where.
        embedder: Makes the vectors before the transaction, so that no other writer waits for the model.
        place: Namespace and conversation id.
        drafts: What was said, in order.
        now: The time of drafts without one.
        redactor: Takes secrets out, before anything else; None to keep what is given as it is.
    """
    namespace, conversation = place[0], conversation_id(place[1])
    if redactor is not None:
        redactor.refuse(conversation, "conversation id")
    if not drafts:
        return []
    several = len(drafts) > 1
    checked = [_checked(draft, now, redactor, number if several else None) for number, draft in enumerate(drafts, 1)]
    vectors = embed_to_store(
        embedder, [draft.content for draft, _ in checked], [draft.role for draft, _ in checked]
    ).vectors
    written: list[Record] = []
    new: list[Record] = []
    keyed: dict[str, Record] = {}
    with store.transaction():
        where = Filter(Collection.HISTORY, (namespace,), group=conversation, state="any")
        mark = store.damaged.mark()
        last = next(iter(store.scan(where, limit=1, newest_first=True)), None)
        damaged = [finding.ref for finding in store.damaged.since(mark) if finding.ref is not None]
        taken = max((ref.position for ref in damaged if ref[1:3] == place), default=-1)  # by a turn that can't be read
        for (draft, kinds), vector in zip(checked, vectors, strict=True):
            key = scoped_key(conversation, draft.message_id)
            turn = None if key is None else keyed.get(key) or _stored(store, namespace, key)
            if turn is None:
                first = Ref(Collection.HISTORY, namespace, conversation, taken + 1)
                last = turn = as_added(store, marked(_next(first, last, draft, kinds)))
                new.append(turn._replace(vectors=vector))
            if key is not None:
                keyed[key] = turn
            written.append(turn)
        store.append(new)
    return [to_turn(record) for record in written]


def _next(first: Ref, last: Record | None, draft: TurnDraft, kinds: Sequence[str]) -> Record:
    """Return the record of the turn that follows the last one, not before the first place that it may have."""
    assert draft.created_at is not None  # it was checked
    index = max(draft.index, first.position, 0 if last is None else last.ref.position + 1)
    session = index
    if last is not None and last.session is not None:
        pause = abs(draft.created_at - last.created_at)
        session = index if pause > SESSION_PAUSE or index - last.session >= SESSION_TURNS else last.session
    names = {ROLE: draft.role} | ({} if draft.speaker is None else {SPEAKER: draft.speaker})
    return Record(
        ref=first._replace(position=index),
        text=draft.content,
        created_at=draft.created_at,
        key=scoped_key(first.group, draft.message_id),
        labels={**draft.tags, **names},
        fields={"redacted": " ".join(kinds)} if kinds else {},
        session=session,
    )


def _stored(store: Store, namespace: str, key: str) -> Record | None:
    where, mark = Filter(Collection.HISTORY, (namespace,), key=key), store.damaged.mark()
    found = store.scan(where, limit=1)
    if not found:
        refuse_damaged(store, where, mark)
    return found[0] if found else None


def _checked(
    draft: TurnDraft, now: datetime, redactor: "Redactor | None", number: int | None
) -> tuple[TurnDraft, tuple[str, ...]]:
    """Return a draft as it is stored, and the kinds of the secrets that were taken out of it.

    Raises:
        InvalidInput: A value is not acceptable; the message names the turn by its number, if there are several.
    """
    try:
        said, kinds = (draft, ()) if redactor is None else _redacted(draft, redactor)
        return _valid(said, now), kinds
    except InvalidInput as exc:
        raise exc if number is None else InvalidInput(f"turn {number}: {exc}; nothing was stored") from exc


def _redacted(draft: TurnDraft, redactor: "Redactor") -> tuple[TurnDraft, tuple[str, ...]]:
    content, kinds = redactor.text(draft.content)
    tags, in_tags = redactor.pairs(draft.tags)
    speaker, in_speaker = (None, ()) if draft.speaker is None else redactor.text(draft.speaker, "speaker")
    named, in_id = (None, ()) if draft.message_id is None else redactor.name(draft.message_id, "message id")
    said = replace(draft, content=content, tags=tags, speaker=speaker, message_id=named)
    return said, (*kinds, *in_tags, *in_speaker, *in_id)


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
            raise InvalidInput("no change of the conversation was given; give a title, a user, or tags")
        removed = [self.remove_tags] if isinstance(self.remove_tags, str) else self.remove_tags
        given = {TITLE: self.title, USER: self.user}
        clean = {name: _name(value, name, redactor) for name, value in given.items()}
        tags = self.tags if redactor is None else redactor.pairs(self.tags)[0]
        return Naming(clean[TITLE], clean[USER], validate.tags(tags), [validate.tag_key(key) for key in removed])

    def apply(self, store: Store, readable: Sequence[str], name: str) -> Conversation:
        """Change the conversation and return it."""
        name = conversation_id(name)
        describe(store, readable, name, self._of)
        return find(store, readable[:1], name)

    def _of(self, about: About) -> About:
        tags = {key: value for key, value in {**about.tags, **self.tags}.items() if key not in self.remove_tags}
        title = about.title if self.title is None else self.title or None
        user = about.user if self.user is None else self.user or None
        return About(title, user, validate.tags(tags))


def _name(value: str | None, name: str, redactor: "Redactor | None") -> str | None:
    """Return a title or a user as it is kept; an empty one removes what is there."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return value and ""
    return validate.one_line(value if redactor is None else redactor.text(value, name).text, name)
