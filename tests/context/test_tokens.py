"""The upper bound on tokens is compared with two real tokenizers: the packaged WordPiece, and the
unigram model of e5.
"""

import base64
import json
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memories import ContextBuilder
from memories.context.admission import Admission
from memories.context.tokens import estimate_tokens
from memories.embedders.e5 import Unigram
from memories.embedders.minilm import WordPiece

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "src" / "memories" / "embedders" / "weights"
E5 = ROOT / "packages" / "memoriae-e5" / "src" / "memories_e5"
DRAWN = random.Random(14)
WORDS = (ROOT / "docs" / "security.md").read_text().split()


def _draw_text(characters: str, length: int) -> str:
    """Return a random text of these characters."""
    return "".join(DRAWN.choice(characters) for _ in range(length))


def _chars(first: int, last: int, length: int) -> str:
    """Return a random text of a range of characters."""
    return _draw_text("".join(map(chr, range(first, last))), length)


def _sentences(text: str) -> str:
    """Return the sentences of a text in a random order, eight times."""
    parts = text.split(". ")
    return ". ".join(DRAWN.sample(parts, len(parts)) * 8)


KINDS = {
    "prose": lambda: " ".join(DRAWN.sample(WORDS, len(WORDS))),
    "license": (ROOT / "LICENSE").read_text,
    "python": (ROOT / "src" / "memories" / "memories.py").read_text,
    "markdown": (ROOT / "docs" / "cli.md").read_text,
    "json": (ROOT / "sbom.cdx.json").read_text,
    "compact JSON": lambda: json.dumps([{"id": n, "price": n / 7, "tags": ["a", "b"], "ok": True} for n in range(400)]),
    "toml": lambda: (ROOT / "pyproject.toml").read_text() * 2,
    "base64": lambda: base64.b64encode(DRAWN.randbytes(9_000)).decode(),
    "hexadecimal": lambda: DRAWN.randbytes(6_000).hex(),
    "UUIDs": lambda: " ".join(str(uuid.UUID(int=DRAWN.getrandbits(128))) for _ in range(300)),
    "numbers": lambda: " ".join(str(DRAWN.randrange(10 ** DRAWN.randint(1, 9))) for _ in range(2_000)),
    "paths": lambda: "\n".join(str(file.relative_to(ROOT)) for file in sorted((ROOT / "src").rglob("*.py"))) * 2,
    "random letters": lambda: _draw_text("abcdefghijklmnopqrstuvwxyz   ", 8_000),
    "characters": lambda: _draw_text("!@#$%^*()_+-=[]{};:,./?|~`'\"\\ ", 6_000),
    "capitals": lambda: " ".join(DRAWN.sample(WORDS, len(WORDS))).upper(),
    "German": lambda: _sentences(
        "Gestern habe ich mit meiner Schwester ein altes Fahrrad gekauft. Die Sitzung beginnt am Donnerstag um zehn. "
        "Unsere Datenbank läuft seit dem Umbau nur noch auf einem Rechner. Bitte vergiss nicht, den Schlüssel "
        "abzugeben. Wir haben uns für die günstigere Versicherung entschieden. Im Herbst wandern wir durch den "
        "Schwarzwald und übernachten in kleinen Gasthäusern. "
    ),
    "Russian": lambda: _sentences(
        "Вчера мы с сестрой купили старый велосипед. Собрание начинается в четверг в десять часов. Наша база данных "
        "работает только на одном сервере. Пожалуйста, не забудь вернуть ключ. Мы выбрали более дешёвую страховку. "
    ),
    "Chinese": lambda: "。".join(DRAWN.choices(
        ["昨天我和姐姐买了一辆旧自行车", "会议在星期四上午十点开始", "我们的数据库在服务器上运行"], k=300
    )),
    "Hindi": lambda: _sentences("कल मैंने अपनी बहन के साथ एक पुरानी साइकिल खरीदी. बैठक गुरुवार को दस बजे होती है. ") * 16,
    "emoji": lambda: _chars(0x1F600, 0x1F640, 3_000),
}  # fmt: skip
EVERYTHING = Admission(suspicious=True)  # base64 looks like hidden instructions
BUDGETS = (500, 4_000)
# Tested in the core tier: prose, the texts with the most tokens for their length, other scripts.
CORE = ("prose", "json", "base64", "Chinese", "emoji")
EACH = [pytest.param(kind, marks=() if kind in CORE else pytest.mark.thorough) for kind in KINDS]


@pytest.fixture(scope="module")
def tokenizers() -> list[Callable[[str], int]]:
    """Two real tokenizers, as functions that count tokens."""
    pieces = WordPiece(
        WEIGHTS / "all-MiniLM-L6-v2.vocab.txt", WEIGHTS / "all-MiniLM-L6-v2.characters.json"
    )
    unigram = Unigram(E5, "multilingual-e5-small")
    return [
        lambda text: sum(1 for _ in pieces.ids(text)),
        lambda text: sum(1 for _ in unigram.ids(text)),
    ]


class Talk:
    """A gateway of one conversation, which consists of pieces of a text; recalls the first ones."""

    def __init__(self, text: str) -> None:
        self._texts = list(_pieces(text, 240))

    def tail_history(self, conversation: str, n: int) -> list[dict[str, Any]]:
        return [self._turn(at) for at in range(len(self._texts))][-n:]

    def recall_memory(self, *_: Any) -> list[Any]:
        return []

    def recall_history(self, query: str, k: int, conversation: str | None) -> list[dict[str, Any]]:
        return [self._turn(at) for at in range(len(self._texts))][:k]

    def read_history(self, conversation: str, start: int, n: int) -> list[dict[str, Any]]:
        return [self._turn(at) for at in range(len(self._texts))][start : start + n]

    def _turn(self, at: int) -> dict[str, Any]:
        known = {
            "conversation_id": "c",
            "turn_index": at,
            "role": "user",
            "ts": f"2024-05-{1 + at // 40:02}T10:00:00Z",
        }
        return {"id": f"c#{at}", "text": self._texts[at], "metadata": known}


def _pieces(text: str, size: int) -> Iterator[str]:
    """Yield the pieces of a text that are not blank."""
    yield from (
        text[at : at + size] for at in range(0, len(text), size) if text[at : at + size].strip()
    )


@pytest.mark.parametrize("kind", EACH)
def test_a_context_is_within_its_budget_and_uses_it(
    kind: str, tokenizers: list[Callable[[str], int]]
) -> None:
    gateway = Talk(KINDS[kind]() * 3)
    for budget in BUDGETS:
        builder = ContextBuilder(gateway, token_budget=budget, admission=EVERYTHING)  # type: ignore[arg-type]
        context = builder.build_context("c", "what now?")
        prompt = builder.format_for_prompt(context)
        assert max(count(prompt) for count in tokenizers) <= budget
        assert context["metadata"]["token_counts"]["total"] >= 0.85 * budget


@pytest.mark.parametrize("kind", EACH)
def test_the_bound_is_never_below_the_real_count(
    kind: str, tokenizers: list[Callable[[str], int]]
) -> None:
    text = KINDS[kind]()
    for size in (600, 1_500, 4_000):
        for part in list(_pieces(text, size))[:6]:
            if len(part) >= 600:
                assert estimate_tokens(part) >= max(count(part) for count in tokenizers)


@pytest.mark.parametrize(
    "kind",
    [
        *("prose", "json", "base64", "Chinese"),
        *(
            pytest.param(kind, marks=pytest.mark.thorough)
            for kind in ("license", "UUIDs", "numbers", "Russian", "paths")
        ),
    ],
)
def test_the_bound_is_close_to_the_real_count(
    kind: str, tokenizers: list[Callable[[str], int]]
) -> None:
    """Texts of other kinds have more tokens with tokenizers other than these two."""
    text = KINDS[kind]()[:6_000]
    assert max(count(text) for count in tokenizers) >= 0.85 * estimate_tokens(text)


@pytest.mark.parametrize(
    ("text", "apart", "together"),
    [
        ("gate", 146, 140),
        ("Gate", 143, 140),
        ("the", 111, 121),
        ("The", 120, 127),
        ("internationalization", 501, 694),
        ("Kubernetes", 522, 446),
        ("Étude", 339, 264),
        ("résumé", 209, 321),
        ("KUBERNETES", 412, 412),
        ("ÉCLAIR", 309, 269),
        ("Haltestelle", 475, 400),
        ("Unbefugter", 587, 515),
        ("camelCaseName", 512, 501),
        ("ŁÓDŹ", 273, 307),
        ("ɓɗɠ", 618, 618),
        ("1234567", 462, 412),
        ("“", 148, 109),
        ("日", 149, 110),
        ("龘", 284, 284),
        ("😀", 300, 300),
        ("привет", 618, 618),
        ("x\n\n\ny", 221, 214),
        ("a\t\tb", 497, 388),
        ("_", 151, 112),
    ],
)
def test_each_class_of_characters_has_its_own_cost(text: str, apart: int, together: int) -> None:
    """The costs were fitted together: changing one makes the bound too low or too high."""
    assert (estimate_tokens(f"{text} " * 100), estimate_tokens(text * 100)) == (apart, together)


def test_an_empty_text_has_no_tokens() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens(" ") <= 1
