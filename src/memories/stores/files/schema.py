"""Events as lines of JSON that people, grep and git can read, and the names of the files that they
are in.

A line states a version of a memory, or a turn, with the fields of the chat agent's contract,
whatever happened to it; `op` says what did. A line without `op`, of another program or written by
hand, creates what it states.
"""

import json
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memories.core.ids import digest, hyphenated
from memories.core.times import from_millis, to_iso, to_millis
from memories.stores.records import Collection, Record, Ref

UNTYPED = "memory"  # the kind of a memory without a tag `type`
_KINDS = {Collection.MEMORY: UNTYPED, Collection.HISTORY: "turn", Collection.LOG: "log"}
_PARTS = {
    Collection.MEMORY: "",
    Collection.HISTORY: ".turns",
    Collection.LOG: "~log",
}  # no namespace ends so
_PLAIN = re.compile(r"[a-z0-9._-]")
_ESCAPED = re.compile(r"%([0-9a-f]{2})")
_DEVICE = re.compile(r"(con|nul|aux|prn|com\d|lpt\d)(?=\.|$)")  # no file on Windows may be named so
_BARE_ID = re.compile(r"[0-9a-f]{32}")

CREATE, END, CHANGE, REMOVE = "create", "end", "change", "remove"

Json = dict[str, Any]


class Event(NamedTuple):
    """What happened to a version of a memory, or to a turn.

    Attributes:
        time: When, as text that sorts; the later one of two counts.
        id: Tells it from all others; of two at one time the greater one counts.
        op: `create`, `end` (its end was set or undone), `change` (of fields), or `remove` (for
            good).
        of: The id of the event that created it.
        record: How it was afterwards.
        names: The fields that changed; of what was removed, the ids of their creation, and digests
            of the memories of which nothing was left.
    """

    time: str
    id: str
    op: str
    of: str
    record: Record
    names: tuple[str, ...] = ()


def file_name(collection: Collection, namespace: str) -> str:
    """Return the name of the file for the records of a namespace: `ann.jsonl`, `ann.turns.jsonl`.

    Lower-case letters, digits and `._-` stand for themselves; anything else is `%` and two digits
    for each of its bytes, so that no two namespaces share a file where case does not count.
    """
    return f"{stem(namespace)}{_PARTS[collection]}.jsonl"


def stem(namespace: str) -> str:
    """Return how the names of a namespace's files begin."""
    if not namespace:
        return "%"
    written = "".join(
        sign
        if _PLAIN.fullmatch(sign)
        else "".join(f"%{byte:02x}" for byte in sign.encode("utf-8", "surrogatepass"))
        for sign in namespace
    )
    for ending in (".turns", ".jsonl"):  # else it would look like another namespace's other file
        if written.endswith(ending):
            written = f"{written[: -len(ending)]}%2e{ending[1:]}"
    if written.startswith("."):
        written = f"%2e{written[1:]}"
    return f"%{ord(written[0]):02x}{written[1:]}" if _DEVICE.match(written) else written


def namespace_of(name: str, collection: Collection) -> str | None:
    """Return the namespace whose records of a collection a file of that name holds; None if it is
    no such file.
    """
    ending = f"{_PARTS[collection]}.jsonl"
    written = name.removesuffix(ending)
    if written == name:
        return None
    if written == "%":
        return ""
    data = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), written)
    try:
        namespace = data.encode("latin-1").decode("utf-8", "surrogatepass")
    except UnicodeError:
        return None
    return namespace if file_name(collection, namespace) == name else None


def to_json(record: Record) -> Json:
    """Return a record as the object of its line; a memory's has the fields of the chat agent's
    contract.
    """
    fields = {name: value for name, value in record.fields.items() if value is not None}
    labels = dict(record.labels)
    turn = record.ref.collection is Collection.HISTORY
    typed = record.ref.collection is Collection.MEMORY and labels.get("type") not in (
        None,
        "",
        UNTYPED,
    )
    created_at = record.created_at if turn else _first_written(record, fields)
    ref = record.ref
    line: Json = {
        "id": f"{ref.group}#{ref.position}" if turn else ref.group,
        "user_id": ref.namespace,
        "content": record.text,
        "kind": labels.pop("type") if typed else _KINDS[record.ref.collection],
        "created_at": to_iso(created_at),
        "updated_at": to_iso(record.created_at),
    }
    if _is_share(fields.get("confidence")):
        line["confidence"] = fields.pop("confidence")
    if "source_turn_id" in fields:
        line["source_turn_id"] = fields.pop("source_turn_id")
    if turn:
        line |= {"conversation_id": ref.group, "turn_index": ref.position}
    else:
        line["version"] = ref.position
    optional = {
        "session": record.session,
        "key": record.key,
        "tags": labels or None,
        "ended_at": record.ended_at and to_iso(record.ended_at),
        "ended_by": record.ended_by,
        "fields": fields or None,
    }
    return line | {name: value for name, value in optional.items() if value is not None}


def to_line(event: Event) -> str:
    """Return an event as a line, without its end."""
    line = to_json(event.record) | {"op": event.op, "event": event.id, "time": event.time}
    if event.op in (END, CHANGE):
        line["of"] = event.of
    if event.names:
        line["names"] = list(event.names)
    return json.dumps(line, ensure_ascii=False)


def to_event(line: object, collection: Collection, namespace: str) -> Event:
    """Return the event of a line; one without `op` creates what it states, at the time at which
    that was written.

    Raises:
        ValueError: It is none; the message says why, and the line is not shown.
    """
    record = to_record(line, collection, namespace)
    assert isinstance(line, dict)
    op = line.get("op", CREATE)
    if op not in (CREATE, END, CHANGE, REMOVE):
        raise ValueError("its op is not one that this program knows")
    if "event" not in line:
        written_at = time_text(record.created_at)
        own = digest(record.ref.group, str(record.ref.position), written_at)
        return Event(written_at, own, CREATE, own, record)
    own = _text(line, "event")
    names = line.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its names are not texts")
    of = _text(line, "of") if op in (END, CHANGE) else own
    return Event(time_text(_moment(line, "time")), own, op, of, record, tuple(names))


def time_text(moment: datetime) -> str:
    """Return a time in UTC as text that sorts, with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def to_record(line: object, collection: Collection, namespace: str) -> Record:
    """Return the record of a line.

    A line of another program, with nothing but the six fields of the chat agent's contract, is a
    memory's first version; its kind is the tag `type`, and its id is read as ours are written.

    Raises:
        ValueError: It is none; the message says why, and the line is not shown.
    """
    if not isinstance(line, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of a file, not of an argument
    if _text(line, "user_id") != namespace:
        raise ValueError("its user_id is not the one that the file is named after")
    labels = dict(_texts(line.get("tags") or {}))
    fields = dict(_scalars(line.get("fields") or {}))
    created_at, updated_at = _time(line, "created_at"), _time(line, "updated_at")
    kind = _text(line, "kind")
    if collection is Collection.HISTORY:
        ref = Ref(
            collection, namespace, _text(line, "conversation_id"), _number(line, "turn_index")
        )
    else:
        group = _text(line, "id")
        digits = group.replace("-", "").lower()
        if "version" not in line and _BARE_ID.fullmatch(
            digits
        ):  # a UUID has one form among ids of memories
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


def _first_written(record: Record, fields: Json) -> datetime:
    """Return when the first version of a memory was written, and take it out of the fields if the
    line tells it.
    """
    first = fields.get("first_at")
    if (
        isinstance(first, bool)
        or not isinstance(first, int)
        or first == to_millis(record.created_at)
    ):
        return record.created_at
    try:
        moment = from_millis(first)
    except (ValueError, OverflowError, OSError):
        return record.created_at
    del fields["first_at"]
    return moment


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _text(line: Json, name: str) -> str:
    value = line.get(name)
    if not isinstance(value, str):
        raise ValueError(f"its {name} is missing or no text")  # noqa: TRY004 - of a file
    value.encode()  # half a character can be written as JSON, but stored nowhere
    return value


def _optional_text(line: Json, name: str) -> str | None:
    return None if line.get(name) is None else _text(line, name)


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("its tags are not pairs of texts")
    "".join((*value, *value.values())).encode()
    return value


def _scalars(value: object) -> Json:
    if not isinstance(value, dict) or any(isinstance(each, dict | list) for each in value.values()):
        raise ValueError("its fields are not pairs of a name and a value")
    return value


def _number(line: Json, name: str, default: int | None = None) -> int:
    value = line.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"its {name} is missing or no whole number")
    return value


def _time(line: Json, name: str) -> datetime:
    """Return a time in the resolution in which times are kept."""
    moment = _moment(line, name)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _moment(line: Json, name: str) -> datetime:
    """Return a time; one that names no zone is in UTC."""
    try:
        moment = datetime.fromisoformat(_text(line, name))
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"its {name} is no time in ISO 8601") from None
