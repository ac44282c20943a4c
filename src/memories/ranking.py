"""From candidates to an order: what each is worth as an answer, and which are no answer at all. Pure.

Words and vectors are fused as measured on conversations (docs/benchmarks.md):

    fused     = (words / max(best words, 4) + weight × similarity) / (1 + weight)
    freshness = 1 / (1 + rate × age in days)          for memories that decay, else 1
    boost     = 1 + rate × accesses, capped
    score     = fused × freshness × boost, at most 1

The second and third line are Decision 5 of the identity specification.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memories.models import DecayPolicy

FRESHNESS_RATE = 0.02  # a decaying memory counts half after 50 days
ACCESS_RATE = 0.002  # ten reads weigh 2 %: enough to settle a tie, too little to keep itself on top
ACCESS_CAP = 1.02
FULL_WORDS = 4.0  # from this BM25 on, the best words count in full; one common word in a small store should not
FAMILIAR_MARGIN = 0.08  # a question of known words is taken for noise only if its best answer is so much less similar
NEAR_BEST = 0.06  # and then only what is nearly as similar as the best is an answer
WORDLESS_SHARE = 0.5  # what shares no word with the query must be so similar, compared with the best


@dataclass(frozen=True, slots=True)
class Features:
    """What is known of a candidate.

    Attributes:
        similarity: Cosine with the query, None without vectors.
        words: BM25 of the query's words, 0.0 if none matches.
        confidence: How current it is, 0 to 1.
        decay_policy: Whether its age counts.
        age_days: Since it was written.
        accesses: How often it was read.
        readable: Whether the embedder knows its language, so that its similarity alone can make it a hit.
    """

    similarity: float | None
    words: float
    confidence: float
    decay_policy: DecayPolicy
    age_days: float
    accesses: int
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """What a search asks for.

    Attributes:
        weight: How much similarity counts beside words; a constant of the embedder.
        floor: A query whose best candidate is less similar is noise; 0 if that is not in question.
        near_best: Hits are at most so much less similar than the best one; for a query that may be noise.
        min_similarity: Hits are at least so similar.
        min_confidence: Hits are at least so current.
        limit: So many hits.
    """

    weight: float
    floor: float
    near_best: float
    min_similarity: float
    min_confidence: float
    limit: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate's place.

    Attributes:
        index: Its place in the sequence that was ranked.
        score: 0 to 1.
        freshness: Its factor for age.
        boost: Its factor for reads.
        dropped: Why it is no hit; empty for a hit.
    """

    index: int
    score: float
    freshness: float
    boost: float
    dropped: str


def noise_floor(mean: float, spread: float, count: int) -> float:
    """Return how similar the best of `count` memories may be to a query that means nothing.

    The best of n cosines with strangers grows as the largest of n normal numbers does: mean + spread × sqrt(2 ln n).
    The two constants are measured for each embedder (docs/benchmarks.md).
    """
    return mean + spread * math.sqrt(2 * math.log(max(2, count)))


def rank(candidates: Sequence[Features], rules: Rules) -> list[Ranked]:
    """Order candidates by score, best first; those that are no hits keep their place and say why."""
    best = max((found.similarity for found in candidates if found.similarity is not None), default=0.0)
    noise = ""
    if best < rules.floor:
        noise = f"the query looks like noise: nothing is {rules.floor:.2f} similar or has half of its words"
    weakest = WORDLESS_SHARE * best
    nearest = best - rules.near_best
    best_words = max((candidate.words for candidate in candidates), default=0.0)
    scored = [_score(index, candidate, best_words, rules) for index, candidate in enumerate(candidates)]
    scored.sort(key=lambda ranked: -ranked.score)
    ordered: list[Ranked] = []
    hits = 0
    for ranked in scored:
        reason = (
            noise
            or _why_not(candidates[ranked.index], rules, weakest, nearest)
            or ("" if hits < rules.limit else "beyond the limit")
        )
        hits += not reason
        ordered.append(Ranked(ranked.index, ranked.score, ranked.freshness, ranked.boost, reason))
    return ordered


def _score(index: int, candidate: Features, best_words: float, rules: Rules) -> Ranked:
    if candidate.similarity is None:
        fused = candidate.words / best_words if best_words > 0 else 0.0
    else:
        words = candidate.words / max(best_words, FULL_WORDS)
        fused = (words + rules.weight * max(0.0, candidate.similarity)) / (1 + rules.weight)
    decays = candidate.decay_policy is not DecayPolicy.STABLE
    freshness = 1 / (1 + FRESHNESS_RATE * max(0.0, candidate.age_days)) if decays else 1.0
    boost = min(ACCESS_CAP, 1 + ACCESS_RATE * candidate.accesses)
    return Ranked(index, min(1.0, fused * freshness * boost), freshness, boost, "")


def _why_not(candidate: Features, rules: Rules, weakest: float, nearest: float) -> str:
    """Return why a candidate is no answer; empty if it is one."""
    similarity = candidate.similarity
    if candidate.words <= 0 and (similarity is None or similarity < weakest):
        return f"shares no word with the query, and its similarity is below {weakest:.2f}"
    if candidate.words <= 0 and not candidate.readable:
        return "shares no word with the query, and the model does not know its language"
    if similarity is not None and similarity < nearest:
        return f"the query may be noise, and its similarity is below {nearest:.2f}"
    if rules.min_similarity > 0 and (similarity is None or similarity < rules.min_similarity):
        return f"similarity is below {rules.min_similarity:.2f}"
    if candidate.confidence < rules.min_confidence:
        return f"confidence {candidate.confidence:.2f} is below {rules.min_confidence:.2f}"
    return ""
