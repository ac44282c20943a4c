"""Moves of memories to another namespace lose nothing, and moving back undoes them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from memories import InvalidInput, Memories, NotFound, RequestError
from memories.errors import StoreBusy
from memories.stores.records import Collection
from memories.transfer.export import export
from memories.transfer.pages import Part

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(params=["sqlite", pytest.param("files", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each kind of store that needs no server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/memories.db"
    return f"files:///{tmp_path}/store"


def memories_of(url: str, namespace: str, **options: Any) -> Memories:
    """Open the memories of one namespace."""
    return Memories(url, namespace=namespace, shared=False, embedder="fake", **options)


def exported(memories: Memories) -> list[dict[str, Any]]:
    """Return the records of a namespace as exported, without the namespace and read counts."""
    lines: list[str] = []
    own = [memories.namespace]
    export(memories._raw_store, lines.append, namespaces=own, progress=lambda *_: None)
    rows = [json.loads(line) for line in lines[1:-1]]
    for row in rows:
        del row["namespace"]
        row.pop("accesses", None)
    return rows


def fill(memories: Memories) -> list[str]:
    """Store one memory of each kind; return their ids."""
    first = memories.create("Deploys happen on Tuesdays", key="deploy/day", tags={"type": "fact"})
    assert first.id
    memories.update(first.id, "Deploys happen on Fridays", tags={"team": "blue"})
    gone = memories.create("Lunch is at noon").id
    waiting = memories.create("The cat sleeps all day long", pending=True).id
    reinforced = memories.create("Tea is served hot", decay="reinforceable").id
    assert gone and waiting and reinforced
    memories.delete(gone)
    memories.reinforce(reinforced)
    memories.get(reinforced)
    memories.pin(reinforced)
    return [first.id, gone, waiting, reinforced]


def test_moved_memories_are_complete_in_the_target_and_gone_from_the_source(url: str) -> None:
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        ids = fill(bob)
        stays = bob.create("The port is 5433").id
        bob.get(ids[3])
        bob.flush_accesses()
        before, reads = exported(bob), bob.get(ids[3]).access_count
        moved = bob.move([ids[0][:18], *ids[1:], ids[0]], "Alice")
        assert (moved.ids, moved.namespace, moved.into) == (tuple(ids), "bob", "alice")
        assert moved.versions == 6
        assert [row["group"] for row in exported(bob)] == [stays]
        assert exported(alice) == [row for row in before if row["group"] != stays]
        assert alice.id_of_key("deploy/day") == ids[0]
        assert alice.search("when do deploys happen?")[0].memory.id == ids[0]
        assert alice.get(ids[3]).access_count >= reads > 0
        assert (alice.review.count(), bob.review.count()) == (1, 0)
        assert alice.status().without_vector_count == 0
        with pytest.raises(NotFound):
            bob.history(ids[0])
        assert alice.move(ids, "bob").versions == 6
        assert exported(bob) == before
        assert exported(alice) == []
        for memories in (bob, alice):
            [check] = memories.verify_log()
            assert (check.problem, check.unlogged) == (None, 0)


def test_the_log_names_a_move_in_both_namespaces(url: str) -> None:
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        made = bob.create("Tea is served hot").id
        assert made
        bob.move([made], "alice")
        for memories in (bob, alice):
            [entry] = memories.log(made, action="move")
            assert [(change.id, change.last) for change in entry.changes] == [(made, 1)]


def test_the_file_of_a_namespace_keeps_no_bytes_of_forgotten_moved_memories(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/memories.db"
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        made = bob.create("The XYLOPHONE is out of tune").id
        assert made
        bob.move([made], "alice")
        alice.forget(made)
    files = filter(Path.is_file, tmp_path.rglob("*"))
    assert not [file for file in files if b"XYLOPHONE" in file.read_bytes()]


def test_a_move_is_all_or_nothing(url: str) -> None:
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        ids = fill(bob)
        alice.create("Deploys are frozen", key="deploy/day")
        before = exported(bob), exported(alice)
        with pytest.raises(
            RequestError, match='alice already has the key "deploy/day"; nothing was'
        ):
            bob.move(ids, "alice")
        with pytest.raises(NotFound):
            bob.move([ids[1], "01a1fdf1-92cd-72f2-8000-000000000000"], "alice")
        for wrong in ("bob", "", "no/name", "inbox"):
            with pytest.raises(InvalidInput):
                bob.move(ids, wrong)
        assert (exported(bob), exported(alice)) == before


def test_only_memories_of_your_own_namespace_are_moved(url: str) -> None:
    with Memories(url, namespace="shared", embedder="fake") as shared:
        made = shared.create("Tea is served hot").id
    assert made
    with Memories(url, namespace="bob", embedder="fake") as bob:
        with pytest.raises(RequestError, match="Memory is in namespace shared"):
            bob.move([made], "alice")
        assert bob.get(made).namespace == "shared"


def test_an_error_after_the_copies_says_where_the_memories_are(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        made = bob.create("Ann prefers tea").id
        assert made is not None
        problem = StoreBusy("another program kept it busy; nothing was written; try again")
        with monkeypatch.context() as patched:
            patched.setattr(type(bob._raw_store), "remove", Mock(side_effect=problem))
            with pytest.raises(StoreBusy) as raised:
                bob.move([made], "alice")
        assert str(raised.value) == (
            "the memories are now in alice, but may not be erased completely from bob (another "
            "program kept it busy); forget them in bob"
        )
        assert bob.forget(made).versions == 1
        assert alice.get(made).content == "Ann prefers tea"


def test_repeating_the_call_finishes_an_interrupted_move(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        ids = fill(bob)
        before = exported(bob)
        with monkeypatch.context() as patched:
            patched.setattr(type(bob._raw_store), "remove", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                bob.move(ids, "alice")
        assert exported(alice) == before
        assert bob.list().memories == ()
        with pytest.raises(NotFound):
            bob.update(ids[0], "Deploys happen on Mondays")
        assert bob.move(ids, "alice").versions == 6
        assert (exported(bob), exported(alice)) == ([], before)


def test_a_copy_changed_in_the_meantime_is_not_overwritten(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        ids = fill(bob)
        with monkeypatch.context() as patched:
            patched.setattr(type(bob._raw_store), "remove", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                bob.move(ids[:1], "alice")
        alice.update(ids[0], "Deploys happen on Mondays")
        with pytest.raises(RequestError, match=f"alice has other versions of {ids[0]}"):
            bob.move(ids[:1], "alice")
        assert alice.get(ids[0]).content == "Deploys happen on Mondays"


def test_a_correction_moved_alone_is_unlinked_and_relinked_when_it_returns(url: str) -> None:
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        older = bob.create("Deploys of the shop happen on Tuesdays at 09:30").id
        newer = bob.create("Deploys of the shop happen on Thursdays at 09:30").memory
        assert older and newer and newer.corrects == older
        before = exported(bob)
        bob.move([newer.id], "alice")
        assert bob.get(older).corrected_by is None
        alice.move([newer.id], "bob")
        assert bob.get(older).corrected_by == newer.id
        assert bob.get(newer.id).corrects == older
        bob.move([older, newer.id], "alice")
        assert alice.get(older).corrected_by == newer.id
        alice.move([newer.id, older], "bob")
        assert exported(bob) == before


def links_of(memories: Memories, ids: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Return what each memory corrects, and what corrects it."""
    return [(each.corrects, each.corrected_by) for each in map(memories.get, ids)]


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_memory_moved_alone_has_no_link_until_it_returns(url: str, moved: int) -> None:
    texts = [f"Deploys of the shop happen on {day}s" for day in ("Tuesday", "Thursday", "Friday")]
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        ids = [str(bob.create(text).id) for text in texts]
        before, linked = exported(bob), links_of(bob, ids)
        bob.move([ids[moved]], "alice")
        assert links_of(alice, [ids[moved]]) == [(None, None)]
        older, newer = (name for name in ids if name != ids[moved])
        assert links_of(bob, [older, newer]) == [(None, newer), (older, None)]
        alice.move([ids[moved]], "bob")
        assert links_of(bob, ids) == linked
        assert exported(bob) == before
        bob.move([ids[moved]], "alice")
        alice.update(ids[moved], tags={"team": "blue"})
        alice.move([ids[moved]], "bob")
        assert links_of(bob, ids) == linked


def test_a_memory_whose_text_was_changed_elsewhere_returns_without_its_link(url: str) -> None:
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        older = str(bob.create("Deploys of the shop happen on Tuesdays").id)
        newer = str(bob.create("Deploys of the shop happen on Thursdays").id)
        bob.move([older], "alice")
        alice.update(older, "The cat sleeps all day long")
        alice.move([older], "bob")
        assert links_of(bob, [older, newer]) == [(None, None), (None, None)]


def test_the_quota_of_the_other_namespace_applies(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESPACE_QUOTA", "alice.memories=1")
    with memories_of(url, "bob") as bob, memories_of(url, "alice") as alice:
        ids = fill(bob)
        before = exported(bob)
        with pytest.raises(RequestError, match="namespace alice contains 0 memories"):
            bob.move(ids, "alice")
        assert (exported(bob), exported(alice)) == (before, [])


def test_memories_without_vectors_move_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memories.db"
    with Memories(url, namespace="bob", embedder="none") as bob:
        made = bob.create("Tea is served hot").id
        assert made
        assert bob.move([made], "alice").versions == 1
        store = bob._raw_store
        assert [store.refs(Part(each, "bob").filter()) for each in (Collection.MEMORY,)] == [[]]


def test_a_rollback_deletes_memories_moved_in_and_restores_none_moved_out(
    url: str,
) -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    with (
        memories_of(url, "bob", clock=lambda: now) as bob,
        memories_of(url, "alice", clock=lambda: now) as alice,
    ):
        stays = alice.create("The port is 5433").id
        made = bob.create("Tea is served hot").id
        assert stays and made
        now = datetime(2026, 5, 3, tzinfo=UTC)
        bob.move([made], "alice")
        bob.rollback("2026-05-02")
        assert bob.list().memories == ()
        alice.rollback("2026-05-02")
        assert [memory.id for memory in alice.list().memories] == [stays]
        alice.restore(made)
        assert alice.get(made).content == "Tea is served hot"
