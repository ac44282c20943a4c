"""The spaces of the vectors in the PostgreSQL store: which is searched, which is staged."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memories.errors import Conflict, EmbedderMismatch, StoreError
from memories.stores.postgres.query import RECORDS, record_of, seqs_of
from memories.stores.postgres.schema import vector_script
from memories.stores.postgres.session import Session, Vectors
from memories.stores.records import Collection, Record, Ref, Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_OLDEST = (0, 8)  # of pgvector: the first that goes on with a scan until a filter has let enough through
_TABLES = ("vector_a", "vector_b")  # in turns one is used and one is staged
_EXTENSION = "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'vector'"
_ABROAD = """
SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'f'
"""


def claim(db: Session, space: Space) -> Vectors:
    """Return where vectors of a space go that is searched; the first space decides for the store.

    Raises:
        EmbedderMismatch: The store's vectors are of another one.
    """
    if db.meta.used is None:
        db.lock_spaces()
        if db.meta.used is None:
            db.remember({"vectors": _make(db, space, _TABLES[0])})
    used = db.meta.used
    if used is None or not used.are_of(space):
        raise mismatch(used, space)
    return used


def mismatch(used: Vectors | None, space: Space) -> EmbedderMismatch:
    """Return the error for vectors of a space that the store does not have."""
    model, dimension = (used.model, used.dimension) if used else ("nothing", 0)
    return EmbedderMismatch(
        f"this store's vectors were made by {model} ({dimension} dimensions) and the embedder is "
        f"{space.model} ({space.dimension}); set EMBEDDER to the one it was made with, or use another store"
    )


def unstaged(db: Session, space: Space, collection: Collection, limit: int) -> list[Record]:
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


def stage(db: Session, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
    """Keep vectors of a space, in place of those that the records had of it."""
    from memories.stores.postgres.vectors import insert

    seqs = seqs_of(db, vectors)
    if not seqs:
        return
    target = claim(db, space) if db.meta.used is None else _of(db, space)
    if target is None:
        target = _make_staged(db, space)
    namespaces, numbers = sorted({ref.namespace for ref in seqs}), list(seqs.values())
    db.run(f"DELETE FROM {target.table} WHERE namespace = ANY(%s::text[]) AND seq = ANY(%s)", (namespaces, numbers))
    live = _live(db, namespaces, numbers)
    insert(
        db,
        target,
        ((ref.namespace, seq, str(ref.collection), seq in live, vectors[ref]) for ref, seq in seqs.items()),
    )


def switch(db: Session, space: Space) -> None:
    """Search by the staged vectors of a space from now on, in a session that keeps all other writers out.

    Raises:
        Conflict: Records have no vectors of this space yet.
    """
    used = db.meta.used
    if used is not None and used.are_of(space):
        return
    if any(unstaged(db, space, collection, 1) for collection in Collection):
        raise Conflict(f"records have no vectors of {space.model} yet; stage these first")
    target = _of(db, space) or _make_staged(db, space)
    if used is not None:
        db.run(f"DROP TABLE {used.table}")
    db.remember({"vectors": target, "staged": None})


def tables(db: Session) -> list[str]:
    """Return the tables that hold vectors."""
    return [found.table for found in (db.meta.used, db.meta.staged) if found is not None]


def _of(db: Session, space: Space) -> Vectors | None:
    """Return where the vectors of a space are, those that are searched or those that are staged."""
    return next((found for found in (db.meta.used, db.meta.staged) if found and found.are_of(space)), None)


def _make_staged(db: Session, space: Space) -> Vectors:
    """Make a table for vectors of a new space, in place of what was staged before."""
    db.lock_spaces()
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


def _make(db: Session, space: Space, table: str) -> Vectors:
    _require_extension(db)
    db.run(vector_script(table, space.dimension, db.meta.partitions))
    return Vectors(space.model, space.dimension, table)


def _require_extension(db: Session) -> None:
    """See that pgvector is there; add it to the database where it is only installed.

    Raises:
        StoreError: It is not installed on the server, too old, or the user may not add it.
    """
    from psycopg import errors

    found = db.rows(_EXTENSION)
    if not found:
        raise StoreError(
            "vectors need the extension pgvector, and the PostgreSQL server does not have it; install it there "
            "(the package postgresql-NN-pgvector), or set EMBEDDER=none to go by words alone"
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


def _live(db: Session, namespaces: Sequence[str], seqs: Sequence[int]) -> set[int]:
    rows = db.rows(
        "SELECT seq FROM record WHERE namespace = ANY(%s::text[]) AND seq = ANY(%s) AND ended_at IS NULL",
        (list(namespaces), list(seqs)),
    )
    return {int(seq) for (seq,) in rows}
