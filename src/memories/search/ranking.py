"""Ranking: scores and sorts candidates, and drops those that are not hits. All functions are pure.

`rank` scores each candidate, drops some with a reason, puts corrections first, and applies the
limit. A score is computed in two steps. `fuse` compares the query with the text and, for a turn,
with the window and the session around it (`surroundings`):

    word_mean       = weighted mean of the share of the text, the best share in the session, and the
                      coverage of the window and of the session
                      share = BM25 / max(best BM25 of all candidates, 4); without a similarity:
                      BM25 / best BM25. If turns are searched, `surroundings` first scales the
                      BM25 of each collection so that its best is at most 4. The words of turns by
                      an assistant, a system or a tool count less.
                      coverage = share of the query's words that a text contains, weighted by rarity
    similarity_mean = weighted mean of the cosines of the text, the best other text in its window,
                      and the best text in its session
    signs           = weighted sum of the attributes of `Evidence` from `named` to `brevity`
                      / sum of the word weights
    fused           = (word_mean + weight × similarity_mean + signs) / (1 + weight)
                      without a similarity: word_mean + signs / (1 + weight)
                      without an embedder: word_mean + WORDS_ONLY_SIGNS × signs

`_score` then applies a memory's age and use, but only to the part of the score above the baseline,
the score of an unrelated text:

    score           = baseline + (fused - baseline) × factor for age and use

A memory has neither window nor session:

- If only memories are searched, the memory is *standalone*. Its own word score and similarity also
  serve as those of its window and session, and the weight of similarity is doubled.
- If turns are searched too (scope `all`), its own coverage and similarity serve as those of its
  window and session.

Only turns have signs, except for the date, which memories have too. A text that has exactly the
query's words gets the best score, except with the rank `formula`.

After `rank`, if the search ranks by relevance, a newer memory moves before an older one that it may
replace (`search.put_newer_first`). Memories whose anchors changed or that have expired move to the
end (`results.with_verdicts`).

`Weights` holds the weights of the means and of the signs, and says where the numbers come from. The
weight of similarity is a constant of the embedder (`Space.weight`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memories.models import DecayPolicy
from memories.search.relevance import (
    READ_AND_FRESH,
    STALE,
    Relevance,
    boost,
    factor,
    fade,
    freshness,
    staleness,
    to_cosine,
)


class Weights(NamedTuple):
    """The weight of each part of the `Evidence`, relative to the sum of the word weights.

    The weights were fitted by maximum likelihood, with a softmax over the turns in a conversation,
    to the questions in LoCoMo-dev and BEAM-100K-dev; a BEAM question counts twice.
    docs/benchmarks.md shows how stable the weights are, and that other models need only a different
    `Space.weight`, not weights of their own.
    """

    word_score: float = 1.25
    session_best: float = 1.30
    window_coverage: float = 3.34
    session_coverage: float = 0.86
    similarity: float = 5.23
    window_similarity: float = 3.18
    session_similarity: float = 2.74
    named: float = 2.85
    date: float = 3.68
    told_date: float = 1.93
    tells_when: float = 2.18
    aside: float = -2.20
    question: float = -0.67
    brevity: float = -1.12


BEYOND_LIMIT = "beyond the limit"  # reason to drop a hit after the first `limit`
LOW_CONFIDENCE = "confidence"  # first word of the reason to drop a decayed candidate
WEIGHTS = Weights()
WORD_WEIGHTS = (
    WEIGHTS.word_score + WEIGHTS.session_best + WEIGHTS.window_coverage + WEIGHTS.session_coverage
)
SIMILARITY_WEIGHTS = WEIGHTS.similarity + WEIGHTS.window_similarity + WEIGHTS.session_similarity
# A word score above this share of the best one makes a stale memory a hit even without similarity.
STALE_SCORE_SHARE = 0.5
# The best word score counts fully only if it is at least this. Without this rule, a single common
# word in a small store would count fully.
FULL_WORD_SCORE = 4.0
# Similarity counts this many times as much for a standalone memory: it has no neighbours whose
# words could confirm the match.
STANDALONE = 2.0
FULL_LENGTH = 20  # a turn with this many words is not brief
# Without an embedder, the signs are multiplied by this factor; otherwise they could outweigh the
# words.
WORDS_ONLY_SIGNS = 0.4
# A text this close to a date in the query is a hit even without a shared word.
ON_DATE = 0.5
# A text this close to a clear answer may also be an answer. The unit is that of calibration: a
# cosine times the slope of the embedder's curve.
NEAR_CLEAR = 1.25
# The share of the best similarity that a text without a shared word must reach.
WORDLESS_SHARE = 0.5


class Evidence(NamedTuple):
    """Evidence for a candidate, or, as arrays of one shape, for many candidates.

    Attributes:
        word_score: BM25 of the query's words, 0.0 if no word matches. `surroundings` scales it, so
            that memories and turns are comparable.
        session_best: The best word score in its session.
        window_coverage: The share of the query's words in its window, 0 to 1; None to use the word
            score.
        session_coverage: The same for its session.
        similarity: Cosine with the query; None if it has no vector, or the query has none.
        window_similarity: The best cosine among its neighbours.
        session_similarity: The best cosine in its session.
        named: 1.0 if the query names its speaker and no other.
        date: How close its date is to a date in the query, 0 to 1.
        told_date: How well a day in its text, such as "yesterday", matches one in the query, 0 to
            1.
        tells_when: 1.0 if the query asks when and the text states a time.
        aside: 1.0 for a turn by an assistant, a system or a tool.
        question: 1.0 if it ends like a question.
        brevity: 1.0 for one word, 0.0 for 20 or more.
    """

    word_score: Any
    session_best: Any
    window_coverage: Any
    session_coverage: Any
    similarity: Any
    window_similarity: Any
    session_similarity: Any
    named: Any = 0.0
    date: Any = 0.0
    told_date: Any = 0.0
    tells_when: Any = 0.0
    aside: Any = 0.0
    question: Any = 0.0
    brevity: Any = 0.0

    @property
    def is_standalone(self) -> bool:
        """Whether this is a memory that was searched without surroundings."""
        return self.window_coverage is None

    @classmethod
    def standalone(
        cls, word_score: float, similarity: float | None, date: float = 0.0
    ) -> "Evidence":
        """Return the evidence for a memory without surroundings, which counts as a session of its
        own.
        """
        similarity = None if similarity is None else max(0.0, similarity)
        return cls(
            word_score, word_score, None, None, similarity, similarity, similarity, date=date
        )


class Features(NamedTuple):
    """The features that rank a candidate.

    Attributes:
        evidence: The evidence that it answers the query.
        confidence: Its declared confidence times its decay, 0 to 1. It has no influence on the
            score.
        decay_policy: Its decay policy, which decides whether its age counts.
        age_days: Days since it was written, or last reinforced if its policy allows that.
        accesses: The number of times it was read.
        pinned: Whether it is pinned: a pinned memory does not age and, except for the rank
            `formula`, is treated as often used.
        readable: Whether the embedder knows its language, so that similarity alone can make it a
            hit.
        on_date: Whether it dates from a day or month that the query names. If so, it needs no
            shared word.
        verbatim: Whether it has exactly the query's words. If so, by default only a correction
            ranks higher.
        memory_id: The id of the memory; empty for a turn.
        corrected_by: The id of the memory that corrects it and ranks before it; empty for none.
        message: The long message that it is a part of; empty for none. Only one part of a message
            can be a hit.
    """

    evidence: Evidence
    confidence: float = 1.0
    decay_policy: DecayPolicy = DecayPolicy.STABLE
    age_days: float = 0.0
    accesses: int = 0
    pinned: bool = False
    readable: bool = True
    on_date: bool = False
    verbatim: bool = False
    memory_id: str = ""
    corrected_by: str = ""
    message: str = ""

    @property
    def is_turn(self) -> bool:
        """Whether this is a turn, not a memory."""
        return not self.memory_id


class NoiseBounds(NamedTuple):
    """Bounds on similarity, for a query that may be noise. By default, there are none.

    Attributes:
        floor: If no candidate is this similar, the query is noise and has no hits.
        max_gap: How much less similar than the best candidate a hit may be.
    """

    floor: float = 0.0
    max_gap: float = 1.0


class RankingRules(NamedTuple):
    """The bounds of a search, and constants of its embedder.

    Attributes:
        weight: The weight of similarity relative to words; a constant of the embedder.
        min_similarity: The lowest similarity of a hit, as a cosine.
        min_confidence: The lowest confidence of a hit.
        limit: The maximum number of hits.
        include_corrected: Whether to keep hits that other hits correct.
        noise_bounds: Bounds on similarity that apply if the query may be noise.
        noise_mean: The similarity of two unrelated texts; a constant of the embedder.
        rank_by: One of `RANKS`. `relevance` considers age and use within bounds. `similarity`
            ignores them, and applies no thresholds. `formula` multiplies a memory's similarity by
            them; turns keep their fused score.
        relevance: The influence of age and use, and the thresholds.
        calibration: The curve of the embedder, which converts the thresholds; None without
            similarities.
    """

    weight: float
    min_similarity: float
    min_confidence: float
    limit: int
    include_corrected: bool = True
    noise_bounds: NoiseBounds = NoiseBounds()
    noise_mean: float = 0.0
    rank_by: str = "relevance"
    relevance: Relevance = Relevance()
    calibration: tuple[float, float] | None = None


class Ranked(NamedTuple):
    """A ranked candidate.

    Attributes:
        row: Its index in the sequence that was ranked.
        features: Its features.
        score: Its score, 0 to 1.
        freshness: Its freshness, 0 to 1.
        boost: Its factor for reads.
        threshold: The calibrated similarity at which it is a hit even if few of its words match; 0
            for a turn.
        is_stale: Whether it was never read and has faded.
        dropped: Why it is not a hit; empty for a hit.
    """

    row: int
    features: Features
    score: float
    freshness: float = 1.0
    boost: float = 1.0
    threshold: float = 0.0
    is_stale: bool = False
    dropped: str = ""


def rank(all_features: Sequence[Features], rules: RankingRules) -> list[Ranked]:
    """Return all candidates, sorted by score, best first, with the reason why some were dropped.

    A correction precedes the hit that it corrects, even if its score was lower.
    """
    evidence = [features.evidence for features in all_features]
    best_word_score = max([part.word_score for part in evidence], default=0.0)
    similarities = [part.similarity for part in evidence if part.similarity is not None]
    best_similarity = max(similarities, default=0.0)
    ranking: list[Ranked] = []
    for ranked in _score_all(all_features, best_word_score, rules):
        reason = _reason_to_drop(ranked.features, best_similarity, rules)
        ranking.append(ranked._replace(dropped=reason) if reason else ranked)
    ranking = _drop_below_thresholds(ranking, best_word_score, rules)
    ranking = _put_corrections_first(ranking)
    if not rules.include_corrected:
        ranking = _drop_corrected(ranking)
    ranking = _apply_limit(ranking, rules.limit)
    return [ranked._replace(score=min(1.0, max(0.0, ranked.score))) for ranked in ranking]


# --- the score


def _score_all(
    all_features: Sequence[Features], best_word_score: float, rules: RankingRules
) -> list[Ranked]:
    """Return all candidates, sorted by score, best first.

    A candidate that has exactly the query's words gets the best score, except with `formula`.
    """
    scored = [
        _score(row, features, best_word_score, rules) for row, features in enumerate(all_features)
    ]
    if rules.rank_by != "formula":
        best_score = max([ranked.score for ranked in scored], default=0.0)
        for ranked in scored:
            if ranked.features.verbatim:
                scored[ranked.row] = ranked._replace(score=best_score)

    def sort_key(ranked: Ranked) -> tuple[float, bool, float]:
        # On a tie the newer memory comes first. The age of a turn is 0, so turns keep their order.
        return -ranked.score, not ranked.features.verbatim, ranked.features.age_days

    return sorted(scored, key=sort_key)


def _score(row: int, features: Features, best_word_score: float, rules: RankingRules) -> Ranked:
    """Return a candidate with its score: the fused score, adjusted for age and use if it is a
    memory.
    """
    ranked = Ranked(row, features, float(fuse(features.evidence, best_word_score, rules.weight)))
    if features.is_turn or rules.rank_by == "similarity":
        return ranked
    relevance = rules.relevance
    state = READ_AND_FRESH
    if not features.pinned:
        # The freshness of a stable memory is 1 here, so it is never `STALE`, though
        # `_apply_formula` ages it.
        fresh = freshness(features.age_days, relevance.decay_rate, features.decay_policy)
        state = staleness(fresh, features.accesses, relevance)
    ranked = ranked._replace(threshold=relevance.thresholds[state], is_stale=state == STALE)
    if rules.rank_by == "formula":
        return _apply_formula(ranked, relevance)
    return _apply_age_and_use(ranked, rules)


def fuse(evidence: Evidence, best_word_score: float, weight: float) -> Any:
    """Return the fused score, without the factor for age and use; for arrays, an array.

    Args:
        evidence: Evidence for one candidate, or arrays for many.
        best_word_score: The best word score of all candidates.
        weight: The weight of similarity relative to words; 0 without an embedder. For evidence
            without a similarity, only words and signs count, and signs count less than words.
    """
    full_score = max(best_word_score, FULL_WORD_SCORE)
    if evidence.similarity is None:
        # Words alone decide, so even a match on a few common words gets its full weight.
        full_score = max(best_word_score, 1e-9)
    word_share = evidence.word_score / full_score
    window_coverage, session_coverage = evidence.window_coverage, evidence.session_coverage
    if window_coverage is None:
        window_coverage = word_share
    if session_coverage is None:
        session_coverage = word_share
    word_mean = (
        WEIGHTS.word_score * word_share
        + WEIGHTS.session_best * (evidence.session_best / full_score)
        + WEIGHTS.window_coverage * window_coverage
        + WEIGHTS.session_coverage * session_coverage
    ) / WORD_WEIGHTS
    signs = _sum_signs(evidence) / WORD_WEIGHTS
    if evidence.similarity is None:
        if weight:
            return word_mean + signs / (1 + weight)
        return word_mean + WORDS_ONLY_SIGNS * signs
    if evidence.is_standalone:
        weight *= STANDALONE
    similarity_mean = (
        WEIGHTS.similarity * evidence.similarity
        + WEIGHTS.window_similarity * evidence.window_similarity
        + WEIGHTS.session_similarity * evidence.session_similarity
    ) / SIMILARITY_WEIGHTS
    return (word_mean + signs + weight * similarity_mean) / (1 + weight)


def _sum_signs(evidence: Evidence) -> Any:
    return (
        WEIGHTS.named * evidence.named
        + WEIGHTS.date * evidence.date
        + WEIGHTS.told_date * evidence.told_date
        + WEIGHTS.tells_when * evidence.tells_when
        + WEIGHTS.aside * evidence.aside
        + WEIGHTS.question * evidence.question
        + WEIGHTS.brevity * evidence.brevity
    )


def _apply_age_and_use(ranked: Ranked, rules: RankingRules) -> Ranked:
    """Multiply the part of a memory's score above the baseline by the factor for age and use.

    The baseline is the score of an unrelated text. It is high for models that rate all texts as
    similar, so 2 % of the entire score could outweigh the difference between two texts.
    """
    features, fused, relevance = ranked.features, ranked.score, rules.relevance
    fresh, use = 1.0, relevance.max_boost
    if not features.pinned:
        fresh = freshness(features.age_days, relevance.decay_rate, features.decay_policy)
        use = boost(features.accesses, relevance.boost_rate, relevance.max_boost)
    weight = rules.weight
    if features.evidence.is_standalone:
        weight *= STANDALONE
    baseline = 0.0
    if features.evidence.similarity is not None:
        baseline = rules.noise_mean * weight / (1 + weight)
    baseline = min(baseline, fused)
    score = baseline + (fused - baseline) * factor(fresh, use, relevance.min_freshness)
    return ranked._replace(score=score, freshness=fresh, boost=use)


def _apply_formula(ranked: Ranked, relevance: Relevance) -> Ranked:
    """Return a memory with its score by the unbounded formula in docs/relevance.md ("Decision 5").

    Without a similarity, its fused score, which depends on words alone, takes the similarity's
    place.
    """
    features, similarity = ranked.features, ranked.features.evidence.similarity
    if similarity is None:
        similarity = ranked.score
    fresh = 1.0
    if not features.pinned:
        fresh = fade(features.age_days, relevance.decay_rate)
    use = boost(features.accesses, relevance.boost_rate, math.inf)
    return ranked._replace(score=similarity * fresh * use, freshness=fresh, boost=use)


# --- candidates that are not hits


def _reason_to_drop(features: Features, best_similarity: float, rules: RankingRules) -> str:
    """Return why a candidate is not a hit; empty if it may be one.

    `best_similarity` is the best similarity of all candidates.
    """
    floor, max_gap = rules.noise_bounds
    if best_similarity < floor:
        return (
            f"the query looks like noise: no text has a similarity of {floor:.2f} or contains half "
            "of the query's words"
        )
    evidence = features.evidence
    has_words = evidence.word_score > 0 or (evidence.window_coverage or 0.0) > 0
    if not has_words and not features.on_date:
        reason = _reason_without_words(features, WORDLESS_SHARE * best_similarity)
        if reason:
            return reason
    similarity, near_best = evidence.similarity, best_similarity - max_gap
    if similarity is not None and similarity < near_best:
        return f"the query may be noise, and its similarity is below {near_best:.2f}"
    if rules.min_similarity > 0 and (similarity is None or similarity < rules.min_similarity):
        return f"similarity is below {rules.min_similarity:.2f}"
    if features.confidence < rules.min_confidence:
        return f"{LOW_CONFIDENCE} {features.confidence:.2f} is below {rules.min_confidence:.2f}"
    return ""


def _reason_without_words(features: Features, min_similarity: float) -> str:
    """Return why a candidate that has no word of the query isn't a hit; empty if it may be."""
    similarity = features.evidence.similarity
    if similarity is None:
        return "shares no word with the query"
    if similarity < min_similarity:
        return f"shares no word with the query, and its similarity is below {min_similarity:.2f}"
    if not features.readable:
        return "shares no word with the query, and the model does not know its language"
    return ""


def _drop_below_thresholds(
    ranking: Sequence[Ranked], best_word_score: float, rules: RankingRules
) -> list[Ranked]:
    """Drop memories whose similarity is too low for their age and use.

    A memory is *clear* if its similarity reaches its threshold, or is unknown. Any other is
    dropped, unless `_may_answer` is true. Turns have no threshold.
    """
    calibration = rules.calibration
    if calibration is None or rules.rank_by == "similarity":
        return list(ranking)
    clear_similarities = [
        ranked.features.evidence.similarity or 0.0
        for ranked in ranking
        if not ranked.dropped and ranked.threshold and _is_clear(ranked, calibration)
    ]
    slope, _ = calibration
    near_clear = max(clear_similarities, default=-math.inf) - NEAR_CLEAR / slope
    checked: list[Ranked] = []
    for ranked in ranking:
        is_kept = _is_clear(ranked, calibration) or _may_answer(ranked, near_clear, best_word_score)
        if not ranked.dropped and not is_kept:
            reason = f"calibrated similarity is below its threshold of {ranked.threshold:.2f}"
            checked.append(ranked._replace(dropped=reason))
        else:
            checked.append(ranked)
    return checked


def _is_clear(ranked: Ranked, calibration: tuple[float, float]) -> bool:
    """Return whether a candidate's similarity reaches its threshold, or is unknown."""
    similarity = ranked.features.evidence.similarity
    return similarity is None or similarity >= to_cosine(ranked.threshold, *calibration)


def _may_answer(ranked: Ranked, near_clear: float, best_word_score: float) -> bool:
    """Return whether a memory below its threshold may be the answer.

    A memory may be the answer if it dates from a day that the query names, or has exactly the
    query's words. A stale memory may also be the answer if it shares enough words with the query.
    Any other memory needs only one shared word, or a similarity close to that of the best clear
    memory.

    Args:
        ranked: The memory.
        near_clear: The lowest similarity that is close to the best clear memory's; minus infinity
            if no memory is clear.
        best_word_score: The best word score of all candidates.
    """
    features, evidence = ranked.features, ranked.features.evidence
    if features.on_date or features.verbatim:
        return True
    if ranked.is_stale:
        enough = STALE_SCORE_SHARE * max(best_word_score, FULL_WORD_SCORE)
        return bool(evidence.word_score > enough)
    return bool(evidence.word_score > 0 or evidence.similarity >= near_clear)


# --- corrections


def _put_corrections_first(ranking: Sequence[Ranked]) -> list[Ranked]:
    """Move each hit to just before the first hit that it corrects, and give it at least that hit's
    score.
    """
    hits = _memory_hits(ranking)
    moved: dict[int, Ranked] = {}  # keyed by row, in the new order
    for ranked in ranking:
        # Newest correction first, `ranked` itself last. A hit that has already moved up stays
        # there.
        for correction in reversed(_follow_corrections(ranked, hits)):
            score = max(ranked.score, correction.score)
            moved.setdefault(correction.row, correction._replace(score=score))
    return list(moved.values())


def _follow_corrections(ranked: Ranked, hits: Mapping[str, Ranked]) -> list[Ranked]:
    """Return a candidate, the hit that corrects it, the hit that corrects that one, and so on."""
    chain = [ranked]
    rows = {ranked.row}
    newer = None if ranked.dropped else hits.get(ranked.features.corrected_by)
    while newer is not None and newer.row not in rows:
        chain.append(newer)
        rows.add(newer.row)
        newer = hits.get(newer.features.corrected_by)
    return chain


def _drop_corrected(ranking: Sequence[Ranked]) -> list[Ranked]:
    hits = _memory_hits(ranking)
    checked: list[Ranked] = []
    for ranked in ranking:
        if not ranked.dropped and ranked.features.corrected_by in hits:
            checked.append(ranked._replace(dropped="another hit corrects it"))
        else:
            checked.append(ranked)
    return checked


def _memory_hits(ranking: Sequence[Ranked]) -> dict[str, Ranked]:
    return {
        ranked.features.memory_id: ranked
        for ranked in ranking
        if not ranked.dropped and not ranked.features.is_turn
    }


# --- the limit


def _apply_limit(ranking: Sequence[Ranked], limit: int) -> list[Ranked]:
    """Drop the hits beyond the limit, and all but the best part of a long message."""
    limited: list[Ranked] = []
    hits = 0
    messages: set[str] = set()
    for ranked in ranking:
        message = ranked.features.message
        reason = ranked.dropped
        if not reason and message in messages:
            reason = "another part of the same message is a hit"
        elif not reason and hits >= limit:
            reason = BEYOND_LIMIT
        if not reason:
            hits += 1
            if message:
                messages.add(message)
        limited.append(ranked._replace(dropped=reason))
    return limited
