"""Splits a text into sentences, hashes them, and compares them with known texts."""

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence

from memories import languages
from memories.context.passages import stems
from memories.languages.text import normal_form

MAX_TEXT = 200_000
_WRAP_WIDTH = 60  # a line of at least this many characters may continue on the next line
# Code, and the text that a command pipes to `codex exec`.
_CODE = re.compile(r"(?:```|~~~).*?(?:```|~~~|\Z)|^<stdin>$.*?(?:^</stdin>$|\Z)", re.S | re.M)
# Quoted lines, tables, rules, commands and their output, stack traces, JSON, and indented code.
_NOT_PROSE = re.compile(
    r"\s*(?:>|\||[-=_*]{3,}\s*$|\$ |>>> |\+\+\+|@@|at \w[\w.]*\(|\[?\{\s*\")"
    r"|(?: {4,}|\t)(?!\s*(?:[-*•]|\d+[.)])\s)"
)
_BULLET = re.compile(r"\s*(?:(?:[-*•+]|\d{1,3}[.)]|#{1,6})\s+)?(?:\[[ xX]\]\s+)?")
_NO_ABBREVIATION = (
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bno)(?<!\bca)(?<!\bz\.B)"
    r"(?<!\bMr)(?<!\bMs)(?<!\bDr)"
)
_END = re.compile(rf"(?<![.!?…]){_NO_ABBREVIATION}[.!?…]+[\"'”’)\]*_]*(?=\s)|[。！？]+[」』”’）]*")
_EMPHASIS = re.compile(r"(?<![\w*])(\*\*|__|\*|_)(?=\S)(.{1,200}?)(?<=\S)\1(?![\w*])")

# The start of a recalled memory in a context.
_ITEM = re.compile(r"^(?:- )?[0-9a-f]{8}-[0-9a-f]{4}\S* [^:]{0,120}: ")
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"[^\s.,;:!?()\"“”«»।]+")  # a word with its vowel marks, which `\w` lacks
_NEGATIONS = re.compile(r"\b(?:not|no|never|none|without|cannot)\b|n't\b")  # English has no file
# Words that people add when they repeat known facts.
_REPEATING = (
    "user told tells said says remember remembered mentioned earlier previously noted recall "
    "recalled memory memories stored saved important decided learned discovered solved preference "
    "todo according know known please also still team project currently always usually already "
    "really actually indeed yes right chose chosen"
)
_QUERY_WORDS = 40  # number of words passed to `stems` at a time; it ignores the rest of a long text


def split_sentences(text: str) -> list[str]:
    """Return a text's sentences in order, without Markdown for emphasis and lists."""
    sentences: list[str] = []
    for paragraph in _paragraphs(_CODE.sub("\n\n", text[:MAX_TEXT])):
        start = 0
        for end in _END.finditer(paragraph):
            sentences.append(paragraph[start : end.end()].strip())
            start = end.end()
        sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _paragraphs(text: str) -> list[str]:
    """Return the text's lines of prose, with the lines of wrapped sentences joined."""
    paragraphs: list[str] = []
    length = 0  # length of the previous line, if its sentence may continue
    for line in text.split("\n"):
        if not line.strip() or _NOT_PROSE.match(line):
            length = 0
            continue
        bullet = _BULLET.match(line)
        start = bullet.end() if bullet else 0
        prose = _EMPHASIS.sub(r"\2", line[start:]).strip()
        is_item = bullet is not None and bullet[0].strip() != ""
        if length >= _WRAP_WIDTH and not is_item and prose[:1].islower():
            paragraphs[-1] = f"{paragraphs[-1]} {prose}"
        elif prose:
            paragraphs.append(prose)
        may_continue = prose and prose[-1] not in ".!?:;。！？…"
        length = len(line) if may_continue else 0
    return paragraphs


def hash_sentences(text: str) -> set[str]:
    """Return hashes of a text and of its sentences, ignoring case and punctuation.

    Code and quotations are part of the text, but not of its sentences.
    """
    hashes = set()
    for sentence in (*split_sentences(text), text):
        words = " ".join(_WORD.findall(normal_form(sentence)))
        if words:
            hashes.add(hashlib.blake2b(words.encode(), digest_size=8).hexdigest())
    return hashes


def repeats(sentence: str, texts: Iterable[str]) -> bool:
    """Return whether one of the texts contains every word of a sentence, except `_REPEATING` words,
    in the same order.

    A sentence with a different number or negation is new. Paraphrases are left to the store,
    which compares meanings.
    """
    sentence = _ITEM.sub("", sentence)
    words = [word for word in stems(sentence) if word not in _repeating_stems()]
    form = normal_form(sentence)
    if not words:
        return True
    numbers = set(re.findall(r"\d+", form))
    is_negated = _is_negated(sentence)
    for text in texts:
        other = normal_form(text)
        if not numbers <= set(re.findall(r"\d+", other)):
            continue
        # Each sentence is also compared on its own, because `_all_stems` leaves out repeated words.
        parts = (text, *split_sentences(text))
        sequences = (iter(_all_stems(normal_form(part))) for part in parts)
        # Each `in` continues after the previous word, so the words must be in this order.
        has_words = any(all(word in sequence for word in words) for sequence in sequences)
        if has_words and is_negated == _is_negated(text):
            return True
    return False


def _is_negated(text: str) -> bool:
    codes = languages.detect(text)
    is_in_language = any(languages.sense(word, codes) == "not" for word in _TOKEN.findall(text))
    return is_in_language or _NEGATIONS.search(normal_form(text)) is not None


@functools.cache
def _repeating_stems() -> frozenset[str]:
    return frozenset(_all_stems(_REPEATING))


def _all_stems(text: str) -> Sequence[str]:
    """Return the stems in a text of any length."""
    words = text.split()
    text_stems: list[str] = []
    for start in range(0, len(words), _QUERY_WORDS):
        text_stems += stems(" ".join(words[start : start + _QUERY_WORDS]))
    return text_stems
