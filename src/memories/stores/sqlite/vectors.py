"""Vector search in the SQLite store.

If few rows match, all of them are scored. If many do, their vectors' sign bits find candidates, and
the codes score the best of these. A block contains the sign bits of about 1,024 vectors.
"""

import json
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import numpy as np

from memories.core.batches import by_count
from memories.errors import StoreDamaged
from memories.stores.records import Collection
from memories.stores.sqlite.errors import decoding_errors
from memories.stores.sqlite.quantize import Quantizer, windows_of
from memories.stores.sqlite.query import Selection, may_write, select_seqs
from memories.stores.sqlite.rows import BLOCKS, STAGED, VECTORS, advance_epoch, fetch, fetch_value
from memories.stores.words import highest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

BLOCK_ROWS = 1024
_LOOK_EVERY = 64  # average number of vectors between two checks for a full block
# Multiples of this number, modulo 2**32, are spread evenly, even if writes skip some.
_SCRAMBLE = 2_654_435_761
EXACT_ROWS = 4096  # up to this many rows are scored individually; for more, the blocks are used
MIN_MATCHING = 200  # if fewer candidates than this match the filter, more are scored
# If fewer than one candidate in this many matches the filter, all matching rows are scored.
RARE = 50
# Scoring this many candidates and the share below finds 99.8% of the true ten best among 100,000
# or more rows.
MIN_RESCORED = 300
RESCORED_SHARE = 2000  # number of rows for which one more candidate is scored

# minimum number of windows to score coarsely, for each record that is wanted
_WINDOWS_PER_RECORD = 20
_MAX_LABELLED = 2_000_000  # maximum number of window indexes cached for all labels together

Scores = dict[int, float]


class _Windows(NamedTuple):
    """Windows as columns. For each window: its record, its namespace, the bits of its vector, and
    the number of bits that are set.
    """

    seqs: "NDArray[np.int64]"
    pools: "NDArray[np.unsignedinteger[Any]]"
    bits: "NDArray[np.uint64]"
    counts: "NDArray[np.uint16]"

    def take(self, indexes: "NDArray[np.int64]") -> "_Windows":
        """Return the windows with these indexes."""
        bits = self.bits.take(indexes, axis=1)
        return self._replace(
            seqs=self.seqs[indexes],
            pools=self.pools[indexes],
            bits=bits,
            counts=self.counts[indexes],
        )

    def join(self, later: "_Windows") -> "_Windows":
        """Return these windows followed by later ones."""
        pairs: Any = zip(self, later, strict=True)
        return _Windows(*(np.concatenate(pair, axis=-1) for pair in pairs))


class _Blocks(NamedTuple):
    """The blocks, cached in memory.

    Attributes:
        hi: The `seq` of the last window.
        windows: The windows.
        labelled: For each label, the last `seq` that was looked up, and the indexes of the windows
            with this label.
    """

    hi: int
    windows: _Windows
    labelled: "dict[int, tuple[int, NDArray[np.int64]]]"

    def count_label_indexes(self) -> int:
        """Return the total number of window indexes that are cached for labels."""
        return sum(len(indexes) for _, indexes in self.labelled.values())


class VectorIndex:
    """The vectors of one collection in a store file, with a cache of their blocks."""

    def __init__(self, quantizer: Quantizer, collection: Collection) -> None:
        """Initialize; nothing is read yet."""
        self.quantizer = quantizer
        self.table = VECTORS[collection]
        self._block_table = BLOCKS[collection]
        self._staged_table = STAGED[collection]
        self._epoch_name = f"{self._block_table}s_epoch"
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._blocks = self._no_blocks()
        # The windows after the last block, preceded by the state for which they are valid.
        self._newest: tuple[Any, _Blocks] = None, self._blocks
        # The connection that changed blocks last; it may not have committed yet.
        self._changing: apsw.Connection | None = None

    def _no_blocks(self) -> "_Blocks":
        bits = np.empty((self.quantizer.words, 0), dtype=np.uint64)
        seqs = np.empty(0, dtype=np.int64)
        pools = np.empty(0, dtype=np.uint8)
        return _Blocks(0, _Windows(seqs, pools, bits, self.quantizer.bit_counts(bits)), {})

    # --- writing

    def insert(self, db: apsw.Connection, vectors: "Sequence[tuple[int, Vector]]") -> None:
        """Add vectors, given for each record as its `seq` and an array (windows, dimension)."""
        sql = f"INSERT INTO {self.table} (seq, codes, crc) VALUES (?, ?, ?)"
        db.executemany(sql, self._encode(vectors))

    def stage(self, db: apsw.Connection, vectors: "Mapping[int, Vector]", *, in_use: bool) -> None:
        """Add or replace vectors, given by `seq`, among those in use or among the staged ones."""
        table = self.table if in_use else self._staged_table
        sql = f"INSERT OR REPLACE INTO {table} (seq, codes, crc) VALUES (?, ?, ?)"
        db.executemany(sql, self._encode(list(vectors.items())))
        if in_use:
            self._rebuild_blocks(db, vectors)
            self.seal(db, added=len(vectors))

    def _encode(self, vectors: "Sequence[tuple[int, Vector]]") -> list[tuple[int, bytes, int]]:
        seqs = [seq for seq, _ in vectors]
        codes = self.quantizer.encode_each([windows for _, windows in vectors])
        return list(zip(seqs, codes, map(zlib.crc32, codes), strict=True))

    def seal_all(self, db: apsw.Connection) -> None:
        """Build the blocks of all vectors, after the vectors have been replaced."""
        self.seal(db, added=BLOCK_ROWS)
        self._invalidate_caches(db)

    def seal(self, db: apsw.Connection, *, added: int) -> None:
        """Build full blocks from the vectors that aren't in a block yet.

        Args:
            db: A connection inside a transaction.
            added: How many vectors were just inserted. If they are few, this usually does nothing,
                because counting the vectors that aren't in a block would slow down each append.
        """
        while True:
            hi = int(fetch_value(db, f"SELECT coalesce(max(hi), 0) FROM {self._block_table}"))
            newest = int(fetch_value(db, f"SELECT max(seq) FROM {self.table}") or 0)
            if newest - hi < BLOCK_ROWS or not _should_look(newest, added):
                return
            waiting = f"FROM {self.table} WHERE seq > ? ORDER BY seq LIMIT ?"
            # The numbers of rows have gaps, since the other collection uses some of them. So the
            # rows are counted first, without reading their codes.
            sql = f"SELECT count(*) FROM (SELECT seq {waiting})"
            if fetch_value(db, sql, (hi, BLOCK_ROWS)) < BLOCK_ROWS:
                return
            self._write_block(db, fetch(db, f"SELECT seq, codes {waiting}", (hi, BLOCK_ROWS)))

    def _write_block(self, db: apsw.Connection, rows: Sequence[tuple[int, bytes]]) -> None:
        self._changing = db
        hi = rows[-1][0]
        sql = f"INSERT INTO {self._block_table} (hi, seqs, bits, pools) VALUES (?, ?, ?, ?)"
        db.execute(sql, (hi, *self.pack_block(db, rows)))

    def pack_block(
        self, db: apsw.Connection, rows: Sequence[tuple[int, bytes]]
    ) -> tuple[bytes, bytes, bytes]:
        """Pack a block's rows, each a `seq` and its codes, into columns.

        The columns contain each window's `seq`, bit code and namespace.
        """
        if not rows:
            return b"", b"", b""
        windows = self._windows_of(db, rows)
        seqs, pools = windows.seqs, windows.pools
        spans_rows = int(seqs[-1]) - int(seqs[0]) + 1 == len(seqs)
        is_unbroken = spans_rows and bool((np.diff(seqs) == 1).all())
        return (
            b"" if is_unbroken else seqs.astype("<i8").tobytes(),
            windows.bits.astype("<u8").tobytes(),
            pools.astype(pools.dtype.newbyteorder("<")).tobytes(),
        )

    def _windows_of(self, db: apsw.Connection, rows: Sequence[tuple[int, bytes]]) -> _Windows:
        seqs, codes = self._unpack(rows)
        sql = (  # one row for each window, even if its record is damaged or removed
            "SELECT iif(typeof(r.pool) = 'integer', r.pool, 0) FROM json_each(?) wanted "
            "LEFT JOIN record r ON r.seq = wanted.value ORDER BY wanted.key"
        )
        pool_rows = fetch(db, sql, (json.dumps(seqs.tolist()),))
        pools = np.array([pool for (pool,) in pool_rows], dtype=np.int64)
        smallest_type = np.min_scalar_type(pools.max(initial=0))
        bits = self.quantizer.bits(codes)
        return _Windows(seqs, pools.astype(smallest_type), bits, self.quantizer.bit_counts(bits))

    def remove(self, db: apsw.Connection, seq: int) -> None:
        """Remove a record's vectors, and rebuild the block that contained them."""
        db.execute(f"DELETE FROM {self.table} WHERE seq = ?", (seq,))
        self._rebuild_blocks(db, [seq])

    def _rebuild_blocks(self, db: apsw.Connection, seqs: Iterable[int]) -> None:
        sql = f"SELECT hi FROM {self._block_table} WHERE hi >= ? ORDER BY hi LIMIT 1"
        outdated = {fetch_value(db, sql, (seq,)) for seq in seqs} - {None}
        for hi in sorted(outdated):
            sql = f"SELECT coalesce(max(hi), 0) FROM {self._block_table} WHERE hi < ?"
            previous = fetch_value(db, sql, (hi,))
            sql = f"SELECT seq, codes FROM {self.table} WHERE seq > ? AND seq <= ? ORDER BY seq"
            rows = fetch(db, sql, (previous, hi))
            db.execute(f"DELETE FROM {self._block_table} WHERE hi = ?", (hi,))
            for batch in by_count(rows, BLOCK_ROWS):
                self._write_block(db, batch)
        if outdated:
            self._invalidate_caches(db)

    def _invalidate_caches(self, db: apsw.Connection) -> None:
        """Invalidate cached blocks after a change other than an addition."""
        self._changing = db
        advance_epoch(db, self._epoch_name)

    # --- searching

    def find_best(
        self,
        db: apsw.Connection,
        selected: Selection,
        query: "Vector",
        k: int,
        *,
        large: bool | None = None,
    ) -> Scores:
        """Return the `k` best records, by the cosine between the query and their best window.

        Args:
            db: A connection inside a transaction.
            selected: Selects the records.
            query: The result of `Quantizer.rotate_query`.
            k: The number of records.
            large: The result of `is_large`, if the caller has already computed it.
        """
        if large is None:
            large = is_large(db, selected)
        if large:
            try:
                scores = self._find_best_in_blocks(db, selected, query, k)
            except StoreDamaged:  # a damaged block, which can be rebuilt; `check` reports it
                scores = None
            if scores is not None:
                return scores
        if selected.is_plain and selected.labels:
            label, _ = selected.labels[0]
            rows = fetch(db, "SELECT seq FROM record_label WHERE label = ?", (label,))
            seqs = [seq for (seq,) in rows]
            return highest(self._score_selected_records(db, selected, seqs, query, k), k)
        sql = (
            f"SELECT v.seq, v.codes FROM record r CROSS JOIN {self.table} v ON v.seq = r.seq "
            f"WHERE {selected.find}"
        )
        return highest(self.score(fetch(db, sql, selected.values), query), k)

    def score_exactly(self, db: apsw.Connection, seqs: Sequence[int], query: "Vector") -> Scores:
        """Return the exact scores of the records that have vectors, given a rotated query."""
        if not seqs:
            return {}
        sql = f"SELECT seq, codes FROM {self.table} WHERE seq IN (SELECT value FROM json_each(?))"
        return self.score(fetch(db, sql, (json.dumps(list(seqs)),)), query)

    def _find_best_in_blocks(
        self, db: apsw.Connection, selected: Selection, query: "Vector", k: int
    ) -> Scores | None:
        """Return the `k` best records, found in the blocks.

        Return None if so few records match that it is faster to score all of them. The candidates
        and their order depend only on the selected namespaces, so the contents of other namespaces
        can't change a result.
        """
        least = _WINDOWS_PER_RECORD * k if selected.is_plain else None
        seqs, coarse, window_count = self._score_coarsely(db, selected, query, least)
        scores: Scores = {}
        scored: set[int] = set()
        wanted = max(MIN_RESCORED, 4 * k) + window_count // RESCORED_SHARE
        while True:
            candidates = seqs
            if wanted < len(coarse):
                candidates = seqs[np.argpartition(-coarse, wanted)[:wanted]]
            new_seqs = sorted(set(candidates.tolist()) - scored)
            scores.update(self._score_selected_records(db, selected, new_seqs, query, k))
            # If few candidates match the filter, continue with more candidates.
            enough = k
            if not selected.is_plain:
                enough = min(wanted, max(MIN_MATCHING, 4 * k))
            if wanted >= window_count or len(scores) >= enough:
                return highest(scores, k)
            if wanted >= len(coarse):
                seqs, coarse, window_count = self._score_coarsely(db, selected, query, None)
            if RARE * len(scores) < wanted:
                return None
            scored.update(new_seqs)
            wanted *= 4

    def _score_selected_records(
        self, db: apsw.Connection, selected: Selection, seqs: Sequence[int], query: "Vector", k: int
    ) -> Scores:
        """Score the given records, except those that the filter doesn't select.

        If the filter has only namespaces and labels, which were already checked, nearly all records
        match. In that case, only about the `k` best are looked up and returned.
        """
        if not selected.is_plain:
            # CROSS makes SQLite look up the record of each `seq`. Otherwise it would read an entire
            # index.
            sql = (
                "SELECT v.seq, v.codes FROM json_each(?) wanted "
                "CROSS JOIN record r ON r.seq = wanted.value "
                f"CROSS JOIN {self.table} v ON v.seq = r.seq WHERE {selected.check}"
            )
            return self.score(fetch(db, sql, (json.dumps(seqs), *selected.values)), query)
        sql = (
            "SELECT v.seq, v.codes FROM json_each(?) wanted "
            f"CROSS JOIN {self.table} v ON v.seq = wanted.value"
        )
        scores = self.score(fetch(db, sql, (json.dumps(seqs),)), query)
        count = 2 * k
        while True:
            best = highest(scores, count)
            selected_seqs = select_seqs(db, selected, best)
            if len(selected_seqs) >= k or len(best) == len(scores):
                return {seq: scores[seq] for seq in selected_seqs}
            count *= 4

    def _score_coarsely(
        self, db: apsw.Connection, selected: Selection, query: "Vector", least: int | None
    ) -> "tuple[NDArray[np.int64], Vector, int]":
        """Return the `seq` and the coarse score of selected windows, and how many are selected.

        Of the filter's conditions, only namespaces and labels are checked.

        Args:
            db: A connection inside a transaction.
            selected: Selects the records.
            query: The rotated query.
            least: The minimum number of windows to score, nearest first; None means all.
        """
        blocks = self._load_blocks(db)
        windows = blocks.windows
        indexes = self._find_selected_windows(db, blocks, selected)
        if indexes is not None and 2 * len(indexes) < len(windows.seqs):
            windows, indexes = windows.take(indexes), None
        window_count = len(windows.seqs) if indexes is None else len(indexes)
        if least is not None:
            indexes = self.quantizer.nearest(query, windows.bits, indexes, least)
        if indexes is not None:
            windows = windows.take(indexes)
        newest = self._find_newest(db, blocks.hi, selected)
        if len(newest.seqs):
            window_count += len(newest.seqs)
            windows = windows.join(newest)
        scores = self.quantizer.coarse_scores(query, windows.bits, windows.counts)
        return windows.seqs, scores, window_count

    def _find_selected_windows(
        self, db: apsw.Connection, blocks: "_Blocks", selected: Selection
    ) -> "NDArray[np.int64] | None":
        """Return the indexes of the windows whose records have the selected namespaces and labels.

        Return None if these are all windows.
        """
        indexes: NDArray[np.int64] | None = None
        for label, _ in selected.labels:
            having = self._find_labelled_windows(db, blocks, label)
            if indexes is not None:
                having = np.intersect1d(indexes, having, assume_unique=True)
            indexes = having
        pools = blocks.windows.pools
        is_own = _is_of_pools(pools if indexes is None else pools[indexes], selected)
        if is_own.all():
            return indexes
        return np.flatnonzero(is_own) if indexes is None else indexes[is_own]

    def _find_labelled_windows(
        self, db: apsw.Connection, blocks: "_Blocks", label: int
    ) -> "NDArray[np.int64]":
        """Return the indexes of the windows whose records have a label.

        Cached indexes stay valid, because a record's labels never change, and `blocks` only grows.
        So only the records of newer blocks are looked up.
        """
        with self._lock:
            hi, indexes = blocks.labelled.pop(label, (0, np.empty(0, dtype=np.int64)))
        if hi < blocks.hi:
            sql = "SELECT seq FROM record_label WHERE label = ? AND seq > ? AND seq <= ?"
            rows = fetch(db, sql, (label, hi, blocks.hi))
            seqs = np.fromiter((seq for (seq,) in rows), dtype=np.int64, count=len(rows))
            new_indexes = _find_indexes(blocks.windows.seqs, seqs)
            indexes = np.concatenate([indexes, new_indexes])
        with self._lock:
            blocks.labelled[label] = blocks.hi, indexes
            while len(blocks.labelled) > 1 and blocks.count_label_indexes() > _MAX_LABELLED:
                blocks.labelled.pop(next(iter(blocks.labelled)))
        return indexes

    def _find_newest(self, db: apsw.Connection, hi: int, selected: Selection) -> _Windows:
        """Return the windows with these namespaces and labels that aren't in a block yet."""
        windows = self._load_newest(db, hi)
        is_own = _is_of_pools(windows.pools, selected)
        for label, _ in selected.labels:
            sql = "SELECT seq FROM record_label WHERE label = ? AND seq > ?"
            having = [seq for (seq,) in fetch(db, sql, (label, hi))]
            is_own &= np.isin(windows.seqs, having)
        if is_own.all():
            return windows
        return windows.take(np.flatnonzero(is_own))

    def _load_blocks(self, db: apsw.Connection) -> "_Blocks":
        """Return all blocks; those in a valid cache aren't read again."""
        epoch = fetch_value(db, "SELECT value FROM meta WHERE name = ?", (self._epoch_name,))
        with self._lock:
            cached = self._blocks if self._epoch == epoch else self._no_blocks()
            blocks = self._read_new_blocks(db, cached)
            if self._changing is db and not may_write(db):
                self._changing = None
            if self._changing is not db:  # uncommitted changes may be rolled back
                self._epoch, self._blocks = epoch, blocks
            return blocks

    def _load_newest(self, db: apsw.Connection, hi: int) -> _Windows:
        """Return the windows that aren't in a block yet; those in a valid cache aren't read again.

        A cached window's record may have been removed in the meantime; a caller that reads the
        codes finds none for it. A transaction that may write neither uses nor fills the cache: its
        changes may be rolled back, and other records may then get the same `seq`.
        """
        is_writing = may_write(db)
        epoch = fetch_value(db, "SELECT value FROM meta WHERE name = ?", (self._epoch_name,))
        state = epoch, hi
        with self._lock:
            cached_state, newest = self._newest
        if is_writing or cached_state != state:
            newest = self._no_blocks()._replace(hi=hi)
        if newest.hi < int(fetch_value(db, f"SELECT max(seq) FROM {self.table}") or 0):
            sql = f"SELECT seq, codes FROM {self.table} WHERE seq > ? ORDER BY seq"
            rows = fetch(db, sql, (newest.hi,))
            windows = newest.windows.join(self._windows_of(db, rows))
            newest = _Blocks(rows[-1][0], windows, {})
            if not is_writing:
                with self._lock:
                    self._newest = state, newest
        return newest.windows

    def _read_new_blocks(self, db: apsw.Connection, cached: "_Blocks") -> "_Blocks":
        """Return the cached blocks and later ones, which are read one at a time to save memory."""
        sql = (
            f"SELECT hi, length(bits), length(pools) FROM {self._block_table} "
            "WHERE hi > ? ORDER BY hi"
        )
        sizes = fetch(db, sql, (cached.hi,))
        if not sizes:
            return cached
        words, start = self.quantizer.words, len(cached.windows.seqs)
        with decoding_errors():
            window_counts = [bits_bytes // (8 * words) for _, bits_bytes, _ in sizes]
            pool_widths = [
                pools_bytes // max(1, count)
                for (_, _, pools_bytes), count in zip(sizes, window_counts, strict=True)
            ]
            total = start + sum(window_counts)
            pool_type = np.promote_types(cached.windows.pools.dtype, f"u{max(pool_widths)}")
            seqs = np.empty(total, dtype=np.int64)
            bits = np.empty((words, total), dtype=np.uint64)
            pools = np.empty(total, dtype=pool_type)
            seqs[:start] = cached.windows.seqs
            bits[:, :start] = cached.windows.bits
            pools[:start] = cached.windows.pools
            sql = f"SELECT seqs, bits, pools FROM {self._block_table} WHERE hi = ?"
            for (hi, _, _), count, width in zip(sizes, window_counts, pool_widths, strict=True):
                [(packed_seqs, packed_bits, packed_pools)] = fetch(db, sql, (hi,))
                block = slice(start, start + count)
                if packed_seqs:
                    seqs[block] = np.frombuffer(packed_seqs, "<i8").reshape(count)
                else:
                    seqs[block] = range(hi - count + 1, hi + 1)
                bits[:, block] = np.frombuffer(packed_bits, "<u8").reshape(words, count)
                pools[block] = np.frombuffer(packed_pools, f"<u{width}").reshape(count)
                start += count
        windows = _Windows(seqs, pools, bits, self.quantizer.bit_counts(bits))
        return _Blocks(sizes[-1][0], windows, cached.labelled)

    def score(self, rows: Sequence[tuple[int, bytes]], query: "Vector") -> Scores:
        """Return the cosine of each record and a rotated query, given rows of `seq` and vector
        codes.
        """
        if not rows:
            return {}
        seqs, codes = self._unpack(rows)
        scores = self.quantizer.scores(query, codes)
        if len(seqs) == len(rows):
            return dict(zip(seqs.tolist(), scores.tolist(), strict=True))
        best: Scores = {}
        for seq, score in zip(seqs.tolist(), scores.tolist(), strict=True):
            best[seq] = max(score, best.get(seq, -1.0))
        return best

    def _unpack(self, rows: Sequence[tuple[int, bytes]]) -> "tuple[NDArray[np.int64], bytes]":
        seqs, codes = zip(*rows, strict=True)
        owners, joined = windows_of(codes, self.quantizer.code_bytes)
        with decoding_errors():
            return np.array(seqs, dtype=np.int64)[owners], joined


def _is_of_pools(
    pools: "NDArray[np.unsignedinteger[Any]]", selected: Selection
) -> "NDArray[np.bool_]":
    is_own = np.zeros(len(pools), dtype=np.bool_)
    for pool in selected.pools:
        is_own |= pools == pool
    return is_own


def _find_indexes(seqs: "NDArray[np.int64]", wanted: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """Return the indexes at which `seqs`, in ascending order, contains any of the wanted values."""
    first = np.searchsorted(seqs, wanted, "left")
    counts = np.searchsorted(seqs, wanted, "right") - first
    if (counts == 1).all():
        return first
    starts = np.cumsum(counts) - counts
    indexes = np.repeat(first, counts)
    indexes += np.arange(len(indexes)) - np.repeat(starts, counts)
    return indexes


def _should_look(newest: int, added: int) -> bool:
    """Return whether to check for a full block. It is true for about one `seq` in `_LOOK_EVERY`.

    A hash of the `seq` decides, because multiples of 64 might never occur: memories that are
    written one by one have only odd numbers, since each is followed by a log entry.
    """
    if added >= _LOOK_EVERY:
        return True
    seqs = range(newest - added + 1, newest + 1)
    return any(seq * _SCRAMBLE % 2**32 < 2**32 // _LOOK_EVERY for seq in seqs)


def is_large(db: apsw.Connection, selected: Selection) -> bool:
    """Return whether too many records match to score them individually."""
    most = BLOCK_ROWS if selected.is_broad else EXACT_ROWS
    if not selected.includes_ended:
        if selected.rarest <= most:
            return False
        if selected.is_plain and len(selected.labels) <= 1:
            return True
    sql = f"SELECT count(*) FROM (SELECT 1 FROM record r WHERE {selected.find} LIMIT ?)"
    return int(fetch_value(db, sql, (*selected.values, most + 1))) > most
