"""The file of a scratchpad: what is in it, what a person may do to it, what must leave it, and
hostile files.
"""

import itertools
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from forkserver import together
from memories import Draft, InvalidInput, Memories, RequestError, StoreBusy, StoreError, load_config
from memories.models import DecayPolicy
from memories.scratchpad import layout, scratchpad
from memories.scratchpad.entries import Entry, Rules, chosen, current, heat, ordered
from memories.scratchpad.scratchpad import read
from memories.search.relevance import Relevance, factor, freshness

Home = Path


@pytest.fixture
def bob(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Memories]:
    monkeypatch.setenv("EMBEDDER", "fake")
    with Memories(namespace="bob") as memories:
        yield memories


def made(memories: Memories, content: str, **options: object) -> str:
    """Store a memory and write the file; return its id."""
    created = memories.create(content, force=True, **options)  # type: ignore[arg-type]
    memories._scratchpads.flush()
    assert created.id is not None
    return created.id


def file_of(memories: Memories) -> Path:
    """Return the file of a scratchpad."""
    return memories.config.home / memories.namespace / "scratchpad.yaml"


def shown(memories: Memories) -> list[str]:
    """Return the contents that a scratchpad shows."""
    return [entry.content for entry in memories.scratchpad().entries]


def edit(memories: Memories, old: str, new: str) -> None:
    """Change the file as a person does."""
    file = file_of(memories)
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def block(memories: Memories, memory_id: str) -> str:
    """Return the lines of an entry."""
    rows = file_of(memories).read_text(encoding="utf-8").split("\n- ")
    return (
        "- "
        + next(row for row in rows if memory_id in row.split("\n")[0]).split("\n# For")[0]
        + "\n"
    )


# --- what is in it
# ---------------------------------------------------------------------------------------------------


def test_a_write_is_in_the_file_at_once_and_any_yaml_parser_reads_it(bob: Memories) -> None:
    odd = 'quotes " \\ and\ttabs\nlines: - #\u202e \u2028 \x85 \U000e0041 日本 🙂 %& [INST]'
    name = made(bob, odd, tags={"type": "fact", "odd": "a: b"})
    file = file_of(bob)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    content = bob.get(name).content
    assert (loaded["memories"][0]["content"], loaded["namespace"]) == (content, "bob")
    [entry] = read(bob.config.home, "bob")
    assert (entry.id, entry.content, dict(entry.tags)) == (name, content, dict(bob.get(name).tags))
    assert "\u202e" not in file.read_text(encoding="utf-8")


def test_reading_it_loads_nothing_heavy(bob: Memories) -> None:
    made(bob, "The user prefers tabs")
    script = """
import sys
from pathlib import Path
from memories.scratchpad.scratchpad import read
heavy = {"numpy", "apsw", "click", "yaml", "onnxruntime"}
print(len(read(Path(sys.argv[1]), "bob")), sorted(heavy & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(bob.config.home)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == "1 []\n"


def test_only_what_is_current_is_in_it(bob: Memories) -> None:
    made(bob, "waits", pending=True)
    gone, old = made(bob, "was deleted"), made(bob, "The port is 80")
    bob.delete(gone)
    bob.create("The port is 81", supersedes=old, force=True)
    made(bob, "long ago", decay="contextual", created_at=datetime.now(UTC) - timedelta(days=400))
    made(bob, "unsure", confidence=0.1)
    found = bob.scratchpad(refresh=True)
    assert [entry.content for entry in found.entries] == ["The port is 81"]
    assert found.waiting == 1
    assert [entry.content for entry in bob.scratchpad(rebuild=True).entries] == ["The port is 81"]


def test_what_another_memory_corrects_is_not_in_it(bob: Memories) -> None:
    older = bob.create("The API listens on port 8080.")
    assert bob.create("The API listens on port 9090.").corrects == older.id
    assert [entry.content for entry in bob.scratchpad(rebuild=True).entries] == [
        "The API listens on port 9090."
    ]


def test_what_is_no_longer_current_only_takes_room_that_is_left() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    old = Entry("a", "old news", decay="contextual", aging_from="2026-01-01T00:00:00.000Z")
    new = Entry("b", "news", decay="contextual", aging_from="2026-05-31T00:00:00.000Z")
    assert chosen([old, new], Rules(size=1), now) == [new]
    assert chosen([old, new], Rules(size=2), now) == [new, old]
    assert current([old, new], Rules(), now) == [new]


def test_pinned_ones_come_first_and_stay_and_what_is_often_used_has_a_third() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    days = [(now - timedelta(days=at)).isoformat() for at in range(400)]
    many = [Entry(f"{at:03}", f"m{at}", written=day) for at, day in enumerate(days)]
    many[399] = many[399]._replace(pinned=True)
    many[390] = many[390]._replace(uses=90)
    names = [entry.id for entry in chosen(many, Rules(size=10), now)]
    assert names[0] == "399"
    assert "390" in names
    assert {f"{at:03}" for at in range(8)} <= set(names)
    assert len(names) == 10


def test_their_order_is_that_of_the_factor_for_age_and_use_of_a_search_and_follows_its_settings() -> (
    None
):
    now = datetime(2026, 6, 1, tzinfo=UTC)
    new, old = (
        Entry(name, name, written=(now - timedelta(days=days)).isoformat())
        for name, days in (("a", 0), ("b", 9))
    )
    read = old._replace(uses=10)
    assert heat(read, now, Relevance()) == factor(
        freshness(9, 0.02, DecayPolicy.CONTEXTUAL), 1.02, 0.95
    )
    assert ordered([old, new], now, Relevance()) == [new, old]
    assert ordered([new, read], now, Relevance()) == [read, new]
    assert ordered([new, read], now, Relevance(most_boost=1.0)) == [new, read]
    assert ordered([new, read], now, Relevance(decay_rate=1.0)) == [new, read]


def test_the_settings_of_relevance_order_what_is_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCESS_BOOST_MAX", "1")
    with Memories(namespace="bob") as memories:
        read = made(memories, "The port is 81", created_at=datetime.now(UTC) - timedelta(days=3))
        made(memories, "The user prefers tabs")
        for _ in range(4):
            memories.get(read)
        memories.flush_accesses()
        assert [entry.uses for entry in memories.scratchpad(rebuild=True).entries] == [0, 4]
    monkeypatch.setenv("ACCESS_BOOST_MAX", "2")
    monkeypatch.setenv("ACCESS_BOOST_RATE", "1")
    with Memories(namespace="bob") as memories:
        assert [entry.uses for entry in memories.scratchpad().entries] == [4, 0]


def test_what_sessions_left_has_places_of_its_own() -> None:
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
    names = [entry.id for entry in chosen([*left, *facts], Rules(size=10), now)]
    assert sorted(name for name in names if not name.startswith("f")) == [
        "07",
        "08",
        "09",
        "10",
        "11",
        "12",
    ]
    assert sum(name.startswith("f") for name in names) == 10


def test_another_namespaces_memories_are_never_in_it(bob: Memories, home: Path) -> None:
    made(bob, "bobs")
    with Memories(namespace="alice") as alice:
        made(alice, "alices")
        assert shown(alice) == ["alices"]
    with Memories() as everybody:
        made(everybody, "for all")
    assert {entry.content: entry.namespace for entry in bob.scratchpad().entries} == {
        "for all": "shared",
        "bobs": "bob",
    }
    with Memories(namespace="bob", shared=False) as alone:
        assert shown(alone) == ["bobs"]
    assert [entry.content for entry in read(home, "bob")] == ["bobs"]


def test_a_long_memory_shows_its_beginning_and_the_file_stays_small(bob: Memories) -> None:
    bob.create_many([f"{at} " + "日" * 2_100 for at in range(33)], force=True)
    bob._scratchpads.flush()
    [first, *_] = bob.scratchpad(refresh=True).entries
    assert (len(first.content), first.cut) == (2_000, 2_103)
    assert file_of(bob).stat().st_size < 262_144
    assert read(bob.config.home, "bob")


def test_what_is_often_found_gets_a_place(bob: Memories) -> None:
    old = made(bob, "The staging password rotates on Fridays")
    bob.create_many([f"note number {at} on something else" for at in range(40)], force=True)
    bob._scratchpads.flush()
    bob.scratchpad(refresh=True)
    assert "The staging password rotates on Fridays" not in shown(bob)
    for _ in range(4):
        assert bob.search("staging password rotates")[0].id == old
        bob.flush_accesses()  # as the next write does: what is often found is known from then on
    bob._scratchpads.flush()
    assert "The staging password rotates on Fridays" in shown(bob)


def test_what_was_often_found_just_now_has_a_place_when_it_is_chosen_anew(bob: Memories) -> None:
    old = made(bob, "The staging password rotates on Fridays")
    bob.create_many([f"note number {at} on something else" for at in range(40)], force=True)
    bob._scratchpads.flush()
    for _ in range(4):
        assert (
            bob.search("staging password rotates")[0].id == old
        )  # counted with the next write, or before a choice
    bob.scratchpad(refresh=True)
    assert "The staging password rotates on Fridays" in shown(bob)


def test_what_was_often_used_long_ago_has_a_place_when_all_is_chosen_anew(bob: Memories) -> None:
    old = made(
        bob,
        "The staging password rotates on Fridays",
        created_at=datetime.now(UTC) - timedelta(days=9),
    )
    bob.create_many([f"note number {at} on something else" for at in range(130)], force=True)
    ref = next(each.ref for each in bob._lookup.own.versions(old))
    for _ in range(9):
        bob._store.touch([ref])
    bob._scratchpads.flush()
    assert "The staging password rotates on Fridays" not in shown(bob)
    bob.scratchpad(rebuild=True)
    assert "The staging password rotates on Fridays" in shown(bob)


@pytest.mark.parametrize("at_once", [7, 230])
def test_of_many_new_ones_the_newest_have_a_place_and_what_a_session_left_keeps_its_own(
    bob: Memories, at_once: int
) -> None:
    """Whether they come between two writes of the file in one transaction or in many."""
    made(bob, "the first", tags={"type": "session", "project": "web"})
    drafts = [Draft("what the session left", {"type": "session", "project": "shop"})]
    drafts += [Draft(f"fact number {number} of many") for number in range(230)]
    for begin in range(0, len(drafts), at_once):
        bob.create_many(drafts[begin : begin + at_once], force=True)
    bob._scratchpads.flush()
    newest = {each.content for each in bob.list(limit=bob.config.scratchpad_size).memories}
    assert {entry.content for entry in read(bob.config.home, "bob")} == newest | {
        "the first",
        "what the session left",
    }


def test_a_search_writes_no_file_for_what_has_no_right_to_a_place(bob: Memories) -> None:
    size = bob.config.scratchpad_size
    ferries = bob.create_many(
        [f"the ferry of pier {at} leaves at nine" for at in range(size)], force=True
    )
    ids = [str(each.id) for each in ferries]
    rare = made(bob, "The staging password rotates on Fridays")
    from memories.stores.records import Collection, Ref

    refs = [Ref(Collection.MEMORY, "bob", each, 1) for each in ids]
    bob._store.touch([ref for ref in refs for _ in range(9)])
    bob._store.touch([Ref(Collection.MEMORY, "bob", rare, 1)] * 5)
    bob.create_many([f"note number {at} on something else" for at in range(size)], force=True)
    bob._scratchpads.flush()
    bob.scratchpad(rebuild=True)
    assert not {"The staging password rotates on Fridays"} & {*shown(bob)}
    before = file_of(bob).stat().st_mtime_ns
    for _ in range(2):
        assert bob.search("staging password rotates")[0].id == rare
        bob._scratchpads.flush()
    assert file_of(bob).stat().st_mtime_ns == before


def test_the_first_change_makes_a_file_of_its_own_namespace(home: Path) -> None:
    place = scratchpad.Place(home, "bob", "store")
    scratchpad.change(place, (), {("gone", 1)}, make=True)
    assert scratchpad.load(home, "bob") is None
    scratchpad.change(place, [Entry("m", "the gate is open")], (), make=False)
    assert scratchpad.load(home, "bob") is None
    scratchpad.change(place, [Entry("m", "the gate is open")], (), make=True)
    made = scratchpad.load(home, "bob")
    assert made is not None
    assert (made.namespace, made.store, [entry.id for entry in made.entries]) == (
        "bob",
        "store",
        ["m"],
    )


def test_what_is_known_of_a_file_that_was_written_is_what_it_says(bob: Memories) -> None:
    for at in range(3):
        made(
            bob,
            f'note "{at}" of C:\\ — \u200b über',
            tags={"type": "fact"},
            decay="contextual",
            confidence=0.5 + at / 10,
        )
    bob.pin(made(bob, "x" * 3_000, key="a/b"))
    made(bob, "Turn off the heating before leaving")
    place = bob._scratchpads.place("bob")
    known, said = scratchpad.last_read(place), scratchpad.load(place.home, "bob")
    assert known is not None
    assert said is not None
    assert len(said.entries) == 5
    entries = tuple(entry._replace(namespace="") for entry in known.entries)
    assert known._replace(entries=entries, spans=()) == said._replace(spans=())
    edit(bob, "Turn off the heating", "Turn on the heating")
    known = scratchpad.last_read(place)
    assert known is not None
    assert known.edited


# --- pins
# ------------------------------------------------------------------------------------------------------------


def test_a_pin_is_in_the_store_and_is_no_tag(bob: Memories) -> None:
    name = made(bob, "The user prefers tabs", tags={"type": "preference"})
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


def test_a_pin_leaves_who_accepted_a_memory(bob: Memories) -> None:
    name = made(bob, "waits", pending=True)
    bob.review.accept([name])
    accepted = bob.get(name)
    assert accepted.accepted_at is not None
    assert bob.pin(name).accepted_at == accepted.accepted_at


def test_at_most_fifty_are_pinned(bob: Memories) -> None:
    names = [
        str(each.id)
        for each in bob.create_many([f"statement number {at}" for at in range(51)], force=True)
    ]
    for name in names[:50]:
        bob.pin(name)
    with pytest.raises(RequestError, match="50 memories are pinned"):
        bob.pin(names[50])
    assert sum(entry.pinned for entry in bob.scratchpad().entries) == 50


# --- what must leave it
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoiled", ["as it is", "edited", "broken"])
def test_what_is_forgotten_leaves_no_byte(bob: Memories, spoiled: str) -> None:
    name, other = made(bob, "xyzzy is the secret word"), made(bob, "remains")
    bob.pin(name)
    if spoiled == "edited":
        edit(bob, "remains", "remains here")
    if spoiled == "broken":
        edit(bob, "memories:", "memories: [}")
    bob.forget(name)
    data = b"".join(file.read_bytes() for file in file_of(bob).parent.iterdir())
    assert b"xyzzy" not in data
    assert other.encode() in data
    if spoiled == "edited":
        assert shown(bob) == ["remains here"]


def test_what_was_replaced_while_a_person_edited_it_just_leaves(bob: Memories) -> None:
    old = made(bob, "The port is 80")
    made(bob, "Rain is expected")
    bob._scratchpads.flush()
    open_in_an_editor = file_of(bob).read_text(encoding="utf-8")
    bob.create("Ports are chosen at random", supersedes=old)
    bob._scratchpads.flush()
    file_of(bob).write_text(
        open_in_an_editor.replace("Rain is", "Snow is").replace("port is 80", "port is 8080"),
        encoding="utf-8",
    )
    found = bob.scratchpad()
    assert found.notes == ()
    assert {entry.content for entry in found.entries} == {
        "Snow is expected",
        "Ports are chosen at random",
    }


@pytest.mark.parametrize("how", ["delete", "supersede", "update", "correct"])
def test_what_is_no_longer_current_leaves_at_once(bob: Memories, how: str) -> None:
    name = made(bob, "The deploy day is Tuesday", key="deploy/day")
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


def test_what_was_undone_is_not_in_it(bob: Memories) -> None:
    made(bob, "first")
    with pytest.raises(RuntimeError), bob.transaction():
        bob.create("never stored")
        raise RuntimeError
    bob._scratchpads.flush()
    assert "never stored" not in file_of(bob).read_text()


def test_a_late_message_brings_nothing_deleted_back(bob: Memories) -> None:
    from memories.scratchpad import scratchpad

    made(bob, "stays")
    name = made(bob, "is gone")
    entry = next(each for each in read(bob.config.home, "bob") if each.id == name)
    bob.delete(name)
    scratchpad.change(bob._scratchpads.place("bob"), [entry], [], make=False)
    assert [each.content for each in read(bob.config.home, "bob")] == ["stays"]


def test_if_it_cannot_be_taken_out_forget_says_so(
    bob: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memories.scratchpad import scratchpad

    name = made(bob, "xyzzy")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scratchpad, "replace", full)
    with pytest.raises(Exception, match=r"still shows a memory .*No space left on device"):
        bob.forget(name)
    assert bob.get(name).content == "xyzzy"


def test_nobody_changes_the_file_while_another_one_does(
    bob: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, place = made(bob, "stays"), bob._scratchpads.place("bob")
    before = file_of(bob).read_text()
    monkeypatch.setattr(scratchpad, "_WAIT_SECONDS", 0)
    with scratchpad.alone(place), pytest.raises(StoreBusy, match="another process kept"):
        scratchpad.change(place, [], [(name, 1)], make=False)
    assert file_of(bob).read_text() == before


def test_eight_writers_at_once_lose_nothing(bob: Memories, home: Path) -> None:
    made(bob, "first")
    script = "import sys\nfrom memories import Memories\nwith Memories(namespace='bob', embedder='none') as m:\n"
    script += "    m.create(f'writer {sys.argv[1]} wrote this', force=True)\n"
    together(script, [[at] for at in range(8)], environment=os.environ, folder=home.parent)
    assert len(bob.scratchpad().entries) == 9
    assert not layout.is_edited(file_of(bob).read_text())


# --- what a person writes
# --------------------------------------------------------------------------------------------


def test_a_changed_content_is_a_version(bob: Memories) -> None:
    name = made(bob, "The user prefers tabs")
    edit(bob, "prefers tabs", "prefers spaces, key ghp_abcdefghijklmnopqrstuvwxyz0123456789")
    found = bob.scratchpad()
    assert found.notes == ()
    memory = bob.get(name)
    assert memory.version == 2
    assert len(memory.redacted) == 1
    assert memory.content.startswith("The user prefers spaces")
    assert "ghp_abc" not in file_of(bob).read_text()
    assert memory.origin is not None
    assert memory.origin.trust == "agent"
    assert bob.scratchpad() == found._replace(taken=())
    assert bob.get(name).version == 2


ADDED = [
    '- "A new fact"',
    "- A new fact",
    "- content: A new fact",
    "- content: |\n    A new fact",
    "- 'A new fact'",
    "- >-\n  A new\n  fact",
]


@pytest.mark.parametrize("line", ADDED)
def test_an_added_line_is_a_memory(bob: Memories, line: str) -> None:
    made(bob, "The user prefers tabs")
    edit(bob, "memories:\n", f"memories:\n{line}\n")
    assert bob.edits() == ()
    [added] = [each for each in bob.list().memories if each.version == 1 and "new" in each.content]
    assert added.content == "A new fact"
    assert added.origin is not None
    assert added.origin.trust == "agent"
    assert set(shown(bob)) == {"A new fact", "The user prefers tabs"}


@pytest.mark.parametrize("line", [*ADDED, "  - A new fact", "\n# mine\n- A new fact\n"])
def test_a_line_may_be_added_at_the_end_too(bob: Memories, line: str) -> None:
    made(bob, "The user prefers tabs")
    with file_of(bob).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    assert bob.edits() == ()
    assert set(shown(bob)) == {"A new fact", "The user prefers tabs"}
    with file_of(bob).open("a", encoding="utf-8") as file:
        file.write("- content: no\n  pinned: maybe\n- : [\n")
    [note] = bob.scratchpad().notes
    assert f"line {file_of(bob).read_text(encoding='utf-8').count(chr(10))}" in note


@pytest.mark.parametrize("line", ADDED)
def test_an_empty_one_takes_lines(bob: Memories, line: str) -> None:
    bob.delete(made(bob, "The user prefers tabs"))
    bob.scratchpad()
    edit(bob, "memories: []\n", f"memories: []\n{line}\n")
    assert bob.edits() == ()
    assert shown(bob) == ["A new fact"]


def test_an_added_line_that_is_very_similar_is_kept_and_the_same_is_not_stored_twice(
    bob: Memories,
) -> None:
    made(bob, "The user likes to drink coffee in the morning")
    edit(
        bob,
        "memories:\n",
        "memories:\n- The user likes to drink coffee in the morning.\n- Something else\n- Something else\n",
    )
    assert bob.scratchpad().notes == ()
    assert len([each for each in bob.list().memories if each.content == "Something else"]) == 1


def test_a_removed_entry_is_left_out_and_unpinned_and_deletes_nothing(bob: Memories) -> None:
    name, other = made(bob, "out of sight"), made(bob, "stays")
    bob.pin(name)
    bob.scratchpad()
    edit(bob, block(bob, name), "")
    assert shown(bob) == ["stays"]
    assert not bob.get(name).pinned
    made(bob, "later")
    assert "out of sight" not in [entry.content for entry in bob.scratchpad(refresh=True).entries]
    assert bob.get(other).version == 1
    assert "out of sight" in [entry.content for entry in bob.scratchpad(rebuild=True).entries]


def test_pins_can_be_set_in_the_file(bob: Memories) -> None:
    name = made(bob, "The user prefers tabs")
    edit(bob, "pinned: false", "pinned: yes")
    bob.edits()
    assert bob.get(name).pinned
    edit(bob, "pinned: true", "pinned: false")
    bob.edits()
    assert not bob.get(name).pinned


def test_an_old_copy_that_is_saved_takes_nothing_out_that_came_meanwhile(bob: Memories) -> None:
    name = made(bob, "The user prefers tabs")
    copy = file_of(bob).read_text()
    other = made(bob, "came meanwhile")
    bob.update(name, "The user prefers two spaces")
    file_of(bob).write_text(copy.replace("prefers tabs", "prefers four spaces"))
    assert bob.scratchpad().notes == ()
    assert bob.get(name).content == "The user prefers four spaces"
    assert [each.content for each in bob.history(name).versions][1] == "The user prefers two spaces"
    assert bob.get(other).content in shown(bob)


@pytest.mark.parametrize("how", ["created", "deleted", "refreshed"])
def test_what_is_saved_while_a_program_writes_is_not_lost(
    bob: Memories, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = made(bob, "Ann sails")
    file, saved = file_of(bob), []
    real = scratchpad.render

    def slow(pad: layout.Pad) -> str:
        if not saved:
            saved.append(True)
            edit(bob, "memories:\n", 'memories:\n- "Bob rows"\n')
        return real(pad)

    monkeypatch.setattr(scratchpad, "render", slow)
    if how == "created":
        made(bob, "Eve swims")
    elif how == "deleted":
        bob.delete(first)
        assert "Ann sails" not in file.read_text(encoding="utf-8")
    else:
        bob.scratchpad(refresh=True)
    assert saved
    assert "Bob rows" in shown(bob)
    assert "Bob rows" in [each.content for each in bob.list().memories]


def test_a_file_that_is_saved_again_and_again_ends_in_a_sentence(
    bob: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(bob, "Ann sails")
    counted = itertools.count()
    monkeypatch.setattr("memories.scratchpad.scratchpad.seen", lambda _: (next(counted), 0, 0))
    with pytest.raises(StoreBusy, match="again and again"):
        bob.scratchpad(refresh=True)


def test_an_old_copy_that_is_saved_undoes_nothing_that_was_not_edited(bob: Memories) -> None:
    name = made(bob, "The user prefers tabs")
    copy = file_of(bob).read_text()
    bob.update(name, "The user prefers two spaces")
    file_of(bob).write_text(copy.replace("memories:\n", 'memories:\n- "one more"\n'))
    bob.edits()
    assert bob.get(name).content == "The user prefers two spaces"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("memories:\n", "memories: [}\n", "can't be read: .*line"),
        ("scratchpad: 1", "scratchpad: 2", "is no scratchpad of this program"),
        ("- id:", "- &a id:", "can't be read"),
        ("memories:\n", "bomb: &a [x]\nother: [*a, *a]\nmemories:\n", "an anchor or an alias"),
        ("memories:\n", "memories:\n- !!python/object:os.system x\n", "a tag"),
        ("memories:\n", f"deep: {'[' * 5000}{']' * 5000}\nmemories:\n", "too many levels"),
        ("memories:\n", "memories:\n- note: no content\n", "has no content"),
        ("memories:\n", "namespace: again\nmemories:\n", "a key twice"),
        ('content: "The', 'content: "\x07The', "can't be read"),
        ("pinned: false", "pinned: perhaps", "neither true nor false"),
        ("namespace: \"bob\"", "namespace: \"alice\"", "is not the scratchpad of bob"),
    ],
)  # fmt: skip
def test_a_broken_file_is_told_and_left_as_it_is(
    bob: Memories, old: str, new: str, told: str
) -> None:
    made(bob, "The user prefers tabs")
    edit(bob, old, new)
    before = file_of(bob).read_bytes()
    found = bob.scratchpad()
    assert [entry.content for entry in found.entries] == ["The user prefers tabs"]
    [note] = found.notes
    import re

    assert re.search(told, note, re.DOTALL), note
    assert "\n" not in note
    with pytest.raises(InvalidInput):
        bob.scratchpad(rebuild=True)
    made(bob, "another one")
    assert file_of(bob).read_bytes() == before
    file_of(bob).unlink()
    assert set(shown(bob)) == {"The user prefers tabs", "another one"}


def test_an_id_of_another_namespace_reaches_nothing(bob: Memories) -> None:
    made(bob, "bobs")
    with Memories(namespace="alice") as alice, Memories() as everybody:
        theirs, all_ours = made(alice, "alices"), made(everybody, "for all")
        for name in (theirs, all_ours):
            edit(
                bob,
                "memories:\n",
                f"memories:\n- id: {name}\n  content: taken over\n  pinned: true\n",
            )
        found = bob.scratchpad()
        assert len(found.notes) == 2
        assert all("there is no memory" in note and "line" in note for note in found.notes)
        assert (alice.get(theirs).content, everybody.get(all_ours).content) == ("alices", "for all")
        assert (alice.get(theirs).version, everybody.get(all_ours).version) == (1, 1)


def test_two_entries_with_one_id_are_refused(bob: Memories) -> None:
    name = made(bob, "The user prefers tabs")
    edit(bob, "memories:\n", f"memories:\n- id: {name}\n  content: other\n")
    assert "two entries with the id" in bob.scratchpad().notes[0]
    assert bob.get(name).version == 1


def test_a_beginning_cannot_be_edited_and_nothing_is_cut(bob: Memories) -> None:
    name = made(bob, "beginning " + "x" * 3_000)
    edit(bob, "beginning ", "changed ")
    assert "only its beginning is shown" in bob.scratchpad().notes[0]
    assert bob.get(name).content == "beginning " + "x" * 3_000


@pytest.mark.parametrize("what", ["link", "folder link", "pipe", "large", "latin", "open"])
def test_hostile_files_are_not_read(bob: Memories, what: str, tmp_path: Path) -> None:
    made(bob, "The user prefers tabs")
    file = file_of(bob)
    if what == "link":
        file.rename(tmp_path / "elsewhere.yaml")
        file.symlink_to(tmp_path / "elsewhere.yaml")
    elif what == "folder link":
        file.parent.rename(tmp_path / "elsewhere")
        file.parent.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        file.unlink()
        os.mkfifo(file)
    elif what == "large":
        file.write_text(file.read_text() + "# " + "x" * 300_000)
    elif what == "latin":
        file.write_bytes(file.read_bytes() + b"# \xff\n")
    else:
        file.chmod(0o666)
    with pytest.raises(InvalidInput, match=r"scratchpad\.yaml|symbolic link"):
        read(bob.config.home, "bob")
    found = bob.scratchpad()
    assert [entry.content for entry in found.entries] == ["The user prefers tabs"]
    assert len(found.notes) == 1


def test_an_empty_file_is_made_anew(bob: Memories) -> None:
    made(bob, "The user prefers tabs")
    file_of(bob).write_bytes(b"\0" * 512)
    assert shown(bob) == ["The user prefers tabs"]


def test_windows_line_ends_and_a_byte_order_mark_are_read(bob: Memories) -> None:
    name = made(bob, "The user prefers tabs")
    text = file_of(bob).read_text().replace("prefers tabs", "prefers spaces").replace("\n", "\r\n")
    file_of(bob).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert bob.scratchpad().notes == ()
    assert bob.get(name).content == "The user prefers spaces"


# --- which store
# -----------------------------------------------------------------------------------------------------


def test_a_store_that_is_passed_in_has_no_file(home: Path, tmp_path: Path) -> None:
    from memories.stores import open_store

    store = open_store(f"sqlite:///{tmp_path}/x.db", None)
    with Memories(store, namespace="bob", embedder="none") as memories:
        memories.create("The user prefers tabs")
        assert [entry.content for entry in memories.scratchpad().entries] == [
            "The user prefers tabs"
        ]
    assert list(home.rglob("scratchpad*")) == []


def test_another_store_does_not_take_the_file(bob: Memories, tmp_path: Path) -> None:
    made(bob, "The user prefers tabs")
    before = file_of(bob).read_bytes()
    with Memories(f"sqlite:///{tmp_path}/x.db", namespace="bob", embedder="none") as other:
        other.create("something else")
        assert [entry.content for entry in other.scratchpad().entries] == ["something else"]
    assert b"something else" not in file_of(bob).read_bytes()
    assert shown(bob) == ["The user prefers tabs"]
    assert before.count(b"- id") == 1


def test_a_store_that_took_the_place_of_another_one_is_looked_at(
    bob: Memories, tmp_path: Path
) -> None:
    made(bob, "The user prefers tabs")
    bob.scratchpad()
    bob.close()
    config = load_config()
    for file in config.home.glob("memories.db*"):
        file.rename(tmp_path / file.name)
    with Memories(namespace="bob") as fresh:
        with pytest.raises(Exception, match=r"memories\.db is missing"):
            fresh.scratchpad()
        made(fresh, "a new beginning")
        assert shown(fresh) == ["a new beginning"]


def test_json_is_what_the_file_holds(bob: Memories) -> None:
    made(bob, "The user prefers tabs")
    line = next(
        row for row in file_of(bob).read_text().splitlines() if row.startswith("  content: ")
    )
    assert json.loads(line.partition(": ")[2]) == "The user prefers tabs"


def test_a_search_asks_the_file_only_where_its_caller_lets_it(
    bob: Memories, tmp_path: Path
) -> None:
    made(bob, "The user prefers tabs")
    bob.scratchpad()
    bob.close()
    for file in bob.config.home.glob("memories.db*"):
        file.rename(tmp_path / file.name)
    with Memories(namespace="bob") as fresh:
        assert fresh.search("tabs") == ()
        found = fresh.explain("tabs", offline=True)
        assert [hit.content for hit in found.hits] == ["The user prefers tabs"]
        assert found.tier == "hot"
        assert "memories.db is missing" in found.error
        with pytest.raises(StoreError, match=r"memories\.db is missing"):
            fresh.explain(
                "tabs", offline=True, as_of="2024-05-01"
            )  # which only the store can answer
