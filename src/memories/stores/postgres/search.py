"""Search in the PostgreSQL store: candidates among memories, matches among turns, word scores.

An index finds the records that contain a word, and this module computes their BM25 scores. The
words are the tokens of `stores.words`, as in every store. Live and ended records have separate
statistics, and so have memories and turns. So old versions and turns don't affect how rare a word
is in live memories.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from memories.core.times import to_millis
from memories.stores.postgres import vectors
from memories.stores.postgres.query import FEW, Extent, Selection, Transaction, one_of, read_extent
from memories.stores.postgres.schema import PREFIX_DIGITS
from memories.stores.postgres.schema import words as indexed
from memories.stores.postgres.vectors import Probe
from memories.stores.records import BESIDE, Matches, Record, TurnQuery
from memories.stores.words import K1, B, Term, WordHits, highest, parse, rarity, tokens_of

Scores = dict[int, float]

# If there are more records than this, only those with the rarer words are ranked: reading each
# match takes time, and very common words say little about a record.
_RANK_ALL = FEW
_RANK_AT_MOST = 1_500
_TOKEN_BYTES = 512  # maximum size of a token; PostgreSQL allows 2,046 bytes
_INDEXED_BYTES = 900_000  # maximum size of a record's distinct tokens; PostgreSQL allows 1 MB


class _Corpus(NamedTuple):
    """Statistics of the live records, or of the ended ones, in some namespaces."""

    ended: bool
    documents: int
    mean_length: float


class _Document(NamedTuple):
    """A record that contains one of the terms; `fits` says whether it matches the filter."""

    seq: int
    length: int
    tokens: str
    fits: bool


def candidates(
    db: Transaction,
    selected: Selection,
    probe: Probe | None,
    terms: Sequence[str],
    k: int,
) -> tuple[Scores, Scores]:
    """Return the scores of the best records by vector and by words.

    Args:
        db: A transaction.
        selected: The filter.
        probe: The query's vector; None to search by words only.
        terms: The terms.
        k: The number of records to find by vector, and the number to find by words.

    Returns:
        Cosines and word scores, keyed by the records' `seq`.
    """
    extent = read_extent(db, selected)
    cosines = vectors.find_best(db, probe, selected, extent, k)
    # The word scores of the best records, and of those records in `cosines` that contain a word.
    scores = _search_words(db, selected, extent, terms, list(cosines)).scores
    words = highest(scores, k) | {seq: scores[seq] for seq in cosines if seq in scores}
    lacking = [seq for seq in words if seq not in cosines]
    cosines |= vectors.score_exactly(db, probe, selected, lacking)
    return cosines, words


def indexed_tokens(record: Record) -> tuple[int, str]:
    """Return the number of a record's tokens, and the tokens as the store keeps them."""
    tokens: list[str] = []
    different: set[str] = set()
    size = 0
    for token in map(_shorten, tokens_of(record)):
        if token not in different:
            different.add(token)
            size += len(token.encode()) + PREFIX_DIGITS + 1
            if size > _INDEXED_BYTES:
                break
        tokens.append(token)
    return len(tokens), "".join(f" {token} " for token in tokens)


def _search_words(
    db: Transaction,
    selected: Selection,
    extent: Extent,
    terms: Sequence[str],
    also: Sequence[int] = (),
) -> WordHits:
    """Return the records that contain terms; if there are many, only those with the rarest terms.

    Args:
        db: A transaction.
        selected: The filter.
        extent: The number of records in the namespaces.
        terms: The terms.
        also: Matching records that get a score even if many others are better.
    """
    parsed_terms: dict[str, Term] = {}
    for term in terms:
        parsed = parse(term)
        if parsed is not None:
            parsed_terms[term] = parsed._replace(tokens=tuple(map(_shorten, parsed.tokens)))
    result = WordHits({}, {})
    left_out: set[str] = set()
    few = extent.matching <= _RANK_ALL
    for ended, (documents, tokens) in extent.corpora.items():
        corpus = _Corpus(ended, documents, max(tokens / documents, 1e-9))
        rare, counts = _rare_terms(db, selected, corpus, parsed_terms, few=few)
        left_out |= parsed_terms.keys() - rare.keys()
        records = _documents(db, selected, corpus, rare, counts, also)
        for term, parsed in rare.items():
            needle = _needle(parsed)
            occurrences = [document.tokens.count(needle) for document in records]
            holding = len(records) - occurrences.count(0)
            if counts is not None:  # some records that contain the term weren't read
                if few and counts[term] > _RANK_AT_MOST:
                    # Only matching records were read, so estimate how many of all records contain
                    # the term.
                    holding = holding * documents // max(extent.matching, 1)
                    holding = max(holding, counts[term])
                else:
                    holding = counts[term]
            _score(result, term, zip(records, occurrences, strict=True), corpus, holding)
    for term in terms:
        if term not in left_out:
            result.holders.setdefault(term, [])
    return result


def _rare_terms(
    db: Transaction, selected: Selection, corpus: _Corpus, terms: dict[str, Term], *, few: bool
) -> tuple[dict[str, Term], dict[str, int] | None]:
    """Return the terms that are rare enough for ranking, and how many records contain each.

    If few records match the filter, all terms are returned; otherwise at least the rarest is.
    Counting stops just above `_RANK_AT_MOST`, unless the only remaining term is that common. The
    counts are None if they aren't needed, because all records that contain a term will be read.
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
        "FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS given(query, phrase, number) "
        "ORDER BY number"
    )

    def count(counted: Mapping[str, Term], most: int | None) -> dict[str, int]:
        queries = [_query(selected, corpus, [term]) for term in counted.values()]
        phrases = [_needle(term) if len(term.tokens) > 1 else None for term in counted.values()]
        rows = db.rows(sql, (*values, most, queries, phrases))
        return {term: int(number) for term, (number,) in zip(counted, rows, strict=True)}

    counts = count(terms, _RANK_AT_MOST + 1)
    if few:
        return terms, counts
    rare: dict[str, Term] = {}
    total = 0
    for term in sorted(terms, key=counts.__getitem__):
        total += counts[term]
        if total > max(_RANK_AT_MOST, counts[term]):
            break
        rare[term] = terms[term]
    if any(counts[term] > _RANK_AT_MOST for term in rare):
        counts |= count(rare, None)
    return rare, counts


def _documents(
    db: Transaction,
    selected: Selection,
    corpus: _Corpus,
    terms: dict[str, Term],
    counts: dict[str, int] | None,
    also: Sequence[int],
) -> list[_Document]:
    """Return the records that contain any of the terms.

    Without counts, these are all such records in the namespaces, so that they can be counted. With
    counts, only matching records are returned; for a single, very common term, only those with the
    highest scores and those in `also`.
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
            f"WHERE {among} AND r.collection = '{selected.collection}' AND {state} "
            f"AND {indexed('r.')} @@ %s::tsquery"
        )
        rows = db.rows(sql, (*selected.values, *values, query))
        return [_Document(*row) for row in rows]
    sql = (
        f"SELECT r.seq, r.length, r.tokens, true FROM record r "
        f"WHERE {selected.sql} AND {state} AND {indexed('r.')} @@ %s::tsquery"
    )
    sql_values = (*selected.values, query)
    more_rows = []
    only_term = next(iter(terms))
    if len(terms) == 1 and counts[only_term] > _RANK_AT_MOST:
        if also:
            more_rows = db.rows(f"{sql} AND r.seq = ANY(%s::bigint[])", (*sql_values, list(also)))
        count = "(octet_length(r.tokens) - octet_length(replace(r.tokens, %s, ''))) / %s::float8"
        length = "(1 - %s + %s * r.length / %s::float8)"
        sql += f" ORDER BY {count} / ({count} + %s * {length}) DESC, r.seq LIMIT %s"
        needle = _needle(terms[only_term])
        size = len(needle.encode())
        sql_values += (needle, size, needle, size, K1, B, B, corpus.mean_length, _RANK_AT_MOST)
    rows = db.rows(sql, sql_values) + more_rows
    documents = {row[0]: _Document(*row) for row in rows}
    return list(documents.values())


def _score(
    result: WordHits,
    term: str,
    occurrences: Iterable[tuple[_Document, int]],
    corpus: _Corpus,
    holding: int,
) -> None:
    """Add a term's score to the matching records; `holding` records contain the term."""
    idf = rarity(corpus.documents, holding)
    holders = result.holders.setdefault(term, [])
    for document, count in occurrences:
        if count and document.fits:
            length = 1 - B + B * document.length / corpus.mean_length
            score = idf * count * (K1 + 1) / (count + K1 * length)
            result.scores[document.seq] = result.scores.get(document.seq, 0.0) + score
            holders.append(document.seq)


def _query(selected: Selection, corpus: _Corpus, terms: Sequence[Term]) -> str:
    """Return the tsquery that finds the records with all tokens of at least one of the terms."""
    queries: list[str] = []
    for namespace in selected.namespaces:
        name = f"{namespace}/{selected.collection}/{'ended' if corpus.ended else 'live'}"
        digest = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
        prefix = digest[:PREFIX_DIGITS]  # see `schema.words`
        for term in terms:
            lexemes: list[str] = []
            for token in term.tokens:
                quoted = token.replace("\\", "\\\\").replace("'", "''")
                lexemes.append(f"'{prefix}/{quoted}'")
            end = ":*" if term.open_ended else ""
            queries.append(f"({' & '.join(lexemes)}{end})")
    return " | ".join(queries)


def _needle(term: Term) -> str:
    """Return the term as it appears in the tokens of a record that contains it."""
    whole = "".join(f" {token} " for token in term.tokens)
    return whole[:-1] if term.open_ended else whole


def _shorten(token: str) -> str:
    """Return a token or, if it is too long for the index, its beginning and a hash."""
    if len(token) * 4 <= _TOKEN_BYTES or len(token.encode()) <= _TOKEN_BYTES:
        return token
    return f"{token[:64]}{hashlib.blake2b(token.encode(), digest_size=16).hexdigest()}"


_RETURN_ALL = 4_096  # if at most this many turns match, all of them are returned
_ADDRESS = (
    "SELECT r.seq, r.namespace, r.grp, r.position, coalesce(r.session, -1), r.created_at, "
    "r.labels::text FROM record r"
)


def matches(db: Transaction, selected: Selection, probe: Probe | None, query: TurnQuery) -> Matches:
    """Return all selected records if there are few, otherwise the best by words and by vector.

    Args:
        db: A transaction.
        selected: The filter.
        probe: The query's vector; None to search by words only.
        query: The search.
    """
    import numpy as np

    from memories.stores.matches import addresses_of, matches_at

    extent = read_extent(db, selected)
    words = _search_words(db, selected, extent, query.terms)
    sql = f"{_ADDRESS} WHERE {selected.sql}"
    if extent.matching <= _RETURN_ALL:
        rows = db.rows(sql, selected.values)
        searched_count = len(rows)
        cosines = vectors.find_best(db, probe, selected, extent, max(1, len(rows)))
    else:
        searched_count = extent.documents
        cosines = vectors.find_best(db, probe, selected, extent, query.k)
        seqs = sorted(_best_turns(db, selected, query, words, cosines))
        rows = db.rows(f"{sql} AND r.seq = ANY(%s::bigint[])", (*selected.values, seqs))
        lacking = [row[0] for row in rows if row[0] not in cosines]
        cosines |= vectors.score_exactly(db, probe, selected, lacking)
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    addresses = addresses_of(
        columns, lambda *names: names, lambda texts: [json.loads(text) for text in texts]
    )
    column = [cosines.get(seq, np.nan) for seq in columns[0]]
    return matches_at(addresses, words, np.array(column, dtype=np.float64), searched_count)


def _best_turns(
    db: Transaction,
    selected: Selection,
    query: TurnQuery,
    words: WordHits,
    cosines: Scores,
) -> set[int]:
    """Return the `seq` of each candidate: the best turns, the turns next to them, and turns from
    days that the query mentions.
    """
    from memories.stores.matches import MAX_OF_A_DAY, leading

    among, values = one_of("m.namespace", selected.namespaces)
    sql = (
        "SELECT r.seq FROM record m "
        "JOIN record r ON r.namespace = m.namespace AND r.collection = m.collection "
        f"AND r.grp = m.grp AND r.position BETWEEN m.position - {BESIDE} AND m.position + {BESIDE} "
        f"AND r.session = m.session WHERE {among} AND m.seq = ANY(%s::bigint[]) AND {selected.sql}"
    )
    rows = db.rows(sql, (*values, leading(words.scores, cosines), *selected.values))
    sql = (
        f"SELECT r.seq FROM record r WHERE {selected.sql} AND r.session IS NOT NULL "
        "AND r.created_at BETWEEN %s AND %s ORDER BY abs(r.created_at - %s) LIMIT %s"
    )
    for first, last in query.days:
        bounds = to_millis(first), to_millis(last)
        rows += db.rows(sql, (*selected.values, *bounds, sum(bounds) // 2, MAX_OF_A_DAY))
    seqs = {*words.scores, *cosines}
    seqs.update(seq for (seq,) in rows)
    return seqs
