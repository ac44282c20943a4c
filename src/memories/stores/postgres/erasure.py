"""Removal for good in the PostgreSQL store: rows are deleted, then the files that held them are rewritten."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memories.errors import StoreBusy, StoreError
from memories.stores.postgres.connection import Server
from memories.stores.postgres.query import at_refs, by_namespace
from memories.stores.postgres.spaces import tables
from memories.stores.postgres.transaction import ERASING, Transaction
from memories.stores.records import Ref

if TYPE_CHECKING:
    import psycopg

    from memories.stores.postgres.driver import Connection

_FORGET_LABELS = """
DELETE FROM label l WHERE l.namespace = %s AND l.collection = %s AND NOT EXISTS (
  SELECT 1 FROM record r WHERE r.namespace = l.namespace AND r.collection = l.collection
  AND r.labels @> jsonb_build_object(l.key, l.value)
)
"""
_UNCOUNT = """
UPDATE corpus SET documents = documents - %s, tokens = tokens - %s
WHERE namespace = %s AND collection = %s AND ended = %s
"""
_KIND = "SELECT relkind, pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(%s)"
_NUMBER = re.compile(r"\d+")


def remove(db: Transaction, refs: Sequence[Ref]) -> None:
    """Delete records with all that belongs to them, and remember which tables must be rewritten."""
    touched: set[str] = set()
    for (collection, namespace), among in by_namespace(refs).items():
        found = at_refs(db, "SELECT r.seq, r.ended_at IS NOT NULL, r.length FROM record r", among)
        seqs = [seq for seq, _, _ in found]
        if not seqs:
            continue
        for table in ("record", "access", *tables(db)):
            rows = db.rows(
                f"DELETE FROM {table} WHERE namespace = %s AND seq = ANY(%s::bigint[]) "
                "RETURNING tableoid::regclass::text",
                (namespace, seqs),
            )
            touched |= {part for (part,) in rows}
        for state in (False, True):
            lengths = [length for _, ended, length in found if ended is state]
            if lengths:
                db.run(_UNCOUNT, (len(lengths), sum(lengths), namespace, collection, state))
        db.run(_FORGET_LABELS, (namespace, collection))
        touched.add("label")
    db.lock((ERASING,))
    db.remember({"erasing": " ".join(sorted(touched.union(db.meta.erasing))) or None})


def erase(server: Server) -> tuple[str, ...]:
    """Rewrite the tables from which rows were deleted, so that none of their bytes is left in the files.

    Returns:
        Partitions on other nodes, which can't be rewritten from here.

    Raises:
        StoreBusy: Somebody still reads the deleted rows.
    """
    elsewhere: list[str] = []
    with server.maintenance() as connection:
        erasing = connection.execute("SELECT value FROM meta WHERE name = 'erasing'").fetchone()
        for table in erasing[0].split() if erasing else ():
            found = connection.execute(_KIND, (table,)).fetchone()
            if found is None:
                continue  # dropped meanwhile by a switch of the space, and its file with it
            kind, own = found
            if kind == "f":
                elsewhere.append(f"{table} on another node, until VACUUM FULL is run there")
            elif own:
                _rewrite(connection, server, table)
            else:
                raise StoreError(
                    f"the records are removed, but their bytes are not yet erased: only the owner of {table} may run "
                    "VACUUM FULL; forget again as that user"
                )
        connection.execute("DELETE FROM meta WHERE name = 'erasing'")
    return tuple(elsewhere)


def _rewrite(connection: "Connection", server: Server, table: str) -> None:
    """Copy what is left of a table into new files and remove the old ones, however long it takes."""
    details: list[str] = []

    def note(notice: "psycopg.errors.Diagnostic") -> None:
        details.append((notice.message_detail or "").partition("\n")[0])  # it can be read now and never again

    connection.add_notice_handler(note)
    patience, connection.patience = connection.patience, None
    try:
        connection.execute(f"VACUUM (FULL, VERBOSE) {table}")
    finally:
        connection.patience = patience
        connection.remove_notice_handler(note)
    # The only number in the detail, in any language: how many rows an older transaction may still see.
    if any(int(number) for detail in details for number in _NUMBER.findall(detail)):
        raise StoreBusy(
            f"an older transaction on {server.shown} can still see what was removed, so its bytes are still there; "
            "forget it again when that transaction has ended"
        )
    connection.execute(f"ANALYZE {table}")
