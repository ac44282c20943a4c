"""Sessions of opencode, in its SQLite database or, in older versions, in JSON files."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memories.read.turns import TurnDraft
from memories.transfer.sources.database import Database, open_copy
from memories.transfer.sources.items import (
    Item,
    Message,
    clean,
    mapping,
    moment,
    one_line,
    parse_object,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("opencode.db", "session/*/ses_*.json", "*/session/*/ses_*.json")
_OF_SESSION = "WHERE session_id = ? ORDER BY time_created, id"
_TEXT_PARTS = (
    "WHERE session_id = ? AND "
    "CASE WHEN json_valid(data) THEN json_extract(data, '$.type') = 'text' END ORDER BY id"
)
_NO_TITLE = "New session - "


class _Session(NamedTuple):
    """A session.

    Attributes:
        session_id: Its id.
        title: Its title; empty if the program has not found one.
        directory: The working folder.
        parent: The session whose agent started this one, if any.
    """

    session_id: str
    title: str
    directory: object
    parent: object


class _Message(NamedTuple):
    """A message of a session.

    Attributes:
        created_at: When it was written.
        data: Its other fields.
        parts: Its parts that are text, in order.
    """

    created_at: object
    data: Mapping[str, Any]
    parts: Sequence[Mapping[str, Any]]


def locate(home: Path) -> Iterable[Path]:
    """Return its database, and the folder of older versions."""
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "opencode"
    return (data / "opencode.db", data / "storage")


def recognize(sample: Sample) -> bool:
    """Return whether a path is the program's database, or a folder that contains its sessions."""
    if "opencode.db" in sample.names or {"session", "message", "part"} <= sample.names:
        return True
    return {"session", "message", "part"} <= sample.tables.keys()


def read(reader: Reader) -> Iterator[Item]:
    """Yield the prompts and answers of each session."""
    for file in reader.files(*FILES):
        if file.suffix == ".json":
            yield from _read_files(reader, file)
            continue
        with open_copy(file) as database:
            yield from _read_database(reader, database)


def _read_database(reader: Reader, database: Database) -> Iterator[Item]:
    needed, optional = ("id", "title"), ("directory", "parent_id")
    for row in database.rows("session", needed, optional, "ORDER BY time_created, id"):
        session = _Session(
            one_line(row["id"]), one_line(row["title"]), row["directory"], row["parent_id"]
        )
        yield from _turns(reader, session, _messages_in(database, session.session_id))


def _messages_in(database: Database, session_id: str) -> Iterator[_Message]:
    parts: dict[str, list[Mapping[str, Any]]] = {}
    columns = ("id", "message_id", "data")
    for row in database.rows("part", columns, (), _TEXT_PARTS, session_id):
        parts.setdefault(row["message_id"], []).append(
            {**parse_object(row["data"]), "id": row["id"]}
        )
    columns = ("id", "time_created", "data")
    for row in database.rows("message", columns, (), _OF_SESSION, session_id):
        yield _Message(row["time_created"], parse_object(row["data"]), parts.get(row["id"], ()))


def _read_files(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield the messages of a session whose file stands beside those of its messages and parts."""
    fields = parse_object(reader.text(file))
    directory, parent = fields.get("directory"), fields.get("parentID")
    session = _Session(file.stem, one_line(fields.get("title")), directory, parent)
    storage = file.parent.parent.parent
    messages: list[_Message] = []
    for message_file in _files_in(storage / "message" / file.stem, "msg_*.json"):
        data = parse_object(reader.text(message_file))
        part_files = _files_in(storage / "part" / message_file.stem, "prt_*.json")
        parts = [parse_object(reader.text(part_file)) for part_file in part_files]
        created_at = mapping(data.get("time")).get("created")
        texts = [part for part in parts if part.get("type") == "text"]
        messages.append(_Message(created_at, data, texts))
    yield from _turns(reader, session, messages)


def _files_in(folder: Path, pattern: str) -> Sequence[Path]:
    """Return the files in a folder, in order; none if a link leads there."""
    if folder.resolve() != folder:
        return ()
    return sorted(folder.glob(pattern))


def _turns(reader: Reader, session: _Session, messages: Iterable[_Message]) -> Iterator[Item]:
    if session.parent and "subagents" not in reader.include:
        reader.skip("transcripts of subagents")
        return
    title = "" if session.title.startswith(_NO_TITLE) else session.title
    for message in messages:
        role = message.data.get("role")
        # Without those that the program wrote.
        own = [part for part in message.parts if not (part.get("synthetic") or part.get("ignored"))]
        shown = [part for part in own if clean(part.get("text"))]
        text = "\n\n".join(clean(part["text"]) for part in shown)
        if not text or role not in ("user", "assistant"):
            continue
        if role == "assistant" and not (_has_ended(message.data) or all(map(_has_ended, shown))):
            reader.skip("unfinished answers")
            continue
        title = title or one_line(text, 100)
        if role == "user" and re.fullmatch(r'"[^"]+"', text):  # by `opencode run`
            text = text[1:-1]
        model = one_line(message.data.get("modelID"))
        turn = TurnDraft(
            text,
            role,
            created_at=moment(message.created_at),
            message_id=f"opencode:{shown[0].get('id')}",
            tags={"model": model} if model else {},
        )
        project = reader.project(session.directory)
        yield Message(f"opencode:{session.session_id}", turn, title, project)


def _has_ended(data: Mapping[str, Any]) -> bool:
    """Return whether an answer or a part of one is complete; one that is being written changes."""
    times = data.get("time")
    if not isinstance(times, dict) or "error" in data:
        return True
    return times.get("completed") is not None or times.get("end") is not None
