"""Sessions of Codex, one JSON lines file ("rollout") each, which may be compressed."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.read.turns import TurnDraft
from memories.transfer.sources.items import (
    Item,
    Message,
    clean,
    dicts,
    mapping,
    moment,
    name_of,
    one_line,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("rollout-*.jsonl", "rollout-*.jsonl.zst")
# Beginnings of texts that the program puts before a prompt, in versions that don't mark them.
_INSERTED = (
    "# AGENTS.md instructions", "<environment_context>", "<user_instructions>", "<turn_aborted>",
    "<skills_instructions>", "<permissions instructions>", "<user_action>", "<ide_context>",
)  # fmt: skip
_PASSTHROUGH = "internal_chat_message_metadata_passthrough"


def locate(home: Path) -> Iterable[Path]:
    """Return the folders of its sessions, the archived ones too."""
    folder = Path(os.environ.get("CODEX_HOME") or home / ".codex")
    return (folder / "sessions", folder / "archived_sessions")


def recognize(sample: Sample) -> bool:
    """Return whether a path is a session, or a folder that contains sessions."""
    if sample.has("timestamp", "type", "payload"):
        return True
    return sample.has("id", "timestamp", "instructions")  # versions before September 2025


def read(reader: Reader) -> Iterator[Item]:
    """Yield the prompts and answers of each session.

    The file has each message twice: as a response item, which is read, and as an event.
    """
    for file in reader.files(*FILES):
        yield from _read_session(reader, file)


def _read_session(reader: Reader, file: Path) -> Iterator[Item]:
    session, title, project, started_at = file.name.partition(".")[0], "", None, None
    ids: set[str] = set()
    for line in reader.json_lines(file):
        payload = line.get("payload", line)
        if not isinstance(payload, dict):
            continue
        if line.get("type") == "session_meta" or "instructions" in line:
            started_at = moment(payload.get("timestamp"))
            session = one_line(payload.get("id")) or session
            project = reader.project(payload.get("cwd"))
            if "subagent" in str(payload.get("source")) and "subagents" not in reader.include:
                reader.skip("transcripts of subagents")
                return
        is_item = payload is line or line.get("type") == "response_item"
        if not is_item or payload.get("type") != "message":
            if payload.get("type") in ("function_call_output", "custom_tool_call_output"):
                reader.skip("results of tools")
            continue
        if text := _text(payload, reader):
            title = title or one_line(text, 100)
            message_id = f"codex:{one_line(payload.get('id')) or name_of(payload['role'], text)}"
            while message_id in ids:  # some model servers give every answer the same id
                message_id = f"{message_id}:{line.get('timestamp', '')}"
            ids.add(message_id)
            turn = TurnDraft(
                text,
                payload["role"],
                created_at=moment(line.get("timestamp")) or started_at,
                message_id=message_id,
            )
            started_at = None  # the time of the first message; the next ones follow it
            yield Message(f"codex:{session}", turn, title, project)


def _text(payload: Mapping[str, Any], reader: Reader) -> str:
    """Return the text that a person or the model wrote in a message; empty if there is none."""
    if payload.get("role") not in ("user", "assistant"):
        return ""
    blocks = dicts(payload.get("content"))
    if payload["role"] == "user":
        blocks = _of_user(payload, blocks)
    images = sum(block.get("type") == "input_image" for block in blocks)
    reader.skip("images", images)
    texts = [clean(block.get("text")) for block in blocks]
    if payload["role"] == "user":
        texts = [text for text in texts if not text.startswith(_INSERTED)]
    return "\n\n".join(filter(None, texts))


def _of_user(
    payload: Mapping[str, Any], blocks: list[Mapping[str, object]]
) -> list[Mapping[str, object]]:
    """Return the parts of a prompt that the user wrote, where the file says which."""
    kinds = mapping(payload.get(_PASSTHROUGH)).get("content_item_kinds")
    if not isinstance(kinds, list) or len(kinds) != len(blocks):
        return blocks
    return [
        block
        for block, kind in zip(blocks, kinds, strict=True)
        if str(kind).startswith(("user.", "unknown"))
    ]
