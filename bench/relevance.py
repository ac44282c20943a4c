"""Whether age harms search: the questions of LoCoMo, with its messages stored as memories that
decay.

In a conversation, an answer is as often in an old message as in a new one, so freshness can only do
harm. So the order by relevance is compared with the plain order, right after the conversation, when
ages differ most, and later.
"""

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np

from bench import corpus, report
from bench.retrieval import datasets, metrics
from bench.retrieval.datasets import Pool, Question
from bench.retrieval.vectors import KeptVectors
from memories import Draft, Memories, load_config

DEPTH = 30
ASKED = {"right after": 0, "a month later": 30, "two years later": 730}  # days
ORDERS: dict[str, dict[str, object]] = {
    "similarity": {"rank": "similarity"},
    "relevance": {},
    "relevance, FRESHNESS_MIN=0.9": {"freshness_min": 0.9},
    "relevance, FRESHNESS_MIN=0.7": {"freshness_min": 0.7},
}

Found = tuple[bool, bool, bool]


def run(locomo: Path, embedder: str) -> None:
    """Measure and print a table."""
    vectors = KeptVectors(embedder)
    figures: dict[tuple[str, str], list[Found]] = {}
    try:
        for pool in datasets.load("locomo", locomo).pools:
            vectors.prepare(turn.text for turn in pool.turns)
            for asked, order, found in _answers(pool, vectors):
                figures.setdefault((asked, order), []).append(found)
    finally:
        vectors.close()
    rows = [
        [*names, *(f"{100 * share:.1f}" for share in np.mean(found, axis=0))]
        for names, found in figures.items()
    ]
    report.table(["asked", "order", "any@1", "any@5", "any@10"], rows)


def _answers(pool: Pool, vectors: KeptVectors) -> Iterator[tuple[str, str, Found]]:
    end = max(turn.said_at for turn in pool.turns)
    now = [end]
    corpus.CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=corpus.CACHE) as folder:
        plain = load_config({"home": str(Path(folder).absolute())}, environment={})._replace(
            events="off", count_accesses=False, min_confidence=0.0, decay_half_life_hours=1e8
        )
        with Memories(config=plain, embedder=vectors, clock=lambda: now[0]) as memories:
            targets = dict(_stored(memories, pool))
            for asked, days in ASKED.items():
                now[0] = end + timedelta(days=days, minutes=1)
                for order, changes in ORDERS.items():
                    memories.config = plain._replace(**changes)  # type: ignore[arg-type]
                    for question in pool.questions:
                        if question.counted and question.turns:
                            yield asked, order, _found(memories, question, targets)


def _stored(memories: Memories, pool: Pool) -> Iterator[tuple[str, str]]:
    """Store the messages, and yield the id of each memory with the questions that it answers; a
    repeated message is one memory.
    """
    drafts = [Draft(turn.text, decay="contextual", created_at=turn.said_at) for turn in pool.turns]
    for made, turn in zip(
        memories.create_many(drafts, force=True, redact=False), pool.turns, strict=True
    ):
        if made.id is not None:
            yield made.id, turn.target


def _found(memories: Memories, question: Question, targets: dict[str, str]) -> Found:
    hits = memories.search(question.text, limit=DEPTH, now=question.asked_at)
    found = metrics.first_seen(targets[hit.id] for hit in hits)
    first = min(
        (place for place, target in enumerate(found) if target in question.turns), default=DEPTH
    )
    return first < 1, first < 5, first < 10
