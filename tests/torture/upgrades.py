"""Kills an upgrade at each of its statements, and checks that every record stays unchanged:
`upgrades.py FOLDER FIXTURE EVERY`.
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import apsw
import forks
import work

from memories.stores.sqlite import engine
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.export import export

COLUMNS = "seq, pool, grp, position, created_at, ended_at, ended_by, key, labels, fields, text"


def main(folder: Path, fixture: Path, every: int) -> None:
    """Upgrade a file completely, then again with a kill at each statement and a second start after
    it.
    """
    forks.die_with_parent()
    forks.warm()
    whole = folder / "whole" / "memories.db"
    _copy(fixture, whole)
    forks.wait([forks.fork(_write_rows, whole, folder / "before")])
    forks.wait([forks.fork(_upgrade, whole, 0, folder / "count")])
    statements = int((folder / "count").read_text())
    forks.wait([forks.fork(_check, whole, folder, True)])
    for kills, number in enumerate(range(1, statements + 1, every), 1):
        path = folder / f"kill{number}" / "memories.db"
        _copy(fixture, path)
        forks.wait([forks.fork(_upgrade, path, number, folder / "unused")], -signal.SIGKILL)
        forks.wait([forks.fork(_check, path, folder, False)])
        shutil.rmtree(path.parent)
        forks.print_figures(statements=statements, kills=kills, rows_changed=0)


def _copy(fixture: Path, path: Path) -> None:
    """Copy the file of a released schema to a new home."""
    path.parent.mkdir(mode=0o700)
    shutil.copy(fixture, path)
    path.chmod(0o600)


def _upgrade(path: Path, kill_at: int, count: Path) -> None:
    """Open a store for writing, and die before the statement with this number; 0 for none."""
    done = [0]

    def traced(*_: object) -> bool:
        done[0] += 1
        if done[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", traced))
    store = SQLiteStore(path, None)
    with store._file.write():
        pass
    count.write_text(str(done[0]))
    store.close()


def _rows(db: apsw.Connection) -> str:
    """Return all records as text."""
    return repr(db.execute(f"SELECT {COLUMNS} FROM record ORDER BY seq").fetchall())


def _write_rows(path: Path, file: Path) -> None:
    """Write all records of a store into a file."""
    db = apsw.Connection(str(path))
    file.write_text(_rows(db))
    db.close()


def _check(path: Path, folder: Path, first: bool) -> None:
    """Check that a store has the fixture's rows in the newest schema, and that its export equals
    that of the complete upgrade.
    """
    store = SQLiteStore(path, None)
    lines: list[Any] = []
    export(store, lines.append, namespaces=None, progress=lambda what, done, whole: None)
    exported = folder / "exported"
    if first:
        exported.write_text("".join(lines))
    assert "".join(lines) == exported.read_text()
    with store._file.write() as db:
        assert _rows(db) == (folder / "before").read_text()
        assert db.pragma("user_version") == engine.SCHEMA_VERSION
    store.close()
    work.check_file(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
