"""What is worth remembering, and how often: the policy of the conversation specification. Pure; it
stores nothing.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from memories.errors import InvalidInput
from memories.guard.validate import one_line, unit

MEMORY_TYPES = ("preference", "fact", "project", "decision")
WINDOW = timedelta(hours=1)
_COUNTED = 1_000  # windows that are counted here, where nothing else counts them


class MemoryPolicy:
    """Decides which memories are stored: those of a known type and enough confidence, a few in each
    window of time.
    """

    def __init__(
        self,
        min_confidence: float = 0.7,
        max_per_window: int = 3,
        count_stored: Callable[[str], int] | None = None,
    ) -> None:
        """Set the limits.

        Args:
            min_confidence: The lowest confidence of a memory that is stored, 0 to 1.
            max_per_window: How many memories are stored in one window at most.
            count_stored: Returns how many memories of a window are stored, such as
                `MemoryGateway.count_window`; the limit then holds across processes and restarts.
                Without it, `enforce_rate_limit` counts its own calls.

        Raises:
            InvalidInput: `min_confidence` is not a number from 0 to 1, or `max_per_window` is
                negative.
        """
        self.min_confidence = unit(min_confidence, "min_confidence")
        if (
            isinstance(max_per_window, bool)
            or not isinstance(max_per_window, int)
            or max_per_window < 0
        ):
            raise InvalidInput("max_per_window must be a whole number, 0 or more")
        self.max_per_window = max_per_window
        self._count_stored = count_stored
        self._allowed: dict[str, int] = {}

    def should_store(self, memory_type: str, confidence: float) -> bool:
        """Return whether a memory is good enough to be stored.

        Args:
            memory_type: One of `MEMORY_TYPES`.
            confidence: How sure its writer is; anything but a number from 0 to 1 is refused.
        """
        known = isinstance(confidence, int | float) and not isinstance(confidence, bool)
        return (
            self.validate_memory_type(memory_type)
            and known
            and self.min_confidence <= confidence <= 1
        )

    def enforce_rate_limit(self, window_key: str) -> bool:
        """Return whether one more memory may be stored in a window.

        With `count_stored`, what is stored decides, and asking changes nothing. Without it, every
        True counts as one memory.

        Args:
            window_key: The name of the window, for example a conversation and an hour: see
                `window_key`.
        """
        if self._count_stored is not None:
            return self._count_stored(window_key) < self.max_per_window
        allowed = self._allowed.pop(window_key, 0)
        under = allowed < self.max_per_window
        self._allowed[window_key] = allowed + under  # put back as the newest
        if len(self._allowed) > _COUNTED:
            del self._allowed[next(iter(self._allowed))]
        return under

    def validate_memory_type(self, memory_type: str) -> bool:
        """Return whether this is a type of memories."""
        return memory_type in MEMORY_TYPES


def window_key(conversation_id: str | None, at: datetime, length: timedelta = WINDOW) -> str:
    """Return the name of the window that a time falls into.

    Args:
        conversation_id: Each conversation has its own windows; None for what belongs to none.
        at: An aware time.
        length: How long a window is.

    Returns:
        The conversation and the start of the window, such as `standup@2026-05-31T10:00Z`.

    Raises:
        InvalidInput: The id of the conversation is not acceptable.
    """
    beginning = datetime.fromtimestamp(
        at.timestamp() // length.total_seconds() * length.total_seconds(), UTC
    )
    conversation = one_line(conversation_id, "conversation_id") if conversation_id else ""
    return f"{conversation}@{beginning:%Y-%m-%dT%H:%MZ}"
