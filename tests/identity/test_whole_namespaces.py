"""Whole namespaces are shown, moved and deleted, in each kind of store that needs no server."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from forkserver import together
from memories import ConfigError, InvalidInput, Memories, NotFound, RequestError, StoreBusy
from memories.config import load_config
from memories.core import events
from memories.core.disk import try_lock
from memories.embedders import open_embedder
from memories.identity import namespaces
from memories.settings import Config
from memories.stores import Store, open_store
from memories.stores.records import Collection, Filter
from memories.transfer.export import export
from memories.transfer.pages import Part
from memories.write import captured
from memories.write.turn_queue import RetryQueue, files_of

pytestmark = pytest.mark.usefixtures("home")

SENTINEL = "XYLOPHONE"


@pytest.fixture(params=["sqlite", pytest.param("files", marks=pytest.mark.thorough)])
def config(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Config:
    """The configuration with a store that needs no server."""
    where = {
        "sqlite": f"sqlite:///{tmp_path}/store/memories.db",
        "files": f"files:///{tmp_path}/store",
    }
    monkeypatch.setenv("EMBEDDER", "fake")
    return load_config({"store": where[request.param]})


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    """The open store of that configuration."""
    embedder = open_embedder("fake", config)
    assert embedder is not None
    opened = open_store(config.store, embedder.space, config)
    yield opened
    opened.close()


def fill(config: Config, name: str, mark: str = SENTINEL) -> list[str]:
    """Fill a namespace with one of everything; return the ids of its memories."""
    with Memories(config=config, namespace=name, embedder="fake") as memories:
        keyed = memories.create(
            f"{mark} deploys happen on Tuesday", key=f"deploy/{mark}", tags={"type": mark}
        ).id
        assert keyed is not None
        memories.update(keyed, f"{mark} deploys happen on Friday")
        gone = memories.create(f"{mark} lunch is at noon").id
        held = memories.create(f"{mark} the cat sleeps all day long", pending=True).id
        assert gone and held
        memories.delete(gone)
        memories.add_turns(f"standup-{mark}", [f"{mark} we ship", "good"])
        memories.update_conversation(f"standup-{mark}", title=f"{mark} release")
        beaten = memories.create(f"{mark} tea is served hot", decay="reinforceable").id
        assert beaten
        memories.reinforce(beaten)
    _queue(config, name).add(
        {
            "conversation_id": "late",
            "role": "user",
            "text": f"{mark} late",
            "ts": "2026-01-01T00:00:00+00:00",
        }
    )
    folder = config.home / name
    folder.mkdir(parents=True, mode=0o700)
    (folder / "scratchpad.yaml").write_text(f"- {mark}\n")
    return [keyed, gone, held, beaten]


def _queue(config: Config, name: str) -> RetryQueue:
    """Return the queue of turns of a namespace."""
    return RetryQueue.of_turns(*files_of(config, name))


def exported(store: Store, name: str) -> list[dict[str, Any]]:
    """Return the records of a namespace as an export contains them."""
    lines: list[str] = []
    export(store, lines.append, namespaces=[name], progress=lambda *_: None)
    return [json.loads(line) for line in lines[1:-1]]


def visible_content(config: Config, name: str) -> object:
    """Return everything that a user can see in a namespace."""
    with Memories(config=config, namespace=name, shared=False, embedder="fake") as memories:
        return (
            [memory.content for memory in memories.list().memories],
            [memory.content for memory in memories.list(deleted=True).memories],
            [memory.content for memory in memories.list(pending=True).memories],
            [(talk.id, talk.title, talk.turn_count) for talk in memories.conversations()],
            [hit.memory.content for hit in memories.search("when are the deploys?")],
            [check.problem for check in memories.verify_log()],
            [check.unlogged for check in memories.verify_log()],
            [turn.content for turn in memories.waiting_turns()],
        )


def test_show_counts_the_content_of_a_namespace(config: Config, store: Store) -> None:
    fill(config, "bob")
    fill(config, "alice", "ALICE")
    found = namespaces.show(store, config, "Bob")
    assert found[:9] == ("bob", 2, 1, 1, 5, 2, 1, 1, 1)
    assert (
        found.text_bytes > 100
        and found.first_at
        and found.last_at
        and found.first_at <= found.last_at
    )
    assert found.tags == {f"type={SENTINEL}": 1}
    assert sum(found.writers.values()) == 7
    with pytest.raises(NotFound, match='no namespace "carol"'):
        namespaces.show(store, config, "carol")


def test_show_returns_the_first_and_last_time_of_writing(config: Config, store: Store) -> None:
    with Memories(config=config, namespace="bob", embedder="none") as memories:
        for day in (2, 1, 3):
            memories.create(
                f"It rained on day {day}", created_at=datetime(2026, 5, day, tzinfo=UTC), force=True
            )
    found = namespaces.show(store, config, "bob")
    assert (found.first_at, found.last_at) == (
        datetime(2026, 5, 1, tzinfo=UTC),
        datetime(2026, 5, 3, tzinfo=UTC),
    )


@pytest.mark.parametrize("merge", [False, True])
def test_a_moved_namespace_is_complete_under_its_new_name(
    merge: bool, config: Config, store: Store
) -> None:
    fill(config, "bob")
    fill(config, "alice", "ALICE")
    others, before, records = (
        visible_content(config, "alice"),
        visible_content(config, "bob"),
        exported(store, "bob"),
    )
    moved = namespaces.move(store, config, "bob", "robert", merge=merge)
    assert moved == ("bob", "robert", 5, 2, 1, 0)
    assert exported(store, "robert") == [{**record, "namespace": "robert"} for record in records]
    assert visible_content(config, "robert") == before
    assert visible_content(config, "alice") == others
    assert [store.refs(Part(each, "bob").filter()) for each in Collection] == [[], [], []]
    assert not (config.home / "bob").exists()
    with pytest.raises(NotFound):
        namespaces.show(store, config, "bob")


def test_a_moved_namespace_keeps_its_vectors_and_how_often_it_was_read(
    config: Config, store: Store
) -> None:
    [keyed, *_] = fill(config, "bob")
    with Memories(config=config, namespace="bob", embedder="fake") as memories:
        for _ in range(3):
            memories.get(keyed)
        read = memories.get(keyed).access_count
    namespaces.move(store, config, "bob", "robert", merge=False)
    with Memories(config=config, namespace="robert", embedder="fake") as memories:
        assert memories.get(keyed).access_count >= read
        assert memories.status().without_vector_count == 0


def test_a_merge_leaves_one_namespace_with_one_log(config: Config, store: Store) -> None:
    fill(config, "bob")
    fill(config, "alice", "ALICE")
    namespaces.move(store, config, "bob", "alice", merge=True)
    found = namespaces.show(store, config, "alice")
    assert (
        found.memory_count,
        found.pending_count,
        found.deleted_count,
        found.conversation_count,
    ) == (4, 2, 2, 2)
    assert found.queued_count == 2
    with Memories(config=config, namespace="alice", shared=False, embedder="fake") as memories:
        [check] = memories.verify_log()
        assert (check.problem, check.unlogged) == (None, 0)
        talks = {
            change.conversation for entry in memories.log(limit=100) for change in entry.changes
        }
        assert {f"standup-{SENTINEL}", "standup-ALICE"} <= talks
        memories.create("something else entirely")
        assert memories.verify_log()[0].problem is None


def test_the_key_of_a_deleted_memory_does_not_conflict_in_a_merge(
    config: Config, store: Store
) -> None:
    for name in ("bob", "alice"):
        with Memories(config=config, namespace=name, embedder="fake") as memories:
            made = memories.create(f"The editor of {name} is new", key="editor").id
            assert made is not None
            if name == "bob":
                memories.delete(made)
    assert namespaces.move(store, config, "bob", "alice", merge=True).versions == 1
    with Memories(config=config, namespace="alice", embedder="fake") as memories:
        assert [each.content for each in memories.list().memories] == ["The editor of alice is new"]


def test_a_rename_does_not_overwrite_and_a_merge_reports_conflicts_first(
    config: Config, store: Store
) -> None:
    fill(config, "bob", "SAME")
    fill(config, "alice", "SAME")
    before = exported(store, "bob"), exported(store, "alice")
    with pytest.raises(RequestError, match="memory namespaces merge bob alice"):
        namespaces.move(store, config, "bob", "alice", merge=False)
    with pytest.raises(RequestError, match=r'the key "deploy/SAME".*nothing was changed') as caught:
        namespaces.move(store, config, "bob", "alice", merge=True, dry_run=True)
    assert 'the conversation "standup-SAME"' in str(caught.value)
    with pytest.raises(RequestError):
        namespaces.move(store, config, "bob", "alice", merge=True)
    assert (exported(store, "bob"), exported(store, "alice")) == before


def test_repeating_the_command_finishes_an_interrupted_move(
    config: Config, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(config, "bob")
    before = visible_content(config, "bob")

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(namespaces, "_move_files", cut)
        with pytest.raises(KeyboardInterrupt):
            namespaces.move(store, config, "bob", "robert", merge=False)
    with monkeypatch.context() as patched:
        problem = StoreBusy("another program kept it busy; nothing was written; try again")
        patched.setattr(type(store), "remove", Mock(side_effect=problem))
        with pytest.raises(StoreBusy) as raised:
            namespaces.move(store, config, "bob", "robert", merge=False)
    assert str(raised.value) == (
        "the memories are now in robert, but may not be erased completely from bob (another "
        "program kept it busy); repeat the move"
    )
    assert namespaces.move(store, config, "bob", "robert", merge=False).left == 0
    assert visible_content(config, "robert") == before


def test_records_written_during_a_move_are_reported_and_not_lost(
    config: Config, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(config, "bob")
    files = namespaces._move_files

    def written(*given: Any) -> None:
        files(*given)
        with Memories(config=config, namespace="bob", embedder="fake") as memories:
            memories.create("written in between")

    with monkeypatch.context() as patched:
        patched.setattr(namespaces, "_move_files", written)
        assert namespaces.move(store, config, "bob", "robert", merge=False).left == 1
    namespaces.move(store, config, "bob", "robert", merge=True)
    with Memories(config=config, namespace="robert", shared=False, embedder="fake") as memories:
        assert "written in between" in [memory.content for memory in memories.list().memories]


def test_the_shared_namespace_keeps_its_name(config: Config, store: Store) -> None:
    with Memories(config=config, embedder="fake") as memories:
        memories.create("for everybody")
    with pytest.raises(InvalidInput, match="every agent reads shared"):
        namespaces.move(store, config, "shared", "bob", merge=False)
    assert namespaces.move(store, config, "shared", "bob", merge=True).versions == 1


def test_a_deleted_namespace_leaves_no_bytes_on_disk(
    config: Config, store: Store, tmp_path: Path
) -> None:
    name = "quentin"
    fill(config, name)
    fill(config, "alice", "ALICE")
    inbox = config.home / "inbox"
    inbox.mkdir(parents=True)
    stays = [
        {"namespace": "alice", "text": "ALICE stays"},
        {"namespace": None, "text": "for shared"},
    ]
    events = [{"namespace": name, "text": SENTINEL}, *stays]
    (inbox / "s.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    others = visible_content(config, "alice")
    planned = namespaces.delete(store, config, name, dry_run=True)
    assert planned[:5] == (name, 4, 5, 2, 2) and planned.entries > 5
    assert visible_content(config, name) != visible_content(config, "nobody")
    done = namespaces.delete(store, config, name)
    assert done._replace(also_in=()) == planned
    store.close()
    # A files store keeps the name, so that a Git merge does not bring back the deleted records.
    words = (SENTINEL,) if config.store.startswith("files") else (SENTINEL, name)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and holds(path, *words)]
    assert left == []
    assert len(words) == 1 or not list(tmp_path.rglob(f"*{name}*"))
    assert visible_content(config, "alice") == others
    assert [json.loads(line) for line in (inbox / "s.jsonl").read_text().splitlines()] == stays


def test_waiting_events_move_with_their_namespace(config: Config, store: Store) -> None:
    fill(config, "bob")
    inbox = config.home / "inbox"
    inbox.mkdir(parents=True)
    events = [
        {"namespace": "Bob", "text": "one"},
        {"namespace": "ann", "text": "two"},
        {"text": "three"},
    ]
    (inbox / "s.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + "half")
    namespaces.move(store, config, "bob", "rob", merge=False)
    *lines, half = (inbox / "s.jsonl").read_text().splitlines()
    assert [json.loads(line).get("namespace") for line in lines] == ["rob", "ann", None]
    assert half == "half"


def test_session_files_follow_a_moved_or_deleted_namespace(
    config: Config, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[tuple[int, int]] = set()
    fsync = os.fsync

    def record_fsync(fd: int) -> None:
        fsync(fd)
        flushed.add((os.fstat(fd).st_ino, os.fstat(fd).st_size))

    monkeypatch.setattr(os, "fsync", record_fsync)
    fill(config, "bob")
    inbox, sessions = config.home / "inbox", config.home / "sessions"
    for folder in (inbox / "refused", inbox / "state", sessions):
        folder.mkdir(parents=True)
    lines = [
        {"folder": "/work", "named": "bob", "reset": False},
        {"namespace": "bob", "off": False, "reset": True},
        {"shown": ["0190-of-bob"], "said": ["hash-of-bob"], "given_to": "bob"},
        {"shown": ["0190-of-ann"], "said": ["hash-of-ann"], "given_to": "ann"},
    ]
    (sessions / "codex.s1").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (sessions / "codex.s2").write_text(f"{json.dumps(lines[3])}\n")
    for name in ("codex.s1", "codex.s2"):
        state = {
            "offset": 7,
            "stopped": 7,
            "last": [["", "hash", 1]],
            "failures": 0,
            "events": {"user:hash": 1},
        }
        (inbox / "state" / f"{name}.json").write_text(json.dumps({**state, "lines": {}}))
    (inbox / "refused" / "codex.s1.00").write_text(
        '{"namespace": "bob", "prompt": "of bob"}\n{"namespace": "ann"}\n'
    )
    reads = config.home / "accesses-00000000.jsonl"
    reads.write_text('[["bob","a",1],["ann","b",1]]\n[["bob","a",1]]\n')
    assert namespaces.delete(store, config, "bob", dry_run=True).queued == 2
    assert "of-bob" in (sessions / "codex.s1").read_text()
    namespaces.move(store, config, "bob", "rob", merge=False)
    assert [json.loads(line)[0] for line in reads.read_text().splitlines()] == [["rob", "a", 1]] * 2
    assert '"given_to": "rob"' in (sessions / "codex.s1").read_text()
    assert namespaces.delete(store, config, "rob").queued == 2
    assert reads.read_text() == '[["ann", "b", 1]]\n'
    left = [json.loads(line) for line in (sessions / "codex.s1").read_text().splitlines()]
    assert left == [{**lines[0], "named": ""}, {"off": False, "reset": True}, lines[3]]
    assert [
        json.loads((inbox / "state" / f"codex.s{n}.json").read_text())["offset"] for n in (1, 2)
    ] == [7, 7]
    assert "hash" not in (inbox / "state" / "codex.s1.json").read_text()
    assert "hash" in (inbox / "state" / "codex.s2.json").read_text()
    assert (inbox / "refused" / "codex.s1.00").read_text() == '{"namespace": "ann"}\n'
    for file in (reads, sessions / "codex.s1", inbox / "refused" / "codex.s1.00"):
        assert (file.stat().st_ino, file.stat().st_size) in flushed
    assert not [event for event in events.read(config.home) if event.get("namespace") == "rob"]


def holds(path: Path, *words: str) -> bool:
    """Return whether a file contains one of these words."""
    data = path.read_bytes().lower()
    return any(word.lower().encode() in data for word in words)


def test_a_running_flusher_blocks_moves_and_deletions(
    config: Config, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(config, "bob")
    monkeypatch.setattr(captured, "_WAIT_SECONDS", 0.01)
    (config.home / "inbox").mkdir(exist_ok=True)
    with try_lock(config.home / "inbox" / captured.FLUSH_LOCK, 0) as held:  # as the flusher does
        assert held
        before = namespaces.show(store, config, "bob")
        for change in (
            lambda: namespaces.delete(store, config, "bob"),
            lambda: namespaces.move(store, config, "bob", "robert", merge=False),
        ):
            with pytest.raises(StoreBusy, match="captured events"):
                change()
        assert namespaces.show(store, config, "bob") == before
    namespaces.delete(store, config, "bob")
    assert "bob" not in store.namespaces(Collection.MEMORY)


def test_unrelated_files_with_the_name_of_a_namespace_are_kept(
    config: Config, store: Store, tmp_path: Path
) -> None:
    (config.home / "inbox").mkdir(parents=True)
    (config.home / "inbox" / "s.jsonl").write_text('{"namespace": "bob"}\n')
    (config.home / "notes").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "scratchpad.yaml").write_text("mine")
    (config.home / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("notes", "link"):
        with Memories(config=config, namespace=name, embedder="fake") as memories:
            memories.create("a note")
    [record] = store.scan(Filter(Collection.MEMORY, ("notes",)), limit=1)
    store.append(
        [record._replace(ref=record.ref._replace(namespace="inbox"))]
    )  # as an earlier version did
    for name in ("inbox", "notes", "link"):
        namespaces.delete(store, config, name)
    assert (config.home / "inbox" / "s.jsonl").read_text() == '{"namespace": "bob"}\n'
    assert (
        (config.home / "notes").read_text()
        == (tmp_path / "elsewhere" / "scratchpad.yaml").read_text()
        == "mine"
    )


TWELVE = """
import json, sys
from memories import Memories
url, name = sys.argv[1:]
with Memories(url, namespace=name, embedder="fake") as memories:
    for number in range(6):
        memories.create(
            f"{name} fact {number} about {name}{number}", key=f"fact/{number}", force=True
        )
        memories.add_turns("standup", [f"{name} says {number}"])
    memories.delete(memories.id_of_key("fact/0"))
    found = [hit.memory.content for hit in memories.search(f"fact about {name}", limit=50)]
    found += [memory.content for memory in memories.list(limit=100).memories]
    found += [turn.content for turn in memories.tail_turns("standup", limit=100)]
    print(json.dumps([found, memories.status().memory_count, memories.verify_log()[0].problem]))
"""


# other tests prove the separation in one process, and the core's promises concurrent writers
@pytest.mark.thorough
def test_twelve_identities_that_write_concurrently_stay_separate(
    tmp_path: Path, clean_environment: Mapping[str, str]
) -> None:
    url = f"sqlite:///{tmp_path}/twelve/memories.db"
    names = [f"agent{number:02}x" for number in range(12)]
    answers = together(
        TWELVE, [(url, name) for name in names], environment=clean_environment, folder=tmp_path
    )
    for name, out in zip(names, answers, strict=True):
        found, count, problem = json.loads(out)
        assert {text.split()[0] for text in found} == {name}
        assert (count, problem, len(found) > 10) == (5, None, True)


Limited = Callable[..., Memories]


@pytest.fixture
def limited(config: Config) -> Limited:
    """Return a function that opens memories with a quota."""

    def open_limited(quota: str, name: str = "bob") -> Memories:
        return Memories(
            config=config._replace(
                namespace_quota=load_config({"namespace_quota": quota}).namespace_quota
            ),
            namespace=name,
            embedder="fake",
        )

    return open_limited


def test_a_full_namespace_refuses_memories_and_the_error_names_the_setting(
    limited: Limited,
) -> None:
    with limited("memories=2,turns=1") as memories:
        first = memories.create("the first one", force=True)
        memories.create("the second thing waits", pending=True)
        with pytest.raises(
            RequestError,
            match=r"namespace bob contains 2 memories and its quota is 2.*NAMESPACE_QUOTA",
        ):
            memories.create("a third of another kind")
        with pytest.raises(RequestError, match="no room for 1 more"):
            memories.create_many(["a fourth", "a fifth of its own"])
        assert first.id
        memories.update(first.id, "changes need no room")
        memories.add_turns("talk", ["one"])
        with pytest.raises(RequestError, match="contains 1 turn and its quota is 1"):
            memories.add_turns("talk", ["two"])
        memories.delete(first.id)
        memories.create("there is room again for it")
        with pytest.raises(RequestError, match="quota"):
            memories.restore(first.id)


def test_a_namespace_can_have_its_own_limit(limited: Limited) -> None:
    quota = "memories=1,bob.memories=2,eve.memories=none"
    for name, most in (("bob", 2), ("ann", 1)):
        with limited(quota, name) as memories:
            for number in range(most):
                memories.create(f"number {number}", force=True)
            with pytest.raises(RequestError, match=f"its quota is {most}"):
                memories.create("one more", force=True)
    with limited(quota, "eve") as memories:
        assert (
            len(memories.create_many([f"number {number}" for number in range(9)], force=True)) == 9
        )


@pytest.mark.parametrize(
    "quota",
    [
        "10",
        "memories",
        "memories=-1",
        "memories=x",
        "words=3",
        "Bob!.memories=1",
        "a=1,",
        "memories=1,memories=2",
    ],
)
def test_a_malformed_quota_is_refused(quota: str) -> None:
    with pytest.raises(ConfigError, match=r"namespace_quota.*must be limits|is not usable"):
        load_config({"namespace_quota": quota})


RACE = """
import sys
from memories import Memories, RequestError
stored = 0
with Memories(sys.argv[1], namespace="bob", embedder="none") as memories:
    for number in range(9):
        try:
            memories.create(f"{sys.argv[2]} has number {number}", force=True)
            stored += 1
        except RequestError:
            pass
print(stored)
"""


def test_a_quota_holds_with_concurrent_writers(
    tmp_path: Path, clean_environment: Mapping[str, str]
) -> None:
    url = f"sqlite:///{tmp_path}/race/memories.db"
    environment = {**clean_environment, "NAMESPACE_QUOTA": "memories=25"}
    runs = [(url, f"w{number}") for number in range(4)]
    stored = together(RACE, runs, environment=environment, folder=tmp_path)
    assert sum(int(count) for count in stored) == 25
    with Memories(url, namespace="bob", embedder="none") as memories:
        assert memories.status().memory_count == 25
