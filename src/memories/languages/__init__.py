"""Words of other languages than English: which language a text may be in, and its words for times,
numbers, negation.

Each `.txt` beside this file describes a language, one line a kind of words; a new language is a new
file and its script or its name below. `_` stands for a space, `|` parts words for one thing, `*`
stands for any ending. Files are read when a text asks for them, and what is English asks for none.
Pure but for that.
"""

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

# Languages in Latin letters are told apart by their words; the others by their script.
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
_CYRILLIC = {"uk": "іїєґ", "ru": "ыэъё"}  # letters that the other one has not
_LETTERS = {
    "de": "ß",
    "es": "ñ¿¡",
    "pt": "ãõ",
    "pl": "ąęłńśźż",
    "tr": "ğış",
    "fi": ("ää", "yy", "yö", "öö", "äy"),
    "vi": "đơưạảấầậẩếềệểịọốồộổớờợởụủứừựữ",
}
_READ = 300  # characters that show the language of a text
_WORD = re.compile(r"[^\W\d_]+")
# No other language above has these, so a text with one of them, and no other letters than ours, is
# English at once.
_ENGLISH = frozenset(
    "the what which where when how who why did does this that with my our your you and".split()
)
_ALSO_ENGLISH = frozenset(
    "about after all also am an any are as at be because before been but by can could die do down for from get go had "
    "has have he her here him his if in into is it its just last me men mine must no not now of off on one or out over "
    "per same she so some tell than them then there they to up us was we week weekend were will won would yes yet "
    "yesterday today tomorrow next month year since until every each".split()
)


class _Folds(dict[int, str]):
    """What each character is folded to, for `str.translate`; worked out when it is first asked
    for.
    """

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        folded = sign
        if unicodedata.category(sign) == "Nd":
            folded = str(unicodedata.decimal(sign))
        elif 0x900 <= code < 0x980 and unicodedata.category(sign) in ("Mn", "Mc"):
            folded = chr(
                code + 0xB01
            )  # a letter, since `\w` has no marks, and these are parts of Hindi words
        elif code < 0x530 or 0x1E00 <= code < 0x2000:
            folded = "".join(
                part
                for part in unicodedata.normalize("NFD", sign)
                if not unicodedata.combining(part)
            )
        self[code] = folded
        return folded


_FOLDS = _Folds(
    {ord(one): other for one, other in zip("ıłøđßς’‘ʼأإآٱىة", "iłødßσ'''ااااية", strict=True)}
    | {
        ord("ł"): "l",
        ord("ß"): "ss",
        ord("ـ"): "",
        0x93C: "",
    }  # the last is a dot below letters of Devanagari
    | dict.fromkeys(
        (*range(0x591, 0x5C8), *range(0x64B, 0x653)), ""
    )  # points of Hebrew, vowels of Arabic
)


def folded(text: str) -> str:
    """Return a text in small letters without accents and points, with digits as 0 to 9, as entries
    are compared.
    """
    return (
        text.lower()
        if text.isascii()
        else unicodedata.normalize("NFKC", text).lower().translate(_FOLDS)
    )


@functools.lru_cache(256)
def of(text: str) -> Sequence[str]:
    """Return the languages that a text may be in, the likeliest first; none for English and for
    what is not known.

    Several in Latin letters are returned where their words speak as much for each; no language of
    another script is left out that the text has a letter of.
    """
    text = text[:_READ]
    text = (
        text if text.isascii() else unicodedata.normalize("NFKC", text)
    ).lower()  # decomposed Hangul is no syllable
    scripts = () if text.isascii() else _scripts(text)
    if scripts:
        return scripts
    ours = set(_WORD.findall(text))
    if text.isascii() and ours & _ENGLISH:
        return ()
    words = ours if text.isascii() else set(_WORD.findall(folded(text)))
    counts = {code: len(words & marks) for code, marks in _marks().items()}
    for code, letters in _LETTERS.items():
        counts[code] += 2 * any(letter in text for letter in letters)
    most = max(counts.values())
    accented = any("\xdf" <= sign < "\u0250" and sign not in "÷ſ" for sign in text)
    if most < 1 or most <= len(ours & (_ENGLISH | _ALSO_ENGLISH)) - accented:
        return ()
    return tuple(code for code, count in counts.items() if count == most)


def _scripts(text: str) -> Sequence[str]:
    found = [
        code
        for code, first, last in _SCRIPTS
        if any(first <= sign < last and sign.isalpha() for sign in text)
    ]
    if "ru" in found:
        found = [
            code for code, letters in _CYRILLIC.items() if any(letter in text for letter in letters)
        ] + found[1:]
        found = found if {*found} & {*_CYRILLIC} else ["ru", "uk", *found]
    if "zh" in found and "ja" not in found:
        return (*found, "ja")  # which may be written without kana
    return tuple(code for code in found if code != "zh")


@functools.cache
def words(code: str) -> Mapping[str, Sequence[str]]:
    """Return the entries of a language, folded, by the name of their line."""
    return _lines(folded(_read(code)))


def _read(code: str) -> str:
    return Path(__file__).with_name(f"{code}.txt").read_text(encoding="utf-8")


def _lines(text: str) -> Mapping[str, Sequence[str]]:
    return {
        name: tuple(entries.split())
        for name, entries in (line.split(":", 1) for line in text.splitlines())
    }


@functools.cache
def _marks() -> Mapping[str, frozenset[str]]:
    """Return the words by which each language in Latin letters is known; tools/latin_words.py
    writes them.
    """
    lines = Path(__file__).with_name("latin.txt").read_text(encoding="utf-8").splitlines()
    return {code: frozenset(known.split()) for code, known in (line.split(":") for line in lines)}


@functools.cache
def secret_words() -> Mapping[str, Sequence[str]]:
    """Return the words for passwords, keys and PINs, and those before their values, as in
    secrets.txt: "de is".
    """
    return _lines(unicodedata.normalize("NFKC", _read("secrets").lower()))


# Lines of single words, and what those say; of a word in several lines the last one counts.
_SAYS = {
    "articles": "the",
    "a": "a",
    "prepositions": "with",
    "places": "in",
    "happened": "was",
    "many": "like",
    "has": "has",
}
_SAYS |= {
    "using": "use",
    "prefer": "prefer",
    "single": "live",
    "is": "is",
    "not": "not",
    "always": "always",
}
_SAYS |= {"today": "today", "yesterday": "yesterday", "tomorrow": "tomorrow"}
MONTHS = (
    "january february march april may june july august september october november december".split()
)
WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
DAYS = frozenset((*MONTHS, *WEEKDAYS))


@functools.cache
def _senses(code: str) -> Mapping[str, str]:
    """Return what single words of a language say, as a word of English or a number; see `sense`."""
    senses: dict[str, str] = {}
    for known in (
        words(code),
        _lines(_read(code)),
    ):  # with accents too, since "a" and "à" are two words
        for line, english in _SAYS.items():
            senses |= {word: english for entry in known.get(line, ()) for word in entry.split("|")}
        for line, names in (
            ("weekdays", WEEKDAYS),
            ("months", MONTHS),
            ("numbers", [str(n) for n in range(13)]),
        ):
            for entry, english in zip(known[line], names, strict=True):
                senses |= {word.strip("~"): english for word in entry.split("|")}
    return senses


@functools.lru_cache(4096)
def sense(word: str, codes: Sequence[str]) -> str:
    """Return what a word says in the first of these languages that knows it; empty if none does.

    Returns:
        A number in figures, the English name of a month or a weekday, "not" for what denies, "live"
        for a verb with one object at a time, "is", "has", "use" and "prefer" for those, "was" for
        what helps to tell the past, "like" for what there are many of, "in" for prepositions of
        place and time, "with" for others, "the", "a", and "always".
    """
    spelled = word.lower()
    return next((found for code in codes if (found := _sense(spelled, code))), "")


def _sense(spelled: str, code: str) -> str:
    senses, told = _senses(code), folded(spelled)
    if found := senses.get(spelled) or senses.get(told):
        return found
    stems = (
        english
        for stem, english in senses.items()
        if stem.endswith("*") and told.startswith(stem[:-1])
    )
    glued = (
        told.removeprefix(prefix)
        for prefix in words(code).get("glued", ())
        if told.startswith(prefix)
    )
    return next(stems, "") or next((senses[rest] for rest in glued if senses.get(rest) in DAYS), "")


@functools.lru_cache(256)
def are_opposite(one: str, other: str, codes: Sequence[str]) -> bool:
    """Say whether two words are known opposites in one of these languages."""
    pair = {folded(one), folded(other)}
    return any(
        pair == {*entry.split("/")} for code in codes for entry in words(code).get("opposites", ())
    )


def numbers_in_figures(text: str) -> str:
    """Return a text with the numbers up to 99 that are written in Chinese signs in figures."""
    return re.sub(_HAN_NUMBER, lambda found: str(_han(found[0])), text)


_HAN_DIGITS = {sign: number for number, sign in enumerate("〇一二三四五六七八九")} | {
    "零": 0,
    "两": 2,
    "兩": 2,
}
_HAN_NUMBER = "(?:一|二|三|四|五|六|七|八|九)?十(?:一|二|三|四|五|六|七|八|九)?|〇|零|一|二|两|兩|三|四|五|六|七|八|九"


def _han(signs: str) -> int:
    tens, ten, ones = signs.rpartition("十")
    return (_HAN_DIGITS.get(tens, 1) * 10 if ten else 0) + _HAN_DIGITS.get(ones, 0)
