"""The deadline of a hook, and the note that an agent gets if recall was missed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.config import load_config
from memories.hooks import session
from memories.hooks.handler import MISSED, EventHandler, HookCall, record_failure
from memories.hooks.hook import SECONDS, limit_seconds
from memories.hooks.host_events import HostEvent
from memories.hooks.recall_strategy import (
    HookContext,
    RecallRequest,
    answer_by_server_or_here,
    recall_in_time,
)
from memories.hooks.switch import read_state

Hook = Callable[..., Any]
ASKED = {"prompt": "when do deploys happen?"}


@pytest.mark.parametrize(
    ("load", "age", "event", "seconds"),
    [
        (0.0, 0.03, "user-prompt", SECONDS),
        (0.9, 0.09, "user-prompt", SECONDS),
        (2.0, 0.03, "user-prompt", 2 * SECONDS),
        (0.0, 0.2, "user-prompt", 2 * SECONDS),
        (40.0, 0.03, "user-prompt", 2.5),
        (40.0, 0.03, "session-start", 5.0),
        (40.0, 0.03, "session-end", 1.5),
    ],
)
def test_the_deadline_follows_the_load_up_to_half_the_hosts_limit(
    monkeypatch: pytest.MonkeyPatch, load: float, age: float, event: str, seconds: float
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert limit_seconds(event, age) == pytest.approx(seconds)


def test_the_longest_deadline_is_half_the_limit_that_connect_writes() -> None:
    import tomllib

    from memories import connect

    hosts = tomllib.loads((Path(connect.__file__).parent / "hosts.toml").read_text())
    for name in ("session-start", "user-prompt", "session-end"):
        limit = hosts["hosts"]["claude-code"]["hooks"][name]["timeout"]
        assert limit_seconds(name, 1_000.0) == limit / 2


def test_the_prompt_after_a_missed_recall_reports_it_once(hook: Hook, home: Path) -> None:
    with Memories() as memories:
        memories.create("Deploys happen on Tuesdays")
    ended = int(time.time() * 1000) - 5_000  # as a hook that was killed at its deadline leaves it
    session.append(str(home), "claude-code.s1", **{session.SUSPECT_FROM: ended})
    assert MISSED in hook("user-prompt", ASKED).context
    assert MISSED not in hook("user-prompt", {"prompt": "and when do releases happen?"}).context


@pytest.mark.usefixtures("home")
def test_a_missed_recall_is_reported_even_if_gemini_gets_no_session_block(hook: Hook) -> None:
    """The first prompt also gets the block, which needs the store."""
    env = {"MEMORY_STORE": "http://127.0.0.1:9", "MEMORY_TOKEN": "a" * 40}
    home = os.environ["MEMORY_HOME"]
    session.append(home, "gemini.s1", **{session.SUSPECT_FROM: int(time.time() * 1000) - 5_000})
    assert MISSED in hook("user-prompt", ASKED, host="gemini", env=env).context
    assert MISSED not in hook("user-prompt", ASKED, host="gemini", env=env).context


def test_no_missed_recall_is_reported_if_the_store_answers(hook: Hook, home: Path) -> None:
    with Memories() as memories:
        memories.create("Deploys happen on Tuesdays")
    assert MISSED not in hook("user-prompt", ASKED).context
    assert MISSED not in hook("user-prompt", {"prompt": "and when do releases happen?"}).context


@pytest.mark.parametrize(
    ("event", "setting", "starts"),
    [("user-prompt", "hooks", True), ("user-prompt", "off", False), ("stop", "hooks", False)],
)
def test_a_recall_that_is_too_slow_starts_a_server(
    home: Path, monkeypatch: pytest.MonkeyPatch, event: str, setting: str, starts: bool
) -> None:
    monkeypatch.setenv("MEMORY_SERVE", setting)
    started: list[str] = []
    call = HookCall()
    call.event, call.host, call.start_server = event, "codex", started.append
    record_failure(call, "the hook did not finish in time").follow_up()
    assert started == [load_config().store] * starts


@pytest.mark.parametrize(("seconds", "patience"), [(0.6, 0.1), (30.0, 0.7)])
def test_a_hook_with_more_time_waits_longer_for_a_server(
    home: Path, seconds: float, patience: float
) -> None:
    waited: list[float] = []

    def ask_server(request: bytes, begin: float, limit: float) -> bytes:
        waited.append(begin)
        return HookContext("", "shared").encode().encode()

    place = (str(home), str(home), "codex.s1", None)
    request = RecallRequest(place, None, time.monotonic() + seconds)
    answer_by_server_or_here(request, ask_server, lambda _: HookContext("", "shared"))
    assert waited == [patience]


def test_a_server_answers_from_the_scratchpad_while_the_store_is_suspect(home: Path) -> None:
    asked: list[tuple[bool, float]] = []

    def ask_server(request: bytes, begin: float, limit: float) -> bytes:
        asked.append((RecallRequest.decode(request).asks_store, limit))
        assert begin == limit
        return HookContext("", "shared").encode().encode()

    session.append(str(home), "codex.s1", **{session.SUSPECT_FROM: int(time.time() * 1000) - 5_000})
    place = (str(home), str(home), "codex.s1", None)
    request = RecallRequest(place, "when do deploys happen?", time.monotonic() + 30)
    assert recall_in_time(request, ask_server, lambda _: HookContext("", "")).probe_store
    assert asked == [(False, 0.7)]


HANGING = """
import signal, sys
from memories.hooks import hook, model_context
model_context.build_hook_context = lambda request: signal.pause()
hook.main(sys.argv[1:])
"""


def answer_of_killed_hook(host: str, prompt: str) -> bytes:
    """Run a hook whose recall never ends, so that it is killed at its deadline."""
    event = {"session_id": "s1", "cwd": str(Path.cwd()), "prompt": prompt}
    done = subprocess.run(
        [sys.executable, "-c", HANGING, "user-prompt", "--host", host, "--seconds", "2"],
        input=json.dumps(event).encode(),
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.mark.parametrize(
    ("name", "prompt"), [("session-start", ""), ("user-prompt", "when do deploys happen?")]
)
def test_a_late_hook_gets_extra_time_only_to_read_its_event(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, prompt: str
) -> None:
    interim: list[bytes] = []
    counts: list[int] = []
    call = HookCall()
    call.event, call.host, call.send_interim = name, "codex", interim.append
    call.started_at = time.monotonic()
    call.deadline = call.started_at + 30.0
    event = HostEvent("codex", {"session_id": "s1", "cwd": str(Path.cwd()), "prompt": prompt})
    state = read_state(event.folder, event.session_name)

    def build(request: RecallRequest) -> HookContext:
        counts.append(len(interim))
        return HookContext("", "shared")

    monkeypatch.setattr("memories.hooks.model_context.build_hook_context", build)
    EventHandler(call, event, str(home), state).reply()
    assert (interim, counts) == ([b""], [1])


@pytest.mark.thorough
def test_if_every_hook_is_killed_the_second_one_reports_the_missed_recall(home: Path) -> None:
    assert answer_of_killed_hook("codex", "when do deploys happen?") == b""
    [answer] = json.loads(answer_of_killed_hook("codex", "and releases?")).values()
    assert answer == {"hookEventName": "UserPromptSubmit", "additionalContext": MISSED}
    assert answer_of_killed_hook("codex", "and backups?") == b""


@pytest.mark.thorough
def test_cursor_gets_an_answer_from_a_hook_that_is_killed(home: Path) -> None:
    assert json.loads(answer_of_killed_hook("cursor", "when do deploys happen?")) == {
        "continue": True
    }
