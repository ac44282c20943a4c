"""Damaged records: the rules for intact records, and the damage that a store's reads have found.

A user can edit a file, a server has other clients, and an export may come from anyone. So every
record that is read or imported is checked here before it is used. Unknown fields are accepted: a
newer version of this program may have written them.
"""

import functools
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

from memories.core.ids import storable
from memories.core.times import from_millis
from memories.errors import InvalidInput, StoreDamaged
from memories.guard import validate
from memories.guard.origin import PART
from memories.guard.validate import ROLES, shown
from memories.languages import make_visible
from memories.models import MAX_TURN_CHARACTERS, DecayPolicy
from memories.stores.records import ROLE, SPEAKER, Collection, Finding, Record, Ref

UNKNOWN = "?"  # stands for an unreadable namespace; no namespace can have this name
# A group whose name can't be read or passed as an argument is called `damaged-NUMBER` instead.
UNREADABLE = "damaged-"

_MAX_FINDINGS = 1_000
_MAX_NAME = validate.MAX_KEY
_SCOPE = "\x1f"  # separates a project or conversation from the key in it
_MAX_KEY = 2 * _MAX_NAME + 1
_MAX_LABELS = validate.MAX_TAGS + 12  # a turn's role, speaker, part and origins are labels too
_MAX_VALUE = 4 * validate.MAX_TAG_VALUE
_MAX_CACHED_LABEL = 128  # maximum length of a label value whose check is cached
_WORD = re.compile(r"[a-z][a-z _-]{0,63}(?: \(restored\)){0,99}")
_OPERATIONS = ("create", "update", "confirm", "restore", "rollback", "merge")
_ENDS = ("update", "delete", "supersede", "pending", "rollback")


class Damaged:
    """Collects the damaged parts that a store's reads have found; threads may share it.

    Reads find damage only in the records that they read. `Store.check` looks for all damage.
    """

    def __init__(self, max_findings: int = _MAX_FINDINGS) -> None:
        """Start empty; only the newest `max_findings` are remembered."""
        self._max_findings = max_findings
        self._lock = threading.Lock()
        self._findings: OrderedDict[Ref | str, tuple[int, Finding]] = OrderedDict()
        self._count = 0

    def note(self, finding: Finding) -> None:
        """Remember a damaged part that a result leaves out.

        If the part was found before, it becomes the latest finding.
        """
        with self._lock:
            self._count += 1
            name = finding.what if finding.ref is None else finding.ref
            self._findings[name] = self._count, finding
            self._findings.move_to_end(name)
            if len(self._findings) > self._max_findings:
                self._findings.popitem(last=False)

    def mark(self) -> int:
        """Return the number of findings so far, to be passed to `since`."""
        return self._count

    def since(self, mark: int = 0) -> tuple[Finding, ...]:
        """Return the findings after a call of `mark`, from all threads; by default all findings."""
        with self._lock:
            return tuple(finding for number, finding in self._findings.values() if number > mark)

    def remove(self, is_gone: Callable[[Ref], bool]) -> None:
        """Remove the findings about records that are gone."""
        with self._lock:
            names = [name for name in self._findings if isinstance(name, Ref) and is_gone(name)]
            for name in names:
                del self._findings[name]


def damaged_record(ref: Ref, why: object) -> Finding:
    """Return a finding that names a damaged record and the command that removes it."""
    group, quoted = shown(ref.group), _quote(ref.group)
    if ref.collection is Collection.HISTORY:
        name = f"turn {ref.position} of {group}"
        command = f"turns forget {quoted} --index {ref.position}"
    else:
        name = f"memory {group} (version {ref.position})"
        command = f"forget {quoted}"
    option = ""
    if ref.namespace != UNKNOWN:
        option = f" --namespace {ref.namespace}"
    return Finding(
        f"{name} in namespace {ref.namespace} is damaged: {why}",
        f"restore a backup, or remove it with: memory {command}{option}",
        ref=ref,
    )


def _quote(name: str) -> str:
    """Return a name quoted for a shell, with invisible characters escaped."""
    import shlex  # only needed for damaged records

    visible = make_visible(name, lambda character: f"\\U{ord(character):08x}")
    if visible == name:
        return shlex.quote(name)
    return "$'" + visible.replace("'", "\\'") + "'"


def refusal(finding: Finding) -> StoreDamaged:
    """Return the error for a request that needs a damaged record or file."""
    return StoreDamaged(f"{finding.what}; {finding.remedy}")


# --- the rules for an intact record


def find_problem(record: Record) -> str | None:
    """Return a record's defect, such as "has content that is not text"; None for a sound record."""
    if record.ref.collection is Collection.LOG:
        return None  # `transfer.audit` checks log entries
    return (
        _find_group_problem(record)
        or _find_part_problem(record)
        or _find_labels_problem(record)
        or _find_fields_problem(record.fields)
    )


def find_import_problem(record: Record) -> str | None:
    """Return why this program can't have written an intact record; None if it may have.

    This is stricter than `find_problem`, because imported records must obey the limits for new
    records.
    """
    is_turn = record.ref.collection is Collection.HISTORY
    if is_turn and len(record.text) > MAX_TURN_CHARACTERS:
        return (
            f"has content of {len(record.text)} characters; "
            f"a turn has at most {MAX_TURN_CHARACTERS}"
        )
    ended_by = (record.ended_by or _ENDS[0]).partition(" (")[0]
    operation = record.fields.get("operation", _OPERATIONS[0])
    vocabularies = (("ended_by", ended_by, _ENDS), ("operation", operation, _OPERATIONS))
    for name, word, words in vocabularies:
        if word not in words:
            return (
                f'has the {name} "{shown(word)}", which this program does not know; '
                "a newer one may have written it"
            )
    return None


def _find_group_problem(record: Record) -> str | None:
    group = record.ref.group
    if record.ref.collection is Collection.MEMORY:  # other programs may use any text as an id
        if _is_id(group):
            return None
        return f"has an id that is not text of 1 to {_MAX_NAME} characters"
    if _is_name(group):
        return None
    return "has a conversation id that is not text on one line"


def _find_part_problem(record: Record) -> str | None:
    if not (isinstance(record.text, str) and _is_text(record.text)):
        return "has content that is not text"
    numbers = (
        ("position", record.ref.position),
        ("accesses", record.accesses),
        ("session", record.session or 0),
    )
    for name, number in numbers:
        if not _is_integer(0, 2**53 - 1, number):
            return f"has a {name} that is not a whole number, 0 or more"
    if record.ended_by is not None and not _is_word(record.ended_by):
        return "has an ended_by that is not a word"
    if record.key is not None and not _is_key(record.key):
        return "has a key that is not text on one line"
    return None


def _find_labels_problem(record: Record) -> str | None:
    labels = record.labels
    if not isinstance(labels, Mapping) or len(labels) > _MAX_LABELS:
        return f"has labels that are not at most {_MAX_LABELS} pairs of strings"
    for key, value in labels.items():
        if type(key) is str and type(value) is str and len(value) <= _MAX_CACHED_LABEL:
            problem = _find_short_label_problem(key, value)
        else:
            problem = _find_label_problem(key, value)
        if problem:
            return problem
    if record.ref.collection is Collection.HISTORY:
        return _find_turn_problem(labels, record.ref.position)
    return None


def _find_label_problem(key: object, value: object) -> str | None:
    if not _is_name(key):
        return "has a label whose name is not text on one line"
    if value != "" and not _is_name(value, _MAX_VALUE):
        return f'has a label "{shown(str(key))}" that is not text on one line'
    return None


# Cached, since thousands of records share a few labels.
_find_short_label_problem = functools.lru_cache(maxsize=4_096)(_find_label_problem)


def _find_turn_problem(labels: Mapping[str, str], position: int) -> str | None:
    """Return a defect of the labels that only turns have; None if they are sound."""
    if labels.get(ROLE, ROLES[0]) not in ROLES:
        return f'has the role "{shown(labels[ROLE])}", which is not one of {", ".join(ROLES)}'
    if labels.get(SPEAKER) == "":
        return "has a speaker without a name"
    start = labels.get(PART, "0")
    is_number = start.isascii() and start.isdigit() and len(start) <= 16
    if not is_number or int(start) > position:
        return f'says that it belongs to a message that begins at "{shown(start)}"'
    return None


def _find_fields_problem(fields: object) -> str | None:
    if not isinstance(fields, Mapping):
        return "has fields that are not name-value pairs"
    for name, field in fields.items():
        if not _is_name(name) or not _is_scalar(field):
            return f'has a field "{shown(str(name))}" that is not text, a number, true or false'
        rule = _FIELD_RULES.get(name)
        if rule is None:
            continue
        is_valid, expected = rule
        if not is_valid(field):
            return f'has the {name} "{shown(str(field))}", which is not {expected}'
    return None


def _is_text(field: object) -> bool:
    return isinstance(field, str) and (field.isascii() or storable(field))


def _is_name(field: object, max_length: int = _MAX_NAME) -> bool:
    """Return whether a value is storable text on one line, without control characters."""
    if not isinstance(field, str) or not 1 <= len(field) <= max_length:
        return False
    return field.isprintable() or (_is_text(field) and not validate.has_control(field))


def _is_key(field: object) -> bool:
    if not isinstance(field, str):
        return False
    return all(_is_name(part, _MAX_KEY) for part in field.split(_SCOPE, 1))


def _is_integer(lowest: int, highest: int, field: object) -> bool:
    return type(field) is int and lowest <= field <= highest


def _is_scalar(field: object) -> bool:
    if isinstance(field, str):
        return _is_text(field)
    return isinstance(field, bool | int) or (isinstance(field, float) and math.isfinite(field))


def _is_time(field: object) -> bool:
    if type(field) is not int:
        return False
    try:
        from_millis(field)
    except (ValueError, OverflowError, OSError):
        return False
    return True


def _is_share(field: object) -> bool:
    return isinstance(field, int | float) and not isinstance(field, bool) and 0 <= field <= 1


def _is_word(field: object) -> bool:
    return isinstance(field, str) and bool(_WORD.fullmatch(field))


def _is_id(field: object) -> bool:
    return isinstance(field, str) and 1 <= len(field) <= _MAX_NAME and _is_text(field)


def _is_ids(field: object) -> bool:
    return isinstance(field, str) and all(map(_is_id, field.split(" ")))


def _is_json_object(field: object) -> bool:
    try:
        return isinstance(field, str) and bool(validate.data(field))
    except InvalidInput:
        return False


# For each known field, a test for its value and a description of valid values.
_FIELD_RULES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "decay": (tuple(DecayPolicy).__contains__, f"one of {', '.join(DecayPolicy)}"),
    "confidence": (_is_share, "a number from 0 to 1"),
    "first_at": (_is_time, "a time in milliseconds"),
    "aging_from": (_is_time, "a time in milliseconds"),
    "reinforced_at": (_is_time, "a time in milliseconds"),
    "accepted_at": (_is_time, "a time in milliseconds"),
    "accepted_by": (_is_name, "a name on one line"),
    "operation": (_is_word, "a word"),
    "supersedes": (_is_id, "an id"),
    "superseded_by": (_is_id, "an id"),
    "corrects": (_is_ids, "ids"),
    "corrected_by": (_is_id, "an id"),
    "corrected_at": (_is_time, "a time in milliseconds"),
    "corrected_until": (_is_time, "a time in milliseconds"),
    "former_corrects": (_is_ids, "ids"),
    "former_corrected_by": (_is_id, "an id"),
    "not_corrected": (_is_text, "text"),
    "suspicious": (_is_text, "text"),
    "redacted": (_is_text, "text"),
    "rolled_back_to": (_is_time, "a time in milliseconds"),
    "source": (_is_id, "a conversation or a turn"),
    "data": (_is_json_object, "a JSON object"),
    "anchors": (_is_text, "text"),
    "tidy": (_is_text, "text"),
    "anchored_at": (_is_time, "a time in milliseconds"),
    "valid_until": (_is_time, "a time in milliseconds"),
    "recheck_days": (functools.partial(_is_integer, 1, 36_500), "a number of days"),
    "utc_offset": (
        functools.partial(_is_integer, -86_399, 86_399),
        "the offset of a time zone in seconds",
    ),
    "parts": (functools.partial(_is_integer, 2, 10_000), "a number of parts"),
    "message_id": (_is_name, "an id on one line"),
    "title": (_is_name, "text on one line"),
    "user": (_is_name, "a name on one line"),
    "conversation_tags": (_is_text, "text"),
}
