"""The SQLite store: records, words and vectors of one machine in one file, shared by many
processes.
"""

import contextlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from memories.core.times import to_millis
from memories.errors import Conflict, StoreBusy, StoreDamaged, StoreError
from memories.stores.damage import Damaged, damaged_record, refusal
from memories.stores.protocol import required
from memories.stores.records import (
    SEARCHED,
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
from memories.stores.sqlite import counts, schema, spaces
from memories.stores.sqlite import words as index
from memories.stores.sqlite.connection import SQLiteFile
from memories.stores.sqlite.errors import (
    CommitsMissing,
    WordsDamaged,
    refuse_folder_in_the_way,
    refuse_full,
)
from memories.stores.sqlite.query import (
    CODES_OF_REFS,
    READ,
    READ_REFS,
    damage_noticed,
    fetch,
    fetch_value,
    namespace_ids,
    overlook,
    records_of,
    refs_json,
    selection,
    seq_of,
    unwritable_ref,
)
from memories.stores.sqlite.rows import add, drop
from memories.stores.sqlite.words import Postings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.records import Matches, TurnQuery
    from memories.stores.sqlite.turns import LastPlaces
    from memories.stores.sqlite.vectors import VectorIndex


_REHEARSAL_BYTES = 131_072  # twice what storing a short memory writes to the log


class _Undone(Exception):
    """Undoes a transaction that went well."""


class SQLiteStore:
    """Implements `Store` on one SQLite file; every rule of the protocol holds, several processes
    included.
    """

    def __init__(self, path: Path, space: Space | None, *, compact: bool = False) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            path: The file.
            space: The space of the vectors to write and search; None in keyword-only mode.
            compact: Whether a store that gets its first vectors, or vectors anew, keeps them in
                less room.
        """
        self.damaged = Damaged()
        self._file = SQLiteFile(path)
        self._space, self._compact = space, compact
        self._indexes: dict[tuple[Collection, int, bool], VectorIndex] = {}
        self._staged_up_to: dict[tuple[spaces.Named, Collection], int] = {}
        self._last_places: LastPlaces | None = None
        self._postings = Postings()

    # --- writing
    # ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        with self._file.write():
            yield

    def rehearse(self) -> None:
        """See `OnThisDisk.rehearse`."""
        if not self._file.path.exists():
            refuse_full(self._file.path)
            return  # the first write makes it
        refuse_folder_in_the_way(
            self._file.path
        )  # only a new connection would meet it, and this thread may have one
        # SQLite writes at the end of a transaction. Flushed pages reach the log before, in the
        # place of the next commit, which writes over them; no reader sees them, and no other cache
        # is dropped.
        with contextlib.suppress(StoreBusy, _Undone), self._file.write(wait_seconds=0) as db:
            db.execute("INSERT INTO meta VALUES ('rehearsal', zeroblob(?))", (_REHEARSAL_BYTES,))
            db.cache_flush()
            raise _Undone

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        with self._file.write() as db:
            embedded: dict[Collection, list[tuple[int, NDArray[np.float32]]]] = {}
            for seq, record in zip(add(db, records), records, strict=True):
                if record.vectors is not None:
                    embedded.setdefault(record.ref.collection, []).append((seq, record.vectors))
            if embedded:
                spaces.claim(db, required(self._space), compact=self._compact)
            for collection, rows in embedded.items():
                self._vectors(db, collection).insert(db, rows)
                self._vectors(db, collection).seal(db, added=len(records))

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self._file.write() as db:
            for patch in patches:
                seq = seq_of(db, patch.ref)
                if seq is None:
                    continue
                before = self._sound(db, seq, patch.ref)
                ended_before = before.ended_at
                fields = schema.fields_json({**before.fields, **patch.fields})
                ended = None if patch.ended_at is None else to_millis(patch.ended_at)
                [(crc, pool)] = fetch(db, "SELECT crc, pool FROM record WHERE seq = ?", (seq,))
                state = schema.state_crc(crc, ended, patch.ended_by, fields, before.session)
                try:
                    db.execute(
                        "UPDATE record SET ended_at = ?, ended_by = ?, fields = ?, state_crc = ? WHERE seq = ?",
                        (ended, patch.ended_by, fields, state, seq),
                    )
                except apsw.ConstraintError as exc:
                    raise Conflict(
                        f"another record has the key of {patch.ref.group} now; read it again"
                    ) from exc
                if (ended_before is None) != (ended is None):
                    index.remove(db, [(seq, before)])
                    index.insert(db, [(seq, pool, before._replace(ended_at=patch.ended_at))])

    def _sound(self, db: apsw.Connection, seq: int, ref: Ref) -> Record:
        """Return a record that is going to change; a change must not give damage a checksum that
        fits.
        """
        found = records_of(db, fetch(db, f"{READ} WHERE r.seq = ?", (seq,)), self.damaged)
        if seq not in found:
            raise refusal(damaged_record(ref, "it can't be changed"))
        return found[seq]

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """See `Store.touch`."""
        sql = "INSERT INTO access (seq, count) VALUES (?, ?) ON CONFLICT (seq) DO UPDATE SET count = count + ?"
        try:
            with self._file.write(wait_seconds=0, durable=False) as db:
                before = db.total_changes()
                if batch and fetch(
                    db, "SELECT 1 FROM meta WHERE name = 'accesses' AND value = ?", (batch,)
                ):
                    return True
                found = ((seq_of(db, ref), count) for ref, count in Counter(refs).items())
                db.executemany(
                    sql, [(seq, count, count) for seq, count in found if seq is not None]
                )
                if batch:
                    db.execute(
                        "INSERT OR REPLACE INTO meta (name, value) VALUES ('accesses', ?)", (batch,)
                    )
            overlook(db, db.total_changes() - before)  # a search reads these counts each time
        except CommitsMissing:
            return False  # what is left can be read; writes and the status tell it
        except StoreDamaged:
            raise
        except StoreError:
            return False  # busy, full or read-only: nothing fails for its statistic
        return True

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        sql = "SELECT p.namespace, r.grp, r.position, a.count FROM access a JOIN record r ON r.seq = a.seq "
        with self._file.read() as db:
            selected = selection(db, where)
            sql += f"JOIN pool p ON p.id = r.pool WHERE {selected.find} AND a.count > 0 ORDER BY a.count DESC, r.grp"
            rows = fetch(db, sql, selected.values)
        named = (row for row in rows if _is_name(row[1]))
        return [
            (Ref(where.collection, name, schema.decode_group(group), at), count)
            for name, group, at, count in named
        ]

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self._file.in_write:
            raise StoreError(
                "removing for good rewrites the file and can't be part of a transaction"
            )
        with self._file.write() as db:
            self._drop(db, refs)
            erasure = fetch_value(db, "SELECT value FROM meta WHERE name = 'erasing'")
        self._file.erase_free_pages()
        with self._file.write() as db:  # unless another erasure has begun meanwhile
            db.execute("DELETE FROM meta WHERE name = 'erasing' AND value = ?", (erasure,))
        self.damaged.forget(set(refs).__contains__)
        return self._file.snapshots()

    def _drop(self, db: apsw.Connection, refs: Sequence[Ref]) -> None:
        """Delete records; until the free pages are erased, their bytes are in the file, which
        `info` reports.
        """
        seqs = {seq: ref for ref in refs if (seq := seq_of(db, ref)) is not None}
        for seq, ref in seqs.items():
            table = schema.VECTORS.get(ref.collection)
            if table is not None and fetch(db, f"SELECT 1 FROM {table} WHERE seq = ?", (seq,)):
                self._vectors(db, ref.collection).remove(db, seq)
        drop(db, seqs)
        schema.count_epoch(
            db, "erasing"
        )  # each has a number of its own, so that none ends what another has begun

    # --- changing the space
    # ----------------------------------------------------------------------------------------

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        named = spaces.named(space, compact=self._compact)
        known = (named, collection)
        with self._file.read() as db:
            behind = self._staged_up_to.get(known, 0)
            found = spaces.without(db, named, collection, limit, self.damaged, behind=behind)
            if behind and len(found) < limit:  # what was staged before it may have been dropped
                found = spaces.without(db, named, collection, limit, self.damaged)
            self._staged_up_to[known] = min(found) - 1 if found else 0
            return list(found.values())

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        with self._file.write() as db:
            found: dict[Collection, dict[int, NDArray[np.float32]]] = {}
            for ref, given in vectors.items():
                seq = seq_of(db, ref)
                if seq is not None:
                    found.setdefault(ref.collection, {})[seq] = given
            if found:
                spaces.stage(db, spaces.named(space, compact=self._compact), found)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        with self._file.write() as db:
            spaces.switch(db, spaces.named(space, compact=self._compact), self.damaged)

    # --- reading
    # ---------------------------------------------------------------------------------------------------

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
        wanted = limit
        with self._file.read() as db:
            while True:
                rows: list[tuple[Any, ...]] = []
                for namespace_id in namespace_ids(db, where):  # each in the order of its index
                    selected = selection(db, where, [namespace_id])
                    sql, values = selected.in_order(wanted), selected.values
                    if after is not None:
                        sql += f" AND (r.grp, r.position) {sign} (?, ?)"
                        values += (schema.encode_group(after[0]), after[1])
                    order = f"ORDER BY r.grp {direction}, r.position {direction} LIMIT ?"
                    rows += fetch(db, f"{READ} WHERE {sql} {order}", (*values, wanted))
                rows.sort(key=_place, reverse=newest_first)
                found = list(records_of(db, rows[:wanted], self.damaged).values())
                if len(found) >= limit or len(rows) < wanted:
                    return found[:limit]
                wanted *= 2  # damaged ones do not count

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        with self._file.read() as db:
            selected = selection(db, where)
            rows = fetch(
                db,
                "SELECT DISTINCT p.namespace, r.grp FROM record r JOIN pool p ON p.id = r.pool "
                f"WHERE {selected.find} ORDER BY r.grp, p.namespace LIMIT ?",
                (*selected.values, limit),
            )
            found = [
                (namespace, schema.decode_group(group))
                for namespace, group in rows
                if _is_name(group)
            ]
            unwritable = None if found else unwritable_ref(db, where)
            return found if unwritable is None else [(unwritable.namespace, unwritable.group)]

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        with self._file.read() as db:
            selected = selection(db, where)
            sql = "SELECT p.namespace, r.grp, r.position FROM record r JOIN pool p ON p.id = r.pool WHERE"
            rows = fetch(db, f"{sql} {selected.find} ORDER BY r.grp, r.position", selected.values)
            named = (
                (namespace, group, position)
                for namespace, group, position in rows
                if _is_name(group)
            )
            found = [
                Ref(where.collection, name, schema.decode_group(group), at)
                for name, group, at in named
            ]
            unwritable = None if found else unwritable_ref(db, where)
            return found if unwritable is None else [unwritable]

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        limit = -1 if at_most is None else at_most
        with self._file.read() as db:
            known = counts.counted(db, namespace_ids(db, where), where)
            if known is None:
                selected = selection(db, where)
                known = selected.rarest if selected.plain and len(selected.labels) == 1 else None
            if known is not None:
                return known if at_most is None else min(known, at_most)
            sql = f"SELECT count(*) FROM (SELECT 1 FROM record r WHERE {selected.find} LIMIT ?)"
            return int(fetch_value(db, sql, (*selected.values, limit)))

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        column, wanted = ("l.key", "1") if key is None else ("l.value", "l.key = ?")
        with self._file.read() as db:
            if where == Filter(where.collection, where.namespaces):
                with damage_noticed(db.filename):
                    return counts.live_labels(db, namespace_ids(db, where), key)
            selected = selection(db, where)
            rows = fetch(
                db,
                f"SELECT {column}, count(*) FROM label l JOIN record_label m ON m.label = l.id "
                f"JOIN record r ON r.seq = m.seq WHERE {wanted} AND {selected.find} GROUP BY 1 ORDER BY 1",
                (*([] if key is None else [key]), *selected.values),
            )
            return {name: number for name, number in rows if isinstance(name, str)}

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        with self._file.read() as db:
            selected = selection(db, where)
            day = "(r.created_at - iif(r.created_at < 0, 86399999, 0)) / 86400000"
            rows = fetch(
                db,
                f"SELECT {day}, count(*) FROM record r WHERE {selected.find} GROUP BY 1",
                selected.values,
            )
            return {day: number for day, number in rows if isinstance(day, int)}

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        with self._file.read() as db:
            selected = selection(db, where)
            vectors = None if vector is None else self._searched(db, where.collection)
            try:
                words = index.best(db, self._postings, selected, terms, k)
            except WordsDamaged as exc:
                if vectors is None:
                    raise
                words = index.left_out(exc, self.damaged)
            similar: dict[int, float] = {}
            if vector is not None and vectors is not None:
                turned = vectors.turn(vector)
                similar = vectors.best(db, selected, turned, k)
                similar |= vectors.exact(db, [seq for seq in words if seq not in similar], turned)
            seqs = json.dumps(list({**words, **similar}))
            rows = fetch(db, f"{READ} WHERE r.seq IN (SELECT value FROM json_each(?))", (seqs,))
            return [
                Candidate(record, similar.get(seq), words.get(seq, 0.0))
                for seq, record in records_of(db, rows, self.damaged).items()
            ]

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        from memories.stores.sqlite.turns import LastPlaces, find

        if self._last_places is None:
            self._last_places = LastPlaces(self._postings)
        with self._file.read() as db:
            vectors = None if query.vector is None else self._searched(db, where.collection)
            return find(db, selection(db, where), vectors, query, self._last_places, self.damaged)

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        with self._file.read() as db:
            return list(
                records_of(db, fetch(db, READ_REFS, (refs_json(refs),)), self.damaged).values()
            )

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        with self._file.read() as db:
            among = ",".join(map(str, namespace_ids(db, Filter(collection, tuple(namespaces)))))
            rows = fetch(
                db,
                "SELECT DISTINCT l.value FROM label l JOIN label_pool m ON m.label = l.id "
                f"WHERE l.key = ? AND m.pool IN ({among}) ORDER BY 1",
                (key,),
            )
            return [value for (value,) in rows if isinstance(value, str)]

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        sql = "SELECT namespace FROM pool p WHERE collection = ? AND EXISTS (SELECT 1 FROM record WHERE pool = p.id)"
        with self._file.read() as db:
            found = fetch(db, f"{sql} ORDER BY 1", (collection,))
            return [namespace for (namespace,) in found if isinstance(namespace, str)]

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        found: dict[Ref, NDArray[np.float32]] = {}
        with self._file.read() as db:
            stored = spaces.known(db)
            if stored is None or not all(stored[:2]):  # none, or damaged ones
                return found
            for collection, table in schema.VECTORS.items():
                wanted = [ref for ref in refs if ref.collection == collection]
                rows = fetch(db, CODES_OF_REFS.format(table=table), (refs_json(wanted),))
                sound = [
                    (number, codes)
                    for number, codes, crc in rows
                    if type(codes) is bytes and zlib.crc32(codes) == crc
                ]
                decoded = (
                    self._vectors(db, collection).decode([codes for _, codes in sound])
                    if sound
                    else []
                )
                found |= {
                    wanted[number]: vectors
                    for (number, _), vectors in zip(sound, decoded, strict=True)
                }
        return found

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        with self._file.read() as db:
            version = fetch_value(db, "PRAGMA user_version")
            stored = spaces.known(db)
            erasing = bool(fetch(db, "SELECT 1 FROM meta WHERE name = 'erasing'"))
            if where == Filter(where.collection, where.namespaces):
                without = counts.without_vector(db, namespace_ids(db, where))
            else:
                selected = selection(db, where)
                without = fetch_value(
                    db,
                    f"SELECT count(*) FROM record r WHERE {selected.find} "
                    f"AND r.seq NOT IN (SELECT seq FROM {schema.VECTORS[where.collection]})",
                    selected.values,
                )
        return StoreInfo(
            url=f"sqlite:///{self._file.path}",
            schema_version=version or None,
            model=(stored[0] or None) if stored else None,
            size_bytes=self._file.size_bytes(),
            without_vector_count=without,
            erasing=erasing,
            log_bytes=self._file.log_bytes(),
            missing_commits=self._file.missing_commits(),
            compact=bool(stored and stored[2]),
        )

    def check(self, *, deep: bool) -> list[Finding]:
        """See `Store.check`."""
        from memories.stores.sqlite.check import check

        with self._file.read() as db:
            return check(db, lambda collection: self._vectors(db, collection), deep=deep)

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        from memories.stores.sqlite.check import repair

        with self._file.write() as db:
            return repair(db, lambda collection: self._vectors(db, collection))

    def close(self) -> None:
        """See `Store.close`."""
        self._file.close()

    def _searched(self, db: apsw.Connection, collection: Collection) -> "VectorIndex | None":
        """Return the vectors to search, if there are any; raise if they are of another space."""
        if spaces.in_use(db) is None:
            return None
        spaces.claim(db, required(self._space), compact=self._compact)
        return self._vectors(db, collection)

    def _vectors(self, db: apsw.Connection, collection: Collection) -> "VectorIndex":
        """Return the vectors in use, whatever space the store was opened with."""
        _, dimension, compact = spaces.form_in_use(db) or spaces.named(
            required(self._space), compact=self._compact
        )
        if (collection, dimension, compact) not in self._indexes:
            from memories.stores.sqlite.quantize import Quantizer
            from memories.stores.sqlite.vectors import VectorIndex

            quantizer = Quantizer(dimension, compact=compact)
            self._indexes |= {
                (known, dimension, compact): VectorIndex(quantizer, known) for known in SEARCHED
            }
        return self._indexes[collection, dimension, compact]


def _place(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return what rows of `READ` are sorted by; SQLite sorts numbers before texts before bytes."""
    kind = 2 if isinstance(row[3], bytes) else 1 if isinstance(row[3], str) else 0
    return kind, row[3], row[4], str(row[2])


def _is_name(group: Any) -> bool:
    """Return whether a group can be written, so that its records can be asked for."""
    return isinstance(group, str) or (isinstance(group, bytes) and len(group) == 16)
