"""The policy stores and refuses memories; `test_gateway` shows its limit over stored memories."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from memories import MemoryPolicy
from memories.context.policy import window_key
from memories.errors import InvalidInput


def test_ac_func_005_only_memories_with_enough_confidence_are_stored() -> None:
    policy = MemoryPolicy(min_confidence=0.7)
    assert [policy.should_store("fact", sure) for sure in (0.0, 0.69, 0.7, 0.71, 1.0, 1)] == [
        False
    ] * 2 + [True] * 4


def test_ac_conf_004_the_minimum_confidence_can_be_changed() -> None:
    assert [MemoryPolicy(least).should_store("fact", 0.5) for least in (0.0, 0.5, 0.51, 1.0)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("sure", [math.nan, math.inf, -0.1, 1.01, "0.9", None, True])
def test_an_invalid_confidence_is_not_stored(sure: Any) -> None:
    assert MemoryPolicy(0.0).should_store("fact", sure) is False


def test_the_four_types_are_stored_and_no_others() -> None:
    policy = MemoryPolicy()
    for kind in ("preference", "fact", "project", "decision"):
        assert policy.validate_memory_type(kind)
        assert policy.should_store(kind, 0.9)
    for kind in ("observation", "Fact", "", " fact"):
        assert not policy.validate_memory_type(kind)
        assert not policy.should_store(kind, 0.9)


def test_ac_func_006_each_window_has_its_own_limit() -> None:
    policy = MemoryPolicy(max_per_window=3)
    assert [policy.enforce_rate_limit("a") for _ in range(5)] == [True, True, True, False, False]
    assert policy.enforce_rate_limit("b")


def test_a_limit_of_zero_allows_nothing() -> None:
    assert not MemoryPolicy(max_per_window=0).enforce_rate_limit("a")


def test_a_limit_on_stored_memories_follows_their_count() -> None:
    stored = {"a": 2}
    policy = MemoryPolicy(0.7, 3, lambda window: stored.get(window, 0))
    assert [policy.enforce_rate_limit("a") for _ in range(5)] == [
        True
    ] * 5  # asking changes nothing
    stored["a"] = 3
    assert not policy.enforce_rate_limit("a")
    assert policy.enforce_rate_limit("b")


def test_only_the_least_recently_used_windows_are_forgotten() -> None:
    policy = MemoryPolicy(max_per_window=1)
    policy.enforce_rate_limit("first")
    for number in range(999):
        policy.enforce_rate_limit(str(number))
    assert not policy.enforce_rate_limit("first")  # asked for again, so it counts as recent
    for number in range(1000, 1999):
        policy.enforce_rate_limit(str(number))
    assert not policy.enforce_rate_limit("first")
    assert len(policy._allowed) == 1000


@pytest.mark.parametrize("least", [-0.1, 1.1, math.nan, "0.7", None])
def test_an_invalid_minimum_confidence_is_refused(least: Any) -> None:
    with pytest.raises(InvalidInput, match="min_confidence must be a number from 0 to 1"):
        MemoryPolicy(min_confidence=least)


@pytest.mark.parametrize("most", [-1, 1.5, "3", True])
def test_an_invalid_limit_is_refused(most: Any) -> None:
    with pytest.raises(ValueError, match="max_per_window must be a whole number"):
        MemoryPolicy(max_per_window=most)


def test_a_window_is_a_conversation_and_an_hour() -> None:
    at = datetime(2026, 5, 31, 10, 59, 59, tzinfo=UTC)
    assert window_key("c", at) == "c@2026-05-31T10:00Z"
    assert (
        window_key("c", at.astimezone(timezone(timedelta(hours=5, minutes=30))))
        == "c@2026-05-31T10:00Z"
    )
    assert window_key("c", at + timedelta(seconds=1)) == "c@2026-05-31T11:00Z"
    assert window_key(None, at, timedelta(days=1)) == "@2026-05-31T00:00Z"


def test_all_spellings_of_a_conversation_give_the_same_window() -> None:
    at = datetime(2026, 5, 31, 10, tzinfo=UTC)
    assert (
        window_key("cafe\u0301", at)
        == window_key(" caf\u00e9\n", at)
        == "caf\u00e9@2026-05-31T10:00Z"
    )
    assert window_key("", at) == window_key(None, at)


@pytest.mark.parametrize("name", [" ", "a\nb", "a\0b", "\ud800", "x" * 257, 3])
def test_an_invalid_conversation_has_no_window(name: Any) -> None:
    with pytest.raises(InvalidInput, match="conversation_id"):
        window_key(name, datetime(2026, 5, 31, tzinfo=UTC))
