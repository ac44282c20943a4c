"""Quick checks that rule out most pairs of texts, so that the word lists are rarely read."""

import functools
import re
import unicodedata
from collections.abc import Sequence

from memories.languages.text import is_latin, is_unspaced

STRAIGHT = str.maketrans("‘’“”„।۔؟،؛", '\'\'"""..?,;')
_ENDING = re.compile(r"(?<=[\w)\]}\"'»”」』+#%`])[.!。…]+$")
# Texts that say the same thing may be below the threshold if one contains an abbreviation.
_SURELY_DIFFERENT = 0.75  # fraction of the threshold
# fraction of the duplicate threshold; less similar texts are about different things
_MIN_SIMILARITY = 0.4
_MIN_SHARED = 0.45  # minimum share of the longer text's words that both texts contain
_MAX_CHARACTERS = 400  # a longer text usually makes several statements


def may_be_related(new: str, old: str, similarity: float | None, *, threshold: float) -> bool:
    """Return whether a new text may repeat or correct an old one, so that comparing their words is
    worthwhile.

    Args:
        new: The new text.
        old: The stored text.
        similarity: The cosine of their vectors, or None without vectors.
        threshold: The embedder's minimum cosine for two texts that may say the same thing.
    """
    if may_repeat(new, old, similarity, threshold=threshold):
        return True
    return may_correct(new, old, similarity, threshold=threshold)


def may_repeat(new: str, old: str, similarity: float | None, *, threshold: float) -> bool:
    """Return whether two texts may say the same thing; see `may_be_related`."""
    if similarity is None or similarity >= _SURELY_DIFFERENT * threshold:
        return True
    return normalize(new) == normalize(old)


def may_correct(new: str, old: str, similarity: float | None, *, threshold: float) -> bool:
    """Return whether a new text may correct an old one; see `may_be_related`."""
    if max(len(new), len(old)) > _MAX_CHARACTERS or "\n" in new.strip() or "\n" in old.strip():
        return False
    is_far = similarity is not None and similarity < _MIN_SIMILARITY * threshold
    if is_far and is_latin(new) and is_latin(old):
        return False
    if is_unspaced(new) and is_unspaced(old):
        return True
    return _share_words(split_words(new), split_words(old))


@functools.lru_cache(maxsize=2_048)  # new texts are compared with the same old ones
def normalize(text: str) -> str:
    """Return a text with normalized quotes, spaces and case, and without final stops.

    The text is not case-folded, since that would turn "ß" into "ss".
    """
    spelled = unicodedata.normalize("NFKC", text).translate(STRAIGHT).lower()
    return _ENDING.sub("", " ".join(spelled.split()))


@functools.lru_cache(maxsize=2)
def split_words(text: str) -> Sequence[str]:
    """Return a text's words in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


def _share_words(new: Sequence[str], old: Sequence[str]) -> bool:
    """Return whether two texts have enough words in common for a correction."""
    new_words, old_words = {*new}, {*old}
    count = max(len(new_words), len(old_words))
    if new_words & {
        "from",
        "instead",
    }:  # the new text may announce a change, in more words
        count = min(len(new_words), len(old_words))
    return len(new_words & old_words) >= _MIN_SHARED * count
