"""Word search in the SQLite store: FTS5 finds records by word, and this module computes BM25.

The words are the tokens of `stores.words`, as in every store. There are three tables: for live
memories, for live turns, and for ended records. In each table, every namespace has tokens of its
own (`rows.prefix_tokens`), and the table `corpus` counts each namespace's records and tokens. So
other namespaces affect neither scores nor the duration of a search, and old versions and turns
don't affect how rare a word is in live memories.
"""

import array
import contextlib
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import apsw

from memories.core.batches import by_count
from memories.stores.damage import Damaged
from memories.stores.records import Record
from memories.stores.sqlite.errors import WordsDamaged
from memories.stores.sqlite.query import ReadCache, Selection, may_write, read_pages, select_seqs
from memories.stores.sqlite.rows import (
    WORD_TABLES,
    WORDS,
    WORDS_ENDED,
    WORDS_EPOCH,
    fetch,
    fetch_value,
    prefix_tokens,
    varints_in,
    view_of,
)
from memories.stores.words import K1, B, Term, WordHits, highest, parse, rarity, tokens_of

_MAX_TOKENS = 2**32
_MAX_COUNTS = 2_000  # maximum number of term counts cached for each connection
# a `seq` that exceeds the known ones by more than this is checked, because it may be damaged
_MAX_GAP = 1_000_000
# In namespaces with more records than this, a search leaves out words that very many records
# contain. Ranking each matching record takes time, and such words say the least about a record.
_RANK_ALL_ROWS = 10_000
_RANK_AT_MOST = 1_500
_PHRASE_TOKENS = 64
# a filter is first applied to the best hits: this many times `k`
_SURPLUS = 4
# If a label has at most this many records, they are listed; otherwise, each match is checked.
_MAX_COLLECTED = 4_096
_MAX_SPREAD = 4  # a range is read completely if it has at most this many rows per wanted record

SEGMENT_SHIFT = 37  # a page's id, without its lowest 37 bits, is the number of its segment

Scores = dict[int, float]


# --- the index, as a search sees it


class Postings:
    """Cache for one store file: how many records contain a term, and how many tokens a record has.

    Counts of records are valid until any connection commits. A record's number of tokens never
    changes, except by a repair. A transaction that may write doesn't fill the cache, because its
    changes may be rolled back.
    """

    def __init__(self) -> None:
        self._counts: ReadCache[tuple[str, str, int], int] = ReadCache(_MAX_COUNTS)
        self._sizes: tuple[int | None, array.array[int]] = None, array.array("I")

    def snapshot(self, db: apsw.Connection) -> "Snapshot":
        """Return the index as a connection's transaction sees it, with the valid cached values."""
        cached_epoch, sizes = self._sizes
        epoch = fetch_value(db, "SELECT value FROM meta WHERE name = ?", (WORDS_EPOCH,))
        is_writing = may_write(db)
        if epoch != cached_epoch or is_writing:
            sizes = array.array("I")
            if not is_writing:
                self._sizes = epoch, sizes
        return Snapshot(db, self._counts.current(db), sizes)


class Snapshot(NamedTuple):
    """The word index in one transaction.

    Attributes:
        db: A connection inside a transaction.
        counts: How many records match, keyed by table, FTS5 query and limit.
        sizes: The number of tokens in each record, keyed by `seq`; 0 if unknown.
    """

    db: apsw.Connection
    counts: dict[tuple[str, str, int], int]
    sizes: "array.array[int]"

    def count_holders(self, table: str, match: str, tokens: Sequence[str], limit: int) -> int:
        """Return how many records contain a term.

        Args:
            table: The index.
            match: The term's FTS5 query.
            tokens: If the term is one complete token, that token as each namespace stores it;
                counting tokens takes half the time. Empty for other terms.
            limit: The number at which counting stops; -1 for no limit.
        """
        key = table, match, limit
        count = self.counts.get(key)
        if count is None:
            if tokens and limit < 0:
                sql = f"SELECT coalesce(sum(doc), 0) FROM {view_of(table, 'row')} WHERE term = ?"
                count = sum(int(fetch_value(self.db, sql, (token,))) for token in tokens)
            else:
                sql = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)"
                count = int(fetch_value(self.db, sql, (match, limit)))
            self.counts[key] = count
        return count

    def count_occurrences(
        self, table: str, tokens: Sequence[str], condition: str, values: Sequence[str | int]
    ) -> dict[int, int]:
        """Return how often each record contains a token, keyed by `seq`, in ascending order.

        FTS5's instance table contains one row for each occurrence, and SQLite reads it without
        calling Python.

        Args:
            table: The index.
            tokens: The token as each namespace stores it.
            condition: A SQL condition on `doc`, the record's `seq`; it begins with AND, or is
                empty.
            values: The condition's SQL values.
        """
        sql = (
            f"SELECT group_concat(doc) FROM (SELECT doc FROM {view_of(table, 'instance')} "
            f"WHERE term = ?{condition})"
        )
        seqs: list[int] = []
        for token in tokens:
            listed = fetch_value(self.db, sql, (token, *values))
            if listed is not None:
                seqs += map(int, listed.split(","))
        if len(tokens) > 1:
            seqs.sort()
        return Counter(seqs)

    def load_sizes(self, table: str, seqs: Iterable[int]) -> None:
        """Look up the number of tokens in each of these records, unless it is already known."""
        sizes = self.sizes
        length = len(sizes)
        unknown_record = apsw.CorruptError(f"fts5: {table} has a row without a record")
        try:
            missing = [seq for seq in seqs if seq >= length or not sizes[seq]]
        except IndexError:
            raise unknown_record from None
        if not missing:
            return
        last = max(missing)
        if min(missing) < 0:
            raise unknown_record
        is_far = last > length + _MAX_GAP
        if is_far and last > int(fetch_value(self.db, "SELECT max(seq) FROM record") or 0):
            raise unknown_record
        sql = (
            f"SELECT d.id, d.sz FROM json_each(?) wanted "
            f"CROSS JOIN {table}_docsize d ON d.id = wanted.value"
        )
        rows = fetch(self.db, sql, (json.dumps(missing),))
        if last >= length:
            new_length = last + last // 8 + 1
            sizes.frombytes(bytes(sizes.itemsize * (new_length - length)))
        for seq, size in rows:
            sizes[seq] = count_tokens(size)


@functools.lru_cache(4096)
def count_tokens(size: bytes) -> int:
    """Return a row's number of tokens, given its entry in FTS5's size table; 0 if damaged."""
    if type(size) is not bytes:
        return 0
    count = next(varints_in(size), 0)
    return count if count < _MAX_TOKENS else 0


@contextlib.contextmanager
def _words_errors(db: apsw.Connection) -> Iterator[None]:
    """Report SQLite's errors as damage to the index; use this only around statements on it."""
    try:
        yield
    except (apsw.CorruptError, apsw.SQLError, apsw.ConstraintError) as exc:
        raise WordsDamaged(db.filename, exc) from None


# --- writing


def insert(db: apsw.Connection, rows: Sequence[tuple[int, int, Record]]) -> None:
    """Index the words of records, each given with its `seq` and the id of its namespace."""
    texts: dict[str, list[tuple[int, str]]] = {}
    documents: Counter[tuple[int, bool]] = Counter()
    lengths: Counter[tuple[int, bool]] = Counter()
    for seq, pool, record in rows:
        if record.ref.collection in WORDS:
            tokens = tokens_of(record)
            has_ended = record.ended_at is not None
            table = WORDS_ENDED if has_ended else WORDS[record.ref.collection]
            texts.setdefault(table, []).append((seq, prefix_tokens(pool, tokens)))
            documents[pool, has_ended] += 1
            lengths[pool, has_ended] += len(tokens)
    with _words_errors(db):
        for table, table_texts in texts.items():
            db.executemany(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", table_texts)
        for (pool, has_ended), count in documents.items():
            _change_corpus(db, pool, count, lengths[pool, has_ended], ended=has_ended)


def insert_all(db: apsw.Connection, target: apsw.Connection) -> None:
    """Index the words of all intact records in `db` in the empty index of `target`."""
    rows = fetch(db, "SELECT id, collection, namespace FROM pool")
    pools = {tuple(names): pool for pool, *names in rows}
    for page in read_pages(db, Damaged()):
        intact = [(seq, record) for seq, record in page.items() if record is not None]
        insert(target, [(seq, pools[record.ref[:2]], record) for seq, record in intact])


def remove(db: apsw.Connection, rows: Iterable[tuple[int, Record | None]]) -> None:
    """Erase records' words from the index, so that its pages contain no byte of them.

    Args:
        db: A connection in a transaction.
        rows: Records, each with its `seq`. None stands for a damaged record; its words are
            collected from the entire index.
    """
    rows = list(rows)
    with _words_errors(db):
        for table in WORD_TABLES:
            erased: set[str] = set()
            for seq, record in rows:
                erased.update(_remove_row(db, table, seq, record))
            if erased:
                db.execute(f"INSERT INTO {table} ({table}) VALUES ('flush')")
                _erase_copies(db, table, erased)


def _remove_row(db: apsw.Connection, table: str, seq: int, record: Record | None) -> list[str]:
    """Remove a record's row from one table, if the table has one; return the row's tokens."""
    sql = f"SELECT r.pool, d.sz FROM {table}_docsize d JOIN record r ON r.seq = d.id WHERE d.id = ?"
    removed: list[str] = []
    for pool, size in fetch(db, sql, (seq,)):
        _change_corpus(db, pool, -1, -count_tokens(size), ended=table == WORDS_ENDED)
        tokens = prefix_tokens(pool, tokens_of(record)).split() if record else []
        if not _has_words(db, table, seq, tokens, count_tokens(size)):
            view = view_of(table, "instance")
            terms = fetch(db, f"SELECT term FROM {view} WHERE doc = ? ORDER BY offset", (seq,))
            tokens = [term for (term,) in terms]
        statement = f"INSERT INTO {table} ({table}, rowid, text) VALUES ('delete', ?, ?)"
        db.execute(statement, (seq, " ".join(tokens)))
        removed += tokens
    return removed


def _has_words(
    db: apsw.Connection, table: str, seq: int, tokens: Sequence[str], count: int
) -> bool:
    """Return whether a row consists of exactly these tokens.

    The row may have other tokens if an earlier version of Unicode split the text differently.
    """
    if len(tokens) != count:
        return False
    sql = f"SELECT 1 FROM {table} WHERE {table} MATCH ? AND rowid = ?"
    # Each phrase is looked up only once: the time to find a repeated one grows with the text.
    phrases = set(map(" ".join, by_count(tokens, _PHRASE_TOKENS)))
    return all(fetch(db, sql, (f'"{phrase}"', seq)) for phrase in phrases)


def _erase_copies(db: apsw.Connection, table: str, tokens: Iterable[str]) -> None:
    """Erase the copies of removed tokens that FTS5's secure-delete leaves behind.

    The page table contains a key for each page: the beginning of its first token. This key stays
    when that token is removed, and when a merge moves the page. When a merge has used up a segment,
    the segment's pages also stay until the merge ends.
    """
    first_pages = read_segments(db, table)
    # In FTS5's pages, a 0 precedes every token.
    sql = f"""
        WITH segment AS (SELECT DISTINCT segid FROM {table}_idx),
        token AS (SELECT CAST('0' || value AS BLOB) AS token FROM json_each(?))
        SELECT DISTINCT i.segid, i.term, i.pgno >> 1
        FROM token CROSS JOIN segment CROSS JOIN {table}_idx i
        ON i.segid = segment.segid AND i.term =
          (SELECT max(term) FROM {table}_idx WHERE segid = segment.segid AND term <= token)
        WHERE substr(token, 1, length(i.term)) = i.term
          OR segment.segid IN (SELECT value FROM json_each(?))
    """
    used_up = [number for number, first_page in first_pages.items() if not first_page]
    for segment, key, page in fetch(db, sql, (json.dumps(sorted(tokens)), json.dumps(used_up))):
        page_id = (segment << SEGMENT_SHIFT) + page
        if segment in used_up:
            db.execute(f"DELETE FROM {table}_data WHERE id = ?", (page_id,))
        block = fetch_value(db, f"SELECT block FROM {table}_data WHERE id = ?", (page_id,))
        if block is None:
            db.execute(f"DELETE FROM {table}_idx WHERE segid = ? AND term = ?", (segment, key))
        elif key:  # the key of the first page is empty
            first = _first_token(block)
            if not first.startswith(key):
                statement = f"UPDATE {table}_idx SET term = ? WHERE segid = ? AND term = ?"
                db.execute(statement, (first, segment, key))


def _first_token(page: bytes) -> bytes:
    """Return a page's first token.

    The page's header contains the offset of the footer, whose first number is the offset of the
    token.
    """
    footer = int.from_bytes(page[2:4], "big")
    text = page[next(varints_in(page[footer:])) :]
    length = next(varints_in(text))
    length_bytes = next(count for count, byte in enumerate(text, 1) if byte < 0x80)
    return text[length_bytes:][:length]


def read_segments(db: apsw.Connection, table: str) -> dict[int, int]:
    """Return the first page of each segment in an index, keyed by the segment's number. The page is
    0 if a merge has used up the segment.

    The structure record, row 10 of the data table, lists the segments. It is a cookie of 4 bytes,
    followed by variable-length numbers. The first three count the levels, segments and writes. Then
    each level has the number of segments being merged, the number of all its segments, and for each
    segment its number, first page and last page.
    """
    structure = fetch_value(db, f"SELECT block FROM {table}_data WHERE id = 10")
    numbers = varints_in(structure[4:] if type(structure) is bytes else b"")
    first_pages: dict[int, int] = {}
    try:
        levels, _segments, _writes = next(numbers), next(numbers), next(numbers)
        for _ in range(levels):
            _merged, count = next(numbers), next(numbers)
            for _ in range(count):
                number, first_page, _last_page = next(numbers), next(numbers), next(numbers)
                first_pages[number] = first_page
    except StopIteration:
        raise apsw.CorruptError(f"fts5: the structure of {table} can't be read") from None
    return first_pages


def _change_corpus(
    db: apsw.Connection, pool: int, documents: int, tokens: int, *, ended: bool
) -> None:
    db.execute(
        "INSERT INTO corpus (pool, ended, documents, tokens) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (pool, ended) DO UPDATE "
        "SET documents = documents + excluded.documents, tokens = tokens + excluded.tokens",
        (pool, ended, documents, tokens),
    )


# --- searching


def find_best(
    db: apsw.Connection, postings: Postings, selected: Selection, terms: Sequence[str], k: int
) -> Scores:
    """Return the `k` best records by BM25 of the terms; one matching term is enough.

    Args:
        db: A connection inside a transaction.
        postings: The index's cache.
        selected: Selects the records.
        terms: See `Store.candidates`.
        k: The number of records.
    """
    scores = search_words(db, postings, selected, terms).scores
    # Applying the filter means looking up each record. For all hits, that would take as long as
    # ranking them.
    count = k if selected.is_broad else _SURPLUS * k
    while True:
        candidates = highest(scores, count)
        seqs = select_seqs(db, selected, candidates)
        if len(seqs) >= k or len(candidates) == len(scores):
            return {seq: scores[seq] for seq in seqs[:k]}
        count *= _SURPLUS


def search_words(
    db: apsw.Connection,
    postings: Postings,
    selected: Selection,
    terms: Sequence[str],
    among: Sequence[int] | None = None,
) -> WordHits:
    """Return the terms' hits among records with the selected namespaces and labels.

    The filter's other conditions are ignored. Among many records, only the rarer terms are searched
    for; if no term is rare, see `_score_common`.

    Args:
        db: A connection inside a transaction.
        postings: The index's cache.
        selected: Selects the records.
        terms: The terms.
        among: If few records are selected, the `seq` of each, so that only these are searched.
    """
    hits = WordHits({}, {})
    parsed_terms = {term: parse(term) for term in terms}
    scope, snapshot = _make_scope(selected, among), postings.snapshot(db)
    left_out: set[str] = set()
    with _words_errors(db):
        for corpus in _read_corpora(db, selected):
            queries = _make_queries(snapshot, corpus, parsed_terms, scope.max_rows)
            rare = queries
            if corpus.documents > _RANK_ALL_ROWS:
                totals = itertools.accumulate(query.holders for query in queries)
                pairs = zip(queries, totals, strict=True)
                rare = [query for query, total in pairs if total <= scope.max_rows]
            for query in rare:
                _add_gains(snapshot, corpus, query, scope, hits)
            if rare:
                left_out.update(query.term for query in queries[len(rare) :])
            elif queries:
                _score_common(snapshot, corpus, queries, scope, hits)
    for term in terms:
        if term not in left_out:
            hits.holders.setdefault(term, [])
    return hits


def document_count(db: apsw.Connection, selected: Selection) -> int:
    """Return the number of records in the selected namespaces, including ended ones if selected."""
    return sum(corpus.documents for corpus in _read_corpora(db, selected))


class _Corpus(NamedTuple):
    """Statistics of the live records, or of the ended ones, and the table with their words."""

    table: str
    pools: tuple[int, ...]
    documents: int
    mean_length: float


class _Scope(NamedTuple):
    """The limits of a search: a condition on `{seq}`, its values, and the most rows to return."""

    condition: str
    values: tuple[str | int, ...]
    max_rows: int


class _TermQuery(NamedTuple):
    """A term of a search, and how to look it up in the index.

    Attributes:
        term: The term.
        match: Its FTS5 query.
        tokens: If the term is one complete token, that token as each namespace stores it; else
            empty.
        holders: How many records contain the term.
    """

    term: str
    match: str
    tokens: tuple[str, ...]
    holders: int


def _make_scope(selected: Selection, among: Sequence[int] | None) -> _Scope:
    """Return a search's limits, with the condition that is fastest to check.

    SQLite reads the values of an IN list once per term; then, checking a record takes 0.1 µs.
    """
    if among is not None:
        first, last = (min(among), max(among)) if among else (0, -1)
        # the range may contain other records, which the caller drops
        if last - first < _MAX_SPREAD * len(among):
            return _Scope(" AND {seq} BETWEEN ? AND ?", (first, last), _RANK_ALL_ROWS)
        condition = " AND +{seq} IN (SELECT value FROM json_each(?))"
        return _Scope(condition, (json.dumps(among),), _RANK_ALL_ROWS)
    if selected.includes_ended or not selected.labels:
        return _Scope("", (), _RANK_AT_MOST)
    label, holders = selected.labels[0]
    if holders <= _MAX_COLLECTED:
        condition = " AND +{seq} IN (SELECT seq FROM record_label WHERE label = ?)"
        return _Scope(condition, (label,), _RANK_ALL_ROWS)
    condition = " AND EXISTS (SELECT 1 FROM record_label WHERE label = ? AND seq = {seq})"
    return _Scope(condition, (label,), 2 * _RANK_AT_MOST)


def _read_corpora(db: apsw.Connection, selected: Selection) -> list[_Corpus]:
    sql = (
        "SELECT sum(documents), sum(tokens) FROM corpus "
        "WHERE pool IN (SELECT value FROM json_each(?)) AND ended = ?"
    )
    corpora: list[_Corpus] = []
    for ended in (False, True) if selected.includes_ended else (False,):
        [(documents, tokens)] = fetch(db, sql, (json.dumps(selected.pools), ended))
        if (documents or 0) > 0:
            table = WORDS_ENDED if ended else WORDS[selected.collection]
            mean_length = max((tokens or 0) / documents, 1e-9)
            corpora.append(_Corpus(table, selected.pools, documents, mean_length))
    return corpora


def _make_queries(
    snapshot: Snapshot, corpus: _Corpus, terms: Mapping[str, Term | None], max_rows: int
) -> list[_TermQuery]:
    """Return queries for those terms that any record contains, the rarest first.

    In a large corpus, counting the records with a term stops just above `max_rows`.
    """
    limit = -1 if corpus.documents <= _RANK_ALL_ROWS else max_rows + 1
    queries: list[_TermQuery] = []
    for term, parsed in terms.items():
        if parsed is None:
            continue
        own = tuple(prefix_tokens(pool, parsed.tokens) for pool in corpus.pools)
        star = "*" if parsed.open_ended else ""
        # quoted, so that FTS5 takes no term for an operator
        match = " OR ".join([f'"{tokens}"{star}' for tokens in own])
        is_whole_token = len(parsed.tokens) == 1 and not parsed.open_ended
        tokens = own if is_whole_token else ()
        holders = snapshot.count_holders(corpus.table, match, tokens, limit)
        if holders:
            queries.append(_TermQuery(term, match, tokens, holders))
    return sorted(queries, key=attrgetter("holders"))


def _make_gain(corpus: _Corpus, query: _TermQuery) -> Callable[[int, int], float]:
    """Return a function that computes a term's BM25 from its occurrences and the record's size.

    The formula is the one in `stores.words.score`.
    """
    idf = rarity(corpus.documents, query.holders)

    @functools.cache
    def gain(occurrences: int, size: int) -> float:
        length_factor = 1 - B + B * size / corpus.mean_length
        return idf * occurrences * (K1 + 1) / (occurrences + K1 * length_factor)

    return gain


def _add_gains(
    snapshot: Snapshot, corpus: _Corpus, query: _TermQuery, scope: _Scope, hits: WordHits
) -> None:
    table = corpus.table
    if query.tokens:
        condition = scope.condition.format(seq="doc")
        occurrences = snapshot.count_occurrences(table, query.tokens, condition, scope.values)
    else:
        sql = (
            f"SELECT rowid, occurrences({table}) FROM {table} w "
            f"WHERE {table} MATCH ?{scope.condition.format(seq='w.rowid')}"
        )
        occurrences = dict(fetch(snapshot.db, sql, (query.match, *scope.values)))
    snapshot.load_sizes(table, occurrences)
    gain, scores, sizes = _make_gain(corpus, query), hits.scores, snapshot.sizes
    # if the index is damaged, a record's size may be missing; leave that record out
    holders = [seq for seq in occurrences if sizes[seq]]
    for seq in holders:
        scores[seq] = scores.get(seq, 0.0) + gain(occurrences[seq], sizes[seq])
    hits.holders.setdefault(query.term, []).extend(holders)


def _score_common(
    snapshot: Snapshot, corpus: _Corpus, queries: list[_TermQuery], scope: _Scope, hits: WordHits
) -> None:
    """Score only some records, as chosen by `_find_newest`.

    With a million records, ranking every record that contains a common term would take a second.
    """
    table, pool_count = corpus.table, len(corpus.pools)
    exact = [
        query._replace(holders=snapshot.count_holders(table, query.match, query.tokens, -1))
        for query in queries
    ]
    exact.sort(key=attrgetter("holders"))
    rows = _find_newest(snapshot.db, corpus, exact, scope)
    snapshot.load_sizes(table, rows)
    gains = [(query.term, _make_gain(corpus, query)) for query in exact]
    for seq, frequencies in rows.items():
        size = snapshot.sizes[seq]
        if not size:
            continue  # the index is damaged
        hits.scores[seq] = 0.0
        for number, (term, gain) in enumerate(gains):
            # There is a frequency per namespace; only that of the record's namespace can exceed 0.
            own = frequencies[number * pool_count : (number + 1) * pool_count]
            occurrences = max(own)
            if occurrences:
                hits.scores[seq] += gain(occurrences, size)
                hits.holders.setdefault(term, []).append(seq)


def _find_newest(
    db: apsw.Connection, corpus: _Corpus, queries: Sequence[_TermQuery], scope: _Scope
) -> dict[int, bytes]:
    """Return up to `_RANK_AT_MOST` records: the newest that contain all terms.

    If there are fewer, the newest with the two rarest terms are added, and then the newest with the
    rarest term. Each record is returned with the frequencies of all terms: for each term, one byte
    per namespace.
    """
    table = corpus.table
    sql = (
        f"SELECT w.rowid, frequencies({table}, {len(corpus.pools) * len(queries)}) FROM {table} w "
        f"WHERE {table} MATCH ?{scope.condition.format(seq='w.rowid')} "
        "ORDER BY w.rowid DESC LIMIT ?"
    )
    any_term = " OR ".join(query.match for query in queries)
    rows: dict[int, Any] = {}
    for term_count in dict.fromkeys((len(queries), min(2, len(queries)), 1)):
        match = " AND ".join(f"({query.match})" for query in queries[:term_count])
        if term_count < len(queries):  # with `any_term`, FTS5 counts the other terms, too
            match = f"({any_term}) AND {match}"
        limit = _RANK_AT_MOST - len(rows)
        rows.update(fetch(db, sql, (match, *scope.values, limit)))
    return rows
