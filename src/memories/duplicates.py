"""Whether a new text repeats an old one, corrects it, or says something else: decided by its words, gated by vectors.

Vectors can't tell a correction from a repetition ("port 8080", "port 9090": cosine 0.98). So a text is a duplicate only
if every word of either text has a counterpart in the other, in an order that means the same. What the tables below
don't know counts as a difference: a repetition that is stored costs a line, a correction that is dropped costs a fact.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from memories.text import normal_form


class Verdict(StrEnum):
    """What a new text is, seen from an old one."""

    SAME = "same"
    DUPLICATE = "duplicate"
    CORRECTION = "correction"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and what differs: `numbers: 8080 -> 9090`, `negation: + not`, or nothing."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Word:
    """A word as it is compared (`key`) and as it was written; an exact one has no inflections and no synonyms."""

    key: str
    shown: str
    exact: bool = False
    form: str = "plain"  # "past", "passive", or "adjective" for other participles


# Groups of words that may stand for each other. Only what can't change a fact belongs here: "customer" and
# "client" do not, nor "main" and "primary", which name branches.
_SYNONYMS = """
prefer like love favor favour enjoy; want wish; dislike hate; use utilize utilise employ; need require
start begin launch commence; finish end conclude; keep retain store save hold; break fail; fix repair resolve solve
error failure; cause trigger; happen occur; communicate talk; choose decide pick select; delete remove erase
change modify alter; buy purchase; receive obtain get; speak talk; study learn; help assist; ask request; show display
forbid prohibit; brief concise short; big large; small little; quick fast; favorite favourite preferred
about around roughly approximately; via through; because since; repo repository; db database
config configuration configure; prod production; env environment; dev development; doc documentation; app application
dependency dep; directory folder dir; memory ram; auth authentication authenticate; deploy deployment
implement implementation; migrate migration; install installation; generate generation; validate validation
invalidate invalidation; integrate integration; kubernetes k8s; postgresql postgres; colleague coworker; company firm
picture image; reply answer response; automatic automatically; manual manually; synchronize synchronise sync
license licence; color colour; gray grey; behavior behaviour; center centre; organization organisation
organize organise; optimize optimise; normalize normalise; initialize initialise; serialize serialise
catalog catalogue; dialog dialogue; program programme; ok okay; % percent; must shall; not never
"""

# What phrases become, by the words as written. `@` marks a meaning that no single word has.
_PHRASES = """
past = used to | use to = is used to; are used to; be used to | without = with no
want = would like; would like to have | dislike = not like; not enjoy
must = have to; has to; need to; needs to; is required to; are required to | instead = instead of; rather than
max = at most; no more than; not more than | min = at least; no less than; not less than
because = because of; due to; owing to | and = as well as
daily = every day; each day; once a day; per day; once per day
weekly = every week; each week; once a week; per week; once per week
hourly = every hour; each hour; once an hour; per hour; once per hour
monthly = every month; each month; once a month; per month; once per month
nightly = every night; each night; once a night; per night; once per night
no_longer = no longer; not anymore; not any more
@in = located in; located at; located on; stored in; stored at; stored on; kept in; saved in; based in; lives in
@in = live in; lives at; live at; lives on; reside in; resides in; found in; found at; can be found in; can be found at
@in = available at; situated in | is at = can be reached at; reached at; is reachable at
@on = listens on; listens on port; listen on; listen on port; listening on port; runs on port; running on port
@on = serves on port | @works = works as; work as; working as; employed as
owns = responsible for; in charge of; accountable for
talk to = communicate with; communicates with; talks with; talk with; talks to; speaks to
return = give back; gives back | named = called; known as
pr = pull request; pull requests; prs; merge request; merge requests | clean = clean up; cleans up
"""

# Base, past and participle of the verbs that have forms of their own.
_IRREGULAR = """
run ran run; choose chose chosen; write wrote written; keep kept kept; hold held held; build built built
break broke broken; make made made; send sent sent; begin began begun; take took taken; give gave given; get got got
go went gone; see saw seen; meet met met; find found found; lose lost lost; say said said; tell told told
think thought thought; buy bought bought; teach taught taught; speak spoke spoken; drive drove driven; eat ate eaten
drink drank drunk; wear wore worn; know knew known; grow grew grown; lead led led; lend lent lent
throw threw thrown; draw drew drawn; come came come; become became become; bring brought brought; win won won
"""
_SAME_FORMS = frozenset("run read set put cut let hit split reset come become".split())

_SMALL_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()
_NUMBERS = {word: str(number) for number, word in enumerate(_SMALL_NUMBERS)} | {
    "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90",
    "hundred": "100", "thousand": "1000", "million": "1000000", "first": "1st", "second": "2nd", "third": "3rd",
    "fourth": "4th", "fifth": "5th", "once": "1x", "twice": "2x",
}  # fmt: skip

_WEEKDAYS = frozenset("monday tuesday wednesday thursday friday saturday sunday".split())
_DATES = _WEEKDAYS | frozenset(
    "january february march april may june july august september october november december today tomorrow yesterday "
    "tonight spring summer autumn winter morning noon afternoon evening night midnight weekend week month quarter year "
    "day hour minute hourly daily nightly weekly monthly quarterly yearly a.m. pm utc gmt cet last next".split()
)
_NEGATIONS = frozenset(
    "not no never neither nor none without except unless no_longer past stop avoid cannot hardly rarely dislike".split()
)

_BE = frozenset("is are am be been being was were".split())
_AUXILIARY = _BE | {"get", "gets"}
_PAST_MARKS = frozenset("was were did had".split())
_DETERMINERS = frozenset("the a an this these that those its our 's my your his her their".split())
# Words without a weight of their own: a text has them or not, and says the same.
_LIGHT = _BE | frozenset(
    "the a an this these that those its our 's who which there do does did done have has had also currently now "
    "always all any each every both please we us , .".split()
)
# Prepositions that may be missing in one text, but not be exchanged for one of another group.
_SOFT = {"in": "in", "on": "in", "at": "in", "of": "of", "for": "for", "with": "with", "as": "as"}
_BOUNDARIES = frozenset("and or but when if because while unless until before after since then so than , .".split())
_FRONTED = frozenset("in on at before after during when if for until since because once while".split())
# What stands beside these words is a name, and a name has no plural.
_NAMING = frozenset(
    "table column branch folder directory function method command flag class module package field key tag label topic "
    "queue host bucket called named make npm".split()
)
# Words whose ending is no inflection, or whose plural is something else.
_WHOLE = (_DATES - _WEEKDAYS - frozenset("week month year day hour minute night".split())) | frozenset(
    "news goods means sales windows rails ops series lens redis kubernetes staging building string less thus various "
    "need speed feed embed hundred red seed bus status access process nothing something anything everything".split()
)


def _by_member(table: str) -> dict[str, str]:
    """Map every word of a table of groups to the first word of its group."""
    groups: dict[str, str] = {}
    for group in re.split("[;\n]", table.strip()):
        first, *others = group.split()
        groups |= {word: groups.get(word, first) for word in (first, *others)}
    return groups


def _by_phrase(table: str) -> dict[tuple[str, ...], str]:
    """Map the words of every phrase of a table to what the phrase means."""
    entries = (entry.split(" = ") for entry in re.split(r" \| |\n", table.strip()))
    return {tuple(phrase.split()): meaning for meaning, phrases in entries for phrase in phrases.split("; ")}


_GROUP = _by_member(_SYNONYMS)
_PHRASE = _by_phrase(_PHRASES)
_VERBS = [entry.split() for line in _IRREGULAR.strip().splitlines() for entry in line.split("; ")]
_BASE = {form: base for base, past, participle in _VERBS for form in (past, participle)}
_PARTICIPLES = frozenset(participle for _, _, participle in _VERBS) | _SAME_FORMS

_LONG = 300  # words; nobody tells a longer text in another order, and looking for one takes seconds
_LONGEST_PHRASE = max(len(phrase) for phrase in _PHRASE)
_OPENING, _CLOSING = "([{\"'*«", ".,;:!)]}\"'*…»。、!,:;」』「『"
_IDENTIFIER = re.compile(r"[\d/\\_@=<>(){}\[\]$€£%^&|~+#`]|\w[.:]\w|^-|^\.\w")
_CASED = re.compile(r"[/\\_]|[^\W\d][.:]\w")
_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?|q[1-4]|\d{1,2}:\d\d")
_VERSION = re.compile(r"v\d+|v?\d+\.\d+[\w.-]*")
_QUANTITY = re.compile(r"(\d+(?:[.,]\d+)?)(GiB|GB|MiB|MB|KB|TB|ms|s|h|min|am|pm|AM|PM|kg|km|%)")
_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "„": '"'})
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
    (re.compile(r"\s[-–—]+\s|—"), " , "),
)


def judge(new: str, old: str, similarity: float | None, *, threshold: float) -> Judgement:
    """Say what a new text is, seen from an old one.

    Args:
        new: The text that somebody wants to store.
        old: A text that is stored.
        similarity: The cosine of their vectors, or None where there are none.
        threshold: The cosine from which two texts may say the same; it belongs to the embedder.

    Returns:
        `SAME` for equal normal forms (but for case in paths); `DUPLICATE` for similar texts without a difference;
        `CORRECTION` for similar texts with one, which `reason` names; `DIFFERENT` for all others. Without a similarity
        nothing is a correction, and a duplicate is what has no difference.
    """
    ours, theirs = _words(new), _words(old)
    if _bare(new) == _bare(old) and _cased(ours) == _cased(theirs):
        return Judgement(Verdict.SAME)
    if similarity is not None and similarity < threshold:
        return Judgement(Verdict.DIFFERENT)
    reason = _difference(ours, theirs)
    if not reason:
        return Judgement(Verdict.DUPLICATE)
    if similarity is None or not _share_script_pairs(new, old):
        return Judgement(Verdict.DIFFERENT)
    return Judgement(Verdict.CORRECTION, reason)


def _bare(text: str) -> str:
    return normal_form(text).rstrip(" .!。…")


def _cased(words: Sequence[_Word]) -> list[str]:
    """Return the words whose case counts, and superscripts, which the normal form takes for digits."""
    return [word.key for word in words if word.exact and (_CASED.search(word.key) or "^" in word.key)]


def _share_script_pairs(new: str, old: str) -> bool:
    """Say whether texts in scripts that an English model can't read share a third of their pairs of characters."""
    ours, theirs = _bare(new), _bare(old)
    if sum(character.isascii() for character in ours + theirs) * 2 > len(ours + theirs):
        return True
    one, other = ({text[i : i + 2] for i in range(len(text) - 1)} for text in (ours, theirs))
    return len(one & other) * 3 >= min(len(one), len(other))


def _words(text: str) -> list[_Word]:
    """Cut a text into words as they are compared, phrases and number words replaced, with the forms of its verbs."""
    spelled = unicodedata.normalize("NFKC", _mark_raised(text)).translate(_STRAIGHT)
    for pattern, replacement in _SHORT_FORMS:
        spelled = pattern.sub(replacement, spelled)
    cut = [word for chunk in spelled.split() for word in _cut(chunk)]
    return _with_forms(_with_names(_with_every(_with_phrases(_with_acronyms(cut)))))


def _mark_raised(text: str) -> str:
    """Put a sign before raised and lowered digits and fractions, which NFKC makes plain digits: 10² is not 102."""
    if text.isascii():
        return text
    raised = ("<super>", "<sub>", "<fraction>")
    return "".join(f"^{c}" if unicodedata.decomposition(c).startswith(raised) else c for c in text)


def _cut(chunk: str) -> Iterator[_Word]:
    """Yield the words of what stands between two spaces; a comma or stop behind it is a word of its own."""
    if chunk == "'s":
        yield _Word(chunk, chunk)
        return
    core = chunk.lstrip(_OPENING)
    bare = core.rstrip(_CLOSING)
    if "(" in bare and core.startswith(f"{bare})"):
        bare += ")"
    question = bare.endswith("?")
    bare = bare.rstrip("?").rstrip(_CLOSING) if question else bare
    if quantity := _QUANTITY.fullmatch(bare):
        yield from (_Word(part.lower(), part, exact=True) for part in quantity.groups())
    elif _IDENTIFIER.search(bare):
        name = bare.strip("`")
        yield _Word(name if _CASED.search(name) else name.casefold(), name, exact=True)
    else:
        yield from (_plain(part) for part in re.split("[-–—]", bare) if part)
    if question:
        yield _Word("?", "?", exact=True)
    if chunk[-1] in ",;:.)":
        yield _Word("." if chunk[-1] == "." else ",", ",")


def _plain(part: str) -> _Word:
    folded = part.casefold()
    return _Word(_NUMBERS.get(folded, folded), part, exact=folded in _NUMBERS)


def _with_acronyms(words: list[_Word]) -> list[_Word]:
    """Keep US or IT apart from the little words that they look like, `3 am` from `I am`, `turn it on` from `on it`."""
    shouted = all(word.shown.upper() == word.shown for word in words)
    kept = []
    for i, word in enumerate(words):
        after = words[i + 1].key if i + 1 < len(words) else "."
        if word.key == "am" and i and words[i - 1].shown[0].isdigit():
            word = replace(word, key="a.m.", exact=True)  # noqa: PLW2901
        elif word.key in _SOFT and i and (after in _SOFT or after in _BOUNDARIES):
            word = replace(word, key=f"@{word.key}", exact=True)  # noqa: PLW2901
        elif not shouted and len(word.shown) > 1 and word.shown.isupper() and (word.key in _LIGHT or word.key in _SOFT):
            word = replace(word, key=word.shown, exact=True)  # noqa: PLW2901
        kept.append(word)
    return kept


def _with_phrases(words: list[_Word]) -> list[_Word]:
    """Replace known phrases, the longest first."""
    replaced: list[_Word] = []
    at = 0
    while at < len(words):
        for length in range(min(_LONGEST_PHRASE, len(words) - at), 0, -1):
            phrase = words[at : at + length]
            if meaning := _PHRASE.get(tuple(word.key for word in phrase)):
                shown = " ".join(word.shown for word in phrase)
                replaced += (_Word(key, shown, exact=True) for key in meaning.split())
                break
        else:
            length = 1
            replaced.append(words[at])
        at += length
    return replaced


def _with_every(words: list[_Word]) -> list[_Word]:
    """Say `every` wherever it counts: before times and numbers, and for plural weekdays."""
    kept: list[_Word] = []
    for word in words:
        every = bool(kept) and kept[-1].key in {"every", "each"}
        plural = word.key[:-1] in _WEEKDAYS and word.key.endswith("s")
        if plural:
            word = replace(word, key=word.key[:-1])  # noqa: PLW2901
        if every and (word.key[:1].isdigit() or word.key in _DATES or word.key.rstrip("s") in _DATES):
            kept[-1] = _Word("@every", "every", exact=True)
        elif plural:
            kept.append(_Word("@every", word.shown, exact=True))
        kept.append(word)
    return kept


def _with_names(words: list[_Word]) -> list[_Word]:
    """Mark as exact what may be a name: capitalised within a sentence, or beside a word that announces a name."""
    marked = []
    for i, word in enumerate(words):
        before, after = words[i - 1].key if i else ".", words[i + 1].key if i + 1 < len(words) else ""
        capital = word.shown[:1].isupper() and before != "." and word.key not in _WEEKDAYS
        marked.append(replace(word, exact=True) if capital or {before, after} & _NAMING else word)
    return marked


def _with_forms(words: list[_Word]) -> list[_Word]:
    """Tell passives, simple pasts and participles used as adjectives from the other forms of a verb."""
    return [replace(word, form=_form(word.key, words[max(0, i - 2) : i])) for i, word in enumerate(words)]


def _form(key: str, before: Sequence[_Word]) -> str:
    previous = before[-1].key if before else ""
    if previous in {"not", "automatically", "also", "always", "currently", "now"} and len(before) > 1:
        previous = before[-2].key
    participle = key in _PARTICIPLES or (key.endswith("ed") and len(key) > 3 and key not in _WHOLE)
    if participle and previous in _AUXILIARY:
        return "passive"
    if not (participle or key in _BASE) or key in _SAME_FORMS:
        return "plain"
    return "adjective" if previous in _DETERMINERS else "past"


def _difference(new: Sequence[_Word], old: Sequence[_Word]) -> str:
    """Return what differs between two texts, or nothing if they say the same."""
    ours, theirs = _aligned(_joined(new, old), _joined(old, new))
    more, less = _unmatched(ours, theirs), _unmatched(theirs, ours)
    if more or less:
        return _describe(less, more)
    if _soft(ours) - _soft(theirs) and _soft(theirs) - _soft(ours):
        return "words: prepositions"
    if _tenses_differ(ours, theirs):
        return "tense"
    strict = _soft(ours) == _soft(theirs)
    return "" if _orders(ours, strict=strict) & _orders(theirs, strict=strict) else "word order"


def _joined(words: Sequence[_Word], other: Sequence[_Word]) -> list[_Word]:
    """Write two words as one where the other text does: time zone, timezone."""
    keys, wanted = {word.key for word in words}, {word.key for word in other}
    joined: list[_Word] = []
    for word in words:
        whole = joined[-1].key + word.key if joined else ""
        if whole in wanted and whole not in keys and whole.isalpha():
            joined[-1] = _Word(whole, f"{joined[-1].shown} {word.shown}")
        else:
            joined.append(word)
    return joined


def _aligned(new: Sequence[_Word], old: Sequence[_Word]) -> tuple[list[_Word], list[_Word]]:
    """Give inflections and synonyms one key in both texts."""
    counted = any(word.key in {"has", "have", "own", "owns"} for word in (*new, *old))  # a cat is not some cats
    chosen: dict[str, str] = {}
    aligned = []
    for word in (*new, *old):
        meanings = _meanings(word, plural=not counted)
        key = next((chosen[meaning] for meaning in meanings if meaning in chosen), word.key)
        for meaning in meanings:
            chosen.setdefault(meaning, key)
        aligned.append(replace(word, key=key))
    return aligned[: len(new)], aligned[len(new) :]


def _meanings(word: _Word, *, plural: bool) -> list[str]:
    """Return the word, its possible base forms and their groups."""
    if word.key in _LIGHT or word.key in _SOFT:
        return [word.key]
    forms = [word.key] if word.exact else [word.key, *_bases(word.key, plural=plural)]
    return [*forms, *(_GROUP[form] for form in forms if form in _GROUP)]


def _bases(key: str, *, plural: bool) -> list[str]:
    """Return what an English word may be an inflection of."""
    if key in _BASE or len(key) < 4 or key in _WHOLE or not key.isascii() or not key.isalpha():
        return [_BASE[key]] if key in _BASE else []
    if key.endswith(("ies", "ied")):
        return [f"{key[:-3]}y"]
    for ending in ("ing", "ed"):
        stem = key.removesuffix(ending)
        if stem != key and len(stem) > 1:
            return [*([stem] if len(stem) > 2 else []), f"{stem}e", *([stem[:-1]] if stem[-1] == stem[-2] else [])]
    if key.endswith(("ses", "xes", "zes", "ches", "shes")):
        return [key[:-1], key[:-2]]
    if key.endswith("s") and not key.endswith(("ss", "us", "is")) and (plural or key[:-1] in _GROUP):
        return [key[:-1]]
    return []


def _unmatched(words: Sequence[_Word], other: Sequence[_Word]) -> list[_Word]:
    """Return the words of weight that the other text has not, or not as often."""
    spare = Counter(word.key for word in other)
    unmatched = []
    for word in words:
        if word.key in _LIGHT or word.key in _SOFT or word.key == "by":
            continue
        if spare[word.key]:
            spare[word.key] -= 1
        else:
            unmatched.append(word)
    return unmatched


def _soft(words: Sequence[_Word]) -> Counter[str]:
    return Counter(_SOFT[word.key] for word in words if word.key in _SOFT)


def _tenses_differ(new: Sequence[_Word], old: Sequence[_Word]) -> bool:
    """Say whether one text tells as past what the other tells as present; participles may be either."""
    sides = [({w.key for w in words} & _PAST_MARKS, {w.key for w in words if w.form == "past"}) for words in (new, old)]
    (marks, pasts), (other_marks, other_pasts) = sides
    if bool(marks) != bool(other_marks) and not (pasts if other_marks else other_pasts):
        return True
    plain, other_plain = ({w.key for w in words if w.form == "plain"} for words in (new, old))
    return bool((pasts & other_plain) - plain or (other_pasts & plain) - other_plain)


def _orders(words: Sequence[_Word], *, strict: bool) -> set[tuple[str, ...]]:
    """Return the orders in which a text may be told: active, without a fronted adjunct, with an "is" turned round."""
    if len(words) > _LONG:
        return {tuple(f"{word.key} {word.form == 'passive'}" for word in words if word.key not in _LIGHT)}
    listed = _with_sorted_pair(words)
    orders = set()
    for told in (listed, _unfronted(listed)):
        active = _active(told)
        orders.add(_keys(active, strict=strict))
        verbs = [i for i, word in enumerate(active) if word.key in {"is", "are"}]
        if len(verbs) == 1 and any(word.key in _DETERMINERS for word in active):
            left, right = sorted((_keys(active[: verbs[0]], strict=strict), _keys(active[verbs[0] :], strict=strict)))
            orders.add((*left, "|", *right))
    return orders


def _keys(words: Sequence[_Word], *, strict: bool) -> tuple[str, ...]:
    heavy = (word.key for word in words if word.key not in _LIGHT and (strict or word.key not in _SOFT))
    return tuple(_SOFT.get(key, key) for key in heavy)


def _with_sorted_pair(words: Sequence[_Word]) -> list[_Word]:
    """Put the two names of the only "A and B" into alphabetical order, where it is a whole subject or object."""
    told, ands = list(words), [i for i, word in enumerate(words) if word.key == "and"]
    length = len(told) - (bool(told) and told[-1].key == ".")
    if len(ands) != 1 or ands[0] not in {1, length - 2} or not 0 < ands[0] < length - 1:
        return told
    if any(word.key in {"respectively", ","} for word in told):
        return told
    pair = told[ands[0] - 1 : ands[0] + 2 : 2]
    if all(word.shown[:1].isupper() for word in pair):
        told[ands[0] - 1], told[ands[0] + 1] = sorted(pair, key=lambda word: word.key)
    return told


def _unfronted(words: Sequence[_Word]) -> list[_Word]:
    """Move an adjunct from the start of a sentence to its end: on Fridays we deploy, we deploy on Fridays."""
    told = [word for i, word in enumerate(words) if word.key != "." or i < len(words) - 1]
    if not told or told[0].key not in _FRONTED or any(word.key == "." for word in told):
        return told
    commas = [i for i, word in enumerate(told) if word.key == ","]
    starts = [i for i, word in enumerate(told) if i > 1 and (word.key in _DETERMINERS or word.key in {"we", "user"})]
    dates = [i + 1 for i, word in enumerate(told[:3]) if word.key in _DATES or word.key.isdigit()]
    at = min(commas[:1] or dates[-1:] or starts[:1] or [0])
    return told[at:] + told[:at]


def _active(words: Sequence[_Word]) -> list[_Word]:
    """Tell passives as actives: "A is managed by B" as "B manages A", so that "A manages" and "A is managed" differ."""
    told = list(words)
    while (at := next((i for i, word in enumerate(told) if word.form == "passive"), None)) is not None:
        start = max((i + 1 for i in range(at) if told[i].key in _BOUNDARIES), default=0)
        end = next((i for i in range(at, len(told)) if told[i].key in _BOUNDARIES), len(told))
        rest = told[at + 1 : end]
        by = next((i for i, word in enumerate(rest) if word.key == "by"), len(rest))
        last = next((i for i in range(by + 1, len(rest)) if rest[i].key in _SOFT), len(rest))
        agent, rest = rest[by + 1 : last], rest[:by] + rest[last:]
        told[start:end] = [*agent, replace(told[at], form="active"), *told[start:at], *rest]
    return told


def _describe(less: Sequence[_Word], more: Sequence[_Word]) -> str:
    """Name the most telling difference: what the old text had alone, and what the new one has alone."""
    for kind, belongs in _KINDS:
        gone, come = ([word for word in words if belongs(word)] for words in (less, more))
        if gone or come:
            return f"{kind}: {_change(gone or less, come or more)}"
    return f"words: {_change(less, more)}"


def _change(less: Sequence[_Word], more: Sequence[_Word]) -> str:
    gone, come = (" ".join(word.shown for word in words[:6]) for words in (less, more))
    if gone and come:
        return f"{gone} -> {come}"
    return f"+ {come}" if come else f"- {gone}"


def _is_number(word: _Word) -> bool:
    return word.key[:1].isdigit() or word.key.lstrip("+-<>=$€£~").replace(".", "").replace(",", "").isdigit()


def _is_name(word: _Word) -> bool:
    return word.exact and word.shown[:1].isalpha() and " " not in word.shown


_KINDS: tuple[tuple[str, Callable[[_Word], bool]], ...] = (
    ("negation", lambda word: word.key in _NEGATIONS),
    ("date", lambda word: word.key in _DATES or bool(_DATE.fullmatch(word.key))),
    ("version", lambda word: bool(_VERSION.fullmatch(word.key))),
    ("numbers", _is_number),
    ("path", lambda word: bool(_CASED.search(word.key))),
    ("name", _is_name),
)
