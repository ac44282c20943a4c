"""The PostgreSQL store: a team's records, words and vectors on one server or several."""

import contextlib
import functools
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from memories.core.times import to_millis
from memories.errors import StoreDamaged, StoreError
from memories.stores.damage import Damaged
from memories.stores.postgres import counts, rewrite, search
from memories.stores.postgres import vectors as vector_tables
from memories.stores.postgres.connection import MANY, Server
from memories.stores.postgres.counts import Counted, Part
from memories.stores.postgres.errors import Interrupted
from memories.stores.postgres.query import (
    RECORDS,
    Selection,
    Transaction,
    Vectors,
    at_refs,
    one_of,
    records_of,
    selection,
    seqs_of,
)
from memories.stores.postgres.schema import ROW, ROW_TYPES, jsonb, row_of
from memories.stores.postgres.search import indexed_tokens
from memories.stores.postgres.url import parse_partitions
from memories.stores.postgres.vectors import Probe
from memories.stores.protocol import RefuseLost, treat_as_new, used_among
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
    require_space,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.postgres.shared import LogListener, PostgresClaims
    from memories.stores.postgres.vectors import NewVectors
    from memories.stores.records import Matches, TurnQuery

_COUNT_ACCESS = """
INSERT INTO access (namespace, seq, count)
SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[])
ON CONFLICT (namespace, seq) DO UPDATE SET count = access.count + excluded.count
"""
_log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _repeat_if_interrupted(
    method: "Callable[Concatenate[PostgresStore, _P], _R]",
) -> "Callable[Concatenate[PostgresStore, _P], _R]":
    """Repeat a read once if it was interrupted by a lost connection or a replaced table."""

    @functools.wraps(method)
    def read(store: "PostgresStore", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(store, *args, **kwargs)
        except Interrupted:
            if store._server.in_write:
                raise
            return method(store, *args, **kwargs)

    return read


class PostgresStore:
    """Implements `Store` on PostgreSQL 15 or newer; vectors need pgvector 0.8 or newer.

    It follows every rule of the protocol, even with many processes and machines. Specific to
    PostgreSQL:

    - *Transactions* wait for each other only if they use the same namespaces: a transaction locks
      each namespace when it first reads or writes it. If two transactions lock namespaces in
      opposite orders, one of them gets `StoreBusy`. `namespaces` and `unstaged` lock the whole
      store, so a transaction should call them first.
    - *Durability* depends on the server. `synchronous_commit` is raised to `on` if it is weaker,
      and nothing is written to a server with `fsync = off`. With `synchronous_standby_names` set,
      acknowledged writes are on the replicas too.
    - *Lost connections*: a read is repeated once, and a write is never repeated. If the connection
      was lost during the commit, the error says that the write may or may not be stored. A server
      that sends nothing for a minute during a read, or for two minutes during a write, counts as
      unreachable, and nothing is repeated. Erasures and migrations have no time limit.
    - *Word scores*: among more than 4,000 records, very common words are ignored if the query also
      contains rarer ones.
    - *Removal* replaces the partitions that contained the records with copies, which takes a while.
      Meanwhile, other clients can read and write; they wait briefly at the end. Removed data
      remains in archives, backups and statement logs, and in the server's write-ahead log until the
      log is recycled.
    - *Partitions on other nodes* (foreign tables of postgres_fdw): the nodes commit one after the
      other. After a crash between two commits, the counts and the list of labels (the tables
      `corpus` and `label`) may lack a record that was never acknowledged. Removed records stay in
      the files of such a node until VACUUM FULL is run there.
    """

    def __init__(
        self, url: str, space: Space | None, refuse_lost: RefuseLost = treat_as_new
    ) -> None:
        """Initialize; nothing is opened or written yet.

        Args:
            url: `postgresql://user:password@host:port/database`, with any of libpq's options after
                a question mark, and two of our own: `schema`, the schema of the tables (default:
                memories), and `partitions`, the number of partitions of a new store (default: 4;
                with 1 the tables are not partitioned).
            space: The space of the vectors to write and search; None in keyword-only mode.
            refuse_lost: Called before a database without the store's tables is treated as new.

        Raises:
            ConfigError: The URL is invalid.
        """
        self._server = Server(url, refuse_lost)
        self._space = space
        self.damaged = Damaged()
        self._needs_indexes = False  # whether a load has added records without indexing vectors
        self._checked_parts: set[Part] = set()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        with self._server.write():
            yield

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        if not records:
            return
        with self._server.write({record.ref.namespace for record in records}) as db:
            used = None
            if any(record.vectors is not None for record in records):
                used = vector_tables.ensure_space(db, require_space(self._space))
            large = _append(db, records, used)
            self._index_later(db, large, loading=len(records) >= MANY)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self._server.write({patch.ref.namespace for patch in patches}) as db:
            records = counts.read_counted(db, {patch.ref for patch in patches})
            old: list[Counted] = []
            new: list[Counted] = []
            for patch in patches:
                if patch.ref not in records:
                    continue
                seq, before = records[patch.ref]
                _change(db, seq, patch)
                ends = patch.ended_at is not None
                after = before._replace(ended=ends, ended_by=patch.ended_by)
                if after == before:
                    continue
                records[patch.ref] = seq, after
                embedded = False
                if before.ended != ends:
                    embedded = _set_live(db, patch.ref.namespace, seq, live=not ends)
                old.append(before._replace(embedded=embedded))
                new.append(after._replace(embedded=embedded))
            counts.change(db, old=old, new=new)

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:  # noqa: ARG002 - not supported
        """See `Store.touch`."""
        try:
            with self._server.write(wait_seconds=0.1, durable=False) as db:
                reads = Counter(refs)
                seqs = seqs_of(db, refs)
                _count_accesses(db, [(ref.namespace, seqs[ref], reads[ref]) for ref in seqs])
        except StoreDamaged:
            raise
        except StoreError:
            return False  # busy, full or read-only; read counts are only statistics
        return True

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        return used_among(self, where)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self._server.in_write:
            raise StoreError("permanent removal replaces tables and can't be part of a transaction")
        with self._server.read() as db:
            if not db.meta.schema:
                return ()
        with self._server.write({ref.namespace for ref in refs}) as db:
            rewrite.remove(db, refs)
        self.damaged.remove(set(refs).__contains__)
        return rewrite.erase(self._server)

    @_repeat_if_interrupted
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
        size = limit
        with self._server.read(where.namespaces) as db:
            while True:
                rows: list[tuple[Any, ...]] = []
                # Run one query per namespace, since the index is sorted only within a namespace.
                for namespace in dict.fromkeys(where.namespaces):
                    selected = selection(where, namespace)
                    sql, values = selected.sql, selected.values
                    if after is not None:
                        sql += f" AND (r.grp, r.position) {sign} (%s, %s)"
                        values += after
                    order = f"ORDER BY r.grp {direction}, r.position {direction} LIMIT %s"
                    rows += db.rows(f"{RECORDS} WHERE {sql} {order}", (*values, size))
                # by group, position and namespace
                rows.sort(key=itemgetter(3, 4, 2), reverse=newest_first)
                records = list(records_of(rows[:size], self.damaged).values())
                if len(records) >= limit or len(rows) < size:
                    return records[:limit]
                size *= 2  # damaged records were left out

    @_repeat_if_interrupted
    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        selected = selection(where)
        sql = f"SELECT DISTINCT r.grp, r.namespace FROM record r WHERE {selected.sql}"
        with self._server.read(where.namespaces) as db:
            rows = db.rows(f"{sql} ORDER BY 1, 2 LIMIT %s", (*selected.values, limit))
        return [(namespace, group) for group, namespace in rows]

    @_repeat_if_interrupted
    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        selected = selection(where)
        sql = f"SELECT count(*) FROM (SELECT 1 FROM record r WHERE {selected.sql} LIMIT %s) found"
        with self._server.read(where.namespaces) as db:
            total = counts.look_up(db, selected, where)
            if total is None:
                total = int(db.value(sql, (*selected.values, at_most)) or 0)
        return total if at_most is None else min(total, at_most)

    @_repeat_if_interrupted
    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        selected = selection(where)
        column, condition, values = "key", "true", selected.values
        if key is not None:
            column, condition, values = "value", "l.key = %s", (*selected.values, key)
        with self._server.read(where.namespaces) as db:
            if selected.whole:
                return counts.labels(db, selected, key)
            rows = db.rows(
                f'SELECT l.{column} COLLATE "C", count(*) '
                "FROM record r CROSS JOIN jsonb_each_text(r.labels) l "
                f"WHERE {selected.sql} AND {condition} GROUP BY 1 ORDER BY 1",
                values,
            )
        return dict(rows)

    @_repeat_if_interrupted
    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        selected = selection(where)
        sql = (
            "SELECT floor(created_at / 86400000.0)::int, count(*) FROM record r "
            f"WHERE {selected.sql} GROUP BY 1"
        )
        with self._server.read(where.namespaces) as db:
            return dict(sorted(db.rows(sql, selected.values)))

    @_repeat_if_interrupted
    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        selected = selection(where)
        with self._server.read(where.namespaces) as db:
            probe = self._probe(db, vector)
            similarities, word_scores = search.candidates(db, selected, probe, terms, k)
            in_namespaces, values = one_of("r.namespace", selected.namespaces)
            seqs = list({**word_scores, **similarities})
            rows: list[tuple[Any, ...]] = []
            if seqs:
                sql = f"{RECORDS} WHERE {in_namespaces} AND r.seq = ANY(%s::bigint[])"
                rows = db.rows(sql, (*values, seqs))
        records = records_of(rows, self.damaged)
        return [
            Candidate(record, similarities.get(seq), word_scores.get(seq, 0.0))
            for seq, record in records.items()
        ]

    @_repeat_if_interrupted
    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        with self._server.read(where.namespaces) as db:
            probe = self._probe(db, query.vector)
            return search.matches(db, selection(where), probe, query)

    @_repeat_if_interrupted
    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        with self._server.read({ref.namespace for ref in refs}) as db:
            return list(records_of(at_refs(db, RECORDS, refs), self.damaged).values())

    @_repeat_if_interrupted
    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        sql = (
            "SELECT DISTINCT value FROM label "
            "WHERE namespace = ANY(%s::text[]) AND collection = %s AND key = %s ORDER BY 1"
        )
        with self._server.read(namespaces) as db:
            rows = db.rows(sql, (list(namespaces), collection, key))
        return [value for (value,) in rows]

    @_repeat_if_interrupted
    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        sql = (
            "SELECT DISTINCT namespace FROM corpus "
            "WHERE collection = %s AND documents > 0 ORDER BY 1"
        )
        with self._server.read(whole=True) as db:
            return [namespace for (namespace,) in db.rows(sql, (collection,))]

    @_repeat_if_interrupted
    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        with self._server.read({ref.namespace for ref in refs}) as db:
            used, seqs = db.meta.used, seqs_of(db, refs)
            if used is None or not seqs:
                return {}
            return vector_tables.read(db, used, seqs)

    @_repeat_if_interrupted
    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        with self._server.read(whole=True) as db:
            return vector_tables.unstaged(db, space, collection, limit, self.damaged)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        with self._server.write({ref.namespace for ref in vectors}) as db:
            vector_tables.stage(db, space, vectors)
        self._needs_indexes = True

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        with self._server.write(whole=True) as db:
            vector_tables.switch(db, space, self.damaged)
        self._needs_indexes = True

    def use_space(self, space: Space) -> None:
        """See `Store.use_space`."""
        self._space = space

    @_repeat_if_interrupted
    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        selected = selection(where)
        with self._server.read(where.namespaces) as db:
            meta = db.meta
            without = self._without_vectors(db, selected)
            size, writable = next(iter(db.rows(counts.SIZE)), (0, True))
        return StoreInfo(
            url=self._server.masked_url,
            schema_version=meta.schema or None,
            model=meta.used.model if meta.used else None,
            dimension=meta.used.dimension if meta.used else None,
            size_bytes=int(size or 0),
            without_vector_count=without,
            erasing=bool(meta.erasing),
            read_only=not writable,
        )

    @_repeat_if_interrupted
    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        selected = selection(where)
        sql = f"SELECT r.namespace, r.grp, r.position FROM record r WHERE {selected.sql}"
        with self._server.read(where.namespaces) as db:
            rows = db.rows(f"{sql} ORDER BY r.grp, r.position", selected.values)
        return [Ref(where.collection, *row) for row in rows]

    @_repeat_if_interrupted
    def check(self, *, deep: bool) -> list[Finding]:
        """See `Store.check`."""
        with self._server.read(whole=True) as db:
            findings = list(counts.check(db, deep=deep))
            if deep:
                findings += counts.damaged_records(db)
        return findings

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        with self._server.write(whole=True) as db:
            return counts.repair(db)

    def repartition(self, partitions: int) -> int:
        """See `Partitioned.repartition`.

        Raises:
            StoreError: Parts of the store are on other nodes, or belong to another user.
        """
        return rewrite.repartition(self._server, parse_partitions(partitions))

    def listen(self, callback: Callable[[], None]) -> "LogListener":
        """See `SharedByServers.listen`."""
        from memories.stores.postgres.shared import LogListener

        return LogListener(self._server, callback)

    def claims(self) -> "PostgresClaims":
        """See `SharedByServers.claims`."""
        from memories.stores.postgres.shared import PostgresClaims

        return PostgresClaims(self._server)

    def close(self) -> None:
        """See `Store.close`."""
        # a caller that closes the store after an error shouldn't have to wait for an index
        is_interrupted = sys.exc_info()[0] is not None
        if self._needs_indexes and not is_interrupted:
            self._make_indexes()
        self._server.close()

    def _index_later(self, db: Transaction, large: Sequence[Part], *, loading: bool) -> None:
        """Schedule the creation of missing vector indexes.

        They are created after this write or, during a load, when the store is closed: a load is
        several times as fast without indexes. Until they exist, searches score every vector.
        """
        if self._checked_parts.issuperset(large):
            return
        if loading:
            self._needs_indexes = True
        else:
            self._checked_parts.update(large)
            db.afterwards.append(self._make_indexes)

    def _make_indexes(self) -> None:
        """Create the missing vector indexes.

        A failure is only logged, because the vectors are already stored.
        """
        try:
            with self._server.read() as db:
                missing = vector_tables.without_index(db)
            for part, collection, left_over in missing:
                vector_tables.make_index(self._server, part, collection, left_over=left_over)
            self._needs_indexes = False
        except StoreError as exc:
            _log.warning("cannot create a vector index, so searches are slower: %s", exc)

    def _without_vectors(self, db: Transaction, selected: Selection) -> int:
        used = db.meta.used
        if selected.whole:
            return counts.total(db, selected, "documents - embedded")
        sql = f"SELECT count(*) FROM record r WHERE {selected.sql}"
        if used is not None:
            sql += f" AND NOT EXISTS ({vector_tables.of_record(used)})"
        return int(db.value(sql, selected.values) or 0)

    def _probe(self, db: Transaction, vector: "NDArray[np.float32] | None") -> Probe | None:
        """Return the `Probe` for a query's vector; None if the query or the store has no vector.

        Raises:
            EmbedderMismatch: The store's vectors are in a different space.
        """
        used = db.meta.used
        if vector is None or used is None:
            return None
        return Probe.of(vector_tables.check_space(used, require_space(self._space)), vector)


def _append(db: Transaction, records: Sequence[Record], used: Vectors | None) -> list[Part]:
    """Add records with their words, labels and vectors, and count them.

    Returns:
        The collections and namespaces that now have many vectors.
    """
    numbers = db.rows("SELECT nextval('record_order') FROM generate_series(1, %s)", (len(records),))
    counted: list[Counted] = []
    rows: list[tuple[Any, ...]] = []
    accesses: list[tuple[str, int, int]] = []
    vectors: list[NewVectors] = []
    for record, (seq,) in zip(records, numbers, strict=True):
        ref, ended = record.ref, record.ended_at is not None
        length, tokens = indexed_tokens(record)
        rows.append(row_of(record, seq, length, tokens))
        if record.accesses:
            accesses.append((ref.namespace, seq, record.accesses))
        embedded = used is not None and record.vectors is not None
        if record.vectors is not None:
            vectors.append((ref.namespace, seq, str(ref.collection), not ended, record.vectors))
        counted.append(Counted(ref, ended, record.ended_by, length, record.labels, embedded))
        db.logs |= ref.collection is Collection.LOG
    db.copy(f"record ({ROW})", ROW_TYPES, rows)
    db.added += len(records)
    large = counts.change(db, new=counted)
    _count_accesses(db, accesses)
    if used is not None:
        vector_tables.insert(db, used, vectors)
    return large


def _change(db: Transaction, seq: int, patch: Patch) -> None:
    removed_fields = [name for name, value in patch.fields.items() if value is None]
    db.run(
        "UPDATE record SET ended_at = %s, ended_by = %s, fields = (fields || %s) - %s::text[] "
        "WHERE namespace = %s AND seq = %s",
        (
            None if patch.ended_at is None else to_millis(patch.ended_at),
            patch.ended_by,
            jsonb(patch.fields),
            removed_fields,
            patch.ref.namespace,
            seq,
        ),
    )


def _set_live(db: Transaction, namespace: str, seq: int, *, live: bool) -> bool:
    """Note in the vector tables whether a record is live.

    Returns:
        Whether the record has searchable vectors.
    """
    is_searched = False
    for table in db.meta.vector_tables:
        sql = f"UPDATE {table} SET live = %s WHERE namespace = %s AND seq = %s RETURNING 1"
        rows = db.rows(sql, (live, namespace, seq))
        if db.meta.used is not None and table == db.meta.used.table:
            is_searched = bool(rows)
    return is_searched


def _count_accesses(db: Transaction, counted: Sequence[tuple[str, int, int]]) -> None:
    if counted:
        db.run(_COUNT_ACCESS, [list(column) for column in zip(*sorted(counted), strict=True)])
