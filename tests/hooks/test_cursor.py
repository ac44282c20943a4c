"""Hooks of Cursor, which has its own names for events and fields, and also runs the hooks of Claude
Code.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forked import Forked
from hooks.conftest import PLENTY, flush_inbox, pending_memories, tree
from memories import Memories
from memories.core.disk import make_folder
from memories.hooks import inbox, runs, session
from memories.hooks.host_events import HostEvent
from memories.hooks.transcripts import Event

EMAIL = "ann.example@example.org"
NAMES = {  # of events in the payload; Cursor uses its own even for Claude Code's hooks
    "session-start": "sessionStart",
    "user-prompt": "beforeSubmitPrompt",
    "answer": "afterAgentResponse",
    "stop": "stop",
    "pre-compact": "preCompact",
    "session-end": "sessionEnd",
}
OWN, CLAUDE = "cursor", "claude-code"
Run = Callable[..., dict[str, Any] | None]


@pytest.fixture
def root(tmp_path: Path, folder: Path) -> Path:
    """The folder that is open in Cursor; its hooks run in another folder, like a user's hooks."""
    made = tmp_path / "project"
    made.mkdir()
    return made


def payload(root: Path, event: str, turn: str = "g1", **more: Any) -> dict[str, Any]:
    """Return the input that Cursor gives a hook."""
    event_input = {"conversation_id": "c1", "generation_id": turn, "model": "m", "session_id": "c1"}
    event_input |= {
        "hook_event_name": NAMES[event],
        "cursor_version": "3.20.17",
        "workspace_roots": [str(root)],
    }
    return {**event_input, "user_email": EMAIL, "transcript_path": None, **more}


@pytest.fixture
def run(forked: Forked) -> Run:
    """Return a function that runs a hook as Cursor does; it returns the answer, or None."""

    def run(
        event_input: dict[str, Any], event: str, *options: str, host: str = OWN, **env: str
    ) -> dict[str, Any] | None:
        variables = {"CURSOR_VERSION": "3.20.17", "CURSOR_USER_EMAIL": EMAIL, **env}
        command = ["hook", event, "--host", host, "--seconds", PLENTY, *options]
        done = forked.run(
            command, input=json.dumps(event_input).encode(), env={**os.environ, **variables}
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return json.loads(done.stdout) if done.stdout else None

    return run


def remember(text: str = "Deploys happen on Tuesdays") -> None:
    """Store a memory."""
    with Memories() as memories:
        memories.create(text)


def test_session_start_shows_the_prompt_block(run: Run, root: Path, home: Path) -> None:
    remember()
    answer = run(
        payload(root, "session-start", is_background_agent=False, composer_mode="agent"),
        "session-start",
    )
    assert answer is not None
    assert answer.keys() == {"additional_context"}
    assert "Deploys happen on Tuesdays" in answer["additional_context"]
    assert session.read(str(home), "cursor.c1").folder == str(root)


def test_a_prompt_gets_the_memories_it_recalls(run: Run, root: Path, home: Path) -> None:
    remember()
    answer = run(
        payload(root, "user-prompt", prompt="On which day do deploys happen?"), "user-prompt"
    )
    assert answer is not None
    assert answer.keys() == {"continue", "additional_context"}
    assert answer["continue"] is True
    assert "Deploys happen on Tuesdays" in answer["additional_context"]
    again = run(
        payload(root, "user-prompt", "g2", prompt="On which day do deploys happen?"), "user-prompt"
    )
    assert again == {"continue": True}


@pytest.mark.parametrize("event", NAMES)
@pytest.mark.parametrize("options", [(), ("--capture",)], ids=["recall", "capture"])
def test_an_event_without_context_gets_valid_json(
    run: Run, event: str, options: tuple[str, ...], root: Path, home: Path
) -> None:
    answer = run(
        payload(root, event, prompt="/help", text="Done.", status="completed", loop_count=0),
        event,
        *options,
    )
    assert answer == {"user-prompt": {"continue": True}, "session-start": answer}.get(event, {})
    off = run(payload(root, event, prompt="when?"), event, *options, MEMORY_OFF="1")
    assert off == ({"continue": True} if event == "user-prompt" else {})


def test_a_failing_hook_prints_nothing(forked: Forked, run: Run, root: Path, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "memories.db").write_bytes(b"<html>not a database</html>" * 1000)
    assert run(payload(root, "session-start"), "session-start") is None
    done = forked.run(["hook", "stop", "--host", OWN, "--capture"], input=b"no JSON")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert {(each.host, each.event, each.failures) for each in runs.read_runs(str(home))} == {
        ("cursor", "session-start", 1),
        ("cursor", "stop", 1),
    }


def empty_inbox(home: Path) -> None:
    """Store the inbox, or wait for the flusher that a hook started."""
    until = time.monotonic() + 120
    while inbox.names(str(home)):
        assert time.monotonic() < until
        flush_inbox(home)
        time.sleep(0.05)


def stored_turns() -> list[tuple[str, str]]:
    """Return the role and content of each stored turn."""
    with Memories() as memories:
        return [(turn.role, turn.content) for turn in memories.turns("cursor:c1", limit=1000)]


def turn_events(
    root: Path, number: int, prompt: str, *answers: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of one turn as Cursor sends them; an agent that uses tools answers several
    times.
    """
    generation = f"g{number}"
    yield "user-prompt", payload(root, "user-prompt", generation, prompt=prompt, attachments=[])
    for answer in answers:
        yield "answer", payload(root, "answer", generation, text=answer, input_tokens=3)
    yield "stop", payload(root, "stop", generation, status="completed", loop_count=0)


def test_a_session_is_captured(run: Run, root: Path, home: Path) -> None:
    run(payload(root, "session-start"), "session-start", "--capture")
    for event, event_input in turn_events(
        root, 1, "Remember that Ann owns deploys.", "I look.", "Noted. <private>x9</private>"
    ):
        run(event_input, event, "--capture", MEMORY_HOME=str(home))
    run(payload(root, "pre-compact", "g1", trigger="auto"), "pre-compact", "--capture")
    run(
        payload(root, "session-end", "g1", reason="user_close", duration_ms=5),
        "session-end",
        "--capture",
    )
    empty_inbox(home)
    assert stored_turns()[:2] == [
        ("user", "Remember that Ann owns deploys."),
        ("assistant", "I look."),
    ]
    assert [content.strip() for _, content in stored_turns()[2:]] == ["Noted."]
    [found] = pending_memories(home)
    assert (found.content, found.source) == ("Ann owns deploys.", "cursor:c1#0")
    assert found.tags["agent"] == "cursor"


def test_only_the_stop_event_starts_a_flusher(
    root: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that uses tools answers many times in a turn; answers are stored when it stops."""
    script = """
import sys
from memories.hooks import handler, hook
handler.start_flusher = lambda home: sys.stderr.write("started")
given = hook.parse_arguments([sys.argv[1], "--host", "cursor", "--capture"])
handler.handle(given)
"""
    started = {}
    for event in ("answer", "stop"):
        command = [sys.executable, "-c", script, event]
        event_input = json.dumps(payload(root, event, text="Done.")).encode()
        started[event] = subprocess.run(
            command, input=event_input, capture_output=True, timeout=300
        ).stderr
    assert started == {"answer": b"", "stop": b"started"}


def events_of(home: Path) -> list[Event]:
    """Return the events that wait in the inbox."""
    return inbox.read(str(home), "cursor.c1")[0]


BOTH = pytest.mark.parametrize("hosts", [(OWN, CLAUDE), (CLAUDE, OWN), (OWN, OWN)], ids="-".join)


@BOTH
def test_two_hooks_of_one_event_show_memories_once(
    run: Run, hosts: tuple[str, str], root: Path, home: Path
) -> None:
    remember()
    begun = [run(payload(root, "session-start"), "session-start", host=host) for host in hosts]
    assert [sorted(answer or {}) for answer in begun] == [["additional_context"], []]
    with Memories() as memories:
        memories.create("Deploys happen from the main branch")
    event_input = payload(root, "user-prompt", prompt="On which branch do deploys happen?")
    asked = [run(event_input, "user-prompt", host=host) for host in hosts]
    assert [sorted(answer or {}) for answer in asked] == [
        ["additional_context", "continue"],
        ["continue"],
    ]
    event_input = payload(root, "user-prompt", "g2", prompt="start as bob with memory enabled")
    wished = [run(event_input, "user-prompt", host=host) for host in hosts]
    assert ['"bob"' in (answer or {}).get("additional_context", "") for answer in wished] == [
        True,
        False,
    ]
    assert session.read(str(home), "cursor.c1").namespace == "bob"


@pytest.mark.usefixtures("no_flusher")
@BOTH
def test_two_hooks_of_one_event_capture_once(
    run: Run, hosts: tuple[str, str], root: Path, home: Path
) -> None:
    for number, prompt in enumerate(["Remember that Ann owns deploys.", "yes", "yes"], 1):
        for event, event_input in turn_events(root, number, prompt, "One.", "Two."):
            for host in hosts if event != "answer" else (OWN,):  # Claude Code has no such event
                run(event_input, event, "--capture", host=host)
    for event in ("pre-compact", "session-end"):
        for host in hosts:
            run(payload(root, event, "g3", reason="completed"), event, "--capture", host=host)
    event_input = [each["event"] for each in events_of(home)]
    assert event_input == [
        *(["user-prompt", "answer", "answer", "stop"] * 3),
        "pre-compact",
        "session-end",
    ]
    assert inbox.names(str(home)) == ["cursor.c1"]


@BOTH
def test_events_captured_twice_are_stored_once(
    run: Run, hosts: tuple[str, str], root: Path, home: Path
) -> None:
    for event, event_input in turn_events(root, 1, "Remember that Ann owns deploys.", "Noted."):
        for host in hosts if event != "answer" else (OWN,):
            run(event_input, event, "--capture", host=host)
    empty_inbox(home)
    assert stored_turns() == [("user", "Remember that Ann owns deploys."), ("assistant", "Noted.")]
    assert [each.content for each in pending_memories(home)] == ["Ann owns deploys."]


@pytest.mark.usefixtures("no_flusher")
@pytest.mark.parametrize("capturing", [OWN, CLAUDE])
@pytest.mark.parametrize("first", [OWN, CLAUDE])
def test_one_hook_captures_even_if_the_other_recalled_first(
    run: Run, capturing: str, first: str, root: Path, home: Path
) -> None:
    """The two hooks may have been installed with different options."""
    remember()
    event_input = payload(root, "user-prompt", prompt="On which day do deploys happen?")
    hosts = [first, OWN if first == CLAUDE else CLAUDE]
    answers = [
        run(event_input, "user-prompt", *["--capture"] * (host == capturing), host=host)
        for host in hosts
    ]
    assert ["additional_context" in (answer or {}) for answer in answers] == [True, False]
    assert [each["event"] for each in events_of(home)] == ["user-prompt"]


def test_simultaneous_hooks_show_memories_once(root: Path, home: Path) -> None:
    remember()
    command = [sys.executable, "-m", "memories", "hook", "session-start", "--seconds", PLENTY]
    running = [
        subprocess.Popen([*command, "--host", host], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for host in (OWN, CLAUDE, OWN, CLAUDE)
    ]
    for each in running:
        assert each.stdin is not None
        each.stdin.write(json.dumps(payload(root, "session-start")).encode())
        each.stdin.close()
        each.stdin = None
    answers = [json.loads(each.communicate(timeout=300)[0]) for each in running]
    assert sorted("additional_context" in answer for answer in answers) == [
        False,
        False,
        False,
        True,
    ]


def test_events_without_a_turn_are_answered_once_within_a_few_seconds(
    root: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.claim(str(home), "cursor.c1", "reply x", within=10)
    assert not session.claim(str(home), "cursor.c1", "reply x", within=10)
    assert session.claim(str(home), "cursor.c1", "reply y", within=10)
    assert session.claim(str(home), "cursor.c2", "reply x", within=10)
    now = session.time.time()
    monkeypatch.setattr(session.time, "time", lambda: now + 11)
    assert session.claim(str(home), "cursor.c1", "reply x", within=10)
    assert not session.claim(str(home), "cursor.c1", "reply x", within=None)


def test_a_new_conversation_and_a_new_turn_get_context(run: Run, root: Path, home: Path) -> None:
    remember()
    for more in ({}, {"generation_id": "g2"}, {"conversation_id": "c2", "session_id": "c2"}):
        assert run({**payload(root, "session-start"), **more}, "session-start") != {}


def test_a_full_session_file_does_not_stop_a_hook(
    root: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "sessions"
    make_folder(folder)
    (folder / "cursor.c1").write_bytes(b"\n" * (session.MAX_BYTES + 1))
    assert session.claim(str(home), "cursor.c1", "x", within=None)
    assert session.claim(str(home), "cursor.c1", "x", within=None)
    assert (folder / "cursor.c1").stat().st_size == session.MAX_BYTES + 1


def test_events_of_one_conversation_belong_to_one_session(root: Path) -> None:
    event_input = payload(root, "session-start")
    assert {
        HostEvent(host, {**event_input, "session_id": each}).session_name
        for host in (OWN, CLAUDE)
        for each in ("c1", "s1", None)
    } == {"cursor.c1"}


def test_vs_code_names_its_session_in_another_field(root: Path) -> None:
    event_input = HostEvent(
        CLAUDE,
        {
            "sessionId": "v1",
            "hookEventName": "UserPromptSubmit",
            "cwd": str(root),
            "prompt": "Hello",
        },
    )
    assert (event_input.session_name, event_input.folder) == ("claude-code.v1", str(root))


def test_a_hook_run_by_claude_code_answers_in_its_own_format(
    run: Run, root: Path, home: Path
) -> None:
    remember()
    event_input = {
        "session_id": "s1",
        "cwd": str(root),
        "prompt": "On which day do deploys happen?",
    }
    answer = run({**event_input, "hook_event_name": "UserPromptSubmit"}, "user-prompt", host=CLAUDE)
    assert answer is not None
    assert answer.keys() == {"hookSpecificOutput"}


def test_a_workspace_can_be_switched_off_whatever_the_hooks_working_folder(
    forked: Forked, run: Run, root: Path, home: Path, folder: Path
) -> None:
    remember()
    (root / ".memories-off").touch()
    before = tree(home)
    event_input = payload(
        root, "user-prompt", prompt="Remember that Ann owns deploys.", cwd=str(folder)
    )
    assert run(event_input, "user-prompt", "--capture") == {"continue": True}
    # a hook whose input names no folder
    command = ["hook", "stop", "--host", OWN, "--capture"]
    done = forked.run(
        command, input=b"no JSON", env={**os.environ, "CURSOR_PROJECT_DIR": str(root)}
    )
    assert done.returncode == 0
    assert tree(home) == before


@pytest.mark.parametrize("roots", [[], None, "x", [3], [""]], ids=str)
def test_a_window_without_a_workspace_uses_the_variable_or_the_working_folder(
    roots: Any, home: Path, folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_input = {**payload(root, "stop"), "workspace_roots": roots}
    assert HostEvent(OWN, event_input).folder == str(folder)
    monkeypatch.setenv("CURSOR_PROJECT_DIR", str(root))
    assert HostEvent(OWN, event_input).folder == str(root)


def test_the_email_address_of_a_cursor_user_is_never_stored(
    run: Run, root: Path, home: Path
) -> None:
    run(payload(root, "session-start"), "session-start", "--capture")
    for event, event_input in turn_events(root, 1, "Remember that Ann owns deploys.", "Noted."):
        run(event_input, event, "--capture")
    run(payload(root, "session-end"), "session-end", "--capture")
    empty_inbox(home)
    files = [file for file in home.rglob("*") if file.is_file()]
    assert files
    assert [str(file) for file in files if EMAIL.encode() in file.read_bytes()] == []


@pytest.mark.parametrize("name", [".cursorrules", ".cursor/rules/deploys.mdc", "AGENTS.md"])
def test_sentences_from_cursor_rules_are_not_proposed(
    run: Run, name: str, root: Path, home: Path
) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("Ann owns deploys.\n")
    for event, event_input in turn_events(
        root, 1, "Remember that Ann owns deploys.", "We decided to use Go for the worker."
    ):
        run(event_input, event, "--capture")
    empty_inbox(home)
    assert [each.content for each in pending_memories(home)] == [
        "We decided to use Go for the worker."
    ]


def test_cursors_transcript_is_not_read(run: Run, root: Path, home: Path) -> None:
    file = Path.home() / ".cursor" / "projects" / "p" / "agent-transcripts" / "c1" / "c1.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(
        '{"role": "user", "message": {"content": [{"type": "text", "text": "from the file"}]}}\n'
    )
    for event, event_input in turn_events(root, 1, "Hello", "Hi."):
        run({**event_input, "transcript_path": str(file)}, event, "--capture", host=OWN)
    empty_inbox(home)
    assert stored_turns() == [("user", "Hello"), ("assistant", "Hi.")]
    assert not (home / "hooks.log").exists()


@pytest.mark.usefixtures("no_flusher")
def test_memory_off_applies_to_both_hooks(run: Run, root: Path, home: Path) -> None:
    event_input = payload(root, "user-prompt", prompt="memory off")
    answers = [run(event_input, "user-prompt", "--capture", host=host) for host in (CLAUDE, OWN)]
    assert [
        "Memory is off" in (answer or {}).get("additional_context", "") for answer in answers
    ] == [True, False]
    for event, each in turn_events(root, 2, "Remember that Ann owns deploys.", "Noted."):
        for host in (OWN, CLAUDE):
            run(each, event, "--capture", host=host)
    assert events_of(home) == []
