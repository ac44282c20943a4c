"""Guesses whether one text may replace another, because both are about the same subject and only
one of them can be current.

A guess only decides which memories are shown to a writer, and which of two close search results
comes first. `write.compare` decides which texts are refused and which are linked as corrections.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memories.errors import SystemFault
from memories.languages import announces_change
from memories.languages.text import coverage, is_latin, query_terms

if TYPE_CHECKING:
    from memories.stores.records import Space

# Fitted to one half of the pairs in tests/data/reworded_pairs.jsonl; see `bench.reworded`.
SHARED_WORDS = 1.2
CHANGE = 0.8
REPLACES = 1.3  # minimum score of a text that may replace another
# minimum score at which `tidy` proposes to link a text that reports a change; chosen on the `dev`
# half of `bench tidy`
SURELY_REPLACES = 1.7
UNRELATED = 0.25  # closeness below which texts are not about the same subject
STANDS_OUT = 8.6  # minimum of height + LEAD × lead, for a text that stands out
LEAD = 0.5  # weight of the lead over the second closest text
NOISE = 2.5  # height of the closest text in a store without related texts
# Minimum share of the old text's words that a new text contains, without and with an announcement
# of a change. Announcements alone would put unrelated memories ("starts on Monday") before others.
MIN_SHARED = 0.35
MIN_SHARED_WITH_CHANGE = 0.15
MAX_CHARACTERS = 2_000  # a text that may replace another has at most this many characters


def score_replacement(new: str, old: str, similarity: float | None, space: "Space | None") -> float:
    """Return a score for how likely a text is to replace an older one. With a score of `REPLACES`
    or more, it may replace that text.

    The score adds up how close the texts are, the share of the old text's words that the new text
    repeats, and whether the new text announces a change.

    Args:
        new: The newer text.
        old: The older text.
        similarity: The cosine of their vectors; None if either text has no vector.
        space: The space of the vectors, whose constants make cosines of all models comparable.
    """
    if max(len(new), len(old)) > MAX_CHARACTERS:
        return 0.0
    closeness = None
    if similarity is not None and space is not None:
        closeness = (similarity - space.noise_mean) / (space.duplicate - space.noise_mean)
        if closeness < UNRELATED:
            return 0.0
    shared = coverage(new, _terms(old))
    if closeness is None:
        closeness = shared
    return closeness + SHARED_WORDS * shared + CHANGE * reports_change(new)


def stands_out(new: str, similarities: Sequence[float | None], space: "Space") -> bool:
    """Return whether the first of several texts is probably about the subject of a new text, even
    if they share no words: its meaning is close, and closer than that of the second text.

    A text's height is how far its similarity is above the noise's mean, as a multiple of the
    noise's spread.

    Args:
        new: The new text.
        similarities: The cosines of the texts with the new text, highest first.
        space: The space of the vectors.
    """
    if space.noise_spread == 0:
        return False  # the model's noise is unknown
    if space.latin_only and not is_latin(new):
        return False  # vectors of texts in other scripts are all close to each other
    heights = [
        (similarity - space.noise_mean) / space.noise_spread
        for similarity in similarities[:2]
        if similarity is not None
    ]
    if not heights:
        return False
    lead = heights[0] - max([NOISE, *heights[1:]])
    return heights[0] + LEAD * lead >= STANDS_OUT


def has_words_of(new: str, old: str) -> bool:
    """Return whether a newer text shares enough words with an older one to replace it; it needs
    fewer if it announces a change. This is faster than `score_replacement`, since it needs no
    vectors.
    """
    if max(len(new), len(old)) > MAX_CHARACTERS:
        return False
    shared = coverage(new, _terms(old))
    if shared >= MIN_SHARED:
        return True
    return shared >= MIN_SHARED_WITH_CHANGE and reports_change(new)


def reports_change(text: str) -> bool:
    """Return whether a text announces a change.

    Raises:
        SystemFault: The list of words can't be read, for example because too many files are open.
    """
    try:
        return announces_change(text)
    except OSError as exc:
        raise SystemFault(f"cannot read {exc.filename}: {exc.strerror}") from exc


@functools.lru_cache(256)  # a text is compared with several others
def _terms(text: str) -> Sequence[str]:
    return tuple(query_terms(text))
