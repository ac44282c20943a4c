"""A files store passes the contract before, during and after its move to a larger store."""

import contextlib
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("contract")

from contract import (  # noqa: E402 - after its assertions are rewritten
    HISTORY,
    MEMORY,
    SPACE,
    OpenStore,
    StoreContract,
    at,
    by_words,
    everything,
    pool,
    record,
    search,
    turn,
    turns,
)
from test_files import STORE, all_bytes, foreign_line, write_file  # noqa: E402

from memories import stores  # noqa: E402
from memories.config import load_config  # noqa: E402
from memories.core.ids import new_id  # noqa: E402
from memories.errors import ConfigError, NotFound, StoreDamaged, StoreError  # noqa: E402
from memories.memories import Memories  # noqa: E402
from memories.settings import Config  # noqa: E402
from memories.stores import Store  # noqa: E402
from memories.stores.files import move as files_move  # noqa: E402
from memories.stores.files.connection import Folder  # noqa: E402
from memories.stores.files.index import Index  # noqa: E402
from memories.stores.files.local import LocalFiles  # noqa: E402
from memories.stores.files.store import FilesStore  # noqa: E402
from memories.stores.records import (  # noqa: E402
    SPEAKER,
    Patch,
    Record,
    Ref,
    Space,
)
from memories.stores.sqlite.store import SQLiteStore  # noqa: E402
from opening import opening  # noqa: E402

RunPython = Callable[..., subprocess.CompletedProcess[str]]
OpenWith = Callable[..., Store]

# `tiered` opens a store that moves when a namespace has more than three records.
TIERED = (
    STORE
    + """
import json, shutil
from memories.config import load_config
from memories.stores import open_store
from memories.stores.sqlite.store import SQLiteStore
def tiered(most=3):
    config = load_config({"file_migrate_at": str(most)}, environment={})
    return open_store(f"files:///{folder}", SPACE, config)
wheres = [Filter(collection, ("ann",), state="any") for collection in (MEMORY, HISTORY)]
def seen(store):
    return [r._replace(accesses=0) for where in wheres for r in store.scan(where, limit=9999)]
"""
)


def settings(most: int, to: str | None = None) -> Config:
    """Return a configuration that moves a store once a namespace has more than `most` records."""
    return load_config({"file_migrate_at": str(most), "file_migrate_to": to})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a store that doesn't exist yet."""
    return tmp_path / "notes"


@pytest.fixture
def open_with(folder: Path) -> Iterator[OpenWith]:
    """Opens the store of `folder`, which moves once a namespace has more than `most` records."""

    def open_one(most: int | None = 3, to: str | None = None, space: Space | None = SPACE) -> Store:
        config = None if most is None else settings(most, to)
        return stores.open_store(f"files:///{folder}", space, config)

    with opening(open_one) as open_with:
        yield open_with


class TestTieredStore(StoreContract):
    """The contract on stores, most of which move at some point, some in the middle of a test."""

    sequences = 50

    @pytest.fixture(params=[2, pytest.param(1_000_000, marks=pytest.mark.thorough)])
    def open_store(self, open_with: OpenWith, request: pytest.FixtureRequest) -> OpenStore:
        return lambda space: open_with(request.param, space=space)


def fill(store: Store, count: int = 4, namespace: str = "ann") -> list[Record]:
    """Add `count` memories and turns of every kind; return the records."""
    ids = [new_id(at(number)) for number in range(count)]
    store.append(
        [
            record(
                ids[0],
                text="käse 日本",
                labels={"who": namespace},
                key="k",
                namespace=namespace,
                accesses=5,
            )
        ]
    )
    with store.transaction():
        store.patch([Patch(Ref(MEMORY, namespace, ids[0], 1), at(5), "update", {"mark": 1.5})])
        store.append(
            [record(ids[0], 2, text="käse", key="k", fields={"first_at": 5}, namespace=namespace)]
        )
        said = {"labels": {SPEAKER: "Zoë"}, "namespace": namespace}
        store.append([turn(number, text=f"turn {number}", **said) for number in range(count - 3)])
        store.append([record(ids[1], vectors=None, namespace=namespace)])
    return content(store, namespace)


def content(store: Store, *namespaces: str) -> list[Record]:
    """Return all records of these namespaces."""
    wheres = [pool(*namespaces), turns(*namespaces)]
    return [found for where in wheres for found in everything(store, where)]


def plain(records: list[Record]) -> list[Record]:
    """Return records without their read counts."""
    return [found._replace(accesses=0) for found in records]


def names(folder: Path) -> set[str]:
    """Return the names of a folder's entries."""
    return {part.name for part in folder.iterdir()}


def test_the_folder_moves_with_the_write_that_makes_a_namespace_too_large(
    open_with: OpenWith, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_with(4)
    before = fill(store, 4)
    vectors = store.vectors([found.ref for found in before])
    originals = {name: (folder / name).read_bytes() for name in ("ann.jsonl", "ann.turns.jsonl")}
    assert names(folder) == {".memories", *originals}
    assert caplog.records == []
    store.append([record("last")])
    kept = {f"{name}.before-move" for name in originals}
    assert names(folder) == {".memories", "moved.json", "memories.db", "memories.db.lock", *kept}
    assert (folder / "ann.turns.jsonl.before-move").read_bytes() == originals["ann.turns.jsonl"]
    assert (folder / "ann.jsonl.before-move").read_bytes().startswith(originals["ann.jsonl"])
    [line] = caplog.records
    assert line.getMessage().startswith(f"{folder} has 5 records and was moved to memories.db in ")
    for seen in (
        store,
        open_with(4),
        open_with(None),
        open_with(4, space=None),
        SQLiteStore(folder / "memories.db", SPACE),
    ):
        assert [found for found in content(seen, "ann") if found.ref.group != "last"] == before
        assert seen.count(pool(group="last")) == 1
        for ref, moved in seen.vectors([found.ref for found in before]).items():
            assert float((moved * vectors[ref]).sum(axis=1).min()) == pytest.approx(1.0, abs=0.01)
    assert len(store.vectors([found.ref for found in before])) == len(vectors) == 3
    marker = json.loads((folder / "moved.json").read_text())
    assert (marker["store"], marker["records"]) == ("memories.db", 5)
    assert marker["originals"] == list(originals)
    assert not list((folder / ".memories").glob("*.moving"))
    assert "käse".encode() not in b"".join(
        part.read_bytes() for part in (folder / ".memories").glob("index.db*")
    )


def test_all_namespaces_move_together(open_with: OpenWith, folder: Path) -> None:
    store = open_with(4)
    bobs = fill(store, 4, namespace="bob")
    store.append([record("small", namespace="carol")])
    assert "moved.json" not in names(folder)
    before = fill(store, 4)
    assert "moved.json" not in names(folder)
    store.append([record("last")])
    assert "moved.json" in names(folder)
    assert not list(folder.glob("*.jsonl"))
    later = open_with(4)
    assert content(later, "bob") == bobs
    assert [found for found in content(later, "ann") if found.ref.group != "last"] == before
    assert later.namespaces(MEMORY) == ["ann", "bob", "carol"]
    assert later.namespaces(HISTORY) == ["ann", "bob"]
    later.append([record("new", namespace="dave")])
    assert SQLiteStore(folder / "memories.db", SPACE).count(pool("dave")) == 1
    assert later.info(pool("bob")).without_vector_count == 1


def test_after_the_move_writes_go_to_the_larger_store(open_with: OpenWith, folder: Path) -> None:
    early, store = open_with(3), open_with(3)
    assert early.count(pool()) == 0
    fill(store)
    early.append([record("new", text="elder tea")])
    with early.transaction():
        early.patch([Patch(Ref(MEMORY, "ann", "new", 1), at(9), "update", {})])
        early.append([record("new", 2, text="elder tea")])
    early.touch([Ref(MEMORY, "ann", "new", 2)])
    there = SQLiteStore(folder / "memories.db", SPACE)
    assert [found.accesses for found in everything(there, pool(group="new"))] == [0, 1]
    assert search(store, "elder tea")["new"].similarity == pytest.approx(1.0, abs=0.01)
    assert "ann.jsonl" not in names(folder)
    store.append([record("small", namespace="bob")])
    assert "bob.jsonl" not in names(folder)
    assert store.namespaces(MEMORY) == ["ann", "bob"]
    assert store.namespaces(HISTORY) == ["ann"]


def test_an_already_large_namespace_moves_with_the_next_write(
    open_with: OpenWith, folder: Path
) -> None:
    """This happens if another program wrote the lines."""
    write_file(folder, *(foreign_line(number) for number in range(9)))
    store = open_with(3)
    assert store.count(pool()) == 9
    assert names(folder) == {".memories", "ann.jsonl"}
    store.append([turn(1)])
    assert "moved.json" in names(folder)
    assert store.count(pool()) == 9
    assert store.info(pool()).without_vector_count == 9


def test_without_the_setting_nothing_moves_but_moved_records_are_found(
    open_with: OpenWith, folder: Path
) -> None:
    store = open_with(None)
    before = fill(store, 20)
    assert "moved.json" not in names(folder)
    open_with(3).append([record("one-more")])
    assert [found for found in content(store, "ann") if found.ref.group != "one-more"] == before
    assert "moved.json" in names(folder)


def test_the_folder_moves_to_the_configured_store(
    open_with: OpenWith, folder: Path, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path / 'large.db'}"
    before = fill(open_with(3, target))
    assert "memories.db" not in names(folder)
    assert json.loads((folder / "moved.json").read_text())["store"] == target
    assert content(open_with(3, f"sqlite:///{tmp_path / 'another.db'}"), "ann") == before
    assert not (tmp_path / "another.db").exists()


def test_the_folder_can_be_moved_elsewhere(
    open_with: OpenWith, folder: Path, tmp_path: Path
) -> None:
    store = open_with(3)
    before = fill(store)
    store.close()
    folder.rename(tmp_path / "elsewhere")
    assert content(stores.open_store(f"files:///{tmp_path / 'elsewhere'}", SPACE), "ann") == before


def test_the_library_works_as_usual_during_a_move(folder: Path) -> None:
    clock = iter(at(number) for number in range(10_000))
    with Memories(
        f"files:///{folder}",
        embedder="fake",
        namespace="ann",
        config=settings(20),
        clock=lambda: next(clock),
    ) as memories:
        made = []
        for number in range(30):
            created = memories.create(f"fact number {number} about zanzibar", force=True).memory
            assert created is not None
            made.append(created.id)
            assert memories.get(made[0]).content == "fact number 0 about zanzibar"
            assert len(memories.list(limit=99).memories) == number + 1
            assert (
                f"number {number} "
                in memories.search(f"fact number {number} about zanzibar")[0].memory.content
            )
        assert memories.update(made[0], "changed").version == 2
        assert memories.forget(made[5]).also_in == (str(folder / "ann.jsonl.before-move"),)
        assert memories.status().memory_count == 29
    assert (folder / "moved.json").exists()


def test_a_crash_at_any_step_of_a_move_loses_and_duplicates_nothing(
    run_python: RunPython, folder: Path
) -> None:
    """The next write completes the move, even if memories were changed meanwhile; forgotten ones
    stay forgotten.
    """
    script = """
import memories.stores.files.move as move
move._BATCH = 2
def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    store = tiered(5)
    memories = [note(f"m{number}", key=f"k{number}") for number in range(3)]
    store.append([*memories, note("t", collection=HISTORY)])
    ended_at = datetime(2026, 1, 2, tzinfo=UTC)
    store.patch([Patch(Ref(MEMORY, "ann", "m0", 1), ended_at, "update", {"a": 1})])
    store.append([note("m0", 2, text="second zanzibar", key="k0")])
    store.touch([Ref(MEMORY, "ann", "m1", 1)])
    store.close()
def act():
    store = tiered(5)
    store.append([note("new")])
places = set()
def check(ended):
    begun = not (folder / "moved.json").exists() and (folder / "memories.db").exists()
    store = tiered(5)
    found = {(r.ref.collection, r.ref.group, r.ref.position) for r in seen(store)}
    known = {("memory", f"m{n}", 1) for n in range(3)} | {("memory", "m0", 2), ("history", "t", 1)}
    assert found - known <= {("memory", "new", 1)} and found >= known, found
    assert len(seen(store)) == len(found) and (not ended or len(found) == 6)
    secret, = store.read([Ref(MEMORY, "ann", "m0", 2)])
    if sys.argv[2] == "change":
        store.remove([secret.ref])
        ended_at = datetime(2026, 1, 3, tzinfo=UTC)
        store.patch([Patch(Ref(MEMORY, "ann", "m1", 1), ended_at, "delete", {"b": 2})])
        store.append([note("m1", 2, key="k1")])
        gone, more = {("memory", "m0", 2)}, {("memory", "m1", 2)}
    else:
        gone, more = set(), set()
    store.append([note("later")])
    store.append([note("latest")])
    now = seen(store)
    assert (folder / "moved.json").exists(), list(folder.iterdir())
    assert not (folder / "ann.jsonl").exists(), list(folder.iterdir())
    assert not list((folder / ".memories").glob("*.moving"))
    expected = (found - gone) | more | {("memory", "later", 1), ("memory", "latest", 1)}
    assert {(r.ref.collection, r.ref.group, r.ref.position) for r in now} == expected
    assert len(now) == len(expected)
    there = SQLiteStore(folder / "memories.db", SPACE)
    assert seen(there) == now
    assert [there.info(where).without_vector_count for where in wheres] == [0, 0]
    kept = (folder / "ann.jsonl.before-move").read_bytes()
    assert b'"m2"' in kept and (folder / "ann.turns.jsonl.before-move").exists()
    for name in ("memories.db", "memories.db-wal"):
        if gone and begun and (folder / name).exists():
            assert b"zanzibar" not in (folder / name).read_bytes()
crashing(prepare, act, check, every=int(sys.argv[3]))
"""
    for what, every in (("go on", 2), ("change", 3)):
        assert int(run_python(TIERED + script, folder, what, every).stdout) > 20


def test_several_processes_can_write_during_a_move(
    folder: Path, clean_environment: Mapping[str, str]
) -> None:
    script = (
        TIERED
        + """
import time
store, who = tiered(60), sys.argv[2]
for number in range(40):
    with store.transaction():
        last = store.scan(Filter(HISTORY, ("ann",)), limit=1, newest_first=True)
        place = last[0].ref.position + 1 if last else 0
        store.append([note("talk", place, collection=HISTORY), note(f"{who}-{number:02}")])
    assert store.count(Filter(MEMORY, ("ann",), group=f"{who}-{number:02}")) == 1
    assert store.count(Filter(MEMORY, ("ann",), group=f"{who}-", prefix=True)) == number + 1
    store.append([note(f"{who}-{number:02}", namespace="shared")])
    both = store.scan(Filter(MEMORY, ("ann", "shared"), group=f"{who}-", prefix=True), limit=999)
    assert len(both) == 2 * (number + 1)
"""
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(folder), who], env=dict(clean_environment)
        )
        for who in "abc"
    ]
    assert [process.wait(100) for process in running] == [0] * 3
    store = stores.open_store(f"files:///{folder}", SPACE)
    assert "moved.json" in names(folder)
    wanted = sorted(f"{who}-{number:02}" for who in "abc" for number in range(40))
    for namespace in ("ann", "shared"):
        assert [found.ref.group for found in store.scan(pool(namespace), limit=999)] == wanted
        assert store.info(pool(namespace)).without_vector_count == 0
    assert [found.ref.position for found in store.scan(turns(), limit=999)] == list(range(120))


def test_readers_see_all_records_during_a_move(
    open_with: OpenWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader looks at each step of the move on the disk."""
    store, reader = open_with(5), open_with(None)
    fill(store, 5)
    counts: list[int] = []

    def looking(name: str) -> None:
        real = getattr(Folder, name)

        def looked_at(self: Folder, *given: Any) -> None:
            counts.append(len(content(reader, "ann")))
            real(self, *given)
            counts.append(len(content(reader, "ann")))

        monkeypatch.setattr(Folder, name, looked_at)

    store.append([record("other", namespace="bob")])
    with store.transaction():
        store.append([record("one-more")])
        for name in ("replace", "rename", "discard"):
            looking(name)
    assert len(counts) >= 8
    assert set(counts) == {6}


def test_a_reader_whose_files_move_during_a_read_reads_again(
    open_with: OpenWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, reader = open_with(5), open_with(None)
    before = fill(store, 5)
    real = LocalFiles.current

    def moving(self: LocalFiles, *given: Any) -> Any:
        monkeypatch.setattr(LocalFiles, "current", real)
        store.append([record("one-more")])
        return real(self, *given)

    monkeypatch.setattr(LocalFiles, "current", moving)
    found = everything(reader, pool())
    assert len(found) == 1 + sum(entry.ref.collection is MEMORY for entry in before)


def test_a_crash_at_any_step_of_a_change_of_space_leaves_one_space_whole(
    run_python: RunPython, folder: Path
) -> None:
    script = """
OTHER = SPACE._replace(model="other/1")
def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    records = [note("a"), note("b", collection=HISTORY), note("c", namespace="bob")]
    FilesStore(folder, SPACE).append(records)
def change():
    store = FilesStore(folder, SPACE)
    with store.transaction():
        for collection in (MEMORY, HISTORY):
            records = store.unstaged(OTHER, collection, limit=9)
            store.stage(OTHER, {r.ref: FakeEmbedder().embed("x") for r in records})
        store.switch(OTHER)
def check(ended):
    model = FilesStore(folder, None).info(wheres[0]).model
    assert model == "other/1" if ended else model in ("fake/1", "other/1")
    store = FilesStore(folder, SPACE if model == "fake/1" else OTHER)
    for where in (*wheres, wheres[0]._replace(namespaces=("bob",))):
        [found] = store.candidates(where, vector=FakeEmbedder().embed("x")[0], terms=[], k=9)
        assert (found.similarity > 0.99) == (model == "other/1")
    change()
    assert FilesStore(folder, OTHER).info(wheres[0]).model == "other/1"
    FilesStore(folder, OTHER).remove([Ref(MEMORY, "ann", "a", 1)])
    assert FilesStore(folder, OTHER).info(wheres[1]).without_vector_count == 0
from memories.stores.sqlite import spaces
def killed_at(step, act):
    left = step
    def counting(real):
        def call(*given, **named):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)
        return call
    for name in ("stage", "switch", "find_without", "drop_staged_vectors", "_index", "_write_space"):
        setattr(spaces, name, counting(getattr(spaces, name)))
    act()
crashing(prepare, change, check)
"""
    assert int(run_python(TIERED + script, folder).stdout) > 10


def test_without_access_to_the_larger_store_the_files_remain_in_use(
    open_with: OpenWith, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = open_with(3, f"sqlite:///{tmp_path / 'file' / 'large.db'}")
    before = fill(store)
    assert "moved.json" not in names(folder)
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.getMessage().startswith(
        f"{folder} could not be moved to a larger store and remains a folder of files: "
    )
    store.append([record("one-more")])
    open_with(3, f"sqlite:///{tmp_path / 'file' / 'large.db'}").append([record("two-more")])
    assert len(caplog.records) == 1, "a write tries the move again only after a pause"
    assert [
        found for found in content(store, "ann") if not found.ref.group.endswith("-more")
    ] == before
    open_with(3).append([record("and-more")])
    assert "moved.json" in names(folder)


def test_a_folder_is_not_mixed_with_existing_memories_of_its_namespaces(
    open_with: OpenWith,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inside the folder another file is created; a named store is refused."""
    monkeypatch.setattr(files_move, "_PAUSE_SECONDS", 0.0)
    folder.mkdir()
    for name in ("memories.db", "named.db"):
        SQLiteStore(folder / name, SPACE).append([record("theirs"), turn(7)])
    named = f"sqlite:///{folder / 'named.db'}"
    store = open_with(3, named)
    store.append([record(group) for group in "abcd"])
    assert "moved.json" not in names(folder)
    told = caplog.records[-1].getMessage()
    assert (
        f"{named} already contains memories in ann, perhaps from an earlier move; "
        "to combine both stores, use memory export and memory import" in told
    )
    open_with(3).append([turn(7, text="another")])
    assert json.loads((folder / "moved.json").read_text())["store"] == "memories-2.db"
    assert [found.ref.group for found in everything(store, pool())] == ["a", "b", "c", "d"]
    assert [found.text for found in everything(store, turns())] == ["another"]
    for name in ("memories.db", "named.db"):
        assert [found.text for found in content(SQLiteStore(folder / name, SPACE), "ann")] == [
            "note theirs 1",
            "note talk 7",
        ]


@pytest.mark.parametrize("what", ["lost", "changed"])
def test_a_copy_that_differs_from_its_source_is_not_used(
    open_with: OpenWith,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    store = open_with(4)
    before = fill(store, 4)
    real = SQLiteStore.read

    def reading(self: SQLiteStore, refs: Sequence[Ref]) -> list[Record]:
        found = real(self, refs)
        return (
            found[1:]
            if what == "lost"
            else [entry._replace(text=f"{entry.text}?") for entry in found]
        )

    monkeypatch.setattr(SQLiteStore, "read", reading)
    store.append([record("one-more")])
    assert "memories.db differ from those that were copied to it" in caplog.records[-1].getMessage()
    assert "moved.json" not in names(folder)
    assert [found for found in content(store, "ann") if found.ref.group != "one-more"] == before


def test_a_copy_may_return_whole_numbers_as_floats(
    open_with: OpenWith, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SQLiteStore.read

    def reading(self: SQLiteStore, refs: Sequence[Ref]) -> list[Record]:
        return [
            found._replace(fields={**found.fields, "n": float(found.fields["n"])})
            for found in real(self, refs)
        ]

    monkeypatch.setattr(SQLiteStore, "read", reading)
    open_with(3).append([record(group, fields={"n": 5}) for group in "abcd"])
    assert "moved.json" in names(folder)


def test_vectors_of_a_different_space_do_not_move(
    open_with: OpenWith, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    other = SPACE._replace(model="other/1")
    SQLiteStore(folder / "large.db", other).append([record("m", namespace="bob")])
    before = fill(open_with(3, f"sqlite:///{folder / 'large.db'}"))
    assert "created by other/1" in caplog.records[-1].getMessage()
    assert content(open_with(3), "ann") == before


def test_a_store_opened_without_an_embedder_moves_the_vectors_too(
    open_with: OpenWith, folder: Path
) -> None:
    before = fill(open_with(4), 4)
    words_only = open_with(4, space=None)
    words_only.append([record("new", vectors=None)])
    assert "moved.json" in names(folder)
    assert by_words(words_only, ["käse"]).keys() == {before[1].ref.group}
    store = open_with(4)
    assert search(store, "käse")[before[1].ref.group].similarity == pytest.approx(1.0, abs=0.01)
    assert store.info(pool()).without_vector_count == 2


def test_a_missing_larger_store_is_reported_and_not_recreated(
    open_with: OpenWith, folder: Path
) -> None:
    store = open_with(3)
    before = fill(store)
    store.close()
    for part in folder.glob("memories.db*"):
        part.unlink()
    for use in (
        lambda: open_with(3).scan(pool(), limit=1),
        lambda: open_with(3).append([record("m")]),
        lambda: open_with(3).namespaces(MEMORY),
    ):
        with pytest.raises(
            StoreDamaged,
            match=r"memories\.db, which is missing; put it back.*moved\.json.*before-move",
        ):
            use()
    assert not (folder / "memories.db").exists()
    (folder / "moved.json").unlink()  # follows the advice of the message
    for kept in folder.glob("*.before-move"):
        kept.rename(folder / kept.name.removesuffix(".before-move"))
    assert plain(content(open_with(None), "ann")) == plain(before)


def test_a_damaged_marker_is_reported(open_with: OpenWith, folder: Path) -> None:
    fill(open_with(3))
    (folder / "moved.json").write_text("{}")
    with pytest.raises(StoreDamaged, match=r"moved\.json"):
        open_with(3).count(pool())


def test_lines_added_after_the_move_cause_a_warning(
    open_with: OpenWith, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_with(3)
    fill(store)
    write_file(folder, foreign_line(1))
    caplog.clear()
    later = open_with(3)
    later.append([record("m")])
    assert later.count(pool(group="m1")) == 0
    [line] = caplog.records
    assert line.getMessage() == (
        f"{folder / 'ann.jsonl'} is not read, because the folder was moved to memories.db; "
        "import the file's lines and move the file away"
    )
    assert later.unstaged(SPACE, MEMORY, limit=9) == store.unstaged(SPACE, MEMORY, limit=9)
    assert (folder / "ann.jsonl").exists()


def test_a_removal_after_the_move_names_the_kept_files(open_with: OpenWith, folder: Path) -> None:
    store = open_with(3)
    before = fill(store)
    kept = [str(folder / f"ann{part}.jsonl.before-move") for part in ("", ".turns")]
    assert store.remove([before[0].ref]) == tuple(kept)
    assert store.remove([]) == ()
    assert before[0].ref not in {found.ref for found in content(store, "ann")}
    for file in kept:
        Path(file).unlink()
    assert store.remove([before[1].ref]) == ()
    assert "käse".encode() not in all_bytes(folder)


SECRETS = {
    "postgresql://ann:s3cret@db.example.com/memories": "postgresql://ann:***@db.example.com/memories",
    "postgresql://ann@db.example.com/memories?password=s3cret&sslmode=require": (
        "postgresql://ann@db.example.com/memories?password=***&sslmode=require"
    ),
    "qdrant://db.example.com/memories?api_key=s3cret": "qdrant://db.example.com/memories?api_key=***",
}


@pytest.mark.parametrize("url", SECRETS)
def test_no_password_is_written_or_shown(
    open_with: OpenWith,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    url: str,
) -> None:
    asked: list[str] = []
    real = stores.open_store

    def opening(wanted: str, space: Space | None, config: Config | None = None) -> Store:
        asked.append(wanted)
        return (
            SQLiteStore(folder / "elsewhere.db", space)
            if wanted == url
            else real(wanted, space, config)
        )

    monkeypatch.setattr(stores, "open_store", opening)
    before = fill(open_with(3, url))
    assert json.loads((folder / "moved.json").read_text())["store"] == SECRETS[url]
    assert b"s3cret" not in all_bytes(folder)
    assert "s3cret" not in caplog.text
    assert content(open_with(3, url), "ann") == before
    assert set(asked) - {url} == {f"files:///{folder}"}
    with pytest.raises(StoreError, match="set FILE_MIGRATE_TO to this URL with its password"):
        open_with(3).count(pool())


@pytest.fixture
def interrupted_move(open_with: OpenWith, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that interrupts a move after everything was copied, before the
    comparison.
    """

    def begin(*groups: str, to: str | None = None) -> None:
        store = open_with(len(groups) - 1, to)
        with monkeypatch.context() as patched:
            patched.setattr(files_move, "_read_back", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.append([record(group) for group in groups])

    return begin


def _interrupted(*_given: Any) -> Any:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


def without_line(folder: Path, group: str) -> None:
    """Remove a line, as a user with an editor would."""
    file = folder / "ann.jsonl"
    file.write_text(
        "".join(f"{line}\n" for line in file.read_text().splitlines() if f'"{group}"' not in line)
    )


def test_a_line_removed_after_an_interrupted_move_does_not_return(
    open_with: OpenWith, folder: Path, interrupted_move: Callable[..., None]
) -> None:
    interrupted_move("a", "zanzibar", "c", "d")
    there = SQLiteStore(folder / "memories.db", SPACE)
    assert there.count(pool()) == 4
    without_line(folder, "zanzibar")
    open_with(3).append([record("e")])
    assert "moved.json" in names(folder)
    assert [entry.ref.group for entry in everything(open_with(3), pool())] == ["a", "c", "d", "e"]
    assert not list((folder / ".memories").glob("*.moving"))
    there.close()
    assert b"zanzibar" not in all_bytes(folder)


def test_copies_of_an_interrupted_move_are_removed_from_the_first_target(
    open_with: OpenWith, folder: Path, interrupted_move: Callable[..., None]
) -> None:
    interrupted_move("a", "b", "c", "d", to=f"sqlite:///{folder / 'first.db'}")
    first = SQLiteStore(folder / "first.db", SPACE)
    assert first.count(pool()) == 4
    open_with(3, f"sqlite:///{folder / 'second.db'}").append([record("e")])
    assert first.count(pool()) == 0
    first.close()
    assert SQLiteStore(folder / "second.db", SPACE).count(pool()) == 5


def test_a_damaged_note_of_an_interrupted_move_is_reported(
    open_with: OpenWith,
    folder: Path,
    interrupted_move: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    interrupted_move("a", "b", "c", "d")
    (folder / ".memories" / "folder.moving").write_text('"memories.db"')
    store = open_with(3)
    store.append([record("e")])
    assert "folder.moving, which lists where copies of memories may be" in caplog.text
    assert store.count(pool()) == 5
    with pytest.raises(StoreDamaged, match="remove those copies and then that file"):
        store.remove([Ref(MEMORY, "ann", "a", 1)])


def test_writes_by_others_to_the_copy_are_noticed(
    open_with: OpenWith,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = SQLiteStore.append

    def appending(self: SQLiteStore, records: Sequence[Record]) -> None:
        real(self, records if isinstance(self, Index) else [*records, record("theirs")])

    monkeypatch.setattr(SQLiteStore, "append", appending)
    before = fill(open_with(3))
    assert (
        "memories.db contains 5 records in these namespaces instead of 4, because other programs "
        "write to that store too" in caplog.records[-1].getMessage()
    )
    assert content(open_with(None), "ann") == before


def test_a_key_can_change_hands_after_an_interrupted_move(
    open_with: OpenWith, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_with(3)
    first.append(
        [record("a", key="k", ended_at=at(1), ended_by="delete"), record("b", key="k"), record("c")]
    )
    with monkeypatch.context() as patched:
        patched.setattr(files_move, "_read_back", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.append([record("d")])
    store = open_with(None)
    store.patch([Patch(Ref(MEMORY, "ann", "b", 1), at(2), "delete", {})])
    store.patch([Patch(Ref(MEMORY, "ann", "a", 1), None, None, {})])
    open_with(3).append([record("e")])
    assert "moved.json" in names(folder)
    assert open_with(3).scan(pool()._replace(key="k"), limit=9)[0].ref.group == "a"


def test_a_damaged_folder_does_not_move(
    open_with: OpenWith, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_with(3)
    store.append([record("a"), record("b")])
    with (folder / "ann.jsonl").open("a") as file:
        file.write("<<<<<<< HEAD\n")
    store.append([turn(number) for number in range(5)])
    assert (
        f"{folder} could not be moved to a larger store and remains a folder of files: "
        in caplog.records[-1].getMessage()
    )
    assert "ann.jsonl:3 can't be read" in caplog.records[-1].getMessage()
    assert {"ann.jsonl", "ann.turns.jsonl"} <= names(folder)
    assert "moved.json" not in names(folder)
    with pytest.raises(StoreDamaged, match=r"ann\.jsonl:3"):
        store.info(pool())
    assert store.namespaces(MEMORY) == ["ann"]


def test_lines_added_by_an_editor_during_a_move_stay_in_place(
    open_with: OpenWith,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = files_move._read_back

    def editing(*given: Any) -> list[Record]:
        with (folder / "ann.jsonl").open("a") as file:
            file.write(json.dumps(foreign_line(77)) + "\n")
        return real(*given)

    store = open_with(3)
    with monkeypatch.context() as patched:
        patched.setattr(files_move, "_read_back", editing)
        store.append([record(group) for group in "abcd"])
    assert "another program changed" in caplog.records[-1].getMessage()
    assert "moved.json" not in names(folder)
    monkeypatch.setattr(files_move, "_PAUSE_SECONDS", 0.0)
    store.append([record("e")])
    assert "moved.json" in names(folder)
    assert [entry.ref.group for entry in everything(store, pool())] == [
        "a",
        "b",
        "c",
        "d",
        "e",
        "m77",
    ]


@pytest.mark.parametrize("target", ["files:///tmp/other", "nonsense", "sqlite://", "ftp://host/db"])
def test_an_invalid_larger_store_is_refused_at_once(open_with: OpenWith, target: str) -> None:
    with pytest.raises(ConfigError):
        open_with(3, target)


def go_back(folder: Path) -> None:
    """Move back to the files, as docs/stores.md describes."""
    (folder / "moved.json").rename(folder / "moved-back.json")
    for kept in folder.glob("*.before-move"):
        kept.rename(folder / kept.name.removesuffix(".before-move"))


@pytest.mark.parametrize("forgotten_marker", [False, True])
def test_memories_forgotten_after_moving_back_do_not_return_with_a_second_move(
    open_with: OpenWith, folder: Path, forgotten_marker: bool
) -> None:
    """The same holds for old versions of memories that changed meanwhile, and for memories written
    after the first move.
    """
    with Memories(open_with(3), embedder="none", namespace="ann") as memories:
        made = [
            memories.create(f"fact zanzibar {number}", force=True).memory for number in range(4)
        ]
        ids = [memory.id for memory in made if memory]
        memories.create("written after the first move")
    assert "moved.json" in names(folder)
    go_back(folder)
    if forgotten_marker:
        (folder / "moved-back.json").unlink()
    with Memories(open_with(99), embedder="none", namespace="ann") as memories:
        assert [memory.content for memory in memories.list(limit=9).memories] == [
            f"fact zanzibar {number}" for number in (3, 2, 1, 0)
        ]
        assert memories.forget(ids[0]).also_in == (str(folder / "memories.db"),)
        memories.update(ids[1], "changed since")
        memories.delete(ids[2])
        new = memories.create("written after going back").memory
        assert new is not None
        assert memories.forget(new.id).also_in == ()
    with Memories(open_with(3), embedder="none", namespace="ann") as memories:
        memories.create("the last")
        assert json.loads((folder / "moved.json").read_text())["store"] == "memories-2.db"
        contents = [memory.content for memory in memories.list(limit=9).memories]
        assert contents == ["the last", "fact zanzibar 3", "changed since"]
        with pytest.raises(NotFound):
            memories.get(ids[0])
        assert memories.history(ids[1]).versions[1].content == "changed since"
        assert memories.forget(ids[3]).also_in == (
            *(str(folder / name) for name in ("ann.jsonl.before-move", "memories.db")),
        )


def test_a_named_store_is_not_reused_after_moving_back(
    open_with: OpenWith, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = f"sqlite:///{tmp_path / 'large.db'}"
    store = open_with(3, target)
    fill(store)
    go_back(folder)
    store = open_with(99, target)
    [first, *_] = content(store, "ann")
    assert store.remove([first.ref]) == (target,)
    open_with(2, target).append([record("more")])
    assert (
        "large.db already contains memories in ann, perhaps from an earlier move"
        in caplog.records[-1].getMessage()
    )
    assert first.ref not in {found.ref for found in content(open_with(2, target), "ann")}
    (tmp_path / "large.db").write_bytes(b"nobody can tell")
    assert open_with(99, target).remove([Ref(MEMORY, "ann", "more", 1)]) == (target,)


def test_a_qdrant_folder_can_be_the_larger_store(
    open_with: OpenWith, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("qdrant_client")
    target = f"qdrant:///{tmp_path / 'large'}"
    store = open_with(3, target)
    before = fill(store)
    assert (
        caplog.records[-1]
        .getMessage()
        .startswith(f"{folder} has {len(before)} records and was moved to {target} in ")
    )
    assert {"moved.json", "ann.jsonl.before-move", "ann.turns.jsonl.before-move"} <= names(folder)
    store.append([record("last")])
    store.close()
    again = open_with(3, target)
    assert [found for found in content(again, "ann") if found.ref.group != "last"] == before
    assert again.count(pool(group="last")) == 1
    again.close()
    go_back(folder)
    back = open_with(99, target)
    assert plain(content(back, "ann")) == plain(before)
    assert back.remove([before[0].ref]) == (target,)


def as_earlier_versions_moved(folder: Path, namespace: str, store: str = "memories.db") -> None:
    """Move one namespace as earlier versions did."""
    files = FilesStore(folder, SPACE)
    records = content(files, namespace)
    refs = [entry.ref for entry in records]
    vectors = files.vectors(refs)
    files.close()
    with contextlib.closing(SQLiteStore(folder / store, SPACE)) as there:
        there.append([entry._replace(vectors=vectors.get(entry.ref)) for entry in records])
    originals = [path.name for path in sorted(folder.glob(f"{namespace}*.jsonl"))]
    for name in originals:
        (folder / name).rename(folder / f"{name}.before-move")
    marker = {"namespace": namespace, "store": store, "originals": originals}
    (folder / f"{namespace}.moved").write_text(json.dumps(marker))


def test_copies_from_a_move_that_an_earlier_version_left_unfinished_are_removed(
    open_with: OpenWith, folder: Path
) -> None:
    store = open_with(None)
    before = fill(store, 4)
    with contextlib.closing(SQLiteStore(folder / "memories.db", SPACE)) as there:
        there.append(before[:2])
        copies = [[entry.ref.collection, *entry.ref[2:]] for entry in before]
        note = json.dumps({"store": "memories.db", "copies": copies})
        (folder / ".memories" / "ann.moving").write_text(note)
        assert store.remove([before[0].ref]) == ()
        assert [entry.ref for entry in content(there, "ann")] == [before[1].ref]
    open_with(2).append([record("more")])
    assert {entry.ref.group for entry in content(open_with(2), "ann")} == {
        "more",
        *(entry.ref.group for entry in before[1:]),
    }


@pytest.mark.parametrize(
    ("second", "named"),
    [(None, r"ann to memories\.db; combine"), ("memories-2.db", r"bob to memories-2\.db; combine")],
)
def test_a_folder_partly_moved_by_an_earlier_version_is_reported(
    open_with: OpenWith, folder: Path, second: str | None, named: str
) -> None:
    store = open_with(None)
    for name in ("ann", "bob"):
        fill(store, 4, namespace=name)
    store.append([record("small", namespace="carol")])
    as_earlier_versions_moved(folder, "ann")
    if second is not None:
        marker = (folder / "ann.moved").rename(folder / "ann.kept")
        as_earlier_versions_moved(folder, "bob", second)
        marker.rename(folder / "ann.moved")
    before = names(folder)
    for use in (
        lambda: open_with(None).count(pool("carol")),
        lambda: open_with(None).append([record("more")]),
    ):
        with pytest.raises(StoreError, match=named):
            use()
    assert names(folder) - before <= {".memories"}
