"""Our WordPiece gives the same ids as the package `tokenizers`, for texts on this machine and for
random ones.
"""

import gettext
import itertools
import random
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from memories.embedders.minilm import (
    _NAME,
    _WEIGHTS,
    MAX_WINDOWS,
    OVERLAP,
    WINDOW_TOKENS,
    MiniLM,
    WordPiece,
)
from memories.languages.text import normal_form

VOCABULARY, CHARACTERS = (_WEIGHTS / f"{_NAME}.{end}" for end in ("vocab.txt", "characters.json"))
SOURCES = {
    ".py",
    ".pyi",
    ".js",
    ".css",
    ".html",
    ".md",
    ".rst",
    ".txt",
    ".json",
    ".csv",
    ".xml",
    ".c",
    ".h",
    ".toml",
}
FOLDERS = [*map(sysconfig.get_path, ("purelib", "stdlib")), "/usr/share", "/usr/lib/python3"]
# The code points of scripts, so that random text is not mostly unassigned or Chinese.
BLOCKS = (
    "20-7e 20-7e 0-ff a0-24f 250-36f 300-36f 370-5ff 600-8ff 900-dff e00-109f 10a0-11ff 1200-1fff "
    "2000-206f 2000-2fff "
    "3000-33ff 3400-9fff a000-abff ac00-d7ff e000-faff fb00-ffff 10000-11fff 12000-1bfff "
    "1d000-1dfff 1f000-1faff "
    "20000-323af e0000-e01ff 0-d7ff e000-10ffff"
).split()


@pytest.fixture(scope="module")
def ours() -> WordPiece:
    """Our tokenizer."""
    return WordPiece(VOCABULARY, CHARACTERS)


@pytest.fixture(scope="module")
def theirs() -> Tokenizer:
    """The tokenizer of the package `tokenizers` with the same vocabulary."""
    tokenizer: Tokenizer = BertWordPieceTokenizer.from_file(str(VOCABULARY))._tokenizer
    return tokenizer


def assert_same(ours: WordPiece, theirs: Tokenizer, lines: Iterable[str]) -> int:
    """Compare all lines; return their number."""
    count, rest = 0, iter(lines)
    while batch := list(itertools.islice(rest, 1000)):
        for line, expected in zip(
            batch, theirs.encode_batch(batch, add_special_tokens=False), strict=True
        ):
            assert list(ours.ids(line)) == expected.ids, ascii(line)
        count += len(batch)
    return count


def random_lines(seed: int) -> Iterator[str]:
    """Yield random lines endlessly, from one or more Unicode blocks, with words of all lengths and
    pieces of the vocabulary.
    """
    rng = random.Random(seed)
    blocks = [
        range(int(first, 16), int(last, 16) + 1)
        for first, last in (block.split("-") for block in BLOCKS)
    ]
    tokens = [
        token.removeprefix("##") for token in VOCABULARY.read_text(encoding="utf-8").split("\n")
    ]
    while True:
        mixed = rng.sample(blocks, rng.choice((1, 1, 2, 3)))
        words = []
        for _ in range(rng.randrange(1, 12)):
            length = rng.choice(
                (1, 2, 3, 5, 8, 8, 13, 99, 100, 101, 150) if rng.random() < 0.1 else (1, 2, 3, 5, 8)
            )
            word = "".join(chr(rng.choice(rng.choice(mixed))) for _ in range(length))
            words.append(
                word if rng.random() < 0.5 else "".join(rng.choices(tokens, k=rng.randrange(1, 6)))
            )
        yield rng.choice((" ", " ", "", "\u0301", "\u200d", "\u3000")).join(words)


def found_lines() -> Iterator[str]:
    """Yield the lines of the source files, web pages and translations on this machine, file by
    file.
    """
    files = (file for folder in FOLDERS for file in sorted(Path(folder).rglob("*")))
    for file in files:
        if file.suffix == ".mo" and file.is_file():
            with file.open("rb") as opened:
                try:
                    translations = gettext.GNUTranslations(opened)
                except (UnicodeDecodeError, OSError, LookupError, ValueError):
                    continue
            yield from (
                line for value in translations._catalog.values() for line in value.splitlines()
            )  # type: ignore[attr-defined]
        elif file.suffix in SOURCES and file.is_file() and file.stat().st_size < 4_000_000:
            yield from file.read_text(encoding="utf-8", errors="ignore").splitlines()


TOKENS = [
    ("", ""),
    ("The user prefers Python", "the user prefers python"),
    ("unaffable, ok?", "una ##ffa ##ble , ok ?"),
    ("naïve CAFÉ İstanbul ΑΣ", "naive cafe istanbul α ##σ"),
    ("中国abc", "中 国 abc"),
    ("한국어", "ᄒ ##ᅡ ##ᆫ ##ᄀ ##ᅮ ##ᆨ ##ᄋ ##ᅥ"),
    ("a\u200db \U0001f389 c\ud800", "ab [UNK] [UNK]"),
    ("x\x00y\tz\x0bz", "x ##y z ##z"),
    ("[CLS] [cls] a[SEP]b", "[CLS] [ cl ##s ] a [SEP] b"),
    ("b" * 100, "bb " + "##bb " * 49),
    ("b" * 101, "[UNK]"),
]


def test_tokenization_gives_the_expected_tokens(ours: WordPiece) -> None:
    found = {text: [ours.tokens[number] for number in ours.ids(text)] for text, _ in TOKENS}
    assert found == {text: tokens.split() for text, tokens in TOKENS}


def test_a_long_text_is_tokenized_only_as_far_as_needed(ours: WordPiece) -> None:
    assert list(itertools.islice(ours.ids("word " * 200_000), 3)) == [2773, 2773, 2773]


def test_ids_of_some_lines_equal_those_of_tokenizers(ours: WordPiece, theirs: Tokenizer) -> None:
    assert assert_same(ours, theirs, itertools.islice(random_lines(6), 500)) == 500


@pytest.mark.thorough
def test_ids_of_many_lines_equal_those_of_tokenizers(ours: WordPiece, theirs: Tokenizer) -> None:
    found = itertools.islice(found_lines(), 0, 200_000, 10)
    assert assert_same(ours, theirs, itertools.islice(random_lines(1), 10_000)) == 10_000
    assert assert_same(ours, theirs, itertools.islice(found, 10_000)) > 0


def test_vectors_equal_those_made_from_the_ids_of_tokenizers(theirs: Tokenizer) -> None:
    model = MiniLM()
    _, session = model._load()
    lines = list(itertools.islice(random_lines(5), 40))
    step = WINDOW_TOKENS - OVERLAP
    for text in [*lines[:15], " ".join(lines), "Deploys happen on Tuesdays, at 09:30."]:
        ids = theirs.encode(normal_form(text), add_special_tokens=False).ids
        starts = range(0, max(1, len(ids) - OVERLAP), step)[:MAX_WINDOWS]
        windows = [np.array([[101, *ids[at : at + WINDOW_TOKENS], 102]]) for at in starts]
        expected = np.concatenate(
            [session.run(None, {"input_ids": window})[0] for window in windows]
        )
        assert np.array_equal(model.embed(text), expected)


FAMILIARITY = [
    ("", 0.0),
    ("lunch on tuesdays", 1.0),
    ("the deploys", 0.5),
    ("unaffable", 0.0),
    ("xqzt kjwv", 0.0),
    ("the xqzt", 0.5),
    ("123 !", 0.0),
]


def test_familiarity_is_the_share_of_known_words() -> None:
    model = MiniLM()
    assert [(text, model.familiarity(text)) for text, _ in FAMILIARITY] == FAMILIARITY


@pytest.mark.slow
def test_ids_of_a_million_lines_equal_those_of_tokenizers(
    ours: WordPiece, theirs: Tokenizer
) -> None:
    made = assert_same(ours, theirs, itertools.islice(random_lines(2), 300_000))
    found = assert_same(ours, theirs, itertools.islice(found_lines(), 700_000))
    assert_same(ours, theirs, itertools.islice(random_lines(3), 1_000_000 - made - found))


@pytest.mark.slow
def test_every_character_is_read_as_in_tokenizers(ours: WordPiece, theirs: Tokenizer) -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    assert_same(ours, theirs, (f"a{character}a {character}" for character in characters))


@pytest.mark.slow
def test_a_very_long_line_is_read_as_in_tokenizers(ours: WordPiece, theirs: Tokenizer) -> None:
    lines = list(itertools.islice(random_lines(4), 20_000))
    assert_same(ours, theirs, [" ".join(lines), "".join(lines), re.sub(r"\s", "", "".join(lines))])
