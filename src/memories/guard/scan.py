"""Where the secrets of a text are. A rule is compiled when one of its literals is first met, and
tried only there.
"""

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from memories.guard import contexts, rules, spoken, values
from memories.guard.rules import Rule

MAX_KEY = 20_000  # characters of a private key
# literals inside of a value that was none which are tried; a row of hundreds would take seconds
_INSIDE = 3
_LEAST_RUN = r"[A-Za-z0-9_$./+=~:!%@-]{16,}"
_LONG_WORD = r"\S{16}"
_LONG_RUN = r"[A-Za-z0-9_.-]{31}"
_LONG = 31
_RUN = r"[A-Za-z0-9_=+/.:-]{20,}"
_DIGITS = r"\d(?:[ -]?[0-9a-z]){11}"
_UNSEEN = (
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e01ef]"
)
# A sign and the marks over it, or the parts of a Korean syllable: what one sign may be written as.
_COMPOSED = "[\u1100-\u11ff]{1,300}|(?:[\x00-\x7f](?=[\u0300-\u036f])|[^\x00-\x7f])[\u0300-\u036f\u3099\u309a\uff9e\uff9f]{0,9}"
_ESCAPE = r"%[2-7][0-9A-Fa-f]|\\{1,2}u00[2-7][0-9A-Fa-f]|\\{1,2}x[2-7][0-9A-Fa-f]|&#x?[2-7][0-9A-Fa-f]{1,2};"
_BASE64 = r"[A-Za-z0-9+/_-]{24,}={0,2}"
_BREAK = r"(?<=[A-Za-z0-9_=+/.-]{8})(?:\\?\r?\n[ \t]{0,16}|(?:\\r)?\\n)(?=[A-Za-z0-9_=+/.-]{8})"
# Two literals that a program puts together, a token in pieces with blanks between them, a token
# that is spelled out.
_SPLIT = (
    r"""["'`](?<=[A-Za-z0-9_=+/.-]{3}.)[ \t]{0,8}[+.&]?[ \t]{0,8}\\?(?:\r?\n[ \t]{0,16}[+.&]?[ \t]{0,4})?["'`]"""
    r"(?=[A-Za-z0-9_=+/.-]{3})"
    r"|[ ](?<=[A-Za-z0-9_-]{4} )(?<![a-z]{4} )(?=[A-Za-z_-]{0,12}[0-9]|[a-z]{1,12}[A-Z])(?=[A-Za-z0-9_-]{4})"
    r"|[ ](?<!\S\S )(?=\S \S(?:\s|$))|[ ](?<=\s\S \S )(?=\S(?:\s|$))"
)
# letters that one sign stands for in no word that names a secret: whole phrases of Arabic
_LONG_FORM = 8
_ROW = 64  # of one sign; no literal has more
_KEY_HEADER = "PRIVATE KEY"
_PUTTY, _PUTTY_END = "PuTTY-User-Key-File-", "Private-MAC:"
_KEY_PIECE = r"(?:\s|\\+[nrt]|[\"'>|+,])*([A-Za-z0-9+/=]+)"
_KEY_HEADERS = r"(?:\s|\\+[nrt])*(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Subject)\s?:[^\n\\]{0,200}(?:\s|\\+[nrt])*){0,6}"


class Found(NamedTuple):
    """A secret: where it is, and of which kind."""

    start: int
    end: int
    kind: str


class Rules(NamedTuple):
    """Rules by their literals: by a sign that each of a group has, so that one look spares the
    whole group.

    `clean` has some short texts in which they find nothing.
    """

    tokens: tuple[tuple[str, tuple[tuple[str, tuple[Rule, ...]], ...]], ...]
    contexts: tuple[tuple[str, tuple[tuple[str, tuple[Rule, ...]], ...]], ...]
    everywhere: tuple[Rule, ...]
    clean: set[str]


@functools.cache
def rules_of(*, personal: bool, own: tuple[Rule, ...]) -> Rules:
    """Return the rules in the form in which they are looked up; `own` are those of the user."""
    more = contexts.PERSONAL if personal else ()
    return Rules(
        _by_sign(rules.TOKENS), _by_sign((*contexts.CONTEXTS, *more, *own)), contexts.NUMBERS, set()
    )


def _by_sign(
    table: Iterable[Rule],
) -> tuple[tuple[str, tuple[tuple[str, tuple[Rule, ...]], ...]], ...]:
    literals: dict[str, list[Rule]] = {}
    for rule in table:
        for anchor in rule.anchors:
            literals.setdefault(anchor, []).append(rule)
    groups: dict[str, list[tuple[str, tuple[Rule, ...]]]] = {}
    for anchor, of_it in literals.items():
        sign = next((sign for sign in "_$!=/@+-:.~ " if sign in anchor), anchor[0])
        groups.setdefault(sign, []).append((anchor, tuple(of_it)))
    return tuple((sign, tuple(group)) for sign, group in groups.items())


def find(text: str, known: Rules) -> list[Found]:
    """Return the secrets of a text in order, none over another; also those in the disguises that
    are undone below.
    """
    if "[redacted:" in text:  # what was replaced before is no value, whatever stands before it
        text = re.sub(values.MARK, lambda mark: f"[{'.' * (len(mark[0]) - 2)}]", text)
    seen = _seen(text)
    found = _scan(text if seen is None else seen.text, known)
    if seen is not None:
        found = seen.back(found)
    looks = (
        [_Copy.of(text, _ESCAPE, _unescaped)] if "%" in text or "\\" in text or "&#" in text else []
    )
    joined = _Copy.of(text, _BREAK, lambda _: "") if "\n" in text or "\\n" in text else None
    split = _Copy.of(text, _SPLIT, lambda _: "") if re.search("[0-9]", text) else None
    found += _encoded(text, known) if joined is None else joined.back(_encoded(joined.text, known))
    for copy in filter(None, (joined, split)):
        found += copy.back(_joined(copy, known))
    for copy in filter(None, looks):
        found += copy.back(_scan(copy.text, known))
    return _merged(found)


def _merged(found: Iterable[Found]) -> list[Found]:
    merged: list[Found] = []
    for each in sorted(found, key=lambda each: (each.start, -each.end)):
        if merged and each.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(each.end, merged[-1].end))
        else:
            merged.append(each)
    return merged


# --- disguises
# -------------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    copied: int  # where it begins in the copy
    start: int
    end: int
    same: bool


class _Copy(NamedTuple):
    """A text in which something was replaced, and where each piece of it comes from."""

    text: str
    pieces: list[_Piece]

    @classmethod
    def of(cls, text: str, pattern: str, write: Callable[[re.Match[str]], str]) -> "_Copy | None":
        """Return the copy with each match of a pattern written otherwise; None if there is none."""
        parts: list[str] = []
        pieces: list[_Piece] = []
        length = at = 0
        for match in re.finditer(pattern, text):
            written = write(match)
            if written == match[0]:
                continue
            start, end = match.span()
            if start > at or not pieces:
                pieces.append(_Piece(length, at, start, True))
                parts.append(text[at:start])
                length += start - at
            pieces.append(_Piece(length, start, end, False))
            parts.append(written)
            length += len(written)
            at = end
        if not pieces:
            return None
        pieces.append(_Piece(length, at, len(text), same=True))
        return cls("".join([*parts, text[at:]]), pieces)

    def back(self, found: Iterable[Found]) -> list[Found]:
        """Return what was found in the copy, where it is in the text."""
        starts = [piece.copied for piece in self.pieces]
        return [
            Found(self._at(starts, each.start), self._end(starts, each.end), each.kind)
            for each in found
        ]

    def cuts(self) -> list[int]:
        """Return the places in the copy where something was written otherwise."""
        return [piece.copied for piece in self.pieces if not piece.same]

    def _at(self, starts: list[int], place: int) -> int:
        piece = self.pieces[bisect_right(starts, place) - 1]
        return piece.start + (place - piece.copied if piece.same else 0)

    def _end(self, starts: list[int], place: int) -> int:
        piece = self.pieces[bisect_right(starts, place - 1) - 1]
        return piece.start + place - piece.copied if piece.same else piece.end


def _seen(text: str) -> _Copy | None:
    """Return a copy without what can't be seen, and with the plain form of letters such as
    full-width ones.
    """
    if text.isascii():
        return None
    import unicodedata

    if unicodedata.is_normalized("NFKC", text) and not re.search(_UNSEEN, text):
        return None
    return _Copy.of(text, _COMPOSED, lambda signs: _composed(signs[0]))


@functools.lru_cache(maxsize=4096)
def _composed(signs: str) -> str:
    import unicodedata

    if re.match(_UNSEEN, signs):
        return ""
    plain = unicodedata.normalize("NFKC", signs)
    return plain if len(plain) < _LONG_FORM * len(signs) else signs


def _unescaped(escape: re.Match[str]) -> str:
    digits = escape[0].strip("&#;%\\")
    return chr(
        int(digits.lstrip("ux"), 16 if not escape[0].startswith("&#") or "x" in digits else 10)
    )


def _joined(copy: _Copy, known: Rules) -> list[Found]:
    """Return the tokens that go across what was taken out, of the kinds that their own form
    shows.
    """
    found: list[Found] = []
    cuts = copy.cuts()
    for run in re.finditer(_RUN, copy.text):
        first = bisect_right(cuts, run.start())
        if first < len(cuts) and cuts[first] < run.end():
            inside = _scan(run[0], known, alone=True)
            found += [
                each._replace(start=each.start + run.start(), end=each.end + run.start())
                for each in inside
            ]
    return found


def has_long_word(text: str) -> bool:
    """Return whether a text has 16 characters without a blank, as every token and whatever is
    encoded has.
    """
    return re.search(_LONG_WORD, text) is not None


def _encoded(text: str, known: Rules) -> list[Found]:
    """Return the base64 tokens that decode to a text with a secret."""
    found: list[Found] = []
    if not has_long_word(text):
        return found
    for token in re.finditer(_BASE64, text):
        plain = values.decoded(token[0])
        inner = plain and _scan(plain, known)
        if inner:
            found.append(Found(token.start(), token.end(), inner[0].kind))
    return found


# --- one text as it stands
# -------------------------------------------------------------------------------------------


def _scan(text: str, known: Rules, *, alone: bool = False) -> list[Found]:
    """Return the secrets of a text as it stands; `alone`, only tokens that their own form tells."""
    low = text.lower()
    if len(low) != len(text):  # one letter becomes two
        low = text.replace("İ", "i").lower()
    found: list[Found] = []
    if has_long_word(low) and (runs := " ".join(re.findall(_LEAST_RUN, low))):
        found += _at_literals(text, low, known.tokens, runs)
        if len(runs) >= _LONG and re.search(_LONG_RUN, runs):
            for rule in contexts.LONG:
                found += _everywhere(text, rule)
    if alone:
        return found
    found += _private_keys(text)
    found += _at_literals(text, low, known.contexts, low)
    found += [Found(*each) for each in spoken.find(text, low)]
    if re.search(_DIGITS, low):
        for rule in known.everywhere:
            found += _everywhere(text, rule)
    return found


def _at_literals(
    text: str,
    low: str,
    groups: tuple[tuple[str, tuple[tuple[str, tuple[Rule, ...]], ...]], ...],
    among: str,
) -> Iterator[Found]:
    """Yield what the rules find whose literals are in `among`, which has every place where one of
    them may hold.
    """
    for sign, literals in groups:
        if sign in among:
            for literal, of_it in literals:
                if literal in among:
                    for rule in of_it:
                        yield from _one(text, low, rule, literal, low.find(literal))


def _one(text: str, low: str, rule: Rule, literal: str, at: int) -> Iterator[Found]:
    """Yield what one rule finds at the places of one of its literals, of which the first is
    known.
    """
    match = _compiled(rule.pattern).match
    done = refused = inside = 0
    while at >= 0:
        inside = inside + 1 if at < refused else 0
        if inside > _INSIDE:
            at = low.find(literal, refused)
            continue
        end = 0
        for place in range(max(done, at - rule.before), at + 1):
            matched = match(text, place)
            span = matched and rule.locate(matched)
            if matched and span:
                yield Found(*span, rule.kind)
                end = span[1]
                break
            if matched and rule.line:
                end = matched.end()
                break
            if matched:
                refused = max(refused, matched.end())
        done = max(done, end)
        at = low.find(literal, max(at + 1 if end else _next_try(low, literal, at), done))


def _next_try(low: str, literal: str, at: int) -> int:
    """Return where to look on after a try that failed: of a long row of one sign only the end is
    tried.
    """
    if len(set(literal)) == 1:
        row = literal[0] * _ROW
        while low.startswith(row, at + 1):
            at += _ROW
    return at + 1


def _everywhere(text: str, rule: Rule) -> Iterator[Found]:
    for matched in _compiled(rule.pattern).finditer(text):
        span = rule.locate(matched)
        if span:
            yield Found(*span, rule.kind)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _private_keys(text: str) -> Iterator[Found]:
    """Yield private keys: from their header to their end, or as far as the key goes if the end is
    missing.
    """
    at = text.find(_KEY_HEADER)
    while at >= 0:
        start = text.rfind("BEGIN", max(0, at - 40), at)
        header = re.compile(r"(?: BLOCK)?-{4,5}").match(text, at + len(_KEY_HEADER))
        end = _key_end(text, header.end()) if start >= 0 and header else 0
        if end:
            dashes = start - len(text[max(0, start - 6) : start].rstrip("- ")) - max(0, start - 6)
            yield Found(start - dashes, end, "private_key")
        at = text.find(_KEY_HEADER, max(at + 1, end))
    at = text.find(_PUTTY)
    while at >= 0:
        end = text.find(_PUTTY_END, at, at + MAX_KEY)
        line = text.find("\n", end, end + 200) if end >= 0 else -1
        stop = min(len(text), at + MAX_KEY) if end < 0 else end + 120 if line < 0 else line
        if re.search(r"[A-Za-z0-9+/]{32}", text[at:stop]):
            yield Found(at, min(stop, len(text)), "private_key")
        at = text.find(_PUTTY, max(at + 1, stop))


def _key_end(text: str, body: int) -> int:
    """Return where a private key ends whose body begins here; 0 if no key follows."""
    at = _compiled(_KEY_HEADERS).match(text, body).end()  # type: ignore[union-attr]
    token, longest, last = _compiled(_KEY_PIECE), 0, 0
    while at - body < MAX_KEY and (found := token.match(text, at)):
        word = found[1]
        if (
            longest
            and len(word) < 16
            and not word.endswith("=")
            and not re.search(r"[0-9+/]|[a-z][A-Z]", word)
        ):
            break
        if not longest and len(word) < 16:
            return 0
        longest = max(longest, len(word))
        at = last = found.end()
    if longest < 24:
        return 0
    trailer = re.compile(
        r"(?:\s|\\+[nrt]|[\"'>|+,])*-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-{4,5})?"
    ).match(text, last)
    return trailer.end() if trailer else last
