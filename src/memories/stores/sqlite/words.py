"""Word search in the SQLite store: FTS5 finds the records that have a word, BM25 is computed here.

The words are the tokens of `stores.words`, the same in every store, in three tables: of current
memories, of turns, of ended records. In each of them every namespace has tokens of its own
(`schema.own_tokens`), and `corpus` counts its records and their tokens. So neither a score nor the
time of a search depends on what other namespaces hold, and old versions and turns do not change how
rare a word is in current memories.
"""

import array
import contextlib
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import apsw

from memories.core.batches import by_count
from memories.stores.damage import Damaged
from memories.stores.records import Finding, Record
from memories.stores.sqlite.errors import WordsDamaged
from memories.stores.sqlite.query import Kept, Selection, fetch, fetch_value, matching, writes
from memories.stores.sqlite.schema import (
    WORDS,
    WORDS_AGAIN,
    WORDS_ENDED,
    WORDS_EPOCH,
    own_tokens,
    view_of,
)
from memories.stores.words import K1, B, Term, WordHits, parse, rarity, tokens_of
from memories.stores.words import best as highest

_MOST_TOKENS = 2**32
_NEWEST = "SELECT max(seq) FROM record"
_FAR = 1_000_000  # seqs beyond those that are known; so many more are rarely met at once
_MOST_COUNTS = 2_000  # of terms, for each connection
# In namespaces of more records than this, a search leaves out words that very many have: ranking
# takes time for every record that matches, and such words tell the least.
_RANK_ALL_ROWS = 10_000
_RANK_AT_MOST = 1_500
_PHRASE_TOKENS = 64
_MAIN_PREFIX = "0"  # before every token in the pages of FTS5
_SEGMENT_SHIFT = 37  # the id of a page has the number of its segment above these bits
_SURPLUS = 4  # this many times `k` are looked at before a filter that most records match
# records with a label: of these, looking at them alone is faster than asking each whether it has it
_FEW = 4_096
_SPREAD = 4  # times as many seqs as records may lie between the first and the last to be looked at

TABLES = (*WORDS.values(), WORDS_ENDED)

Scores = dict[int, float]


# --- the index, as a search sees it
# --------------------------------------------------------------------------------


class Postings:
    """How many records have a term, and how many tokens a record has, of one store file.

    Counts are kept until somebody writes. How many tokens a record has never changes, except by a
    repair; what a connection sees while it writes may be undone, and is not kept.
    """

    def __init__(self) -> None:
        self._counts: Kept[tuple[str, str, int], int] = Kept(_MOST_COUNTS)
        self._sizes: tuple[int | None, array.array[int]] = None, array.array("I")

    def now(self, db: apsw.Connection) -> "Seen":
        """Return what is kept and still holds for the transaction that a connection is in."""
        epoch, sizes = self._sizes
        found = fetch_value(db, "SELECT value FROM meta WHERE name = ?", (WORDS_EPOCH,))
        if found != epoch or writes(db):
            sizes = array.array("I")
            if not writes(db):
                self._sizes = found, sizes
        return Seen(db, self._counts.of(db), sizes)


class Seen(NamedTuple):
    """The index of words in one transaction.

    Attributes:
        db: A connection inside a transaction.
        counts: How many records have what FTS5 looks for, by its table, the words and a limit.
        sizes: How many tokens a record has, by its seq; 0 where that was not asked.
    """

    db: apsw.Connection
    counts: dict[tuple[str, str, int], int]
    sizes: "array.array[int]"

    def holding(self, table: str, match: str, tokens: Sequence[str], limit: int) -> int:
        """Return how many records have a term.

        Args:
            table: The index.
            match: What FTS5 looks for.
            tokens: If that is one whole token, the token as each namespace has it; to count all
                takes half the time.
            limit: Count no more than this; all for -1.
        """
        asked = table, match, limit
        count = self.counts.get(asked)
        if count is None:
            if tokens and limit < 0:
                sql = f"SELECT coalesce(sum(doc), 0) FROM {view_of(table, 'row')} WHERE term = ?"
                count = sum(int(fetch_value(self.db, sql, (token,))) for token in tokens)
            else:
                sql = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)"
                count = int(fetch_value(self.db, sql, (match, limit)))
            self.counts[asked] = count
        return count

    def occurrences(
        self, table: str, tokens: Sequence[str], condition: str, values: Sequence[str | int]
    ) -> dict[int, int]:
        """Return how often records have a token, by their seq and in its order.

        FTS5's table of instances has a record once for each occurrence, and is walked without a
        call into Python.

        Args:
            table: The index.
            tokens: The token as each namespace has it.
            condition: The end of an SQL condition on `doc`, the seq.
            values: Those of its question marks.
        """
        sql = f"SELECT group_concat(doc) FROM (SELECT doc FROM {view_of(table, 'instance')} WHERE term = ?{condition})"
        listed = [fetch_value(self.db, sql, (token, *values)) for token in tokens]
        seqs = [int(seq) for each in listed if each is not None for seq in each.split(",")]
        return Counter(seqs if len(tokens) == 1 else sorted(seqs))

    def learn_sizes(self, table: str, seqs: Iterable[int]) -> None:
        """Look up how many tokens these records have, as far as that is not known."""
        sizes = self.sizes
        known = len(sizes)
        never = apsw.CorruptError(f"fts5: {table} has a row of a record that never was")
        try:
            new = [seq for seq in seqs if seq >= known or not sizes[seq]]
        except IndexError:
            raise never from None
        if not new:
            return
        most = max(new)
        if min(new) < 0 or (most > known + _FAR and most > int(fetch_value(self.db, _NEWEST) or 0)):
            raise never
        sql = f"SELECT d.id, d.sz FROM json_each(?) wanted CROSS JOIN {table}_docsize d ON d.id = wanted.value"
        rows = fetch(self.db, sql, (json.dumps(new),))
        if most >= known:
            sizes.frombytes(bytes(sizes.itemsize * (most + most // 8 + 1 - known)))
        for seq, size in rows:
            sizes[seq] = tokens_in(size)


def numbers_in(block: bytes) -> Iterator[int]:
    """Yield the numbers of a record of FTS5: seven bits a byte, the eighth set in all bytes but the
    last.
    """
    number = length = 0
    for byte in block:
        length += 1
        whole = length == 9  # the ninth byte counts with all its bits
        number = number << 8 | byte if whole else number << 7 | byte & 0x7F
        if whole or byte < 0x80:
            yield number
            number = length = 0


@functools.lru_cache(4096)
def tokens_in(size: bytes) -> int:
    """Return how many tokens a row has, given its size in FTS5's table of sizes; 0 if that is
    damaged.
    """
    found = next(numbers_in(size), 0) if type(size) is bytes else 0
    return found if found < _MOST_TOKENS else 0


class _Corpus(NamedTuple):
    """The live records of the selected namespaces, or the ended ones, and the table of their
    words.
    """

    table: str
    pools: tuple[int, ...]
    documents: int
    mean_length: float


# --- damage
# ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _damage_told(db: apsw.Connection) -> Iterator[None]:
    """Say that it is the index of words that SQLite can't use; to be put around nothing but its
    statements.
    """
    try:
        yield
    except (apsw.CorruptError, apsw.SQLError, apsw.ConstraintError) as exc:
        raise WordsDamaged(db.filename, exc) from None


def left_out(exc: WordsDamaged, damaged: Damaged) -> Scores:
    """Note that a search goes on without the index; return what it finds in it: nothing."""
    what = f"what is found by words alone: the index of words is damaged ({exc.why})"
    damaged.note(Finding(what, exc.remedy, derived=True))
    return {}


def broken(db: apsw.Connection, check: str | None) -> str | None:
    """Return why FTS5 can't use the index, None if it can.

    Args:
        db: A connection inside a transaction.
        check: What SQLite is to check it with, such as `quick_check`; None for a look that takes no
            time.
    """
    try:
        for table in TABLES:
            # SQLite's check takes what it knows of the index from before, which another process may
            # have made anew since; a query looks at it again.
            db.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH 'a' LIMIT 1").fetchall()
        segments = {table: _segments(db, table) for table in TABLES}
        for table, numbers in segments.items() if check else ():
            there = f"SELECT segid FROM {table}_idx UNION SELECT id >> {_SEGMENT_SHIFT} FROM {table}_data WHERE id > 10"
            if not numbers.keys() >= {number for (number,) in fetch(db, there)}:
                return f"{table} has pages of a part that does not exist"
            # What FTS5 has counted, as it asks for when a row is removed.
            averages = fetch_value(db, f"SELECT block FROM {table}_data WHERE id = 1")
            sizes = [tokens_in(size) for (size,) in fetch(db, f"SELECT sz FROM {table}_docsize")]
            counted = [*numbers_in(averages)] if type(averages) is bytes else [0]
            if counted != [len(sizes), sum(sizes)] and (counted or sizes):
                return f"{table} has counted other rows than it has"
            for part in ("", "_data", "_idx", "_docsize", "_config"):
                for (message,) in db.execute(f"PRAGMA {check}({table}{part})").fetchall():
                    if message != "ok" and not is_of_pages(str(message)):
                        return str(message)
    except (apsw.CorruptError, apsw.SQLError) as exc:
        return str(exc)
    return None


def is_of_pages(message: str) -> bool:
    """Return whether SQLite's check means pages of the file, whatever table they are of."""
    return message.startswith(("Tree ", "Page ", "Freelist", "On tree", "***"))


def make_again(db: apsw.Connection) -> None:
    """Make an empty index in the place of one in whatever state."""
    for table in TABLES:
        try:
            db.execute(WORDS_AGAIN.format(table=table))
        except apsw.SQLError:  # how it was made is damaged, so that FTS5 can't drop it
            db.execute("PRAGMA writable_schema=ON")
            db.execute("DELETE FROM sqlite_schema WHERE name = ? AND rootpage = 0", (table,))
            db.execute("PRAGMA writable_schema=RESET")
            db.execute(WORDS_AGAIN.format(table=table))
    db.execute("DELETE FROM corpus")


# --- writing
# ---------------------------------------------------------------------------------------------------------


def insert(db: apsw.Connection, rows: Sequence[tuple[int, int, Record]]) -> None:
    """Index the words of records among the current or the ended ones: each with its seq and the id
    of its namespace.
    """
    texts: dict[str, list[tuple[int, str]]] = {}
    documents: Counter[tuple[int, bool]] = Counter()
    lengths: Counter[tuple[int, bool]] = Counter()
    for seq, pool, record in rows:
        if record.ref.collection in WORDS:
            found = tokens_of(record)
            ended = record.ended_at is not None
            table = WORDS_ENDED if ended else WORDS[record.ref.collection]
            texts.setdefault(table, []).append((seq, own_tokens(pool, found)))
            documents[pool, ended] += 1
            lengths[pool, ended] += len(found)
    with _damage_told(db):
        for table, some in texts.items():
            db.executemany(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", some)
        for (pool, ended), count in documents.items():
            _count(db, pool, count, lengths[pool, ended], ended=ended)


def remove(db: apsw.Connection, rows: Iterable[tuple[int, Record | None]]) -> None:
    """Erase the words of records from the index: no byte of them stays in its pages.

    Args:
        db: A connection in a transaction.
        rows: The seq and the record of each; None for a damaged record, whose words are read from
            the whole index.
    """
    rows = list(rows)
    with _damage_told(db):
        for table in TABLES:
            erased: set[str] = set()
            for seq, record in rows:
                sql = f"SELECT r.pool, d.sz FROM {table}_docsize d JOIN record r ON r.seq = d.id WHERE d.id = ?"
                for pool, size in fetch(db, sql, (seq,)):
                    _count(db, pool, -1, -tokens_in(size), ended=table == WORDS_ENDED)
                    tokens = own_tokens(pool, tokens_of(record)).split() if record else []
                    if not _has_words(db, table, seq, tokens, tokens_in(size)):
                        instances = f"SELECT term FROM {view_of(table, 'instance')} WHERE doc = ? ORDER BY offset"
                        tokens = [term for (term,) in fetch(db, instances, (seq,))]
                    sql = f"INSERT INTO {table} ({table}, rowid, text) VALUES ('delete', ?, ?)"
                    db.execute(sql, (seq, " ".join(tokens)))
                    erased.update(tokens)
            if erased:
                db.execute(f"INSERT INTO {table} ({table}) VALUES ('flush')")
                _erase_copies(db, table, erased)


def _has_words(
    db: apsw.Connection, table: str, seq: int, tokens: Sequence[str], count: int
) -> bool:
    """Return whether the index has just these tokens for a row: another Unicode version may have
    made others.
    """
    sql = f"SELECT 1 FROM {table} WHERE {table} MATCH ? AND rowid = ?"
    phrases = (" ".join(some) for some in by_count(tokens, _PHRASE_TOKENS))
    return len(tokens) == count and all(fetch(db, sql, (f'"{phrase}"', seq)) for phrase in phrases)


def _erase_copies(db: apsw.Connection, table: str, tokens: Iterable[str]) -> None:
    """Erase the copies of removed tokens that FTS5's secure-delete leaves behind.

    The table of pages has a key for each page, the beginning of its first token, also after that
    token is removed, and after a merge has moved the page away. And a segment that a merge has used
    up keeps its pages until the merge ends.
    """
    first_pages = _segments(db, table)
    sql = f"""
        WITH segment AS (SELECT DISTINCT segid FROM {table}_idx),
        token AS (SELECT CAST('{_MAIN_PREFIX}' || value AS BLOB) AS token FROM json_each(?))
        SELECT DISTINCT i.segid, i.term, i.pgno >> 1 FROM token CROSS JOIN segment CROSS JOIN {table}_idx i
        ON i.segid = segment.segid AND i.term =
          (SELECT max(term) FROM {table}_idx WHERE segid = segment.segid AND term <= token)
        WHERE substr(token, 1, length(i.term)) = i.term OR segment.segid IN (SELECT value FROM json_each(?))
    """
    used_up = [number for number, first_page in first_pages.items() if not first_page]
    for segment, key, page in fetch(db, sql, (json.dumps(sorted(tokens)), json.dumps(used_up))):
        at = (segment << _SEGMENT_SHIFT) + page
        if segment in used_up:
            db.execute(f"DELETE FROM {table}_data WHERE id = ?", (at,))
        block = fetch_value(db, f"SELECT block FROM {table}_data WHERE id = ?", (at,))
        if block is None:
            db.execute(f"DELETE FROM {table}_idx WHERE segid = ? AND term = ?", (segment, key))
        elif key and not (first := _first_token(block)).startswith(
            key
        ):  # that of the first page is empty
            db.execute(
                f"UPDATE {table}_idx SET term = ? WHERE segid = ? AND term = ?",
                (first, segment, key),
            )


def _first_token(page: bytes) -> bytes:
    """Return the first token of a page: its offset is the first number of the footer, whose offset
    is in the header.
    """
    start = next(numbers_in(page[int.from_bytes(page[2:4], "big") :]))
    length, text = next(numbers_in(page[start:])), page[start:]
    return text[next(at for at, byte in enumerate(text, 1) if byte < 0x80) :][:length]


def _segments(db: apsw.Connection, table: str) -> dict[int, int]:
    """Return the first page of each segment of an index, 0 for one that a merge has used up.

    They are in the record of the structure, row 10 of the data table: a cookie of 4 bytes, then
    numbers of seven bits a
    byte: levels, segments, writes; for each level how many segments are merged, how many there are,
        and for each of
    these its number, first page and last page.
    """
    structure = fetch_value(db, f"SELECT block FROM {table}_data WHERE id = 10")
    numbers = numbers_in(structure[4:] if type(structure) is bytes else b"")
    try:
        levels, _, _ = (next(numbers) for _ in range(3))
        found: dict[int, int] = {}
        for _ in range(levels):
            _, count = next(numbers), next(numbers)
            for _ in range(count):
                number, first_page, _ = (next(numbers) for _ in range(3))
                found[number] = first_page
    except (StopIteration, RuntimeError):
        raise apsw.CorruptError(f"fts5: the structure of {table} can't be read") from None
    return found


def _count(db: apsw.Connection, pool: int, documents: int, tokens: int, *, ended: bool) -> None:
    db.execute(
        "INSERT INTO corpus (pool, ended, documents, tokens) VALUES (?, ?, ?, ?) ON CONFLICT (pool, ended) DO UPDATE "
        "SET documents = documents + excluded.documents, tokens = tokens + excluded.tokens",
        (pool, ended, documents, tokens),
    )


# --- searching
# -------------------------------------------------------------------------------------------------------


def best(
    db: apsw.Connection, postings: Postings, selected: Selection, terms: Sequence[str], k: int
) -> Scores:
    """Return the `k` best records by BM25 of the terms, any of which may match.

    Args:
        db: A connection inside a transaction.
        postings: What is kept of the index.
        selected: Which records.
        terms: See `Store.candidates`.
        k: How many.
    """
    scores = ranked(db, postings, selected, terms).scores
    count = k if selected.broad else _SURPLUS * k
    # looking up the record of every match, as a filter must, takes as long again as ranking them
    while True:
        some = highest(scores, count)
        found = matching(db, selected, some)
        if len(found) >= k or len(some) == len(scores):
            return {seq: scores[seq] for seq in found[:k]}
        count *= _SURPLUS


def ranked(
    db: apsw.Connection,
    postings: Postings,
    selected: Selection,
    terms: Sequence[str],
    among: Sequence[int] | None = None,
) -> WordHits:
    """Return how well the terms match records of the selected namespaces and labels, whatever else
    is selected.

    Of many records, only the rarer terms are looked for; see `_score_common` for terms none of
    which is rare.

    Args:
        db: A connection inside a transaction.
        postings: What is kept of the index.
        selected: Which records.
        terms: The terms.
        among: The only seqs to look at, where few records are selected.
    """
    found = WordHits({}, {})
    known = {term: parsed for term in terms if (parsed := parse(term)) is not None}
    within, seen = _within(selected, among), postings.now(db)
    common: set[str] = set()
    with _damage_told(db):
        for corpus in _corpora(db, selected):
            wanted = [each for each in _counted(seen, corpus, known, within.most) if each.holding]
            rare = wanted if corpus.documents <= _RANK_ALL_ROWS else _rare(wanted, within.most)
            for each in rare:
                _score(seen, corpus, each, within, found)
            if rare:
                common |= {each.term for each in wanted} - {each.term for each in rare}
            elif wanted:
                _score_common(seen, corpus, wanted, within, found)
    for term in terms:
        if term not in common:
            found.holders.setdefault(term, [])
    return found


def document_count(db: apsw.Connection, selected: Selection) -> int:
    """Return how many records of the selected namespaces are searched."""
    return sum(corpus.documents for corpus in _corpora(db, selected))


class _Within(NamedTuple):
    """The only records to look at, as a condition on `{seq}` and its values, and how many may be
    looked at.
    """

    condition: str
    values: tuple[str | int, ...]
    most: int


class _Wanted(NamedTuple):
    """A term, what FTS5 looks for, the token of each namespace if it is a single whole one, and how
    many have it.
    """

    term: str
    match: str
    tokens: tuple[str, ...]
    holding: int


def _within(selected: Selection, among: Sequence[int] | None) -> _Within:
    """Return where to look. SQLite collects what stands behind IN once for a term; then a record
    takes 0.1 µs.
    """
    if among is not None:
        first, last = (min(among), max(among)) if among else (0, -1)
        if last - first < _SPREAD * len(
            among
        ):  # who asks leaves out the others that are found there
            return _Within(" AND {seq} BETWEEN ? AND ?", (first, last), _RANK_ALL_ROWS)
        return _Within(
            " AND +{seq} IN (SELECT value FROM json_each(?))", (json.dumps(among),), _RANK_ALL_ROWS
        )
    if selected.also_ended or not selected.labels:
        return _Within("", (), _RANK_AT_MOST)
    label, having = selected.labels[0]
    if having <= _FEW:
        return _Within(
            " AND +{seq} IN (SELECT seq FROM record_label WHERE label = ?)",
            (label,),
            _RANK_ALL_ROWS,
        )
    one = " AND EXISTS (SELECT 1 FROM record_label WHERE label = ? AND seq = {seq})"
    return _Within(one, (label,), 2 * _RANK_AT_MOST)


def _corpora(db: apsw.Connection, selected: Selection) -> list[_Corpus]:
    sql = "SELECT sum(documents), sum(tokens) FROM corpus WHERE pool IN (SELECT value FROM json_each(?)) AND ended = ?"
    found: list[_Corpus] = []
    for ended in (False, True) if selected.also_ended else (False,):
        [(documents, tokens)] = fetch(db, sql, (json.dumps(selected.pools), ended))
        if (documents or 0) > 0:
            table = WORDS_ENDED if ended else WORDS[selected.collection]
            found.append(
                _Corpus(table, selected.pools, documents, max((tokens or 0) / documents, 1e-9))
            )
    return found


def _counted(seen: Seen, corpus: _Corpus, known: dict[str, Term], most: int) -> list[_Wanted]:
    """Return the terms with how many records have each, the rarest first; of many records not more
    than needed.
    """
    limit = -1 if corpus.documents <= _RANK_ALL_ROWS else most + 1
    counted = (_wanted(seen, corpus, term, parsed, limit) for term, parsed in known.items())
    return sorted(counted, key=lambda wanted: wanted.holding)


def _wanted(seen: Seen, corpus: _Corpus, term: str, parsed: Term, limit: int) -> _Wanted:
    """Return a term as FTS5 looks for it: the tokens as a literal, in which nothing is an operator,
    of any pool.
    """
    own = tuple(own_tokens(pool, parsed.tokens) for pool in corpus.pools)
    match = " OR ".join([f'"{tokens}"*' if parsed.open_ended else f'"{tokens}"' for tokens in own])
    whole = len(parsed.tokens) == 1 and not parsed.open_ended
    tokens = own if whole else ()
    return _Wanted(term, match, tokens, seen.holding(corpus.table, match, tokens, limit))


def _rare(wanted: Sequence[_Wanted], most: int) -> list[_Wanted]:
    """Return the rarest terms, as many as `most` records have in all; maybe none."""
    totals = itertools.accumulate(term.holding for term in wanted)
    return [term for term, total in zip(wanted, totals, strict=True) if total <= most]


def _gain(corpus: _Corpus, wanted: _Wanted) -> Callable[[int, int], float]:
    """Return what a term is worth in a record by BM25, as in `stores.words.score`, by how often and
    the size there.
    """
    idf = rarity(corpus.documents, wanted.holding)

    @functools.cache
    def gain(often: int, size: int) -> float:
        long = 1 - B + B * size / corpus.mean_length
        return idf * often * (K1 + 1) / (often + K1 * long)

    return gain


def _score(seen: Seen, corpus: _Corpus, wanted: _Wanted, within: _Within, found: WordHits) -> None:
    """Add what a term is worth to the scores of the records that have it."""
    table = corpus.table
    if wanted.tokens:
        often = seen.occurrences(
            table, wanted.tokens, within.condition.format(seq="doc"), within.values
        )
    else:
        sql = f"SELECT rowid, occurrences({table}) FROM {table} w WHERE {table} MATCH ?"
        often = dict(
            fetch(
                seen.db,
                sql + within.condition.format(seq="w.rowid"),
                (wanted.match, *within.values),
            )
        )
    seen.learn_sizes(table, often)
    gain, scores, sizes = _gain(corpus, wanted), found.scores, seen.sizes
    having = [seq for seq in often if sizes[seq]]  # without a size, the index is damaged
    for seq in having:
        scores[seq] = scores.get(seq, 0.0) + gain(often[seq], sizes[seq])
    found.holders.setdefault(wanted.term, []).extend(having)


def _score_common(
    seen: Seen, corpus: _Corpus, wanted: Sequence[_Wanted], within: _Within, found: WordHits
) -> None:
    """Add what terms are worth, all of them common, to the newest records that have all, the two
    rarest or the rarest.

    Ranking every record that has such a term would take a second among a million.
    """
    table, pools = corpus.table, len(corpus.pools)
    wanted = [
        term._replace(holding=seen.holding(table, term.match, term.tokens, -1)) for term in wanted
    ]
    wanted.sort(key=lambda term: term.holding)
    gains = [_gain(corpus, term) for term in wanted]
    sql = (
        f"SELECT w.rowid, frequencies({table}, {pools * len(wanted)}) FROM {table} w "
        f"WHERE {table} MATCH ?{within.condition.format(seq='w.rowid')} ORDER BY w.rowid DESC LIMIT ?"
    )
    any_of = " OR ".join(term.match for term in wanted)
    rows: dict[int, bytes] = {}
    for number in dict.fromkeys((len(wanted), min(2, len(wanted)), 1)):
        match = " AND ".join(f"({term.match})" for term in wanted[:number])
        if number < len(wanted):  # so that how often the other terms occur is known, too
            match = f"({any_of}) AND {match}"
        left = _RANK_AT_MOST - len(rows)
        rows |= dict(fetch(seen.db, sql, (match, *within.values, left)))
    seen.learn_sizes(table, rows)
    for seq, often in rows.items():
        size = seen.sizes[seq]
        if not size:
            continue  # the index is damaged
        found.scores[seq] = 0.0
        for at, (term, gain) in enumerate(zip(wanted, gains, strict=True)):
            if times := max(
                often[at * pools : (at + 1) * pools]
            ):  # a record has the words of one namespace only
                found.scores[seq] += gain(times, size)
                found.holders.setdefault(term.term, []).append(seq)
