"""Splits a text into sentences, hashes them, and compares them with known texts."""

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memories import languages
from memories.context.passages import stems
from memories.languages.text import normal_form

MAX_TEXT = 200_000
_WRAP_WIDTH = 60  # a line of at least this many characters may continue on the next line
# Code, quotations of several lines, and the text that a command pipes to `codex exec`.
_CODE = re.compile(
    r"(?P<fence>`{3,}|~{3,}|\"{3}).*?(?:(?P=fence)|\Z)"
    r"|^[\"“„«「『][^\"”“»」』\n]*\n[^\"”“»」』]*[\"”“»」』]$"
    r"|^<stdin>$.*?(?:^</stdin>$|\Z)",
    re.S | re.M,
)
# Elements with what someone else wrote. The excluded ones are for the user's own rules and tasks.
_TAG = re.compile(
    r"^<(?P<end>/?)(?P<name>(?!(?:background|constraint|context|convention|goal|guideline|instruction"
    r"|note|preference|prompt|requirement|rule|style|task)s?\b)[\w-]+)(?: [^\n>]*)?>$",
    re.M | re.I,
)
# Quoted lines, tables, rules, commands and their output, stack traces, and JSON.
_NOT_PROSE = re.compile(r"\s*(?:>|\||[-=_*]{3,}\s*$|\$ |>>> |\+\+\+|@@|at \w[\w.]*\(|\[?\{\s*\")")
_INDENTED = re.compile(r" {4,}|\t")
_BULLET = re.compile(
    r"\s*(?:(?:[-*•+–—]|\d{1,3}[.)]|\(?(?:\d{1,3}|[a-zA-Z])\)|#{1,6})\s+|・\s*|\d{1,2}[．、]\s*)?"
    r"(?:\[[ xX]\]\s+)?"
)
_END = re.compile(
    r"(?P<quotation>\"[^\"]*\"|“[^“”]*”|„[^„“”]*[“”]|«[^«»]*»|「[^「」]*」|『[^『』]*』"
    r"|(?<!\w)'(?:[^']|(?<=\w)'(?=\w))*'(?!\w)|‘(?:[^‘’]|(?<=\w)’(?=\w))*’(?!\w))"
    r"|(?<![.!?…])[.!?…]+(?P<close>[\"'”’)\]*_]*)(?=\s)(?!(?<=\b[^\W\d_]\.)\s[^\W\d_]{1,2}\.)"
    r"|[。！？]+[」』”’）]*"
)
_QUOTED_END = re.compile(r"[.!?…]\s?.(?=\s)|[。！？].")
_GOES_ON = re.compile(r"\s*(\w)")
_DATE = r"Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec"
_ABBREVIATION = re.compile(
    r"\b(?:[^\W\d_]\.\s?[^\W\d_]{1,2}|vs|etc|no|[Nn]r|ca|bzw|usw|M[rs]|Mrs|Dr|Prof|St"
    rf"|{_DATE})$"
)
# Abbreviations after which a sentence ends if a capital letter follows.
_MAY_END = re.compile(rf"\b(?:[AaPp]\.[Mm]|(?!Z)[A-Z]\.[A-Z]|etc|usw|{_DATE})\.(?=\s+(?P<next>\w))")
# The number of an ordinal and its period, as in "am 3. Mai".
_ORDINAL = re.compile(r"(?<!\S)(?:(?P<before>\S+)\s)?\d\d?\.(?=\s+(?P<next>\w+))")
_BEFORE_GERMAN_ORDINAL = re.compile(
    r"(?i)am|vom|zu[mr]|de[rnms]|die|das|ab|bis|im|jede[rnms]?|diese[rnms]?|eine?[rnms]?|und|oder"
    r"|.*\W"
)
_GERMAN_MONTH = re.compile(r"(?i)jan|feb|mär|apr|mai|jun|jul|aug|sep|okt|nov|dez")
_WITH_ORDINALS = {"fi", "pl", "tr"}
_EMPHASIS = re.compile(r"(?<![\w*])(\*\*|__|\*|_)(?=\S)(.{1,200}?)(?<=\S)\1(?![\w*])")

# The start of a recalled memory in a context.
_ITEM = re.compile(r"^(?:- )?[0-9a-f]{8}-[0-9a-f]{4}\S* [^:]{0,120}: ")
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"[^\s.,;:!?()\"“”«»।]+")  # a word with its vowel marks, which `\w` lacks
# English; `languages` has files only for other languages.
_NEGATIONS = re.compile(r"\b(?:not|no|never|none|without|cannot)\b|n't\b")
# Words that people add when they repeat known facts.
_REPEATING = (
    "user told tells said says remember remembered mentioned earlier previously noted recall "
    "recalled memory memories stored saved important decided learned discovered solved preference "
    "todo according know known please also still team project currently always usually already "
    "really actually indeed yes right chose chosen"
)
_QUERY_WORDS = 40  # words passed to `stems` at a time, since it ignores the rest of a long text


class Sentence(NamedTuple):
    """A sentence of a text.

    Attributes:
        text: The sentence.
        lead: For an item of a list: the list's heading, or the line above the list if it ends in a
            colon. For a nested list: the leads of all levels. It always ends in a colon.
    """

    text: str
    lead: str = ""


class _Paragraph(NamedTuple):
    """A line of prose, joined with the lines that continue it. Items of lists have an indent."""

    text: str
    indent: int | None
    is_heading: bool


def split_sentences(text: str) -> list[str]:
    """Return a text's sentences in order, without Markdown for emphasis and lists.

    A quotation is not split into sentences.
    """
    return [sentence.text for sentence in read_sentences(text)]


def read_sentences(text: str) -> list[Sentence]:
    """Return a text's sentences in order, each with its lead; see `split_sentences`."""
    sentences: list[Sentence] = []
    leads: list[tuple[int, str]] = []  # the lines that introduce the next item, with their indents
    for paragraph, indent, is_heading in _paragraphs(_without_code(text[:MAX_TEXT])):
        leads = [each for each in leads if indent is not None and each[0] < indent]
        lead = " ".join(each for _, each in leads)
        start = 0
        for end in (*_ends(paragraph), len(paragraph)):
            if sentence := paragraph[start:end].strip():
                sentences.append(Sentence(sentence, lead))
                start = end
        if is_heading or paragraph.endswith((":", "：")):
            last = sentences[-1].text
            leads.append((-1 if indent is None else indent, last.rstrip(":： ") + ":"))
    return sentences


def _without_code(text: str) -> str:
    """Return a text without code and without elements such as `<mail>…</mail>`.

    The tags of such an element are on lines of their own.
    """
    text = _CODE.sub("\n\n", text)
    opened: dict[str, int] = {}
    tagged: list[tuple[int, int]] = []
    for tag in _TAG.finditer(text):
        start = opened.get(tag["name"])
        if not tag["end"]:
            opened.setdefault(tag["name"], tag.start())
        elif start is not None:
            while opened.popitem()[1] > start:
                pass
            while tagged and tagged[-1][0] > start:
                tagged.pop()
            tagged.append((start, tag.end()))
    parts, end = [], 0
    for start, next_end in tagged:
        parts.append(text[end:start])
        end = next_end
    return "\n\n".join([*parts, text[end:]])


def _ends(paragraph: str) -> Iterator[int]:
    """Yield the ends of a paragraph's sentences, in order."""
    ordinals = set(_ordinals(paragraph))
    certain = {end.end() - 1 for end in _MAY_END.finditer(paragraph) if end["next"].isupper()}
    for end in _END.finditer(paragraph):
        stop = end.start()
        if end["quotation"] and not _QUOTED_END.match(paragraph, end.end() - 2):
            continue
        if end["quotation"] or end["close"]:
            goes_on = _GOES_ON.match(paragraph, end.end())
            if goes_on and goes_on[1].islower():
                continue
        is_abbreviation = _ABBREVIATION.search(paragraph, max(stop - 6, 0), stop)
        if stop in certain or not (stop in ordinals or is_abbreviation):
            yield end.end()


def _ordinals(paragraph: str) -> Iterator[int]:
    """Yield the positions of periods that belong to ordinals, as in "am 3. Mai"."""
    ordinals = list(_ORDINAL.finditer(paragraph))
    codes = languages.detect(paragraph) if ordinals else ()
    for ordinal in ordinals:
        before = ordinal["before"] or ""
        is_german = "de" in codes and (
            _BEFORE_GERMAN_ORDINAL.fullmatch(before) or _GERMAN_MONTH.match(ordinal["next"])
        )
        if is_german or (ordinal["next"].islower() and not _WITH_ORDINALS.isdisjoint(codes)):
            yield ordinal.end() - 1


def _paragraphs(text: str) -> list[_Paragraph]:
    """Return the text's lines of prose, with the lines of wrapped sentences and of items joined."""
    paragraphs: list[_Paragraph] = []
    length = 0  # length of the previous line, if its sentence may continue
    in_item = False
    for line in text.split("\n"):
        bullet = _BULLET.match(line)
        mark = "" if bullet is None else bullet[0].strip()
        is_heading = mark.startswith("#")
        is_item = mark != "" and not is_heading
        is_in_item = in_item and mark == "" and line[:1].isspace()
        is_code = _INDENTED.match(line) and not is_item and not is_in_item
        if not line.strip() or is_code or _NOT_PROSE.match(line):
            length, in_item = 0, False
            continue
        start = bullet.end() if bullet else 0
        prose = _EMPHASIS.sub(r"\2", line[start:]).strip()
        may_wrap = length >= _WRAP_WIDTH and mark == "" and prose[:1].islower()
        if is_in_item or may_wrap:
            last = paragraphs[-1]
            paragraphs[-1] = last._replace(text=f"{last.text} {prose}")
        elif prose:
            indent = len(line) - len(line.lstrip()) if is_item else None
            paragraphs.append(_Paragraph(prose, indent, is_heading))
        in_item = is_item or is_in_item
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
    """Return whether one of the texts contains all words of a sentence in the same order.

    `_REPEATING` words may be missing. A sentence with a different number or negation is new.
    Paraphrases are left to the store, which compares meanings.
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
        # Each `in` continues where the previous one stopped, so the words must occur in this order.
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
