"""`python -m bench.langgraph_store`: Compares `MemoriesStore` with LangGraph's `SqliteStore` on
turns of LoCoMo, in one run.

Both embed with the packaged model. Each turn is an item; a question is a paraphrase of the turn
that answers it.
"""

import argparse
import importlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.modules["sqlite3"] = importlib.import_module(
    "pysqlite3"
)  # Python's own SQLite often can't load sqlite-vec

from langgraph.store.base import BaseStore, PutOp  # noqa: E402
from langgraph.store.sqlite import SqliteStore  # noqa: E402

from bench.report import environment, milliseconds, note, p50_p95, table  # noqa: E402
from bench.retrieval.datasets import Pool, load  # noqa: E402
from memories.embedders import open_embedder  # noqa: E402
from memories.langgraph import MemoriesStore  # noqa: E402

LOCOMO = Path("../shared/data/locomo-dev.json")
PLACE = ("single",)
ONE_BY_ONE = 200  # number of puts and gets that are timed individually
BATCH = 500
DEPTHS = (5, 10)


def main() -> None:
    """Measure both stores, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=LOCOMO)
    parser.add_argument("--questions", type=int, default=300)
    given = parser.parse_args()
    pools = list(load("locomo", given.data).pools)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for name, store in _stores(Path(folder)):
            rows.append((name, *_measure(store, pools, given.questions)))
    table(
        (
            "store",
            "put p50, ms",
            "get p50",
            "search p50",
            "p95",
            "any@5",
            "any@10",
            "items/s in batches",
        ),
        rows,
    )
    note(f"{len(rows)} stores, {environment()}")


def _stores(folder: Path) -> Iterator[tuple[str, BaseStore]]:
    embedder = open_embedder("minilm")
    assert embedder is not None
    known: dict[str, list[float]] = {}

    def embed(texts: Sequence[str]) -> list[list[float]]:
        for text in texts:
            if text not in known:
                known[text] = embedder.embed(text)[0].tolist()
        return [known[text] for text in texts]

    with MemoriesStore(f"sqlite:///{folder}/ours.db", embedder="minilm") as ours:
        yield "MemoriesStore, sqlite", ours
    index: Any = {"dims": embedder.space.dimension, "embed": embed, "fields": ["content"]}
    with SqliteStore.from_conn_string(f"{folder}/theirs.db", index=index) as theirs:
        theirs.setup()
        yield "SqliteStore with sqlite-vec", theirs


def _measure(store: BaseStore, pools: Sequence[Pool], count: int) -> tuple[object, ...]:
    began = time.perf_counter()
    for pool in pools:
        puts = [
            PutOp(("locomo", pool.name), turn.id, {"content": turn.said}) for turn in pool.turns
        ]
        for start in range(0, len(puts), BATCH):
            store.batch(puts[start : start + BATCH])
    rate = sum(len(pool.turns) for pool in pools) / (time.perf_counter() - began)
    put = [
        milliseconds(lambda at=at: store.put(PLACE, f"k{at}", {"content": f"Day {at}"}))
        for at in range(ONE_BY_ONE)
    ]
    get = [milliseconds(lambda at=at: store.get(PLACE, f"k{at}")) for at in range(ONE_BY_ONE)]
    asked = [
        (pool.name, question) for pool in pools for question in pool.questions if question.turns
    ]
    asked = random.Random(1).sample(asked, min(count, len(asked)))
    times, hits = [], dict.fromkeys(DEPTHS, 0)
    for name, question in asked:
        start_at = time.perf_counter()
        found = [
            item.key
            for item in store.search(("locomo", name), query=question.text, limit=max(DEPTHS))
        ]
        times.append(1000 * (time.perf_counter() - start_at))
        for depth in DEPTHS:
            hits[depth] += bool(question.turns.intersection(found[:depth]))
    shares = (f"{100 * hits[depth] / len(asked):.1f}" for depth in DEPTHS)
    return (p50_p95(put)[0], p50_p95(get)[0], *p50_p95(times), *shares, f"{rate:.0f}")


if __name__ == "__main__":
    main()
