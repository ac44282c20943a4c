"""Puts the newer of two near hits about the same subject first.

A correction in other words isn't linked with the memory that it corrects (see
`write.compare.corrections`), and a question often resembles the older one more. Both stay hits;
only their order changes.
"""

from collections.abc import Sequence
from itertools import islice, permutations

from memories.read.subjects import REPLACES, has_words_of, score_replacement
from memories.search.candidates import Gathered, Query
from memories.search.ranking import BEYOND_LIMIT, Ranked
from memories.stores.protocol import Store
from memories.stores.records import Collection, Record

EXAMINED = 6  # hits that are examined, the best first
NEAR = 0.45  # minimum score of the newer hit, as a share of the older hit's score


def put_newer_first(
    store: Store, query: Query, gathered: Gathered, ranked: Sequence[Ranked], limit: int
) -> list[Ranked]:
    """Return ranked candidates in which each hit comes after those that may replace it.

    Args:
        store: The store, for the vectors of the best hits.
        query: The question.
        gathered: The candidates, with their features.
        ranked: The candidates by score, best first.
        limit: The maximum number of hits.
    """
    best = list(islice((place for place in ranked if _is_examined(place, gathered)), EXAMINED))
    if len(best) < 2:
        return list(ranked)
    records = [gathered.candidates[place.row].record for place in best]
    ages = [gathered.features[place.row].age_days for place in best]
    ordered = list(ranked)
    for old, new in permutations(range(len(best)), 2):
        is_below = ordered.index(best[new]) > ordered.index(best[old])
        is_near = best[new].score >= NEAR * best[old].score
        if not is_below or not is_near or ages[new] >= ages[old]:
            continue
        if _may_replace(store, query, records[new], records[old]):
            ordered.remove(best[new])
            ordered.insert(ordered.index(best[old]), best[new])
    if ordered != list(ranked):
        return _limit(ordered, limit)
    return ordered


def _is_examined(place: Ranked, gathered: Gathered) -> bool:
    """Return whether a candidate is a memory that is a hit, or would be with a higher limit.

    A pinned one, one with the exact words of the question and one of the day in the question keep
    their places.
    """
    features = gathered.features[place.row]
    is_memory = gathered.candidates[place.row].record.ref.collection is Collection.MEMORY
    is_fixed = features.pinned or features.verbatim or features.on_date
    return is_memory and not is_fixed and place.dropped in ("", BEYOND_LIMIT)


def _may_replace(store: Store, query: Query, newer: Record, older: Record) -> bool:
    if "corrected_by" in newer.fields or newer.ref.namespace != older.ref.namespace:
        return False
    if newer.labels.get("project") != older.labels.get("project"):
        return False
    if not has_words_of(newer.text, older.text):
        return False
    similarity = space = None
    if query.embedder is not None:
        vectors = store.vectors([newer.ref, older.ref])
        if len(vectors) == 2:
            similarity = float((vectors[newer.ref] @ vectors[older.ref].T).max())
            space = query.embedder.space
    return score_replacement(newer.text, older.text, similarity, space) >= REPLACES


def _limit(ordered: Sequence[Ranked], limit: int) -> list[Ranked]:
    """Return reordered candidates, of which only the first `limit` are hits."""
    limited: list[Ranked] = []
    hits = 0
    for place in ordered:
        if place.dropped in ("", BEYOND_LIMIT):
            hits += 1
            place = place._replace(dropped="" if hits <= limit else BEYOND_LIMIT)  # noqa: PLW2901
        limited.append(place)
    return limited
