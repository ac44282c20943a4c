"""`memory stats`, and the events that commands record."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.core import events

Command = Callable[..., Any]
Store = Callable[..., str]


def recorded_events(home: Path) -> list[tuple[str, str]]:
    """Return the recorded events with their outcomes."""
    return [(event["op"], event["outcome"]) for event in events.read(home)]


def test_each_command_is_recorded_once_without_texts(
    memory: Command, stored: Store, home: Path
) -> None:
    one = stored("the sky is blue", "--project", "sky-blue-shop")
    memory("search", "sky-secret-question")
    memory("get", one)
    memory("get", "01a1fdf1-92cd-72f2-8000-000000000000")
    memory("export", "-o", "x.jsonl")
    memory("--help")
    assert recorded_events(home) == [
        ("create", "ok"), ("search", "ok"), ("get", "ok"), ("get", "NotFound"), ("export", "ok"),
    ]  # fmt: skip
    text = (home / "events.jsonl").read_text()
    assert not any(word in text for word in ("sky", "blue", "secret-question", one[:8]))


def test_a_setting_disables_events_or_adds_content_to_them(memory: Command, home: Path) -> None:
    memory("create", "nothing of this", env={"MEMORY_EVENTS": "off"})
    assert not (home / "events.jsonl").exists()
    token = "ghp_" + "a1B2" * 9
    memory("search", f"where is {token}", env={"MEMORY_EVENTS": "content"})
    [event] = events.read(home)
    assert event["content"].startswith("where is ")
    assert token not in (home / "events.jsonl").read_text()
    assert memory("list", env={"MEMORY_EVENTS": "some"}).code == 2


def test_the_content_of_an_event_is_a_query_or_a_text_but_never_an_id(
    memory: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_EVENTS", "content")
    one = memory("create", "the sky is blue").json["id"]
    memory("get", one)
    memory("update", one, "the sky is red")
    memory("search", "which sky?")
    memory("turns", "add", "standup", "We ship")
    memory("turns", "show", "standup")
    memory("delete", one)
    memory("forget", "--yes", one)
    contents = [event["content"] for event in events.read(home) if "content" in event]
    assert contents == ["the sky is blue", "the sky is red", "which sky?", "We ship"]


def test_stats_can_be_printed_in_every_format(memory: Command, stored: Store) -> None:
    one = stored("the sky is blue\nand\twide")
    memory("get", one)
    shape = memory("stats").json
    assert shape["memory_count"] == 1
    assert [used["id"] for used in shape["most_used"]] == [one]
    assert {operation["name"] for operation in shape["operations"]} == {"create", "get"}
    text = memory("stats", "--format", "text").out
    assert "memories per day" in text
    assert "the sky is blue and wide" in text
    compact = memory("stats", "--format", "compact").out
    assert "memories per day" not in compact
    assert memory("stats", "--since", "nonsense").code == 2
    assert memory("stats", "--since", "1d", "--no-shared", "-n", "bob").json["memory_count"] == 0


def test_a_bar_that_covers_several_days_is_labelled(memory: Command) -> None:
    with Memories(embedder="fake") as memories:
        for days in (0, 100):
            memories.create(
                f"written {days} days ago", created_at=datetime.now(UTC) - timedelta(days=days)
            )
    text = memory("stats", "--format", "text").out
    assert "memories per 5 days, starting on the day shown" in text
    assert "memories per day" not in text


@pytest.mark.parametrize("columns", [20, 40, 80, 300])
def test_the_chart_fits_the_terminal(memory: Command, stored: Store, columns: int) -> None:
    stored("宇宙は広い " * 40)
    lines = memory("stats", "--format", "text", env={"COLUMNS": str(columns)}).out.splitlines()
    bars = [line for line in lines if line.endswith("#")]
    assert [len(line) <= max(30, min(100, columns)) for line in bars] == [True]


def test_doctor_reports_that_nothing_can_be_recorded(
    memory: Command, stored: Store, home: Path
) -> None:
    one = stored("the sky is blue")
    (home / "events.jsonl").unlink()
    os.mkfifo(home / "events.jsonl")
    assert memory("get", one).code == 0
    answer = memory("doctor")
    assert answer.code == 1
    assert "operations can't be recorded" in answer.out + answer.err
    assert memory("doctor", env={"MEMORY_EVENTS": "off"}).code == 0


def test_a_context_is_recorded_with_its_tokens(memory: Command, stored: Store, home: Path) -> None:
    stored("the sky is blue")
    memory("context", "what colour is the sky?")
    [tokens] = [event["tokens"] for event in events.read(home) if event["op"] == "context"]
    assert tokens > 5


def test_ranking_by_similarity_ignores_age_and_use(
    memory: Command, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDER", "none")
    used, other = stored("the red train to Bern"), stored("an old train in Rome")
    for _ in range(5):
        memory("get", used)
    memory("status")
    plain = memory("search", "train", "--rank", "similarity", "--explain").json
    by_use = memory("search", "train", "--explain").json
    assert [hit["id"] for hit in plain["results"]] == [other, used]
    assert [hit["id"] for hit in by_use["results"]] == [used, other]
    assert {row["threshold"] for row in by_use["explain"]["considered"]} == {0.7, 0.75}
    assert {row["boost"] for row in plain["explain"]["considered"]} == {1.0}
    assert memory("search", "x", "--rank", "best").code == 2
