"""Embedder that uses a service over HTTP: splits long texts, batches requests, checks and caches
responses.
"""

import contextlib
import copy
import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from memories.config import cache_folder
from memories.core.batches import by_weight
from memories.core.deadline import WAIT
from memories.core.disk import make_folder, replacing
from memories.embedders.protocol import EmbedderUnavailable
from memories.embedders.service import providers
from memories.embedders.service.providers import ChosenModel, Patience, choose
from memories.errors import EmbedderError
from memories.settings import Config
from memories.stores.records import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.embedders.service.client import ServiceClient


MAX_WINDOWS = 32  # maximum per text; the word index still has all words of a longer text
MAX_REQUEST_BYTES = 200_000  # services allow requests of about twice this size
# If keyword search may be used instead, there is only one attempt. Its time limit is
# FALLBACK_SECONDS for up to FALLBACK_TEXTS texts, and proportionally more for more texts.
FALLBACK_SECONDS, FALLBACK_TEXTS = 3.0, 16
# Time limits of each attempt and of all attempts, in units of EMBEDDER_TIMEOUT, for a search, for
# one statement, and for many.
_SEARCH, _ONE, _MANY = Patience(1, 2), Patience(1, 4), Patience(3, 12)


class HTTPEmbedder:
    """A model behind an HTTP service: OpenAI or a compatible service, Ollama, Voyage or Cohere.

    A service returns nearly the same numbers each time for the same text; the cache returns exactly
    the same ones.

    Attributes:
        key_missing: The error message if a key is needed and there is none; else empty.
    """

    def __init__(
        self,
        chosen: ChosenModel,
        config: Config,
        *,
        client: "ServiceClient | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Initialize an embedder; no request is sent yet.

        Args:
            chosen: The model and its service.
            config: The settings for the timeout, the cache size and the fallback.
            client: Sends the requests; by default over the network.
            clock: Returns seconds since 1970.
        """
        self._chosen = chosen
        self.key_missing = chosen.key_missing
        self._client = client
        self._timeout = config.embedder_timeout
        self._words_instead = config.embedder_fallback == "local"
        name = f"{chosen.space.model} {chosen.service.url}"
        max_bytes = config.embedder_cache_mb * 1_000_000
        self._cache = VectorCache(cache_folder(), name, chosen.space.dimension, max_bytes)
        key = chosen.service.key.reveal() if chosen.service.key else ""
        self._rest = Rest(config.home, f"{name} {key}", clock)

    @property
    def patient(self) -> Self:
        """The same embedder, but it never falls back to words, and retries while that may help."""
        twin = copy.copy(self)
        twin._words_instead = False
        return twin

    @property
    def space(self) -> Space:
        """The space of the vectors; known without a request."""
        return self._chosen.space

    def embed(self, text: str) -> "NDArray[np.float32]":
        """Return a statement's vectors; see `Embedder.embed`.

        Raises:
            EmbedderUnavailable: The service can't be used at present.
            EmbedderError: The service returned no usable vectors.
        """
        return self._vectors([text], question=False, units=_ONE)[0]

    def embed_query(self, text: str) -> "NDArray[np.float32]":
        """Return a question's vectors; see `RemoteEmbedder.embed_query`.

        Raises:
            EmbedderUnavailable: The service returned no vectors in time.
            EmbedderError: The service returned no usable vectors.
        """
        return self._vectors([text], question=True, units=_SEARCH)[0]

    def embed_many(self, texts: Sequence[str]) -> "list[NDArray[np.float32]]":
        """Return the vectors of many statements; see `RemoteEmbedder.embed_many`.

        Raises:
            EmbedderUnavailable: The service can't be used at present; vectors received so far are
                cached.
            EmbedderError: The service returned no usable vectors.
        """
        return self._vectors(texts, question=False, units=_ONE if len(texts) == 1 else _MANY)

    def familiarity(self, text: str) -> float:  # noqa: ARG002
        """Return 0.0: services don't report which words their models know."""
        return 0.0

    def _vectors(
        self, texts: Sequence[str], *, question: bool, units: Patience
    ) -> "list[NDArray[np.float32]]":
        import numpy as np

        model, batch_size = self._chosen.model, self._chosen.provider.batch
        if question:  # a search sends only one request, to save time
            kind, prefix, max_windows = "question", model.question, min(MAX_WINDOWS, batch_size)
        else:
            kind, prefix, max_windows = "statement", model.statement, MAX_WINDOWS
        size = model.window_bytes - len(prefix)
        windows_of_texts: list[list[str]] = []
        for text in texts:
            pieces = windows(text, size, max_windows)
            windows_of_texts.append([prefix + piece for piece in pieces])
        inputs = dict.fromkeys(itertools.chain.from_iterable(windows_of_texts))
        vectors = self._cache.find(kind, inputs)
        missing = [window for window in inputs if window not in vectors]
        for batch in by_weight(
            missing,
            lambda window: len(window.encode("utf-8", "replace")),
            most=batch_size,
            heaviest=MAX_REQUEST_BYTES,
        ):
            new = dict(zip(batch, self._ask(batch, question=question, units=units), strict=True))
            self._cache.keep(kind, new)
            vectors |= new
        return [
            np.stack([vectors[window] for window in text_windows])
            for text_windows in windows_of_texts
        ]

    def _ask(
        self, texts: Sequence[str], *, question: bool, units: Patience
    ) -> "NDArray[np.float32]":
        body = providers.ask(self._chosen, texts, question=question)
        patience = self._patience(len(texts), units)
        if self._words_instead and (why := self._rest.reason(patience.total)):
            raise EmbedderUnavailable(why, words_instead=True)
        try:
            if self._client is None:
                from memories.embedders.service import client  # takes 25 ms, so imported late

                self._client = client.ServiceClient(self._chosen.service)
            vectors = self._client.post(body, patience, self._chosen.provider.vectors)
        except EmbedderUnavailable as exc:
            if self._words_instead:  # later callers don't wait, and don't see this caller's text
                why = str(exc).replace(exc.quoted, "")
                self._rest.begin(why, patience.total, exc.after_seconds)
            raise EmbedderUnavailable(str(exc), words_instead=self._words_instead) from exc
        if self._words_instead:
            self._rest.end()
        return self._check(vectors, len(texts))

    def _patience(self, count: int, units: Patience) -> Patience:
        """Return the time limits for the vectors of this many texts."""
        patience = Patience(units.request * self._timeout, units.total * self._timeout)
        if self._words_instead:
            once = min(patience.request, FALLBACK_SECONDS * max(1.0, count / FALLBACK_TEXTS))
            patience = Patience(once, once, tries=1)
        wait = WAIT.get()
        if wait is None or wait.most_seconds is None:
            return patience
        limit = wait.most_seconds
        return patience._replace(
            request=min(patience.request, limit), total=min(patience.total, limit)
        )

    def _check(self, answer: list[Any], count: int) -> "NDArray[np.float32]":
        """Return the vectors in a response, scaled to unit length.

        Raises:
            EmbedderError: The number, length or values of the vectors are wrong.
        """
        import numpy as np

        name, dimension = self._chosen.service.shown, self.space.dimension
        if len(answer) != count:
            raise EmbedderError(f"{name} returned {len(answer)} vectors for {count} texts")
        for vector in answer:
            is_list = isinstance(vector, list)
            if not is_list or not all(type(number) in (int, float) for number in vector):
                raise EmbedderError(f"{name} returned a vector that is not a list of numbers")
            if len(vector) != dimension:
                raise EmbedderError(
                    f"{name} returned a vector of {len(vector)} dimensions, but "
                    f"{self.space.model} should return {dimension}; "
                    "check EMBEDDER and EMBEDDER_DIMENSIONS"
                )
        try:
            vectors = np.array(answer, dtype=np.float64)
        except OverflowError:
            vectors = np.full((count, dimension), np.inf)
        largest = np.abs(vectors).max(axis=1, keepdims=True)
        if not np.isfinite(vectors).all() or not largest.all():
            raise EmbedderError(f"{name} returned a vector that is zero or not finite")
        vectors /= largest  # otherwise, the squares of huge numbers would be infinite
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float32)


def open_service(name: str, config: Config) -> HTTPEmbedder:
    """Return the embedder for a service.

    Args:
        name: The service's name, with or without `:MODEL`.
        config: The settings, with the service's address and key.

    Raises:
        ConfigError: A setting is missing or invalid.
    """
    return HTTPEmbedder(choose(name, config), config)


MIN_SECONDS, MAX_SECONDS = 15.0, 600.0
# After a failed request, other callers pause too, unless they would wait more than this many times
# as long as the caller whose request failed.
_CLOSE = 2


class Rest:
    """Pauses requests after a failure of the service. All processes with the same home share the
    pause through a file; losing the file costs one attempt.

    The pause doesn't apply to callers that would wait much longer than the caller whose request
    failed: a hook gives up after a fraction of a second, which says little about the service.
    """

    def __init__(self, home: Path, service: str, clock: Callable[[], float]) -> None:
        """Choose the file, without reading it.

        Args:
            home: The file's folder; if it is missing, other processes don't see the failure.
            service: Everything that a failure may depend on: model, URL and key.
            clock: Returns seconds since 1970.
        """
        digest = hashlib.blake2b(service.encode("utf-8", "replace"), digest_size=8).hexdigest()
        self.path = home / f".embedder-{digest}"
        self._clock = clock
        self._failure: dict[str, Any] = {}

    def reason(self, seconds: float) -> str:
        """Return why a caller with this time limit should not send a request; empty if it may."""
        with contextlib.suppress(OSError, ValueError):  # the file is missing or damaged
            self._failure = json.loads(self.path.read_bytes())
        try:
            remaining = self._failure["until"] - self._clock()
            is_recent = 0 < remaining <= MAX_SECONDS
            if is_recent and seconds <= _CLOSE * self._failure["waited"]:
                return str(self._failure["why"])
        except (KeyError, TypeError):
            pass
        return ""

    def begin(self, why: str, waited: float, after_seconds: float) -> None:
        """Remember a failure.

        Args:
            why: The message for later callers.
            waited: How long the caller would have waited.
            after_seconds: How long the service asks us to wait; 0 if it does not say.
        """
        until = self._clock() + min(MAX_SECONDS, max(MIN_SECONDS, after_seconds))
        self._failure = {"until": until, "waited": waited, "why": why}
        if self.path.parent.is_dir():
            # On a full disk, only this process remembers the failure.
            with contextlib.suppress(OSError), replacing(self.path) as stream:
                stream.write(json.dumps(self._failure).encode())

    def end(self) -> None:
        """Forget the failure: the service has responded."""
        self._failure = {}
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def windows(text: str, size: int, max_count: int) -> list[str]:
    """Split a text into windows that overlap by an eighth, at spaces if possible.

    Args:
        text: The text.
        size: The maximum size of a window in bytes of UTF-8.
        max_count: The maximum number of windows; the rest of the text is left out.

    Returns:
        At least one window, none of them blank; a blank text becomes one full stop, since services
        refuse empty texts.
    """
    data = text.strip().encode("utf-8", "replace")
    cut: list[str] = []
    start = 0
    while start < len(data) and len(cut) < max_count:
        end = _end(data, start, size)
        cut.append(data[start:end].decode("utf-8", "ignore").strip())
        if end == len(data):
            break
        overlap = end - size // 8
        space = data.find(b" ", overlap, end)
        start = max(start + 1, _whole(data, overlap) if space < 0 else space + 1)
    return [window for window in cut if window] or ["."]


def _end(data: bytes, start: int, size: int) -> int:
    """Return where a window ends: at the last space in its last eighth, if there is one."""
    if len(data) - start <= size:
        return len(data)
    end = start + size
    last_eighth = end - size // 8
    space = max(data.rfind(b" ", last_eighth, end), data.rfind(b"\n", start, end))
    return space if space > last_eighth else _whole(data, end)


def _whole(data: bytes, at: int) -> int:
    """Return where the character that contains a byte begins."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


# --- vectors on disk

_CHECK_BYTES = 16


class VectorCache:
    """Disk cache of a service's vectors, so that no text is paid for twice. Losing the cache is
    harmless.

    It is a file with rows of equal size. The hash of a text determines its row, which a later text
    may overwrite. So the file has a fixed size, and many processes can share it without a lock: a
    checksum rejects rows that are half written, damaged, or belong to another text.

    The file contains no texts, and each vector is masked with bytes derived from its text. Without
    the text, the vector can't be read, so nothing has to be removed when a memory is forgotten.
    """

    def __init__(self, folder: Path, model: str, dimension: int, max_bytes: int) -> None:
        """Choose the file; nothing is opened yet.

        Args:
            folder: The file's folder.
            model: The model, and the URL of its service.
            dimension: The length of a vector.
            max_bytes: The maximum size of the file.
        """
        digest = hashlib.blake2b(f"{model} {dimension}".encode(), digest_size=8).hexdigest()
        self.path = folder / f"vectors-{digest}.cache"
        self._row_bytes = _CHECK_BYTES + 4 * dimension
        self._rows = max_bytes // self._row_bytes
        self._warned = threading.Event()

    def find(self, kind: str, texts: Iterable[str]) -> "dict[str, NDArray[np.float32]]":
        """Return the cached vectors of these texts; texts without one are left out.

        Args:
            kind: Whether the texts are embedded as a `question` or a `statement`.
            texts: The texts to look up.
        """
        vectors: dict[str, NDArray[np.float32]] = {}
        if not self._rows:
            return vectors
        try:
            with self._open(os.O_RDONLY) as file:
                for text in texts:
                    vector = self._read(file, f"{kind} {text}")
                    if vector is not None:
                        vectors[text] = vector
        except FileNotFoundError:
            return {}
        except OSError as exc:
            self._warn(exc)
        return vectors

    def keep(self, kind: str, vectors: "Mapping[str, NDArray[np.float32]]") -> None:
        """Keep the vectors of texts; see `find`."""
        if not self._rows or not vectors:
            return
        try:
            make_folder(self.path.parent)
            with self._open(os.O_RDWR | os.O_CREAT) as file:
                for text, vector in vectors.items():
                    position, mask = self._place(f"{kind} {text}")
                    data = vector.astype("<f4").tobytes()
                    file.seek(position)
                    file.write(_mask(_check(data) + data, mask))
        except OSError as exc:
            self._warn(exc)

    def _read(self, file: IO[bytes], text: str) -> "NDArray[np.float32] | None":
        import numpy as np

        position, mask = self._place(text)
        file.seek(position)
        row = file.read(self._row_bytes)
        if len(row) < self._row_bytes:
            return None
        plain = _mask(row, mask)
        data = plain[_CHECK_BYTES:]
        if plain[:_CHECK_BYTES] != _check(data):
            return None  # the row belongs to another text, or is damaged
        return np.frombuffer(data, dtype="<f4").astype(np.float32)

    def _place(self, text: str) -> tuple[int, bytes]:
        """Return where a text's row begins, and the bytes that mask the row."""
        data = f"{self.path.name} {text}".encode("utf-8", "replace")
        number = int.from_bytes(hashlib.blake2b(data, digest_size=8, person=b"row").digest(), "big")
        mask = hashlib.shake_256(data).digest(self._row_bytes)
        return number % self._rows * self._row_bytes, mask

    def _open(self, flags: int) -> IO[bytes]:
        for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, name, 0)
        mode = "r+b" if flags & os.O_RDWR else "rb"
        return os.fdopen(os.open(self.path, flags, 0o600), mode, buffering=0)

    def _warn(self, exc: OSError) -> None:
        """Warn once that nothing is cached, so that every text is sent, and paid for, again."""
        if not self._warned.is_set():
            self._warned.set()
            import logging  # imported late, since it takes 5 ms

            logging.getLogger(__name__).warning("vectors are not cached in %s: %s", self.path, exc)


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES).digest()


def _mask(data: bytes, mask: bytes) -> bytes:
    import numpy as np

    return (np.frombuffer(data, dtype=np.uint8) ^ np.frombuffer(mask, dtype=np.uint8)).tobytes()
