"""Deadlines: calls to a memory that hangs time out, and agents continue.

Turns that can't be stored in the meantime are queued and shown.
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memories import AgentMemory, ContextBuilder, Memories, MemoryGateway, MemoryPolicy, load_config
from memories.context.memories_backend import MemoriesBackend
from memories.core.deadline import WAIT, Deadline, MemoryTimeout
from memories.errors import InvalidInput

TS = "2026-05-31T10:00:00+02:00"
SOON = 0.2  # seconds


class Hanging(MemoriesBackend):
    """Our engine, in which each call waits until it is released."""

    def __init__(self, memories: Memories) -> None:
        super().__init__(memories)
        self.release = threading.Event()
        self.release.set()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in ("append", "tail", "write", "recall", "count_window", "ensure_collections"):
            return value

        def waits(*arguments: Any) -> Any:
            assert self.release.wait(60)
            return value(*arguments)

        return waits


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    """A backend that hangs until it is released."""
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake") as memories:
        backend = Hanging(memories)
        yield backend
        backend.release.set()


@pytest.fixture
def gateway(hanging: Hanging) -> Iterator[MemoryGateway]:
    """A gateway over the backend that hangs."""
    with MemoryGateway("memories", backend=hanging, timeout_seconds=60) as value:
        yield value


def hang(gateway: MemoryGateway, hanging: Hanging) -> None:
    """From now on, answer no call. The short deadline begins only now, so earlier calls have enough
    time on any machine.
    """
    hanging.release.clear()
    gateway._deadline.seconds = SOON


def go_on(gateway: MemoryGateway, hanging: Hanging) -> None:
    """Answer calls again, including abandoned ones."""
    hanging.release.set()
    gateway._deadline.seconds = 60
    while gateway._deadline._abandoned:
        threading.Event().wait(0.01)


def history(gateway: MemoryGateway) -> list[tuple[str, bool]]:
    """Return the text of each turn, and whether it is still waiting to be stored."""
    return [(turn["text"], "pending" in turn["metadata"]) for turn in gateway.tail_history("c", 10)]


@pytest.mark.parametrize(
    "call",
    [
        lambda gateway: gateway.ensure_collections(["history"]),
        lambda gateway: gateway.append_history("c", "user", "hello", 0, TS),
        lambda gateway: gateway.tail_history("c", 5),
        lambda gateway: gateway.write_memory("hello", "fact", 0.9, TS),
        lambda gateway: gateway.recall_memory("hello", 5, 0.5),
        lambda gateway: gateway.count_window("w"),
    ],
    ids=[
        "ensure_collections",
        "append_history",
        "tail_history",
        "write_memory",
        "recall_memory",
        "count_window",
    ],
)
def test_a_call_to_a_memory_that_hangs_times_out(
    gateway: MemoryGateway, hanging: Hanging, call: Callable[[MemoryGateway], object]
) -> None:
    hang(gateway, hanging)
    limit = (
        r"did not answer within 0\.2 s \(MEMORY_TIMEOUT_SECONDS sets this limit, except in hooks\)"
    )
    with pytest.raises(MemoryTimeout, match=limit):
        call(gateway)
    with pytest.raises(ConnectionError, match="still has not answered an earlier call"):
        gateway.recall_memory("hello", 5, 0.5)
    go_on(gateway, hanging)  # an abandoned call must not use the store, which is closed next


@pytest.mark.parametrize(
    ("seconds", "limit"), [(1000, "1000 s"), (1e8, "100000000 s"), (4.98765, "4.988 s")]
)
def test_the_error_names_the_limit_in_plain_digits(
    seconds: float, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(Deadline, "_wait_for", lambda *_: False)
    with pytest.raises(MemoryTimeout, match=f"within {limit} "):
        Deadline(seconds).run(lambda: released.wait(60))
    released.set()


def test_turns_during_a_timeout_are_queued_shown_and_stored_once(
    gateway: MemoryGateway, hanging: Hanging
) -> None:
    agent = AgentMemory(
        gateway, ContextBuilder(gateway), MemoryPolicy(0.7, 3, gateway.count_window)
    )
    agent.append("c", "user", "before")
    hang(gateway, hanging)
    assert agent.append("c", "user", "one") is None
    assert agent.append("c", "assistant", "two") is None
    assert history(gateway) == [("one", True), ("two", True)]
    assert all("answer" in turn["error"] for turn in gateway.tail_history("c", 10))
    context = agent.context("c", "what now?")
    assert [turn.text for turn in context["history"]] == ["one", "two"]
    assert context["metadata"]["degraded"]
    assert [(turn.content, turn.waiting) for turn in hanging.memories.tail_turns("c")][-2:] == [
        ("one", True),
        ("two", True),
    ]
    go_on(gateway, hanging)
    gateway.drain()
    agent.append("c", "user", "three")
    assert history(gateway) == [("before", False), ("one", False), ("two", False), ("three", False)]
    assert [turn.waiting for turn in hanging.memories.tail_turns("c")] == [False] * 4


def test_a_deadline_passes_on_errors_and_results(gateway: MemoryGateway) -> None:
    with pytest.raises(InvalidInput):
        gateway.append_history("c", "robot", "hello", 0, TS)
    with pytest.raises(InvalidInput, match="has different content"):
        for text in ("one", "two"):
            gateway.append_history("c", "user", text, 0, TS, "m1")
    assert not gateway.queue
    deadline = Deadline(5)
    for error in (TimeoutError("of its own"), KeyError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            deadline.run(lambda error=error: (_ for _ in ()).throw(error))  # type: ignore[misc]
        assert caught.value is error
    assert deadline.run(lambda: 5) == 5
    assert Deadline(None).run(threading.get_ident) == threading.get_ident()


def test_consecutive_calls_share_a_thread() -> None:
    deadline = Deadline(60)
    assert len({deadline.run(threading.get_ident) for _ in range(10)}) == 1
    deadline.close()


def test_closing_a_deadline_leaves_no_thread() -> None:
    deadline, release, threads = Deadline(SOON), threading.Event(), set[threading.Thread]()

    def hangs() -> None:
        threads.add(threading.current_thread())
        release.wait(60)

    deadline.run(lambda: threads.add(threading.current_thread()))
    with pytest.raises(MemoryTimeout):
        deadline.run(hangs)
    deadline.close()
    release.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_time_in_the_embedder_does_not_count_towards_the_deadline_of_the_store() -> None:
    """The embedder has limits of its own; a hook, which has no time to spare, counts both times and
    reports which part was late.
    """

    def embed(release: threading.Event, seconds: float) -> bool:
        wait = WAIT.get()
        assert wait is not None
        with wait:
            return release.wait(seconds)

    assert not Deadline(SOON).run(lambda: embed(threading.Event(), 3 * SOON))
    released = threading.Event()

    def then_the_store_hangs() -> None:
        embed(threading.Event(), 3 * SOON)
        released.wait(60)

    with pytest.raises(MemoryTimeout, match="the store did not answer within"):
        Deadline(SOON).run(then_the_store_hangs)
    with pytest.raises(MemoryTimeout, match="the embedder did not answer within"):
        Deadline(SOON, whole=True).run(lambda: embed(released, 60))
    released.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_starts_its_own_threads() -> None:
    deadline = Deadline(60)
    deadline.run(lambda: None)
    child = os.fork()
    if child == 0:
        os._exit(deadline.run(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(("setting", "seconds"), [("3", 3), ("none", None), (None, 10)])
def test_the_setting_determines_the_deadline(
    tmp_path: Path, setting: str | None, seconds: int | None
) -> None:
    environment = {} if setting is None else {"MEMORY_TIMEOUT_SECONDS": setting}
    config = load_config({"store": f"sqlite:///{tmp_path}/m.db"}, environment=environment)
    with Memories(embedder="fake", config=config) as memories:
        assert MemoriesBackend(memories).timeout_seconds == seconds


def test_a_long_message_is_kept_whole_by_an_agent(gateway: MemoryGateway, hanging: Hanging) -> None:
    agent, text = AgentMemory.__new__(AgentMemory), "The ferry leaves at nine. " * 10_000
    agent.__init__(gateway, ContextBuilder(gateway), MemoryPolicy())  # type: ignore[misc]
    assert agent.append("c", "user", text) == "c#0"
    assert gateway.tail_history("c", 5)[0]["text"] == text
    assert agent.context("c", "when?")["history"][0].text.startswith("The ferry")
    with pytest.raises(
        ValueError, match="text is 260000 characters; a turn can have at most 100000"
    ):
        gateway.append_history("c", "user", text, 0, TS)
    hang(gateway, hanging)
    assert agent.append("c", "user", f"{text} again") is None
    go_on(gateway, hanging)
    gateway.drain()
    assert [len(turn["text"]) for turn in gateway.tail_history("c", 5)] == [
        len(text),
        len(text) + 6,
    ]


def test_a_queued_turn_that_will_never_be_accepted_is_put_aside(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with (
        Memories(url, embedder="fake") as shared,
        Memories(url, namespace="bob", embedder="fake") as bob,
    ):
        shared.add_turns("team", ["hello"])
        gateway = MemoryGateway("memories", backend=MemoriesBackend(bob))
        with pytest.raises(ValueError, match="is in namespace shared, but you write to bob"):
            gateway.append_history("team", "user", "hello", 0, TS)
        assert not gateway.queue
