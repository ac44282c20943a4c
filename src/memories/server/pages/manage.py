"""What is looked after: the review queue, namespaces, tags, what comes in and goes out, and health."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memories.answers import shapes
from memories.errors import InvalidInput
from memories.server.pages.asked import Asked, View
from memories.server.pages.plots import plot, spans

if TYPE_CHECKING:
    from memories.memories import Memories

_PAGE = 50


def review(memories: "Memories", asked: Asked) -> View:
    """List what waits to be accepted, newest first."""
    if asked.as_of:
        return _of_now(asked, "Review", "When something stopped waiting is not kept, and decisions are about now.")
    page = memories.review.page(limit=asked.number("limit", _PAGE) or _PAGE, cursor=asked.text("cursor") or None)
    return View("review.html", shapes.page(page), {"next": page.next_cursor and asked.link(cursor=page.next_cursor)})


def namespaces(memories: "Memories", asked: Asked) -> View:
    """List the namespaces that the reader may see, and what comes in and goes out."""
    found = memories.namespaces(as_of=asked.as_of)
    rows = [shapes.present(each._asdict()) for each in found if asked.reads(each.name)]
    return View("namespaces.html", {"namespaces": rows, "count": len(rows)})


def tags(memories: "Memories", asked: Asked) -> View:
    """List tag keys, or the values of one, with how many memories have each."""
    key = asked.text("key") or None
    return View("tags.html", shapes.tags(key, memories.tags(key, as_of=asked.as_of)), {"key": key})


def health(memories: "Memories", asked: Asked) -> View:
    """Show how the store is, what was done with it, and what of it is used."""
    if asked.as_of:
        held = [each for each in memories.namespaces(as_of=asked.as_of) if each.read]
        figures = [
            ("memories", f"{sum(each.memory_count for each in held):,}"),
            ("turns of conversations", f"{sum(each.turn_count for each in held):,}"),
        ]
        return _of_now(asked, "Health", "How the store was and what had been done with it is not kept.", figures)
    found = memories.status()
    done = memories.stats(since=asked.text("since") or None)
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
    return View("health.html", shape if asked.manages else shapes.without_place(shape), more)


def _of_now(asked: Asked, title: str, why: str, figures: Sequence[tuple[str, str]] = ()) -> View:
    """Say that a view shows what is now, whatever day is looked at.

    Raises:
        InvalidInput: JSON was asked for; the API refuses a time there as well.
    """
    if asked.text("format") == "json":
        raise InvalidInput("as_of does not go with this; it tells what is now")
    return View("now.html", {}, {"title": title, "why": why, "figures": figures})


def size(count: int | None) -> str:
    """Return a number of bytes as a person reads it."""
    if count is None:
        return "unknown"
    unit, of = next((pair for pair in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)) if count >= pair[1]), ("bytes", 1))
    return f"{count / of:.1f} {unit}" if of > 1 else f"{count} {unit}"
