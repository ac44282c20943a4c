"""What a connection has read and keeps until anybody writes, so that the next searches need not read it again."""

import threading
import weakref
from typing import Any, Generic, TypeVar

import apsw

_Name = TypeVar("_Name")
_Value = TypeVar("_Value")
_OVERLOOKED: weakref.WeakKeyDictionary[apsw.Connection, int] = weakref.WeakKeyDictionary()


class Kept(Generic[_Name, _Value]):
    """Values by name, of each connection those that it has read since the last write.

    `data_version` changes with commits by others, the count of changes with those by the connection itself.
    """

    def __init__(self, most: int) -> None:
        """Prepare to keep about so many values for each connection."""
        self._most = most
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[apsw.Connection, tuple[Any, dict[_Name, _Value]]]
        self._known = weakref.WeakKeyDictionary()

    def of(self, db: apsw.Connection) -> dict[_Name, _Value]:
        """Return what is known in the transaction that a connection is in, to look it up and to add to it.

        What a connection sees while it writes may be undone, so then it is a dict that nobody keeps.
        """
        if writes(db):
            return {}
        state = db.execute("PRAGMA data_version").fetchall(), db.total_changes() - _OVERLOOKED.get(db, 0)
        with self._lock:
            known = self._known.get(db)
            if known is None or known[0] != state or len(known[1]) > self._most:
                known = self._known[db] = state, {}
            return known[1]


def overlook(db: apsw.Connection, changes: int) -> None:
    """Go on with what is kept though a connection itself made these changes: they concern nothing that is kept."""
    _OVERLOOKED[db] = _OVERLOOKED.get(db, 0) + changes


def writes(db: apsw.Connection) -> bool:
    """Return whether a connection is in a transaction that has written."""
    return db.txn_state("main") == apsw.SQLITE_TXN_WRITE
