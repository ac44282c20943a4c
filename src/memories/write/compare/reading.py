"""How a text is read for comparing: its words as they were written, and as they are understood."""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memories import languages
from memories.languages.text import mark_raised
from memories.write.compare.vocabulary import (
    ACRONYMS,
    ASKING,
    ASKING_WORDS,
    AUXILIARY,
    BASE,
    BE,
    BOUNDARIES,
    DATES,
    DETERMINERS,
    GROUP,
    LIGHT,
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
    VALUED,
    VERB_BEFORE,
    VERBS_ALIKE,
    WEEKDAYS,
    WHOLE,
)

_LONGEST_PHRASE = max(len(phrase) for phrase in PHRASE)
_OPENING, _CLOSING = "([{\"'*«", ".,;:!)]}\"'*…»。、!,:;」』「『"
_IDENTIFIER = re.compile(r"[\d/\\_@=<>(){}\[\]$€£%^&|~+#`]|\w[.:]\w|^-|^\.\w")
CASED = re.compile(r"[/\\_]|[^\W\d][.:]\w")
_QUANTITY = re.compile(r"(\d+(?:[.,]\d+)?)(GiB|GB|MiB|MB|KB|TB|ms|s|h|min|am|pm|AM|PM|kg|km|%)")
_STRAIGHT = str.maketrans(
    {
        "‘": "'",
        "’": "'",
        "“": '"',
        "”": '"',
        "„": '"',
        "।": ".",
        "۔": ".",
        "؟": "?",
        "،": ",",
        "؛": ";",
    }
)
_ELIDED = r"(?i)\b((?:[cdjlmnst]|qu|all|dall|dell|nell|sull|un)')(?=\w)"  # in French and Italian
_DECIMAL = re.compile(r"(\d+),(\d{1,2})")
_SHOWS = 150  # characters that show the language of a text
_DASH = "\ue000"  # stands for the dash that joins two clauses
_ENDING = re.compile(r"(?<=[\w)\]}\"'»”」』+#%`])[.!。…]+$")
_LONGEST = 64  # letters of what ends a sentence; the pattern takes the square of it
_SENTENCE = re.compile(
    r"(?!(?:\w\.){2,}|(?:etc|vs|cf|no|dr|mr|mrs|approx)\.).*\w\W*[.!?…。]\W*", re.I
)
_CLOCK = re.compile(r"0(\d:[0-5]\d(?::[0-5]\d)?(?:am|pm)?)", re.I)
_SHORT_FORMS = (
    (re.compile(r"\bcan't\b|\bcannot\b", re.I), "can not"),
    (re.compile(r"\bwon't\b", re.I), "will not"),
    (re.compile(r"n't\b", re.I), " not"),
    (re.compile(r"\b(it|that|he|she|there|what)'s\b", re.I), r"\1 is"),
    (re.compile(r"'re\b", re.I), " are"),
    (re.compile(r"'ve\b", re.I), " have"),
    (re.compile(r"'ll\b", re.I), " will"),
    (re.compile(r"'m\b", re.I), " am"),
    (re.compile(r"'s\b", re.I), " 's"),
    (re.compile(r"(?<=s)'(?=\s)"), " 's"),
    (re.compile(r"(?<=\S)\s*—\s*(?=\S)|(?<=\S)\s+–\s+(?=\S)"), f" {_DASH} "),
)


_QUOTED = re.compile(r"`[^`]+`|\"[^\"]+\"|(?<!\w)'[^']+'(?!\w)")
_DAY = re.compile(r"\d{4}(-\d\d){0,2}|\d{1,2}(:\d\d)+([ap]m)?|\d{1,2}[ap]m|\d(st|nd|rd|th)")
_ADDRESS = re.compile(r".*([/\\@]|\w[.:]\w).*")


class Word(NamedTuple):
    """A word as it is compared (`key`) and as it was written; an exact one has no inflections and
    no synonyms.
    """

    key: str
    shown: str
    exact: bool = False
    opens: bool = False  # a sentence, so that the case of its first letter says nothing
    definite: bool = False  # behind "the", "my" and the like; see `corrections`
    literal: bool = False  # part of a code, a command or a value: no other word says the same
    form: str = "plain"  # "past", "passive", or "adjective" for other participles
    # what it says in English, where it is a known word of another language; see `languages.sense`
    sense: str = ""


@functools.lru_cache(maxsize=8)  # a new text is compared with many
def bare(text: str) -> str:
    """Return a text as it is compared for sameness: not case folded, which makes "ß" "ss"."""
    spelled = unicodedata.normalize("NFKC", text).translate(_STRAIGHT).lower()
    return _ENDING.sub("", " ".join(spelled.split()))


@functools.lru_cache(maxsize=256)
def read(text: str, codes: Sequence[str] = ()) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return the words of a text as they were written, and as they are understood; kept, since one
    is judged often.

    Args:
        text: A text.
        codes: The languages that it may be in, if that is not English; see `tongues`.
    """
    cut = _surface(text, codes)
    return tuple(cut), tuple(_understood(cut))


def tongues(new: str, old: str) -> Sequence[str]:
    """Return the languages that two texts may be in, if that is not English: together they show it
    better.
    """
    return languages.of(f"{new[:_SHOWS]} {old[:_SHOWS]}")


def is_shouted(words: Sequence[Word]) -> bool:
    """Say whether a text is three or more words in capitals."""
    told = [word.shown for word in words if word.shown[:1].isalpha()]
    return len(told) > 2 and " ".join(told).isupper()


def quotations(text: str) -> list[str]:
    """Return what a text has in quotes or backticks, to the letter."""
    return [found[1:-1] for found in _QUOTED.findall(text.translate(_STRAIGHT))]


def _surface(text: str, codes: Sequence[str]) -> list[Word]:
    """Cut a text into words, as they were written."""
    spelled = _in_ascii_digits(
        unicodedata.normalize("NFKC", mark_raised(text)).translate(_STRAIGHT)
    )
    if {"fr", "it"} & {*codes}:
        spelled = re.sub(_ELIDED, r"\1 ", spelled)
    for pattern, replacement in _SHORT_FORMS:
        spelled = pattern.sub(replacement, spelled)
    quoted = [span.span() for span in _QUOTED.finditer(spelled)]
    cut: list[Word] = []
    opens = True
    for chunk in re.finditer(r"\S+", spelled):
        while quoted and quoted[0][1] <= chunk.start():
            del quoted[0]
        literal = bool(quoted) and quoted[0][0] < chunk.end()
        for word in _cut(chunk[0]):
            word = _in_english(word, codes) if codes else word  # noqa: PLW2901
            cut.append(word._replace(opens=opens, literal=literal))
            opens = opens and word.key == ","
        opens = bool(_SENTENCE.fullmatch(chunk[0][-_LONGEST:]))
    return (
        [word._replace(opens=False) for word in cut]
        if sum(word.key != "." for word in cut) == 1
        else cut
    )


def _in_ascii_digits(text: str) -> str:
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)


def _in_english(word: Word, codes: Sequence[str]) -> Word:
    """Tell what a word of another language says; one that looks like a word of English without
    weight has weight.
    """
    if word.key in {".", ",", "?"}:
        return word
    if "zh" in codes or "ja" in codes:
        return word._replace(key=languages.numbers_in_figures(word.key))
    plain = word.shown.lower()
    if decimal := _DECIMAL.fullmatch(plain):
        return word._replace(key=f"{decimal[1]}.{decimal[2]}")
    said = languages.sense(word.shown, codes)
    if said.isdigit():
        return word._replace(key=said, exact=True, sense=said)
    if word.exact and plain in NUMBERS:
        word = word._replace(key=plain, exact=False)  # such as "once", which is eleven in Spanish
    light = word.key in LIGHT or word.key in SOFT
    return word._replace(key=f"@{word.key}" if light else word.key, sense=said)


def _understood(cut: list[Word]) -> list[Word]:
    """Replace phrases and number words, and tell names and the forms of verbs."""
    told = _with_questions(_with_phrases(_with_literals(_with_acronyms(cut))))
    return _with_places(_with_forms(_with_names(_with_every(_with_having(told)))))


def _with_literals(words: list[Word]) -> list[Word]:
    """Mark what is to be taken to the letter: quotations, commands, what follows a colon, names and
    bare values.
    """
    told, zone = [], ""
    for i, word in enumerate(words):
        before = words[i - 1] if i else None
        if word.key in {".", ",", "?"} or (zone == "command" and _ends_command(word)):
            zone = ""
        literal = word.literal or bool(zone) or _is_bare_value(words, i)
        if before is not None and before.shown == ":" and not _is_clause(words[i:]):
            zone, literal = "value", True
        elif (word.shown in PROGRAMS and not _is_noun_phrase(words, i)) or word.key in TYPED:
            zone = zone or "command"
        told.append(_literal(word) if literal and word.key not in {".", ",", "?"} else word)
    return told


def _literal(word: Word) -> Word:
    light = word.key in LIGHT or word.key in SOFT
    return word._replace(key=f"@{word.key}" if light else word.key, exact=True, literal=True)


def _ends_command(word: Word) -> bool:
    return (
        word.key in DETERMINERS
        or word.key in BOUNDARIES
        or word.key in SOFT
        or word.key in AUXILIARY | {"to"}
    )


def _is_clause(words: Sequence[Word]) -> bool:
    """Say whether what follows a colon is a clause and no value or command."""
    end = next((i for i, word in enumerate(words) if word.key == "."), len(words))
    return any(word.key in DETERMINERS | BE | PRONOUNS | {"user"} for word in words[:end])


def _is_noun_phrase(words: Sequence[Word], i: int) -> bool:
    """Say whether the name of a program is only mentioned: the git branch, git is slow, with
    git.
    """
    after = words[i + 1].key if i + 1 < len(words) else "."
    determined = i > 0 and words[i - 1].key in DETERMINERS
    return determined or after in LIGHT or after in SOFT or after in BOUNDARIES


def _is_bare_value(words: Sequence[Word], i: int) -> bool:
    """Say whether a word alone is what something is or is set to: the verb is delete, NODE_ENV must
    be prod.
    """
    start = next((j + 1 for j in range(i - 1, -1, -1) if words[j].key in {".", ","}), 0)
    clause = [word.key for word in words[start:i]]
    if clause[-1:] == ["to"] and (
        clause[0] == "set" or clause[-2:-1] == ["set"] or VALUED & set(clause[-2:-1])
    ):
        return True
    if not clause or clause[-1] not in BE:
        return False
    after = words[i + 1].key if i + 1 < len(words) else "."
    if after not in {".", ",", "?"} and after not in BOUNDARIES:
        return False
    state = words[i].key in PARTICIPLES or words[i].key.endswith(("ed", "ing"))
    return not state or bool(VALUED & {*clause, *(key.removesuffix("s") for key in clause)})


def _is_bare_verb(words: Sequence[Word], i: int) -> bool:
    """Say whether the base form of a verb stands where a sentence has none, so that it may be a
    command or a name.
    """
    word, before = words[i], words[i - 1] if i else None
    if word.key not in VERBS_ALIKE or word.key not in GROUP:
        return False
    if before is None or before.key in {".", ","} or word.opens:
        after = words[i + 1].key if i + 1 < len(words) else "."
        return not (
            word.shown[:1].isupper() or after in DETERMINERS or after in {"all", "every", "each"}
        )
    if before.key in VERB_BEFORE or before.key in {"and", "or", "then", "who", "which", "that"}:
        return False
    return not (before.key.endswith("s") and before.shown not in PROGRAMS and not before.exact)


def _with_questions(words: list[Word]) -> list[Word]:
    """Mark sentences that begin as questions do, whatever sign they end with."""
    told: list[Word] = []
    for i, word in enumerate(words):
        starts = not i or words[i - 1].key == "."
        after = words[i + 1] if i + 1 < len(words) else Word(".", ".")
        subject = after.key in DETERMINERS | PRONOUNS | {"user"} or (
            after.shown[:1].isupper() and after.key != "not"
        )
        asks = word.key in ASKING_WORDS or (word.key in ASKING and subject)
        told.append(word)
        end = next((other.key for other in words[i:] if other.key in {".", "?"}), ".")
        if starts and asks and end != "?":
            told.append(Word("?", "?", exact=True))
    return told


def _with_having(words: list[Word]) -> list[Word]:
    """Tell "has" as a verb of its own from the one that helps another: has locks, has locked."""
    told = []
    for i, word in enumerate(words):
        if word.key in {"has", "have"}:
            after = next(
                (other for other in words[i + 1 :] if other.key not in {"not", "also", "already"}),
                None,
            )
            helps = after is not None and (
                _is_participle(after.key) or after.key in BE | {"to", "had"}
            )
            if not helps and "?" not in {other.key for other in words[max(0, i - 1) : i + 2]}:
                word = word._replace(key="@has", exact=True)  # noqa: PLW2901
        told.append(word)
    return told


def _with_places(words: list[Word]) -> list[Word]:
    """Tell prepositions of time, which may be missing, from those of place, which count unless an
    address follows.
    """
    told = []
    for i, word in enumerate(words):
        if word.key in PLACES and not word.literal:
            after = words[i + 1] if i + 1 < len(words) else Word(".", ".")
            dated = after.key in DATES - {"week", "month", "year", "day", "hour", "minute"}
            if dated or after.key == "@every" or _DAY.fullmatch(after.key):
                word = word._replace(key="@when")  # noqa: PLW2901
            elif _ADDRESS.fullmatch(after.shown):
                word = word._replace(key="in")  # noqa: PLW2901
        told.append(word)
    return told


def _cut(chunk: str) -> Iterator[Word]:
    """Yield the words of what stands between two spaces; a comma or stop behind it is a word of its
    own.
    """
    if chunk in {"'s", _DASH}:
        yield Word("'s", chunk) if chunk == "'s" else Word(",", ",")
        return
    if not any(sign.isalnum() for sign in chunk):
        sign = chunk.strip("`\"'") or chunk
        yield Word(f"@{sign}", sign, exact=True)
        return
    if chunk[0] == "(":
        yield Word(",", "(")
    core = chunk.lstrip(_OPENING)
    bare = core.rstrip(_CLOSING)
    if "(" in bare and core.startswith(f"{bare})"):
        bare += ")"
    question = bare.endswith("?")
    bare = bare.rstrip("?").rstrip(_CLOSING) if question else bare
    if quantity := _QUANTITY.fullmatch(bare):
        yield from (Word(part.lower(), part, exact=True) for part in quantity.groups())
    elif _IDENTIFIER.search(bare):
        clock = _CLOCK.fullmatch(bare.strip("`"))
        name = clock[1] if clock else bare.strip("`")
        yield Word(name if CASED.search(name) else name.lower(), name, exact=True)
    else:
        yield from (_plain(part) for part in re.split("[-–—]", bare) if part)
    if question:
        yield Word("?", "?", exact=True)
    tail = core[len(core.rstrip(_CLOSING)) :]
    if {".", "!"} & set(tail) and _SENTENCE.fullmatch(chunk[-_LONGEST:]):
        yield Word(".", ".")
    elif {",", ";", ":", ")"} & set(tail):
        yield Word(",", ":" if ":" in tail else ",")


def _plain(part: str) -> Word:
    folded = part.lower()
    return Word(NUMBERS.get(folded, folded), part, exact=folded in NUMBERS)


def _with_acronyms(words: list[Word]) -> list[Word]:
    """Keep US or IT apart from the little words that they look like, `3 am` from `I am`, `turn it
    on` from `on it`.
    """
    shouted = is_shouted(words)
    kept = []
    for i, word in enumerate(words):
        after = words[i + 1].key if i + 1 < len(words) else "."
        if word.key == "am" and i and words[i - 1].shown[0].isdigit():
            word = word._replace(key="a.m.", exact=True)  # noqa: PLW2901
        elif word.key in SOFT and i and (after in SOFT or after in BOUNDARIES):
            word = word._replace(key=f"@{word.key}", exact=True)  # noqa: PLW2901
        elif not shouted and len(word.shown) > 1 and word.shown.isupper() and word.key in ACRONYMS:
            word = word._replace(key=word.shown, exact=True)  # noqa: PLW2901
        kept.append(word)
    return kept


def _with_phrases(words: list[Word]) -> list[Word]:
    """Replace known phrases, the longest first."""
    replaced: list[Word] = []
    at = 0
    while at < len(words):
        for length in range(min(_LONGEST_PHRASE, len(words) - at), 0, -1):
            phrase = words[at : at + length]
            meaning = PHRASE.get(tuple(word.key for word in phrase))
            if meaning and not any(word.literal for word in phrase):
                shown = " ".join(word.shown for word in phrase)
                replaced += (Word(key, shown, exact=key not in SOFT) for key in meaning.split())
                break
        else:
            length = 1
            replaced.append(words[at])
        at += length
    return replaced


def _with_every(words: list[Word]) -> list[Word]:
    """Say `every` wherever it counts: before times and numbers, and for plural weekdays."""
    kept: list[Word] = []
    for word in words:
        every = bool(kept) and kept[-1].key in {"every", "each"}
        plural = word.key[:-1] in WEEKDAYS and word.key.endswith("s")
        if plural:
            word = word._replace(key=word.key[:-1])  # noqa: PLW2901
        if every and (word.key[:1].isdigit() or word.key in DATES or word.key.rstrip("s") in DATES):
            kept[-1] = Word("@every", "every", exact=True)
        elif plural:
            kept.append(Word("@every", word.shown, exact=True))
        kept.append(word)
    return kept


def _with_names(words: list[Word]) -> list[Word]:
    """Mark what may be a name: capitalised within a sentence, or beside a word that announces a
    name or a value.
    """
    marked = []
    for i, word in enumerate(words):
        before, after = (
            words[i - 1].key if i else ".",
            words[i + 1].key if i + 1 < len(words) else "",
        )
        capital = word.shown[:1].isupper() and before != "." and word.key not in WEEKDAYS
        if {before, after} & NAMING or after in VALUED or _is_bare_verb(words, i):
            word = word._replace(exact=True, literal=True)  # noqa: PLW2901
        marked.append(word._replace(exact=True) if capital else word)
    return marked


def _with_forms(words: list[Word]) -> list[Word]:
    """Tell passives, simple pasts and participles used as adjectives from the other forms of a
    verb.
    """
    return [
        word._replace(form=_form(word.key, words[max(0, i - 2) : i]))
        for i, word in enumerate(words)
    ]


def _form(key: str, before: Sequence[Word]) -> str:
    previous = before[-1].key if before else ""
    if (
        previous in {"not", "automatically", "also", "always", "currently", "now"}
        and len(before) > 1
    ):
        previous = before[-2].key
    participle = _is_participle(key)
    if participle and previous in AUXILIARY:
        return "passive"
    if not (participle or key in BASE) or key in SAME_FORMS:
        return "plain"
    return "adjective" if previous in DETERMINERS else "past"


def _is_participle(key: str) -> bool:
    return key in PARTICIPLES or (key.endswith("ed") and len(key) > 3 and key not in WHOLE)
