"""The cost of an identity as it grows, alone in its store and next to eleven others: search,
create, list, the prompt.

Both stores grow in one run and their calls take turns, so that other load on the machine doesn't
change the ratios. The texts are those of `scale`.
"""

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import corpus as corpora
from bench import report, scale
from memories import Config, Draft, Memories, load_config

SIZES = (1_000, 10_000, 100_000)
TIMED = 100
OTHERS = 11
SHARE = 10  # each of the other identities has a tenth as many memories as the measured one
BATCH = 500
_Calls = dict[str, Callable[[Memories, int], Any]]


def run(texts: Sequence[str], sizes: Sequence[int], timed: int) -> None:
    """Measure each size, alone and next to others, and print a table with the ratios.

    Args:
        texts: Real texts, of any length.
        sizes: Numbers of memories of the measured identity.
        timed: The number of calls of each kind.
    """
    sentences = scale.sentences(texts, scale.SENTENCES + timed)
    random.Random(7).shuffle(sentences)
    vectors = scale.embedded(sentences)
    made = scale.Made(sentences[timed:], vectors[timed:])
    corpora.CACHE.mkdir(exist_ok=True)
    found: dict[tuple[str, int, bool], list[float]] = {}
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder:
        homes = [Path(folder).absolute() / name for name in ("alone", "beside")]
        configs = [load_config({"home": str(home)}, environment={}) for home in homes]
        count = 0
        for size in sorted(sizes):
            for config, others in zip(configs, (0, OTHERS), strict=True):
                _fill(config, made, "bob", count, size)
                for other in range(others):
                    _fill(config, made, f"agent-{other}", count // SHARE, size // SHARE)
            count = size
            for name, beside, spent in _measured(
                configs, made, sentences[:timed], vectors[:timed], size
            ):
                found.setdefault((name, size, beside), []).append(spent)
    _print(found, sorted(sizes), timed)


def _fill(config: Config, made: scale.Made, namespace: str, count: int, size: int) -> None:
    """Store more memories in a namespace, until it has `size`."""
    with Memories(config=config, embedder=made, namespace=namespace) as memories:
        for first in range(count, size, BATCH):
            texts, vectors = made.batch(first)
            made.know(texts, vectors)
            drafts = [
                Draft(text, {key: f"{key} {at % share}" for key, share in scale.TAGS.values()})
                for at, text in enumerate(texts[: size - first], first)
            ]
            memories.create_many(drafts, force=True)


def _measured(
    configs: Sequence[Config], made: scale.Made, asked: Sequence[str], vectors: Any, size: int
) -> list[tuple[str, bool, float]]:
    """Return (what, whether beside others, milliseconds) of each call; the two stores take
    turns.
    """
    new, new_vectors = made.batch(1_000_000 + size)
    shorts = [" ".join(text.split()[:5]) for text in asked]
    short_vectors = np.concatenate([made.embed(short) for short in shorts])
    made.know([*asked, *new, *shorts], np.concatenate([vectors, new_vectors, short_vectors]))
    calls: _Calls = {
        "search, a short query": lambda memories, at: memories.search(shorts[at], limit=10),
        "search, a whole sentence": lambda memories, at: memories.search(asked[at], limit=10),
        "search, one tag of 10": lambda memories, at: memories.search(
            asked[at], limit=10, tags={"project": f"project {at % 10}"}
        ),
        "create, with its check for duplicates": lambda memories, at: memories.create(new[at]),
        "list, the newest 10": lambda memories, _: memories.list(limit=10),
    }
    spent: list[tuple[str, bool, float]] = []
    stores = [Memories(config=config, embedder=made, namespace="bob") for config in configs]
    for name, call in calls.items():
        for at in range(-3, len(asked)):
            for beside, memories in enumerate(stores):
                taken = report.milliseconds(
                    lambda call=call, memories=memories, at=at: call(memories, at)
                )
                if at >= 0:  # the first calls fill caches
                    spent.append((name, bool(beside), taken))
    for memories in stores:
        memories.close()
    return spent


def _print(
    found: dict[tuple[str, int, bool], list[float]], sizes: Sequence[int], timed: int
) -> None:
    names = list(dict.fromkeys(name for name, _, _ in found))
    report.heading(
        f"One identity as it grows, p50 / p95 ms of {timed} calls, embedding not included"
    )
    rows = []
    for name in names:
        for beside in (False, True):
            cells = [" / ".join(report.p50_p95(found[name, size, beside])) for size in sizes]
            medians = [report.percentile(found[name, size, beside], 0.5) for size in sizes]
            rows.append(
                (
                    f"{name}{', 11 others beside' * beside}",
                    *cells,
                    f"{medians[-1] / medians[0]:.1f}",
                )
            )
    report.table(["what", *(f"{size:,}" for size in sizes), f"{sizes[-1]:,} : {sizes[0]:,}"], rows)
    report.heading("Beside eleven others : alone, p50")
    ratios = [
        (
            name,
            *(
                f"{_median(found[name, size, True]) / _median(found[name, size, False]):.2f}"
                for size in sizes
            ),
        )
        for name in names
    ]
    report.table(["what", *(f"{size:,}" for size in sizes)], ratios)
    report.note(
        f"Each of the others has a tenth as many: the store holds {1 + OTHERS / SHARE:.1f} times as many."
    )


def _median(values: Sequence[float]) -> float:
    return report.percentile(values, 0.5)
