"""How age and use change the score of a memory, and how similar it must be. Pure: ages are passed
in.

Decision 5 of the identity specification: `score = similarity × freshness × boost`, and three
thresholds. Here the first factor is the fused score of `ranking`, and the second is bounded, so
that the order of answers stays the order of what they say: age and use decide between memories that
answer equally well, and never bury one that answers best. Thresholds stand on a calibrated scale,
so that they mean the same for every embedder.
"""

import math
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from memories.models import DecayPolicy
    from memories.settings import Config


class Relevance(NamedTuple):
    """How much age and use count; each is a setting.

    Attributes:
        decay_rate: What freshness loses: it is half after `1 / decay_rate` days.
        least_freshness: The least that the factor for age can be, 0 to 1; 1 leaves age out.
        boost_rate: What each read adds to the factor for use.
        most_boost: The most that this factor can be, 1 or more; 1 leaves use out.
        fresh: From this freshness on a memory that was read is `fresh`, which lowers its threshold.
        stale: Below this freshness a memory that was never read is `stale`, which raises it.
        thresholds: The least similarity of what is fresh, normal and stale, on the calibrated
            scale.
        plain: Order by the plain product of similarity, freshness and boost: without bounds, and
            every memory ages.
    """

    decay_rate: float = 0.02
    least_freshness: float = 0.95
    boost_rate: float = 0.002
    most_boost: float = 1.02
    fresh: float = 0.8
    stale: float = 0.5
    thresholds: tuple[float, float, float] = (0.70, 0.75, 0.85)
    plain: bool = False

    @classmethod
    def of(cls, config: "Config") -> Self:
        """Return the relevance that the settings describe."""
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


FRESH, NORMAL, STALE = range(3)


def freshness(age_days: float, decay_rate: float, policy: "DecayPolicy") -> float:
    """Return how fresh a memory is, 0 to 1: `1 / (1 + decay_rate × age_days)`; a stable one always
    is.

    Args:
        age_days: Since it was written, or last reinforced if it heeds that; a time in the future
            counts as now.
        decay_rate: See `Relevance`.
        policy: Its decay policy.
    """
    return 1.0 if policy == "stable" else fade(age_days, decay_rate)


def fade(age_days: float, decay_rate: float) -> float:
    """Return the freshness of what ages; see `freshness`."""
    return 1.0 / (1.0 + decay_rate * max(0.0, age_days))


def boost(accesses: int, rate: float, most: float) -> float:
    """Return the factor for use: `1 + rate × accesses`, at most `most`."""
    return min(most, 1.0 + rate * accesses)


def factor(fresh: float, used: float, least: float) -> float:
    """Return the factor of a score: freshness as a share of what lies above `least`, times the
    boost.
    """
    return (least + (1.0 - least) * fresh) * used


def condition(fresh: float, accesses: int, relevance: Relevance) -> int:
    """Return whether a memory is `FRESH` (and read), `STALE` (and never read) or `NORMAL`: a place
    in `thresholds`.
    """
    if accesses:
        return FRESH if fresh >= relevance.fresh else NORMAL
    return STALE if fresh < relevance.stale else NORMAL


def calibrate(cosine: float, slope: float, middle: float) -> float:
    """Return the calibrated similarity of a cosine, 0 to 1, which means the same for every
    embedder.

    It is the probability that a text with this cosine belongs to a question, where as many belong
    as do not: a logistic curve whose two constants are measured for each embedder (`python -m bench
    calibration`).

    Args:
        cosine: The similarity.
        slope: How steep the curve is.
        middle: The cosine at which it is as likely as not.
    """
    return 1 / (1 + math.exp(-slope * (cosine - middle)))


def to_cosine(share: float, slope: float, middle: float) -> float:
    """Return the cosine that a threshold means; the inverse of `calibrate`, -1 for 0 and more than
    1 for 1.
    """
    if share <= 0:
        return -1.0
    if share >= 1:
        return 2.0
    return middle + math.log(share / (1 - share)) / slope
