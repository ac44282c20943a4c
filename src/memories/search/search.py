"""One search: what may answer is gathered, the ranking orders it, and hits come out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict

from memories import versions
from memories.embedders.protocol import EmbedderUnavailable
from memories.models import Memory, Moment
from memories.search import candidates as gathering
from memories.search.candidates import Gathered, Question
from memories.search.ranking import (
    Evidence,
    Features,
    Ranked,
    Rules,
    Sense,
    calibrated,
    makes_sense,
    noise_bounds,
    noise_floor,
    rank,
    uncalibrated,
)
from memories.stores.protocol import Store, refuse_other_model
from memories.stores.records import Candidate, Collection, Filter, Record
from memories.text import STOP_WORDS, covered

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.write.turns import Turn

Scope = Literal["memories", "history", "all"]
COLLECTIONS: Mapping[str, tuple[Collection, ...]] = {
    "memories": (Collection.MEMORY,),
    "history": (Collection.HISTORY,),
    "all": (Collection.MEMORY, Collection.HISTORY),
}

MIN_CANDIDATES = 40
MIN_FAMILIARITY = 0.5  # more of its words are known to the model: a question, however strange
MAX_COVERED = 10
_COVERED = 20_000
_COUNTED = 20_000  # beyond that the floor hardly grows, and counting takes time


class SearchFilters(TypedDict, total=False):
    """What a search may be narrowed by; what is left out does not narrow it.

    Attributes:
        scope: `memories` (the default), `history` for the turns of conversations, or `all` in one order.
        conversation: Only turns of this conversation.
        now: When the question is asked, for "yesterday" and "last week"; the present by default. It filters nothing.
        tags: Pairs that hits must have.
        limit: How many hits at most, up to 1,000; by default the setting `default_limit`.
        min_confidence: Hits are at least so current, 0 to 1; by default the setting of that name.
        min_similarity: Hits are at least so similar, 0 to 1 on the calibrated scale; needs an embedder.
        since: Hits were last written at this time or later: an aware datetime, or text as `times.parse_time` reads it.
        until: Hits were last written at this time or earlier.
        as_of: Search what was current at this time, with the confidence that it had then.
    """

    scope: Scope
    conversation: str | None
    now: Moment | None
    tags: Mapping[str, str] | None
    limit: int | None
    min_confidence: float | None
    min_similarity: float | None
    since: Moment | None
    until: Moment | None
    as_of: Moment | None


@dataclass(frozen=True, slots=True)
class Hit:
    """A memory, or a turn of a conversation, that answers a query.

    Attributes:
        found: The memory or the turn.
        score: What hits are ordered by, 0 to 1; comparable only within one search.
        similarity: The cosine of its embedding and the query's, 0 to 1; None in keyword-only mode.
        calibrated: The similarity on the scale of thresholds, 0 to 1, which is the same for every embedder.
    """

    found: "Memory | Turn"
    score: float
    similarity: float | None
    calibrated: float | None

    @property
    def memory(self) -> Memory:
        """The memory.

        Raises:
            TypeError: The hit is a turn.
        """
        if isinstance(self.found, Memory):
            return self.found
        raise TypeError(f"this hit is turn {self.found.id}; use .turn, or search in memories only")

    @property
    def turn(self) -> "Turn":
        """The turn.

        Raises:
            TypeError: The hit is a memory.
        """
        if not isinstance(self.found, Memory):
            return self.found
        raise TypeError(f"this hit is memory {self.found.id}; use .memory, or search in history only")

    @property
    def id(self) -> str:
        """The memory's id, or the turn's address."""
        return self.found.id

    @property
    def content(self) -> str:
        """What it says."""
        return self.found.content

    @property
    def date(self) -> datetime:
        """When it was said, or last written."""
        return self.found.updated_at if isinstance(self.found, Memory) else self.found.created_at

    @property
    def speaker(self) -> str | None:
        """Who said it: a turn's speaker, or else its role; the agent that a memory is tagged with."""
        if isinstance(self.found, Memory):
            return self.found.tags.get("agent")
        return self.found.speaker or self.found.role

    @property
    def conversation_id(self) -> str | None:
        """The conversation that a turn is from; the one that a memory is tagged with."""
        return self.found.tags.get("conversation_id") if isinstance(self.found, Memory) else self.found.conversation_id


@dataclass(frozen=True, slots=True)
class Considered:
    """One candidate of a search, with the numbers that decided.

    Attributes:
        id: The memory, or the turn.
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
    """The hits of a search together with every candidate that was considered.

    Attributes:
        terms: What was looked for by word.
        note: Why words alone were searched though there is an embedder; mostly empty.
    """

    hits: tuple[Hit, ...]
    considered: tuple[Considered, ...]
    terms: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """What is asked, all of it checked; see `Memories.explain`."""

    query: str
    where: Filter
    collections: Sequence[Collection]
    limit: int
    min_confidence: float
    min_similarity: float
    half_life_hours: float
    now: datetime


@dataclass(frozen=True, slots=True)
class Found:
    """What a search considered: candidates with their features, and their places in the order."""

    asked: Question
    candidates: Sequence[Candidate]
    features: Sequence[Features]
    ranked: Sequence[Ranked]
    note: str = ""

    def memories(self) -> list[Record]:
        """Return the records of the hits that are memories."""
        records = (self.candidates[place.index].record for place in self.ranked if not place.dropped)
        return [record for record in records if record.ref.collection is Collection.MEMORY]

    def hits(self) -> tuple[Hit, ...]:
        """Return the hits, best first."""
        return tuple(self._hit(place) for place in self.ranked if not place.dropped)

    def explanation(self) -> Explanation:
        """Return the hits and every candidate with its numbers."""
        return Explanation(self.hits(), tuple(map(self._considered, self.ranked)), tuple(self.asked.terms), self.note)

    def _hit(self, place: Ranked) -> Hit:
        candidate = self.candidates[place.index]
        similarity = None if candidate.similarity is None else round(min(1.0, max(0.0, candidate.similarity)), 4)
        return Hit(
            found=self._item(candidate.record),
            score=round(place.score, 4),
            similarity=similarity,
            calibrated=self._calibrated(similarity),
        )

    def _calibrated(self, similarity: float | None) -> float | None:
        if similarity is None or self.asked.embedder is None:
            return None
        return round(calibrated(similarity, *self.asked.embedder.space.calibration), 4)

    def _item(self, record: Record) -> "Memory | Turn":
        if record.ref.collection is Collection.HISTORY:
            from memories.write.turns import to_turn  # a search of memories does without it

            return to_turn(record)
        return versions.to_memory(record, self.asked.judged_at, self.asked.half_life_hours)

    def _considered(self, place: Ranked) -> Considered:
        record, features = self.candidates[place.index].record, self.features[place.index]
        turn = record.ref.collection is Collection.HISTORY
        numbers = _numbers(features.evidence, turn=turn) | {
            "confidence": features.confidence,
            "freshness": round(place.freshness, 4),
            "boost": round(place.boost, 4),
        }
        name = self._item(record).id if turn else record.ref.group
        return Considered(name, record.text, round(place.score, 4), numbers, place.dropped)


def _numbers(evidence: Evidence, *, turn: bool) -> dict[str, float | int | None]:
    """Return the evidence as a table shows it; what a memory does not have is None."""
    numbers: dict[str, float | int | None] = {
        "similarity": evidence.similarity,
        "words": evidence.words,
        "window_words": evidence.window_words,
        "session_words": evidence.session_words,
        "session_best": evidence.session_best if turn else None,
        "window_similarity": evidence.window_similarity if turn else None,
        "session_similarity": evidence.session_similarity if turn else None,
        "date": evidence.date,
    }
    for name in ("named", "told_date", "tells_when", "aside", "question", "brevity"):
        numbers[name] = getattr(evidence, name) if turn else None
    return {name: None if value is None else round(value, 4) for name, value in numbers.items()}


def run(store: Store, embedder: "Embedder | None", search: Search, now: datetime) -> Found:
    """Search, and return everything that was considered, best first; by words alone where they may stand in."""
    try:
        return _run(store, embedder, search, now)
    except EmbedderUnavailable as exc:
        if embedder is not None:
            refuse_other_model(store, embedder.space, search.where)
        if not exc.words_instead or search.min_similarity:
            raise
        return replace(_run(store, None, search, now), note=f"found by words alone: {exc}")


def _run(store: Store, embedder: "Embedder | None", search: Search, now: datetime) -> Found:
    judged_at = search.where.as_of or now
    asked = gathering.question(search.query, search.now, judged_at, search.half_life_hours, embedder)
    k = max(MIN_CANDIDATES, 2 * search.limit)
    said = _turns(store, search, asked)
    while True:
        written = _memories(store, search, asked, k)
        candidates, features = [*written.candidates, *said.candidates], [*written.features, *said.features]
        ranked = rank(features, _rules(store, search, asked, candidates, features))
        enough = sum(not place.dropped for place in ranked) >= search.limit
        # Where many candidates were not current enough, there may be others behind them.
        if enough or not written.more or not any("confidence" in place.dropped for place in ranked):
            return Found(asked, candidates, features, ranked)
        k *= 4


def _turns(store: Store, search: Search, asked: Question) -> Gathered:
    if Collection.HISTORY not in search.collections:
        return Gathered([], [], more=False)
    return gathering.in_place(store, search.where._replace(collection=Collection.HISTORY), asked, search.limit)


def _memories(store: Store, search: Search, asked: Question, k: int) -> Gathered:
    if Collection.MEMORY not in search.collections:
        return Gathered([], [], more=False)
    where = search.where._replace(collection=Collection.MEMORY)
    if search.collections == (Collection.MEMORY,):
        return gathering.alone(store, where, asked, k)
    return gathering.in_place(store, where, asked, k // 2)  # as turns are, so that both stand in one order


def _rules(
    store: Store, search: Search, asked: Question, candidates: Sequence[Candidate], features: Sequence[Features]
) -> Rules:
    least, floor, near_best = 0.0, 0.0, 1.0
    if asked.embedder is not None:
        least = uncalibrated(search.min_similarity, *asked.embedder.space.calibration) if search.min_similarity else 0.0
        sense = _sense(candidates, features, asked.terms)
        if sense.similarity is not None and not makes_sense(sense, asked.embedder.space.calibration):
            floor, near_best = _doubt(store, asked.embedder, search, asked.terms, sense.similarity)
    return Rules(
        weight=asked.weight,
        floor=floor,
        near_best=near_best,
        min_similarity=least,
        min_confidence=search.min_confidence,
        limit=search.limit,
    )


def _sense(candidates: Sequence[Candidate], features: Sequence[Features], terms: Sequence[str]) -> Sense:
    known = [found.similarity for found in candidates if found.similarity is not None]
    written = [found for found in candidates if found.record.ref.collection is Collection.MEMORY]
    coverage = max((each.evidence.window_words or 0.0 for each in features), default=0.0)
    return Sense(
        similarity=max(known, default=None),
        coverage=max(coverage, _best_coverage(written, terms)),
        pointed=any(each.evidence.named or each.meant for each in features),
    )


def _doubt(
    store: Store, embedder: "Embedder", search: Search, terms: Sequence[str], similarity: float
) -> tuple[float, float]:
    """Return `floor` and `near_best` of the rules for a query that may mean nothing here.

    Counting what was searched takes time in a large store, so it is done only for queries in doubt.
    """
    space = embedder.space
    count = sum(
        store.count(search.where._replace(collection=collection), at_most=_COUNTED) for collection in search.collections
    )
    tells = any(term not in STOP_WORDS for term in terms)
    familiar = tells and embedder.familiarity(search.query) > MIN_FAMILIARITY
    floor = noise_floor(space.noise_mean, space.noise_spread, count)
    return noise_bounds(similarity, floor, space.calibration[0], familiar=familiar)


def _best_coverage(candidates: Sequence[Candidate], terms: Sequence[str]) -> float:
    """Return the largest share of the query's words that one candidate has, 0 to 1."""
    words = [term for term in terms if " " not in term and term not in STOP_WORDS]
    best = sorted((found for found in candidates if found.words > 0), key=lambda found: -found.words)
    return max((covered(found.record.text[:_COVERED], words) for found in best[:MAX_COVERED]), default=0.0)
