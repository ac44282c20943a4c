"""`metadata.json` of a namespace is current when a process ends, private, and never trusted."""

import contextlib
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.config import load_config
from memories.core.disk import try_lock
from memories.identity import namespaces
from memories.scratchpad import file
from memories.stores import open_store

START = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use no embedding model."""
    monkeypatch.setenv("EMBEDDER", "none")


def read_metadata(home: Path, namespace: str) -> Any:
    """Return the metadata of a namespace."""
    return json.loads((home / namespace / file.METADATA).read_text())


def test_the_first_write_creates_metadata_that_is_up_to_date_at_exit(home: Path) -> None:
    now = START
    with Memories(namespace="bob", clock=lambda: now) as bob:
        first = bob.create("Deploys happen on Tuesdays").memory
        assert first is not None
        assert read_metadata(home, "bob") == {
            "name": "bob", "created_at": "2026-05-01T12:00:00.000Z",
            "last_used_at": "2026-05-01T12:00:00.000Z",
            "memory_count": 1, "turn_count": 0,
        }  # fmt: skip
        now += timedelta(days=2)
        for number in range(20):
            bob.create(f"fact number {number}", force=True)
        bob.add_turns("talk", ["one", "two"])
        bob.delete(first.id)
    metadata_now = read_metadata(home, "bob")
    assert (metadata_now["memory_count"], metadata_now["turn_count"]) == (20, 2)
    assert (metadata_now["created_at"][:10], metadata_now["last_used_at"][:10]) == (
        "2026-05-01",
        "2026-05-03",
    )
    assert stat.S_IMODE((home / "bob" / file.METADATA).stat().st_mode) == 0o600
    with Memories(namespace="bob") as bob:
        bob.forget_turns("talk")
    assert read_metadata(home, "bob")["turn_count"] == 0
    assert not (home / "shared").exists()
    with Memories() as everybody:
        everybody.create("The office is in Berlin")
    assert read_metadata(home, "shared")["memory_count"] == 1


def test_storing_turns_creates_metadata_and_reading_does_not(home: Path) -> None:
    with Memories(namespace="ann") as ann:
        ann.add_turns("talk", ["hello"])
    assert read_metadata(home, "ann")["turn_count"] == 1
    before = (home / "ann" / file.METADATA).stat().st_mtime_ns
    with Memories(namespace="ann") as ann:
        ann.search("hello", scope="all")
        ann.tail_turns("talk")
    assert (home / "ann" / file.METADATA).stat().st_mtime_ns == before


def test_metadata_follows_renames_and_merges_and_is_deleted_with_its_namespace(home: Path) -> None:
    for name, day in (("bob", 2), ("ann", 1)):
        with Memories(
            namespace=name, clock=lambda day=day: START + timedelta(days=day)
        ) as memories:
            memories.create(f"{name} likes tea")
    config = load_config()
    store = open_store(config.store, None, config)
    namespaces.move(store, config, "bob", "robert", merge=False)
    assert not (home / "bob").exists()
    assert (
        read_metadata(home, "robert")["name"],
        read_metadata(home, "robert")["created_at"][:10],
    ) == (
        "robert",
        "2026-05-03",
    )
    namespaces.move(store, config, "ann", "robert", merge=True)
    metadata_now = read_metadata(home, "robert")
    assert (metadata_now["memory_count"], metadata_now["created_at"][:10]) == (2, "2026-05-02")
    assert str(home / "robert" / file.METADATA) in namespaces.delete(store, config, "robert").files
    assert not (home / "robert").exists()
    store.close()


def test_a_rename_writes_the_metadata_under_the_lock(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memories(namespace="bob", clock=lambda: START) as bob:
        bob.create("bob likes tea")
    write, free = file.write_metadata, []

    def write_and_check(folder: Path, *given: Any) -> None:
        with try_lock(folder / ".scratchpad.lock", 0) as held:
            free.append(held)
        write(folder, *given)

    monkeypatch.setattr(file, "write_metadata", write_and_check)
    config = load_config()
    with contextlib.closing(open_store(config.store, None, config)) as store:
        namespaces.move(store, config, "bob", "robert", merge=False)
    assert free == [False]
    assert read_metadata(home, "robert")["name"] == "robert"


UNREADABLE = [
    "",
    "{",
    "[]",
    '{"created_at": 7}',
    '{"created_at": "2026-01-01"}',
    "[" * 9999,
    "\0\xff",
]


@pytest.mark.parametrize("content", UNREADABLE, ids=range(len(UNREADABLE)))
def test_invalid_metadata_is_replaced_and_does_not_break_a_write(
    home: Path, tmp_path: Path, content: str
) -> None:
    with Memories(namespace="bob", clock=lambda: START) as bob:
        bob.create("Deploys happen on Tuesdays")
        (home / "bob" / file.METADATA).write_text(content)
        bob.create("Lunch is at noon", force=True)
    metadata_now = read_metadata(home, "bob")
    assert (
        metadata_now["name"],
        metadata_now["memory_count"],
        metadata_now["created_at"][:10],
    ) == (
        "bob",
        2,
        "2026-05-01",
    )
    (tmp_path / "mine").write_text("mine")
    (home / "bob" / file.METADATA).unlink()
    (home / "bob" / file.METADATA).symlink_to(tmp_path / "mine")
    with Memories(namespace="bob") as bob:
        bob.create("Tea is at five", force=True)
    assert (tmp_path / "mine").read_text() == "mine"
    assert read_metadata(home, "bob")["memory_count"] == 3
    (home / "bob" / file.METADATA).unlink()
    (
        home / "bob" / file.METADATA
    ).mkdir()  # the metadata can't be written, and the memory is stored
    with Memories(namespace="bob") as bob:
        assert bob.create("Dinner is at eight", force=True).stored


def test_a_deleted_namespace_gets_no_new_metadata(home: Path) -> None:
    bob = Memories(namespace="bob")
    for number in range(3):  # the metadata does not count the last ones yet
        bob.create(f"fact number {number}", force=True)
    config = load_config()
    store = open_store(config.store, None, config)
    namespaces.delete(store, config, "bob")
    store.close()
    bob.close()
    assert not (home / "bob" / file.METADATA).exists()
