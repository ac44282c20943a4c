"""Presents the turns that are queued on disk as if they were stored."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from memories.read.conversations import Conversation, ConversationPage
from memories.read.turns import Turn, conversation_id, scoped_key
from memories.stores.protocol import Store, find_first
from memories.stores.records import ROLE, SPEAKER, Collection, Filter

if TYPE_CHECKING:
    from memories.write.queue import RetryQueue

_CHANNEL = "channel"
_TEXTS = ("conversation_id", "role", "text", "ts")


def waiting_turns(
    queue: "RetryQueue", namespace: str, conversation: str | None = None
) -> list[Turn]:
    """Return the queued turns, oldest first; if a conversation is given, only its turns."""
    if conversation is not None:
        conversation = conversation_id(conversation)
    if not queue:
        return []
    return list(_to_turns(queue.entries(conversation), namespace))


def select_unstored(store: Store, turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns that are not stored yet. A stored turn may remain in the queue for a moment,
    or after a crash.
    """
    return [turn for turn in turns if not _is_stored(store, turn)]


def number_turns(store: Store, turns: Sequence[Turn], where: Filter) -> list[Turn]:
    """Return the queued turns of a conversation that match a filter, with their future indexes.

    Turns that are already stored are left out.
    """
    if not turns:
        return []
    own = Filter(Collection.HISTORY, (turns[0].namespace,), group=turns[0].conversation_id)
    stored = find_first(store, own, newest_first=True)
    last = -1 if stored is None else stored.ref.position
    matching: list[Turn] = []
    for turn in select_unstored(store, turns):
        last = max(last + 1, turn.index)
        if _meets(turn, where):
            matching.append(replace(turn, index=last))
    return matching


def with_waiting(page: ConversationPage, turns: Sequence[Turn], *, first: bool) -> ConversationPage:
    """Return a page of conversations, each with its number of queued turns.

    Args:
        page: Stored conversations.
        turns: The queued turns.
        first: Whether this is the first page; it begins with the conversations that have no stored
            turns.
    """
    by_conversation: dict[str, list[Turn]] = {}
    for turn in turns:
        by_conversation.setdefault(turn.conversation_id, []).append(turn)
    namespace = turns[0].namespace if turns else ""
    conversations = []
    for stored in page.conversations:
        count = stored.waiting_count
        if stored.namespace == namespace:
            count = len(by_conversation.pop(stored.id, ()))
        conversations.append(replace(stored, waiting_count=count))
    if first:
        new = [_new_conversation(queued) for queued in by_conversation.values()]
        conversations = [*new, *conversations]
    return page._replace(conversations=tuple(conversations))


def _new_conversation(turns: Sequence[Turn]) -> Conversation:
    first, last = turns[0], turns[-1]
    return Conversation(
        first.conversation_id,
        first.namespace,
        0,
        first.created_at,
        last.created_at,
        waiting_count=len(turns),
    )


def _to_turns(entries: Sequence[dict[str, Any]], namespace: str) -> Iterator[Turn]:
    """Yield entries as turns, numbered in each conversation as if none of its turns were stored."""
    last: dict[str, int] = {}
    for entry in entries:
        if not all(isinstance(entry.get(name), str) for name in _TEXTS):
            continue  # unreadable; the next drain sets it aside
        conversation = entry["conversation_id"]
        try:
            created_at = datetime.fromisoformat(entry["ts"]).astimezone()
            index = max(last.get(conversation, -1) + 1, int(entry.get("turn_index", 0)))
        except (ValueError, TypeError, OverflowError):
            continue
        last[conversation] = index
        yield Turn(
            conversation_id=conversation,
            index=index,
            namespace=namespace,
            content=entry["text"],
            role=entry["role"],
            speaker=entry.get("speaker"),
            created_at=created_at,
            session=index,
            message_id=entry.get("message_id"),
            tags={_CHANNEL: entry[_CHANNEL]} if entry.get(_CHANNEL) else {},
            waiting=True,
        )


def _is_stored(store: Store, turn: Turn) -> bool:
    key = scoped_key(turn.conversation_id, turn.message_id)
    if key is None:
        return False
    where = Filter(Collection.HISTORY, (turn.namespace,), key=key)
    return find_first(store, where) is not None


def _meets(turn: Turn, where: Filter) -> bool:
    labels = {ROLE: turn.role}
    if turn.speaker is not None:
        labels[SPEAKER] = turn.speaker
    return (
        where.labels.items() <= labels.items()
        and (where.since is None or turn.created_at >= where.since)
        and (where.until is None or turn.created_at <= where.until)
    )
