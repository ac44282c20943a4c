"""Whether a new text repeats an old one, corrects it, or says something else: decided by its words, gated by vectors.

Vectors can't tell a correction from a repetition ("port 8080", "port 9090": cosine 0.98). So a text is a duplicate only
if every word of either text has a counterpart in the other, in an order that means the same. What the tables below
don't know counts as a difference: a repetition that is stored costs a line, a correction that is dropped costs a fact.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
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


# --- words -----------------------------------------------------------------------------------------------------------

# Each line: words that may stand for each other in a memory. Only what can't change a fact belongs here.
_SYNONYMS = """
prefer like love favor favour enjoy
want wish
dislike hate
use utilize utilise employ
need require
start begin launch commence
finish end conclude
keep retain store save hold
break fail
fix repair resolve
error failure
cause trigger
happen occur
find locate
communicate talk
choose decide pick select
delete remove erase
create make
change modify alter
buy purchase
get receive obtain
give provide
speak talk
study learn
help assist
ask request
show display
forbid prohibit
brief concise short
big large
small little
quick fast
main primary
favorite favourite
owner responsible
about around roughly approximately circa
via through
because since
customer client
repo repository
db database
config configuration configure
prod production
env environment
dev development
doc documentation
app application
dependency dep
directory folder dir
memory ram
cli commandline
authentication auth authenticate
authorization authz
deployment deploy
implementation implement
migration migrate
installation install
generation generate
validation validate
invalidation invalidate
integration integrate
kubernetes k8s
postgresql postgres
colleague coworker
company firm
car automobile
picture image
reply answer response
automatic automatically
manual manually
daily day
begin beginning
sync synchronize synchronise
license licence
color colour
gray grey
behavior behaviour
center centre
organization organisation
organize organise
optimize optimise
normalize normalise
initialize initialise
serialize serialise
catalog catalogue
dialog dialogue
program programme
cancelled canceled
ok okay
% percent
not never
must shall
"""

# What a phrase of several words becomes. `@` marks what no single word says.
_PHRASES = """
not = do not; does not; can not
past = used to
use to = is used to; are used to; be used to
without = with no; with out
prefer = would like; is fond of; would rather have
want = would like to have
ask to = ask for
dislike = not like; not enjoy
must = have to; has to; need to; needs to; needs be; is required to; are required to
must not = must never
instead = instead of; rather than
max = at most; no more than; up to; not more than
min = at least; no less than; not less than
because = because of; due to; owing to
about = more or less
and = as well as
daily = every day; each day; once a day; per day; once per day
weekly = every week; each week; once a week; per week; once per week
hourly = every hour; each hour; once an hour; per hour; once per hour
monthly = every month; each month; once a month; per month; once per month
nightly = every night; each night; once a night; per night; once per night
no_longer = no longer; not anymore; not any more; no more
@in = located in; located at; stored in; stored at; kept in; kept at; based in; lives in; live in; lives at; live at; \
reside in; resides in; resides at; found in; found at; can be found in; can be found at; available at; saved in; \
situated in; living in; saved at; lives on; stored on; located on
@at = can be reached at; reachable at; reached at
@on = listens on; listen on; runs on port; running on port; listening on; serves on; listening on port; listens on port
@work = work as; works as; working as; employed as
@own = responsible for; in charge of; accountable for
talk to = communicate with; communicates with; talks with; talk with; talks to; speaks to
give back = gives back; returns; return
named = called; known as
pr = pull request; pull requests; prs; merge request; merge requests
clean = clean up; cleans up
setup = set up; sets up
login = log in; logs in
"""

_IRREGULAR = """
run ran run; choose chose chosen; write wrote written; keep kept kept; hold held held; build built built
break broke broken; make made made; send sent sent; begin began begun; take took taken; give gave given; get got got
go went gone; see saw seen; meet met met; find found found; lose lost lost; say said said; tell told told
think thought thought; buy bought bought; teach taught taught; speak spoke spoken; drive drove driven; eat ate eaten
drink drank drunk; wear wore worn; know knew known; grow grew grown; lead led led; lend lent lent; set set set
read read read; put put put; do did done; throw threw thrown; draw drew drawn; come came come; become became become
"""

_NUMBERS = dict(
    zip(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion".split(),
        [*map(str, range(21)), *map(str, range(30, 100, 10)), "100", "1000", "1000000", "1000000000"],
        strict=True,
    )
) | {"first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th", "fifth": "5th", "once": "1x", "twice": "2x"}

_WEEKDAYS = frozenset("monday tuesday wednesday thursday friday saturday sunday".split())
_DATES = _WEEKDAYS | frozenset(
    "january february march april may june july august september october november december today tomorrow yesterday "
    "tonight spring summer autumn winter morning noon afternoon evening night midnight weekend week month quarter year "
    "day hour minute hourly daily nightly weekly monthly quarterly yearly am pm utc gmt cet last next".split()
)
_NEGATIONS = frozenset(
    "not no never neither nor none without except unless no_longer stop avoid cannot hardly rarely past dislike".split()
)

_BE = frozenset("is are am be been being was were get gets".split())
_PAST_MARKS = frozenset("was were did had".split())
_ARTICLES = frozenset("the a an this these that those its our 's my your his her their".split())
# Words without weight of their own: a text may have them or not.
_LIGHT = _BE | frozenset(
    "the a an this these that those its it our 's who which there do does did have has had also currently now always "
    "all any each every both please we us , . default".split()
) - {"default"}
# Prepositions that may be missing on one side, but not exchanged for one of another group.
_SOFT = {"in": "in", "on": "in", "at": "in", "of": "of", "for": "for", "with": "with", "as": "as"}
_CLAUSE = frozenset("and or but when if because while unless until before after since then so than , .".split())
_FRONTED = frozenset("in on at before after during when if for until since because once while".split())
# What stands beside these is a name, and a name has no plural.
_NAMING = frozenset(
    "table column branch folder directory function method command flag class module package field key tag label topic "
    "queue host bucket named called make npm".split()
)
# An ending that is no inflection.
_WHOLE = _DATES | frozenset(
    "news goods means sales windows rails ops series lens redis kubernetes staging building string less this thus "
    "always previous various need speed feed embed hundred red seed us bus status access process does has is was "
    "stop nothing something anything everything during".split()
)


def _lines(table: str) -> Iterator[list[str]]:
    return (line.split() for line in table.strip().splitlines())


_GROUPS: dict[str, str] = {}
for _group in _lines(_SYNONYMS):
    for _name in _group:
        _GROUPS.setdefault(_name, _group[0])
_FORMS = {entry.split()[i]: entry.split()[0] for line in _IRREGULAR.strip().splitlines()
          for entry in line.split(";") for i in (1, 2)}
