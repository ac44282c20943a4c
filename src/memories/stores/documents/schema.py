"""Pure functions that turn records into a server's documents, and filters into conditions."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from memories.core.times import from_millis, to_millis
from memories.errors import StoreDamaged
from memories.stores.damage import Damaged, damaged_record, find_problem
from memories.stores.documents.driver import Condition, Kind, Partition, Point, Value
from memories.stores.records import Filter, Finding, Patch, Record, Ref

# A record's state is a single number: the time in milliseconds at which the record ended, or one of
# these two values, which are greater than any time. So a filter never needs an OR.
LIVE = 2**53 - 2
PENDING = 2**53 - 1  # written by a transaction that has not ended, so not visible yet

_FIELD = "field."  # precedes the name of a field that a patch has set
_VECTORS = "vectors."  # precedes the id of a space


class Windows(NamedTuple):
    """A record's vectors in one space: the id of the write that added them, and their number."""

    write_id: str
    size: int


class StoredRecord(NamedTuple):
    """A record as it was read from the server.

    Attributes:
        record: The record.
        windows: The record's vectors, keyed by the id of their space.
    """

    record: Record
    windows: Mapping[str, Windows]

    @property
    def ref(self) -> Ref:
        """The ref of the record."""
        return self.record.ref


def part_of(ref: Ref) -> Partition:
    """Return the partition that contains a record."""
    return Partition(Kind.RECORDS, ref.collection, ref.namespace)


def record_id(ref: Ref) -> str:
    """Return the id of a record."""
    return f"{ref.position}/{ref.group}"


def record_ids(refs: Iterable[Ref]) -> list[str]:
    """Return the ids of records."""
    return [record_id(ref) for ref in refs]


def ref_of(part: Partition, point_id: str) -> Ref:
    """Return the ref of the record with this id, or of the record to which this window belongs."""
    try:
        if part.kind is Kind.VECTORS:
            _, _, position, group = point_id.split("/", 3)
        else:
            position, group = point_id.split("/", 1)
        return Ref(part.collection, part.namespace, group, int(position))
    except ValueError as exc:
        raise _damage_error(part, point_id) from exc


def window_ids(ref: Ref, windows: Windows) -> list[str]:
    """Return the ids of the windows of a record's vectors."""
    return [f"{windows.write_id}/{number}/{record_id(ref)}" for number in range(windows.size)]


def encode(
    record: Record, write_id: str, windows: Mapping[str, Windows], *, pending: bool
) -> dict[str, Value]:
    """Return the payload of a new record.

    Args:
        record: The record.
        write_id: The unique id of this write.
        windows: The record's vectors, keyed by the id of their space.
        pending: Whether its transaction has not ended yet.
    """
    body = {
        "text": record.text,
        "labels": dict(record.labels),
        "fields": dict(record.fields),
        "session": record.session,
        "writer": write_id,
    }
    payload: dict[str, Value] = {
        "body": json.dumps(body, ensure_ascii=False, separators=(",", ":")),
        "group": record.ref.group,
        "created": to_millis(record.created_at),
        "ended": PENDING if pending else ended_of(record),
    }
    if record.ended_by:
        payload["by"] = record.ended_by
    if record.key:
        payload["key"] = record.key
    if record.labels:
        payload["labels"] = [label_of(*pair) for pair in record.labels.items()]
    if record.accesses:
        payload["accesses"] = record.accesses
    if windows:
        payload |= vectors_payload(windows)
    return payload


def ended_of(record: Record) -> int:
    """Return the time at which a record ended, in milliseconds; `LIVE` for a live record."""
    return LIVE if record.ended_at is None else to_millis(record.ended_at)


def vectors_payload(windows: Mapping[str, Windows]) -> dict[str, Value]:
    """Return the part of a payload that lists a record's vectors."""
    payload: dict[str, Value] = {"spaces": sorted(windows)}
    for space, (write_id, size) in windows.items():
        payload[f"{_VECTORS}{space}"] = f"{write_id}/{size}"
    return payload


def changes_of(patch: Patch) -> dict[str, Value | None]:
    """Return the changes that a patch makes to a payload."""
    ended = LIVE if patch.ended_at is None else to_millis(patch.ended_at)
    changes: dict[str, Value | None] = {"ended": ended, "by": patch.ended_by}
    for name, value in patch.fields.items():
        changes[f"{_FIELD}{name}"] = json.dumps(value, ensure_ascii=False)
    return changes


def decode(
    part: Partition,
    points: Iterable[Point],
    damaged: Damaged | None = None,
    *,
    pending: bool = False,
) -> list[StoredRecord]:
    """Return the records that points contain.

    Args:
        part: The points' partition.
        points: The points, as the server returned them.
        damaged: Receives damaged records.
        pending: Whether to return the records of unfinished transactions instead of the others.

    Raises:
        StoreDamaged: A record is damaged, and `damaged` is None.
    """
    records: list[StoredRecord] = []
    for point in points:
        if (point.payload.get("ended") == PENDING) is not pending:
            continue
        try:
            stored = _decode_point(part, point)
        except StoreDamaged as exc:
            if damaged is None:
                raise
            damaged.note(_finding(part, point, exc))
            continue
        if damaged is not None and (problem := find_problem(stored.record)):
            damaged.note(damaged_record(stored.ref, f"it {problem}"))
            continue
        records.append(stored)
    return records


def _finding(part: Partition, point: Point, exc: StoreDamaged) -> Finding:
    try:
        return damaged_record(ref_of(part, point.id), "it differs from what was written")
    except StoreDamaged:
        what, _, remedy = str(exc).partition("; ")
        return Finding(what, remedy)


def _decode_point(part: Partition, point: Point) -> StoredRecord:
    payload: Mapping[str, Any] = point.payload
    ref = ref_of(part, point.id)
    windows: dict[str, Windows] = {}
    try:
        body = json.loads(payload["body"])
        fields = dict(body["fields"])
        for name, value in payload.items():
            if name.startswith(_FIELD):
                fields[name.removeprefix(_FIELD)] = json.loads(value)
            elif name.startswith(_VECTORS):
                write_id, size = value.split("/")
                windows[name.removeprefix(_VECTORS)] = Windows(write_id, int(size))
        record = Record(
            ref=ref,
            text=body["text"],
            created_at=from_millis(payload["created"]),
            ended_at=None if payload["ended"] >= LIVE else from_millis(payload["ended"]),
            ended_by=payload.get("by"),
            key=payload.get("key"),
            labels=body["labels"],
            fields={name: value for name, value in fields.items() if value is not None},
            accesses=payload.get("accesses", 0),
            session=body["session"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise _damage_error(part, point.id) from exc
    return StoredRecord(record, windows)


def write_id_of(point: Point) -> str:
    """Return the id of the write that added a record, even if the record is pending."""
    try:
        return str(json.loads(str(point.payload["body"]))["writer"])
    except (KeyError, TypeError, ValueError):
        return ""


def label_of(key: str, value: str) -> str:
    """Return a label as one string."""
    return json.dumps([key, value], ensure_ascii=False)


def labels_of(record: Record) -> set[str]:
    """Return a record's labels, each as one string."""
    return {label_of(key, value) for key, value in record.labels.items()}


def pair_of(label: str) -> tuple[str, str]:
    """Return a label's key and value."""
    key, value = json.loads(label)
    return key, value


def _damage_error(part: Partition, point_id: str) -> StoreDamaged:
    return StoreDamaged(
        f'the record "{point_id[:80]}" of namespace {part.namespace} on the server differs from '
        "what was written; restore a backup of the server"
    )


def conditions(where: Filter) -> list[Condition]:
    """Return a filter as conditions on the payload, without its group prefix."""
    conditions: list[Condition] = []
    if where.as_of is not None:
        moment = to_millis(where.as_of)
        conditions += [
            Condition("created", "<=", moment),
            Condition("ended", ">", moment),
            Condition("ended", "<=", LIVE),
        ]
    elif where.state == "live":
        conditions.append(Condition("ended", "=", LIVE))
    else:
        conditions.append(Condition("ended", "<" if where.state == "ended" else "<=", LIVE))
    if where.key is not None:
        conditions += [Condition("key", "=", where.key), Condition("ended", "=", LIVE)]
    if where.ended_by is not None:
        conditions.append(Condition("by", "=", where.ended_by))
    if where.since is not None:
        conditions.append(Condition("created", ">=", to_millis(where.since)))
    if where.until is not None:
        conditions.append(Condition("created", "<=", to_millis(where.until)))
    if where.group is not None and not where.prefix:
        conditions.append(Condition("group", "=", where.group))
    conditions += [Condition("labels", "has", label_of(*pair)) for pair in where.labels.items()]
    return conditions


def is_narrow(where: Filter) -> bool:
    """Return whether a filter has a condition other than `state`, or selects ended records."""
    has_prefix = where.prefix and bool(where.group)
    return has_prefix or where.state == "ended" or len(conditions(where)) > 1


def is_specific(where: Filter) -> bool:
    """Return whether a filter usually selects few records."""
    names_group = where.group is not None and not where.prefix
    return names_group or bool(where.labels) or where.key is not None
