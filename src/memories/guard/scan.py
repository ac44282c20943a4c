"""Finds the secrets in a text, even those disguised by escapes, base64 or splitting.

A rule with literals is compiled when one of them first occurs, and is tried only where they occur.
"""

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from memories.guard import contexts, rules, spoken, values
from memories.guard.rules import Rule, SecretSpan

MAX_KEY = 20_000  # maximum length of a private key in characters
# maximum number of literals tried in a match that was not a secret; hundreds would take seconds
_MAX_INSIDE = 3
_LONG_RUNS = r"[A-Za-z0-9_$./+=~:!%@-]{16,}"
_LONG_WORD = r"\S{16}"
_LONG_RUN = r"[A-Za-z0-9_.-]{31}"
_LONG = 31
_RUN = r"[A-Za-z0-9_=+/.:-]{20,}"
_DIGITS = r"\d(?:[ -]?[0-9a-z]){11}"
_UNSEEN = (
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e01ef]"
)
# A decomposed character: a letter with its marks, or the parts of a Korean syllable.
_COMPOSED = (
    "[\u1100-\u11ff]{1,300}"
    "|(?:[\x00-\x7f](?=[\u0300-\u036f])|[^\x00-\x7f])[\u0300-\u036f\u3099\u309a\uff9e\uff9f]{0,9}"
)
_ESCAPE = (
    r"%[2-7][0-9A-Fa-f]|\\{1,2}u00[2-7][0-9A-Fa-f]|\\{1,2}x[2-7][0-9A-Fa-f]"
    r"|&#x?[2-7][0-9A-Fa-f]{1,2};"
)
_BASE64 = r"[A-Za-z0-9+/_-]{24,}={0,2}"
_BREAK = r"(?<=[A-Za-z0-9_=+/.-]{8})(?:\\?\r?\n[ \t]{0,16}|(?:\\r)?\\n)(?=[A-Za-z0-9_=+/.-]{8})"
# Two literals concatenated in code, a token in pieces separated by spaces, a spelled-out token.
_SPLIT = (
    r"""["'`](?<=[A-Za-z0-9_=+/.-]{3}.)[ \t]{0,8}[+.&]?[ \t]{0,8}"""
    r"""\\?(?:\r?\n[ \t]{0,16}[+.&]?[ \t]{0,4})?["'`]"""
    r"(?=[A-Za-z0-9_=+/.-]{3})"
    r"|[ ](?<=[A-Za-z0-9_-]{4} )(?<![a-z]{4} )(?=[A-Za-z_-]{0,12}[0-9]|[a-z]{1,12}[A-Z])"
    r"(?=[A-Za-z0-9_-]{4})"
    r"|[ ](?<!\S\S )(?=\S \S(?:\s|$))|[ ](?<=\s\S \S )(?=\S(?:\s|$))"
)
# Some Arabic characters stand for a whole phrase. One with at least this many letters never names a
# secret.
_LONG_FORM = 8
_ROW = 64  # number of equal characters skipped at once; no literal contains so many
_KEY_HEADER = "PRIVATE KEY"
_PUTTY, _PUTTY_END = "PuTTY-User-Key-File-", "Private-MAC:"
_KEY_PIECE = r"(?:\s|\\+[nrt]|[\"'>|+,])*([A-Za-z0-9+/=]+)"
_KEY_HEADERS = (
    r"(?:\s|\\+[nrt])*"
    r"(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Subject)\s?:"
    r"[^\n\\]{0,200}(?:\s|\\+[nrt])*){0,6}"
)
_KEY_TRAILER = (
    r"(?:\s|\\+[nrt]|[\"'>|+,])*-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-{4,5})?"
)


class _Group(NamedTuple):
    """A character, the literals that contain it, and the rules to try at each literal."""

    character: str
    literals: tuple[tuple[str, tuple[Rule, ...]], ...]


class RuleSet(NamedTuple):
    """Rules, keyed by their literals and grouped, so that one search for a character can exclude an
    entire group.

    Attributes:
        tokens: Rules for tokens, which are at least 16 characters without a space.
        contexts: Rules for values that are recognized by their context.
        numbers: Rules tried everywhere in a text that contains a long number.
        clean: A cache of short texts in which these rules find nothing.
    """

    tokens: tuple[_Group, ...]
    contexts: tuple[_Group, ...]
    numbers: tuple[Rule, ...]
    clean: set[str]


@functools.cache
def build_rules(*, personal: bool, user_rules: tuple[Rule, ...]) -> RuleSet:
    """Return the rules, including the user's and, if requested, those for personal data."""
    table = contexts.CONTEXTS
    if personal:
        table += contexts.PERSONAL
    return RuleSet(_group(rules.tokens()), _group(table + user_rules), contexts.NUMBERS, set())


def _group(table: Iterable[Rule]) -> tuple[_Group, ...]:
    rules_of: dict[str, list[Rule]] = {}
    for rule in table:
        for anchor in rule.anchors:
            rules_of.setdefault(anchor, []).append(rule)
    groups: dict[str, list[tuple[str, tuple[Rule, ...]]]] = {}
    for anchor, anchored in rules_of.items():
        rare = [character for character in "_$!=/@+-:.~ " if character in anchor]
        group = groups.setdefault(rare[0] if rare else anchor[0], [])
        group.append((anchor, tuple(anchored)))
    return tuple(_Group(character, tuple(literals)) for character, literals in groups.items())


def find(text: str, rule_set: RuleSet) -> list[SecretSpan]:
    """Return the secrets in a text in order, without overlaps."""
    if "[redacted:" in text:  # a marker isn't a value
        text = re.sub(values.MARK, lambda mark: f"[{'.' * (len(mark[0]) - 2)}]", text)
    normal = _normalize(text)
    secrets = _scan(text if normal is None else normal.text, rule_set)
    if normal is not None:
        secrets = normal.locate(secrets)
    joined = None
    if "\n" in text or "\\n" in text:
        joined = _Copy.replace(text, _BREAK, _remove)
    if joined is None:
        secrets += _find_encoded(text, rule_set)
    else:
        secrets += joined.locate(_find_encoded(joined.text, rule_set))
        secrets += joined.locate(_find_across_cuts(joined, rule_set))
    if re.search("[0-9]", text) and (split := _Copy.replace(text, _SPLIT, _remove)):
        secrets += split.locate(_find_across_cuts(split, rule_set))
    has_escape = "%" in text or "\\" in text or "&#" in text
    if has_escape and (unescaped := _Copy.replace(text, _ESCAPE, _unescape)):
        secrets += unescaped.locate(_scan(unescaped.text, rule_set))
    return _merge(secrets)


def _merge(secrets: Iterable[SecretSpan]) -> list[SecretSpan]:
    merged: list[SecretSpan] = []
    for secret in sorted(secrets, key=lambda secret: (secret.start, -secret.end)):
        if merged and secret.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(secret.end, merged[-1].end))
        else:
            merged.append(secret)
    return merged


# --- disguises


class _Replacement(NamedTuple):
    """A replaced part of a text: where it is in the copy, and where it was in the original."""

    copied_start: int
    copied_end: int
    start: int
    end: int


class _Copy(NamedTuple):
    """A copy of a text in which parts were replaced."""

    text: str
    replacements: list[_Replacement]

    @classmethod
    def replace(
        cls, text: str, pattern: str, write: Callable[[re.Match[str]], str]
    ) -> "_Copy | None":
        """Return a copy with each match of a pattern replaced; None if nothing changes."""
        parts: list[str] = []
        replacements: list[_Replacement] = []
        length = position = 0
        for match in re.finditer(pattern, text):
            written = write(match)
            if written == match[0]:
                continue
            start, end = match.span()
            parts += text[position:start], written
            copied_start = length + start - position
            length = copied_start + len(written)
            replacements.append(_Replacement(copied_start, length, start, end))
            position = end
        if not replacements:
            return None
        return cls("".join([*parts, text[position:]]), replacements)

    def locate(self, secrets: Iterable[SecretSpan]) -> list[SecretSpan]:
        """Return the copy's secrets at their positions in the original text."""
        cuts = self.cuts()
        located = []
        for secret in secrets:
            start, _ = self._locate_character(secret.start, cuts)
            _, end = self._locate_character(secret.end - 1, cuts)
            located.append(SecretSpan(start, end, secret.kind))
        return located

    def _locate_character(self, position: int, cuts: list[int]) -> tuple[int, int]:
        """Return where the original has a character of the copy, or the part that it replaces."""
        index = bisect_right(cuts, position) - 1
        if index < 0:
            return position, position + 1
        replacement = self.replacements[index]
        if position < replacement.copied_end:
            return replacement.start, replacement.end
        source = replacement.end + position - replacement.copied_end
        return source, source + 1

    def cuts(self) -> list[int]:
        """Return the start of each replacement in the copy."""
        return [replacement.copied_start for replacement in self.replacements]


def _remove(_: re.Match[str]) -> str:
    return ""


def _normalize(text: str) -> _Copy | None:
    """Return a copy with plain characters; None if nothing changes.

    Invisible characters are removed, and plain letters replace variants such as full-width ones.
    """
    if text.isascii():
        return None
    import unicodedata

    if unicodedata.is_normalized("NFKC", text) and not re.search(_UNSEEN, text):
        return None
    return _Copy.replace(text, _COMPOSED, lambda match: _compose(match[0]))


@functools.lru_cache(maxsize=4096)
def _compose(characters: str) -> str:
    import unicodedata

    if re.match(_UNSEEN, characters):
        return ""
    plain = unicodedata.normalize("NFKC", characters)
    if len(plain) < _LONG_FORM * len(characters):
        return plain
    return characters


def _unescape(escape: re.Match[str]) -> str:
    digits = escape[0].strip("&#;%\\")
    is_decimal = escape[0].startswith("&#") and "x" not in digits
    return chr(int(digits.lstrip("ux"), 10 if is_decimal else 16))


def _find_across_cuts(copy: _Copy, rule_set: RuleSet) -> list[SecretSpan]:
    """Return the tokens that are interrupted by a removed part of the text."""
    secrets: list[SecretSpan] = []
    cuts = copy.cuts()
    for run in re.finditer(_RUN, copy.text):
        first = bisect_right(cuts, run.start())
        if first < len(cuts) and cuts[first] < run.end():
            for secret in _scan(run[0], rule_set, tokens_only=True):
                start, end = secret.start + run.start(), secret.end + run.start()
                secrets.append(SecretSpan(start, end, secret.kind))
    return secrets


def has_long_word(text: str) -> bool:
    """Return whether a text has 16 characters in a row without a space, as tokens do."""
    return re.search(_LONG_WORD, text) is not None


def _find_encoded(text: str, rule_set: RuleSet) -> list[SecretSpan]:
    """Return the base64 tokens that decode to a text with a secret."""
    if not has_long_word(text):
        return []
    secrets: list[SecretSpan] = []
    for token in re.finditer(_BASE64, text):
        plain = values.decode_base64(token[0])
        inner = _scan(plain, rule_set) if plain else []
        if inner:
            secrets.append(SecretSpan(token.start(), token.end(), inner[0].kind))
    return secrets


# --- searching one text, without undoing disguises


def _scan(text: str, rule_set: RuleSet, *, tokens_only: bool = False) -> list[SecretSpan]:
    """Return the secrets in a text without undoing disguises.

    With `tokens_only`, secrets that are recognized only by their context are left out.
    """
    lower = text.lower()
    if len(lower) != len(text):  # a letter became two in lower case
        lower = text.replace("İ", "i").lower()
    secrets: list[SecretSpan] = []
    runs = ""
    if has_long_word(lower):
        runs = " ".join(re.findall(_LONG_RUNS, lower))
    if runs:
        secrets += _find_at_literals(text, lower, rule_set.tokens, runs)
        if len(runs) >= _LONG and re.search(_LONG_RUN, runs):
            for rule in contexts.LONG:
                secrets += _find_everywhere(text, rule)
    if tokens_only:
        return secrets
    secrets += _find_private_keys(text)
    secrets += _find_putty_keys(text)
    secrets += _find_at_literals(text, lower, rule_set.contexts, lower)
    secrets += spoken.find(text, lower)
    if re.search(_DIGITS, lower):
        for rule in rule_set.numbers:
            secrets += _find_everywhere(text, rule)
    return secrets


def _find_at_literals(
    text: str, lower: str, groups: tuple[_Group, ...], runs: str
) -> Iterator[SecretSpan]:
    """Yield the secrets at the literals in `runs`, the parts of the text where rules may match."""
    for character, literals in groups:
        if character not in runs:
            continue
        for literal, anchored in literals:
            if literal in runs:
                for rule in anchored:
                    yield from _find_at_literal(text, lower, rule, literal)


def _find_at_literal(text: str, lower: str, rule: Rule, literal: str) -> Iterator[SecretSpan]:
    """Yield the secrets that one rule finds at the occurrences of one of its literals."""
    match_at = _compile(rule.pattern).match
    searched_to = refused_to = tries_inside = 0
    position = lower.find(literal)
    while position >= 0:
        tries_inside = tries_inside + 1 if position < refused_to else 0
        if tries_inside > _MAX_INSIDE:
            position = lower.find(literal, refused_to)
            continue
        end = 0
        for start in range(max(searched_to, position - rule.before), position + 1):
            match = match_at(text, start)
            if match is None:
                continue
            span = rule.locate(match)
            if span is not None:
                yield SecretSpan(*span, rule.kind)
                end = span[1]
                break
            if rule.line:
                end = match.end()
                break
            refused_to = max(refused_to, match.end())
        searched_to = max(searched_to, end)
        following = position + 1 if end else _skip_row(lower, literal, position)
        position = lower.find(literal, max(following, searched_to))


def _skip_row(lower: str, literal: str, position: int) -> int:
    """Return where to continue after a failed match.

    This is the next position or, for a literal of one repeated character, the end of a long run of
    that character.
    """
    if len(set(literal)) == 1:
        row = literal[0] * _ROW
        while lower.startswith(row, position + 1):
            position += _ROW
    return position + 1


def _find_everywhere(text: str, rule: Rule) -> Iterator[SecretSpan]:
    for match in _compile(rule.pattern).finditer(text):
        span = rule.locate(match)
        if span is not None:
            yield SecretSpan(*span, rule.kind)


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _find_private_keys(text: str) -> Iterator[SecretSpan]:
    """Yield PEM keys, from the header to the trailer, or to the end of the key if there is no
    trailer.
    """
    position = text.find(_KEY_HEADER)
    while position >= 0:
        start = text.rfind("BEGIN", max(0, position - 40), position)
        header = re.compile(r"(?: BLOCK)?-{4,5}").match(text, position + len(_KEY_HEADER))
        end = 0
        if start >= 0 and header:
            end = _key_end(text, header.end())
        if end:
            before = text[max(0, start - 6) : start]
            dashes = len(before) - len(before.rstrip("- "))
            yield SecretSpan(start - dashes, end, "private_key")
        position = text.find(_KEY_HEADER, max(position + 1, end))


def _find_putty_keys(text: str) -> Iterator[SecretSpan]:
    position = text.find(_PUTTY)
    while position >= 0:
        end = text.find(_PUTTY_END, position, position + MAX_KEY)
        if end < 0:
            stop = position + MAX_KEY
        else:
            newline = text.find("\n", end, end + 200)
            stop = newline if newline >= 0 else end + 120
        stop = min(stop, len(text))
        if re.search(r"[A-Za-z0-9+/]{32}", text[position:stop]):
            yield SecretSpan(position, stop, "private_key")
        position = text.find(_PUTTY, max(position + 1, stop))


def _key_end(text: str, body: int) -> int:
    """Return the end of the private key whose body begins at `body`; 0 if no key follows."""
    position = _compile(_KEY_HEADERS).match(text, body).end()  # type: ignore[union-attr]
    longest = end = 0
    while position - body < MAX_KEY:
        piece = _compile(_KEY_PIECE).match(text, position)
        if piece is None:
            break
        word = piece[1]
        if len(word) < 16:
            if not longest:
                return 0
            if not word.endswith("=") and not re.search(r"[0-9+/]|[a-z][A-Z]", word):
                break  # the key has ended, and this word is ordinary text
        longest = max(longest, len(word))
        position = end = piece.end()
    if longest < 24:
        return 0
    trailer = re.compile(_KEY_TRAILER).match(text, end)
    return trailer.end() if trailer else end
