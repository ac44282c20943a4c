"""The examples in the README give the results that it shows."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from live_command import servers

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(heading: str, language: str) -> str:
    """Return the code under a heading."""
    found = re.search(rf"## {heading}\n.*?```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose store is in `tmp_path` and whose PATH contains the
    command.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "MEMORY_HOME": str(tmp_path), "PATH": path}


def run(command: list[str], environment: Mapping[str, str], folder: Path) -> str:
    """Run a program that must succeed and print no error; return its output."""
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("served", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_the_shell_session_gives_the_results_shown(
    tmp_path: Path, environment: dict[str, str], served: bool
) -> None:
    """The README's commands correct the first statement, with and without a server."""
    with servers(env=environment, cwd=tmp_path) as serve:
        if served:
            serve()
        told = run(["sh", "-c", block("Try it", "sh")], environment, tmp_path)
    first, second, found = (json.loads(line) for line in told.splitlines())
    assert (first["stored"], second["corrects"]) == (True, first["id"])
    assert [hit["id"] for hit in found["results"]] == [second["id"], first["id"]]


def test_the_python_session_gives_the_results_shown(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    code = block("For scripts, Python and teams", "python")
    assert "port 5433" in run([sys.executable, "-c", code], environment, tmp_path)


def test_the_first_picture_shows_only_the_newer_statement() -> None:
    """`make pictures` draws it from a run; only the newer statement reaches the second agent."""
    drawn = (ROOT / "docs" / "story.svg").read_text(encoding="utf-8")
    title = re.search(r"<title>(.*)</title>", drawn)
    assert title
    recalled = title[1].partition("added to the prompt")[2]
    assert "Thursdays at 09:30" in recalled
    assert "Tuesdays" not in recalled


def test_help_and_guide_list_the_same_exit_codes() -> None:
    from memories.cli import help_page

    sentence = "0 done; 1 error; 2 usage; 3 not stored: a duplicate; 4 done, but damaged records were left out"
    sentence += ", or the store was unreachable and the scratchpad answered."
    assert f"xit codes: {sentence}" in " ".join(help_page().split())
    guide = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (\w+)", guide, re.M)
    assert rows == [("0", "done"), ("1", "error"), ("2", "wrong"), ("3", "not"), ("4", "done")]
