"""Confidence over time: how current a memory is, from its policy and its age. Pure; the clock is passed in."""

from datetime import datetime
from typing import Self

from memories.models import DecayPolicy


class HalfLife(float):
    """A half life in hours, with another one for reinforceable memories."""

    __slots__ = ("reinforceable",)
    reinforceable: float

    def __new__(cls, hours: float, reinforceable: float) -> Self:
        """Take the hours of all decaying memories, and those of reinforceable ones."""
        half_life = super().__new__(cls, hours)
        half_life.reinforceable = reinforceable
        return half_life


def half_life_of(decay_policy: DecayPolicy, half_life_hours: float) -> float:
    """Return the hours of a policy: reinforceable memories have their own if it is a `HalfLife`."""
    if decay_policy is DecayPolicy.REINFORCEABLE and isinstance(half_life_hours, HalfLife):
        return half_life_hours.reinforceable
    return float(half_life_hours)


def compute_confidence(
    decay_policy: DecayPolicy,
    reference_at: datetime,
    now: datetime,
    half_life_hours: float,
) -> float:
    """Return how current a statement is: 1.0 when fresh, falling in a straight line to 0.0.

    The formula is that of the command's specification, section 5.2: `max(0, 1 - age / half_life)`, to four digits.
    (What it calls a half life is the whole time until nothing is left.) A time of reference in the future, as after
    a clock was set back, counts as now.

    Args:
        decay_policy: `stable` never decays.
        reference_at: From when age counts, see `reference_time`.
        now: The time to judge at.
        half_life_hours: Hours until confidence is 0.0; greater than 0. A `HalfLife` may have others for this policy.

    Returns:
        0.0 to 1.0.
    """
    if decay_policy is DecayPolicy.STABLE:
        return 1.0
    age_hours = max(0.0, (now - reference_at).total_seconds() / 3600)
    return round(max(0.0, 1.0 - age_hours / half_life_of(decay_policy, half_life_hours)), 4)


def reference_time(decay_policy: DecayPolicy, written_at: datetime, last_reinforced_at: datetime | None) -> datetime:
    """Return from when age counts: the last reinforcement if the policy heeds it, else when the version was written."""
    if decay_policy is DecayPolicy.REINFORCEABLE and last_reinforced_at is not None:
        return max(last_reinforced_at, written_at)
    return written_at
