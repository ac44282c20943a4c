"""Scratchpad entries: which memories get a slot in the scratchpad, and in which order.

All functions are pure; the clock is passed in.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from memories.models import OFTEN, SESSION, Cited
from memories.search.relevance import Relevance, boost, factor, fade

if TYPE_CHECKING:
    from memories.anchors.judge import Judge
    from memories.models import Verdict
    from memories.settings import Config

MOST_PINNED = 50  # the limit in `write.change.pin`
# Maximum number of session summaries per project, and in total.
SESSIONS, MOST_SESSIONS = 3, 24
# Maximum number of new short memories that get extra slots, per project and in total.
OF_PROJECT, MOST_OF_PROJECTS = 5, 150
SHORT = 300  # maximum number of characters in a short memory
PREFERENCE = "preference"  # the value of the tag `type`
MAX_SHOWN = 2_000  # maximum number of characters in an entry; a longer memory is truncated
_DAY_SECONDS = 86_400
_NO_TAGS: Mapping[str, str] = {}


class EntryRules(NamedTuple):
    """The settings that decide which memories get an entry, with the defaults of `Config`.

    Attributes:
        size: Maximum number of entries.
        min_confidence: Minimum confidence for an entry to be shown.
        half_life_hours: See `read.versions.compute_decay`.
        relevance: How much age and use affect the order.
    """

    size: int = 30
    min_confidence: float = 0.3
    half_life_hours: float = 720.0
    relevance: Relevance = Relevance()

    @classmethod
    def of(cls, config: "Config") -> Self:
        """Return the rules of a configuration."""
        return cls(
            config.scratchpad_size,
            config.min_confidence,
            config.decay_half_life_hours,
            Relevance.of(config),
        )


class Entry(NamedTuple):
    """A memory in a scratchpad.

    Attributes:
        id: The memory's id; empty for a line that the user has added and that isn't stored yet.
        content: Its text, or only the beginning of the text: see `cut`.
        pinned: Whether it keeps its slot at any age.
        version: The version that is shown; 0 if unknown.
        written: When that version was written, ISO 8601 in UTC.
        created: When the first version was written.
        uses: How often it was read; approximate.
        tags: Its tags.
        key: Its key, if it has one.
        by: The writer's name.
        trust: How far the writer is trusted: see `Origin`; empty if no origin was stored.
        accepted: Whether it waited for review and was accepted.
        decay: Its decay policy; None if it is stable.
        confidence: The base confidence, which its writer declared.
        aging_from: When its decay began, because its text was written or confirmed, ISO 8601 in
            UTC. If it is empty, `written` is used.
        reinforced: When it was last reinforced, if it was.
        suspicious: The names of the rules that mark its text as a possible instruction to a model,
            separated by spaces; usually empty.
        cut: The memory's length in characters, if `content` is only its beginning.
        namespace: The namespace that owns it.
        anchors: The evidence that it is true, one anchor per line; see `anchors`.
        valid_until: The time until which it holds, ISO 8601; usually empty.
        recheck: The number of days after which it should be confirmed; 0 for never.
        anchored: When its anchors were last known to hold, ISO 8601; usually empty.
        verdict: Whether the memory still holds; not stored in the file: see `with_verdicts`.
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
    anchors: str = ""
    valid_until: str = ""
    recheck: int = 0
    anchored: str = ""
    verdict: "Verdict | None" = None

    @property
    def is_doubtful(self) -> bool:
        """Whether the verdict says that the memory changed or expired."""
        return self.verdict is not None and self.verdict.is_doubtful

    @property
    def is_preference(self) -> bool:
        """Whether the memory is one of the user's standing preferences or instructions."""
        return self.tags.get("type") == PREFERENCE

    @property
    def is_session(self) -> bool:
        """Whether the memory is a session summary."""
        return self.tags.get("type") == SESSION


def parse_time(written: str, default: datetime) -> datetime:
    """Parse a time in an entry; return the default if the user's edit has made it invalid."""
    return _parse_time(written) or default


def _parse_time(written: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(written)
    except ValueError:
        return None
    return time if time.tzinfo else None


def heat(entry: Entry, now: datetime, relevance: Relevance) -> float:
    """Return an entry's current weight, computed from its age and use as in a search.

    Unlike in a search, stable memories age too, because a session should begin with recent
    memories. See `search.relevance`.
    """
    age_days = (now - parse_time(entry.written, now)).total_seconds() / _DAY_SECONDS
    freshness = fade(age_days, relevance.decay_rate)
    use = boost(entry.uses, relevance.boost_rate, relevance.max_boost)
    return factor(freshness, use, relevance.min_freshness)


def sort_entries(entries: Iterable[Entry], now: datetime, relevance: Relevance) -> list[Entry]:
    """Sort entries for display: pinned ones first, then the hottest."""

    def order(entry: Entry) -> tuple[bool, float, str]:
        return entry.pinned, heat(entry, now, relevance), entry.id

    return sorted(entries, key=order, reverse=True)


def record_fields(entry: Entry) -> dict[str, Any]:
    """Return the fields of an entry's record: those that determine its confidence and origin."""
    from memories.core.times import to_millis  # not needed for reading a file

    values = {
        "decay": entry.decay,
        "anchors": entry.anchors,
        "recheck_days": entry.recheck,
        "suspicious": entry.suspicious,
    }
    times = {
        "aging_from": entry.aging_from,
        "reinforced_at": entry.reinforced,
        "valid_until": entry.valid_until,
        "anchored_at": entry.anchored,
    }
    fields: dict[str, Any] = {name: value for name, value in values.items() if value}
    fields["confidence"] = entry.confidence
    for name, written in times.items():
        time = _parse_time(written)
        if time is not None:
            fields[name] = to_millis(time)
    return fields


def with_verdicts(
    entries: Sequence[Entry], judge: "Judge | None", now: datetime
) -> tuple[Entry, ...]:
    """Return entries with their verdicts."""
    has_anchors = any(entry.anchors or entry.valid_until or entry.recheck for entry in entries)
    if judge is None or not has_anchors:
        return tuple(entries)
    verdicts = judge.verdicts([_cited_by(entry, now) for entry in entries], now)
    return tuple(
        entry._replace(verdict=verdict) for entry, verdict in zip(entries, verdicts, strict=True)
    )


def _cited_by(entry: Entry, now: datetime) -> Cited:
    from memories.read.versions import split_anchors  # most entries have no anchors

    return Cited(
        split_anchors(entry.anchors),
        entry.tags,
        parse_time(entry.aging_from or entry.written, now),
        _parse_time(entry.valid_until),
        entry.recheck or None,
        _parse_time(entry.anchored),
    )


def compute_confidence(entry: Entry, now: datetime, half_life_hours: float) -> float:
    """Return the confidence that the store would report."""
    if entry.decay is None:
        return entry.confidence
    from memories.read import versions  # not needed for stable memories, the majority
    from memories.stores.records import Collection, Record, Ref

    ref = Ref(Collection.MEMORY, entry.namespace, entry.id, 1)
    record = Record(ref, "", parse_time(entry.written, now), fields=record_fields(entry))
    return versions.confidence(record, now, half_life_hours)


def is_confident(entry: Entry, rules: EntryRules, now: datetime) -> bool:
    """Return whether an entry's confidence is high enough for the settings."""
    return compute_confidence(entry, now, rules.half_life_hours) >= rules.min_confidence


def select_confident(entries: Iterable[Entry], rules: EntryRules, now: datetime) -> list[Entry]:
    """Return the entries with enough confidence, in the order of the scratchpad."""
    confident = [entry for entry in entries if is_confident(entry, rules, now)]
    return sort_entries(confident, now, rules.relevance)


_BY_TIME = attrgetter("written", "id")
_BY_USE = attrgetter("uses", "written", "id")


def choose(
    entries: Iterable[Entry], rules: EntryRules, now: datetime, left_out: Sequence[str] = ()
) -> list[Entry]:
    """Return the entries that get a slot: pinned, preferences, frequently used, and the newest.

    The slots that pinned entries leave free are divided into thirds. One third is for preferences
    of any age, since they hold until the user changes them. Another third is for frequently used
    entries of any age. The newest entries get the rest. Each project also gets a few extra slots
    for its session summaries and its newest short memories, so that a session begins with its
    project's memories even after a long time in other projects. Entries with too little
    confidence only fill slots that are left over, since a different setting may show them.

    Args:
        entries: The candidates. Each memory may occur only once.
        rules: The settings. Pinned entries and those in extra slots may exceed `size`.
        now: The current time.
        left_out: Ids that the user has removed.
    """
    candidates = [entry for entry in entries if entry.pinned or entry.id not in left_out]
    confident = select_confident(candidates, rules, now)
    pinned = [entry for entry in confident if entry.pinned][:MOST_PINNED]
    unpinned = [entry for entry in confident if not entry.pinned]
    facts = [entry for entry in unpinned if not entry.is_session]
    sessions = [entry for entry in unpinned if entry.is_session]
    room = max(0, rules.size - len(pinned))

    preferences = [entry for entry in facts if entry.is_preference]
    standing = sorted(preferences, key=_BY_TIME, reverse=True)[: room // 3]
    used_often = [entry for entry in _newest(facts, without=standing) if entry.uses >= OFTEN]
    frequent = sorted(used_often, key=_BY_USE, reverse=True)[: room // 3]
    lasting = [*standing, *frequent]
    newest = _newest(facts, without=lasting)[: room - len(lasting)]
    of_projects = [
        entry for entry in facts if "project" in entry.tags and len(entry.content) <= SHORT
    ]
    last = _last_of_projects(of_projects, OF_PROJECT, MOST_OF_PROJECTS)
    ids = {entry.id for entry in [*lasting, *newest, *last]}
    chosen = [
        *pinned,
        *(entry for entry in facts if entry.id in ids),
        *_last_of_projects(sessions, SESSIONS, MOST_SESSIONS),
    ]
    faint = _newest(candidates, without=confident)
    return [*chosen, *faint[: max(0, rules.size - len(chosen))]]


def _newest(entries: Iterable[Entry], *, without: Iterable[Entry]) -> list[Entry]:
    ids = {entry.id for entry in without}
    others = [entry for entry in entries if entry.id not in ids]
    return sorted(others, key=_BY_TIME, reverse=True)


def _last_of_projects(entries: Iterable[Entry], limit: int, total: int) -> list[Entry]:
    """Return up to `limit` entries of each project and `total` overall, newest first."""
    counts: dict[str | None, int] = {}
    last: list[Entry] = []
    for entry in sorted(entries, key=_BY_TIME, reverse=True):
        project = entry.tags.get("project")
        counts[project] = counts.get(project, 0) + 1
        if counts[project] <= limit and len(last) < total:
            last.append(entry)
    return last
