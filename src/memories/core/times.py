"""Times as people and programs write them: read once at the edge, kept as aware UTC, shown in one
form.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo

from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.models import Moment

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DATE_ONLY = re.compile(r"\d{4}-?\d{2}-?\d{2}|\d{4}-?W\d{2}(-?\d)?")
_AGO = re.compile(r"(\d{1,6})\s*(m|min|h|d|w|mo|y)(?:\s+ago)?")
_IN_WORDS = re.compile(r"(\d{1,6}|an?)\s+(minute|hour|day|week|month|year)s?\s+ago", re.IGNORECASE)
_WORD_DAYS = {"month": 30, "year": 365}
_AGO_UNITS = {
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "mo": timedelta(days=_WORD_DAYS["month"]),
    "y": timedelta(days=_WORD_DAYS["year"]),
}
_AGES = (
    (31_557_600, "year"),
    (2_629_800, "month"),
    (604_800, "week"),
    (86_400, "day"),
    (3_600, "hour"),
    (60, "minute"),
)


def to_millis(moment: datetime) -> int:
    """Return an aware time as milliseconds since 1970, the resolution in which times are kept."""
    return (moment - _EPOCH) // _MILLISECOND


def from_millis(millis: int) -> datetime:
    """Return the aware UTC time of milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=millis)


def to_iso(moment: datetime, *, keep_zone: bool = False) -> str:
    """Return a time as JSON shows it: `2026-02-21T10:00:00.000Z`; in its own zone
    `2026-02-21T11:00:00.000+01:00`.
    """
    return (
        (moment if keep_zone else moment.astimezone(UTC))
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def kept(moment: object, name: str) -> datetime:
    """Return an aware time in UTC and in the resolution in which times are kept.

    Args:
        moment: What was given.
        name: What it is, for the message.

    Raises:
        InvalidInput: It is not an aware datetime, or out of the years 1 to 9999.
    """
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidInput(
            f"{name} {shown(str(moment))} is not an aware datetime; give one with a time zone"
        )
    try:
        return from_millis(to_millis(moment.astimezone(UTC)))
    except (OverflowError, ValueError):
        raise InvalidInput(
            f"{name} {moment.isoformat()} is before the year 1 or after 9999"
        ) from None


def parse_time(text: str, now: datetime, *, end_of_day: bool = False) -> datetime:
    """Read a time: `2024-05-31`, ISO 8601, or how long ago (`30m`, `12h`, `7d`, `2w`, `3mo`, `1y`).

    Args:
        text: What was written. Without a time zone it is local time.
        now: The time that "ago" counts from.
        end_of_day: A day means its last millisecond instead of its first.

    Returns:
        An aware UTC time.

    Raises:
        InvalidInput: It is not a time, or out of the years 1 to 9999.
    """
    text = text.strip()
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            return now - int(ago[1]) * _AGO_UNITS[ago[2]]
        moment = datetime.fromisoformat(text)
        if _DATE_ONLY.fullmatch(text) and end_of_day:
            moment += timedelta(days=1, milliseconds=-1)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _not_a_time(text) from None


def parse_span(text: str, now: datetime) -> tuple[datetime, datetime]:
    """Read a time as people write it in a filter: as `parse_time` does, or in words.

    Args:
        text: What was written: `2024-05-31`, `7d`, `last week`, `yesterday`, `3 May`, `2 hours
            ago`. Days are those of local time.
        now: The time that "ago" counts from.

    Returns:
        Its first and its last millisecond, aware, in UTC: of a day or a week they differ.

    Raises:
        InvalidInput: It is not a time, or out of the years 1 to 9999.
    """
    if ago := _IN_WORDS.fullmatch(text.strip()):
        count, unit = int(ago[1]) if ago[1].isdigit() else 1, ago[2].lower()
        length = (
            timedelta(days=_WORD_DAYS[unit]) if unit in _WORD_DAYS else timedelta(**{f"{unit}s": 1})
        )
        try:
            return now - count * length, now - count * length
        except OverflowError:
            raise _not_a_time(text) from None
    try:
        return parse_time(text, now), parse_time(text, now, end_of_day=True)
    except InvalidInput:
        from memories.languages import dates  # which most commands do without

        days = dates.span(text, now.astimezone())
        if days is None:
            raise
        return parse_time(f"{days[0]}", now), parse_time(f"{days[1]}", now, end_of_day=True)


def _not_a_time(text: str) -> InvalidInput:
    return InvalidInput(
        f'not a date or time: "{shown(text)}"; use 2024-05-31, an ISO 8601 time, or how long ago, such as 7d'
    )


def mixes_zones(one: str, other: str) -> bool:
    """Return whether one of two written times names its time zone and the other leaves it open;
    days do neither.
    """
    moments = [text.strip() for text in (one, other)]
    open_ended = [
        not _DATE_ONLY.fullmatch(text) and _reads(text) and zone_of(text) is None
        for text in moments
    ]
    return any(open_ended) and any(zone_of(text) is not None for text in moments)


def parse_time_in_zone(text: str, now: datetime) -> datetime:
    """Read a time as `parse_time` does, and return it in the time zone that it names; in UTC if it
    names none.
    """
    return parse_time(text, now).astimezone(zone_of(text) or UTC)


def zone_of(text: str) -> tzinfo | None:
    """Return the time zone that a written time names; None if it names none."""
    try:
        return datetime.fromisoformat(text.strip()).tzinfo
    except ValueError:
        return None


def _reads(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def describe_age(moment: datetime, now: datetime) -> str:
    """Return how long ago a time is, in words: `just now`, `3 days ago`, `in 2 hours`."""
    seconds = (now - moment).total_seconds()
    for length, unit in _AGES:
        if abs(seconds) >= length:
            count = int(abs(seconds) // length)
            span = f"{count} {unit}{'s' if count > 1 else ''}"
            return f"{span} ago" if seconds > 0 else f"in {span}"
    return "just now"


def asked_at(given: Moment | None, now: datetime) -> datetime:
    """Return when a query is asked, in the time zone of who asks: that of the time given, or local
    time.
    """
    moment = to_moment(given, now, end_of_day=True) or now
    zone = given.tzinfo if isinstance(given, datetime) else zone_of(given or "")
    return moment.astimezone(zone)


def to_moment(given: Moment | None, now: datetime, *, end_of_day: bool = False) -> datetime | None:
    """Return a time that was given as one or as text; None for none.

    Raises:
        InvalidInput: It is not a time, or has no zone.
    """
    if isinstance(given, str):
        return parse_span(given, now)[end_of_day]
    if given is not None and not isinstance(given, datetime):
        raise InvalidInput(
            f"{str(given)[:40]} is not a time; give an aware datetime, or text such as 2024-05-31"
        )
    if given is not None and given.tzinfo is None:
        raise InvalidInput(f"{given.isoformat()} has no time zone; give an aware datetime")
    return given
