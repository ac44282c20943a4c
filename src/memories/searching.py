"""One search: the store's candidates become features, the ranking orders them, and hits come out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from memories import versions
from memories.models import Candidate, Filter, Memory, Moment, Record
from memories.ranking import Features, Ranked, Rules, rank
from memories.stores.base import Store
from memories.text import index_text, query_terms

if TYPE_CHECKING:
    from memories.embedders import Embedder

MIN_CANDIDATES = 50


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
    limit: int
    min_confidence: float
    min_similarity: float
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


def run(store: Store, embedder: "Embedder | None", search: Search, now: datetime) -> tuple[Explanation, list[Record]]:
    """Search, and return the explanation together with the records of its hits."""
    terms = query_terms(search.query)
    vector = None if embedder is None else embedder.embed(search.query)[0]
    rules = Rules(
        weight=embedder.space.weight if embedder else 0.0,
        floor=embedder.space.floor if embedder else 0.0,
        min_similarity=search.min_similarity,
        min_confidence=search.min_confidence,
        limit=search.limit,
    )
    judged_at = search.where.as_of or now
    k = max(MIN_CANDIDATES, 2 * search.limit)
    while True:
        candidates = store.candidates(search.where, vector=vector, terms=terms, k=k)
        memories = [versions.to_memory(found.record, judged_at, search.half_life_hours) for found in candidates]
        features = [
            _features(found, memory, terms, judged_at) for found, memory in zip(candidates, memories, strict=True)
        ]
        ranked = rank(features, rules)
        enough = sum(not place.dropped for place in ranked) >= search.limit
        # Where many candidates were not current enough, there may be others behind them.
        if enough or len(candidates) < k or not any("confidence" in place.dropped for place in ranked):
            break
        k *= 4
    hits = [place for place in ranked if not place.dropped]
    explanation = Explanation(
        hits=tuple(_hit(place, memories[place.index], candidates[place.index]) for place in hits),
        considered=tuple(_considered(place, memories[place.index], features[place.index]) for place in ranked),
        terms=tuple(terms),
    )
    return explanation, [candidates[place.index].record for place in hits]


def _features(found: Candidate, memory: Memory, terms: Sequence[str], now: datetime) -> Features:
    return Features(
        similarity=found.similarity,
        words=found.words,
        coverage=_coverage(memory.content, terms) if found.words > 0 else 0.0,
        confidence=memory.confidence,
        decay_policy=memory.decay_policy,
        age_days=(now - memory.updated_at).total_seconds() / 86_400,
        accesses=memory.access_count,
    )


def _coverage(content: str, terms: Sequence[str]) -> float:
    """Return the share of the query's terms that a text holds, by the beginnings of words; 0 to 1."""
    text = f" {index_text(content)}"
    return sum(f" {term[: max(4, len(term) - 3)]}" in text for term in terms) / len(terms)


def _hit(place: Ranked, memory: Memory, found: Candidate) -> Hit:
    similarity = None if found.similarity is None else round(min(1.0, max(0.0, found.similarity)), 4)
    return Hit(memory=memory, score=round(place.score, 4), similarity=similarity)


def _considered(place: Ranked, memory: Memory, features: Features) -> Considered:
    numbers: dict[str, float | int | None] = {
        "similarity": None if features.similarity is None else round(features.similarity, 4),
        "words": round(features.words, 4),
        "coverage": round(features.coverage, 2),
        "confidence": features.confidence,
        "freshness": round(place.freshness, 4),
        "boost": round(place.boost, 4),
    }
    return Considered(memory.id, memory.content, round(place.score, 4), numbers, place.dropped)
