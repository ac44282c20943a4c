"""Ids are UUIDv7 in the order of creation, and are recognized in shortened forms."""

import os
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from memories.core import ids
from memories.core.ids import ID_LENGTH, id_prefix, new_id, parse_id, same_id, short_form, whole_id
from memories.errors import InvalidInput

NOW = datetime(2026, 2, 21, 10, 0, 0, 123_000, tzinfo=UTC)


def test_an_id_is_a_version_7_uuid() -> None:
    for _ in range(200):
        text = new_id(NOW)
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert len(text) == ID_LENGTH
        assert parsed.variant == uuid.RFC_4122
        assert parsed.version == 7
        assert parsed.int >> 80 == int(NOW.timestamp() * 1000)


def test_ids_from_the_same_millisecond_increase_even_when_times_alternate() -> None:
    ids = [new_id(NOW + timedelta(days=step % 3)) for step in range(3_000)]
    for day in range(3):
        assert ids[day::3] == sorted(set(ids[day::3]))


def test_a_thousand_ids_from_the_same_millisecond_have_different_prefixes() -> None:
    for day in range(40):
        ids = [new_id(NOW + timedelta(days=900 + day)) for _ in range(1_000)]
        assert ids == sorted(ids)
        assert len({memory_id[:18] for memory_id in ids}) == 1_000


def test_concurrent_threads_get_increasing_unique_ids() -> None:
    with ThreadPoolExecutor(8) as threads:
        batches = list(threads.map(lambda _: [new_id(NOW) for _ in range(500)], range(8)))
    assert all(batch == sorted(batch) for batch in batches)
    assert len({memory_id for batch in batches for memory_id in batch}) == 8 * 500


def test_a_forked_child_does_not_repeat_ids_of_its_parent() -> None:
    before = new_id(NOW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking while threads exist
        ours, its = os.pipe()
        child = os.fork()
    if child == 0:
        os.write(its, new_id(NOW).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(ours, 100).decode()
    assert theirs not in (before, new_id(NOW))
    assert (
        abs(uuid.UUID(theirs).int - uuid.UUID(before).int) > 1 << 40
    )  # not the next ids of the same sequence
    os.close(ours)
    os.close(its)


def test_every_random_bit_of_an_id_varies() -> None:
    ids = [uuid.UUID(new_id(NOW + timedelta(milliseconds=step))).int for step in range(400)]
    assert len(set(ids)) == 400
    seen_one = seen_zero = 0
    for value in ids:
        seen_one |= value
        seen_zero |= ~value
    random_bits = (0xFFF << 64) | ((1 << 62) - 1)
    assert seen_one & seen_zero & ((1 << 80) - 1) == random_bits


def test_the_order_of_ids_is_the_order_of_creation() -> None:
    ids = [new_id(NOW + timedelta(milliseconds=step)) for step in range(100)]
    assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("moment", "millis"),
    [
        (datetime(1969, 12, 31, tzinfo=UTC), 0),
        (datetime(1, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime.max.replace(tzinfo=UTC), 253_402_300_799_999),
    ],
)
def test_any_time_can_be_encoded_in_an_id(moment: datetime, millis: int) -> None:
    assert uuid.UUID(new_id(moment)).int >> 80 == millis


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("01a1fdf1-92cd-72f2-8000-0123456789ab", "01a1fdf1-92cd-72f2-8000-0123456789ab"),
        (" 01A1FDF1-92CD-72F2-8000-0123456789AB\n", "01a1fdf1-92cd-72f2-8000-0123456789ab"),
        ("01a1fdf192cd72f280000123456789ab", "01a1fdf1-92cd-72f2-8000-0123456789ab"),
        ("01a1fdf1", "01a1fdf1"),
        ("01a1fdf1-", "01a1fdf1"),
        ("01a1fdf1-92c", "01a1fdf1-92c"),
        ("01a1fdf192cd72f2", "01a1fdf1-92cd-72f2"),
    ],
)
def test_ids_and_prefixes_are_parsed_in_any_spelling(written: str, read: str) -> None:
    assert parse_id(written) == read


@pytest.mark.parametrize(
    "text", ["", "01a1fdf", "01a1fdfg", "a" * 33, "x" * 36, "01a1fdf1_92cd", "０１ａ１ｆｄｆ１"]
)
def test_a_text_that_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a memory id"):
        parse_id(text)


@pytest.mark.parametrize("text", ["ID", "Stand-Up#3"])
def test_an_error_quotes_an_id_as_typed(text: str) -> None:
    with pytest.raises(InvalidInput, match=f'^"{text}" is'):
        parse_id(text)


@pytest.mark.parametrize("text", ["standup#3", "Über uns #2#0"])
def test_the_id_of_a_turn_is_recognized(text: str) -> None:
    with pytest.raises(InvalidInput, match="is the id of a turn, not of a memory"):
        parse_id(text)


def test_a_repeatable_id_is_the_same_each_time() -> None:
    at = datetime(2026, 5, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    ids = [same_id(at, "ann/k1", number) for number in range(1_000)]
    assert ids == [same_id(at, "ann/k1", number) for number in range(1_000)]
    assert len({memory_id[:18] for memory_id in ids}) == 1_000
    assert [whole_id(memory_id) for memory_id in ids] == ids == sorted(ids)
    assert all(memory_id.startswith(id_prefix(at)) for memory_id in ids)
    assert same_id(at, "ann/k2", 0) not in ids


@pytest.mark.parametrize(
    "wrong",
    [
        "01a1fdf1-92cd-4000-8000-000000000001",  # another version
        "01a1fdf1-92cd-7000-7000-000000000001",  # another variant
        "01a1fdf1-92cd-7000-c000-000000000001",
        "01a1fdf1-92cd-7000-8000-00000000000",
    ],
)
def test_a_foreign_id_must_be_a_complete_version_7_uuid(wrong: str) -> None:
    assert whole_id("01A1FDF192CD7000B000000000000001") == "01a1fdf1-92cd-7000-b000-000000000001"
    with pytest.raises(InvalidInput, match="is not a memory id, which must be a UUIDv7"):
        whole_id(wrong)


def test_the_short_form_of_an_id_can_be_parsed() -> None:
    for when in (
        datetime(1970, 1, 1, tzinfo=UTC),
        NOW,
        datetime(2999, 12, 31, 23, 59, tzinfo=UTC),
    ):
        for memory_id in (new_id(when), new_id(when)):
            assert short_form(memory_id).startswith(f"{when:%Y%m%d}-")
            assert parse_id(f" {short_form(memory_id)} ") == memory_id[:18]


@pytest.mark.parametrize(
    "other", ["20261399-000000000000", "20261101-999999990000", "20261101-000000009999"]
)
def test_digits_that_are_not_a_date_are_parsed_as_an_id_prefix(other: str) -> None:
    assert parse_id(other).replace("-", "") == other.replace("-", "")


@pytest.mark.parametrize(
    "foreign",
    ["mem_7", "0f9619ff-8b86-4011-b42d-00cf4fc964ff", "ffffffff-ffff-7fff-bfff-ffffffffffff"],
)
def test_an_id_from_another_program_has_no_short_form(foreign: str) -> None:
    assert short_form(foreign) == foreign


def test_the_number_of_remembered_milliseconds_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ids, "_REMEMBERED", 2)
    counter = ids._Counter()
    for millis in (1, 2, 1, 3, 3):
        counter.next(millis)
    assert [*counter._last] == [2, 3]
