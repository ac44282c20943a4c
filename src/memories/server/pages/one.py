"""One memory with its past, and one conversation."""

import contextlib
from typing import TYPE_CHECKING, Any

from memories.answers import compare, shapes
from memories.core.times import to_iso
from memories.errors import NotFound
from memories.models import PENDING
from memories.server.pages.asked import Asked, NotThen, View
from memories.server.pages.plots import moment

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import History
    from memories.read.conversations import Conversation

_TURNS = 100


def memory(memories: "Memories", asked: Asked) -> View:
    """Show a memory: what it says, what it said, what it corrects and what corrects it, and where it came from."""
    past = _history(memories, asked)
    data = _shape(memories, past, asked.as_of)
    more = {
        "versions": _versions(past),
        "corrects": _other(memories, past.corrects, asked.as_of),
        "corrected_by": _other(memories, past.corrected_by, asked.as_of),
        "came_from": _came_from(data.get("source")),
        "is_current": past.versions[-1].ended_by is None,
        "etag": f'"{past.versions[-1].version}"',
        "tag_lines": "\n".join(f"{key}={value}" for key, value in sorted(data["tags"].items())),
        "today": _today(past, memories.history(past.id)) if asked.as_of else None,
    }
    return View("memory.html", data, more)


def _history(memories: "Memories", asked: Asked) -> "History":
    """Return the history of a memory as it is or was.

    Raises:
        NotThen: There was none at the time that is looked at, but there is one.
    """
    name = asked.path["id"]
    try:
        return memories.history(name, as_of=asked.as_of)
    except NotFound as exc:
        if asked.past is None:
            raise
        found = memories.history(name)
        since = _since(memories, found)
        links = [(asked.address("/memories/", found.id, as_of=None), "See it as it is now")]
        title, sentence = f"Not there yet on {asked.past.name}", "It had to wait for review, and was not accepted."
        if since is not None:
            links.insert(0, (asked.address("/memories/", found.id, as_of=since), "See it as it was first"))
            sentence = f"This memory is there since {moment(since)}."
        raise NotThen(exc, title, sentence, links) from exc


def _since(memories: "Memories", found: "History") -> str | None:
    """Return since when a memory is there; None if it never was: it waits, or was rejected."""
    first = next((each for each in found.versions if each.ended_by != PENDING), None)
    if first is None:
        return None
    since = to_iso(max(first.created_at, first.accepted_at or first.created_at))
    with contextlib.suppress(NotFound):
        memories.history(found.id, as_of=since)
        return since
    return None


def _today(then: "History", now: "History") -> dict[str, str]:
    """Return what became of a memory since a time: in a sentence, and what it says now if that is something else."""
    was, last = then.versions[-1], now.versions[-1]
    if now.pending:
        return {"sentence": "Today it waits for review."}
    if last.ended_by == "delete":
        return {"sentence": "Today it is deleted."}
    if now.superseded_by and now.superseded_by != then.superseded_by:
        return {"sentence": "Today another memory has replaced it."}
    if last.content != was.content:
        return {"sentence": "Today it says:", "content": last.content}
    return {"sentence": "Today it has other tags." if last.tags != was.tags else "It says the same today."}


def _shape(memories: "Memories", past: "History", as_of: str | None) -> dict[str, Any]:
    """Return a memory; of one that is deleted what its last version tells, which still can be read."""
    last = past.versions[-1]
    if last.ended_by != "delete":
        return shapes.memory(memories.get(past.id, as_of=as_of))
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


def _other(memories: "Memories", memory_id: str | None, as_of: str | None) -> dict[str, Any] | None:
    """Return another memory, or only its id if it is deleted or gone."""
    if memory_id is None:
        return None
    try:
        return shapes.memory(memories.get(memory_id, as_of=as_of))
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
    about = _about(memories, asked)
    start = asked.number("start", 0, 10**9)
    limit = asked.number("limit", _TURNS) or _TURNS
    said = memories.turns(name, start=start, limit=limit, as_of=asked.as_of)
    more = {
        "about": shapes.conversation(about),
        "earlier": asked.link(start=str(max(start - limit, 0))) if start else None,
        "later": asked.link(start=str(said[-1].index + 1)) if len(said) == limit else None,
    }
    return View("conversation.html", shapes.turns(said), more)


def _about(memories: "Memories", asked: Asked) -> "Conversation":
    """Return a conversation as it is or was.

    Raises:
        NotThen: Nothing had been said at the time that is looked at.
    """
    name = asked.path["id"]
    try:
        return memories.conversation(name, as_of=asked.as_of)
    except NotFound as exc:
        if asked.past is None:
            raise
        found = memories.conversation(name)
        since = moment(to_iso(found.first_at))
        now = (asked.address("/conversations/", name, as_of=None), "See it as it is now")
        sentence = f"The first turn of this conversation was said on {since}."
        raise NotThen(exc, f"Not begun yet on {asked.past.name}", sentence, [now]) from exc


def conversations(memories: "Memories", asked: Asked) -> View:
    """List conversations, those with the newest turn first."""
    given = {name: asked.text(name) for name in ("title", "user", "since", "until", "as_of") if asked.text(name)}
    limit = asked.number("limit", 50) or 50
    page = memories.list_conversations(limit=limit, cursor=asked.text("cursor") or None, **given)  # type: ignore[arg-type]
    data = shapes.conversations(page)
    return View("conversations.html", data, {"next": page.next_cursor and asked.link(cursor=page.next_cursor)})
