"""A record on a document server: its id, its payload, and filters as conditions on it. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from memories.core.times import from_millis, to_millis
from memories.errors import StoreDamaged
from memories.stores.damage import Damaged, damaged_record, find_problem
from memories.stores.documents.driver import Condition, Kind, Part, Point, Value
from memories.stores.records import Filter, Finding, Patch, Record, Ref

# The state of a record is one number, so that every filter is a plain conjunction: the millisecond
# at which it ended, or one of these two, which no time reaches.
LIVE = 2**53 - 2
PENDING = 2**53 - 1  # written, but its transaction has not ended: it does not exist yet

_FIELD = "field."  # before the name of a field that a patch has set
_VECTORS = "vectors."  # before the id of a space


class Windows(NamedTuple):
    """The vectors of a record in one space: the id of the write that made them, and how many there
    are.
    """

    write_id: str
    size: int


class Stored(NamedTuple):
    """A record as it was read.

    Attributes:
        record: The record.
        windows: Its vectors, by the id of their space.
    """

    record: Record
    windows: Mapping[str, Windows]


def part_of(ref: Ref) -> Part:
    """Return the part that a record is in."""
    return Part(Kind.RECORDS, ref.collection, ref.namespace)


def record_id(ref: Ref) -> str:
    """Return the id of a record."""
    return f"{ref.position}/{ref.group}"


def ref_of(part: Part, point_id: str) -> Ref:
    """Return the ref of the record with this id, or of the record that a window with this id
    belongs to.
    """
    try:
        position, group = (
            point_id.split("/", 3)[2:] if part.kind is Kind.VECTORS else point_id.split("/", 1)
        )
        return Ref(part.collection, part.namespace, group, int(position))
    except ValueError as exc:
        raise _damaged(part, point_id) from exc


def window_ids(ref: Ref, windows: Windows) -> list[str]:
    """Return the ids of the windows of a record's vectors."""
    return [f"{windows.write_id}/{number}/{record_id(ref)}" for number in range(windows.size)]


# --- payloads
# --------------------------------------------------------------------------------------------------------


def encode(
    record: Record, write_id: str, windows: Mapping[str, Windows], *, pending: bool
) -> dict[str, Value]:
    """Return the payload of a new record.

    Args:
        record: The record.
        write_id: The id of this write; no two writes have the same.
        windows: Its vectors, by the id of their space.
        pending: Whether it does not exist yet.
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
    optional: dict[str, Value | None] = {
        "by": record.ended_by,
        "key": record.key,
        "labels": [label_of(*pair) for pair in record.labels.items()],
        "accesses": record.accesses,
    }
    payload |= {name: value for name, value in optional.items() if value}
    return payload | vectors_payload(windows) if windows else payload


def ended_of(record: Record) -> int:
    """Return the number that says when a record ended."""
    return LIVE if record.ended_at is None else to_millis(record.ended_at)


def vectors_payload(windows: Mapping[str, Windows]) -> dict[str, Value]:
    """Return the part of a payload that lists a record's vectors."""
    listed: dict[str, Value] = {
        f"{_VECTORS}{space}": f"{write_id}/{size}" for space, (write_id, size) in windows.items()
    }
    return {"spaces": sorted(windows), **listed}


def changes_of(patch: Patch) -> dict[str, Value | None]:
    """Return a patch as changes of a payload."""
    fields = {
        f"{_FIELD}{name}": json.dumps(value, ensure_ascii=False)
        for name, value in patch.fields.items()
    }
    ended = LIVE if patch.ended_at is None else to_millis(patch.ended_at)
    return {"ended": ended, "by": patch.ended_by, **fields}


def decode(
    part: Part, points: Iterable[Point], damaged: Damaged | None = None, *, pending: bool = False
) -> list[Stored]:
    """Return the records of points, without those whose transaction has not ended, or of these
    only.

    Args:
        part: Where they are.
        points: As the server returned them.
        damaged: Takes those that are not what was written.
        pending: Return only those whose transaction has not ended.

    Raises:
        StoreDamaged: One is not what was written, and there is nothing that takes it.
    """
    records: list[Stored] = []
    for point in points:
        if (point.payload.get("ended") == PENDING) is not pending:
            continue
        try:
            stored = _decoded(part, point)
        except StoreDamaged as exc:
            if damaged is None:
                raise
            damaged.note(_finding(part, point, exc))
            continue
        wrong = None if damaged is None else find_problem(stored.record)
        if damaged is None or wrong is None:
            records.append(stored)
        else:
            damaged.note(damaged_record(stored.record.ref, f"it {wrong}"))
    return records


def _finding(part: Part, point: Point, exc: StoreDamaged) -> Finding:
    try:
        return damaged_record(ref_of(part, point.id), "it is not what was written")
    except StoreDamaged:
        what, _, remedy = str(exc).partition("; ")
        return Finding(what, remedy)


def _decoded(part: Part, point: Point) -> Stored:
    payload: Mapping[str, Any] = point.payload
    ref = ref_of(part, point.id)
    try:
        body = json.loads(payload["body"])
        fields, windows = dict(body["fields"]), dict[str, Windows]()
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
        raise _damaged(part, point.id) from exc
    return Stored(record, windows)


def write_id_of(point: Point) -> str:
    """Return the id of the write that made a record, pending or not."""
    try:
        return str(json.loads(str(point.payload["body"]))["writer"])
    except (KeyError, TypeError, ValueError):
        return ""


def label_of(key: str, value: str) -> str:
    """Return a label as one text."""
    return json.dumps([key, value], ensure_ascii=False)


def pair_of(label: str) -> tuple[str, str]:
    """Return the key and the value of a label."""
    key, value = json.loads(label)
    return key, value


def _damaged(part: Part, point_id: str) -> StoreDamaged:
    return StoreDamaged(
        f'the record "{point_id[:80]}" of namespace {part.namespace} on the server is not what was written; '
        "restore a backup of the server"
    )


# --- filters
# ---------------------------------------------------------------------------------------------------------


def conditions(where: Filter) -> list[Condition]:
    """Return a filter as conditions on the payload; the prefix of a group is left to
    `Filter.fits`.
    """
    found: list[Condition] = []
    if where.as_of is not None:
        moment = to_millis(where.as_of)
        found += [
            Condition("created", "<=", moment),
            Condition("ended", ">", moment),
            Condition("ended", "<=", LIVE),
        ]
    elif where.state == "live":
        found.append(Condition("ended", "=", LIVE))
    else:
        found.append(Condition("ended", "<" if where.state == "ended" else "<=", LIVE))
    if where.key is not None:
        found += [Condition("key", "=", where.key), Condition("ended", "=", LIVE)]
    if where.ended_by is not None:
        found.append(Condition("by", "=", where.ended_by))
    if where.since is not None:
        found.append(Condition("created", ">=", to_millis(where.since)))
    if where.until is not None:
        found.append(Condition("created", "<=", to_millis(where.until)))
    if where.group is not None and not where.prefix:
        found.append(Condition("group", "=", where.group))
    return [*found, *(Condition("labels", "has", label_of(*pair)) for pair in where.labels.items())]


def is_narrow(where: Filter) -> bool:
    """Return whether a filter asks for more than that records are live, or that they exist at
    all.
    """
    return (
        len(conditions(where)) > 1 or where.state == "ended" or (where.prefix and bool(where.group))
    )


def is_specific(where: Filter) -> bool:
    """Return whether a filter names what mostly few records have."""
    return (
        bool(where.labels)
        or where.key is not None
        or (where.group is not None and not where.prefix)
    )
