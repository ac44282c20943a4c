"""BERT's WordPiece: the token ids of a text, exactly those that its model was trained on.

The package `tokenizers` gives the same ids, but brings 13 others, which nothing here would use.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

_SPECIAL = re.compile(r"(\[(?:PAD|UNK|CLS|SEP|MASK)\])")  # tokens even where a text spells them
_MAX_WORD, _MAX_TOKEN = 100, 18  # letters; a longer word is unknown, and the vocabulary has no longer token


class WordPiece:
    """A tokenizer for one vocabulary, read from two files that `tools/build_minilm.py` writes.

    `vocabulary` has one token a line, in the order of the ids. `characters` is a JSON list of ranges, `[first, last,
    becomes]`: which code points vanish, become a space, stand apart as words of their own, or lose their case and
    accents; `{}` is the code point itself. All others stay as they are. So ids do not depend on the Unicode tables of
    the Python that runs. A lone surrogate is an unknown letter.
    """

    def __init__(self, vocabulary: Path, characters: Path) -> None:
        self.tokens = vocabulary.read_text(encoding="utf-8").rstrip("\n").split("\n")
        self._ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        self._unknown = self._ids["[UNK]"]
        self._characters = _Characters(json.loads(characters.read_text(encoding="utf-8")))

    def ids(self, text: str) -> Iterator[int]:
        """Yield the ids of a text one by one, so that nobody pays for more of a long text than is taken."""
        seen: dict[str, list[int]] = {}
        for part in _SPECIAL.split(text):
            words = [part] if _SPECIAL.fullmatch(part) else part.translate(self._characters).split()
            for word in words:
                if word not in seen:
                    seen[word] = self._pieces(word)
                yield from seen[word]

    def _pieces(self, word: str) -> list[int]:
        """Return the ids of the longest token that a word begins with, of the longest that goes on, and so forth."""
        if word in self._ids:
            return [self._ids[word]]
        if len(word) > _MAX_WORD or any(letter not in self._ids for letter in word):  # every known letter is a token
            return [self._unknown]
        ids: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + _MAX_TOKEN), start, -1):
                token = word[start:end] if start == 0 else f"##{word[start:end]}"
                if token in self._ids:
                    break
            ids.append(self._ids[token])
            start = end
        return ids


class _Characters(dict[int, str]):
    """What each code point becomes, for `str.translate`; each is looked up in the ranges once."""

    def __init__(self, ranges: list[tuple[int, int, str]]) -> None:
        super().__init__()
        self._ranges = ranges

    def __missing__(self, code: int) -> str:
        _, last, becomes = self._ranges[bisect_right(self._ranges, code, key=itemgetter(0)) - 1]
        self[code] = becomes.replace("{}", chr(code)) if code <= last else chr(code)
        return self[code]
