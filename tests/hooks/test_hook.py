"""A hook never fails its agent: whatever happens, it exits 0 in time, and prints its whole answer
or nothing.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked import Forked
from hooks.conftest import Hook, flush_inbox, tree
from memories import Memories
from memories.cli import COMMANDS
from memories.hooks import handler, inbox, runs
from memories.hooks import hook as hooks

HOOK = [sys.executable, "-m", "memories", "hook"]


def start_hook(*arguments: str, **streams: object) -> "subprocess.Popen[bytes]":
    """Start a hook in a separate process."""
    given = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **streams,
    }
    return subprocess.Popen([*HOOK, *arguments], **given)  # type: ignore[call-overload,no-any-return]


@pytest.mark.usefixtures("no_flusher")
def test_a_hook_prints_its_context_and_captures_the_answer(hook: Hook, home: Path) -> None:
    with Memories() as memories:
        memories.create("Deploys happen on Tuesdays")
    assert "Deploys happen on Tuesdays" in hook("session-start", {"source": "startup"}).context
    assert hook("stop", {"last_assistant_message": "Done"}, "--capture").silent
    assert inbox.names(str(home)) == ["claude-code.s1"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["stop"],
        ["stop", "--host"],
        ["stop", "--host", "notepad"],
        ["--host", "codex"],
        ["dance", "--host", "codex"],
        ["stop", "stop", "--host", "codex"],
        ["stop", "--host", "codex", "--colour"],
        ["stop", "--host", "codex", "--seconds", "soon"],
        ["stop", "--host", "codex", "--seconds", "1e9"],
    ],
)
def test_wrong_arguments_are_logged_in_one_line(
    forked: Forked, arguments: list[str], home: Path
) -> None:
    done = forked.run(["hook", *arguments], input=b"{}")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    until = time.monotonic() + 60
    while not (home / "hooks.log").exists():  # it may be written after the hook has ended
        assert time.monotonic() < until
        time.sleep(0.05)
    assert (home / "hooks.log").read_text().count("\n") == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not json",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"a": ',
        b"[" * 100_000,
        b'{"a": "%b"}' % (b"x" * 50_000_000),
    ],
    ids=["nothing", "text", "a list", "a string", "no UTF-8", "half of it", "too deep", "50 MB"],
)
def test_malformed_events_are_recorded_as_failures(payload: bytes, hook: Hook, home: Path) -> None:
    assert hook("stop", payload, "--capture").silent
    [line] = (home / "hooks.log").read_text().splitlines()
    assert "claude-code stop: " in line
    assert inbox.names(str(home)) == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_hook_with_closed_streams_exits_with_0(closed: str) -> None:
    command = [
        "sh",
        "-c",
        f'"$@" {closed}; echo "ended with $?"',
        "sh",
        *HOOK,
        "stop",
        "--host",
        "codex",
        "--capture",
    ]
    done = subprocess.run(command, input=b"{}", capture_output=True, timeout=300)
    assert (done.stdout, done.stderr) == (b"ended with 0\n", b"")


def test_a_hook_with_an_unwritable_home_prints_nothing(hook: Hook, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for home in (file, file / "below", Path("/proc/nowhere")):
        assert hook("stop", {}, "--capture", env={"MEMORY_HOME": str(home)}).silent
        assert hook("user-prompt", {"prompt": "when?"}, env={"MEMORY_HOME": str(home)}).silent


def test_on_a_full_disk_no_partial_line_remains(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.add(str(home), "codex.s1", {"id": "1"})
    written = os.write

    def write_half(fd: int, data: bytes) -> int:
        if len(data) > 20:
            return written(fd, bytes(data)[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write_half)
    with pytest.raises(OSError, match="No space"):
        inbox.add(str(home), "codex.s1", {"id": "2", "text": "x" * 10})
    monkeypatch.undo()
    inbox.add(str(home), "codex.s1", {"id": "3"})
    found, _, unread = inbox.read(str(home), "codex.s1")
    assert ([each["id"] for each in found], unread) == (["1", "3"], 0)


def test_a_damaged_store_is_logged(hook: Hook, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "memories.db").write_bytes(b"<html>not a database</html>" * 1000)
    assert hook("user-prompt", {"prompt": "when do we deploy?"}).silent
    assert hook("session-start", {"source": "startup"}).silent
    assert "claude-code session-start" in (home / "hooks.log").read_text()


def test_a_hook_with_an_invalid_setting_prints_nothing(hook: Hook, home: Path) -> None:
    assert hook(
        "user-prompt", {"prompt": "when do we deploy?"}, env={"EMBEDDER": "crystal-ball"}
    ).silent
    home.joinpath("config.toml").write_text("home = [")
    assert hook("stop", {}, "--capture").silent


def test_a_hook_with_a_missing_module_prints_nothing(home: Path, tmp_path: Path) -> None:
    """A module can be missing after an interrupted update."""
    script = (
        "import sys; sys.modules['memories.hooks.handler'] = None; sys.argv[1:] = sys.argv[2:]\n"
    )
    script += "from memories.__main__ import main; main()"
    command = [sys.executable, "-c", script, "x", "hook", "stop", "--host", "codex"]
    done = subprocess.run(command, input=b"{}", capture_output=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_hook_that_receives_a_signal_exits_with_0(name: str, home: Path) -> None:
    running = start_hook("stop", "--host", "codex", "--capture", "--seconds", "30")
    wait_for_input(running)
    running.send_signal(getattr(signal, name))
    out, err = running.communicate(timeout=300)
    assert (running.returncode, out, err) == (0, b"", b"")


def wait_for_input(running: "subprocess.Popen[bytes]") -> None:
    """Wait until a hook has started its child, which reads the input."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    until = time.monotonic() + 120
    while not children.read_text().split():
        assert running.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_hook_exits_even_if_its_input_never_ends(home: Path) -> None:
    """It exits by itself, prints nothing, and leaves no process behind."""
    running = start_hook("stop", "--host", "codex", "--seconds", "3")
    wait_for_input(running)
    [child] = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert running.wait(timeout=300) == 0
    assert running.communicate(timeout=300) == (b"", b"")
    until = time.monotonic() + 60
    log = home / "hooks.log"
    while not (
        log.exists() and "did not finish in time" in log.read_text()
    ):  # it may be written after the hook has ended
        assert time.monotonic() < until
        time.sleep(0.05)
    [stamp] = runs.read_runs(str(home))
    assert (stamp.host, stamp.event, stamp.runs, stamp.failures) == ("codex", "stop", 1, 1)
    assert is_gone(int(child))


def is_gone(process: int) -> bool:
    """Return whether a process ends within a minute."""
    for _ in range(600):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "hanging",
    [
        # a library that holds the interpreter's lock
        "import ctypes; ctypes.PyDLL(None).sleep(600)",
        "import ctypes; ctypes.string_at(0)",  # a library that crashes
        "import os; os.kill(os.getpid(), 9)",  # as the kernel does when memory runs out
        "raise SystemExit(7)",
        "raise MemoryError",
        "raise KeyboardInterrupt",
    ],
)
def test_a_hook_survives_a_child_that_hangs_crashes_or_raises(hanging: str, home: Path) -> None:
    script = f"""
import sys
from memories.hooks import handler, hook
def work(given):
    {hanging}
handler.handle = work
hook.main(["stop", "--host", "codex", "--seconds", "2"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input=b"{}", capture_output=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.usefixtures("no_flusher")
def test_a_locked_store_does_not_delay_a_hook(hook: Hook, home: Path) -> None:
    with Memories() as memories:
        memories.create("Deploys happen on Tuesdays")
        with memories.transaction():
            assert hook("stop", {"last_assistant_message": "x"}, "--capture", seconds="20").silent
            assert inbox.names(str(home)) == ["claude-code.s1"]
            assert hook("session-start", {}, seconds="1").code == 0


def test_captured_files_are_private(hook: Hook, home: Path, folder: Path) -> None:
    old = os.umask(0)
    try:
        assert hook("pre-compact", {"trigger": "auto"}, "--capture").silent
    finally:
        os.umask(old)
    found = [home / "inbox", home / "hooks", *(home / name for name in tree(home))]
    assert {stat.S_IMODE(each.stat().st_mode) for each in found if each.is_dir()} == {0o700}
    assert {stat.S_IMODE(each.stat().st_mode) for each in found if each.is_file()} == {0o600}


def test_created_parent_folders_are_private(hook: Hook, tmp_path: Path, folder: Path) -> None:
    mask = os.umask(0)
    try:
        far = tmp_path / "not" / "there" / "yet"
        hook("user-prompt", {"prompt": "Hello"}, "--capture", env={"MEMORY_HOME": str(far)})
    finally:
        os.umask(mask)
    assert {oct(stat.S_IMODE(each.stat().st_mode)) for each in (far, *far.parents[:2])} == {"0o700"}


def test_without_capture_nothing_is_appended(hook: Hook, home: Path) -> None:
    for event in hooks.EVENTS:
        hook(
            event,
            {"prompt": "remember that x is y", "last_assistant_message": "we decided to use Go"},
        )
    assert not (home / "inbox").exists()


def test_the_log_stays_small(home: Path) -> None:
    for _ in range(3):
        runs.log(str(home), "x")
        with (home / "hooks.log").open("a") as log:
            log.write("x" * 300_000)
    runs.log(str(home), "newest")
    assert sorted(each.name for each in home.glob("hooks.log*")) == ["hooks.log", "hooks.log.1"]
    assert (home / "hooks.log").read_text().endswith("newest\n")


def test_the_inbox_is_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_BYTES", 100)
    inbox.add(str(home), "codex.s1", {"id": "1"})
    with pytest.raises(inbox.InboxFull):
        inbox.add(str(home), "codex.s2", {"text": "x" * 100})
    assert inbox.names(str(home)) == ["codex.s1"]


def test_doctor_reports_the_hooks(forked: Forked, hook: Hook, home: Path, tmp_path: Path) -> None:
    hook("stop", {}, host="codex")
    hook("stop", b"no event", host="gemini")
    command = ["doctor", "--format", "json"]
    done = forked.run(command)
    found = json.loads(done.stdout)
    assert found["hooks"].keys() == {"codex stop", "gemini stop"}
    assert "1 run, 1 failed" in found["hooks"]["gemini stop"]
    [finding] = [each for each in found["findings"] if "hook" in each["what"]]
    assert finding["what"].startswith(
        "the stop hook of gemini failed when it last ran: JSONDecodeError"
    )
    inbox.add(str(home), "opencode.s1", {"id": "1"})
    os.utime(home / "inbox" / "opencode.s1.jsonl", (1, 1))
    found = json.loads(forked.run(command).stdout)
    assert [each["remedy"] for each in found["findings"] if "not stored" in each["what"]]


def test_the_help_names_all_events_and_hosts(forked: Forked) -> None:
    done = forked.run(["hook", "--help"])
    said = " ".join(done.stdout.decode().split()).replace("- ", "-")
    assert all(each in said for each in (*hooks.EVENTS, *hooks.HOSTS))
    assert "hook" in COMMANDS


def test_a_hook_that_only_appends_loads_no_heavy_module(folder: Path, home: Path) -> None:
    """A hook is fast because it imports little; `python -m bench hooks` measures the time."""
    script = """
import sys
from memories.hooks import handler, hook
given = hook.parse_arguments(["pre-compact", "--host", "codex", "--capture"])
handler.start_flusher = lambda home: None
handler.handle(given)
heavy = {"pathlib", "typing", "subprocess", "click", "logging", "datetime", "threading", "tomllib"}
heavy.add("memories.config")
sys.stdout.write(repr(sorted(heavy & sys.modules.keys())))
"""
    payload = json.dumps({"session_id": "s1", "cwd": str(folder)})
    # Without `site`, which imports some of these modules in an editable installation.
    path = os.pathsep.join([str(Path(hooks.__file__).parents[2])])
    command = [
        sys.executable,
        "-S",
        "-E",
        "-c",
        f"import sys; sys.path.insert(0, {path!r})\n{script}",
    ]
    done = subprocess.run(command, input=payload.encode(), capture_output=True, timeout=300)
    assert (done.stdout, done.stderr) == (b"[]", b"")
    assert inbox.names(str(home)) == ["codex.s1"]


def test_a_flusher_outlives_the_hook(hook: Hook, home: Path, folder: Path) -> None:
    hook("user-prompt", {"prompt": "Remember that deploys happen on Tuesdays"}, "--capture")
    assert hook("stop", {"last_assistant_message": "Noted."}, "--capture").silent
    for _ in range(600):
        if not inbox.names(str(home)):
            break
        time.sleep(0.1)
    with Memories() as memories:
        assert [turn.content for turn in memories.turns("claude-code:s1")] == [
            "Remember that deploys happen on Tuesdays",
            "Noted.",
        ]
    assert flush_inbox(home).waiting == 0
    assert handler.MAX_EVENT_BYTES > inbox.MAX_TEXT


def test_events_of_subagents_are_ignored(hook: Hook, home: Path) -> None:
    """Codex runs the hooks of a session for the prompts that its model writes for subagents, too.

    These events have the id of the session, and the path of the subagent's transcript.
    """
    with Memories() as memories:
        memories.create("Deploys happen on Tuesdays")
    subagent = {"turn_id": "t2", "agent_id": "a1", "agent_type": "default"}
    reviewer = {
        "turn_id": "t2",
        "transcript_path": "/sessions/rollout-2026-11-30T10-00-00-s2.jsonl",
    }
    for prompt in ("when do we deploy?", "start as bob", "memory off"):
        for whose in (subagent, reviewer):
            event = {"hook_event_name": "UserPromptSubmit", "prompt": prompt, **whose}
            assert hook("user-prompt", event, "--capture", host="codex").silent
    assert inbox.names(str(home)) == []
    assert "Tuesdays" in hook("user-prompt", {"prompt": "when do we deploy?"}, host="codex").context
