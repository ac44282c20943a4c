"""The file of a scratchpad: its content, its order, and when entries leave it."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from forkserver import together
from memories import (
    Draft,
    InvalidInput,
    Memories,
    RequestError,
    StoreBusy,
    StoreError,
    load_config,
)
from memories.models import DecayPolicy
from memories.scratchpad import file, layout
from memories.scratchpad.entries import (
    Entry,
    EntryRules,
    choose,
    heat,
    select_confident,
    sort_entries,
)
from memories.scratchpad.text import is_edited
from memories.search.filters import Tier
from memories.search.relevance import Relevance, factor, freshness
from memories.stores import open_store
from scratchpad.conftest import contents, edit, file_of, store


def read(home: Path, namespace: str) -> Sequence[Entry]:
    """Return the entries in the file of a namespace's scratchpad."""
    pad = file.load(home, namespace)
    assert pad is not None
    return pad.entries


# --- content


def test_a_new_memory_is_in_the_file_at_once_and_readable_by_any_yaml_parser(bob: Memories) -> None:
    odd = 'quotes " \\ and\ttabs\nlines: - #\u202e \u2028 \x85 \U000e0041 日本 🙂 %& [INST]'
    name = store(bob, odd, tags={"type": "fact", "odd": "a: b"})
    file = file_of(bob)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    content = bob.get(name).content
    assert (loaded["memories"][0]["content"], loaded["namespace"]) == (content, "bob")
    [entry] = read(bob.config.home, "bob")
    assert (entry.id, entry.content, dict(entry.tags)) == (name, content, dict(bob.get(name).tags))
    assert "\u202e" not in file.read_text(encoding="utf-8")


def test_reading_a_scratchpad_imports_nothing_heavy(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    script = """
import sys
from pathlib import Path
from memories.scratchpad.file import load
heavy = {"numpy", "apsw", "click", "yaml", "onnxruntime"}
print(len(load(Path(sys.argv[1]), "bob").entries), sorted(heavy & sys.modules.keys()))
"""
    process = subprocess.run(
        [sys.executable, "-c", script, str(bob.config.home)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert process.stdout == "1 []\n"


def test_a_scratchpad_shows_only_current_memories(bob: Memories) -> None:
    store(bob, "waits", pending=True)
    gone, old = store(bob, "was deleted"), store(bob, "The port is 80")
    bob.delete(gone)
    bob.create("The port is 81", supersedes=old, force=True)
    store(bob, "long ago", decay="contextual", created_at=datetime.now(UTC) - timedelta(days=400))
    store(bob, "unsure", confidence=0.1)
    result = bob.scratchpad(refresh=True)
    assert [entry.content for entry in result.entries] == ["The port is 81"]
    assert result.waiting == 1
    assert [entry.content for entry in bob.scratchpad(rebuild=True).entries] == ["The port is 81"]


def test_a_corrected_memory_is_not_shown(bob: Memories) -> None:
    older = bob.create("The API listens on port 8080.")
    assert bob.create("The API listens on port 9090.").corrects == older.id
    assert [entry.content for entry in bob.scratchpad(rebuild=True).entries] == [
        "The API listens on port 9090."
    ]


def test_stale_entries_only_fill_the_remaining_space() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    old = Entry("a", "old news", decay="contextual", aging_from="2026-01-01T00:00:00.000Z")
    new = Entry("b", "news", decay="contextual", aging_from="2026-05-31T00:00:00.000Z")
    assert choose([old, new], EntryRules(size=1), now) == [new]
    assert choose([old, new], EntryRules(size=2), now) == [new, old]
    assert select_confident([old, new], EntryRules(), now) == [new]


def test_pinned_entries_come_first_and_often_read_ones_get_a_third_of_the_space() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    days = [(now - timedelta(days=at)).isoformat() for at in range(400)]
    many = [Entry(f"{at:03}", f"m{at}", written=day) for at, day in enumerate(days)]
    many[399] = many[399]._replace(pinned=True)
    many[390] = many[390]._replace(uses=90)
    names = [entry.id for entry in choose(many, EntryRules(size=10), now)]
    assert names[0] == "399"
    assert "390" in names
    assert {f"{at:03}" for at in range(8)} <= set(names)
    assert len(names) == 10


def test_entries_are_ordered_by_the_age_and_use_factor_of_a_search() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    new, old = (
        Entry(name, name, written=(now - timedelta(days=days)).isoformat())
        for name, days in (("a", 0), ("b", 9))
    )
    read = old._replace(uses=10)
    assert heat(read, now, Relevance()) == factor(
        freshness(9, 0.02, DecayPolicy.CONTEXTUAL), 1.02, 0.95
    )
    assert sort_entries([old, new], now, Relevance()) == [new, old]
    assert sort_entries([new, read], now, Relevance()) == [read, new]
    assert sort_entries([new, read], now, Relevance(max_boost=1.0)) == [new, read]
    assert sort_entries([new, read], now, Relevance(decay_rate=1.0)) == [new, read]


def test_the_relevance_settings_change_the_order(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCESS_BOOST_MAX", "1")
    with Memories(namespace="bob") as memories:
        read = store(memories, "The port is 81", created_at=datetime.now(UTC) - timedelta(days=3))
        store(memories, "The user prefers tabs")
        for _ in range(4):
            memories.get(read)
        memories.flush_accesses()
        assert [entry.uses for entry in memories.scratchpad(rebuild=True).entries] == [0, 4]
    monkeypatch.setenv("ACCESS_BOOST_MAX", "2")
    monkeypatch.setenv("ACCESS_BOOST_RATE", "1")
    with Memories(namespace="bob") as memories:
        assert [entry.uses for entry in memories.scratchpad().entries] == [4, 0]


def test_session_summaries_have_reserved_places() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    left = [
        Entry(
            f"{at:02}",
            f"s{at}",
            written=f"2026-05-{at:02}T00:00:00Z",
            tags={"type": "session", "project": f"p{at % 2}"},
        )
        for at in range(1, 13)
    ]
    facts = [Entry(f"f{at:02}", "f", written=f"2026-05-{at:02}T00:00:00Z") for at in range(1, 25)]
    names = [entry.id for entry in choose([*left, *facts], EntryRules(size=10), now)]
    assert sorted(name for name in names if not name.startswith("f")) == [
        "07",
        "08",
        "09",
        "10",
        "11",
        "12",
    ]
    assert sum(name.startswith("f") for name in names) == 10


def test_memories_of_another_namespace_are_never_shown(bob: Memories, home: Path) -> None:
    store(bob, "bobs")
    with Memories(namespace="alice") as alice:
        store(alice, "alices")
        assert contents(alice) == ["alices"]
    with Memories() as everybody:
        store(everybody, "for all")
    assert {entry.content: entry.namespace for entry in bob.scratchpad().entries} == {
        "for all": "shared",
        "bobs": "bob",
    }
    with Memories(namespace="bob", shared=False) as alone:
        assert contents(alone) == ["bobs"]
    assert [entry.content for entry in read(home, "bob")] == ["bobs"]


def test_a_long_memory_shows_its_beginning_and_the_file_stays_small(bob: Memories) -> None:
    bob.create_many([f"{at} " + "日" * 2_100 for at in range(33)], force=True)
    bob._scratchpads.flush()
    [first, *_] = bob.scratchpad(refresh=True).entries
    assert (len(first.content), first.cut) == (2_000, 2_103)
    assert file_of(bob).stat().st_size < 262_144
    assert read(bob.config.home, "bob")


def test_a_memory_that_is_often_found_is_included(bob: Memories) -> None:
    old = store(bob, "The staging password rotates on Fridays")
    bob.create_many([f"note number {at} on something else" for at in range(40)], force=True)
    bob._scratchpads.flush()
    bob.scratchpad(refresh=True)
    assert "The staging password rotates on Fridays" not in contents(bob)
    for _ in range(4):
        assert bob.search("staging password rotates")[0].id == old
        bob.flush_accesses()  # as the next write does; it counts the reads
    bob._scratchpads.flush()
    assert "The staging password rotates on Fridays" in contents(bob)


def test_a_refresh_includes_reads_that_are_not_counted_yet(bob: Memories) -> None:
    old = store(bob, "The staging password rotates on Fridays")
    bob.create_many([f"note number {at} on something else" for at in range(40)], force=True)
    bob._scratchpads.flush()
    for _ in range(4):
        assert (
            bob.search("staging password rotates")[0].id == old
        )  # counted with the next write, or before entries are chosen
    bob.scratchpad(refresh=True)
    assert "The staging password rotates on Fridays" in contents(bob)


def test_a_rebuild_finds_old_memories_that_are_often_used(bob: Memories) -> None:
    old = store(
        bob,
        "The staging password rotates on Fridays",
        created_at=datetime.now(UTC) - timedelta(days=9),
    )
    bob.create_many([f"note number {at} on something else" for at in range(130)], force=True)
    ref = next(record.ref for record in bob._lookup.own.versions(old))
    for _ in range(9):
        bob._store.touch([ref])
    bob._scratchpads.flush()
    assert "The staging password rotates on Fridays" not in contents(bob)
    bob.scratchpad(rebuild=True)
    assert "The staging password rotates on Fridays" in contents(bob)


@pytest.mark.parametrize("at_once", [7, 230])
def test_the_newest_of_many_memories_are_included_next_to_session_summaries(
    bob: Memories, at_once: int
) -> None:
    """Holds for one large transaction and for many small ones between two writes of the file."""
    store(bob, "the first", tags={"type": "session", "project": "web"})
    drafts = [Draft("what the session left", {"type": "session", "project": "shop"})]
    drafts += [Draft(f"fact number {number} of many") for number in range(230)]
    for begin in range(0, len(drafts), at_once):
        bob.create_many(drafts[begin : begin + at_once], force=True)
    bob._scratchpads.flush()
    newest = {memory.content for memory in bob.list(limit=bob.config.scratchpad_size).memories}
    assert {entry.content for entry in read(bob.config.home, "bob")} == newest | {
        "the first",
        "what the session left",
    }


def test_a_search_that_changes_no_entry_does_not_write_the_file(bob: Memories) -> None:
    size = bob.config.scratchpad_size
    ferries = bob.create_many(
        [f"the ferry of pier {at} leaves at nine" for at in range(size)], force=True
    )
    ids = [str(memory.id) for memory in ferries]
    rare = store(bob, "The staging password rotates on Fridays")
    from memories.stores.records import Collection, Ref

    refs = [Ref(Collection.MEMORY, "bob", memory_id, 1) for memory_id in ids]
    bob._store.touch([ref for ref in refs for _ in range(9)])
    bob._store.touch([Ref(Collection.MEMORY, "bob", rare, 1)] * 5)
    bob.create_many([f"note number {at} on something else" for at in range(size)], force=True)
    bob._scratchpads.flush()
    bob.scratchpad(rebuild=True)
    assert not {"The staging password rotates on Fridays"} & {*contents(bob)}
    before = file_of(bob).stat().st_mtime_ns
    for _ in range(2):
        assert bob.search("staging password rotates")[0].id == rare
        bob._scratchpads.flush()
    assert file_of(bob).stat().st_mtime_ns == before


def test_only_a_change_with_entries_creates_the_file(home: Path) -> None:
    pad_file = file.PadFile(home, "bob", "store")
    file.change(pad_file, (), {("gone", 1)}, make=True)
    assert file.load(home, "bob") is None
    file.change(pad_file, [Entry("m", "the gate is open")], (), make=False)
    assert file.load(home, "bob") is None
    file.change(pad_file, [Entry("m", "the gate is open")], (), make=True)
    pad = file.load(home, "bob")
    assert pad is not None
    assert (pad.namespace, pad.store, [entry.id for entry in pad.entries]) == (
        "bob",
        "store",
        ["m"],
    )


def test_the_cached_content_of_a_written_file_equals_its_parsed_text(bob: Memories) -> None:
    for at in range(3):
        store(
            bob,
            f'note "{at}" of C:\\ — \u200b über',
            tags={"type": "fact"},
            decay="contextual",
            confidence=0.5 + at / 10,
        )
    bob.pin(store(bob, "x" * 3_000, key="a/b"))
    store(bob, "Turn off the heating before leaving")
    cached = file.load(bob.config.home, "bob")
    parsed = layout.parse(file_of(bob).read_text(encoding="utf-8"), "the file")
    assert cached is not None
    assert len(parsed.entries) == 5
    entries = tuple(entry._replace(namespace="") for entry in cached.entries)
    assert cached._replace(entries=entries) == parsed
    edit(bob, "Turn off the heating", "Turn on the heating")
    cached = file.load(bob.config.home, "bob")
    assert cached is not None
    assert cached.edited


# --- pins


def test_a_pin_is_stored_but_is_not_a_tag(bob: Memories) -> None:
    name = store(bob, "The user prefers tabs", tags={"type": "preference"})
    before = bob.get(name)
    after = bob.pin(name)
    assert (after.pinned, after.tags, after.version, after.origin) == (
        True,
        before.tags,
        2,
        before.origin,
    )
    assert bob.pin(name).version == 2
    assert "=pinned" not in bob.tags()
    file_of(bob).unlink()
    assert [entry.pinned for entry in bob.scratchpad().entries] == [True]
    assert bob.update(name, "The user prefers spaces").pinned
    assert bob.update(name, tags={"a": "b"}).pinned
    bob.delete(name)
    assert bob.restore(name).pinned
    assert not bob.unpin(name).pinned


def test_pinning_keeps_the_time_of_acceptance(bob: Memories) -> None:
    name = store(bob, "waits", pending=True)
    bob.review.accept([name])
    accepted = bob.get(name)
    assert accepted.accepted_at is not None
    assert bob.pin(name).accepted_at == accepted.accepted_at


def test_at_most_fifty_memories_can_be_pinned(bob: Memories) -> None:
    names = [
        str(memory.id)
        for memory in bob.create_many([f"statement number {at}" for at in range(51)], force=True)
    ]
    for name in names[:50]:
        bob.pin(name)
    with pytest.raises(RequestError, match="50 memories are already pinned"):
        bob.pin(names[50])
    assert sum(entry.pinned for entry in bob.scratchpad().entries) == 50


# --- removal


@pytest.mark.parametrize("state", ["unchanged", "edited", "broken"])
def test_a_forgotten_memory_leaves_no_bytes_in_the_file(bob: Memories, state: str) -> None:
    name, other = store(bob, "xyzzy is the secret word"), store(bob, "remains")
    bob.pin(name)
    if state == "edited":
        edit(bob, "remains", "remains here")
    if state == "broken":
        edit(bob, "memories:", "memories: [}")
    bob.forget(name)
    data = b"".join(file.read_bytes() for file in file_of(bob).parent.iterdir())
    assert b"xyzzy" not in data
    assert other.encode() in data
    if state == "edited":
        assert contents(bob) == ["remains here"]


def test_an_edit_of_a_memory_that_was_replaced_in_the_meantime_is_dropped(bob: Memories) -> None:
    old = store(bob, "The port is 80")
    store(bob, "Rain is expected")
    bob._scratchpads.flush()
    open_in_an_editor = file_of(bob).read_text(encoding="utf-8")
    bob.create("Ports are chosen at random", supersedes=old)
    bob._scratchpads.flush()
    file_of(bob).write_text(
        open_in_an_editor.replace("Rain is", "Snow is").replace("port is 80", "port is 8080"),
        encoding="utf-8",
    )
    result = bob.scratchpad()
    assert result.notes == ()
    assert {entry.content for entry in result.entries} == {
        "Snow is expected",
        "Ports are chosen at random",
    }


@pytest.mark.parametrize("how", ["delete", "supersede", "update", "correct"])
def test_a_memory_that_is_no_longer_current_disappears_at_once(bob: Memories, how: str) -> None:
    name = store(bob, "The deploy day is Tuesday", key="deploy/day")
    if how == "delete":
        bob.delete(name)
    elif how == "supersede":
        bob.create("Deploys stopped", supersedes=name)
    elif how == "update":
        bob.update(name, "The deploy day is Thursday")
    else:
        with bob.transaction():
            bob.update(name, "The deploy day is Monday")
            bob.update(name, "The deploy day is Friday")
    assert "Tuesday" not in file_of(bob).read_text()
    assert "Monday" not in file_of(bob).read_text()


def test_a_memory_from_a_failed_transaction_is_not_shown(bob: Memories) -> None:
    store(bob, "first")
    with pytest.raises(RuntimeError), bob.transaction():
        bob.create("never stored")
        raise RuntimeError
    bob._scratchpads.flush()
    assert "never stored" not in file_of(bob).read_text()


def test_a_late_change_does_not_bring_a_deleted_memory_back(bob: Memories) -> None:
    store(bob, "stays")
    name = store(bob, "is gone")
    entry = next(entry for entry in read(bob.config.home, "bob") if entry.id == name)
    bob.delete(name)
    file.change(bob._scratchpads.pad_file("bob"), [entry], [], make=False)
    assert [entry.content for entry in read(bob.config.home, "bob")] == ["stays"]


def test_forget_fails_if_the_file_cannot_be_written(
    bob: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = store(bob, "xyzzy")

    def fail_as_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "replace", fail_as_full)
    with pytest.raises(Exception, match=r"No space left on device.*still shows a memory"):
        bob.forget(name)
    assert bob.get(name).content == "xyzzy"


def test_a_change_requires_the_lock(bob: Memories, monkeypatch: pytest.MonkeyPatch) -> None:
    name, pad_file = store(bob, "stays"), bob._scratchpads.pad_file("bob")
    before = file_of(bob).read_text()
    monkeypatch.setattr(file, "_WAIT_SECONDS", 0)
    with file.exclusive(pad_file), pytest.raises(StoreBusy, match="another process has held"):
        file.change(pad_file, [], [(name, 1)], make=False)
    assert file_of(bob).read_text() == before


def test_eight_concurrent_writers_lose_nothing(bob: Memories, home: Path) -> None:
    store(bob, "first")
    script = "import sys\nfrom memories import Memories\n"
    script += "with Memories(namespace='bob', embedder='none') as m:\n"
    script += "    m.create(f'writer {sys.argv[1]} wrote this', force=True)\n"
    together(script, [[at] for at in range(8)], environment=os.environ, folder=home.parent)
    assert len(bob.scratchpad().entries) == 9
    assert not is_edited(file_of(bob).read_text())


# --- the store that it mirrors


def test_a_store_object_has_no_scratchpad_file(home: Path, tmp_path: Path) -> None:
    database = open_store(f"sqlite:///{tmp_path}/x.db", None)
    with Memories(database, namespace="bob", embedder="none") as memories:
        memories.create("The user prefers tabs")
        assert [entry.content for entry in memories.scratchpad().entries] == [
            "The user prefers tabs"
        ]
    assert list(home.rglob("scratchpad*")) == []


def test_another_store_does_not_overwrite_the_file(bob: Memories, tmp_path: Path) -> None:
    store(bob, "The user prefers tabs")
    before = file_of(bob).read_bytes()
    with Memories(f"sqlite:///{tmp_path}/x.db", namespace="bob", embedder="none") as other:
        other.create("something else")
        assert [entry.content for entry in other.scratchpad().entries] == ["something else"]
    assert b"something else" not in file_of(bob).read_bytes()
    assert contents(bob) == ["The user prefers tabs"]
    assert before.count(b"- id") == 1


def test_a_new_store_in_place_of_a_missing_one_gets_a_new_scratchpad(
    bob: Memories, tmp_path: Path
) -> None:
    store(bob, "The user prefers tabs")
    bob.scratchpad()
    bob.close()
    config = load_config()
    for path in config.home.glob("memories.db*"):
        path.rename(tmp_path / path.name)
    with Memories(namespace="bob") as fresh:
        with pytest.raises(StoreError, match=r"memories\.db is missing"):
            fresh.scratchpad()
        with pytest.raises(StoreError, match=r"memories\.db is missing"):
            fresh.create("a new beginning")
        file_of(fresh).rename(tmp_path / "aside.yaml")
        store(fresh, "a new beginning")
        assert contents(fresh) == ["a new beginning"]


def test_values_in_the_file_are_json(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    line = next(
        row for row in file_of(bob).read_text().splitlines() if row.startswith("  content: ")
    )
    assert json.loads(line.partition(": ")[2]) == "The user prefers tabs"


def test_only_an_offline_search_uses_the_file(bob: Memories, tmp_path: Path) -> None:
    store(bob, "The user prefers tabs")
    bob.scratchpad()
    bob.close()
    for path in bob.config.home.glob("memories.db*"):
        path.rename(tmp_path / path.name)
    with Memories(namespace="bob") as fresh:
        with pytest.raises(StoreError, match=r"memories\.db is missing"):
            fresh.search("tabs")
        result = fresh.explain("tabs", offline=True)
        assert [hit.content for hit in result.hits] == ["The user prefers tabs"]
        assert result.tier == "hot"
        assert "memories.db is missing" in result.error
        with pytest.raises(StoreError, match=r"memories\.db is missing"):
            fresh.explain(
                "tabs", offline=True, as_of="2024-05-01"
            )  # only the store can answer this


@pytest.mark.parametrize("tier", ["deep", "hot", "auto"])
@pytest.mark.parametrize("state", ["deleted", "pending", "superseded"])
def test_every_tier_refuses_a_state(bob: Memories, tier: Tier, state: str) -> None:
    store(bob, "The user prefers tabs")
    bob.scratchpad()
    with pytest.raises(
        InvalidInput, match=f"finds only current memories; remove {state} from the expression"
    ):
        bob.search("tabs", tier=tier, where=f"not {state}")


@pytest.mark.parametrize("where", ["host != elsewhere", "not conversation = a"])
def test_an_auto_search_asks_the_store_for_fields_missing_from_the_scratchpad(
    bob: Memories, where: str
) -> None:
    store(bob, "The user prefers tabs")
    bob.scratchpad()
    assert bob.explain("prefers tabs", tier="auto").tier == "hot"
    answer = bob.explain("prefers tabs", tier="auto", where=where)
    assert answer.tier == "auto"
    assert answer.hits == bob.explain("prefers tabs", where=where).hits
    tagged = bob.search("prefers tabs", tier="hot", where='not "host" exists')
    assert [hit.content for hit in tagged] == ["The user prefers tabs"]


def test_a_hot_search_refuses_what_its_entries_lack(bob: Memories) -> None:
    store(bob, "The token of staging is ghp_abcdefghijklmnopqrstuvwxyz0123456789")
    bob.scratchpad()
    with pytest.raises(InvalidInput, match=r"can't answer this \(where: redacted\)"):
        bob.search("token staging", tier="hot", where="not redacted")
    assert not bob.search("token staging", tier="auto", where="not redacted")
    assert bob.search("token staging", tier="hot", where="content ~ token")
    store(bob, f"The long plan {'of staging ' * 200} ends in Lisbon")
    with pytest.raises(InvalidInput, match=r"can't answer this \(where: content\)"):
        bob.search("long plan", tier="hot", where="content ~ lisbon")
    assert not bob.search("long plan", tier="auto", where="not content ~ lisbon")


def test_a_hot_search_refuses_verdicts(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    with pytest.raises(InvalidInput, match=r"the scratchpad can't answer this \(where: verdict\)"):
        bob.search("tabs", tier="hot", where="verdict = changed")


def test_a_hot_search_refuses_a_misspelled_filter(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    with pytest.raises(InvalidInput, match=r"the scratchpad can't answer this \(projct\)"):
        bob.search("tabs", tier="hot", projct="shop")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "name", ["channel", "client", "conversation", "host", "identity", "source", "user"]
)
def test_a_hot_search_refuses_conditions_on_fields_missing_from_the_scratchpad(
    bob: Memories, name: str
) -> None:
    store(bob, "The user prefers tabs")
    bob.scratchpad()
    where = f"{name} = standup#1" if name == "source" else f"{name} = python"
    with pytest.raises(InvalidInput, match=rf"the scratchpad can't answer this \(where: {name}\)"):
        bob.search("tabs", tier="hot", where=where)
    in_store, automatic = (
        [hit.content for hit in bob.search("tabs", tier=tier, where=where)]
        for tier in ("deep", "auto")
    )
    assert automatic == in_store
