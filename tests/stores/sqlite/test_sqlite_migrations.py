"""A SQLite store of an older schema is migrated completely or not at all; a newer schema is
refused.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest
from contract import (
    MEMORY,
    SPACE,
    at,
    by_words,
    everything,
    matching,
    pool,
    record,
    refs_of,
    seen,
    turn,
    unit_vectors,
)
from sqlite_scripts import CHECK, STORE, RunPython, StartPython
from sqlite_uses import all_uses, mode

from forkserver import ForkServer
from memories.errors import SchemaTooNew, StoreError
from memories.stores.records import (
    Patch,
    Ref,
)
from memories.stores.sqlite import engine
from memories.stores.sqlite import schema as sqlite_schema
from memories.stores.sqlite.store import SQLiteStore

RELEASED = sqlite_schema.MIGRATIONS

KNOWN = len(RELEASED)

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
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", (*RELEASED, *scripts))
    monkeypatch.setattr(engine, "SCHEMA_VERSION", len(sqlite_schema.MIGRATIONS))


def test_the_newest_schema_is_the_last_migration() -> None:
    assert len(RELEASED) == engine.SCHEMA_VERSION


def migrating(migration: str) -> str:
    """Return the beginning of a script that adds one more migration to the program."""
    return (
        "from memories.stores.sqlite import engine, schema\n"
        f"schema.MIGRATIONS += ({migration!r},)\nengine.SCHEMA_VERSION += 1\n" + STORE
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


DOWNGRADE = """
import re, sys, apsw
sys.path.insert(0, sys.argv[2])
from memories.stores.sqlite.schema import MIGRATIONS
def tables(db):
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    sql = {name: sql for name, sql in rows}
    return {name: re.sub(r"--.*|\\s+", "", text) for name, text in sql.items()}
db = apsw.Connection(sys.argv[1])
from memories.languages.text import index_text
for (trigger,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
    db.execute(f"DROP TRIGGER {trigger}")
db.execute("DROP INDEX record_deleted")
for column in ("live", "deleted", "without_vector"):
    db.execute(f"ALTER TABLE pool DROP COLUMN {column}")
first = apsw.Connection(":memory:")
first.execute(MIGRATIONS[0])
later = (
    "turn_words", "turn_vector", "turn_block", "label_pool", "staged_vector", "staged_turn_vector",
)
later += ("corpus", "store", "key_pool")
for table in (*later, "words", "words_ended"):
    db.execute(f"DROP TABLE {table}")
for table, state in (("words", "IS NULL"), ("words_ended", "IS NOT NULL")):
    db.execute(first.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).get)
    rows = db.execute(f"SELECT seq, text FROM record WHERE ended_at {state}").fetchall()
    rows = [(seq, index_text(text)) for seq, text in rows]
    db.executemany(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", rows)
db.execute("DROP INDEX record_said")
db.execute("ALTER TABLE record DROP COLUMN session")
db.execute("ALTER TABLE block DROP COLUMN pools")
db.execute("ALTER TABLE record DROP COLUMN state_crc")
db.execute("ALTER TABLE vector DROP COLUMN crc")
db.execute("DELETE FROM meta WHERE name = 'secure'")
db.pragma("user_version", 1)
assert tables(db) == tables(first), tables(db).items() ^ tables(first).items()
db.close()
"""


@pytest.fixture(scope="module")
def downgraded(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> tuple[Path, Any]:
    """A closed store file, downgraded to schema 1 without later additions, and the earlier result
    of `seen`.
    """
    path = tmp_path_factory.mktemp("first") / "memories.db"
    store = SQLiteStore(path, SPACE)
    vectors = unit_vectors(1_100)
    store.append(
        [
            record(
                f"m{number:04}",
                text=f"common words w{number}",
                labels={"who": "ann"},
                vectors=vectors[[number]],
            )
            for number in range(1_100)
        ]
    )
    store.append(
        [
            record(
                "m0000", 2, text="common words again", key="k", labels={"who": "ann", "項目": "値"}
            )
        ]
    )
    store.append(
        [
            record(
                "b",
                namespace="bob",
                text="common words of bob",
                labels={"who": "bob"},
                fields={"n": 1.5},
            )
        ]
    )
    store.patch([Patch(Ref(MEMORY, "ann", "m0001", 1), at(50), "delete", {"mark": 1})])
    store.touch([Ref(MEMORY, "ann", "m0002", 1)] * 3)
    before = [
        seen(store, pool(name, state=state))
        for name in ("ann", "bob")
        for state in ("live", "ended", "any")
    ]
    store.close()
    source = Path(sqlite_schema.__file__).parents[2]
    with contextlib.closing(
        forks.start(DOWNGRADE, path, source, folder=path.parent, environment={})
    ) as process:
        done = process.finish()
    assert done.returncode == 0, done.stderr
    return path, before


@pytest.fixture
def first_schema(downgraded: tuple[Path, Any], path: Path) -> Any:
    """Copies the downgraded file to `path`; the earlier result of `seen`."""
    made, before = downgraded
    shutil.copy2(made, path)
    return before


@pytest.mark.first(1)
@pytest.mark.parametrize("first_use", ["read", "write", "turn"])
def test_a_file_with_the_first_schema_keeps_everything_and_accepts_turns(
    first_schema: Any, path: Path, first_use: str, run_python: RunPython
) -> None:
    store = SQLiteStore(path, SPACE)
    if first_use == "write":
        store.touch([])
    if first_use == "turn":
        store.append([turn(0, text="common words of a turn", labels={"speaker": "Zoë"})])
    after = [
        seen(store, pool(name, state=state))
        for name in ("ann", "bob")
        for state in ("live", "ended", "any")
    ]
    assert after == first_schema
    assert store.info(pool()).schema_version == KNOWN
    assert store.values(MEMORY, ["ann"], "who") == ["ann"]
    assert store.values(MEMORY, ["ann", "bob"], "who") == ["ann", "bob"]
    assert store.values(MEMORY, ["bob"], "項目") == []
    assert {entry.session for entry in everything(store, pool("ann", "bob"))} == {None}
    store.append([turn(number, text=f"common words of turn {number}") for number in range(1, 4)])
    assert {ref.position for ref in refs_of(matching(store, "common words"))} >= {1, 2, 3}
    assert by_words(store, ["w7"]).keys() == {"m0007"}
    (result,) = store.candidates(pool(), vector=unit_vectors(1_100)[1_050], terms=[], k=1)
    assert result.record.ref.group == "m1050"
    assert list(store.remove([Ref(MEMORY, "bob", "b", 1)])) == [f"{path}.v1.backup"]
    assert store.values(MEMORY, ["bob"], "who") == []
    store.close()
    assert inspect_file(path) == [str(KNOWN), "ok"]
    assert inspect_file(Path(f"{path}.v1.backup")) == ["1", "ok"]
    assert mode(Path(f"{path}.v1.backup")) == 0o600
    assert run_python(CHECK, path).stdout == "ok\n"


@pytest.mark.parametrize(
    ("number", "width"), [(255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32 - 1, 4)]
)
def test_a_migration_adds_namespace_numbers_to_blocks(number: int, width: int) -> None:
    """Each number has as few bytes as the largest one needs. The second window of the block was
    removed.
    """
    db = apsw.Connection(":memory:")
    db.execute(
        "CREATE TABLE meta (name, value); INSERT INTO meta VALUES ('dimension', 70);"
        "CREATE TABLE record (seq, pool); CREATE TABLE old (hi, seqs, bits, pools)"
    )
    db.execute("INSERT INTO record VALUES (4, 3), (6, ?)", (number,))
    db.execute("INSERT INTO old VALUES (6, NULL, zeroblob(3 * 2 * 8), NULL)")
    sqlite_schema._note_pools(db, "old")
    [(packed,)] = db.execute("SELECT pools FROM old").fetchall()
    numbers = [packed[start : start + width] for start in range(0, len(packed), width)]
    assert [int.from_bytes(text, "little") for text in numbers] == [3, 0, number]


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
