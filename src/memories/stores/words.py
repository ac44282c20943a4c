"""Words for stores without a word index of their own: the tokens that SQLite indexes, and BM25 over them."""

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from memories.stores.records import SPEAKER, Collection, Record
from memories.text import index_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOKENIZER = ("porter", "unicode61", "remove_diacritics", "2", "categories", "L* N* Co So M*")  # as in the schema
K1, B = 1.2, 0.75  # those of FTS5
LEAST_IDF = 1e-6
_lock = threading.Lock()


class Term(NamedTuple):
    """A term of a query as tokens: one word, or several that must follow each other.

    Attributes:
        tokens: What must follow each other; never empty.
        open_ended: The last token is only the beginning of a word.
    """

    tokens: tuple[str, ...]
    open_ended: bool


class Corpus(NamedTuple):
    """What BM25 has to know of all documents, of which those that are scored are a part.

    Attributes:
        documents: How many there are.
        mean_length: How many tokens one has on average.
        holders: For each term, how many documents have it.
    """

    documents: int
    mean_length: float
    holders: Mapping[str, int]


class Words(NamedTuple):
    """How well words match.

    Attributes:
        scores: BM25 of all terms, shape (documents,); 0.0 where none matches.
        terms: The terms, as they were given.
        holds: Which document has which term, shape (terms, documents).
    """

    scores: "NDArray[np.float64]"
    terms: list[str]
    holds: "NDArray[np.bool_]"


def tokens(text: str) -> list[str]:
    """Return the tokens of a text, in order: of its normal form, without accents, English endings taken off."""
    with _lock:
        return _split()(index_text(text))


def tokens_of(record: Record) -> list[str]:
    """Return the tokens that a record is found by; the name of its speaker is among those of a turn."""
    return tokens(spoken(record))


def spoken(record: Record) -> str:
    """Return the text that a record is indexed by: a turn's begins with the name of its speaker."""
    turn = record.ref.collection is Collection.HISTORY
    return f"{record.labels[SPEAKER]}: {record.text}" if turn and SPEAKER in record.labels else record.text


def parse(term: str) -> Term | None:
    """Return a term of `memories.text.query_terms` as tokens; None if it has none."""
    beginning = term.removesuffix("*")
    with _lock:
        found = tuple(_split()(beginning.replace("\0", " ")))
    return Term(found, open_ended=beginning not in ("", term)) if found else None


def score(documents: Sequence[Sequence[str]], terms: Sequence[str], corpus: Corpus | None = None) -> Words:
    """Return BM25 as FTS5 computes it (Robertson and Zaragoza, 2009), with k1 = 1.2 and b = 0.75.

    Args:
        documents: The tokens of each document.
        terms: From `memories.text.query_terms`.
        corpus: What the documents are a part of; by default they are all that there is.
    """
    import numpy as np

    lengths = np.array([len(document) for document in documents], dtype=np.float64)
    total = corpus.documents if corpus else len(documents)
    mean = max(corpus.mean_length if corpus else float(lengths.mean()) if len(lengths) else 0.0, 1e-9)
    scores = np.zeros(len(documents))
    holds = np.zeros((len(terms), len(documents)), dtype=np.bool_)
    for row, term in enumerate(terms):
        parsed = parse(term)
        if parsed is None:
            continue
        often = np.array([occurrences(document, parsed) for document in documents], dtype=np.float64)
        holds[row] = often > 0
        having = corpus.holders.get(term, 0) if corpus else int(holds[row].sum())
        idf = max(math.log((total - having + 0.5) / (having + 0.5)) if total >= having else 0.0, LEAST_IDF)
        scores += idf * often * (K1 + 1) / (often + K1 * (1 - B + B * lengths / mean))
    return Words(scores, list(terms), holds)


def occurrences(document: Sequence[str], term: Term) -> int:
    """Return how often a document has a term."""
    *leading, last = term.tokens
    if not leading and not term.open_ended:
        return document.count(last)
    fits: Callable[[str], bool] = (lambda token: token.startswith(last)) if term.open_ended else last.__eq__
    if not leading:
        return sum(map(fits, document))
    size = len(leading)
    return sum(list(document[at - size : at]) == leading for at in range(size, len(document)) if fits(document[at]))


@functools.cache
def _split() -> Callable[[str], list[str]]:
    """Return SQLite's own tokenizer, so that every store sees the same words."""
    import apsw

    db = apsw.Connection(":memory:")
    tokenizer = db.fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))

    def split(text: str) -> list[str]:
        data = text.encode("utf-8", "replace")
        found = tokenizer(data, apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False)
        return cast("list[str]", found)

    return split
