"""Memories of OMEGA, in its SQLite database."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from memories.models import Draft
from memories.transfer.sources.database import open_copy
from memories.transfer.sources.items import (
    Item,
    add_tag,
    clean,
    moment,
    one_line,
    parse_object,
    strings,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("omega.db",)
_COLUMNS = ("node_id", "content", "created_at")
_OPTIONAL = ("metadata", "event_type", "project", "agent_type", "status", "updated_at")


def locate(home: Path) -> Iterable[Path]:
    """Return its database."""
    return (Path(os.environ.get("OMEGA_HOME") or home / ".omega") / "omega.db",)


def recognize(sample: Sample) -> bool:
    """Return whether a path is the program's database, or its folder."""
    if "omega.db" in sample.names:
        return True
    return {"node_id", "content"} <= sample.tables.get("memories", set())


def read(reader: Reader) -> Iterator[Item]:
    """Yield the active memories."""
    for file in reader.files(*FILES):
        with open_copy(file) as database:
            for row in database.rows("memories", _COLUMNS, _OPTIONAL, "ORDER BY id"):
                text = clean(row["content"])
                if row["status"] not in (None, "active"):
                    reader.skip("memories that are no longer active")
                elif text:
                    time = moment(row["updated_at"], row["created_at"])
                    key = one_line(row["node_id"]) or None
                    yield Draft(text, tags=_tags(reader, row), created_at=time, key=key)


def _tags(reader: Reader, row: dict[str, Any]) -> dict[str, str]:
    tags: dict[str, str] = {}
    add_tag(tags, "project", reader.project(row["project"]))
    if row["event_type"] != "memory":
        add_tag(tags, "type", row["event_type"])
    add_tag(tags, "agent", row["agent_type"])
    for word in strings(parse_object(row["metadata"]).get("tags")):
        add_tag(tags, word, "true")
    return tags
