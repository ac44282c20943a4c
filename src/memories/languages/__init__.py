"""Detects a text's language, and provides words for times, numbers and negation in twenty
languages.

Each `.txt` file in this folder describes a language, with one line for each kind of word. To add a
language, add a file, and list the language in `LATIN` or its script in `_SCRIPTS`. `_` stands for a
space, `|` separates words with the same meaning, and `*` stands for any ending. A file is read when
the first text in its language occurs. English has no file.
"""

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Languages in the Latin alphabet are recognized by their words, the others by their script.
LATIN = ("de", "fr", "es", "pt", "it", "nl", "pl", "tr", "fi", "vi")
_SCRIPTS = (
    ("ru", "\u0400", "\u0530"),
    ("el", "\u0370", "\u0400"),
    ("he", "\u0590", "\u0600"),
    ("ar", "\u0600", "\u0700"),
    ("hi", "\u0900", "\u0980"),
    ("th", "\u0e00", "\u0e80"),
    ("ko", "\uac00", "\ud7a4"),
    ("ja", "\u3040", "\u3100"),
    ("zh", "\u4e00", "\ua000"),
)
UNSPACED = frozenset(("th", "ko", "ja", "zh"))
# letters that occur only in this language
_CYRILLIC = {"uk": frozenset("іїєґ"), "ru": frozenset("ыэъё")}
_LETTERS = {
    "de": "ß",
    "es": "ñ¿¡",
    "pt": "ãõ",
    "pl": "ąęłńśźż",
    "tr": "ğış",
    "fi": ("ää", "yy", "yö", "öö", "äy"),
    "vi": "đơưạảấầậẩếềệểịọốồộổớờợởụủứừựữ",
}
_MAX_READ = 300  # number of characters that are read to detect a language
_WORD = re.compile(r"[^\W\d_]+")
# English words that don't exist in these languages, so an ASCII text with one of them is English.
_ENGLISH = frozenset(
    "the what which where when how who why did does this that with my our your you and".split()
)
_ALSO_ENGLISH = frozenset(
    "about after all also am an any are as at be because before been but by can could die do down "
    "for from get go had has have he her here him his if in into is it its just last me men mine "
    "must no not now of off on one or out over per same she so some tell than them then there they "
    "to up us was we week weekend were will won would yes yet yesterday today tomorrow next month "
    "year since until every each".split()
)
# Invisible characters that Unicode classifies as letters or marks: fillers, joiners, variation
# selectors.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u2800")
_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
_BLANK = _FILLERS | _SELECTORS
_UNSEEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


class _Folds(dict[int, str]):
    """The folded form of each character, for `str.translate`; computed when first needed."""

    def __missing__(self, code: int) -> str:
        self[code] = _fold_character(chr(code))
        return self[code]


def _fold_character(sign: str) -> str:
    code, category = ord(sign), unicodedata.category(sign)
    if category == "Nd":
        return str(unicodedata.decimal(sign))
    if 0x900 <= code < 0x980 and category in ("Mn", "Mc"):
        # A vowel mark in a Hindi word becomes a letter, because `\w` does not match marks.
        return chr(code + 0xB01)
    if code < 0x530 or 0x1E00 <= code < 0x2000:
        parts = unicodedata.normalize("NFD", sign)
        return "".join(part for part in parts if not unicodedata.combining(part))
    return sign


_FOLDS = _Folds(
    {ord(sign): folded for sign, folded in zip("ıøđς’‘ʼأإآٱىة", "iødσ'''ااااية", strict=True)}
)
_FOLDS[ord("ł")] = "l"
_FOLDS[ord("ß")] = "ss"
_FOLDS[ord("ـ")] = ""
_FOLDS[0x93C] = ""  # a dot below Devanagari letters
_FOLDS.update(dict.fromkeys(range(0x591, 0x5C8), ""))  # Hebrew vowel points and other marks
_FOLDS.update(dict.fromkeys(range(0x64B, 0x653), ""))  # Arabic vowel marks


def fold(text: str) -> str:
    """Return a text in lower case, without accents and vowel marks, and with digits as 0 to 9."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).lower().translate(_FOLDS)


@functools.lru_cache(256)
def detect(text: str) -> Sequence[str]:
    """Return the codes of the languages that a text may be in, the most likely first.

    The result is empty for English and for unknown languages. For the Latin alphabet, it has
    several languages if the text contains equally many words of each. For other scripts, it has
    every language whose letters occur in the text.
    """
    text = text[:_MAX_READ]
    if text.isascii():
        text = text.lower()
    else:
        # NFKC also composes Hangul into syllables, by which Korean is recognized.
        text = unicodedata.normalize("NFKC", text).lower()
        codes = _detect_scripts(text)
        if codes:
            return codes
    text_words = set(_WORD.findall(text))
    if text.isascii() and text_words & _ENGLISH:
        return ()
    folded_words = text_words
    if not text.isascii():
        folded_words = set(_WORD.findall(fold(text)))
    scores = {code: len(folded_words & marks) for code, marks in _marks().items()}
    for code, letters in _LETTERS.items():
        if any(letter in text for letter in letters):
            scores[code] += 2
    best = max(scores.values())
    english_score = len(text_words & (_ENGLISH | _ALSO_ENGLISH))
    if any("\xdf" <= sign < "\u0250" and sign not in "÷ſ" for sign in text):  # an accent
        english_score -= 1
    if best < 1 or best <= english_score:
        return ()
    return tuple(code for code, score in scores.items() if score == best)


def is_evident(text: str, code: str) -> bool:
    """Return whether a detected language is certain because of the text's script, or because of two
    words that aren't English.
    """
    marks = _marks().get(code)
    if marks is None:
        return True
    text_words = set(_WORD.findall(fold(text[:_MAX_READ])))
    return len(text_words & marks - _ALSO_ENGLISH) > 1


def _detect_scripts(text: str) -> Sequence[str]:
    letters = [sign for sign in text if sign.isalpha()]
    codes: list[str] = []
    for code, first, last in _SCRIPTS:
        if any(first <= letter < last for letter in letters):
            codes.append(code)
    if "ru" in codes:  # here, "ru" stands for all Cyrillic letters; it is first
        cyrillic = [code for code, marks in _CYRILLIC.items() if not marks.isdisjoint(text)]
        codes[:1] = cyrillic or ["ru", "uk"]
    if "zh" in codes:
        if "ja" in codes:
            codes.remove("zh")
        else:
            codes.append("ja")  # Japanese may be written without kana
    return tuple(codes)


@functools.cache
def words(code: str) -> Mapping[str, Sequence[str]]:
    """Return the folded entries in a language's file, keyed by the name of their line."""
    return _lines(fold(_read(code)))


def _read(code: str) -> str:
    return Path(__file__).with_name(f"{code}.txt").read_text(encoding="utf-8")


def _lines(text: str) -> Mapping[str, Sequence[str]]:
    lines: dict[str, Sequence[str]] = {}
    for line in text.splitlines():
        name, entries = line.split(":", 1)
        lines[name] = tuple(entries.split())
    return lines


@functools.cache
def _marks() -> Mapping[str, frozenset[str]]:
    """Return words that identify each language of `LATIN`; see tools/latin_words.py."""
    return {code: frozenset(entries) for code, entries in _lines(_read("latin")).items()}


@functools.cache
def secret_words() -> Mapping[str, Sequence[str]]:
    """Return the words for passwords, keys and PINs, and the words that lead to their values. They
    are keyed by the name of their line in `secrets.txt`, such as "de is".
    """
    return _lines(unicodedata.normalize("NFKC", _read("secrets").lower()))


@functools.lru_cache(256)
def announces_change(text: str) -> bool:
    """Return whether a text says that something has changed: now, no longer, instead of, replaced.

    The words are in `changes.txt`. They are only a hint, since "now" may occur in any text.
    """
    folded = fold(text[:_MAX_READ])
    codes = detect(text) or ("en",)
    return any(_change_words(code).search(folded) for code in codes)


@functools.cache
def _change_words(code: str) -> re.Pattern[str]:
    patterns = [
        re.escape(entry).replace("_", " ").replace(r"\*", r"\w*")
        for entry in words("changes")[code]
    ]
    either = "|".join(patterns)
    return re.compile(either if code in UNSPACED else rf"(?<!\w)(?:{either})(?!\w)")


# The sense of the words in each line of a file. If a word is in several lines, the last one counts.
_SENSES_OF_LINES = {
    "articles": "the",
    "a": "a",
    "prepositions": "with",
    "places": "in",
    "happened": "was",
    "many": "like",
    "has": "has",
    "using": "use",
    "prefer": "prefer",
    "single": "live",
    "is": "is",
    "not": "not",
    "always": "always",
    "every": "every",
    "today": "today",
    "yesterday": "yesterday",
    "tomorrow": "tomorrow",
}
MONTHS = (
    "january february march april may june july august september october november december".split()
)
WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
DAYS = frozenset((*MONTHS, *WEEKDAYS))
# The numbers, in the order in which the files list the words for them; some files omit the last.
NUMBERS = [str(number) for number in (*range(21), *range(30, 101, 10))]
_SERIES = {"weekdays": WEEKDAYS, "months": MONTHS, "numbers": NUMBERS}


@functools.cache
def _senses(code: str) -> Mapping[str, str]:
    """Return the senses of a language's single words; see `sense`."""
    senses: dict[str, str] = {}
    unfolded = _lines(_read(code))  # also with accents, since "a" and "à" are different words
    for lines in (words(code), unfolded):
        for line, english in _SENSES_OF_LINES.items():
            for entry in lines.get(line, ()):
                senses.update(dict.fromkeys(entry.split("|"), english))
        for line, names in _SERIES.items():
            for entry, english in zip(lines[line], names, strict=False):
                for word in entry.split("|"):
                    senses[word.strip("~")] = english
    return senses


@functools.lru_cache(4096)
def sense(word: str, codes: Sequence[str]) -> str:
    """Return a word's sense in the first of these languages that has the word; empty if none has
    it.

    Returns:
        A number in digits, the English name of a month or a weekday, or one of these: "not" for a
        negation; "live" for a verb that takes one object at a time; "like" for a verb or noun that
        may have many objects; "was" for a marker of the past; "in" for a preposition of place or
        time; "with" for any other preposition; and "is", "has", "use", "prefer", "always", "every",
        "the", "a", "today", "yesterday" and "tomorrow" for words with that meaning.
    """
    spelling = word.lower()
    for code in codes:
        result = _sense(spelling, code)
        if result:
            return result
    return ""


def _sense(spelling: str, code: str) -> str:
    senses, folded = _senses(code), fold(spelling)
    exact = senses.get(spelling) or senses.get(folded)
    if exact:
        return exact
    for stem, english in senses.items():
        if stem.endswith("*") and folded.startswith(stem[:-1]):
            return english
    for prefix in words(code).get("glued", ()):
        if folded.startswith(prefix):
            english = senses.get(folded.removeprefix(prefix), "")
            if english in DAYS:
                return english
    return ""


@functools.lru_cache(256)
def are_opposite(first: str, second: str, codes: Sequence[str]) -> bool:
    """Return whether two words are known opposites in one of these languages."""
    pair = {fold(first), fold(second)}
    for code in codes:
        for entry in words(code).get("opposites", ()):
            if pair == set(entry.split("/")):
                return True
    return False


def numbers_in_figures(text: str) -> str:
    """Return a text with its Chinese numerals up to 99 replaced by digits."""
    return re.sub(_HAN_NUMBER, lambda match: str(_read_han(match[0])), text)


_HAN_DIGITS = {sign: number for number, sign in enumerate("〇一二三四五六七八九")}
_HAN_DIGITS.update({"零": 0, "两": 2, "兩": 2})
_HAN_NUMBER = "[一二三四五六七八九]?十[一二三四五六七八九]?|[〇零一二两兩三四五六七八九]"


def _read_han(signs: str) -> int:
    tens, ten, ones = signs.rpartition("十")
    number = _HAN_DIGITS.get(ones, 0)
    if ten:
        number += 10 * _HAN_DIGITS.get(tens, 1)
    return number


# --- invisible characters


def is_unseen(sign: str) -> bool:
    """Return whether a character is invisible, reorders others, or controls a terminal."""
    return sign in _BLANK or unicodedata.category(sign) in _UNSEEN_CATEGORIES


def escape_code(sign: str) -> str:
    """Return the code of a character in braces, such as `\\u{200b}`."""
    return f"\\u{{{ord(sign):x}}}"


def make_visible(text: str, escape: Callable[[str], str], keep: str = "") -> str:
    """Return a text in which every character is visible.

    Args:
        text: The text.
        escape: Returns the replacement for an invisible character.
        keep: Characters that are kept, such as line breaks.
    """
    if text.isascii() and text.isprintable():
        return text
    signs = set(text).difference(keep)  # fast, since a text has few distinct characters
    escapes = {ord(sign): escape(sign) for sign in signs if is_unseen(sign)}
    return text.translate(escapes) if escapes else text
