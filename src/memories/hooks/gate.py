"""The gate of the prompt hook: decides whether a prompt needs a memory that the user did not ask
for, and rates vectors of both local models.

A search orders what it finds, but always finds something. The gate estimates the log-odds that a
prompt needs a text, in any language, and admits what reaches a threshold:

    relevance = -4.06 + 0.6 × need + 0.385 × ln(1 + size)
                + 0.254 × meaning + 0.129 × behind + 1.78 × relation
                + 0.158 × words + 2.31 × spelling - 1.857 × everywhere

    need        how likely it is that the prompt needs anything: `rate_need`. 0 if it is unknown.
    size        the length of the prompt in bytes of UTF-8, at most 100: "go on" needs nothing.
                A byte means about the same in all scripts.
    meaning     the log-odds of the calibrated similarity: slope × (cosine - middle). It is
                comparable across embedders. 0 if it is unknown.
    behind      the meaning less that of the most similar text of the project: 0 or negative
    relation    how likely such a prompt needs such a text, even if they aren't similar: "compile
                it" needs "The thesis is built with latexmk". See `relation_rater`. 0 if unknown.
    words       the BM25 of the words that the prompt and the text share
    spelling    the share of the prompt's groups of four letters that the text has too: parts of
                compounds, and other forms of a word. In scripts without spaces a group has two.
    everywhere  1 for a memory that is valid in every project, else 0

The coefficients are a logistic regression (L2 of 0.003 on standardized features) over all pairs of
the 155 prompts of the development half of `bench/histories` and the facts of their project or of
every project. The need of each prompt was rated by weights fitted without its history; its
coefficient is twice the fitted one, since a prompt that needs nothing is worth more than a pair.
The relation was fitted on `bench/needs.txt` alone. These are the figures of MiniLM; e5 has its own
need and relation, and shares the coefficients. The longest of those prompts has 87 bytes, so a
longer one gains nothing. docs/benchmarks.md has the figures of both halves.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memories.languages.text import coverage, is_unspaced

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders import Embedder


MAX_MEMORIES = 5  # maximum memories that a prompt recalls
THRESHOLD = -2.75  # minimum relevance of the most relevant memory
_RISE = 0.1  # rise of the threshold with each further memory, which is needed less often
# A memory of a project that the prompt doesn't name: three in four such texts would be needed, and
# it must be that much more relevant than the best memory of the session's own project.
CLEARLY_RELEVANT = 1.0
CLEARLY_BETTER = 1.0

BM25_OF_A_WORD = 2.5  # about the score of a word that one in ten texts of a larger store contains
_INTERCEPT, _NEED, _SIZE = -4.06, 0.6, 0.385
_MEANING, _BEHIND, _RELATION = 0.254, 0.129, 1.78
_WORDS, _SPELLING, _EVERYWHERE = 0.158, 2.31, -1.857
_MAX_SIZE = 100  # bytes
_LETTERS = 4  # of a group
_CHARACTERS = 2  # length of a group in scripts without spaces
_WORD = re.compile(r"\w{2,}")
_MIN_NAME = 3  # characters of a project's name that a prompt can contain by more than accident


class Gate:
    """Rates texts for one prompt."""

    def __init__(self, prompt: str, need: float = 0.0) -> None:
        """Prepare for a prompt; `need` is 0 if it is unknown."""
        size = min(_MAX_SIZE, len(prompt.encode()))
        self._base = _INTERCEPT + _NEED * need + _SIZE * math.log1p(size)
        self._groups = _groups(prompt)

    def rate(
        self,
        text: str,
        meaning: float | None,
        words: float,
        *,
        best: float | None = None,
        relation: float = 0.0,
        is_global: bool = False,
    ) -> float:
        """Return the relevance of a text to the prompt; see the module.

        Args:
            text: The text.
            meaning: The log-odds of their calibrated similarity; None if it is unknown, or the
                embedder does not know their language.
            words: The BM25 of the words that they share.
            best: The meaning of the most similar text of the project, if there is one.
            relation: See `relation_rater`; 0 if it is unknown.
            is_global: Whether the text is a memory that is valid in every project.

        Returns:
            The log-odds that the prompt needs the text; minus infinity if they share no word, and
            their meaning is unknown.
        """
        if meaning is None and words <= 0:
            return -math.inf
        shared_groups = self._groups & _groups(text)
        spelling = len(shared_groups) / max(1, len(self._groups))
        relevance = self._base + _WORDS * words + _SPELLING * spelling
        if meaning is not None:
            relevance += _MEANING * meaning + _RELATION * relation
            if best is not None:
                relevance += _BEHIND * min(0.0, meaning - best)
        if is_global:
            relevance += _EVERYWHERE
        return relevance


def admits(relevance: float, rank: int) -> bool:
    """Return whether a prompt needs a memory of this relevance, after `rank` more relevant ones."""
    return relevance >= THRESHOLD + _RISE * rank


def _groups(text: str) -> set[str]:
    """Return the groups of consecutive letters in the words of a text."""
    groups: set[str] = set()
    for word in _WORD.findall(text.lower()):
        size = _CHARACTERS if is_unspaced(word) else _LETTERS
        groups.update(word[start : start + size] for start in range(len(word) - size + 1))
    return groups


def count_words(text: str, terms: Sequence[str]) -> float:
    """Estimate the BM25 of a prompt's terms in a text of a small store.

    In a small store, a word occurs in one text or in half of them, which says little about how rare
    it is.
    """
    return BM25_OF_A_WORD * coverage(text, terms) * len(terms)


def names_project(prompt: str, project: str) -> bool:
    """Return whether a prompt contains the name of a project, without its host and owner."""
    name = project.rsplit("/", 1)[-1].casefold()
    if len(name) < _MIN_NAME:
        return False
    whole_word = rf"(?<![a-z0-9_-]){re.escape(name)}(?![a-z0-9_-])"
    return re.search(whole_word, prompt.casefold()) is not None


# --- Scores by vectors ---
#
# `worth` and `need` are linear in a vector: intercept + weights · vector. `relation` is linear in
# two, which are mapped to the same few dimensions and multiplied there. Their JSON files have the
# weights of logistic regressions; `tools/linear_scores.py` fits them. Vectors of another model have
# none of these scores.

Rate = Callable[[str], float]
FOLDER = Path(__file__).parent
WORTH, NEED, RELATION = "worth", "need", "relation"
# The models whose vectors are rated, with the name of their files.
FITTED = {"all-MiniLM-L6-v2/int8/1": "minilm", "multilingual-e5-small/int8/1": "e5"}


class _Fit(NamedTuple):
    intercept: float
    weights: "NDArray[np.float32]"

    def score(self, vector: "NDArray[np.float32]") -> float:
        return self.intercept + float(vector @ self.weights)


def worth_rater(embedder: "Embedder | None") -> Rate | None:
    """Return a function from a sentence to its worth; None for all embedders but MiniLM.

    The worth is the log-odds that an English sentence of a user matters in later sessions.
    """
    if embedder is None or FITTED.get(embedder.space.model) != "minilm":
        return None
    return lambda sentence: _read(WORTH, "minilm").score(embedder.embed(sentence)[0])


def rate_need(model: str, vector: "NDArray[np.float32]") -> float:
    """Return the need of a prompt with this vector; 0 if it is of a model without weights.

    The need is the log-odds that a prompt needs something that an agent was told earlier, minus
    the log-odds of an average prompt.
    """
    name = FITTED.get(model)
    return 0.0 if name is None else _read(NEED, name).score(vector)


class _Map(NamedTuple):
    offset: "NDArray[np.float32]"
    weights: "NDArray[np.float32]"

    def apply(self, vectors: "NDArray[np.float32]") -> "NDArray[np.float32]":
        mapped: NDArray[np.float32] = self.offset + vectors @ self.weights.T
        return mapped


def relation_rater(
    model: str, prompt: "NDArray[np.float32]"
) -> "Callable[[NDArray[np.float32]], float] | None":
    """Return a function from the vectors of a text's windows to the text's relation to a prompt;
    None if they are of a model without weights.

    The relation is the log-odds that a prompt needs a text, beyond what their similarity says.
    """
    name = FITTED.get(model)
    if name is None:
        return None
    prompts, texts = _read_relation(name)
    mapped = prompts.apply(prompt)
    return lambda windows: float((texts.apply(windows) @ mapped).max())


@functools.cache
def _read_relation(name: str) -> tuple[_Map, _Map]:
    import numpy as np

    fields = json.loads(file_of(RELATION, name).read_text("utf-8"))

    def read_map(side: str) -> _Map:
        offset, *weights = (np.array(row, dtype=np.float32) for row in fields[side])
        return _Map(offset * fields["unit"], np.stack(weights) * fields["unit"])

    return read_map("prompts"), read_map("texts")


@functools.cache
def _read(score: str, name: str) -> _Fit:
    import numpy as np

    fields = json.loads(file_of(score, name).read_text("utf-8"))
    return _Fit(fields["intercept"], np.array(fields["weights"], dtype=np.float32))


def file_of(score: str, name: str) -> Path:
    """Return the file with the weights of a score for vectors of a model."""
    return FOLDER / f"{score}-{name}.json"
