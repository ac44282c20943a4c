"""ChatGPT's export: `conversations.json`, in its ZIP archive or unpacked."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memories.models import Draft
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

FILES = ("conversations.json", "conversations-[0-9]*.json")
_ROLES = ("user", "assistant", "tool")
_HIDDEN_CHANNELS = ("analysis", "commentary")
_HIDDEN_TYPES = (
    "thoughts", "reasoning_recap", "model_editable_context", "system_error",
    "tether_browsing_display",
)  # fmt: skip
_INSTRUCTIONS = ("user_profile", "user_instructions")
_MARKS = re.compile("\ue200[^\ue201]*\ue201|[\ue200-\ue202]|【\\d+†[^】]*】")


def recognize(sample: Sample) -> bool:
    """Return whether a path is an export: a folder, an archive, or its file of conversations."""
    if sample.has("mapping", "current_node") or sample.has("mapping", "title"):
        return True
    is_export = "chat.html" in sample.names or "message_feedback.json" in sample.names
    return is_export and any(name.startswith("conversations") for name in sample.names)


def read(reader: Reader) -> Iterator[Item]:
    """Yield the messages of each conversation, and the user's custom instructions."""
    for name, stream in reader.members(*FILES):
        for conversation in reader.objects(stream, name):
            if isinstance(conversation, dict) and isinstance(conversation.get("mapping"), dict):
                yield from _read_conversation(reader, conversation)
            else:
                reader.skip("entries that are not conversations")


def _read_conversation(reader: Reader, conversation: Mapping[str, Any]) -> Iterator[Item]:
    if conversation.get("is_do_not_remember"):
        reader.skip("conversations that are not to be remembered")
        return
    title = one_line(conversation.get("title"))
    their_id = one_line(conversation.get("conversation_id")) or one_line(conversation.get("id"))
    their_id = their_id or name_of(title, conversation.get("create_time"))
    nodes: Mapping[str, Any] = conversation["mapping"]
    branch = _active_branch(nodes, conversation.get("current_node"))
    path = [*branch]
    if "branches" in reader.include:
        path += [node_id for node_id in nodes if node_id not in set(branch)]
    else:
        others = nodes.keys() - set(branch)
        dropped = sum(bool(_message(nodes, node_id).get("content")) for node_id in others)
        reader.skip("messages of other branches", dropped)
    for node_id in path:
        message = _message(nodes, node_id)
        yield from _read_message(reader, f"chatgpt:{their_id}", title, node_id, message)


def _message(nodes: Mapping[str, Any], node_id: str) -> Mapping[str, Any]:
    return mapping(mapping(nodes.get(node_id)).get("message"))


def _active_branch(nodes: Mapping[str, Any], current: object) -> Sequence[str]:
    """Return the ids of the nodes from the first one to the current one, or to the newest leaf."""
    if not isinstance(current, str) or current not in nodes:
        leaves = [node_id for node_id, node in nodes.items() if not mapping(node).get("children")]

        def written_at(node_id: str) -> float:
            at = _message(nodes, node_id).get("create_time")
            return at if isinstance(at, int | float) else 0.0

        current = max(leaves, key=written_at, default=None)
    branch: dict[str, None] = {}
    while isinstance(current, str) and current in nodes and current not in branch:
        branch[current] = None
        current = mapping(nodes[current]).get("parent")
    return list(reversed(branch))


def _read_message(
    reader: Reader, conversation: str, title: str, node_id: str, message: Mapping[str, Any]
) -> Iterator[Item]:
    author, metadata = mapping(message.get("author")), mapping(message.get("metadata"))
    content = mapping(message.get("content"))
    if metadata.get("is_user_system_message") or content.get("content_type") == (
        "user_editable_context"
    ):
        at = moment(message.get("create_time"))
        for name in _INSTRUCTIONS:  # which the user wrote for every conversation
            if text := clean(content.get(name)):
                yield Draft(text, tags={"type": "preference"}, key=name, created_at=at)
        return
    if message.get("recipient") == "bio" and (text := _text(reader, content)):
        # The call by which the model saves a memory about the user.
        yield Draft(text, created_at=moment(message.get("create_time")))
        return
    if author.get("role") not in _ROLES or _is_hidden(message, metadata, content):
        return
    text = _text(reader, content)
    if not text:
        return
    tags = {}
    if isinstance(metadata.get("model_slug"), str):
        tags["model"] = metadata["model_slug"]
    turn = TurnDraft(
        text,
        author["role"],
        speaker=one_line(author.get("name")) or None,
        created_at=moment(message.get("create_time")),
        message_id=f"chatgpt:{one_line(message.get('id')) or one_line(node_id)}",
        tags=tags,
    )
    yield Message(conversation, turn, title)


def _is_hidden(
    message: Mapping[str, Any], metadata: Mapping[str, Any], content: Mapping[str, Any]
) -> bool:
    """Return whether the user never saw a message, such as thoughts and calls of tools."""
    if metadata.get("is_visually_hidden_from_conversation") or message.get("weight") == 0:
        return True
    if message.get("recipient") not in (None, "all"):
        return True
    if message.get("channel") in _HIDDEN_CHANNELS:
        return True
    return content.get("content_type") in _HIDDEN_TYPES


def _text(reader: Reader, content: Mapping[str, Any]) -> str:
    parts = content.get("parts")
    if not isinstance(parts, list):
        return clean(_MARKS.sub("", clean(content.get("text"))))
    texts = [clean(part) for part in parts if isinstance(part, str)]
    for part in dicts(parts):
        if part.get("content_type") == "audio_transcription":
            texts.append(clean(part.get("text")))
        elif "asset_pointer" in str(part.get("content_type")):
            reader.skip("images and sounds")
    return clean(_MARKS.sub("", "\n\n".join(filter(None, texts))))
