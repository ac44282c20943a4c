"""Whether age and use spoil what is found: the questions of LoCoMo and BEAM, asked of their messages as memories.

In a conversation every message is old, and what answers is as often old as new: here freshness can only do harm. So the
order by relevance is measured beside the plain one, with memories that decay, asked right after the conversation, when
ages differ most, and years later; once more after reads that fell on other memories than those that answer.
"""

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np

from bench import corpus, report
from bench.retrieval import datasets, metrics
from bench.retrieval.datasets import Pool
from bench.retrieval.vectors import KeptVectors
from memories import Draft, Memories, load_config
from memories.stores.records import Collection, Ref

DEPTH = 10
READS = 20
_WHEN = {"right after": timedelta(minutes=1), "two years later": timedelta(days=730)}


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of the benchmark: the data sets, and how many of each set's pools are taken."""

    locomo: Path | None
    beam: Path | None
    pools: int | None = None


def run(options: Options) -> None:
    """Measure and print a table."""
    embedder = KeptVectors("minilm")
    rows = []
    try:
        for name, path in (("locomo", options.locomo), ("beam", options.beam)):
            if path is None:
                continue
            pools = datasets.load(name, path).pools[: options.pools]
            for decay in ("stable", "contextual"):
                rows += _measured(name, pools, decay, embedder)
    finally:
        embedder.close()
    report.table(["set", "policy", "asked", "reads", "order", "any@1", "any@5", "any@10", "none found"], rows)


def _measured(name: str, pools: Sequence[Pool], decay: str, embedder: KeptVectors) -> Iterator[list[str]]:
    figures: dict[tuple[str, str, str], list[tuple[bool, ...]]] = {}
    corpus.CACHE.mkdir(exist_ok=True)
    embedder.prepare(turn.text for pool in pools for turn in pool.turns)
    for pool in pools:
        with tempfile.TemporaryDirectory(dir=corpus.CACHE) as folder:
            _ask(pool, decay, embedder, Path(folder).absolute(), figures)
    for (asked, reads, order), found in figures.items():
        shares = [f"{100 * share:.1f}" for share in np.mean(np.array(found, dtype=float), axis=0)]
        yield [name, decay, asked, reads, order, *shares]


def _stored(memories: Memories, pool: Pool, decay: str) -> Iterator[tuple[str, str]]:
    """Store the messages, and yield the id of each memory with what it answers; a message said twice is one."""
    drafts = [Draft(turn.text, decay=decay, created_at=turn.said_at) for turn in pool.turns]
    for made, turn in zip(memories.create_many(drafts, force=True, redact=False), pool.turns, strict=True):
        if made.id is not None:
            yield made.id, turn.target


def _ask(pool, decay, embedder, folder, figures) -> None:
    settings = {"home": str(folder)}
    config = load_config(settings, environment={})._replace(
        events="off", count_accesses=False, min_confidence=0.0, decay_half_life_hours=1e8
    )
    end = max(turn.said_at for turn in pool.turns)
    now = [end]
    with Memories(config=config, embedder=embedder, clock=lambda: now[0]) as memories:
        targets = dict(_stored(memories, pool, decay))
        for reads in ("none", "elsewhere"):
            if reads == "elsewhere":
                drawn = random.Random(7).sample(sorted(targets), len(targets) // 5)
                memories._store.touch([Ref(Collection.MEMORY, "shared", each, 1) for each in drawn] * READS)
            for asked, later in _WHEN.items():
                now[0] = end + later
                for order in ("similarity", "relevance"):
                    for question in pool.questions:
                        if not question.counted or not question.turns:
                            continue
                        hits = memories.search(question.text, limit=3 * DEPTH, rank=order, now=question.asked_at)
                        found = metrics.first_seen(targets[hit.id] for hit in hits)
                        ranks = [at for at, target in enumerate(found) if target in question.turns]
                        first = min(ranks, default=10**9)
                        figures.setdefault((asked, reads, order), []).append(
                            (first < 1, first < 5, first < 10, not found)
                        )
