"""Chats of Gemini CLI: JSON lines with patches, or one JSON object in older versions."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.read.turns import TurnDraft
from memories.transfer.sources.items import (
    Item,
    Message,
    blocks_text,
    dicts,
    mapping,
    moment,
    name_of,
    one_line,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("session-*.jsonl", "session-*.json")
_ROLES = {"user": "user", "gemini": "assistant"}
_INSERTED = ("<session_context>", "<hook_context>")
_READ = ("id", "timestamp", "type", "content", "model")  # the results of tools may be huge
_MAX_ROOT_BYTES = 4_096


def locate(home: Path) -> Iterable[Path]:
    """Return the folder with a folder of chats for each project."""
    return (Path(os.environ.get("GEMINI_CLI_HOME") or home, ".gemini", "tmp"),)


def recognize(sample: Sample) -> bool:
    """Return whether a path is a chat, or a folder that contains chats."""
    return sample.has("sessionId", "projectHash")


def read(reader: Reader) -> Iterator[Item]:
    """Yield the prompts and answers of each chat.

    A resumed chat is continued in its file and begun in another one, under the same id; its
    messages keep their ids.
    """
    for file in reader.files(*FILES):
        session, messages = _read_chat(reader, file)
        root = reader.beginning(file.parent.parent / ".project_root", _MAX_ROOT_BYTES)
        project = reader.project(root.decode("utf-8", "replace").strip())
        title = ""
        for message in messages:
            role = _ROLES[message["type"]]
            texts = blocks_text(message.get("content"))
            text = "\n\n".join(text for text in texts if text and not text.startswith(_INSERTED))
            if not text:
                continue
            title = title or one_line(text, 100)
            message_id = one_line(message.get("id"))
            message_id = message_id or name_of(role, message.get("timestamp"), text)
            model = one_line(message.get("model"))
            turn = TurnDraft(
                text,
                role,
                created_at=moment(message.get("timestamp")),
                message_id=f"gemini:{message_id}",
                tags={"model": model} if model else {},
            )
            yield Message(f"gemini:{session}", turn, title, project)


def _read_chat(reader: Reader, file: Path) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the id of a chat, and its prompts and answers after all patches.

    A message may come again with the calls of its tools, and a patch replaces all of them.
    """
    session = file.stem
    messages: dict[object, Mapping[str, Any]] = {}
    lines: Iterator[Mapping[str, Any]] = reader.json_lines(file)
    if file.suffix == ".json":
        lines = filter(None, map(mapping, reader.values(file)))
    for line in lines:
        session = one_line(line.get("sessionId")) or session
        patch = line.get("$set")
        replaced = patch.get("messages") if isinstance(patch, dict) else line.get("messages")
        if isinstance(replaced, list):
            messages = {}
        for message in [line, *dicts(replaced)]:
            if str(message.get("type")) in _ROLES:
                key = message.get("id") or len(messages)
                messages[str(key)] = {name: message.get(name) for name in _READ}
                if message.get("toolCalls"):
                    reader.skip("results of tools", len(dicts(message["toolCalls"])))
    return session, list(messages.values())
