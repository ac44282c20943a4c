"""`AgentMemory.health` reports problems, changes nothing, and never raises."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memories import AgentMemory, ContextBuilder, MCPError, Memories, MemoryGateway, MemoryPolicy
from memories.context.memories_backend import MemoriesBackend

pytestmark = pytest.mark.usefixtures("fake_embedder")


class Failing(MemoriesBackend):
    """Our engine, in which a test can make each operation raise an error."""

    def __init__(self, memories: Memories) -> None:
        super().__init__(memories)
        self.errors: dict[str, Exception] = {}

    def _fail(self, operation: str) -> None:
        if operation in self.errors:
            raise self.errors[operation]

    def append(self, turn: Any) -> str:
        self._fail("append")
        return super().append(turn)

    def tail(self, conversation_id: str, n: int) -> list[dict[str, Any]]:
        self._fail("tail")
        return super().tail(conversation_id, n)

    def count_window(self, window: str) -> int:
        self._fail("count_window")
        return super().count_window(window)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Failing]:
    """A backend that fails when a test says so."""
    with Memories(f"sqlite:///{tmp_path}/m.db") as memories:
        yield Failing(memories)


@pytest.fixture
def memory(backend: Failing) -> AgentMemory:
    """An agent's memory over the backend."""
    gateway = MemoryGateway("memories", backend=backend)
    return AgentMemory(gateway, ContextBuilder(gateway), MemoryPolicy(0.7, 3, gateway.count_window))


def test_a_responding_memory_is_healthy(memory: AgentMemory) -> None:
    health = memory.health()
    assert health.pop("query_latency_ms") > 0
    assert health == {
        "status": "healthy",
        "history": "ok",
        "memory": "ok",
        "queued_turns": 0,
        "refused_turns": 0,
    }


def test_a_health_check_stores_nothing_and_counts_no_read(
    memory: AgentMemory, backend: Failing
) -> None:
    memory.append("c", "user", "Hello")
    memory.remember("Ann prefers Fridays", "preference", 0.9, conversation_id="c")
    [before] = backend.memories.list().memories
    for _ in range(3):
        assert memory.health()["status"] == "healthy"
    status = backend.memories.status()
    assert (status.turn_count, status.memory_count) == (1, 1)
    assert backend.memories.list().memories == (before,)


@pytest.mark.parametrize(
    "error", [ConnectionError("nobody answers"), MCPError("the disk is\nbroken"), OSError("gone")]
)
@pytest.mark.parametrize(("operation", "part"), [("tail", "history"), ("count_window", "memory")])
def test_a_health_check_names_the_failing_part(
    memory: AgentMemory, backend: Failing, error: Exception, operation: str, part: str
) -> None:
    backend.errors[operation] = error
    health = memory.health()
    assert health["status"] == "degraded"
    assert health[part] == " ".join(str(error).split())
    assert health["memory" if part == "history" else "history"] == "ok"
    del backend.errors[operation]
    assert memory.health()["status"] == "healthy"


def test_only_problems_are_logged(
    memory: AgentMemory, backend: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "memories.context.memory")
    memory.health()
    assert [row for row in caplog.records if row.name == "memories.context.memory"] == []
    backend.errors = {
        "tail": MCPError("the disk is\nbroken"),
        "append": MCPError("the disk is full"),
    }
    memory.append("c", "user", "waits")
    caplog.clear()
    memory.health()
    [row] = [row for row in caplog.records if row.name == "memories.context.memory"]
    assert (row.levelname, row.getMessage(), vars(row)["fields"]) == (
        "WARNING", "degraded", {"history": "the disk is broken"},
    )  # fmt: skip
    backend.errors.clear()
    caplog.clear()
    memory.health()  # everything answers, but a turn still waits
    assert [row.getMessage() for row in caplog.records] == ["degraded"]


def test_a_memory_with_refused_turns_is_degraded(memory: AgentMemory) -> None:
    memory.gateway.queue.add({"nonsense": True})
    memory.gateway.drain()
    health = memory.health()
    assert (health["status"], health["queued_turns"], health["refused_turns"]) == ("degraded", 0, 1)


def test_a_memory_with_queued_turns_is_degraded(memory: AgentMemory, backend: Failing) -> None:
    backend.errors["append"] = MCPError("the disk is full")
    assert [memory.append("c", "user", text) for text in ("one", "two")] == [None, None]
    health = memory.health()
    assert (health["status"], health["history"], health["queued_turns"]) == ("degraded", "ok", 2)
    del backend.errors["append"]
    assert memory.health()["queued_turns"] == 2  # a health check stores nothing
    assert memory.append("c", "user", "three")
    health = memory.health()
    assert (health["status"], health["queued_turns"]) == ("healthy", 0)


def test_a_memory_with_an_unreadable_queue_is_degraded(memory: AgentMemory) -> None:
    memory.gateway.queue.path.mkdir()
    health = memory.health()
    assert (health["status"], health["queued_turns"]) == ("degraded", None)


def test_a_memory_whose_store_file_is_not_a_store_is_degraded(tmp_path: Path) -> None:
    file = tmp_path / "broken.db"
    file.write_bytes(b"this is no database, but it is long enough to be taken for one\n" * 100)
    with MemoryGateway(str(file)) as gateway:
        health = AgentMemory(gateway, ContextBuilder(gateway), MemoryPolicy()).health()
    assert health["status"] == "degraded"
    assert str(file) in health["history"]
    assert health["memory"] == health["history"]
