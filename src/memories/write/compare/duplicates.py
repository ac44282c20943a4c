"""Decides whether a new text repeats an old one, by comparing their words. `corrections` decides
whether it corrects the old one.

Vectors can't tell a correction from a repetition ("port 8080", "port 9090": cosine 0.98). So a text
is a duplicate only if every word of either text has a counterpart in the other, in an order with
the same meaning, and with the same capitals. A changed word that is not in vocabulary.txt counts as
a difference: storing a repetition costs only a line, but dropping a correction loses a fact.
"""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, TypeVar

from memories.write.compare.grammar import (
    describe_determiner,
    describe_form,
    describe_number,
    differ_in_tense,
    find_breaks,
    forms_of,
    pair_words,
    rewrite,
)
from memories.write.compare.quick_checks import may_repeat, normalize
from memories.write.compare.reading import (
    CASED,
    detect_languages,
    find_quotations,
    is_shouted,
    parse_text,
)
from memories.write.compare.vocabulary import (
    COMPOUNDS,
    DATES,
    EMPTY,
    FREE_CASE,
    GROUP,
    LIGHT,
    NAMES_ALIKE,
    NEGATIONS,
    SOFT,
    Word,
    keys_of,
)
from memories.write.compare.word_order import (
    have_moved_part,
    have_same_parts,
    join_nouns,
    orders_of,
    sort_lists,
)


class Relation(StrEnum):
    """The relation of a new text to an old one."""

    SAME = "same"
    DUPLICATE = "duplicate"
    DIFFERS = "differs"  # similar, with a difference that may be a correction
    UNRELATED = "unrelated"  # not similar, or the words show no relation


class TextComparison(NamedTuple):
    """A relation, and a difference such as `numbers: 8080 -> 9090` or `negation: + not`, if any."""

    relation: Relation
    difference: str = ""


_T = TypeVar("_T")
MAX_COMPARED = 2_000  # maximum number of characters in a text that is compared word by word
_LONGEST_ACRONYM = 5  # maximum number of letters
_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?|q[1-4]|\d{1,2}:\d\d")
_VERSION = re.compile(r"v\d+|v?\d+\.\d+[\w.-]*")
_MARKS = frozenset(".,")
_SYNONYMS = frozenset({"use", "prefer"})  # senses that count as synonyms in every language
# Kinds of words that a difference may consist of, the most important first.
_KINDS = ("negation", "date", "version", "numbers", "path", "name")
_VALUE_KINDS = frozenset(_KINDS[1:5])


def compare_texts(
    new: str, old: str, similarity: float | None, *, threshold: float, explain: bool = True
) -> TextComparison:
    """Compare a new text with an old one.

    Args:
        new: The new text.
        old: The stored text.
        similarity: The cosine of their vectors, or None without vectors.
        threshold: The embedder's minimum cosine for two texts that may say the same thing.
        explain: Set to False to skip telling corrections from unrelated text (10× faster).

    Returns:
        `SAME` for texts that differ only in spaces, quotes, final stops and the case of first
        letters; `DUPLICATE` for similar texts without a difference; `DIFFERS` for similar texts
        with a difference, which `difference` describes; `UNRELATED` for all others. Without a
        similarity, the result is never `DIFFERS`, and any texts without a difference are
        duplicates. Texts longer than `MAX_COMPARED` are either `SAME` or `UNRELATED`.
    """
    if max(len(new), len(old)) > MAX_COMPARED:
        return TextComparison(Relation.SAME if have_same_lines(new, old) else Relation.UNRELATED)
    return compare_words(new, old, similarity, threshold=threshold, explain=explain)


def compare_words(
    new: str, old: str, similarity: float | None, *, threshold: float, explain: bool = True
) -> TextComparison:
    """Compare texts of any length word by word; see `compare_texts`. Long texts take seconds."""
    if not may_repeat(new, old, similarity, threshold=threshold):
        # Most pairs of texts end here; parsing their words would take a hundred times as long.
        return TextComparison(Relation.UNRELATED)
    codes = detect_languages(new, old)
    is_close = similarity is not None and similarity >= threshold
    needs_difference = is_close and explain  # if not, a quick check may be enough
    if not needs_difference and _surely_differ(new, old, codes):
        return TextComparison(Relation.UNRELATED)
    new_parsed, old_parsed = parse_text(new, codes), parse_text(old, codes)
    form_difference = (
        _describe_case(new_parsed.written, old_parsed.written)
        or _describe_layout(new, old)
        or _describe_spacing(new, old)
    )
    new_words, old_words = new_parsed.understood, old_parsed.understood
    are_alike = normalize(new) == normalize(old)
    if not form_difference and are_alike and _spell(new_words) == _spell(old_words):
        return TextComparison(Relation.SAME)
    difference = form_difference or _describe_meaning(new, old, new_words, old_words)
    if not difference:
        return TextComparison(Relation.DUPLICATE)
    if not is_close or not _can_measure_similarity(new, old):
        return TextComparison(Relation.UNRELATED)
    return TextComparison(Relation.DIFFERS, difference)


def _describe_meaning(
    new: str, old: str, new_words: Sequence[Word], old_words: Sequence[Word]
) -> str:
    """Describe how two texts differ in meaning; empty if they don't.

    A difference in words doesn't count if it disappears when constructions are rewritten. Texts
    with the same words differ in mood if only one of them is an instruction.
    """
    difference = _describe_difference(*align_texts(new, old))
    new_words, old_words = rewrite(new_words), rewrite(old_words)
    if difference:
        is_real = bool(_describe_difference(*align_words(new_words, old_words)))
        return difference if is_real else ""
    if _instructs(new_words, old_words) or _instructs(old_words, new_words):
        return "mood"
    return ""


def _instructs(words: Sequence[Word], other: Sequence[Word]) -> bool:
    """Return whether the first text is an instruction and the other a statement: "sign commits",
    "commits are signed".
    """
    other_keys = keys_of(other)
    is_statement = "must" not in other_keys and "by" not in other_keys
    is_passive = any(word.form == "passive" for word in other)
    return "must" in keys_of(words) and is_statement and is_passive


def have_same_lines(new: str, old: str) -> bool:
    """Return whether two texts have the same words and, if multi-line, the same lines and indents.

    For long texts, this is much faster than `compare_words`.
    """
    new_lines, old_lines = _split_lines(new), _split_lines(old)
    if len(new_lines) > 1 or len(old_lines) > 1:
        return new_lines == old_lines
    return new.split() == old.split() and not _describe_spacing(new, old)


def is_value(word: Word) -> bool:
    """Return whether a word may belong to a value.

    It is a number, date, version, path or identifier. Or it is a preposition, since a value may
    begin with one: "on Monday".
    """
    if word.key in SOFT or any(map(str.isdigit, word.key)):
        return True
    return not _VALUE_KINDS.isdisjoint(_kinds_of(word))


def _spell(words: Sequence[Word]) -> list[str]:
    return [word.key for word in words if word.key not in _MARKS]


# --- differences in case, lines and spaces


def _describe_case(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Describe the first word whose case differs. Case is ignored for the first letter of a
    sentence, for stop words, and if only one text is all caps.
    """
    if is_shouted(new) != is_shouted(old):
        return ""
    new_spellings, old_spellings = _by_spelling(new), _by_spelling(old)
    for spelling, new_words in new_spellings.items():
        for added, removed in pair_words(new_words, old_spellings.get(spelling, [])):
            start = 1 if added.opens or removed.opens else 0
            if added.shown[start:] != removed.shown[start:]:
                return f"case: {removed.shown} -> {added.shown}"
    return ""


def _by_spelling(words: Sequence[Word]) -> dict[str, list[Word]]:
    """Return the words whose case matters, keyed by their lower-case spelling."""
    spellings: dict[str, list[Word]] = {}
    for word in words:
        spelling = word.shown.lower()
        if spelling not in FREE_CASE:
            spellings.setdefault(spelling, []).append(word)
    return spellings


def _describe_layout(new: str, old: str) -> str:
    """Return "layout" if line breaks or indents differ in a multi-line text, as in code."""
    new_lines, old_lines = _split_lines(new), _split_lines(old)
    if len(new_lines) == len(old_lines) < 2:
        return ""
    if [indent for indent, _ in new_lines] != [indent for indent, _ in old_lines]:
        return "layout"
    codes = detect_languages(new, old)
    for (_, new_line), (_, old_line) in zip(new_lines, old_lines, strict=True):
        if new_line != old_line:
            words = align_words(
                parse_text(new_line, codes).understood, parse_text(old_line, codes).understood
            )
            if _describe_difference(*words):
                return "layout"
    return ""


def _split_lines(text: str) -> list[tuple[str, str]]:
    """Return a text's lines, each as its indent and its text, without blank lines at either
    end.
    """
    lines: list[tuple[str, str]] = []
    for line in text.rstrip().splitlines():
        plain = line.strip()
        if plain or lines:
            indent = ""
            if plain:
                indent = line[: len(line) - len(line.lstrip())]
            lines.append((indent, plain))
    return lines


def _describe_spacing(new: str, old: str) -> str:
    """Return "spaces" if quotations differ only in spacing."""
    new_quotes, old_quotes = find_quotations(new), find_quotations(old)
    if new_quotes == old_quotes:
        return ""
    have_same_words = list(map(str.split, new_quotes)) == list(map(str.split, old_quotes))
    return "spaces" if have_same_words else ""


def _can_measure_similarity(new: str, old: str) -> bool:
    """Return whether two texts are mostly ASCII, or share at least a third of their bigrams.

    An English model can't measure the similarity of texts in other scripts.
    """
    new, old = normalize(new), normalize(old)
    if sum(character.isascii() for character in new + old) * 2 > len(new + old):
        return True
    new_pairs, old_pairs = ({*map("".join, pairwise(text))} for text in (new, old))
    return len(new_pairs & old_pairs) * 3 >= min(len(new_pairs), len(old_pairs))


# --- alignment


class _WordIndex(NamedTuple):
    """A text's words, regardless of their order, for a quick comparison.

    Attributes:
        counts: For each significant word's key, the number of occurrences.
        meanings: For each word's key, the possible meanings.
        keys: For each meaning, the keys of the words that may have it.
        compounds: The known compounds, which the other text may write as two words.
        acronyms: The words that may be initials, in lower case.
        initials: The first letters of all words, in order.
    """

    counts: Set[tuple[str, int]]
    meanings: Mapping[str, Set[str]]
    keys: Mapping[str, Set[str]]
    compounds: Set[str]
    acronyms: Set[str]
    initials: str


@functools.lru_cache(maxsize=256)
def _index_words(text: str, codes: Sequence[str], is_rewritten: bool) -> _WordIndex:
    """Return the index of a text's words, optionally with its constructions rewritten."""
    words = parse_text(text, codes).understood
    if is_rewritten:
        rewritten = rewrite(words)
        if rewritten is words:
            return _index_words(text, codes, False)
        words = rewritten
    meanings: dict[str, set[str]] = {}
    keys: dict[str, set[str]] = {}
    for word in words:
        for meaning in _meanings(word):
            meanings.setdefault(word.key, set()).add(meaning)
            keys.setdefault(meaning, set()).add(word.key)
    counts = Counter(word.key for word in words if _has_weight(word))
    compounds = set(filter(_is_compound, meanings))
    acronyms = {word.shown.removesuffix("s").lower() for word in words if _is_acronym(word.shown)}
    initials = "".join(word.key[:1] for word in words)
    return _WordIndex(frozenset(counts.items()), meanings, keys, compounds, acronyms, initials)


def _surely_differ(new: str, old: str, codes: Sequence[str]) -> bool:
    """Return whether some word of one text clearly has no counterpart in the other, both before and
    after constructions are rewritten.
    """
    for is_rewritten in (False, True):
        new_index = _index_words(new, codes, is_rewritten)
        old_index = _index_words(old, codes, is_rewritten)
        if not _lacks_counterpart(new_index, old_index):
            return False
    return True


def _lacks_counterpart(new: _WordIndex, old: _WordIndex) -> bool:
    """Return whether, without alignment, some word of one text clearly has no counterpart in the
    other. False doesn't mean that every word has one.

    A word that only one text contains has no counterpart if no other word in either text shares a
    meaning with it, since `align_words` would then not change it.
    """
    if new.compounds != old.compounds:
        return False
    if any(short in old.initials for short in new.acronyms):
        return False
    if any(short in new.initials for short in old.acronyms):
        return False
    for key in {key for key, _ in new.counts ^ old.counts} - EMPTY - {"never", "not"}:
        sharing: set[str] = set()
        for meaning in {*new.meanings.get(key, ()), *old.meanings.get(key, ())}:
            sharing.update(new.keys.get(meaning, ()), old.keys.get(meaning, ()))
        if sharing <= {key}:
            return True
    return False


def _is_compound(key: str) -> bool:
    return key in COMPOUNDS or key.removesuffix("s") in COMPOUNDS


def _join_compounds(words: Sequence[Word], other: Sequence[Word]) -> list[Word]:
    """Write a known compound as one word if the other text does: "time zone" as "timezone"."""
    keys, other_keys = {*keys_of(words)}, {*keys_of(other)}
    joined: list[Word] = []
    for word in words:
        whole = ""
        if joined:
            whole = joined[-1].key + word.key
        if whole in other_keys and whole not in keys and _is_compound(whole):
            joined[-1] = Word(whole, f"{joined[-1].shown} {word.shown}")
        else:
            joined.append(word)
    return joined


def _is_acronym(shown: str) -> bool:
    initials = shown.removesuffix("s")
    return initials.isupper() and 1 < len(initials) <= _LONGEST_ACRONYM


def _shorten_names(words: Sequence[Word], other: Sequence[Word]) -> list[Word]:
    """Abbreviate a name to its initials if the other text does: "Amazon Web Services" to "AWS"."""
    shortened = list(words)
    keys = {*keys_of(words)}
    for short in other:
        if not _is_acronym(short.shown) or short.key in keys:
            continue
        initials = short.shown.removesuffix("s")
        letters = initials.lower()
        start = "".join(word.key[:1] or " " for word in shortened).find(letters)
        if start >= 0:
            run = shortened[start : start + len(letters)]
            shown = " ".join(word.shown for word in run)
            shortened[start : start + len(letters)] = [run[-1]._replace(key=short.key, shown=shown)]
    return shortened


@functools.lru_cache(maxsize=1)  # `compare_texts` and `corrections` make the same call
def align_texts(new: str, old: str) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return the words of two texts, aligned by `align_words`."""
    codes = detect_languages(new, old)
    return align_words(parse_text(new, codes).understood, parse_text(old, codes).understood)


def align_words(new: Sequence[Word], old: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    """Return the words of two texts. All inflections, synonyms, compounds and acronyms of a word
    get the same key.
    """
    new, old = _join_compounds(new, old), _join_compounds(old, new)
    new, old = _shorten_names(new, old), _shorten_names(old, new)
    key_of: dict[str, str] = {}
    words = []
    for word in (*new, *old):
        meanings = _meanings(word)
        keys = [key_of[meaning] for meaning in meanings if meaning in key_of]
        key = keys[0] if keys else word.key
        for meaning in meanings:
            key_of.setdefault(meaning, key)
        words.append(word if key == word.key else word._replace(key=key))
    return words[: len(new)], words[len(new) :]


@functools.lru_cache(maxsize=4_096)  # cached, since similar texts share words
def _meanings(word: Word) -> Sequence[str]:
    """Return a word's key, its possible base forms, and their groups of synonyms."""
    if word.key in LIGHT or word.key in SOFT or word.literal:
        return (word.key,)
    forms = [word.key] if word.exact else forms_of(word.key)
    groups = [GROUP[form] for form in forms if form in GROUP]
    if word.sense in _SYNONYMS:
        groups.append(f"={word.sense}")
    if word.exact and word.is_capitalized:
        groups = [group for group in groups if group in NAMES_ALIKE]
    return (*forms, *groups)


# --- differences of aligned words


def _describe_difference(new: Sequence[Word], old: Sequence[Word]) -> str:
    """Describe the difference between the aligned words of two texts; empty if they mean the same
    thing.
    """
    new, old = sort_lists(_equate_never(new, old)), sort_lists(_equate_never(old, new))
    new, old = join_nouns(new, old), join_nouns(old, new)
    added, removed = _find_unmatched(new, old), _find_unmatched(old, new)
    if not EMPTY.issuperset(keys_of([*added, *removed])):
        return _describe_words(removed, added)
    if differ_in_tense(new, old):
        return "tense"
    for describe in (describe_form, describe_number, describe_determiner):
        change = describe(new, old)
        if change:
            return change
    if orders_of(new).isdisjoint(orders_of(old)):
        if not have_same_parts(new, old):
            return "word order"
        if have_moved_part(new, old):
            return ""
    return "comma" if find_breaks(new, old) or find_breaks(old, new) else ""


def _equate_never(words: Sequence[Word], other: Sequence[Word]) -> Sequence[Word]:
    """Write "never" as "not" if the other text contains only "not": "never push", "don't ever
    push".
    """
    keys, other_keys = {*keys_of(words)}, {*keys_of(other)}
    if "never" not in keys or "not" in keys or "never" in other_keys or "not" not in other_keys:
        return words
    return [word._replace(key="not") if word.key == "never" else word for word in words]


def _find_unmatched(words: Sequence[Word], other: Sequence[Word]) -> list[Word]:
    """Return the meaningful words that the other text lacks or contains less often."""
    spare = Counter(keys_of(other))
    missing = []
    for word in filter(_has_weight, words):
        if spare[word.key]:
            spare[word.key] -= 1
        else:
            missing.append(word)
    return missing


def _has_weight(word: Word) -> bool:
    return word.key not in LIGHT and word.key not in SOFT and word.key != "by"


def _describe_words(removed: Sequence[Word], added: Sequence[Word]) -> str:
    """Describe the most important kind of difference, with the words that differ."""
    for kind in _KINDS:
        removed_of_kind = [word for word in removed if kind in _kinds_of(word)]
        added_of_kind = [word for word in added if kind in _kinds_of(word)]
        if removed_of_kind or added_of_kind:
            return f"{kind}: {_describe_change(removed_of_kind or removed, added_of_kind or added)}"
    return f"words: {_describe_change(removed, added)}"


def _kinds_of(word: Word) -> set[str]:
    key, kinds = word.key, set()
    if key in NEGATIONS or word.sense == "not":
        kinds.add("negation")
    if key in DATES or word.sense in DATES or _DATE.fullmatch(key.lower()):
        kinds.add("date")
    if _VERSION.fullmatch(key):
        kinds.add("version")
    number = key.lstrip("+-<>=$€£~").replace(".", "").replace(",", "")
    if key[:1].isdigit() or number.isdigit():
        kinds.add("numbers")
    if CASED.search(key):
        kinds.add("path")
    may_be_name = word.exact and (not word.literal or word.is_capitalized)
    if may_be_name and word.shown[:1].isalpha() and " " not in word.shown:
        kinds.add("name")
    return kinds


def _describe_change(removed: Sequence[Word], added: Sequence[Word]) -> str:
    before = " ".join(word.shown for word in removed[:6])
    after = " ".join(word.shown for word in added[:6])
    if before and after:
        return f"{before} -> {after}"
    if after:
        return f"+ {after}"
    return f"- {before}"
