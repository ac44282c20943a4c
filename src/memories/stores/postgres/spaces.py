"""The spaces of vectors in the PostgreSQL store: which one is in use, which is staged, and the switch between them."""

from typing import TYPE_CHECKING

from memories.errors import Conflict, StoreError
from memories.stores.postgres.query import RECORDS, seqs_of
from memories.stores.postgres.schema import record_of, vector_script
from memories.stores.postgres.transaction import SPACES, Transaction, Vectors
from memories.stores.protocol import other_space
from memories.stores.records import SEARCHED, Collection, Record, Ref, Space

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

_OLDEST = (0, 8)  # of pgvector: the first that continues a scan until enough rows match a filter
_TABLES = ("vector_a", "vector_b")  # one is in use, the other is staged; a switch swaps them
_EXTENSION = "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'vector'"
_ABROAD = """
SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'f'
"""


def claim(db: Transaction, space: Space) -> Vectors:
    """Return the table for vectors of the space in use; the first space decides for the store.

    Raises:
        EmbedderMismatch: The store's vectors are of another one.
    """
    used = db.meta.used
    if used is None:
        db.lock((SPACES,))
        used = db.meta.used
    if used is None:
        used = _make(db, space, _TABLES[0])
        db.remember({"vectors": used})
    return checked(used, space)


def checked(used: Vectors, space: Space) -> Vectors:
    """Return the vectors in use if they are of this space.

    Raises:
        EmbedderMismatch: They are of another one.
    """
    if not used.are_of(space):
        raise other_space(used.model, used.dimension, space)
    return used


def unstaged(db: Transaction, space: Space, collection: Collection, limit: int) -> list[Record]:
    """Return records that have no vectors of a space."""
    known = _of(db, space)
    lacking = (
        f"AND NOT EXISTS (SELECT 1 FROM {known.table} v WHERE v.namespace = r.namespace AND v.seq = r.seq)"
        if known
        else ""
    )
    rows = db.rows(
        f"{RECORDS} WHERE r.collection = '{collection}' {lacking} ORDER BY r.namespace, r.seq LIMIT %s", (limit,)
    )
    return [record_of(row) for row in rows]


def stage(db: Transaction, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
    """Store vectors of a space, in place of those that the records had of it."""
    from memories.stores.postgres.vectors import insert

    seqs = seqs_of(db, vectors)
    if not seqs:
        return
    target = claim(db, space) if db.meta.used is None else _of(db, space)
    if target is None:
        target = _make_staged(db, space)
    namespaces, numbers = sorted({ref.namespace for ref in seqs}), list(seqs.values())
    db.run(f"DELETE FROM {target.table} WHERE namespace = ANY(%s::text[]) AND seq = ANY(%s)", (namespaces, numbers))
    rows = db.rows(
        "SELECT seq FROM record WHERE namespace = ANY(%s::text[]) AND seq = ANY(%s) AND ended_at IS NULL",
        (namespaces, numbers),
    )
    live = {seq for (seq,) in rows}
    insert(
        db,
        target,
        ((ref.namespace, seq, str(ref.collection), seq in live, vectors[ref]) for ref, seq in seqs.items()),
    )


def switch(db: Transaction, space: Space) -> None:
    """Search by the staged vectors of a space from now on, in a transaction that excludes all other writers.

    Raises:
        Conflict: Records have no vectors of this space yet.
    """
    used = db.meta.used
    if used is not None and used.are_of(space):
        return
    if any(unstaged(db, space, collection, 1) for collection in SEARCHED):
        raise Conflict(f"records have no vectors of {space.model} yet; stage these first")
    target = _of(db, space) or _make_staged(db, space)
    if used is not None:
        db.run(f"DROP TABLE {used.table}")
    db.remember({"vectors": target, "staged": None})


def tables(db: Transaction) -> list[str]:
    """Return the tables that hold vectors."""
    return [found.table for found in (db.meta.used, db.meta.staged) if found is not None]


def _of(db: Transaction, space: Space) -> Vectors | None:
    """Return the table of a space, in use or staged, if it has one."""
    return next((found for found in (db.meta.used, db.meta.staged) if found and found.are_of(space)), None)


def _make_staged(db: Transaction, space: Space) -> Vectors:
    """Make a table for vectors of a new space, in place of the one staged before."""
    db.lock((SPACES,))
    if (made := _of(db, space)) is not None:
        return made
    if int(db.value(_ABROAD)):
        raise StoreError(
            "parts of this store are on other nodes, where no tables for another embedder can be made; "
            "use a new store for it, and move the records there"
        )
    used, staged = db.meta.used, db.meta.staged
    if staged is not None:
        db.run(f"DROP TABLE {staged.table}")
    target = _make(db, space, next(name for name in _TABLES if used is None or name != used.table))
    db.remember({"staged": target})
    return target


def _make(db: Transaction, space: Space, table: str) -> Vectors:
    """Make the table for vectors of a space; add pgvector to the database if it is only installed on the server.

    Raises:
        StoreError: pgvector is not installed on the server, too old, or the user may not add it.
    """
    from psycopg import errors

    found = db.rows(_EXTENSION)
    if not found:
        raise StoreError(
            "vectors need the extension pgvector, and the PostgreSQL server does not have it; install it there "
            "(the package postgresql-NN-pgvector), or set EMBEDDER=none to search by words alone"
        )
    ((available, installed),) = found
    version = installed or available
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise StoreError(
            f"the server's pgvector is {version} and 0.8.0 or newer is needed; upgrade its package, then run "
            "ALTER EXTENSION vector UPDATE in this database"
        )
    if installed is None:
        try:
            db.run("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except errors.InsufficientPrivilege as exc:
            raise StoreError(
                "vectors need the extension pgvector, and this user may not add it to the database; an administrator, "
                "or the database's owner, must run CREATE EXTENSION vector there once"
            ) from exc
    db.run(vector_script(table, space.dimension, db.meta.partitions))
    return Vectors(space.model, space.dimension, table)
