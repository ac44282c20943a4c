"""From a search to what may answer it: the stores' candidates with what speaks for each."""

import math
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memories.embedders.protocol import embed_query
from memories.guard.origin import PART, PINNED
from memories.languages import dates
from memories.languages.text import is_latin, normal_form
from memories.models import DecayPolicy
from memories.read import versions
from memories.read.lookup import accepted_by_then, known_at
from memories.read.turns import PARTS, start_of
from memories.search.ranking import FULL_LENGTH, FULL_WORDS, ON_DATE, Evidence, Features, fused
from memories.search.speakers import named, without
from memories.stores.protocol import Store
from memories.stores.records import SPEAKER, Candidate, Collection, Filter, Matches, Record, Ref, TurnQuery

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders import Embedder
    from memories.search.surroundings import Surroundings

MATCHES = 100  # turns by words, and by vector, that are looked at with their surroundings, at least
MIN_READ = 24  # of these are read, at least
PRECISE_DAYS = 62  # a span of up to two months is a date to search by; a "year" may be any number
YEARS_BACK = 4  # a date without a year is looked for in this year and in the years before
_JUST_BEFORE, _JUST_AFTER = timedelta(days=1), timedelta(days=3)  # as far as closeness is about ON_DATE
_SAME_LENGTH = 8  # characters by which two spellings of one text may differ
_SAMPLE = 200  # characters that show which script a text is in
_TOLD = 2_000  # characters that are read for the days that a text speaks of
_LETTERS = 6  # in a word, with its space
_DAY_MILLIS = 86_400_000
_EPOCH = date(1970, 1, 1).toordinal()


class Query(NamedTuple):
    """A question as it is searched for.

    Attributes:
        text: The question.
        terms: Its words.
        now: When it is asked, in the time zone of the asker: what "yesterday" counts from.
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

    def vector(self, text: str) -> "NDArray[np.float32] | None":
        """Return one vector, shape (dimension,): for a long text the direction between its windows."""
        if self.embedder is None:
            return None
        total: NDArray[np.float32] = embed_query(self.embedder, text).sum(axis=0)
        return total / max(float((total @ total) ** 0.5), 1e-12)

    def readable(self, text: str) -> bool:
        """Return whether the model knows the script of both the question and a text."""
        if self.embedder is None or not self.embedder.space.latin_only:
            return True
        return is_latin(self.text) and is_latin(text[:_SAMPLE])


class Gathered(NamedTuple):
    """Candidates with their features, in the same order, and whether there may be more."""

    candidates: list[Candidate]
    features: list[Features]
    more: bool


def standalone(store: Store, where: Filter, query: Query, k: int) -> Gathered:
    """Return the memories that may answer, `k` by words and `k` by vector, each on its own."""
    found = store.candidates(where, vector=query.vector(query.text), terms=query.terms, k=k)
    more = len(found) >= k
    if where.as_of is not None:
        by_ref = {candidate.record.ref: candidate for candidate in found}
        records = accepted_by_then([candidate.record for candidate in found], where.as_of)
        found = [by_ref[record.ref]._replace(record=record) for record in known_at(store, records, where.as_of)]
    years = sorted({candidate.record.created_at.year for candidate in found})
    spans = dates.spans(query.text, query.now, years)
    close, precise = [0.0] * len(found), [0.0] * len(found)
    if spans and found:
        import numpy as np

        zone = query.now.tzinfo
        days = np.array([found_.record.created_at.astimezone(zone).toordinal() for found_ in found], dtype=np.int64)
        close, precise = dates.closeness(days, spans).tolist(), _precisely(days, spans).tolist()
    features = [
        _features(candidate.record, query, Evidence.standalone(candidate.words, candidate.similarity, day), near)
        for candidate, day, near in zip(found, close, precise, strict=True)
    ]
    return Gathered(found, features, more=more)


def with_surroundings(store: Store, where: Filter, query: Query, limit: int) -> Gathered:
    """Return the turns, or memories, that may answer, each with the evidence of its surroundings."""
    speakers = named(query.text, store.values(where.collection, where.namespaces, SPEAKER))
    vector = query.vector(without(query.text, speakers))
    matches = store.matches(where, TurnQuery(vector, query.terms, max(MATCHES, 2 * limit), _spans_of_time(query)))
    if not len(matches.group):
        return Gathered([], [], more=False)
    seen = _seen(matches, query, speakers)
    best = _one_of_each(matches, _best(seen, query), max(MIN_READ, 2 * limit))
    rows = {_ref(where, matches, row): row for row in best}
    read = store.read(list(rows))
    if where.as_of is not None and where.collection is Collection.MEMORY:
        read = known_at(store, accepted_by_then(read, where.as_of), where.as_of)
    records = {record.ref: record for record in read}
    gathered = Gathered([], [], more=False)
    for ref, row in rows.items():
        record = records.get(ref)
        if record is None:
            continue  # it was removed meanwhile
        similarity = float(matches.similarity[row])
        found = Candidate(record, None if math.isnan(similarity) else similarity, float(seen.around.words[row]))
        gathered.candidates.append(found)
        evidence = _evidence(found, seen, row, query)
        gathered.features.append(_features(record, query, evidence, float(seen.precise[row])))
    return gathered


def _features(record: Record, query: Query, evidence: Evidence, near: float) -> Features:
    """Return the features of a record that is `near` a precise date of the question."""
    readable, on_date = query.readable(record.text), near >= ON_DATE
    same_length = abs(len(record.text) - len(query.text)) <= _SAME_LENGTH
    verbatim = same_length and normal_form(record.text) == normal_form(query.text)
    if record.ref.collection is Collection.HISTORY:
        place = f"{record.ref.namespace}/{record.ref.group}#{start_of(record)}" if PARTS in record.fields else ""
        return Features(evidence, readable=readable, on_date=on_date, verbatim=verbatim, message=place)
    age = (query.judged_at - versions.aging_from(record, query.judged_at)).total_seconds() / 86_400
    pinned, name = PINNED in record.labels, record.ref.group
    if not record.fields:  # as most are, and many are looked at: what is usual, by place
        usual = 1.0, DecayPolicy.STABLE, age, record.accesses, pinned, readable, on_date, verbatim, name
        return Features(evidence, *usual)
    return Features(
        evidence,
        confidence=versions.confidence(record, query.judged_at, query.half_life_hours),
        decay_policy=versions.decay_policy(record),
        age_days=age,
        accesses=record.accesses,
        pinned=pinned,
        readable=readable,
        on_date=on_date,
        verbatim=verbatim,
        name=name,
        corrected_by=versions.corrected_by(record, query.judged_at) or "",
    )


# --- dates -----------------------------------------------------------------------------------------------------------


def _precisely(days: "NDArray[np.int64]", spans: Sequence[dates.Span]) -> "NDArray[np.float64]":
    """Return how close days are to those spans that are short enough to search by."""
    import numpy as np

    precise = _precise(spans)
    return dates.closeness(days, precise) if precise else np.zeros(len(days))


def _precise(spans: Sequence[dates.Span]) -> list[dates.Span]:
    return [span for span in spans if (span[1] - span[0]).days < PRECISE_DAYS]


def _spans_of_time(query: Query) -> list[tuple[datetime, datetime]]:
    """Return the precise spans that a question names, and what is close to them, as moments in the asker's zone."""
    years = range(max(1, query.now.year - YEARS_BACK), query.now.year + 1)
    zone = query.now.tzinfo
    return [
        (datetime.combine(first - _JUST_BEFORE, time.min, zone), datetime.combine(last + _JUST_AFTER, time.max, zone))
        for first, last in _precise(dates.spans(query.text, query.now, years))
        if first.year > 1 and last.year < 9999  # the first and the last day have no place in every zone
    ]


# --- what is seen in its place ---------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What is known of matches without their texts, in rows, and what is asked of the texts."""

    around: "Surroundings"
    vectorless: "NDArray[np.bool_]"
    named: "NDArray[np.float64]"
    close: "NDArray[np.float64]"
    precise: "NDArray[np.float64]"
    spans: Sequence[dates.Span]
    when: bool


def _seen(matches: Matches, query: Query, speakers: Sequence[str]) -> _Seen:
    import numpy as np

    from memories.search.surroundings import measure

    names = {normal_form(speaker) for speaker in speakers}
    said = [normal_form(labels.get(SPEAKER, "")) in names for labels in matches.labels]
    offset = query.now.utcoffset()
    millis = matches.created_at + (0 if offset is None else int(offset.total_seconds() * 1000))
    years = np.unique(millis.astype("datetime64[ms]").astype("datetime64[Y]").astype(np.int64)) + 1970
    spans = dates.spans(query.text, query.now, years.tolist())
    days = millis // _DAY_MILLIS + _EPOCH
    around = measure(matches)
    # What counts in full is the best of its own index, so that memories and turns can stand in one order.
    scale = FULL_WORDS / max(FULL_WORDS, float(around.words.max()))
    return _Seen(
        around=around._replace(words=around.words * scale, session_best=around.session_best * scale),
        vectorless=np.isnan(matches.similarity),
        named=np.array(said, dtype=np.float64)[matches.label],
        close=dates.closeness(days, spans) if spans else np.zeros(len(days)),
        precise=_precisely(days, spans),
        spans=spans,
        when=dates.asks_when(query.text),
    )


def _best(seen: _Seen, query: Query) -> "NDArray[np.int64]":
    """Return all rows, the best first, judged by what is known without their texts."""
    import numpy as np

    around = seen.around
    evidence = Evidence(
        words=around.words,
        session_best=around.session_best,
        window_words=around.window_words,
        session_words=around.session_words,
        similarity=None if query.embedder is None else around.similarity,
        window_similarity=around.window_similarity,
        session_similarity=around.session_similarity,
        named=seen.named,
        date=seen.close,
        aside=around.aside,
    )
    most = float(around.words.max())
    scores = fused(evidence, most, query.weight)
    if query.embedder is not None and seen.vectorless.any():
        scores = np.where(seen.vectorless, fused(evidence._replace(similarity=None), most, query.weight), scores)
    return np.argsort(-scores, kind="stable")


def _one_of_each(matches: Matches, order: "NDArray[np.int64]", count: int) -> list[int]:
    """Return so many of the first rows; of the parts of a long message only the best one."""
    parts = {number: int(labels[PART]) for number, labels in enumerate(matches.labels) if PART in labels}
    if not parts:
        return [int(row) for row in order[:count]]
    rows: dict[tuple[int, int], int] = {}
    for row in map(int, order):
        start = parts.get(int(matches.label[row]), int(matches.position[row]))
        rows.setdefault((int(matches.group[row]), start), row)
        if len(rows) == count:
            break
    return list(rows.values())


def _ref(where: Filter, matches: Matches, row: int) -> Ref:
    namespace, group = matches.groups[matches.group[row]]
    return Ref(where.collection, namespace, group, int(matches.position[row]))


def _evidence(found: Candidate, seen: _Seen, row: int, query: Query) -> Evidence:
    around, text = seen.around, found.record.text
    similarity = None if found.similarity is None else float(around.similarity[row])
    close = float(seen.close[row])
    shares = float(around.window_words[row]), float(around.session_words[row])
    if found.record.ref.collection is Collection.MEMORY:
        near = similarity or 0.0
        return Evidence(found.words, found.words, *shares, similarity, near, near, date=close)
    return Evidence(
        found.words,
        float(around.session_best[row]),
        *shares,
        similarity,
        float(around.window_similarity[row]),
        float(around.session_similarity[row]),
        named=float(seen.named[row]),
        date=close,
        told_date=_told(found.record, seen, query) if seen.spans else 0.0,
        tells_when=float(seen.when and dates.tells_time(text)),
        aside=float(around.aside[row]),
        question=float(text.rstrip().endswith(("?", "？", "؟"))),
        brevity=_brevity(text),
    )


def _told(record: Record, seen: _Seen, query: Query) -> float:
    """Return how well the days that a turn speaks of, counted from its own, agree with those of the question."""
    said_at = record.created_at.astimezone(query.now.tzinfo)
    return dates.overlap(dates.spans(record.text[:_TOLD], said_at, [said_at.year]), seen.spans)


def _brevity(text: str) -> float:
    """Return how brief a text is: 1 for one word, 0 from `FULL_LENGTH` words on, by the logarithm between."""
    words = max(1, len(text.split()), len(text) // _LETTERS)  # not every script parts its words
    return 1 - math.log(min(words, FULL_LENGTH)) / math.log(FULL_LENGTH)
