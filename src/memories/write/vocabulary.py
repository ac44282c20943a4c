"""The words that `duplicates` compares by: which may stand for each other, and which carry no facts."""

import re

from memories.text import STOP_WORDS

# Groups of words that may stand for each other. Only what can't change a fact belongs here: "customer" and
# "client" do not, nor "main" and "primary", which name branches.
_SYNONYMS = """
prefer favor favour; want wish; dislike hate; use utilize utilise employ; need require
start begin launch commence; finish end conclude; keep retain store save hold; break fail; fix repair resolve solve
error failure; cause trigger; happen occur; communicate talk; choose decide pick select; delete remove erase
change modify alter; buy purchase; receive obtain get; speak talk; study learn; help assist; ask request; show display
forbid prohibit; brief concise short; big large; quick fast; favorite favourite preferred
about around roughly approximately; via through; because since; repo repository; db database
config configuration configure; prod production; env environment; dev development; doc documentation; app application
dependency dep; directory folder dir; memory ram; auth authentication authenticate; deploy deployment
implement implementation; migrate migration; install installation; generate generation; validate validation
invalidate invalidation; integrate integration; kubernetes k8s; postgresql postgres; colleague coworker; company firm
picture image; reply answer response; automatic automatically; manual manually; synchronize synchronise sync
license licence; color colour; gray grey; behavior behaviour; center centre; organization organisation
organize organise; optimize optimise; normalize normalise; initialize initialise; serialize serialise
catalog catalogue; dialog dialogue; program programme; ok okay; % percent; must shall; all every; currently now
"""

# What phrases become, by the words as written. `@` marks a meaning that no single word has.
_PHRASES = """
past = used to | use to = is used to; are used to; be used to | without = with no
want = would like; would like to have | dislike = not like
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
SAME_FORMS = frozenset("run read set put cut let hit split reset come become".split())

_SMALL_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()
NUMBERS = {word: str(number) for number, word in enumerate(_SMALL_NUMBERS)} | {
    "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90",
    "hundred": "100", "thousand": "1000", "million": "1000000", "first": "1st", "second": "2nd", "third": "3rd",
    "fourth": "4th", "fifth": "5th", "once": "1x", "twice": "2x",
}  # fmt: skip

WEEKDAYS = frozenset("monday tuesday wednesday thursday friday saturday sunday".split())
DATES = WEEKDAYS | frozenset(
    "january february march april may june july august september october november december today tomorrow yesterday "
    "tonight spring summer autumn winter morning noon afternoon evening night midnight weekend week month quarter year "
    "day hour minute hourly daily nightly weekly monthly quarterly yearly a.m. pm utc gmt cet last next".split()
)
NEGATIONS = frozenset(
    "not no never neither nor none without except unless no_longer past stop avoid cannot hardly rarely dislike".split()
)

BE = frozenset("is are am be been being was were".split())
AUXILIARY = BE | {"get", "gets"}
PAST_MARKS = frozenset("was were did had".split())
DETERMINERS = frozenset("the a an this these that those its our 's my your his her their".split())
# Words without a weight of their own: a text has them or not, and says the same.
LIGHT = BE | frozenset(
    "the a an this these that those its our 's who which there do does did done have has had also please we , .".split()
)
# Prepositions that may be missing in one text, but not be exchanged for one of another group.
SOFT = {"in": "in", "on": "in", "at": "in", "of": "of", "for": "for", "with": "with", "as": "as"}
BOUNDARIES = frozenset("and or but when if because while unless until before after since then so than , .".split())
FRONTED = frozenset("in on at before after during when if for until since because once while".split())
# What stands beside these words is a name, and a name has no plural.
NAMING = frozenset(
    "table column branch folder directory function method command flag class module package field key tag label topic "
    "queue host bucket called named make npm".split()
)
# Words whose ending is no inflection, or whose plural is something else.
WHOLE = (DATES - WEEKDAYS - frozenset("week month year day hour minute night".split())) | frozenset(
    "news goods means sales windows rails ops series lens redis kubernetes staging building string less thus various "
    "need speed feed embed hundred red seed bus status access process nothing something anything everything".split()
)


# Words whose case says nothing, and those that are others in capitals.
FREE_CASE = STOP_WORDS | {"pm"}
ACRONYMS = LIGHT | SOFT.keys() | frozenset("us it who or me can".split())


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


GROUP = _by_member(_SYNONYMS)
PHRASE = _by_phrase(_PHRASES)
_VERBS = [entry.split() for line in _IRREGULAR.strip().splitlines() for entry in line.split("; ")]
BASE = {form: base for base, past, participle in _VERBS for form in (past, participle)}
PARTICIPLES = frozenset(participle for _, _, participle in _VERBS) | SAME_FORMS
