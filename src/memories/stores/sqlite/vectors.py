"""Vector search in the SQLite store: exact over few rows, else sign-bit blocks first and int8
scores for the best.
"""

import json
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import apsw
import numpy as np

from memories.core.batches import by_count
from memories.errors import StoreDamaged
from memories.stores.records import Collection
from memories.stores.sqlite.quantize import Quantizer
from memories.stores.sqlite.query import Selection, damage_noticed, fetch, fetch_value
from memories.stores.sqlite.schema import BLOCKS, STAGED, VECTORS, count_epoch
from memories.stores.words import best as highest

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_ROWS = 1024
_LOOK_EVERY = 64  # vectors, on average, between two looks for a whole block
# its multiples, modulo 2**32, are spread evenly whatever the pattern of writing
_SCRAMBLE = 2_654_435_761
EXACT_ROWS = 4096  # up to this many rows are scored one by one; more go through the blocks
MIN_MATCHING = 200  # unless this many candidates match the filter, more are looked at
# if fewer than one candidate in this many matches, the rows of the filter are scored instead of the
# blocks
RARE = 50
# with the share below, this includes 99.8 % of the true ten best of 100,000 rows, and of more
MIN_RESCORED = 300
RESCORED_SHARE = 2000  # one more for every this many rows

_FURTHER = 20  # times as many windows as records are wanted are looked at more closely, at least
_MOST_LABELLED = 2_000_000  # places of windows with a label that are kept in memory

_CODES = frozenset((bytes, type(None)))  # the types of codes

Scores = dict[int, float]


class _Blocks(NamedTuple):
    """The bit blocks read so far: of each window the seq, the namespace, the bit code and how many
    bits it has set.
    """

    hi: int
    seqs: "NDArray[np.int64]"
    pools: "NDArray[np.unsignedinteger[Any]]"
    bits: "NDArray[np.uint64]"
    counts: "NDArray[np.uint16]"
    # of labels: up to which seq was looked, and which windows
    labelled: "dict[int, tuple[int, NDArray[np.int64]]]"


class VectorIndex:
    """The vectors of one store file. Keeps the bit blocks that it has read; except for erasures
    they only grow.
    """

    def __init__(self, quantizer: Quantizer, collection: Collection) -> None:
        """Prepare for the vectors of memories or of turns."""
        self.quantizer = quantizer
        self.table, self._block, self._staged = (
            VECTORS[collection],
            BLOCKS[collection],
            STAGED[collection],
        )
        self._epoch_name = f"{self._block}s_epoch"
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._blocks = self._no_blocks()
        self._newest: tuple[Any, _Blocks] = (
            None,
            self._blocks,
        )  # windows that are in no block yet, and after which
        # the one that has changed blocks and may not have committed
        self._changing: apsw.Connection | None = None

    # --- writing
    # ---------------------------------------------------------------------------------------------------

    def insert(
        self, db: apsw.Connection, given: "Sequence[tuple[int, NDArray[np.float32]]]"
    ) -> None:
        """Keep the vectors of records, each with its seq, shape (windows, dimension)."""
        encoded = zip(
            given, self.quantizer.encode_each([vectors for _, vectors in given]), strict=True
        )
        rows = [(seq, codes, zlib.crc32(codes)) for (seq, _), codes in encoded]
        db.executemany(f"INSERT INTO {self.table} (seq, codes, crc) VALUES (?, ?, ?)", rows)

    def stage(
        self, db: apsw.Connection, given: "Mapping[int, NDArray[np.float32]]", *, in_use: bool
    ) -> None:
        """Keep vectors for seqs, which may have some already, beside those in use or among them."""
        table = self.table if in_use else self._staged
        encoded = ((seq, self.quantizer.encode(vectors)) for seq, vectors in given.items())
        rows = [(seq, codes, zlib.crc32(codes)) for seq, codes in encoded]
        db.executemany(f"INSERT OR REPLACE INTO {table} (seq, codes, crc) VALUES (?, ?, ?)", rows)
        if in_use:
            self._rebuild_blocks(db, given)
            self.seal(db, added=len(given))

    def seal_all(self, db: apsw.Connection) -> None:
        """Build the blocks after all vectors were replaced."""
        self.seal(db, added=BLOCK_ROWS)
        self._count_epoch(db)

    def seal(self, db: apsw.Connection, *, added: int) -> None:
        """Build blocks of the vectors that are in none yet, as long as there are enough for a whole
        one.

        Args:
            db: A connection inside a transaction.
            added: How many were just inserted. After only a few it mostly does not look, so that an
                append costs the same whether many or few vectors wait for their block, and as often
                for many as if each came alone.
        """
        while True:
            hi = int(fetch_value(db, f"SELECT coalesce(max(hi), 0) FROM {self._block}"))
            newest = int(fetch_value(db, f"SELECT max(seq) FROM {self.table}") or 0)
            if newest - hi < BLOCK_ROWS or not _looks(newest, added):
                return
            behind = f"FROM {self.table} WHERE seq > ? ORDER BY seq LIMIT ?"
            # Some of these seqs belong to the other collection, so the rows are counted, without
            # reading the codes.
            if (
                fetch_value(db, f"SELECT count(*) FROM (SELECT seq {behind})", (hi, BLOCK_ROWS))
                < BLOCK_ROWS
            ):
                return
            self._write_block(db, fetch(db, f"SELECT seq, codes {behind}", (hi, BLOCK_ROWS)))

    def _write_block(self, db: apsw.Connection, rows: Sequence[tuple[int, bytes]]) -> None:
        self._changing = db
        sql = f"INSERT INTO {self._block} (hi, seqs, bits, pools) VALUES (?, ?, ?, ?)"
        db.execute(sql, (rows[-1][0], *self.packed(db, rows)))

    def packed(
        self, db: apsw.Connection, rows: Sequence[tuple[int, bytes]]
    ) -> tuple[bytes, bytes, bytes]:
        """Return a block of these rows, seq and codes: seqs, bits and namespaces of the windows."""
        if not rows:
            return b"", b"", b""
        seqs, bits, pools = self._block_of(db, rows)
        unbroken = int(seqs[-1]) - int(seqs[0]) + 1 == len(seqs) and bool(
            (np.diff(seqs) == 1).all()
        )
        return (
            b"" if unbroken else seqs.astype("<i8").tobytes(),
            bits.astype("<u8").tobytes(),
            pools.astype(pools.dtype.newbyteorder("<")).tobytes(),
        )

    def _block_of(
        self, db: apsw.Connection, rows: Sequence[tuple[int, bytes]]
    ) -> "tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.unsignedinteger[Any]]]":
        """Return the seq, the bit code and the namespace of each window of rows, seq and codes."""
        seqs, codes = self._unpack(rows)
        sql = (  # one for each, also where a record is damaged or gone
            "SELECT iif(typeof(r.pool) = 'integer', r.pool, 0) "
            "FROM json_each(?) wanted LEFT JOIN record r ON r.seq = wanted.value ORDER BY wanted.key"
        )
        pools = np.array(
            [pool for (pool,) in fetch(db, sql, (json.dumps(seqs.tolist()),))], dtype=np.int64
        )
        return (
            seqs,
            self.quantizer.bits(codes),
            pools.astype(np.min_scalar_type(pools.max(initial=0))),
        )

    def remove(self, db: apsw.Connection, seq: int) -> None:
        """Remove a record's vectors, and rebuild their block without them."""
        db.execute(f"DELETE FROM {self.table} WHERE seq = ?", (seq,))
        self._rebuild_blocks(db, [seq])

    def _rebuild_blocks(self, db: apsw.Connection, seqs: Iterable[int]) -> None:
        """Rebuild the blocks that span these seqs from the current vectors."""
        first = f"SELECT hi FROM {self._block} WHERE hi >= ? ORDER BY hi LIMIT 1"
        outdated = {fetch_value(db, first, (seq,)) for seq in seqs} - {None}
        for hi in sorted(outdated):
            below = fetch_value(
                db, f"SELECT coalesce(max(hi), 0) FROM {self._block} WHERE hi < ?", (hi,)
            )
            within = f"FROM {self.table} WHERE seq > ? AND seq <= ? ORDER BY seq"
            rows = fetch(db, f"SELECT seq, codes {within}", (below, hi))
            db.execute(f"DELETE FROM {self._block} WHERE hi = ?", (hi,))
            for some in by_count(rows, BLOCK_ROWS):
                self._write_block(db, some)
        if outdated:
            self._count_epoch(db)

    def _count_epoch(self, db: apsw.Connection) -> None:
        """Tell those who have read the blocks that these changed in another way than by growing."""
        self._changing = db
        count_epoch(db, self._epoch_name)

    # --- reading
    # ---------------------------------------------------------------------------------------------------

    def decode(self, codes: Sequence[bytes]) -> "list[NDArray[np.float32]]":
        """Return the vectors of each row, shape (windows, dimension), given its codes.

        They depend on the numbers of the codes alone, and are rounded to 24 bits, whatever else is
        decoded with them: encoded again they give the same numbers, and so the same vectors.
        """
        owners, joined = windows_of(codes, self.quantizer.code_bytes)
        turned = self.quantizer.numbers(joined)
        turned /= np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), 1e-12)
        rotation = self.quantizer.rotate(np.eye(self.quantizer.dimension, dtype=np.float32))
        vectors = ((np.rint((turned @ rotation.T) * 2**24) + 0.0) / 2**24).astype(
            np.float32
        )  # + 0.0: no -0.0
        return np.split(vectors, np.searchsorted(owners, np.arange(1, len(codes))))

    # --- searching
    # -------------------------------------------------------------------------------------------------

    def best(
        self,
        db: apsw.Connection,
        selected: Selection,
        turned: "NDArray[np.float32]",
        k: int,
        *,
        large: bool | None = None,
    ) -> Scores:
        """Return the `k` best records, by the cosine of their best window with the query.

        Args:
            db: A connection inside a transaction.
            selected: Which records.
            turned: The query, as `turn` returns it.
            k: How many.
            large: The result of `is_large`, if the caller knows it.
        """
        if large is None:
            large = is_large(db, selected)
        try:
            found = self._best_by_blocks(db, selected, turned, k) if large else None
        except StoreDamaged:  # of a block, which can be made again: `check` tells
            found = None
        if found is not None:
            return found
        if selected.plain and selected.labels:
            labelled = fetch(
                db, "SELECT seq FROM record_label WHERE label = ?", selected.labels[0][:1]
            )
            return highest(self._rescored(db, selected, [seq for (seq,) in labelled], turned, k), k)
        sql = f"SELECT v.seq, v.codes FROM record r CROSS JOIN {self.table} v ON v.seq = r.seq WHERE {selected.find}"
        return highest(self.score(fetch(db, sql, selected.values), turned), k)

    def turn(self, query: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """Return a query, shape (dimension,), unit length, as the codes are rotated."""
        turned: NDArray[np.float32] = self.quantizer.rotate(query[np.newaxis, :])[0]
        return turned

    def exact(
        self, db: apsw.Connection, seqs: Sequence[int], turned: "NDArray[np.float32]"
    ) -> Scores:
        """Return the score of each of these records that has a vector, with a rotated query."""
        if not seqs:
            return {}
        sql = f"SELECT seq, codes FROM {self.table} WHERE seq IN (SELECT value FROM json_each(?))"
        return self.score(fetch(db, sql, (json.dumps(list(seqs)),)), turned)

    def _best_by_blocks(
        self, db: apsw.Connection, selected: Selection, turned: "NDArray[np.float32]", k: int
    ) -> Scores | None:
        """Return the `k` best by the blocks; None if so few records match that scoring all of them
        is faster.

        What is looked at, and in which order, depends on the selected namespaces alone: others
        change nothing.
        """
        numbers, coarse, windows = self._coarse(
            db, selected, turned, _FURTHER * k if selected.plain else None
        )
        found: Scores = {}
        wanted = max(MIN_RESCORED, 4 * k) + windows // RESCORED_SHARE
        seen: set[int] = set()
        while True:
            best = (
                np.argpartition(-coarse, wanted)[:wanted] if wanted < len(coarse) else slice(None)
            )
            piece = sorted(set(numbers[best].tolist()) - seen)
            found |= self._rescored(db, selected, piece, turned, k)
            # If the filter left few of the candidates, go further down the list.
            enough = k if selected.plain else min(wanted, max(MIN_MATCHING, 4 * k))
            if wanted >= windows or len(found) >= enough:
                return highest(found, k)
            if wanted >= len(coarse):
                numbers, coarse, windows = self._coarse(db, selected, turned, None)
            if RARE * len(found) < wanted:
                return None
            seen.update(piece)
            wanted *= 4

    def _rescored(
        self,
        db: apsw.Connection,
        selected: Selection,
        seqs: Sequence[int],
        turned: "NDArray[np.float32]",
        k: int,
    ) -> Scores:
        """Return the scores of those records that match, by their int8 codes.

        Where nearly all match, as their namespaces and labels have been looked at, only the `k`
        best are returned.
        """
        if not selected.plain:
            # CROSS keeps the order: first the seqs, then a look at each record; else a whole index
            # would be read.
            sql = (
                "SELECT v.seq, v.codes FROM json_each(?) wanted CROSS JOIN record r ON r.seq = wanted.value "
                f"CROSS JOIN {self.table} v ON v.seq = r.seq WHERE {selected.check}"
            )
            return self.score(fetch(db, sql, (json.dumps(seqs), *selected.values)), turned)
        sql = f"SELECT v.seq, v.codes FROM json_each(?) wanted CROSS JOIN {self.table} v ON v.seq = wanted.value"
        scores = self.score(fetch(db, sql, (json.dumps(seqs),)), turned)
        sql = f"SELECT r.seq FROM json_each(?) wanted CROSS JOIN record r ON r.seq = wanted.value WHERE {selected.check}"
        count = 2 * k
        while True:
            some = highest(scores, count)
            found = [seq for (seq,) in fetch(db, sql, (json.dumps(list(some)), *selected.values))]
            if len(found) >= k or len(some) == len(scores):
                return {seq: scores[seq] for seq in found}
            count *= 4

    def _coarse(
        self,
        db: apsw.Connection,
        selected: Selection,
        turned: "NDArray[np.float32]",
        least: int | None,
    ) -> "tuple[NDArray[np.int64], NDArray[np.float32], int]":
        """Return the seqs and the coarse scores of windows of the namespaces and labels, and how
        many there are.

        Args:
            db: A connection inside a transaction.
            selected: Which records.
            turned: The rotated query.
            least: Enough of the nearest, at least this many; None for all.
        """
        blocks = self._load_blocks(db)
        seqs, bits, counts = blocks.seqs, blocks.bits, blocks.counts
        places = self._places(db, blocks, selected)
        if places is not None and 2 * len(places) < len(seqs):
            seqs, bits, counts = seqs[places], bits[:, places], counts[places]
            places = None
        windows = len(seqs) if places is None else len(places)
        near = places if least is None else self.quantizer.nearest(turned, bits, places, least)
        if near is not None:
            seqs, bits, counts = seqs[near], bits.take(near, axis=1), counts[near]
        newest = self._newest_windows(db, blocks.hi)
        own = _owned(newest.pools, selected)
        for label, _ in selected.labels:
            having = fetch(
                db, "SELECT seq FROM record_label WHERE label = ? AND seq > ?", (label, blocks.hi)
            )
            own &= np.isin(newest.seqs, [seq for (seq,) in having])
        if newer := int(own.sum()):
            windows += newer
            seqs = np.concatenate([seqs, newest.seqs[own]])
            bits = np.concatenate([bits, newest.bits if own.all() else newest.bits[:, own]], axis=1)
            counts = np.concatenate([counts, newest.counts[own]])
        return seqs, self.quantizer.coarse_scores(turned, bits, counts), windows

    def _places(
        self, db: apsw.Connection, blocks: "_Blocks", selected: Selection
    ) -> "NDArray[np.int64] | None":
        """Return which windows of the blocks are of these namespaces and have these labels; None if
        all do.
        """
        places: NDArray[np.int64] | None = None
        for label, _ in selected.labels:
            having = self._labelled(db, blocks, label)
            places = (
                having if places is None else np.intersect1d(places, having, assume_unique=True)
            )
        owners = blocks.pools if places is None else blocks.pools[places]
        own = _owned(owners, selected)
        if own.all():
            return places
        return np.flatnonzero(own) if places is None else places[own]

    def _labelled(self, db: apsw.Connection, blocks: "_Blocks", label: int) -> "NDArray[np.int64]":
        """Return which windows of the blocks have a label, from memory as far as that was looked up
        before.

        Labels of a record never change, and the blocks only grow until they are read anew.
        """
        with self._lock:
            hi, known = blocks.labelled.pop(label, (0, np.empty(0, dtype=np.int64)))
        if hi < blocks.hi:
            sql = "SELECT seq FROM record_label WHERE label = ? AND seq > ? AND seq <= ?"
            rows = fetch(db, sql, (label, hi, blocks.hi))
            seqs = np.fromiter((seq for (seq,) in rows), dtype=np.int64, count=len(rows))
            first, last = (np.searchsorted(blocks.seqs, seqs, side) for side in ("left", "right"))
            if (last - first == 1).all():
                places = first
            else:  # some have several windows, or none
                places = np.repeat(first, last - first)
                places += np.arange(len(places)) - np.repeat(
                    np.cumsum(last - first) - (last - first), last - first
                )
            known = np.concatenate([known, places])
        with self._lock:
            blocks.labelled[label] = blocks.hi, known
            while (
                len(blocks.labelled) > 1
                and sum(len(found) for _, found in blocks.labelled.values()) > _MOST_LABELLED
            ):
                blocks.labelled.pop(next(iter(blocks.labelled)))
        return known

    def _load_blocks(self, db: apsw.Connection) -> "_Blocks":
        epoch = fetch_value(db, "SELECT value FROM meta WHERE name = ?", (self._epoch_name,))
        with self._lock:
            known = self._blocks if self._epoch == epoch else self._no_blocks()
            known = self._grown(db, known)
            if self._changing is db and db.txn_state("main") != apsw.SQLITE_TXN_WRITE:
                self._changing = None
            if self._changing is not db:  # else what it sees may be undone and replaced
                self._epoch, self._blocks = epoch, known
            return known

    def _newest_windows(self, db: apsw.Connection, hi: int) -> "_Blocks":
        """Return the windows that are in no block yet; those that were read before come from
        memory.

        Some of these may have been removed since: whoever reads their codes does not find them.
        What a connection sees while it writes may be undone and its seqs used again, so it is
        neither kept nor taken from memory.
        """
        writing = db.txn_state("main") == apsw.SQLITE_TXN_WRITE
        state = fetch_value(db, "SELECT value FROM meta WHERE name = ?", (self._epoch_name,)), hi
        with self._lock:
            last, known = self._newest
        if writing or last != state:
            known = self._no_blocks()._replace(hi=hi)
        if known.hi < int(fetch_value(db, f"SELECT max(seq) FROM {self.table}") or 0):
            rows = fetch(
                db, f"SELECT seq, codes FROM {self.table} WHERE seq > ? ORDER BY seq", (known.hi,)
            )
            seqs, bits, pools = self._block_of(db, rows)
            known = _Blocks(
                rows[-1][0],
                np.concatenate([known.seqs, seqs]),
                np.concatenate([known.pools, pools]),
                np.concatenate([known.bits, bits], axis=1),
                np.concatenate([known.counts, self.quantizer.bit_counts(bits)]),
                {},
            )
            if not writing:
                with self._lock:
                    self._newest = state, known
        return known

    def _no_blocks(self) -> "_Blocks":
        bits = np.empty((self.quantizer.words, 0), dtype=np.uint64)
        nobody = np.empty(0, dtype=np.uint8)
        return _Blocks(
            0, np.empty(0, dtype=np.int64), nobody, bits, self.quantizer.bit_counts(bits), {}
        )

    def _grown(self, db: apsw.Connection, known: "_Blocks") -> "_Blocks":
        """Return the blocks with those that were written since; one block at a time, as all take
        much memory.
        """
        sql = f"SELECT hi, length(bits), length(pools) FROM {self._block} WHERE hi > ? ORDER BY hi"
        sizes = fetch(db, sql, (known.hi,))
        if not sizes:
            return known
        words, count = self.quantizer.words, len(known.seqs)
        with damage_noticed():
            windows = [size // (8 * words) for _, size, _ in sizes]
            widest = max(
                owners // max(1, number)
                for (*_, owners), number in zip(sizes, windows, strict=True)
            )
            total = count + sum(windows)
            seqs, bits = np.empty(total, dtype=np.int64), np.empty((words, total), dtype=np.uint64)
            pools = np.empty(total, dtype=np.promote_types(known.pools.dtype, f"u{widest}"))
            seqs[:count], bits[:, :count], pools[:count] = known.seqs, known.bits, known.pools
            sql = f"SELECT seqs, bits, pools FROM {self._block} WHERE hi = ?"
            for (hi, *_), number in zip(sizes, windows, strict=True):
                [(packed, codes, owners)] = fetch(
                    db, f"SELECT seqs, bits, pools FROM {self._block} WHERE hi = ?", (hi,)
                )
                place = slice(count, count + number)
                seqs[place] = (
                    np.frombuffer(packed, "<i8").reshape(number)
                    if packed
                    else range(hi - number + 1, hi + 1)
                )
                bits[:, place] = np.frombuffer(codes, "<u8").reshape(words, number)
                pools[place] = np.frombuffer(owners, f"<u{len(owners) // max(1, number)}").reshape(
                    number
                )
                count += number
        return _Blocks(
            sizes[-1][0], seqs, pools, bits, self.quantizer.bit_counts(bits), known.labelled
        )

    def score(self, rows: Sequence[tuple[int, bytes]], turned: "NDArray[np.float32]") -> Scores:
        """Return the cosine of the best window of each row, seq and codes, with a rotated query."""
        if not rows:
            return {}
        seqs, codes = self._unpack(rows)
        scores = self.quantizer.scores(turned, codes)
        if len(seqs) == len(rows):
            return dict(zip(seqs.tolist(), scores.tolist(), strict=True))
        best: Scores = {}
        for seq, score in zip(seqs.tolist(), scores.tolist(), strict=True):
            best[seq] = max(score, best.get(seq, -1.0))
        return best

    def _unpack(self, rows: Sequence[tuple[int, bytes]]) -> "tuple[NDArray[np.int64], bytes]":
        """Return the seq of each window, and the codes of all windows."""
        numbers, codes = zip(*rows, strict=True)
        owners, joined = windows_of(codes, self.quantizer.code_bytes)
        with damage_noticed():
            return np.array(numbers, dtype=np.int64)[owners], joined


def _owned(pools: "NDArray[np.unsignedinteger[Any]]", selected: Selection) -> "NDArray[np.bool_]":
    """Return which windows are of the selected namespaces, given those of each."""
    own = np.zeros(len(pools), dtype=np.bool_)
    for pool in selected.pools:
        own |= pools == pool
    return own


def windows_of(codes: Sequence[bytes | None], size: int) -> "tuple[NDArray[np.int64], bytes]":
    """Return the row of each window, and the codes of all windows; a row may have none.

    Args:
        codes: The codes of each row's windows, one after the other.
        size: The bytes of a window.
    """
    sound = cast("Sequence[bytes]", codes)
    if {*map(type, codes)} == {bytes} and {*map(len, sound)} == {
        size
    }:  # as mostly, and a search reads many
        return np.arange(len(codes)), b"".join(sound)
    with damage_noticed():
        lengths = [len(code or b"") for code in codes]
        different = set(lengths)
        if any(length % size for length in different) or not _CODES.issuperset(map(type, codes)):
            # Damaged ones are searched by words alone, and `check` tells.
            codes = [
                code if type(code) is bytes and not len(code) % size else None for code in codes
            ]
            lengths = [len(code or b"") for code in codes]
            different = set(lengths)
        owners = np.arange(len(lengths))
        if different != {size}:
            owners = np.repeat(owners, [length // size for length in lengths])
        return owners, b"".join(filter(None, codes))


def _looks(newest: int, added: int) -> bool:
    """Return whether one of the seqs that were just added, up to the newest one, is one in
    `_LOOK_EVERY`.

    The high bits of the product tell: the low ones repeat those of the seq, and the seqs of
        memories that are written
    one by one are all odd, since the entries of the log come in between.
    """
    picked = (
        n * _SCRAMBLE % 2**32 < 2**32 // _LOOK_EVERY for n in range(newest - added + 1, newest + 1)
    )
    return added >= _LOOK_EVERY or any(picked)


def is_large(db: apsw.Connection, selected: Selection) -> bool:
    """Return whether more records match than should be scored one by one."""
    most = BLOCK_ROWS if selected.broad else EXACT_ROWS
    if not selected.also_ended:
        if selected.rarest <= most:
            return False
        if selected.plain and len(selected.labels) <= 1:
            return True
    sql = f"SELECT count(*) FROM (SELECT 1 FROM record r WHERE {selected.find} LIMIT ?)"
    return int(fetch_value(db, sql, (*selected.values, most + 1))) > most
