"""MemPalace with its default store, Chroma."""

import re
from pathlib import Path
from typing import Any

from bench.operations import model, systems
from bench.operations.server import Refused, Start


class Adapter(systems.System):
    """`mempalace-mcp` with one wing for each project, as its instructions say."""

    name = "MemPalace"
    packages = ("mempalace==3.11.0",)
    remark = "One server writes; others that run at the same time can only read."

    def start(self, home: Path, project: Path) -> Start:
        """Return the server's command, after putting the model where Chroma would download it."""
        if self.model:
            place = home / ".cache" / "chroma" / "onnx_models" / "all-MiniLM-L6-v2" / "onnx"
            model.link(self.model, place)
        palace = str(home / "palace")
        environment = {"HOME": str(home), "MEMPALACE_PALACE_PATH": palace}
        return Start([self.bin("mempalace-mcp"), "--palace", palace], project, environment)

    def add(self, session: Any, text: str) -> str:
        """Store a text as a drawer; return its id."""
        wing = session.folder.name
        answer = _call(session, "add_drawer", wing=wing, room="facts", content=text)
        match = re.search(r"drawer_\w+_[0-9a-f]{24}", answer)
        if match is None:
            raise Refused(answer[:300])
        return match[0]

    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Return the answer to a question, within the wing of the project."""
        wing = session.folder.name
        return _call(session, "search", query=question, limit=limit, wing=wing)

    def update(self, session: Any, identifier: str, text: str) -> None:
        """Replace the content of a drawer."""
        _call(session, "update_drawer", drawer_id=identifier, content=text)

    def delete(self, session: Any, identifier: str) -> None:
        """Delete a drawer."""
        _call(session, "delete_drawer", drawer_id=identifier)

    def stored(self, home: Path) -> list[str]:
        """Return the documents of Chroma's table."""
        sql = "SELECT string_value FROM embedding_metadata WHERE key = 'chroma:document'"
        return [row[0] for row in systems.query(home / "palace" / "chroma.sqlite3", sql)]


def _call(session: Any, tool: str, **arguments: Any) -> str:
    """Call a tool; an error comes as a text."""
    answer = str(session.call(f"mempalace_{tool}", **arguments))
    if '"success": false' in answer or '"error"' in answer:
        raise Refused(answer[:300])
    return answer
