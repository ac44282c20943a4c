"""The words that `duplicates` compares by: which may stand for each other, and which carry no
facts.
"""

import re

from memories.languages.text import STOP_WORDS

# Groups of words that may stand for each other. Only what can't change a fact belongs here:
# "customer" and "client" do not, nor "main" and "primary", which name branches. The first table has
# verbs, whose base form may also be a command: see `reading`.
_VERBS_ALIKE = """
prefer favor favour; want wish; dislike hate; use utilize utilise; need require
start begin launch commence; finish end conclude; keep retain; store save; break fail; fix repair resolve solve
cause trigger; happen occur; communicate talk; choose decide pick select; delete remove erase
change modify alter; buy purchase; receive obtain get; speak talk; study learn; help assist; ask request; show display
forbid prohibit; synchronize synchronise sync; organize organise; optimize optimise; normalize normalise
initialize initialise; serialize serialise
"""
_OTHERS_ALIKE = """
error failure; brief concise short; big large; quick fast; favorite favourite preferred
about around roughly approximately; via through; because since; repo repository; db database
config configuration configure; prod production; env environment; dev development; doc documentation; app application
dependency dep; directory folder dir; auth authentication authenticate; deploy deployment
implement implementation; migrate migration; install installation; generate generation; validate validation
invalidate invalidation; integrate integration; kubernetes k8s; postgresql postgres; colleague coworker; company firm
picture image; reply answer response; automatic automatically; manual manually
license licence; color colour; gray grey; behavior behaviour; center centre; organization organisation
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
@there in = located in; stored in; kept in; saved in; based in; lives in; live in; reside in; resides in; found in
@there in = can be found in; situated in | @there at = located at; stored at; lives at; live at; found at
@there at = can be found at; available at | @there on = located on; stored on; lives on
is at = can be reached at; reached at; is reachable at
gb of memory = gb of ram | gib of memory = gib of ram | mb of memory = mb of ram
@on = listens on; listens on port; listen on; listen on port; listening on port; runs on port; running on port
@on = serves on port | is = works as; work as; working as; employed as
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
forbid forbade forbidden; understand understood understood; pay paid paid; sell sold sold; hide hid hidden
spend spent spent; freeze froze frozen; forget forgot forgotten; overwrite overwrote overwritten
rewrite rewrote rewritten; override overrode overridden; rebuild rebuilt rebuilt; withdraw withdrew withdrawn
show showed shown; throw threw thrown; draw drew drawn; come came come; become became become; bring brought brought
win won won
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
    "the a an this these that those its our 's who which there do does did have has had also please we @when "
    ", .".split()
)
# Before a date a preposition may be missing; elsewhere none may, nor be exchanged: in the car, on
# the car.
PLACES = frozenset("in on at".split())
SOFT = PLACES | frozenset("of for with as".split())
BOUNDARIES = frozenset(
    "and or but when if because while unless until before after since then so than , .".split()
)
FRONTED = frozenset(
    "@when in on at before after during when if for until since because once while".split()
)
# What stands beside these words is a name, and a name has neither a plural nor a synonym.
NAMING = frozenset(
    "table column branch folder directory function method command flag class module package field key tag label topic "
    "queue host bucket called named make npm subcommand keyword verb".split()
)
# What stands before these words, or alone after "is", is a name or a value.
VALUED = NAMING | frozenset(
    "option action property attribute parameter argument variable constant setting status state mode level type role "
    "event schema enum endpoint route path button menu tab hook target job stage signal macro directive extension "
    "prefix suffix codename alias nickname username password permission scope environment env profile channel stream "
    "index point value code script step".split()
)
# After these words comes what is to be typed, pressed or read, to the letter.
TYPED = frozenset(
    "run execute exec type press enter invoke call click hit say says read reads issue".split()
)
# What follows the name of a program is a command.
PROGRAMS = frozenset(
    "git gh glab svn hg npm npx pnpm yarn bun deno pip pipx uv poetry conda mamba hatch tox nox pytest ruff mypy "
    "python ruby gem bundle rake rails php composer artisan cargo rustup cmake ninja bazel gradle mvn sbt dotnet "
    "nuget apt apt-get aptitude dpkg yum dnf rpm zypper pacman brew flatpak choco scoop winget nix guix docker "
    "podman compose kubectl helm minikube k9s terraform tofu pulumi ansible vagrant packer aws gcloud az doctl "
    "flyctl heroku vercel netlify wrangler firebase supabase systemctl launchctl journalctl supervisorctl pm2 ssh "
    "scp rsync curl wget tar sed awk grep xargs tmux vim emacs crontab psql mysql sqlite3 redis-cli mongosh "
    "alembic flask django manage.py ng vite webpack eslint prettier nx lerna sudo etcdctl nomad istioctl argocd "
    "flux kustomize skaffold dvc mlflow jupyter".split()
)
# What stands before a verb that is no command, in its base form.
VERB_BEFORE = frozenset(
    "to must shall should will would can could may might not never always please we i you they also do does did".split()
)
ASKING = (
    frozenset("can could will would should shall may might must has have had do does did".split())
    | BE
)
ASKING_WORDS = frozenset("who whom whose what which why how".split())
PRONOUNS = frozenset(
    "i we you they he she it there anyone anybody someone somebody everyone everybody".split()
)
# Nouns that are written as one word or as two; other words must not be joined: "a symmetric key" is
# not "asymmetric".
COMPOUNDS = frozenset(
    "timezone timestamp timeline timeout codebase codegen database dataset datacenter datacentre filename filesystem "
    "pathname username hostname nickname workflow workspace workload namespace tablespace whitespace endpoint "
    "breakpoint checkpoint checklist changelog changeset roadmap website webpage webhook homepage playbook runbook "
    "dashboard lifecycle lifetime runtime realtime bandwidth whitelist blacklist allowlist blocklist backend "
    "frontend backoff deadline deadlock precommit email voicemail healthcheck hotfix hotkey bugfix metadata middleware "
    "toolchain toolkit testbed multiline teammate roommate screenshot spreadsheet newsletter bookmark smartphone "
    "keyboard".split()
)
# Words whose ending is no inflection, or whose plural is something else.
WHOLE = (DATES - WEEKDAYS - frozenset("week month year day hour minute night".split())) | frozenset(
    "news goods means sales windows rails ops series lens redis kubernetes staging building string less thus various "
    "need speed feed embed hundred red seed bus status access process nothing something anything everything".split()
)


# Words whose case says nothing, and those that are others in capitals.
FREE_CASE = STOP_WORDS | {"pm"}
ACRONYMS = LIGHT | SOFT | frozenset("us it who or me can".split())


def _by_member(table: str) -> dict[str, str]:
    """Map every word of a table of groups to the name of its group, which is no word."""
    groups: dict[str, str] = {}
    for group in re.split("[;\n]", table.strip()):
        words = group.split()
        groups |= {word: groups.get(word, f"={words[0]}") for word in words}
    return groups


def _by_phrase(table: str) -> dict[tuple[str, ...], str]:
    """Map the words of every phrase of a table to what the phrase means."""
    entries = (entry.split(" = ") for entry in re.split(r" \| |\n", table.strip()))
    return {
        tuple(NUMBERS.get(word, word) for word in phrase.split()): meaning
        for meaning, phrases in entries
        for phrase in phrases.split("; ")
    }


GROUP = _by_member(f"{_VERBS_ALIKE.strip()}\n{_OTHERS_ALIKE.strip()}")
# Names that are written in several ways; other names have no synonyms.
NAMES_ALIKE = frozenset(GROUP[name] for name in ("kubernetes", "postgresql", "database"))
VERBS_ALIKE = frozenset(re.split(r"[;\s]+", _VERBS_ALIKE.strip()))
PHRASE = _by_phrase(_PHRASES)
_VERBS = [entry.split() for line in _IRREGULAR.strip().splitlines() for entry in line.split("; ")]
BASE = {form: base for base, past, participle in _VERBS for form in (past, participle)}
PARTICIPLES = frozenset(participle for _, _, participle in _VERBS) | SAME_FORMS

# --- what tells a correction from a second fact: see `corrections`
# ---------------------------------------------------

# Verbs with one object at a time: what costs 3 euros does not cost 4. Those of other languages are
# told as "live".
SINGLE = frozenset(
    "@there live reside begin start end finish close open expire last cost weigh measure drive marry depart "
    "arrive leave wake call name wear".split()
)
# Verbs that lead to one place, person or time: who reports to Ann does not report to Bob.
PLACED = frozenset(
    "base work study run host listen serve store keep save locate situate report manage lead own maintain belong meet "
    "happen occur sit move land board return sleep write build deploy publish release point log default fall bill "
    "charge pay fund insure register set configure limit pin rotate poll sync back branch track handle assign "
    "schedule plan ship send mail route forward export stream push upload paint go write connect mount bind map".split()
)
LEADING = frozenset("lead manage head chair run own maintain direct coordinate supervise".split())
USING = frozenset(
    "use prefer choose pick select want need require favor employ utilize run".split()
)
# What one may do to, be or have many of.
MANY = frozenset(
    "like love enjoy know speak visit read watch see mention cover fix resolve review attend play collect study learn "
    "support include contain has own hate dislike avoid follow recommend teach "
    "hobby friend colleague coworker sister brother child son daughter skill goal language interest habit requirement "
    "rule dependency tool idea risk task issue bug ticket member user customer client option feature example reason "
    "one part ingredient symptom allergy pet plant book movie film song game sport topic todo note tip fact lesson "
    "hobbies friends skills goals languages interests habits rules tools risks tasks issues bugs members".split()
)
ONCE = frozenset("bear born found graduate marry join hire employ establish incorporate".split())
SWITCHING = frozenset(
    "switch move change rename migrate go increase raise reduce lower upgrade downgrade postpone reschedule shift push "
    "bump convert transfer replace port".split()
)
PEOPLE = frozenset("user team he she i we they customer client".split())
# What is counted through: chapter 4 and chapter 5 are two.
ENUMERATED = frozenset(
    "issue ticket step chapter task item rule page line episode invoice order commit pr bug story sprint lesson level "
    "section exercise question milestone row column entry case experiment run attempt".split()
)
EVENT_TIMES = (
    DATES
    - WEEKDAYS
    - frozenset(
        "a.m. pm utc gmt cet hour day week month year minute hourly daily nightly weekly monthly quarterly yearly last "
        "next morning noon afternoon evening night midnight weekend".split()
    )
)
# What says that something is new, and nothing else.
CUES = frozenset(
    "now currently actually correction update updated instead_now meanwhile finally already".split()
)
COMMON_VERBS = frozenset(
    SINGLE
    | PLACED
    | LEADING
    | USING
    | MANY
    & frozenset(
        "like love enjoy know speak visit read watch see mention cover fix resolve review attend play collect study "
        "learn support include contain has own hate dislike avoid follow recommend teach".split()
    )
    | ONCE
    | SWITCHING
    | VERBS_ALIKE
    | frozenset(BASE.values())
    | frozenset(
        "allow accept reject return expect hold retain return send receive get fetch load import export render parse "
        "compile test check validate verify monitor alert notify email message post request respond answer ask tell "
        "say think believe plan hope try help let make do go come put add remove create update delete merge push pull "
        "clone tag version support target depend rely extend inherit implement expose provide offer give bring carry "
        "connect join attach mount bind map route forward redirect proxy block filter sort group order rank score "
        "train fine-tune eat drink cook smoke exercise walk swim ride fly travel rent lease hire fire graduate retire "
        "vote win lose score stay remain become turn grow shrink increase decrease exceed reach hit cross wait sleep "
        "timeout time retry throttle cache buffer queue batch stream shard replicate scale restart reboot crash fail "
        "stop pause resume continue repeat rotate expire renew charge refund ship deliver arrive".split()
    )
)
_OPPOSITES = """
enabled disabled; enable disable; on off; up down; open closed; opened closed; public private; allowed forbidden
allowed denied; allow deny; allow forbid; required optional; mandatory optional; active inactive; true false; yes no
online offline; read-only writable; locked unlocked; synchronous asynchronous; sync async; stable unstable
safe unsafe; secure insecure; valid invalid; present absent; full empty; green red; passing failing; hot cold
ascending descending; left right; before after; always never; min max; minimum maximum; single married; paid unpaid
supported unsupported; encrypted unencrypted; signed unsigned; approved rejected; accepted rejected; free paid
blocking non-blocking; broken fixed; done pending; frozen unfrozen; internal external; local remote; manual automatic
vegetarian vegan; married divorced; available unavailable; visible hidden; tracked untracked; tested untested
long short; front back; high low; big small; early late; fast slow; quick slow; strict lenient; verbose terse
"""
ANTONYMS = frozenset(
    pair
    for one, other in (entry.split() for entry in re.split(r"[;\n]\s*", _OPPOSITES.strip()))
    for pair in ((one, other), (other, one))
)
