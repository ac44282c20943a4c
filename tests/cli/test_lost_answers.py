"""If an answer can't be printed, the error reports the change that was made; the exit code is 1."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.cli import COMMANDS, review, turns

Command = Callable[..., Any]
UNPRINTED = ", but the output could not be printed: "

# Each command that changes something, and the beginning of its error; the store has a deleted and a
# reinforceable memory.
CHANGES: Mapping[str, tuple[list[str], str]] = {
    "create": (["create", "a new statement"], "stored as "),
    "update": (["update", "ID", "other words"], "ID was updated, version 2"),
    "reinforce": (["reinforce", "ID"], "ID was reinforced"),
    "delete": (["delete", "ID"], "ID was deleted"),
    "restore": (["restore", "DELETED"], "DELETED was restored"),
    "review accept": (["review", "accept", "--yes", "WAITING"], "1 memory was accepted"),
    "review edit": (
        ["review", "edit", "--yes", "WAITING", "other words"],
        "1 memory was accepted",
    ),
    "review reject": (["review", "reject", "--yes", "WAITING"], "1 memory was rejected"),
    "confirm": (["confirm", "ID"], "ID was confirmed"),
    "tidy": (["tidy"], "0 proposals are waiting for review"),
    "move": (["move", "ID", "--to", "bob"], "1 were moved to bob"),
    "rollback": (["rollback", "--to", "2020-01-01"], "1 deleted"),
    "forget": (["forget", "ID", "--yes"], "ID was permanently forgotten"),
    "turns add": (["turns", "add", "trip", "hello"], "stored as trip#1"),
    "turns update": (["turns", "update", "trip", "--title", "Ferries"], "trip was updated"),
    "turns forget": (
        ["turns", "forget", "trip", "--yes"],
        "the conversation trip was permanently forgotten",
    ),
    "export": (["export", "--output", "out.jsonl"], "4 records were exported to out.jsonl"),
    "import": (["import", "in.jsonl"], "1 record was imported"),
    "migrate": (
        ["migrate", "--to", "sqlite:///copy.db"],
        "4 records were copied, and the copy was verified",
    ),
    "reembed": (["reembed"], "0 records were embedded with fake/1"),
    "backup": (["backup", "copy.db"], "a backup with 4 records was written to "),
    "doctor": (["doctor", "--salvage", "saved.jsonl"], "4 records were saved to saved.jsonl"),
    "off": (["off"], "hooks were switched off for "),
    "on": (["on"], "hooks were switched on for "),
    "trust": (["trust", ".", "--yes"], "FOLDER/.env is trusted"),
    "projects": (["projects", "alias", "a", "b"], "a is now another name for b"),
    "connect": (["connect", "zed"], "connected Zed"),
    "tokens create": (
        ["tokens", "create", "phone", "--allow", "bob:rw"],
        'the token "phone" was created',
    ),
    "tokens revoke": (["tokens", "revoke", "laptop"], 'the token "laptop" was revoked'),
}
READS = [
    *(
        "search",
        "get",
        "list",
        "history",
        "tags",
        "duplicates",
        "verify",
        "log",
        "status",
        "namespaces",
        "config",
        "context",
        "mcp",
        "chat",
    )
]
# These don't change the records of the store, or have their own tests.
OTHERS = ["edit", "serve", "hook", "capture", "stats", "prompt", "disconnect", "scratchpad"]
TURN_READS = ["tail", "show", "list"]


@pytest.fixture
def names(memory: Command, stored: Callable[..., str], folder: Path) -> dict[str, str]:
    """The ids for the placeholders in the commands; the file to import comes from another store."""
    other = f"sqlite:///{folder}/other.db"
    memory("create", "of another store", "--store", other)
    memory("export", "--output", "in.jsonl", "--store", other)
    kept, gone = stored("the ferry is red", "--decay", "reinforceable"), stored("the boat is blue")
    memory("delete", gone)
    memory("turns", "add", "trip", "when does it leave?")
    with Memories(embedder="fake") as memories:
        waiting = memories.create("the harbour is closed", pending=True).memory
    assert waiting is not None
    memory("tokens", "create", "laptop", "--allow", "bob:rw")
    (folder / ".env").write_text("DEFAULT_LIMIT=5\n")
    return {"ID": kept, "DELETED": gone, "WAITING": waiting.id, "FOLDER": str(folder)}


def fill_in(text: str, names: Mapping[str, str]) -> str:
    """Replace each placeholder with its id."""
    for name, found in sorted(names.items()):
        text = text.replace(name, found)
    return text


def test_every_command_that_changes_something_is_in_the_table() -> None:
    changes = {name.split()[0] for name in CHANGES}
    assert {name for name in COMMANDS if name not in changes} <= {*READS, *OTHERS}
    assert {
        f"turns {name}" for name in turns.turns.commands if name not in TURN_READS
    } <= CHANGES.keys()
    assert {f"review {name}" for name in review.review.commands if name != "list"} <= CHANGES.keys()


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.thorough
def test_a_full_disk_behind_standard_output_is_reported_with_the_change(
    memory: Command, process: Command, names: Mapping[str, str], name: str
) -> None:
    command, done = CHANGES[name]
    answer = process(*(names.get(word, word) for word in command), shell=">/dev/full")
    assert answer.code == 1
    assert answer.error.startswith(fill_in(done, names))
    assert f"{UNPRINTED}No space left on device" in answer.error


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("shell", "reason"), [(">&-", "Bad file descriptor"), (">&- <&-", "Bad file descriptor")]
)
def test_a_closed_standard_output_is_reported_with_the_change(
    memory: Command, process: Command, shell: str, reason: str
) -> None:
    answer = process("create", "the ferry is red", shell=shell)
    [stored] = memory("list").json["results"]
    again = "running the command again stores nothing twice"
    assert (answer.code, answer.error) == (
        1,
        f"stored as {stored['id']}{UNPRINTED}{reason}; {again}",
    )


def test_a_closed_pipe_is_reported_with_the_change(memory: Command) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "memories", "turns", "add", "trip", "hello"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout is not None
    running.stdout.close()
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 1
    assert json.loads(errors)["error"].startswith(f"stored as trip#0{UNPRINTED}Broken pipe")
    assert memory("turns", "tail", "trip").json["count"] == 1


def test_the_error_says_whether_a_turn_can_be_sent_again(memory: Command, process: Command) -> None:
    answer = process("turns", "add", "trip", "hello", "--message-id", "a", shell=">/dev/full")
    assert answer.error.startswith("stored as trip#0, ")
    assert answer.error.endswith(
        "; the message id is now known, so running the command again stores nothing twice"
    )
    answer = process("turns", "add", "trip", "hello", "--message-id", "a", shell=">/dev/full")
    assert answer.error.startswith("nothing new was stored, but the output ")
    assert answer.error.endswith("; running the command again is harmless")
    assert memory("turns", "tail", "trip").json["count"] == 1
    answer = process("turns", "add", "trip", "hello", shell=">/dev/full")
    assert answer.error.endswith("; running the command again would store the same text twice")


def test_refused_memories_are_not_reported_as_stored(
    memory: Command, process: Command, stored: Callable[..., str]
) -> None:
    known = stored("the ferry is red")
    answer = process("create", "the ferry is red", shell=">/dev/full")
    assert answer.error.startswith(
        f"nothing new was stored, since the memory exists as {known}{UNPRINTED}"
    )
    assert "stored" not in process("create", "", shell=">/dev/full").error
    assert "stored" not in process("list", shell=">/dev/full").error
    assert memory("list").json["count"] == 1


@pytest.mark.parametrize(
    ("command", "done"),
    [
        (["tokens", "revoke", "a;b"], 'the token "a;b" was revoked'),
        (["export", "--output", "x;y.jsonl"], "0 records were exported to x;y.jsonl"),
        (["projects", "alias", "a;b", "c"], "a;b is now another name for c"),
    ],
)
def test_a_semicolon_in_a_name_does_not_garble_the_error(
    memory: Command, process: Command, command: list[str], done: str
) -> None:
    memory("tokens", "create", "a;b", "--allow", "bob:rw")
    answer = process(*command, shell=">/dev/full")
    assert answer.error == f"{done}{UNPRINTED}No space left on device"


def test_a_lost_answer_is_reported_in_the_chosen_format(process: Command) -> None:
    answer = process("create", "x", "--format", "text", shell=">/dev/full")
    assert answer.err.startswith("error: stored as ")
