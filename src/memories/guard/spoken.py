"""Secrets that a sentence names, in any language of languages/secrets.txt: "Das Passwort ist …",
"暗証番号は…です".

What counts is a word such as "password", a value beside it, and what stands between them: after
"is" or a colon a value may be simple, without either it must look random.
"""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from memories import languages
from memories.guard import values
from memories.guard.contexts import CODE

_REACH = 80  # characters between a word and its value
_WORDS_APART = 5  # between a value and the word after it
# letters; so short a Latin word counts only where it stands alone: "pin" is no part of "shopping"
_SHORT = 4
# of a word, as in "salasanamme"; with more letters it is another word
_ENDING = r"[^\W\d_]{0,6}(?![^\W_])"
_LONGER = r"[^\W\d]|-[a-z]"  # the word goes on, as in "Passwort-Manager"
# without a digit or a capital inside, a value is a plain word
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
    r"(?i:1password\w{0,9}|(?:keepass|bitwarden|lastpass|oauth|office|windows|python)[\w.]{0,9})"
    r"|\d{1,3}-?[a-z\xdf-\u024f]{3,30}"
    r"|[A-Z]{2,6}-\d{1,8}|(?:ISO|DIN|RFC|CVE|NIST)[\d:-]{1,20}|[$+]?\d{1,20}(?:[/.,:-]\d{1,4}){0,5}/[a-z]{1,9}"
    r"|(?:[\w.-]{1,60}/){1,8}[\w.-]{1,60}\.[a-z]{1,5}"
    r"|\d{1,4}(?:[/.,:-]\d{1,4}){1,5}|[@+$].{0,300}|[^\WA-Z]{1,60}[+*]\d{1,2}|[a-z.-]{4,100}:\d{2,5}"
)
_COUNTED = tuple("年년桁位字文자초秒個个日일月월回次번%")
_UNSPEAKABLE = r"(?i)[^aeiouy]{5}|[^aeiouy]{4}$|^[^aeiouy]{1,4}$"
_FEW_WORDS = r"[^\W\d_]{0,12}(?:[\s-]{1,2}[^\W\d_]{1,20}){0,3}\s{0,2}"
_END = r"\s{0,2}(?:$|[^\w\s]|[^\x00-\x7f])"


class Spoken(NamedTuple):
    """Where a secret is that a word names, and of which kind."""

    start: int
    end: int
    kind: str


class _Word(NamedTuple):
    """A word that names secrets.

    Attributes:
        kinds: What it names: `password`, `key`, `pin`.
        latin: It is in Latin letters.
        common: English has it too. Code is full of it, and what is assigned to it is found by
            `contexts`.
        says: What stands between it and a value that it says, such as "is", in all its languages.
        leads: What may do so, such as "to".
    """

    kinds: frozenset[str]
    latin: bool
    common: bool
    says: tuple[str, ...]
    leads: tuple[str, ...]


def find(text: str, low: str) -> Iterator[Spoken]:
    """Yield the secrets that the sentences of a text name.

    A value is looked for as far as the next word but one, so that each part of a text is looked at
    a few times at most.

    Args:
        text: The text.
        low: The same in small letters.
    """
    if not _compiled(_SIGN).search(text):
        return
    words = _words()
    pattern = _compiled(_pattern(latin_only=not _compiled(_OTHER_SCRIPTS).search(low)))
    hits = [
        hit
        for hit in pattern.finditer(low)
        if not words[hit[0]].common or _is_prose(text, *hit.span())
    ]
    done = 0
    for number, hit in enumerate(hits):
        if hit.start() < done:
            continue
        word, at, end = words[hit[0]], hit.start(), hit.end()
        last = hits[number + 2].start() if number + 2 < len(hits) else len(text)
        first = max(done, hits[number - 2].end() if number > 1 else 0)
        found = _after(text, end, min(last, end + _REACH), word) or _before(
            text, max(first, at - _REACH), at, word
        )
        if found:
            yield found
            done = found.end


@functools.cache
def _words() -> dict[str, _Word]:
    """Return the words of all languages as they may be written."""
    lines = languages.secret_words()
    known: dict[str, _Word] = {}
    for name, entries in lines.items():
        code, kind = name.split()
        if kind in ("is", "to"):
            continue
        says, leads = (
            tuple(map(languages.folded, lines[f"{code} {line}"])) for line in ("is", "to")
        )
        for entry in entries:
            plain = languages.folded(entry)
            for spelled in dict.fromkeys((entry, plain)) if plain.isascii() else (entry,):
                literal = spelled.replace("_", " ")
                old = known.get(literal, _Word(frozenset(), plain.isascii(), code == "en", (), ()))
                known[literal] = old._replace(
                    kinds=old.kinds | {kind}, says=old.says + says, leads=old.leads + leads
                )
    return known


@functools.cache
def _pattern(*, latin_only: bool) -> str:
    """Return the pattern of all words, or of those in Latin letters, by their first letters."""
    rests: dict[str, list[str]] = {}
    for word in sorted(_words(), key=len, reverse=True):
        if word[0] <= _LATIN or not latin_only:
            alone = len(word) <= _SHORT and word.isascii()
            rest = re.escape(word[1:])
            rests.setdefault(word[0], []).append(
                f"(?<!{_PART}.){rest}(?!{_PART})" if alone else rest
            )
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in rests.items())


def _is_prose(text: str, at: int, end: int) -> bool:
    """Return whether a word is one of a sentence, not a part of a name in code."""
    before, after = text[at - 1 : at], text[end : end + 1]
    inside = before in _NAMES or (
        before.isalnum() and before <= _LATIN and not (before + text[at:end]).islower()
    )
    return not inside and after not in (*_NAMES, "(")


def _after(text: str, end: int, last: int, word: _Word) -> Spoken | None:
    if word.latin and (ended := _compiled(_ENDING).match(text, end)):
        end = ended.end()
    if not _compiled(_SIGN).search(text, end, last):
        return None
    stop = _compiled(_SENTENCE_END).search(text, end, last)
    for token in _compiled(_RUN).finditer(text, end, stop.start() + 1 if stop else last):
        start, until = _value(text, token.start())
        value = text[start:until]
        if not _may_be_secret(value) or text.startswith(_COUNTED, until):
            continue
        between = languages.folded(text[end:start])
        lead = _lead(between, word)
        if "\n" in between and (not lead or between.rpartition("\n")[2].strip(_AROUND)):
            return None
        kind = _kind(value, word.kinds, lead)
        if kind is None and "pin" in word.kinds and len(value) in (4, 6) and value.isdigit():
            ends = _compiled(_FEW_WORDS).fullmatch(between) and _compiled(_END).match(text, until)
            pinned_to = (
                lead == 1 and len(between.split()) > 1 and text[end - 1].islower()
            )  # "pin tzdata to 2024"
            kind = "pin" if ends and not pinned_to else None
        if kind:
            return Spoken(start, until, kind)
    return None


def _before(text: str, first: int, at: int, word: _Word) -> Spoken | None:
    if not _compiled(_SIGN).search(text, first, at):
        return None
    for token in reversed(list(_compiled(_WHOLE_RUN).finditer(text, first, at))):
        start, end = _value(text, token.start())
        value, between = text[start:end], text[end:at]
        if not _may_be_secret(value) or end > at or text.startswith(_COUNTED, end):
            continue
        if (
            "\n" in between
            or _compiled(_SENTENCE_END).search(between)
            or len(between.split()) > _WORDS_APART
        ):
            return None
        said, known = languages.folded(between).strip(f"{_AROUND}–—"), word.says + word.leads
        led = said.partition(" ")[0] in known if word.latin else said.startswith(known)
        kind = _kind(value, word.kinds - {"pin"}, 1 if led or between.startswith(_QUOTES) else 0)
        if kind:
            return Spoken(start, end, kind)
    return None


def _value(text: str, at: int) -> tuple[int, int]:
    """Return where the value of a token stands, without what only surrounds it."""
    token = _compiled(_RUN).match(text, at)[0]  # type: ignore[index]
    value = token.lstrip(_OPENING)
    start = at + len(token) - len(value)
    cut = _compiled(_CUT).search(value)
    value = (value[: cut.start()] if cut else value).rstrip(_CLOSING)
    return start, start + len(
        value.rstrip("*") if value.endswith("**") or text[start - 1 : start] == "*" else value
    )


def _lead(between: str, word: _Word) -> int:
    """Return how surely a word names the value after it: 2 after "is" or a colon, 1 beside it or
    after "to", else 0.
    """
    if "pin" in word.kinds and between.startswith("-"):  # as in "PIN-Code"
        between = between[1:].lstrip("abcdefghijklmnopqrstuvwxyz")
    if word.latin and _compiled(_LONGER).match(between):
        return 0
    core = between.rstrip(_AROUND)
    quoted = core != between.rstrip()
    if core.endswith(_SEPARATORS):
        return 2 if not word.common or "pin" in word.kinds else 1
    if not core.strip():
        return 2 if quoted and not word.common else 1
    if core[-1] > _LATIN or core[-2:-1] > _LATIN:
        core = core.rstrip("-")
        if core.endswith(word.says):
            return 2
        return 1 if core.endswith(word.leads) or _compiled(_ENDING).fullmatch(core) else 0
    last = core.split()[-1]
    leads = last in word.leads  # also if it says: "to" leads in English, and is "is" in Polish
    return 2 if last in word.says and not leads else int(leads or quoted)


def _kind(value: str, kinds: frozenset[str], lead: int) -> str | None:
    if "pin" in kinds and lead == 2 and _is_pin(value):
        return "pin"
    random = _is_random(value, 3 if lead else 4)
    mixed = random or (lead > 0 and _is_mixed(value))
    if "password" in kinds and (mixed or (lead == 2 and _is_simple(value))):
        return "password"
    if "key" in kinds and (
        (random and (lead or len(value) >= 12))
        or (lead == 2 and mixed)
        or (lead and not value.isalpha() and values.is_token(value))
    ):
        return "api_key"
    return None


def _is_pin(value: str) -> bool:
    return value.isdigit() and 4 <= len(value) <= 8


@functools.lru_cache(1024)
def _may_be_secret(value: str) -> bool:
    if (
        len(value) < 4
        or not re.search(_SIGN, value)
        or re.fullmatch(_HARMLESS, value)
        or re.match(CODE, value)
    ):
        return False
    return value.isdigit() or not (
        values.is_placeholder(value) or re.fullmatch(values.FORMAT, value)
    )


@functools.lru_cache(1024)
def _is_random(value: str, changes: int) -> bool:
    """Return whether a value looks drawn at random: its classes of characters change so often, and
    it is no name.
    """
    if len(value) < 8 or not any(map(str.isdigit, value)) or value.isdigit():
        return False
    words = [
        word for word in re.findall(r"[A-Z]?[a-z]{2,}", value) if not re.search(_UNSPEAKABLE, word)
    ]
    if (
        sum(map(len, words)) * 3 > sum(map(str.isalpha, value)) * 2
        and len(re.findall(r"\d+", value)) == 1
    ):
        return False
    parts = re.split(r"[-_./:]", value)
    return sum(map(values.changes, parts)) >= changes and values.is_random(
        f"{value}{value}"[: max(10, len(value))]
    )


@functools.lru_cache(1024)
def _is_mixed(value: str) -> bool:
    digits, letters = (sum(map(test, value)) for test in (str.isdigit, str.isalpha))
    odd = any(sign in "!@#$%^&*+?~" for sign in value)
    return len(value) >= 6 and letters >= 3 and ((odd and digits > 0) or digits >= 4)


@functools.lru_cache(1024)
def _is_simple(value: str) -> bool:
    digits, letters = (sum(map(test, value)) for test in (str.isdigit, str.isalpha))
    return values.is_password(value) or (len(value) >= 6 and digits > 0 and letters >= 2)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
