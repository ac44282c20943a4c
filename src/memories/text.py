"""How words are seen: one normal form, and the same terms for what is stored and what is asked, in any script."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache

MAX_QUERY_TERMS = 64

_QUOTES = str.maketrans({"‘": "'", "’": "'", "‚": "'", "‛": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"'})

# Scripts written without spaces between words, and Hangul, whose endings are glued to the word.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana and Han
    "\uac00-\ud7a3"  # Hangul
)
# Marks are parts of words too, though `\w` leaves them out: accents, Hebrew points, Arabic vowels, the Indic blocks.
# These patterns are for text without unspaced scripts: with those in them, they would take 7 ms to compile.
_LETTER = r"(?:[^\W_]|[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])"
_WORD = re.compile(f"{_LETTER}+")
_COMPOUND = re.compile(rf"(?<!{_LETTER}){_LETTER}+(?:[.'/@:+_-]+{_LETTER}+)+")
_QUOTED = re.compile(r'"([^"]{3,200})"')
# Letters that the index can hold, for names that consist of signs: C++, C#.
_SIGNS = ((re.compile(r"(?<=\w)\+\+"), "plusplus "), (re.compile(r"(?<=\w)#(?!\w)"), "sharp "))

# Function words of English. They stay in the index, for phrases, and are left out of queries that have better words.
STOP_WORDS = frozenset(
    "a about above after again against all also am an and any are aren't as at be because been before being below "
    "between both but by can can't cannot could couldn't did didn't do does doesn't doing don't down during each else "
    "ever few for from further get gets give go goes going got had hadn't has hasn't have haven't having he her here "
    "hers herself him himself his how i if in into is isn't it its itself just kind let like made make makes many may "
    "me might more most much must my myself no nor not of off often on once one only or other ought our ours "
    "ourselves out over own please same shall she should shouldn't so some still such take tell than that the their "
    "theirs them themselves then there these they thing things this those through to too under until up upon us use "
    "used using very was wasn't we well were weren't what what's when where which while who who's whom whose why "
    "will with won't would wouldn't yes yet you your yours yourself yourselves".split()
)


def normal_form(text: str) -> str:
    """Return the form in which two texts are compared: NFKC, case folded, straight quotes, single spaces."""
    return cased_form(unicodedata.normalize("NFKC", text).casefold())


def cased_form(text: str) -> str:
    """Return the normal form but for the case of letters."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(_QUOTES).split())


def is_unspaced(text: str) -> bool:
    """Return whether a text has characters of a script that is written without spaces between words."""
    return not text.isascii() and bool(_unspaced_run().search(text))


def mark_raised(text: str) -> str:
    """Put a sign before raised and lowered digits and fractions, which NFKC makes plain digits: 10² is not 102."""
    if text.isascii():
        return text
    raised = ("<super>", "<sub>", "<fraction>")
    return "".join(f"^{c}" if unicodedata.decomposition(c).startswith(raised) else c for c in text)


def index_text(text: str) -> str:
    """Return the text that a word index takes: the normal form, with unspaced scripts cut into characters and pairs.

    A word index finds only whole words, and Chinese, Japanese, Thai or Korean text does not show where they end. So
    a run of such characters is indexed as its single characters and its overlapping pairs.
    """
    spelled = _spell_signs(normal_form(text))
    if spelled.isascii():
        return spelled
    return _space_emoji(_unspaced_run().sub(lambda run: f" {' '.join((*run[0], *_pairs(run[0])))} ", spelled))


def query_terms(text: str) -> list[str]:
    """Return the terms to look for, most telling forms included, at most `MAX_QUERY_TERMS`, each once.

    A term of several words (an identifier, a path, a quoted phrase) is to be matched as a phrase. One that ends in `*`
    is the beginning of a word: the index knows the endings of English only. Stop words are left out, unless there is
    nothing else.
    """
    spelled = _space_emoji(_spell_signs(normal_form(text)))
    terms = dict.fromkeys(term for term in _terms(spelled) if term not in STOP_WORDS)
    if not terms:
        terms = dict.fromkeys(_words(spelled))
    return list(terms)[:MAX_QUERY_TERMS]


def is_latin(text: str) -> bool:
    """Return whether at least half of a text's letters are Latin ones; so is a text without letters."""
    if text.isascii():
        return True
    letters = [sign for sign in text if sign.isalpha()]
    return 2 * sum(sign < "\u0250" or "\u1e00" <= sign <= "\u1eff" for sign in letters) >= len(letters)


def covered(text: str, words: Sequence[str]) -> float:
    """Return the share of these words that a text has, 0 to 1; other endings and other accents count as well."""
    indexed = _bare(index_text(text))
    held = f" {' '.join(_words(indexed))} {indexed}"
    beginnings = [_bare(word.rstrip("*"))[: max(4, len(word) - 3)] for word in words]
    return sum(f" {beginning}" in held for beginning in beginnings) / max(1, len(words))


def words_in(text: str) -> set[str]:
    """Return the words of a text without case and accents; of unspaced scripts, its characters and pairs."""
    indexed = _bare(index_text(text))
    found = set(_words(indexed))
    if not indexed.isascii():
        found.update(piece for piece in indexed.split() if is_unspaced(piece) or _is_emoji(piece[0]))
    return found


def _bare(text: str) -> str:
    """Return text without accents and other marks."""
    if text.isascii():
        return text
    return "".join(sign for sign in unicodedata.normalize("NFD", text) if unicodedata.category(sign) != "Mn")


def _terms(spelled: str) -> Iterator[str]:
    """Yield words, compounds, quoted phrases, pairs of unspaced scripts and emoji of a spelled-out normal form."""
    for phrase in _QUOTED.findall(spelled):
        words = _words(phrase)
        if len(words) > 1:
            yield " ".join(words)
    for compound in dict.fromkeys(_COMPOUND.findall(_spaced(spelled))):  # each once: a long text repeats itself
        if compound in STOP_WORDS:
            spelled = spelled.replace(compound, " ")
            continue
        words = [word for word in _words(compound) if word != "s"]
        if len(words) > 1:
            yield " ".join(words)
    yield from (_open_ended(word) for word in _words(spelled) if word != "s")
    for run in [] if spelled.isascii() else _unspaced_run().findall(spelled):
        yield from _pairs(run) if len(run) > 1 else run
    yield from (sign for sign in spelled if _is_emoji(sign))


@cache
def _unspaced_run() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}]+")


def _spaced(text: str) -> str:
    """Return text with spaces in place of unspaced scripts."""
    return text if text.isascii() else _unspaced_run().sub(" ", text)


def _words(text: str) -> list[str]:
    return _WORD.findall(_spaced(text))


def _open_ended(word: str) -> str:
    """Return a word of a script other than Latin as its beginning, so that other endings are found as well."""
    if len(word) < 4 or is_latin(word):
        return word
    return f"{word[: max(4, len(word) - 2)]}*"


def _pairs(run: str) -> Iterator[str]:
    return (run[i : i + 2] for i in range(len(run) - 1))


def _spell_signs(text: str) -> str:
    for pattern, spelling in _SIGNS:
        text = pattern.sub(spelling, text)
    return text


def _is_emoji(character: str) -> bool:
    return character > "\u2000" and unicodedata.category(character) == "So"


def _space_emoji(text: str) -> str:
    if text.isascii():
        return text
    return "".join(f" {character} " if _is_emoji(character) else character for character in text)
