"""`memory scratchpad`, `memory prompt`, `memory search --tier`, and their answers while the store
is down.
"""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.conftest import Command
from memories import Memories

DOWN = [
    "missing",
    "corrupt",
    "empty",
    "chroma://127.0.0.1:1",
    "qdrant://127.0.0.1:1",
    "postgresql://u@127.0.0.1:1/db",
]


@pytest.fixture
def down(memory: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Store two memories of bob; return a function that makes the store unavailable."""
    memory("create", "The user prefers tabs", "-n", "bob", "--type", "preference")
    memory("create", "Deploys happen on Tuesday", "-n", "bob")

    def take(how: str) -> None:
        if "://" in how:
            monkeypatch.setenv("MEMORY_STORE", how)
            return
        for file in home.glob("memories.db*"):
            file.unlink()
        if how != "missing":
            (home / "memories.db").write_bytes(b"x" * 9_000 if how == "corrupt" else b"")

    return take


def test_a_memory_is_pinned_shown_and_unpinned(memory: Command, stored: Callable[..., str]) -> None:
    name = stored("The user prefers tabs", "-n", "bob", "--key", "user/editor")
    stored("Deploys happen on Tuesday", "-n", "bob")
    assert memory("scratchpad", "pin", "--key", "user/editor", "-n", "bob").json["pinned"] is True
    shown = memory("scratchpad", "show", "-n", "bob").json
    assert [(each["content"], each["pinned"]) for each in shown["results"]] == [
        ("The user prefers tabs", True), ("Deploys happen on Tuesday", False),
    ]  # fmt: skip
    assert shown["file"].endswith("/bob/scratchpad.yaml")
    assert "pinned" in memory("scratchpad", "show", "-n", "bob", "--format", "text").out
    assert "[pinned]" in memory("scratchpad", "show", "-n", "bob", "--format", "compact").out
    assert "pinned" not in memory("scratchpad", "unpin", name, "-n", "bob").json
    assert memory("scratchpad", "pin", name, "-n", "alice").error == "Memory not found"
    assert memory("scratchpad", "show", "-n", "../etc").code == 2


def test_pins_are_exported(memory: Command, stored: Callable[..., str], tmp_path: Path) -> None:
    name = stored("The user prefers tabs", "-n", "bob")
    memory("scratchpad", "pin", name, "-n", "bob")
    memory("export", "-n", "bob", "--output", "out.jsonl")
    environment = {"MEMORY_HOME": str(tmp_path / "elsewhere")}
    memory("import", "out.jsonl", "--trusted", "-n", "bob", env=environment)
    assert (
        memory("scratchpad", "show", "-n", "bob", env=environment).json["results"][0]["pinned"]
        is True
    )
    memory("import", "out.jsonl", "-n", "carol", env=environment)
    assert (
        memory("scratchpad", "show", "-n", "carol", "--no-shared", env=environment).json["results"]
        == []
    )


def test_the_scratchpad_shows_imported_memories(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("The user prefers tabs", "-n", "bob")
    memory("export", "-n", "bob", "--output", "out.jsonl")
    memory("delete", memory("list", "-n", "bob").json["results"][0]["id"], "-n", "bob")
    memory("scratchpad", "show", "-n", "carol")
    text = Path("out.jsonl").read_text()
    Path("out.jsonl").write_text(text.replace('"bob"', '"carol"'))
    memory("import", "out.jsonl", "--trusted", "-n", "carol")
    contents = [
        each["content"] for each in memory("scratchpad", "show", "-n", "carol").json["results"]
    ]
    assert contents == [each["content"] for each in memory("list", "-n", "carol").json["results"]]


def test_every_command_applies_pending_scratchpad_edits(
    memory: Command, stored: Callable[..., str], home: Path
) -> None:
    name = stored("The user prefers tabs", "-n", "bob")
    file = home / "bob" / "scratchpad.yaml"
    file.write_text(file.read_text().replace("prefers tabs", "prefers spaces"))
    assert memory("get", name, "-n", "bob").json["content"] == "The user prefers spaces"
    edited = file.read_text().replace("memories:", "memories: }")
    file.write_text(edited)
    answer = memory("list", "-n", "bob")
    assert answer.json["count"] == 1
    assert answer.err.count("\n") == 1
    assert "scratchpad.yaml can't be read" in answer.err
    copy = file.with_name("scratchpad.edited.yaml")
    assert str(copy) in answer.err
    assert copy.read_text() == edited
    answer = memory("scratchpad", "show", "-n", "bob")
    assert str(copy) in answer.err
    assert len(answer.json["notes"]) == 1
    copy.unlink()
    file.write_text(edited)
    answer = memory("prompt", "-n", "bob")
    assert answer.err.count("scratchpad.yaml can't be read") == 1
    assert len(answer.json["notes"]) == 1
    file.write_text(edited)
    answer = memory("scratchpad", "rebuild", "-n", "bob")
    assert answer.code == 0
    assert str(copy) in answer.err
    assert memory("list", "-n", "bob").err == ""


def test_edit_opens_an_editor(
    terminal: Command, stored: Callable[..., str], memory: Command, tmp_path: Path
) -> None:
    memory_id = stored("The user prefers tabs", "-n", "bob")
    script = tmp_path / "editor.sh"
    script.write_text("#!/bin/sh\nsed -i 's/prefers tabs/prefers spaces/' \"$1\"\n")
    script.chmod(0o700)
    environment = {"EDITOR": str(script), "VISUAL": "", "EMBEDDER": "fake"}
    answer = terminal("scratchpad", "edit", "-n", "bob", env=environment)
    assert answer.code == 0
    assert f"scratchpad: memory {memory_id} now has version 2" in " ".join(answer.out.split())
    assert memory("list", "-n", "bob").json["results"][0]["content"] == "The user prefers spaces"
    script.write_text("#!/bin/sh\necho 'memories: [}' > \"$1\"\n")
    answer = terminal("scratchpad", "edit", "-n", "bob", env=environment)
    assert answer.code == 2
    assert "your text is kept in" in answer.out
    assert memory("scratchpad", "show", "-n", "bob").json["count"] == 1
    assert "there is no terminal" in memory("scratchpad", "edit", "-n", "bob").error


def test_earlier_rejected_edits_do_not_fail_a_new_edit(
    terminal: Command, stored: Callable[..., str], memory: Command, home: Path
) -> None:
    stored("The user prefers tabs", "-n", "bob")
    memory("scratchpad", "show", "-n", "bob")
    with (home / "bob" / "scratchpad.yaml").open("a") as stream:
        stream.write("bad: [yaml")
    memory("list", "-n", "bob")
    environment = {"EDITOR": "sed -i s/tabs/spaces/", "VISUAL": "", "EMBEDDER": "fake"}
    answer = terminal("scratchpad", "edit", "-n", "bob", env=environment)
    assert ("has version 2" in " ".join(answer.out.split()), answer.code) == (True, 0)
    environment["EDITOR"] = "sed -i s/spaces//;s/The.user.prefers//"
    answer = terminal("scratchpad", "edit", "-n", "bob", env=environment)
    assert ("was not saved" in " ".join(answer.out.split()), answer.code) == (True, 1)


def test_each_tier_answers_and_auto_chooses_one(
    memory: Command, stored: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored("The user prefers tabs", "-n", "bob")
    stored("Deploys happen on Tuesday", "-n", "bob", "--project", "shop")
    hot = memory("search", "which tabs does the user want?", "--tier", "hot", "-n", "bob").json
    assert (hot["tier"], [each["content"] for each in hot["results"]]) == (
        "hot",
        ["The user prefers tabs"],
    )
    assert memory("search", "quux flurb", "--tier", "hot", "-n", "bob").json["results"] == []
    auto = memory("search", "user tabs", "--tier", "auto", "-n", "bob").json
    assert (auto["tier"], auto["count"]) == ("hot", 1)
    assert memory("search", "user quux", "--tier", "auto", "-n", "bob").json["tier"] == "auto"
    deep = memory("search", "user tabs", "-n", "bob").json
    assert "tier" not in deep
    assert (
        memory("search", "deploys", "--tier", "hot", "-n", "bob", "--project", "other").json[
            "count"
        ]
        == 0
    )
    assert (
        memory("search", "deploys", "--tier", "hot", "-n", "bob", "--where", "project = shop").json[
            "count"
        ]
        == 1
    )
    assert (
        "01" in memory("search", "deploys", "--tier", "hot", "-n", "bob", "--format", "compact").out
    )
    assert (
        "can't answer this (as_of)"
        in memory("search", "x", "--tier", "hot", "--as-of", "2020-01-01").error
    )
    assert "tier must be" in memory("search", "x", "--tier", "cold").error


def test_the_hot_tier_loads_no_model(
    process: Command, stored: Callable[..., str], home: Path
) -> None:
    stored("The user prefers tabs", "-n", "bob")
    stored("Lunch is at noon")
    for name in ("bob", "shared"):
        process("scratchpad", "show", "-n", name)
    (home / "memories.db").rename(home / "aside.db")  # opening the store would now fail
    (home / "memories.db").symlink_to(home / "aside.db")
    import subprocess
    import sys

    script = """
import sys
from memories.__main__ import run
code = run(["search", "user tabs", "--tier", "hot", "-n", "bob"])
sys.stderr.write(repr(sorted({"numpy", "onnxruntime", "yaml"} & sys.modules.keys())))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert json.loads(done.stdout)["count"] == 1
    assert done.stderr == "[]"


@pytest.mark.first(2)
@pytest.mark.parametrize("how", DOWN)
def test_the_scratchpad_answers_when_the_store_is_down(
    memory: Command, down: Callable[[str], None], how: str
) -> None:
    down(how)
    environment = {"MEMORY_TIMEOUT_SECONDS": "20"}
    answer = memory("search", "which tabs?", "-n", "bob", env=environment)
    assert answer.code == 4
    assert (answer.json["degraded"], answer.json["tier"]) == (True, "hot")
    assert [each["content"] for each in answer.json["results"]] == ["The user prefers tabs"]
    assert answer.err.startswith(
        "this answer is from the scratchpad, because the store can't be used: "
    )
    assert answer.err.count("\n") == 1
    assert answer.json["error"]
    answer = memory("prompt", "-n", "bob", env=environment)
    assert (answer.code, answer.json["degraded"]) == (4, True)
    assert "The user prefers tabs" in answer.json["prompt"]
    assert "can't be reached" in answer.json["prompt"]
    answer = memory("context", "which tabs?", "-n", "bob", env=environment)
    assert (answer.code, answer.json["metadata"]["degraded"]) == (4, True)
    assert [each["text"] for each in answer.json["memories"]] == ["The user prefers tabs"]
    answer = memory("scratchpad", "show", "-n", "bob", env=environment)
    assert (answer.code, answer.json["degraded"], answer.json["count"]) == (4, True, 2)
    assert memory("search", "which tabs?", "-n", "alice", env=environment).code in (0, 1)
    assert memory("create", "something new", "-n", "bob", env=environment).code == 1
    assert memory("search", "tabs", "-n", "bob", "--in", "history", env=environment).code == 1
    assert memory("search", "tabs", "-n", "bob", "--as-of", "2020-01-01", env=environment).code == 1


@pytest.mark.cold  # a server has the lost file open, and reports that it was removed
def test_an_empty_store_does_not_replace_a_lost_one(
    memory: Command, home: Path, tmp_path: Path
) -> None:
    database, pad = home / "memories.db", home / "bob" / "scratchpad.yaml"
    backup = tmp_path / "backup.db"
    memory("create", "The user prefers tabs", "-n", "bob")
    memory("backup", str(backup))
    before = pad.read_bytes()
    for lost in ([database], list(home.glob("memories.db*"))):
        for file in lost:
            file.unlink()
        commands = ["create new", "create new -n bob", "list", "list -n alice", "get 01a1fdf1"]
        commands += ["export", "tags", "namespaces", "scratchpad rebuild -n bob", "turns list"]
        commands += ["namespaces delete bob", "log", "stats", "reembed", "tidy"]
        for command in commands:
            answer = memory(*command.split())
            assert answer.code == 1, command
            assert answer.error == (
                f"{database} is missing, but still mirrored by {pad}; put it back, restore a "
                "backup (memory restore FILE), or move each scratchpad away to start a new store"
            )
        named = memory("create", "new", "--store", f"sqlite:///{database}")
        assert f"memory restore --store sqlite:///{database} FILE" in named.error
        assert json.loads(memory("status").err)["status"] == "unhealthy"
        [finding] = json.loads(memory("doctor").out)["findings"]
        assert finding["what"] == f"{database} is missing, but still mirrored by {pad}"
        assert finding["remedy"].startswith("put it back, restore a backup (memory restore")
        assert (database.exists(), pad.read_bytes()) == (False, before)
        memory("restore", str(backup))
        assert memory("list", "-n", "bob").json["count"] == 1
        assert memory("scratchpad", "show", "-n", "bob").json["count"] == 1
        before = pad.read_bytes()


@pytest.mark.cold
@pytest.mark.parametrize("url", ["files:///{}/notes", "qdrant:///{}/notes", "sqlite:///notes"])
def test_an_empty_store_does_not_replace_a_lost_local_one(
    memory: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    store, pad, backup = tmp_path / "notes", home / "bob" / "scratchpad.yaml", tmp_path / "backup"
    environment = {"MEMORY_STORE": url.format(tmp_path)}
    memory("create", "The user prefers tabs", "-n", "bob", env=environment)
    memory("backup", str(backup), env=environment)
    before = pad.read_bytes()
    for file in tmp_path.glob("notes*"):
        file.rename(tmp_path / f"lost-{file.name}")
    commands = ["create new", "list", "get 01a1fdf1 -n bob", "namespaces list"]
    for command in [*commands, "scratchpad rebuild -n bob", "status"]:
        answer = memory(*command.split(), env=environment)
        assert answer.code == 1, command
        assert f"{store} is missing, but still mirrored by {pad}; put it back, " in answer.err
    memory("restore", str(backup), env=environment)
    assert memory("list", "-n", "bob", env=environment).json["count"] == 1
    assert (store.exists(), pad.read_bytes()) == (True, before)


@pytest.mark.cold
def test_an_emptied_files_store_is_not_reported_as_missing(
    memory: Command, home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "notes"
    environment = {"MEMORY_STORE": f"files:///{folder}"}
    memory("create", "The user prefers tabs", "-n", "bob", env=environment)
    shutil.rmtree(folder)
    folder.mkdir()
    answer = memory("list", env=environment)
    assert answer.code == 1
    assert answer.error.startswith(
        f"{folder} has no records, but is still mirrored by {home}/bob/scratchpad.yaml; put the "
        "records back, restore a backup (memory restore FILE), or"
    )


@pytest.mark.cold
def test_a_new_store_is_created_if_no_scratchpad_mirrors_a_lost_one(
    memory: Command, home: Path, tmp_path: Path
) -> None:
    memory("create", "The user prefers tabs", "-n", "bob")
    (home / "memories.db").rename(tmp_path / "moved.db")
    moved = {"MEMORY_STORE": f"sqlite:///{tmp_path}/moved.db"}
    elsewhere = {"MEMORY_STORE": f"sqlite:///{tmp_path}/elsewhere.db"}
    assert memory("create", "x", "--store", elsewhere["MEMORY_STORE"]).code == 0
    assert memory("create", "The user likes tea", "-n", "bob", env=elsewhere).code == 0
    assert memory("list", "-n", "bob", env=moved).json["count"] == 1
    assert memory("create", "x", "-n", "bob").code == 1
    (home / "bob" / "scratchpad.yaml").rename(tmp_path / "aside.yaml")
    assert memory("create", "A new beginning", "-n", "bob").code == 0
    assert memory("scratchpad", "show", "-n", "bob").json["count"] == 1


def test_every_tier_and_offline_answer_has_the_same_confidence_as_the_store(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts too compare the store's confidence with MEMORY_CONFIDENCE_MIN, so a model never gets
    a false confidence.
    """
    with Memories(namespace="bob") as memories:
        for number, (sure, days, decay) in enumerate(
            [
                (0.32, 0, "stable"),
                (0.5, 0, "reinforceable"),
                (0.9, 3, "contextual"),
                (1.0, 15, "reinforceable"),
            ]
        ):
            then = datetime.now(UTC) - timedelta(days=days)
            memories.create(
                f"ocelot sighting {number}",
                confidence=sure,
                decay=decay,
                created_at=then,
                force=True,
            )

    def answer(*options: str, **environment: str) -> dict[str, float]:
        found = memory("search", "ocelot sighting", "-n", "bob", *options, env=environment)
        assert found.code == (4 if "MEMORY_STORE" in environment else 0), found.err
        return {each["content"]: round(each["confidence"], 3) for each in found.json["results"]}

    down = {"MEMORY_STORE": "qdrant://127.0.0.1:1"}
    for options, settings in (
        ([], {}),
        (["--min-confidence", "0.6"], {}),
        (["--min-confidence", "0.95"], {}),
        (["--min-confidence", "0.1"], {"DECAY_HALF_LIFE_HOURS": "400"}),
        ([], {"DECAY_HALF_LIFE_HOURS": "2000"}),
        ([], {"MIN_CONFIDENCE": "0.6"}),
    ):
        deep = answer(*options, **settings)
        assert answer("--tier", "hot", *options, **settings) == deep
        assert answer("--tier", "auto", *options, **settings) == deep
        assert answer(*options, **settings, **down) == deep
    assert len(answer("--min-confidence", "0.6")) == 1

    def context(**environment: str) -> dict[str, float]:
        found = memory("context", "ocelot sighting", "-n", "bob", env=environment)
        return {each["text"]: round(each["confidence"], 3) for each in found.json["memories"]}

    assert len(context()) == 1
    assert context(**down) == context()
    assert context(MEMORY_CONFIDENCE_MIN="0.4", **down) == context(MEMORY_CONFIDENCE_MIN="0.4")


@pytest.mark.thorough
@pytest.mark.usefixtures("down")
@pytest.mark.cold  # a server has the store open, which prevents an exclusive lock
def test_a_hanging_store_has_a_deadline(memory: Command, home: Path) -> None:
    import subprocess
    import sys

    script = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("pragma locking_mode=exclusive")
connection.execute("begin exclusive")
connection.execute("create table if not exists zz(a)")
print("locked", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(home / "memories.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        code = "import sys; from memories.__main__ import main; main()"
        for command in (["search", "which tabs?"], ["prompt"], ["context", "which tabs?"]):
            done = subprocess.run(
                [sys.executable, "-c", code, *command, "-n", "bob"],
                capture_output=True, text=True, timeout=300, check=False,
                env={**__import__("os").environ, "MEMORY_TIMEOUT_SECONDS": "1"},
            )  # fmt: skip
            assert done.returncode == 4, done.stderr
            assert "The user prefers tabs" in done.stdout
            assert "1 s" in done.stderr  # it gave up at its own deadline, not at the store's
    finally:
        holder.communicate(b"", timeout=60)


def test_without_a_scratchpad_an_unreachable_store_is_an_error(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_STORE", "qdrant://127.0.0.1:1")
    for command in (["search", "x"], ["prompt"], ["scratchpad", "show"]):
        answer = memory(*command, "-n", "bob")
        assert (answer.code, answer.out) == (1, "")
        assert "Qdrant" in answer.error


def test_prompt_prints_the_session_block(memory: Command, stored: Callable[..., str]) -> None:
    name = stored("The user prefers tabs", "-n", "bob")
    shape = memory("prompt", "-n", "bob", "--project", "shop").json
    assert (shape["memories"], shape["sessions"], shape["pending_count"], shape["degraded"]) == (
        [name],
        [],
        0,
        False,
    )
    assert memory("prompt", "-n", "bob", "--format", "text").out.startswith("## Memory System\n")
    assert (
        "search_memories" in memory("prompt", "-n", "bob", "--for", "mcp", "--format", "text").out
    )
    for wrong in (["--budget", "0"], ["--budget", "x"], ["--for", "pigeon"]):
        answer = memory("prompt", "-n", "bob", *wrong)
        assert answer.code == 2
        assert "must be" in answer.error


@pytest.mark.cold  # a server creates a file when it starts
def test_a_scratchpad_does_not_exist_before_it_is_used(memory: Command, home: Path) -> None:
    assert memory("list", "-n", "bob").json["count"] == 0
    assert memory("search", "x", "-n", "bob").json["count"] == 0
    assert not home.exists() or [each.name for each in home.iterdir()] == ["events.jsonl"]


def test_a_hot_hit_with_an_ambiguous_beginning_is_left_to_the_store(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("The web proxy listens on port 80", "-n", "bob")
    for number in range(40):
        stored(f"note {number} about another part of the shop", "-n", "bob")
    memory(
        "scratchpad",
        "pin",
        stored("The web service listens on port 8080", "-n", "bob"),
        "-n",
        "bob",
    )
    assert memory("search", "web port 8080", "--tier", "auto", "-n", "bob").json["tier"] == "hot"
    auto = memory("search", "web port 80", "--tier", "auto", "-n", "bob").json
    assert (auto["tier"], auto["results"][0]["content"]) == (
        "auto",
        "The web proxy listens on port 80",
    )
    hot = memory("search", "web port 80", "--tier", "hot", "-n", "bob").json
    assert [each["score"] < 0.7 for each in hot["results"]] == [True]


@pytest.mark.parametrize(
    "filters",
    [
        ["--as-of", "2999-01-01"],
        ["--in", "all"],
        ["--min-similarity", "0.1"],
        ["--no-include-corrected"],
    ],
)
def test_auto_asks_the_store_for_filters_unknown_to_the_scratchpad(
    memory: Command, stored: Callable[..., str], filters: list[str]
) -> None:
    stored("The web service listens on port 8080", "-n", "bob")
    options = ("web port 8080", "-n", "bob", *filters)
    deep = memory("search", *options)
    auto = memory("search", *options, "--tier", "auto")
    assert (auto.code, auto.json["tier"], auto.json["count"]) == (0, "auto", 1)
    assert auto.json["results"] == deep.json["results"]
    assert memory("search", *options, "--tier", "hot").code == 2


@pytest.mark.cold  # a server has the store open
def test_without_the_store_auto_gives_the_same_answer_as_deep(
    memory: Command, stored: Callable[..., str], home: Path
) -> None:
    """The files are up to date, so the store is only asked for what they lack."""
    for name in ("bob", "shared"):
        stored("The user prefers tabs", "-n", name)
        memory("scratchpad", "show", "-n", name)
    for file in home.glob("memories.db-*"):
        file.unlink()
    with (home / "memories.db").open(
        "r+b"
    ) as file:  # still the file that the scratchpad belongs to
        file.write(b"x" * 9_000)
    deep = memory("search", "which tabs?", "-n", "bob")
    auto = memory("search", "which tabs?", "-n", "bob", "--tier", "auto")
    assert (auto.code, auto.json) == (deep.code, deep.json)
    assert (auto.code, auto.json["tier"], auto.json["count"]) == (4, "hot", 2)


def test_a_prompt_leaves_out_an_expired_memory_even_if_the_file_is_up_to_date(
    memory: Command,
) -> None:
    memory("create", "The office is in Rome.", "--valid-until", "2026-01-01")
    for _ in range(2):
        block = memory("prompt").json
        assert (block["memories"], block["left_out"]) == ([], {"expired": 1})
    shown = memory("scratchpad", "show", "--format", "text").out
    assert "expired: it was valid until 2026-01-01" in shown
