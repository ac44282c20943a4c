"""A clock for tests, which goes on whenever it is read."""

from datetime import UTC, datetime, timedelta


class MovingClock:
    """Returns a later time at each call.

    Attributes:
        now: The time of the last call.
    """

    def __init__(self, step: timedelta, now: datetime = datetime(2026, 1, 5, tzinfo=UTC)) -> None:
        """Start at a time, to go on by a step at each call."""
        self.now = now
        self._step = step

    def __call__(self) -> datetime:
        """Go on, and return the time."""
        self.now += self._step
        return self.now
