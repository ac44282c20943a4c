"""Plots as bars, in SVG, readable without a script, each bar a link where that helps; times and texts in a list."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

HEIGHT = 40  # of a plot, in its own units; a bar is 8 wide and stands 10 from the next

_MOST_BARS = 100
_MOST_SHOWN, _MOST_LINES = 600, 12  # characters and lines of a text in a list


class Bar(NamedTuple):
    """One bar: where it begins, how high it is, in units of the plot."""

    x: int
    y: float
    height: float
    label: str
    value: float
    link: str | None
    chosen: bool


class Plot(NamedTuple):
    """A plot with what a reader who can't see it is told."""

    title: str
    width: int
    bars: Sequence[Bar]
    unit: str

    @property
    def height(self) -> int:
        """The height of the plot, in its own units."""
        return HEIGHT

    @property
    def labels(self) -> list[str]:
        """What each bar stands for, in order."""
        return [bar.label for bar in self.bars]


def plot(
    title: str,
    values: Sequence[tuple[str, float]],
    unit: str,
    link: Callable[[str], str] | None = None,
    chosen: str = "",
) -> Plot:
    """Return a plot of values in their order.

    Args:
        title: What it shows.
        values: For each bar its label and its value, 0 or more.
        unit: What is counted.
        link: The address that the bar of a label leads to.
        chosen: The label of the bar that stands out.
    """
    most = max((value for _, value in values), default=0) or 1
    bars = []
    for place, (label, value) in enumerate(values):
        height = round(max(HEIGHT * value / most, 1.0 if value else 0.0), 2)
        address = link(label) if link else None
        bars.append(Bar(place * 10, HEIGHT - height, height, label, value, address, label == chosen))
    return Plot(title, max(len(bars) * 10, 10), bars, unit)


def moment(iso: str) -> str:
    """Return a time to the minute, in UTC."""
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%d %b %Y %H:%M UTC").lstrip("0")


def excerpt(text: str, start: int = 0) -> str:
    """Return a text as a list shows it: of a long one, the part around a place."""
    begin = 0 if start < _MOST_SHOWN // 2 or len(text) <= _MOST_SHOWN else start - _MOST_SHOWN // 4
    lines = text[begin : begin + _MOST_SHOWN].split("\n")
    part = "\n".join(lines[:_MOST_LINES])
    return ("… " if begin else "") + part + (" …" if begin + len(part) < len(text) else "")


def spans(days: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return counts by the last day of equal spans without gaps, oldest first: days, or more of a long time.

    Args:
        days: Counts by day, such as `2026-05-31`.
    """
    if not days:
        return []
    counted = {date.fromisoformat(day): count for day, count in days.items()}
    last = max(counted)
    length = -(-((last - min(counted)).days + 1) // _MOST_BARS)
    counts: Counter[int] = Counter()
    for day, count in counted.items():
        counts[(last - day).days // length] += count
    return [(str(last - timedelta(back * length)), counts[back]) for back in range(max(counts), -1, -1)]
