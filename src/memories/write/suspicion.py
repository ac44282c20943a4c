"""Which texts give orders to a model, by cheap rules: a mark, never a refusal. Pure.

A text is folded first, so that case, spacing, look-alike letters and unseen characters disguise
nothing. Most texts then meet none of the words that call a rule, and no pattern is compiled for
them.
"""

import binascii
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memories.languages.unseen import is_unseen
from memories.write.orders import RULES, STRUCTURES, TALK

if TYPE_CHECKING:
    from memories.stores.records import Record

MAX_DECODED = 20  # encoded parts of a text that are looked into
_LONG_WORD = 24
_BLOB = 200  # characters of base64
_QUOTES = "\"'`“”‘’«»„‚「」『』"

_PUNCTUATION = {
    ord(sign): " "
    for sign in "'!\"#%&()*+,./:;<=>?@[\\]^_`{|}~-\n\r\t\0“”„«»‘’、。，！？：；（）【】「」—–…¿¡"
}
_EMPHASIS = {ord(sign): " " for sign in "*`\0"}
# Letters of other scripts that look like these; a folded text has no capitals and no accents.
_LOOKS = {
    "a": "аαᴀɑ",
    "b": "вʙƅ",
    "c": "сᴄϲ",
    "d": "ԁᴅ",
    "e": "еҽᴇε",
    "f": "ꜰ",
    "g": "ɢɡց",
    "h": "нһʜհ",
    "i": "іιɪıӏ",
    "j": "јᴊ",
    "k": "кκᴋ",
    "l": "ʟⅼ",
    "m": "мᴍ",
    "n": "ᴎɴпո",
    "o": "оοᴏօσ",
    "p": "рρᴘ",
    "q": "ԛ",
    "r": "ʀг",
    "s": "ѕꜱ",
    "t": "тτᴛ",
    "u": "υᴜս",
    "v": "νᴠ",
    "w": "ѡᴡԝω",
    "x": "хχ",
    "y": "уγʏ",
    "z": "ᴢ",
}
_LOOK_ALIKE = {ord(sign): letter for letter, signs in _LOOKS.items() for sign in signs} | {
    code: chr(ord("a") + number)
    for first in (0x1F150, 0x1F170, 0x1F1E6)
    for number, code in enumerate(range(first, first + 26))
}
_LEET = str.maketrans("013457@$!|", "oieastasii")
_LEETED = frozenset("013457@$")
_BETWEEN = ".-_*|/~+,"
_SIGNS = "<[{#:!\x1b"  # without one of these, no structure
_DATA = ("{", "[", "<", "%PDF")  # what is not marked for being encoded alone
_BACKWARDS = ("snoitcurtsni", "tpmorp metsys")
_ROT13 = ("vafgehpgvbaf", "flfgrz cebzcg")
# What shows nothing, where it must be a message: tags, variation selectors or joiners in a row, a
# forced direction.
_UNSEEN_RUN = (
    "[\U000e0020-\U000e007e]{3}|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3}|[\u202d\u202e]"
    "|[\u200b-\u200f\u2060-\u2064\ufeff\u00ad\u034f\u180e\u3164\uffa0\u115f\u1160\u2800]{4}"
)
_FLAG = "\U0001f3f4[\U000e0020-\U000e007e]{1,12}\U000e007f"
_SPELLED = r"(?<![a-z])[a-z](?:([ .\-_*|/~+,])\1{0,2}[a-z](?![a-z]))(?:\1{1,3}[a-z](?![a-z])|\1{1,8}[a-z](?![a-z])){3,400}"
_APART = ("instruction", "rule")
_JOINED = ("instruction", "previousrule", "priorrule")
_TOGETHER = r"(ignore|disregard|forget)(?:all|any|the|your|of|my|these){0,3}(previous|prior|earlier|above)(instruction|rule)s?"
_BASE64 = r"(?<![\w+/=-])[A-Za-z0-9+/_-]{24,}={0,2}"
_HEX = r"(?<![0-9a-z])(?:[0-9a-f]{2}){16,}(?![0-9a-z])|(?<![0-9a-z])(?:(?:\\x|0x)?[0-9a-f]{2}[ ,:]{1,2}){16,}"
_ESCAPED = r"(?:\\u00[0-9a-f]{2}|\\x[0-9a-f]{2}|&#x?[0-9a-f]{2,4};|%[0-9a-f]{2}){6,}"
_CODE = r"(?:\\u00|\\x|%|&#x)([0-9a-f]{2});?|&#([0-9]{2,4});"
_CODES = "%2¦%4¦%5¦%6¦%7¦&#¦\\u00¦\\x"
_CODED = "\\x¦0x¦&#¦%2¦%6¦%7¦ 6"
_KEYS = (
    "ssh-rsa ",
    "ssh-ed25519 ",
    "ssh-dss ",
    "ecdsa-sha2",
    "-----BEGIN ",
    "sha256-",
    "sha384-",
    "sha512-",
    "data:image/",
    "data:font/",
    "data:audio/",
    "data:video/",
    "data:application/",
    "ey",
)


@functools.cache
def _compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(pattern, flags)


@functools.cache
def _called() -> dict[str, list[int]]:
    """Return the numbers of the rules by the words that call them."""
    found: dict[str, list[int]] = {}
    for number, rule in enumerate(RULES):
        for word in rule.calls.split():
            found.setdefault(word, []).append(number)
    return found


_ELSEWHERE = [
    number for number, rule in enumerate(RULES) if not rule.calls
]  # scripts that put no blanks between words


def marks(text: str) -> tuple[str, ...]:
    """Return the names of the rules that a text meets, in order; none for nearly every text.

    Args:
        text: What is stored, of any length; the time grows with it and no faster.
    """
    plain, unseen = text, False
    if not text.isascii():
        unseen = any(map(is_unseen, set(text).difference("\n\t\r")))
        plain = unicodedata.normalize("NFKC", text)
    found = dict.fromkeys(_structures(plain))
    if unseen and _hides(text):
        found["hidden"] = None
    folded = _folded(plain)
    words = folded.translate(_PUNCTUATION)
    found |= dict.fromkeys(_orders(folded, words))
    for disguised in _disguised(plain, folded, words):
        met = list(_orders(disguised, disguised.translate(_PUNCTUATION)))
        found |= dict.fromkeys([*met, "disguised"] if met else ())
    if _has(plain, _CODES) and (unescaped := _compiled(_CODE, re.I).sub(_sign, plain)) != plain:
        inner = _folded(unescaped)
        met = [name for name in _orders(inner, inner.translate(_PUNCTUATION)) if name not in found]
        found |= dict.fromkeys(["encoded", *met] if met else ())
    for decoded in _decoded(plain):
        inner = _folded(decoded)
        met = [*_orders(inner, inner.translate(_PUNCTUATION)), *_structures(decoded)]
        if met or not decoded.startswith(_DATA):
            found |= dict.fromkeys(["encoded", *met])
    return tuple(found)


def marked(record: "Record") -> "Record":
    """Return a record with a field that says what its text is marked with, whatever it said
    itself.
    """
    fields = {name: value for name, value in record.fields.items() if name != "suspicious"}
    names = marks(record.text)
    return record._replace(fields=fields | {"suspicious": " ".join(names)} if names else fields)


def _structures(text: str) -> Iterator[str]:
    if not any(map(text.__contains__, _SIGNS)):
        return
    lowered = text.lower()
    for rule in STRUCTURES:
        if _has(lowered, rule.needs) and _compiled(rule.pattern, re.I | re.S).search(text):
            yield rule.name


def _folded(text: str) -> str:
    """Return a text in lower case, without accents and unseen characters, with one blank between
    words.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        signs = {
            sign
            for sign in set(text).difference("\n\t\r")
            if "\u0300" <= sign <= "\u036f" or is_unseen(sign)
        }
        text = unicodedata.normalize(
            "NFC", text.translate(dict.fromkeys(map(ord, signs)) | {ord("’"): "'"})
        )
    return " ".join(text.casefold().translate(_EMPHASIS).split())


def _orders(folded: str, words: str) -> Iterator[str]:
    """Yield the names of the rules whose orders a folded text gives; `words` is the same without
    punctuation.
    """
    called = _called()
    numbers = {number for word in called.keys() & set(words.split()) for number in called[word]}
    if not folded.isascii():
        numbers.update(_ELSEWHERE)
    done: set[str] = set()
    for rule in [RULES[number] for number in sorted(numbers)]:
        if rule.name in done or not (_has(folded, rule.needs) and _has(folded, rule.also)):
            continue
        if any(not _is_talk(folded, met) for met in _compiled(rule.pattern, re.S).finditer(folded)):
            done.add(rule.name)
            yield rule.name


def _has(text: str, pieces: str) -> bool:
    return not pieces or any(
        map(text.__contains__, _pieces(pieces))
    )  # a generator costs twice as much


@functools.cache
def _pieces(pieces: str) -> tuple[str, ...]:
    return tuple(pieces.split("¦"))


_REPORTED = (
    r"\b(?:tell|tells|telling|told|ask|asks|asking|asked|instruct\w*|trick\w*|get|gets|make|makes|cause\w*|convinc\w*"
    r"|tries|try|trying|attempt\w*|order\w*|want\w*|like|such as|says?|saying|said|reads?|containing|contains?|with|of"
    r"|is|called|phrase|example|to)\b[^.!?]{0,48}$"
)


def _is_talk(folded: str, met: re.Match[str]) -> bool:
    """Return whether a text on attacks only tells of an order: quotes it, or says that somebody
    gives it.
    """
    around = folded[max(0, met.start() - 400) : met.start()] + folded[met.end() : met.end() + 400]
    if not _compiled(TALK).search(around):
        return False
    before, after = (
        folded[max(0, met.start() - 60) : met.start()],
        folded[met.end() : met.end() + 80],
    )
    quoted = any(sign in _QUOTES for sign in before[-24:]) and any(
        sign in _QUOTES for sign in after
    )
    return quoted or bool(_compiled(_REPORTED).search(before))


def _hides(text: str) -> bool:
    return bool(_compiled(_UNSEEN_RUN).search(_compiled(_FLAG).sub("", text)))


def _disguised(plain: str, folded: str, words: str) -> Iterator[str]:
    """Yield other forms of a folded text: with the letters that others stand for, with spelled
    words joined.

    Args:
        plain: The text.
        folded: The text, folded.
        words: The same without punctuation.
    """
    if not plain.isascii() and (other := folded.translate(_LOOK_ALIKE)) != folded:
        yield other
    pieces = folded.split(" ")
    spelled = (word[1] == word[3] == word[5] in _BETWEEN for word in pieces if len(word) > 8)
    if list(map(len, pieces)).count(1) > 5 or any(spelled):
        yield _folded(_compiled(_SPELLED).sub(_joined, plain.casefold()))
    if (
        not _LEETED.isdisjoint(folded)
        and sum(_is_leet(word) for word in pieces if len(word) > 3) > 1
    ):
        yield folded.translate(_LEET)
    joined = words.replace(" ", "")
    if any(map(joined.__contains__, _JOINED)) and not any(
        word.startswith(_APART) for word in pieces
    ):
        yield _compiled(_TOGETHER).sub(r" \1 \2 \3s ", joined)
    if any(map(folded.__contains__, _BACKWARDS)):
        yield folded[::-1]
    if any(map(folded.__contains__, _ROT13)):
        yield "".join(
            chr((ord(sign) - 84) % 26 + 97) if "a" <= sign <= "z" else sign for sign in folded
        )


def _is_leet(word: str) -> bool:
    """Return whether signs stand for letters in a word: there are some in it, and letters too."""
    return (
        not _LEETED.isdisjoint(word[:-1]) and len(word) < _LONG_WORD and any(map(str.isalpha, word))
    )


def _joined(spelled: re.Match[str]) -> str:
    """Return words that were spelled out: where the sign between the letters is doubled, one word
    ends.
    """
    sign, text = spelled[1], spelled[0]
    return " ".join(
        part.replace(sign, "") for part in text.replace(sign * 3, sign * 2).split(sign * 2)
    )


def _decoded(text: str) -> Iterator[str]:
    """Yield what encoded parts of a text say; nothing for a blob that can't be read."""
    long = max(map(len, text.split()), default=0) >= _LONG_WORD
    if not long and not _has(text, _CODED):
        return
    for part in _first(_BASE64, text):
        said = _from_base64(part[0])
        if _reads(said):
            yield said
        elif _is_blob(part[0]) and not any(
            key in text[max(0, part.start() - 60) : part.start() + 2] for key in _KEYS
        ):
            yield said if said.startswith(_DATA) else ""
    for part in _first(_ESCAPED, text):
        codes = _compiled(_CODE, re.I).findall(part[0])
        said = bytes(int(other or code, 10 if other else 16) % 256 for code, other in codes).decode(
            "utf-8", "replace"
        )
        if _reads(said):
            yield said
    for part in _first(_HEX, text):
        digits = _compiled(r"\\x|0x|[, :]", re.I).sub("", part[0])
        said = bytes.fromhex(digits[: len(digits) // 2 * 2]).decode("utf-8", "replace")
        if _reads(said):
            yield said


def _sign(code: re.Match[str]) -> str:
    return chr(int(code[2] or code[1], 10 if code[2] else 16))


def _first(pattern: str, text: str) -> Iterator[re.Match[str]]:
    return itertools.islice(_compiled(pattern, re.I).finditer(text), MAX_DECODED)


def _from_base64(part: str) -> str:
    """Return the text that a part encodes in base64; empty if that is not text."""
    plain = part.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return binascii.a2b_base64(plain + "=" * (-len(plain) % 4)).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""


def _reads(said: str) -> bool:
    """Return whether decoded text is a sentence: printable, of words with blanks between them."""
    if (
        len(said) < 12
        or " " not in said.strip()
        or not said.replace("\n", " ").replace("\t", " ").isprintable()
    ):
        return False
    return sum(sign.isalpha() or sign == " " for sign in said) > 0.7 * len(said)


def _is_blob(part: str) -> bool:
    kinds = (str.isdigit, str.islower, str.isupper)
    return len(part) > _BLOB and "//" not in part and all(any(map(kind, part)) for kind in kinds)
