"""Turns that wait in the queue on disk, as users see turns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from memories.read.conversations import Conversation, ConversationPage
from memories.read.turns import Turn, scoped_key
from memories.stores.protocol import Store
from memories.stores.records import ROLE, SPEAKER, Collection, Filter

if TYPE_CHECKING:
    from memories.write.queue import RetryQueue

_CHANNEL = "channel"
_TEXTS = ("conversation_id", "role", "text", "ts")


def waiting_turns(
    queue: "RetryQueue", namespace: str, conversation: str | None = None
) -> list[Turn]:
    """Return the turns that wait, oldest first; only of one conversation, if it is named."""
    if not queue:
        return []
    return list(_turns(queue.entries(conversation), namespace))


def not_stored(store: Store, turns: Iterable[Turn]) -> list[Turn]:
    """Return those that are not stored: one that is stays in the queue for a moment, or after a
    crash.
    """
    return [turn for turn in turns if not _is_stored(store, turn)]


def numbered(turns: Iterable[Turn], where: Filter, last: int) -> list[Turn]:
    """Return those that meet a filter, with the indexes that they will have behind the last one
    that is stored.
    """
    found: list[Turn] = []
    for turn in turns:
        last = max(last + 1, turn.index)
        if _meets(turn, where):
            found.append(replace(turn, index=last))
    return found


def with_waiting(page: ConversationPage, turns: Sequence[Turn], *, first: bool) -> ConversationPage:
    """Return a page of conversations with how many turns of each wait.

    Args:
        page: The conversations that are stored.
        turns: What waits.
        first: The page is the first one of all conversations: those of which nothing is stored yet
            lead it.
    """
    by_name: dict[str, list[Turn]] = {}
    for turn in turns:
        by_name.setdefault(turn.conversation_id, []).append(turn)
    own = turns[0].namespace if turns else ""
    found = [
        replace(each, waiting_count=len(by_name.pop(each.id, ())))
        if each.namespace == own
        else each
        for each in page.conversations
    ]
    new = [
        Conversation(name, own, 0, said[0].created_at, said[-1].created_at, waiting_count=len(said))
        for name, said in by_name.items()
    ]
    return page._replace(conversations=(*(new if first else ()), *found))


def _turns(entries: Sequence[dict[str, Any]], namespace: str) -> Iterator[Turn]:
    """Yield entries as turns, numbered in each conversation as if nothing of it were stored."""
    last: dict[str, int] = {}
    for entry in entries:
        if not all(isinstance(entry.get(name), str) for name in _TEXTS):
            continue  # the next drain finds this too, and puts it aside
        try:
            said_at = datetime.fromisoformat(entry["ts"]).astimezone()
            index = max(last.get(entry["conversation_id"], -1) + 1, int(entry.get("turn_index", 0)))
        except (ValueError, TypeError, OverflowError):
            continue
        last[entry["conversation_id"]] = index
        yield Turn(
            conversation_id=entry["conversation_id"],
            index=index,
            namespace=namespace,
            content=entry["text"],
            role=entry["role"],
            speaker=entry.get("speaker"),
            created_at=said_at,
            session=index,
            message_id=entry.get("message_id"),
            tags={_CHANNEL: entry[_CHANNEL]} if entry.get(_CHANNEL) else {},
            waiting=True,
        )


def _is_stored(store: Store, turn: Turn) -> bool:
    key = scoped_key(turn.conversation_id, turn.message_id)
    return key is not None and bool(
        store.scan(Filter(Collection.HISTORY, (turn.namespace,), key=key), limit=1)
    )


def _meets(turn: Turn, where: Filter) -> bool:
    labels = {ROLE: turn.role, **({} if turn.speaker is None else {SPEAKER: turn.speaker})}
    return (
        where.labels.items() <= labels.items()
        and (where.since is None or turn.created_at >= where.since)
        and (where.until is None or turn.created_at <= where.until)
    )
