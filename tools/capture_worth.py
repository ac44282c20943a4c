"""Fit `hooks/worth.json`: the worth of an English sentence from its vector.

Run `python tools/capture_worth.py` after a change to the `dev` half of `bench/messages/en.txt` or
to the packaged model. The sentences that no message marks, and the English prompts of the `dev`
half of `bench/histories`, are worth nothing.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `bench`

from bench import agents_memory, capture
from memories.embedders import open_embedder
from memories.hooks import worth
from memories.hooks.sentences import split_sentences
from memories.hooks.transcripts import USER

PENALTY = 0.001  # of the squared weights
STEPS, RATE = 4_000, 2.0


def sentences() -> Iterator[tuple[str, bool]]:
    """Yield sentences, and whether each is worth remembering."""
    for message in capture.load():
        if (message.language, message.half, message.role) == ("en", "dev", USER):
            for sentence in split_sentences(message.text):
                yield sentence, any(capture.has(sentence, text) for text in message.marked)
    for history in agents_memory.load():
        if (history.language, history.half) == ("en", "dev"):
            for prompt in history.prompts:
                for sentence in split_sentences(prompt.text):
                    yield sentence, False


def main() -> None:
    """Fit the weights by gradient descent, and write them."""
    embedder = open_embedder("minilm")
    assert embedder is not None
    texts, labels = zip(*sentences(), strict=True)
    vectors = np.stack([embedder.embed(text)[0] for text in texts]).astype(np.float64)
    is_worth = np.array(labels, dtype=np.float64)
    weights, intercept = np.zeros(vectors.shape[1]), 0.0
    for _ in range(STEPS):
        error = 1 / (1 + np.exp(-(vectors @ weights + intercept))) - is_worth
        weights -= RATE * (vectors.T @ error / len(error) + PENALTY * weights)
        intercept -= RATE * error.mean()
    rounded = [round(float(weight), 3) for weight in weights]
    fields = {"model": embedder.space.model, "intercept": round(intercept, 3), "weights": rounded}
    worth.FILE.write_text(json.dumps(fields) + "\n", encoding="utf-8")
    print(f"{len(texts)} sentences, {int(is_worth.sum())} of them worth remembering")


if __name__ == "__main__":
    main()
