"""Freshness, boost and the factor that they make: the formulas of Decision 5, and their bounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.models import DecayPolicy
from memories.search.relevance import FRESH, NORMAL, STALE, Relevance, boost, condition, factor, freshness

DECAYING = (DecayPolicy.CONTEXTUAL, DecayPolicy.REINFORCEABLE)


@given(st.floats(0, 1e6), st.floats(0, 10), st.sampled_from(DECAYING))
def test_freshness_is_the_formula(age: float, rate: float, policy: DecayPolicy) -> None:
    assert freshness(age, rate, policy) == 1 / (1 + rate * age)


@given(st.floats(-1e6, 1e6), st.floats(0, 10))
def test_what_is_stable_is_always_fresh(age: float, rate: float) -> None:
    assert freshness(age, rate, DecayPolicy.STABLE) == 1.0


def test_a_time_in_the_future_counts_as_now() -> None:
    assert freshness(-5, 0.02, DecayPolicy.CONTEXTUAL) == 1.0


@given(st.integers(0, 10**9), st.floats(0, 10), st.floats(1, 10))
def test_boost_is_the_formula_up_to_its_most(accesses: int, rate: float, most: float) -> None:
    assert boost(accesses, rate, most) == min(most, 1 + rate * accesses)


@given(st.floats(0, 1), st.floats(1, 2), st.floats(0, 1))
def test_age_takes_no_more_than_is_allowed(fresh: float, used: float, least: float) -> None:
    assert least * used - 1e-12 <= factor(fresh, used, least) <= used + 1e-12
    assert factor(1.0, used, least) == used
    assert math.isclose(factor(fresh, used, 0.0), fresh * used)  # the plain product of the specification


@pytest.mark.parametrize(
    ("fresh", "accesses", "expected"),
    [(1.0, 1, FRESH), (0.8, 1, FRESH), (0.79, 1, NORMAL), (1.0, 0, NORMAL), (0.5, 0, NORMAL), (0.49, 0, STALE),
     (0.01, 1, NORMAL)],
)  # fmt: skip
def test_what_is_stale_was_never_read_and_what_is_fresh_was(fresh: float, accesses: int, expected: int) -> None:
    assert condition(fresh, accesses, Relevance()) == expected
