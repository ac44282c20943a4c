"""Memories of mem0: its database of changes, or what its `get_all` returns, saved as JSON."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.models import Draft
from memories.read.turns import TurnDraft
from memories.transfer.sources.database import Database, open_copy
from memories.transfer.sources.items import (
    Item,
    Message,
    add_tag,
    clean,
    dicts,
    mapping,
    moment,
    one_line,
    strings,
    to_tags,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("history.db", "*.json")
_CHANGES = ("memory_id", "new_memory", "event")
_OWNERS = ("user_id", "agent_id", "run_id", "actor_id")
_ROLES = ("user", "assistant")


def locate(home: Path) -> Iterable[Path]:
    """Return its database of changes; the vectors beside it are pickled, and never opened."""
    return (Path(os.environ.get("MEM0_DIR") or home / ".mem0") / "history.db",)


def recognize(sample: Sample) -> bool:
    """Return whether a path is the database, or JSON of memories with an owner or a hash."""
    if {"memory_id", "new_memory"} <= sample.tables.get("history", set()):
        return True
    if sample.has("results"):
        return all(key in sample.start for key in (b'"memory"', b'"id"', b'"hash"'))
    return sample.has("id", "memory") and any(sample.has(key) for key in ("hash", *_OWNERS))


def read(reader: Reader) -> Iterator[Item]:
    """Yield the current text of each memory, and the last messages that mem0 kept."""
    for file in reader.files(*FILES):
        if reader.is_sqlite(file):
            with open_copy(file) as database:
                yield from _read_changes(reader, database)
                yield from _read_messages(database)
            continue
        for value in reader.values(file):
            results = mapping(value).get("results")
            for memory in dicts([value] if results is None else results):
                yield from _read_memory(reader, memory)


def _read_changes(reader: Reader, database: Database) -> Iterator[Item]:
    """Yield each memory with the text of its last change."""
    last: dict[str, Mapping[str, Any]] = {}
    optional = ("created_at", "updated_at", "is_deleted")
    for change in database.rows("history", _CHANGES, optional, "ORDER BY rowid"):
        last[change["memory_id"]] = change
    for identifier, row in last.items():
        text = clean(row["new_memory"])
        if row["event"] == "DELETE" or row["is_deleted"] or not text:
            reader.skip("deleted memories")
            continue
        time = moment(row["updated_at"], row["created_at"])
        yield Draft(text, created_at=time, key=one_line(identifier) or None)


def _read_messages(database: Database) -> Iterator[Item]:
    if "messages" not in database.tables():
        return
    needed, rest = ("id", "session_scope", "role", "content"), "ORDER BY created_at, rowid"
    for row in database.rows("messages", needed, ("created_at",), rest):
        text = clean(row["content"])
        if not text or row["role"] not in _ROLES:
            continue
        turn = TurnDraft(
            text, row["role"], created_at=moment(row["created_at"]), message_id=f"mem0:{row['id']}"
        )
        yield Message(f"mem0:{one_line(row['session_scope'])}", turn)


def _read_memory(reader: Reader, memory: Mapping[str, Any]) -> Iterator[Item]:
    text = clean(memory.get("memory") or memory.get("data"))
    if not text:
        reader.skip("entries without text")
        return
    tags = to_tags(mapping(memory.get("metadata")))
    for name in _OWNERS:
        add_tag(tags, name.removesuffix("_id"), memory.get(name))
    for category in strings(memory.get("categories")):
        add_tag(tags, category, "true")
    time = moment(memory.get("updated_at"), memory.get("created_at"))
    yield Draft(text, tags=tags, created_at=time, key=one_line(memory.get("id")) or None)
