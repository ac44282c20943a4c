"""The command without the modules that only POSIX systems have, as on Windows."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import without_posix
from memories.__main__ import main
main()
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def memory(tmp_path: Path, clean_environment: Mapping[str, str]) -> Run:
    """Return a function that runs the command without the modules of POSIX."""

    def run(*arguments: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(TESTS), *arguments],
            cwd=tmp_path,
            env=dict(clean_environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done

    return run


def test_memories_are_stored_and_found(memory: Run) -> None:
    memory("create", "Deploys happen on Tuesdays")
    assert "Tuesdays" in memory("search", "Deploys happen").stdout
    memory("doctor")


@pytest.mark.thorough
def test_a_hook_recalls_and_captures(memory: Run, tmp_path: Path) -> None:
    memory("create", "Deploys happen on Tuesdays")
    event = {"session_id": "s", "cwd": str(tmp_path), "prompt": "when do deploys happen?"}
    hook = ("hook", "user-prompt", "--host", "claude-code", "--capture", "--seconds", "20")
    assert "Tuesdays" in memory(*hook, stdin=json.dumps(event)).stdout
    memory("capture", "flush")
    assert json.loads(memory("turns", "list").stdout)["count"] == 1


@pytest.mark.thorough
def test_commands_that_require_posix_say_so(memory: Run) -> None:
    assert "run it in WSL" in json.loads(memory("serve", code=2).stderr)["error"]
    memory("serve", "--stop")
    refused = memory("create", "x", "--store", "files:///memories", code=1)
    assert "this system has no file locks" in json.loads(refused.stderr)["error"]
