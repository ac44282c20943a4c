"""Guesses whether one text may replace another, because both are about the same subject and only
one of them can be current.

These guesses decide which memories are shown to a writer, which of two close results comes first,
and what `memory tidy` proposes. `write.compare` decides which texts are refused, and which are
linked as corrections.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memories.embedders.scores import rate_change
from memories.errors import SystemFault
from memories.languages import announces_change
from memories.languages.text import coverage, is_latin, query_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.records import Space

# The weights come from a logistic regression over the `dev` halves of
# tests/data/reworded_pairs.jsonl and of the pairs of facts in `bench/eighteen_projects`.
SHARED_WORDS = 1.0
CHANGE = 0.25
REPLACES = 0.47  # minimum score of a text that may replace another
ANNOUNCED = 0.0  # minimum log-odds for a text whose words announce a change; see `_change`
UNANNOUNCED = -2.7  # log-odds for any other text whose vector can't be rated
SURELY_REPLACES = 0.9  # minimum score of a text that probably replaces another
UNRELATED = 0.25  # closeness below which two texts are about different subjects
MIN_SHARED = 0.15  # share of the old text's words below which texts have few words in common
MAX_CHARACTERS = 2_000  # maximum number of characters of a text that may replace another


def score_replacement(
    new: str,
    old: str,
    similarity: float | None,
    space: "Space | None",
    vectors: "NDArray[np.float32] | None" = None,
) -> float:
    """Return how likely a text is to replace an older one. A score of at least `REPLACES` means
    that it may.

    The score is a weighted sum: how close the texts are, the share of the old text's words that the
    new text repeats, and how likely the new text is to report a change.

    Args:
        new: The newer text.
        old: The older text.
        similarity: The cosine of their vectors; None if either text has no vector.
        space: The space of the vectors. Its constants make cosines comparable across models.
        vectors: The vectors of the newer text, shape (windows, dimension); None if it has none.
    """
    if max(len(new), len(old)) > MAX_CHARACTERS:
        return 0.0
    # All texts in a script that the model doesn't know have similar vectors.
    is_unknown = space is not None and space.latin_only and not is_latin(new)
    closeness = None
    if similarity is not None and space is not None and not is_unknown:
        closeness = (similarity - space.noise_mean) / (space.duplicate - space.noise_mean)
        if closeness < UNRELATED:
            return 0.0
    shared = coverage(new, _terms(old))
    if closeness is None:
        closeness = shared
    return closeness + SHARED_WORDS * shared + CHANGE * _change(new, space, vectors)


def _change(text: str, space: "Space | None", vectors: "NDArray[np.float32] | None") -> float:
    """Return the log-odds that a text reports a change."""
    change = None
    if vectors is not None and space is not None:
        change = rate_change(space.model, vectors[0])
    if change is None:
        change = UNANNOUNCED
    return max(change, ANNOUNCED) if reports_change(text) else change


def score_precedence(
    new: str,
    old: str,
    similarity: float | None,
    space: "Space | None",
    vectors: "NDArray[np.float32] | None" = None,
) -> float:
    """Return the score of `score_replacement` if the newer text should come before the older one
    in a list, else 0.

    Two texts with few words in common are often unrelated, so they need `SURELY_REPLACES`.
    """
    score = score_replacement(new, old, similarity, space, vectors)
    if score < REPLACES:
        return 0.0
    if score < SURELY_REPLACES and coverage(new, _terms(old)) < MIN_SHARED:
        return 0.0
    return score


def reports_change(text: str) -> bool:
    """Return whether a text announces a change.

    Raises:
        SystemFault: The list of words can't be read, for example because too many files are open.
    """
    try:
        return announces_change(text)
    except OSError as exc:
        raise SystemFault(f"cannot read {exc.filename}: {exc.strerror}") from exc


@functools.lru_cache(256)  # cached, since a text is compared with several
def _terms(text: str) -> Sequence[str]:
    return tuple(query_terms(text))
