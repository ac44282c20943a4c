"""Search and the timeline: one page, with a question or without."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.answers import shapes
from memories.core.times import to_iso, to_moment
from memories.languages.text import normal_form
from memories.server.pages.asked import Asked, View, end_of
from memories.server.pages.plots import excerpt, plot, spans

if TYPE_CHECKING:
    from memories.memories import Memories
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


def home(memories: "Memories", asked: Asked) -> View:
    """Show what answers the question, or without one everything by day, newest first."""
    view = _results(memories, asked) if asked.text("q") else _timeline(memories, asked)
    return view._replace(more={**view.more, "narrowed": list(_narrowing(asked)), **_shown_day(memories, asked)})


def _narrowing(asked: Asked) -> Iterator[tuple[str, str]]:
    """Yield each filter that is given, with the address of the same page without it."""
    for key, value in asked.tags().items():
        yield f"{key}={value}", asked.link_tag(key, value, wanted=False)
    for name in ("project", "kind", "trust", "written_by", "since", "until", "where"):
        if asked.text(name):
            without: dict[str, str | None] = {name: None, "cursor": None, "before": None}
            yield f"{name.replace('_', ' ')} {asked.text(name)}", asked.link(**without)


def _results(memories: "Memories", asked: Asked) -> View:
    scope: Scope = _SCOPES.get(asked.text("kind"), "all")
    limit = asked.number("limit", _PAGE) or _PAGE
    found = memories.explain(asked.text("q"), scope=scope, limit=limit, **asked.filters())
    data = shapes.found(found, explain=bool(asked.text("explain")))
    more = {
        "hits": [
            {"shape": shape, "text": marked(_around(shape["content"], found.terms), found.terms), "why": _why(each)}
            for shape, each in zip(data["results"], _considered(found), strict=True)
        ],
        "facets": _facets(data["results"], asked),
        "more_link": asked.link(limit=str(limit * 2)) if data["count"] == limit else None,
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


def _facets(results: Sequence[Mapping[str, Any]], asked: Asked) -> dict[str, list[Facet]]:
    """Return what the results can be narrowed to, with how many of them each value has."""
    chosen = asked.tags() | {name: asked.text(name) for name in ("kind", "trust") if asked.text(name)}
    found: dict[str, list[Facet]] = {}
    for name in FACETS:
        counts = Counter(_value(result, name) for result in results) - Counter()
        counts.pop("", None)
        values = dict(counts.most_common(8)) | ({chosen[name]: counts[chosen[name]]} if name in chosen else {})
        rows = [Facet(value, count, _narrowed(asked, name, value, chosen), chosen.get(name) == value)
                for value, count in values.items()]  # fmt: skip
        if len(rows) > 1 or name in chosen:
            found[name] = rows
    return found


def _value(result: Mapping[str, Any], name: str) -> str:
    if name == "trust":
        return str((result.get("origin") or {}).get("trust", ""))
    return str(result.get(name) or result.get("tags", {}).get(name) or "")


def _narrowed(asked: Asked, name: str, value: str, chosen: Mapping[str, str]) -> str:
    wanted = chosen.get(name) != value
    if name in ("kind", "trust"):
        changes: dict[str, str | None] = {name: value if wanted else None}
        return asked.link(**changes)
    return asked.link_tag(name, value, wanted=wanted)


def _timeline(memories: "Memories", asked: Asked) -> View:
    """Show memories and conversations by day, newest first, as they are or as they were on a day."""
    limit = asked.number("limit", _PAGE) or _PAGE
    page = memories.list(limit=limit, cursor=asked.text("cursor") or None, **asked.filters())
    data = shapes.page(page)
    since = page.memories[-1].created_at if page.next_cursor else None
    items = [("memory", shape, each.created_at) for shape, each in zip(data["results"], page.memories, strict=True)]
    rest = None
    if not (asked.tags() or asked.text("where") or asked.text("trust") or asked.text("kind") == "memory"):
        said, rest = _conversations(memories, asked, since, limit)
        items += [("conversation", shapes.conversation(each), each.last_at) for each in said]
    items.sort(key=lambda item: item[2], reverse=True)
    more = {
        "days": _by_day(items),
        "rest": rest,
        "next": asked.link(cursor=page.next_cursor, before=to_iso(since)) if page.next_cursor and since else None,
    }
    return View("home.html", data, more)


def _conversations(
    memories: "Memories", asked: Asked, since: datetime | None, limit: int
) -> "tuple[list[Conversation], str | None]":
    """Return the conversations of the time of the memories that are shown, and where the rest of many is listed."""
    begins = to_iso(since) if since else asked.text("since")
    ends = asked.text("before") or asked.text("until")
    span = {name: text for name, text in (("since", begins), ("until", ends)) if text}
    found = memories.list_conversations(limit=limit, as_of=asked.as_of, **span)  # type: ignore[arg-type] # some of them
    last = to_moment(ends or None, datetime.now(UTC), end_of_day=True)
    kept = [each for each in found.conversations
            if (since is None or each.last_at >= since) and (last is None or each.last_at < last)]  # fmt: skip
    return kept, asked.address("/conversations", **span) if found.next_cursor else None


def _by_day(
    items: Sequence[tuple[str, dict[str, Any], datetime]],
) -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    days: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for kind, shape, at in items:
        days.setdefault(f"{at:%Y-%m-%d}", []).append((kind, shape))
    return list(days.items())


def _shown_day(memories: "Memories", asked: Asked) -> dict[str, Any]:
    """Return the plot of days, and the bar of the day that is shown if that is not now."""
    days = spans({day.isoformat(): count for day, count in memories.days().items()})
    times = {day: end_of(day) for day, _ in days}
    shown = f"{asked.past.moment:%Y-%m-%d}" if asked.past else None
    chosen = next((label for label, _ in days if shown is not None and label >= shown), "")
    found = plot(
        "What was written", days, "written", lambda day: asked.link(as_of=times[day], cursor=None, before=None), chosen
    )
    return {"plot": found if len(days) > 1 else None, "chosen": chosen, "times": list(times.values())}
