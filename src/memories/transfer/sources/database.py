"""Reads other programs' SQLite files from a copy, so that the original is never touched."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memories.errors import InvalidInput, SystemFault
from memories.guard.validate import shown
from memories.transfer.lines import SQLITE

_ATTEMPTS = 5
_SIDE_FILES = ("", "-wal", "-journal")
_MAX_VALUE_BYTES = 67_108_864  # a longer value is read as None
_MAX_ROW_BYTES = 4 * _MAX_VALUE_BYTES


class Database:
    """A copy of another program's SQLite file."""

    def __init__(self, connection: Any, name: str) -> None:
        """Wrap an apsw connection to a copy of the file `name`."""
        self._connection, self._name = connection, name

    def tables(self) -> set[str]:
        """Return the file's table names."""
        return {row[0] for row in self._run("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def columns(self, table: str) -> set[str]:
        """Return a table's column names; empty if there is no such table.

        Views don't count: a view in a damaged or hostile file could produce rows endlessly.
        """
        sql = (
            "SELECT c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c "
            "WHERE t.type = 'table' AND t.name = ?"
        )
        return {row[0] for row in self._run(sql, table)}

    def rows(
        self,
        table: str,
        needed: Sequence[str],
        optional: Sequence[str] = (),
        rest: str = "",
        *values: str,
    ) -> Iterator[dict[str, Any]]:
        """Yield rows from a table; optional columns that are missing are None.

        Args:
            table: The name of the table.
            needed: The columns without which the table can't be read.
            optional: Further columns, which some versions of the program don't have.
            rest: SQL after the name of the table, such as an ORDER BY.
            *values: The values for the question marks in `rest`.

        Raises:
            InvalidInput: The table or a needed column is missing.
        """
        columns = self.columns(table)
        if not columns:
            raise InvalidInput(
                f"{shown(self._name)} has no table {table}; a different version of the program may "
                "have written the file"
            )
        for column in needed:
            if column not in columns:
                raise InvalidInput(
                    f"table {table} of {shown(self._name)} has no column {column}; "
                    "a different version of the program may have written the file"
                )
        names = [*needed, *(column for column in optional if column in columns)]
        quoted = ", ".join(map(_bounded, names))
        missing = dict.fromkeys(set(optional) - columns)
        for row in self._run(f'SELECT {quoted} FROM "{table}" {rest}', *values):  # noqa: S608 - our names
            yield missing | dict(zip(names, row, strict=True))

    def _run(self, sql: str, *values: str) -> Iterator[tuple[Any, ...]]:
        import apsw

        try:
            yield from self._connection.execute(sql, values)
        except (apsw.Error, UnicodeDecodeError) as exc:
            raise InvalidInput(
                f"{shown(self._name)} can't be read as a database: {exc}; use another copy"
            ) from exc


def _bounded(column: str) -> str:
    """Return SQL for the value of a column, or NULL if it is too long."""
    return f'CASE WHEN octet_length("{column}") <= {_MAX_VALUE_BYTES} THEN "{column}" END'


@contextlib.contextmanager
def open_copy(file: Path) -> Iterator[Database]:
    """Yield a private copy of a SQLite file and its log, which may contain the latest changes.

    Raises:
        InvalidInput: The file is not a SQLite file, or is damaged.
        SystemFault: The file is constantly being written to, or there is no room for the copy.
    """
    import apsw

    with tempfile.TemporaryDirectory(prefix="memories-import-") as folder:
        copy = Path(folder, "copy.db")
        _copy(file, copy)
        flags = apsw.SQLITE_OPEN_READWRITE
        try:
            connection = apsw.Connection(str(copy), flags=flags)
        except apsw.Error as exc:
            raise InvalidInput(f"{shown(file.name)} can't be opened: {exc}") from exc
        try:
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
                connection.execute(f"PRAGMA {pragma}")
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)
            _remove_names(connection, Path(folder))
            yield Database(connection, file.name)
        finally:
            connection.close()


def _remove_names(connection: Any, folder: Path) -> None:
    """Remove the files of an open copy, so that it vanishes even if this process is killed.

    The copy may contain secrets of the other program. Windows can't remove open files.
    """
    import apsw

    if os.name != "posix":
        return
    with contextlib.suppress(apsw.Error):  # the copy is damaged, which is reported when it is read
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()  # opens the copy's log
    for file in folder.iterdir():
        file.unlink()


def _copy(file: Path, copy: Path) -> None:
    """Copy a database and its log; copy them again if a program wrote to them in the meantime."""
    if not file.is_file():
        raise InvalidInput(f"{shown(file.name)} is not a regular file; copy its contents to one")
    try:
        with file.open("rb") as stream:
            start = stream.read(16)
    except OSError as exc:
        problem = f"cannot read {shown(str(file))}: {exc.strerror or exc}"
        raise InvalidInput(f"{problem}; use another copy") from exc
    if start != SQLITE:
        raise InvalidInput(f"{shown(file.name)} is not a SQLite database")
    for _ in range(_ATTEMPTS):
        before = _state(file)
        for suffix in _SIDE_FILES:
            target = copy.with_name(copy.name + suffix)
            target.unlink(missing_ok=True)
            part = file.with_name(file.name + suffix)
            if part.is_file() and not part.is_symlink():
                with contextlib.suppress(FileNotFoundError):
                    _copy_file(part, target)
        if _state(file) == before:
            return
    raise SystemFault(
        f"{shown(file.name)} is constantly being written to; close its program and try again"
    )


def _copy_file(file: Path, target: Path) -> None:
    try:
        shutil.copyfile(file, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise SystemFault(
            f"cannot copy {shown(file.name)} to {target.parent}: {exc.strerror or exc}; "
            "set TMPDIR to a folder with more space"
        ) from exc


def _state(file: Path) -> list[tuple[int, int] | None]:
    """Return the size and modification time of a database and of each of its side files."""
    states: list[tuple[int, int] | None] = []
    for suffix in _SIDE_FILES:
        try:
            status = file.with_name(file.name + suffix).stat()
        except FileNotFoundError:
            states.append(None)
        else:
            states.append((status.st_size, status.st_mtime_ns))
    return states
