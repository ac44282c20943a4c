"""Candidates: memories that may answer a query, with the features that rank them. For turns, see
`surroundings`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.embedders.protocol import embed_query
from memories.guard.origin import PINNED
from memories.languages import dates
from memories.languages.text import is_latin, normal_form
from memories.read import versions
from memories.read.lookup import select_accepted, with_past_reinforcement
from memories.search.ranking import ON_DATE, Evidence, Features
from memories.stores.protocol import Store
from memories.stores.records import Candidate, Filter, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders import Embedder

# Spans of this many days or more are not searched, since what looks like a year may be another
# number.
PRECISE_DAYS = 62
_MAX_DIFFERENCE = 8  # maximum difference in length between two spellings of a text
_SAMPLE = 200  # characters read to recognize a text's script


class Query(NamedTuple):
    """A question to search for.

    Attributes:
        text: The question.
        terms: The words and phrases in it; see `languages.text.query_terms`.
        now: When the question is asked, in the asker's time zone. "Yesterday" is relative to this
            time.
        judged_at: The time for which confidence and age are computed.
        half_life_hours: Hours until confidence reaches 0; see `read.versions.compute_decay`.
        embedder: Computes vectors; None to search by words only.
        vectors: The vectors computed so far, keyed by text.
    """

    text: str
    terms: Sequence[str]
    now: datetime
    judged_at: datetime
    half_life_hours: float
    embedder: "Embedder | None"
    vectors: "dict[str, NDArray[np.float32]]"

    @property
    def weight(self) -> float:
        """The weight of similarity relative to words."""
        return self.embedder.space.weight if self.embedder else 0.0

    def vector(self, text: str) -> "NDArray[np.float32] | None":
        """Return a text's vector, shape (dimension,); for a long text, the normalized sum of its
        windows' vectors. The vector is computed once and reused to search a project's memories,
        global memories and turns.
        """
        if self.embedder is None:
            return None
        if text not in self.vectors:
            total: NDArray[np.float32] = embed_query(self.embedder, text).sum(axis=0)
            self.vectors[text] = total / max(float((total @ total) ** 0.5), 1e-12)
        return self.vectors[text]

    def is_readable(self, text: str) -> bool:
        """Return whether the model can read the scripts of both the question and a text."""
        if self.embedder is None or not self.embedder.space.latin_only:
            return True
        return is_latin(self.text) and is_latin(text[:_SAMPLE])

    def is_verbatim(self, text: str) -> bool:
        """Return whether a text has exactly the query's words, in the same order."""
        if abs(len(text) - len(self.text)) > _MAX_DIFFERENCE:
            return False
        return normal_form(text) == normal_form(self.text)


class GatheredCandidates(NamedTuple):
    """Candidates and their features in the same order, and whether the store may have more."""

    candidates: list[Candidate]
    features: list[Features]
    has_more: bool


class DateScore(NamedTuple):
    """How close a text's date is to the dates in a question, 0 to 1.

    Attributes:
        closeness: How close it is to the nearest span of days.
        precision: How close it is to the nearest precise span; see `PRECISE_DAYS`.
    """

    closeness: float
    precision: float


def gather_standalone(store: Store, where: Filter, query: Query, count: int) -> GatheredCandidates:
    """Return memories that may answer the query: up to `count` found by words, and as many by
    vector.
    """
    candidates = store.candidates(
        where, vector=query.vector(query.text), terms=query.terms, k=count
    )
    has_more = len(candidates) >= count
    if where.as_of is not None:
        candidates = as_they_were(store, candidates, where.as_of)
    features = [
        memory_features(
            query,
            candidate.record,
            Evidence.standalone(candidate.word_score, candidate.similarity, date_score.closeness),
            date_score.precision,
        )
        for candidate, date_score in zip(candidates, score_dates(query, candidates), strict=True)
    ]
    return GatheredCandidates(candidates, features, has_more)


def as_they_were(
    store: Store, candidates: Sequence[Candidate], moment: datetime
) -> list[Candidate]:
    """Return the candidates accepted before a given time, with their records as they were then."""
    by_ref = {candidate.record.ref: candidate for candidate in candidates}
    accepted = select_accepted([candidate.record for candidate in candidates], moment)
    return [
        by_ref[record.ref]._replace(record=record)
        for record in with_past_reinforcement(store, accepted, moment)
    ]


def score_dates(query: Query, candidates: Sequence[Candidate]) -> list[DateScore]:
    """Score each candidate by the day of its record in the asker's time zone."""
    years = sorted({candidate.record.created_at.year for candidate in candidates})
    spans = dates.spans(query.text, query.now, years)
    if not spans or not candidates:
        return [DateScore(0.0, 0.0)] * len(candidates)
    import numpy as np

    zone = query.now.tzinfo
    days = [candidate.record.created_at.astimezone(zone).toordinal() for candidate in candidates]
    numbers = np.array(days, dtype=np.int64)
    closeness = dates.closeness(numbers, spans).tolist()
    precision = dates.closeness(numbers, precise_spans(spans)).tolist()
    return list(map(DateScore, closeness, precision))


def precise_spans(spans: Sequence[dates.Span]) -> list[dates.Span]:
    """Return the spans that are short enough to count as precise."""
    return [span for span in spans if (span[1] - span[0]).days < PRECISE_DAYS]


def memory_features(
    query: Query, record: Record, evidence: Evidence, date_precision: float
) -> Features:
    """Return a memory's features for ranking.

    Args:
        query: The question.
        record: The memory's version.
        evidence: The evidence that it answers the question.
        date_precision: How close its date is to a precise date in the question; see `DateScore`.
    """
    age = query.judged_at - versions.aging_from(record, query.judged_at)
    features = Features(
        evidence,
        age_days=age.total_seconds() / 86_400,
        accesses=record.accesses,
        pinned=PINNED in record.labels,
        readable=query.is_readable(record.text),
        on_date=date_precision >= ON_DATE,
        verbatim=query.is_verbatim(record.text),
        memory_id=record.ref.group,
    )
    if not record.fields:
        return features
    return features._replace(
        confidence=versions.confidence(record, query.judged_at, query.half_life_hours),
        decay_policy=versions.decay_policy(record),
        corrected_by=versions.read_corrected_by(record, query.judged_at) or "",
    )
