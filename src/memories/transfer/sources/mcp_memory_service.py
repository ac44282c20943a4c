"""Memories of mcp-memory-service, in its SQLite database."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from memories.models import Draft
from memories.transfer.sources.database import open_copy
from memories.transfer.sources.items import Item, add_tag, clean, moment
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("sqlite_vec.db",)
_COLUMNS = ("content_hash", "content", "tags", "memory_type", "created_at")
_OPTIONAL = ("deleted_at", "superseded_by")


def locate(home: Path) -> Iterable[Path]:
    """Return its database."""
    if file := os.environ.get("MCP_MEMORY_SQLITE_PATH"):
        return (Path(file),)
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support" / "mcp-memory"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "mcp-memory"
    else:
        folder = home / ".local" / "share" / "mcp-memory"
    return (Path(os.environ.get("MCP_MEMORY_BASE_DIR") or folder) / "sqlite_vec.db",)


def recognize(sample: Sample) -> bool:
    """Return whether a path is the program's database, or its folder."""
    if "sqlite_vec.db" in sample.names:
        return True
    return {"content_hash", "memory_type", "created_at_iso"} <= sample.tables.get("memories", set())


def read(reader: Reader) -> Iterator[Item]:
    """Yield the current memories."""
    for file in reader.files(*FILES):
        with open_copy(file) as database:
            for row in database.rows("memories", _COLUMNS, _OPTIONAL, "ORDER BY created_at, id"):
                text = clean(row["content"])
                if row["deleted_at"] is not None:
                    reader.skip("deleted memories")
                elif row["superseded_by"]:
                    reader.skip("replaced versions")
                elif text:
                    tags: dict[str, str] = {}
                    add_tag(tags, "type", row["memory_type"])
                    for word in clean(row["tags"]).split(","):
                        if word.strip() != "untagged":
                            add_tag(tags, word, "true")
                    yield Draft(text, tags=tags, created_at=moment(row["created_at"]))
