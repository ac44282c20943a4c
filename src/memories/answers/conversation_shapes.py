"""JSON responses about conversations, contexts and the scratchpad."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memories.answers.fields import TURN, shape
from memories.answers.shapes import fields, without_none
from memories.core.times import to_iso

if TYPE_CHECKING:
    from memories.context.protocol import HistoryTurn, MemoryItem
    from memories.models import Forgotten
    from memories.read.conversations import Conversation, ConversationPage
    from memories.read.turns import Turn
    from memories.scratchpad.entries import Entry
    from memories.scratchpad.hot_tier import Scratchpad

MAX_REDACTED = 1_000  # maximum number of removed secrets listed in a response


def turn(record: "Turn") -> dict[str, Any]:
    """Return a turn in a conversation; see `answers.fields.TURN`."""
    return shape(record, TURN)


def turns(records: "Sequence[Turn]") -> dict[str, Any]:
    """Return several turns."""
    return {"results": [turn(record) for record in records], "count": len(records)}


def add_turns_result(conversation: str, turns: "Sequence[Turn]") -> dict[str, Any]:
    """Return the result of adding turns to a conversation."""
    counts = Counter(turn.status for turn in turns)
    results: list[dict[str, Any]] = []
    redacted: list[str] = []
    for turn in turns:
        results.append(without_none(fields(turn, "id", "status", "message_id", "reason")))
        redacted += turn.redacted
    answer: dict[str, Any] = {
        "conversation_id": conversation.strip(),
        "count": len(turns),
        "last_index": turns[-1].index if turns else None,
        "stored": counts["stored"],
        "known": counts["known"],
        "refused": counts["refused"],
        "results": results,
    }
    if redacted:
        answer["redacted"] = redacted[:MAX_REDACTED]
    return answer


def forget_turns_result(
    forgotten: "Forgotten", memories: int | None = None, *, dry_run: bool = False
) -> dict[str, Any]:
    """Return the result of erasing turns.

    Args:
        forgotten: The erased turns, or those that would be erased.
        memories: How many memories were erased with the turns; None if only turns were erased.
        dry_run: Whether nothing was erased.
    """
    answer = {
        "conversation_id": forgotten.id,
        "forgotten": not dry_run,
        "turns": forgotten.versions,
        "also_in": list(forgotten.also_in),
        "memories": memories,
        "current_again": list(forgotten.current_again) or None,
        "dry_run": dry_run or None,
    }
    return without_none(answer)


def conversation(record: "Conversation") -> dict[str, Any]:
    """Return a conversation in the form used in listings."""
    optional = {
        "waiting_count": record.waiting_count or None,
        "title": record.title,
        "user": record.user,
        "tags": dict(sorted(record.tags.items())) or None,
    }
    return {
        "conversation_id": record.id,
        **fields(record, "namespace", "turn_count"),
        "first_at": to_iso(record.first_at, keep_zone=True),
        "last_at": to_iso(record.last_at, keep_zone=True),
        **without_none(optional),
    }


def conversations(page: "ConversationPage") -> dict[str, Any]:
    """Return a page of conversations."""
    results = [conversation(record) for record in page.conversations]
    return {"results": results, "count": len(results), "next_cursor": page.next_cursor}


# --- contexts and the scratchpad ---


def context(built: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """Return the parts of a context, and the prompt built from them."""
    memories = []
    for record, similarity in built["memories"]:
        answer = _recalled(record)
        memories.append({**answer, "type": answer.pop("memory_type"), "similarity": similarity})
    return {
        "conversation_id": built["metadata"]["conversation_id"],
        "history": [_recalled(turn) for turn in built["history"]],
        "memories": memories,
        "latest_message": built["latest_message"],
        "recalled": [_recalled(turn) for turn in built["recalled"]],
        "metadata": built["metadata"],
        "prompt": prompt,
    }


def _recalled(record: "HistoryTurn | MemoryItem") -> dict[str, Any]:
    answer = vars(record) | {"suspicious": list(record.suspicious) or None}
    if record.origin is not None:
        answer["origin"] = without_none(record.origin._asdict())
    if answer.get("verdict") is not None:
        answer["verdict"] = answer["verdict"].describe()
    return {
        name: value for name, value in answer.items() if value is not None and value is not False
    }


def scratchpad(content: "Scratchpad", namespace: str) -> dict[str, Any]:
    """Return a namespace's scratchpad."""
    results = [_entry(entry) for entry in content.entries]
    answer: dict[str, Any] = {"results": results, "count": len(results), "namespace": namespace}
    answer |= {"file": content.file, "pending_count": content.waiting}
    if content.outcomes:
        answer["notes"] = list(content.outcomes)
    return answer


def _entry(entry: "Entry") -> dict[str, Any]:
    answer = {
        "id": entry.id,
        "content": entry.content,
        "pinned": entry.pinned,
        "namespace": entry.namespace,
        "tags": dict(sorted(entry.tags.items())),
        "key": entry.key,
        "written_by": entry.by or None,
        "trust": entry.trust or None,
        "updated_at": entry.written,
        "created_at": entry.created,
        "version": entry.version,
        "access_count": entry.uses,
        "suspicious": entry.suspicious.split() or None,
        "verdict": entry.verdict.describe() if entry.verdict else None,
        "cut": entry.cut,
    }
    return without_none(answer)
