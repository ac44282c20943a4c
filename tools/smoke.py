"""Installs a wheel into an empty environment and tries the main commands, on any system.

python tools/smoke.py FOLDER          # with the wheel
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

SCRIPTS = "Scripts" if os.name == "nt" else "bin"
FACT = "Deploys happen on Tuesdays at noon"


class Machine:
    """A machine with the program, and an empty home."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        environment = folder / "environment"
        venv.create(environment, with_pip=True)
        self.scripts = environment / SCRIPTS
        python = self.scripts / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)

    def run(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """Run the command; return its output."""
        variables = {**os.environ, "HOME": str(self.home), "USERPROFILE": str(self.home)}
        variables |= {"APPDATA": str(self.home), "LOCALAPPDATA": str(self.home)}
        variables = {name: value for name, value in variables.items() if name != "MEMORY_HOME"}
        done = subprocess.run(
            [self.scripts / "memoriae", *arguments],
            cwd=self.home,
            env=variables,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
        if done.returncode != code:
            sys.exit(
                f"memoriae {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run the command; return its answer."""
        return json.loads(self.run(*arguments, code=code))


def check(machine: Machine) -> None:
    """Store, find, connect, recall, disconnect."""
    assert machine.json("create", FACT)["stored"]
    machine.json("create", f"{FACT}.", code=0)
    assert FACT in machine.run("search", "when do we deploy?")
    assert machine.json("status")["memory_count"] == 1
    machine.json("create", "Кошку зовут Том 猫", "--project", "shop")
    for host in ("claude-code", "codex", "gemini", "opencode"):
        [connection] = machine.json("connect", host)["connected"]
        assert connection["check"]["works"], connection
        assert "search_memories" in connection["check"]["tools"]
    event = json.dumps(
        {"session_id": "s", "cwd": str(machine.home), "prompt": "when do we deploy?"}
    )
    hook = ("hook", "user-prompt", "--host", "claude-code", "--seconds", "20")
    assert FACT in machine.run(*hook, stdin=event)
    assert machine.json("connect", "--status")["count"]
    machine.run("doctor")
    machine.json("disconnect", "claude-code", "codex", "gemini", "opencode")
    assert not (machine.home / ".claude.json").exists()
    machine.json("serve", "--stop")


if __name__ == "__main__":
    [wheel] = Path(sys.argv[1]).glob("*.whl")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        check(Machine(Path(name).resolve(), wheel.resolve()))
    print("works")
