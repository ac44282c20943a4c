"""The gate of the prompt hook: decides whether a prompt needs a memory that nobody asked for. Pure.

A search orders what it finds, but always finds something. The gate estimates the log-odds that a
prompt needs a text, in any language, and admits what reaches a threshold:

    relevance = -4.44 + 0.247 × meaning + 0.373 × words + 0.44 × ln(1 + size) - 1.66 × everywhere

    meaning     the log-odds of the calibrated similarity: slope × (cosine - middle). It is
                comparable across embedders. 0 if it is unknown.
    words       the BM25 of the words that the prompt and the text share
    size        the length of the prompt in bytes of UTF-8, at most 100: "go on" needs nothing.
                A byte means about the same in all scripts.
    everywhere  1 for a memory that is valid in every project, else 0

The coefficients are a logistic regression (L2 of 0.001 on standardized features) over all pairs of
the 155 prompts of the development half of `bench/histories` and the facts of their project or of
every project. The longest of those prompts has 87 bytes, so a longer one gains nothing. At the
threshold, 8 of the 52 prompts that need nothing are given something. docs/benchmarks.md has the
figures of both halves.
"""

import math
import re
from collections.abc import Sequence

from memories.languages.text import coverage

MAX_MEMORIES = 5  # that a prompt recalls
THRESHOLD = -2.5
# A memory of a project that the prompt doesn't name: three in four such texts would be needed, and
# it must be that much more relevant than the best memory of the session's own project.
CLEARLY_RELEVANT = 1.0
CLEARLY_BETTER = 1.0

BM25_OF_A_WORD = 2.5  # about that of a word that one in ten texts of a larger store has
_INTERCEPT = -4.44
_MEANING, _WORDS, _SIZE, _EVERYWHERE = 0.247, 0.373, 0.44, -1.66
_MAX_SIZE = 100  # bytes
_MIN_NAME = 3  # characters of a project's name that a prompt can contain by more than accident


def rate(prompt: str, meaning: float | None, words: float, *, is_global: bool = False) -> float:
    """Return the relevance of a text to a prompt; see the module.

    Args:
        prompt: The prompt.
        meaning: The log-odds of their calibrated similarity; None if it is unknown, or the embedder
            does not know their language.
        words: The BM25 of the words that they share.
        is_global: Whether the text is a memory that is valid in every project.

    Returns:
        The log-odds that the prompt needs the text; minus infinity if they share no word, and their
        meaning is unknown.
    """
    if meaning is None and words <= 0:
        return -math.inf
    size = min(_MAX_SIZE, len(prompt.encode()))
    relevance = _INTERCEPT + _WORDS * words + _SIZE * math.log1p(size)
    if meaning is not None:
        relevance += _MEANING * meaning
    if is_global:
        relevance += _EVERYWHERE
    return relevance


def count_words(text: str, terms: Sequence[str]) -> float:
    """Return an estimate of the BM25 of the terms of a prompt in a text of a small store.

    There a word is in one text or in half of them, which says little about how rare it is.
    """
    return BM25_OF_A_WORD * coverage(text, terms) * len(terms)


def names_project(prompt: str, project: str) -> bool:
    """Return whether a prompt contains the name of a project, without its host and owner."""
    name = project.rsplit("/", 1)[-1].casefold()
    if len(name) < _MIN_NAME:
        return False
    whole_word = rf"(?<![a-z0-9_-]){re.escape(name)}(?![a-z0-9_-])"
    return re.search(whole_word, prompt.casefold()) is not None
