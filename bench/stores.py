"""All stores and the clients beneath them: inserts, vector searches, recall, disk size, and a cold
`memory search`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import corpus as corpora
from bench import report, search
from bench.corpus import Corpus
from bench.stores_raw import Asked, K, Row, Scope
from bench.stores_servers import KINDS, Place, ProgramMissing
from memories import Draft, Memories, Store, load_config
from memories.core.ids import new_id
from memories.embedders.minilm import MiniLM
from memories.models import SHARED
from memories.read.versions import first_version
from memories.stores import open_store
from memories.stores.records import Record

SIZES = (10_000, 100_000)
QUERIES = 500
TIMED = 100
SMALL = {
    "qdrant": "qdrant:///folder",
    "files": "files:///folder",
}  # stores for at most `_SMALL_SIZE` memories
_SMALL_SIZE = 10_000
_BATCH = 500
_COLD_ROUNDS = 7
_WARMING = 10  # number of first queries that aren't counted
_ASKED = Asked(search.EVERYTHING, search.FEW)
_COLD_QUERY = "library to parse command line options"
_COLD_TARGET_SECONDS, _LAYER_TARGET = 0.6, 2.0
_COLUMNS = [
    "store", "memories", "inserts/s", "p50 ms", "filtered p50 ms", "recall@10", "MB per 10,000",
    "`Memories.search`: p50 ms", "p95 ms", "cold `memory search`: min ms", "median ms",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark of stores.

    Attributes:
        texts: A file with one text per line.
        sizes: Numbers of memories, with one measurement each.
        stores: Which stores; None for all, those for few memories only up to 10,000.
        queries: The number of held-out texts for measuring recall.
        timed: The number of those texts that are timed.
    """

    texts: Path
    sizes: tuple[int, ...] = SIZES
    stores: tuple[str, ...] | None = None
    queries: int = QUERIES
    timed: int = TIMED


@dataclass(frozen=True, slots=True)
class Task:
    """The data for all stores of one size: texts, their records, and the exact ten best for each
    query.
    """

    corpus: Corpus
    records: Sequence[Record]
    best: NDArray[np.int64]
    timed: int


@dataclass(frozen=True, slots=True)
class Reached:
    """The results of a store, or of the client beneath it; times are milliseconds for ten hits."""

    inserts_per_second: float
    times: Sequence[float]
    few_times: Sequence[float]
    recall: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One store with one number of memories: the store, its client, whole searches, and whole
    processes.

    `plain_named_times` are the client's with both namespaces given, as they always are to a store.
    """

    kind: str
    memories: int
    client: str
    client_does: str
    ours: Reached
    plain: Reached
    plain_named_times: Sequence[float]
    searches: Sequence[float]
    cold: Sequence[float]
    bare: Sequence[float]


def run(options: Options) -> None:
    """Measure each store at each size and print the tables, row by row."""
    corpus = corpora.load(options.texts, max(options.sizes), options.queries)
    measured: list[Measured] = []
    left_out: list[str] = []
    report.heading(f"Stores: {options.timed} queries for 10 hits by vector, embedding not included")
    report.table(_COLUMNS, _rows(corpus, options, measured, left_out))
    for line in [
        *left_out,
        *dict.fromkeys(f"`{found.client}`: {found.client_does}." for found in measured),
    ]:
        report.note(line)
    _print_layers(measured)
    _print_cold(measured)


def _rows(
    corpus: Corpus, options: Options, measured: list[Measured], left_out: list[str]
) -> Iterator[Sequence[object]]:
    """Yield two rows for each store and size, when they are measured."""
    for size in sorted(options.sizes):
        part = corpus.first(size)
        task = Task(part, _records(part), search.exact_best(part), options.timed)
        for kind in options.stores or KINDS:
            if options.stores is None and kind in SMALL and size > _SMALL_SIZE:
                left_out.append(
                    f"`{SMALL[kind]}` is designed for fewer than {size:,} memories; `--stores {kind}` measures it."
                )
                continue
            try:
                found = _measure(kind, task)
            except ProgramMissing as exc:
                left_out.append(f"`{kind}` is left out: {exc}.")
                continue
            measured.append(found)
            yield _row(f"**{kind}**", found, found.ours, _of_search(found))
            yield _row(f"… beneath it: {found.client}", found, found.plain, ("", "", "", ""))


def _row(name: str, found: Measured, reached: Reached, rest: Sequence[str]) -> Sequence[object]:
    return (
        name,
        f"{found.memories:,}",
        f"{reached.inserts_per_second:,.0f}",
        report.p50_p95(reached.times)[0],
        report.p50_p95(reached.few_times)[0],
        f"{reached.recall:.4f}",
        f"{reached.size_bytes / found.memories / 100:.1f}",
        *rest,
    )


def _of_search(found: Measured) -> Sequence[str]:
    return (
        *report.p50_p95(found.searches),
        f"{min(found.cold):.0f}",
        f"{report.percentile(found.cold, 0.5):.0f}",
    )


# --- one store


def _measure(kind: str, task: Task) -> Measured:
    """Measure a store and the client beneath it together."""
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as name:
        folder = Path(name).absolute()
        folder.chmod(0o755)  # a server may run as another user
        data, home = folder / "data", folder / "home"
        data.mkdir()
        with KINDS[kind](data) as place:
            at_first = place.size()
            with closing(_open(place)) as store:
                seconds = _fill(store.append, task.records)
            between = place.size()
            plain_seconds = _fill(place.client.insert, _plain_rows(task))
            at_last = place.size()
            count = len(task.records)
            with closing(_open(place)) as store:
                place.client.attach(store, _ASKED)
                times = _times(store, place, task)
                recalls = _recalls(store, place, task)
                searches = _searches(store, task)
            bare, cold = _cold(place.url, home)
            return Measured(
                kind=kind,
                memories=count,
                client=place.client.name,
                client_does=place.client.does,
                ours=Reached(
                    count / seconds,
                    times["ours"],
                    times["ours, few"],
                    recalls[0],
                    between - at_first,
                ),
                plain=Reached(
                    count / plain_seconds,
                    times["plain"],
                    times["plain, few"],
                    recalls[1],
                    at_last - between,
                ),
                plain_named_times=times["plain, named"],
                searches=searches,
                cold=cold,
                bare=bare,
            )


def _open(place: Place) -> Store:
    return open_store(place.url, MiniLM.space)


def _records(corpus: Corpus) -> list[Record]:
    """Return the records that `Memories` would write: one of 20 in a different namespace, ten
    projects.
    """
    now = datetime.now(UTC)
    found: list[Record] = []
    for at, text in enumerate(corpus.texts):
        namespace = search.NAMESPACE if at % 20 == 7 else SHARED
        draft = Draft(text, {"project": f"p{at // 20 % 10}", "type": "fact"})
        record = first_version(draft, new_id(now), namespace, now)
        found.append(record._replace(vectors=corpus.vectors[at : at + 1]))
    return found


def _plain_rows(task: Task) -> list[Row]:
    return [
        Row(
            number,
            record.ref.namespace,
            record.labels["project"],
            record.text,
            task.corpus.vectors[number],
        )
        for number, record in enumerate(task.records)
    ]


def _fill(insert: Callable[[Sequence[Any]], None], items: Sequence[Any]) -> float:
    """Insert in batches, each of them durable; return the seconds."""
    start = time.perf_counter()
    for at in range(0, len(items), _BATCH):
        insert(items[at : at + _BATCH])
    return time.perf_counter() - start


# --- time and recall


def _times(store: Store, place: Place, task: Task) -> dict[str, list[float]]:
    vectors, client = task.corpus.statement_vectors, place.client
    return _in_turns(
        {
            "plain": lambda at: client.nearest(vectors[at], Scope.ALL),
            "plain, named": lambda at: client.nearest(vectors[at], Scope.NAMESPACES),
            "ours": lambda at: store.candidates(
                _ASKED.everything, vector=vectors[at], terms=(), k=K
            ),
            "plain, few": lambda at: client.nearest(vectors[at], Scope.FEW),
            "ours, few": lambda at: store.candidates(_ASKED.few, vector=vectors[at], terms=(), k=K),
        },
        task.timed,
    )


def _searches(store: Store, task: Task) -> list[float]:
    """Return the times of a user's search: for a whole sentence, by words and by vector, with
    counted reads.
    """
    config = load_config({}, environment={})
    memories = Memories(
        store, namespace=search.NAMESPACE, embedder=task.corpus.embedder, config=config
    )
    texts = task.corpus.statements
    return _in_turns({"search": lambda at: memories.search(texts[at], limit=K)}, task.timed)[
        "search"
    ]


def _in_turns(calls: Mapping[str, Callable[[int], Any]], count: int) -> dict[str, list[float]]:
    """Return the milliseconds of each call for each query, in turns, so that other load falls on
    all alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for at in range(-_WARMING, count):
        order = list(calls.items())
        # The second call finds warm caches, so each is first equally often.
        for name, call in order if at % 2 else reversed(order):
            spent = report.milliseconds(lambda call=call, at=at: call(abs(at)))
            if at >= 0:
                taken[name].append(spent)
    return taken


def _recalls(store: Store, place: Place, task: Task) -> tuple[float, float]:
    """Return the share of the exact ten best that the store finds, and the share that its client
    finds.
    """
    found = [0, 0]
    for at, rows in enumerate(task.best):
        wanted = {task.corpus.texts[row] for row in rows}
        vector = task.corpus.statement_vectors[at]
        candidates = store.candidates(_ASKED.everything, vector=vector, terms=(), k=K)
        found[0] += sum(candidate.record.text in wanted for candidate in candidates)
        found[1] += sum(
            place.client.texts[key] in wanted for key in place.client.nearest(vector, Scope.ALL)
        )
    return found[0] / task.best.size, found[1] / task.best.size


# --- whole processes


def _cold(url: str, home: Path) -> tuple[list[float], list[float]]:
    """Return the milliseconds of `python -c pass` and of `memory search`, in turn, each in its own
    process.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LANG", "HOME", "PYTHONPATH")
    }
    ours = {"MEMORY_HOME": str(home), "MEMORY_STORE": url, "MEMORY_NAMESPACE": search.NAMESPACE}
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "search": [sys.executable, "-m", "memories", "search", _COLD_QUERY],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(_COLD_ROUNDS + 1):  # the first round warms the disk cache, so it isn't counted
        for name, command in commands.items():
            start = time.perf_counter()
            done = subprocess.run(
                command, env=kept | ours, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            taken[name].append((time.perf_counter() - start) * 1000)
            if done.returncode or (name == "search" and '"content"' not in done.stdout):
                raise SystemExit(
                    f"memory search in {url} failed: {done.stderr[-500:] or done.stdout[:200]}"
                )
    return taken["bare"][1:], taken["search"][1:]


# --- targets


def _print_layers(measured: Sequence[Measured]) -> None:
    report.heading(
        "What our layer adds to a search by vector: the difference between the two medians"
    )
    report.table(
        [
            "store",
            "memories",
            "unfiltered: ms",
            "filtered: ms",
            f"target: ≤ {_LAYER_TARGET:.0f} ms",
            "client without filter: ms",
        ],
        [_layer(found) for found in measured],
    )
    report.note(
        "Store and client get the same filter, except in the last column, where the client searches "
        "without one."
    )


def _layer(found: Measured) -> Sequence[str]:
    ours = _median(found.ours.times)
    every, unfiltered = ours - _median(found.plain_named_times), ours - _median(found.plain.times)
    few = _median(found.ours.few_times) - _median(found.plain.few_times)
    met = _met(max(every, few) <= _LAYER_TARGET)
    return (
        found.kind,
        f"{found.memories:,}",
        f"{every:+.2f}",
        f"{few:+.2f}",
        met,
        f"{unfiltered:+.2f}",
    )


def _print_cold(measured: Sequence[Measured]) -> None:
    report.heading(
        f"`memory search` from a cold shell, {_COLD_ROUNDS} rounds; each loads the model"
    )
    columns = [
        "store",
        "memories",
        "`python -c pass`: median ms",
        "median ms",
        f"target: ≤ {_COLD_TARGET_SECONDS} s",
    ]
    report.table(
        columns,
        [
            (
                found.kind,
                f"{found.memories:,}",
                f"{_median(found.bare):.0f}",
                f"{_median(found.cold):.0f}",
                _met(_median(found.cold) <= _COLD_TARGET_SECONDS * 1000),
            )
            for found in measured
        ],
    )


def _median(values: Sequence[float]) -> float:
    return report.percentile(values, 0.5)


def _met(reached: bool) -> str:
    return "met" if reached else "**missed**"
