"""export, import, migrate, reembed as commands."""

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Once
from memories import Memories
from memories.cli.stores import _setting

Command = Callable[..., Any]
Store = Callable[..., str]


@pytest.fixture
def filled(memory: Command, stored: Store, once: Once) -> None:
    """Memories and turns in three namespaces, with versions, a key, a tag and a deletion."""

    def fill() -> None:
        first = stored("The user prefers Python", "--type", "preference", "--key", "user/language")
        memory("update", first, "The user prefers Rust")
        memory("delete", stored("Deploys happen on Tuesdays"))
        stored("Ann likes tea", "--namespace", "ann")
        stored("Bob has a secret", "--namespace", "bob", "--tag", "secret=yes")
        memory("turns", "add", "standup", "Bob said a secret", "--namespace", "bob")
        memory("turns", "add", "standup", "We ship on Friday", "--speaker", "Ann")

    once(fill)


def lines(text: str) -> list[Any]:
    """Parse lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]


def url(folder: Path, name: str) -> str:
    """Return the URL of a SQLite file in a folder."""
    return f"sqlite:///{folder}/{name}.db"


# --- export


@pytest.mark.usefixtures("filled")
def test_export_prints_the_readable_namespaces(memory: Command) -> None:
    header, *shared, last = lines(memory("export").out)
    assert header == {"format": "memories", "version": 2}
    assert (last["end"], last["records"], len(last["sha256"])) == ("memories", 4, 64)
    assert {line["namespace"] for line in shared} == {"shared"}
    assert [line["text"] for line in shared] == [
        "We ship on Friday",
        "The user prefers Python",
        "The user prefers Rust",
        "Deploys happen on Tuesdays",
    ]
    _, *anns, _ = lines(memory("export", "-n", "ann").out)
    assert {line["namespace"] for line in anns} == {"ann", "shared"}
    _, *own, _ = lines(memory("export", "-n", "ann", "--no-shared").out)
    assert [line["text"] for line in own] == ["Ann likes tea"]


@pytest.mark.cold  # a server would count the reads itself
def test_exports_backups_and_copies_have_the_latest_read_counts(
    memory: Command, tmp_path: Path
) -> None:
    name = memory("create", "The office closes at six").json["id"]
    memory("get", name)
    assert '"accesses":1' in memory("export").out
    memory("get", name)
    memory("backup", str(tmp_path / "backup.db"))
    memory("get", name)
    memory("migrate", "--to", f"sqlite:///{tmp_path}/copy.db")
    stores = [f"sqlite:///{tmp_path}/{copy}.db" for copy in ("backup", "copy")]
    copies = [memory("get", name, "--store", store).json for store in stores]
    assert [copy["access_count"] for copy in copies] == [2, 3]


@pytest.mark.cold
@pytest.mark.parametrize("arguments", [("export",), ("import", "-", "--dry-run")])
def test_counting_reads_does_not_create_a_store(
    memory: Command, home: Path, arguments: tuple[str, ...]
) -> None:
    memory("get", memory("create", "The office closes at six").json["id"])
    assert list(home.glob("accesses-*.jsonl"))
    for part in (*home.glob("memories.db*"), *home.glob("*/scratchpad.yaml")):
        part.unlink()
    memory(*arguments)
    assert not list(home.glob("memories.db"))


@pytest.mark.usefixtures("filled")
def test_export_includes_other_namespaces_only_if_all_are_requested(memory: Command) -> None:
    for options in ([], ["-n", "ann"], ["-n", "nobody"], ["--vectors"]):
        answer = memory("export", *options)
        assert "bob" not in (answer.out + answer.err).lower()
    _, *every, _ = lines(memory("export", "--all-namespaces").out)
    assert {line["namespace"] for line in every} == {"ann", "bob", "shared"}
    assert len(every) == 7


@pytest.mark.parametrize(
    ("scope", "collections"),
    [("memories", {"memory"}), ("history", {"history"}), ("all", {"memory", "history"})],
)
def test_an_export_contains_what_in_names(
    memory: Command, scope: str, collections: set[str]
) -> None:
    memory("create", "The port is 8080")
    memory("turns", "add", "standup", "We ship on Fridays")
    records = lines(memory("export", "--in", scope).out)[1:-1]
    assert {record["collection"] for record in records} == collections
    refused = memory("export", "--in", "turns")
    assert (refused.code, '"turns"' in refused.error) == (2, True)


@pytest.mark.usefixtures("filled")
def test_an_export_to_a_file_has_the_same_content_and_is_private(
    memory: Command, folder: Path
) -> None:
    for output in ("json", "text"):
        answer = memory("export", "--output", "backup.jsonl", "--format", output)
        assert answer.code == 0
        assert "4" in answer.out
    assert memory("export", "-o", "backup.jsonl").json == {"exported": 4, "output": "backup.jsonl"}
    file = folder / "backup.jsonl"
    assert file.read_text() == memory("export").out == memory("export", "--output", "-").out
    assert file.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in folder.iterdir()] == ["backup.jsonl"]


def test_an_export_that_fails_keeps_the_old_file(memory: Command, folder: Path, home: Path) -> None:
    memory("export", "--output", "backup.jsonl")
    before = (folder / "backup.jsonl").read_text()
    home.mkdir(mode=0o700, parents=True)
    (home / "memories.db").write_bytes(b"this is a text and no database\n" * 200)
    answer = memory("export", "--output", "backup.jsonl")
    assert answer.code == 1
    assert "is not a SQLite database" in answer.error
    assert [found.read_text() for found in folder.iterdir()] == [before]
    assert memory("export", "--output", "missing/backup.jsonl").code == 1


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "content",
    [b"my notes\n", b'{"format": "another"}\n', b"{}", b"\xff\xfe\x00", b"\n", b"x" * 100_000],
)
def test_an_export_replaces_only_an_export(memory: Command, folder: Path, content: bytes) -> None:
    (folder / "notes.md").write_bytes(content)
    answer = memory("export", "--output", "notes.md")
    assert answer.code == 2
    assert answer.error == "notes.md already exists and is not an export; name a different file"
    assert (folder / "notes.md").read_bytes() == content
    assert [file.name for file in folder.iterdir()] == ["notes.md"]
    (folder / "notes.md").write_bytes(b"")
    assert memory("export", "--output", "notes.md").json["exported"] == 4


@pytest.mark.usefixtures("filled")
def test_an_export_does_not_replace_a_pipe_a_link_a_folder_or_a_backup(
    memory: Command, folder: Path
) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "notes").mkdir()
    store = f"files://{folder}/store"
    memory("create", "The deploy port is 8080", "--store", store)
    memory("backup", "backup.jsonl", "--store", store)
    before = (folder / "backup.jsonl").read_bytes()
    memory("export", "--output", "earlier.jsonl")
    (folder / "link").symlink_to("earlier.jsonl")
    (folder / "broken").symlink_to("missing.jsonl")
    for name in ("pipe", "notes", "link", "broken"):
        answer = memory("export", "--output", name)
        assert answer.code == 2
        assert answer.error == f"{name} is not a regular file; name a different file"
    answer = memory("export", "--output", "backup.jsonl")
    assert answer.code == 2
    assert answer.error == "backup.jsonl is a backup; name a different file"
    assert (folder / "backup.jsonl").read_bytes() == before
    assert (folder / "pipe").is_fifo()
    assert (folder / "link").is_symlink()
    assert (folder / "broken").is_symlink()


def test_an_export_of_an_empty_store_has_no_records(memory: Command, home: Path) -> None:
    exported = memory("export").out
    assert [line.get("records") for line in lines(exported)] == [None, 0]
    assert memory("import", "-", stdin=exported).json["imported"] == 0
    assert not home.exists()


@pytest.mark.usefixtures("filled", "disk_of_one_megabyte")
def test_the_error_for_a_full_disk_names_the_file_and_the_remedy(
    memory: Command, folder: Path
) -> None:
    for _ in range(2):
        answer = memory("export", "--output", "disk/backup.jsonl")
        assert answer.code == 1
        assert answer.error == (
            "cannot write disk/backup.jsonl: No space left on device; free some space on its disk and try again; "
            "nothing was written; name a different file"
        )
        assert [found.name for found in (folder / "disk").iterdir()] == ["filler"]


@pytest.fixture
def disk_of_one_megabyte(folder: Path) -> Iterator[None]:
    """A disk at `disk` that has room only for an export of two records."""
    (folder / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder / "disk"]
    if os.geteuid() or subprocess.run(mount, timeout=60).returncode:
        pytest.skip("only root can mount a small disk")
    (folder / "disk" / "filler").write_bytes(bytes(64 * 1024))
    yield
    subprocess.run(["umount", folder / "disk"], check=True, timeout=300)


@pytest.mark.first(1)
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("given", ["file", "pipe", "redirected"])
def test_a_truncated_export_is_refused_before_anything_is_stored(
    process: Command, folder: Path, given: str
) -> None:
    """This holds for a file and for a pipe, although more than one batch comes before the cut."""
    with Memories(f"sqlite:///{folder}/large.db", embedder="none") as large:
        large.create_many([f"note {number}" for number in range(600)], force=True)
    environment = {**os.environ, "EMBEDDER": "none"}
    whole = process("export", "--store", f"sqlite:///{folder}/large.db", env=environment).out
    cut = folder / "cut.jsonl"
    cut.write_text("".join(whole.splitlines(keepends=True)[:590]))
    name, shell = {"file": ("cut.jsonl", ""), "pipe": ("-", ""), "redirected": ("-", f"< {cut}")}[
        given
    ]
    other = url(folder, "other")
    answer = process(
        "import",
        name,
        "--store",
        other,
        shell=shell,
        env=environment,
        stdin=cut.read_bytes() if name == "-" else b"",
    )
    assert answer.code == 2
    assert (
        answer.error
        == "the export is incomplete: it was truncated after line 590; use another copy"
    )
    assert not (folder / "other.db").exists()


@pytest.mark.usefixtures("filled")
def test_an_export_from_an_older_version_is_read_with_a_note(memory: Command, folder: Path) -> None:
    older = "".join(memory("export").out.splitlines(keepends=True)[:-1]).replace(
        '"version":2', '"version":1'
    )
    answer = memory("import", "-", "--store", url(folder, "other"), stdin=older)
    assert answer.json["imported"] == 4
    note = "may be incomplete, since version 1 of the format has no line that marks the end"
    assert note in answer.json["note"]
    assert note in answer.err


EMPTY_PATHS = [
    ("export", "-o", ""),
    ("export", "--markdown", ""),
    ("create", "--lines", ""),
    ("doctor", "--salvage", ""),
    ("backup", ""),
    ("import", ""),
    ("import", "json", ""),
]


@pytest.mark.parametrize("arguments", EMPTY_PATHS, ids=" ".join)
def test_an_empty_path_is_refused(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    memory("create", "The office is in Rome")
    inside = folder / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    answer = memory(*arguments)
    assert (answer.code, "the path is empty" in answer.error) == (2, True)
    assert not list(inside.iterdir())


# --- import


@pytest.mark.usefixtures("filled")
def test_imported_records_are_exported_byte_for_byte(memory: Command, folder: Path) -> None:
    exported = memory("export", "--all-namespaces").out
    (folder / "backup.jsonl").write_text(exported)
    other = ("--store", url(folder, "other"))
    answer = memory("import", "backup.jsonl", "--all-namespaces", *other)
    assert answer.json == {
        "imported": 7,
        "known": 0,
        "conflict_count": 0,
        "conflicts": [],
        "without_vector": 0,
        "dry_run": False,
        "trusted": True,
        "pending": 0,
    }
    assert memory("export", "--all-namespaces", *other).out == exported
    assert exported.count('"=trust":"agent","=via":"cli|') == 7
    assert memory("import", "-", "--all-namespaces", *other, stdin=exported).json["known"] == 7
    found = memory("search", "which language does the user prefer", *other).json["results"]
    assert found[0]["content"] == "The user prefers Rust"
    assert memory("search", "secret", "-n", "bob", "--in", "all", *other).json["count"] == 2


@pytest.mark.usefixtures("filled")
def test_import_writes_to_the_callers_namespaces_unless_all_are_requested(
    memory: Command, folder: Path
) -> None:
    exported = memory("export", "--all-namespaces").out
    other = ("--store", url(folder, "other"))
    answer = memory("import", "-", *other, stdin=exported)
    assert answer.code == 2
    assert answer.error.startswith(
        "line 2 belongs to namespace bob; name that namespace, or add --all-namespaces"
    )
    assert not (folder / "other.db").exists()
    own = memory("export", "-n", "ann").out
    assert memory("import", "-", "-n", "ann", *other, stdin=own).json["imported"] == 5
    assert memory("import", "-", "-n", "ann", "--no-shared", *other, stdin=own).code == 2


@pytest.mark.usefixtures("filled")
def test_conflicts_are_reported_and_change_nothing(memory: Command) -> None:
    exported = memory("export").out
    changed = "".join(
        exported.replace("We ship on Friday", "We ship on Monday").splitlines(keepends=True)[:-1]
    )
    changed = changed.replace('"version":2', '"version":1')  # the last line would reveal the change
    for options in ([], ["--dry-run"]):
        answer = memory("import", "-", *options, stdin=changed)
        assert answer.code == 1
        shape = json.loads(answer.out)
        assert (shape["imported"], shape["known"], shape["conflict_count"]) == (0, 3, 1)
        assert shape["conflicts"] == [
            {
                "line": 2,
                "collection": "history",
                "namespace": "shared",
                "group": "standup",
                "position": 0,
                "reason": "another record has this address",
            }
        ]
    shown = memory("import", "-", "--format", "text", stdin=changed)
    assert "1 record was left out because of a conflict with existing ones" in shown.out
    assert "line 2: history standup (0) of shared: another record has this address" in shown.out
    assert memory("export").out == exported


@pytest.mark.usefixtures("filled")
def test_a_dry_run_reports_the_result_of_an_import(memory: Command, folder: Path) -> None:
    exported = memory("export").out
    other = ("--store", url(folder, "other"))
    shape = memory("import", "-", "--dry-run", *other, stdin=exported).json
    assert (shape["imported"], shape["dry_run"]) == (4, True)
    assert not (folder / "other.db").exists()
    assert memory("import", "-", "--dry-run", "--format", "text", *other, stdin=exported).out == (
        "Would import 4 records; 0 were already there.\n"
    )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("", "no records: the export is empty"),
        ("hello\n", "line 1 is not JSON"),
        ('{"content": "x"}\n', "line 1 is not the header of an export"),
        ('{"format":"memories","version":1}\n{"text": "x"}\n', 'line 2 has no "collection"'),
        (b"\xff\xfeh\0i\0", "line 1 is not an export: it is text that looks like UTF-16"),
    ],
)
def test_other_files_are_refused_with_a_one_sentence_error(
    memory: Command, home: Path, given: str | bytes, complaint: str
) -> None:
    answer = memory("import", "-", stdin=given)
    assert not home.exists()
    assert answer.code == 2
    assert complaint in answer.error


def test_a_missing_file_is_refused(memory: Command, folder: Path) -> None:
    assert (
        memory("import", "missing.jsonl").error
        == "cannot read missing.jsonl: No such file or directory"
    )
    (folder / "inner").mkdir()
    assert (
        "cannot read inner: it is a folder in an unknown format" in memory("import", "inner").error
    )


@pytest.mark.usefixtures("filled")
def test_memories_imported_without_an_embedder_can_be_searched_by_words(
    memory: Command, folder: Path
) -> None:
    exported = memory("export").out
    other = ("--store", url(folder, "other"))
    none = {"EMBEDDER": "none"}
    assert memory("import", "-", *other, stdin=exported, env=none).json["without_vector"] == 4
    assert memory("search", "Rust", *other, env=none).json["count"] == 1
    assert memory("reembed", *other).json["embedded"] == 4
    assert memory("status", *other).json["without_vector_count"] == 0


# --- migrate


@pytest.mark.usefixtures("filled")
def test_migrate_copies_everything_and_says_how_to_switch_stores(
    memory: Command, folder: Path, home: Path
) -> None:
    exported, target = memory("export", "--all-namespaces").out, url(folder, "copy")
    shape = memory("migrate", "--to", target).json
    original = f"sqlite:///{home}/memories.db"
    assert shape == {
        "verified": True,
        "records": {"history": 2, "memory": 5},
        "namespaces": ["ann", "bob", "shared"],
        "copied": 7,
        "changed": 0,
        "removed": 0,
        "without_vector": 0,
        "from": original,
        "to": target,
        "switch": f"export MEMORY_STORE={target}",
        "go_back": f"export MEMORY_STORE={original}",
    }
    assert memory("export", "--all-namespaces").out == exported
    assert memory("export", "--all-namespaces", env={"MEMORY_STORE": target}).out == exported
    memory("create", "Something new")
    assert memory("migrate", "--to", target).json["copied"] == 1
    shown = memory("migrate", "--to", target, "--format", "text").out
    assert shown.startswith("Copied and verified: 2 of history, 6 of memory; 0 new, 0 changed.\n")
    assert f"To use the copy: export MEMORY_STORE={target}\n" in shown


@pytest.mark.first(1)
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_the_command_that_switches_stores_works_in_every_folder(
    memory: Command, folder: Path, scheme: str
) -> None:
    assert memory("migrate", "--to", f"{scheme}:///copy of it").json["switch"] == (
        f"export MEMORY_STORE='{scheme}:///{folder}/copy of it'"
    )
    back = memory(
        "migrate", "--store", f"{scheme}:///copy of it", "--to", "sqlite:///second.db"
    ).json
    assert back["go_back"] == f"export MEMORY_STORE='{scheme}:///{folder}/copy of it'"
    assert back["switch"] == f"export MEMORY_STORE=sqlite:///{folder}/second.db"
    same = memory(
        "migrate", "--store", "sqlite:///second.db", "--to", f"sqlite:///{folder}/second.db"
    )
    assert (same.code, "is the same store as the source" in same.error) == (2, True)


@pytest.mark.usefixtures("filled")
def test_migrate_refuses_a_store_that_is_not_a_copy(memory: Command, folder: Path) -> None:
    target = url(folder, "copy")
    memory("create", "Something else", "--store", target)
    answer = memory("migrate", "--to", target)
    assert answer.code == 1
    assert (
        "the target is not a copy of this store: it has a record that this store lacks"
        in answer.error
    )
    assert memory("status", "--store", target).json["memory_count"] == 1


def test_a_url_with_a_password_is_described_but_not_shown(folder: Path) -> None:
    sentence = "set MEMORY_STORE to the URL that you gave"
    secret = "postgresql://ann:s3cret@db.example/memories"
    assert _setting(secret, sentence) == f"{sentence} (its password is not shown)"
    copy = url(folder, "copy")
    assert _setting(copy, sentence) == f"export MEMORY_STORE={copy}"


@pytest.mark.usefixtures("filled")
def test_migrate_does_not_show_the_password_of_an_unreachable_store(
    memory: Command, folder: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"  # nothing listens there
        for secret in (
            f"postgresql://ann:s3cret@{address}/memories?connect_timeout=2",
            f"postgresql://ann@{address}/memories?connect_timeout=2&password=s3cret",
        ):
            there = memory("migrate", "--to", secret)
            back = memory("migrate", "--store", secret, "--to", url(folder, "copy"))
            for answer in (there, back):
                assert answer.code == 1
                assert address in answer.error
                assert "s3cret" not in answer.out + answer.err


def test_an_unreadable_line_stops_every_transfer(
    memory: Command, folder: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MEMORY_STORE", f"files:///{folder}/notes")
    memory("create", "Deploys happen on Tuesdays")
    assert memory("export", "-o", "backup.jsonl").json["exported"] == 1
    backup = (folder / "backup.jsonl").read_bytes()
    with (folder / "notes" / "shared.jsonl").open("a") as file:
        file.write("<<<<<<< HEAD\n")
    for command in (
        ["export", "--all-namespaces", "--output", "backup.jsonl"],
        ["export"],
        ["migrate", "--to", url(folder, "copy")],
        ["reembed"],
        ["status"],
    ):
        answer = memory(*command)
        assert answer.code == 1
        assert answer.out == ""
        assert (
            "shared.jsonl:2 can't be read: it is not JSON"
            in json.loads(answer.err.splitlines()[-1])["error"]
        )
    assert (folder / "backup.jsonl").read_bytes() == backup
    assert not (folder / "copy.db").exists()
    assert json.loads(memory("search", "deploys").out)["results"] == []


def test_migrate_needs_a_store_to_copy_from_and_another_to_copy_to(
    memory: Command, folder: Path, home: Path
) -> None:
    assert "nothing to migrate" in memory("migrate", "--to", url(folder, "copy")).error
    assert memory("migrate").code == 2
    assert memory("migrate", "--to", f"sqlite:///{home}/memories.db").code == 2
    assert "is not a store" in memory("migrate", "--to", "ftp://ann:s3cret@example").error
    assert "s3cret" not in memory("migrate", "--to", "ftp://ann:s3cret@example").err
    assert not home.exists()
    assert list(folder.iterdir()) == []


# --- reembed


@pytest.mark.usefixtures("filled")
def test_reembed_changes_the_embedder(memory: Command) -> None:
    exported = memory("export", "--all-namespaces").out
    refused = memory("search", "language", env={"EMBEDDER": "minilm"})
    assert refused.code == 1
    assert "were created by fake/1" in refused.error
    assert "switch to this embedder with: memory reembed" in refused.error
    answer = memory("reembed", "--model", "minilm")
    assert answer.json == {
        "embedded": 7,
        "model": "all-MiniLM-L6-v2/int8/1",
        "model_before": "fake/1",
        "embedder": "minilm",
        "switch": "export EMBEDDER=minilm",
    }
    assert answer.err == (
        "EMBEDDER (environment) is still fake; set EMBEDDER=minilm, or unset it.\n"
    )
    minilm = {"EMBEDDER": "minilm"}
    found = memory("search", "Which programming language does she like?", env=minilm).json[
        "results"
    ]
    assert found[0]["content"] == "The user prefers Rust"
    assert "memory reembed" in memory("search", "language").error
    assert memory("status", env=minilm).json["without_vector_count"] == 0
    after = memory("export", "--all-namespaces").out
    assert [{**line, "accesses": 0} for line in lines(after)[:-1]] == [
        {**line, "accesses": 0} for line in lines(exported)[:-1]
    ]


@pytest.mark.thorough
@pytest.mark.usefixtures("filled")
def test_reembed_switches_between_the_packaged_models_and_back(memory: Command) -> None:
    models = {"minilm": "all-MiniLM-L6-v2/int8/1", "e5": "multilingual-e5-small/int8/1"}
    before = "fake/1"
    for name in ("minilm", "e5", "minilm"):
        moved = memory("reembed", "--model", name).json
        assert (moved["embedded"], moved["model_before"], moved["model"]) == (
            7,
            before,
            models[name],
        )
        found = memory(
            "search", "Which programming language does she like?", env={"EMBEDDER": name}
        ).json["results"]
        assert found[0]["content"] == "The user prefers Rust"
        before = models[name]
    assert (
        "were created by all-MiniLM" in memory("search", "language", env={"EMBEDDER": "e5"}).error
    )


@pytest.mark.usefixtures("filled")
def test_reembed_makes_a_store_compact_and_back(memory: Command) -> None:
    compact = {"MEMORY_COMPACT": "true"}
    exported = lines(memory("export", "--all-namespaces").out)[1:-1]
    assert "compact" not in memory("status", env=compact).json  # an existing store keeps its form
    for env in (compact, {"MEMORY_COMPACT": "false"}):
        assert [memory("reembed", env=env).json["embedded"] for _ in range(2)] == [7, 0]
        assert memory("status").json.get("compact", False) is (env is compact)
        assert (", compact" in memory("status", "--format", "text").out) is (env is compact)
        assert memory("search", "prefers Rust").json["results"]
        assert memory("doctor", "--deep").code == 0
    again = lines(memory("export", "--all-namespaces").out)[1:-1]
    assert [{**line, "accesses": 0} for line in again] == [
        {**line, "accesses": 0} for line in exported
    ]


def test_reembed_adds_missing_vectors(memory: Command) -> None:
    memory("create", "Deploys happen on Tuesdays", env={"EMBEDDER": "none"})
    assert memory("reembed").json == {
        "embedded": 1,
        "model": "fake/1",
        "model_before": None,
        "embedder": "fake",
    }
    assert memory("reembed", "--format", "text").out == "0 records were embedded with fake/1.\n"


@pytest.mark.parametrize(
    "command", [["reembed", "--model", "none"], ["reembed", "--model", "word2vec"]]
)
def test_reembed_refuses_the_embedder_none(memory: Command, command: list[str], home: Path) -> None:
    answer = memory(*command)
    assert answer.code == 2
    assert "embedder" in answer.error
    assert not home.exists()


def test_transfers_show_progress_on_a_terminal(
    terminal: Command, memory: Command, folder: Path
) -> None:
    for number in range(3):
        memory("create", f"note {number}", "--force")
    assert "copying" in terminal("migrate", "--to", url(folder, "copy")).out
    memory("export", "-o", "backup.jsonl")
    shown = terminal("import", "backup.jsonl", "--store", url(folder, "other")).out
    assert "importing" in shown
    assert "100%" in shown
    assert "Imported 3 records" in shown
    assert "embedding" in terminal("reembed", "--model", "minilm").out


@pytest.mark.parametrize("made", ["pipe", "device", "link to a pipe", "socket"])
def test_pipes_and_devices_are_refused_at_once(memory: Command, folder: Path, made: str) -> None:
    name = Path("given")
    if made == "device":
        name = Path("/dev/zero")
    elif made == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(name))
    else:
        os.mkfifo(folder / "pipe")
        name.symlink_to(folder / "pipe") if made != "pipe" else (folder / "pipe").rename(name)
    answer = memory("import", str(name))
    assert answer.code == 2
    assert (
        answer.error
        == f"cannot read {name}: it is a pipe or a device; give a file, or pipe it to: memory import -"
    )


@pytest.mark.usefixtures("filled")
def test_a_link_to_an_export_is_read(memory: Command, folder: Path) -> None:
    memory("export", "--output", "out.jsonl")
    (folder / "link").symlink_to("out.jsonl")
    assert memory("import", "link").json["known"] == 4


def test_a_line_with_a_repeated_key_is_refused(memory: Command, folder: Path) -> None:
    stated = '{"collection":"memory","text":"one","text":"two"}'
    answer = memory("import", "-", stdin=f'{{"format":"memories","version":1}}\n{stated}\n')
    assert (answer.code, answer.error) == (
        2,
        'line 2 contains the key "text" twice; keep one of them; no record in this batch was stored',
    )  # fmt: skip
    answer = memory(
        "turns", "add", "trip", "-", stdin='{"content":"a"}\n{"content":"b","content":"c"}\n'
    )
    assert (answer.code, answer.error) == (
        2, 'line 2 contains the key "content" twice; keep one of them; nothing was stored',
    )  # fmt: skip
    assert memory("turns", "tail", "trip").json["count"] == 0


@pytest.mark.first(2)
@pytest.mark.parametrize("memory_id", ["abc1", "note/1 ü", "deadbeef", "ABCDEF0123", "a\nb"])
def test_an_id_from_another_program_survives_an_export_and_an_import(
    memory: Command, folder: Path, memory_id: str
) -> None:
    seed = {
        "id": memory_id,
        "user_id": "shared",
        "content": "seed",
        "kind": "fact",
    } | dict.fromkeys(("created_at", "updated_at"), "2026-05-01T09:00:00Z")
    (folder / "seeds").mkdir()
    (folder / "seeds" / "shared.jsonl").write_text(f"\ufeff{json.dumps(seed)}\r\n")
    seeds = ("--store", f"files:///{folder}/seeds")
    assert memory("update", memory_id, "seed, twice", *seeds).json["version"] == 2
    exported = memory("export", *seeds).out
    assert memory("import", "-", stdin=exported).json["imported"] == 2
    assert memory("export").out == exported.replace(',"accesses":1', "")
    for store in (seeds, ()):
        assert memory("get", memory_id, *store).json["content"] == "seed, twice"
        for command in (("get", memory_id), ("history", memory_id), ("list",)):
            assert "\nb" not in memory(*command, *store, "--format", "text").out
        assert memory("delete", memory_id, *store).code == 0
        assert memory("restore", memory_id, *store).json["id"] == memory_id
        assert memory("forget", memory_id, "--yes", *store).json["versions"] == 3
        assert memory("list", *store).json["count"] == 0


def test_the_target_of_a_migration_can_be_given_without_an_option(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine can see options, and they stay in the shell's history."""
    memory("create", "x")
    assert (
        memory("migrate", "--to", "-", stdin=f"sqlite:///{folder}/a.db\n").json["verified"] is True
    )
    monkeypatch.setenv("MEMORY_MIGRATE_TO", f"sqlite:///{folder}/b.db")
    assert memory("migrate").json["verified"] is True
    assert (folder / "a.db").exists()
    assert (folder / "b.db").exists()
    monkeypatch.delenv("MEMORY_MIGRATE_TO")
    assert memory("migrate").error == "Missing option '--to'; see memory migrate --help"
    for given in ("", "\n", "sqlite:///a.db sqlite:///b.db", "one\ntwo"):
        assert memory("migrate", "--to", "-", stdin=given).error.startswith(
            "standard input must contain exactly one URL"
        )
    assert memory("migrate", "--to", "-", stdin="x" * 9_000).code == 2


def test_a_dotenv_file_cannot_set_the_target_of_a_migration(memory: Command, folder: Path) -> None:
    memory("create", "x")
    (folder / ".env").write_text(f"MEMORY_MIGRATE_TO=sqlite:///{folder}/evil.db\n")
    assert memory("migrate").error == "Missing option '--to'; see memory migrate --help"
