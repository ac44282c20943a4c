"""basic-memory: a folder of Markdown files with an index."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from bench.operations import systems
from bench.operations.server import Refused, Start


class Adapter(systems.System):
    """`basic-memory mcp` with one note for each text, and a folder and a tag for each project."""

    name = "basic-memory"
    packages = ("basic-memory==0.24.1",)
    python = "3.12"
    remark = "It searches only by words, because its vectors need a downloaded model."

    def start(self, home: Path, project: Path) -> Start:
        """Return the server's command."""
        notes = home / "notes"
        notes.mkdir(exist_ok=True)
        environment = {
            "HOME": str(home),
            "BASIC_MEMORY_HOME": str(notes),
            "BASIC_MEMORY_CONFIG_DIR": str(home / "config"),
            "BASIC_MEMORY_SEMANTIC_SEARCH_ENABLED": "false",
            "BASIC_MEMORY_NO_PROMOS": "1",  # its usage statistics go to an unreachable server
        }
        return Start([self.bin("basic-memory"), "mcp"], project, environment)

    def add(self, session: Any, text: str) -> str:
        """Write a note; return its path. A note with an existing title would be refused."""
        title = hashlib.sha256(f"{session.folder}\n{text}".encode()).hexdigest()[:16]
        folder = session.folder.name
        answer = str(
            session.call("write_note", title=title, directory=folder, content=text, tags=folder)
        )
        if "Created note" not in answer:
            raise Refused(answer[:300])
        return f"{folder}/{title}"

    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Return the notes with the tag of the project that match a question, with content."""
        arguments = {"query": question, "tags": session.folder.name, "page_size": limit}
        return str(session.call("search_notes", **arguments, output_format="json"))

    def update(self, session: Any, identifier: str, text: str) -> None:
        """Overwrite a note."""
        folder, _, title = identifier.partition("/")
        session.call(
            "write_note", title=title, directory=folder, content=text, tags=folder, overwrite=True
        )

    def delete(self, session: Any, identifier: str) -> None:
        """Delete a note."""
        session.call("delete_note", identifier=identifier)

    def stored(self, home: Path) -> list[str]:
        """Return the notes' texts without their heads."""
        files = (home / "notes").rglob("*.md")
        return [file.read_text().split("---\n", 2)[-1].strip() for file in files]

    def copy(self, home: Path, target: Path) -> bool:
        """Copy the folder of notes, as its users do."""
        shutil.copytree(home / "notes", target / "notes", dirs_exist_ok=True)
        return True
