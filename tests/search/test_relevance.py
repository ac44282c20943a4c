"""Freshness, boost and their factor: the formulas of Decision 5, and their bounds."""

import copy
import math
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories import Memories
from memories.models import DecayPolicy
from memories.search.relevance import (
    NORMAL,
    READ_AND_FRESH,
    STALE,
    Relevance,
    boost,
    factor,
    freshness,
    staleness,
)

DECAYING = (DecayPolicy.CONTEXTUAL, DecayPolicy.REINFORCEABLE)


@given(st.floats(0, 1e6), st.floats(0, 10), st.sampled_from(DECAYING))
def test_freshness_follows_the_formula(age: float, rate: float, policy: DecayPolicy) -> None:
    assert freshness(age, rate, policy) == 1 / (1 + rate * age)


@given(st.floats(-1e6, 1e6), st.floats(0, 10))
def test_stable_memories_are_always_fresh(age: float, rate: float) -> None:
    assert freshness(age, rate, DecayPolicy.STABLE) == 1.0


def test_a_time_in_the_future_counts_as_now() -> None:
    assert freshness(-5, 0.02, DecayPolicy.CONTEXTUAL) == 1.0


@given(st.integers(0, 10**9), st.floats(0, 10), st.floats(1, 10))
def test_boost_follows_the_formula_up_to_its_maximum(
    accesses: int, rate: float, most: float
) -> None:
    assert boost(accesses, rate, most) == min(most, 1 + rate * accesses)


@given(st.floats(0, 1), st.floats(1, 2), st.floats(0, 1))
def test_the_age_factor_has_a_lower_bound(fresh: float, used: float, least: float) -> None:
    assert least * used - 1e-12 <= factor(fresh, used, least) <= used + 1e-12
    assert factor(1.0, used, least) == used
    assert math.isclose(
        factor(fresh, used, 0.0), fresh * used
    )  # the plain product of the specification


@pytest.mark.parametrize(
    ("fresh", "accesses", "expected"),
    [(1.0, 1, READ_AND_FRESH), (0.8, 1, READ_AND_FRESH), (0.79, 1, NORMAL), (1.0, 0, NORMAL), (0.5, 0, NORMAL), (0.49, 0, STALE),
     (0.01, 1, NORMAL)],
)  # fmt: skip
def test_staleness_depends_on_freshness_and_reads(
    fresh: float, accesses: int, expected: int
) -> None:
    assert staleness(fresh, accesses, Relevance()) == expected


def _written(memories: Memories, content: str, hours: int) -> str:
    """Store an aging memory, written some hours ago; return its id."""
    at = datetime.now(UTC) - timedelta(hours=hours)
    created = memories.create(content, decay="contextual", created_at=at, force=True)
    assert created.id is not None
    return created.id


@pytest.mark.parametrize("embedder", ["none", "fake"])
def test_a_pinned_memory_ranks_before_a_newer_equal_one(
    home: object, monkeypatch: pytest.MonkeyPatch, embedder: str
) -> None:
    monkeypatch.setenv("DECAY_HALF_LIFE_HOURS", "1e6")
    with Memories(embedder=embedder) as memories:
        old = _written(memories, "the deploy key is in the blue vault", 24 * 300)
        new = [
            _written(memories, "the deploy key is in the blue vault", 24 * at) for at in range(5)
        ]
        assert [hit.memory.id for hit in memories.search("deploy key vault")] == [*new, old]
        memories.pin(old)
        considered = memories.explain("deploy key vault").considered
        assert {each.id: each.features["freshness"] for each in considered}[old] == 1.0
        assert [hit.memory.id for hit in memories.search("deploy key vault")] == [old, *new]
        memories.unpin(old)
        assert [hit.memory.id for hit in memories.search("deploy key vault")][-1] == old


def test_an_explanation_can_be_copied_and_pickled(home: object) -> None:
    with Memories(embedder="fake") as memories:
        _written(memories, "the deploy key is in the blue vault", 1)
        explanation = memories.explain("deploy key vault")
    assert explanation.considered
    assert pickle.loads(pickle.dumps(explanation)) == explanation
    assert copy.deepcopy(explanation) == explanation


def test_pending_reads_are_counted_where_their_number_matters(
    home: object,
) -> None:
    with Memories(embedder="none") as memories:
        ids = [_written(memories, f"note {word}", 1) for word in ("one", "two", "three")]
        for name in (ids[1], ids[1], ids[2]):
            memories.get(name)
        assert [each.id for each in memories.list(sort="accesses").memories] == [
            ids[1],
            ids[2],
            ids[0],
        ]
        memories.get(ids[0])
        assert {each.id for each in memories.list(where="access_count = 1").memories} == {
            ids[0],
            ids[2],
        }
        memories.get(ids[0])
        found = memories.search("note", where="access_count >= 2")
        assert {hit.memory.id for hit in found} == {ids[0], ids[1]}


def test_the_rank_formula_is_the_product_of_similarity_freshness_and_boost(home: object) -> None:
    with Memories(embedder="fake") as memories:
        ages = {}
        for days in (1, 30, 400):
            at = datetime.now(UTC) - timedelta(days=days)
            text = f"the deploy key is in the blue vault{' of the north wing' * (days == 1)}"
            ages[memories.create(text, created_at=at, force=True).id] = days
        [*_, oldest] = ages
        for _ in range(40):
            memories.get(str(oldest))
        memories.status()
        query = "the deploy key is in the blue vault"
        considered = memories.explain(query, rank="formula").considered
        for each in considered:
            numbers = each.features
            similarity, fresh, used = numbers["similarity"], numbers["freshness"], numbers["boost"]
            assert fresh == pytest.approx(1 / (1 + 0.02 * ages[each.id]), abs=1e-4)
            assert each.score == pytest.approx(
                (similarity or 0) * (fresh or 0) * (used or 0), abs=2e-3
            )
        assert {each.id: each.features["boost"] for each in considered}[str(oldest)] == 1.08
        assert [each.id for each in considered] == list(
            ages
        )  # the old memory has the exact words of the query
        assert [each.id for each in memories.explain(query).considered] != list(ages)
