"""The request and the answer of a view, and the plots in it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from memories.core.times import to_iso, to_moment
from memories.errors import InvalidInput, NotFound

MOST = 200  # items on a page
_KEPT = ("as_of", "namespace")  # what every link keeps


class Past(NamedTuple):
    """A time that is looked at in place of now.

    Attributes:
        moment: The time; of a day its last millisecond.
        name: What a reader calls it: the day, or a time to the second.
        is_over: Whether it is past; the day may be today, or still to come.
    """

    moment: datetime
    name: str
    is_over: bool

    @classmethod
    def of(cls, text: str) -> "Past":
        """Return the time that an address names.

        Raises:
            InvalidInput: It names none.
        """
        now = datetime.now(UTC)
        moment = to_moment(text, now, end_of_day=True)
        assert moment is not None
        moment = moment.astimezone(UTC)
        if to_iso(moment).endswith("T23:59:59.999Z"):
            name = f"{moment:%Y-%m-%d}"
        else:
            name = text if _is_day(text) else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
        return cls(moment, name, moment < now)


class NotThen(NotFound):
    """What is asked for was not there at the time that is looked at.

    Attributes:
        error: As the API tells it.
        title: As a page tells it.
        sentence: What is known of it.
        links: Where it can be seen: addresses, and what they lead to.
    """

    def __init__(self, error: NotFound, title: str, sentence: str, links: Sequence[tuple[str, str]]) -> None:
        super().__init__(str(error))
        self.error, self.title, self.sentence, self.links = error, title, sentence, links


def end_of(day: str) -> str:
    """Return how an address names the end of a day of UTC: by the day, where that is the same in local time."""
    end = f"{day}T23:59:59.999Z"
    moment = to_moment(day, datetime.now(UTC), end_of_day=True)
    return day if moment is not None and to_iso(moment) == end else end


def _is_day(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


class PageRequest(NamedTuple):
    """What a request asks for.

    Attributes:
        params: The pairs behind the `?`, in their order; a name may come several times.
        path: The parts of the path that have names.
        reads: Whether the reader may read a namespace.
        manages: Whether the reader may manage the whole store, and so see where it is.
    """

    params: Sequence[tuple[str, str]]
    path: Mapping[str, str] = {}
    reads: Callable[[str], bool] = lambda _: True
    manages: bool = False

    def text(self, name: str) -> str:
        """Return the first value of a name, or nothing."""
        return next((value.strip() for key, value in self.params if key == name), "")

    def number(self, name: str, default: int, most: int = MOST) -> int:
        """Return a value as a whole number from 0 to `most`.

        Raises:
            InvalidInput: It is none.
        """
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidInput(f'{name} must be a whole number from 0 to {most}, not "{text[:40]}"')
        return min(int(text), most)

    def tags(self) -> dict[str, str]:
        """Return the tags that are wanted: each `tag` is `key=value`.

        Raises:
            InvalidInput: One of them is not.
        """
        found: dict[str, str] = {}
        for name, value in self.params:
            if name == "tag" and value:
                key, equals, wanted = value.partition("=")
                if not equals:
                    raise InvalidInput(f'tag must be key=value, not "{value[:40]}"')
                found[key.strip()] = wanted.strip()
        return found

    def filters(self) -> dict[str, Any]:
        """Return what narrows a search and a listing alike; what is not given is left out."""
        names = ("since", "until", "as_of", "trust", "written_by", "where", "project")
        given: dict[str, Any] = {name: self.text(name) for name in names if self.text(name)}
        return given | ({"tags": self.tags()} if self.tags() else {})

    @property
    def past(self) -> Past | None:
        """The time that is looked at; None for now.

        Raises:
            InvalidInput: What the address says is no time.
        """
        text = self.text("as_of")
        return Past.of(text) if text else None

    @property
    def as_of(self) -> str | None:
        """The time that is looked at, as a verb takes it."""
        return self.text("as_of") or None

    def address(self, path: str, name: str = "", **query: str | int | None) -> str:
        """Return the address of another page of the same time and namespace.

        Args:
            path: Its path.
            name: The name at the end of the path.
            **query: Its parameters; None leaves one out.
        """
        kept = {key: self.text(key) for key in _KEPT if self.text(key) and key not in query}
        text = urlencode({key: value for key, value in {**query, **kept}.items() if value is not None})
        return path + quote(name, safe="") + (f"?{text}" if text else "")

    def call(self, path: str) -> str:
        """Return the address of a route of the API in the same namespace; what it does is always done now."""
        return self.address(path, as_of=None)

    def link(self, **changes: str | None) -> str:
        """Return the address of the same page with some parameters changed; None leaves one out, as does a new page."""
        kept = [(name, value) for name, value in self.params if value and name not in changes and name != "format"]
        query = urlencode([*kept, *((name, value) for name, value in changes.items() if value is not None)])
        return f"?{query}"

    def link_tag(self, key: str, value: str, *, wanted: bool) -> str:
        """Return the address of the same search with a tag wanted, or no longer wanted."""
        others = [(name, given) for name, given in self.params if given and name not in ("format", "cursor", "before")]
        others = [pair for pair in others if pair[0] != "tag" or pair[1].partition("=")[0] != key]
        query = urlencode([*others, *([("tag", f"{key}={value}")] if wanted else [])])
        return f"?{query}"


class View(NamedTuple):
    """What a view answers.

    Attributes:
        template: The template that shows it.
        data: The JSON of the API for the same question.
        more: What the template needs beside it.
        status: The HTTP status.
    """

    template: str
    data: dict[str, Any]
    more: Mapping[str, Any] = {}
    status: int = 200


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
