"""Defines the built-in names in a `--where` expression: how each is compared and read from a
record.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from memories.guard.origin import IMPORT, TRUSTS, origin_of
from memories.guard.validate import ROLES
from memories.models import VERDICTS, DecayPolicy
from memories.read import versions
from memories.read.turns import start_of
from memories.stores.records import ROLE, SPEAKER, Collection, Record

Reader = Callable[[Record], Any]  # returns a record's value for a name, or None

_ORIGIN = ("by", "trust", "channel", "client", "user", "host", "identity")
CHOICES: dict[str, Sequence[str]] = {
    "trust": TRUSTS,
    "decay": tuple(DecayPolicy),
    "role": ROLES,
    "verdict": VERDICTS,
}


class Name(NamedTuple):
    """A built-in name in an expression, as opposed to the name of a tag.

    Attributes:
        kind: `text`, `choice`, `number`, `time`, `id` or `source`.
        read: Returns a record's value for the name. None for `confidence` and `verdict`, which
            depend on the time.
    """

    kind: str
    read: Reader | None


def source_of(record: Record) -> str | None:
    """Return a memory's source: a conversation, or a turn of one."""
    return record.fields.get("source") or record.labels.get("conversation_id")


def conversation_in(source: str) -> str:
    """Return the conversation of a source: `standup` for `standup#3`."""
    name, hash_sign, index = source.rpartition("#")
    if hash_sign and name and index.isascii() and index.isdigit():
        return name
    return source


def conversation_of(record: Record) -> str | None:
    """Return the conversation that a memory was made from."""
    source = record.fields.get("source")
    return conversation_in(source) if source else source_of(record)


def is_from(record: Record, wanted: str) -> bool:
    """Return whether a memory was made from this turn or conversation."""
    return wanted in (source_of(record), conversation_of(record))


def _origin_reader(name: str) -> Reader:
    attribute = "namespace" if name == "identity" else name

    def read(record: Record) -> Any:
        origin = origin_of(record.labels)
        return None if origin is None else getattr(origin, attribute)

    return read


def label_reader(label: str, default: str | None = None) -> Reader:
    """Return a function that reads a label."""

    def read(record: Record) -> str | None:
        return record.labels.get(label, default)

    return read


def _read_key(record: Record) -> str | None:
    return versions.plain_key(record.key)


def _time_reader(field: str) -> Reader:
    def read(record: Record) -> datetime | None:
        return versions.time_of(record.fields, field)

    return read


_group = attrgetter("ref.group")
_written_at = Name("time", attrgetter("created_at"))
_COMMON: dict[str, Name] = {
    "namespace": Name("text", attrgetter("ref.namespace")),
    "content": Name("text", attrgetter("text")),
    "import": Name("text", label_reader(IMPORT)),
    "updated": _written_at,
    "since": _written_at,
    "until": _written_at,
    **{
        name: Name("choice" if name in CHOICES else "text", _origin_reader(name))
        for name in _ORIGIN
    },
}
NAMES: dict[Collection, dict[str, Name]] = {
    Collection.MEMORY: {
        **_COMMON,
        "id": Name("id", _group),
        "key": Name("text", _read_key),
        "conversation": Name("text", conversation_of),
        "source": Name("source", source_of),
        "decay": Name("choice", versions.decay_policy),
        "confidence": Name("number", None),
        "base_confidence": Name("number", versions.base_confidence),
        "version": Name("number", attrgetter("ref.position")),
        "access_count": Name("number", attrgetter("accesses")),
        "created": Name("time", versions.first_written_at),
        "reinforced": Name("time", _time_reader("reinforced_at")),
        "ended": Name("time", attrgetter("ended_at")),
        "verdict": Name("choice", None),
        "anchors": Name("text", lambda record: record.fields.get("anchors")),
        "valid_until": Name("time", _time_reader("valid_until")),
    },
    Collection.HISTORY: {
        **_COMMON,
        "id": Name("text", lambda record: f"{record.ref.group}#{start_of(record)}"),
        "key": Name("text", _read_key),
        "conversation": Name("text", _group),
        "role": Name("choice", label_reader(ROLE, ROLES[0])),
        "speaker": Name("text", label_reader(SPEAKER)),
        "index": Name("number", start_of),
        "created": _written_at,
    },
}
