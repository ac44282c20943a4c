"""An embedder that asks a service over HTTP: it cuts long texts, sends many at once, checks and keeps the answers."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from memories.config import cache_folder
from memories.core.batches import by_weight
from memories.core.deadline import WAIT
from memories.embedders.protocol import EmbedderUnavailable
from memories.embedders.service import providers
from memories.embedders.service.cache import VectorCache
from memories.embedders.service.providers import Chosen, Patience, choose
from memories.embedders.service.rest import Rest
from memories.embedders.service.windows import windows
from memories.errors import EmbedderError
from memories.settings import Config
from memories.stores.records import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders.service.client import ServiceClient

MAX_WINDOWS = 32  # of one text; the words of a longer one are all indexed
MAX_REQUEST_BYTES = 200_000  # about half of what the services take at once
# Where words may stand in: how long the one try may take for so many texts, or fewer.
FALLBACK_SECONDS, FALLBACK_TEXTS = 3.0, 16
# What a search, a request for one statement, and one for many may take, in units of EMBEDDER_TIMEOUT: each try, and all
# tries together.
_SEARCH, _ONE, _MANY = Patience(1, 2), Patience(1, 4), Patience(3, 12)


class HTTPEmbedder:
    """A model behind an HTTP service: OpenAI, whatever speaks as OpenAI does, Ollama, Voyage or Cohere.

    A service gives nearly the same numbers for the same text, not exactly the same; what the cache has kept is exact.
    """

    def __init__(
        self,
        chosen: Chosen,
        config: Config,
        *,
        client: "ServiceClient | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare it; nothing is asked yet.

        Args:
            chosen: The model and its service.
            config: How long to wait, how much to keep, and what to do when the service is down.
            client: Asks the service. [default: over the network]
            clock: Returns seconds since 1970.
        """
        self._chosen = chosen
        self._client = client
        self._timeout = config.embedder_timeout
        self._words_instead = config.embedder_fallback == "local"
        kept = f"{chosen.space.model} {chosen.service.url}"
        self._cache = VectorCache(cache_folder(), kept, chosen.space.dimension, config.embedder_cache_mb * 1_000_000)
        key = chosen.service.key.reveal() if chosen.service.key else ""
        self._rest = Rest(config.home, f"{kept} {key}", clock)

    @property
    def patient(self) -> Self:
        """The same embedder for those who have no use for words instead: it tries as often as may help."""
        twin = copy.copy(self)
        twin._words_instead = False
        return twin

    @property
    def space(self) -> Space:
        """The space of its vectors; known without asking."""
        return self._chosen.space

    def embed(self, text: str) -> "NDArray[np.float32]":
        """Return the vectors of a statement; see `Embedder.embed`.

        Raises:
            EmbedderUnavailable: The service can't be used now.
            EmbedderError: It gave no usable vectors.
        """
        return self._vectors([text], question=False, units=_ONE)[0]

    def embed_query(self, text: str) -> "NDArray[np.float32]":
        """Return the vectors of a question; see `RemoteEmbedder.embed_query`.

        Raises:
            EmbedderUnavailable: The service can't be used within twice `EMBEDDER_TIMEOUT`.
            EmbedderError: It gave no usable vectors.
        """
        return self._vectors([text], question=True, units=_SEARCH)[0]

    def embed_many(self, texts: Sequence[str]) -> "list[NDArray[np.float32]]":
        """Return the vectors of many statements; see `RemoteEmbedder.embed_many`.

        Raises:
            EmbedderUnavailable: The service can't be used now; what it gave until then is kept.
            EmbedderError: It gave no usable vectors.
        """
        return self._vectors(texts, question=False, units=_ONE if len(texts) == 1 else _MANY)

    def familiarity(self, text: str) -> float:  # noqa: ARG002
        """Return 0.0: a service does not tell which words its model knows."""
        return 0.0

    def _vectors(self, texts: Sequence[str], *, question: bool, units: Patience) -> "list[NDArray[np.float32]]":
        import numpy as np

        model = self._chosen.model
        mark = model.question if question else model.statement
        # A question is one request, so that the time of a search has a bound.
        most = min(MAX_WINDOWS, self._chosen.provider.batch) if question else MAX_WINDOWS
        cut = [windows(text, model.window_bytes - len(mark), most) for text in texts]
        marked = dict.fromkeys(mark + window for text in cut for window in text)
        kind = "question" if question else "statement"
        found = self._cache.find([f"{kind} {text}" for text in marked])
        vectors = {text: found[f"{kind} {text}"] for text in marked if f"{kind} {text}" in found}
        for batch in by_weight(
            [text for text in marked if text not in vectors],
            lambda text: len(text.encode("utf-8", "replace")),
            most=self._chosen.provider.batch,
            heaviest=MAX_REQUEST_BYTES,
        ):
            new = dict(zip(batch, self._ask(batch, question=question, units=units), strict=True))
            self._cache.keep({f"{kind} {text}": vector for text, vector in new.items()})
            vectors |= new
        return [np.stack([vectors[mark + window] for window in text]) for text in cut]

    def _ask(self, texts: Sequence[str], *, question: bool, units: Patience) -> "NDArray[np.float32]":
        body = providers.ask(self._chosen, texts, question=question)
        patience = self._patience(len(texts), units)
        if self._words_instead and (why := self._rest.reason(patience.total)):
            raise EmbedderUnavailable(why, words_instead=True)
        try:
            if self._client is None:
                from memories.embedders.service.client import ServiceClient  # 25 ms that only those who ask pay

                self._client = ServiceClient(self._chosen.service)
            given = self._client.post(body, patience, self._chosen.provider.vectors)
        except EmbedderUnavailable as exc:
            if self._words_instead:  # the next callers need not wait for the same message, nor see another one's text
                self._rest.begin(str(exc).replace(exc.quoted, ""), patience.total, exc.after_seconds)
            raise EmbedderUnavailable(str(exc), words_instead=self._words_instead) from exc
        if self._words_instead:
            self._rest.end()
        return self._checked(given, len(texts))

    def _patience(self, count: int, units: Patience) -> Patience:
        """Return how long to wait for the vectors of so many texts."""
        patience = Patience(units.request * self._timeout, units.total * self._timeout)
        if self._words_instead:
            once = min(patience.request, FALLBACK_SECONDS * max(1.0, count / FALLBACK_TEXTS))
            patience = Patience(once, once, tries=1)
        wait = WAIT.get()
        most = math.inf if wait is None or wait.most_seconds is None else wait.most_seconds
        return patience._replace(request=min(patience.request, most), total=min(patience.total, most))

    def _checked(self, given: list[Any], count: int) -> "NDArray[np.float32]":
        """Return the vectors of an answer, of unit length.

        Raises:
            EmbedderError: They are not what was asked for.
        """
        import numpy as np

        name, dimension = self._chosen.service.shown, self.space.dimension
        if len(given) != count:
            raise EmbedderError(f"{name} gave {len(given)} vectors for {count} texts; nothing was stored")
        for vector in given:
            if not isinstance(vector, list) or not all(type(number) in (int, float) for number in vector):
                raise EmbedderError(f"{name} gave something other than numbers for a vector; nothing was stored")
            if len(vector) != dimension:
                raise EmbedderError(
                    f"{name} gave a vector of {len(vector)} numbers, and {self.space.model} has {dimension}; nothing "
                    "was stored; check EMBEDDER and EMBEDDER_DIMENSIONS"
                )
        try:
            vectors = np.array(given, dtype=np.float64)
        except OverflowError:
            vectors = np.full((count, dimension), np.inf)
        largest = np.abs(vectors).max(axis=1, keepdims=True)
        if not np.isfinite(vectors).all() or not largest.all():
            raise EmbedderError(f"{name} gave a vector that points nowhere (zeros or no numbers); nothing was stored")
        vectors /= largest  # the squares of huge numbers would be infinite
        unit: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return unit


def open_service(name: str, config: Config) -> HTTPEmbedder:
    """Return the embedder of a service.

    Args:
        name: Its name, with or without `:MODEL`.
        config: Where it is, and its key.

    Raises:
        ConfigError: A setting is missing or not acceptable.
    """
    return HTTPEmbedder(choose(name, config), config)
