"""Surroundings: turns that may answer a query, and memories if they are searched with turns.

A turn makes sense only with its neighbours and its session. The answer to "what did Ann buy?" may
be the turn "a red bicycle!", which follows the question. So words and similarity are measured on
three scales: the turn itself, a window of neighbouring turns, and its session, a run of turns
without a long pause. Windows never cross the boundary of a session.
"""

import math
import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memories.guard.origin import PART
from memories.languages import dates
from memories.languages.text import STOP_WORDS, cased_form, is_unspaced, normal_form
from memories.read.lookup import select_accepted, with_past_reinforcement
from memories.read.turns import PARTS, start_of
from memories.search.candidates import GatheredCandidates, Query, memory_features, precise_spans
from memories.search.ranking import FULL_LENGTH, FULL_WORD_SCORE, ON_DATE, Evidence, Features, fuse
from memories.stores.protocol import Store
from memories.stores.records import (
    BESIDE,
    ROLE,
    SPEAKER,
    Candidate,
    Collection,
    Filter,
    Matches,
    Record,
    Ref,
    TurnQuery,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MATCHES = 100  # minimum number of turns to find by words, and by vector
MIN_READ = 24  # minimum number of best records to read
YEARS_BACK = 4  # how many past years are tried for a date without a year
# The words of this many neighbours count as a turn's own, because an answer follows its question.
# For similarity, the neighbours are `BESIDE` turns on each side.
BEFORE, AFTER = 2, 1
ASIDE = frozenset({"assistant", "system", "tool"})
ASIDE_WORDS = 0.3  # factor for the words of these roles; long replies contain almost any word
# At this distance from a span, closeness is roughly equal to `ON_DATE`.
_JUST_BEFORE, _JUST_AFTER = timedelta(days=1), timedelta(days=3)
_DATES_READ = 2_000  # only this many characters of a text are searched for dates
_WORD_LENGTH = 6  # average length of a word in characters, including the space after it
_DAY_MILLIS = 86_400_000
_EPOCH = date(1970, 1, 1).toordinal()


class _Columns(NamedTuple):
    """Properties of the matches that don't depend on their texts: arrays with one row per match.

    Attributes:
        evidence: The part of the evidence that doesn't depend on texts.
        has_no_vector: Whether the match has no similarity.
        precision: See `DateScore`.
        spans: The spans of days in the question; not a column.
        asks_when: Whether the question asks when something happened; not a column.
    """

    evidence: Evidence
    has_no_vector: "NDArray[np.bool_]"
    precision: "NDArray[np.float64]"
    spans: Sequence[dates.Span]
    asks_when: bool

    def at(self, row: int) -> Evidence:
        """Return the evidence for one match."""
        evidence = Evidence(*[float(column[row]) for column in self.evidence])
        return evidence._replace(similarity=None) if self.has_no_vector[row] else evidence


def gather_surrounded(store: Store, where: Filter, query: Query, count: int) -> GatheredCandidates:
    """Return about `count` candidates, turns or memories, with evidence from their surroundings.

    More records match in the store (`Store.matches`), but only the texts of the best are read.
    """
    speakers = find_speakers(query.text, store.values(where.collection, where.namespaces, SPEAKER))
    vector = query.vector(remove_speakers(query.text, speakers))
    match_count, read_count = max(MATCHES, count), max(MIN_READ, count)
    turn_query = TurnQuery(vector, query.terms, match_count, _search_periods(query))
    matches = store.matches(where, turn_query)
    if where.collection is Collection.MEMORY:
        # A memory's tags don't name a speaker or a role.
        matches = matches._replace(labels=[{}] * len(matches.labels))
    if not len(matches.group):
        return GatheredCandidates([], [], has_more=False)
    columns = _make_columns(matches, query, speakers)
    best_rows = _first_rows(matches, _order_rows(columns, query), read_count)
    rows: dict[Ref, int] = {}
    for row in best_rows:
        namespace, group = matches.groups[matches.group[row]]
        ref = Ref(where.collection, namespace, group, int(matches.position[row]))
        rows[ref] = row
    records = store.read(list(rows))
    if where.as_of is not None and where.collection is Collection.MEMORY:
        accepted = select_accepted(records, where.as_of)
        records = with_past_reinforcement(store, accepted, where.as_of)
    by_ref = {record.ref: record for record in records}
    has_more = len(best_rows) == read_count or len(matches.group) >= match_count
    gathered = GatheredCandidates([], [], has_more)
    for ref, row in rows.items():
        record = by_ref.get(ref)
        if record is None:
            continue  # another process has removed the record
        similarity = None
        if not columns.has_no_vector[row]:
            similarity = float(matches.similarity[row])
        candidate = Candidate(record, similarity, float(columns.evidence.word_score[row]))
        gathered.candidates.append(candidate)
        gathered.features.append(_features(query, record, columns, row))
    return gathered


def _features(query: Query, record: Record, columns: _Columns, row: int) -> Features:
    """Return a match's features: those in the columns, and those that depend on its text."""
    evidence, precision = columns.at(row), float(columns.precision[row])
    if record.ref.collection is Collection.MEMORY:
        # A memory has no neighbours, so its own similarity serves on all three scales.
        evidence = evidence._replace(window_similarity=evidence.session_similarity)
        return memory_features(query, record, evidence, precision)
    text = record.text
    evidence = evidence._replace(
        told_date=_date_overlap(query, record, columns.spans),
        tells_when=float(columns.asks_when and dates.tells_time(text)),
        question=float(text.rstrip().endswith(("?", "？", "؟"))),
        brevity=_brevity(text),
    )
    message = ""
    if PARTS in record.fields:
        message = f"{record.ref.namespace}/{record.ref.group}#{start_of(record)}"
    return Features(
        evidence,
        readable=query.is_readable(text),
        on_date=precision >= ON_DATE,
        verbatim=query.is_verbatim(text),
        message=message,
    )


def _date_overlap(query: Query, record: Record, spans: Sequence[dates.Span]) -> float:
    """Return how well the dates in a turn's text, relative to the turn's day, match those in the
    question.
    """
    if not spans:
        return 0.0
    said_at = record.created_at.astimezone(query.now.tzinfo)
    return dates.overlap(dates.spans(record.text[:_DATES_READ], said_at, [said_at.year]), spans)


def _brevity(text: str) -> float:
    """Return how brief a text is on a log scale: 1 for one word, 0 for `FULL_LENGTH` or more."""
    # Some scripts don't separate words.
    word_count = max(1, len(text.split()), len(text) // _WORD_LENGTH)
    return 1 - math.log(min(word_count, FULL_LENGTH)) / math.log(FULL_LENGTH)


def _search_periods(query: Query) -> list[tuple[datetime, datetime]]:
    """Return a question's precise spans, extended by the days around them, in the asker's time
    zone.
    """
    years = range(max(1, query.now.year - YEARS_BACK), query.now.year + 1)
    zone = query.now.tzinfo
    periods: list[tuple[datetime, datetime]] = []
    for first, last in precise_spans(dates.spans(query.text, query.now, years)):
        if first.year == 1 or last.year == 9999:
            continue  # in some time zones the calendar's first or last day can't be represented
        start = datetime.combine(first - _JUST_BEFORE, time.min, zone)
        end = datetime.combine(last + _JUST_AFTER, time.max, zone)
        periods.append((start, end))
    return periods


# --- rows ---


def _make_columns(matches: Matches, query: Query, speakers: Sequence[str]) -> _Columns:
    names = {normal_form(speaker) for speaker in speakers}
    is_named = [normal_form(labels.get(SPEAKER, "")) in names for labels in matches.labels]
    offset = query.now.utcoffset() or timedelta()
    millis = matches.created_at + int(offset.total_seconds() * 1000)
    years = millis.astype("datetime64[ms]").astype("datetime64[Y]").astype(np.int64) + 1970
    spans = dates.spans(query.text, query.now, np.unique(years).tolist())
    days = millis // _DAY_MILLIS + _EPOCH
    evidence = measure(matches)
    # The best match by words in each index counts as at most `FULL_WORD_SCORE`, so that memories
    # and turns can be ranked together.
    scale = FULL_WORD_SCORE / max(FULL_WORD_SCORE, float(evidence.word_score.max()))
    evidence = evidence._replace(
        word_score=evidence.word_score * scale,
        session_best=evidence.session_best * scale,
        named=np.array(is_named, dtype=np.float64)[matches.label],
        date=dates.closeness(days, spans),
    )
    return _Columns(
        evidence=evidence,
        has_no_vector=np.isnan(matches.similarity),
        precision=dates.closeness(days, precise_spans(spans)),
        spans=spans,
        asks_when=dates.asks_when(query.text),
    )


def _order_rows(columns: _Columns, query: Query) -> "NDArray[np.int64]":
    """Return all rows, best first, ranked without reading their texts."""
    evidence = columns.evidence
    best_word_score = float(evidence.word_score.max())
    by_words = evidence._replace(similarity=None)
    if query.embedder is None:
        scores = fuse(by_words, best_word_score, query.weight)
    else:
        scores = fuse(evidence, best_word_score, query.weight)
        if columns.has_no_vector.any():
            scores_by_words = fuse(by_words, best_word_score, query.weight)
            scores = np.where(columns.has_no_vector, scores_by_words, scores)
    return np.argsort(-scores, kind="stable")


def _first_rows(matches: Matches, order: "NDArray[np.int64]", count: int) -> list[int]:
    """Return the first `count` rows in an order, with only the best part of each long message."""
    parts = {
        number: int(labels[PART]) for number, labels in enumerate(matches.labels) if PART in labels
    }
    if not parts:
        return [int(row) for row in order[:count]]
    rows: dict[tuple[int, int], int] = {}
    for row in map(int, order):
        start = parts.get(int(matches.label[row]), int(matches.position[row]))
        rows.setdefault((int(matches.group[row]), start), row)
        if len(rows) == count:
            break
    return list(rows.values())


# --- three scales ---


def measure(matches: Matches) -> Evidence:
    """Return the evidence for each match on the three scales, as arrays of shape (n,).

    Coverage is the share of the query's words, weighted by rarity. Similarities are at least 0.
    """
    is_aside = [labels.get(ROLE) in ASIDE for labels in matches.labels]
    aside = np.array(is_aside, dtype=np.float64)[matches.label]
    role_weight = np.where(aside > 0, ASIDE_WORDS, 1.0)
    word_score = matches.word_score * role_weight
    similarity = np.maximum(np.nan_to_num(matches.similarity, nan=0.0), 0.0)
    session = _number_sessions(matches)
    rarity = _rarity(matches)
    in_turn = matches.holds * role_weight  # how much each term in each turn counts
    in_window = in_turn.copy()
    near = np.zeros_like(similarity)
    for distance, rows, neighbours in _pair_neighbours(session, matches.position):
        near[rows] = np.maximum(near[rows], similarity[neighbours])
        if -BEFORE <= distance <= AFTER:
            in_window[:, rows] = np.maximum(in_window[:, rows], in_turn[:, neighbours])
    total = max(float(rarity.sum()), 1e-9)
    in_session = in_turn
    if len(in_turn):
        in_session = np.stack([_best_in_session(session, term) for term in in_turn])
    evidence = Evidence(
        word_score=word_score,
        session_best=_best_in_session(session, word_score),
        window_coverage=rarity @ in_window / total,
        session_coverage=rarity @ in_session / total,
        similarity=similarity,
        window_similarity=near,
        session_similarity=_best_in_session(session, similarity),
        aside=aside,
    )
    return Evidence(*np.broadcast_arrays(*evidence))  # the other signs start as zeros


def _number_sessions(matches: Matches) -> "NDArray[np.int64]":
    """Return a session number for each match; a memory is a session of its own."""
    rows = len(matches.session)
    starts = np.where(matches.session < 0, -1 - np.arange(rows), matches.session)
    starts += rows  # so that no number is negative
    keys = matches.group * (int(starts.max(initial=0)) + 1) + starts
    _, numbers = np.unique(keys, return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def _pair_neighbours(
    session: "NDArray[np.int64]", position: "NDArray[np.int64]"
) -> "list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]":
    """Pair rows with their neighbours in the same session, up to `BESIDE` positions away.

    Returns:
        Each distance, negative or positive, with the rows that have a neighbour there, and these
        neighbours.
    """
    if not len(session):
        return []
    # The keys of two sessions are too far apart for a window to span both.
    keys = session * (int(position.max()) + BESIDE + 1) + position
    order = np.argsort(keys)
    ordered = keys[order]
    pairs = []
    for distance in range(1, BESIDE + 1):
        at = np.searchsorted(ordered, ordered + distance)
        is_pair = at < len(ordered)
        is_pair[is_pair] = ordered[at[is_pair]] == ordered[is_pair] + distance
        earlier, later = order[is_pair], order[at[is_pair]]
        pairs += [(distance, earlier, later), (-distance, later, earlier)]
    return pairs


def _rarity(matches: Matches) -> "NDArray[np.float64]":
    """Return each term's weight, BM25's inverse document frequency; 0 for phrases, whose words
    already count.
    """
    holders = matches.holds.sum(axis=1)
    count = max(matches.searched, matches.holds.shape[1])
    rarity = np.log1p((count - holders + 0.5) / (holders + 0.5))
    is_word = np.array([" " not in term for term in matches.terms], dtype=np.float64)
    return np.asarray(rarity * is_word)


def _best_in_session(
    session: "NDArray[np.int64]", values: "NDArray[np.float64]"
) -> "NDArray[np.float64]":
    """Return the largest value in the session of each row."""
    best = np.zeros(int(session.max(initial=-1)) + 1)
    np.maximum.at(best, session, values)
    return np.asarray(best[session])


# --- speakers --- In a small model's vector, a name outweighs the other words of a question, but it
# doesn't help to choose among the turns of its speaker. So the question is embedded without the
# name. The word search keeps the name, and the named speaker's turns count more.

# A name of two letters must be capitalized, and a shorter name is ignored.
_SHORT_NAME = 2
# Names that are also words; only a capital letter shows that one means a person.
_NAMES_THAT_ARE_WORDS = frozenset(
    "april art august bill dawn drew faith frank grace hope jack joy june mark may rose summer "
    "will".split()
)
_TITLES = frozenset("mr mr. mrs mrs. ms ms. dr dr. prof prof.".split())


def find_speakers(text: str, speakers: Sequence[str]) -> list[str]:
    """Return the speakers named in a text, by full name or first name.

    A full name is unambiguous: `Ann Lee` doesn't match Ann Kim, though `Ann` matches both.

    Args:
        text: A question.
        speakers: Names such as `Ann` or `Ann Lee`.
    """
    spelled = cased_form(text)
    folded = normal_form(text)
    whole: set[str] = set()
    for speaker in sorted(speakers, key=len, reverse=True):  # Ann Lee before Ann
        name = cased_form(speaker)
        if _has_name(spelled, folded, name):
            whole.add(speaker)
            spelled = _name_pattern(name).sub(" ", spelled)
    return [
        speaker
        for speaker in speakers
        if speaker in whole or _has_name(spelled, folded, _first_name(speaker))
    ]


def remove_speakers(text: str, speakers: Sequence[str]) -> str:
    """Return a question without the names of these speakers, unless nothing else would be left."""
    remaining, folded = cased_form(text), normal_form(text)
    names = {*map(cased_form, speakers), *map(_first_name, speakers)}
    for name in sorted(names, key=lambda name: (-len(name), name)):
        if _has_name(remaining, folded, name):
            remaining = _name_pattern(name).sub(" ", remaining)
    remaining = " ".join(remaining.split())
    if any(letter.isalnum() for letter in remaining):
        return remaining
    return text


def _first_name(speaker: str) -> str:
    """Return the first name, or the name after a title."""
    parts = [part for part in cased_form(speaker).split() if part.lower() not in _TITLES]
    return parts[0] if parts else ""


def _has_name(spelled: str, folded: str, name: str) -> bool:
    """Return whether a text contains a name; `folded` is the normalized text."""
    if not any(letter.isalnum() for letter in name) or normal_form(name) not in folded:
        return False  # no pattern has to be compiled
    if len(name) < _SHORT_NAME and not is_unspaced(name):
        return False
    if normal_form(name) in STOP_WORDS and normal_form(name) not in _NAMES_THAT_ARE_WORDS:
        return False
    return bool(_name_pattern(name).search(spelled))


def _name_pattern(name: str) -> re.Pattern[str]:
    """Return the pattern for a name, including its possessive form."""
    if is_unspaced(name):
        return re.compile(re.escape(name))
    ambiguous = normal_form(name) in _NAMES_THAT_ARE_WORDS or len(name) <= _SHORT_NAME
    flags = re.IGNORECASE
    if ambiguous:
        name, flags = name[:1].upper() + name[1:], re.NOFLAG
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)(?:'s\b)?", flags)
