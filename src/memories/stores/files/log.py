"""The log of one file: its lines as events, and the records that result from them. Pure.

Events are applied in the order of their times, then of their ids, whatever the order of the lines.
So the lines of two branches together, in any order, always come to the same:

- Of two versions that both claim one position, the later gets the next free one and ends the other.
- Of two memories with one key, the later ends the other.
- What was removed stays removed, also if a merge brings its lines back: these are `dead`.
"""

import contextlib
import json
import os
from collections.abc import Collection as Some
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from memories.core.ids import digest
from memories.guard.validate import read_json
from memories.stores.files.schema import CHANGE, CREATE, END, REMOVE, Event, time_text, to_event
from memories.stores.records import Collection, Record, Ref

Address = tuple[str, int]
_BOM = b"\xef\xbb\xbf"


class Damage(NamedTuple):
    """Why a file can't be read: the number of the line, and what is wrong with it."""

    line: int
    reason: str


class Parsed(NamedTuple):
    """The events of a file.

    Attributes:
        events: In the order of the lines.
        whole: How many bytes of the file count; what follows a crash has cut off.
        damage: Why there are no events, if the file can't be read.
    """

    events: list[Event]
    whole: int
    damage: Damage | None = None


class Folded(NamedTuple):
    """Result of the events of a file.

    Attributes:
        records: The records by their addresses in the file.
        ids: The event that created each.
        last: The latest time of an event; empty if there is none.
        dead: The events of what was removed for good.
    """

    records: dict[Address, Record]
    ids: dict[Address, str]
    last: str
    dead: set[str]


def parse(data: bytes, collection: Collection, namespace: str) -> Parsed:
    """Return the events of a file.

    What stands behind the last line's end counts if it is whole, as editors leave it; else a crash
    has cut it off, and it was never promised to anyone. A byte-order mark is left out.
    """
    end = data.rfind(b"\n") + 1
    events: list[Event] = []
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            events.append(to_event(read_json(line.decode()), collection, namespace))
        except ValueError as exc:
            if number > data.count(b"\n"):
                return Parsed(events, end)
            reason = str(exc)
            if isinstance(exc.__cause__, json.JSONDecodeError):
                reason = f"it is no JSON ({exc.__cause__.msg} at {exc.__cause__.colno})"
            elif isinstance(exc, UnicodeDecodeError):
                reason = "it is not UTF-8"
            return Parsed([], len(data), Damage(number, reason))
    return Parsed(events, len(data))


def without(data: bytes, dead: Some[str], events: Sequence[Event]) -> bytes:
    """Return the whole lines of a file without those of these events that are about versions with
    these ids.
    """
    lines = [line for line in data.removeprefix(_BOM).split(b"\n") if line.strip()]
    kept = zip(
        lines, _distinct(events), strict=False
    )  # a line that a crash has cut off is no event
    return b"".join(line + b"\n" for line, event in kept if event.of not in dead)


def fold(events: Sequence[Event]) -> Folded:
    """Return the records that result from events."""
    folding, removed = _Fold(), dict[str, str]()
    ordered = sorted(
        _distinct(events),
        key=lambda event: (event.time, event.id, event.op != CREATE, _said(event)),
    )
    for event in ordered:
        if event.op == REMOVE:
            removed |= dict.fromkeys(event.names, event.time)
    for event in ordered:
        folding.last = event.time
        if event.op == REMOVE:
            continue
        if removed and (
            event.of in removed or removed.get(digest(event.record.ref.group), "") >= event.time
        ):
            folding.dead.add(event.of)
        else:
            folding.apply(event)
    return Folded(
        folding.records,
        {where: of for of, where in folding.places.items()},
        folding.last,
        folding.dead,
    )


def _distinct(events: Sequence[Event]) -> Sequence[Event]:
    """Return events with another id where two lines of one id say different things, as a copy by
    hand does.
    """
    said: dict[str, set[tuple[str, ...]]] = {}
    for event in events:
        if event.op == CREATE:
            said.setdefault(event.of, set()).add(_said(event))
    firsts = {of: min(different) for of, different in said.items() if len(different) > 1}
    return (
        [
            event._replace(of=f"{event.of}~{digest(*_said(event))}")
            if event.op == CREATE and firsts.get(event.of, _said(event)) != _said(event)
            else event
            for event in events
        ]
        if firsts
        else events
    )


def _said(event: Event) -> tuple[str, ...]:
    record = event.record
    return (
        record.ref.group,
        record.text,
        *(part for pair in sorted(record.labels.items()) for part in pair),
    )


class _Fold:
    """The state while events are applied."""

    def __init__(self) -> None:
        self.records: dict[Address, Record] = {}
        self.places: dict[str, Address] = {}
        self.last = ""
        self.dead: set[str] = set()
        self._claimed: dict[Address, int] = {}
        self._top: dict[str, int] = {}
        self._holders: dict[str, Address] = {}

    def apply(self, event: Event) -> None:
        place = self.places.get(event.of)
        if place is None:  # of a change: the line that stated it first was taken out
            self._create(event.of, event.record)
        elif event.op != CREATE:
            self._change(event, place)
        elif (
            event.record.ended_at is not None and self.records[place].ended_at is None
        ):  # the same line twice
            ended = event.record._replace(ref=self.records[place].ref)
            self._put(place, ended)

    def _create(self, of: str, record: Record) -> None:
        (collection, _, group, position), top = record.ref, self._top.get(record.ref.group, -1)
        if (group, position) in self.records:
            if collection is Collection.MEMORY:
                for other in [place for place in self.records if place[0] == group]:
                    self._end(other, record.created_at, "update")
            position = top + 1
        self._top[group] = max(top, position)
        self._claimed.setdefault((group, record.ref.position), position)
        session = record.session
        if session is not None:
            session = self._claimed.get((group, session), session)
        self.places[of] = group, position
        self._put(
            (group, position),
            record._replace(ref=record.ref._replace(position=position), session=session),
        )

    def _change(self, event: Event, place: Address) -> None:
        record, after = self.records[place], event.record
        changed = {name: after.fields[name] for name in event.names if name in after.fields}
        kept = {name: value for name, value in record.fields.items() if name not in event.names}
        if event.op == END:
            record = record._replace(ended_at=after.ended_at, ended_by=after.ended_by)
        self._put(place, record._replace(fields=kept | changed))

    def _put(self, place: Address, record: Record) -> None:
        self.records[place] = record
        if record.key is None:
            return
        holder = self._holders.get(record.key)
        if record.ended_at is None:
            self._holders[record.key] = place
            if holder not in (None, place):
                self._end(holder, record.created_at, "supersede", superseded_by=record.ref.group)
        elif holder == place:
            del self._holders[record.key]

    def _end(self, place: Address, moment: datetime, by: str, **fields: str) -> None:
        record = self.records[place]
        if record.ended_at is None:
            ended_at = max(moment, record.created_at)
            self._put(
                place,
                record._replace(ended_at=ended_at, ended_by=by, fields={**record.fields, **fields}),
            )


# --- new events
# ------------------------------------------------------------------------------------------------------


def created(last: str, record: Record) -> Event:
    """Return a new event, later than the last one of its file, so that it is applied after it."""
    now = time_text(datetime.now(UTC))
    if now <= last:
        now = last
        with contextlib.suppress(OverflowError):  # the end of the year 9999
            now = time_text(datetime.fromisoformat(last) + timedelta(microseconds=1))
    own = os.urandom(8).hex()
    return Event(now, own, CREATE, own, record)


def changed(last: str, before: Record, after: Record, of: str) -> Event:
    """Return the event that makes one record the other, which was only changed or ended; see
    `created`.
    """
    names = before.fields.keys() | after.fields.keys()
    ended = (before.ended_at, before.ended_by) != (after.ended_at, after.ended_by)
    names = {name for name in names if before.fields.get(name) != after.fields.get(name)}
    return created(last, after)._replace(
        op=END if ended else CHANGE, of=of, names=tuple(sorted(names))
    )


def removal(last: str, ref: Ref, gone: Iterable[str], groups: Iterable[str]) -> Event:
    """Return the event that keeps what was removed from coming back; nothing of it can be read
    there.

    Args:
        last: See `created`.
        ref: Names the collection and the namespace.
        gone: The ids of what was removed.
        groups: The names of memories or conversations of which nothing is left.
    """
    record = Record(ref._replace(group=REMOVE, position=0), "", datetime.now(UTC))
    return created(last, record)._replace(
        op=REMOVE, names=(*sorted(gone), *sorted(map(digest, groups)))
    )
