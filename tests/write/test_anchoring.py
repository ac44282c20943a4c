"""A time span sets the validity of a memory, and the date of its next confirmation."""

from datetime import UTC, datetime, timedelta

import pytest

from memories.errors import InvalidInput
from memories.write.anchoring import MAX_RECHECK_DAYS, parse_recheck, parse_valid_until
from tables import failures_of

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_a_confirmation_is_due_after_a_span_of_days() -> None:
    rows: list[tuple[str | int | None, int | None]] = [
        (None, None),
        ("", 0),
        (" ", 0),
        (0, 0),
        ("0d", 0),
        ("90 days", 90),
        ("a week", 7),
        ("1d", 1),
        (" 12w ", 84),
        ("3 mo", 90),
        ("1y", 365),
        (MAX_RECHECK_DAYS, MAX_RECHECK_DAYS),
        (f"{MAX_RECHECK_DAYS}d", MAX_RECHECK_DAYS),
    ]
    assert failures_of(rows, parse_recheck) == []


@pytest.mark.parametrize(
    "span", [-1, True, "-1d", MAX_RECHECK_DAYS + 1, f"{MAX_RECHECK_DAYS + 1}d", "1h", "d", "soon"]
)
def test_an_invalid_span_is_refused(span: str | int) -> None:
    with pytest.raises(InvalidInput, match="recheck must be a time span"):
        parse_recheck(span)


def test_a_memory_is_valid_until_the_end_of_a_day_or_for_a_span() -> None:
    rows = [
        (None, NOW, None),
        ("", NOW, ""),
        (" ", NOW, ""),
        ("90d", NOW, NOW + timedelta(days=90)),
        ("in 7 days", NOW, NOW + timedelta(days=7)),
        (" 2w ", NOW, NOW + timedelta(days=14)),
        ("12h", NOW, NOW + timedelta(hours=12)),
        ("30 min", NOW, NOW + timedelta(minutes=30)),
        ("1mo", NOW, NOW + timedelta(days=30)),
        ("1y", NOW, NOW + timedelta(days=365)),
        (NOW, NOW, NOW),
        ("2026-06-01T10:00Z", NOW, datetime(2026, 6, 1, 10, tzinfo=UTC)),
    ]
    assert failures_of(rows, parse_valid_until) == []
    friday = parse_valid_until("friday", datetime(2026, 5, 4, 12, tzinfo=UTC))
    assert isinstance(friday, datetime) and friday.astimezone().strftime("%F %H") == "2026-05-08 23"
    assert parse_valid_until("2026-06-01", NOW) > datetime(2026, 6, 1, 23, 59, tzinfo=UTC)
    for text in ("soon", "99999y"):
        with pytest.raises(InvalidInput, match=f'"{text}"; use .* a span from now, such as 90d'):
            parse_valid_until(text, NOW)
