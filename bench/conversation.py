"""Conversations: how long an agent waits at each message, while ten conversations run at once."""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from bench import corpus as corpora
from bench import report
from bench.corpus import Corpus
from memories import Config, Draft, Memories, MemoryGateway, TurnDraft, load_config
from memories.context.memories_backend import MemoriesBackend

MEMORIES = 10_000
QUERIES = 1_500
CONVERSATIONS = 10
TARGETS = {
    "append": 100,
    "write": 150,
    "tail of 16": 200,
    "recall of 8": 500,
}  # ms at p95: NFR-PERF-001
_BATCH = 5_000
_START = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Load:
    """How messages come.

    Attributes:
        name: What the table is called.
        per_second: The number of messages in all conversations.
        seconds: For how long.
        every: One of this many messages is also remembered.
    """

    name: str
    per_second: float
    seconds: int
    every: int


# Half of the messages are the user's, and only for these is a context built.
LOADS = (Load("100 messages a minute", 100 / 60, 60, 2), Load("100 messages a second", 100, 10, 10))


@dataclass(slots=True)
class Timed:
    """The milliseconds of each operation, and the delay with which each message began."""

    operations: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in TARGETS}
    )
    late: list[float] = field(default_factory=list)

    def time(self, name: str, call: Callable[[], object]) -> None:
        """Time one operation."""
        self.operations[name].append(report.milliseconds(call))


def run(file: Path, count: int, endpoint: str = "") -> None:
    """Fill a store, hold the conversations, and print a table for each load.

    Args:
        file: Texts, one per line.
        count: The number of turns in the longest conversation.
        endpoint: Another memory to measure instead; see `MCP_ENDPOINT`.
    """
    if endpoint:
        _run_endpoint(file, count, endpoint)
        return
    corpus = corpora.load(file, count, QUERIES)
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder:
        config = load_config({"home": str(Path(folder).absolute())}, environment={})
        _fill(config, corpus)
        with Memories(config=config) as memories:
            gateway = MemoryGateway("memories", backend=MemoriesBackend(memories))
            _warm(gateway, corpus)
            messages = iter(corpus.statements)
            for load in LOADS:
                _print(load, _hold(gateway, load, messages))


def _run_endpoint(file: Path, count: int, endpoint: str) -> None:
    """Hold the conversations with a different memory, which keeps its data, and print a table for
    the first load.
    """
    texts = file.read_text(encoding="utf-8").splitlines()
    now = datetime.now(UTC).isoformat()
    with MemoryGateway(endpoint) as gateway:
        gateway.ensure_collections(["history", "memory"])
        for turn, text in enumerate(texts[:count]):
            gateway.append_history(_conversation(0), "user", text, turn, now)
        for text in texts[: count // 10]:
            gateway.write_memory(text, "fact", 0.9, now, _conversation(0))
        report.heading(
            f"Conversations over {endpoint}, with {count:,} turns in one of them and "
            f"{count // 10:,} memories"
        )
        _print(LOADS[0], _hold(gateway, LOADS[0], texts[count:]))


def _fill(config: Config, corpus: Corpus) -> None:
    """Store all turns in one conversation and the first texts as memories, with precomputed
    vectors.
    """
    with Memories(config=config, embedder=corpus.embedder) as memories:
        for first in range(0, len(corpus.texts), _BATCH):
            memories.add_turns(
                _conversation(0), list(_turns(corpus.texts[first : first + _BATCH], first))
            )
        memories.create_many(
            [Draft(text, tags={"type": "fact"}) for text in corpus.texts[:MEMORIES]], force=True
        )
        status = memories.status()
    report.heading(
        f"Conversations, with {status.turn_count:,} turns in one of them and {status.memory_count:,} memories"
    )


def _turns(texts: list[str], first: int) -> Iterator[TurnDraft]:
    """Yield turns half a minute apart."""
    for place, text in enumerate(texts, first):
        yield TurnDraft(text, created_at=_START + timedelta(seconds=30 * place))


def _conversation(number: int) -> str:
    return f"conversation {number}"


def _warm(gateway: MemoryGateway, corpus: Corpus) -> None:
    """Load the model and read the store once, as in an agent that has been running for a while."""
    for text in corpus.texts[-20:]:
        gateway.recall_memory(text, 8, 0.7)
        gateway.tail_history(_conversation(0), 16)


def _hold(gateway: MemoryGateway, load: Load, messages: Iterable[str]) -> list[Timed]:
    """Send the messages at their times, to each conversation in turn, with one thread per
    conversation.
    """
    texts = list(itertools.islice(messages, round(load.per_second * load.seconds)))
    begin = time.perf_counter() + 0.5
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        talk = partial(_talk, gateway, load, texts, begin)
        return list(pool.map(talk, range(CONVERSATIONS)))


def _talk(gateway: MemoryGateway, load: Load, texts: list[str], begin: float, number: int) -> Timed:
    timed, conversation = Timed(), _conversation(number)
    for place in range(number, len(texts), CONVERSATIONS):
        due = begin + place / load.per_second
        time.sleep(max(0.0, due - time.perf_counter()))
        timed.late.append((time.perf_counter() - due) * 1000)
        text, now, turn = texts[place], datetime.now(UTC).isoformat(), place // CONVERSATIONS
        role = ("user", "assistant")[turn % 2]
        if role == "user":  # before it is answered, its context is built
            timed.time("tail of 16", partial(gateway.tail_history, conversation, 16))
            timed.time("recall of 8", partial(gateway.recall_memory, text, 8, 0.7))
        timed.time("append", partial(gateway.append_history, conversation, role, text, turn, now))
        if turn % load.every == 0:
            memory = f"{text} (said in {conversation})"
            timed.time(
                "write", partial(gateway.write_memory, memory, "fact", 0.9, now, conversation)
            )
    return timed


def _print(load: Load, talks: list[Timed]) -> None:
    report.heading(f"{load.name}, {load.seconds} s, {CONVERSATIONS} conversations at once")
    rows = []
    for name, target in TARGETS.items():
        times = [taken for talk in talks for taken in talk.operations[name]]
        rows.append((name, len(times), *report.p50_p95(times), f"{max(times):.2f}", f"{target}"))
    report.table(["operation", "calls", "p50 ms", "p95 ms", "max ms", "target at p95"], rows)
    late = [one for talk in talks for one in talk.late]
    report.note(
        f"Messages began {report.percentile(late, 0.95):.1f} ms late at p95, {max(late):.1f} ms at most."
    )
