"""What the README shows is what happens."""

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
    """The environment of a user whose store is in `tmp_path` and who finds the command in the
    search path.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "MEMORY_HOME": str(tmp_path), "PATH": path}


def run(command: list[str], environment: Mapping[str, str], folder: Path) -> str:
    """Run a program that must end well and report nothing; return what it prints."""
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("served", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_the_shell_story(tmp_path: Path, environment: dict[str, str], served: bool) -> None:
    """Every line as it stands, with a server and without, but for `git log`, which needs a
    repository.
    """
    story = ["sh", "-c", block("From a shell", "sh").replace("git log -1", "echo a commit")]
    with servers(env=environment, cwd=tmp_path) as serve:
        if served:
            serve()
        told = run(story, environment, tmp_path)
    lines = told.splitlines()
    assert lines.count("3") == 1  # what the repetition answers
    updated, history = lines[-5:-3]
    assert ('"content": "Deploys are hourly"' in updated, '"version": 2' in updated) == (True, True)
    assert '"count": 2' in history


def test_the_python_story(tmp_path: Path, environment: dict[str, str]) -> None:
    assert "port 5433" in run(
        [sys.executable, "-c", block("From Python", "python")], environment, tmp_path
    )


def test_the_exit_codes_are_one_sentence_everywhere() -> None:
    from memories.cli import help_page

    sentence = "0 done, 1 error, 2 usage, 3 not stored: a duplicate, 4 done, but damaged records were left out"
    sentence += ", or the store was out of reach and the scratchpad answered."
    for text in (help_page(), README, (ROOT / "docs/cli.md").read_text(encoding="utf-8")):
        assert f"xit codes: {sentence}" in " ".join(text.split())
