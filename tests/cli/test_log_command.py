"""`memory log`: the entries of each command in the audit log, and their verification."""

import os
import pwd
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memories import Memories, __version__
from memories.models import Actor
from memories.stores import audit_log
from memories.stores.audit_log import chain_of, parse_entry
from memories.stores.sqlite.store import SQLiteStore

Command = Callable[..., Any]


def changes(memory: Command, *options: str) -> list[tuple[Any, ...]]:
    """Return the changes in the log, oldest first: each action with its target."""
    answer = memory("log", "--limit", "1000", *options).json
    return [
        tuple(change.values()) for entry in answer["results"][::-1] for change in entry["changes"]
    ]


def test_every_command_that_changes_something_leaves_an_entry(
    memory: Command, folder: Path
) -> None:
    first = memory(
        "create", "Deploys happen on Tuesdays", "--decay", "reinforceable", "--key", "deploy"
    ).json["id"]
    memory("create", "Deploys happen on Tuesdays")
    memory("get", first)
    memory("search", "deploys")
    memory("update", first, "Deploys happen on Fridays")
    memory("reinforce", first)
    memory("delete", first)
    memory("restore", first)
    second = memory(
        "create", "Nothing is deployed any more", "--supersedes", first, "--force"
    ).json["id"]
    memory("turns", "add", "standup", "hello")
    memory("turns", "add", "standup", "-", stdin='{"content": "one"}\n{"content": "two"}\n')
    memory("turns", "forget", "standup", "--index", "1", "--yes")
    memory("forget", first, "--yes")
    memory("reembed")
    assert changes(memory) == [
        ("create", first, 1, 1),
        ("reinforce", first, 1, 1),
        ("update", first, 2, 2),
        ("reinforce", first, 2, 2),
        ("delete", first, 2, 2),
        ("restore", first, 3, 3),
        ("supersede", first, 3, 3),
        ("create", second, 1, 1),
        ("turns", "standup", 0, 0),
        ("turns", "standup", 1, 2),
        ("forget", "standup", 1, 1),
        ("forget", first, 1, 3),
    ]
    assert [change[0] for change in changes(memory, second[:18])] == ["supersede", "create"]
    memory("move", second, "--to", "ann")
    assert changes(memory, "--action", "move", "-n", "ann", "--no-shared") == [
        ("move", second, 1, 1)
    ]
    assert changes(memory, "--action", "forget")[1] == ("forget", first, 1, 3)
    newest = memory("log", "--limit", "1").json["results"][0]
    assert newest["channel"] == "cli"
    assert newest["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert newest["host"] == os.uname().nodename
    assert newest["program"] == __version__
    assert (
        list(newest)
        == "number at namespace channel user host program changes previous hash".split()
    )


def test_an_import_writes_one_log_entry_and_imports_no_log(memory: Command, folder: Path) -> None:
    memory("create", "About apples", "--force")
    memory("create", "About pears", "--force")
    memory("export", "--output", "all.jsonl")
    assert '"log"' not in Path("all.jsonl").read_text()
    store = ("--store", f"sqlite:///{folder}/other.db")
    memory("import", "all.jsonl", *store)
    assert [change[0] for change in changes(memory, *store)] == ["import", "import"]
    assert len(memory("log", *store).json["results"]) == 1
    header, *lines, _ = Path("all.jsonl").read_text().splitlines(keepends=True)
    forged = "".join(
        (header.replace('"version":2', '"version":1'), *lines)
    ) + (  # version 1 needs no last line
        '{"collection":"log","namespace":"shared","group":"\\u001f","position":1,"text":"[]",'
        '"created_at":"2026-01-02T10:00:00.000Z"}\n'
    )
    Path("forged.jsonl").write_text(forged)
    answer = memory("import", "forged.jsonl", "--store", f"sqlite:///{folder}/third.db")
    assert answer.code == 2
    assert "collection" in answer.error


def test_verify_reports_whether_the_log_is_intact(memory: Command, home: Path) -> None:
    assert memory("log", "--verify").json["logs"][0]["entries"] == 0
    assert memory("log").json == {"results": [], "count": 0}
    for text in ("About apples", "About pears", "About plums"):
        memory("create", text, "--force")
    [log] = memory("log", "--verify").json["logs"]
    assert (log["entries"], log["problem"], log["forks"], log["unlogged"]) == (3, None, [], 0)
    assert log["head"] == memory("log").json["results"][0]["hash"]
    assert memory("log", "--verify", "--against", log["head"]).json["verified"] is True
    shown = memory("log", "--verify", "--format", "text").out
    assert "intact" in shown
    assert log["head"] in shown
    store = SQLiteStore(home / "memories.db", None)
    last = store.scan(chain_of("shared"), limit=1, newest_first=True)[0]
    store.remove([last.ref])
    store.close()
    for options in ((), ("--against", log["head"])):
        answer = memory("log", "--verify", *options)
        assert answer.code == 1
        assert '"verified": false' in answer.out
        assert "is not in the log: entries were removed" in answer.out
    assert "broken: " in memory("log", "--verify", "--format", "text").out
    assert parse_entry(last).hash == log["head"]


def test_a_log_without_entries_is_damaged_if_there_are_memories(
    memory: Command, home: Path
) -> None:
    memory("create", "About apples")
    store = SQLiteStore(home / "memories.db", None)
    store.remove(store.refs(chain_of("shared")))
    store.close()
    answer = memory("log", "--verify")
    assert answer.code == 1
    assert '"unlogged": 1' in answer.out
    assert (
        "is not in the log: entries were removed, or another program or an older version wrote "
        "that record"
    ) in answer.out
    memory("create", "About pears")  # the log begins anew
    assert memory("log", "--verify").json["logs"][0]["unlogged"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--against", "0" * 64), "--against requires --verify"),
        (
            ("--verify", "--against", "12ab"),
            "against must be the hash that memory log --verify prints as head",
        ),
        (
            ("--verify", "--action", "create"),
            "--verify checks the entire log; omit the filters",
        ),
        (("--action", "read"), '"read" is not an action; use create, update'),
        (("--limit", "0"), "limit"),
        (("--since", "sometime"), "sometime"),
        (("--since", "1d", "--until", "2d"), "since is later than until"),
        (("01a1fdf1", "--conversation", "standup"), "give only one"),
        ((" ",), "is not a memory id"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    memory: Command, home: Path, arguments: tuple[str, ...], said: str
) -> None:
    answer = memory("log", *arguments)
    assert answer.code == 2
    assert said in answer.error
    assert not (home / "memories.db").exists()


def test_the_log_can_be_filtered_by_action(memory: Command) -> None:
    with Memories() as memories:
        waiting = memories.create("Tea is served hot", pending=True).id
        assert waiting
        memories.review.accept([waiting])
    assert changes(memory, "--action", "accept") == [("accept", waiting, 1, 1)]


def test_the_text_of_a_log_names_the_action_the_user_and_the_channel(memory: Command) -> None:
    made = memory("create", "About apples", "--force").json["id"]
    memory("turns", "add", "stand\x1b[31mup", "hello")
    shown = memory("log", "--format", "text").out
    assert f"create {made} (version 1)" in shown
    assert "\x1b" not in shown
    assert f"{pwd.getpwuid(os.getuid()).pw_name}@{os.uname().nodename} by cli" in shown
    assert memory("log", "--conversation", "never", "--format", "text").out == "Nothing here.\n"


def test_the_store_does_not_contain_the_name_of_a_forgotten_conversation(
    memory: Command, home: Path
) -> None:
    memory("turns", "add", "quokka diary", "hello")
    memory("turns", "forget", "quokka diary", "--yes")
    assert [change[0] for change in changes(memory, "--conversation", "quokka diary")] == [
        "turns",
        "forget",
    ]
    assert all(change[1].startswith("#") for change in changes(memory))
    assert [
        file for file in home.rglob("*") if file.is_file() and b"quokka" in file.read_bytes()
    ] == []


def test_the_hash_of_an_entry_covers_every_part() -> None:
    entry = audit_log.ChainEntry(
        1,
        "ann",
        datetime(2026, 5, 1, tzinfo=UTC),
        Actor("cli", "u", "h", "1"),
        (("create", "a"),),
        "s",
        "",
    )
    others = [
        entry._replace(number=2),
        entry._replace(namespace="bob"),
        entry._replace(at=entry.at + timedelta(milliseconds=1)),
        entry._replace(actor=entry.actor._replace(user="v")),
        entry._replace(changes=(("update", "a"),)),
        entry._replace(salt="t"),
    ]
    hashes = {audit_log.hash_of(each, "") for each in (entry, *others)} | {
        audit_log.hash_of(entry, "before")
    }
    assert len(hashes) == 2 + len(others)


def test_a_long_log_entry_continues_in_the_next_entry() -> None:
    items = [f"m{number}" for number in range(audit_log.MAX_ITEMS + 1)]
    entries = audit_log.split_into_entries({"create": items[:3], "update": items[3:]})
    assert [sum(len(change) - 1 for change in changes) for changes in entries] == [
        audit_log.MAX_ITEMS,
        1,
    ]
    assert [item for changes in entries for _, *some in changes for item in some] == items


def test_a_store_restored_from_an_export_has_a_log(memory: Command, folder: Path) -> None:
    files = ("--store", f"files:///{folder}/files")
    memory("create", "About apples", *files)
    memory("turns", "add", "talk", "We ship on Friday", *files)
    memory("backup", "backup.jsonl", *files)
    for url in (f"sqlite:///{folder}/restored.db", f"files:///{folder}/restored"):
        assert memory("restore", "backup.jsonl", "--store", url).json["records"] == 2
        [log] = memory("log", "--verify", "--store", url).json["logs"]
        assert (log["entries"], log["unlogged"], log["problem"]) == (1, 0, None)
        [entry] = memory("log", "--store", url).json["results"]
        assert {change["action"] for change in entry["changes"]} == {"import"}
