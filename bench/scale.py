"""How a store grows from 1,000 memories to 1,000,000: search, recall, memory, status, tags and a
cold search.

There aren't enough real texts, so a memory here consists of the beginning of one real sentence and
the end of another, and its vector lies between their vectors, with some noise. The frequency of
words and the density of the space remain as in real texts. In this sense the figures are synthetic.
"""

import itertools
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import corpus as corpora
from bench import report
from memories import Config, Draft, Memories, load_config
from memories.embedders.minilm import MiniLM
from memories.stores.records import Collection, Filter

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SENTENCES = 20_000  # maximum number of real sentences from which all memories are made
TIMED = 200
TAGS = {
    "one tag of 10": ("project", 10),
    "one of 100": ("topic", 100),
    "one of 1,000": ("thread", 1_000),
}
_BATCH = 500
_TOLD = 100_000  # number of memories between two progress lines
_NOISE = 0.5  # length of the noise, relative to vectors of length 1


class Made:
    """An endless series of memories, the same in each run, and an embedder that knows the vectors
    of the last batch.
    """

    space = MiniLM.space

    def __init__(self, sentences: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self._words = [sentence.split() for sentence in sentences]
        self._vectors = vectors
        self._model = MiniLM()
        self._known: dict[str, NDArray[np.float32]] = {}

    def batch(self, number: int) -> tuple[list[str], NDArray[np.float32]]:
        """Return the texts and the vectors of a batch, shape (`_BATCH`, dimension)."""
        draw = np.random.default_rng(number)
        first, second = draw.integers(0, len(self._words), (2, _BATCH))
        noise = draw.standard_normal((_BATCH, self._vectors.shape[1])).astype(np.float32)
        noise *= _NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
        mixed = self._vectors[first] + 0.6 * self._vectors[second] + noise
        mixed = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)
        halves = (
            (self._words[a], self._words[b])
            for a, b in zip(first.tolist(), second.tolist(), strict=True)
        )
        texts = [
            " ".join([*one[: len(one) // 2 + 1], *other[len(other) // 2 :]])
            for one, other in halves
        ]
        return texts, mixed

    def know(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """From now on, return these vectors for these texts."""
        self._known = dict(zip(texts, vectors, strict=True))

    def embed(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a text, shape (1, dimension); see `Embedder.embed`."""
        known = self._known.get(text)
        return self._model.embed(text)[:1] if known is None else known[np.newaxis, :]

    def familiarity(self, text: str) -> float:
        """Return what MiniLM says."""
        return self._model.familiarity(text)


def run(texts: Sequence[str], sizes: Sequence[int], timed: int) -> None:
    """Measure each size, one store that grows, and print the tables.

    Args:
        texts: Real texts, of any length.
        sizes: How many memories.
        timed: With how many queries.
    """
    given = sentences(texts, SENTENCES + timed)
    random.Random(7).shuffle(given)
    vectors = embedded(given)
    made = Made(given[timed:], vectors[timed:])
    asked, asked_vectors = given[:timed], vectors[:timed]
    corpora.CACHE.mkdir(exist_ok=True)
    rows: list[Sequence[object]] = []
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder:
        config = load_config({"home": str(Path(folder).absolute())}, environment={})
        count = 0
        nearest = Nearest(asked_vectors)
        for size in sorted(sizes):
            per_second = _fill(config, made, nearest, count, size)
            count = size
            made.know(asked, asked_vectors)
            measured = _measured(config, made, asked, nearest, size, per_second)
            _tell(f"{size:,} memories: {'; '.join(f'{what}: {value}' for what, value in measured)}")
            rows += measured
    report.heading(
        f"Growth, {len(given) - timed:,} real sentences recombined, {timed} queries, limit 10, CPU time"
    )
    report.table(["what", *(f"{size:,}" for size in sorted(sizes))], _turned(rows, len(sizes)))


class Nearest:
    """Finds the ten best vectors so far for each query, by exact float32 cosines."""

    def __init__(self, queries: NDArray[np.float32]) -> None:
        self._queries = queries
        self._scores = np.full((len(queries), 10), -2.0, dtype=np.float32)
        self.texts: list[list[str]] = [[] for _ in queries]

    def add(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Take some more into account."""
        scores = self._queries @ vectors.T
        for at in np.flatnonzero(scores.max(axis=1) > self._scores.min(axis=1)).tolist():
            best = np.argsort(-scores[at])[:10].tolist()
            known = list(zip(self._scores[at].tolist(), self.texts[at], strict=False))
            joined = sorted(
                [*known, *((float(scores[at, row]), texts[row]) for row in best)], reverse=True
            )[:10]
            self.texts[at] = [text for _, text in joined]
            self._scores[at, : len(joined)] = [score for score, _ in joined]


def _sentences(texts: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
            words = sentence.split()
            if 6 <= len(words) <= 60 and sentence not in seen:
                seen.add(sentence)
                yield " ".join(words)


def sentences(texts: Sequence[str], count: int) -> list[str]:
    """Return the first sentences of texts, without repetitions."""
    return list(itertools.islice(_sentences(texts), count))


def embedded(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors of sentences, shape (sentences, dimension)."""
    model = MiniLM()
    return np.concatenate([model.embed(text)[:1] for text in texts])


def _fill(config: Config, made: Made, nearest: Nearest, count: int, size: int) -> float:
    """Store more memories, until there are `size`; return the number of memories per second of CPU
    time.
    """
    seconds = 0.0
    with Memories(config=config, embedder=made) as memories:
        for first in range(count, size, _BATCH):
            texts, vectors = made.batch(first)
            made.know(texts, vectors)
            nearest.add(texts, vectors)
            drafts = [
                Draft(text, {key: f"{key} {at % share}" for key, share in TAGS.values()})
                for at, text in enumerate(texts, first)
            ]
            start = time.process_time()
            memories.create_many(drafts, force=True)
            seconds += time.process_time() - start
            if (first + _BATCH) % _TOLD == 0:
                _tell(
                    f"{first + _BATCH:,} memories, {(first + _BATCH - count) / seconds:,.0f} a second of CPU time"
                )
    return (size - count) / seconds


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cpu(call: Callable[[], Any]) -> float:
    """Return the CPU time of a call in milliseconds, which other load affects least."""
    start = time.process_time_ns()
    call()
    return (time.process_time_ns() - start) / 1e6


def _measured(
    config: Config, made: Made, asked: Sequence[str], nearest: Nearest, size: int, per_second: float
) -> list[Sequence[object]]:
    shorts = [" ".join(text.split()[:5]) for text in asked]
    for short in shorts:
        made.embed(short)
    known = {text: made.embed(text) for text in (*asked, *shorts)}
    made.know(list(known), np.concatenate(list(known.values())))
    searches: dict[str, Callable[[Memories, int], Any]] = {
        "a short query": lambda memories, at: memories.search(shorts[at], limit=10),
        "a whole sentence": lambda memories, at: memories.search(asked[at], limit=10),
    }
    for name, (key, share) in TAGS.items():
        searches[f"a sentence, {name}"] = lambda memories, at, key=key, share=share: (
            memories.search(asked[at], limit=10, tags={key: f"{key} {at % share}"})
        )
    rows: list[Sequence[object]] = [
        ("appended per second, in batches of 500", f"{per_second:,.0f}")
    ]
    with Memories(config=config, embedder=made) as memories:
        for name, call in searches.items():
            for at in range(5):
                call(memories, at)
            times = [_cpu(lambda call=call, at=at: call(memories, at)) for at in range(len(asked))]
            rows.append(
                (
                    f"{name}, p50 / p95 ms",
                    " / ".join(f"{float(part):.1f}" for part in report.p50_p95(times)),
                )
            )
        rows.append(("recall@10", f"{_recall(memories, known, asked, nearest):.4f}"))
        rows.append(("status, ms", f"{_best_of(memories.status):.1f}"))
        rows.append(("tags, ms", f"{_best_of(memories.tags):.1f}"))
        rows.append(("tags of a key, ms", f"{_best_of(lambda: memories.tags('thread')):.1f}"))
    rows.append(("memory of a process that searched, MB", f"{_resident(config, asked[:20]):.0f}"))
    rows.append(("cold memory search, ms", f"{_cold(config, asked[0]):.0f}"))
    rows.append(
        ("file, bytes a memory", f"{(config.home / 'memories.db').stat().st_size / size:,.0f}")
    )
    return rows


def _recall(
    memories: Memories, known: dict[str, Any], asked: Sequence[str], nearest: Nearest
) -> float:
    store = memories._store
    where = Filter(Collection.MEMORY, ("shared",))
    found = 0
    for text, best in zip(asked, nearest.texts, strict=True):
        candidates = store.candidates(where, vector=known[text][0], terms=(), k=10)
        candidates.sort(key=lambda candidate: -(candidate.similarity or 0.0))
        found += len({candidate.record.text for candidate in candidates[:10]} & set(best))
    return found / sum(map(len, nearest.texts))


def _best_of(call: Callable[[], Any]) -> float:
    return min(_cpu(call) for _ in range(5))


_SEARCHER = """
import sys
from memories import Memories
with Memories() as memories:
    for text in sys.argv[1:]:
        memories.search(text)
with open("/proc/self/status") as status:
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""


def _environment(config: Config) -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    } | {"MEMORY_HOME": str(config.home)}


def _resident(config: Config, asked: Sequence[str]) -> float:
    """Return the maximum memory of a separate process for some searches, in MB."""
    command = [sys.executable, "-c", _SEARCHER, *asked]
    done = subprocess.run(
        command, env=_environment(config), check=True, capture_output=True, text=True
    )
    return int(done.stdout) / 1024


def _cold(config: Config, query: str) -> float:
    """Return the CPU time of a command in milliseconds, the minimum of three runs."""
    command = [str(Path(sys.executable).with_name("memory")), "search", "--", query]

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    taken = []
    for _ in range(3):
        before = spent()
        subprocess.run(command, env=_environment(config), check=True, capture_output=True)
        taken.append(spent() - before)
    return min(taken) * 1000


def _turned(rows: Sequence[Sequence[object]], columns: int) -> list[Sequence[object]]:
    """Return a row for each measurement, with a column for each size."""
    count = len(rows) // columns
    return [
        (rows[at][0], *(rows[column * count + at][1] for column in range(columns)))
        for at in range(count)
    ]
