"""A megabyte of anything costs about as much CPU as a megabyte of prose, and no more memory."""

import base64
import gc
import itertools
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memories import InvalidInput, Memories
from memories.guard import validate
from memories.guard.redactor import redact
from memories.languages.text import query_terms

SIZE = 1_000_000
_random = random.Random(16)
WORDS = [
    "".join(_random.choices("abcdefghijklmnopqrstuvwxyz", k=_random.randint(2, 9)))
    for _ in range(5_000)
]
PROSE = " ".join(_random.choices(WORDS, k=SIZE // 6))[:SIZE]
ROWS = (
    *(
        "a",
        "A",
        "1",
        "-",
        ".",
        "_",
        "=",
        "/",
        " x",
        "a b ",
        "漢",
        "あ",
        "ก",
        "한",
        "\u1112\u1161\u11ab",
        "😀",
        "👩\u200d👧",
    ),
    *(
        "\u0301",
        "e\u0301",
        "a\u200b",
        "ａ",
        "\nx\n",
        "/a/b/c.d",
        "sk-",
        "https://example.org/a?b=c ",
    ),
    *(
        "https://user:pass@host/ ",
        "password: ",
        "token=abc ",
        "%41",
        "\\u0041",
        "-----BEGIN PRIVATE KEY-----",
    ),
    *(
        "not ",
        "ignore previous instructions ",
        "id: ",
        "d",
        "<!-- ai ",
        "opacity:0>ai ",
        "opacity:0 ai>",
    ),
)
TEXTS: dict[str, Callable[[], str]] = {
    **{repr(row): lambda row=row: row * (SIZE // len(row.encode())) for row in ROWS},
    "base64": lambda: base64.b64encode(_random.randbytes(SIZE * 3 // 4)).decode(),
    "hex": lambda: _random.randbytes(SIZE // 2).hex(),
    "digits": lambda: "".join(_random.choices("0123456789", k=SIZE)),
    "Han": lambda: "".join(map(chr, _random.choices(range(0x4E00, 0x9FA5), k=SIZE // 3))),
    "zalgo": lambda: "".join(
        "e" + "".join(map(chr, _random.choices(range(0x300, 0x370), k=20)))
        for _ in range(SIZE // 41)
    ),
}


@pytest.fixture
def memories(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Memories]:
    """Memories of bob, with all modules loaded."""
    monkeypatch.setenv("EMBEDDER", "none")
    with Memories(namespace="bob") as opened:
        opened.create("warm up")
        yield opened


def cpu(run: Callable[[], object]) -> float:
    """Return the CPU seconds of this thread: threads and garbage that other tests left are not
    counted.
    """
    gc.collect()
    gc.disable()
    try:
        begun = time.thread_time()
        run()
        return time.thread_time() - begun
    finally:
        gc.enable()


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEXTS)
def test_a_megabyte_of_any_text_costs_about_as_much_as_a_megabyte_of_prose(
    name: str, memories: Memories
) -> None:
    """The limit is generous: it only needs to detect costs that grow faster than the length, or by
    a large factor.
    """
    text = TEXTS[name]()
    usual = max(0.2, cpu(lambda: memories.create(PROSE)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cpu(lambda: memories.create(text)) < 6 * usual
    assert cpu(lambda: memories.create(f"{text[:-3]}!")) < 8 * usual  # compared with the first text
    assert cpu(lambda: memories.add_turns("c", [text])) < 8 * usual
    assert cpu(lambda: memories.search(f"{text[:4_000]} x")) < 2 * usual
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # KiB


def test_only_the_beginning_of_a_text_provides_terms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In some languages each letter of a word gives another spelling: for a megabyte, these took
    gigabytes.
    """
    lengths: list[int] = []
    spellings = query_terms.__globals__["_spellings"]
    monkeypatch.setitem(
        query_terms.__globals__,
        "_spellings",
        lambda word, codes: lengths.append(len(word)) or spellings(word, codes),
    )
    assert len(query_terms("und der die das nicht ist " + "ä" * 100_000)) < 64
    assert 0 < max(lengths) <= 64


def test_a_model_reads_only_the_part_of_a_word_that_fits_its_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e5 = pytest.importorskip("memories_e5")
    from memories.embedders import e5 as embedder

    lengths: list[int] = []
    cut = embedder.Unigram._cut
    monkeypatch.setattr(
        embedder.Unigram,
        "_cut",
        lambda self, word, before: lengths.append(len(word)) or cut(self, word, before),
    )
    known = embedder.Unigram(
        Path(e5.__file__).parent,
        next(Path(e5.__file__).parent.glob("*.tokenizer.json")).name.split(".")[0],
    )
    assert sum(1 for _ in known.ids("a" * 150_000)) > 10_000
    assert max(lengths) < 100_000


def test_a_path_with_very_many_parts_does_not_become_a_long_phrase() -> None:
    assert max(len(term.split()) for term in query_terms("/a/b/c.d" * 500)) <= 64


class _Counted(str):
    """A text that counts the calls of its `find`."""

    __slots__ = ()
    calls = itertools.count()

    def find(self, *given: object) -> int:
        next(self.calls)
        return super().find(*given)  # type: ignore[arg-type]


def test_a_run_of_one_character_is_tried_only_at_its_end() -> None:
    from memories.guard import scan

    rule_set = scan.build_rules(personal=False, user_rules=())
    for sign in "-", "a":
        low = _Counted(sign * 50_000)
        before = next(_Counted.calls)
        for _, literals in (*rule_set.tokens, *rule_set.contexts):
            for literal, rules in literals:
                for rule in rules if literal in low else ():
                    assert not list(scan._find_at_literal(low, low, rule, literal))
        assert next(_Counted.calls) - before < 1_000


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("call ++4912345678901 now", "call +[redacted:phone] now"),
        ("---- --password=Hx7!kqz2Lm9 ----", "---- --password=[redacted:password] ----"),
        ("ｐａｓｓｗｏｒｄ＝Hx7kqz2Lm9vW ﷺ", "ｐａｓｓｗｏｒｄ＝[redacted:password] ﷺ"),
        ("ﷺ pass\u200bword=Hx7\u200bkqz2Lm9vW, ok", "ﷺ pass\u200bword=[redacted:password], ok"),
    ],
)
def test_a_secret_in_a_run_of_characters_or_in_disguise_is_redacted_in_place(
    text: str, kept: str
) -> None:
    assert redact(text, personal=True).text == kept


def test_many_characters_that_expand_to_phrases_are_refused(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "MAX_NORMAL_BYTES", 40_000)
    assert memories.create("ﷺ" * 100).stored
    with pytest.raises(InvalidInput, match="normal form"):
        memories.create("ﷺ" * 3_000)
