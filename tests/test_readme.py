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
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_shell_story(tmp_path: Path) -> None:
    script = block("From a shell", "sh").replace("git log -1", "echo a commit")
    before, after = script.split("memory update", 1)
    told = run(["sh", "-c", before], tmp_path)
    assert told.rstrip().splitlines()[-3] == "3"  # what the repetition answers
    [deploys] = re.findall(r'"id": "([0-9a-f-]{36})", "content": "Deploys happen on Thursdays', told)
    told = run(["sh", "-c", f"memory update{after}".replace("01a1fdff-88b3-70a0", deploys)], tmp_path)
    assert '"count": 2' in told  # the history of what was updated


def test_the_python_story(tmp_path: Path) -> None:
    assert "port 5433" in run([sys.executable, "-c", block("From Python", "python")], tmp_path)
