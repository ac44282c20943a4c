"""Chats exported from the websites of ChatGPT and Claude, as ZIP archives or unpacked."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memories.models import Draft
from memories.read.turns import TurnDraft
from memories.transfer.sources import markdown
from memories.transfer.sources.items import (
    Item,
    SourceMessage,
    clean,
    dicts,
    join_texts,
    mapping,
    moment,
    name_of,
    one_line,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample, Source


def _find_path(leaf: object, parents: Mapping[str, object]) -> list[str]:
    """Return the ids of the messages from the first one to a leaf."""
    path: dict[str, None] = {}
    while isinstance(leaf, str) and leaf in parents and leaf not in path:
        path[leaf] = None
        leaf = parents[leaf]
    return list(reversed(path))


# --- ChatGPT ---

_CHATGPT_FILES = ("conversations.json", "conversations-[0-9]*.json")
_CHATGPT_ROLES = ("user", "assistant", "tool")
_HIDDEN_CHANNELS = ("analysis", "commentary")
_HIDDEN_TYPES = (
    "thoughts", "reasoning_recap", "model_editable_context", "system_error",
    "tether_browsing_display",
)  # fmt: skip
_INSTRUCTIONS = ("user_profile", "user_instructions")
_MARKS = re.compile("\ue200[^\ue201]*\ue201|[\ue200-\ue202]|【\\d+†[^】]*】")


def recognize_chatgpt(sample: Sample) -> bool:
    """Return whether a path is an export (a folder or an archive) or its conversations file."""
    if sample.has("mapping", "current_node") or sample.has("mapping", "title"):
        return True
    is_export = "chat.html" in sample.names or "message_feedback.json" in sample.names
    return is_export and any(name.startswith("conversations") for name in sample.names)


def read_chatgpt(reader: Reader) -> Iterator[Item]:
    """Yield each conversation's messages, and the user's custom instructions."""
    for name, stream in reader.members(*_CHATGPT_FILES):
        for conversation in reader.objects(stream, name):
            if isinstance(conversation, dict) and isinstance(conversation.get("mapping"), dict):
                yield from _read_chatgpt_conversation(reader, conversation)
            else:
                reader.skip("entries that are not conversations")


def _read_chatgpt_conversation(reader: Reader, conversation: Mapping[str, Any]) -> Iterator[Item]:
    if conversation.get("is_do_not_remember"):
        reader.skip("conversations marked as not to be remembered")
        return
    title = one_line(conversation.get("title"))
    their_id = one_line(conversation.get("conversation_id")) or one_line(conversation.get("id"))
    their_id = their_id or name_of(title, conversation.get("create_time"))
    nodes: Mapping[str, Any] = conversation["mapping"]
    branch = _chatgpt_branch(nodes, conversation.get("current_node"))
    path = [*branch]
    if "branches" in reader.include:
        path += [node_id for node_id in nodes if node_id not in set(branch)]
    else:
        others = nodes.keys() - set(branch)
        dropped = sum(bool(_message_of(nodes, node_id).get("content")) for node_id in others)
        reader.skip("messages of other branches", dropped)
    for node_id in path:
        message = _message_of(nodes, node_id)
        yield from _read_message(reader, f"chatgpt:{their_id}", title, node_id, message)


def _message_of(nodes: Mapping[str, Any], node_id: str) -> Mapping[str, Any]:
    return mapping(mapping(nodes.get(node_id)).get("message"))


def _chatgpt_branch(nodes: Mapping[str, Any], current: object) -> Sequence[str]:
    """Return the ids of the nodes from the first to the current one, or to the newest leaf."""
    if not isinstance(current, str) or current not in nodes:
        leaves = [node_id for node_id, node in nodes.items() if not mapping(node).get("children")]

        def written_at(node_id: str) -> float:
            at = _message_of(nodes, node_id).get("create_time")
            return at if isinstance(at, int | float) else 0.0

        current = max(leaves, key=written_at, default=None)
    parents = {node_id: mapping(node).get("parent") for node_id, node in nodes.items()}
    return _find_path(current, parents)


def _read_message(
    reader: Reader, conversation: str, title: str, node_id: str, message: Mapping[str, Any]
) -> Iterator[Item]:
    author, metadata = mapping(message.get("author")), mapping(message.get("metadata"))
    content, at = mapping(message.get("content")), moment(message.get("create_time"))
    kind = content.get("content_type")
    if metadata.get("is_user_system_message") or kind == "user_editable_context":
        for name in _INSTRUCTIONS:  # the user's custom instructions
            if text := clean(content.get(name)):
                yield Draft(text, tags={"type": "preference"}, key=name, created_at=at)
        return
    if message.get("recipient") == "bio" and (text := _chatgpt_text(reader, content)):
        # The model sends a message to `bio` to save a memory about the user.
        yield Draft(text, created_at=at)
        return
    if author.get("role") not in _CHATGPT_ROLES or _is_hidden(message, metadata, content):
        return
    text = _chatgpt_text(reader, content)
    if not text:
        return
    turn = TurnDraft(
        text,
        author["role"],
        speaker=one_line(author.get("name")) or None,
        created_at=at,
        message_id=f"chatgpt:{one_line(message.get('id')) or one_line(node_id)}",
        tags={"model": one_line(metadata.get("model_slug"))},
    )
    yield SourceMessage(conversation, turn, title)


def _is_hidden(
    message: Mapping[str, Any], metadata: Mapping[str, Any], content: Mapping[str, Any]
) -> bool:
    """Return whether a message was never shown to the user, such as a thought or a tool call."""
    if metadata.get("is_visually_hidden_from_conversation") or message.get("weight") == 0:
        return True
    if message.get("recipient") not in (None, "all"):
        return True
    if mapping(message.get("author")).get("name") == "bio":  # confirms that a memory was saved
        return True
    if message.get("channel") in _HIDDEN_CHANNELS:
        return True
    return content.get("content_type") in _HIDDEN_TYPES


def _chatgpt_text(reader: Reader, content: Mapping[str, Any]) -> str:
    parts = content.get("parts")
    if not isinstance(parts, list):
        return clean(_MARKS.sub("", clean(content.get("text"))))
    texts = [clean(part) for part in parts if isinstance(part, str)]
    for part in dicts(parts):
        if part.get("content_type") == "audio_transcription":
            texts.append(clean(part.get("text")))
        elif "asset_pointer" in str(part.get("content_type")):
            reader.skip("images and sounds")
    return clean(_MARKS.sub("", join_texts(texts)))


# --- Claude ---

_CONVERSATIONS = ("conversations.json", "conversations-[0-9]*.json", "design_chats/*.json")
_PROJECTS = ("projects.json", "projects/*.json")
_MEMORIES = ("memories.json", "memories/*.json")
_CLAUDE_ROLES = {"human": "user", "assistant": "assistant"}
_PLACEHOLDER = "This block is not supported on your current device yet."


def recognize_claude(sample: Sample) -> bool:
    """Return whether a path is an export, or one of its files."""
    if sample.has("chat_messages") or sample.has("conversations_memory"):
        return True
    if sample.has("prompt_template", "uuid"):
        return True
    archives = ("conversations-", "memories-", "projects-")
    if any(name.startswith(archives) and name.endswith(".zip") for name in sample.names):
        return True
    return "conversations.json" in sample.names and "users.json" in sample.names


def read_claude(reader: Reader) -> Iterator[Item]:
    """Yield each conversation's messages, the instructions of projects, and the memories."""
    projects: dict[str, str] = {}
    for project in _objects(reader, _PROJECTS):
        name = one_line(project.get("name"), 64)
        projects[str(project.get("uuid"))] = name
        yield from _read_project(reader, project, name)
    for conversation in _objects(reader, _CONVERSATIONS):
        yield from _read_claude_conversation(reader, conversation, projects)
    for memories in _objects(reader, _MEMORIES):
        yield from _split(memories.get("conversations_memory"), {})
        for name, text in mapping(memories.get("project_memories")).items():
            yield from _split(text, {"project": projects.get(name) or name})


def _objects(reader: Reader, patterns: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    for name, stream in reader.members(*patterns):
        for value in reader.objects(stream, name):
            if isinstance(value, dict):
                yield value
            else:
                reader.skip("entries that are not objects")


def _read_project(reader: Reader, project: Mapping[str, Any], name: str) -> Iterator[Item]:
    """Yield a project's instructions, and its documents if the user asked for them."""
    tags = {"project": name} if name else {}
    at = moment(project.get("updated_at"), project.get("created_at"))
    if text := clean(project.get("prompt_template")):
        key = f"project/{project.get('uuid')}/instructions"
        yield Draft(text, tags={**tags, "type": "preference"}, key=key, created_at=at)
    for document in dicts(project.get("docs")):
        if "attachments" not in reader.include:
            reader.skip("documents of projects")
        elif text := clean(document.get("content")):
            name = one_line(document.get("filename"), 200)
            written_at = moment(document.get("created_at"))
            yield Draft(f"{name}\n\n{text}", tags=tags, created_at=written_at)


def _read_claude_conversation(
    reader: Reader, conversation: Mapping[str, Any], projects: Mapping[str, str]
) -> Iterator[Item]:
    their_id = one_line(conversation.get("uuid"))
    messages = dicts(conversation.get("chat_messages") or conversation.get("messages"))
    if not their_id or not messages:
        return
    project = conversation.get("project")
    if isinstance(project, dict):
        project = project.get("uuid")
    project = conversation.get("project_uuid") or project
    branch: Sequence[Mapping[str, Any]] = messages
    if "branches" not in reader.include:
        branch = _claude_branch(messages)
        reader.skip("messages of other branches", len(messages) - len(branch))
    for message in branch:
        yield from _read_attachments(reader, message)
        role, text = _CLAUDE_ROLES.get(str(message.get("sender"))), _claude_text(message)
        if role is None or not text:
            continue
        written_at = message.get("created_at")
        message_id = f"claude:{message.get('uuid') or name_of(role, written_at, text)}"
        turn = TurnDraft(text, role, created_at=moment(written_at), message_id=message_id)
        title = one_line(conversation.get("name")) or one_line(text, 100)
        yield SourceMessage(f"claude:{their_id}", turn, title, projects.get(str(project)) or None)


def _claude_branch(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the messages that lead to the newest one; all messages if they name no parents."""
    by_id = {str(message.get("uuid")): message for message in messages}
    parents = {name: str(message.get("parent_message_uuid")) for name, message in by_id.items()}
    if not any(message.get("parent_message_uuid") for message in messages):
        return messages
    leaves = [message for name, message in by_id.items() if name not in parents.values()]
    current = max(leaves or messages, key=lambda message: str(message.get("created_at")))
    return [by_id[name] for name in _find_path(str(current.get("uuid")), parents)]


def _claude_text(message: Mapping[str, Any]) -> str:
    """Return a message's text.

    The field `text` contains placeholders, so it is read only if no block contains text.
    """
    blocks = dicts(message.get("content"))
    texts = [clean(block.get("text")) for block in blocks if block.get("type") == "text"]
    text = join_texts(texts)
    if not text:
        text = clean(clean(message.get("text")).replace(_PLACEHOLDER, "").replace("```\n\n```", ""))
    return text


def _read_attachments(reader: Reader, message: Mapping[str, Any]) -> Iterator[Item]:
    for attachment in dicts(message.get("attachments")):
        if "attachments" not in reader.include:
            reader.skip("attachments")
        elif text := clean(attachment.get("extracted_content")):
            name = one_line(attachment.get("file_name"), 200)
            at = moment(message.get("created_at"))
            yield Draft(f"{name}\n\n{text}", created_at=at)


def _split(text: object, tags: Mapping[str, str]) -> Iterator[Item]:
    """Yield the statements of a memory written in Markdown."""
    for passage in markdown.parse(clean(text)).passages:
        yield Draft(markdown.with_headings(passage), tags=dict(tags))


SOURCES = {
    "chatgpt": Source(_CHATGPT_FILES, recognize_chatgpt, read_chatgpt),
    "claude": Source((*_CONVERSATIONS, *_PROJECTS, *_MEMORIES), recognize_claude, read_claude),
}
