"""The reference server of the Model Context Protocol: a graph in one JSON file."""

import json
import shutil
from pathlib import Path
from typing import Any

from bench.operations import environments, systems
from bench.operations.server import Start

_PACKAGE = "@modelcontextprotocol/server-memory"


class Adapter(systems.System):
    """Each text is an entity with one observation, named by its beginning."""

    name = "server-memory"
    packages = (f"{_PACKAGE}@2026.8.31",)
    remark = "A search looks for the question as a substring, so questions are asked word by word."

    def install(self) -> None:
        """Install with npm."""
        environments.make_node(self.environment, self.packages)

    def version(self) -> str:
        """Return the version that npm installed."""
        file = self.environment / "node_modules" / _PACKAGE / "package.json"
        return str(json.loads(file.read_text())["version"])

    def start(self, home: Path, project: Path) -> Start:
        """Return node with the server's script."""
        script = self.environment.absolute() / "node_modules" / _PACKAGE / "dist" / "index.js"
        environment = {"HOME": str(home), "MEMORY_FILE_PATH": str(home / "memory.jsonl")}
        return Start(["node", str(script)], project, environment)

    def add(self, session: Any, text: str) -> str:
        """Store a text; return the name of its entity."""
        entity = {"name": text[:60], "entityType": "fact", "observations": [text]}
        session.call("create_entities", entities=[entity])
        return str(entity["name"])

    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Search for each long word of the question, longest first, until there is a result."""
        for word in sorted(question.split(), key=len, reverse=True):
            answer = str(session.call("search_nodes", query=word.strip("?.,'\"")))
            if '"observations"' in answer:
                return answer
        return ""

    def update(self, session: Any, identifier: str, text: str) -> None:
        """Add an observation: no tool replaces an observation in one step."""
        observation = {"entityName": identifier, "contents": [text]}
        session.call("add_observations", observations=[observation])

    def delete(self, session: Any, identifier: str) -> None:
        """Delete an entity."""
        session.call("delete_entities", entityNames=[identifier])

    def stored(self, home: Path) -> list[str]:
        """Return the observations of the file's entities."""
        file = home / "memory.jsonl"
        text = file.read_text(errors="replace") if file.exists() else ""
        entities = []
        for line in text.splitlines():
            try:
                entities.append(json.loads(line))
            except ValueError:  # a line in which the writes of two servers are mixed
                continue
        return [text for entity in entities for text in entity.get("observations", ())]

    def copy(self, home: Path, target: Path) -> bool:
        """Copy the file, as its users do."""
        shutil.copy(home / "memory.jsonl", target)
        return True
