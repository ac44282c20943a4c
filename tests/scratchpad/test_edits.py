"""A user's edits of the file are applied, or kept in a copy; unsafe files are not read."""

import itertools
import os
import re
from pathlib import Path

import pytest

from memories import InvalidInput, Memories, StoreBusy
from memories.scratchpad import file, layout
from memories.scratchpad.text import is_edited
from scratchpad.conftest import contents, edit, file_of, lines_of, store

ADDED = [
    '- "A new fact"',
    "- A new fact",
    "- content: A new fact",
    "- content: |-\n    A new fact",
    "- 'A new fact'",
    "- >-\n  A new\n  fact",
]


def copies_of(memories: Memories) -> list[Path]:
    """Return the files with edits that could not be applied."""
    return sorted(file_of(memories).parent.glob("scratchpad.edited*"))


# --- edits that are applied


def test_changed_content_becomes_a_new_version(bob: Memories) -> None:
    name = store(bob, "The user prefers tabs")
    edit(bob, "prefers tabs", "prefers spaces, key ghp_abcdefghijklmnopqrstuvwxyz0123456789")
    scratchpad = bob.scratchpad()
    assert scratchpad.notes == ()
    memory = bob.get(name)
    assert memory.version == 2
    assert len(memory.redacted) == 1
    assert memory.content.startswith("The user prefers spaces")
    assert "ghp_abc" not in file_of(bob).read_text()
    assert memory.origin is not None
    assert memory.origin.trust == "agent"
    assert bob.scratchpad() == scratchpad._replace(taken=())
    assert bob.get(name).version == 2


@pytest.mark.parametrize("kind", ["changed", "added"])
def test_an_edit_that_ends_a_correction_names_the_memory_that_is_current_again(
    bob: Memories, kind: str
) -> None:
    older = store(bob, "The API listens on port 8080")
    newer = bob.create("The API listens on port 9090", key="api/port").memory
    assert newer is not None
    assert newer.corrects == older
    bob.scratchpad(refresh=True)
    if kind == "changed":
        edit(bob, "The API listens on port 9090", "Deploys happen on Tuesdays")
    else:
        line = "- content: Deploys happen on Tuesdays\n  key: api/port"
        edit(bob, "memories:\n", f"memories:\n{line}\n")
    outcome, sentence = bob.apply_edits()
    outcomes = [f"memory {newer.id} {verb}" for verb in ("now has version 2", "was stored")]
    assert outcome in [f"scratchpad: {each}" for each in outcomes]
    assert sentence == f"scratchpad: memory {older} is current again"
    assert bob.get(older).corrected_by is None


@pytest.mark.parametrize("line", ADDED)
def test_an_added_line_becomes_a_memory(bob: Memories, line: str) -> None:
    store(bob, "The user prefers tabs")
    edit(bob, "memories:\n", f"memories:\n{line}\n")
    [outcome] = bob.apply_edits()
    [added] = [
        memory for memory in bob.list().memories if memory.version == 1 and "new" in memory.content
    ]
    assert (added.content, outcome) == (
        "A new fact",
        f"scratchpad: memory {added.id} was stored",
    )
    assert added.origin is not None
    assert added.origin.trust == "agent"
    assert set(contents(bob)) == {"A new fact", "The user prefers tabs"}


@pytest.mark.parametrize("line", [*ADDED, "\n# mine\n- A new fact\n"])
def test_a_line_may_be_added_at_the_end(bob: Memories, line: str) -> None:
    store(bob, "The user prefers tabs")
    with file_of(bob).open("a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")
    assert len(bob.apply_edits()) == 1
    assert set(contents(bob)) == {"A new fact", "The user prefers tabs"}
    with file_of(bob).open("a", encoding="utf-8") as stream:
        stream.write("- content: no\n  pinned: maybe\n- : [\n")
    line_count = file_of(bob).read_text(encoding="utf-8").count("\n")
    [note] = bob.scratchpad().notes
    assert f"line {line_count}" in note


@pytest.mark.parametrize("line", ADDED)
def test_lines_may_be_added_to_an_empty_scratchpad(bob: Memories, line: str) -> None:
    bob.delete(store(bob, "The user prefers tabs"))
    bob.scratchpad()
    edit(bob, "memories:\n", f"memories:\n{line}\n")
    assert len(bob.apply_edits()) == 1
    assert contents(bob) == ["A new fact"]


def test_an_added_line_that_resembles_a_memory_is_stored_only_once(
    bob: Memories,
) -> None:
    store(bob, "The user likes to drink coffee in the morning")
    edit(
        bob,
        "memories:\n",
        "memories:\n- The user likes to drink coffee in the morning.\n- Something else\n"
        "- Something else\n",
    )
    assert bob.scratchpad().notes == ()
    assert (
        len([memory for memory in bob.list().memories if memory.content == "Something else"]) == 1
    )


def test_a_removed_entry_is_hidden_and_unpinned_but_not_deleted(bob: Memories) -> None:
    name, other = store(bob, "out of sight"), store(bob, "stays")
    bob.pin(name)
    bob.scratchpad()
    edit(bob, lines_of(bob, name), "")
    assert contents(bob) == ["stays"]
    assert not bob.get(name).pinned
    store(bob, "later")
    assert "out of sight" not in [entry.content for entry in bob.scratchpad(refresh=True).entries]
    assert bob.get(other).version == 1
    assert "out of sight" in [entry.content for entry in bob.scratchpad(rebuild=True).entries]


@pytest.mark.parametrize("is_removed_first", [True, False])
def test_a_removed_entry_whose_text_is_added_again_is_shown(
    bob: Memories, is_removed_first: bool
) -> None:
    name = store(bob, "The user prefers tabs")
    bob.scratchpad(refresh=True)
    if is_removed_first:
        edit(bob, lines_of(bob, name), "")
        assert contents(bob) == []
        edit(bob, "memories:\n", "memories:\n- The user prefers tabs\n")
    else:
        edit(bob, lines_of(bob, name), "- The user prefers tabs\n")
    assert bob.apply_edits() == (f"scratchpad: memory {name} is already stored",)
    assert contents(bob) == ["The user prefers tabs"]
    assert [entry.id for entry in bob.scratchpad(refresh=True).entries] == [name]


def test_pins_can_be_set_in_the_file(bob: Memories) -> None:
    name = store(bob, "The user prefers tabs")
    edit(bob, "pinned: false", "pinned: yes")
    bob.apply_edits()
    assert bob.get(name).pinned
    edit(bob, "pinned: true", "pinned: false")
    bob.apply_edits()
    assert not bob.get(name).pinned


def test_saving_an_old_copy_removes_no_newer_memory(bob: Memories) -> None:
    name = store(bob, "The user prefers tabs")
    copy = file_of(bob).read_text()
    other = store(bob, "came meanwhile")
    bob.update(name, "The user prefers two spaces")
    file_of(bob).write_text(copy.replace("prefers tabs", "prefers four spaces"))
    assert bob.scratchpad().notes == ()
    assert bob.get(name).content == "The user prefers four spaces"
    assert [memory.content for memory in bob.history(name).versions][
        1
    ] == "The user prefers two spaces"
    assert bob.get(other).content in contents(bob)


def test_saving_an_old_copy_reverts_no_unedited_entry(bob: Memories) -> None:
    name = store(bob, "The user prefers tabs")
    copy = file_of(bob).read_text()
    bob.update(name, "The user prefers two spaces")
    file_of(bob).write_text(copy.replace("memories:\n", 'memories:\n- "one more"\n'))
    bob.apply_edits()
    assert bob.get(name).content == "The user prefers two spaces"


@pytest.mark.parametrize("how", ["created", "deleted", "refreshed"])
def test_an_edit_saved_while_a_program_writes_is_not_lost(
    bob: Memories, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = store(bob, "Ann sails")
    saved = []
    real = file.render

    def slow(pad: layout.Pad) -> str:
        if not saved:
            saved.append(True)
            edit(bob, "memories:\n", 'memories:\n- "Bob rows"\n')
        return real(pad)

    monkeypatch.setattr(file, "render", slow)
    if how == "created":
        store(bob, "Eve swims")
    elif how == "deleted":
        bob.delete(first)
        assert "Ann sails" not in file_of(bob).read_text(encoding="utf-8")
    else:
        bob.scratchpad(refresh=True)
    assert saved
    assert "Bob rows" in contents(bob)
    assert "Bob rows" in [memory.content for memory in bob.list().memories]


def test_a_file_that_is_saved_again_and_again_raises_an_error(
    bob: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(bob, "Ann sails")
    counter = itertools.count()
    monkeypatch.setattr(file, "fingerprint", lambda _: (next(counter), 0, 0))
    with pytest.raises(StoreBusy, match="keeps saving"):
        bob.scratchpad(refresh=True)


def test_windows_line_endings_and_a_byte_order_mark_are_accepted(bob: Memories) -> None:
    name = store(bob, "The user prefers tabs")
    text = file_of(bob).read_text().replace("prefers tabs", "prefers spaces").replace("\n", "\r\n")
    file_of(bob).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert bob.scratchpad().notes == ()
    assert bob.get(name).content == "The user prefers spaces"


def test_the_commands_at_the_top_of_the_file_name_its_namespace(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    text = file_of(bob).read_text()
    assert "memory scratchpad edit -n bob\n" in text
    assert "memory scratchpad rebuild -n bob\n" in text


# --- edits that are kept in a copy


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("memories:\n", "memories: [}\n", "can't be read: .*line"),
        ("memories:\n", "memories: none\nmine:\n", "memories isn't a list"),
        ("memories:\n", "memory:\n", 'it has no "memories:" line'),
        ("scratchpad: 1", "scratchpad: 2", "is not a scratchpad of this program"),
        pytest.param(
            "memories:\n", f"deep: {'[' * 1000}{']' * 1000}\nmemories:\n", "nested too deeply",
            marks=pytest.mark.thorough,
        ),
        ("memories:\n", "memories:\n- note: no content\n", "without content"),
        ("memories:\n", "memories:\n  - indented differently\n", "can't be read"),
        ("memories:\n", "namespace: again\nmemories:\n", "a key occurs twice"),
        ('content: "The', 'content: "\x07The', "can't be read"),
        ("pinned: false", "pinned: perhaps", "neither true nor false"),
        ("namespace: \"bob\"", "namespace: \"alice\"", "is not the scratchpad of bob"),
    ],
)  # fmt: skip
def test_an_unreadable_file_is_copied_and_rewritten(
    bob: Memories, old: str, new: str, reason: str
) -> None:
    store(bob, "The user prefers tabs")
    edit(bob, old, new)
    before = file_of(bob).read_bytes()
    store(bob, "another one")
    assert file_of(bob).read_bytes() == before
    scratchpad = bob.scratchpad()
    assert {entry.content for entry in scratchpad.entries} == {
        "The user prefers tabs",
        "another one",
    }
    [note] = scratchpad.notes
    [copy] = copies_of(bob)
    assert re.search(reason, note, re.DOTALL), note
    assert str(copy) in note
    assert "\n" not in note
    assert copy.read_bytes() == before
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not is_edited(file_of(bob).read_text())
    assert str(copy) in bob.scratchpad().notes[0]
    copy.unlink()
    assert bob.scratchpad().notes == ()


def test_a_second_copy_does_not_replace_the_first(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    for number in range(3):
        edit(bob, "memories:\n", f"memories: [}} # {number}\n")
        assert len(bob.apply_edits()) == 1
    texts = [copy.read_text() for copy in copies_of(bob)]
    assert sorted(re.findall(r"\} # (\d)", "".join(texts))) == ["0", "1", "2"]


def test_the_same_text_is_copied_only_once(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    edit(bob, "memories:\n", "memories: [}\n")
    text = file_of(bob).read_text()
    for _ in range(2):
        file_of(bob).write_text(text)
        assert len(bob.apply_edits()) == 1
    assert [copy.read_text() for copy in copies_of(bob)] == [text]


def test_an_edited_file_of_another_store_is_copied_but_not_applied(
    bob: Memories, home: Path
) -> None:
    store(bob, "The user prefers tabs")
    edit(bob, "memories.db", "elsewhere.db")
    edit(bob, "memories:\n", "memories:\n- A new fact\n")
    [note] = bob.apply_edits()
    assert "belongs to the store sqlite:" in note
    assert [copy.read_text().count("A new fact") for copy in copies_of(bob)] == [1]
    assert contents(bob) == ["The user prefers tabs"]


def test_yaml_anchors_aliases_and_tags_are_only_text(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    bomb = "".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 60))
    edit(bob, "memories:\n", f"b0: &b0 [x]\n{bomb}memories:\n- !!python/object:os.system x\n")
    assert len(bob.apply_edits()) == 1
    assert set(contents(bob)) == {"The user prefers tabs", "x"}
    edit(bob, "memories:\n", f"b0: &b0 [x]\n{bomb}memories:\n- content: *b59\n")
    [note] = bob.apply_edits()
    assert "without content" in note
    assert len(note) < 500


def test_an_edit_cannot_change_a_memory_of_another_namespace(bob: Memories) -> None:
    store(bob, "bobs")
    with Memories(namespace="alice") as alice, Memories() as everybody:
        theirs, all_ours = store(alice, "alices"), store(everybody, "for all")
        for name in (theirs, all_ours):
            edit(
                bob,
                "memories:\n",
                f"memories:\n- id: {name}\n  content: taken over\n  pinned: true\n",
            )
        edit(bob, "memories:\n", "memories:\n- A new fact\n")
        [note] = bob.scratchpad().notes
        assert note.count("there is no memory") == 2
        [copy] = copies_of(bob)
        assert copy.read_text().count("taken over") == 2
        assert "A new fact" not in copy.read_text()
        assert (alice.get(theirs).content, everybody.get(all_ours).content) == ("alices", "for all")
        assert (alice.get(theirs).version, everybody.get(all_ours).version) == (1, 1)
    assert set(contents(bob)) == {"bobs", "A new fact", "for all"}


def test_two_entries_with_one_id_are_refused(bob: Memories) -> None:
    name = store(bob, "The user prefers tabs")
    edit(bob, "memories:\n", f"memories:\n- id: {name}\n  content: other\n")
    assert "two entries with the id" in bob.scratchpad().notes[0]
    assert bob.get(name).version == 1


def test_the_beginning_of_a_long_memory_cannot_be_edited(bob: Memories) -> None:
    name = store(bob, "beginning " + "x" * 3_000)
    edit(bob, "beginning ", "changed ")
    assert "shows only the beginning of the memory" in bob.scratchpad().notes[0]
    assert bob.get(name).content == "beginning " + "x" * 3_000
    assert "changed xxx" in copies_of(bob)[0].read_text()


@pytest.mark.parametrize("how", ["unreadable", "refused"])
def test_a_forgotten_memory_is_removed_from_the_copies_too(bob: Memories, how: str) -> None:
    name, other = store(bob, "xyzzy " + "x" * 3_000), store(bob, "remains")
    edit(bob, "xyzzy ", "xyzzy changed ")
    if how == "unreadable":
        edit(bob, "memories:\n", "memories: [}\n")
    bob.apply_edits()
    [copy] = copies_of(bob)
    assert "xyzzy" in copy.read_text()
    bob.forget(name)
    data = b"".join(path.read_bytes() for path in file_of(bob).parent.iterdir())
    assert b"xyzzy" not in data
    assert (other in copy.read_text()) == (how == "unreadable")


def test_copies_follow_a_rename(bob: Memories, home: Path) -> None:
    from memories.identity import namespaces

    store(bob, "The user prefers tabs")
    edit(bob, "memories:\n", "memories: [}\n")
    bob.apply_edits()
    namespaces.move(bob._store, bob.config, "bob", "robert", merge=False)
    assert [copy.name for copy in (home / "robert").glob("scratchpad.edited*")] == [
        "scratchpad.edited.yaml"
    ]


@pytest.mark.parametrize("what", ["link", "folder link", "pipe", "large", "latin", "open"])
def test_unsafe_files_are_not_read(bob: Memories, what: str, tmp_path: Path) -> None:
    store(bob, "The user prefers tabs")
    path = file_of(bob)
    if what == "link":
        path.rename(tmp_path / "elsewhere.yaml")
        path.symlink_to(tmp_path / "elsewhere.yaml")
    elif what == "folder link":
        path.parent.rename(tmp_path / "elsewhere")
        path.parent.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif what == "large":
        path.write_text(path.read_text() + "# " + "x" * 300_000)
    elif what == "latin":
        path.write_bytes(path.read_bytes() + b"# \xff\n")
    else:
        path.chmod(0o666)
    with pytest.raises(InvalidInput, match=r"scratchpad\.yaml|symbolic link"):
        file.load(bob.config.home, "bob")
    scratchpad = bob.scratchpad()
    assert [entry.content for entry in scratchpad.entries] == ["The user prefers tabs"]
    assert len(scratchpad.notes) == 1
    with pytest.raises(InvalidInput):
        bob.scratchpad(rebuild=True)
    assert os.path.lexists(path)


def test_an_empty_file_is_rewritten(bob: Memories) -> None:
    store(bob, "The user prefers tabs")
    file_of(bob).write_bytes(b"\0" * 512)
    assert contents(bob) == ["The user prefers tabs"]
