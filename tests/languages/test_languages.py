"""The language of a text, and the senses of its words."""

import importlib.util
import json
from pathlib import Path

from memories import languages

ROOT = Path(__file__).parents[2]
LINES = (
    "stop not numbers months weekdays today yesterday before tomorrow after last this "
    "next day week weekend month "
    "year ago past ahead recently every when single many a few"
).split()
CODES = sorted({*languages.LATIN, "ru", "uk", "el", "he", "ar", "hi", "th", "ko", "ja", "zh"})


def test_a_language_has_every_line() -> None:
    missing = {code: set(LINES) - languages.words(code).keys() for code in CODES}
    assert {code: lines for code, lines in missing.items() if lines} == {}
    counts = {
        code: tuple(len(languages.words(code)[line]) for line in ("months", "weekdays", "numbers"))
        for code in CODES
    }
    assert {
        code: count
        for code, count in counts.items()
        if count[:2] != (12, 7) or count[2] not in (13, 29)
    } == {}


def test_the_list_of_latin_words_is_up_to_date() -> None:
    path = ROOT / "tools/latin_words.py"
    spec = importlib.util.spec_from_file_location("latin_words", path)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    written = tool.FILE.read_text(encoding="utf-8").splitlines()
    assert written == [f"{code}: {' '.join(tool.marks(code))}" for code in languages.LATIN]


CYRILLIC: list[tuple[str, tuple[str, ...]]] = [
    ("Де ключі від гаража?", ("uk",)),
    ("Где ключи, которые были утром?", ("ru",)),
    ("вчора", ("ru", "uk")),
    ("Анна 日本 і", ("uk", "zh", "ja")),
]


def test_ukrainian_and_russian_share_a_script() -> None:
    assert [(text, languages.detect(text)) for text, _ in CYRILLIC] == CYRILLIC


def test_languages_are_detected() -> None:
    rows = [
        json.loads(line)
        for line in (ROOT / "bench/languages.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    right = 0
    for row in rows:
        codes = languages.detect(f"{row['memory']} {row['question']}")
        right += codes[:1] == (() if row["language"] == "en" else (row["language"],))
        if row["language"] == "en":
            assert codes == ()
    assert right >= 0.97 * len(rows)


ENGLISH = [
    "deploy port",
    "no mayo please",
    "war in the east",
    "User likes tea",
    "dec 25th, 2023",
    "Café “Paris” – open",
    "git commit -m fix",
    "in auguſt",
    "Die hard is a film",
    "",
    "8080",
    "🎉",
]


def test_english_and_code_are_not_taken_for_another_language() -> None:
    assert [text for text in ENGLISH if languages.detect(text)] == []


def test_words_are_folded() -> None:
    assert (
        languages.fold("Müller ŁÓDŹ ДЁМ İstanbul Straße أحمد ٣")
        == "muller lodz дем istanbul strasse احمد 3"
    )


SENSES = [
    ("drei", "de", "3"),
    ("Dienstag", "de", "tuesday"),
    ("nicht", "de", "not"),
    ("ביוני", "he", "june"),
    ("à", "fr", "in"),
    ("a", "fr", "has"),
    ("живёт", "ru", "live"),
    ("дев’ять", "uk", "9"),
    ("девʼять", "uk", "9"),
    ("немає", "uk", "not"),
    ("Haus", "de", ""),
    ("μαΐου", "el", "may"),
]


def test_words_have_the_expected_sense() -> None:
    assert [(word, code, languages.sense(word, (code,))) for word, code, _ in SENSES] == SENSES


def test_chinese_numerals_are_read() -> None:
    assert languages.numbers_in_figures("二十三个人, 十二月, 两次, 九") == "23个人, 12月, 2次, 9"
