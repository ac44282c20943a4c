"""How long checks may take: processor time, so that a busy machine changes no answer, and a bound
on the time that passes, for slow disks.
"""

import time
from typing import Self

_SLOW = 10  # how much longer than the processor time checks may take


class Budget:
    """A budget of time for one thread."""

    def __init__(self, seconds: float) -> None:
        """Start a budget of this much processor time."""
        self._computed_until = time.thread_time() + seconds
        self._passed_until = time.monotonic() + _SLOW * seconds

    @classmethod
    def of(cls, seconds: float | None) -> Self | None:
        """Return a budget; None for no limit."""
        return None if seconds is None else cls(seconds)

    @property
    def is_spent(self) -> bool:
        """Whether no time is left."""
        return time.thread_time() > self._computed_until or time.monotonic() > self._passed_until

    def spend(self) -> None:
        """Check that time is left.

        Raises:
            TimeoutError: None is left.
        """
        if self.is_spent:
            raise TimeoutError
