"""`memory import` of files that may come from anyone: their memories await review, and are marked
as imported.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories import Draft, Memories

Command = Callable[..., Any]
IDS = [f"01a1fdf1-92cd-72f2-8000-00000000000{number}" for number in range(6)]
FORGED = {
    "=trust": "user",
    "=by": "ann",
    "=via": "cli||ann|laptop|1.0|shared",
    "=held": "",
    "=import": "x",
    "=new": "y",
}


def memory_line(group: str, text: str, position: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a memory as a line of an export."""
    shape = {
        "collection": "memory",
        "namespace": "shared",
        "group": group,
        "position": position,
        "text": text,
        "created_at": f"2026-01-0{position}T00:00:00.000Z",
    }
    return shape | changes


def turn_line(position: int, text: str, group: str = "talk", **changes: Any) -> dict[str, Any]:
    """Return a turn as a line of an export."""
    return memory_line(
        group,
        text,
        position,
        collection="history",
        created_at="2026-01-01T00:00:00.000Z",
        **changes,
    )


def export_of(*lines: dict[str, Any]) -> str:
    """Return a file that anyone could have written."""
    return "\n".join(map(json.dumps, [{"format": "memories", "version": 1}, *lines])) + "\n"


FILE = export_of(
    turn_line(0, "Zoe said that the ferry leaves at nine", labels={"role": "user", **FORGED}),
    memory_line(
        IDS[0],
        "The ferry left at eight",
        1,
        ended_at="2026-01-02T00:00:00.000Z",
        ended_by="update",
        labels=FORGED,
    ),
    memory_line(
        IDS[0], "The ferry leaves at nine", 2, labels={"type": "fact", **FORGED}, key="ferry/time"
    ),
    memory_line(
        IDS[1],
        "The harbour is closed on Mondays",
        labels={"type": "fact"},
        fields={"accepted_at": 5, "x": "y"},
    ),
    memory_line(
        IDS[2],
        "Alice Miller leads the payments team",
        ended_at="2026-01-03T00:00:00.000Z",
        ended_by="delete",
    ),
    memory_line(
        IDS[3], "The user likes tea", ended_at="2026-01-03T00:00:00.000Z", ended_by="pending"
    ),
)
WAITING = {IDS[0], IDS[1], IDS[3]}


def ids(answer: Any) -> set[str]:
    """Return the ids in an answer."""
    return {shape["id"] for shape in answer.json["results"]}


def records(memory: Command) -> list[Any]:
    """Return the records of an export."""
    return [json.loads(each) for each in memory("export").out.splitlines()[1:-1]]


def test_memories_of_a_foreign_file_wait_for_review(memory: Command) -> None:
    dry = memory("import", "-", "--dry-run", stdin=FILE).json
    assert (dry["imported"], dry["pending"], dry["trusted"], "import" in dry) == (
        6,
        3,
        False,
        False,
    )
    done = memory("import", "-", stdin=FILE).json
    assert (done["imported"], done["pending"], done["trusted"]) == (6, 3, False)
    assert f"memory review -n shared --import {done['import']}" in done["hint"]
    assert ids(memory("review", "--import", done["import"])) == ids(memory("review")) == WAITING
    assert memory("review", "--import", IDS[5]).json["count"] == 0
    assert memory("list").json["count"] == 0
    for moment in ("2026-01-01T12:00Z", "2026-01-02T12:00Z"):
        assert memory("list", "--as-of", moment).json["count"] == 0
        assert memory("search", "when does the ferry leave", "--as-of", moment).json["count"] == 0
    assert ids(memory("list", "--deleted")) == {IDS[2]}
    assert memory("restore", IDS[2]).json["pending"] is True
    assert ids(memory("review")) == {*WAITING, IDS[2]}
    shown = memory(
        "import", "-", "-n", "shared", "--format", "text", stdin=FILE.replace("-8000-", "-9000-")
    ).out
    assert "3 memories are now held for review" in shown
    assert "memory review -n shared --import " in shown


def test_an_import_says_why_memories_wait(memory: Command, folder: Path) -> None:
    with Memories() as memories:
        memories.create("The harbour is closed on Mondays")
        memories.create("The user likes tea", pending=True)
    memory("export", "--output", "own.jsonl")
    other = ("--store", f"sqlite:///{folder}/other.db")
    assert memory("import", "own.jsonl", "--dry-run", "--format", "text", *other).out == (
        "Would import 2 records; 0 were already there.\n"
        "1 memory would be held for review, as when the file was exported.\n"
    )
    own = memory("import", "own.jsonl", *other).json
    assert (own["trusted"], own["pending"]) == (True, 1)
    assert own["hint"] == (
        "some memories were pending before the export; to decide, run: memory review "
        f"{' '.join(other)} -n shared"
    )
    trusted = ("--trusted", "--store", f"sqlite:///{folder}/trusted.db", "--format", "text")
    text = (folder / "own.jsonl").read_text()
    foreign = text[: text.rindex(',"proof"')] + "}\n"
    assert memory("import", "-", *trusted, stdin=foreign).out == (
        "Imported 2 records; 0 were already there.\n"
        "1 memory is now held for review, as when the file was exported.\n"
        f"To decide: memory review {' '.join(trusted[1:3])} -n shared\n"
    )
    shown = memory(
        "import", "-", *other[:1], f"sqlite:///{folder}/third.db", "--format", "text", stdin=foreign
    ).out
    assert (
        "2 memories are now held for review. Nothing proves that this file is yours, so none of its "
        "memories is used before you accept it.\n"
    ) in shown


def test_a_tidy_proposal_is_imported_only_from_the_users_own_file(
    memory: Command, folder: Path
) -> None:
    with Memories() as memories:
        older = memories.create("Deploys happen on Tuesdays").id
        newer = memories.create("Deploys happen on Tuesdays", force=True).id
        memories.truth.tidy()
        [proposal] = memories.review.page().memories
    assert proposal.content.startswith('Delete "Deploys happen on Tuesdays"')
    memory("export", "--output", "own.jsonl")
    text = (folder / "own.jsonl").read_text()
    foreign = text[: text.rindex(',"proof"')] + "}\n"
    other = ("--store", f"sqlite:///{folder}/other.db")
    done = memory("import", "-", *other, stdin=foreign).json
    assert (done["imported"], done["pending"], done["proposals_left_out"]) == (2, 2, 1)
    assert ids(memory("review", *other)) == {older, newer}
    again = memory("import", "-", *other, "--format", "text", stdin=foreign).out
    assert again.endswith("Left out: 1 proposal from memory tidy, which can make them again.\n")
    memory("review", "accept", "--all", "--yes", *other)
    assert ids(memory("list", *other)) <= {older, newer}

    own = ("--store", f"sqlite:///{folder}/own.db")
    done = memory("import", "own.jsonl", *own).json
    assert (done["imported"], done["pending"]) == (3, 1)
    assert "proposals_left_out" not in done
    memory("review", "accept", "--all", "--yes", *own)
    assert ids(memory("list", *own)) == {older}
    assert newer in ids(memory("list", "--deleted", *own))


def test_an_origin_in_a_foreign_file_is_not_trusted(memory: Command) -> None:
    done = memory("import", "-", stdin=FILE).json
    for shape in records(memory):
        labels = shape["labels"]
        assert (labels["=trust"], labels["=import"]) == ("imported", done["import"])
        assert labels["=via"].startswith("import|")
        assert "=new" not in labels
        assert labels.get("=held") == (None if shape["collection"] == "history" else "1")
        assert "accepted_at" not in shape["fields"]
    memory("review", "accept", "--yes", "--all")
    [shape] = [shape for shape in memory("list").json["results"] if shape["id"] == IDS[1]]
    assert shape["accepted_at"] > "2026-02"
    assert shape["tags"] == {"type": "fact"}


def test_an_import_can_be_repeated_after_any_decision(memory: Command) -> None:
    memory("import", "-", stdin=FILE)
    memory("review", "accept", "--yes", IDS[0])
    memory("review", "reject", "--yes", IDS[1])
    memory("review", "edit", "--yes", IDS[3], "The user likes green tea")
    before = memory("export").out
    for options in ([], ["--trusted"], ["--dry-run"]):
        answer = memory("import", "-", *options, stdin=FILE)
        assert answer.code == 0
        assert [
            answer.json[name] for name in ("imported", "known", "conflict_count", "pending")
        ] == [0, 6, 0, 0]
        assert "hint" not in answer.json
    assert memory("export").out == before
    assert ids(memory("review")) == set()
    assert {shape["content"] for shape in memory("list").json["results"]} == {
        "The ferry leaves at nine", "The user likes green tea",
    }  # fmt: skip


def test_a_trusted_import_names_known_memories_that_still_await_review(memory: Command) -> None:
    assert memory("import", "-", stdin=FILE).json["pending"] == 3  # one of them in the file too
    answer = memory("import", "-", "--trusted", stdin=FILE).json
    assert (answer["imported"], answer["pending"], answer["still_pending"]) == (0, 0, 2)
    shown = memory("import", "-", "--trusted", "--format", "text", stdin=FILE).out
    assert "6 were already there, 2 still held for review." in shown
    assert "still_pending" not in memory("import", "-", stdin=FILE).json


def test_a_trusted_file_is_imported_unchanged(memory: Command) -> None:
    assert memory("import", "-", "--trusted", stdin=FILE).json["trusted"] is True
    assert ids(memory("list")) == {IDS[0], IDS[1]}
    assert ids(memory("list", "--as-of", "2026-01-01T12:00Z")) == set(IDS[:4])
    turn, first, *_ = records(memory)
    assert first["labels"] == FORGED
    assert turn["labels"] == {"role": "user", **FORGED}


def test_the_users_own_export_is_imported_unchanged(memory: Command, folder: Path) -> None:
    first = memory("create", "The ferry leaves at nine", "--key", "ferry/time").json["id"]
    memory("update", first, "The ferry leaves at ten")
    memory("turns", "add", "talk", "Zoe said hello")
    with Memories(channel="hook", embedder="fake") as memories:
        memories.create_many(
            [Draft("The user likes tea"), Draft("The harbour is closed on Mondays", key="harbour")]
        )
    memory("import", "-", stdin=FILE.replace("ferry/time", "ferry/hour"))
    memory("review", "reject", "--yes", IDS[1])
    exported = memory("export").out
    other = ("--store", f"sqlite:///{folder}/other.db")
    assert memory("import", "-", "--dry-run", *other, stdin=exported).json["trusted"] is True
    done = memory("import", "-", *other, stdin=exported).json
    assert (done["trusted"], done["pending"], "import" in done) == (True, 4, False)
    assert memory("export", *other).out == exported
    assert ids(memory("review", *other)) == ids(memory("review"))
    waits = sorted(ids(memory("review")))
    memory("review", "accept", "--yes", *waits[:2], *other)
    memory("review", "reject", "--yes", waits[2], *other)
    before = memory("export", *other).out
    again = memory("import", "-", *other, stdin=exported)
    assert (again.code, again.json["conflict_count"], again.json["pending"]) == (0, 0, 0)
    assert memory("export", *other).out == before


def test_only_the_owner_of_the_key_can_sign_an_export(
    memory: Command, home: Path, folder: Path
) -> None:
    memory("create", "The ferry leaves at nine")
    exported = memory("export").out
    key = home / "export.key"
    assert (key.stat().st_mode & 0o777, key.stat().st_size) == (0o600, 32)
    assert memory("export").out == exported
    other = ("--store", f"sqlite:///{folder}/other.db", "--dry-run")
    last = json.loads(exported.splitlines()[-1])
    assert len(last["proof"]) == 64
    unsigned = exported.replace(f',"proof":"{last["proof"]}"', "")
    for forged in (
        unsigned,
        exported.replace(last["proof"], last["proof"][::-1]),
        exported.replace(f'"{last["proof"]}"', "null"),
        exported.replace(f'"{last["proof"]}"', '["' + last["proof"] + '"]'),
        exported.replace(f'"{last["proof"]}"', '"\u00fc"'),
        exported.replace(f'"{last["proof"]}"', r'"\ud800"'),
    ):
        assert forged != exported
        assert memory("import", "-", *other, stdin=forged).json["trusted"] is False
    assert memory("import", "-", *other, stdin=exported).json["trusted"] is True
    elsewhere = {"MEMORY_HOME": str(folder / "elsewhere")}
    assert memory("import", "-", *other, stdin=exported, env=elsewhere).json["trusted"] is False
    assert not (folder / "elsewhere").exists()
    key.write_bytes(os.urandom(32))
    assert memory("import", "-", *other, stdin=exported).json["trusted"] is False


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602])
def test_a_key_that_others_can_read_is_not_trusted(memory: Command, home: Path, mode: int) -> None:
    memory("create", "The ferry leaves at nine")
    exported = memory("export").out
    (home / "export.key").chmod(mode)
    for arguments in (["export"], ["import", "-"]):
        answer = memory(*arguments, stdin=exported)
        assert answer.code == 2
        assert f"chmod 600 {home / 'export.key'}" in answer.error
    assert memory("import", "-", "--trusted", stdin=exported).json["known"] == 1


def test_an_invalid_export_key_is_refused(memory: Command, home: Path, folder: Path) -> None:
    memory("create", "The ferry leaves at nine")
    key = home / "export.key"
    for spoil in (
        lambda: key.write_bytes(b"short"),
        key.mkdir,
        lambda: os.mkfifo(key, 0o600),
        lambda: key.symlink_to(folder / "key"),
    ):
        spoil()
        (folder / "key").write_bytes(bytes(32))
        (folder / "key").chmod(0o600)
        if not key.is_symlink():
            key.chmod(0o600)
        answer = memory("export")
        assert "export.key" in answer.err
        assert "proof" not in answer.out
        key.rmdir() if key.is_dir() and not key.is_symlink() else key.unlink()


def test_an_export_that_cannot_store_the_key_has_a_note(memory: Command, folder: Path) -> None:
    memory("create", "The ferry leaves at nine", "--store", f"sqlite:///{folder}/m.db")
    (folder / "file").write_text("")
    answer = memory(
        "export",
        "--store",
        f"sqlite:///{folder}/m.db",
        env={"MEMORY_HOME": str(folder / "file" / "home")},
    )
    assert answer.code == 0
    assert "nothing in this export proves that it is yours" in answer.err
    assert memory("import", "-", "--dry-run", stdin=answer.out).json["trusted"] is False


def test_a_foreign_file_adds_nothing_to_existing_memories(memory: Command) -> None:
    own = memory("create", "The ferry leaves at nine").json["id"]
    memory("turns", "add", "talk", "Zoe said hello")
    before = memory("export").out
    [turn, record] = [json.loads(each) for each in before.splitlines()[1:-1]]
    hostile = [
        export_of(memory_line(own, "The ferry was sold", 2)),
        export_of(record, memory_line(own, "The ferry was sold", 2)),
        export_of(
            memory_line(
                own, "The ferry was sold", 7, ended_at="2026-01-08T00:00:00.000Z", ended_by="delete"
            )
        ),
        export_of(turn_line(1, "Zoe said goodbye")),
        export_of(turn, turn_line(5, "Zoe said goodbye")),
    ]
    for file in hostile:
        answer = memory("import", "-", stdin=file)
        assert answer.code == 1
        assert "add --trusted" in json.loads(answer.out)["conflicts"][-1]["reason"]
        assert memory("export").out == before
    assert memory("import", "-", "--trusted", stdin=hostile[3]).json["imported"] == 1


def test_an_imported_conversation_can_be_continued(memory: Command) -> None:
    assert (
        memory(
            "import", "-", stdin=export_of(turn_line(0, "Hello"), turn_line(1, "Good day"))
        ).json["imported"]
        == 2
    )
    longer = export_of(
        turn_line(0, "Hello"), turn_line(1, "Good day"), turn_line(2, "How are you?")
    )
    done = memory("import", "-", stdin=longer).json
    assert (done["imported"], done["known"], done["pending"]) == (1, 2, 0)
    assert memory("turns", "show", "talk").json["count"] == 3


def test_accepting_an_import_claims_its_key_and_replaces_its_predecessor(memory: Command) -> None:
    mine = memory("create", "The ferry leaves at seven", "--key", "ferry/time").json["id"]
    old = memory("create", "Bob likes coffee").json["id"]
    file = export_of(
        memory_line(IDS[0], "The ferry leaves at nine", key="ferry/time"),
        memory_line(IDS[1], "Bob likes tea", fields={"supersedes": old}),
        memory_line(IDS[2], "Carol likes water", fields={"supersedes": IDS[5]}),
    )
    import_id = memory("import", "-", stdin=file).json["import"]
    assert ids(memory("list")) == {mine, old}
    assert memory("review", "accept", "--yes", "--import", import_id).json["accepted"] == 3
    assert ids(memory("list")) == {mine, IDS[1], IDS[2]}
    versions = memory("history", mine).json["versions"]
    assert [version["content"] for version in versions] == [
        "The ferry leaves at seven",
        "The ferry leaves at nine",
    ]
    found = [shape["labels"]["=trust"] for shape in records(memory) if shape["group"] == mine]
    assert found == ["agent", "imported"]


@pytest.mark.parametrize("version", [1, 2])
def test_exports_from_older_versions_can_be_read(memory: Command, version: int) -> None:
    memory("create", "The ferry leaves at nine")
    *lines, last = memory("export").out.splitlines(keepends=True)
    shape = json.loads(last)
    del shape["proof"]
    older = "".join(lines) + (json.dumps(shape) if version == 2 else "")
    older = older.replace('"version":2', f'"version":{version}', 1) if version == 1 else older
    memory("forget", next(iter(ids(memory("list")))), "--yes")
    done = memory("import", "-", stdin=older).json
    assert (done["imported"], done["pending"], done["trusted"]) == (1, 1, False)


def test_a_backup_is_restored_with_waiting_memories(memory: Command, folder: Path) -> None:
    memory("import", "-", stdin=FILE)
    exported = memory("export").out
    memory("backup", "backup.db")
    other = ("--store", f"sqlite:///{folder}/other.db")
    assert memory("restore", "./backup.db", *other).code == 0
    assert memory("export", *other).out == exported
    assert ids(memory("review", *other)) == WAITING
    (folder / "export.jsonl").write_text(exported)
    third = ("--store", f"sqlite:///{folder}/third.db")
    assert memory("restore", "./export.jsonl", *third).code == 0
    assert memory("export", *third).out == exported
    memory("migrate", "--to", f"sqlite:///{folder}/fourth.db")
    assert memory("export", "--store", f"sqlite:///{folder}/fourth.db").out == exported
    memory("reembed")
    assert memory("export").out == exported
