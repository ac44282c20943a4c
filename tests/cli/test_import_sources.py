"""Each source of `memory import`, tested with an example of its format in `samples`.

A sample is a folder with what the program wrote and `expected.json`. A file `NAME.sql` stands for
the database NAME.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from forkserver import ForkServer
from memories.cli.text import rivals
from memories.errors import StoreError
from memories.hooks.transcripts import Utterance
from memories.transfer import foreign
from memories.transfer.sources import SOURCES, recognize
from memories.write.review import Rivals
from memories.write.similar import Similar

if TYPE_CHECKING:
    import subprocess

Command = Callable[..., Any]
SAMPLES = Path(__file__).parent / "samples"
COUNTS = ("turns", "conversations", "memories", "first", "last", "skipped")


def expected(source: str) -> dict[str, Any]:
    """Return the expected answer to an import of a source's sample."""
    shape: dict[str, Any] = json.loads((SAMPLES / source / "expected.json").read_text())
    return shape


# Imports a source in small transactions; kills itself at the step with the given number, or prints
# the number of steps.
KILLED_IMPORT = """
import os, signal, sys
from memories.__main__ import run_by_server_or_here
from memories.transfer import foreign
foreign._BATCH = 1
last, path, steps = int(sys.argv[1]), sys.argv[2], 0
def step():
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)
def audit(event, arguments):
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in {"os.rename", "os.remove", "os.mkdir"}:
        step()
import apsw
def traced(connection):
    def statement(cursor, sql, bindings):
        step()
        return True
    connection.exec_trace = statement
apsw.connection_hooks.append(traced)
sys.addaudithook(audit)
assert run_by_server_or_here(["import", path, "--format", "json"]) == 0
sys.stdout.write(str(steps))
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """A server of processes that have imported the command."""
    prelude = (
        "from memories.__main__ import load_commands; load_commands()\n"
        "import memories.transfer.foreign, memories.stores.sqlite.store"
    )
    with contextlib.closing(ForkServer(prelude)) as server:
        yield server


@pytest.fixture
def import_until(
    forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> "Callable[[str, int], subprocess.CompletedProcess[str]]":
    """Return a function that imports a path into a new home and is killed at a step."""

    def run(path: str, step: int) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setenv("MEMORY_HOME", str(tmp_path / f"home {step}"))
        with contextlib.closing(
            forks.start(KILLED_IMPORT, step, path, folder=tmp_path, environment=os.environ)
        ) as started:
            return started.finish()

    return run


@pytest.fixture
def sample(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a sample so that its files can be changed, and returns the
    folder, or the file if there is only one.
    """

    def copy(source: str, pattern: str = "", replacement: str = "") -> Path:
        folder = tmp_path / "samples" / source
        shutil.copytree(SAMPLES / source, folder)
        (folder / "expected.json").unlink()
        for file in filter(Path.is_file, folder.rglob("*") if pattern else ()):
            file.write_text(re.sub(pattern, replacement, file.read_text()))
        for script in folder.rglob("*.sql"):
            database = apsw.Connection(str(script.with_suffix("")))
            database.execute(script.read_text())
            database.close()
            script.unlink()
        files = [file for file in folder.iterdir() if file.name != "expected.json"]
        return files[0] if len(files) == 1 else folder

    return copy


def contents(memory: Command, *options: str) -> list[str]:
    """Return the texts of all turns and memories, including those that wait for review."""
    exported = memory("export", *options).out.splitlines()
    return [json.loads(line)["text"] for line in exported[1:-1]]


def test_every_source_has_a_sample() -> None:
    assert {folder.name for folder in SAMPLES.iterdir()} == set(SOURCES)


@pytest.mark.parametrize("source", SOURCES)
def test_a_path_is_recognized_as_its_own_source(sample: Callable[..., Path], source: str) -> None:
    assert recognize(sample(source)) == source


@pytest.mark.first(6)
@pytest.mark.parametrize("source", SOURCES)
def test_a_source_is_previewed_imported_once_and_erased(
    memory: Command, sample: Callable[..., Path], source: str
) -> None:
    path, wanted = str(sample(source)), expected(source)
    counts = {name: wanted[name] for name in COUNTS if name in wanted}

    preview = memory("import", path, "--dry-run").json
    assert {name: preview[name] for name in counts} == counts
    assert memory("export").out.count("\n") == 2

    answer = memory("import", path).json
    assert {name: answer[name] for name in counts} == counts
    assert answer["pending"] == answer["memories"]
    stored = contents(memory)
    assert len(stored) == wanted["turns"] + wanted["memories"]
    for text in wanted["texts"]:
        assert text in stored

    again = memory("import", source, path).json
    assert (again["imported"], "import" in again) == (0, False)
    assert contents(memory) == stored

    where = f"import = {answer['import']}"
    memory("forget", "--where", where, "--in", "all", "--yes")
    assert contents(memory) == []


@pytest.mark.first(6)
@pytest.mark.parametrize("source", SOURCES)
def test_kinds_and_roles_of_the_wrong_type_do_not_break_an_import(
    memory: Command, sample: Callable[..., Path], source: str
) -> None:
    path = sample(source, r'("(?:type|role|sender)"): ?(?:"[^"]*"|\d)', r'\1: ["x"]')
    answer = memory("import", source, str(path))
    assert answer.code == 0 or answer.error.count("\n") == 0


def damaged(data: bytes) -> Iterator[bytes]:
    """Yield data damaged in many ways, as by accident or by an attacker."""
    half = len(data) // 2
    yield b""
    yield bytes(len(data))
    yield data[: half - 7]
    yield data[half:]
    yield data[:half] + bytes(range(256)) + data[half + 256 :]
    yield data[: half - half % 2] + b"\xff\xfe\xed\xa0\x80" + data[half - half % 2 :]
    yield data.replace(b'"', b"'")
    yield data.replace(b"2026", b"0000")
    yield data.replace(b"2026", b"9999999999999999999999")
    yield re.sub(rb"(?<=: )\d+(?=\D)", b"1e999", data)
    yield data.decode("latin-1").encode("utf-16")
    yield data.decode("latin-1").encode("utf-16-le")
    yield data.replace(b": ", b": " + b"[" * 100_000)
    yield data.replace(b"{", b'{"' + b"k" * 300_000 + b'": 1, ', 1)
    yield data.replace(b"\n", b"\r")
    yield b"\xef\xbb\xbf" * 2 + data
    yield data * 2


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "source",
    [
        "csv", "omega", "server-memory",
        *(pytest.param(source, marks=pytest.mark.thorough) for source in SOURCES),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_in_one_sentence_and_nothing_is_stored(
    memory: Command, sample: Callable[..., Path], source: str
) -> None:
    path = sample(source)
    files = [file for file in [path, *path.rglob("*")] if file.is_file()]
    for file in files:
        whole = file.read_bytes()
        for number, data in enumerate(damaged(whole)):
            file.write_bytes(data)
            answer = memory("import", source, str(path))
            if answer.code:
                assert answer.code in (1, 2), (file, number)
                assert 10 < len(answer.error) < 400, (file, number)
                assert contents(memory) == [], (file, number)
            elif "import" in answer.json:
                where = f"import = {answer.json['import']}"
                memory("forget", "--where", where, "--in", "all", "--yes")
        file.write_bytes(whole)


def test_the_working_folder_in_a_session_may_be_longer_than_any_path(
    memory: Command, sample: Callable[..., Path]
) -> None:
    path = sample("claude-code", r'"cwd": ?"[^"]*"', f'"cwd":"/home/{"shop" * 2_000}"')
    assert memory("import", str(path)).json["turns"] == 4


@pytest.mark.first(6)
@pytest.mark.parametrize("source", SOURCES)
def test_a_question_about_imported_memories_is_answered(
    memory: Command, sample: Callable[..., Path], source: str
) -> None:
    wanted = expected(source)
    memory("import", str(sample(source)))
    memory("review", "accept", "--all", "--yes")
    hits = memory("search", wanted["question"], "--in", "all").json["results"]
    assert any(wanted["answer"] in hit["content"] for hit in hits[:3])


def test_the_next_import_completes_a_failed_one(
    memory: Command, sample: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, append = str(sample("chatgpt")), foreign.append
    batches: list[Any] = []

    def fail_at_the_second(*arguments: Any) -> Any:
        batches.append(arguments)
        if len(batches) == 2:
            raise StoreError("the disk is full")
        return append(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(foreign, "append", fail_at_the_second)
        stopped = memory("import", path)
    assert (stopped.code, stopped.out) == (1, "")
    advice = "to erase it, except memories changed since: memory forget --where 'import = "
    assert advice in stopped.err
    answer = memory("import", path).json
    assert (answer["turns"], answer["memories"], answer["known"]) == (2, 3, 2)
    assert len(set(contents(memory))) == 7


def test_erasing_an_import_keeps_memories_changed_since(memory: Command, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("# Notes\n\n" + "".join(f"- The {n} is {n} years old\n" for n in range(6)))
    store = f"sqlite:///{tmp_path}/other.db"
    given = ("--store", store)
    env = {"EMBEDDER": "none"}
    text = memory("import", str(notes), *given, "--format", "text", env=env).out
    remedy = f"memory reembed --store {store} adds the missing vectors, unless EMBEDDER=none.\n"
    assert remedy in text
    undo = shlex.split(text.partition("except memories changed since: ")[2])[1:]
    memory("review", "accept", "--all", "--yes", *given, env=env)
    rows = memory("list", *given, env=env).json["results"]
    edited, tagged, restored, confirmed, pinned, _ = [row["id"] for row in rows]
    memory("update", edited, "The oak is old", *given, env=env)
    memory("update", tagged, "--tag", "kind=tree", *given, env=env)
    memory("delete", restored, *given, env=env)
    memory("restore", restored, *given, env=env)
    memory("confirm", confirmed, *given, env=env)
    memory("scratchpad", "pin", pinned, *given, env=env)
    assert memory(*undo, "--yes", env=env).json["counts"] == {"forget": 2}
    left = {row["id"] for row in memory("list", *given, env=env).json["results"]}
    assert left == {edited, tagged, restored, confirmed}
    assert memory(*undo, "--yes", env=env).json["count"] == 0


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("source", "kills"),
    [
        *((source, 2) for source in ("chatgpt", "claude-code", "opencode")),
        *(pytest.param(source, 10, marks=pytest.mark.thorough) for source in SOURCES),
    ],
)
def test_an_import_that_is_killed_at_any_step_can_be_completed_and_undone(
    memory: Command,
    sample: Callable[..., Path],
    import_until: Callable[..., "subprocess.CompletedProcess[str]"],
    source: str,
    kills: int,
) -> None:
    path = str(sample(source))
    whole = import_until(path, 0)
    assert whole.returncode == 0
    steps, texts = int(whole.stdout.rpartition("}")[2]), sorted(contents(memory))
    assert texts
    interrupted = 0
    for number in range(1, kills + 1):
        killed = import_until(path, steps * (number + 1) // (kills + 2))
        assert killed.returncode == -signal.SIGKILL
        stored = contents(memory)
        interrupted += 0 < len(stored) < len(texts)
        ids = re.findall(r"^Import (\S+);", killed.stderr, re.MULTILINE)
        assert ids or not stored
        second = memory("import", source, path).json
        assert sorted(contents(memory)) == texts
        assert second["known"] == len(stored)
        where = " or ".join(f"import = {name}" for name in [*ids, second.get("import")])
        memory("rollback", "--to", "1h", "--where", where)
        assert memory("review").json["count"] == 0
        memory("forget", "--where", where, "--in", "all", "--yes")
        assert contents(memory) == []
    assert interrupted or kills == 2 or len(texts) < 3


def test_a_preview_of_an_interrupted_import_counts_the_rest(
    memory: Command, sample: Callable[..., Path]
) -> None:
    file = sample("claude-code") / "s1.jsonl"
    memory("import", str(file))
    answer = memory("import", str(file.parent), "--dry-run").json
    assert (answer["turns"], answer["known"]) == (1, 3)


def test_an_agent_cannot_import_statements_as_the_users_own(
    memory: Command, sample: Callable[..., Path]
) -> None:
    file = str(sample("lines"))
    refused = memory("import", file, "--trusted", env={"CLAUDECODE": "1"})
    assert (refused.code, "for a person to decide" in refused.error) == (2, True)
    answer = memory("import", file, "--trusted").json
    assert (answer["memories"], answer["pending"]) == (2, 0)
    [first, _] = memory("list").json["results"]
    assert (first["origin"]["trust"], first["origin"]["channel"]) == ("user", "import")
    memory("rollback", "--to", "1h", "--where", f"import = {answer['import']}")
    assert memory("list").json["count"] == 0
    assert memory("import", file, "--trusted").json["known"] == 2


def test_a_trusted_import_names_known_statements_that_still_await_review(
    memory: Command, sample: Callable[..., Path]
) -> None:
    file = str(sample("lines"))
    assert memory("import", file).json["pending"] == 2
    waiting = "known statements that still await review; an import doesn't accept them"
    assert memory("import", file, "--trusted").json["skipped"][waiting] == 2
    memory("review", "accept", "--all", "--yes")
    assert waiting not in memory("import", file, "--trusted").json["skipped"]


def test_unknown_columns_are_named(memory: Command, folder: Path) -> None:
    (folder / "a.csv").write_text(
        "Content,kind,Colour,,Owner Name\nThe port is 80,fact,red,x,bob\n"
    )
    skipped = memory("import", "a.csv").json["skipped"]
    assert skipped == {"columns with unknown names: colour, owner name": 2}


def test_secrets_are_removed_before_anything_is_stored(memory: Command, folder: Path) -> None:
    key = "sk-ant-api03-" + "Ab3" * 30
    (folder / "notes.txt").write_text(f"The key of the robot is {key}\n")
    assert memory("import", "notes.txt").json["redacted"]
    assert key not in memory("export").out
    files = list(Path("..").rglob("memories.db*"))
    assert files
    assert all(key.encode() not in file.read_bytes() for file in files)


def test_a_review_shows_similar_memories_and_the_import_of_a_statement(
    memory: Command, folder: Path
) -> None:
    memory("create", "The staging database listens on port 5432")
    memory("create", "Anna leads the payment team")
    (folder / "notes.txt").write_text(
        "The staging database listens on port 5433\nAnna leads the payment team\nNews\n"
    )
    answer = memory("import", "notes.txt").json
    assert (answer["memories"], answer["known"]) == (2, 1)
    results = {result["content"]: result for result in memory("review").json["results"]}
    [similar] = results["The staging database listens on port 5433"]["similar_to"]
    assert similar["content"] == "The staging database listens on port 5432"
    assert "similar_to" not in results["News"]
    assert {result["import"] for result in results.values()} == {answer["import"]}
    page = memory("review", "--format", "text").out
    assert page.count(f"From import {answer['import']}:") == 1
    assert "(differs: numbers: 5432 -> 5433)" in page


def test_a_review_says_how_a_reworded_correction_differs(memory: Command, folder: Path) -> None:
    older = memory("create", "Dana's editor is Vim").json
    (folder / "notes.txt").write_text("Dana's editor is now Helix\n")
    memory("import", "notes.txt")
    [result] = memory("review").json["results"]
    assert result["similar_to"][0]["difference"] == "name: Vim -> Helix"
    line = f"  {older['id'][:18]}  Dana's editor is Vim"
    page = memory("review", "--format", "text").out
    assert f"{line}  (differs: name: Vim -> Helix)\n" in page
    accepted = memory("review", "accept", result["id"], "--yes", "--format", "text").out
    assert f"{line}  (similar: name: Vim -> Helix)\n" in accepted


def test_a_difference_that_cannot_be_named_is_left_out() -> None:
    similar = Similar("01a1fdf1-92cd-72f2", "Dana uses Vim", 0.5, datetime(2026, 1, 2, tzinfo=UTC))
    assert rivals(Rivals(None, (), (similar,))).endswith("Dana uses Vim  (differs)")


@pytest.mark.parametrize("identity", ["shared", "bob"])
def test_messages_captured_by_a_hook_are_recognized(
    identity: str, memory: Command, sample: Callable[..., Path]
) -> None:
    prompt = "Fix the login test"
    captured = Utterance("user", prompt, datetime.now(UTC))
    line = {"content": prompt, "role": "user", "message_id": captured.message_id}
    memory("turns", "add", "claude-code:s1", "-", "-n", identity, stdin=json.dumps(line))
    answer = memory("import", str(sample("claude-code"))).json
    assert answer["turns"] == 3


def test_opencode_summaries_and_the_quotes_that_it_adds_to_prompts_are_left_out(
    memory: Command, sample: Callable[..., Path]
) -> None:
    path = sample("opencode")
    database = apsw.Connection(str(path))
    database.execute(
        "UPDATE part SET data = json_set(data, '$.text', ?) WHERE data LIKE '%Which port%'",
        (r'"Is \"5433\" the port?"',),
    )
    database.execute(
        "UPDATE message SET data = json_set(data, '$.summary', json('true')) "
        "WHERE id = (SELECT message_id FROM part WHERE data LIKE '%It was port 5433.%')"
    )
    database.close()
    said = memory("import", str(path)).json
    assert said["skipped"] == {"summaries": 1}
    assert 'Is "5433" the port?' in contents(memory)
    assert "It was port 5433." not in contents(memory)


def test_prompts_from_the_claude_code_terminal_are_imported_without_marks(
    memory: Command, folder: Path
) -> None:
    """A prompt may be typed, pasted, or sent while the model works."""
    typed = {"origin": {"kind": "human"}, "promptSource": "typed", "turnOrigin": "human"}
    pasted = '\n\n<pasted_content id="8b26">\nOne\nTwo\n</pasted_content id="8b26">\n'
    queued = {"type": "queued_command", "commandMode": "prompt", "origin": {"kind": "human"}}
    notice = {"type": "queued_command", "commandMode": "task-notification"}
    peer = {"origin": {"kind": "peer"}, "turnOrigin": "peer"}
    texts = ("<ide_selection>From a.py:\nport = 1\n</ide_selection>", "What is this?", "I ask you.")
    blocks = [{"type": "text", "text": text} for text in texts]
    lines: list[dict[str, Any]] = [
        typed | {"type": "user", "message": {"role": "user", "content": "Name the queue"}},
        {"type": "attachment", "attachment": queued | {"prompt": "Name it flamingo"}},
        {"type": "attachment", "attachment": notice | {"prompt": "An agent finished"}},
        peer | {"type": "user", "message": {"role": "user", "content": "Said by an agent"}},
        {"type": "assistant", "message": {"role": "assistant", "content": "It is flamingo"}},
        typed | {"type": "user", "message": {"role": "user", "content": pasted}},
        typed | {"type": "user", "message": {"role": "user", "content": blocks}},
        {"type": "user", "message": {"role": "user", "content": f"{texts[0]}\nWe use port 1."}},
    ]
    common = {"sessionId": "s1", "timestamp": "2026-05-01T10:00:00Z", "cwd": "/home/ann/shop"}
    numbered = [common | line | {"uuid": f"u{number}"} for number, line in enumerate(lines)]
    (folder / "s1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in numbered))
    memory("import", "claude-code", "s1.jsonl")
    turns = memory("turns", "show", "claude-code:u0").json["results"]
    assert [turn["content"] for turn in turns] == [
        "Name the queue", "Name it flamingo", "It is flamingo", "One\nTwo",
        "What is this?\nI ask you.", "We use port 1.",
    ]  # fmt: skip


def test_a_rollback_undoes_the_accepted_and_the_waiting_memories_of_an_import(
    memory: Command, sample: Callable[..., Path]
) -> None:
    memory("create", "Something else")
    import_id = memory("import", str(sample("lines"))).json["import"]
    [first, second] = memory("review").json["results"]
    memory("review", "accept", first["id"], "--yes")
    answer = memory("rollback", "--to", "1h", "--where", f"import = {import_id}").json
    assert answer["counts"] == {"delete": 1, "reject": 1}
    assert memory("review").json["count"] == 0
    assert [found["content"] for found in memory("list").json["results"]] == ["Something else"]
    memory("restore", second["id"])
    assert [found["id"] for found in memory("review").json["results"]] == [second["id"]]
