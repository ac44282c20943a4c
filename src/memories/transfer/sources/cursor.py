"""Chats of Cursor: its database of all chats, and the transcripts of its command."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.read.turns import TurnDraft
from memories.transfer.sources.database import Database, open_copy
from memories.transfer.sources.items import (
    Item,
    Message,
    blocks_text,
    clean,
    dicts,
    moment,
    name_of,
    one_line,
    parse_object,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("state.vscdb", "agent-transcripts/*.jsonl", "*/agent-transcripts/*.jsonl")
_ROLES = {"1": "user", "2": "assistant"}
_TABLE = "cursorDiskKV"  # the other table has the tokens of the account, and is never read
_CHATS = "WHERE key LIKE 'composerData:%' ORDER BY key"
_BUBBLES = "WHERE key >= ? || ':' AND key < ? || ';'"


def locate(home: Path) -> Iterable[Path]:
    """Return its database, and the folder with the transcripts of its command."""
    if sys.platform == "darwin":
        settings = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        settings = Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    database = settings / "Cursor" / "User" / "globalStorage" / "state.vscdb"
    return (database, home / ".cursor" / "projects")


def recognize(sample: Sample) -> bool:
    """Return whether a path is the program's database, a transcript, or a folder that contains
    one.
    """
    if _TABLE in sample.tables or "state.vscdb" in sample.names:
        return True
    if sample.is_folder:
        return any(sample.path.glob("*/agent-transcripts"))
    return sample.path.parent.name == "agent-transcripts" and sample.has("role")


def read(reader: Reader) -> Iterator[Item]:
    """Yield the prompts and answers of each chat."""
    for file in reader.files(*FILES):
        if file.suffix == ".jsonl":
            yield from _read_transcript(reader, file)
            continue
        with open_copy(file) as database:
            for row in database.rows(_TABLE, ("key", "value"), (), _CHATS):
                yield from _read_chat(reader, database, parse_object(row["value"]))


def _read_chat(reader: Reader, database: Database, chat: Mapping[str, Any]) -> Iterator[Item]:
    """Yield the messages of a chat in the order of its list; others are edited-away text."""
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
    bubbles |= _inline_bubbles(chat)
    order = [header.get("bubbleId") for header in dicts(chat.get("fullConversationHeadersOnly"))]
    listed = [str(bubble_id) for bubble_id in order if str(bubble_id) in bubbles] or list(bubbles)
    reader.skip("messages that were edited away", len(bubbles) - len(listed))
    title = one_line(chat.get("name"))
    started_at = moment(chat.get("createdAt"))
    for bubble_id in listed:
        bubble = bubbles[bubble_id]
        role, text = _ROLES.get(str(bubble.get("type"))), clean(bubble.get("text"))
        if role is None or not text:
            continue
        created_at = moment(bubble.get("createdAt")) or started_at
        started_at = None  # the time of the first message; the next ones follow it
        turn = TurnDraft(text, role, created_at=created_at, message_id=f"cursor:{bubble_id}")
        yield Message(f"cursor:{chat_id}", turn, title or one_line(text, 100))


def _inline_bubbles(chat: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the messages that older versions keep in the chat itself."""
    return {
        str(bubble["bubbleId"]): bubble
        for bubble in dicts(chat.get("conversation"))
        if isinstance(bubble.get("bubbleId"), str)
    }


def _read_transcript(reader: Reader, file: Path) -> Iterator[Item]:
    title, counts = "", dict[str, int]()
    for line in reader.json_lines(file):
        message = line.get("message")
        content = message.get("content") if isinstance(message, dict) else line.get("content")
        text = "\n\n".join(filter(None, blocks_text(content)))
        if line.get("role") not in ("user", "assistant") or not text:
            continue
        title = title or one_line(text, 100)
        name = name_of(line["role"], text)
        counts[name] = counts.get(name, 0) + 1  # the lines have neither ids nor times
        turn = TurnDraft(
            text,
            line["role"],
            created_at=moment(line.get("timestamp")),
            message_id=f"cursor:{name}:{counts[name]}",
        )
        yield Message(f"cursor:{file.stem}", turn, title)
