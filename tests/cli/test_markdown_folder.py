"""`memory export --markdown FOLDER` and its import: memories are unchanged, and edits become
versions.
"""

import contextlib
import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from memories import Draft, Memories
from memories.core.disk import replacing
from memories.transfer import bundle

Command = Callable[..., Any]
TEXTS = (
    "Deploys happen on Tuesdays.",
    "本番環境へのデプロイは木曜日です。\n二行目 👩‍👧",
    "Релиз — во вторник: «да».",
    "يعمل الخادم على المنفذ 8443.",
    "---\nkey: value\n---\n# not a heading of ours\n",
    "<!-- links -->\nCorrects [x](y)",
    "Tigers have stripes.\n\n<!-- links -->\nCorrects [x](y)",
    "  spaces around, \\ and \"quotes\"\ttab\x7f\u2028\ufeff",
)  # fmt: skip


@pytest.fixture
def filled(memory: Command) -> Iterator[Command]:
    """Memories with versions, tags, keys, a correction and a deleted one."""
    with Memories() as memories:
        ids = [memories.create(text).memory.id for text in TEXTS]
        memories.update(ids[0], "Deploys happen on Thursdays.", tags={"project": "shop"})
        memories.create("The port is 1.", key="port")
        memories.create("Deploys happen on Fridays.", supersedes=ids[0])
        memories.delete(ids[3])
    yield memory


def export_and_edit(memory: Command, folder: Path) -> None:
    """Export to a folder, and edit the text of the memory with the key `port` in it."""
    memory("export", "--markdown", str(folder))
    before, after = "\n\nThe port is 1.\n", "\n\nThe port is 2.\n"
    [file] = [file for file in folder.rglob("*.md") if before in file.read_text()]
    file.write_text(file.read_text().replace(before, after))


def test_an_exported_folder_is_imported_unchanged(
    filled: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "out")
    answer = filled("export", "--markdown", folder).json
    assert answer == {"exported": len(TEXTS) + 2, "output": folder}
    before = filled("export").out
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path / "other"))
    filled("import", folder, "--trusted")
    after = filled("export").out
    assert after.splitlines()[:-1] == before.splitlines()[:-1]


def assert_import_is_complete(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export everything to a folder, import it into an empty store, and compare the two stores."""
    folder = str(tmp_path / "out")
    memory("export", "--all-namespaces", "--markdown", folder)
    before = memory("export", "--all-namespaces").out
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path / "other"))
    answer = memory("import", folder, "--all-namespaces", "--trusted")
    assert answer.code == 0, answer.error
    assert memory("export", "--all-namespaces").out.splitlines()[:-1] == before.splitlines()[:-1]


@pytest.mark.parametrize("confidence", [0.00001, 1.5e-7])
def test_a_very_low_confidence_is_imported_unchanged(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confidence: float
) -> None:
    with Memories() as memories:
        memories.create("Perhaps it rains.", confidence=confidence, tags={"level": "1e-05"})
    assert_import_is_complete(memory, tmp_path, monkeypatch)


def test_a_folder_with_windows_line_endings_is_imported_unchanged(
    filled: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    filled("export", "--markdown", str(folder))
    before = filled("export").out
    for file in folder.rglob("*.md"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path / "other"))
    assert filled("import", str(folder), "--trusted").code == 0
    assert filled("export").out.splitlines()[:-1] == before.splitlines()[:-1]


@pytest.mark.parametrize("title", ["1e5 apples", "1e-05", "-1e5.", "1e"])
def test_a_title_may_begin_like_a_number(memory: Command, tmp_path: Path, title: str) -> None:
    folder = tmp_path / "out"
    memory("create", "The port is 1.")
    memory("export", "--markdown", str(folder))
    [file] = folder.rglob("the-port-*.md")
    file.write_text(file.read_text().replace('title: "The port is 1."', f"title: {title}"))
    assert memory("import", str(folder)).json["known"] == 1


@pytest.mark.parametrize("project", ["項目" * 50, "a b " * 60 + "c", "…"])
def test_a_project_with_any_name_is_exported(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    with Memories() as memories:
        memories.create("Deploys happen on Tuesdays.", tags={"project": project})
    assert_import_is_complete(memory, tmp_path, monkeypatch)


def test_copies_of_a_memory_in_similarly_named_namespaces_have_separate_files(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory("create", "Deploys happen on Tuesdays.", "-n", "a.b")
    for namespace in ("a-b", "a_b"):
        export = memory("export", "-n", "a.b", "--no-shared").out
        memory("import", "-", "--as", namespace, stdin=export)
    assert_import_is_complete(memory, tmp_path, monkeypatch)
    assert len(list((tmp_path / "out" / "a-b" / "notes").iterdir())) == 3


def test_memories_with_ids_from_another_program_have_their_own_files(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ("user1-notes-2026", "user2-notes-2026", "/../../../ab", "x\ny", "ü")
    lines = [
        {
            "collection": "memory", "namespace": "shared", "group": memory_id, "position": 1,
            "text": "Deploys happen on Tuesdays.", "created_at": "2026-01-02T10:00:00.000Z",
        }
        for memory_id in ids
    ]  # fmt: skip
    export = "\n".join(map(json.dumps, [{"format": "memories", "version": 1}, *lines]))
    memory("import", "-", "--trusted", stdin=export)
    memory("create", "The port is 1.")
    assert_import_is_complete(memory, tmp_path, monkeypatch)
    assert len(list((tmp_path / "out" / "shared" / "notes").iterdir())) == len(ids) + 1


def test_only_the_owner_can_open_the_folder(filled: Command, tmp_path: Path) -> None:
    filled("export", "--markdown", str(tmp_path / "new" / "out"))
    folders = [path for path in (tmp_path / "new").rglob("*") if path.is_dir()]
    assert len(folders) > 2
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new", *folders)} == {0o700}


@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_a_path_that_is_not_a_folder_is_refused(filled: Command, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "notes"
    if kind == "file":
        target.write_text("precious")
    else:
        target.symlink_to("missing")
    answer = filled("export", "--markdown", str(target))
    assert answer.code == 2
    assert answer.error.endswith(
        " is not a folder; name an empty or new folder, in which each memory becomes a file"
    )
    assert target.is_symlink() or target.read_text() == "precious"


@pytest.mark.thorough
def test_a_thousand_memories_are_imported_unchanged(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memories() as memories:
        drafts = [
            Draft(
                f"{TEXTS[number % len(TEXTS)]} {number}",
                {"project": f"shop {number % 7}", "区": f"値 {number}"} if number % 3 else {},
                key=f"key/{number}" if number % 4 == 0 else None,
                confidence=0.7 if number % 6 == 0 else None,
            )
            for number in range(1_000)
        ]
        ids = [created.memory.id for created in memories.create_many(drafts, force=True)]
        for number, memory_id in enumerate(ids):
            if number % 3 == 0:
                memories.update(memory_id, f"{TEXTS[(number + 1) % len(TEXTS)]} again {number}")
            if number % 11 == 1:
                memories.create(f"Instead of {number}", supersedes=memory_id, force=True)
            elif number % 13 == 2:
                memories.delete(memory_id)
            elif number % 17 == 3:
                memories.delete(memory_id)
                memories.restore(memory_id)
        for number in range(20):
            memories.create(f"The port of service {number} is 1.")
            assert memories.create(f"The port of service {number} is 2.").corrects

    folder = str(tmp_path / "out")
    memory("export", "--markdown", folder)
    before = memory("export").out
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path / "other"))
    memory("import", folder, "--trusted")
    assert memory("export").out.splitlines()[:-1] == before.splitlines()[:-1]
    assert memory("import", folder, "--trusted").json["imported"] == 0


def act_at_file(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Call a function while an export writes the file with this number."""
    files: list[Path] = []

    @contextlib.contextmanager
    def replacing_and_acting(path: Path) -> Iterator[IO[bytes]]:
        with replacing(path) as stream:
            files.append(path)
            if len(files) == number:
                act()
            yield stream

    monkeypatch.setattr(bundle, "replacing", replacing_and_acting)


@pytest.mark.parametrize("number", [1, 2, len(TEXTS) + 3])
def test_two_exports_into_a_new_folder_do_not_interfere(
    filled: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lines = filled("export").out.strip().split("\n")
    bundle.write(tmp_path / "single", lines)
    act_at_file(monkeypatch, number, lambda: bundle.write(tmp_path / "out", lines))
    bundle.write(tmp_path / "out", lines)
    assert bundle.read(tmp_path / "out") == bundle.read(tmp_path / "single")


@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupted_export_into_a_new_folder_can_be_repeated(
    filled: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="full"):
        act_at_file(patched, number, fail)
        bundle.write(tmp_path / "out", filled("export").out.strip().split("\n"))
    assert filled("export", "--markdown", str(tmp_path / "out")).code == 0


def test_files_are_valid_in_the_open_knowledge_format(filled: Command, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    filled("export", "--markdown", str(folder))
    for file in folder.rglob("*.md"):
        head = file.read_text().removeprefix("---\n").partition("\n---\n")[0]
        fields = yaml.safe_load(head)
        assert fields.get("type") or fields["okf_version"] == "0.2", file
    index = (folder / "index.md").read_text()
    assert all(file.name in index for file in folder.rglob("*.md") if file.name != "index.md")


def test_an_edited_text_becomes_a_version_and_its_difference_is_shown(
    filled: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    export_and_edit(filled, folder)

    preview = filled("import", str(folder), "--dry-run")
    assert (preview.json["edited"], preview.json["imported"]) == (1, 0)
    assert "-The port is 1.\n+The port is 2." in preview.err
    assert filled("get", "--key", "port").json["content"] == "The port is 1."

    refused = filled("import", str(folder))
    assert (refused.code, "add --yes to confirm" in refused.err) == (2, True)
    assert filled("get", "--key", "port").json["content"] == "The port is 1."

    assert filled("import", str(folder), "--yes").json["edited"] == 1
    memory = filled("get", "--key", "port").json
    assert (memory["content"], memory["version"]) == ("The port is 2.", 2)
    assert filled("import", str(folder)).json["edited"] == 0
    filled("export", "--markdown", str(folder))
    assert bundle.read(folder).edits == []


def test_the_link_of_a_correction_is_not_part_of_its_text(memory: Command, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    memory("create", "The API listens on port 5433")
    newer = memory("create", "The API listens on port 5434").json
    memory("export", "--markdown", str(folder))
    [file] = [file for file in folder.rglob("*.md") if "\nCorrects [" in file.read_text()]
    assert f"\nCorrects [{newer['corrects']}](the-api-" in file.read_text()
    assert memory("import", str(folder), "--dry-run").json["edited"] == 0
    file.write_text(file.read_text().replace("\nThe API listens on", "\nOur API listens on"))
    assert memory("import", str(folder), "--yes").json["edited"] == 1
    assert memory("get", newer["id"]).json["content"] == "Our API listens on port 5434"


def test_an_edit_in_any_imported_namespace_becomes_a_version(
    memory: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    memory("create", "The port is 1.", "--key", "port")
    memory("create", "The port is 1.", "--key", "port", "-n", "bob")
    memory("export", "--all-namespaces", "--markdown", str(folder))
    for file in folder.rglob("the-port-*.md"):
        file.write_text(file.read_text().replace("\n\nThe port is 1.", "\n\nThe port is 2."))
    preview = memory("import", str(folder), "--all-namespaces", "--dry-run")
    assert preview.json["edited"] == 2
    answer = memory("import", str(folder), "--all-namespaces", "--yes")
    assert (answer.code, answer.json["edited"], answer.json["conflict_count"]) == (0, 2, 0)
    for namespace in ("shared", "bob"):
        found = memory("get", "--key", "port", "-n", namespace).json
        assert (found["content"], found["version"]) == ("The port is 2.", 2)


def test_an_edit_that_changes_a_link_reports_it(memory: Command, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    older = memory("create", "The API listens on port 5433", "-n", "bob").json["id"]
    newer = memory("create", "The API listens on port 5434", "-n", "bob").json["id"]
    memory("export", "--all-namespaces", "--markdown", str(folder))
    [file] = [file for file in folder.rglob("*.md") if f'\nid: "{older}' in file.read_text()]
    file.write_text(
        file.read_text().replace(
            "\n\nThe API listens on port 5433", "\n\nThe API listens on port 5435"
        )
    )
    answer = memory("import", str(folder), "--all-namespaces", "--yes")
    assert answer.code == 0
    sentence = " ".join(answer.err.split())
    assert f"{older}: it is current again and corrects {newer}" in sentence
    assert f"run: memory confirm {newer} -n bob" in sentence


@pytest.mark.parametrize("how", ["before", "after"])
def test_an_edit_of_a_deleted_memory_is_not_applied(
    memory: Command, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "out"
    name = memory("create", "The API listens on port 5433", "-n", "bob").json["id"]
    if how == "before":
        memory("delete", name, "-n", "bob")
    memory("export", "-n", "bob", "--markdown", str(folder))
    if how == "after":
        memory("delete", name, "-n", "bob")
    [file] = [file for file in folder.rglob("*.md") if f'\nid: "{name}' in file.read_text()]
    file.write_text(file.read_text().replace("\n\nThe API listens on", "\n\nThe site uses"))
    answer = memory("import", str(folder), "-n", "bob", "--yes")
    assert (answer.code, answer.json["edited"], answer.json["conflict_count"]) == (0, 0, 0)
    sentence = " ".join(answer.err.split())
    assert f"{name} was left unchanged: it was deleted or replaced" in sentence
    assert f"memory restore {name} -n bob" in sentence
    memory("restore", name, "-n", "bob")
    again = memory("import", str(folder), "-n", "bob", "--yes")
    assert (again.code, again.json["edited"]) == (0, 1)
    assert memory("get", name, "-n", "bob").json["content"] == "The site uses port 5433"


def test_an_edit_of_a_memory_that_awaits_review_is_not_applied(
    memory: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    with Memories() as memories:
        memories.create("The port is 1.", pending=True)
        memories.create("Tigers have stripes.")
    memory("export", "--markdown", str(folder))
    for file in folder.rglob("*.md"):
        text = file.read_text().replace("\n\nThe port is 1.", "\n\nThe port is 2.")
        file.write_text(text.replace("\n\nTigers have", "\n\nAll tigers have"))
    answer = memory("import", str(folder), "--yes")
    assert (answer.code, answer.json["edited"]) == (0, 1)
    assert "it is waiting for review; to edit it, run: memory review edit" in " ".join(
        answer.err.split()
    )
    assert memory("review", "list").json["results"][0]["content"] == "The port is 1."


def test_an_edit_of_a_memory_that_changed_after_the_export_is_not_applied(
    filled: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    export_and_edit(filled, folder)
    memory_id = filled("get", "--key", "port").json["id"]
    filled("update", memory_id, "The port is 3.")
    answer = filled("import", str(folder))
    assert (
        answer.json["edited"],
        "have changed since the export" in " ".join(answer.err.split()),
    ) == (0, True)
    assert filled("get", "--key", "port").json["content"] == "The port is 3."


def test_edits_and_unrelated_files_are_not_overwritten(filled: Command, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    filled("export", "--markdown", str(folder))
    file = next(iter(folder.rglob("*deploys-happen-on-fridays*.md")))
    file.write_text(file.read_text().replace("Fridays.\n", "Sundays.\n"))
    refused = filled("export", "--markdown", str(folder))
    assert (refused.code, "import the edits first" in refused.error) == (2, True)

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.md").write_text("Mine.")
    refused = filled("export", "--markdown", str(other))
    assert (refused.code, "files from another program" in refused.error) == (2, True)
    assert [path.name for path in other.iterdir()] == ["thesis.md"]


def test_other_files_next_to_an_export_stay(filled: Command, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    filled("export", "--markdown", str(folder))
    (folder / "README").write_text("Mine.")
    assert filled("export", "--markdown", str(folder)).code == 0
    assert (folder / "README").read_text() == "Mine."
    (folder / "thesis.md").write_text("Mine.")
    refused = filled("export", "--markdown", str(folder))
    assert (refused.code, "thesis.md has no frontmatter" in refused.error) == (2, True)
    assert "move the file out of the folder" in refused.error


def test_the_file_of_a_forgotten_memory_is_removed(filled: Command, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    filled("export", "--markdown", str(folder))
    filled("forget", "--key", "port", "--yes")
    filled("export", "--markdown", str(folder))
    assert not [file for file in folder.rglob("*.md") if "The port is" in file.read_text()]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda text: text.replace("---\n", "", 1), "no frontmatter"),
        (lambda text: text.replace("versions:", "versions: 3\nold:"), "no list of versions"),
        (lambda text: text.replace("versions:", "versions: []\nold:"), "no list of versions"),
        (lambda text: text.replace('title: "', "title: ["), "damaged frontmatter"),
    ],
)
def test_the_error_for_a_damaged_file_names_it(
    filled: Command, tmp_path: Path, damage: Callable[[str], str], problem: str
) -> None:
    folder = tmp_path / "out"
    filled("export", "--markdown", str(folder))
    file = next(iter(folder.rglob("*fridays*.md")))
    file.write_text(damage(file.read_text()))
    answer = filled("import", str(folder))
    assert answer.code == 2
    assert problem in answer.error
    assert file.name in answer.error
