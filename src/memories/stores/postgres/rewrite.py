"""Replaces tables of the PostgreSQL store with copies, to erase removed records or to repartition.

A copy contains only the remaining rows, in new files; the old files are dropped with the old table.
Copying and replacing are one transaction, so a crash leaves everything unchanged. In the meantime,
other processes keep reading and writing. A trigger records their changes. At the end, these are
replayed on the copy while the other processes wait briefly.

Deleting rows would not be enough: the server only marks their space as free, and keeps their bytes.
"""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from memories.errors import StoreBusy, StoreError
from memories.stores.postgres import counts
from memories.stores.postgres.connection import Server
from memories.stores.postgres.query import ERASING, Transaction
from memories.stores.records import Ref, by_namespace

LOCK_SECONDS = 2.0  # how long other transactions may have to wait behind our request for a lock
PATIENCE_SECONDS = 120.0  # how long attempts to get a lock are repeated
_PAUSE_SECONDS = 0.5
_REWRITING = "\0rewriting"  # the name of the lock that is held while tables are replaced

_LEAVES = """
SELECT c.relname, c.relkind, pg_has_role(c.relowner, 'USAGE') FROM pg_class c
WHERE c.oid IN (SELECT relid FROM pg_partition_tree(%s::regclass) WHERE isleaf)
OR c.oid = %s::regclass AND c.relkind IN ('r', 'f') ORDER BY c.relname
"""
_PARENT = "SELECT inhparent::regclass::text FROM pg_inherits WHERE inhrelid = %s::regclass"
_WATCHED = "SELECT 1 FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname = 'note_change'"
_UNSAMPLED = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attstattarget = 0
"""
_STORAGE = """
SELECT attname, CASE attstorage
  WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END
FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attlen = -1
"""
_INDEXES = """
SELECT c.relname, pg_get_indexdef(c.oid), ARRAY(
  SELECT a.attnum FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attstattarget = 0 ORDER BY 1
)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %s::regclass AND i.indisvalid ORDER BY c.oid
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
    """A table with rows of its own: a partition, or a table without partitions.

    Attributes:
        name: The table.
        local: Whether its files are on this server. Otherwise it is a foreign table, or distributed
            by Citus.
        owned: Whether this user may replace it.
    """

    name: str
    local: bool
    owned: bool


class Copy(NamedTuple):
    """A table and its copy.

    Attributes:
        old: The table.
        leaves: The tables that contain its rows.
        new: The name of the copy, until it replaces the table.
        parts: The number of partitions of the copy; 0 if it is itself a partition.
    """

    old: str
    leaves: Sequence[str]
    new: str
    parts: int

    @property
    def new_leaves(self) -> list[str]:
        """The copy's tables that contain rows: its partitions, or the copy itself."""
        return _leaf_names(self.new, self.parts)


def leaves(db: Transaction, table: str) -> list[Leaf]:
    """Return a table's partitions, or the table itself; empty if the table no longer exists."""
    if db.value("SELECT to_regclass(%s)", (table,)) is None:
        return []
    distributed = db.value(_CITUS) is not None
    return [
        Leaf(name, kind == "r" and not distributed, owned)
        for name, kind, owned in db.rows(_LEAVES, (table, table))
    ]


def watch(server: Server, tables: Sequence[str]) -> None:
    """Start recording which rows of these tables change.

    The trigger that does this is dropped together with its table when the table is replaced.
    """
    for table in tables:
        with server.alone() as db:
            if not is_watched(db, [table]):
                _run_locking(server, db, functools.partial(_attach_trigger, db, table))


def _attach_trigger(db: Transaction, table: str) -> None:
    db.run(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    if not is_watched(db, [table]):
        db.run(
            f"CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION note_change()"
        )


def is_watched(db: Transaction, tables: Sequence[str]) -> bool:
    """Return whether changes to all these tables are recorded."""
    return all(db.value(_WATCHED, (table,)) is not None for table in tables)


@contextlib.contextmanager
def rewriting(server: Server) -> Iterator[Transaction]:
    """Yield a transaction for replacing tables.

    It has no deadline, and excludes other transactions that replace tables.
    """
    with server.alone() as db:
        db.run(
            "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; "
            "SET LOCAL enable_seqscan = on"
        )
        db.lock((_REWRITING,))
        db.rows(_MORE_MEMORY)
        yield db


def replace(
    server: Server, db: Transaction, copies: Sequence[Copy], also: Callable[[], None] = lambda: None
) -> frozenset[str]:
    """Fill copies of tables, and replace the tables with them.

    Args:
        server: The server.
        db: The transaction of `rewriting`.
        copies: The tables and their copies; `watch` must have been called for the tables.
        also: Called at the end, while no other process reads or writes.

    Returns:
        The tables from which rows were removed while they were copied. Their copies still contain
        the bytes of these rows, in space marked as free.
    """
    for copy in copies:
        _create(db, copy)
        db.run(f"INSERT INTO {copy.new} SELECT * FROM {copy.old}")
        for leaf in copy.new_leaves:
            _make_indexes(db, copy.leaves[0], leaf)
            db.run(f"ANALYZE {leaf}")
    removed: set[str] = set()

    def swap() -> None:
        db.lock((), whole=True)
        db.run("LOCK TABLE ONLY record IN ACCESS EXCLUSIVE MODE")  # from now on, readers wait
        for copy in copies:
            db.run(f"LOCK TABLE {copy.old} IN ACCESS EXCLUSIVE MODE")
        for copy in copies:
            if _repeat_changes(db, copy):
                removed.add(copy.old)
            _replace_table(db, copy)
        also()

    _run_locking(server, db, swap)
    return frozenset(removed)


def _run_locking(server: Server, db: Transaction, action: Callable[[], None]) -> None:
    """Run an action that takes locks.

    If the locks aren't granted soon, the action is rolled back and tried again after a pause, so
    that waiting processes can continue.

    Raises:
        StoreBusy: The locks were not granted for a long time.
    """
    from psycopg import errors

    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with db.savepoint():
                db.run(f"SET LOCAL lock_timeout = '{LOCK_SECONDS * 1000:.0f}ms'")
                action()
        except (errors.LockNotAvailable, errors.DeadlockDetected) as exc:
            if time.monotonic() > deadline:
                raise StoreBusy(
                    f"another transaction on {server.masked_url} has been using these tables for "
                    f"{PATIENCE_SECONDS:.0f} seconds; run this again when that transaction has "
                    "ended"
                ) from exc
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _create(db: Transaction, copy: Copy) -> None:
    partitioning = " PARTITION BY HASH (namespace)" if copy.parts > 1 else ""
    db.run(
        f"CREATE TABLE {copy.new} "
        f"(LIKE {copy.old} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS){partitioning}"
    )
    if copy.parts > 1:
        for number in range(copy.parts):
            bounds = f"FOR VALUES WITH (MODULUS {copy.parts}, REMAINDER {number})"
            db.run(f"CREATE TABLE {copy.new}_p{number} PARTITION OF {copy.new} {bounds}")
    for leaf in copy.new_leaves:
        db.run(f"ALTER TABLE {leaf} {_storage_changes(db, copy.leaves[0])}")
    for (column,) in db.rows(_UNSAMPLED, (copy.leaves[0],)):
        for table in {copy.new, *copy.new_leaves}:
            db.run(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
    for (grant,) in db.rows(_GRANTS, (copy.new, copy.old)):
        db.run(grant)


def _storage_changes(db: Transaction, leaf: str) -> str:
    """Return clauses for ALTER TABLE that set the storage modes of this table's columns."""
    changes = [
        f"ALTER COLUMN {column} SET STORAGE {storage}"
        for column, storage in db.rows(_STORAGE, (leaf,))
    ]
    return ", ".join(changes)


def _make_indexes(db: Transaction, old: str, new: str) -> None:
    for name, definition, unsampled in db.rows(_INDEXES, (old,)):
        head, _, method = definition.partition(" USING ")
        new_name = f"{new}{name.removeprefix(old)}"
        unique = "UNIQUE " if head.startswith("CREATE UNIQUE ") else ""
        db.run(f"CREATE {unique}INDEX {new_name} ON {new} USING {method}")
        for number in unsampled:
            db.run(f"ALTER INDEX {new_name} ALTER COLUMN {number} SET STATISTICS 0")


def _repeat_changes(db: Transaction, copy: Copy) -> bool:
    """Replay on the copy all changes made since it was filled; return whether rows were removed."""
    key, is_same = "r.namespace, r.seq", "c.namespace = r.namespace AND c.seq = r.seq"
    if copy.old == "label":
        key, is_same = "r.namespace, r.collection, r.key, r.value", "c.namespace = r.namespace"
    changed = "(SELECT DISTINCT namespace, seq FROM change WHERE part = ANY(%s::text[])) c"
    parts = (list(copy.leaves),)
    db.run("ANALYZE change")
    keys = f"SELECT DISTINCT {key} FROM {changed} JOIN {copy.new} r ON {is_same}"
    before = db.rows(keys, parts)
    db.run(f"DELETE FROM {copy.new} r USING {changed} WHERE {is_same}", parts)
    db.run(
        f"INSERT INTO {copy.new} SELECT r.* FROM {changed} JOIN {copy.old} r ON {is_same}", parts
    )
    after = db.rows(keys, parts)
    db.run("DELETE FROM change WHERE part = ANY(%s::text[])", parts)
    return not {*before} <= {*after}


def _replace_table(db: Transaction, copy: Copy) -> None:
    """Drop a table, and give the copy its name and its place among the partitions."""
    if not copy.parts:
        parent = db.value(_PARENT, (copy.old,))
        bounds = db.value(
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = %s::regclass",
            (copy.old,),
        )
        db.run(f"ALTER TABLE {parent} DETACH PARTITION {copy.old}")
    db.run(f"DROP TABLE {copy.old}")
    for table in dict.fromkeys((copy.new, *copy.new_leaves)):
        for name, *_ in db.rows(_INDEXES, (table,)):
            db.run(f"ALTER INDEX {name} RENAME TO {copy.old}{name.removeprefix(copy.new)}")
        db.run(f"ALTER TABLE {table} RENAME TO {copy.old}{table.removeprefix(copy.new)}")
    if not copy.parts:
        # Here the server checks every row, which takes the longest: about a second for a million
        # rows.
        db.run(f"ALTER TABLE {parent} ATTACH PARTITION {copy.old} {bounds}")


def _leaf_names(table: str, parts: int) -> list[str]:
    return [f"{table}_p{number}" for number in range(parts)] if parts > 1 else [table]


def repartition(server: Server, partitions: int) -> int:
    """Divide a store's tables into a different number of partitions while others read and write.

    Args:
        server: The server.
        partitions: The new number of partitions.

    Returns:
        The previous number of partitions.

    Raises:
        StoreError: Parts of the store are on other nodes, or belong to another user.
        StoreBusy: Another transaction kept using the tables.
    """
    with server.read() as db:
        before = db.meta.partitions
        if before in (0, partitions):
            return before
        tables = {table: leaves(db, table) for table in _partitioned_tables(db)}
    old_names: set[str] = set()
    for leaf in itertools.chain.from_iterable(tables.values()):
        if not leaf.local:
            raise StoreError(
                f"{leaf.name} is on another node, so the store can't be repartitioned from here"
            )
        if not leaf.owned:
            raise StoreError(
                f"only the owner of {leaf.name} may repartition the store; run this as that user"
            )
        old_names.add(leaf.name)
    watch(server, sorted(old_names))
    with rewriting(server) as db:
        if (before := db.meta.partitions) == partitions:
            return before
        is_replaced = {*_partitioned_tables(db)} != tables.keys()
        if is_replaced or not is_watched(db, sorted(old_names)):
            raise StoreBusy("the store's tables were replaced in the meantime; run this again")
        copies = [
            Copy(table, [leaf.name for leaf in table_leaves], f"{table}_new", partitions)
            for table, table_leaves in tables.items()
        ]
        removed = replace(server, db, copies, lambda: db.save_meta({"partitions": partitions}))
        db.lock((ERASING,))
        to_erase = {*db.meta.erasing} - old_names
        for table in removed:
            to_erase.update(_leaf_names(table, partitions))
        _save_erasing(db, to_erase)
    return before


def _partitioned_tables(db: Transaction) -> list[str]:
    return ["record", *db.meta.vector_tables]


def _save_erasing(db: Transaction, tables: set[str]) -> None:
    db.save_meta({"erasing": " ".join(sorted(tables)) or None})


def remove(db: Transaction, refs: Sequence[Ref]) -> None:
    """Delete records with their vectors and counts; note the tables that contain their bytes."""
    to_erase: set[str] = set()
    for (_, namespace), part in by_namespace(refs).items():
        records = counts.read_counted(db, part).values()
        seqs = [seq for seq, _ in records]
        if not seqs:
            continue
        embedded: set[int] = set()
        for table in ("record", "access", *db.meta.vector_tables):
            deleted = db.rows(
                f"DELETE FROM {table} WHERE namespace = %s AND seq = ANY(%s::bigint[]) "
                "RETURNING tableoid::regclass::text, seq",
                (namespace, seqs),
            )
            if table != "access":
                to_erase |= {leaf for leaf, _ in deleted}
            if db.meta.used is not None and table == db.meta.used.table:
                embedded = {seq for _, seq in deleted}
        removed = [record._replace(embedded=seq in embedded) for seq, record in records]
        counts.change(db, old=removed)
        if counts.forget_labels(db, removed):
            to_erase.add("label")
    db.lock((ERASING,))
    _save_erasing(db, to_erase.union(db.meta.erasing))


def erase(server: Server) -> tuple[str, ...]:
    """Replace the tables from which rows were deleted, so that no file contains their bytes.

    Other processes keep reading and writing.

    Returns:
        Descriptions of partitions on other nodes, which can't be replaced from here.

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
                    "the records are removed, but their bytes are not yet erased, because only the "
                    f"owner of {table} may replace that table; forget the records again as that "
                    "user"
                )
        if table not in elsewhere:
            _erase(server, table, parts)
    if elsewhere:
        with server.alone() as db:
            db.lock((ERASING,))
            _save_erasing(db, {*db.meta.erasing} - elsewhere.keys())
    return tuple(f"{table} on another node, until VACUUM FULL is run there" for table in elsewhere)


def _erase(server: Server, table: str, parts: Sequence[Leaf]) -> None:
    """Replace one table, unless another process has replaced it in the meantime."""
    watch(server, [leaf.name for leaf in parts])
    with rewriting(server) as db:
        if table not in db.meta.erasing:
            return
        # A switch of spaces or a repartitioning may have dropped the table and its files.
        is_dropped = not leaves(db, table)
        if not is_dropped and not is_watched(db, [table]):
            return
        removed: frozenset[str] = frozenset()
        if not is_dropped:
            is_partition = db.value(_PARENT, (table,)) is not None
            copy = Copy(table, [table], f"{table}_new", 0 if is_partition else 1)
            removed = replace(server, db, [copy])
        db.lock((ERASING,))
        if table not in removed:
            _save_erasing(db, {*db.meta.erasing} - {table})
