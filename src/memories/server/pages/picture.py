"""The map page: draws projects over time, with corrections as arrows."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memories.core.times import to_iso
from memories.models import corrected_ids
from memories.server.pages.request import PageRequest, View, short_project

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Memory

MAX_MEMORIES = 3_000  # maximum number of memories shown; a picture would not be readable with more
_PAGE = 1_000
_ROWS, _COLUMNS, _TICKS = 10, 60, 6
_MAX_ARROWS = 80
# Sizes and positions, in the picture's units.
WIDTH, _LEFT, _RIGHT, _TOP, _ROW_HEIGHT = 1_000, 170, 24, 44, 46
_SMALLEST, _LARGEST = 3.0, 17.0
_NONE, _OTHERS = "", "\0others"


class Dot(NamedTuple):
    """The memories of one project and one span of days; `number` is how many there are."""

    x: float
    y: float
    radius: float
    number: int
    label: str
    link: str | None
    has_corrections: bool


class Row(NamedTuple):
    """A project: its position, its name, and the number of its memories."""

    y: float
    name: str
    title: str
    number: int
    link: str | None


class Arrow(NamedTuple):
    """A correction, from the older memory to the newer one."""

    path: str
    label: str


class _Timeline(NamedTuple):
    """The days of the picture, in spans of equal length."""

    first: date
    days_of_span: int
    span_count: int

    @classmethod
    def of(cls, dates: Sequence[date]) -> "_Timeline":
        """Return a timeline that covers these dates."""
        first = min(dates)
        day_count = (max(dates) - first).days + 1
        days_of_span = math.ceil(day_count / _COLUMNS)
        return cls(first, days_of_span, math.ceil(day_count / days_of_span))

    def span_of(self, day: date) -> int:
        """Return the number of the span that contains a day."""
        return (day - self.first).days // self.days_of_span

    def begin_of(self, span: int) -> date:
        """Return the first day of a span."""
        return self.first + timedelta(span * self.days_of_span)

    def x_of(self, span: int) -> float:
        """Return the horizontal position of a span."""
        room = WIDTH - _LEFT - _RIGHT
        return round(_LEFT + room * (span + 0.5) / self.span_count, 1)


def picture(memories: "Memories", request: PageRequest) -> View:
    """Show projects over time, and corrections."""
    shown, is_cut = _read(memories, request)
    dates = [memory.created_at.date() for memory in shown]
    data = {
        "count": len(shown),
        "projects": dict(Counter(_project_of(memory) for memory in shown).most_common()),
        "corrections": [
            {"from": older, "to": memory.id, "at": to_iso(memory.created_at)}
            for memory in shown
            for older in corrected_ids(memory)
        ],
    }
    if not shown:
        return View("map.html", data, {"rows": []})
    timeline = _Timeline.of(dates)
    names = _choose_rows(shown)
    places = {name: _TOP + _ROW_HEIGHT * (index + 0.5) for index, name in enumerate(names)}
    arrows, corrected = _draw_arrows(shown, timeline, places)
    counts = Counter(_row_of(memory, places) for memory in shown)
    more = {
        "width": WIDTH,
        "height": _TOP + _ROW_HEIGHT * len(names) + 8,
        "rows": [_draw_row(name, places[name], counts[name], request) for name in names],
        "dots": _draw_dots(shown, timeline, places, corrected, request),
        "arrows": arrows,
        "ticks": _draw_ticks(timeline),
        "corrections": _pairs(shown),
        "is_cut": is_cut,
        "since": min(dates),
        "until": max(dates),
    }
    return View("map.html", data, more)


def _read(memories: "Memories", request: PageRequest) -> "tuple[list[Memory], bool]":
    """Return the newest memories, and whether there are more."""
    shown: list[Memory] = []
    cursor = None
    while len(shown) < MAX_MEMORIES:
        page = memories.list(limit=_PAGE, cursor=cursor, **request.filters())
        shown += page.memories
        cursor = page.next_cursor
        if cursor is None:
            break
    return shown, cursor is not None


def _project_of(memory: "Memory") -> str:
    return memory.tags.get("project", _NONE)


def _choose_rows(shown: "Iterable[Memory]") -> list[str]:
    """Return the names of the rows: the projects with the most memories, then one row for all
    other projects, and one for memories without a project.
    """
    counts = Counter(_project_of(memory) for memory in shown)
    has_none = counts.pop(_NONE, 0) > 0
    names = [name for name, _ in counts.most_common(_ROWS)]
    if len(counts) > _ROWS:
        names[-1] = _OTHERS
    return [*names, _NONE] if has_none else names


def _row_of(memory: "Memory", places: Mapping[str, float]) -> str:
    project = _project_of(memory)
    return project if project in places else _OTHERS


def _draw_row(name: str, y: float, count: int, request: PageRequest) -> Row:
    if name == _OTHERS:
        return Row(y, "other projects", "other projects", count, None)
    if name == _NONE:
        link = request.address("/", where="not project exists")
        return Row(y, "no project", "no project", count, link)
    link = request.address("/", tag=f"project={name}")
    return Row(y, short_project(name), name, count, link)


def _draw_dots(
    shown: "Iterable[Memory]",
    timeline: _Timeline,
    places: Mapping[str, float],
    corrected: set[tuple[str, int]],
    request: PageRequest,
) -> list[Dot]:
    counts = Counter(
        (_row_of(memory, places), timeline.span_of(memory.created_at.date())) for memory in shown
    )
    most = max(counts.values())
    dots = []
    for (name, span), count in sorted(counts.items()):
        radius = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(count / most)
        begin = timeline.begin_of(span)
        end = begin + timedelta(timeline.days_of_span - 1)
        days = f"{begin}" if begin == end else f"{begin} to {end}"
        row = _draw_row(name, places[name], count, request)
        link = None
        if row.link is not None:
            only = {"tag": f"project={name}"} if name else {"where": "not project exists"}
            link = request.address("/", since=str(begin), until=str(end), **only)
        label = f"{row.name}, {days}: {count} {'memory' if count == 1 else 'memories'}"
        has_corrections = (name, span) in corrected
        x, y = timeline.x_of(span), places[name]
        dots.append(Dot(x, y, round(radius, 1), count, label, link, has_corrections))
    return dots


def _pairs(shown: "Sequence[Memory]") -> "list[tuple[Memory, Memory]]":
    """Return corrections, newest first, each as the older memory and the newer one."""
    by_id = {memory.id: memory for memory in shown}
    pairs = []
    for memory in shown:
        corrected = [by_id[older] for older in corrected_ids(memory) if older in by_id]
        pairs += [(older, memory) for older in corrected]
    return pairs[:_MAX_ARROWS]


def _draw_arrows(
    shown: "Sequence[Memory]", timeline: _Timeline, places: Mapping[str, float]
) -> tuple[list[Arrow], set[tuple[str, int]]]:
    """Return the arrows of corrections, and the dots that contain both memories of a correction.

    A dot is given by its row and its span.
    """
    arrows: list[Arrow] = []
    inside: set[tuple[str, int]] = set()
    for older, newer in _pairs(shown):
        ends = [
            (_row_of(memory, places), timeline.span_of(memory.created_at.date()))
            for memory in (older, newer)
        ]
        if ends[0] == ends[1]:
            inside.add(ends[0])
            continue
        (from_x, from_y), (to_x, to_y) = (
            (timeline.x_of(span), places[name]) for name, span in ends
        )
        lift = 14 + abs(to_x - from_x) * 0.05
        middle_x, middle_y = round((from_x + to_x) / 2, 1), round(min(from_y, to_y) - lift, 1)
        path = f"M{from_x} {from_y - 4}Q{middle_x} {middle_y} {to_x} {to_y - 4}"
        arrows.append(Arrow(path, f"{older.content[:80]} → {newer.content[:80]}"))
    return arrows, inside


def _draw_ticks(timeline: _Timeline) -> list[tuple[float, str]]:
    """Return the positions and labels of evenly spaced days."""
    step = max(1, math.ceil(timeline.span_count / _TICKS))
    return [
        (timeline.x_of(span), f"{timeline.begin_of(span):%d %b %Y}".lstrip("0"))
        for span in range(0, timeline.span_count, step)
    ]
