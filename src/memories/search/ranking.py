"""Ranking: the score and the order of candidates, and why some are not hits. Pure.

`rank` scores each candidate, drops some with a reason, moves corrections, and applies the limit.
The score is made in two steps. `fuse` compares the text with the query:

    words      = weighted mean of own words, the session's best, window words and session words
                 own words = BM25 / max(best BM25 of all candidates, 4); without a
                 similarity: BM25 / best BM25
    similarity = weighted mean of the cosines of the text, its window and its session
    signs      = weighted sum of signs for and against a text / sum of the word weights
    fused      = (words + weight × similarity + signs) / (1 + weight)

`_score` then applies the age and the use of a memory, but only to the part above the baseline,
which is the score of an unrelated text:

    score      = baseline + (fused - baseline) × factor for age and use

The window and the session are those around a turn (`surroundings`). A memory has neither:

- If only memories are searched, the memory is *standalone*. Its own words and similarity count for
  its window and session too, and the weight of similarity is doubled.
- If turns are searched too (scope `all`), its window and session words are the share of the query's
  words that it contains, as for turns.

Only turns have signs, except for the date, which memories have too. A memory that consists of the
query's words gets the best score.

After `rank`, a newer memory moves before an older one that it may replace
(`search.put_newer_first`), and memories whose anchors changed or that have expired move to the end
(`results.with_verdicts`).

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
    shows how stable the weights are, and that other models need only a different `Space.weight`,
    not weights of their own.
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
        corrected_by: The id of the memory that corrects it and ranks before it; empty for none.
        message: The long message that it is a part of; empty for none. Only one part can be a hit.
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
        weight: The weight of similarity relative to words. 0 without an embedder. For evidence
            without a similarity, only words and signs count, and signs count less than words.
    """
    full_words = max(best_words, FULL_WORDS)
    if evidence.similarity is None:
        # Words alone decide, so even a match on a few common words gets its full weight.
        full_words = max(best_words, 1e-9)
    own_words = evidence.words / full_words  # for a standalone memory, the entire word score
    window_words, session_words = evidence.window_words, evidence.session_words
    if window_words is None:
        window_words = own_words
    if session_words is None:
        session_words = own_words
    words = (
        WEIGHTS.own_words * own_words
        + WEIGHTS.session_best * (evidence.session_best / full_words)
        + WEIGHTS.window_words * window_words
        + WEIGHTS.session_words * session_words
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


def rank(all_features: Sequence[Features], rules: RankingRules) -> list[Ranked]:
    """Return all candidates by score, best first; each dropped one has a reason.

    A correction precedes the hit that it corrects, even if its score was lower.
    """
    evidence = [features.evidence for features in all_features]
    best_words = max([part.words for part in evidence], default=0.0)
    similarities = [part.similarity for part in evidence if part.similarity is not None]
    best_similarity = max(similarities, default=0.0)
    noise = ""
    if best_similarity < rules.floor:
        noise = (
            f"the query looks like noise: no text has a similarity of {rules.floor:.2f} or "
            "contains half of the query's words"
        )
    min_wordless = WORDLESS_SHARE * best_similarity
    min_if_noise = best_similarity - rules.near_best
    ranking: list[Ranked] = []
    for ranked in _score_all(all_features, best_words, rules):
        reason = noise or _reason_to_drop(ranked.features, rules, min_wordless, min_if_noise)
        ranking.append(ranked._replace(dropped=reason) if reason else ranked)
    ranking = _apply_thresholds(ranking, best_words, rules)
    ranking = _corrections_first(ranking, include_corrected=rules.include_corrected)
    return _apply_limit(ranking, rules.limit)


def _apply_limit(ranking: Sequence[Ranked], limit: int) -> list[Ranked]:
    """Drop the hits beyond the limit, and all but the best part of a long message. Clamp scores to
    the range 0 to 1.
    """
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
        score = min(1.0, max(0.0, ranked.score))
        limited.append(ranked._replace(score=score, dropped=reason))
    return limited


def _score_all(
    all_features: Sequence[Features], best_words: float, rules: RankingRules
) -> list[Ranked]:
    """Return all candidates by score, best first.

    A candidate that consists of the query's words gets the best score, unless the formula decides.
    """
    scored = [_score(row, features, best_words, rules) for row, features in enumerate(all_features)]
    if rules.relevance is None or not rules.relevance.by_formula:
        best_score = max([ranked.score for ranked in scored], default=0.0)
        for ranked in scored:
            if ranked.features.verbatim:
                scored[ranked.row] = ranked._replace(score=best_score)

    def sort_key(ranked: Ranked) -> tuple[float, bool, float]:
        # On a tie the newer memory comes first. The age of a turn is 0, so turns keep their order.
        return -ranked.score, not ranked.features.verbatim, ranked.features.age_days

    return sorted(scored, key=sort_key)


def _corrections_first(ranking: Sequence[Ranked], *, include_corrected: bool) -> list[Ranked]:
    """Move each correction to just before the hit that it corrects, and give it at least that hit's
    score. A correction that isn't a hit itself is not moved.

    Args:
        ranking: All candidates, best first.
        include_corrected: Keep corrected hits; otherwise they are dropped.
    """
    memories = [ranked for ranked in ranking if not ranked.dropped and ranked.features.name]
    hits = {ranked.features.name: ranked for ranked in memories}
    if not any(ranked.features.corrected_by in hits for ranked in memories):
        return list(ranking)
    placed: dict[int, Ranked] = {}
    for ranked in ranking:
        chain = [ranked]  # from the oldest statement to its latest correction
        while chain[-1].row not in placed and not chain[-1].dropped:
            newer = hits.get(chain[-1].features.corrected_by)
            if newer is None or newer in chain:
                break
            chain.append(newer)
        for link in reversed(chain):
            reason = link.dropped
            if not reason and not include_corrected and link.features.corrected_by in hits:
                reason = "another hit corrects it"
            score = max(ranked.score, link.score)
            placed.setdefault(link.row, link._replace(score=score, dropped=reason))
    return list(placed.values())


def _score(row: int, features: Features, best_words: float, rules: RankingRules) -> Ranked:
    """Return a candidate with its score: the fused score, changed by its age and use if it is a
    memory.
    """
    fused = float(fuse(features.evidence, best_words, rules.weight))
    relevance = rules.relevance
    if relevance is None or not features.name:
        return Ranked(row, features, fused)
    if relevance.by_formula:
        return _score_by_formula(row, features, fused, relevance)
    policy = DecayPolicy.STABLE if features.pinned else features.decay_policy
    fresh = freshness(features.age_days, relevance.decay_rate, policy)
    max_boost = relevance.most_boost
    use = max_boost
    if not features.pinned:
        use = boost(features.accesses, relevance.boost_rate, max_boost)
    threshold = relevance.thresholds[_staleness(features, relevance)]
    # Age and use scale only the part of a score above that of an unrelated text. Some models rate
    # all texts as similar, so 2 % of a whole score may be much of the difference between two texts.
    weight = rules.weight
    if features.evidence.is_standalone:
        weight *= STANDALONE
    baseline = 0.0
    if features.evidence.similarity is not None:
        baseline = rules.noise_mean * weight / (1 + weight)
    baseline = min(baseline, fused)
    score = baseline + (fused - baseline) * factor(fresh, use, relevance.least_freshness)
    return Ranked(row, features, score, fresh, use, threshold)


def _score_by_formula(row: int, features: Features, fused: float, relevance: Relevance) -> Ranked:
    """Score by the formula in docs/relevance.md ("Decision 5"): a product without bounds.

    A candidate without a similarity uses its fused score instead, which depends on words alone.
    """
    similarity = features.evidence.similarity
    fresh = 1.0
    if not features.pinned:
        fresh = fade(features.age_days, relevance.decay_rate)
    use = boost(features.accesses, relevance.boost_rate, math.inf)
    score = (fused if similarity is None else similarity) * fresh * use
    threshold = relevance.thresholds[_staleness(features, relevance)]
    return Ranked(row, features, score, fresh, use, threshold)


def _staleness(features: Features, relevance: Relevance) -> int:
    """Return `FRESH`, `NORMAL` or `STALE`. A stable memory is never stale, even if the formula ages
    it.
    """
    fresh = freshness(features.age_days, relevance.decay_rate, features.decay_policy)
    if features.pinned:
        return FRESH
    return staleness(fresh, features.accesses, relevance)


def _reason_to_drop(
    features: Features, rules: RankingRules, min_wordless: float, min_if_noise: float
) -> str:
    """Return why a candidate does not answer; empty if it may answer.

    `min_wordless` is the minimum similarity of a candidate without a shared word. `min_if_noise` is
    the minimum similarity of any candidate if the query may be noise.
    """
    evidence = features.evidence
    similarity = evidence.similarity
    if evidence.words <= 0 and (evidence.window_words or 0.0) <= 0 and not features.on_date:
        reason = _reason_without_words(similarity, min_wordless, readable=features.readable)
        if reason:
            return reason
    if similarity is not None and similarity < min_if_noise:
        return f"the query may be noise, and its similarity is below {min_if_noise:.2f}"
    if rules.min_similarity > 0 and (similarity is None or similarity < rules.min_similarity):
        return f"similarity is below {rules.min_similarity:.2f}"
    if features.confidence < rules.min_confidence:
        return f"{LOW_CONFIDENCE} {features.confidence:.2f} is below {rules.min_confidence:.2f}"
    return ""


def _reason_without_words(similarity: float | None, min_wordless: float, *, readable: bool) -> str:
    """Return why a candidate without a shared word does not answer; empty if it may answer."""
    if similarity is None:
        return "shares no word with the query"
    if similarity < min_wordless:
        return f"shares no word with the query, and its similarity is below {min_wordless:.2f}"
    if not readable:
        return "shares no word with the query, and the model does not know its language"
    return ""


def _apply_thresholds(
    ranking: Sequence[Ranked], best_words: float, rules: RankingRules
) -> list[Ranked]:
    """Drop memories whose similarity is too low for their age and use.

    A memory is *clear* if its similarity reaches its threshold, or is unknown. Clear memories are
    kept, and so are those that speak for themselves (`_speaks_for_itself`). Of the others:

    - A stale memory is dropped.
    - A fresh or normal one is dropped if a clear memory is more similar by `NEAR_CLEAR`. Without
      such a memory, the one that is below its threshold may be the answer.

    Thresholds are calibrated similarities. They are converted to cosines for the comparison.
    """
    if rules.curve is None or rules.relevance is None:
        return list(ranking)
    thresholds = {ranked.threshold for ranked in ranking}
    min_cosines = {threshold: to_cosine(threshold, *rules.curve) for threshold in thresholds}
    clear_similarities: list[float] = []
    unclear: dict[int, Ranked] = {}  # by index in `ranking`
    for at, ranked in enumerate(ranking):
        if ranked.dropped or not ranked.threshold:
            continue  # turns have no threshold
        similarity = ranked.features.evidence.similarity
        if similarity is not None and similarity < min_cosines[ranked.threshold]:
            unclear[at] = ranked
        else:
            clear_similarities.append(similarity or 0.0)
    slope, _ = rules.curve
    best_clear = max(clear_similarities, default=-math.inf)
    near_best_clear = best_clear - NEAR_CLEAR / slope
    judged = list(ranking)
    for at, ranked in unclear.items():
        features = ranked.features
        is_stale = _staleness(features, rules.relevance) == STALE
        if not is_stale and features.evidence.similarity >= near_best_clear:
            continue
        if not _speaks_for_itself(features, best_words, is_stale=is_stale):
            reason = f"calibrated similarity is below its threshold of {ranked.threshold:.2f}"
            judged[at] = ranked._replace(dropped=reason)
    return judged


def _speaks_for_itself(features: Features, best_words: float, *, is_stale: bool) -> bool:
    """Return whether a memory needs no similarity: it is from a day in the query, consists of its
    words, or shares enough words with it. One word is enough unless the memory is stale.
    """
    if features.on_date or features.verbatim:
        return True
    enough_words = 0.0
    if is_stale:
        enough_words = STALE_WORDS_SHARE * max(best_words, FULL_WORDS)
    return bool(features.evidence.words > enough_words)
