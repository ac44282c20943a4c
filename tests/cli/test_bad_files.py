"""Bad inputs in files and in JSON: each gets its exit code and one sentence, and nothing is stored.

The numbers are those of the project's list of 84 bad inputs; `test_bad_input` has arguments and
settings.
"""

import base64
import gzip
import io
import json
import os
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

Command = Callable[..., Any]
HEADER = '{"format":"memories","version":1}'
ID = "01a1fdf1-92cd-72f2-8000-0123456789ab"
MIB = 1_048_576


def line(**changed: Any) -> str:
    """Return a line of an export: a memory with some fields changed."""
    shape = {
        "collection": "memory", "namespace": "shared", "group": ID, "position": 1, "text": "content",
        "created_at": "2026-05-01T09:00:00.000Z", **changed,
    }  # fmt: skip
    return json.dumps({name: value for name, value in shape.items() if value is not None})


def export(*lines: str) -> bytes:
    """Return the bytes of an export with these lines."""
    return "".join(f"{each}\n" for each in (HEADER, *lines)).encode()


def vectors(*rows: Any) -> str:
    """Return a line of an export with these vectors."""
    return line(
        vectors=[base64.b64encode(np.array(row, dtype="<f4").tobytes()).decode() for row in rows]
    )


def zipped(**entries: bytes) -> bytes:
    """Return a ZIP file with these entries."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return made.getvalue()


def tarred() -> bytes:
    """Return a TAR file whose only entry is a link out of it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        link = tarfile.TarInfo("/etc/passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/shadow"
        archive.addfile(link)
    return made.getvalue()


def foreign_database(folder: Path) -> bytes:
    """Return a SQLite database of another program."""
    path = folder / "foreign.db"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE t (x); CREATE VIEW v AS SELECT x FROM t; CREATE TRIGGER g AFTER INSERT ON t BEGIN "
               "DELETE FROM t; END; CREATE VIRTUAL TABLE w USING fts5 (x)")  # fmt: skip
    db.close()
    return path.read_bytes()


def encrypted() -> bytes:
    """Return a ZIP file whose only entry is marked as encrypted."""
    data = bytearray(zipped(a=export(line())))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


UNSUPPORTED = "is not an export: it is "
# Input of `memory import FILE`: the row, the data, and a part of the sentence.
FILES: list[tuple[str, bytes | Callable[[Path], bytes], str]] = [
    (
        "7",
        export(line()) + b'{"text":"\xff"}\n',
        "line 3 is not UTF-8 (at byte 9); save it as UTF-8",
    ),
    ("8", export(line()).decode().encode("utf-16"), "UTF-16"),
    ("8", export(line()).decode().encode("utf-16-le"), "line 1"),
    ("33", export(line()[:-1] + ', "text": "b"}'), 'line 2 contains the key "text" twice'),
    (
        "33",
        b'{"format":"memories","version":1,"version":1}\n',
        'line 1 contains the key "version" twice',
    ),
    ("34", export(line()[:-1] + ', "fields": {"a": NaN}}'), "NaN is not a number"),
    ("34", export(line()[:-1] + ', "fields": {"a": 1e999}}'), "1e999 is not a number"),
    ("35", export("[" * 100_000), "line 2 is not JSON"),
    ("35", export(line(fields={"a": {"b": 1}})), 'has the field "a"'),
    ("36", export(line(position=2**63)), "has a position that is not a whole number"),
    (
        "36",
        export(line()[:-1] + ', "accesses": ' + "9" * 5_000 + "}"),
        "line 2 contains a number with too many digits",
    ),
    ("37", export(line()[:40]), "line 2 is not JSON"),
    ("37", export(line() + " {}"), "line 2 is not JSON (Extra data: line 1 column"),
    (
        "66",
        export(*[line(group=f"{ID[:-1]}{n}") for n in range(5)], "broken", line()),
        "line 7 is not JSON",
    ),
    ("68", b'{"format":"memories","version":5}\n', 'has version "5", but this program reads only'),
    ("71", zipped(**{"../../etc/passwd": b"x", "/abs": b"y"}), f"{UNSUPPORTED}a ZIP archive"),
    ("71", tarred(), UNSUPPORTED),
    ("72", lambda _: zipped(bomb=b"\0" * 50_000_000), f"{UNSUPPORTED}a ZIP archive"),
    ("72", gzip.compress(export(line())), f"{UNSUPPORTED}a gzip file"),
    ("73", encrypted(), f"{UNSUPPORTED}a ZIP archive"),
    ("73", zipped(a=export(line()))[:30], f"{UNSUPPORTED}a ZIP archive"),
    ("74", foreign_database, f"{UNSUPPORTED}a SQLite database"),
    ("75", pickle.dumps({"a": 1}), f"{UNSUPPORTED}a Python pickle"),
    ("75", b"a: !!python/object/apply:os.system ['true']\n", "line 1 is not JSON"),
    ("75", b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n", "line 1 is not JSON"),
    ("75", b"%YAML 1.2\n---\na: 1\n", f"{UNSUPPORTED}a YAML document"),
    ("76", export(vectors([1.0, 0.0], [1.0])), "has vectors that are not a list"),
    ("76", export(vectors([float("nan"), 1.0])), "has a vector that is not of length 1"),
    ("76", export(vectors([0.0, 0.0])), "has a vector that is not of length 1"),
    ("76", export(vectors([])), "has a"),
    ("76", export(line(vectors=[])), "has vectors that are not a list"),
    ("76", export(line(vectors=["no base64!"])), "has vectors that are not a list"),
    ("76", export(line(vectors=[1, 2])), "has vectors that are not a list"),
    ("29", export(line(usr_id="x")), 'has an unknown key "usr_id"'),
    ("30", export(line(text=5)), "content is of type int"),
    ("30", export(line(labels=["a"])), "has labels that are not an object"),
    ("22", export(line(group=None)), 'has no "group"'),
    ("24", export(line(group="x" * 300)), "has a group that is not text of 1 to 256 characters"),
    ("14", export(line(namespace="../etc")), "use a-z 0-9 . _ -"),
    ("57", export(line(created_at="2024-13-01")), "which is not an ISO 8601 time"),
    ("1", export(line(text="")), "content is empty"),
    ("3", export(line(text="a" * (MIB + 1))), f"content is {MIB + 1} bytes"),
    ("5", export(line(text="a\0b")), "content contains a NUL character"),
    ("6", export(line(text="\ud800")), "content is not valid Unicode"),
    ("html", b"<!DOCTYPE html>\n<html></html>\n", "line 1 is not JSON"),
    ("JSON, but no export", b'{"a": 1}\n', "is not the header of an export"),
    ("a long key", export(line(**{"k" * 5_000: 1})), "has an unknown key"),
]

# A line on the standard input of `memory turns add`: the row, the line, and a part of the sentence.
TURNS: list[tuple[str, bytes, str]] = [
    (
        "7",
        b'{"content":"\xff"}',
        "line 1 of input is not UTF-8 (byte 0xff at 12); save it as UTF-8",
    ),
    ("8", '{"content":"a"}'.encode("utf-16"), "input looks like UTF-16; save it as UTF-8"),
    ("33", b'{"content":"a","content":"b"}', 'line 1 contains the key "content" twice'),
    ("33", b'{"content":"a","tags":{"k":"a","k":"b"}}', 'line 1 contains the key "k" twice'),
    ("33", b'{"content":"a","text":"b"}', "line 1 contains a key twice, under both of its names"),
    ("34", b'{"content":"a","index":NaN}', "line 1 is not JSON (NaN is not a number)"),
    ("34", b'{"content":"a","index":1e999}', "line 1 is not JSON (1e999 is not a number)"),
    ("35", b'{"content":' + b"[" * 100_000, "line 1 is not JSON"),
    (
        "36",
        b'{"content":"a","index":9223372036854775808}',
        "index must be a whole number from 0 to",
    ),
    (
        "36",
        b'{"content":"a","index":' + b"9" * 5_000 + b"}",
        "line 1 contains a number with too many digits",
    ),
    (
        "37",
        b'{"content":"a"',
        "line 1 is not JSON (Expecting ',' delimiter: line 1 column 15 (char 14))",
    ),
    ("37", b'{"content":"a"} {}', "line 1 is not JSON (Extra data: line 1 column 17 (char 16))"),
    ("37", b"", "input contains no turns"),
    ("37", b"\n \n", "input contains no turns"),
    (
        "29",
        b'{"content":"a","usr_id":"x"}',
        "line 1 is not a turn: it must be a JSON object with content and only these",
    ),
    ("30", b'["a"]', "line 1 is not a turn"),
    ("30", b'"a"', "line 1 is not a turn"),
    ("30", b"null", "line 1 is not a turn"),
    ("30", b'{"content":["a"]}', "content is of type list; pass a string"),
    ("30", b'{"content":"a","index":true}', "index must be a whole number from 0 to"),
    ("30", b'{"content":"a","role":["user"]}', "is not one of user, assistant, system, tool"),
    ("30", b'{"content":"a","tags":["k"]}', "tags are of type list"),
    ("30", b'{"content":"a","speaker":5}', "speaker is of type int; pass a string"),
    ("31", b'{"content":"a","tags":{"a b":"c"}}', "leave out spaces, commas"),
    ("57", b'{"content":"a","created_at":"2024-13-01"}', "not a date or time"),
    ("57", b'{"content":"a","created_at":1e18}', "not a date or time"),
    ("1", b'{"content":""}', "content is empty"),
    ("2", '{"content":"\u200b"}'.encode(), "content has no visible text"),
    ("5", b'{"content":"a\\u0000b"}', "content contains a NUL character at position 1"),
    ("6", b'{"content":"a\\ud800"}', "content is not valid Unicode at position 1"),
]


def is_clean_sentence(error: str) -> bool:
    """Return whether an error is one line, without control characters and without a long piece of
    the input.
    """
    return len(error) < 400 and not re.search(
        "[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]|k{81}|9{81}|x{81}", error
    )


@pytest.mark.first(20)
@pytest.mark.parametrize(
    ("row", "data", "part"), FILES, ids=[f"{row}-{at}" for at, (row, _, _) in enumerate(FILES)]
)
def test_a_bad_file_is_refused_and_nothing_is_imported(
    memory: Command, folder: Path, row: str, data: bytes | Callable[[Path], bytes], part: str
) -> None:
    file = folder / "given"
    given = data if isinstance(data, bytes) else data(folder)
    file.write_bytes(given)
    for answer in (
        memory("import", "given"),
        memory("import", "-", stdin=given),
        memory("import", "given", "--dry-run"),
    ):
        assert (answer.code, answer.out) == (2, "")
        assert part in answer.error
        assert is_clean_sentence(answer.error), answer.error
    assert memory("list").json["count"] == 0
    assert file.read_bytes() == given


@pytest.mark.first(12)
@pytest.mark.parametrize(
    ("row", "data", "part"), TURNS, ids=[f"{row}-{at}" for at, (row, _, _) in enumerate(TURNS)]
)
def test_a_bad_turn_is_refused_and_no_turn_is_stored(
    memory: Command, row: str, data: bytes, part: str
) -> None:
    for good in (b"", b'{"content":"good"}\n') if data.strip() and row != "8" else (b"",):
        answer = memory("turns", "add", "trip", "-", stdin=good + data)
        assert (answer.code, answer.out) == (2, "")
        if not good:
            assert part in answer.error
        assert is_clean_sentence(answer.error), answer.error
    assert memory("turns", "tail", "trip").json["count"] == 0


def test_the_error_names_a_path_that_cannot_be_opened(memory: Command, folder: Path) -> None:
    """Row 64. For pipes and devices, see `test_transfer_commands`."""
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    for name, reason in (
        ("missing", "No such file or directory"), ("dangling", "No such file or directory"),
        ("loop", "Too many levels of symbolic links"), ("x" * 5_000, "File name too long"), ("a\0b", "null"),
        (".", "it is a folder"),
    ):  # fmt: skip
        answer = memory("import", name)
        assert answer.code == 2
        assert answer.error.startswith("cannot read ")
        assert reason in answer.error
        assert is_clean_sentence(answer.error)


def test_a_link_to_another_file_reveals_nothing_about_it(memory: Command, folder: Path) -> None:
    """Row 64."""
    (folder / "secret").write_text("root:$6$topsecret:19000:0:99999:7:::\n")
    (folder / "link").symlink_to("secret")
    answer = memory("import", "link")
    assert (answer.code, "secret:" in answer.err) == (2, False)


def test_a_repeated_import_changes_nothing_and_a_conflicting_one_is_refused(
    memory: Command,
) -> None:
    """Rows 69 and 70."""
    for imported, known in ((1, 0), (0, 1)):
        answer = memory("import", "-", stdin=export(line())).json
        assert (answer["imported"], answer["known"]) == (imported, known)
    answer = memory("import", "-", stdin=export(line(text="another")))
    assert (answer.code, json.loads(answer.out)["conflict_count"]) == (1, 1)
    assert [found["content"] for found in memory("list", "--pending").json["results"]] == [
        "content"
    ]


@pytest.mark.parametrize(
    ("name", "command", "code"),
    [
        ("home/memories.db", ("list",), 1),
        ("home/memories.db.shared.turns.jsonl", ("context", "hello", "--conversation", "c"), 0),
        ("home/memories.db.shared.turns.jsonl", ("turns", "forget", "c", "--yes"), 1),
        ("home/memories.db.shared.turns.jsonl.refused", ("status",), None),
        ("home/memories.db.lock", ("create", "x"), 0),
        ("home/config.toml", ("list",), None),
        ("home/trusted.json", ("trust", "--list"), None),
        ("here/.env", ("list",), 0),
        ("here/.env", ("trust", "--yes"), None),
        ("here/p", ("import", "p"), 2),
        ("here/p", ("restore", "./p"), 2),
        ("here/p", ("restore", "./p", "--replace"), 2),
        ("here/files/shared.jsonl", ("list", "--store", "files:files"), None),
    ],
)
@pytest.mark.thorough
def test_a_pipe_in_place_of_a_file_is_refused_at_once(
    process: Callable[..., Any],
    tmp_path: Path,
    name: str,
    command: tuple[str, ...],
    code: int | None,
) -> None:
    for folder in ("home", "here", "here/files"):
        (tmp_path / folder).mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "MEMORY_HOME": str(tmp_path / "home"), "EMBEDDER": "none"}
    where = {"cwd": tmp_path / "here", "env": environment}
    if name != "home/memories.db":
        assert process("create", "hello", **where).code == 0
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    answer = process(*command, **where)  # otherwise the test runs into its timeout
    assert answer.code == code if code is not None else answer.code in (0, 1, 2, 4)
    assert "Traceback" not in answer.err
