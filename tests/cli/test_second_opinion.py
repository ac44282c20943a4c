"""`TIDY_COMMAND`: a user's command that withholds proposals of `memory tidy`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories.write import tidy

Command = Callable[..., Any]
TEXTS = ("The office plant is a ficus", "Deploys happen on Tuesdays", "Anna leads the team")


@pytest.fixture
def untidy(memory: Command) -> Command:
    """Three memories, each stored twice."""
    for text in (*TEXTS, *TEXTS):
        memory("create", text, "--force")
    return memory


@pytest.fixture
def judge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that sets a Python script as the user's command; it returns the path of a
    file that the script may write.
    """

    def write(script: str) -> Path:
        file = folder / "judge.py"
        file.write_text(f"import json, sys, time\nnote = sys.argv[1]\n{script}\n")
        note = folder / "note; touch shell"
        monkeypatch.setenv("TIDY_COMMAND", f"'{sys.executable}' '{file}' '{note}'")
        return note

    return write


def test_a_dropped_proposal_is_left_out_of_that_run_only(
    untidy: Command, judge: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = judge("""
given = json.load(sys.stdin)
open(note, "w").write(json.dumps(given))
plants = [row["id"] for row in given["proposals"] if "ficus" in row["content"]]
print(json.dumps({plants[0]: "drop"}))""")
    answer = untidy("tidy")
    assert (answer.json["count"], answer.json["withheld"], answer.err) == (2, 1, "")
    assert untidy("review").json["count"] == 2
    [row, *_] = json.loads(note.read_text())["proposals"]
    assert row.keys() == {"id", "kind", "content", "certainty", "action"}
    assert row["kind"] == "same"
    assert row["action"]["do"] == "delete"
    assert not note.with_name("shell").exists()

    again = untidy("tidy", "--format", "text").out
    assert "TIDY_COMMAND withheld 1 proposal.\nNothing new to tidy." in again
    monkeypatch.delenv("TIDY_COMMAND")
    [proposal] = untidy("tidy").json["proposals"]
    assert "ficus" in proposal["content"]


def test_one_word_per_line_is_a_valid_answer(untidy: Command, judge: Callable[[str], Path]) -> None:
    judge("print('KEEP\\ndrop\\nDrop')")
    answer = untidy("tidy", "--dry-run").json
    assert (answer["count"], answer["withheld"]) == (1, 2)


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("sys.exit(3)", "it ended with exit code 3"),
        ("print('Drop them all, please.')", "it must print keep or drop"),
        ("print('keep')", "it must print keep or drop"),
        ("print(json.dumps({'4': 'drop'}))", "it must print keep or drop"),
        ("print(json.dumps(['keep', 'drop', ['drop']]))", "it must print keep or drop"),
        ("print('[' * 20_000)", "it must print keep or drop"),
        ("sys.stdout.buffer.write(bytes([255]) * 100)", "it must print keep or drop"),
        ("print('drop ' * 100_000)", "printed more than 64 KiB"),
        ("while True: print('drop')", "printed more than 64 KiB"),
    ],
)
def test_a_command_that_fails_withholds_nothing(
    untidy: Command, judge: Callable[[str], Path], script: str, problem: str
) -> None:
    judge(script)
    answer = untidy("tidy")
    assert (answer.json["count"], answer.json["withheld"]) == (3, 0)
    assert answer.err.startswith("TIDY_COMMAND gave no second opinion: it ")
    assert problem in " ".join(answer.err.split())


def test_a_command_that_never_answers_is_killed(
    untidy: Command, judge: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "_OPINION_SECONDS", 0.3)
    judge("import subprocess\nsubprocess.run(['sleep', '1000'])")
    answer = untidy("tidy")
    assert answer.json["count"] == 3
    assert "did not answer within 0.3 seconds" in " ".join(answer.err.split())


def test_a_missing_command_withholds_nothing(untidy: Command) -> None:
    answer = untidy("tidy", env={"TIDY_COMMAND": "no-such-judge --all"})
    assert answer.json["count"] == 3
    assert "it can't be started: No such file" in " ".join(answer.err.split())


def test_even_a_trusted_env_file_cannot_set_the_command(untidy: Command, folder: Path) -> None:
    (folder / ".env").write_text(f"TIDY_COMMAND='{sys.executable} -c 1'\n")
    answer = untidy("tidy", "--dry-run")
    assert "withheld" not in answer.json
    assert "ignored TIDY_COMMAND" in " ".join(answer.err.split())
    assert "memory trust" not in " ".join(answer.err.split())  # trusting the file would not help
    assert untidy("trust", "--yes").code == 0
    answer = untidy("tidy", "--dry-run")
    assert answer.json["count"] == 3
    assert "withheld" not in answer.json
    assert "a .env can't set it" in " ".join(answer.err.split())


def test_a_trusted_env_file_does_not_replace_the_users_command(
    untidy: Command, judge: Callable[[str], Path], folder: Path
) -> None:
    judge("print('drop\\ndrop\\nkeep')")
    (folder / ".env").write_text("TIDY_COMMAND=no-such-judge\n")
    assert untidy("trust", "--yes").code == 0
    answer = untidy("tidy", "--dry-run").json
    assert (answer["count"], answer["withheld"]) == (1, 2)


@pytest.mark.parametrize("command", ["./judge", "tools/judge --all", "judge 'all", "''"])
def test_a_folder_cannot_supply_the_command(memory: Command, command: str) -> None:
    answer = memory("tidy", env={"TIDY_COMMAND": command})
    assert answer.code == 2
    assert "TIDY_COMMAND (environment) must be" in answer.error
