"""The gateway over our own engine: stored turns and memories are found again, in order and once, by
other processes and after a crash.
"""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from memories import (
    AgentMemory,
    ContextBuilder,
    MCPError,
    Memories,
    MemoryGateway,
    MemoryPolicy,
    load_config,
)
from memories.context import fence, memories_backend
from memories.context.admission import Admission
from memories.context.fence import MAX_SHOWN
from memories.context.memories_backend import MemoriesBackend
from memories.context.protocol import ROLES, HistoryTurn, UnsupportedEndpoint
from memories.core import logs
from memories.core.deadline import Deadline
from memories.errors import InvalidInput
from memories.guard.origin import user
from memories.guard.validate import content
from memories.stores.records import MAX_INDEX
from rendered import read

pytestmark = pytest.mark.usefixtures("home", "fake_embedder")

TS = "2026-05-31T10:00:00+02:00"
HOSTILE = Path(__file__).parents[1] / "data" / "hostile_contents.jsonl"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The path of a store that doesn't exist yet."""
    return str(tmp_path / "kept" / "m.db")


@pytest.fixture
def gateway(store: str) -> Iterator[MemoryGateway]:
    """A gateway over a new store."""
    with MemoryGateway(store) as opened:
        yield opened


class Flaky(MemoriesBackend):
    """Our engine, which fails while `error` is set."""

    error: Exception | None = None
    fails_after = 0  # if set, it stores before it raises, as if the acknowledgement were lost

    def append(self, turn: Any) -> str:
        if self.error and not self.fails_after:
            raise self.error
        stored = super().append(turn)
        if self.error:
            raise self.error
        return stored


@pytest.fixture
def flaky(store: str) -> Iterator[Flaky]:
    """A backend that fails when a test says so."""
    with Memories(f"sqlite:///{store}") as memories:
        yield Flaky(memories)


def say(
    gateway: MemoryGateway, text: str, index: int = 0, conversation: str = "c", **named: Any
) -> str:
    """Store a turn; return its id."""
    return gateway.append_history(conversation, "user", text, index, TS, **named)


def texts_of(gateway: MemoryGateway, conversation: str = "c", n: int = 1_000) -> list[str]:
    """Return the texts of a conversation's last turns."""
    return [document["text"] for document in gateway.tail_history(conversation, n)]


def agent(gateway: MemoryGateway, most: int = 3, least: float = 0.7) -> AgentMemory:
    """Return an agent's memory over the gateway."""
    return AgentMemory(
        gateway, ContextBuilder(gateway), MemoryPolicy(least, most, gateway.count_window)
    )


# --- history


def test_ac_func_001_every_message_is_stored_with_its_metadata(
    gateway: MemoryGateway,
) -> None:
    first = gateway.append_history("c", "user", "Hello", 0, TS, "m1", "slack")
    second = gateway.append_history("c", "assistant", "  Good day!\n", 1, "2026-05-31T08:00:01Z")
    third = gateway.append_history("c", "system", "line", 2, "2026-05-31")
    documents = gateway.tail_history("c", 16)
    assert [document["id"] for document in documents] == [first, second, third]
    assert documents[0].pop("origin")[:3] == ("agent", "python", user())
    assert documents[0] == {
        "id": "c#0",
        "text": "Hello",
        "metadata": {
            "conversation_id": "c",
            "role": "user",
            "ts": "2026-05-31T10:00:00.000+02:00",
            "turn_index": 0,
            "message_id": "m1",
            "channel": "slack",
        },
    }
    assert documents[1]["text"] == "  Good day!\n"
    assert documents[1]["metadata"] == {
        "conversation_id": "c", "role": "assistant", "ts": "2026-05-31T08:00:01.000Z", "turn_index": 1,
    }  # fmt: skip


def test_ac_func_002_the_last_turns_come_in_order(gateway: MemoryGateway) -> None:
    for number in range(20):
        say(gateway, f"turn {number}", number)
    assert texts_of(gateway, n=16) == [f"turn {number}" for number in range(4, 20)]
    indexes = [document["metadata"]["turn_index"] for document in gateway.tail_history("c", 5)]
    assert indexes == [15, 16, 17, 18, 19]


def test_conversations_are_isolated_from_each_other(gateway: MemoryGateway) -> None:
    for number in range(4):
        say(gateway, f"a{number}", number, "a")
        say(gateway, f"b{number}", number, "a#")
    assert (texts_of(gateway, "a"), texts_of(gateway, "a#")) == (
        ["a0", "a1", "a2", "a3"],
        ["b0", "b1", "b2", "b3"],
    )
    assert texts_of(gateway, "A") == []


def test_a_message_id_is_stored_once(gateway: MemoryGateway) -> None:
    assert say(gateway, "once", 0, message_id="m1") == say(gateway, "once", 1, message_id="m1")
    with pytest.raises(
        ValueError, match='message id "m1" belongs to c#0, which has different content'
    ):
        say(gateway, "twice", 1, message_id="m1")
    assert not gateway.queue
    assert say(gateway, "elsewhere", 0, "d", message_id="m1") == "d#0"
    assert texts_of(gateway) == ["once"]


def test_without_a_message_id_only_an_identical_turn_is_a_repetition(
    gateway: MemoryGateway,
) -> None:
    assert say(gateway, "ok", 0) == say(gateway, "ok", 0)
    others = {say(gateway, "ok", 1), say(gateway, "OK", 0), say(gateway, "ok", 0, channel="w")}
    assert len({"c#0", *others}) == 4
    assert gateway.append_history("c", "assistant", "ok", 0, TS) == "c#4"


def test_two_writers_that_request_the_same_index_get_different_indexes(
    gateway: MemoryGateway, store: str
) -> None:
    with MemoryGateway(store) as other:
        assert (say(gateway, "mine", 7), say(other, "theirs", 7), say(gateway, "next", 2)) == (
            "c#7",
            "c#8",
            "c#9",
        )


def test_a_turn_gets_the_requested_index_or_the_one_after_the_last(
    gateway: MemoryGateway,
) -> None:
    asked = (3, 0, 4, 9, 9, 2)
    assert [say(gateway, f"{number}", index) for number, index in enumerate(asked)] == [
        "c#3", "c#4", "c#5", "c#9", "c#10", "c#11",
    ]  # fmt: skip


def test_a_turn_after_the_highest_index_is_still_in_the_context(gateway: MemoryGateway) -> None:
    for number, index in enumerate((MAX_INDEX, 0)):
        say(gateway, str(number), index)
    context = ContextBuilder(gateway).build_context("c", "what now?")
    assert [turn.text for turn in context["history"]] == ["0", "1"]


@pytest.mark.thorough
def test_many_processes_lose_no_turn_and_leave_no_gaps_in_the_numbers(
    gateway: MemoryGateway, store: str, clean_environment: Mapping[str, str]
) -> None:
    script = """
import sys
from memories import MemoryGateway
with MemoryGateway(sys.argv[1]) as gateway:
    for number in range(15):
        gateway.append_history("c", "user", f"{sys.argv[2]}-{number}", number, "2026-05-31")
"""
    command = [sys.executable, "-c", script, store]
    running = [
        subprocess.Popen([*command, str(name)], env=dict(clean_environment)) for name in range(3)
    ]
    assert [process.wait(300) for process in running] == [0, 0, 0]
    documents = gateway.tail_history("c", 1_000)
    assert [document["metadata"]["turn_index"] for document in documents] == list(range(45))
    for name in range(3):
        own = [
            document["text"] for document in documents if document["text"].startswith(f"{name}-")
        ]
        assert own == [f"{name}-{number}" for number in range(15)]


@pytest.mark.parametrize("n", [0, -1, 1_001, 1.5, "3", None, True])
def test_an_invalid_number_of_turns_is_refused(gateway: MemoryGateway, n: Any) -> None:
    with pytest.raises(ValueError, match="n must be a whole number from 1"):
        gateway.tail_history("c", n)


def test_an_invalid_turn_is_refused_and_not_queued(gateway: MemoryGateway) -> None:
    for conversation, role, text, index in [
        ("", "user", "x", 0),
        ("c", "bot", "x", 0),
        ("c", "user", "", 0),
    ]:
        with pytest.raises(ValueError, match=r"\w"):
            gateway.append_history(conversation, role, text, index, TS)
    with pytest.raises(ValueError, match="conversation_id is empty"):
        gateway.tail_history("", 1)
    assert not gateway.queue


# --- memories


def remember(gateway: MemoryGateway, text: str, confidence: float = 0.9, **named: Any) -> str:
    """Store a memory; return its id."""
    return gateway.write_memory(text, "fact", confidence, TS, **named)


def test_ac_func_003_a_memory_is_stored_with_type_and_confidence(gateway: MemoryGateway) -> None:
    made = gateway.write_memory(
        "We ship on Fridays", "decision", 0.85, TS, "standup", "Ann,Bob", "chat", "plan,ship"
    )
    [document] = gateway.recall_memory("when do we ship on Fridays?", 8, 0.7)
    assert (document["id"], document["text"]) == (made, "We ship on Fridays")
    assert document["metadata"] == {
        "type": "decision", "confidence": 0.85, "ts": "2026-05-31T10:00:00.000+02:00", "namespace": "shared",
        "conversation_id": "standup", "entities": "Ann,Bob", "source": "chat", "tags": "plan,ship",
    }  # fmt: skip
    assert 0 < document["similarity"] <= 1


def test_ac_func_004_the_recalled_memory_answers_the_query(gateway: MemoryGateway) -> None:
    for text in (
        "Ann keeps bees",
        "The server runs on port 8080",
        "Bob plays chess",
        "Tea is drunk at five",
    ):
        remember(gateway, text)
    assert [
        found["text"]
        for found in gateway.recall_memory("which port does the server run on?", 1, 0.0)
    ] == ["The server runs on port 8080"]
    assert gateway.recall_memory("zzqx vlorp", 8, 0.0) == []


def test_recall_filters_by_confidence_and_conversation(gateway: MemoryGateway) -> None:
    remember(gateway, "Bees: Ann keeps them", 0.95, conversation_id="a")
    remember(gateway, "Bees: Bob fears them", 0.6, conversation_id="b")
    assert len(gateway.recall_memory("bees", 8, 0.0)) == 2
    assert [found["text"] for found in gateway.recall_memory("bees", 8, 0.7)] == [
        "Bees: Ann keeps them"
    ]
    assert [found["text"] for found in gateway.recall_memory("bees", 8, 0.0, "b")] == [
        "Bees: Bob fears them"
    ]
    assert len(gateway.recall_memory("bees", 1, 0.0)) == 1


def test_a_correction_replacing_a_hit_must_also_be_confident_enough(
    gateway: MemoryGateway,
) -> None:
    remember(gateway, "Deploys happen on Tuesdays", 0.9)
    remember(gateway, "Deploys happen on Thursdays", 0.4)
    assert gateway.recall_memory("when do deploys happen?", 8, 0.7) == []
    assert [
        found["text"] for found in gateway.recall_memory("when do deploys happen?", 8, 0.3)
    ] == ["Deploys happen on Thursdays"]


def test_a_repetition_with_higher_confidence_raises_a_memorys_confidence(
    gateway: MemoryGateway,
) -> None:
    weak = remember(gateway, "Ann keeps bees", 0.5)
    sure = remember(gateway, "Ann keeps bees", 0.9)
    assert sure == weak  # the memory, whose confidence has risen
    assert sure == remember(gateway, "Ann keeps bees", 0.8)  # the memory says the same already
    [found] = gateway.recall_memory("bees", 8, 0.7)
    assert (found["id"], found["metadata"]["confidence"]) == (sure, 0.9)


def test_a_different_conversation_or_type_makes_a_separate_memory(
    gateway: MemoryGateway,
) -> None:
    made = [
        gateway.write_memory("Ann keeps bees", kind, 0.9, TS, conversation)
        for kind in ("fact", "decision")
        for conversation in (None, "a", "b")
    ]
    assert len(set(made)) == 6
    found = gateway.recall_memory("bees", 8, 0.0)
    kinds = {(one["metadata"]["type"], one["metadata"].get("conversation_id")) for one in found}
    assert kinds == {
        (kind, conversation) for kind in ("fact", "decision") for conversation in (None, "a", "b")
    }
    assert {one["metadata"]["type"] for one in gateway.recall_memory("bees", 8, 0.0, "a")} == {
        "fact",
        "decision",
    }


def test_a_repetition_is_merged_only_into_a_memory_of_its_conversation(
    gateway: MemoryGateway,
) -> None:
    weak, other = (
        remember(gateway, "Ann keeps bees", 0.5, conversation_id=each) for each in ("a", "b")
    )
    sure = remember(gateway, "Ann keeps bees", 0.9, conversation_id="a")
    found = {
        one["id"]: one["metadata"]["confidence"] for one in gateway.recall_memory("bees", 8, 0.0)
    }
    assert found == {sure: 0.9, other: 0.5}
    assert weak == sure
    assert remember(gateway, "Ann keeps bees", 0.5, conversation_id="b") == other


def test_a_repetition_with_an_odd_confidence_is_stored_once(gateway: MemoryGateway) -> None:
    assert remember(gateway, "Ann keeps bees", 0.712349) == remember(
        gateway, "Ann keeps bees", 0.712349
    )
    assert len(gateway.recall_memory("bees", 8, 0.0)) == 1


@pytest.mark.parametrize(
    ("k", "least"), [(0, 0.5), (1_001, 0.5), ("8", 0.5), (8, -0.1), (8, 1.1), (8, None)]
)
def test_a_recall_with_invalid_arguments_is_refused(
    gateway: MemoryGateway, k: Any, least: Any
) -> None:
    with pytest.raises(ValueError, match="must be a"):
        gateway.recall_memory("q", k, least)


def test_an_invalid_memory_is_refused(gateway: MemoryGateway) -> None:
    for text, kind, sure in [
        ("", "fact", 0.9),
        ("x", "thought", 0.9),
        ("x", "fact", 2.0),
        ("x" * 2_001, "fact", 0.9),
    ]:
        with pytest.raises(ValueError, match=r"\w"):
            gateway.write_memory(text, kind, sure, TS)
    with pytest.raises(ValueError, match="query is empty"):
        gateway.recall_memory("", 8, 0.7)
    assert gateway.recall_memory("long " * 5_000, 8, 0.7) == []


# --- names

NAMES = [(" c ", "c"), ("cafe\u0301", "caf\u00e9"), ("\u3000\u212bngstrom\n", "\u00c5ngstrom")]


@pytest.mark.parametrize(("written", "kept"), NAMES)
def test_unicode_forms_of_a_name_identify_the_same_conversation(
    flaky: Flaky, written: str, kept: str
) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    assert say(gateway, "one", 0, written) == f"{kept}#0"
    flaky.error = MCPError("full")
    for name in (kept, written):
        with pytest.raises(MCPError):
            say(gateway, f"{name} waits", 0, name, message_id=f"m {len(name)}")
    for name in (written, kept):
        assert texts_of(gateway, name) == ["one", f"{kept} waits", f"{written} waits"]
    flaky.error = None
    assert say(gateway, "last", 0, written) == f"{kept}#3"
    assert [texts_of(gateway, name)[-1] for name in (written, kept)] == ["last", "last"]
    assert flaky.memories.forget_turns(written).versions == 4


@pytest.mark.parametrize(("written", "kept"), NAMES)
def test_a_memory_is_recalled_by_any_spelling_of_its_conversation(
    gateway: MemoryGateway, written: str, kept: str
) -> None:
    first = remember(gateway, "Ann keeps bees", conversation_id=written)
    assert remember(gateway, "Ann keeps bees", conversation_id=kept) == first
    for name in (written, kept):
        [found] = gateway.recall_memory("bees", 8, 0.0, name)
        assert (found["id"], found["metadata"]["conversation_id"]) == (first, kept)


def test_all_spellings_of_a_conversation_share_its_window(
    gateway: MemoryGateway,
) -> None:
    memory = agent(gateway, most=1)
    memory._clock = lambda: datetime(2026, 5, 31, 10, tzinfo=UTC)
    made = [
        memory.remember(text, "fact", 0.9, conversation_id=name)
        for text, name in [("Ann keeps bees", "cafe\u0301"), ("Tea is drunk at five", " caf\u00e9")]
    ]
    assert made[0] is not None
    assert made[1] is None
    assert gateway.count_window("caf\u00e9@2026-05-31T10:00Z") == 1


@pytest.mark.parametrize(
    ("window", "tag"),
    [
        ("w", "w"),
        ("w" * 256, "w" * 256),
        *((window, None) for window in ("w" * 257, "a,b", " w", "w ", "a\nb")),
    ],
)
def test_a_window_whose_name_cannot_be_a_tag_is_counted_by_its_hash(
    window: str, tag: str | None
) -> None:
    found = memories_backend._window_tag(window)
    assert found == tag if tag else len(found) == len("hash ") + 32


# --- which memories are stored


def test_ac_func_005_a_memory_with_low_confidence_is_not_stored(gateway: MemoryGateway) -> None:
    memory = agent(gateway)
    assert memory.remember("Bees: maybe", "fact", 0.69) is None
    assert memory.remember("Bees: an observation", "observation", 0.9) is None
    made = memory.remember("Bees: surely", "fact", 0.7)
    assert [found["id"] for found in gateway.recall_memory("bees", 8, 0.0)] == [made]


def test_a_rejected_memory_has_a_reason(
    gateway: MemoryGateway, caplog: pytest.LogCaptureFixture
) -> None:
    memory = agent(gateway, most=1)
    text = "Bees: " + "x" * 2_000
    assert memory.offer(text, "fact", 0.9) == (
        None,
        "text is 2006 characters; a memory can have at most 2000; summarize it",
    )
    assert "0.7 or more" in memory.offer("Bees: maybe", "fact", 0.69).reason
    assert memory.remember(text, "fact", 0.9) is None  # the same refusal, without a reason
    stored = memory.offer("Bees: surely", "fact", 0.9)
    assert (stored.id is not None, stored.reason) == (True, "")
    assert (
        memory.offer("Bees: again", "fact", 0.9).reason
        == "the policy stores at most 1 memories in a window"
    )


@pytest.mark.parametrize("ts", ["2026-05-31T10:00:00.000+02:00", "2026-05-31T10:00:00.000-09:30"])
def test_a_memory_keeps_the_time_zone_of_its_writer(gateway: MemoryGateway, ts: str) -> None:
    stored = gateway.write_memory("Ann keeps bees", "fact", 0.9, ts)
    assert [found["metadata"]["ts"] for found in gateway.recall_memory("bees", 8, 0.0)] == [ts]
    with Memories(gateway._backend.memories.config.store, embedder="fake") as memories:
        memories.update(stored, "Ann keeps bees and wasps")
    [found] = gateway.recall_memory("bees", 8, 0.0)
    assert found["metadata"]["ts"].endswith("Z")  # a version of another writer


def test_ac_conf_004_the_setting_decides_what_is_stored(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.setenv("MCP_ENDPOINT", store)
    kept = []
    for least in ("0.9", "0.4"):
        monkeypatch.setenv("MEMORY_CONFIDENCE_MIN", least)
        kept.append(AgentMemory.start(load_config()).remember(f"Bees {least}", "fact", 0.5))
    assert kept[0] is None
    assert kept[1] is not None


def test_ac_func_006_a_window_takes_a_limited_number_of_memories(
    gateway: MemoryGateway, store: str
) -> None:
    texts = ["Ann keeps bees", "Bob plays chess", "Tea is drunk at five", "The moon is far"]
    stored = [agent(gateway).remember(text, "fact", 0.9, window="w") is not None for text in texts]
    assert stored == [True, True, True, False]
    with MemoryGateway(store) as reopened:  # its policy has counted nothing
        assert agent(reopened).remember("The sea is deep", "fact", 0.9, window="w") is None
        assert (
            agent(reopened).remember("The sea is deep", "fact", 0.9, window="another, with=signs\n")
            is not None
        )
        assert reopened.count_window("another, with=signs\n") == 1
        assert reopened.count_window("w") == 3


def test_ac_func_006_holds_across_processes(
    gateway: MemoryGateway, store: str, clean_environment: Mapping[str, str]
) -> None:
    script = """
import sys
from memories import AgentMemory, ContextBuilder, MemoryGateway, MemoryPolicy
gateway = MemoryGateway(sys.argv[1])
memory = AgentMemory(gateway, ContextBuilder(gateway), MemoryPolicy(0.7, 3, gateway.count_window))
sys.stdin.readline()
for number in range(4):
    memory.remember(f"process {sys.argv[2]} saw bird {number}", "fact", 0.9, window="w")
"""
    command = [sys.executable, "-c", script, store]
    running = [
        subprocess.Popen([*command, str(name)], env=dict(clean_environment), stdin=subprocess.PIPE)
        for name in range(2)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(300) for process in running] == [0, 0]
    assert gateway.count_window("w") == 3


def test_each_namespace_counts_its_own_windows(store: str) -> None:
    with (
        Memories(f"sqlite:///{store}") as shared,
        Memories(f"sqlite:///{store}", namespace="bob") as bob,
    ):
        remember(
            MemoryGateway("memories", backend=MemoriesBackend(shared)), "Ann keeps bees", window="w"
        )
        own = MemoryGateway("memories", backend=MemoriesBackend(bob))
        assert own.count_window("w") == 0
        remember(own, "Bob keeps bees", window="w")
        assert own.count_window("w") == 1


# --- the queue


@pytest.mark.parametrize(
    "error", [ConnectionError("nobody answers"), MCPError("full")], ids=["connection", "store"]
)
def test_turns_that_cannot_be_stored_are_queued_and_stored_in_order(
    flaky: Flaky, error: Exception
) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    say(gateway, "zero", 0)
    flaky.error = error
    for number, text in enumerate(("one", "two"), 1):
        with pytest.raises(type(error)) as raised:
            say(gateway, text, number, message_id=f"m{number}")
        assert raised.value.queued is True  # type: ignore[attr-defined]
    documents = gateway.tail_history("c", 16)
    assert [document["text"] for document in documents] == ["zero", "one", "two"]
    assert [document["metadata"].get("pending", False) for document in documents] == [
        False,
        True,
        True,
    ]
    assert [document["metadata"]["turn_index"] for document in documents] == [0, 1, 2]
    assert texts_of(gateway, "other") == []
    flaky.error = None
    assert say(gateway, "three", 3) == "c#3"
    assert texts_of(gateway) == ["zero", "one", "two", "three"]
    assert not gateway.queue
    assert not gateway.queue.path.exists()


def test_a_turn_stored_despite_an_error_is_not_stored_twice(flaky: Flaky) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    flaky.error, flaky.fails_after = MCPError("the answer was lost"), 1
    with pytest.raises(MCPError):
        say(gateway, "one")
    with pytest.raises(MCPError):
        say(gateway, "one")  # the caller tries again
    assert texts_of(gateway) == ["one"]
    flaky.error = None
    assert gateway.drain() == 2
    assert texts_of(gateway) == ["one"]


def test_a_turn_without_a_time_zone_keeps_its_time_in_any_zone(
    flaky: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    with time_zone(monkeypatch, "JST-9"):
        flaky.error = MCPError("full")
        for number, ts in enumerate(
            ("2026-05-31T10:00:00", "2026-05-31", "2026-05-31T10:00:00+02:00")
        ):
            with pytest.raises(MCPError):
                gateway.append_history("c", "user", str(number), 0, ts)
    with time_zone(monkeypatch, "EST5"):
        flaky.error = None
        assert gateway.drain() == 3
    moments = [document["metadata"]["ts"] for document in gateway.tail_history("c", 3)]
    assert moments == [
        "2026-05-31T01:00:00.000Z",
        "2026-05-30T15:00:00.000Z",
        "2026-05-31T10:00:00.000+02:00",
    ]


@contextmanager
def time_zone(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Set the time zone of this process."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


STRANGE = st.sampled_from(
    " ,=#:\ufeff\u200b\u200d\u2028\u202e\u0301\u00e9\u1160\u3000\u212b\U0001f468\U000e0041"
)
NEVER = st.sampled_from("\0\n\x1f\x85\ud800")  # in a name; a text may contain some of them
LETTERS = STRANGE | st.characters(exclude_categories=("Cc", "Cs"))
NAME = st.builds(
    "".join,
    st.tuples(
        st.text(LETTERS),
        st.sampled_from(["x", "e\u0301", "\u4e00", "x, a=1", "#1"]),
        st.text(LETTERS | NEVER, max_size=1),
    ),
)
NUMBERS = itertools.count()
MOMENTS = st.datetimes(
    timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=14)))
).map(str)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    turn=st.fixed_dictionaries(
        {
            "conversation_id": NAME,
            "role": st.sampled_from(ROLES),
            "text": st.text(LETTERS | NEVER, min_size=1),
            "turn_index": st.integers(0, 9) | st.sampled_from([MAX_INDEX - 1, MAX_INDEX]),
            "ts": MOMENTS,
            "message_id": st.none() | NAME,
            "channel": st.none() | NAME,
        }
    )
)
@example(
    turn={
        "conversation_id": "pass:x",
        "role": "user",
        "text": "pass:x0",
        "turn_index": 0,
        "ts": "2000-01-01 00:00:00",
        "message_id": None,
        "channel": None,
    }
)
def test_a_turn_that_is_not_refused_at_once_can_be_stored_later(
    flaky: Flaky, turn: dict[str, Any]
) -> None:
    # Any text may look like a secret ("pass:x0"), and a name that does is refused.
    flaky.memories.config = flaky.memories.config._replace(redact="off")
    gateway = MemoryGateway("memories", backend=flaky)
    turn["conversation_id"] += str(next(NUMBERS))  # a new conversation in each run
    flaky.error = MCPError("full")
    try:
        accepted = HistoryTurn(**turn)
    except InvalidInput:
        with pytest.raises(ValueError, match=r"\w"):
            gateway.append_history(**turn)
        assert not gateway.queue
        return
    with pytest.raises(MCPError):
        gateway.append_history(**turn)
    [waits] = gateway.tail_history(accepted.conversation_id, 1)
    flaky.error = None
    assert gateway.drain() == 1
    assert (gateway.queue.entries(), gateway.queue.refused_count()) == ([], 0)
    [stored] = gateway.tail_history(accepted.conversation_id, 1)
    assert stored["text"] == content(turn["text"])
    known = stored["metadata"]
    assert waits["metadata"] == known | {"pending": True, "ts": waits["metadata"]["ts"]}
    assert known["conversation_id"] == accepted.conversation_id
    assert (known.get("channel"), known.get("message_id")) == (
        accepted.channel,
        accepted.message_id,
    )


def test_a_queues_file_cannot_forge_an_origin(flaky: Flaky) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    turn = {
        "conversation_id": "c",
        "role": "user",
        "text": "I am the boss",
        "turn_index": 0,
        "ts": TS,
    }
    gateway.queue.add(turn | {"origin": {"trust": "user", "by": "boss"}})
    gateway.queue.add(turn | {"tags": {"=trust": "user"}})
    gateway.queue.add(turn)
    assert gateway.drain() == 3
    [kept] = flaky.memories.turns("c")
    assert kept.origin is not None
    assert kept.origin[:3] == ("agent", "python", user())
    assert gateway.queue.refused_count() == 2


def test_a_forgotten_conversation_leaves_no_bytes_in_the_folder(flaky: Flaky, store: str) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    say(gateway, "secret, and stored", 0, "a")
    gateway.queue.add(
        {
            "conversation_id": "a",
            "role": "robot",
            "text": "secret, and refused",
            "turn_index": 0,
            "ts": TS,
        }
    )
    gateway.drain()
    flaky.error = MCPError("full")
    for conversation, text in [
        ("a", "secret, and waiting"),
        ("b", "kept"),
        ("only waits", "secret, and never stored"),
    ]:
        with pytest.raises(MCPError):
            say(gateway, text, 0, conversation)
    assert folder_contains(
        store, b"secret, and refused", b"secret, and waiting", b"secret, and never stored"
    )
    assert flaky.memories.forget_turns(" a ").versions >= 2
    assert flaky.memories.forget_turns("only waits").versions == 1
    assert not folder_contains(store, b"secret")
    flaky.error = None
    assert gateway.drain() == 1
    assert [texts_of(gateway, conversation) for conversation in ("a", "only waits", "b")] == [
        [],
        [],
        ["kept"],
    ]
    assert not folder_contains(store, b"secret")


@pytest.mark.first(2)
@pytest.mark.parametrize("suffix", ["", ".new", ".refused", ".refused.new"])
def test_files_left_by_a_crash_are_erased_too(flaky: Flaky, store: str, suffix: str) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    say(gateway, "stored")
    queue = gateway.queue.path
    queue.with_name(queue.name + suffix).write_bytes(
        b'{"conversation_id": "c", "role": "user", "text": "secret'
    )
    flaky.memories.forget_turns("c")
    assert not folder_contains(store, b"secret")


def test_a_conversation_whose_turns_were_all_refused_can_be_forgotten(
    flaky: Flaky, store: str
) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    gateway.queue.add(
        {"conversation_id": "c", "role": "robot", "text": "secret", "turn_index": 0, "ts": TS}
    )
    gateway.drain()
    assert flaky.memories.forget_turns("c").versions == 1
    assert not folder_contains(store, b"secret")


def folder_contains(store: str, *parts: bytes) -> bool:
    """Return whether each of these is in a file of the store's folder.

    Another process reads the files: reading them in this process would drop the open store's locks.
    """
    script = """
import pathlib, sys
for file in pathlib.Path(sys.argv[1]).iterdir():
    sys.stdout.buffer.write(file.read_bytes())
"""
    command = [sys.executable, "-c", script, str(Path(store).parent)]
    data = subprocess.run(command, capture_output=True, check=True, timeout=300).stdout
    return all(part in data for part in parts)


@pytest.mark.parametrize("stored_first", [False, True], ids=["before it is stored", "after"])
def test_a_reader_sees_each_turn_once_while_the_queue_drains(
    flaky: Flaky, stored_first: bool
) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    say(gateway, "0")
    flaky.error = MCPError("full")
    for number in range(1, 5):
        with pytest.raises(MCPError):
            say(gateway, str(number))
    flaky.error = None
    inside, go_on = threading.Semaphore(0), threading.Semaphore(0)
    append = flaky.append

    def append_slowly(turn: Any) -> str:
        done = append(turn) if stored_first else ""
        inside.release()
        assert go_on.acquire(timeout=300)
        return done or append(turn)

    flaky.append = append_slowly  # type: ignore[method-assign]
    draining = threading.Thread(target=gateway.drain)
    draining.start()
    for _ in range(4):
        assert inside.acquire(timeout=300)
        documents = gateway.tail_history("c", 16)
        assert [document["text"] for document in documents] == list("01234")
        assert [document["metadata"]["turn_index"] for document in documents] == list(range(5))
        assert texts_of(gateway, n=2) == ["3", "4"]
        go_on.release()
    draining.join(300)
    assert texts_of(gateway) == list("01234")
    assert not gateway.queue


@pytest.mark.parametrize("first", [False, True], ids=["after the read", "before the read"])
def test_a_turn_stored_during_a_read_appears_once(flaky: Flaky, first: bool) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    flaky.error = MCPError("full")
    for number in range(3):
        with pytest.raises(MCPError):
            say(gateway, str(number))
    flaky.error = None
    tail = flaky.tail

    def tail_and_drain(conversation_id: str, n: int) -> list[dict[str, Any]]:
        found = [] if first else tail(conversation_id, n)
        gateway.drain()
        return tail(conversation_id, n) if first else found

    flaky.tail = tail_and_drain  # type: ignore[method-assign]
    assert texts_of(gateway) == ["0", "1", "2"]
    assert not gateway.queue


@pytest.mark.thorough
def test_two_writers_lose_nothing_if_the_store_fails_at_random(
    store: str, clean_environment: Mapping[str, str]
) -> None:
    """Some appends fail before they store the turn, some after; the turns of each writer stay in
    order.
    """
    script = """
import random, sys
from memories import MCPError, Memories, MemoryGateway
from memories.context.memories_backend import MemoriesBackend
store, who = sys.argv[1:]
chance = random.Random(who)
class Failing(MemoriesBackend):
    def append(self, turn):
        luck = chance.random()
        if luck < 0.3:
            raise MCPError("not stored")
        done = super().append(turn)
        if luck < 0.5:
            raise MCPError("stored, but nobody hears of it")
        return done
gateway = MemoryGateway("memories", backend=Failing(Memories("sqlite:///" + store)))
sys.stdin.readline()
queued = 0
for number in range(24):
    try:
        gateway.append_history("c", "user", f"{who}-{number}", 0, "2026-05-31")
    except MCPError as exc:
        assert exc.queued
        queued += 1
print(queued)
"""
    command = [sys.executable, "-c", script, store]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen([*command, str(who)], env=dict(clean_environment), **pipes)
        for who in range(2)
    ]
    queued = [int(process.communicate("\n", timeout=300)[0]) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert min(queued) >= 4
    with MemoryGateway(store) as gateway:
        gateway.drain()
        texts = texts_of(gateway)
        assert not gateway.queue
    assert len(texts) == len(set(texts)) == 48
    for who in range(2):
        assert [text for text in texts if text.startswith(f"{who}-")] == [
            f"{who}-{number}" for number in range(24)
        ]


def test_a_queue_is_stored_when_the_agent_starts(flaky: Flaky, store: str) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    flaky.error = MCPError("full")
    with pytest.raises(MCPError):
        say(gateway, "one")
    with MemoryGateway(store) as other:
        other.ensure_collections(["history", "memory"])
        assert not other.queue
        assert texts_of(other) == ["one"]


def test_each_namespace_has_its_own_queue(store: str) -> None:
    with (
        Memories(f"sqlite:///{store}", namespace="bob") as bob,
        Memories(f"sqlite:///{store}", namespace="ann") as ann,
    ):
        failing = Flaky(bob)
        failing.error = MCPError("full")
        with pytest.raises(MCPError):
            say(MemoryGateway("memories", backend=failing), "Bob's secret")
        theirs = MemoryGateway("memories", backend=MemoriesBackend(ann))
        assert say(theirs, "hello") == "c#0"
        assert texts_of(theirs) == ["hello"]
        failing.error = None
        assert texts_of(MemoryGateway("memories", backend=failing)) == ["Bob's secret"]


def test_a_queued_turn_that_can_never_be_stored_is_put_aside(flaky: Flaky) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    gateway.queue.add(
        {"conversation_id": "c", "role": "robot", "text": "x", "turn_index": 0, "ts": TS}
    )
    gateway.queue.add({"nonsense": True})
    assert say(gateway, "after") == "c#0"
    assert not gateway.queue
    aside = (
        gateway.queue.path.with_name(f"{gateway.queue.path.name}.refused").read_text().splitlines()
    )
    assert [json.loads(row).get("role") for row in aside] == ["robot", None]


def test_the_error_for_a_full_queue_says_that_the_turn_is_not_queued(
    flaky: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.write.turn_queue.MAX_BYTES", 10)
    gateway = MemoryGateway("memories", backend=flaky)
    flaky.error = MCPError("full")
    with pytest.raises(MCPError) as raised:
        say(gateway, "one")
    assert raised.value.queued is False
    assert "is full" in raised.value.__notes__[0]


def test_the_queue_survives_kill_9_without_loss_or_duplicates(
    store: str, clean_environment: Mapping[str, str]
) -> None:
    """The store is damaged and a writer is killed; the store comes back, a process that stores the
    queue is killed, and another stores the rest.
    """
    Path(store).parent.mkdir(mode=0o700)
    Path(store).write_bytes(b"this is no database, " * 500)
    write = """
import sys, itertools
from memories import MemoryGateway, MCPError
gateway = MemoryGateway(sys.argv[1])
for number in itertools.count():
    try:
        gateway.append_history("c", "user", f"turn {number}", number, "2026-05-31")
    except MCPError as exc:
        assert exc.queued
    print(number, flush=True)
"""
    acknowledged = run_and_kill(write, store, clean_environment, lambda lines: len(lines) >= 30)
    Path(store).unlink()
    drain = """
import sys
from memories import MemoryGateway
from memories.context.memories_backend import MemoriesBackend
append = MemoriesBackend.append
def slow(self, turn):
    done = append(self, turn)
    print(done, flush=True)
    return done
MemoriesBackend.append = slow
MemoryGateway(sys.argv[1]).drain()
"""
    drained = run_and_kill(drain, store, clean_environment, lambda lines: len(lines) >= 5)
    with MemoryGateway(store) as gateway:
        before = len(gateway.queue.entries())
        assert before >= len(acknowledged)  # turns stored before the kill are still in the queue
        say(gateway, "the last one", 999)
        assert not gateway.queue
        found = texts_of(gateway)
    assert len(drained) >= 5
    assert found == [*(f"turn {number}" for number in range(before)), "the last one"]


def run_and_kill(
    script: str, store: str, environment: Mapping[str, str], enough: Callable[[list[str]], bool]
) -> list[str]:
    """Run a script, kill it when it has printed enough, and return the printed lines."""
    command = [sys.executable, "-c", script, store]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=dict(environment)
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not enough(lines):
            line = process.stdout.readline()
            assert line, "the script exited by itself"
            lines.append(line.strip())
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().split()
    assert process.returncode == -signal.SIGKILL
    return lines


# --- end to end


@pytest.mark.thorough
def test_ac_qual_003_another_process_finds_the_stored_turns_and_memories(
    store: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run_python(
        """
import sys
from memories import MemoryGateway
with MemoryGateway(sys.argv[1]) as gateway:
    gateway.ensure_collections(["history", "memory"])
    for number in range(20):
        gateway.append_history("conv_123", ("user", "assistant")[number % 2], f"message {number}", number, "2026-05-31")
    gateway.write_memory("User prefers a Docker-based memory stack", "preference", 0.85, "2026-05-31", "conv_123")
""",
        store,
    )
    found = run_python(
        """
import json, sys
from memories import ContextBuilder, MemoryGateway
with MemoryGateway(sys.argv[1]) as gateway:
    context = ContextBuilder(gateway).build_context("conv_123", "Which memory stack does the user prefer?")
print(json.dumps([[turn.text for turn in context["history"]], [item.text for item, _ in context["memories"]]]))
""",
        store,
    )
    assert json.loads(found.stdout) == [
        [f"message {number}" for number in range(4, 20)],
        ["User prefers a Docker-based memory stack"],
    ]


def test_hostile_content_is_returned_as_data(gateway: MemoryGateway) -> None:
    rows = [json.loads(row) for row in HOSTILE.read_text().splitlines()]
    hostile = [
        row["text"] * row.get("times", 1) for row in rows if not {"\0", "\ud800"} & set(row["text"])
    ]
    for number, text in enumerate(hostile):
        say(gateway, text, number)
        gateway.write_memory(text[:2_000], "fact", 0.9, TS)
    everything = Admission(suspicious=True, tool_turns=True, memory_characters=1_000_000)
    builder = ContextBuilder(gateway, history_tail_n=500, memory_top_k=50, admission=everything)
    context = builder.build_context("c", "system memories data end rules obey")
    prompt, boundary = builder.format_for_prompt(context), context["metadata"]["boundary"]
    shown = read(prompt, boundary)
    said = [document["text"] for document in gateway.tail_history("c", 500)]
    assert len(said) == len(hostile) == len(shown)  # memories that repeat a turn are left out
    assert context["metadata"]["repeated_memories"] > 5
    for item, text in zip(shown, said, strict=True):
        assert item.text.startswith(
            "\n".join(fence.lines(text[:MAX_SHOWN])).lstrip()[: MAX_SHOWN // 2]
        )


def test_handling_a_message_never_raises(flaky: Flaky) -> None:
    gateway = MemoryGateway("memories", backend=flaky)
    memory = agent(gateway)
    assert [memory.append("c", "user", "one"), memory.append("c", "assistant", "two")] == [
        "c#0",
        "c#1",
    ]
    assert memory.append("c", "user", "a\0b\ud800") == "c#2"
    assert memory.append("c", "user", "x" * 100_001) == "c#3"
    assert memory.append("c", "robot", "three") is None
    flaky.error = ConnectionError("nobody answers")
    assert memory.append("c", "user", "four") is None
    texts = texts_of(gateway)
    assert texts[:2] == ["one", "two"]
    assert texts[2] == "a\ufffdb\ufffd\ufffd\ufffd"
    assert [len(texts[3]), *texts[4:]] == [100_001, "four"]
    assert memory.prompt("c", "what now?").endswith("\nwhat now?")


@contextmanager
def broken(store: str) -> Iterator[MemoryGateway]:
    """Open a gateway over a file that isn't a store."""
    Path(store).parent.mkdir(mode=0o700, exist_ok=True)
    Path(store).write_bytes(b"this is no database, " * 500)
    with MemoryGateway(store) as gateway:
        yield gateway


def test_a_broken_store_raises_gateway_errors(store: str) -> None:
    with broken(store) as gateway:
        for attempt in (
            lambda: gateway.ensure_collections(["history"]),
            lambda: gateway.tail_history("c", 1),
            lambda: remember(gateway, "x"),
            lambda: gateway.recall_memory("q", 8, 0.7),
            lambda: gateway.count_window("w"),
        ):
            with pytest.raises(MCPError, match=r"m\.db"):
                attempt()  # type: ignore[no-untyped-call]
        memory = agent(gateway)
        assert memory.remember("x", "fact", 0.9) is None
        assert memory.prompt("c", "what now?") == "what now?"
        assert memory.context("c", "what now?")["metadata"]["degraded"] is True


# --- endpoints and starting


def test_an_endpoint_of_our_engine_determines_where_the_queue_is(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for endpoint, folder in [
        ("memories", home),
        (f"sqlite:///{tmp_path}/a.db", tmp_path),
        (f"{tmp_path}/b", tmp_path),
        ("c.db", tmp_path),
        ("~/d.db", home.parent),
    ]:
        with MemoryGateway(endpoint) as gateway:
            assert say(gateway, "hello") == "c#0"
            assert gateway.queue.path.parent == folder, endpoint


@pytest.mark.parametrize(
    "endpoint", ["http://localhost:8000/mcp", "localhost:8000", "stdio:chroma", "ftp://h:1"]
)
def test_other_endpoints_are_not_supported_yet(endpoint: str) -> None:
    with pytest.raises(ConnectionError, match="is not supported yet; use memories"):
        MemoryGateway(endpoint)


@pytest.mark.parametrize("endpoint", ["", "  ", None, 3])
def test_an_empty_endpoint_is_refused(endpoint: Any) -> None:
    with pytest.raises(ValueError, match="the endpoint is empty"):
        MemoryGateway(endpoint)


def test_only_known_collections_can_be_created(gateway: MemoryGateway) -> None:
    gateway.ensure_collections(["history", "memory"])
    gateway.ensure_collections([])
    with pytest.raises(MCPError, match='there is no collection "episodic"'):
        gateway.ensure_collections(["history", "episodic"])
    for names in ("history", [""], [3]):
        with pytest.raises(ValueError, match="names must be a list"):
            gateway.ensure_collections(names)  # type: ignore[arg-type]


def test_a_start_is_tried_five_times(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception | None] = [ConnectionError("not yet")] * 4 + [None]

    def ensure(_self: Any, _names: Any) -> None:
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr(MemoriesBackend, "ensure_collections", ensure)
    pauses: list[float] = []
    AgentMemory.start(load_config(), pause=pauses.append)
    assert (pauses, answers) == ([0.5, 1.0, 2.0, 4.0], [])
    answers += [ConnectionError("not yet")] * 6
    with pytest.raises(ConnectionError):
        AgentMemory.start(load_config(), pause=pauses.append)
    assert len(answers) == 1


def test_a_new_attempt_to_start_waits_for_a_slow_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MEMORY_TIMEOUT_SECONDS", "1")
    begun, settle = threading.Event(), Deadline.settle
    monkeypatch.setattr(MemoriesBackend, "ensure_collections", lambda *_: begun.wait(60))

    def begin_and_settle(deadline: Deadline) -> None:
        begun.set()  # the slow start now succeeds
        settle(deadline)

    monkeypatch.setattr(Deadline, "settle", begin_and_settle)
    pauses: list[float] = []
    AgentMemory.start(load_config(), pause=pauses.append).close()
    assert 1 <= len(pauses) < 4


def test_a_start_does_not_retry_an_unsupported_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_ENDPOINT", "stdio:chroma")
    with pytest.raises(UnsupportedEndpoint):
        AgentMemory.start(load_config(), pause=lambda _: pytest.fail("it waited"))


# --- logs

SCRIPT = """
import os, sys
from memories import AgentMemory, load_config
memory = AgentMemory.start(load_config())
memory.append("c", "user", "what I said")
memory.append("c", "assistant", "what it said")
memory.remember("what is remembered", "fact", 0.9)
memory.remember("a guess", "fact", 0.1)
memory.context("c", "what now?")
memory.append("c", "robot", "wrong")
"""


def logged(
    run_python: Callable[..., Any], environment: dict[str, str], level: str | None
) -> list[dict[str, Any]]:
    """Run the script in a separate process; return the log entries on its standard error."""
    if level is not None:
        environment["LOG_LEVEL"] = level
    return [json.loads(row) for row in run_python(SCRIPT).stderr.splitlines()]


def test_logs_are_json_with_counts_and_latencies(
    run_python: Any, clean_environment: dict[str, str]
) -> None:
    rows = logged(run_python, clean_environment, "info")
    assert all({"ts", "level", "logger", "event"} <= row.keys() for row in rows)
    events = {row["event"]: row for row in rows}
    assert events["turn stored"]["message_count"] == 2
    assert events["memory stored"]["memory_count"] == 1
    assert {
        "ready",
        "memory rejected",
        "history read",
        "memories recalled",
        "turn not stored",
    } <= events.keys()
    assert events["memories recalled"]["query_latency_ms"] > 0
    said = ("what I said", "what it said", "what is remembered", "a guess")
    assert not any(words in json.dumps(rows) for words in said)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("level", "written"),
    [(None, set()), pytest.param("ERROR", {"ERROR"}, marks=pytest.mark.thorough)],
)
def test_a_level_limits_the_logs_and_logging_is_off_by_default(
    run_python: Any, clean_environment: dict[str, str], level: str | None, written: set[str]
) -> None:
    assert {row["level"] for row in logged(run_python, clean_environment, level)} == written


def test_enabling_logs_twice_writes_each_entry_once(capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    logger = logging.getLogger("memories")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    try:
        logs.enable("WARN")
        logs.enable("WARN")
        logger.warning("once")
        logger.info("never")
        assert [json.loads(row)["level"] for row in capsys.readouterr().err.splitlines()] == [
            "WARN"
        ]
    finally:
        logger.handlers[:], logger.level, logger.propagate = handlers, level, propagate


def test_log_levels_of_other_programs_are_accepted() -> None:
    for word, level in [
        ("warning", "WARN"),
        ("CRITICAL", "ERROR"),
        ("trace", "DEBUG"),
        ("my_crate=debug", "INFO"),
    ]:
        assert load_config(environment={"LOG_LEVEL": word}).log_level == level


Records = list[tuple[str, str, dict[str, Any]]]


def events(caplog: pytest.LogCaptureFixture) -> Records:
    """Return level, name and fields of each log entry."""
    return [(row.levelname, row.getMessage(), getattr(row, "fields", {})) for row in caplog.records]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ConnectionError("gone"), "ConnectionError"), (MCPError("full"), "MCPError")],
)
def test_every_operation_that_fails_is_logged_as_an_error(
    flaky: Flaky,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_given: Any) -> Any:
        raise error

    gateway = MemoryGateway("memories", backend=flaky)
    for name in ("ensure_collections", "append", "tail", "write", "recall"):
        monkeypatch.setattr(flaky, name, fail)
    for name, attempt in [
        ("collections are there", lambda: gateway.ensure_collections(["history"])),
        ("turn stored", lambda: say(gateway, "what I said")),
        ("history read", lambda: gateway.tail_history("d", 1)),
        ("memory stored", lambda: remember(gateway, "what is remembered")),
        ("memories recalled", lambda: gateway.recall_memory("what is asked", 8, 0.7)),
    ]:
        caplog.clear()
        with pytest.raises(type(error)):
            attempt()  # type: ignore[no-untyped-call]
        [fields] = [
            fields
            for level, event, fields in events(caplog)
            if (level, event) == ("ERROR", f"failed: {name}")
        ]
        assert (fields["error"], fields["kind"]) == (str(error), kind)
        assert "what" not in json.dumps([fields for _, _, fields in events(caplog)])


def test_a_waiting_turn_is_logged_until_it_is_stored(
    flaky: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "memories")
    gateway = MemoryGateway("memories", backend=flaky)
    flaky.error = MCPError("full")
    with pytest.raises(MCPError):
        say(gateway, "one")
    assert ("WARNING", "turn queued", {"conversation_id": "c"}) in events(caplog)
    gateway.ensure_collections([])
    assert (
        "WARNING",
        "queued turns are still waiting",
        {"conversation_id": "c", "error": "full"},
    ) in events(caplog)
    assert ("WARNING", "queued turns still can't be stored", {"error": "full"}) in events(caplog)
    flaky.error = None
    gateway.drain()
    assert ("INFO", "queued turns stored", {"drained": 1}) in events(caplog)


def test_a_lost_turn_is_logged_as_an_error(
    flaky: Flaky, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.write.turn_queue.MAX_BYTES", 10)
    gateway = MemoryGateway("memories", backend=flaky)
    flaky.error = MCPError("full")
    with pytest.raises(MCPError):
        say(gateway, "one")
    [(level, _, fields)] = [row for row in events(caplog) if row[1].startswith("turn lost")]
    assert level == "ERROR"
    assert "is full (10 bytes)" in fields["error"]


@pytest.mark.thorough
def test_the_cost_of_a_message_does_not_grow_with_its_conversation(gateway: MemoryGateway) -> None:
    """The cost is counted in steps of SQLite's virtual machine; `python -m bench conversation`
    measures the latencies of the specification.
    """
    taken = 0

    def step() -> bool:
        nonlocal taken
        taken += 1
        return False

    def cost(call: Callable[[], object]) -> int:
        nonlocal taken
        taken = 0
        call()
        return taken

    def median(numbers: range, call: Callable[[int], object]) -> int:
        return sorted(cost(partial(call, number)) for number in numbers)[len(numbers) // 2]

    say(gateway, "turn 0", 0)
    file = gateway._backend.memories._raw_store._file  # type: ignore[attr-defined]
    gateway._deadline.run(
        lambda: file._connection().set_progress_handler(step, 1)
    )  # on the connection of the worker thread
    costs = []
    for first in (1, 150):
        added = median(
            range(first, first + 20), lambda number: say(gateway, f"turn {number}", number)
        )
        costs.append((added, median(range(5), lambda _: gateway.tail_history("c", 16))))
        for number in range(first + 20, 150):
            say(gateway, f"turn {number}", number)
    (add, tail), (later_add, later_tail) = costs
    assert 0 < later_add < 1.2 * add
    assert 0 < later_tail < 1.2 * tail
