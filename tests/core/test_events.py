"""Events are whole lines of figures even if several processes write, and no operation fails because
of them.
"""

import errno
import json
import logging
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from memories import Draft, Memories, load_config
from memories.core import events
from memories.core.disk import make_folder


def noted(home: Path) -> list[dict[str, object]]:
    """Return the recorded events."""
    return list(events.read(home))


def test_an_event_is_one_line_of_figures(home: Path) -> None:
    events.note(home, "search", namespace="bob", results=3, ms=1.25, project=None, outcome="ok")
    [line] = (home / "events.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert event.pop("at").endswith("Z")
    assert event == {"op": "search", "namespace": "bob", "results": 3, "ms": 1.25, "outcome": "ok"}
    assert stat.S_IMODE((home / "events.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_the_setting_off_records_nothing_and_only_content_records_texts(home: Path) -> None:
    events.note(home, "search", setting="off", results=1)
    assert not home.exists()
    events.note(home, "search", content="what was asked")
    events.note(home, "search", setting="content", content="what was asked")
    assert [event.get("content") for event in noted(home)] == [None, "what was asked"]


def test_an_event_with_line_breaks_is_one_line(home: Path) -> None:
    events.note(home, "search", namespace="a\nb\u2028c\ud800", agent="x" * 10_000)
    [event] = noted(home)
    assert event["namespace"] == "a\nb\u2028c\ud800"
    assert event["agent"] == "x" * events.MAX_TEXT


def _write_many(home: Path, name: str) -> None:
    """Record 400 events."""
    for number in range(400):
        events.note(home, "search", agent=name, results=number, namespace="n" * 100)


def test_no_line_by_concurrent_processes_is_split_or_lost_in_a_rotation(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 100_000)
    monkeypatch.setattr(events, "KEPT", 9)
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=_write_many, args=(home, f"writer {number}")) for number in range(6)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(events.files(home)) > 3
    lines = [line for path in events.files(home) for line in path.read_bytes().splitlines()]
    assert all(json.loads(line) for line in lines)
    events_read = {(event["agent"], event["results"]) for event in noted(home)}
    assert events_read == {
        (f"writer {number}", result) for number in range(6) for result in range(400)
    }


def test_old_files_are_dropped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 500)
    for number in range(200):
        events.note(home, "search", results=number)
    old = {path.name for path in home.iterdir()} - {events.FILE}
    assert old == {f"events.{number}.jsonl" for number in range(1, events.KEPT + 1)}
    results = [event["results"] for event in noted(home)]
    assert results == list(range(results[0], 200))  # the oldest were dropped, and none in between
    assert [event["results"] for event in noted(home)][-1] == 199
    assert sum(path.stat().st_size for path in home.iterdir()) < (events.KEPT + 1) * 1_000


def test_an_incomplete_line_does_not_damage_the_next_one(home: Path) -> None:
    events.note(home, "search", results=1)
    with (home / "events.jsonl").open("ab") as stream:
        stream.write(b'{"at":"2026-01-01T00:00:00.000Z","op":"sea')
    events.note(home, "search", results=2)
    assert [event["results"] for event in noted(home)] == [1, 2]


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "home is a file"])
def test_an_unwritable_event_file_is_reported_and_no_operation_fails(
    home: Path, kind: str, tmp_path: Path
) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    elsewhere = tmp_path / "elsewhere"
    if kind == "home is a file":
        home.write_text("")
    else:
        make_folder(home)
        path = home / "events.jsonl"
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(elsewhere)
    events.note(home, "search", results=1)
    assert "events.jsonl: " in events.problem(home)
    assert not elsewhere.exists()


def test_a_full_disk_is_reported_and_no_operation_fails(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    events.note(home, "search", results=1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        events.note(home, "search", results=2)
        assert "No space left on device" in events.problem(home)
    assert events.problem(home) == ""


def test_events_can_be_read_from_a_given_time(home: Path) -> None:
    home.mkdir(parents=True)
    lines = [
        f'{{"at":"2026-11-{day:02}T10:00:00.000Z","op":"get","results":{day}}}\n'
        for day in range(1, 20)
    ]
    (home / "events.jsonl").write_text("".join(lines) + "[]\n\x00\n7\n")
    assert [event["results"] for event in events.read(home, "2026-11-18T00:00:00.000Z")] == [18, 19]
    assert len(noted(home)) == 19


def test_events_of_an_erased_namespace_are_removed_from_every_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 1_000)
    for number in range(30):
        events.note(home, "search", namespace=("bob", "alice")[number % 2], results=number)
    before = {path: path.stat().st_ino for path in events.files(home)}
    assert events.forget(home, lambda event: event.get("namespace") == "carl") == 0
    kept = {path.stat().st_ino for path in events.files(home)}
    assert kept.issuperset(before.values())  # a file without such events is not rewritten
    assert events.forget(home, lambda event: event.get("namespace") == "bob") > 0
    assert b"bob" not in b"".join(path.read_bytes() for path in home.iterdir())
    assert {event["namespace"] for event in noted(home)} == {"alice"}
    events.note(home, "search", namespace="alice")
    assert events.forget(home / "nowhere", lambda _: True) == 0


def test_decisions_and_pins_are_recorded(home: Path) -> None:
    with Memories(embedder="fake", channel="cli") as memories:
        held = memories.create_many(
            [Draft(text, pending=True) for text in ("apples are red", "pears are green")]
        )
        first, second = (created.memory.id for created in held if created.memory)
        memories.review.accept([first], dry_run=True)
        memories.review.accept([first])
        memories.review.reject([second])
        memories.pin(first)
        memories.scratchpad()
        assert list(memories.duplicates()) == []
    noted = [
        (event["op"], event.get("written", event.get("results"))) for event in events.read(home)
    ]
    assert [event for event in noted if event[0] not in ("create", "get", "update")] == [
        ("review.accept", 0), ("review.accept", 1), ("review.reject", 1), ("pin", 1),
        ("scratchpad", 1),
        ("duplicates", None),
    ]  # fmt: skip


def test_the_log_of_an_operation_contains_no_store_password(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config({"store": "postgresql://ann:xyzzy@db/memories", "log_level": "DEBUG"})
    with caplog.at_level(logging.DEBUG, "memories"), events.noting(config, "search"):
        pass
    [line] = caplog.records
    assert vars(line)["fields"]["store"] == "postgresql://ann:***@db/memories"


@pytest.mark.parametrize(
    ("argument", "content"),
    [
        (None, None),
        ("hello", "hello"),
        (Draft("hello"), "hello"),
        ([Draft("hello"), Draft("more")], "hello"),
        ([], None),
        (5, None),
        ("x" * 8 * events.MAX_CONTENT, "x" * 8 * events.MAX_CONTENT),
        ("x" * 8 * events.MAX_CONTENT + "y", "x" * 8 * events.MAX_CONTENT),
    ],
)
def test_the_content_of_an_operation_is_the_text_of_its_argument(
    argument: object, content: str | None
) -> None:
    assert events._redacted_content(argument, load_config({})) == content


@pytest.mark.parametrize(
    ("seconds", "ms"), [(0.0, 0.0), (0.001234, 1.23), (0.001236, 1.24), (2.5, 2500.0)]
)
def test_a_duration_is_in_hundredths_of_a_millisecond(
    monkeypatch: pytest.MonkeyPatch, seconds: float, ms: float
) -> None:
    monkeypatch.setattr(events.time, "perf_counter", lambda: seconds)
    for figures, error, outcome in (
        ({}, None, "ok"),
        ({"outcome": "queued"}, None, "queued"),
        ({"outcome": "queued"}, OSError, "OSError"),
    ):
        events._add_outcome(figures, 0.0, error)
        assert figures == {"outcome": outcome, "ms": ms}
