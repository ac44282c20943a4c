"""Warm search: speed, recall and disk size, with real texts and precomputed vectors."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import corpus as corpora
from bench import disk, peers, report
from bench.corpus import Corpus
from bench.peers import Measured
from memories import Config, Draft, Memories, Store, load_config
from memories.languages.text import query_terms
from memories.stores import open_store
from memories.stores.records import Candidate, Collection, Filter

SIZES = (10_000, 100_000)
QUERIES = 1_500
TIMED = 500
NAMESPACE = "bob"  # one memory of 20 is bob's, and the others are shared: bob searches all of them
EVERYTHING = Filter(Collection.MEMORY, (NAMESPACE, "shared"))
FEW = Filter(Collection.MEMORY, (NAMESPACE,), labels={"project": "p3"})  # one memory of 200
_K = 50  # number of candidates that a search with the default limit requests from a store
_LATENCY_TARGET, _RECALL_TARGET, _DISK_TARGET = 10.0, 0.99, 6.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the search benchmark.

    Attributes:
        texts: A file with one text per line.
        sizes: Numbers of memories, with one measurement each.
        queries: The number of held-out texts for measuring recall.
        timed: The number of those texts that are timed.
        peers: Whether other engines are measured too.
    """

    texts: Path
    sizes: tuple[int, ...] = SIZES
    queries: int = QUERIES
    timed: int = TIMED
    peers: bool = True


@dataclass(frozen=True, slots=True)
class Opened:
    """One store under measurement, seen at three depths."""

    corpus: Corpus
    store: Store
    memories: Memories
    uncounted: Memories

    def search(self, query: str, **filters: Any) -> Any:
        """Search as a user does."""
        return self.memories.search(query, limit=10, **filters)

    def candidates(
        self, at: int, where: Filter, *, k: int = _K, vector: bool = True, words: str = ""
    ) -> list[Candidate]:
        """Return the store's candidates for the held-out text with this number."""
        vectors = self.corpus.statement_vectors
        return self.store.candidates(
            where, vector=vectors[at] if vector else None, terms=query_terms(words), k=k
        )


def run(options: Options) -> None:
    """Measure each size, our store and the other engines, and print the tables."""
    corpus = corpora.load(options.texts, max(options.sizes), options.queries)
    for size in sorted(options.sizes):
        _run_size(corpus.first(size), options)


def _run_size(corpus: Corpus, options: Options) -> None:
    size = len(corpus.texts)
    best = exact_best(corpus)
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder:
        file = Path(folder).absolute() / "memories.db"
        seconds = _fill(corpus, file)
        held = disk.measure(file)  # before any search, which counts accesses
        with _open(corpus, file) as opened:
            searches = _time_searches(opened, options.timed)
            parts = _time_parts(opened, options.timed)
            vectors = _time_vectors(opened, options.timed)
            ours = Measured(
                engine="Memories, vectors alone",
                inserts_per_second=size / seconds,
                times=vectors["all"],
                filtered_times=vectors["few"],
                recall=_recall(opened, best),
                bytes_beside_text=held.beside_text,
            )
    title = (
        f"Warm search, {size:,} memories, {options.timed} queries, limit 10, embedding not included"
    )
    _print_times(title, "search", searches)
    _print_times(f"Where the time goes, {size:,} memories", "part", parts)
    disk.print_table(held, size)
    others = peers.run(corpus, best, options.timed) if options.peers else []
    peers.print_table([ours, *others], size, options.queries)
    _print_targets(searches, ours, size)


def run_disk(options: Options) -> None:
    """Measure the size of a store on disk, by default and compact, and how well each finds the
    nearest vectors.
    """
    size = max(options.sizes)
    corpus = corpora.load(options.texts, size, options.queries)
    best = exact_best(corpus)
    for compact in (False, True):
        with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder:
            file = Path(folder).absolute() / "memories.db"
            _fill(corpus, file, compact=compact)
            held = disk.measure(file)
            with _open(corpus, file) as opened:
                recall = _recall(opened, best)
        disk.print_table(held, size, mode="compact" if compact else "the default")
        report.note(f"Recall@10, {options.queries} queries: {recall:.4f}.")


# --- our store


def _fill(corpus: Corpus, file: Path, *, compact: bool = False) -> float:
    """Store the texts; return the seconds, without embedding."""
    drafts = [
        Draft(text, {"project": f"p{at // 20 % 10}", "type": "fact"})
        for at, text in enumerate(corpus.texts)
    ]
    start = time.perf_counter()
    with _open(corpus, file, compact=compact) as opened:
        opened.memories.create_many(drafts[7::20], force=True)
        shared = Memories(opened.store, embedder=corpus.embedder, config=opened.memories.config)
        shared.create_many([draft for at, draft in enumerate(drafts) if at % 20 != 7], force=True)
    return time.perf_counter() - start


@contextmanager
def _open(corpus: Corpus, file: Path, *, compact: bool = False) -> Iterator[Opened]:
    config = load_config({"home": str(file.parent)}, environment={})._replace(compact=compact)
    store = open_store(f"sqlite:///{file}", corpus.embedder.space, config)

    def memories(settings: Config) -> Memories:
        return Memories(store, namespace=NAMESPACE, embedder=corpus.embedder, config=settings)

    try:
        yield Opened(
            corpus, store, memories(config), memories(config._replace(count_accesses=False))
        )
    finally:
        store.close()


# --- time


def _times(calls: Mapping[str, Callable[[int], Any]], count: int) -> dict[str, list[float]]:
    """Return the milliseconds of each call for each query. The calls alternate, so that other load
    affects all alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for at in range(-10, count):  # the first ten aren't counted
        for name, call in calls.items():
            start = time.perf_counter()
            call(abs(at))
            taken[name].append((time.perf_counter() - start) * 1000)
    return {name: times[10:] for name, times in taken.items()}


def _time_searches(opened: Opened, count: int) -> dict[str, list[float]]:
    """Time what a user does."""
    corpus = opened.corpus
    few = Memories(
        opened.store,
        namespace=NAMESPACE,
        shared=False,
        embedder=corpus.embedder,
        config=opened.memories.config,
    )
    return _times(
        {
            "a short query (5 words)": lambda at: opened.search(corpus.shorts[at]),
            "a whole sentence": lambda at: opened.search(corpus.statements[at]),
            "a short query, a tag on 1 memory in 10": lambda at: opened.search(
                corpus.shorts[at], tags={"project": "p3"}
            ),
            "a short query, a namespace and a tag on 1 memory in 200": lambda at: few.search(
                corpus.shorts[at], limit=10, tags={"project": "p3"}
            ),
        },
        count,
    )


def _time_parts(opened: Opened, count: int) -> dict[str, list[float]]:
    """Time the parts of a search for a whole sentence, from the inside out."""
    texts = opened.corpus.statements
    return _times(
        {
            f"store, words alone, {_K} candidates": lambda at: opened.candidates(
                at, EVERYTHING, vector=False, words=texts[at]
            ),
            f"store, vectors alone, {_K} candidates": lambda at: opened.candidates(at, EVERYTHING),
            f"store, both, {_K} candidates each": lambda at: opened.candidates(
                at, EVERYTHING, words=texts[at]
            ),
            "search, accesses not counted": lambda at: opened.uncounted.search(texts[at], limit=10),
            "search": lambda at: opened.search(texts[at]),
        },
        count,
    )


def _time_vectors(opened: Opened, count: int) -> dict[str, list[float]]:
    """Time the same searches as for the other engines: ten hits by vector."""
    return _times(
        {
            "all": lambda at: opened.candidates(at, EVERYTHING, k=10),
            "few": lambda at: opened.candidates(at, FEW, k=10),
        },
        count,
    )


def _print_times(title: str, what: str, taken: dict[str, list[float]]) -> None:
    report.heading(title)
    report.table(
        [what, "p50 ms", "p95 ms"],
        [(name, *report.p50_p95(times)) for name, times in taken.items()],
    )


# --- recall


def exact_best(corpus: Corpus) -> NDArray[np.int64]:
    """Return the numbers of the ten best texts for each held-out text, by exact float32 cosines,
    shape (n, 10).
    """
    best = []
    for at in range(0, len(corpus.statements), 100):
        scores = corpus.statement_vectors[at : at + 100] @ corpus.vectors.T
        best.append(np.argpartition(-scores, 10, axis=1)[:, :10])
    return np.concatenate(best)


def _recall(opened: Opened, best: NDArray[np.int64]) -> float:
    found = 0
    for at, rows in enumerate(best):
        candidates = opened.candidates(at, EVERYTHING)
        candidates.sort(key=lambda candidate: -(candidate.similarity or 0.0))
        wanted = {opened.corpus.texts[row] for row in rows}
        found += sum(candidate.record.text in wanted for candidate in candidates[:10])
    return found / best.size


def _print_targets(searches: dict[str, list[float]], ours: Measured, size: int) -> None:
    slowest = max(
        report.percentile(times, 0.5) for name, times in searches.items() if "tag" not in name
    )
    megabytes = ours.bytes_beside_text / size / 100
    report.heading(f"Targets, {size:,} memories")
    report.table(
        ["what", "reached", "target", ""],
        [
            (
                "search, p50 of the slower of both queries",
                f"{slowest:.1f} ms",
                f"≤ {_LATENCY_TARGET:.0f} ms",
                _met(slowest <= _LATENCY_TARGET),
            ),
            (
                "recall@10",
                f"{ours.recall:.4f}",
                f"≥ {_RECALL_TARGET}",
                _met(ours.recall >= _RECALL_TARGET),
            ),
            (
                "disk",
                f"{megabytes:.2f} MB",
                f"≤ {_DISK_TARGET:.0f} MB per 10,000",
                _met(megabytes <= _DISK_TARGET),
            ),
        ],
    )


def _met(reached: bool) -> str:
    return "met" if reached else "**missed**"
