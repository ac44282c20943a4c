"""The views: search and timeline, one memory, conversations, review, tags, namespaces and health."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.answers import compare, shapes
from memories.core.times import to_iso, to_moment
from memories.errors import InvalidInput, NotFound
from memories.languages.text import normal_form
from memories.models import PENDING
from memories.server.pages.request import NotThen, PageRequest, View, end_of, excerpt, moment, plot, spans

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import History
    from memories.read.conversations import Conversation
    from memories.search.filters import Scope
    from memories.search.results import Considered, Explanation

FACETS = ("type", "project", "agent", "kind", "trust")
_SCOPES: Mapping[str, "Scope"] = {"memory": "memories", "turn": "history"}
_PAGE = 30
_WORD = re.compile(r"\w+")
_REASONS = {  # a part of the score: what it means to a reader
    "similarity": "meaning",
    "words": "words",
    "date": "date in the question",
    "named": "a name in the question",
    "freshness": "freshness",
    "boost": "use",
    "confidence": "confidence",
}


class Facet(NamedTuple):
    """One value that a search can be narrowed to."""

    value: str
    number: int
    link: str
    chosen: bool


def home(memories: "Memories", request: PageRequest) -> View:
    """Show what answers the question, or without one everything by day, newest first."""
    view = _results(memories, request) if request.text("q") else _timeline(memories, request)
    return view._replace(more={**view.more, "narrowed": list(_narrowing(request)), **_shown_day(memories, request)})


def _narrowing(request: PageRequest) -> Iterator[tuple[str, str]]:
    """Yield each filter that is given, with the address of the same page without it."""
    for key, value in request.tags().items():
        yield f"{key}={value}", request.link_tag(key, value, wanted=False)
    for name in ("project", "kind", "trust", "written_by", "since", "until", "where"):
        if request.text(name):
            without: dict[str, str | None] = {name: None, "cursor": None, "before": None}
            yield f"{name.replace('_', ' ')} {request.text(name)}", request.link(**without)


def _results(memories: "Memories", request: PageRequest) -> View:
    scope: Scope = _SCOPES.get(request.text("kind"), "all")
    limit = request.number("limit", _PAGE) or _PAGE
    found = memories.explain(request.text("q"), scope=scope, limit=limit, **request.filters())
    data = shapes.found(found, explain=bool(request.text("explain")))
    more = {
        "hits": [
            {"shape": shape, "text": marked(_around(shape["content"], found.terms), found.terms), "why": _why(each)}
            for shape, each in zip(data["results"], _considered(found), strict=True)
        ],
        "facets": _facets(data["results"], request),
        "more_link": request.link(limit=str(limit * 2)) if data["count"] == limit else None,
    }
    return View("home.html", data, more)


def _considered(found: "Explanation") -> Iterator["Considered | None"]:
    by_id = {each.id: each for each in found.considered if not each.dropped}
    return (by_id.get(hit.id) for hit in found.hits)


def _why(each: "Considered | None") -> list[tuple[str, float | int]]:
    """Return the reasons for a hit that say something: those that are neither missing nor neutral."""
    if each is None:
        return []
    neutral = {"freshness": 1.0, "boost": 1.0, "confidence": 1.0}
    numbers = ((name, each.features.get(name)) for name in _REASONS)
    return [(_REASONS[name], value) for name, value in numbers if value and value != neutral.get(name)]


def _wanted(terms: Sequence[str]) -> set[str]:
    return {word for term in terms for word in _WORD.findall(normal_form(term.strip(" *")))}


def _around(text: str, terms: Sequence[str]) -> str:
    """Return a text, or of a long one the part around the first word that was looked for."""
    lower = text.lower()
    places = [place for place in map(lower.find, _wanted(terms)) if place >= 0]
    return excerpt(text, min(places, default=0))


def marked(text: str, terms: Sequence[str]) -> list[tuple[str, bool]]:
    """Return a text in pieces, each with whether it is a word that was looked for."""
    wanted = _wanted(terms)
    pieces: list[tuple[str, bool]] = []
    end = 0
    for word in _WORD.finditer(text):
        form = normal_form(word[0])
        if form in wanted or any(len(term) > 3 and form.startswith(term) for term in wanted):
            pieces += [(text[end : word.start()], False), (word[0], True)]
            end = word.end()
    return [piece for piece in [*pieces, (text[end:], False)] if piece[0]]


def _facets(results: Sequence[Mapping[str, Any]], request: PageRequest) -> dict[str, list[Facet]]:
    """Return what the results can be narrowed to, with how many of them each value has."""
    chosen = request.tags() | {name: request.text(name) for name in ("kind", "trust") if request.text(name)}
    found: dict[str, list[Facet]] = {}
    for name in FACETS:
        counts = Counter(_value(result, name) for result in results) - Counter()
        counts.pop("", None)
        values = dict(counts.most_common(8)) | ({chosen[name]: counts[chosen[name]]} if name in chosen else {})
        rows = [Facet(value, count, _narrowed(request, name, value, chosen), chosen.get(name) == value)
                for value, count in values.items()]  # fmt: skip
        if len(rows) > 1 or name in chosen:
            found[name] = rows
    return found


def _value(result: Mapping[str, Any], name: str) -> str:
    if name == "trust":
        return str((result.get("origin") or {}).get("trust", ""))
    return str(result.get(name) or result.get("tags", {}).get(name) or "")


def _narrowed(request: PageRequest, name: str, value: str, chosen: Mapping[str, str]) -> str:
    wanted = chosen.get(name) != value
    if name in ("kind", "trust"):
        changes: dict[str, str | None] = {name: value if wanted else None}
        return request.link(**changes)
    return request.link_tag(name, value, wanted=wanted)


def _timeline(memories: "Memories", request: PageRequest) -> View:
    """Show memories and conversations by day, newest first, as they are or as they were on a day."""
    limit = request.number("limit", _PAGE) or _PAGE
    page = memories.list(limit=limit, cursor=request.text("cursor") or None, **request.filters())
    data = shapes.page(page)
    since = page.memories[-1].created_at if page.next_cursor else None
    items = [("memory", shape, each.created_at) for shape, each in zip(data["results"], page.memories, strict=True)]
    rest = None
    if not (request.tags() or request.text("where") or request.text("trust") or request.text("kind") == "memory"):
        said, rest = _conversations(memories, request, since, limit)
        items += [("conversation", shapes.conversation(each), each.last_at) for each in said]
    items.sort(key=lambda item: item[2], reverse=True)
    more = {
        "days": _by_day(items),
        "rest": rest,
        "next": request.link(cursor=page.next_cursor, before=to_iso(since)) if page.next_cursor and since else None,
    }
    return View("home.html", data, more)


def _conversations(
    memories: "Memories", request: PageRequest, since: datetime | None, limit: int
) -> "tuple[list[Conversation], str | None]":
    """Return the conversations of the time of the memories that are shown, and where the rest of many is listed."""
    begins = to_iso(since) if since else request.text("since")
    ends = request.text("before") or request.text("until")
    span = {name: text for name, text in (("since", begins), ("until", ends)) if text}
    found = memories.list_conversations(limit=limit, as_of=request.as_of, **span)  # type: ignore[arg-type] # some of them
    last = to_moment(ends or None, datetime.now(UTC), end_of_day=True)
    kept = [each for each in found.conversations
            if (since is None or each.last_at >= since) and (last is None or each.last_at < last)]  # fmt: skip
    return kept, request.address("/conversations", **span) if found.next_cursor else None


def _by_day(
    items: Sequence[tuple[str, dict[str, Any], datetime]],
) -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    days: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for kind, shape, at in items:
        days.setdefault(f"{at:%Y-%m-%d}", []).append((kind, shape))
    return list(days.items())


def _shown_day(memories: "Memories", request: PageRequest) -> dict[str, Any]:
    """Return the plot of days, and the bar of the day that is shown if that is not now."""
    days = spans({day.isoformat(): count for day, count in memories.days().items()})
    times = {day: end_of(day) for day, _ in days}
    shown = f"{request.past.moment:%Y-%m-%d}" if request.past else None
    chosen = next((label for label, _ in days if shown is not None and label >= shown), "")
    found = plot(
        "What was written",
        days,
        "written",
        lambda day: request.link(as_of=times[day], cursor=None, before=None),
        chosen,
    )
    return {"plot": found if len(days) > 1 else None, "chosen": chosen, "times": list(times.values())}


_TURNS = 100


def memory(memories: "Memories", request: PageRequest) -> View:
    """Show a memory: what it says, what it said, what it corrects and what corrects it, and where it came from."""
    past = _history(memories, request)
    data = _shape(memories, past, request.as_of)
    more = {
        "versions": _versions(past),
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
    """Return the history of a memory as it is or was.

    Raises:
        NotThen: There was none at the time that is looked at, but there is one.
    """
    name = request.path["id"]
    try:
        return memories.history(name, as_of=request.as_of)
    except NotFound as exc:
        if request.past is None:
            raise
        found = memories.history(name)
        since = _since(memories, found)
        links = [(request.address("/memories/", found.id, as_of=None), "See it as it is now")]
        title, sentence = f"Not there yet on {request.past.name}", "It had to wait for review, and was not accepted."
        if since is not None:
            links.insert(0, (request.address("/memories/", found.id, as_of=since), "See it as it was first"))
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


def conversation(memories: "Memories", request: PageRequest) -> View:
    """Show the turns of a conversation, from one of them on."""
    name = request.path["id"]
    about = _about(memories, request)
    start = request.number("start", 0, 10**9)
    limit = request.number("limit", _TURNS) or _TURNS
    said = memories.turns(name, start=start, limit=limit, as_of=request.as_of)
    more = {
        "about": shapes.conversation(about),
        "earlier": request.link(start=str(max(start - limit, 0))) if start else None,
        "later": request.link(start=str(said[-1].index + 1)) if len(said) == limit else None,
    }
    return View("conversation.html", shapes.turns(said), more)


def _about(memories: "Memories", request: PageRequest) -> "Conversation":
    """Return a conversation as it is or was.

    Raises:
        NotThen: Nothing had been said at the time that is looked at.
    """
    name = request.path["id"]
    try:
        return memories.conversation(name, as_of=request.as_of)
    except NotFound as exc:
        if request.past is None:
            raise
        found = memories.conversation(name)
        since = moment(to_iso(found.first_at))
        now = (request.address("/conversations/", name, as_of=None), "See it as it is now")
        sentence = f"The first turn of this conversation was said on {since}."
        raise NotThen(exc, f"Not begun yet on {request.past.name}", sentence, [now]) from exc


def conversations(memories: "Memories", request: PageRequest) -> View:
    """List conversations, those with the newest turn first."""
    given = {name: request.text(name) for name in ("title", "user", "since", "until", "as_of") if request.text(name)}
    limit = request.number("limit", 50) or 50
    page = memories.list_conversations(limit=limit, cursor=request.text("cursor") or None, **given)  # type: ignore[arg-type]
    data = shapes.conversations(page)
    return View("conversations.html", data, {"next": page.next_cursor and request.link(cursor=page.next_cursor)})


_REVIEW_PAGE = 50


def review(memories: "Memories", request: PageRequest) -> View:
    """List what waits to be accepted, newest first."""
    if request.as_of:
        return _of_now(request, "Review", "When something stopped waiting is not kept, and decisions are about now.")
    page = memories.review.page(
        limit=request.number("limit", _REVIEW_PAGE) or _REVIEW_PAGE, cursor=request.text("cursor") or None
    )
    return View("review.html", shapes.page(page), {"next": page.next_cursor and request.link(cursor=page.next_cursor)})


def namespaces(memories: "Memories", request: PageRequest) -> View:
    """List the namespaces that the reader may see, and what comes in and goes out."""
    found = memories.namespaces(as_of=request.as_of)
    rows = [shapes.present(each._asdict()) for each in found if request.reads(each.name)]
    return View("namespaces.html", {"namespaces": rows, "count": len(rows)})


def tags(memories: "Memories", request: PageRequest) -> View:
    """List tag keys, or the values of one, with how many memories have each."""
    key = request.text("key") or None
    return View("tags.html", shapes.tags(key, memories.tags(key, as_of=request.as_of)), {"key": key})


def health(memories: "Memories", request: PageRequest) -> View:
    """Show how the store is, what was done with it, and what of it is used."""
    if request.as_of:
        held = [each for each in memories.namespaces(as_of=request.as_of) if each.read]
        figures = [
            ("memories", f"{sum(each.memory_count for each in held):,}"),
            ("turns of conversations", f"{sum(each.turn_count for each in held):,}"),
        ]
        return _of_now(request, "Health", "How the store was and what had been done with it is not kept.", figures)
    found = memories.status()
    done = memories.stats(since=request.text("since") or None)
    figures = [
        ("memories", f"{found.memory_count:,}"),
        ("turns of conversations", f"{found.turn_count:,}"),
        ("wait for review", f"{found.pending_count:,}"),
        ("deleted", f"{found.deleted_count:,}"),
        ("in the store's file", size(found.size_bytes)),
        ("were never read", f"{done.never_used_count:,}"),
        ("tokens given to models", f"{done.tokens:,}"),
    ]
    more = {
        "figures": figures,
        "plots": [plot("Memories by the day they were first written", spans(done.per_day), "memories")],
        "operations": done.operations,
        "counts": [("By agent", done.agents), ("By project", done.projects)],
        "used": [("Most read", done.most_used), ("Oldest never read", done.never_used)],
    }
    shape = shapes.status(found)
    return View("health.html", shape if request.manages else shapes.without_place(shape), more)


def _of_now(request: PageRequest, title: str, why: str, figures: Sequence[tuple[str, str]] = ()) -> View:
    """Say that a view shows what is now, whatever day is looked at.

    Raises:
        InvalidInput: JSON was request for; the API refuses a time there as well.
    """
    if request.text("format") == "json":
        raise InvalidInput("as_of does not go with this; it tells what is now")
    return View("now.html", {}, {"title": title, "why": why, "figures": figures})


def size(count: int | None) -> str:
    """Return a number of bytes as a person reads it."""
    if count is None:
        return "unknown"
    unit, of = next((pair for pair in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)) if count >= pair[1]), ("bytes", 1))
    return f"{count / of:.1f} {unit}" if of > 1 else f"{count} {unit}"
