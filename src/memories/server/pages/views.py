"""The views: timeline, one memory, conversations, review, tags, namespaces and health."""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from memories.answers import compare, conversation_shapes, shapes, store_shapes
from memories.core.times import to_iso, to_moment
from memories.errors import InvalidInput, NotFound
from memories.models import PENDING
from memories.server.pages.request import (
    NotThen,
    PageRequest,
    View,
    count_by_label,
    end_of,
    moment,
    plot,
    spans,
)
from memories.server.pages.results import show_results

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import History
    from memories.read.conversations import Conversation

_PAGE = 30


def home(memories: "Memories", request: PageRequest) -> View:
    """Show search results or, without a query, memories and conversations by day."""
    view = show_results(memories, request) if request.text("q") else _timeline(memories, request)
    filters = {"narrowed": list(_narrowing(request))}
    day = _shown_day(memories, request, view.more.get("written"))
    return view._replace(more={**view.more, **filters, **day})


def _narrowing(request: PageRequest) -> Iterator[tuple[str, str]]:
    """Yield each active filter with the address that removes it from this page."""
    for key, value in request.tags().items():
        yield f"{key}={value}", request.link_tag(key, value, is_added=False)
    for name in ("project", "kind", "trust", "written_by", "since", "until", "where"):
        if request.text(name):
            without: dict[str, str | None] = {name: None, "cursor": None, "before": None}
            yield f"{name.replace('_', ' ')} {request.text(name)}", request.link(**without)


def _timeline(memories: "Memories", request: PageRequest) -> View:
    """Show memories and conversations by day, newest first, as they are now or were on an earlier
    day.
    """
    limit = request.limit(_PAGE)
    page = memories.list(limit=limit, cursor=request.cursor, **request.filters())
    data = shapes.page(page)
    since = page.memories[-1].created_at if page.next_cursor else None
    entries = [
        ("memory", shape, memory.created_at)
        for shape, memory in zip(data["results"], page.memories, strict=True)
    ]
    more_link = next_link = None
    is_filtered = request.filters().keys() - {"since", "until", "as_of"}
    if not is_filtered and request.text("kind") != "memory":
        talks, more_link = _conversations(memories, request, since, limit)
        for talk in talks:
            shape = conversation_shapes.conversation(talk) | {"name": title_of(talk)}
            entries.append(("conversation", shape, talk.last_at))
    entries.sort(key=itemgetter(2), reverse=True)
    if page.next_cursor and since:
        next_link = request.link(cursor=page.next_cursor, before=to_iso(since))
    more = {"days": _by_day(entries), "rest": more_link, "next": next_link, "is_empty": not entries}
    return View("home.html", data, more)


def _conversations(
    memories: "Memories", request: PageRequest, since: datetime | None, limit: int
) -> "tuple[list[Conversation], str | None]":
    """Return the conversations from the same period as the memories shown, and the address of a
    longer list.
    """
    ends = request.text("before") or request.text("until")
    span = {}
    if begins := to_iso(since) if since else request.text("since"):
        span["since"] = begins
    if ends:
        span["until"] = ends
    page = memories.list_conversations(limit=limit, as_of=request.as_of, **span)  # type: ignore[arg-type]  # mypy allows `span` to hold any option
    last = to_moment(ends or None, datetime.now(UTC), end_of_day=True)
    talks = []
    for talk in page.conversations:
        is_too_old = since is not None and talk.last_at < since
        is_too_new = last is not None and talk.last_at >= last
        if not is_too_old and not is_too_new:
            talks.append(talk)
    more_link = request.address("/conversations", **span) if page.next_cursor else None
    return talks, more_link


def _by_day(
    entries: Sequence[tuple[str, dict[str, Any], datetime]],
) -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    days: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for kind, shape, at in entries:
        days.setdefault(f"{at:%Y-%m-%d}", []).append((kind, shape))
    return list(days.items())


def _shown_day(
    memories: "Memories", request: PageRequest, results: Sequence[str] | None
) -> dict[str, Any]:
    """Return the plot of days, and the label of the day shown (empty for the present).

    Args:
        memories: The memories.
        request: The request.
        results: The times at which a search's results were written; None without a search.
    """
    days = spans({day.isoformat(): count for day, count in memories.days().items()})
    times = {day: end_of(day) for day, _ in days}
    shown = f"{request.past.moment:%Y-%m-%d}" if request.past else None
    chosen = next((label for label, _ in days if shown is not None and label >= shown), "")

    def link(day: str) -> str:
        return request.link(as_of=times[day], cursor=None, before=None)

    days_plot = None
    title, bars, unit = "Memories and turns", days, "written"
    if results is not None:
        title, bars, unit = "Results", count_by_label(results, [day for day, _ in days]), "results"
    if len(days) > 1:
        days_plot = plot(title, bars, unit, link, chosen)
    return {"plot": days_plot, "chosen": chosen, "times": list(times.values())}


_TURNS = 100


def memory(memories: "Memories", request: PageRequest) -> View:
    """Show a memory: its text, its versions with their changes, its corrections and its source."""
    past = _history(memories, request)
    data = _shape(memories, past, request.as_of)
    changes = compare.compare_versions([version.content for version in past.versions])
    versions = [
        version | {"parts": parts}
        for version, parts in zip(shapes.history(past)["versions"], changes, strict=True)
    ]
    more = {
        "versions": versions[::-1],
        "corrects": _other(memories, past.corrects, request.as_of),
        "corrected_by": _other(memories, past.corrected_by, request.as_of),
        "came_from": _came_from(data.get("source")),
        "is_current": past.versions[-1].ended_by is None,
        "etag": f'"{past.versions[-1].version}"',
        "tag_lines": "\n".join(f"{key}={value}" for key, value in sorted(data["tags"].items())),
        "today": _today(past, memories.history(past.id)) if request.as_of else None,
    }
    return View("memory.html", data, more)


def _history(memories: "Memories", request: PageRequest) -> "History":
    """Return a memory's current or earlier history.

    Raises:
        NotThen: The memory did not exist at the time shown, but exists now.
    """
    name = request.path["id"]
    try:
        return memories.history(name, as_of=request.as_of)
    except NotFound as exc:
        if request.past is None:
            raise
        history = memories.history(name)
        since = _visible_since(memories, history)
        links = [(request.address("/memories/", history.id, as_of=None), "See it as it is now")]
        title = f"Not stored yet on {request.past.name}"
        sentence = "It was held for review, and was not accepted."
        if since is not None:
            first = request.address("/memories/", history.id, as_of=since)
            links.insert(0, (first, "See its first version"))
            sentence = f"This memory did not exist until {moment(since)}."
        raise NotThen(exc, title, sentence, links) from exc


def _visible_since(memories: "Memories", history: "History") -> str | None:
    """Return the time a memory became visible; None if it awaits review or was rejected."""
    first = next((version for version in history.versions if version.ended_by != PENDING), None)
    if first is None:
        return None
    since = to_iso(max(first.created_at, first.accepted_at or first.created_at))
    with contextlib.suppress(NotFound):
        memories.history(history.id, as_of=since)
        return since
    return None


def _today(then: "History", now: "History") -> dict[str, str]:
    """Describe how a memory has changed since the time that a page shows, with any new text."""
    was, last = then.versions[-1], now.versions[-1]
    if now.pending:
        return {"sentence": "Today it is waiting for review."}
    if last.ended_by == "delete":
        return {"sentence": "Today it is deleted."}
    if now.superseded_by and now.superseded_by != then.superseded_by:
        return {"sentence": "Today another memory has replaced it."}
    if last.content != was.content:
        return {"sentence": "Today it says:", "content": last.content}
    if last.tags != was.tags:
        return {"sentence": "Today it has different tags."}
    return {"sentence": "It says the same thing today."}


def _shape(memories: "Memories", past: "History", as_of: str | None) -> dict[str, Any]:
    """Return a memory; for a deleted one, the fields of its last version."""
    last = past.versions[-1]
    if last.ended_by != "delete":
        return shapes.memory(memories.get(past.id, as_of=as_of))
    version = shapes.history(past)["versions"][-1]
    names = ("content", "tags", "version", "created_at", "origin", "suspicious")
    fields = {name: version.get(name) for name in names}
    fields |= {"superseded_by": past.superseded_by, "pending": past.pending or None}
    identity = {"id": past.id, "namespace": past.namespace, "deleted": True}
    return shapes.without_none(fields) | identity


def _other(memories: "Memories", memory_id: str | None, as_of: str | None) -> dict[str, Any] | None:
    """Return a related memory, or only its id if it was deleted or erased."""
    if memory_id is None:
        return None
    try:
        return shapes.memory(memories.get(memory_id, as_of=as_of))
    except NotFound:
        return {"id": memory_id}


def _came_from(source: str | None) -> dict[str, str] | None:
    """Return the conversation and turn that a memory comes from, if its writer named them."""
    if source is None:
        return None
    name, mark, index = source.rpartition("#")
    return {"id": name, "turn": index} if mark and index.isdigit() else {"id": source, "turn": ""}


def conversation(memories: "Memories", request: PageRequest) -> View:
    """Show a conversation's turns, starting at one of them."""
    name = request.path["id"]
    about = _about(memories, request)
    start = request.number("start", 0, 10**9)
    limit = request.limit(_TURNS)
    turns = memories.turns(name, start=start, limit=limit, as_of=request.as_of)
    earlier = later = None
    if start:
        earlier = request.link(start=str(max(start - limit, 0)))
    if len(turns) == limit:
        later = request.link(start=str(turns[-1].index + 1))
    more = {
        "about": conversation_shapes.conversation(about) | {"name": title_of(about)},
        "earlier": earlier,
        "later": later,
    }
    return View("conversation.html", conversation_shapes.turns(turns), more)


def _about(memories: "Memories", request: PageRequest) -> "Conversation":
    """Return a conversation as it is now, or as it was at the time shown.

    Raises:
        NotThen: The conversation had not begun at the time shown.
    """
    name = request.path["id"]
    try:
        return memories.conversation(name, as_of=request.as_of)
    except NotFound as exc:
        if request.past is None:
            raise
        since = moment(to_iso(memories.conversation(name).first_at))
        now = (request.address("/conversations/", name, as_of=None), "See it as it is now")
        sentence = f"The first turn of this conversation is from {since}."
        raise NotThen(exc, f"Not begun yet on {request.past.name}", sentence, [now]) from exc


def conversations(memories: "Memories", request: PageRequest) -> View:
    """List conversations, the one with the newest turn first."""
    names = ("title", "user", "since", "until", "as_of")
    filters: dict[str, Any] = {name: request.text(name) for name in names if request.text(name)}
    limit = request.limit(50)
    page = memories.list_conversations(limit=limit, cursor=request.cursor, **filters)
    more = {
        "names": [title_of(talk) for talk in page.conversations],
        "next": page.next_cursor and request.link(cursor=page.next_cursor),
    }
    return View("conversations.html", conversation_shapes.conversations(page), more)


def title_of(conversation: "Conversation") -> str:
    """Return a conversation's name for readers: its title, else its opening, else its id."""
    return conversation.title or conversation.opening or conversation.id


_REVIEW_PAGE = 50


def review(memories: "Memories", request: PageRequest) -> View:
    """List memories that await review, newest first, each with the memories that resemble it."""
    if request.as_of:
        why = (
            "The store doesn't record when a memory stopped waiting, so only the present is shown."
        )
        return explain_present(request, "Review", why)
    page = memories.review.page(
        limit=request.limit(_REVIEW_PAGE),
        cursor=request.cursor,
    )
    more = {
        "next": page.next_cursor and request.link(cursor=page.next_cursor),
        "shown_at": to_iso(datetime.now(UTC)),
    }
    rivals = memories.review.compare(page.memories)
    return View("review.html", shapes.review_page(page, rivals), more)


def namespaces(memories: "Memories", request: PageRequest) -> View:
    """List the namespaces that the reader may see, with forms to import and export."""
    listed = memories.namespaces(as_of=request.as_of)
    visible = [namespace for namespace in listed if request.reads(namespace.name)]
    rows = [shapes.without_none(namespace._asdict()) for namespace in visible]
    return View("namespaces.html", {"namespaces": rows, "count": len(rows)})


_TAG_MEANINGS = {
    "agent": "the agent that a memory is about",
    "global": "true: it applies to every project",
    "personality": "the role that the agent played",
    "project": "what it is about",
    "recall": "off: agents get it only when they search",
    "type": "fact, preference, decision …",
}


def tags(memories: "Memories", request: PageRequest) -> View:
    """List tag keys, or one key's values, with the number of memories for each."""
    key = request.text("key") or None
    data = shapes.tags(key, memories.tags(key, as_of=request.as_of))
    return View("tags.html", data, {"key": key, "meanings": _TAG_MEANINGS})


_OPERATIONS = {
    "add_turns": "Turns stored",
    "context": "Contexts built",
    "conversation": "Conversations read",
    "conversations": "Lists of conversations",
    "create": "Memories stored",
    "delete": "Memories deleted",
    "get": "Memories read",
    "history": "Histories read",
    "hook.pre-compact": "Hook before compacting",
    "hook.session-end": "Hook at session end",
    "hook.session-start": "Hook at session start",
    "hook.stop": "Hook after an answer",
    "hook.user-prompt": "Hook for a prompt",
    "list": "Lists",
    "reinforce": "Memories reinforced",
    "review.accept": "Proposals accepted",
    "review.reject": "Proposals rejected",
    "search": "Searches",
    "tags": "Lists of tags",
    "turns": "Turns read",
    "update": "Memories changed",
}


def health(memories: "Memories", request: PageRequest) -> View:
    """Show the state of the store and statistics of its use."""
    if request.as_of:
        memory_count = turn_count = 0
        for namespace in memories.namespaces(as_of=request.as_of):
            if namespace.read:
                memory_count += namespace.memory_count
                turn_count += namespace.turn_count
        figures = [("memories", f"{memory_count:,}"), ("conversation turns", f"{turn_count:,}")]
        why = "Earlier states of the store and its earlier statistics are not recorded."
        return explain_present(request, "Health", why, figures)
    status = memories.status()
    stats = memories.stats(since=request.text("since") or None)
    figures = [
        ("memories", f"{status.memory_count:,}"),
        ("conversation turns", f"{status.turn_count:,}"),
        ("waiting for review", f"{status.pending_count:,}"),
        ("deleted", f"{status.deleted_count:,}"),
        ("on disk", size(status.size_bytes)),
        ("never read", f"{stats.never_used_count:,}"),
        ("tokens given to agents", f"{stats.tokens:,}"),
        ("projects", f"{len(memories.tags('project')):,}"),
    ]
    more = {
        "figures": figures,
        "plots": [
            plot("Memories by the day they were first written", spans(stats.per_day), "memories")
        ],
        "operations": stats.operations,
        "names": _OPERATIONS,
        "counts": [("By agent", stats.agents), ("By project", stats.projects)],
        "used": [("Most read", stats.most_used), ("Oldest never read", stats.never_used)],
    }
    shape = store_shapes.status(status)
    return View("health.html", shape if request.manages else shapes.without_place(shape), more)


def explain_present(
    request: PageRequest, title: str, why: str, figures: Sequence[tuple[str, str]] = ()
) -> View:
    """Return a page that says why a view shows only the present, even though a past day was chosen.

    Raises:
        InvalidInput: The request asks for JSON; the API accepts no time here either.
    """
    if request.text("format") == "json":
        raise InvalidInput("as_of can't be used here, because this page shows only the present")
    return View("now.html", {}, {"title": title, "why": why, "figures": figures})


def size(count: int | None) -> str:
    """Format a byte count in human-readable form."""
    if count is None:
        return "unknown"
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"
