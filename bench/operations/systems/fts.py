"""A plain baseline: one SQLite file with FTS5, such as one could build in an afternoon."""

import re
import sqlite3
from pathlib import Path
from typing import Any

from bench.operations import systems
from bench.operations.server import Start


class Adapter(systems.System):
    """One table for all projects; a search ranks any of the question's words by BM25."""

    name = "SQLite FTS5"

    def install(self) -> None:
        """Install nothing."""

    def version(self) -> str:
        """Return the version of SQLite."""
        return sqlite3.sqlite_version

    def start(self, home: Path, project: Path) -> Start:
        """Return no command."""
        return Start([], project)

    def open(self, home: Path, project: Path) -> Any:
        """Open the file."""
        return Session(home, project)

    def add(self, session: Any, text: str) -> str:
        """Insert a row."""
        return str(session.write("INSERT INTO memory (text) VALUES (?)", text))

    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Return the best rows, one per line."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question))
        sql = "SELECT text FROM memory WHERE memory MATCH ? ORDER BY rank LIMIT ?"
        return "\n".join(row[0] for row in session.db.execute(sql, (words, limit)))

    def update(self, session: Any, identifier: str, text: str) -> None:
        """Replace a row's text."""
        session.write("UPDATE memory SET text = ? WHERE rowid = ?", text, identifier)

    def delete(self, session: Any, identifier: str) -> None:
        """Delete a row."""
        session.write("DELETE FROM memory WHERE rowid = ?", identifier)

    def stored(self, home: Path) -> list[str]:
        """Return all rows."""
        return [row[0] for row in systems.query(home / "memory.db", "SELECT text FROM memory")]


class Session:
    """A connection to the file."""

    def __init__(self, home: Path, project: Path) -> None:
        self.folder = project
        self.db = sqlite3.connect(home / "memory.db", timeout=60, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        sql = "CREATE VIRTUAL TABLE IF NOT EXISTS memory USING fts5 (text)"
        self.db.execute(sql)

    def write(self, sql: str, *values: object) -> int | None:
        """Run a statement in a transaction; return the id of the last row."""
        with self.db:
            return self.db.execute(sql, values).lastrowid

    def close(self) -> None:
        """Close the connection."""
        self.db.close()
