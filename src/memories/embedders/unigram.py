"""SentencePiece's unigram model: the token ids of a text, exactly those that its model was trained on.

The package `tokenizers` would first read the whole vocabulary. Here it is a tree in files that are mapped into memory,
so a short text touches only the parts that it needs.
"""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path

_SPACE = "\u2581"  # what stands for the space before a word
_MAX_WORD = 65_536  # characters: more ids than any window takes, and the rest of a longer word is not looked at


class Unigram:
    """A tokenizer for one vocabulary, read from files that `tools/build_e5.py` writes.

    The pieces are a tree of their UTF-8 bytes, its nodes numbered level by level: `labels` has the byte that leads to
    each node, `children` the first child of each (they end where those of the next node begin), `pieces` the id of the
    piece that ends there, or -1. `scores` has the logarithm of the probability of each id. `tokenizer.json` says what
    becomes of some code points, all others stay as they are, and the id and the score of a character without a piece.

    Of all ways to cut a word into pieces the likeliest counts (Viterbi; Kudo, 2018). Sums are rounded as 32-bit floats
    are, from word to word, so that of two ways as likely the same is taken as by the engine that the model comes from.
    """

    def __init__(self, folder: Path, name: str) -> None:
        import numpy as np

        def mapped(part: str) -> memoryview:
            return memoryview(np.load(folder / f"{name}.{part}.npy", mmap_mode="r", allow_pickle=False))

        self._labels = mapped("labels").tobytes()  # bytes have a `find`
        self._children, self._pieces, self._scores = map(mapped, ("children", "pieces", "scores"))
        told = json.loads((folder / f"{name}.tokenizer.json").read_text(encoding="utf-8"))
        self._unknown, self._unlikely = int(told["unknown"]), float(told["unlikely"])
        self._characters: dict[int, str] = str.maketrans(told["characters"])

    def ids(self, text: str) -> Iterator[int]:
        """Yield the ids of a text one by one, so that nobody pays for more of a long text than is taken."""
        likely = 0.0
        words = text.translate(self._characters).split(" ")
        for place, word in enumerate(words):
            if word or place == len(words) - 1:  # spaces in a row are one
                ids, likely = self._cut(f"{_SPACE}{word[:_MAX_WORD]}".encode("utf-8", "surrogatepass"), likely)
                yield from ids

    def _cut(self, word: bytes, before: float) -> tuple[list[int], float]:
        """Return the ids of the likeliest pieces of a word, and how likely the text up to its end is."""
        best: list[float | None] = [None] * (len(word) + 1)
        last: list[tuple[int, int]] = [(0, 0)] * (len(word) + 1)  # the id of the piece that ends there, and its start
        best[0] = before
        single = array("f", (0.0,))
        for start in range(len(word)):
            here = best[start]
            if here is None:
                continue
            steps = self._from(word, start)
            steps.append((start + _length(word[start]), self._unknown, self._unlikely))
            for end, piece, score in steps:
                single[0] = here + score
                known = best[end]
                if known is None or single[0] > known:
                    best[end], last[end] = single[0], (piece, start)
        ids: list[int] = []
        end = len(word)
        while end:
            piece, end = last[end]
            ids.append(piece)
        return ids[::-1], best[-1] or 0.0

    def _from(self, word: bytes, start: int) -> list[tuple[int, int, float]]:
        """Return the pieces that begin at a place of a word: where each ends, its id, its score."""
        labels, children, pieces = self._labels, self._children, self._pieces
        found: list[tuple[int, int, float]] = []
        node = 0
        for at in range(start, len(word)):
            node = labels.find(word[at], children[node], children[node + 1])
            if node < 0:
                break
            if (piece := pieces[node]) >= 0:
                found.append((at + 1, piece, self._scores[piece]))
        return found


def _length(lead: int) -> int:
    """Return how many bytes the character has that begins with this one."""
    return 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
