"""A plain baseline: one file of lines that a host puts before each prompt, such as CLAUDE.md."""

import shutil
from pathlib import Path
from typing import Any

from bench.operations import systems
from bench.operations.server import Start


class Adapter(systems.System):
    """One file for each project. An agent adds, replaces and removes whole lines."""

    name = "CLAUDE.md"
    remark = "The whole file is in each prompt, so a search returns all of it."

    def install(self) -> None:
        """Install nothing."""

    def version(self) -> str:
        """Return what it is."""
        return "a file"

    def start(self, home: Path, project: Path) -> Start:
        """Return no command."""
        return Start([], project)

    def open(self, home: Path, project: Path) -> Any:
        """Return the file of a project."""
        return Session(home, project)

    def add(self, session: Any, text: str) -> str:
        """Append a line."""
        with session.file.open("a") as file:
            file.write(f"{text}\n")
        return text

    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Return the whole file."""
        return str(session.file.read_text()) if session.file.exists() else ""

    def update(self, session: Any, identifier: str, text: str) -> None:
        """Replace a line."""
        old = session.file.read_text()
        session.file.write_text(old.replace(f"{identifier}\n", f"{text}\n"))

    def delete(self, session: Any, identifier: str) -> None:
        """Remove a line."""
        session.file.write_text(session.file.read_text().replace(f"{identifier}\n", ""))

    def stored(self, home: Path) -> list[str]:
        """Return the lines of all files."""
        return [line for file in home.glob("*.md") for line in file.read_text().splitlines()]

    def copy(self, home: Path, target: Path) -> bool:
        """Copy the files."""
        for file in home.glob("*.md"):
            shutil.copy(file, target)
        return True


class Session:
    """The file of a project."""

    def __init__(self, home: Path, project: Path) -> None:
        self.folder = project
        self.file = home / f"{project.name}.md"

    def close(self) -> None:
        """Close nothing."""
