"""A long message is cut into parts that add up to the message, and each of which can be read by
itself.
"""

import random
import unicodedata

import pytest

from memories.errors import InvalidInput
from memories.guard.validate import content
from memories.write import turns
from memories.write.turns import PART_CHARACTERS, split
from tables import failures_of

SAMPLES = {
    "prose": "We sailed at nine. It was cold, and nobody spoke! Did you see it?\n\n"
    "The harbour was empty.\n",
    "code": "def run(self) -> None:\n    for each in self.parts:\n        yield each\n\n",
    "one word": "x",
    "chinese": "我们九点出发。天气很冷，没有人说话！你看见了吗？",
    "hindi": "हम नौ बजे निकले। ठंड थी और कोई नहीं बोला।",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈👍🏽",
    "accents": "e\u0301\u0323o\u0302",
    "crlf": "one line\r\n",
    "gaps": "a\n\n\n\n\n\n\n\n\n\n          ",
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("size", [PART_CHARACTERS + 1, 3 * PART_CHARACTERS, 123_456])
def test_parts_add_up_to_the_text(name: str, size: int) -> None:
    text = content((SAMPLES[name] * size)[:size], None)
    parts = split(text)
    assert "".join(parts) == text
    assert all(content(part) == part for part in parts)  # an import accepts each part unchanged
    assert max(map(len, parts)) <= 2 * PART_CHARACTERS
    assert len(parts) <= 2 * size // PART_CHARACTERS + 2


@pytest.mark.parametrize("seed", range(20))
def test_any_text_can_be_cut(seed: int) -> None:
    chance = random.Random(seed)
    signs = [
        "a",
        "b",
        " ",
        "\n",
        ".",
        "。",
        "\u0301",
        "\u200d",
        "\ufeff",
        "\r",
        "👍",
        "\u2028",
        "\t",
        "é",
    ]
    text = content(
        "a" + "".join(chance.choices(signs, [chance.random() ** 3 for _ in signs], k=30_000)), None
    )
    parts = split(text)
    assert "".join(parts) == text
    assert all(content(part) == part for part in parts)
    assert not any(unicodedata.combining(part[0]) for part in parts)


def test_a_part_ends_with_a_paragraph_or_a_sentence_if_possible() -> None:
    sentences = "It is cold. " * 1_000
    assert all(part.endswith(". ") for part in split(sentences))
    paragraphs = ("It is cold. " * 40 + "\n\n") * 50
    assert all(part.endswith("\n\n") for part in split(paragraphs))


def test_a_short_text_is_one_part() -> None:
    assert split("hello") == ["hello"]


def test_a_long_run_of_blanks_is_refused() -> None:
    with pytest.raises(InvalidInput, match="consecutive invisible characters"):
        split("a" + " " * 300_000 + "b")
    assert split("a" + " " * 90_000)[0].startswith("a ")


def test_a_part_that_is_one_very_long_character_still_ends() -> None:
    """All marks belong to the first character, but a part has to end."""
    text = "a" + "\u0301" * 2 * turns.PART_CHARACTERS
    at_least = turns.PART_CHARACTERS - turns._MIN_PART_CHARACTERS
    assert turns._end_of_part(text, 0, 0) == at_least


def test_a_part_never_ends_within_a_character() -> None:
    rows = [
        ("ab", 1, False), ("ab", 2, False), ("e\u0301", 1, True), ("\r\n", 1, True), ("\n\r", 1, False),
        ("👩\u200d👧", 1, True), ("👩\u200d👧", 2, True), ("x", 1, False),
    ]  # fmt: skip
    assert failures_of(rows, turns._is_within_character) == []
