"""Ranking: the score and the order of candidates, and why some are not hits. Pure.

Words and similarity are each a weighted mean over three scales: the text itself, a window around
it, and its session (`surroundings`). A memory has no surroundings. If only memories are searched, a
memory is *standalone*: its own words and similarity count on all scales. If turns are searched too
(scope `all`), a memory's window and session words are the share of the query's words that it
contains, as for turns. Signs for and against a turn are added; a memory has one of them, its date:

    words      = mean of own, best of session, window, session      own = BM25 / max(best BM25, 4)
    similarity = mean of own, window, session
    fused      = (words + weight × similarity + Σ signs / unit) / (1 + weight)
                 unit = sum of the word weights; the weight of similarity is twice as
                 large for a standalone memory
    score      = baseline + (fused - baseline) × the factor for age and use of a memory
                 baseline = what an unrelated text gets; see `_score`

A memory that consists of the query's words gets the best score. Candidates that are noise, share
neither words nor meaning with the query, or are too faded are dropped, each with a reason.

Afterwards a correction moves before the hit that it corrects (`_corrections_first`), a newer memory
before an older one that it may replace (`search.put_newer_first`), and memories whose anchors
changed or that have expired move to the end (`results.with_verdicts`).

`Weights` holds the weights of the means and of the signs, and says where the numbers come from. The
weight of similarity is a constant of the embedder (`Space.weight`).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from memories.models import DecayPolicy
from memories.search.relevance import (
    FRESH,
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
    """The weights of the features; the sum of the word weights is the unit.

    They were fitted by maximum likelihood, with a softmax over the turns in a conversation, to the
    questions in LoCoMo-dev and BEAM-100K-dev; a BEAM question counts twice. docs/benchmarks.md
    shows how stable the weights are, and that other models need only a different `Space.weight`, no
    weights of their own.
    """

    own_words: float = 1.25
    session_best: float = 1.30
    window_words: float = 3.34
    session_words: float = 0.86
    own_similarity: float = 5.23
    window_similarity: float = 3.18
    session_similarity: float = 2.74
    named: float = 2.85
    date: float = 3.68
    told_date: float = 1.93
    tells_when: float = 2.18
    aside: float = -2.20
    question: float = -0.67
    brevity: float = -1.12

    @property
    def words(self) -> float:
        """The sum of the word weights: the unit of the formula."""
        return self.own_words + self.session_best + self.window_words + self.session_words

    @property
    def similarity(self) -> float:
        """The sum of the similarity weights."""
        return self.own_similarity + self.window_similarity + self.session_similarity


BEYOND_LIMIT = "beyond the limit"  # the reason to drop a candidate if enough better ones precede it
LOW_CONFIDENCE = "confidence"  # first word of the reason to drop a decayed candidate
WEIGHTS = Weights()
_WORD_UNIT, _SIMILARITY_UNIT = WEIGHTS.words, WEIGHTS.similarity  # computed once
# A word score above this share of the best one makes a stale memory a hit without similarity.
STALE_WORDS_SHARE = 0.5
# The best word score counts fully only if its BM25 is at least this; otherwise a single common word
# in a small store would count fully.
FULL_WORDS = 4.0
# Factor for the weight of similarity of a standalone memory, which has no neighbours whose words
# could confirm the match.
STANDALONE = 2.0
FULL_LENGTH = 20  # a turn with this many words is not brief
# Factor for signs if there is no embedder, because they could otherwise outweigh the words.
WORDS_ONLY_SIGNS = 0.4
# A text this close to a date in the query is a hit even without a shared word.
ON_DATE = 0.5
# A text this near to a clear answer, in units of calibration, may also be an answer.
NEAR_CLEAR = 1.25
# The share of the best similarity that a text without a shared word must reach.
WORDLESS_SHARE = 0.5


class Evidence(NamedTuple):
    """Evidence for a candidate, or, as arrays of one shape, for many candidates.

    Attributes:
        words: BM25 of the query's words, 0.0 if no word matches. `surroundings` scales it, so that
            memories and turns are comparable.
        session_best: The best BM25 in its session.
        window_words: The share of the query's words in its window, 0 to 1; None to use its own
            words.
        session_words: The same for its session; None to use its own words.
        similarity: Cosine with the query; None if it has no vector, or the query has none.
        window_similarity: The best cosine among its neighbours.
        session_similarity: The best cosine in its session.
        named: 1.0 if the query names its speaker and no other.
        date: How close its date is to a date in the query, 0 to 1.
        told_date: How well a day in its text, such as "yesterday", matches a day in the query, 0 to
            1.
        tells_when: 1.0 if the query asks when and the text states a time.
        aside: 1.0 for a turn by an assistant, a system or a tool.
        question: 1.0 if it ends like a question.
        brevity: 0 to 1; 0 for 20 words or more.
    """

    words: Any
    session_best: Any
    window_words: Any
    session_words: Any
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
        return self.window_words is None

    @classmethod
    def standalone(cls, words: float, similarity: float | None, date: float = 0.0) -> "Evidence":
        """Return the evidence for a memory without surroundings, which is its own session."""
        similarity = None if similarity is None else max(0.0, similarity)
        return cls(words, words, None, None, similarity, similarity, similarity, date=date)


class Features(NamedTuple):
    """The features that rank a candidate.

    Attributes:
        evidence: The evidence that it answers the query.
        confidence: How current it is, 0 to 1.
        decay_policy: Its decay policy, which decides whether its age counts.
        age_days: Its age since it was written, or last reinforced if its policy allows that.
        accesses: How often it was read.
        pinned: Whether it is pinned: a pinned memory does not age, and is treated as often used.
        readable: Whether the embedder knows its language, so that similarity alone can make it a
            hit.
        on_date: Whether it is from a day or month that the query names; if so, it needs no shared
            word.
        verbatim: Whether it consists of the query's words; by default, only a correction ranks
            higher.
        name: The id of the memory; empty for a turn.
        corrected_by: The id of the memory that corrects it and ranks before it; or empty.
        message: The long message that it is a part of; or empty. Only one part can be a hit.
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
    name: str = ""
    corrected_by: str = ""
    message: str = ""


class RankingRules(NamedTuple):
    """The bounds of a search, and constants of its embedder.

    Attributes:
        weight: The weight of similarity relative to words; a constant of the embedder.
        floor: A query whose best candidate is less similar than this is noise; 0 if the query
            certainly isn't noise.
        near_best: How far a hit's similarity may be below the best one if the query may be noise.
        min_similarity: The lowest similarity of a hit, as a cosine.
        min_confidence: The lowest confidence of a hit.
        limit: The maximum number of hits.
        include_corrected: Keep hits that other hits correct.
        noise_mean: The similarity of two unrelated texts; a constant of the embedder.
        relevance: The influence of age and use; None for no influence.
        curve: The embedder's calibration, for the thresholds of `relevance`; None without
            similarities.
    """

    weight: float
    floor: float
    near_best: float
    min_similarity: float
    min_confidence: float
    limit: int
    include_corrected: bool = True
    noise_mean: float = 0.0
    relevance: Relevance | None = Relevance()
    curve: tuple[float, float] | None = None


class Ranked(NamedTuple):
    """A ranked candidate.

    Attributes:
        row: Its index in the sequence that was ranked.
        features: Its features.
        score: Its score, 0 to 1.
        freshness: Its freshness, 0 to 1.
        boost: Its factor for reads.
        threshold: The calibrated similarity that it needs if its words don't make it a hit; 0 for a
            turn.
        dropped: Why it is not a hit; empty for a hit.
    """

    row: int
    features: Features
    score: float
    freshness: float = 1.0
    boost: float = 1.0
    threshold: float = 0.0
    dropped: str = ""


def fuse(evidence: Evidence, best_words: float, weight: float) -> Any:
    """Return the fused score, without the factor for age and use; an array for arrays.

    Args:
        evidence: Evidence for one candidate, or arrays for many.
        best_words: The best BM25 of all candidates.
        weight: The weight of similarity relative to words. Without a similarity, only words and
            signs count, and signs count no more than they would with a similarity.
    """
    full = max(best_words, FULL_WORDS)
    if evidence.similarity is None:
        # Words alone decide, so even a match on a few common words gets its full weight.
        full = max(best_words, 1e-9)
    own = evidence.words / full  # for a standalone memory, the entire word score
    window, session = evidence.window_words, evidence.session_words
    if window is None:
        window = own
    if session is None:
        session = own
    words = (
        WEIGHTS.own_words * own
        + WEIGHTS.session_best * (evidence.session_best / full)
        + WEIGHTS.window_words * window
        + WEIGHTS.session_words * session
    ) / _WORD_UNIT
    signs = _sum_signs(evidence) / _WORD_UNIT
    if evidence.similarity is None:
        if weight:
            return words + signs / (1 + weight)
        return words + WORDS_ONLY_SIGNS * signs
    if evidence.is_standalone:
        weight *= STANDALONE
    similarity = (
        WEIGHTS.own_similarity * evidence.similarity
        + WEIGHTS.window_similarity * evidence.window_similarity
        + WEIGHTS.session_similarity * evidence.session_similarity
    ) / _SIMILARITY_UNIT
    return (words + signs + weight * similarity) / (1 + weight)


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


def rank(candidates: Sequence[Features], rules: RankingRules) -> list[Ranked]:
    """Return all candidates by score, best first; each dropped one has a reason."""
    evidence = [candidate.evidence for candidate in candidates]
    best_words = max([part.words for part in evidence], default=0.0)
    similarities = [part.similarity for part in evidence if part.similarity is not None]
    best = max(similarities, default=0.0)
    noise = ""
    if best < rules.floor:
        noise = (
            f"the query looks like noise: no text has a similarity of {rules.floor:.2f} or "
            "contains half of the query's words"
        )
    weakest = WORDLESS_SHARE * best
    min_if_noise = best - rules.near_best
    judged: list[Ranked] = []
    for place in _score_all(candidates, best_words, rules):
        reason = noise or _reason_to_drop(place.features, rules, weakest, min_if_noise)
        judged.append(place._replace(dropped=reason) if reason else place)
    judged = _apply_thresholds(judged, best_words, rules)
    ordered: list[Ranked] = []
    hits = 0
    messages: set[str] = set()
    for place in _corrections_first(judged, include_corrected=rules.include_corrected):
        message = place.features.message
        reason = place.dropped
        if not reason and message in messages:
            reason = "another part of the same message is a hit"
        elif not reason and hits >= rules.limit:
            reason = BEYOND_LIMIT
        if not reason:
            hits += 1
            if message:
                messages.add(message)
        ordered.append(place._replace(score=min(1.0, max(0.0, place.score)), dropped=reason))
    return ordered


def _score_all(
    candidates: Sequence[Features], best_words: float, rules: RankingRules
) -> list[Ranked]:
    """Return all candidates by score, best first.

    A candidate that consists of the query's words gets the best score, unless the formula decides.
    """
    scored = [_score(row, candidate, best_words, rules) for row, candidate in enumerate(candidates)]
    if rules.relevance is None or not rules.relevance.by_formula:
        best_score = max([place.score for place in scored], default=0.0)
        for place in scored:
            if place.features.verbatim:
                scored[place.row] = place._replace(score=best_score)

    def sort_key(place: Ranked) -> tuple[float, bool, float]:
        # On a tie the newer memory comes first; turns have no age here and keep their order.
        return -place.score, not place.features.verbatim, place.features.age_days

    return sorted(scored, key=sort_key)


def _corrections_first(ranked: Sequence[Ranked], *, include_corrected: bool) -> Sequence[Ranked]:
    """Move each correction to just before the hit that it corrects, and give it at least that hit's
    score. A correction that isn't a hit itself is not moved.

    Args:
        ranked: All candidates, best first.
        include_corrected: Keep corrected hits; otherwise they are dropped.
    """
    named = [place for place in ranked if not place.dropped and place.features.name]
    hits = {place.features.name: place for place in named}
    if not any(place.features.corrected_by in hits for place in named):
        return ranked
    placed: dict[int, Ranked] = {}
    for place in ranked:
        chain = [place]
        while chain[-1].row not in placed and not chain[-1].dropped:
            newer = hits.get(chain[-1].features.corrected_by)
            if newer is None or newer in chain:
                break
            chain.append(newer)
        for link in reversed(chain):
            reason = link.dropped
            if not reason and not include_corrected and link.features.corrected_by in hits:
                reason = "another hit corrects it"
            placed.setdefault(
                link.row, link._replace(score=max(place.score, link.score), dropped=reason)
            )
    return list(placed.values())


def _score(row: int, candidate: Features, best_words: float, rules: RankingRules) -> Ranked:
    score = float(fuse(candidate.evidence, best_words, rules.weight))
    relevance = rules.relevance
    if relevance is None or not candidate.name:
        return Ranked(row, candidate, score)
    if relevance.by_formula:
        return _score_by_formula(row, candidate, score, relevance)
    policy = DecayPolicy.STABLE if candidate.pinned else candidate.decay_policy
    fresh = freshness(candidate.age_days, relevance.decay_rate, policy)
    max_boost = relevance.most_boost
    use = max_boost
    if not candidate.pinned:
        use = boost(candidate.accesses, relevance.boost_rate, max_boost)
    threshold = relevance.thresholds[_staleness(candidate, relevance)]
    # Age and use scale only the part of a score above that of an unrelated text. Some models rate
    # all texts as similar, so 2 % of a whole score may be much of the difference between two texts.
    weight = rules.weight
    if candidate.evidence.is_standalone:
        weight *= STANDALONE
    baseline = 0.0
    if candidate.evidence.similarity is not None:
        baseline = rules.noise_mean * weight / (1 + weight)
    baseline = min(baseline, score)
    score = baseline + (score - baseline) * factor(fresh, use, relevance.least_freshness)
    return Ranked(row, candidate, score, fresh, use, threshold)


def _score_by_formula(row: int, candidate: Features, fused: float, relevance: Relevance) -> Ranked:
    """Score by the formula in docs/relevance.md ("Decision 5"): a product without bounds.

    A candidate without a similarity uses its fused score instead, which depends on words alone.
    """
    similarity = candidate.evidence.similarity
    fresh = 1.0
    if not candidate.pinned:
        fresh = fade(candidate.age_days, relevance.decay_rate)
    use = boost(candidate.accesses, relevance.boost_rate, math.inf)
    score = (fused if similarity is None else similarity) * fresh * use
    threshold = relevance.thresholds[_staleness(candidate, relevance)]
    return Ranked(row, candidate, score, fresh, use, threshold)


def _staleness(candidate: Features, relevance: Relevance) -> int:
    """Return `FRESH`, `NORMAL` or `STALE`. A stable memory is never stale, even if the formula ages
    it.
    """
    fresh = freshness(candidate.age_days, relevance.decay_rate, candidate.decay_policy)
    if candidate.pinned:
        return FRESH
    return staleness(fresh, candidate.accesses, relevance)


def _reason_to_drop(
    candidate: Features, rules: RankingRules, weakest: float, min_if_noise: float
) -> str:
    """Return why a candidate does not answer; empty if it may.

    `weakest` is the minimum similarity of a candidate without a shared word. `min_if_noise` is the
    minimum similarity of any candidate if the query may be noise.
    """
    evidence = candidate.evidence
    similarity = evidence.similarity
    if evidence.words <= 0 and (evidence.window_words or 0.0) <= 0 and not candidate.on_date:
        reason = _reason_without_words(similarity, weakest, readable=candidate.readable)
        if reason:
            return reason
    if similarity is not None and similarity < min_if_noise:
        return f"the query may be noise, and its similarity is below {min_if_noise:.2f}"
    if rules.min_similarity > 0 and (similarity is None or similarity < rules.min_similarity):
        return f"similarity is below {rules.min_similarity:.2f}"
    if candidate.confidence < rules.min_confidence:
        return f"{LOW_CONFIDENCE} {candidate.confidence:.2f} is below {rules.min_confidence:.2f}"
    return ""


def _reason_without_words(similarity: float | None, weakest: float, *, readable: bool) -> str:
    """Return why a candidate without a shared word does not answer; empty if it may answer."""
    if similarity is None:
        return "shares no word with the query"
    if similarity < weakest:
        return f"shares no word with the query, and its similarity is below {weakest:.2f}"
    if not readable:
        return "shares no word with the query, and the model does not know its language"
    return ""


def _apply_thresholds(
    ranked: Sequence[Ranked], best_words: float, rules: RankingRules
) -> list[Ranked]:
    """Drop memories with too few shared words and too little similarity for their age and use.

    Fresh and normal memories are dropped only if a clear answer is clearly more similar: otherwise
    the most similar one may be the answer. A stale memory must be a clear answer itself.
    """
    if rules.curve is None or rules.relevance is None:
        return list(ranked)
    relevance = rules.relevance
    thresholds = {place.threshold for place in ranked}
    cosines = {threshold: to_cosine(threshold, *rules.curve) for threshold in thresholds}

    def is_clear(place: Ranked) -> bool:
        similarity = place.features.evidence.similarity
        return similarity is None or similarity >= cosines[place.threshold]

    open_places = [place for place in ranked if place.threshold and not place.dropped]
    clear_similarities = [
        place.features.evidence.similarity or 0.0 for place in open_places if is_clear(place)
    ]
    slope, _ = rules.curve
    near = max(clear_similarities, default=0.0) - NEAR_CLEAR / slope
    dropped: set[int] = set()
    for place in open_places:
        candidate = place.features
        is_stale = _staleness(candidate, relevance) == STALE
        enough_words = STALE_WORDS_SHARE * max(best_words, FULL_WORDS) if is_stale else 0.0
        speaks_for_itself = (
            candidate.on_date or candidate.verbatim or candidate.evidence.words > enough_words
        )
        is_further = bool(clear_similarities) and (candidate.evidence.similarity or 0.0) < near
        if not speaks_for_itself and not is_clear(place) and (is_stale or is_further):
            dropped.add(place.row)
    reason = "calibrated similarity is below its threshold of {:.2f}"
    return [
        place._replace(dropped=reason.format(place.threshold)) if place.row in dropped else place
        for place in ranked
    ]
