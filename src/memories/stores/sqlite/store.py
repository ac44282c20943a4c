"""The SQLite store: records, words and vectors of one machine in one file, for many processes at once."""

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from memories.errors import Conflict, StoreDamaged, StoreError
from memories.stores.records import Candidate, Collection, Filter, Matches, Patch, Query, Record, Ref, Space, StoreInfo
from memories.stores.sqlite import schema, spaces
from memories.stores.sqlite import words as sqlite_words
from memories.stores.sqlite.connection import SQLiteFile
from memories.stores.sqlite.query import (
    condition,
    damage_noticed,
    decode_group,
    encode_group,
    fetch,
    fetch_value,
    order_key,
    pools,
)
from memories.times import from_millis, to_millis

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.sqlite.turns import LastPlaces
    from memories.stores.sqlite.vectors import VectorIndex

_COLUMNS = """
SELECT r.seq, p.collection, p.namespace, r.grp, r.position, r.created_at, r.ended_at, r.ended_by, r.key, r.labels,
       r.fields, r.crc, r.text, coalesce(a.count, 0), r.session
"""
_READ = f"{_COLUMNS} FROM record r JOIN pool p ON p.id = r.pool LEFT JOIN access a ON a.seq = r.seq"
_READ_THESE = f"""
{_COLUMNS} FROM json_each(?) wanted
CROSS JOIN pool p ON p.collection = wanted.value ->> 0 AND p.namespace = wanted.value ->> 1
CROSS JOIN record r ON r.pool = p.id AND r.position = wanted.value ->> 2
  AND r.grp = iif(wanted.value ->> 4, unhex(wanted.value ->> 3), wanted.value ->> 3)
LEFT JOIN access a ON a.seq = r.seq
"""
_CODES_OF_THESE = """
SELECT wanted.key, v.codes FROM json_each(?) wanted
CROSS JOIN pool p ON p.collection = wanted.value ->> 0 AND p.namespace = wanted.value ->> 1
CROSS JOIN record r ON r.pool = p.id AND r.position = wanted.value ->> 2
  AND r.grp = iif(wanted.value ->> 4, unhex(wanted.value ->> 3), wanted.value ->> 3)
CROSS JOIN {table} v ON v.seq = r.seq
"""
_FIND = """
SELECT r.seq FROM pool p JOIN record r ON r.pool = p.id
WHERE p.collection = ? AND p.namespace = ? AND r.grp = ? AND r.position = ?
"""
_FORGET_LABELS = """
DELETE FROM label_pool WHERE NOT EXISTS (
  SELECT 1 FROM record_label m JOIN record r ON r.seq = m.seq
  WHERE m.label = label_pool.label AND r.pool = label_pool.pool
)
"""


class SQLiteStore:
    """Implements `Store` on one SQLite file; every rule of the protocol holds, several processes included."""

    def __init__(self, path: Path, space: Space | None) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            path: The file.
            space: The space of the vectors that will be written and searched; None in keyword-only mode.
        """
        self._file = SQLiteFile(path)
        self._space = space
        self._indexes: dict[tuple[Collection, int], VectorIndex] = {}
        self._staged_up_to: dict[tuple[str, Collection], int] = {}
        self._last_places: LastPlaces | None = None

    # --- writing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        with self._file.write():
            yield

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        with self._file.write() as db:
            embedded: set[Collection] = set()
            for record in records:
                seq = _insert(db, record)
                if record.vectors is not None:
                    if not embedded:
                        spaces.claim(db, self._require_space())
                    self._vectors(db, record.ref.collection).insert(db, seq, record.vectors)
                    embedded.add(record.ref.collection)
            for collection in embedded:
                self._vectors(db, collection).seal(db, added=len(records))

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self._file.write() as db:
            for patch in patches:
                seq = _seq(db, patch.ref)
                if seq is None:
                    continue
                [(stored, was)] = fetch(db, "SELECT fields, ended_at FROM record WHERE seq = ?", (seq,))
                fields = {**json.loads(stored or "{}"), **patch.fields}
                ended = None if patch.ended_at is None else to_millis(patch.ended_at)
                try:
                    db.execute(
                        "UPDATE record SET ended_at = ?, ended_by = ?, fields = ? WHERE seq = ?",
                        (ended, patch.ended_by, _to_json(fields), seq),
                    )
                except apsw.ConstraintError as exc:
                    raise Conflict(f"another record has the key of {patch.ref.group} now; read it again") from exc
                if (was is None) != (ended is None):
                    sqlite_words.remove(db, seq)
                    [record] = self._records(db, fetch(db, f"{_READ} WHERE r.seq = ?", (seq,)))
                    sqlite_words.insert(db, seq, record)

    def touch(self, refs: Sequence[Ref]) -> None:
        """See `Store.touch`."""
        sql = "INSERT INTO access (seq, count) VALUES (?, 1) ON CONFLICT (seq) DO UPDATE SET count = count + 1"
        try:
            with self._file.write(wait_seconds=0, durable=False) as db:
                db.executemany(sql, [(seq,) for seq in (_seq(db, ref) for ref in refs) if seq is not None])
        except StoreDamaged:
            raise
        except StoreError:
            return  # busy, full or read-only: a read does not fail for its statistic

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self._file.in_write:
            raise StoreError("removing for good rewrites the file and can't be part of a transaction")
        with self._file.write() as db:
            for ref in refs:
                seq = _seq(db, ref)
                if seq is not None:
                    self._remove(db, seq, ref.collection)
            db.execute("DELETE FROM label WHERE id NOT IN (SELECT label FROM record_label)")
            db.execute(_FORGET_LABELS)
            sqlite_words.erase(db)
            db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('erasing', 1)")
        self._file.erase_free_pages()
        with self._file.write() as db:
            db.execute("DELETE FROM meta WHERE name = 'erasing'")
        return self._file.snapshots()

    def _remove(self, db: apsw.Connection, seq: int, collection: Collection) -> None:
        if fetch(db, f"SELECT 1 FROM {schema.VECTORS[collection]} WHERE seq = ?", (seq,)):
            self._vectors(db, collection).remove(db, seq)
        spaces.drop_staged(db, [seq])
        sqlite_words.remove(db, seq)
        for table in ("record_label", "access", "record"):
            db.execute(f"DELETE FROM {table} WHERE seq = ?", (seq,))

    # --- changing the space ----------------------------------------------------------------------------------------

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        known = (space.model, collection)
        with self._file.read() as db:
            behind = self._staged_up_to.get(known, 0)
            seqs = spaces.without(db, space, collection, limit, behind=behind)
            if behind and len(seqs) < limit:  # what was staged before it may have been dropped
                seqs = spaces.without(db, space, collection, limit)
            self._staged_up_to[known] = seqs[0] - 1 if seqs else 0
            rows = fetch(db, f"{_READ} WHERE r.seq IN (SELECT value FROM json_each(?))", (json.dumps(seqs),))
            return self._records(db, rows)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        with self._file.write() as db:
            found: dict[Collection, dict[int, NDArray[np.float32]]] = {}
            for ref, given in vectors.items():
                seq = _seq(db, ref)
                if seq is not None:
                    found.setdefault(ref.collection, {})[seq] = given
            if found:
                spaces.stage(db, space, found)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        with self._file.write() as db:
            spaces.switch(db, space)

    # --- reading ---------------------------------------------------------------------------------------------------

    def scan(
        self, where: Filter, *, limit: int, after: tuple[str, int] | None = None, newest_first: bool = False
    ) -> list[Record]:
        """See `Store.scan`."""
        direction, sign = ("DESC", "<") if newest_first else ("ASC", ">")
        found: list[tuple[Any, ...]] = []
        with self._file.read() as db:
            for pool in pools(db, where):
                matching = condition(db, where, [pool])
                sql, values = matching.find, matching.values
                if after is not None:
                    sql += f" AND (r.grp, r.position) {sign} (?, ?)"
                    values += (encode_group(after[0]), after[1])
                order = f"ORDER BY r.grp {direction}, r.position {direction} LIMIT ?"
                found += fetch(db, f"{_READ} WHERE {sql} {order}", (*values, limit))
            with damage_noticed():
                found.sort(key=lambda row: order_key(row[3], row[4], row[2]), reverse=newest_first)
            return self._records(db, found[:limit])

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        with self._file.read() as db:
            matching = condition(db, where, pools(db, where))
            rows = fetch(
                db,
                "SELECT DISTINCT p.namespace, r.grp FROM record r JOIN pool p ON p.id = r.pool "
                f"WHERE {matching.find} ORDER BY r.grp, p.namespace LIMIT ?",
                (*matching.values, limit),
            )
            with damage_noticed():
                return [(namespace, decode_group(group)) for namespace, group in rows]

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        limit = -1 if at_most is None else at_most
        with self._file.read() as db:
            matching = condition(db, where, pools(db, where))
            sql = f"SELECT count(*) FROM (SELECT 1 FROM record r WHERE {matching.find} LIMIT ?)"
            return int(fetch_value(db, sql, (*matching.values, limit)))

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        column, wanted = ("l.key", "1") if key is None else ("l.value", "l.key = ?")
        with self._file.read() as db:
            matching = condition(db, where, pools(db, where))
            rows = fetch(
                db,
                f"SELECT {column}, count(*) FROM label l JOIN record_label m ON m.label = l.id "
                f"JOIN record r ON r.seq = m.seq WHERE {wanted} AND {matching.find} GROUP BY 1 ORDER BY 1",
                (*([] if key is None else [key]), *matching.values),
            )
            return dict(rows)

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        with self._file.read() as db:
            matching = condition(db, where, pools(db, where))
            words = sqlite_words.best(db, matching, terms, k)
            similar: dict[int, float] = {}
            if vector is not None and self._comparable(db):
                index = self._vectors(db, where.collection)
                similar = index.best(db, matching, vector, k)
                similar |= index.exact(db, [seq for seq in words if seq not in similar], vector)
            seqs = json.dumps(list({**words, **similar}))
            rows = fetch(db, f"{_READ} WHERE r.seq IN (SELECT value FROM json_each(?))", (seqs,))
            records = self._records(db, rows)
            return [
                Candidate(record, similar.get(row[0]), words.get(row[0], 0.0))
                for row, record in zip(rows, records, strict=True)
            ]

    def matches(self, where: Filter, query: Query) -> Matches:
        """See `Store.matches`."""
        from memories.stores.sqlite.turns import LastPlaces, find

        if self._last_places is None:
            self._last_places = LastPlaces()
        with self._file.read() as db:
            matching = condition(db, where, pools(db, where))
            index = self._vectors(db, where.collection) if query.vector is not None and self._comparable(db) else None
            return find(db, matching, index, query, self._last_places)

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        with self._file.read() as db:
            return self._records(db, fetch(db, _READ_THESE, (json.dumps([_written(ref) for ref in refs]),)))

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        with self._file.read() as db:
            among = ",".join(map(str, pools(db, Filter(collection, tuple(namespaces)))))
            rows = fetch(
                db,
                "SELECT DISTINCT l.value FROM label l JOIN label_pool m ON m.label = l.id "
                f"WHERE l.key = ? AND m.pool IN ({among}) ORDER BY 1",
                (key,),
            )
            return [value for (value,) in rows]

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        sql = "SELECT namespace FROM pool p WHERE collection = ? AND EXISTS (SELECT 1 FROM record WHERE pool = p.id)"
        with self._file.read() as db:
            return [namespace for (namespace,) in fetch(db, f"{sql} ORDER BY 1", (collection,))]

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        found: dict[Ref, NDArray[np.float32]] = {}
        with self._file.read() as db:
            if spaces.in_use(db) is None:
                return found
            for collection, table in schema.VECTORS.items():
                wanted = [ref for ref in refs if ref.collection == collection]
                written = json.dumps([_written(ref) for ref in wanted])
                rows = fetch(db, _CODES_OF_THESE.format(table=table), (written,))
                decoded = self._vectors(db, collection).decode([codes for _, codes in rows]) if rows else []
                found |= {wanted[number]: vectors for (number, _), vectors in zip(rows, decoded, strict=True)}
        return found

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        with self._file.read() as db:
            version = fetch_value(db, "PRAGMA user_version")
            stored = spaces.in_use(db)
            erasing = bool(fetch(db, "SELECT 1 FROM meta WHERE name = 'erasing'"))
            matching = condition(db, where, pools(db, where))
            without = fetch_value(
                db,
                f"SELECT count(*) FROM record r WHERE {matching.find} "
                f"AND r.seq NOT IN (SELECT seq FROM {schema.VECTORS[where.collection]})",
                matching.values,
            )
        return StoreInfo(
            url=f"sqlite:///{self._file.path}",
            schema_version=version or None,
            model=stored[0] if stored else None,
            size_bytes=self._file.size_bytes(),
            without_vector_count=without,
            erasing=erasing,
        )

    def close(self) -> None:
        """See `Store.close`."""
        self._file.close()

    def _comparable(self, db: apsw.Connection) -> bool:
        """Return whether the store has vectors; raise if they are of another space."""
        if spaces.in_use(db) is None:
            return False
        spaces.claim(db, self._require_space())
        return True

    def _vectors(self, db: apsw.Connection, collection: Collection) -> "VectorIndex":
        """Return the vectors in use, whatever space the store was opened with."""
        stored = spaces.in_use(db)
        dimension = stored[1] if stored else self._require_space().dimension
        if (collection, dimension) not in self._indexes:
            from memories.stores.sqlite.quantize import Quantizer
            from memories.stores.sqlite.vectors import VectorIndex

            quantizer = Quantizer(dimension)
            self._indexes |= {(known, dimension): VectorIndex(quantizer, known) for known in Collection}
        return self._indexes[collection, dimension]

    def _require_space(self) -> Space:
        if self._space is None:
            raise StoreError("this store was opened without an embedder and was given a vector")
        return self._space

    def _records(self, db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> list[Record]:
        with damage_noticed():
            ids = {int(label) for row in rows for label in (row[9] or "").split(",") if label}
        found = fetch(
            db,
            "SELECT id, key, value FROM label WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )
        labels = {str(label): (key, value) for label, key, value in found}
        with damage_noticed():
            return [self._record(row, labels) for row in rows]

    def _record(self, row: tuple[Any, ...], labels: Mapping[str, tuple[str, str]]) -> Record:
        (seq, collection, namespace, group, position, created_at, ended_at, ended_by, key) = row[:9]
        (label_ids, fields, crc, text, accesses, session) = row[9:]
        record = Record(
            ref=Ref(Collection(collection), namespace, decode_group(group), position),
            text=text,
            created_at=from_millis(created_at),
            ended_at=None if ended_at is None else from_millis(ended_at),
            ended_by=ended_by,
            key=key,
            labels=dict(labels[label] for label in label_ids.split(",")) if label_ids else {},
            fields=json.loads(fields) if fields else {},
            accesses=accesses,
            session=session,
        )
        if _crc(record) != crc:
            raise StoreDamaged(
                f"record {seq} of {self._file.path} is damaged: it does not match its checksum; restore a backup"
            )
        return record


# --- rows ------------------------------------------------------------------------------------------------------------


def _insert(db: apsw.Connection, record: Record) -> int:
    """Add a record with its labels and words; return its seq."""
    pool = _pool(db, record.ref)
    labels = [_label(db, key, value) for key, value in record.labels.items()]
    try:
        db.execute(
            "INSERT INTO record "
            "(pool, grp, position, created_at, ended_at, ended_by, key, labels, fields, crc, text, session) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                pool,
                encode_group(record.ref.group),
                record.ref.position,
                to_millis(record.created_at),
                None if record.ended_at is None else to_millis(record.ended_at),
                record.ended_by,
                record.key,
                ",".join(map(str, labels)) or None,
                _to_json(record.fields),
                _crc(record),
                record.text,
                record.session,
            ),
        )
    except apsw.ConstraintError as exc:
        what = f"version {record.ref.position} of {record.ref.group}"
        raise Conflict(f"{what} or its key was written by somebody else first; read it again") from exc
    seq = db.last_insert_rowid()
    db.executemany("INSERT INTO record_label (label, seq) VALUES (?, ?)", [(label, seq) for label in labels])
    db.executemany("INSERT OR IGNORE INTO label_pool (label, pool) VALUES (?, ?)", [(label, pool) for label in labels])
    if record.accesses:
        db.execute("INSERT INTO access (seq, count) VALUES (?, ?)", (seq, record.accesses))
    sqlite_words.insert(db, seq, record)
    return seq


def _pool(db: apsw.Connection, ref: Ref) -> int:
    named = (ref.collection, ref.namespace)
    db.execute("INSERT OR IGNORE INTO pool (collection, namespace) VALUES (?, ?)", named)
    return int(fetch_value(db, "SELECT id FROM pool WHERE collection = ? AND namespace = ?", named))


def _label(db: apsw.Connection, key: str, value: str) -> int:
    db.execute("INSERT OR IGNORE INTO label (key, value) VALUES (?, ?)", (key, value))
    return int(fetch_value(db, "SELECT id FROM label WHERE key = ? AND value = ?", (key, value)))


def _seq(db: apsw.Connection, ref: Ref) -> int | None:
    found = fetch_value(db, _FIND, (ref.collection, ref.namespace, encode_group(ref.group), ref.position))
    return None if found is None else int(found)


def _written(ref: Ref) -> tuple[str, str, int, str, bool]:
    """Return an address as JSON can hold it."""
    group = encode_group(ref.group)
    packed = isinstance(group, bytes)
    return ref.collection, ref.namespace, ref.position, group.hex() if isinstance(group, bytes) else group, packed


def _crc(record: Record) -> int:
    """Return the checksum of what never changes in a record."""
    labels = (part for pair in record.labels.items() for part in pair)
    ref = (record.ref.namespace, record.ref.group, str(record.ref.position), str(to_millis(record.created_at)))
    return zlib.crc32("\0".join((*ref, record.key or "", *labels, record.text)).encode())


def _to_json(fields: Mapping[str, Any]) -> str | None:
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept, separators=(",", ":")) if kept else None
