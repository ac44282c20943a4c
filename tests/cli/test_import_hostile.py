"""Damaged and hostile input of `memory import SOURCE`: one sentence, and nothing is stored."""

import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
import zstandard

from memories.transfer.sources import database, reader

Command = Callable[..., Any]
SAMPLES = Path(__file__).parent / "samples"
CHATS = (SAMPLES / "chatgpt" / "conversations.json").read_bytes()


def zipped_export(*, chats: bytes = CHATS, name: str = "export.zip") -> bytes:
    """Return an archive as ChatGPT writes it."""
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("chat.html", "")
        archive.writestr("conversations.json", chats)
    return Path(name).read_bytes()


def damaged_export() -> bytes:
    """Return an archive with 20 damaged bytes."""
    data = bytearray(zipped_export())
    start = data.index(b"conversations.json") + 60
    data[start : start + 20] = bytes(20)
    return bytes(data)


def nested(depth: int) -> bytes:
    """Return nested lists as JSON."""
    return b"[" * depth + b"]" * depth


def import_error(memory: Command, *arguments: str) -> str:
    """Return the error of an import that stores nothing."""
    answer = memory("import", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert "\n" not in answer.error
    assert len(answer.error) < 400
    assert memory("export").out.count("\n") == 2
    return str(answer.error)


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: CHATS[:1500], "is truncated"),
        (lambda: zipped_export()[:300], "a ZIP archive that is truncated"),
        (damaged_export, "is not a complete ZIP archive"),
        (lambda: zipped_export(chats=CHATS[:1500]), "is truncated"),
        (lambda: zipped_export(chats=b"not json"), "is not JSON"),
        (lambda: CHATS.decode().encode("utf-16"), "UTF-16"),
        (lambda: CHATS.replace(b"Lisbon", b"\xc9vora"), "is not JSON"),
        (lambda: nested(100_000), "nested too deep"),
        (lambda: b'[{"mapping": NaN, "title": 1}]', "is not JSON"),
        (lambda: b"", "the export is empty"),
        (lambda: b"SQLite format 3\0" + b"\1" * 5000, "a SQLite database"),
    ],
)
def test_a_damaged_file_is_refused_before_anything_is_stored(
    memory: Command, folder: Path, make: Callable[[], bytes], problem: str
) -> None:
    (folder / "given").write_bytes(make())
    assert problem in import_error(memory, "given")


def test_an_archive_that_unpacks_to_too_much_data_is_refused(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_RATIO_FROM", 1_000_000)
    zipped_export(chats=b" " * 5_000_000)
    assert "would unpack to" in import_error(memory, "export.zip")


def test_an_oversized_value_is_refused(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_VALUE_BYTES", 100_000)
    (folder / "given").write_text(json.dumps([{"title": "x", "mapping": "y" * 300_000}]))
    assert "a single value of more than" in import_error(memory, "given")


def test_deeply_nested_or_oversized_entries_are_left_out(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_VALUE_BYTES", 100_000)
    large = {"title": "x", "mapping": {}, "current_node": "n", "list": ["word"] * 20_000}
    deep = b'{"title": "x", "mapping": {}, "x": ' + nested(100_000) + b"}"
    chats = CHATS.strip().removesuffix(b"]")
    data = b",".join([chats, json.dumps(large).encode(), deep]) + b"]"
    (folder / "given").write_bytes(data)
    answer = memory("import", "given").json
    assert answer["skipped"]["entries that are too large or too deeply nested"] == 2
    assert (answer["turns"], answer["memories"]) == (4, 3)


def test_overlong_lines_and_lines_that_are_not_json_are_left_out(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 1_000_000)
    lines = [
        b'{"text": "One"}',
        b'{"text": "' + b"x" * 2_000_000 + b'"}',
        b'{"text": ' + nested(100_000) + b"}",
        b"\xff\xfe\0",
        b'{"text": "Two"}',
    ]
    (folder / "notes.jsonl").write_bytes(b"\n".join(lines))
    answer = memory("import", "notes.jsonl").json
    assert (answer["memories"], sum(answer["skipped"].values())) == (2, 3)


def test_links_out_of_the_folder_pipes_and_devices_are_ignored(
    memory: Command, folder: Path
) -> None:
    (folder / "secret.jsonl").write_text('{"text": "A secret"}\n')
    inner = folder / "inner"
    inner.mkdir()
    (inner / "out.jsonl").symlink_to(folder / "secret.jsonl")
    (inner / "around").symlink_to(inner)
    os.mkfifo(inner / "pipe.jsonl")
    (inner / "real.jsonl").write_text('{"text": "No secret"}\n')
    answer = memory("import", "inner").json
    assert (answer["memories"], answer["skipped"]) == (1, {"links out of the folder": 1})


def test_links_and_pipes_next_to_a_session_are_not_read(memory: Command, folder: Path) -> None:
    outside, storage = folder / "outside", folder / "storage"
    for name in ("message/ses_1", "part/msg_1"):
        (outside / name).mkdir(parents=True)
    (outside / "message" / "ses_1" / "msg_1.json").write_text('{"role": "user"}')
    (outside / "part" / "msg_1" / "prt_1.json").write_text('{"type": "text", "text": "Secret"}')
    (storage / "session" / "global").mkdir(parents=True)
    (storage / "session" / "global" / "ses_1.json").write_text("{}")
    for name in ("message", "part"):
        (storage / name).symlink_to(outside / name)
    assert memory("import", "opencode", "storage").json["imported"] == 0

    chats = folder / "gemini" / "shop" / "chats"
    shutil.copytree(SAMPLES / "gemini" / "shop" / "chats", chats)
    (folder / "place").write_text("/home/ann/secret-place")
    root = chats.parent / ".project_root"
    for make in (lambda: root.symlink_to(folder / "place"), lambda: os.mkfifo(root)):
        make()
        assert memory("import", "gemini", "gemini", "--dry-run").json["turns"]
        root.unlink()
    agents = folder / "claude" / "p" / "s1" / "subagents"
    agents.mkdir(parents=True)
    [session] = (SAMPLES / "claude-code").rglob("s1.jsonl")
    (agents / "agent-1.jsonl").write_bytes(session.read_bytes())
    os.mkfifo(agents / "agent-1.meta.json")
    arguments = ("import", "claude-code", "claude", "--include", "subagents")
    assert memory(*arguments).json["turns"] == 3
    assert "secret-place" not in memory("export").out


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
@pytest.mark.parametrize("source", ["chatgpt", "claude-code", "opencode", "csv", "lines"])
def test_a_read_error_names_the_file_and_a_remedy(memory: Command, source: str) -> None:
    file = Path("/proc/self/mem").resolve()
    expected = f"cannot read {file}: Input/output error; use another copy"
    assert import_error(memory, source, str(file)) == expected
    assert import_error(memory, str(file)).startswith(f"cannot read {file}: ")
    lines = memory("create", "--lines", str(file))
    assert (lines.code, lines.error) == (2, expected)


def test_a_pipe_is_refused_as_a_database_and_a_linked_log_is_not_read(
    memory: Command, folder: Path
) -> None:
    os.mkfifo(folder / "opencode.db")
    assert "is not a regular file" in import_error(memory, "opencode", "opencode.db")
    (folder / "opencode.db").unlink()
    connection = apsw.Connection(str(folder / "opencode.db"))
    connection.execute((SAMPLES / "opencode" / "opencode.db.sql").read_text())
    connection.close()
    (folder / "other").write_text("mine")
    (folder / "opencode.db-wal").symlink_to(folder / "other")
    assert memory("import", "opencode", "opencode.db").json["turns"] == 4
    assert (folder / "other").read_text() == "mine"


def test_an_endless_view_is_not_read_as_a_table(memory: Command, folder: Path) -> None:
    connection = apsw.Connection(str(folder / "omega.db"))
    connection.execute(
        "CREATE VIEW memories AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS id, x AS node_id, hex(zeroblob(100000000)) AS content, 1 AS created_at FROM n"
    )
    connection.close()
    assert "omega.db has no table memories" in import_error(memory, "omega", "omega.db")


def test_an_overlong_value_in_a_database_is_left_out(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_MAX_VALUE_BYTES", 1_000)
    connection = apsw.Connection(str(folder / "omega.db"))
    connection.execute("CREATE TABLE memories (id INTEGER, node_id, content, created_at)")
    for number, text in enumerate(("Short", "é" * 501)):
        connection.execute("INSERT INTO memories VALUES (?, ?, ?, 1)", (number, number, text))
    connection.close()
    assert memory("import", "omega", "omega.db").json["memories"] == 1


def test_a_url_is_refused_for_a_source_that_is_a_file(memory: Command, folder: Path) -> None:
    (folder / "notes.jsonl").write_text('{"text": "Mine"}\n')
    assert "cannot read http:" in import_error(memory, "jsonl", "http://localhost:1")


@pytest.mark.first(12)
@pytest.mark.parametrize("source", ["markdown", "basic-memory", "okf", "anthropic"])
@pytest.mark.parametrize(
    "head",
    [
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
            for old, new in zip("abcdefghij", "bcdefghijk", strict=True)
        )
        + "title: *k\ntype: *k\ncreated: *k\nglobal: *k\nanchors: *k",
        "type: !!bool x",
        "type: !!int ''",
        "type: !!timestamp x",
        "type: !!python/object/apply:os.system [exit]",
        "created: 9999-99-99\ntype: note",
        "type: " + "[" * 900,
        "type: " + "{a: " * 60_000,
        "type: " + "x" * 100_000,
        "? [a]\n: b",
        "type: note\ntags: " + "9" * 10_000,
        "\0",
    ],
)
def test_malformed_frontmatter_does_not_break_an_import(
    memory: Command, folder: Path, source: str, head: str
) -> None:
    notes = folder / "memories"
    notes.mkdir()
    (notes / "a.md").write_text(f"---\n{head}\n---\nThe body of the page says this.\n")
    answer = memory("import", source, "memories").json
    assert answer["memories"] + sum(answer["skipped"].values()) == 1


def test_base64_images_are_replaced_by_their_type(memory: Command, folder: Path) -> None:
    image = "data:image/png;base64," + "iVBORw0KGgo+/" * 10_000
    lines = [{"text": f"A chart: ![x]({image}) of sales"}, {"text": f"{image}="}]
    (folder / "n.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert memory("import", "n.jsonl").json["memories"] == 2
    texts = [hit["content"] for hit in memory("review").json["results"]]
    assert sorted(texts) == ["A chart: ![x]([image/png]) of sales", "[image/png]"]


def test_archives_in_an_archive_share_its_limit(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_RATIO_FROM", 1_000_000)
    inner = zipped_export(chats=b"[" + b" " * 900_000 + b"]", name="conversations-0.zip")
    for name, count in (("few.zip", 1), ("many.zip", 40)):
        with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(count):
                archive.writestr(f"conversations-{number}.zip", inner)
    assert memory("import", "chatgpt", "few.zip", "--dry-run").code == 0
    assert "would unpack to" in import_error(memory, "chatgpt", "many.zip")


def test_a_source_without_any_known_entry_gets_a_note(memory: Command, folder: Path) -> None:
    lines = [{"type": "session_meta2", "payload": {}}, {"type": "response", "payload": {}}]
    (folder / "rollout-1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    answer = memory("import", "codex", "rollout-1.jsonl")
    assert answer.json["imported"] == 0
    assert "a newer version may understand this source" in " ".join(answer.err.split())


def test_impossible_times_are_replaced_by_inferred_ones(memory: Command, folder: Path) -> None:
    chats = json.loads(CHATS)
    nodes = chats[0]["mapping"]
    times = {"n2": 1e300, "n5": -5}
    for name, at in times.items():
        nodes[name]["message"]["create_time"] = at
    nodes = chats[1]["mapping"]
    nodes["a"]["message"]["create_time"] = "yesterday"
    nodes["b"]["message"]["create_time"] = 4_102_444_800
    (folder / "given").write_text(json.dumps(chats))
    answer = memory("import", "given").json
    assert answer["turns"] == 4
    turns = memory("turns", "show", "chatgpt:c-2").json["results"]
    assert all(turn["tags"]["time"] == "inferred" for turn in turns)
    assert turns[0]["created_at"] < turns[1]["created_at"] < "2050"


def test_wrong_types_and_invalid_characters_do_not_break_an_import(
    memory: Command, folder: Path
) -> None:
    message = {"author": {"role": "user"}, "content": {"parts": ["half \ud800 and \0 nul", 5]}}
    chats: list[Any] = [
        5, None, "x",
        {"title": [], "mapping": 5, "current_node": {}},
        {"title": 1, "mapping": {"a": 5, "b": {"message": 7, "parent": {}}}, "current_node": "b"},
        {"title": "a\0b", "id": "c\0", "mapping": {"n\0": {"message": message, "parent": "n\0"}}},
    ]  # fmt: skip
    (folder / "given").write_text(json.dumps(chats))
    answer = memory("import", "chatgpt", "given").json
    assert (answer["turns"], answer["skipped"]) == (1, {"entries that are not conversations": 4})


def test_a_database_in_use_is_read_from_a_copy_and_not_changed(
    memory: Command, folder: Path
) -> None:
    file = folder / "opencode.db"
    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute((SAMPLES / "opencode" / "opencode.db.sql").read_text())
    connection.execute("BEGIN EXCLUSIVE")
    before = {path.name: path.read_bytes() for path in folder.glob("opencode.db*")}
    assert memory("import", "opencode", str(file)).json["turns"] == 4
    assert {path.name: path.read_bytes() for path in folder.glob("opencode.db*")} == before
    connection.execute("ROLLBACK")
    connection.close()


def test_a_database_that_is_constantly_being_written_to_is_refused(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "opencode.db"
    connection = apsw.Connection(str(file))
    connection.execute((SAMPLES / "opencode" / "opencode.db.sql").read_text())
    connection.close()
    states = iter(range(100))
    monkeypatch.setattr(database, "_state", lambda _file: next(states))
    answer = memory("import", "opencode", str(file))
    assert (answer.code, "is constantly being written to" in answer.error) == (1, True)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("CREATE TABLE session (id, title, time_created)", "has no table part"),
        ("CREATE TABLE other (id)", "has no table session"),
        (
            "CREATE TABLE session (id, time_created)",
            "table session of opencode.db has no column title",
        ),
    ],
)
def test_the_error_about_another_version_of_a_database_names_the_missing_part(
    memory: Command, folder: Path, sql: str, problem: str
) -> None:
    connection = apsw.Connection(str(folder / "opencode.db"))
    connection.execute(f"{sql}; INSERT INTO {sql.split()[2]} VALUES ({sql.count(',') * '1,'}1)")
    connection.close()
    assert problem in import_error(memory, "opencode", "opencode.db")


def test_a_damaged_database_is_refused(memory: Command, folder: Path) -> None:
    (folder / "opencode.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)
    assert "can't be read as a database" in import_error(memory, "opencode", "opencode.db")
    (folder / "opencode.db").write_text("no database")
    assert "is not a SQLite database" in import_error(memory, "opencode", "opencode.db")


@pytest.mark.parametrize("source", ["", "markdown", "csv", "codex", "opencode"])
def test_an_archive_of_other_files_must_be_unpacked_first(
    memory: Command, folder: Path, source: str
) -> None:
    with zipfile.ZipFile(folder / "vault.zip", "w") as archive:
        archive.writestr("vault/note.md", "- The cat is grey\n" * 9)
    assert "; unpack it, and " in import_error(memory, *filter(None, [source]), "vault.zip")


def test_the_error_names_a_missing_source_or_path(memory: Command, folder: Path) -> None:
    (folder / "empty").mkdir()
    assert "no codex files are in the usual places" in import_error(memory, "codex")
    assert "cannot read nowhere: No such file" in import_error(memory, "codex", "nowhere")
    assert 'there is no source "codecs"' in import_error(memory, "codecs", "nowhere")
    assert "it is a folder in an unknown format" in import_error(memory, "empty")
    assert '"images" can\'t be included' in import_error(
        memory, "codex", "empty", "--include", "images"
    )


def test_files_from_an_older_opencode_version_are_imported(memory: Command, folder: Path) -> None:
    storage = folder / "storage"
    files = {
        "session/global/ses_1": {
            "id": "ses_1",
            "title": "New session - 2025",
            "directory": "/gone",
        },
        "message/ses_1/msg_1": {"role": "user", "time": {"created": 1_767_348_000_000}},
        "message/ses_1/msg_2": {
            "role": "assistant",
            "time": {"created": 1_767_348_001_000, "completed": 1_767_348_002_000},
        },
        "message/ses_1/msg_3": {"role": "assistant", "time": {"created": 1_767_348_003_000}},
        "part/msg_1/prt_1": {"id": "prt_1", "type": "text", "text": '"Which port is it?"\n'},
        "part/msg_2/prt_2": {"id": "prt_2", "type": "step-start"},
        "part/msg_2/prt_3": {"id": "prt_3", "type": "text", "text": "Port 5433"},
        "part/msg_3/prt_4": {"id": "prt_4", "type": "text", "text": "It i", "time": {"start": 1}},
    }
    for name, value in files.items():
        file = storage / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))
    answer = memory("import", "storage").json
    assert (answer["source"], answer["skipped"]) == ("opencode", {"unfinished answers": 1})
    turns = memory("turns", "show", "opencode:ses_1").json["results"]
    assert [turn["content"] for turn in turns] == ["Which port is it?", "Port 5433"]
    assert turns[0]["tags"]["project"] == "gone"


def test_the_archives_of_a_claude_export_are_imported_together(
    memory: Command, folder: Path
) -> None:
    sample = SAMPLES / "claude"
    with zipfile.ZipFile("conversations-000.zip", "w") as archive:
        archive.write(sample / "conversations.json", "conversations.json")
    with zipfile.ZipFile("memories-000.zip", "w") as archive:
        archive.write(sample / "memories" / "a.json", "memories/a.json")
        archive.write(sample / "projects" / "p-1.json", "projects/p-1.json")
    with zipfile.ZipFile("all.zip", "w") as archive:
        for name in ("conversations-000.zip", "memories-000.zip"):
            archive.write(name)
    inner = folder / "inner"
    inner.mkdir()
    for name in ("conversations-000.zip", "memories-000.zip"):
        Path(name).rename(inner / name)
    answer = memory("import", "inner").json
    assert (answer["source"], answer["turns"], answer["memories"]) == ("claude", 2, 4)
    assert memory("import", "all.zip").json["known"] == 6


def test_sessions_from_an_older_codex_version_without_ids_and_kinds_are_imported(
    memory: Command, folder: Path
) -> None:
    def said(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    lines = [
        {"id": "s1", "timestamp": "2025-06-01T10:00:00.000Z", "instructions": None},
        said("user", "<environment_context>here</environment_context>"),
        said("user", "<skill><name>pdf</name>Always use pypdf.</skill>"),
        said("user", "Again"),
        said("assistant", "Port 5433"),
        {"record_type": "state"},
        said("user", "Again"),
    ]
    (folder / "rollout-1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    answer = memory("import", "rollout-1.jsonl").json
    assert (answer["source"], answer["turns"]) == ("codex", 3)
    turns = memory("turns", "show", "codex:s1").json["results"]
    assert [turn["content"] for turn in turns] == ["Again", "Port 5433", "Again"]
    assert turns[0]["created_at"] < turns[1]["created_at"] < "2025-06-01T10:00:01"


def test_images_and_summaries_in_a_codex_session_are_left_out(
    memory: Command, folder: Path
) -> None:
    def said(role: str, *texts: str, **metadata: Any) -> dict[str, Any]:
        content = [{"type": "input_text", "text": text} for text in texts]
        payload = {"type": "message", "role": role, "content": content}
        line = {"timestamp": "2026-11-30T10:00:00Z", "type": "response_item", "payload": payload}
        return {**line, "metadata": {"client_authored": False, **metadata}}

    lines = [
        {"timestamp": "2026-11-30T10:00:00Z", "type": "session_meta", "payload": {"id": "s1"}},
        said("user", '<image name=[Image #1] path="/w/a.png">', "</image>", "What is it?"),
        said("assistant", "A plan."),
        said("assistant", "The user showed a plan.", compaction_output=True),
        said("user", "</image> is missing"),
    ]
    (folder / "rollout-1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert memory("import", "rollout-1.jsonl").json["turns"] == 3
    turns = memory("turns", "show", "codex:s1").json["results"]
    assert [turn["content"] for turn in turns] == ["What is it?", "A plan.", "</image> is missing"]


def write_compressed(folder: Path, data: bytes) -> Path:
    """Write a compressed session of Codex into a folder; return its path."""
    file = folder / "sessions" / "rollout-1.jsonl.zst"
    file.parent.mkdir()
    file.write_bytes(zstandard.compress(data))
    return file


def test_a_compressed_codex_session_is_read_like_any_other(memory: Command, folder: Path) -> None:
    [session] = (SAMPLES / "codex").rglob("rollout-*.jsonl")
    file = write_compressed(folder, session.read_bytes())
    for path in (str(file), "sessions"):
        preview = memory("import", path, "--dry-run").json
        assert (preview["source"], preview["turns"]) == ("codex", 4)
    assert memory("import", str(session)).json["turns"] == 4
    assert memory("import", "codex", "sessions").json["known"] == 4


def test_a_damaged_compressed_session_and_a_bomb_are_refused(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_compressed(folder, b" " * 5_000_000)
    monkeypatch.setattr(reader, "_RATIO_FROM", 1_000_000)
    assert "would unpack to" in import_error(memory, "codex", "sessions")
    file.write_bytes(file.read_bytes()[:20] + b"x" * 100)
    assert "rollout-1.jsonl.zst is damaged" in import_error(memory, "codex", "sessions")
    file.write_bytes(zstandard.compress(b'{"type": "session_meta"}\n' * 100)[:20])
    assert "is truncated or empty" in import_error(memory, "codex", "sessions")


@pytest.mark.first(1)
@pytest.mark.parametrize("lost", [1, 4, 100, 40_000])
def test_a_compressed_session_truncated_in_a_later_block_is_refused(
    memory: Command, folder: Path, lost: int
) -> None:
    [session] = (SAMPLES / "codex").rglob("rollout-*.jsonl")
    noise = "".join(chr(33 + byte % 90) for byte in random.Random(1).randbytes(400_000))
    line = json.dumps({"type": "compacted", "payload": {"message": noise}})
    data = session.read_bytes() + f"{line}\n".encode()
    file = write_compressed(folder, data)
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    second = zstandard.compress(b'{"type": "state"}\n')  # a second frame
    file.write_bytes(packed + second)
    assert memory("import", str(file), "--dry-run").json["turns"] == 4
    file.write_bytes((packed + second if lost == 1 else packed)[:-lost])
    for arguments in (["sessions"], [str(file)], ["codex", "sessions"]):
        assert "rollout-1.jsonl.zst is truncated or empty" in import_error(memory, *arguments)


def test_a_session_is_recognized_after_lines_of_other_kinds(memory: Command, folder: Path) -> None:
    session = (SAMPLES / "claude-code" / "-home-ann-shop" / "s1.jsonl").read_text()
    head = '{"type": "summary", "summary": "A title", "leafUuid": "x"}\n'
    (folder / "s.jsonl").write_text(head + session)
    assert memory("import", "s.jsonl").json["source"] == "claude-code"


def test_invalid_characters_are_removed_from_names(memory: Command, folder: Path) -> None:
    chats = json.loads(CHATS)[1:2]
    chats[0] |= {"title": "\x1b[2J" + "long " * 200, "id": "c\n2" + "x" * 400}
    del chats[0]["conversation_id"]
    for node in chats[0]["mapping"].values():
        node["message"]["metadata"] = {"model_slug": "\x1b]0;model\n" + "x" * 400}
        node["message"]["author"]["name"] = "Ann\n\x00"
    (folder / "given").write_text(json.dumps(chats))
    answer = memory("import", "given").json
    assert (answer["turns"], answer["skipped"]) == (2, {})
    assert "\x1b" not in memory("export").out


def test_a_path_that_is_not_valid_unicode_is_read(memory: Command, folder: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    inner = folder / name
    inner.mkdir()
    (inner / os.fsdecode(b"n\xe9.jsonl")).write_text('{"text": "Inside"}\n{"te')
    answer = memory("import", name).json
    assert (answer["memories"], sum(answer["skipped"].values())) == (1, 1)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_of_a_table_may_have_any_line_ending(memory: Command, folder: Path, end: str) -> None:
    (folder / "n.csv").write_bytes(f'text;tags{end}One;a{end}"Two{end}lines";b{end}'.encode())
    assert memory("import", "n.csv").json["memories"] == 2
    texts = [hit["content"] for hit in memory("review").json["results"]]
    assert sorted(texts) == ["One", "Two\nlines"]
