"""Times are parsed on input, are aware UTC times in milliseconds inside, and are written in one
format.
"""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.core.times import (
    describe_age,
    from_millis,
    mixes_zones,
    parse_span,
    parse_time,
    to_iso,
    to_millis,
    to_moment,
)
from memories.errors import InvalidInput

NOW = datetime(2026, 2, 21, 10, tzinfo=UTC)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Run on a machine in Berlin."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_time_keeps_its_milliseconds(moment: datetime) -> None:
    stored = from_millis(to_millis(moment))
    assert timedelta(0) <= moment - stored < timedelta(milliseconds=1)
    assert to_millis(stored) == to_millis(moment)
    assert datetime.fromisoformat(to_iso(moment)) == stored


def test_iso_is_utc_with_milliseconds() -> None:
    assert to_iso(NOW) == "2026-02-21T10:00:00.000Z"
    assert (
        to_iso(datetime(2026, 2, 21, 1, 2, 3, 456_789, tzinfo=timezone(timedelta(hours=2))))
        == "2026-02-20T23:02:03.456Z"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-31T12:00:00Z", datetime(2024, 5, 31, 12, tzinfo=UTC)),
        ("2024-05-31T12:00:00+02:00", datetime(2024, 5, 31, 10, tzinfo=UTC)),
        (" 2024-05-31T12:00:00.250Z ", datetime(2024, 5, 31, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("30m", NOW - timedelta(minutes=30)),
        ("5min", NOW - timedelta(minutes=5)),
        ("12h", NOW - timedelta(hours=12)),
        ("7d", NOW - timedelta(days=7)),
        ("3mo", NOW - timedelta(days=90)),
        ("1y", NOW - timedelta(days=365)),
        ("2h ago", NOW - timedelta(hours=2)),
        ("2 w", NOW - timedelta(weeks=2)),
        ("0d", NOW),
        ("now", NOW),
        ("3 days", NOW - timedelta(days=3)),
        ("a Week", NOW - timedelta(weeks=1)),
        ("in 7 days", NOW + timedelta(days=7)),
        ("an hour from now", NOW + timedelta(hours=1)),
    ],
)
def test_times_are_parsed(text: str, expected: datetime) -> None:
    moment, _ = parse_span(text, NOW)
    assert moment == expected
    assert moment.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("7d", "2026-02-28T10:00:00.000Z"),
        ("7 days", "2026-02-28T10:00:00.000Z"),
        ("in 2 weeks", "2026-03-07T10:00:00.000Z"),
        ("2 weeks ago", "2026-02-07T10:00:00.000Z"),
        ("now", "2026-02-21T10:00:00.000Z"),
        ("friday", "2026-02-27T22:59:59.999Z"),
        ("Saturday", "2026-02-28T22:59:59.999Z"),  # today is a Saturday
        ("freitag", "2026-02-27T22:59:59.999Z"),
        ("last friday", "2026-02-20T22:59:59.999Z"),
        ("3 may", "2026-05-03T21:59:59.999Z"),
        ("3 January", "2027-01-03T22:59:59.999Z"),
        ("3 January 2026", "2026-01-03T22:59:59.999Z"),
        ("february", "2026-02-28T22:59:59.999Z"),
        ("29 February", "2028-02-29T22:59:59.999Z"),
        ("this week", "2026-02-22T22:59:59.999Z"),
        ("this month", "2026-02-28T22:59:59.999Z"),
        ("this year", "2026-12-31T22:59:59.999Z"),
        ("tomorrow", "2026-02-22T22:59:59.999Z"),
    ],
)
def test_a_time_in_words_can_be_in_the_future(text: str, last: str, berlin: None) -> None:
    assert to_iso(parse_span(text, NOW, is_ahead=True)[1]) == last


@pytest.mark.usefixtures("berlin")
def test_a_time_without_a_zone_is_local() -> None:
    assert parse_time("2024-07-01T12:00:00") == datetime(2024, 7, 1, 10, tzinfo=UTC)
    assert parse_time("2024-01-01T12:00") == datetime(2024, 1, 1, 11, tzinfo=UTC)


@pytest.mark.usefixtures("berlin")
def test_a_day_means_its_first_or_last_millisecond() -> None:
    assert parse_time("2024-07-01") == datetime(2024, 6, 30, 22, tzinfo=UTC)
    assert parse_time("2024-07-01", end_of_day=True) == datetime(
        2024, 7, 1, 21, 59, 59, 999_000, tzinfo=UTC
    )
    assert parse_time("2024-07-01T00:00:00Z", end_of_day=True) == datetime(2024, 7, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["", "2024-13-01", "0000-01-01", "1e18", "7", "7 x", "3M", "-7d", "9999999d", "999999w"],
)
def test_a_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a date"):
        parse_span(text, NOW)


def test_a_long_invalid_time_is_truncated_in_the_message() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_span("x\x1b" * 5000, NOW)
    assert len(str(caught.value)) < 500
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other", "mixed"),
    [
        ("2026-01-01T10:00", "2026-01-02T10:00Z", True),
        ("2026-01-01T10:00Z", "2026-01-02T10:00", True),
        ("2026-01-01T10:00", "2026-01-02T10:00", False),
        ("2026-01-02T10:00+02:00", " 2026-01-01T10:00 ", True),
        ("2026-01-01T10:00+01:00", "2026-01-02T10:00Z", False),
        ("2026-01-01", "2026-01-02T10:00Z", False),
        ("7d", "2026-01-02T10:00", False),
        ("3 days ago", "2026-01-02T10:00Z", False),
    ],
)
def test_time_zones_are_mixed_if_only_one_time_names_a_zone(
    one: str, other: str, mixed: bool
) -> None:
    assert mixes_zones(one, other) is mixed


@pytest.mark.parametrize(
    ("text", "days"),
    [("2024-05-31", 1), ("20240531", 1), ("2024-W22-5", 1), ("2024-W22", 7), ("2024W22", 7)],
)
def test_a_day_or_week_extends_to_its_end_in_any_notation(text: str, days: int) -> None:
    assert parse_time(text, end_of_day=True) - parse_time(text) == timedelta(
        days=days, milliseconds=-1
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "just now"), (59, "just now"), (60, "1 minute ago"), (7_199, "1 hour ago"),
        (7_200, "2 hours ago"),
        (86_400 * 3, "3 days ago"), (604_800, "1 week ago"), (86_400 * 65, "2 months ago"),
        (86_400 * 800, "2 years ago"),
        (-7_200, "in 2 hours"), (-30, "just now"),
    ],
)  # fmt: skip
def test_ages_are_described_in_words(seconds: int, words: str) -> None:
    assert describe_age(NOW - timedelta(seconds=seconds), NOW) == words


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("last week", "2026-02-09T00:00:00.000Z", "2026-02-15T23:59:59.999Z"),
        ("Yesterday", "2026-02-20T00:00:00.000Z", "2026-02-20T23:59:59.999Z"),
        ("  last   monday ", "2026-02-16T00:00:00.000Z", "2026-02-16T23:59:59.999Z"),
        ("monday", "2026-02-16T00:00:00.000Z", "2026-02-16T23:59:59.999Z"),
        ("3 may", "2025-05-03T00:00:00.000Z", "2025-05-03T23:59:59.999Z"),
        ("may", "2025-05-01T00:00:00.000Z", "2025-05-31T23:59:59.999Z"),
        ("29 February", "2024-02-29T00:00:00.000Z", "2024-02-29T23:59:59.999Z"),
        ("this month", "2026-02-01T00:00:00.000Z", "2026-02-21T23:59:59.999Z"),
        ("2 weeks ago", "2026-02-07T10:00:00.000Z", "2026-02-07T10:00:00.000Z"),
        ("2 DAY", "2026-02-19T10:00:00.000Z", "2026-02-19T10:00:00.000Z"),
        ("3 Min ago", "2026-02-21T09:57:00.000Z", "2026-02-21T09:57:00.000Z"),
        ("1 Day ago", "2026-02-20T10:00:00.000Z", "2026-02-20T10:00:00.000Z"),
        ("an hour ago", "2026-02-21T09:00:00.000Z", "2026-02-21T09:00:00.000Z"),
        ("2024-05-31", "2024-05-31T00:00:00.000Z", "2024-05-31T23:59:59.999Z"),
        ("7d", "2026-02-14T10:00:00.000Z", "2026-02-14T10:00:00.000Z"),
    ],
)
def test_a_time_in_words_is_a_span(
    text: str, first: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert tuple(map(to_iso, parse_span(text, NOW))) == (first, last)
    assert to_iso(to_moment(text, NOW) or NOW) == first
    assert to_iso(to_moment(text, NOW, end_of_day=True) or NOW) == last
    monkeypatch.undo()
    time.tzset()


def test_a_day_in_words_is_a_local_day(berlin: None) -> None:
    assert to_iso(parse_span("yesterday", NOW)[0]) == "2026-02-19T23:00:00.000Z"


@pytest.mark.parametrize(
    "text", ["what was last week", "3 days or so", "may or june", "999999 years ago", "x" * 100_000]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a date or time"):
        parse_span(text, NOW)
