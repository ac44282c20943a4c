"""A check of a connection starts the same programs as the host, and leaves no trace."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from memories import Memories
from memories.connect.status import (
    CHECK,
    FoundEntries,
    HostConnection,
    check_connection,
    check_connections,
)

PROGRAM = str(Path(sys.executable).with_name("memoriae"))
SERVER = [PROGRAM, "mcp"]


@pytest.fixture(autouse=True)
def slow_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the SDK wait for a server to exit, even on a busy machine; by default it stops waiting
    after two seconds.
    """
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 60.0)


def hook_command(event: str) -> list[str]:
    """Return the command of a hook as a host's configuration contains it."""
    return [PROGRAM, "hook", event, "--host", "claude-code", "--capture"]


def entries(
    server: list[str], *hooks: list[str], environment: Mapping[str, str] = os.environ
) -> FoundEntries:
    """Return the entries of a connection as found in a host's configuration."""
    return FoundEntries(server, list(hooks), [], environment)


def write_script(folder: Path, text: str) -> str:
    """Write an executable shell script; return its path."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.thorough
def test_a_check_starts_the_server_and_the_hooks_and_leaves_no_trace(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDER", "fake")
    with Memories() as memories:
        created = memories.create("Deploys happen on Tuesdays").memory
    before = {path.name for path in home.iterdir()}
    check = check_connection(
        entries(
            SERVER, hook_command("session-start"), hook_command("user-prompt"), hook_command("stop")
        )
    )
    assert check.problem == ""
    assert "search_memories" in check.tools
    assert (check.store, check.memories) == (f"sqlite:///{home}/memories.db", 1)
    assert [hook.event for hook in check.hooks] == ["session-start", "user-prompt"]
    assert check.hooks[0].characters
    assert {path.name for path in home.iterdir()} - before <= {"memories.db-shm", "memories.db-wal"}
    with Memories() as memories:
        assert memories.get(created.id).access_count == 0


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ('echo "{\\"error\\": \\"no room; make some\\"}" >&2; exit 1', "no room", "make some"),
        ("echo 'error: no room; make some' >&2; exit 1", "no room", "make some"),
        ("echo 'ImportError: anyio' >&2; exit 1", "ImportError: anyio", "install the program"),
        ("echo hello; exit 0", "Connection closed", "install the program"),
    ],
)
def test_the_error_of_a_server_that_exits_is_reported(
    text: str, problem: str, remedy: str, tmp_path: Path
) -> None:
    check = check_connection(entries([write_script(tmp_path, text), "mcp"]))
    assert check.problem == f"its MCP server failed: {problem}"
    assert check.remedy.startswith(remedy)


def test_a_missing_or_unconfigured_server_is_a_problem() -> None:
    assert "No such file" in check_connection(entries(["/gone/memoriae", "mcp"])).problem
    assert check_connection(entries([])).problem == "its MCP server is not configured"


@pytest.mark.thorough
def test_a_check_gives_up_on_a_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.connect.status._SERVER_SECONDS", 0.2)
    check = check_connection(entries([write_script(tmp_path, "exec sleep 600"), "mcp"]))
    assert "did not answer within" in check.problem


def test_failing_disabled_and_slow_hooks_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memories.connect import status as module

    monkeypatch.setattr(module, "_check_server", lambda *_: module.StartCheck())
    monkeypatch.setattr(module, "HOOK_SECONDS", -1.0)

    def check(text: str) -> module.StartCheck:
        return check_connection(
            entries(SERVER, [write_script(tmp_path, text), "hook", "session-start"])
        )

    assert "printed output that this version doesn't understand" in check("echo hello").problem
    assert "printed nothing" in check("exit 0").problem
    report = json.dumps({CHECK: {"is_on": False, "text": "", "problem": ""}})
    assert check(f"echo '{report}'").is_off
    assert check(f"echo '{report}'").hooks[0].is_late
    report = json.dumps({CHECK: {"problem": "the store is locked; wait"}})
    assert check(f"echo '{report}'").problem == (
        "its session-start hook can't recall: the store is locked"
    )


def test_a_program_named_in_project_files_is_not_started(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    program = write_script(tmp_path, f"touch {mark}")
    found = entries([program, "mcp"], [program, "hook", "session-start"])
    connection = HostConnection("claude-code", "project", str(tmp_path), found, "")
    assert check_connections([connection]) == [connection]
    assert not mark.exists()
