"""Search in the PostgreSQL store: candidates among memories, matches among turns, word scores.

An index finds the records that have a word, and BM25 is computed here. The words are the tokens of
`stores.words`, the same in every store. Current and ended records are two corpora, and so are
memories and turns: old versions and turns don't change how rare a word is in current memories.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memories.core.times import to_millis
from memories.stores.postgres import vectors
from memories.stores.postgres.query import FEW, Extent, Selection, extent, one_of
from memories.stores.postgres.schema import PREFIX_DIGITS
from memories.stores.postgres.schema import words as indexed
from memories.stores.postgres.transaction import Transaction, Vectors
from memories.stores.records import BESIDE, Matches, Record, TurnQuery
from memories.stores.words import K1, B, Term, WordHits, parse, rarity, tokens_of
from memories.stores.words import best as highest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Scores = dict[int, float]

# Among more records than this, only some are ranked: reading each match takes time, and very common
# words say least about a record.
_RANK_ALL = FEW
_RANK_AT_MOST = 1_500
_TOKEN_BYTES = 512  # an index takes 2,046
_INDEXED_BYTES = 900_000  # of the different tokens of one record; an index takes a megabyte


class _Corpus(NamedTuple):
    """The live records, or the ended ones, of some namespaces."""

    ended: bool
    documents: int
    mean_length: float


class _Document(NamedTuple):
    """A record that has one of the terms; `fits` is whether it matches the filter."""

    seq: int
    length: int
    tokens: str
    fits: bool


def candidates(
    db: Transaction,
    selected: Selection,
    used: Vectors | None,
    query: "NDArray[np.float32] | None",
    terms: Sequence[str],
    k: int,
) -> tuple[Scores, Scores]:
    """Return the best records by vector and by words, each with both scores if it has them.

    Args:
        db: A transaction.
        selected: The filter.
        used: The vectors; None to search by words alone.
        query: The vector, shape (dimension,), unit length; None to search by words alone.
        terms: The terms.
        k: How many records by vector, and how many by words.

    Returns:
        Cosines and word scores by seq.
    """
    there = extent(db, selected)
    similar: Scores = {}
    if query is not None and used is not None:
        similar = vectors.best(db, used, selected, there, query, k)
    words = _best_by_words(db, selected, there, terms, k, list(similar))
    if query is not None and used is not None:
        lacking = [seq for seq in words if seq not in similar]
        similar |= vectors.exact(db, used, selected, lacking, query)
    return similar, words


def indexed_tokens(record: Record) -> tuple[int, str]:
    """Return how many tokens a record has, and the tokens as the store keeps them."""
    kept = [_shorten(token) for token in tokens_of(record)]
    size, seen = 0, set[str]()
    for at, token in enumerate(kept):
        if token not in seen:
            seen.add(token)
            size += len(token.encode()) + PREFIX_DIGITS + 1
            if size > _INDEXED_BYTES:
                kept = kept[:at]
                break
    return len(kept), "".join(f" {token} " for token in kept)


def _best_by_words(
    db: Transaction,
    selected: Selection,
    there: Extent,
    terms: Sequence[str],
    k: int,
    also: Sequence[int] = (),
) -> Scores:
    """Return the `k` best records by BM25 of any of the terms, and the matching ones of `also`."""
    scores = _rank(db, selected, there, terms, also).scores
    return highest(scores, k) | {seq: scores[seq] for seq in also if seq in scores}


def _rank(
    db: Transaction,
    selected: Selection,
    there: Extent,
    terms: Sequence[str],
    also: Sequence[int] = (),
) -> WordHits:
    """Return the word scores of records; of many records, those that the rarest terms find.

    Args:
        db: A transaction.
        selected: The filter.
        there: The number of records in the namespaces.
        terms: The terms.
        also: Matching records that get a score however many others are better.
    """
    known = {
        term: found._replace(tokens=tuple(map(_shorten, found.tokens)))
        for term, found in ((term, parse(term)) for term in terms)
        if found is not None
    }
    result = WordHits({}, {})
    left_out: set[str] = set()
    few = there.matching <= _RANK_ALL
    for ended, (documents, tokens) in there.corpora.items():
        corpus = _Corpus(ended, documents, max(tokens / documents, 1e-9))
        rare, counts = _rare_terms(db, selected, corpus, known, few=few)
        left_out |= known.keys() - rare.keys()
        found = _documents(db, selected, corpus, rare, counts, also)
        for term, parts in rare.items():
            often = [document.tokens.count(_needle(parts)) for document in found]
            holding = sum(map(bool, often))
            if counts is not None:  # those that were read are not all
                share = (
                    holding * documents // max(there.matching, 1)
                    if few and counts[term] > _RANK_AT_MOST
                    else 0
                )
                holding = max(counts[term], share)
            _score(result, term, zip(found, often, strict=True), corpus, holding)
    for term in terms:
        if term not in left_out:
            result.holders.setdefault(term, [])
    return result


def _rare_terms(
    db: Transaction, selected: Selection, corpus: _Corpus, terms: dict[str, Term], *, few: bool
) -> tuple[dict[str, Term], dict[str, int] | None]:
    """Return the terms that are rare enough for ranking, and how many records have each.

    The rarest term is always returned.

    The counts are None if all records that have a term will be read. If few match, all terms are
    kept. A count stops at `_RANK_AT_MOST`, except for the only term that is left.
    """
    if corpus.documents <= _RANK_ALL or not terms:
        return terms, None
    among, values = one_of("r.namespace", selected.namespaces)
    holding = (
        f"SELECT 1 FROM record r WHERE {among} AND {indexed('r.')} @@ given.query::tsquery "
        "AND (given.phrase IS NULL OR strpos(r.tokens, given.phrase) > 0) LIMIT %s"
    )
    sql = (
        f"SELECT (SELECT count(*) FROM ({holding}) found) "
        "FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS given(query, phrase, number) ORDER BY number"
    )

    def count(counted: Mapping[str, Term], most: int | None) -> dict[str, int]:
        queries = [_query(selected, corpus, [term]) for term in counted.values()]
        phrases = [_needle(term) if len(term.tokens) > 1 else None for term in counted.values()]
        rows = db.rows(sql, (*values, most, queries, phrases))
        return {term: int(number) for term, (number,) in zip(counted, rows, strict=True)}

    counts = count(terms, _RANK_AT_MOST + 1)
    if few:
        return terms, counts
    kept: dict[str, Term] = {}
    total = 0
    for term in sorted(terms, key=counts.__getitem__):
        total += counts[term]
        if total > max(_RANK_AT_MOST, counts[term]):
            break
        kept[term] = terms[term]
    return kept, counts if max(counts[term] for term in kept) <= _RANK_AT_MOST else counts | count(
        kept, None
    )


def _documents(
    db: Transaction,
    selected: Selection,
    corpus: _Corpus,
    terms: dict[str, Term],
    counts: dict[str, int] | None,
    also: Sequence[int],
) -> list[_Document]:
    """Return the records that have one of the terms.

    Without counts, these are all records of the namespaces, so that they can be counted. With
    counts, these are the matching ones. If the only term is very common, these are the matching
    records with the highest scores, and those of `also`.
    """
    if counts is not None:
        terms = {term: parsed for term, parsed in terms.items() if counts[term]}
    if not terms:
        return []
    among, values = one_of("r.namespace", selected.namespaces)
    state = "r.ended_at IS NOT NULL" if corpus.ended else "r.ended_at IS NULL"
    query = _query(selected, corpus, list(terms.values()))
    if counts is None:
        sql = (
            f"SELECT r.seq, r.length, r.tokens, ({selected.sql}) FROM record r "
            f"WHERE {among} AND r.collection = '{selected.collection}' AND {state} AND {indexed('r.')} @@ %s::tsquery"
        )
        return [_Document(*row) for row in db.rows(sql, (*selected.values, *values, query))]
    sql = (
        f"SELECT r.seq, r.length, r.tokens, true FROM record r "
        f"WHERE {selected.sql} AND {state} AND {indexed('r.')} @@ %s::tsquery"
    )
    given = (*selected.values, query)
    extra: list[_Document] = []
    if len(terms) == 1 and max(counts[term] for term in terms) > _RANK_AT_MOST:
        (only,) = terms.values()
        often = "(octet_length(r.tokens) - octet_length(replace(r.tokens, %s, ''))) / %s::float8"
        needle = _needle(only)
        if also:
            extra = [
                _Document(*row)
                for row in db.rows(f"{sql} AND r.seq = ANY(%s::bigint[])", (*given, list(also)))
            ]
        sql += f" ORDER BY {often} / ({often} + %s * (1 - %s + %s * r.length / %s::float8)) DESC, r.seq LIMIT %s"
        size = len(needle.encode())
        given += (needle, size, needle, size, K1, B, B, corpus.mean_length, _RANK_AT_MOST)
    found = [_Document(*row) for row in db.rows(sql, given)]
    return list({document.seq: document for document in (*found, *extra)}.values())


def _score(
    result: WordHits,
    term: str,
    often: Iterable[tuple[_Document, int]],
    corpus: _Corpus,
    holding: int,
) -> None:
    """Add the score of a term, which `holding` records of the corpus have, to these records."""
    idf = rarity(corpus.documents, holding)
    holders = result.holders.setdefault(term, [])
    for document, count in often:
        if count and document.fits:
            long = 1 - B + B * document.length / corpus.mean_length
            gained = idf * count * (K1 + 1) / (count + K1 * long)
            result.scores[document.seq] = result.scores.get(document.seq, 0.0) + gained
            holders.append(document.seq)


def _query(selected: Selection, corpus: _Corpus, terms: Sequence[Term]) -> str:
    """Return the tsquery for records of the corpus that have the tokens of any of the terms."""
    queries: list[str] = []
    for namespace in selected.namespaces:
        name = f"{namespace}/{selected.collection}/{'ended' if corpus.ended else 'live'}"
        prefix = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[
            :PREFIX_DIGITS
        ]  # see `schema.words`
        for term in terms:
            quoted = (token.replace("\\", "\\\\").replace("'", "''") for token in term.tokens)
            lexemes = " & ".join(f"'{prefix}/{token}'" for token in quoted)
            queries.append(f"({lexemes}:*)" if term.open_ended else f"({lexemes})")
    return " | ".join(queries)


def _needle(term: Term) -> str:
    """Return the text that the tokens of a record contain if it has the term."""
    whole = "".join(f" {token} " for token in term.tokens)
    return whole[:-1] if term.open_ended else whole


def _shorten(token: str) -> str:
    """Return a token or, if it is too long for the index, its beginning and a hash."""
    if len(token) * 4 <= _TOKEN_BYTES or len(token.encode()) <= _TOKEN_BYTES:
        return token
    return f"{token[:64]}{hashlib.blake2b(token.encode(), digest_size=16).hexdigest()}"


_FEW = 4_096  # up to this many are all returned
_PLACE = "SELECT r.seq, r.namespace, r.grp, r.position, coalesce(r.session, -1), r.created_at, r.labels::text FROM record r"


def matches(
    db: Transaction, selected: Selection, used: Vectors | None, query: TurnQuery
) -> Matches:
    """Return all selected records if they are few, otherwise the best by words and by vector.

    Args:
        db: A transaction.
        selected: The filter.
        used: The vectors; None to search by words alone.
        query: The search.
    """
    import numpy as np

    from memories.stores.columns import matches_at, places_of

    there = extent(db, selected)
    words = _rank(db, selected, there, query.terms)
    similar: dict[int, float] = {}
    few = there.matching <= _FEW
    rows = db.rows(f"{_PLACE} WHERE {selected.sql}", selected.values) if few else []
    if used is not None and query.vector is not None:
        similar = vectors.best(
            db, used, selected, there, query.vector, max(1, len(rows)) if few else query.k
        )
    if not few:
        wanted = sorted(_best_turns(db, selected, query, words, similar))
        rows = db.rows(
            f"{_PLACE} WHERE {selected.sql} AND r.seq = ANY(%s::bigint[])",
            (*selected.values, wanted),
        )
        if used is not None and query.vector is not None:
            lacking = [row[0] for row in rows if row[0] not in similar]
            similar |= vectors.exact(db, used, selected, lacking, query.vector)
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    places = places_of(
        columns, lambda *names: names, lambda sets: [json.loads(written) for written in sets]
    )
    similarity = np.array([similar.get(seq, np.nan) for seq in columns[0]], dtype=np.float64)
    return matches_at(places, words, similarity, len(rows) if few else there.documents)


def _best_turns(
    db: Transaction,
    selected: Selection,
    query: TurnQuery,
    words: WordHits,
    similar: dict[int, float],
) -> set[int]:
    """Return the seqs of the best turns, of the turns beside them, and of the days in the query."""
    from memories.stores.columns import MAX_OF_A_DAY, leading

    among, values = one_of("m.namespace", selected.namespaces)
    sql = (
        "SELECT r.seq FROM record m JOIN record r ON r.namespace = m.namespace AND r.collection = m.collection "
        f"AND r.grp = m.grp AND r.position BETWEEN m.position - {BESIDE} AND m.position + {BESIDE} "
        f"AND r.session = m.session WHERE {among} AND m.seq = ANY(%s::bigint[]) AND {selected.sql}"
    )
    rows = db.rows(sql, (*values, leading(words.scores, similar), *selected.values))
    sql = (
        f"SELECT r.seq FROM record r WHERE {selected.sql} AND r.session IS NOT NULL "
        "AND r.created_at BETWEEN %s AND %s ORDER BY abs(r.created_at - %s) LIMIT %s"
    )
    for first, last in query.days:
        bounds = to_millis(first), to_millis(last)
        rows += db.rows(sql, (*selected.values, *bounds, sum(bounds) // 2, MAX_OF_A_DAY))
    return {*words.scores, *similar, *(seq for (seq,) in rows)}
