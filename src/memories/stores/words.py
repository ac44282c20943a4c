"""Words, the same for every store: the tokens that SQLite indexes, and BM25 over them."""

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

TOKENIZER = (
    "porter",
    "unicode61",
    "remove_diacritics",
    "2",
    "categories",
    "L* N* Co So M*",
)  # as in the schema
K1, B = 1.2, 0.75  # those of FTS5
# up to this many scores for each that is wanted, sorting them all is faster than a heap
_SORTED = 20
_lock = threading.Lock()
_Id = TypeVar("_Id")


class Term(NamedTuple):
    """A term of a query as tokens: one word, or several in a row.

    Attributes:
        tokens: The tokens in a row; never empty.
        open_ended: The last token is only the beginning of a word.
    """

    tokens: tuple[str, ...]
    open_ended: bool


class Corpus(NamedTuple):
    """What BM25 needs to know of all documents, including those that are not scored.

    Attributes:
        documents: How many there are.
        mean_length: How many tokens a document has on average.
        holders: For each term, how many documents have it.
    """

    documents: int
    mean_length: float
    holders: Mapping[str, int]


class WordScores(NamedTuple):
    """How well each of some documents matches.

    Attributes:
        scores: BM25 of all terms, shape (documents,); 0.0 if none matches.
        terms: The terms, as they were given.
        holds: Which document has which term, shape (terms, documents).
    """

    scores: "NDArray[np.float64]"
    terms: list[str]
    holds: "NDArray[np.bool_]"


class WordHits(NamedTuple):
    """What an index of words finds: BM25 of each record that has a term, and the records that have
    each term.
    """

    scores: dict[int, float]
    holders: dict[str, list[int]]


def tokens(text: str) -> list[str]:
    """Return the tokens of a text in order: normalized, without accents, English words reduced to
    their stems.
    """
    from memories.languages.text import (
        index_text,
    )  # its patterns take 4 ms to compile, and reading does without them

    with _lock:
        return _split()(index_text(text))


def tokens_of(record: Record) -> list[str]:
    """Return the tokens that find a record; those of a turn include the name of its speaker."""
    return tokens(spoken(record)) if record.ref.collection in SEARCHED else []


def spoken(record: Record) -> str:
    """Return the text that is indexed for a record: that of a turn begins with the name of its
    speaker.
    """
    turn = record.ref.collection is Collection.HISTORY
    return (
        f"{record.labels[SPEAKER]}: {record.text}"
        if turn and SPEAKER in record.labels
        else record.text
    )


def parse(term: str) -> Term | None:
    """Return a term of `memories.languages.text.query_terms` as tokens; None if it has none."""
    beginning = term.removesuffix("*")
    with _lock:
        found = tuple(_split()(beginning.replace("\0", " ")))
    return Term(found, open_ended=beginning not in ("", term)) if found else None


def score(
    documents: Sequence[Sequence[str]], terms: Sequence[str], corpus: Corpus | None = None
) -> WordScores:
    """Return BM25 as FTS5 computes it (Robertson and Zaragoza, 2009), with k1 = 1.2 and b = 0.75.

    Args:
        documents: The tokens of each document.
        terms: From `memories.languages.text.query_terms`.
        corpus: The whole of which the documents are a part; by default there are no others.
    """
    import numpy as np

    lengths = np.array([len(document) for document in documents], dtype=np.float64)
    total = corpus.documents if corpus else len(documents)
    mean = max(
        corpus.mean_length if corpus else float(lengths.mean()) if len(lengths) else 0.0, 1e-9
    )
    scores = np.zeros(len(documents))
    holds = np.zeros((len(terms), len(documents)), dtype=np.bool_)
    for row, term in enumerate(terms):
        parsed = parse(term)
        if parsed is None:
            continue
        often = np.array(
            [occurrences(document, parsed) for document in documents], dtype=np.float64
        )
        holds[row] = often > 0
        having = corpus.holders.get(term, 0) if corpus else int(holds[row].sum())
        scores += (
            rarity(total, having) * often * (K1 + 1) / (often + K1 * (1 - B + B * lengths / mean))
        )
    return WordScores(scores, list(terms), holds)


def rarity(documents: int, holding: int) -> float:
    """Return how much a term tells that so many of all documents have: its inverse document
    frequency, never 0.

    The one added keeps a word that most records of a small namespace have from counting nothing, as
    in Lucene.
    """
    holding = min(holding, documents)
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def occurrences(document: Sequence[str], term: Term) -> int:
    """Return how often a term occurs in a document."""
    *leading, last = term.tokens
    if not leading and not term.open_ended:
        return document.count(last)
    fits: Callable[[str], bool] = (
        (lambda token: token.startswith(last)) if term.open_ended else last.__eq__
    )
    if not leading:
        return sum(map(fits, document))
    size = len(leading)
    return sum(
        list(document[at - size : at]) == leading
        for at in range(size, len(document))
        if fits(document[at])
    )


def best(scores: Mapping[_Id, float], k: int) -> dict[_Id, float]:
    """Return the `k` highest scores, the highest first."""
    if len(scores) > _SORTED * k:
        return dict(heapq.nlargest(k, scores.items(), key=itemgetter(1)))
    return dict(sorted(scores.items(), key=itemgetter(1), reverse=True)[:k])


@functools.cache
def _split() -> Callable[[str], list[str]]:
    """Return SQLite's own tokenizer, so that every store sees the same words."""
    import apsw

    db = apsw.Connection(":memory:")
    tokenizer = db.fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))

    def split(text: str) -> list[str]:
        data = text.encode("utf-8", "replace")
        found = tokenizer(
            data, apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False
        )
        return cast("list[str]", found)

    return split
