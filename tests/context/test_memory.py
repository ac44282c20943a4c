"""`AgentMemory` never raises, for any input and any failure; the log says what went wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memories import AgentMemory, ContextBuilder, MCPError, Memories, MemoryGateway, MemoryPolicy
from memories.context.memories_backend import MemoriesBackend

pytestmark = pytest.mark.usefixtures("fake_embedder")

JUNK = [
    None, b"bytes", b"", 3, 0, -1.5, True, float("nan"), [], ["c"], {}, {"a": 1}, object(), "", " ", "\n", "\0",
    "\ud800", "a\ud800b", "\u200b", "\ufeff", "a\nb", "\x1b[2J", "x" * 300, "x" * 200_000, "\ud800" * 200_000,
    10**400,
]  # fmt: skip
IDS = [f"{number}-{type(junk).__name__}" for number, junk in enumerate(JUNK)]
KNOWN = (
    "turn not stored",
    "message changed before storing",
    "memory not stored",
    "memory rejected",
)


class Failing(MemoriesBackend):
    """Our engine, which stores neither turns nor memories while `error` is set."""

    error: Exception | None = None

    def append(self, turn: Any) -> str:
        if self.error:
            raise self.error
        return super().append(turn)

    def write(self, item: Any, window: str | None) -> str:
        if self.error:
            raise self.error
        return super().write(item, window)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Failing]:
    """A backend that fails when a test says so."""
    with Memories(f"sqlite:///{tmp_path}/m.db") as memories:
        yield Failing(memories)


@pytest.fixture
def memory(backend: Failing, caplog: pytest.LogCaptureFixture) -> AgentMemory:
    """An agent's memory over the backend; its log is captured."""
    caplog.set_level("INFO", "memories.context.memory")
    gateway = MemoryGateway("memories", backend=backend)
    return AgentMemory(
        gateway, ContextBuilder(gateway), MemoryPolicy(0.7, 1_000, gateway.count_window)
    )


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return level and fields of each log entry with this name."""
    return [
        (row.levelname, vars(row)["fields"]) for row in caplog.records if row.getMessage() == name
    ]


# --- junk


@pytest.mark.parametrize("junk", JUNK, ids=IDS)
@pytest.mark.parametrize(
    "place", ["conversation_id", "role", "text", "ts", "message_id", "channel"]
)
@pytest.mark.thorough
def test_append_never_raises_on_invalid_input(
    memory: AgentMemory, caplog: pytest.LogCaptureFixture, place: str, junk: Any
) -> None:
    made = memory.append(
        **({"conversation_id": "c", "role": "user", "text": "Hello"} | {place: junk})
    )
    failures = logged(caplog, "turn not stored")
    assert (made is None) == bool(failures)
    for level, fields in failures:
        assert (level, fields["queued"], fields["kind"]) == ("ERROR", False, "InvalidInput")
        assert fields["error"].isprintable()
        assert len(fields["error"]) < 700
    assert not memory.gateway.queue
    assert memory.append("c", "user", "after") is not None


@pytest.mark.parametrize("junk", JUNK, ids=IDS)
@pytest.mark.parametrize(
    "place",
    [
        "text",
        "memory_type",
        "confidence",
        "conversation_id",
        "entities",
        "source",
        "tags",
        "window",
    ],
)
@pytest.mark.thorough
def test_remember_never_raises_on_invalid_input(
    memory: AgentMemory, caplog: pytest.LogCaptureFixture, place: str, junk: Any
) -> None:
    given = {"text": "Ann keeps bees", "memory_type": "fact", "confidence": 0.9} | {place: junk}
    made = memory.remember(**given)
    failures = logged(caplog, "memory not stored")
    assert (made is None) == bool(failures or logged(caplog, "memory rejected"))
    for level, fields in failures:
        assert (level, fields["type"]) == ("ERROR", "fact")
        assert fields["kind"] == "InvalidInput"
        assert len(fields["error"]) < 700
    assert memory.remember("Bob plays chess", "fact", 0.9) is not None


@pytest.mark.parametrize(
    "text",
    [
        "a\0b",
        "a\ud800b",
        "x" * 1_000_001,
        pytest.param("\ufb2c" * 350_000, marks=pytest.mark.thorough),
    ],
    ids=["nul", "half", "long", "grows"],
)
def test_the_storable_part_of_a_message_is_stored_and_the_change_logged(
    memory: AgentMemory, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    assert memory.append("c", "user", text) == "c#0"
    assert logged(caplog, "message changed before storing") == [
        ("WARNING", {"characters": len(text)})
    ]
    [document] = memory.gateway.tail_history("c", 1)
    assert len(document["text"]) <= 1_000_000


# --- logs


@pytest.mark.parametrize(
    "error",
    [MCPError("the disk is\nfull"), ConnectionError(), OSError("gone"), RuntimeError("a bug")],
)
def test_the_reason_why_a_turn_is_not_stored_is_logged(
    memory: AgentMemory, backend: Failing, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    backend.error = error
    assert memory.append("c", "user", "what I said") is None
    waits = isinstance(error, MCPError | ConnectionError)
    reason = {"the disk is\nfull": "the disk is full", "": "ConnectionError"}.get(
        str(error), str(error)
    )
    assert logged(caplog, "turn not stored") == [
        (
            "ERROR",
            {
                "conversation_id": "c",
                "queued": waits,
                "error": reason,
                "kind": type(error).__name__,
            },
        )
    ]
    assert [entry["text"] for entry in memory.gateway.queue.entries()] == ["what I said"] * waits
    assert "what I said" not in json.dumps([vars(row)["fields"] for row in caplog.records])


def test_the_reason_why_a_memory_is_not_stored_is_logged(
    memory: AgentMemory, backend: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    backend.error = MCPError("the disk is full")
    assert memory.remember("Ann keeps bees", "fact", 0.9) is None
    assert logged(caplog, "memory not stored") == [
        ("ERROR", {"type": "fact", "error": "the disk is full", "kind": "MCPError"})
    ]
    assert memory.remember("Ann keeps bees", "fact", 0.1) is None
    assert logged(caplog, "memory rejected") == [("INFO", {"type": "fact", "confidence": 0.1})]
    memory.policy.max_per_window = 0
    assert memory.remember("Ann keeps bees", "fact", 0.9, window="w") is None
    assert logged(caplog, "memory rejected: the window is full") == [("INFO", {"window": "w"})]


# --- messages


def test_equal_messages_are_separate_turns(memory: AgentMemory, backend: Failing) -> None:
    """Two messages have the same time, and one waits in the queue."""
    moment = "2026-05-31T10:00:00Z"
    assert [memory.append("c", "user", "ok", ts=moment) for _ in range(2)] == ["c#0", "c#1"]
    backend.error = MCPError("full")
    assert memory.append("c", "user", "ok", ts=moment) is None
    backend.error = None
    assert memory.append("c", "user", "ok", ts=moment) == "c#3"
    documents = memory.gateway.tail_history("c", 9)
    assert [document["text"] for document in documents] == ["ok"] * 4
    assert all("message_id" not in document["metadata"] for document in documents)


def test_a_message_with_an_id_is_stored_once(memory: AgentMemory) -> None:
    assert [
        memory.append("c", "user", "ok", message_id=named) for named in ("m1", " m1 ", "m2")
    ] == [
        "c#0",
        "c#0",
        "c#1",
    ]
