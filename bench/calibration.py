"""Calibrate similarity: find out which cosine means that a text answers a question, so that
thresholds fit every model.

Texts that answer a question are compared with as many texts from other conversations, and a
logistic curve is fitted to their cosines (Platt, 1999). The curve's two constants are stored in
`Space.calibration`; the table shows how well the curve fits.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import report
from bench.retrieval import datasets
from bench.retrieval.vectors import KeptVectors
from memories.embedders.protocol import embed_many
from memories.search.relevance import calibrate, to_cosine
from memories.search.surroundings import remove_speakers

POLICY = (0.70, 0.75, 0.85)  # the thresholds of the identity specification: fresh, normal, stale
BINS = 10
_STEPS = 50

Cosines = NDArray[np.float64]


def run(files: dict[str, Path], embedder: str = "minilm", seed: int = 7) -> None:
    """Measure with the given data sets, and print the constants and the curve.

    Args:
        files: Names of data sets and the user's copies of them.
        embedder: The name of an included embedder.
        seed: The seed for drawing unrelated texts.
    """
    kept = KeptVectors(embedder)
    try:
        pairs = {
            name: _cosines(datasets.load(name, path), kept, random.Random(seed))
            for name, path in files.items()
        }
        used = kept.space.calibration
    finally:
        kept.close()
    pairs["all"] = _joined(list(pairs.values()))
    report.heading("Calibration: cosines of what belongs to a question and of what does not")
    rows = []
    for name, (related, unrelated) in pairs.items():
        slope, middle = fit(related, unrelated)
        bounds = [
            f"{np.percentile(related, 5):.2f}",
            f"{np.median(related):.2f}",
            f"{np.median(unrelated):.2f}",
        ]
        rows.append(
            (
                name,
                len(related),
                *bounds,
                f"{np.percentile(unrelated, 95):.2f}",
                f"{slope:.1f}",
                f"{middle:.3f}",
            )
        )
    heads = [
        "data",
        "pairs",
        "related: 5th percentile",
        "related: median",
        "unrelated: median",
        "unrelated: 95th percentile",
    ]
    report.table([*heads, "fitted slope", "fitted middle"], rows)
    _print_curve(*pairs["all"], used)


def fit(related: Cosines, unrelated: Cosines) -> tuple[float, float]:
    """Return the slope and the middle of the logistic curve with the maximum likelihood, by
    Newton's method.
    """
    cosines = np.concatenate([related, unrelated])
    belongs = np.concatenate([np.ones(len(related)), np.zeros(len(unrelated))])
    inputs = np.stack([cosines, np.ones_like(cosines)], axis=1)
    weights = np.zeros(2)
    for _ in range(_STEPS):
        likely = 1 / (1 + np.exp(-inputs @ weights))
        curvature = (inputs * (likely * (1 - likely))[:, None]).T @ inputs
        weights += np.linalg.solve(curvature, inputs.T @ (belongs - likely))
    return float(weights[0]), float(-weights[1] / weights[0])


def _cosines(
    data: datasets.DataSet, embedder: KeptVectors, rng: random.Random
) -> tuple[Cosines, Cosines]:
    """Return each question's best cosine with a text that answers it, and its cosine with a text of
    a different conversation.
    """
    related, unrelated = [], []
    for pool in data.pools:
        speakers = {turn.speaker for turn in pool.turns if turn.speaker}
        said: dict[str, list[datasets.Turn]] = {}
        for turn in pool.turns:
            said.setdefault(turn.target, []).append(turn)
        others = [turn for other in data.pools if other is not pool for turn in other.turns]
        for question in pool.questions:
            vector = embedder.embed_query(remove_speakers(question.text, speakers)).sum(axis=0)
            vector /= np.linalg.norm(vector)
            answers = [turn for target in question.turns for turn in said[target]]
            if answers and others:
                related.append(float((np.concatenate(_stored(embedder, answers)) @ vector).max()))
                unrelated.append(float((_stored(embedder, [rng.choice(others)])[0] @ vector).max()))
    return np.array(related), np.array(unrelated)


def _stored(embedder: KeptVectors, turns: Sequence[datasets.Turn]) -> list[NDArray[np.float32]]:
    """Return the vectors that a store keeps for turns."""
    return embed_many(embedder, [turn.text for turn in turns], [turn.role for turn in turns])


def _joined(pairs: Sequence[tuple[Cosines, Cosines]]) -> tuple[Cosines, Cosines]:
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def _print_curve(related: Cosines, unrelated: Cosines, used: tuple[float, float]) -> None:
    slope, middle = used
    report.heading(f"The curve in use: slope {slope}, middle {middle}")
    scales = [
        np.array([calibrate(cosine, slope, middle) for cosine in cosines])
        for cosines in (related, unrelated)
    ]
    rows = []
    for low in np.arange(BINS) / BINS:
        inside = [int(((scale >= low) & (scale < low + 1 / BINS)).sum()) for scale in scales]
        share = f"{inside[0] / sum(inside):.2f}" if sum(inside) else "–"
        cosine = to_cosine(low, slope, middle)
        rows.append(
            (f"{low:.1f} to {low + 1 / BINS:.1f}", f"{max(-1.0, cosine):.3f}", sum(inside), share)
        )
    report.table(["calibrated", "from cosine", "pairs", "share of related pairs"], rows)
    report.heading("The thresholds of the identity specification")
    report.table(
        ["threshold", "cosine", "related pairs below it", "unrelated pairs above it"],
        [
            (
                f"{threshold:.2f}",
                f"{to_cosine(threshold, slope, middle):.3f}",
                f"{(scales[0] < threshold).mean():.1%}",
                f"{(scales[1] >= threshold).mean():.1%}",
            )
            for threshold in POLICY
        ],
    )
