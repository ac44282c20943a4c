"""How a record stands on a document server: its id, its payload, and filters as conditions on it. Pure."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from memories.errors import StoreDamaged
from memories.stores.documents.driver import Condition, Kind, Part, Point, Value
from memories.stores.records import Filter, Patch, Record, Ref
from memories.times import from_millis, to_millis

# Where a record stands in time is one number, so that every filter is a plain conjunction: the millisecond at which it
# ended, or one of these two, which no time reaches.
LIVE = 2**53 - 2
PENDING = 2**53 - 1  # written, but its transaction has not ended: it does not exist yet

_FIELD = "field."  # before the name of a field that a patch has set
_VECTORS = "vectors."  # before the letters of a space


class Windows(NamedTuple):
    """The vectors of a record in one space: their ids begin with this word, and there are so many of them."""

    word: str
    size: int


class Stored(NamedTuple):
    """A record as it was read.

    Attributes:
        record: The record.
        writer: The word of who wrote it; no two writings have the same.
        windows: Its vectors, by the letters of their space.
    """

    record: Record
    writer: str
    windows: Mapping[str, Windows]


def part_of(ref: Ref) -> Part:
    """Return the part of the records among which an address lies."""
    return Part(Kind.RECORDS, ref.collection, ref.namespace)


def record_id(ref: Ref) -> str:
    """Return the id of a record."""
    return f"{ref.position}/{ref.group}"


def ref_of(part: Part, point_id: str) -> Ref:
    """Return the address that the id of a record, or of a window of its vectors, stands for."""
    try:
        position, group = point_id.split("/", 3)[2:] if part.kind is Kind.VECTORS else point_id.split("/", 1)
        return Ref(part.collection, part.namespace, group, int(position))
    except ValueError as exc:
        raise _damaged(part, point_id) from exc


def window_ids(ref: Ref, windows: Windows) -> list[str]:
    """Return the ids of the windows of a record's vectors."""
    return [f"{windows.word}/{number}/{record_id(ref)}" for number in range(windows.size)]


def word_of(window_id: str) -> str:
    """Return the word with which the id of a window begins."""
    return window_id.partition("/")[0]


# --- payloads --------------------------------------------------------------------------------------------------------


def encode(
    record: Record, writer: str, windows: Mapping[str, Windows], *, ended: int | None = None
) -> dict[str, Value]:
    """Return the payload of a new record.

    Args:
        record: The record.
        writer: The word of its writer.
        windows: Its vectors, by the letters of their space.
        ended: `PENDING` instead of what the record says.
    """
    body = {
        "text": record.text,
        "labels": dict(record.labels),
        "fields": dict(record.fields),
        "session": record.session,
        "writer": writer,
    }
    payload: dict[str, Value] = {
        "body": json.dumps(body, ensure_ascii=False, separators=(",", ":")),
        "group": record.ref.group,
        "created": to_millis(record.created_at),
        "ended": _ended(record) if ended is None else ended,
    }
    optional: dict[str, Value | None] = {
        "by": record.ended_by,
        "key": record.key,
        "labels": [label_of(*pair) for pair in record.labels.items()],
        "accesses": record.accesses,
    }
    payload |= {name: value for name, value in optional.items() if value}
    return payload | vectors_payload(windows) if windows else payload


def vectors_payload(windows: Mapping[str, Windows]) -> dict[str, Value]:
    """Return the part of a payload that tells of a record's vectors."""
    told: dict[str, Value] = {f"{_VECTORS}{space}": f"{word}/{size}" for space, (word, size) in windows.items()}
    return {"spaces": sorted(windows), **told}


def changes_of(patch: Patch) -> dict[str, Value | None]:
    """Return a patch as changes of a payload."""
    fields = {f"{_FIELD}{name}": json.dumps(value, ensure_ascii=False) for name, value in patch.fields.items()}
    ended = LIVE if patch.ended_at is None else to_millis(patch.ended_at)
    return {"ended": ended, "by": patch.ended_by, **fields}


def decode(part: Part, point: Point) -> Stored | None:
    """Return the record of a point; None if its transaction has not ended.

    Raises:
        StoreDamaged: It is not what was written.
    """
    return None if point.payload.get("ended") == PENDING else decode_any(part, point)


def decode_any(part: Part, point: Point) -> Stored:
    """Return the record of a point, pending or not; see `decode`."""
    payload: Mapping[str, Any] = point.payload
    ref = ref_of(part, point.id)
    try:
        body = json.loads(payload["body"])
        fields = body["fields"] | {
            name.removeprefix(_FIELD): json.loads(value) for name, value in payload.items() if name.startswith(_FIELD)
        }
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
        return Stored(record, body["writer"], _windows(payload))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise _damaged(part, point.id) from exc


def writer_of(point: Point) -> str:
    """Return the word of who wrote a record, pending or not."""
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


def _ended(record: Record) -> int:
    return LIVE if record.ended_at is None else to_millis(record.ended_at)


def _windows(payload: Mapping[str, Any]) -> dict[str, Windows]:
    found: dict[str, Windows] = {}
    for name, value in payload.items():
        if name.startswith(_VECTORS):
            word, size = value.split("/")
            found[name.removeprefix(_VECTORS)] = Windows(word, int(size))
    return found


def _damaged(part: Part, point_id: str) -> StoreDamaged:
    return StoreDamaged(
        f'the record "{point_id[:80]}" of namespace {part.namespace} on the server is not what was written; '
        "restore a backup of the server"
    )


# --- filters ---------------------------------------------------------------------------------------------------------


def conditions(where: Filter) -> list[Condition]:
    """Return a filter as conditions on the payload; only that a group begins so is left to `means`."""
    found: list[Condition] = []
    if where.as_of is not None:
        moment = to_millis(where.as_of)
        found += [Condition("created", "<=", moment), Condition("ended", ">", moment), Condition("ended", "<=", LIVE)]
    else:
        relations: Mapping[str, Condition] = {
            "live": Condition("ended", "=", LIVE),
            "ended": Condition("ended", "<", LIVE),
            "any": Condition("ended", "<=", LIVE),
        }
        found.append(relations[where.state])
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
    """Return whether a filter asks for more than that records are live, or that they are there at all."""
    return len(conditions(where)) > 1 or where.state == "ended" or (where.prefix and bool(where.group))


def is_specific(where: Filter) -> bool:
    """Return whether a filter names what mostly few records have."""
    return bool(where.labels) or where.key is not None or (where.group is not None and not where.prefix)


def means(where: Filter, record: Record) -> bool:
    """Return whether a filter means a record."""
    group = where.group or ""
    return (
        record.ref.collection is where.collection
        and record.ref.namespace in where.namespaces
        and _is_current(where, record)
        and where.labels.items() <= record.labels.items()
        and (where.ended_by is None or record.ended_by == where.ended_by)
        and (where.since is None or record.created_at >= where.since)
        and (where.until is None or record.created_at <= where.until)
        and (record.ref.group.startswith(group) if where.prefix else where.group in (None, record.ref.group))
    )


def _is_current(where: Filter, record: Record) -> bool:
    if where.key is not None and (record.key != where.key or record.ended_at is not None):
        return False
    if where.as_of is not None:
        return record.created_at <= where.as_of and (record.ended_at is None or record.ended_at > where.as_of)
    return where.state == "any" or (where.state == "live") == (record.ended_at is None)
