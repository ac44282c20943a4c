"""Guesses whether one text may replace another, because both are about the same subject and only
one of them can be current.

These guesses decide which memories are shown to a writer, which of two close results comes first,
and what `memory tidy` proposes. `write.compare` decides which texts are refused, and which are
linked as corrections.
"""

import functools
import math
from typing import TYPE_CHECKING

from memories.embedders.scores import rate_change
from memories.errors import SystemFault
from memories.languages import announces_change
from memories.languages.text import coverage, is_latin, query_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.records import Space

# The weights come from a logistic regression over pairs of facts: those of `dev` and `weights` in
# tests/data/reworded_pairs.jsonl, and the `dev` half of `bench/eighteen_projects`.
SHARED = -0.45
SHARED_CLOSENESS = 1.9
SHARED_CHANGE = 0.5
CHANGE = 0.08
LENGTH = 0.8
BEHIND = 2.8
MAX_LENGTH = 0.7  # limit of the logarithm of the lengths' ratio, in both directions
ANNOUNCED = 1.8  # added to the log-odds of a text whose words announce a change; see `_change`
LEAST_ANNOUNCED = 0.4  # minimum log-odds for such a text
UNANNOUNCED = -1.0  # log-odds for any other text whose vector can't be rated
REPLACES = 0.55  # minimum score of a text that may replace another
UNRELATED = 0.25  # closeness below which two texts are about different subjects
MAX_CHARACTERS = 2_000  # maximum number of characters of a text that may replace another

_cached_terms = functools.lru_cache(256)(query_terms)  # a text is compared with several


def score_replacement(
    new: str,
    old: str,
    similarity: float | None,
    space: "Space | None",
    vectors: "NDArray[np.float32] | None" = None,
    closest: float | None = None,
) -> float:
    """Return how likely a text is to replace an older one. It may if the score is at least
    `REPLACES`.

    The score is a weighted sum of:

    - how close the texts are;
    - the share of the old text's words that the new text repeats. Two texts about different sides
      of one subject repeat words as well, so the weight is high only if the texts are close or the
      new text reports a change;
    - how likely the new text is to report a change;
    - the logarithm of how much longer the new text is, since a correction often repeats what it
      corrects;
    - how far the old text is below the closest one.

    Args:
        new: The newer text.
        old: The older text.
        similarity: The cosine of their vectors; None if either text has no vector.
        space: The space of the vectors. Its constants make cosines comparable across models.
        vectors: The vectors of the newer text, shape (windows, dimension); None if it has none.
        closest: The highest cosine that any older text has with the newer one. The score of a text
            far below it is lower; None if no others are known.
    """
    if max(len(new), len(old)) > MAX_CHARACTERS:
        return 0.0
    if space is not None and space.latin_only and not is_latin(new):
        # All texts in a script that the model doesn't know have similar vectors.
        similarity = vectors = None
    closeness, behind = None, 0.0
    if similarity is not None and space is not None:
        unit = space.duplicate - space.noise_mean
        closeness = (similarity - space.noise_mean) / unit
        if closeness < UNRELATED:
            return 0.0
        if closest is not None:
            behind = BEHIND * (closest - similarity) / unit
    shared = coverage(new, _cached_terms(old))
    if closeness is None:
        closeness = shared
    longer = math.log(len(new) / len(old))
    longer = max(-MAX_LENGTH, min(longer, MAX_LENGTH))
    change = _change(new, space, vectors)
    shared *= SHARED + SHARED_CLOSENESS * closeness + SHARED_CHANGE * change
    return closeness - behind + shared + CHANGE * change + LENGTH * longer


def _change(text: str, space: "Space | None", vectors: "NDArray[np.float32] | None") -> float:
    """Return the log-odds that a text reports a change."""
    change = None
    if vectors is not None and space is not None:
        change = rate_change(space.model, vectors[0])
    if change is None:
        change = UNANNOUNCED
    return max(change + ANNOUNCED, LEAST_ANNOUNCED) if reports_change(text) else change


def reports_change(text: str) -> bool:
    """Return whether a text announces a change.

    Raises:
        SystemFault: The list of words can't be read, for example because too many files are open.
    """
    try:
        return announces_change(text)
    except OSError as exc:
        raise SystemFault(f"cannot read {exc.filename}: {exc.strerror}") from exc
