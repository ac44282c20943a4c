"""OMEGA, the open core."""

import re
from pathlib import Path
from typing import Any

from bench.operations import systems
from bench.operations.server import Refused, Start


class Adapter(systems.System):
    """`omega serve` with all-MiniLM-L6-v2, and with the project in tools that accept it."""

    name = "OMEGA"
    packages = ("omega-memory[server]==1.5.20",)
    remark = (
        "Without its second model, which it downloads to rerank the results of a search, and "
        "without its limits of 60 writes and 300 calls a minute."
    )

    def start(self, home: Path, project: Path) -> Start:
        """Return the server's command, with the folder of the model."""
        environment = {
            "HOME": str(home),
            "OMEGA_HOME": str(home / "omega"),
            "OMEGA_RERANKER_AUTODOWNLOAD": "0",  # each search would wait 23 s for the network
            "OMEGA_RATE_LIMIT_WRITE": "1000000",
            "OMEGA_RATE_LIMIT_GLOBAL": "1000000",
        }
        if self.model:
            environment["OMEGA_ONNX_MODEL_DIR"] = str(self.model)
        return Start([self.bin("omega"), "serve"], project, environment)

    def add(self, session: Any, text: str) -> str:
        """Store a text; return its id."""
        answer = session.call("omega_store", content=text, project=str(session.folder))
        match = re.search(r"mem-[0-9a-f]+", answer)
        if match is None or not answer.startswith("Stored"):
            raise Refused(answer[:300])
        return match[0]

    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Return the answer to a question, in the project of the session."""
        arguments = {"query": question, "limit": limit, "project": str(session.folder)}
        return _call(session, "omega_query", arguments)

    def update(self, session: Any, identifier: str, text: str) -> None:
        """Replace the content of a memory."""
        arguments = {"action": "edit", "memory_id": identifier, "new_content": text}
        _call(session, "omega_memory", arguments)

    def delete(self, session: Any, identifier: str) -> None:
        """Delete a memory."""
        arguments = {"action": "delete", "memory_id": identifier}
        _call(session, "omega_memory", arguments)

    def stored(self, home: Path) -> list[str]:
        """Return the texts of the table."""
        file = home / "omega" / "omega.db"
        return [row[0] for row in systems.query(file, "SELECT content FROM memories")]


def _call(session: Any, tool: str, arguments: dict[str, Any]) -> str:
    """Call a tool that is missing from the list of tools; an error comes as a text."""
    answer = str(session.call("omega_call", tool=tool, args=arguments))
    if answer.startswith(("Error", "Rate limit exceeded")):
        raise Refused(answer[:300])
    return answer
