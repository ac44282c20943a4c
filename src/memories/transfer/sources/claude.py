"""Claude's export: conversations, projects and memories, in ZIP archives or unpacked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memories.models import Draft
from memories.read.turns import TurnDraft
from memories.transfer.sources import markdown
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

_CONVERSATIONS = ("conversations.json", "conversations-[0-9]*.json", "design_chats/*.json")
_PROJECTS = ("projects.json", "projects/*.json")
_MEMORIES = ("memories.json", "memories/*.json")
FILES = (*_CONVERSATIONS, *_PROJECTS, *_MEMORIES)
_ROLES = {"human": "user", "assistant": "assistant"}
_PLACEHOLDER = "This block is not supported on your current device yet."


def recognize(sample: Sample) -> bool:
    """Return whether a path is an export, or one of its files."""
    if sample.has("chat_messages") or sample.has("conversations_memory"):
        return True
    if sample.has("prompt_template", "uuid"):
        return True
    archives = ("conversations-", "memories-", "projects-")
    if any(name.startswith(archives) and name.endswith(".zip") for name in sample.names):
        return True
    return "conversations.json" in sample.names and "users.json" in sample.names


def read(reader: Reader) -> Iterator[Item]:
    """Yield the messages of each conversation, the instructions of projects, and the memories."""
    projects: dict[str, str] = {}
    for project in _objects(reader, _PROJECTS):
        name = one_line(project.get("name"), 64)
        projects[str(project.get("uuid"))] = name
        yield from _read_project(reader, project, name)
    for conversation in _objects(reader, _CONVERSATIONS):
        yield from _read_conversation(reader, conversation, projects)
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
    """Yield the instructions of a project, and its documents if the user asked for them."""
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


def _read_conversation(
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
        branch = _active_branch(messages)
        reader.skip("messages of other branches", len(messages) - len(branch))
    for message in branch:
        yield from _read_attachments(reader, message)
        role, text = _ROLES.get(str(message.get("sender"))), _text(message)
        if role is None or not text:
            continue
        written_at = message.get("created_at")
        turn = TurnDraft(
            text,
            role,
            created_at=moment(written_at),
            message_id=f"claude:{message.get('uuid') or name_of(role, written_at, text)}",
        )
        title = one_line(conversation.get("name")) or one_line(text, 100)
        yield Message(f"claude:{their_id}", turn, title, projects.get(str(project)) or None)


def _active_branch(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the messages that lead to the newest one; all of them if they name no parents."""
    by_id = {str(message.get("uuid")): message for message in messages}
    if not any(message.get("parent_message_uuid") for message in messages):
        return messages
    parents = {str(message.get("parent_message_uuid")) for message in messages}
    leaves = [message for name, message in by_id.items() if name not in parents] or messages
    current = max(leaves, key=lambda message: str(message.get("created_at")))
    branch: dict[str, Mapping[str, Any]] = {}
    name = str(current.get("uuid"))
    while name in by_id and name not in branch:
        branch[name] = by_id[name]
        name = str(by_id[name].get("parent_message_uuid"))
    return list(reversed(branch.values()))


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message; its field `text` has placeholders for blocks of other kinds."""
    blocks = dicts(message.get("content"))
    texts = [clean(block.get("text")) for block in blocks if block.get("type") == "text"]
    text = "\n\n".join(filter(None, texts))
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
    """Yield the statements of a memory, which is Markdown."""
    for passage in markdown.parse(clean(text)).passages:
        yield Draft(markdown.with_headings(passage), tags=dict(tags))
