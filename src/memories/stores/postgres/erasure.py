"""Removal for good in the PostgreSQL store: rows are deleted, then the tables that held them are replaced by copies.

Deleting alone leaves the bytes: the server marks the space of a row as free and overwrites it some day.
"""

from collections.abc import Sequence

from memories.errors import StoreError
from memories.stores.postgres import counts
from memories.stores.postgres.connection import Server
from memories.stores.postgres.counts import Counted
from memories.stores.postgres.query import at_refs, by_namespace
from memories.stores.postgres.rewrite import Copy, Leaf, leaves, replace, rewriting, watch, watched
from memories.stores.postgres.spaces import tables
from memories.stores.postgres.transaction import ERASING, Transaction
from memories.stores.records import Ref

_COLUMNS = "r.seq, r.grp, r.position, r.ended_at IS NOT NULL, r.ended_by, r.length, r.labels"
_PARENT = "SELECT 1 FROM pg_inherits WHERE inhrelid = %s::regclass"


def remove(db: Transaction, refs: Sequence[Ref]) -> None:
    """Delete records with all that belongs to them, and remember which tables still hold their bytes."""
    touched: set[str] = set()
    for (collection, namespace), among in by_namespace(refs).items():
        found = at_refs(db, f"SELECT {_COLUMNS} FROM record r", among)
        seqs = [row[0] for row in found]
        if not seqs:
            continue
        embedded: set[int] = set()
        for table in ("record", "access", *tables(db)):
            rows = db.rows(
                f"DELETE FROM {table} WHERE namespace = %s AND seq = ANY(%s::bigint[]) "
                "RETURNING tableoid::regclass::text, seq",
                (namespace, seqs),
            )
            touched |= {part for part, _ in rows if table != "access"}
            if db.meta.used is not None and table == db.meta.used.table:
                embedded = {seq for _, seq in rows}
        gone = [
            Counted(Ref(collection, namespace, group, position), ended, ended_by, length, labels, seq in embedded)
            for seq, group, position, ended, ended_by, length, labels in found
        ]
        counts.change(db, gone=gone)
        if counts.forget_labels(db, gone):
            touched.add("label")
    db.lock((ERASING,))
    db.remember({"erasing": " ".join(sorted(touched.union(db.meta.erasing))) or None})


def erase(server: Server) -> tuple[str, ...]:
    """Replace the tables from which rows were deleted by copies, so that none of their bytes is left in the files.

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
            found = leaves(db, table) if table else []
        if table is None:
            break
        for leaf in found:
            if not leaf.local:
                elsewhere[table] = None
            elif not leaf.owned:
                raise StoreError(
                    f"the records are removed, but their bytes are not yet erased: only the owner of {table} may "
                    "replace it; forget again as that user"
                )
        if table not in elsewhere:
            _erase(server, table, found)
    if elsewhere:
        with server.alone() as db:
            db.lock((ERASING,))
            _erased(db, set(elsewhere))
    return tuple(f"{table} on another node, until VACUUM FULL is run there" for table in elsewhere)


def _erase(server: Server, table: str, found: Sequence[Leaf]) -> None:
    """Replace one table, unless somebody else has done it meanwhile."""
    watch(server, [leaf.name for leaf in found])
    with rewriting(server) as db:
        if table not in db.meta.erasing:
            return
        if not leaves(db, table):  # dropped by a switch of the space, or divided anew, and its files with it
            db.lock((ERASING,))
            _erased(db, {table})
        elif watched(db, [table]):
            part = db.value(_PARENT, (table,)) is not None
            removed = replace(server, db, [Copy(table, [table], f"{table}_new", 0 if part else 1)])
            db.lock((ERASING,))
            if table not in removed:
                _erased(db, {table})


def _erased(db: Transaction, done: set[str]) -> None:
    db.remember({"erasing": " ".join(sorted(set(db.meta.erasing) - done)) or None})
