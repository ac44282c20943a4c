"""How good a ranking is, and whether a difference between two systems is more than chance; pure
functions.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEPTH = 50  # number of entries of a ranking that are considered
CUTS = (1, 5, 10)
NAMES = (*(f"{kind}@{k}" for kind in ("any", "all", "frac") for k in CUTS), "ndcg@10", "mrr")
OF_BUDGET = ("frac@1k", "evidence/1k")
RESAMPLES = 10_000
_CHUNK = 500  # number of resamples at once, which limits memory

Scores = Mapping[str, float]  # for each of `NAMES`, 0 to 1


@dataclass(frozen=True, slots=True)
class Difference:
    """The result of a paired bootstrap of our metric minus theirs.

    Attributes:
        mean: The difference that was measured.
        low: With `high`, the interval that holds 95 % of the resampled differences.
        p: The probability of such a large difference by chance, in either direction.
    """

    mean: float
    low: float
    high: float
    p: float


def first_seen(ids: Iterable[str]) -> list[str]:
    """Return each of the ids once, where it appears first."""
    return list(dict.fromkeys(ids))


def score(ranked: Sequence[str], gold: frozenset[str]) -> Scores:
    """Return all metrics of one ranking.

    Args:
        ranked: The found ids, best first, without repetitions.
        gold: What answers the question; at least one.

    Returns:
        For k of 1, 5, 10: `any@k`, whether one of `gold` is among the first k; `all@k`, whether all
            are; `frac@k`, the share that is. `ndcg@10` with gains of 0 and 1 (Järvelin and
            Kekäläinen, 2002). `mrr`: one over the rank of the first of `gold`, 0 if it is not among
            the first 50.
    """
    ranks = [rank for rank, found in enumerate(ranked[:DEPTH], 1) if found in gold]
    within = {k: sum(rank <= k for rank in ranks) for k in CUTS}
    gain = sum(1 / math.log2(rank + 1) for rank in ranks if rank <= 10)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(gold), 10) + 1))
    return {
        **{f"any@{k}": float(within[k] > 0) for k in CUTS},
        **{f"all@{k}": float(within[k] == len(gold)) for k in CUTS},
        **{f"frac@{k}": within[k] / len(gold) for k in CUTS},
        "ndcg@10": gain / ideal,
        "mrr": 1 / ranks[0] if ranks else 0.0,
    }


def score_budget(held: frozenset[str], gold: frozenset[str], tokens: int) -> Scores:
    """Return the metrics of the messages that a reader receives.

    Args:
        held: The targets among them.
        gold: What answers the question; at least one.
        tokens: Their tokens.

    Returns:
        `frac@1k`, the share of `gold` among the messages; `evidence/1k`, the number of `gold` among
            the messages per 1,000 tokens.
    """
    count = len(held & gold)
    return {"frac@1k": count / len(gold), "evidence/1k": 1_000 * count / max(1, tokens)}


def mean(scores: Sequence[Scores]) -> Scores:
    """Return the mean of each metric over questions; NaN if there are none."""
    return {
        name: sum(one[name] for one in scores) / len(scores) if scores else math.nan
        for name in (scores[0] if scores else NAMES)
    }


def bootstrap(
    ours: Sequence[float], theirs: Sequence[float], *, seed: int, resamples: int = RESAMPLES
) -> Difference:
    """Compare two systems on the same questions by resampling the questions (Efron and Tibshirani,
    1993, chapter 16).

    Args:
        ours: Our metric for each question; at least one.
        theirs: Their metric for each question, in the same order.
        seed: The same seed gives the same result.
        resamples: How many times the same number of questions is drawn with replacement.

    Returns:
        The difference, its 95 % interval, and p: twice the smaller share of resampled means on one
        side of zero, where one is added to both counts, so that p is never 0.
    """
    gaps: NDArray[np.float64] = np.asarray(ours, dtype=np.float64) - np.asarray(
        theirs, dtype=np.float64
    )
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [
            gaps[rng.integers(0, len(gaps), size=(min(_CHUNK, resamples - at), len(gaps)))].mean(
                axis=1
            )
            for at in range(0, resamples, _CHUNK)
        ]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    side = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return Difference(
        float(gaps.mean()), float(low), float(high), min(1.0, 2 * (side + 1) / (resamples + 1))
    )
