"""Relevance: how age and use change a memory's score, and how similar a hit must be. Pure: ages are
passed in.

This is a bounded variant of Decision 5 in the identity specification, `score = similarity ×
freshness × boost`, with its three thresholds. The first factor is the fused score from `ranking`.
The other two are bounded, so that the content of the memories decides their order: age and use only
break near ties. The thresholds are on a calibrated scale, so they mean the same for every embedder.
They are higher for a stale memory, which may therefore be dropped if it shares no word with the
query.
"""

import math
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from memories.models import DecayPolicy
    from memories.settings import Config

# levels of staleness, as indexes into `thresholds`; see `staleness`
READ_AND_FRESH, NORMAL, STALE = range(3)


class Relevance(NamedTuple):
    """How much a memory's age and use influence its score; each attribute is a setting.

    Stable memories, the default, don't age, except when a search ranks by `formula`.

    Attributes:
        decay_rate: How fast freshness falls: to one half after `1 / decay_rate` days.
        min_freshness: The lower bound of the factor for age, 0 to 1; 1 ignores age.
        boost_rate: How much each read increases the factor for use.
        max_boost: The upper bound of the factor for use, 1 or more; 1 ignores use.
        fresh_from: A memory that has been read and is at least this fresh gets the lowest
            threshold.
        stale_below: A memory that was never read and is less fresh than this gets the highest
            threshold.
        thresholds: For each level of staleness, the minimum similarity of a clear answer, on the
            calibrated scale. See `ranking._drop_below_thresholds`.
    """

    decay_rate: float = 0.02
    min_freshness: float = 0.95
    boost_rate: float = 0.002
    max_boost: float = 1.02
    fresh_from: float = 0.8
    stale_below: float = 0.5
    thresholds: tuple[float, float, float] = (0.70, 0.75, 0.85)

    @classmethod
    def of(cls, config: "Config") -> Self:
        """Return the values from the settings."""
        return cls(
            config.freshness_decay_rate,
            config.freshness_min,
            config.access_boost_rate,
            config.access_boost_max,
            config.freshness_fresh,
            config.freshness_stale,
            (
                config.relevance_threshold_fresh,
                config.relevance_threshold_normal,
                config.relevance_threshold_stale,
            ),
        )


def freshness(age_days: float, decay_rate: float, policy: "DecayPolicy") -> float:
    """Return a memory's freshness, 0 to 1; a stable memory's is always 1. See `fade`.

    Args:
        age_days: Days since the memory was written, or last reinforced if its policy allows that; a
            negative age counts as 0.
        decay_rate: See `Relevance`.
        policy: The memory's decay policy.
    """
    return 1.0 if policy == "stable" else fade(age_days, decay_rate)


def fade(age_days: float, decay_rate: float) -> float:
    """Return the freshness of an aging memory: `1 / (1 + decay_rate × age_days)`."""
    return 1.0 / (1.0 + decay_rate * max(0.0, age_days))


def boost(accesses: int, rate: float, limit: float) -> float:
    """Return the factor for use: `1 + rate × accesses`, at most `limit`."""
    return min(limit, 1.0 + rate * accesses)


def factor(freshness: float, use: float, min_freshness: float) -> float:
    """Return the factor for a score: freshness, scaled to a minimum of `min_freshness`, times the
    factor for use.
    """
    return (min_freshness + (1.0 - min_freshness) * freshness) * use


def staleness(freshness: float, accesses: int, relevance: Relevance) -> int:
    """Return `READ_AND_FRESH` for a memory that was read and is fresh enough, `STALE` for one that
    was never read and has faded, else `NORMAL`.
    """
    if accesses:
        return READ_AND_FRESH if freshness >= relevance.fresh_from else NORMAL
    return STALE if freshness < relevance.stale_below else NORMAL


def calibrate(cosine: float, slope: float, middle: float) -> float:
    """Return a cosine as a calibrated similarity, 0 to 1, comparable across embedders.

    It is the probability that a text with this cosine answers a question, assuming that half of all
    texts do. The curve is logistic, and its two constants are measured for each embedder (`python
    -m bench calibration`).

    Args:
        cosine: The similarity.
        slope: The slope of the curve.
        middle: The cosine at which the probability is one half.
    """
    return 1 / (1 + math.exp(-slope * (cosine - middle)))


def to_cosine(share: float, slope: float, middle: float) -> float:
    """Return the cosine for a calibrated similarity: the inverse of `calibrate`. A similarity of 0
    gives -1, and a similarity of 1 gives more than 1.
    """
    if share <= 0:
        return -1.0
    if share >= 1:
        return 2.0
    return middle + math.log(share / (1 - share)) / slope
