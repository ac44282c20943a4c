"""Observations, summaries and prompts of claude-mem, in its SQLite database."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.models import Draft
from memories.read.turns import TurnDraft
from memories.transfer.sources.database import open_copy
from memories.transfer.sources.items import (
    Item,
    Message,
    add_tag,
    clean,
    moment,
    one_line,
    parse_json,
    strings,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("claude-mem.db",)
_OBSERVATION = ("id", "project", "type", "created_at_epoch")
_TEXTS = ("title", "text", "narrative", "facts", "concepts", "content_hash", "merged_into_project")
_SUMMARY = ("request", "investigated", "learned", "completed", "next_steps", "notes")
_ORDER = "ORDER BY created_at_epoch, id"


def locate(home: Path) -> Iterable[Path]:
    """Return its database."""
    folder = os.environ.get("CLAUDE_MEM_DATA_DIR") or home / ".claude-mem"
    return (Path(folder) / "claude-mem.db",)


def recognize(sample: Sample) -> bool:
    """Return whether a path is the program's database, or its folder."""
    if "claude-mem.db" in sample.names:
        return True
    return {"memory_session_id", "project"} <= sample.tables.get("observations", set())


def read(reader: Reader) -> Iterator[Item]:
    """Yield observations and summaries as statements, and prompts as messages."""
    for file in reader.files(*FILES):
        with open_copy(file) as database:
            for row in database.rows("observations", _OBSERVATION, _TEXTS, _ORDER):
                yield from _read_observation(reader, row)
            tables = database.tables()
            if "session_summaries" in tables:
                summary = ("id", "project", "created_at_epoch")
                for row in database.rows("session_summaries", summary, _SUMMARY, _ORDER):
                    yield from _read_summary(row)
            if "user_prompts" in tables:
                prompt = ("id", "content_session_id", "prompt_text", "created_at_epoch")
                for row in database.rows("user_prompts", prompt, (), _ORDER):
                    yield from _read_prompt(row)


def _read_observation(reader: Reader, row: Mapping[str, Any]) -> Iterator[Item]:
    title = one_line(row["title"])
    body = clean(row["narrative"]) or clean(row["text"])
    facts = [one_line(fact) for fact in strings(parse_json(row["facts"]))]
    content = "\n".join(filter(None, (": ".join(filter(None, (title, body))), *facts)))
    if not content:
        reader.skip("observations without text")
        return
    tags: dict[str, str] = {}
    add_tag(tags, "project", row["merged_into_project"] or row["project"])
    add_tag(tags, "type", row["type"])
    for concept in strings(parse_json(row["concepts"])):
        add_tag(tags, concept, "true")
    yield Draft(content, tags=tags, created_at=moment(row["created_at_epoch"]))


def _read_summary(row: Mapping[str, Any]) -> Iterator[Item]:
    parts = [
        f"{name.replace('_', ' ').capitalize()}: {clean(row[name])}"
        for name in _SUMMARY
        if clean(row[name])
    ]
    if parts:
        tags = {"type": "summary"}
        add_tag(tags, "project", row["project"])
        yield Draft("\n".join(parts), tags=tags, created_at=moment(row["created_at_epoch"]))


def _read_prompt(row: Mapping[str, Any]) -> Iterator[Item]:
    if text := clean(row["prompt_text"]):
        session = one_line(row["content_session_id"])
        time = moment(row["created_at_epoch"])
        turn = TurnDraft(text, "user", created_at=time, message_id=f"claude-mem:{row['id']}")
        yield Message(f"claude-mem:{session}", turn)
