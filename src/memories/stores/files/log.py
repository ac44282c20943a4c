"""Converts events to and from lines of readable JSON, and computes the records from the events.

Each line describes an event, and `op` is its kind. The other fields contain the version or the turn
as it is after the event. Six of them are the fields that the agent of `memory chat` writes: `id`,
`user_id`, `content`, `kind`, `created_at` and `updated_at`. A line without `op`, which another
program or a person wrote, creates its record.

Events are applied by time, then by id, not in the order of the lines. So merging the lines of two
branches, in any order, always gives the same result:

- If two versions claim one position, the later one gets the next free position and ends the other.
- If two memories have one key, the later one ends the other.
- Removed records stay removed, even if a merge brings their lines back.
"""

import contextlib
import json
import os
import re
from collections.abc import Collection as Container
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from memories.core.ids import digest, hyphenated
from memories.core.times import from_millis, to_iso, to_millis
from memories.guard.validate import read_json
from memories.stores.records import Collection, Record, Ref

UNTYPED = "memory"  # the kind of a memory that has no `type` tag
_KINDS = {Collection.MEMORY: UNTYPED, Collection.HISTORY: "turn", Collection.LOG: "log"}
# The suffixes of the file names; `stem` never returns a name that ends in one of these.
_SUFFIXES = {Collection.MEMORY: "", Collection.HISTORY: ".turns", Collection.LOG: "~log"}
_PLAIN = re.compile(r"[a-z0-9._-]")
_ESCAPED = re.compile(r"%([0-9a-f]{2})")
_DEVICE = re.compile(r"(con|nul|aux|prn|com\d|lpt\d)(?=\.|$)")  # reserved on Windows
_BARE_ID = re.compile(r"[0-9a-f]{32}")

CREATE, END, CHANGE, REMOVE = "create", "end", "change", "remove"

Json = dict[str, Any]


class Event(NamedTuple):
    """A change to a version of a memory, or to a turn.

    Attributes:
        time: A timestamp that sorts as text; the later of two events wins.
        id: Unique; of two events with the same time, the one with the greater id wins.
        op: `create`; `end`, which ends the record or makes it live again; `change`, which changes
            fields; or `remove`, which removes records permanently.
        of: The id of the event that created the record.
        record: The record after the event.
        names: For a change, the names of the changed fields. For a removal, the ids of the events
            that created the records, and the digests of the groups that were removed completely.
    """

    time: str
    id: str
    op: str
    of: str
    record: Record
    names: tuple[str, ...] = ()


def file_name(collection: Collection, namespace: str) -> str:
    """Return the name of the file with a namespace's records, such as `ann.turns.jsonl`.

    Lower-case letters, digits and `._-` are kept; any other byte is written as `%` and two hex
    digits, so that no two namespaces share a file on a system that ignores case.
    """
    return f"{stem(namespace)}{_SUFFIXES[collection]}.jsonl"


def stem(namespace: str) -> str:
    """Return the common prefix of a namespace's file names."""
    if not namespace:
        return "%"
    escaped = ""
    for character in namespace:
        if _PLAIN.fullmatch(character):
            escaped += character
        else:
            escaped += "".join(
                [f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass")]
            )
    for ending in (".turns", ".jsonl"):  # no name may look like that of another file
        if escaped.endswith(ending):
            escaped = f"{escaped[: -len(ending)]}%2e{ending[1:]}"
    if escaped.startswith("."):
        escaped = f"%2e{escaped[1:]}"
    if _DEVICE.match(escaped):
        escaped = f"%{ord(escaped[0]):02x}{escaped[1:]}"
    return escaped


def namespace_of(name: str, collection: Collection) -> str | None:
    """Return a file's namespace; None if the file doesn't belong to this collection."""
    ending = f"{_SUFFIXES[collection]}.jsonl"
    escaped = name.removesuffix(ending)
    if escaped == name:
        return None
    if escaped == "%":
        return ""
    characters = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), escaped)
    try:
        namespace = characters.encode("latin-1").decode("utf-8", "surrogatepass")
    except UnicodeError:
        return None
    return namespace if file_name(collection, namespace) == name else None


def find_part(name: str) -> tuple[Collection, str] | None:
    """Return the collection and namespace of a file's records; None for any other file."""
    for collection in Collection:
        namespace = namespace_of(name, collection)
        if namespace is not None:
            return collection, namespace
    return None


def part_of(name: str) -> tuple[Collection, str]:
    """Return the collection and namespace of a file with records."""
    part = find_part(name)
    assert part is not None, name
    return part


def to_json(record: Record) -> Json:
    """Return the JSON object for a record's line, without the fields that describe the event."""
    ref = record.ref
    fields = {name: value for name, value in record.fields.items() if value is not None}
    labels = dict(record.labels)
    is_turn = ref.collection is Collection.HISTORY
    kind = _KINDS[ref.collection]
    if ref.collection is Collection.MEMORY and labels.get("type") not in (None, "", UNTYPED):
        kind = labels.pop("type")
    created_at = record.created_at if is_turn else _take_first_at(record, fields)
    line: Json = {
        "id": f"{ref.group}#{ref.position}" if is_turn else ref.group,
        "user_id": ref.namespace,
        "content": record.text,
        "kind": kind,
        "created_at": to_iso(created_at),
        "updated_at": to_iso(record.created_at),
    }
    if _is_share(fields.get("confidence")):
        line["confidence"] = fields.pop("confidence")
    if "source_turn_id" in fields:
        line["source_turn_id"] = fields.pop("source_turn_id")
    if is_turn:
        line["conversation_id"] = ref.group
        line["turn_index"] = ref.position
    else:
        line["version"] = ref.position
    ended_at = None if record.ended_at is None else to_iso(record.ended_at)
    optional = {
        "session": record.session,
        "key": record.key,
        "tags": labels or None,
        "ended_at": ended_at,
        "ended_by": record.ended_by,
        "fields": fields or None,
    }
    return line | {name: value for name, value in optional.items() if value is not None}


def to_line(event: Event) -> str:
    """Return an event as a line, without the newline."""
    line = to_json(event.record) | {"op": event.op, "event": event.id, "time": event.time}
    if event.op in (END, CHANGE):
        line["of"] = event.of
    if event.names:
        line["names"] = list(event.names)
    return json.dumps(line, ensure_ascii=False)


def to_event(line: object, collection: Collection, namespace: str) -> Event:
    """Return the event in a line.

    A line without `op` creates its record at the record's own time.

    Raises:
        ValueError: The line is invalid; the message says why, without quoting the line.
    """
    record = to_record(line, collection, namespace)
    assert isinstance(line, dict)
    op = line.get("op", CREATE)
    if op not in (CREATE, END, CHANGE, REMOVE):
        raise ValueError("this program does not know the operation")
    if "event" not in line:
        written_at = time_text(record.created_at)
        event_id = digest(record.ref.group, str(record.ref.position), written_at)
        return Event(written_at, event_id, CREATE, event_id, record)
    event_id = _text(line, "event")
    names = line.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its names are not strings")
    of = _text(line, "of") if op in (END, CHANGE) else event_id
    return Event(time_text(_moment(line, "time")), event_id, op, of, record, tuple(names))


def time_text(moment: datetime) -> str:
    """Return a time in UTC as sortable text, with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def to_record(line: object, collection: Collection, namespace: str) -> Record:
    """Return the record in a line.

    A line from another program may have only the six fields that `memory chat` writes. It is the
    first version of a memory. Its kind becomes the tag `type`, and a UUID in `id` is converted to
    our form.

    Raises:
        ValueError: The line is invalid; the message says why, without quoting the line.
    """
    if not isinstance(line, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - a file's error, not a caller's
    if _text(line, "user_id") != namespace:
        raise ValueError("its user_id is not the one in the file's name")
    labels = dict(_texts(line.get("tags") or {}))
    fields = dict(_scalars(line.get("fields") or {}))
    created_at, updated_at = _time(line, "created_at"), _time(line, "updated_at")
    kind = _text(line, "kind")
    if collection is Collection.HISTORY:
        group = _text(line, "conversation_id")
        ref = Ref(collection, namespace, group, _number(line, "turn_index"))
    else:
        group = _text(line, "id")
        digits = group.replace("-", "").lower()
        if "version" not in line and _BARE_ID.fullmatch(digits):
            group = hyphenated(digits)
        ref = Ref(collection, namespace, group, _number(line, "version", 1))
        if kind != _KINDS[collection]:
            labels.setdefault("type", kind)
        if created_at != updated_at:
            fields["first_at"] = to_millis(created_at)
    if _is_share(line.get("confidence")):
        fields["confidence"] = line["confidence"]
    if isinstance(line.get("source_turn_id"), str | int | float):
        fields["source_turn_id"] = line["source_turn_id"]
    return Record(
        ref=ref,
        text=_text(line, "content"),
        created_at=updated_at,
        ended_at=_time(line, "ended_at") if line.get("ended_at") is not None else None,
        ended_by=_optional_text(line, "ended_by"),
        key=_optional_text(line, "key"),
        labels=labels,
        fields=fields,
        session=None if line.get("session") is None else _number(line, "session"),
    )


def _take_first_at(record: Record, fields: Json) -> datetime:
    """Return the time at which the first version of a memory was written.

    If the time comes from the field `first_at`, remove the field, since `created_at` replaces it.
    """
    first_at = fields.get("first_at")
    if isinstance(first_at, bool) or not isinstance(first_at, int):
        return record.created_at
    if first_at == to_millis(record.created_at):
        return record.created_at
    try:
        moment = from_millis(first_at)
    except (ValueError, OverflowError, OSError):
        return record.created_at
    del fields["first_at"]
    return moment


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _text(line: Json, name: str) -> str:
    value = line.get(name)
    if not isinstance(value, str):
        raise ValueError(f"its {name} is missing or not a string")  # noqa: TRY004 - a file's error
    value.encode()  # raises for half a surrogate pair, which JSON can contain and no store accepts
    return value


def _optional_text(line: Json, name: str) -> str | None:
    return None if line.get(name) is None else _text(line, name)


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("its tags are not pairs of strings")
    "".join((*value, *value.values())).encode()
    return value


def _scalars(value: object) -> Json:
    if not isinstance(value, dict) or any(
        isinstance(field, dict | list) for field in value.values()
    ):
        raise ValueError("its fields are not name-value pairs")
    return value


def _number(line: Json, name: str, default: int | None = None) -> int:
    value = line.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"its {name} is missing or not a whole number")
    return value


def _time(line: Json, name: str) -> datetime:
    """Return a time rounded down to a millisecond, the resolution of the stores."""
    moment = _moment(line, name)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _moment(line: Json, name: str) -> datetime:
    """Convert a time to UTC; a time without a zone is assumed to be in UTC."""
    try:
        moment = datetime.fromisoformat(_text(line, name))
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"its {name} is not an ISO 8601 time") from None


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
        size: The number of valid bytes; a last line that a crash cut off isn't counted.
        damage: Why the file can't be read, in which case `events` is empty; None if it can.
    """

    events: list[Event]
    size: int
    damage: Damage | None = None


class Folded(NamedTuple):
    """The records that result from a file's events.

    Attributes:
        records: The records, keyed by address.
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

    A last line without a newline counts if it is complete, since some editors write such lines. If
    it isn't, a crash cut it off before the write was acknowledged. A byte-order mark is ignored.
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
    """Return a file's complete lines, except those about the given versions.

    Args:
        data: The file.
        ids: The ids of the events that created those versions.
        events: The events of the file.
    """
    lines = [line for line in data.removeprefix(_BOM).split(b"\n") if line.strip()]
    # If a crash cut off the last line, that line has no event.
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
    """Give new ids to events with the same id but different content, such as an edited copy."""
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
    """Applies events one by one, and keeps the resulting records."""

    def __init__(self) -> None:
        self.records: dict[Address, Record] = {}
        self.addresses: dict[
            str, Address
        ] = {}  # keyed by the id of the event that created the record
        # For each address that a record has claimed, the position of the first record there.
        self._positions: dict[Address, int] = {}
        self._last_positions: dict[str, int] = {}
        self._key_holders: dict[str, Address] = {}

    def apply(self, event: Event) -> None:
        address = self.addresses.get(event.of)
        if address is None:  # a new record, or a change to a record whose first line was deleted
            self._create(event.of, event.record)
        elif event.op != CREATE:
            self._change(event, address)
        elif event.record.ended_at is not None and self.records[address].ended_at is None:
            # Two lines create this record, but only this one says that it has ended.
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
        last: The time of the file's last event. The new event gets a later time, so that it is
            applied after the last one.
        record: The record.
    """
    now = time_text(datetime.now(UTC))
    if now <= last:
        now = last
        with contextlib.suppress(OverflowError):  # there is no time after the end of the year 9999
            now = time_text(datetime.fromisoformat(last) + timedelta(microseconds=1))
    event_id = os.urandom(8).hex()
    return Event(now, event_id, CREATE, event_id, record)


def change_event(last: str, before: Record, after: Record, of: str) -> Event:
    """Return the event that changes a record's fields, ends it, or makes it live again.

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
    """Return the event that keeps removed records from reappearing; it contains no texts.

    Args:
        last: See `create_event`.
        ref: The ref of any of the records.
        ids: The ids of the events that created the records.
        groups: The memories or conversations that are removed completely.
    """
    record = Record(ref._replace(group=REMOVE, position=0), "", datetime.now(UTC))
    names = (*sorted(ids), *sorted(map(digest, groups)))
    return create_event(last, record)._replace(op=REMOVE, names=names)
