"""Replaces tables of the PostgreSQL store by copies while others read and write: to erase, or to
repartition.

A copy holds only live rows, in files of its own, and the old files are dropped with the old table.
All of it is one transaction: a crash leaves everything as it was. A trigger notes what others write
meanwhile; it is repeated at the end, when they wait for a moment.

Deleting rows alone leaves their bytes: the server marks the space of a row as free and overwrites
it some day.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from memories.errors import StoreBusy, StoreError
from memories.stores.postgres import counts
from memories.stores.postgres.connection import Server
from memories.stores.postgres.counts import Counted
from memories.stores.postgres.query import at_refs, by_namespace
from memories.stores.postgres.transaction import ERASING, Transaction
from memories.stores.records import Ref

LOCK_SECONDS = 2.0  # how long others wait, at most, behind a lock that is not granted
PATIENCE_SECONDS = 120.0  # how long such a lock is tried for
_PAUSE_SECONDS = 0.5
_REWRITING = "\0rewriting"  # locked like a namespace by who replaces tables

_LEAVES = """
SELECT c.relname, c.relkind, pg_has_role(c.relowner, 'USAGE') FROM pg_class c
WHERE c.oid IN (SELECT relid FROM pg_partition_tree(%s::regclass) WHERE isleaf)
OR c.oid = %s::regclass AND c.relkind IN ('r', 'f') ORDER BY c.relname
"""
_PARENT = "SELECT inhparent::regclass::text FROM pg_inherits WHERE inhrelid = %s::regclass"
_WATCHED = "SELECT 1 FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname = 'note_change'"
_UNSAMPLED = """
SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attstattarget = 0
"""
_INDEXES = """
SELECT c.relname, pg_get_indexdef(c.oid), ARRAY(
  SELECT a.attnum FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attstattarget = 0 ORDER BY 1
)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s::regclass AND i.indisvalid ORDER BY c.oid
"""
_GRANTS = """
SELECT format('GRANT %%s ON %%I TO %%s', g.privilege_type, %s::text,
  CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END)
FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = %s::regclass AND g.grantee <> c.relowner
"""
_MORE_MEMORY = """
SELECT set_config('maintenance_work_mem', '256MB', true)
WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < 268435456
"""
_CITUS = "SELECT 1 FROM pg_extension WHERE extname = 'citus'"


class Leaf(NamedTuple):
    """A table that holds rows itself: a partition, or one that is not divided.

    Attributes:
        name: The table.
        local: Whether its files are on this server; else it is a foreign table, or one that Citus
            has distributed.
        owned: Whether we may replace it.
    """

    name: str
    local: bool
    owned: bool


class Copy(NamedTuple):
    """A table and its copy.

    Attributes:
        old: The table.
        leaves: The tables that hold its rows.
        new: The copy, until it takes the place of the table.
        parts: How many partitions the copy has; 0 if it is one partition, in place of another.
    """

    old: str
    leaves: Sequence[str]
    new: str
    parts: int


def leaves(db: Transaction, table: str) -> list[Leaf]:
    """Return the tables that hold the rows of a table; none if it is not there any more."""
    if db.value("SELECT to_regclass(%s)", (table,)) is None:
        return []
    distributed = db.value(_CITUS) is not None
    return [
        Leaf(name, kind == "r" and not distributed, owned)
        for name, kind, owned in db.rows(_LEAVES, (table, table))
    ]


def watch(server: Server, tables: Sequence[str]) -> None:
    """Note from now on which rows of these tables change, by a trigger that goes with the table
    when it is replaced.
    """
    for table in tables:
        with server.alone() as db:
            if not watched(db, [table]):
                _in_turn(server, db, lambda db=db, table=table: _attach(db, table))  # type: ignore[misc]


def _attach(db: Transaction, table: str) -> None:
    db.run(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    if not watched(db, [table]):
        db.run(
            f"CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION note_change()"
        )


def watched(db: Transaction, tables: Sequence[str]) -> bool:
    """Return whether the changes of all these tables are noted."""
    return all(db.value(_WATCHED, (table,)) is not None for table in tables)


@contextlib.contextmanager
def rewriting(server: Server) -> Iterator[Transaction]:
    """Yield a transaction in which one process at a time replaces tables, however long it takes."""
    with server.alone() as db:
        db.run(
            "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on"
        )
        db.lock((_REWRITING,))
        db.rows(_MORE_MEMORY)
        yield db


def replace(
    server: Server, db: Transaction, copies: Sequence[Copy], also: Callable[[], None] = lambda: None
) -> frozenset[str]:
    """Fill copies and put them in the places of their tables.

    Args:
        server: The server.
        db: The transaction of `rewriting`.
        copies: The tables, all of whose leaves are watched.
        also: Done in the moment in which nobody else reads or writes.

    Returns:
        Tables from which rows were removed after they had been copied: the copies have these in
        free space.
    """
    for copy in copies:
        _make(db, copy)
        db.run(f"INSERT INTO {copy.new} SELECT * FROM {copy.old}")
        for leaf in _new_leaves(copy):
            _make_indexes(db, copy.leaves[0], leaf)
            db.run(f"ANALYZE {leaf}")
    removed: set[str] = set()

    def swap() -> None:
        db.lock((), whole=True)
        db.run("LOCK TABLE ONLY record IN ACCESS EXCLUSIVE MODE")  # every reader has it
        for copy in copies:
            db.run(f"LOCK TABLE {copy.old} IN ACCESS EXCLUSIVE MODE")
        for copy in copies:
            if _repeat_changes(db, copy):
                removed.add(copy.old)
            _take_place(db, copy)
        also()

    _in_turn(server, db, swap)
    return frozenset(removed)


def _in_turn(server: Server, db: Transaction, action: Callable[[], None]) -> None:
    """Do what needs locks, and let those who wait behind us go on now and then until they are
    granted.

    Raises:
        StoreBusy: They were not granted for a long time.
    """
    from psycopg import errors

    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with db.savepoint():
                db.run(f"SET LOCAL lock_timeout = '{LOCK_SECONDS * 1000:.0f}ms'")
                action()
        except (errors.LockNotAvailable, errors.DeadlockDetected) as exc:
            if time.monotonic() > until:
                raise StoreBusy(
                    f"another transaction on {server.masked_url} has been using these tables for "
                    f"{PATIENCE_SECONDS:.0f} seconds; run it again when that transaction has ended"
                ) from exc
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _make(db: Transaction, copy: Copy) -> None:
    """Make the empty copy, with the columns of its table and without indexes."""
    divided = " PARTITION BY HASH (namespace)" if copy.parts > 1 else ""
    db.run(
        f"CREATE TABLE {copy.new} (LIKE {copy.old} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS){divided}"
    )
    if copy.parts > 1:
        for number in range(copy.parts):
            bounds = f"FOR VALUES WITH (MODULUS {copy.parts}, REMAINDER {number})"
            db.run(f"CREATE TABLE {copy.new}_p{number} PARTITION OF {copy.new} {bounds}")
    for leaf in _new_leaves(copy):
        db.run(f"ALTER TABLE {leaf} {_storage(db, copy.leaves[0])}")
    for (column,) in db.rows(_UNSAMPLED, (copy.leaves[0],)):
        for table in {copy.new, *_new_leaves(copy)}:
            db.run(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
    for (grant,) in db.rows(_GRANTS, (copy.new, copy.old)):
        db.run(grant)


def _storage(db: Transaction, leaf: str) -> str:
    """Return how the columns of a table are stored, as the changes that make another one do the
    same.
    """
    rows = db.rows(
        "SELECT attname, CASE attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' "
        "ELSE 'EXTENDED' END FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attlen = -1",
        (leaf,),
    )
    return ", ".join(f"ALTER COLUMN {column} SET STORAGE {storage}" for column, storage in rows)


def _make_indexes(db: Transaction, old: str, new: str) -> None:
    """Give a table the indexes that another one has."""
    for name, definition, unsampled in db.rows(_INDEXES, (old,)):
        head, _, rest = definition.partition(" USING ")
        made = f"{new}{name.removeprefix(old)}"
        unique = "UNIQUE " if head.startswith("CREATE UNIQUE ") else ""
        db.run(f"CREATE {unique}INDEX {made} ON {new} USING {rest}")
        for number in unsampled:
            db.run(f"ALTER INDEX {made} ALTER COLUMN {number} SET STATISTICS 0")


def _repeat_changes(db: Transaction, copy: Copy) -> bool:
    """Do in the copy what happened to the table meanwhile; return whether rows were removed."""
    same, name = "c.namespace = r.namespace AND c.seq = r.seq", "r.namespace, r.seq"
    if copy.old == "label":
        same, name = "c.namespace = r.namespace", "r.namespace, r.collection, r.key, r.value"
    changed, parts = (
        "(SELECT DISTINCT namespace, seq FROM change WHERE part = ANY(%s::text[])) c",
        (list(copy.leaves),),
    )
    db.run("ANALYZE change")
    names = f"SELECT DISTINCT {name} FROM {changed} JOIN {copy.new} r ON {same}"
    before = db.rows(names, parts)
    db.run(f"DELETE FROM {copy.new} r USING {changed} WHERE {same}", parts)
    db.run(f"INSERT INTO {copy.new} SELECT r.* FROM {changed} JOIN {copy.old} r ON {same}", parts)
    removed = not {*before} <= {*db.rows(names, parts)}
    db.run("DELETE FROM change WHERE part = ANY(%s::text[])", parts)
    return removed


def _take_place(db: Transaction, copy: Copy) -> None:
    """Drop a table, and give the copy its name and its place."""
    if not copy.parts:
        parent = db.value(_PARENT, (copy.old,))
        bounds = db.value(
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = %s::regclass",
            (copy.old,),
        )
        db.run(f"ALTER TABLE {parent} DETACH PARTITION {copy.old}")
    db.run(f"DROP TABLE {copy.old}")
    for table in dict.fromkeys((copy.new, *_new_leaves(copy))):
        for name, *_ in db.rows(_INDEXES, (table,)):
            db.run(f"ALTER INDEX {name} RENAME TO {copy.old}{name.removeprefix(copy.new)}")
        db.run(f"ALTER TABLE {table} RENAME TO {copy.old}{table.removeprefix(copy.new)}")
    if not copy.parts:
        # The server reads the rows once to check them: the longest part, about a second for a
        # million of them.
        db.run(f"ALTER TABLE {parent} ATTACH PARTITION {copy.old} {bounds}")


def _new_leaves(copy: Copy) -> list[str]:
    return _named(copy.new, copy.parts)


def _named(table: str, parts: int) -> list[str]:
    return [f"{table}_p{number}" for number in range(parts)] if parts > 1 else [table]


def repartition(server: Server, partitions: int) -> int:
    """Divide the tables of a store into another number of partitions while others read and write.

    Args:
        server: The server.
        partitions: How many.

    Returns:
        How many there were.

    Raises:
        StoreError: Parts of the store are on other nodes, or are not ours.
        StoreBusy: Another transaction kept using the tables.
    """
    with server.read() as db:
        before = db.meta.partitions
        if before in (0, partitions):
            return before
        divided = {table: leaves(db, table) for table in _divided(db)}
    for leaf in (leaf for among in divided.values() for leaf in among):
        if not leaf.local:
            raise StoreError(
                f"{leaf.name} is on another node, so the store can't be divided anew from here"
            )
        if not leaf.owned:
            raise StoreError(
                f"only the owner of {leaf.name} may divide the store anew; run it as that user"
            )
    names = [leaf.name for among in divided.values() for leaf in among]
    watch(server, names)
    with rewriting(server) as db:
        if (before := db.meta.partitions) == partitions:
            return before
        if {*_divided(db)} != divided.keys() or not watched(
            db, [leaf.name for among in divided.values() for leaf in among]
        ):
            raise StoreBusy("the store's tables were replaced meanwhile; run it again")
        copies = [
            Copy(table, [leaf.name for leaf in among], f"{table}_new", partitions)
            for table, among in divided.items()
        ]
        removed = replace(server, db, copies, lambda: db.save_meta({"partitions": partitions}))
        db.lock((ERASING,))
        kept = {
            leaf for copy in copies if copy.old in removed for leaf in _named(copy.old, partitions)
        }
        db.save_meta(
            {"erasing": " ".join(sorted(kept.union(db.meta.erasing) - ({*names} - kept))) or None}
        )
    return before


def _divided(db: Transaction) -> list[str]:
    """Return the tables that are divided by namespace."""
    return ["record", *db.meta.vector_tables]


_COLUMNS = "r.seq, r.grp, r.position, r.ended_at IS NOT NULL, r.ended_by, r.length, r.labels"


def remove(db: Transaction, refs: Sequence[Ref]) -> None:
    """Delete records with all that belongs to them, and remember which tables still hold their
    bytes.
    """
    touched: set[str] = set()
    for (collection, namespace), among in by_namespace(refs).items():
        selected = at_refs(db, f"SELECT {_COLUMNS} FROM record r", among)
        seqs = [row[0] for row in selected]
        if not seqs:
            continue
        embedded: set[int] = set()
        for table in ("record", "access", *db.meta.vector_tables):
            rows = db.rows(
                f"DELETE FROM {table} WHERE namespace = %s AND seq = ANY(%s::bigint[]) "
                "RETURNING tableoid::regclass::text, seq",
                (namespace, seqs),
            )
            touched |= {part for part, _ in rows if table != "access"}
            if db.meta.used is not None and table == db.meta.used.table:
                embedded = {seq for _, seq in rows}
        gone = [
            Counted(
                Ref(collection, namespace, group, position),
                ended,
                ended_by,
                length,
                labels,
                seq in embedded,
            )
            for seq, group, position, ended, ended_by, length, labels in selected
        ]
        counts.change(db, gone=gone)
        if counts.forget_labels(db, gone):
            touched.add("label")
    db.lock((ERASING,))
    db.save_meta({"erasing": " ".join(sorted(touched.union(db.meta.erasing))) or None})


def erase(server: Server) -> tuple[str, ...]:
    """Replace the tables from which rows were deleted by copies, so that none of their bytes is
    left in the files.

    Others read and write meanwhile.

    Returns:
        Partitions on other nodes, which can't be replaced from here.

    Raises:
        StoreBusy: Another transaction kept using the tables.
    """
    elsewhere: dict[str, None] = {}
    while True:
        with server.read() as db:
            table = next((name for name in db.meta.erasing if name not in elsewhere), None)
            parts = leaves(db, table) if table else []
        if table is None:
            break
        for leaf in parts:
            if not leaf.local:
                elsewhere[table] = None
            elif not leaf.owned:
                raise StoreError(
                    f"the records are removed, but their bytes are not yet erased: only the owner of {table} may "
                    "replace it; forget again as that user"
                )
        if table not in elsewhere:
            _erase(server, table, parts)
    if elsewhere:
        with server.alone() as db:
            db.lock((ERASING,))
            _erased(db, set(elsewhere))
    return tuple(f"{table} on another node, until VACUUM FULL is run there" for table in elsewhere)


def _erase(server: Server, table: str, parts: Sequence[Leaf]) -> None:
    """Replace one table, unless somebody else has done it meanwhile."""
    watch(server, [leaf.name for leaf in parts])
    with rewriting(server) as db:
        if table not in db.meta.erasing:
            return
        if not leaves(
            db, table
        ):  # dropped by a switch of the space, or divided anew, and its files with it
            db.lock((ERASING,))
            _erased(db, {table})
        elif watched(db, [table]):
            part = db.value(_PARENT, (table,)) is not None
            removed = replace(server, db, [Copy(table, [table], f"{table}_new", 0 if part else 1)])
            db.lock((ERASING,))
            if table not in removed:
                _erased(db, {table})


def _erased(db: Transaction, done: set[str]) -> None:
    db.save_meta({"erasing": " ".join(sorted(set(db.meta.erasing) - done)) or None})
