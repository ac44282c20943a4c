"""What an embedder is: text in, unit vectors out, in a space with a name."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Space:
    """What makes two vectors comparable: they have the same model and the same length.

    Attributes:
        model: Names the model, its revision and its quantization; vectors of two models are never compared.
        dimension: The length of a vector.
        noise_mean: With `noise_spread`, how similar the best of many memories is to a query that means nothing: see
            `ranking.noise_floor`. Models differ in how far apart they hold strangers.
        noise_spread: See `noise_mean`.
        weight: How much similarity counts beside words in a score; it makes up for how narrow the model's range is.
        calibration: Slope and middle of the curve that turns a cosine into a similarity that means the same for every
            embedder: see `ranking.calibrated`.
        duplicate: The similarity from which two statements may say the same; measured for each model too.
        latin_only: Its model knows languages in Latin letters only; what it makes of other scripts says little.
    """

    model: str
    dimension: int
    noise_mean: float
    noise_spread: float
    weight: float
    duplicate: float
    calibration: tuple[float, float]
    latin_only: bool = False


class Embedder(Protocol):
    """Turns text into vectors.

    Rules for every implementation:
    - Creating one is cheap: what is heavy is loaded by the first `embed`.
    - The same text gives the same vector, whatever was embedded before it or beside it.
    - It may be used from several threads.
    - It raises `EmbedderError`, and never returns a vector that it did not compute.
    """

    @property
    def space(self) -> Space:
        """The space of its vectors; known without loading the model."""
        ...

    def embed(self, text: str) -> "NDArray[np.float32]":
        """Return the vectors of a text: shape (windows, dimension), float32, each of unit length.

        A text that is longer than the model can read is cut into windows; a short one has a single window. The best
        of them counts when the text is compared.
        """
        ...

    def familiarity(self, text: str) -> float:
        """Return the share of a text's words that the model knows as words, 0 to 1.

        What it has to spell out in pieces is a name, or nonsense; it helps to tell a strange question from no question.
        """
        ...
