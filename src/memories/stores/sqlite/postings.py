"""What searches keep of the index of words, so that the next need not ask: bounded, and right after every write."""

import array
import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apsw

from memories.stores.sqlite.kept import Kept, writes
from memories.stores.sqlite.query import fetch, fetch_value
from memories.stores.sqlite.schema import WORDS_EPOCH, view_of

_MOST_TOKENS = 2**32
_NEWEST = "SELECT max(seq) FROM record"
_FAR = 1_000_000  # seqs beyond those that are known; so many more are rarely met at once
_MOST_COUNTS = 2_000  # of terms, for each connection


class Postings:
    """How many records have a term, and how many tokens a record has, of one store file.

    Counts are kept until somebody writes. How many tokens a record has never changes, except by a repair; what a
    connection sees while it writes may be undone, and is not kept.
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
            tokens: If that is one whole token, the token as each namespace has it; to count all takes half the time.
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

        FTS5's table of instances has a record once for each occurrence, and is walked without a call into Python.

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


def numbers(block: bytes) -> Iterator[int]:
    """Yield the numbers of a record of FTS5: seven bits a byte, the eighth set in all bytes but the last."""
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
    """Return how many tokens a row has, given its size in FTS5's table of sizes; 0 if that is damaged."""
    found = next(numbers(size), 0) if type(size) is bytes else 0
    return found if found < _MOST_TOKENS else 0
