"""What a record may hold, whoever wrote it: one rule for what a store returns and for what is
imported. Pure.

A file can be edited, a server has other clients, and an export may come from anybody; so nothing
that was read is used before this has looked at it. Fields that this program does not know are
accepted: a newer one may have written them.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from memories.core.ids import storable
from memories.core.times import from_millis
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import PART
from memories.guard.validate import shown
from memories.models import MAX_TURN_CHARACTERS, DecayPolicy
from memories.stores.records import ROLE, ROLES, SPEAKER, Collection, Record

_MAX = validate.MAX_KEY
_SCOPE = "\x1f"  # between a key and the project or the conversation that it belongs to
_MAX_KEY = 2 * _MAX + 1
_MAX_LABELS = (
    validate.MAX_TAGS + 12
)  # role, speaker and part of a turn, and who wrote it, are labels beside tags
_MAX_VALUE = 4 * validate.MAX_TAG_VALUE
_SHORT = 128  # characters of a label that is looked at once
_WORD = re.compile(r"[a-z][a-z _-]{0,63}(?: \(restored\)){0,99}")
_OPERATIONS = ("create", "update", "restore", "rollback", "merge")
_ENDS = ("update", "delete", "supersede", "pending", "rollback")


def problem(record: Record) -> str | None:
    """Return what is wrong with a record that was read, as the rest of a sentence about it; None if
    it is sound.
    """
    if record.ref.collection is Collection.LOG:
        return None  # `chain` checks what its entries say
    return _wrong_parts(record) or _wrong_labels(record) or _wrong_fields(record.fields)


def foreign(record: Record) -> str | None:
    """Return what is wrong with a record that is sound, and that no version of this program writes;
    None if nothing.

    Stricter than `problem`: what comes from elsewhere keeps the limits of what is written here.
    """
    if record.ref.collection is Collection.HISTORY and len(record.text) > MAX_TURN_CHARACTERS:
        return f"has a content of {len(record.text)} characters; a turn has at most {MAX_TURN_CHARACTERS}"
    ended_by = (record.ended_by or _ENDS[0]).partition(" (")[0]
    operation = record.fields.get("operation", _OPERATIONS[0])
    for word, name, known in ((ended_by, "ended_by", _ENDS), (operation, "operation", _OPERATIONS)):
        if word not in known:
            return f'has the {name} "{shown(word)}", which this program does not know; a newer one may have written it'
    return None


def _wrong_parts(record: Record) -> str | None:
    ended_by, key = record.ended_by, record.key
    if wrong := _wrong_group(record):
        return wrong
    if not (isinstance(record.text, str) and _is_text(record.text)):
        return "has a content that is not text"
    for name, number in (
        ("position", record.ref.position), ("accesses", record.accesses), ("session", record.session or 0),
    ):  # fmt: skip
        if not _is_whole(number):
            return f"has a {name} that is not a whole number from 0"
    if ended_by is not None and not _is_word(ended_by):
        return "has an ended_by that is not a word"
    return None if key is None or _is_key(key) else "has a key that is not text on one line"


def _wrong_group(record: Record) -> str | None:
    """Return what is wrong with an id: a memory's may be any text, as other programs give it."""
    if record.ref.collection is Collection.MEMORY:
        return (
            None
            if _is_id(record.ref.group)
            else f"has an id that is not text of 1 to {_MAX} characters"
        )
    return (
        None
        if _is_name(record.ref.group, _MAX)
        else "has a conversation id that is not text on one line"
    )


def _wrong_labels(record: Record) -> str | None:
    labels = record.labels
    if not isinstance(labels, Mapping) or len(labels) > _MAX_LABELS:
        return f"has labels that are not at most {_MAX_LABELS} pairs of texts"
    for key, value in labels.items():
        if type(key) is str and type(value) is str and len(value) <= _SHORT:
            wrong = _wrong_short_label(key, value)
        else:
            wrong = _wrong_label(key, value)
        if wrong:
            return wrong
    if record.ref.collection is Collection.HISTORY:
        return _wrong_turn(labels, record.ref.position)
    return None


def _wrong_label(key: object, value: object) -> str | None:
    if not _is_name(key, _MAX):
        return "has a label whose name is not text on one line"
    if value != "" and not _is_name(value, _MAX_VALUE):
        return f'has a label "{shown(str(key))}" that is not text on one line'
    return None


_wrong_short_label = functools.lru_cache(maxsize=4_096)(
    _wrong_label
)  # of thousands of records few differ


def _wrong_turn(labels: Mapping[str, str], position: int) -> str | None:
    """Return what is wrong with the labels that only turns have."""
    if labels.get(ROLE, ROLES[0]) not in ROLES:
        return f'has the role "{shown(labels[ROLE])}", which is not one of {", ".join(ROLES)}'
    if labels.get(SPEAKER) == "":
        return "has a speaker without a name"
    start = labels.get(PART, "0")
    if not (start.isascii() and start.isdigit() and len(start) <= 16 and int(start) <= position):
        return f'is said to belong to a message that begins at "{shown(start)}"'
    return None


def _wrong_fields(fields: object) -> str | None:
    if not isinstance(fields, Mapping):
        return "has fields that are not pairs of a name and a value"
    for name, value in fields.items():
        if not _is_name(name, _MAX) or not _is_scalar(value):
            return f'has a field "{shown(str(name))}" that is no text, number, true or false'
        rule = _FIELDS.get(name)
        if rule is not None and not rule[0](value):
            return f'has the {name} "{shown(str(value))}", which is not {rule[1]}'
    return None


def _is_text(value: str) -> bool:
    return value.isascii() or storable(value)


def _is_name(value: object, most: int) -> bool:
    """Return whether a value is text on one line: without control characters, with nothing that
    can't be stored.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        return False
    return value.isprintable() or (_is_text(value) and not validate.has_control(value))


def _is_key(value: object) -> bool:
    return isinstance(value, str) and all(
        _is_name(part, _MAX_KEY) for part in value.split(_SCOPE, 1)
    )


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return _is_text(value)
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def _is_time(value: object) -> bool:
    if type(value) is not int:
        return False
    try:
        from_millis(value)
    except (ValueError, OverflowError, OSError):
        return False
    return True


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(_WORD.fullmatch(value))


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= _MAX and _is_text(value)


def _is_object(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(validate.data(value))
    except InvalidInput:
        return False


_TIME, _ID = "a time in milliseconds", "an id"
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "decay": (lambda value: value in tuple(DecayPolicy), f"one of {', '.join(DecayPolicy)}"),
    "confidence": (_is_share, "a number from 0 to 1"),
    "first_at": (_is_time, _TIME),
    "aging_from": (_is_time, _TIME),
    "reinforced_at": (_is_time, _TIME),
    "accepted_at": (_is_time, _TIME),
    "accepted_by": (lambda value: _is_name(value, _MAX), "a name on one line"),
    "operation": (_is_word, "a word"),
    "supersedes": (_is_id, _ID),
    "superseded_by": (_is_id, _ID),
    "corrects": (_is_id, _ID),
    "corrected_by": (_is_id, _ID),
    "corrected_at": (_is_time, _TIME),
    "suspicious": (lambda value: isinstance(value, str), "text"),
    "redacted": (lambda value: isinstance(value, str), "text"),
    "rolled_back_to": (_is_time, _TIME),
    "source": (_is_id, "a conversation or a turn"),
    "data": (_is_object, "a JSON object"),
    "utc_offset": (
        lambda value: type(value) is int and abs(value) < 86_400,
        "the offset of a time zone in seconds",
    ),
    "parts": (lambda value: type(value) is int and 1 < value <= 10_000, "a number of parts"),
    "message_id": (lambda value: _is_name(value, _MAX), "an id on one line"),
    "title": (lambda value: _is_name(value, _MAX), "text on one line"),
    "user": (lambda value: _is_name(value, _MAX), "a name on one line"),
    "conversation_tags": (lambda value: isinstance(value, str), "text"),
}
