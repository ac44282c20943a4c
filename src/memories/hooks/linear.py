"""Two scores that are linear in a vector of the packaged model: intercept + weights · vector.

- `worth`: the log-odds that an English sentence of a user matters in later sessions.
- `need`: the log-odds that a prompt needs something that an agent was told earlier, less those of
  an average prompt.

`worth.json` and `need.json` have the weights: logistic regressions, which `tools/linear_scores.py`
fits. Vectors of another model have neither score.
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
FOLDER = Path(__file__).parent
WORTH, NEED = "worth", "need"


class _Fit(NamedTuple):
    model: str
    intercept: float
    weights: "NDArray[np.float32]"

    def score(self, vector: "NDArray[np.float32]") -> float:
        return self.intercept + float(vector @ self.weights)


def worth_rater(embedder: "Embedder | None") -> Rate | None:
    """Return a function from a sentence to its worth; None for an embedder of another space."""
    if embedder is None or embedder.space.model != _read(WORTH).model:
        return None
    return lambda sentence: _read(WORTH).score(embedder.embed(sentence)[0])


def rate_need(model: str, vector: "NDArray[np.float32]") -> float:
    """Return the need of a prompt with this vector; 0 if another model made it."""
    fit = _read(NEED)
    return fit.score(vector) if model == fit.model else 0.0


@functools.cache
def _read(name: str) -> _Fit:
    import numpy as np

    fields = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    weights = np.array(fields["weights"], dtype=np.float32)
    return _Fit(fields["model"], fields["intercept"], weights)
