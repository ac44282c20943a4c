"""Whether a write would succeed: everything that one does is done up to the commit, and undone."""

import contextlib

from memories.errors import StoreBusy
from memories.stores.sqlite.connection import SQLiteFile
from memories.stores.sqlite.errors import refuse_folder_in_the_way, refuse_full

_BYTES = 131_072  # twice what storing a short memory writes to the log


class _Undone(Exception):
    """Undoes a transaction that went well."""


def rehearse(file: SQLiteFile) -> None:
    """Write to the log what a small memory takes, and undo it instead of committing; see `OnThisDisk.rehearse`.

    A transaction alone would tell nothing, for SQLite writes at its end. Flushed pages reach the log before, in the
    place of the next commit, which writes over them; no reader sees them, and no other cache is dropped.
    """
    if not file.path.exists():
        refuse_full(file.path)
        return  # the first write makes it
    refuse_folder_in_the_way(file.path)  # only a new connection would meet it, and this thread may have one
    with contextlib.suppress(StoreBusy, _Undone), file.write(wait_seconds=0) as connection:
        connection.execute("INSERT INTO meta VALUES ('rehearsal', zeroblob(?))", (_BYTES,))
        connection.cache_flush()
        raise _Undone
