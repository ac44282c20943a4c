"""The JSON shape of the answer to turns that were added; what other answers look like is in `shapes`."""

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memories.read.turns import Turn

MAX_REDACTED = 1_000  # secrets whose kinds are told


def added(conversation: str, said: "Sequence[Turn]") -> dict[str, Any]:
    """Return what became of many turns that were added to a conversation."""
    counts = Counter(turn.status for turn in said)
    kinds = [kind for turn in said for kind in turn.redacted][:MAX_REDACTED]
    shape: dict[str, Any] = {
        "conversation_id": conversation.strip(),
        "count": len(said),
        "last_index": said[-1].index if said else None,
        **{status: counts[status] for status in ("stored", "known", "refused")},
        "results": [_told(turn) for turn in said],
    }
    return shape | ({"redacted": kinds} if kinds else {})


def _told(turn: "Turn") -> dict[str, Any]:
    told = {"id": turn.id, "status": turn.status, "message_id": turn.message_id, "reason": turn.reason}
    return {name: value for name, value in told.items() if value is not None}
