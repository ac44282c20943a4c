"""The home of an earlier version's user keeps working: it opens, upgrades under `kill -9`,
reconnects and disconnects.

Each of `data/homes/*.tar.xz` is a home that `data/write_home.py` wrote with the program of that
version.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forkserver import ForkServer
from memories import __main__ as front_door
from memories.connect.status import FoundEntries, StartCheck

HOMES = sorted((Path(__file__).parent / "data" / "homes").glob("*.tar.xz"))
PROGRAM = Path(sys.executable).with_name("memory")
# Fields that depend on the time and place of a question, or that a better ranking may change.
PASSING = {
    "confidence",
    "score",
    "similarity",
    "calibrated",
    "access_count",
    "file",
    "folders",
    "next_cursor",
    "count",
}
# Questions whose answers change when a memory is created and a captured prompt is stored.
ADDED_TO = ("scratchpad", "shared", "waiting", "namespaces", "projects", "conversations")

Ask = Callable[..., Any]

sys.path.insert(0, str(Path(__file__).parent / "data"))
from write_home import HOSTS, QUESTIONS  # noqa: E402 - the earlier version got these questions

pytestmark = pytest.mark.skipif(
    not PROGRAM.exists(), reason="the command is not installed beside this Python"
)


@pytest.fixture(params=HOMES, ids=lambda home: home.name.removesuffix(".tar.xz"))
def user(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, unpacked as if it had always been in this place; the working folder is a
    project in it.
    """
    folder = unpack(request.param, tmp_path / "user")
    for variable in (
        "MEMORY_HOME",
        "PROJECT_DETECTION",
        "EMBEDDER",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder / "shop")
    return folder


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a home; replace the placeholders with the paths of this machine."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder.parent, filter="data")
    digests = {}
    for file in [file for file in folder.rglob("*") if file.is_file()]:
        data = file.read_bytes()
        if b"@USER@" in data or b"@PROGRAM@" in data:
            here = data.replace(b"@PROGRAM@", os.fsencode(PROGRAM)).replace(
                b"@USER@", os.fsencode(folder)
            )
            digests[hashlib.sha256(data).hexdigest()] = hashlib.sha256(here).hexdigest()
            file.write_bytes(here)
    register = folder / ".config" / "memories" / "connected.json"
    for receipt in (receipts := json.loads(register.read_text()))["connected"]:
        for written in receipt["files"]:
            written["after"] = hashlib.sha256(Path(written["path"]).read_bytes()).hexdigest()
    register.write_text(json.dumps(receipts))
    return folder


@pytest.fixture
def ask() -> Ask:
    """Run a command in this process; return its answer."""

    def run(*arguments: str, stdin: str = "") -> Any:
        with CliRunner().isolation(input=stdin) as (out, err, _):
            code = front_door.run_by_server_or_here([*arguments, "--format", "json"])
            sys.stdout.flush()
            printed, reported = out.getvalue().decode(), err.getvalue().decode()
        assert code == 0, (arguments, reported)
        return json.loads(printed)

    return run


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[FoundEntries]:
    """The connections that were checked. Each check succeeds without starting the program;
    `test_every_old_connection_still_works` starts it.
    """
    checked: list[FoundEntries] = []

    def check(entries: FoundEntries) -> StartCheck:
        checked.append(entries)
        return StartCheck(("search_memories",), 0.1)

    monkeypatch.setattr("memories.cli.connect.check_connection", check)
    monkeypatch.setattr("memories.connect.status.check_connection", check)
    return checked


EMPTY = (None, "", [], {})  # values that newer answers leave out


def before(user: Path) -> dict[str, Any]:
    """Return the answers of the earlier version."""
    return dict(json.loads((user / "answers.json").read_text()))


def differences(then: Any, now: Any, where: str = "") -> list[str]:
    """Return the differences of an answer from an earlier one, except for new fields."""
    if isinstance(then, dict) and isinstance(now, dict):
        pairs = [
            (f".{key}", value, now.get(key, value if value in EMPTY else ...))
            for key, value in then.items()
            if key not in PASSING
        ]
        return [
            gap for key, value, other in pairs for gap in differences(value, other, where + key)
        ]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [
            gap
            for place, pair in enumerate(zip(then, now, strict=True))
            for gap in differences(*pair, f"{where}[{place}]")
        ]
    return [] if then == now else [f"{where}: {then!r} is now {now!r}"]


def changes(user: Path, ask: Ask, *, but: tuple[str, ...] = ()) -> list[str]:
    """Return the differences of the answers from those of the earlier version, without the
    questions in `but`.
    """
    answers = before(user)
    asked = {name: ask(*arguments) for name, arguments in QUESTIONS.items() if name not in but}
    gaps = [
        gap for name, answer in asked.items() for gap in differences(answers[name], answer, name)
    ]
    for memory_id, history in answers["histories"].items():
        gaps += differences(history, ask("history", memory_id, "-n", "bob"), "history")
    return gaps


def test_every_command_still_gives_its_old_answer(
    user: Path, ask: Ask, checks: list[FoundEntries]
) -> None:
    """Checks memories, versions, tags, keys, conversations, projects, reviews and searches."""
    assert changes(user, ask, but=("scratchpad",)) == []
    assert ask("doctor", "--deep")["findings"] == []
    assert len(checks) > 1


@pytest.mark.thorough  # starts the server and the hooks of every host
def test_every_old_connection_still_works(
    user: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_SERVER_SECONDS", "_HOOK_SECONDS", "HOOK_SECONDS"):  # for a busy machine
        monkeypatch.setattr(f"memories.connect.status.{limit}", 300.0)
    assert ask("doctor")["findings"] == []
    for host in HOSTS:
        ask("connect", host)


def test_pending_edits_and_prompts_are_taken_over_once(user: Path, ask: Ask) -> None:
    """A scratchpad was edited, a hook captured a prompt, and no command has run since."""
    for _ in range(2):
        ask("prompt", "-n", "ann")
        contents = {
            memory["content"] for memory in ask("list", "-n", "ann", "--no-shared")["results"]
        }
        assert contents == {
            "Never push to main on a Friday",
            "Ann's laptop is called osprey",
            "Ann learns Welsh on Wednesdays",
        }
        ask("capture", "flush")
        [captured] = ask("review")["results"]
        assert "staging key rotates" in captured["content"]


def test_hosts_can_be_connected_again_and_disconnected(
    user: Path, ask: Ask, checks: list[FoundEntries]
) -> None:
    """Disconnecting restores every file to the byte, and removes the files that connecting
    created.
    """
    receipts = json.loads((user / ".config/memories/connected.json").read_text())["connected"]
    files = [file for receipt in receipts for file in receipt["files"]]
    assert {receipt["host"] for receipt in receipts} == set(HOSTS)
    originals = {
        file["path"]: Path(file["before"]).read_bytes() if file["existed"] else None
        for file in files
    }
    for host in HOSTS:
        ask("connect", host)
    assert len(checks) == len(HOSTS)
    ask("disconnect", *HOSTS)
    left = {path: Path(path).read_bytes() if Path(path).exists() else None for path in originals}
    assert left == originals


def test_old_hook_commands_still_answer(user: Path) -> None:
    """Until it is connected again, a host runs the command that is in its settings."""
    hooks = json.loads((user / ".claude/settings.json").read_text())["hooks"]
    [command] = [hook["command"] for entry in hooks["SessionStart"] for hook in entry["hooks"]]
    event = {
        "session_id": "s2",
        "cwd": str(user / "shop"),
        "hook_event_name": "SessionStart",
        "source": "startup",
    }
    command += " --seconds 30"
    done = subprocess.run(
        command, shell=True, input=json.dumps(event), capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "Service 29 belongs to team b"
        in json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"]
    )


def test_an_interrupted_move_of_files_loses_and_duplicates_nothing(
    user: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A files store was moving to SQLite when its process was killed."""
    monkeypatch.setenv("MEMORY_STORE", f"files:///{user}/notebook")
    owls = {
        f"Line {number} of the notebook is about {'owls hares otters'.split()[number % 3]}"
        for number in range(8)
    }
    expected = owls | {"The last line of the notebook is about seals"}
    contents = [memory["content"] for memory in ask("list", "--limit", "100")["results"]]
    expected |= {"The notebook is full"} & set(
        contents
    )  # written but not acknowledged by the killed process
    assert sorted(contents) == sorted(expected)
    monkeypatch.setenv("FILE_MIGRATE_AT", "5")
    ask("create", "The cat sat on the notebook")
    memories = ask("list", "--limit", "100")["results"]
    assert sorted(memory["content"] for memory in memories) == sorted(
        expected | {"The cat sat on the notebook"}
    )
    assert (user / "notebook" / "moved.json").exists()
    assert [turn["content"] for turn in ask("turns", "show", "trip")["results"]] == [
        "We saw an otter"
    ]


def test_an_old_backup_export_and_token_still_work(user: Path, ask: Ask, tmp_path: Path) -> None:
    """The backup can be restored, the export counts as the user's own, and the token is listed."""
    home = user / ".local/share/memories"
    [backup] = (home / "backups").iterdir()
    restored = f"sqlite:///{tmp_path}/restored/memories.db"
    assert ask("restore", str(backup), "--store", restored)["verified"]
    kept = {
        memory["id"] for memory in ask("list", "--limit", "1000", "--store", restored)["results"]
    }
    assert kept == {memory["id"] for memory in before(user)["shared"]["results"]}
    imported = f"sqlite:///{tmp_path}/imported/memories.db"
    ask("import", "export.jsonl", "--store", imported)
    assert ask("review", "--store", imported)["results"] == []
    assert [token["name"] for token in ask("tokens", "list")["tokens"]] == ["reader"]


# Runs the first commands of the new version, and kills itself at the step with the given number.
UPGRADE = """
import os, signal, sys
from memories.__main__ import run_by_server_or_here
left = int(sys.argv[1])
def step():
    global left
    left -= 1
    if left == 0:
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
for arguments in (["create", "The upgrade went well"], ["prompt", "-n", "ann"], ["capture", "flush"]):
    assert run_by_server_or_here([*arguments, "--format", "json"]) == 0
"""


@pytest.mark.parametrize("stride", [520, pytest.param(90, marks=pytest.mark.thorough)])
def test_the_next_command_finishes_a_killed_upgrade(
    user: Path, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """The first commands of the new version are killed at each operation in turn, on files and in
    SQL.
    """
    whole = tmp_path / "whole"
    shutil.copytree(user, whole, symlinks=True)
    environment = {**os.environ, "EMBEDDER": "none"}
    with contextlib.closing(
        ForkServer("from memories.__main__ import load_commands; load_commands()")
    ) as forks:
        ended, step = -signal.SIGKILL, 7
        rounds = 0
        while ended == -signal.SIGKILL:
            shutil.rmtree(user)
            shutil.copytree(whole, user, symlinks=True)
            folder = user / "shop"
            with contextlib.closing(
                forks.start(UPGRADE, step, folder=folder, environment=environment)
            ) as upgrade:
                done = upgrade.finish()
            ended = done.returncode
            monkeypatch.chdir(folder)
            assert changes(user, ask, but=ADDED_TO) == [], step
            rounds, step = rounds + 1, step + stride
        assert ended == 0, done.stderr
    assert rounds > 3


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("memories.langgraph", ["MemoriesStore", "memory_tools"]),
        ("memories.skins.anthropic_tool", ["MemoriesTool"]),
        ("memories.skins.agents_session", ["MemoriesSession"]),
        ("memories.skins.amplifier", ["mount_capture", "mount_context", "mount_tool"]),
        ("memories.identity.prompt", ["block"]),
    ],
)
def test_names_from_earlier_docs_can_be_imported(module: str, names: list[str]) -> None:
    """Users' programs and installed Amplifier modules import them."""
    source = pytest.importorskip(module, exc_type=ImportError)
    assert [name for name in names if not hasattr(source, name)] == []
