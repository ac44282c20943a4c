"""Noise: a query that is meaningless in a store gets no hits, instead of the nearest texts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from memories.languages.text import STOP_WORDS, coverage
from memories.search.candidates import GatheredCandidates, Query
from memories.search.ranking import NoiseBounds
from memories.search.relevance import to_cosine
from memories.stores.protocol import Store
from memories.stores.records import Candidate, Filter

# If the model knows more than this share of its words, a query is a question, however strange.
MIN_FAMILIARITY = 0.5
# This calibrated similarity proves a match. A nonsense query reaches it only if the store contains
# similar nonsense.
SURE = 0.997
# A query is meaningful if a single text contains this share of its words.
MIN_COVERAGE = 0.5
# The next two are in units of calibration (a cosine times the slope of its curve), so they
# are the same for every embedder.
FAMILIAR_MARGIN = 1.65  # how far below the floor a query with familiar words may be
MAX_GAP = 1.25  # how far below the best similarity a hit of such a query may be
_MAX_TEXTS = 10  # number of candidates whose texts are examined
# Number of characters examined at the beginning of each text. After them, only the text around the
# query's words is examined.
_HEAD_LENGTH = 20_000
_AROUND = 100  # characters examined before and after each of the query's words
_MAX_COUNT = 20_000  # maximum number of records to count; more would hardly raise the floor


class Sense(NamedTuple):
    """Signs that a query isn't noise.

    Attributes:
        similarity: The best cosine; None without vectors.
        coverage: The largest share of the query's words found in one place, 0 to 1. Texts are
            examined only until the share is sufficient, and not at all if another sign is
            sufficient.
        names_speaker_or_day: Whether the query names a speaker, or a day on which something was
            said.
    """

    similarity: float | None
    coverage: float
    names_speaker_or_day: bool


def makes_sense(sense: Sense, calibration: tuple[float, float]) -> bool:
    """Return whether a query is clearly not noise, so that the noise floor does not apply."""
    if sense.names_speaker_or_day or sense.coverage >= MIN_COVERAGE:
        return True
    return sense.similarity is None or sense.similarity >= to_cosine(SURE, *calibration)


def noise_floor(mean: float, spread: float, count: int) -> float:
    """Return the expected similarity of the best of `count` memories to a meaningless query.

    The best of n cosines with unrelated texts grows like the largest of n normal deviates: mean +
    spread × sqrt(2 ln n). The two constants are measured for each embedder (docs/benchmarks.md).
    """
    return mean + spread * math.sqrt(2 * math.log(max(2, count)))


def bounds_of_doubtful_query(
    similarity: float, floor: float, slope: float, *, familiar: bool
) -> NoiseBounds:
    """Return the bounds for a doubtful query.

    Args:
        similarity: The best cosine.
        floor: The result of `noise_floor`.
        slope: The slope of the embedder's calibration.
        familiar: Whether the model knows most of the query's words.
    """
    if similarity >= floor:
        return NoiseBounds()
    if not familiar:
        return NoiseBounds(floor)
    return NoiseBounds(floor - FAMILIAR_MARGIN / slope, MAX_GAP / slope)


def find_bounds(
    store: Store, alternatives: Sequence[Filter], query: Query, gathered: GatheredCandidates
) -> NoiseBounds:
    """Return the similarity bounds for a query. Only a doubtful query has bounds.

    Args:
        store: The store to search.
        alternatives: Filters that together select the records to search.
        query: The query.
        gathered: The query's candidates, with their features.
    """
    embedder = query.embedder
    if embedder is None:
        return NoiseBounds()
    space = embedder.space
    sense = _find_sense(gathered, query.terms, space.calibration)
    if sense.similarity is None or makes_sense(sense, space.calibration):
        return NoiseBounds()
    has_content = any(term not in STOP_WORDS for term in query.terms)
    familiar = has_content and embedder.familiarity(query.text) > MIN_FAMILIARITY
    if familiar and not space.familiar_noise:
        # The words may match a text in another language, which the model can't relate to them.
        return NoiseBounds()
    # Counting takes time in a large store, so only doubtful queries come this far.
    count = sum(store.count(where, at_most=_MAX_COUNT) for where in alternatives)
    floor = noise_floor(space.noise_mean, space.noise_spread, count)
    return bounds_of_doubtful_query(
        sense.similarity, floor, space.calibration[0], familiar=familiar
    )


def _find_sense(
    gathered: GatheredCandidates, terms: Sequence[str], calibration: tuple[float, float]
) -> Sense:
    """Look among the candidates for signs that a query isn't noise."""
    names_speaker_or_day = False
    largest = 0.0
    for features in gathered.features:
        if features.evidence.named or features.on_date:
            names_speaker_or_day = True
        largest = max(largest, features.evidence.window_coverage or 0.0)
    candidates = gathered.candidates
    similarities = [
        candidate.similarity for candidate in candidates if candidate.similarity is not None
    ]
    sense = Sense(max(similarities, default=None), largest, names_speaker_or_day)
    if makes_sense(sense, calibration):
        return sense
    # An assistant's words count less in windows, so examine the texts too.
    return sense._replace(coverage=max(largest, _largest_coverage(candidates, terms)))


def _largest_coverage(candidates: Sequence[Candidate], terms: Sequence[str]) -> float:
    """Return the largest share of the query's words in a candidate, or the first sufficient one."""
    content_words = [term for term in terms if " " not in term and term not in STOP_WORDS]
    best_first = sorted(candidates, key=lambda candidate: -candidate.word_score)
    largest = 0.0
    for candidate in best_first[:_MAX_TEXTS]:
        if candidate.word_score <= 0:
            break
        excerpt = _excerpt(candidate.record.text, content_words)
        largest = max(largest, coverage(excerpt, content_words))
        if largest >= MIN_COVERAGE:
            break
    return largest


def _excerpt(text: str, words: Sequence[str]) -> str:
    """Return the beginning of a text and, from the rest, an excerpt around each word's first
    occurrence.
    """
    if len(text) <= _HEAD_LENGTH:
        return text
    tail = text[_HEAD_LENGTH - _AROUND :].casefold()
    excerpts = [text[:_HEAD_LENGTH]]
    for word in words:
        at = tail.find(word.strip(" *"))
        if at >= 0:
            excerpts.append(tail[max(0, at - _AROUND) : at + _AROUND])
    return " ".join(excerpts)
