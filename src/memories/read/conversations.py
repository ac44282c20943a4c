"""Reads, lists and describes conversations. For turns, see `turns`.

A store keeps only records, so the title, the user and the tags of a conversation are fields of its
first turn.
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
from memories.read.lookup import apply_filters, count_turns
from memories.read.turns import said_at
from memories.stores.protocol import Store, find_first
from memories.stores.records import ROLE, Collection, Filter, Patch, Record, Ref

MAX_CONVERSATIONS = 100_000  # maximum number of conversations that one listing considers
TITLE, USER, TAGS = "title", "user", "conversation_tags"  # fields of the first turn
ABOUT = (TITLE, USER, TAGS)
MAX_OPENING = 90  # maximum length of an `opening`, in characters
_CURSOR = re.compile(r"(-?\d{1,15}):([^:]{1,63}):(.{1,256})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation in a listing.

    Attributes:
        id: The name of the conversation.
        namespace: The namespace that it belongs to.
        turn_count: The number of stored turns.
        first_at: The time of the first turn.
        last_at: The time of the last turn.
        title: The title, if the conversation has one.
        user: The user in the conversation, if recorded.
        tags: Arbitrary key-value pairs.
        waiting_count: The number of queued turns; see `Memories.waiting_turns`.
        opening: The beginning of the user's first turn, if any, to show in place of a title.
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
    opening: str | None = None


class ConversationPage(NamedTuple):
    """A page of conversations. Pass `next_cursor` to get the next page; it is None at the end."""

    conversations: tuple[Conversation, ...]
    next_cursor: str | None


class ConversationFilters(TypedDict, total=False):
    """Filters for a listing of conversations; all are optional.

    Attributes:
        title: Only conversations whose title contains this text; case is ignored.
        user: Only conversations with this user.
        tags: Tags that each conversation must have.
        speaker: Only conversations with a turn by this speaker.
        role: Only conversations with a turn in this role.
        since: Only conversations with a turn said at this time or later: an aware datetime, or text
            such as "7d".
        until: Only conversations with a turn said at this time or earlier.
        as_of: Show the conversations as they were at this time.
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
    """Filters for a conversation's turns; all are optional.

    Attributes:
        role: Only turns with this role.
        speaker: Only turns by this speaker.
        since: Only turns said at this time or later: an aware datetime, or text such as "7d".
        until: Only turns said at this time or earlier.
        as_of: Only turns that had been said by this time.
    """

    role: str | None
    speaker: str | None
    since: Moment | None
    until: Moment | None
    as_of: Moment | None


class About(NamedTuple):
    """The description of a conversation: its title, user and tags."""

    title: str | None
    user: str | None
    tags: Mapping[str, str]

    @classmethod
    def of(cls, first: Record) -> "About":
        """Return a conversation's description from its first turn; unreadable tags are ignored."""
        title, user = first.fields.get(TITLE), first.fields.get(USER)
        return cls(
            None if title is None else str(title),
            None if user is None else str(user),
            _parse_tags(first.fields.get(TAGS, "{}")),
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields for the first turn; None removes a field."""
        tags = None
        if self.tags:
            tags = json.dumps(dict(sorted(self.tags.items())), ensure_ascii=False)
        return {TITLE: self.title, USER: self.user, TAGS: tags}

    def meets(self, filters: "ConversationFilters") -> bool:
        """Return whether the title, the user and the tags match the filters."""
        title, user = filters.get("title"), filters.get("user")
        if title is not None and title.casefold() not in (self.title or "").casefold():
            return False
        if user is not None and user != self.user:
            return False
        return (filters.get("tags") or {}).items() <= self.tags.items()


def _parse_tags(text: object) -> dict[str, str]:
    try:
        tags = json.loads(str(text))
    except ValueError:
        return {}
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        return {}
    return tags


# --- reading ---


def page(
    store: Store,
    namespaces: Sequence[str],
    filters: ConversationFilters,
    now: datetime,
    limit: int,
    cursor: str | None,
) -> ConversationPage:
    """Return a page of conversations, most recent first; see `Memories.list_conversations`.

    This reads one turn of every conversation, and two turns of each conversation on the page.
    """
    _refuse_unknown(filters, ConversationFilters.__annotations__, "conversations")
    filters = {**filters, "tags": validate.tags(filters.get("tags") or {})}
    title, user = filters.get("title"), filters.get("user")
    if title is not None:
        filters["title"] = validate.one_line(title, "title")
    if user is not None:
        filters["user"] = validate.one_line(user, "user")
    # The tags of a conversation are not the tags of its turns.
    of_turns = {name: value for name, value in filters.items() if name != "tags"}
    where = apply_filters(Filter(Collection.HISTORY, tuple(namespaces)), of_turns, now)
    end = where.as_of
    where = _limit_to_past(where)
    after = None if cursor is None else _parse_cursor(cursor)
    last_turns: list[Record] = []
    for namespace, name in store.groups(where, limit=MAX_CONVERSATIONS):
        last_turns += store.scan(_all_turns(namespace, name, end), limit=1, newest_first=True)
    last_turns.sort(key=_sort_key)
    if after is not None:
        last_turns = [last for last in last_turns if _sort_key(last) > after]
    conversations: list[Conversation] = []
    for conversation in _conversations(store, last_turns, filters, end):
        if len(conversations) == limit:
            last = conversations[-1]
            next_cursor = f"{to_millis(last.last_at)}:{last.namespace}:{last.id}"
            return ConversationPage(tuple(conversations), next_cursor)
        conversations.append(conversation)
    return ConversationPage(tuple(conversations), None)


def narrow_turns(where: Filter, filters: TurnFilters, now: datetime) -> Filter:
    """Narrow the filter for a conversation's turns with the caller's filters.

    Raises:
        InvalidInput: A condition is invalid, or two contradict each other.
    """
    _refuse_unknown(filters, TurnFilters.__annotations__, "turns")
    return _limit_to_past(apply_filters(where, filters, now))


def _limit_to_past(where: Filter) -> Filter:
    """Return a filter with `until` in place of `as_of`. They are equivalent because turns never
    change.
    """
    end = where.as_of
    if end is None:
        return where
    until = end if where.until is None else min(where.until, end)
    return where._replace(as_of=None, until=until)


def _refuse_unknown(filters: Iterable[str], known: Mapping[str, object], of: str) -> None:
    for name in filters:
        if name not in known:
            raise InvalidInput(f'there is no filter "{name}" for {of}; use {", ".join(known)}')


def find(
    store: Store, namespaces: Sequence[str], name: str, end: datetime | None = None
) -> Conversation:
    """Return a conversation, optionally as it was at a given time; see `Memories.conversation`."""
    for namespace in namespaces:
        last_turns = store.scan(_all_turns(namespace, name, end), limit=1, newest_first=True)
        for conversation in _conversations(store, last_turns, {}, end):
            return conversation
    if end is not None:
        for namespace in namespaces:
            for first in store.scan(_all_turns(namespace, name), limit=1):
                raise NotFound(
                    f"Conversation not found at {to_iso(end)}: it did not exist until "
                    f"{to_iso(first.created_at)}"
                )
    raise NotFound("Conversation not found")


def find_namespace(store: Store, namespaces: Sequence[str], name: str) -> str | None:
    """Return the first of these namespaces that contains a conversation with this name."""
    for namespace in namespaces:
        if find_first(store, _all_turns(namespace, name)):
            return namespace
    return None


def _conversations(
    store: Store,
    last_turns: Iterable[Record],
    filters: ConversationFilters,
    end: datetime | None,
) -> Iterator[Conversation]:
    """Given the last turns of conversations, yield the conversations that match the filters."""
    for last in last_turns:
        where = _all_turns(last.ref.namespace, last.ref.group, end)
        for first in store.scan(where, limit=1):  # none if all turns were just removed
            about = About.of(first)
            if about.meets(filters):
                yield Conversation(
                    last.ref.group,
                    last.ref.namespace,
                    count_turns(store, where),
                    said_at(first),
                    said_at(last),
                    *about,
                    opening=_opening(store, where, first),
                )


def _opening(store: Store, where: Filter, first: Record) -> str | None:
    """Return the beginning of the user's first turn, on one line."""
    spoken: Sequence[Record] = [first]
    if first.labels.get(ROLE) != "user":
        spoken = store.scan(where._replace(labels={ROLE: "user"}), limit=1)
    for turn in spoken:
        text = " ".join(turn.text[: 4 * MAX_OPENING].split())
        if len(text) <= MAX_OPENING:
            return text
        return f"{text[:MAX_OPENING].rstrip()} …"
    return None


def _all_turns(namespace: str, name: str, end: datetime | None = None) -> Filter:
    return Filter(Collection.HISTORY, (namespace,), group=name, until=end)


def _sort_key(last: Record) -> tuple[int, str, str]:
    return -to_millis(last.created_at), last.ref.group, last.ref.namespace


def _parse_cursor(cursor: str) -> tuple[int, str, str]:
    match = _CURSOR.fullmatch(str(cursor))
    if match is None:
        raise InvalidInput("the cursor was not returned by an earlier list; begin again without it")
    return -int(match[1]), match[3], match[2]


# --- changing the description ---


def describe(
    store: Store, namespaces: Sequence[str], name: str, change: Callable[[About], About]
) -> None:
    """Change a conversation's description in the first of these namespaces that contains it.

    Raises:
        NotFound: There is no such conversation.
        RequestError: The conversation exists only in a read-only namespace.
    """
    own = namespaces[0]
    with store.transaction():
        first = find_first(store, _all_turns(own, name))
        if first is None:
            namespace = find_namespace(store, namespaces[1:], name)
            if namespace is not None:
                raise not_own(name, namespace, own)
            raise NotFound("Conversation not found")
        fields = change(About.of(first)).fields()
        if any(first.fields.get(key) != value for key, value in fields.items()):
            store.patch([Patch(first.ref, None, None, fields)])


def keep_about(store: Store, removed: Sequence[Ref]) -> None:
    """Keep the description of a conversation whose first turn is about to be removed.

    The description moves to the first turn that remains.
    """
    positions_of: dict[tuple[str, str], set[int]] = {}
    for ref in removed:
        if ref.collection is Collection.HISTORY:
            positions_of.setdefault((ref.namespace, ref.group), set()).add(ref.position)
    for (namespace, name), positions in positions_of.items():
        where = _all_turns(namespace, name)
        for first in store.scan(where, limit=1):
            about = {key: first.fields[key] for key in ABOUT if key in first.fields}
            if not about or first.ref.position not in positions:
                continue
            staying = (ref for ref in store.refs(where) if ref.position not in positions)
            heir = next(staying, None)
            if heir is not None:
                store.patch([Patch(heir, None, None, about)])


def not_own(name: str, namespace: str, own: str) -> RequestError:
    """Return the error for an attempt to change a conversation in another namespace."""
    return RequestError(
        f'Conversation "{validate.shown(name)}" is in namespace {namespace}, but you write to '
        f"{own}; write to {namespace}, or choose a different name"
    )
