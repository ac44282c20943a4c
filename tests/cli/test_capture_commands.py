"""The commands `off`, `on` and `capture`."""

import os
from pathlib import Path

import pytest

from cli.conftest import Command
from memories.hooks import inbox, session, switch


def is_on(name: str | None = None) -> bool:
    """Return whether memory is on in the working directory."""
    return switch.read_state(str(Path.cwd()), name).on


def test_off_and_on_apply_to_the_current_project(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = memory("off").json
    assert (answer["switched"], answer["for"], answer["on"]) == ("off", str(folder), False)
    assert not is_on()
    monkeypatch.chdir(folder.parent)
    assert is_on()
    monkeypatch.chdir(folder)
    assert memory("on").json["on"]
    assert is_on()


def test_off_in_a_folder_applies_to_the_whole_repository(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("objects", "refs"):  # without it, git doesn't recognize the repository
        (folder / ".git" / part).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    memory("off")
    monkeypatch.chdir(folder)
    assert not is_on()


def test_memory_can_be_switched_off_and_on_for_all_projects(memory: Command) -> None:
    memory("off", "--all")
    assert not is_on()
    assert memory("on").json["on"] is False
    assert memory("on", "--all").json["on"] is True


def test_memory_can_be_switched_off_and_on_for_a_session(
    memory: Command, home: Path, folder: Path
) -> None:
    assert "found no agent session in" in memory("off", "--session").error
    session.append(str(home), "codex.s1", folder=str(folder))
    assert memory("off", "--session").json["for"] == "session codex.s1"
    assert (is_on("codex.s1"), is_on("codex.s2"), is_on()) == (False, True, True)
    assert memory("on", "--session").json["on"]
    assert (
        memory("off", "--session", env={"CLAUDE_CODE_SESSION_ID": "x1"}).json["for"]
        == "session claude-code.x1"
    )


def test_the_session_is_the_one_named_by_the_host(memory: Command) -> None:
    for variable, name in session.VARIABLES.items():
        assert memory("off", "--session", env={variable: "x"}).json["for"] == f"session {name}.x"


def test_an_ended_session_is_not_the_current_session(
    memory: Command, home: Path, folder: Path
) -> None:
    session.append(str(home), "codex.s1", folder=str(folder))
    session.append(str(home), "codex.s2", folder=str(folder))
    session.append(str(home), "codex.s2", ended=True)
    assert memory("off", "--session").json["for"] == "session codex.s1"
    session.append(str(home), "codex.s1", ended=True)
    assert "found no agent session in" in memory("off", "--session").error


def test_on_names_other_switches_that_keep_memory_off(memory: Command, folder: Path) -> None:
    (folder / ".memories-off").touch()
    answer = memory("on").json
    assert (answer["on"], ".memories-off" in answer["why"]) == (False, True)


def test_all_and_session_cannot_be_combined(memory: Command) -> None:
    done = memory("off", "--session", "--all")
    assert (done.code, "can't be combined" in done.error) == (2, True)


def test_off_fails_if_the_home_is_not_writable(memory: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert memory("off", env={"MEMORY_HOME": str(tmp_path / "file" / "x")}).code == 1


def test_flush_stores_what_status_counts(
    memory: Command, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = {
        "id": "1",
        "at": 1,
        "host": "codex",
        "event": "user-prompt",
        "session": "s1",
        "folder": str(folder),
    }
    inbox.add(str(home), "codex.s1", event | {"prompt": "remember that Ann sails", "store": ""})
    found = memory("capture", "status").json
    assert (found["on"], found["waiting_sessions"], found["hooks"]) == (True, ["codex.s1"], [])
    done = memory("capture", "flush").json
    assert (done["turns"], done["proposed"], done["waiting"]) == (1, 1, 0)
    assert done["pending_count"] == 1
    assert [each["content"] for each in memory("review").json["results"]] == ["Ann sails"]
    for name, more in {"s1": {}, "s2": {"namespace": "bob"}}.items():
        prompt = {"id": "2", "prompt": "remember that Bo skis", "store": ""}
        inbox.add(str(home), f"codex.{name}", event | prompt | more)
    assert memory("capture", "flush", "--format", "text").out == (
        "Stored 2 turns and 0 session notes of 2 sessions, and proposed 2 memories.\n"
        "1 memory is waiting for review: memory review -n bob\n"
        "2 memories are waiting for review: memory review -n shared\n"
    )
    assert memory("capture", "flush").json["pending_count"] == 3
    increments: list[int] = []
    monkeypatch.setattr(os, "nice", increments.append)  # a real `nice` would slow down later tests
    assert memory("capture", "flush", "--quiet").out == ""
    assert increments == [10]


def test_flush_reports_why_an_event_waits(memory: Command, home: Path) -> None:
    inbox.add(str(home), "codex.s1", {"id": "1", "event": "stop", "store": "another"})
    done = memory("capture", "flush")
    assert (done.code, "another store" in done.out) == (1, True)
