"""Noise: a query that means nothing in a store gets no hits rather than the nearest texts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from memories.embedders.protocol import Embedder
from memories.languages.text import STOP_WORDS, coverage
from memories.search.ranking import Features
from memories.search.relevance import to_cosine
from memories.stores.protocol import Store
from memories.stores.records import Candidate, Filter

MIN_FAMILIARITY = 0.5  # more of its words are known to the model: a question, however strange
# calibrated; nonsense comes this near only in a store of texts that look like nonsense
SURE = 0.997
MIN_COVERAGE = 0.5  # share of a query's words in one place that makes it a sensible query
# In steps of the calibration, so that they mean the same for every embedder: a cosine times the
# slope of its curve.
FAMILIAR_MARGIN = 1.65  # below the floor, where a question of known words is still no noise
NEAR_BEST = 1.25  # from the best similarity: a text that is further away is then not a hit
MAX_COVERED = 10  # candidates whose texts are looked at
_COVERED = 20_000  # characters of each; of a longer one also where the words stand
_AROUND = 100  # characters read before and after such a word
_COUNTED = 20_000  # beyond that the floor hardly grows, and counting takes time


class Sense(NamedTuple):
    """Signs that a query means something in the store.

    Attributes:
        similarity: The best cosine; None if nothing has one.
        coverage: The largest share of its words in one place, 0 to 1, or one that is enough; not
            looked for in texts if pointed, or if the similarity leaves no doubt.
        pointed: Whether it names a speaker there, or a day on which something was said.
    """

    similarity: float | None
    coverage: float
    pointed: bool


def makes_sense(sense: Sense, calibration: tuple[float, float]) -> bool:
    """Return whether a query is sensible beyond doubt, so that the noise floor is not in
    question.
    """
    sure = sense.similarity is None or sense.similarity >= to_cosine(SURE, *calibration)
    return sure or sense.pointed or sense.coverage >= MIN_COVERAGE


def noise_floor(mean: float, spread: float, count: int) -> float:
    """Return how similar the best of `count` memories may be to a query that means nothing.

    The best of n cosines with strangers grows as the largest of n normal numbers does: mean +
    spread × sqrt(2 ln n). The two constants are measured for each embedder (docs/benchmarks.md).
    """
    return mean + spread * math.sqrt(2 * math.log(max(2, count)))


def noise_bounds(
    similarity: float, floor: float, slope: float, *, familiar: bool
) -> tuple[float, float]:
    """Return `floor` and `near_best` of the rules for a query in doubt.

    Args:
        similarity: The best cosine.
        floor: The result of `noise_floor`.
        slope: Of the embedder's calibration.
        familiar: Whether most of the query's words are known to the model.
    """
    if similarity >= floor:
        return 0.0, 1.0
    return (floor - FAMILIAR_MARGIN / slope, NEAR_BEST / slope) if familiar else (floor, 1.0)


def find_sense(
    candidates: Sequence[Candidate],
    features: Sequence[Features],
    terms: Sequence[str],
    calibration: tuple[float, float],
) -> Sense:
    """Return the signs in the candidates that a query means something."""
    pointed = any(feature.evidence.named or feature.on_date for feature in features)
    coverage = max((feature.evidence.window_words or 0.0 for feature in features), default=0.0)
    similarities = [
        candidate.similarity for candidate in candidates if candidate.similarity is not None
    ]
    sense = Sense(similarity=max(similarities, default=None), coverage=coverage, pointed=pointed)
    if not makes_sense(sense, calibration):
        # Texts of turns too: the words of an assistant count less in their windows, and may be the
        # words of the query.
        sense = sense._replace(coverage=max(coverage, _coverage(candidates, terms)))
    return sense


def find_bounds(
    store: Store,
    filters: Sequence[Filter],
    embedder: Embedder,
    query: tuple[str, Sequence[str]],
    similarity: float,
) -> tuple[float, float]:
    """Return `floor` and `near_best` of the rules for a query that may mean nothing here.

    Counting what was searched takes time in a large store, so it is done only for queries in doubt.

    Args:
        store: The store that was searched.
        filters: The filters of the search.
        embedder: The embedder of the query's vector.
        query: The query, and its terms.
        similarity: The cosine of the best candidate.
    """
    text, terms = query
    space = embedder.space
    count = sum(store.count(where, at_most=_COUNTED) for where in filters)
    has_content = any(term not in STOP_WORDS for term in terms)
    familiar = has_content and embedder.familiarity(text) > MIN_FAMILIARITY
    if familiar and not space.familiar_noise:
        return 0.0, 1.0
    floor = noise_floor(space.noise_mean, space.noise_spread, count)
    return noise_bounds(similarity, floor, space.calibration[0], familiar=familiar)


def _coverage(candidates: Sequence[Candidate], terms: Sequence[str]) -> float:
    """Return the largest share of the query's words that one candidate has, 0 to 1; the first that
    is enough.
    """
    words = [term for term in terms if " " not in term and term not in STOP_WORDS]
    with_words = [candidate for candidate in candidates if candidate.words > 0]
    with_words.sort(key=lambda candidate: -candidate.words)
    largest = 0.0
    for candidate in with_words[:MAX_COVERED]:
        largest = max(largest, coverage(_excerpt(candidate.record.text, words), words))
        if largest >= MIN_COVERAGE:
            break
    return largest


def _excerpt(text: str, words: Sequence[str]) -> str:
    """Return the beginning of a text, and the places behind it around each of these words."""
    if len(text) <= _COVERED:
        return text
    rest = text[_COVERED - _AROUND :].casefold()
    places = (rest.find(word.strip(" *")) for word in words)
    return " ".join(
        (text[:_COVERED], *(rest[max(0, at - _AROUND) : at + _AROUND] for at in places if at >= 0))
    )
