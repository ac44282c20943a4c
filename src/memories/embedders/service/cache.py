"""Disk cache of a service's vectors, so that no text is paid for twice. Losing it is harmless."""

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from memories.core.disk import make_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHECK_BYTES = 16


class VectorCache:
    """A file of rows of equal size; the hash of a text is the number of its row, which a later text
    may overwrite.

    So it has a fixed size, needs no lock, and many processes may share it: a checksum rejects rows
    that are half written, damaged or another text's. It holds no text, and each vector is masked
    with bytes derived from its text: without the text nothing can be read, so nothing must be
    removed here when a memory is forgotten.
    """

    def __init__(self, folder: Path, model: str, dimension: int, max_bytes: int) -> None:
        """Choose the file; nothing is opened yet.

        Args:
            folder: Where the file is.
            model: The model with the URL of its service.
            dimension: The length of a vector.
            max_bytes: The largest size of the file.
        """
        digest = hashlib.blake2b(f"{model} {dimension}".encode(), digest_size=8).hexdigest()
        self.path = folder / f"vectors-{digest}.cache"
        self._row_bytes = _CHECK_BYTES + 4 * dimension
        self._rows = max_bytes // self._row_bytes
        self._warned = threading.Event()

    def find(self, texts: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """Return the vectors of the texts that are in the cache."""
        vectors: dict[str, NDArray[np.float32]] = {}
        if not self._rows:
            return vectors
        try:
            with self._open(os.O_RDONLY) as file:
                for text in texts:
                    vector = self._read(file, text)
                    if vector is not None:
                        vectors[text] = vector
        except FileNotFoundError:
            return {}
        except OSError as exc:
            self._warn(exc)
        return vectors

    def keep(self, vectors: "Mapping[str, NDArray[np.float32]]") -> None:
        """Keep the vectors of texts."""
        if not self._rows or not vectors:
            return
        try:
            make_folder(self.path.parent)
            with self._open(os.O_RDWR | os.O_CREAT) as file:
                for text, vector in vectors.items():
                    position, mask = self._place(text)
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
            return None  # it is another text's, or damaged
        return np.frombuffer(data, dtype="<f4").astype(np.float32)

    def _place(self, text: str) -> tuple[int, bytes]:
        """Return where a text's row begins, and the bytes that mask it."""
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
        """Warn once that nothing is cached: every text is then sent again, which costs money."""
        if not self._warned.is_set():
            self._warned.set()
            import logging  # costs 5 ms, so only here

            logging.getLogger(__name__).warning("vectors are not cached in %s: %s", self.path, exc)


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES).digest()


def _mask(data: bytes, mask: bytes) -> bytes:
    import numpy as np

    return (np.frombuffer(data, dtype=np.uint8) ^ np.frombuffer(mask, dtype=np.uint8)).tobytes()
