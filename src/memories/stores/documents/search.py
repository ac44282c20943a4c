"""Searching a document server: the best by vector and by words that match a filter, and the turns
beside them.
"""

import functools
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memories.core.times import to_millis
from memories.stores.columns import MAX_OF_A_DAY, leading, matches_of
from memories.stores.documents.driver import Condition, Kind, Part
from memories.stores.documents.query import Place, View, parts_of, place_of, ref_at
from memories.stores.documents.schema import Stored, decode, is_narrow, is_specific, ref_of
from memories.stores.records import BESIDE, Candidate, Filter, Matches, Ref, TurnQuery
from memories.stores.words import Corpus, Term, best, occurrences, parse, score, tokens_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

SMALL = 1_000  # up to this many turns are looked at one by one
_SAMPLE = 100  # records whose length represents that of all
_ALL_TERMS = 2_000  # records; among more, words that very many of them have are left out
_COMMON = 0.2
_RANKED = 80  # at least this many records are ranked by their words
_RANKED_MATCHES = 600
_CHECKED = 200  # up to this many records are read to count those that have a phrase
_AMONG = 500  # up to this many matching records have all their vectors scored
_SURPLUS = 4  # this many times more is requested if a filter has left too few
_STEPS = [step for step in range(-BESIDE, BESIDE + 1) if step]

Scores = dict[Ref, float]


class Sample(NamedTuple):
    """What some records say about all records of a part.

    Attributes:
        total: How many there were when the sample was taken.
        length: How many words a record has on average.
        shares: For each word that several have, the share of the records that have it.
    """

    total: int
    length: float
    shares: Mapping[str, float]


class Search:
    """One search, with a cache of the records that it has read."""

    def __init__(
        self, view: View, where: Filter, space: str | None, samples: dict[Part, Sample]
    ) -> None:
        """Prepare.

        Args:
            view: The records.
            where: Which of them.
            space: The id of the space of the vectors; None to search by words alone.
            samples: The samples taken so far, for this search to use and to add to.
        """
        self._view = view
        self._where = where
        self._space = space
        self._samples = samples
        self._parts = parts_of(where)
        self._known: dict[Ref, Stored | None] = {}
        self._words: dict[Ref, list[str]] = {}
        self._matching = self._narrowed() if is_narrow(where) else None
        self._soon: Sequence[
            Ref
        ] = ()  # needed later, and read in one request with what is read next
        self._overlay = [record.ref for record in view.changes.matching(where)]
        self._load(self._overlay)

    def _narrowed(self) -> set[Place]:
        """Return the places of matching records; a few are also read, to be scored one by one."""
        few = (
            self._view.few(self._where, _AMONG)
            if self._space is not None and is_specific(self._where)
            else None
        )
        if few is None:
            return self._view.places(self._where)
        self._known |= {stored.record.ref: stored for stored in few}
        return {place_of(stored.record.ref) for stored in few}

    @functools.cached_property
    def _totals(self) -> dict[Part, int]:
        """How many records each part has; asked only when needed."""
        return {part: self._view.driver.count(part) for part in self._parts}

    @property
    def _total(self) -> int:
        return sum(self._totals.values())

    def candidates(self, vector: "Vector | None", terms: Sequence[str], k: int) -> list[Candidate]:
        """See `Store.candidates`."""
        corpus, holders = self._corpus(terms)
        ordered, least = self._ordered(corpus, holders), max(_RANKED, 2 * k)
        self._soon = [ref_at(self._where, place) for place in ordered[:least]]
        similar = {} if vector is None else self._nearest(vector, k)
        worded = self._best_by_words(terms, corpus, ordered, k, least=least)
        refs = list(dict.fromkeys([*heapq.nlargest(k, worded, key=worded.__getitem__), *similar]))
        found = [stored for ref in refs if (stored := self._known[ref]) is not None]
        if vector is not None:
            similar |= self._exact(
                [stored for stored in found if stored.record.ref not in similar], vector
            )
        scores = score([self._tokens(stored) for stored in found], terms, corpus).scores.tolist()
        return [
            Candidate(stored.record, similar.get(stored.record.ref), by_words)
            for stored, by_words in zip(found, scores, strict=True)
        ]

    def matches(self, query: TurnQuery) -> Matches:
        """See `Store.matches`."""
        corpus, holders = self._corpus(query.terms)
        if self._total <= SMALL:
            self._known |= {
                stored.record.ref: stored for stored in self._view.matching(self._where)
            }
            wanted = set(self._known)
            similar = {} if query.vector is None else self._nearest(query.vector, self._total)
        else:
            ordered = self._ordered(corpus, holders)
            self._soon = [ref_at(self._where, place) for place in ordered[:_RANKED_MATCHES]]
            similar = {} if query.vector is None else self._nearest(query.vector, query.k)
            words = self._best_by_words(
                query.terms, corpus, ordered, query.k, least=_RANKED_MATCHES
            )
            wanted = {*similar, *words, *self._of_days(query), *self._beside(words, similar)}
        found = [stored for ref in wanted if (stored := self._known[ref]) is not None]
        if query.vector is not None:
            similar |= self._exact(
                [stored for stored in found if stored.record.ref not in similar], query.vector
            )
        return matches_of(
            [stored.record for stored in found],
            score([self._tokens(stored) for stored in found], query.terms, corpus),
            np.array(
                [similar.get(stored.record.ref, math.nan) for stored in found], dtype=np.float64
            ),
            searched=self._total,
        )

    # --- records
    # ---------------------------------------------------------------------------------------------------

    def _load(self, refs: Iterable[Ref]) -> list[Stored]:
        """Return the records of these refs that match, and keep them."""
        wanted = list(dict.fromkeys(refs))
        soon, self._soon = self._soon, ()
        missing = [ref for ref in dict.fromkeys([*wanted, *soon]) if ref not in self._known]
        self._known.update(dict.fromkeys(missing))
        for found in self._view.stored(missing):
            if self._where.fits(found.record):
                self._known[found.record.ref] = found
        return [stored for ref in wanted if (stored := self._known[ref]) is not None]

    def _tokens(self, stored: Stored) -> list[str]:
        """Return the words of a record in order; computing them is faster than reading them from
        the server.
        """
        ref = stored.record.ref
        if ref not in self._words:
            self._words[ref] = tokens_of(stored.record)
        return self._words[ref]

    # --- words
    # -----------------------------------------------------------------------------------------------------

    def _corpus(self, terms: Sequence[str]) -> tuple[Corpus, dict[str, set[Place]]]:
        """Return what BM25 needs to know of all records, and the records that have each term."""
        parsed = {term: found for term in terms if (found := parse(term)) is not None}
        if not parsed:
            return Corpus(0, 1.0, {}), {}
        samples = {part: self._sample(part, total) for part, total in self._totals.items()}
        common = self._common(parsed, samples)
        holders: dict[str, set[Place]] = {
            term: {
                (part.namespace, name)
                for part in self._parts
                for name in self._view.driver.holders(part, found)
            }
            for term, found in parsed.items()
            if term not in common
        }
        for (
            term,
            places,
        ) in holders.items():  # of a phrase the server knows only who has all of its words
            if len(parsed[term].tokens) > 1 and len(places) <= _CHECKED:
                having = self._view.stored(ref_at(self._where, place) for place in places)
                fits = (
                    stored.record.ref
                    for stored in having
                    if occurrences(self._tokens(stored), parsed[term])
                )
                holders[term] = set(map(place_of, fits))
        for stored in self._load(self._overlay):
            for term, places in holders.items():
                if occurrences(self._tokens(stored), parsed[term]):
                    places.add(place_of(stored.record.ref))
        length = sum(samples[part].length * total for part, total in self._totals.items()) / max(
            1, self._total
        )
        total = self._total + len(self._view.changes.new)
        counts = common | {term: len(places) for term, places in holders.items()}
        return Corpus(total, max(length, 1.0), counts), holders

    def _sample(self, part: Part, total: int) -> Sample:
        """Return a sample of a part with this many records; one is kept until there are many more,
        or many fewer.
        """
        known = self._samples.get(part)
        if known is None or not known.total * 0.9 <= total <= known.total * 1.1:
            points = self._view.driver.find(part, [], limit=_SAMPLE)
            texts = [
                tokens_of(stored.record) for stored in decode(part, points, self._view.damaged)
            ]
            counted = Counter(word for text in texts for word in set(text))
            shares = {word: count / len(texts) for word, count in counted.items() if count > 1}
            length = sum(map(len, texts)) / max(1, len(texts))
            known = self._samples[part] = Sample(total, length, shares)
        return known

    def _common(self, parsed: Mapping[str, Term], samples: Mapping[Part, Sample]) -> dict[str, int]:
        """Return how many records have each of the very common words, without the rarest if all
        words are common.

        Which records have them is not asked: the list would be long, and such words tell the least.
        """
        if self._total <= _ALL_TERMS:
            return {}
        found: dict[str, int] = {}
        for term, (words, open_ended) in parsed.items():
            held = sum(
                samples[part].shares.get(words[0], 0.0) * total
                for part, total in self._totals.items()
            )
            if len(words) == 1 and not open_ended and held >= _COMMON * self._total:
                found[term] = round(held)
        if len(found) == len(parsed):
            del found[min(found, key=found.__getitem__)]
        return found

    def _ordered(self, corpus: Corpus, holders: dict[str, set[Place]]) -> list[Place]:
        """Return the places of records that have any of the terms, those with the rarest ones
        first.
        """
        weights: dict[Place, float] = {}
        for places in holders.values():
            rarity = math.log1p((corpus.documents - len(places) + 0.5) / (len(places) + 0.5))
            for place in places if self._matching is None else places & self._matching:
                weights[place] = weights.get(place, 0.0) + rarity
        return sorted(weights, key=weights.__getitem__, reverse=True)

    def _best_by_words(
        self, terms: Sequence[str], corpus: Corpus, ordered: Sequence[Place], k: int, *, least: int
    ) -> Scores:
        """Return the word scores of the first records in order: at least `least` of them, and until
        `k` are found.
        """
        scores: Scores = {}
        start = 0
        while start < len(ordered) and len(scores) < k:
            found = self._load(
                [ref_at(self._where, place) for place in ordered[start : start + least]]
            )
            start, least = start + least, least * _SURPLUS
            scored = score(
                [self._tokens(stored) for stored in found], terms, corpus
            ).scores.tolist()
            scores |= {
                stored.record.ref: value
                for stored, value in zip(found, scored, strict=True)
                if value > 0
            }
        return scores

    # --- vectors
    # ---------------------------------------------------------------------------------------------------

    def _nearest(self, vector: "Vector", k: int) -> Scores:
        """Return the `k` nearest of the matching records, with the cosine of their best window."""
        if self._space is None:
            return self._of_overlay(vector)
        if self._matching is not None and len(self._matching) <= _AMONG:
            return best(
                self._exact(
                    self._load(ref_at(self._where, place) for place in self._matching), vector
                ),
                k,
            )
        share = 1.0 if self._matching is None else len(self._matching) / max(1, self._total)
        found: Scores = {}
        for part in self._parts:
            asked = 10 + math.ceil(1.5 * k / share)
            while True:
                of_part, exhausted = self._ask(part, vector, asked, k)
                if exhausted or len(of_part) >= k:
                    break
                asked *= _SURPLUS
            found |= of_part
        return best(found | self._of_overlay(vector), k)

    def _ask(self, part: Part, vector: "Vector", asked: int, k: int) -> tuple[Scores, bool]:
        """Return the `k` nearest matching records, and whether there are no more windows to
        request.
        """
        windows = part._replace(kind=Kind.VECTORS, space=self._space or "")
        hits = self._view.driver.nearest(windows, vector, k=asked)
        near = [(ref_of(windows, name), name.partition("/")[0], cosine) for name, cosine in hits]
        if self._matching is not None:
            near = [hit for hit in near if place_of(hit[0]) in self._matching]
        found: Scores = {}
        size = k + 2  # nearly always enough; more are read since some may have ended
        for at, (ref, write_id, cosine) in enumerate(near):
            if len(found) == k:
                break
            if ref not in self._known:
                unknown = dict.fromkeys(each for each, _, _ in near[at:] if each not in self._known)
                self._load(itertools.islice(unknown, size))
                size *= _SURPLUS
            stored = self._known[ref]
            own = None if stored is None else stored.windows.get(self._space or "")
            if own is not None and own.write_id == write_id:
                found[ref] = max(cosine, found.get(ref, -1.0))
        return found, len(hits) < asked

    def _of_overlay(self, vector: "Vector") -> Scores:
        """Return the cosines of the records that the running transaction has added."""
        new = self._view.changes.new
        vectors = {ref: new[ref].vectors for ref in self._overlay if ref in new}
        return {
            ref: float((found @ vector).max())
            for ref, found in vectors.items()
            if found is not None
        }

    def _exact(self, found: Sequence[Stored], vector: "Vector") -> Scores:
        """Return the cosines of those records that have vectors."""
        vectors = self._view.vectors(found, self._space or "")
        return {ref: float((windows @ vector).max()) for ref, windows in vectors.items()}

    # --- turns
    # -----------------------------------------------------------------------------------------------------

    def _beside(self, words: Scores, similar: Scores) -> set[Ref]:
        """Return the turns up to two before and after the best ones, in the same session."""
        best_ones = [self._known[ref] for ref in leading(words, similar)]
        turns = [
            stored.record
            for stored in best_ones
            if stored is not None and stored.record.session is not None
        ]
        near = {
            turn.ref: [turn.ref._replace(position=turn.ref.position + step) for step in _STEPS]
            for turn in turns
        }
        beside = {
            stored.record.ref: stored.record
            for stored in self._load(ref for refs in near.values() for ref in refs)
        }
        return {
            ref
            for turn in turns
            for ref in near[turn.ref]
            if ref in beside and beside[ref].session == turn.session
        }

    def _of_days(self, query: TurnQuery) -> set[Ref]:
        """Return some turns of each of the days that the query asks about."""
        found: set[Ref] = set()
        for first, last in query.days:
            span = [
                Condition("created", ">=", to_millis(first)),
                Condition("created", "<=", to_millis(last)),
            ]
            places = {
                (part.namespace, name)
                for part in self._parts
                for name in self._view.driver.ids(part, span)
            }
            among = places if self._matching is None else places & self._matching
            refs = sorted(ref_at(self._where, place) for place in among)
            turns = [
                each.record
                for each in self._load(refs[: 2 * MAX_OF_A_DAY])
                if each.record.session is not None
            ]
            middle = first + (last - first) / 2
            turns.sort(key=lambda turn: abs(turn.created_at - middle))
            found |= {turn.ref for turn in turns[:MAX_OF_A_DAY]}
        return found
