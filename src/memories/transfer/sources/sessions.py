"""Sessions of coding agents that write JSON lines: Claude Code, Codex and Gemini CLI."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.core.prompts import SYSTEM_SOURCES, clean_prompt
from memories.read.turns import TurnDraft
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

# --- Claude Code ---

_MAX_META_BYTES = 65_536
# Flags of lines that neither the user nor the model wrote.
_CLAUDE_HIDDEN = ("isMeta", "isCompactSummary", "isApiErrorMessage", "isVisibleInTranscriptOnly")
_CLAUDE_PERSON = (None, "human", "sdk", "unknown")  # origins of prompts that a person sent
_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}


def recognize_claude_code(sample: Sample) -> bool:
    """Return whether a path is a session, or a folder that contains sessions."""
    return any({"sessionId", "uuid", "type"} <= line.keys() for line in sample.lines)


def read_claude_code(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield a session's prompts and answers, in the order of the file.

    A forked or resumed session repeats the lines of the earlier session, with the same ids. A
    conversation is named after the id of its first line, so all these sessions become one.
    """
    conversation, title, speaker = "", "", None
    if file.parent.name == "subagents":
        if "subagents" not in reader.include:
            reader.skip("transcripts of subagents")
            return
        start = reader.beginning(file.with_suffix(".meta.json"), _MAX_META_BYTES)
        speaker = one_line(parse_object(start).get("agentType"), 64) or None
    for line in map(_prompt_if_queued, reader.json_lines(file)):
        kind, line_id = str(line.get("type")), line.get("uuid")
        if kind in _TITLES:
            title = one_line(line.get(_TITLES[kind])) or title
        if kind not in ("user", "assistant") or not isinstance(line_id, str):
            continue
        conversation = conversation or f"claude-code:{line_id}"
        text = _claude_text(line, reader)
        if not text:
            continue
        message = line["message"]
        tags = {"model": one_line(message.get("model")), "session": one_line(line.get("sessionId"))}
        turn = TurnDraft(
            text,
            kind,
            speaker=speaker,
            created_at=moment(line.get("timestamp")),
            message_id=f"cc:{line_id}",
            tags=tags,
        )
        title = title or one_line(text, 100)
        session = f"claude-code:{tags['session']}"
        yield SourceMessage(conversation, turn, title, reader.project(line.get("cwd")), session)


def _prompt_if_queued(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a queued prompt as an ordinary prompt line; return other lines unchanged.

    A prompt sent while the model is working is stored as an attachment.
    """
    queued = mapping(line.get("attachment"))
    if queued.get("type") != "queued_command" or queued.get("commandMode") != "prompt":
        return line
    message = {"content": queued.get("prompt")}
    return {**line, **queued, "type": "user", "message": message}


def _claude_text(line: Mapping[str, Any], reader: Reader) -> str:
    """Return the text that a person or the model wrote in a line; empty if there is none."""
    message = line.get("message")
    if not isinstance(message, dict) or any(line.get(name) for name in _CLAUDE_HIDDEN):
        return ""
    is_prompt = line["type"] == "user"
    if message.get("model") == "<synthetic>" or (is_prompt and not is_by_person(line)):
        return ""
    if line.get("isSidechain") and "subagents" not in reader.include:
        reader.skip("messages of subagents")
        return ""
    content = message.get("content")
    if isinstance(content, str):
        texts = [clean(content)]
    else:
        blocks = dicts(content)
        if any(block.get("type") == "tool_result" for block in blocks):
            reader.skip("results of tools")
            return ""
        if any(block.get("type") == "image" for block in blocks):
            reader.skip("images")
        texts = [clean(block.get("text")) for block in blocks if block.get("type") == "text"]
    if is_prompt:
        texts = list(map(clean_prompt, texts))
    return "\n".join(filter(None, texts))  # the same text as hooks store


def is_by_person(line: Mapping[str, Any]) -> bool:
    """Return whether a person, not a schedule or a program, sent the prompt in a line."""
    origins = (mapping(line.get("origin")).get("kind"), line.get("turnOrigin"))
    is_by_system = line.get("promptSource") in SYSTEM_SOURCES
    return not is_by_system and all(origin in _CLAUDE_PERSON for origin in origins)


# --- Codex ---

_PASSTHROUGH = "internal_chat_message_metadata_passthrough"


def recognize_codex(sample: Sample) -> bool:
    """Return whether a path is a session, or a folder that contains sessions."""
    if sample.has("timestamp", "type", "payload"):
        return True
    return sample.has("id", "timestamp", "instructions")  # the format before September 2025


def read_codex(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield a session's prompts and answers.

    The file contains each message twice: as a response item, which is read, and as an event.
    """
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
        is_summary = mapping(line.get("metadata")).get("compaction_output")
        if not is_item or is_summary or payload.get("type") != "message":
            if payload.get("type") in ("function_call_output", "custom_tool_call_output"):
                reader.skip("results of tools")
            continue
        if text := _codex_text(payload, reader):
            title = title or one_line(text, 100)
            message_id = f"codex:{one_line(payload.get('id')) or name_of(payload['role'], text)}"
            while message_id in ids:  # some model servers give every answer the same id
                message_id = f"{message_id}:{line.get('timestamp', '')}"
            ids.add(message_id)
            at = moment(line.get("timestamp")) or started_at
            turn = TurnDraft(text, payload["role"], created_at=at, message_id=message_id)
            started_at = None  # only the first message gets this time
            yield SourceMessage(f"codex:{session}", turn, title, project)


def _codex_text(payload: Mapping[str, Any], reader: Reader) -> str:
    """Return the text that a person or the model wrote in a message; empty if there is none."""
    if payload.get("role") not in ("user", "assistant"):
        return ""
    blocks, is_prompt = dicts(payload.get("content")), payload["role"] == "user"
    kinds = mapping(payload.get(_PASSTHROUGH)).get("content_item_kinds")
    if is_prompt and isinstance(kinds, list) and len(kinds) == len(blocks):
        # The file says which parts of a prompt the user wrote.
        pairs = zip(blocks, kinds, strict=True)
        blocks = [block for block, kind in pairs if str(kind).startswith(("user.", "unknown"))]
    reader.skip("images", sum(block.get("type") == "input_image" for block in blocks))
    texts = blocks_text(blocks)
    if is_prompt:
        texts = list(map(clean_prompt, texts))
    return join_texts(texts)


# --- Gemini CLI ---

_GEMINI_ROLES = {"user": "user", "gemini": "assistant"}
# The results of tools, which may be huge, are left out.
_GEMINI_FIELDS = ("id", "timestamp", "type", "content", "model")
_MAX_ROOT_BYTES = 4_096


def recognize_gemini(sample: Sample) -> bool:
    """Return whether a path is a chat, or a folder that contains chats."""
    return sample.has("sessionId", "projectHash")


def read_gemini(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield a chat's prompts and answers.

    When a chat is resumed, it continues in its own file and also in a new file, which has the same
    chat id. Messages keep their ids.
    """
    session, messages = _read_gemini_chat(reader, file)
    root = reader.beginning(file.parent.parent / ".project_root", _MAX_ROOT_BYTES)
    project = reader.project(root.decode("utf-8", "replace").strip())
    title = ""
    for message in messages:
        role, at = _GEMINI_ROLES[message["type"]], message.get("timestamp")
        texts = blocks_text(message.get("content"))
        if role == "user":
            texts = list(map(clean_prompt, texts))
        text = join_texts(texts)
        if not text:
            continue
        title = title or one_line(text, 100)
        message_id = f"gemini:{one_line(message.get('id')) or name_of(role, at, text)}"
        tags = {"model": one_line(message.get("model"))}
        turn = TurnDraft(text, role, created_at=moment(at), message_id=message_id, tags=tags)
        yield SourceMessage(f"gemini:{session}", turn, title, project)


def _read_gemini_chat(reader: Reader, file: Path) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the id of a chat, and its prompts and answers with all patches applied.

    A message may appear again with its tool calls, and a patch replaces all messages.
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
            if str(message.get("type")) in _GEMINI_ROLES:
                key = message.get("id") or len(messages)
                messages[str(key)] = {name: message.get(name) for name in _GEMINI_FIELDS}
                if message.get("toolCalls"):
                    reader.skip("results of tools", len(dicts(message["toolCalls"])))
    return session, list(messages.values())


SOURCES = {
    "claude-code": Source.of_files(
        ("*.jsonl",),
        recognize_claude_code,
        read_claude_code,
        below("CLAUDE_CONFIG_DIR", ".claude", "projects"),
    ),
    "codex": Source.of_files(
        ("rollout-*.jsonl", "rollout-*.jsonl.zst"),
        recognize_codex,
        read_codex,
        below("CODEX_HOME", ".codex", "sessions", "archived_sessions"),
    ),
    "gemini": Source.of_files(
        ("session-*.jsonl", "session-*.json"),
        recognize_gemini,
        read_gemini,
        below("GEMINI_CLI_HOME", "", ".gemini/tmp"),
    ),
}
