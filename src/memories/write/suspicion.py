"""Marks texts that contain instructions to a model, according to the rules in suspicion.txt. Marked
texts are stored like any other text.

Before the rules are tried, a text is folded, so that case, spacing, look-alike letters and
invisible characters can't disguise it. Most texts don't contain any of the words that the rules
require, so no pattern has to be compiled for them.
"""

import binascii
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memories.languages import is_unseen

if TYPE_CHECKING:
    from memories.stores.records import Record

MAX_DECODED = 20  # maximum number of encoded parts that are decoded
_LONG_WORD = 24
_BLOB = 200  # base64 that is longer than this is marked even if it isn't text
_QUOTES = "\"'`“”‘’«»„‚「」『』"

_PUNCTUATION = {
    ord(sign): " "
    for sign in "'!\"#%&()*+,./:;<=>?@[\\]^_`{|}~-\n\r\t\0“”„«»‘’、。，！？：；（）【】「」—–…¿¡"
}
_EMPHASIS = {ord(sign): " " for sign in "*`"}
# Markup in the middle of a word.
_INNER = r"(?<=\w)(?:[*`]|<!--[^<>]{0,80}-->|</?[a-z]{1,10}>)+(?=\w)"
# Ranges of marks that are drawn on another letter.
_ACCENTS = "\u0300\u036f \u0483\u0489 \u1ab0\u1aff \u1dc0\u1dff \u20d0\u20ff \ufe20\ufe2f".split()
# Maps letters of other scripts to the Latin letters that they look like. A folded text has no
# capitals or accents.
_LOOKS = {
    "a": "аαᴀɑ", "b": "вʙƅ", "c": "сᴄϲ", "d": "ԁᴅ", "e": "еҽᴇε", "f": "ꜰ", "g": "ɢɡց",
    "h": "нһʜհ", "i": "іιɪıӏ", "j": "јᴊ", "k": "кκᴋ", "l": "ʟⅼ", "m": "мᴍ", "n": "ᴎɴпո",
    "o": "оοᴏօσ", "p": "рρᴘ", "q": "ԛ", "r": "ʀг", "s": "ѕꜱ", "t": "тτᴛ", "u": "υᴜս",
    "v": "νᴠ", "w": "ѡᴡԝω", "x": "хχ", "y": "уγʏ", "z": "ᴢ",
}  # fmt: skip
_LOOK_ALIKE = {ord(sign): letter for letter, signs in _LOOKS.items() for sign in signs} | {
    code: chr(ord("a") + number)
    for first in (0x1F150, 0x1F170, 0x1F1E6)
    for number, code in enumerate(range(first, first + 26))
}
_LEET = str.maketrans("013457@$!|", "oieastasii")
_LEETED = frozenset("013457@$")
_BETWEEN = ".-_*|/~+,"
_SIGNS = "<[{#:!\x1b"  # a text with none of these can't match a structure
_DATA = ("{", "[", "<", "%PDF")  # data that begins with one of these isn't marked as encoded text
_BACKWARDS = ("snoitcurtsni", "tpmorp metsys")
_ROT13 = ("vafgehpgvbaf", "flfgrz cebzcg")
_ROTATED = str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm")
# Invisible characters that can only be a hidden message: runs of tags, variation selectors or
# joiners, or an override of the text direction.
_UNSEEN_RUN = (
    "[\U000e0020-\U000e007e]{3}|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3}|[\u202d\u202e]"
    "|[\u200b-\u200f\u2060-\u2064\ufeff\u00ad\u034f\u180e\u3164\uffa0\u115f\u1160\u2800]{4}"
)
_FLAG = "\U0001f3f4[\U000e0020-\U000e007e]{1,12}\U000e007f"
_SPELLED = (
    r"(?<![a-z])[a-z](?:([ .\-_*|/~+,])\1{0,2}[a-z](?![a-z]))"
    r"(?:\1{1,3}[a-z](?![a-z])|\1{1,8}[a-z](?![a-z])){3,400}"
)
_APART = ("instruction", "rule")
_JOINED = ("instruction", "previousrule", "priorrule")
_TOGETHER = (
    r"(ignore|disregard|forget)(?:all|any|the|your|of|my|these){0,3}"
    r"(previous|prior|earlier|above)(instruction|rule)s?"
)
_BASE64 = r"(?<![\w+/=-])[A-Za-z0-9+/_-]{24,}={0,2}"
_HEX = (
    r"(?<![0-9a-z])(?:[0-9a-f]{2}){16,}(?![0-9a-z])"
    r"|(?<![0-9a-z])(?:(?:\\x|0x)?[0-9a-f]{2}[ ,:]{1,2}){16,}"
)
_ESCAPED = (
    r"(?:\\u00[0-9a-f]{2}|\\u\{0{0,6}[0-9a-f]{2}\}|\\U0{6}[0-9a-f]{2}|\\x[0-9a-f]{2}"
    r"|&#x?0{0,6}[0-9a-f]{2,4};|%[0-9a-f]{2}){6,}"
)
_CODE = r"(?:\\u00|\\u\{0{0,6}|\\U0{6}|\\x|%|&#x0{0,6})([0-9a-f]{2})[;}]?|&#0{0,6}([0-9]{2,4});"
_CODES = ("%2", "%4", "%5", "%6", "%7", "&#", "\\u00", "\\u{", "\\U000000", "\\x")
_CODED = ("\\x", "0x", "&#", "%2", "%6", "%7", " 6")
# Prefixes of keys, checksums and encoded files, which are not messages.
_KEYS = (
    "ssh-rsa ", "ssh-ed25519 ", "ssh-dss ", "ecdsa-sha2", "-----BEGIN ", "sha256-", "sha384-",
    "sha512-", "data:image/", "data:font/", "data:audio/", "data:video/", "data:application/", "ey",
)  # fmt: skip
_REPORTED = (
    r"\b(?:tell|tells|telling|told|ask|asks|asking|asked|instruct\w*|trick\w*|cause\w*|convinc\w*"
    r"|attempt\w*|order\w*|such as|says?|saying|said|reads?|containing|contains?|called|phrase)\b"
    r"[^.!?]{0,48}$"
    r"|\b(?:attack|exploit|inject|jailbreak)\w* (?:[^.!?:;,]{0,20} )?"
    r"(?:gets?|makes?|tr(?:y|ies)|wants?) (?:to (?:get|make) )?(?:(?:an?|its|the|your) )?"
    r"(?:agent|assistant|llm|model)s?\b[^.!?:;,]{0,24}$"
)


class SuspicionRule(NamedTuple):
    """A rule from suspicion.txt; the file explains what the parts of a rule mean."""

    mark: str
    pieces: Sequence[str]
    also: Sequence[str]
    pattern: str


class Rules(NamedTuple):
    """The unparsed rules in suspicion.txt: `read_rule` parses a rule when a text requires it.

    Attributes:
        orders: The rules for a folded text.
        structures: The rules for a text in its original form.
        by_word: For each word, the indexes of the orders that require it.
        wordless: The indexes of the orders that don't require any word.
        constants: The texts that rules refer to, keyed by name.
    """

    orders: Sequence[str]
    structures: Sequence[str]
    by_word: Mapping[str, Sequence[int]]
    wordless: Sequence[int]
    constants: Mapping[str, str]


class _Folded(NamedTuple):
    """A folded text, with and without punctuation."""

    text: str
    words: str


@functools.cache
def load_rules() -> Rules:
    """Read suspicion.txt."""
    text = Path(__file__).with_name("suspicion.txt").read_text(encoding="utf-8")
    blocks = text.rstrip("\n").split("\n\n")
    orders = [block for block in blocks if block.startswith("order ")]
    structures = [block for block in blocks if block.startswith("structure ")]
    by_word: dict[str, list[int]] = {}
    wordless = []
    for number, block in enumerate(orders):
        name, _, words = block.split("\n", 2)[1].partition(": ")
        if name != "  words":
            wordless.append(number)
            continue
        for word in words.split():
            by_word.setdefault(word, []).append(number)
    definitions = [line for block in blocks[:3] for line in block.splitlines() if line[0].isupper()]
    constants = dict(line.split(" = ", 1) for line in definitions)
    return Rules(orders, structures, by_word, wordless, constants)


@functools.cache
def read_rule(block: str) -> SuspicionRule:
    """Parse a rule."""
    for name, value in load_rules().constants.items():
        block = block.replace(f"{{{name}}}", value)
    head, *lines = block.split("\n  ")
    parts: dict[str, list[str]] = {"words": [], "pieces": [], "also": [], "pattern": []}
    for line in lines:
        name, value = line.split(": ", 1)
        parts[name].append(value)
    mark = head.split()[1]
    pieces, also = _read_pieces(parts["pieces"]), _read_pieces(parts["also"])
    return SuspicionRule(mark, pieces, also, "|".join(parts["pattern"]))


def _read_pieces(lines: Iterable[str]) -> list[str]:
    spelled = "¦".join(lines).replace("·", " ").replace("␛", "\x1b")
    return spelled.split("¦") if spelled else []


@functools.cache
def _compile(pattern: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(pattern, flags)


def find_marks(text: str) -> tuple[str, ...]:
    """Return the marks of the rules that a text matches, in order; usually none.

    Args:
        text: A text of any length. The time taken is linear in its length.
    """
    plain, has_unseen = text, False
    if not text.isascii():
        has_unseen = any(map(_is_hidden, set(text)))
        plain = unicodedata.normalize("NFKC", text)
    folded = _fold(plain)
    marks = dict.fromkeys(_match_structures(plain))
    if has_unseen and _compile(_UNSEEN_RUN).search(_compile(_FLAG).sub("", text)):
        marks["hidden"] = None
    marks |= dict.fromkeys(_match_orders(folded))
    for revealed in _reveal(plain, folded):
        orders = list(_match_orders(_with_words(revealed)))
        if orders:
            marks |= dict.fromkeys([*orders, "disguised"])
    # Codes of single characters may disguise part of a word.
    if _contains(plain, _CODES):
        unescaped = _compile(_CODE, re.I).sub(lambda code: chr(_number_of(code)), plain)
        if unescaped != plain:
            orders = [mark for mark in _match_orders(_fold(unescaped)) if mark not in marks]
            if orders:
                marks |= dict.fromkeys(["encoded", *orders])
    for decoded in _decode_parts(plain):
        decoded_marks = [*_match_orders(_fold(decoded)), *_match_structures(decoded)]
        if decoded_marks or not decoded.startswith(_DATA):
            marks |= dict.fromkeys(["encoded", *decoded_marks])
    return tuple(marks)


def mark_suspicious(record: "Record") -> "Record":
    """Return a record with the marks of its text and anchors in the field `suspicious`."""
    fields = {name: value for name, value in record.fields.items() if name != "suspicious"}
    anchors = fields.get("anchors")
    marks = find_marks(f"{record.text}\n{anchors}" if anchors else record.text)
    if marks:
        fields["suspicious"] = " ".join(marks)
    return record._replace(fields=fields)


def _fold(text: str) -> _Folded:
    """Return a text in lower case, with one space between words, without accents or invisible
    characters.
    """
    if not _is_plain(text):
        text = unicodedata.normalize("NFKD", text)
        table: dict[int, str | None] = {ord("’"): "'"}
        for sign in set(text):
            if _is_hidden(sign) or any(ends[0] <= sign <= ends[1] for ends in _ACCENTS):
                table[ord(sign)] = None
        text = unicodedata.normalize("NFC", text.translate(table))
    return _with_words(" ".join(text.casefold().translate(_EMPHASIS).split()))


def _is_plain(text: str) -> bool:
    """Return whether a text is ASCII without control characters, so that it can't hide anything."""
    return text.isascii() and "".join(text.split()).isprintable()


def _is_hidden(sign: str) -> bool:
    return is_unseen(sign) and not sign.isspace()


def _with_words(folded: str) -> _Folded:
    return _Folded(folded, folded.translate(_PUNCTUATION))


def _match_structures(text: str) -> Iterator[str]:
    if not _contains(text, _SIGNS):
        return
    lowered = text.lower()
    for rule in map(read_rule, load_rules().structures):
        pieces_fit = not rule.pieces or _contains(lowered, rule.pieces)
        if pieces_fit and _compile(rule.pattern, re.I | re.S).search(text):
            yield rule.mark


def _match_orders(folded: _Folded) -> Iterator[str]:
    """Yield the marks of the instruction rules that a folded text matches."""
    rules = load_rules()
    words = rules.by_word.keys() & set(folded.words.split())
    numbers = {number for word in words for number in rules.by_word[word]}
    if not folded.text.isascii():
        numbers.update(rules.wordless)
    marks: set[str] = set()
    for number in sorted(numbers):
        rule = read_rule(rules.orders[number])
        if rule.mark not in marks and _gives_order(folded.text, rule):
            marks.add(rule.mark)
            yield rule.mark


def _gives_order(folded: str, rule: SuspicionRule) -> bool:
    if rule.pieces and not _contains(folded, rule.pieces):
        return False
    if rule.also and not _contains(folded, rule.also):
        return False
    matches = _compile(rule.pattern, re.S).finditer(folded)
    return any(not _is_reported(folded, match) for match in matches)


def _contains(text: str, pieces: Iterable[str]) -> bool:
    return any(map(text.__contains__, pieces))  # a generator expression takes twice as long


def _is_reported(folded: str, match: re.Match[str]) -> bool:
    """Return whether a text about attacks only quotes or reports an instruction."""
    start, end = match.span()
    around = folded[max(0, start - 400) : start] + folded[end : end + 400]
    if not _compile(load_rules().constants["TALK"]).search(around):
        return False
    before, after = folded[max(0, start - 60) : start], folded[end : end + 80]
    is_quoted = _contains(before[-24:], _QUOTES) and _contains(after, _QUOTES)
    return is_quoted or bool(_compile(_REPORTED).search(before))


# --- disguises


def _reveal(plain: str, folded: _Folded) -> Iterator[str]:
    """Yield a folded text with each possible disguise undone.

    Disguises are look-alike letters, spaced-out words, markup in words, invisible characters for
    spaces, digits for letters, words without spaces, and reversed or rotated letters.
    """
    for text in _unmask(plain):
        yield _fold(text).text
    if not plain.isascii():
        latin = folded.text.translate(_LOOK_ALIKE)
        if latin != folded.text:
            yield latin
    words = folded.text.split(" ")
    is_spelled = [len(word) > 8 and word[1] == word[3] == word[5] in _BETWEEN for word in words]
    if any(is_spelled) or list(map(len, words)).count(1) > 5:
        yield _fold(_compile(_SPELLED).sub(_join_letters, plain.casefold())).text
    if not _LEETED.isdisjoint(folded.text) and sum(map(_is_leet, words)) > 1:
        yield folded.text.translate(_LEET)
    joined = folded.words.replace(" ", "")
    if _contains(joined, _JOINED) and not any(word.startswith(_APART) for word in words):
        yield _compile(_TOGETHER).sub(r" \1 \2 \3s ", joined)
    if _contains(folded.text, _BACKWARDS):
        yield folded.text[::-1]
    if _contains(folded.text, _ROT13):
        yield folded.text.translate(_ROTATED)


def _unmask(plain: str) -> Iterator[str]:
    """Yield a text with spaces instead of invisible characters, and without markup in words."""
    if not _is_plain(plain):
        hidden = {ord(sign): " " for sign in filter(_is_hidden, set(plain))}
        if hidden:
            yield plain.translate(hidden)
    if _contains(plain, "*`<"):
        joined = _compile(_INNER, re.I).sub("", plain)
        if joined != plain:
            yield joined


def _is_leet(word: str) -> bool:
    """Return whether digits or signs replace some letters in a word."""
    if not 3 < len(word) < _LONG_WORD or _LEETED.isdisjoint(word[:-1]):
        return False
    return any(map(str.isalpha, word))


def _join_letters(spelled: re.Match[str]) -> str:
    """Join the letters of spaced-out words; a doubled separator ends a word."""
    sign = spelled[1]
    words = spelled[0].replace(sign * 3, sign * 2).split(sign * 2)
    return " ".join(word.replace(sign, "") for word in words)


# --- encoded parts


def _decode_parts(text: str) -> Iterator[str]:
    """Yield the decoded text of encoded parts; an empty string for a blob that can't be decoded."""
    has_long_word = max(map(len, text.split()), default=0) >= _LONG_WORD
    if not has_long_word and not _contains(text, _CODED):
        return
    for part in _find_first(_BASE64, text):
        decoded = _decode_base64(part[0])
        before = text[max(0, part.start() - 60) : part.start() + 2]
        if _is_sentence(decoded):
            yield decoded
        elif _is_blob(part[0]) and not _contains(before, _KEYS):
            yield decoded if decoded.startswith(_DATA) else ""
    for part in _find_first(_ESCAPED, text):
        numbers = map(_number_of, _compile(_CODE, re.I).finditer(part[0]))
        decoded = bytes(number % 256 for number in numbers).decode("utf-8", "replace")
        if _is_sentence(decoded):
            yield decoded
    for part in _find_first(_HEX, text):
        digits = _compile(r"\\x|0x|[, :]", re.I).sub("", part[0])
        decoded = bytes.fromhex(digits[: len(digits) // 2 * 2]).decode("utf-8", "replace")
        if _is_sentence(decoded):
            yield decoded


def _find_first(pattern: str, text: str) -> Iterator[re.Match[str]]:
    return itertools.islice(_compile(pattern, re.I).finditer(text), MAX_DECODED)


def _number_of(code: re.Match[str]) -> int:
    if code[2]:
        return int(code[2])
    return int(code[1], 16)


def _decode_base64(part: str) -> str:
    """Return the text in a base64 part; empty if it isn't text."""
    plain = part.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return binascii.a2b_base64(plain + "=" * (-len(plain) % 4)).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""


def _is_sentence(text: str) -> bool:
    """Return whether decoded text is a sentence: printable words separated by spaces."""
    if len(text) < 12 or " " not in text.strip():
        return False
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        return False
    return sum(sign.isalpha() or sign == " " for sign in text) > 0.7 * len(text)


def _is_blob(part: str) -> bool:
    """Return whether a part is long and contains digits, lower-case letters and capitals."""
    if len(part) <= _BLOB or "//" in part:
        return False
    return all(any(map(kind, part)) for kind in (str.isdigit, str.islower, str.isupper))
