"""Store files of every released schema, written by the programs of that time, can be opened,
migrated and restored.
"""

import gzip
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest

from memories import Memories, NotFound, SchemaTooNew, StoreError
from memories.config import load_config
from memories.stores.sqlite import engine
from memories.transfer.backup import restore
from memories.transfer.doctor import examine

DATA = Path(__file__).parents[2] / "data"
RELEASED = [4]
NEWEST = engine.SCHEMA_VERSION


def unpack(version: int, path: Path) -> bytes:
    """Unpack the file of a released schema; return its bytes."""
    content = gzip.decompress((DATA / f"schema{version}.db.gz").read_bytes())
    path.write_bytes(content)
    path.chmod(0o600)
    return content


def inspect_file(path: Path) -> list[str]:
    """Return the version and state of a closed store file."""
    db = apsw.Connection(str(path))
    try:
        return [str(db.pragma("user_version")), db.pragma("integrity_check")]
    finally:
        db.close()


@pytest.mark.first(4)
@pytest.mark.parametrize("version", RELEASED)
@pytest.mark.parametrize("first_use", ["read", "write"])
def test_a_released_store_keeps_everything(path: Path, version: int, first_use: str) -> None:
    content = unpack(version, path)
    url = f"sqlite:///{path}"
    with (
        Memories(url, embedder="fake", namespace="ann") as ann,
        Memories(url, embedder="fake", namespace="bob") as bob,
    ):
        if first_use == "write":
            bob.create("written by today's program")
        assert ann.status().schema_version == NEWEST
        assert {entry.content for entry in ann.list().memories} == {
            "The user prefers Rust",
            "Deploys need two reviews",
        }
        [preference] = (
            entry for entry in ann.list().memories if entry.content == "The user prefers Rust"
        )
        assert (preference.version, preference.key) == (2, "user/language")
        assert preference.tags == {"type": "preference"}
        assert [old.content for old in ann.history(preference.id).versions] == [
            "The user prefers Python",
            "The user prefers Rust",
        ]
        [deleted] = ann.list(deleted=True).memories
        assert (deleted.content, deleted.tags) == (
            "The build runs on Fridays",
            {"project": "alpha", "team": "blue"},
        )
        assert ann.restore(deleted.id).content == "The build runs on Fridays"
        assert "Bob's own note" in {entry.content for entry in bob.list().memories}
        with pytest.raises(NotFound):
            bob.get(preference.id)
        for query in ("Rust", "reviews", "Fridays"):
            assert query in ann.search(query)[0].memory.content
        assert [turn.content for turn in ann.turns("talk")] == [
            "Shall we ship on Monday?",
            "No, on Tuesday",
        ]
        ann.forget(deleted.id)
        assert ann.create("and more is written").memory.version == 1
    assert inspect_file(path) == [str(NEWEST), "ok"]
    snapshot = Path(f"{path}.v{version}.backup")
    assert inspect_file(snapshot) == [str(version), "ok"]
    assert snapshot.stat().st_mode & 0o777 == 0o600
    assert len(content) <= snapshot.stat().st_size + 8192


@pytest.mark.parametrize(
    ("version", "known"),
    [
        (version, known)
        for version in (*RELEASED, NEWEST)
        for known in (*RELEASED, NEWEST)
        if known < version
    ],
)
def test_an_older_program_refuses_a_newer_store_and_changes_no_byte(
    path: Path, version: int, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == NEWEST:
        with Memories(f"sqlite:///{path}", embedder="fake") as memories:
            memories.create("of today")
        content = path.read_bytes()
    else:
        content = unpack(version, path)
    monkeypatch.setattr(engine, "SCHEMA_VERSION", known)
    for use in (Memories.list, Memories.status, lambda memories: memories.create("x")):
        memories = Memories(f"sqlite:///{path}", embedder="fake")
        with pytest.raises(
            SchemaTooNew,
            match=f"has schema {version}, but this program supports only schemas up to {known}; upgrade memoriae",
        ):
            use(memories)
        memories.close()
    assert path.read_bytes() == content
    assert Path(f"{path}-wal").stat().st_size == 0


@pytest.mark.parametrize("version", RELEASED)
def test_the_snapshot_of_a_migration_can_be_restored(path: Path, version: int) -> None:
    unpack(version, path)
    config = load_config(
        environment={"MEMORY_HOME": str(path.parent), "EMBEDDER": "fake"}, folder=path.parent
    )
    with Memories(config=config, namespace="ann") as memories:
        memories.create("after the migration")
    copy = Path(f"{path}.v{version}.backup")
    restore(config, copy, None, replace=True, now=datetime.now(UTC), progress=lambda *_: None)
    with Memories(config=config, namespace="ann") as memories:
        assert "after the migration" not in {entry.content for entry in memories.list().memories}
        memories.create("written into the copy")
        assert memories.status().schema_version == NEWEST
    assert inspect_file(path) == [str(NEWEST), "ok"]


def test_a_store_from_before_the_first_release_is_refused_and_left_unchanged(path: Path) -> None:
    unpack(RELEASED[0], path)
    db = apsw.Connection(str(path))
    db.pragma("user_version", RELEASED[0] - 1)
    db.close()
    content = path.read_bytes()
    for use in (Memories.list, Memories.status, lambda memories: memories.create("x")):
        memories = Memories(f"sqlite:///{path}", embedder="fake")
        with pytest.raises(StoreError, match="has schema 3, from before the first release; export"):
            use(memories)
        memories.close()
    config = load_config({"store": f"sqlite:///{path}", "embedder": "none"})
    problems = [finding.what for finding in examine(config, deep=False).findings]
    assert any("has schema 3, from before the first release" in problem for problem in problems)
    assert path.read_bytes() == content
    assert [*path.parent.glob("*.backup")] == []
