"""An embedder that caches every vector in `.bench/`, so that a second run embeds nothing."""

import hashlib
import multiprocessing
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import apsw
import numpy as np
from numpy.typing import NDArray

from bench import corpus
from bench.retrieval import progress
from memories.embedders import Embedder, open_embedder
from memories.embedders.protocol import embed_query
from memories.stores.records import Space

EMBEDDERS = ("minilm", "e5")  # that run in this process
_ASKED = "?"  # marks the vector of a question
_CHUNK = 50
_SPAWN_FROM = 400  # fewer texts are embedded faster than other processes start

Vectors = NDArray[np.float32]


class KeptVectors:
    """An embedder that wraps an included embedder, and calls it only for texts without a cached
    vector.
    """

    def __init__(self, name: str = "minilm", file: Path | None = None) -> None:
        """Open the file of vectors.

        Args:
            name: An embedder that ships.
            file: Where vectors are kept; `.bench/vectors.db` by default.
        """
        self._name = name
        self._embedder = _open(name)
        file = file or corpus.CACHE / "vectors.db"
        file.parent.mkdir(parents=True, exist_ok=True)
        self._db = apsw.Connection(str(file))
        self._db.set_busy_timeout(60_000)
        self._db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL").fetchall()
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, vectors BLOB NOT NULL)"
        )
        self._known: dict[str, Vectors] = {}
        self._asked: dict[str, Vectors] = {}
        self._familiar: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def space(self) -> Space:
        """The space of the wrapped embedder."""
        return self._embedder.space

    def embed(self, text: str) -> Vectors:
        """Return the vectors of a text, shape (windows, dimension); see `Embedder.embed`."""
        with self._lock:
            found = self._known.get(text)
            if found is None:
                found = self._kept(text)
            if found is None:
                found = self._embedder.embed(text)
                self._keep([(text, found)])
            self._known[text] = found
            return found

    def embed_query(self, text: str) -> Vectors:
        """Return the vectors of a question, which some models embed differently from statements."""
        with self._lock:
            found = self._asked.get(text)
            if found is None:
                found = self._kept(text, _ASKED)
            if found is None:
                found = embed_query(self._embedder, text)
                self._keep([(text, found)], _ASKED)
            self._asked[text] = found
            return found

    def embed_many(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the vectors of each text; see `embed`."""
        return [self.embed(text) for text in texts]

    def familiarity(self, text: str) -> float:
        """Return the familiarity from the wrapped embedder; see `Embedder.familiarity`."""
        if text not in self._familiar:
            self._familiar[text] = self._embedder.familiarity(text)
        return self._familiar[text]

    def fill(self, texts: Iterable[str]) -> None:
        """Embed the texts without a cached vector, and show the progress; each vector is cached
        immediately.
        """
        missing = [text for text in dict.fromkeys(texts) if self._kept(text) is None]
        if not missing:
            return
        chunks = [missing[at : at + _CHUNK] for at in range(0, len(missing), _CHUNK)]
        with progress.shown("embedding", len(missing)) as advance:
            for chunk, made in zip(
                chunks, self._embedded(chunks, many=len(missing) >= _SPAWN_FROM), strict=True
            ):
                self._keep(zip(chunk, made, strict=True))
                advance(len(chunk))

    def prepare(self, texts: Iterable[str]) -> None:
        """Load the vectors of these texts, and drop all others."""
        wanted = list(dict.fromkeys(texts))
        self.fill(wanted)
        with self._lock:
            self._known = {text: kept for text in wanted if (kept := self._kept(text)) is not None}

    def close(self) -> None:
        """Close the file of vectors."""
        self._db.close()

    def _embedded(self, chunks: Sequence[Sequence[str]], *, many: bool) -> Iterator[list[Vectors]]:
        if not many:
            yield from ([self._embedder.embed(text) for text in chunk] for chunk in chunks)
            return
        context = multiprocessing.get_context("spawn")
        with context.Pool(corpus.PROCESSES, initializer=_begin, initargs=(self._name,)) as pool:
            yield from pool.imap(_embed_chunk, chunks)

    def _key(self, text: str, kind: str) -> bytes:
        return hashlib.blake2b(
            f"{self.space.model}{kind}\0{text}".encode(), digest_size=16
        ).digest()

    def _kept(self, text: str, kind: str = "") -> Vectors | None:
        row = self._db.execute(
            "SELECT vectors FROM kept WHERE key = ?", (self._key(text, kind),)
        ).fetchone()
        return (
            np.frombuffer(row[0], dtype=np.float32).reshape(-1, self.space.dimension)
            if row
            else None
        )

    def _keep(self, made: Iterable[tuple[str, Vectors]], kind: str = "") -> None:
        rows = [
            (self._key(text, kind), np.ascontiguousarray(vectors, np.float32).tobytes())
            for text, vectors in made
        ]
        with self._db:
            self._db.executemany("INSERT OR IGNORE INTO kept (key, vectors) VALUES (?, ?)", rows)


def _open(name: str) -> Embedder:
    embedder = open_embedder(name)
    if embedder is None:
        raise ValueError("retrieval is measured with an embedder")
    return embedder


# --- in the other processes

_theirs: dict[str, Embedder] = {}


def _begin(name: str) -> None:
    _theirs["embedder"] = _open(name)


def _embed_chunk(texts: Sequence[str]) -> list[Vectors]:
    return [_theirs["embedder"].embed(text) for text in texts]
