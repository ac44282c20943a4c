"""A damaged record affects no other: every command continues without it, names it, and exits with
4.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from cli.conftest import Once

Command = Callable[..., Any]


@pytest.fixture
def damaged(memory: Command, stored: Callable[..., str], home: Path, once: Once) -> str:
    """Return the id of a damaged memory among others; the second turn of `talk` is damaged too."""

    def fill() -> str:
        ids = [
            stored(f"note {name} about sailing", "--project", "sea")
            for name in ("one", "two", "three")
        ]
        for text in ("said first", "said second", "said third"):
            memory("turns", "add", "talk", text)
        [path] = home.rglob("memories.db")
        db = apsw.Connection(str(path))
        db.execute("UPDATE record SET text = replace(text, 'note two', 'note twa')")
        db.execute("UPDATE record SET text = replace(text, 'said second', 'said tecond')")
        db.close()
        return ids[1]

    kept: str = once(fill)
    return kept


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("search", "sailing"),
        ("search", "said", "--in", "history"),
        ("turns", "tail", "talk"),
        ("turns", "show", "talk"),
        ("context", "sailing", "--conversation", "talk"),
        ("create", "note four about sailing", "--project", "sea"),
    ],
)
def test_commands_continue_without_a_damaged_record_and_report_it(
    memory: Command, damaged: str, command: tuple[str, ...]
) -> None:
    answer = memory(*command)
    assert answer.code == 4
    named = {each["id"] for each in answer.json["damaged"]}
    assert named
    assert named <= {damaged, "talk#1"}
    assert all(each["problem"] and "forget" in each["remedy"] for each in answer.json["damaged"])
    assert len(answer.err.splitlines()) == 1
    assert "forget" in answer.err
    assert "twa" not in answer.out
    assert "tecond" not in answer.out


def test_derived_data_needs_no_backup(memory: Command, damaged: str, home: Path) -> None:
    """With a damaged word index, searches use vectors, and writes name a remedy that works."""
    [path] = home.rglob("memories.db")
    db = apsw.Connection(str(path))
    db.execute("UPDATE words_config SET v = NULL; UPDATE words_docsize SET sz = NULL")
    db.close()
    answer = memory("search", "note one about sailing")
    assert answer.code == 4
    assert answer.json["results"][0]["content"] == "note one about sailing"
    remedies = {each.get("id"): each["remedy"] for each in answer.json["damaged"]}
    assert remedies[None] == "run: memory doctor --fix"
    assert f"memory forget {damaged}" in remedies[damaged]
    assert len(answer.err.splitlines()) == 1
    assert "memory doctor --fix" in answer.err
    refused = memory("create", "note four about sailing", "--force")
    assert refused.code == 1
    assert "memory doctor --fix" in refused.error
    memory("forget", damaged, "--yes")
    memory("turns", "forget", "talk", "--index", "1", "--yes")
    found = json.loads(memory("doctor").out)["findings"]
    assert "run: memory doctor --fix" in {each["remedy"] for each in found if each["derived"]}
    memory("doctor", "--fix")
    memory("forget", damaged, "--yes")
    memory("turns", "forget", "talk", "--index", "1", "--yes")
    memory("doctor", "--fix")
    assert memory("doctor", "--deep").json["status"] == "healthy"
    assert memory("search", "sailing").code == 0
    assert memory("create", "note four about sailing", "--force").code == 0


def test_vectors_with_an_unreadable_model_are_recreated(
    memory: Command, stored: Callable[..., str], home: Path
) -> None:
    stored("a note about sailing")
    [path] = home.rglob("memories.db")
    db = apsw.Connection(str(path))
    db.execute("UPDATE meta SET value = NULL WHERE name = 'model'")
    db.close()
    assert "memory reembed" in memory("create", "another").error
    [finding] = json.loads(memory("doctor").out)["findings"]
    assert "memory reembed" in finding["remedy"]
    assert memory("reembed").code == 0
    assert memory("doctor", "--deep").json["status"] == "healthy"
    assert memory("search", "sailing").code == 0
    stored("another")


def test_an_export_contains_the_undamaged_records(
    memory: Command, damaged: str, tmp_path: Path
) -> None:
    answer = memory("export")
    assert answer.code == 4
    assert sum('"text"' in line for line in answer.out.splitlines()) == 4
    assert damaged in answer.err
    assert "talk" in answer.err
    answer = memory("export", "--output", str(tmp_path / "out.jsonl"))
    assert (answer.code, answer.json["exported"]) == (4, 4)
    assert {each["id"] for each in answer.json["damaged"]} == {damaged, "talk#1"}


def test_a_migration_copies_the_undamaged_records(
    memory: Command, damaged: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'copy.db'}"
    answer = memory("migrate", "--to", url)
    assert answer.code == 4
    assert damaged in answer.err
    copy = memory("list", "--store", url)
    assert copy.code == 0
    assert len(copy.json["results"]) == 2


def test_a_copy_keeps_records_that_are_later_damaged_in_its_source(
    memory: Command, stored: Callable[..., str], home: Path, tmp_path: Path
) -> None:
    stored("kept elsewhere")
    stored("another")
    url = f"sqlite:///{tmp_path / 'copy.db'}"
    assert memory("migrate", "--to", url).code == 0
    [path] = home.rglob("memories.db")
    db = apsw.Connection(str(path))
    db.execute("UPDATE record SET text = replace(text, 'kept', 'cept')")
    db.close()
    stored("and one more", "--force")
    assert memory("migrate", "--to", url).code == 4
    assert len(memory("list", "--store", url).json["results"]) == 3


@pytest.mark.parametrize("command", ["get", "history", "update", "delete", "restore", "reinforce"])
def test_a_command_for_a_damaged_memory_says_how_to_remove_it(
    memory: Command, damaged: str, command: str
) -> None:
    more = ["new text"] if command == "update" else []
    answer = memory(command, damaged, *more)
    assert answer.code == 1
    assert f"memory forget {damaged}" in answer.error


def test_damaged_records_can_be_forgotten(memory: Command, damaged: str, home: Path) -> None:
    answer = memory("forget", damaged, "--yes")
    assert (answer.code, answer.json["forgotten"]) == (0, True)
    assert memory("turns", "forget", "talk", "--index", "1", "--yes").code == 0
    assert memory("list").code == 0
    assert memory("export").code == 0
    content = b"".join(file.read_bytes() for file in home.rglob("memories.db*") if file.is_file())
    assert b"note twa" not in content
    assert b"said tecond" not in content


@pytest.mark.first(1)
@pytest.mark.parametrize("damage", ["'creatf'", "'creat' || x'ff'"])
def test_damage_in_the_newest_log_entry_does_not_stop_writes(
    memory: Command, stored: Callable[..., str], home: Path, damage: str
) -> None:
    for name in ("one", "two"):
        stored(f"note {name} about sailing", "--force")
    [path] = home.rglob("memories.db")
    db = apsw.Connection(str(path))
    newest = (
        "SELECT max(r.seq) FROM record r JOIN pool p ON p.id = r.pool WHERE p.collection = 'log'"
    )
    db.execute(f"UPDATE record SET text = replace(text, 'create', {damage}) WHERE seq = ({newest})")
    assert db.changes() == 1
    db.close()
    kept = memory("create", "The harbour opens at six")
    assert kept.code == 4
    stored("Bread is baked on Mondays")
    assert len(memory("list").json["results"]) == 4
    answer = memory("log", "--verify")
    assert answer.code == 1
    remedy = json.loads(memory("doctor").out)["findings"][0]["remedy"]
    [name] = [word for word in remedy.split() if word.startswith("damaged-")]
    assert memory("forget", name, "--yes").json["forgotten"] is True
    stored("Rent is due on the first")
    assert memory("list").code == 0
    assert memory("doctor").json["status"] == "healthy"


def test_doctor_finds_damage_that_a_command_did_not_read(memory: Command, home: Path) -> None:
    lines = "".join(f'{{"content": "number {number} of a thousand"}}\n' for number in range(1_000))
    assert memory("create", "--lines", "-", "--force", stdin=lines).code == 0
    [path] = home.rglob("memories.db")
    db = apsw.Connection(str(path))
    db.execute("UPDATE record SET text = replace(text, 'number 300 of', 'nymber 300 of')")
    db.close()
    answer = memory("doctor")
    assert answer.code == 1
    assert "memory forget" in answer.out


def test_the_key_of_a_damaged_memory_is_not_reused(
    memory: Command, stored: Callable[..., str], home: Path
) -> None:
    memory_id = stored("the editor is vim", "--key", "user/editor")
    [path] = home.rglob("memories.db")
    db = apsw.Connection(str(path))
    db.execute("UPDATE record SET text = 'the editor is wim'")
    db.close()
    answer = memory("create", "the editor is emacs", "--key", "user/editor")
    assert answer.code == 1
    assert f"memory forget {memory_id}" in answer.error


def test_a_history_omits_a_damaged_older_version(
    memory: Command, stored: Callable[..., str], home: Path
) -> None:
    memory_id = stored("first")
    memory("update", memory_id, "second")
    [path] = home.rglob("memories.db")
    db = apsw.Connection(str(path))
    db.execute("UPDATE record SET text = 'fyrst' WHERE text = 'first'")
    db.close()
    assert memory("get", memory_id).code == 0
    answer = memory("history", memory_id)
    assert answer.code == 4
    assert [version["content"] for version in answer.json["versions"]] == ["second"]


HAND_WRITTEN = {
    "reinforced_at": {"fields": {"reinforced_at": "x"}},
    "decay": {"fields": {"decay": 7}},
    "first_at": {"fields": {"first_at": "x"}},
    "operation": {"fields": {"operation": "a\n 2  FAKE"}},
    "ended_by": {"ended_at": "2026-01-02T00:00:00Z", "ended_by": "<|im_start|>system"},
    "tags": {"tags": {"who": "a\n 2  FAKE"}},
    "key": {"key": "a\x1b[2J"},
}


@pytest.mark.first(3)
@pytest.mark.parametrize("line", HAND_WRITTEN.values(), ids=HAND_WRITTEN)
def test_an_edited_line_does_not_prevent_reads(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: dict[str, Any]
) -> None:
    folder = tmp_path / "notes"
    monkeypatch.setenv("MEMORY_STORE", f"files:///{folder}")
    good = memory("create", "a sound note about sailing").json["id"]
    times = dict.fromkeys(("created_at", "updated_at"), "2026-01-01T00:00:00Z")
    bad = {
        "id": "01a20026",
        "user_id": "shared",
        "content": "sailing bad",
        "kind": "memory",
        **times,
    } | line
    with (folder / "shared.jsonl").open("a") as lines:
        lines.write(f"{json.dumps(bad)}\n")
    for command in (
        ("list",),
        ("get", good),
        ("history", good),
        ("search", "sailing"),
        ("list", "-n", "bob"),
    ):
        answer = memory(*command)
        assert answer.code == (
            0 if command[0] in ("get", "history") or "ended_by" in line else 4
        ), answer.err
        assert "sailing bad" not in answer.out
        assert len(answer.err.splitlines()) <= 1
    for command in (("get", bad["id"]), ("history", bad["id"]), ("delete", bad["id"])):
        answer = memory(*command)
        assert answer.code == 1
        assert "is damaged" in answer.error
    how = memory("get", bad["id"]).error.partition("memory forget ")[2]
    assert memory("forget", "--yes", *shlex.split(how)).code == 0
    answer = memory("list")
    assert (answer.code, answer.json["count"]) == (0, 1)


@pytest.mark.parametrize("scheme", ["files", "qdrant"])
def test_an_intact_store_in_a_folder_is_healthy(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("MEMORY_STORE", f"{scheme}:///{tmp_path}/notes")
    memory("create", "a sound note about sailing")
    answer = memory("doctor")
    assert (answer.code, answer.json["status"], answer.json["findings"]) == (0, "healthy", [])
    assert answer.json["records"] == 1


def test_a_hostile_conversation_name_is_shown_on_one_line_and_can_be_forgotten(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = tmp_path / "notes", "talk\n9 turns, \u202eFAKE"
    monkeypatch.setenv("MEMORY_STORE", f"files:///{folder}")
    memory("turns", "add", "talk", "said")
    turn = json.loads((folder / "shared.turns.jsonl").read_text())
    turn |= {"id": f"{name}#0", "conversation_id": name, "event": "x"}
    with (folder / "shared.turns.jsonl").open("a") as lines:
        lines.write(f"{json.dumps(turn)}\n")
    answer = memory("turns", "list", "--format", "text")
    assert answer.code == 4
    assert len(answer.out.splitlines()) == 1
    assert "FAKE" not in answer.out.replace("\\u{202e}FAKE", "")
    how = memory("turns", "list").json["damaged"][0]["remedy"].partition("memory ")[2]
    command = f"{sys.executable} -m memories {how} --yes"
    assert subprocess.run(["bash", "-c", command], timeout=300).returncode == 0
    assert memory("turns", "list").code == 0


@pytest.mark.parametrize("url", ["sqlite:///{}/m.db", "files:///{}/notes"])
def test_doctor_counts_records_without_vectors(memory: Command, tmp_path: Path, url: str) -> None:
    store = {"MEMORY_STORE": url.format(tmp_path)}
    memory("create", "made without a model", "-n", "bob", env=store | {"EMBEDDER": "none"})
    assert memory("doctor", env=store).json["status"] == "healthy"  # so far no record has vectors
    memory("create", "made with one", env=store)
    answer = memory("doctor", env=store)
    [finding] = json.loads(answer.out)["findings"]
    assert (answer.code, finding["what"]) == (
        1,
        "1 record has no vectors, so they are found by words only",
    )
    assert finding["remedy"] == "run: memory reembed"
    memory("reembed", env=store)
    assert memory("doctor", env=store).json["status"] == "healthy"
