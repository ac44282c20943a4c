"""The default embedder, local and free: all-MiniLM-L6-v2 as int8 ONNX, in this package.

`WordPiece` produces the same token ids as the package `tokenizers`, which depends on 13 others.
`open_model` opens any packaged model with onnxruntime, on one thread and without telemetry.
"""

import json
import os
import re
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories.errors import EmbedderError
from memories.stores.records import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPECIAL = re.compile(r"(\[(?:PAD|UNK|CLS|SEP|MASK)\])")  # special tokens; never split
_MAX_WORD = 100  # maximum number of letters; a longer word is unknown
_MAX_TOKEN = 18  # number of letters in the vocabulary's longest token
_ADDRESS_SPACE = 192 * 2**20  # bytes that the model, numpy and their libraries need


class WordPiece:
    """A tokenizer for one vocabulary, read from two files that `tools/build_minilm.py` writes.

    `vocabulary` has one token per line, in the order of the ids. `characters` is a JSON list of
    ranges, `[first, last, becomes]`, of code points that vanish, become a space or a separate word,
    or lose their case and accents; `{}` stands for the code point itself. All other code points are
    unchanged. So ids do not depend on Python's own Unicode tables. A lone surrogate is an unknown
    letter.
    """

    def __init__(self, vocabulary: Path, characters: Path) -> None:
        self.tokens = vocabulary.read_text(encoding="utf-8").rstrip("\n").split("\n")
        self._ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        self._unknown = self._ids["[UNK]"]
        self._characters = _Characters(json.loads(characters.read_text(encoding="utf-8")))

    def ids(self, text: str) -> Iterator[int]:
        """Yield a text's token ids lazily, since only the first ids of a long text are needed."""
        seen: dict[str, list[int]] = {}
        for part in _SPECIAL.split(text):
            words = [part]
            if not _SPECIAL.fullmatch(part):
                words = part.translate(self._characters).split()
            for word in words:
                if word not in seen:
                    seen[word] = self._pieces(word)
                yield from seen[word]

    def _pieces(self, word: str) -> list[int]:
        """Return the token ids of a word, taking the longest matching token each time."""
        if word in self._ids:
            return [self._ids[word]]
        # every known letter is a token
        if len(word) > _MAX_WORD or any(letter not in self._ids for letter in word):
            return [self._unknown]
        ids: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + _MAX_TOKEN), start, -1):
                token = word[start:end]
                if start > 0:
                    token = f"##{token}"
                if token in self._ids:
                    break
            ids.append(self._ids[token])
            start = end
        return ids


class _Characters(dict[int, str]):
    """Code point replacements for `str.translate`, each looked up in the ranges only once."""

    def __init__(self, ranges: list[tuple[int, int, str]]) -> None:
        super().__init__()
        self._ranges = ranges

    def __missing__(self, code: int) -> str:
        _, last, becomes = self._ranges[bisect_right(self._ranges, code, key=itemgetter(0)) - 1]
        sign = chr(code)
        if code <= last:
            sign = becomes.replace("{}", sign)
        self[code] = sign
        return sign


_WEIGHTS = Path(__file__).parent / "weights"
_NAME = "all-MiniLM-L6-v2"
# SHA-256 hashes of the model's files. Vectors are considered comparable if their models have the
# same name, so a name must stand for the same files everywhere.
_FILES = {
    f"{_NAME}.characters.json": "d151f660b680ab9178775992dda44c3b2a921498def664e72cc10c74c7a4189f",
    f"{_NAME}.int8.onnx": "df33ce5b1088f9f178a0083dd9e80b3c64045390abd25555e83cb29f559060a1",
    f"{_NAME}.vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
_BYTES = 22_830_417  # size of the model's weights in bytes
_CLS, _SEP = 101, 102
_TOKENS = 30_522
_LONG_WORD = 8  # minimum number of letters in a long word

WINDOW_TOKENS = 254  # 256 with [CLS] and [SEP]; the model's authors truncate longer texts
OVERLAP = 32  # tokens that adjacent windows share; most sentences are complete in one of them
MAX_WINDOWS = 32  # about 7,000 tokens; the word index still contains all words of a longer text


class MiniLM:
    """The packaged all-MiniLM-L6-v2: English, 384 dimensions, 1.5 ms per short text on one core."""

    space = Space(
        model="all-MiniLM-L6-v2/int8/1",
        dimension=384,
        noise_mean=0.09,
        noise_spread=0.07,
        weight=1.65,
        duplicate=0.80,
        calibration=(20.6, 0.213),
        latin_only=True,
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[WordPiece, Any] | None = None

    def embed(self, text: str) -> "NDArray[np.float32]":
        """Return a text's vectors, shape (windows, 384); see `Embedder.embed`.

        Raises:
            EmbedderError: The packaged model can't be read.
        """
        # Load before importing numpy, because loading limits numpy's BLAS library to one thread.
        tokenizer, session = self._load()
        import numpy as np

        from memories.languages.text import normal_form

        def run(window: list[int]) -> "NDArray[np.float32]":
            ids = np.array([[_CLS, *window, _SEP]], dtype=np.int64)
            vectors: NDArray[np.float32] = session.run(None, {"input_ids": ids})[0]
            return vectors

        return embed_windows(tokenizer.ids(normal_form(text)), WINDOW_TOKENS, run)

    def familiarity(self, text: str) -> float:
        """Return the share of words that the model knows.

        It knows a word that is one token, or a long word that is two.
        """
        from memories.languages.text import normal_form

        tokenizer, _ = self._load()
        words: list[list[str]] = []
        for token in map(tokenizer.tokens.__getitem__, tokenizer.ids(normal_form(text))):
            if token.startswith("##") and words:
                words[-1].append(token[2:])
            elif token.isalpha():
                words.append([token])
        familiar = [
            len(pieces) == 1 or (len(pieces) == 2 and len("".join(pieces)) >= _LONG_WORD)
            for pieces in words
        ]
        if familiar:
            return sum(familiar) / len(familiar)
        return 0.0

    def _load(self) -> tuple[WordPiece, Any]:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load_model()
            return self._loaded


def altered_files() -> list[Path]:
    """Read all files of the packaged model; return the missing and changed ones."""
    return find_altered(_WEIGHTS, _FILES)


def _load_model() -> tuple[WordPiece, Any]:
    try:
        tokenizer = WordPiece(
            _WEIGHTS / f"{_NAME}.vocab.txt", _WEIGHTS / f"{_NAME}.characters.json"
        )
        if len(tokenizer.tokens) != _TOKENS:
            raise ValueError(
                f"the vocabulary has {len(tokenizer.tokens)} tokens instead of {_TOKENS}"
            )
        model = _WEIGHTS / f"{_NAME}.int8.onnx"
        if (size := model.stat().st_size) != _BYTES:  # a hash would take as long as loading
            raise ValueError(f"{model.name} has {size} bytes instead of {_BYTES}")
        session = open_model(model, _NAME)
    except EmbedderError:
        raise
    except Exception as exc:
        raise EmbedderError(
            f"cannot load {_NAME} from {_WEIGHTS}: {exc}; reinstall memoriae"
        ) from exc
    return tokenizer, session


# --- for every packaged model


def open_model(file: Path, name: str) -> Any:
    """Open a packaged model in onnxruntime; return the session that runs it.

    Args:
        file: The model as ONNX.
        name: The name of the model, for errors.

    Raises:
        EmbedderError: The runtime is not installed, or lacks memory.
    """
    # starting numpy's threads would take 8 ms, for 0.2 ms of work
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # onnxruntime 1.29 sends telemetry to its maker unless this is set before the import
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    onnxruntime = _import_runtime(name)
    onnxruntime.disable_telemetry_events()  # in case onnxruntime was already imported
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def find_altered(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Return the files of a model that are missing or don't have the expected SHA-256."""
    import hashlib

    def differs(file: Path, expected: str) -> bool:
        try:
            with file.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest() != expected
        except OSError:
            return True

    return [folder / name for name, expected in files.items() if differs(folder / name, expected)]


def embed_windows(
    ids: Iterator[int], length: int, run: "Callable[[list[int]], NDArray[np.float32]]"
) -> "NDArray[np.float32]":
    """Return the vectors of a text's windows, shape (windows, dimension).

    A short text, even an empty one, has a single window. The model runs separately for each window,
    because dynamic int8 quantization computes its scale over everything in a run, and a vector must
    not depend on other windows.

    Args:
        ids: The ids of the text.
        length: The number of ids in a window.
        run: Returns the vector of a window, shape (1, dimension).
    """
    import numpy as np

    step = length - OVERLAP
    seen = list(islice(ids, step * (MAX_WINDOWS - 1) + length))
    starts = range(0, max(1, len(seen) - OVERLAP), step)
    return np.concatenate([run(seen[at : at + length]) for at in starts])


def _import_runtime(name: str) -> Any:
    """Import a model's runtime. First check the memory limit, since with too little memory its
    libraries would crash the process or fail oddly.
    """
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except ImportError:  # Windows
        limit = -1
    if 0 <= limit < _ADDRESS_SPACE:
        raise EmbedderError(
            f"{name} needs {_ADDRESS_SPACE // 2**20} MB of address space, but this process is "
            f"limited to {limit // 2**20} MB; raise the limit (ulimit -v) or set EMBEDDER=none"
        )
    try:
        import onnxruntime
    except (ImportError, MemoryError) as exc:
        why = str(exc) or "out of memory"
        raise EmbedderError(
            f"cannot load onnxruntime, which runs {name}: {why}; reinstall memoriae"
        ) from exc
    return onnxruntime


if __name__ == "__main__":  # `make` runs this after installing
    if altered := altered_files():
        sys.exit(f"{', '.join(map(str, altered))}: missing or changed; fetch the source again")
