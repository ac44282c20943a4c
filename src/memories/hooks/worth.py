"""How likely an English sentence of a user is to matter in later sessions.

The log-odds are linear in the vector of the sentence, as the packaged model gives it:

    worth = intercept + weights · vector

`worth.json` has the space of the vectors, the intercept and the weights, a logistic regression over
the sentences of `bench/messages/en.txt`; `tools/capture_worth.py` fits them. Vectors of another
model say nothing here.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders import Embedder

Rate = Callable[[str], float]
FILE = Path(__file__).with_name("worth.json")


class _Fit(NamedTuple):
    model: str
    intercept: float
    weights: "NDArray[np.float32]"


def rater(embedder: "Embedder | None") -> Rate | None:
    """Return a function from a sentence to its worth; None for an embedder of another space."""
    if embedder is None or embedder.space.model != _read().model:
        return None
    return functools.partial(_rate, embedder)


def _rate(embedder: "Embedder", sentence: str) -> float:
    fit = _read()
    return fit.intercept + float(embedder.embed(sentence)[0] @ fit.weights)


@functools.cache
def _read() -> _Fit:
    import numpy as np

    fields = json.loads(FILE.read_text("utf-8"))
    weights = np.array(fields["weights"], dtype=np.float32)
    return _Fit(fields["model"], fields["intercept"], weights)
