"""Reads and writes times; inside the program, a time is an aware datetime in UTC."""

import re
from datetime import UTC, datetime, timedelta, tzinfo

from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.models import Moment

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DATE_ONLY = re.compile(r"\d{4}-?\d{2}-?\d{2}|\d{4}-?W\d{2}(?P<weekday>-?\d)?")
_LENGTH = re.compile(r"(\d{1,6}|an?(?=\s))\s*([A-Za-z]+)")
_UNIT_NAMES = {
    "m min minute minutes": timedelta(minutes=1),
    "h hour hours": timedelta(hours=1),
    "d day days": timedelta(days=1),
    "w week weeks": timedelta(weeks=1),
    "mo month months": timedelta(days=30),
    "y year years": timedelta(days=365),
}
_UNITS = {name: length for names, length in _UNIT_NAMES.items() for name in names.split()}
_AGES = (
    (31_557_600, "year"),
    (2_629_800, "month"),
    (604_800, "week"),
    (86_400, "day"),
    (3_600, "hour"),
    (60, "minute"),
)


def to_millis(moment: datetime) -> int:
    """Return an aware time in milliseconds since 1970. Times are stored in milliseconds."""
    return (moment - _EPOCH) // _MILLISECOND


def from_millis(millis: int) -> datetime:
    """Convert milliseconds since 1970 to an aware UTC time."""
    return _EPOCH + timedelta(milliseconds=millis)


def to_iso(moment: datetime, *, keep_zone: bool = False) -> str:
    """Return a time as written in JSON: `2026-02-21T10:00:00.000Z`.

    Args:
        moment: An aware time.
        keep_zone: Keep its time zone: `2026-02-21T11:00:00.000+01:00`.
    """
    if not keep_zone:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_stored_time(moment: object, name: str) -> datetime:
    """Return an aware time in UTC, with the resolution of stored times.

    Args:
        moment: The time that a caller passed.
        name: Its name, for the message.

    Raises:
        InvalidInput: The time isn't an aware datetime, or is not in the years 1 to 9999.
    """
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidInput(f"{name} must be a datetime with a time zone, not {shown(str(moment))}")
    try:
        return from_millis(to_millis(moment.astimezone(UTC)))
    except (OverflowError, ValueError):
        raise InvalidInput(
            f"{name} {moment.isoformat()} is before the year 1 or after 9999"
        ) from None


def parse_time(text: str, *, end_of_day: bool = False) -> datetime:
    """Read a date or an ISO 8601 time.

    Args:
        text: The text. A time without a zone is local.
        end_of_day: Return the last millisecond of a day or week instead of the first.

    Returns:
        An aware UTC time.

    Raises:
        ValueError: The text isn't a time.
        OverflowError: The time is not in the years 1 to 9999.
    """
    moment = datetime.fromisoformat(text)
    date = _DATE_ONLY.fullmatch(text)
    if date and end_of_day:
        is_week = "W" in text and date["weekday"] is None
        moment += timedelta(days=7 if is_week else 1, milliseconds=-1)
    return moment.astimezone(UTC)


def parse_length(text: str) -> timedelta | None:
    """Read a time span: `30m`, `12h`, `7d`, `2 weeks`, `3mo`, `1y`; return None for other texts."""
    match = _LENGTH.fullmatch(text.strip())
    if match is None:
        return None
    count, unit = match.groups()
    if len(unit) > 1:
        unit = unit.lower()  # not a single letter, since `3M` may mean months
    length = _UNITS.get(unit)
    if length is None:
        return None
    return length * (int(count) if count.isdigit() else 1)


def parse_span(text: str, now: datetime, *, is_ahead: bool = False) -> tuple[datetime, datetime]:
    """Read a time as people write it: in words, as a time span, or as for `parse_time`.

    Args:
        text: The text: `2024-05-31`, `7d`, `last week`, `yesterday`, `3 May`, `2 hours ago`, `now`.
            Days are in local time.
        now: The time from which words and spans count.
        is_ahead: Whether `7d`, `friday` and `3 May` are in the future, unless they say otherwise.

    Returns:
        The first and the last millisecond as aware UTC times; they differ for a day or a week.

    Raises:
        InvalidInput: The text isn't a time, or is not in the years 1 to 9999.
    """
    text = text.strip()
    try:
        moment = _count_from(text, now, is_ahead=is_ahead)
        if moment is not None:
            return moment, moment
        return parse_time(text), parse_time(text, end_of_day=True)
    except OverflowError:
        days = None
    except ValueError:
        from memories.languages import dates  # imported here, since few commands need it

        days = dates.span(text, now.astimezone(), is_ahead=is_ahead)
    if days is None:
        form = "how long ago, such as 7d"
        if is_ahead:
            form = "a span from now, such as 90d"
        raise InvalidInput(
            f'not a date or time: "{shown(text)}"; use 2024-05-31, an ISO 8601 time, or {form}'
        )
    return parse_time(f"{days[0]}"), parse_time(f"{days[1]}", end_of_day=True)


def _count_from(text: str, now: datetime, *, is_ahead: bool) -> datetime | None:
    """Return the time for "now" or a time span; None for other texts."""
    lower = text.lower()
    if lower == "now":
        return now
    if lower.endswith(" ago"):
        text, is_ahead = text[:-4], False
    elif lower.startswith("in "):
        text, is_ahead = text[3:], True
    elif lower.endswith(" from now"):
        text, is_ahead = text[:-9], True
    length = parse_length(text)
    if length is None:
        return None
    return now + length if is_ahead else now - length


def mixes_zones(one: str, other: str) -> bool:
    """Return whether only one of two times has a time zone. Dates don't count."""
    texts = (one.strip(), other.strip())
    has_zone = any(zone_of(text) is not None for text in texts)
    return has_zone and any(_is_time_without_zone(text) for text in texts)


def _is_time_without_zone(text: str) -> bool:
    if _DATE_ONLY.fullmatch(text):
        return False
    try:
        return datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False


def parse_time_in_zone(text: str, now: datetime) -> datetime:
    """Parse a time, and return it in the time zone that the text names, or else in UTC.

    If the text names a time span, such as a day, its start is returned; see `parse_span`.
    """
    return parse_span(text, now)[0].astimezone(zone_of(text) or UTC)


def zone_of(text: str) -> tzinfo | None:
    """Return the time zone of a text; None if it has none."""
    try:
        return datetime.fromisoformat(text.strip()).tzinfo
    except ValueError:
        return None


def describe_age(moment: datetime, now: datetime) -> str:
    """Return the distance of a time from now, in words: `just now`, `3 days ago`, `in 2 hours`."""
    seconds = (now - moment).total_seconds()
    for length, unit in _AGES:
        count = int(abs(seconds) // length)
        if count:
            span = f"{count} {unit}"
            if count > 1:
                span += "s"
            if seconds > 0:
                return f"{span} ago"
            return f"in {span}"
    return "just now"


def query_time(moment: Moment | None, now: datetime) -> datetime:
    """Return the time of a query, in the caller's time zone if given, else in local time.

    Args:
        moment: The time that the caller gave; None for now.
        now: The current time.
    """
    time = to_moment(moment, now, end_of_day=True) or now
    zone = moment.tzinfo if isinstance(moment, datetime) else zone_of(moment or "")
    return time.astimezone(zone)


def to_moment(moment: Moment | None, now: datetime, *, end_of_day: bool = False) -> datetime | None:
    """Convert a text such as "7d" to an aware datetime; return a datetime or None unchanged.

    Raises:
        InvalidInput: The argument isn't a time, or has no time zone.
    """
    if isinstance(moment, str):
        first, last = parse_span(moment, now)
        return last if end_of_day else first
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise InvalidInput(
            f"{str(moment)[:40]} is not a time; give an aware datetime, or text such as 2024-05-31"
        )
    if moment.tzinfo is None:
        raise InvalidInput(f"{moment.isoformat()} has no time zone; pass a datetime that has one")
    return moment
