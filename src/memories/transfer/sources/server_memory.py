"""The graph of server-memory, the reference server of the Model Context Protocol."""

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memories.models import Draft
from memories.transfer.sources.items import Item, add_tag, clean, one_line, strings
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("memory.jsonl", "memory.json")


def locate(home: Path) -> Iterable[Path]:  # noqa: ARG001 - it has no usual place
    """Return the file that its variable names; by default it lies in the folder of the package."""
    file = os.environ.get("MEMORY_FILE_PATH")
    return (Path(file),) if file else ()


def recognize(sample: Sample) -> bool:
    """Return whether the first line is an entity or a relation of a graph."""
    kind = sample.first.get("type")
    is_entity = kind == "entity" and sample.has("name", "entityType", "observations")
    return is_entity or (kind == "relation" and sample.has("from", "to", "relationType"))


def read(reader: Reader) -> Iterator[Item]:
    """Yield each observation of an entity, and each relation, as a sentence.

    The file has no times: they get the time of its last change.
    """
    for file in reader.files(*FILES):
        changed = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        for line in reader.json_lines(file):
            kind = line.get("type")
            if kind == "entity":
                yield from _read_entity(line, changed)
            elif kind == "relation":
                parts = (line.get(name) for name in ("from", "relationType", "to"))
                text = " ".join(filter(None, map(one_line, parts)))
                yield Draft(text, tags={"type": "relation", "time": "inferred"}, created_at=changed)
            else:
                reader.skip("lines that are neither entities nor relations")


def _read_entity(line: Mapping[str, Any], changed: datetime) -> Iterator[Item]:
    name = one_line(line.get("name"))
    tags = {"time": "inferred"}
    add_tag(tags, "entity", name)
    add_tag(tags, "type", line.get("entityType"))
    for text in filter(None, map(clean, strings(line.get("observations")))):
        content = text if text.startswith(name) else f"{name}: {text}"
        yield Draft(content, tags=tags, created_at=changed)
