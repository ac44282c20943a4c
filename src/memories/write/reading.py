"""How a text is read for comparing: its words as they were written, and as they are understood."""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memories.text import mark_raised
from memories.write.vocabulary import (
    ACRONYMS,
    AUXILIARY,
    BASE,
    BOUNDARIES,
    DATES,
    DETERMINERS,
    NAMING,
    NUMBERS,
    PARTICIPLES,
    PHRASE,
    SAME_FORMS,
    SOFT,
    WEEKDAYS,
    WHOLE,
)

_LONGEST_PHRASE = max(len(phrase) for phrase in PHRASE)
_OPENING, _CLOSING = "([{\"'*«", ".,;:!)]}\"'*…»。、!,:;」』「『"
_OPENING, _CLOSING = "([{\"'*«", ".,;:!)]}\"'*…»。、!,:;」』「『"
_IDENTIFIER = re.compile(r"[\d/\\_@=<>(){}\[\]$€£%^&|~+#`]|\w[.:]\w|^-|^\.\w")
CASED = re.compile(r"[/\\_]|[^\W\d][.:]\w")
_QUANTITY = re.compile(r"(\d+(?:[.,]\d+)?)(GiB|GB|MiB|MB|KB|TB|ms|s|h|min|am|pm|AM|PM|kg|km|%)")
_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "„": '"'})
_DASH = "\ue000"  # stands for the dash that joins two clauses
_ENDING = re.compile(r"(?<=[\w)\]}\"'»”」』+#%`])[.!。…]+$")
_LONGEST = 64  # letters of what ends a sentence; the pattern takes the square of it
_SENTENCE = re.compile(r"(?!(?:\w\.){2,}|(?:etc|vs|cf|no|dr|mr|mrs|approx)\.).*\w\W*[.!?…。]\W*", re.I)
_CLOCK = re.compile(r"0(\d:[0-5]\d(?::[0-5]\d)?(?:am|pm)?)", re.I)
_SHORT_FORMS = (
    (re.compile(r"\bcan't\b|\bcannot\b", re.I), "can not"),
    (re.compile(r"\bwon't\b", re.I), "will not"),
    (re.compile(r"n't\b", re.I), " not"),
    (re.compile(r"\b(it|that|he|she|there|what)'s\b", re.I), r"\1 is"),
    (re.compile(r"'re\b", re.I), " are"),
    (re.compile(r"'ve\b", re.I), " have"),
    (re.compile(r"'ll\b", re.I), " will"),
    (re.compile(r"'m\b", re.I), " am"),
    (re.compile(r"'s\b", re.I), " 's"),
    (re.compile(r"(?<=s)'(?=\s)"), " 's"),
    (re.compile(r"(?<=\S)\s*—\s*(?=\S)|(?<=\S)\s+–\s+(?=\S)"), f" {_DASH} "),
)


class Word(NamedTuple):
    """A word as it is compared (`key`) and as it was written; an exact one has no inflections and no synonyms."""

    key: str
    shown: str
    exact: bool = False
    opens: bool = False  # a sentence, so that the case of its first letter says nothing
    form: str = "plain"  # "past", "passive", or "adjective" for other participles


@functools.lru_cache(maxsize=8)  # a new text is compared with many
def bare(text: str) -> str:
    """Return a text as it is compared for sameness: not case folded, which makes "ß" "ss"."""
    spelled = unicodedata.normalize("NFKC", text).translate(_STRAIGHT).lower()
    return _ENDING.sub("", " ".join(spelled.split()))


@functools.lru_cache(maxsize=8)
def read(text: str) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return the words of a text as they were written, and as they are understood; kept, since one is judged often."""
    cut = _surface(text)
    return tuple(cut), tuple(_understood(cut))


def is_shouted(words: Sequence[Word]) -> bool:
    """Say whether a text is three or more words in capitals."""
    told = [word.shown for word in words if word.shown[:1].isalpha()]
    return len(told) > 2 and " ".join(told).isupper()


def _surface(text: str) -> list[Word]:
    """Cut a text into words, as they were written."""
    spelled = unicodedata.normalize("NFKC", mark_raised(text)).translate(_STRAIGHT)
    for pattern, replacement in _SHORT_FORMS:
        spelled = pattern.sub(replacement, spelled)
    cut: list[Word] = []
    opens = True
    for chunk in spelled.split():
        for word in _cut(chunk):
            cut.append(word._replace(opens=opens))
            opens = False
        opens = bool(_SENTENCE.fullmatch(chunk[-_LONGEST:]))
    return [word._replace(opens=False) for word in cut] if len(cut) == 1 else cut


def _understood(cut: list[Word]) -> list[Word]:
    """Replace phrases and number words, and tell names and the forms of verbs."""
    return _with_forms(_with_names(_with_every(_with_phrases(_with_acronyms(cut)))))


def _cut(chunk: str) -> Iterator[Word]:
    """Yield the words of what stands between two spaces; a comma or stop behind it is a word of its own."""
    if chunk in {"'s", _DASH}:
        yield Word("'s", chunk) if chunk == "'s" else Word(",", ",")
        return
    if not any(sign.isalnum() for sign in chunk):
        sign = chunk.strip("`\"'") or chunk
        yield Word(f"@{sign}", sign, exact=True)
        return
    core = chunk.lstrip(_OPENING)
    bare = core.rstrip(_CLOSING)
    if "(" in bare and core.startswith(f"{bare})"):
        bare += ")"
    question = bare.endswith("?")
    bare = bare.rstrip("?").rstrip(_CLOSING) if question else bare
    if quantity := _QUANTITY.fullmatch(bare):
        yield from (Word(part.lower(), part, exact=True) for part in quantity.groups())
    elif _IDENTIFIER.search(bare):
        clock = _CLOCK.fullmatch(bare.strip("`"))
        name = clock[1] if clock else bare.strip("`")
        yield Word(name if CASED.search(name) else name.lower(), name, exact=True)
    else:
        yield from (_plain(part) for part in re.split("[-–—]", bare) if part)
    if question:
        yield Word("?", "?", exact=True)
    if chunk[-1] in ",;:.)":
        yield Word("." if chunk[-1] == "." else ",", ",")


def _plain(part: str) -> Word:
    folded = part.lower()
    return Word(NUMBERS.get(folded, folded), part, exact=folded in NUMBERS)


def _with_acronyms(words: list[Word]) -> list[Word]:
    """Keep US or IT apart from the little words that they look like, `3 am` from `I am`, `turn it on` from `on it`."""
    shouted = is_shouted(words)
    kept = []
    for i, word in enumerate(words):
        after = words[i + 1].key if i + 1 < len(words) else "."
        if word.key == "am" and i and words[i - 1].shown[0].isdigit():
            word = word._replace(key="a.m.", exact=True)  # noqa: PLW2901
        elif word.key in SOFT and i and (after in SOFT or after in BOUNDARIES):
            word = word._replace(key=f"@{word.key}", exact=True)  # noqa: PLW2901
        elif not shouted and len(word.shown) > 1 and word.shown.isupper() and word.key in ACRONYMS:
            word = word._replace(key=word.shown, exact=True)  # noqa: PLW2901
        kept.append(word)
    return kept


def _with_phrases(words: list[Word]) -> list[Word]:
    """Replace known phrases, the longest first."""
    replaced: list[Word] = []
    at = 0
    while at < len(words):
        for length in range(min(_LONGEST_PHRASE, len(words) - at), 0, -1):
            phrase = words[at : at + length]
            if meaning := PHRASE.get(tuple(word.key for word in phrase)):
                shown = " ".join(word.shown for word in phrase)
                replaced += (Word(key, shown, exact=True) for key in meaning.split())
                break
        else:
            length = 1
            replaced.append(words[at])
        at += length
    return replaced


def _with_every(words: list[Word]) -> list[Word]:
    """Say `every` wherever it counts: before times and numbers, and for plural weekdays."""
    kept: list[Word] = []
    for word in words:
        every = bool(kept) and kept[-1].key in {"every", "each"}
        plural = word.key[:-1] in WEEKDAYS and word.key.endswith("s")
        if plural:
            word = word._replace(key=word.key[:-1])  # noqa: PLW2901
        if every and (word.key[:1].isdigit() or word.key in DATES or word.key.rstrip("s") in DATES):
            kept[-1] = Word("@every", "every", exact=True)
        elif plural:
            kept.append(Word("@every", word.shown, exact=True))
        kept.append(word)
    return kept


def _with_names(words: list[Word]) -> list[Word]:
    """Mark as exact what may be a name: capitalised within a sentence, or beside a word that announces a name."""
    marked = []
    for i, word in enumerate(words):
        before, after = words[i - 1].key if i else ".", words[i + 1].key if i + 1 < len(words) else ""
        capital = word.shown[:1].isupper() and before != "." and word.key not in WEEKDAYS
        marked.append(word._replace(exact=True) if capital or {before, after} & NAMING else word)
    return marked


def _with_forms(words: list[Word]) -> list[Word]:
    """Tell passives, simple pasts and participles used as adjectives from the other forms of a verb."""
    return [word._replace(form=_form(word.key, words[max(0, i - 2) : i])) for i, word in enumerate(words)]


def _form(key: str, before: Sequence[Word]) -> str:
    previous = before[-1].key if before else ""
    if previous in {"not", "automatically", "also", "always", "currently", "now"} and len(before) > 1:
        previous = before[-2].key
    participle = key in PARTICIPLES or (key.endswith("ed") and len(key) > 3 and key not in WHOLE)
    if participle and previous in AUXILIARY:
        return "passive"
    if not (participle or key in BASE) or key in SAME_FORMS:
        return "plain"
    return "adjective" if previous in DETERMINERS else "past"
