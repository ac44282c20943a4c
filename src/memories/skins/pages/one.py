"""One memory with its past, and one conversation."""

from typing import TYPE_CHECKING, Any

from memories.errors import NotFound
from memories.skins import compare, shapes
from memories.skins.pages.asked import Asked, View

if TYPE_CHECKING:
    from memories.models import History
    from memories.service import Memories

_TURNS = 100


def memory(memories: "Memories", asked: Asked) -> View:
    """Show a memory: what it says, what it said, what it corrects and what corrects it, and where it came from."""
    past = memories.history(asked.path["id"])
    data = _shape(memories, past)
    more = {
        "versions": _versions(past),
        "corrects": _other(memories, past.corrects),
        "corrected_by": _other(memories, past.corrected_by),
        "came_from": _came_from(data.get("source")),
        "etag": f'"{past.versions[-1].version}"',
        "tag_lines": "\n".join(f"{key}={value}" for key, value in sorted(data["tags"].items())),
    }
    return View("memory.html", data, more)


def _shape(memories: "Memories", past: "History") -> dict[str, Any]:
    """Return a memory; of one that is not current what its last version tells, which still can be read."""
    last = past.versions[-1]
    if last.ended_by is None:
        return shapes.memory(memories.get(past.id))
    known = shapes.history(past)["versions"][-1]
    return {
        **{name: known[name] for name in ("content", "tags", "version", "created_at")},
        **shapes.present({name: known.get(name) for name in ("origin", "suspicious")}),
        **shapes.present({"superseded_by": past.superseded_by, "pending": past.pending or None}),
        "id": past.id,
        "namespace": past.namespace,
        "deleted": last.ended_by == "delete",
    }


def _versions(past: "History") -> list[dict[str, Any]]:
    """Return every version, newest first, each with what it changed word by word."""
    shape = shapes.history(past)["versions"]
    changes = compare.steps([version.content for version in past.versions])
    rows = [version | {"parts": parts} for version, parts in zip(shape, changes, strict=True)]
    return rows[::-1]


def _other(memories: "Memories", memory_id: str | None) -> dict[str, Any] | None:
    """Return another memory, or only its id if it is deleted or gone."""
    if memory_id is None:
        return None
    try:
        return shapes.memory(memories.get(memory_id))
    except NotFound:
        return {"id": memory_id}


def _came_from(source: str | None) -> dict[str, str] | None:
    """Return the conversation that a memory was made from, and the turn, if its writer said so."""
    if source is None:
        return None
    name, mark, index = source.rpartition("#")
    return {"id": name, "turn": index} if mark and index.isdigit() else {"id": source, "turn": ""}


def conversation(memories: "Memories", asked: Asked) -> View:
    """Show the turns of a conversation, from one of them on."""
    name = asked.path["id"]
    about = memories.conversation(name)
    start = asked.number("start", 0, 10**9)
    limit = asked.number("limit", _TURNS) or _TURNS
    said = memories.turns(name, start=start, limit=limit)
    more = {
        "about": shapes.conversation(about),
        "earlier": asked.link(start=str(max(start - limit, 0))) if start else None,
        "later": asked.link(start=str(said[-1].index + 1)) if len(said) == limit else None,
    }
    return View("conversation.html", shapes.turns(said), more)


def conversations(memories: "Memories", asked: Asked) -> View:
    """List conversations, those with the newest turn first."""
    given = {name: asked.text(name) for name in ("title", "user", "since", "until") if asked.text(name)}
    limit = asked.number("limit", 50) or 50
    page = memories.list_conversations(limit=limit, cursor=asked.text("cursor") or None, **given)  # type: ignore[arg-type]
    data = shapes.conversations(page)
    return View("conversations.html", data, {"next": page.next_cursor and asked.link(cursor=page.next_cursor)})
