"""Whether a new text corrects an old one, decided by words.

A correction says another thing of the same subject in the same place: "the port is 8080", "the port
is 9090". Facts of two subjects stand beside each other ("Ann's birthday is", "Bob's birthday is"),
and so do two events and two of many ("likes tea", "likes coffee"). Where that is not certain
nothing is linked: an old fact is then shown unmarked.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from memories import languages
from memories.languages import are_opposite
from memories.languages.text import is_latin, is_unspaced
from memories.write.compare.duplicates import aligned, base_of, is_value
from memories.write.compare.reading import Word, tongues
from memories.write.compare.vocabulary import (
    ANTONYMS,
    BE,
    COMMON_VERBS,
    CUES,
    DATES,
    ENUMERATED,
    EVENT_TIMES,
    LEADING,
    MANY,
    NEGATIONS,
    ONCE,
    PEOPLE,
    PLACED,
    SINGLE,
    SOFT,
    SWITCHING,
    USING,
)

_LONGEST = 400  # characters; longer texts tell several things
_MOST = 4  # words that are exchanged
_SHARED = 0.45  # of the words of the longer text
# of the cosine from which two texts may say the same: below it they speak of two things
_NEAR = 0.4
_ARTICLES = frozenset("the a an , do does we".split())
_OF_DATES = frozenset("de du di da do del .".split())  # 31 de marzo, 31. März
_LIGHT = SOFT | _ARTICLES | _OF_DATES | CUES | BE | DATES | {"not", "no", "t", "s", "is", "are"}
_BEST = frozenset(
    "favourite favorite preferred main primary default first chosen current native official".split()
)
_TOWARDS = frozenset(
    "to from by through via under behind near into over inside beside until".split()
)
_DEFINITE = frozenset("the our my your his her their its this".split())
_VERBS = frozenset(("live", "is", "use", "prefer", "has", "like"))  # senses of verbs
_QUANTITIES = frozenset("always only most some few many all every half".split())
_FAVOURITE = "最喜欢的?|最喜歡的?|一番好きな|가장 좋아하는"
_TIME = "点|點|時|时|月|日|号|號|시|월|일"
_DENIAL = 8  # signs that deny, with those of the verb that they change
# What stands behind a subject, and what a value has none of: then it is a clause.
_TOPIC = {"ja": "は|：|:", "ko": r"(?:은|는|이|가)\s|:", "th": ":"}
_CASE = {"zh": "(?!)", "ja": "は|が|を", "ko": r"(?:은|는|이|가|을|를)\s", "th": "(?!)"}
_ADJECTIVE = re.compile(r"\w{3,40}(?:ed|ing|ful|ous|ive|able|ible|al|ic|ary|less|ish|ant|ent)")


def corrects(new: str, old: str, similarity: float | None, *, threshold: float) -> bool:
    """Say whether a new text corrects an old one that it does not repeat.

    Args:
        new: The text that is stored.
        old: A text that is there.
        similarity: The cosine of their vectors, or None where there are none.
        threshold: The cosine from which two texts may say the same; it belongs to the embedder.
    """
    if max(len(new), len(old)) > _LONGEST or "\n" in new.strip() or "\n" in old.strip():
        return False
    if (
        similarity is not None
        and similarity < _NEAR * threshold
        and is_latin(new)
        and is_latin(old)
    ):
        return False
    if is_unspaced(new) and is_unspaced(old):
        return _exchanged_signs(new, old)
    if not _share_words(new, old) or _differs_twice(_tokens(new), _tokens(old)):
        return False
    ours, theirs = (_told(words) for words in aligned(new, old))
    return (
        _says_so(ours, theirs)
        or _denied(ours, theirs)
        or _exchanged(ours, theirs, tongues(new, old))
    )


def _differs_twice(new: Sequence[str], old: Sequence[str]) -> bool:
    """Say, without reading them, whether texts differ in two places with a word between them that
    counts.
    """
    if "from" in new or "instead" in new:
        return False
    start, shorter = 0, min(len(new), len(old))
    while start < shorter and new[start] == old[start]:
        start += 1
    end = 0
    while end < shorter - start and new[-1 - end] == old[-1 - end]:
        end += 1
    between = {*new[start : len(new) - end]} & {*old[start : len(old) - end]}
    counted = [word for word in between if word.isalpha() and word not in _LIGHT]
    codes = tongues(" ".join(new), " ".join(old)) if counted else ()
    if codes and all(languages.sense(word, codes) in {"not", "always"} for word in {*new} ^ {*old}):
        return False
    return any(
        languages.sense(word, codes) not in {"live", "is", "a", "the", "in", "with"}
        for word in counted
    )


@functools.lru_cache(maxsize=2)
def _tokens(text: str) -> Sequence[str]:
    return re.findall(r"\w+", text.lower())


@functools.lru_cache(maxsize=2)
def _words(text: str) -> frozenset[str]:
    return frozenset(_tokens(text))


def _share_words(new: str, old: str) -> bool:
    one, other = _words(new), _words(old)
    larger = (
        min if one & {"from", "instead"} else max
    )  # what tells of a change has words of its own
    return bool(one) and len(one & other) >= _SHARED * larger(len(one), len(other))


def _exchanged_signs(new: str, old: str) -> bool:
    """Say whether one run of signs was exchanged, in a script without spaces, behind its
    subject.
    """
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed = [block for block in blocks if block[0] != "equal"]
    if not changed:
        return False
    start, end = changed[0][1], changed[-1][2]
    head, gone, come = old[:start], old[start:end], new[changed[0][3] : changed[-1][4]]
    for code in tongues(new, old):
        known = languages.words(code)
        if (
            head
            and len(gone + come) <= _DENIAL
            and _has(old, known["not"]) != _has(new, known["not"])
        ):
            return True
        told = re.sub(_FAVOURITE, "", old)
        if _has(told, known["happened"]) or re.search(_CASE[code], f"{gone}|{come}"):
            continue
        numbers = any(map(str.isnumeric, gone)) and any(map(str.isnumeric, come))
        verbs = (*known["single"], *(known["values"] if numbers else ()))
        timed = bool(numbers and head and re.match(_TIME, old[end:]) and _has(old[end:], verbs))
        behind_subject = (
            timed
            or _has(head, verbs)
            or (code != "zh" and re.search(_TOPIC[code], head) and _has(old[end:], verbs))
        )
        liked = not numbers and _has(told, known["many"])
        if behind_subject and not liked and gone.strip("。.") and come.strip("。."):
            return max(len(gone), len(come)) <= max(4, len(head))
    return False


def _has(text: str, entries: Sequence[str]) -> bool:
    return any(entry in text for entry in entries)


def _told(words: Sequence[Word]) -> list[Word]:
    """Return the words that make the frame of a text: forms of "is" are one word, and so is a
    colon; articles go.
    """
    told: list[Word] = []
    definite = False
    for word in words:
        if word.sense not in {"", "in", "with", "was"}:
            word = word._replace(key=word.sense)  # noqa: PLW2901
        is_ = word.key in BE or word.shown == ":"
        definite = (definite or word.key in _DEFINITE) and not (
            is_ or word.key in SOFT or word.key in {"'s", ".", ","}
        )
        if is_:
            told.append(word._replace(key="is"))
        elif word.key == "@when":
            told.append(word._replace(key="on"))
        elif word.key not in _ARTICLES and word.key not in CUES:
            told.append(word._replace(definite=definite))
    while told and told[-1].key == ".":
        del told[-1]
    return told


class _Change(NamedTuple):
    """What differs between two texts, in one place: words before it, what was and what is there,
    words after it.
    """

    head: Sequence[Word]
    gone: Sequence[Word]
    come: Sequence[Word]
    tail: Sequence[Word]


def _denied(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Say whether texts differ in nothing but what denies or counts: not, never, always, only,
    most.
    """
    ours, theirs = (Counter(word.key for word in words) for words in (new, old))
    apart = [word for word in new if not theirs[word.key]] + [
        word for word in old if not ours[word.key]
    ]
    kept = [word for word in new if theirs[word.key]]
    weighty = [word for word in apart if not _is_beside(word)]
    if [word.key for word in kept] != [word.key for word in old if ours[word.key]]:
        return False
    return (
        len(kept) > 1
        and bool(weighty)
        and all(word.key in NEGATIONS | _QUANTITIES for word in weighty)
    )


def _exchanged(new: Sequence[Word], old: Sequence[Word], codes: Sequence[str]) -> bool:
    """Say whether one value was exchanged for another of the same attribute."""
    change = _one_change(new, old)
    if change is None:
        return False
    head, gone, come, tail = change
    if not gone or not come or not head:
        return bool(gone and come) and _is_role(gone, come, tail)
    return not _is_event(head, tail) and _is_other_value(change, codes)


def _is_other_value(change: _Change, codes: Sequence[str]) -> bool:
    """Say whether what was exchanged behind a subject is the value of one attribute, and no second
    one beside it.
    """
    head, gone, come, tail = change
    verb = next((i for i in reversed(range(len(head))) if _verb(head[i], i)), None)
    told = verb is not None or not any(
        _verb(word, 1) for word in tail
    )  # the left lamp is no right lamp
    if told and any(
        (a.key, b.key) in ANTONYMS or are_opposite(a.shown, b.shown, codes)
        for a in gone
        for b in come
    ):
        return True
    weighty = [word for word in (*gone, *come) if not _is_soft(word)]
    if all(is_value(word) for word in weighty):
        return _is_one_value(change, verb)
    numbered = any(word.key[:1].isdigit() for word in weighty)
    if (
        verb is None
        or max(len(gone), len(come)) > _MOST
        or (numbered and len(weighty) < len(gone) + len(come))
    ):
        return False
    led = [[word.sense for word in side if word.sense in {"in", "with"}] for side in (gone, come)]
    return led[0] == led[1] and not _is_headed(change, verb) and _is_single(change, verb)


def _one_change(new: Sequence[Word], old: Sequence[Word]) -> _Change | None:
    """Return where two texts differ, if that is one place; prepositions within it do not divide
    it.
    """
    blocks = SequenceMatcher(
        None, [w.key for w in old], [w.key for w in new], autojunk=False
    ).get_opcodes()
    changed = [block for block in blocks if block[0] != "equal"]
    if not changed:
        return None
    start, end = changed[0][1], changed[-1][2]
    between = [
        old[i] for kind, first, last, _, _ in blocks if kind == "equal" for i in range(first, last)
    ]
    inside = [
        word
        for i, word in enumerate(old)
        if start <= i < end and any(word is same for same in between)
    ]
    if any(
        not _is_beside(word) and word.key not in _OF_DATES and not is_value(word) for word in inside
    ):
        return None
    change = _Change(old[:start], old[start:end], new[changed[0][3] : changed[-1][4]], old[end:])
    return _with_verb_first(change)


def _is_soft(word: Word) -> bool:
    return word.key in SOFT or word.sense in {"in", "with"}


def _is_beside(word: Word) -> bool:
    """Say whether a word may stand between parts of one change: a preposition, or a verb within "ne
    … pas".
    """
    return _is_soft(word) or word.sense in {"live", "is", "a"}


def _with_verb_first(change: _Change) -> _Change:
    """Tell a verb that ends its sentence, as in Turkish or Hindi, before what was exchanged, as in
    English.
    """
    head, gone, come, tail = change
    if not head or not tail or tail[-1].sense not in _VERBS or any(_verb(word, 1) for word in head):
        return change
    verbs = [word for word in tail if word.sense in _VERBS]
    verb = next((word for word in verbs if word.sense == "like"), verbs[0])
    return _Change([*head, verb], gone, come, [word for word in tail if word not in verbs])


def _verb(word: Word, place: int) -> str:
    """Return the base form if a word is a verb that is known, or looks like one behind a
    subject.
    """
    if word.key in {"is", "@there"}:
        return word.key
    form = word.shown.lower()
    found = next(
        (
            base
            for base in (word.key, form, *base_of(form), form.removesuffix("es"))
            if base in COMMON_VERBS
        ),
        "",
    )
    return found if found or place == 0 else ""


def _is_role(gone: Sequence[Word], come: Sequence[Word], tail: Sequence[Word]) -> bool:
    """Say whether what only one can be or lead went from one name to another: Ann is the lead, Bob
    is the lead.
    """
    if (
        not all(word.shown[:1].isupper() and word.shown.isalpha() for word in (*gone, *come))
        or len(tail) < 2
    ):
        return False
    if tail[0].key == "is":
        return tail[1].definite
    return _verb(tail[0], 1) in LEADING


def _is_event(head: Sequence[Word], tail: Sequence[Word]) -> bool:
    """Say whether a text tells what happened once, of which there may be many."""
    days = {"today", "yesterday", "was"}
    if any(word.sense in days for word in (*head, *tail)) or any(
        word.sense in EVENT_TIMES for word in head
    ):
        return True
    verbs = ((word, _verb(word, i)) for i, word in enumerate((*head, *tail)))
    told = (
        word for word, base in verbs if base and not (word.definite and word.shown.lower() == base)
    )  # the build
    main = next((word for word in told), None)
    main = main or next((word for word in (*head, *tail) if word.form == "past"), None)
    if main is not None and main.form == "past" and _verb(main, 1) not in ONCE:
        return True
    if main is not None and main.key == "is" and main.shown.lower() in {"was", "were"}:
        return not any(word.form == "passive" and _verb(word, 1) in ONCE for word in head)
    first = next((i for i, word in enumerate(head) if _verb(word, i)), len(head))
    return any(
        word.key in EVENT_TIMES or re.fullmatch(r"\d{4}-\d\d(-\d\d)?", word.key)
        for word in head[:first]
    )


def _is_one_value(change: _Change, verb: int | None) -> bool:
    """Say whether numbers, dates, versions or paths that differ are the value of one attribute."""
    head, gone, come, tail = change
    if any(word.key == "is" or word.sense in {"live", "is"} for word in tail):
        return False  # it is a part of the subject
    days, counts = (
        [all(_is_day(word) for word in side) for side in (gone, come)],
        [any(not _is_day(word) for word in side) for side in (gone, come)],
    )
    if (
        any(counts)
        and any(_is_day(word) and word.key not in SOFT for word in (*gone, *come))
        and not all(days)
    ):
        return _is_date(gone) and _is_date(come)
    if head[-1].key in ENUMERATED and not (verb is not None and head[verb].key == "is"):
        return False
    if verb is None:
        if any(
            word.sense for word in (*head, *gone, *come, *tail)
        ):  # a language whose verbs are not all known
            return len(head) > 1 and _is_soft(head[0]) and len(tail) < 2
        return len(head) > 1 and len(tail) < 3 and not any(_verb(word, 1) for word in tail)
    base = _verb(head[verb], verb)
    return base not in MANY or (not any(days) and bool(tail if base == "has" else head[verb + 1 :]))


def _is_headed(change: _Change, verb: int) -> bool:
    """Say whether a colon stands behind a heading, since a sentence follows it and no value."""
    head, gone, come, tail = change
    said = (*gone, *come)
    return head[verb].shown == ":" and (
        any(_verb(word, 1) for word in said) or bool(tail and len(said) > 2)
    )


def _is_day(word: Word) -> bool:
    return (
        word.key in DATES
        or word.key in SOFT
        or bool(re.fullmatch(r"\d{1,2}(:\d\d)+|a\.m\.|p\.?m\.?", word.key))
    )


def _is_date(side: Sequence[Word]) -> bool:
    """Say whether a side is a day of a month or a time of day: 3 May, Monday at 9 am."""
    numbers = [word for word in side if word.key.rstrip("stndrh").isdigit()]
    return len(numbers) <= 2 and len(numbers) < len(side)


def _is_single(change: _Change, verb: int) -> bool:
    """Say whether a verb has one object at a time: is called, lives in, uses … for CI."""
    head, gone, come, tail = change
    base = _verb(head[verb], verb)
    behind = head[verb + 1 :]
    if head[verb].form == "passive" and "is" in [word.key for word in head[:verb]]:
        verb = max(i for i, word in enumerate(head[:verb]) if word.key == "is")
        return _has_one(head[:verb], head[verb + 1 :], gone, come)
    if base == "is":
        return _is_one_thing(change, verb)
    if base in SINGLE:
        return base not in {"call", "name"} or head[verb - 1].key not in MANY
    if base in PLACED and (*behind, *gone)[0].key in SOFT | _TOWARDS:
        return head[verb - 1].key not in PEOPLE if base == "go" else True
    if base in USING:
        weighty = [word for word in (*behind, *tail) if word.key not in SOFT]
        return (bool(tail) and bool(weighty)) or (base == "prefer" and len(gone) == len(come) == 1)
    return False


def _is_one_thing(change: _Change, verb: int) -> bool:
    """Say whether what a subject "is" can be only one thing, in any language."""
    head, gone, come, _ = change
    subject, behind = list(head[:verb]), head[verb + 1 :]
    if head[verb].shown == ":":  # what stands before a colon is no name
        subject[0] = subject[0]._replace(opens=False, shown=subject[0].shown.lower())
    named = bool(head[verb].sense) and verb == 1 and head[0].opens
    if named and not (behind and _leads_on(behind[0])):
        return False  # of a name much can be said
    return _has_one(subject, behind, gone, come)


def _has_one(
    subject: Sequence[Word], behind: Sequence[Word], gone: Sequence[Word], come: Sequence[Word]
) -> bool:
    """Say whether a subject "is" only one thing, or in one place: the editor, Ann's manager, the
    port of A.
    """
    keys = {word.key for word in subject}
    many = bool(subject) and bool({subject[-1].key, subject[-1].key.removesuffix("s")} & MANY)
    if not subject or (many and not keys & _BEST and (len(subject) == 1 or keys & {"'s", "of"})):
        return False
    if any(_verb(word, 1) in SINGLE | PLACED | LEADING or word.key == "@there" for word in behind):
        return True
    noun = subject[-1]
    if (
        len(subject) == 1
        and noun.opens
        and not (gone[-1].shown[:1].isupper() and come[-1].shown[:1].isupper())
    ):
        return bool(behind) and _leads_on(behind[0])  # of a name much can be said
    behind = [word for word in behind if not word.shown[:1].isupper()]
    if behind and (_leads_on(behind[0]) or noun.key in PEOPLE):
        return all(map(_leads_on, behind))
    if keys & {"'s", "of", "for"} or noun.definite:
        ends = [word.shown.lower() for word in (*gone[-1:], *come[-1:]) if word.shown.islower()]
        return (
            len(behind) < 2 and noun.key not in PEOPLE and not any(map(_ADJECTIVE.fullmatch, ends))
        )
    return len(behind) < 2 and (len(subject) > 1 or noun.shown[:1].islower() or noun.opens)


def _leads_on(word: Word) -> bool:
    return word.key in SOFT | _TOWARDS or word.sense == "in"


def _says_so(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Say whether a text tells that what the old one says has changed: moved from A to B, no longer
    A but B.
    """
    told = [word.shown.lower() for word in new]
    known = {part for word in old for part in word.shown.lower().split()}
    if "instead of" in told:
        at = told.index("instead of")
        return (
            at > 0
            and told[at - 1] not in known
            and bool(told[at + 1 :])
            and set(told[at + 1 :]) <= known
        )
    if "from" not in told or "to" not in told[told.index("from") :]:
        return False
    start = told.index("from")
    end = told.index("to", start)
    gone, come = set(told[start + 1 : end]), set(told[end + 1 :])
    subject = {
        word.shown.lower() for word in new[:start] if word.key not in SOFT and word.key not in BE
    }
    switches = any(_verb(word, 1) in SWITCHING for word in new[:start])
    return (
        switches
        and bool(gone)
        and gone <= known
        and not come <= known
        and (bool(subject & known) or start == 1)
    )
