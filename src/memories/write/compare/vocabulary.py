"""The words in vocabulary.txt, used to compare texts, as sets and tables.

Importing this module reads the file, so only code that compares texts imports it.
"""

from pathlib import Path

from memories.languages.text import STOP_WORDS


def _read_lines() -> dict[str, str]:
    """Return the file's lines by name; lines with the same name are joined."""
    lines: dict[str, list[str]] = {}
    text = Path(__file__).with_name("vocabulary.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, entries = line.split(": ", 1)
            lines.setdefault(name, []).append(entries)
    return {name: "; ".join(entries) for name, entries in lines.items()}


_LINES = _read_lines()


def _words(name: str) -> frozenset[str]:
    return frozenset(_LINES[name].replace(";", "").split())


def _groups(name: str) -> list[list[str]]:
    return [group.split() for group in _LINES[name].split("; ")]


def _group_of_each(*names: str) -> dict[str, str]:
    """Map each word to the name of its group."""
    table: dict[str, str] = {}
    for group in (group for name in names for group in _groups(name)):
        for word in group:
            table.setdefault(word, f"={group[0]}")
    return table


def _phrases() -> dict[tuple[str, ...], str]:
    """Map the words of each phrase to its meaning."""
    table: dict[tuple[str, ...], str] = {}
    for name, phrases in _LINES.items():
        if name.startswith("phrase "):
            for phrase in phrases.split("; "):
                words = tuple(NUMBERS.get(word, word) for word in phrase.split())
                table[words] = name.removeprefix("phrase ")
    return table


# Words and phrases that may replace each other.
GROUP = _group_of_each("alike-verbs", "alike")
NAMES_ALIKE = frozenset(GROUP[name] for name in _words("alike-names"))
VERBS_ALIKE = _words("alike-verbs")
COMPOUNDS = _words("compounds")
NUMBERS: dict[str, str] = dict(_groups("numbers"))
PHRASE = _phrases()
UNITS: dict[str, str] = dict(_groups("units"))
ACTIONS = _words("actions")
ABBREVIATED = _words("abbreviated")

# Forms of verbs.
SAME_FORMS = _words("same-forms")
BASE = {form: base for base, *forms in _groups("irregular") for form in forms}
PARTICIPLES = frozenset(participle for *_, participle in _groups("irregular")) | SAME_FORMS

# Classes of words.
WEEKDAYS = _words("weekdays")
DATES = WEEKDAYS | _words("dates")
NEGATIONS = _words("negations")
BE = _words("be")
PAST_MARKS = _words("past-marks")
DETERMINERS = _words("determiners")
LIGHT = BE | _words("light")
PLACES = _words("places")
EMPTY = _words("empty")
SOFT = PLACES | _words("soft")
BOUNDARIES = _words("boundaries")
FRONTED = _words("fronted")
NAMING = _words("naming")
VALUED = NAMING | _words("valued")
TYPED = _words("typed")
PROGRAMS = _words("programs")
VERB_BEFORE = _words("verb-before")
ASKING = BE | _words("asking")
PRONOUNS = _words("pronouns")
AGENTS = _words("agents")
MODALS = _words("modals")
FOCUSING = _words("focusing")
_INFLECTED_DATES = WEEKDAYS | {"week", "month", "year", "day", "hour", "minute", "night"}
WHOLE = (DATES - _INFLECTED_DATES) | _words("whole")
FREE_CASE = STOP_WORDS | {"pm"}  # words whose case means nothing
ACRONYMS = LIGHT | SOFT | _words("acronyms")

# Classes of words for `corrections`.
SINGLE = _words("single")
PLACED = _words("placed")
LEADING = _words("leading")
USING = _words("using")
MANY = _words("many-verbs") | _words("many-nouns")
ONCE = _words("once")
SWITCHING = _words("switching")
PEOPLE = _words("people")
ENUMERATED = _words("enumerated")
CUES = _words("cues")
COMMON_VERBS = (
    SINGLE
    | PLACED
    | LEADING
    | USING
    | _words("many-verbs")
    | ONCE
    | SWITCHING
    | VERBS_ALIKE
    | frozenset(BASE.values())
    | _words("verbs")
)
ANTONYMS = frozenset(
    pair for one, other in _groups("opposites") for pair in ((one, other), (other, one))
)
