"""Drawers and facts of MemPalace: its palace on Chroma or SQLite, and its knowledge graph."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.models import Draft
from memories.transfer.sources.database import Database, open_copy
from memories.transfer.sources.items import Item, add_tag, clean, moment, one_line, parse_object
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("chroma.sqlite3", "sqlite_exact.sqlite3", "knowledge_graph.sqlite3")
_DRAWERS = (
    "WHERE segment_id IN (SELECT s.id FROM segments s JOIN collections c ON c.id = s.collection "
    "WHERE c.name = 'mempalace_drawers') ORDER BY id"
)
_DOCUMENTS = (
    "WHERE collection_id IN (SELECT id FROM collections WHERE name = 'mempalace_drawers') "
    "ORDER BY created_at, id"
)


def locate(home: Path) -> Iterable[Path]:
    """Return the folder of the palace."""
    return (Path(os.environ.get("MEMPALACE_PALACE_PATH") or home / ".mempalace" / "palace"),)


def recognize(sample: Sample) -> bool:
    """Return whether a path is the folder of a palace, or one of its databases."""
    folder = sample.path if sample.is_folder else sample.path.parent
    if not sample.is_folder and sample.path.name not in FILES:
        return False
    if sample.path.name in FILES[1:] or sample.names & set(FILES[1:]):
        return True
    return (folder / FILES[0]).is_file() and (folder / "mempalace_embedder.json").is_file()


def read(reader: Reader) -> Iterator[Item]:
    """Yield the drawers, and the facts of the graph that still hold, as sentences."""
    for file in reader.files(*FILES):
        with open_copy(file) as database:
            if file.name == "knowledge_graph.sqlite3":
                yield from _read_facts(reader, database)
            elif file.name == "chroma.sqlite3":
                yield from _read_chroma(database)
            else:
                columns = ("id", "document", "metadata_json")
                for row in database.rows("documents", columns, (), _DOCUMENTS):
                    yield from _read_drawer(
                        row["id"], row["document"], parse_object(row["metadata_json"])
                    )


def _read_chroma(database: Database) -> Iterator[Item]:
    columns = ("key", "string_value")
    for row in database.rows("embeddings", ("id", "embedding_id"), (), _DRAWERS):
        where = "WHERE id = ?"
        pairs = database.rows("embedding_metadata", columns, (), where, str(row["id"]))
        metadata = {pair["key"]: pair["string_value"] for pair in pairs}
        yield from _read_drawer(row["embedding_id"], metadata.get("chroma:document"), metadata)


def _read_drawer(identifier: str, text: object, metadata: Mapping[str, Any]) -> Iterator[Item]:
    if content := clean(text):
        tags: dict[str, str] = {}
        for key, name in (("wing", "project"), ("room", "room"), ("source_file", "file")):
            add_tag(tags, name, metadata.get(key))
        time = moment(metadata.get("authored_at"), metadata.get("filed_at"))
        yield Draft(content, tags=tags, created_at=time, key=one_line(identifier) or None)


def _read_facts(reader: Reader, database: Database) -> Iterator[Item]:
    names = {row["id"]: row["name"] for row in database.rows("entities", ("id", "name"))}
    needed = ("id", "subject", "predicate", "object")
    optional = ("valid_from", "valid_to", "extracted_at")
    for row in database.rows("triples", needed, optional, "ORDER BY extracted_at, id"):
        if row["valid_to"]:
            reader.skip("facts that no longer hold")
            continue
        subject, target = (names.get(row[end], row[end]) for end in ("subject", "object"))
        text = one_line(f"{subject} {str(row['predicate']).replace('_', ' ')} {target}", 2_000)
        time = moment(row["valid_from"], row["extracted_at"])
        yield Draft(
            text, tags={"type": "relation"}, created_at=time, key=one_line(row["id"]) or None
        )
