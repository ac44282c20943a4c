"""Word search in the PostgreSQL store: its index finds who has a word, BM25 is reckoned here.

The words are the tokens of `stores.bm25`, the same that every store sees. Records that are current and records that
ended are two corpora, and so are memories and turns: what was said once, or in passing, does not change how rare a
word is in what is said now.
"""

import hashlib
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from memories.stores import words as bm25
from memories.stores.postgres.query import FEW, Condition, Extent, one_of
from memories.stores.postgres.schema import POOL_DIGITS
from memories.stores.postgres.schema import words as indexed
from memories.stores.postgres.session import Session
from memories.stores.records import Record

Scores = dict[int, float]

# Of more records than this, only so many are ranked: reading costs time for every one that matches, and words that
# very many have tell the least.
_RANK_ALL = FEW
_RANK_AT_MOST = 1_500
_TOKEN_BYTES = 512  # an index takes 2,046
_INDEXED_BYTES = 900_000  # of the different tokens of one record; an index takes a megabyte


class Words(NamedTuple):
    """How well words match.

    Attributes:
        scores: BM25 of each record that has a term.
        holders: Which records have each of the terms that were looked for.
        searched: How many records were searched.
    """

    scores: Scores
    holders: dict[str, list[int]]
    searched: int


class _Corpus(NamedTuple):
    """The live records, or the ended ones, of some namespaces."""

    ended: bool
    documents: int
    mean_length: float


class _Document(NamedTuple):
    """A record that has one of the terms; `meant` says whether the filter lets it through."""

    seq: int
    length: int
    tokens: str
    meant: bool


def tokens_of(record: Record) -> tuple[int, str]:
    """Return how many tokens a record has, and the tokens as the store keeps them."""
    kept = [_shortened(token) for token in bm25.tokens_of(record)]
    size, seen = 0, set[str]()
    for at, token in enumerate(kept):
        if token not in seen:
            seen.add(token)
            size += len(token.encode()) + POOL_DIGITS + 1
            if size > _INDEXED_BYTES:
                kept = kept[:at]
                break
    return len(kept), "".join(f" {token} " for token in kept)


def best(
    db: Session, matching: Condition, there: Extent, terms: Sequence[str], k: int, also: Sequence[int] = ()
) -> Scores:
    """Return the `k` best records by BM25 of the terms, any of which may match, and those of `also` that match."""
    scores = ranked(db, matching, there, terms, also).scores
    found = dict(heapq.nlargest(k, scores.items(), key=lambda item: item[1]))
    return found | {seq: scores[seq] for seq in also if seq in scores}


def ranked(db: Session, matching: Condition, there: Extent, terms: Sequence[str], also: Sequence[int] = ()) -> Words:
    """Return how well the terms match; of many records, those that the rarest terms find.

    Args:
        db: A session.
        matching: Which records are meant.
        there: How much there is in their namespaces.
        terms: The terms.
        also: Records that are meant and get their score however many others match better.
    """
    parsed = {term: bm25.parse(term) for term in terms}
    known = {term: _cut(found) for term, found in parsed.items() if found is not None}
    result = Words({}, {}, there.documents)
    left_out: set[str] = set()
    few = there.meant <= _RANK_ALL
    for ended, (documents, tokens) in there.corpora.items():
        corpus = _Corpus(ended, documents, max(tokens / documents, 1e-9))
        telling, counts = _telling(db, matching, corpus, known, few=few)
        left_out |= known.keys() - telling.keys()
        found = _documents(db, matching, corpus, telling, counts, also)
        for term, parts in telling.items():
            often = [document.tokens.count(_needle(parts)) for document in found]
            holding = sum(map(bool, often))
            if counts is not None:  # those that were read are not all
                share = holding * documents // max(there.meant, 1) if few and counts[term] > _RANK_AT_MOST else 0
                holding = max(counts[term], share)
            _score(result, term, zip(found, often, strict=True), corpus, holding)
    for term in terms:
        if term not in left_out:
            result.holders.setdefault(term, [])
    return result


def _telling(
    db: Session, matching: Condition, corpus: _Corpus, terms: dict[str, bm25.Term], *, few: bool
) -> tuple[dict[str, bm25.Term], dict[str, int] | None]:
    """Return the terms that are rare enough to be ranked by, at least the rarest that is there, and how many have each.

    The counts are None where all who have a term are going to be read. Where few are meant, so can all of these be.
    A count stops behind `_RANK_AT_MOST`, but for the only term that is left.
    """
    if corpus.documents <= _RANK_ALL or not terms:
        return terms, None
    among, values = one_of("r.namespace", matching.namespaces)
    holding = (
        f"SELECT 1 FROM record r WHERE {among} AND {indexed('r.')} @@ given.query::tsquery "
        "AND (given.phrase IS NULL OR strpos(r.tokens, given.phrase) > 0) LIMIT %s"
    )
    sql = (
        f"SELECT (SELECT count(*) FROM ({holding}) found) "
        "FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS given(query, phrase, number) ORDER BY number"
    )

    def count(counted: Mapping[str, bm25.Term], most: int | None) -> dict[str, int]:
        queries = [_query(matching, corpus, [term]) for term in counted.values()]
        phrases = [_needle(term) if len(term.tokens) > 1 else None for term in counted.values()]
        rows = db.rows(sql, (*values, most, queries, phrases))
        return {term: int(number) for term, (number,) in zip(counted, rows, strict=True)}

    counts = count(terms, _RANK_AT_MOST + 1)
    if few:
        return terms, counts
    kept: dict[str, bm25.Term] = {}
    total = 0
    for term in sorted(terms, key=counts.__getitem__):
        total += counts[term]
        if total > max(_RANK_AT_MOST, counts[term]):
            break
        kept[term] = terms[term]
    return kept, counts if max(counts[term] for term in kept) <= _RANK_AT_MOST else counts | count(kept, None)


def _documents(
    db: Session,
    matching: Condition,
    corpus: _Corpus,
    terms: dict[str, bm25.Term],
    counts: dict[str, int] | None,
    also: Sequence[int],
) -> list[_Document]:
    """Return the records that have one of the terms.

    Without counts they are all that the namespaces have, so that they can be counted; else those that the filter
    means, and of a word that very many have those where it tells most, and those of `also`.
    """
    if counts is not None:
        terms = {term: parsed for term, parsed in terms.items() if counts[term]}
    if not terms:
        return []
    among, values = one_of("r.namespace", matching.namespaces)
    state = "r.ended_at IS NOT NULL" if corpus.ended else "r.ended_at IS NULL"
    query = _query(matching, corpus, list(terms.values()))
    if counts is None:
        sql = (
            f"SELECT r.seq, r.length, r.tokens, ({matching.sql}) FROM record r "
            f"WHERE {among} AND r.collection = '{matching.collection}' AND {state} AND {indexed('r.')} @@ %s::tsquery"
        )
        return [_Document(*row) for row in db.rows(sql, (*matching.values, *values, query))]
    sql = (
        f"SELECT r.seq, r.length, r.tokens, true FROM record r "
        f"WHERE {matching.sql} AND {state} AND {indexed('r.')} @@ %s::tsquery"
    )
    given = (*matching.values, query)
    extra: list[_Document] = []
    if len(terms) == 1 and max(counts[term] for term in terms) > _RANK_AT_MOST:
        (only,) = terms.values()
        often = "(octet_length(r.tokens) - octet_length(replace(r.tokens, %s, ''))) / %s::float8"
        needle = _needle(only)
        if also:
            extra = [_Document(*row) for row in db.rows(f"{sql} AND r.seq = ANY(%s::bigint[])", (*given, list(also)))]
        sql += f" ORDER BY {often} / ({often} + %s * (1 - %s + %s * r.length / %s::float8)) DESC, r.seq LIMIT %s"
        size = len(needle.encode())
        given += (needle, size, needle, size, bm25.K1, bm25.B, bm25.B, corpus.mean_length, _RANK_AT_MOST)
    found = [_Document(*row) for row in db.rows(sql, given)]
    return list({document.seq: document for document in (*found, *extra)}.values())


def _score(result: Words, term: str, often: Iterable[tuple[_Document, int]], corpus: _Corpus, holding: int) -> None:
    """Add the score of one term, which so many records of the corpus have, to those of the records that have it."""
    holding = min(holding, corpus.documents)
    idf = max(math.log((corpus.documents - holding + 0.5) / (holding + 0.5)), bm25.LEAST_IDF)
    holders = result.holders.setdefault(term, [])
    for document, count in often:
        if count and document.meant:
            long = 1 - bm25.B + bm25.B * document.length / corpus.mean_length
            gained = idf * count * (bm25.K1 + 1) / (count + bm25.K1 * long)
            result.scores[document.seq] = result.scores.get(document.seq, 0.0) + gained
            holders.append(document.seq)


def _query(matching: Condition, corpus: _Corpus, terms: Sequence[bm25.Term]) -> str:
    """Return the tsquery for records of the corpus that have the tokens of any of the terms."""
    return " | ".join(
        "(" + " & ".join(_lexeme(pool, term, at) for at in range(len(term.tokens))) + ")"
        for pool in (_pool(namespace, matching.collection, corpus.ended) for namespace in matching.namespaces)
        for term in terms
    )


def _pool(namespace: str, collection: str, ended: bool) -> str:
    """Return what the index puts before each word; see `postgres_schema.words`."""
    name = f"{namespace}/{collection}/{'ended' if ended else 'live'}"
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:POOL_DIGITS]


def _lexeme(pool: str, term: bm25.Term, at: int) -> str:
    quoted = term.tokens[at].replace("\\", "\\\\").replace("'", "''")
    beginning = ":*" if term.open_ended and at == len(term.tokens) - 1 else ""
    return f"'{pool}/{quoted}'{beginning}"


def _needle(term: bm25.Term) -> str:
    """Return what the tokens of a record that has the term contain."""
    whole = "".join(f" {token} " for token in term.tokens)
    return whole[:-1] if term.open_ended else whole


def _cut(term: bm25.Term) -> bm25.Term:
    return term._replace(tokens=tuple(map(_shortened, term.tokens)))


def _shortened(token: str) -> str:
    """Return a token, or, of one too long for the index, its beginning and what tells it from others."""
    if len(token) * 4 <= _TOKEN_BYTES or len(token.encode()) <= _TOKEN_BYTES:
        return token
    return f"{token[:64]}{hashlib.blake2b(token.encode(), digest_size=16).hexdigest()}"
