"""The SQLite store: records, words and vectors in one file, shared by processes on one machine."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from memories.core.times import to_millis
from memories.errors import Conflict, StoreBusy, StoreDamaged, StoreError
from memories.stores.damage import Damaged, damaged_record, refusal
from memories.stores.protocol import RefuseLost, treat_as_new
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Finding,
    Patch,
    Record,
    Ref,
    Space,
    StoreInfo,
)
from memories.stores.sqlite import spaces, words
from memories.stores.sqlite.connection import SQLiteFile
from memories.stores.sqlite.errors import (
    CommitsMissing,
    WordsDamaged,
    decoding_errors,
    refuse_folder_in_the_way,
    refuse_full,
)
from memories.stores.sqlite.query import (
    READ,
    READ_REFS,
    count_matching,
    count_without_vector,
    find_stand_in,
    ignore_changes,
    is_group,
    live_labels,
    namespace_ids,
    records_of,
    refs_json,
    selection,
    seq_of,
    sort_key,
)
from memories.stores.sqlite.rows import (
    VECTORS,
    advance_epoch,
    decode_group,
    delete_rows,
    encode_group,
    fetch,
    fetch_value,
    fields_json,
    insert_rows,
    state_crc,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.records import Matches, TurnQuery
    from memories.stores.sqlite.turns import RowCache


_REHEARSAL_BYTES = 131_072  # twice the number of bytes that a short memory adds to the log


class _RollBack(Exception):
    """Raised to roll back a transaction in which nothing failed."""


class SQLiteStore:
    """Implements all rules of `Store` on one SQLite file, which several processes may share."""

    def __init__(
        self,
        path: Path,
        space: Space | None,
        *,
        compact: bool = False,
        refuse_lost: RefuseLost = treat_as_new,
    ) -> None:
        """Initialize; nothing is opened or written yet.

        Args:
            path: The file.
            space: The space of the vectors to write and search; None in keyword-only mode.
            compact: Whether vectors are stored in compact form. This applies to a store's first
                vectors, and to vectors that replace all others.
            refuse_lost: Called before a missing file is treated as new.
        """
        self.damaged = Damaged()
        self._file = SQLiteFile(path, refuse_lost)
        self._compact, self._postings = compact, words.Postings()
        self._vectors = spaces.StoredVectors(space, compact=compact)
        self._staged_up_to: dict[tuple[spaces.StoredSpace, Collection], int] = {}
        self._row_cache: RowCache | None = None

    # --- writing

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`. If the folder is read-only, so is the transaction."""
        with self._file.read() if self._file.is_frozen else self._file.write():
            yield

    def rehearse(self) -> None:
        """See `OnThisDisk.rehearse`."""
        if not self._file.path.exists():
            refuse_full(self._file.path)
            return  # the first write creates the file
        # This is checked here, because SQLite notices such a folder only when it opens the file.
        refuse_folder_in_the_way(self._file.path)
        # Usually SQLite writes only at the end of a transaction. The pages that are flushed here go
        # into the log, where the next commit overwrites them. No reader sees them, and no other
        # connection drops its cache.
        with contextlib.suppress(StoreBusy, _RollBack), self._file.write(wait_seconds=0) as db:
            db.execute("INSERT INTO meta VALUES ('rehearsal', zeroblob(?))", (_REHEARSAL_BYTES,))
            db.cache_flush()
            raise _RollBack

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        with self._file.write() as db:
            rows = insert_rows(db, records)
            words.insert(db, rows)
            self._vectors.insert(db, rows)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self._file.write() as db:
            for patch in patches:
                seq = seq_of(db, patch.ref)
                if seq is not None:
                    self._patch(db, seq, patch)

    def _patch(self, db: apsw.Connection, seq: int, patch: Patch) -> None:
        records = records_of(db, fetch(db, f"{READ} WHERE r.seq = ?", (seq,)), self.damaged)
        if seq not in records:  # a change would give the damaged record a valid checksum
            raise refusal(damaged_record(patch.ref, "it can't be changed"))
        before = records[seq]
        fields = fields_json({**before.fields, **patch.fields})
        ended_at = None if patch.ended_at is None else to_millis(patch.ended_at)
        [(crc, pool)] = fetch(db, "SELECT crc, pool FROM record WHERE seq = ?", (seq,))
        new_crc = state_crc(crc, ended_at, patch.ended_by, fields, before.session)
        sql = (
            "UPDATE record SET ended_at = ?, ended_by = ?, fields = ?, state_crc = ? WHERE seq = ?"
        )
        try:
            db.execute(sql, (ended_at, patch.ended_by, fields, new_crc, seq))
        except apsw.ConstraintError as exc:
            raise Conflict(
                f"another record now has the key of {patch.ref.group}; look up the key again"
            ) from exc
        if (before.ended_at is None) != (ended_at is None):  # its words move to another table
            words.remove(db, [(seq, before)])
            words.insert(db, [(seq, pool, before._replace(ended_at=patch.ended_at))])

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """See `Store.touch`."""
        try:
            if not self._file.path.exists():
                return False  # counting reads must not create a store
            with self._file.write(wait_seconds=0, durable=False) as db:
                before = db.total_changes()
                sql = "SELECT 1 FROM meta WHERE name = 'accesses' AND value = ?"
                if batch and fetch(db, sql, (batch,)):
                    return True
                self._count_accesses(db, refs)
                if batch:
                    sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('accesses', ?)"
                    db.execute(sql, (batch,))
            # The caches contain no access counts, so they stay valid.
            ignore_changes(db, db.total_changes() - before)
        except CommitsMissing:
            return False  # reads still work; the next write or status reports the loss
        except StoreDamaged:
            raise
        except (StoreError, PermissionError):
            return False  # busy, full or read-only; a search must not fail because of a statistic
        return True

    def _count_accesses(self, db: apsw.Connection, refs: Sequence[Ref]) -> None:
        rows: list[tuple[int, int, int]] = []
        for ref, count in Counter(refs).items():
            seq = seq_of(db, ref)
            if seq is not None:
                rows.append((seq, count, count))
        sql = (
            "INSERT INTO access (seq, count) VALUES (?, ?) "
            "ON CONFLICT (seq) DO UPDATE SET count = count + ?"
        )
        db.executemany(sql, rows)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self._file.in_write:
            raise StoreError("a permanent removal can't be part of a transaction")
        from memories.stores.sqlite import whole_file  # noqa: F401 - loaded before records are gone

        with self._file.write() as db:
            self._drop(db, refs)
            erasure = fetch_value(db, "SELECT value FROM meta WHERE name = 'erasing'")
        self._file.erase_leftover_bytes()
        with self._file.write() as db:  # if another erasure has begun, this changes nothing
            db.execute("DELETE FROM meta WHERE name = 'erasing' AND value = ?", (erasure,))
        self.damaged.remove(set(refs).__contains__)
        return self._file.snapshots()

    def _drop(self, db: apsw.Connection, refs: Sequence[Ref]) -> None:
        """Delete records.

        Until the leftover bytes are erased, the file still contains them, and `info` reports
        this.
        """
        refs_by_seq: dict[int, Ref] = {}
        for ref in refs:
            seq = seq_of(db, ref)
            if seq is not None:
                refs_by_seq[seq] = ref
        for seq, ref in refs_by_seq.items():
            table = VECTORS.get(ref.collection)
            if table is not None and fetch(db, f"SELECT 1 FROM {table} WHERE seq = ?", (seq,)):
                self._vectors.index(db, ref.collection).remove(db, seq)
        seqs = sorted(refs_by_seq)
        sql = f"{READ} WHERE r.seq IN (SELECT value FROM json_each(?))"
        sound = records_of(db, fetch(db, sql, (json.dumps(seqs),)), Damaged())
        words.remove(db, ((seq, sound.get(seq)) for seq in seqs))
        spaces.drop_staged_vectors(db, seqs)
        delete_rows(db, seqs)
        # Each erasure has a number of its own, so that it can't clear the mark of another erasure.
        advance_epoch(db, "erasing")

    # --- changing the space

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        stored = spaces.storage_space(space, compact=self._compact)
        key = (stored, collection)
        with self._file.read() as db:
            after = self._staged_up_to.get(key, 0)
            records = spaces.find_without(db, stored, collection, limit, self.damaged, after=after)
            if after and len(records) < limit:  # earlier staged vectors may have been dropped
                records = spaces.find_without(db, stored, collection, limit, self.damaged)
            self._staged_up_to[key] = min(records) - 1 if records else 0
            return list(records.values())

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        with self._file.write() as db:
            by_collection: dict[Collection, dict[int, NDArray[np.float32]]] = {}
            for ref, windows in vectors.items():
                seq = seq_of(db, ref)
                if seq is not None:
                    by_collection.setdefault(ref.collection, {})[seq] = windows
            if by_collection:
                spaces.stage(db, spaces.storage_space(space, compact=self._compact), by_collection)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        with self._file.write() as db:
            spaces.switch(db, spaces.storage_space(space, compact=self._compact), self.damaged)

    def use_space(self, space: Space) -> None:
        """See `Store.use_space`."""
        self._vectors = spaces.StoredVectors(space, compact=self._compact)

    # --- reading

    def scan(
        self,
        where: Filter,
        *,
        limit: int,
        after: tuple[str, int] | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """See `Store.scan`."""
        direction, sign = ("DESC", "<") if newest_first else ("ASC", ">")
        order = f"ORDER BY r.grp {direction}, r.position {direction} LIMIT ?"
        wanted = limit
        with self._file.read() as db:
            while True:
                rows: list[tuple[Any, ...]] = []
                for namespace_id in namespace_ids(db, where):  # the index sorts within a namespace
                    selected = selection(db, where, [namespace_id])
                    condition, values = selected.in_order(wanted), selected.values
                    if after is not None:
                        condition += f" AND (r.grp, r.position) {sign} (?, ?)"
                        values += (encode_group(after[0]), after[1])
                    rows += fetch(db, f"{READ} WHERE {condition} {order}", (*values, wanted))
                rows.sort(key=sort_key, reverse=newest_first)
                records = list(records_of(db, rows[:wanted], self.damaged).values())
                if len(records) >= limit or len(rows) < wanted:
                    return records[:limit]
                wanted *= 2  # damaged records were left out, so read more

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        with self._file.read() as db:
            selected = selection(db, where)
            sql = (
                "SELECT DISTINCT p.namespace, r.grp FROM record r JOIN pool p ON p.id = r.pool "
                f"WHERE {selected.find} ORDER BY r.grp, p.namespace LIMIT ?"
            )
            groups = [
                (namespace, decode_group(group))
                for namespace, group in fetch(db, sql, (*selected.values, limit))
                if is_group(group)
            ]
            stand_in = None if groups else find_stand_in(db, where)
        return groups if stand_in is None else [(stand_in.namespace, stand_in.group)]

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        with self._file.read() as db:
            selected = selection(db, where)
            sql = (
                "SELECT p.namespace, r.grp, r.position FROM record r JOIN pool p ON p.id = r.pool "
                f"WHERE {selected.find} ORDER BY r.grp, r.position"
            )
            refs = [
                Ref(where.collection, namespace, decode_group(group), position)
                for namespace, group, position in fetch(db, sql, selected.values)
                if is_group(group)
            ]
            stand_in = None if refs else find_stand_in(db, where)
        return refs if stand_in is None else [stand_in]

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        with self._file.read() as db:
            selected = selection(db, where)
            sql = (
                "SELECT p.namespace, r.grp, r.position, a.count "
                "FROM access a JOIN record r ON r.seq = a.seq JOIN pool p ON p.id = r.pool "
                f"WHERE {selected.find} AND a.count > 0 ORDER BY a.count DESC, r.grp, p.namespace"
            )
            rows = fetch(db, sql, selected.values)
        return [
            (Ref(where.collection, namespace, decode_group(group), position), count)
            for namespace, group, position, count in rows
            if is_group(group)
        ]

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        with self._file.read() as db:
            return count_matching(db, where, at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        with self._file.read() as db:
            if where == Filter(where.collection, where.namespaces):
                with decoding_errors(db.filename):
                    return live_labels(db, namespace_ids(db, where), key)
            selected = selection(db, where)
            column, condition = ("l.key", "1") if key is None else ("l.value", "l.key = ?")
            sql = (
                f"SELECT {column}, count(*) FROM label l "
                "JOIN record_label m ON m.label = l.id JOIN record r ON r.seq = m.seq "
                f"WHERE {condition} AND {selected.find} GROUP BY 1 ORDER BY 1"
            )
            values = selected.values if key is None else (key, *selected.values)
            rows = fetch(db, sql, values)
            return {name: count for name, count in rows if isinstance(name, str)}

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        with self._file.read() as db:
            selected = selection(db, where)
            day = "(r.created_at - iif(r.created_at < 0, 86399999, 0)) / 86400000"
            sql = f"SELECT {day}, count(*) FROM record r WHERE {selected.find} GROUP BY 1"
            rows = fetch(db, sql, selected.values)
            return {day: count for day, count in rows if isinstance(day, int)}

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        with self._file.read() as db:
            rows = fetch(db, READ_REFS, (refs_json(refs),))
            return list(records_of(db, rows, self.damaged).values())

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        with self._file.read() as db:
            ids = namespace_ids(db, Filter(collection, tuple(namespaces)))
            sql = (
                "SELECT DISTINCT l.value FROM label l JOIN label_pool m ON m.label = l.id "
                f"WHERE l.key = ? AND m.pool IN ({','.join(map(str, ids))}) ORDER BY 1"
            )
            return [value for (value,) in fetch(db, sql, (key,)) if isinstance(value, str)]

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        sql = (
            "SELECT namespace FROM pool p WHERE collection = ? "
            "AND EXISTS (SELECT 1 FROM record WHERE pool = p.id) ORDER BY 1"
        )
        with self._file.read() as db:
            rows = fetch(db, sql, (collection,))
            return [namespace for (namespace,) in rows if isinstance(namespace, str)]

    # --- searching

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        with self._file.read() as db:
            selected = selection(db, where)
            index = None
            if vector is not None:
                index = self._vectors.index_to_search(db, where.collection)
            try:
                word_scores = words.find_best(db, self._postings, selected, terms, k)
            except WordsDamaged as exc:
                if index is None:
                    raise
                self.damaged.note(exc.finding())
                word_scores = {}
            similarities: dict[int, float] = {}
            if vector is not None and index is not None:
                query = index.quantizer.rotate_query(vector)
                similarities = index.find_best(db, selected, query, k)
                only_by_words = [seq for seq in word_scores if seq not in similarities]
                similarities.update(index.score_exactly(db, only_by_words, query))
            seqs = json.dumps(list({**word_scores, **similarities}))
            rows = fetch(db, f"{READ} WHERE r.seq IN (SELECT value FROM json_each(?))", (seqs,))
            return [
                Candidate(record, similarities.get(seq), word_scores.get(seq, 0.0))
                for seq, record in records_of(db, rows, self.damaged).items()
            ]

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        from memories.stores.sqlite.turns import RowCache, TurnSearch

        if self._row_cache is None:
            self._row_cache = RowCache()
        with self._file.read() as db:
            vectors = None
            if query.vector is not None:
                vectors = self._vectors.index_to_search(db, where.collection)
            search = TurnSearch(
                db,
                selection(db, where),
                vectors,
                query,
                self._postings,
                self._row_cache,
                self.damaged,
            )
            return search.run()

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        with self._file.read() as db:
            return self._vectors.read(db, refs)

    # --- the store as a whole

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        with self._file.read() as db:
            version = fetch_value(db, "PRAGMA user_version")
            space = spaces.read_space(db)
            is_erasing = bool(fetch(db, "SELECT 1 FROM meta WHERE name = 'erasing'"))
            without_vector = count_without_vector(db, where)
        return StoreInfo(
            url=f"sqlite:///{self._file.path}",
            schema_version=version or None,
            model=(space.model or None) if space else None,
            dimension=(space.dimension or None) if space else None,
            size_bytes=self._file.size_bytes(),
            without_vector_count=without_vector,
            erasing=is_erasing,
            log_bytes=self._file.log_bytes(),
            missing_commits=self._file.missing_commits(),
            compact=bool(space and space.compact),
        )

    def check(self, *, deep: bool) -> list[Finding]:
        """See `Store.check`."""
        from memories.stores.sqlite.check import check

        with self._file.read() as db:
            return check(db, self._vectors, deep=deep)

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        from memories.stores.sqlite.check import repair

        with self._file.write() as db:
            return repair(db, self._vectors)

    def close(self) -> None:
        """See `Store.close`."""
        self._file.close()
