"""Confidence falls linearly from 1 to 0 over the half life, or not at all."""

from datetime import UTC, datetime, timedelta

import pytest

from memories.models import DecayPolicy
from memories.read.versions import compute_decay, reference_time
from memories.settings import HalfLife

NOW = datetime(2026, 2, 21, 10, tzinfo=UTC)
HALF_LIFE = 720.0
FADING = [DecayPolicy.CONTEXTUAL, DecayPolicy.REINFORCEABLE]


def confidence(policy: DecayPolicy, hours: float, half_life: float = HALF_LIFE) -> float:
    """Return the confidence of a memory after some hours."""
    return compute_decay(policy, NOW - timedelta(hours=hours), NOW, half_life)


@pytest.mark.parametrize("hours", [0, 1, 720, 100_000, -5])
def test_stable_never_decays(hours: float) -> None:
    assert confidence(DecayPolicy.STABLE, hours) == 1.0


@pytest.mark.parametrize("policy", FADING)
@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        (0, 1.0),
        (72, 0.9),
        (360, 0.5),
        (719, 0.0014),
        (720, 0.0),
        (721, 0.0),
        (1_000_000, 0.0),
        (-1, 1.0),
        (-10_000, 1.0),
    ],
)
def test_fading_is_linear_and_stays_between_0_and_1(
    policy: DecayPolicy, hours: float, expected: float
) -> None:
    assert confidence(policy, hours) == expected


def test_confidence_has_four_digits() -> None:
    assert confidence(DecayPolicy.CONTEXTUAL, 1) == 0.9986
    assert confidence(DecayPolicy.CONTEXTUAL, 1 / 3600) == 1.0


def test_the_half_life_is_a_setting() -> None:
    assert confidence(DecayPolicy.CONTEXTUAL, 12, half_life=24) == 0.5
    assert confidence(DecayPolicy.CONTEXTUAL, 12, half_life=0.5) == 0.0


def test_times_in_different_zones_are_compared() -> None:
    from datetime import timezone

    elsewhere = (NOW - timedelta(hours=360)).astimezone(timezone(timedelta(hours=9)))
    assert compute_decay(DecayPolicy.CONTEXTUAL, elsewhere, NOW, HALF_LIFE) == 0.5


@pytest.mark.parametrize("policy", list(DecayPolicy))
def test_age_counts_from_creation_if_never_reinforced(policy: DecayPolicy) -> None:
    assert reference_time(policy, NOW, None) == NOW


def test_only_reinforceable_memories_are_reset_by_reinforcement() -> None:
    later = NOW + timedelta(days=1)
    assert reference_time(DecayPolicy.REINFORCEABLE, NOW, later) == later
    assert reference_time(DecayPolicy.CONTEXTUAL, NOW, later) == NOW
    assert reference_time(DecayPolicy.STABLE, NOW, later) == NOW


def test_decay_restarts_with_a_version_newer_than_the_reinforcement() -> None:
    assert reference_time(DecayPolicy.REINFORCEABLE, NOW, NOW - timedelta(days=1)) == NOW


def test_reinforceable_memories_can_have_another_half_life() -> None:
    half_life = HalfLife(720.0, 1440.0)
    assert confidence(DecayPolicy.CONTEXTUAL, 360, half_life) == 0.5
    assert confidence(DecayPolicy.REINFORCEABLE, 360, half_life) == 0.75
    assert confidence(DecayPolicy.STABLE, 360, half_life) == 1.0
