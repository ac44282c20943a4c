"""Clocks for tests: one that stands still, and one that advances whenever it is read."""

from datetime import UTC, datetime, timedelta


class Clock:
    """Returns the same time until the test moves it.

    Attributes:
        now: The time that it returns.
    """

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        """Start at a time."""
        self.now = now

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def move(self, by: timedelta = timedelta(days=1)) -> None:
        """Advance by a day, or by a different time."""
        self.now += by


class MovingClock:
    """Returns a later time at each call.

    Attributes:
        now: The time of the last call.
    """

    def __init__(self, step: timedelta, now: datetime = datetime(2026, 1, 5, tzinfo=UTC)) -> None:
        """Start at a time; each call advances the clock by a step."""
        self.now = now
        self._step = step

    def __call__(self) -> datetime:
        """Advance, and return the time."""
        self.now += self._step
        return self.now
