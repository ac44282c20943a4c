"""Searches a document server by vector and by words; also reads the turns next to a match."""

import functools
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memories.core.times import to_millis
from memories.stores.documents.driver import Condition, Kind, Partition
from memories.stores.documents.query import Address, Overlay, address_of, parts_of, ref_at
from memories.stores.documents.schema import StoredRecord, decode, is_narrow, is_specific, ref_of
from memories.stores.matches import MAX_OF_A_DAY, leading, matches_of
from memories.stores.records import BESIDE, Candidate, Filter, Matches, Ref, TurnQuery
from memories.stores.words import (
    Corpus,
    Term,
    WordScores,
    highest,
    occurrences,
    parse,
    score,
    tokens_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

SMALL = 1_000  # if there are at most this many turns, all of them are scored
_SAMPLE_SIZE = 100  # number of records from which word frequencies and lengths are estimated
_ALL_TERMS = 2_000  # with more records than this, very common words are not searched for
_COMMON_SHARE = 0.2  # a word in this share of the records is very common
_MIN_RANKED = 80  # minimum number of records to rank by their words
_MIN_RANKED_TURNS = 600
_MAX_CHECKED = 200  # up to this many records are read to check whether they contain a phrase
_MAX_SCORED = 500  # if at most this many records match, all their vectors are scored
_GROWTH = 4  # factor by which the next request grows if a filter has left too few records
_STEPS = [step for step in range(-BESIDE, BESIDE + 1) if step]

Scores = dict[Ref, float]


class PartitionEstimates(NamedTuple):
    """Statistics of a partition's records, estimated from a sample.

    Attributes:
        total: How many records the partition contained when the sample was taken.
        length: The average number of words in a record.
        shares: For each word in more than one sampled record, the share of records that contain it.
    """

    total: int
    length: float
    shares: Mapping[str, float]


class Search:
    """One search, with a cache of the records that it has read."""

    def __init__(
        self,
        view: Overlay,
        where: Filter,
        vector: "Vector | None",
        space: str | None,
        samples: dict[Partition, PartitionEstimates],
    ) -> None:
        """Initialize; nothing is read yet.

        Args:
            view: The records.
            where: Selects the records to search.
            vector: The vector to search for; None to search by words only.
            space: The id of the vectors' space; None if the server has no vectors.
            samples: The estimates made so far; this search uses them and adds its own.
        """
        self._view = view
        self._where = where
        self._vector = vector
        self._space = space
        self._samples = samples
        self._parts = parts_of(where)
        self._cache: dict[Ref, StoredRecord | None] = {}
        self._words: dict[Ref, list[str]] = {}
        self._matching = self._narrow() if is_narrow(where) else None
        self._prefetch: Sequence[Ref] = ()  # further records for the next `_load` to read
        self._overlay = [record.ref for record in view.changes.matching(where)]
        self._load(self._overlay)

    def _narrow(self) -> set[Address]:
        """Return the addresses of matching records; if there are few, also cache the records."""
        if self._space is not None and is_specific(self._where):
            records = self._view.matching_if_few(self._where, _MAX_SCORED)
            if records is not None:
                self._cache.update((stored.ref, stored) for stored in records)
                return {address_of(stored.ref) for stored in records}
        return self._view.addresses(self._where)

    @functools.cached_property
    def _totals(self) -> dict[Partition, int]:
        """The number of records in each partition, requested only when needed."""
        return {part: self._view.driver.count(part) for part in self._parts}

    @property
    def _total(self) -> int:
        return sum(self._totals.values())

    def candidates(self, terms: Sequence[str], k: int) -> list[Candidate]:
        """See `Store.candidates`."""
        corpus, holders = self._find_terms(terms)
        ordered = self._order_by_rarity(corpus, holders)
        min_ranked = max(_MIN_RANKED, 2 * k)
        self._prefetch = self._refs(ordered[:min_ranked])
        similarities = self._nearest(k)
        word_scores = self._rank_by_words(terms, corpus, ordered, k, min_ranked)
        best_by_words = heapq.nlargest(k, word_scores, key=word_scores.__getitem__)
        records = self._get_cached(dict.fromkeys([*best_by_words, *similarities]))
        self._score_others(records, similarities)
        scores = self._score_words(records, terms, corpus).scores.tolist()
        candidates: list[Candidate] = []
        for (record, _), word_score in zip(records, scores, strict=True):
            candidates.append(Candidate(record, similarities.get(record.ref), word_score))
        return candidates

    def matches(self, query: TurnQuery) -> Matches:
        """See `Store.matches`."""
        corpus, holders = self._find_terms(query.terms)
        if self._total <= SMALL:
            records = self._view.matching(self._where)
            self._cache.update((stored.ref, stored) for stored in records)
            refs = set(self._cache)
            similarities = self._nearest(self._total)
        else:
            ordered = self._order_by_rarity(corpus, holders)
            self._prefetch = self._refs(ordered[:_MIN_RANKED_TURNS])
            similarities = self._nearest(query.k)
            word_scores = self._rank_by_words(
                query.terms, corpus, ordered, query.k, _MIN_RANKED_TURNS
            )
            refs = {*similarities, *word_scores, *self._turns_of_days(query)}
            refs |= self._turns_beside(word_scores, similarities)
        records = self._get_cached(refs)
        self._score_others(records, similarities)
        column = [similarities.get(stored.ref, math.nan) for stored in records]
        return matches_of(
            [stored.record for stored in records],
            self._score_words(records, query.terms, corpus),
            np.array(column, dtype=np.float64),
            searched=self._total,
        )

    def _load(self, refs: Iterable[Ref]) -> list[StoredRecord]:
        """Return the matching records among these refs, and cache them."""
        refs = list(dict.fromkeys(refs))
        prefetch, self._prefetch = self._prefetch, ()
        missing = [ref for ref in dict.fromkeys([*refs, *prefetch]) if ref not in self._cache]
        self._cache.update(dict.fromkeys(missing))
        for stored in self._view.read(missing):
            if self._where.fits(stored.record):
                self._cache[stored.ref] = stored
        return self._get_cached(refs)

    def _refs(self, addresses: Iterable[Address]) -> list[Ref]:
        return [ref_at(self._where, address) for address in addresses]

    def _get_cached(self, refs: Iterable[Ref]) -> list[StoredRecord]:
        records = [self._cache[ref] for ref in refs]
        return [stored for stored in records if stored is not None]

    def _score_words(
        self, records: Sequence[StoredRecord], terms: Sequence[str], corpus: Corpus
    ) -> WordScores:
        return score([self._tokens(stored) for stored in records], terms, corpus)

    def _tokens(self, stored: StoredRecord) -> list[str]:
        """Return a record's words; computing them is faster than reading them."""
        ref = stored.ref
        if ref not in self._words:
            self._words[ref] = tokens_of(stored.record)
        return self._words[ref]

    def _find_terms(self, terms: Sequence[str]) -> tuple[Corpus, dict[str, set[Address]]]:
        """Return the statistics for BM25, and the records that contain each of the rarer terms."""
        parsed_terms: dict[str, Term] = {}
        for term in terms:
            parsed = parse(term)
            if parsed is not None:
                parsed_terms[term] = parsed
        if not parsed_terms:
            return Corpus(0, 1.0, {}), {}
        samples = {part: self._sample(part, total) for part, total in self._totals.items()}
        common = self._count_common(parsed_terms, samples)
        holders: dict[str, set[Address]] = {}
        for term, parsed in parsed_terms.items():
            if term not in common:
                holders[term] = self._find_holders(parsed)
        for stored in self._load(self._overlay):
            for term, addresses in holders.items():
                if occurrences(self._tokens(stored), parsed_terms[term]):
                    addresses.add(address_of(stored.ref))
        word_count = sum(samples[part].length * total for part, total in self._totals.items())
        mean_length = word_count / max(1, self._total)
        counts = common | {term: len(addresses) for term, addresses in holders.items()}
        total = self._total + len(self._view.changes.new)
        return Corpus(total, max(mean_length, 1.0), counts), holders

    def _find_holders(self, term: Term) -> set[Address]:
        addresses: set[Address] = set()
        for part in self._parts:
            names = self._view.driver.holders(part, term)
            addresses.update((part.namespace, name) for name in names)
        if len(term.tokens) == 1 or len(addresses) > _MAX_CHECKED:
            return addresses
        # For a phrase, the server only knows which records contain all of its words.
        has_phrase: set[Address] = set()
        for stored in self._view.read(self._refs(addresses)):
            if occurrences(self._tokens(stored), term):
                has_phrase.add(address_of(stored.ref))
        return has_phrase

    def _sample(self, part: Partition, total: int) -> PartitionEstimates:
        """Return a sample of a partition; it is cached until many records were added or removed."""
        sample = self._samples.get(part)
        if sample is not None and sample.total * 0.9 <= total <= sample.total * 1.1:
            return sample
        points = self._view.driver.find(part, [], limit=_SAMPLE_SIZE)
        texts = [tokens_of(stored.record) for stored in decode(part, points, self._view.damaged)]
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(set(text))
        shares = {word: count / len(texts) for word, count in counts.items() if count > 1}
        length = sum(map(len, texts)) / max(1, len(texts))
        sample = self._samples[part] = PartitionEstimates(total, length, shares)
        return sample

    def _count_common(
        self, terms: Mapping[str, Term], samples: Mapping[Partition, PartitionEstimates]
    ) -> dict[str, int]:
        """Return how many records contain each of the very common words.

        Searches skip these words: so many records contain them that they say little about any one
        record. If all words are very common, the rarest is not in the result, so it is searched.
        """
        if self._total <= _ALL_TERMS:
            return {}
        common: dict[str, int] = {}
        for name, term in terms.items():
            if len(term.tokens) > 1 or term.open_ended:
                continue
            count = 0.0
            for part, total in self._totals.items():
                count += samples[part].shares.get(term.tokens[0], 0.0) * total
            if count >= _COMMON_SHARE * self._total:
                common[name] = round(count)
        if len(common) == len(terms):
            del common[min(common, key=common.__getitem__)]
        return common

    def _order_by_rarity(self, corpus: Corpus, holders: dict[str, set[Address]]) -> list[Address]:
        """Return the addresses of matching records that contain any of the terms.

        The records with the highest total rarity of their terms come first.
        """
        weights: dict[Address, float] = {}
        for addresses in holders.values():
            rarity = math.log1p((corpus.documents - len(addresses) + 0.5) / (len(addresses) + 0.5))
            matching = addresses if self._matching is None else addresses & self._matching
            for address in matching:
                weights[address] = weights.get(address, 0.0) + rarity
        return sorted(weights, key=weights.__getitem__, reverse=True)

    def _rank_by_words(
        self, terms: Sequence[str], corpus: Corpus, ordered: Sequence[Address], k: int, size: int
    ) -> Scores:
        """Return the word scores of records.

        The first `size` records are scored, then further records until `k` have a score above 0.
        """
        scores: Scores = {}
        start = 0
        while start < len(ordered) and len(scores) < k:
            page = ordered[start : start + size]
            records = self._load(self._refs(page))
            start, size = start + size, size * _GROWTH
            values = self._score_words(records, terms, corpus).scores
            for stored, value in zip(records, values.tolist(), strict=True):
                if value > 0:
                    scores[stored.ref] = value
        return scores

    def _nearest(self, k: int) -> Scores:
        if self._vector is None:
            return {}
        if self._space is None:
            return self._score_overlay(self._vector)
        if self._matching is not None and len(self._matching) <= _MAX_SCORED:
            records = self._load(self._refs(self._matching))
            return highest(self._score_vectors(records), k)
        share = 1.0 if self._matching is None else len(self._matching) / max(1, self._total)
        scores: Scores = {}
        for part in self._parts:
            size = 10 + math.ceil(1.5 * k / share)
            while True:
                part_scores, is_exhausted = self._nearest_in_part(part, self._vector, size, k)
                if is_exhausted or len(part_scores) >= k:
                    break
                size *= _GROWTH
            scores |= part_scores
        return highest(scores | self._score_overlay(self._vector), k)

    def _nearest_in_part(
        self, part: Partition, vector: "Vector", size: int, k: int
    ) -> tuple[Scores, bool]:
        """Return the scores of up to `k` matching records that have one of the `size` nearest
        windows.

        Also return whether the partition has no more windows.
        """
        windows = part._replace(kind=Kind.VECTORS, space=self._space or "")
        hits = self._view.driver.nearest(windows, vector, k=size)
        near: list[tuple[Ref, str, float]] = []
        for name, cosine in hits:
            ref = ref_of(windows, name)
            if self._matching is None or address_of(ref) in self._matching:
                near.append((ref, name.partition("/")[0], cosine))
        scores: Scores = {}
        page_size = k + 2  # two more than needed, since some records may have ended
        for index, (ref, write_id, cosine) in enumerate(near):
            if len(scores) == k:
                break
            if ref not in self._cache:
                missing = dict.fromkeys(hit[0] for hit in near[index:] if hit[0] not in self._cache)
                self._load(itertools.islice(missing, page_size))
                page_size *= _GROWTH
            stored = self._cache[ref]
            current = None if stored is None else stored.windows.get(self._space or "")
            if current is not None and current.write_id == write_id:
                scores[ref] = max(cosine, scores.get(ref, -1.0))
        return scores, len(hits) < size

    def _score_overlay(self, vector: "Vector") -> Scores:
        new = self._view.changes.new
        scores: Scores = {}
        for ref in self._overlay:
            vectors = new[ref].vectors if ref in new else None
            if vectors is not None:
                scores[ref] = float((vectors @ vector).max())
        return scores

    def _score_vectors(self, records: Sequence[StoredRecord]) -> Scores:
        if self._vector is None:
            return {}
        vectors = self._view.vectors(records, self._space or "")
        return {ref: float((windows @ self._vector).max()) for ref, windows in vectors.items()}

    def _score_others(self, records: Sequence[StoredRecord], similarities: Scores) -> None:
        """Add cosines to `similarities` for the records that it lacks."""
        others = [stored for stored in records if stored.ref not in similarities]
        similarities |= self._score_vectors(others)

    def _turns_beside(self, word_scores: Scores, similarities: Scores) -> set[Ref]:
        """Return the turns up to two positions from the best ones, in the same session."""
        best_records = self._get_cached(leading(word_scores, similarities))
        turns = [stored.record for stored in best_records if stored.record.session is not None]
        beside = [
            (turn, turn.ref._replace(position=turn.ref.position + step))
            for turn in turns
            for step in _STEPS
        ]
        loaded = self._load(ref for _, ref in beside)
        sessions = {stored.ref: stored.record.session for stored in loaded}
        return {ref for turn, ref in beside if sessions.get(ref) == turn.session}

    def _turns_of_days(self, query: TurnQuery) -> set[Ref]:
        """Return some of the turns from the time spans that the query mentions."""
        turns_of_days: set[Ref] = set()
        for first, last in query.days:
            span = [
                Condition("created", ">=", to_millis(first)),
                Condition("created", "<=", to_millis(last)),
            ]
            addresses: set[Address] = set()
            for part in self._parts:
                names = self._view.driver.ids(part, span)
                addresses.update((part.namespace, name) for name in names)
            if self._matching is not None:
                addresses &= self._matching
            refs = sorted(self._refs(addresses))
            loaded = self._load(refs[: 2 * MAX_OF_A_DAY])
            turns = [stored.record for stored in loaded if stored.record.session is not None]
            middle = first + (last - first) / 2
            turns.sort(key=lambda turn: abs(turn.created_at - middle))
            turns_of_days.update(turn.ref for turn in turns[:MAX_OF_A_DAY])
        return turns_of_days
