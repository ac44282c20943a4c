"""Candidates are ordered by score, and what is no answer says why."""

from typing import Any

import pytest

from memories.models import DecayPolicy
from memories.ranking import ACCESS_CAP, Features, Rules, noise_floor, rank


def found(similarity: float | None = 0.5, words: float = 1.0, **changes: Any) -> Features:
    usual = {"confidence": 1.0, "decay_policy": DecayPolicy.STABLE, "age_days": 0.0, "accesses": 0}
    return Features(similarity=similarity, words=words, **(usual | changes))


def rules(**changes: Any) -> Rules:
    usual = {"weight": 3.0, "floor": 0.0, "near_best": 1.0, "min_similarity": 0.0, "min_confidence": 0.0, "limit": 10}
    return Rules(**(usual | changes))


def order(*candidates: Features, **changes: Any) -> list[int]:
    return [place.index for place in rank(candidates, rules(**changes)) if not place.dropped]


def test_nothing_ranks_to_nothing() -> None:
    assert rank([], rules()) == []


def test_words_and_similarity_are_fused() -> None:
    [first, second] = rank([found(0.6, 4.0), found(0.8, 2.0)], rules())
    assert (first.index, first.score) == (1, pytest.approx((0.5 + 3 * 0.8) / 4))
    assert (second.index, second.score) == (0, pytest.approx((1.0 + 3 * 0.6) / 4))


def test_either_alone_orders_too() -> None:
    assert order(found(None, 1.0), found(None, 3.0), found(None, 2.0)) == [1, 2, 0]
    assert order(found(0.5, 0.0), found(0.9, 0.0), found(0.7, 0.0)) == [1, 2, 0]


def test_equals_keep_their_order() -> None:
    assert order(found(), found(), found()) == [0, 1, 2]


def test_age_counts_against_what_decays_only() -> None:
    [fresh, old] = rank([found(decay_policy=DecayPolicy.CONTEXTUAL, age_days=50), found(age_days=5000)], rules())
    assert (fresh.index, fresh.freshness) == (1, 1.0)
    assert (old.index, old.freshness) == (0, 0.5)
    assert old.score == pytest.approx(fresh.score / 2)
    [future] = rank([found(decay_policy=DecayPolicy.REINFORCEABLE, age_days=-3)], rules())
    assert future.freshness == 1.0


def test_reads_settle_a_tie_and_no_more() -> None:
    assert order(found(), found(accesses=5)) == [1, 0]
    assert order(found(0.6), found(0.5, accesses=1_000_000)) == [0, 1]
    [often] = rank([found(accesses=1_000_000)], rules())
    assert often.boost == ACCESS_CAP


def test_scores_are_at_most_1() -> None:
    [best] = rank([found(1.0, 5.0, accesses=1000)], rules())
    assert best.score == 1.0


def test_a_negative_similarity_does_not_subtract() -> None:
    [place] = rank([found(-0.4, 4.0)], rules())
    assert place.score == 0.25


def test_weak_words_do_not_count_in_full() -> None:
    """In a small store the best BM25 may come from one word that every other memory has too."""
    [place] = rank([found(0.0, 1.0)], rules())
    assert place.score == 0.0625


@pytest.mark.parametrize(
    ("candidate", "asked", "reason"),
    [
        (found(0.7, 1.0, confidence=0.29), {"min_confidence": 0.3}, "confidence 0.29 is below 0.30"),
        (found(0.4), {"min_similarity": 0.5}, "similarity is below 0.50"),
        (found(None), {"min_similarity": 0.5}, "similarity is below 0.50"),
        (found(None, 0.0), {}, "shares no word with the query"),
        (found(0.3, 0.0), {"floor": 0.4}, "looks like noise"),
        (found(0.3, 1.0), {"floor": 0.4}, "looks like noise"),
        (found(0.9, 0.0, readable=False), {}, "does not know its language"),
    ],
)
def test_what_is_no_hit_says_why(candidate: Features, asked: dict[str, float], reason: str) -> None:
    [place] = rank([candidate], rules(**asked))
    assert reason in place.dropped


def test_thresholds_are_inclusive() -> None:
    assert order(found(0.5, confidence=0.3), min_similarity=0.5, min_confidence=0.3, floor=0.5) == [0]


def test_what_shares_no_word_must_be_near_the_best() -> None:
    assert order(found(0.8, 1.0), found(0.7, 0.0), found(0.1, 0.0), found(0.1, 0.5)) == [0, 1, 3]


def test_the_limit_counts_hits_and_not_what_was_dropped() -> None:
    places = rank([found(0.9, confidence=0.0), found(0.8), found(0.7), found(0.6)], rules(limit=2, min_confidence=0.1))
    assert [(place.index, place.dropped) for place in places] == [
        (0, "confidence 0.00 is below 0.10"), (1, ""), (2, ""), (3, "beyond the limit")
    ]  # fmt: skip


def test_the_noise_floor_grows_with_what_is_searched() -> None:
    floors = [noise_floor(0.1, 0.07, count) for count in (0, 1, 2, 100, 10_000, 1_000_000)]
    assert floors == sorted(floors)
    assert floors[0] == floors[2]
    assert 0.1 < floors[0] < floors[-1] < 0.5


def test_a_query_that_may_be_noise_finds_only_what_is_nearly_the_best() -> None:
    places = rank([found(0.25, 2.0), found(0.21), found(0.15, 2.0)], rules(near_best=0.06))
    assert [place.index for place in places if not place.dropped] == [0, 1]
    assert ["may be noise" in place.dropped for place in places if place.index == 2] == [True]
