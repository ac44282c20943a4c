"""The session of a thread: LangGraph's checkpoints in one SQLite file, of which only the last state stays."""

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memories.core import disk
from memories.errors import ConfigError, StoreDamaged

FILE = "checkpoints.sqlite"
_BUSY_MS = 30_000
_SAFE = (3, 51, 3)  # before, a write could be lost when the log was reset


class ShortTerm:
    """The session of one thread, in a file that several chats may share."""

    def __init__(self, path: Path, thread: str) -> None:
        """Open the file; make it, for its user alone, if it is not there.

        Args:
            path: The file.
            thread: The name of the thread in it.

        Raises:
            StoreDamaged: It is no SQLite file, or a damaged one.
            ConfigError: A package is missing.
        """
        self.path, self.thread = path, thread
        disk.make_folder(path.parent)
        os.close(os.open(path, disk.CREATING | os.O_RDWR, 0o600))
        path.chmod(0o600)
        sqlite3 = _sqlite()
        saver_class = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
        serde = importlib.import_module("langgraph.checkpoint.serde.jsonplus").JsonPlusSerializer
        try:
            self.connection = sqlite3.connect(path, check_same_thread=False, timeout=_BUSY_MS / 1000)
            self.connection.execute("PRAGMA secure_delete = ON")
            self.connection.execute("PRAGMA synchronous = FULL")
            # What a checkpoint may make are messages, and nothing else that a changed file asks for.
            self.saver = saver_class(self.connection, serde=serde(allowed_msgpack_modules=None))
            self.saver.setup()
        except sqlite3.DatabaseError as exc:
            raise StoreDamaged(
                f"the session file {path} can't be read ({exc}); move it away, and a new one is begun"
            ) from exc

    @property
    def config(self) -> dict[str, Any]:
        """What LangGraph finds the session by."""
        return {"configurable": {"thread_id": self.thread}}

    def keep_last(self) -> None:
        """Drop every state of the session but the last: each holds the whole conversation."""
        self._delete("checkpoint_id < (SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = :thread)")

    def drop_after(self, checkpoint_id: str | None) -> None:
        """Drop what came after a state of the session; all of it if that is None."""
        self._delete("checkpoint_id > :last", last=checkpoint_id or "")

    def clear(self) -> bool:
        """Remove the session, so that no byte of it stays in the file; return whether there was one."""
        found = self.connection.execute("SELECT 1 FROM checkpoints WHERE thread_id = ?", (self.thread,)).fetchone()
        self._delete("TRUE")
        self.connection.execute("VACUUM")
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return found is not None

    def last_id(self) -> str | None:
        """Return the id of the last state; None if there is none."""
        query = "SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?"
        row: tuple[str | None] = self.connection.execute(query, (self.thread,)).fetchone()
        return row[0]

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def _delete(self, condition: str, **values: str) -> None:
        given = {"thread": self.thread, **values}
        with self.saver.lock, self.connection:
            # `writes` first: its condition looks at `checkpoints`.
            for table in ("writes", "checkpoints"):
                self.connection.execute(f"DELETE FROM {table} WHERE thread_id = :thread AND {condition}", given)  # noqa: S608


def _sqlite() -> Any:
    """Return the module that LangGraph is to take for `sqlite3`.

    Python's own is often linked to a SQLite that can lose acknowledged writes when a log is reset.

    Raises:
        ConfigError: There is none that keeps what it acknowledged.
    """
    if "sqlite3" not in sys.modules and find_spec("pysqlite3") is not None:
        sys.modules["sqlite3"] = importlib.import_module("pysqlite3")
    module = importlib.import_module("sqlite3")
    if module.sqlite_version_info < _SAFE:
        raise ConfigError(
            f"SQLite {module.sqlite_version} can lose what it acknowledged; "
            f"run: {sys.executable} -m pip install pysqlite3"
        )
    return module
