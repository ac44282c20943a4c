"""Confidence over time: how current a memory is, from its policy and its age. Pure; the clock is passed in."""

from datetime import datetime

from memories.models import DecayPolicy


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
        half_life_hours: Hours until confidence is 0.0; greater than 0.

    Returns:
        0.0 to 1.0.
    """
    if decay_policy is DecayPolicy.STABLE:
        return 1.0
    age_hours = max(0.0, (now - reference_at).total_seconds() / 3600)
    return round(max(0.0, 1.0 - age_hours / half_life_hours), 4)


def reference_time(decay_policy: DecayPolicy, written_at: datetime, last_reinforced_at: datetime | None) -> datetime:
    """Return from when age counts: the last reinforcement if the policy heeds it, else when the version was written."""
    if decay_policy is DecayPolicy.REINFORCEABLE and last_reinforced_at is not None:
        return max(last_reinforced_at, written_at)
    return written_at
