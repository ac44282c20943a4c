"""How many tokens a text has at most, for any of the tokenizers that models have today. Pure.

Three kinds of tokenizers are bounded, and the largest bound counts: byte-level BPE as of GPT-4 and
GPT-4o, unigram models as of multilingual encoders and Gemma, and WordPiece. A word's pieces in the
packaged WordPiece vocabulary tell ordinary words from what no tokenizer has as a whole. What each
class of characters costs in the other two was fitted by linear programming: the least sum for which
no sample is counted too low, over 2,400 samples of 90 kinds: chats, prose in 50 languages, code,
JSON, logs, identifiers, base64, emoji, signs, and random letters of many scripts.
"""

import re
import unicodedata
from bisect import bisect_right
from functools import cache, lru_cache
from math import ceil
from pathlib import Path

_LATIN = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u1e00-\u1eff"
_RUN = re.compile(
    rf" ?(?:[{_LATIN}]+|[0-9]+|[^\W\d_]+|[^\w\s]+|_+|\w)|\n+|[^\S\n]+|[^\w]", re.DOTALL
)
_IS_LATIN = re.compile(f"[{_LATIN}]")
_INNER_CAPITAL = re.compile("[a-z][A-Z]")
_PIECE = 18  # letters; the vocabulary has no longer token
_MARGIN = 1.03
_SMART = frozenset("’‘“”…—–•")

# The first character of each block, and what a character costs in byte-level BPE and in unigram
# models.
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
    (0x2070, 2.7, 1.05),  # signs
    (0x2C00, 3.0, 1.3),
    (0x3000, 1.0, 1.0),  # punctuation of CJK
    (0x3040, 0.9, 0.6),  # kana
    (0x3100, 3.0, 1.3),
    (0x3400, 2.8, 1.3),  # rare Han
    (0x4E00, 1.05, 1.06),  # Han: see `_of_han`
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
_HAN, _HANGUL = 0x4E00, 0xAC00
# What a word costs that is one piece, by its letters: up to 3, up to 7, more; in lower case, and
# capitalized.
_SHORT, _MEDIUM = 3, 7
_WORD = ((1.07, 0.78), (1.24, 1.22), (1.0, 1.38))
# more for a long word without a space before it, as in a path: fewer of these are tokens as a whole
_BARE = 0.3
_CAPITALIZED = ((1.16, 0.73), (1.38, 1.0), (1.73, 2.0))


def estimate_tokens(text: str) -> int:
    """Return an upper bound of the tokens of a text.

    It held for every sample of 600 characters or more; docs/conversations.md says how close it is.
    If it must be exact, pass the counter of your model to `ContextBuilder`.
    """
    bpe = unigram = pieces = 0.0
    for run in _RUN.findall(text):
        in_bpe, in_unigram, in_pieces = _cost(run)
        bpe += in_bpe
        unigram += in_unigram
        pieces += in_pieces
    return ceil(_MARGIN * max(bpe, unigram, pieces))


@lru_cache(maxsize=65_536)
def _cost(run: str) -> tuple[float, float, float]:
    """Return what a run of characters of one class costs, with the space before it, in BPE,
    unigrams and WordPiece.
    """
    space = run[0] == " " and len(run) > 1
    body = run[1:] if space else run
    beside = 0.19 if space else 0.0
    if body.isspace():
        blanks = body.count(" ")
        odd = 0 if body[0] == "\n" else len(body) - blanks
        return (
            1.34 * odd + 0.6 * (blanks > 1),
            0.19 * (blanks == 1) + 0.09 * max(0, blanks - 1),
            0.0,
        )
    if _IS_LATIN.match(body):
        bpe, unigram, pieces = _of_word(body)
        bare = _BARE if not space and pieces == 1 and len(body) > _MEDIUM else 0.0
        return bpe + bare, unigram + (beside or 0.19) + bare, pieces
    if body[0] in "0123456789":
        triples = -(-len(body) // 3)
        return (
            1.0 * triples + 0.2 * len(body) + 0.08,
            1.03 * triples + 0.06 * len(body) + beside,
            _pieces(body),
        )
    bpe = unigram = 0.0
    for sign in body:
        in_bpe, in_unigram = _of_sign(sign)
        bpe, unigram = bpe + in_bpe, unigram + in_unigram
    return bpe, unigram + (2 * beside), _pieces(body) if body.isalpha() else float(len(body))


def _of_word(word: str) -> tuple[float, float, float]:
    """Return what a word of Latin letters costs."""
    pieces = _pieces(word)
    accents = 0 if word.isascii() else sum(letter > "\x7f" for letter in word)
    if not pieces:
        return 1.53 * len(word) + 0.39 * accents, 1.04 * len(word), 1.0
    if len(word) > 1 and word.isupper():
        return 0.37 * len(word) + 0.39 * accents, 0.73 + 0.26 * len(word), pieces
    if pieces == 1:
        known = _WORD if word.islower() else _CAPITALIZED
        bpe, unigram = known[(len(word) > _SHORT) + (len(word) > _MEDIUM)]
        return bpe + 0.39 * accents, unigram, pieces
    capital = 0.0 if word.islower() else 1.0
    inner = len(_INNER_CAPITAL.findall(word))
    return (
        0.63 * pieces + 0.18 * len(word) + 0.74 * capital + 0.39 * accents,
        0.94 * pieces + 0.28 * capital + 0.29 * inner,
        pieces,
    )


def _of_sign(sign: str) -> tuple[float, float]:
    if sign in _SMART:
        return 1.05, 1.05
    code = ord(sign)
    first, bpe, unigram = _BLOCKS[bisect_right(_FIRSTS, code) - 1]
    if first == _HAN:
        return _of_han(sign), unigram
    return bpe, unigram


def _of_han(sign: str) -> float:
    """Return what a Han character costs in BPE: the common ones, as of GB 2312's first level, are
    one token or two.
    """
    try:
        common = sign.encode("gb2312")[0] <= 0xD7
    except UnicodeEncodeError:
        common = False
    return 1.02 if common else 2.75


def _pieces(word: str) -> float:
    """Return into how many pieces WordPiece cuts a word; 0 if it does not know a letter of it."""
    vocabulary = _vocabulary()
    plain = word.lower()
    if plain not in vocabulary:
        plain = "".join(
            sign
            for sign in unicodedata.normalize("NFD", plain)
            if unicodedata.category(sign) != "Mn"
        )
    if plain in vocabulary:
        return 1.0
    if not plain or any(sign not in vocabulary for sign in plain):
        return 0.0
    count = start = 0
    while start < len(plain):
        lead = "##" if start else ""
        ends = range(min(len(plain), start + _PIECE), start, -1)
        start = next((end for end in ends if f"{lead}{plain[start:end]}" in vocabulary), start + 1)
        count += 1
    return float(count)


@cache
def _vocabulary() -> frozenset[str]:
    file = Path(__file__).parents[1] / "embedders" / "weights" / "all-MiniLM-L6-v2.vocab.txt"
    return frozenset(file.read_text(encoding="utf-8").split("\n"))
