"""What the README shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(heading: str, language: str) -> str:
    """Return the code under a heading."""
    found = re.search(rf"## {heading}\n.*?```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found[1]


def run(command: list[str], home: Path) -> str:
    environment = {
        **os.environ,
        "MEMORY_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_shell_story(tmp_path: Path) -> None:
    """Every line as it stands, but for `git log`, which needs a repository."""
    told = run(["sh", "-c", block("From a shell", "sh").replace("git log -1", "echo a commit")], tmp_path)
    lines = told.splitlines()
    assert lines.count("3") == 1  # what the repetition answers
    updated, history = lines[-5:-3]
    assert ('"content": "Deploys are hourly"' in updated, '"version": 2' in updated) == (True, True)
    assert '"count": 2' in history


def test_the_python_story(tmp_path: Path) -> None:
    assert "port 5433" in run([sys.executable, "-c", block("From Python", "python")], tmp_path)


def test_the_exit_codes_are_one_sentence_everywhere() -> None:
    from memories.skins.cli import help_page

    sentence = "0 done, 1 error, 2 usage, 3 not stored: a duplicate, 4 done, but damaged records were left out"
    sentence += ", or the store was out of reach and the scratchpad answered."
    for text in (help_page(), README, (ROOT / "docs/cli.md").read_text(encoding="utf-8")):
        assert f"xit codes: {sentence}" in " ".join(text.split())
