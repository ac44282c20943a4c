"""Observations and prompts of engram: its database, its export, or the chunks in a repository."""

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.models import Draft
from memories.read.turns import TurnDraft
from memories.transfer.sources.database import open_copy
from memories.transfer.sources.items import (
    Item,
    Message,
    add_tag,
    clean,
    dicts,
    moment,
    name_of,
    one_line,
)
from memories.transfer.sources.reader import MAX_VALUE_BYTES, Reader
from memories.transfer.sources.sample import Sample

FILES = ("engram.db", "chunks/*.jsonl.gz", "*/chunks/*.jsonl.gz")
_OBSERVATION = ("id", "session_id", "type", "title", "content", "created_at")
_OPTIONAL = ("sync_id", "project", "topic_key", "updated_at", "deleted_at")
_PROMPT = ("id", "session_id", "content", "created_at")


def locate(home: Path) -> Iterable[Path]:
    """Return its database."""
    return (Path(os.environ.get("ENGRAM_DATA_DIR") or home / ".engram") / "engram.db",)


def recognize(sample: Sample) -> bool:
    """Return whether a path is the program's database, its export, or the folder `.engram` of a
    repository.
    """
    if "engram.db" in sample.names or {"manifest.json", "chunks"} <= sample.names:
        return True
    if {"topic_key", "normalized_hash"} <= sample.tables.get("observations", set()):
        return True
    return sample.has("sessions", "observations", "prompts")


def read(reader: Reader) -> Iterator[Item]:
    """Yield observations as statements and prompts as messages."""
    for file in reader.files(*FILES):
        if file.suffix == ".gz":
            yield from _read_chunk(reader, file)
            continue
        if not reader.is_sqlite(file):
            for value in reader.values(file):
                yield from _read_export(reader, value)
            continue
        with open_copy(file) as database:
            for row in database.rows("observations", _OBSERVATION, _OPTIONAL, "ORDER BY id"):
                yield from _read_observation(reader, row)
            if "user_prompts" in database.tables():
                optional = ("sync_id", "project")
                for row in database.rows("user_prompts", _PROMPT, optional, "ORDER BY id"):
                    yield from _read_prompt(row)


def _read_chunk(reader: Reader, file: Path) -> Iterator[Item]:
    """Read a packed file of one JSON object."""
    with reader.open(file) as stream, gzip.GzipFile(fileobj=stream) as unpacked:
        try:
            content = unpacked.read(MAX_VALUE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as exc:
            raise InvalidInput(f"{shown(file.name)} can't be unpacked: {exc}") from exc
    if len(content) > MAX_VALUE_BYTES:
        reader.skip("chunks of more than 64 MiB")
        return
    import io

    for value in reader.objects(io.BytesIO(content), file.name):
        yield from _read_export(reader, value)


def _read_export(reader: Reader, value: object) -> Iterator[Item]:
    if not isinstance(value, dict):
        reader.skip("entries that are not objects")
        return
    for row in dicts(value.get("observations")):
        yield from _read_observation(reader, row)
    for row in dicts(value.get("prompts")):
        yield from _read_prompt(row)


def _read_observation(reader: Reader, row: Mapping[str, Any]) -> Iterator[Item]:
    text = clean(row.get("content"))
    if row.get("deleted_at") or not text:
        reader.skip("deleted observations")
        return
    title = one_line(row.get("title"))
    tags: dict[str, str] = {}
    for key, name in (("project", "project"), ("type", "type"), ("topic_key", "topic")):
        add_tag(tags, name, row.get(key))
    yield Draft(
        text if not title or text.startswith(title) else f"{title}: {text}",
        tags=tags,
        created_at=moment(row.get("updated_at"), row.get("created_at")),
        key=one_line(row.get("sync_id")) or None,
    )


def _read_prompt(row: Mapping[str, Any]) -> Iterator[Item]:
    if text := clean(row.get("content")):
        session = one_line(row.get("session_id"))
        name = one_line(row.get("sync_id")) or name_of(session, row.get("created_at"), text)
        turn = TurnDraft(
            text, "user", created_at=moment(row.get("created_at")), message_id=f"engram:{name}"
        )
        yield Message(f"engram:{session}", turn, project=one_line(row.get("project")) or None)
