"""Texts and their vectors: real sentences, embedded once with the packaged model and cached in
`.bench/`.
"""

import hashlib
import multiprocessing
import os
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memories.embedders.minilm import MiniLM

CACHE = Path(".bench")
PROCESSES = 2
_CHUNK = 250
_SHORT_WORDS = 5


@dataclass(frozen=True)
class Corpus:
    """Texts to store and texts to search for, in the order of the rows of their vectors.

    Attributes:
        texts: What is stored.
        statements: Held-out texts, used as queries without changes: long queries.
        shorts: The first words of each held-out text: what a person types.
    """

    texts: list[str]
    statements: list[str]
    shorts: list[str]
    vectors: NDArray[np.float32]
    statement_vectors: NDArray[np.float32]
    short_vectors: NDArray[np.float32]

    def first(self, count: int) -> "Corpus":
        """Return the corpus with only the first `count` texts; the queries stay."""
        return Corpus(
            self.texts[:count],
            self.statements,
            self.shorts,
            self.vectors[:count],
            self.statement_vectors,
            self.short_vectors,
        )

    @cached_property
    def embedder(self) -> "KnownVectors":
        """An embedder that looks up precomputed vectors, so that measurements don't include
        embedding.
        """
        return KnownVectors(
            [*self.texts, *self.statements, *self.shorts],
            np.concatenate([self.vectors, self.statement_vectors, self.short_vectors]),
        )


class KnownVectors:
    """An embedder in MiniLM's space that looks up the vectors of given texts."""

    space = MiniLM.space

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self._vectors = vectors
        self._model = MiniLM()
        self._rows = {text: row for row, text in enumerate(texts)}

    def embed(self, text: str) -> NDArray[np.float32]:
        """Return the precomputed vector of a text, or the model's if there is none, shape (1, 384);
        see `Embedder.embed`.
        """
        row = self._rows.get(text)
        return self._model.embed(text)[:1] if row is None else self._vectors[row : row + 1]

    def familiarity(self, text: str) -> float:
        """Return what MiniLM says."""
        return self._model.familiarity(text)


def load(file: Path, count: int, queries: int) -> Corpus:
    """Read a file of texts, one per line, and embed those that no earlier run has embedded.

    Args:
        file: At least `count + queries` lines, preferably shuffled; the last `queries` lines are
            held out as queries.
        count: How many texts to store.
        queries: How many to ask.
    """
    kept_form = unicodedata.normalize("NFC", file.read_text(encoding="utf-8"))
    lines = [line.strip() for line in kept_form.splitlines() if line.strip()]
    if len(lines) < count + queries:
        raise SystemExit(f"{file} has {len(lines)} texts, and {count} + {queries} are needed")
    CACHE.mkdir(exist_ok=True)
    texts, statements = lines[:count], lines[len(lines) - queries :]
    shorts = [
        " ".join(text.partition(": ")[2].split()[:_SHORT_WORDS]) or text for text in statements
    ]
    return Corpus(
        texts, statements, shorts, *(embed(group) for group in (texts, statements, shorts))
    )


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors of texts, shape (n, 384), each by its first window; cached in `.bench/`
    for the next run.
    """
    digest = hashlib.blake2b(
        "\n".join([MiniLM.space.model, *texts]).encode(), digest_size=8
    ).hexdigest()
    kept = CACHE / f"vectors-{digest}.npy"
    if kept.is_file():
        return np.asarray(np.load(kept), dtype=np.float32)
    if not texts:
        return np.empty((0, MiniLM.space.dimension), dtype=np.float32)
    chunks = [texts[at : at + _CHUNK] for at in range(0, len(texts), _CHUNK)]
    made: list[NDArray[np.float32]] = []
    with multiprocessing.get_context("spawn").Pool(min(PROCESSES, len(chunks))) as pool:
        for vectors in pool.imap(_embed_chunk, chunks):
            made.append(vectors)
            if sys.stderr.isatty():
                print(
                    f"\rembedding {sum(map(len, made))} of {len(texts)}",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
    table = np.concatenate(made)
    CACHE.mkdir(exist_ok=True)
    scratch = kept.with_suffix(f".{os.getpid()}.npy")
    np.save(scratch, table)
    scratch.rename(kept)
    return table


_model = MiniLM()


def _embed_chunk(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.concatenate([_model.embed(text)[:1] for text in texts])
