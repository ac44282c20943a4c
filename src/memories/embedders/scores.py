"""Scores of texts, computed from the vectors of the two local models.

`worth`, `need` and `change` are linear in a vector: intercept + weights · vector. `relation` is
bilinear: both vectors are mapped to the same few dimensions and multiplied there. The JSON files in
`weights` contain the weights of logistic regressions, which `tools/linear_scores.py` fits. Vectors
of other models can't be scored.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders.protocol import Embedder

Rate = Callable[[str], float]
FOLDER = Path(__file__).parent / "weights"
WORTH, NEED, RELATION, CHANGE = "worth", "need", "relation", "change"
# The models whose vectors can be scored, with the names that their weight files contain.
FITTED = {"all-MiniLM-L6-v2/int8/1": "minilm", "multilingual-e5-small/int8/1": "e5"}


class _Fit(NamedTuple):
    intercept: float
    weights: "NDArray[np.float32]"

    def score(self, vector: "NDArray[np.float32]") -> float:
        return self.intercept + float(vector @ self.weights)


def worth_rater(embedder: "Embedder | None") -> Rate | None:
    """Return a function that computes a sentence's worth; None if the embedder is not MiniLM.

    The worth is the log-odds that a user's English sentence matters in later sessions.
    """
    if embedder is None or FITTED.get(embedder.space.model) != "minilm":
        return None
    return lambda sentence: _read(WORTH, "minilm").score(embedder.embed(sentence)[0])


def rate_need(model: str, vector: "NDArray[np.float32]") -> float:
    """Return the need of a prompt with this vector; 0 if there are no weights for the model.

    The need is the log-odds that a prompt needs something from an earlier session, minus the
    log-odds for an average prompt.
    """
    name = FITTED.get(model)
    return 0.0 if name is None else _read(NEED, name).score(vector)


def rate_change(model: str, vector: "NDArray[np.float32]") -> float | None:
    """Return the log-odds that a text with this vector reports a change.

    An example of such a text is "We ripped Redux out". Return None if there are no weights for the
    model.

    The weights were fitted to English texts. For other languages, MiniLM's scores are low and mean
    little.
    """
    name = FITTED.get(model)
    return None if name is None else _read(CHANGE, name).score(vector)


class _Map(NamedTuple):
    offset: "NDArray[np.float32]"
    weights: "NDArray[np.float32]"

    def apply(self, vectors: "NDArray[np.float32]") -> "NDArray[np.float32]":
        mapped: NDArray[np.float32] = self.offset + vectors @ self.weights.T
        return mapped


def relation_rater(
    model: str, prompt: "NDArray[np.float32]"
) -> "Callable[[NDArray[np.float32]], float] | None":
    """Return a function that computes a text's relation to a prompt.

    The function takes the vectors of the text's windows. Return None if there are no weights for
    the model.

    The relation is the log-odds that a prompt needs a text, beyond what their similarity predicts.
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
    """Return the path of a score's weights; `name` is the model's value in `FITTED`."""
    return FOLDER / f"{score}-{name}.json"
