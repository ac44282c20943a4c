"""This project, from its checkout."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.operations import systems
from bench.operations.server import Refused, Start
from memories import __version__

CHECKOUT = Path(__file__).parents[3]


class Adapter(systems.System):
    """`memory mcp` on a SQLite store with the packaged model."""

    name = "memories"
    packages = (str(CHECKOUT),)

    def install(self) -> None:
        """Install the current checkout."""
        (self.environment / ".complete").unlink(missing_ok=True)
        super().install()

    def version(self) -> str:
        """Return the version of the checkout."""
        return __version__

    def start(self, home: Path, project: Path) -> Start:
        """Return the command that `memory connect` writes for a host."""
        environment = {"HOME": str(home), "MEMORY_HOME": str(home / "memory")}
        return Start([self.bin("memory"), "mcp"], project, environment)

    def add(self, session: Any, text: str) -> str:
        """Store a text; return its id."""
        answer = session.call("create_memory", content=text)
        if match := re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", answer):
            return match[0]
        raise Refused(answer[:300])

    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Return the answer to a question, within the project of the session."""
        return str(session.call("search_memories", query=question, project=".", limit=limit))

    def fill(self, session: Any, home: Path, texts: Sequence[str]) -> None:
        """Run `memory create --lines`."""
        file = home.with_suffix(".txt")
        file.write_text("\n".join(texts))
        self._run(home, session.folder, "create", "--lines", str(file))

    def update(self, session: Any, identifier: str, text: str) -> None:
        """Replace the text of a memory."""
        session.call("update_memory", id=identifier, content=text)

    def delete(self, session: Any, identifier: str) -> None:
        """Delete a memory; its text stays for `restore`."""
        session.call("delete_memory", id=identifier)

    def erase(self, session: Any, home: Path, identifier: str) -> None:
        """Run `memory forget`, which leaves no byte."""
        self._run(home, session.folder, "forget", identifier, "--yes")

    def stored(self, home: Path) -> list[str]:
        """Return the first 1,000 texts of `memory list`."""
        command = "list --limit 1000 --fields content --format json".split()
        listed = json.loads(self._run(home, home, *command))
        return [memory["content"] for memory in listed["results"]]

    def copy(self, home: Path, target: Path) -> bool:
        """Run `memory export` and `memory import`."""
        file = str(target / "export.jsonl")
        self._run(home, home, "export", "-o", file)
        self._run(target, target, "import", file, "--trusted")
        return True

    def _run(self, home: Path, folder: Path, *command: str) -> str:
        return systems.output(self.start(home, folder), self.bin("memory"), *command)
