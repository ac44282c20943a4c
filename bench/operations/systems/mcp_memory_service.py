"""mcp-memory-service with its SQLite store."""

import re
from pathlib import Path
from typing import Any

from bench.operations import model, systems
from bench.operations.server import Refused, Start


class Adapter(systems.System):
    """`memory server` with the store `sqlite_vec` and embeddings by ONNX."""

    name = "mcp-memory-service"
    packages = ("mcp-memory-service==12.4.0", "onnxruntime==1.32.0", "tokenizers==0.23.3")
    remark = (
        "With ONNX Runtime, which its installation leaves out, and on a Python whose SQLite loads "
        "extensions; without these it stores little or nothing. It refuses texts that resemble an "
        "earlier one in meaning."
    )

    def start(self, home: Path, project: Path) -> Start:
        """Return the server's command, after putting the model where the server would download it."""
        if self.model:
            place = home / ".cache" / "mcp_memory" / "onnx_models" / "all-MiniLM-L6-v2" / "onnx"
            model.link(self.model, place)
        environment = {
            "HOME": str(home),
            "MCP_MEMORY_BASE_DIR": str(home),
            "MCP_MEMORY_SQLITE_PATH": str(home / "memory.db"),
            "MCP_MEMORY_STORAGE_BACKEND": "sqlite_vec",
            "MCP_MEMORY_USE_ONNX": "true",
            "HF_HUB_OFFLINE": "1",
        }
        return Start([self.bin("memory"), "server"], project, environment)

    def add(self, session: Any, text: str) -> str:
        """Store a text with a tag for its project; return its hash."""
        answer = session.call(
            "memory_store", content=text, metadata={"tags": [session.folder.name]}
        )
        match = re.search(r"[0-9a-f]{64}", answer)
        if match is None or "stored successfully" not in answer:
            raise Refused(answer[:300])
        return match[0]

    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Return the answer to a question, among the texts with the tag of the project."""
        arguments = {"query": question, "tags": [session.folder.name], "limit": limit}
        answer = str(session.call("memory_search", **arguments))
        if answer.startswith("Error"):
            raise Refused(answer[:300])
        return answer

    def update(self, session: Any, identifier: str, text: str) -> None:
        """Store a new version of a text."""
        updates = {"content": text}
        answer = session.call(
            "memory_update", content_hash=identifier, updates=updates, versioned=True
        )
        if "successful" not in answer:
            raise Refused(answer[:300])

    def delete(self, session: Any, identifier: str) -> None:
        """Delete a memory."""
        session.call("memory_delete", content_hash=identifier)

    def stored(self, home: Path) -> list[str]:
        """Return the texts of the table."""
        sql = "SELECT content FROM memories WHERE deleted_at IS NULL"
        return [row[0] for row in systems.query(home / "memory.db", sql)]
