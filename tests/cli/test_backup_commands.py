"""backup, restoring a file, doctor, and damage in the output of status."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Once
from memories.stores.sqlite import engine
from memories.transfer import doctor as examining
from memories.transfer.backup import scratch_beside

Command = Callable[..., Any]
Store = Callable[..., str]
RunPython = Callable[..., subprocess.CompletedProcess[str]]

DAMAGE = "import apsw, sys; apsw.Connection(sys.argv[1]).execute(sys.argv[2]).fetchall()"


@pytest.fixture
def ids(memory: Command, stored: Store, once: Once) -> list[str]:
    """The ids of memories in two namespaces, one updated and one deleted; there is also a turn."""

    def fill() -> list[str]:
        first = stored("The user prefers Python", "--type", "preference")
        memory("update", first, "The user prefers Rust")
        second = stored("Deploys happen on Tuesdays")
        memory("delete", second)
        third = stored("Ann likes tea", "--namespace", "ann")
        memory("turns", "add", "standup", "We ship on Friday", "--speaker", "Ann")
        return [first, second, third]

    kept: list[str] = once(fill)
    return kept


@pytest.fixture
def store(home: Path) -> Path:
    """The path of the default store."""
    return home / "memories.db"


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 300 KB, at `disk`."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k,mode=700", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, timeout=60).returncode:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", disk], check=True, timeout=300)


def everything(memory: Command, *options: str) -> str:
    """Export all namespaces; return the text."""
    return str(memory("export", "--all-namespaces", *options).out)


def url(path: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite:///{path}"


# --- backup


@pytest.mark.usefixtures("ids")
def test_a_backup_is_complete_and_private(memory: Command, home: Path, store: Path) -> None:
    before = everything(memory)
    os.umask(0)
    shape = memory("backup").json
    os.umask(0o022)
    file = Path(shape["backup"])
    assert file.parent == home / "backups"
    assert file.name.startswith("memories-20")
    assert (shape["kind"], shape["verified"], shape["records"], shape["queued"]) == (
        "sqlite",
        True,
        5,
        0,
    )
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert list(file.parent.iterdir()) == [file]
    assert everything(memory, "--store", url(file)) == before
    assert everything(memory) == before


@pytest.mark.usefixtures("ids")
def test_a_backup_overwrites_only_backups(memory: Command, folder: Path, store: Path) -> None:
    precious = folder / "precious.db"
    precious.write_text("precious")
    (folder / "link.db").symlink_to(precious)
    memory("create", "Another store", "--store", url(folder / "other.db"))
    memory("backup", str(folder / "others.db"), "--store", url(folder / "other.db"))
    for name, complaint in [
        ("precious.db", "exists and is not a backup"),
        ("link.db", "exists and is not a backup"),
        ("other.db", "exists and is not a backup"),
        ("others.db", "is a backup of another store"),
        (str(store), "exists and is not a backup"),
    ]:
        answer = memory("backup", name)
        assert answer.code == 1
        assert complaint in answer.error
    assert precious.read_text() == "precious"
    assert memory("backup", "mine.db").code == memory("backup", "mine.db").code == 0
    restored = url(folder / "restored.db")
    assert "there is no store" not in memory("restore", "mine.db", "--store", restored).err
    answer = memory("backup", "restored.db")  # restored from a backup, but not itself a backup
    assert "exists and is not a backup" in answer.error
    assert "there is no folder" in memory("backup", "missing/mine.db").error
    assert sorted(found.name for found in folder.iterdir() if found.name.startswith(".")) == []


@pytest.mark.usefixtures("ids")
def test_keep_removes_the_oldest_backups_of_this_store_only(memory: Command, folder: Path) -> None:
    others = memory("backup", "all/", "--store", "sqlite:///other.db", "--keep", "1")
    assert "nothing to back up" in others.error
    memory("create", "Another store", "--store", url(folder / "x" / "memories.db"))
    other = memory("backup", "all/", "--store", url(folder / "x" / "memories.db")).json["backup"]
    mine = [memory("backup", "all").json["backup"] for _ in range(3)]
    (folder / "all" / "memories-20260101T000000Z.db").write_text("no backup")
    named = memory("backup", "all/before-upgrade.db").json["backup"]
    shape = memory("backup", "all", "--keep", "2").json
    assert shape["removed"] == sorted(mine[:2])
    left = {str(file) for file in (folder / "all").iterdir()}
    assert left == {
        other,
        mine[2],
        named,
        shape["backup"],
        str(folder / "all" / "memories-20260101T000000Z.db"),
    }
    for wrong in ("0", "-1", "x", "10001"):
        assert (
            memory("backup", "all", "--keep", wrong).error
            == f'keep must be a whole number from 1 to 10000, not "{wrong}"'
        )
    answer = memory("backup", "mine.db", "--keep", "1")
    assert answer.code == 2
    assert f"there is no folder {folder / 'mine.db'}; create it first, or" in answer.error


@pytest.mark.usefixtures("ids")
def test_a_backup_removes_leftovers_of_a_killed_backup_but_not_of_a_running_one(
    memory: Command,
) -> None:
    done = Path(memory("backup", "all/").json["backup"])
    left = done.with_name(f".{done.name}.0123abcd.new")
    left.touch()
    with scratch_beside(done) as in_use:
        memory("backup", "all/")
        assert (left.exists(), in_use.exists()) == (False, True)


@pytest.mark.usefixtures("ids")
def test_a_damaged_store_is_not_backed_up_and_keeps_old_backups(
    memory: Command, store: Path, home: Path, run_python: RunPython
) -> None:
    memory("backup", "--keep", "1")
    [kept] = (home / "backups").iterdir()
    run_python(DAMAGE, store, "UPDATE record SET text = 'The user prefers Perl' WHERE seq = 1")
    answer = memory("backup", "--keep", "1")
    assert answer.code == 1
    assert "memories.db is damaged, so no backup was made: record 1 can't be read" in answer.error
    assert "memory doctor --salvage" in answer.error
    assert list((home / "backups").iterdir()) == [kept]


@pytest.mark.usefixtures("ids")
def test_the_backup_of_a_files_store_is_an_export_with_vectors(
    memory: Command, folder: Path
) -> None:
    files = f"files:///{folder}/notes"
    memory("migrate", "--to", files)
    exported = everything(memory, "--store", files, "--vectors").splitlines()
    shape = memory("backup", "all/", "--store", files).json
    header, *lines = Path(shape["backup"]).read_text().splitlines()
    assert (shape["kind"], shape["records"]) == ("export", 5)
    assert json.loads(header)["model"] == "fake/1"
    assert lines[:-1] == exported[1:-1]
    again = memory("backup", "all/", "--store", files, "--keep", "1").json
    assert again["removed"] == [shape["backup"]]
    assert Path(again["backup"]).stat().st_mode & 0o777 == 0o600
    for other in (f"files:///{folder}/copy", url(folder / "copy.db")):
        restored = memory("restore", again["backup"], "--store", other).json
        assert (restored["records"], restored["without_vector"]) == (5, 0)
        assert everything(memory, "--store", other) == everything(memory, "--store", files)
    answer = memory("restore", again["backup"], "--store", f"files:///{folder}/copy")
    assert "is not empty; to add what it lacks, run: memory import" in answer.error


@pytest.mark.usefixtures("ids")
def test_backup_reports_queued_turns(memory: Command, store: Path) -> None:
    (store.parent / f"{store.name}.ann.turns.jsonl").write_text('{"conversation_id": "c"}\n' * 2)
    answer = memory("backup")
    assert answer.json["queued"] == 2
    assert "2 turns in the retry queue are not in the backup" in answer.err
    assert memory("doctor").out.count('"queued": 2') == 1


@pytest.mark.usefixtures("ids")
def test_a_full_disk_does_not_damage_an_earlier_backup(memory: Command, small_disk: Path) -> None:
    memory("backup", "disk/mine.db")
    before = (small_disk / "mine.db").read_bytes()
    answer = memory("backup", "disk/mine.db")
    assert answer.code == 1
    assert "disk" in answer.error
    assert "full" in answer.error
    assert [(file.name, file.read_bytes()) for file in small_disk.iterdir()] == [
        ("mine.db", before)
    ]


@pytest.mark.usefixtures("ids")
@pytest.mark.cold  # a server has no such limit
def test_a_limit_on_file_sizes_is_not_blamed_on_the_disk_of_the_store(
    memory: Command, folder: Path
) -> None:
    memory("create", "a lot of text " * 40_000)
    limited = f'ulimit -f 300; exec "{sys.executable}" -B -m memories backup mine.db'
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot write {folder}/" in done.stderr
    assert "ulimit -f" in done.stderr
    assert not [file for file in folder.iterdir() if "mine" in file.name]


# --- restore


@pytest.mark.usefixtures("ids")
def test_a_backup_is_restored_and_the_old_store_is_kept(memory: Command, store: Path) -> None:
    before, file = everything(memory), memory("backup").json["backup"]
    memory("create", "Written later", "--namespace", "bob")
    after = everything(memory)
    refused = memory("restore", file)
    assert (refused.code, "add --replace" in refused.error) == (1, True)
    assert everything(memory) == after
    shape = memory("restore", file, "--replace").json
    assert (shape["records"], shape["verified"]) == (5, True)
    assert everything(memory) == before
    assert everything(memory, "--store", url(Path(shape["kept"]))) == after
    memory("create", "And written again")
    assert memory("status").json["memory_count"] == 2
    assert [path.name for path in store.parent.iterdir() if path.name.startswith(".")] == []
    shown = memory("restore", file, "--replace", "--format", "text").out
    assert shown.startswith(f"Restored and verified: 5 records from {file}, made at 20")
    assert "The previous store is kept as" in shown


def test_a_scratchpad_shows_restored_memories(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_STORE", f"files:///{folder}/kept")
    memory("create", "Deploys happen on Tuesdays", "-n", "bob")
    memory("backup", str(folder / "b.jsonl"))
    memory("create", "The port is 80", "-n", "bob")
    memory("scratchpad", "show", "-n", "bob")
    shutil.rmtree(folder / "kept")
    assert memory("restore", str(folder / "b.jsonl")).code == 0
    shown = memory("scratchpad", "show", "-n", "bob").json["results"]
    assert [each["content"] for each in shown] == ["Deploys happen on Tuesdays"]


def test_restore_also_takes_the_id_of_a_memory(
    memory: Command, ids: list[str], folder: Path
) -> None:
    (folder / ids[1][:8]).write_text("a file that looks like an id")
    assert memory("restore", ids[1][:18]).json["content"] == "Deploys happen on Tuesdays"
    assert "is not a file" in memory("restore", "missing.db").error
    assert "is not a memory id" in memory("restore", "missing").error


@pytest.mark.first(2)
@pytest.mark.parametrize("log", ["own", "foreign", "random"])
@pytest.mark.parametrize("missing", [False, True])
def test_an_old_log_does_not_change_the_restored_store(
    memory: Command, ids: list[str], store: Path, run_python: RunPython, log: str, missing: bool
) -> None:
    """A killed process has left its log, or the log belongs to another file or to a missing one."""
    before, file = everything(memory), memory("backup").json["backup"]
    killed = "import os, sys; from memories import Memories\n"
    killed += "memories = Memories(sys.argv[1], embedder='none')\n"
    killed += "memories.create('Written later', force=True); os.kill(os.getpid(), 9)"
    there = store if log == "own" else store.parent / "else" / "memories.db"
    run_python(killed, url(there), check=False)
    if log != "own":
        shutil.copy(f"{there}-wal", f"{store}-wal")
    if log == "random":
        Path(f"{store}-wal").write_bytes(os.urandom(20_000))
    if missing:
        store.unlink()
    assert "--replace" in memory("restore", file).error
    shape = memory("restore", file, "--replace").json
    assert everything(memory) == before
    memory("create", "Written again")
    assert memory("status").json["memory_count"] == 2
    assert Path(shape["kept"]).exists()
    if missing or log == "foreign":
        assert Path(f"{shape['kept'].removesuffix('-wal')}-wal").exists()


KILLED = """
import os, sys
from memories import Memories
Memories(sys.argv[1], embedder='none').create('Written later', force=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.first(1)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_restore_is_refused_beside_the_log_of_the_restored_file(
    memory: Command, ids: list[str], store: Path, run_python: RunPython, replaced: bool
) -> None:
    run_python(KILLED, url(store), check=False)
    moved = store.with_name("moved.db")
    store.rename(moved)
    if replaced:
        run_python(KILLED, url(store.parent / "else" / "memories.db"), check=False)
        shutil.copy(store.parent / "else" / "memories.db", store)
    before = {file: file.read_bytes() for file in store.parent.glob("memories.db*")}
    error = memory("restore", str(moved), "--replace").error
    assert f"is the log of {moved}" in error
    assert ("to another folder, then move " in error) == replaced
    assert {file: file.read_bytes() for file in before} == before
    moved.rename(store)
    assert "Written later" in everything(memory)


def test_salvage_ignores_the_log_of_another_file(
    memory: Command, ids: list[str], store: Path, run_python: RunPython
) -> None:
    before = record_lines(everything(memory))
    there = store.parent / "else" / "memories.db"
    run_python(KILLED, url(there), check=False)
    shutil.copy(f"{there}-wal", f"{store}-wal")
    assert "memory doctor --salvage FILE" in memory("list").error
    done = memory("doctor", "--salvage", "saved.jsonl")
    assert done.code == 1
    assert [found["what"].partition(" belongs ")[0] for found in json.loads(done.out)["lost"]] == [
        "the log memories.db-wal"
    ]
    assert (
        "belongs to another file"
        in memory("restore", str(store), "--replace", "--store", "sqlite:///new.db").error
    )
    kept = Path(memory("restore", "saved.jsonl", "--replace").json["kept"])
    assert record_lines(everything(memory)) == before
    assert Path(f"{kept}-wal").read_bytes() == Path(f"{there}-wal").read_bytes()


def test_a_file_with_a_changed_modification_time_is_salvaged_with_its_log(
    memory: Command, ids: list[str], store: Path, run_python: RunPython, folder: Path
) -> None:
    run_python(KILLED, url(store), check=False)
    os.utime(store, ns=(1, 1))
    assert memory("doctor", "--salvage", "saved.jsonl").json["lost"] == []
    assert "Written later" in (folder / "saved.jsonl").read_text("utf-8")


def test_restore_refuses_unsound_backups_in_one_sentence(
    memory: Command, ids: list[str], store: Path, folder: Path, run_python: RunPython
) -> None:
    file, before = Path(memory("backup", "mine.db").json["backup"]), everything(memory)
    sound, texts = file.read_bytes(), b"The user prefers Rust"
    (folder / "cut.db").write_bytes(sound[: len(sound) // 2 // 4096 * 4096])
    (folder / "ragged.db").write_bytes(sound[:-100])
    (folder / "flipped.db").write_bytes(
        sound.replace(texts, b"The user prefers Rusty"[:21].replace(b"u", b"U"))
    )
    (folder / "empty.db").write_bytes(b"")
    (folder / "text.db").write_text("hello")
    (folder / "random.db").write_bytes(os.urandom(50_000))
    run_python(
        "import apsw, sys; apsw.Connection(sys.argv[1]).execute('CREATE TABLE t (x)')",
        folder / "foreign.db",
    )
    for name, change in [
        ("newer.db", f"PRAGMA user_version={engine.SCHEMA_VERSION + 1}"),
        ("trigger.db", "CREATE TRIGGER spy AFTER INSERT ON record BEGIN DELETE FROM record; END"),
        ("view.db", "CREATE VIEW spied AS SELECT * FROM record"),
    ]:
        shutil.copy(file, folder / name)
        run_python(DAMAGE, folder / name, change)
    exported = everything(memory).splitlines(keepends=True)
    (folder / "cut.jsonl").write_text("".join(exported[:-2]))
    (folder / "inner").mkdir()
    for name, code, complaint in [
        ("cut.db", 1, "cut.db is damaged"),
        ("ragged.db", 1, "ragged.db is damaged"),
        ("flipped.db", 1, "flipped.db is damaged"),
        ("empty.db", 2, "no records"),
        ("text.db", 2, "neither a SQLite backup nor an export"),
        ("random.db", 2, "neither a SQLite backup nor an export"),
        ("foreign.db", 1, "is another program's SQLite database"),
        (
            "newer.db",
            1,
            f"has schema {engine.SCHEMA_VERSION + 1}, but this program supports only schemas up to",
        ),
        ("trigger.db", 1, "trigger.db contains a trigger spy, which Memories never creates"),
        ("view.db", 1, "view.db contains a view spied, which Memories never creates"),
        ("cut.jsonl", 2, "the export is incomplete"),
        ("./inner", 2, "is not a file"),
        (str(store), 2, "is the store itself"),
    ]:
        for options in (["--replace"], ["--replace", "--store", url(folder / "new" / "new.db")]):
            if name == str(store) and len(options) > 1:
                continue
            answer = memory("restore", name, *options)
            assert (answer.code, complaint in answer.error) == (code, True), (name, answer)
    assert everything(memory) == before
    assert [
        path.name
        for path in store.parent.iterdir()
        if "replaced" in path.name or ".restore" in path.name
    ] == []
    assert not (folder / "new" / "new.db").exists()


def test_the_snapshot_of_an_upgrade_is_restored(
    memory: Command,
    folder: Path,
    store: Path,
    run_python: RunPython,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file from an older program: without a word index, and without the mark of a backup."""
    older = """
import os, sys, zlib, apsw
from memories.stores.sqlite import engine, rows, schema
db = apsw.Connection(sys.argv[1])
db.execute(schema._FIRST_RELEASED + schema.CREATE_TRIGGERS)
db.execute(f"PRAGMA application_id={engine.APPLICATION_ID}; PRAGMA user_version={sys.argv[2]}")
db.execute("INSERT INTO pool (id, collection, namespace) VALUES (1, 'memory', 'shared')")
parts = ("shared", "01a1fdf1-92cd-72f2-8000-0a1b2c3d4e5f", "1", "1763700000000", "", "An old note")
db.execute(
    "INSERT INTO record (pool, grp, position, created_at, crc, text) "
    "VALUES (1, ?, 1, 1763700000000, ?, 'An old note')",
    (bytes.fromhex(parts[1].replace("-", "")), zlib.crc32("\\0".join(parts).encode())),
)
crc = zlib.crc32("\\0".join(parts).encode())
db.execute("UPDATE record SET state_crc = ?", (rows.state_crc(crc, None, None, None, None),))
"""
    file = folder / f"memories.db.v{engine.FIRST_RELEASED}.backup"
    run_python(older, file, engine.FIRST_RELEASED)
    before = file.read_bytes()
    assert memory("restore", file.name).json["records"] == 1
    assert memory("list").json["results"][0]["content"] == "An old note"
    assert memory("doctor", "--fix").json["schema_version"] == engine.SCHEMA_VERSION
    assert file.read_bytes() == before


@pytest.mark.usefixtures("ids")
@pytest.mark.cold  # with a server, its disk couldn't be unmounted
def test_a_full_disk_keeps_the_old_store(memory: Command, small_disk: Path) -> None:
    file = memory("backup", "mine.db").json["backup"]
    store = url(small_disk / "memories.db")
    memory("create", "The old one", "--store", store)
    before = sorted(found.name for found in small_disk.iterdir())
    (small_disk / "filler").write_bytes(bytes(20_000))
    answer = memory("restore", file, "--replace", "--store", store)
    assert answer.code == 1
    assert "full" in answer.error
    (small_disk / "filler").unlink()
    assert sorted(found.name for found in small_disk.iterdir()) == before
    assert [hit["content"] for hit in memory("list", "--store", store).json["results"]] == [
        "The old one"
    ]


# --- doctor


def test_an_intact_store_has_no_findings_and_is_not_changed(
    memory: Command, ids: list[str], store: Path
) -> None:
    def contents() -> dict[Path, bytes]:
        return {
            file: file.read_bytes()
            for file in store.parent.rglob("*")
            if file.is_file() and file.name != "events.jsonl"
        }

    before = contents()
    for options in ([], ["--deep"]):
        shape = memory("doctor", *options).json
        assert (shape["status"], shape["findings"], shape["records"]) == ("healthy", [], 5)
    assert shape["engine"].startswith("SQLite 3.")
    assert shape["settings"]["embedder"] == "environment"
    assert memory("doctor", "--format", "text").out.startswith("Nothing is wrong.\n")
    assert contents() == before
    assert memory("doctor", "--fix").json["repaired"] == []
    assert contents() == before


def test_doctor_accepts_a_missing_store(memory: Command, home: Path) -> None:
    assert memory("doctor").json["records"] == 0
    assert not home.exists()


def test_doctor_compares_the_model_with_its_package(
    memory: Command, monkeypatch: Any, tmp_path: Path
) -> None:
    from memories.embedders import minilm

    assert memory("doctor", env={"EMBEDDER": "minilm"}).json["model_files"] == "as packaged"
    copy = tmp_path / "weights"
    shutil.copytree(minilm._WEIGHTS, copy)
    data = bytearray((copy / "all-MiniLM-L6-v2.int8.onnx").read_bytes())
    data[11_000_000] ^= 1
    (copy / "all-MiniLM-L6-v2.int8.onnx").write_bytes(data)
    monkeypatch.setattr(minilm, "_WEIGHTS", copy)
    answer = memory("doctor", env={"EMBEDDER": "minilm"})
    assert answer.code == 1
    assert "int8.onnx of the packaged model is missing or was altered" in answer.out


def test_fix_rebuilds_derived_data_after_a_backup(
    memory: Command, ids: list[str], store: Path, run_python: RunPython
) -> None:
    run_python(
        DAMAGE, store, "DELETE FROM words_docsize WHERE id = (SELECT min(id) FROM words_docsize)"
    )
    assert memory("search", "Rust").json["count"] == 1  # by its vector
    memory("status")  # counts this read
    before = everything(memory)
    answer = memory("doctor")
    assert answer.code == 1
    assert [finding["derived"] for finding in json.loads(answer.out)["findings"]] == [True]
    assert (memory("status").code, "memory doctor" in memory("status").out) == (1, True)
    shape = memory("doctor", "--fix").json
    assert shape["findings"] == []
    assert len(shape["repaired"]) == 1
    assert memory("status").code == 0
    assert everything(memory) == before
    assert everything(memory, "--store", url(Path(shape["backup"]))) == before


def test_doctor_accepts_the_loss_of_commits(
    memory: Command, store: Path, stored: Callable[..., str]
) -> None:
    stored("written before the copy", "-n", "ann")
    shutil.copy(store, store.with_suffix(".copy"))
    stored("written after the copy", "-n", "ann")
    store.with_suffix(".copy").rename(store)
    [finding] = json.loads(memory("doctor").out)["findings"]
    assert finding["what"].startswith("1 acknowledged commit is missing: the store's log was ")
    assert memory("create", "refused", "-n", "ann").code == 1
    assert memory("doctor", "--fix").json["repaired"] == [
        "the store continues without 1 missing commit"
    ]
    assert memory("create", "stored again", "-n", "ann").code == 0


def test_doctor_and_status_report_a_damaged_record_without_changing_it(
    memory: Command, ids: list[str], store: Path, run_python: RunPython
) -> None:
    run_python(
        DAMAGE, store, "UPDATE record SET text = 'Ann likes TEA' WHERE text = 'Ann likes tea'"
    )
    before = store.read_bytes()
    answer = memory("doctor", "--fix")
    assert answer.code == 1
    [finding] = json.loads(answer.out)["findings"]
    assert (finding["namespace"], finding["group"], finding["derived"]) == ("ann", ids[2], False)
    assert store.read_bytes() == before
    for options in ([], ["-n", "ann"]):
        answer = memory("status", *options)
        assert answer.code == 1
        assert json.loads(answer.out)["status"] == "unhealthy"
        assert ("ann" in json.loads(answer.out)["error"]) == bool(
            options
        )  # nothing else about other records


@pytest.mark.cold  # a server may have the first page in its log, and then the store can be read
@pytest.mark.parametrize("kind", ["zeroed", "text", "cut", "empty"])
def test_doctor_examines_a_store_that_cannot_be_opened(
    memory: Command, ids: list[str], store: Path, kind: str
) -> None:
    sound = store.read_bytes()
    damaged = {
        "zeroed": bytes(4096) + sound[4096:],
        "text": b"hello" * 99,
        "cut": sound[:9000],
        "empty": b"",
    }[kind]
    store.write_bytes(damaged)
    answer = memory("doctor", "--deep")
    assert answer.code == 1
    assert "memory restore FILE --replace" in json.loads(answer.out)["findings"][0]["remedy"]
    assert memory("status").code == 1
    assert store.read_bytes() == damaged


def test_doctor_reports_files_that_others_can_read(
    memory: Command, ids: list[str], store: Path
) -> None:
    store.chmod(0o644)
    answer = memory("doctor")
    assert answer.code == 1
    [finding] = json.loads(answer.out)["findings"]
    assert (finding["what"], finding["remedy"]) == (
        f"other users may read {store}",
        f"run: chmod 600 {store}",
    )


def test_doctor_reports_leftovers_of_killed_processes(
    memory: Command, ids: list[str], store: Path, monkeypatch: Any
) -> None:
    left = store.parent / ".memories.db.0a1b2c3d.restore"
    left.write_bytes(b"")
    assert memory("doctor").code == 0  # it may be in use
    os.utime(left, (0, 0))
    assert f"rm {left}" in memory("doctor").out
    monkeypatch.setattr(examining, "_MIN_FREE_BYTES", 2**60)
    assert "free some space on it" in memory("doctor").out


def test_doctor_reports_another_program_with_the_same_name(memory: Command, folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "memory").write_text("#!/bin/sh\necho another program\n")
    (folder / "memory").chmod(0o755)
    answer = memory("doctor", env={"PATH": str(folder)})
    assert answer.code == 1
    assert "the first memory on PATH, is another program" in answer.out


def test_doctor_reports_an_unreachable_server(memory: Command) -> None:
    answer = memory("doctor", "--store", "postgresql://127.0.0.1:1/x")
    assert answer.code == 1
    assert "nothing is listening" in answer.out


@pytest.mark.parametrize(
    ("embedder", "what", "remedy"),
    [
        ("nope", 'there is no embedder "nope"', "set EMBEDDER to minilm, e5, none, or a service"),
        ("minilm", "this store's vectors were created by fake/", "memory reembed"),
    ],
)
def test_doctor_reports_an_embedder_that_makes_every_search_fail(
    memory: Command, ids: list[str], embedder: str, what: str, remedy: str
) -> None:
    assert memory("search", "Python", env={"EMBEDDER": embedder}).code != 0
    answer = memory("doctor", env={"EMBEDDER": embedder})
    assert answer.code == 1
    [finding] = json.loads(answer.out)["findings"]
    assert f"the embedder can't be used: {what}" in finding["what"]
    assert remedy in finding["remedy"]
    assert memory("doctor", env={"EMBEDDER": "none"}).code == 0


def test_doctor_reports_an_unknown_embedder_even_without_a_store(
    memory: Command, store: Path
) -> None:
    assert "there is no embedder" in memory("doctor", env={"EMBEDDER": "nope"}).out
    assert not store.exists()


def test_doctor_reports_an_embedder_without_a_key(memory: Command) -> None:
    keyless = {"EMBEDDER": "openai", "EMBEDDER_KEY": "", "OPENAI_API_KEY": ""}
    answer = memory("doctor", env=keyless)
    assert answer.code == 1
    [finding] = json.loads(answer.out)["findings"]
    assert finding["what"] == "the embedder can't be used: OpenAI requires a key"
    assert finding["remedy"].startswith("set OPENAI_API_KEY, or EMBEDDER=minilm")
    assert memory("doctor", env={**keyless, "OPENAI_API_KEY": "sk-x"}).code == 0


# --- salvage


def pages_with(data: bytes, text: bytes) -> list[int]:
    """Return the offsets of the pages that contain a text."""
    return [start for start in range(0, len(data), 4096) if text in data[start : start + 4096]]


@pytest.fixture
def many(memory: Command, folder: Path, run_python: RunPython, store: Path) -> str:
    """Create a store of several hundred records; return its export."""
    fill = """
import sys
from memories import Memories
from memories.read.turns import TurnDraft
with Memories(sys.argv[1], embedder="fake") as memories:
    memories.create_many([f"note {n} " + "x" * (n % 90 * 90) for n in range(400)], force=True)
    memories.add_turns("talk", [TurnDraft(f"said {n}", speaker="Zoe") for n in range(100)])
"""
    run_python(fill, url(store))
    return everything(memory)


def record_lines(exported: str) -> set[str]:
    """Return the lines of an export that are records."""
    return {line for line in exported.splitlines() if line.startswith('{"collection"')}


@pytest.mark.parametrize("kind", ["default", "sqlite", "files"])
def test_forget_names_the_backups_that_still_contain_the_memory(
    memory: Command,
    stored: Store,
    home: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    if kind != "default":
        monkeypatch.setenv("MEMORY_STORE", f"{kind}:///{folder}/other/notes")
        memory(
            "create",
            "another store of the same name",
            "--store",
            f"{kind}:///{folder}/elsewhere/notes",
        )
        memory("backup", "--store", f"{kind}:///{folder}/elsewhere/notes")
    for number in range(4):
        stored(f"The safe code is {number}{number}{number}", "--namespace", "bob", "--force")
    memory("turns", "add", "standup", "We ship on Friday", "--namespace", "bob")
    backup = memory("backup").json["backup"]
    assert Path(backup).parent == home / "backups"
    first = memory("list", "--namespace", "bob").json["results"][0]["id"]
    for command in (
        ["forget", first, "--yes"],
        ["forget", "--where", "content ~ 111", "--yes"],
        ["turns", "forget", "standup", "--yes"],
        ["namespaces", "delete", "bob", "--yes"],
    ):
        answer = memory(*command, *(["--namespace", "bob"] if command[0] != "namespaces" else []))
        assert answer.json["also_in"] == [backup], command
        assert backup in answer.err


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_forget_names_backups_with_other_names_next_to_the_store(
    memory: Command,
    stored: Store,
    home: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    beside = folder / "other"
    monkeypatch.setenv("MEMORY_STORE", f"{kind}:///{beside}/notes")
    memory_id = stored("The safe code is 111")
    made = [memory("backup", str(place)).json["backup"] for place in (beside, beside / "mine")]
    (home / "backups").mkdir(parents=True, exist_ok=True)
    made.append(memory("backup", str(home / "backups" / "own.db")).json["backup"])
    other = ["--store", f"{kind}:///{folder}/elsewhere/notes"]
    memory("create", "another store", *other)
    memory("backup", str(beside / "theirs"), *other)
    assert memory("forget", memory_id, "--yes").json["also_in"] == sorted(made)


def test_forget_names_the_event_files_with_content(
    memory: Command, stored: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory("forget", stored('A line with ,"content": in it'), "--yes")
    monkeypatch.setenv("MEMORY_EVENTS", "content")
    answer = memory("forget", stored("The safe code is 111"), "--yes")
    assert answer.json["also_in"] == [str(home / "events.jsonl")]


@pytest.mark.thorough
def test_salvage_saves_every_intact_record_and_names_the_others(
    memory: Command, many: str, store: Path, folder: Path, run_python: RunPython
) -> None:
    run_python(
        DAMAGE,
        store,
        "UPDATE record SET text = 'Note 7' WHERE seq = 8 OR position = 7 AND session IS NOT NULL",
    )
    damaged = store.read_bytes()
    answer = memory("doctor", "--salvage", "saved.jsonl")
    shape = json.loads(answer.out)
    assert (answer.code, shape["saved"], shape["lost_count"]) == (1, 498, 2)
    assert {(lost["collection"], lost["position"]) for lost in shape["lost"]} == {
        ("memory", 1),
        ("history", 7),
    }
    assert store.read_bytes() == damaged
    assert record_lines(many) > record_lines((folder / "saved.jsonl").read_text())
    assert (folder / "saved.jsonl").stat().st_mode & 0o777 == 0o600
    assert "already exists" in memory("doctor", "--salvage", "saved.jsonl").error
    assert memory("restore", "saved.jsonl", "--replace").json["records"] == 498
    assert memory("doctor", "--deep").json["findings"] == []


@pytest.mark.parametrize(
    "what", ["first page", "header", "root", "one leaf", "every 20th page", "half"]
)
@pytest.mark.thorough
def test_salvage_reads_around_lost_pages(
    memory: Command, many: str, store: Path, folder: Path, run_python: RunPython, what: str
) -> None:
    sound = store.read_bytes()
    root = int(run_python("import apsw, sys; print(apsw.Connection(sys.argv[1]).execute(\"SELECT rootpage FROM "
                          "sqlite_schema WHERE name = 'record'\").fetchall()[0][0])", store).stdout)  # fmt: skip
    pages = {
        "first page": [0], "root": [4096 * (root - 1)], "one leaf": pages_with(sound, b"note 5 "),
        "every 20th page": range(4096, len(sound), 20 * 4096),
    }.get(what, [])  # fmt: skip
    data = bytearray(sound)
    for start in pages:
        data[start : start + 4096] = bytes(4096)
    data[:100] = bytes(100) if what == "header" else data[:100]
    store.write_bytes(data[: len(data) // 2 // 4096 * 4096] if what == "half" else data)
    Path(f"{store}-wal").unlink(missing_ok=True)
    damaged = store.read_bytes()
    answer = memory("doctor", "--salvage", "saved.jsonl")
    shape = json.loads(answer.out)
    saved = record_lines((folder / "saved.jsonl").read_text())
    assert saved <= record_lines(many)
    assert shape["saved"] == len(saved)
    assert store.read_bytes() == damaged
    if what in ("first page", "header", "root"):
        assert saved == record_lines(many)  # no record is in them
    else:
        assert shape["lost_count"] > 0
        assert {"one leaf": 400, "every 20th page": 350, "half": 50}[what] <= len(saved) < 500


def test_salvage_leaves_out_forgotten_memories(
    memory: Command, ids: list[str], store: Path, folder: Path
) -> None:
    memory("forget", ids[0], "--yes")
    data = store.read_bytes()
    store.write_bytes(bytes(4096) + data[4096:])
    answer = memory("doctor", "--salvage", "saved.jsonl")
    assert "prefers" not in (folder / "saved.jsonl").read_text()
    assert json.loads(answer.out)["saved"] == 3


def test_salvage_fails_if_there_is_nothing_to_save(
    memory: Command, folder: Path, store: Path
) -> None:
    assert "there is no store at" in memory("doctor", "--salvage", "saved.jsonl").error
    store.parent.mkdir(parents=True)
    store.write_text("hello" * 1000)
    assert "cannot read anything from" in memory("doctor", "--salvage", "saved.jsonl").error
    assert memory("doctor", "--salvage", "a.jsonl", "--fix").code == 2
    assert list(folder.iterdir()) == []


def test_the_text_output_of_doctor_has_sizes_and_sentences(memory: Command) -> None:
    memory("create", "Deploys happen on Tuesdays")
    facts = memory("doctor", "--format", "text").out
    assert re.search(r"^free {10,}\d+\.\d [MG]B$", facts, re.M)
    assert re.search(r"^size {10,}0\.\d MB$", facts, re.M)
    assert re.search(r"^program +installed with \w+.*; Python is /", facts, re.M)
    assert not re.search(r"bytes|True|: /| -$", facts)


READERS = (("list",), ("create", "The port is 5434"), ("status",), ("backup", "b.db"))


@pytest.mark.parametrize("kind", ["random", "text", "cut", "empty"])
def test_the_advice_for_a_file_that_is_not_a_store_works(
    memory: Command, folder: Path, store: Path, kind: str
) -> None:
    memory("create", "The port is 5433")
    memory("backup", "backup.db")
    contents = {"random": os.urandom(20_000), "text": b"hello\n", "cut": store.read_bytes()[:900]}
    store.write_bytes(contents.get(kind, b""))
    advice = "restore a backup: memory restore FILE --replace, or save every intact record: memory"
    if kind == "empty":
        advice = "restore a backup: memory restore FILE --replace, or remove the file and its scrat"
    for command in READERS:
        assert advice in json.loads(memory(*command).err)["error"], command
    findings = json.loads(memory("doctor").out)["findings"]
    [remedy] = [each["remedy"] for each in findings if str(store) in each["what"]]
    assert remedy.startswith(advice)
    error = memory("doctor", "--salvage", "saved.jsonl").error
    assert "or move the file and its scratchpads away to start a new store" in error
    assert memory("restore", "backup.db", "--replace").json["records"] == 1
    store.rename(folder / "away")
    (store.parent / "shared" / "scratchpad.yaml").rename(folder / "aside.yaml")
    assert memory("create", "The port is 5434").code == 0
    assert memory("list").json["count"] == 1


def test_a_folder_in_place_of_a_store_is_moved_away(
    memory: Command, folder: Path, store: Path
) -> None:
    store.mkdir(parents=True, mode=0o700)
    advice = f"{store} is a folder; use the path of a file, or move the folder"
    for command in READERS:
        assert json.loads(memory(*command).err)["error"] == advice, command
    whats = [each["what"] for each in json.loads(memory("doctor").out)["findings"]]
    assert f"the store can't be used: {advice}" in whats
    assert not any("reported an error" in what for what in whats)
    assert "there is no store at" in memory("doctor", "--salvage", "saved.jsonl").error
    store.rename(folder / "away")
    assert memory("create", "The port is 5434").code == 0
