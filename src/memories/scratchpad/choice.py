"""Which memories of a store a scratchpad shows: records as entries, and what a refresh reads."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from memories.core.times import from_millis, to_iso, to_millis
from memories.guard.origin import PINNED, origin_of, tags_of
from memories.models import SESSION, DecayPolicy
from memories.read import versions
from memories.read.lookup import waiting
from memories.scratchpad.entries import MAX_SHOWN, MOST_PINNED, MOST_SESSIONS, Entry, Rules, chosen
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Record, Ref

_PAGE = 500
_MORE = 4  # times the size: so many of the newest are looked at, since some are not shown


def is_shown(record: Record, now: datetime) -> bool:
    """Return whether a scratchpad may hold the latest version of a memory, however sure it is.

    Not if it was deleted, replaced or corrected, or waits for review.
    """
    return record.ended_at is None and versions.corrected_by(record, now) is None


def entry_of(record: Record, now: datetime) -> Entry | None:
    """Return what a scratchpad holds of the latest version of a memory; None if it does not hold
    it.
    """
    if not is_shown(record, now):
        return None
    origin = origin_of(record.labels)
    known = versions.to_memory(
        record, now, half_life_hours=1.0
    )  # an entry has no confidence of a moment
    return Entry(
        id=record.ref.group,
        content=record.text[:MAX_SHOWN],
        pinned=PINNED in record.labels,
        version=record.ref.position,
        written=to_iso(known.updated_at),
        created=to_iso(known.created_at),
        uses=record.accesses,
        tags=tags_of(record.labels),
        key=known.key,
        by="" if origin is None else origin.by,
        trust="" if origin is None else origin.trust,
        decay=None if known.decay_policy is DecayPolicy.STABLE else str(known.decay_policy),
        confidence=known.base_confidence,
        **_times(record, known.decay_policy),
        suspicious=" ".join(known.suspicious),
        cut=len(record.text) if len(record.text) > MAX_SHOWN else None,
        accepted="accepted_at" in record.fields,
        namespace=record.ref.namespace,
    )


def newest(records: Iterable[Record], size: int) -> list[Record]:
    """Return those of many memories that may have a place: of what nobody read, pinned or summed
    up, the newest.
    """
    special: list[Record] = []
    rest: list[Record] = []
    for record in records:
        tells = record.accesses or PINNED in record.labels or record.labels.get("type") == SESSION
        (special if tells else rest).append(record)
    return (
        special
        + sorted(rest, key=lambda record: (record.created_at, record.ref.group))[
            max(0, len(rest) - size) :
        ]
    )


def _times(record: Record, policy: DecayPolicy) -> dict[str, str]:
    """Return the times that the confidence of a version depends on, as an entry has them."""
    times = {
        "aging_from": record.fields.get("aging_from"),
        "reinforced": record.fields.get("reinforced_at"),
    }
    if policy is DecayPolicy.STABLE:
        times["aging_from"] = None
    elif times["aging_from"] is None:
        times["aging_from"] = to_millis(record.created_at)
    return {
        name: to_iso(from_millis(millis)) for name, millis in times.items() if millis is not None
    }


class Selection(NamedTuple):
    """What a store has for a scratchpad: the entries, and how many memories wait for review."""

    entries: list[Entry]
    waiting: int


def select(
    store: Store, namespace: str, rules: Rules, now: datetime, known: Sequence[Entry] = ()
) -> Selection:
    """Return what a scratchpad shows: pinned memories, the newest, what sessions left, and of those
    it had what holds.

    It reads a few hundred records, however many there are.

    Args:
        store: Where the memories are.
        namespace: Whose scratchpad it is.
        rules: What the settings say.
        now: The time to judge at.
        known: What it shows already.
    """
    where = Filter(Collection.MEMORY, (namespace,))
    records = [
        *store.scan(where._replace(labels={PINNED: "1"}), limit=MOST_PINNED, newest_first=True),
        *store.scan(where, limit=max(_MORE * rules.size, 1), newest_first=True),
        *store.scan(
            where._replace(labels={"type": SESSION}), limit=_MORE * MOST_SESSIONS, newest_first=True
        ),
        *store.read(
            [
                Ref(Collection.MEMORY, namespace, each.id, each.version)
                for each in known
                if each.version
            ]
        ),
    ]
    return Selection(_entries(records, now), store.count(waiting(where)))


def select_all(store: Store, namespace: str, rules: Rules, now: datetime) -> Selection:
    """Return what a scratchpad shows, from all memories of a namespace: also what was used most, or
    changed lately.
    """
    where = Filter(Collection.MEMORY, (namespace,))
    best: list[Entry] = []
    for page in _pages(store, where):
        best = chosen([*best, *_entries(page, now)], rules, now)
    return Selection(best, store.count(waiting(where)))


def _entries(records: Iterable[Record], now: datetime) -> list[Entry]:
    found = (entry_of(record, now) for record in records)
    return list({entry.id: entry for entry in found if entry is not None}.values())


def _pages(store: Store, where: Filter) -> Iterator[list[Record]]:
    after: tuple[str, int] | None = None
    while page := store.scan(where, limit=_PAGE, after=after):
        yield page
        after = page[-1].ref.group, page[-1].ref.position
