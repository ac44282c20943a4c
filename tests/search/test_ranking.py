"""Candidates are ordered by score, and dropped ones have a reason."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.models import DecayPolicy
from memories.search.noise import (
    FAMILIAR_MARGIN,
    MAX_GAP,
    Sense,
    bounds_of_doubtful_query,
    makes_sense,
    noise_floor,
)
from memories.search.ranking import (
    FULL_WORD_SCORE,
    SIMILARITY_WEIGHTS,
    STANDALONE,
    WEIGHTS,
    WORD_WEIGHTS,
    WORDS_ONLY_SIGNS,
    Evidence,
    Features,
    NoiseBounds,
    Ranked,
    RankingRules,
    Weights,
    _reason_to_drop,
    fuse,
    rank,
)
from memories.search.relevance import Relevance, calibrate, to_cosine

SIGNS = ("named", "date", "told_date", "tells_when", "aside", "question", "brevity")
FOR = {"named", "date", "told_date", "tells_when"}


def found(
    similarity: float | None = 0.5, words: float = 1.0, *, date: float = 0.0, **changes: Any
) -> Features:
    """A memory."""
    return Features(
        Evidence.standalone(words, similarity, date), **({"memory_id": "memory"} | changes)
    )


def said(**changes: Any) -> Features:
    """A turn whose surroundings have nothing to do with the query."""
    return Features(turn(**changes))


def turn(**changes: Any) -> Evidence:
    """Return the evidence of a turn, 0 except for these values."""
    scales = ("word_score", "session_best", "window_coverage", "session_coverage")
    similarities = ("similarity", "window_similarity", "session_similarity")
    return Evidence(**(dict.fromkeys((*scales, *similarities), 0.0) | changes))


def rules(**changes: Any) -> RankingRules:
    """Return the usual rules with these changes."""
    usual = {
        "weight": 3.0,
        "min_similarity": 0.0,
        "min_confidence": 0.0,
        "limit": 10,
    }
    return RankingRules(**(usual | changes))


def order(*candidates: Features, **changes: Any) -> list[int]:
    """Rank candidates; return the rows of those that are not dropped."""
    return [ranked.row for ranked in rank(candidates, rules(**changes)) if not ranked.dropped]


def only(candidate: Features, **changes: Any) -> Ranked:
    """Rank one candidate alone."""
    [ranked] = rank([candidate], rules(**changes))
    return ranked


def test_without_candidates_there_is_no_ranking() -> None:
    assert rank([], rules()) == []


# --- memories


def test_words_and_similarity_are_fused() -> None:
    [first, second] = rank([found(0.6, 4.0), found(0.8, 2.0)], rules(weight=3 / STANDALONE))
    assert (first.row, first.score) == pytest.approx((1, (0.5 + 3 * 0.8) / 4))
    assert (second.row, second.score) == pytest.approx((0, (1.0 + 3 * 0.6) / 4))


def test_words_or_similarity_alone_determine_an_order() -> None:
    assert order(found(None, 1.0), found(None, 3.0), found(None, 2.0)) == [1, 2, 0]
    assert order(found(0.5, 0.0), found(0.9, 0.0), found(0.7, 0.0)) == [1, 2, 0]


def test_the_newer_of_equal_memories_is_first() -> None:
    assert order(found(age_days=9), found(age_days=2), found(age_days=5)) == [1, 2, 0]


def test_candidates_with_equal_scores_keep_their_order() -> None:
    assert order(found(), found(), found()) == [0, 1, 2]


def test_only_decaying_memories_lose_score_with_age() -> None:
    [fresh, old] = rank(
        [found(decay_policy=DecayPolicy.CONTEXTUAL, age_days=50), found(age_days=5000)], rules()
    )
    assert (fresh.row, fresh.freshness) == (1, 1.0)
    assert (old.row, old.freshness) == (0, 0.5)
    assert old.score == pytest.approx(fresh.score * 0.975)  # half of the maximum effect of age
    assert only(found(decay_policy=DecayPolicy.REINFORCEABLE, age_days=-3)).freshness == 1.0


def test_age_reduces_only_the_score_above_that_of_an_unrelated_text() -> None:
    memory, noise_mean = found(0.8), 0.5
    old = memory._replace(decay_policy=DecayPolicy.CONTEXTUAL, age_days=50)
    fresh = only(memory, noise_mean=noise_mean).score
    weight = 3.0 * STANDALONE
    unrelated = noise_mean * weight / (1 + weight)
    assert 0 < unrelated < fresh
    aged = only(old, noise_mean=noise_mean).score
    assert aged == pytest.approx(unrelated + (fresh - unrelated) * 0.975)


def test_reads_only_break_ties() -> None:
    assert order(found(), found(accesses=5)) == [1, 0]
    assert order(found(0.6), found(0.5, accesses=1_000_000)) == [0, 1]
    assert only(found(accesses=1_000_000)).boost == Relevance().max_boost


def test_age_never_hides_a_better_answer() -> None:
    old = found(0.8, decay_policy=DecayPolicy.CONTEXTUAL, age_days=100_000)
    assert order(*[found(0.5, accesses=1_000)] * 9, old)[0] == 9


def test_without_relevance_age_and_use_do_not_count() -> None:
    old, used = (
        found(0.51, decay_policy=DecayPolicy.CONTEXTUAL, age_days=5_000),
        found(0.5, accesses=1_000),
    )
    assert order(used, old) == [0, 1]
    assert order(used, old, rank_by="similarity") == [1, 0]
    [first, _] = rank([old, used], rules(rank_by="similarity"))
    assert (first.freshness, first.boost, first.threshold) == (1.0, 1.0, 0.0)


def test_pinned_memories_do_not_age() -> None:
    aged = {"decay_policy": DecayPolicy.CONTEXTUAL, "age_days": 5_000}
    assert order(found(**aged), found(**aged, pinned=True)) == [1, 0]
    assert only(found(**aged, pinned=True)).threshold == Relevance().thresholds[0]


SCALE = (20.0, 0.5)


@pytest.mark.parametrize(
    ("candidate", "threshold"),
    [
        ({"accesses": 1}, 0.70),
        ({}, 0.75),
        ({"decay_policy": DecayPolicy.CONTEXTUAL, "age_days": 49}, 0.75),
        ({"decay_policy": DecayPolicy.CONTEXTUAL, "age_days": 51}, 0.85),
        ({"decay_policy": DecayPolicy.CONTEXTUAL, "age_days": 51, "accesses": 1}, 0.75),
        ({"age_days": 10_000}, 0.75),
    ],
)
def test_age_and_use_decide_how_similar_a_memory_must_be(
    candidate: dict[str, Any], threshold: float
) -> None:
    """Thresholds are on the calibrated scale, which means the same for every model; without a
    shared word, only they decide.
    """
    enough, clear = to_cosine(threshold, *SCALE), found(0.7, 0.0)
    [_, above] = rank([clear, found(enough + 0.001, 0.0, **candidate)], rules(calibration=SCALE))
    [_, below] = rank([clear, found(enough - 0.001, 0.0, **candidate)], rules(calibration=SCALE))
    assert (above.dropped, below.threshold) == ("", threshold)
    assert below.dropped == f"calibrated similarity is below its threshold of {threshold:.2f}"
    assert order(
        clear, found(enough - 0.001, 0.0, **candidate), calibration=SCALE, rank_by="similarity"
    ) == [
        0,
        1,
    ]


def test_without_a_clear_answer_only_stale_memories_are_dropped() -> None:
    unclear = to_cosine(0.6, *SCALE)
    stale = {"decay_policy": DecayPolicy.CONTEXTUAL, "age_days": 400}
    assert order(found(unclear, 0.0), found(unclear, 0.0, accesses=1), calibration=SCALE) == [1, 0]
    assert order(found(unclear, 0.0, **stale), calibration=SCALE) == []
    assert order(found(unclear, 0.0, **stale, accesses=1), calibration=SCALE) == [0]
    assert order(found(unclear, 0.0, **stale, pinned=True), calibration=SCALE) == [0]


def test_a_memory_about_as_similar_as_a_clear_answer_is_kept() -> None:
    """If a model finds all texts similar, as e5 does, the threshold would separate near equals."""
    clear = to_cosine(0.75, *SCALE)
    beside = [found(clear + 0.001, 0.0), found(clear - 0.01, 0.0), found(clear - 0.07, 0.0)]
    assert order(*beside, calibration=SCALE) == [0, 1]
    stale = {"decay_policy": DecayPolicy.CONTEXTUAL, "age_days": 400}
    assert order(beside[0], found(clear - 0.01, 0.0, **stale), calibration=SCALE) == [0]


def test_words_keep_a_memory_below_its_threshold_but_stale_ones_need_more() -> None:
    stale = {"decay_policy": DecayPolicy.CONTEXTUAL, "age_days": 400}
    assert order(found(0.3, 1.0), found(0.6, 8.0), calibration=SCALE) == [1, 0]
    assert order(found(0.3, 3.9, **stale), found(0.6, 8.0), calibration=SCALE) == [1]
    assert order(found(0.3, 4.1, **stale), found(0.6, 8.0), calibration=SCALE) == [1, 0]
    assert order(found(0.3, 1.0, **stale, on_date=True), found(0.6, 8.0), calibration=SCALE) == [
        1,
        0,
    ]
    assert order(found(0.3, 1.0, **stale, verbatim=True), found(0.6, 8.0), calibration=SCALE) == [
        0,
        1,
    ]


def test_scores_are_at_most_1() -> None:
    assert only(found(1.0, 5.0, accesses=1000)).score == 1.0


def test_a_negative_similarity_does_not_subtract() -> None:
    assert only(found(-0.4, 4.0), weight=3 / STANDALONE).score == pytest.approx(0.25)


def test_weak_word_scores_do_not_count_fully() -> None:
    """In a small store the best BM25 may come from a word that every other memory also has."""
    assert only(found(0.0, 1.0), weight=3 / STANDALONE).score == pytest.approx(0.0625)


def test_without_similarities_the_best_words_count_fully() -> None:
    [best, half] = rank([found(None, 0.2), found(None, 0.1)], rules(weight=0.0))
    assert (best.score, half.score) == (1.0, 0.5)


def test_a_memory_from_the_named_day_comes_first() -> None:
    [first, second] = rank([found(), found(date=1.0)], rules(weight=3 / STANDALONE))
    assert (first.row, second.row) == (1, 0)
    assert first.score - second.score == pytest.approx(WEIGHTS.date / WORD_WEIGHTS / 4)


@given(st.floats(0, 20), st.floats(-1, 1), st.floats(0, 20), st.floats(0, 4))
def test_scales_of_a_memory_are_combined_as_means(
    words: float, similarity: float, best: float, weight: float
) -> None:
    """The scales are combined as means, whatever their weights; for a standalone memory, similarity
    counts more.
    """
    expected = (words / max(best, 4.0) + STANDALONE * weight * max(0.0, similarity)) / (
        1 + STANDALONE * weight
    )
    assert fuse(Evidence.standalone(words, similarity), best, weight) == pytest.approx(expected)


# --- turns


def test_each_scale_of_a_turn_has_its_own_weight() -> None:
    evidence = Evidence(
        word_score=3.0,
        session_best=6.0,
        window_coverage=0.5,
        session_coverage=0.75,
        similarity=0.4,
        window_similarity=0.6,
        session_similarity=0.8,
    )
    own, best, window, session = WEIGHTS[:4]
    words = (own * 3 / 6 + best * 6 / 6 + window * 0.5 + session * 0.75) / (
        own + best + window + session
    )
    own, beside, session = WEIGHTS[4:7]
    similarity = (own * 0.4 + beside * 0.6 + session * 0.8) / (own + beside + session)
    assert fuse(evidence, 6.0, 1.75) == pytest.approx((words + 1.75 * similarity) / 2.75)
    assert fuse(evidence, 6.0, 0.0) == pytest.approx(words)


@pytest.mark.parametrize(
    ("field", "counts"),
    [
        ("word_score", WEIGHTS.word_score / FULL_WORD_SCORE / WORD_WEIGHTS),
        ("session_best", WEIGHTS.session_best / FULL_WORD_SCORE / WORD_WEIGHTS),
        ("window_coverage", WEIGHTS.window_coverage / WORD_WEIGHTS),
        ("session_coverage", WEIGHTS.session_coverage / WORD_WEIGHTS),
        ("similarity", 3 * WEIGHTS.similarity / SIMILARITY_WEIGHTS),
        ("window_similarity", 3 * WEIGHTS.window_similarity / SIMILARITY_WEIGHTS),
        ("session_similarity", 3 * WEIGHTS.session_similarity / SIMILARITY_WEIGHTS),
        *((sign, getattr(WEIGHTS, sign) / WORD_WEIGHTS) for sign in SIGNS),
    ],
)
def test_each_part_counts_in_proportion_to_its_weight(field: str, counts: float) -> None:
    """Similarity has a weight of 3; the best BM25 is low, so BM25 is relative to `FULL_WORD_SCORE`."""
    assert fuse(turn(**{field: 1.0}), 1.0, 3.0) == pytest.approx(counts / 4)
    assert fuse(turn(**{field: 0.5}), 1.0, 3.0) == pytest.approx(counts / 8)


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("similarity", [0.4, None])
def test_a_positive_weight_raises_a_score_and_a_negative_one_lowers_it(
    sign: str, similarity: float | None
) -> None:
    usual = {
        "word_score": 4.0,
        "session_best": 4.0,
        "window_coverage": 0.5,
        "similarity": similarity,
    }
    plain, marked = fuse(turn(**usual), 4.0, 3.0), fuse(turn(**usual, **{sign: 1.0}), 4.0, 3.0)
    assert (marked > plain) is (getattr(WEIGHTS, sign) > 0)
    assert (marked < plain) is (getattr(WEIGHTS, sign) < 0)


def test_only_some_signs_raise_the_score_of_a_turn() -> None:
    assert {sign for sign in SIGNS if getattr(WEIGHTS, sign) > 0} == FOR


def test_every_part_of_the_evidence_has_a_weight() -> None:
    assert Weights._fields == Evidence._fields
    assert Weights._fields[7:] == SIGNS


def test_signs_add_up() -> None:
    evidence = turn(similarity=None, window_coverage=0.9, **dict.fromkeys(SIGNS, 1.0))
    words, signs = WEIGHTS.window_coverage * 0.9, sum(getattr(WEIGHTS, sign) for sign in SIGNS)
    assert fuse(evidence, 0.0, 0.0) == pytest.approx(
        (words + WORDS_ONLY_SIGNS * signs) / WORD_WEIGHTS
    )
    assert fuse(evidence, 0.0, 1.5) == pytest.approx((words + signs / 2.5) / WORD_WEIGHTS)


def test_without_a_similarity_its_scales_do_not_count() -> None:
    evidence = turn(word_score=2.0, similarity=None, window_similarity=0.9, session_similarity=0.9)
    assert fuse(evidence, 4.0, 3.0) == pytest.approx(WEIGHTS.word_score * 0.5 / WORD_WEIGHTS)


def test_full_evidence_on_every_scale_counts_as_one() -> None:
    assert pytest.approx(sum(WEIGHTS[:4])) == WORD_WEIGHTS
    assert pytest.approx(sum(WEIGHTS[4:7])) == SIMILARITY_WEIGHTS
    assert fuse(
        turn(word_score=8, session_best=8, window_coverage=1, session_coverage=1), 8.0, 0.0
    ) == pytest.approx(1)
    everywhere = turn(similarity=1, window_similarity=1, session_similarity=1)
    assert fuse(everywhere, 0.0, 3.0) == pytest.approx(0.75)


@pytest.mark.parametrize("weight", [0.0, 1.75, 3.0])
@pytest.mark.parametrize("left_out", [(), ("similarity",), ("window_coverage", "session_coverage")])
def test_arrays_give_the_same_scores_as_single_values(
    weight: float, left_out: tuple[str, ...]
) -> None:
    draw = np.random.default_rng(0)
    columns = {
        field: None
        if field in left_out
        else draw.random(20) * (9 if field in {"word_score", "session_best"} else 1)
        for field in Evidence._fields
    }
    together = fuse(Evidence(**columns), 7.0, weight)
    rows = (
        {field: None if column is None else float(column[row]) for field, column in columns.items()}
        for row in range(20)
    )  # fmt: skip
    assert together.tolist() == pytest.approx([fuse(Evidence(**row), 7.0, weight) for row in rows])


def test_clipped_scores_keep_their_order() -> None:
    full = {
        "word_score": 9.0,
        "session_best": 9.0,
        "window_coverage": 1.0,
        "session_coverage": 1.0,
        "similarity": 1.0,
    }
    signs = ({"named": 0.5}, {"named": 1.0, "date": 1.0}, {"named": 1.0})
    high = rank(
        [said(**full, window_similarity=1.0, session_similarity=1.0, **each) for each in signs],
        rules(),
    )
    assert [(ranked.row, ranked.score) for ranked in high] == [(1, 1.0), (2, 1.0), (0, 1.0)]
    signs = ({"aside": 1.0}, {"aside": 1.0, "brevity": 1.0}, {"brevity": 1.0})
    low = rank([said(window_coverage=0.01, **each) for each in signs], rules())
    assert [(ranked.row, ranked.score) for ranked in low] == [(2, 0.0), (0, 0.0), (1, 0.0)]


def test_turns_and_memories_share_one_order() -> None:
    assert order(
        found(0.5, 4.0), said(word_score=4.0, session_best=4.0, similarity=0.5), found(0.6, 4.0)
    ) == [2, 0, 1]


def test_word_scores_are_relative_to_the_best_score() -> None:
    [strong, weak] = rank([found(0.0, 2.0), found(0.0, 8.0)], rules(weight=1 / STANDALONE))
    assert (strong.score, weak.score) == pytest.approx((0.5, 0.125))
    assert only(found(0.0, FULL_WORD_SCORE / 2), weight=1 / STANDALONE).score == pytest.approx(0.25)


# --- candidates that don't answer


@pytest.mark.parametrize(
    ("candidate", "asked", "reason"),
    [
        (
            found(0.7, 1.0, confidence=0.29),
            {"min_confidence": 0.3},
            "confidence 0.29 is below 0.30",
        ),
        (found(0.4), {"min_similarity": 0.5}, "similarity is below 0.50"),
        (found(None), {"min_similarity": 0.5}, "similarity is below 0.50"),
        (found(None, 0.0), {}, "shares no word with the query"),
        (found(0.3, 0.0), {"noise_bounds": NoiseBounds(0.4)}, "looks like noise"),
        (found(0.3, 1.0), {"noise_bounds": NoiseBounds(0.4)}, "looks like noise"),
        (found(0.9, 0.0, readable=False), {}, "does not know its language"),
        (said(similarity=None), {}, "shares no word with the query"),
        (
            said(similarity=None, session_best=9.0, session_coverage=1.0, named=1.0),
            {},
            "shares no word with the query",
        ),
        (said(similarity=0.3, date=1.0), {"min_similarity": 0.5}, "similarity is below 0.50"),
        (
            said(similarity=0.3, window_coverage=1.0),
            {"noise_bounds": NoiseBounds(0.4)},
            "looks like noise",
        ),
    ],
)
def test_dropped_candidates_have_a_reason(
    candidate: Features, asked: dict[str, float], reason: str
) -> None:
    assert reason in only(candidate, **asked).dropped


def test_thresholds_are_inclusive() -> None:
    assert order(
        found(0.5, confidence=0.3),
        min_similarity=0.5,
        min_confidence=0.3,
        noise_bounds=NoiseBounds(0.5),
    ) == [0]


def test_a_candidate_without_a_shared_word_must_be_near_the_best() -> None:
    assert order(found(0.8, 1.0), found(0.7, 0.0), found(0.1, 0.0), found(0.1, 0.5)) == [0, 1, 3]


@pytest.mark.parametrize(
    ("evidence", "kept"),
    [
        ({"window_coverage": 0.1}, True),
        ({"word_score": 0.1}, True),
        ({"session_coverage": 1.0, "session_best": 9.0}, False),
        ({"date": 1.0}, False),
        ({"named": 1.0, "tells_when": 1.0}, False),
    ],
)
def test_shared_words_near_a_turn_keep_it_from_being_dropped(
    evidence: dict[str, float], kept: bool
) -> None:
    dropped = {
        ranked.row: ranked.dropped
        for ranked in rank([found(0.8), said(similarity=0.1, **evidence)], rules())
    }
    assert (not dropped[1]) is kept
    assert kept or "shares no word with the query, and its similarity is below 0.40" in dropped[1]


def test_a_candidate_from_the_named_day_needs_no_shared_word() -> None:
    assert order(found(0.8), said(similarity=0.1, date=1.0)._replace(on_date=True)) == [0, 1]
    assert order(found(0.9, 0.0, date=1.0, readable=False, on_date=True)) == [0]
    assert order(found(None, 0.0, date=1.0, on_date=True)) == [0]


CURVE = (20.0, 0.2)


@pytest.mark.parametrize(
    ("sense", "sure"),
    [
        (Sense(0.1, 0.0, names_speaker_or_day=False), False),
        (Sense(0.1, 0.49, names_speaker_or_day=False), False),
        (Sense(0.1, 0.5, names_speaker_or_day=False), True),
        (Sense(0.1, 0.0, names_speaker_or_day=True), True),
        (Sense(0.45, 0.0, names_speaker_or_day=False), False),
        (Sense(0.5, 0.0, names_speaker_or_day=False), True),
        (Sense(None, 0.0, names_speaker_or_day=False), True),
    ],
)
def test_a_query_makes_sense_by_similarity_words_speaker_or_day(sense: Sense, sure: bool) -> None:
    assert makes_sense(sense, CURVE) is sure


def test_with_a_steeper_curve_a_lower_similarity_makes_sense() -> None:
    assert makes_sense(Sense(0.4, 0.0, names_speaker_or_day=False), (40.0, 0.2))


def test_a_doubtful_query_has_bounds_and_a_familiar_one_has_a_margin() -> None:
    assert bounds_of_doubtful_query(0.3, 0.3, 20.0, familiar=False) == NoiseBounds()
    assert bounds_of_doubtful_query(0.29, 0.3, 20.0, familiar=False) == NoiseBounds(0.3)
    assert bounds_of_doubtful_query(0.29, 0.3, 20.0, familiar=True) == pytest.approx(
        (0.3 - FAMILIAR_MARGIN / 20, MAX_GAP / 20)
    )


def test_the_limit_counts_only_hits() -> None:
    ranking = rank(
        [found(0.9, confidence=0.0), found(0.8), found(0.7), found(0.6)],
        rules(limit=2, min_confidence=0.1),
    )
    assert [(ranked.row, ranked.dropped) for ranked in ranking] == [
        (0, "confidence 0.00 is below 0.10"), (1, ""), (2, ""), (3, "beyond the limit")
    ]  # fmt: skip


def test_the_noise_floor_grows_with_the_number_of_texts() -> None:
    floors = [noise_floor(0.1, 0.07, count) for count in (0, 1, 2, 100, 10_000, 1_000_000)]
    assert floors == sorted(floors)
    assert floors[0] == floors[2]
    assert 0.1 < floors[0] < floors[-1] < 0.5


def test_a_doubtful_query_finds_only_candidates_near_the_best() -> None:
    ranking = rank(
        [found(0.25, 2.0), found(0.21), found(0.15, 2.0)],
        rules(noise_bounds=NoiseBounds(max_gap=0.06)),
    )
    assert [ranked.row for ranked in ranking if not ranked.dropped] == [0, 1]
    assert ["may be noise" in ranked.dropped for ranked in ranking if ranked.row == 2] == [True]


# --- thresholds

CURVES = [(10.0, 0.5), (22.0, 0.31), (1.0, 0.0)]


@pytest.mark.parametrize(("slope", "middle"), CURVES)
def test_to_cosine_is_the_inverse_of_calibrate(slope: float, middle: float) -> None:
    for cosine in np.linspace(-0.2, 1.0, 25).tolist():
        assert to_cosine(calibrate(cosine, slope, middle), slope, middle) == pytest.approx(cosine)
    for share in np.linspace(0.01, 0.99, 25).tolist():
        assert calibrate(to_cosine(share, slope, middle), slope, middle) == pytest.approx(share)


@pytest.mark.parametrize(("slope", "middle"), CURVES)
def test_calibrate_and_to_cosine_are_strictly_increasing(slope: float, middle: float) -> None:
    shares = [calibrate(cosine, slope, middle) for cosine in np.linspace(-1, 1, 50).tolist()]
    assert shares == sorted(set(shares))
    assert 0 < shares[0] < shares[-1] < 1
    cosines = [to_cosine(share, slope, middle) for share in np.linspace(0.001, 0.999, 50).tolist()]
    assert cosines == sorted(set(cosines))


def test_the_middle_of_the_curve_is_one_half() -> None:
    assert calibrate(0.31, 22.0, 0.31) == 0.5
    assert to_cosine(0.5, 22.0, 0.31) == 0.31


@pytest.mark.parametrize(("share", "cosine"), [(0.0, -1.0), (-0.5, -1.0), (1.0, 2.0), (1.5, 2.0)])
def test_a_threshold_of_0_keeps_all_candidates_and_1_keeps_none(
    share: float, cosine: float
) -> None:
    assert to_cosine(share, 10.0, 0.5) == cosine


def test_verbatim_candidates_are_first() -> None:
    better = Features(Evidence.standalone(9.0, 0.99, 0.0))
    verbatim = Features(Evidence.standalone(5.0, 0.95, 0.0), verbatim=True)
    assert order(better, verbatim, better) == [1, 0, 2]
    assert order(better, verbatim._replace(verbatim=False), better) == [0, 2, 1]
    scores = [ranked.score for ranked in rank([better, verbatim], rules())]
    assert scores == sorted(scores, reverse=True)


BEST = 0.6  # half of it is 0.3, and so is the difference from the gap
NEAR = {"noise_bounds": NoiseBounds(max_gap=0.3)}


@pytest.mark.parametrize(
    ("candidate", "changes", "reason"),
    [
        (found(0.3), NEAR, ""),
        (found(0.299), NEAR, "the query may be noise, and its similarity is below 0.30"),
        (found(0.3), {"min_similarity": 0.3}, ""),
        (found(0.299), {"min_similarity": 0.3}, "similarity is below 0.30"),
        (found(None), {"min_similarity": 0.3}, "similarity is below 0.30"),
        (found(None), NEAR, ""),
        (found(confidence=0.5), {"min_confidence": 0.5}, ""),
        (found(confidence=0.4), {"min_confidence": 0.5}, "confidence 0.40 is below 0.50"),
        (found(0.3, 0.0), {}, ""),
        (found(0.299, 0.0), {}, "shares no word with the query, and its similarity is below 0.30"),
        (found(0.299, 0.1), {}, ""),
        (found(None, 0.0), {}, "shares no word with the query"),
        (found(None, 0.0, on_date=True), {}, ""),
        (said(similarity=None, window_coverage=0.1), {}, ""),
        (said(similarity=None, window_coverage=0.0), {}, "shares no word with the query"),
        (found(0.3, 0.0, readable=False), {}, "shares no word with the query, and the model does not know its language"),
    ],
)  # fmt: skip
def test_a_candidate_is_dropped_below_a_bound_and_not_at_it(
    candidate: Features, changes: dict[str, Any], reason: str
) -> None:
    assert _reason_to_drop(candidate, BEST, rules(**changes)) == reason
