"""Hooks as a host runs them: a process, an event on its standard input, an answer on its standard
output.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forked import Forked
from memories import Memories
from memories.core.disk import make_folder, try_lock
from memories.hooks.flush import Flushed, flush
from memories.hooks.handler import EventHandler, HookCall
from memories.hooks.host_events import HostEvent
from memories.hooks.switch import SwitchState
from memories.write.captured import FLUSH_LOCK

PLENTY = "30"  # seconds, for hooks whose answer is checked


@dataclass(frozen=True)
class HookResult:
    """Exit code and output of a hook."""

    code: int
    out: bytes
    err: bytes

    @property
    def context(self) -> str:
        """The text for the model; may be empty."""
        assert (self.code, self.err) == (0, b"")
        if not self.out:
            return ""
        answer = json.loads(self.out)
        assert answer.keys() == {"hookSpecificOutput"}
        assert answer["hookSpecificOutput"].keys() == {"hookEventName", "additionalContext"}
        return str(answer["hookSpecificOutput"]["additionalContext"])

    @property
    def silent(self) -> bool:
        return (self.code, self.out, self.err) == (0, b"", b"")


Hook = Callable[..., HookResult]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The agent's working folder; the environment names the embedder for tests and no folder of a
    host.
    """
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("EMBEDDER", "fake")
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "CLAUDE_CODE_SESSION_ID", "MEMORY_OFF"):
        monkeypatch.delenv(name, raising=False)
    return work


@pytest.fixture
def hook(forked: Forked) -> Hook:
    """Return a function that runs a hook in a separate process."""

    def run(
        event: str,
        payload: Mapping[str, Any] | bytes | None = None,
        *options: str,
        host: str = "claude-code",
        env: Mapping[str, str] | None = None,
        seconds: str = PLENTY,
    ) -> HookResult:
        if not isinstance(payload, bytes):
            payload = json.dumps(
                {"session_id": "s1", "cwd": str(Path.cwd()), **(payload or {})}
            ).encode()
        command = ["hook", event, "--host", host, "--seconds", seconds, *options]
        done = forked.run(command, input=payload, env={**os.environ, **(env or {})})
        return HookResult(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def projects(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tag memories with the project of their repository, as by default."""
    monkeypatch.setenv("PROJECT_DETECTION", "true")


@pytest.fixture
def no_flusher(home: Path) -> Iterator[None]:
    """Hold the flushers' lock, so that a flusher started by a hook can't store the inbox."""
    make_folder(home)
    with try_lock(home / "inbox" / FLUSH_LOCK, 0) as is_held:
        assert is_held
        yield


def record_event(
    home: Path, event: str, *, host: str = "claude-code", namespace: str | None = None, **raw: Any
) -> None:
    """Append an event as a hook does."""
    call = HookCall()
    call.event, call.host, call.capture = event, host, True
    state = SwitchState(on=True, capture=True, why="", namespace=namespace)
    fields = {"session_id": "s1", "cwd": str(Path.cwd()), **raw}
    EventHandler(call, HostEvent(host, fields), str(home), state).capture()


def stored_turns(
    conversation: str = "claude-code:s1", namespace: str | None = None
) -> list[tuple[str, str]]:
    """Return the role and content of each stored turn."""
    with Memories(namespace=namespace) as memories:
        return [(turn.role, turn.content) for turn in memories.turns(conversation, limit=1000)]


def flush_inbox(home: Path) -> Flushed:
    """Store the inbox in this process."""
    return flush(str(home))


def pending_memories(home: Path, namespace: str | None = None) -> list[Any]:
    """Return the memories that wait for review, oldest first."""
    with Memories(namespace=namespace) as memories:
        return list(memories.list(pending=True, limit=1000).memories)[::-1]


def tree(home: Path) -> set[str]:
    """Return all files below a folder."""
    return {str(each.relative_to(home)) for each in home.rglob("*") if each.is_file()}
