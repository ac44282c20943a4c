"""The log of one file: parses its lines into events, and computes the resulting records. Pure.

Events are applied by time, then by id, not in the order of the lines. So merging the lines of two
branches, in any order, always gives the same result:

- If two versions claim one position, the later one gets the next free position and ends the other.
- If two memories have one key, the later one ends the other.
- Removed records stay removed, even if a merge brings their lines back.
"""

import contextlib
import json
import os
from collections.abc import Collection as Container
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from memories.core.ids import digest
from memories.guard.validate import read_json
from memories.stores.files.schema import CHANGE, CREATE, END, REMOVE, Event, time_text, to_event
from memories.stores.records import Collection, Record, Ref

Address = tuple[str, int]  # group and position
_BOM = b"\xef\xbb\xbf"


class Damage(NamedTuple):
    """An unreadable line: its number, and the reason."""

    line: int
    reason: str


class Parsed(NamedTuple):
    """A file's events.

    Attributes:
        events: The events, in the order of the lines.
        size: The number of bytes that count, without a last line that a crash cut off.
        damage: Why the file can't be read; if so, there are no events.
    """

    events: list[Event]
    size: int
    damage: Damage | None = None


class Folded(NamedTuple):
    """The records that result from a file's events.

    Attributes:
        records: The records by address.
        ids: The id of the event that created each record.
        last: The time of the latest event; empty if there are no events.
        removed: The ids of the events that created removed records.
    """

    records: dict[Address, Record]
    ids: dict[Address, str]
    last: str
    removed: set[str]


def parse(data: bytes, collection: Collection, namespace: str) -> Parsed:
    """Return a file's events.

    A last line without a newline counts if it is complete, since editors leave such lines. If it
    isn't, a crash cut it off before it was acknowledged. A byte-order mark is ignored.
    """
    complete_size = data.rfind(b"\n") + 1
    events: list[Event] = []
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            events.append(to_event(read_json(line.decode()), collection, namespace))
        except ValueError as exc:
            if number > data.count(b"\n"):
                return Parsed(events, complete_size)
            return Parsed([], len(data), Damage(number, _describe(exc)))
    return Parsed(events, len(data))


def _describe(exc: ValueError) -> str:
    if isinstance(exc.__cause__, json.JSONDecodeError):
        return f"it is not JSON ({exc.__cause__.msg} at {exc.__cause__.colno})"
    if isinstance(exc, UnicodeDecodeError):
        return "it is not UTF-8"
    return str(exc)


def drop_lines(data: bytes, ids: Container[str], events: Sequence[Event]) -> bytes:
    """Return a file's complete lines, except those about versions with these ids.

    Args:
        data: The file.
        ids: The ids of the events that created the versions.
        events: The events of the file.
    """
    lines = [line for line in data.removeprefix(_BOM).split(b"\n") if line.strip()]
    # A last line that a crash cut off has no event.
    pairs = zip(lines, _separate_copies(events), strict=False)
    return b"".join(line + b"\n" for line, event in pairs if event.of not in ids)


def fold(events: Sequence[Event]) -> Folded:
    """Return the records that result from events."""
    ordered = sorted(
        _separate_copies(events),
        key=lambda event: (event.time, event.id, event.op != CREATE, _content(event)),
    )
    removed_at: dict[str, str] = {}
    for event in ordered:
        if event.op == REMOVE:
            removed_at.update(dict.fromkeys(event.names, event.time))
    fold = _Fold()
    removed: set[str] = set()
    for event in ordered:
        if event.op == REMOVE:
            continue
        if removed_at:
            group_removed_at = removed_at.get(digest(event.record.ref.group), "")
            if event.of in removed_at or group_removed_at >= event.time:
                removed.add(event.of)
                continue
        fold.apply(event)
    ids = {address: event_id for event_id, address in fold.addresses.items()}
    return Folded(fold.records, ids, ordered[-1].time if ordered else "", removed)


def _separate_copies(events: Sequence[Event]) -> Sequence[Event]:
    """Give new ids to lines that share an id but differ in content, for example a line copied by
    hand.
    """
    contents: dict[str, set[tuple[str, ...]]] = {}
    for event in events:
        if event.op == CREATE:
            contents.setdefault(event.of, set()).add(_content(event))
    originals = {of: min(variants) for of, variants in contents.items() if len(variants) > 1}
    if not originals:
        return events
    separated = []
    for event in events:
        content = _content(event)
        if event.op == CREATE and originals.get(event.of, content) != content:
            event = event._replace(of=f"{event.of}~{digest(*content)}")  # noqa: PLW2901
        separated.append(event)
    return separated


def _content(event: Event) -> tuple[str, ...]:
    record = event.record
    parts = [record.ref.group, record.text]
    for pair in sorted(record.labels.items()):
        parts += pair
    return tuple(parts)


class _Fold:
    """The records while events are applied."""

    def __init__(self) -> None:
        self.records: dict[Address, Record] = {}
        self.addresses: dict[str, Address] = {}  # by the id of the creating event
        self._positions: dict[Address, int] = {}  # the position that each claimed address got
        self._last_positions: dict[str, int] = {}
        self._key_holders: dict[str, Address] = {}

    def apply(self, event: Event) -> None:
        address = self.addresses.get(event.of)
        if address is None:  # also for a change whose creating line was deleted
            self._create(event.of, event.record)
        elif event.op != CREATE:
            self._change(event, address)
        elif event.record.ended_at is not None and self.records[address].ended_at is None:
            # The same line twice, once with an end.
            self._put(address, event.record._replace(ref=self.records[address].ref))

    def _create(self, event_id: str, record: Record) -> None:
        group, position = record.ref.group, record.ref.position
        last_position = self._last_positions.get(group, -1)
        if (group, position) in self.records:
            if record.ref.collection is Collection.MEMORY:
                for address in [address for address in self.records if address[0] == group]:
                    self._end(address, record.created_at, "update")
            position = last_position + 1
        self._last_positions[group] = max(last_position, position)
        self._positions.setdefault((group, record.ref.position), position)
        session = record.session
        if session is not None:
            session = self._positions.get((group, session), session)
        self.addresses[event_id] = group, position
        ref = record.ref._replace(position=position)
        self._put((group, position), record._replace(ref=ref, session=session))

    def _change(self, event: Event, address: Address) -> None:
        record, after = self.records[address], event.record
        fields = {name: value for name, value in record.fields.items() if name not in event.names}
        fields |= {name: after.fields[name] for name in event.names if name in after.fields}
        if event.op == END:
            record = record._replace(ended_at=after.ended_at, ended_by=after.ended_by)
        self._put(address, record._replace(fields=fields))

    def _put(self, address: Address, record: Record) -> None:
        self.records[address] = record
        if record.key is None:
            return
        holder = self._key_holders.get(record.key)
        if record.ended_at is None:
            self._key_holders[record.key] = address
            if holder is not None and holder != address:
                group = record.ref.group
                self._end(holder, record.created_at, "supersede", superseded_by=group)
        elif holder == address:
            del self._key_holders[record.key]

    def _end(self, address: Address, moment: datetime, reason: str, **fields: str) -> None:
        record = self.records[address]
        if record.ended_at is None:
            ended_at = max(moment, record.created_at)
            fields = {**record.fields, **fields}
            self._put(address, record._replace(ended_at=ended_at, ended_by=reason, fields=fields))


def create_event(last: str, record: Record) -> Event:
    """Return the event that creates a record.

    Args:
        last: The time of the last event of the file; the new event is later, so that it is applied
            after it.
        record: The record.
    """
    now = time_text(datetime.now(UTC))
    if now <= last:
        now = last
        with contextlib.suppress(OverflowError):  # the end of the year 9999
            now = time_text(datetime.fromisoformat(last) + timedelta(microseconds=1))
    event_id = os.urandom(8).hex()
    return Event(now, event_id, CREATE, event_id, record)


def change_event(last: str, before: Record, after: Record, of: str) -> Event:
    """Return the event that changes the fields of a record, or ends it.

    Args:
        last: See `create_event`.
        before: The record before the change.
        after: The record after it.
        of: The id of the event that created the record.
    """
    is_end = (before.ended_at, before.ended_by) != (after.ended_at, after.ended_by)
    names = [
        name
        for name in sorted(before.fields.keys() | after.fields.keys())
        if before.fields.get(name) != after.fields.get(name)
    ]
    op = END if is_end else CHANGE
    return create_event(last, after)._replace(op=op, of=of, names=tuple(names))


def removal_event(last: str, ref: Ref, ids: Iterable[str], groups: Iterable[str]) -> Event:
    """Return the event that keeps removed records from reappearing; it doesn't reveal their texts.

    Args:
        last: See `create_event`.
        ref: Any of the records; it provides the collection and the namespace.
        ids: The ids of the events that created the records.
        groups: The memories or conversations that are removed completely.
    """
    record = Record(ref._replace(group=REMOVE, position=0), "", datetime.now(UTC))
    names = (*sorted(ids), *sorted(map(digest, groups)))
    return create_event(last, record)._replace(op=REMOVE, names=names)
