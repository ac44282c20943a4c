"""What a scratchpad holds: entries, their order, and which of many have a place. Pure; the clock is passed in."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from memories.search.relevance import Relevance, boost, factor, faded

MOST_PINNED = 50  # as `write.change.pin` allows
OFTEN = 3  # reads that make a memory one of those that are often used
SESSION = "session"  # the type of a memory that says what a session left
SESSION_KEY = "session/"  # what the key of one begins with that hooks wrote
SESSIONS, MOST_SESSIONS = 3, 24  # of a project, and of all
MAX_SHOWN = 2_000  # characters of one entry; a longer memory is cut
_DAY_SECONDS = 86_400
_NO_TAGS: Mapping[str, str] = {}


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
        confidence: What its writer declared.
        expires: When its confidence falls below the least that is shown; None if it never does.
        suspicious: Why it may give orders to a model, as names with blanks between them; mostly empty.
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
    expires: str | None = None
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
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        return otherwise
    return found if found.tzinfo else otherwise


def heat(entry: Entry, now: datetime, relevance: Relevance) -> float:
    """Return how much an entry matters now: the factor for age and use of a search, see `relevance`.

    Here what is stable ages too: a session begins with what is recent.
    """
    age_days = (now - moment(entry.written, now)).total_seconds() / _DAY_SECONDS
    fresh = faded(age_days, relevance.decay_rate)
    used = boost(entry.uses, relevance.boost_rate, relevance.most_boost)
    return factor(fresh, used, relevance.least_freshness)


def ordered(entries: Iterable[Entry], now: datetime, relevance: Relevance) -> list[Entry]:
    """Return entries in the order in which they are shown: pinned ones first, then the hottest."""
    return sorted(entries, key=lambda entry: (entry.pinned, heat(entry, now, relevance), entry.id), reverse=True)


def current(entries: Iterable[Entry], now: datetime) -> list[Entry]:
    """Return the entries that have not expired."""
    return [entry for entry in entries if entry.expires is None or moment(entry.expires, now) >= now]


def chosen(
    entries: Iterable[Entry], size: int, now: datetime, relevance: Relevance, left_out: Sequence[str] = ()
) -> list[Entry]:
    """Return those that have a place: all that are pinned, some that are often used, and the newest.

    Of the room that the pinned ones leave, a third is for those that are often used, however old they are. What the
    last sessions left has places of its own, a few for each project.

    Args:
        entries: Any number of them, each memory once.
        size: How many at most, not counting pinned ones over it and sessions.
        now: The time to judge at.
        relevance: How age and use count in their order.
        left_out: Ids that a person has taken out.
    """
    there = [entry for entry in current(entries, now) if entry.pinned or entry.id not in left_out]
    pinned = ordered((entry for entry in there if entry.pinned), now, relevance)[:MOST_PINNED]
    others = [entry for entry in there if not entry.pinned and not entry.is_session]
    room = max(0, size - len(pinned))
    often = sorted((entry for entry in others if entry.uses >= OFTEN), key=_by_use, reverse=True)[: room // 3]
    taken = {entry.id for entry in often}
    newest = sorted((entry for entry in others if entry.id not in taken), key=_by_time, reverse=True)
    sessions = _last_of_each(entry for entry in there if entry.is_session and not entry.pinned)
    return [*pinned, *ordered([*often, *newest[: room - len(often)]], now, relevance), *sessions]


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
