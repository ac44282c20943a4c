"""Brute force over the records of files: BM25 of all words, cosines of all vectors."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memories.stores import words as bm25
from memories.stores.files.pool import WORDS, Entry, Pool
from memories.stores.records import Filter

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Texts(NamedTuple):
    """The words of all records, one after the other.

    Attributes:
        words: Their numbers, shape (words,).
        owner: Which record each is in, shape (words,).
        lengths: How many words each record has, shape (records,).
        ended: Which records have ended, shape (records,).
    """

    words: "NDArray[np.int32]"
    owner: "NDArray[np.int64]"
    lengths: "NDArray[np.int64]"
    ended: "NDArray[np.bool_]"


def words_of(pools: Sequence[Pool], where: Filter, entries: Sequence[Entry], terms: Sequence[str]) -> bm25.WordScores:
    """Return how well words match some of the records of these pools, by BM25 (Robertson and Zaragoza, 2009).

    How rare a word is follows from what is current, and for what has ended from what has ended: what was said once does
    not change how rare a word is in what is said now.

    Args:
        pools: All records of the namespaces.
        where: Which of them are meant.
        entries: Those that are meant.
        terms: See `Store.candidates`.
    """
    every = [entry for pool in pools for entry in pool.entries.values()]
    scores = np.zeros(len(every))
    holds = np.zeros((len(terms), len(every)), dtype=np.bool_)
    if every and terms:
        texts = _texts(every)
        often = np.stack([_occurrences(texts, term) for term in terms])
        holds = often > 0
        also_ended = where.as_of is not None or where.state != "live"
        for among in (~texts.ended, texts.ended) if also_ended else (~texts.ended,):
            scores[among] = _bm25(often[:, among], texts.lengths[among])
    if len(entries) == len(every):
        return bm25.WordScores(scores, list(terms), holds)
    numbers = {id(entry): number for number, entry in enumerate(every)}
    rows = np.array([numbers[id(entry)] for entry in entries], dtype=np.int64)
    return bm25.WordScores(scores[rows], list(terms), holds[:, rows])


def _texts(entries: Sequence[Entry]) -> _Texts:
    lengths = np.array([len(entry.words) for entry in entries], dtype=np.int64)
    return _Texts(
        words=np.frombuffer(b"".join([entry.words.tobytes() for entry in entries]), dtype=np.intc),
        owner=np.repeat(np.arange(len(entries)), lengths),
        lengths=lengths,
        ended=np.array([entry.record.ended_at is not None for entry in entries], dtype=np.bool_),
    )


def _occurrences(texts: _Texts, term: str) -> "NDArray[np.int64]":
    """Return how often each record has a term, shape (records,)."""
    parsed = bm25.parse(term)
    if parsed is None:
        return np.zeros(len(texts.lengths), dtype=np.int64)
    *leading, last = parsed.tokens
    ends = _is_last(texts.words, last, open_ended=parsed.open_ended)
    at = np.flatnonzero(ends)
    for back, word in enumerate(reversed(leading), 1):
        at = at[at >= back]
        at = at[(texts.words[at - back] == WORDS.get(word, -1)) & (texts.owner[at - back] == texts.owner[at])]
    return np.bincount(texts.owner[at], minlength=len(texts.lengths))


def _is_last(words: "NDArray[np.int32]", last: str, *, open_ended: bool) -> "NDArray[np.bool_]":
    wanted = [number for word, number in list(WORDS.items()) if word.startswith(last)] if open_ended else None
    found: NDArray[np.bool_] = words == WORDS.get(last, -1) if wanted is None else np.isin(words, wanted)
    return found


def _bm25(often: "NDArray[np.int64]", lengths: "NDArray[np.int64]") -> "NDArray[np.float64]":
    """Return the score of each document, given how often it has each term, shape (terms, documents)."""
    total = len(lengths)
    scores = np.zeros(total)
    mean = max(float(lengths.mean()) if total else 0.0, 1e-9)
    norm = bm25.K1 * (1 - bm25.B + bm25.B * lengths / mean)
    for counts in often:
        having = int((counts > 0).sum())
        idf = max(math.log((total - having + 0.5) / (having + 0.5)), bm25.LEAST_IDF)
        scores += idf * counts * (bm25.K1 + 1) / (counts + norm)
    return scores


def best(scores: "NDArray[np.float64]", k: int) -> list[int]:
    """Return the rows of the `k` largest scores; NaN is none."""
    rows = np.flatnonzero(~np.isnan(scores))
    if len(rows) > k:
        rows = rows[np.argpartition(-scores[rows], k - 1)[:k]] if k > 0 else rows[:0]
    return [int(row) for row in rows]
