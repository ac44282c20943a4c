"""An embedder for tests: fast and deterministic, without a model; texts are similar if they share
words.
"""

import functools
import hashlib
import re
from typing import TYPE_CHECKING

from memories.languages.text import STOP_WORDS, index_text
from memories.stores.records import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@functools.lru_cache(maxsize=4_096)  # cached, so that benchmarks don't measure the hashing
def _places(word: str) -> tuple[tuple[int, float], ...]:
    digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
    return tuple(
        (at, 1.0 if sign % 2 else -1.0) for at, sign in zip(digest[:4], digest[4:], strict=True)
    )


class FakeEmbedder:
    """Hashes the words of a text into a vector, so that texts with common words are similar."""

    space = Space(
        model="fake/1",
        dimension=64,
        noise_mean=0.1,
        noise_spread=0.1,
        weight=1.65,
        duplicate=0.9,
        calibration=(10.0, 0.5),
    )

    def embed(self, text: str) -> "NDArray[np.float32]":
        """Return one vector, shape (1, 64)."""
        import numpy as np

        vector = np.zeros(self.space.dimension, dtype=np.float32)
        words = re.findall(r"\w+", index_text(text))
        for word in [word for word in words if word not in STOP_WORDS] or words or [text]:
            for at, sign in _places(word):
                vector[at % self.space.dimension] += sign
        length = float(np.linalg.norm(vector))
        if length == 0.0:
            vector[0], length = 1.0, 1.0
        return (vector / length)[np.newaxis, :]

    def familiarity(self, text: str) -> float:  # noqa: ARG002 - there is no vocabulary
        """Return 0.0, since this embedder has no vocabulary."""
        return 0.0
