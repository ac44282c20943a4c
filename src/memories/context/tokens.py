"""Estimates an upper bound on the number of tokens in a text, for the tokenizers of today's models.

The estimate is the largest of three bounds: one for byte-level BPE as in GPT-4 and GPT-4o, one for
unigram models as in multilingual encoders and Gemma, and one for WordPiece. A word that is one
piece in the packaged WordPiece vocabulary is an ordinary word, so it is probably a single token in
other vocabularies too. For BPE and unigram models, the cost of each character class was fitted by
linear programming, so that the estimates are as low as possible without being too low for any of
2,400 samples. The samples are of 90 kinds: chats, prose in 50 languages, code, JSON, logs,
identifiers, base64, emoji, symbols, and random letters of many scripts.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from math import ceil
from pathlib import Path

_LATIN = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u1e00-\u1eff"
_RUN = re.compile(
    rf" ?(?:[{_LATIN}]+|[0-9]+|[^\W\d_]+|[^\w\s]+|_+|\w)|\n+|[^\S\n]+|[^\w]", re.DOTALL
)
_IS_LATIN = re.compile(f"[{_LATIN}]")
_INNER_CAPITAL = re.compile("[a-z][A-Z]")
_MAX_PIECE = 18  # length of the longest token in the vocabulary
_MARGIN = 1.03
_SMART = frozenset("’‘“”…—–•")

# The first character of each Unicode block, and the cost of a character in the block for byte-level
# BPE and for unigram models.
_BLOCKS: tuple[tuple[int, float, float], ...] = (
    (0x00, 0.83, 1.08),  # punctuation
    (0x80, 1.1, 1.05),
    (0x250, 2.0, 1.0),
    (0x370, 1.06, 1.22),  # Greek
    (0x400, 0.87, 0.45),  # Cyrillic
    (0x530, 2.2, 0.45),  # Armenian
    (0x590, 1.2, 0.45),  # Hebrew
    (0x600, 1.16, 0.45),  # Arabic
    (0x700, 3.0, 1.3),
    (0x900, 1.27, 0.45),  # Devanagari
    (0x980, 1.5, 0.45),  # Bengali
    (0xA00, 2.01, 0.45),  # the other scripts of India
    (0xE00, 1.0, 0.4),  # Thai
    (0xE80, 3.0, 1.3),
    (0x10A0, 2.2, 0.45),  # Georgian
    (0x1100, 3.0, 1.3),
    (0x1200, 3.0, 0.6),  # Ethiopic
    (0x13A0, 3.0, 1.3),
    (0x1780, 1.75, 0.45),  # Khmer
    (0x1800, 3.0, 1.3),
    (0x2000, 1.9, 1.05),
    (0x2070, 2.7, 1.05),  # symbols
    (0x2C00, 3.0, 1.3),
    (0x3000, 1.0, 1.0),  # CJK punctuation
    (0x3040, 0.9, 0.6),  # kana
    (0x3100, 3.0, 1.3),
    (0x3400, 2.8, 1.3),  # rare Han
    (0x4E00, 1.05, 1.06),  # Han: see `_han_cost`
    (0xA000, 3.0, 1.3),
    (0xAC00, 2.64, 1.0),  # Hangul
    (0xD7B0, 3.0, 1.3),
    (0xFF00, 1.1, 1.0),
    (0xFFF0, 3.0, 1.3),
    (0x10000, 4.0, 1.3),
    (0x1F000, 2.91, 1.8),  # emoji
    (0x1FB00, 4.0, 1.3),
)
_FIRSTS = [first for first, _, _ in _BLOCKS]
_HAN = 0x4E00
# The costs of a word that is one piece: with up to 3 letters, with up to 7, and with more. Each
# pair contains the cost in BPE and the cost in a unigram model.
_SHORT, _MEDIUM = 3, 7
_LOWER_CASE = ((1.07, 0.78), (1.24, 1.22), (1.0, 1.38))
_CAPITALIZED = ((1.16, 0.73), (1.38, 1.0), (1.73, 2.0))
# The extra costs of a long word without a space before it, as in a path, and of an accented letter.
_BARE, _ACCENT = 0.3, 0.39
_SPACE = 0.19  # the cost of a space before a word in a unigram model


Cost = tuple[float, float, float]  # tokens in byte-level BPE, in a unigram model, and in WordPiece


def estimate_tokens(text: str) -> int:
    """Return an upper bound on the number of tokens in a text.

    The bound held for every sample of 600 characters or more; docs/conversations.md says how tight
    it is. For exact numbers, pass your model's token counter to `ContextBuilder`.
    """
    bpe = unigram = pieces = 0.0
    for run in _RUN.findall(text):
        run_bpe, run_unigram, run_pieces = _run_cost(run)
        bpe += run_bpe
        unigram += run_unigram
        pieces += run_pieces
    return ceil(_MARGIN * max(bpe, unigram, pieces))


@lru_cache(maxsize=65_536)
def _run_cost(run: str) -> Cost:
    """Return the cost of a run of characters of the same class, including a space before it."""
    has_space = run[0] == " " and len(run) > 1
    body = run[1:] if has_space else run
    if body.isspace():
        return _blank_cost(body)
    if _IS_LATIN.match(body):
        return _latin_cost(body, has_space=has_space)
    space = _SPACE if has_space else 0.0
    if body[0] in "0123456789":
        triples = -(-len(body) // 3)
        bpe = 1.0 * triples + 0.2 * len(body) + 0.08
        return bpe, 1.03 * triples + 0.06 * len(body) + space, _count_pieces(body)
    bpe = unigram = 0.0
    for character in body:
        character_bpe, character_unigram = _character_cost(character)
        bpe += character_bpe
        unigram += character_unigram
    pieces = float(len(body))
    if body.isalpha():
        pieces = _count_pieces(body)
    return bpe, unigram + (2 * space), pieces


def _blank_cost(run: str) -> Cost:
    blanks = run.count(" ")
    other = 0
    if run[0] != "\n":
        other = len(run) - blanks
    bpe = 1.34 * other
    if blanks > 1:
        bpe += 0.6
    if blanks == 1:
        return bpe, 0.19, 0.0
    return bpe, 0.09 * max(0, blanks - 1), 0.0


def _latin_cost(word: str, *, has_space: bool) -> Cost:
    bpe, unigram, pieces = _word_cost(word)
    bare = 0.0
    if not has_space and pieces == 1 and len(word) > _MEDIUM:
        bare = _BARE
    return bpe + bare, unigram + _SPACE + bare, pieces


def _word_cost(word: str) -> Cost:
    """Return the cost of a word of Latin letters."""
    pieces = _count_pieces(word)
    accents = 0
    if not word.isascii():
        accents = sum(letter > "\x7f" for letter in word)
    if not pieces:
        return 1.53 * len(word) + _ACCENT * accents, 1.04 * len(word), 1.0
    if len(word) > 1 and word.isupper():
        return 0.37 * len(word) + _ACCENT * accents, 0.73 + 0.26 * len(word), pieces
    if pieces == 1:
        costs = _LOWER_CASE if word.islower() else _CAPITALIZED
        length_class = bisect_left((_SHORT, _MEDIUM), len(word))
        bpe, unigram = costs[length_class]
        return bpe + _ACCENT * accents, unigram, pieces
    capital = 0.0 if word.islower() else 1.0
    inner_capitals = len(_INNER_CAPITAL.findall(word))
    bpe = 0.63 * pieces + 0.18 * len(word) + 0.74 * capital + _ACCENT * accents
    unigram = 0.94 * pieces + 0.28 * capital + 0.29 * inner_capitals
    return bpe, unigram, pieces


def _character_cost(character: str) -> tuple[float, float]:
    """Return the cost, in BPE and in a unigram model, of a character that is neither a Latin letter
    nor a digit.
    """
    if character in _SMART:
        return 1.05, 1.05
    code = ord(character)
    first, bpe, unigram = _BLOCKS[bisect_right(_FIRSTS, code) - 1]
    return (_han_cost(character) if first == _HAN else bpe), unigram


def _han_cost(character: str) -> float:
    """Return the cost of a Han character in BPE.

    Common characters (the first level of GB 2312) take one or two tokens.
    """
    try:
        is_common = character.encode("gb2312")[0] <= 0xD7
    except UnicodeEncodeError:
        is_common = False
    return 1.02 if is_common else 2.75


def _count_pieces(word: str) -> float:
    """Return the number of WordPiece tokens in a word, or 0 if the word has a letter that is not in
    the vocabulary.
    """
    vocabulary = _vocabulary()
    plain = word.lower()
    if plain not in vocabulary:
        letters = unicodedata.normalize("NFD", plain)
        plain = "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")
    if plain in vocabulary:
        return 1.0
    if not plain or any(letter not in vocabulary for letter in plain):
        return 0.0
    count = start = 0
    while start < len(plain):
        prefix = "##" if start else ""
        ends = range(min(len(plain), start + _MAX_PIECE), start, -1)
        start = next((end for end in ends if prefix + plain[start:end] in vocabulary), start + 1)
        count += 1
    return float(count)


@cache
def _vocabulary() -> frozenset[str]:
    file = Path(__file__).parents[1] / "embedders" / "weights" / "all-MiniLM-L6-v2.vocab.txt"
    return frozenset(file.read_text(encoding="utf-8").split("\n"))
