"""One scale of similarity for every embedder: a threshold means the same whichever model made the vectors. Pure."""

import math


def calibrated(cosine: float, slope: float, middle: float) -> float:
    """Return a cosine as a threshold sees it, 0 to 1, which means the same for every embedder.

    It is the probability that a text with this cosine belongs to a question, where as many belong as do not: a logistic
    curve whose two constants are measured for each embedder (`python -m bench calibration`).

    Args:
        cosine: The similarity.
        slope: How steep the curve is.
        middle: The cosine at which it is as likely as not.
    """
    return 1 / (1 + math.exp(-slope * (cosine - middle)))


def uncalibrated(share: float, slope: float, middle: float) -> float:
    """Return the cosine that a threshold means; the inverse of `calibrated`, -1 for 0 and more than 1 for 1."""
    if share <= 0:
        return -1.0
    return 2.0 if share >= 1 else middle + math.log(share / (1 - share)) / slope
