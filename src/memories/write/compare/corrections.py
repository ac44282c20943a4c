"""Decides whether a new text corrects an old one, by comparing their words.

A correction gives a different value for the same subject in the same place: "the port is 8080",
"the port is 9090". Facts about two subjects don't contradict each other ("Ann's birthday is",
"Bob's birthday is"). Neither do two events, nor two values of an attribute that can have many
("likes tea", "likes coffee"). In doubtful cases, the memories are not linked, and searches show the
old one as usual.

`is_correction` applies these rules after quick checks. `write.similar` compares only memories of
one project, and never two that both have keys. `write.links` chooses among several corrected
memories.

- `_ONE_OF_SEVERAL` rules out statements about one of several things, and `_differ_twice` texts that
  differ in two places.
- `_announces_change`: "Ann lives in Oslo", "Ann moved from Oslo to Bergen".
- `_differs_by_denial`: "gates open", "gates never open".
- `_replaces_value`, for texts that differ in only one place:
  - `_is_role`, if they differ before "is": "Ann is the lead", "Bob is the lead".
  - `_is_event`, `_are_variants` and `_is_habit` rule out events that may repeat, variants such as
    dev.yaml and prod.yaml, and times of a habit.
  - `_has_opposites`: "the gate is open", "the gate is closed".
  - `_is_other_value`, if the subject can have only one such value:
    - `_is_one_value`, for numbers and dates: "the limit is 5", "the limit is 6". A value that is a
      label, as in "allows port 443", needs a verb with one object.
    - `_has_one_object`, for other values after a verb: "Ann lives in Rome", "Ann lives in Bonn".
      `_changes_kind` rules out values of different kinds: "runs on node 22", "runs on Linux".
      - `_is_one_predicate`, after "is": "the editor is vim", "the editor is emacs". `_is_one_thing`
        rules out "Ann's friend is Bob" and "Ann's friend is Eva", which may both be true.

A text with a detail that the new text lacks is not corrected, because its correction would hide the
detail (`frames.has_detail`, `Substitution.drops_detail`).

For scripts without spaces, only `_replaces_characters` applies.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise, product

from memories import languages
from memories.languages import are_opposite
from memories.languages.text import is_unspaced
from memories.write.compare.duplicates import align_texts, is_value
from memories.write.compare.frames import (
    ARTICLES,
    Substitution,
    find_change,
    find_verb,
    has_detail,
    has_verb,
    is_soft,
    reduce_to_frame,
    verb_of,
)
from memories.write.compare.quick_checks import may_correct, split_words
from memories.write.compare.reading import CASED, detect_languages
from memories.write.compare.vocabulary import (
    ANTONYMS,
    BE,
    BOUNDARIES,
    CUES,
    DATES,
    ENUMERATED,
    KINDS,
    LEADING,
    MANY,
    NEGATIONS,
    ONCE,
    PEOPLE,
    PLACED,
    SCHEDULED,
    SENDING,
    SINGLE,
    SOFT,
    SUPPLYING,
    SWITCHING,
    USING,
    VARIANTS,
    WEEKDAYS,
    Word,
    keys_of,
)

# Words that may stand between two changed words or between the parts of a date: 31 de marzo.
_LIGHT = SOFT | ARTICLES | CUES | BE | DATES | frozenset("not no t s is are".split())
_LIGHT |= frozenset("de du di da do del .".split())
_LIGHT_SENSES = frozenset("live is a the in with".split())
_BEST = frozenset(
    "favourite favorite preferred main primary default first chosen current native official".split()
)
_TOWARDS = frozenset(
    "to from by through via under behind near into over inside beside until".split()
)
_PLACES = (SOFT | _TOWARDS) - {"with"}  # "works with" can have many objects
_QUANTITIES = frozenset("always only most some few many all every half".split())
# Verbs for things that happen at only one time; not `open`, since a museum may open on several
# days.
_TIMED = (SINGLE | {"is", "happen", "occur", "meet", "fall"}) - {"open"}
_TIME_OF_DAY = re.compile(r"(\d{1,2}):\d\d")
_HALF_DAY_HOURS = 6
_DEPARTING = frozenset("leave depart arrive go run".split())
_CODE = re.compile("[a-z]{2}")  # code of a language or a country
_ADJECTIVE = re.compile(r"\w{3,40}(?:ed|ing|ful|ous|ive|able|ible|al|ic|ary|less|ish|ant|ent)")

# Words for "favourite" in scripts without spaces.
_FAVOURITE = "最喜欢的?|最喜歡的?|一番好きな|가장 좋아하는"
_TIME = "点|點|時|时|月|日|号|號|시|월|일"
_DENIAL = 8  # maximum number of characters that differ if one text negates the other
# Marks of a subject or an object. A text that contains one is a clause, not a value.
_CASE = {"zh": "(?!)", "ja": "は|が|を", "ko": r"(?:은|는|이|가|을|를)\s", "th": "(?!)"}
# Statements about one of possibly several things, identified by a time, port or path: "there is a
# meeting on Monday", "a worker listens on port 7001". "A build takes 40 minutes" is about all
# builds. The pattern is matched against the texts because `reduce_to_frame` drops articles.
_ONE_OF_SEVERAL = re.compile(
    r"there(?:'s| is| was) (?:also )?an? "
    r"|an? (?:[\w-]+ ){1,4}(?:at \d|on port \d|to [/~]|on \w+days?\b)",
    re.IGNORECASE,
)


def is_correction(new: str, old: str, similarity: float | None, *, threshold: float) -> bool:
    """Return whether a new text corrects an old one that it doesn't repeat.

    Args:
        new: The new text.
        old: The stored text.
        similarity: The cosine of their vectors, or None without vectors.
        threshold: The embedder's minimum cosine for two texts that may say the same thing.
    """
    if not may_correct(new, old, similarity, threshold=threshold):
        return False
    if _ONE_OF_SEVERAL.match(new) and _ONE_OF_SEVERAL.match(old):
        return False
    if is_unspaced(new) and is_unspaced(old):
        return _replaces_characters(new, old)
    if _differ_twice(split_words(new), split_words(old)):
        return False
    new_words, old_words = (reduce_to_frame(words) for words in align_texts(new, old))
    return (
        (_announces_change(new_words, old_words) and not has_detail(old_words, new_words))
        or _differs_by_denial(new_words, old_words)
        or _replaces_value(new_words, old_words, detect_languages(new, old))
    )


def _differ_twice(new: Sequence[str], old: Sequence[str]) -> bool:
    """Return whether texts differ in two places with a meaningful word between them."""
    if "from" in new or "instead" in new:
        return False
    start, shorter = 0, min(len(new), len(old))
    while start < shorter and new[start] == old[start]:
        start += 1
    end = 0
    while end < shorter - start and new[-1 - end] == old[-1 - end]:
        end += 1
    new_changed, old_changed = new[start : len(new) - end], old[start : len(old) - end]
    between = {*new_changed} & {*old_changed}
    weighty = [word for word in between if word.isalpha() and word not in _LIGHT]
    if not weighty:
        return False
    codes = detect_languages(" ".join(new), " ".join(old))
    changed = {*new} ^ {*old}
    if codes and all(languages.sense(word, codes) in {"not", "always"} for word in changed):
        return False
    return any(languages.sense(word, codes) not in _LIGHT_SENSES for word in weighty)


# --- scripts without spaces


def _replaces_characters(new: str, old: str) -> bool:
    """Return whether the characters after the subject were replaced, or a negation was added."""
    edits = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [edit for edit in edits if edit[0] != "equal"]
    if not changes:
        return False
    (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = changes[0], changes[-1]
    head, tail = old[:old_start], old[old_end:]
    removed, added = old[old_start:old_end], new[new_start:new_end]
    for code in detect_languages(new, old):
        entries = languages.words(code)
        is_denied = _contains(old, entries["not"]) != _contains(new, entries["not"])
        if is_denied and len(removed + added) <= _DENIAL:
            return True
        plain = re.sub(_FAVOURITE, "", old)
        case = _CASE.get(code, "")  # for a language with spaces, "" always matches
        if _contains(plain, entries["happened"]) or re.search(case, f"{removed}|{added}"):
            continue
        verbs = entries["single"]
        is_number = any(map(str.isnumeric, removed + added))
        if is_number:
            verbs = [*verbs, *entries["values"]]
        elif _contains(plain, entries["many"]):
            continue
        has_verb = _contains(head, verbs) or (code != "zh" and _contains(tail, verbs))
        is_time = is_number and re.match(_TIME, tail)
        if (is_time or has_verb) and removed.strip("。.") and added.strip("。."):
            return max(len(removed), len(added)) <= max(4, len(head))
    return False


def _contains(text: str, entries: Sequence[str]) -> bool:
    return any(entry in text for entry in entries)


# --- what makes a correction


def _announces_change(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Return whether a new text reports a change of the old text's value, as in "moved from A to
    B" or "uses B instead of A".
    """
    spelled = [word.shown.lower() for word in new]
    old_words = {part for word in old for part in word.shown.lower().split()}
    if "instead of" in spelled:
        at = spelled.index("instead of")
        replaced = set(spelled[at + 1 :])
        is_known = bool(replaced) and replaced <= old_words
        return at > 0 and spelled[at - 1] not in old_words and is_known
    if "from" not in spelled or "to" not in spelled[spelled.index("from") :]:
        return False
    start = spelled.index("from")
    end = spelled.index("to", start)
    removed, added = set(spelled[start + 1 : end]), set(spelled[end + 1 :])
    if not removed or not removed <= old_words or added <= old_words:
        return False
    if not has_verb(new[:start], SWITCHING):
        return False
    subject = {word.shown.lower() for word in new[:start] if word.key not in SOFT | BE}
    return start == 1 or not subject.isdisjoint(old_words)


def _differs_by_denial(new: Sequence[Word], old: Sequence[Word]) -> bool:
    """Return whether texts differ only in negations or quantifiers: not, always, most."""
    new_shared, added = _split_by_other(new, old)
    old_shared, removed = _split_by_other(old, new)
    if len(new_shared) < 2 or new_shared != old_shared:
        return False
    weighty = {word.key for word in added + removed if not is_soft(word)}
    return bool(weighty) and weighty <= NEGATIONS | _QUANTITIES


def _split_by_other(words: Sequence[Word], other: Sequence[Word]) -> tuple[list[str], list[Word]]:
    """Return the keys of the words that both texts contain, and the words that are only in the
    first text.
    """
    other_keys = {*keys_of(other)}
    shared = [word.key for word in words if word.key in other_keys]
    return shared, [word for word in words if word.key not in other_keys]


def _replaces_value(new: Sequence[Word], old: Sequence[Word], codes: Sequence[str]) -> bool:
    """Return whether one value was replaced by another value of the same attribute."""
    change = find_change(new, old)
    if change is None or not change.removed or not change.added or change.drops_detail:
        return False
    if not change.head:
        return _is_role(change)
    if _is_event(change) or _are_variants(change) or _is_habit(change):
        return False
    return _has_opposites(change, codes) or _is_other_value(change)


def _has_opposites(change: Substitution, codes: Sequence[str]) -> bool:
    """Return whether a word was replaced by its opposite, as in "open", "closed"."""
    return any(
        (removed.key, added.key) in ANTONYMS or are_opposite(removed.shown, added.shown, codes)
        for removed, added in product(change.removed, change.added)
    )


def _is_other_value(change: Substitution) -> bool:
    """Return whether the changed part is a value, and the subject can have only one such value."""
    verb = find_verb(change.head)
    changed = [*change.removed, *change.added]
    weighty = [word for word in changed if not is_soft(word)]
    if all(map(is_value, weighty)):
        return _is_one_value(change, verb)
    has_number = any(word.key[:1].isdigit() for word in weighty)
    if verb is None or (has_number and len(weighty) < len(changed)):
        return False
    if _find_prepositions(change.removed) != _find_prepositions(change.added):
        return False
    is_example = change.head[-1].key == "example"  # there may be several examples
    # A text can be "written by Ann" and also "translated into French", so both may be true.
    are_actions = all(
        len(words) > 1 and words[0].form in {"past", "passive", "adjective"}
        for words in (change.removed, change.added)
    )
    if is_example or are_actions or _changes_direction(change) or _changes_kind(change):
        return False
    if change.head[verb].shown == ":" and any(map(verb_of, changed)):
        return False  # a sentence follows the colon, not a value
    return _has_one_object(change, verb)


def _find_prepositions(words: Sequence[Word]) -> list[str]:
    """Return the prepositions "in", "with" and "for" that occur among words, in any language."""
    prepositions = [word for word in words if word.sense in {"in", "with"} or word.key == "for"]
    return [word.sense or word.key for word in prepositions]


def _changes_direction(change: Substitution) -> bool:
    """Return whether the texts differ in direction, so that both may be true.

    Only one text gives two values ("to A and B", "from B"), or one text is about going to a place
    and the other about coming from one.
    """
    removed, added = keys_of(change.removed), keys_of(change.added)
    if ("and" in removed) != ("and" in added):
        return _TOWARDS.issuperset(removed) or _TOWARDS.issuperset(added)
    have_places = min(len(removed), len(added)) > 1
    return have_places and {removed[0], added[0]} == {"to", "from"}


def _changes_kind(change: Substitution) -> bool:
    """Return whether the texts give values of different kinds, which may both be true: CI runs on
    node 22, CI runs on Linux; Ann works at nine, Ann works at Acme; the cat is named Tom, the cat
    is black.
    """
    aspects = {_find_aspect(change.removed), _find_aspect(change.added)}
    if change.head[-1].key == "is" and len(aspects) > 1:
        return True
    removed, added = _find_kinds(change.removed), _find_kinds(change.added)
    if removed and added:
        return removed.isdisjoint(added)
    # Without a preposition, the words before the value give its kind: the database is Redis 7.
    if not any(map(is_soft, (change.head[-1], change.removed[0], change.added[0]))):
        return False
    shapes = {_find_shape(change.removed), _find_shape(change.added)}
    return shapes in ({"value", "name"}, {"numbered", "name"}, {"numbered", "noun"})


def _find_aspect(words: Sequence[Word]) -> str:
    """Return what the words after "is" state about a subject: `name`, `place` or `measure`; empty
    for anything else.
    """
    if words[0].key == "named":
        return "name"
    if _is_preposition(words[0]):
        return "place"
    if len(words) > 1 and words[0].key[0].isdigit() and words[1].key.isalpha():
        return "measure"
    return ""


def _find_kinds(words: Sequence[Word]) -> set[str]:
    """Return the kinds of known values among these words: "linux" is an operating system."""
    parts = [part for word in words for part in word.shown.lower().split()]
    return {KINDS[part] for part in parts if part in KINDS}


def _find_shape(words: Sequence[Word]) -> str:
    """Classify words as a `value` such as a date, a `numbered` thing, a `name` or a `noun`. Return
    an empty string for a mixture.
    """
    weighty = [word for word in words if not is_soft(word)]
    values = [word for word in weighty if is_value(word) or word.key.removesuffix("s") in DATES]
    if len(values) < len(weighty):
        if values:
            is_numbered = weighty[-1:] == values and weighty[-1].key.isdigit()
            return "numbered" if is_numbered else ""
        if all(word.key.isalpha() for word in weighty):
            return "name" if weighty[0].is_capitalized else "noun"
        return ""
    return "value" if weighty else ""


def _is_role(change: Substitution) -> bool:
    """Return whether a role held by only one person changed hands: Ann is the lead, Bob is the
    lead.
    """
    names, tail = (*change.removed, *change.added), change.tail
    if not all(word.is_capitalized for word in names) or len(tail) < 2:
        return False
    if tail[0].key == "is":
        return tail[1].definite
    return verb_of(tail[0]) in LEADING


def _is_event(change: Substitution) -> bool:
    """Return whether a text reports an event that can happen more than once."""
    words = (*change.head, *change.tail)
    for word, following in pairwise(words):
        if word.key == "has" and following.form == "past":  # as in "Ann has worked at Acme"
            return not has_verb(change.head, ONCE | SWITCHING)
    if any(word.sense in {"today", "yesterday", "was"} for word in words):
        return True
    for word in words:
        verb, shown = verb_of(word), word.shown.lower()
        if verb and not (word.definite and shown == verb):  # "the build" is a noun, not a verb
            is_past = word.form == "past" or shown in {"was", "were"}
            return is_past and not has_verb(change.head, ONCE)
    return any(word.form == "past" for word in words)


def _are_variants(change: Substitution) -> bool:
    """Return whether two paths are variants: config/dev.yaml, config/prod.yaml.

    They differ only in the names of, for example, environments or languages.
    """
    if not _has_path(change) or len(change.removed) != 1 or len(change.added) != 1:
        return False
    parts, other_parts = (
        re.split(r"[\W_]+", word.shown.lower()) for word in (*change.removed, *change.added)
    )
    if len(parts) != len(other_parts):
        return False
    pairs = list(zip(parts, other_parts, strict=True))
    # The last part, such as "io" in "acme.io", is not a code.
    codes = [pair for pair in pairs[:-1] if all(map(_CODE.fullmatch, pair))]
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    return all(pair in codes or VARIANTS.issuperset(pair) for pair in changed)


def _is_habit(change: Substitution) -> bool:
    """Return whether the values are times at which a subject may do the same thing: works on
    Mondays and on Tuesdays, runs at 2:00 and at 14:00.
    """
    times = [word for word in (*change.removed, *change.added) if not is_soft(word)]
    days = {word.key.removesuffix("s") for word in times}
    if len(days) == 1 and days <= WEEKDAYS:
        return True  # "closed on Sunday", "closed on Sundays"
    verb = find_verb(change.head)
    if _is_departure(change, verb):
        return True
    is_open = change.head[-2:-1] and change.head[-2].key == "open"
    if verb is not None and verb_of(change.head[verb]) in _TIMED and not is_open:
        return False
    if times and all(word.key[:-1] in WEEKDAYS for word in times):
        return True
    hours = [int(time[1]) for word in times if (time := _TIME_OF_DAY.fullmatch(word.key))]
    return len(hours) == len(times) == 2 and abs(hours[0] - hours[1]) >= _HALF_DAY_HOURS


def _is_departure(change: Substitution, verb: int | None) -> bool:
    """Return whether the values are departure times; trains and buses leave several times a day."""
    head, removed, added, _ = change
    if verb is None or verb_of(head[verb]) not in _DEPARTING:
        return False
    is_scheduled = not SCHEDULED.isdisjoint(keys_of(head[:verb]))
    return is_scheduled and is_soft(head[-1]) and all(map(is_value, (*removed, *added)))


def _is_one_value(change: Substitution, verb: int | None) -> bool:
    """Return whether numbers, dates, versions or paths are values of the same attribute."""
    head, _, _, tail = change
    if any(word.key == "is" or word.sense in {"live", "is"} for word in tail):
        return False  # the verb comes later, so the changed part belongs to the subject
    if head[-1].key in ENUMERATED:
        return False
    if verb is None:
        if len(head) == 1 or any(map(verb_of, tail)):
            return False  # this word belongs to the subject
        is_label = _follows_with(head) and not tail
        return not (is_label or _has_path(change) or _begins_with_verb(tail))
    base, behind = verb_of(head[verb]), head[verb + 1 :]
    if _has_path(change) or (_is_label(behind) and not tail):
        return base in USING or _has_one_object(change, verb)
    return base not in MANY or bool(tail if base == "has" else behind)


def _is_label(behind: Sequence[Word]) -> bool:
    """Return whether the words between a verb and a number make the number a label, as in "allows
    port 443", rather than a measure. Several labels may apply at the same time.
    """
    if not behind or is_soft(behind[-1]) or is_value(behind[-1]):
        return False
    if any(map(is_soft, behind)) and not _follows_with(behind):
        return False
    # A system's version is not a label: "supports Android 9" includes later versions.
    return KINDS.get(behind[-1].shown.lower()) != KINDS["android"]


def _follows_with(words: Sequence[Word]) -> bool:
    """Return whether the last word follows "with", in any language."""
    return len(words) > 1 and "with" in {words[-2].key, words[-2].sense}


def _is_object(words: Sequence[Word]) -> bool:
    """Return whether the last word is a verb's object, such as "room" in "the house has a room"."""
    verb = find_verb(words)
    return verb is not None and words[verb].key != "is"


def _has_path(change: Substitution) -> bool:
    """Return whether the changed part contains a path or an identifier."""
    return any(CASED.search(word.key) for word in (*change.removed, *change.added))


def _begins_with_verb(words: Sequence[Word]) -> bool:
    """Return whether words may be an unlisted verb and its object, as in "(robot arm 4) welds
    doors".
    """
    if len(words) < 2:
        return False
    verb, following = words[:2]
    is_object = not is_soft(following) and following.key not in {"per", "and", "or"}
    return verb.shown.isalpha() and not is_soft(verb) and is_object


def _has_one_object(change: Substitution, verb: int) -> bool:
    """Return whether a verb can have only one object at a time: "lives in", "uses … for"."""
    head, removed, added, _ = change
    base, behind = verb_of(head[verb]), head[verb + 1 :]
    keys = keys_of(head[:verb])
    if keys_of(behind[:1]) == ["to"] and _has_several_receivers(head[verb]):
        return False
    if head[verb].form == "passive" and "is" in keys:
        auxiliary = verb - 1 - keys[::-1].index("is")
        return _is_one_thing(head[:auxiliary], head[auxiliary + 1 :], removed, added)
    if base == "is":
        return _is_one_predicate(change, verb)
    if base in SINGLE:
        return _is_single(head, verb)
    if base in PLACED and (*behind, *removed)[0].key in _PLACES:
        return base != "go" or head[verb - 1].key not in PEOPLE
    return base in USING and _has_one_use(change, base, behind)


def _is_single(head: Sequence[Word], verb: int) -> bool:
    """Return whether a verb in `SINGLE` can have only one object here."""
    base = verb_of(head[verb])
    if base == "call":
        return verb == 0  # only in an instruction: a service may call many services
    if base == "name":  # a house may have a room named Ada and a room named Turing
        return head[verb - 1].key not in MANY and not _is_object(head[:verb])
    return True


def _has_several_receivers(word: Word) -> bool:
    """Return whether a verb before "to" may have several receivers: "alerts are sent to Ann", "we
    ship to Norway".
    """
    base = verb_of(word)
    return base in SENDING or (base in SUPPLYING and word.form != "passive")


def _has_one_use(change: Substitution, base: str, behind: Sequence[Word]) -> bool:
    """Return whether a subject can have only one object at a time, as in "I use X for baking"."""
    if not BOUNDARIES.isdisjoint(keys_of(behind[:1])):
        return False  # the subject may use other things in other cases
    if not MANY.isdisjoint(keys_of(change.tail[:1])):
        return False  # the subject may have several objects of this kind
    if len(behind) > 1 and (behind[-1].key in {"for", "with"} or behind[-1].sense == "with"):
        return False  # there may be a second purpose
    is_only_one = base == "prefer" and len(change.removed) == len(change.added) == 1
    return is_only_one or any(word.key not in SOFT for word in (*behind, *change.tail))


def _is_one_predicate(change: Substitution, verb: int) -> bool:
    """Return whether a predicate can have only one value at a time, in any language."""
    head, removed, added, _ = change
    subject, behind = list(head[:verb]), head[verb + 1 :]
    if head[verb].shown == ":":  # a heading isn't a name
        subject[0] = subject[0]._replace(opens=False, shown=subject[0].shown.lower())
    is_name = bool(head[verb].sense) and verb == 1 and head[0].opens
    if is_name and not (behind and _is_preposition(behind[0])):
        return False  # a named thing can be several things at once
    return _is_one_thing(subject, behind, removed, added)


def _is_one_thing(
    subject: Sequence[Word], behind: Sequence[Word], removed: Sequence[Word], added: Sequence[Word]
) -> bool:
    """Return whether only one thing or place can follow the subject's "is": the editor, Ann's
    manager, A's port.
    """
    if not subject:
        return False
    keys, noun = {*keys_of(subject)}, subject[-1]
    has_many = not {noun.key, noun.key.removesuffix("s")}.isdisjoint(MANY) and not keys & _BEST
    if has_many and (len(subject) == 1 or keys & {"'s", "of"}):
        return False  # there can be several, as in "Ann's friends" and "bugs"
    if has_verb(behind, SINGLE | PLACED | LEADING):
        return True
    are_names = removed[-1].is_capitalized and added[-1].is_capitalized
    if len(subject) == 1 and noun.opens and not are_names:
        # A named thing can be several things at once.
        return bool(behind) and _is_preposition(behind[0])
    behind = [word for word in behind if not word.is_capitalized]
    if behind and (_is_preposition(behind[0]) or noun.key in PEOPLE):
        return all(map(_is_preposition, behind))
    if keys & {"'s", "of", "for"} or noun.definite:
        last_words = [word.shown for word in (removed[-1], added[-1]) if word.shown.islower()]
        can_have_many = noun.key in PEOPLE or any(map(_ADJECTIVE.fullmatch, last_words))
    else:
        can_have_many = len(subject) == 1 and not (noun.shown[:1].islower() or noun.opens)
    return len(behind) < 2 and not can_have_many


def _is_preposition(word: Word) -> bool:
    """Return whether a word may introduce a place or another complement: in, to, behind."""
    return word.key in SOFT | _TOWARDS or word.sense == "in"
