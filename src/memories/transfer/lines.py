"""An export as lines of JSON: the same records give the same lines, and every value is checked when
it is read. Pure.

The first line is a header, the last one counts the records and has the SHA-256 of all lines before
it: without it a file that was cut at the end of a line would pass for a whole one. Who knows the
key of the export finds there as well that it was written with it.
"""

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.ids import ID_LENGTH, parse_id, storable
from memories.core.times import kept, to_iso
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.validate import shown
from memories.stores.damage import find_import_problem, find_problem
from memories.stores.records import SEARCHED, Collection, Record, Ref, plain_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT, VERSION = "memories", 2
WITHOUT_LAST_LINE = 1  # the version before; nothing tells whether such an export is complete
MAX_LINE_BYTES = 16_777_216
_REQUIRED = ("collection", "namespace", "group", "position", "text", "created_at")
_OPTIONAL = ("ended_at", "ended_by", "key", "session", "labels", "fields", "accesses", "vectors")
_MAX_LABELS = (
    validate.MAX_TAGS + 11
)  # role, speaker and part of a turn, origin, review, pin: beside tags
_MAX_KEY = 2 * validate.MAX_KEY + 1  # with the project or the conversation that it belongs to
_MAX_FIELDS = 100
_END = re.compile(r'\s*\{\s*"end"\s*:')
_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_OTHER_FILES = (
    (b"PK\x03\x04", "a ZIP archive; unpack it first"),
    (b"PK\x05\x06", "a ZIP archive; unpack it first"),
    (b"\x1f\x8b", "a gzip file; unpack it first"),
    (b"BZh", "a bzip2 file; unpack it first"),
    (b"\xfd7zXZ\0", "an xz file; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"Rar!", "a RAR archive; unpack it first"),
    (b"SQLite format 3\0", "an SQLite database; if it is a store of memories, use memory restore"),
    *((bytes((0x80, version)), "a Python pickle") for version in range(2, 6)),
    (b"%YAML", "a YAML document"),
    (b"%PDF", "a PDF document"),
    (b"\xff\xfe", "a text that looks like UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "a text that looks like UTF-16; save it as UTF-8"),
)


def refuse_other_files(start: bytes) -> None:
    """Refuse what begins like a file of another kind; none of them is ever unpacked or run.

    Raises:
        InvalidInput: It does; the message says which kind.
    """
    kind = next((kind for sign, kind in _OTHER_FILES if start.startswith(sign)), None)
    if start[257:262] == b"ustar":
        kind = "a tar archive; unpack it first"
    if kind is not None:
        what, _, remedy = kind.partition("; ")
        raise InvalidInput(
            f"is not an export: {what} is an unsupported file type{remedy and f'; {remedy}'}"
        )


class Header(NamedTuple):
    """What the first line of an export says.

    Attributes:
        model: The model of the vectors that follow; None if there are none.
        ends: Whether a last line follows.
        backup: What a backup says of itself; None if it is no backup.
    """

    model: str | None
    ends: bool
    backup: Mapping[str, str] | None = None


class Tally:
    """Counts the records of an export and hashes its lines, for the last one.

    Line ends and a byte-order mark are no part of the hash: a transfer as text may change them.

    Attributes:
        records: How many there were.
    """

    def __init__(self, header: str) -> None:
        """Begin with the first line."""
        self.records = 0
        self._hash = hashlib.sha256()
        self._add(header)

    def add(self, line: str) -> None:
        """Add the line of a record, without its end."""
        self.records += 1
        self._add(line)

    def last_line(self, key: bytes | None = None) -> str:
        """Return the last line of an export of these lines; with a key, one that proves who wrote
        it.
        """
        shape = {"end": FORMAT, "records": self.records, "sha256": self._hash.hexdigest()}
        return _dump(shape if key is None else shape | {"proof": self._proof(key)})

    def compare(self, line: str, key: bytes | None = None) -> bool:
        """Compare with the last line of the export that was read; return whether it was written
        with this key.

        Raises:
            InvalidInput: It was written for other lines.
        """
        shape = _object(line)
        if shape.get("end") != FORMAT or "records" not in shape or "sha256" not in shape:
            raise InvalidInput(f"is not the last line of an export, {self.last_line()}")
        if shape["records"] != self.records:
            raise InvalidInput(
                f"says that the export has {shown(str(shape['records']))} records, and there are {self.records}: the "
                "export is incomplete or was changed; use another copy"
            )
        if shape["sha256"] != self._hash.hexdigest():
            raise InvalidInput(
                "does not match the lines before it (SHA-256): the export was damaged or changed after it was written; "
                f'use another copy or, if you changed it, write "version":{WITHOUT_LAST_LINE} in its first line and '
                "remove the last one"
            )
        return key is not None and hmac.compare_digest(
            str(shape.get("proof")).encode(), self._proof(key).encode()
        )

    def _proof(self, key: bytes) -> str:
        """Return HMAC-SHA256 of the hash and the number of records; both stand in the last line."""
        said = f"{FORMAT} {self.records} {self._hash.hexdigest()}"
        return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()

    def _add(self, line: str) -> None:
        self._hash.update(f"{line}\n".encode("utf-8", "surrogatepass"))


def header_line(model: str | None, backup: Mapping[str, str] | None = None) -> str:
    """Return the first line of an export.

    Args:
        model: The model of its vectors; None if it has none.
        backup: What a backup says of itself.
    """
    more = {"model": model, "backup": backup}
    return _dump(
        {"format": FORMAT, "version": VERSION}
        | {name: value for name, value in more.items() if value}
    )


def read_header(line: str) -> Header:
    """Return what the first line says.

    Raises:
        InvalidInput: It is not the header of an export that this program can read.
    """
    shape = _object(line)
    if shape.get("format") != FORMAT:
        raise InvalidInput(
            f'is not the header of an export, {header_line(None)}; write one with "memory export"'
        )
    version = shape.get("version")
    if version not in (WITHOUT_LAST_LINE, VERSION):
        raise InvalidInput(
            f'has version "{shown(str(version))}" and this program reads {WITHOUT_LAST_LINE} and {VERSION}; '
            "upgrade memories"
        )
    model = None if shape.get("model") is None else _text(shape["model"], "model", validate.MAX_KEY)
    backup = None if "backup" not in shape else _mapping(shape["backup"], "backup", _MAX_FIELDS)
    return Header(model, version == VERSION, backup)


def is_last(line: str) -> bool:
    """Return whether a line is the last one of an export."""
    return bool(_END.match(line))


def to_line(record: Record, vectors: "NDArray[np.float32] | None" = None) -> str:
    """Return a record as a line, without its end; what is None, empty or 0 is left out.

    Args:
        record: The record.
        vectors: Shape (windows, dimension), to be kept to the bit.
    """
    shape: dict[str, Any] = {
        "collection": str(record.ref.collection),
        "namespace": record.ref.namespace,
        "group": record.ref.group,
        "position": record.ref.position,
        "text": record.text,
        "created_at": to_iso(record.created_at),
    }
    optional = {
        "ended_at": record.ended_at and to_iso(record.ended_at),
        "ended_by": record.ended_by,
        "key": record.key,
        "session": record.session,
        "labels": dict(sorted(record.labels.items())) or None,
        "fields": {name: plain_number(value) for name, value in sorted(record.fields.items())}
        or None,
        "accesses": record.accesses or None,
        "vectors": None
        if vectors is None
        else [base64.b64encode(row.astype("<f4")).decode() for row in vectors],
    }
    return _dump(shape | {name: value for name, value in optional.items() if value is not None})


def content_hash(record: Record) -> int:
    """Return 128 bits of what a record says; how often it was read and what it was marked with are
    no part of it.
    """
    fields = {name: value for name, value in record.fields.items() if name != "suspicious"}
    line = to_line(record._replace(accesses=0, fields=fields))
    return int.from_bytes(
        hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    )


def is_id(group: str) -> bool:
    """Return whether the name of a group is an id, as those of memories are."""
    return len(group) == ID_LENGTH and bool(_ID.fullmatch(group))


def read_line(line: str, *, own: bool = False) -> Record:
    """Return the record that a line holds, with its vectors if it has some.

    Args:
        line: The line, without its end.
        own: It is from a backup, so what was stored once may be stored again: see `damage.find_import_problem`.

    Raises:
        InvalidInput: It is not a record, or a value is not acceptable; the message says which.
    """
    shape = _object(line)
    missing = [name for name in _REQUIRED if name not in shape]
    unknown = [name for name in shape if name not in _REQUIRED and name not in _OPTIONAL]
    if missing:
        raise InvalidInput(f'has no "{missing[0]}"')
    if unknown:
        raise InvalidInput(
            f'has an unknown key "{shown(unknown[0])}"; a newer program may have written it'
        )
    ended_at = _time(shape["ended_at"], "ended_at") if "ended_at" in shape else None
    ended_by = (
        _text(shape["ended_by"], "ended_by", validate.MAX_KEY) if "ended_by" in shape else None
    )
    if ended_by is not None and ended_at is None:
        raise InvalidInput("has ended_by and no ended_at")
    validate.content(
        shape["text"]
    )  # and kept as it is, not in its normal form: it was accepted once
    record = Record(
        ref=_ref(shape),
        text=shape["text"],
        created_at=_time(shape["created_at"], "created_at"),
        ended_at=ended_at,
        ended_by=ended_by,
        key=_text(shape["key"], "key", _MAX_KEY) if "key" in shape else None,
        labels=_labels(shape.get("labels", {})),
        fields=_fields(shape.get("fields", {})),
        vectors=_vectors(shape["vectors"]) if "vectors" in shape else None,
        accesses=_whole(shape.get("accesses", 0), "accesses"),
        session=_whole(shape["session"], "session") if "session" in shape else None,
    )
    if wrong := find_problem(record) or (None if own else find_import_problem(record)):
        raise InvalidInput(wrong)
    return record


def _ref(shape: Mapping[str, Any]) -> Ref:
    if shape["collection"] not in SEARCHED:
        raise InvalidInput(
            f'has the collection "{shown(str(shape["collection"]))}"; use {" or ".join(SEARCHED)}'
        )
    collection = Collection(shape["collection"])
    namespace = shape["namespace"]
    if (name := validate.canonical_namespace(namespace)) != namespace:
        raise InvalidInput(f'has the namespace "{shown(namespace)}", which is written {name}')
    group = _text(shape["group"], "group", validate.MAX_KEY)
    position = _whole(shape["position"], "position")
    canonical = _canonical(group)
    if collection is Collection.MEMORY and canonical != group:
        raise InvalidInput(f'has the group "{shown(group)}"; that id is written {canonical}')
    if collection is Collection.MEMORY and position == 0:
        raise InvalidInput("has position 0; the versions of a memory count from 1")
    return Ref(collection, namespace, group, position)


def _canonical(group: str) -> str:
    """Return the id of a memory as it is kept: a UUID in its one form; what another program gave it
    as it is.
    """
    try:
        found = parse_id(group)
    except InvalidInput:
        return group
    return found if len(found) == ID_LENGTH else group


def _labels(given: object) -> dict[str, str]:
    labels: dict[str, str] = {}
    for name, value in _mapping(given, "labels", _MAX_LABELS).items():
        key = _text(name, "label", validate.MAX_TAG_KEY)
        labels[key] = _text(value, f'label "{shown(key)}"', validate.MAX_TAG_VALUE, least=0)
    return labels


def _fields(given: object) -> dict[str, Any]:
    pairs = _mapping(given, "fields", _MAX_FIELDS)
    for name, value in pairs.items():
        _text(name, "field", validate.MAX_KEY)
        if not isinstance(value, str | int | float) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise InvalidInput(
                f'has the field "{shown(name)}" with a value that is no text, number, true or false'
            )
    return dict(pairs)


def _mapping(given: object, name: str, most: int) -> Mapping[str, Any]:
    if type(given) is not dict or len(given) > most:
        raise InvalidInput(f"has {name} that are not an object of at most {most} pairs")
    return given


def _text(given: object, name: str, most: int, *, least: int = 1) -> str:
    if not isinstance(given, str) or not least <= len(given) <= most or not storable(given):
        raise InvalidInput(f"has a {name} that is not text of {least} to {most} characters")
    return given


def _whole(given: object, name: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**53:
        raise InvalidInput(f"has a {name} that is not a whole number from 0")
    return given


def _time(given: object, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(str(given))
    except ValueError:
        raise InvalidInput(
            f'has the {name} "{shown(str(given))}", which is not an ISO 8601 time'
        ) from None
    return kept(moment, name)


def _vectors(given: object) -> "NDArray[np.float32]":
    import numpy as np

    try:
        if not isinstance(given, list):
            raise TypeError
        rows = [np.frombuffer(base64.b64decode(row, validate=True), dtype="<f4") for row in given]
        vectors: NDArray[np.float32] = np.stack(rows).astype(np.float32)
    except (TypeError, ValueError, binascii.Error):
        raise InvalidInput(
            "has vectors that are not a list of base64 texts, each as many float32 numbers"
        ) from None
    if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=0.01):
        raise InvalidInput("has a vector that is not of length 1")
    return vectors


def _object(line: str) -> dict[str, Any]:
    shape = validate.read_json(line)
    if type(shape) is not dict:
        raise InvalidInput("is not a JSON object")
    return dict(shape)


def _dump(shape: Mapping[str, Any]) -> str:
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
