"""Fit the weights of `hooks/gate.py`: `worth.json` and `need.json`.

Run `python tools/linear_scores.py` after a change to the `dev` half of `bench/messages/en.txt` or
of `bench/histories`, to `bench/prompts.txt`, or to the packaged model.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `bench`

from bench import agents_memory, capture
from memories.embedders import open_embedder
from memories.hooks import gate
from memories.hooks.sentences import split_sentences
from memories.hooks.transcripts import USER

PROMPTS = Path(agents_memory.__file__).with_name("prompts.txt")
PENALTY = 0.001  # of the squared weights
STEPS, RATE = 4_000, 2.0
AVERAGE_NEED = 0.5  # log-odds that an average prompt of the histories needs something


def worthy_sentences() -> Iterator[tuple[str, bool]]:
    """Yield English sentences, and whether each is worth remembering."""
    for message in capture.load():
        if (message.language, message.half, message.role) == ("en", "dev", USER):
            for sentence in split_sentences(message.text):
                yield sentence, any(capture.has(sentence, text) for text in message.marked)
    for history in agents_memory.load():
        if (history.language, history.half) == ("en", "dev"):
            for prompt in history.prompts:
                for sentence in split_sentences(prompt.text):
                    yield sentence, False


def needy_prompts() -> Iterator[tuple[str, bool]]:
    """Yield prompts, and whether each needs something that an agent was told earlier."""
    for line in PROMPTS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            yield line[2:], line.startswith("+")
    for history in agents_memory.load():
        if history.half == "dev":
            for prompt in history.prompts:
                yield prompt.text, bool(prompt.needs)


def fit(name: str, examples: Iterable[tuple[str, bool]], average: float = 0.0) -> None:
    """Fit a score by gradient descent, and write it."""
    embedder = open_embedder("minilm")
    assert embedder is not None
    texts, labels = zip(*examples, strict=True)
    vectors = np.stack([embedder.embed(text)[0] for text in texts]).astype(np.float64)
    is_true = np.array(labels, dtype=np.float64)
    weights, intercept = np.zeros(vectors.shape[1]), 0.0
    for _ in range(STEPS):
        error = 1 / (1 + np.exp(-(vectors @ weights + intercept))) - is_true
        weights -= RATE * (vectors.T @ error / len(error) + PENALTY * weights)
        intercept -= RATE * error.mean()
    fields = {
        "model": embedder.space.model,
        "intercept": round(intercept - average, 3),
        "weights": [round(float(weight), 3) for weight in weights],
    }
    (gate.FOLDER / f"{name}.json").write_text(json.dumps(fields) + "\n", encoding="utf-8")
    print(f"{name}: {len(texts)} texts, {int(is_true.sum())} of them positive")


if __name__ == "__main__":
    fit(gate.WORTH, worthy_sentences())
    fit(gate.NEED, needy_prompts(), AVERAGE_NEED)
