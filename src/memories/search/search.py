"""One search, from what a caller asks to what was found: begin here.

search → parse → candidates (what may answer, and what speaks for each) → noise (does the query mean anything here?)
       → ranking (their order, and which are no answer) → results (hits)
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.core.times import asked_at
from memories.errors import EmbedderError, InvalidInput
from memories.guard import validate
from memories.languages.text import other_terms, query_terms
from memories.read.lookup import Lookup, narrowed, waiting, with_global
from memories.read.turns import in_conversation
from memories.search import noise
from memories.search.calibration import uncalibrated
from memories.search.candidates import Gathered, Query, standalone, with_surroundings
from memories.search.filters import FILTERS, SearchFilters
from memories.search.ranking import Features, Rules, rank
from memories.search.relevance import Relevance
from memories.search.results import Found
from memories.settings import RANKS, Config
from memories.stores.protocol import Store, refuse_other_model
from memories.stores.records import Candidate, Collection, Filter, Record, Ref

if TYPE_CHECKING:
    from memories.embedders import Embedder

COLLECTIONS: Mapping[str, tuple[Collection, ...]] = {
    "memories": (Collection.MEMORY,),
    "history": (Collection.HISTORY,),
    "all": (Collection.MEMORY, Collection.HISTORY),
}
MIN_CANDIDATES = 40


class Search(NamedTuple):
    """A search whose values have been checked; see `SearchFilters`.

    Attributes:
        query: What is asked.
        filters: What is searched: of each collection what one of them matches, memories first.
        limit: How many hits at most.
        min_confidence: Least confidence of a hit.
        min_similarity: Least similarity of a hit, on the calibrated scale.
        include_corrected: Whether a hit that another hit corrects is shown.
        fits: For each collection that is narrowed by an expression, whether a record meets it.
        relevance: How age and use count; None if they do not.
    """

    query: Query
    filters: Sequence[Filter]
    limit: int
    min_confidence: float
    min_similarity: float
    include_corrected: bool
    fits: Mapping[Collection, Callable[[Record], bool]]
    relevance: Relevance | None


def search(
    lookup: Lookup, embedder: "Embedder | None", text: str, given: SearchFilters, config: Config, now: datetime
) -> Found:
    """Search, and return everything that was considered, best first; by words alone where they may stand in.

    Args:
        lookup: Who asks: the store, and the namespaces that are read.
        embedder: What makes the query's vector; None to go by words alone.
        text: What is asked.
        given: What narrows the search; see `Memories.search`.
        config: The settings that hold where `given` says nothing.
        now: The present.

    Raises:
        InvalidInput: A value is not acceptable.
        EmbedderMismatch: The store's vectors come from another model.
        EmbedderError: The question has no vector, and the settings require one.
    """
    asked = parse(lookup, embedder, text, given, config, now)
    try:
        return run(lookup.store, asked)
    except EmbedderError as exc:
        if embedder is not None:
            refuse_other_model(lookup.store, embedder.space, asked.filters[0])
        words_instead = config.embedder_fallback == "local" or getattr(exc, "words_instead", False)
        if not words_instead or asked.min_similarity:
            raise
        by_words = asked._replace(query=asked.query._replace(embedder=None))
        return run(lookup.store, by_words)._replace(note=f"found by words alone: {exc}")


def parse(
    lookup: Lookup, embedder: "Embedder | None", text: str, given: SearchFilters, config: Config, now: datetime
) -> Search:
    """Return a search whose values have been checked; see `search`."""
    for name in given:
        if name not in FILTERS:
            raise InvalidInput(f'there is no filter "{name}"; use {", ".join(FILTERS)}')
    text = validate.query(text)
    where = _narrowed(lookup, given, now)
    fits: dict[Collection, Callable[[Record], bool]] = {}
    filters: list[Filter] = []
    for collection in collections_of(given.get("scope", "memories")):
        narrower = where._replace(collection=collection)
        if (expression := given.get("where")) is not None:
            narrower, fits[collection] = _meeting(expression, narrower, where.as_of or now, config)
        both = with_global(narrower, given.get("project"))
        filters += both if collection is Collection.MEMORY else both[:-1] or both
    limit, confidence = given.get("limit"), given.get("min_confidence")
    least = validate.unit(given.get("min_similarity") or 0.0, "min-similarity")
    if least and embedder is None:
        raise InvalidInput("min-similarity needs an embedder, and EMBEDDER is none")
    return Search(
        query=Query(
            text=text,
            terms=query_terms(text),
            now=asked_at(given.get("now"), now),
            judged_at=where.as_of or now,
            half_life_hours=config.decay_half_life_hours,
            embedder=embedder,
        ),
        filters=filters,
        limit=config.default_limit if limit is None else validate.limit(limit),
        min_confidence=config.min_confidence if confidence is None else validate.unit(confidence, "min-confidence"),
        min_similarity=least,
        include_corrected=given.get("include_corrected", True),
        fits=fits,
        relevance=_relevance(given.get("rank") or config.rank, config),
    )


def _relevance(order: str, config: Config) -> Relevance | None:
    """Return how age and use count in an order; None if they do not."""
    if order not in RANKS:
        raise InvalidInput(f'"{validate.shown(str(order))}" is not an order; rank is {", ".join(RANKS)}')
    return None if order == "similarity" else Relevance.of(config)._replace(plain=order == "formula")


def _narrowed(lookup: Lookup, given: SearchFilters, now: datetime) -> Filter:
    """Return what is searched, of whatever kind."""
    where = narrowed(lookup.where(), given, now)
    collections = collections_of(given.get("scope", "memories"))
    if given.get("pending"):
        if where.as_of is not None or collections != COLLECTIONS["memories"]:
            raise InvalidInput("pending finds memories that wait now; leave out as_of, history and all")
        where = waiting(where)
    for name in ("conversation", "role", "speaker"):
        if given.get(name) is not None and collections != (Collection.HISTORY,):
            raise InvalidInput(f"{name} narrows a search of the history; add scope history")
    if (conversation := given.get("conversation")) is None:
        return where
    found = in_conversation(lookup.store, where.namespaces, conversation)
    return where._replace(namespaces=found.namespaces, group=found.group)


def _meeting(
    expression: str, where: Filter, moment: datetime, config: Config
) -> tuple[Filter, Callable[[Record], bool]]:
    """Return a filter with what a store can find of an expression, and whether a record meets all of it."""
    from memories.read import selector  # which most searches do without

    asked = selector.read(expression, where.collection, selector.Moment(moment, config.decay_half_life_hours))
    if asked.states:
        names = " and ".join(sorted(asked.states))
        raise InvalidInput(f"a search finds what is current; leave {names} out of where; memory list shows it")
    return asked.narrowed(where), asked.fits


def run(store: Store, search: Search) -> Found:
    """Carry a search out."""
    query, reach, before = search.query, search.limit, -1
    k = max(MIN_CANDIDATES, 2 * search.limit)
    turns = _turns(store, search, reach)
    while True:
        memories = _memories(store, search, k)
        met, all_met = _met(search, memories, turns)
        ranked = rank(met.features, _rules(store, search, met.candidates, met.features))
        enough = sum(not place.dropped for place in ranked) >= search.limit
        # Where many candidates were not current enough or did not meet the expression, there may be others behind them.
        faded = memories.more and any("confidence" in place.dropped for place in ranked)
        others = memories.more or len(turns.candidates) > before
        if enough or not (faded or (others and not all_met)):
            break
        k *= 4
        if not all_met and len(turns.candidates) > before:
            before, reach = len(turns.candidates), 4 * reach
            turns = _turns(store, search, reach)
    spare = other_terms(query.text) if all(place.dropped for place in ranked) else []
    if spare and query.terms != spare:
        return run(store, search._replace(query=query._replace(terms=spare)))
    return Found(query, met.candidates, met.features, ranked)


def _met(search: Search, *parts: Gathered) -> tuple[Gathered, bool]:
    """Return all that was gathered and meets the expression, and whether that is everything."""
    found = [pair for part in parts for pair in zip(part.candidates, part.features, strict=True)]
    met = found
    if fits := search.fits:
        met = [pair for pair in found if fits[pair[0].record.ref.collection](pair[0].record)]
    return Gathered([candidate for candidate, _ in met], [each for _, each in met], more=False), len(met) == len(found)


def collections_of(scope: str) -> tuple[Collection, ...]:
    """Return what a scope means: memories, turns, or both.

    Raises:
        InvalidInput: There is no such scope.
    """
    if not isinstance(scope, str) or scope not in COLLECTIONS:
        raise InvalidInput(f'"{validate.shown(str(scope))}" can\'t be searched; use {", ".join(COLLECTIONS)}')
    return COLLECTIONS[scope]


def _turns(store: Store, search: Search, limit: int) -> Gathered:
    for where in search.filters:
        if where.collection is Collection.HISTORY:
            return with_surroundings(store, where, search.query, limit)
    return Gathered([], [], more=False)


def _memories(store: Store, search: Search, k: int) -> Gathered:
    gathered: dict[Ref, tuple[Candidate, Features]] = {}
    more = False
    beside_turns = search.filters[-1].collection is Collection.HISTORY
    for where in search.filters:
        if where.collection is not Collection.MEMORY:
            continue
        # Beside turns memories are found as those are, so that both stand in one order.
        found = (with_surroundings if beside_turns else standalone)(
            store, where, search.query, k // 2 if beside_turns else k
        )
        gathered |= {one.record.ref: (one, each) for one, each in zip(found.candidates, found.features, strict=True)}
        more = more or found.more
    return Gathered([one for one, _ in gathered.values()], [each for _, each in gathered.values()], more=more)


def _rules(store: Store, search: Search, found: Sequence[Candidate], features: Sequence[Features]) -> Rules:
    query, embedder = search.query, search.query.embedder
    least, floor, near_best = 0.0, 0.0, 1.0
    if embedder is not None:
        curve = embedder.space.calibration
        least = uncalibrated(search.min_similarity, *curve) if search.min_similarity else 0.0
        sense = noise.sense(found, features, query.terms, curve)
        if sense.similarity is not None and not noise.makes_sense(sense, curve):
            asked = (query.text, query.terms)
            floor, near_best = noise.bounds_in(store, search.filters, embedder, asked, sense.similarity)
    return Rules(
        weight=query.weight,
        floor=floor,
        near_best=near_best,
        min_similarity=least,
        min_confidence=search.min_confidence,
        limit=search.limit,
        include_corrected=search.include_corrected,
        strangers=0.0 if embedder is None else embedder.space.noise_mean,
        relevance=search.relevance,
        curve=None if embedder is None else embedder.space.calibration,
    )
