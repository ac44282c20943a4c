"""What several test folders share."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from memories.config import SETTINGS

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the default store, which is not there yet; no setting of the machine's user is known."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    folder = tmp_path / "home" / "memories"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MEMORY_HOME", str(folder))
    return folder


@pytest.fixture
def clean_environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a command that knows no setting of the machine's user."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MEMORY_HOME": str(tmp_path / "memories"),
        "EMBEDDER": "fake",
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let children be interrupted: in the background of a shell (`&`) SIGINT is ignored, which they inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run_python(tmp_path: Path, clean_environment: Mapping[str, str]) -> RunPython:
    """Run a script in a process of its own, with `prefix` before the interpreter; its failure fails the test.

    Store files are looked at from such a process only: opening one beside an open connection would cancel its locks.
    """

    def run(
        script: str, *arguments: object, prefix: tuple[str, ...] = (), check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        command = [*prefix, sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=clean_environment, timeout=900, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"the script ended with {done.returncode}: {done.stderr}")
        return done

    return run
