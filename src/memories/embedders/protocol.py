"""The protocol of embedders, which turn texts into unit vectors in a named space."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from memories.core.deadline import WAIT
from memories.errors import EmbedderError
from memories.stores.records import Space

_ASSISTANT = "assistant"

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class EmbedderUnavailable(EmbedderError):
    """The service that makes the vectors can't be used at present, but may work later.

    Attributes:
        words_instead: Whether the settings allow keyword search in the meantime
            (`EMBEDDER_FALLBACK=local`).
        after_seconds: How long the service asks us to wait; 0 if it does not say.
        quoted: The part of the message that the service wrote; it may quote texts from the request.
    """

    def __init__(
        self,
        message: str,
        *,
        words_instead: bool = False,
        after_seconds: float = 0.0,
        quoted: str = "",
    ) -> None:
        super().__init__(message)
        self.words_instead, self.after_seconds, self.quoted = words_instead, after_seconds, quoted


class Embedder(Protocol):
    """Turns text into vectors.

    Rules for every implementation:
    - Creating an embedder is cheap: the first `embed` loads the model.
    - The same text has the same vector, regardless of texts embedded before or together with it.
    - Several threads may use one embedder.
    - A failure raises `EmbedderError`; no placeholder vector is returned.
    """

    @property
    def space(self) -> Space:
        """The space of the vectors; known without loading the model."""
        ...

    def embed(self, text: str) -> "NDArray[np.float32]":
        """Return a text's vectors: shape (windows, dimension), float32, each of unit length.

        A text that is too long for the model is split into windows; a short text is a single
        window. When texts are compared, the best window counts.
        """
        ...

    def familiarity(self, text: str) -> float:
        """Return the share of a text's words that the model knows, 0 to 1.

        A word that the model splits into pieces is a name or nonsense. The share helps to
        distinguish odd questions from noise.
        """
        ...


@runtime_checkable
class RemoteEmbedder(Embedder, Protocol):
    """An embedder that embeds many texts in one call, or questions differently from statements.

    An embedder may have only one of the methods: see the functions `embed_many` and `embed_query`.
    """

    def embed_many(self, texts: Sequence[str]) -> "list[NDArray[np.float32]]":
        """Return the vectors of each text; see `embed`."""
        ...

    def embed_query(self, text: str) -> "NDArray[np.float32]":
        """Return a question's vectors, shape (windows, dimension), comparable with those of
        statements.
        """
        ...


class Embedded(NamedTuple):
    """The vectors of many statements.

    Attributes:
        vectors: The vectors of each statement; None for a statement without vectors.
        note: Why the embedder made no vectors, as a sentence for the user; else empty.
    """

    vectors: "Sequence[NDArray[np.float32] | None]"
    note: str = ""


def embed_many(
    embedder: Embedder, texts: Sequence[str], roles: Sequence[str | None] = ()
) -> "list[NDArray[np.float32]]":
    """Return the vectors of texts to store, using as few requests as possible. Failed requests are
    retried as long as a retry may succeed.

    Args:
        embedder: The embedder.
        texts: The texts of memories or turns.
        roles: The role of each text's speaker (see `Record.role`); optional for memories.

    Raises:
        EmbedderError: The texts could not be embedded.
    """
    return _embed(getattr(embedder, "patient", embedder), texts, roles)


def _embed(
    embedder: Embedder, texts: Sequence[str], roles: Sequence[str | None]
) -> "list[NDArray[np.float32]]":
    with WAIT.get() or contextlib.nullcontext():
        embed_together = getattr(embedder, "embed_many", None)
        if embed_together is None:
            vectors = [embedder.embed(text) for text in texts]
        else:
            vectors = embed_together(texts)
    for windows in vectors:
        _check(embedder, windows)
    if not roles:
        return vectors
    return [
        _turn_to_first(windows) if role == _ASSISTANT else windows
        for windows, role in zip(vectors, roles, strict=True)
    ]


def _turn_to_first(windows: "NDArray[np.float32]") -> "NDArray[np.float32]":
    """Return the windows of an assistant's answer, shape (windows, dimension), each rotated halfway
    towards the first.

    A long answer has one subject, named at its beginning, and one of its many windows often
    resembles a question by chance. Other speakers' texts move between topics (figures in
    docs/benchmarks.md).
    """
    if len(windows) == 1:
        return windows
    sums = windows + windows[:1]
    lengths = (sums * sums).sum(axis=1, keepdims=True) ** 0.5
    turned: NDArray[np.float32] = sums / lengths.clip(1e-6)
    return turned


def embed_query(embedder: Embedder, text: str) -> "NDArray[np.float32]":
    """Return a question's vectors, shape (windows, dimension).

    Raises:
        EmbedderError: The question could not be embedded.
    """
    with WAIT.get() or contextlib.nullcontext():
        embed = getattr(embedder, "embed_query", embedder.embed)
        vectors: NDArray[np.float32] = embed(text)
        _check(embedder, vectors)
        return vectors


def _check(embedder: Embedder, windows: Any) -> None:
    """Refuse a result that isn't an array of unit vectors, since it would spoil every later search.

    Raises:
        EmbedderError: The embedder returned something else.
    """
    import numpy as np  # the embedder has already imported numpy

    space = embedder.space
    if not isinstance(windows, np.ndarray):
        returned = f"something of type {type(windows).__name__}"
    elif windows.dtype.kind not in "fiu":
        returned = f"an array of type {windows.dtype}"
    elif windows.ndim != 2 or not len(windows) or windows.shape[1] != space.dimension:
        returned = f"an array of shape {windows.shape}"
    else:
        lengths = (windows * windows).sum(axis=1)
        if lengths.min() > 0.9 and lengths.max() < 1.1:  # NaN fails both tests
            return
        returned = f"a vector of length {float(lengths.max()) ** 0.5:.3g}"
    raise EmbedderError(
        f"the embedder {space.model} returned {returned}; it must return unit vectors of shape "
        f"(windows, {space.dimension})"
    )


def embed_to_store(
    embedder: Embedder | None, texts: Sequence[str], roles: Sequence[str | None] = ()
) -> Embedded:
    """Return the vectors to store with texts.

    There are none without an embedder, or if its service is down and the settings allow keyword
    search instead. A text without a vector is found by its words. Another model can't supply the
    missing vector, since vectors from different models can't be compared. For the arguments, see
    `embed_many`.

    Raises:
        EmbedderError: There are no vectors, and the settings require them.
    """
    if embedder is None:
        return Embedded([None] * len(texts))
    try:
        return Embedded(_embed(embedder, texts, roles))
    except EmbedderUnavailable as exc:
        if not exc.words_instead:
            raise
        note = (
            f"stored without a vector, so only words find it until `memory reembed` is run: {exc}"
        )
        import logging  # imported late, since it takes 5 ms

        logging.getLogger(__name__).warning("%s", note)
        return Embedded([None] * len(texts), note)
