"""Chats of Cursor and opencode, from their databases or, in some versions, from JSON files."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memories.read.turns import TurnDraft
from memories.transfer.sources.database import Database, open_copy
from memories.transfer.sources.items import (
    Item,
    SourceMessage,
    blocks_text,
    clean,
    dicts,
    join_texts,
    mapping,
    moment,
    name_of,
    one_line,
    parse_object,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample, Source, below

# --- Cursor ---

_ROLES = {"1": "user", "2": "assistant"}
_TABLE = "cursorDiskKV"  # the other table contains the account's tokens and is never read
_CHATS = "WHERE key LIKE 'composerData:%' ORDER BY key"
_BUBBLES = "WHERE key >= ? || ':' AND key < ? || ';'"


def locate_cursor(home: Path) -> Iterable[Path]:
    """Return Cursor's database, and the folder with the transcripts of its command-line agent."""
    if sys.platform == "darwin":
        settings = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        settings = Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    database = settings / "Cursor" / "User" / "globalStorage" / "state.vscdb"
    return (database, home / ".cursor" / "projects")


def recognize_cursor(sample: Sample) -> bool:
    """Return whether a path is Cursor's database, a transcript, or a folder that contains one."""
    if _TABLE in sample.tables or "state.vscdb" in sample.names:
        return True
    if sample.is_folder:
        return any(sample.path.glob("*/agent-transcripts"))
    return sample.path.parent.name == "agent-transcripts" and sample.has("role")


def read_cursor(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield each chat's prompts and answers."""
    if file.suffix == ".jsonl":
        yield from _read_transcript(reader, file)
        return
    with open_copy(file) as database:
        for row in database.rows(_TABLE, ("key", "value"), (), _CHATS):
            yield from _read_chat(reader, database, parse_object(row["value"]))


def _read_chat(reader: Reader, database: Database, chat: Mapping[str, Any]) -> Iterator[Item]:
    """Yield the messages that a chat lists, in order; an edit removes messages from the list."""
    chat_id = one_line(chat.get("composerId"))
    if not chat_id:
        return
    if chat.get("isSubagent") and "subagents" not in reader.include:
        reader.skip("transcripts of subagents")
        return
    prefix = f"bubbleId:{chat_id}"
    bubbles: dict[str, Mapping[str, Any]] = {}
    for row in database.rows(_TABLE, ("key", "value"), (), _BUBBLES, prefix, prefix):
        bubble = parse_object(row["value"])
        names = ("type", "text", "createdAt", "modelInfo")
        bubbles[row["key"].rpartition(":")[2]] = {name: bubble.get(name) for name in names}
    for bubble in dicts(chat.get("conversation")):  # the format of older versions
        if isinstance(bubble.get("bubbleId"), str):
            bubbles[str(bubble["bubbleId"])] = bubble
    order = [header.get("bubbleId") for header in dicts(chat.get("fullConversationHeadersOnly"))]
    listed = [str(bubble_id) for bubble_id in order if str(bubble_id) in bubbles] or list(bubbles)
    reader.skip("messages removed by edits", len(bubbles) - len(listed))
    title = one_line(chat.get("name"))
    started_at = moment(chat.get("createdAt"))
    for bubble_id in listed:
        bubble = bubbles[bubble_id]
        role, text = _ROLES.get(str(bubble.get("type"))), clean(bubble.get("text"))
        if role is None or not text:
            continue
        created_at = moment(bubble.get("createdAt")) or started_at
        started_at = None  # only the first message gets this time
        turn = TurnDraft(text, role, created_at=created_at, message_id=f"cursor:{bubble_id}")
        yield SourceMessage(f"cursor:{chat_id}", turn, title or one_line(text, 100))


def _read_transcript(reader: Reader, file: Path) -> Iterator[Item]:
    title, counts = "", dict[str, int]()
    for line in reader.json_lines(file):
        message = line.get("message")
        content = message.get("content") if isinstance(message, dict) else line.get("content")
        text, role = join_texts(blocks_text(content)), line.get("role")
        if role not in ("user", "assistant") or not text:
            continue
        title = title or one_line(text, 100)
        name = name_of(role, text)
        counts[name] = counts.get(name, 0) + 1  # the lines have no ids, so count repetitions
        at, message_id = moment(line.get("timestamp")), f"cursor:{name}:{counts[name]}"
        turn = TurnDraft(text, role, created_at=at, message_id=message_id)
        yield SourceMessage(f"cursor:{file.stem}", turn, title)


# --- opencode ---

_OF_SESSION = "WHERE session_id = ? ORDER BY time_created, id"
_TEXT_PARTS = (
    "WHERE session_id = ? AND "
    "CASE WHEN json_valid(data) THEN json_extract(data, '$.type') = 'text' END ORDER BY id"
)
_NO_TITLE = "New session - "


class _Session(NamedTuple):
    """A session of opencode.

    Attributes:
        session_id: Its id.
        title: Its title, or the program's placeholder for one.
        directory: The working folder.
        parent: The session whose agent started this one, if any.
    """

    session_id: str
    title: str
    directory: object
    parent: object


class _Message(NamedTuple):
    """A message in a session.

    Attributes:
        created_at: When it was written.
        data: Its other fields.
        parts: Its text parts, in order.
    """

    created_at: object
    data: Mapping[str, Any]
    parts: Sequence[Mapping[str, Any]]


def recognize_opencode(sample: Sample) -> bool:
    """Return whether a path is opencode's database, or a folder that contains its sessions."""
    if "opencode.db" in sample.names or {"session", "message", "part"} <= sample.names:
        return True
    return {"session", "message", "part"} <= sample.tables.keys()


def read_opencode(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield each session's prompts and answers."""
    if file.suffix == ".json":
        yield from _read_files(reader, file)
        return
    needed, optional = ("id", "title"), ("directory", "parent_id")
    with open_copy(file) as database:
        for row in database.rows("session", needed, optional, "ORDER BY time_created, id"):
            session = _Session(
                one_line(row["id"]), one_line(row["title"]), row["directory"], row["parent_id"]
            )
            yield from _turns(reader, session, _messages_in(database, session.session_id))


def _messages_in(database: Database, session_id: str) -> Iterator[_Message]:
    parts: dict[str, list[Mapping[str, Any]]] = {}
    columns = ("id", "message_id", "data")
    for row in database.rows("part", columns, (), _TEXT_PARTS, session_id):
        part = {**parse_object(row["data"]), "id": row["id"]}
        parts.setdefault(row["message_id"], []).append(part)
    columns = ("id", "time_created", "data")
    for row in database.rows("message", columns, (), _OF_SESSION, session_id):
        yield _Message(row["time_created"], parse_object(row["data"]), parts.get(row["id"], ()))


def _read_files(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield a session's messages from JSON files: one for the session, one for each message,
    and one for each part of a message.
    """
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
    """Return the files in a folder, sorted; none if the path contains a symbolic link."""
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
        # Parts that the program inserted are left out.
        own = [part for part in message.parts if not (part.get("synthetic") or part.get("ignored"))]
        shown = [part for part in own if clean(part.get("text"))]
        text = "\n\n".join(clean(part["text"]) for part in shown)
        if not text or role not in ("user", "assistant"):
            continue
        if role == "assistant" and message.data.get("summary"):
            reader.skip("summaries")
            continue
        if role == "assistant" and not (_has_ended(message.data) or all(map(_has_ended, shown))):
            reader.skip("unfinished answers")
            continue
        title = title or one_line(text, 100)
        if role == "user" and re.fullmatch(r'"(\\"|[^"])+"', text):  # `opencode run` adds quotes
            text = text[1:-1].replace('\\"', '"')
        at, message_id = moment(message.created_at), f"opencode:{shown[0].get('id')}"
        tags = {"model": one_line(message.data.get("modelID"))}
        turn = TurnDraft(text, role, created_at=at, message_id=message_id, tags=tags)
        project = reader.project(session.directory)
        yield SourceMessage(f"opencode:{session.session_id}", turn, title, project)


def _has_ended(data: Mapping[str, Any]) -> bool:
    """Return whether an answer, or a part of one, is complete and will not change again."""
    times = data.get("time")
    if not isinstance(times, dict) or "error" in data:
        return True
    return times.get("completed") is not None or times.get("end") is not None


SOURCES = {
    "cursor": Source.of_files(
        ("state.vscdb", "agent-transcripts/*.jsonl", "*/agent-transcripts/*.jsonl"),
        recognize_cursor,
        read_cursor,
        locate_cursor,
    ),
    "opencode": Source.of_files(
        ("opencode.db", "session/*/ses_*.json", "*/session/*/ses_*.json"),
        recognize_opencode,
        read_opencode,
        below("XDG_DATA_HOME", ".local/share", "opencode/opencode.db", "opencode/storage"),
    ),
}
