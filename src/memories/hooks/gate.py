"""The prompt hook's gate: rates how likely a prompt is to need a text, and holds the thresholds.

A search always finds something, whether or not the prompt needs it. So the gate estimates the
log-odds that a prompt needs a text, in any language. `prompt_recall` recalls the texts whose rating
reaches a threshold, except memories that are rated far below the best one. If no rating reaches the
threshold, nothing is recalled. A prompt that needs no memory lowers all ratings; there is no
separate decision, and `search.noise` doesn't apply to memories. The rating:

    rating = -4.06 + 0.9 × need + 0.385 × ln(1 + size)
                + 0.254 × meaning + 0.129 × behind + 1.78 × relation
                + 0.158 × word_score + 2.31 × spelling - 1.857 × everywhere

    need        how much more likely this prompt is to need a memory than the average prompt, as
                log-odds; see `embedders.scores`. 0 if unknown.
    size        the length of the prompt in bytes of UTF-8, at most 100. Short prompts such as "go
                on" need no memory. Bytes are comparable across scripts; characters are not.
    meaning     the log-odds of the calibrated similarity: slope × (cosine - middle). Log-odds are
                comparable across embedders; cosines are not. 0 if unknown.
    behind      the meaning minus the highest meaning of the project's memories; at most 0. Without
                a project, all memories are compared. A turn is compared with turns.
    relation    the log-odds that the prompt needs the text, beyond what their similarity predicts:
                "compile it" needs "The thesis is built with latexmk". See `embedders.scores`. 0
                if this or the meaning is unknown.
    word_score  the BM25 score of the words that the prompt and the text share; for a turn, as
                scaled by `search.surroundings`; without a search, an estimate
    spelling    the fraction of the prompt's four-letter groups that also occur in the text. Groups
                also match parts of compounds and other forms of a word. In scripts without
                spaces, a group has two characters.
    everywhere  1 for a memory that is valid in every project (`is_global`), else 0

The coefficients come from a logistic regression (L2 of 0.003 on standardized features) over all
pairs of a prompt and a fact that is valid in the prompt's project. The prompts are the 155 in the
development half of `bench/histories`. The weights that rate a prompt's need were fitted without
that prompt's history. The coefficient of the need is three times the fitted one, because recalling
nothing for a prompt that needs nothing matters more than any single pair. This factor and the two
thresholds were chosen on the development half of `bench/eighteen_projects`, for which need and
relation were fitted with half of the stores held out. The final need and relation were fitted on
all development data. All coefficients were fitted with MiniLM. For e5, only the weights of need and
relation are different. Prompts longer than those in `bench/histories` count as 100 bytes long.
docs/benchmarks.md has the results on both halves.
"""

import math
import re
from collections.abc import Sequence

from memories.languages.text import coverage, is_unspaced

MAX_MEMORIES = 5  # maximum number of memories that a prompt recalls
THRESHOLD = -2.67  # minimum rating
# Maximum distance below the rating of the best memory. A prompt that has a clear answer seldom
# needs anything that has a much lower rating.
_DISTANCE = 3.4
# A memory of another project that the prompt doesn't name is recalled only if its rating is at
# least CLEARLY_NEEDED (odds of about three to one) and exceeds the best rating in the session's own
# project by at least CLEARLY_BETTER.
CLEARLY_NEEDED = 1.0
CLEARLY_BETTER = 1.0

BM25_OF_A_WORD = 2.5  # approximate score of a word found in a tenth of a fairly large store's texts
_INTERCEPT, _NEED, _SIZE = -4.06, 0.9, 0.385
_MEANING, _BEHIND, _RELATION = 0.254, 0.129, 1.78
_WORD_SCORE, _SPELLING, _EVERYWHERE = 0.158, 2.31, -1.857
_MAX_SIZE = 100  # maximum size, in bytes; longer prompts count as this size
_LETTERS = 4  # length of a group of letters
_CHARACTERS = 2  # length of a group in scripts without spaces
_WORD = re.compile(r"\w{2,}")
_MIN_NAME = 3  # minimum length of a project's name; shorter names occur in prompts by chance


class Gate:
    """Rates how likely one prompt is to need a text."""

    def __init__(self, prompt: str, need: float = 0.0) -> None:
        """Prepare to rate texts for a prompt; `need` is 0 if it is unknown."""
        size = min(_MAX_SIZE, len(prompt.encode()))
        self._base = _INTERCEPT + _NEED * need + _SIZE * math.log1p(size)
        self._groups = _groups(prompt)

    def rate(
        self,
        text: str,
        meaning: float | None,
        word_score: float,
        *,
        best_meaning: float | None = None,
        relation: float = 0.0,
        is_global: bool = False,
    ) -> float:
        """Return a text's rating for the prompt; see the module's docstring.

        Args:
            text: The text.
            meaning: The log-odds of the calibrated similarity of the text and the prompt; None if
                it is unknown, or if the embedder does not understand their language.
            word_score: The BM25 score of the words that the text and the prompt share.
            best_meaning: The highest meaning, from which `behind` is computed; None if unknown.
            relation: See `embedders.scores`; 0 if it is unknown.
            is_global: Whether the text is a memory that is valid in every project.

        Returns:
            The log-odds that the prompt needs the text; minus infinity if the meaning is unknown
            and the two share no words.
        """
        if meaning is None and word_score <= 0:
            return -math.inf
        shared_groups = self._groups & _groups(text)
        spelling = len(shared_groups) / max(1, len(self._groups))
        rating = self._base + _WORD_SCORE * word_score + _SPELLING * spelling
        if meaning is not None:
            rating += _MEANING * meaning + _RELATION * relation
            if best_meaning is not None:
                rating += _BEHIND * min(0.0, meaning - best_meaning)
        if is_global:
            rating += _EVERYWHERE
        return rating


def threshold(best_rating: float) -> float:
    """Return the minimum rating at which the hook recalls a memory.

    Args:
        best_rating: The highest rating of a memory in the session's own project. For a memory of
            another project that the prompt names, the highest rating in both projects.
    """
    return max(THRESHOLD, best_rating - _DISTANCE)


def _groups(text: str) -> set[str]:
    """Return the groups of consecutive letters in a text's words."""
    groups: set[str] = set()
    for word in _WORD.findall(text.lower()):
        size = _CHARACTERS if is_unspaced(word) else _LETTERS
        groups.update(word[start : start + size] for start in range(len(word) - size + 1))
    return groups


def estimate_word_score(text: str, terms: Sequence[str]) -> float:
    """Estimate the BM25 score of a prompt's terms in a text of a small store.

    In a small store, the number of texts that contain a word says little about how rare the word
    is.
    """
    return BM25_OF_A_WORD * coverage(text, terms) * len(terms)


def names_project(prompt: str, project: str) -> bool:
    """Return whether a prompt contains a project's name, with or without its host and owner."""
    name = project.rsplit("/", 1)[-1].casefold()
    if len(name) < _MIN_NAME:
        return False
    whole_word = rf"(?<![a-z0-9_-]){re.escape(name)}(?![a-z0-9_-])"
    return re.search(whole_word, prompt.casefold()) is not None
