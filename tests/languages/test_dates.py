"""Dates in questions: the days that they mean, and how close a time is to them."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.languages import dates
from memories.languages.dates import (
    DAYS_AFTER,
    DAYS_BEFORE,
    WIDTH_SHARE,
    Span,
    asks_when,
    closeness,
    overlap,
    spans,
    tells_time,
)
from tables import failures_of

NOW = datetime(2026, 2, 21, 10, tzinfo=UTC)  # a Saturday
YEARS = (2023, 2025)


def spans_of(text: str, now: datetime = NOW, years: Sequence[int] = YEARS) -> list[str]:
    """Return the spans of a text as `first/last`, or as one day if both are equal."""
    return [
        f"{first}" if first == last else f"{first}/{last}"
        for first, last in spans(text, now, years)
    ]


def only(text: str, now: datetime = NOW) -> str:
    """Return the only span of a text, or all if there are several or none."""
    return ", ".join(spans_of(text, now))


def close(moment: date, *query_span: Span) -> float:
    """Return how close a day is to spans."""
    return float(closeness(np.array([moment.toordinal()]), query_span)[0])


def test_dates_with_a_year_are_read() -> None:
    rows = [
        ("What happened on 2023-05-07?", "2023-05-07"),
        ("2023/5/7", "2023-05-07"),
        ("5 May 2023", "2023-05-05"),
        ("the 5th of May, 2023", "2023-05-05"),
        ("May 5, 2023", "2023-05-05"),
        ("MAY 5TH 2023", "2023-05-05"),
        ("on the 3rd of march 2023", "2023-03-03"),
        ("Sept. 2nd 2023", "2023-09-02"),
        ("dec 25th, 2023", "2023-12-25"),
        ("29 February 2024", "2024-02-29"),
        ("May 2023", "2023-05-01/2023-05-31"),
        ("May of 2023", "2023-05-01/2023-05-31"),
        ("during February, 2024", "2024-02-01/2024-02-29"),
        ("December 2023", "2023-12-01/2023-12-31"),
        ("what was planned for 2023?", "2023-01-01/2023-12-31"),
        ("in 1999", "1999-01-01/1999-12-31"),
    ]
    assert failures_of(rows, only) == []


def test_a_date_without_a_year_has_a_span_in_each_year() -> None:
    rows = [
        ("5 May", ["2023-05-05", "2025-05-05"]),
        ("on March 3rd", ["2023-03-03", "2025-03-03"]),
        ("in May", ["2023-05-01/2023-05-31", "2025-05-01/2025-05-31"]),
        ("in mid-May", ["2023-05-01/2023-05-31", "2025-05-01/2025-05-31"]),
        ("early December", ["2023-12-01/2023-12-31", "2025-12-01/2025-12-31"]),
    ]
    assert failures_of(rows, spans_of) == []


def test_a_leap_day_has_spans_in_leap_years_only() -> None:
    assert spans("29 February", NOW, range(2023, 2027)) == [(date(2024, 2, 29), date(2024, 2, 29))]


def test_without_years_a_date_without_a_year_has_no_span() -> None:
    assert spans("on 5 May, or in June", NOW, ()) == []


def test_relative_dates_count_from_now() -> None:
    rows = [
        ("what did we do today?", "2026-02-21"),
        ("this morning", "2026-02-21"),
        ("yesterday", "2026-02-20"),
        ("last night", "2026-02-20"),
        ("the day before yesterday", "2026-02-19"),
        ("two days ago", "2026-02-19"),
        ("a day ago", "2026-02-20"),
        ("12 days ago", "2026-02-09"),
        ("a week ago", "2026-02-11/2026-02-17"),
        ("a couple of weeks ago", "2026-02-04/2026-02-10"),
        ("two months ago", "2025-12-08/2026-01-07"),
        ("one year ago", "2024-08-25/2025-08-20"),
        ("last three weeks", "2026-01-31/2026-02-21"),
        ("the past few days", "2026-02-18/2026-02-21"),
        ("the previous two months", "2025-12-23/2026-02-21"),
        ("last week", "2026-02-09/2026-02-15"),
        ("LAST  WEEKEND", "2026-02-14/2026-02-15"),
        ("last month", "2026-01-01/2026-01-31"),
        ("last year", "2025-01-01/2025-12-31"),
        ("this week", "2026-02-16/2026-02-21"),
        ("this month", "2026-02-01/2026-02-21"),
        ("this year", "2026-01-01/2026-02-21"),
        ("last Friday", "2026-02-20"),
        ("since Monday", "2026-02-16"),
        ("on saturday", "2026-02-14"),
        ("tomorrow", "2026-02-22"),
        ("next week", "2026-02-23/2026-03-01"),
        ("next weekend", "2026-02-28/2026-03-01"),
        ("next month", "2026-03-01/2026-03-31"),
        ("NEXT year", "2027-01-01/2027-12-31"),
        ("next Saturday", "2026-02-28"),
        ("the coming Friday", "2026-02-27"),
        ("next Sunday", "2026-02-22"),
        ("in three days", "2026-02-24"),
        ("in a week", "2026-02-25/2026-03-03"),
        ("in two months", "2026-04-07/2026-05-07"),
        ("what did we talk about recently?", "2026-02-07/2026-02-21"),
        ("lately", "2026-02-07/2026-02-21"),
    ]
    assert failures_of(rows, only) == []


def test_months_and_years_end_on_the_right_day() -> None:
    rows = [
        ("last month", datetime(2024, 3, 31, tzinfo=UTC), "2024-02-01/2024-02-29"),
        ("last month", datetime(2026, 1, 31, tzinfo=UTC), "2025-12-01/2025-12-31"),
        ("yesterday", datetime(2026, 1, 1, tzinfo=UTC), "2025-12-31"),
        ("this week", datetime(2026, 2, 16, tzinfo=UTC), "2026-02-16"),
        ("last week", datetime(2026, 2, 16, tzinfo=UTC), "2026-02-09/2026-02-15"),
        ("last weekend", datetime(2026, 2, 22, tzinfo=UTC), "2026-02-14/2026-02-15"),
        ("last Monday", datetime(2026, 2, 16, tzinfo=UTC), "2026-02-09"),
        ("this year", datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01"),
        ("next month", datetime(2026, 1, 31, tzinfo=UTC), "2026-02-01/2026-02-28"),
        ("next month", datetime(2026, 12, 1, tzinfo=UTC), "2027-01-01/2027-01-31"),
        ("next week", datetime(2026, 2, 22, tzinfo=UTC), "2026-02-23/2026-03-01"),
        ("next Monday", datetime(2026, 2, 16, tzinfo=UTC), "2026-02-23"),
        ("tomorrow", datetime(2026, 12, 31, 23, 59, tzinfo=UTC), "2027-01-01"),
    ]
    assert failures_of(rows, only) == []


def test_any_space_separates_words() -> None:
    rows = [
        (words.replace(" ", space), spans_of(words))
        for words in ("last week", "in May 2023", "two days ago", "past few days", "last Friday")
        for space in ("  ", "\n", "\t", "\u00a0")
    ]
    rows += [
        (words, spans_of(" ".join(words.split())))
        for words in ("this\nweek", "this\tmonth", "on\u00a0Friday", "in\ntwo weeks")
    ]
    assert [expected for _, expected in rows if not expected] == []
    assert failures_of(rows, spans_of) == []


def test_past_spans_end_now_at_the_latest() -> None:
    texts = (
        "a week ago",
        "two weeks ago",
        "last 2 years",
        "this week",
        "recently",
        "this month",
        "0 weeks ago",
    )
    for text in texts:
        spans_of = spans(text, NOW, YEARS)
        assert spans_of, text
        assert max(last for _, last in spans_of) <= NOW.date()


def test_words_that_are_not_dates_have_no_span() -> None:
    texts = [
        "", "May I ask you something?", "march on", "I may", "they march, and sing", "42",
        "3 of 17", "19.99", "20230507", "a 2000m run", "room 1800", "2100", "Friday", "next",
        "the next day", "an hour ago", "in an hour",
        "weeks ago", "the last cookie", "thisweek", "dismay 5", "yesterdays", "Augusta 3",
    ]  # fmt: skip
    assert failures_of([(text, []) for text in texts], spans_of) == []


def test_impossible_dates_have_no_span() -> None:
    days = ["30 February", "February 30, 2023", "2023-02-30", "31 April 2023", "May 32", "40 May"]
    months_and_days = ["2023-13-05", "2023-00-05", "0 May 2023", "May 0, 2023"]
    assert failures_of([(text, []) for text in days + months_and_days], spans_of) == []


def test_an_iso_time_means_its_day() -> None:
    assert spans_of("what was said at 2023-05-07T10:30:00Z?") == ["2023-05-07"]


def test_any_number_that_looks_like_a_year_counts_as_one() -> None:
    """A known limit: `1999 dollars` counts as a year, which adds only a little closeness."""
    assert spans_of("who paid 1999 dollars?") == ["1999-01-01/1999-12-31"]


def test_several_dates_have_one_span_each() -> None:
    rows = [
        ("from 1 May 2023 to 3 June 2023", ["2023-05-01", "2023-06-03"]),
        ("yesterday or last week", ["2026-02-20", "2026-02-09/2026-02-15"]),
        ("in 2023 and 2024, and again in 2023", ["2023-01-01/2023-12-31", "2024-01-01/2024-12-31"]),
        ("yesterday, that is 2026-02-20", ["2026-02-20"]),
    ]
    assert failures_of(rows, spans_of) == []


def test_a_day_with_a_year_is_not_read_as_a_whole_year_too() -> None:
    assert spans_of("on 5 May 2023 and in June 2023") == ["2023-05-05", "2023-06-01/2023-06-30"]


def test_a_date_alone_has_at_most_sixty_characters() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    assert dates.span("3 May" + " " * 55, now) == (date(2026, 5, 3), date(2026, 5, 3))
    assert dates.span("3 May" + " " * 56, now) is None


def test_the_first_and_last_possible_days_work() -> None:
    texts = [
        "yesterday", "the day before yesterday", "999 years ago", "last 999 years", "last week",
        "last weekend", "last month", "last year", "this week", "this month", "this year",
        "last Friday", "recently", "a week ago", "31 December", "in December", "29 February",
        "tomorrow", "next week", "next weekend", "next month", "next year",
        "next Friday", "in 999 years", "in two weeks",
    ]  # fmt: skip

    def are_in_order(text: str, day: str) -> bool:
        now = datetime.fromisoformat(f"{day}T00:00Z")
        query_span = spans(text, now, (0, 1, 9999, 10_000))
        return all(span[0] <= span[1] and 0 < close(now.date(), span) <= 1 for span in query_span)

    days = ["0001-01-01", "0001-01-08", "9999-01-01", "9999-12-31"]
    assert failures_of([(text, day, True) for text in texts for day in days], are_in_order) == []


_PIECES = (
    *"may march sept. aug 5 5th 31 0 99 1999 2023 2023-05-07 last past this on in of ago "
    "the a couple few".split(),
    *"week weeks month year day weekend friday sunday yesterday recently twelve - / , . "
    "9999 ٣ ² 年 é".split(),
    "day before yesterday", "couple of", "next", "coming", "tomorrow", "\u200b", "\n", "\x00",
)  # fmt: skip


@given(
    st.text() | st.lists(st.sampled_from(_PIECES)).map(" ".join),
    st.datetimes(timezones=st.just(UTC)),
    st.lists(st.integers(0, 10_000), max_size=3),
)
def test_every_text_has_spans_that_can_be_compared(
    text: str, now: datetime, years: list[int]
) -> None:
    for first, last in spans(text, now, years):
        assert first <= last
    assert asks_when(text) in {True, False}
    assert tells_time(text) in {True, False}


def test_dates_with_letters_that_fold_to_i_and_s_are_not_read() -> None:
    """A Turkish keyboard writes APRİL; `re.IGNORECASE` treats its İ as an i, and `lower` does
    not.
    """
    texts = ["APRİL 3", "in auguſt", "last ſunday", "fİve days ago"]
    assert failures_of([(text, []) for text in texts], spans_of) == []


# --- closeness

DAY = date(2023, 5, 10)
MAY = (date(2023, 5, 1), date(2023, 5, 31))


def test_days_inside_a_span_have_closeness_one() -> None:
    assert [close(date(2023, 5, day), MAY) for day in (1, 10, 31)] == [1.0, 1.0, 1.0]


def test_beyond_one_day_closeness_follows_the_formula() -> None:
    formula = {
        0: 1.0,
        1: (1 + 1 / 7.25) ** -2,
        -1: (1 + 1 / 3.25) ** -2,
        14: (1 + 14 / 7.25) ** -2,
        -365: (1 + 365 / 3.25) ** -2,
    }
    assert {days: close(DAY + timedelta(days), (DAY, DAY)) for days in formula} == pytest.approx(
        formula
    )


def test_wider_spans_reach_further() -> None:
    assert close(date(2023, 4, 30), MAY) == pytest.approx((1 + 1 / (3 + 7.75)) ** -2)
    assert close(date(2023, 6, 10), MAY) == pytest.approx((1 + 10 / (7 + 7.75)) ** -2)


def test_closeness_at_the_limit_of_the_reach_is_one_quarter() -> None:
    """The width of the day itself adds a little."""
    width = WIDTH_SHARE * 8
    assert close(DAY - timedelta(DAYS_BEFORE + width), (DAY, DAY + timedelta(7))) == pytest.approx(
        0.25
    )
    assert close(
        DAY + timedelta(7 + DAYS_AFTER + width), (DAY, DAY + timedelta(7))
    ) == pytest.approx(0.25)
    assert 0.25 < close(DAY - timedelta(DAYS_BEFORE), (DAY, DAY)) < 0.28
    assert 0.25 < close(DAY + timedelta(DAYS_AFTER), (DAY, DAY)) < 0.27


@given(st.integers(1, 4000))
def test_a_later_day_is_closer_than_an_equally_distant_earlier_day(days: int) -> None:
    assert close(DAY + timedelta(days), (DAY, DAY)) > close(DAY - timedelta(days), (DAY, DAY))


def test_closeness_never_rises_with_distance() -> None:
    for span in ((DAY, DAY), MAY, (date(2023, 1, 1), date(2023, 12, 31))):
        first, last = (day.toordinal() for day in span)
        before = closeness(np.arange(first - 2000, first + 1), [span])
        after = closeness(np.arange(last, last + 2000), [span])
        assert np.all(np.diff(before) > 0)
        assert np.all(np.diff(after) < 0)
        assert before[-1] == after[0] == 1.0
        assert min(before.min(), after.min()) > 0


def test_the_nearest_of_several_spans_counts() -> None:
    other = (date(2025, 5, 10), date(2025, 5, 10))
    assert close(date(2025, 5, 10), (DAY, DAY), other) == 1.0
    assert close(date(2025, 5, 8), (DAY, DAY), other) == close(date(2025, 5, 8), other)


def test_closeness_without_days_is_empty() -> None:
    assert closeness(np.array([], dtype=np.int64), [MAY]).shape == (0,)


# --- overlap

YEAR = (date(2023, 1, 1), date(2023, 12, 31))
WEEK = (date(2023, 5, 8), date(2023, 5, 14))


def agreement(text_span: Span, query_span: Span) -> float:
    """Return the overlap of a span of a text with one of a question."""
    return overlap([text_span], [query_span])


def test_overlap_follows_the_formula() -> None:
    rows = [
        ((DAY, DAY), (DAY, DAY), 1.0),
        ((DAY, DAY), MAY, 1.0),
        ((DAY, DAY), YEAR, 1.0),
        (
            WEEK,
            (DAY, DAY),
            1.0,
        ),  # a week is narrow if it is only a day or two wider than the span meant
        (MAY, (DAY, DAY), (1 + 7) / 31),
        (YEAR, MAY, (31 + 7) / 365),
        ((DAY, DAY), (date(2023, 5, 14), date(2023, 5, 14)), (1 + 4 / 2.25) ** -2),
        ((date(2023, 5, 14), date(2023, 5, 14)), (DAY, DAY), (1 + 4 / 2.25) ** -2),
        (MAY, (date(2023, 6, 2), date(2023, 6, 2)), (8 / 31) * (1 + 2 / 2.25) ** -2),
        ((date(2023, 6, 5), date(2023, 6, 5)), MAY, (1 + 5 / (2 + 31 / 4)) ** -2),
    ]
    assert (
        failures_of(
            [
                (text_span, query_span, pytest.approx(share))
                for text_span, query_span, share in rows
            ],
            agreement,
        )
        == []
    )


def test_overlap_is_the_maximum_over_all_pairs() -> None:
    assert (
        overlap([(date(2020, 1, 1), date(2020, 1, 1)), (DAY, DAY)], [YEAR, WEEK, (DAY, DAY)]) == 1.0
    )
    assert overlap([MAY, WEEK], [(DAY, DAY)]) == overlap([WEEK], [(DAY, DAY)])


def test_overlap_without_spans_is_zero() -> None:
    assert overlap([], [MAY]) == overlap([MAY], []) == overlap([], []) == 0.0


@given(st.dates(), st.integers(0, 800), st.dates(), st.integers(0, 800))
def test_overlap_is_between_0_and_1(
    text_span: date, wide: int, query_span: date, wider: int
) -> None:
    def span(first: date, days: int) -> Span:
        return first, date.fromordinal(min(date.max.toordinal(), first.toordinal() + days))

    spans_of = overlap([span(text_span, wide)], [span(query_span, wider)])
    assert 0 < spans_of <= 1
    assert overlap([span(text_span, wide)], [span(text_span, wide)]) == 1.0


def test_overlap_falls_faster_than_closeness() -> None:
    for shift in (1, 5, 40, -1, -5, -40):
        moved = DAY + timedelta(shift)
        assert overlap([(moved, moved)], [(DAY, DAY)]) < close(moved, (DAY, DAY)), shift


# --- questions and texts


def test_questions_about_a_time_are_recognized() -> None:
    rows = [
        ("When did she move?", True),
        ("  … when?", True),
        ("SINCE WHEN do they live there?", True),
        ("How long did it take?", True),
        ("On which day was it?", True),
        ("What year was that?", True),
        ("in which months?", True),
        ("What did Ann do when it rained?", False),
        ("Whenever you like", False),
        ("What is the time zone?", False),
        ("which daylight lamp?", False),
        ("How many days?", False),
        ("", False),
    ]
    assert failures_of(rows, asks_when) == []


def test_texts_that_mention_a_time_are_recognized() -> None:
    rows = [
        ("We met yesterday", True),
        ("LAST year, in the mountains", True),
        ("three weeks ago", True),
        ("on Sunday", True),
        ("It was in 2023", True),
        ("my birthday", True),
        ("I just came home", True),
        ("You may come in", False),
        ("It weighs 3000 grams", False),
        ("The sundays of life", False),
        ("A red bicycle!", False),
        ("", False),
    ]
    assert failures_of(rows, tells_time) == []


def test_once_misread_months_and_days_are_read_correctly() -> None:
    rows = [
        ("last May", ["2024-05-01/2024-05-31"]),
        ("last December", ["2023-12-01/2023-12-31"]),
        ("last June", ["2023-06-01/2023-06-30"]),
        ("June last year", ["2023-06-01/2023-06-30"]),
        ("April this year", ["2024-04-01/2024-04-30"]),
        ("in 2023-05", ["2023-05-01/2023-05-31"]),
        ("the day after tomorrow", ["2024-06-14"]),
        ("how this may work", []),
        ("that and may be", []),
        ("to march on", []),
        ("between April and May", ["2024-04-01/2024-04-30", "2024-05-01/2024-05-31"]),
    ]
    now = datetime(2024, 6, 12, tzinfo=UTC)
    assert failures_of(rows, lambda text: sorted(spans_of(text, now, [2024]))) == []
