"""Splits texts into tokens and computes BM25 scores, in the same way for every store.

A document server's candidates are scored with `score`. SQL stores keep an index of the tokens, and
compute the same scores from it with `parse`, `rarity`, `K1` and `B`.
"""

import functools
import heapq
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from memories.stores.records import SEARCHED, SPEAKER, Collection, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The FTS5 tokenizer that splits texts, and its arguments.
TOKENIZER = ("porter", "unicode61", "remove_diacritics", "2", "categories", "L* N* Co So M*")
K1, B = 1.2, 0.75  # FTS5's parameters
_MAX_SORTED = 20  # if there are at most this many scores per result, sorting all beats a heap
_lock = threading.Lock()
_Id = TypeVar("_Id")


class Term(NamedTuple):
    """The tokens of a query term: one word, or several consecutive ones.

    Attributes:
        tokens: The consecutive tokens; never empty.
        open_ended: Whether the last token is only the beginning of a word.
    """

    tokens: tuple[str, ...]
    open_ended: bool


class Corpus(NamedTuple):
    """The statistics that BM25 needs about all documents, including those that aren't scored.

    Attributes:
        documents: The number of documents.
        mean_length: The average number of tokens in a document.
        holders: For each term, the number of documents that contain it.
    """

    documents: int
    mean_length: float
    holders: Mapping[str, int]


class WordScores(NamedTuple):
    """How well each of several documents matches a query's words.

    Attributes:
        scores: BM25 of all terms, shape (documents,); 0.0 if no term matches.
        terms: The terms, as passed in.
        holds: Whether a document contains a term, shape (terms, documents).
    """

    scores: "NDArray[np.float64]"
    terms: list[str]
    holds: "NDArray[np.bool_]"


class WordHits(NamedTuple):
    """The hits in a word index: BM25 scores keyed by `seq`, and each term's records."""

    scores: dict[int, float]
    holders: dict[str, list[int]]


def tokens(text: str) -> list[str]:
    """Return a text's tokens in order: normalized, without accents, English words stemmed."""
    # Imported here because compiling its patterns takes 4 ms, and reading doesn't need them.
    from memories.languages.text import index_text

    with _lock:
        return _tokenizer()(index_text(text))


def tokens_of(record: Record) -> list[str]:
    """Return the tokens by which a record is found; none for a log record."""
    if record.ref.collection in SEARCHED:
        return tokens(indexed_text(record))
    return []


def indexed_text(record: Record) -> str:
    """Return a record's indexed text; a turn's text begins with its speaker's name."""
    if record.ref.collection is Collection.HISTORY and SPEAKER in record.labels:
        return f"{record.labels[SPEAKER]}: {record.text}"
    return record.text


def parse(term: str) -> Term | None:
    """Split a term of `languages.text.query_terms` into tokens; return None if it has none."""
    text = term.removesuffix("*")
    with _lock:
        term_tokens = tuple(_tokenizer()(text.replace("\0", " ")))
    if not term_tokens:
        return None
    return Term(term_tokens, open_ended=text not in ("", term))


def score(
    documents: Sequence[Sequence[str]], terms: Sequence[str], corpus: Corpus | None = None
) -> WordScores:
    """Return BM25 scores (Robertson and Zaragoza, 2009), with FTS5's k1 = 1.2 and b = 0.75.

    Args:
        documents: The tokens of each document.
        terms: From `memories.languages.text.query_terms`.
        corpus: Statistics about all documents, if `documents` is only part of them.
    """
    import numpy as np

    lengths = np.array([len(document) for document in documents], dtype=np.float64)
    total, mean = len(documents), 0.0
    if corpus is not None:
        total, mean = corpus.documents, corpus.mean_length
    elif documents:
        mean = float(lengths.mean())
    length_factor = K1 * (1 - B + B * lengths / max(mean, 1e-9))
    scores = np.zeros(len(documents))
    holds = np.zeros((len(terms), len(documents)), dtype=np.bool_)
    for row, term in enumerate(terms):
        parsed = parse(term)
        if parsed is None:
            continue
        counts = np.array(
            [occurrences(document, parsed) for document in documents], dtype=np.float64
        )
        holds[row] = counts > 0
        holders = int(holds[row].sum())
        if corpus:
            holders = corpus.holders.get(term, 0)
        scores += rarity(total, holders) * counts * (K1 + 1) / (counts + length_factor)
    return WordScores(scores, list(terms), holds)


def rarity(documents: int, holders: int) -> float:
    """Return the inverse document frequency of a term that `holders` of the documents contain.

    As in Lucene, adding one keeps the result above 0 even for a term that most documents contain.
    """
    holders = min(holders, documents)
    return math.log(1 + (documents - holders + 0.5) / (holders + 0.5))


def occurrences(document: Sequence[str], term: Term) -> int:
    """Return how often a term occurs in a document."""
    *leading, last = term.tokens
    if not leading:
        if not term.open_ended:
            return document.count(last)
        return sum(token.startswith(last) for token in document)
    count = 0
    for end in range(len(leading), len(document)):
        token = document[end]
        fits = token.startswith(last) if term.open_ended else token == last
        if fits and list(document[end - len(leading) : end]) == leading:
            count += 1
    return count


def highest(scores: Mapping[_Id, float], k: int) -> dict[_Id, float]:
    """Return the `k` highest scores, in descending order."""
    if len(scores) > _MAX_SORTED * k:
        return dict(heapq.nlargest(k, scores.items(), key=itemgetter(1)))
    return dict(sorted(scores.items(), key=itemgetter(1), reverse=True)[:k])


@functools.cache
def _tokenizer() -> Callable[[str], list[str]]:
    """Return SQLite's own tokenizer, so that every store splits texts into the same words."""
    import apsw

    db = apsw.Connection(":memory:")
    tokenizer = db.fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))

    def tokenize(text: str) -> list[str]:
        data = text.encode("utf-8", "replace")
        result = tokenizer(
            data, apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False
        )
        return cast("list[str]", result)

    return tokenize
