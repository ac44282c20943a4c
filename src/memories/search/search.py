"""The path of a search, from a caller's arguments to ranked candidates. Begin here.

`Memories.search` or `explain` → `_search_or_fall_back` → `_search_tier` → `_search_store`
       → `search` → `parse_request` → `run_request`
       → gather (`candidates`, `surroundings`) → `noise` (does the query mean anything here?)
       → `ranking` (sorts candidates, and drops some with a reason)
       → `put_newer_first`, for the rank `relevance`; if nothing is a hit, again with function words
       → back in `_search_tier`: `results` (makes hits)
       → back in `_search_or_fall_back`: `_judge_hits` (those that changed or expired come last)

The scratchpad has its own search by words: `scratchpad.matching`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import islice, permutations
from typing import TYPE_CHECKING, NamedTuple

from memories.core.times import query_time
from memories.errors import EmbedderError, InvalidInput
from memories.guard import validate
from memories.languages.text import query_terms, stop_terms
from memories.read.lookup import Lookup, apply_filters, only_pending, with_global
from memories.read.replacements import REPLACES, score_replacement
from memories.read.versions import has_expired, is_corrected, stated_at
from memories.search import noise
from memories.search.candidates import GatheredCandidates, Query, gather_standalone
from memories.search.filters import FILTERS, SearchFilters
from memories.search.ranking import (
    BEYOND_LIMIT,
    LOW_CONFIDENCE,
    Features,
    NoiseBounds,
    Ranked,
    RankingRules,
    rank,
)
from memories.search.relevance import Relevance, to_cosine
from memories.search.results import SearchResult
from memories.settings import RANKS, Config
from memories.stores.protocol import Store, refuse_other_model
from memories.stores.records import Candidate, Collection, Filter, Record, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.anchors.judge import Judge
    from memories.embedders import Embedder

COLLECTIONS: Mapping[str, tuple[Collection, ...]] = {
    "memories": (Collection.MEMORY,),
    "history": (Collection.HISTORY,),
    "all": (Collection.MEMORY, Collection.HISTORY),
}
MIN_CANDIDATES = 40  # minimum number of memories to gather, if the store has that many
COMPARED_HITS = 6  # number of best hits that are compared with each other
# The newer of two hits about one subject comes first if it has at least this share of the older
# one's score.
NEWER_SHARE = 0.35


Predicate = Callable[[Record], bool]


class SearchRequest(NamedTuple):
    """A validated search: the question, and the filters and bounds from `SearchFilters`.

    Attributes:
        query: The question.
        alternatives: The store's filters; a record must match at least one of them. Filters for
            memories come first.
        limit: The maximum number of hits.
        min_confidence: The lowest confidence of a hit.
        min_similarity: The lowest similarity of a hit, on the calibrated scale.
        include_corrected: Whether to show hits that other hits correct, after those hits.
        predicates: For each searched collection, a function that returns whether a candidate meets
            the conditions that a store's filter can't express, such as `or`. Empty if there are no
            such conditions.
        rank_by: One of `RANKS`; see `RankingRules`.
        relevance: How much age and use influence the ranking, and the thresholds.
    """

    query: Query
    alternatives: Sequence[Filter]
    limit: int
    min_confidence: float
    min_similarity: float
    include_corrected: bool
    predicates: Mapping[Collection, Predicate]
    rank_by: str
    relevance: Relevance


def search(
    lookup: Lookup,
    embedder: "Embedder | None",
    text: str,
    filters: SearchFilters,
    config: Config,
    now: datetime,
) -> SearchResult:
    """Search, and return all candidates, best first.

    If the embedder fails and the settings allow it, the search uses only words.

    Args:
        lookup: The store, and the namespaces to read.
        embedder: Computes the query's vector; None to search by words only.
        text: The question.
        filters: The search's filters and bounds; see `Memories.search`.
        config: The settings, which provide defaults for `filters`.
        now: The current time.

    Raises:
        InvalidInput: A value is invalid.
        EmbedderMismatch: The store's vectors come from another model.
        EmbedderError: The question could not be embedded, and the settings require a vector.
    """
    request = parse_request(lookup, embedder, text, filters, config, now)
    try:
        return run_request(lookup.store, request)
    except EmbedderError as exc:
        if embedder is not None:
            refuse_other_model(lookup.store, embedder.space, request.alternatives[0])
        words_instead = config.embedder_fallback == "local" or getattr(exc, "words_instead", False)
        if not words_instead or request.min_similarity:
            raise
        by_words = request._replace(query=request.query._replace(embedder=None))
        return run_request(lookup.store, by_words)._replace(note=f"found by words only: {exc}")


# --- parsing ---


def parse_request(
    lookup: Lookup,
    embedder: "Embedder | None",
    text: str,
    filters: SearchFilters,
    config: Config,
    now: datetime,
) -> SearchRequest:
    """Return the validated search for a caller's arguments."""
    for name in filters:
        if name not in FILTERS:
            raise InvalidInput(f'there is no filter "{name}"; use {", ".join(FILTERS)}')
    text = validate.query(text)
    where = _parse_filter(lookup, filters, now)
    judged_at = where.as_of or now
    judge = lookup.judge if where.as_of is None else None
    # The arguments of `selector.Instant`, which most searches need not import.
    instant = (judged_at, config.decay_half_life_hours, judge)
    projects = lookup.names_of_project(filters.get("project"))
    alternatives, predicates = _divide_by_collection(where, filters, projects, instant)
    limit, min_confidence = filters.get("limit"), filters.get("min_confidence")
    limit = config.default_limit if limit is None else validate.limit(limit)
    if min_confidence is None:
        min_confidence = config.min_confidence
    min_similarity = validate.unit(filters.get("min_similarity") or 0.0, "min_similarity")
    if min_similarity and embedder is None:
        raise InvalidInput("a minimum similarity needs an embedder, but EMBEDDER is none")
    return SearchRequest(
        query=Query(
            text=text,
            terms=query_terms(text),
            now=query_time(filters.get("now"), now),
            judged_at=judged_at,
            half_life_hours=config.decay_half_life_hours,
            embedder=embedder,
            vectors={},
        ),
        alternatives=alternatives,
        limit=limit,
        min_confidence=validate.unit(min_confidence, "min_confidence"),
        min_similarity=min_similarity,
        include_corrected=filters.get("include_corrected", True),
        predicates=predicates,
        rank_by=_parse_rank(filters.get("rank"), config),
        relevance=Relevance.of(config),
    )


def _divide_by_collection(
    where: Filter,
    filters: SearchFilters,
    projects: Sequence[str] | None,
    instant: "tuple[datetime, float, Judge | None]",
) -> tuple[list[Filter], dict[Collection, Predicate]]:
    """Return the request's `alternatives` and `predicates`, given a filter without a collection."""
    alternatives: list[Filter] = []
    predicates: dict[Collection, Predicate] = {}
    expression = filters.get("where")
    for collection in collections_of(filters.get("scope", "memories")):
        of_collection = where._replace(collection=collection)
        if expression is not None:
            of_collection, predicates[collection] = _parse_expression(
                expression, of_collection, instant
            )
        of_project = with_global(of_collection, projects)
        if collection is Collection.HISTORY and len(of_project) > 1:
            of_project = of_project[:-1]  # turns are never global
        alternatives += of_project
    return alternatives, predicates


def _parse_rank(rank: str | None, config: Config) -> str:
    """Return the rank of a search, one of `RANKS`; by default, the setting `rank`."""
    if rank is None:
        rank = config.rank
    if rank not in RANKS:
        raise InvalidInput(f'"{validate.shown(str(rank))}" is not a rank; use {", ".join(RANKS)}')
    return rank


def _parse_filter(lookup: Lookup, filters: SearchFilters, now: datetime) -> Filter:
    """Return the filter for the records to search, in any collection."""
    where = apply_filters(lookup.where(), filters, now)
    collections = collections_of(filters.get("scope", "memories"))
    for name, row in FILTERS.items():
        if row.scope != "all" and filters.get(name) and collections != COLLECTIONS[row.scope]:
            raise InvalidInput(
                f"{name} works only in a search of the {row.scope}; set scope (--in) to {row.scope}"
            )
    if filters.get("pending"):
        if where.as_of is not None:
            raise InvalidInput(
                "pending finds memories that are awaiting review now; don't combine it with as_of"
            )
        where = only_pending(where)
    conversation = filters.get("conversation")
    if conversation is None:
        return where
    from memories.read.turns import in_conversation  # imported here, since few searches need it

    of_conversation = in_conversation(lookup.store, where.namespaces, conversation)
    return where._replace(namespaces=of_conversation.namespaces, group=of_conversation.group)


def _parse_expression(
    expression: str, where: Filter, instant: "tuple[datetime, float, Judge | None]"
) -> tuple[Filter, Predicate]:
    """Narrow a filter by an expression; return it with a predicate.

    The filter contains the part of the expression that a store can apply. The predicate tests the
    complete expression.
    """
    from memories.read import selector  # imported here, since few searches have an expression

    parsed = selector.parse_live(expression, where.collection, selector.Instant(*instant))
    return parsed.narrow(where), parsed.fits


def collections_of(scope: str) -> tuple[Collection, ...]:
    """Return the collections that a scope names: memories, turns, or both.

    Raises:
        InvalidInput: The scope is unknown.
    """
    if not isinstance(scope, str) or scope not in COLLECTIONS:
        raise InvalidInput(
            f'scope (--in) must be memories, history or all, not "{validate.shown(str(scope))}"'
        )
    return COLLECTIONS[scope]


# --- searching ---


def run_request(store: Store, request: SearchRequest) -> SearchResult:
    """Return ranked candidates. If none is a hit, repeat the search with function words only."""
    query = request.query
    gathered, ranking = _gather_and_rank(store, request)
    if request.rank_by == "relevance":
        ranking = put_newer_first(store, query, gathered, ranking, request.limit)
    function_words = [] if _count_hits(ranking) else stop_terms(query.text)
    if function_words and query.terms != function_words:
        return run_request(store, request._replace(query=query._replace(terms=function_words)))
    return SearchResult(store, query, gathered.candidates, ranking)


def _gather_and_rank(
    store: Store, request: SearchRequest
) -> tuple[GatheredCandidates, list[Ranked]]:
    """Gather and rank more and more candidates, until enough are hits or more would not help."""
    turn_count = 2 * request.limit  # number of candidates to gather
    memory_count = max(MIN_CANDIDATES, turn_count)
    turns = _gather_turns(store, request, turn_count)
    memories = _gather_memories(store, request, memory_count)
    while True:
        gathered, all_match = _apply_predicates(request, memories, turns)
        bounds = noise.find_bounds(store, request.alternatives, request.query, gathered)
        ranking = rank(gathered.features, _make_rules(request, bounds))
        if _count_hits(ranking) >= request.limit:
            return gathered, ranking
        # Other candidates may replace those that were too uncertain or did not match a predicate.
        lacks_confidence = any(ranked.dropped.startswith(LOW_CONFIDENCE) for ranked in ranking)
        more_memories_help = memories.has_more and (lacks_confidence or not all_match)
        more_turns_help = turns.has_more and not all_match
        if not more_memories_help and not more_turns_help:
            return gathered, ranking
        if more_memories_help:
            memory_count *= 4
            memories = _gather_memories(store, request, memory_count)
        if more_turns_help:
            turn_count *= 4
            turns = _gather_turns(store, request, turn_count)


def _count_hits(ranking: Sequence[Ranked]) -> int:
    return sum(not ranked.dropped for ranked in ranking)


def _gather_turns(store: Store, request: SearchRequest, count: int) -> GatheredCandidates:
    """Return about `count` turns that may answer the query; none if only memories are searched."""
    for where in request.alternatives:
        if where.collection is Collection.HISTORY:
            from memories.search.surroundings import (
                gather_surrounded,
            )  # imported here, since only searches for turns need it

            return gather_surrounded(store, where, request.query, count)
    return GatheredCandidates([], [], has_more=False)


def _gather_memories(store: Store, request: SearchRequest, count: int) -> GatheredCandidates:
    """Return about `count` memories for each filter, each memory once."""
    by_ref: dict[Ref, tuple[Candidate, Features]] = {}
    has_more = False
    for where in request.alternatives:
        if where.collection is not Collection.MEMORY:
            continue
        if request.alternatives[-1].collection is Collection.HISTORY:
            from memories.search.surroundings import gather_surrounded

            # Filters for turns come last. If there is one, memories are searched in the same way as
            # turns, so that both can be ranked together.
            gathered = gather_surrounded(store, where, request.query, count)
        else:
            gathered = gather_standalone(store, where, request.query, count)
        for candidate, features in zip(gathered.candidates, gathered.features, strict=True):
            by_ref[candidate.record.ref] = candidate, features
        has_more = has_more or gathered.has_more
    candidates = [candidate for candidate, _ in by_ref.values()]
    return GatheredCandidates(candidates, [features for _, features in by_ref.values()], has_more)


def _apply_predicates(
    request: SearchRequest, memories: GatheredCandidates, turns: GatheredCandidates
) -> tuple[GatheredCandidates, bool]:
    """Return the candidates that match the predicates, and whether all candidates did. The
    `has_more` of the result isn't used.
    """
    candidates = memories.candidates + turns.candidates
    features = memories.features + turns.features
    if not request.predicates:
        return GatheredCandidates(candidates, features, has_more=False), True
    selected = GatheredCandidates([], [], has_more=False)
    for candidate, candidate_features in zip(candidates, features, strict=True):
        matches = request.predicates[candidate.record.ref.collection]
        if matches(candidate.record):
            selected.candidates.append(candidate)
            selected.features.append(candidate_features)
    return selected, len(selected.candidates) == len(candidates)


def _make_rules(request: SearchRequest, bounds: NoiseBounds) -> RankingRules:
    """Return the rules for ranking: the bounds of the search, and the constants of its embedder."""
    embedder = request.query.embedder
    rules = RankingRules(
        weight=request.query.weight,
        min_similarity=0.0,
        min_confidence=request.min_confidence,
        limit=request.limit,
        include_corrected=request.include_corrected,
        noise_bounds=bounds,
        rank_by=request.rank_by,
        relevance=request.relevance,
    )
    if embedder is None:
        return rules
    calibration = embedder.space.calibration
    if request.min_similarity:
        cosine = to_cosine(request.min_similarity, *calibration)
        rules = rules._replace(min_similarity=cosine)
    return rules._replace(noise_mean=embedder.space.noise_mean, calibration=calibration)


# --- the newer of two hits about one subject comes first
# A memory that replaces a differently worded one isn't linked to it (see
# `write.compare.corrections`), and a question is often closer to the older memory. Both remain
# hits; only their order changes.


def put_newer_first(
    store: Store, query: Query, gathered: GatheredCandidates, ranking: Sequence[Ranked], limit: int
) -> list[Ranked]:
    """Return ranked candidates after moving newer hits before the older ones that they may replace.

    A newer memory just beyond the limit can move up and become a hit.

    Args:
        store: The store, for the vectors of the best hits.
        query: The question.
        gathered: The candidates.
        ranking: The candidates, sorted by score, best first.
        limit: The maximum number of hits.
    """
    best = list(
        islice((ranked for ranked in ranking if _is_examined(ranked, gathered)), COMPARED_HITS)
    )
    if len(best) < 2:
        return list(ranking)
    records = [gathered.candidates[ranked.row].record for ranked in best]
    vectors: Mapping[Ref, NDArray[np.float32]] = {}
    if query.embedder is not None:
        vectors = store.vectors([record.ref for record in records])
    ordered = list(ranking)
    # Indexes into `best`. Each pair occurs in both orders; `_may_replace` is false if the second
    # memory isn't the newer one.
    for old, new in permutations(range(len(best)), 2):
        is_below = ordered.index(best[new]) > ordered.index(best[old])
        is_strong = best[new].score >= NEWER_SHARE * best[old].score
        if not is_below or not is_strong:
            continue
        if _may_replace(query, records[new], records[old], vectors):
            ordered.remove(best[new])
            ordered.insert(ordered.index(best[old]), best[new])
    if ordered != list(ranking):
        return _apply_limit_again(ordered, limit)
    return ordered


def _is_examined(ranked: Ranked, gathered: GatheredCandidates) -> bool:
    """Return whether a candidate may be moved.

    It must be a memory that is a hit, or would be one with a higher limit. A memory keeps its place
    if it is pinned, has exactly the query's words, or dates from a day that the query names.
    """
    features = ranked.features
    is_memory = gathered.candidates[ranked.row].record.ref.collection is Collection.MEMORY
    is_fixed = features.pinned or features.verbatim or features.on_date
    return is_memory and not is_fixed and ranked.dropped in ("", BEYOND_LIMIT)


def _may_replace(
    query: Query, newer: Record, older: Record, vectors: Mapping[Ref, "NDArray[np.float32]"]
) -> bool:
    if stated_at(newer) <= stated_at(older):
        return False
    if newer.ref.namespace != older.ref.namespace or has_expired(newer, query.judged_at):
        return False
    if is_corrected(newer, query.judged_at):
        return False
    if newer.labels.get("project") != older.labels.get("project"):
        return False
    similarity = None
    new_vectors, old_vectors = vectors.get(newer.ref), vectors.get(older.ref)
    if new_vectors is not None and old_vectors is not None:
        similarity = float((new_vectors @ old_vectors.T).max())
    space = None if query.embedder is None else query.embedder.space
    score = score_replacement(newer.text, older.text, similarity, space, new_vectors)
    return score >= REPLACES


def _apply_limit_again(ordered: Sequence[Ranked], limit: int) -> list[Ranked]:
    """Apply the limit again, to candidates in a new order: only the first `limit` are hits. Those
    that were dropped for other reasons stay dropped.
    """
    limited: list[Ranked] = []
    hits = 0
    for ranked in ordered:
        if ranked.dropped in ("", BEYOND_LIMIT):
            hits += 1
            ranked = ranked._replace(dropped="" if hits <= limit else BEYOND_LIMIT)  # noqa: PLW2901
        limited.append(ranked)
    return limited
