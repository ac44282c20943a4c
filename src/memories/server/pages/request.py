"""Requests for pages, the contents of pages, and plots."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from memories.core.times import to_iso, to_moment
from memories.errors import InvalidInput, NotFound
from memories.identity.place import find_project

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.settings import Config

MAX_NUMBER = 200  # maximum number of entries on a page
_IN_EVERY_LINK = ("as_of", "namespace")


class Past(NamedTuple):
    """An earlier time that the pages show instead of now.

    Attributes:
        moment: The time; for a day, its last millisecond.
        name: How the page shows the time: as a day, or to the second.
        is_over: Whether the time is past; False for today and for a day in the future.
    """

    moment: datetime
    name: str
    is_over: bool

    @classmethod
    def of(cls, text: str) -> "Past":
        """Parse the time in an address.

        Raises:
            InvalidInput: The value is not a time.
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
    """Raised when the requested item did not exist yet at the time shown.

    Attributes:
        error: The API's error.
        title: The page's title.
        sentence: The explanation on the page.
        links: Addresses where the item can be seen, with their labels.
    """

    def __init__(
        self, error: NotFound, title: str, sentence: str, links: Sequence[tuple[str, str]]
    ) -> None:
        super().__init__(str(error))
        self.error, self.title, self.sentence, self.links = error, title, sentence, links


def end_of(day: str) -> str:
    """Return the end of a UTC day as a parameter of an address.

    The result is a time, or just the day if the local day ends at the same moment.
    """
    end = f"{day}T23:59:59.999Z"
    moment = to_moment(day, datetime.now(UTC), end_of_day=True)
    return day if moment is not None and to_iso(moment) == end else end


def _is_day(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


class PageRequest(NamedTuple):
    """The parameters of a request to a page.

    Attributes:
        params: The query's pairs, in order; a name may occur several times.
        path: The path parameters.
        reads: Returns whether the reader may read a namespace.
        writes: Returns whether the reader may write to a namespace.
        administers: Returns whether the reader may review and erase memories in a namespace.
        manages: Whether the reader may manage the entire store, and so see its location.
        is_owner: Whether the reader is the user who runs the server.
        open_memories: Opens the memories that the reader may see, with other settings.
    """

    params: Sequence[tuple[str, str]]
    path: Mapping[str, str] = {}
    reads: Callable[[str], bool] = lambda _: True
    writes: Callable[[str], bool] = lambda _: False
    administers: Callable[[str], bool] = lambda _: False
    manages: bool = False
    is_owner: bool = False
    open_memories: "Callable[[Config, bool], Memories] | None" = None

    def text(self, name: str) -> str:
        """Return a parameter's first value; empty if it is missing."""
        return next((value.strip() for key, value in self.params if key == name), "")

    def number(self, name: str, default: int, limit: int = MAX_NUMBER) -> int:
        """Return a value as a whole number from 0 to `limit`.

        Raises:
            InvalidInput: The value is not such a number.
        """
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidInput(
                f'{name} must be a whole number from 0 to {limit}, not "{text[:40]}"'
            )
        return min(int(text), limit)

    def limit(self, default: int) -> int:
        """Return how many entries the page shows."""
        return self.number("limit", default) or default

    def tags(self) -> dict[str, str]:
        """Return the tags to filter by, from the `tag=key=value` parameters.

        Raises:
            InvalidInput: A value is not in the form `key=value`.
        """
        tags: dict[str, str] = {}
        for name, text in self.params:
            if name == "tag" and text:
                key, equals, value = text.partition("=")
                if not equals:
                    raise InvalidInput(f'tag must be key=value, not "{text[:40]}"')
                tags[key.strip()] = value.strip()
        return tags

    def filters(self) -> dict[str, Any]:
        """Return the filters that searches and listings share, except empty ones."""
        names = ("since", "until", "as_of", "trust", "written_by", "where", "project")
        filters: dict[str, Any] = {name: self.text(name) for name in names if self.text(name)}
        if "project" in filters:
            filters["project"] = find_project(filters["project"])
        if tags := self.tags():
            filters["tags"] = tags
        return filters

    @property
    def past(self) -> Past | None:
        """The time shown; None for now.

        Raises:
            InvalidInput: The address does not contain a valid time.
        """
        text = self.text("as_of")
        return Past.of(text) if text else None

    @property
    def cursor(self) -> str | None:
        """Where in a long list this page begins; None for the beginning of the list."""
        return self.text("cursor") or None

    @property
    def as_of(self) -> str | None:
        """The time shown, in the form that the methods of `Memories` accept."""
        return self.text("as_of") or None

    def address(self, path: str, name: str = "", **query: str | int | None) -> str:
        """Return the address of another page, with this page's time and namespace.

        Args:
            path: The page's path.
            name: The name at the end of the path.
            **query: The query's parameters; None removes a parameter.
        """
        pairs = {key: value for key, value in query.items() if value is not None}
        for key in _IN_EVERY_LINK:
            if key not in query and self.text(key):
                pairs[key] = self.text(key)
        address = path + quote(name, safe="")
        return f"{address}?{urlencode(pairs)}" if pairs else address

    def call(self, path: str) -> str:
        """Return the address of an API route in the same namespace, without this page's time."""
        return self.address(path, as_of=None)

    def link(self, **changes: str | None) -> str:
        """Return this page's address with some parameters changed; None removes a parameter."""
        pairs = [
            (name, value)
            for name, value in self.params
            if value and name not in changes and name != "format"
        ]
        pairs += [(name, value) for name, value in changes.items() if value is not None]
        return f"?{urlencode(pairs)}"

    def link_tag(self, key: str, value: str, *, is_added: bool) -> str:
        """Return this search's address with a tag added to its filters, or removed from them."""
        pairs = []
        for name, text in self.params:
            is_same_tag = name == "tag" and text.partition("=")[0] == key
            if text and name not in ("format", "cursor", "before") and not is_same_tag:
                pairs.append((name, text))
        if is_added:
            pairs.append(("tag", f"{key}={value}"))
        return f"?{urlencode(pairs)}"


class View(NamedTuple):
    """A view's response.

    Attributes:
        template: The template that shows it.
        data: The API's JSON for the same request.
        more: Additional values for the template.
        status: The HTTP status.
    """

    template: str
    data: dict[str, Any]
    more: Mapping[str, Any] = {}
    status: int = 200


HEIGHT = 40  # height of a plot, in its own units; bars are 8 wide and 10 apart

_MAX_BARS = 100
_MAX_CHARACTERS, _MAX_LINES = 600, 12  # maximum length of a text in a list


class Bar(NamedTuple):
    """One bar's position and height, in the plot's units."""

    x: int
    y: float
    height: float
    label: str
    value: float
    link: str | None
    chosen: bool


class Plot(NamedTuple):
    """A bar plot in SVG, with a label for each bar, for readers who can't see the plot."""

    title: str
    width: int
    bars: Sequence[Bar]
    unit: str

    @property
    def height(self) -> int:
        """The plot's height, in its own units."""
        return HEIGHT

    @property
    def labels(self) -> list[str]:
        """The labels of the bars, in order."""
        return [bar.label for bar in self.bars]


def plot(
    title: str,
    values: Sequence[tuple[str, float]],
    unit: str,
    link: Callable[[str], str] | None = None,
    chosen: str = "",
) -> Plot:
    """Return a plot of values in order.

    Args:
        title: Its title.
        values: Each bar's label and value, 0 or more.
        unit: The unit of the values.
        link: Returns the address for a bar, given the bar's label.
        chosen: The highlighted bar's label.
    """
    largest = max((value for _, value in values), default=0) or 1
    bars = []
    for index, (label, value) in enumerate(values):
        height = round(HEIGHT * value / largest, 2)
        if value:
            height = max(height, 1.0)
        address = link(label) if link else None
        x, y = index * 10, HEIGHT - height
        bars.append(Bar(x, y, height, label, value, address, label == chosen))
    return Plot(title, max(len(bars) * 10, 10), bars, unit)


def moment(iso: str) -> str:
    """Return a time to the minute, in UTC."""
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%d %b %Y %H:%M UTC").lstrip("0")


def short_project(name: str) -> str:
    """Return the last part of a project's name, which is what people call the project."""
    return name.rstrip("/").rpartition("/")[2] or name


def excerpt(text: str, start: int = 0) -> str:
    """Return a text for a list; a long text is truncated to the part around a position."""
    begin = 0
    if start >= _MAX_CHARACTERS // 2 and len(text) > _MAX_CHARACTERS:
        begin = start - _MAX_CHARACTERS // 4
    lines = text[begin : begin + _MAX_CHARACTERS].split("\n")
    part = "\n".join(lines[:_MAX_LINES])
    is_cut = begin + len(part) < len(text)
    if begin:
        part = f"… {part}"
    return f"{part} …" if is_cut else part


def count_by_label(times: Sequence[str], labels: Sequence[str]) -> list[tuple[str, int]]:
    """Count the times in each span that `spans` returned.

    Args:
        times: The times, ISO 8601 in UTC.
        labels: The last days of the spans, oldest first.
    """
    counts = [0] * len(labels)
    for time in times:
        index = bisect_left(labels, time[:10])
        if index < len(labels):
            counts[index] += 1
    return list(zip(labels, counts, strict=True))


def spans(days: Mapping[str, int]) -> list[tuple[str, int]]:
    """Group daily counts into equal spans without gaps, oldest first. Each span is named after its
    last day. Ranges of 100 days or fewer are not grouped.

    Args:
        days: The counts, keyed by day, such as `2026-05-31`.
    """
    if not days:
        return []
    by_day = {date.fromisoformat(day): count for day, count in days.items()}
    last = max(by_day)
    length = -(-((last - min(by_day)).days + 1) // _MAX_BARS)
    counts: Counter[int] = Counter()
    for day, count in by_day.items():
        counts[(last - day).days // length] += count
    return [
        (str(last - timedelta(back * length)), counts[back]) for back in range(max(counts), -1, -1)
    ]
