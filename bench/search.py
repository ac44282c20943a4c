"""Warm search: speed, recall and disk over real texts, with the vectors made beforehand."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import corpus as corpora
from bench import peers, report
from bench.corpus import Corpus
from memories import Draft, Memories, Store, load_config
from memories.models import Collection, Filter
from memories.stores import open_store
from memories.text import query_terms

SIZES = (10_000, 100_000)
QUERIES = 1_500
TIMED = 500
NAMESPACE = "bob"  # one memory of 20 is bob's, the others are shared: bob searches all of them
PROJECTS = 10
_K = 50  # candidates that a search with the default limit asks a store for
_LATENCY_BAR, _RECALL_BAR, _DISK_BAR = 10.0, 0.99, 6.0

_DISK = """
import apsw, json, sys
db = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
parts = dict(db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
text = db.execute("SELECT sum(length(CAST(text AS BLOB))) FROM record").fetchall()[0][0]
free = db.pragma("freelist_count") * db.pragma("page_size")
print(json.dumps({"parts": parts, "text": text, "free": free}))
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of the search benchmark."""

    texts: Path
    sizes: tuple[int, ...] = SIZES
    queries: int = QUERIES
    timed: int = TIMED
    with_peers: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison; disk is beside the text."""

    engine: str
    inserts: float
    times: list[float]
    recall: float
    filtered: list[float]
    disk_bytes: int


def run(options: Options) -> None:
    """Measure each size, ours beside the others, and print the tables."""
    corpus = corpora.load(options.texts, max(options.sizes), options.queries)
    corpora.CACHE.mkdir(exist_ok=True)
    for size in sorted(options.sizes):
        _run_size(corpus.first(size), options)


def _run_size(corpus: Corpus, options: Options) -> None:
    size = len(corpus.texts)
    exact = _exact_best(corpus)
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder:
        file = Path(folder).absolute() / "memories.db"
        seconds = _fill(corpus, file)
        disk = _disk(file)
        with _opened(corpus, file) as (store, memories, silent):
            rows = _measure_searches(corpus, options, memories)
            report.heading(f"Warm search, {size:,} memories, limit 10, {options.timed} queries, embedding not included")
            report.table(["search", "p50 ms", "p95 ms"], [(name, *report.p50_p95(taken)) for name, taken in rows.items()])
            _print_parts(corpus, options, (store, memories, silent))
            ours = Row(
                "Memories, vectors alone",
                size / seconds,
                _times(options, lambda at: _candidates(store, corpus.statement_vectors[at], [], 10)),
                _recall(corpus, store, exact),
                _times(options, lambda at: _filtered_candidates(store, corpus.statement_vectors[at])),
                sum(disk["parts"].values()) - disk["text"],
            )
            _print_bars(rows["a short query, words and vectors"], rows["a whole sentence, words and vectors"], ours, size)
    _print_disk(disk, size)
    _print_comparison(corpus, options, exact, ours)


# --- our store ---------------------------------------------------------------------------------------------------------


def _fill(corpus: Corpus, file: Path) -> float:
    """Store the texts; return the seconds that it took, without embedding."""
    drafts = [Draft(text, {"project": project_of(at), "type": "fact"}) for at, text in enumerate(corpus.texts)]
    start = time.perf_counter()
    store = open_store(f"sqlite:///{file}", corpus.embedder.space)
    try:
        for namespace, kept in (
            (NAMESPACE, [draft for at, draft in enumerate(drafts) if is_bobs(at)]),
            ("shared", [draft for at, draft in enumerate(drafts) if not is_bobs(at)]),
        ):
            Memories(store, namespace=namespace, embedder=corpus.embedder, config=_config(file)).create_many(
                kept, force=True
            )
    finally:
        store.close()
    return time.perf_counter() - start


def is_bobs(at: int) -> bool:
    """Return whether the text of that number lies in bob's namespace."""
    return at % 20 == 7


def project_of(at: int) -> str:
    """Return the project of the text of that number."""
    return f"p{at // 20 % PROJECTS}"


@contextmanager
def _opened(corpus: Corpus, file: Path) -> Iterator[tuple[Store, Memories, Memories]]:
    """Give the store, a memory over it, and one that does not count accesses."""
    store = open_store(f"sqlite:///{file}", corpus.embedder.space)
    config = _config(file)
    silent = replace(config, count_accesses=False)
    try:
        yield (
            store,
            Memories(store, namespace=NAMESPACE, embedder=corpus.embedder, config=config),
            Memories(store, namespace=NAMESPACE, embedder=corpus.embedder, config=silent),
        )
    finally:
        store.close()


def _config(file: Path):  # noqa: ANN202
    return load_config({"home": str(file.parent)}, environment={})


# --- time --------------------------------------------------------------------------------------------------------------


def _times(options: Options, call) -> list[float]:  # noqa: ANN001
    for at in range(10):
        call(at)
    return [report.milliseconds(lambda at=at: call(at)) for at in range(options.timed)]


def _measure_searches(corpus: Corpus, options: Options, memories: Memories) -> dict[str, list[float]]:
    alone = Memories(memories._store, namespace=NAMESPACE, shared=False)
    del alone
    return {
        "a short query, words and vectors": _times(options, lambda at: memories.search(corpus.shorts[at], limit=10)),
        "a whole sentence, words and vectors": _times(
            options, lambda at: memories.search(corpus.statements[at], limit=10)
        ),
        "a short query, one tag (0.5 % of the memories)": _times(
            options, lambda at: memories.search(corpus.shorts[at], limit=10, tags={"project": "p3"})
        ),
    }
