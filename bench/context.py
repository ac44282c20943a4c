"""Contexts: how often a model's context contains the answer to a question, and the cost of the
context.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench import corpus, report
from bench.retrieval import datasets, metrics, progress, systems
from bench.retrieval.datasets import Conversation, DataSet, Pool, Question, Turn
from bench.retrieval.vectors import KeptVectors
from memories import ContextBuilder, Memories, MemoryGateway, load_config
from memories.context import rendering
from memories.context.memories_backend import MemoriesBackend
from memories.context.protocol import HistoryTurn
from memories.context.tokens import estimate_tokens
from memories.core.times import to_iso

BUDGETS = (500, 1_000, 2_000, 4_000)
METHODS = ("context", "best turns", "whole sessions", "last turns")
SEED = 7
_TAIL = 16


@dataclass(frozen=True, slots=True)
class Given:
    """The result of one method for a question: the targets in the text, the text's tokens, and the
    time.
    """

    targets: frozenset[str]
    tokens: int
    millis: float = 0.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark: a data set, its path, and the half that counts.

    Attributes:
        half: 0 or 1 for every second pool, from that one on; None for all.
    """

    name: str
    path: Path
    chroma: bool = True
    half: int | None = None


def run(options: Options) -> None:
    """Measure a data set and print its tables.

    Raises:
        DataError: The data are missing, or in a different format.
    """
    data = datasets.load(options.name, options.path)
    if options.half is not None:
        data = replace(data, pools=data.pools[options.half :: 2])
    embedder = KeptVectors()
    try:
        embedder.fill(turn.text for pool in data.pools for turn in pool.turns)
        sessions = systems.chroma(data.pools, embedder) if options.chroma else None
        measured = _measure(data, embedder, sessions)
    finally:
        embedder.close()
    _print(data, measured)


def _measure(
    data: DataSet, embedder: KeptVectors, sessions: dict[str, list[str]] | None
) -> dict[tuple[str, int], list[Given]]:
    """Return the results of each method and budget, in the order of the questions that count."""
    found: dict[tuple[str, int], list[Given]] = {}
    with progress.shown("questions", sum(len(_counted(pool)) for pool in data.pools)) as advance:
        for pool in data.pools:
            embedder.prepare(turn.text for turn in pool.turns)
            with _stored(pool, embedder) as store:
                for question in _counted(pool):
                    for budget in BUDGETS:
                        for method, given in store.methods(question, budget, sessions):
                            found.setdefault((method, budget), []).append(given)
                    advance(1)
    return found


def _counted(pool: Pool) -> list[Question]:
    return [question for question in pool.questions if question.counted and question.turns]


@contextmanager
def _stored(pool: Pool, embedder: KeptVectors) -> Iterator["_Store"]:
    """Store the conversations of a pool as an application would."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=corpus.CACHE))
        config = load_config({"home": str(Path(folder).absolute())}, environment={})
        memories = stack.enter_context(Memories(config=config, embedder=embedder))
        for conversation in pool.conversations:
            memories.add_turns(conversation.id, systems.drafts(conversation))
        yield _Store(pool, memories)


class _Store:
    """One pool, stored, and every method to make a text for a question about it."""

    def __init__(self, pool: Pool, memories: Memories) -> None:
        self._pool, self._memories = pool, memories
        self._gateway = MemoryGateway("memories", backend=MemoriesBackend(memories))
        self._one = pool.conversations[0].id if len(pool.conversations) == 1 else None
        self._places = {
            (conversation.id, at): turn
            for conversation in pool.conversations
            for at, turn in enumerate(conversation.turns)
        }
        self._targets = {place: turn.target for place, turn in self._places.items()}
        self._shown = {
            place: _shown(conversation, place[1], turn)
            for conversation, place, turn in self._each()
        }

    def methods(
        self, question: Question, budget: int, sessions: dict[str, list[str]] | None
    ) -> Iterator[tuple[str, Given]]:
        """Yield each method with its result."""
        yield "context", self._context(question, budget)
        hits = self._gateway.recall_history(question.text, budget // 10, self._one)
        known = [
            (hit["metadata"]["conversation_id"], hit["metadata"]["turn_index"]) for hit in hits
        ]
        yield "best turns", self._filled(question, budget, known, in_order=False)
        if sessions is not None:
            wanted = [
                place
                for name in sessions[question.id]
                for place, turn in self._places.items()
                if turn.session == name
            ]
            yield "whole sessions", self._filled(question, budget, wanted, in_order=True)
        last = list(self._places)[: -_TAIL - 1 : -1]
        yield "last turns", self._filled(question, budget, last, in_order=True)

    def _context(self, question: Question, budget: int) -> Given:
        builder = ContextBuilder.from_config(self._gateway, self._memories.config, budget)
        began = time.perf_counter()
        if self._one is None:
            built = builder.build_everywhere(question.text)
        else:
            built = builder.build_context(self._one, question.text)
        builder.format_for_prompt(built)
        millis = (time.perf_counter() - began) * 1000
        turns: list[HistoryTurn] = [*built["recalled"], *built["history"]]
        targets = frozenset(self._targets[turn.conversation_id, turn.turn_index] for turn in turns)
        return Given(targets, built["metadata"]["token_counts"]["total"], millis)

    def _filled(
        self, question: Question, budget: int, places: Iterable[tuple[str, int]], *, in_order: bool
    ) -> Given:
        """Return the plain lines of these turns that fit the budget; with `in_order`, only those
        before the first line that is too long.
        """
        room = budget - estimate_tokens(question.text)
        held: set[str] = set()
        left = room
        for place in dict.fromkeys(places):
            size = self._shown[place]
            if size <= left:
                left -= size
                held.add(self._targets[place])
            elif in_order:
                break
        return Given(frozenset(held), budget - left)

    def _each(self) -> Iterator[tuple[Conversation, tuple[str, int], Turn]]:
        for conversation in self._pool.conversations:
            for at, turn in enumerate(conversation.turns):
                yield conversation, (conversation.id, at), turn


def _shown(conversation: Conversation, at: int, turn: Turn) -> int:
    """Return the number of tokens of a turn as a line with its date, which the plain methods use."""
    made = HistoryTurn(
        conversation.id,
        turn.role or "user",
        turn.text,
        at,
        to_iso(turn.said_at),
        speaker=turn.speaker,
    )
    return estimate_tokens(
        f"[{turn.said_at:%Y-%m-%d}] " + "\n".join(rendering.turn_lines(made)) + "\n"
    )


# --- tables


def _print(data: DataSet, measured: dict[tuple[str, int], list[Given]]) -> None:
    questions = [question for pool in data.pools for question in _counted(pool)]
    report.heading(f"{data.name}: evidence in the context, {len(questions)} questions, in %")
    rows = []
    for budget in BUDGETS:
        for method in METHODS:
            given = measured.get((method, budget))
            if given:
                some, every = _share(questions, given, _any), _share(questions, given, _all)
                tokens = sum(one.tokens for one in given) / len(given)
                taken = (
                    report.p50_p95([one.millis for one in given])
                    if method == "context"
                    else ("", "")
                )
                rows.append(
                    (method, budget, f"{some:.1f}", f"{every:.1f}", f"{tokens:.0f}", *taken)
                )
    report.table(["method", "budget", "any", "all", "tokens", "p50 ms", "p95 ms"], rows)
    report.heading(
        f"{data.name}: context against others, paired bootstrap, {metrics.RESAMPLES:,} resamples, in points"
    )
    compared = []
    for budget in BUDGETS:
        for method in METHODS[1:]:
            for name, held in (("any", _any), ("all", _all)):
                if theirs := measured.get((method, budget)):
                    ours = _held(questions, measured["context", budget], held)
                    gap = metrics.bootstrap(ours, _held(questions, theirs, held), seed=SEED)
                    interval = f"{100 * gap.low:+.1f} to {100 * gap.high:+.1f}"
                    compared.append(
                        (
                            f"{name} at {budget}",
                            method,
                            f"{100 * gap.mean:+.1f}",
                            interval,
                            f"{gap.p:.4f}",
                        )
                    )
    report.table(["metric", "against", "difference", "95% interval", "p"], compared)


def _any(question: Question, given: Given) -> bool:
    return bool(question.turns & given.targets)


def _all(question: Question, given: Given) -> bool:
    return question.turns <= given.targets


def _held(
    questions: Sequence[Question], given: Sequence[Given], held: Callable[[Question, Given], bool]
) -> list[float]:
    return [float(held(question, one)) for question, one in zip(questions, given, strict=True)]


def _share(
    questions: Sequence[Question], given: Sequence[Given], held: Callable[[Question, Given], bool]
) -> float:
    shares = _held(questions, given, held)
    return 100 * sum(shares) / len(shares)
