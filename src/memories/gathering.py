"""From a search to what may answer it: the stores' candidates with what speaks for each."""

import math
from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, NamedTuple

from memories import dates, versions
from memories.models import SPEAKER, Candidate, Collection, Filter, Matches, Ref
from memories.names import named, without
from memories.ranking import FULL_LENGTH, Evidence, Features, fused
from memories.stores.base import Store
from memories.text import is_latin, query_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders import Embedder
    from memories.surroundings import Surroundings

MATCHES = 100  # so many turns by words and by vector are seen in their places
MIN_TURNS = 30  # and so many of them are read
_SAMPLE = 200  # characters that show which script a text is in
_TOLD = 2_000  # characters that are read for the days that a text speaks of
_LETTERS = 6  # in a word, with its space
_DAY_MILLIS = 86_400_000
_EPOCH = date(1970, 1, 1).toordinal()


class Question(NamedTuple):
    """What is asked, as it is looked for.

    Attributes:
        text: The question.
        terms: Its words.
        now: When it is asked: what "yesterday" counts from.
        judged_at: The time for which confidence and age are computed.
        half_life_hours: See `decay`.
        embedder: Makes vectors; None to go by words alone.
    """

    text: str
    terms: Sequence[str]
    now: datetime
    judged_at: datetime
    half_life_hours: float
    embedder: "Embedder | None"

    @property
    def weight(self) -> float:
        """How much similarity counts beside words."""
        return self.embedder.space.weight if self.embedder else 0.0


class Gathered(NamedTuple):
    """Candidates with their features, in the same order, and whether there may be more."""

    candidates: list[Candidate]
    features: list[Features]
    more: bool


def question(
    text: str, now: datetime, judged_at: datetime, half_life_hours: float, embedder: "Embedder | None"
) -> Question:
    """Return a question with its words; see `Question`."""
    return Question(text, query_terms(text), now, judged_at, half_life_hours, embedder)


def memories(store: Store, where: Filter, asked: Question, k: int) -> Gathered:
    """Return the memories that may answer, `k` by words and `k` by vector."""
    vector = None if asked.embedder is None else query_vector(asked.embedder, asked.text)
    found = store.candidates(where, vector=vector, terms=asked.terms, k=k)
    close = _closeness(asked, [candidate.record.created_at for candidate in found])
    features = [_memory_features(candidate, asked, day) for candidate, day in zip(found, close, strict=True)]
    return Gathered(found, features, more=len(found) >= k)


def turns(store: Store, where: Filter, asked: Question, limit: int) -> Gathered:
    """Return the turns that may answer, each with what its surroundings tell."""
    speakers = named(asked.text, store.values(Collection.HISTORY, where.namespaces, SPEAKER))
    vector = None if asked.embedder is None else query_vector(asked.embedder, without(asked.text, speakers))
    matches = store.matches(where, vector=vector, terms=asked.terms, k=max(MATCHES, 2 * limit))
    if not len(matches.group):
        return Gathered([], [], more=False)
    seen = _seen(matches, asked, speakers)
    rows = {_ref(where, matches, row): row for row in _best(seen, asked, max(MIN_TURNS, 2 * limit))}
    gathered = Gathered([], [], more=False)
    records = {record.ref: record for record in store.read(list(rows))}
    for ref, row in rows.items():
        record = records.get(ref)
        if record is None:
            continue  # it was removed meanwhile
        similarity = float(matches.similarity[row])
        found = Candidate(record, None if math.isnan(similarity) else similarity, float(seen.around.words[row]))
        gathered.candidates.append(found)
        gathered.features.append(Features(_turn_evidence(found, seen, row), readable=_readable(asked, record.text)))
    return gathered


def query_vector(embedder: "Embedder", text: str) -> "NDArray[np.float32]":
    """Return one vector for a query, shape (dimension,): for a long one the direction between its windows."""
    total: NDArray[np.float32] = embedder.embed(text).sum(axis=0)
    return total / max(float((total @ total) ** 0.5), 1e-12)


# --- memories --------------------------------------------------------------------------------------------------------


def _memory_features(found: Candidate, asked: Question, close: float) -> Features:
    record = found.record
    return Features(
        evidence=Evidence.alone(found.words, found.similarity, close),
        confidence=versions.confidence(record, asked.judged_at, asked.half_life_hours),
        decay_policy=versions.decay_policy(record),
        age_days=(asked.judged_at - record.created_at).total_seconds() / 86_400,
        accesses=record.accesses,
        readable=_readable(asked, record.text),
    )


def _readable(asked: Question, text: str) -> bool:
    """Return whether the model knows the script of both the question and the text."""
    if asked.embedder is None or not asked.embedder.space.latin_only:
        return True
    return is_latin(asked.text) and is_latin(text[:_SAMPLE])


def _closeness(asked: Question, moments: Sequence[datetime]) -> list[float]:
    """Return how close times are to a date in the question; 0 for all if it names none."""
    meant = dates.spans(asked.text, asked.now, sorted({moment.year for moment in moments})) if moments else []
    if not meant:
        return [0.0] * len(moments)
    import numpy as np

    days = np.array([moment.toordinal() for moment in moments], dtype=np.int64)
    return [float(close) for close in dates.closeness(days, meant)]


# --- turns -----------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What is known of matching turns without their texts, in rows, and what is asked of the texts."""

    around: "Surroundings"
    vectorless: "NDArray[np.bool_]"
    named: "NDArray[np.float64]"
    close: "NDArray[np.float64]"
    meant: Sequence[dates.Span]
    when: bool


def _seen(matches: Matches, asked: Question, speakers: Sequence[str]) -> _Seen:
    import numpy as np

    from memories.surroundings import measure

    # The turns of the one speaker who is named; where several are, that tells nothing apart.
    said = [len(speakers) == 1 and labels.get(SPEAKER) == speakers[0] for labels in matches.labels]
    days = matches.created_at // _DAY_MILLIS + _EPOCH
    years = np.unique(matches.created_at.astype("datetime64[ms]").astype("datetime64[Y]").astype(np.int64)) + 1970
    meant = dates.spans(asked.text, asked.now, years.tolist())
    return _Seen(
        around=measure(matches),
        vectorless=np.isnan(matches.similarity),
        named=np.array(said, dtype=np.float64)[matches.label],
        close=dates.closeness(days, meant) if meant else np.zeros(len(days)),
        meant=meant,
        when=dates.asks_when(asked.text),
    )


def _best(seen: _Seen, asked: Question, count: int) -> list[int]:
    """Return the rows that promise most by what is known without their texts."""
    import numpy as np

    around = seen.around
    evidence = Evidence(
        words=around.words,
        session_best=around.session_best,
        window_words=around.window_words,
        session_words=around.session_words,
        similarity=None if asked.embedder is None else around.similarity,
        window_similarity=around.window_similarity,
        session_similarity=around.session_similarity,
        named=seen.named,
        date=seen.close,
        aside=around.aside,
    )
    most = float(around.words.max())
    scores = fused(evidence, most, asked.weight)
    if asked.embedder is not None and seen.vectorless.any():
        scores = np.where(seen.vectorless, fused(evidence._replace(similarity=None), most, asked.weight), scores)
    return [int(row) for row in np.argsort(-scores, kind="stable")[:count]]


def _ref(where: Filter, matches: Matches, row: int) -> Ref:
    namespace, group = matches.groups[matches.group[row]]
    return Ref(where.collection, namespace, group, int(matches.position[row]))


def _turn_evidence(found: Candidate, seen: _Seen, row: int) -> Evidence:
    around, record = seen.around, found.record
    told = dates.spans(record.text[:_TOLD], record.created_at, [record.created_at.year]) if seen.meant else []
    return Evidence(
        words=found.words,
        session_best=float(around.session_best[row]),
        window_words=float(around.window_words[row]),
        session_words=float(around.session_words[row]),
        similarity=None if found.similarity is None else float(around.similarity[row]),
        window_similarity=float(around.window_similarity[row]),
        session_similarity=float(around.session_similarity[row]),
        named=float(seen.named[row]),
        date=float(seen.close[row]),
        told_date=dates.overlap(told, seen.meant),
        tells_when=float(seen.when and dates.tells_time(record.text)),
        aside=float(around.aside[row]),
        question=float(record.text.rstrip().endswith(("?", "？", "؟"))),
        brevity=_brevity(record.text),
    )


def _brevity(text: str) -> float:
    """Return how brief a text is: 1 for one word, 0 from `FULL_LENGTH` words on, by the logarithm between."""
    words = max(1, len(text.split()), len(text) // _LETTERS)  # not every script parts its words
    return 1 - math.log(min(words, FULL_LENGTH)) / math.log(FULL_LENGTH)
