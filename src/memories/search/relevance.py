"""How age and use change what a memory is worth as an answer, and how similar it must be. Pure: ages are passed in.

Decision 5 of the identity specification: `score = similarity × freshness × boost`, and three thresholds. Here the first
factor is the fused score of `ranking`, and the second is bounded, so that the order of answers stays the order of what
they say: age and use decide between memories that answer equally well, and never bury one that answers best.
"""

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
        thresholds: The least similarity of what is fresh, normal and stale, on the calibrated scale.
        plain: Order by the plain product of similarity, freshness and boost: without bounds, and every memory ages.
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
        """Return what the settings say."""
        return cls(
            config.freshness_decay_rate,
            config.freshness_min,
            config.access_boost_rate,
            config.access_boost_max,
            config.freshness_fresh,
            config.freshness_stale,
            (config.relevance_threshold_fresh, config.relevance_threshold_normal, config.relevance_threshold_stale),
        )


FRESH, NORMAL, STALE = range(3)


def freshness(age_days: float, decay_rate: float, policy: "DecayPolicy") -> float:
    """Return how fresh a memory is, 0 to 1: `1 / (1 + decay_rate × age_days)`; a stable one always is.

    Args:
        age_days: Since it was written, or last reinforced if it heeds that; a time in the future counts as now.
        decay_rate: See `Relevance`.
        policy: Its decay policy.
    """
    return 1.0 if policy == "stable" else faded(age_days, decay_rate)


def faded(age_days: float, decay_rate: float) -> float:
    """Return the freshness of what ages; see `freshness`."""
    return 1.0 / (1.0 + decay_rate * max(0.0, age_days))


def boost(accesses: int, rate: float, most: float) -> float:
    """Return the factor for use: `1 + rate × accesses`, at most `most`."""
    return min(most, 1.0 + rate * accesses)


def factor(fresh: float, used: float, least: float) -> float:
    """Return the factor of a score: freshness as a share of what lies above `least`, times the boost."""
    return (least + (1.0 - least) * fresh) * used


def condition(fresh: float, accesses: int, relevance: Relevance) -> int:
    """Return whether a memory is `FRESH` (and read), `STALE` (and never read) or `NORMAL`: a place in `thresholds`."""
    if accesses:
        return FRESH if fresh >= relevance.fresh else NORMAL
    return STALE if fresh < relevance.stale else NORMAL
