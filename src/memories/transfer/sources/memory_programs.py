"""Memories of other memory programs for agents, from their SQLite databases or from JSON."""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.models import Draft
from memories.read.turns import TurnDraft
from memories.transfer.sources.chroma import read_collection
from memories.transfer.sources.database import Database, open_copy
from memories.transfer.sources.items import (
    Item,
    SourceMessage,
    add_tag,
    clean,
    dicts,
    make_tags,
    mapping,
    moment,
    name_of,
    one_line,
    parse_json,
    parse_object,
    strings,
    to_tags,
)
from memories.transfer.sources.reader import MAX_VALUE_BYTES, Reader
from memories.transfer.sources.sample import Sample, Source, below

# --- server-memory, the reference server of the Model Context Protocol ---


def locate_graph(home: Path) -> Iterable[Path]:  # noqa: ARG001 - it has no usual place
    """Return the file that server-memory's environment variable names, if the variable is set."""
    file = os.environ.get("MEMORY_FILE_PATH")
    return (Path(file),) if file else ()


def is_graph(sample: Sample) -> bool:
    """Return whether a file's first line is an entity or a relation of a graph."""
    kind = sample.first.get("type")
    is_entity = kind == "entity" and sample.has("name", "entityType", "observations")
    return is_entity or (kind == "relation" and sample.has("from", "to", "relationType"))


def read_graph(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield each observation about an entity, and each relation, as a sentence.

    The file contains no times, so every statement gets the time of the file's last change.
    """
    changed = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    for line in reader.json_lines(file):
        kind = line.get("type")
        if kind == "entity":
            name = one_line(line.get("name"))
            tags = make_tags(time="inferred", entity=name, type=line.get("entityType"))
            for text in filter(None, map(clean, strings(line.get("observations")))):
                content = text if text.startswith(name) else f"{name}: {text}"
                yield Draft(content, tags=tags, created_at=changed)
        elif kind == "relation":
            parts = (line.get(name) for name in ("from", "relationType", "to"))
            text = " ".join(filter(None, map(one_line, parts)))
            yield Draft(text, tags={"type": "relation", "time": "inferred"}, created_at=changed)
        else:
            reader.skip("lines that are neither entities nor relations")


# --- mem0: its database of changes, or the result of its `get_all`, saved as JSON.
# The vectors are pickles, which are never opened.

_OWNERS = ("user_id", "agent_id", "run_id", "actor_id")


def is_mem0(sample: Sample) -> bool:
    """Return whether a path is mem0's database, or JSON of memories with an owner or a hash."""
    if sample.has_columns("history", "memory_id", "new_memory"):
        return True
    if sample.has("results"):
        return all(key in sample.start for key in (b'"memory"', b'"id"', b'"hash"'))
    return sample.has("id", "memory") and any(sample.has(key) for key in ("hash", *_OWNERS))


def read_mem0(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield the current text of each memory, and the latest messages, which mem0 keeps too."""
    if reader.is_sqlite(file):
        with open_copy(file) as database:
            yield from _read_changes(reader, database)
            yield from _read_messages(database)
        return
    for value in reader.values(file):
        results = mapping(value).get("results")
        for memory in dicts([value] if results is None else results):
            yield from _read_memory(reader, memory)


def _read_changes(reader: Reader, database: Database) -> Iterator[Item]:
    """Yield each memory with the text of its last change."""
    last: dict[str, Mapping[str, Any]] = {}
    needed, optional = (
        ("memory_id", "new_memory", "event"),
        ("created_at", "updated_at", "is_deleted"),
    )
    for change in database.rows("history", needed, optional, "ORDER BY rowid"):
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
        text, role = clean(row["content"]), row["role"]
        if text and role in ("user", "assistant"):
            at, message_id = moment(row["created_at"]), f"mem0:{row['id']}"
            turn = TurnDraft(text, role, created_at=at, message_id=message_id)
            yield SourceMessage(f"mem0:{one_line(row['session_scope'])}", turn)


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


# --- mcp-memory-service ---


def locate_service(home: Path) -> Iterable[Path]:
    """Return the database of mcp-memory-service."""
    if file := os.environ.get("MCP_MEMORY_SQLITE_PATH"):
        return (Path(file),)
    if sys.platform == "darwin":
        data = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        data = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        data = home / ".local" / "share"
    return (Path(os.environ.get("MCP_MEMORY_BASE_DIR") or data / "mcp-memory", "sqlite_vec.db"),)


def is_service(sample: Sample) -> bool:
    """Return whether a path is mcp-memory-service's database, or its folder."""
    columns = ("content_hash", "memory_type", "created_at_iso")
    return "sqlite_vec.db" in sample.names or sample.has_columns("memories", *columns)


def read_service(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield the current memories."""
    needed = ("content_hash", "content", "tags", "memory_type", "created_at")
    optional = ("deleted_at", "superseded_by")
    with open_copy(file) as database:
        for row in database.rows("memories", needed, optional, "ORDER BY created_at, id"):
            text = clean(row["content"])
            if row["deleted_at"] is not None:
                reader.skip("deleted memories")
            elif row["superseded_by"]:
                reader.skip("replaced versions")
            elif text:
                words = clean(row["tags"]).split(",")
                words = [word for word in words if word.strip() != "untagged"]
                tags = make_tags(words, type=row["memory_type"])
                yield Draft(text, tags=tags, created_at=moment(row["created_at"]))


# --- MemPalace: its palace, in Chroma or SQLite, and its knowledge graph ---

_PALACE = ("chroma.sqlite3", "sqlite_exact.sqlite3", "knowledge_graph.sqlite3")
_DOCUMENTS = (
    "WHERE collection_id IN (SELECT id FROM collections WHERE name = 'mempalace_drawers') "
    "ORDER BY created_at, id"
)


def is_palace(sample: Sample) -> bool:
    """Return whether a path is MemPalace's folder, or one of its databases."""
    folder = sample.path if sample.is_folder else sample.path.parent
    if not sample.is_folder and sample.path.name not in _PALACE:
        return False
    chroma, *others = _PALACE
    if sample.path.name in others or not sample.names.isdisjoint(others):
        return True
    return (folder / chroma).is_file() and (folder / "mempalace_embedder.json").is_file()


def read_palace(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield the stored texts, and a sentence for each fact of the graph that is still valid."""
    with open_copy(file) as database:
        if file.name == "knowledge_graph.sqlite3":
            yield from _read_facts(reader, database)
        elif file.name == "chroma.sqlite3":
            for identifier, text, metadata in read_collection(database, "mempalace_drawers"):
                yield from _read_drawer(identifier, text, metadata)
        else:
            needed = ("id", "document", "metadata_json")
            for row in database.rows("documents", needed, (), _DOCUMENTS):
                metadata = dict(parse_object(row["metadata_json"]))
                yield from _read_drawer(row["id"], row["document"], metadata)


def _read_drawer(identifier: str, text: object, metadata: Mapping[str, Any]) -> Iterator[Item]:
    if content := clean(text):
        wing, room, file = map(metadata.get, ("wing", "room", "source_file"))
        tags = make_tags(project=wing, room=room, file=file)
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
        time, key = moment(row["valid_from"], row["extracted_at"]), one_line(row["id"]) or None
        yield Draft(text, tags={"type": "relation"}, created_at=time, key=key)


# --- OMEGA ---


def is_omega(sample: Sample) -> bool:
    """Return whether a path is OMEGA's database, or the folder that contains it."""
    return "omega.db" in sample.names or sample.has_columns("memories", "node_id", "content")


def read_omega(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield the active memories."""
    needed = ("node_id", "content", "created_at")
    optional = ("metadata", "event_type", "project", "agent_type", "status", "updated_at")
    with open_copy(file) as database:
        for row in database.rows("memories", needed, optional, "ORDER BY id"):
            text = clean(row["content"])
            if row["status"] not in (None, "active"):
                reader.skip("memories that are no longer active")
            elif text:
                tags = make_tags(
                    strings(parse_object(row["metadata"]).get("tags")),
                    project=reader.project(row["project"]),
                    type=None if row["event_type"] == "memory" else row["event_type"],
                    agent=row["agent_type"],
                )
                time, key = moment(row["updated_at"], row["created_at"]), one_line(row["node_id"])
                yield Draft(text, tags=tags, created_at=time, key=key or None)


# --- engram: its database, its export, or the chunks in a repository ---


def is_engram(sample: Sample) -> bool:
    """Return whether a path is engram's database, its export, or the folder `.engram` of a
    repository.
    """
    if "engram.db" in sample.names or {"manifest.json", "chunks"} <= sample.names:
        return True
    if sample.has_columns("observations", "topic_key", "normalized_hash"):
        return True
    return sample.has("sessions", "observations", "prompts")


def read_engram(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield observations as statements and prompts as messages."""
    if file.suffix == ".gz":
        yield from _read_chunk(reader, file)
    elif not reader.is_sqlite(file):
        for value in reader.values(file):
            yield from _read_export(reader, value)
    else:
        needed = ("id", "session_id", "type", "title", "content", "created_at")
        optional = ("sync_id", "project", "topic_key", "updated_at", "deleted_at")
        with open_copy(file) as database:
            for row in database.rows("observations", needed, optional, "ORDER BY id"):
                yield from _read_observation(reader, row)
            if "user_prompts" in database.tables():
                columns = ("id", "session_id", "content", "created_at")
                others = ("sync_id", "project")
                for row in database.rows("user_prompts", columns, others, "ORDER BY id"):
                    yield from _read_prompt(row)


def _read_chunk(reader: Reader, file: Path) -> Iterator[Item]:
    """Read a gzip file that contains one JSON object."""
    with reader.open(file) as stream, gzip.GzipFile(fileobj=stream) as unpacked:
        try:
            content = unpacked.read(MAX_VALUE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as exc:
            raise InvalidInput(f"{shown(file.name)} can't be unpacked: {exc}") from exc
    if len(content) > MAX_VALUE_BYTES:
        reader.skip("chunks of more than 64 MiB")
        return
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
    if title and not text.startswith(title):
        text = f"{title}: {text}"
    project, kind, topic = map(row.get, ("project", "type", "topic_key"))
    tags = make_tags(project=project, type=kind, topic=topic)
    time, key = moment(row.get("updated_at"), row.get("created_at")), one_line(row.get("sync_id"))
    yield Draft(text, tags=tags, created_at=time, key=key or None)


def _read_prompt(row: Mapping[str, Any]) -> Iterator[Item]:
    if text := clean(row.get("content")):
        session, at = one_line(row.get("session_id")), row.get("created_at")
        name = one_line(row.get("sync_id")) or name_of(session, at, text)
        turn = TurnDraft(text, "user", created_at=moment(at), message_id=f"engram:{name}")
        yield SourceMessage(f"engram:{session}", turn, project=one_line(row.get("project")) or None)


# --- claude-mem ---

_TEXTS = ("title", "text", "narrative", "facts", "concepts", "content_hash", "merged_into_project")
_SUMMARY = ("request", "investigated", "learned", "completed", "next_steps", "notes")


def is_claude_mem(sample: Sample) -> bool:
    """Return whether a path is claude-mem's database, or its folder."""
    columns = ("memory_session_id", "project")
    return "claude-mem.db" in sample.names or sample.has_columns("observations", *columns)


def read_claude_mem(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield observations and summaries as statements, and prompts as messages."""
    order = "ORDER BY created_at_epoch, id"
    with open_copy(file) as database:
        needed: tuple[str, ...] = ("id", "project", "type", "created_at_epoch")
        for row in database.rows("observations", needed, _TEXTS, order):
            yield from _read_note(reader, row)
        tables = database.tables()
        if "session_summaries" in tables:
            needed = ("id", "project", "created_at_epoch")
            for row in database.rows("session_summaries", needed, _SUMMARY, order):
                yield from _read_summary(row)
        if "user_prompts" in tables:
            needed = ("id", "content_session_id", "prompt_text", "created_at_epoch")
            for row in database.rows("user_prompts", needed, (), order):
                if text := clean(row["prompt_text"]):
                    at, message_id = moment(row["created_at_epoch"]), f"claude-mem:{row['id']}"
                    turn = TurnDraft(text, "user", created_at=at, message_id=message_id)
                    yield SourceMessage(f"claude-mem:{one_line(row['content_session_id'])}", turn)


def _read_note(reader: Reader, row: Mapping[str, Any]) -> Iterator[Item]:
    title = one_line(row["title"])
    body = clean(row["narrative"]) or clean(row["text"])
    facts = [one_line(fact) for fact in strings(parse_json(row["facts"]))]
    content = "\n".join(filter(None, (": ".join(filter(None, (title, body))), *facts)))
    if not content:
        reader.skip("observations without text")
        return
    project = row["merged_into_project"] or row["project"]
    tags = make_tags(strings(parse_json(row["concepts"])), project=project, type=row["type"])
    yield Draft(content, tags=tags, created_at=moment(row["created_at_epoch"]))


def _read_summary(row: Mapping[str, Any]) -> Iterator[Item]:
    texts = zip(_SUMMARY, map(clean, map(row.get, _SUMMARY)), strict=True)
    parts = [f"{name.replace('_', ' ').capitalize()}: {text}" for name, text in texts if text]
    if parts:
        tags = make_tags(type="summary", project=row["project"])
        yield Draft("\n".join(parts), tags=tags, created_at=moment(row["created_at_epoch"]))


SOURCES = {
    "server-memory": Source.of_files(
        ("memory.jsonl", "memory.json"), is_graph, read_graph, locate_graph
    ),
    "mem0": Source.of_files(
        ("history.db", "*.json"), is_mem0, read_mem0, below("MEM0_DIR", ".mem0", "history.db")
    ),
    "mcp-memory-service": Source.of_files(
        ("sqlite_vec.db",), is_service, read_service, locate_service
    ),
    "mempalace": Source.of_files(
        _PALACE, is_palace, read_palace, below("MEMPALACE_PALACE_PATH", ".mempalace/palace", "")
    ),
    "omega": Source.of_files(
        ("omega.db",), is_omega, read_omega, below("OMEGA_HOME", ".omega", "omega.db")
    ),
    "engram": Source.of_files(
        ("engram.db", "chunks/*.jsonl.gz", "*/chunks/*.jsonl.gz"),
        is_engram,
        read_engram,
        below("ENGRAM_DATA_DIR", ".engram", "engram.db"),
    ),
    "claude-mem": Source.of_files(
        ("claude-mem.db",),
        is_claude_mem,
        read_claude_mem,
        below("CLAUDE_MEM_DATA_DIR", ".claude-mem", "claude-mem.db"),
    ),
}
