"""Hooks with a running server of their store: it recalls for them with the same answers, and
doesn't stop a hook if it fails.
"""

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forked import Forked
from hooks.conftest import Hook, HookResult
from live_command import Serve, servers
from memories import Memories, __version__
from memories import warm as client
from memories.config import load_config
from memories.hooks import inbox, session

DEPLOY = "Deploys happen on Tuesdays at noon"


@pytest.fixture(autouse=True)
def deploys(home: Path) -> None:
    """A store with one memory about deploys for everyone and one for Bob."""
    with Memories() as memories:
        memories.create(DEPLOY)
        memories.create("The cat of the office is called Tom")
    with Memories(namespace="bob") as bob:
        bob.create("Bob deploys on Mondays: «früh», 汉字 \U0001f600")


@pytest.fixture
def serving(home: Path) -> Iterator[Serve]:
    """Return a function that starts a server of the store."""
    with servers() as serve:
        yield serve


@pytest.fixture
def count_answers(forked: Forked) -> Callable[[], int]:
    """Return a function that returns the number of the server's answers; on a busy machine the
    server may start too late for some hooks, and for the first requests for its status.
    """

    def count() -> int:
        until = time.monotonic() + 100
        status = ""
        while not status and time.monotonic() < until:
            status = forked.run(["serve", "--status"]).stdout
        return int(json.loads(status)["commands"])

    return count


def without_differences(answer: HookResult) -> tuple[int, bytes, bytes]:
    """Return an answer without the parts that differ between runs: the number in its marks, and the
    time.
    """
    out = re.sub(rb"(?<=stored data )\d+|(?<=end of )\d+", b"N", answer.out)
    return answer.code, re.sub(rb"Now: [^\\\n]* UTC", b"Now", out), answer.err


ASKED = [
    ("session-start", {"source": "startup"}, ()),
    ("session-start", {"source": "startup"}, ("-n", "bob")),
    ("user-prompt", {"prompt": "when do deploys happen?"}, ()),
    ("user-prompt", {"prompt": "when do deploys happen?"}, ("-n", "bob", "--capture")),
    ("user-prompt", {"prompt": 'when do "deploys" \\ happen?\n\0 «früh» 汉字 \ud800 '}, ()),
    ("user-prompt", {"prompt": "when do deploys happen? " * 20_000}, ()),
    ("user-prompt", {"prompt": "zzz qqq"}, ()),
    ("user-prompt", {"prompt": "Start as bob with memory enabled"}, ()),
]


def test_a_server_gives_the_same_answers(
    count_answers: Callable[[], int], hook: Hook, serving: Serve
) -> None:
    alone = [
        hook(event, {**payload, "session_id": f"a{n}"}, *options)
        for n, (event, payload, options) in enumerate(ASKED)
    ]
    serving()
    asked = [
        hook(event, {**payload, "session_id": f"b{n}"}, *options)
        for n, (event, payload, options) in enumerate(ASKED)
    ]
    assert list(map(without_differences, asked)) == list(map(without_differences, alone))
    assert [bool(each.out) for each in asked] == [True, True, True, True, True, True, False, True]
    assert 0 < count_answers() <= len(ASKED)


@pytest.mark.thorough
def test_a_session_sees_nothing_twice_with_or_without_a_server(
    count_answers: Callable[[], int], hook: Hook, home: Path, serving: Serve
) -> None:
    assert DEPLOY in hook("user-prompt", {"prompt": "when do deploys happen?"}).context
    serving()
    assert hook("user-prompt", {"prompt": "and when do deploys happen?"}).silent
    assert (
        DEPLOY
        in hook("user-prompt", {"prompt": "when do deploys happen?", "session_id": "s2"}).context
    )
    assert hook("user-prompt", {"prompt": "and when do deploys happen?", "session_id": "s2"}).silent
    one, other = (session.read(str(home), f"claude-code.{name}") for name in ("s1", "s2"))
    assert (one.in_context, one.sentences) == (other.in_context, other.sentences)
    assert 0 < count_answers() <= 3


@pytest.mark.thorough
def test_the_hook_decides_the_namespace_and_folder(
    forked: Forked,
    count_answers: Callable[[], int],
    hook: Hook,
    home: Path,
    serving: Serve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hook's session, folder settings and environment apply, not the server's."""
    folder = Path.cwd()
    serving()
    assert "Bob deploys on Mondays" in hook("user-prompt", {"prompt": "start as bob"}).context
    with Memories(namespace="bob") as bob:
        bob.create("Bob deploys from a laptop")
    assert "a laptop" in hook("user-prompt", {"prompt": "when does bob deploy?"}).context
    (folder / ".env").write_text("MEMORY_NAMESPACE=bob\n")
    assert forked.run(["trust", "--yes", str(folder)]).returncode == 0
    asked = {"prompt": "when does bob deploy?", "session_id": "s2", "cwd": str(folder)}
    monkeypatch.chdir(home)
    assert "Bob deploys on Mondays" in hook("user-prompt", asked).context
    known = count_answers()
    assert 0 < known <= 3
    other = {"MEMORY_STORE": f"sqlite:///{home}/other.db"}
    assert hook(
        "user-prompt", {"prompt": "when do deploys happen?", "session_id": "s3"}, env=other
    ).silent
    assert count_answers() == known


def test_a_hook_asks_no_server_if_memory_is_off(
    count_answers: Callable[[], int], hook: Hook, serving: Serve, folder: Path
) -> None:
    serving()
    hook("user-prompt", {"prompt": "start with memory off"})
    assert hook("user-prompt", {"prompt": "when do deploys happen?"}).silent
    assert hook("session-start", {"session_id": "s2"}, env={"MEMORY_OFF": "1"}).silent
    (folder / ".memories-off").touch()
    assert hook("user-prompt", {"prompt": "when do deploys happen?", "session_id": "s2"}).silent
    assert count_answers() == 0


@pytest.mark.thorough
def test_an_event_is_captured_once_with_a_running_server(
    hook: Hook, home: Path, serving: Serve
) -> None:
    serving()
    assert DEPLOY in hook("user-prompt", {"prompt": "when do deploys happen?"}, "--capture").context
    found, _, unread = inbox.read(str(home), "claude-code.s1")
    assert ([each["prompt"] for each in found], unread) == (["when do deploys happen?"], 0)


@pytest.mark.parametrize("setting", ["hooks", "auto"])
def test_a_hook_starts_a_server_unless_a_setting_forbids_it(
    setting: str, forked: Forked, count_answers: Callable[[], int], hook: Hook
) -> None:
    wants = {"MEMORY_SERVE": setting}
    assert DEPLOY in hook("user-prompt", {"prompt": "when do deploys happen?"}, env=wants).context
    path = Path(client.socket_of("", os.environ))
    until = time.monotonic() + 100
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert (
        DEPLOY
        in hook(
            "user-prompt", {"prompt": "when do deploys happen?", "session_id": "s2"}, env=wants
        ).context
    )
    assert count_answers() <= 1
    assert forked.run(["serve", "--stop"]).returncode == 0


def test_hooks_start_no_server_if_the_default_is_switched_off(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEMORY_SERVE")
    assert load_config().serve == "hooks"
    path = Path(client.socket_of("", os.environ))
    assert DEPLOY in hook("session-start", {}, env={"MEMORY_SERVE": "off"}).context
    assert not Path(f"{path}.start").exists()


@pytest.mark.thorough
def test_a_server_whose_socket_was_removed_exits(serving: Serve) -> None:
    server = serving()
    Path(client.socket_of("", os.environ)).resolve().unlink()
    assert server.wait(60) == 75


@pytest.mark.thorough
def test_the_server_records_the_figures_of_the_hooks_that_it_answers(
    count_answers: Callable[[], int], hook: Hook, home: Path, serving: Serve
) -> None:
    serving()
    assert DEPLOY in hook("user-prompt", {"prompt": "when do deploys happen?"}).context
    assert count_answers() == 1
    events = [json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()]
    [figures] = [event for event in events if event["op"] == "hook.user-prompt"]
    assert figures["agent"] == "claude-code"
    assert figures["outcome"] == "ok"
    assert figures["ms"] > 0
    assert figures["tokens"] > 0


def test_a_prompt_that_switches_memory_on_counts_as_a_prompt(
    hook: Hook, home: Path, serving: Serve
) -> None:
    serving()
    assert DEPLOY in hook("user-prompt", {"prompt": "memory on"}).context
    operations: list[str] = []
    until = time.monotonic() + 60
    while not operations:  # the hook records the event after its answer
        assert time.monotonic() < until
        lines = (home / "events.jsonl").read_text().splitlines()
        operations = [json.loads(line)["op"] for line in lines if '"hook.' in line]
    assert operations == ["hook.user-prompt"]


def test_a_hook_recalls_by_itself_if_the_server_hangs(
    count_answers: Callable[[], int], hook: Hook, home: Path, serving: Serve
) -> None:
    server = serving()
    server.send_signal(signal.SIGSTOP)
    try:
        assert DEPLOY in hook("user-prompt", {"prompt": "when do deploys happen?"}).context
    finally:
        server.send_signal(signal.SIGCONT)
    assert count_answers() == 0
    assert not (home / "hooks.log").exists()


def test_the_socket_of_a_killed_server_does_not_stop_a_hook(hook: Hook, serving: Serve) -> None:
    server = serving()
    server.kill()
    server.wait(60)
    assert Path(client.socket_of("", os.environ)).is_socket()
    assert DEPLOY in hook("session-start", {}).context
    asked = {"prompt": "when do deploys happen?", "session_id": "s2"}
    assert DEPLOY in hook("user-prompt", asked).context


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        (f"{client.GREETING} 0.0.1", b""),  # another version
        ("HTTP/1.1 400 Bad Request", b""),
        (f"{client.GREETING} {__version__}", b""),  # it never begins
        (f"{client.GREETING} {__version__}", b"direct"),
        (f"{client.GREETING} {__version__}", b".direct"),
        (f"{client.GREETING} {__version__}", b"."),  # it dies while it recalls
        (f"{client.GREETING} {__version__}", b".0 done 1:100\nhalf of it"),
        (f"{client.GREETING} {__version__}", b".0 done 1:9\nno JSON {}"),
        (f"{client.GREETING} {__version__}", b".1 done 2:4\nno\n."),
    ],
)
def test_a_hook_recalls_by_itself_after_an_invalid_answer_from_the_server(
    greeting: str, answer: bytes, hook: Hook, home: Path
) -> None:
    path = Path(client.socket_of("", os.environ))
    path.parent.mkdir(parents=True, mode=0o700)
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> None:
            connection, _ = listening.accept()
            # On a busy machine, the hook may have left before the answer.
            with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(f"{greeting}\n".encode())
                connection.recv(1 << 16)
                if answer:
                    connection.sendall(answer)
                else:
                    over.wait(300)

        serving = threading.Thread(target=serve)
        serving.start()
        done = hook("user-prompt", {"prompt": "when do deploys happen?"})
        over.set()
        serving.join()
    assert DEPLOY in done.context
    assert not (home / "hooks.log").exists()
