"""What a scratchpad holds: entries, their order, and which of many have a place. Pure; the clock is
passed in.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from memories.models import SESSION
from memories.search.relevance import Relevance, boost, factor, fade

if TYPE_CHECKING:
    from memories.settings import Config

MOST_PINNED = 50  # as `write.change.pin` allows
OFTEN = 3  # reads that make a memory one of those that are often used
SESSIONS, MOST_SESSIONS = 3, 24  # of a project, and of all
MAX_SHOWN = 2_000  # characters of one entry; a longer memory is cut
_DAY_SECONDS = 86_400
_NO_TAGS: Mapping[str, str] = {}


class Rules(NamedTuple):
    """The settings that entries depend on; the defaults are those of the settings.

    Attributes:
        size: The most entries of a scratchpad.
        min_confidence: The least confidence of one that is shown.
        half_life_hours: See `read.versions.compute_confidence`.
        relevance: How age and use count in their order.
    """

    size: int = 30
    min_confidence: float = 0.3
    half_life_hours: float = 720.0
    relevance: Relevance = Relevance()

    @classmethod
    def of(cls, config: "Config") -> Self:
        """Return the rules of a configuration."""
        least, hours = config.min_confidence, config.decay_half_life_hours
        return cls(config.scratchpad_size, least, hours, Relevance.of(config))


class Entry(NamedTuple):
    """A memory as a scratchpad has it.

    Attributes:
        id: The memory; empty for a line that a person added and that is no memory yet.
        content: What it says, or its beginning: see `cut`.
        pinned: It is there whatever its age.
        version: The version that it shows; 0 if that is not known.
        written: When that version was written, ISO 8601 in UTC.
        created: When its first version was.
        uses: How often it was read; approximate.
        tags: Its tags.
        key: Its key, if it has one.
        by: Who wrote it.
        trust: How far that is trusted: see `Origin`; empty if no origin was kept.
        accepted: It had to wait for review, and was accepted.
        decay: Its policy, unless it is stable.
        confidence: The base confidence, which its writer declared.
        aging_from: When its decay began, ISO 8601 in UTC; empty for a stable memory.
        reinforced: When it was last reinforced, if it was.
        suspicious: Why it may give orders to a model, as names with blanks between them; mostly
            empty.
        cut: How many characters the memory has, if `content` is only its beginning.
        namespace: The namespace that it belongs to.
    """

    id: str
    content: str
    pinned: bool = False
    version: int = 0
    written: str = ""
    created: str = ""
    uses: int = 0
    tags: Mapping[str, str] = _NO_TAGS
    key: str | None = None
    by: str = ""
    trust: str = ""
    decay: str | None = None
    confidence: float = 1.0
    aging_from: str = ""
    reinforced: str = ""
    suspicious: str = ""
    cut: int | None = None
    accepted: bool = False
    namespace: str = ""

    @property
    def is_session(self) -> bool:
        """Whether it says what a session left."""
        return self.tags.get("type") == SESSION


def moment(written: str, otherwise: datetime) -> datetime:
    """Return the time of an entry; another one where a person has spoiled it."""
    return _time(written) or otherwise


def _time(written: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        return None
    return found if found.tzinfo else None


def heat(entry: Entry, now: datetime, relevance: Relevance) -> float:
    """Return how much an entry matters now: the factor for age and use of a search, see
    `relevance`.

    Here what is stable ages too: a session begins with what is recent.
    """
    age_days = (now - moment(entry.written, now)).total_seconds() / _DAY_SECONDS
    fresh = fade(age_days, relevance.decay_rate)
    used = boost(entry.uses, relevance.boost_rate, relevance.most_boost)
    return factor(fresh, used, relevance.least_freshness)


def ordered(entries: Iterable[Entry], now: datetime, relevance: Relevance) -> list[Entry]:
    """Return entries in the order in which they are shown: pinned ones first, then the hottest."""
    return sorted(
        entries,
        key=lambda entry: (entry.pinned, heat(entry, now, relevance), entry.id),
        reverse=True,
    )


def aging(entry: Entry) -> dict[str, Any]:
    """Return the fields of an entry's record that its confidence depends on."""
    from memories.core.times import to_millis  # reading a file does without it

    times = {"aging_from": _time(entry.aging_from), "reinforced_at": _time(entry.reinforced)}
    declared = {
        "decay": entry.decay,
        "confidence": None if entry.confidence == 1.0 else entry.confidence,
    }
    known = {name: to_millis(time) for name, time in times.items() if time is not None}
    return known | {name: value for name, value in declared.items() if value is not None}


def has_age(entry: Entry) -> bool:
    """Return whether the confidence of an entry can be computed; older programs wrote no time from
    which it ages.
    """
    return entry.decay is None or _time(entry.aging_from) is not None


def of_unknown_age(entries: Iterable[Entry]) -> str:
    """Return a sentence on the entries whose confidence only the store knows; empty if there are
    none.
    """
    count = sum(not has_age(entry) for entry in entries)
    if not count:
        return ""
    what = "a memory is" if count == 1 else f"{count} memories are"
    return f"{what} left out: an older program wrote the scratchpad, and only the store knows how current they are"


def confidence(entry: Entry, now: datetime, half_life_hours: float) -> float | None:
    """Return the confidence that the store would report; None if the file lacks what it depends
    on.
    """
    if entry.decay is None:
        return entry.confidence
    if not has_age(entry):
        return None
    from memories.read import versions  # stable memories, which most are, do without it
    from memories.stores.records import Collection, Record, Ref

    record = Record(
        Ref(Collection.MEMORY, entry.namespace, entry.id, 1), "", now, fields=aging(entry)
    )
    return versions.confidence(record, now, half_life_hours)


def is_current(entry: Entry, rules: Rules, now: datetime) -> bool:
    """Return whether an entry is known to be as sure as the settings require."""
    known = confidence(entry, now, rules.half_life_hours)
    return known is not None and known >= rules.min_confidence


def current(entries: Iterable[Entry], rules: Rules, now: datetime) -> list[Entry]:
    """Return the entries that are shown, in their order."""
    return ordered(
        (entry for entry in entries if is_current(entry, rules, now)), now, rules.relevance
    )


def chosen(
    entries: Iterable[Entry], rules: Rules, now: datetime, left_out: Sequence[str] = ()
) -> list[Entry]:
    """Return the entries that have a place: all that are pinned, some that are often used, and the
    newest.

    Of the room that the pinned ones leave, a third is for those that are often used, however old
    they are. What the last sessions left has places of its own, a few for each project. What is not
    current only fills the room that is
    left: another setting or option may ask for it.

    Args:
        entries: Any number of them, each memory once.
        rules: The settings; their size counts neither pinned entries over it nor sessions.
        now: The time to judge at.
        left_out: Ids that a person has taken out.
    """
    listed = [entry for entry in entries if entry.pinned or entry.id not in left_out]
    there = current(listed, rules, now)
    pinned = [entry for entry in there if entry.pinned][:MOST_PINNED]
    others = [entry for entry in there if not entry.pinned and not entry.is_session]
    room = max(0, rules.size - len(pinned))
    often = sorted((entry for entry in others if entry.uses >= OFTEN), key=_by_use, reverse=True)[
        : room // 3
    ]
    taken = {entry.id for entry in often}
    newest = sorted(
        (entry for entry in others if entry.id not in taken), key=_by_time, reverse=True
    )
    sessions = _last_of_each(entry for entry in there if entry.is_session and not entry.pinned)
    picked = [
        *pinned,
        *ordered([*often, *newest[: room - len(often)]], now, rules.relevance),
        *sessions,
    ]
    known = {entry.id for entry in there}
    faint = sorted((entry for entry in listed if entry.id not in known), key=_by_time, reverse=True)
    return [*picked, *faint[: max(0, rules.size - len(picked))]]


def _last_of_each(sessions: Iterable[Entry]) -> list[Entry]:
    counts: dict[str | None, int] = {}
    kept: list[Entry] = []
    for entry in sorted(sessions, key=_by_time, reverse=True):
        project = entry.tags.get("project")
        counts[project] = counts.get(project, 0) + 1
        if counts[project] <= SESSIONS and len(kept) < MOST_SESSIONS:
            kept.append(entry)
    return kept


def _by_use(entry: Entry) -> tuple[int, str, str]:
    return entry.uses, entry.written, entry.id


def _by_time(entry: Entry) -> tuple[str, str]:
    return entry.written, entry.id
