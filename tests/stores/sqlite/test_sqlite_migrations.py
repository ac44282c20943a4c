"""A SQLite store of an older schema is migrated completely or not at all; a newer schema is
refused.
"""

import os
from pathlib import Path

import apsw
import pytest
from contract import (
    SPACE,
    pool,
    record,
    seen,
)
from sqlite_scripts import STORE, RunPython, StartPython
from sqlite_uses import all_uses, mode

from memories.errors import SchemaTooNew, StoreError
from memories.stores.sqlite import engine
from memories.stores.sqlite import schema as sqlite_schema
from memories.stores.sqlite.store import SQLiteStore

KNOWN = engine.SCHEMA_VERSION

NEXT = """
CREATE TABLE extra (x);
ALTER TABLE record ADD COLUMN note TEXT;
UPDATE record SET note = 'migrated';
"""


def inspect_file(path: Path) -> list[str]:
    """Return the version and state of a file, and which additions of `NEXT` it has."""
    db = apsw.Connection(str(path))
    try:
        added = db.execute(
            "SELECT name FROM pragma_table_info('record') WHERE name = 'note' "
            "UNION ALL SELECT name FROM sqlite_schema WHERE name = 'extra'"
        )
        return [
            str(db.pragma("user_version")),
            db.pragma("integrity_check"),
            *(name for (name,) in added),
        ]
    finally:
        db.close()


def migrate_to(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    """Add migrations to those that were released."""
    for number, script in enumerate(scripts, KNOWN + 1):
        monkeypatch.setitem(sqlite_schema.MIGRATIONS, number, script)
    monkeypatch.setattr(engine, "SCHEMA_VERSION", KNOWN + len(scripts))


def test_the_newest_schema_is_the_last_migration() -> None:
    assert [*sqlite_schema.MIGRATIONS] == [*range(engine.FIRST_RELEASED + 1, KNOWN + 1)]


def migrating(migration: str) -> str:
    """Return the beginning of a script that adds one more migration to the program."""
    return (
        "from memories.stores.sqlite import engine, schema\n"
        "engine.SCHEMA_VERSION += 1\n"
        f"schema.MIGRATIONS[engine.SCHEMA_VERSION] = {migration!r}\n" + STORE
    )


@pytest.mark.parametrize("first_use", ["read", "write"])
def test_a_migration_keeps_everything_and_leaves_a_snapshot(
    old: Path, monkeypatch: pytest.MonkeyPatch, first_use: str
) -> None:
    store = SQLiteStore(old, SPACE)
    before = seen(store, pool())
    store.close()
    os.umask(previous := os.umask(0))
    migrate_to(monkeypatch, NEXT)
    store = SQLiteStore(old, SPACE)
    if first_use == "write":
        store.touch([])
    assert seen(store, pool()) == before
    assert store.info(pool()).schema_version == KNOWN + 1
    assert list(store.remove([])) == [f"{old}.v{KNOWN}.backup"]
    store.close()
    os.umask(previous)
    assert inspect_file(old) == [str(KNOWN + 1), "ok", "note", "extra"]
    assert mode(Path(f"{old}.v{KNOWN}.backup")) == 0o600
    assert inspect_file(Path(f"{old}.v{KNOWN}.backup")) == [str(KNOWN), "ok"]


def test_a_migration_of_several_steps_leaves_one_snapshot(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_to(monkeypatch, NEXT, "CREATE TABLE third (x)")
    store = SQLiteStore(old, SPACE)
    assert store.info(pool()).schema_version is not None
    assert store.count(pool()) == 3
    assert store.info(pool()).schema_version == KNOWN + 2
    store.close()
    assert [entry.name for entry in old.parent.glob("*.backup")] == [f"{old.name}.v{KNOWN}.backup"]


def test_a_failed_migration_leaves_the_old_version(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(old, SPACE)
    before = seen(store, pool())
    store.close()
    with monkeypatch.context() as broken:
        migrate_to(broken, NEXT + "; SELECT no_such_column FROM record")
        store = SQLiteStore(old, SPACE)
        for use in all_uses(store):
            with pytest.raises(StoreError):
                use()
        store.close()
        assert inspect_file(old) == [str(KNOWN), "ok"]
    store = SQLiteStore(old, SPACE)
    assert seen(store, pool()) == before
    store.close()


def test_a_killed_migration_leaves_the_old_version(
    old: Path, monkeypatch: pytest.MonkeyPatch, start_python: StartPython
) -> None:
    endless = """
import apsw
def wait():
    print("migrating", flush=True)
    sys.stdin.read()
apsw.connection_hooks.append(lambda db: db.create_scalar_function("wait", wait))
"""
    running = start_python(migrating(NEXT + "SELECT wait();") + endless + "store.count(mine)", old)
    assert running.stdout.readline() == "migrating\n"
    assert Path(f"{old}.v{KNOWN}.backup").exists()
    running.kill()
    assert inspect_file(old) == [str(KNOWN), "ok"]
    migrate_to(monkeypatch, NEXT)
    store = SQLiteStore(old, SPACE)
    assert store.count(pool()) == 3
    store.close()
    assert inspect_file(old)[0] == str(KNOWN + 1)


def test_processes_that_migrate_at_once_all_succeed(old: Path, start_python: StartPython) -> None:
    script = "print('ready', flush=True); input(); print(store.count(mine) >= 3); add(sys.argv[2])"
    running = [start_python(migrating(NEXT) + script, old, f"p{number}") for number in range(4)]
    assert [process.stdout.readline() for process in running] == ["ready\n"] * 4
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    done = [process.finish() for process in running]
    assert [(entry.stdout, entry.stderr) for entry in done] == [("True\n", "")] * 4
    assert inspect_file(old)[:2] == [str(KNOWN + 1), "ok"]


def test_remains_of_an_interrupted_snapshot_do_no_harm(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old.parent / f".{old.name}.v{KNOWN}.backup.new").write_bytes(b"half")
    migrate_to(monkeypatch, NEXT)
    store = SQLiteStore(old, SPACE)
    assert store.count(pool()) == 3
    store.close()
    assert inspect_file(Path(f"{old}.v{KNOWN}.backup")) == [str(KNOWN), "ok"]


def test_a_newer_schema_is_refused_and_left_unchanged(path: Path, run_python: RunPython) -> None:
    """Its writer was killed, so its log is still there; not even the log is changed."""
    script = (
        STORE
        + "add('m'); db = store._file._connection(); db.pragma('user_version', 9); os._exit(0)"
    )
    run_python(script, path)
    files = [path, Path(f"{path}-wal")]
    before = [file.read_bytes() for file in files]
    assert len(before[1]) > 0
    for number in range(len(all_uses(SQLiteStore(path, SPACE)))):
        store = SQLiteStore(path, SPACE)
        with pytest.raises(
            SchemaTooNew,
            match=f"has schema 9, but this program supports only schemas up to {KNOWN}; upgrade memoriae",
        ):
            all_uses(store)[number]()
        store.close()
    assert [file.read_bytes() for file in files] == before


def test_a_newer_schema_is_noticed_while_open(
    path: Path, store: SQLiteStore, run_python: RunPython
) -> None:
    store.append([record("m")])
    run_python("import sys, apsw; apsw.Connection(sys.argv[1]).pragma('user_version', 9)", path)
    for use in all_uses(store):
        with pytest.raises(SchemaTooNew):
            use()
