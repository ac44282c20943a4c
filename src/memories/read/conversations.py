"""Conversations as a listing shows them: how many turns, when, and what they are called; turns are
in `turns`.

What a conversation is called stands in fields of its first turn, since a store keeps nothing but
records.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

from memories.core.times import to_iso, to_millis
from memories.errors import InvalidInput, NotFound, RequestError
from memories.guard import validate
from memories.models import Moment
from memories.read.lookup import narrowed
from memories.read.turns import count, said_at
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Patch, Record, Ref

MAX_CONVERSATIONS = 100_000  # that are looked at for a listing
TITLE, USER, TAGS = "title", "user", "conversation_tags"  # fields of the first turn
ABOUT = (TITLE, USER, TAGS)
_CURSOR = re.compile(r"(-?\d{1,15}):([^:]{1,63}):(.{1,256})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as a listing shows it.

    Attributes:
        id: Its name.
        namespace: The namespace it belongs to.
        turn_count: How many turns it has.
        first_at: When its first turn was said.
        last_at: When its last turn was said.
        title: What it is called, if somebody said so.
        user: Whom it is held with, if somebody said so.
        tags: Free pairs.
        waiting_count: How many more turns wait to be stored; see `Memories.waiting_turns`.
    """

    id: str
    namespace: str
    turn_count: int
    first_at: datetime
    last_at: datetime
    title: str | None = None
    user: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    waiting_count: int = 0


class ConversationPage(NamedTuple):
    """A page of a listing; pass `next_cursor` on to get the next one, None at the end."""

    conversations: tuple[Conversation, ...]
    next_cursor: str | None


class ConversationFilters(TypedDict, total=False):
    """What narrows a listing of conversations; what is left out does not.

    Attributes:
        title: Only conversations whose title has this text in it, in upper or lower case.
        user: Only conversations held with this user.
        tags: Tags that each conversation must have.
        speaker: Only conversations in which this speaker says something.
        role: Only conversations with a turn of this role.
        since: Only conversations with a turn said at this time or later: an aware datetime, or text
            such as "7d".
        until: Only conversations with a turn said at this time or earlier.
        as_of: What had been said by this time: each conversation is as long as it was then.
    """

    title: str | None
    user: str | None
    tags: Mapping[str, str] | None
    speaker: str | None
    role: str | None
    since: Moment | None
    until: Moment | None
    as_of: Moment | None


class TurnFilters(TypedDict, total=False):
    """What narrows the turns of a conversation; what is left out does not.

    Attributes:
        role: Only turns of this role.
        speaker: Only turns of this speaker.
        since: Only turns said at this time or later: an aware datetime, or text such as "7d".
        until: Only turns said at this time or earlier.
        as_of: What had been said by this time.
    """

    role: str | None
    speaker: str | None
    since: Moment | None
    until: Moment | None
    as_of: Moment | None


class About(NamedTuple):
    """What a conversation is called, whom it is held with, and its tags."""

    title: str | None
    user: str | None
    tags: Mapping[str, str]

    @classmethod
    def of(cls, first: Record) -> "About":
        """Return what the first turn of a conversation says of it; what can't be read counts as not
        said.
        """
        said = first.fields
        try:
            tags = json.loads(str(said.get(TAGS, "{}")))
        except ValueError:
            tags = {}
        known = (
            tags
            if isinstance(tags, dict) and all(isinstance(value, str) for value in tags.values())
            else {}
        )
        title, user = (
            None if said.get(name) is None else str(said[name]) for name in (TITLE, USER)
        )
        return cls(title, user, known)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a first turn that say it; None removes one."""
        tags = (
            json.dumps(dict(sorted(self.tags.items())), ensure_ascii=False) if self.tags else None
        )
        return {TITLE: self.title, USER: self.user, TAGS: tags}

    def fits(self, wanted: "ConversationFilters") -> bool:
        """Return whether it meets the filters that are about it."""
        title, user = wanted.get("title"), wanted.get("user")
        return (
            (title is None or title.casefold() in (self.title or "").casefold())
            and (user is None or user == self.user)
            and (wanted.get("tags") or {}).items() <= self.tags.items()
        )


def page(
    store: Store,
    namespaces: Sequence[str],
    wanted: ConversationFilters,
    now: datetime,
    limit: int,
    cursor: str | None,
) -> ConversationPage:
    """Return a page of conversations, those with the newest turn first; see
    `Memories.list_conversations`.

    Of each conversation one turn is read, and of those on the page also the first one.
    """
    _refuse_unknown(wanted, ConversationFilters.__annotations__, "conversations")
    wanted = {**wanted, "tags": validate.tags(wanted.get("tags") or {})}
    turns = {
        name: value for name, value in wanted.items() if name != "tags"
    }  # its tags are not those of its turns
    where, end = _by(narrowed(Filter(Collection.HISTORY, tuple(namespaces)), turns, now))
    behind = None if cursor is None else _place_of(cursor)
    lasts: list[Record] = []
    for place in store.groups(where, limit=MAX_CONVERSATIONS):
        lasts += store.scan(_all_of(*place, end), limit=1, newest_first=True)
    found: list[Conversation] = []
    following = [
        last for last in sorted(lasts, key=_place) if behind is None or _place(last) > behind
    ]
    for each in _told(store, following, wanted, end):
        if len(found) == limit:
            return ConversationPage(tuple(found), _cursor(found[-1]))
        found.append(each)
    return ConversationPage(tuple(found), None)


def wanted_turns(where: Filter, given: TurnFilters, now: datetime) -> Filter:
    """Return a filter of the turns of a conversation that also has the conditions of a caller.

    Raises:
        InvalidInput: A condition is not acceptable, or they contradict each other.
    """
    _refuse_unknown(given, TurnFilters.__annotations__, "turns")
    return _by(narrowed(where, given, now))[0]


def _by(where: Filter) -> tuple[Filter, datetime | None]:
    """Return a filter of what had been said by its time, and that time; turns never change, so that
    is all of it.
    """
    end = where.as_of
    if end is None:
        return where, None
    return where._replace(
        as_of=None, until=end if where.until is None else min(where.until, end)
    ), end


def _refuse_unknown(given: Iterable[str], known: Mapping[str, object], what: str) -> None:
    for name in given:
        if name not in known:
            raise InvalidInput(f'there is no filter "{name}" of {what}; use {", ".join(known)}')


def find(
    store: Store, namespaces: Sequence[str], name: str, end: datetime | None = None
) -> Conversation:
    """Return a conversation, or as long as it was at a time; see `Memories.conversation`."""
    for namespace in namespaces:
        last = store.scan(_all_of(namespace, name, end), limit=1, newest_first=True)
        for found in _told(store, last, {}, end):
            return found
    later = None if end is None else next(_firsts(store, namespaces, name), None)
    if end is None or later is None:
        raise NotFound("Conversation not found")
    raise NotFound(
        f"Conversation not found at {to_iso(end)}: it is there since {to_iso(later.created_at)}"
    )


def _firsts(store: Store, namespaces: Sequence[str], name: str) -> Iterator[Record]:
    for namespace in namespaces:
        yield from store.scan(_all_of(namespace, name), limit=1)


def describe(
    store: Store, namespaces: Sequence[str], name: str, change: Callable[[About], About]
) -> None:
    """Change what the conversation of one's own namespace, the first of these, says of itself.

    Raises:
        NotFound: There is no such conversation.
        RequestError: It is in a namespace that is only read.
    """
    own = namespaces[0]
    with store.transaction():
        first = next(iter(store.scan(_all_of(own, name), limit=1)), None)
        if first is None:
            if place := place_of(store, namespaces[1:], name):
                raise not_own(name, place, own)
            raise NotFound("Conversation not found")
        fields = change(About.of(first)).fields()
        if any(first.fields.get(key) != value for key, value in fields.items()):
            store.patch([Patch(first.ref, None, None, fields)])


def keep_about(store: Store, going: Sequence[Ref]) -> None:
    """Move what conversations say of themselves to the first turn that stays, before some turns are
    removed.
    """
    by_group: dict[tuple[str, str], set[int]] = {}
    for ref in going:
        if ref.collection is Collection.HISTORY:
            by_group.setdefault((ref.namespace, ref.group), set()).add(ref.position)
    for (namespace, name), positions in by_group.items():
        where = _all_of(namespace, name)
        for first in store.scan(where, limit=1):
            said = {key: first.fields[key] for key in ABOUT if key in first.fields}
            if not said or first.ref.position not in positions:
                continue
            stays = next((ref for ref in store.refs(where) if ref.position not in positions), None)
            if stays is not None:
                store.patch([Patch(stays, None, None, said)])


def place_of(store: Store, namespaces: Sequence[str], name: str) -> str | None:
    """Return the first of these namespaces that has a conversation of this name."""
    return next((each for each in namespaces if store.scan(_all_of(each, name), limit=1)), None)


def not_own(name: str, namespace: str, own: str) -> RequestError:
    """Return the error for a conversation of another namespace that was to be changed."""
    return RequestError(
        f'Conversation "{validate.shown(name)}" is in namespace {namespace} and this writes to {own}; write there '
        f"(namespace {namespace}), or choose another name"
    )


def _all_of(namespace: str, name: str, end: datetime | None = None) -> Filter:
    return Filter(Collection.HISTORY, (namespace,), group=name, until=end)


def _told(
    store: Store, lasts: Iterable[Record], wanted: ConversationFilters, end: datetime | None
) -> Iterator[Conversation]:
    for last in lasts:
        where = _all_of(last.ref.namespace, last.ref.group, end)
        for first in store.scan(where, limit=1):  # none if it was removed meanwhile
            about = About.of(first)
            if about.fits(wanted):
                turns, (began, ended) = count(store, where), map(said_at, (first, last))
                yield Conversation(last.ref.group, last.ref.namespace, turns, began, ended, *about)


def _place(last: Record) -> tuple[int, str, str]:
    return -to_millis(last.created_at), last.ref.group, last.ref.namespace


def _cursor(last: Conversation) -> str:
    return f"{to_millis(last.last_at)}:{last.namespace}:{last.id}"


def _place_of(cursor: str) -> tuple[int, str, str]:
    read = _CURSOR.fullmatch(str(cursor))
    if read is None:
        raise InvalidInput("the cursor is not one that a listing returned; begin again without it")
    return -int(read[1]), read[3], read[2]
