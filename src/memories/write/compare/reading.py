"""Parses a text into words for a comparison, both as they are written and as they are meant."""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memories import languages
from memories.languages.text import mark_raised
from memories.write.compare.quick_checks import STRAIGHT
from memories.write.compare.vocabulary import (
    ABBREVIATED,
    ACRONYMS,
    ASKING,
    BASE,
    BE,
    BOUNDARIES,
    DATES,
    DETERMINERS,
    GROUP,
    LIGHT,
    NAMES_ALIKE,
    NAMING,
    NUMBERS,
    PARTICIPLES,
    PHRASE,
    PLACES,
    PROGRAMS,
    PRONOUNS,
    SAME_FORMS,
    SOFT,
    TYPED,
    UNITS,
    VALUED,
    VERB_BEFORE,
    VERBS_ALIKE,
    WEEKDAYS,
    WHOLE,
    Word,
    join_dates,
    join_numbers,
    keys_of,
    order_dates,
    write_clock,
)

_LONGEST_PHRASE = max(len(phrase) for phrase in PHRASE)
_OPENING, _CLOSING = "([{\"'*«", ".,;:!)]}\"'*…»。、!,:;」』「『"
_IDENTIFIER = re.compile(r"[\d/\\_@=<>(){}\[\]$€£%^&|~+#`]|\w[.:]\w|^-|^\.\w")
CASED = re.compile(r"[/\\_]|[^\W\d][.:]\w")
_RATE = re.compile(r"([$€£\w.,]+)/(s|sec|second|min|minute|h|hr|hour|day|week|month|year)")
_PRICE = re.compile(r"([$€£])(\d[\d.,]*)")
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound"}
_MINIMUM = re.compile(r"(?:>=|≥)?(\d[\d.]*)\+|(?:>=|≥)(\d[\d.]*)")
_THOUSANDS = re.compile(r"(\d+)k|(\d{1,3}(?:,\d{3})+)")
_QUANTITY = re.compile(
    r"(\d+(?:[.,]\d+)?)(GiB|GB|MiB|MB|KB|TB|ms|s|h|min|am|pm|AM|PM|kg|km|m|cm|mm|g|px|°C|°F)"
)
_ELIDED = r"(?i)\b((?:[cdjlmnst]|qu|all|dall|dell|nell|sull|un)')(?=\w)"  # French and Italian
_DECIMAL = re.compile(r"(\d+),(\d{1,2})")
_SHOWS = 150  # a text's language is detected from this many characters
_DASH = "\ue000"  # stands for a dash that joins two clauses
_LONGEST = 64  # maximum number of letters, since the pattern takes quadratic time
_SENTENCE = re.compile(
    r"(?!(?:\w\.){2,}|(?:etc|vs|cf|no|dr|mr|mrs|approx)\.).*\w\W*[.!?…。]\W*", re.I
)
_CLOCK = re.compile(r"0(\d:[0-5]\d(?::[0-5]\d)?(?:am|pm)?)", re.I)
_CONTRACTED = {"re": "are", "ve": "have", "ll": "will", "m": "am", "s": "'s"}
_CONTRACTION = re.compile(r"'(re|ve|ll|m|s)\b", re.I)
# Abbreviations that end with a dot inside a sentence.
_ABBREVIATIONS = "approx|avg|bzw|ca|cf|dept|est|etc|max|min|resp|vs"
_SHORT_FORMS = (
    (re.compile(r"\bcan't\b|\bcannot\b", re.I), "can not"),
    (re.compile(r"\bwon't\b", re.I), "will not"),
    (re.compile(r"n't\b", re.I), " not"),
    (re.compile(r"\b(it|that|he|she|there|what)'s\b", re.I), r"\1 is"),
    (re.compile(r"(?<=s)'(?=\s)"), " 's"),
    (re.compile(r"(?<![$€£\w.,])(\d[\d.,]*) ?([$€£])(?!\w)"), r"\2\1"),
    (re.compile(r"(?<=\d) ?%(?!\w)"), " percent"),
    (re.compile(r"(?<=\d)\s?([ap])\.\s?m\b\.?", re.I), r" \1m"),
    (re.compile(r"(?<=\d) in the morning\b", re.I), " am"),
    (re.compile(r"(?<=\d) in the (?:afternoon|evening)\b", re.I), " pm"),
    (re.compile(r"\b(?:e\.\s?g|z\.\s?b|p\.\s?(?:ej|ex|es))\.", re.I), "example"),
    (re.compile(r"\b(?:i\.\s?e|d\.\s?h)\.", re.I), "namely"),
    (re.compile(r"\bu\.\s?a\.", re.I), "unter anderem"),
    (re.compile(r"(://[^\s/]+(?:/[^\s/]+)*)/(?=[.,;)]*(?:\s|$))"), r"\1"),
    (re.compile(r"\b(?:and so on|und so weiter|usw)\b", re.I), "etc"),
    (re.compile(rf"\b({_ABBREVIATIONS})\.(?=\s)", re.I), r"\1"),
    (re.compile(r"(?<=\S)\s*—\s*(?=\S)|(?<=\S)\s+–\s+(?=\S)"), f" {_DASH} "),
)
_DIAL = re.compile(
    r"(?<![\w.,:+/-])(?:(\+|00)[1-9]\d?(?:[ /-]?\d){6,13}|\d{3,5}(?:[ -]\d{2,8}){1,4})"
    r"(?![\w:/-]|[.,]\d)"
)
_QUOTED = re.compile(r"`[^`]+`|\"[^\"]+\"|(?<!\w)'[^']+'(?!\w)")
_DAY = re.compile(r"\d{4}(-\d\d){0,2}|\d{1,2}(:\d\d)+([ap]m)?|\d{1,2}[ap]m|\d(st|nd|rd|th)")
_ADDRESS = re.compile(r".*([/\\@]|\w[.:]\w).*")
_ADVERBS = frozenset("not automatically also always currently now all".split())
_MARKS = frozenset(".,?")
_GETTING = frozenset("get gets getting got".split())
_AFTER_COMMANDS = frozenset("to instead rather prior each every".split())
_WORKING = frozenset("work works working worked".split())
_SPANS = frozenset("week month year day hour minute".split())


_STOP = Word(".", ".")
_QUESTION = Word("?", "?", exact=True)


class ParsedText(NamedTuple):
    """A text's words: as written, and as understood, with phrases, dates and forms marked."""

    written: Sequence[Word]
    understood: Sequence[Word]


@functools.lru_cache(maxsize=256)  # cached, since the same text is compared often
def parse_text(text: str, codes: Sequence[str] = ()) -> ParsedText:
    """Return a text's words.

    Args:
        text: The text.
        codes: The languages that the text may be in, other than English; see `detect_languages`.
    """
    words = _split(text, codes)
    return ParsedText(tuple(words), tuple(_understand(words)))


def detect_languages(new: str, old: str) -> Sequence[str]:
    """Return the languages of two texts, other than English. The texts are examined together, since
    one alone may be too short.
    """
    return languages.detect(f"{new[:_SHOWS]} {old[:_SHOWS]}")


def is_shouted(words: Sequence[Word]) -> bool:
    """Return whether a text consists of three or more words, all in capitals."""
    spelled = [word.shown for word in words if word.shown[:1].isalpha()]
    return len(spelled) > 2 and " ".join(spelled).isupper()


def find_quotations(text: str) -> list[str]:
    """Return the parts of a text that are in quotes or backticks."""
    return [quoted[1:-1] for quoted in _QUOTED.findall(text.translate(STRAIGHT))]


# --- words as they were written


def _split(text: str, codes: Sequence[str]) -> list[Word]:
    spelled = _spell_out(text, codes)
    quoted = [match.span() for match in _QUOTED.finditer(spelled)]
    words: list[Word] = []
    opens = True
    for chunk in re.finditer(r"\S+", spelled):
        while quoted and quoted[0][1] <= chunk.start():
            del quoted[0]
        is_literal = bool(quoted) and quoted[0][0] < chunk.end()
        for plain in _split_chunk(chunk[0]):
            word = _with_sense(plain, codes) if codes else plain
            words.append(word._replace(opens=opens, literal=is_literal))
            opens = opens and word.key == ","
        opens = bool(_SENTENCE.fullmatch(chunk[0][-_LONGEST:]))
    if sum(word.key != "." for word in words) == 1:
        return [word._replace(opens=False) for word in words]
    return words


def _spell_out(text: str, codes: Sequence[str]) -> str:
    """Return a text with straight quotes, ASCII digits and no contractions."""
    spelled = unicodedata.normalize("NFKC", mark_raised(text)).translate(STRAIGHT)
    if not spelled.isascii():
        decimals = {sign for sign in spelled if sign.isdecimal()}
        digits = {ord(sign): str(unicodedata.decimal(sign)) for sign in decimals}
        spelled = spelled.translate(digits)
    if {"fr", "it"} & {*codes}:
        spelled = re.sub(_ELIDED, r"\1 ", spelled)
    spelled = _DIAL.sub(_dial, spelled)
    for pattern, replacement in _SHORT_FORMS:
        spelled = pattern.sub(replacement, spelled)
    return _CONTRACTION.sub(lambda match: f" {_CONTRACTED[match[1].lower()]}", spelled)


def _dial(number: re.Match[str]) -> str:
    """Return a long number in its standard form. An international phone number becomes `+` and
    digits; in other numbers, hyphens replace the spaces.
    """
    if number[1]:
        digits = re.sub(r"\D", "", number[0])
        return f"+{digits.lstrip('0')}"
    return number[0].replace(" ", "-")


def _with_sense(word: Word, codes: Sequence[str]) -> Word:
    """Return a word of another language with its sense. A word that looks like an English stop word
    is marked so that it isn't ignored.
    """
    if word.key in _MARKS:
        return word
    if "zh" in codes or "ja" in codes:
        return word._replace(key=languages.numbers_in_figures(word.key))
    plain = word.shown.lower()
    if decimal := _DECIMAL.fullmatch(plain):
        return word._replace(key=f"{decimal[1]}.{decimal[2]}")
    sense = languages.sense(word.shown, codes)
    if sense.isdigit():
        return word._replace(key=sense, exact=True, sense=sense)
    if word.exact and plain in NUMBERS:
        word = word._replace(key=plain, exact=False)  # "once" may be Spanish for eleven
    return word._replace(key=_with_weight(word.key), sense=sense)


def _with_weight(key: str) -> str:
    if key in LIGHT or key in SOFT:
        return f"@{key}"
    return key


def _split_chunk(chunk: str) -> Iterator[Word]:
    """Yield the words in a chunk of text without spaces. A comma or stop at its end is a separate
    word.
    """
    if chunk == "'s":
        yield Word("'s", chunk)
        return
    if chunk == _DASH:
        yield Word(",", ",")
        return
    if not any(sign.isalnum() for sign in chunk):
        sign = chunk.strip("`\"'") or chunk
        yield Word(f"@{sign}", sign, exact=True)
        return
    if chunk[0] == "(":
        yield Word(",", "(")
    core = chunk.lstrip(_OPENING)
    name = core.rstrip(_CLOSING)
    if "(" in name and core.startswith(f"{name})"):
        name += ")"
    is_question = name.endswith("?")
    if is_question:
        name = name.rstrip("?").rstrip(_CLOSING)
    yield from _split_name(name)
    if is_question:
        yield _QUESTION
    tail = core[len(core.rstrip(_CLOSING)) :]
    if {".", "!"} & set(tail) and _SENTENCE.fullmatch(chunk[-_LONGEST:]):
        yield _STOP
    elif {",", ";", ":", ")"} & set(tail):
        yield Word(",", ":" if ":" in tail else ",")


def _split_name(name: str) -> Iterator[Word]:
    if rate := _RATE.fullmatch(name):
        yield from _split_name(rate[1])
        yield from (Word("per", "/"), Word(UNITS.get(rate[2], rate[2]), rate[2]))
    elif price := _PRICE.fullmatch(name):
        yield from _split_name(price[2])
        yield Word(_CURRENCIES[price[1]], price[1], exact=True)
    elif quantity := _QUANTITY.fullmatch(name):
        for part in quantity.groups():
            yield Word(part.lower(), part, exact=True)
    elif thousands := _THOUSANDS.fullmatch(name):
        number = f"{thousands[1]}000" if thousands[1] else name.replace(",", "")
        yield Word(number, name, exact=True)
    elif minimum := _MINIMUM.fullmatch(name):
        number = minimum[1] or minimum[2]
        yield Word("min", name, exact=True)
        yield Word(number, number, exact=True)
    elif _IDENTIFIER.search(name):
        spelled = name.strip("`")
        if clock := _CLOCK.fullmatch(spelled):
            spelled = clock[1]
        yield Word(spelled if CASED.search(spelled) else spelled.lower(), spelled, exact=True)
    else:
        for part in filter(None, re.split("[-–—]", name)):
            folded = part.lower()
            yield Word(NUMBERS.get(folded, folded), part, exact=folded in NUMBERS)


# --- words as they are understood


def _understand(words: Sequence[Word]) -> list[Word]:
    words = join_numbers(words)
    words = join_dates(order_dates(words))
    words = _mark_acronyms(words)
    words = write_clock(words)
    words = _mark_literals(words)
    words = _replace_phrases(words)
    words = _mark_questions(words)
    words = _mark_having(words)
    words = _mark_names(words)
    words = [word._replace(form=_form(words, i)) for i, word in enumerate(words)]
    return _mark_places(words)


def _word_before(words: Sequence[Word], i: int) -> Word:
    return words[i - 1] if i else _STOP


def _word_after(words: Sequence[Word], i: int) -> Word:
    if i + 1 < len(words):
        return words[i + 1]
    return _STOP


def _mark_acronyms(words: list[Word]) -> list[Word]:
    """Distinguish "US" and "IT" from "us" and "it", "3 am" from "I am", and "turn it on" from "on
    it".
    """
    shouted = is_shouted(words)
    marked = []
    for i, word in enumerate(words):
        after, key = _word_after(words, i).key, word.key
        is_counted = bool(i) and words[i - 1].key[:1].isdigit()
        if key == "am" and is_counted:
            key = "a.m."
        elif key in UNITS and is_counted:
            key = UNITS[key]
        elif key in SOFT and i and (after in SOFT or after in BOUNDARIES):
            key = f"@{key}"
        elif not shouted and len(word.shown) > 1 and word.shown.isupper() and key in ACRONYMS:
            key = word.shown
        marked.append(word if key == word.key else word._replace(key=key, exact=True))
    return marked


def _mark_literals(words: list[Word]) -> list[Word]:
    """Mark words that must be taken literally: quotations, commands, and single values."""
    marked, zone = [], ""
    for i, word in enumerate(words):
        if word.key in _MARKS or (zone == "command" and _ends_command(word)):
            zone = ""
        is_literal = word.literal or bool(zone) or _is_bare_value(words, i)
        if i and words[i - 1].shown == ":" and not _begins_clause(keys_of(words[i:])):
            zone, is_literal = "value", True
        elif word.shown in PROGRAMS or word.key in TYPED:
            zone = zone or "command"
        if is_literal and word.key not in _MARKS:
            word = word._replace(key=_with_weight(word.key), exact=True, literal=True)  # noqa: PLW2901
        marked.append(word)
    return marked


def _ends_command(word: Word) -> bool:
    return (
        word.key in DETERMINERS
        or word.key in BOUNDARIES
        or word.key in SOFT
        or word.key in BE
        or word.key in _AFTER_COMMANDS
    )


def _begins_clause(keys: Sequence[str]) -> bool:
    """Return whether a colon is followed by a clause rather than a value or command."""
    for key in keys:
        if key == ".":
            break
        if key in DETERMINERS or key in BE or key in PRONOUNS or key == "user":
            return True
    return False


def _is_bare_value(words: Sequence[Word], i: int) -> bool:
    """Return whether a word is the whole value in a statement such as "the verb is delete" or
    "NODE_ENV must be prod".
    """
    start = i
    while start > 0 and words[start - 1].key not in {".", ","}:
        start -= 1
    clause = keys_of(words[start:i])
    if not clause:
        return False
    if clause[-1] == "to":
        previous = ""
        if len(clause) > 1:
            previous = clause[-2]
        return clause[0] == "set" or previous == "set" or previous in VALUED
    after = _word_after(words, i).key
    if clause[-1] not in BE or (after not in _MARKS and after not in BOUNDARIES):
        return False
    key = words[i].key
    is_state = key in PARTICIPLES or key.endswith(("ed", "ing"))
    is_name = words[i].is_capitalized and GROUP.get(key) in NAMES_ALIKE
    singulars = {key.removesuffix("s") for key in clause}
    return not (is_state or is_name) or not VALUED.isdisjoint(singulars.union(clause))


def _replace_phrases(words: list[Word]) -> list[Word]:
    """Replace known phrases, the longest first."""
    replaced: list[Word] = []
    at = 0
    while at < len(words):
        for length in range(min(_LONGEST_PHRASE, len(words) - at), 0, -1):
            phrase = words[at : at + length]
            meaning = PHRASE.get(tuple(keys_of(phrase)))
            if meaning and not any(word.literal for word in phrase):
                shown = " ".join(word.shown for word in phrase)
                replaced += (Word(key, shown, exact=key not in SOFT) for key in meaning.split())
                break
        else:
            length = 1
            replaced.append(words[at])
        at += length
    return replaced


def _mark_questions(words: list[Word]) -> list[Word]:
    """Put a question mark after the first word of each sentence that begins like a question but
    does not end like one.
    """
    marked: list[Word] = []
    for i, word in enumerate(words):
        marked.append(word)
        is_first = not i or words[i - 1].key == "."
        if is_first and word.key in ASKING:
            after = _word_after(words, i)
            is_name = after.is_capitalized and after.key != "not"
            has_subject = is_name or after.key in DETERMINERS | PRONOUNS | {"user"}
            end = next((other.key for other in words[i:] if other.key in {".", "?"}), ".")
            if has_subject and end != "?":
                marked.append(_QUESTION)
    return marked


def _mark_having(words: list[Word]) -> list[Word]:
    """Mark "has" where it is a main verb ("has locks") rather than an auxiliary ("has locked")."""
    marked = []
    for i, word in enumerate(words):
        if word.key in {"has", "have"}:
            following = keys_of(words[i + 1 :])
            after = next((key for key in following if key not in {"not", "also", "already"}), "")
            is_helping = _is_participle(after) or after in BE or after in {"to", "had"}
            is_asking = "?" in keys_of(words[max(0, i - 1) : i + 2])
            if not is_helping and not is_asking:
                word = word._replace(key="@has", exact=True)  # noqa: PLW2901
        marked.append(word)
    return marked


def _mark_names(words: list[Word]) -> list[Word]:
    """Mark possible names: words that are capitalized within a sentence, or next to a word that
    announces a name or value.
    """
    marked = []
    for i, word in enumerate(words):
        before, after = _word_before(words, i).key, _word_after(words, i).key
        is_value = after in VALUED and not (after in ABBREVIATED and word.key in ABBREVIATED)
        if {before, after} & NAMING or is_value or _is_bare_verb(words, i):
            word = word._replace(exact=True, literal=True)  # noqa: PLW2901
        elif word.is_capitalized and before != "." and word.key not in WEEKDAYS:
            word = word._replace(exact=True)  # noqa: PLW2901
        marked.append(word)
    return marked


def _is_bare_verb(words: Sequence[Word], i: int) -> bool:
    """Return whether a word is a bare verb in a position where a statement can't have one.

    Such a word must begin a command or be a name.
    """
    word = words[i]
    if word.key not in VERBS_ALIKE:
        return False
    before = _word_before(words, i)
    if before.key in {".", ","} or word.opens:
        after = _word_after(words, i).key
        is_imperative = after in DETERMINERS or after in {"all", "every", "each"}
        return not (is_imperative or word.is_capitalized)
    if before.key in VERB_BEFORE or before.key in {"and", "or", "then", "who", "which", "that"}:
        return False
    is_plural_subject = before.key.endswith("s") and before.shown not in PROGRAMS
    return not is_plural_subject or before.exact


def _form(words: Sequence[Word], i: int) -> str:
    """Return a word's `form`: a passive, a simple past, or a participle used as an adjective."""
    key, previous = words[i].key, _word_before(words, i).key
    if previous in _ADVERBS and i > 1:
        previous = words[i - 2].key
    is_participle = _is_participle(key)
    if is_participle and (previous in BE or previous in _GETTING):
        return "passive"
    subject = _word_before(words, i).shown
    if key in SAME_FORMS and subject[:1].isupper() and not subject.endswith("s"):
        is_subject = previous not in VERB_BEFORE | BOUNDARIES | PRONOUNS | DETERMINERS
        return "past" if is_subject else "plain"  # as in "Tom set", not "Tom sets"
    if key in SAME_FORMS or not (is_participle or key in BASE):
        return "plain"
    return "adjective" if previous in DETERMINERS else "past"


def _is_participle(key: str) -> bool:
    return key in PARTICIPLES or (key.endswith("ed") and len(key) > 3 and key not in WHOLE)


def _mark_places(words: list[Word]) -> list[Word]:
    """Mark prepositions of time as optional, and prepositions before an address or an employer as
    equivalent.
    """
    marked = []
    for i, word in enumerate(words):
        before, after = _word_before(words, i), _word_after(words, i)
        if word.key in PLACES and not word.literal:
            is_date = after.key in DATES or after.key.removesuffix("s") in WEEKDAYS
            if (is_date and after.key not in _SPANS) or _DAY.fullmatch(after.key):
                word = word._replace(key="@when")  # noqa: PLW2901
            elif _ADDRESS.fullmatch(after.shown):
                word = word._replace(key="in")  # noqa: PLW2901
        elif word.key == "for" and before.key in _WORKING and after.is_capitalized:
            word = word._replace(key="at")  # noqa: PLW2901
        marked.append(word)
    return marked
