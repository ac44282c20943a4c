"""One search: the store's candidates become features, the ranking orders them, and hits come out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from memories import versions
from memories.models import Candidate, Filter, Memory, Moment, Record
from memories.ranking import FAMILIAR_MARGIN, NEAR_BEST, Features, Ranked, Rules, noise_floor, rank
from memories.stores.base import Store
from memories.text import STOP_WORDS, covered, is_latin, query_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders import Embedder

MIN_CANDIDATES = 40
SURE_SIMILARITY = 0.5  # no nonsense comes so near, but in a store of texts that look like nonsense themselves
MIN_COVERAGE = 0.5  # so many of a query's words in one memory make it a sensible query
MIN_FAMILIARITY = 0.5  # more of its words are known to the model: a question, however strange
MAX_COVERED = 10
_COVERED = 20_000
_COUNTED = 20_000  # beyond that the floor hardly grows, and counting takes time
_SAMPLE = 200  # characters that show which script a text is in


class SearchFilters(TypedDict, total=False):
    """What a search may be narrowed by; what is left out does not narrow it.

    Attributes:
        tags: Pairs that hits must have.
        limit: How many hits at most, up to 1,000; by default the setting `default_limit`.
        min_confidence: Hits are at least so current, 0 to 1; by default the setting of that name.
        min_similarity: Hits are at least so similar, 0 to 1; needs an embedder.
        since: Hits were last written at this time or later: an aware datetime, or text as `times.parse_time` reads it.
        until: Hits were last written at this time or earlier.
        as_of: Search what was current at this time, with the confidence that it had then.
    """

    tags: Mapping[str, str] | None
    limit: int | None
    min_confidence: float | None
    min_similarity: float | None
    since: Moment | None
    until: Moment | None
    as_of: Moment | None


@dataclass(frozen=True, slots=True)
class Hit:
    """A memory that answers a query.

    Attributes:
        memory: The memory.
        score: What hits are ordered by, 0 to 1; comparable only within one search.
        similarity: The cosine of its embedding and the query's, 0 to 1; None in keyword-only mode.
    """

    memory: Memory
    score: float
    similarity: float | None


@dataclass(frozen=True, slots=True)
class Considered:
    """One candidate of a search, with the numbers that decided.

    Attributes:
        id: The memory.
        content: What it says.
        score: Its final score.
        features: Name and value of each part of the score.
        dropped: Why it is not among the hits; empty for a hit.
    """

    id: str
    content: str
    score: float
    features: Mapping[str, float | int | None]
    dropped: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The hits of a search together with every candidate that was considered."""

    hits: tuple[Hit, ...]
    considered: tuple[Considered, ...]
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """What is asked, all of it checked; see `Memories.explain`."""

    query: str
    where: Filter
    limit: int
    min_confidence: float
    min_similarity: float
    half_life_hours: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a search considered: candidates with their features, and their places in the order."""

    search: Search
    judged_at: datetime
    terms: tuple[str, ...]
    candidates: Sequence[Candidate]
    features: Sequence[Features]
    ranked: Sequence[Ranked]

    def records(self) -> list[Record]:
        """Return the records of the hits."""
        return [self.candidates[place.index].record for place in self.ranked if not place.dropped]

    def hits(self) -> tuple[Hit, ...]:
        """Return the hits, best first."""
        return tuple(self._hit(place) for place in self.ranked if not place.dropped)

    def explanation(self) -> Explanation:
        """Return the hits and every candidate with its numbers."""
        return Explanation(self.hits(), tuple(map(self._considered, self.ranked)), self.terms)

    def _hit(self, place: Ranked) -> Hit:
        found = self.candidates[place.index]
        memory = versions.to_memory(found.record, self.judged_at, self.search.half_life_hours)
        similarity = None if found.similarity is None else round(min(1.0, max(0.0, found.similarity)), 4)
        return Hit(memory=memory, score=round(place.score, 4), similarity=similarity)

    def _considered(self, place: Ranked) -> Considered:
        record, features = self.candidates[place.index].record, self.features[place.index]
        numbers: dict[str, float | int | None] = {
            "similarity": None if features.similarity is None else round(features.similarity, 4),
            "words": round(features.words, 4),
            "confidence": features.confidence,
            "freshness": round(place.freshness, 4),
            "boost": round(place.boost, 4),
        }
        return Considered(record.ref.group, record.text, round(place.score, 4), numbers, place.dropped)


def run(store: Store, embedder: "Embedder | None", search: Search, now: datetime) -> Found:
    """Search, and return everything that was considered, best first."""
    terms = query_terms(search.query)
    vector = None if embedder is None else _query_vector(embedder, search.query)
    judged_at = search.where.as_of or now
    latin_only = embedder is not None and embedder.space.latin_only
    readable = not latin_only or is_latin(search.query)
    k = max(MIN_CANDIDATES, 2 * search.limit)
    while True:
        candidates = store.candidates(search.where, vector=vector, terms=terms, k=k)
        features = [
            _features(
                found,
                search.half_life_hours,
                judged_at,
                readable=readable and (not latin_only or is_latin(found.record.text[:_SAMPLE])),
            )
            for found in candidates
        ]
        floor, near_best = _doubt(store, embedder, search, candidates, terms) if embedder else (0.0, 1.0)
        rules = Rules(
            weight=embedder.space.weight if embedder else 0.0,
            floor=floor,
            near_best=near_best,
            min_similarity=search.min_similarity,
            min_confidence=search.min_confidence,
            limit=search.limit,
        )
        ranked = rank(features, rules)
        enough = sum(not place.dropped for place in ranked) >= search.limit
        # Where many candidates were not current enough, there may be others behind them.
        if enough or len(candidates) < k or not any("confidence" in place.dropped for place in ranked):
            return Found(search, judged_at, tuple(terms), candidates, features, ranked)
        k *= 4


def _features(found: Candidate, half_life_hours: float, now: datetime, *, readable: bool) -> Features:
    record = found.record
    return Features(
        similarity=found.similarity,
        words=found.words,
        confidence=versions.confidence(record, now, half_life_hours),
        decay_policy=versions.decay_policy(record),
        age_days=(now - record.created_at).total_seconds() / 86_400,
        accesses=record.accesses,
        readable=readable,
    )


def _query_vector(embedder: "Embedder", query: str) -> "NDArray[np.float32]":
    """Return one vector for a query, shape (dimension,): for a long one the direction between its windows."""
    total: NDArray[np.float32] = embedder.embed(query).sum(axis=0)
    return total / max(float((total @ total) ** 0.5), 1e-12)


def _doubt(
    store: Store, embedder: "Embedder", search: Search, candidates: Sequence[Candidate], terms: Sequence[str]
) -> tuple[float, float]:
    """Return `floor` and `near_best` of the rules: how far it is in doubt that the query means something here.

    Counting what was searched takes time in a large store, so it is done only for queries in doubt.
    """
    best = max((found.similarity for found in candidates if found.similarity is not None), default=SURE_SIMILARITY)
    if best >= SURE_SIMILARITY or _best_coverage(candidates, terms) >= MIN_COVERAGE:
        return 0.0, 1.0
    space, count = embedder.space, store.count(search.where, at_most=_COUNTED)
    floor = noise_floor(space.noise_mean, space.noise_spread, count)
    if best >= floor:
        return 0.0, 1.0
    tells = any(term not in STOP_WORDS for term in terms) and embedder.familiarity(search.query) > MIN_FAMILIARITY
    return (floor - FAMILIAR_MARGIN, NEAR_BEST) if tells else (floor, 1.0)


def _best_coverage(candidates: Sequence[Candidate], terms: Sequence[str]) -> float:
    """Return the largest share of the query's words that one candidate has, 0 to 1."""
    words = [term for term in terms if " " not in term and term not in STOP_WORDS]
    best = sorted((found for found in candidates if found.words > 0), key=lambda found: -found.words)
    return max((covered(found.record.text[:_COVERED], words) for found in best[:MAX_COVERED]), default=0.0)
