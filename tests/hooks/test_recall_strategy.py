"""A session waits only once for a store that does not answer."""

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hooks.conftest import Hook
from memories import Memories
from memories.errors import StoreUnreachable
from memories.guard import validate
from memories.hooks import model_context, recall_strategy, runs, session
from memories.hooks.recall_strategy import NOT_ASKED, HookContext, RecallRequest, query_of

DEPLOY = "Deploys happen on Tuesdays at noon"


class Store:
    """A store that answers, reports a failure or raises, and records each request."""

    def __init__(self) -> None:
        self.asked: list[RecallRequest] = []
        self.fails: BaseException | None = None
        self.why = ""

    def __call__(self, request: bytes, begin: float, seconds: float) -> bytes | None:
        asked = RecallRequest.decode(request)
        if not asked.asks_store:
            return None  # the hook uses the scratchpad
        self.asked.append(asked)
        if self.fails:
            raise self.fails
        given = HookContext("from the store", "shared")
        given.error = self.why
        return given.encode().encode()


@pytest.fixture
def store(home: Path) -> Store:
    """A store, and a scratchpad with one memory, which can answer instead."""
    with Memories() as memories:
        memories.create(DEPLOY)
        memories.scratchpad()
    return Store()


def recall_once(
    home: Path, store: Store, name: str = "s1", prompt: str | None = "when do deploys happen?"
) -> tuple[str, Callable[[], None]]:
    """Recall for one hook event; return the text, and a function that does the remaining work."""
    where = str(home), str(home.parent), f"codex.{name}", None
    request = RecallRequest(where, prompt, time.monotonic() + 60)
    found = recall_strategy.recall_in_time(request, store, model_context.build_hook_context)
    probe = functools.partial(
        recall_strategy.probe, request, store, model_context.build_hook_context, 60
    )
    return found.context.text, probe if found.probe_store else lambda: None


def kill_hook(home: Path, store: Store) -> None:
    """Run a hook that is killed while it waits for the store."""
    store.fails = KeyboardInterrupt()
    where = str(home), str(home.parent), "codex.s1", None
    with pytest.raises(KeyboardInterrupt):
        recall_strategy.recall_in_time(
            RecallRequest(where, "deploys", time.monotonic() - 1),
            store,
            model_context.build_hook_context,
        )
    time.sleep(0.1)  # until its deadline, which is as short as possible, has passed
    store.fails = None


def test_a_store_that_answers_is_asked_each_time(home: Path, store: Store) -> None:
    for count in (1, 2, 3):
        said, after = recall_once(home, store)
        after()
        assert (said, len(store.asked)) == ("from the store", count)
    assert session.read(str(home), "codex.s1").suspect_from == 0


def test_after_a_killed_hook_no_hook_waits_for_the_store(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_strategy, "PROBE_PAUSE_MS", 0)
    kill_hook(home, store)
    store.why = "it is locked"
    for count in (1, 2, 3):
        said, after = recall_once(home, store)
        assert len(store.asked) == count  # it is not asked before the host has its answer
        assert DEPLOY in said or count > 1  # each memory is shown only once
        after()
        assert (len(store.asked), store.asked[-1].marks_read) == (count + 1, False)


def test_consecutive_prompts_probe_the_store_once(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_strategy, "PROBE_PAUSE_MS", 3_600_000)
    kill_hook(home, store)
    store.why = "it is locked"
    for _ in range(5):
        recall_once(home, store)[1]()
    assert len(store.asked) == 2


def test_a_store_that_answers_a_probe_is_asked_again(home: Path, store: Store) -> None:
    kill_hook(home, store)
    recall_once(home, store)[1]()
    said, after = recall_once(home, store)
    after()
    assert (said, len(store.asked)) == ("from the store", 3)


def test_a_probe_during_another_hook_still_counts(home: Path, store: Store) -> None:
    kill_hook(home, store)
    _, probe = recall_once(home, store)
    where = str(home), str(home.parent), "codex.s1", None

    def answer_after_probe(request: RecallRequest) -> HookContext:
        probe()
        return model_context.build_hook_context(request)

    request = RecallRequest(where, "when do deploys happen?", time.monotonic() + 60)
    recall_strategy.recall_in_time(request, store, answer_after_probe)
    assert recall_once(home, store)[0] == "from the store"


def test_hooks_do_not_wait_again_for_a_failed_store(home: Path, store: Store) -> None:
    store.why = "it is locked"
    assert recall_once(home, store)[0] == "from the store"
    assert DEPLOY in recall_once(home, store)[0]
    assert len(store.asked) == 1


def test_another_session_still_asks_the_store(home: Path, store: Store) -> None:
    kill_hook(home, store)
    assert recall_once(home, store, "s2")[0] == "from the store"
    assert len(store.asked) == 2


def test_two_simultaneous_hooks_both_ask_the_store(home: Path, store: Store) -> None:
    session.append(
        str(home), "codex.s1", late=int((time.time() + 600) * 1000)
    )  # the other hook is still at work
    assert recall_once(home, store)[0] == "from the store"


def test_an_old_suspicion_expires_without_a_probe(home: Path, store: Store) -> None:
    session.append(str(home), "codex.s1", late=int((time.time() - 3600) * 1000))
    assert recall_once(home, store)[0] == "from the store"


def test_the_start_of_a_session_does_not_ask_a_suspect_store(home: Path, store: Store) -> None:
    kill_hook(home, store)
    said, after = recall_once(home, store, prompt=None)
    after()
    assert DEPLOY in said
    assert len(store.asked) == 1
    assert session.read(str(home), "codex.s1").suspect_from


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("\0", False),
        ("\ud800", False),
        ("\u202e\u200b", False),
        ("\ufffe", False),
        ("\0when do deploys\ud800 happen?", True),
    ],
)
def test_a_prompt_that_cannot_be_searched_is_not_a_store_error(
    home: Path, prompt: str, found: bool
) -> None:
    where = str(home), str(home.parent), "codex.s1", None
    for asked in (prompt, query_of(prompt)):
        given = model_context.build_hook_context(RecallRequest(where, asked, time.monotonic() + 60))
        assert given.error == ""
    assert (DEPLOY in given.text) == found


def test_a_long_prompt_is_cut_to_the_maximum_length_of_a_query() -> None:
    assert len(query_of("x" * 100_000)) == validate.MAX_QUERY_CHARACTERS
    prompt = query_of(f"Look: {'x' * 100_000} Which port is it?")
    assert prompt.startswith("Look: ") and prompt.endswith(" Which port is it?")


@pytest.mark.usefixtures("store")
def test_an_unresponsive_store_is_not_searched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def fail(*_: object, **__: object) -> list[str]:
        raise StoreUnreachable("no answer")

    monkeypatch.setattr(Memories, "ids", fail)
    monkeypatch.setattr(Memories, "search", lambda _, query, **__: searched.append(query))
    where = str(home), str(home.parent), "codex.s1", None
    found = model_context.build_hook_context(
        RecallRequest(where, "when do deploys happen?", time.monotonic() + 60)
    )
    assert DEPLOY in found.text
    assert (found.error, searched) == ("no answer", [])


_LOCK = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("PRAGMA locking_mode=EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
connection.execute("CREATE TABLE locked(value)")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lock(home: Path) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Return a function that locks the store in another process, against readers too."""
    started: list[subprocess.Popen[bytes]] = []

    def lock_store() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", _LOCK, str(home / "memories.db")]
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == b"locked\n"
        return program

    yield lock_store
    for program in started:
        program.kill()
        program.communicate(timeout=60)


def failures(home: Path) -> list[tuple[str, int, int]]:
    """Return the runs and the failures of each event."""
    return [(stamp.event, stamp.runs, stamp.failures) for stamp in runs.read_runs(str(home))]


@pytest.mark.thorough
@pytest.mark.usefixtures("store")
def test_a_session_recalls_from_the_scratchpad_while_the_store_is_locked(
    hook: Hook, home: Path, lock: Callable[[], "subprocess.Popen[bytes]"]
) -> None:
    program = lock()
    assert DEPLOY in hook("session-start", {"session_id": "s0"}, seconds="30").context
    assert failures(home) == [("session-start", 1, 0)]
    asked = {"prompt": "when do deploys happen?"}
    first = hook(
        "user-prompt", asked, seconds="2"
    )  # it waits for the store, and may be killed while it does
    assert first.code == 0
    assert failures(home)[1] == ("user-prompt", 1, 1)
    second = hook("user-prompt", asked, seconds="30").context
    assert DEPLOY in first.context or DEPLOY in second
    assert (home / "hooks.log").read_text().splitlines()[-1].endswith(NOT_ASKED)
    assert failures(home)[1] == ("user-prompt", 2, 2)
    program.kill()
    program.wait(60)
    until = time.monotonic() + 120
    while session.read(
        str(home), "claude-code.s1"
    ).suspect_from:  # the second hook may still probe the store
        hook("user-prompt", asked, seconds="30")
        time.sleep(0.05)
        assert time.monotonic() < until
    known = failures(home)[1]
    hook("pre-compact", seconds="30")
    assert DEPLOY in hook("user-prompt", asked, seconds="30").context
    assert failures(home)[-1] == ("user-prompt", known[1] + 1, known[2])


def test_a_damaged_store_is_reported_each_time(hook: Hook, home: Path) -> None:
    """The probe after the answer may take as long as it needs."""
    home.mkdir(parents=True)
    (home / "memories.db").write_bytes(b"<html>not a database</html>" * 1000)
    for count in (1, 2, 3):
        assert hook("user-prompt", {"prompt": "when do deploys happen?"}).silent
        assert failures(home) == [("user-prompt", count, count)]
    assert "not a SQLite database" in (home / "hooks.log").read_text().splitlines()[0]
    noted = [json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()]
    assert {each["outcome"] for each in noted if each["op"] == "hook.user-prompt"} == {"degraded"}
