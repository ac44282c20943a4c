"""Sessions of opencode, in its SQLite database."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.read.turns import TurnDraft
from memories.transfer.sources.database import Database, open_copy
from memories.transfer.sources.items import Item, Message, clean, moment, one_line
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("opencode.db",)
_OF_SESSION = "WHERE session_id = ? ORDER BY time_created, id"
_TEXT_PARTS = (
    "WHERE session_id = ? AND "
    "CASE WHEN json_valid(data) THEN json_extract(data, '$.type') = 'text' END ORDER BY id"
)


def locate(home: Path) -> Iterable[Path]:
    """Return its database."""
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return (data / "opencode" / "opencode.db",)


def recognize(sample: Sample) -> bool:
    """Return whether it is its database, or the folder of it."""
    if "opencode.db" in sample.names:
        return True
    return {"session", "message", "part"} <= sample.tables.keys()


def read(reader: Reader) -> Iterator[Item]:
    """Yield the prompts and answers of each session."""
    for file in reader.files(*FILES):
        with open_copy(file) as database:
            needed, optional = ("id", "title"), ("directory", "parent_id")
            rest = "ORDER BY time_created, id"
            for session in database.rows("session", needed, optional, rest):
                if session["parent_id"] and "subagents" not in reader.include:
                    reader.skip("transcripts of subagents")
                else:
                    yield from _read_session(reader, database, session)


def _read_session(reader: Reader, database: Database, session: Mapping[str, Any]) -> Iterator[Item]:
    texts: dict[str, list[str]] = {}
    ids: dict[str, str] = {}
    for row in database.rows("part", ("id", "message_id", "data"), (), _TEXT_PARTS, session["id"]):
        part = _object(row["data"])
        if part.get("synthetic") or part.get("ignored"):
            continue
        if text := clean(part.get("text")):
            texts.setdefault(row["message_id"], []).append(text)
            ids.setdefault(row["message_id"], row["id"])
    columns = ("id", "time_created", "data")
    for row in database.rows("message", columns, (), _OF_SESSION, session["id"]):
        data = _object(row["data"])
        role = data.get("role")
        if row["id"] not in texts or role not in ("user", "assistant"):
            continue
        if role == "assistant" and not _is_complete(data):
            reader.skip("unfinished answers")
            continue
        text = "\n\n".join(texts[row["id"]])
        model = one_line(data.get("modelID"))
        turn = TurnDraft(
            _unquoted(text) if role == "user" else text,
            role,
            created_at=moment(row["time_created"]),
            message_id=f"opencode:{ids[row['id']]}",
            tags={"model": model} if model else {},
        )
        project = reader.project(session["directory"])
        yield Message(f"opencode:{session['id']}", turn, one_line(session["title"]), project)


def _object(text: object) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _is_complete(data: Mapping[str, Any]) -> bool:
    """Return whether an answer is complete: one that is being written would change."""
    times = data.get("time")
    has_end = isinstance(times, dict) and times.get("completed") is not None
    return has_end or "error" in data or not isinstance(times, dict)


def _unquoted(text: str) -> str:
    """Return a prompt without the quotes that `opencode run` puts around it."""
    is_quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return text[1:-1] if is_quoted and '"' not in text[1:-1] else text
