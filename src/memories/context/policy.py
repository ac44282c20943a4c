"""The memory policy of the conversation specification. It decides which memories to store, and how
many, but stores nothing itself.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from memories.errors import InvalidInput
from memories.guard.validate import one_line, unit

MEMORY_TYPES = ("preference", "fact", "project", "decision")
WINDOW = timedelta(hours=1)
MAX_WINDOWS = 1_000  # maximum number of windows whose memories the policy counts itself


class MemoryPolicy:
    """Decides which memories are stored: those of a known type with enough confidence, and only a
    few in each time window.
    """

    def __init__(
        self,
        min_confidence: float = 0.7,
        max_per_window: int = 3,
        count_stored: Callable[[str], int] | None = None,
    ) -> None:
        """Set the limits.

        Args:
            min_confidence: The minimum confidence of a stored memory, 0 to 1.
            max_per_window: The maximum number of memories in a window.
            count_stored: A function that returns the number of memories stored in a window, such as
                `MemoryGateway.count_window`. With it, the limit holds across processes and
                restarts. Without it, `enforce_rate_limit` counts the memories that it has allowed.

        Raises:
            InvalidInput: `min_confidence` is not a number from 0 to 1, or `max_per_window` is
                negative.
        """
        self.min_confidence = unit(min_confidence, "min_confidence")
        is_number = isinstance(max_per_window, int) and not isinstance(max_per_window, bool)
        if not is_number or max_per_window < 0:
            raise InvalidInput("max_per_window must be a whole number, 0 or more")
        self.max_per_window = max_per_window
        self._count_stored = count_stored
        self._allowed: dict[str, int] = {}

    def should_store(self, memory_type: str, confidence: float) -> bool:
        """Return whether a memory is good enough to be stored.

        Args:
            memory_type: One of `MEMORY_TYPES`.
            confidence: The writer's confidence. If it isn't a number from 0 to 1, the memory is
                refused.
        """
        if not self.validate_memory_type(memory_type):
            return False
        if isinstance(confidence, bool) or not isinstance(confidence, int | float):
            return False
        return self.min_confidence <= confidence <= 1

    def enforce_rate_limit(self, window_key: str) -> bool:
        """Return whether one more memory may be stored in a window.

        With `count_stored`, the answer depends on the stored memories, and a call has no side
        effects. Without it, each call that returns True counts as one stored memory.

        Args:
            window_key: The name of the window, for example a conversation and an hour: see
                `window_key`.
        """
        if self._count_stored is not None:
            return self._count_stored(window_key) < self.max_per_window
        count = self._allowed.pop(window_key, 0)
        is_allowed = count < self.max_per_window
        self._allowed[window_key] = count + 1 if is_allowed else count  # moves the key to the end
        if len(self._allowed) > MAX_WINDOWS:
            del self._allowed[next(iter(self._allowed))]
        return is_allowed

    def validate_memory_type(self, memory_type: str) -> bool:
        """Return whether a word is one of the memory types."""
        return memory_type in MEMORY_TYPES


def window_key(conversation_id: str | None, at: datetime, length: timedelta = WINDOW) -> str:
    """Return the name of the window that contains a given time.

    Args:
        conversation_id: The conversation, since each has its own windows; None if the memory
            belongs to no conversation.
        at: A time with a time zone.
        length: The length of a window.

    Returns:
        The conversation and the start of the window, such as `standup@2026-05-31T10:00Z`.

    Raises:
        InvalidInput: The id of the conversation is invalid.
    """
    seconds = length.total_seconds()
    start = datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)
    conversation = one_line(conversation_id, "conversation_id") if conversation_id else ""
    return f"{conversation}@{start:%Y-%m-%dT%H:%MZ}"
