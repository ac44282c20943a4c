"""Secrets named in a sentence, in any language in languages/secrets.txt: "Das Passwort ist …",
"暗証番号は…です".

A secret is a value next to a word such as "password". After "is" or a colon, a simple value counts;
otherwise the value must look random.
"""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from memories import languages
from memories.guard import values
from memories.guard.locators import CODE
from memories.guard.rules import SecretSpan

_REACH = 80  # maximum number of characters between a word and its value
# maximum number of words between a secret and the word that names it, if the word comes later
_WORDS_APART = 5
# A Latin word of at most this many letters counts only on its own: not "pin" in "shopping".
_SHORT = 4
# the ending of a word, as in "salasanamme"; a longer one makes a different word
_ENDING = r"[^\W\d_]{0,6}(?![^\W_])"
_LONGER = r"[^\W\d]|-[a-z]"  # the word continues, as in "Passwort-Manager"
# a value without a digit or inner capital is a plain word
_SIGN = r"[0-9A-Z](?:(?<=[0-9])|(?<=[a-z][A-Z]))"
_RUN = r"[!-~\xc0-\u024f]{4,300}"
_WHOLE_RUN = r"(?<![!-~\xc0-\u024f])[!-~\xc0-\u024f]{4,300}"
_CUT = r"[\"`<>]|'[a-z]{0,6}[.,;:!?)]*$|[;&,](?=[A-Za-z_][\w .-]{0,40}=)"
_OPENING, _CLOSING = "\"'`([{<*_=:>|~,;-", "\"'`)]}>_.,;:|"
_SENTENCE_END = r"[.!?…;][\s\"'”»)]|[。！？।]|\n[^\S\n]{0,9}\n"
_PART = r"[a-z0-9_.+/@\\$\xdf-\u024f]"
_NAMES = tuple("_.+/@\\$")
_LATIN = "\u024f"
_OTHER_SCRIPTS = "[\u0370-\u1dff\u3005-\ud7a3]"
_QUOTES = tuple("\"'`”“»」』’")
_AROUND = " \t\r\n\"'`“”„«»「」『』‘’()[]{}<（）【】*_"
_SEPARATORS = (":", "=", "→", ">", "|", "–", "—", " -")
_HARMLESS = (
    r"(?i:(?:keepass|bitwarden|lastpass|oauth|office|windows|python|ubuntu|iphone|android)[\w.]{0,9})"
    r"|\d{1,3}-?[a-z\xdf-\u024f]{3,30}"
    r"|[$+]?\d{1,20}(?:[/.,:-]\d{1,4}){0,5}/[a-z]{1,9}"
    r"|(?:[\w.-]{1,60}/){1,8}[\w.-]{1,60}\.[a-z]{1,5}"
    r"|\d{1,4}(?:[/.,:-]\d{1,4}){1,5}|[@+$].{0,300}|[^\WA-Z]{1,60}[+*]\d{1,2}"
    r"|[a-z.-]{4,100}:\d{2,5}"
)
_COUNTED = tuple("年년桁位字文자초秒個个日일月월回次번%")
_UNSPEAKABLE = r"(?i)[^aeiouy]{5}|[^aeiouy]{4}$|^[^aeiouy]{1,4}$"
_FEW_WORDS = r"[^\W\d_]{0,12}(?:[\s-]{1,2}[^\W\d_]{1,20}){0,3}\s{0,2}"
_END = r"\s{0,2}(?:$|[^\w\s]|[^\x00-\x7f])"


# How certainly a word names a value: `_SURELY` if "is" or a colon is between them, `_LIKELY` if
# "to" or nothing is, else `_HARDLY`.
_SURELY, _LIKELY, _HARDLY = 2, 1, 0


class _Word(NamedTuple):
    """A word that names secrets.

    Attributes:
        kinds: The kinds of secrets that it names: `password`, `key`, `pin`.
        is_latin: Whether it is written in the Latin alphabet.
        is_common: Whether it is also an English word. Code contains many such words, and `contexts`
            finds the values that code assigns to them.
        verbs: Words such as "is", in all its languages. If one of them is between the word and a
            value, the word certainly names the value.
        links: Other words that may come between the word and a value, such as "to".
    """

    kinds: frozenset[str]
    is_latin: bool
    is_common: bool
    verbs: tuple[str, ...]
    links: tuple[str, ...]


def find(text: str, lower: str) -> Iterator[SecretSpan]:
    """Yield the secrets that are named in a text's sentences.

    For each word that names secrets, the value is looked for up to the second such word before and
    after it. So no part of a text is searched more than a few times.

    Args:
        text: The text.
        lower: The text in lower case.
    """
    if not _compile(_SIGN).search(text):
        return
    words = _words()
    pattern = _compile(_pattern(latin_only=not _compile(_OTHER_SCRIPTS).search(lower)))
    matches = [
        match
        for match in pattern.finditer(lower)
        if not words[match[0]].is_common or _is_prose(text, *match.span())
    ]
    searched_to = 0
    for number, match in enumerate(matches):
        start, end = match.span()
        if start < searched_to:
            continue
        first, last = searched_to, len(text)
        if number > 1:
            first = max(searched_to, matches[number - 2].end())
        if number + 2 < len(matches):
            last = matches[number + 2].start()
        word = words[match[0]]
        secret = _find_after(text, end, min(last, end + _REACH), word)
        if secret is None:
            secret = _find_before(text, max(first, start - _REACH), start, word)
        if secret is not None:
            yield secret
            searched_to = secret.end


@functools.cache
def _words() -> dict[str, _Word]:
    """Return the words that name secrets, in all languages and spellings."""
    lines = languages.secret_words()
    words: dict[str, _Word] = {}
    for name, entries in lines.items():
        code, kind = name.split()
        if kind in ("is", "to"):
            continue
        verbs = tuple(map(languages.fold, lines[f"{code} is"]))
        links = tuple(map(languages.fold, lines[f"{code} to"]))
        for entry in entries:
            folded = languages.fold(entry)
            spellings = {entry, folded} if folded.isascii() else {entry}
            for spelling in sorted(spellings):
                literal = spelling.replace("_", " ")
                new = _Word(frozenset(), folded.isascii(), code == "en", (), ())
                word = words.get(literal, new)
                words[literal] = word._replace(
                    kinds=word.kinds | {kind}, verbs=word.verbs + verbs, links=word.links + links
                )
    return words


@functools.cache
def _pattern(*, latin_only: bool) -> str:
    """Return the pattern of all words, or of those in the Latin alphabet, grouped by first
    letter.
    """
    endings: dict[str, list[str]] = {}  # the rest of each word, keyed by its first letter
    for word in sorted(_words(), key=len, reverse=True):
        if latin_only and word[0] > _LATIN:
            continue
        ending = re.escape(word[1:])
        if len(word) <= _SHORT and word.isascii():
            ending = f"(?<!{_PART}.){ending}(?!{_PART})"
        endings.setdefault(word[0], []).append(ending)
    branches = [f"{re.escape(first)}(?:{'|'.join(group)})" for first, group in endings.items()]
    return "|".join(branches)


def _is_prose(text: str, start: int, end: int) -> bool:
    """Return whether a word is part of a sentence rather than a name in code."""
    before, after = text[start - 1 : start], text[end : end + 1]
    if before in _NAMES or after in _NAMES or after == "(":
        return False
    continues = before.isalnum() and before <= _LATIN
    return not continues or (before + text[start:end]).islower()


def _find_after(text: str, end: int, last: int, word: _Word) -> SecretSpan | None:
    """Return the secret after a word: between `end`, where the word ends, and `last`."""
    if word.is_latin and (ending := _compile(_ENDING).match(text, end)):
        end = ending.end()
    if not _compile(_SIGN).search(text, end, last):
        return None
    sentence_end = _compile(_SENTENCE_END).search(text, end, last)
    if sentence_end:
        last = sentence_end.start() + 1
    for run in _compile(_RUN).finditer(text, end, last):
        start, stop = _trim(text, run.start())
        value = text[start:stop]
        if not _may_be_secret(value) or text.startswith(_COUNTED, stop):
            continue
        between = languages.fold(text[end:start])
        is_noted = "password" in word.kinds and values.is_noted(text, start, stop)
        lead = _lead(between, word, is_noted=is_noted)
        if "\n" in between and (not lead or between.rpartition("\n")[2].strip(_AROUND)):
            return None
        kind = _kind(value, word.kinds, lead)
        if kind:
            return SecretSpan(start, stop, kind)
        # As in "pin tzdata to 2024".
        is_pinned = lead == _LIKELY and len(between.split()) > 1 and text[end - 1].islower()
        if "pin" in word.kinds and not is_pinned and _is_lone_pin(text, start, stop, between):
            return SecretSpan(start, stop, "pin")
    return None


def _is_lone_pin(text: str, start: int, stop: int, between: str) -> bool:
    """Return whether 4 or 6 digits end a short sentence about a PIN."""
    value = text[start:stop]
    if len(value) not in (4, 6) or not value.isdigit():
        return False
    ends = _compile(_END).match(text, stop)
    return ends is not None and _compile(_FEW_WORDS).fullmatch(between) is not None


def _find_before(text: str, first: int, end: int, word: _Word) -> SecretSpan | None:
    """Return the secret between `first` and `end`; the word that names it begins at `end`."""
    if not _compile(_SIGN).search(text, first, end):
        return None
    for run in reversed(list(_compile(_WHOLE_RUN).finditer(text, first, end))):
        start, stop = _trim(text, run.start())
        value, between = text[start:stop], text[stop:end]
        if not _may_be_secret(value) or stop > end or text.startswith(_COUNTED, stop):
            continue
        if "\n" in between or _compile(_SENTENCE_END).search(between):
            return None
        if len(between.split()) > _WORDS_APART:
            return None
        linking, folded = word.verbs + word.links, languages.fold(between).strip(f"{_AROUND}–—")
        is_linked = folded.startswith(linking)
        if word.is_latin:
            is_linked = folded.partition(" ")[0] in linking
        lead = _LIKELY if is_linked or between.startswith(_QUOTES) else _HARDLY
        kind = _kind(value, word.kinds - {"pin"}, lead)
        if kind:
            return SecretSpan(start, stop, kind)
    return None


def _trim(text: str, position: int) -> tuple[int, int]:
    """Return the position of the value in a run of characters, without quotes and similar marks
    around it.
    """
    run = _compile(_RUN).match(text, position)[0]  # type: ignore[index]
    value = run.lstrip(_OPENING)
    start = position + len(run) - len(value)
    if cut := _compile(_CUT).search(value):
        value = value[: cut.start()]
    value = value.rstrip(_CLOSING)
    if value.endswith("**") or text[start - 1 : start] == "*":
        value = value.rstrip("*")
    return start, start + len(value)


def _lead(between: str, word: _Word, *, is_noted: bool) -> int:
    """Return how certainly a word names the value after it, given the folded text between them.

    After a common word, a colon is a sure sign only in a note, since code puts colons after such
    words too.
    """
    if "pin" in word.kinds and between.startswith("-"):  # as in "PIN-Code"
        between = between[1:].lstrip("abcdefghijklmnopqrstuvwxyz")
    if word.is_latin and _compile(_LONGER).match(between):
        return _HARDLY
    core = between.rstrip(_AROUND)
    is_quoted = core != between.rstrip()
    if core.endswith(_SEPARATORS):
        is_code = word.is_common and "pin" not in word.kinds and not is_noted
        return _LIKELY if is_code else _SURELY
    if not core.strip():
        return _SURELY if is_quoted and not word.is_common else _LIKELY
    if core[-1] > _LATIN or core[-2:-1] > _LATIN:
        return _lead_of_other_script(core.rstrip("-"), word)
    last = core.split()[-1]
    # Checked even for verbs, since "to" is a preposition in English but means "is" in Polish.
    is_link = last in word.links
    if last in word.verbs and not is_link:
        return _SURELY
    return _LIKELY if is_link or is_quoted else _HARDLY


def _lead_of_other_script(core: str, word: _Word) -> int:
    if core.endswith(word.verbs):
        return _SURELY
    if core.endswith(word.links) or _compile(_ENDING).fullmatch(core):
        return _LIKELY
    return _HARDLY


def _kind(value: str, kinds: frozenset[str], lead: int) -> str | None:
    """Return the kind of secret that a value is; None if it isn't a secret."""
    if "pin" in kinds and lead == _SURELY and value.isdigit() and 4 <= len(value) <= 8:
        return "pin"
    is_random = _is_random(value, 3 if lead else 4)
    is_mixed = is_random or (lead > _HARDLY and _is_mixed(value))
    if "password" in kinds and (is_mixed or (lead == _SURELY and values.is_simple(value))):
        return "password"
    if "key" in kinds and _is_key(value, lead, is_random=is_random, is_mixed=is_mixed):
        return "api_key"
    return None


def _is_key(value: str, lead: int, *, is_random: bool, is_mixed: bool) -> bool:
    if lead == _HARDLY:
        return is_random and len(value) >= 12
    if is_random or (lead == _SURELY and is_mixed):
        return True
    return not value.isalpha() and values.is_token(value)


@functools.lru_cache(1024)
def _may_be_secret(value: str) -> bool:
    if len(value) < 4 or not re.search(_SIGN, value):
        return False
    if re.fullmatch(_HARMLESS, value) or re.match(CODE, value):
        return False
    if value.isdigit():
        return True
    return not (values.is_placeholder(value) or re.fullmatch(values.FORMAT, value))


@functools.lru_cache(1024)
def _is_random(value: str, changes: int) -> bool:
    """Return whether a value looks random: its character class changes at least `changes` times,
    and it is not a name.
    """
    if len(value) < 8 or not any(map(str.isdigit, value)) or value.isdigit():
        return False
    letters_in_words = 0
    for word in re.findall(r"[A-Z]?[a-z]{2,}", value):
        if not re.search(_UNSPEAKABLE, word):
            letters_in_words += len(word)
    is_mostly_words = letters_in_words * 3 > sum(map(str.isalpha, value)) * 2
    if is_mostly_words and len(re.findall(r"\d+", value)) == 1:
        return False
    parts = re.split(r"[-_./:]", value)
    return sum(map(values.count_changes, parts)) >= changes and values.is_random_enough(value)


@functools.lru_cache(1024)
def _is_mixed(value: str) -> bool:
    digits, letters = sum(map(str.isdigit, value)), sum(map(str.isalpha, value))
    has_symbol = any(character in "!@#$%^&*+?~" for character in value)
    return len(value) >= 6 and letters >= 3 and (digits >= 4 or (has_symbol and digits > 0))


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
