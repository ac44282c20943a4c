"""The multilingual embedder, local and free: multilingual-e5-small as int8 ONNX, from the package
memoriae-e5.

The package `tokenizers` would read the entire vocabulary first. Here, the vocabulary is a tree in
memory-mapped files, so a short text loads only the parts that it needs.
"""

import json
import re
import threading
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.embedders.minilm import embed_windows, find_altered, open_model
from memories.errors import ConfigError, EmbedderError
from memories.stores.records import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPACE = "\u2581"  # stands for the space before a word
_MAX_WORD = 65_536  # maximum length of a word; all windows together hold fewer characters


class Unigram:
    """A tokenizer for one vocabulary, read from files that `tools/build_e5.py` writes.

    The UTF-8 bytes of the pieces form a tree, whose nodes are numbered level by level. For each
    node, `labels` contains the byte that leads to the node, `children` contains its first child,
    and `pieces` contains the id of the piece that ends there, or -1. A node's children end where
    those of the next node begin. `scores` contains the logarithm of each id's probability.
    `tokenizer.json` contains the replacements of some code points, and the id and score of a
    character without a piece.

    Each word is split into its most likely pieces (Viterbi; Kudo, 2018). Every sum of scores is
    rounded to a 32-bit float and carried over to the next word, so that ties are broken as in the
    engine that trained the model.
    """

    def __init__(self, folder: Path, name: str) -> None:
        import numpy as np

        def map_file(part: str) -> memoryview:
            return memoryview(
                np.load(folder / f"{name}.{part}.npy", mmap_mode="r", allow_pickle=False)
            )

        self._labels = map_file("labels").tobytes()  # a memoryview has no `find`
        self._children, self._pieces, self._scores = map(map_file, ("children", "pieces", "scores"))
        settings = json.loads((folder / f"{name}.tokenizer.json").read_text(encoding="utf-8"))
        self._unknown, self._unlikely = int(settings["unknown"]), float(settings["unlikely"])
        self._characters: dict[int, str] = str.maketrans(settings["characters"])

    def ids(self, text: str) -> Iterator[int]:
        """Yield a text's token ids lazily, since only the first ids of a long text are needed."""
        likely = 0.0
        *words, last = text.translate(self._characters).split(" ")
        for word in [*filter(None, words), last]:  # consecutive spaces count as one
            piece = f"{_SPACE}{word[:_MAX_WORD]}".encode("utf-8", "surrogatepass")
            ids, likely = self._cut(piece, likely)
            yield from ids

    def _cut(self, word: bytes, before: float) -> tuple[list[int], float]:
        """Return the ids of a word's most likely pieces, and the score of the text up to the word's
        end.
        """
        best: list[float | None] = [None] * (len(word) + 1)
        # for each position, the id and the start of the piece that ends there
        last: list[tuple[int, int]] = [(0, 0)] * (len(word) + 1)
        best[0] = before
        single = array("f", (0.0,))
        for start in range(len(word)):
            score_before = best[start]
            if score_before is None:
                continue
            steps = self._pieces_from(word, start)
            steps.append((start + _length(word[start]), self._unknown, self._unlikely))
            for end, piece, score in steps:
                single[0] = score_before + score
                score_at_end = best[end]
                if score_at_end is None or single[0] > score_at_end:
                    best[end], last[end] = single[0], (piece, start)
        ids: list[int] = []
        end = len(word)
        while end:
            piece, end = last[end]
            ids.append(piece)
        return ids[::-1], best[-1] or 0.0

    def _pieces_from(self, word: bytes, start: int) -> list[tuple[int, int, float]]:
        """Return the end, id and score of each piece that begins at a position in a word."""
        labels, children, pieces = self._labels, self._children, self._pieces
        matches: list[tuple[int, int, float]] = []
        node = 0
        for at in range(start, len(word)):
            node = labels.find(word[at], children[node], children[node + 1])
            if node < 0:
                break
            if (piece := pieces[node]) >= 0:
                matches.append((at + 1, piece, self._scores[piece]))
        return matches


def _length(lead: int) -> int:
    """Return the number of bytes in a UTF-8 character that begins with this byte."""
    if lead < 0xC0:
        return 1
    if lead < 0xE0:
        return 2
    return 3 if lead < 0xF0 else 4


_NAME = "multilingual-e5-small"
# SHA-256 hashes of the model's files. Vectors are considered comparable if their models have the
# same name, so a name must stand for the same files everywhere.
_FILES = {
    f"{_NAME}.children.npy": "e42726e14068098dd719225791f06689802772903403c3e78e4da6840514da3a",
    f"{_NAME}.int8.onnx": "bc812430c0ca0ff570ec88a11cb1d13f70e014289e208902e9dda07c8d608c5c",
    f"{_NAME}.labels.npy": "7706b702eb8201ad5806a03457bf6ff5872db01c84a3eb990f94dd5406911112",
    f"{_NAME}.pieces.npy": "d37792d72eeea7ee747ead3569eee7d89282accafa458d61d2c1698d5efc781d",
    f"{_NAME}.rows.npy": "6717f2c47cf2c3410d7c08e073c908fb7d407d3887fee3ac90a8abf4b1407221",
    f"{_NAME}.scales.npy": "e40de391d92884056b83f2b1242c9a4f4188c4452827c10d421f81cbbdf4b49a",
    f"{_NAME}.scores.npy": "39958cae87dd7965d2d9167d461964ac16c5eef4c443760bc221fb0b9736476d",
    f"{_NAME}.tokenizer.json": "783670d5957800680f0f28fff41597ff7f74355de89cfff8e0f1404705c239fc",
}
_BEGIN, _END = 0, 2
_QUERY, _PASSAGE = "query:", "passage:"  # the model was trained on texts with these prefixes
_WORD = re.compile(r"[^\W\d_]+")
# Minimum mean number of letters in a known word's pieces; random letters form shorter pieces.
_LETTERS_A_PIECE = 2.5

# With the prefix and the end token, a window has up to 255 tokens; the model's limit is 512.
WINDOW_TOKENS = 250


class _Loaded(NamedTuple):
    tokenizer: Unigram
    session: Any
    rows: "NDArray[np.uint8]"  # for each piece, 384 numbers of 4 bits, in blocks of 32
    scales: "NDArray[np.float16]"  # one scale for each block

    def embed_ids(self, ids: Sequence[int]) -> "NDArray[np.float32]":
        """Return the vector, shape (1, 384), of the text with these ids."""
        import numpy as np

        packed = self.rows[list(ids)].reshape(len(ids), -1, 16)
        numbers = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8
        numbers *= self.scales[list(ids)].astype(np.float32)[..., None]
        vector: NDArray[np.float32] = self.session.run(
            None, {"rows": numbers.reshape(1, len(ids), -1)}
        )[0]
        return vector


class E5:
    """multilingual-e5-small: 384 dimensions, about 100 languages, 4 ms for a short text on one
    core.
    """

    space = Space(
        model=f"{_NAME}/int8/1",
        dimension=384,
        noise_mean=0.77,
        noise_spread=0.02,
        weight=13.0,  # fitted, like the calibration, to LoCoMo and BEAM (docs/benchmarks.md)
        duplicate=0.92,
        calibration=(55.9, 0.800),
        familiar_noise=False,
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None

    def embed(self, text: str) -> "NDArray[np.float32]":
        """Return a statement's vectors, shape (windows, 384); see `Embedder.embed`.

        Raises:
            ConfigError: The package with the model is not installed.
            EmbedderError: The model can't be read.
        """
        return self._windows(_PASSAGE, text)

    def embed_query(self, text: str) -> "NDArray[np.float32]":
        """Return a question's vectors; see `RemoteEmbedder.embed_query`."""
        return self._windows(_QUERY, text)

    def familiarity(self, text: str) -> float:
        """Return the share of words that consist of few pieces, or that are not in Latin script."""
        from memories.languages.text import cased_form, is_latin

        tokenizer = self._load().tokenizer
        words = _WORD.findall(cased_form(text))
        counts = (len(list(tokenizer.ids(word))) for word in words)
        familiar = [
            pieces == 1 or len(word) >= _LETTERS_A_PIECE * pieces or not is_latin(word)
            for word, pieces in zip(words, counts, strict=True)
        ]
        if familiar:
            return sum(familiar) / len(familiar)
        return 0.0

    def _windows(self, prefix: str, text: str) -> "NDArray[np.float32]":
        model = self._load()  # before importing numpy, since this limits numpy's BLAS to one thread
        from memories.languages.text import cased_form

        first = list(model.tokenizer.ids(prefix))
        ids = islice(model.tokenizer.ids(f"{prefix} {cased_form(text)}"), len(first), None)

        def run(window: list[int]) -> "NDArray[np.float32]":
            return model.embed_ids([_BEGIN, *first, *window, _END])

        return embed_windows(ids, WINDOW_TOKENS, run)

    def _load(self) -> _Loaded:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load_model()
            return self._loaded


def altered_files() -> list[Path]:
    """Read all files of the model; return the missing and changed ones."""
    return find_altered(_folder(), _FILES)


def _folder() -> Path:
    try:
        import memories_e5
    except ImportError as exc:
        from memories.core.installation import install_command

        raise ConfigError(
            "EMBEDDER=e5 needs its model, which is a separate package; "
            f"run: {install_command('multilingual')}"
        ) from exc
    return Path(memories_e5.__file__).parent


def _load_model() -> _Loaded:
    folder = _folder()
    try:
        session = open_model(folder / f"{_NAME}.int8.onnx", _NAME)
        import numpy as np

        rows, scales = (
            np.load(folder / f"{_NAME}.{part}.npy", mmap_mode="r", allow_pickle=False)
            for part in ("rows", "scales")
        )
        return _Loaded(Unigram(folder, _NAME), session, rows, scales)
    except EmbedderError:
        raise
    except Exception as exc:
        raise EmbedderError(
            f"cannot load {_NAME} from {folder}: {exc}; reinstall memoriae-e5"
        ) from exc
