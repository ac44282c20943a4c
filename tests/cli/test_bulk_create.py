"""`memory create --jsonl` and `--lines`: many memories at once, with a result for each line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Command
from memories import Memories
from memories.cli import bulk


def parse_results(out: str) -> tuple[list[Any], Any]:
    """Return the result of each line, and the counts."""
    *lines, counts = map(json.loads, out.splitlines())
    return lines, counts


def contents(memory: Command) -> list[str]:
    """Return the contents of all memories, oldest first."""
    return [found["content"] for found in memory("list", "--limit", "1000").json["results"]][::-1]


def test_each_line_is_a_memory(memory: Command, folder: Path) -> None:
    (folder / "notes.txt").write_text(
        "Deploys happen on Tuesdays\n\n  \nThe user prefers tabs\r\nAnn leads the team"
    )
    answer = memory("create", "--lines", "notes.txt", "--project", "shop", "--decay", "contextual")
    assert answer.code == 0
    lines, counts = parse_results(answer.out)
    assert [(line["line"], line["stored"]) for line in lines] == [(1, True), (4, True), (5, True)]
    assert counts == {"lines": 3, "stored": 3, "known": 0, "duplicates": 0, "refused": 0}
    assert contents(memory) == [
        "Deploys happen on Tuesdays",
        "The user prefers tabs",
        "Ann leads the team",
    ]
    found = memory("get", lines[1]["id"]).json
    assert (found["project"], found["decay_policy"]) == ("shop", "contextual")


def test_an_object_sets_the_fields_of_its_memory(memory: Command) -> None:
    objects = [
        {
            "content": "Deploys happen on Tuesdays",
            "project": "shop",
            "type": "fact",
            "global": True,
            "tags": {"a": "b"},
        },
        {
            "text": "The user prefers tabs",
            "decay_policy": "contextual",
            "confidence": 0.5,
            "ts": "2024-05-31T10:00Z",
        },
        {"content": "The editor is Vim", "key": "user/editor", "source": "standup#3"},
        "Ann leads the web team",
    ]
    answer = memory(
        "create",
        "--jsonl",
        "-",
        "-t",
        "a=z",
        "--type",
        "note",
        stdin="\n".join(map(json.dumps, objects)),
    )
    assert answer.code == 0
    first, second, third, fourth = (
        memory("get", line["id"]).json for line in parse_results(answer.out)[0]
    )
    assert first["tags"] == {"a": "b", "global": "true", "project": "shop", "type": "fact"}
    assert (second["decay_policy"], second["base_confidence"]) == ("contextual", 0.5)
    assert second["created_at"] == "2024-05-31T10:00:00.000Z"
    assert second["tags"] == {"a": "z", "type": "note"}
    assert (third["key"], third["source"]) == ("user/editor", "standup#3")
    assert fourth["content"] == "Ann leads the web team"


@pytest.mark.first(10)
@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("nonsense", "it is not JSON ("),
        ('{"content": ' + "9" * 5000 + "}", "it contains a number with too many digits"),
        ('{"content": "a", "content": "b"}', 'it contains the key "content" twice'),
        ('{"content": "a", "text": "b"}', 'it contains "content" twice, under both of its names'),
        ("[1]", "it is neither a JSON object nor a quoted string"),
        ('{"tags": {}}', 'it contains no text under "content"'),
        ('{"content": 5}', 'it contains no text under "content"'),
        ('{"content": ""}', "content is empty"),
        ('{"content": "a", "mood": "b"}', 'it contains the key "mood"; use content, tags, decay'),
        ('{"content": "a", "tags": ["b"]}', 'its "tags" are not a JSON object'),
        ('{"content": "a", "tags": {"b": 1}}', 'tag "b" has a value of type int; pass a string'),
        ('{"content": "a", "project": 7}', 'tag "project" has a value of type int; pass a string'),
        ('{"content": "a", "decay": "never"}', "decay must be stable, contextual, reinforceable"),
        (
            '{"content": "a", "decay": ["stable"]}',
            "decay must be stable, contextual, reinforceable",
        ),
        ('{"content": "a", "confidence": "high"}', "confidence must be a number"),
        ('{"content": "a", "confidence": 2}', "confidence must be"),
        ('{"content": "a", "created_at": "soon"}', 'not a date or time: "soon"'),
        ('{"content": "a", "created_at": {}}', "not a date or time"),
        ('{"content": "a", "key": 5}', "key"),
        ('{"content": "a", "source": []}', "source"),
        ('{"content": "a", "supersedes": "ffffffff"}', "Memory not found"),
        ('{"content": "a", "supersedes": 5}', "a memory id must be text"),
        (b'{"content": "\xff"}', "it is not UTF-8 (byte 0xff at 13)"),
        ('{"content": "\\ud800"}', "content"),
        ("[" * 100_000, "it is not JSON (it is nested too deeply)"),
    ],
)
def test_a_refused_line_does_not_affect_the_others(
    memory: Command, line: str | bytes, error: str
) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    answer = memory(
        "create", "--jsonl", "-", stdin=b'"The first"\n' + data + b'\n"Something else"\n'
    )
    assert answer.code == 1
    lines, counts = parse_results(answer.out)
    assert [(found["line"], found["stored"]) for found in lines] == [
        (1, True),
        (2, False),
        (3, True),
    ]
    assert error in lines[1]["error"]
    assert counts == {"lines": 3, "stored": 2, "known": 0, "duplicates": 0, "refused": 1}
    assert contents(memory) == ["The first", "Something else"]


def test_existing_memories_are_not_stored_twice(memory: Command) -> None:
    memory(
        "create", "--lines", "-", stdin="Deploys happen on Tuesdays at 9:30\nThe user prefers tabs"
    )
    again = memory(
        "create", "--lines", "-", stdin="The user prefers tabs\nThe user prefers tabs.\nAnn leads"
    )
    lines, counts = parse_results(again.out)
    assert (again.code, counts["known"], counts["stored"]) == (0, 2, 1)
    assert lines[0]["id"] == lines[1]["id"]
    forced = memory("create", "--lines", "-", "--force", stdin="The user prefers tabs\n" * 600)
    assert parse_results(forced.out)[1]["stored"] == 600


def test_very_similar_lines_are_not_stored(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDER", "minilm")
    first = memory("create", "The user does not eat meat.").json
    answer = memory(
        "create", "--lines", "-", stdin="The user doesn't eat meat.\nAnn leads the web team"
    )
    lines, counts = parse_results(answer.out)
    assert (answer.code, counts["duplicates"], counts["stored"]) == (3, 1, 1)
    [other] = lines[0]["duplicates"]
    assert (other["id"], "content" in other) == (first["id"], False)
    refused = memory("create", "--lines", "-", stdin="The user doesn't eat meat.\n\0")
    assert refused.code == 1
    text = memory(
        "create", "--lines", "-", "--format", "text", stdin="The user doesn't eat meat."
    ).out
    assert text.splitlines()[0].split() == ["1", "duplicate", "of", first["id"]]


@pytest.mark.parametrize("output_format", ["text", "compact"])
def test_in_text_output_each_line_has_its_result(memory: Command, output_format: str) -> None:
    out = memory(
        "create", "--lines", "-", "--format", output_format, stdin="Ann leads\nAnn leads\n\0\n"
    ).out.splitlines()
    assert [line.split()[:2] for line in out[:3]] == [
        ["1", "stored"],
        ["2", "known"],
        ["3", "refused"],
    ]
    # The id of a stored line and the reason for a refusal begin in the same column.
    assert out[0][20:].startswith("01")
    assert out[2][20:].startswith("content contains a NUL character")
    assert out[3] == "3 lines, 1 stored, 1 known, 0 duplicates, 1 refused"


def test_an_overlong_line_is_refused(memory: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(bulk, "_READ_BYTES", 7)
    lines, counts = parse_results(
        memory("create", "--lines", "-", stdin=f"one\n{'x' * 5000}\n{'y' * 101}\n{'z' * 100}").out
    )
    assert [line["stored"] for line in lines] == [True, False, False, True]
    assert [line["line"] for line in lines] == [1, 2, 3, 4]
    assert "longer than the limit of 100 bytes" in lines[1]["error"]
    assert counts["refused"] == 2


def test_secrets_are_redacted_from_lines_too(memory: Command, home: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    answer = memory("create", "--lines", "-", stdin=f"The token is {secret}")
    assert parse_results(answer.out)[0][0]["redacted"]
    assert not [
        file for file in home.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "Missing argument 'CONTENT'; see memory create --help"),
        (
            ("x", "--lines", "-"),
            "CONTENT, --jsonl and --lines can't be combined; give one of them",
        ),
        (
            ("--jsonl", "-", "--lines", "-"),
            "CONTENT, --jsonl and --lines can't be combined; give one of them",
        ),
        (("--lines", "-", "--key", "a"), "in --jsonl, each line can have its own"),
        (("--lines", "-"), "the input has no lines; write one memory per line"),
        (("--lines", "nowhere.txt"), "cannot read nowhere.txt: No such file or directory"),
        (("--lines", "."), "cannot read .: Is a directory"),
        (("--lines", "a\0b"), "cannot read"),
    ],
)
def test_invalid_arguments_of_a_bulk_create_are_refused(
    memory: Command, home: Path, arguments: tuple[str, ...], error: str
) -> None:
    answer = memory("create", *arguments)
    assert answer.code == 2
    assert error in answer.error
    assert not home.exists()


def test_utf16_input_is_reported_only_once(memory: Command) -> None:
    answer = memory("create", "--lines", "-", stdin="Ann leads\n".encode("utf-16"))
    assert answer.error == "the input looks like UTF-16; save it as UTF-8"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_keeps_and_counts_the_reported_lines(folder: Path) -> None:
    command = [sys.executable, "-m", "memories", "create", "--lines", "-"]
    running = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ},
    )
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(
        b"".join(b"The %d. thing lies in place %d\n" % (n, n * n) for n in range(60))
    )
    running.stdin.flush()
    lines = [
        json.loads(running.stdout.readline()) for _ in range(60)
    ]  # every written line, although the input has not ended
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert (running.returncode, out) == (1, b"")
    error = json.loads(err)["error"]
    assert error.startswith(
        "all acceptable lines up to 60 are stored, but the command was interrupted"
    )
    assert error.endswith("running the command again stores nothing twice")
    with Memories() as memories:
        assert {found.id for found in memories.list(limit=1000).memories} == {
            line["id"] for line in lines
        }


@pytest.mark.thorough
def test_a_closed_pipe_ends_the_command_with_a_report(process: Command) -> None:
    stdin = "".join(f"The {n}. thing lies in place {n * n}\n" for n in range(600)).encode()
    answer = process("create", "--lines", "-", "--force", stdin=stdin, shell="| head -1")
    assert json.loads(answer.out)["line"] == 1
    if answer.err:  # the pipe may have taken all of it
        assert json.loads(answer.err)["error"].startswith("all acceptable lines up to ")
