"""Search results: the hits, and an explanation with all candidates."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, overload

from memories.models import Memory, is_doubtful
from memories.read import versions
from memories.search.candidates import Query
from memories.search.ranking import Evidence, Ranked
from memories.search.relevance import calibrate
from memories.stores.protocol import Store
from memories.stores.records import Candidate, Collection, Record, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.read.turns import Turn


# Maps the names in an explanation, in order, to the names in `Evidence`.
_EVIDENCE = {
    "similarity": "similarity",
    "words": "word_score",
    "window_words": "window_coverage",
    "session_words": "session_coverage",
    "session_best": "session_best",
    "window_similarity": "window_similarity",
    "session_similarity": "session_similarity",
    "date": "date",
    "named": "named",
    "told_date": "told_date",
    "tells_when": "tells_when",
    "aside": "aside",
    "question": "question",
    "brevity": "brevity",
}
# The names in a memory's explanation; the others are only for turns.
_EVIDENCE_OF_MEMORIES = ("similarity", "words", "window_words", "session_words", "date")


@dataclass(frozen=True, slots=True)
class Hit:
    """A memory, or a turn in a conversation, that answers a query.

    Attributes:
        found: The memory or the turn.
        score: The ranking score, 0 to 1; comparable only within one search. Hits are sorted by
            score, except that the newer of two hits about one subject may come first, and memories
            whose anchors changed or that have expired come last.
        similarity: The cosine between its embedding and the query's, 0 to 1; None in keyword-only
            mode.
        calibrated: The similarity on the scale of the thresholds, 0 to 1, comparable across
            embedders.
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
        raise TypeError(f"this hit is a turn ({self.found.id}); use .turn, or search only memories")

    @property
    def turn(self) -> "Turn":
        """The turn.

        Raises:
            TypeError: The hit is a memory.
        """
        if not isinstance(self.found, Memory):
            return self.found
        raise TypeError(
            f"this hit is a memory ({self.found.id}); use .memory, or search only in history"
        )

    @property
    def id(self) -> str:
        """The memory's id, or the turn's address."""
        return self.found.id

    @property
    def content(self) -> str:
        """The text of the memory or turn."""
        return self.found.content

    @property
    def date(self) -> datetime:
        """When the turn was said, or the memory's text was last written or confirmed."""
        if isinstance(self.found, Memory):
            return self.found.stated_at
        return self.found.created_at

    @property
    def speaker(self) -> str | None:
        """The speaker of a turn, or the turn's role if the speaker is unknown; for a memory, the
        agent in its tags.
        """
        if isinstance(self.found, Memory):
            return self.found.tags.get("agent")
        return self.found.speaker or self.found.role

    @property
    def conversation_id(self) -> str | None:
        """The conversation of a turn; for a memory, the one in its tags."""
        if isinstance(self.found, Memory):
            return self.found.tags.get("conversation_id")
        return self.found.conversation_id


class Considered(NamedTuple):
    """A candidate in a search, with the numbers that decided whether it is a hit.

    Attributes:
        id: The memory, or the turn.
        content: Its text.
        score: Its final score.
        features: The parts of the score, keyed by name.
        dropped: Why it is not a hit; empty for a hit.
    """

    id: str
    content: str
    score: float
    features: Mapping[str, float | int | None]
    dropped: str


class Explanation(NamedTuple):
    """A search's hits together with all candidates.

    Attributes:
        terms: The query's words.
        note: Why the search used only words although there is an embedder; usually empty.
        tier: `hot` if the hits come from the scratchpad, else the requested tier, `deep` or `auto`.
        error: Why the store could not be reached, if the scratchpad answered instead; usually
            empty.
    """

    hits: tuple[Hit, ...]
    considered: Sequence[Considered]
    terms: tuple[str, ...]
    note: str = ""
    tier: str = "deep"
    error: str = ""


class _Considering(Sequence[Considered]):
    """A search's candidates, computed on first use, since most callers need only the hits."""

    def __init__(self, result: "SearchResult") -> None:
        self._result = result

    @functools.cached_property
    def _entries(self) -> tuple[Considered, ...]:
        return tuple(map(self._result.describe, self._result.ranking))

    @overload
    def __getitem__(self, at: int) -> Considered: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Considered]: ...

    def __getitem__(self, at: int | slice) -> Considered | Sequence[Considered]:
        return self._entries[at]

    def __eq__(self, other: object) -> bool:
        return self._entries == (other._entries if isinstance(other, _Considering) else other)

    def __hash__(self) -> int:
        return hash(self._entries)

    def __repr__(self) -> str:
        return repr(self._entries)

    def __reduce__(self) -> tuple[type[tuple[Considered, ...]], tuple[object, ...]]:
        """Pickle and copy only the candidates, as a tuple, since the search uses an open store."""
        return tuple, (self._entries,)

    def __len__(self) -> int:
        return len(self._entries)


class SearchResult(NamedTuple):
    """A search's candidates, and their positions in the ranking."""

    store: Store
    query: Query
    candidates: Sequence[Candidate]
    ranking: Sequence[Ranked]
    note: str = ""

    def vectors(self) -> "dict[Ref, NDArray[np.float32]]":
        """Return the stored vectors of all candidates, each of shape (windows, dimension)."""
        return self.store.vectors([candidate.record.ref for candidate in self.candidates])

    def memory_records(self) -> list[Record]:
        """Return the records of the hits that are memories."""
        records = [
            self.candidates[ranked.row].record for ranked in self.ranking if not ranked.dropped
        ]
        return [record for record in records if record.ref.collection is Collection.MEMORY]

    def hits(self) -> tuple[Hit, ...]:
        """Return the hits, best first."""
        return tuple(self.to_hit(ranked) for ranked in self.ranking if not ranked.dropped)

    def explanation(self) -> Explanation:
        """Return the hits, and all candidates with the numbers behind their scores."""
        return Explanation(self.hits(), _Considering(self), tuple(self.query.terms), self.note)

    def describe(self, ranked: Ranked) -> Considered:
        """Return a candidate with the numbers behind its score."""
        record, features = self.candidates[ranked.row].record, ranked.features
        is_turn = record.ref.collection is Collection.HISTORY
        numbers = _round_evidence(features.evidence, is_turn=is_turn)
        numbers["confidence"] = features.confidence
        numbers["freshness"] = round(ranked.freshness, 4)
        numbers["boost"] = round(ranked.boost, 4)
        numbers["threshold"] = ranked.threshold or None
        entry_id = self._to_memory_or_turn(record).id if is_turn else record.ref.group
        return Considered(entry_id, record.text, round(ranked.score, 4), numbers, ranked.dropped)

    def to_hit(self, ranked: Ranked) -> Hit:
        """Return a candidate as a hit, whether or not it was dropped."""
        candidate = self.candidates[ranked.row]
        similarity = calibrated = None
        if candidate.similarity is not None:
            similarity = round(min(1.0, max(0.0, candidate.similarity)), 4)
            if self.query.embedder is not None:
                calibration = self.query.embedder.space.calibration
                calibrated = round(calibrate(similarity, *calibration), 4)
        return Hit(
            found=self._to_memory_or_turn(candidate.record),
            score=round(ranked.score, 4),
            similarity=similarity,
            calibrated=calibrated,
        )

    def _to_memory_or_turn(self, record: Record) -> "Memory | Turn":
        if record.ref.collection is Collection.HISTORY:
            from memories.read.turns import to_turn  # imported here, since only turns need it

            return to_turn(record)
        return versions.to_memory(record, self.query.judged_at, self.query.half_life_hours)


def with_verdicts(
    hits: Sequence[Hit], judge: Callable[[Sequence[Memory]], Sequence[Memory]]
) -> tuple[Hit, ...]:
    """Return hits with the verdicts of their memories; doubtful memories come last."""
    memories = [hit.found for hit in hits if isinstance(hit.found, Memory)]
    judged = {memory.id: memory for memory in judge(memories)}
    sound: list[Hit] = []
    doubtful: list[Hit] = []
    for hit in hits:
        if not isinstance(hit.found, Memory):
            sound.append(hit)
            continue
        memory = judged[hit.id]
        group = doubtful if is_doubtful(memory) else sound
        group.append(replace(hit, found=memory))
    return (*sound, *doubtful)


def _round_evidence(evidence: Evidence, *, is_turn: bool) -> dict[str, float | int | None]:
    """Return the rounded evidence, keyed by name; None for properties that only turns have."""
    numbers: dict[str, float | int | None] = dict.fromkeys(_EVIDENCE)
    for name, field in _EVIDENCE.items():
        value = getattr(evidence, field)
        if value is not None and (is_turn or name in _EVIDENCE_OF_MEMORIES):
            numbers[name] = round(value, 4)
    return numbers
